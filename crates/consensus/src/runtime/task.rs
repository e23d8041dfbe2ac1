use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use rand::TryRng;
use tokio::sync::oneshot;

use super::executor::Shared;

/// Future with the output of a task.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

/// Error: the task has panicked, or its runtime was dropped.
#[derive(Debug)]
pub struct JoinError;

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task did not finish")
    }
}

/// Adds a task. It starts with the next turn of the executor. Dropping the handle does not end the task.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let (sender, receiver) = oneshot::channel();
    Shared::current().spawn(async move {
        // The handle may have been dropped.
        let _ = sender.send(future.await);
    });
    JoinHandle(receiver)
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| JoinError)
    }
}

/// Random numbers of the runtime that runs on this thread.
pub struct Random;

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((Shared::current().draw() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(Shared::current().draw())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        let shared = Shared::current();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&shared.draw().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}
