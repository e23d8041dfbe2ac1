use std::collections::BTreeSet;
use std::sync::Arc;

use mqtt::QoS;

use super::generate::{Generator, NOW};
use crate::batch::{Token, TokenKind};
use crate::durability::Durability;
use crate::ids::{ConnectionId, SessionId, ShardId, Time, WorkerId};
use crate::message::{Message, MessageView};
use crate::node::OwnerKey;
use crate::origin::Origins;
use crate::peers::NodeIndex;
use crate::quota::{Payers, Quotas};
use crate::store::wire::{
    Malformed, RequestOrigin, ShardAnswer, decode_answer, decode_request, encode_answer, encode_request,
};
use crate::store::{Claim, Completion, DueWill, Identity, Release, Request, WillDisposition};
use crate::will::WillOwner;

const ORIGIN: RequestOrigin = RequestOrigin { lane: WorkerId(70), shard: ShardId(3), number: 1 << 33 | 9 };
const ROUNDS: u64 = 20_000;

#[test]
fn requests_are_decoded_as_they_were_encoded() {
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        let request = Generator::new(round, ORIGIN).request();
        let mut bytes = Vec::new();
        encode_request(&request, NOW, &mut bytes);
        seen.insert(bytes[0]);
        let found = decode_request(&bytes, ORIGIN, NOW, &Quotas::default());
        let found = found.unwrap_or_else(|error| panic!("round {round}: {error}: {request:?}"));
        assert_eq!(format!("{found:?}"), format!("{request:?}"), "round {round}");
    }
    let is_known = |kind: &u8| {
        decode_request(&[*kind], ORIGIN, NOW, &Quotas::default())
            .is_err_and(|error| error.what != "kind of a request")
    };
    assert_eq!(seen, (0..=u8::MAX).filter(is_known).collect(), "each kind was generated");
}

#[test]
fn answers_are_decoded_as_they_were_encoded() {
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        let answer = Generator::new(round, ORIGIN).answer();
        let mut bytes = Vec::new();
        encode_answer(&answer, NOW, Origins::Kept, &mut bytes);
        seen.insert(bytes[0]);
        let found = decode_answer(&bytes, ORIGIN.lane, NOW);
        let found = found.unwrap_or_else(|error| panic!("round {round}: {error}: {answer:?}"));
        assert_eq!(format!("{found:?}"), format!("{answer:?}"), "round {round}");
    }
    let is_known = |kind: &u8| {
        decode_answer(&[*kind], ORIGIN.lane, NOW).is_err_and(|error| error.what != "kind of an answer")
    };
    assert_eq!(seen, (0..=u8::MAX).filter(is_known).collect(), "each kind was generated");
}

/// Sends a request from a node at `sent` to one at `arrived`.
fn travel(request: &Request, sent: Time, arrived: Time) -> Request {
    let mut bytes = Vec::new();
    encode_request(request, sent, &mut bytes);
    decode_request(&bytes, ORIGIN, arrived, &Quotas::default()).expect("a request")
}

fn travel_back(answer: &ShardAnswer, sent: Time, arrived: Time) -> ShardAnswer {
    let mut bytes = Vec::new();
    encode_answer(answer, sent, Origins::Kept, &mut bytes);
    decode_answer(&bytes, WorkerId(2), arrived).expect("an answer")
}

fn connection(worker: u16) -> ConnectionId {
    ConnectionId { worker: WorkerId(worker), slot: 5, generation: 6 }
}

fn view() -> MessageView<'static> {
    MessageView {
        topic: "t",
        properties: &[1, 1],
        payload: b"payload",
        qos: QoS::AtLeastOnce,
        retain: false,
        expires: Time(10_000),
        received: Time(900),
        publisher: Some(connection(1)),
        publisher_key: 12,
        durability: Durability::LocalDisk,
        span: 0,
    }
}

fn payers() -> Payers {
    Quotas::default().payers(OwnerKey::from_u32(2), OwnerKey::from_u32(3))
}

fn append(token: Option<Token>) -> Request {
    let (message, identity) = (view().to_message(), None);
    Request::Append { message, identity, refusal: None, token }
}

/// The party that waits is on the other node, but a shard asks which kind it is.
#[test]
fn the_number_of_a_request_stands_for_its_token() {
    let (worker, key, shard) = (WorkerId(1), 2, ShardId(0));
    let requested = Token::requested(WorkerId(80), 4);
    let cases = [
        (Token::Publish { connection: connection(1), sequence: 7 }, TokenKind::Publisher),
        (Token::Operator { worker, key }, TokenKind::Other),
        (Token::Copy { worker, key }, TokenKind::Other),
        (Token::Offered { shard, key }, TokenKind::Other),
        (Token::Forwarded { worker, key }, TokenKind::Other),
        (Token::Append { shard, key }, TokenKind::Append),
        (requested, TokenKind::Other),
        (requested.for_kind(TokenKind::Publisher), TokenKind::Publisher),
    ];
    for (token, kind) in cases {
        let Request::Append { token: Some(found), .. } = travel(&append(Some(token)), Time(0), Time(0))
        else {
            panic!("an append with a token")
        };
        assert_eq!(found.as_requested(), Some((ORIGIN.lane, ORIGIN.number)));
        assert_eq!((found.kind(), token.kind()), (kind, kind));
    }
    let found = travel(&append(None), Time(0), Time(0));
    assert!(matches!(found, Request::Append { token: None, .. }), "nobody waits");
}

#[test]
fn connections_belong_to_the_lane_of_a_request_and_to_the_worker_that_gets_an_answer() {
    let session = SessionId { shard: ORIGIN.shard, slot: 1, generation: 2 };
    let asked = Request::AskRoomForPage { session, connection: connection(1) };
    let Request::AskRoomForPage { connection: found, .. } = travel(&asked, Time(0), Time(0)) else {
        panic!("a question")
    };
    assert_eq!(found, connection(ORIGIN.lane.0));
    let room = Completion::RoomForPage { connection: connection(70) };
    let answer = ShardAnswer::Completion(room);
    let ShardAnswer::Completion(found) = travel_back(&answer, Time(0), Time(0)) else {
        panic!("a completion")
    };
    assert_eq!(found.connection(), connection(2));
}

/// Payers and the node that has sent a copy are known on one node only.
#[test]
fn numbers_of_nodes_stay_on_their_node_and_payers_are_found_there() {
    let retain = Request::Retain {
        message: view().to_message(),
        stamp: 0,
        copied_by: Some(NodeIndex(1)),
        refusal: None,
        token: None,
        payers: payers(),
    };
    let Request::Retain { stamp: 0, copied_by: None, payers, message, .. } =
        travel(&retain, Time(0), Time(0))
    else {
        panic!("a message to retain")
    };
    assert_eq!(payers.owners(), (OwnerKey::from_u32(2), OwnerKey::from_u32(3)));
    assert!(message.view().publisher.is_none());
}

/// The clocks of two nodes are far apart.
#[test]
fn times_are_sent_as_differences() {
    let Request::Append { message, .. } = travel(&append(None), Time(1000), Time(500_000)) else {
        panic!("an append")
    };
    assert_eq!((message.view().received, message.view().expires), (Time(499_900), Time(509_000)));
    // The Message Expiry Interval of a Will starts when the Will is published.
    let owner = WillOwner::for_test("m/c", Some("u"), Some(Time(50_000)));
    let will = MessageView { expires: Time(7000), received: Time(0), publisher: None, ..view() }.to_message();
    let claim = Request::Claim(Box::new(Claim {
        client_id: "m/c".into(),
        connection: connection(1),
        user: OwnerKey::from_u32(2),
        payers: payers(),
        clean_start: false,
        expiry: 60,
        window: 20,
        will: Some((owner.sign(&will), 5)),
        queue_limits: None,
        number: 0,
    }));
    let Request::Claim(claim) = travel(&claim, Time(1000), Time(500_000)) else { panic!("a claim") };
    assert!(claim.payers.is_empty());
    assert_eq!(claim.number, ORIGIN.number);
    let later = WillOwner::for_test("m/c", Some("u"), Some(Time(549_000)));
    let expected = Some((later.sign(&will), 5));
    assert_eq!(format!("{:?}", claim.will), format!("{expected:?}"));
    let due = |owner| DueWill { shard: ShardId(1), key: 2, id: 3, message: will.clone(), owner };
    let answer = ShardAnswer::Will(Box::new(due(Some(Arc::new(owner)))));
    let ShardAnswer::Will(found) = travel_back(&answer, Time(1000), Time(500_000)) else { panic!("a Will") };
    assert_eq!(format!("{found:?}"), format!("{:?}", due(Some(Arc::new(later)))));
}

/// Otherwise subscribers would get its bytes as properties of the message.
#[test]
fn a_will_with_a_damaged_owner_is_malformed() {
    let error = |properties: &[u8]| {
        let message = MessageView { properties, ..view() }.to_message();
        let will = DueWill { shard: ShardId(1), key: 2, id: 3, message, owner: None };
        let mut bytes = Vec::new();
        encode_answer(&ShardAnswer::Will(Box::new(will)), NOW, Origins::Kept, &mut bytes);
        decode_answer(&bytes, WorkerId(2), NOW).err()
    };
    let owner = WillOwner::for_test("m/c", None, None);
    let signed = owner.sign(&view().to_message());
    let twice = owner.sign(&signed);
    let (signed, twice) = (signed.view().properties, twice.view().properties);
    assert_eq!((error(&[1, 1]), error(signed)), (None, None));
    let damaged = Some(Malformed { what: "owner of a Will" });
    for properties in [&[0][..], &[0, 0, 0, 0, 0], &[0, 9, 0, 0, 0], &signed[..signed.len() - 4], twice] {
        assert_eq!(error(properties), damaged, "{properties:?}");
    }
}

/// The leader reads the owner from the Will that it has stored with the Claim.
#[test]
fn a_release_does_not_repeat_the_owner_of_a_will() {
    let release = Request::Release(Box::new(Release {
        client_id: "m/c".into(),
        connection: connection(1),
        expiry: None,
        will: WillDisposition::Arm,
        will_owner: Some(Arc::new(WillOwner::for_test("m/c", None, None))),
        dispatched: Some(Vec::new()),
        known_to: [ShardId(0), ShardId(9)].into_iter().collect(),
        number: 0,
    }));
    let Request::Release(found) = travel(&release, Time(0), Time(0)) else { panic!("a release") };
    assert!(found.will_owner.is_none());
    assert_eq!(found.dispatched, Some(Vec::new()), "this is more than none at all");
    assert_eq!(found.known_to, [ShardId(0), ShardId(9)].into_iter().collect());
    assert_eq!(found.number, ORIGIN.number);
}

/// A request for a shard has sessions and groups of this shard.
#[test]
fn requests_for_another_shard_are_malformed() {
    let session = SessionId { shard: ShardId(3), slot: 1, generation: 2 };
    let connection = connection(1);
    let mut bytes = Vec::new();
    encode_request(&Request::AskRoomForPage { session, connection }, NOW, &mut bytes);
    assert!(decode_request(&bytes, ORIGIN, NOW, &Quotas::default()).is_ok());
    let other = RequestOrigin { shard: ShardId(4), ..ORIGIN };
    let what = "shard of a session";
    assert_eq!(decode_request(&bytes, other, NOW, &Quotas::default()).err(), Some(Malformed { what }));
}

fn request_error(bytes: &[&[u8]]) -> Option<&'static str> {
    decode_request(&bytes.concat(), ORIGIN, NOW, &Quotas::default()).err().map(|error| error.what)
}

#[test]
fn fields_with_impossible_values_are_malformed() {
    const SESSION: &[u8] = &[3, 0, 1, 0, 0, 0, 2, 0, 0, 0];
    const CONNECTION: &[u8] = &[5, 0, 0, 0, 6, 0, 0, 0];
    const NONE: &[u8] = &[0, 0, 0, 0];
    let text = |text: &[u8]| [&(text.len() as u32).to_le_bytes()[..], text].concat();
    let withdraw = |filter: &[u8]| request_error(&[&[5], SESSION, &text(filter)]);
    assert_eq!(withdraw(b"a"), None);
    assert_eq!(withdraw(b"\xff"), Some("text that is not UTF-8"));
    assert_eq!(request_error(&[&[5], SESSION, &[9, 0, 0, 0], b"a"]), Some("length"));
    assert_eq!(request_error(&[&[5], SESSION, &text(b"a"), &[0]]), Some("bytes after the last field"));
    let subscribe = |filter: &[u8], options: u8| {
        let filter = [&[1, 0, 0, 0], &text(filter)[..], &[options], NONE].concat();
        request_error(&[&[3], SESSION, CONNECTION, &[7, 0, 0, 0], &filter, &[1]])
    };
    assert_eq!(subscribe(b"a/#", 2), None);
    assert_eq!(subscribe(b"a/#", 3), Some("QoS of a subscription"));
    assert_eq!(subscribe(b"a/#/b", 2), Some("subscription"));
    assert_eq!(request_error(&[&[3], SESSION, CONNECTION, NONE, &[2, 0, 0, 0], &[0; 10]]), Some("count"));
    let topic = |topic: &[u8]| request_error(&[&[30], &text(topic), &[0; 8], CONNECTION, &[0; 8]]);
    assert_eq!((topic(b"a"), topic(b"a/+")), (None, Some("Topic Name")));
    let identifier = |id: u8| request_error(&[&[17], SESSION, CONNECTION, &[id, 0]]);
    assert_eq!((identifier(1), identifier(0)), (None, Some("Packet Identifier")));
    let shards = |shards: &[u8]| request_error(&[&[26], NONE, NONE, shards]);
    assert_eq!((shards(&[0]), shards(&[2, 0, 0x80])), (None, None));
    assert_eq!(shards(&[2, 1, 0]), Some("length of a set of shards"));
    assert_eq!(shards(&[3, 0, 0, 1]), Some("shard"));
    let outstanding = |count: u32| request_error(&[&[26], NONE, &count.to_le_bytes(), &[0]]);
    assert_eq!((outstanding(1 << 30), outstanding(u32::MAX)), (None, Some("completions of a Will")));
    let token = |token: u8| request_error(&[&[11], &text(b"a"), &[token]]);
    assert_eq!((token(1), token(3)), (None, None));
    assert_eq!((token(0), token(4)), (Some("missing token"), Some("token")));
    let reason = |reason: u8| request_error(&[&[27], NONE, &[reason]]);
    assert_eq!((reason(0x97), reason(0x05)), (None, Some("Reason Code")));
    assert_eq!(request_error(&[&[0]]), Some("kind of a request"));
    assert_eq!(request_error(&[]), Some("length"));
}

#[test]
fn a_message_of_an_append_is_neither_a_copy_nor_for_a_group() {
    let encoded = |message: Message| {
        let identity: Option<Identity> = None;
        let request = Request::Append { message, identity, refusal: None, token: None };
        let mut bytes = Vec::new();
        encode_request(&request, NOW, &mut bytes);
        bytes
    };
    let bytes = encoded(MessageView { publisher: None, ..view() }.to_message());
    // Kind, three fields of a byte each, length, version.
    let flags_at = 1 + 3 + 4 + 1;
    assert_eq!(bytes[flags_at] & 3, 1, "these are the flags of the message");
    for bit in 5..8 {
        let mut bad = bytes.clone();
        bad[flags_at] |= 1 << bit;
        assert!(decode_request(&bad, ORIGIN, NOW, &Quotas::default()).is_err(), "bit {bit}");
    }
}
