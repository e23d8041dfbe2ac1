//! Node: binds its listeners and runs its reactors until it is stopped.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use broker::Instant;
use broker::access::{Access, INTERNAL_LISTENER};
use broker::admin::Admin;
use broker::peers::Peers;
use broker::spans::SpanQueues;
use mio::{Poll, Waker};
use tls::Expiry;

use crate::connection_counts::ConnectionCounts;
use crate::door::Door;
use crate::listener::{self, Listener, ListenerSocket, Pace};
use crate::listener_layers::{ListenerLayers, ListenerLayersError};
use crate::mailbox::{Mailbox, ReactorCommand, mailbox};
use crate::reactor::{Reactor, WAKER};
use crate::reactor_threads::reactor_threads;
use crate::settings::{self, EdgeSettings};

/// Parts of a node.
pub struct Options {
    pub edge: EdgeSettings,
    pub broker: broker::settings::Settings,
    pub access: Arc<dyn Access>,
    /// Version in `$SYS/broker/version`.
    pub version: String,
    /// Durable state of the node, and its storage. `None`: nothing is kept on disk.
    pub store: Option<broker::Store>,
    /// Connection of the node to the others of its cluster, if it belongs to one.
    pub peers: Option<Arc<dyn Peers>>,
    /// Spans of messages that ask for them. `None`: none are recorded.
    pub spans: Option<Arc<SpanQueues>>,
    /// File descriptors reserved for the rest of the process. Clients get the others when `limits.connections_max` is
    /// not set.
    pub descriptors_reserved: usize,
}

/// Running node.
pub struct Node {
    bound: Vec<Bound>,
    mailboxes: Vec<Mailbox>,
    threads: Vec<JoinHandle<Stopped>>,
    connections_max: usize,
    admin: Admin,
    door: Door,
}

/// Bound listener. A host name with several addresses gives one for each.
#[derive(Clone)]
pub struct Bound {
    pub name: String,
    /// Address with the actual port, also when the system chose it.
    pub address: String,
    pub tcp: Option<SocketAddr>,
    shared: Arc<listener::Shared>,
}

impl Bound {
    /// Number of current connections that were accepted from this listener.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Maximum number of its connections; 0 is no limit.
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max
    }
}

/// Layers of a running node's listeners, certificates included, for renewal.
#[derive(Clone)]
pub struct Certificates(Vec<Arc<listener::Shared>>);

/// New certificates, which take effect with [`Renewed::apply`].
pub struct Renewed(Vec<(Arc<listener::Shared>, ListenerLayers)>);

impl Certificates {
    /// Reads the files of all listeners again.
    ///
    /// # Errors
    /// A file or setting cannot be used.
    pub fn read(&self, edge: &EdgeSettings) -> Result<Renewed, ListenerLayersError> {
        let read = |shared: &Arc<listener::Shared>| {
            let settings = edge.listeners.get(usize::from(shared.index))?;
            Some(ListenerLayers::read(settings).map(|listener_layers| (shared.clone(), listener_layers)))
        };
        self.0.iter().filter_map(read).collect::<Result<_, _>>().map(Renewed)
    }

    /// Reads the files of one listener again, which has this index in the settings.
    ///
    /// # Errors
    /// A file or setting cannot be used.
    pub fn read_one(&self, edge: &EdgeSettings, index: u16) -> Result<Renewed, ListenerLayersError> {
        let of_one = self.0.iter().filter(|shared| shared.index == index).cloned();
        Self(of_one.collect()).read(edge)
    }

    /// Returns the expiry dates of TLS files with the name of their listener. A listener with several addresses is
    /// listed once.
    pub fn expiries(&self) -> Vec<(String, Expiry)> {
        let mut seen = Vec::new();
        let mut all = Vec::new();
        for shared in &self.0 {
            if !seen.contains(&shared.index) {
                seen.push(shared.index);
                let listener_layers = shared.listener_layers.load();
                all.extend(
                    listener_layers.expiries().iter().map(|expiry| (shared.name.clone(), expiry.clone())),
                );
            }
        }
        all
    }
}

impl Renewed {
    /// Applies the new certificates to new connections. Existing connections keep theirs.
    pub fn apply(self) {
        for (shared, listener_layers) in self.0 {
            shared.listener_layers.store(Arc::new(listener_layers));
        }
    }
}

/// Result of stopping a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Number of connections when the stop began.
    pub connections: usize,
    /// Number of these whose last bytes did not leave in time.
    pub forced: usize,
}

/// Reason why a node did not start.
#[derive(Debug)]
pub enum StartError {
    Bind {
        /// Name of the setting that has the address.
        setting: String,
        address: String,
        /// Process that uses the address, if known.
        holder: Option<String>,
        source: io::Error,
    },
    /// Certificates or other layers of a listener cannot be used.
    ListenerLayers(ListenerLayersError),
    /// The node cannot join its cluster.
    Cluster(String),
    Thread(io::Error),
    Poll(io::Error),
    Random(io::Error),
    /// `limits.connections_max` needs more file descriptors than the process may have.
    Descriptors {
        wanted: usize,
        limit: usize,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { setting, address, holder, source } => {
                write!(f, "cannot listen on {address} ({setting}): ")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => write!(
                        f,
                        "{} uses it. Stop that one, or choose another address: --set {setting}={}",
                        holder.as_deref().unwrap_or("another process"),
                        another(address)
                    ),
                    io::ErrorKind::PermissionDenied => f.write_str(
                        "not permitted. Ports below 1024 need root or the capability net_bind_service, and a Unix socket a directory that this \
                         user may write into",
                    ),
                    io::ErrorKind::AddrNotAvailable => {
                        f.write_str("this machine does not have that address. Use one that it has, or 0.0.0.0 for all of them")
                    }
                    _ => write!(f, "{source}"),
                }
            }
            StartError::ListenerLayers(error) => error.fmt(f),
            StartError::Cluster(text) => f.write_str(text),
            StartError::Thread(source) => write!(f, "cannot start a thread: {source}"),
            StartError::Poll(source) => write!(f, "cannot set up polling: {source}"),
            StartError::Random(source) => write!(f, "cannot get random bytes from the system: {source}"),
            StartError::Descriptors { wanted, limit } => write!(
                f,
                "limits.connections_max = {wanted} needs more descriptors than the limit of {limit} allows: raise it \
                 (ulimit -n, LimitNOFILE=) or lower the setting"
            ),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Bind { source, .. }
            | StartError::Thread(source)
            | StartError::Poll(source)
            | StartError::Random(source) => Some(source),
            StartError::ListenerLayers(error) => Some(error),
            StartError::Cluster(_) | StartError::Descriptors { .. } => None,
        }
    }
}

/// Binds the listeners, and starts one reactor for each worker and as many threads.
pub fn start(options: Options) -> Result<Node, StartError> {
    let Options { edge, broker, access, version, store, peers, spans, descriptors_reserved } = options;
    let workers = match edge.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let connections_max =
        connections_max(broker.limits.connections_max as usize, workers, descriptors_reserved)?;
    let shared = match store {
        Some(store) => broker::Node::with_store(broker, access, version, workers as u16, store),
        None => {
            let seed = random().map_err(StartError::Random)?;
            broker::Node::new(broker, access, version, workers as u16, seed)
        }
    };
    shared.set_connections_max(connections_max as u64);
    if let Some(spans) = spans {
        shared.record_spans(spans);
    }
    let (started, clock) = (SystemTime::now(), Instant::now());
    let since_1970 = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    shared.set_wall_clock(since_1970.as_millis() as u64);
    let admin = Admin::new(shared.clone(), started, clock);

    let mut polls = Vec::new();
    let mut mailboxes = Vec::new();
    let mut inboxes = Vec::new();
    for _ in 0..workers {
        let poll = Poll::new().map_err(StartError::Poll)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(StartError::Poll)?;
        let (mailbox, inbox) = mailbox(waker);
        polls.push(poll);
        mailboxes.push(mailbox);
        inboxes.push(inbox);
    }
    let posted = mailboxes.clone();
    shared.set_mailbox(move |worker, command| {
        posted[worker.index()].send(ReactorCommand::WorkerCommand(command))
    });

    shared.connect_log();
    if let Some(peers) = peers {
        shared.join_cluster(peers, clock).map_err(StartError::Cluster)?;
    }

    let connection_counts = Arc::new(ConnectionCounts::default());
    let (bound, mut listeners) = bind_all(&edge, workers, &connection_counts)?;
    shared.set_durability(edge.listeners.iter().map(|listener| listener.durability).collect());
    shared.set_suback(edge.listeners.iter().map(|listener| listener.suback).collect());
    let names = edge.listeners.iter().map(name_of).chain([INTERNAL_LISTENER]);
    shared.name_listeners(names.map(str::to_owned).collect());
    let door = Door::new(&mailboxes, internal_listener(edge.listeners.len(), &connection_counts));
    let mut node =
        Node { bound, mailboxes: mailboxes.clone(), threads: Vec::new(), connections_max, admin, door };
    // All workers exist before the first thread starts: a reactor accepts connections as soon as it runs.
    let workers = shared.build_workers();
    let reactors = polls.into_iter().zip(inboxes).zip(workers).enumerate();
    let reactors = reactors.map(|(index, ((poll, inbox), worker))| {
        let listeners = std::mem::take(&mut listeners[index]);
        let began = (clock, shared.began());
        Reactor::new(worker, poll, inbox, mailboxes.clone(), listeners, began).limited_to(
            connection_counts.clone(),
            connections_max,
            edge.handshakes_per_turn as usize,
        )
    });
    // The first thread has all reactors. It starts last, so that all others are there to take some of them. If a thread
    // cannot start, no reactor runs, and the others wait until the process ends.
    let threads = reactor_threads(reactors.collect(), mailboxes.clone());
    for (index, thread) in threads.into_iter().enumerate().rev() {
        let started = critical::spawn(format!("reactor-{index}"), || thread.run());
        node.threads.push(started.map_err(StartError::Thread)?);
    }
    Ok(node)
}

impl Node {
    pub fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    /// Returns a handle that reads the certificates of the listeners again.
    pub fn certificates(&self) -> Certificates {
        Certificates(self.bound.iter().map(|bound| bound.shared.clone()).collect())
    }

    /// Returns the interface for operators.
    pub fn admin(&self) -> Admin {
        self.admin.clone()
    }

    /// Returns a handle that opens connections from this process to the node.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Maximum number of connections of the node.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Stops accepting and begins to disconnect every client: for up to `within`, until their last bytes have left. The
    /// node goes on without clients until [`Self::stop`].
    pub fn close(&self, within: Duration) {
        for mailbox in &self.mailboxes {
            mailbox.send(ReactorCommand::Close { within });
        }
    }

    /// Stops accepting, disconnects every client, waits up to `within` for their last bytes to leave, and ends.
    pub fn stop(self, within: Duration) -> Stopped {
        for mailbox in &self.mailboxes {
            mailbox.send(ReactorCommand::Stop { within });
        }
        let mut all = Stopped::default();
        for thread in self.threads {
            if let Ok(stopped) = thread.join() {
                all.connections += stopped.connections;
                all.forced += stopped.forced;
            }
        }
        all
    }
}

/// Name of a listener in logs, metrics and access rules.
fn name_of(settings: &settings::Listener) -> &str {
    if settings.name.is_empty() { &settings.address } else { &settings.name }
}

/// Listener of connections of the process. It has no address. Its index follows those of the configured ones.
fn internal_listener(index: usize, connection_counts: &Arc<ConnectionCounts>) -> Arc<listener::Shared> {
    Arc::new(listener::Shared {
        listener_layers: ArcSwap::default(),
        name: INTERNAL_LISTENER.to_owned(),
        index: index as u16,
        connections: AtomicUsize::new(0),
        connections_max: 0,
        connection_counts: connection_counts.clone(),
        connect_rate: 0,
        pace: Pace::default(),
        handshake_timeout: Duration::ZERO,
    })
}

/// Example of another address, for an error message.
fn another(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if host != "unix" => match port.parse::<u16>() {
            Ok(port) => format!("{host}:{}", port.checked_add(1).unwrap_or(1883)),
            Err(_) => address.to_owned(),
        },
        _ => format!("{address}-2"),
    }
}

type Listeners = Vec<Vec<Listener>>;

fn bind_all(
    edge: &EdgeSettings,
    workers: usize,
    connection_counts: &Arc<ConnectionCounts>,
) -> Result<(Vec<Bound>, Listeners), StartError> {
    let mut bound = Vec::new();
    let mut listeners: Listeners = (0..workers).map(|_| Vec::new()).collect();
    for (index, settings) in edge.listeners.iter().enumerate() {
        let failed = |source| StartError::Bind {
            setting: format!("listener.{index}.address"),
            address: settings.address.to_string(),
            holder: None,
            source,
        };
        let name = name_of(settings);
        let listener_layers = ListenerLayers::read(settings).map_err(StartError::ListenerLayers)?;
        let shared = Arc::new(listener::Shared {
            listener_layers: ArcSwap::from_pointee(listener_layers),
            name: name.to_owned(),
            index: index as u16,
            connections: AtomicUsize::new(0),
            connections_max: settings.connections_max as usize,
            connection_counts: connection_counts.clone(),
            connect_rate: settings.connect_rate,
            pace: Pace::default(),
            handshake_timeout: settings.handshake_timeout,
        });
        for sockets in listener::bind(settings, workers).map_err(failed)? {
            let tcp = match &sockets[0] {
                ListenerSocket::Tcp(socket) => Some(socket.local_addr().map_err(failed)?),
                ListenerSocket::Unix(..) => None,
            };
            let address = tcp.map_or_else(|| settings.address.to_string(), |address| address.to_string());
            let deals_out = sockets.len() < workers;
            for (worker, socket) in sockets.into_iter().enumerate() {
                listeners[worker].push(Listener { socket, shared: shared.clone(), deals_out });
            }
            bound.push(Bound { name: name.to_owned(), address, tcp, shared: shared.clone() });
        }
    }
    Ok((bound, listeners))
}

/// File descriptors that are always needed: listeners, polls, logs, and a password file being read.
const DESCRIPTORS_RESERVED: usize = 64;

fn connections_max(wanted: usize, workers: usize, reserved: usize) -> Result<usize, StartError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid, writable rlimit for the length of the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 };
    let available = limit.saturating_sub(DESCRIPTORS_RESERVED + 4 * workers);
    match wanted {
        // When few descriptors remain, clients get half of them.
        0 => Ok(available.saturating_sub(reserved).max(available / 2)),
        wanted if wanted > available => Err(StartError::Descriptors { wanted, limit }),
        wanted => Ok(wanted),
    }
}

fn random() -> io::Result<[u8; 16]> {
    use std::io::Read;
    let mut seed = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
}

/// Converts an IPv4-mapped IPv6 address to IPv4, so that rules and logs see one form.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(IpAddr::V4(ip), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_descriptors_that_are_not_reserved_but_at_least_half() {
        let all = connections_max(0, 2, 0).expect("no limit is set");
        assert_eq!(connections_max(0, 2, 100).ok(), Some(all - 100));
        assert_eq!(connections_max(0, 2, all).ok(), Some(all / 2));
        assert_eq!(connections_max(all, 2, 100).ok(), Some(all), "an explicit limit is used as it is");
        assert!(matches!(connections_max(all + 1, 2, 0), Err(StartError::Descriptors { .. })));
        assert!(connections_max(0, usize::MAX / 8, 0).is_ok_and(|none| none == 0));
    }
}
