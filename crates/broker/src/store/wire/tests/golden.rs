//! Bytes of each form. They never change: a new form gets a new kind.

use std::fmt::Write;
use std::sync::Arc;

use mqtt::{PacketId, QoS, ReasonCode};
use session::{Dispatched, Toggles};
use shard::{QueueFull, QueueLimits};

use crate::batch::{Claimed, Resume, SessionDelivery, SubscriptionIds, Token};
use crate::durability::Durability;
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time, WorkerId};
use crate::message::{Message, MessageView};
use crate::node::OwnerKey;
use crate::origin::Origins;
use crate::quota::{Payers, Quotas};
use crate::route::Options;
use crate::store::wire::{
    Malformed, RequestOrigin, ShardAnswer, check_wire_form, decode_answer, decode_request, encode_answer,
    encode_request,
};
use crate::store::{
    Acknowledgement, Attach, Claim, Completion, DueWill, Enqueue, EnqueueForGroup, EnqueueForPage,
    EnqueueToGroup, GroupName, Identity, Release, Request, WalkProgress, WillDisposition,
};
use crate::will::WillOwner;

const NOW: Time = Time(1000);
const ORIGIN: RequestOrigin = RequestOrigin { lane: WorkerId(9), shard: ShardId(3), number: 1 };
const CONNECTION: ConnectionId = ConnectionId { worker: WorkerId(9), slot: 0x11, generation: 0x12 };
const SESSION: SessionId = SessionId { shard: ShardId(3), slot: 0x21, generation: 0x22 };
const GROUP: GroupId = GroupId { shard: ShardId(3), slot: 0x31, generation: 0x32 };
const IDENTITY: Identity = Identity { origin: 0x0102_0304_0506_0708, number: 0x0a0b };
const FROM_PUBLISHER: Token = Token::Publish { connection: CONNECTION, sequence: 7 };
const OF_APPEND: Token = Token::Append { shard: ShardId(2), key: 8 };
const OF_OPERATOR: Token = Token::Operator { worker: WorkerId(9), key: 8 };

fn packet_id() -> PacketId {
    PacketId::new(0x0405).expect("not 0")
}

fn ticket() -> Ticket {
    Ticket::of(packet_id())
}

fn shards() -> ShardSet {
    [ShardId(0), ShardId(9)].into_iter().collect()
}

fn options() -> Options {
    Options::default().with_qos(QoS::ExactlyOnce)
}

fn group_name() -> GroupName {
    GroupName { share: "g".into(), filter: "a/+".into() }
}

fn view() -> MessageView<'static> {
    MessageView {
        topic: "a/b",
        properties: &[1, 1],
        payload: b"hi",
        qos: QoS::AtLeastOnce,
        retain: true,
        expires: Time(3000),
        received: Time(990),
        publisher: None,
        publisher_key: 0x55,
        durability: Durability::LocalDisk,
        span: 0,
    }
}

fn message() -> Message {
    view().to_message()
}

fn will() -> Message {
    MessageView { expires: Time(60_000), received: Time(0), ..view() }.to_message()
}

fn owner() -> WillOwner {
    WillOwner::for_test("m/c", Some("u"), Some(Time(1500)))
}

fn subscriptions() -> Vec<(Box<str>, Options, u32)> {
    vec![("a/#".into(), options(), 0), ("$share/g/b".into(), Options::default(), 268_435_455)]
}

fn walk_progress() -> WalkProgress {
    WalkProgress { done: shards(), after: Some("a/b".into()) }
}

fn dispatched() -> Vec<Dispatched<ShardSet>> {
    vec![Dispatched { packet_id: packet_id(), shards: shards(), losses: 3 }]
}

fn claim(will: Option<(Message, u32)>) -> Request {
    Request::Claim(Box::new(Claim {
        client_id: "m/c".into(),
        connection: CONNECTION,
        user: OwnerKey::from_u32(0x0102_0305),
        payers: Payers::default(),
        clean_start: true,
        expiry: 3600,
        window: 20,
        will,
        queue_limits: None,
        number: 1,
    }))
}

fn claim_with_limits() -> Request {
    let Request::Claim(claim) = claim(None) else { unreachable!("a Claim") };
    let limits = QueueLimits {
        messages_max: 0x0102_0304,
        bytes_max: 0x0506_0708_090A_0B0C,
        age_max_ms: 60_000,
        full: QueueFull::DropNewest,
    };
    Request::Claim(Box::new(Claim { queue_limits: Some(limits), ..*claim }))
}

fn release(expiry: Option<u32>, dispatched: Option<Vec<Dispatched<ShardSet>>>) -> Request {
    let will = if expiry.is_some() { WillDisposition::Arm } else { WillDisposition::Discard };
    Request::Release(Box::new(Release {
        client_id: "m/c".into(),
        connection: CONNECTION,
        expiry,
        will,
        will_owner: None,
        dispatched,
        known_to: shards(),
        number: 1,
    }))
}

fn attach(last: Option<PacketId>, known_to: ShardSet) -> Request {
    Request::Attach(Box::new(Attach {
        client_id: "m/c".into(),
        session: SESSION,
        epoch: 6,
        connection: CONNECTION,
        user: OwnerKey::NOBODY,
        payers: Payers::default(),
        window: 20,
        last,
        known_to,
    }))
}

fn append(identity: Option<Identity>, token: Option<Token>) -> Request {
    let refusal = identity.map(|_| ReasonCode::QuotaExceeded);
    Request::Append { message: message(), identity, refusal, token }
}

fn payers() -> Payers {
    Quotas::default().payers(OwnerKey::from_u32(0x6162_6364), OwnerKey::from_u32(0x6566_6769))
}

fn retain(refusal: Option<ReasonCode>, token: Option<Token>) -> Request {
    let payers = if token.is_some() { payers() } else { Payers::default() };
    Request::Retain { message: message(), stamp: 0, copied_by: None, refusal, token, payers }
}

fn enqueue(
    ids: &[u32],
    group: Option<EnqueueForGroup>,
    token: Option<Token>,
    page: Option<EnqueueForPage>,
) -> Request {
    let entry = Enqueue {
        message: message(),
        qos: QoS::AtLeastOnce,
        retain: true,
        subscription_ids: SubscriptionIds::of(ids),
        group: group.as_ref().map(|_| GROUP),
    };
    let (group, page) = (group.map(Box::new), page.map(Box::new));
    Request::Enqueue { session: SESSION, entries: vec![entry], group, token, page }
}

fn page(progress: Option<WalkProgress>) -> Option<EnqueueForPage> {
    Some(EnqueueForPage { connection: CONNECTION, filter: "a/#".into(), progress })
}

fn acknowledge(kind: Acknowledgement) -> Request {
    Request::Acknowledge { session: SESSION, connection: CONNECTION, packet_id: packet_id(), kind }
}

fn receive(durability: Durability, token: Token) -> Request {
    Request::Receive { session: SESSION, packet_id: packet_id(), durability, token }
}

fn enqueue_to_group(identity: Option<Identity>) -> Request {
    let (name, group, message, token) = (group_name(), GROUP, message(), OF_OPERATOR);
    Request::EnqueueToGroup(Box::new(EnqueueToGroup { name, group, message, identity, token }))
}

fn requests() -> Vec<(&'static str, Request)> {
    let (session, connection, packet_id, ticket) = (SESSION, CONNECTION, packet_id(), ticket());
    let identity = IDENTITY;
    let for_group = |identity| EnqueueForGroup { name: group_name(), is_connected: true, identity };
    let retained = true;
    vec![
        ("claim", claim(None)),
        ("claim with limits", claim_with_limits()),
        ("claim with a Will", claim(Some((owner().sign(&will()), 30)))),
        ("claim with a Will of nobody", claim(Some((will(), 30)))),
        ("release", release(None, None)),
        ("release with everything", release(Some(60), Some(dispatched()))),
        ("attach", attach(None, ShardSet::EMPTY)),
        ("attach with everything", attach(Some(packet_id), shards())),
        (
            "subscribe",
            Request::Subscribe {
                session,
                connection,
                ticket,
                filters: subscriptions(),
                shapes: None,
                retained,
            },
        ),
        (
            "unsubscribe",
            Request::Unsubscribe {
                session,
                connection,
                ticket: Ticket::of_operator(1),
                filters: vec!["a/#".into(), "b".into()],
            },
        ),
        ("withdraw", Request::Withdraw { session, filter: "a/#".into() }),
        ("append", append(None, None)),
        ("append with everything", append(Some(IDENTITY), Some(FROM_PUBLISHER))),
        ("append of a Will", append(Some(IDENTITY), Some(OF_APPEND))),
        ("forget identity", Request::ForgetIdentity { identity }),
        ("forget below", Request::ForgetBelow { identity }),
        ("forget origin", Request::ForgetOrigin { origin: 0x0102 }),
        ("retain", retain(None, None)),
        ("retain with everything", retain(Some(ReasonCode::QuotaExceeded), Some(OF_OPERATOR))),
        (
            "ask for room to retain",
            Request::AskRoomToRetain { topic: "a/b".into(), size: 0x1234, connection, payers: payers() },
        ),
        ("delete retained", Request::DeleteRetained { topic: "a/b".into(), token: OF_OPERATOR }),
        ("enqueue for a group", enqueue(&[5], Some(for_group(None)), Some(OF_APPEND), None)),
        ("enqueue an orphan", enqueue(&[], Some(for_group(Some(IDENTITY))), Some(OF_APPEND), None)),
        ("enqueue a page", enqueue(&[5, 6], None, None, page(Some(walk_progress())))),
        ("enqueue the last page", enqueue(&[], None, None, page(None))),
        ("ask for room for a page", Request::AskRoomForPage { session, connection }),
        ("end of a walk", Request::EndWalk { session, filter: "a/#".into() }),
        ("PUBACK", acknowledge(Acknowledgement::PubAck)),
        ("PUBREC", acknowledge(Acknowledgement::PubRec { refused: false })),
        ("PUBREC with an error", acknowledge(Acknowledgement::PubRec { refused: true })),
        ("PUBCOMP", acknowledge(Acknowledgement::PubComp)),
        ("receive", receive(Durability::LocalDisk, FROM_PUBLISHER)),
        ("receive in memory", receive(Durability::Memory, FROM_PUBLISHER)),
        ("released", Request::Released { session, connection, packet_id }),
        ("forget", Request::Forget { session, packet_id, flip: true, token: None }),
        ("enqueue to a group", enqueue_to_group(None)),
        ("enqueue an orphan to a group", enqueue_to_group(Some(identity))),
        ("find an identity", Request::FindIdentity { identity, token: FROM_PUBLISHER }),
        ("find orphans", Request::FindOrphans { asker: ShardId(5), orphans: [6, 7].into() }),
        ("orphans known", Request::OrphansKnown { by: ShardId(5), orphans: vec![6] }),
        ("accepted by", Request::AcceptedBy { key: 0x61, by: ShardId(5) }),
        ("Will dispatched", Request::WillDispatched { key: 0x61, outstanding: 2, shards: shards() }),
        ("accepted", Request::Accepted { key: 0x61, reason: ReasonCode::QuotaExceeded }),
    ]
}

fn claimed(session: Option<SessionId>, resume: Option<Resume>) -> Completion {
    Completion::Claimed(Claimed {
        connection: CONNECTION,
        session_present: resume.is_some(),
        session,
        epoch: if session.is_some() { 6 } else { 0 },
        resume: resume.map(Box::new),
    })
}

fn resume() -> Resume {
    Resume {
        subscriptions: subscriptions(),
        received: vec![4, 5],
        toggles: Toggles::of_pages([(0, 2), (1023, 1 << 63)]),
        dispatched: dispatched(),
        walks: vec![("a/#".into(), walk_progress()), ("b".into(), WalkProgress::default())],
    }
}

fn publish(dup: bool, ids: &[u32]) -> SessionDelivery {
    SessionDelivery::Publish {
        packet_id: packet_id(),
        qos: QoS::ExactlyOnce,
        dup,
        retain: !dup,
        message: message(),
        subscription_ids: SubscriptionIds::of(ids),
    }
}

fn due_will(owner: Option<WillOwner>) -> ShardAnswer {
    let (shard, message, owner) = (ShardId(3), will(), owner.map(Arc::new));
    ShardAnswer::Will(Box::new(DueWill { shard, key: 0x61, id: 0x62, message, owner }))
}

fn completions() -> Vec<(&'static str, Completion)> {
    let (connection, packet_id, ticket) = (CONNECTION, packet_id(), ticket());
    let (success, reason) = (ReasonCode::Success, ReasonCode::QuotaExceeded);
    let more = vec![SessionDelivery::PubRel { packet_id }, publish(true, &[5, 6])];
    vec![
        ("claimed", claimed(None, None)),
        ("claimed a session", claimed(Some(SESSION), None)),
        ("claimed and resumed", claimed(Some(SESSION), Some(resume()))),
        ("claim refused", Completion::ClaimRefused { connection, reason }),
        ("revoke", Completion::Revoke { connection }),
        ("queue full", Completion::QueueFull { connection }),
        (
            "subscribed",
            Completion::Subscribed { connection, ticket, results: vec![(success, true), (reason, false)] },
        ),
        ("unsubscribed", Completion::Unsubscribed { connection, ticket, results: vec![success, reason] }),
        ("deliver", Completion::Deliver { connection, first: publish(false, &[]), more: Vec::new() }),
        ("deliver several", Completion::Deliver { connection, first: publish(true, &[5]), more }),
        ("release", Completion::Release { connection, packet_id, reason: success }),
        ("wrong acknowledgement", Completion::WrongAcknowledgement { connection }),
        ("complete", Completion::Complete { connection, packet_id }),
        ("room for a page", Completion::RoomForPage { connection }),
        ("room to retain", Completion::RoomToRetain { connection, is_there: true }),
    ]
}

fn answers() -> Vec<(&'static str, ShardAnswer)> {
    let number = 0x0102_0304_0506_0708;
    let mut answers: Vec<_> =
        completions().into_iter().map(|(name, it)| (name, ShardAnswer::Completion(it))).collect();
    answers.extend([
        ("acknowledged", ShardAnswer::Acknowledged { number, reason: ReasonCode::QuotaExceeded }),
        ("Will", due_will(Some(owner()))),
        ("Will of nobody", due_will(None)),
        ("settled", ShardAnswer::Settled { number }),
    ]);
    answers
}

fn encoded_requests() -> Vec<(&'static str, Vec<u8>)> {
    let encoded = |request: Request| {
        let mut bytes = Vec::new();
        encode_request(&request, NOW, &mut bytes);
        bytes
    };
    requests().into_iter().map(|(name, request)| (name, encoded(request))).collect()
}

fn encoded_answers() -> Vec<(&'static str, Vec<u8>)> {
    let encoded = |answer: ShardAnswer| {
        let mut bytes = Vec::new();
        encode_answer(&answer, NOW, Origins::Kept, &mut bytes);
        bytes
    };
    answers().into_iter().map(|(name, answer)| (name, encoded(answer))).collect()
}

fn table(forms: &[(&str, Vec<u8>)]) -> String {
    let mut table = String::new();
    for (name, bytes) in forms {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(table, "{name}: {hex}").expect("a text grows");
    }
    table
}

#[test]
fn requests_have_these_bytes() {
    assert_eq!(table(&encoded_requests()), include_str!("../../../../fuzz/corpus/wire/requests.txt"));
}

#[test]
fn answers_have_these_bytes() {
    assert_eq!(table(&encoded_answers()), include_str!("../../../../fuzz/corpus/wire/answers.txt"));
}

/// Error of bytes as a request and as an answer.
fn errors(bytes: &[u8]) -> [Option<Malformed>; 2] {
    let request = decode_request(bytes, ORIGIN, NOW, &Quotas::default()).err();
    [request, decode_answer(bytes, WorkerId(9), NOW).err()]
}

#[test]
fn each_form_ends_with_its_last_field() {
    for (at, forms) in [encoded_requests(), encoded_answers()].into_iter().enumerate() {
        for (name, bytes) in forms {
            assert_eq!(errors(&bytes)[at], None, "{name}");
            for length in 0..bytes.len() {
                assert!(errors(&bytes[..length])[at].is_some(), "{name}: {length} bytes");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(errors(&longer)[at].is_some(), "{name}: a byte more");
        }
    }
}

#[test]
fn no_change_of_a_byte_panics() {
    for (_, mut bytes) in encoded_requests().into_iter().chain(encoded_answers()) {
        for at in 0..bytes.len() {
            let before = bytes[at];
            for value in 0..=u8::MAX {
                bytes[at] = value;
                check_wire_form(&bytes);
            }
            bytes[at] = before;
        }
    }
}
