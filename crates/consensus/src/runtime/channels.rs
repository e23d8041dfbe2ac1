//! Runtime for `openraft`. Channels are those of `tokio::sync`, which need no runtime of their own and are fair. Only
//! `watch` is our own.

use std::future::Future;
use std::time::Duration;

use link::Time;
use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};

use super::executor::{Runtime, Shared, TickTimes, WakeTimes};
use super::sleep::{Elapsed, Instant, Sleep, Timeout};
use super::task::{self, JoinError, JoinHandle, Random};
use super::watch::Watched;

/// Time in microseconds to which a tick is always longer.
const SHORTEST_TICK: u64 = 1000;

impl AsyncRuntime for Runtime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Random;
    type Mpsc = TokioMpsc;
    type Watch = Watched;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        task::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Sleep::until(<Instant as openraft::Instant>::now() + duration)
    }

    /// `openraft` uses it for its ticks, which end at one of the [`TickTimes`] of the runtime, and for pauses of a
    /// microsecond between reports of durable entries, which end at once.
    fn sleep_until(deadline: Instant) -> Sleep {
        let shared = Shared::current();
        let is_pause = deadline.0.since(shared.now()) < SHORTEST_TICK;
        Sleep::until(if is_pause { deadline } else { Instant(shared.tick_from(deadline.0)) })
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout::new(<Instant as openraft::Instant>::now() + duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout::new(deadline, future)
    }

    fn is_panic(_: &JoinError) -> bool {
        true
    }

    fn thread_rng() -> Random {
        Random
    }

    /// Makes a runtime for the tests of `openraft` that every runtime has to pass.
    fn new(_: usize) -> Self {
        let ticks = TickTimes { calm: WakeTimes::ANY, otherwise: WakeTimes::ANY };
        Self::new(Time::default(), 1, ticks)
    }

    /// Runs the future. Time advances by itself whenever all tasks wait.
    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.run_until(future, &mut || false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_passes_the_tests_of_openraft() {
        openraft::rt::testing::Suite::<Runtime>::test_all();
    }
}
