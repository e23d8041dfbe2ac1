//! A connection to a node of Kafka: TCP, TLS and login, and requests with their answers. It blocks until a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tls::OptionStyle;

use super::messages::{self as api, Api, Versions};
use super::scram::{Hash, Scram};
use super::wire::{Malformed, Reader, Writer};
use crate::{Guard, Sasl, names};

/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Client id in requests, which Kafka shows in its logs and uses for quotas.
const CLIENT_ID: &str = "meridian";
/// Bytes of the length before an answer, and of the smallest answer.
const LENGTH: usize = 4;
const ANSWER_MIN: usize = 4;
/// A connection is not used in the last part of its session: one tenth.
const SESSION_RESERVE: u32 = 10;

/// Name and port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
}

/// Settings that connections share.
pub struct Access {
    pub guard: Guard,
    pub tls: Option<Arc<ClientConfig>>,
    pub login: Option<Login>,
    /// Maximum size of an answer.
    pub response_max: usize,
}

/// User and password. The file is read for each connection, so that a new password needs no restart.
pub struct Login {
    pub mechanism: Sasl,
    pub username: String,
    pub password_file: PathBuf,
}

/// A connection after the login.
pub struct Connection {
    stream: Stream,
    endpoint: Endpoint,
    next_correlation: i32,
    response_max: usize,
    versions: Vec<Versions>,
    /// End of the session.
    expires: Option<Instant>,
}

enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// A socket whose calls end at a deadline.
struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// A sentence that names the node.
    pub fn open(endpoint: &Endpoint, access: &Access, deadline: Instant) -> Result<Self, String> {
        let named = |why: String| format!("{endpoint}: {why}");
        let socket = connect(endpoint, access.guard, deadline).map_err(named)?;
        let timed = Timed { socket, deadline };
        let stream = match &access.tls {
            None => Stream::Plain(timed),
            Some(config) => {
                let name = ServerName::try_from(endpoint.host.clone())
                    .map_err(|_| named("this is no host name for TLS".to_owned()))?;
                let tls = ClientConnection::new(config.clone(), name)
                    .map_err(|error| named(tls::explain(&error, &endpoint.host, OptionStyle::Connector)))?;
                Stream::Tls(Box::new(StreamOwned::new(tls, timed)))
            }
        };
        let mut connection = Self {
            stream,
            endpoint: endpoint.clone(),
            next_correlation: 0,
            response_max: access.response_max,
            versions: vec![],
            expires: None,
        };
        connection.read_versions(deadline)?;
        if let Some(login) = &access.login {
            connection.log_in(login, deadline).map_err(named)?;
        }
        Ok(connection)
    }

    fn read_versions(&mut self, deadline: Instant) -> Result<(), String> {
        let answer = self.call(api::API_VERSIONS, &Writer::default(), deadline)?;
        let (code, versions) = self.parse(&answer, api::read_api_versions)?;
        if code.is_error() {
            return Err(format!("{}: {code}", self.endpoint));
        }
        self.versions = versions;
        Ok(())
    }

    /// Returns whether the server supports a request.
    pub fn supports(&self, api: Api) -> bool {
        self.versions.iter().any(|it| it.key == api.key && (it.min..=it.max).contains(&api.version))
    }

    /// Returns whether the connection can be used again: the server has not closed it, and its session goes on.
    pub fn is_usable(&self) -> bool {
        if self.expires.is_some_and(|expires| Instant::now() >= expires) {
            return false;
        }
        let socket = match &self.stream {
            Stream::Plain(timed) => &timed.socket,
            Stream::Tls(tls) => &tls.sock.socket,
        };
        // Nothing is expected now. The end of the stream or any byte makes the connection useless.
        let is_quiet = socket.set_nonblocking(true).is_ok()
            && matches!(socket.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        is_quiet && socket.set_nonblocking(false).is_ok()
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// A sentence. The connection is useless then.
    pub fn call(&mut self, api: Api, body: &Writer, deadline: Instant) -> Result<Vec<u8>, String> {
        self.send(api, body, deadline)?;
        self.receive(0, deadline)
    }

    /// Sends a request. The next call is [`Self::receive`].
    ///
    /// # Errors
    /// A sentence. The connection is useless then.
    pub fn send(&mut self, api: Api, body: &Writer, deadline: Instant) -> Result<(), String> {
        let is_first = api == api::API_VERSIONS;
        if !is_first && !self.supports(api) {
            return Err(format!(
                "{}: the server does not support version {} of {}; Apache Kafka does since 2.8",
                self.endpoint, api.version, api.name
            ));
        }
        self.next_correlation = self.next_correlation.wrapping_add(1);
        let mut request = Writer(Vec::with_capacity(body.0.len() + 32));
        request.i32(0);
        request.i16(api.key);
        request.i16(api.version);
        request.i32(self.next_correlation);
        request.string(CLIENT_ID);
        request.0.extend_from_slice(&body.0);
        let len =
            i32::try_from(request.0.len() - LENGTH).map_err(|_| "the request is too large".to_owned())?;
        request.0[..LENGTH].copy_from_slice(&len.to_be_bytes());
        let stream = self.stream.until(deadline);
        let sent = stream.write_all(&request.0).and_then(|()| stream.flush());
        sent.map_err(|error| self.explain(&error))
    }

    /// Reads the answer to the request that was sent last. `expected` is the size that the request leads to, which may
    /// be larger than `response_max`.
    ///
    /// # Errors
    /// A sentence. The connection is useless then.
    pub fn receive(&mut self, expected: usize, deadline: Instant) -> Result<Vec<u8>, String> {
        let response_max = self.response_max.max(expected);
        let mut length = [0; LENGTH];
        let read = self.stream.until(deadline).read_exact(&mut length);
        read.map_err(|error| self.explain(&error))?;
        if tls::is_record(&length) {
            return Err(format!("{}: the server expects TLS; set tls = true", self.endpoint));
        }
        let len = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if len > response_max {
            return Err(format!(
                "{}: an answer of {len} bytes is larger than response_max, which is {response_max}; raise it if this is \
                 a server of Kafka",
                self.endpoint
            ));
        }
        if len < ANSWER_MIN {
            return Err(self.malformed());
        }
        let mut answer = vec![0; len];
        let read = self.stream.until(deadline).read_exact(&mut answer);
        read.map_err(|error| self.explain(&error))?;
        let body = answer.split_off(ANSWER_MIN);
        if answer != self.next_correlation.to_be_bytes() {
            return Err(self.malformed());
        }
        Ok(body)
    }

    /// Reads a whole answer.
    ///
    /// # Errors
    /// A sentence. The connection is useless then.
    pub fn parse<T>(
        &self,
        answer: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, String> {
        let mut reader = Reader(answer);
        let parsed = read(&mut reader).map_err(|_| self.malformed())?;
        if reader.0.is_empty() { Ok(parsed) } else { Err(self.malformed()) }
    }

    fn malformed(&self) -> String {
        format!(
            "{}: the answer is not one of Kafka; check that the port is one of a server of Kafka",
            self.endpoint
        )
    }

    fn explain(&self, error: &io::Error) -> String {
        let why = match error.kind() {
            ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
            ErrorKind::TimedOut => "no answer in time".to_owned(),
            _ => tls::explain_io(error, &self.endpoint.host, OptionStyle::Connector)
                .unwrap_or_else(|| error.to_string()),
        };
        format!("{}: {why}", self.endpoint)
    }

    fn log_in(&mut self, login: &Login, deadline: Instant) -> Result<(), String> {
        let password = settings::secret_text(&login.password_file);
        let password = password.map_err(|why| format!("password_file: {why}"))?;
        let mut body = Writer::default();
        body.string(login.mechanism.wire_name());
        let answer = self.call(api::SASL_HANDSHAKE, &body, deadline)?;
        let (code, mechanisms) = self.parse(&answer, api::read_sasl_handshake)?;
        if code.is_error() {
            return Err(format!(
                "login with {}: {code}; it supports {}",
                login.mechanism.wire_name(),
                mechanisms.join(", ").escape_debug().take(200).collect::<String>()
            ));
        }
        let began = Instant::now();
        let hash = match login.mechanism {
            Sasl::Plain => None,
            Sasl::ScramSha256 => Some(Hash::Sha256),
            Sasl::ScramSha512 => Some(Hash::Sha512),
        };
        let lifetime_ms = match hash {
            None => {
                let message = format!("\0{}\0{password}", login.username);
                self.authenticate(message.as_bytes(), deadline)?.lifetime_ms
            }
            Some(hash) => {
                let scram = Scram::new(hash, &login.username, &password)?;
                let first = self.authenticate(scram.first().as_bytes(), deadline)?;
                let (last, proof) = scram.last(&first.answer)?;
                let last = self.authenticate(last.as_bytes(), deadline)?;
                proof.check(&last.answer)?;
                last.lifetime_ms
            }
        };
        if let Ok(lifetime @ 1..) = u64::try_from(lifetime_ms) {
            let lifetime = Duration::from_millis(lifetime);
            self.expires = began.checked_add(lifetime - lifetime / SESSION_RESERVE);
        }
        Ok(())
    }

    fn authenticate(&mut self, message: &[u8], deadline: Instant) -> Result<api::Authenticated, String> {
        let mut body = Writer::default();
        body.bytes(message);
        let answer = self.call(api::SASL_AUTHENTICATE, &body, deadline)?;
        let authenticated = self.parse(&answer, api::read_sasl_authenticate)?;
        if !authenticated.code.is_error() {
            return Ok(authenticated);
        }
        let detail =
            authenticated.message.map(|text| format!(" ({})", text.escape_debug())).unwrap_or_default();
        Err(format!("login refused: {}{detail}", authenticated.code))
    }
}

impl Sasl {
    fn wire_name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Connects to the first address of a name that answers. Each one is checked directly before it is used, so that a
/// name cannot lead elsewhere after the check. This holds for nodes that the cluster names, too.
fn connect(endpoint: &Endpoint, guard: Guard, deadline: Instant) -> Result<TcpStream, String> {
    let left = remaining(deadline).map_err(|_| "no connection in time".to_owned())?;
    // Name servers that do not answer leave time for the addresses that the caller tries next.
    let addresses = names::resolve(&endpoint.host, endpoint.port, left / 2).map_err(|why| why.to_string())?;
    let mut last = "the name has no address".to_owned();
    let mut allowed = Vec::new();
    for address in addresses.into_iter().take(ADDRESSES_MAX) {
        match guard.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(refused) => last = refused.to_string(),
        }
    }
    let count = allowed.len();
    for (at, address) in allowed.into_iter().enumerate() {
        // An address that does not answer leaves time for the others.
        let opened = share(remaining(deadline), count - at)
            .and_then(|timeout| TcpStream::connect_timeout(&address, timeout))
            .and_then(|socket| socket.set_nodelay(true).map(|()| socket));
        match opened {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                last = format!("no connection to {address} in time");
            }
            Err(error) => last = format!("no connection to {address}: {error}"),
        }
    }
    Err(last)
}

/// Returns the part of the remaining time for the first one of several addresses.
fn share(left: io::Result<Duration>, addresses: usize) -> io::Result<Duration> {
    let parts = u32::try_from(addresses).unwrap_or(u32::MAX);
    // A time limit of zero is an error of its own.
    Ok((left? / parts.max(1)).max(Duration::from_millis(1)))
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Systems report the end of a time limit of a socket in two ways.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.socket.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.socket.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Stream {
    /// Returns the stream with a new deadline.
    fn until(&mut self, deadline: Instant) -> &mut dyn ReadWrite {
        match self {
            Self::Plain(timed) => {
                timed.deadline = deadline;
                timed
            }
            Self::Tls(tls) => {
                tls.sock.deadline = deadline;
                &mut **tls
            }
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The host can come from a server.
        let host = self.host.escape_debug();
        if self.host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_name_share_the_time() {
        let second = Duration::from_secs(1);
        assert_eq!(share(Ok(9 * second), 3).ok(), Some(3 * second));
        assert_eq!(share(Ok(9 * second), 1).ok(), Some(9 * second));
        assert_eq!(share(Ok(Duration::from_nanos(1)), 4).ok(), Some(Duration::from_millis(1)));
        assert!(share(Err(ErrorKind::TimedOut.into()), 2).is_err());
    }
}
