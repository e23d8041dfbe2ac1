//! The gate: checks that every request passes before its handler.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State as FromState};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderMap, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;

use crate::ask::run_blocking;
use crate::audit::Entry;
use crate::catch_panic::CatchPanic;
use crate::extract::{too_large, whole};
use crate::fanout::Forwarded;
use crate::host;
use crate::keys::Denied;
use crate::metrics::Rejected;
use crate::operations::Operation;
use crate::problem::{Kind, Problem, ProblemDetail};
use crate::proxies::Encrypted;
use crate::role::{Caller, Role, Way};
use crate::session_cookie;
use crate::sessions::Refused;
use crate::state::State;
use crate::timestamp::Timestamp;

/// The peer's address, which the server adds to each request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Passes a request to its handler, or answers with the reason of its refusal. Writes it to the audit log when it is
/// meant to change something.
pub async fn gate(FromState(state): FromState<State>, request: Request, next: Next) -> Response {
    read_new_sessions(&state, request.headers()).await;
    let encrypted = request.extensions().get::<Encrypted>().is_some_and(|encrypted| encrypted.0);
    let admitted = admit(&state, &request);
    let refreshed = admitted.as_ref().ok().and_then(|caller| caller.refreshed.clone());
    let mut response = pass(state, admitted, request, next).await;
    if let Some(value) = refreshed
        && !response.headers().contains_key(SET_COOKIE)
        && let Some(cookie) = session_cookie::set(&value, encrypted)
    {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

async fn pass(
    state: State,
    admitted: Result<Caller, Rejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let pending = (!is_read_only(request.method())).then(|| PendingEntry::of(&request));
    match (admitted, pending) {
        (Ok(caller), None) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        // A request without a handler changes nothing and may come from any client, so its body is not read.
        (Ok(caller), Some(pending)) if request.extensions().get::<MatchedPath>().is_none() => {
            let response = next.run(request).await;
            audit_unchanged(&state, Some(&caller), pending, response).await
        }
        (Ok(caller), Some(pending)) => change(state, caller, pending, request, next).await,
        (Err(Rejection { problem, .. }), None) => problem.into_response(),
        (Err(Rejection { caller, problem }), Some(pending)) => {
            audit_unchanged(&state, caller.as_deref(), pending, problem.into_response()).await
        }
    }
}

/// Writes an audit entry for a request where nothing was begun.
async fn audit_unchanged(
    state: &State,
    caller: Option<&Caller>,
    pending: PendingEntry,
    response: Response,
) -> Response {
    if let Some(entry) = pending.into_entry(caller, &response) {
        state.audit.write_refused(entry).await;
    }
    response
}

/// Executes a change and writes its audit entry, whether or not the client still waits.
async fn change(
    state: State,
    caller: Caller,
    pending: PendingEntry,
    request: Request,
    next: Next,
) -> Response {
    // The body is read before a permit is taken: a slow body holds no permit.
    let (parts, body) = request.into_parts();
    let begun = whole(&state, body).await.and_then(|body| Ok((body, state.changes.begin()?)));
    let (body, mut permit) = match begun {
        Ok(begun) => begun,
        Err(problem) => {
            return audit_unchanged(&state, Some(&caller), pending, problem.into_response()).await;
        }
    };
    let (waits, client_waits) = watch::channel(());
    let caller = caller.client_waits(client_waits);
    let mut request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(caller.clone());
    let carried_out = tokio::spawn(async move {
        let handled = CatchPanic::new(async { Ok(next.run(request).await) });
        let response = permit.outcome(handled).await;
        let begun = response.extensions().get::<NothingBegun>().is_none();
        match pending.into_entry(Some(&caller), &response) {
            Some(entry) if begun => state.audit.write(entry).await,
            Some(entry) => state.audit.write_refused(entry).await,
            None => {}
        }
        response
    });
    let response =
        carried_out.await.unwrap_or_else(|_| Problem::unavailable("the node is stopping").into_response());
    // The sender is kept until here; a connection that ends drops it earlier.
    drop(waits);
    response
}

/// A request that is meant to change something, as an entry of the audit log.
struct PendingEntry {
    entry: Entry,
    /// True when the request comes from another node.
    is_forwarded: bool,
}

impl PendingEntry {
    fn of(request: &Request) -> Self {
        Self { entry: Entry::of(request), is_forwarded: request.extensions().get::<Forwarded>().is_some() }
    }

    /// Completes the entry with the result; `None` when it is not written.
    fn into_entry(self, caller: Option<&Caller>, response: &Response) -> Option<Entry> {
        let Self { mut entry, is_forwarded } = self;
        // A node that does not have the client has changed nothing.
        let does_nothing = is_forwarded && response.status() == StatusCode::NOT_FOUND;
        if does_nothing || response.extensions().get::<SkipAudit>().is_some() {
            return None;
        }
        entry.at = Timestamp::now();
        entry.status = response.status().as_u16();
        if let Some(caller) = caller {
            let (by, role) = caller.author();
            entry.by = by.map(str::to_owned);
            entry.role = Some(role);
            entry.detail = caller.noted().map(str::to_owned);
        }
        if let Some(ProblemDetail(detail)) = response.extensions().get() {
            entry.detail = Some(detail.clone());
        }
        Some(entry)
    }
}

/// Returns whether a request of this method changes nothing.
pub fn is_read_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Marks an answer of a handler that refused the request before it began anything. The number of their audit entries is
/// limited.
#[derive(Clone, Copy)]
pub struct NothingBegun;

/// Marks an answer that is not written to the audit log because there are too many like it.
#[derive(Clone, Copy)]
struct SkipAudit;

struct Rejection {
    caller: Option<Box<Caller>>,
    problem: RejectionResponse,
}

enum RejectionResponse {
    Problem(Problem),
    /// One refusal too many.
    TooMany,
}

impl RejectionResponse {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::TooMany => {
                let problem = Problem::too_many(
                    "too many requests are refused (http.refusals_per_second); check the token, then try \
                     again",
                );
                let mut response = problem.into_response();
                response.extensions_mut().insert(SkipAudit);
                response
            }
        }
    }
}

fn admit(state: &State, request: &Request) -> Result<Caller, Rejection> {
    if let Some(forwarded) = request.extensions().get::<Forwarded>() {
        return admit_forwarded(state, request, forwarded);
    }
    let headers = request.headers();
    let rejected = &state.metrics.rejected;
    let address = request.extensions().get::<Peer>().map_or(state.address, |peer| peer.0);
    // A client without a valid token can be anybody, so its refusals have a limited rate.
    let unauthenticated = |count: fn(&Rejected), problem| {
        count(rejected);
        let answer = match state.metrics.refusals.take() {
            true => RejectionResponse::Problem(problem),
            false => {
                rejected.rate();
                RejectionResponse::TooMany
            }
        };
        Rejection { caller: None, problem: answer }
    };

    let Some(authority) = host::authority(request.uri(), headers) else {
        return Err(unauthenticated(Rejected::host, Problem::bad_request("send exactly one Host header")));
    };
    let open = state.is_open();
    if open && !host::is_loopback(authority) {
        return Err(unauthenticated(
            Rejected::host,
            Problem::forbidden(
                "while there is no API key, this server answers as localhost, 127.0.0.1 and [::1] only; use one of \
                 them, or make a key with `meridian key add`",
            ),
        ));
    }
    if open && let Some(header) = host::proxied_by(headers) {
        let detail = format!(
            "the request came through a proxy (header `{header}`), and there is no API key, so everybody who reaches the proxy \
             would be an admin; make a key first with `meridian key add`"
        );
        return Err(unauthenticated(Rejected::proxy, Problem::forbidden(detail)));
    }
    let is_cross_origin = host::is_cross_origin(authority, headers);
    if !is_read_only(request.method()) && is_cross_origin {
        return Err(unauthenticated(
            Rejected::origin,
            Problem::forbidden("a page of another site may not change anything here"),
        ));
    }

    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let operations = path.and_then(|path| state.operations.at(path));
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let operation =
        operations.and_then(|operations| operations.iter().find(|operation| operation.method == *method));
    let needs = match (operation, request.uri().path()) {
        (Some(operation), _) => operation.role,
        (None, path) if path.starts_with("/api/v1") => Some(Role::Viewer),
        (None, _) => None,
    };
    // With a key, a page of another site has no token. Links of other sites to the dashboard still work, as it needs no
    // role.
    if open && needs.is_some() && is_cross_origin {
        return Err(unauthenticated(
            Rejected::origin,
            Problem::forbidden(
                "while there is no API key, a page of another site may not read anything here",
            ),
        ));
    }
    // nginx uses HTTP/1.0 to its upstream servers by default, without a header that identifies it.
    if open && !is_read_only(request.method()) && request.version() < Version::HTTP_11 {
        let detail = "proxies use HTTP/1.0, and there is no API key, so everybody who reaches the proxy \
            would be an admin; make a key first with `meridian key add`, or use HTTP/1.1";
        return Err(unauthenticated(Rejected::proxy, Problem::forbidden(detail)));
    }
    let caller = match (needs, open) {
        (None, _) => Caller::new(None, Role::Viewer, address),
        (Some(_), true) => Caller::new(None, Role::Admin, address),
        (Some(_), false) if session(headers).is_some() => {
            match of_session(state, request, authority, address) {
                Ok(caller) => caller,
                Err(NoSession { count, problem }) => return Err(unauthenticated(count, problem)),
            }
        }
        (Some(_), false) => match token(headers).map(|token| state.keys.check(token, Timestamp::now())) {
            Some(Ok((name, role))) => Caller::new(Some(name), role, address),
            Some(Err(Denied::Unknown)) => {
                let problem = Problem::unauthorized(
                    "this token is not known; ask an admin for a key, or make one on the node's machine (`meridian key add`)",
                );
                return Err(unauthenticated(Rejected::token, problem));
            }
            Some(Err(Denied::Expired)) => {
                let problem = Problem::unauthorized(
                    "this token has expired; ask an admin for a new key, or make one on the node's machine (`meridian key add`)",
                );
                return Err(unauthenticated(Rejected::token, problem));
            }
            None => {
                let problem = Problem::unauthorized(
                    "send `Authorization: Bearer TOKEN`, or log in; `meridian key add` makes a key, and `meridian account \
                     add` an account",
                );
                return Err(unauthenticated(Rejected::token, problem));
            }
        },
    };
    let refuse = |problem| Rejection {
        caller: Some(Box::new(caller.clone())),
        problem: RejectionResponse::Problem(problem),
    };
    if let Some(needs) = needs
        && let Err(problem) = caller.needs(needs)
    {
        rejected.role();
        return Err(refuse(problem));
    }
    if let (Some(operations), None) = (operations, operation) {
        return Err(refuse(Problem::method_not_allowed(request.method(), &allow(operations))));
    }
    if !is_read_only(request.method()) && !is_json(headers) {
        rejected.media_type();
        return Err(refuse(Problem::new(
            Kind::UnsupportedMediaType,
            "a request that changes something needs `Content-Type: application/json`, also without a body",
        )));
    }
    if content_length(headers) > Some(state.settings.body_max.bytes()) {
        rejected.body();
        return Err(refuse(too_large(state)));
    }
    if let Some(operation) = operation
        && let Err(problem) = known_query(operation, request.uri().query().unwrap_or_default())
    {
        return Err(refuse(problem));
    }
    Ok(caller)
}

/// Admits a request that the gate of another node has admitted with the role in it. That role is checked again.
fn admit_forwarded(state: &State, request: &Request, forwarded: &Forwarded) -> Result<Caller, Rejection> {
    // The other node knows the key or the session.
    let mut caller = Caller::new(forwarded.by.clone(), forwarded.role, forwarded.address);
    caller.way = Way::Nothing;
    let refuse = |problem| Rejection {
        caller: Some(Box::new(caller.clone())),
        problem: RejectionResponse::Problem(problem),
    };
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let mut operations = path.and_then(|path| state.operations.at(path)).into_iter().flatten();
    let Some(operation) = operations.find(|it| it.method == *request.method() && it.fanout.is_some()) else {
        return Err(refuse(Problem::not_found(
            "this cannot be forwarded from another node: ask this node \
            directly",
        )));
    };
    caller.needs(operation.role.unwrap_or(Role::Admin)).map_err(refuse)?;
    known_query(operation, request.uri().query().unwrap_or_default()).map_err(refuse)?;
    Ok(caller)
}

/// Returns the session cookie of a request without a token.
fn session(headers: &HeaderMap) -> Option<&str> {
    if headers.contains_key(AUTHORIZATION) { None } else { session_cookie::find(headers) }
}

/// Reason why a request with the cookie of a session is refused.
struct NoSession {
    count: fn(&Rejected),
    problem: Problem,
}

/// Returns the sender of a request with this session cookie. A browser adds the cookie by itself, so the request also
/// has to come from a page of this server.
///
/// # Errors
/// The reason of the refusal.
fn of_session(
    state: &State,
    request: &Request,
    authority: &str,
    address: SocketAddr,
) -> Result<Caller, NoSession> {
    let headers = request.headers();
    let cookie = session(headers).unwrap_or_default();
    if host::is_other_page(authority, headers) {
        let problem = "a page of another origin may not use this session";
        return Err(NoSession { count: Rejected::origin, problem: Problem::forbidden(problem) });
    }
    if !is_read_only(request.method()) && !host::is_own_page(authority, headers) {
        let problem = "a change with a session must come from a page of this server, with the header Origin; a program \
            uses a token (`Authorization: Bearer TOKEN`)";
        return Err(NoSession { count: Rejected::origin, problem: Problem::forbidden(problem) });
    }
    match state.keys.sessions().check(cookie, state.settings.session_idle) {
        Ok(admitted) => Ok(Caller::of_session(admitted, address)),
        Err(Refused::Malformed | Refused::Unknown | Refused::Ended) => {
            let problem = Problem::unauthorized("the session has ended; log in again");
            Err(NoSession { count: Rejected::session, problem })
        }
    }
}

/// Reads the sessions of other nodes when the request has one that this node does not know: it may be so new that this
/// node's copy of the records does not have it yet. One request at a time waits for that; others do without.
async fn read_new_sessions(state: &State, headers: &HeaderMap) {
    let Some(cookie) = session(headers).filter(|_| state.cluster.is_some()) else { return };
    let known = state.keys.sessions().check(cookie, state.settings.session_idle);
    if !matches!(known, Err(Refused::Unknown)) {
        return;
    }
    let Ok(permit) = state.session_reads.clone().try_acquire_owned() else { return };
    let shared = state.clone();
    let read = run_blocking(move || {
        let _held = permit;
        shared.keys.sessions().refresh();
    });
    // Without an answer the request is refused, as without this.
    drop(tokio::time::timeout(SESSION_READ, read).await);
}

/// Maximum time for which a request waits for sessions of other nodes.
const SESSION_READ: Duration = Duration::from_secs(2);

fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn allow(operations: &[Operation]) -> String {
    let mut names: Vec<&str> = operations.iter().map(|operation| operation.method.as_str()).collect();
    if names.contains(&"GET") {
        names.push("HEAD");
    }
    names.join(", ")
}

/// Refuses unknown parameters: a parameter that no handler reads is a mistake of the client.
fn known_query(operation: &Operation, query: &str) -> Result<(), Problem> {
    let pairs: Vec<(String, String)> = serde_html_form::from_str(query)
        .map_err(|error| Problem::bad_request(format!("the query: {error}")))?;
    let Some((unknown, _)) = pairs.iter().find(|(name, _)| !operation.query.contains(name)) else {
        return Ok(());
    };
    if unknown == "node" {
        return Err(Problem::bad_request(
            "node: this request is not forwarded to other nodes; ask that node \
            directly",
        ));
    }
    let nearest = settings::nearest(unknown, operation.query.iter().map(String::as_str));
    Err(Problem::bad_request(match nearest {
        Some(nearest) => format!("unknown parameter `{unknown}`; the nearest known one is `{nearest}`"),
        None => format!("unknown parameter `{unknown}`; this request has no parameters"),
    }))
}
