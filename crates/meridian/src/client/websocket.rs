//! The client's side of WebSocket (RFC 6455): the upgrade, frames out, frames in. It has no sockets.

use base64ct::{Base64, Encoding as _};
use sha1::{Digest as _, Sha1};

/// Receiving half of one connection.
pub struct WebSocket {
    /// Received bytes that do not form a complete frame yet.
    incoming: Vec<u8>,
    /// True while a message of several frames is incomplete.
    fragmented: bool,
    /// True when the broker has announced that it closes.
    pub closed: bool,
}

/// The upgrade request, and the expected answer.
pub struct Upgrade {
    pub request: Vec<u8>,
    accept: String,
}

impl Upgrade {
    /// An upgrade request. `host` is in the form of a URL; `key` is random.
    pub fn new(host: &str, path: &str, key: [u8; 16]) -> Self {
        let key = Base64::encode_string(&key);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        let accept = Base64::encode_string(&Sha1::digest(format!("{key}{MAGIC}")));
        Self { request: request.into_bytes(), accept }
    }

    /// Checks the answer received so far; `None` when it is incomplete. Frames follow it.
    ///
    /// # Errors
    /// The reason why there is no WebSocket, with advice.
    pub fn answered(&self, bytes: &[u8]) -> Result<Option<WebSocket>, String> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < ANSWER_MAX => return Ok(None),
            Ok(httparse::Status::Partial) | Err(_) => {
                return Err("the server does not speak WebSocket".to_owned());
            }
        };
        let header = |name: &str| {
            let mut all = response.headers.iter();
            let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok().map(str::trim)
        };
        match response.code {
            Some(101) => {}
            Some(404) => {
                return Err("there is no WebSocket at this path (404); Meridian's is /mqtt".to_owned());
            }
            code => {
                let (code, reason) = (code.unwrap_or(0), response.reason.unwrap_or_default());
                return Err(format!("the WebSocket is refused: {code} {reason}"));
            }
        }
        if header("sec-websocket-accept") != Some(self.accept.as_str()) {
            return Err("the server does not speak WebSocket (Sec-WebSocket-Accept)".to_owned());
        }
        if header("sec-websocket-protocol") != Some("mqtt") {
            return Err("the WebSocket at this path is not one for MQTT (Sec-WebSocket-Protocol)".to_owned());
        }
        Ok(Some(WebSocket { incoming: bytes[length..].to_vec(), fragmented: false, closed: false }))
    }
}

/// Constant of the handshake (RFC 6455, 1.3).
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum size of an answer to the upgrade, in bytes.
const ANSWER_MAX: usize = 64 * 1024;
/// Maximum payload of a frame in bytes. The largest MQTT packet is 256 MiB and a few bytes.
const FRAME_MAX: u64 = 512 << 20;
/// Maximum payload of a control frame in bytes [RFC 6455, 5.5].
const CONTROL_MAX: u64 = 125;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl WebSocket {
    /// Handles received bytes: appends their payload to `plain`, and answers to `wire`. `mask` is random.
    ///
    /// # Errors
    /// A protocol error of the broker.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
        mask: [u8; 4],
    ) -> Result<(), &'static str> {
        self.incoming.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(frame) = Frame::parse(&self.incoming[at..])? {
            let payload = &self.incoming[at + frame.head..at + frame.head + frame.length];
            match frame.opcode {
                BINARY if self.fragmented => return Err("a WebSocket message begins within another one"),
                CONTINUATION if !self.fragmented => {
                    return Err("a WebSocket message continues that never began");
                }
                BINARY | CONTINUATION => {
                    plain.extend_from_slice(payload);
                    self.fragmented = !frame.last;
                }
                PING => append(PONG, payload, mask, wire),
                PONG => {}
                CLOSE => self.closed = true,
                _ => return Err("a WebSocket frame is not binary"),
            }
            at += frame.head + frame.length;
        }
        self.incoming.drain(..at);
        Ok(())
    }

    /// Appends bytes of MQTT as a frame.
    pub fn send(bytes: &[u8], mask: [u8; 4], wire: &mut Vec<u8>) {
        append(BINARY, bytes, mask, wire);
    }

    /// Appends the close frame of the client.
    pub fn close(mask: [u8; 4], wire: &mut Vec<u8>) {
        // Normal closure [RFC 6455, 7.4.1].
        append(CLOSE, &1000_u16.to_be_bytes(), mask, wire);
    }
}

fn append(opcode: u8, payload: &[u8], mask: [u8; 4], wire: &mut Vec<u8>) {
    wire.push(0x80 | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length), _) if length < 126 => wire.push(0x80 | length),
        (_, Ok(length)) => {
            wire.push(0x80 | 126);
            wire.extend(length.to_be_bytes());
        }
        _ => {
            wire.push(0x80 | 127);
            wire.extend((payload.len() as u64).to_be_bytes());
        }
    }
    wire.extend(mask);
    wire.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

struct Frame {
    opcode: u8,
    last: bool,
    head: usize,
    length: usize,
}

impl Frame {
    /// The first frame of `bytes`, when it is complete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (opcode, last) = (first & 0x0F, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err("a WebSocket frame uses an extension that was not negotiated");
        }
        if second & 0x80 != 0 {
            // RFC 6455, 5.1
            return Err("a WebSocket frame of the broker is masked");
        }
        let (head, length) = match second & 0x7F {
            126 => match rest.first_chunk() {
                Some(length) => (4, u64::from(u16::from_be_bytes(*length))),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (10, u64::from_be_bytes(*length)),
                None => return Ok(None),
            },
            length => (2, u64::from(length)),
        };
        if opcode >= CLOSE && (!last || length > CONTROL_MAX) {
            return Err("a WebSocket control frame is too long or fragmented");
        }
        if length > FRAME_MAX {
            return Err("a WebSocket frame is longer than any MQTT packet");
        }
        let length = length as usize;
        Ok((bytes.len() >= head + length).then_some(Self { opcode, last, head, length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

    fn upgrade() -> Upgrade {
        Upgrade::new("h:1", "/mqtt", *b"the sample nonce")
    }

    /// Key and answer are the example of RFC 6455, 1.3.
    #[test]
    fn an_upgrade_is_completed_by_the_answer_of_the_rfc() {
        let upgrade = upgrade();
        assert!(upgrade.request.starts_with(b"GET /mqtt HTTP/1.1\r\nHost: h:1\r\n"));
        assert!(String::from_utf8_lossy(&upgrade.request).contains("dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(upgrade.answered(&ACCEPTED.as_bytes()[..40]).unwrap().is_none());
        assert!(upgrade.answered(ACCEPTED.as_bytes()).unwrap().is_some());
        for (from, to, says) in [
            ("s3pP", "xxxx", "Accept"),
            ("101", "404", "/mqtt"),
            ("101 Switching Protocols", "403 Forbidden", "403 Forbidden"),
            ("Protocol: mqtt", "Protocol: chat", "not one for MQTT"),
            ("HTTP/1.1", "220 mail", "does not speak WebSocket"),
        ] {
            let error = upgrade.answered(ACCEPTED.replace(from, to).as_bytes()).err().unwrap();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn messages_are_received_however_the_bytes_are_split() {
        let mut bytes = vec![0x02, 2, b'a', b'b', 0x89, 1, b'?', 0x80, 126, 0, 200];
        bytes.extend([b'c'; 200]);
        bytes.extend([0x88, 0]);
        for piece in [1, 3, bytes.len()] {
            let mut websocket = upgrade().answered(ACCEPTED.as_bytes()).unwrap().unwrap();
            let (mut plain, mut wire) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(piece) {
                websocket.receive(piece, &mut plain, &mut wire, [1, 2, 3, 4]).unwrap();
            }
            assert_eq!((plain.len(), &plain[..3], websocket.closed), (202, &b"abc"[..], true));
            assert_eq!(wire, [0x8A, 0x81, 1, 2, 3, 4, b'?' ^ 1]);
        }
    }

    #[test]
    fn a_protocol_error_of_the_broker_is_reported() {
        for bytes in [
            &[0x81, 1, b'x'][..],
            &[0xC2, 0],
            &[0x82, 0x81, 0, 0, 0, 0, 0],
            &[0x80, 0],
            &[0x09, 0],
            &[0x89, 126, 0, 200],
            &[0x02, 0, 0x02, 0],
            &[0x82, 127, 255, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let mut websocket = upgrade().answered(ACCEPTED.as_bytes()).unwrap().unwrap();
            assert!(websocket.receive(bytes, &mut Vec::new(), &mut Vec::new(), [0; 4]).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn lengths_are_written_in_the_fewest_bytes() {
        for (length, head) in [(125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            let mut wire = Vec::new();
            WebSocket::send(&vec![7; length], [0; 4], &mut wire);
            assert_eq!(wire.len(), head + 4 + length);
        }
    }
}
