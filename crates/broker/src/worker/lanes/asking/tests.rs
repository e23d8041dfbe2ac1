//! Tests of a worker's requests to shards.

use mqtt::QoS;

use super::super::frame::decode_requests;
use super::*;
use crate::durability::Durability;
use crate::message::MessageView;
use crate::store::{Identity, WillDisposition};

const SHARD: ShardId = ShardId(3);
const HOME: ShardId = ShardId(5);
const NOW: Time = Time(1_000);
const CONNECTION: ConnectionId = ConnectionId { worker: WorkerId(0), slot: 4, generation: 2 };

fn asking() -> Asking {
    Asking::new(NodeIncarnation { node: 1, incarnation: 9 }, WorkerId(0), 4)
}

fn leader(node: u64, term: u64) -> Leader {
    Leader { node, term }
}

fn append(sequence: u32) -> Request {
    let token = Some(Token::Publish { connection: CONNECTION, sequence });
    Request::Append { message: will(), identity: None, refusal: None, token }
}

fn will() -> Message {
    let view = MessageView {
        topic: "t",
        properties: &[],
        payload: b"payload",
        qos: QoS::ExactlyOnce,
        retain: false,
        expires: Time::NEVER,
        received: NOW,
        publisher: None,
        publisher_key: 0,
        durability: Durability::LocalDisk,
        span: 0,
    };
    view.to_message()
}

fn release() -> Request {
    Request::Release(Box::new(Release {
        client_id: "c".into(),
        connection: CONNECTION,
        expiry: None,
        will: WillDisposition::Discard,
        will_owner: None,
        dispatched: None,
        known_to: ShardSet::EMPTY,
        number: 0,
    }))
}

/// Numbers of the requests in the frames of a turn, by shard, with the flags of each frame.
fn sent(asking: &mut Asking) -> Vec<(ShardId, Flags, Vec<u64>)> {
    let frames = asking.take_frames(NOW);
    let numbers = |frame: &ToLeader| {
        let requests = decode_requests(&frame.bytes).expect("a frame");
        (frame.shard, requests.flags, requests.items.iter().map(|item| item.number).collect())
    };
    frames.iter().map(numbers).collect()
}

fn numbers(asking: &mut Asking) -> Vec<u64> {
    sent(asking).into_iter().flat_map(|(_, _, numbers)| numbers).collect()
}

#[test]
fn requests_wait_for_a_leader_and_are_sent_again_to_the_next_one_in_order() {
    let mut asking = asking();
    for sequence in 0..3 {
        assert_eq!(asking.request(NOW, SHARD, append(sequence)), None);
    }
    assert!(numbers(&mut asking).is_empty(), "nobody leads the shard");
    asking.begin(SHARD, leader(2, 7));
    let frames = sent(&mut asking);
    assert_eq!(frames.len(), 1);
    let (_, flags, first) = &frames[0];
    assert!(flags.is_first && flags.is_attached);
    assert_eq!(first, &[1, 2, 3]);
    asking.begin(SHARD, leader(2, 7));
    assert_eq!(numbers(&mut asking), [1, 2, 3], "its answers may be lost");
    let token = asking.answered(SHARD, 2);
    assert_eq!(token, Some(Token::Publish { connection: CONNECTION, sequence: 1 }));
    assert_eq!(asking.answered(SHARD, 2), None, "an answer comes once");
    asking.begin(SHARD, leader(3, 6));
    assert!(numbers(&mut asking).is_empty(), "an earlier leader");
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking), [1, 3]);
    asking.link_lost(3);
    assert_eq!(asking.request(NOW, SHARD, append(3)), None);
    assert!(numbers(&mut asking).is_empty());
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking), [1, 3, 4]);
}

/// The earlier leader has an old state, and would send again what the client has acknowledged to the later one.
#[test]
fn a_leader_of_an_earlier_term_is_not_asked_while_the_later_one_is_away() {
    for is_not_leading in [false, true] {
        let mut asking = asking();
        asking.begin(SHARD, leader(3, 8));
        match is_not_leading {
            true => asking.not_leading(SHARD, (3, 1), 0),
            false => asking.link_lost(3),
        }
        asking.begin(SHARD, leader(2, 7));
        assert_eq!(asking.leader(SHARD), None);
        asking.begin(SHARD, leader(3, 8));
        assert_eq!(asking.leader(SHARD), Some(3));
        asking.restart(2);
        asking.begin(SHARD, leader(2, 7));
        assert_eq!(asking.leader(SHARD), None);
        asking.begin(SHARD, leader(2, 9));
        assert_eq!(asking.leader(SHARD), Some(2));
    }
}

#[test]
fn answers_of_another_round_or_node_do_not_count() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    asking.begin(SHARD, leader(3, 8));
    assert!(asking.is_present(SHARD, 3, 2));
    assert!(!asking.is_present(SHARD, 3, 1), "a round before");
    assert!(!asking.is_present(SHARD, 2, 2), "another node");
    assert!(!asking.is_present(ShardId(SHARDS), 3, 2), "no shard");
    asking.link_lost(3);
    assert!(!asking.is_present(SHARD, 3, 2), "what it sent before its link was lost");
}

#[test]
fn requests_without_an_answer_of_their_own_are_kept_until_they_are_committed() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    let forget = || Request::ForgetOrigin { origin: 1 };
    asking.request(NOW, SHARD, forget());
    asking.request(NOW, SHARD, append(0));
    asking.request(NOW, SHARD, forget());
    asking.settled(SHARD, 2);
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking), [2, 3], "a publisher waits for the second");
    asking.settled(SHARD, 3);
    asking.answered(SHARD, 2);
    asking.begin(SHARD, leader(2, 9));
    assert!(numbers(&mut asking).is_empty());
    assert_eq!(asking.bytes(), 0);
}

/// The client sends its messages again elsewhere, and a late one would be another message then.
#[test]
fn a_session_is_released_when_the_messages_of_its_connection_have_arrived() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    asking.begin(HOME, leader(3, 7));
    asking.request(NOW, SHARD, append(0));
    sent(&mut asking);
    asking.request(NOW, HOME, release());
    let frames = sent(&mut asking);
    assert_eq!(frames.len(), 1, "a question for a receipt");
    assert!(frames[0].0 == SHARD && frames[0].1.wants_receipt && frames[0].2.is_empty());
    asking.received(SHARD, Received::Connections(0));
    asking.send_held(NOW);
    assert!(sent(&mut asking).is_empty(), "it has not arrived");
    asking.received(SHARD, Received::Request(1));
    asking.send_held(NOW);
    assert_eq!(sent(&mut asking).iter().map(|frame| frame.0).collect::<Vec<_>>(), [HOME]);
}

/// A link that is slow may still bring what was sent before the next round.
#[test]
fn a_session_is_released_when_the_next_leader_has_answered() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    asking.begin(HOME, leader(3, 7));
    asking.request(NOW, SHARD, append(0));
    sent(&mut asking);
    asking.link_lost(2);
    asking.request(NOW, HOME, release());
    asking.send_held(NOW);
    assert!(sent(&mut asking).is_empty());
    asking.begin(SHARD, leader(2, 7));
    let frames = sent(&mut asking);
    assert!(frames[0].1.wants_receipt && frames[0].2.is_empty(), "the message is given up: {frames:?}");
    asking.send_held(NOW);
    assert!(sent(&mut asking).is_empty(), "nothing has come in the new round");
    asking.link_lost(2);
    asking.begin(SHARD, leader(2, 7));
    let frames = sent(&mut asking);
    assert!(frames[0].1.wants_receipt, "the question may be lost: {frames:?}");
    asking.received(SHARD, Received::Connections(0));
    asking.send_held(NOW);
    assert_eq!(sent(&mut asking).iter().map(|frame| frame.0).collect::<Vec<_>>(), [HOME]);
}

#[test]
fn a_session_is_released_at_once_without_messages_on_the_way() {
    let mut asking = asking();
    asking.begin(HOME, leader(3, 7));
    // No leader has got this one.
    asking.request(NOW, SHARD, append(0));
    asking.request(NOW, HOME, release());
    let frames: Vec<_> = sent(&mut asking).into_iter().filter(|frame| !frame.2.is_empty()).collect();
    assert_eq!(frames.iter().map(|frame| frame.0).collect::<Vec<_>>(), [HOME]);
    asking.begin(SHARD, leader(2, 7));
    assert!(numbers(&mut asking).is_empty(), "and nobody gets it any more");
}

/// A client may close connections for as long as a shard has no leader.
#[test]
fn messages_of_a_closed_connection_keep_no_memory() {
    let mut asking = asking();
    asking.request(NOW, SHARD, append(0));
    asking.begin(HOME, leader(3, 7));
    asking.request(NOW, HOME, release());
    sent(&mut asking);
    asking.settled(HOME, 1);
    assert_eq!((asking.bytes(), asking.lanes[SHARD.index()].unanswered.len()), (0, 0), "it was never sent");
    asking.begin(SHARD, leader(2, 7));
    asking.request(NOW, SHARD, append(0));
    sent(&mut asking);
    asking.link_lost(2);
    let before = asking.bytes();
    asking.request(NOW, HOME, release());
    assert!(before > 0 && asking.bytes() == 0, "it is not sent again: {before} bytes");
}

/// The shard may have no leader for long, and has got what the Release waits for.
#[test]
fn a_session_is_released_without_a_leader_when_its_messages_have_arrived_before() {
    for answers_before in [Received::Request(1), Received::Connections(0)] {
        let mut asking = asking();
        asking.begin(HOME, leader(3, 7));
        asking.begin(SHARD, leader(2, 7));
        asking.request(NOW, SHARD, append(0));
        sent(&mut asking);
        if answers_before == Received::Connections(0) {
            // The next round answers before the message is sent again.
            asking.begin(SHARD, leader(2, 8));
        }
        asking.received(SHARD, answers_before);
        asking.link_lost(2);
        asking.request(NOW, HOME, release());
        assert_eq!(asked(&mut asking), [HOME], "{answers_before:?}");
    }
}

/// No link takes it: it would come back for ever, and with it each later request.
#[test]
fn a_request_that_is_too_large_for_a_link_is_not_kept() {
    let mut asking = asking();
    asking.request_max = 1_000;
    asking.begin(SHARD, leader(2, 7));
    let Request::Append { message, .. } = append(0) else { unreachable!() };
    let message = MessageView { payload: &[7; 1_000], ..message.view() }.to_message();
    let token = Some(Token::Publish { connection: CONNECTION, sequence: 8 });
    let (identity, refusal) = (None, None);
    let request = Request::Append { message, identity, refusal, token };
    assert_eq!(asking.request(NOW, SHARD, request), token);
    assert_eq!(asking.request(NOW, SHARD, append(0)), None);
    assert_eq!(numbers(&mut asking), [1]);
}

#[test]
fn a_round_reports_no_more_connections_at_once_than_may_be_on_the_way() {
    let mut asking = asking();
    let lane = &mut asking.lanes[SHARD.index()];
    for slot in 0..30_000 {
        let session = SessionId { shard: SHARD, slot, generation: 1 };
        let client_id = format!("client-{slot}").into();
        let claiming = Claiming { client_id, user: OwnerKey::NOBODY, window: 10 };
        lane.attached.insert((slot, 1), Attached { claiming, session, epoch: 1, last: None });
    }
    asking.request(NOW, SHARD, append(0));
    asking.begin(SHARD, leader(2, 7));
    let (mut reported, mut turns) = (0, 0);
    loop {
        let frames = sent(&mut asking);
        let count = frames.iter().map(|frame| frame.2.len()).sum::<usize>();
        assert!(count > 0 && count * REQUEST <= FLYING_MAX, "{count} connections");
        turns += 1;
        let requests = frames.iter().flat_map(|frame| &frame.2).filter(|number| **number > 0).count();
        reported += (count - requests) as u64;
        let is_attached = frames.iter().any(|frame| frame.1.is_attached);
        assert_eq!((is_attached, requests), (reported == 30_000, usize::from(is_attached)));
        if is_attached {
            break;
        }
        assert!(frames.iter().any(|frame| frame.1.wants_receipt), "it would stand still");
        asking.received(SHARD, Received::Connections(reported));
    }
    assert!(turns > 3, "{turns} turns");
    assert!(!asking.lanes[SHARD.index()].has_arrived(1, 1), "no request has arrived");
    asking.received(SHARD, Received::Request(1));
    assert!(asking.lanes[SHARD.index()].has_arrived(1, 1));
}

fn forwarded(qos: QoS) -> Request {
    let Request::Append { message, .. } = append(0) else { unreachable!() };
    let message = MessageView { qos, ..message.view() }.to_message();
    let token = Some(Token::Forwarded { worker: WorkerId(0), key: qos as u32 });
    Request::Append { message, identity: None, refusal: None, token }
}

/// The shards do not recognise requests of the last incarnation that come again.
#[test]
fn another_incarnation_sends_no_message_again_that_must_not_come_twice() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    asking.request(NOW, SHARD, append(0));
    asking.request(NOW, SHARD, forwarded(QoS::ExactlyOnce));
    asking.request(NOW, SHARD, forwarded(QoS::AtLeastOnce));
    sent(&mut asking);
    asking.request(NOW, SHARD, forwarded(QoS::ExactlyOnce));
    asking.request(NOW, HOME, release());
    let unknown = asking.restart(10);
    let token = |qos| Token::Forwarded { worker: WorkerId(0), key: qos as u32 };
    assert_eq!(unknown, [token(QoS::ExactlyOnce)], "the first of this QoS may have been applied");
    assert!(!asking.is_present(SHARD, 2, 1) && sent(&mut asking).is_empty(), "its leaders are unknown");
    asking.begin(SHARD, leader(2, 7));
    asking.begin(HOME, leader(2, 7));
    let frames = asking.take_frames(NOW);
    let requests = frames.iter().map(|frame| decode_requests(&frame.bytes).expect("a frame"));
    let requests = requests.map(|requests| {
        let numbers = requests.items.iter().map(|item| item.number);
        (requests.incarnation, requests.flags.is_first, numbers.collect::<Vec<_>>())
    });
    assert_eq!(requests.collect::<Vec<_>>(), [(10, true, vec![3, 4]), (10, true, vec![])]);
    for number in [3, 4] {
        asking.answered(SHARD, number);
    }
    assert_eq!(asking.bytes(), 0);
}

const SESSION: SessionId = SessionId { shard: HOME, slot: 1, generation: 1 };
const ID: PacketId = PacketId::new(7).unwrap();

/// A worker with a session, whose shard and another one have leaders.
fn with_session() -> Asking {
    let mut asking = asking();
    let claiming = Claiming { client_id: "c".into(), user: OwnerKey::NOBODY, window: 10 };
    let attached = Attached { claiming, session: SESSION, epoch: 1, last: None };
    asking.lanes[HOME.index()].attached.insert((CONNECTION.slot, CONNECTION.generation), attached);
    asking.begin(SHARD, leader(2, 7));
    asking.begin(HOME, leader(3, 7));
    for shard in [SHARD, HOME] {
        asking.received(shard, Received::Connections(0));
    }
    sent(&mut asking);
    asking
}

fn forget_identity() -> Request {
    Request::ForgetIdentity { identity: Identity::of_publish(SESSION, ID, true) }
}

fn released(packet_id: PacketId) -> Request {
    Request::Released { session: SESSION, connection: CONNECTION, packet_id }
}

fn refused() -> Request {
    let token = Token::Publish { connection: CONNECTION, sequence: 3 };
    Request::Forget { session: SESSION, packet_id: ID, flip: true, token: Some(token) }
}

/// Shards of the requests in the frames of a turn.
fn asked(asking: &mut Asking) -> Vec<ShardId> {
    let frames = sent(asking).into_iter().filter(|frame| !frame.2.is_empty());
    frames.map(|frame| frame.0).collect()
}

/// [MQTT-4.3.3-11]: after PUBCOMP the identifier belongs to another message. The one after that has the same
/// identity as this one.
#[test]
fn an_exchange_ends_when_all_shards_have_forgotten_its_message() {
    let mut asking = with_session();
    asking.request(NOW, SHARD, forget_identity());
    asking.request(NOW, ShardId(6), forget_identity());
    asking.request(NOW, HOME, released(ID));
    asking.request(NOW, HOME, released(PacketId::new(8).expect("not 0")));
    assert_eq!(asked(&mut asking), [SHARD, HOME], "the other identifier waits for nothing");
    asking.settled(SHARD, 1);
    asking.send_held(NOW);
    assert!(asked(&mut asking).is_empty(), "shard 6 has no leader");
    asking.begin(ShardId(6), leader(2, 7));
    assert_eq!(asked(&mut asking), [ShardId(6)]);
    asking.settled(ShardId(6), 1);
    asking.send_held(NOW);
    assert_eq!(asked(&mut asking), [HOME]);
    asking.settled(HOME, 2);
    for packet_id in [ID, PacketId::new(8).expect("not 0")] {
        asking.completed(HOME, &Completion::Complete { connection: CONNECTION, packet_id });
    }
    assert_eq!((asking.bytes(), asking.forgetting.len(), asking.held.len()), (0, 0, 0));
}

/// Requests whose answers are packets to the client, with these answers. Each of them is for the same identifier.
fn answered_by_packets() -> [(Request, Completion); 3] {
    let (session, connection, ticket) = (SESSION, CONNECTION, Ticket::of(ID));
    let subscribe = Request::Subscribe {
        session,
        connection,
        ticket,
        filters: Vec::new(),
        shapes: None,
        retained: false,
    };
    let unsubscribe = Request::Unsubscribe { session, connection, ticket, filters: Vec::new() };
    [
        (released(ID), Completion::Complete { connection, packet_id: ID }),
        (subscribe, Completion::Subscribed { connection, ticket, results: Vec::new() }),
        (unsubscribe, Completion::Unsubscribed { connection, ticket, results: Vec::new() }),
    ]
}

/// [MQTT-4.3.3-11] [MQTT-3.8.4-1] [MQTT-3.10.4-4]: a leader may change after PUBCOMP, SUBACK or UNSUBACK, and before
/// the report that the request is committed. The client would take a second one for that of its next packet with the
/// same identifier.
#[test]
fn a_request_that_was_answered_is_not_sent_again() {
    // A round begins with the connection, which has the number 0.
    let of_round = |asking: &mut Asking, leader| {
        asking.begin(HOME, leader);
        numbers(asking).into_iter().filter(|number| *number > 0).collect::<Vec<_>>()
    };
    for (at, (request, answer)) in answered_by_packets().into_iter().enumerate() {
        let mut asking = with_session();
        asking.request(NOW, HOME, request);
        let (next, _) = answered_by_packets().into_iter().nth(at).expect("the same one");
        asking.request(NOW, HOME, next);
        assert_eq!(numbers(&mut asking), [1, 2]);
        assert_eq!(of_round(&mut asking, leader(3, 7)), [1, 2], "they are not answered");
        asking.completed(HOME, &answer);
        assert_eq!(of_round(&mut asking, leader(4, 8)), [2]);
        asking.settled(HOME, 2);
        assert_eq!(of_round(&mut asking, leader(4, 9)), [2], "its answer is on the way");
        asking.completed(HOME, &answer);
        assert_eq!((asking.bytes(), asking.lanes[HOME.index()].awaited.len()), (0, 0));
    }
}

#[test]
fn requests_of_a_closed_connection_are_kept_until_they_are_committed() {
    let mut asking = with_session();
    for (request, _) in answered_by_packets() {
        asking.request(NOW, HOME, request);
    }
    assert_eq!(numbers(&mut asking), [1, 2, 3]);
    asking.settled(HOME, 1);
    asking.request(NOW, HOME, release());
    assert!(asking.lanes[HOME.index()].awaited.is_empty());
    asking.begin(HOME, leader(4, 8));
    assert_eq!(numbers(&mut asking), [2, 3, 4]);
    asking.settled(HOME, 4);
    assert_eq!(asking.bytes(), 0);
}

/// [MQTT-4.3.3-9]: PUBREC with an error ends the exchange, too. The client gets it when the session knows that.
#[test]
fn a_refused_exchange_ends_in_the_same_way_and_says_when_that_is_committed() {
    let mut asking = with_session();
    asking.request(NOW, SHARD, forget_identity());
    asking.request(NOW, HOME, refused());
    assert_eq!(asked(&mut asking), [SHARD]);
    assert_eq!(asking.settled(SHARD, 1), []);
    asking.send_held(NOW);
    assert_eq!(asked(&mut asking), [HOME]);
    assert_eq!(asking.settled(HOME, 1), [Token::Publish { connection: CONNECTION, sequence: 3 }]);
    assert_eq!(asking.bytes(), 0);
}

/// The client may use the identifier for another message elsewhere, and a late request would forget that.
#[test]
fn the_end_of_a_connection_gives_up_its_exchanges() {
    let mut asking = with_session();
    asking.request(NOW, SHARD, forget_identity());
    asking.request(NOW, HOME, released(ID));
    sent(&mut asking);
    asking.request(NOW, HOME, release());
    assert!(asked(&mut asking).is_empty(), "the request to forget has not arrived");
    asking.link_lost(2);
    asking.begin(SHARD, leader(2, 8));
    asking.settled(SHARD, 1);
    asking.received(SHARD, Received::Connections(0));
    asking.send_held(NOW);
    assert_eq!(numbers(&mut asking), [1], "the Release, and nothing of the exchange");
    assert!(asking.held.is_empty() && asking.forgetting.is_empty());
}

#[test]
fn another_incarnation_forgets_no_message_of_a_client() {
    let mut asking = with_session();
    asking.request(NOW, SHARD, forget_identity());
    asking.request(NOW, HOME, released(ID));
    let of_will = Identity::of_will(HOME, 4);
    asking.request(NOW, SHARD, Request::ForgetIdentity { identity: of_will });
    asking.restart(10);
    asking.begin(SHARD, leader(2, 7));
    asking.begin(HOME, leader(3, 7));
    assert_eq!(sent(&mut asking).into_iter().map(|frame| frame.2).collect::<Vec<_>>(), [vec![2], vec![]]);
    asking.settled(SHARD, 2);
    assert_eq!(asking.bytes(), 0);
}

#[test]
fn one_request_that_waits_long_does_not_keep_the_memory_of_others() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    asking.request(NOW, SHARD, append(0));
    for number in 2..10_000 {
        asking.request(NOW, SHARD, append(number as u32));
        asking.answered(SHARD, number);
        sent(&mut asking);
    }
    let lane = &asking.lanes[SHARD.index()];
    assert!(lane.unanswered.len() < 200, "{} requests", lane.unanswered.len());
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking), [1]);
}

#[test]
fn a_round_sends_no_more_at_once_than_may_be_on_the_way() {
    let mut asking = asking();
    let withdraw = || Request::Withdraw {
        session: SessionId { shard: SHARD, slot: 1, generation: 1 },
        filter: "f".repeat(10_000).into(),
    };
    for _ in 0..1_000 {
        asking.request(NOW, SHARD, withdraw());
    }
    asking.begin(SHARD, leader(2, 7));
    let (mut next, mut turns) = (1, 0);
    while next <= 1_000 {
        let frames = sent(&mut asking);
        let bytes: usize = frames.iter().map(|frame| frame.2.len() * 10_000).sum();
        assert!(bytes <= FLYING_MAX + 20_000, "{bytes} bytes");
        for number in frames.iter().flat_map(|frame| frame.2.iter()) {
            assert_eq!(*number, next);
            next += 1;
        }
        assert!(next > 1_000 || frames.iter().any(|frame| frame.1.wants_receipt), "it would stand still");
        asking.received(SHARD, Received::Request(next - 1));
        turns += 1;
    }
    assert!(turns > 5, "{turns} turns");
    asking.settled(SHARD, 1_000);
    assert_eq!(asking.bytes(), 0);
}

/// Claims of one worker that a shard is certain to remember.
const CLAIMS_MAX: usize = shard::CLAIMS_MAX / 4;

fn connection(number: usize) -> ConnectionId {
    ConnectionId { slot: number as u32, ..CONNECTION }
}

fn claim(number: usize) -> Request {
    Request::Claim(Box::new(Claim {
        client_id: format!("c{number}").into(),
        connection: connection(number),
        user: OwnerKey::NOBODY,
        payers: Payers::default(),
        clean_start: false,
        expiry: 0,
        window: 10,
        queue_limits: None,
        will: None,
        number: 0,
    }))
}

fn release_of(number: usize, will: WillDisposition) -> Request {
    let Request::Release(release) = release() else { unreachable!("a Release") };
    Request::Release(Box::new(Release { connection: connection(number), will, ..*release }))
}

/// The shard would take an older one for a new Claim: it would close the present connection of the client.
#[test]
fn claims_of_closed_connections_count_until_they_are_not_sent_again() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    assert_eq!(asking.room_for_claims(SHARD), CLAIMS_MAX);
    for number in 0..CLAIMS_MAX {
        asking.request(NOW, SHARD, claim(number));
        sent(&mut asking);
        asking.request(NOW, SHARD, release_of(number, WillDisposition::Discard));
    }
    assert_eq!(asking.room_for_claims(SHARD), 0);
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking).len(), 2 * CLAIMS_MAX, "all may be lost");
    let claimed =
        Claimed { connection: connection(0), session_present: false, session: None, epoch: 0, resume: None };
    asking.completed(SHARD, &Completion::Claimed(claimed));
    assert_eq!(asking.room_for_claims(SHARD), 0, "another leader gets it again, with its Release");
    asking.settled(SHARD, 2);
    assert_eq!(asking.room_for_claims(SHARD), 1);
    asking.settled(SHARD, 2 * CLAIMS_MAX as u64);
    assert_eq!((asking.room_for_claims(SHARD), asking.bytes()), (CLAIMS_MAX, 0));
}

/// Another leader might accept the Claim. Then its shard would publish the Will, which this node publishes.
#[test]
fn a_refused_claim_of_a_closed_connection_is_not_sent_again() {
    let mut asking = asking();
    asking.begin(SHARD, leader(2, 7));
    for number in 1..=2 {
        asking.request(NOW, SHARD, claim(number));
        sent(&mut asking);
        asking.request(NOW, SHARD, release_of(number, WillDisposition::Arm));
        let before = asking.bytes();
        asking.keep_will(SHARD, connection(number), (will(), Payers::default()));
        assert_eq!(asking.bytes(), before + will().size(), "it takes the memory of the node");
    }
    assert!(asking.refused(SHARD, connection(1)).is_some(), "the worker publishes it");
    assert!(asking.refused(SHARD, connection(1)).is_none(), "once");
    asking.begin(SHARD, leader(3, 8));
    assert_eq!(numbers(&mut asking), [2, 3, 4], "the Claim of the other one, and both Releases");
    asking.settled(SHARD, 4);
    assert!(asking.refused(SHARD, connection(2)).is_none(), "the shard has it");
    assert_eq!((asking.room_for_claims(SHARD), asking.bytes()), (CLAIMS_MAX, 0));
}

/// Clients that give up and come again do not keep others out until the shard has a leader.
#[test]
fn a_claim_that_no_leader_has_ends_with_its_connection() {
    let mut asking = asking();
    for number in 0..10 * CLAIMS_MAX {
        asking.request(NOW, SHARD, claim(number));
        asking.request(NOW, SHARD, release_of(number, WillDisposition::Discard));
    }
    assert_eq!((asking.room_for_claims(SHARD), asking.bytes()), (CLAIMS_MAX, 0));
    asking.request(NOW, SHARD, claim(1));
    asking.request(NOW, SHARD, claim(2));
    asking.request(NOW, SHARD, release_of(1, WillDisposition::Arm));
    assert_eq!(asking.room_for_claims(SHARD), CLAIMS_MAX - 2, "the shard publishes the Will");
    asking.begin(SHARD, leader(2, 7));
    assert_eq!(numbers(&mut asking).len(), 3);
    asking.request(NOW, SHARD, release_of(2, WillDisposition::Discard));
    assert_eq!(numbers(&mut asking).len(), 1, "the leader has the Claim");
}
