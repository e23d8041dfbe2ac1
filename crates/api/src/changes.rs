//! Requests that are meant to change something. Each runs in its own task, and the connection only waits for it. A
//! change that has begun continues when the connection is gone or its time is over, and the audit log records the
//! result.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

use crate::problem::Problem;

/// Changes that are running.
#[derive(Debug)]
pub struct Changes {
    permits: Arc<Semaphore>,
    permits_max: u32,
    cut_off: watch::Sender<bool>,
}

/// Permit to run a change, until it is dropped.
pub struct ChangePermit {
    _permit: OwnedSemaphorePermit,
    cut_off: watch::Receiver<bool>,
}

impl Changes {
    /// Creates as many permits as connections are allowed. Each connection that waits for a change gets a permit,
    /// unless too many changes outlived their connections.
    pub fn new(permits_max: u32) -> Self {
        let permits = Arc::new(Semaphore::new(permits_max as usize));
        Self { permits, permits_max, cut_off: watch::Sender::new(false) }
    }

    /// # Errors
    /// 503: too many changes are running, or the node stops.
    pub fn begin(&self) -> Result<ChangePermit, Problem> {
        match self.permits.clone().try_acquire_owned() {
            Ok(permit) => Ok(ChangePermit { _permit: permit, cut_off: self.cut_off.subscribe() }),
            Err(TryAcquireError::NoPermits) => Err(Problem::busy(format!(
                "{} changes are running, which is the limit (http.connections_max): nothing has changed; try \
                 again in a moment",
                self.permits_max
            ))),
            Err(TryAcquireError::Closed) => {
                Err(Problem::unavailable("the node is stopping: nothing has changed"))
            }
        }
    }

    /// Refuses new changes and waits until none is running. Cancels changes that take longer than `within`. Their
    /// entries in the audit log say so, and may take as much time again.
    pub async fn end(&self, within: Duration) {
        let ended = || tokio::time::timeout(within, self.permits.acquire_many(self.permits_max));
        if ended().await.is_err() {
            tracing::warn!(
                "http: changes did not end in time for the stop; cancelling them, and their \
                results are unknown"
            );
            self.cut_off.send_replace(true);
            if ended().await.is_err() {
                tracing::warn!("audit log: entries of cancelled changes are missing");
            }
        }
        self.permits.close();
    }
}

impl ChangePermit {
    /// Returns the response, or a response that says that the result is unknown when the change is cancelled.
    pub async fn outcome(&mut self, handled: impl Future<Output = Response>) -> Response {
        tokio::select! {
            biased;
            response = handled => response,
            () = async { drop(self.cut_off.wait_for(|cut_off| *cut_off).await) } => {
                let detail = "the node stopped before it was known whether the change succeeded: look before \
                    you try again";
                Problem::unavailable(detail).into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn the_number_of_running_changes_is_limited() {
        let changes = Changes::new(1);
        let permit = changes.begin().ok().unwrap();
        let problem = changes.begin().err().unwrap();
        assert!(problem.detail().contains("http.connections_max"), "{}", problem.detail());
        assert_eq!(problem.into_response().headers()["retry-after"], "1");
        drop(permit);
        assert!(changes.begin().is_ok());
    }

    #[test]
    fn a_stop_cancels_slow_changes_and_waits_for_their_audit_entries() {
        run(async {
            let changes = Changes::new(2);
            let mut permit = changes.begin().ok().unwrap();
            let outcome_response = async {
                let response = permit.outcome(std::future::pending()).await;
                drop(permit);
                response
            };
            let (response, ()) = tokio::join!(outcome_response, changes.end(Duration::from_millis(10)));
            assert_eq!(response.status(), 503);
            let problem = changes.begin().err().unwrap();
            assert!(problem.detail().contains("stopping"), "{}", problem.detail());
        });
    }
}
