//! A small HTTP server that answers as a test specifies, valid or not.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path and query, unchanged.
    pub target: String,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| &value[..])
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Bytes that are sent piece by piece. Then the connection is closed, unless the server hangs.
#[derive(Clone, Debug)]
pub struct Reply {
    pub pieces: Vec<Vec<u8>>,
    /// Keeps the connection until the client closes it.
    pub hang: bool,
}

impl Reply {
    pub fn bytes(bytes: &[u8]) -> Self {
        Self { pieces: vec![bytes.to_vec()], hang: false }
    }

    pub fn with(status: u16, kind: &str, body: &[u8]) -> Self {
        let mut bytes = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend(body);
        Self::bytes(&bytes)
    }

    pub fn json(body: &Value) -> Self {
        Self::with(200, "application/json", body.to_string().as_bytes())
    }

    pub fn empty() -> Self {
        Self::bytes(b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n")
    }

    pub fn problem(status: u16, slug: &str, detail: &str) -> Self {
        let body = serde_json::json!({"type": format!("urn:meridian:problem:{slug}"), "title": slug, "status": status, "detail": detail});
        Self::with(status, "application/problem+json", body.to_string().as_bytes())
    }

    /// An event stream that ends with the connection.
    pub fn events(pieces: &[&str]) -> Self {
        let head = "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let pieces = std::iter::once(&head).chain(pieces).map(|piece| piece.as_bytes().to_vec());
        Self { pieces: pieces.collect(), hang: false }
    }

    pub fn hanging(mut self) -> Self {
        self.hang = true;
        self
    }
}

/// A server that runs until the test process ends.
#[derive(Clone, Debug)]
pub struct Mock {
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Mock {
    pub fn serve(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mock =
            Self { url: format!("http://{}", listener.local_addr().unwrap()), requests: Arc::default() };
        let (requests, answer) = (mock.requests.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, answer) = (requests.clone(), answer.clone());
                thread::spawn(move || serve(stream, &requests, &*answer));
            }
        });
        mock
    }

    /// Gives every request the same reply.
    pub fn always(reply: Reply) -> Self {
        Self::serve(move |_| reply.clone())
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns the only request.
    pub fn request(&self) -> Request {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }
}

fn serve(mut stream: TcpStream, requests: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    let Some(request) = read(&mut stream) else { return };
    requests.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    for piece in &reply.pieces {
        if stream.write_all(piece).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
    if reply.hang {
        // Returns when the client closes the connection.
        drop(stream.read(&mut [0; 64]));
    }
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => bytes.extend(&buffer[..n]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ').map(str::to_owned);
    let (method, target) = (first.next()?, first.next()?);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, n)| n.parse().unwrap());
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => body.extend(&buffer[..n]),
            _ => return None,
        }
    }
    Some(Request { method, target, headers, body: String::from_utf8(body).unwrap() })
}
