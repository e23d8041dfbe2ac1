//! The client's side of WebSocket (RFC 6455).

use crate::random::Random;
use base64ct::{Base64, Encoding as _};
use sha1::{Digest as _, Sha1};

/// One connection's WebSocket.
pub struct WebSocket {
    /// Expected answer of the server; `None` once it has arrived.
    accept: Option<String>,
    /// Received bytes that do not form a complete answer or frame yet.
    left: Vec<u8>,
}

/// Constant of the handshake (RFC 6455, 1.3).
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum size of the answer to the request, in bytes.
const ANSWER_MAX: usize = 16 * 1024;
/// Maximum size of a frame in bytes: the largest MQTT packet and a few more.
const FRAME_MAX: u64 = 512 << 20;

/// Limits of additional headers of a request: their number, and the bytes of a value.
const HEADERS_MAX: usize = 32;
const VALUE_MAX: usize = 4096;

const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl WebSocket {
    /// The request to send first.
    pub fn open(
        host: &str,
        path: &str,
        headers: &[(String, String)],
        random: &mut Random,
    ) -> (WebSocket, Vec<u8>) {
        let mut key = [0; 16];
        random.fill(&mut key);
        let key = Base64::encode_string(&key);
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: {key}\r\n{headers}\r\n"
        );
        let accept = Base64::encode_string(&Sha1::digest(format!("{key}{MAGIC}")));
        (WebSocket { accept: Some(accept), left: vec![] }, request.into_bytes())
    }

    pub fn is_open(&self) -> bool {
        self.accept.is_none()
    }

    /// Appends one binary message.
    pub fn frame(&self, payload: &[u8], random: &mut Random, to: &mut Vec<u8>) {
        frame(BINARY, payload, random, to);
    }

    /// Appends received data to `plain`, and answers to `answer`.
    ///
    /// # Errors
    /// A server that speaks another protocol.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        random: &mut Random,
        plain: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) -> Result<(), String> {
        let whole;
        let mut rest = match self.left.is_empty() {
            true => bytes,
            false => {
                self.left.extend_from_slice(bytes);
                whole = std::mem::take(&mut self.left);
                &whole[..]
            }
        };
        if let Some(accept) = &self.accept {
            match rest.windows(4).position(|four| four == b"\r\n\r\n") {
                None if rest.len() > ANSWER_MAX => {
                    return Err("the server does not speak WebSocket".to_owned());
                }
                None => {
                    self.left = rest.to_vec();
                    return Ok(());
                }
                Some(end) => {
                    check(&String::from_utf8_lossy(&rest[..end]), accept)?;
                    rest = &rest[end + 4..];
                    self.accept = None;
                }
            }
        }
        while let Some(Frame { opcode, payload, length }) = parse(rest)? {
            match opcode {
                0 | BINARY => plain.extend_from_slice(payload),
                PING => frame(PONG, payload, random, answer),
                PONG => {}
                CLOSE => return Err("the broker closes the WebSocket".to_owned()),
                _ => return Err("protocol error: a WebSocket frame is not binary".to_owned()),
            }
            rest = &rest[length..];
        }
        self.left = rest.to_vec();
        Ok(())
    }
}

/// Checks additional headers of a request.
///
/// # Errors
/// An invalid header, without its value, which may be a secret.
pub fn check_headers(headers: &[(String, String)]) -> Result<(), String> {
    const OWN: [&str; 4] = ["host", "upgrade", "connection", "content-length"];
    if headers.len() > HEADERS_MAX {
        return Err(format!("{} headers: {HEADERS_MAX} at most", headers.len()));
    }
    for (name, value) in headers {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let lower = name.to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(token) {
            return Err(format!("{name:?} is not a header name"));
        }
        if OWN.contains(&&*lower) || lower.starts_with("sec-websocket-") {
            return Err(format!("the header {name} is the WebSocket's own"));
        }
        if value.len() > VALUE_MAX || value.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(format!(
                "the value of the header {name} has control characters or more than {VALUE_MAX} bytes"
            ));
        }
    }
    Ok(())
}

fn check(answer: &str, accept: &str) -> Result<(), String> {
    let mut lines = answer.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let mut words = status.split(' ');
    match (words.next(), words.next()) {
        (Some("HTTP/1.1"), Some("101")) => {}
        (Some("HTTP/1.1" | "HTTP/1.0"), Some("404")) => {
            return Err("there is no WebSocket at this path (404): check it; Meridian's is /mqtt".to_owned());
        }
        (Some("HTTP/1.1" | "HTTP/1.0"), Some(code)) => {
            return Err(format!("the WebSocket is refused with status {code}"));
        }
        _ => return Err("the server does not speak WebSocket".to_owned()),
    }
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let has = |name: &str, value: &str| {
        headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && v.trim() == value)
    };
    match (has("Sec-WebSocket-Accept", accept), has("Sec-WebSocket-Protocol", "mqtt")) {
        (true, true) => Ok(()),
        (false, _) => Err("protocol error: wrong Sec-WebSocket-Accept".to_owned()),
        (true, false) => Err("the WebSocket at this path is not one for MQTT".to_owned()),
    }
}

struct Frame<'a> {
    opcode: u8,
    payload: &'a [u8],
    /// Length of the whole frame.
    length: usize,
}

/// The first frame; `None` when it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<Frame<'_>>, String> {
    let [first, second, ..] = bytes else { return Ok(None) };
    if second & 0x80 != 0 {
        return Err("protocol error: a masked WebSocket frame from a server".to_owned());
    }
    let (head, length) = match second & 0x7f {
        126 => match bytes.get(2..4) {
            Some(length) => (4, u64::from(u16::from_be_bytes([length[0], length[1]]))),
            None => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|length| <[u8; 8]>::try_from(length).ok()) {
            Some(length) => (10, u64::from_be_bytes(length)),
            None => return Ok(None),
        },
        length => (2, u64::from(length)),
    };
    if length > FRAME_MAX {
        return Err("protocol error: a WebSocket frame that is too large".to_owned());
    }
    let end = head + length as usize;
    Ok(bytes.get(head..end).map(|payload| Frame { opcode: first & 0x0f, payload, length: end }))
}

fn frame(opcode: u8, payload: &[u8], random: &mut Random, to: &mut Vec<u8>) {
    to.push(0x80 | opcode);
    match payload.len() {
        length @ 0..=125 => to.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            to.push(0x80 | 126);
            to.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            to.push(0x80 | 127);
            to.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let mut mask = [0; 4];
    random.fill(&mut mask);
    to.extend_from_slice(&mask);
    to.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> WebSocket {
        WebSocket { accept: None, left: vec![] }
    }

    fn feed(socket: &mut WebSocket, bytes: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>), String> {
        let (mut plain, mut answer) = (vec![], vec![]);
        for part in bytes.chunks(piece) {
            socket.receive(part, &mut Random::new(1), &mut plain, &mut answer)?;
        }
        Ok((plain, answer))
    }

    #[test]
    fn frames_are_read_however_the_bytes_are_split() {
        let mut wire = vec![0x82, 3, b'a', b'b', b'c', 0x89, 1, b'!', 0x82, 126, 1, 0];
        wire.extend_from_slice(&[7; 256]);
        for piece in [1, 2, 5, 1000] {
            let (plain, answer) = feed(&mut open(), &wire, piece).unwrap();
            assert_eq!((&plain[..3], plain.len()), (&b"abc"[..], 259), "{piece}");
            assert_eq!((answer[0], answer[1], answer.len()), (0x8a, 0x81, 7), "a masked PONG");
        }
    }

    #[test]
    fn a_sent_frame_can_be_unmasked() {
        for length in [0, 125, 126, 70_000] {
            let (payload, mut wire) = (vec![0x55; length], vec![]);
            open().frame(&payload, &mut Random::new(9), &mut wire);
            let head = wire.len() - length;
            let mask = wire[head - 4..head].to_vec();
            let back: Vec<u8> = wire[head..].iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m).collect();
            assert_eq!(back, payload);
            assert_ne!(mask, [0; 4]);
        }
    }

    #[test]
    fn other_answers_are_named() {
        for (answer, says) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n", "no WebSocket at this path"),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", "Sec-WebSocket-Accept"),
            ("\x20\x02\0\0\r\n\r\n", "does not speak WebSocket"),
            ("HTTP/1.1 503 No\r\n\r\n", "status 503"),
        ] {
            let (mut socket, _) = WebSocket::open("h", "/mqtt", &[], &mut Random::new(1));
            let error = feed(&mut socket, answer.as_bytes(), 7).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        for (frame, says) in [
            (&[0x82u8, 0x81, 0, 0, 0, 0, 1][..], "masked"),
            (&[0x81, 1, b'x'], "not binary"),
            (&[0x88, 0], "closes"),
            (&[0x82, 127, 255, 0, 0, 0, 0, 0, 0, 0], "too large"),
        ] {
            assert!(feed(&mut open(), frame, 3).unwrap_err().contains(says));
        }
    }
}
