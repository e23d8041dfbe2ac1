//! A connection between a controller and an agent. Its bytes are sealed with keys that both derive from a shared
//! secret and a fresh number of each end. An attacker without the secret can neither read nor forge them, and cannot
//! replay bytes of another connection.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// First bytes of both ends: the protocol and its version.
const MAGIC: &[u8; 8] = b"MBENCH 1";
const FRESH: usize = 32;
/// Maximum number of plain bytes in a piece.
const PIECE_MAX: usize = 64 * 1024;
/// Maximum time for the introduction of an end.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Silence after which the other end counts as gone. Both send something every two seconds.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// End of the connection.
#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Controller,
    Agent,
}

/// The two directions of a connection.
pub struct Sealed {
    pub from: From,
    pub to: To,
}

impl Sealed {
    /// Introduces the ends to each other. Reading a piece proves that the other end has the same secret.
    ///
    /// # Errors
    /// Errors of the connection, and another protocol.
    pub fn new(mut stream: TcpStream, end: End, secret: &[u8]) -> io::Result<Sealed> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(INTRODUCTION))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let mut ours = [0; FRESH];
        SystemRandom::new()
            .fill(&mut ours)
            .map_err(|_| io::Error::other("the system has no random bytes"))?;
        stream.write_all(&[MAGIC.as_slice(), &ours].concat())?;
        let mut hello = [0; MAGIC.len() + FRESH];
        stream.read_exact(&mut hello)?;
        let (magic, theirs) = hello.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(invalid("it speaks another protocol, or another version of this one"));
        }
        let fresh = match end {
            End::Controller => [ours.as_slice(), theirs].concat(),
            End::Agent => [theirs, ours.as_slice()].concat(),
        };
        let (controller, agent) = (key(secret, &fresh, b"controller")?, key(secret, &fresh, b"agent")?);
        let (read, write) = match end {
            End::Controller => (agent, controller),
            End::Agent => (controller, agent),
        };
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let from = From { stream: stream.try_clone()?, key: read, number: 0, plain: vec![], at: 0 };
        Ok(Sealed { from, to: To { stream, key: write, number: 0, plain: vec![] } })
    }
}

fn key(secret: &[u8], fresh: &[u8], end: &[u8]) -> io::Result<LessSafeKey> {
    let secret = Salt::new(HKDF_SHA256, fresh).extract(secret);
    let info = [end];
    let made = secret.expand(&info, &CHACHA20_POLY1305).map_err(|_| io::Error::other("no key"))?;
    Ok(LessSafeKey::new(UnboundKey::from(made)))
}

/// Pieces are numbered, so that none can be omitted, repeated or moved.
fn nonce(number: &mut u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    *number += 1;
    Nonce::assume_unique_for_key(bytes)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Receiving direction.
pub struct From {
    stream: TcpStream,
    key: LessSafeKey,
    number: u64,
    plain: Vec<u8>,
    at: usize,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.plain.len() {
            let mut size = [0; 4];
            match self.stream.read_exact(&mut size) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no bytes from it for 10 seconds"));
                }
                done => done?,
            }
            let size = u32::from_be_bytes(size) as usize;
            if size > PIECE_MAX + CHACHA20_POLY1305.tag_len() {
                return Err(invalid("a piece is too long"));
            }
            self.plain.resize(size, 0);
            self.stream.read_exact(&mut self.plain)?;
            let opened = self.key.open_in_place(nonce(&mut self.number), Aad::empty(), &mut self.plain);
            let length = opened.map_err(|_| invalid("its secret is another one (--secret-file)"))?.len();
            self.plain.truncate(length);
            self.at = 0;
        }
        let count = buffer.len().min(self.plain.len() - self.at);
        buffer[..count].copy_from_slice(&self.plain[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Sending direction. Bytes are sent by `flush`, or when they fill a piece.
pub struct To {
    stream: TcpStream,
    key: LessSafeKey,
    number: u64,
    plain: Vec<u8>,
}

impl To {
    fn send(&mut self) -> io::Result<()> {
        let mut piece = std::mem::take(&mut self.plain);
        if piece.is_empty() {
            return Ok(());
        }
        self.key
            .seal_in_place_append_tag(nonce(&mut self.number), Aad::empty(), &mut piece)
            .map_err(|_| io::Error::other("a piece could not be sealed"))?;
        let size = u32::try_from(piece.len()).map_err(io::Error::other)?;
        self.stream.write_all(&[size.to_be_bytes().as_slice(), &piece].concat())
    }
}

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_MAX - self.plain.len());
        self.plain.extend_from_slice(&bytes[..count]);
        if self.plain.len() == PIECE_MAX {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(secrets: [&'static [u8]; 2]) -> (Sealed, Sealed) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = std::thread::spawn(move || {
            Sealed::new(listener.accept().unwrap().0, End::Agent, secrets[1]).unwrap()
        });
        let controller =
            Sealed::new(TcpStream::connect(address).unwrap(), End::Controller, secrets[0]).unwrap();
        (controller, agent.join().unwrap())
    }

    #[test]
    fn bytes_arrive_in_both_directions_whatever_their_number() {
        let (mut controller, mut agent) = pair([b"s3cret", b"s3cret"]);
        let long: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let sent = long.clone();
        let sender = std::thread::spawn(move || {
            controller.to.write_all(&sent).unwrap();
            controller.to.flush().unwrap();
            let mut answer = [0; 4];
            controller.from.read_exact(&mut answer).unwrap();
            answer
        });
        let mut got = vec![0; long.len()];
        agent.from.read_exact(&mut got).unwrap();
        assert!(got == long);
        agent.to.write_all(b"done").unwrap();
        agent.to.flush().unwrap();
        assert_eq!(&sender.join().unwrap(), b"done");
    }

    #[test]
    fn an_end_with_another_secret_can_read_nothing() {
        let (mut controller, mut agent) = pair([b"s3cret", b"other"]);
        agent.to.write_all(b"hello").unwrap();
        agent.to.flush().unwrap();
        let error = controller.from.read(&mut [0; 9]).unwrap_err();
        assert!(error.to_string().contains("--secret-file"), "{error}");
    }

    /// A recorded piece is invalid in another connection, and the clear text is not on the wire.
    #[test]
    fn a_piece_is_valid_in_its_connection_and_position_only() {
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = relay.local_addr().unwrap();
        let attacker = std::thread::spawn(move || {
            let (mut stream, _) = relay.accept().unwrap();
            let mut hello = [0; 40];
            stream.read_exact(&mut hello).unwrap();
            // The same bytes back: a reflection.
            stream.write_all(&hello).unwrap();
            let mut piece = [0; 4 + 5 + 16];
            stream.read_exact(&mut piece).unwrap();
            stream.write_all(&piece).unwrap();
            piece
        });
        let mut controller =
            Sealed::new(TcpStream::connect(address).unwrap(), End::Controller, b"s3cret").unwrap();
        controller.to.write_all(b"hello").unwrap();
        controller.to.flush().unwrap();
        assert!(controller.from.read(&mut [0; 9]).is_err());
        let piece = attacker.join().unwrap();
        assert!(!piece.windows(5).any(|bytes| bytes == b"hello"));
    }

    #[test]
    fn other_protocols_are_recognised() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let unauthenticated = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[b'G'; 40]).unwrap();
        });
        let error = Sealed::new(listener.accept().unwrap().0, End::Agent, b"").err().unwrap();
        assert!(error.to_string().contains("another protocol"), "{error}");
        unauthenticated.join().unwrap();
    }
}
