//! A relay whose brokers are played by a test. Packets are written as short texts: `PUBLISH 5 q2 a/b`, `PUBREC 5`,
//! `PUBACK 5 0x87`.

use std::time::Duration;

use bridge::{
    ConnectionId, Direction, Existing, Input, Output, Relay, Settings, Side, Sides, State, Time, Topic,
};
use mqtt::{
    Ack, ConnAck, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode,
    RetainHandling, SubAck, Version, decode, frame,
};

pub struct Bench {
    pub relay: Relay,
    pub now: Time,
    versions: Sides<Version>,
    connections: Sides<Option<ConnectionId>>,
    /// Answer to CONNECT of each broker.
    pub answers: Sides<Answer>,
    /// Addresses that the relay opened.
    pub opened: Vec<String>,
    /// Packets that came with the end of a connection.
    pub last: Sides<Vec<String>>,
    /// Packets to this broker while the relay prepared itself.
    pub prepared: Vec<String>,
}

/// Content of a CONNACK.
#[derive(Clone, Debug)]
pub struct Answer {
    pub session_present: bool,
    pub reason: ReasonCode,
    pub properties: Vec<Property<'static>>,
}

/// Settings of a bridge with one topic entry in each direction.
pub fn settings() -> Settings {
    let mut settings = Settings::new("b", "one");
    settings.topics = vec![
        Topic::prefixed("out/#", Direction::Out, QoS::ExactlyOnce, "", "site/"),
        Topic::prefixed("in/#", Direction::In, QoS::ExactlyOnce, "", ""),
    ];
    settings
}

impl Bench {
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, Existing::default())
    }

    pub fn with(settings: Settings, existing: Existing) -> Self {
        let answer = Answer { session_present: true, reason: ReasonCode::Success, properties: Vec::new() };
        let versions = Sides { local: Version::V5, remote: settings.version };
        let relay = Relay::new(settings, "own", existing, 1).expect("valid settings");
        Self {
            relay,
            now: Time(1_000_000),
            versions,
            connections: Sides::default(),
            answers: Sides { local: answer.clone(), remote: answer },
            opened: Vec::new(),
            last: Sides::default(),
            prepared: Vec::new(),
        }
    }

    /// A bridge that is connected to both brokers, whose first packets were read.
    pub fn connected(settings: Settings) -> Self {
        let mut bench = Self::new(settings);
        bench.connect();
        bench
    }

    pub fn connect(&mut self) {
        self.handle(Input::Start);
        self.run();
        assert!(matches!(self.relay.state(), State::Connected { .. }), "{}", self.relay.state());
        self.sent(Side::Local);
        self.sent(Side::Remote);
    }

    pub fn handle(&mut self, input: Input<'_>) {
        self.relay.handle(self.now, input).expect("valid settings");
        self.relay.check_invariants();
    }

    /// Opens connections and answers CONNECT, SUBSCRIBE and UNSUBSCRIBE as long as the relay asks.
    pub fn run(&mut self) {
        for _ in 0..100 {
            if !self.run_once() {
                return;
            }
        }
        panic!("the relay opens one connection after another");
    }

    /// Handles one request of the relay. Returns false when there is none.
    pub fn run_once(&mut self) -> bool {
        let Some(output) = self.relay.poll_output() else { return false };
        match output {
            Output::Open { connection, address } => {
                self.opened.extend(address);
                *self.connections.of_mut(connection.side) = Some(connection);
                self.handle(Input::Opened(connection));
                let answer = self.answers.of(connection.side).clone();
                let properties = PropertiesBuf::from_iter(answer.properties);
                let connack = ConnAck {
                    session_present: answer.session_present,
                    reason: answer.reason,
                    properties: properties.as_properties(),
                };
                self.packet(connection.side, Packet::ConnAck(connack));
                if let State::Preparing = self.relay.state() {
                    let sent = self.answer_requests(connection.side);
                    self.prepared.extend(sent);
                }
            }
            Output::Close { connection, rest } => {
                let texts = texts(*self.versions.of(connection.side), &rest);
                *self.last.of_mut(connection.side) = texts;
            }
            Output::StateChanged => {}
        }
        true
    }

    /// Opens the connection that the relay asks for, without an answer to its CONNECT.
    pub fn open_silently(&mut self, side: Side) {
        while let Some(output) = self.relay.poll_output() {
            if let Output::Open { connection, .. } = output {
                assert_eq!(connection.side, side);
                *self.connections.of_mut(side) = Some(connection);
                return self.handle(Input::Opened(connection));
            }
        }
        panic!("no connection is asked for");
    }

    /// Answers all SUBSCRIBE and UNSUBSCRIBE packets that wait. Returns what was sent.
    pub fn answer_requests(&mut self, side: Side) -> Vec<String> {
        let bytes = self.relay.outgoing(side).to_vec();
        let sent = self.sent(side);
        each(*self.versions.of(side), &bytes, |packet| {
            let answer = |packet_id, reasons: Vec<u8>, is_subscribe| {
                let ack = SubAck { packet_id, properties: Properties::EMPTY, reasons: &reasons };
                let mut bytes = Vec::new();
                let packet = if is_subscribe { Packet::SubAck(ack) } else { Packet::UnsubAck(ack) };
                assert!(packet.encode(*self.versions.of(side), &mut bytes));
                bytes
            };
            let bytes = match packet {
                Packet::Subscribe(it) => {
                    answer(it.packet_id, it.filters.iter().map(|(_, o)| o.qos as u8).collect(), true)
                }
                Packet::Unsubscribe(it) => answer(it.packet_id, vec![0; it.filters.len()], false),
                _ => return,
            };
            if let Some(id) = *self.connections.of(side) {
                self.relay.handle(self.now, Input::Received(id, &bytes)).expect("valid settings");
            }
        });
        sent
    }

    /// Delivers a packet from a broker.
    pub fn packet(&mut self, side: Side, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(*self.versions.of(side), &mut bytes), "{packet:?}");
        let id = self.connections.of(side).expect("a connection");
        self.handle(Input::Received(id, &bytes));
    }

    /// Delivers a message from a broker.
    pub fn publish(&mut self, side: Side, id: u16, qos: QoS, topic: &str, size: usize) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: PacketId::new(id).filter(|_| qos > QoS::AtMostOnce),
            properties: Properties::EMPTY,
            payload: &vec![7; size],
        };
        self.packet(side, Packet::Publish(publish));
    }

    /// Delivers a message from a broker that was sent before.
    pub fn publish_again(&mut self, side: Side, id: u16, qos: QoS, topic: &str) {
        let packet_id = PacketId::new(id);
        let (properties, payload) = (Properties::EMPTY, &[7][..]);
        let publish = Publish { dup: true, qos, retain: false, topic, packet_id, properties, payload };
        self.packet(side, Packet::Publish(publish));
    }

    /// Delivers an acknowledgement from a broker: `PUBACK`, `PUBREC`, `PUBREL` or `PUBCOMP`.
    pub fn ack(&mut self, side: Side, name: &str, id: u16, reason: ReasonCode) {
        let packet_id = PacketId::new(id).expect("not 0");
        let ack = Ack { packet_id, reason, properties: Properties::EMPTY };
        let packet = match name {
            "PUBACK" => Packet::PubAck(ack),
            "PUBREC" => Packet::PubRec(ack),
            "PUBREL" => Packet::PubRel(ack),
            _ => Packet::PubComp(ack),
        };
        self.packet(side, packet);
    }

    pub fn ok(&mut self, side: Side, name: &str, id: u16) {
        self.ack(side, name, id, ReasonCode::Success);
    }

    /// Reads everything that the relay has for a broker.
    pub fn sent(&mut self, side: Side) -> Vec<String> {
        let sent = texts(*self.versions.of(side), self.relay.outgoing(side));
        let count = self.relay.outgoing(side).len();
        if let Some(id) = self.relay.connection(side) {
            self.handle(Input::Sent(id, count));
        }
        sent
    }

    /// Ends a connection.
    pub fn cut(&mut self, side: Side) {
        let id = self.connections.of_mut(side).take().expect("a connection");
        self.handle(Input::Closed(id, "reset".into()));
    }

    /// Makes a connection that the relay asks for fail. Returns its address.
    pub fn fail_next(&mut self) -> Option<String> {
        loop {
            match self.relay.poll_output()? {
                Output::Open { connection, address } => {
                    self.handle(Input::Failed(connection, "unreachable".into()));
                    return address;
                }
                Output::Close { .. } | Output::StateChanged => {}
            }
        }
    }

    /// Lets time pass until the next timeout. Returns how long that was.
    pub fn wait(&mut self) -> Duration {
        let due = self.relay.poll_timeout().expect("a timeout");
        let passed = due.since(self.now);
        self.now = self.now.max(due);
        self.handle(Input::Timeout);
        passed
    }
}

fn each(version: Version, mut bytes: &[u8], mut f: impl FnMut(Packet<'_>)) {
    while let Some(length) = frame(bytes, u32::MAX).expect("valid packets") {
        f(decode(version, &bytes[..length]).expect("valid packets"));
        bytes = &bytes[length..];
    }
}

fn texts(version: Version, bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    each(version, bytes, |packet| texts.push(text(&packet)));
    texts
}

fn text(packet: &Packet<'_>) -> String {
    let ack = |name: &str, ack: &Ack<'_>| match ack.reason {
        ReasonCode::Success => format!("{name} {}", ack.packet_id),
        reason => format!("{name} {} {:#04x}", ack.packet_id, reason.as_u8()),
    };
    match packet {
        Packet::Connect(connect) => format!(
            "CONNECT {} bridge {} clean {} receive maximum {:?} will {:?}",
            connect.client_id,
            connect.bridge,
            connect.clean_start,
            connect.receive_maximum(),
            connect.will.map(|will| (will.topic.to_owned(), will.qos as u8, will.retain))
        ),
        Packet::Publish(publish) => {
            let id = publish.packet_id.map_or_else(String::new, |id| format!(" {id}"));
            let dup = if publish.dup { " dup" } else { "" };
            let is_shown = publish.retain || publish.topic.starts_with('$');
            let payload = if is_shown { String::from_utf8_lossy(publish.payload) } else { "".into() };
            let text = format!("PUBLISH{id} q{}{dup} {} {payload}", publish.qos as u8, publish.topic);
            text.trim_end().to_owned()
        }
        Packet::PubAck(it) => ack("PUBACK", it),
        Packet::PubRec(it) => ack("PUBREC", it),
        Packet::PubRel(it) => ack("PUBREL", it),
        Packet::PubComp(it) => ack("PUBCOMP", it),
        Packet::Subscribe(it) => {
            let filters = it.filters.iter().map(|(filter, options)| match options.retain_handling {
                RetainHandling::DoNotSend if !filter.starts_with('$') => format!("{filter}(no retained)"),
                _ => filter.to_owned(),
            });
            format!("SUBSCRIBE {}", filters.collect::<Vec<_>>().join(" "))
        }
        Packet::Unsubscribe(it) => {
            format!("UNSUBSCRIBE {}", it.filters.iter().collect::<Vec<_>>().join(" "))
        }
        Packet::PingReq => "PINGREQ".to_owned(),
        Packet::Disconnect(it) => format!("DISCONNECT {:#04x}", it.reason.as_u8()),
        other => format!("{other:?}"),
    }
}
