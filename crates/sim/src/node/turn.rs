//! Turns of reactors, with the same order of steps as in the product, and the node's ends of connections.

use std::collections::VecDeque;
use std::io::IoSlice;

use broker::{Batch, ConnectionId, OUT_SLICES_MAX, ShardId, Then, WorkerCommand, WorkerId};

use super::{Interrupted, Node, NodeConnection, PausePoint};
use crate::context::Context;
use crate::net::{Direction, Link, Net};
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Maximum number of rounds of writing, as in the edge: a write may cause more output.
const FLUSH_ROUNDS: usize = 4;
/// Turns between two checks of everything.
const TURNS_BETWEEN_CHECKS: u64 = 200;
/// Time after which a reactor without a lease looks at it again.
const FROZEN_PAUSE: Micros = 20 * MILLI;

impl Node {
    /// Opens a client's connection. Returns its worker.
    pub fn open(&mut self, cx: &mut Context, link: Link) -> usize {
        self.open_by(cx, link, 0)
    }

    /// Opens a connection that came by this listener.
    pub fn open_by(&mut self, cx: &mut Context, link: Link, listener: u16) -> usize {
        let worker = cx.random.below(self.workers.len());
        self.begin_turn(cx, worker);
        let slot = self.workers[worker].open(self.now, None).slot;
        if listener > 0 {
            self.workers[worker].set_listener(slot, listener);
        }
        let connection = NodeConnection {
            worker,
            slot,
            inbox: Vec::new(),
            taken: 0,
            held: false,
            reads: true,
            ended: false,
            is_granted: false,
            is_lost: false,
        };
        self.connections.insert(link, connection);
        self.links.insert((worker, slot), link);
        self.wake(cx, worker, 0);
        worker
    }

    /// Handles received bytes.
    pub fn receive(&mut self, cx: &mut Context, net: &mut Net, link: Link, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.inbox.extend_from_slice(bytes);
        let worker = connection.worker;
        self.begin_turn(cx, worker);
        self.has_read(cx, worker);
        self.offer(link);
        self.finish_turn(cx, net, worker);
    }

    /// Handles the loss of the client's end.
    pub fn lost(&mut self, cx: &mut Context, net: &mut Net, link: Link) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        let worker = connection.worker;
        connection.is_lost = true;
        self.begin_turn(cx, worker);
        self.has_read(cx, worker);
        self.end_lost(link);
        self.finish_turn(cx, net, worker);
    }

    /// Ends a connection whose client is gone, unless the worker lets that wait.
    fn end_lost(&mut self, link: Link) {
        let is_frozen = self.is_frozen();
        let Some(connection) =
            self.connections.get_mut(&link).filter(|connection| connection.is_lost && !is_frozen)
        else {
            return;
        };
        let (worker, slot) = (&mut self.workers[connection.worker], connection.slot);
        if worker.defers_end(slot) {
            connection.held = true;
            return;
        }
        worker.lost(self.now, slot);
        self.vacate(link);
    }

    /// Returns whether the node serves the connection.
    pub fn serves(&self, link: Link) -> bool {
        self.connections.get(&link).is_some_and(|connection| !connection.ended)
    }

    /// Sets whether the client reads.
    pub fn set_reads(&mut self, cx: &mut Context, net: &mut Net, link: Link, reads: bool) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.reads = reads;
        let worker = connection.worker;
        if reads && !self.is_paused(cx.now()) {
            self.begin_turn(cx, worker);
            self.write(cx, net, link);
            self.finish_turn(cx, net, worker);
        }
    }

    /// Stops the process until a time: no event for it is handled before. [`PausePoint::BeforeWrite`] may come later,
    /// or never if it writes nothing before that time.
    pub fn pause_process(&mut self, cx: &mut Context, until: Micros, point: PausePoint) {
        if self.is_paused(cx.now()) {
            return;
        }
        match point {
            PausePoint::BetweenTurns => self.stand_still(cx.now(), until),
            PausePoint::BeforeRead => {
                self.interrupt(cx, until);
                self.stand_still(cx.now(), until);
                cx.report.agreed_paused_before_read += 1;
            }
            PausePoint::BeforeWrite => self.stops_before_write = Some(until),
        }
    }

    /// Notes that a turn of some worker has begun, and that it reads from sockets at a time: the process is stopped
    /// until then.
    pub fn interrupt(&mut self, cx: &mut Context, until: Micros) {
        let worker = cx.random.below(self.workers.len());
        self.interrupted = Some(Interrupted { worker, began: self.time(cx), until });
    }

    fn stand_still(&mut self, now: Micros, until: Micros) {
        (self.paused_since, self.paused_until) = (now, until);
        self.stops_before_write = None;
        self.unread = Some(self.closed_for_silence());
    }

    /// Time since which the process stands still, if it does.
    pub fn paused_since(&self, now: Micros) -> Option<Micros> {
        self.is_paused(now).then_some(self.paused_since)
    }

    /// Time until which the process stands still, if it does.
    pub fn paused_until(&self, now: Micros) -> Option<Micros> {
        Some(self.paused_until).filter(|until| *until > now)
    }

    pub fn is_paused(&self, now: Micros) -> bool {
        self.paused_until(now).is_some()
    }

    /// Ends a pause: all data that arrived meanwhile has been read.
    ///
    /// # Panics
    /// Panics when a client was closed by Keep Alive before that [MQTT-3.1.2-24].
    pub fn has_read_all(&mut self, cx: &mut Context, net: &mut Net) {
        if self.is_paused(cx.now()) {
            return;
        }
        self.stops_before_write = None;
        let Some(before) = self.unread.take() else { return };
        assert_eq!(
            self.closed_for_silence(),
            before,
            "a client is closed by Keep Alive before its data is read"
        );
        let readers: Vec<Link> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.reads)
            .map(|(link, _)| *link)
            .collect();
        for link in readers {
            self.begin_turn(cx, self.connections[&link].worker);
            self.write(cx, net, link);
        }
        for worker in 0..self.workers.len() {
            self.begin_turn(cx, worker);
            self.finish_turn(cx, net, worker);
        }
    }

    /// Number of subscriptions whose retained messages continued over another connection.
    pub fn walks_resumed(&self) -> u64 {
        self.workers.iter().map(|worker| worker.counters().retained_scans_resumed).sum()
    }

    /// Returns whether the clients' connections may not be touched now.
    fn is_frozen(&self) -> bool {
        !self.is_stopping && self.node.is_frozen(self.now)
    }

    /// Begins a turn of a worker, which reads the clock. At the end of a pause it may have read the clock before.
    pub(super) fn begin_turn(&mut self, cx: &Context, worker: usize) {
        let is_same = |turn: &&Interrupted| turn.worker == worker && cx.now() <= turn.until;
        let interrupted = self.interrupted.as_ref().filter(is_same);
        self.now = interrupted.map_or_else(|| self.time(cx), |turn| turn.began);
    }

    /// Notes that the worker has read from a socket. In a cluster it reads the clock then.
    fn has_read(&mut self, cx: &Context, worker: usize) {
        if self.workers[worker].needs_time_of_read() {
            self.now = self.time(cx);
            self.interrupted = None;
        }
    }

    /// Returns whether the clients' connections may not be written to now. The worker may read the clock before.
    fn is_frozen_before_write(&mut self, cx: &Context, worker: usize) -> bool {
        if self.workers[worker].needs_time_of_write() {
            self.now = self.time(cx);
        }
        self.is_frozen()
    }

    /// Notes that a reactor leaves its clients alone, or lets it do what it has left undone.
    fn freeze_or_thaw(&mut self, cx: &mut Context, net: &mut Net, worker: usize) {
        let is_frozen = self.is_frozen();
        let was_frozen = std::mem::replace(&mut self.frozen[worker], is_frozen);
        cx.report.agreed_freezes += u64::from(is_frozen && !was_frozen);
        if is_frozen || was_frozen {
            self.last_frozen = Some(cx.now());
        }
        if is_frozen || !was_frozen {
            return;
        }
        let own = self.links.range((worker, 0)..(worker + 1, 0));
        for link in own.map(|(_, link)| *link).collect::<Vec<_>>() {
            self.offer(link);
            self.end_lost(link);
            self.write(cx, net, link);
        }
    }

    fn closed_for_silence(&self) -> u64 {
        self.workers.iter().map(|worker| worker.counters().keep_alive_timeouts).sum()
    }

    /// Last time at which a reactor left its clients alone.
    pub fn last_frozen(&self) -> Option<Micros> {
        self.last_frozen
    }

    fn offer(&mut self, link: Link) {
        // A connection that is over reads nothing, although it takes the bytes.
        self.note_end_if_over(link);
        let is_frozen = self.is_frozen();
        let Some(connection) = self.connections.get_mut(&link) else { return };
        if is_frozen || connection.held || connection.inbox.is_empty() {
            return;
        }
        let received = self.workers[connection.worker].receive(self.now, connection.slot, &connection.inbox);
        connection.inbox.drain(..received.consumed);
        connection.taken += received.consumed as u64;
        match received.then {
            Then::Read { .. } => {}
            Then::Hold => connection.held = true,
            Then::Close => connection.inbox.clear(),
        }
    }

    /// Runs the rest of a turn: timers, batches to other reactors, and output.
    pub(super) fn finish_turn(&mut self, cx: &mut Context, net: &mut Net, worker: usize) {
        self.freeze_or_thaw(cx, net, worker);
        if self.unread.is_none() && !self.frozen[worker] {
            self.workers[worker].has_read_until(self.now);
        }
        if self.workers[worker].next_timeout() <= self.now {
            self.workers[worker].tick(self.now);
        }
        for _ in 0..FLUSH_ROUNDS {
            self.workers[worker].settle(self.now);
            self.send_batches(cx, worker);
            if self.is_stopped_before_write(cx, worker) {
                return;
            }
            let more = self.flush(cx, net, worker);
            if !more && !self.workers[worker].has_work() {
                break;
            }
        }
        self.workers[worker].end_turn();
        self.wakes_next(cx, worker);
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_BETWEEN_CHECKS) {
            self.check_invariants(cx);
        }
        self.send_posted(cx);
        self.schedule_reads(cx);
        if self.observed_log.take_has_work() {
            self.commit_soon(cx);
            self.keep_soon(cx);
        }
    }

    /// Schedules a turn after `delay`, unless an earlier one is scheduled.
    pub(super) fn wake(&mut self, cx: &mut Context, worker: usize, delay: Micros) {
        let at = cx.now() + delay;
        if at < self.wakes[worker] {
            self.wakes[worker] = at;
            cx.at(at, Event::Turn { incarnation: self.incarnation, worker });
        }
    }

    fn wakes_next(&mut self, cx: &mut Context, worker: usize) {
        let worker_has_work = match self.frozen[worker] {
            true => self.workers[worker].has_inner_work(),
            false => self.workers[worker].has_work(),
        };
        if worker_has_work {
            return self.wake(cx, worker, 10);
        }
        let timeout = self.workers[worker].next_timeout();
        let now = self.time(cx);
        // A reactor with work of its own runs its next turn at once, which takes some time here.
        let mut delay = timeout.0.saturating_sub(now.0).saturating_mul(MILLI).max(50);
        if self.frozen[worker] {
            delay = FROZEN_PAUSE;
        }
        if delay < 1 << 50 {
            self.wake(cx, worker, delay);
        }
    }

    fn send_batches(&mut self, cx: &mut Context, from: usize) {
        for to in (0..self.workers.len()).filter(|to| *to != from) {
            let outgoing = self.workers[from].outgoing(WorkerId(to as u16));
            if !outgoing.is_empty() {
                let batch: Batch = std::mem::take(outgoing);
                self.batches.entry((from, to)).or_default().push_back(batch);
                let delay = self.delay(cx);
                cx.after(delay, Event::Batch { incarnation: self.incarnation, from, to });
            }
        }
        self.workers[from].send_to_peers();
    }

    /// Time for which a command stays in a mailbox.
    fn delay(&self, cx: &mut Context) -> Micros {
        if cx.random.percent(2) { cx.between(0, 50 * MILLI) } else { cx.between(1, 300) }
    }

    /// Takes outcomes of SUBACKs of some connections from what was posted.
    pub fn take_announced(&mut self, is_taken: impl Fn(&ConnectionId) -> bool) -> Vec<(ConnectionId, bool)> {
        let mut taken = Vec::new();
        for (_, command) in sync::lock(&self.posted).iter_mut() {
            if let WorkerCommand::Peers(inbound) = command {
                let those = inbound.announced.extract_if(.., |(connection, ..)| is_taken(connection));
                taken.extend(those.map(|(connection, _, is_known)| (connection, is_known)));
            }
        }
        taken
    }

    /// Takes route positions of shards on cores from what was posted.
    pub fn take_route_positions(&mut self) -> Vec<(ShardId, u64)> {
        let mut taken = Vec::new();
        for (_, command) in sync::lock(&self.posted).iter_mut() {
            if let WorkerCommand::Peers(inbound) = command {
                taken.append(&mut inbound.route_positions);
            }
        }
        taken
    }

    /// Takes nodes that know more routes of shards from what was posted.
    pub fn take_route_sources(&mut self) -> Vec<(ShardId, u64)> {
        let mut taken = Vec::new();
        for (_, command) in sync::lock(&self.posted).iter_mut() {
            if let WorkerCommand::Peers(inbound) = command {
                taken.append(&mut inbound.route_sources);
            }
        }
        taken
    }

    pub fn send_posted(&mut self, cx: &mut Context) {
        let posted = std::mem::take(&mut *sync::lock(&self.posted));
        for (worker, command) in posted {
            self.commands[worker.index()].push_back(command);
            let delay = self.delay(cx);
            cx.after(delay, Event::WorkerCommand { incarnation: self.incarnation, worker: worker.index() });
        }
    }

    fn schedule_reads(&mut self, cx: &mut Context) {
        let pending_reads = std::mem::take(&mut *sync::lock(&self.pending_reads));
        for reading in pending_reads {
            let shortest = |queue: &VecDeque<_>| queue.len();
            let reader = usize::from(shortest(&self.readers[1]) < shortest(&self.readers[0]));
            self.readers[reader].push_back(reading);
            let is_slow = cx.has_slow_reads && cx.random.percent(10);
            let delay = if is_slow { cx.between(20 * MILLI, 5 * SECOND) } else { cx.between(50, 20 * MILLI) };
            cx.after(delay, Event::Read { incarnation: self.incarnation, reader });
        }
    }

    /// Stops the process if it is to stop before it writes, and this worker has something to write.
    fn is_stopped_before_write(&mut self, cx: &mut Context, worker: usize) -> bool {
        let Some(until) = self.stops_before_write else { return false };
        let mut slots = Vec::new();
        self.workers[worker].take_dirty(&mut slots);
        if slots.is_empty() {
            return false;
        }
        for slot in &slots {
            if let Some(link) = self.links.get(&(worker, *slot)).copied() {
                self.note_end_if_over(link);
            }
        }
        self.unwritten[worker].append(&mut slots);
        self.interrupted = Some(Interrupted { worker, began: self.now, until });
        self.stand_still(cx.now(), until);
        cx.report.agreed_paused_before_write += 1;
        true
    }

    fn flush(&mut self, cx: &mut Context, net: &mut Net, worker: usize) -> bool {
        if self.is_frozen_before_write(cx, worker) {
            return false;
        }
        let mut slots = std::mem::take(&mut self.slots);
        self.workers[worker].take_dirty(&mut slots);
        slots.append(&mut self.unwritten[worker]);
        let mut any = !slots.is_empty();
        for slot in slots.drain(..) {
            if let Some(link) = self.links.get(&(worker, slot)).copied() {
                self.write(cx, net, link);
            }
        }
        self.workers[worker].take_woken(&mut slots);
        any |= !slots.is_empty();
        for slot in slots.drain(..) {
            if let Some(link) = self.links.get(&(worker, slot)).copied() {
                if let Some(connection) = self.connections.get_mut(&link) {
                    connection.held = false;
                }
                self.offer(link);
                if self.connections.get(&link).is_some_and(|connection| !connection.held) {
                    self.end_lost(link);
                }
            }
        }
        self.slots = slots;
        any
    }

    /// Writes the output of a connection, and closes it when it is finished.
    fn write(&mut self, cx: &mut Context, net: &mut Net, link: Link) {
        self.note_end_if_over(link);
        let Some(worker) = self.connections.get(&link).map(|connection| connection.worker) else { return };
        if self.is_frozen_before_write(cx, worker) {
            return;
        }
        let Some(connection) = self.connections.get(&link) else { return };
        let (slot, reads) = (connection.slot, connection.reads);
        let worker = &mut self.workers[connection.worker];
        if reads && let Some(out) = worker.output(slot) {
            let mut bytes = Vec::new();
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
                let before = bytes.len();
                match out.pending_slices(&mut slices) {
                    0 => bytes.extend_from_slice(out.pending()),
                    count => slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice)),
                }
                out.advance(bytes.len() - before);
            }
            if !bytes.is_empty() {
                worker.written(self.now, slot);
                self.writes += u64::from(!self.is_stopping);
                net.send(cx, link, Direction::ToClient, bytes);
                let granted = worker.owned_session(slot);
                if let Some((session, epoch)) = granted
                    && self.setup.replica.is_some()
                    && let Some(connection) = self.connections.get_mut(&link)
                    && !std::mem::replace(&mut connection.is_granted, true)
                {
                    self.granted.push((link, session, epoch));
                }
            }
        }
        let is_sent = worker.output(slot).is_none_or(|out| out.is_empty());
        if worker.is_closing(slot) && (is_sent || worker.is_overdue(slot)) {
            net.close(cx, link, Direction::ToClient);
            self.vacate(link);
        }
    }

    fn note_end_if_over(&mut self, link: Link) {
        let Some(connection) = self.connections.get(&link) else { return };
        if self.workers[connection.worker].is_closing(connection.slot) {
            self.note_end(link);
        }
    }

    fn note_end(&mut self, link: Link) {
        if let Some(connection) = self.connections.get_mut(&link)
            && !std::mem::replace(&mut connection.ended, true)
        {
            self.ended.push((link, connection.taken));
        }
    }

    fn vacate(&mut self, link: Link) {
        self.note_end(link);
        if let Some(connection) = self.connections.remove(&link) {
            self.workers[connection.worker].vacate(connection.slot);
            self.links.remove(&(connection.worker, connection.slot));
        }
    }
}
