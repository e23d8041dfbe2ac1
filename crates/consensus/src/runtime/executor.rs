use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use link::{NodeId, Time};
use slab::Slab;

use super::sleep::Timers;

/// Maximum number of polls of one call of [`Runtime::run`]. More than any burst takes. The rest runs in the next turn,
/// so that the caller is not blocked.
const POLLS_MAX: usize = 100_000;

/// Tasks of one node, and their timers.
pub struct Runtime {
    shared: Arc<Shared>,
    tasks: Slab<Task>,
    /// Message of the first task that panicked.
    panic: Option<String>,
}

struct Task {
    /// `None` while it is being polled.
    future: Option<Boxed>,
    waker: Arc<TaskWaker>,
}

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// State that tasks reach from inside.
pub(super) struct Shared {
    now: AtomicU64,
    random: AtomicU64,
    ticks: TickTimes,
    /// Time up to which ticks are rare.
    calm_until: AtomicU64,
    ready: Mutex<VecDeque<usize>>,
    spawned: Mutex<Vec<Boxed>>,
    timers: Mutex<Timers>,
}

/// Times at which tasks wake that wait until a time: one of every `interval`, so that those of several runtimes of one
/// thread wake together.
#[derive(Clone, Copy, Debug)]
pub struct WakeTimes {
    /// Time between two of them in microseconds, at least 1.
    interval: u64,
    /// Time of the first one. Different nodes have different ones: their election time-outs are to end at different
    /// times.
    first: Time,
}

impl WakeTimes {
    /// All times.
    pub const ANY: Self = Self { interval: 1, first: Time(0) };

    /// Multiples of an interval.
    pub fn every(interval: Duration) -> Self {
        Self { interval: (interval.as_micros() as u64).max(1), first: Time(0) }
    }

    /// Times of a node. They are the same for equal intervals.
    pub fn of(node: NodeId, interval: Duration) -> Self {
        let interval = (interval.as_micros() as u64).max(1);
        Self { interval, first: Time(random::mix(node.0) % interval) }
    }

    /// The first of them that is not before `time`.
    pub(super) fn from(self, time: Time) -> Time {
        let Self { interval, first } = self;
        let passed = time.since(first).div_ceil(interval);
        Time(first.0.saturating_add(passed.saturating_mul(interval)))
    }
}

/// Times of the ticks of `openraft`. At a tick it checks whether it has to begin an election, which it need not while
/// messages of a leader arrive.
#[derive(Clone, Copy, Debug)]
pub struct TickTimes {
    /// Times while a leader is known to be there ([`Runtime::stay_calm`]).
    pub calm: WakeTimes,
    pub otherwise: WakeTimes,
}

struct TaskWaker {
    task: usize,
    is_ready: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            sync::lock(&self.shared.ready).push_back(self.task);
        }
    }
}

thread_local! {
    /// State of the runtime whose task is being polled on this thread.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

impl Shared {
    /// State of the runtime that runs on this thread.
    ///
    /// # Panics
    /// Panics outside of a task.
    pub fn current() -> Arc<Self> {
        CURRENT.with_borrow(Clone::clone).expect("called by a task of a runtime")
    }

    pub fn try_current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub fn now(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    /// Time of a tick that is due at `deadline`.
    pub fn tick_from(&self, deadline: Time) -> Time {
        let calm = self.ticks.calm.from(deadline);
        let is_calm = calm.0 <= self.calm_until.load(Ordering::Relaxed);
        if is_calm { calm } else { self.ticks.otherwise.from(deadline) }
    }

    fn stay_calm(&self, time: Duration) {
        self.calm_until.fetch_max(self.now().after(time).0, Ordering::Relaxed);
    }

    pub fn timers(&self) -> MutexGuard<'_, Timers> {
        sync::lock(&self.timers)
    }

    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        sync::lock(&self.spawned).push(Box::pin(future));
    }

    /// Draws a random number (SplitMix64).
    pub fn draw(&self) -> u64 {
        random::mix(self.random.fetch_add(random::STEP, Ordering::Relaxed).wrapping_add(random::STEP))
    }
}

/// Guard that makes a runtime the current one until it is dropped.
struct Entered(Option<Arc<Shared>>);

impl Entered {
    fn new(shared: &Arc<Shared>) -> Self {
        Self(CURRENT.replace(Some(shared.clone())))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Runtime {
    pub fn new(now: Time, seed: u64, ticks: TickTimes) -> Self {
        let shared = Shared {
            now: AtomicU64::new(now.0),
            random: AtomicU64::new(seed),
            ticks,
            calm_until: AtomicU64::new(0),
            ready: Mutex::default(),
            spawned: Mutex::default(),
            timers: Mutex::default(),
        };
        Self { shared: Arc::new(shared), tasks: Slab::new(), panic: None }
    }

    /// Called by a task: there is a leader, and no election begins within this time.
    pub fn stay_calm(time: Duration) {
        Shared::current().stay_calm(time);
    }

    /// Adds a task. It starts with the next [`Self::run`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.shared.spawn(future);
    }

    /// Runs tasks until all of them wait. A clock that goes backwards counts as standing still.
    pub fn run(&mut self, now: Time) {
        self.shared.now.fetch_max(now.0, Ordering::Relaxed);
        let now = self.shared.now();
        let _entered = Entered::new(&self.shared);
        while let Some(waker) = self.shared.timers().pop_due(now) {
            waker.wake();
        }
        for _ in 0..POLLS_MAX {
            self.take_spawned();
            let Some(task) = sync::lock(&self.shared.ready).pop_front() else { return };
            self.poll(task);
        }
    }

    /// Time of the last [`Self::run`].
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// Time at which [`Self::run`] is to be called again.
    pub fn due(&self) -> Time {
        if !sync::lock(&self.shared.ready).is_empty() || !sync::lock(&self.shared.spawned).is_empty() {
            return self.shared.now();
        }
        self.shared.timers().next().unwrap_or(Time::NEVER)
    }

    /// Message of the first task that panicked. The other tasks can no longer be relied on.
    pub fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    fn take_spawned(&mut self) {
        for future in std::mem::take(&mut *sync::lock(&self.shared.spawned)) {
            let entry = self.tasks.vacant_entry();
            let (task, shared) = (entry.key(), self.shared.clone());
            let waker = Arc::new(TaskWaker { task, is_ready: AtomicBool::new(true), shared });
            entry.insert(Task { future: Some(future), waker });
            sync::lock(&self.shared.ready).push_back(task);
        }
    }

    fn poll(&mut self, key: usize) {
        // The task may have ended after it was woken, and another may have its key. That one is waiting, or is polled
        // once in vain.
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(mut future) = task.future.take() else { return };
        task.waker.is_ready.store(false, Ordering::Release);
        let waker = Waker::from(task.waker.clone());
        let mut context = Context::from_waker(&waker);
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) => task.future = Some(future),
            Ok(Poll::Ready(())) => {
                self.tasks.remove(key);
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
                tracing::error!("consensus: task panicked, {text}; the replica stops");
                self.panic.get_or_insert_with(|| text.to_owned());
                self.tasks.remove(key);
            }
        }
    }

    /// Runs all tasks until the future is ready. Whenever all tasks wait, `work` does what they wait for. If it returns
    /// false, there is nothing to do, and time advances.
    ///
    /// # Panics
    /// Panics when the future waits for something that cannot happen.
    pub fn run_until<T>(&mut self, future: impl Future<Output = T>, work: &mut dyn FnMut() -> bool) -> T {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            {
                let _entered = Entered::new(&self.shared);
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
            }
            if work() {
                continue;
            }
            let next = self.due();
            assert!(next != Time::NEVER, "the future waits for something that cannot happen");
            self.run(next);
        }
    }
}

impl Drop for Runtime {
    /// Makes the runtime current, because destructors of the tasks may use it.
    fn drop(&mut self) {
        let _entered = Entered::new(&self.shared);
        self.tasks.clear();
        sync::lock(&self.shared.spawned).clear();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sleep::Instant;
    use super::*;

    #[test]
    fn runtimes_of_a_node_wake_at_the_same_times() {
        let interval = Duration::from_millis(100);
        let wakes = WakeTimes::of(NodeId(7), interval);
        for micros in [0, 1, 99_999, 100_000, 31_536_000_000_000_000] {
            let (time, wake) = (Time(micros), wakes.from(Time(micros)));
            assert!(wake >= time && wake.since(time) < 100_000, "{time:?} {wake:?}");
            assert_eq!(wakes.from(wake), wake);
            assert_eq!((wake.0 - wakes.first.0) % 100_000, 0);
        }
        assert_ne!(wakes.first, WakeTimes::of(NodeId(8), interval).first);
        assert_eq!(WakeTimes::ANY.from(Time(17)), Time(17));
    }

    /// `openraft` reports durable entries after pauses of a microsecond.
    #[test]
    fn ticks_wait_for_a_wake_time_and_short_pauses_do_not() {
        let wakes = WakeTimes::of(NodeId(7), Duration::from_millis(100));
        let due = |micros: u64| {
            let ticks = TickTimes { calm: wakes, otherwise: wakes };
            let mut runtime = Runtime::new(Time(1_000_000), 1, ticks);
            let until = Instant(Time(1_000_000 + micros));
            runtime.spawn(async move { <Runtime as openraft::AsyncRuntime>::sleep_until(until).await });
            runtime.run(Time(1_000_000));
            runtime.due()
        };
        assert_eq!(due(1), Time(1_000_001));
        assert_eq!(due(101_000), wakes.from(Time(1_101_000)));
        assert_ne!(due(101_000), Time(1_101_000));
    }

    #[test]
    fn ticks_are_rare_while_there_is_a_leader() {
        let otherwise = WakeTimes::of(NodeId(7), Duration::from_millis(100));
        let ticks = TickTimes { calm: WakeTimes::every(Duration::from_millis(500)), otherwise };
        let mut runtime = Runtime::new(Time(1_000_000), 1, ticks);
        runtime.spawn(async {
            Runtime::stay_calm(Duration::from_millis(1600));
            loop {
                let until = Shared::current().now().after(Duration::from_millis(101));
                <Runtime as openraft::AsyncRuntime>::sleep_until(Instant(until)).await;
            }
        });
        runtime.run(Time(1_000_000));
        let times: Vec<Time> = std::iter::from_fn(|| {
            let due = runtime.due();
            runtime.run(due);
            Some(due)
        })
        .take(5)
        .collect();
        assert_eq!(times[..3], [1_500_000, 2_000_000, 2_500_000].map(Time));
        assert_eq!(times[3], otherwise.from(Time(2_601_000)));
        assert_eq!(times[4], otherwise.from(times[3].after(Duration::from_millis(101))));
    }
}
