//! A client with a durable session, which publishes to itself.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{self, Sent};

use crate::context::Context;
use crate::net::Link;

/// A client, and what it is owed.
pub struct Client {
    name: String,
    pub connection: Option<Connection>,
    /// True if the node has confirmed the session.
    has_session: bool,
    /// True if the subscription was confirmed.
    is_subscribed: bool,
    /// Messages without PUBACK or PUBCOMP, by Packet Identifier.
    unacknowledged: BTreeMap<u16, Published>,
    published: u64,
    acknowledged: BTreeSet<u64>,
    /// Messages that were received, each once.
    received: BTreeSet<u64>,
    /// Latest message that was received first.
    latest: u64,
    /// Messages of QoS 2 between PUBLISH and PUBREL.
    unreleased: BTreeMap<u16, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Published {
    number: u64,
    qos: QoS,
    /// PUBREC has arrived.
    is_received: bool,
}

pub struct Connection {
    pub link: Link,
    endpoint: Endpoint,
    is_open: bool,
}

/// Maximum number of messages that a client has in flight.
const WINDOW: usize = 5;

impl Client {
    pub fn new(number: usize) -> Self {
        let name = format!("client-{number}");
        Self {
            name,
            connection: None,
            has_session: false,
            is_subscribed: false,
            unacknowledged: BTreeMap::new(),
            published: 0,
            acknowledged: BTreeSet::new(),
            received: BTreeSet::new(),
            latest: 0,
            unreleased: BTreeMap::new(),
        }
    }

    fn topic(&self) -> String {
        format!("to/{}", self.name)
    }

    /// Begins a connection. Returns the bytes to send.
    pub fn connect(&mut self, link: Link) -> Vec<u8> {
        let mut endpoint = Endpoint::new(Version::V5);
        let mut bytes = Vec::new();
        let connect = packets::durable(Version::V5, &self.name).receive_max(3);
        endpoint.write(&Sent::Connect(Box::new(connect)), &mut bytes);
        self.connection = Some(Connection { link, endpoint, is_open: false });
        bytes
    }

    /// Ends the connection.
    pub fn disconnected(&mut self) {
        self.connection = None;
    }

    /// Publishes something, if the client may. Returns the bytes to send.
    pub fn publish(&mut self, cx: &mut Context) -> Vec<u8> {
        let mut bytes = Vec::new();
        let may = self.connection.as_ref().is_some_and(|connection| connection.is_open);
        if !may || !self.is_subscribed || self.unacknowledged.len() >= WINDOW {
            return bytes;
        }
        self.published += 1;
        let qos = if cx.random.percent(50) { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let ids = (1..).find(|id| !self.unacknowledged.contains_key(id));
        let published = Published { number: self.published, qos, is_received: false };
        self.unacknowledged.insert(ids.unwrap_or(1), published);
        cx.log(|| format!("{} publishes {published:?} as {ids:?}", self.name));
        let message = self.message(ids.unwrap_or(1), published, false);
        self.write(&message, &mut bytes);
        bytes
    }

    fn message(&self, id: u16, published: Published, dup: bool) -> Sent {
        // Padding, so that segments of the log become full.
        let payload = format!("{} {}", published.number, ".".repeat(published.number as usize * 37 % 600));
        let message = packets::message(&self.topic(), payload);
        let message = if published.qos == QoS::ExactlyOnce { message.qos2(id) } else { message.qos1(id) };
        Sent::Publish(Box::new(if dup { message.dup() } else { message }))
    }

    fn write(&mut self, packet: &Sent, bytes: &mut Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            connection.endpoint.write(packet, bytes);
        }
    }

    /// Handles received bytes, and returns the answers.
    pub fn read(&mut self, cx: &mut Context, bytes: &[u8]) -> Vec<u8> {
        let Some(connection) = &mut self.connection else { return Vec::new() };
        connection.endpoint.read(bytes);
        let mut answers = Vec::new();
        while let Some(packet) = self.connection.as_mut().and_then(|connection| connection.endpoint.pop()) {
            cx.log(|| format!("{} gets {}", self.name, crate::scene::brief(&packet)));
            self.handle(cx, packet, &mut answers);
        }
        answers
    }

    fn handle(&mut self, cx: &mut Context, packet: Sent, answers: &mut Vec<u8>) {
        match packet {
            Sent::ConnAck { session_present, reason } => {
                if reason == ReasonCode::UnspecifiedError {
                    // Its Claim came again after a later one.
                    cx.report.agreed_overtaken += 1;
                    return;
                }
                assert_eq!(reason, ReasonCode::Success, "{}: nobody refuses it", self.name);
                assert!(session_present || !self.has_session, "{}: the session is lost", self.name);
                cx.report.agreed_resumed += u64::from(session_present);
                self.has_session = true;
                if let Some(connection) = &mut self.connection {
                    connection.is_open = true;
                }
                if !self.is_subscribed {
                    let subscribe = packets::subscribe(60_000).to(&self.topic(), QoS::ExactlyOnce);
                    self.write(&Sent::Subscribe(Box::new(subscribe)), answers);
                }
                // In the order in which they were sent first [MQTT-4.6.0-1].
                let mut again: Vec<_> = self.unacknowledged.clone().into_iter().collect();
                again.sort_by_key(|(_, published)| published.number);
                for (id, published) in again {
                    let packet = match published.is_received {
                        true => Sent::PubRel(id, ReasonCode::Success),
                        false => self.message(id, published, true),
                    };
                    self.write(&packet, answers);
                }
            }
            Sent::SubAck(_, reasons) => {
                assert_eq!(reasons, [ReasonCode::GrantedQoS2]);
                self.is_subscribed = true;
            }
            Sent::Publish(message) => self.received(cx, &message, answers),
            Sent::PubAck(id, reason) => self.acknowledged(cx, id, reason),
            Sent::PubRec(id, reason) if reason.is_error() => self.acknowledged(cx, id, reason),
            Sent::PubRec(id, _) => {
                if let Some(published) = self.unacknowledged.get_mut(&id) {
                    published.is_received = true;
                }
                self.write(&Sent::PubRel(id, ReasonCode::Success), answers);
            }
            Sent::PubComp(id, reason) => self.acknowledged(cx, id, reason),
            Sent::PubRel(id, _) => {
                self.unreleased.remove(&id);
                self.write(&Sent::PubComp(id, ReasonCode::Success), answers);
            }
            Sent::Disconnect { .. } => {}
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn received(&mut self, cx: &mut Context, message: &packets::Message, answers: &mut Vec<u8>) {
        let number: u64 = message.payload.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        assert!(number > 0 && number <= self.published, "{}: nobody published {number}", self.name);
        let id = message.packet_id.unwrap_or_default();
        if message.qos == QoS::ExactlyOnce {
            let is_again = self.unreleased.insert(id, number) == Some(number);
            assert!(
                is_again || self.received.insert(number),
                "{}: message {number} of QoS 2 came twice",
                self.name
            );
            self.write(&Sent::PubRec(id, ReasonCode::Success), answers);
        } else {
            self.received.insert(number);
            self.write(&Sent::PubAck(id, ReasonCode::Success), answers);
        }
        // Messages of QoS 1 and 2 of one topic stay in order; those that come again do not count [MQTT-4.6.0-5].
        if number > self.latest {
            self.latest = number;
        } else {
            cx.report.agreed_again += 1;
        }
        cx.report.agreed_delivered += 1;
    }

    fn acknowledged(&mut self, cx: &mut Context, id: u16, reason: ReasonCode) {
        let Some(published) = self.unacknowledged.remove(&id) else { return };
        assert_ne!(reason, ReasonCode::NoMatchingSubscribers, "{}: it is subscribed", self.name);
        if !reason.is_error() {
            self.acknowledged.insert(published.number);
            cx.report.agreed_acknowledged += 1;
        }
    }

    /// Returns whether nothing is under way.
    pub fn is_settled(&self) -> bool {
        self.unacknowledged.is_empty()
            && self.unreleased.is_empty()
            && self.acknowledged.is_subset(&self.received)
    }

    /// Checks that everything has come that was acknowledged.
    pub fn check(&self) {
        let missing: Vec<_> = self.acknowledged.difference(&self.received).collect();
        assert!(missing.is_empty(), "{}: lost {missing:?}", self.name);
        assert!(self.is_settled(), "{}: {:?} {:?}", self.name, self.unacknowledged, self.unreleased);
    }
}
