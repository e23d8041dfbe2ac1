//! A minimal client of MQTT 5.0, which waits for every answer.

use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Maximum time for an answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Connect flag of Clean Start.
const CLEAN_START: u8 = 2;
/// Connect flags of a user name and a password.
const WITH_LOGIN: u8 = 0xc0;
/// Subscription Option: send no retained messages.
const NO_RETAINED: u8 = 0x20;
/// Identifiers of properties that a PUBLISH may have.
const PUBLISH_PROPERTIES: [u8; 8] = [0x01, 0x02, 0x03, 0x08, 0x09, 0x0b, 0x23, 0x26];

/// Credentials of a client.
#[derive(Clone, Copy)]
pub struct Login<'a> {
    pub username: &'a str,
    pub password: &'a str,
}

pub struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
    received: VecDeque<Message>,
    next_id: u16,
    patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: String,
    pub qos: u8,
    pub retain: bool,
}

pub(super) struct Packet {
    pub first: u8,
    pub body: Vec<u8>,
}

impl Client {
    /// Connects with a session that ends with its connection, and no Keep Alive.
    pub fn connect(address: SocketAddr, id: &str) -> Result<Self> {
        Self::connect_lasting(address, id, 0)
    }

    /// Connects to a new session, with a Session Expiry Interval in seconds.
    pub fn connect_lasting(address: SocketAddr, id: &str, expiry: u32) -> Result<Self> {
        Self::connect_within(address, id, true, expiry, ANSWER)
    }

    /// Connects to the session that the client has there, with a Session Expiry Interval in seconds.
    pub fn resume(address: SocketAddr, id: &str, expiry: u32) -> Result<Self> {
        Self::connect_within(address, id, false, expiry, ANSWER)
    }

    /// Connects, with a maximum time for CONNACK and all later answers.
    pub fn connect_within(
        address: SocketAddr,
        id: &str,
        clean_start: bool,
        expiry: u32,
        patience: Duration,
    ) -> Result<Self> {
        Self::connect_with(address, id, (clean_start, expiry), None, patience)
    }

    /// Connects with credentials to a new session, with a Session Expiry Interval in seconds.
    pub fn connect_as(address: SocketAddr, id: &str, login: Login<'_>, expiry: u32) -> Result<Self> {
        Self::connect_with(address, id, (true, expiry), Some(login), ANSWER)
    }

    /// Connects with credentials to the session that the client has there.
    pub fn resume_as(address: SocketAddr, id: &str, login: Login<'_>, expiry: u32) -> Result<Self> {
        Self::connect_with(address, id, (false, expiry), Some(login), ANSWER)
    }

    fn connect_with(
        address: SocketAddr,
        id: &str,
        (clean_start, expiry): (bool, u32),
        login: Option<Login<'_>>,
        patience: Duration,
    ) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience).with_context(|| format!("{address}"))?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream, bytes: Vec::new(), received: VecDeque::new(), next_id: 0, patience };
        let mut body = b"\0\x04MQTT\x05".to_vec();
        let flags = if clean_start { CLEAN_START } else { 0 };
        body.push(flags | if login.is_some() { WITH_LOGIN } else { 0 });
        body.extend(b"\0\0\x05\x11");
        body.extend(expiry.to_be_bytes());
        put_text(id, &mut body);
        if let Some(Login { username, password }) = login {
            put_text(username, &mut body);
            put_text(password, &mut body);
        }
        client.send(0x10, &body)?;
        let connack = client.answer(0x20)?;
        ensure!(connack.body.get(1) == Some(&0), "{id} was refused: {:02x?}", connack.body);
        Ok(client)
    }

    /// Sends DISCONNECT and closes the connection.
    pub fn disconnect(mut self) -> Result<()> {
        self.send(0xe0, &[])
    }

    /// Sets the maximum time for answers from now on.
    pub fn be_patient(&mut self, longest: Duration) {
        self.patience = longest;
    }

    /// Subscribes and waits for SUBACK; `level` sets which nodes must know of it before.
    pub fn subscribe(&mut self, filter: &str, qos: u8, level: &str) -> Result<()> {
        self.subscribe_with(filter, qos, level)
    }

    /// Subscribes as [`Self::subscribe`], and asks for no retained messages.
    pub fn subscribe_new(&mut self, filter: &str, qos: u8, level: &str) -> Result<()> {
        self.subscribe_with(filter, qos | NO_RETAINED, level)
    }

    fn subscribe_with(&mut self, filter: &str, options: u8, level: &str) -> Result<()> {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        let mut property = vec![0x26];
        put_text("suback", &mut property);
        put_text(level, &mut property);
        let mut body = self.next_id.to_be_bytes().to_vec();
        body.push(property.len() as u8);
        body.extend(property);
        put_text(filter, &mut body);
        body.push(options);
        self.send(0x82, &body)?;
        let suback = self.answer(0x90)?;
        let reason = suback.body.last().copied().unwrap_or(0xff);
        ensure!(reason <= 2, "a subscription to {filter} was refused with {reason:#04x}");
        Ok(())
    }

    /// Unsubscribes and waits for UNSUBACK.
    pub fn unsubscribe(&mut self, filter: &str) -> Result<()> {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        let mut body = self.next_id.to_be_bytes().to_vec();
        body.push(0);
        put_text(filter, &mut body);
        self.send(0xa2, &body)?;
        self.answer(0xb0).map(drop)
    }

    /// Subscribes to `count` filters at QoS 0, many at a time.
    pub fn subscribe_many(&mut self, count: u32, filter: impl Fn(u32) -> String) -> Result<()> {
        const AT_ONCE: u32 = 500;
        let mut sent = 0;
        for first in (0..count).step_by(AT_ONCE as usize) {
            self.next_id += 1;
            let mut body = self.next_id.to_be_bytes().to_vec();
            body.push(0);
            for at in first..(first + AT_ONCE).min(count) {
                put_text(&filter(at), &mut body);
                body.push(0);
            }
            self.send(0x82, &body)?;
            sent += 1;
        }
        for _ in 0..sent {
            let suback = self.answer(0x90)?;
            let refused = suback.body.iter().skip(3).find(|reason| **reason > 2);
            ensure!(refused.is_none(), "a subscription was refused with {refused:?}");
        }
        Ok(())
    }

    /// Publishes, and waits for the acknowledgements of its QoS.
    pub fn publish(&mut self, topic: &str, payload: &str, qos: u8, retain: bool) -> Result<()> {
        let mut body = Vec::new();
        put_text(topic, &mut body);
        if qos > 0 {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            body.extend(self.next_id.to_be_bytes());
        }
        body.push(0);
        body.extend(payload.as_bytes());
        self.send(0x30 | qos << 1 | u8::from(retain), &body)?;
        match qos {
            0 => return Ok(()),
            1 => self.acknowledged(0x40)?,
            _ => {
                self.acknowledged(0x50)?;
                self.send(0x62, &self.next_id.to_be_bytes())?;
                self.acknowledged(0x70)?;
            }
        }
        Ok(())
    }

    /// Publishes `count` messages at QoS 1, and waits until all are acknowledged.
    pub fn publish_many(&mut self, topic: &str, count: u32, size: usize) -> Result<()> {
        for _ in 0..count {
            self.next_id = self.next_id.checked_add(1).unwrap_or(1);
            let mut body = Vec::new();
            put_text(topic, &mut body);
            body.extend(self.next_id.to_be_bytes());
            body.push(0);
            body.resize(body.len() + size, b'x');
            self.send(0x32, &body)?;
        }
        (0..count).try_for_each(|_| self.acknowledged(0x40))
    }

    fn acknowledged(&mut self, kind: u8) -> Result<()> {
        let answer = self.answer(kind)?;
        let reason = answer.body.get(2).copied().unwrap_or(0);
        ensure!(reason < 0x80, "a message was refused with {reason:#04x}");
        Ok(())
    }

    /// The next message, or `None` when none arrives in this time.
    pub fn receive(&mut self, within: Duration) -> Result<Option<Message>> {
        let deadline = Instant::now() + within;
        while self.received.is_empty() {
            let Some(packet) = self.packet(deadline)? else { return Ok(None) };
            self.take(&packet)?;
        }
        Ok(self.received.pop_front())
    }

    /// Waits for an answer; messages that arrive before it are kept.
    fn answer(&mut self, kind: u8) -> Result<Packet> {
        let deadline = Instant::now() + self.patience;
        while let Some(packet) = self.packet(deadline)? {
            if packet.first & 0xf0 == kind {
                return Ok(packet);
            }
            self.take(&packet)?;
        }
        bail!("no answer of the kind {kind:#04x} in {} s", self.patience.as_secs());
    }

    fn take(&mut self, packet: &Packet) -> Result<()> {
        let Packet { first, body } = packet;
        match first & 0xf0 {
            0x30 => {
                let qos = first >> 1 & 3;
                let length =
                    body.get(..2).map_or(0, |bytes| usize::from(u16::from_be_bytes([bytes[0], bytes[1]])));
                let mut at = 2 + length;
                let topic = String::from_utf8_lossy(body.get(2..at).unwrap_or_default()).into_owned();
                let id = body.get(at..at + 2).map(<[u8]>::to_vec).unwrap_or_default();
                at += if qos > 0 { 2 } else { 0 };
                let (properties, after) = properties(body, at).context("a PUBLISH ends in its properties")?;
                at = after;
                // Enough to notice bytes in front that are no property.
                let known = properties.first().is_none_or(|id| PUBLISH_PROPERTIES.contains(id));
                ensure!(known, "a PUBLISH has the properties {properties:02x?}");
                let payload = String::from_utf8_lossy(body.get(at..).unwrap_or_default()).into_owned();
                self.received.push_back(Message { topic, payload, qos, retain: first & 1 != 0 });
                match qos {
                    1 => self.send(0x40, &id),
                    2 => self.send(0x50, &id),
                    _ => Ok(()),
                }
            }
            0x60 => self.send(0x70, body.get(..2).unwrap_or_default()),
            0xe0 => bail!("the node closed the connection: {body:02x?}"),
            _ => Ok(()),
        }
    }

    fn send(&mut self, first: u8, body: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(&encode(first, body))?)
    }

    fn packet(&mut self, deadline: Instant) -> Result<Option<Packet>> {
        loop {
            if let Some((packet, length)) = split(&self.bytes) {
                self.bytes.drain(..length);
                return Ok(Some(packet));
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return Ok(None);
            };
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the node closed the connection"),
                Ok(count) => self.bytes.extend(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A packet with this first byte and body.
pub(super) fn encode(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut length = body.len();
    loop {
        let more = length >= 0x80;
        packet.push((length & 0x7f) as u8 | if more { 0x80 } else { 0 });
        length >>= 7;
        if !more {
            break;
        }
    }
    packet.extend(body);
    packet
}

/// The properties of a packet that begin at this index with their length, and the index after them.
fn properties(body: &[u8], mut at: usize) -> Option<(&[u8], usize)> {
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let byte = *body.get(at)?;
        at += 1;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    body.get(at..at + length).map(|properties| (properties, at + length))
}

/// The first packet and its length, if it is complete.
pub(super) fn split(bytes: &[u8]) -> Option<(Packet, usize)> {
    let (mut length, mut at) = (0, 1);
    for shift in [0, 7, 14, 21] {
        let byte = *bytes.get(at)?;
        at += 1;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let body = bytes.get(at..at + length)?.to_vec();
    Some((Packet { first: bytes[0], body }, at + length))
}

pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}
