//! Layers between a socket and MQTT, over real sockets: TLS with a client of rustls, WebSocket with a client of
//! tungstenite, and the PROXY protocol. Tests run with one worker and with three.
//! the PROXY protocol; with one worker and with three.

mod client;
mod proxy;
mod secure;
mod unauthenticated;
mod websocket;

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::{
    Access, Action, AuthReply, AuthResult, ClientCertificate, Credentials, Identity, Permission,
    RetryAuthorize,
};
use broker::admin::ClientDetail;
use broker::settings::Settings;
use edge::settings::{EdgeSettings, Listener};
use edge::{Options, StartError};

/// Maximum wait in these tests. Nothing takes longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Node {
    node: edge::Node,
    edge: EdgeSettings,
    seen_identity: Arc<RecordingAccess>,
}

/// Access control that admits every client, and records its Client Identifier, listener and certificate.
#[derive(Default)]
struct RecordingAccess(Mutex<Option<Introduction>>);

type Introduction = (String, String, Option<ClientCertificate>);

impl Access for RecordingAccess {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        seen_identity: Identity<'_>,
        _: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let introduction = (
            seen_identity.client_id.to_owned(),
            seen_identity.listener.to_owned(),
            seen_identity.certificate.cloned(),
        );
        *self.0.lock().expect("whole") = Some(introduction);
        Some(Permission { allowed: true, lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
}

impl Node {
    fn try_start(
        workers: usize,
        listener: Listener,
        settings: &dyn Fn(&mut Settings),
    ) -> Result<Node, StartError> {
        let mut broker = Settings::default();
        broker.sys.interval = Duration::ZERO;
        broker.mqtt.connect_timeout = Duration::from_secs(2);
        settings(&mut broker);
        let listener = Listener { address: "127.0.0.1:0".into(), ..listener };
        let edge = EdgeSettings { workers, listeners: vec![listener], ..Default::default() };
        let seen_identity = Arc::new(RecordingAccess::default());
        let access = seen_identity.clone();
        let node = edge::start(Options {
            edge: edge.clone(),
            broker,
            access,
            version: "entrance".into(),
            store: None,
            peers: None,
            spans: None,
            descriptors_reserved: 0,
        })?;
        Ok(Node { node, edge, seen_identity })
    }

    fn address(&self) -> SocketAddr {
        self.node.listeners()[0].tcp.expect("a TCP listener")
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address(), PATIENCE).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        stream
    }

    /// Returns the address of a connected client, as the node sees it.
    fn seen(&self, client_id: &str) -> Option<SocketAddr> {
        self.client(client_id)?.info.address
    }

    fn client(&self, client_id: &str) -> Option<Box<ClientDetail>> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let reply = Box::new(move |found| sender.send(found).expect("somebody waits"));
        self.node.admin().client(client_id, reply);
        receiver.recv_timeout(PATIENCE).expect("an answer")
    }

    /// Returns what the client that published last has presented.
    fn last_shown(&self) -> Introduction {
        self.seen_identity.0.lock().expect("whole").take().expect("a client")
    }

    fn stop(self) {
        self.node.stop(PATIENCE);
    }
}

fn everywhere(listener: impl Fn() -> Listener, scenario: impl Fn(&mut Node)) {
    everywhere_with(&listener, &|_| {}, scenario);
}

fn everywhere_with(
    listener: &dyn Fn() -> Listener,
    settings: &dyn Fn(&mut Settings),
    scenario: impl Fn(&mut Node),
) {
    for workers in [1, 3] {
        let mut node = Node::try_start(workers, listener(), settings).expect("the node starts");
        scenario(&mut node);
        node.stop();
    }
}

/// Directory for the files of one test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("meridian-entrance-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failure here must not fail the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
