//! Threads that run the reactors of a node ([ADR 23](../../../docs/adr/0023-threads-by-load.md)).
//!
//! A node has as many threads as reactors, and as many of them work as the load needs. While the load is low, one
//! thread runs all reactors, so that a message from one reactor to another wakes no thread. A busy thread gives some of
//! its reactors to a thread without any. A thread with little to do gives its reactors to another.
//!
//! A reactor belongs to one thread at a time, and changes its thread between two turns. No thread waits for another.

use std::cmp::Reverse;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::Instant;
use mio::Events;

use crate::mailbox::Mailbox;
use crate::node::Stopped;
use crate::reactor::{EVENTS, Reactor, Rest, Turn, complain_about_poll};

/// Time over which it is measured whether a thread is busy.
const PERIOD: Duration = Duration::from_millis(10);
/// Percentage of a period in which turns run on a busy thread.
const BUSY: u32 = 80;
/// Consecutive busy periods after which a thread gives reactors away. A single one may be one long turn.
const BUSY_PERIODS: u32 = 2;
/// Time over which it is measured whether a thread has little to do.
const CALM_PERIOD: Duration = Duration::from_secs(1);
/// Maximum sum of the percentages of two threads that become one. It is below [`BUSY`], so that they are not divided
/// again at once.
const CALM: u32 = 60;
/// Maximum number of turns that reactors of one thread run for each other before their sockets are polled again.
const MAIL_ROUNDS: usize = 4;
/// Load of a thread that takes part in a move, until it is measured again.
const UNKNOWN: u32 = 100;

/// State that the threads of a node share.
struct Shared {
    /// Thread that runs each reactor. Only the holder of `moving` changes it.
    runs: Vec<AtomicU16>,
    /// Load of each thread in its last calm period, in percent.
    loads: Vec<AtomicU32>,
    transfers: Vec<Sender<Transfer>>,
    mailboxes: Vec<Mailbox>,
    moving: Mutex<()>,
    /// Number of reactors that have not ended.
    remaining: AtomicUsize,
}

enum Transfer {
    Run(Box<Reactor>),
    /// All reactors of the node have ended.
    End,
}

/// One thread, and the reactors that it runs now.
pub(crate) struct ReactorThread {
    index: usize,
    shared: Arc<Shared>,
    transfers: Receiver<Transfer>,
    running: Vec<Running>,
    /// Polls of the reactors, in the order of `running`. A single reactor is polled directly.
    polls: Vec<libc::pollfd>,
    events: Events,
    period: Period,
    calm_period: Period,
    busy_periods: u32,
    stopped: Stopped,
}

/// Time over which the load of a thread is measured.
struct Period {
    begun: Instant,
    /// Time of it in which turns ran.
    awake: Duration,
}

struct Running {
    reactor: Box<Reactor>,
    rest: Rest,
    /// The thread has just taken it over.
    is_new: bool,
    has_ended: bool,
    /// Time for which its turns ran in the last period.
    awake: Duration,
}

/// Makes the threads of a node. The first one runs all reactors until it is busy.
pub(crate) fn reactor_threads(reactors: Vec<Reactor>, mailboxes: Vec<Mailbox>) -> Vec<ReactorThread> {
    let count = reactors.len();
    // tidy: allow(unbounded-channel): a message is a reactor or the end, so their number is bounded.
    let (transfers, received): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    let shared = Arc::new(Shared {
        runs: (0..count).map(|_| AtomicU16::new(0)).collect(),
        loads: (0..count).map(|_| AtomicU32::new(0)).collect(),
        transfers,
        mailboxes,
        moving: Mutex::new(()),
        remaining: AtomicUsize::new(count),
    });
    let mut threads = Vec::new();
    for (index, transfers) in received.into_iter().enumerate() {
        threads.push(ReactorThread {
            index,
            shared: shared.clone(),
            transfers,
            running: Vec::new(),
            polls: Vec::new(),
            events: Events::with_capacity(EVENTS),
            period: Period::begin(),
            calm_period: Period::begin(),
            busy_periods: 0,
            stopped: Stopped::default(),
        });
    }
    for mut reactor in reactors {
        let rest = reactor.begin();
        threads[0].take(Box::new(reactor), rest);
    }
    threads
}

impl ReactorThread {
    /// Runs until all reactors of the node have ended. Returns what this thread has stopped.
    pub fn run(mut self) -> Stopped {
        loop {
            let transfer = if self.running.is_empty() {
                Some(self.transfers.recv().unwrap_or(Transfer::End))
            } else {
                self.transfers.try_recv().ok()
            };
            match transfer {
                Some(Transfer::Run(mut reactor)) => {
                    reactor.moved_to(self.index);
                    self.take(reactor, Rest { since: Instant::now(), timeout: Some(Duration::ZERO) });
                    continue;
                }
                Some(Transfer::End) => return self.stopped,
                None => {}
            }
            match &mut self.running[..] {
                [one] => {
                    let turn = one.reactor.sleep_and_turn(one.rest, &mut self.events);
                    one.finish(turn, &mut self.stopped);
                }
                _ => self.turn_of_several(),
            }
            if self.running.iter().any(|one| one.has_ended) {
                self.remove_ended();
            }
            self.balance();
        }
    }

    /// Sleeps until some of several reactors have something to do, and runs a turn of these.
    fn turn_of_several(&mut self) {
        let timeout = self.sleep_time();
        if let Err(error) = poll_all(&mut self.polls, timeout) {
            complain_about_poll(&error);
        }
        let now = Instant::now();
        for (one, polled) in self.running.iter_mut().zip(&self.polls) {
            one.reactor.inbox().mark_awake();
            let is_ready = std::mem::take(&mut one.is_new) || polled.revents != 0;
            if is_ready || one.is_due(now) || one.reactor.inbox().has_next() {
                let turn = one.reactor.poll_and_turn(one.rest, now, &mut self.events);
                one.finish(turn, &mut self.stopped);
            }
        }
        for _ in 0..MAIL_ROUNDS {
            let mut is_any = false;
            for one in self.running.iter_mut().filter(|one| !one.has_ended) {
                if one.reactor.inbox().has_next() {
                    is_any = true;
                    let turn = one.reactor.turn_for_mail(one.rest);
                    one.finish(turn, &mut self.stopped);
                }
            }
            if !is_any {
                break;
            }
        }
    }

    /// Returns the time for which all reactors may sleep, after they are marked as asleep; `None` is no limit.
    fn sleep_time(&mut self) -> Option<Duration> {
        if self.running.iter().any(|one| one.rest.is_busy()) {
            return Some(Duration::ZERO);
        }
        self.running.iter_mut().for_each(|one| one.reactor.inbox().mark_asleep());
        // Paired with the fence in `Mailbox::send`.
        fence(Ordering::SeqCst);
        if self.running.iter_mut().any(|one| one.reactor.inbox().has_next()) {
            return Some(Duration::ZERO);
        }
        let until = self.running.iter().filter_map(|one| one.rest.until()).min()?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn take(&mut self, reactor: Box<Reactor>, rest: Rest) {
        self.polls.push(readable(reactor.poll_fd()));
        self.running.push(Running { reactor, rest, is_new: true, has_ended: false, awake: Duration::ZERO });
        self.restart_period();
    }

    fn remove(&mut self, at: usize) -> Box<Reactor> {
        let removed = self.running.swap_remove(at);
        self.polls.swap_remove(at);
        self.restart_period();
        removed.reactor
    }

    fn remove_ended(&mut self) {
        while let Some(at) = self.running.iter().position(|one| one.has_ended) {
            drop(self.remove(at));
            if self.shared.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                for thread in &self.shared.transfers {
                    let _ = thread.send(Transfer::End); // Fails only for a thread that has ended.
                }
            }
        }
    }

    fn restart_period(&mut self) {
        for one in &mut self.running {
            one.reactor.take_awake();
        }
        self.period = Period::begin();
        self.calm_period = Period::begin();
        self.busy_periods = 0;
    }

    /// Measures the load, and moves reactors if it is high or low.
    fn balance(&mut self) {
        let Some(now) = self.running.iter().map(|one| one.rest.since).max() else { return };
        if self.shared.transfers.len() == 1 || now.saturating_duration_since(self.period.begun) < PERIOD {
            return;
        }
        for one in &mut self.running {
            one.awake = one.reactor.take_awake();
            self.period.awake += one.awake;
        }
        self.calm_period.awake += self.period.awake;
        let is_busy = self.period.end(now) >= BUSY;
        self.busy_periods = if is_busy { self.busy_periods + 1 } else { 0 };
        let is_calm_period_over = now.saturating_duration_since(self.calm_period.begun) >= CALM_PERIOD;
        let load = is_calm_period_over.then(|| self.calm_period.end(now));
        if let Some(load) = load {
            self.shared.loads[self.index].store(load, Ordering::Relaxed);
        }
        if self.running.iter().any(|one| one.reactor.is_stopping()) {
            return;
        }
        if self.busy_periods >= BUSY_PERIODS && self.running.len() > 1 {
            self.divide();
        } else if let Some(load) = load {
            self.join(load);
        }
    }

    /// Gives about half of the load to a thread without reactors, if there is one.
    fn divide(&mut self) {
        let shared = self.shared.clone();
        let Ok(_moving) = shared.moving.try_lock() else { return };
        let Some(idle) = (0..shared.transfers.len()).find(|thread| shared.reactor_of(*thread).is_none())
        else {
            return;
        };
        let loads = self.running.iter().map(|one| (one.reactor.index(), one.awake)).collect();
        for reactor in lighter_half(loads) {
            self.give(reactor, idle);
        }
        for thread in [self.index, idle] {
            shared.loads[thread].store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// Gives all reactors to another thread if both have little to do.
    fn join(&mut self, load: u32) {
        let shared = self.shared.clone();
        let Ok(_moving) = shared.moving.try_lock() else { return };
        let is_calm = |thread: usize| load + shared.loads[thread].load(Ordering::Relaxed) <= CALM;
        let mut others = (0..shared.transfers.len()).filter(|thread| *thread != self.index);
        let found =
            others.find_map(|thread| Some((thread, shared.reactor_of(thread).filter(|_| is_calm(thread))?)));
        let Some((to, awake)) = found else { return };
        for reactor in self.running.iter().map(|one| one.reactor.index()).collect::<Vec<_>>() {
            self.give(reactor, to);
        }
        shared.loads[self.index].store(0, Ordering::Relaxed);
        shared.loads[to].fetch_add(load, Ordering::Relaxed);
        shared.mailboxes[awake].wake();
    }

    /// Gives a reactor to another thread. The caller holds `moving`.
    fn give(&mut self, reactor: usize, to: usize) {
        let Some(at) = self.running.iter().position(|one| one.reactor.index() == reactor) else { return };
        let removed = self.remove(at);
        self.shared.runs[reactor].store(to as u16, Ordering::Relaxed);
        if let Err(returned) = self.shared.transfers[to].send(Transfer::Run(removed))
            && let Transfer::Run(reactor) = returned.0
        {
            // The other thread has ended, so the node is stopping.
            self.shared.runs[reactor.index()].store(self.index as u16, Ordering::Relaxed);
            self.take(reactor, Rest { since: Instant::now(), timeout: Some(Duration::ZERO) });
        }
    }
}

impl Shared {
    /// Returns a reactor that a thread runs. The answer is valid while `moving` is held.
    fn reactor_of(&self, thread: usize) -> Option<usize> {
        self.runs.iter().position(|runs| usize::from(runs.load(Ordering::Relaxed)) == thread)
    }
}

impl Period {
    fn begin() -> Self {
        Self { begun: Instant::now(), awake: Duration::ZERO }
    }

    /// Ends the period and begins the next one. Returns the load, in percent.
    fn end(&mut self, now: Instant) -> u32 {
        let elapsed = now.saturating_duration_since(self.begun);
        let load = self.awake.as_micros() * 100 / elapsed.as_micros().max(1);
        *self = Self { begun: now, awake: Duration::ZERO };
        load as u32
    }
}

impl Running {
    fn is_due(&self, now: Instant) -> bool {
        self.rest.until().is_some_and(|until| until <= now)
    }

    fn finish(&mut self, turn: Turn, stopped: &mut Stopped) {
        match turn {
            Turn::Rests(rest) => self.rest = rest,
            Turn::Ended(this) => {
                stopped.connections += this.connections;
                stopped.forced += this.forced;
                self.has_ended = true;
            }
        }
    }
}

fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until one of the polls has events; `None` is no limit. A poll of polls would cost the kernel a walk over all
/// their sockets with each move of a reactor.
fn poll_all(polls: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let mut timeout_ms =
        timeout.map_or(-1, |timeout| i32::try_from(timeout.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX));
    loop {
        // SAFETY: the pointer and the length are those of one slice of valid entries, borrowed for the whole call.
        let result = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms) };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            polls.iter_mut().for_each(|poll| poll.revents = 0);
            return Err(error);
        }
        // A process that was stopped reads what arrived meanwhile before timers fire.
        timeout_ms = 0;
    }
}

/// Divides reactors by their loads into two parts of about the same load. Returns the part without the reactor that has
/// the highest load. It is not empty if there are two reactors.
fn lighter_half(mut loads: Vec<(usize, Duration)>) -> Vec<usize> {
    loads.sort_by_key(|(_, load)| Reverse(*load));
    let (mut kept, mut given) = (Duration::ZERO, Duration::ZERO);
    let mut half = Vec::new();
    for (at, (reactor, load)) in loads.into_iter().enumerate() {
        if at == 0 || given > kept {
            kept += load;
        } else {
            given += load;
            half.push(reactor);
        }
    }
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reactors_are_divided_into_parts_of_about_the_same_load() {
        let half = |loads: &[u64]| {
            let loads = loads.iter().enumerate().map(|(at, ms)| (at, Duration::from_millis(*ms)));
            lighter_half(loads.collect())
        };
        assert_eq!(half(&[5, 3]), [1]);
        assert_eq!(half(&[0, 0]), [1]);
        assert_eq!(half(&[3, 5, 2]), [0, 2]);
        assert_eq!(half(&[1, 1, 1, 1, 9]), [0, 1, 2, 3]);
        assert_eq!(half(&[4, 4, 4, 4]), [1, 2]);
        assert_eq!(half(&[7]), [0_usize; 0]);
    }
}
