use link::Time;
use mio::net::TcpListener;

use crate::log_limiter::LogLimiter;

/// One address that other nodes connect to.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    /// True when more connections may wait to be accepted.
    pub is_pending: bool,
    /// Time of the next attempt to accept, after the system had no resources.
    pub not_before: Time,
    /// Limiter for log lines about failures to accept.
    pub log_limiter: LogLimiter,
}

impl Listener {
    pub fn new(socket: TcpListener) -> Self {
        Self { socket, is_pending: true, not_before: Time(0), log_limiter: LogLimiter::default() }
    }
}
