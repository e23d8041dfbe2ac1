//! `/login`, `/logout`, `/password`: sessions of people who have an account.

use std::sync::Arc;
use std::time::{Duration, Instant};

use auth::LoginLimit;
use axum::Json;
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::http::header::SET_COOKIE;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use super::users::Secret;
use crate::accounts::{self, Account, PASSWORD_MAX};
use crate::ask::propose;
use crate::extract::Body;
use crate::gate::NothingBegun;
use crate::keys::{NAME_MAX, is_name};
use crate::problem::{Kind, Problem, ProblemDetail};
use crate::proxies::Encrypted;
use crate::role::{Caller, Role, Way};
use crate::session_cookie;
use crate::sessions::Begun;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/login": post login;
    "/api/v1/logout": post logout;
    "/api/v1/password": post password;
}

/// Maximum number of logins at one time, those that are delayed included.
pub(crate) const LOGINS_MAX: usize = 64;
/// Maximum number of them whose passwords wait for a thread or are hashed. MQTT clients use the same threads.
pub(crate) const LOGIN_HASHES_MAX: usize = 2;
/// Time for which a login waits while the threads that hash passwords are busy.
const HASHING_WAIT: Duration = Duration::from_secs(5);
const HASHING_RETRY: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Login {
    /// Name of the account.
    name: String,
    #[cfg_attr(feature = "document", schema(value_type = String))]
    password: Secret,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct NewPassword {
    /// The present password.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    current: Secret,
    /// 8 characters to 256 bytes, other than the name.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    new: Secret,
}

/// A session. Its secret is in the cookie that comes with it.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct SessionView {
    #[cfg_attr(feature = "document", schema(value_type = String))]
    name: Arc<str>,
    role: Role,
    /// Time at which the session ends, however much it is used.
    ends_at: Timestamp,
}

/// Begins a session: the answer sets a cookie, which scripts cannot read. Wrong logins are delayed and then refused for
/// a while (section `protection`). A request with a cookie that changes something must come from a page of this server.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/login", tag = "access", operation_id = "login", security(()),
    request_body = Login, responses((status = 200, body = SessionView))))]
async fn login(
    state: State,
    caller: Caller,
    Extension(encrypted): Extension<Encrypted>,
    Body(body): Body<Login>,
) -> Response {
    let Login { name, password } = body;
    match admit(&state, &caller, &name, &password).await {
        Ok(account) => {
            caller.acts_as(account.name.clone(), account.role);
            begin(&state, &caller, account, encrypted).await
        }
        Err(problem) => refused(&name, problem),
    }
}

/// Ends the session of the cookie.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/logout", tag = "access", operation_id = "logout", security(("token" = ["viewer"])),
    responses((status = 204, description = "The session has ended"))))]
async fn logout(
    state: State,
    caller: Caller,
    Extension(encrypted): Extension<Encrypted>,
) -> Result<Response, Problem> {
    let Way::Session(id) = caller.way.clone() else {
        return Err(Problem::conflict(
            "this request has no session to end: it was made with a token, or without one",
        ));
    };
    propose(&state, &caller, move |state| state.keys.sessions().end(&id)).await??;
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().extend(session_cookie::remove(encrypted.0).map(|cookie| (SET_COOKIE, cookie)));
    Ok(response)
}

/// Changes the password of the caller's own account. Its other sessions end, and the answer begins another one.
#[cfg_attr(feature = "document", utoipa::path(post, path = "/api/v1/password", tag = "access", operation_id = "password", security(("token" = ["viewer"])),
    request_body = NewPassword, responses((status = 200, body = SessionView))))]
async fn password(
    state: State,
    caller: Caller,
    Extension(encrypted): Extension<Encrypted>,
    Body(body): Body<NewPassword>,
) -> Result<Response, Problem> {
    let (Way::Session(_), Some(name)) = (&caller.way, caller.name.clone()) else {
        return Err(Problem::conflict("only a session has a password; a token is replaced by a new key"));
    };
    let NewPassword { current, new } = body;
    // A stolen session must not become the account, so guesses are limited here too.
    if let Err(problem) = admit(&state, &caller, &name, &current).await {
        // 401 would mean that the session has ended.
        let problem = match problem.kind() {
            Kind::Unauthorized => Problem::invalid("current", "this is not the present password"),
            _ => problem,
        };
        return Ok(refused(&name, problem));
    }
    let hash = hashed(&state, &name, new).await?;
    let changed = {
        let name = name.clone();
        propose(&state, &caller, move |state| state.keys.accounts().change(&name, None, Some(hash)))
    };
    let account = changed.await??;
    Ok(begin(&state, &caller, account, encrypted).await)
}

/// Returns the account when the password is right.
async fn admit(
    state: &State,
    caller: &Caller,
    name: &str,
    password: &Secret,
) -> Result<Arc<Account>, Problem> {
    let address = caller.address.ip();
    // All names that no account can have count as one, and are in no log.
    let counted = if is_name(name) { name } else { "" };
    let _login = state.logins.try_acquire().map_err(|_| busy(state))?;
    match state.guard.operator_limit(address, counted, Instant::now()) {
        LoginLimit::Check(delay) if delay.is_zero() => {}
        LoginLimit::Check(delay) => tokio::time::sleep(delay).await,
        LoginLimit::BacksOff => {
            state.metrics.logins.limited();
            return Err(Problem::too_many(
                "too many wrong logins of this address; wait before the next try (protection.failures_backoff)",
            ));
        }
    }
    let account = if is_name(name) { state.keys.accounts().get(name) } else { None };
    // A longer one is nobody's, and must not cost more.
    let text =
        if password.expose().len() <= PASSWORD_MAX { password.expose().to_owned() } else { String::new() };
    let checked = {
        let account = account.clone();
        on_hashing_threads(state, move || accounts::verify(account.as_deref(), &text)).await?
    };
    // The account may have changed meanwhile.
    let still = |account: &Arc<Account>| {
        state.keys.accounts().get(name).is_some_and(|now| now.epoch() == account.epoch())
    };
    match account.filter(|account| checked && still(account)) {
        Some(account) => {
            state.metrics.logins.accepted();
            Ok(account)
        }
        None => {
            state.guard.operator_failed(address, counted, Instant::now());
            state.metrics.logins.wrong();
            Err(Problem::unauthorized("wrong name or password"))
        }
    }
}

/// Answers a login that was refused. The audit log has the name; the number of such entries is limited.
fn refused(name: &str, problem: Problem) -> Response {
    let name: String = name.chars().take(NAME_MAX).collect();
    let detail = format!("login of {name:?}: {}", problem.detail());
    let mut response = problem.into_response();
    response.extensions_mut().insert(ProblemDetail(detail));
    response.extensions_mut().insert(NothingBegun);
    response
}

/// Begins a session and answers with its cookie.
async fn begin(state: &State, caller: &Caller, account: Arc<Account>, encrypted: Encrypted) -> Response {
    let limits = state.session_limits();
    let begun = {
        let account = account.clone();
        propose(state, caller, move |state| state.keys.sessions().begin(&account, limits))
    };
    let Begun { cookie, ends_at } = match begun.await.and_then(|begun| begun.map_err(Problem::from)) {
        Ok(begun) => begun,
        Err(problem) => return problem.into_response(),
    };
    let Some(cookie) = session_cookie::set(&cookie, encrypted.0) else {
        return Problem::internal("the cookie is no header").into_response();
    };
    let view = SessionView { name: account.name.clone(), role: account.role, ends_at };
    let mut response = Json(view).into_response();
    response.headers_mut().insert(SET_COOKIE, cookie);
    response
}

/// Checks a new password and hashes it.
///
/// # Errors
/// The password is not accepted; the threads are busy.
pub(super) async fn hashed(state: &State, name: &str, password: Secret) -> Result<String, Problem> {
    accounts::check_password(name, password.expose())?;
    Ok(on_hashing_threads(state, move || accounts::hash(password.expose())).await??)
}

/// Runs work on the threads that hash the passwords of MQTT clients. Waits for a while when they are busy.
async fn on_hashing_threads<T: Send + 'static>(
    state: &State,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let until = tokio::time::Instant::now() + HASHING_WAIT;
    let hashes = tokio::time::timeout_at(until, state.login_hashes.acquire()).await;
    let Ok(Ok(_hash)) = hashes else { return Err(busy(state)) };
    let (sender, receiver) = oneshot::channel();
    // The work is kept here until the threads take it.
    let work = Arc::new(std::sync::Mutex::new(Some((work, sender))));
    loop {
        let taken = work.clone();
        let run = move || {
            let taken = sync::lock(&taken).take();
            if let Some((work, sender)) = taken {
                // The receiver is gone when the client no longer waits.
                drop(sender.send(work()));
            }
        };
        match state.guard.hash_later(run) {
            Ok(()) => break,
            Err(_) if tokio::time::Instant::now() >= until => return Err(busy(state)),
            Err(_) => tokio::time::sleep(HASHING_RETRY).await,
        }
    }
    // The threads drop the work when the node stops.
    receiver.await.map_err(|_| Problem::unavailable("the node is stopping"))
}

fn busy(state: &State) -> Problem {
    state.metrics.logins.busy();
    Problem::busy("too many passwords are being checked; try again in a moment")
}
