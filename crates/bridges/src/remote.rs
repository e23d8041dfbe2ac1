//! A connection to the other broker: TCP, with TLS if it is configured. It never blocks, except in [`Remote::open`].

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use mio::{Interest, Registry, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::SockRef;

/// Maximum time to open a connection to one address.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Congestion control that keeps its speed when packets are lost at random, as those of links between nodes.
const CONGESTION: &str = "bbr";
/// Maximum time without an acknowledgement of sent bytes.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes that wait in TLS.
const TLS_BUFFER: usize = 64 << 10;

/// A connection to the other broker.
pub struct Remote {
    stream: mio::net::TcpStream,
    tls: Option<Box<ClientConnection>>,
    host: String,
}

impl Remote {
    /// Opens a connection. Blocks for some seconds, while a name or an address does not answer.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn open(address: &str, tls: Option<(&Arc<ClientConfig>, Option<&str>)>) -> Result<Self, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let addresses = address.to_socket_addrs().map_err(|error| error.to_string())?;
        let mut last = "the name has no address".to_owned();
        for one in addresses.take(ADDRESSES_MAX) {
            let stream = TcpStream::connect_timeout(&one, OPEN_MAX);
            match stream.and_then(|stream| prepare(&stream).map(|()| stream)) {
                Ok(stream) => {
                    let stream = mio::net::TcpStream::from_std(stream);
                    let Some((config, name)) = tls else { return Ok(Self { stream, tls: None, host }) };
                    let host = name.map_or(host, str::to_owned);
                    let name = ServerName::try_from(host.clone())
                        .map_err(|_| format!("`{host}` is no host name for TLS"))?;
                    let mut tls = ClientConnection::new(config.clone(), name)
                        .map_err(|error| tls::explain(&error, &host))?;
                    tls.set_buffer_limit(Some(TLS_BUFFER));
                    return Ok(Self { stream, tls: Some(Box::new(tls)), host });
                }
                Err(error) if one.to_string() == address => last = error.to_string(),
                Err(error) => last = format!("{one}: {error}"),
            }
        }
        Err(last)
    }

    /// Begins to poll the connection.
    ///
    /// # Errors
    /// Those of the system.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reads what has arrived into `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; the others end the connection.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            // An alert that names the reason, or an answer of the handshake.
            flush(tls, &mut self.stream)?;
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Writes some of the bytes, and returns how many. 0 when nothing can be written now.
    ///
    /// # Errors
    /// Those that end the connection.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            if bytes.is_empty() {
                return Ok(0);
            }
            return match self.stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                done => done,
            };
        };
        flush(tls, &mut self.stream)?;
        let taken = if bytes.is_empty() { 0 } else { tls.writer().write(bytes)? };
        flush(tls, &mut self.stream)?;
        Ok(taken)
    }

    /// Returns whether bytes wait below the last ones that were written.
    pub fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Announces the end of the connection.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection ends in any case.
            let _ = flush(tls, &mut self.stream);
        }
        // The same.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Text for an error of this connection.
    pub fn explain(&self, error: &io::Error) -> String {
        tls::explain_io(error, &self.host).unwrap_or_else(|| error.to_string())
    }
}

/// Sets the options of a connection over distance.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    if let Err(error) = socket.set_tcp_congestion(CONGESTION.as_bytes()) {
        // The kernel does not have it, or does not allow it.
        tracing::debug!(%error, CONGESTION, "remote broker: the kernel's own congestion control is used");
    }
    socket.set_nonblocking(true)
}

/// Writes what TLS has, as far as the socket takes it.
fn flush(tls: &mut ClientConnection, stream: &mut mio::net::TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(stream) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_has_the_options_of_connections_over_distance() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let remote = Remote::open(&address, None).expect("a connection");
        let socket = SockRef::from(&remote.stream);
        assert!(socket.tcp_nodelay().expect("readable") && socket.nonblocking().expect("readable"));
        assert_eq!(socket.tcp_user_timeout().expect("readable"), Some(USER_TIMEOUT));
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        if allowed.is_ok_and(|allowed| allowed.split_whitespace().any(|name| name == CONGESTION)) {
            let congestion = socket.tcp_congestion().expect("readable");
            assert!(congestion.starts_with(CONGESTION.as_bytes()), "{congestion:?}");
        }
    }
}
