//! HTTP client of one server. It blocks its thread. The sinks of a target share its connections, which are
//! kept open.
//!
//! [`Client`] sends requests. [`status`] says what the status of an answer means for its records.

mod credentials;
mod endpoint;
mod resolver;
pub mod status;

use std::io::{ErrorKind, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use https::Https;
use tls::OptionStyle;
use ureq::http::header::{self, HeaderMap, HeaderValue};
use ureq::http::{Method, Request, Uri};
use ureq::unversioned::transport::{Connector as _, TcpConnector};
use ureq::{Agent, Body, Error};

pub use credentials::first_line;
pub use endpoint::{Endpoint, has_dot_segment, percent_encode, shown};
use resolver::Guarded;

use crate::connector::ConnectorSettings;
use crate::guard::{Guard, Refused};
use crate::record::WriteError;
use crate::{ActionSettings, SinkProblem};

pub struct Client {
    agent: Agent,
    resolver: Guarded,
    /// Secret, and sent with each request.
    authorization: Option<HeaderValue>,
    response_max: u64,
    timeout: Duration,
    /// Set after an answer, until a request fails. A kept connection is possible only then.
    has_answered: AtomicBool,
}

/// A request of this client.
pub struct Outgoing<'a> {
    pub method: &'a Method,
    pub uri: &'a Uri,
    pub headers: HeaderMap,
    pub body: Option<&'a [u8]>,
}

/// Answer with any status.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// Beginning of the body as one line of text.
    pub excerpt: String,
}

impl Client {
    /// Reads the files of the connector. `scheme` is the authentication scheme of a token.
    ///
    /// # Errors
    /// A setting of the connector is wrong, or a file cannot be read.
    pub fn new(
        endpoint: &Endpoint,
        scheme: &str,
        connector: &ConnectorSettings,
        action: &ActionSettings,
        guard: Guard,
    ) -> Result<Self, SinkProblem> {
        let connections = usize::from(action.connections);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect could lead to an address that the guard refuses, and takes the credentials along.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("meridian/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(HEADERS_MAX)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .max_idle_age(IDLE_MAX)
            .timeout_global(Some(connector.timeout))
            .build();
        let resolver = Guarded::new(guard);
        let agent = if endpoint.is_https() {
            let chain =
                ().chain(TcpConnector::default())
                    .chain(Https(connector.client_tls(OptionStyle::ConnectorUrl)?));
            Agent::with_parts(config, chain, resolver.clone())
        } else {
            Agent::with_parts(config, TcpConnector::default(), resolver.clone())
        };
        Ok(Self {
            agent,
            resolver,
            authorization: credentials::authorization(connector, scheme)?,
            response_max: connector.response_max.bytes(),
            timeout: connector.timeout,
            has_answered: AtomicBool::new(false),
        })
    }

    /// Returns whether the client sends an `Authorization` header.
    pub fn has_credentials(&self) -> bool {
        self.authorization.is_some()
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// There is no complete answer.
    pub fn send(&self, request: &Outgoing<'_>) -> Result<Answer, WriteError> {
        let began = Instant::now();
        let had_answered = self.has_answered.swap(false, Ordering::Relaxed);
        let result = match self.exchange(request) {
            // A server may close a kept connection at any time, also while a request is on its way.
            Err(Error::Io(error))
                if had_answered && is_lost(error.kind()) && began.elapsed() < self.timeout / 4 =>
            {
                self.exchange(request)
            }
            result => result,
        };
        match result {
            Ok(answer) => {
                self.has_answered.store(true, Ordering::Relaxed);
                Ok(answer)
            }
            Err(error) => {
                // The name may lead to another address by now.
                self.resolver.forget();
                let has_request = may_have_request(&error);
                let why = self.explain(error, request.uri.host().unwrap_or_default());
                let why = format!("{}: {why}", shown(request.uri));
                Err(if has_request { WriteError::Failed(why) } else { WriteError::Unavailable(why) })
            }
        }
    }

    fn exchange(&self, outgoing: &Outgoing<'_>) -> Result<Answer, Error> {
        let mut request = Request::builder().method(outgoing.method).uri(outgoing.uri);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&outgoing.headers);
            if let Some(authorization) = &self.authorization {
                headers.insert(header::AUTHORIZATION, authorization.clone());
            }
        }
        let response = match outgoing.body {
            Some(body) => self.agent.run(request.body(body)?)?,
            None => self.agent.run(request.body(())?)?,
        };
        let (parts, mut body) = response.into_parts();
        let excerpt = read_excerpt(&mut body, self.response_max)?;
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, excerpt })
    }

    /// Explains an error without any part of the request, because that may contain secrets.
    fn explain(&self, error: Error, host: &str) -> String {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let late = || format!("there was no complete answer within {:?} (timeout)", self.timeout);
        match error {
            Error::Timeout(_) => late(),
            Error::Io(error) if error.kind() == ErrorKind::TimedOut => late(),
            Error::Io(error) => {
                let insecure = tls::explain_io(&error, host, OptionStyle::ConnectorUrl);
                insecure.unwrap_or_else(|| match error.kind() {
                    ErrorKind::ConnectionRefused => {
                        "connection refused: no server runs at this port".to_owned()
                    }
                    kind if is_lost(kind) => "the connection ended before the answer was complete".to_owned(),
                    _ => error.to_string(),
                })
            }
            Error::Other(error) => match error.downcast::<Refused>() {
                Ok(refused) => refused.to_string(),
                Err(error) => error.to_string(),
            },
            Error::HostNotFound => "the host name has no address".to_owned(),
            Error::ConnectionFailed => "none of the addresses accepts connections".to_owned(),
            Error::Protocol(_) => "the server does not speak HTTP/1.1".to_owned(),
            Error::LargeResponseHeader(..) => {
                format!("the headers of the answer are larger than {HEADERS_MAX} bytes")
            }
            _ => "the request cannot be sent".to_owned(),
        }
    }
}

/// Reads a body up to its end, so that the connection can be kept, and returns its beginning. The connection
/// ends with a body that is larger than `max`.
fn read_excerpt(body: &mut Body, max: u64) -> Result<String, Error> {
    let mut reader = body.as_reader();
    let mut buffer = [0; 4096];
    let (mut beginning, mut total) = (Vec::new(), 0);
    while total <= max {
        let len = reader.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        total += len as u64;
        let missing = EXCERPT_MAX.saturating_sub(beginning.len());
        beginning.extend_from_slice(&buffer[..len.min(missing)]);
    }
    Ok(one_line(&String::from_utf8_lossy(&beginning)))
}

/// Returns the text without control characters and at most [`EXCERPT_MAX`] characters of it.
pub fn one_line(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(EXCERPT_MAX).collect::<String>().trim().to_owned()
}

/// Returns whether the server may have the request, and not answer because of a record in it.
fn may_have_request(error: &Error) -> bool {
    match error {
        Error::Timeout(_) | Error::Protocol(_) | Error::LargeResponseHeader(..) => true,
        Error::Io(error) => is_lost(error.kind()) || error.kind() == ErrorKind::TimedOut,
        _ => false,
    }
}

fn is_lost(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Maximum size of the status line and the headers of an answer.
const HEADERS_MAX: usize = 16 << 10;
/// Maximum number of bytes of an answer in an error.
const EXCERPT_MAX: usize = 300;
/// Time after which an idle connection is closed: many servers close theirs after a minute.
const IDLE_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_one_line() {
        assert_eq!(one_line("{\n\t\"error\": \"\u{1b}[31mno\"\r\n}\n"), "{  \"error\": \" [31mno\"  }");
        assert_eq!(one_line(&"ä".repeat(400)).chars().count(), EXCERPT_MAX);
    }
}
