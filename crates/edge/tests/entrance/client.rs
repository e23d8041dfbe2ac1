//! MQTT client over any byte stream.

use std::io::{self, Read, Write};

use mqtt::{
    Ack, Connect, Packet, PacketId, Properties, Publish, QoS, ReasonCode, Subscribe, SubscribeFiltersBuf,
    SubscriptionOptions, Version, decode, frame,
};

pub struct Client<S> {
    pub stream: S,
    unread: Vec<u8>,
}

fn connect(client_id: &str) -> Packet<'_> {
    Packet::Connect(Connect {
        version: Version::V5,
        bridge: false,
        client_id,
        clean_start: true,
        keep_alive: 0,
        username: None,
        password: None,
        will: None,
        properties: Properties::default(),
    })
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, unread: Vec::new() }
    }

    pub fn connect(stream: S, client_id: &str) -> Self {
        Self::try_connect(stream, client_id).expect("CONNACK")
    }

    /// Returns `None` when the node closes the connection instead.
    pub fn try_connect(stream: S, client_id: &str) -> Option<Self> {
        let mut client = Self::over(stream);
        client.try_send(&connect(client_id)).ok()?;
        client.next().starts_with("ConnAck").then_some(client)
    }

    pub fn send_connect(&mut self, client_id: &str) {
        self.send(&connect(client_id));
    }

    pub fn send(&mut self, packet: &Packet<'_>) {
        self.try_send(packet).expect("sent");
    }

    fn try_send(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        assert!(packet.encode(Version::V5, &mut bytes));
        self.stream.write_all(&bytes)?;
        self.stream.flush()
    }

    /// Returns the next packet as text; "" at the end of the stream.
    pub fn next(&mut self) -> String {
        let (text, _) = self.next_with_payload();
        text
    }

    fn next_with_payload(&mut self) -> (String, Vec<u8>) {
        loop {
            if let Ok(Some(length)) = frame(&self.unread, u32::MAX)
                && length <= self.unread.len()
            {
                let packet = decode(Version::V5, &self.unread[..length]).expect("a packet");
                let payload = match &packet {
                    Packet::Publish(publish) => publish.payload.to_vec(),
                    _ => Vec::new(),
                };
                let text = format!("{packet:?}");
                self.unread.drain(..length);
                return (text, payload);
            }
            let mut buffer = [0; 64 * 1024];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return (String::new(), Vec::new()),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
            }
        }
    }

    pub fn subscribe(&mut self, filter: &str) {
        let mut filters = SubscribeFiltersBuf::default();
        filters.push(filter, SubscriptionOptions { qos: QoS::AtLeastOnce, ..Default::default() });
        let packet_id = PacketId::new(1).expect("not 0");
        self.send(&Packet::Subscribe(Subscribe {
            packet_id,
            properties: Properties::default(),
            filters: filters.as_filters(),
        }));
        assert!(self.next().starts_with("SubAck"));
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8], id: u16) {
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: PacketId::new(id),
            properties: Properties::default(),
            payload,
        }));
    }
}

/// Sends messages of all sizes to itself on one connection.
pub fn echo<S: Read + Write>(client: &mut Client<S>, sizes: &[usize]) {
    client.subscribe("echo");
    for (id, size) in (1..).zip(sizes) {
        let payload: Vec<u8> = (0..*size).map(|at| (at * 7 + usize::from(id)) as u8).collect();
        client.publish("echo", &payload, id);
        let mut acknowledged = false;
        let mut received = false;
        while !(acknowledged && received) {
            let (text, came) = client.next_with_payload();
            if text.starts_with("PubAck") {
                acknowledged = true;
            } else {
                assert!(text.starts_with("Publish"), "{text}");
                assert!(came == payload, "{size} bytes");
                received = true;
                let packet_id = PacketId::new(id).expect("not 0");
                let (reason, properties) = (ReasonCode::Success, Properties::default());
                client.send(&Packet::PubAck(Ack { packet_id, reason, properties }));
            }
        }
    }
}
