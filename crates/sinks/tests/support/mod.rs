//! A scripted HTTP server, and records for it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use rules::Value;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sinks::{ActionSettings, ConnectorSettings, Guard, Record, Target};

/// Reaction of the server to a request.
#[derive(Clone)]
pub enum Reply {
    Status(u16),
    Full {
        status: u16,
        headers: String,
        body: String,
    },
    /// Answers, says that the connection stays open, and closes it.
    OkThenClose,
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends nothing until the client closes the connection.
    Silence,
    Close,
}

/// A request that the server has read.
#[derive(Debug)]
pub struct Received {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found: Vec<_> = self.headers.iter().filter(|(other, _)| other == name).collect();
        assert!(found.len() < 2, "{name} is there twice");
        found.first().map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }
}

pub struct Server {
    pub address: SocketAddr,
    received: Receiver<Received>,
    script: Arc<Mutex<VecDeque<Reply>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server that answers with these replies, and with status 200 after them.
    pub fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        Self::with(script, None)
    }

    pub fn secure(config: Arc<ServerConfig>) -> Self {
        Self::with([], Some(config))
    }

    fn with(script: impl IntoIterator<Item = Reply>, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (sender, received) = sync_channel(1000);
        let (replies, count) = (script.clone(), connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let (replies, sender, tls) = (replies.clone(), sender.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => serve(stream, &replies, &sender),
                    Some(config) => {
                        let tls = ServerConnection::new(config).expect("a configuration");
                        serve(StreamOwned::new(tls, stream), &replies, &sender);
                    }
                });
            }
        });
        Self { address, received, script, connections }
    }

    pub fn url(&self) -> Option<String> {
        Some(format!("http://{}", self.address))
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<Received> {
        self.received.try_iter().collect()
    }

    /// Returns the only request since the last call.
    pub fn request(&self) -> Received {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    pub fn then(&self, replies: impl IntoIterator<Item = Reply>) {
        sync::lock(&self.script).extend(replies);
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Serves one connection.
fn serve(stream: impl Read + Write, script: &Mutex<VecDeque<Reply>>, sender: &SyncSender<Received>) {
    let mut stream = BufReader::new(stream);
    while let Some(received) = read(&mut stream) {
        let is_head = received.method == "HEAD";
        if sender.send(received).is_err() {
            return;
        }
        let reply = sync::lock(script).pop_front().unwrap_or(Reply::Status(200));
        let stream = stream.get_mut();
        let (bytes, is_last) = match reply {
            Reply::Status(status) => (full(status, "", ""), false),
            Reply::Full { status, headers, body } => (full(status, &headers, &body), false),
            Reply::OkThenClose => (full(200, "", ""), true),
            Reply::Raw(bytes) => (bytes, true),
            Reply::Close => (Vec::new(), true),
            Reply::Silence => {
                while stream.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
                return;
            }
        };
        assert!(!is_head, "no target sends HEAD");
        // The client may be gone.
        if stream.write_all(&bytes).and_then(|()| stream.flush()).is_err() || is_last {
            return;
        }
    }
}

fn full(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("HTTP/1.1 {status} Reason\r\n{length}{headers}\r\n{body}").into_bytes()
}

fn read(stream: &mut BufReader<impl Read>) -> Option<Received> {
    let line = |stream: &mut BufReader<_>| {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|len| *len > 0)?;
        Some(line.trim_end_matches("\r\n").to_owned())
    };
    let first = line(stream)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().expect("a length"))];
    stream.read_exact(&mut body).ok()?;
    Some(Received { method, target, headers, body })
}

pub const OPEN: Guard = Guard { allow_loopback: true, allow_private: true };

pub fn target(connector: &ConnectorSettings, action: &ActionSettings) -> Arc<dyn Target> {
    sinks::target(connector, action, OPEN).unwrap_or_else(|problem| panic!("{problem}"))
}

/// Renders an output with one member, `v`.
pub fn record(target: &dyn Target, id: u128, v: impl Into<Value>) -> Record {
    let output = Value::object([("v", v.into())]);
    Record { id, ..target.render(&output).unwrap_or_else(|error| panic!("{error}")) }
}

/// A file in the directory of the tests that is removed at the end.
pub struct Temporary(std::path::PathBuf);

impl Temporary {
    pub fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sinks-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("a file");
        Self(path)
    }

    pub fn path(&self) -> Option<std::path::PathBuf> {
        Some(self.0.clone())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}
