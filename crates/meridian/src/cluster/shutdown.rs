//! Shutdown of this node: either it stops and stays a member, or it leaves its cluster.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use api::OrderError;

/// Progress of the shutdown. The first request holds: a node that stops cannot be made to leave any more.
#[derive(Default)]
pub struct Shutdown(Mutex<Phase>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Runs,
    Leaves,
    Stops,
}

impl Shutdown {
    /// Makes the node leave. Calls `stop` to stop it, for the first request only.
    ///
    /// # Errors
    /// The node stops for another reason already, or `stop` failed; then the request has no effect.
    pub fn leave(&self, stop: impl FnOnce() -> std::io::Result<()>) -> Result<(), OrderError> {
        let mut phase = self.lock();
        match *phase {
            Phase::Leaves => return Ok(()),
            Phase::Stops => return Err(OrderError::Refused("it has begun to stop".to_owned())),
            Phase::Runs => {}
        }
        stop().map_err(|error| OrderError::Unknown(error.to_string()))?;
        *phase = Phase::Leaves;
        Ok(())
    }

    /// Marks the node as stopping.
    pub fn stop(&self) {
        let mut phase = self.lock();
        if *phase == Phase::Runs {
            *phase = Phase::Stops;
        }
    }

    /// Returns whether the node leaves its cluster, or is about to.
    pub fn leaves(&self) -> bool {
        *self.lock() == Phase::Leaves
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        sync::lock(&self.0)
    }
}

/// Waits for the outcome of a leave. After each `pause`, `goes_on` says whether the cluster router still works at it.
/// Returns `None` when it does not.
pub fn await_leave<T>(
    outcome: &Receiver<T>,
    pause: Duration,
    mut goes_on: impl FnMut() -> bool,
) -> Option<T> {
    loop {
        match outcome.recv_timeout(pause) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Timeout) if goes_on() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_leave_is_awaited_as_long_as_it_goes_on() {
        let (sender, outcome) = channel();
        let mut pauses = 0;
        let goes_on = || {
            pauses += 1;
            pauses < 3 || sender.send(7).is_ok()
        };
        assert_eq!(await_leave(&outcome, Duration::ZERO, goes_on), Some(7));
        assert_eq!(await_leave(&outcome, Duration::ZERO, || false), None);
        drop(sender);
        assert_eq!(await_leave(&outcome, Duration::from_secs(60), || true), None, "nothing can answer");
    }

    #[test]
    fn a_leaving_node_is_stopped_once_and_accepts_further_requests_to_leave() {
        let (shutdown, mut stopped) = (Shutdown::default(), 0);
        for _ in 0..3 {
            let stop = || {
                stopped += 1;
                Ok(())
            };
            assert_eq!(shutdown.leave(stop), Ok(()));
        }
        shutdown.stop();
        assert_eq!((stopped, shutdown.leaves()), (1, true));
    }

    #[test]
    fn a_stopping_node_stays_a_member() {
        let shutdown = Shutdown::default();
        shutdown.stop();
        let refused = shutdown.leave(|| unreachable!("it stops already"));
        assert!(matches!(refused, Err(OrderError::Refused(_))) && !shutdown.leaves());
    }

    #[test]
    fn a_node_that_cannot_be_stopped_does_not_leave() {
        let shutdown = Shutdown::default();
        let failed = shutdown.leave(|| Err(std::io::ErrorKind::Unsupported.into()));
        assert!(matches!(failed, Err(OrderError::Unknown(_))) && !shutdown.leaves());
        assert_eq!(shutdown.leave(|| Ok(())), Ok(()));
    }
}
