use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::secure::Tls;

/// How links are carried.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Where other nodes connect to. A port of 0 is one that the system chooses.
    pub listen: Vec<SocketAddr>,
    /// On all connections, both ways; without it bytes are neither encrypted nor protected from change.
    pub tls: Option<Tls>,
    /// The time of [`link::Time`] 0.
    pub clock: Instant,
    /// The congestion control of every connection, by the kernel's name for it.
    pub congestion: Box<str>,
    /// A connection ends when what was sent is not acknowledged for so long, or the peer takes nothing for so long.
    pub user_timeout: Duration,
    /// Bytes that a connection holds for a socket that would block; one frame may go beyond.
    pub output_max: usize,
    /// Connections that wait to be accepted, in the kernel.
    pub backlog: u16,
    /// The name of the thread.
    pub thread: Box<str>,
    /// What the name of a host with its port stands for. It may block: it has a thread of its own.
    pub resolve: fn(&str) -> io::Result<Vec<SocketAddr>>,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            tls: None,
            clock: Instant::now(),
            congestion: "bbr".into(),
            user_timeout: Duration::from_secs(10),
            output_max: 256 * 1024,
            backlog: 256,
            thread: "cluster".into(),
            resolve: |address| address.to_socket_addrs().map(Iterator::collect),
        }
    }
}
