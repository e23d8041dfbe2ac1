//! Answers clients whose time is out.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::run::Run;

/// The runs that are under way, by when their time is out. There are no more than wait for threads or have one.
#[derive(Debug)]
pub struct Deadlines(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    runs: BTreeMap<Ticket, Weak<Run>>,
    next: u64,
    ended: bool,
}

/// A run's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    at: Instant,
    number: u64,
}

impl Deadlines {
    /// # Errors
    /// When a thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let inner = Arc::new(Inner::default());
        let watch = inner.clone();
        vital::spawn("auth-clock", move || watch.run())?;
        Ok(Self(inner))
    }

    /// At `at` the run is told that its time is out, unless it was taken out before.
    pub fn add(&self, at: Instant, run: &Arc<Run>) -> Ticket {
        let mut state = self.0.lock();
        let ticket = Ticket { at, number: state.next };
        state.next += 1;
        let is_first = state.runs.first_key_value().is_none_or(|(first, _)| ticket < *first);
        state.runs.insert(ticket, Arc::downgrade(run));
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        ticket
    }

    pub fn remove(&self, ticket: Ticket) {
        self.0.lock().runs.remove(&ticket);
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Inner {
    fn run(&self) {
        let mut state = self.lock();
        while !state.ended {
            let Some((ticket, _)) = state.runs.first_key_value() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = ticket.at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let run = state.runs.pop_first().and_then(|(_, run)| run.upgrade());
            drop(state);
            if let Some(run) = run {
                run.expire();
            }
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
