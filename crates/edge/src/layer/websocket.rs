//! Server side of WebSocket (RFC 6455) for MQTT (MQTT 5.0 section 6): the upgrade request, then binary frames whose
//! payloads form one stream of bytes [MQTT-6.0.0-2].
//!
//! **Invariant:** no payload is buffered. It is unmasked and passed on as it arrives, however long its frame is.

use base64ct::{Base64, Encoding as _};
use sha1::{Digest as _, Sha1};

use super::{LayerError, PageRule};

/// Requirements of a listener for WebSocket clients.
#[derive(Clone, Debug)]
pub(crate) struct WebSocketRules {
    /// Path of the request without its query.
    pub path: String,
    /// Allowed values of Origin, `*` for any. Empty: the connection's [`PageRule`] decides. Programs that are not
    /// browsers send no Origin.
    pub origins: Vec<String>,
}

impl WebSocketRules {
    /// Returns the reason to refuse a request because of its Host or Origin; `None` accepts it.
    fn refuses(&self, pages: PageRule, host: Option<&str>, origin: Option<&str>) -> Option<&'static str> {
        if self.origins.is_empty() {
            return pages.refuses(host, origin);
        }
        let origin = origin?;
        let is_named = |allowed: &String| allowed == "*" || allowed.eq_ignore_ascii_case(origin);
        (!self.origins.iter().any(is_named)).then_some("pages of this origin may not connect")
    }
}

/// WebSocket state of one connection.
#[derive(Debug)]
pub(crate) struct WebSocket {
    state: State,
    pages: PageRule,
    /// Incomplete request, frame header or control frame payload.
    buffered: Vec<u8>,
    /// A message is being sent in fragments.
    in_message: bool,
    /// A close frame was sent.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Upgrading,
    Header,
    Data { left: u64, mask: [u8; 4], at: usize },
    Control { opcode: u8, left: usize, mask: [u8; 4] },
    Closed,
}

/// Reason to refuse a request that is not HTTP.
pub(super) const NOT_HTTP: &str = "this port speaks MQTT over WebSocket, and the request is not HTTP";

/// Maximum size of a request in bytes.
const REQUEST_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
/// Maximum size of a frame header in bytes.
const HEADER_MAX: usize = 14;
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// Close codes (RFC 6455 section 7.4.1).
const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;
const UNSUPPORTED_DATA: u16 = 1003;

impl WebSocket {
    pub fn new(pages: PageRule) -> Self {
        Self { state: State::Upgrading, pages, buffered: Vec::new(), in_message: false, closed: false }
    }

    /// Returns whether MQTT may be sent.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Upgrading | State::Closed) && !self.closed
    }

    /// Handles received bytes: appends MQTT bytes to `plain`, and the answer to `answer`.
    ///
    /// # Errors
    /// The request is not a valid upgrade, a frame breaks the protocol, or the client closes. The answer gives the
    /// reason.
    pub fn receive(
        &mut self,
        rules: &WebSocketRules,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) -> Result<(), LayerError> {
        while !bytes.is_empty() {
            let used = match self.state {
                State::Upgrading => self.upgrade(rules, bytes, answer)?,
                State::Header => self.header(bytes, answer)?,
                State::Data { left, mask, at } => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let from = plain.len();
                    plain.extend_from_slice(&bytes[..count]);
                    unmask(&mut plain[from..], mask, at);
                    let left = left - count as u64;
                    self.state = match left {
                        0 => State::Header,
                        left => State::Data { left, mask, at: (at + count) % 4 },
                    };
                    count
                }
                State::Control { opcode, left, mask } => {
                    let count = left.min(bytes.len());
                    self.buffered.extend_from_slice(&bytes[..count]);
                    self.state = State::Control { opcode, left: left - count, mask };
                    if left == count {
                        self.state = State::Header;
                        let mut payload = std::mem::take(&mut self.buffered);
                        unmask(&mut payload, mask, 0);
                        self.control(opcode, &payload, answer)?;
                    }
                    count
                }
                State::Closed => return Err(LayerError::Closed),
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Wraps bytes for the client into one binary frame [MQTT-6.0.0-3].
    pub fn send(&self, plain: &[u8], wire: &mut Vec<u8>) {
        if self.is_open() && !plain.is_empty() {
            frame_header(BINARY, plain.len(), wire);
            wire.extend_from_slice(plain);
        }
    }

    /// Sends a close frame of the server.
    pub fn close(&mut self, wire: &mut Vec<u8>) {
        if self.is_open() {
            self.closed = true;
            close_frame(NORMAL, wire);
        }
    }

    /// Reads the upgrade request; returns how many of `bytes` it consumed.
    fn upgrade(
        &mut self,
        rules: &WebSocketRules,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<usize, LayerError> {
        let before = self.buffered.len();
        // Copy at most the maximum size of a request.
        let taken = bytes.len().min(REQUEST_MAX + 1 - before);
        self.buffered.extend_from_slice(&bytes[..taken]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let refused = match request.parse(&self.buffered) {
            Ok(httparse::Status::Complete(length)) => match check(rules, self.pages, &request) {
                Ok(accept) => {
                    answer.extend_from_slice(&accept);
                    self.buffered = Vec::new();
                    self.state = State::Header;
                    return Ok(length - before);
                }
                Err(refusal) => refusal,
            },
            Ok(httparse::Status::Partial) if self.buffered.len() <= REQUEST_MAX => return Ok(taken),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Refusal {
                status: "431 Request Header Fields Too Large",
                headers: "",
                why: "the request is too long",
            },
            Err(_) => Refusal { status: "400 Bad Request", headers: "", why: NOT_HTTP },
        };
        self.state = State::Closed;
        refused.write(answer);
        Err(LayerError::Refused(refused.why))
    }

    /// Reads a frame header; returns how many of `bytes` it consumed.
    fn header(&mut self, bytes: &[u8], answer: &mut Vec<u8>) -> Result<usize, LayerError> {
        let before = self.buffered.len();
        let taken = bytes.len().min(HEADER_MAX - before);
        self.buffered.extend_from_slice(&bytes[..taken]);
        let Some((length, header)) = parse_header(&self.buffered) else {
            return match self.buffered.len() {
                // An invalid opcode or mask is refused at once, before the header is complete.
                0 | 1 => Ok(taken),
                _ => self.check_beginning(self.buffered[0], self.buffered[1], answer).map(|()| taken),
            };
        };
        self.check_beginning(self.buffered[0], self.buffered[1], answer)?;
        let Header { fin, opcode, mask, payload } = header;
        self.buffered.clear();
        match opcode {
            CLOSE | PING | PONG => {
                self.state = State::Control { opcode, left: payload as usize, mask };
                if payload == 0 {
                    self.state = State::Header;
                    self.control(opcode, &[], answer)?;
                }
            }
            _ => {
                self.in_message = !fin;
                self.state =
                    if payload == 0 { State::Header } else { State::Data { left: payload, mask, at: 0 } };
            }
        }
        Ok(length - before)
    }

    fn check_beginning(&mut self, first: u8, second: u8, answer: &mut Vec<u8>) -> Result<(), LayerError> {
        let (fin, opcode, masked, short) =
            (first & 0x80 != 0, first & 0xF, second & 0x80 != 0, second & 0x7F);
        let (code, why) = match opcode {
            _ if first & 0x70 != 0 => (PROTOCOL_ERROR, "reserved bits of a frame are set"),
            _ if !masked => (PROTOCOL_ERROR, "a frame of a client is not masked"),
            TEXT => (UNSUPPORTED_DATA, "MQTT comes in binary frames"), // [MQTT-6.0.0-1]
            BINARY if self.in_message => (PROTOCOL_ERROR, "a message begins within another"),
            CONTINUATION if !self.in_message => (PROTOCOL_ERROR, "a continuation frame without a message"),
            BINARY | CONTINUATION => return Ok(()),
            CLOSE | PING | PONG if fin && short < 126 => return Ok(()),
            CLOSE | PING | PONG => (PROTOCOL_ERROR, "a control frame is fragmented or too long"),
            _ => (PROTOCOL_ERROR, "the opcode of a frame is unknown"),
        };
        self.refuse(code, why, answer)
    }

    fn refuse(&mut self, code: u16, why: &'static str, answer: &mut Vec<u8>) -> Result<(), LayerError> {
        self.state = State::Closed;
        close_frame(code, answer);
        Err(LayerError::Refused(why))
    }

    fn control(&mut self, opcode: u8, payload: &[u8], answer: &mut Vec<u8>) -> Result<(), LayerError> {
        match opcode {
            PING if !self.closed => {
                frame_header(PONG, payload.len(), answer);
                answer.extend_from_slice(payload);
                Ok(())
            }
            CLOSE => {
                self.state = State::Closed;
                if !self.closed {
                    self.closed = true;
                    // The answer repeats the received close code, if that code may be sent.
                    let code = payload.first_chunk::<2>().map_or(NORMAL, |code| u16::from_be_bytes(*code));
                    let valid = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) && payload.len() != 1;
                    close_frame(if valid { code } else { PROTOCOL_ERROR }, answer);
                }
                Err(LayerError::Closed)
            }
            _ => Ok(()),
        }
    }
}

/// Refused upgrade request.
struct Refusal {
    status: &'static str,
    headers: &'static str,
    why: &'static str,
}

impl Refusal {
    fn write(&self, answer: &mut Vec<u8>) {
        let Refusal { status, headers, why } = self;
        let length = why.len() + 1;
        let text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{why}\n"
        );
        answer.extend_from_slice(text.as_bytes());
    }
}

/// Returns the answer to an upgrade request (RFC 6455 section 4.2).
fn check(
    rules: &WebSocketRules,
    pages: PageRule,
    request: &httparse::Request<'_, '_>,
) -> Result<Vec<u8>, Refusal> {
    let refuse = |status, why| Err(Refusal { status, headers: "", why });
    let all = |name: &'static str| {
        let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    let one = |name| all(name).next().map(str::trim);
    let lists = |name, token: &str| {
        all(name).any(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case(token)))
    };
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some(rules.path.as_str()) {
        return refuse("404 Not Found", "MQTT over WebSocket has another path");
    }
    if request.method != Some("GET") || request.version != Some(1) {
        return refuse("405 Method Not Allowed", "MQTT over WebSocket begins with GET and HTTP/1.1");
    }
    if !lists("Upgrade", "websocket") || !lists("Connection", "upgrade") {
        let headers = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";
        let why = "not a web page: MQTT over WebSocket needs an Upgrade header";
        return Err(Refusal { status: "426 Upgrade Required", headers, why });
    }
    if one("Sec-WebSocket-Version") != Some("13") {
        let headers = "Sec-WebSocket-Version: 13\r\n";
        return Err(Refusal {
            status: "426 Upgrade Required",
            headers,
            why: "only WebSocket version 13 is supported",
        });
    }
    // A header that is not text or occurs twice is ignored.
    let single = |name: &str| {
        let mut values = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let value = std::str::from_utf8(values.next()?.value).map(str::trim).unwrap_or_default();
        Some(if values.next().is_none() { value } else { "" })
    };
    if let Some(why) = rules.refuses(pages, single("Host"), single("Origin")) {
        return refuse("403 Forbidden", why);
    }
    // [MQTT-6.0.0-4]: clients request "mqtt"; clients of MQTT 3.1 request "mqttv3.1".
    let Some(protocol) = ["mqtt", "mqttv3.1"].into_iter().find(|name| lists("Sec-WebSocket-Protocol", name))
    else {
        return refuse("400 Bad Request", "the sub-protocol must be mqtt (Sec-WebSocket-Protocol)");
    };
    let key = one("Sec-WebSocket-Key").unwrap_or_default();
    if Base64::decode_vec(key).map(|nonce| nonce.len()) != Ok(16) {
        return refuse("400 Bad Request", "Sec-WebSocket-Key is not 16 bytes in base64");
    }
    let accept = accept(key);
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    )
    .into_bytes())
}

fn accept(key: &str) -> String {
    let digest =
        Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
    Base64::encode_string(&digest)
}

struct Header {
    fin: bool,
    opcode: u8,
    mask: [u8; 4],
    payload: u64,
}

/// Returns a frame's header and its length; `None` while it is incomplete.
fn parse_header(bytes: &[u8]) -> Option<(usize, Header)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (payload, at) = match second & 0x7F {
        126 => (u64::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)), 4),
        127 => (u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?), 10),
        short => (u64::from(short), 2),
    };
    let masked = second & 0x80 != 0;
    let (mask, length) = if masked { (*bytes.get(at..)?.first_chunk()?, at + 4) } else { ([0; 4], at) };
    Some((length, Header { fin: first & 0x80 != 0, opcode: first & 0xF, mask, payload }))
}

fn frame_header(opcode: u8, length: usize, out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match length {
        0..126 => out.push(length as u8),
        126..65_536 => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

fn close_frame(code: u16, out: &mut Vec<u8>) {
    frame_header(CLOSE, 2, out);
    out.extend_from_slice(&code.to_be_bytes());
}

/// Unmasks bytes of a frame. `at` is the number of bytes of the frame before them.
fn unmask(bytes: &mut [u8], mask: [u8; 4], at: usize) {
    let mut turned = mask;
    turned.rotate_left(at % 4);
    let wide = u64::from_ne_bytes([
        turned[0], turned[1], turned[2], turned[3], turned[0], turned[1], turned[2], turned[3],
    ]);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let value = u64::from_ne_bytes(chunk.try_into().unwrap_or_default()) ^ wide;
        chunk.copy_from_slice(&value.to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(turned.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> WebSocketRules {
        WebSocketRules { path: "/mqtt".into(), origins: vec!["https://a.example".into()] }
    }

    const UPGRADE: &str = "GET /mqtt?x=1 HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chat, mqtt\r\n\r\n";

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [7, 99, 200, 1];
        let mut out = Vec::new();
        frame_header(0, payload.len(), &mut out);
        out[0] = first;
        out[1] |= 0x80;
        out.extend_from_slice(&mask);
        let from = out.len();
        out.extend_from_slice(payload);
        unmask(&mut out[from..], mask, 0);
        out
    }

    /// Returns the result of receiving `bytes` in pieces of `size`.
    fn receive(bytes: &[u8], size: usize) -> (Vec<u8>, String, Result<(), LayerError>) {
        let mut socket = WebSocket::new(PageRule::Any);
        let (mut plain, mut answer) = (Vec::new(), Vec::new());
        let mut result = Ok(());
        for piece in bytes.chunks(size) {
            result = socket.receive(&rules(), piece, &mut plain, &mut answer);
            if result.is_err() {
                break;
            }
        }
        (plain, String::from_utf8_lossy(&answer).into_owned(), result)
    }

    #[test]
    fn an_upgrade_and_its_frames_are_read_in_pieces_of_any_size() {
        let mut bytes = UPGRADE.as_bytes().to_vec();
        let long: Vec<u8> = (0..70_000_u32).map(|number| number as u8).collect();
        let mut expected = Vec::new();
        for (first, payload) in [
            (0x82, &b"abc"[..]),
            (0x02, b"d"),
            (0x89, b"ping"),
            (0x00, b""),
            (0x80, &long[..300]),
            (0x8A, b"unasked"),
            (0x82, &long),
        ] {
            bytes.extend(frame(first, payload));
            if first & 0xF < 8 {
                expected.extend_from_slice(payload);
            }
        }
        for size in [1, 2, 3, 7, 1000, usize::MAX] {
            let (plain, answer, result) = receive(&bytes, size);
            assert_eq!(result, Ok(()));
            assert!(plain == expected, "pieces of {size}");
            // The example of RFC 6455 section 1.3.
            assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
            assert!(answer.contains("Sec-WebSocket-Protocol: mqtt\r\n"));
            assert!(answer.ends_with("\u{fffd}\u{4}ping"), "{answer:?}");
        }
    }

    /// [MQTT-6.0.0-1] [MQTT-6.0.0-4]
    #[test]
    fn protocol_errors_are_answered_with_a_close_frame() {
        let cases = [
            (0x81, &b"text"[..], UNSUPPORTED_DATA),
            (0x80, b"nothing to go on with", PROTOCOL_ERROR),
            (0xC2, b"reserved", PROTOCOL_ERROR),
            (0x83, b"unknown", PROTOCOL_ERROR),
            (0x09, b"fragmented ping", PROTOCOL_ERROR),
            (0x89, &[0; 126], PROTOCOL_ERROR),
        ];
        for (first, payload, code) in cases {
            let bytes = [UPGRADE.as_bytes(), &frame(first, payload)].concat();
            for size in [1, usize::MAX] {
                let mut socket = WebSocket::new(PageRule::Any);
                let (mut plain, mut answer) = (Vec::new(), Vec::new());
                let mut pieces = bytes.chunks(size);
                let refused =
                    pieces.find_map(|piece| socket.receive(&rules(), piece, &mut plain, &mut answer).err());
                assert!(matches!(refused, Some(LayerError::Refused(_))), "{first:#x}");
                assert_eq!(answer[answer.len() - 4..], [&[0x88, 2][..], &code.to_be_bytes()].concat());
                assert_eq!(plain, b"");
                assert!(!socket.is_open());
            }
        }
        let mut unmasked = UPGRADE.as_bytes().to_vec();
        frame_header(BINARY, 1, &mut unmasked);
        let foreign = receive(b"\x10\x0C\0\x04MQTT\x04\x02\0\0\0\0", 1).2.expect_err("it is MQTT").foreign();
        assert!(foreign.is_some_and(|what| what.contains("does not speak WebSocket")));
        assert_eq!(receive(&unmasked, 1).2, Err(LayerError::Refused("a frame of a client is not masked")));
        let twice = [UPGRADE.as_bytes(), &frame(0x02, b"a"), &frame(0x02, b"b")].concat();
        assert!(receive(&twice, 5).2.is_err());
    }

    #[test]
    fn a_close_is_answered_with_its_code() {
        for (payload, code) in
            [(&b"\x03\xe9bye"[..], 1001), (b"", 1000), (b"\x03\xed", 1002), (b"\x01", 1002)]
        {
            let mut socket = WebSocket::new(PageRule::Any);
            let (mut plain, mut answer) = (Vec::new(), Vec::new());
            let bytes = [UPGRADE.as_bytes(), &frame(0x88, payload)].concat();
            assert_eq!(socket.receive(&rules(), &bytes, &mut plain, &mut answer), Err(LayerError::Closed));
            assert_eq!(answer[answer.len() - 2..], u16::to_be_bytes(code));
            let length = answer.len();
            socket.close(&mut answer);
            socket.send(b"x", &mut answer);
            assert_eq!(answer.len(), length, "once");
        }
    }

    #[test]
    fn refused_requests_get_a_reason() {
        let refused = |from: &str, to: &str| {
            let (plain, answer, result) = receive(UPGRADE.replace(from, to).as_bytes(), 13);
            assert!(matches!(result, Err(LayerError::Refused(_))), "{from} -> {to}: {result:?}");
            assert_eq!(plain, b"");
            answer.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(refused("/mqtt", "/other"), "HTTP/1.1 404 Not Found");
        assert_eq!(refused("GET", "POST"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(refused("Upgrade: WebSocket", "X: y"), "HTTP/1.1 426 Upgrade Required");
        assert_eq!(refused("Version: 13", "Version: 8"), "HTTP/1.1 426 Upgrade Required");
        assert_eq!(refused("chat, mqtt", "chat"), "HTTP/1.1 400 Bad Request");
        assert_eq!(refused("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="), "HTTP/1.1 400 Bad Request");
        assert_eq!(refused("Host: h", "Origin: https://b.example"), "HTTP/1.1 403 Forbidden");
        assert_eq!(refused("GET", "\x10\x04\x00"), "HTTP/1.1 400 Bad Request");
        assert_eq!(
            refused("Host: h", &format!("X: {}", "y".repeat(9000))),
            "HTTP/1.1 431 Request Header Fields Too Large"
        );
        assert_eq!(receive(UPGRADE.replace("Host: h", "Origin: HTTPS://A.example").as_bytes(), 99).2, Ok(()));
    }

    /// Returns the status of an upgrade with these Host and Origin headers, on a listener with these `origins`.
    fn answer_to(pages: PageRule, origins: &[&str], headers: &[u8]) -> String {
        let origins = origins.iter().map(|&origin| origin.to_owned()).collect();
        let rules = WebSocketRules { path: "/mqtt".into(), origins };
        let (before, after) = UPGRADE.split_once("Host: h\r\n").unwrap();
        let bytes = [before.as_bytes(), headers, after.as_bytes()].concat();
        let (mut plain, mut answer) = (Vec::new(), Vec::new());
        // Only the answer matters here.
        let _ = WebSocket::new(pages).receive(&rules, &bytes, &mut plain, &mut answer);
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    }

    #[test]
    fn an_origin_that_is_not_text_or_occurs_twice_is_refused() {
        let same_host = PageRule::SameHost { loopback: true };
        for origin in [&b"Origin: \xff\r\n"[..], b"Origin: http://localhost\r\nOrigin: http://localhost\r\n"]
        {
            let headers = [b"Host: localhost\r\n", origin].concat();
            assert_eq!(answer_to(same_host, &[], &headers), "403");
            assert_eq!(answer_to(PageRule::Any, &["http://localhost"], &headers), "403");
            assert_eq!(answer_to(PageRule::Any, &[], &headers), "101", "every client has to log in");
        }
        assert_eq!(answer_to(same_host, &[], b"Host: \xff\r\n"), "403");
        assert_eq!(answer_to(same_host, &[], b"Host: localhost\r\nHost: localhost\r\n"), "403");
        assert_eq!(answer_to(same_host, &[], b"Host: localhost\r\nOrigin: http://127.0.0.1:80\r\n"), "101");
    }

    /// `websocket_origins` applies without authentication too.
    #[test]
    fn configured_origins_replace_the_same_host_rule() {
        let same_host = PageRule::SameHost { loopback: true };
        let evil = b"Host: broker.example\r\nOrigin: https://evil.example\r\n";
        assert_eq!(answer_to(same_host, &[], evil), "403");
        assert_eq!(answer_to(same_host, &["https://app.example"], evil), "403");
        assert_eq!(answer_to(same_host, &["https://app.example", "https://evil.example"], evil), "101");
        assert_eq!(answer_to(same_host, &["*"], evil), "101");
    }

    #[test]
    fn frames_to_the_client_have_the_shortest_header() {
        let mut socket = WebSocket::new(PageRule::Any);
        socket.send(b"too early", &mut Vec::new());
        socket.state = State::Header;
        for (length, header) in [
            (1, vec![0x82, 1]),
            (126, vec![0x82, 126, 0, 126]),
            (65_536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut wire = Vec::new();
            socket.send(&vec![9; length], &mut wire);
            assert_eq!(wire[..header.len()], header);
            assert_eq!(wire.len(), header.len() + length);
        }
        let mut wire = Vec::new();
        socket.send(b"", &mut wire);
        assert_eq!(wire, b"");
    }
}
