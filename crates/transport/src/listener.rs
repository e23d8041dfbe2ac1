use link::Time;
use mio::net::TcpListener;

use crate::log_limiter::LogLimiter;

/// One address where other nodes connect to.
#[derive(Debug)]
pub struct Listener {
    pub socket: TcpListener,
    /// It may have more to accept.
    pub is_pending: bool,
    /// The system had no room: not before.
    pub not_before: Time,
    /// It cannot accept.
    pub log_limiter: LogLimiter,
}

impl Listener {
    pub fn new(socket: TcpListener) -> Self {
        Self { socket, is_pending: true, not_before: Time(0), log_limiter: LogLimiter::default() }
    }
}
