//! Timer for runs: refuses clients whose time is over, and starts delayed runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Instant;

use super::run::Run;
use crate::protection::Delay;

/// Runs in progress, by their deadline. Their number is bounded: they are delayed, wait for a thread, or have one.
#[derive(Debug)]
pub struct Deadlines(Arc<Inner>);

/// Reason why a run cannot be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    /// The limit for this pair of address and user name is reached.
    OfPair,
    /// The limit for all runs is reached.
    OfAll,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    runs: BTreeMap<Ticket, Weak<Run>>,
    delayed: BTreeMap<Ticket, (u64, Arc<Run>)>,
    /// Number of delayed runs of each pair.
    delayed_of_pair: HashMap<u64, u32>,
    next: u64,
    ended: bool,
}

/// Key of a run in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    at: Instant,
    number: u64,
}

impl Deadlines {
    /// # Errors
    /// A thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let inner = Arc::new(Inner::default());
        let watch = inner.clone();
        critical::spawn("auth-clock", move || watch.run())?;
        Ok(Self(inner))
    }

    /// Adds a run. At `at` its time is over, unless it is removed before.
    pub fn add(&self, at: Instant, run: &Arc<Run>) -> Ticket {
        let mut state = self.0.lock();
        let (ticket, is_first) = state.ticket(at);
        state.runs.insert(ticket, Arc::downgrade(run));
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        ticket
    }

    /// Delays a run: at `at` it goes to its threads.
    ///
    /// # Errors
    /// Too many runs are delayed; `all_max` is the maximum of all.
    pub fn delay(&self, at: Instant, delay: Delay, all_max: usize, run: &Arc<Run>) -> Result<(), TooMany> {
        let mut state = self.0.lock();
        if state.delayed.len() >= all_max {
            return Err(TooMany::OfAll);
        }
        let of_pair = state.delayed_of_pair.entry(delay.pair).or_default();
        if *of_pair >= delay.pair_max {
            return Err(TooMany::OfPair);
        }
        *of_pair += 1;
        let (ticket, is_first) = state.ticket(at);
        state.delayed.insert(ticket, (delay.pair, run.clone()));
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        Ok(())
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

impl State {
    /// Returns a ticket for `at`, and whether it is the earliest of all.
    fn ticket(&mut self, at: Instant) -> (Ticket, bool) {
        let ticket = Ticket { at, number: self.next };
        self.next += 1;
        (ticket, self.first().is_none_or(|first| ticket < first))
    }

    fn first(&self) -> Option<Ticket> {
        let run = self.runs.first_key_value().map(|(ticket, _)| *ticket);
        let delayed = self.delayed.first_key_value().map(|(ticket, _)| *ticket);
        run.into_iter().chain(delayed).min()
    }

    /// Removes the entry of this ticket.
    fn take(&mut self, ticket: Ticket) -> Option<Due> {
        if let Some((pair, run)) = self.delayed.remove(&ticket) {
            if let Some(count) = self.delayed_of_pair.get_mut(&pair) {
                *count -= 1;
                if *count == 0 {
                    self.delayed_of_pair.remove(&pair);
                }
            }
            return Some(Due::Start(run));
        }
        self.runs.remove(&ticket)?.upgrade().map(Due::Expire)
    }
}

/// Action for a run.
enum Due {
    Start(Arc<Run>),
    Expire(Arc<Run>),
}

impl Inner {
    fn run(&self) {
        let mut state = self.lock();
        while !state.ended {
            let Some(ticket) = state.first() else {
                state = sync::ignore_poison(self.changed.wait(state));
                continue;
            };
            let left = ticket.at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = sync::ignore_poison(self.changed.wait_timeout(state, left)).0;
                continue;
            }
            let due = state.take(ticket);
            drop(state);
            match due {
                Some(Due::Start(run)) => run.start_delayed(),
                Some(Due::Expire(run)) => run.expire(),
                None => {}
            }
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }
}
