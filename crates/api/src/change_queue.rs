//! Changes that run one after the other, in the order of arrival, on a blocking thread. Changes that wait for other
//! nodes have a queue of their own, so that changes of this node do not wait behind them.

use std::sync::Arc;

use tokio::sync::{Semaphore, TryAcquireError};

use crate::ask::run_blocking;
use crate::problem::Problem;
use crate::role::Caller;

/// Maximum number of changes of one queue: the running one and those that wait.
pub const PENDING_MAX: usize = 64;

/// Queue that runs one change at a time.
#[derive(Debug)]
pub struct ChangeQueue {
    permits: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    /// Message for the client when the queue is full.
    full: &'static str,
}

impl ChangeQueue {
    /// Queue for users, rules, bans, keys, actions and the cluster's settings.
    pub fn of_records() -> Self {
        Self::new(
            "too many changes of users, rules, bans, keys, actions or the cluster's settings are waiting: nothing \
             has changed. `meridian ctl cluster` shows whether a majority of the cores is up; try again in a \
             moment",
        )
    }

    /// Queue for changes that this node writes by itself.
    pub fn of_node() -> Self {
        Self::new(
            "too many changes of this node are waiting for its disk: nothing has changed; try again in a \
             moment",
        )
    }

    fn new(full: &'static str) -> Self {
        Self { permits: Arc::new(Semaphore::new(PENDING_MAX)), turn: Arc::new(Semaphore::new(1)), full }
    }

    /// Runs a change when it is its turn, unless the caller is gone before.
    ///
    /// # Errors
    /// 503 when there are too many, or the caller is gone; then nothing was begun. 500 when the change panicked, which
    /// is a defect of the program.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let stops = || Problem::unavailable("the node is stopping");
        let permit = self.permits.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => Problem::busy(self.full),
            TryAcquireError::Closed => stops(),
        })?;
        let turn = tokio::select! {
            biased;
            () = caller.abandoned() => return Err(given_up()),
            turn = self.turn.clone().acquire_owned() => turn.map_err(|_| stops())?,
        };
        let caller = caller.clone();
        let done = run_blocking(move || {
            // A change keeps its slot and its turn also when its caller is gone.
            let _held = (permit, turn);
            (!caller.is_abandoned()).then(change)
        });
        done.await?.ok_or_else(given_up)
    }
}

fn given_up() -> Problem {
    Problem::unavailable("the client was gone before the turn of this change: it was not begun")
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use tokio::sync::watch;

    use super::*;
    use crate::role::Role;

    /// A caller that waits until the sender is dropped.
    fn caller() -> (Caller, watch::Sender<()>) {
        let (waits, client_waits) = watch::channel(());
        let caller = Caller::new(None, Role::Admin, "127.0.0.1:1".parse().unwrap());
        (caller.client_waits(client_waits), waits)
    }

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn changes_run_in_order_except_those_of_absent_callers_and_beyond_the_limit() {
        let (change_queue, made) = (Arc::new(ChangeQueue::of_records()), Arc::<Mutex<Vec<usize>>>::default());
        let (release, held) = mpsc::channel();
        let held = Mutex::new(Some(held));
        run(async {
            let (waiting, _waits) = caller();
            let (abandoned, waits) = caller();
            let change = |number: usize| {
                let (change_queue, made, held) =
                    (change_queue.clone(), made.clone(), held.lock().unwrap().take());
                let caller = if number == 1 { abandoned.clone() } else { waiting.clone() };
                tokio::spawn(async move {
                    let change = move || {
                        if let Some(held) = held {
                            held.recv().unwrap();
                        }
                        made.lock().unwrap().push(number);
                    };
                    change_queue.run(&caller, change).await
                })
            };
            let changes: Vec<_> = (0..PENDING_MAX).map(change).collect();
            while change_queue.permits.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let problem = change_queue.run(&waiting, || ()).await.unwrap_err();
            assert!(problem.detail().contains("too many changes"), "{}", problem.detail());
            drop(waits);
            release.send(()).unwrap();
            for (number, change) in changes.into_iter().enumerate() {
                let done = change.await.unwrap();
                assert_eq!(done.is_err(), number == 1, "{number}");
            }
            assert!(change_queue.run(&waiting, || ()).await.is_ok(), "there is room again");
        });
        assert!(made.lock().unwrap().iter().copied().eq((0..PENDING_MAX).filter(|number| *number != 1)));
    }
}
