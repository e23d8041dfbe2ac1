//! One connection to a broker: packets in, packets out, PINGREQ in time.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use mqtt::{Connect, Disconnect, Packet, PropertiesBuf, Property, ReasonCode, Version, Will};

use super::args::ConnectArgs;
use super::property::Properties;
use super::socket::Socket;
use super::{Failure, wait};
use crate::signals;

/// A connection whose CONNECT was accepted.
pub struct Connection {
    socket: Socket,
    version: Version,
    /// Received bytes that do not form a complete packet yet.
    input: Vec<u8>,
    packets: VecDeque<Vec<u8>>,
    output: Vec<u8>,
    keep_alive: Option<Duration>,
    sent_at: Instant,
    ping_at: Option<Instant>,
    /// True until the broker has sent an MQTT packet.
    is_unanswered: bool,
    pub limits: Limits,
}

/// Limits of the broker, from its CONNACK.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub receive_max: u16,
    pub topic_alias_max: u16,
    pub packet_size_max: u32,
    pub qos_max: u8,
    pub retain_available: bool,
}

/// Event that ended a wait.
#[derive(Debug)]
pub enum Event {
    /// A complete packet for [`mqtt::decode`]. Never PINGRESP or DISCONNECT; the latter is a [`Failure`].
    Packet(Vec<u8>),
    /// The other descriptor is readable.
    Other,
    TimeOver,
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl Connection {
    /// Connects, sends CONNECT and waits for a successful CONNACK.
    ///
    /// # Errors
    /// [`Failure::Trouble`] when no broker is reachable, [`Failure::Refused`] when the broker refuses the connection.
    pub fn open(args: &ConnectArgs, properties: &Properties, client_id: &str) -> Result<Self, Failure> {
        let now = Instant::now();
        let mut connection = Self {
            socket: Socket::open(args)?,
            version: args.protocol_version,
            input: Vec::new(),
            packets: VecDeque::new(),
            output: Vec::new(),
            keep_alive: None,
            sent_at: now,
            ping_at: None,
            is_unanswered: true,
            limits: Limits {
                receive_max: u16::MAX,
                topic_alias_max: 0,
                packet_size_max: u32::MAX,
                qos_max: 2,
                retain_available: true,
            },
        };
        let mut connect_properties = properties.connect.clone();
        let expiry = args.session_expiry.or_else(|| {
            let given = properties.connect.as_properties().session_expiry_interval();
            (args.no_clean && given.is_none()).then_some(u32::MAX)
        });
        if let Some(seconds) = expiry {
            connect_properties.push(Property::SessionExpiryInterval(seconds));
        }
        let will = args.will_topic.as_deref().map(|topic| Will {
            qos: args.will_qos,
            retain: args.will_retain,
            topic,
            payload: args.will_payload.as_deref().unwrap_or_default().as_bytes(),
            properties: properties.will.as_properties(),
        });
        connection.send(&Packet::Connect(Connect {
            version: args.protocol_version,
            bridge: false,
            clean_start: !args.no_clean,
            keep_alive: args.keepalive,
            client_id,
            will,
            username: args.username(),
            password: args.password().map(str::as_bytes),
            properties: connect_properties.as_properties(),
        }))?;
        connection.accepted(args.keepalive, now + CONNECT_TIME)?;
        Ok(connection)
    }

    fn accepted(&mut self, keep_alive: u16, until: Instant) -> Result<(), Failure> {
        let bytes = match self.receive(Some(until), None)? {
            Event::Packet(bytes) => bytes,
            Event::TimeOver => return Err(Failure::Trouble("the broker does not answer CONNECT".to_owned())),
            Event::Other | Event::Interrupted => return Err(Failure::Trouble("interrupted".to_owned())),
        };
        let Packet::ConnAck(connack) = self.decode(&bytes)? else {
            return Err(Failure::Trouble(
                "the broker answers CONNECT with another packet than CONNACK".to_owned(),
            ));
        };
        let properties = connack.properties;
        if connack.reason != ReasonCode::Success {
            let why = properties.reason_string().map_or(String::new(), |text| format!(" ({text})"));
            return Err(Failure::Refused(format!(
                "the broker refuses the connection: {}{why}",
                connack.reason
            )));
        }
        self.limits = Limits {
            receive_max: properties.receive_maximum().unwrap_or(u16::MAX),
            topic_alias_max: properties.topic_alias_maximum().unwrap_or(0),
            packet_size_max: properties.maximum_packet_size().unwrap_or(u32::MAX),
            qos_max: properties.maximum_qos().unwrap_or(2),
            retain_available: properties.retain_available().unwrap_or(true),
        };
        let seconds = properties.server_keep_alive().unwrap_or(keep_alive);
        self.keep_alive = (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)));
        Ok(())
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// [`Failure::Trouble`] for bytes that are not a packet.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Packet<'a>, Failure> {
        mqtt::decode(self.version, bytes)
            .map_err(|error| Failure::Trouble(format!("the broker sent a broken packet: {error}")))
    }

    /// Appends a packet to the output. The next [`Connection::receive`] sends it at the latest.
    ///
    /// # Errors
    /// [`Failure::Trouble`] when the connection breaks, [`Failure::Refused`] for a packet larger than the broker
    /// accepts.
    pub fn send(&mut self, packet: &Packet<'_>) -> Result<(), Failure> {
        let before = self.output.len();
        packet.encode(self.version, &mut self.output);
        let len = self.output.len() - before;
        if len > self.limits.packet_size_max as usize {
            self.output.truncate(before);
            let max = self.limits.packet_size_max;
            return Err(Failure::Refused(format!(
                "the broker accepts packets of up to {max} bytes, this one has {len}"
            )));
        }
        if self.output.len() >= OUTPUT_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.output.is_empty() {
            return Ok(());
        }
        let written = self.socket.write_all(&self.output);
        self.output.clear();
        self.sent_at = Instant::now();
        match written {
            Ok(()) => Ok(()),
            // The reason why the broker closed the connection may have arrived before.
            Err(failure) => Err(self.last_words().unwrap_or(failure)),
        }
    }

    fn last_words(&mut self) -> Option<Failure> {
        while let Ok((true, _)) = wait::readable(self.socket.as_fd(), None, Duration::ZERO) {
            match self.read() {
                Ok(true) => {}
                Ok(false) => break,
                // With TLS this may be the alert that names the reason.
                Err(failure) => return self.split().err().or(Some(failure)),
            }
        }
        self.split().err()
    }

    /// Returns whether the next [`Connection::receive`] returns at once.
    pub fn has_packet(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Sends the output, then waits for a packet or for `other` to be readable, at most `until`.
    ///
    /// # Errors
    /// [`Failure::Trouble`] when the connection breaks, [`Failure::Refused`] when the broker closes it with a reason.
    pub fn receive(
        &mut self,
        until: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<Event, Failure> {
        loop {
            if let Some(packet) = self.packets.pop_front() {
                return Ok(Event::Packet(packet));
            }
            self.flush()?;
            if signals::interrupted() {
                return Ok(Event::Interrupted);
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(Event::TimeOver);
            }
            let mut wake = now + SIGNAL_TIME;
            if let Some(ping) = self.ping(now)? {
                wake = wake.min(ping);
            }
            wake = until.map_or(wake, |until| wake.min(until));
            let (ours, others) =
                wait::readable(self.socket.as_fd(), other, wake.saturating_duration_since(now))
                    .map_err(|error| Failure::Trouble(error.to_string()))?;
            if ours {
                let more = self.read()?;
                self.split()?;
                // With TLS the end may come together with the last packets.
                if !more && self.packets.is_empty() {
                    return Err(Failure::Trouble(match self.is_unanswered {
                        true => UNANSWERED.to_owned(),
                        false => "the broker closed the connection".to_owned(),
                    }));
                }
            } else if others {
                return Ok(Event::Other);
            }
        }
    }

    /// Sends PINGREQ when it is due [MQTT-3.1.2-20]. Returns the time of the next check.
    fn ping(&mut self, now: Instant) -> Result<Option<Instant>, Failure> {
        let Some(keep_alive) = self.keep_alive else { return Ok(None) };
        if let Some(asked) = self.ping_at {
            let answer_by = asked + keep_alive;
            if answer_by <= now {
                return Err(Failure::Trouble("the broker does not answer PINGREQ".to_owned()));
            }
            return Ok(Some(answer_by));
        }
        // A little early, so that it arrives in time.
        let due = self.sent_at + keep_alive.mul_f32(0.9);
        if due <= now {
            self.ping_at = Some(now);
            self.send(&Packet::PingReq)?;
            self.flush()?;
            return Ok(Some(now + keep_alive));
        }
        Ok(Some(due))
    }

    /// Reads the available bytes; `false` at the end of the stream.
    fn read(&mut self) -> Result<bool, Failure> {
        self.socket.read(&mut self.input)
    }

    /// Moves complete packets from the input to the list of packets.
    fn split(&mut self) -> Result<(), Failure> {
        if self.is_unanswered
            && let Some(protocol) = foreign(&self.input)
        {
            return Err(Failure::Trouble(protocol.to_owned()));
        }
        let mut at = 0;
        let result = loop {
            let rest = &self.input[at..];
            let len = match mqtt::frame(rest, u32::MAX) {
                Ok(Some(len)) if len <= rest.len() => len,
                Ok(_) => break Ok(()),
                Err(error) => {
                    break Err(Failure::Trouble(format!("the broker sent a broken packet: {error}")));
                }
            };
            let bytes = &rest[..len];
            at += len;
            self.is_unanswered = false;
            match mqtt::decode(self.version, bytes) {
                Ok(Packet::PingResp) => self.ping_at = None,
                Ok(Packet::Disconnect(disconnect)) => {
                    let why = disconnect.properties.reason_string();
                    let why = why.map_or(String::new(), |text| format!(" ({text})"));
                    let text = format!("the broker closed the connection: {}{why}", disconnect.reason);
                    break Err(Failure::Refused(text));
                }
                // The caller that decodes the packet finds errors.
                _ => self.packets.push_back(bytes.to_vec()),
            }
        };
        self.input.drain(..at);
        result
    }

    /// Sends DISCONNECT and waits until the broker has read it. Closing with unread bytes of the broker would reset
    /// the connection, and the broker could lose bytes that it has not read yet.
    ///
    /// # Errors
    /// [`Failure::Trouble`] when the last packets cannot be sent.
    pub fn close(mut self, properties: &PropertiesBuf, reason: ReasonCode) -> Result<(), Failure> {
        self.send(&Packet::Disconnect(Disconnect { reason, properties: properties.as_properties() }))?;
        self.flush()?;
        self.socket.shutdown();
        let until = Instant::now() + CLOSE_TIME;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let readable = wait::readable(self.socket.as_fd(), None, left);
            let over = left.is_zero() || signals::interrupted();
            if over
                || readable.is_err()
                || (matches!(readable, Ok((true, _))) && !self.read().unwrap_or(false))
            {
                return Ok(());
            }
        }
    }
}

/// Names the protocol of a port that answers CONNECT with these bytes, when it is not MQTT.
fn foreign(bytes: &[u8]) -> Option<&'static str> {
    if tls::is_record(bytes) {
        return Some(
            "this port speaks TLS: use mqtts:// (-L mqtts://HOST:PORT, or --tls), with --ca FILE for a private authority",
        );
    }
    bytes.starts_with(b"HTTP/").then_some(
        "this port speaks HTTP: is it the port of the API or of WebSocket? MQTT is usually at 1883; for WebSocket use -L ws://HOST:PORT",
    )
}

const UNANSWERED: &str = "the connection was closed before CONNECT was answered: does this port speak MQTT as it is, or TLS (mqtts://) or \
                          WebSocket (ws://)?";

pub(super) const CONNECT_TIME: Duration = Duration::from_secs(10);
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// Maximum duration of one wait. A signal that arrives just before a wait does not end it.
const SIGNAL_TIME: Duration = Duration::from_millis(500);
const OUTPUT_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_speaks_another_protocol_is_reported_with_that_protocol() {
        let fatal_alert = [21, 3, 3, 0, 2, 2, 70];
        assert!(foreign(&fatal_alert).unwrap().contains("speaks TLS: use mqtts://"));
        assert!(foreign(b"HTTP/1.1 400 Bad Request\r\n").unwrap().contains("speaks HTTP"));
        let connack = [0x20, 3, 0, 0, 0];
        assert_eq!((foreign(&connack), foreign(&[]), foreign(b"HTT")), (None, None, None));
    }
}
