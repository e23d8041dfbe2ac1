//! Tests of the client side of a connection.

use super::*;
use mqtt::{Ack, ConnAck, Publish, SubAck};

const NOW: Time = Time(1_000_000);

fn options(version: Version) -> ConnectOptions {
    ConnectOptions {
        version,
        private: false,
        client_id: "c".into(),
        username: None,
        password: None,
        clean_start: false,
        session_expiry: 60,
        keep_alive: 10,
        receive_maximum: 5,
        packet_size_max: 1000,
        user_properties: Vec::new(),
        will: None,
    }
}

fn bytes(version: Version, packet: Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(packet.encode(version, &mut out), "{packet:?}");
    out
}

fn connack(properties: Properties<'_>) -> Packet<'_> {
    Packet::ConnAck(ConnAck { session_present: false, reason: ReasonCode::Success, properties })
}

fn connected(version: Version) -> Client {
    let mut client = Client::new(NOW, &options(version)).expect("valid options");
    client.receive(NOW, &bytes(version, connack(Properties::EMPTY)));
    assert!(matches!(client.poll(NOW), Ok(Some((Event::Connected, _)))));
    client.unsent.take();
    client
}

fn fails(version: Version, packet: Packet<'_>) -> CloseReason {
    let mut client = connected(version);
    client.receive(NOW, &bytes(version, packet));
    let reason = client.poll(NOW).expect_err("a violation");
    assert!(matches!(client.poll(NOW), Ok(None)), "it is closed");
    reason
}

#[test]
fn a_connect_says_what_the_options_say() {
    for (version, private) in [(Version::V3_1_1, true), (Version::V3_1_1, false), (Version::V5, false)] {
        let will =
            WillMessage { topic: "w".into(), payload: b"0".into(), qos: QoS::AtLeastOnce, retain: true };
        let options = ConnectOptions { private, will: Some(will), ..options(version) };
        let client = Client::new(NOW, &options).expect("valid options");
        let Ok(Packet::Connect(connect)) = decode(version, client.unsent().bytes()) else {
            panic!("CONNECT")
        };
        assert_eq!((connect.version, connect.bridge), (version, private));
        assert_eq!((connect.client_id, connect.keep_alive, connect.clean_start), ("c", 10, false));
        assert_eq!(connect.will.map(|will| (will.topic, will.retain)), Some(("w", true)));
        if version == Version::V5 {
            assert_eq!((connect.session_expiry(), connect.receive_maximum()), (60, Some(5)));
        }
    }
    let long = ConnectOptions { client_id: "x".repeat(70_000), ..options(Version::V5) };
    assert_eq!(Client::new(NOW, &long).err(), Some(CloseReason::ConnectNotEncodable));
}

#[test]
fn the_limits_of_a_server_are_known() {
    let properties = PropertiesBuf::from_iter([
        Property::ReceiveMaximum(7),
        Property::MaximumQoS(1),
        Property::RetainAvailable(0),
        Property::MaximumPacketSize(99),
        Property::TopicAliasMaximum(3),
        Property::ServerKeepAlive(4),
        Property::AssignedClientIdentifier("assigned"),
        Property::WildcardSubscriptionAvailable(0),
        Property::SharedSubscriptionAvailable(0),
        Property::ServerReference("other"),
        Property::ReasonString("why"),
        Property::UserProperty("meridian-id", "x"),
    ]);
    let mut client = Client::new(NOW, &options(Version::V5)).expect("valid options");
    // One byte at a time.
    for byte in bytes(Version::V5, connack(properties.as_properties())) {
        assert_eq!(client.limits(), None);
        client.receive(NOW, &[byte]);
        client.poll(NOW).expect("no failure");
    }
    let limits = client.limits().expect("connected");
    assert_eq!((limits.receive_maximum, limits.maximum_qos), (7, QoS::AtLeastOnce));
    assert_eq!((limits.retain_available, limits.packet_size_max), (false, 99));
    assert_eq!((limits.topic_alias_maximum, limits.keep_alive), (3, Some(4)));
    assert_eq!(limits.assigned_client_id.as_deref(), Some("assigned"));
    assert!(!limits.wildcard_subscriptions && !limits.shared_subscriptions);
    assert_eq!((limits.server_reference.as_deref(), limits.hop.as_deref()), (Some("other"), Some("x")));
    assert_eq!(client.timeout(), Some(NOW.after(Duration::from_secs(4))));
}

#[test]
fn a_refusal_is_reported() {
    let mut client = Client::new(NOW, &options(Version::V3_1_1)).expect("valid options");
    client.receive(NOW, &[0x20, 2, 0, 1]);
    let reason = client.poll(NOW).expect_err("refused");
    assert!(
        matches!(&reason, CloseReason::Refused { reason: ReasonCode::UnsupportedProtocolVersion, .. }),
        "{reason}"
    );
}

#[test]
fn a_ping_is_sent_and_a_lost_answer_closes() {
    let mut client = connected(Version::V3_1_1);
    let due = client.timeout().expect("Keep Alive");
    assert_eq!(due, NOW.after(Duration::from_secs(10)));
    client.handle_timeout(NOW).expect("too early");
    assert!(client.unsent().is_empty());
    client.handle_timeout(due).expect("a ping");
    assert_eq!(client.unsent().bytes(), [0xC0, 0]);
    client.receive(due, &[0xD0, 0]);
    assert!(matches!(client.poll(due), Ok(None)));
    let due = client.timeout().expect("Keep Alive");
    client.handle_timeout(due).expect("a ping");
    // While the caller does not read, silence means nothing.
    client.pause(NOW);
    assert_eq!(client.timeout(), None);
    let later = due.after(Duration::from_secs(100));
    client.resume(later);
    let end = client.timeout().expect("an answer is missing");
    assert_eq!(end, later.after(Duration::from_secs(10)));
    assert_eq!(client.handle_timeout(end), Err(CloseReason::PingTimeout));
}

#[test]
fn violations_of_the_server_close() {
    use CloseReason::{AnswerMismatch, Malformed, TopicAlias, Unexpected};
    let v5 = Version::V5;
    assert_eq!(fails(v5, connack(Properties::EMPTY)), Unexpected(PacketType::ConnAck));
    assert_eq!(fails(v5, Packet::PingReq), Unexpected(PacketType::PingReq));
    let alias = PropertiesBuf::from_iter([Property::TopicAlias(1)]);
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        properties: alias.as_properties(),
        payload: &[],
    };
    assert_eq!(fails(v5, Packet::Publish(publish)), TopicAlias);
    let large = Publish { properties: Properties::EMPTY, payload: &[0; 2000], ..publish };
    assert!(matches!(fails(v5, Packet::Publish(large)), Malformed(DecodeError::PacketTooLarge { .. })));
    let packet_id = PacketId::new(1).expect("not 0");
    let answer = SubAck { packet_id, properties: Properties::EMPTY, reasons: &[0] };
    assert_eq!(fails(v5, Packet::SubAck(answer)), AnswerMismatch(PacketType::SubAck));
    let disconnect = Disconnect { reason: ReasonCode::ServerMoved, properties: Properties::EMPTY };
    assert!(matches!(fails(v5, Packet::Disconnect(disconnect)), CloseReason::Disconnected { .. }));
}

#[test]
fn a_packet_before_connack_closes() {
    let mut client = Client::new(NOW, &options(Version::V5)).expect("valid options");
    let packet_id = PacketId::new(1).expect("not 0");
    let ack = Ack { packet_id, reason: ReasonCode::Success, properties: Properties::EMPTY };
    client.receive(NOW, &bytes(Version::V5, Packet::PubAck(ack)));
    assert!(matches!(client.poll(NOW), Err(CloseReason::Unexpected(PacketType::PubAck))));
}

#[test]
fn subscriptions_are_answered_and_repeated_when_the_identifier_is_in_use() {
    let mut client = connected(Version::V5);
    let filters: Vec<_> = (0..10).map(|at| (format!("t/{at}"), SubscriptionOptions::default())).collect();
    client.subscribe(NOW, &filters);
    assert_eq!(client.requests_open(), 10);
    client.unsent.take();
    let answer = |id, reasons| {
        let packet_id = PacketId::new(id).expect("not 0");
        bytes(Version::V5, Packet::SubAck(SubAck { packet_id, properties: Properties::EMPTY, reasons }))
    };
    client.receive(NOW, &answer(65_534, &[0x91, 0x91]));
    assert!(matches!(client.poll(NOW), Ok(None)));
    let again = client.unsent.take();
    let Ok(Packet::Subscribe(subscribe)) = decode(Version::V5, &again) else { panic!("SUBSCRIBE") };
    assert_eq!((subscribe.packet_id.get(), subscribe.filters.len()), (65_533, 2));
    client.receive(NOW, &answer(65_533, &[0, 0x87]));
    let Ok(Some((Event::Subscribed(answers), _))) = client.poll(NOW) else { panic!("an answer") };
    assert_eq!(answers, [("t/8".into(), ReasonCode::Success), ("t/9".into(), ReasonCode::NotAuthorized)]);
    assert_eq!(client.requests_open(), 8);
}

/// A server of 3.1.1 would send the message again on each connection.
#[test]
fn a_large_message_of_3_1_1_is_discarded_as_it_arrives() {
    let version = Version::V3_1_1;
    let mut client = connected(version);
    let publish = Publish {
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic: "t",
        packet_id: PacketId::new(7),
        properties: Properties::EMPTY,
        payload: &[0xC0; 5000],
    };
    let mut stream = bytes(version, Packet::Publish(publish));
    stream.extend([0x40, 2, 0, 9]);
    let mut events = Vec::new();
    for piece in stream.chunks(3) {
        client.receive(NOW, piece);
        while let Some((event, _)) = client.poll(NOW).expect("no failure") {
            events.push(format!("{event:?}"));
        }
        assert!(client.unread() < 10);
    }
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0], "TooLarge(ExactlyOnce, Some(PacketId(7)))");
    assert!(events[1].starts_with("Packet(PubAck"), "{}", events[1]);
}

#[test]
fn a_request_without_an_answer_closes_unless_nothing_is_read() {
    let subscribe = |client: &mut Client, now| {
        client.subscribe(now, &[("a".to_owned(), SubscriptionOptions::default())]);
    };
    let quiet = || {
        let mut client =
            Client::new(NOW, &ConnectOptions { keep_alive: 0, ..options(Version::V5) }).expect("valid");
        client.receive(NOW, &bytes(Version::V5, connack(Properties::EMPTY)));
        assert!(matches!(client.poll(NOW), Ok(Some((Event::Connected, _)))));
        client
    };
    let (half, due) = (NOW.after(requests::ANSWER_MAX / 2), NOW.after(requests::ANSWER_MAX));
    let mut client = quiet();
    assert_eq!(client.timeout(), None);
    subscribe(&mut client, NOW);
    client.unsubscribe(half, &["b".to_owned()]);
    assert_eq!((client.timeout(), client.handle_timeout(half)), (Some(due), Ok(())));
    assert_eq!(client.handle_timeout(due), Err(CloseReason::RequestTimeout));
    assert_eq!((client.timeout(), client.handle_timeout(due)), (None, Ok(())));
    let mut client = quiet();
    subscribe(&mut client, NOW);
    client.pause(half);
    assert_eq!((client.timeout(), client.handle_timeout(due)), (None, Ok(())));
    client.resume(due);
    assert_eq!(client.timeout(), Some(due.after(requests::ANSWER_MAX / 2)));
    let packet_id = PacketId::new(u16::MAX).expect("not 0");
    let ack = SubAck { packet_id, properties: Properties::EMPTY, reasons: &[0] };
    client.receive(due, &bytes(Version::V5, Packet::SubAck(ack)));
    assert!(matches!(client.poll(due), Ok(Some((Event::Subscribed(_), _)))));
    assert_eq!(client.timeout(), None);
}
