//! HTTP to one node: requests that are answered by JSON, by text, or by a stream of events.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use https::Https;
use rustls::ClientConfig;
use serde_json::Value;
use tls::OptionStyle;
use ureq::http::{Method, Request, Response};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, TcpConnector};
use ureq::{Agent, Body, Timeout};

use crate::failure::Failure;
use crate::problem::Problem;
use crate::query::Query;
use crate::url::Url;

/// Maximum size of an answer. A page of 1,000 clients is below 1 MiB; a queue with payloads may reach 8 MiB.
const ANSWER_MAX: u64 = 64 << 20;
/// Maximum size of a problem document.
const PROBLEM_MAX: u64 = 1 << 20;
/// Size from which a body is announced with `Expect: 100-continue` before it is sent. Otherwise a node that refuses the
/// body closes the connection while it is being sent, and the refusal is lost.
const ASK_FIRST: usize = 256 << 10;
/// Path of a request that is always answered by the node that is asked directly.
const WHOAMI: &str = "/api/v1/whoami";
/// Maximum silence of a stream. The node sends a comment every 15 s; after three missed ones it is gone.
const STREAM_SILENCE_MAX: Duration = Duration::from_secs(50);

/// An HTTP client of one node. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    url: Url,
    token: Option<String>,
    timeout: Duration,
    /// Node of the cluster that answers, by way of the one that is asked.
    node: Option<String>,
    /// Nodes that did not answer.
    missing: Arc<Mutex<BTreeSet<String>>>,
}

impl Client {
    /// Creates a client. `timeout` bounds a request from the first attempt to connect to the last byte of its answer.
    /// An https URL needs `tls`.
    pub fn new(url: Url, token: Option<String>, timeout: Duration, tls: Option<Arc<ClientConfig>>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A token must go to the named node only.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("meridian-ctl/", env!("CARGO_PKG_VERSION")))
            .max_response_header_size(64 << 10)
            .timeout_global(Some(timeout))
            .build();
        let agent = match tls {
            None => config.new_agent(),
            Some(tls) => {
                let connector = ().chain(TcpConnector::default()).chain(Https(tls));
                Agent::with_parts(config, connector, DefaultResolver::default())
            }
        };
        Self { agent, url, token, timeout, node: None, missing: Arc::default() }
    }

    /// Makes requests with a body wait for at least this time.
    #[must_use]
    pub fn patient(mut self, at_least: Duration) -> Self {
        self.timeout = self.timeout.max(at_least);
        self
    }

    /// Makes another node of the cluster answer, by way of this one.
    #[must_use]
    pub fn of_node(self, node: Option<String>) -> Self {
        Self { node, ..self }
    }

    /// Returns the nodes of the cluster that did not answer one of the requests so far.
    pub fn missing(&self) -> Vec<String> {
        sync::lock(&self.missing).iter().cloned().collect()
    }

    /// Returns a client of another node, with its own token or with that of this client.
    ///
    /// # Errors
    /// [`Failure::Usage`] when only one of the two URLs uses TLS.
    pub fn at(&self, url: Url, token: Option<String>) -> Result<Self, Failure> {
        if url.secure() != self.url.secure() {
            let why = format!(
                "{} and {} use different schemes: write both with https://, or both with http://",
                self.url.as_str(),
                url.as_str()
            );
            return Err(Failure::Usage(why));
        }
        Ok(Self { url, token: token.or_else(|| self.token.clone()), node: None, ..self.clone() })
    }

    /// Returns whether an attacker between here and the node could read the token.
    pub fn reveals_token(&self) -> bool {
        self.token.is_some() && !self.url.loopback() && !self.url.secure()
    }

    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Gets a JSON document.
    ///
    /// # Errors
    /// [`Failure::Unreachable`], [`Failure::TimedOut`], [`Failure::NotMeridian`], [`Failure::Refused`].
    pub fn get(&self, path: &str, query: &Query) -> Result<Value, Failure> {
        self.document(Method::GET, path, query, None)
    }

    /// Sends a request of another method; an empty answer is `Value::Null`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        self.document(method, path, query, body)
    }

    fn document(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut response = self.run(method, path, query, body)?;
        let bytes = self.body(&mut response, ANSWER_MAX)?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let document: Value = serde_json::from_slice(&bytes).map_err(|error| {
            self.not_meridian(format!("the answer of {path} is not valid JSON ({error})"))
        })?;
        let missing = document["missing"].as_array().into_iter().flatten();
        let mut known = sync::lock(&self.missing);
        known.extend(missing.filter_map(|node| node.as_str().map(str::to_owned)));
        drop(known);
        Ok(document)
    }

    /// Gets a text; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn text(&self, path: &str) -> Result<String, Failure> {
        let mut response = self.run(Method::GET, path, &Query::new(), None)?;
        let bytes = self.body(&mut response, ANSWER_MAX)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns status and document of a request where every status has a meaning, such as `/health/ready`.
    ///
    /// # Errors
    /// As [`Client::get`], but never [`Failure::Refused`].
    pub fn status(&self, path: &str) -> Result<(u16, Value), Failure> {
        let mut response = self.exchange(Method::GET, path, &Query::new(), None, false)?;
        let bytes = self.body(&mut response, PROBLEM_MAX)?;
        let document = serde_json::from_slice(&bytes).map_err(|error| {
            self.not_meridian(format!("the answer of {path} is not valid JSON ({error})"))
        })?;
        Ok((response.status().as_u16(), document))
    }

    /// Gets an event stream: its bytes until the node ends it. A read fails when the node is silent for longer than
    /// `STREAM_SILENCE_MAX`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn stream(&self, path: &str, query: &Query) -> Result<Box<dyn Read + Send>, Failure> {
        let response = self.exchange(Method::GET, path, query, None, true)?;
        let response = self.success(response)?;
        let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(self.not_meridian(format!("the answer of {path} is not an event stream")));
        }
        Ok(Box::new(response.into_body().into_reader()))
    }

    fn run(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> Result<Response<Body>, Failure> {
        self.success(self.exchange(method, path, query, body, false)?)
    }

    fn exchange(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
        stream: bool,
    ) -> Result<Response<Body>, Failure> {
        let query = match &self.node {
            Some(node) if path != WHOAMI => &query.clone().with("node", node),
            _ => query,
        };
        let mut request = Request::builder().method(method.clone()).uri(format!(
            "{}{path}{}",
            self.url.as_str(),
            query.as_str()
        ));
        request = request
            .header("accept", if stream { "text/event-stream" } else { "application/json, text/plain" });
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if method != Method::GET {
            // The API requires this for every change, with a body or without.
            request = request.header("content-type", "application/json");
        }
        let wrong =
            |error: ureq::http::Error| Failure::Usage(format!("the request is not valid in HTTP: {error}"));
        let answer = match body.map(Value::to_string) {
            Some(body) => {
                if body.len() > ASK_FIRST {
                    request = request.header("expect", "100-continue");
                }
                let request = self.agent.configure_request(request.body(body).map_err(wrong)?);
                self.agent.run(request.timeout_global(Some(self.timeout)).build())
            }
            None if stream => {
                let request = request.body(()).map_err(wrong)?;
                let request = self.agent.configure_request(request);
                let request = request
                    .timeout_global(None)
                    .timeout_connect(Some(self.timeout))
                    .timeout_recv_response(Some(self.timeout))
                    .timeout_per_read(Some(STREAM_SILENCE_MAX))
                    .build();
                self.agent.run(request)
            }
            None => self.agent.run(request.body(()).map_err(wrong)?),
        };
        answer.map_err(|error| self.failure(error))
    }

    /// Converts answers with an error status.
    fn success(&self, mut response: Response<Body>) -> Result<Response<Body>, Failure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry =
            response.headers().get("retry-after").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        let bytes = self.body(&mut response, PROBLEM_MAX)?;
        match Problem::read(status.as_u16(), retry, &bytes) {
            Some(problem) => Err(Failure::Refused(Box::new(problem))),
            None => {
                Err(self.not_meridian(format!("HTTP status {} without a problem document", status.as_u16())))
            }
        }
    }

    fn body(&self, response: &mut Response<Body>, max: u64) -> Result<Vec<u8>, Failure> {
        response.body_mut().with_config().limit(max).read_to_vec().map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ureq::Error) -> Failure {
        use std::io::ErrorKind;
        let url = self.url.as_str().to_owned();
        if let ureq::Error::Io(error) = &error
            && let Some(cause) = tls::explain_io(error, &self.url.host(), OptionStyle::CommandLine)
        {
            return Failure::Insecure { url, cause };
        }
        match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                Failure::Unreachable { url, cause: "the connection was not made in time".to_owned() }
            }
            ureq::Error::Timeout(_) => Failure::TimedOut { url, after: self.timeout },
            ureq::Error::HostNotFound => {
                Failure::Unreachable { url, cause: "the host does not exist".to_owned() }
            }
            ureq::Error::ConnectionFailed => {
                Failure::Unreachable { url, cause: "connection failed".to_owned() }
            }
            ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => {
                Failure::TimedOut { url, after: self.timeout }
            }
            ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Failure::Unreachable { url, cause: "connection refused".to_owned() }
            }
            ureq::Error::Io(error) => match error.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    self.not_meridian("the connection ended early".to_owned())
                }
                _ => Failure::Unreachable { url, cause: error.to_string() },
            },
            other => self.not_meridian(other.to_string()),
        }
    }

    pub fn not_meridian(&self, cause: String) -> Failure {
        Failure::NotMeridian { url: self.url.as_str().to_owned(), cause }
    }
}
