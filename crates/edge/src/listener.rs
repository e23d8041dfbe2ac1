//! Listening sockets, and how fast they may take connections in.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mio::net::{TcpListener, UnixListener};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::settings::Listener as Settings;

/// A listening address as configured, with what all reactors share of it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub name: String,
    pub connections: AtomicUsize,
    pub connections_max: usize,
    /// Connections a second and reactor; 0 is no limit.
    pub connect_rate: u32,
}

/// One reactor's end of a listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: ListenerSocket,
    pub shared: Arc<Shared>,
    /// Accepted connections are dealt out among all reactors, because only this one listens.
    pub deals_out: bool,
    /// Connections that may still be accepted in the second that ends at `until`, in milliseconds.
    pub allowance: u32,
    pub until: u64,
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

/// A connection's place among those of its listener, and of the node, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Shared>, Arc<AtomicUsize>);

impl Place {
    /// `None` when the listener or the node is full.
    pub fn take(listener: &Arc<Shared>, node: &Arc<AtomicUsize>, node_max: usize) -> Option<Place> {
        let place = Place(listener.clone(), node.clone());
        let on_listener = listener.connections.fetch_add(1, Ordering::Relaxed);
        let on_node = node.fetch_add(1, Ordering::Relaxed);
        let room =
            on_node < node_max && (listener.connections_max == 0 || on_listener < listener.connections_max);
        room.then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sockets for `workers` reactors: one each where the system spreads connections among sockets of one address, else one.
pub(crate) fn bind(settings: &Settings, workers: usize) -> io::Result<Vec<ListenerSocket>> {
    match settings.address.strip_prefix("unix:") {
        Some(path) => {
            bind_unix(Path::new(path)).map(|listener| vec![ListenerSocket::Unix(listener, path.into())])
        }
        None => bind_tcp(settings, workers),
    }
}

fn bind_tcp(settings: &Settings, workers: usize) -> io::Result<Vec<ListenerSocket>> {
    let mut address = settings.address.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    if address.port() != 0 {
        // Sockets that share an address also share it with another process of the same user: look first.
        listening_socket(address, settings.backlog, false)?;
    }
    let mut sockets = Vec::new();
    while sockets.len() < workers {
        let socket = listening_socket(address, settings.backlog, true)?;
        let listener: std::net::TcpListener = socket.into();
        address = listener.local_addr()?;
        sockets.push(ListenerSocket::Tcp(TcpListener::from_std(listener)));
    }
    Ok(sockets)
}

fn listening_socket(address: SocketAddr, backlog: u32, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        // `[::]` is every address, IPv4 too.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // Accepted connections inherit these, so that accepting costs no system call for them: batched writes leave at once, and
    // a peer that vanished without a word is noticed even where Keep Alive is 0.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEP_ALIVE)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Probes after a minute of silence, every 20 seconds; three without answer end the connection.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(20))
    .with_retries(3);

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        // A socket file that nobody listens on is left from a process that was killed.
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
