//! Hostile bytes of a remote broker, for two seconds or the number in the environment variable `MERIDIAN_FUZZ_SECONDS`.
//! `MERIDIAN_FUZZ_SEED` selects another run than the usual one.

use std::time::{Duration, Instant};

use bridge::{
    Direction, Existing, Input, InterestSettings, Notifications, Output, Relay, Settings, Side, State, Time,
    Topic,
};
use mqtt::{
    Ack, ConnAck, Disconnect, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, SubAck, Version,
};
use random::Random;

fn for_a_while(mut round: impl FnMut(&mut Random)) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(number("MERIDIAN_FUZZ_SECONDS").unwrap_or(2));
    let mut rounds = 0;
    while rounds < 200 || Instant::now() < end {
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(rounds));
        round(&mut random);
        rounds += 1;
    }
}

/// Flips, cuts, doubles and overwrites bytes.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => bytes.truncate(at),
            3 => bytes.extend(bytes[at..].to_vec()),
            _ => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
        }
    }
}

/// Answer to a question for the list of subscriptions, which may be wrong.
fn page(random: &mut Random) -> Vec<u8> {
    let total = *random.pick(&[0, 1, 3, 20, 3_900, 5_000, usize::MAX]);
    let offset = if random.percent(50) { 0 } else { random.below(8) };
    let mut page = format!("{offset} {total}");
    for _ in 0..random.below(6) {
        let filter = *random.pick(&["in/a", "in/b", "wanted/1", "$link/own/filters", "a/#/b", "", "\0"]);
        page = format!("{page}\n{filter}{}", if random.percent(30) { random.below(900) } else { 1 });
    }
    page.into_bytes()
}

/// Appends the answers of a remote broker to subscriptions and to questions for the list.
fn remote_answers(random: &mut Random, received: &mut Vec<u8>, out: &mut Vec<u8>) {
    while let Some(length) = mqtt::frame(received, u32::MAX).expect("the relay sends valid packets") {
        if received.len() < length {
            break;
        }
        let bytes: Vec<u8> = received.drain(..length).collect();
        let mut reason = || *random.pick(&[0, 0, 0, 0, 0, 0x87, 0x91]);
        let answer = |packet_id, reasons| SubAck { packet_id, properties: Properties::EMPTY, reasons };
        match mqtt::decode(Version::V5, &bytes).expect("the relay sends valid packets") {
            Packet::Subscribe(it) => {
                let reasons: Vec<u8> = it.filters.iter().map(|_| reason()).collect();
                Packet::SubAck(answer(it.packet_id, &reasons)).encode(Version::V5, out);
            }
            Packet::Unsubscribe(it) => {
                let reasons: Vec<u8> = it.filters.iter().map(|_| reason()).collect();
                Packet::UnsubAck(answer(it.packet_id, &reasons)).encode(Version::V5, out);
            }
            Packet::Publish(publish) if publish.topic == "$link/own/list" => {
                let payload = page(random);
                let (topic, properties) = ("$link/own/filters", Properties::EMPTY);
                let (dup, qos, retain, packet_id) = (false, QoS::AtMostOnce, false, None);
                let answer = Publish { dup, qos, retain, topic, packet_id, properties, payload: &payload };
                Packet::Publish(answer).encode(Version::V5, out);
            }
            _ => {}
        }
    }
}

/// Appends a packet that a broker might send. If the connection is to last, it is none that ends it surely.
fn packet(random: &mut Random, version: Version, lasts: bool, out: &mut Vec<u8>) {
    let packet_id = PacketId::new(1 + random.below(40) as u16).expect("not 0");
    let request = PacketId::new(65_535 - random.below(4) as u16).expect("not 0");
    let reason = *random.pick(&[
        ReasonCode::Success,
        ReasonCode::NoMatchingSubscribers,
        ReasonCode::NotAuthorized,
        ReasonCode::PacketIdentifierNotFound,
    ]);
    let qos = *random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
    let size_max = if random.percent(3) { 3_000 } else { 50 };
    let payload = vec![7; random.below(size_max)];
    let properties: PropertiesBuf = [
        Property::MessageExpiryInterval(3),
        Property::ResponseTopic("in/r"),
        Property::UserProperty(bridge::VIA, "own"),
        Property::TopicAlias(1),
        Property::ContentType("text"),
    ]
    .into_iter()
    .filter(|property| random.percent(10) && !(lasts && matches!(property, Property::TopicAlias(_))))
    .collect();
    let ack = Ack { packet_id, reason, properties: Properties::EMPTY };
    let topic = *random.pick(&["in/a", "in/b/c", "other", "both", "$link/own/filters"]);
    let payload = if topic.starts_with('$') { page(random) } else { payload };
    let (dup, retain) = (qos > QoS::AtMostOnce && random.percent(20), random.percent(20));
    let id = (qos > QoS::AtMostOnce).then_some(packet_id);
    let publish = Publish {
        dup,
        qos,
        retain,
        topic,
        packet_id: id,
        properties: properties.as_properties(),
        payload: &payload,
    };
    let reasons: Vec<u8> = (0..1 + random.below(3)).map(|_| *random.pick(&[0, 1, 2, 0x80, 0x91])).collect();
    let answer = SubAck { packet_id: request, properties: Properties::EMPTY, reasons: &reasons };
    let packet = match random.below(if lasts { 9 } else { 12 }) {
        0..5 => Packet::Publish(publish),
        5 => Packet::PubAck(ack),
        6 => Packet::PubRec(ack),
        7 => Packet::PubRel(ack),
        8 => Packet::PubComp(ack),
        9 if random.percent(30) => Packet::UnsubAck(answer),
        9 => Packet::SubAck(answer),
        10 => Packet::PingResp,
        _ => Packet::Disconnect(Disconnect { reason: ReasonCode::ServerBusy, properties: Properties::EMPTY }),
    };
    packet.encode(version, out);
}

/// A local broker that acknowledges everything, and sometimes publishes.
fn local_answers(random: &mut Random, received: &mut Vec<u8>, out: &mut Vec<u8>, next_id: &mut u16) {
    let version = Version::V5;
    while let Some(length) = mqtt::frame(received, u32::MAX).expect("the relay sends valid packets") {
        if received.len() < length {
            break;
        }
        let bytes: Vec<u8> = received.drain(..length).collect();
        let ack = |packet_id| Ack { packet_id, reason: ReasonCode::Success, properties: Properties::EMPTY };
        let answer = match mqtt::decode(version, &bytes).expect("the relay sends valid packets") {
            Packet::Connect(_) => Some(Packet::ConnAck(ConnAck {
                session_present: true,
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            })),
            Packet::Subscribe(subscribe) => {
                let reasons = vec![0; subscribe.filters.len()];
                let (packet_id, properties) = (subscribe.packet_id, Properties::EMPTY);
                Packet::SubAck(SubAck { packet_id, properties, reasons: &reasons }).encode(version, out);
                None
            }
            Packet::Publish(publish) => publish.packet_id.map(|id| match publish.qos {
                QoS::ExactlyOnce => Packet::PubRec(ack(id)),
                _ => Packet::PubAck(ack(id)),
            }),
            Packet::PubRec(received) if !received.reason.is_error() => {
                Some(Packet::PubRel(ack(received.packet_id)))
            }
            Packet::PubRel(released) => Some(Packet::PubComp(ack(released.packet_id))),
            _ => None,
        };
        if let Some(answer) = answer {
            answer.encode(version, out);
        }
    }
    if random.percent(30) {
        *next_id = *next_id % 40 + 1;
        let publish = Publish {
            dup: false,
            qos: *random.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce]),
            retain: false,
            topic: "out/a",
            packet_id: PacketId::new(*next_id),
            properties: Properties::EMPTY,
            payload: b"payload",
        };
        Packet::Publish(publish).encode(version, out);
    }
}

#[test]
fn bytes_of_a_hostile_remote_broker_neither_panic_nor_grow_memory() {
    let (mut connections, mut invalid, mut stale) = (0, 0, 0);
    for_a_while(|random| {
        let mut settings = Settings::new("b", "remote");
        settings.version = if random.percent(50) { Version::V5 } else { Version::V3_1_1 };
        settings.topics = vec![
            Topic::new("in/#", Direction::In, QoS::ExactlyOnce),
            Topic::new("out/#", Direction::Out, QoS::ExactlyOnce),
            Topic::new("both", Direction::Both, QoS::AtLeastOnce),
        ];
        if settings.version == Version::V5 && random.percent(60) {
            settings.topics.truncate(1);
            let interest = InterestSettings::new("own", "far", None);
            settings.interest = Some(InterestSettings { filters_max: 100, ..interest });
        }
        settings.notifications = Notifications { remote: Some("state".into()), local: None };
        settings.packet_size_max = 1_000;
        settings.outgoing_max = 500;
        let version = settings.version;
        let mut relay =
            Relay::new(settings, "own", Existing::default(), random.draw()).expect("valid settings");
        let mut now = Time(1);
        relay.handle(now, Input::Start).expect("no new settings");
        let (mut from_relay, mut to_relay, mut next_id) = (Vec::new(), Vec::new(), 0);
        let (mut hostile, mut to_hostile) = (Vec::new(), Vec::new());
        // A connection lasts when the broker sends no answers that nobody asked for.
        let lasts = relay.settings().interest.is_some() && random.percent(70);
        // Response topics of clients that come and go.
        let replies_max = if random.percent(50) { 150 } else { 0 };
        let mut replies: Vec<Box<str>> = Vec::new();
        for number in 0..120 {
            if random.percent(30) {
                let mut some =
                    || (0..random.below(5)).map(|_| format!("wanted/{}", random.below(30)).into()).collect();
                let (mut add, mut remove): (Vec<_>, Vec<_>) = (some(), some());
                remove.append(&mut replies);
                replies = (0..random.below(replies_max + 1))
                    .map(|at| format!("reply/{number}/{at}").into())
                    .collect();
                add.extend_from_slice(&replies);
                relay.handle(now, Input::Want { number, add, remove }).expect("no new settings");
            }
            assert!(relay.wanted() <= 30 + replies_max);
            // Those of a list, with four times the wanted ones, and those whose requests have no answer.
            let bound = relay.wanted() + 1_000 + 8 * replies_max;
            assert!(relay.known_filters() <= bound, "{} filters are stored", relay.known_filters());
            while let Some(output) = relay.poll_output() {
                let Output::Open { connection, .. } = output else { continue };
                relay.handle(now, Input::Opened(connection)).expect("no new settings");
                match connection.side {
                    Side::Local => (from_relay, to_relay) = (Vec::new(), Vec::new()),
                    Side::Remote => {
                        (hostile, to_hostile) = (Vec::new(), Vec::new());
                        let session_present = random.percent(if lasts { 95 } else { 70 });
                        let properties =
                            PropertiesBuf::from_iter([Property::ReceiveMaximum(1 + random.below(9) as u16)]);
                        let properties = properties.as_properties();
                        let reason = ReasonCode::Success;
                        Packet::ConnAck(ConnAck { session_present, reason, properties })
                            .encode(version, &mut hostile);
                    }
                }
            }
            if let Some(id) = relay.connection(Side::Local) {
                let count = relay.outgoing(Side::Local).len();
                from_relay.extend_from_slice(relay.outgoing(Side::Local));
                relay.handle(now, Input::Sent(id, count)).expect("no new settings");
                local_answers(random, &mut from_relay, &mut to_relay, &mut next_id);
                if relay.wants_read(Side::Local) {
                    relay
                        .handle(now, Input::Received(id, &std::mem::take(&mut to_relay)))
                        .expect("no new settings");
                }
            }
            if let Some(id) = relay.connection(Side::Remote).filter(|_| relay.wants_read(Side::Remote)) {
                let mut bytes = std::mem::take(&mut hostile);
                let is_first = !bytes.is_empty();
                for _ in 0..random.below(8) {
                    packet(random, version, lasts, &mut bytes);
                }
                // The CONNACK stays good most of the time, so that more than its decoder is tried.
                if random.percent(if lasts { 8 } else { 30 }) && (!is_first || random.percent(10)) {
                    mutate(random, &mut bytes);
                }
                let middle = random.below(bytes.len() + 1);
                for part in [&bytes[..middle], &bytes[middle..]] {
                    relay.handle(now, Input::Received(id, part)).expect("no new settings");
                }
                // The remote broker reads sometimes.
                if random.percent(70) {
                    let count = random.below(relay.outgoing(Side::Remote).len() + 1);
                    to_hostile.extend_from_slice(&relay.outgoing(Side::Remote)[..count]);
                    if lasts {
                        remote_answers(random, &mut to_hostile, &mut hostile);
                    }
                    relay.handle(now, Input::Sent(id, count)).expect("no new settings");
                }
            }
            relay.check_invariants();
            for side in Side::ALL {
                assert!(relay.outgoing(side).len() < 500 + 65_535 * 5 + 2_000);
                assert!(relay.unread(side) < 100_000, "{} bytes are stored", relay.unread(side));
            }
            connections += u64::from(matches!(relay.state(), State::Connected { .. }));
            now = now.after(Duration::from_millis(random.below(800) as u64));
            if relay.poll_timeout().is_some_and(|due| due <= now) {
                relay.handle(now, Input::Timeout).expect("no new settings");
            }
        }
        invalid += relay.counters().lists_invalid;
        stale += relay.counters().stale_filters;
    });
    assert!(invalid > 0 && stale > 0, "no list was answered");
    assert!(connections > 0, "the relay was never connected");
}
