//! Event loop of a worker: passes events of sockets, other threads and the clock to it, and its output back.

mod accept;
mod half_open;
mod heavy_senders;
mod layered;
mod read;
mod read_until;
mod write;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::admin::ReactorFigures;
use broker::{Batch, Instant, Level, SETTLE_ROUNDS, Time, Worker, WorkerCommand, WorkerId};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::connection_counts::ConnectionCounts;
use crate::layer::Layers;
use crate::listener::{ConnectionPermit, Listener, ListenerSocket};
use crate::mailbox::{Inbox, Mailbox, ReactorCommand, mailbox};
use crate::node::Stopped;
use crate::stream::Stream;
use half_open::HalfOpenConnections;
use heavy_senders::HeavySenders;
use read_until::ReadUntil;

/// Sockets and the worker of the broker that serves them. One thread at a time runs it.
pub struct Reactor {
    worker: Worker,
    index: u16,
    poll: Poll,
    inbox: Inbox,
    mailboxes: Vec<Mailbox>,
    listeners: Vec<Listener>,
    /// State of each listener: whether it may have more to accept, and the earliest time to try.
    accepting: Vec<Accepting>,
    /// Connections by the worker's slots.
    peers: Vec<Option<Peer>>,
    /// Connections that may have more to read.
    ready: Vec<u32>,
    scratch: Vec<u8>,
    /// MQTT bytes that a connection's layers have decoded.
    plain: Vec<u8>,
    dirty: Vec<u32>,
    woken: Vec<u32>,
    spare: Vec<Batch>,
    connection_counts: Arc<ConnectionCounts>,
    connections_max: usize,
    /// Maximum number of TLS handshakes that advance in one turn: each step may cost a signature.
    handshakes_per_turn: usize,
    half_open_connections: HalfOpenConnections,
    /// Overload level of the node at the last check.
    level: Level,
    load_due: Time,
    heavy_senders: HeavySenders,
    reads: ReadUntil,
    /// Time up to which everything that clients sent was read. Timeouts of clients run by it.
    read_until: Time,
    /// Reactor that gets the next connection of a listener that distributes them.
    deal_to: usize,
    /// Clock reading at the node's time `began`.
    clock: Instant,
    began: Time,
    now: Time,
    /// Start of the current turn; `None` while the reactor sleeps.
    turn_begun: Option<Instant>,
    /// Time for which turns have run since it was last taken.
    awake: Duration,
    /// The last poll may have left events.
    may_have_events: bool,
    figures: ReactorFigures,
    figures_due: Time,
    /// Progress of the end of all connections.
    stopping: Option<Stopping>,
    /// The reactor is stopping and has no connections left.
    is_empty: bool,
    stopped: Stopped,
    complained: Time,
}

/// Transport side of a connection.
struct Peer {
    stream: Stream,
    /// Layers between the socket and MQTT, if any.
    layers: Option<Box<Layers>>,
    /// Bytes that the worker could not use yet.
    unprocessed: Vec<u8>,
    /// Length of the packet that `unprocessed` begins, as far as known.
    packet_len: u32,
    marks: PeerMarks,
    _permit: Option<ConnectionPermit>,
}

// A socket of `mio` is larger in debug builds.
const _: () =
    assert!(cfg!(debug_assertions) || size_of::<Option<Peer>>() <= 64, "there is one for each connection");

/// Sleep of a reactor between two turns.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    /// End of the last turn.
    pub since: Instant,
    /// Maximum time until the next turn; `None` is no limit.
    pub timeout: Option<Duration>,
}

impl Rest {
    /// Returns whether the next turn begins at once.
    pub fn is_busy(self) -> bool {
        self.timeout.is_some_and(|timeout| timeout.is_zero())
    }

    /// Latest time of the next turn.
    pub fn until(self) -> Option<Instant> {
        self.timeout.map(|timeout| self.since + timeout)
    }
}

/// Result of a turn.
pub(crate) enum Turn {
    Rests(Rest),
    /// The reactor has stopped. It runs no more turns.
    Ended(Stopped),
}

#[derive(Clone, Copy, Default)]
struct PeerMarks {
    /// The connection is in the list `ready`.
    ready: bool,
    /// The last write was partial: wait until the socket reports that it is writable.
    write_blocked: bool,
    /// The peer has closed its sending side: read on until the end of the stream.
    read_closed: bool,
    /// The worker accepts no bytes until it wakes the connection.
    held: bool,
    /// The connection was not read when it was ready, because it was held.
    read_skipped: bool,
    /// The poll also reports when the socket is writable.
    polls_writable: bool,
    /// The peer has closed TLS or the WebSocket, which is handled later.
    layers_closed: bool,
    /// A write failed. Earlier bytes of the peer are still read, because they may contain a DISCONNECT.
    write_failed: bool,
    /// This side has closed its sending half, and reads until the peer closes too.
    draining: bool,
    /// The CONNECT of this connection has not succeeded yet.
    half_open: bool,
}

/// State of a reactor that has been asked to end.
#[derive(Clone, Copy)]
struct Stopping {
    /// True when the reactor ends with its last connection.
    ends: bool,
    /// Time at which the remaining connections are cut off.
    by: Time,
    /// Time until which the reactor waits for peers that were sent everything.
    drain_by: Time,
}

#[derive(Clone, Copy, Default)]
struct Accepting {
    pending: bool,
    not_before: Time,
}

pub(crate) const WAKER: Token = Token(usize::MAX);
const LISTENERS: usize = usize::MAX / 2;
/// Maximum number of events of one poll.
pub(crate) const EVENTS: usize = 1024;
const SCRATCH: usize = 64 * 1024;
/// Number of commands that end a turn.
const COMMANDS_PER_TURN: usize = 64;
/// Bytes of batches that end a turn, so that a flood of batches does not keep the reactor from its sockets.
const COMMAND_BYTES_PER_TURN: usize = 1024 * 1024;
const FLUSH_ROUNDS: usize = 4;
/// Milliseconds after which a reactor that is awake publishes its counters again.
const FIGURES_MS: u64 = 500;
/// Time that a stopping reactor waits for peers that were sent everything to close. It is longer than most round trips.
/// Otherwise data could arrive at a closed socket, whose reset may overtake the last sent bytes at the peer.
const STOP_DRAIN: Duration = Duration::from_millis(250);
const SPARE_BATCHES: usize = 16;
/// Capacity in record bytes that a spare batch keeps.
const SPARE_BYTES: usize = 1024 * 1024;

impl Reactor {
    /// Creates a reactor. `clock` and `began` are the same moment, by the system's clock and by the node's.
    pub(crate) fn new(
        worker: Worker,
        poll: Poll,
        inbox: Inbox,
        mailboxes: Vec<Mailbox>,
        listeners: Vec<Listener>,
        (clock, began): (Instant, Time),
    ) -> Self {
        Self {
            index: worker.id().0,
            worker,
            poll,
            inbox,
            mailboxes,
            accepting: vec![Accepting::default(); listeners.len()],
            listeners,
            peers: Vec::new(),
            ready: Vec::new(),
            scratch: vec![0; SCRATCH],
            plain: Vec::new(),
            dirty: Vec::new(),
            woken: Vec::new(),
            spare: Vec::new(),
            connection_counts: Arc::default(),
            connections_max: usize::MAX,
            handshakes_per_turn: usize::MAX,
            half_open_connections: HalfOpenConnections::default(),
            level: Level::default(),
            load_due: Time::default(),
            heavy_senders: HeavySenders::default(),
            reads: ReadUntil::default(),
            read_until: began,
            deal_to: 0,
            clock,
            began,
            now: began,
            turn_begun: None,
            awake: Duration::ZERO,
            may_have_events: false,
            figures: ReactorFigures::default(),
            figures_due: Time::default(),
            stopping: None,
            is_empty: false,
            stopped: Stopped::default(),
            complained: Time::default(),
        }
    }

    /// Shares the node's connection counts and its limits.
    pub(crate) fn limited_to(
        mut self,
        connection_counts: Arc<ConnectionCounts>,
        connections_max: usize,
        handshakes_per_turn: usize,
    ) -> Self {
        self.connection_counts = connection_counts;
        self.connections_max = connections_max;
        self.handshakes_per_turn = handshakes_per_turn;
        self
    }

    /// Creates a reactor without sockets and without other reactors, for measurements. [`Self::attach`] adds
    /// connections, [`Self::push`] passes bytes to them, and output is discarded.
    pub fn detached(node: Arc<broker::Node>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let (mailbox, inbox) = mailbox(Waker::new(poll.registry(), WAKER)?);
        let [worker] = <[Worker; 1]>::try_from(node.build_workers())
            .map_err(|_| io::Error::other("a detached reactor needs a node with one worker"))?;
        Ok(Self::new(worker, poll, inbox, vec![mailbox], Vec::new(), (Instant::now(), node.began())))
    }

    /// Adds a connection without a socket; returns its slot.
    pub fn attach(&mut self) -> u32 {
        self.now = self.time();
        let id = self.worker.open(self.now, None);
        self.add_peer(id.slot, Stream::Memory, None, None, PeerMarks::default());
        id.slot
    }

    /// Passes bytes to a connection without a socket, as if they had been read in one piece.
    pub fn push(&mut self, slot: u32, bytes: &[u8]) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.unprocessed.is_empty() {
            let consumed = self.offer(slot, bytes);
            if consumed < bytes.len() {
                self.keep(slot, bytes.to_vec(), consumed);
            }
            return;
        }
        let mut all = std::mem::take(&mut peer.unprocessed);
        all.extend_from_slice(bytes);
        let consumed = self.offer(slot, &all);
        self.keep(slot, all, consumed);
    }

    /// Runs one turn of the loop without sleeping.
    pub fn turn(&mut self) {
        self.now = self.time();
        self.finish_turn();
    }

    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Starts to poll the listeners. The first turn may begin at once.
    pub(crate) fn begin(&mut self) -> Rest {
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            let token = Token(LISTENERS + at);
            let registered = match &mut listener.socket {
                ListenerSocket::Tcp(socket) => {
                    self.poll.registry().register(socket, token, Interest::READABLE)
                }
                ListenerSocket::Unix(socket, _) => {
                    self.poll.registry().register(socket, token, Interest::READABLE)
                }
            };
            if let Err(error) = registered {
                tracing::error!(%error, listener = listener.shared.name, "cannot poll a listener");
            }
        }
        self.rest()
    }

    pub(crate) fn index(&self) -> usize {
        usize::from(self.index)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// File descriptor that is readable when the reactor's sockets have events or another thread has woken it.
    pub(crate) fn poll_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    pub(crate) fn inbox(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// Records that a thread has taken over the reactor.
    pub(crate) fn moved_to(&mut self, thread: usize) {
        self.figures.thread = thread as u16;
        self.figures.moves += 1;
    }

    /// Returns the time for which turns have run since the last call.
    pub(crate) fn take_awake(&mut self) -> Duration {
        std::mem::take(&mut self.awake)
    }

    /// Sleeps until something happens or the time of `rest` is over, and runs a turn.
    pub(crate) fn sleep_and_turn(&mut self, rest: Rest, events: &mut Events) -> Turn {
        self.reads.polls(self.now);
        let poll = &mut self.poll;
        let result = if rest.is_busy() {
            poll_through(poll, events, rest.timeout)
        } else {
            // The rest may have begun on a thread with other reactors.
            let timeout = rest.until().map(|until| until.saturating_duration_since(Instant::now()));
            self.inbox
                .sleep(|wait| poll_through(poll, events, if wait { timeout } else { Some(Duration::ZERO) }))
        };
        if let Err(error) = result {
            complain_about_poll(&error);
        }
        self.run_turn(rest, Some(events))
    }

    /// Runs a turn with the events that sockets have at `now`.
    pub(crate) fn poll_and_turn(&mut self, rest: Rest, now: Instant, events: &mut Events) -> Turn {
        self.reads.polls(self.at(now));
        if let Err(error) = poll_through(&mut self.poll, events, Some(Duration::ZERO)) {
            complain_about_poll(&error);
        }
        self.run_turn(rest, Some(events))
    }

    /// Runs a turn without a look at the sockets.
    pub(crate) fn turn_for_mail(&mut self, rest: Rest) -> Turn {
        self.run_turn(rest, None)
    }

    fn run_turn(&mut self, rest: Rest, events: Option<&mut Events>) -> Turn {
        self.worker.unpark();
        let begun = Instant::now();
        self.turn_begun = Some(begun);
        let waited_since = self.now;
        self.now = self.at(begun);
        let expected = rest.timeout.unwrap_or(Duration::MAX);
        self.reads.waited(self.now, self.now.since(waited_since), expected);
        self.assess_load();
        self.take_mails();
        let has_polled = events.is_some();
        if let Some(events) = events {
            self.handle_events(events);
        }
        self.accept_all();
        self.read_ready();
        if has_polled {
            self.note_reading();
        }
        self.finish_turn();
        if let Some(Stopping { ends, by, drain_by }) = self.stopping {
            if self.now >= drain_by {
                self.end_draining();
            }
            if !ends && self.now >= by {
                self.cut_off_all();
                self.stopping = Some(Stopping { ends, by: Time::NEVER, drain_by });
            }
            if !ends {
                return Turn::Rests(self.rest());
            }
            if (self.worker.connections() == 0 && self.all_are_empty()) || self.now >= by {
                self.stopped.forced += self.worker.connections();
                self.handle_remaining_commands();
                return Turn::Ended(self.stopped);
            }
        }
        Turn::Rests(self.rest())
    }

    fn handle_events(&mut self, events: &mut Events) {
        for event in &*events {
            match event.token() {
                WAKER => {}
                Token(at) if at >= LISTENERS => {
                    if let Some(accepting) = self.accepting.get_mut(at - LISTENERS) {
                        accepting.pending = true;
                    }
                }
                Token(slot) => self.event(slot as u32, event),
            }
        }
        // A full list may not be all.
        self.may_have_events = events.iter().count() >= EVENTS;
        events.clear();
    }

    /// Returns whether no reactor of the node has a connection. Until then, another reactor may have work for the
    /// shards of this one.
    fn all_are_empty(&mut self) -> bool {
        if !std::mem::replace(&mut self.is_empty, true) {
            self.connection_counts.emptied.fetch_add(1, Ordering::AcqRel);
        }
        self.connection_counts.emptied.load(Ordering::Acquire) >= self.mailboxes.len()
    }

    /// Handles the commands that other reactors sent before they ended, because their changes still have to be stored.
    fn handle_remaining_commands(&mut self) {
        while let Some(command) = self.inbox.next() {
            self.handle_command(command);
        }
        self.finish_turn();
    }

    /// Ends a turn. Returns how long the reactor may sleep.
    fn rest(&mut self) -> Rest {
        let since = self.end_of_turn();
        let has_input = !self.ready.is_empty() || !self.woken.is_empty();
        let is_frozen = self.is_frozen();
        let reading = has_input && !self.reads_nothing();
        let accepting =
            |accepting: &Accepting| !is_frozen && accepting.pending && accepting.not_before <= self.now;
        let working = match is_frozen {
            true => self.worker.has_inner_work(),
            false => self.worker.has_work() || !self.dirty.is_empty(),
        };
        let working = working || self.worker.is_behind();
        let busy = reading || working || self.may_have_events || self.accepting.iter().any(accepting);
        if busy {
            return Rest { since, timeout: Some(Duration::ZERO) };
        }
        self.worker.park();
        let mut timeout = self.timeout();
        if is_frozen {
            // The lease does not notify this reactor. What is due at once waits for it too.
            timeout = Some(FROZEN_PAUSE);
        } else if has_input {
            // Another reactor has to catch up first, and it does not notify this one when it has.
            timeout = Some(timeout.map_or(OVERLOAD_PAUSE, |timeout| timeout.min(OVERLOAD_PAUSE)));
        }
        Rest { since, timeout }
    }

    /// Handles commands until the mailbox is empty or the turn has had enough.
    fn take_mails(&mut self) {
        let (mut count, mut weight) = (0, 0);
        while count < COMMANDS_PER_TURN
            && weight < COMMAND_BYTES_PER_TURN
            && let Some(command) = self.inbox.next()
        {
            count += 1;
            weight += command.weight();
            self.handle_command(command);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let paused =
            self.accepting.iter().filter(|accepting| accepting.pending).map(|accepting| accepting.not_before);
        let stopping = self
            .stopping
            .map(|Stopping { by, drain_by, .. }| if drain_by > self.now { drain_by } else { by });
        // The last reactor to become empty does not notify the others.
        let empty = self.is_empty.then(|| Time(self.now.0 + 1));
        let next = paused
            .chain(stopping)
            .chain(empty)
            .chain([
                self.worker.next_timeout(),
                self.half_open_connections.next_deadline(),
                self.heavy_senders.next_choice(),
            ])
            .min()?;
        (next != Time::NEVER).then(|| next.since(self.now).max(Duration::from_millis(1)))
    }

    /// Reports to the worker the time up to which everything that clients sent was read.
    fn note_reading(&mut self) {
        let polls_needed = self.peers.len() / EVENTS;
        if self.is_frozen() {
            return self.reads.pauses(self.now);
        }
        // An overloaded reactor reads nothing, so the silence of clients is not their fault.
        if !self.is_overloaded()
            && let Some(until) =
                self.reads.has_read(self.ready.is_empty() && !self.may_have_events, polls_needed)
        {
            self.read_until = until;
            self.worker.has_read_until(until);
        }
    }

    fn time(&self) -> Time {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> Time {
        self.began.after(instant.saturating_duration_since(self.clock))
    }

    /// Reads the clock, and counts the time of the turn. Returns the time.
    fn end_of_turn(&mut self) -> Instant {
        let now = Instant::now();
        self.now = self.at(now);
        if let Some(begun) = self.turn_begun.take() {
            let took = now.saturating_duration_since(begun);
            self.awake += took;
            self.figures.turn(took);
            self.worker.turn_took(self.now, took);
            self.reads.waited(self.now, took, Duration::ZERO);
        }
        if self.figures_due <= self.now {
            self.figures_due = Time(self.now.0 + FIGURES_MS);
            if self.index == 0 {
                self.figures.door.half_open = self.connection_counts.half_open() as u64;
            }
            self.figures.mailbox_bytes = self.mailboxes[usize::from(self.index)].weight() as u64;
            self.worker.published().refresh_reactor(&self.figures);
        }
        now
    }

    fn handle_command(&mut self, command: ReactorCommand) {
        match command {
            ReactorCommand::Batch { mut batch, .. } => {
                for connection in batch.commands.iter().filter_map(WorkerCommand::revoked) {
                    self.read_last(connection.slot);
                }
                self.worker.take_batch(self.now, &mut batch);
                if self.spare.len() < SPARE_BATCHES {
                    batch.recycle(SPARE_BYTES);
                    self.spare.push(batch);
                }
            }
            ReactorCommand::WorkerCommand(command) => {
                let mut batch = Batch::of(command);
                self.worker.take_batch(self.now, &mut batch);
            }
            ReactorCommand::Adopt { stream, peer, permit, half_open } => {
                self.adopt(stream, peer, permit, half_open)
            }
            ReactorCommand::Close { within } => self.close_all(within, false),
            ReactorCommand::Stop { within } => self.close_all(within, true),
        }
    }

    /// Closes all connections and accepts no others. `ends`: the reactor ends after that.
    fn close_all(&mut self, within: Duration, ends: bool) {
        self.listeners.clear();
        self.accepting.clear();
        if self.stopping.is_none() {
            self.stopped.connections = self.worker.connections();
            self.worker.stop(self.now);
        }
        let by = self.now.after(within);
        self.stopping = Some(Stopping { ends, by, drain_by: self.now.after(STOP_DRAIN).min(by) });
    }

    /// Runs timers, sends batches to other reactors, and writes pending output.
    fn finish_turn(&mut self) {
        if self.worker.next_timeout() <= self.now {
            self.worker.tick(self.now);
        }
        self.reap_half_open();
        for _ in 0..FLUSH_ROUNDS {
            self.settle();
            // The answers to kept packets leave in the same write, such as SUBACK with CONNACK.
            self.offer_woken();
            // Batches leave first: when a client sees an answer, the effects are already on their way to other workers.
            self.send_batches();
            let more = self.flush();
            if !more && !self.worker.has_work() {
                break;
            }
        }
        self.worker.end_turn();
    }

    /// Runs the work that the worker has for itself.
    fn settle(&mut self) {
        let own = WorkerId(self.index);
        for _ in 0..SETTLE_ROUNDS {
            let commands = &self.worker.outgoing(own).commands;
            let revoked: Vec<_> = commands.iter().filter_map(WorkerCommand::revoked).collect();
            for connection in revoked {
                self.read_last(connection.slot);
            }
            if !self.worker.settle_once(self.now) {
                return;
            }
        }
    }

    fn send_batches(&mut self) {
        for (at, mailbox) in self.mailboxes.iter().enumerate() {
            if at == usize::from(self.index) {
                continue;
            }
            let outgoing = self.worker.outgoing(WorkerId(at as u16));
            if outgoing.is_empty() {
                continue;
            }
            let mut batch = self.spare.pop().unwrap_or_default();
            std::mem::swap(&mut batch, outgoing);
            let weight = batch.weight();
            mailbox.send(ReactorCommand::Batch { batch, weight });
        }
        self.worker.send_to_peers();
    }
}

/// Pause before a reactor checks again whether another has caught up.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(1);
/// Pause before a frozen reactor looks again whether its node has a lease.
const FROZEN_PAUSE: Duration = Duration::from_millis(20);

/// Polls again at once when a signal ended the wait. A process that was stopped then reads what arrived meanwhile
/// before timers fire.
fn poll_through(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    let mut result = poll.poll(events, timeout);
    while result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
        result = poll.poll(events, Some(Duration::ZERO));
    }
    result
}

pub(crate) fn complain_about_poll(error: &io::Error) {
    tracing::error!(%error, "polling failed");
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    const CONNECT: &[u8] = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c";
    const PUBLISH: &[u8] = b"\x32\x06\x00\x01t\x00\x07x";
    const PUBACK: &[u8] = b"\x40\x02\x00\x07";

    fn detached() -> (Arc<broker::Node>, Reactor) {
        let settings = broker::settings::Settings::default();
        let access = Arc::new(broker::access::AllowAll);
        let node = broker::Node::new(settings, access, "node".into(), 1, *b"a fixed hash key");
        (node.clone(), Reactor::detached(node).expect("a poller is available"))
    }

    /// Connects a client. Returns its socket, and its slot.
    fn client(reactor: &mut Reactor) -> (UnixStream, u32) {
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        client.set_nonblocking(true).expect("a socket");
        server.set_nonblocking(true).expect("a socket");
        let slot = reactor.attach();
        let server = mio::net::UnixStream::from_std(server);
        reactor.add_peer(slot, Stream::Unix(server), None, None, PeerMarks::default());
        client.write_all(CONNECT).expect("it is read");
        reactor.mark_ready(slot);
        read_turn(reactor);
        assert_eq!(received(&mut client), b"\x20\x02\x00\x00");
        (client, slot)
    }

    /// Reads from the sockets at the time that the turn has, and ends the turn.
    fn read_turn(reactor: &mut Reactor) {
        reactor.read_ready();
        reactor.finish_turn();
    }

    fn received(client: &mut UnixStream) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let count = client.read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    /// The process is stopped in a turn, after the reactor has read the clock. Another node serves the client
    /// meanwhile [MQTT-3.1.4-3].
    #[test]
    fn a_client_is_judged_by_the_time_after_its_bytes_were_read() {
        for freezes in [false, true] {
            let (node, mut reactor) = detached();
            node.freeze_without_lease(freezes);
            let (mut client, slot) = client(&mut reactor);
            reactor.now = reactor.time();
            let until = Time(reactor.now.0 + 1);
            node.set_fresh_until(until);
            client.write_all(PUBLISH).expect("it is read");
            reactor.mark_ready(slot);
            while reactor.time() < until {
                std::thread::yield_now();
            }
            read_turn(&mut reactor);
            assert_eq!(received(&mut client), b"", "freezes: {freezes}");
            node.set_fresh_until(Time::NEVER);
            let end = Instant::now() + Duration::from_secs(20);
            let mut answer = Vec::new();
            while answer.is_empty() && Instant::now() < end {
                reactor.now = reactor.time();
                read_turn(&mut reactor);
                answer = received(&mut client);
            }
            assert_eq!(answer, PUBACK, "freezes: {freezes}");
        }
    }

    /// The process is stopped in a turn, after the reactor has made an answer. Without a lease another node may serve
    /// the client, so a node that freezes keeps the answer.
    #[test]
    fn a_node_that_freezes_looks_at_the_clock_before_it_writes() {
        for freezes in [false, true] {
            let (node, mut reactor) = detached();
            node.freeze_without_lease(freezes);
            let (mut client, slot) = client(&mut reactor);
            reactor.now = reactor.time();
            let until = Time(reactor.now.0 + 1);
            node.set_fresh_until(until);
            reactor.push(slot, PUBLISH);
            while reactor.time() < until {
                std::thread::yield_now();
            }
            reactor.finish_turn();
            let expected: &[u8] = if freezes { b"" } else { PUBACK };
            assert_eq!(received(&mut client), expected, "freezes: {freezes}");
            node.set_fresh_until(Time::NEVER);
            reactor.now = reactor.time();
            reactor.finish_turn();
            let expected: &[u8] = if freezes { PUBACK } else { b"" };
            assert_eq!(received(&mut client), expected, "freezes: {freezes}");
        }
    }

    /// A turn that reads the clock for each socket is for nodes of a cluster.
    #[test]
    fn a_node_alone_does_not_read_the_clock_for_each_socket() {
        let (_, mut reactor) = detached();
        let (mut client, slot) = client(&mut reactor);
        reactor.now = Time(1);
        client.write_all(PUBLISH).expect("it is read");
        reactor.mark_ready(slot);
        reactor.read_ready();
        assert_eq!(reactor.now, Time(1));
    }

    /// A turn ends when it has handled enough commands, by number or by bytes; the rest stays in the mailbox.
    #[test]
    fn one_turn_handles_a_bounded_number_of_commands() {
        for (weight, left) in [
            (1, 200 - COMMANDS_PER_TURN),
            (COMMAND_BYTES_PER_TURN / 4, 196),
            (3 * COMMAND_BYTES_PER_TURN, 199),
        ] {
            let settings = broker::settings::Settings::default();
            let access = Arc::new(broker::access::AllowAll);
            let node = broker::Node::new(settings, access, "node".into(), 1, *b"a fixed hash key");
            let mut reactor = Reactor::detached(node).expect("a poller is available");
            for _ in 0..200 {
                reactor.mailboxes[0].send(ReactorCommand::Batch { batch: Batch::default(), weight });
            }
            reactor.take_mails();
            assert_eq!(reactor.mailboxes[0].weight(), left * weight);
        }
    }
}
