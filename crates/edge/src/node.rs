//! A node: its listeners are bound, its reactors run, until it is stopped.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use broker::access::Access;
use broker::admin::Admin;
use broker::peers::Peers;
use mio::{Poll, Waker};
use tls::Expiry;

use crate::connection_counts::ConnectionCounts;
use crate::listener::{self, Listener, ListenerSocket, Pace};
use crate::listener_layers::{ListenerLayers, ListenerLayersError};
use crate::mailbox::{Mailbox, ReactorCommand, mailbox};
use crate::reactor::{Reactor, WAKER};
use crate::settings::{self, EdgeSettings};

/// Everything that a node is made of.
pub struct Options {
    pub edge: EdgeSettings,
    pub broker: broker::settings::Settings,
    pub access: Arc<dyn Access>,
    /// Shown in `$SYS/broker/version`.
    pub version: String,
    /// What the node goes on with and where it keeps it; without, it keeps nothing on disk.
    pub store: Option<broker::Store>,
    /// What joins the node to the others of its cluster, if it belongs to one.
    pub peers: Option<Arc<dyn Peers>>,
    /// Descriptors that the rest of the process may need: clients get what is left, where `limits.connections_max` does not say how many.
    pub descriptors_reserved: usize,
}

/// A running node.
pub struct Node {
    bound: Vec<Bound>,
    mailboxes: Vec<Mailbox>,
    threads: Vec<JoinHandle<Stopped>>,
    connections_max: usize,
    admin: Admin,
}

/// A listener as it was bound; one whose host name has several addresses is bound to each.
#[derive(Clone)]
pub struct Bound {
    pub name: String,
    /// With the port that the system chose, where it did.
    pub address: String,
    pub tcp: Option<SocketAddr>,
    shared: Arc<listener::Shared>,
}

impl Bound {
    /// Connections accepted from it that are there now.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How many there may be; 0 is no limit of its own.
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max
    }
}

/// The certificates of a running node's listeners, and whatever else its connections have to pass through.
#[derive(Clone)]
pub struct Certificates(Vec<Arc<listener::Shared>>);

/// Certificates that have been read and hold from [`Renewed::apply`] on.
pub struct Renewed(Vec<(Arc<listener::Shared>, ListenerLayers)>);

impl Certificates {
    /// Reads the files of all listeners again.
    ///
    /// # Errors
    /// What cannot be used.
    pub fn read(&self, edge: &EdgeSettings) -> Result<Renewed, ListenerLayersError> {
        let read = |shared: &Arc<listener::Shared>| {
            let settings = edge.listeners.get(usize::from(shared.index))?;
            Some(ListenerLayers::read(settings).map(|listener_layers| (shared.clone(), listener_layers)))
        };
        self.0.iter().filter_map(read).collect::<Result<_, _>>().map(Renewed)
    }

    /// When the files of each listener's TLS end, with the listener's name; a listener with several addresses comes once.
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
    /// Connections from now on get these; those that exist keep theirs.
    pub fn apply(self) {
        for (shared, listener_layers) in self.0 {
            shared.listener_layers.store(Arc::new(listener_layers));
        }
    }
}

/// What stopping found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Connections at the time.
    pub connections: usize,
    /// Of these, those whose last bytes did not leave in time.
    pub forced: usize,
}

/// Why a node did not start.
#[derive(Debug)]
pub enum StartError {
    Bind {
        /// The setting that names the address.
        setting: String,
        address: String,
        /// The process that has it, where that is known.
        holder: Option<String>,
        source: io::Error,
    },
    /// Certificates and the like that cannot be used.
    ListenerLayers(ListenerLayersError),
    /// The node cannot take its part in its cluster.
    Cluster(String),
    Thread(io::Error),
    Poll(io::Error),
    Random(io::Error),
    /// `limits.connections_max` asks for more descriptors than the process may have.
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
                         user may write to",
                    ),
                    io::ErrorKind::AddrNotAvailable => {
                        f.write_str("this machine does not have that address. 0.0.0.0 stands for all that it has")
                    }
                    _ => write!(f, "{source}"),
                }
            }
            StartError::ListenerLayers(error) => error.fmt(f),
            StartError::Cluster(text) => f.write_str(text),
            StartError::Thread(source) => write!(f, "cannot start a thread: {source}"),
            StartError::Poll(source) => write!(f, "cannot set up polling: {source}"),
            StartError::Random(source) => write!(f, "cannot read randomness from the system: {source}"),
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

/// Binds the listeners and starts one reactor per worker.
pub fn start(options: Options) -> Result<Node, StartError> {
    let Options { edge, broker, access, version, store, peers, descriptors_reserved } = options;
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
    let (started, clock) = (SystemTime::now(), Instant::now());
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

    let (bound, mut listeners) = bind_all(&edge, workers)?;
    shared.set_durability(edge.listeners.iter().map(|listener| listener.durability).collect());
    shared.set_suback(edge.listeners.iter().map(|listener| listener.suback).collect());
    shared.name_listeners(edge.listeners.iter().map(|listener| name_of(listener).to_owned()).collect());
    let connection_counts = Arc::new(ConnectionCounts::default());
    let mut node = Node { bound, mailboxes: mailboxes.clone(), threads: Vec::new(), connections_max, admin };
    // All of them before the first thread: a reactor accepts as soon as it runs.
    let workers = shared.build_workers();
    for (index, ((poll, inbox), worker)) in polls.into_iter().zip(inboxes).zip(workers).enumerate() {
        let listeners = std::mem::take(&mut listeners[index]);
        let (mailboxes, connection_counts) = (mailboxes.clone(), connection_counts.clone());
        let began = shared.began();
        let handshakes = edge.handshakes_per_turn as usize;
        let run = move || {
            let reactor = Reactor::new(worker, poll, inbox, mailboxes, listeners, (clock, began));
            reactor.limited_to(connection_counts, connections_max, handshakes).run()
        };
        match critical::spawn(format!("reactor-{index}"), run) {
            Ok(thread) => node.threads.push(thread),
            Err(error) => {
                node.stop(Duration::ZERO);
                return Err(StartError::Thread(error));
            }
        }
    }
    Ok(node)
}

impl Node {
    pub fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    /// What reads the listeners' certificates again.
    pub fn certificates(&self) -> Certificates {
        Certificates(self.bound.iter().map(|bound| bound.shared.clone()).collect())
    }

    /// What operators ask the node by.
    pub fn admin(&self) -> Admin {
        self.admin.clone()
    }

    /// Connections that the node takes at one time.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Stops accepting, tells every client, lets their last bytes leave for up to `within`, and ends.
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

/// What logs, figures and access rules call a listener.
fn name_of(settings: &settings::Listener) -> &str {
    if settings.name.is_empty() { &settings.address } else { &settings.name }
}

/// An example of an address that may be free, where this one is not.
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

fn bind_all(edge: &EdgeSettings, workers: usize) -> Result<(Vec<Bound>, Listeners), StartError> {
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

/// Descriptors that are needed in any case: listeners, polls, logs, a password file being read.
const DESCRIPTORS_RESERVED: usize = 64;

fn connections_max(wanted: usize, workers: usize, reserved: usize) -> Result<usize, StartError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid, writable rlimit for the length of the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { 1024 };
    let available = limit.saturating_sub(DESCRIPTORS_RESERVED + 4 * workers);
    match wanted {
        // With few of them clients have half.
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

/// The address without the mapping of IPv4 into IPv6, so that rules and logs see one form.
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
    fn clients_leave_descriptors_to_others_but_have_half() {
        let all = connections_max(0, 2, 0).expect("no limit is set");
        assert_eq!(connections_max(0, 2, 100).ok(), Some(all - 100));
        assert_eq!(connections_max(0, 2, all).ok(), Some(all / 2));
        assert_eq!(connections_max(all, 2, 100).ok(), Some(all), "who says how many gets them");
        assert!(matches!(connections_max(all + 1, 2, 0), Err(StartError::Descriptors { .. })));
        assert!(connections_max(0, usize::MAX / 8, 0).is_ok_and(|none| none == 0));
    }
}
