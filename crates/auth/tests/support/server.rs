//! Small HTTP server with scripted answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    play: Box<dyn Fn(&Request) -> Play + Send + Sync>,
    tls: Option<Arc<ServerConfig>>,
    connections: AtomicUsize,
    requests: Mutex<Vec<Request>>,
    over: AtomicBool,
    gate: Gate,
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub line: String,
    /// Headers in lower case.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

pub enum Play {
    Answer(u16, &'static str),
    Chunked(&'static str),
    /// Sends these bytes, then closes the connection.
    Raw(Vec<u8>),
    /// Sends an answer that promises to keep the connection, and closes it.
    AnswerAndClose(u16, &'static str),
    Close,
    /// Sends these bytes, and then one blank after the other without an end, slowly.
    Drip(&'static str),
    /// Sends nothing, as long as the test runs.
    Hang,
}

/// Gate that is closed until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Waits for the gate; returns whether it was opened within this time.
    fn pass(&self, within: Duration) -> bool {
        let open = self.open.lock().unwrap();
        *self.opened.wait_timeout_while(open, within, |open| !*open).unwrap().0
    }
}

impl Server {
    pub fn start(play: impl Fn(&Request) -> Play + Send + Sync + 'static) -> Self {
        Self::run(None, play)
    }

    pub fn with_tls(config: ServerConfig, play: impl Fn(&Request) -> Play + Send + Sync + 'static) -> Self {
        Self::run(Some(Arc::new(config)), play)
    }

    fn run(tls: Option<Arc<ServerConfig>>, play: impl Fn(&Request) -> Play + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            play: Box::new(play),
            tls,
            connections: AtomicUsize::new(0),
            requests: Mutex::default(),
            over: AtomicBool::new(false),
            gate: Gate::default(),
        });
        let server = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.over.load(Ordering::Acquire) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (stream, shared) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        server
    }

    pub fn url(&self, target: &str) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{target}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// Returns the body of the last request.
    pub fn last(&self) -> serde_json::Value {
        serde_json::from_slice(&self.requests().last().expect("there was a request").body)
            .expect("it is JSON")
    }

    /// Releases the connections that [`Play::Hang`] and [`Play::Drip`] hold.
    pub fn release(&self) {
        self.shared.gate.open();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.release();
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match &self.tls {
            None => self.talk(stream),
            Some(config) => {
                let connection = ServerConnection::new(config.clone()).unwrap();
                self.talk(StreamOwned::new(connection, stream));
            }
        }
    }

    fn talk(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream) {
            self.requests.lock().unwrap().push(request.clone());
            let (bytes, close) = match (self.play)(&request) {
                Play::Answer(status, body) => (answer(status, body), false),
                Play::AnswerAndClose(status, body) => (answer(status, body), true),
                Play::Chunked(body) => (chunked(body), false),
                Play::Raw(bytes) => (bytes, true),
                Play::Close => (Vec::new(), true),
                Play::Drip(head) => {
                    let mut sent = stream.get_mut().write_all(head.as_bytes());
                    while sent.is_ok() && !self.gate.pass(Duration::from_millis(2)) {
                        sent = stream.get_mut().write_all(b" ").and_then(|()| stream.get_mut().flush());
                    }
                    return;
                }
                Play::Hang => {
                    self.gate.pass(Duration::from_secs(30));
                    (answer(200, r#"{"result":"allow"}"#), false)
                }
            };
            // The client may have timed out.
            if stream.get_mut().write_all(&bytes).and_then(|()| stream.get_mut().flush()).is_err() || close {
                return;
            }
        }
    }
}

impl Request {
    /// Reads a request; `None` at the end of the connection.
    fn read(stream: &mut impl BufRead) -> Option<Self> {
        let mut request = Self::default();
        stream.read_line(&mut request.line).ok().filter(|read| *read > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap();
            let name = name.to_lowercase();
            if name == "content-length" {
                length = value.parse().unwrap();
            }
            request.headers.push(format!("{name}: {value}"));
        }
        request.line.truncate(request.line.trim_end().len());
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body).ok()?;
        Some(request)
    }
}

fn answer(status: u16, body: &str) -> Vec<u8> {
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("HTTP/1.1 {status} X\r\n{length}\r\n{body}").into_bytes()
}

fn chunked(body: &str) -> Vec<u8> {
    let (a, b) = body.split_at(body.len() / 2);
    format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{a}\r\n{:x}\r\n{b}\r\n0\r\n\r\n",
        a.len(),
        b.len()
    )
    .into_bytes()
}
