//! A client with a durable session, which publishes to itself and to others.

use std::collections::{BTreeMap, BTreeSet};

use broker::shard_of_client;
use mqtt::{QoS, ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{self, Sent};

use super::claims::Claims;
use super::ephemeral::WILLS;
use super::messages::{FAST, MessageId, Messages};
use crate::context::Context;
use crate::net::Link;
use crate::schedule::{Micros, SECOND};

/// A client, and what it is owed.
pub struct Client {
    number: usize,
    name: String,
    pub connection: Option<Connection>,
    /// True if the node has confirmed the session.
    has_session: bool,
    /// Subscriptions by topic, while they are wanted.
    subscriptions: BTreeMap<String, Subscription>,
    /// Subscriptions that have ended.
    ended: Vec<(String, Period)>,
    /// Messages without PUBACK or PUBCOMP, by Packet Identifier.
    unacknowledged: BTreeMap<u16, Published>,
    published: u64,
    /// Messages that were received, each once.
    received: BTreeSet<MessageId>,
    /// Latest message of each publisher and topic.
    latest: BTreeMap<(usize, String), u64>,
    /// Messages of QoS 2 between PUBLISH and PUBREL.
    unreleased: BTreeMap<u16, MessageId>,
}

/// State of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subscription {
    /// SUBACK has not arrived.
    Asked,
    /// SUBACK has arrived at this time.
    Granted(Micros),
    /// UNSUBACK has not arrived.
    Leaving,
}

/// Time from SUBACK until UNSUBSCRIBE was sent.
#[derive(Clone, Copy, Debug)]
struct Period {
    from: Micros,
    until: Micros,
}

#[derive(Clone, Debug)]
struct Published {
    number: u64,
    topic: String,
    qos: QoS,
    /// Time at which it was last sent.
    sent: Micros,
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
/// Number of topics to which any client may subscribe.
const ROOMS: usize = 12;
/// Maximum number of subscriptions of a client.
const SUBSCRIPTIONS: usize = 4;
/// Number of clients that share a subscription.
const TEAM: usize = 3;
/// The subscription that they share.
const SHARED: &str = "$share/team/jobs/+";
/// Number of topics of that subscription.
const JOBS: usize = 3;
/// Number of the client that gets the Wills of the devices.
pub const WILLS_READER: usize = TEAM;
/// Greatest number of clients. Others that publish have greater numbers.
const CLIENTS_MAX: usize = 1_000;
/// Message Expiry Interval, in seconds, and the time by which it may be wrong. Clocks whose speed changes by a
/// hundredth are off by a few seconds in the end.
const EXPIRY: u32 = 3_600;
const EXPIRY_TOLERANCE: u64 = 5;
/// Packet Identifier of SUBSCRIBE and UNSUBSCRIBE.
const SUBSCRIBE: u16 = 60_000;

impl Client {
    pub fn new(number: usize) -> Self {
        let name = format!("client-{number}");
        let mut subscriptions = BTreeMap::from([(topic_of(number), Subscription::Asked)]);
        if number < TEAM {
            subscriptions.insert(SHARED.to_owned(), Subscription::Asked);
        }
        if number == WILLS_READER {
            subscriptions.insert(WILLS.to_owned(), Subscription::Asked);
        }
        Self {
            number,
            name,
            connection: None,
            has_session: false,
            subscriptions,
            ended: Vec::new(),
            unacknowledged: BTreeMap::new(),
            published: 0,
            received: BTreeSet::new(),
            latest: BTreeMap::new(),
            unreleased: BTreeMap::new(),
        }
    }

    /// Begins a connection. Returns the bytes to send.
    pub fn connect(&mut self, cx: &Context, claims: &mut Claims, link: Link) -> Vec<u8> {
        claims.begin(cx.now(), link, &self.name, false, packets::DAY);
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

    /// Publishes something or changes a subscription, if the client may. Returns the bytes to send.
    pub fn act(&mut self, cx: &mut Context, messages: &mut Messages, clients: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.connection.as_ref().is_some_and(|connection| connection.is_open) {
            return bytes;
        }
        if cx.random.percent(15) {
            self.change_subscription(cx, &mut bytes);
        } else if self.unacknowledged.len() < WINDOW {
            self.publish(cx, messages, clients, &mut bytes);
        }
        bytes
    }

    fn publish(&mut self, cx: &mut Context, messages: &mut Messages, clients: usize, bytes: &mut Vec<u8>) {
        self.published += 1;
        let topic = match cx.random.below(6) {
            0..2 => topic_of(self.number),
            2 => topic_of(cx.random.below(clients)),
            3 => job(cx.random.below(JOBS)),
            _ => room(cx.random.below(ROOMS)),
        };
        // A shared group may get a message twice when a node ends.
        let may_be_exact = !topic.starts_with("jobs/") && cx.random.percent(60);
        let qos = if may_be_exact { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let ids = (1..).find(|id| !self.unacknowledged.contains_key(id));
        let published = Published { number: self.published, topic, qos, sent: cx.now(), is_received: false };
        cx.log(|| format!("{} publishes {published:?} as {ids:?}", self.name));
        messages.sent((self.number, self.published), (&published.topic, qos), cx.now());
        let message = self.message(ids.unwrap_or(1), &published, false);
        self.unacknowledged.insert(ids.unwrap_or(1), published);
        self.write(&message, bytes);
    }

    /// Subscribes to another topic, or ends a subscription. One packet at a time is on its way.
    fn change_subscription(&mut self, cx: &mut Context, bytes: &mut Vec<u8>) {
        if !self.subscriptions.values().all(|state| matches!(state, Subscription::Granted(_))) {
            return;
        }
        let topic = room(cx.random.below(ROOMS));
        match self.subscriptions.get(&topic).copied() {
            Some(Subscription::Granted(from)) => {
                self.ended.push((topic.clone(), Period { from, until: cx.now() }));
                self.subscriptions.insert(topic, Subscription::Leaving);
            }
            None if self.subscriptions.len() < SUBSCRIPTIONS => {
                self.subscriptions.insert(topic, Subscription::Asked);
            }
            _ => return,
        }
        self.ask(cx, bytes);
    }

    /// Sends the SUBSCRIBE or UNSUBSCRIBE that has no answer.
    fn ask(&mut self, cx: &mut Context, bytes: &mut Vec<u8>) {
        let open = self.subscriptions.iter().find(|(_, state)| !matches!(state, Subscription::Granted(_)));
        let Some((topic, state)) = open else { return };
        let packet = match state {
            Subscription::Asked => {
                let subscribe = packets::subscribe(SUBSCRIBE).to(topic, QoS::ExactlyOnce);
                Sent::Subscribe(Box::new(subscribe))
            }
            _ => packets::unsubscribe(SUBSCRIBE, &[topic]),
        };
        cx.log(|| format!("{} sends {}", self.name, crate::scene::brief(&packet)));
        self.write(&packet, bytes);
    }

    fn message(&self, id: u16, published: &Published, dup: bool) -> Sent {
        // Padding, so that segments of the log become full.
        let padding = ".".repeat(published.number as usize * 37 % 600);
        let payload = format!("{} {} {padding}", self.number, published.number);
        let message = packets::message(&published.topic, payload);
        let message = if published.qos == QoS::ExactlyOnce { message.qos2(id) } else { message.qos1(id) };
        let message = if expires(published.number) { message.expiry(EXPIRY) } else { message };
        Sent::Publish(Box::new(if dup { message.dup() } else { message }))
    }

    fn write(&mut self, packet: &Sent, bytes: &mut Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            connection.endpoint.write(packet, bytes);
        }
    }

    /// Handles received bytes, and returns the answers.
    pub fn read(
        &mut self,
        cx: &mut Context,
        messages: &mut Messages,
        claims: &mut Claims,
        bytes: &[u8],
    ) -> Vec<u8> {
        let Some(connection) = &mut self.connection else { return Vec::new() };
        connection.endpoint.read(bytes);
        let mut answers = Vec::new();
        while let Some(packet) = self.connection.as_mut().and_then(|connection| connection.endpoint.pop()) {
            cx.log(|| format!("{} gets {}", self.name, crate::scene::brief(&packet)));
            self.note(cx, claims, &packet);
            self.handle(cx, messages, packet, &mut answers);
        }
        answers
    }

    /// Notes what a packet says about the Claim of the connection.
    fn note(&self, cx: &Context, claims: &mut Claims, packet: &Sent) {
        let Some(Connection { link, .. }) = self.connection else { return };
        match packet {
            Sent::ConnAck { session_present, reason: ReasonCode::Success } => {
                claims.connected(cx.now(), link, *session_present);
            }
            Sent::PubAck(id, reason) | Sent::PubRec(id, reason) if !reason.is_error() => {
                if let Some(Published { sent, .. }) = self.unacknowledged.get(id) {
                    claims.served(cx.now(), link, *sent);
                }
            }
            _ => {}
        }
    }

    fn handle(&mut self, cx: &mut Context, messages: &mut Messages, packet: Sent, answers: &mut Vec<u8>) {
        match packet {
            Sent::ConnAck { session_present, reason } => {
                if reason == ReasonCode::UnspecifiedError {
                    // Its Claim came again after a later one.
                    cx.report.agreed_overtaken += 1;
                    return;
                }
                if reason == ReasonCode::ServerBusy {
                    // Other nodes have not confirmed in time that they know its subscriptions.
                    cx.report.agreed_busy += 1;
                    return;
                }
                if reason == ReasonCode::ServerUnavailable {
                    // Its shard has not answered within the time for CONNECT.
                    cx.report.agreed_unanswered += 1;
                    return;
                }
                assert_eq!(reason, ReasonCode::Success, "{}: nobody refuses it", self.name);
                assert!(session_present || !self.has_session, "{}: the session is lost", self.name);
                cx.report.agreed_resumed += u64::from(session_present);
                self.has_session = true;
                if let Some(connection) = &mut self.connection {
                    connection.is_open = true;
                }
                self.ask(cx, answers);
                // In the order in which they were sent first [MQTT-4.6.0-1].
                let mut again: Vec<_> = self.unacknowledged.clone().into_iter().collect();
                again.sort_by_key(|(_, published)| published.number);
                for (id, published) in again {
                    if let Some(published) = self.unacknowledged.get_mut(&id) {
                        published.sent = cx.now();
                    }
                    let packet = match published.is_received {
                        true => Sent::PubRel(id, ReasonCode::Success),
                        false => self.message(id, &published, true),
                    };
                    self.write(&packet, answers);
                }
            }
            Sent::SubAck(_, reasons) => {
                assert_eq!(reasons, [ReasonCode::GrantedQoS2]);
                // The first that waits was asked for last.
                let mut waiting = self.subscriptions.values_mut();
                let asked = waiting.find(|state| !matches!(state, Subscription::Granted(_)));
                let asked = asked.filter(|state| **state == Subscription::Asked);
                *asked.expect("SUBACK answers a SUBSCRIBE") = Subscription::Granted(cx.now());
                self.ask(cx, answers);
            }
            Sent::UnsubAck(..) => {
                let before = self.subscriptions.len();
                self.subscriptions.retain(|_, state| *state != Subscription::Leaving);
                assert!(self.subscriptions.len() < before, "{}: UNSUBACK answers nothing", self.name);
            }
            Sent::Publish(message) => self.received(cx, messages, &message, answers),
            Sent::PubAck(id, reason) => {
                self.check_awaited(&packet, id, (QoS::AtLeastOnce, false));
                self.acknowledged(cx, messages, id, reason);
            }
            Sent::PubRec(id, reason) if reason.is_error() => {
                self.check_awaited(&packet, id, (QoS::ExactlyOnce, false));
                self.acknowledged(cx, messages, id, reason);
            }
            Sent::PubRec(id, _) => {
                self.check_awaited(&packet, id, (QoS::ExactlyOnce, false));
                if let Some(published) = self.unacknowledged.get_mut(&id) {
                    published.is_received = true;
                }
                self.write(&Sent::PubRel(id, ReasonCode::Success), answers);
            }
            Sent::PubComp(id, reason) => {
                self.check_awaited(&packet, id, (QoS::ExactlyOnce, true));
                self.acknowledged(cx, messages, id, reason);
            }
            Sent::PubRel(id, _) => {
                self.unreleased.remove(&id);
                self.write(&Sent::PubComp(id, ReasonCode::Success), answers);
            }
            Sent::Disconnect { .. } => {}
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn received(
        &mut self,
        cx: &mut Context,
        messages: &Messages,
        message: &packets::Message,
        answers: &mut Vec<u8>,
    ) {
        let mut numbers = message.payload.split(' ').map(|text| text.parse().unwrap_or(0));
        let (publisher, number) = (numbers.next().unwrap_or(0) as usize, numbers.next().unwrap_or(0));
        let known = (publisher, number);
        assert!(messages.is_of(known, &message.topic), "{}: nobody published {known:?}", self.name);
        self.check_expiry(cx, messages, known, message.expiry);
        let id = message.packet_id.unwrap_or_default();
        let is_first = !self.received.contains(&known);
        if message.qos == QoS::ExactlyOnce {
            let is_again = self.unreleased.insert(id, known) == Some(known);
            assert!(
                is_again || self.received.insert(known),
                "{}: message {known:?} of QoS 2 came twice",
                self.name
            );
            self.write(&Sent::PubRec(id, ReasonCode::Success), answers);
        } else {
            self.received.insert(known);
            self.write(&Sent::PubAck(id, ReasonCode::Success), answers);
        }
        let latest = self.latest.entry((publisher, message.topic.clone())).or_default();
        let previous = *latest;
        *latest = previous.max(number);
        if number <= previous {
            // Messages of QoS 1 and 2 of one topic stay in order; those that come again do not count [MQTT-4.6.0-5].
            let is_in_order = !is_first || !self.is_ordered(messages, known, &message.topic);
            assert!(is_in_order, "{}: message {known:?} came after number {previous}", self.name);
            cx.report.agreed_again += 1;
        }
        cx.report.agreed_delivered += 1;
        cx.report.agreed_shared += u64::from(message.topic.starts_with("jobs/"));
    }

    /// Checks the Message Expiry Interval of a received message. It is long, so the message does not expire, and
    /// shorter by the time since it was published, whatever the clocks of the nodes are [MQTT-3.3.2-6].
    fn check_expiry(&self, cx: &mut Context, messages: &Messages, id: MessageId, left: Option<u32>) {
        // Wills have none.
        let has_one = id.0 < CLIENTS_MAX && expires(id.1);
        assert_eq!(left.is_some(), has_one, "{}: Message Expiry Interval of {id:?}", self.name);
        let (Some(left), Some(sent)) = (left, messages.sent_at(id)) else { return };
        let age_s = (cx.now() - sent) / SECOND;
        let is_right = left <= EXPIRY && u64::from(left) + age_s + EXPIRY_TOLERANCE >= u64::from(EXPIRY);
        assert!(is_right, "{}: {id:?} expires in {left} s, after {age_s} s", self.name);
        cx.report.agreed_check_expiry += 1;
    }

    /// Returns whether a message has to come after the earlier ones of its publisher and topic. One that was published
    /// before SUBACK and is sent again after it is new for this client. A shared subscription has no order: a member
    /// may get what another one has left. Neither have Wills, which come from several shards.
    fn is_ordered(&self, messages: &Messages, id: MessageId, topic: &str) -> bool {
        match self.subscriptions.get(topic) {
            Some(Subscription::Granted(from)) => topic != WILLS && messages.was_sent_after(id, *from),
            _ => false,
        }
    }

    /// Checks that a message waits for this acknowledgement. One that comes twice would end the next message with its
    /// Packet Identifier.
    fn check_awaited(&self, packet: &Sent, id: u16, expected: (QoS, bool)) {
        let published = self.unacknowledged.get(&id);
        let awaited = published.map(|published| (published.qos, published.is_received));
        assert_eq!(awaited, Some(expected), "{}: {packet:?} answers nothing", self.name);
    }

    fn acknowledged(&mut self, cx: &mut Context, messages: &mut Messages, id: u16, reason: ReasonCode) {
        let Some(published) = self.unacknowledged.remove(&id) else { return };
        if !reason.is_error() {
            messages.acknowledged((self.number, published.number), cx.now());
            cx.report.agreed_acknowledged += 1;
            cx.report.agreed_fast += u64::from(published.topic.starts_with(FAST));
        }
    }

    /// Returns whether the client has received a message.
    pub fn has_received(&self, id: MessageId) -> bool {
        self.received.contains(&id)
    }

    /// Messages that the client is owed and has not received, and that must not be lost.
    fn missing(&self, messages: &Messages) -> Vec<MessageId> {
        let shard = shard_of_client(&self.name);
        self.not_received(messages).into_iter().filter(|id| !messages.may_be_lost(*id, shard)).collect()
    }

    /// Messages that the client is owed and has not received: they were published to a topic after the client had got
    /// SUBACK, and acknowledged before it sent UNSUBSCRIBE, if it did.
    fn not_received(&self, messages: &Messages) -> Vec<MessageId> {
        let granted = self.subscriptions.iter().filter_map(|(topic, state)| match state {
            Subscription::Granted(from) => Some((topic, Period { from: *from, until: Micros::MAX })),
            Subscription::Asked | Subscription::Leaving => None,
        });
        let ended = self.ended.iter().map(|(topic, period)| (topic, *period));
        let owed = granted
            .chain(ended)
            .flat_map(|(topic, Period { from, until })| messages.owed(topic, from, until));
        owed.filter(|id| !self.received.contains(id)).collect()
    }

    /// Returns whether nothing is under way.
    pub fn is_settled(&self, messages: &Messages) -> bool {
        let are_granted = self.subscriptions.values().all(|state| matches!(state, Subscription::Granted(_)));
        let is_idle = self.unacknowledged.is_empty() && self.unreleased.is_empty() && are_granted;
        is_idle && self.missing(messages).is_empty()
    }

    /// Checks that everything has come that the client is owed.
    pub fn check(&self, cx: &mut Context, messages: &Messages) {
        let missing = self.missing(messages);
        cx.report.agreed_fast_lost += (self.not_received(messages).len() - missing.len()) as u64;
        assert!(missing.is_empty(), "{}: lost {missing:?}", self.name);
        let (unacknowledged, unreleased) = (&self.unacknowledged, &self.unreleased);
        let waits = || format!("{}: {unacknowledged:?} {unreleased:?} {:?}", self.name, self.subscriptions);
        assert!(self.is_settled(messages), "{}", waits());
    }
}

/// Messages of the shared subscription that no member has received, although they were published after the first member
/// had got SUBACK, and acknowledged.
pub fn missing_jobs(clients: &[Client], messages: &Messages) -> Vec<MessageId> {
    let granted = |client: &Client| match client.subscriptions.get(SHARED) {
        Some(Subscription::Granted(from)) => Some(*from),
        _ => None,
    };
    let Some(from) = clients.iter().filter_map(granted).min() else { return Vec::new() };
    let owed =
        (0..JOBS).flat_map(|number| messages.owed(&job(number), from, Micros::MAX).collect::<Vec<_>>());
    owed.filter(|id| !clients.iter().any(|client| client.received.contains(id))).collect()
}

/// Returns whether a message has a Message Expiry Interval.
fn expires(number: u64) -> bool {
    number.is_multiple_of(2)
}

fn job(number: usize) -> String {
    format!("jobs/{number}")
}

/// Topic that a client subscribes to from the beginning.
fn topic_of(client: usize) -> String {
    format!("to/client-{client}")
}

/// Topic to which any client may subscribe. Messages on every other one have durability `memory`.
fn room(number: usize) -> String {
    if number.is_multiple_of(2) { format!("{FAST}{number}") } else { format!("room/{number}") }
}
