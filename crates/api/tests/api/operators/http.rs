//! A minimal HTTP client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::PATIENCE;

#[derive(Clone)]
pub struct Http {
    pub address: SocketAddr,
    pub token: Option<String>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Returns the body of an answer with this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// Returns the detail of a problem document with this status.
    #[track_caller]
    pub fn problem(self, status: u16) -> String {
        assert!(self.head.contains("content-type: application/problem+json"), "{} {}", self.head, self.body);
        let problem = self.expect(status);
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

impl Http {
    pub fn request(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.send(method, path, &body.map_or_else(String::new, |body| body.to_string()))
    }

    pub fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = self.open("1.1", method, path, body.len());
        stream.write_all(body.as_bytes()).expect("the server reads");
        answer(stream)
    }

    /// Announces a body of this length, and sends none.
    pub fn announce(&self, method: &str, path: &str, length: usize) -> Answer {
        answer(self.open("1.1", method, path, length))
    }

    /// Opens a stream of events, and reads its head.
    pub fn stream(&self, path: &str) -> Events {
        // In HTTP/1.0 a body without a length ends with the connection, so it has no chunks.
        let mut reader = BufReader::new(self.open("1.0", "GET", path, 0));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        assert!(head.contains(" 200 ") && head.contains("text/event-stream"), "{head}");
        Events { reader }
    }

    /// Sends the head of a request.
    fn open(&self, version: &str, method: &str, path: &str, length: usize) -> TcpStream {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = self
            .token
            .as_ref()
            .map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/{version}\r\nhost: {}\r\n{token}content-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n",
            self.address,
        );
        stream.write_all(request.as_bytes()).expect("the server reads");
        stream
    }
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("an answer");
    let text = String::from_utf8(text).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// A stream of events.
pub struct Events {
    reader: BufReader<TcpStream>,
}

impl Events {
    /// Returns the next event and its data; `None` at the end of the stream. Comments are skipped.
    pub fn next(&mut self) -> Option<(String, Value)> {
        let (mut event, mut data) = (String::new(), Value::Null);
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).expect("an event in time") == 0 {
                return None;
            }
            let line = line.trim_end_matches('\n');
            if let Some(name) = line.strip_prefix("event: ") {
                event = name.to_owned();
            } else if let Some(json) = line.strip_prefix("data: ") {
                data = serde_json::from_str(json).expect("JSON");
            } else if line.is_empty() && !event.is_empty() {
                return Some((event, data));
            }
        }
    }

    /// Returns the data of the next event of a trace.
    #[track_caller]
    pub fn traced(&mut self) -> Value {
        let (event, data) = self.next().expect("an event");
        assert_eq!(event, "trace", "{data}");
        data
    }
}
