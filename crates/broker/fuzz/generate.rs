//! Programs from a seed: clients that mostly follow the protocol, with few enough topics and names that they meet.

use mqtt::{
    Ack, Auth, Connect, Disconnect, Packet, PacketId, PropertiesBuf, Property, Publish, QoS, ReasonCode,
    RetainHandling, Subscribe, SubscribeFiltersBuf, SubscriptionOptions, Unsubscribe, UnsubscribeFiltersBuf,
    Version, Will,
};

use random::Random;

use crate::mutate::mutate;
use crate::program::Op;

const CLIENTS: [&str; 4] = ["a", "b", "c", ""];
/// Topics, the rare ones last.
const TOPICS: [&str; 8] =
    ["t", "u", "t/1", "a/b/c", "long/topic/of/many/levels/and/bytes", "$SYS/x", "no/x", "ask/x"];
const FILTERS: [&str; 14] = [
    "t",
    "u",
    "+",
    "#",
    "t/#",
    "a/+/c",
    "$SYS/#",
    "no/#",
    "bad/#/x",
    "$share/g/t",
    "$share/g/#",
    "$share/h/+",
    "$share/g/t/1",
    "$share/x/a/#",
];

/// Generates a program of some operations, as bytes.
pub fn program(random: &mut Random) -> Vec<u8> {
    let mut script = Script { random, versions: Vec::new(), ops: Vec::new() };
    let variant = script.random.byte();
    for _ in 0..script.random.below(150) + 10 {
        script.turn();
    }
    encode(variant, &script.ops)
}

/// Combines two programs.
pub fn cross(random: &mut Random, one: &[u8], other: &[u8]) -> Vec<u8> {
    let (variant, mut ops) = crate::program::decode(one);
    let (_, others) = crate::program::decode(other);
    for _ in 0..=random.below(4) {
        if ops.is_empty() {
            break;
        }
        let at = random.below(ops.len());
        match random.below(6) {
            0 => drop(ops.remove(at)),
            1 => ops.insert(at, ops[at].clone()),
            2 => {
                let to = random.below(ops.len());
                ops.swap(at, to);
            }
            3 if !others.is_empty() => {
                let from = random.below(others.len());
                let to = (from + 1 + random.below(12)).min(others.len());
                ops.splice(at..at, others[from..to].iter().cloned());
            }
            _ => {
                let lent = others.iter().find_map(|op| match op {
                    Op::Send { bytes, .. } => Some(bytes.clone()),
                    _ => None,
                });
                if let Op::Send { bytes, .. } = &mut ops[at] {
                    mutate(random, bytes, &lent.unwrap_or_default());
                }
            }
        }
    }
    let variant = if random.below(8) == 0 { random.byte() } else { variant };
    encode(variant, &ops)
}

/// Encodes a program for `program::decode`.
pub fn encode(variant: u8, ops: &[Op]) -> Vec<u8> {
    let mut bytes = vec![variant];
    for op in ops {
        match op {
            Op::Open { worker } => bytes.extend([0, *worker]),
            Op::Answer { peer } => bytes.extend([1, *peer]),
            Op::Pass { time } => bytes.extend([2, *time]),
            Op::Lose { peer } => bytes.extend([3, *peer]),
            Op::Turn { peer } => bytes.extend([4, *peer]),
            Op::Read { peer } => bytes.extend([5, *peer]),
            Op::Step { wire } => bytes.extend([6, *wire]),
            Op::Run => bytes.extend([7, 0]),
            Op::AuthResult { allow } => bytes.extend([8, *allow]),
            Op::Stop { worker } => bytes.extend([9, *worker]),
            Op::Send { peer, bytes: piece } => {
                let piece = &piece[..piece.len().min(PIECE_MAX)];
                bytes.extend([10, *peer]);
                bytes.extend((piece.len() as u16).to_le_bytes());
                bytes.extend_from_slice(piece);
            }
        }
    }
    bytes
}

struct Script<'a> {
    random: &'a mut Random,
    /// Versions of the connections so far.
    versions: Vec<Version>,
    ops: Vec<Op>,
}

impl Script<'_> {
    fn one_in(&mut self, count: usize) -> bool {
        self.random.below(count) == 0
    }

    fn pick<'b, T: ?Sized>(&mut self, from: &[&'b T]) -> &'b T {
        from[self.random.below(from.len())]
    }

    fn topic(&mut self) -> &'static str {
        let count = if self.one_in(10) { TOPICS.len() } else { TOPICS.len() - 3 };
        TOPICS[self.random.below(count)]
    }

    fn turn(&mut self) {
        if self.versions.is_empty() || self.one_in(if self.versions.len() < 4 { 4 } else { 15 }) {
            return self.connect();
        }
        let peer = self.random.below(self.versions.len()) as u8;
        match self.random.below(20) {
            0..=9 => self.packets(peer),
            10..=12 => self.ops.push(Op::Answer { peer }),
            13 | 14 => self.ops.push(Op::Run),
            15 => {
                let wire = self.random.byte();
                self.ops.push(Op::Step { wire });
            }
            16 => {
                let time = self.random.byte();
                self.ops.push(Op::Pass { time });
            }
            17 => {
                let op = if self.one_in(2) { Op::Turn { peer } } else { Op::Read { peer } };
                self.ops.push(op);
            }
            18 => self.ops.push(Op::Lose { peer }),
            _ if self.one_in(12) => self.ops.push(Op::Stop { worker: peer }),
            _ => {
                let allow = self.random.byte();
                self.ops.push(Op::AuthResult { allow });
            }
        }
    }

    /// Generates some packets as one stream, cut into pieces. Now and then one of them is invalid.
    fn packets(&mut self, peer: u8) {
        let version = self.versions[usize::from(peer)];
        let mut stream = Vec::new();
        for _ in 0..=self.random.below(6) {
            let mut bytes = Vec::new();
            self.packet(version, &mut bytes);
            if self.one_in(30) {
                let other = stream.clone();
                mutate(self.random, &mut bytes, &other);
            }
            stream.extend_from_slice(&bytes);
        }
        let mut rest = stream.as_slice();
        while !rest.is_empty() {
            let length = if self.one_in(3) { self.random.below(rest.len()) + 1 } else { rest.len() };
            let (piece, after) = rest.split_at(length.min(PIECE_MAX));
            rest = after;
            self.ops.push(Op::Send { peer, bytes: piece.to_vec() });
            if self.one_in(6) {
                self.ops.push(Op::Run);
            }
        }
    }

    fn connect(&mut self) {
        let peer = self.versions.len() as u8;
        if usize::from(peer) >= PEERS_MAX {
            return;
        }
        let version = Version::ALL[self.random.below(3)];
        self.versions.push(version);
        let worker = self.random.byte();
        self.ops.push(Op::Open { worker });
        let client_id = self.pick(&CLIENTS);
        let mut properties = PropertiesBuf::default();
        let mut push = |property| assert!(properties.push(property));
        if version == Version::V5 {
            if self.one_in(2) {
                push(Property::SessionExpiryInterval([0, 1, 30, u32::MAX][self.random.below(4)]));
            }
            if self.one_in(2) {
                push(Property::ReceiveMaximum(1 + self.random.below(3) as u16));
            }
            if self.one_in(8) {
                push(Property::MaximumPacketSize([4, 20, 60, 60, 300, 300][self.random.below(6)]));
            }
            if self.one_in(3) {
                push(Property::TopicAliasMaximum(self.random.below(4) as u16));
            }
            if self.one_in(8) {
                push(Property::RequestProblemInformation(0));
            }
            if self.one_in(20) {
                push(Property::AuthenticationMethod("m"));
                push(Property::AuthenticationData([&b"more"[..], b"bad", b"ok"][self.random.below(3)]));
            }
        }
        let mut of_will = PropertiesBuf::default();
        if version == Version::V5 && self.one_in(2) {
            let seconds = self.random.below(20) as u32;
            assert!(of_will.push(Property::WillDelayInterval(seconds)));
        }
        let will = self.one_in(3).then(|| Will {
            qos: self.qos(),
            retain: self.one_in(3),
            topic: self.topic(),
            payload: b"will",
            properties: of_will.as_properties(),
        });
        let username = match self.random.below(20) {
            0 => Some("later"),
            1 => Some("nobody"),
            2 => Some("friend"),
            3 | 4 => Some("tenant"),
            5 => Some("slow"),
            _ => None,
        };
        let connect = Connect {
            version,
            bridge: self.one_in(8),
            clean_start: self.one_in(2),
            keep_alive: [0, 1, 60][self.random.below(3)],
            client_id,
            will,
            username,
            password: None,
            properties: properties.as_properties(),
        };
        let mut bytes = Vec::new();
        assert!(Packet::Connect(connect).encode(version, &mut bytes));
        self.ops.push(Op::Send { peer, bytes });
        if !self.one_in(4) {
            self.ops.push(Op::Run);
        }
    }

    fn qos(&mut self) -> QoS {
        [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][self.random.below(3)]
    }

    /// Chooses among few identifiers, so that they are used again.
    fn packet_id(&mut self) -> PacketId {
        PacketId::new(1 + self.random.below(6) as u16).expect("not 0")
    }

    fn packet(&mut self, version: Version, out: &mut Vec<u8>) {
        let packet_id = self.packet_id();
        let reason = if version == Version::V5 && self.one_in(8) {
            ReasonCode::UnspecifiedError
        } else {
            ReasonCode::Success
        };
        let ack = Ack { packet_id, reason, properties: mqtt::Properties::EMPTY };
        let settle = Ack { reason: ReasonCode::Success, ..ack };
        match self.random.below(16) {
            0..=5 => self.publish(version, out),
            6 | 7 => self.subscribe(version, out),
            8 => self.unsubscribe(version, out),
            9 => drop(Packet::PubAck(ack).encode(version, out)),
            10 => drop(Packet::PubRec(ack).encode(version, out)),
            11 | 12 => drop(Packet::PubRel(settle).encode(version, out)),
            13 => drop(Packet::PubComp(settle).encode(version, out)),
            14 => drop(Packet::PingReq.encode(version, out)),
            _ if self.one_in(3) => self.disconnect(version, out),
            _ if self.one_in(6) => self.auth(version, out),
            _ => drop(Packet::PingReq.encode(version, out)),
        }
    }

    fn publish(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut topic = self.topic();
        let mut properties = PropertiesBuf::default();
        let mut push = |property| assert!(properties.push(property));
        if version == Version::V5 {
            if self.one_in(5) {
                push(Property::TopicAlias(1 + self.random.below(3) as u16));
                if self.one_in(2) {
                    topic = "";
                }
            }
            if self.one_in(5) {
                push(Property::MessageExpiryInterval(self.random.below(3) as u32));
            }
            if self.one_in(8) {
                push(Property::PayloadFormatIndicator(1));
            }
            if self.one_in(8) {
                push(Property::UserProperty("k", "v"));
            }
        }
        let size = [0, 1, 10, 100, 1500, 3000][self.random.below(6)];
        let payload = vec![if self.one_in(4) { 0xFF } else { b'x' }; size];
        let qos = self.qos();
        let packet_id = self.packet_id();
        let publish = Publish {
            dup: qos > QoS::AtMostOnce && self.one_in(5),
            qos,
            retain: self.one_in(4),
            topic,
            packet_id: (qos > QoS::AtMostOnce).then_some(packet_id),
            properties: properties.as_properties(),
            payload: &payload,
        };
        assert!(Packet::Publish(publish).encode(version, out));
    }

    fn subscribe(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut filters = SubscribeFiltersBuf::default();
        for _ in 0..=self.random.below(4) {
            let filter = self.pick(&FILTERS);
            let five = version == Version::V5;
            let options = SubscriptionOptions {
                qos: self.qos(),
                no_local: five && !filter.starts_with("$share") && self.one_in(4),
                retain_as_published: five && self.one_in(3),
                retain_handling: match self.random.below(if five { 3 } else { 1 }) {
                    0 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            };
            filters.push(filter, options);
        }
        let mut properties = PropertiesBuf::default();
        if version == Version::V5 && self.one_in(3) {
            let id = 1 + self.random.below(300) as u32;
            assert!(properties.push(Property::SubscriptionIdentifier(id)));
        }
        let (packet_id, filters) = (self.packet_id(), filters.as_filters());
        let subscribe = Subscribe { packet_id, properties: properties.as_properties(), filters };
        assert!(Packet::Subscribe(subscribe).encode(version, out));
    }

    fn unsubscribe(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut filters = UnsubscribeFiltersBuf::default();
        for _ in 0..=self.random.below(4) {
            filters.push(self.pick(&FILTERS));
        }
        let (packet_id, filters) = (self.packet_id(), filters.as_filters());
        let unsubscribe = Unsubscribe { packet_id, properties: mqtt::Properties::EMPTY, filters };
        assert!(Packet::Unsubscribe(unsubscribe).encode(version, out));
    }

    fn disconnect(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut properties = PropertiesBuf::default();
        let five = version == Version::V5;
        if five && self.one_in(3) {
            let seconds = [0, 5, u32::MAX][self.random.below(3)];
            assert!(properties.push(Property::SessionExpiryInterval(seconds)));
        }
        let will = five && self.one_in(3);
        let reason = if will { ReasonCode::DisconnectWithWill } else { ReasonCode::Success };
        let disconnect = Disconnect { reason, properties: properties.as_properties() };
        assert!(Packet::Disconnect(disconnect).encode(version, out));
    }

    fn auth(&mut self, version: Version, out: &mut Vec<u8>) {
        let mut properties = PropertiesBuf::default();
        let data: &[u8] = [&b"more"[..], b"bad", b"ok"][self.random.below(3)];
        assert!(properties.push(Property::AuthenticationMethod("m")));
        assert!(properties.push(Property::AuthenticationData(data)));
        let again = self.one_in(2);
        let reason = if again { ReasonCode::ReAuthenticate } else { ReasonCode::ContinueAuthentication };
        let auth = Auth { reason, properties: properties.as_properties() };
        // Before 5.0 there is no AUTH to be sent.
        let _before_5 = !Packet::Auth(auth).encode(version, out);
    }
}

const PEERS_MAX: usize = 24;
/// Maximum size of one piece: its length takes two bytes.
const PIECE_MAX: usize = u16::MAX as usize;
