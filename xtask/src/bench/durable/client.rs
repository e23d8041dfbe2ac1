//! A blocking MQTT 3.1.1 client with a durable session, limited to the features of these measurements.

use crate::bench::listener::client::length;
use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub struct Client {
    stream: TcpStream,
    /// Received bytes, and the number of them that were consumed.
    bytes: Vec<u8>,
    taken: usize,
    pub session_present: bool,
    /// Time from the first byte of CONNECT to the complete CONNACK.
    pub connack: Duration,
    began: Instant,
}

/// Silence after which the broker counts as unresponsive.
const PATIENCE: Duration = Duration::from_secs(60);
const DISCONNECT: [u8; 2] = [0xE0, 0];

impl Client {
    /// Connects and waits for CONNACK. The session survives the connection.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub fn connect(address: SocketAddr, from: Ipv4Addr, id: &str) -> Result<Client> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&address.into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut body = b"\x00\x04MQTT\x04\x00\x00\x00".to_vec();
        text(&mut body, id);
        let began = Instant::now();
        let (bytes, connack) = (Vec::new(), Duration::ZERO);
        let mut client = Client { stream, bytes, taken: 0, session_present: false, connack, began };
        client.send(&packet(0x10, &body))?;
        let answer = client.packet()?.to_vec();
        ensure!(answer.len() == 4 && answer[0] == 0x20 && answer[3] == 0, "CONNACK is {answer:02x?}");
        client.session_present = answer[2] == 1;
        client.connack = began.elapsed();
        Ok(client)
    }

    /// Subscribes at QoS 1.
    pub fn subscribe(&mut self, filter: &str) -> Result<()> {
        let mut body = vec![0, 1];
        text(&mut body, filter);
        body.push(1);
        self.send(&packet(0x82, &body))?;
        let answer = self.packet()?;
        ensure!(answer == [0x90, 3, 0, 1, 1], "SUBACK is {answer:02x?}");
        Ok(())
    }

    pub fn disconnect(mut self) -> Result<()> {
        self.send(&DISCONNECT)
    }

    /// Disconnects. Returns when the broker has closed the connection too, or after a second.
    pub fn leave(mut self) -> Result<()> {
        self.send(&DISCONNECT)?;
        self.stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        // Wait for the end; further packets are ignored.
        while self.read().is_ok_and(|more| more) {
            self.taken = self.bytes.len();
        }
        Ok(())
    }

    /// Waits for the first message, which stays unacknowledged. Returns the time from the first byte of CONNECT to
    /// the complete PUBLISH.
    pub fn first_message(&mut self) -> Result<Duration> {
        let packet = self.packet()?;
        ensure!(packet[0] >> 4 == 3, "not a PUBLISH: {packet:02x?}");
        // The time counts when the whole packet is consumed.
        let length = packet.len();
        self.taken -= length;
        Ok(self.began.elapsed())
    }

    /// Receives and acknowledges `count` messages, or fewer when none arrives for `quiet`. Returns their number, and
    /// the time to the last one.
    pub fn drain(&mut self, count: u64, quiet: Duration) -> Result<(u64, Duration)> {
        self.stream.set_read_timeout(Some(quiet))?;
        let (mut received, mut answers) = (0, Vec::new());
        let (began, mut took) = (Instant::now(), Duration::ZERO);
        while received < count {
            while let Some(length) = length(&self.bytes[self.taken..])? {
                let packet = &self.bytes[self.taken..self.taken + length];
                if let Some(id) = identifier(packet)? {
                    answers.extend([0x40, 2, id[0], id[1]]);
                    received += 1;
                }
                self.taken += length;
            }
            if !answers.is_empty() {
                self.stream.write_all(&answers)?;
                answers.clear();
                took = began.elapsed();
                continue;
            }
            if !self.read()? {
                break;
            }
        }
        Ok((received, took))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Waits for the next packet.
    fn packet(&mut self) -> Result<&[u8]> {
        loop {
            if let Some(length) = length(&self.bytes[self.taken..])? {
                let from = self.taken;
                self.taken += length;
                return Ok(&self.bytes[from..from + length]);
            }
            ensure!(self.read()?, "the broker does not answer");
        }
    }

    /// Reads bytes; `false` when nothing arrived in time.
    fn read(&mut self) -> Result<bool> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let before = self.bytes.len();
        self.bytes.resize(before + READ_MAX, 0);
        let count = match self.stream.read(&mut self.bytes[before..]) {
            Ok(0) => bail!("the broker closed the connection"),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(error) => return Err(error.into()),
        };
        self.bytes.truncate(before + count);
        Ok(count > 0)
    }
}

const READ_MAX: usize = 256 * 1024;

fn text(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as u16).to_be_bytes());
    body.extend(text.as_bytes());
}

/// Encodes a packet whose Remaining Length fits one byte.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 128, "identifiers and filters here are short");
    let mut packet = vec![first, body.len() as u8];
    packet.extend(body);
    packet
}

/// The Packet Identifier of a PUBLISH at QoS 1; `None` for another packet.
fn identifier(packet: &[u8]) -> Result<Option<[u8; 2]>> {
    if packet[0] & 0xF6 != 0x32 {
        return Ok(None);
    }
    let start = 1 + packet[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    let field = |at: usize| packet.get(at..at + 2).context("a PUBLISH that is too short");
    let topic = field(start)?;
    let id = field(start + 2 + usize::from(u16::from_be_bytes([topic[0], topic[1]])))?;
    Ok(Some([id[0], id[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_packet_is_known_once_it_is_complete() {
        assert_eq!(length(&[]).unwrap(), None);
        assert_eq!(length(&[0x20, 2, 0]).unwrap(), None);
        assert_eq!(length(&[0x20, 2, 0, 0, 0x30]).unwrap(), Some(4));
        let mut long = vec![0x30, 0x80, 0x01];
        assert_eq!(length(&long).unwrap(), None);
        long.resize(3 + 128, 0);
        assert_eq!(length(&long).unwrap(), Some(131));
        assert!(length(&[0x30, 0x80, 0x80, 0x80, 0x80, 1]).is_err());
    }

    #[test]
    fn only_a_publish_at_qos_1_has_an_identifier_here() {
        assert_eq!(identifier(&[0x32, 7, 0, 1, b'a', 0x12, 0x34, 1, 2]).unwrap(), Some([0x12, 0x34]));
        assert_eq!(identifier(&[0x3A, 5, 0, 1, b'a', 0, 9]).unwrap(), Some([0, 9]), "with DUP");
        assert_eq!(identifier(&[0x30, 3, 0, 1, b'a']).unwrap(), None);
        assert_eq!(identifier(&[0x34, 5, 0, 1, b'a', 0, 9]).unwrap(), None);
        assert!(identifier(&[0x32, 3, 0, 9, b'a']).is_err());
    }
}
