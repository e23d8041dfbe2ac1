//! Packets that a client receives.

use mqtt::{Packet, PropertiesBuf, ReasonCode};

use super::Message;

/// Packet from the broker, or the end of the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    ConnAck(ConnAck),
    Publish(Message),
    PubAck(Ack),
    PubRec(Ack),
    PubRel(Ack),
    PubComp(Ack),
    SubAck(SubAck),
    UnsubAck(SubAck),
    PingResp,
    Disconnect(Disconnect),
    Auth(Disconnect),
    Closed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConnAck {
    pub session_present: bool,
    pub reason: ReasonCode,
    pub properties: PropertiesBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ack {
    pub packet_id: u16,
    pub reason: ReasonCode,
    pub properties: PropertiesBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SubAck {
    pub packet_id: u16,
    pub reasons: Vec<u8>,
    pub properties: PropertiesBuf,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Disconnect {
    pub reason: ReasonCode,
    pub properties: PropertiesBuf,
}

impl Received {
    pub fn from_packet(packet: &Packet<'_>) -> Received {
        let ack = |ack: &mqtt::Ack<'_>| Ack {
            packet_id: ack.packet_id.get(),
            reason: ack.reason,
            properties: ack.properties.iter().collect(),
        };
        let suback = |suback: &mqtt::SubAck<'_>| SubAck {
            packet_id: suback.packet_id.get(),
            reasons: suback.reasons.to_vec(),
            properties: suback.properties.iter().collect(),
        };
        match packet {
            Packet::ConnAck(connack) => Received::ConnAck(ConnAck {
                session_present: connack.session_present,
                reason: connack.reason,
                properties: connack.properties.iter().collect(),
            }),
            Packet::Publish(publish) => Received::Publish(Message::from_packet(publish)),
            Packet::PubAck(packet) => Received::PubAck(ack(packet)),
            Packet::PubRec(packet) => Received::PubRec(ack(packet)),
            Packet::PubRel(packet) => Received::PubRel(ack(packet)),
            Packet::PubComp(packet) => Received::PubComp(ack(packet)),
            Packet::SubAck(packet) => Received::SubAck(suback(packet)),
            Packet::UnsubAck(packet) => Received::UnsubAck(suback(packet)),
            Packet::PingResp => Received::PingResp,
            Packet::Disconnect(packet) => Received::Disconnect(Disconnect {
                reason: packet.reason,
                properties: packet.properties.iter().collect(),
            }),
            Packet::Auth(packet) => Received::Auth(Disconnect {
                reason: packet.reason,
                properties: packet.properties.iter().collect(),
            }),
            Packet::Connect(_) | Packet::Subscribe(_) | Packet::Unsubscribe(_) | Packet::PingReq => {
                panic!("a server never sends {packet:?}")
            }
        }
    }
}
