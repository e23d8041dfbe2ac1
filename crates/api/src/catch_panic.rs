//! A panic as a value: the panic of one request ends neither the connection nor the task that writes the audit log.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse as _;

use crate::problem::Problem;

/// The answer of a handler, or 500 when the handler panics.
pub struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<Response<Body>, Infallible>>> CatchPanic<F> {
    pub fn new(handled: F) -> Self {
        Self(Box::pin(handled))
    }
}

impl<F: Future<Output = Result<Response<Body>, Infallible>>> Future for CatchPanic<F> {
    type Output = Response<Body>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The future is not polled again after a panic.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(Poll::Ready(Ok(response))) => Poll::Ready(response),
            Ok(Poll::Ready(Err(never))) => match never {},
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => {
                tracing::error!("http: a handler panicked; answering 500");
                Poll::Ready(
                    Problem::internal("this is a defect of the program; the node's log has details")
                        .into_response(),
                )
            }
        }
    }
}
