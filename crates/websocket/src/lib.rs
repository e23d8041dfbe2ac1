//! The client side of WebSocket (RFC 6455) for MQTT (MQTT 5.0 section 6): the upgrade, then binary frames whose
//! payloads form one stream of bytes [MQTT-6.0.0-2]. It has no sockets.
//!
//! Read [`Upgrade`] first. `edge` has the server side.
//!
//! **Invariant:** bytes of a server never panic. No payload is stored: it is passed on as it arrives, however long its
//! frame is.

#![forbid(unsafe_code)]

use base64ct::{Base64, Encoding as _};
use sha1::{Digest as _, Sha1};

/// The upgrade request, and the expected answer.
pub struct Upgrade {
    pub request: Vec<u8>,
    accept: String,
}

/// Both directions of one connection after its upgrade.
#[derive(Debug)]
pub struct WebSocket {
    state: State,
    /// Bytes that came with the answer to the upgrade.
    early: Vec<u8>,
    /// Incomplete frame header, or incomplete payload of a control frame.
    buffered: Vec<u8>,
    /// True while a message of several frames is incomplete.
    in_message: bool,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Data { left: u64 },
    Control { opcode: u8, length: usize },
}

impl Upgrade {
    /// Creates an upgrade request. `host` is in the form of a URL; `key` is random.
    pub fn new(host: &str, path: &str, key: [u8; 16]) -> Self {
        let key = Base64::encode_string(&key);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        let accept = Base64::encode_string(&Sha1::digest(format!("{key}{MAGIC}")));
        Self { request: request.into_bytes(), accept }
    }

    /// Checks the answer received so far; `None` when it is incomplete.
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
        Ok(Some(WebSocket::new(bytes[length..].to_vec())))
    }
}

/// Constant of the handshake (RFC 6455, 1.3).
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum size of an answer to the upgrade, in bytes.
const ANSWER_MAX: usize = 64 * 1024;
/// Maximum payload of a control frame in bytes [RFC 6455, 5.5].
const CONTROL_MAX: u64 = 125;
/// Number of bytes in `wire` from which a PING gets no answer. A client may leave out all but the last one [RFC 6455,
/// 5.5.3].
const ANSWERS_MAX: usize = 64 * 1024;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl WebSocket {
    fn new(early: Vec<u8>) -> Self {
        let (state, buffered) = (State::Header, Vec::new());
        Self { state, early, buffered, in_message: false, is_closed: false }
    }

    /// Returns whether frames came together with the answer to the upgrade. [`Self::receive`] handles them.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns whether the server has announced that it closes. Nothing that follows is handled.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Handles received bytes: appends their payload to `plain`, and answers to `wire`. `mask` is random.
    ///
    /// # Errors
    /// A protocol error of the server.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
        mask: [u8; 4],
    ) -> Result<(), &'static str> {
        let early = std::mem::take(&mut self.early);
        self.handle(&early, plain, wire, mask)?;
        self.handle(bytes, plain, wire, mask)
    }

    fn handle(
        &mut self,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
        wire: &mut Vec<u8>,
        mask: [u8; 4],
    ) -> Result<(), &'static str> {
        while !self.is_closed {
            match self.state {
                State::Header => {
                    let Some(next) = self.header(&mut bytes)? else { return Ok(()) };
                    self.state = next;
                }
                State::Data { left } => {
                    if bytes.is_empty() && left > 0 {
                        return Ok(());
                    }
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (payload, rest) = bytes.split_at(count);
                    plain.extend_from_slice(payload);
                    bytes = rest;
                    let left = left - count as u64;
                    self.state = if left == 0 { State::Header } else { State::Data { left } };
                }
                State::Control { opcode, length } => {
                    let count = (length - self.buffered.len()).min(bytes.len());
                    let (payload, rest) = bytes.split_at(count);
                    self.buffered.extend_from_slice(payload);
                    bytes = rest;
                    if self.buffered.len() < length {
                        return Ok(());
                    }
                    match opcode {
                        PING if wire.len() < ANSWERS_MAX => append(PONG, &self.buffered, mask, wire),
                        CLOSE => self.is_closed = true,
                        _ => {}
                    }
                    self.buffered.clear();
                    self.state = State::Header;
                }
            }
        }
        Ok(())
    }

    /// Reads a frame header; `None` when it is incomplete.
    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<State>, &'static str> {
        loop {
            if let Some(header) = Header::parse(&self.buffered)? {
                self.buffered.clear();
                return self.begin(&header).map(Some);
            }
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            self.buffered.push(*first);
            *bytes = rest;
        }
    }

    /// Begins a frame.
    fn begin(&mut self, header: &Header) -> Result<State, &'static str> {
        match header.opcode {
            BINARY if self.in_message => Err("a WebSocket message begins within another one"),
            CONTINUATION if !self.in_message => Err("a WebSocket message continues that never began"),
            BINARY | CONTINUATION => {
                self.in_message = !header.is_last;
                Ok(State::Data { left: header.length })
            }
            PING | PONG | CLOSE => {
                Ok(State::Control { opcode: header.opcode, length: header.length as usize })
            }
            _ => Err("a WebSocket frame is not binary"),
        }
    }

    /// Appends bytes of MQTT as a frame. `mask` is random.
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

struct Header {
    opcode: u8,
    is_last: bool,
    length: u64,
}

impl Header {
    /// Parses a header; `None` when it is incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (opcode, is_last) = (first & 0x0F, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err("a WebSocket frame uses an extension that was not negotiated");
        }
        if second & 0x80 != 0 {
            // RFC 6455, 5.1
            return Err("a WebSocket frame of the broker is masked");
        }
        let length = match second & 0x7F {
            126 => rest.first_chunk().map(|length| u64::from(u16::from_be_bytes(*length))),
            127 => rest.first_chunk().map(|length| u64::from_be_bytes(*length)),
            length => Some(u64::from(length)),
        };
        let Some(length) = length else { return Ok(None) };
        if opcode >= CLOSE && (!is_last || length > CONTROL_MAX) {
            return Err("a WebSocket control frame is too long or fragmented");
        }
        if length > i64::MAX as u64 {
            // RFC 6455, 5.2
            return Err("the length of a WebSocket frame has its highest bit set");
        }
        Ok(Some(Self { opcode, is_last, length }))
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

    fn websocket() -> WebSocket {
        upgrade().answered(ACCEPTED.as_bytes()).expect("valid").expect("complete")
    }

    /// Key and answer are the example of RFC 6455, 1.3.
    #[test]
    fn an_upgrade_is_completed_by_the_answer_of_the_rfc() {
        let upgrade = upgrade();
        assert!(upgrade.request.starts_with(b"GET /mqtt HTTP/1.1\r\nHost: h:1\r\n"));
        assert!(String::from_utf8_lossy(&upgrade.request).contains("dGhlIHNhbXBsZSBub25jZQ=="));
        assert!(upgrade.answered(&ACCEPTED.as_bytes()[..40]).expect("valid").is_none());
        assert!(upgrade.answered(ACCEPTED.as_bytes()).expect("valid").is_some());
        for (from, to, says) in [
            ("s3pP", "xxxx", "Accept"),
            ("101", "404", "/mqtt"),
            ("101 Switching Protocols", "403 Forbidden", "403 Forbidden"),
            ("Protocol: mqtt", "Protocol: chat", "not one for MQTT"),
            ("HTTP/1.1", "220 mail", "does not speak WebSocket"),
        ] {
            let error = upgrade.answered(ACCEPTED.replace(from, to).as_bytes()).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
        let endless = format!("HTTP/1.1 101 Yes\r\nX: {}", "x".repeat(ANSWER_MAX));
        assert!(upgrade.answered(endless.as_bytes()).is_err());
    }

    #[test]
    fn messages_are_received_however_the_bytes_are_split() {
        let mut bytes = vec![0x02, 2, b'a', b'b', 0x89, 1, b'?', 0x80, 126, 0, 200];
        bytes.extend([b'c'; 200]);
        bytes.extend([0x82, 0, 0x88, 0, 0xFF]);
        for piece in [1, 3, bytes.len()] {
            let mut websocket = websocket();
            let (mut plain, mut wire) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(piece) {
                websocket.receive(piece, &mut plain, &mut wire, [1, 2, 3, 4]).expect("valid");
            }
            assert_eq!((plain.len(), &plain[..3], websocket.is_closed()), (202, &b"abc"[..], true));
            assert_eq!(wire, [0x8A, 0x81, 1, 2, 3, 4, b'?' ^ 1]);
        }
    }

    #[test]
    fn frames_may_come_with_the_answer_to_the_upgrade() {
        let mut answer = ACCEPTED.as_bytes().to_vec();
        answer.extend([0x82, 2, b'a']);
        let mut websocket = upgrade().answered(&answer).expect("valid").expect("complete");
        let mut plain = Vec::new();
        websocket.receive(b"b", &mut plain, &mut Vec::new(), [0; 4]).expect("valid");
        assert_eq!(plain, b"ab");
    }

    #[test]
    fn a_long_frame_is_passed_on_as_it_arrives() {
        let mut websocket = websocket();
        let mut plain = Vec::new();
        websocket
            .receive(&[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0], &mut plain, &mut Vec::new(), [0; 4])
            .expect("valid");
        for _ in 0..100 {
            plain.clear();
            websocket.receive(&[7; 1000], &mut plain, &mut Vec::new(), [0; 4]).expect("valid");
            assert_eq!((plain.len(), websocket.buffered.capacity() <= 64), (1000, true));
        }
    }

    #[test]
    fn a_server_that_does_not_read_gets_no_more_than_a_bound_of_answers() {
        let mut websocket = websocket();
        let mut wire = Vec::new();
        websocket.receive(&[0x89, 0].repeat(1_000_000), &mut Vec::new(), &mut wire, [0; 4]).expect("valid");
        assert!(wire.len() <= ANSWERS_MAX + 6, "{}", wire.len());
    }

    #[test]
    fn a_protocol_error_of_the_server_is_reported() {
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
            let received = websocket().receive(bytes, &mut Vec::new(), &mut Vec::new(), [0; 4]);
            assert!(received.is_err(), "{bytes:?}");
        }
    }

    /// Bytes of a small generator, as a server might send them.
    #[test]
    fn arbitrary_bytes_panic_nothing() {
        let mut state = 0x1234_5678_u32;
        for _ in 0..2_000 {
            let mut websocket = websocket();
            for _ in 0..40 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let [a, b, c, d] = state.to_be_bytes();
                let bytes = [a & 0x8F, b & 0x7F, c, d, a, b];
                let bytes = &bytes[..1 + usize::from(d % 6)];
                if websocket.receive(bytes, &mut Vec::new(), &mut Vec::new(), [0; 4]).is_err() {
                    break;
                }
            }
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
