//! The thread of one action: it moves bytes between the consumer and the broker, and batches between the consumer and
//! the writers.

use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bridge::Time;
use broker::admin::{CounterSum, SessionDetail};
use edge::Door;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token, Waker};
use random::Random;

use crate::consumer::{Consumer, Now};
use crate::counters::Counters;
use crate::lane::Batch;
use crate::plan::{Output, Plan};
use crate::writer::{Interrupt, Report, Retry, Writer, WritersView};

const BROKER: Token = Token(0);
const WAKER: Token = Token(1);
/// Maximum time until the view of the action is renewed.
const VIEW: Duration = Duration::from_millis(500);
/// Pause before the next connection to the broker.
const RECONNECT: Duration = Duration::from_millis(200);
/// Longest pause before the next connection to the broker.
const RECONNECT_MAX: Duration = Duration::from_secs(10);
/// Size of a read.
const READ: usize = 64 << 10;
/// Maximum number of reads before batches have their turn.
const READS_AT_ONCE: usize = 8;

/// Request to stop: no further batch, and at most this time for those that are being written.
#[derive(Clone, Copy, Debug)]
pub struct Stop(pub Duration);

/// Facts that the threads of an action tell others.
#[derive(Debug, Default)]
pub struct Published {
    pub view: Mutex<View>,
    /// True while this node leads the shard of the session.
    pub is_here: AtomicBool,
    /// Number of threads of the action that have not ended.
    pub threads: AtomicUsize,
    /// Messages that wait in the session, and those that it has dropped.
    pub queue: Mutex<QueueView>,
}

/// Queue of the session of an action.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueView {
    pub messages: u64,
    pub bytes: u64,
    /// Time that the oldest message has waited.
    pub oldest: Option<Duration>,
    /// Messages that were dropped because the queue was full, or because they waited for too long.
    pub dropped: CounterSum,
}

impl QueueView {
    /// Takes over the state of the session; `None` when there is none.
    pub fn update(&mut self, session: Option<&SessionDetail>) {
        let Some(session) = session else { return self.leave() };
        self.messages = session.queued_messages as u64;
        self.bytes = session.queued_bytes;
        self.oldest = session.oldest_queued;
        self.dropped.add(session.dropped);
    }

    /// Notes that another node has the session.
    pub fn leave(&mut self) {
        *self = Self { dropped: self.dropped, ..Self::default() };
        self.dropped.begin_again();
    }
}

/// State of an action, as its thread said last.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// True while the session is connected and subscribed.
    pub is_connected: bool,
    pub counters: Counters,
    pub in_flight: u64,
    pub last_error: Option<String>,
    /// Time since which the other system has not accepted anything, while something is to be written.
    pub failing_since: Option<Instant>,
    /// Time since which the session is not connected and subscribed.
    pub missing_since: Option<Instant>,
}

/// An action that runs. Dropping it stops its threads at once.
#[derive(Debug)]
pub struct Running {
    stop: SyncSender<Stop>,
    waker: Arc<Waker>,
}

impl Running {
    /// Asks the threads to end.
    pub fn stop(&self, within: Duration) {
        // A second request has no effect.
        let _ = self.stop.try_send(Stop(within));
        let _ = self.waker.wake();
    }
}

/// A thread of an action, until it ends.
struct ThreadMark(Arc<Published>);

impl ThreadMark {
    fn new(published: &Arc<Published>) -> Self {
        published.threads.fetch_add(1, Ordering::AcqRel);
        Self(published.clone())
    }
}

impl Drop for ThreadMark {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An action with its socket and its writers.
struct Driver {
    consumer: Consumer,
    name: String,
    poll: Poll,
    door: Door,
    stop: Receiver<Stop>,
    broker: Option<UnixStream>,
    /// True when the socket may have something to read.
    is_readable: bool,
    writers: Vec<SyncSender<Batch>>,
    reports: Receiver<Report>,
    interrupt: Arc<Interrupt>,
    writers_view: Arc<Mutex<WritersView>>,
    /// Retries of writers that are counted.
    seen_retries: u64,
    published: Arc<Published>,
    clock: Instant,
    reconnect_at: Time,
    /// Attempts to connect since the session was connected and subscribed last.
    attempts: u32,
    missing_since: Option<Instant>,
    /// Reason why the last connection ended.
    lost_why: Option<String>,
    /// End of the time for batches that are being written, when the action stops.
    deadline: Option<Time>,
    buffer: Vec<u8>,
    next_view: Time,
    logged_error: Option<String>,
}

/// Starts the threads of an action. `filters` are those that its session has from earlier settings.
///
/// # Errors
/// The system has no resources for the threads.
pub fn start(
    plan: Arc<Plan>,
    own_id: &str,
    filters: Vec<String>,
    door: &Door,
    published: &Arc<Published>,
) -> io::Result<Running> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(io::Error::other)?;
    let mut random = Random::new(u64::from_le_bytes(seed));
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
    // tidy: allow(unbounded-channel): each writer has at most one batch, and so one report.
    let (reports, reported) = channel();
    let interrupt = Arc::new(Interrupt::default());
    let writers_view = Arc::new(Mutex::new(WritersView::new(usize::from(plan.settings.connections))));
    let name = plan.settings.name.clone();
    let mut writers = Vec::new();
    if let Output::Write(target) = &plan.output {
        for lane in 0..usize::from(plan.settings.connections) {
            let (batches, received) = sync_channel(1);
            let writer = Writer {
                lane,
                sink: target.open(),
                target: target.clone(),
                batches: received,
                reports: reports.clone(),
                waker: waker.clone(),
                interrupt: interrupt.clone(),
                view: writers_view.clone(),
                retry: Retry::of(&plan.settings),
                random: Random::new(random.draw()),
            };
            let mark = ThreadMark::new(published);
            critical::spawn(format!("action-{name}-{lane}"), move || {
                let _mark = mark;
                writer.run();
            })?;
            writers.push(batches);
        }
    }
    let (stop, stopped) = sync_channel(1);
    let counters = sync::lock(&published.view).counters.clone();
    let driver = Driver {
        name: name.clone(),
        seen_retries: 0,
        attempts: 0,
        missing_since: Some(Instant::now()),
        lost_why: None,
        consumer: Consumer::new(plan, own_id, filters, random.draw()).with_counters(counters),
        poll,
        door: door.clone(),
        stop: stopped,
        broker: None,
        is_readable: false,
        writers,
        reports: reported,
        interrupt,
        writers_view,
        published: published.clone(),
        clock: Instant::now(),
        reconnect_at: Time::default(),
        deadline: None,
        buffer: vec![0; READ],
        next_view: Time::default(),
        logged_error: None,
    };
    let mark = ThreadMark::new(published);
    critical::spawn(format!("action-{name}"), move || {
        let _mark = mark;
        driver.run();
    })?;
    Ok(Running { stop, waker })
}

impl Driver {
    fn run(mut self) {
        let mut events = Events::with_capacity(8);
        loop {
            self.take_stop();
            let now = self.now();
            let is_done = self.consumer.is_idle() && self.consumer.has_published_all();
            if self.deadline.is_some_and(|deadline| is_done || deadline <= now.time) {
                break;
            }
            self.consumer.handle_timeout(now);
            self.connect();
            self.take_reports();
            let mut is_busy = self.read();
            is_busy |= self.pass_batches();
            is_busy |= self.write();
            self.publish();
            let due = if is_busy { Duration::ZERO } else { self.next_due() };
            if let Err(error) = self.poll.poll(&mut events, Some(due))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, action = self.name, "action: the socket cannot be polled; the action ends");
                break;
            }
            self.is_readable |= events.iter().any(|event| event.token() == BROKER);
        }
        self.interrupt.stop();
        self.consumer.disconnect();
        self.write();
        self.next_view = Time::default();
        self.broker = None;
        self.publish();
    }

    fn now(&self) -> Now {
        let time = Time(self.clock.elapsed().as_micros() as u64);
        Now { time, wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    fn next_due(&self) -> Duration {
        let now = self.now().time;
        let until = |due: Time| due.since(now);
        let batch = self.consumer.timeout().map_or(VIEW, until);
        let waits_to_connect = self.broker.is_none() && self.deadline.is_none() && self.consumer.is_idle();
        let reconnect = if waits_to_connect { until(self.reconnect_at) } else { VIEW };
        let deadline = self.deadline.map_or(VIEW, until);
        batch.min(reconnect).min(deadline).min(VIEW)
    }

    fn take_stop(&mut self) {
        let within = match self.stop.try_recv() {
            Ok(Stop(within)) => within,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Duration::ZERO,
        };
        self.consumer.stop();
        self.deadline.get_or_insert(self.now().time.after(within));
    }

    /// Connects when that is due. A batch that is being written delays it, because its messages come again.
    fn connect(&mut self) {
        let now = self.now();
        let is_due = self.broker.is_none() && self.reconnect_at <= now.time && self.deadline.is_none();
        if !is_due || !self.consumer.is_idle() {
            return;
        }
        self.note_attempt(now.time);
        let opened = self.door.open().and_then(|stream| {
            stream.set_nonblocking(true)?;
            let mut stream = UnixStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, BROKER, interest)?;
            Ok(stream)
        });
        let opened = opened.map_err(|error| error.to_string()).and_then(|stream| {
            self.consumer.opened(now).map_err(|error| error.to_string())?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                self.broker = Some(stream);
                self.interrupt.begin(self.consumer.epoch());
            }
            Err(error) => tracing::warn!(error, action = self.name, "action: no connection to the broker"),
        }
    }

    fn lost(&mut self, why: &str) {
        if self.attempts < 2 {
            tracing::info!(
                action = self.name,
                why,
                "action: the broker closed the connection; connecting again"
            );
        }
        self.broker = None;
        self.consumer.forget();
        self.interrupt.begin(self.consumer.epoch());
        self.lost_why = Some(why.to_owned());
        self.missing_since.get_or_insert_with(Instant::now);
    }

    /// Notes an attempt to connect, and the time of the next one.
    fn note_attempt(&mut self, now: Time) {
        self.reconnect_at = now.after(reconnect_pause(self.attempts));
        self.attempts += 1;
    }

    fn take_reports(&mut self) {
        while let Ok(Report { lane, epoch, results, again }) = self.reports.try_recv() {
            self.consumer.written(lane, epoch, results, again);
        }
    }

    /// Gives batches that are due to the writers. Returns whether there was one.
    fn pass_batches(&mut self) -> bool {
        let mut has_passed = false;
        while let Some((lane, batch)) = self.consumer.poll_batch(self.now()) {
            has_passed = true;
            let Some(writer) = self.writers.get(lane) else { continue };
            if let Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) = writer.try_send(batch) {
                tracing::error!(action = self.name, "action: a writer has ended; the action stops");
                self.deadline = Some(Time::default());
            }
        }
        has_passed
    }

    fn write(&mut self) -> bool {
        let mut has_written = false;
        while let Some(stream) = &mut self.broker {
            let bytes = self.consumer.outgoing();
            if bytes.is_empty() {
                break;
            }
            match stream.write(bytes) {
                Ok(count) => {
                    self.consumer.sent(count);
                    has_written = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.lost(&error.to_string()),
            }
        }
        has_written
    }

    /// Reads from the broker. Returns whether there may be more.
    fn read(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..READS_AT_ONCE {
            if !self.is_readable || !self.consumer.wants_read() {
                break;
            }
            let Some(stream) = &mut self.broker else { break };
            match stream.read(&mut buffer) {
                Ok(0) => self.lost("it was closed"),
                Ok(count) => {
                    if let Err(reason) = self.consumer.receive(self.now(), &buffer[..count]) {
                        self.lost(&reason.to_string());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.lost(&error.to_string()),
            }
        }
        self.buffer = buffer;
        self.is_readable && self.broker.is_some() && self.consumer.wants_read()
    }

    /// Shows operators the state.
    fn publish(&mut self) {
        let now = self.now().time;
        if now < self.next_view {
            return;
        }
        self.next_view = now.after(VIEW);
        if self.consumer.is_refused() {
            let why = self.consumer.last_error().unwrap_or("a subscription was refused").to_owned();
            self.lost(&why);
        }
        let is_connected = self.broker.is_some() && self.consumer.is_subscribed();
        if is_connected {
            (self.missing_since, self.lost_why, self.attempts) = (None, None, 0);
        }
        let writers = sync::lock(&self.writers_view).clone();
        let counters = self.consumer.counters_mut();
        counters.retries += writers.retries.saturating_sub(self.seen_retries);
        self.seen_retries = writers.retries;
        // An action without another system has no writers, and those of earlier settings have ended.
        counters.last_write = counters.last_write.max(writers.last_write);
        let of_writers = writers.failing_since().zip(writers.last_error.clone());
        let of_broker = self.consumer.failing();
        let of_broker =
            of_broker.map(|(since, why)| (self.clock + Duration::from_micros(since.0), why.clone()));
        let oldest = of_writers.into_iter().chain(of_broker).min_by_key(|(since, _)| *since);
        let failing_since = oldest.as_ref().map(|(since, _)| *since);
        let failing = oldest.map(|(_, why)| why);
        if failing.is_some() && failing != self.logged_error {
            let error = failing.clone().unwrap_or_default();
            tracing::warn!(action = self.name, error, "action: writing failed; repeating it");
        }
        if failing.is_none() && self.logged_error.is_some() {
            tracing::info!(action = self.name, "action: writing works again");
        }
        let last_error = self.consumer.last_error().map(str::to_owned);
        *sync::lock(&self.published.view) = View {
            is_connected,
            missing_since: self.missing_since,
            counters: self.consumer.counters().clone(),
            in_flight: self.consumer.in_flight() as u64,
            last_error: failing.clone().or_else(|| self.lost_why.clone()).or(last_error),
            failing_since,
        };
        self.logged_error = failing;
    }
}

/// Pause after an attempt to connect to the broker, when this number of attempts were in vain before.
fn reconnect_pause(attempts: u32) -> Duration {
    RECONNECT.saturating_mul(1 << attempts.min(6)).min(RECONNECT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_the_next_connection_doubles_up_to_a_maximum() {
        let pauses: Vec<_> = (0..5).map(reconnect_pause).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16].map(|times| RECONNECT * times));
        assert_eq!((reconnect_pause(6), reconnect_pause(u32::MAX)), (RECONNECT_MAX, RECONNECT_MAX));
    }

    /// The shard of the session goes to another node and comes back. A metric never goes back.
    #[test]
    fn drops_of_the_queue_add_up_over_the_times_as_leader() {
        let session = |dropped| SessionDetail {
            shard: broker::ShardId(0),
            epoch: 1,
            inbound: 0,
            expiry: None,
            expires_at: None,
            inflight: 0,
            queued_messages: 2,
            queued_bytes: 20,
            dropped,
            oldest_queued: Some(VIEW),
            waiting_publishers: 0,
            will_due_at: None,
        };
        let mut queue = QueueView::default();
        queue.update(Some(&session(5)));
        assert_eq!((queue.messages, queue.bytes, queue.oldest), (2, 20, Some(VIEW)));
        queue.leave();
        assert_eq!((queue.messages, queue.bytes, queue.oldest), (0, 0, None));
        queue.update(Some(&session(7)));
        queue.update(None);
        assert_eq!(queue.dropped.total(), 12);
    }

    #[test]
    fn a_thread_counts_until_it_ends() {
        let published = Arc::default();
        let marks = [ThreadMark::new(&published), ThreadMark::new(&published)];
        assert_eq!(published.threads.load(Ordering::Acquire), 2);
        drop(marks);
        assert_eq!(published.threads.load(Ordering::Acquire), 0);
    }
}
