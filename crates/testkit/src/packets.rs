//! Owned packets for tests: to be sent, and to be compared with received ones.

use mqtt::{
    Ack, Connect, Disconnect, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFiltersBuf, SubscriptionOptions, Unsubscribe,
    UnsubscribeFiltersBuf, Version, Will,
};

/// A packet, or the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Connect(Box<Connecting>),
    ConnAck {
        session_present: bool,
        reason: ReasonCode,
    },
    Publish(Box<Message>),
    PubAck(u16, ReasonCode),
    PubRec(u16, ReasonCode),
    PubRel(u16, ReasonCode),
    PubComp(u16, ReasonCode),
    Subscribe(Box<Subscribing>),
    SubAck(u16, Vec<ReasonCode>),
    Unsubscribe(u16, Vec<String>),
    /// UNSUBACK. MQTT 3.1.1 has no Reason Codes in it.
    UnsubAck(u16, Vec<ReasonCode>),
    PingReq,
    PingResp,
    Disconnect {
        reason: ReasonCode,
        expiry: Option<u32>,
    },
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connecting {
    pub version: Version,
    pub bridge: bool,
    pub client_id: String,
    pub username: Option<String>,
    pub clean_start: bool,
    pub keep_alive: u16,
    pub will: Option<(Message, Option<u32>)>,
    pub expiry: Option<u32>,
    pub receive_max: Option<u16>,
    pub packet_size_max: Option<u32>,
    pub alias_max: Option<u16>,
    pub user_properties: Vec<(&'static str, &'static str)>,
}

/// User Property of a message that came over a link.
const ORIGIN: &str = "meridian-origin";
/// User Property of a message for a shared group over linked clusters.
const GROUP: &str = "meridian-group";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub packet_id: Option<u16>,
    pub expiry: Option<u32>,
    pub content_type: Option<String>,
    pub subscription_ids: Vec<u32>,
    pub alias: Option<u16>,
    /// Value of the User Property `meridian-origin`: the linked cluster where it was published.
    pub origin: Option<String>,
    /// Last value of the User Property `meridian-group`: the shared group that a linked cluster gets the message for.
    pub group: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribing {
    pub packet_id: u16,
    pub filters: Vec<(String, SubscriptionOptions)>,
    pub identifier: Option<u32>,
    /// Value of the User Property `suback`: the nodes that have to know of it before SUBACK.
    pub level: Option<&'static str>,
}

/// Makes a CONNECT of MQTT 5.0 whose session ends with its connection.
pub fn v5(client_id: &str) -> Connecting {
    Connecting {
        bridge: false,
        version: Version::V5,
        client_id: client_id.into(),
        username: None,
        clean_start: true,
        keep_alive: 0,
        will: None,
        expiry: None,
        receive_max: None,
        packet_size_max: None,
        alias_max: None,
        user_properties: Vec::new(),
    }
}

/// Makes a CONNECT of MQTT 3.1.1 whose session ends with its connection.
pub fn v3(client_id: &str) -> Connecting {
    Connecting { version: Version::V3_1_1, ..v5(client_id) }
}

/// Makes a CONNECT of `version` whose session lasts a day, or in MQTT 3.1.1 as long as the node allows.
pub fn durable(version: Version, client_id: &str) -> Connecting {
    let client = Connecting { version, ..v5(client_id) }.resumes();
    if version == Version::V5 { client.expiry(DAY) } else { client }
}

pub const DAY: u32 = 24 * 3600;

impl Connecting {
    pub fn username(mut self, username: &str) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Sets Clean Start or Clean Session to 0.
    pub fn resumes(mut self) -> Self {
        self.clean_start = false;
        self
    }

    pub fn starts_clean(mut self) -> Self {
        self.clean_start = true;
        self
    }

    pub fn expiry(mut self, seconds: u32) -> Self {
        self.expiry = Some(seconds);
        self
    }

    pub fn receive_max(mut self, maximum: u16) -> Self {
        self.receive_max = Some(maximum);
        self
    }

    pub fn packet_size_max(mut self, maximum: u32) -> Self {
        self.packet_size_max = Some(maximum);
        self
    }

    pub fn alias_max(mut self, maximum: u16) -> Self {
        self.alias_max = Some(maximum);
        self
    }

    pub fn user_property(mut self, name: &'static str, value: &'static str) -> Self {
        self.user_properties.push((name, value));
        self
    }

    pub fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive = seconds;
        self
    }

    pub fn will(mut self, will: Message) -> Self {
        self.will = Some((will, None));
        self
    }

    pub fn delayed_will(mut self, will: Message, seconds: u32) -> Self {
        self.will = Some((will, Some(seconds)));
        self
    }

    fn encode(&self, out: &mut Vec<u8>) -> bool {
        let mut properties = PropertiesBuf::default();
        let mut push = |property: Option<Property<'_>>| {
            if let Some(property) = property {
                assert!(properties.push(property));
            }
        };
        push(self.expiry.map(Property::SessionExpiryInterval));
        push(self.receive_max.map(Property::ReceiveMaximum));
        push(self.packet_size_max.map(Property::MaximumPacketSize));
        push(self.alias_max.map(Property::TopicAliasMaximum));
        for (name, value) in &self.user_properties {
            push(Some(Property::UserProperty(name, value)));
        }
        let mut of_will = PropertiesBuf::default();
        let will = self.will.as_ref().map(|(message, delay)| {
            of_will.clear();
            of_will.extend([
                delay.map(Property::WillDelayInterval),
                message.expiry.map(Property::MessageExpiryInterval),
            ]);
            message
        });
        let connect = Connect {
            version: self.version,
            bridge: self.bridge,
            clean_start: self.clean_start,
            keep_alive: self.keep_alive,
            client_id: &self.client_id,
            will: will.map(|message| Will {
                qos: message.qos,
                retain: message.retain,
                topic: &message.topic,
                payload: message.payload.as_bytes(),
                properties: of_will.as_properties(),
            }),
            username: self.username.as_deref(),
            password: None,
            properties: properties.as_properties(),
        };
        Packet::Connect(connect).encode(self.version, out)
    }
}

trait Extend {
    fn extend<const N: usize>(&mut self, properties: [Option<Property<'_>>; N]);
}

impl Extend for PropertiesBuf {
    fn extend<const N: usize>(&mut self, properties: [Option<Property<'_>>; N]) {
        for property in properties.into_iter().flatten() {
            assert!(self.push(property));
        }
    }
}

/// Makes a QoS 0 message.
pub fn message(topic: &str, payload: impl ToString) -> Message {
    Message { topic: topic.into(), payload: payload.to_string(), ..Message::default() }
}

impl Message {
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    pub fn qos1(mut self, packet_id: u16) -> Self {
        (self.qos, self.packet_id) = (QoS::AtLeastOnce, Some(packet_id));
        self
    }

    pub fn qos2(mut self, packet_id: u16) -> Self {
        (self.qos, self.packet_id) = (QoS::ExactlyOnce, Some(packet_id));
        self
    }

    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub fn dup(mut self) -> Self {
        self.dup = true;
        self
    }

    pub fn expiry(mut self, seconds: u32) -> Self {
        self.expiry = Some(seconds);
        self
    }

    pub fn from_cluster(mut self, origin: &str) -> Self {
        self.origin = Some(origin.into());
        self
    }

    pub fn for_group(mut self, group: &str) -> Self {
        self.group = Some(group.into());
        self
    }

    pub fn ids(mut self, ids: &[u32]) -> Self {
        self.subscription_ids = ids.into();
        self
    }
}

impl From<Message> for Sent {
    fn from(message: Message) -> Self {
        Sent::Publish(Box::new(message))
    }
}

/// Makes a SUBSCRIBE without filters.
pub fn subscribe(packet_id: u16) -> Subscribing {
    Subscribing { packet_id, filters: Vec::new(), identifier: None, level: None }
}

impl Subscribing {
    pub fn to(self, filter: &str, qos: QoS) -> Self {
        self.with(filter, SubscriptionOptions { qos, ..SubscriptionOptions::default() })
    }

    pub fn with(mut self, filter: &str, options: SubscriptionOptions) -> Self {
        self.filters.push((filter.into(), options));
        self
    }

    /// Adds a filter at QoS 2 with this Retain Handling.
    pub fn retain_handling(self, filter: &str, retain_handling: RetainHandling) -> Self {
        let qos = QoS::ExactlyOnce;
        self.with(filter, SubscriptionOptions { qos, retain_handling, ..SubscriptionOptions::default() })
    }

    /// Requests a level of SUBACK, in 5.0.
    pub fn level(mut self, level: &'static str) -> Self {
        self.level = Some(level);
        self
    }

    pub fn identifier(mut self, identifier: u32) -> Self {
        self.identifier = Some(identifier);
        self
    }
}

impl From<Subscribing> for Sent {
    fn from(subscribing: Subscribing) -> Self {
        Sent::Subscribe(Box::new(subscribing))
    }
}

impl From<Connecting> for Sent {
    fn from(connecting: Connecting) -> Self {
        Sent::Connect(Box::new(connecting))
    }
}

pub fn connack(session_present: bool) -> Sent {
    Sent::ConnAck { session_present, reason: ReasonCode::Success }
}

pub fn refused(reason: ReasonCode) -> Sent {
    Sent::ConnAck { session_present: false, reason }
}

pub fn puback(id: u16) -> Sent {
    Sent::PubAck(id, ReasonCode::Success)
}

pub fn pubrec(id: u16) -> Sent {
    Sent::PubRec(id, ReasonCode::Success)
}

pub fn pubrel(id: u16) -> Sent {
    Sent::PubRel(id, ReasonCode::Success)
}

pub fn pubcomp(id: u16) -> Sent {
    Sent::PubComp(id, ReasonCode::Success)
}

pub fn suback(id: u16, granted: &[QoS]) -> Sent {
    let reasons = granted.iter().map(|qos| match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    });
    Sent::SubAck(id, reasons.collect())
}

pub fn unsubscribe(id: u16, filters: &[&str]) -> Sent {
    Sent::Unsubscribe(id, filters.iter().map(|filter| (*filter).to_owned()).collect())
}

/// Makes an UNSUBACK. MQTT 3.1.1 has no Reason Codes in it.
pub fn unsuback(version: Version, id: u16, reasons: &[ReasonCode]) -> Sent {
    Sent::UnsubAck(id, if version == Version::V5 { reasons.into() } else { Vec::new() })
}

pub fn disconnect(reason: ReasonCode) -> Sent {
    Sent::Disconnect { reason, expiry: None }
}

/// Makes a DISCONNECT with the reason Success.
pub fn goodbye() -> Sent {
    disconnect(ReasonCode::Success)
}

fn id(value: u16) -> PacketId {
    PacketId::new(value).expect("a Packet Identifier is not 0")
}

impl Sent {
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let ack = |packet_id, reason| Ack { packet_id: id(packet_id), reason, properties: Properties::EMPTY };
        let written = match self {
            Sent::Connect(connecting) => connecting.encode(out),
            Sent::Publish(message) => message.encode(version, out),
            Sent::PubAck(id, reason) => Packet::PubAck(ack(*id, *reason)).encode(version, out),
            Sent::PubRec(id, reason) => Packet::PubRec(ack(*id, *reason)).encode(version, out),
            Sent::PubRel(id, reason) => Packet::PubRel(ack(*id, *reason)).encode(version, out),
            Sent::PubComp(id, reason) => Packet::PubComp(ack(*id, *reason)).encode(version, out),
            Sent::Subscribe(subscribing) => subscribing.encode(version, out),
            Sent::Unsubscribe(packet_id, texts) => {
                let mut filters = UnsubscribeFiltersBuf::default();
                for text in texts {
                    filters.push(text);
                }
                let (packet_id, filters) = (id(*packet_id), filters.as_filters());
                let unsubscribe = Unsubscribe { packet_id, properties: Properties::EMPTY, filters };
                Packet::Unsubscribe(unsubscribe).encode(version, out)
            }
            Sent::PingReq => Packet::PingReq.encode(version, out),
            Sent::Disconnect { reason, expiry } => {
                let properties: PropertiesBuf =
                    expiry.iter().map(|seconds| Property::SessionExpiryInterval(*seconds)).collect();
                let properties = properties.as_properties();
                Packet::Disconnect(Disconnect { reason: *reason, properties }).encode(version, out)
            }
            Sent::ConnAck { .. } | Sent::SubAck(..) | Sent::UnsubAck(..) | Sent::PingResp | Sent::Closed => {
                false
            }
        };
        assert!(written, "a client cannot send {self:?} in {version:?}");
    }

    /// Converts a packet from the server.
    pub fn from_server(packet: &Packet<'_>) -> Self {
        let reasons = |ack: &SubAck<'_>| {
            let reason = |byte: &u8| ReasonCode::try_from(*byte).expect("a known Reason Code");
            ack.reasons.iter().map(reason).collect()
        };
        match packet {
            Packet::ConnAck(ack) => {
                Sent::ConnAck { session_present: ack.session_present, reason: ack.reason }
            }
            Packet::Publish(publish) => Message::of(publish).into(),
            Packet::PubAck(ack) => Sent::PubAck(ack.packet_id.get(), ack.reason),
            Packet::PubRec(ack) => Sent::PubRec(ack.packet_id.get(), ack.reason),
            Packet::PubRel(ack) => Sent::PubRel(ack.packet_id.get(), ack.reason),
            Packet::PubComp(ack) => Sent::PubComp(ack.packet_id.get(), ack.reason),
            Packet::SubAck(ack) => Sent::SubAck(ack.packet_id.get(), reasons(ack)),
            Packet::UnsubAck(ack) => Sent::UnsubAck(ack.packet_id.get(), reasons(ack)),
            Packet::PingResp => Sent::PingResp,
            Packet::Disconnect(disconnect) => Sent::Disconnect {
                reason: disconnect.reason,
                expiry: disconnect.properties.session_expiry_interval(),
            },
            Packet::Connect(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::PingReq
            | Packet::Auth(_) => panic!("a server does not send {packet:?}"),
        }
    }
}

impl Message {
    fn of(publish: &Publish<'_>) -> Self {
        let properties = publish.properties;
        let ids = properties.iter().filter_map(|property| match property {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        });
        Message {
            topic: publish.topic.into(),
            payload: str::from_utf8(publish.payload)
                .map_or_else(|_| String::from_utf8_lossy(publish.payload).into_owned(), str::to_owned),
            qos: publish.qos,
            retain: publish.retain,
            dup: publish.dup,
            packet_id: publish.packet_id.map(PacketId::get),
            expiry: properties.message_expiry_interval(),
            content_type: properties.iter().find_map(|property| match property {
                Property::ContentType(text) => Some(text.to_owned()),
                _ => None,
            }),
            subscription_ids: ids.collect(),
            alias: properties.topic_alias(),
            origin: properties
                .user_properties()
                .find(|(name, _)| *name == ORIGIN)
                .map(|(_, origin)| origin.to_owned()),
            group: properties
                .user_properties()
                .filter(|(name, _)| *name == GROUP)
                .last()
                .map(|(_, group)| group.to_owned()),
        }
    }

    fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let mut properties = PropertiesBuf::default();
        properties.extend([
            self.expiry.map(Property::MessageExpiryInterval),
            self.content_type.as_deref().map(Property::ContentType),
            self.alias.map(Property::TopicAlias),
            self.origin.as_deref().map(|origin| Property::UserProperty(ORIGIN, origin)),
            self.group.as_deref().map(|group| Property::UserProperty(GROUP, group)),
        ]);
        let publish = Publish {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: self.packet_id.map(id),
            properties: properties.as_properties(),
            payload: self.payload.as_bytes(),
        };
        Packet::Publish(publish).encode(version, out)
    }
}

impl Subscribing {
    fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let mut filters = SubscribeFiltersBuf::default();
        for (filter, options) in &self.filters {
            filters.push(filter, *options);
        }
        let identifier = self.identifier.map(Property::SubscriptionIdentifier);
        let level = self.level.map(|level| Property::UserProperty("suback", level));
        let properties: PropertiesBuf = identifier.into_iter().chain(level).collect();
        let subscribe = Subscribe {
            packet_id: id(self.packet_id),
            properties: properties.as_properties(),
            filters: filters.as_filters(),
        };
        Packet::Subscribe(subscribe).encode(version, out)
    }
}
