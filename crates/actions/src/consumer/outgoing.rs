//! Messages that an action publishes at this broker.

use std::collections::BTreeMap;
use std::time::Duration;

use bridge::Time;
use broker::origin::ORIGIN;
use mqtt::{
    Outgoing, PacketId, PacketType, PropertiesBuf, Property, QoS, ReasonCode, Version, put_short_ack,
};

use crate::lane::Sequence;

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub user_properties: &'a [(&'a str, &'a str)],
    /// Origin of a message that is passed to another action.
    pub passed_on: Option<&'a str>,
}

/// Purpose of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An output of the rule.
    Output,
    /// A message that was given up, for the dead letter topic.
    DeadLetter,
    /// A message that was given up, for another action. It must have a session.
    Fallback,
}

/// A published message that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub sequence: Sequence,
    pub purpose: Purpose,
    pub bytes: usize,
    /// Reason why the broker does not accept it.
    pub refused: Option<String>,
}

/// Limits of the broker.
#[derive(Clone, Copy, Debug)]
pub struct BrokerLimits {
    pub receive_maximum: u16,
    pub maximum_qos: QoS,
    pub retain_available: bool,
    /// Maximum size of a packet in bytes.
    pub packet_size_max: u32,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            receive_maximum: 1,
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            packet_size_max: u32::MAX,
        }
    }
}

/// A message that the broker has not acknowledged.
#[derive(Debug)]
struct Open {
    /// Position of the message in the order of publishing.
    number: u64,
    /// Encoded PUBLISH, whose Packet Identifier is replaced when it is sent again.
    packet: Vec<u8>,
    finished: Finished,
}

/// Messages of QoS 1 and 2 that the broker has not acknowledged, and messages that wait: for its Receive Maximum, or
/// for the next attempt after a refusal that may pass.
#[derive(Debug, Default)]
pub struct Outbound {
    limits: BrokerLimits,
    open: BTreeMap<u16, Open>,
    /// Messages that wait, by their number. A refused one is sent before later ones again.
    waiting: BTreeMap<u64, Open>,
    last_id: u16,
    next_number: u64,
    /// Time of the next attempt, after a refusal.
    retry_at: Option<Time>,
    /// Pause before the next attempt.
    pause: Duration,
    pause_max: Duration,
    pause_min: Duration,
    /// Time of the first refusal without a success after it, and its reason.
    failing: Option<(Time, String)>,
    /// Number of attempts that were repeated.
    pub retries: u64,
}

/// Greatest Packet Identifier of a message. Those above it are for subscriptions.
const ID_MAX: u16 = 0x7fff;

impl Outbound {
    /// Creates one without a connection.
    pub fn new(pause_min: Duration, pause_max: Duration) -> Self {
        Self { pause: pause_min, pause_min, pause_max, ..Self::default() }
    }

    /// Begins with the limits of a new connection.
    pub fn connected(&mut self, limits: BrokerLimits) {
        self.limits = limits;
    }

    /// Forgets everything that belongs to the connection.
    pub fn forget(&mut self) {
        let Self { pause_min, pause_max, retries, failing, .. } = std::mem::take(self);
        *self = Self { retries, failing, ..Self::new(pause_min, pause_max) };
    }

    /// Number of messages that are not complete.
    pub fn open(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// Time since which the broker refuses messages for a reason that may pass, and the reason.
    pub fn failing(&self) -> Option<&(Time, String)> {
        self.failing.as_ref()
    }

    /// Publishes a message, now or when the broker accepts it. Returns it if it is complete.
    pub fn publish(
        &mut self,
        sequence: Sequence,
        purpose: Purpose,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Finished> {
        let origin = message.passed_on.map(|origin| Property::UserProperty(ORIGIN, origin));
        let users = message.user_properties.iter().map(|(name, value)| Property::UserProperty(name, value));
        let properties: PropertiesBuf = origin.into_iter().chain(users).collect();
        let limits = self.limits;
        let packet = Outgoing {
            dup: false,
            qos: message.qos.min(limits.maximum_qos),
            retain: message.retain && limits.retain_available,
            // It is chosen when the message is sent.
            packet_id: PacketId::new(1),
            topic: message.topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: properties.as_properties().as_bytes(),
            payload: message.payload,
        };
        let bytes = message.topic.len() + message.payload.len();
        let mut finished = Finished { sequence, purpose, bytes, refused: None };
        let length = packet.encoded_len(Version::V5);
        if length > limits.packet_size_max as usize {
            let max = limits.packet_size_max;
            finished.refused = Some(format!(
                "the message has {length} bytes, and the broker accepts {max}: mqtt.packet_size_max"
            ));
            return Some(finished);
        }
        if packet.qos == QoS::AtMostOnce {
            packet.encode(Version::V5, out);
            return Some(finished);
        }
        let mut encoded = Vec::with_capacity(length);
        packet.encode(Version::V5, &mut encoded);
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert(number, Open { number, packet: encoded, finished });
        self.send_waiting(out);
        None
    }

    /// Handles a PUBACK, a PUBCOMP, or a PUBREC with a failure. A refusal that may pass leads to another attempt.
    pub fn acknowledged(
        &mut self,
        now: Time,
        id: PacketId,
        reason: ReasonCode,
        out: &mut Vec<u8>,
    ) -> Option<Finished> {
        let mut open = self.open.remove(&id.get())?;
        let is_lost =
            open.finished.purpose == Purpose::Fallback && reason == ReasonCode::NoMatchingSubscribers;
        if is_lost || may_pass(reason) {
            let why = match is_lost {
                true => "the action that is the fallback has no session yet; enable it".to_owned(),
                false => format!("this broker refuses messages: {reason}"),
            };
            self.failing.get_or_insert((now, why));
            self.retries += 1;
            self.waiting.insert(open.number, open);
            if self.retry_at.is_none() {
                self.retry_at = Some(now.after(self.pause));
                self.pause = (self.pause * 2).min(self.pause_max);
            }
            return None;
        }
        self.failing = None;
        self.pause = self.pause_min;
        if reason.is_error() {
            open.finished.refused = Some(format!("the broker refused the message: {reason}"));
        }
        self.send_waiting(out);
        Some(open.finished)
    }

    /// Handles a PUBREC. A failure ends the exchange [MQTT-4.3.3-4].
    pub fn received(
        &mut self,
        now: Time,
        id: PacketId,
        reason: ReasonCode,
        out: &mut Vec<u8>,
    ) -> Option<Finished> {
        if reason.is_error() {
            return self.acknowledged(now, id, reason, out);
        }
        put_short_ack(PacketType::PubRel, id, out);
        None
    }

    /// Time at which [`Self::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Time> {
        self.retry_at
    }

    /// Tries again what was refused, when it is due.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Vec<u8>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.send_waiting(out);
        }
    }

    fn send_waiting(&mut self, out: &mut Vec<u8>) {
        let max = usize::from(self.limits.receive_maximum);
        while !self.waiting.is_empty() && self.retry_at.is_none() && self.open.len() < max {
            let Some(id) = self.next_id() else { return };
            let Some((_, mut open)) = self.waiting.pop_first() else { return };
            set_packet_id(&mut open.packet, id);
            out.extend_from_slice(&open.packet);
            self.open.insert(id.get(), open);
        }
    }

    /// Returns an unused Packet Identifier; `None` when all are in use.
    fn next_id(&mut self) -> Option<PacketId> {
        for _ in 0..ID_MAX {
            self.last_id = self.last_id % ID_MAX + 1;
            if !self.open.contains_key(&self.last_id) {
                return PacketId::new(self.last_id);
            }
        }
        None
    }
}

/// Returns whether a refusal says nothing about the message: the broker lacks room or a quorum.
fn may_pass(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
            | ReasonCode::QuotaExceeded
    )
}

/// Replaces the Packet Identifier of an encoded PUBLISH: it comes after the fixed header and the Topic Name.
fn set_packet_id(packet: &mut [u8], id: PacketId) {
    let length = packet.iter().skip(1).take_while(|byte| **byte & 0x80 != 0).count() + 1;
    let topic = 1 + length;
    let two = |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    let Some(at) = two(topic).map(|topic_length| topic + 2 + topic_length) else { return };
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&id.get().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use mqtt::{Packet, decode};

    use super::*;

    fn message(qos: QoS) -> Message<'static> {
        let payload = &[7; 300];
        Message { topic: "t", payload, qos, retain: false, user_properties: &[("a", "b")], passed_on: None }
    }

    /// Topic, Packet Identifier and size of the payload of the packets in `out`.
    fn published(mut out: &[u8]) -> Vec<u16> {
        let mut ids = Vec::new();
        while let Ok(Some(size)) = mqtt::frame(out, u32::MAX) {
            let (packet, rest) = out.split_at(size);
            out = rest;
            match decode(Version::V5, packet).expect("valid") {
                Packet::Publish(publish) => {
                    assert_eq!((publish.topic, publish.payload.len()), ("t", 300));
                    ids.push(publish.packet_id.map_or(0, PacketId::get));
                }
                Packet::PubRel(ack) => ids.push(ack.packet_id.get() + 1000),
                other => panic!("{other:?}"),
            }
        }
        ids
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn outbound(receive_maximum: u16) -> Outbound {
        let mut outbound = Outbound::new(SECOND, SECOND * 4);
        outbound.connected(BrokerLimits { receive_maximum, packet_size_max: 400, ..BrokerLimits::default() });
        outbound
    }

    fn id(id: u16) -> PacketId {
        PacketId::new(id).expect("not 0")
    }

    #[test]
    fn messages_wait_for_the_receive_maximum() {
        let mut outbound = outbound(2);
        let mut out = Vec::new();
        for sequence in 0..4 {
            let done = outbound.publish(sequence, Purpose::Output, &message(QoS::AtLeastOnce), &mut out);
            assert_eq!(done, None);
        }
        assert_eq!(published(&out), [1, 2]);
        out.clear();
        let now = Time(0);
        let done = outbound.acknowledged(now, id(2), ReasonCode::Success, &mut out).expect("known");
        assert_eq!((done.sequence, done.refused), (1, None));
        let done = outbound.acknowledged(now, id(1), ReasonCode::NotAuthorized, &mut out).expect("known");
        assert_eq!((done.sequence, done.refused.is_some()), (0, true));
        assert_eq!(published(&out), [3, 4]);
        assert_eq!(outbound.acknowledged(now, id(9), ReasonCode::Success, &mut out), None);
    }

    #[test]
    fn refusals_that_may_pass_are_repeated_after_a_pause() {
        let mut outbound = outbound(10);
        let mut out = Vec::new();
        for (sequence, purpose) in [(0, Purpose::Output), (1, Purpose::Fallback)] {
            outbound.publish(sequence, purpose, &message(QoS::AtLeastOnce), &mut out);
        }
        out.clear();
        let quota = outbound.acknowledged(Time(0), id(1), ReasonCode::QuotaExceeded, &mut out);
        let lost = outbound.acknowledged(Time(0), id(2), ReasonCode::NoMatchingSubscribers, &mut out);
        assert_eq!((quota, lost, outbound.open()), (None, None, 2));
        assert!(outbound.failing().is_some());
        outbound.handle_timeout(Time(999_999), &mut out);
        assert_eq!(published(&out), [0; 0]);
        outbound.handle_timeout(Time(1_000_000), &mut out);
        assert_eq!(published(&out), [3, 4]);
        outbound.acknowledged(Time(1_000_000), id(3), ReasonCode::ServerBusy, &mut out);
        assert_eq!(outbound.timeout(), Some(Time(3_000_000)), "the pause doubles");
        assert!(outbound.acknowledged(Time(1_000_000), id(4), ReasonCode::Success, &mut out).is_some());
        outbound.handle_timeout(Time(3_000_000), &mut out);
        assert!(outbound.acknowledged(Time(3_000_000), id(5), ReasonCode::Success, &mut out).is_some());
        assert_eq!((outbound.open(), outbound.retries), (0, 3));
        assert!(outbound.failing().is_none());
    }

    /// Messages of a topic keep their order while its queue is full.
    #[test]
    fn refused_messages_are_repeated_in_their_order() {
        let mut outbound = outbound(3);
        let (mut out, now) = (Vec::new(), Time(0));
        for sequence in 0..5 {
            outbound.publish(sequence, Purpose::Output, &message(QoS::AtLeastOnce), &mut out);
        }
        for refused in [1, 2, 3] {
            assert_eq!(outbound.acknowledged(now, id(refused), ReasonCode::QuotaExceeded, &mut out), None);
        }
        out.clear();
        let mut sequences = Vec::new();
        outbound.handle_timeout(Time(1_000_000), &mut out);
        for accepted in published(&out) {
            let finished = outbound.acknowledged(now, id(accepted), ReasonCode::Success, &mut out);
            sequences.extend(finished.map(|finished| finished.sequence));
        }
        assert_eq!(sequences, [0, 1, 2]);
    }

    #[test]
    fn a_message_that_the_broker_would_close_the_connection_for_is_not_sent() {
        let mut outbound = outbound(10);
        let limits = BrokerLimits {
            receive_maximum: 10,
            maximum_qos: QoS::AtMostOnce,
            retain_available: false,
            packet_size_max: 320,
        };
        outbound.connected(limits);
        let mut out = Vec::new();
        let big = Message { payload: &[1; 320], ..message(QoS::AtLeastOnce) };
        let done = outbound.publish(0, Purpose::Output, &big, &mut out).expect("is complete");
        assert!(done.refused.expect("refused").contains("packet_size_max"));
        assert!(out.is_empty());
        let retained = Message { retain: true, ..message(QoS::ExactlyOnce) };
        assert!(
            outbound.publish(1, Purpose::Output, &retained, &mut out).expect("complete").refused.is_none()
        );
        assert_eq!(out[0], 0x30, "QoS 0, not retained");
    }

    #[test]
    fn qos_0_is_complete_at_once_and_qos_2_after_two_exchanges() {
        let mut outbound = outbound(9);
        let (mut out, now) = (Vec::new(), Time(0));
        assert!(outbound.publish(0, Purpose::Output, &message(QoS::AtMostOnce), &mut out).is_some());
        assert!(outbound.publish(1, Purpose::Output, &message(QoS::ExactlyOnce), &mut out).is_none());
        assert_eq!(outbound.received(now, id(1), ReasonCode::Success, &mut out), None);
        assert_eq!(published(&out), [0, 1, 1001]);
        assert!(outbound.acknowledged(now, id(1), ReasonCode::Success, &mut out).is_some());
        assert!(outbound.publish(2, Purpose::Output, &message(QoS::ExactlyOnce), &mut out).is_none());
        let refused = outbound.received(now, id(2), ReasonCode::NotAuthorized, &mut out);
        assert!(refused.expect("ends").refused.is_some());
    }
}
