//! The thread of one connection to another system: it writes batches and repeats what fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::Waker;
use random::Random;
use sinks::{ActionSettings, Record, Sink, Target, WriteError};

use crate::lane::{Batch, Item, Outcome, Written};

/// Result of a batch.
#[derive(Debug)]
pub struct Report {
    pub lane: usize,
    pub epoch: u64,
    pub results: Vec<Written>,
}

/// A thread that writes the batches of one lane.
pub struct Writer {
    pub lane: usize,
    pub sink: Box<dyn Sink>,
    /// Replaces the sink after a panic of it.
    pub target: Arc<dyn Target>,
    pub batches: Receiver<Batch>,
    pub reports: Sender<Report>,
    pub waker: Arc<Waker>,
    pub interrupt: Arc<Interrupt>,
    pub view: Arc<Mutex<WritersView>>,
    pub retry: Retry,
    pub random: Random,
}

/// Settings of repeated attempts.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pub min: Duration,
    pub max: Duration,
    /// Age at which a record is given up; zero is never.
    pub expire: Duration,
}

impl Retry {
    pub fn of(settings: &ActionSettings) -> Self {
        Self { min: settings.retry_min, max: settings.retry_max, expire: settings.expire }
    }
}

/// State of the writers of an action, for operators.
#[derive(Clone, Debug, Default)]
pub struct WritersView {
    /// Time since which no attempt of a writer has succeeded, while one is to be repeated.
    failing: Vec<Option<Instant>>,
    pub last_error: Option<String>,
    pub retries: u64,
    /// Time of the last confirmed write since 1970.
    pub last_write: Option<Duration>,
}

impl WritersView {
    pub fn new(writers: usize) -> Self {
        Self { failing: vec![None; writers], ..Self::default() }
    }

    /// The oldest time since which a writer fails.
    pub fn failing_since(&self) -> Option<Instant> {
        self.failing.iter().flatten().min().copied()
    }
}

/// Ends pauses of writers.
#[derive(Debug, Default)]
pub struct Interrupt {
    state: Mutex<InterruptState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InterruptState {
    /// Batches of earlier connections are abandoned.
    epoch: u64,
    is_stopped: bool,
}

impl Interrupt {
    /// Abandons batches of connections before this one.
    pub fn begin(&self, epoch: u64) {
        sync::lock(&self.state).epoch = epoch;
        self.changed.notify_all();
    }

    /// Abandons all batches.
    pub fn stop(&self) {
        sync::lock(&self.state).is_stopped = true;
        self.changed.notify_all();
    }

    fn abandons(&self, epoch: u64) -> bool {
        let state = sync::lock(&self.state);
        state.is_stopped || state.epoch != epoch
    }

    /// Waits, but not longer than the batch is wanted.
    fn pause(&self, epoch: u64, duration: Duration) {
        let state = sync::lock(&self.state);
        let is_wanted = |state: &mut InterruptState| !state.is_stopped && state.epoch == epoch;
        let waited = self.changed.wait_timeout_while(state, duration, is_wanted);
        drop(sync::ignore_poison(waited));
    }
}

impl Writer {
    /// Writes batches until the sender is dropped.
    pub fn run(mut self) {
        while let Ok(Batch { items, epoch }) = self.batches.recv() {
            let (heads, records): (Vec<Head>, Vec<Record>) = items.into_iter().map(Head::split).unzip();
            let mut outcomes = Vec::with_capacity(heads.len());
            self.write_all(epoch, &heads, &records, &mut outcomes);
            self.set_failing(false);
            let results = heads.iter().zip(outcomes).map(|(head, outcome)| Written {
                sequence: head.sequence,
                bytes: head.bytes,
                outcome,
            });
            let report = Report { lane: self.lane, epoch, results: results.collect() };
            if self.reports.send(report).is_err() {
                return;
            }
            // The driver looks for reports twice a second, too.
            let _ = self.waker.wake();
        }
    }

    /// Writes records until each has an outcome. Records that the other system refuses are found by halving.
    fn write_all(
        &mut self,
        epoch: u64,
        mut heads: &[Head],
        mut records: &[Record],
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut pause = self.retry.min;
        loop {
            if self.interrupt.abandons(epoch) {
                return outcomes.extend(heads.iter().map(|_| Outcome::Abandoned));
            }
            let why = match self.attempt(records) {
                Ok(()) => {
                    self.succeeded();
                    return outcomes.extend(heads.iter().map(|_| Outcome::Written));
                }
                Err(WriteError::Refused(why)) if records.len() < 2 => {
                    self.set_failing(false);
                    return outcomes.extend(heads.iter().map(|_| Outcome::Refused(why.clone())));
                }
                Err(WriteError::Refused(_)) => {
                    let middle = records.len() / 2;
                    self.write_all(epoch, &heads[..middle], &records[..middle], outcomes);
                    return self.write_all(epoch, &heads[middle..], &records[middle..], outcomes);
                }
                Err(WriteError::Unavailable(why)) => why,
            };
            self.failed(&why);
            let jittered = self.jittered(pause);
            self.interrupt.pause(epoch, jittered);
            pause = (pause * 2).min(self.retry.max);
            let expired = self.expired(heads);
            outcomes.extend((0..expired).map(|_| Outcome::Expired(why.clone())));
            (heads, records) = (&heads[expired..], &records[expired..]);
            if heads.is_empty() {
                return;
            }
        }
    }

    /// Writes records once. A panic in the client of another system must not end the node.
    fn attempt(&mut self, records: &[Record]) -> Result<(), WriteError> {
        let sink = &mut self.sink;
        catch_unwind(AssertUnwindSafe(|| sink.write(records))).unwrap_or_else(|_| {
            self.sink = self.target.open();
            let why = "an error within the client of the other system; please report it with the log";
            Err(WriteError::Unavailable(why.to_owned()))
        })
    }

    /// Number of records at the beginning that are too old.
    fn expired(&self, heads: &[Head]) -> usize {
        if self.retry.expire.is_zero() {
            return 0;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_old = |head: &&Head| now.saturating_sub(head.received) > self.retry.expire;
        heads.iter().take_while(is_old).count()
    }

    fn succeeded(&self) {
        self.set_failing(false);
        sync::lock(&self.view).last_write = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    }

    fn set_failing(&self, is_failing: bool) {
        if let Some(failing) = sync::lock(&self.view).failing.get_mut(self.lane) {
            *failing = is_failing.then(|| failing.unwrap_or_else(Instant::now));
        }
    }

    fn failed(&self, why: &str) {
        self.set_failing(true);
        let mut view = sync::lock(&self.view);
        view.retries += 1;
        if view.last_error.as_deref() != Some(why) {
            view.last_error = Some(why.to_owned());
        }
    }

    /// Varies a pause by a quarter, so that several nodes do not come at the same time.
    fn jittered(&mut self, pause: Duration) -> Duration {
        let quarter = pause / 4;
        let spread = u64::try_from(quarter.as_micros()).unwrap_or(u64::MAX).saturating_mul(2).max(1);
        pause - quarter + Duration::from_micros(self.random.draw() % spread)
    }
}

/// An item without its record.
#[derive(Clone, Copy, Debug)]
struct Head {
    sequence: u64,
    bytes: usize,
    received: Duration,
}

impl Head {
    fn split(item: Item) -> (Self, Record) {
        let Item { sequence, record, received_ms } = item;
        let received = Duration::from_millis(received_ms);
        (Self { sequence, bytes: record.bytes(), received }, record)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    struct Nowhere;

    impl Target for Nowhere {
        fn render(&self, _: &rules::Value) -> Result<Record, rules::RenderError> {
            Ok(Record::default())
        }

        fn field_names(&self) -> Vec<String> {
            Vec::new()
        }

        fn open(&self) -> Box<dyn Sink> {
            panic!("the sink does not panic")
        }
    }

    /// A system that refuses records with the field `bad`, and is away for some attempts.
    struct Scripted {
        away: u32,
        written: Arc<Mutex<Vec<Vec<u8>>>>,
        interrupt: Arc<Interrupt>,
        /// Number of attempts after which the action is stopped.
        stops_after: Option<u32>,
    }

    impl Sink for Scripted {
        fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
            if let Some(left) = &mut self.stops_after {
                *left -= 1;
                if *left == 0 {
                    self.interrupt.stop();
                }
            }
            if self.away > 0 {
                self.away -= 1;
                return Err(WriteError::Unavailable("it is away".into()));
            }
            let fields: Vec<_> =
                records.iter().map(|record| record.fields[0].clone().unwrap().to_vec()).collect();
            if fields.iter().any(|field| field == b"bad") {
                return Err(WriteError::Refused("it is bad".into()));
            }
            sync::lock(&self.written).extend(fields);
            Ok(())
        }

        fn test(&mut self) -> Result<String, WriteError> {
            Ok(String::new())
        }
    }

    fn run(
        texts: &[&str],
        away: u32,
        stops_after: Option<u32>,
        expire: Duration,
    ) -> (Vec<Outcome>, Vec<String>, WritersView) {
        let (batches, received) = sync_channel(1);
        let (reports, reported) = channel();
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let written = Arc::new(Mutex::default());
        let (interrupt, view) = (Arc::new(Interrupt::default()), Arc::new(Mutex::new(WritersView::new(1))));
        let sink = Scripted { away, written: written.clone(), interrupt: interrupt.clone(), stops_after };
        let item = |text: &&str| {
            let record = Record { fields: vec![Some(text.as_bytes().into())], id: 0 };
            Item { sequence: 0, record, received_ms: 1 }
        };
        batches.send(Batch { items: texts.iter().map(item).collect(), epoch: 0 }).unwrap();
        drop(batches);
        let millisecond = Duration::from_millis(1);
        let writer = Writer {
            lane: 0,
            sink: Box::new(sink),
            target: Arc::new(Nowhere),
            batches: received,
            reports,
            waker,
            interrupt,
            view: view.clone(),
            retry: Retry { min: millisecond, max: millisecond * 2, expire },
            random: Random::new(1),
        };
        writer.run();
        let report = reported.recv().unwrap();
        let outcomes = report.results.into_iter().map(|result| result.outcome).collect();
        let texts =
            sync::lock(&written).iter().map(|text| String::from_utf8(text.clone()).unwrap()).collect();
        let view = sync::lock(&view).clone();
        (outcomes, texts, view)
    }

    #[test]
    fn refused_records_are_found_and_the_others_are_written_in_order() {
        let (outcomes, written, _) = run(&["a", "bad", "b", "c", "bad", "bad", "d"], 0, None, Duration::ZERO);
        let is_refused: Vec<_> = outcomes.iter().map(|it| matches!(it, Outcome::Refused(_))).collect();
        assert_eq!(is_refused, [false, true, false, false, true, true, false]);
        assert_eq!(written, ["a", "b", "c", "d"]);
    }

    #[test]
    fn attempts_are_repeated_until_the_system_is_back() {
        let (outcomes, written, view) = run(&["a", "b"], 5, None, Duration::ZERO);
        assert_eq!(outcomes, [Outcome::Written, Outcome::Written]);
        assert_eq!(written, ["a", "b"]);
        assert_eq!((view.retries, view.failing_since()), (5, None));
        assert_eq!(view.last_error.as_deref(), Some("it is away"));
    }

    #[test]
    fn a_stop_abandons_what_is_not_written() {
        let (outcomes, written, view) = run(&["a", "b"], u32::MAX, Some(3), Duration::ZERO);
        assert_eq!(outcomes, [Outcome::Abandoned, Outcome::Abandoned]);
        assert!(written.is_empty());
        assert_eq!((view.failing_since(), view.retries > 0), (None, true), "nothing is repeated any more");
    }

    #[test]
    fn old_records_are_given_up() {
        let (outcomes, ..) = run(&["a", "b"], u32::MAX, None, Duration::from_secs(1));
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Expired(_))), "{outcomes:?}");
    }
}
