//! A small broker with the durable session of one bridge, for tests. It asserts the rules that a client has to keep.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::{
    Ack, ConnAck, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode, SubAck,
    TopicFilter, TopicName, Version, connect_version, decode, frame,
};
use random::Random;

use super::report::Report;

/// Limits of a broker.
#[derive(Clone, Debug)]
pub struct Caps {
    pub receive_maximum: u16,
    pub maximum_qos: QoS,
    pub packet_size_max: u32,
    /// Maximum number of unacknowledged messages to the client, whatever it accepts.
    pub in_flight: usize,
    /// Highest Packet Identifier that it uses: a low one means that identifiers are used again soon.
    pub ids_max: u16,
    /// False for a broker before 5.0 that does not know the bridge bit.
    pub knows_bridges: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub qos: QoS,
    pub number: u32,
    /// Bytes of padding after the number.
    pub padding: usize,
}

impl Message {
    /// Cluster that the message says it comes from.
    pub fn origin(&self) -> Option<&'static str> {
        match self.topic.rsplit('/').next() {
            Some("mine") => Some("own"),
            Some("theirs") => Some("third"),
            Some("far") => Some("far"),
            _ => None,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut payload = format!("{}:{}:", self.number, self.qos as u8).into_bytes();
        payload.resize(payload.len() + self.padding, b'x');
        payload
    }
}

/// A message that the bridge has published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub topic: String,
    pub number: u32,
    pub qos: QoS,
}

#[derive(Debug, Default)]
struct Session {
    filters: BTreeMap<String, QoS>,
    queue: VecDeque<Message>,
    in_flight: Vec<Delivery>,
    last_id: u16,
    /// Identifiers of QoS 2 messages from the client that were not released.
    received: BTreeSet<u16>,
}

#[derive(Debug)]
struct Delivery {
    id: u16,
    message: Message,
    is_received: bool,
    was_sent: bool,
    /// The PUBLISH or PUBREL was sent on this connection.
    is_sent: bool,
    is_counted: bool,
}

#[derive(Debug)]
struct Connection {
    version: Version,
    excludes_own: bool,
    clean: bool,
    receive_maximum: usize,
    packet_size_max: usize,
    unread: Vec<u8>,
    /// Acknowledgements that are sent later.
    delayed: VecDeque<(Packet<'static>, u16)>,
    /// Identifiers of messages from the client that count against Receive Maximum.
    open: BTreeSet<u16>,
    is_connected: bool,
    counted: usize,
    /// The session was created on this connection, and the client may not know it.
    is_unknown: bool,
}

#[derive(Debug)]
pub struct Broker {
    pub name: &'static str,
    pub caps: Caps,
    session: Option<Session>,
    connection: Option<Connection>,
    /// Bytes to the client.
    pub unsent: Vec<u8>,
    pub accepted: Vec<Accepted>,
    /// Last retained state message of the bridge.
    pub state: Option<String>,
    will: Option<(String, String)>,
    pub sessions_created: u32,
    /// Percentage of questions for the list of subscriptions that get no answer.
    pub unlisted: usize,
    /// False while filters that begin with `many/` are not exported: a CONNECT removes them from the session.
    pub exports_many: bool,
    /// Origin that each message of the bridge must have.
    pub origin: Option<&'static str>,
    /// Reason for which all messages are refused now, in MQTT 5.0.
    pub refuses: Option<ReasonCode>,
    /// Messages that were refused for this reason at least once.
    pub refused: BTreeSet<u32>,
}

const LIST: &str = "$link/own/list";
const ANSWERS: &str = "$link/own/filters";
/// Beginning of the filters that are not always exported.
const MANY: &str = "many/";

fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).expect("not 0")
}

fn ack(id: u16, reason: ReasonCode) -> Ack<'static> {
    Ack { packet_id: packet_id(id), reason, properties: Properties::EMPTY }
}

impl Broker {
    pub fn new(name: &'static str, caps: Caps) -> Self {
        Self {
            name,
            caps,
            session: None,
            connection: None,
            unsent: Vec::new(),
            accepted: Vec::new(),
            state: None,
            will: None,
            sessions_created: 0,
            unlisted: 0,
            exports_many: true,
            origin: None,
            refuses: None,
            refused: BTreeSet::new(),
        }
    }

    /// Accepts a transport connection. It replaces an earlier one.
    pub fn open(&mut self) {
        self.close();
        self.connection = Some(Connection {
            version: Version::V5,
            excludes_own: false,
            clean: false,
            receive_maximum: 65_535,
            packet_size_max: usize::MAX,
            unread: Vec::new(),
            delayed: VecDeque::new(),
            open: BTreeSet::new(),
            is_connected: false,
            counted: 0,
            is_unknown: false,
        });
    }

    /// Handles the end of the transport connection.
    pub fn close(&mut self) {
        self.unsent.clear();
        if let Some(connection) = self.connection.take() {
            if let Some((_, payload)) = self.will.take() {
                self.state = Some(payload);
            }
            // A client that never gets the CONNACK of a new session takes the session for the earlier one when it
            // connects again. MQTT has no remedy for that, so this broker has none of these cases.
            if connection.clean || connection.is_unknown {
                self.session = None;
            }
        }
    }

    /// Filters of the subscriptions of the session, without that of the list.
    pub fn filters(&self) -> BTreeSet<String> {
        let filters = self.session.iter().flat_map(|session| session.filters.keys());
        filters.filter(|filter| *filter != ANSWERS).cloned().collect()
    }

    /// Returns whether the client may subscribe to a filter.
    pub fn exports(&self, filter: &str) -> bool {
        self.exports_many || !filter.starts_with(MANY)
    }

    pub fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Discards the session. Returns the messages that were in it: those that wait, and those in flight.
    pub fn lose_session(&mut self) -> Vec<Message> {
        self.close();
        let Some(session) = self.session.take() else { return Vec::new() };
        let in_flight = session.in_flight.into_iter().map(|delivery| delivery.message);
        in_flight.chain(session.queue).collect()
    }

    /// Messages to the client that were sent and are not complete.
    pub fn incomplete(&self) -> Vec<u32> {
        let session = self.session.iter();
        session.flat_map(|session| session.in_flight.iter().map(|it| it.message.number)).collect()
    }

    /// Describes what is not complete.
    pub fn summary(&self) -> String {
        let Self { session, connection, .. } = self;
        format!("{}: {session:?} {connection:?} {} bytes unsent", self.name, self.unsent.len())
    }

    pub fn is_quiet(&self) -> bool {
        let session = self.session.as_ref().is_none_or(|session| {
            session.queue.is_empty() && session.in_flight.is_empty() && session.received.is_empty()
        });
        session && self.unsent.is_empty() && self.connection.as_ref().is_none_or(|it| it.delayed.is_empty())
    }

    /// Publishes a message of another client. Returns whether the bridge's session gets it.
    pub fn publish(&mut self, message: Message) -> bool {
        let is_online = self.connection.as_ref().is_some_and(|connection| connection.is_connected);
        let Some(session) = &mut self.session else { return false };
        let topic = TopicName::parse(&message.topic).expect("a Topic Name");
        let matches = |filter: &str| TopicFilter::parse(filter).expect("a filter").matches(topic);
        let granted = session.filters.iter().filter(|(filter, _)| matches(filter)).map(|(_, qos)| *qos).max();
        let Some(granted) = granted else { return false };
        let qos = message.qos.min(granted);
        if qos == QoS::AtMostOnce && !is_online {
            return false;
        }
        session.queue.push_back(Message { qos, ..message });
        true
    }

    /// Handles bytes from the client.
    pub fn receive(&mut self, random: &mut Random, report: &mut Report, bytes: &[u8]) {
        let Some(connection) = &mut self.connection else { return };
        connection.unread.extend_from_slice(bytes);
        loop {
            let Some(connection) = &mut self.connection else { return };
            let length =
                frame(&connection.unread, self.caps.packet_size_max).expect("a packet that is allowed");
            let Some(length) = length.filter(|length| *length <= connection.unread.len()) else { return };
            let packet: Vec<u8> = connection.unread.drain(..length).collect();
            if !connection.is_connected {
                connection.version = connect_version(&packet).expect("a CONNECT");
            }
            let packet = decode(connection.version, &packet).expect("the relay sends valid packets");
            self.handle(random, report, &packet);
        }
    }

    fn handle(&mut self, random: &mut Random, report: &mut Report, packet: &Packet<'_>) {
        if let Packet::Connect(connect) = packet {
            return self.connect(report, connect);
        }
        let connection = self.connection.as_mut().expect("a connection");
        assert!(connection.is_connected, "{packet:?} before CONNECT");
        let version = connection.version;
        connection.is_unknown = false;
        match packet {
            Packet::Publish(publish) if publish.topic == LIST => {
                let session = self.session.as_mut().expect("a session");
                if !session.filters.contains_key(ANSWERS) {
                    panic!("a list was asked for, and no answer can arrive");
                }
                if random.below(100) < self.unlisted {
                    report.add("list not answered");
                    return;
                }
                report.add("list answered");
                let from: usize =
                    std::str::from_utf8(publish.payload).expect("text").parse().expect("a number");
                let mut page = format!("{from} {}", session.filters.len());
                for filter in session.filters.keys().skip(from).take(1 + random.below(4)) {
                    page = format!("{page}\n{filter}");
                }
                let answer = Publish {
                    dup: false,
                    qos: QoS::AtMostOnce,
                    retain: false,
                    topic: ANSWERS,
                    packet_id: None,
                    properties: Properties::EMPTY,
                    payload: page.as_bytes(),
                };
                assert!(Packet::Publish(answer).encode(version, &mut self.unsent));
            }
            Packet::Publish(publish) => self.published(report, publish),
            Packet::PubAck(ack) => self.acknowledged(ack, QoS::AtLeastOnce),
            Packet::PubRec(ack) if ack.reason.is_error() => self.acknowledged(ack, QoS::ExactlyOnce),
            Packet::PubRec(ack) => {
                let session = self.session.as_mut().expect("a session");
                let delivery = session
                    .in_flight
                    .iter_mut()
                    .find(|it| it.id == ack.packet_id.get())
                    .expect("PUBREC for a message");
                assert!(delivery.is_sent && delivery.message.qos == QoS::ExactlyOnce, "{delivery:?}");
                delivery.is_received = true;
                let pubrel = Packet::PubRel(self::ack(delivery.id, ReasonCode::Success));
                assert!(pubrel.encode(version, &mut self.unsent));
            }
            Packet::PubComp(ack) => self.acknowledged(ack, QoS::ExactlyOnce),
            Packet::PubRel(ack) => {
                assert!(self.caps.maximum_qos == QoS::ExactlyOnce, "PUBREL to a broker without QoS 2");
                let id = ack.packet_id.get();
                let is_known = self.session.as_mut().expect("a session").received.remove(&id);
                report.add(if is_known { "pubrel" } else { "pubrel for an unknown identifier" });
                let reason =
                    if is_known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
                connection.delayed.push_back((Packet::PubComp(self::ack(id, reason)), id));
            }
            Packet::Subscribe(subscribe) => {
                let exports_many = self.exports_many;
                let is_exported = |filter: &str| exports_many || !filter.starts_with(MANY);
                let session = self.session.as_mut().expect("a session");
                let id = subscribe.packet_id;
                let in_use = version == Version::V5 && random.percent(10);
                let mut reasons = Vec::new();
                for (filter, options) in subscribe.filters.iter() {
                    // A shared subscription cannot have No Local [MQTT-3.8.3-4].
                    let is_shared = filter.starts_with("$share/");
                    let is_exact = options.no_local != is_shared && options.retain_as_published;
                    assert!(version != Version::V5 || is_exact, "{filter} {options:?}");
                    if in_use {
                        report.add("identifier of a subscription in use");
                        reasons.push(ReasonCode::PacketIdentifierInUse.as_u8());
                    } else if filter.contains("forbidden") || !is_exported(filter) {
                        report.add("subscription refused");
                        reasons.push(ReasonCode::NotAuthorized.as_u8());
                    } else {
                        session.filters.insert(filter.to_owned(), options.qos);
                        reasons.push(options.qos as u8);
                    }
                }
                let ack = SubAck { packet_id: id, properties: Properties::EMPTY, reasons: &reasons };
                assert!(Packet::SubAck(ack).encode(version, &mut self.unsent));
            }
            Packet::Unsubscribe(unsubscribe) => {
                let session = self.session.as_mut().expect("a session");
                let known = |filter: &str| {
                    assert!(!filter.starts_with("always"), "it was wanted all the time");
                    if session.filters.remove(filter).is_some() { 0 } else { 0x11 }
                };
                let reasons: Vec<u8> = unsubscribe.filters.iter().map(known).collect();
                let (packet_id, properties) = (unsubscribe.packet_id, Properties::EMPTY);
                let ack = SubAck { packet_id, properties, reasons: &reasons };
                assert!(Packet::UnsubAck(ack).encode(version, &mut self.unsent));
            }
            Packet::PingReq => assert!(Packet::PingResp.encode(version, &mut self.unsent)),
            Packet::Disconnect(disconnect) => {
                assert_eq!(disconnect.reason, ReasonCode::Success);
                self.will = None;
                self.close();
            }
            _ => panic!("a client does not send {packet:?}"),
        }
    }

    fn connect(&mut self, report: &mut Report, connect: &mqtt::Connect<'_>) {
        let connection = self.connection.as_mut().expect("a connection");
        if connect.bridge && !self.caps.knows_bridges {
            report.add("bridge bit refused");
            let reason = ReasonCode::UnsupportedProtocolVersion;
            let refusal = ConnAck { session_present: false, reason, properties: Properties::EMPTY };
            assert!(Packet::ConnAck(refusal).encode(connect.version, &mut self.unsent));
            return;
        }
        if connect.clean_start {
            self.session = None;
        }
        let session_present = self.session.is_some();
        self.sessions_created += u32::from(!session_present);
        let session = self.session.get_or_insert_default();
        if !self.exports_many {
            session.filters.retain(|filter, _| !filter.starts_with(MANY));
        }
        for delivery in &mut session.in_flight {
            (delivery.is_sent, delivery.is_counted) = (false, false);
        }
        connection.is_unknown = !session_present;
        connection.is_connected = true;
        connection.version = connect.version;
        connection.excludes_own = connect.bridge || connect.version == Version::V5;
        connection.clean = connect.session_expiry() == 0;
        connection.receive_maximum = connect.receive_maximum().map_or(65_535, usize::from);
        connection.packet_size_max = connect.maximum_packet_size() as usize;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        self.will = connect.will.map(|will| (will.topic.to_owned(), text(will.payload)));
        let maximum_qos = (self.caps.maximum_qos < QoS::ExactlyOnce)
            .then_some(Property::MaximumQoS(self.caps.maximum_qos as u8));
        let mut properties = PropertiesBuf::from_iter([
            Property::ReceiveMaximum(self.caps.receive_maximum),
            Property::MaximumPacketSize(self.caps.packet_size_max),
            Property::UserProperty("meridian-export", if self.exports_many { "all" } else { "few" }),
        ]);
        if let Some(maximum_qos) = maximum_qos {
            properties.push(maximum_qos);
        }
        let properties = properties.as_properties();
        let answer = ConnAck { session_present, reason: ReasonCode::Success, properties };
        assert!(Packet::ConnAck(answer).encode(connect.version, &mut self.unsent));
    }

    fn published(&mut self, report: &mut Report, publish: &Publish<'_>) {
        let connection = self.connection.as_mut().expect("a connection");
        let session = self.session.as_mut().expect("a session");
        let for_good = publish.topic.ends_with("/refused").then_some(ReasonCode::NotAuthorized);
        // A message that this broker has is not refused any more [MQTT-4.3.3-10].
        let is_known = publish.packet_id.is_some_and(|id| session.received.contains(&id.get()));
        let can_refuse = connection.version == Version::V5 && !is_known;
        let refusal = self.refuses.or(for_good).filter(|_| can_refuse);
        let refuses = refusal.is_some();
        assert!(publish.qos <= self.caps.maximum_qos);
        if publish.dup {
            report.add("publish again");
        }
        if publish.topic == "state" {
            assert!(publish.retain && publish.qos == QoS::AtMostOnce);
            self.state = Some(String::from_utf8_lossy(publish.payload).into_owned());
            return;
        }
        if let Some(expected) = self.origin {
            let origins = publish.properties.user_properties().filter(|(name, _)| *name == bridge::ORIGIN);
            assert!(origins.map(|(_, origin)| origin).eq([expected]), "origin of {publish:?}");
        }
        let is_new = match (publish.qos, publish.packet_id.map(PacketId::get)) {
            (QoS::AtMostOnce, _) => true,
            (qos, id) => {
                let id = id.expect("a Packet Identifier");
                assert!(connection.open.insert(id), "{}: identifier {id} is in use", self.name); // [MQTT-2.2.1-3]
                let limit = usize::from(self.caps.receive_maximum);
                let is_limited = connection.version == Version::V5;
                assert!(!is_limited || connection.open.len() <= limit, "{}: Receive Maximum", self.name);
                if is_limited && connection.open.len() == limit {
                    report.add("receive maximum reached");
                }
                let reason = refusal.unwrap_or(ReasonCode::Success);
                let (is_new, answer) = if qos == QoS::AtLeastOnce {
                    (true, Packet::PubAck(ack(id, reason)))
                } else {
                    (refuses || session.received.insert(id), Packet::PubRec(ack(id, reason)))
                };
                connection.delayed.push_back((answer, id));
                is_new
            }
        };
        let text = std::str::from_utf8(publish.payload).expect("text");
        let number = text.split(':').next().and_then(|part| part.parse().ok()).expect("a number");
        if refusal == self.refuses && refuses {
            report.add("refused for now");
            self.refused.insert(number);
        } else if refuses {
            report.add("refused");
        } else if is_new {
            let topic = publish.topic.to_owned();
            self.accepted.push(Accepted { topic: topic.clone(), number, qos: publish.qos });
            if !connection.excludes_own {
                let echo = Message { topic, qos: publish.qos, number, padding: 0 };
                self.publish(echo);
            }
        } else {
            report.add("duplicate ignored");
        }
    }

    /// Completes a delivery.
    fn acknowledged(&mut self, ack: &Ack<'_>, qos: QoS) {
        let session = self.session.as_mut().expect("a session");
        let id = ack.packet_id.get();
        let at = session.in_flight.iter().position(|it| it.id == id);
        let Some(at) = at else { panic!("{}: acknowledgement of {id}, which is not in flight", self.name) };
        let delivery = session.in_flight.remove(at);
        assert!(delivery.is_sent && delivery.message.qos == qos, "{delivery:?}");
        let connection = self.connection.as_mut().expect("a connection");
        connection.counted -= usize::from(delivery.is_counted);
    }

    /// Sends a random number of acknowledgements and messages.
    pub fn work(&mut self, random: &mut Random, report: &mut Report, is_calm: bool) {
        let Some(connection) = self.connection.as_mut().filter(|it| it.is_connected) else { return };
        let Some(session) = &mut self.session else { return };
        let version = connection.version;
        let count = if is_calm { usize::MAX } else { random.below(4) };
        for _ in 0..count.min(connection.delayed.len()) {
            let Some((packet, id)) = connection.delayed.pop_front() else { break };
            let ends = match &packet {
                Packet::PubRec(ack) => ack.reason.is_error(),
                _ => true,
            };
            if ends {
                connection.open.remove(&id);
            }
            assert!(packet.encode(version, &mut self.unsent));
        }
        let mut budget = if is_calm { 100 } else { random.below(6) };
        for delivery in session.in_flight.iter_mut().filter(|it| !it.is_sent) {
            if budget == 0 {
                return;
            }
            if delivery.is_received {
                report.add("pubrel again");
                assert!(
                    Packet::PubRel(ack(delivery.id, ReasonCode::Success)).encode(version, &mut self.unsent)
                );
            } else {
                if connection.counted >= connection.receive_maximum {
                    return;
                }
                connection.counted += 1;
                delivery.is_counted = true;
                send(
                    delivery.message.clone(),
                    Some(delivery.id),
                    delivery.was_sent,
                    version,
                    &mut self.unsent,
                );
            }
            (delivery.is_sent, delivery.was_sent) = (true, true);
            budget -= 1;
        }
        while budget > 0 {
            let Some(message) = session.queue.front() else { return };
            // A broker that knows the limit completes the message without sending it [MQTT-3.1.2-25].
            if version == Version::V5 && message.payload().len() + 100 > connection.packet_size_max {
                session.queue.pop_front();
                continue;
            }
            if message.qos > QoS::AtMostOnce {
                let is_full = connection.counted >= connection.receive_maximum
                    || session.in_flight.len() >= self.caps.in_flight.min(usize::from(self.caps.ids_max));
                if is_full {
                    return;
                }
                let mut id = session.last_id;
                loop {
                    id = id % self.caps.ids_max + 1;
                    if session.in_flight.iter().all(|it| it.id != id) {
                        break;
                    }
                }
                session.last_id = id;
                connection.counted += 1;
                send(message.clone(), Some(id), false, version, &mut self.unsent);
                session.in_flight.push(Delivery {
                    id,
                    message: message.clone(),
                    is_received: false,
                    was_sent: true,
                    is_sent: true,
                    is_counted: true,
                });
            } else {
                send(message.clone(), None, false, version, &mut self.unsent);
            }
            session.queue.pop_front();
            budget -= 1;
        }
    }
}

fn send(message: Message, id: Option<u16>, dup: bool, version: Version, out: &mut Vec<u8>) {
    let payload = message.payload();
    let properties =
        PropertiesBuf::from_iter(message.origin().map(|name| Property::UserProperty(bridge::ORIGIN, name)));
    let publish = Publish {
        dup,
        qos: message.qos,
        retain: false,
        topic: &message.topic,
        packet_id: id.map(packet_id),
        properties: properties.as_properties(),
        payload: &payload,
    };
    assert!(Packet::Publish(publish).encode(version, out));
}
