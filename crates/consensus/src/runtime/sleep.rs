use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use link::Time;
use pin_project_lite::pin_project;

use super::executor::Shared;

/// A time of the runtime's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub(crate) Time);

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.after(duration))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self(Time(self.0.0.saturating_sub(micros)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.since(earlier.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl openraft::Instant for Instant {
    /// Current time. Outside of a task it is 0: nothing is measured there.
    fn now() -> Self {
        Self(Shared::try_current().map_or(Time::default(), |shared| shared.now()))
    }
}

/// Wakers by time, and by the order in which they began to wait.
#[derive(Default)]
pub(super) struct Timers {
    waiting: BTreeMap<(Time, u64), Waker>,
    count: u64,
}

impl Timers {
    pub fn next(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((when, _), _)| *when)
    }

    pub fn pop_due(&mut self, now: Time) -> Option<Waker> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn insert(&mut self, when: Time, waker: Waker) -> (Time, u64) {
        self.count += 1;
        let key = (when, self.count);
        self.waiting.insert(key, waker);
        key
    }
}

/// Future that is ready at a time.
pub struct Sleep {
    until: Instant,
    /// Key of its timer.
    waits: Option<((Time, u64), Arc<Shared>)>,
}

impl Sleep {
    pub fn until(until: Instant) -> Self {
        Self { until, waits: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = Shared::current();
        if shared.now() >= self.until.0 {
            return Poll::Ready(());
        }
        let mut timers = shared.timers();
        match &self.waits {
            Some((key, _)) if timers.waiting.contains_key(key) => {
                timers.waiting.insert(*key, context.waker().clone());
            }
            _ => {
                let key = timers.insert(self.until.0, context.waker().clone());
                drop(timers);
                self.waits = Some((key, shared));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((key, shared)) = &self.waits {
            shared.timers().waiting.remove(key);
        }
    }
}

/// Error: a time-out has elapsed.
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

pin_project! {
    /// Output of another future, or [`Elapsed`].
    pub struct Timeout<F> {
        #[pin]
        future: F,
        #[pin]
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    pub fn new(until: Instant, future: F) -> Self {
        Self { future, sleep: Sleep::until(until) }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Ok(output));
        }
        this.sleep.poll(context).map(|()| Err(Elapsed))
    }
}
