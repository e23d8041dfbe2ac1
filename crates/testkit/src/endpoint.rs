//! Client side of a connection. It asserts the rules that hold for every client, whatever a test checks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqtt::{Packet, QoS, Version, decode, frame};

use crate::packets::Sent;

/// Client side of one connection, from CONNECT on.
pub struct Endpoint {
    version: Version,
    unread: Vec<u8>,
    received: VecDeque<Sent>,
    limits: Limits,
    aliases: BTreeMap<u16, String>,
    /// Packet Identifiers of unfinished messages from the server, and those that count against Receive Maximum.
    open: BTreeSet<u16>,
    counted: BTreeSet<u16>,
}

/// Limits that the client has announced.
struct Limits {
    receive_max: usize,
    packet_size_max: usize,
    alias_max: u16,
}

impl Endpoint {
    pub fn new(version: Version) -> Self {
        Self {
            version,
            unread: Vec::new(),
            received: VecDeque::new(),
            limits: Limits { receive_max: 65_535, packet_size_max: usize::MAX, alias_max: 0 },
            aliases: BTreeMap::new(),
            open: BTreeSet::new(),
            counted: BTreeSet::new(),
        }
    }

    /// Appends an encoded packet to `unsent`.
    pub fn write(&mut self, packet: &Sent, unsent: &mut Vec<u8>) {
        match packet {
            Sent::Connect(connect) => {
                self.limits = Limits {
                    receive_max: connect.receive_max.map_or(65_535, usize::from),
                    packet_size_max: connect.packet_size_max.map_or(usize::MAX, |size| size as usize),
                    alias_max: connect.alias_max.unwrap_or(0),
                };
            }
            Sent::PubAck(id, _) | Sent::PubComp(id, _) => {
                self.open.remove(id);
                self.counted.remove(id);
            }
            Sent::PubRec(id, reason) if reason.is_error() => {
                self.open.remove(id);
                self.counted.remove(id);
            }
            _ => {}
        }
        packet.encode(self.version, unsent);
    }

    /// Handles received bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut at = 0;
        while let Ok(Some(length)) = frame(&self.unread[at..], u32::MAX)
            && at + length <= self.unread.len()
        {
            assert!(length <= self.limits.packet_size_max, "the packet exceeds Maximum Packet Size"); // [MQTT-3.1.2-24]
            let packet = &self.unread[at..at + length];
            let packet = decode(self.version, packet).expect("the server sends valid packets");
            if let Packet::Publish(publish) = &packet {
                let properties = publish.properties;
                assert!(properties.topic_alias().unwrap_or(0) <= self.limits.alias_max); // [MQTT-3.1.2-26]
            }
            let mut sent = Sent::from_server(&packet);
            at += length;
            self.check(&mut sent);
            self.received.push_back(sent);
        }
        self.unread.drain(..at);
    }

    fn check(&mut self, sent: &mut Sent) {
        assert!(!matches!(self.received.back(), Some(Sent::Disconnect { .. })), "{sent:?} after DISCONNECT");
        match sent {
            Sent::Publish(message) => {
                if let Some(alias) = message.alias.take() {
                    if message.topic.is_empty() {
                        message.topic =
                            self.aliases.get(&alias).expect("an alias that was introduced").clone();
                    } else {
                        self.aliases.insert(alias, message.topic.clone());
                    }
                }
                let Some(id) = message.packet_id else { return };
                assert!(message.qos > QoS::AtMostOnce);
                // [MQTT-2.2.1-3]
                assert!(self.open.insert(id), "Packet Identifier {id} is in use");
                self.counted.insert(id);
                assert!(self.counted.len() <= self.limits.receive_max, "more than Receive Maximum"); // [MQTT-3.3.4-9]
            }
            Sent::PubRel(id, reason) if !reason.is_error() => {
                self.open.insert(*id);
            }
            _ => {}
        }
    }

    /// Packets that were received since the last call.
    pub fn received(&mut self) -> Vec<Sent> {
        self.received.drain(..).collect()
    }

    /// Number of packets that were received since the last call of [`Self::received`].
    pub fn arrived(&self) -> usize {
        self.received.len()
    }

    pub fn pop(&mut self) -> Option<Sent> {
        self.received.pop_front()
    }

    /// Handles the end of the transport.
    pub fn close(&mut self) {
        self.received.push_back(Sent::Closed);
    }
}
