//! An MQTT client that does nothing by itself, unless it is set to acknowledge.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use mqtt::{
    Ack, Connect, Disconnect, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS,
    ReasonCode, RetainHandling, Subscribe, SubscribeFiltersBuf, SubscriptionOptions, Version, decode, frame,
};

use super::PATIENCE;

pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    version: Version,
}

/// Options of a CONNECT, in addition to the name.
#[derive(Clone, Copy, Debug)]
pub struct With {
    pub version: Version,
    pub username: Option<&'static str>,
    pub password: Option<&'static str>,
    pub clean_start: bool,
    /// Session Expiry Interval, in seconds.
    pub expiry: u32,
    pub receive_maximum: u16,
}

impl Default for With {
    fn default() -> Self {
        Self {
            version: Version::V5,
            username: None,
            password: None,
            clean_start: true,
            expiry: 0,
            receive_maximum: 65_535,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub packet_id: Option<u16>,
    pub content_type: Option<String>,
    pub user_properties: Vec<(String, String)>,
}

/// A packet from the server, or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    ConnAck(ReasonCode),
    SubAck,
    Message(Message),
    PubRel(u16),
    PingResp,
    Disconnect(ReasonCode),
    Other,
    /// The end of the connection, in order or not.
    End,
}

impl Client {
    pub fn connect(address: SocketAddr, name: &str, with: With) -> Result<Client, ReasonCode> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client { stream, unread: Vec::new(), version: with.version };
        let mut properties = PropertiesBuf::default();
        if with.version == Version::V5 {
            properties.push(Property::SessionExpiryInterval(with.expiry));
            properties.push(Property::ReceiveMaximum(with.receive_maximum));
        }
        client.send(&Packet::Connect(Connect {
            version: with.version,
            bridge: false,
            clean_start: with.clean_start,
            keep_alive: 60,
            client_id: name,
            will: None,
            username: with.username,
            password: with.password.map(str::as_bytes),
            properties: properties.as_properties(),
        }));
        match client.next() {
            Got::ConnAck(ReasonCode::Success) => Ok(client),
            Got::ConnAck(reason) => {
                assert_eq!(client.next(), Got::End);
                Err(reason)
            }
            other => panic!("instead of CONNACK: {other:?}"),
        }
    }

    pub fn subscribe(&mut self, filter: &str, qos: QoS) {
        let mut filters = SubscribeFiltersBuf::default();
        let retain_handling = RetainHandling::Send;
        filters.push(
            filter,
            SubscriptionOptions { qos, no_local: false, retain_as_published: false, retain_handling },
        );
        let (packet_id, filters) = (packet_id(1), filters.as_filters());
        self.send(&Packet::Subscribe(Subscribe { packet_id, properties: Properties::EMPTY, filters }));
        assert_eq!(self.next(), Got::SubAck);
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS) {
        let id = (qos != QoS::AtMostOnce).then(|| packet_id(7));
        let properties = Properties::EMPTY;
        let publish = Publish { dup: false, qos, retain: false, topic, packet_id: id, properties, payload };
        self.send(&Packet::Publish(publish));
    }

    /// Waits until the server has processed everything sent before.
    pub fn ping(&mut self) {
        self.send(&Packet::PingReq);
        loop {
            match self.next() {
                Got::PingResp => return,
                Got::End => panic!("the connection ended"),
                _ => {}
            }
        }
    }

    pub fn disconnect(mut self) {
        self.send(&Packet::Disconnect(Disconnect {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        }));
        assert_eq!(self.next(), Got::End);
    }

    /// Returns the next message, without an acknowledgement.
    #[track_caller]
    pub fn message(&mut self) -> Message {
        match self.next() {
            Got::Message(message) => message,
            other => panic!("instead of a message: {other:?}"),
        }
    }

    pub fn acknowledge(&mut self, message: &Message) {
        let Some(id) = message.packet_id else { return };
        match message.qos {
            1 => self.send(&Packet::PubAck(ack(id))),
            _ => {
                self.send(&Packet::PubRec(ack(id)));
                assert_eq!(self.next(), Got::PubRel(id));
                self.send(&Packet::PubComp(ack(id)));
            }
        }
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(self.version, &mut bytes));
        self.stream.write_all(&bytes).expect("the server reads");
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
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the server is silent"),
                Err(_) => return Got::End,
            }
        }
    }

    fn take(&mut self) -> Option<Got> {
        let length = frame(&self.unread, u32::MAX).expect("the server begins packets rightly")?;
        let packet = self.unread.get(..length)?;
        let got = match decode(self.version, packet).expect("the server sends legal packets") {
            Packet::ConnAck(ack) => Got::ConnAck(ack.reason),
            Packet::SubAck(_) => Got::SubAck,
            Packet::Publish(publish) => Got::Message(Message {
                topic: publish.topic.to_owned(),
                payload: publish.payload.to_vec(),
                qos: publish.qos as u8,
                retain: publish.retain,
                packet_id: publish.packet_id.map(PacketId::get),
                content_type: publish.properties.content_type().map(str::to_owned),
                user_properties: publish
                    .properties
                    .user_properties()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            }),
            Packet::PubRel(ack) => Got::PubRel(ack.packet_id.get()),
            Packet::PingResp => Got::PingResp,
            Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
            _ => Got::Other,
        };
        self.unread.drain(..length);
        Some(got)
    }
}

fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).expect("not 0")
}

fn ack(id: u16) -> Ack<'static> {
    Ack { packet_id: packet_id(id), reason: ReasonCode::Success, properties: Properties::EMPTY }
}
