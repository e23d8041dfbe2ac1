//! Requests to a reactor: a command carries the question, a one-shot channel returns the answer.

use std::time::Duration;

use broker::admin::{Invalid, Reply};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

/// Time within which a reactor has to answer. A reactor answers between two turns, so only an overloaded one needs
/// longer. A request that waits for clients, such as a publish into full queues, may need as much as `queue.full_wait`.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Immediate result of a submission: nothing, or the reason why it was not sent.
pub trait Submission {
    /// # Errors
    /// The reason why nothing was sent.
    fn into_result(self) -> Result<(), Problem>;
}

impl Submission for () {
    fn into_result(self) -> Result<(), Problem> {
        Ok(())
    }
}

impl Submission for Result<(), Invalid> {
    fn into_result(self) -> Result<(), Problem> {
        self.map_err(Problem::from)
    }
}

/// Asks and waits: `ask(|reply| admin.client(id, reply)).await?`.
///
/// # Errors
/// The fault of the question; 503 when no answer comes in time or the node stops.
pub async fn ask<T: Send + 'static, A: Submission>(
    question: impl FnOnce(Reply<T>) -> A,
) -> Result<T, Problem> {
    let (sender, receiver) = oneshot::channel();
    // The receiver is gone when the request was dropped in the meantime.
    question(Box::new(move |answer| drop(sender.send(answer)))).into_result()?;
    answer(receiver, ANSWER_TIMEOUT).await
}

async fn answer<T>(receiver: oneshot::Receiver<T>, within: Duration) -> Result<T, Problem> {
    match tokio::time::timeout(within, receiver).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Problem::unavailable("the node is stopping")),
        Err(_) => Err(Problem::unavailable(format!(
            "no answer within {} s: the node is overloaded, or clients do not read; try again later",
            within.as_secs_f32()
        ))),
    }
}

/// Changes records, on which the cores of a cluster must agree. Changes run in order, and not after the caller is gone.
///
/// # Errors
/// Those of [`ChangeQueue::run`](crate::change_queue::ChangeQueue::run).
pub async fn propose<T: Send + 'static>(
    state: &State,
    caller: &Caller,
    change: impl FnOnce(&State) -> T + Send + 'static,
) -> Result<T, Problem> {
    let shared = state.clone();
    state.records_queue.run(caller, move || change(&shared)).await
}

/// Changes state that only this node has. Changes run in order, and not after the caller is gone.
///
/// # Errors
/// Those of [`ChangeQueue::run`](crate::change_queue::ChangeQueue::run).
pub async fn change_node<T: Send + 'static>(
    state: &State,
    caller: &Caller,
    change: impl FnOnce(&State) -> T + Send + 'static,
) -> Result<T, Problem> {
    let shared = state.clone();
    state.node_queue.run(caller, move || change(&shared)).await
}

/// Runs work that waits for the disk, or reads a lot of data, on a thread that may block. The work does not start after
/// this future is dropped.
///
/// # Errors
/// 500 when the work panicked, which is a defect of the program.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let mistake = |_| Problem::internal("this is a defect of the program; the node's log has details");
    let working = tokio::task::spawn_blocking(work);
    let _abort = AbortOnDrop(working.abort_handle());
    working.await.map_err(mistake)
}

/// Aborts the task on drop. Work that has started is not affected.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn an_answer_arrives() {
        assert_eq!(run(ask(|reply: Reply<u8>| reply(7))).unwrap(), 7);
    }

    #[test]
    fn a_reply_that_is_dropped_means_that_the_node_stops() {
        let problem = run(ask(|reply: Reply<u8>| drop(reply))).unwrap_err();
        assert_eq!((problem.kind().status().as_u16(), problem.detail()), (503, "the node is stopping"));
    }

    #[test]
    fn no_answer_in_time_is_unavailable() {
        let (_sender, receiver) = oneshot::channel::<u8>();
        let problem = run(answer(receiver, Duration::from_millis(1))).unwrap_err();
        assert!(problem.detail().contains("no answer within"), "{}", problem.detail());
    }

    #[test]
    fn a_question_that_is_refused_is_not_waited_for() {
        let problem = run(ask(|_reply: Reply<u8>| Err(Invalid::Filter))).unwrap_err();
        assert_eq!(problem.kind().status(), 422);
    }
}
