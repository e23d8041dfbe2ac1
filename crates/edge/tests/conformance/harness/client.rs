//! Client that sends exactly the packets of a scenario.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mqtt::{
    Auth, Packet, PacketId, Properties, PropertiesBuf, Property, QoS, ReasonCode, Subscribe,
    SubscribeFiltersBuf, SubscriptionOptions, Unsubscribe, UnsubscribeFiltersBuf, Version,
};

use super::{Ack, Broker, ConnAck, Connect, Message, Received, SubAck, at};

/// Maximum wait for an expected packet. Only a failing scenario waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Network Connection with the state to read packets from it.
pub struct Client {
    stream: TcpStream,
    pub version: Version,
    bytes: Vec<u8>,
    /// Packets that arrived while another was expected.
    early: VecDeque<Received>,
    next_packet_id: u16,
}

impl Client {
    pub fn new(stream: TcpStream, version: Version) -> Client {
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a TCP socket");
        Client { stream, version, bytes: Vec::new(), early: VecDeque::new(), next_packet_id: 1 }
    }

    // Sending.

    /// Sends bytes. If the broker has closed the connection meanwhile, the next read shows it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            let closed = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted];
            assert!(closed.contains(&error.kind()), "cannot send: {error}");
        }
    }

    pub fn send(&mut self, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(self.version, &mut bytes), "{packet:?} can be encoded");
        self.send_bytes(&bytes);
    }

    pub fn send_connect(&mut self, connect: &Connect) {
        self.send_bytes(&connect.encode());
    }

    /// Sends a PUBLISH unchanged, without waiting for an answer.
    pub fn send_message(&mut self, message: &Message) {
        self.send_bytes(&message.encode(self.version));
    }

    pub fn send_puback(&mut self, packet_id: u16) {
        self.send(Packet::PubAck(ack(packet_id, ReasonCode::Success)));
    }

    pub fn send_pubrec(&mut self, packet_id: u16) {
        self.send(Packet::PubRec(ack(packet_id, ReasonCode::Success)));
    }

    pub fn send_pubrel(&mut self, packet_id: u16) {
        self.send(Packet::PubRel(ack(packet_id, ReasonCode::Success)));
    }

    pub fn send_pubcomp(&mut self, packet_id: u16) {
        self.send(Packet::PubComp(ack(packet_id, ReasonCode::Success)));
    }

    pub fn send_puback_with(&mut self, packet_id: u16, reason: ReasonCode) {
        self.send(Packet::PubAck(ack(packet_id, reason)));
    }

    pub fn send_pubrec_with(&mut self, packet_id: u16, reason: ReasonCode) {
        self.send(Packet::PubRec(ack(packet_id, reason)));
    }

    pub fn send_pubcomp_with(&mut self, packet_id: u16, reason: ReasonCode) {
        self.send(Packet::PubComp(ack(packet_id, reason)));
    }

    pub fn send_ping(&mut self) {
        self.send(Packet::PingReq);
    }

    pub fn send_disconnect(&mut self, reason: ReasonCode, properties: &PropertiesBuf) {
        self.send(Packet::Disconnect(mqtt::Disconnect { reason, properties: properties.as_properties() }));
    }

    pub fn send_auth(&mut self, reason: ReasonCode, properties: &PropertiesBuf) {
        self.send(Packet::Auth(Auth { reason, properties: properties.as_properties() }));
    }

    // Receiving.

    /// Returns the next packet, or the end of the connection.
    pub fn recv(&mut self) -> Received {
        match self.early.pop_front() {
            Some(received) => received,
            None => self.read(),
        }
    }

    fn read(&mut self) -> Received {
        let Some(bytes) = self.read_bytes() else { return Received::Closed };
        match mqtt::decode(self.version, &bytes) {
            Ok(packet) => Received::from_packet(&packet),
            Err(error) => panic!("the broker sent {bytes:02x?}: {error}"),
        }
    }

    /// Returns the bytes of the next packet; `None` at the end of the connection.
    pub fn read_bytes(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let size = mqtt::frame(&self.bytes, u32::MAX)
                .unwrap_or_else(|error| panic!("the broker sent {:02x?}: {error}", self.bytes));
            if let Some(size) = size.filter(|&size| size <= self.bytes.len()) {
                return Some(self.bytes.drain(..size).collect());
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            assert!(!patience.is_zero(), "nothing arrived for {PATIENCE:?}, so far {:02x?}", self.bytes);
            self.stream.set_read_timeout(Some(patience)).expect("a TCP socket");
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.bytes.is_empty(), "closed within a packet: {:02x?}", self.bytes);
                    return None;
                }
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => return None,
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => panic!("cannot read: {error}"),
                },
            }
        }
    }

    /// Waits for a certain packet, and keeps the packets before it for later.
    fn wait_for<T>(&mut self, what: &str, wanted: impl Fn(&Received) -> Option<T>) -> T {
        if let Some(found) =
            self.early.iter().enumerate().find_map(|(at, received)| Some((at, wanted(received)?)))
        {
            self.early.remove(found.0);
            return found.1;
        }
        loop {
            let received = self.read();
            if let Some(found) = wanted(&received) {
                return found;
            }
            assert!(
                !matches!(received, Received::Closed | Received::Disconnect(_)),
                "{received:?} instead of {what}"
            );
            self.early.push_back(received);
        }
    }

    pub fn puback(&mut self) -> Ack {
        self.wait_for("PUBACK", |r| if let Received::PubAck(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn pubrec(&mut self) -> Ack {
        self.wait_for("PUBREC", |r| if let Received::PubRec(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn pubrel(&mut self) -> Ack {
        self.wait_for("PUBREL", |r| if let Received::PubRel(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn pubcomp(&mut self) -> Ack {
        self.wait_for("PUBCOMP", |r| if let Received::PubComp(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn suback(&mut self) -> SubAck {
        self.wait_for("SUBACK", |r| if let Received::SubAck(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn unsuback(&mut self) -> SubAck {
        self.wait_for("UNSUBACK", |r| if let Received::UnsubAck(ack) = r { Some(ack.clone()) } else { None })
    }

    pub fn pingresp(&mut self) {
        self.wait_for("PINGRESP", |r| matches!(r, Received::PingResp).then_some(()));
    }

    /// Returns the next packet, which must be a PUBLISH. Sends no acknowledgement.
    pub fn message_unacknowledged(&mut self) -> Message {
        match self.recv() {
            Received::Publish(message) => message,
            other => panic!("{other:?} instead of PUBLISH"),
        }
    }

    /// Returns the next packet, which must be a PUBLISH, and completes its acknowledgement.
    pub fn message(&mut self) -> Message {
        let message = self.message_unacknowledged();
        self.acknowledge(&message);
        message
    }

    pub fn acknowledge(&mut self, message: &Message) {
        let packet_id = message.packet_id;
        match message.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.send_puback(packet_id),
            QoS::ExactlyOnce => {
                self.send_pubrec(packet_id);
                let pubrel = self.pubrel();
                // [MQTT-4.3.3-4] [MQTT-2.2.1-5]
                assert_eq!((pubrel.packet_id, pubrel.reason), (packet_id, ReasonCode::Success));
                self.send_pubcomp(packet_id);
            }
        }
    }

    /// Returns the payloads of the next PUBLISH packets, as text.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.message().text().to_owned()).collect()
    }

    /// Expects the end of the connection, without another packet.
    pub fn closed(&mut self) {
        let received = self.recv();
        assert_eq!(received, Received::Closed);
    }

    /// Expects that the broker closes the connection, with a reason where the version has one [MQTT-4.13.1-1]
    /// [MQTT-3.14.4-2].
    pub fn closed_for(&mut self, reason: ReasonCode) {
        self.closed_for_one_of(&[reason]);
    }

    /// Variant of `closed_for` where the specification leaves a choice. The reason is only a SHOULD (4.13), so an
    /// external broker may close without one.
    pub fn closed_for_one_of(&mut self, reasons: &[ReasonCode]) {
        let received = self.recv();
        match &received {
            Received::Disconnect(disconnect) if self.version == Version::V5 => {
                assert!(reasons.contains(&disconnect.reason), "{disconnect:?} instead of {reasons:?}");
                // [MQTT-3.14.2-2]
                assert_eq!(disconnect.properties.as_properties().session_expiry_interval(), None);
                self.closed();
            }
            Received::Closed if self.version != Version::V5 || Broker::is_external() => {}
            other => panic!("{other:?} instead of the end of the connection, {reasons:?}"),
        }
    }

    // Protocol exchanges.

    /// Sends CONNECT, and fails unless the broker accepts.
    pub fn connect(&mut self, connect: &Connect) -> ConnAck {
        self.send_connect(connect);
        match self.recv() {
            Received::ConnAck(connack) => {
                assert_eq!(connack.reason, ReasonCode::Success, "for {connect:?}");
                // 3.1 reserves the byte of Session Present.
                assert!(!connack.session_present || self.version != Version::V3_1);
                connack
            }
            other => panic!("{other:?} instead of CONNACK for {connect:?}"),
        }
    }

    /// Returns a Packet Identifier that this client has not used yet.
    pub fn packet_id(&mut self) -> u16 {
        self.next_packet_id += 1;
        self.next_packet_id - 1
    }

    /// Publishes, and returns when the exchange is complete.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: QoS) {
        self.publish_message(Message::new(topic, payload, qos));
    }

    pub fn publish_message(&mut self, message: Message) {
        let reason = self.try_publish(message);
        assert!(!reason.is_error(), "the message was refused: {reason}");
    }

    /// Publishes, and returns the Reason Code of PUBACK or PUBREC.
    pub fn try_publish(&mut self, mut message: Message) -> ReasonCode {
        if message.qos == QoS::AtMostOnce {
            self.send_message(&message);
            return ReasonCode::Success;
        }
        if message.packet_id == 0 {
            message.packet_id = self.packet_id();
        }
        self.send_message(&message);
        // [MQTT-2.2.1-5] [MQTT3-2.3.1-6]
        if message.qos == QoS::AtLeastOnce {
            let puback = self.puback();
            assert_eq!(puback.packet_id, message.packet_id);
            return puback.reason;
        }
        let pubrec = self.pubrec();
        assert_eq!(pubrec.packet_id, message.packet_id);
        if !pubrec.reason.is_error() {
            self.send_pubrel(message.packet_id);
            let pubcomp = self.pubcomp();
            assert_eq!((pubcomp.packet_id, pubcomp.reason), (message.packet_id, ReasonCode::Success));
        }
        pubrec.reason
    }

    /// Subscribes, and fails unless the QoS is granted.
    pub fn subscribe(&mut self, filter: &str, qos: QoS) {
        self.subscribe_with(filter, at(qos), &[]);
    }

    pub fn subscribe_with(
        &mut self,
        filter: &str,
        options: SubscriptionOptions,
        properties: &[Property<'_>],
    ) {
        let reasons = self.try_subscribe(&[(filter, options)], properties);
        assert_eq!(reasons, [options.qos as u8], "for {filter}");
    }

    /// Subscribes, and returns the Reason Codes of SUBACK.
    pub fn try_subscribe(
        &mut self,
        filters: &[(&str, SubscriptionOptions)],
        properties: &[Property<'_>],
    ) -> Vec<u8> {
        let packet_id = self.packet_id();
        self.send_subscribe(packet_id, filters, properties);
        let suback = self.suback();
        // [MQTT-3.8.4-2] [MQTT3-3.8.4-2]
        assert_eq!(suback.packet_id, packet_id);
        // [MQTT-3.8.4-6] [MQTT3-3.8.4-5]
        assert_eq!(suback.reasons.len(), filters.len());
        suback.reasons
    }

    pub fn send_subscribe(
        &mut self,
        packet_id: u16,
        filters: &[(&str, SubscriptionOptions)],
        properties: &[Property<'_>],
    ) {
        let mut buf = SubscribeFiltersBuf::default();
        for (filter, options) in filters {
            buf.push(filter, *options);
        }
        let properties: PropertiesBuf = properties.iter().copied().collect();
        self.send(Packet::Subscribe(Subscribe {
            packet_id: PacketId::new(packet_id).expect("not 0"),
            properties: properties.as_properties(),
            filters: buf.as_filters(),
        }));
    }

    /// Unsubscribes, and returns the Reason Codes of UNSUBACK; none before 5.0.
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let packet_id = self.packet_id();
        self.send_unsubscribe(packet_id, filters);
        let unsuback = self.unsuback();
        // [MQTT-3.10.4-5] [MQTT3-3.10.4-4]
        assert_eq!(unsuback.packet_id, packet_id);
        let expected = if self.version == Version::V5 { filters.len() } else { 0 };
        assert_eq!(unsuback.reasons.len(), expected);
        unsuback.reasons
    }

    pub fn send_unsubscribe(&mut self, packet_id: u16, filters: &[&str]) {
        let mut buf = UnsubscribeFiltersBuf::default();
        for filter in filters {
            buf.push(filter);
        }
        self.send(Packet::Unsubscribe(Unsubscribe {
            packet_id: PacketId::new(packet_id).expect("not 0"),
            properties: Properties::default(),
            filters: buf.as_filters(),
        }));
    }

    pub fn ping(&mut self) {
        self.send_ping();
        self.pingresp();
    }

    /// Sends DISCONNECT, and waits until the broker has closed the connection.
    pub fn disconnect(mut self) {
        self.send_disconnect(ReasonCode::Success, &PropertiesBuf::default());
        self.drain();
    }

    pub fn disconnect_with(mut self, reason: ReasonCode, properties: &[Property<'_>]) {
        self.send_disconnect(reason, &properties.iter().copied().collect());
        self.drain();
    }

    /// Ends the connection like a network failure, and waits until the broker has noticed.
    pub fn fail(mut self) {
        self.stream.shutdown(Shutdown::Write).expect("a connected socket");
        self.drain();
    }

    /// Reads until the broker closes the connection.
    fn drain(&mut self) {
        while self.read_bytes().is_some() {}
    }

    /// Closes only the sending direction, like a crashed client.
    pub fn shut_down_sending(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("a connected socket");
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    // Absence of packets.

    /// Expects that nothing has arrived, and that the packets of this connection so far cause nothing more.
    pub fn nothing(&mut self) {
        self.send_ping();
        let received = self.recv();
        assert_eq!(received, Received::PingResp);
    }

    /// Expects nothing of what `publisher` has sent so far: a message that follows it must be the first to arrive.
    pub fn nothing_from(&mut self, publisher: &mut Client) {
        let barrier = barrier();
        self.subscribe(&barrier, QoS::AtMostOnce);
        publisher.publish(&barrier, "barrier", QoS::AtMostOnce);
        self.reaches(&barrier);
    }

    /// Expects none of the messages that this client has published so far.
    pub fn nothing_of_its_own(&mut self) {
        let barrier = barrier();
        self.subscribe(&barrier, QoS::AtMostOnce);
        self.publish(&barrier, "barrier", QoS::AtMostOnce);
        self.reaches(&barrier);
    }

    fn reaches(&mut self, barrier: &str) {
        match self.recv() {
            Received::Publish(message) if message.topic == barrier => {}
            other => panic!("{other:?} should not have arrived"),
        }
        self.unsubscribe(&[barrier]);
    }
}

fn ack(packet_id: u16, reason: ReasonCode) -> mqtt::Ack<'static> {
    let packet_id = PacketId::new(packet_id).expect("not 0");
    mqtt::Ack { packet_id, reason, properties: Properties::default() }
}

/// Returns a new topic for a barrier, which no other filter of a scenario matches.
fn barrier() -> String {
    static BARRIERS: AtomicU32 = AtomicU32::new(0);
    let number = BARRIERS.fetch_add(1, Ordering::Relaxed);
    format!("conformance/barrier/{}/{number}", std::process::id())
}
