//! Client that sends nothing by itself.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use mqtt::{
    Ack, Connect, Disconnect, Packet, PacketId, Properties, Publish, QoS, ReasonCode, RetainHandling,
    Subscribe, SubscribeFiltersBuf, SubscriptionOptions, Version, Will, decode, frame,
};

use crate::PATIENCE;

const VERSION: Version = Version::V5;

pub struct Client {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

/// Packet or event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    ConnAck,
    SubAck,
    Message {
        payload: Vec<u8>,
        packet_id: Option<u16>,
    },
    PubAck(u16),
    PingResp,
    Disconnect(ReasonCode),
    /// End of the connection, in order or not.
    End,
}

/// Options of a CONNECT.
#[derive(Clone, Copy, Debug, Default)]
pub struct With {
    pub will: Option<&'static str>,
    pub keep_alive: u16,
}

impl Client {
    pub fn connect(address: SocketAddr, name: &str) -> Client {
        Client::connect_with(address, name, With::default())
    }

    pub fn connect_with(address: SocketAddr, name: &str, with: With) -> Client {
        let mut client = Client::open(address).expect("a connection");
        client.send_connect(name, with);
        assert_eq!(client.next(), Got::ConnAck);
        client
    }

    /// Opens a network connection without sending anything.
    pub fn open(address: SocketAddr) -> io::Result<Client> {
        Client::over(TcpStream::connect_timeout(&address, PATIENCE)?)
    }

    pub fn over(stream: TcpStream) -> io::Result<Client> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, unread: Vec::new() })
    }

    pub fn send_connect(&mut self, name: &str, with: With) {
        self.send(&connect(name, with));
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn subscribe(&mut self, filter: &str, qos: QoS) {
        self.send(&subscribe(filter, qos));
        assert_eq!(self.next(), Got::SubAck);
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8]) {
        self.send(&publish(topic, payload, None));
    }

    pub fn publish_qos1(&mut self, topic: &str, payload: &[u8], id: u16) {
        self.send(&publish(topic, payload, Some(id)));
    }

    pub fn pub_ack(&mut self, id: u16) {
        let ack =
            Ack { packet_id: packet_id(id), reason: ReasonCode::Success, properties: Properties::EMPTY };
        self.send(&encoded(Packet::PubAck(ack)));
    }

    pub fn disconnect(&mut self) {
        let disconnect = Disconnect { reason: ReasonCode::Success, properties: Properties::EMPTY };
        self.send(&encoded(Packet::Disconnect(disconnect)));
    }

    /// Waits until the server has handled everything sent so far.
    pub fn ping(&mut self) {
        self.send(&PINGREQ);
        assert_eq!(self.next(), Got::PingResp);
    }

    /// Closes the sending side; the client still receives.
    pub fn shut_down_writing(&self) {
        self.stream.shutdown(Shutdown::Write).expect("it was connected");
    }

    pub fn next(&mut self) -> Got {
        loop {
            if let Some(got) = self.take() {
                return got;
            }
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Got::End,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("the server is silent"),
                Err(_) => return Got::End,
            }
        }
    }

    /// Returns everything up to the end of the connection.
    pub fn rest(&mut self) -> Vec<Got> {
        let mut all = Vec::new();
        loop {
            match self.next() {
                Got::End => return all,
                got => all.push(got),
            }
        }
    }

    /// Waits until something arrives, which may be the end.
    pub fn await_answer(&mut self) {
        self.stream.peek(&mut [0]).expect("an answer, or an orderly end");
    }

    /// Reads to the end and discards everything.
    pub fn drain(&mut self) {
        let mut buffer = [0; 4096];
        while self.stream.read(&mut buffer).expect("an orderly end") > 0 {}
    }

    fn take(&mut self) -> Option<Got> {
        let length = frame(&self.unread, u32::MAX).expect("the server begins packets rightly")?;
        let packet = self.unread.get(..length)?;
        let got = match decode(VERSION, packet).expect("the server sends legal packets") {
            Packet::ConnAck(ack) => {
                assert_eq!(ack.reason, ReasonCode::Success);
                Got::ConnAck
            }
            Packet::SubAck(_) => Got::SubAck,
            Packet::Publish(publish) => Got::Message {
                payload: publish.payload.to_vec(),
                packet_id: publish.packet_id.map(PacketId::get),
            },
            Packet::PubAck(ack) => Got::PubAck(ack.packet_id.get()),
            Packet::PingResp => Got::PingResp,
            Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
            other => panic!("unexpected: {other:?}"),
        };
        self.unread.drain(..length);
        Some(got)
    }
}

pub const PINGREQ: [u8; 2] = [0xC0, 0];

fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).expect("not 0")
}

fn encoded(packet: Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(packet.encode(VERSION, &mut bytes));
    bytes
}

pub fn connect(name: &str, with: With) -> Vec<u8> {
    let will = with.will.map(|topic| Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        payload: b"gone",
        properties: Properties::EMPTY,
    });
    encoded(Packet::Connect(Connect {
        version: VERSION,
        bridge: false,
        clean_start: true,
        keep_alive: with.keep_alive,
        client_id: name,
        will,
        username: None,
        password: None,
        properties: Properties::EMPTY,
    }))
}

pub fn subscribe(filter: &str, qos: QoS) -> Vec<u8> {
    let options = SubscriptionOptions {
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let mut filters = SubscribeFiltersBuf::default();
    filters.push(filter, options);
    let (packet_id, filters) = (packet_id(1), filters.as_filters());
    encoded(Packet::Subscribe(Subscribe { packet_id, properties: Properties::EMPTY, filters }))
}

/// Builds a PUBLISH: QoS 1 with a Packet Identifier, else QoS 0.
pub fn publish(topic: &str, payload: &[u8], id: Option<u16>) -> Vec<u8> {
    encoded(Packet::Publish(Publish {
        dup: false,
        qos: if id.is_some() { QoS::AtLeastOnce } else { QoS::AtMostOnce },
        retain: false,
        topic,
        packet_id: id.map(packet_id),
        properties: Properties::EMPTY,
        payload,
    }))
}
