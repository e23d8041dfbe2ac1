//! Random packets that own the data that a [`Packet`] borrows, and their equivalents in older versions.

// Each test binary uses a part.
#![allow(dead_code)]

use mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, PropertiesBuf, Property, PropertyId, Publish,
    QoS, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFiltersBuf, Subscription,
    SubscriptionOptions, Unsubscribe, UnsubscribeFiltersBuf, Version, Will,
};
use proptest::char::range;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// A packet that owns its parts.
#[derive(Debug, Clone)]
pub enum Sample {
    Connect {
        version: Version,
        bridge: bool,
        clean_start: bool,
        keep_alive: u16,
        client_id: String,
        will: Option<SampleWill>,
        username: Option<String>,
        password: Option<Vec<u8>>,
        properties: PropertiesBuf,
    },
    ConnAck {
        session_present: bool,
        reason: ReasonCode,
        properties: PropertiesBuf,
    },
    Publish {
        dup: bool,
        qos: QoS,
        retain: bool,
        topic: String,
        packet_id: PacketId,
        properties: PropertiesBuf,
        payload: Vec<u8>,
    },
    /// PUBACK, PUBREC, PUBREL or PUBCOMP, by index.
    Ack {
        which: usize,
        packet_id: PacketId,
        reason: ReasonCode,
        properties: PropertiesBuf,
    },
    Subscribe {
        packet_id: PacketId,
        properties: PropertiesBuf,
        filters: Vec<(String, SubscriptionOptions)>,
    },
    SubAck {
        packet_id: PacketId,
        properties: PropertiesBuf,
        reasons: Vec<u8>,
    },
    Unsubscribe {
        packet_id: PacketId,
        properties: PropertiesBuf,
        filters: Vec<String>,
    },
    UnsubAck {
        packet_id: PacketId,
        properties: PropertiesBuf,
        reasons: Vec<u8>,
    },
    PingReq,
    PingResp,
    Disconnect {
        reason: ReasonCode,
        properties: PropertiesBuf,
    },
    Auth {
        reason: ReasonCode,
        properties: PropertiesBuf,
    },
}

#[derive(Debug, Clone)]
pub struct SampleWill {
    qos: QoS,
    retain: bool,
    topic: String,
    payload: Vec<u8>,
    properties: PropertiesBuf,
}

impl Sample {
    /// Calls `f` with the packet.
    pub fn with<R>(&self, f: impl FnOnce(Packet<'_>) -> R) -> R {
        match self {
            Sample::Connect {
                version,
                bridge,
                clean_start,
                keep_alive,
                client_id,
                will,
                username,
                password,
                properties,
            } => f(Packet::Connect(Connect {
                version: *version,
                bridge: *bridge,
                clean_start: *clean_start,
                keep_alive: *keep_alive,
                client_id,
                will: will.as_ref().map(|will| Will {
                    qos: will.qos,
                    retain: will.retain,
                    topic: &will.topic,
                    payload: &will.payload,
                    properties: will.properties.as_properties(),
                }),
                username: username.as_deref(),
                password: password.as_deref(),
                properties: properties.as_properties(),
            })),
            Sample::ConnAck { session_present, reason, properties } => f(Packet::ConnAck(ConnAck {
                session_present: *session_present,
                reason: *reason,
                properties: properties.as_properties(),
            })),
            Sample::Publish { dup, qos, retain, topic, packet_id, properties, payload } => {
                f(Packet::Publish(Publish {
                    dup: *dup,
                    qos: *qos,
                    retain: *retain,
                    topic,
                    packet_id: (*qos != QoS::AtMostOnce).then_some(*packet_id),
                    properties: properties.as_properties(),
                    payload,
                }))
            }
            Sample::Ack { which, packet_id, reason, properties } => {
                let ack =
                    Ack { packet_id: *packet_id, reason: *reason, properties: properties.as_properties() };
                f(match which {
                    0 => Packet::PubAck(ack),
                    1 => Packet::PubRec(ack),
                    2 => Packet::PubRel(ack),
                    _ => Packet::PubComp(ack),
                })
            }
            Sample::Subscribe { packet_id, properties, filters } => {
                let mut buf = SubscribeFiltersBuf::default();
                for (filter, options) in filters {
                    buf.push(filter, *options);
                }
                f(Packet::Subscribe(Subscribe {
                    packet_id: *packet_id,
                    properties: properties.as_properties(),
                    filters: buf.as_filters(),
                }))
            }
            Sample::Unsubscribe { packet_id, properties, filters } => {
                let mut buf = UnsubscribeFiltersBuf::default();
                for filter in filters {
                    buf.push(filter);
                }
                f(Packet::Unsubscribe(Unsubscribe {
                    packet_id: *packet_id,
                    properties: properties.as_properties(),
                    filters: buf.as_filters(),
                }))
            }
            Sample::SubAck { packet_id, properties, reasons } => f(Packet::SubAck(SubAck {
                packet_id: *packet_id,
                properties: properties.as_properties(),
                reasons,
            })),
            Sample::UnsubAck { packet_id, properties, reasons } => f(Packet::UnsubAck(SubAck {
                packet_id: *packet_id,
                properties: properties.as_properties(),
                reasons,
            })),
            Sample::PingReq => f(Packet::PingReq),
            Sample::PingResp => f(Packet::PingResp),
            Sample::Disconnect { reason, properties } => {
                f(Packet::Disconnect(Disconnect { reason: *reason, properties: properties.as_properties() }))
            }
            Sample::Auth { reason, properties } => {
                f(Packet::Auth(Auth { reason: *reason, properties: properties.as_properties() }))
            }
        }
    }

    /// Returns the packet that arrives when this one is sent in `version`; `None` when the version cannot express
    /// it. In 5.0 the samples lose nothing.
    pub fn as_encoded_in(&self, version: Version) -> Option<Sample> {
        let version = match self {
            Sample::Connect { version, .. } => *version,
            _ => version,
        };
        let mut said = self.clone();
        if version == Version::V5 {
            return Some(said);
        }
        match &mut said {
            Sample::Connect { will, username, password, properties, .. } => {
                if password.is_some() && username.is_none() {
                    return None;
                }
                properties.clear();
                if let Some(will) = will {
                    will.properties.clear();
                }
            }
            Sample::ConnAck { session_present, reason, properties } => {
                properties.clear();
                *reason = return_code(*reason)?;
                *session_present &= version != Version::V3_1;
            }
            Sample::Publish { topic, properties, .. } => {
                properties.clear();
                if topic.is_empty() {
                    return None;
                }
            }
            Sample::Ack { reason, properties, .. } => {
                properties.clear();
                *reason = ReasonCode::Success;
            }
            Sample::Subscribe { properties, filters, .. } => {
                properties.clear();
                for (_, options) in filters {
                    *options = SubscriptionOptions { qos: options.qos, ..Default::default() };
                }
            }
            Sample::Unsubscribe { properties, .. } => properties.clear(),
            Sample::SubAck { properties, reasons, .. } => {
                properties.clear();
                for reason in reasons {
                    *reason = (*reason).min(0x80);
                }
            }
            Sample::UnsubAck { properties, reasons, .. } => {
                properties.clear();
                reasons.clear();
            }
            Sample::PingReq | Sample::PingResp => {}
            Sample::Disconnect { reason, properties } => {
                properties.clear();
                if *reason != ReasonCode::Success {
                    return None;
                }
            }
            Sample::Auth { .. } => return None,
        }
        Some(said)
    }
}

/// Returns the Reason Code that a 3.x client reads from a 5.0 CONNACK.
fn return_code(reason: ReasonCode) -> Option<ReasonCode> {
    use ReasonCode::*;
    Some(match reason {
        Success | UnsupportedProtocolVersion | ClientIdentifierNotValid => reason,
        BadUserNameOrPassword | BadAuthenticationMethod => BadUserNameOrPassword,
        MalformedPacket | ProtocolError => return None,
        NotAuthorized | Banned | TopicNameInvalid | PacketTooLarge | PayloadFormatInvalid
        | RetainNotSupported | QoSNotSupported => NotAuthorized,
        _ => ServerUnavailable,
    })
}

/// Generates any packet.
pub fn sample() -> impl Strategy<Value = Sample> {
    prop_oneof![
        3 => connect(),
        2 => connack(),
        5 => publish(),
        3 => ack(),
        3 => (packet_id(), properties(&SUBSCRIBE), vec((filter(), options()), 1..5))
            .prop_map(|(packet_id, properties, filters)| Sample::Subscribe { packet_id, properties, filters }),
        2 => (packet_id(), properties(&ACK), vec(select(SUBACK_REASONS), 1..5))
            .prop_map(|(packet_id, properties, reasons)| Sample::SubAck { packet_id, properties, reasons }),
        2 => (packet_id(), properties(&[]), vec(filter(), 1..5))
            .prop_map(|(packet_id, properties, filters)| Sample::Unsubscribe { packet_id, properties, filters }),
        1 => (packet_id(), properties(&ACK), vec(select(UNSUBACK_REASONS), 1..5))
            .prop_map(|(packet_id, properties, reasons)| Sample::UnsubAck { packet_id, properties, reasons }),
        1 => Just(Sample::PingReq),
        1 => Just(Sample::PingResp),
        2 => (select(DISCONNECT_REASONS), properties(&DISCONNECT))
            .prop_map(|(byte, properties)| Sample::Disconnect { reason: reason(byte), properties }),
        1 => auth(),
    ]
}

fn connect() -> impl Strategy<Value = Sample> {
    let will = (qos(), any::<bool>(), topic(), bytes(), properties(&WILL)).prop_map(
        |(qos, retain, topic, payload, properties)| SampleWill { qos, retain, topic, payload, properties },
    );
    let session = (select(&Version::ALL), any::<bool>(), any::<bool>(), any::<u16>(), text());
    (session, option::of(will), option::of(text()), option::of(bytes()), properties(&CONNECT)).prop_map(
        |((version, bridge, clean_start, keep_alive, client_id), will, username, password, properties)| {
            Sample::Connect {
                version,
                bridge,
                clean_start,
                keep_alive,
                client_id,
                will,
                username,
                password,
                properties,
            }
        },
    )
}

fn connack() -> impl Strategy<Value = Sample> {
    (any::<bool>(), select(CONNACK_REASONS), properties(&CONNACK)).prop_map(|(present, byte, properties)| {
        Sample::ConnAck { session_present: present && byte == 0, reason: reason(byte), properties }
    })
}

fn publish() -> impl Strategy<Value = Sample> {
    let ids = vec(1..=268_435_455_u32, 0..3);
    (any::<(bool, bool)>(), qos(), topic(), packet_id(), properties(&PUBLISH), ids, any::<bool>(), bytes())
        .prop_map(|((dup, retain), qos, topic, packet_id, mut properties, ids, by_alias, payload)| {
            for id in ids {
                assert!(properties.push(Property::SubscriptionIdentifier(id)));
            }
            let by_alias = by_alias && properties.as_properties().topic_alias().is_some();
            Sample::Publish {
                dup: dup && qos != QoS::AtMostOnce,
                qos,
                retain,
                topic: if by_alias { String::new() } else { topic },
                packet_id,
                properties,
                payload,
            }
        })
}

fn ack() -> impl Strategy<Value = Sample> {
    let reasons: [&'static [u8]; 4] = [PUBACK_REASONS, PUBACK_REASONS, PUBREL_REASONS, PUBREL_REASONS];
    (0..4_usize).prop_flat_map(move |which| {
        (packet_id(), select(reasons[which]), properties(&ACK)).prop_map(
            move |(packet_id, byte, properties)| Sample::Ack {
                which,
                packet_id,
                reason: reason(byte),
                properties,
            },
        )
    })
}

fn auth() -> impl Strategy<Value = Sample> {
    let full =
        (select(&[0x00, 0x18, 0x19][..]), text(), option::of(bytes())).prop_map(|(byte, method, data)| {
            let mut properties = PropertiesBuf::default();
            assert!(properties.push(Property::AuthenticationMethod(&method)));
            if let Some(data) = data {
                assert!(properties.push(Property::AuthenticationData(&data)));
            }
            Sample::Auth { reason: reason(byte), properties }
        });
    let bare = Just(Sample::Auth { reason: ReasonCode::Success, properties: PropertiesBuf::default() });
    prop_oneof![4 => full, 1 => bare]
}

/// Generates some of the properties in `ids` in any order, with User Properties among them.
fn properties(ids: &'static [PropertyId]) -> impl Strategy<Value = PropertiesBuf> {
    let owned = (vec((text(), text()), 0..3), text(), topic(), bytes(), any::<(u32, u16, u8)>());
    // An empty block is the common case on the wire and has its own code path.
    let chosen = prop_oneof![1 => Just(Vec::new()).boxed(), 2 => subsequence(ids, 0..=ids.len()).prop_shuffle().boxed()];
    (chosen, owned).prop_map(|(ids, (user, text, topic, bytes, (four, two, one)))| {
        let mut buf = PropertiesBuf::default();
        let (four, two, one) = (four.max(1), two.max(1), one & 1);
        let method_missing =
            ids.contains(&PropertyId::AuthenticationData) && !ids.contains(&PropertyId::AuthenticationMethod);
        if method_missing {
            assert!(buf.push(Property::AuthenticationMethod(&text)));
        }
        for id in &ids {
            assert!(buf.push(match id {
                PropertyId::PayloadFormatIndicator => Property::PayloadFormatIndicator(one),
                PropertyId::MessageExpiryInterval => Property::MessageExpiryInterval(four),
                PropertyId::ContentType => Property::ContentType(&text),
                PropertyId::ResponseTopic => Property::ResponseTopic(&topic),
                PropertyId::CorrelationData => Property::CorrelationData(&bytes),
                PropertyId::SubscriptionIdentifier => Property::SubscriptionIdentifier(four >> 4 | 1),
                PropertyId::SessionExpiryInterval => Property::SessionExpiryInterval(four),
                PropertyId::AssignedClientIdentifier => Property::AssignedClientIdentifier(&text),
                PropertyId::ServerKeepAlive => Property::ServerKeepAlive(two),
                PropertyId::AuthenticationMethod => Property::AuthenticationMethod(&text),
                PropertyId::AuthenticationData => Property::AuthenticationData(&bytes),
                PropertyId::RequestProblemInformation => Property::RequestProblemInformation(one),
                PropertyId::WillDelayInterval => Property::WillDelayInterval(four),
                PropertyId::RequestResponseInformation => Property::RequestResponseInformation(one),
                PropertyId::ResponseInformation => Property::ResponseInformation(&text),
                PropertyId::ServerReference => Property::ServerReference(&text),
                PropertyId::ReasonString => Property::ReasonString(&text),
                PropertyId::ReceiveMaximum => Property::ReceiveMaximum(two),
                PropertyId::TopicAliasMaximum => Property::TopicAliasMaximum(two),
                PropertyId::TopicAlias => Property::TopicAlias(two),
                PropertyId::MaximumQoS => Property::MaximumQoS(one),
                PropertyId::RetainAvailable => Property::RetainAvailable(one),
                PropertyId::UserProperty => Property::UserProperty(&text, &text),
                PropertyId::MaximumPacketSize => Property::MaximumPacketSize(four),
                PropertyId::WildcardSubscriptionAvailable => Property::WildcardSubscriptionAvailable(one),
                PropertyId::SubscriptionIdentifierAvailable => Property::SubscriptionIdentifierAvailable(one),
                PropertyId::SharedSubscriptionAvailable => Property::SharedSubscriptionAvailable(one),
            }));
            if let Some((name, value)) = user.first().filter(|_| four & 1 == 0) {
                assert!(buf.push(Property::UserProperty(name, value)));
            }
        }
        for (name, value) in &user {
            assert!(buf.push(Property::UserProperty(name, value)));
        }
        buf
    })
}

fn reason(byte: u8) -> ReasonCode {
    ReasonCode::try_from(byte).expect("a Reason Code")
}

fn qos() -> impl Strategy<Value = QoS> {
    select(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][..])
}

fn packet_id() -> impl Strategy<Value = PacketId> {
    (1..=u16::MAX).prop_map(|value| PacketId::new(value).expect("not 0"))
}

fn options() -> impl Strategy<Value = SubscriptionOptions> {
    let handling = select(&[RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend][..]);
    (qos(), any::<(bool, bool)>(), handling).prop_map(
        |(qos, (no_local, retain_as_published), retain_handling)| SubscriptionOptions {
            qos,
            no_local,
            retain_as_published,
            retain_handling,
        },
    )
}

/// Generates a string of any characters except U+0000, sometimes long enough for a longer Remaining Length.
fn text() -> impl Strategy<Value = String> {
    let short =
        vec(prop_oneof![4 => range('a', 'z'), 1 => range('\u{1}', '\u{D7FF}'), 1 => range('\u{E000}', '\u{10FFFF}')], 0..8)
            .prop_map(String::from_iter);
    prop_oneof![9 => short, 1 => (100..200_usize).prop_map(|len| "x".repeat(len))]
}

fn topic() -> impl Strategy<Value = String> {
    vec(
        prop_oneof![3 => range('a', 'c'), 2 => Just('/'), 1 => Just('$'), 1 => range('\u{80}', '\u{D7FF}')],
        1..12,
    )
    .prop_map(String::from_iter)
}

fn filter() -> impl Strategy<Value = String> {
    let share = select(&["", "", "", "$share/g/"][..]);
    let level = select(&["a", "b", "+", "", "sensor", "ü"][..]);
    let end = select(&["", "/#"][..]);
    (share, vec(level, 1..5), end)
        .prop_map(|(share, levels, end)| format!("{share}{}{end}", levels.join("/")))
        .prop_filter("a subscription", |filter| Subscription::parse(filter).is_ok())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 100..300)]
}

use PropertyId as P;
const CONNECT: [P; 8] = [
    P::SessionExpiryInterval,
    P::AuthenticationMethod,
    P::AuthenticationData,
    P::RequestProblemInformation,
    P::RequestResponseInformation,
    P::ReceiveMaximum,
    P::TopicAliasMaximum,
    P::MaximumPacketSize,
];
const WILL: [P; 6] = [
    P::PayloadFormatIndicator,
    P::MessageExpiryInterval,
    P::ContentType,
    P::ResponseTopic,
    P::CorrelationData,
    P::WillDelayInterval,
];
const CONNACK: [P; 16] = [
    P::SessionExpiryInterval,
    P::AssignedClientIdentifier,
    P::ServerKeepAlive,
    P::AuthenticationMethod,
    P::AuthenticationData,
    P::ResponseInformation,
    P::ServerReference,
    P::ReasonString,
    P::ReceiveMaximum,
    P::TopicAliasMaximum,
    P::MaximumQoS,
    P::RetainAvailable,
    P::MaximumPacketSize,
    P::WildcardSubscriptionAvailable,
    P::SubscriptionIdentifierAvailable,
    P::SharedSubscriptionAvailable,
];
const PUBLISH: [P; 6] = [
    P::PayloadFormatIndicator,
    P::MessageExpiryInterval,
    P::ContentType,
    P::ResponseTopic,
    P::CorrelationData,
    P::TopicAlias,
];
const ACK: [P; 1] = [P::ReasonString];
const SUBSCRIBE: [P; 1] = [P::SubscriptionIdentifier];
const DISCONNECT: [P; 3] = [P::SessionExpiryInterval, P::ServerReference, P::ReasonString];
const CONNACK_REASONS: &[u8] = &[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
    0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
];
const PUBACK_REASONS: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
const PUBREL_REASONS: &[u8] = &[0x00, 0x92];
const SUBACK_REASONS: &[u8] = &[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2];
const UNSUBACK_REASONS: &[u8] = &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
const DISCONNECT_REASONS: &[u8] =
    &[0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x93, 0x97, 0x98, 0x9C, 0xA0, 0xA2];
