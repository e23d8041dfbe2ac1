//! One connection to a server.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use settings::HostPort;
use socket2::{SockRef, TcpKeepalive};
use tls::OptionStyle;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Error, NoTls, SimpleQueryMessage};

use super::Plan;
use super::failure::Failure;
use super::limited::{Allowance, Limited};
use super::secure::Handshake;
use crate::names;

/// A connection that is logged in.
pub struct Connection {
    pub client: Client,
    pub driver: Driver,
    pub allowance: Allowance,
}

/// The part of the library that reads and writes the socket. It makes progress only while a request is awaited; when
/// it is dropped, the socket is closed.
pub struct Driver {
    future: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>,
    has_ended: bool,
}

impl Driver {
    fn new(future: impl Future<Output = Result<(), Error>> + Send + 'static) -> Self {
        Self { future: Box::pin(future), has_ended: false }
    }

    /// Awaits the answer to a request.
    ///
    /// # Errors
    /// The server refuses the request, or the connection is lost.
    pub async fn run<T>(&mut self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        let mut request = std::pin::pin!(request);
        poll_fn(|cx| {
            if let Poll::Ready(result) = request.as_mut().poll(cx) {
                return Poll::Ready(result.map_err(Failure::from));
            }
            if self.has_ended {
                return Poll::Ready(Err(Failure::unavailable(CLOSED)));
            }
            let Poll::Ready(end) = self.future.as_mut().poll(cx) else {
                // The driver may have passed the answer on.
                return request.as_mut().poll(cx).map_err(Failure::from);
            };
            self.has_ended = true;
            // An answer may have come with the end.
            match (request.as_mut().poll(cx), end) {
                (Poll::Ready(Ok(answer)), _) => Poll::Ready(Ok(answer)),
                (Poll::Ready(Err(error)), Ok(())) => Poll::Ready(Err(error.into())),
                (_, Err(error)) => {
                    Poll::Ready(Err(Failure { is_disconnected: true, ..Failure::from(error) }))
                }
                (Poll::Pending, Ok(())) => Poll::Ready(Err(Failure::unavailable(CLOSED))),
            }
        })
        .await
    }

    /// Returns whether the server has closed the connection, as far as it is known.
    pub async fn is_closed(&mut self) -> bool {
        // The runtime looks at the socket.
        tokio::task::yield_now().await;
        if !self.has_ended {
            self.has_ended = poll_fn(|cx| Poll::Ready(self.future.as_mut().poll(cx).is_ready())).await;
        }
        self.has_ended
    }
}

impl Connection {
    /// Connects to the first address that accepts a login and is not read-only.
    pub async fn open(plan: &Plan, deadline: Instant) -> Result<Self, Failure> {
        let (mut candidates, mut causes) = (Vec::new(), Vec::new());
        for (at, address) in plan.addresses.iter().enumerate() {
            // Names and then connections share the time.
            let left = deadline.saturating_duration_since(Instant::now());
            let parts = u32::try_from(plan.addresses.len() - at + 1).unwrap_or(u32::MAX);
            match resolve(plan, address, left / parts) {
                Ok(found) => candidates.extend(found.into_iter().map(|ip| (address, ip))),
                Err(why) => causes.push(why),
            }
        }
        candidates.truncate(CANDIDATES_MAX);
        let count = candidates.len();
        for (index, (address, ip)) in candidates.into_iter().enumerate() {
            // The first of several addresses must not take the time of the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(count - index).unwrap_or(1);
            let shown =
                if address.ip().is_some() { address.to_string() } else { format!("{address} ({ip})") };
            match timeout(share, Self::log_in(plan, address, ip)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(why)) => causes.push(format!("{shown}: {why}")),
                Err(_) => causes.push(format!("{shown}: no connection within {share:.1?}")),
            }
        }
        Err(Failure::unavailable(causes.join("; ")))
    }

    async fn log_in(plan: &Plan, address: &HostPort, ip: IpAddr) -> Result<Self, String> {
        let tcp = TcpStream::connect(SocketAddr::new(ip, address.port())).await;
        let tcp = tcp.map_err(|error| error.to_string())?;
        prepare_socket(&tcp).map_err(|error| error.to_string())?;
        let config = config(plan)?;
        let allowance = Allowance::new(plan.response_max);
        let result = match &plan.tls {
            None => {
                let stream = Limited::new(tcp, allowance.clone());
                let result = config.connect_raw(stream, NoTls).await;
                result.map(|(client, driver)| (client, Driver::new(driver)))
            }
            Some(tls) => {
                let name =
                    ServerName::try_from(address.host().to_owned()).map_err(|error| error.to_string())?;
                let tls = Handshake { config: tls.clone(), name, allowance: allowance.clone() };
                let result = config.connect_raw(tcp, tls).await;
                result.map(|(client, driver)| (client, Driver::new(driver)))
            }
        };
        let (client, driver) = result.map_err(|error| explain(error, address))?;
        let mut connection = Self { client, driver, allowance };
        connection.set_up(plan.timeout).await.map_err(|failure| failure.error.to_string())?;
        Ok(connection)
    }

    /// Limits the time of statements, which could otherwise run on after this end has closed the connection.
    async fn set_up(&mut self, limit: Duration) -> Result<(), Failure> {
        let limit = limit.as_millis();
        let text = format!(
            "SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; \
             SET client_min_messages = error; SHOW transaction_read_only"
        );
        let answers = self.driver.run(self.client.simple_query(&text)).await?;
        let is_read_only = answers.iter().any(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten() == Some("on"),
            _ => false,
        });
        match is_read_only {
            true => Err(Failure::unavailable("the server is read-only, as a standby is")),
            false => Ok(()),
        }
    }
}

/// Returns the addresses of a host that connectors may reach. It blocks the thread, on which nothing else runs.
fn resolve(plan: &Plan, address: &HostPort, within: Duration) -> Result<Vec<IpAddr>, String> {
    let found = names::resolve(address.host(), address.port(), within);
    let found = found.map_err(|why| format!("{address}: {why}"))?;
    let found = found.into_iter().map(|found| found.ip());
    let mut refused = None;
    let mut allowed = Vec::new();
    for ip in found {
        match plan.guard.check(ip) {
            Ok(()) if allowed.contains(&ip) => {}
            Ok(()) => allowed.push(ip),
            Err(why) => refused = Some(why),
        }
    }
    match (allowed.is_empty(), refused) {
        (false, _) => Ok(allowed),
        (true, Some(why)) => Err(format!("{address}: {why}")),
        (true, None) => Err(format!("{address}: the name has no address")),
    }
}

fn prepare_socket(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(3);
    SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}

fn config(plan: &Plan) -> Result<Config, String> {
    let mut config = Config::new();
    config.user(&plan.username).dbname(&plan.database).application_name("meridian");
    config.ssl_mode(if plan.tls.is_some() { SslMode::Require } else { SslMode::Disable });
    if let Some(password) = plan.password()? {
        config.password(password);
    }
    Ok(config)
}

/// Describes an error of the login.
fn explain(error: Error, address: &HostPort) -> String {
    use std::error::Error as _;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let insecure = cause.and_then(|cause| tls::explain_io(cause, address.host(), OptionStyle::Connector));
    insecure.unwrap_or_else(|| Failure::from(error).error.to_string())
}

const CLOSED: &str = "the server closed the connection";

/// Maximum number of addresses that are tried.
const CANDIDATES_MAX: usize = 16;

/// Time without data after which the system checks that the server is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between two of these checks.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
