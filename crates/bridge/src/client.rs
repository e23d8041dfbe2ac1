//! The client side of one MQTT connection.

pub(crate) mod buffers;
mod error;
mod limits;
mod requests;

use std::time::Duration;

use mqtt::{
    Connect, DecodeError, Disconnect, Outgoing, Packet, PacketId, PacketType, Properties, PropertiesBuf,
    Property, QoS, ReasonCode, SubscriptionOptions, Version, Will, decode,
};

use crate::settings::Password;
use crate::time::Time;
pub use buffers::Unsent;
use buffers::{Incoming, Next, TooLarge};
pub use error::CloseReason;
pub use limits::Limits;
use requests::Requests;

/// Content of a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    pub version: Version,
    /// True to set the bridge bit of the protocol level.
    pub private: bool,
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<Password>,
    pub clean_start: bool,
    /// Seconds that the session outlives the connection, in MQTT 5.0.
    pub session_expiry: u32,
    /// Keep Alive in seconds; 0 turns it off.
    pub keep_alive: u16,
    /// Maximum number of unacknowledged messages that the server may send, in MQTT 5.0; at least 1.
    pub receive_maximum: u16,
    /// Maximum size of a packet from the server, in bytes.
    pub packet_size_max: u32,
    /// User Properties of CONNECT, in MQTT 5.0.
    pub user_properties: Vec<(String, String)>,
    pub will: Option<WillMessage>,
}

/// Will of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WillMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
}

/// Client side of one connection, from CONNECT to its end. It does no I/O: [`Self::receive`] accepts bytes,
/// [`Self::poll`] returns what they mean, and [`Self::unsent`] has the bytes to write.
///
/// The caller passes on QoS 1 and 2 messages and their acknowledgements. The client keeps no state of them.
///
/// **Invariant:** bytes of a server never panic. They take no more memory than one packet and one call of
/// [`Self::receive`].
#[derive(Debug)]
pub struct Client {
    version: Version,
    packet_size_max: u32,
    incoming: Incoming,
    unsent: Unsent,
    phase: Phase,
    requests: Requests,
    keep_alive: KeepAlive,
    /// Keep Alive of the CONNECT, in seconds.
    keep_alive_asked: u16,
}

#[derive(Debug)]
enum Phase {
    /// The server has not answered the CONNECT.
    Connecting,
    Connected(Box<Limits>),
    Closed,
}

#[derive(Debug)]
struct KeepAlive {
    /// Maximum time between packets to the server; `None` when it is off.
    interval: Option<Duration>,
    last_sent: Time,
    last_received: Time,
    pinged: Option<Time>,
    /// Time since which the caller does not read, so that silence means nothing.
    paused: Option<Time>,
}

/// Meaning of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The server has accepted the connection; [`Client::limits`] has its limits.
    Connected,
    /// A PUBLISH, PUBACK, PUBREC, PUBREL or PUBCOMP. Its answer belongs into the `Unsent` that came with it.
    Packet(Packet<'a>),
    /// A PUBLISH that was too large and is discarded. Only a server before 5.0, which cannot know the limit, may send
    /// one.
    TooLarge(QoS, Option<PacketId>),
    /// The server has answered subscriptions, each with its Reason Code.
    Subscribed(Vec<(String, ReasonCode)>),
    /// The server has answered the end of subscriptions, each with its Reason Code.
    Unsubscribed(Vec<(String, ReasonCode)>),
}

/// An event without the packet, which is still in the buffer.
enum Step {
    Connected,
    Packet,
    TooLarge(QoS, Option<PacketId>),
    Subscribed(Vec<(String, ReasonCode)>),
    Unsubscribed(Vec<(String, ReasonCode)>),
}

impl Client {
    /// Creates the client of a connection that was just opened, with its CONNECT to be sent.
    ///
    /// # Errors
    /// No packet can hold the options: a string is too long or has U+0000.
    pub fn new(now: Time, options: &ConnectOptions) -> Result<Self, CloseReason> {
        let mut properties = PropertiesBuf::from_iter([
            Property::SessionExpiryInterval(options.session_expiry),
            Property::ReceiveMaximum(options.receive_maximum.max(1)),
            Property::MaximumPacketSize(options.packet_size_max.max(1)),
        ]);
        for (name, value) in &options.user_properties {
            properties.push(Property::UserProperty(name, value));
        }
        let connect = Connect {
            version: options.version,
            bridge: options.private,
            clean_start: options.clean_start,
            keep_alive: options.keep_alive,
            client_id: &options.client_id,
            will: options.will.as_ref().map(|will| Will {
                qos: will.qos,
                retain: will.retain,
                topic: &will.topic,
                payload: &will.payload,
                properties: Properties::EMPTY,
            }),
            username: options.username.as_deref(),
            password: options.password.as_ref().map(Password::as_bytes),
            properties: properties.as_properties(),
        };
        let mut unsent = Unsent::default();
        if !Packet::Connect(connect).encode(options.version, unsent.buffer()) {
            return Err(CloseReason::ConnectNotEncodable);
        }
        Ok(Self {
            version: options.version,
            packet_size_max: options.packet_size_max,
            incoming: Incoming::default(),
            unsent,
            phase: Phase::Connecting,
            requests: Requests::default(),
            keep_alive: KeepAlive {
                interval: None,
                last_sent: now,
                last_received: now,
                pinged: None,
                paused: None,
            },
            keep_alive_asked: options.keep_alive,
        })
    }

    /// Protocol version of the connection.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Limits of the server; `None` before its CONNACK.
    pub fn limits(&self) -> Option<&Limits> {
        match &self.phase {
            Phase::Connected(limits) => Some(limits),
            Phase::Connecting | Phase::Closed => None,
        }
    }

    /// Bytes to be sent.
    pub fn unsent(&self) -> &Unsent {
        &self.unsent
    }

    /// Bytes to be sent, to append packets or to note what was sent.
    pub fn unsent_mut(&mut self) -> &mut Unsent {
        &mut self.unsent
    }

    /// Number of subscriptions that the server has not answered, and of subscriptions whose end it has not answered.
    pub fn requests_open(&self) -> usize {
        self.requests.open()
    }

    /// Number of SUBSCRIBE and UNSUBSCRIBE packets that the server has not answered.
    pub(crate) fn requests(&self) -> usize {
        self.requests.packets()
    }

    /// Accepts bytes from the server. They are examined by [`Self::poll`].
    pub fn receive(&mut self, now: Time, bytes: &[u8]) {
        self.keep_alive.last_received = now;
        self.incoming.push(bytes);
    }

    /// Number of bytes that were received and not examined.
    pub fn unread(&self) -> usize {
        self.incoming.len()
    }

    /// Notes that the caller does not read from the connection. An absent PINGRESP, SUBACK or UNSUBACK is no failure
    /// then.
    pub fn pause(&mut self, now: Time) {
        self.keep_alive.paused.get_or_insert(now);
    }

    /// Notes that the caller reads from the connection.
    pub fn resume(&mut self, now: Time) {
        if let Some(since) = self.keep_alive.paused.take() {
            self.keep_alive.last_received = now;
            self.requests.extend(now.since(since));
        }
    }

    /// Returns the next event, with the buffer for its answer; `None` when more bytes are needed.
    ///
    /// # Errors
    /// The server has refused or closed the connection, or violates the protocol. The client is closed then. A
    /// DISCONNECT with the reason is to be sent, if the version has one.
    pub fn poll(&mut self, now: Time) -> Result<Option<(Event<'_>, &mut Unsent)>, CloseReason> {
        let step = match self.advance(now) {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(None),
            Err(reason) => {
                self.fail(&reason);
                return Err(reason);
            }
        };
        let event = match step {
            Step::Connected => Event::Connected,
            Step::TooLarge(qos, packet_id) => Event::TooLarge(qos, packet_id),
            Step::Subscribed(answers) => Event::Subscribed(answers),
            Step::Unsubscribed(filters) => Event::Unsubscribed(filters),
            // It is decoded once more, because the loop in `advance` cannot return what it borrows.
            Step::Packet => match decode(self.version, self.incoming.current()) {
                Ok(packet) => Event::Packet(packet),
                Err(error) => return Err(CloseReason::Malformed(error)),
            },
        };
        Ok(Some((event, &mut self.unsent)))
    }

    /// Handles packets until one is of interest to the caller.
    fn advance(&mut self, now: Time) -> Result<Option<Step>, CloseReason> {
        loop {
            if matches!(self.phase, Phase::Closed) {
                return Ok(None);
            }
            match self.incoming.next(self.packet_size_max, self.too_large())? {
                Next::Incomplete => return Ok(None),
                Next::TooLarge(qos, packet_id) => return Ok(Some(Step::TooLarge(qos, packet_id))),
                Next::Packet => {}
            }
            let packet = decode(self.version, self.incoming.current())?;
            let packet_type = packet.packet_type();
            if matches!(self.phase, Phase::Connecting) != (packet_type == PacketType::ConnAck) {
                return Err(CloseReason::Unexpected(packet_type));
            }
            match packet {
                Packet::ConnAck(ack) => {
                    let limits = Limits::of(&ack);
                    if ack.reason != ReasonCode::Success {
                        return Err(CloseReason::refused(ack.reason, limits));
                    }
                    let seconds = limits.keep_alive.unwrap_or(self.keep_alive_asked);
                    self.keep_alive.interval =
                        (seconds != 0).then(|| Duration::from_secs(u64::from(seconds)));
                    self.keep_alive.last_sent = now;
                    self.phase = Phase::Connected(Box::new(limits));
                    return Ok(Some(Step::Connected));
                }
                Packet::Publish(publish) => {
                    // The CONNECT has no Topic Alias Maximum, so the server must not use aliases [MQTT-3.1.2-27].
                    if publish.properties.topic_alias().is_some() {
                        return Err(CloseReason::TopicAlias);
                    }
                    return Ok(Some(Step::Packet));
                }
                Packet::PubAck(_) | Packet::PubRec(_) | Packet::PubRel(_) | Packet::PubComp(_) => {
                    return Ok(Some(Step::Packet));
                }
                Packet::SubAck(ack) => {
                    let retried = self.requests.subscribed(now, self.version, &ack, self.unsent.buffer())?;
                    if let Some(answers) = retried {
                        return Ok(Some(Step::Subscribed(answers)));
                    }
                }
                Packet::UnsubAck(ack) => {
                    let filters = self.requests.unsubscribed(&ack)?;
                    return Ok(Some(Step::Unsubscribed(filters)));
                }
                Packet::PingResp => self.keep_alive.pinged = None,
                Packet::Disconnect(disconnect) if self.version.has_properties() => {
                    return Err(CloseReason::disconnected(&disconnect));
                }
                Packet::Connect(_)
                | Packet::Subscribe(_)
                | Packet::Unsubscribe(_)
                | Packet::PingReq
                | Packet::Disconnect(_)
                | Packet::Auth(_) => return Err(CloseReason::Unexpected(packet_type)),
            }
        }
    }

    fn too_large(&self) -> TooLarge {
        let is_connected = matches!(self.phase, Phase::Connected(_));
        if is_connected && !self.version.has_properties() { TooLarge::IsDiscarded } else { TooLarge::Fails }
    }

    /// Sends SUBSCRIBE packets for these filters.
    pub fn subscribe(&mut self, now: Time, filters: &[(String, SubscriptionOptions)]) {
        self.keep_alive.last_sent = now;
        self.requests.subscribe(now, self.version, filters, self.unsent.buffer());
    }

    /// Sends UNSUBSCRIBE packets for these filters.
    pub fn unsubscribe(&mut self, now: Time, filters: &[String]) {
        self.keep_alive.last_sent = now;
        self.requests.unsubscribe(now, self.version, filters, self.unsent.buffer());
    }

    /// Sends one SUBSCRIBE packet for these filters.
    pub(crate) fn subscribe_at_once(&mut self, now: Time, filters: Vec<(String, SubscriptionOptions)>) {
        self.keep_alive.last_sent = now;
        self.requests.subscribe_at_once(now, self.version, filters, self.unsent.buffer());
    }

    /// Sends one UNSUBSCRIBE packet for these filters.
    pub(crate) fn unsubscribe_at_once(&mut self, now: Time, filters: Vec<String>) {
        self.keep_alive.last_sent = now;
        self.requests.unsubscribe_at_once(now, self.version, filters, self.unsent.buffer());
    }

    /// Publishes a message of QoS 0, which needs no Packet Identifier.
    pub(crate) fn publish_at_most_once(&mut self, now: Time, topic: &str, payload: &[u8]) {
        let message = Outgoing {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            packet_id: None,
            topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: &[],
            payload,
        };
        message.encode(self.version, self.unsent.buffer());
        self.note_sent(now);
    }

    /// Sends a DISCONNECT and closes the client. Success means that the server does not publish the Will.
    pub fn disconnect(&mut self, reason: ReasonCode) {
        if let Phase::Connected(_) = std::mem::replace(&mut self.phase, Phase::Closed) {
            // Before 5.0 there is no DISCONNECT with a failure: the end of the connection is the message.
            Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY })
                .encode(self.version, self.unsent.buffer());
        }
    }

    fn fail(&mut self, reason: &CloseReason) {
        match reason.reason_code() {
            Some(code) => self.disconnect(code),
            None => self.phase = Phase::Closed,
        }
    }

    /// Notes that a packet was appended to the bytes to be sent.
    pub(crate) fn note_sent(&mut self, now: Time) {
        self.keep_alive.last_sent = now;
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Closed => None,
            _ => self.ping_timeout().into_iter().chain(self.request_timeout()).min(),
        }
    }

    fn ping_timeout(&self) -> Option<Time> {
        let interval = self.keep_alive.interval?;
        match self.keep_alive.pinged {
            Some(_) if self.keep_alive.paused.is_some() => None,
            Some(pinged) => Some(pinged.max(self.keep_alive.last_received).after(interval)),
            None => Some(self.keep_alive.last_sent.after(interval)),
        }
    }

    fn request_timeout(&self) -> Option<Time> {
        self.requests.timeout().filter(|_| self.keep_alive.paused.is_none())
    }

    /// Sends a PINGREQ when it is due.
    ///
    /// # Errors
    /// The server has not answered the last PINGREQ within the Keep Alive, or a SUBSCRIBE or UNSUBSCRIBE within a
    /// minute. The client is closed then.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), CloseReason> {
        if matches!(self.phase, Phase::Closed) {
            return Ok(());
        }
        if self.request_timeout().is_some_and(|due| due <= now) {
            let reason = CloseReason::RequestTimeout;
            self.fail(&reason);
            return Err(reason);
        }
        if self.ping_timeout().is_none_or(|due| due > now) {
            return Ok(());
        }
        if self.keep_alive.pinged.is_some() {
            let reason = CloseReason::PingTimeout;
            self.fail(&reason);
            return Err(reason);
        }
        Packet::PingReq.encode(self.version, self.unsent.buffer());
        self.keep_alive.pinged = Some(now);
        self.keep_alive.last_sent = now;
        Ok(())
    }
}

impl From<DecodeError> for CloseReason {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

#[cfg(test)]
mod tests;
