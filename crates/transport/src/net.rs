//! Creation of sockets for links.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::config::TransportConfig;
use crate::figures::Counts;

/// TCP keep-alive for connections in their handshake. Links have their own pings.
const KEEP_ALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(20))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// Opens a listening socket.
///
/// # Errors
/// The address is in use or does not belong to this machine.
pub fn listen(address: SocketAddr, config: &TransportConfig, counts: &Counts) -> io::Result<TcpListener> {
    let socket = socket(address, config, counts)?;
    if address.is_ipv6() {
        // `[::]` accepts connections to every address, IPv4 too.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::from(config.backlog))?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Starts to connect.
///
/// # Errors
/// Only errors that are known at once.
pub fn connect(address: SocketAddr, config: &TransportConfig, counts: &Counts) -> io::Result<TcpStream> {
    let socket = socket(address, config, counts)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// Creates a socket with all options that accepted connections inherit from their listener.
fn socket(address: SocketAddr, config: &TransportConfig, counts: &Counts) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEP_ALIVE)?;
    socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    if let Err(error) = socket.set_tcp_congestion(config.congestion.as_bytes())
        && !counts.is_congestion_refused.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            %error,
            congestion = &*config.congestion,
            "links use the kernel's own congestion control, which may be far slower over distance: `modprobe tcp_bbr` and \
             net.ipv4.tcp_allowed_congestion_control allow the better one"
        );
    }
    Ok(socket)
}
