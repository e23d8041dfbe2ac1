//! A client's end of a connection. It requires whole and legal packets, and knows the correct answers.

use mqtt::{Ack, Connect, Packet, PacketId, Properties, QoS, ReasonCode, Version, decode, frame};

#[derive(Default)]
pub struct Peer {
    pub worker: usize,
    pub slot: u32,
    pub gone: bool,
    /// Reads nothing that is written to it.
    pub stopped: bool,
    /// The worker reads nothing from it.
    pub held: bool,
    /// Bytes that the worker has not accepted yet.
    pub unsent: Vec<u8>,
    /// The first bytes that it sent, which contain its CONNECT.
    first: Vec<u8>,
    unread: Vec<u8>,
    answers: Vec<Answer>,
    connected: bool,
    closed: bool,
}

#[derive(Clone, Copy)]
#[expect(clippy::enum_variant_names, reason = "these are the names of the packets")]
enum Answer {
    PubAck(PacketId),
    PubRec(PacketId),
    PubRel(PacketId),
    PubComp(PacketId),
}

impl Peer {
    pub fn new(worker: usize, slot: u32) -> Self {
        Self { worker, slot, ..Self::default() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let room = FIRST_MAX.saturating_sub(self.first.len());
        self.first.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.unsent.extend_from_slice(bytes);
    }

    fn connect(&self) -> Option<Connect<'_>> {
        let length = frame(&self.first, u32::MAX).ok()??;
        let bytes = self.first.get(..length)?;
        match decode(mqtt::connect_version(bytes)?, bytes) {
            Ok(Packet::Connect(connect)) => Some(connect),
            _ => None,
        }
    }

    /// Protocol version of the server's packets.
    fn version(&self) -> Version {
        // A client of an unknown version is refused in the form of 3.1.1.
        mqtt::connect_version(&self.first).unwrap_or(Version::V3_1_1)
    }

    /// Receives bytes from the server.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut self.unread);
        let version = self.version();
        let size_max = self.connect().map_or(u32::MAX, |connect| connect.maximum_packet_size());
        let mut at = 0;
        while let Some(length) = frame(&unread[at..], u32::MAX).expect("the server sends valid packets")
            && at + length <= unread.len()
        {
            assert!(length <= size_max as usize, "[MQTT-3.1.2-24]");
            let packet = decode(version, &unread[at..at + length]);
            let packet = packet.unwrap_or_else(|error| panic!("{error}: {:?}", &unread[at..at + length]));
            self.packet(&packet);
            at += length;
        }
        self.unread = unread[at..].to_vec();
    }

    fn packet(&mut self, packet: &Packet<'_>) {
        assert!(!self.closed, "{packet:?} after the end");
        let first = !std::mem::replace(&mut self.connected, true);
        match packet {
            Packet::ConnAck(ack) => {
                assert!(first, "a second CONNACK");
                self.closed = ack.reason.is_error();
            }
            // Only the exchange of enhanced authentication precedes CONNACK.
            Packet::Auth(_) => self.connected = !first,
            _ => assert!(!first, "{packet:?} before CONNACK"), // [MQTT-3.2.0-1]
        }
        match packet {
            Packet::Publish(publish) => match (publish.qos, publish.packet_id) {
                (QoS::AtLeastOnce, Some(id)) => self.answers.push(Answer::PubAck(id)),
                (QoS::ExactlyOnce, Some(id)) => self.answers.push(Answer::PubRec(id)),
                _ => {}
            },
            Packet::PubRec(ack) if !ack.reason.is_error() => self.answers.push(Answer::PubRel(ack.packet_id)),
            Packet::PubRel(ack) if !ack.reason.is_error() => {
                self.answers.push(Answer::PubComp(ack.packet_id))
            }
            Packet::Disconnect(_) => {
                assert!(version_has_disconnect(self.version()), "no DISCONNECT from a server before 5.0");
                self.closed = true;
            }
            Packet::Connect(_) | Packet::Subscribe(_) | Packet::Unsubscribe(_) | Packet::PingReq => {
                panic!("a server does not send {packet:?}")
            }
            _ => {}
        }
    }

    /// The answers that the protocol requires.
    pub fn answers(&mut self) -> Vec<u8> {
        let (version, mut bytes) = (self.version(), Vec::new());
        for answer in self.answers.drain(..) {
            let ack =
                |packet_id| Ack { packet_id, reason: ReasonCode::Success, properties: Properties::EMPTY };
            let packet = match answer {
                Answer::PubAck(id) => Packet::PubAck(ack(id)),
                Answer::PubRec(id) => Packet::PubRec(ack(id)),
                Answer::PubRel(id) => Packet::PubRel(ack(id)),
                Answer::PubComp(id) => Packet::PubComp(ack(id)),
            };
            assert!(packet.encode(version, &mut bytes));
        }
        bytes
    }
}

fn version_has_disconnect(version: Version) -> bool {
    version == Version::V5
}

const FIRST_MAX: usize = 64 * 1024;
