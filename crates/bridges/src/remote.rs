//! A connection to the other broker: TCP, with TLS and WebSocket if they are configured. It never blocks, except in
//! [`Remote::open`].

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::SockRef;
use tls::OptionStyle;
use websocket::{Upgrade, WebSocket};

/// Maximum time to open a connection to one address.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Maximum time for the upgrade to WebSocket, with the handshake of TLS before it.
const UPGRADE_MAX: Duration = Duration::from_secs(10);
/// Congestion control that keeps its speed when packets are lost at random, as those of links between nodes.
const CONGESTION: &str = "bbr";
/// Maximum time without an acknowledgement of sent bytes.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes that wait in TLS.
const TLS_BUFFER: usize = 64 << 10;
/// Maximum payload of a frame of WebSocket that is sent.
const FRAME_MAX: usize = 64 << 10;

const SPEAKS_TLS: &str = "the server at this port speaks TLS; set tls = true, or use the port without it";

const NO_HANDSHAKE: &str = "the server closed the connection instead of beginning TLS; if this port has none, set tls = false or use the port \
     with TLS";

/// Way to the other broker.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// `HOST:PORT`.
    pub address: String,
    pub tls: Option<Arc<ClientConfig>>,
    /// Host name that the certificate must have; `None` for that of the address.
    pub tls_server_name: Option<String>,
    /// Path of the WebSocket; `None` without one.
    pub websocket_path: Option<String>,
}

/// A connection to the other broker.
pub struct Remote {
    wire: Wire,
    frames: Option<Frames>,
    host: String,
    /// True until something was read.
    is_fresh: bool,
}

/// TCP, with TLS if there is some.
struct Wire {
    stream: mio::net::TcpStream,
    tls: Option<Box<ClientConnection>>,
}

/// WebSocket on top of a wire.
struct Frames {
    websocket: WebSocket,
    /// Received bytes of MQTT that were not read.
    plain: Vec<u8>,
    /// Frames that the wire has not taken.
    unsent: Vec<u8>,
}

impl Remote {
    /// Opens a connection. Blocks for some seconds, while a name or an address does not answer.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn open(target: &Target) -> Result<Self, String> {
        let addresses = target.address.to_socket_addrs().map_err(|error| error.to_string())?;
        let mut last = "the name has no address".to_owned();
        for one in addresses.take(ADDRESSES_MAX) {
            match connect(&one) {
                Ok(stream) => return Self::over(stream, target),
                Err(error) if one.to_string() == target.address => last = error.to_string(),
                Err(error) => last = format!("{one}: {error}"),
            }
        }
        Err(last)
    }

    /// Begins TLS and WebSocket.
    fn over(stream: TcpStream, target: &Target) -> Result<Self, String> {
        let host = target.address.rsplit_once(':').map_or(&*target.address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host =
            target.tls_server_name.as_deref().filter(|_| target.tls.is_some()).unwrap_or(host).to_owned();
        let mut tls = None;
        if let Some(config) = &target.tls {
            let name = ServerName::try_from(host.clone())
                .map_err(|_| format!("`{host}` is no host name for TLS; set tls_server_name to one"))?;
            let mut connection = ClientConnection::new(config.clone(), name)
                .map_err(|error| tls::explain(&error, &host, OptionStyle::Bridge))?;
            connection.set_buffer_limit(Some(TLS_BUFFER));
            tls = Some(Box::new(connection));
        }
        let mut frames = None;
        if let Some(path) = &target.websocket_path {
            let websocket = upgrade(&stream, tls.as_deref_mut(), &target.address, path).map_err(
                |trouble| match trouble {
                    Trouble::Io(error) => explain(&error, &host, tls.as_deref()),
                    Trouble::Refused(why) => why,
                },
            )?;
            frames = Some(Frames { websocket, plain: Vec::new(), unsent: Vec::new() });
        }
        stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        let wire = Wire { stream: mio::net::TcpStream::from_std(stream), tls };
        Ok(Self { wire, frames, host, is_fresh: true })
    }

    /// Begins to poll the connection.
    ///
    /// # Errors
    /// Those of the system.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.wire.stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Reads what has arrived into `buffer`; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; the others end the connection.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.frames {
            None => self.wire.read(buffer),
            Some(frames) => frames.read(&mut self.wire, buffer),
        }?;
        if std::mem::take(&mut self.is_fresh) && self.wire.tls.is_none() && tls::is_record(&buffer[..count]) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, SPEAKS_TLS));
        }
        Ok(count)
    }

    /// Writes some of the bytes, and returns how many. 0 when nothing can be written now.
    ///
    /// # Errors
    /// Those that end the connection.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.frames {
            None => self.wire.write(bytes),
            Some(frames) => frames.write(&mut self.wire, bytes),
        }
    }

    /// Returns whether bytes wait below the last ones that were written.
    pub fn has_unsent(&self) -> bool {
        self.wire.has_unsent() || self.frames.as_ref().is_some_and(|frames| !frames.unsent.is_empty())
    }

    /// Announces the end of the connection.
    pub fn close(&mut self) {
        if let Some(frames) = &mut self.frames {
            // The connection ends in any case.
            let _ = frames.close(&mut self.wire);
        }
        self.wire.close();
    }

    /// Text for an error of this connection.
    pub fn explain(&self, error: &io::Error) -> String {
        explain(error, &self.host, self.wire.tls.as_deref())
    }
}

/// Text for an error of a connection to this host, with TLS or without.
fn explain(error: &io::Error, host: &str, tls: Option<&ClientConnection>) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let has_ended = matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof);
    if has_ended && tls.is_some_and(|tls| tls.is_handshaking()) {
        return NO_HANDSHAKE.to_owned();
    }
    tls::explain_io(error, host, OptionStyle::Bridge).unwrap_or_else(|| error.to_string())
}

impl Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return if tls.is_handshaking() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(0) };
            }
            let processed = tls.process_new_packets();
            // An alert that names the reason, or an answer of the handshake.
            flush(tls, &mut self.stream)?;
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
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

    fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection ends in any case.
            let _ = flush(tls, &mut self.stream);
        }
        // The same.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl Frames {
    fn read(&mut self, wire: &mut Wire, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.plain.is_empty() {
                let count = self.plain.len().min(buffer.len());
                buffer[..count].copy_from_slice(&self.plain[..count]);
                self.plain.drain(..count);
                return Ok(count);
            }
            if self.websocket.is_closed() {
                return Ok(0);
            }
            let count = if self.websocket.has_early() { 0 } else { wire.read(buffer)? };
            if count == 0 && !self.websocket.has_early() {
                return Ok(0);
            }
            let received =
                self.websocket.receive(&buffer[..count], &mut self.plain, &mut self.unsent, random()?);
            received.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
            self.flush(wire)?;
        }
    }

    fn write(&mut self, wire: &mut Wire, bytes: &[u8]) -> io::Result<usize> {
        self.flush(wire)?;
        if bytes.is_empty() || !self.unsent.is_empty() {
            return Ok(0);
        }
        let taken = &bytes[..bytes.len().min(FRAME_MAX)];
        WebSocket::send(taken, random()?, &mut self.unsent);
        self.flush(wire)?;
        Ok(taken.len())
    }

    fn close(&mut self, wire: &mut Wire) -> io::Result<()> {
        WebSocket::close(random()?, &mut self.unsent);
        self.flush(wire)
    }

    fn flush(&mut self, wire: &mut Wire) -> io::Result<()> {
        loop {
            let written = wire.write(&self.unsent)?;
            self.unsent.drain(..written);
            if written == 0 || self.unsent.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Connects, with the options of a connection over distance.
fn connect(address: &SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, OPEN_MAX)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    if let Err(error) = socket.set_tcp_congestion(CONGESTION.as_bytes()) {
        // The kernel does not have it, or does not allow it.
        tracing::debug!(%error, CONGESTION, "remote broker: the kernel's own congestion control is used");
    }
    Ok(stream)
}

/// Reason why there is no WebSocket.
enum Trouble {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Completes the handshake of TLS and the upgrade to WebSocket. It blocks for a limited time.
fn upgrade(
    stream: &TcpStream,
    tls: Option<&mut ClientConnection>,
    address: &str,
    path: &str,
) -> Result<WebSocket, Trouble> {
    let upgrade = Upgrade::new(address, path, random()?);
    let mut timed = Timed { stream, until: Instant::now() + UPGRADE_MAX };
    match tls {
        None => exchange(&upgrade, &mut timed),
        Some(tls) => exchange(&upgrade, &mut rustls::Stream::new(tls, &mut timed)),
    }
}

fn exchange(upgrade: &Upgrade, wire: &mut (impl Read + Write)) -> Result<WebSocket, Trouble> {
    wire.write_all(&upgrade.request)?;
    wire.flush()?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(websocket) = upgrade.answered(&answer).map_err(Trouble::Refused)? {
            return Ok(websocket);
        }
        match wire.read(&mut buffer)? {
            0 => {
                let why = "the connection was closed instead of a WebSocket";
                return Err(Trouble::Refused(why.to_owned()));
            }
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A stream whose reads and writes must be done at a certain time.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(late()),
            left => Ok(Some(left)),
        }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer to the handshake of TLS or WebSocket in time")
}

/// Names the error of a stream that has waited for its time limit.
fn timed<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { late() } else { error })
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        timed(self.stream.read(buffer))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        timed(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
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
        let remote = Remote::open(&Target { address, ..Target::default() }).expect("a connection");
        let socket = SockRef::from(&remote.wire.stream);
        assert!(socket.tcp_nodelay().expect("readable") && socket.nonblocking().expect("readable"));
        assert_eq!(socket.tcp_user_timeout().expect("readable"), Some(USER_TIMEOUT));
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        if allowed.is_ok_and(|allowed| allowed.split_whitespace().any(|name| name == CONGESTION)) {
            let congestion = socket.tcp_congestion().expect("readable");
            assert!(congestion.starts_with(CONGESTION.as_bytes()), "{congestion:?}");
        }
    }

    /// Accepts one WebSocket, sends `sends`, and returns the bytes that came after the request.
    fn serve(listener: &TcpListener, sends: &[u8], wanted: usize) -> Vec<u8> {
        use base64ct::{Base64, Encoding as _};
        use sha1::{Digest as _, Sha1};

        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("a request");
            request.push(byte[0]);
        }
        let request = String::from_utf8(request).expect("text");
        assert!(request.starts_with("GET /broker HTTP/1.1\r\n"), "{request}");
        let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).expect("a key");
        let accept = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
        let accept = Base64::encode_string(&Sha1::digest(accept));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
        );
        stream.write_all(&[answer.as_bytes(), sends].concat()).expect("the other side reads");
        let mut bytes = vec![0; wanted];
        stream.read_exact(&mut bytes).expect("the other side writes");
        bytes
    }

    /// Calls a function until it does not ask for more time.
    fn retry<T>(mut f: impl FnMut() -> io::Result<T>, is_done: impl Fn(&T) -> bool) -> T {
        loop {
            match f() {
                Ok(value) if is_done(&value) => return value,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                _ => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn bytes_pass_a_websocket_in_both_directions() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        // A PING, a frame with two bytes and the end. They come with the answer to the upgrade.
        let sends = [0x89, 1, b'?', 0x82, 2, b'a', b'b', 0x88, 0];
        // The answer to the PING, and a frame with two bytes.
        let server = std::thread::spawn(move || serve(&listener, &sends, 7 + 8));
        let target = Target { address, websocket_path: Some("/broker".to_owned()), ..Target::default() };
        let mut remote = Remote::open(&target).expect("a connection");
        let mut buffer = [0; 100];
        let count = retry(|| remote.read(&mut buffer), |_| true);
        assert_eq!(&buffer[..count], b"ab");
        assert_eq!(retry(|| remote.read(&mut buffer), |_| true), 0, "the server closes");
        assert_eq!(retry(|| remote.write(b"cd"), |count| *count > 0), 2);
        while remote.has_unsent() {
            remote.write(&[]).expect("the other side reads");
        }
        let bytes = server.join().expect("no panic");
        assert_eq!((bytes[0], bytes[1]), (0x8A, 0x81));
        assert_eq!((bytes[7], bytes[8]), (0x82, 0x82));
        let unmasked: Vec<u8> =
            bytes[13..].iter().zip(&bytes[9..13]).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(unmasked, b"cd");
    }

    /// A server closes at once, or leaves bytes unread, which resets the connection.
    #[test]
    fn a_port_without_tls_is_suspected_when_the_server_closes_during_the_handshake() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_root_certificates(rustls::RootCertStore::empty());
        let config = Arc::new(config.with_no_client_auth());
        for (reads, websocket_path) in [(0, None), (1, None), (4096, None), (1, Some("/mqtt".to_owned()))] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("an address").to_string();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.read(&mut vec![0; reads]).expect("the other side writes")
            });
            let target = Target { address, tls: Some(config.clone()), websocket_path, ..Target::default() };
            let why = match Remote::open(&target) {
                Err(why) => why,
                Ok(mut remote) => loop {
                    match remote.write(&[]).and_then(|_| remote.read(&mut [0; 100])) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                        Err(error) => break remote.explain(&error),
                        Ok(count) => panic!("{count} bytes"),
                    }
                },
            };
            assert_eq!(why, NO_HANDSHAKE, "{reads} {:?}", target.websocket_path);
            server.join().expect("no panic");
        }
    }

    #[test]
    fn a_server_without_websocket_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"\x20\x02\x00\x00 what is this?\r\n\r\n").expect("the other side reads");
            // The client closes.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let target = Target { address, websocket_path: Some("/mqtt".to_owned()), ..Target::default() };
        let error = Remote::open(&target).err().expect("no WebSocket");
        assert_eq!(error, "the server does not speak WebSocket");
        server.join().expect("no panic");
    }
}
