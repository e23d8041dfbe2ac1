//! The server: its address, its runtime, its connections.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, REFERRER_POLICY, RETRY_AFTER};
use axum::http::header::{
    STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Request, Response};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tower_service::Service as _;

use crate::audit::Audit;
use crate::catch_panic::CatchPanic;
use crate::fanout::{ForwardHandler, fanout};
use crate::gate::{Peer, gate, is_read_only};
use crate::history::Sampler;
use crate::keys::KeyRequestHandler;
use crate::log_limiter::LogLimiter;
use crate::operations::Operations;
use crate::paced::Paced;
use crate::problem::Problem;
use crate::proxies::{Encrypted, Proxies};
use crate::settings::{HttpSettings, Listen};
use crate::slots::{NoSlot, RequestSniffer, Slot, Slots};
use crate::state::{Parts, Phase, State};
use crate::tls::{CertificateError, Certificates, Https, NotServed};

/// Number of threads of the runtime: one can be busy with a long page while the other answers health checks.
const THREADS: usize = 2;
/// Number of threads for work that waits for the disk or reads a lot of data, and one for each queue of changes, which
/// may wait for other nodes.
const BLOCKING_THREADS: usize = 4 + LANES;
/// Number of queues of changes; see [`crate::change_queue`].
const LANES: usize = 2;
/// Priority of all these threads, as `nice` counts it: the reactors run first when there are too few CPUs.
const NICE: libc::c_int = 5;
/// Maximum number of bytes of a request's header. Its target can use 64 KiB.
const HEADER: usize = 96 * 1024;
/// Approximate maximum number of bytes that one connection reads ahead, and that wait to be written.
const BUFFER: usize = 128 * 1024;
/// Time within which a connection beyond the limit must complete its request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which running requests are cancelled when the server stops.
const STOP: Duration = Duration::from_secs(2);

/// An open address where no requests are answered yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    settings: HttpSettings,
    https: Option<Arc<Https>>,
}

/// Reason why an address could not be opened.
#[derive(Debug)]
pub enum BindError {
    Address {
        address: SocketAddr,
        /// Process that uses the address, if it is known.
        holder: Option<String>,
        error: io::Error,
    },
    Certificate(CertificateError),
    /// This word of `http.proxy_networks` is no network.
    ProxyNetworks(String),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, holder, error) = match self {
            Self::Address { address, holder, error } => (address, holder, error),
            Self::Certificate(error) => return write!(f, "HTTPS cannot be started: {error}"),
            Self::ProxyNetworks(word) => {
                return write!(f, "http.proxy_networks: {word:?} is not a network such as 10.0.0.0/8");
            }
        };
        write!(f, "HTTP cannot be served on {address}: ")?;
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let holder = holder.as_deref().unwrap_or("another process");
                write!(f, "{holder} uses it. Stop that process")?;
            }
            io::ErrorKind::PermissionDenied => {
                f.write_str("not permitted. Ports below 1024 need root or the capability net_bind_service")?
            }
            _ => write!(f, "{error}")?,
        }
        f.write_str("; or choose another address with --http ADDRESS, or turn HTTP off with --http off")
    }
}

impl std::error::Error for BindError {}

impl Bound {
    /// Opens the address; `None` when HTTP is off.
    ///
    /// # Errors
    /// Those of the system and of the certificate files, with their remedies.
    pub fn bind(settings: &HttpSettings) -> Result<Option<Self>, BindError> {
        let Listen::At(address) = settings.listen else { return Ok(None) };
        if let Err(word) = Proxies::parse(&settings.proxy_networks) {
            return Err(BindError::ProxyNetworks(word));
        }
        let https = Https::read(settings).map_err(BindError::Certificate)?.map(Arc::new);
        let open = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) =
            open().map_err(|error| BindError::Address { address, holder: None, error })?;
        Ok(Some(Self { listener, address, settings: settings.clone(), https }))
    }

    /// Address, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handle that reloads the certificates.
    pub fn certificates(&self) -> Certificates {
        Certificates(self.https.clone())
    }

    /// Answers requests from now on. `/health/ready` reports `starting` until [`Readiness::ready`].
    ///
    /// # Errors
    /// The system provides no threads.
    pub fn serve(self, parts: Parts) -> io::Result<Server> {
        let Self { listener, address, settings, https } = self;
        let audit = Audit::start(
            &parts.node.data_dir,
            settings.audit_file_max.bytes(),
            settings.audit_refused_per_minute,
        )?;
        let router = crate::routes::router();
        let operations = Operations::of(crate::DOCUMENT).map_err(io::Error::other)?;
        let state = State::new(parts, settings, address, operations, audit);
        let router = router
            .layer(axum::middleware::from_fn_with_state(state.clone(), fanout))
            .fallback(crate::assets::serve)
            .layer(axum::middleware::from_fn_with_state(state.clone(), gate))
            .with_state(state.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("http")
            .on_thread_start(be_nice)
            .enable_io()
            .enable_time()
            .build()?;
        let stop = watch::Sender::new(false);
        let slots = Slots::new(state.settings.connections_max, state.settings.connections_per_address);
        let connections = slots.all().clone();
        let accepting = Accepting {
            router,
            state: state.clone(),
            slots,
            stop: stop.subscribe(),
            hsts: hsts(&state.settings, https.is_some()),
            https: https.clone(),
        };
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        if let Some(cluster) = &state.cluster {
            let (router, runtime) = (accepting.router.clone(), runtime.handle().clone());
            cluster.set_request_handler(Arc::new(ForwardHandler { router, state: state.clone(), runtime }));
        }
        runtime.spawn(accepting.run(listener));
        runtime.spawn(KeyRequestHandler::begin(state.clone()).run());
        runtime.spawn(Sampler::begin(state.clone()).run());
        tracing::info!(address = %address, "{}", if https.is_some() { "HTTPS" } else { "HTTP" });
        Ok(Server { state, runtime, connections, stop })
    }
}

/// Lowers the priority of this thread only: in Linux each thread has its own.
fn be_nice() {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes numbers and touches no memory of ours. When it is refused, the priority is unchanged.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}

/// A running server.
pub struct Server {
    state: State,
    runtime: Runtime,
    connections: Arc<Semaphore>,
    stop: watch::Sender<bool>,
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.state.address
    }

    /// Handle for the part that knows when the node accepts clients.
    pub fn readiness(&self) -> Readiness {
        Readiness(self.state.clone())
    }

    /// Reports in `/health/ready` that the node accepts no more clients. All other requests are still answered.
    pub fn stopping(&self) {
        self.state.enter(Phase::Stopping);
    }

    /// Ends streams, connections, running changes and the threads. Each is cancelled after about two seconds. Then the
    /// audit log has an entry for every change that was begun.
    pub fn stop(self) {
        self.stopping();
        self.stop.send_replace(true);
        self.state.streams.stop();
        let all = self.state.settings.connections_max;
        let ended = async { tokio::time::timeout(STOP, self.connections.acquire_many(all)).await.is_ok() };
        if !self.runtime.block_on(ended) {
            tracing::info!("http: connections did not end in time for the stop; closing them");
        }
        self.runtime.block_on(self.state.changes.end(STOP));
        self.runtime.shutdown_timeout(STOP);
        self.state.audit.stop();
    }
}

/// Handle that reports that the node accepts clients.
pub struct Readiness(State);

impl Readiness {
    /// Reports in `/health/ready` that the node accepts clients, unless it stops already.
    pub fn ready(&self) {
        self.0.enter(Phase::Ready);
    }
}

struct Accepting {
    router: axum::Router,
    state: State,
    slots: Slots,
    stop: watch::Receiver<bool>,
    https: Option<Arc<Https>>,
    hsts: Option<HeaderValue>,
}

impl Accepting {
    async fn run(mut self, listener: tokio::net::TcpListener) {
        let mut asked = RequestSniffer::default();
        let mut log_limiter = LogLimiter::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Descriptors may have run out. An immediate second try would only take time from the threads that
                    // can close some.
                    if let Some(suppressed) = log_limiter.allow(Instant::now()) {
                        tracing::warn!(%error, suppressed, "an HTTP connection was not accepted; logged once \
                            a minute at most");
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            match self.slots.take(peer.ip()) {
                Ok(slot) => drop(self.serve(stream, peer, Ok(slot))),
                // A stopping server takes every slot.
                Err(_) if *self.stop.borrow() => {}
                Err(none) => asked.push(self.serve(stream, peer, Err(none))),
            }
        }
    }

    /// Serves a connection. Without a slot, it answers `/health` and refuses all other requests.
    fn serve(&self, stream: TcpStream, peer: SocketAddr, slot: Result<Slot, NoSlot>) -> AbortHandle {
        // A page is one write; small writes would only be delayed.
        drop(stream.set_nodelay(true));
        let (state, https, mut stop) = (self.state.clone(), self.https.clone(), self.stop.clone());
        let count = slot.is_ok().then(|| Connected::new(state.clone()));
        let conversation = Conversation {
            state: state.clone(),
            router: self.router.clone(),
            peer,
            no_slot: slot.as_ref().err().copied(),
            stop: self.stop.clone(),
            hsts: self.hsts.clone(),
        };
        let serving = tokio::spawn(async move {
            let _held = (slot, count);
            let Some(https) = https else {
                let timeout = state.settings.write_timeout;
                return conversation.run(Paced::new(stream, timeout)).await;
            };
            let accepted = tokio::select! {
                accepted = https.accept(stream) => accepted,
                () = stopped(&mut stop) => return,
            };
            let failed = match accepted {
                Ok(stream) => return conversation.run(stream).await,
                Err(failed) => failed,
            };
            state.metrics.rejected.tls();
            match failed {
                NotServed::PlainText(stream) => tell(stream, "400 Bad Request", not_https()).await,
                NotServed::Failed(error) => tracing::debug!(%peer, %error, "http: TLS handshake failed"),
                NotServed::TooSlow => tracing::debug!(%peer, "http: TLS handshake timed out"),
            }
        });
        serving.abort_handle()
    }
}

/// One connection, after its TLS handshake.
struct Conversation {
    state: State,
    router: axum::Router,
    peer: SocketAddr,
    /// Reason why the connection has no slot: then it answers only one request, and only for `/health`.
    no_slot: Option<NoSlot>,
    stop: watch::Receiver<bool>,
    hsts: Option<HeaderValue>,
}

impl Conversation {
    async fn run(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Self { state, router, peer, no_slot, mut stop, hsts } = self;
        let mut header_timeout = state.settings.header_timeout;
        if no_slot.is_some() {
            header_timeout = header_timeout.min(FIRST_REQUEST_TIMEOUT);
        }
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .keep_alive(no_slot.is_none())
            .max_buf_size(BUFFER)
            .max_header_size(HEADER);
        let service = service_fn(move |request: Request<Incoming>| {
            let refused = no_slot.filter(|_| !is_health(request.uri().path()));
            let (state, router, hsts) = (state.clone(), router.clone(), hsts.clone());
            async move {
                match refused {
                    Some(no_slot) => Ok(refuse(&state, no_slot, hsts)),
                    None => answer(state, router, peer, hsts, request).await,
                }
            }
        });
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = stopped(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "http: connection ended");
        }
    }
}

/// Strict-Transport-Security header for browsers.
fn hsts(settings: &HttpSettings, https: bool) -> Option<HeaderValue> {
    let seconds = settings.tls_hsts.as_secs();
    (https && seconds > 0).then(|| HeaderValue::from_str(&format!("max-age={seconds}")).ok()).flatten()
}

/// Returns when the server stops, or is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// One connection, as the metrics count it.
struct Connected(State);

impl Connected {
    fn new(state: State) -> Self {
        state.metrics.connections.fetch_add(1, Ordering::Relaxed);
        Self(state)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether a path is answered without a slot: health checks must not depend on the number of other clients.
fn is_health(path: &str) -> bool {
    path == "/health" || path.starts_with("/health/")
}

/// Answers a request other than for `/health` of a connection without a slot.
fn refuse(state: &State, no_slot: NoSlot, hsts: Option<HeaderValue>) -> Response<Body> {
    let rejected = &state.metrics.rejected;
    let problem = match no_slot {
        NoSlot::All => {
            rejected.connections();
            "too many HTTP connections (http.connections_max); close some, or try again later"
        }
        NoSlot::Address => {
            rejected.address();
            "too many HTTP connections of this address (http.connections_per_address); close some, or try again later"
        }
    };
    let mut response = Problem::unavailable(problem).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    protect(&mut response);
    if let Some(hsts) = hsts {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, hsts);
    }
    response
}

fn not_https() -> Problem {
    Problem::bad_request("this port speaks HTTPS (http.tls_certificate is set); use https://")
}

/// Sends a connection the reason why it is closed, and reads its data for a moment: a reset would overtake the answer.
async fn tell(mut stream: TcpStream, status: &str, problem: Problem) {
    let body = serde_json::to_string(&problem.document()).unwrap_or_default();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\nconnection: close");
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let send_refusal = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // A client that leaves before the answer does not need it.
    drop(tokio::time::timeout(Duration::from_secs(1), send_refusal).await);
}

async fn answer(
    state: State,
    mut router: axum::Router,
    peer: SocketAddr,
    hsts: Option<HeaderValue>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    let begun = Instant::now();
    // A proxy in front of the server may see the end of this body elsewhere when it has a length, too. So the
    // connection closes after this request.
    let last = request.headers().contains_key(TRANSFER_ENCODING);
    let mut request = request.map(Body::new);
    let peer = canonical(peer);
    let proxies = &state.proxies;
    let encrypted = state.settings.tls_certificate.is_some() || proxies.is_encrypted(peer, request.headers());
    let client = proxies.client(peer, request.headers());
    request.extensions_mut().insert(Peer(client));
    request.extensions_mut().insert(Encrypted(encrypted));
    let (within, reads) = (state.settings.request_timeout, is_read_only(request.method()));
    let handled = tokio::time::timeout(within, CatchPanic::new(router.call(request))).await;
    let mut response = match handled {
        Ok(response) => response,
        Err(_) => {
            let begun =
                if reads { "" } else { ": the change continues, and the audit log will show its result" };
            let detail =
                format!("no answer within {within:?} (http.request_timeout), including the body{begun}");
            let mut response = Problem::unavailable(detail).into_response();
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    };
    if last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    protect(&mut response);
    if let Some(hsts) = hsts {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, hsts);
    }
    state.metrics.answered(response.status().as_u16(), begun.elapsed());
    Ok(response)
}

/// Adds security headers for browsers to every answer.
fn protect(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

const POLICY: &str =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'";

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
