//! Messages that an action publishes at this broker.

use std::collections::VecDeque;

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

/// What a published message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An output of the rule.
    Output,
    /// A message that was given up.
    GivenUp,
}

/// A published message that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub sequence: Sequence,
    pub purpose: Purpose,
    pub bytes: usize,
    /// Reason Code with which the broker refused it.
    pub refused: Option<ReasonCode>,
}

/// Messages of QoS 1 and 2 that the broker has not acknowledged, and messages that wait for its Receive Maximum.
#[derive(Debug, Default)]
pub struct Outbound {
    /// Maximum number of unacknowledged messages.
    pub receive_maximum: u16,
    open: Vec<(PacketId, Finished)>,
    /// Encoded packets without the Packet Identifier, which has not been chosen.
    waiting: VecDeque<(Vec<u8>, QoS, Finished)>,
    last_id: u16,
}

/// Greatest Packet Identifier of a message. Those above it are for subscriptions.
const ID_MAX: u16 = 0x7fff;

impl Outbound {
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
        let mut packet = Outgoing {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            packet_id: None,
            topic: message.topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: properties.as_properties().as_bytes(),
            payload: message.payload,
        };
        let bytes = message.topic.len() + message.payload.len();
        let finished = Finished { sequence, purpose, bytes, refused: None };
        if message.qos == QoS::AtMostOnce {
            packet.encode(Version::V5, out);
            return Some(finished);
        }
        let is_full = self.open.len() >= usize::from(self.receive_maximum) || !self.waiting.is_empty();
        packet.packet_id = if is_full { PacketId::new(1) } else { self.next_id() };
        if is_full {
            let mut encoded = Vec::new();
            packet.encode(Version::V5, &mut encoded);
            self.waiting.push_back((encoded, message.qos, finished));
        } else if let Some(id) = packet.packet_id {
            packet.encode(Version::V5, out);
            self.open.push((id, finished));
        }
        None
    }

    /// Handles a PUBACK or PUBCOMP.
    pub fn acknowledged(&mut self, id: PacketId, reason: ReasonCode, out: &mut Vec<u8>) -> Option<Finished> {
        let at = self.open.iter().position(|(open, _)| *open == id)?;
        let (_, mut finished) = self.open.swap_remove(at);
        finished.refused = finished.refused.or(reason.is_error().then_some(reason));
        self.send_waiting(out);
        Some(finished)
    }

    /// Handles a PUBREC. A failure ends the exchange [MQTT-4.3.3-4].
    pub fn received(&mut self, id: PacketId, reason: ReasonCode, out: &mut Vec<u8>) -> Option<Finished> {
        if reason.is_error() {
            return self.acknowledged(id, reason, out);
        }
        put_short_ack(PacketType::PubRel, id, out);
        None
    }

    fn send_waiting(&mut self, out: &mut Vec<u8>) {
        while self.open.len() < usize::from(self.receive_maximum) {
            let Some((mut packet, _, finished)) = self.waiting.pop_front() else { return };
            let Some(id) = self.next_id() else {
                return self.waiting.push_front((packet, QoS::AtLeastOnce, finished));
            };
            set_packet_id(&mut packet, id);
            out.extend_from_slice(&packet);
            self.open.push((id, finished));
        }
    }

    /// Returns an unused Packet Identifier; `None` when all are in use.
    fn next_id(&mut self) -> Option<PacketId> {
        for _ in 0..ID_MAX {
            self.last_id = self.last_id % ID_MAX + 1;
            let id = PacketId::new(self.last_id)?;
            if !self.open.iter().any(|(open, _)| *open == id) {
                return Some(id);
            }
        }
        None
    }
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

    #[test]
    fn messages_wait_for_the_receive_maximum() {
        let mut outbound = Outbound { receive_maximum: 2, ..Outbound::default() };
        let mut out = Vec::new();
        for sequence in 0..4 {
            let done = outbound.publish(sequence, Purpose::Output, &message(QoS::AtLeastOnce), &mut out);
            assert_eq!(done, None);
        }
        assert_eq!(published(&out), [1, 2]);
        out.clear();
        let id = |id| PacketId::new(id).expect("not 0");
        let done = outbound.acknowledged(id(2), ReasonCode::Success, &mut out).expect("known");
        assert_eq!((done.sequence, done.refused), (1, None));
        let done = outbound.acknowledged(id(1), ReasonCode::QuotaExceeded, &mut out).expect("known");
        assert_eq!((done.sequence, done.refused), (0, Some(ReasonCode::QuotaExceeded)));
        assert_eq!(published(&out), [3, 4]);
        assert_eq!(outbound.acknowledged(id(9), ReasonCode::Success, &mut out), None);
    }

    #[test]
    fn qos_0_is_complete_at_once_and_qos_2_after_two_exchanges() {
        let mut outbound = Outbound { receive_maximum: 9, ..Outbound::default() };
        let mut out = Vec::new();
        assert!(outbound.publish(0, Purpose::Output, &message(QoS::AtMostOnce), &mut out).is_some());
        assert!(outbound.publish(1, Purpose::Output, &message(QoS::ExactlyOnce), &mut out).is_none());
        let id = PacketId::new(1).expect("not 0");
        assert_eq!(outbound.received(id, ReasonCode::Success, &mut out), None);
        assert_eq!(published(&out), [0, 1, 1001]);
        assert!(outbound.acknowledged(id, ReasonCode::Success, &mut out).is_some());
        assert!(outbound.publish(2, Purpose::Output, &message(QoS::ExactlyOnce), &mut out).is_none());
        let refused =
            outbound.received(PacketId::new(2).expect("not 0"), ReasonCode::NotAuthorized, &mut out);
        assert_eq!(refused.expect("ends").refused, Some(ReasonCode::NotAuthorized));
    }
}
