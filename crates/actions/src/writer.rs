//! The thread of one connection to another system: it writes batches and repeats what fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mio::Waker;
use random::Random;
use sinks::{ActionSettings, Record, Sink, Target, WriteError};

use crate::lane::{Batch, Failures, Item, Outcome, Written};

/// Number of failed attempts after which the records of a batch are written one by one.
const BATCH_ATTEMPTS: u32 = 3;
/// Maximum number of records in a row that are tried although the ones before them fail.
const PROBES_MAX: u32 = 64;

/// Result of a batch.
#[derive(Debug)]
pub struct Report {
    pub lane: usize,
    pub epoch: u64,
    pub results: Vec<Written>,
    /// Records that are to be written again, in their order. `None` while the writer is still busy with the batch.
    pub again: Option<Vec<Item>>,
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
    /// Number of counted attempts after which a record is given up; zero is no limit.
    pub attempts_max: u32,
}

impl Retry {
    pub fn of(settings: &ActionSettings) -> Self {
        Self {
            min: settings.retry_min,
            max: settings.retry_max,
            expire: settings.expire,
            attempts_max: settings.attempts_max.into(),
        }
    }

    /// Pause after this number of failed attempts.
    fn pause_after(&self, attempts: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.min.saturating_mul(factor).min(self.max)
    }
}

/// State of the writers of an action, for operators.
#[derive(Clone, Debug, Default)]
pub struct WritersView {
    /// Time since which no attempt of a writer has succeeded, while one is to be repeated.
    failing: Vec<Option<Instant>>,
    pub last_error: Option<String>,
    pub retries: u64,
    /// Number of successful writes of all writers.
    successes: u64,
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
            let mut verdicts = Vec::with_capacity(heads.len());
            self.write_all(epoch, &heads, &records, &mut verdicts);
            let (mut results, mut again) = (Vec::with_capacity(heads.len()), Vec::new());
            for ((head, record), verdict) in heads.into_iter().zip(records).zip(verdicts) {
                match verdict {
                    Verdict::Done(outcome) => {
                        results.push(Written { sequence: head.sequence, bytes: head.bytes, outcome });
                    }
                    Verdict::Again(failures) => again.push(Head { failures, ..head }.join(record)),
                }
            }
            self.set_failing(!again.is_empty());
            let mut again = Some(again);
            if let Some(attempts) = again.iter().flatten().map(|item| item.failures.attempts).max() {
                let items = again.take();
                // Messages that are complete must not wait for the pause.
                if !self.report(epoch, results, None) {
                    return;
                }
                results = Vec::new();
                let pause = self.retry.pause_after(attempts);
                let jittered = self.jittered(pause);
                self.interrupt.pause(epoch, jittered);
                again = items;
            }
            if !self.report(epoch, results, again) {
                return;
            }
        }
    }

    /// Returns false when nobody reads reports any more.
    fn report(&self, epoch: u64, results: Vec<Written>, again: Option<Vec<Item>>) -> bool {
        let is_sent = self.reports.send(Report { lane: self.lane, epoch, results, again }).is_ok();
        // The driver looks for reports twice a second, too.
        let _ = self.waker.wake();
        is_sent
    }

    /// Writes records until each has a verdict. Records that the other system refuses are found by halving.
    fn write_all(
        &mut self,
        epoch: u64,
        mut heads: &[Head],
        mut records: &[Record],
        verdicts: &mut Vec<Verdict>,
    ) {
        if heads.iter().any(|head| head.failures.attempts > 0) {
            return self.write_each(epoch, heads, records, verdicts);
        }
        let (mut attempts, mut failures) = (0, 0);
        loop {
            if self.interrupt.abandons(epoch) {
                return verdicts.extend(heads.iter().map(|_| Verdict::Done(Outcome::Abandoned)));
            }
            let why = match self.attempt(records) {
                Ok(()) => {
                    self.succeeded();
                    return verdicts.extend(heads.iter().map(|_| Verdict::Done(Outcome::Written)));
                }
                Err(WriteError::Refused(why)) if records.len() < 2 => {
                    self.set_failing(false);
                    return verdicts
                        .extend(heads.iter().map(|_| Verdict::Done(Outcome::Refused(why.clone()))));
                }
                Err(WriteError::Refused(_)) => {
                    let middle = records.len() / 2;
                    self.write_all(epoch, &heads[..middle], &records[..middle], verdicts);
                    // Records stay in their order.
                    if matches!(verdicts.last(), Some(Verdict::Again(_))) {
                        return verdicts.extend(heads[middle..].iter().map(Head::again));
                    }
                    return self.write_all(epoch, &heads[middle..], &records[middle..], verdicts);
                }
                Err(WriteError::Failed(why)) => {
                    failures += 1;
                    why
                }
                Err(WriteError::Unavailable(why)) => {
                    failures = 0;
                    why
                }
            };
            self.failed(&why);
            attempts += 1;
            let pause = self.retry.pause_after(attempts);
            let jittered = self.jittered(pause);
            self.interrupt.pause(epoch, jittered);
            let expired = heads.iter().take_while(|head| self.is_expired(head)).count();
            verdicts.extend((0..expired).map(|_| Verdict::Done(Outcome::Expired(why.clone()))));
            (heads, records) = (&heads[expired..], &records[expired..]);
            if heads.is_empty() {
                return;
            }
            if failures >= BATCH_ATTEMPTS && self.retry.attempts_max > 0 {
                return self.write_each(epoch, heads, records, verdicts);
            }
        }
    }

    /// Writes records one by one, because one of them may be the reason why their batch fails. Those that fail are to
    /// be written again, with others that show whether the system is there.
    fn write_each(&mut self, epoch: u64, heads: &[Head], records: &[Record], verdicts: &mut Vec<Verdict>) {
        // Each time more records are tried, so that one that is written is found after many that always fail.
        let first = heads.first().map_or(0, |head| head.failures.attempts);
        let probes_max = first.saturating_add(2).min(PROBES_MAX) as usize;
        // Records that have failed since the last one that was written.
        let mut row: Vec<usize> = Vec::new();
        let base = verdicts.len();
        for (at, head) in heads.iter().enumerate() {
            if self.interrupt.abandons(epoch) {
                return verdicts.extend(heads[at..].iter().map(|_| Verdict::Done(Outcome::Abandoned)));
            }
            let verdict = self.write_one(head.failures, head, &records[at..=at]);
            let failures = match &verdict {
                Some(Verdict::Again(failures)) => Some(*failures),
                Some(Verdict::Done(_)) => None,
                None => {
                    let failures = head.failures.without_answer();
                    verdicts.push(Verdict::Again(failures));
                    return verdicts.extend(heads[at + 1..].iter().map(Head::again));
                }
            };
            let is_written = matches!(verdict, Some(Verdict::Done(Outcome::Written)));
            verdicts.extend(verdict);
            row.extend(failures.map(|_| at));
            if row.len() >= probes_max {
                return verdicts.extend(heads[at + 1..].iter().map(Head::again));
            }
            if !is_written {
                continue;
            }
            // If the system is back since a moment ago, the earlier records must not wait for the later ones.
            for earlier in row.drain(..) {
                let Some(Verdict::Again(failures)) = verdicts.get(base + earlier) else { continue };
                if failures.counted == 0
                    && let Some(verdict) =
                        self.write_one(*failures, &heads[earlier], &records[earlier..=earlier])
                {
                    verdicts[base + earlier] = verdict;
                }
            }
        }
    }

    /// Writes a record once. `None`: the system cannot be reached.
    fn write_one(&mut self, failures: Failures, head: &Head, record: &[Record]) -> Option<Verdict> {
        let (why, is_reached) = match self.attempt(record) {
            Ok(()) => {
                self.succeeded();
                return Some(Verdict::Done(Outcome::Written));
            }
            Err(WriteError::Refused(why)) => {
                self.set_failing(false);
                return Some(Verdict::Done(Outcome::Refused(why)));
            }
            Err(WriteError::Failed(why)) => (why, true),
            Err(WriteError::Unavailable(why)) => (why, false),
        };
        self.failed(&why);
        if self.is_expired(head) {
            return Some(Verdict::Done(Outcome::Expired(why)));
        }
        if !is_reached {
            return None;
        }
        let failures = failures.with(sync::lock(&self.view).successes);
        Some(match failures.counted >= self.retry.attempts_max {
            true => Verdict::Done(Outcome::GivenUp(why)),
            false => Verdict::Again(failures),
        })
    }

    /// Writes records once. A panic in the client of another system must not end the node.
    fn attempt(&mut self, records: &[Record]) -> Result<(), WriteError> {
        let sink = &mut self.sink;
        catch_unwind(AssertUnwindSafe(|| sink.write(records))).unwrap_or_else(|_| {
            self.sink = self.target.open();
            let why = "an error within the client of the other system; please report it with the log";
            // It may come again with the same record.
            Err(WriteError::Failed(why.to_owned()))
        })
    }

    /// Returns whether a record is too old.
    fn is_expired(&self, head: &Head) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        !self.retry.expire.is_zero() && now.saturating_sub(head.received) > self.retry.expire
    }

    fn succeeded(&self) {
        self.set_failing(false);
        let mut view = sync::lock(&self.view);
        view.successes += 1;
        view.last_write = SystemTime::now().duration_since(UNIX_EPOCH).ok();
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
    failures: Failures,
}

impl Head {
    fn split(item: Item) -> (Self, Record) {
        let Item { sequence, record, received_ms, failures } = item;
        let received = Duration::from_millis(received_ms);
        (Self { sequence, bytes: record.bytes(), received, failures }, record)
    }

    fn join(self, record: Record) -> Item {
        let received_ms = u64::try_from(self.received.as_millis()).unwrap_or(u64::MAX);
        Item { sequence: self.sequence, record, received_ms, failures: self.failures }
    }

    /// The record is to be written again, and was not tried alone.
    fn again(&self) -> Verdict {
        Verdict::Again(self.failures)
    }
}

/// Decision about a record.
#[derive(Debug)]
enum Verdict {
    Done(Outcome),
    /// The record is to be written again, with these failed attempts.
    Again(Failures),
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

    /// A system that refuses records with the field `bad`, fails with the field `poison`, and is away and then broken
    /// for some attempts.
    #[derive(Default)]
    struct Scripted {
        away: u32,
        broken: u32,
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
            if self.broken > 0 {
                self.broken -= 1;
                return Err(WriteError::Failed("it is broken".into()));
            }
            let fields: Vec<_> =
                records.iter().map(|record| record.fields[0].clone().unwrap().to_vec()).collect();
            if fields.iter().any(|field| field == b"bad") {
                return Err(WriteError::Refused("it is bad".into()));
            }
            if fields.iter().any(|field| field == b"poison") {
                return Err(WriteError::Failed("it is poison".into()));
            }
            sync::lock(&self.written).extend(fields);
            Ok(())
        }

        fn test(&mut self) -> Result<String, WriteError> {
            Ok(String::new())
        }
    }

    /// A writer with its channels.
    struct Scene {
        writer: Writer,
        batches: std::sync::mpsc::SyncSender<Batch>,
        reported: Receiver<Report>,
        written: Arc<Mutex<Vec<Vec<u8>>>>,
        _poll: mio::Poll,
    }

    impl Scene {
        fn new(sink: Scripted, expire: Duration, attempts_max: u32) -> Self {
            let (batches, received) = sync_channel(1);
            let (reports, reported) = channel();
            let poll = mio::Poll::new().unwrap();
            let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
            let millisecond = Duration::from_millis(1);
            let written = sink.written.clone();
            let writer = Writer {
                lane: 0,
                interrupt: sink.interrupt.clone(),
                sink: Box::new(sink),
                target: Arc::new(Nowhere),
                batches: received,
                reports,
                waker,
                view: Arc::new(Mutex::new(WritersView::new(1))),
                retry: Retry { min: millisecond, max: millisecond * 2, expire, attempts_max },
                random: Random::new(1),
            };
            Self { writer, batches, reported, written, _poll: poll }
        }

        fn written(&self) -> Vec<String> {
            let written = sync::lock(&self.written);
            written.iter().map(|text| String::from_utf8(text.clone()).unwrap()).collect()
        }
    }

    fn item(text: &str) -> Item {
        let record = Record { fields: vec![Some(text.as_bytes().into())], id: 0 };
        Item { sequence: 0, record, received_ms: 1, failures: Failures::default() }
    }

    fn items(texts: &[&str]) -> Vec<Item> {
        texts.iter().map(|text| item(text)).collect()
    }

    fn run(
        texts: &[&str],
        away: u32,
        stops_after: Option<u32>,
        expire: Duration,
    ) -> (Vec<Outcome>, Vec<String>, WritersView) {
        let mut scene = Scene::new(Scripted { away, stops_after, ..Scripted::default() }, expire, 0);
        scene.batches.send(Batch { items: items(texts), epoch: 0 }).unwrap();
        // The writer ends after the batch.
        scene.batches = sync_channel(1).0;
        let view = scene.writer.view.clone();
        let Scene { writer, reported, written, .. } = scene;
        writer.run();
        let report = reported.recv().unwrap();
        let outcomes = report.results.into_iter().map(|result| result.outcome).collect();
        let texts =
            sync::lock(&written).iter().map(|text| String::from_utf8(text.clone()).unwrap()).collect();
        let view = sync::lock(&view).clone();
        (outcomes, texts, view)
    }

    /// Writes batches as a lane does: what is to be written again comes before the next texts. Returns the outcomes and
    /// the texts of what is still to be written.
    fn run_all(scene: &mut Scene, batches: &[&[&str]]) -> (Vec<Outcome>, Vec<String>) {
        let (mut outcomes, mut again) = (Vec::new(), Vec::new());
        for texts in batches {
            again.extend(items(texts));
            if again.is_empty() {
                continue;
            }
            let (heads, records): (Vec<Head>, Vec<Record>) = again.drain(..).map(Head::split).unzip();
            let mut verdicts = Vec::new();
            scene.writer.write_all(0, &heads, &records, &mut verdicts);
            assert_eq!(verdicts.len(), heads.len());
            for ((head, record), verdict) in heads.into_iter().zip(records).zip(verdicts) {
                match verdict {
                    Verdict::Done(outcome) => outcomes.push(outcome),
                    Verdict::Again(failures) => again.push(Head { failures, ..head }.join(record)),
                }
            }
        }
        let text = |item: Item| String::from_utf8(item.record.fields[0].clone().unwrap().into()).unwrap();
        (outcomes, again.into_iter().map(text).collect())
    }

    fn is_given_up(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::GivenUp(_))
    }

    #[test]
    fn a_record_that_always_fails_while_others_are_written_is_given_up() {
        let mut scene = Scene::new(Scripted::default(), Duration::ZERO, 3);
        let batches: &[&[&str]] = &[&["a", "poison", "b"], &["c"], &["d"]];
        let (outcomes, again) = run_all(&mut scene, batches);
        assert!(!outcomes.iter().any(is_given_up), "{outcomes:?}");
        assert_eq!((scene.written(), again), (strings(&["a", "b", "c", "d"]), strings(&["poison"])));
        let mut scene = Scene::new(Scripted::default(), Duration::ZERO, 3);
        let batches: &[&[&str]] = &[&["a", "poison", "b"], &["c"], &["d"], &["e"]];
        let (outcomes, again) = run_all(&mut scene, batches);
        assert_eq!(outcomes.iter().filter(|outcome| is_given_up(outcome)).count(), 1, "{outcomes:?}");
        assert_eq!((scene.written(), again), (strings(&["a", "b", "c", "d", "e"]), strings(&[])));
    }

    #[test]
    fn without_other_records_that_are_written_none_is_given_up() {
        let mut scene = Scene::new(Scripted::default(), Duration::ZERO, 1);
        let batches: &[&[&str]] = &[&["poison"], &["poison"], &["poison"], &["poison"], &["poison"]];
        let (outcomes, again) = run_all(&mut scene, batches);
        assert_eq!((outcomes, again.len()), (vec![], 5));
        // The first one that is written is found behind them.
        let fresh: &[&str] = &["a"];
        let (heads, records): (Vec<Head>, Vec<Record>) =
            items(&["poison"; 5]).into_iter().chain(items(fresh)).map(Head::split).unzip();
        let mut heads = heads;
        heads[0].failures.attempts = 4;
        let mut verdicts = Vec::new();
        scene.writer.write_all(0, &heads, &records, &mut verdicts);
        let given_up = verdicts.iter().filter(|it| matches!(it, Verdict::Done(Outcome::GivenUp(_)))).count();
        assert_eq!((given_up, scene.written()), (5, strings(&["a"])));
    }

    #[test]
    fn an_outage_of_the_system_gives_no_record_up() {
        for broken in 1..60 {
            let sink = Scripted { broken, ..Scripted::default() };
            let mut scene = Scene::new(sink, Duration::ZERO, 1);
            let batches: &[&[&str]] = &[&["a", "b", "c"], &["d"], &[], &["e"], &[], &[], &["f"]];
            let all = [batches, &[&[][..]; 30][..]].concat();
            let (outcomes, again) = run_all(&mut scene, &all);
            assert_eq!(outcomes, vec![Outcome::Written; 6], "{broken}");
            let mut written = scene.written();
            // The system may be back between two records.
            written.sort();
            assert_eq!(
                (written, again),
                (strings(&["a", "b", "c", "d", "e", "f"]), strings(&[])),
                "{broken}"
            );
        }
    }

    #[test]
    fn a_report_of_what_is_complete_does_not_wait_for_the_rest() {
        let scene = Scene::new(Scripted::default(), Duration::ZERO, 10);
        scene.batches.send(Batch { items: items(&["a", "poison"]), epoch: 0 }).unwrap();
        let Scene { writer, reported, batches, .. } = scene;
        drop(batches);
        writer.run();
        let (first, second) = (reported.recv().unwrap(), reported.recv().unwrap());
        assert_eq!((first.results.len(), first.again.is_none()), (1, true));
        assert_eq!((second.results.len(), second.again.map(|again| again.len())), (0, Some(1)));
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
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
