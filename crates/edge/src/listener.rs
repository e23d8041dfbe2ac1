//! Listening sockets, and the rate at which they accept connections.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use broker::Time;
use mio::net::{TcpListener, UnixListener};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::connection_counts::ConnectionCounts;
use crate::listener_layers::ListenerLayers;
use crate::settings::Listener as Settings;

/// Configured listening address, with the state that all reactors share.
pub(crate) struct Shared {
    pub name: String,
    /// Index among the configured listeners.
    pub index: u16,
    pub connections: AtomicUsize,
    pub connections_max: usize,
    /// Counts of the whole node.
    pub connection_counts: Arc<ConnectionCounts>,
    /// Maximum number of new connections a second; 0 is no limit.
    pub connect_rate: u32,
    pub pace: Pace,
    /// Maximum time that a connection may take for its layers.
    pub handshake_timeout: Duration,
    /// Layers of new connections.
    pub listener_layers: ArcSwap<ListenerLayers>,
}

/// Rate limit for accepted connections of one listener, over all reactors.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Current second and, in the low bits, the number of connections accepted in it.
    taken: AtomicU64,
}

impl Pace {
    /// Takes one of the `rate` connections of this second. When none is left, the error is the time of the next second.
    /// A rate of 0 is no limit.
    pub fn take(&self, now: Time, rate: u32) -> Result<(), Time> {
        if rate == 0 {
            return Ok(());
        }
        let second = now.0 / 1000;
        let more = |taken: u64| {
            let count = if taken >> COUNT_BITS == second { taken & COUNT } else { 0 };
            (count < u64::from(rate).min(COUNT)).then(|| second << COUNT_BITS | (count + 1))
        };
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Time((second + 1) * 1000)),
        }
    }

    /// Returns an unused permit, because there was no connection to accept.
    pub fn refund(&self, rate: u32) {
        if rate > 0 {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Listener of one reactor.
pub(crate) struct Listener {
    pub socket: ListenerSocket,
    pub shared: Arc<Shared>,
    /// Accepted connections are distributed among all reactors, because only this reactor listens.
    pub deals_out: bool,
}

#[derive(Debug)]
pub(crate) enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenerSocket::Unix(_, path) = &self.socket
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.display(), "socket file not removed");
        }
    }
}

/// Permit for one connection of its listener and of the node. Dropping it frees the permit.
pub(crate) struct ConnectionPermit(Arc<Shared>);

impl ConnectionPermit {
    /// Takes a permit for a connection that has no limit.
    pub fn of(listener: &Arc<Shared>) -> ConnectionPermit {
        listener.connections.fetch_add(1, Ordering::Relaxed);
        listener.connection_counts.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionPermit(listener.clone())
    }

    /// Returns `None` when the listener or the node is at its limit.
    pub fn take(listener: &Arc<Shared>, node_max: usize) -> Option<ConnectionPermit> {
        let permit = ConnectionPermit(listener.clone());
        let on_listener = listener.connections.fetch_add(1, Ordering::Relaxed);
        let on_node = listener.connection_counts.connections.fetch_add(1, Ordering::Relaxed);
        let room =
            on_node < node_max && (listener.connections_max == 0 || on_listener < listener.connections_max);
        room.then_some(permit)
    }

    pub fn listener(&self) -> &Shared {
        &self.0
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.connection_counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sockets of one address for `workers` reactors. One for each reactor where the system spreads connections among
/// sockets of one address, else a single one.
pub(crate) type Sockets = Vec<ListenerSocket>;

/// Binds every address that the setting resolves to. A host name may have several.
pub(crate) fn bind(settings: &Settings, workers: usize) -> io::Result<Vec<Sockets>> {
    match settings.address.strip_prefix("unix:") {
        Some(path) => {
            bind_unix(Path::new(path)).map(|listener| vec![vec![ListenerSocket::Unix(listener, path.into())]])
        }
        None => {
            let addresses: Vec<_> = settings.address.to_socket_addrs()?.collect();
            for _ in 0..PORTS_TRIED {
                match bind_all(&addresses, settings.backlog, workers) {
                    // The port that the system chose for the first address may be in use on another.
                    Err(error)
                        if error.kind() == io::ErrorKind::AddrInUse
                            && addresses.iter().all(|address| address.port() == 0) => {}
                    result => return result,
                }
            }
            Err(io::ErrorKind::AddrInUse.into())
        }
    }
}

const PORTS_TRIED: usize = 16;

/// Binds all addresses to the same port. Skips addresses that this machine does not have, unless it has none of them:
/// `localhost` includes `::1` even without IPv6.
fn bind_all(addresses: &[SocketAddr], backlog: u32, workers: usize) -> io::Result<Vec<Sockets>> {
    let mut all: Vec<Sockets> = Vec::new();
    let mut port = None;
    let mut absent = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (at, address) in addresses.iter().enumerate() {
        let mut address = *address;
        if addresses[..at].contains(&address) {
            continue;
        }
        if address.port() == 0 {
            address.set_port(port.unwrap_or(0));
        }
        match bind_tcp(address, backlog, workers) {
            Ok(sockets) => {
                if let Some(ListenerSocket::Tcp(socket)) = sockets.first() {
                    port = Some(socket.local_addr()?.port());
                }
                all.push(sockets);
            }
            Err(error) if is_absent(&error) => {
                tracing::debug!(%address, %error, "address skipped: not available on this machine");
                absent = error;
            }
            Err(error) => return Err(error),
        }
    }
    if all.is_empty() { Err(absent) } else { Ok(all) }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

fn bind_tcp(mut address: SocketAddr, backlog: u32, workers: usize) -> io::Result<Sockets> {
    if address.port() != 0 {
        // Sockets that share an address also share it with another process of the same user, so check that no process
        // listens there.
        listening_socket(address, backlog, false)?;
    }
    let mut sockets = Vec::new();
    while sockets.len() < workers {
        let socket = listening_socket(address, backlog, true)?;
        let listener: std::net::TcpListener = socket.into();
        address = listener.local_addr()?;
        sockets.push(ListenerSocket::Tcp(TcpListener::from_std(listener)));
    }
    Ok(sockets)
}

fn listening_socket(address: SocketAddr, backlog: u32, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        // `[::]` stands for every address, including IPv4.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // Accepted connections inherit these options, which saves system calls. Batched writes leave at once, and a peer
    // that vanished is noticed even with Keep Alive 0.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEP_ALIVE)?;
    if let Err(error) = defer_accept(&socket) {
        tracing::debug!(%address, %error, "connections are accepted before their first bytes arrive");
    }
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Lets the system pass on a connection when its first bytes are there. They are read in the same turn, which saves a
/// wake-up for each client. A client that sends nothing is passed on after [`DEFER_MAX_S`] seconds, if it answers
/// another SYN-ACK of the system. Meanwhile it takes no descriptor.
fn defer_accept(socket: &Socket) -> io::Result<()> {
    let (option, value) = (libc::TCP_DEFER_ACCEPT, DEFER_MAX_S);
    // SAFETY: the pointer and the length are those of `value`, which lives for the whole call.
    let result = unsafe {
        let length = size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// All clients of MQTT, TLS, WebSocket and the PROXY protocol send first.
const DEFER_MAX_S: libc::c_int = 1;

/// TCP keep-alive: probes every 20 seconds after a minute of silence. Three unanswered probes end the connection.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(20))
    .with_retries(3);

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        // A socket file without a listener remains from a process that was killed.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }
}

fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connect_rate_limits_connections_of_each_second() {
        let pace = Pace::default();
        for second in [0, 1, 7] {
            let now = Time(second * 1000 + 900);
            for _ in 0..3 {
                assert_eq!(pace.take(now, 3), Ok(()));
            }
            assert_eq!(pace.take(now, 3), Err(Time((second + 1) * 1000)));
            pace.refund(3);
            assert_eq!(pace.take(now, 3), Ok(()));
            assert!(pace.take(now, 3).is_err());
        }
        assert!((0..1000).all(|_| Pace::default().take(Time(0), 0).is_ok()));
    }

    #[test]
    fn all_addresses_of_a_host_name_are_bound_to_one_port() {
        let addresses = ["127.0.0.1:0", "127.0.0.2:0", "127.0.0.1:0", "203.0.113.1:0"];
        let addresses = addresses.map(|address| address.parse().expect("an address"));
        let bound = bind_all(&addresses, 16, 2).expect("two of them are here");
        let local = |sockets: &Sockets| match &sockets[..] {
            [ListenerSocket::Tcp(socket), ListenerSocket::Tcp(_)] => socket.local_addr().expect("bound"),
            other => panic!("{other:?}"),
        };
        let bound: Vec<_> = bound.iter().map(local).collect();
        assert_eq!(bound.len(), 2);
        assert_eq!(bound[0].port(), bound[1].port());
        let error = bind_all(&addresses[3..], 16, 1).expect_err("nobody has a documentation address");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
