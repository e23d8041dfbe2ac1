//! The transport to a broker: TCP or a Unix socket, with TLS and WebSocket on top.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tls::OptionStyle;
use websocket::{Upgrade, WebSocket};

use super::Failure;
use super::args::ConnectArgs;
use super::connection::CONNECT_TIME;
use super::target::{Scheme, Target};

/// An open transport.
pub struct Socket {
    wire: Wire,
    tls: Option<Box<ClientConnection>>,
    websocket: Option<WebSocket>,
    /// Host name that the certificate must be for.
    host: String,
}

enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, and completes the handshakes of TLS and WebSocket that precede the first byte of MQTT.
    ///
    /// # Errors
    /// [`Failure::Trouble`], with advice; [`Failure::Usage`].
    pub fn open(args: &ConnectArgs) -> Result<Self, Failure> {
        let path = args.unix.as_deref().or_else(|| args.host.strip_prefix("unix:").map(Path::new));
        if let Some(path) = path.filter(|_| args.url.is_none()) {
            let wire = UnixStream::connect(path).map(Wire::Unix).map_err(|error| {
                Failure::Trouble(format!("cannot connect to {}: {}", path.display(), explained(&error)))
            })?;
            return Ok(Self { wire, tls: None, websocket: None, host: String::new() });
        }
        let target = args.target();
        let config = match target.scheme.secure() {
            true => Some(args.tls.client(target.scheme)?),
            false => None,
        };
        let host = args.tls.sni.clone().unwrap_or_else(|| target.host.clone());
        let mut socket = Self { wire: connect(&target)?, tls: None, websocket: None, host };
        if let Some(config) = config {
            let name = ServerName::try_from(socket.host.clone())
                .map_err(|_| Failure::Usage(format!("`{}` is not a host name", socket.host)))?;
            let tls = ClientConnection::new(config, name).map_err(|error| {
                Failure::Trouble(tls::explain(&error, &socket.host, OptionStyle::CommandLine))
            })?;
            socket.tls = Some(Box::new(tls));
            socket.shake_hands()?;
        }
        if target.scheme.websocket() {
            socket.upgrade(&target)?;
        }
        socket.patience(None)?;
        Ok(socket)
    }

    fn shake_hands(&mut self) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.is_handshaking() {
            match tls.complete_io(&mut self.wire) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Failure::Trouble(
                        "the connection was closed during the TLS handshake: is it a port with TLS, of this version and with what --alpn asks for (ALPN)?"
                            .to_owned(),
                    ));
                }
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn upgrade(&mut self, target: &Target) -> Result<(), Failure> {
        let authority = match target.host.contains(':') {
            true => format!("[{}]:{}", target.host, target.port),
            false => format!("{}:{}", target.host, target.port),
        };
        let upgrade = Upgrade::new(&authority, &target.path(), random()?);
        self.write_wire(&upgrade.request).map_err(|error| self.broken(&error))?;
        let mut answer = Vec::new();
        loop {
            if let Some(websocket) = upgrade.answered(&answer).map_err(Failure::Trouble)? {
                self.websocket = Some(websocket);
                return Ok(());
            }
            if !self.read_wire(&mut answer).map_err(|error| self.broken(&error))? {
                return Err(Failure::Trouble(
                    "the connection was closed instead of a WebSocket: is it a port with WebSocket, and with TLS or without?"
                        .to_owned(),
                ));
            }
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.wire {
            Wire::Tcp(stream) => stream.as_fd(),
            Wire::Unix(stream) => stream.as_fd(),
        }
    }

    /// Appends the available bytes, possibly none; `false` at the end of the stream. Blocks when the descriptor has
    /// nothing to read.
    ///
    /// # Errors
    /// [`Failure::Trouble`].
    pub fn read(&mut self, input: &mut Vec<u8>) -> Result<bool, Failure> {
        let Some(mut websocket) = self.websocket.take() else {
            return self.read_wire(input).map_err(|error| self.broken(&error));
        };
        let (mut bytes, mut answer) = (Vec::new(), Vec::new());
        let more = self.read_wire(&mut bytes);
        let received = websocket.receive(&bytes, input, &mut answer, random()?);
        let closed = websocket.is_closed();
        self.websocket = Some(websocket);
        received.map_err(|what| Failure::Trouble(format!("the connection broke: {what}")))?;
        let more = more.map_err(|error| self.broken(&error))?;
        if !answer.is_empty() {
            self.write_wire(&answer).map_err(|error| self.broken(&error))?;
        }
        Ok(more && !closed)
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// [`Failure::Trouble`].
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = match self.websocket {
            None => self.write_wire(bytes),
            Some(_) => {
                let mut wire = Vec::with_capacity(bytes.len() + 14);
                WebSocket::send(bytes, random()?, &mut wire);
                self.write_wire(&wire)
            }
        };
        written.map_err(|error| self.broken(&error))
    }

    /// Announces the end of the output. The input can still be read.
    pub fn shutdown(&mut self) {
        let mut wire = Vec::new();
        if self.websocket.is_some()
            && let Ok(mask) = random()
        {
            WebSocket::close(mask, &mut wire);
        }
        // A failure means that the connection is closed already, as intended.
        let _ = self.write_wire(&wire);
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // A failure is ignored for the same reason.
            let _ = self.write_wire(&[]);
        }
        // A failure is ignored for the same reason.
        let _ = match &self.wire {
            Wire::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Wire::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    fn read_wire(&mut self, input: &mut Vec<u8>) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            let mut buffer = [0; 65_536];
            let length = retried(|| self.wire.read(&mut buffer))?;
            input.extend_from_slice(&buffer[..length]);
            return Ok(length > 0);
        };
        let length = retried(|| tls.read_tls(&mut self.wire))?;
        let processed = tls.process_new_packets();
        // An alert that names the reason, or nothing.
        while tls.wants_write() && tls.write_tls(&mut self.wire).is_ok() {}
        let state = processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let before = input.len();
        input.resize(before + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut input[before..])?;
        Ok(length > 0 && !state.peer_has_closed())
    }

    fn write_wire(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.wire.write_all(bytes) };
        loop {
            while tls.wants_write() {
                retried(|| tls.write_tls(&mut self.wire))?;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = tls.writer().write(bytes)?;
            bytes = &bytes[taken..];
        }
    }

    fn patience(&self, time: Option<Duration>) -> Result<(), Failure> {
        match &self.wire {
            Wire::Tcp(stream) => stream.set_read_timeout(time).map_err(|error| self.broken(&error)),
            Wire::Unix(_) => Ok(()),
        }
    }

    fn broken(&self, error: &io::Error) -> Failure {
        match tls::explain_io(error, &self.host, OptionStyle::CommandLine) {
            Some(text) => Failure::Trouble(text),
            None if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Failure::Trouble(
                    "the connection broke: no answer in time; is it a port with what the URL says (TLS, WebSocket)?"
                        .to_owned(),
                )
            }
            None => Failure::Trouble(format!("the connection broke: {error}")),
        }
    }
}

fn connect(target: &Target) -> Result<Wire, Failure> {
    let (host, port) = (target.host.as_str(), target.port);
    let failed = |error: io::Error| {
        Failure::Trouble(format!("cannot connect to {host} port {port}: {}", explained(&error)))
    };
    let mut last = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(failed)?;
                stream.set_write_timeout(Some(WRITE_TIME)).map_err(failed)?;
                if target.scheme != Scheme::Mqtt {
                    stream.set_read_timeout(Some(CONNECT_TIME)).map_err(failed)?;
                }
                return Ok(Wire::Tcp(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Trouble(format!("the system has no random bytes: {error}")))?;
    Ok(bytes)
}

fn retried(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn explained(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no broker listens there".to_owned(),
        io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        _ => error.to_string(),
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const WRITE_TIME: Duration = Duration::from_secs(30);
