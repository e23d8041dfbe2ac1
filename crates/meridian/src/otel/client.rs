//! The HTTP client of the exporters. Runs on their threads, one request at a time on each.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

/// Maximum number of bytes read of a response: collectors send a few.
const ANSWER_MAX: u64 = 64 * 1024;

/// A client that blocks its thread. It logs the loss of the collector and its return, and no failures in between.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    lost: Arc<AtomicU64>,
}

impl Client {
    pub fn new(timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        Self { agent: config.into(), lost: Arc::default() }
    }

    /// Batches lost since the last accepted one.
    #[cfg(test)]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(parts, body.to_vec()))?;
        let (parts, mut body) = response.into_parts();
        let bytes = body.with_config().limit(ANSWER_MAX).read_to_vec()?;
        match parts.status.is_success() {
            true => Ok(Response::from_parts(parts, bytes.into())),
            false => Err(format!("the collector answered {}", parts.status).into()),
        }
    }

    pub fn note(&self, sent: Result<(), &HttpError>) {
        match sent {
            Ok(()) => match self.lost.swap(0, Ordering::Relaxed) {
                0 => {}
                lost => {
                    tracing::info!(target: super::export::TARGET, lost, "the collector accepts batches again")
                }
            },
            Err(error) => {
                if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(target: super::export::TARGET, %error, "the collector does not accept a batch; the batch is lost");
                }
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let answer = self.send(request);
            self.note(answer.as_ref().map(|_| ()));
            answer
        })
    }
}
