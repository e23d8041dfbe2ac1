//! Nodes on real sockets whose handlers count the frames that arrive; and proxies between them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use link::{
    Class, Config, Event, Identity, Lane, Mesh, MeshConfig, MeshEvent, NodeId, Refused, Secret, Time,
};
use transport::{Handle, Handler, Tls, TransportConfig, spawn};

/// Time limit that is longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Look = Box<dyn FnOnce(Time, &Mesh) + Send>;

pub enum NodeCommand {
    Peer {
        name: String,
        address: String,
    },
    /// Starts discovery at an address.
    Discover(String),
    /// Sends `count` frames on lanes in turn.
    Flood {
        to: NodeId,
        count: u64,
    },
    /// Asks for [`News::Enough`] once `count` frames have arrived from a peer.
    Expect {
        from: NodeId,
        count: u64,
    },
    /// Blocks the thread until the other end of the channel is dropped.
    Halt(Receiver<()>),
    /// Runs a function on the mesh.
    Look(Look),
}

#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Up(NodeId),
    Suspect(NodeId),
    Restarted(NodeId),
    Enough(NodeId),
    /// All requested frames were accepted.
    Sent(NodeId),
    Refused(String),
    /// Name, descriptor and discovery address of an introduced node.
    Introduced(String, Bytes, Option<String>),
}

#[derive(Default)]
struct Peer {
    to_send: u64,
    sent: u64,
    /// Number of the next frame, by lane.
    next: BTreeMap<Lane, u64>,
    received: u64,
    expected: Option<u64>,
}

struct Counting {
    mesh: Mesh,
    peers: BTreeMap<NodeId, Peer>,
    news: Sender<News>,
}

const LANES: u8 = 8;

impl Handler for Counting {
    type Command = NodeCommand;

    fn handle_command(&mut self, now: Time, command: NodeCommand) {
        match command {
            NodeCommand::Peer { name, address } => self.mesh.add_peer(now, &name, &address),
            NodeCommand::Discover(address) => self.mesh.discover(now, &address),
            NodeCommand::Flood { to, count } => self.peers.entry(to).or_default().to_send += count,
            NodeCommand::Expect { from, count } => self.peers.entry(from).or_default().expected = Some(count),
            NodeCommand::Halt(until) => drop(until.recv()),
            NodeCommand::Look(look) => look(now, &self.mesh),
        }
    }

    fn mesh(&mut self) -> &mut Mesh {
        &mut self.mesh
    }

    fn turn(&mut self, now: Time) {
        while let Some(event) = self.mesh.poll_event() {
            match event {
                MeshEvent::Refused { reason, .. } => self.tell(News::Refused(reason.into())),
                MeshEvent::UnauthenticatedLimit { .. } => {}
                MeshEvent::Link { peer, event } => self.happened(peer, event),
                MeshEvent::Introduced { name, descriptor, address } => {
                    self.tell(News::Introduced(name.into(), descriptor, address.map(String::from)));
                }
            }
        }
        for (id, peer) in &mut self.peers {
            while peer.to_send > 0 {
                // Some frames are larger than a socket's buffer and a TLS record.
                let length =
                    if peer.sent % 1_000 == 999 { 200_000 } else { 100 + (peer.sent % 200) as usize };
                let frame = Bytes::from(vec![peer.sent as u8; length]);
                match self.mesh.send(
                    now,
                    *id,
                    Lane::assured((peer.sent % u64::from(LANES)) as u8),
                    frame.into(),
                ) {
                    Ok(_) => (peer.sent, peer.to_send) = (peer.sent + 1, peer.to_send - 1),
                    Err(Refused::Full { .. } | Refused::Down) => break,
                    Err(other) => panic!("{other:?}"),
                }
                if peer.to_send == 0 {
                    let _ = self.news.send(News::Sent(*id));
                }
            }
            if peer.expected.is_some_and(|expected| peer.received >= expected) {
                peer.expected = None;
                let _ = self.news.send(News::Enough(*id));
            }
        }
    }

    fn timeout(&self) -> Time {
        Time::NEVER
    }
}

impl Counting {
    fn tell(&self, news: News) {
        // The test may be over and listen no more.
        let _ = self.news.send(news);
    }

    fn happened(&mut self, from: NodeId, event: Event) {
        let peer = self.peers.entry(from).or_default();
        match event {
            Event::Received { lane, number, frame, credit } => {
                let next = peer.next.entry(lane).or_default();
                assert_eq!(number, *next, "every frame once and in order");
                assert!(frame.len() >= 100 && frame.iter().all(|byte| *byte == frame[0]), "as it was sent");
                *next += 1;
                peer.received += 1;
                self.mesh.consume(from, credit);
            }
            Event::Up => self.tell(News::Up(from)),
            Event::Suspect => self.tell(News::Suspect(from)),
            Event::Restarted => {
                *peer = Peer::default();
                self.tell(News::Restarted(from));
            }
            Event::Acknowledged { .. } | Event::Continued | Event::Silent { .. } => {}
        }
    }
}

/// Specification of a node.
#[derive(Clone)]
pub struct Spec {
    pub name: String,
    pub secret: String,
    pub cluster: u8,
    pub mesh: MeshConfig,
    pub tls: Option<Tls>,
    pub listen: SocketAddr,
    pub resolve: fn(&str) -> std::io::Result<Vec<SocketAddr>>,
}

impl Spec {
    pub fn new(name: &str) -> Self {
        let link = Config { silence_max: PATIENCE, ..Config::default() };
        Self {
            name: name.into(),
            secret: "secret".into(),
            cluster: 1,
            mesh: MeshConfig {
                link,
                connections: 3,
                dial_max: Duration::from_millis(300),
                discovery_interval: Duration::from_millis(50),
                ..MeshConfig::default()
            },
            tls: None,
            listen: ([127, 0, 0, 1], 0).into(),
            resolve: TransportConfig::default().resolve,
        }
    }

    pub fn start(self) -> Node {
        let (news, heard) = channel();
        let id = NodeId::of_name(&self.name);
        let descriptor = format!("the descriptor of {}", self.name).into();
        let identity =
            Identity { name: self.name.into(), cluster: [self.cluster; 16], features: 0, descriptor };
        let mut state = id.0 ^ u64::from(self.listen.port()) ^ START.fetch_add(1, Ordering::Relaxed) as u64;
        let random = move |bytes: &mut [u8]| {
            for byte in bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 56) as u8;
            }
        };
        let mesh = Mesh::new(identity, Secret::new(self.secret.as_bytes()), Box::new(random), self.mesh);
        let handler = Counting { mesh, peers: BTreeMap::new(), news };
        let config = TransportConfig {
            listen: vec![self.listen],
            tls: self.tls,
            resolve: self.resolve,
            ..TransportConfig::default()
        };
        let handle = spawn(handler, config).expect("a port and a thread");
        Node { id, handle, heard }
    }
}

/// Number of starts so far, so that no two are alike.
static START: AtomicUsize = AtomicUsize::new(0);

pub struct Node {
    pub id: NodeId,
    pub handle: Handle<NodeCommand>,
    heard: Receiver<News>,
}

impl Node {
    pub fn port(&self) -> u16 {
        self.handle.addresses()[0].port()
    }

    pub fn send(&self, command: NodeCommand) {
        assert!(self.handle.sender().send(command).is_ok(), "it runs");
    }

    pub fn add(&self, name: &str, address: &str) {
        self.send(NodeCommand::Peer { name: name.into(), address: address.into() });
    }

    /// Waits for an item of news that `is_it` accepts.
    pub fn until(&self, what: &str, is_it: impl Fn(&News) -> bool) -> News {
        let mut others = Vec::new();
        loop {
            match self.heard.recv_timeout(PATIENCE) {
                Ok(news) if is_it(&news) => return news,
                Ok(news) => others.push(news),
                Err(error) => panic!("{what}: {error}; other news {others:?}"),
            }
        }
    }

    pub fn until_is(&self, news: &News) {
        self.until(&format!("{news:?}"), |it| it == news);
    }

    /// Starts discovery at an address.
    pub fn discover(&self, address: &str) {
        self.send(NodeCommand::Discover(address.into()));
    }

    /// Waits until a node is introduced: found at an address, or a dialer that has found this one.
    pub fn until_introduced(&self, name: &str, address: Option<&str>) {
        let descriptor = format!("the descriptor of {name}").into();
        self.until_is(&News::Introduced(name.into(), descriptor, address.map(String::from)));
    }

    /// Returns the news so far.
    pub fn news(&self) -> Vec<News> {
        self.heard.try_iter().collect()
    }

    pub fn until_refused(&self, part: &str) {
        self.until(part, |news| matches!(news, News::Refused(reason) if reason.contains(part)));
    }

    /// Returns the result of `look` on the mesh.
    pub fn look<T: Send + 'static>(&self, look: impl FnOnce(Time, &Mesh) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        self.send(NodeCommand::Look(Box::new(move |now, mesh| {
            let _ = answer.send(look(now, mesh));
        })));
        answered.recv_timeout(PATIENCE).expect("it runs")
    }

    pub fn retransmitted(&self) -> u64 {
        self.look(|_, mesh| {
            mesh.peers().map(|peer| peer.link.counters().of(Class::Assured).retransmitted).sum()
        })
    }
}

/// Makes all nodes peers of each other.
pub fn join(nodes: &[(&str, &Node)]) {
    for (_, node) in nodes {
        for (name, other) in nodes.iter().filter(|(_, other)| other.id != node.id) {
            node.add(name, &format!("127.0.0.1:{}", other.port()));
        }
    }
    for (_, node) in nodes {
        for _ in 1..nodes.len() {
            node.until("up", |news| matches!(news, News::Up(_)));
        }
    }
}

/// Sends `count` frames both ways and waits until all have arrived.
pub fn exchange(one: &Node, other: &Node, count: u64) {
    for (from, to) in [(one, other), (other, one)] {
        to.send(NodeCommand::Expect { from: from.id, count });
        from.send(NodeCommand::Flood { to: to.id, count });
    }
    other.until_is(&News::Enough(one.id));
    one.until_is(&News::Enough(other.id));
}

/// Carries bytes between its clients and `to`, and cuts a connection after `cut` bytes, the next one later.
pub fn cutting_proxy(to: u16, cut: usize) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let cuts = Arc::new(AtomicUsize::new(0));
    let counted = cuts.clone();
    thread::spawn(move || {
        for one in listener.incoming() {
            let (one, other) = (one.expect("a connection"), TcpStream::connect(("127.0.0.1", to)));
            let Ok(other) = other else { continue };
            let left = Arc::new(AtomicUsize::new(cut * (1 + counted.load(Ordering::Relaxed))));
            for (from, to) in [(&one, &other), (&other, &one)] {
                let (from, to) =
                    (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
                let (left, cuts) = (left.clone(), counted.clone());
                thread::spawn(move || carry(from, to, &left, &cuts));
            }
        }
    });
    (port, cuts)
}

fn carry(mut from: TcpStream, mut to: TcpStream, left: &AtomicUsize, cuts: &AtomicUsize) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let before = left.load(Ordering::Relaxed);
        left.store(before.saturating_sub(count), Ordering::Relaxed);
        if before < count {
            cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Control of a slow direction of a proxy.
#[derive(Clone, Default)]
pub struct Trickle(Arc<(Mutex<Trickling>, Condvar)>);

#[derive(Default)]
struct Trickling {
    is_on: bool,
    /// Number of bytes carried one at a time.
    bytes: u64,
}

impl Trickle {
    pub fn begin(&self) {
        self.0.0.lock().expect("no panic").is_on = true;
    }

    pub fn end(&self) {
        self.0.0.lock().expect("no panic").is_on = false;
    }

    pub fn bytes(&self) -> u64 {
        self.0.0.lock().expect("no panic").bytes
    }

    /// Waits until `bytes` bytes have been carried.
    pub fn wait_for(&self, bytes: u64) {
        let (state, changed) = &*self.0;
        let state = state.lock().expect("no panic");
        let waited =
            changed.wait_timeout_while(state, PATIENCE, |state| state.bytes < bytes).expect("no panic");
        assert!(!waited.1.timed_out(), "nothing is carried any more");
    }
}

/// Pause between two bytes: long enough that no window fills during a test, and short enough for the test to finish.
const TRICKLE_PAUSE: Duration = Duration::from_millis(20);

/// Carries bytes between its clients and `to`. In the direction that `forwards` selects it carries one byte at a time
/// while the [`Trickle`] is on.
pub fn trickling_proxy(to: u16, forwards: bool) -> (u16, Trickle) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let trickle = Trickle::default();
    let handed = trickle.clone();
    thread::spawn(move || {
        for one in listener.incoming() {
            let (one, other) = (one.expect("a connection"), TcpStream::connect(("127.0.0.1", to)));
            let Ok(other) = other else { continue };
            for (from, to, is_slow) in [(&one, &other, forwards), (&other, &one, !forwards)] {
                let (from, to) =
                    (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
                let trickle = is_slow.then(|| handed.clone());
                thread::spawn(move || carry_slowly(from, to, trickle.as_ref()));
            }
        }
    });
    (port, trickle)
}

fn carry_slowly(mut from: TcpStream, mut to: TcpStream, trickle: Option<&Trickle>) {
    let mut buffer = [0; 16 * 1024];
    loop {
        let is_slow = trickle.is_some_and(|trickle| trickle.0.0.lock().expect("no panic").is_on);
        let room = if is_slow { 1 } else { buffer.len() };
        let Ok(count @ 1..) = from.read(&mut buffer[..room]) else { break };
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        if let Some(trickle) = trickle.filter(|_| is_slow) {
            trickle.0.0.lock().expect("no panic").bytes += 1;
            trickle.0.1.notify_all();
            thread::sleep(TRICKLE_PAUSE);
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Starts a node without peers.
pub fn idle(config: TransportConfig) -> std::io::Result<Handle<NodeCommand>> {
    let identity = Identity { name: "idle".into(), cluster: [1; 16], features: 0, descriptor: Bytes::new() };
    let mesh = Mesh::new(identity, Secret::new(b"secret"), Box::new(|_| {}), MeshConfig::default());
    spawn(Counting { mesh, peers: BTreeMap::new(), news: channel().0 }, config)
}
