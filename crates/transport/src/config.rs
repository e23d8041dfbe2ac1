use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use boottime::Instant;

use crate::secure::Tls;

/// Configuration of the transport.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// Addresses that other nodes connect to. With port 0 the system chooses a port.
    pub listen: Vec<SocketAddr>,
    /// TLS for all connections in both directions. Without it bytes are neither encrypted nor protected from change.
    pub tls: Option<Tls>,
    /// Instant of [`link::Time`] 0.
    pub clock: Instant,
    /// Congestion control of every connection, by its name in the kernel.
    pub congestion: Box<str>,
    /// Maximum time for which sent bytes may stay unacknowledged, or the peer may accept none. The connection ends
    /// then.
    pub user_timeout: Duration,
    /// Maximum bytes that a connection holds while its socket would block; one frame may exceed it.
    pub output_max: usize,
    /// Maximum connections that wait in the kernel to be accepted.
    pub backlog: u16,
    /// Name of the thread.
    pub thread: Box<str>,
    /// Resolver of host names with a port. It may block: it runs on a thread of its own.
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
