//! MQTT over WebSocket (section 6).

use std::io::{self, Read, Write};

use edge::settings::{Listener, Transport};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Bytes, Message, WebSocket};

use crate::client::{Client, echo};
use crate::{Node, everywhere};

pub fn listener() -> Listener {
    Listener { transport: Transport::WebSocket, ..Listener::default() }
}

/// Byte stream over the WebSocket of a client. Each write becomes one frame or several.
pub struct Frames<S> {
    pub socket: WebSocket<S>,
    unread: Bytes,
    /// Maximum number of bytes of a frame.
    cut: usize,
}

impl<S: Read + Write> Frames<S> {
    pub fn over(stream: S, cut: usize) -> Self {
        let mut request = "ws://localhost/mqtt".into_client_request().expect("a request");
        request.headers_mut().insert("Sec-WebSocket-Protocol", "mqtt".parse().expect("a value"));
        let (socket, response) = match tungstenite::client(request, stream) {
            Ok(done) => done,
            Err(error) => panic!("no WebSocket: {error}"),
        };
        assert_eq!(response.headers()["Sec-WebSocket-Protocol"], "mqtt"); // [MQTT-6.0.0-4]
        Self { socket, unread: Bytes::new(), cut }
    }
}

impl<S: Read + Write> Read for Frames<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            match self.socket.read() {
                Ok(Message::Binary(bytes)) => self.unread = bytes,
                Ok(Message::Close(_)) | Err(_) => return Ok(0),
                Ok(_) => {}
            }
        }
        let count = buffer.len().min(self.unread.len());
        buffer[..count].copy_from_slice(&self.unread.split_to(count));
        Ok(count)
    }
}

impl<S: Read + Write> Write for Frames<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.chunks(self.cut) {
            self.socket.write(Message::Binary(piece.to_vec().into())).map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush().map_err(io::Error::other)
    }
}

/// [MQTT-6.0.0-1] [MQTT-6.0.0-2] [MQTT-6.0.0-3]
#[test]
fn mqtt_flows_in_frames_of_any_size() {
    everywhere(listener, |node| {
        for cut in [3, 1000, usize::MAX] {
            let mut client = Client::connect(Frames::over(node.open(), cut), "c");
            echo(&mut client, &[0, 1, 125, 126, 5_000, 70_000, 600_000]);
        }
    });
}

#[test]
fn pings_are_answered_and_a_close_is_returned() {
    everywhere(listener, |node| {
        let mut client = Client::connect(Frames::over(node.open(), usize::MAX), "c");
        let socket = &mut client.stream.socket;
        socket.send(Message::Ping(Bytes::from_static(b"there?"))).expect("sent");
        assert_eq!(socket.read().expect("a frame"), Message::Pong(Bytes::from_static(b"there?")));
        socket.close(None).expect("sent");
        socket.flush().expect("sent");
        // The close frame is returned, and then the connection ends.
        let close = socket.read();
        assert!(matches!(close, Ok(Message::Close(_))), "{close:?}");
        while socket.read().is_ok() {}
        assert_eq!(node.seen("c"), None);
    });
}

/// DISCONNECT ends the WebSocket connection in order.
#[test]
fn the_end_of_mqtt_closes_the_websocket() {
    everywhere(listener, |node| {
        let mut client = Client::over(Frames::over(node.open(), usize::MAX));
        client.send_connect("first");
        client.next();
        let mut second = Client::over(Frames::over(node.open(), usize::MAX));
        second.send_connect("first");
        assert!(second.next().starts_with("ConnAck"));
        assert!(client.next().contains("SessionTakenOver"));
        let close = client.stream.socket.read();
        assert!(matches!(close, Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1000));
    });
}

/// [MQTT-6.0.0-1]
#[test]
fn text_is_refused() {
    everywhere(listener, |node| {
        let mut frames = Frames::over(node.open(), usize::MAX);
        frames.socket.send(Message::text("hello")).expect("sent");
        let close = frames.socket.read();
        assert!(matches!(close, Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1003));
    });
}

fn answer(node: &Node, request: &str) -> String {
    let mut stream = node.open();
    stream.write_all(request.as_bytes()).expect("sent");
    let mut bytes = Vec::new();
    // The connection may end with a reset.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_request_without_upgrade_gets_an_http_answer() {
    let only = || Listener { websocket_origins: "https://app.example".into(), ..listener() };
    everywhere(only, |node| {
        let answer = |request: &str| answer(node, request);
        assert!(
            answer("GET /mqtt HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 426 Upgrade Required\r\n")
        );
        assert!(answer("GET / HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 404 Not Found\r\n"));
        let upgrade = "GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n";
        let from = |origin: &str| answer(&format!("{upgrade}Origin: {origin}\r\n\r\n"));
        assert!(from("https://evil.example").starts_with("HTTP/1.1 403 Forbidden\r\n"));
        assert!(from("https://app.example").starts_with("HTTP/1.1 101 Switching Protocols\r\n"));
        assert_eq!(
            answer("\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00\r\n\r\n").lines().next(),
            Some("HTTP/1.1 400 Bad Request")
        );
    });
}

/// The node of these tests accepts every client without a login.
#[test]
fn without_a_login_only_pages_of_this_host_connect() {
    everywhere(listener, |node| {
        let status = |host: &str, origin: &[u8]| {
            let request = format!(
                "GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\nOrigin: "
            );
            let mut stream = node.open();
            stream.write_all(&[request.as_bytes(), origin, b"\r\n\r\n"].concat()).expect("sent");
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer[9..]).into_owned()
        };
        assert_eq!(status("localhost:8083", b"https://evil.example"), "403");
        assert_eq!(status("localhost:8083", b"null"), "403");
        assert_eq!(status("localhost:8083", b"\xff"), "403");
        assert_eq!(status("localhost:8083", b"http://localhost:3000"), "101");
        // A foreign host name that resolves to loopback.
        assert_eq!(status("evil.example:8083", b"http://evil.example:8083"), "403");
    });
}

/// Connections without CONNECT are closed, with or without an upgrade.
#[test]
fn silent_connections_are_closed_in_time() {
    everywhere(listener, |node| {
        let mut silent = node.open();
        let mut upgraded = Frames::over(node.open(), usize::MAX);
        assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0);
        assert_eq!(upgraded.read(&mut [0; 1]).unwrap_or(0), 0);
    });
}
