//! Execution of requests of `meridian key` by the node that runs in their data directory.

use std::io;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use configstore::ProposeError;

use super::KeyError;
use super::request::{DirectoryLock, FILE, KeyRequest};
use crate::ask::{propose, run_blocking};
use crate::audit::Entry;
use crate::log_limiter::LogLimiter;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

/// Time from one look to the next.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Author in the audit log. No key can have this name.
const BY: &str = "meridian key";

/// Task that looks for requests.
pub struct KeyRequestHandler {
    state: State,
    /// Limiter for requests that wait, or cannot be read or removed.
    retry_log: LogLimiter,
    /// Limiter for files that are no request of `meridian key`.
    invalid_log: LogLimiter,
    lock: Option<DirectoryLock>,
}

impl KeyRequestHandler {
    pub fn begin(state: State) -> Self {
        let (retry_log, invalid_log) = (LogLimiter::default(), LogLimiter::default());
        let mut request_handler = Self { state, retry_log, invalid_log, lock: None };
        request_handler.take_lock();
        request_handler
    }

    /// Takes the lock once there is a data directory. A node that keeps nothing creates none, and `meridian key` writes
    /// the first key itself.
    fn take_lock(&mut self) {
        match DirectoryLock::begin(&self.state.node.data_dir) {
            Ok(lock) => self.lock = Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.warn_limited(&format!(
                "requests of `meridian key` are not read, as another node seems to use this data directory: \
                 keys.lock: {error}"
            )),
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        loop {
            if self.lock.is_some() {
                self.poll().await;
            } else {
                self.take_lock();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn poll(&mut self) {
        let data_dir = self.state.node.data_dir.clone();
        match run_blocking(move || KeyRequest::read(&data_dir)).await {
            Ok(Ok(None)) | Err(_) => {}
            Ok(Ok(Some(request))) => self.handle(request).await,
            Ok(Err(error @ KeyError::InvalidRequest { .. })) => {
                if let Some(suppressed) = self.invalid_log.allow(Instant::now()) {
                    tracing::error!(
                        suppressed,
                        "meridian key: invalid request in the data directory: {error}; removing it (logged \
                         once a minute at most)"
                    );
                }
                self.discard().await;
            }
            Ok(Err(error)) => self.log_retry(&error.to_string()),
        }
    }

    async fn handle(&mut self, request: KeyRequest) {
        // The stop waits for changes that have begun.
        let Ok(_permit) = self.state.changes.begin() else { return };
        let caller = Caller::new(Some(BY.into()), Role::Admin, self.state.address);
        let made = {
            let request = request.clone();
            propose(&self.state, &caller, move |state| state.keys.make(&request)).await
        };
        let why = match made {
            Ok(Ok(())) => None,
            Ok(Err(error)) if !is_retryable(&error) => Some(error),
            Ok(Err(error)) => return self.log_retry(&error.to_string()),
            Err(problem) => return self.log_retry(problem.detail()),
        };
        let text = request.to_string();
        match &why {
            None => tracing::warn!(
                "{text}, requested by this node's user on this machine (`meridian key`, `meridian account`)"
            ),
            Some(why) => tracing::error!("meridian key: request refused: {text}: {why}"),
        }
        self.state.audit.write(self.entry(&request, text, why)).await;
        self.discard().await;
    }

    fn entry(&self, request: &KeyRequest, text: String, why: Option<KeyError>) -> Entry {
        let (method, path, status) = match request {
            KeyRequest::Add(_) => (Method::POST, "/api/v1/keys".to_owned(), StatusCode::CREATED),
            KeyRequest::Remove(name) => {
                (Method::DELETE, format!("/api/v1/keys/{name}"), StatusCode::NO_CONTENT)
            }
            KeyRequest::AddAccount(_) => (Method::POST, "/api/v1/accounts".to_owned(), StatusCode::CREATED),
            KeyRequest::SetPassword { name, .. } => {
                (Method::PATCH, format!("/api/v1/accounts/{name}"), StatusCode::OK)
            }
            KeyRequest::RemoveAccount(name) => {
                (Method::DELETE, format!("/api/v1/accounts/{name}"), StatusCode::NO_CONTENT)
            }
        };
        let file = self.state.node.data_dir.join(FILE).display().to_string();
        let problem = why.map(Problem::from);
        let status = problem.as_ref().map_or(status, |problem| problem.kind().status());
        let detail = problem.map_or(text, |problem| problem.detail().to_owned());
        Entry::of_local_command(BY, file, method.as_str(), &path, status.as_u16(), detail)
    }

    async fn discard(&mut self) {
        let data_dir = self.state.node.data_dir.clone();
        if let Ok(Err(error)) = run_blocking(move || KeyRequest::discard(&data_dir)).await {
            self.warn_limited(&format!(
                "{FILE} cannot be removed from the data directory: {error}; remove it"
            ));
        }
    }

    fn log_retry(&mut self, why: &str) {
        self.warn_limited(&format!("the request of `meridian key` waits: {why}"));
    }

    fn warn_limited(&mut self, what: &str) {
        if let Some(suppressed) = self.retry_log.allow(Instant::now()) {
            tracing::warn!(suppressed, "{what}; trying again each second (logged once a minute at most)");
        }
    }
}

/// Returns whether a later try may succeed.
fn is_retryable(error: &KeyError) -> bool {
    let KeyError::Write(error) = error else { return false };
    matches!(
        error,
        ProposeError::NotCommitted { .. } | ProposeError::Write { .. } | ProposeError::Broken { .. }
    )
}
