//! Handling of packets from brokers.

use super::checker::Delivery;
use super::connection::{Role, Stage};
use super::engine::Engine;
use super::message::InvalidPayload;
use crate::codec::{self, Frame, Packet};
use crate::latency;
use crate::net;

/// Maximum number of reads of one client in a row.
const READS: usize = 4;
/// Room for the parts other than the payload: topic, properties, header.
const OVERHEAD_MAX: usize = 256 * 1024;

impl Engine<'_> {
    pub(super) fn read(&mut self, at: usize) {
        for _ in 0..READS {
            let connection = &mut self.connections[at];
            if connection.fd < 0 {
                return;
            }
            let bytes = match net::read(connection.fd, &mut self.scratch) {
                Ok(0) => return self.close(at, "closed by the broker"),
                Ok(bytes) => bytes,
                Err(libc::EAGAIN) => return,
                Err(libc::EINTR) => continue,
                Err(error) => return self.close(at, &format!("read: {}", net::errname(error))),
            };
            self.now = net::now();
            connection.last_in = self.now;
            connection.ping = 0;
            let mut input = std::mem::take(&mut connection.input);
            input.extend_from_slice(&self.scratch[..bytes]);
            if let Err(why) = self.packets(at, &mut input) {
                return self.close(at, &why);
            }
            if self.connections[at].fd < 0 {
                return;
            }
            self.connections[at].input = input;
            if bytes < self.scratch.len() {
                return;
            }
        }
    }

    /// Handles the complete packets at the front of `input`.
    fn packets(&mut self, at: usize, input: &mut Vec<u8>) -> Result<(), String> {
        let mut from = 0;
        loop {
            match codec::frame(&input[from..]).map_err(protocol)? {
                Frame::Have(first, body, end) => {
                    let packet =
                        codec::parse(first, &input[from + body..from + end], self.plan.version.is_5())
                            .map_err(protocol)?;
                    self.packet(at, packet)?;
                    from += end;
                }
                Frame::Need(bytes) if bytes > self.payloads.size() + OVERHEAD_MAX => {
                    return Err(protocol("a packet that is larger than any sent one"));
                }
                Frame::Need(_) => {
                    input.drain(..from);
                    return Ok(());
                }
            }
        }
    }

    fn packet(&mut self, at: usize, packet: Packet) -> Result<(), String> {
        let connection = &mut self.connections[at];
        if (connection.stage == Stage::Connack) != matches!(packet, Packet::ConnAck { .. }) {
            return Err(protocol("CONNACK has to come first, and once"));
        }
        match packet {
            Packet::ConnAck { session_present, code, props } => {
                self.accepted(at, session_present, code, &props)
            }
            Packet::Publish { qos, retain, topic, pid, payload, .. } => {
                self.delivery(at, (qos, pid), retain, topic, payload);
                Ok(())
            }
            Packet::Ack { kind, pid, reason } => {
                match &mut connection.role {
                    Role::Subscriber(subscriber) if kind == codec::PUBREL => {
                        subscriber.release(pid, &mut connection.out);
                    }
                    Role::Publisher(publisher) => {
                        publisher.acknowledge(kind, pid, reason, &mut self.checker, &mut connection.out);
                    }
                    Role::Subscriber(_) => return Err(protocol("an acknowledgement without a message")),
                }
                Ok(())
            }
            Packet::SubAck { codes, .. } => self.subscribed(at, codes),
            Packet::PingResp => Ok(()),
            Packet::Disconnect { reason } => {
                Err(format!("broker's DISCONNECT: {}", codec::reason_name(reason)))
            }
            Packet::UnsubAck => Err(protocol("UNSUBACK not asked for")),
            Packet::Auth => Err(protocol("AUTH not asked for")),
        }
    }

    fn accepted(
        &mut self,
        at: usize,
        present: bool,
        code: u8,
        props: &codec::ConnAckProps,
    ) -> Result<(), String> {
        if code != 0 {
            let why = format!("connect refused: {}", codec::connack_name(self.plan.version.is_5(), code));
            // Version, identifier, password, permission, ban: these failures are permanent.
            if matches!(code, 1 | 2 | 4 | 5 | 0x84 | 0x85 | 0x86 | 0x87 | 0x8a | 0x8c) {
                self.fatal.get_or_insert(why.clone());
            }
            return Err(why);
        }
        let highest = self.plan.shape.lanes.iter().max().copied().unwrap_or(0);
        if let Some(qos) = props.max_qos.filter(|qos| *qos < highest) {
            let why = format!("the broker's highest QoS is {qos}");
            self.fatal.get_or_insert(why.clone());
            return Err(why);
        }
        if let Some(expiry) = props.session_expiry.filter(|expiry| *expiry < self.plan.expiry) {
            self.expiry = Some(self.expiry.map_or(expiry, |other| other.min(expiry)));
        }
        let connection = &mut self.connections[at];
        connection.keepalive = props.server_keepalive.unwrap_or(self.plan.keepalive);
        let had = std::mem::replace(&mut connection.session, true);
        let lost = had && !present;
        self.counts.resumed += u64::from(had && present);
        let maximum = props.receive_max.unwrap_or(u16::MAX);
        match &mut connection.role {
            Role::Publisher(publisher) => {
                if present {
                    publisher.resumed(maximum);
                } else {
                    publisher.session_lost(maximum, &mut self.checker);
                }
                self.counts.lost_publishers += u64::from(lost);
                self.ready(at);
            }
            Role::Subscriber(subscriber) => {
                if !present {
                    subscriber.session_lost();
                }
                self.counts.lost_subscribers += u64::from(lost);
                if subscriber.subscribed {
                    self.ready(at);
                } else {
                    connection.stage = Stage::Suback;
                    let filter = self.plan.filter(connection.number);
                    codec::subscribe(&mut connection.out, self.plan.version.is_5(), 1, &[filter], highest);
                }
            }
        }
        if lost {
            self.note(at, "the broker lost its session".into());
        }
        Ok(())
    }

    fn subscribed(&mut self, at: usize, codes: &[u8]) -> Result<(), String> {
        let connection = &mut self.connections[at];
        let Role::Subscriber(subscriber) = &mut connection.role else {
            return Err(protocol("SUBACK not asked for"));
        };
        if connection.stage != Stage::Suback || codes.len() != 1 {
            return Err(protocol("SUBACK not asked for"));
        }
        let highest = self.plan.shape.lanes.iter().max().copied().unwrap_or(0);
        if codes[0] != highest {
            let name = if codes[0] < 3 { format!("QoS {}", codes[0]) } else { codec::reason_name(codes[0]) };
            let why = format!("subscribe at QoS {highest} was answered by {name}");
            self.fatal.get_or_insert(why.clone());
            return Err(why);
        }
        subscriber.subscribed = true;
        self.ready(at);
        Ok(())
    }

    fn delivery(&mut self, at: usize, (qos, id): (u8, u16), retain: bool, topic: &[u8], payload: &[u8]) {
        let connection = &mut self.connections[at];
        let Role::Subscriber(subscriber) = &mut connection.role else {
            self.counts.unexpected += 1;
            return;
        };
        if !subscriber.take(qos, id, &mut connection.out) {
            return;
        }
        let number = connection.number;
        self.silence.record_delivery(self.now);
        if let Some(silence) = self.silences.get_mut(number) {
            silence.record_delivery(self.now);
        }
        let message = match self.payloads.read(payload) {
            Ok(message) => message,
            Err(InvalidPayload::Foreign) => {
                self.counts.foreign += 1;
                return;
            }
            Err(InvalidPayload::Corrupt) => {
                self.counts.corrupt += 1;
                return;
            }
        };
        let delivery = self.checker.delivered(message.of, message.number, number);
        if delivery == Delivery::Phantom {
            return;
        }
        let sent_to = &self.topics[message.of.publisher][message.of.lane];
        let as_sent = sent_to.as_bytes() == topic && self.plan.shape.lanes[message.of.lane] == qos && !retain;
        self.counts.changed += u64::from(!as_sent);
        if matches!(delivery, Delivery::New | Delivery::Late) {
            latency::record(&mut self.latency, self.now.saturating_sub(message.due));
        }
    }
}

fn protocol(what: &str) -> String {
    format!("protocol error: {what}")
}
