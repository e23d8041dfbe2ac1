//! One service: turns questions into requests, at most one for each connection at a time, while its circuit is closed.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::web::breaker::{Breaker, Change, Circuit, Limits};
use crate::web::client::{Client, Reply};
use crate::web::figures::Counters;
use crate::web::question::{Field, Kind, Question};
use crate::web::settings::{self, Method};
use crate::web::template::{Rendered, Template, Unaskable};

/// Parts of a service that are common to both kinds.
pub struct Service {
    name: &'static str,
    template: Template,
    client: Client,
    breaker: Mutex<Breaker>,
    free: Mutex<u32>,
    freed: Condvar,
    timeout: Duration,
    pub counters: Arc<Counters>,
}

/// Reason why there is no answer. Its text contains no part of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    Timeout,
    Connect(String),
    Status(u16),
    /// Fault of the answer.
    Body(&'static str),
    /// Fault of the rules in the answer.
    Rules(&'static str),
    CircuitOpen,
    Busy,
}

/// Setting of a service that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceError {
    section: &'static str,
    setting: &'static str,
    problem: String,
}

impl Service {
    /// Reads the files; opens no connection yet.
    ///
    /// # Errors
    /// The setting that cannot be used.
    pub fn open(
        kind: Kind,
        settings: &settings::Service,
        counters: Arc<Counters>,
    ) -> Result<Self, ServiceError> {
        let wrong = |(setting, problem)| ServiceError { section: settings.section, setting, problem };
        let body = match (settings.method, &settings.body) {
            (Method::Post, Some(body)) => Some(body.clone()),
            (Method::Post, None) => Some(Template::default_body(kind)),
            (Method::Get, None) => None,
            (Method::Get, Some(_)) => {
                return Err(wrong((
                    "body",
                    "method = \"get\" sends no body: leave it out, or write method = \"post\"".to_owned(),
                )));
            }
        };
        let template = Template::parse(kind, &settings.url, body.as_deref()).map_err(wrong)?;
        if template.fields().is_empty() {
            let problem =
                "the request does not name the client: add ?username=${username}, or use method = \"post\"";
            return Err(wrong(("url", problem.to_owned())));
        }
        if template.url_has(Field::Password) || template.url_has(Field::PasswordBase64) {
            tracing::warn!(
                service = settings.section,
                "the URL has passwords in it, which servers and proxies write to their logs"
            );
        }
        let limits = Limits {
            failures_max: settings.failures_max,
            failures_percent: settings.failures_percent,
            open_for: settings.open_for,
            open_for_max: settings.open_for_max,
        };
        Ok(Self {
            name: settings.section,
            client: Client::open(settings, template.https()).map_err(wrong)?,
            template,
            breaker: Mutex::new(Breaker::new(limits, Instant::now())),
            free: Mutex::new(settings.connections_max),
            freed: Condvar::new(),
            timeout: settings.timeout,
            counters,
        })
    }

    /// Returns the fields that a request contains.
    pub fn fields(&self) -> &[Field] {
        self.template.fields()
    }

    /// # Errors
    /// [`Unaskable`], counted.
    pub fn render(&self, question: &Question<'_>) -> Result<Rendered, Unaskable> {
        self.template.render(question).inspect_err(|Unaskable| Counters::add(&self.counters.unaskable))
    }

    /// Returns whether a question would fail at once.
    pub fn refuses(&self, now: Instant) -> bool {
        sync::lock(&self.breaker).refuses(now)
    }

    pub fn circuit(&self) -> Circuit {
        sync::lock(&self.breaker).circuit()
    }

    /// Waits for a connection, asks, and waits for the answer, each no longer than the service's timeout. `read` parses
    /// the answer.
    ///
    /// # Errors
    /// [`Fault`], counted.
    pub fn ask<T>(
        &self,
        request: &Rendered,
        read: impl FnOnce(Reply) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.reply(request, read).inspect_err(|fault| {
            self.counters.failed(fault);
            tracing::debug!(service = self.name, %fault, "http service: no answer to a question");
        })
    }

    fn reply<T>(&self, request: &Rendered, read: impl FnOnce(Reply) -> Result<T, Fault>) -> Result<T, Fault> {
        let _connection = self.connection()?;
        let began = Instant::now();
        let Some(pass) = sync::lock(&self.breaker).admit(began) else { return Err(Fault::CircuitOpen) };
        Counters::add(&self.counters.requests);
        let answer = {
            let _flight = RequestInFlight::begin(&self.counters);
            self.client.ask(request).and_then(read)
        };
        let now = Instant::now();
        self.counters.took(now - began);
        let change = {
            let mut breaker = sync::lock(&self.breaker);
            match &answer {
                Err(fault) if fault.outage() => breaker.failed(pass, now),
                _ => breaker.answered(pass, now),
            }
        };
        match (change, &answer) {
            (Some(Change::Opened { wait }), Err(fault)) => {
                Counters::add(&self.counters.opened);
                tracing::warn!(service = self.name, %fault, ?wait, "http service: the service fails; it is not asked for a while");
            }
            (Some(Change::Closed), _) => {
                tracing::info!(service = self.name, "http service: the service answers again")
            }
            _ => {}
        }
        answer
    }

    fn connection(&self) -> Result<Connection<'_>, Fault> {
        let free = sync::lock(&self.free);
        let waited = self.freed.wait_timeout_while(free, self.timeout, |free| *free == 0);
        let (mut free, waited) = sync::ignore_poison(waited);
        if waited.timed_out() && *free == 0 {
            return Err(Fault::Busy);
        }
        *free -= 1;
        Ok(Connection(self))
    }
}

/// Permit for one connection; dropping it frees the permit.
struct Connection<'a>(&'a Service);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        *sync::lock(&self.0.free) += 1;
        self.0.freed.notify_one();
    }
}

/// Request in progress.
struct RequestInFlight<'a>(&'a Counters);

impl<'a> RequestInFlight<'a> {
    fn begin(counters: &'a Counters) -> Self {
        Counters::add(&counters.in_flight);
        Self(counters)
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fault {
    /// Returns whether the service is down, rather than this question wrong. A client could choose a name that a
    /// service answers with 500, and must not cause refusals for others by it.
    fn outage(&self) -> bool {
        match self {
            Self::Timeout | Self::Connect(_) => true,
            Self::Status(status) => matches!(status, 429 | 502 | 503 | 504),
            Self::Body(_) | Self::Rules(_) | Self::CircuitOpen | Self::Busy => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer in time"),
            Self::Connect(why) => write!(f, "no connection: {why}"),
            Self::Status(status) => write!(f, "answer with unexpected status {status}"),
            Self::Body(why) => write!(f, "unusable answer: {why}"),
            Self::Rules(why) => write!(f, "unusable answer: its member acl {why}"),
            Self::CircuitOpen => f.write_str("not asked, because it failed too often"),
            Self::Busy => f.write_str("not asked, because too many questions wait"),
        }
    }
}

impl ServiceError {
    /// Error for a system that provides no threads or no random bytes.
    pub(super) fn system(section: &'static str, error: impl fmt::Display) -> Self {
        Self { section, setting: "url", problem: format!("the service cannot be asked: {error}") }
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}: {}", self.section, self.setting, self.problem)
    }
}

impl std::error::Error for ServiceError {}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("circuit", &self.circuit())
            .finish_non_exhaustive()
    }
}
