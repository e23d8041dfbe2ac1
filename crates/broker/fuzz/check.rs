//! Invariants of a node for any behaviour of its clients. Used by cargo-fuzz and, without it, by `tests/fuzz.rs`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::settings::{PublishDenied, QueueFull, Settings, SharedStrategy};
use broker::{Batch, Counters, Node, Published, Then, Time, Worker, WorkerCommand, WorkerId};
use settings::ByteSize;

use crate::access::Moody;
use crate::peer::Peer;
use crate::program::{Op, decode};

/// Runs `input` as a program. Panics when the node contradicts itself, sends a packet out of turn, or leaves state
/// behind.
pub fn check(input: &[u8]) {
    let (variant, ops) = decode(input);
    let mut simulation = Simulation::new(variant);
    for op in ops {
        simulation.apply(op);
        simulation.check_invariants();
    }
    simulation.end();
}

struct Simulation {
    node: Arc<Node>,
    access: Arc<Moody>,
    workers: Vec<Worker>,
    now: Time,
    peers: Vec<Peer>,
    peers_by_slot: HashMap<(usize, u32), usize>,
    wires: BTreeMap<(usize, usize), VecDeque<Batch>>,
    /// Commands from other threads.
    posted: Arc<Mutex<Vec<(WorkerId, WorkerCommand)>>>,
}

/// Limits that a short program reaches.
fn settings(variant: u8) -> Settings {
    let mut settings = Settings::default();
    let bit = |at: u8| variant >> at & 1 != 0;
    settings.queue.messages_max = 3;
    settings.queue.bytes_max = ByteSize::kib(2);
    settings.queue.unsent_bytes_max = ByteSize::kib(4);
    settings.queue.full = if bit(0) { QueueFull::DropNewest } else { QueueFull::DropOldest };
    settings.mqtt.receive_max = 3;
    settings.mqtt.inflight_max = 3;
    settings.mqtt.topic_alias_max = 2;
    settings.mqtt.topic_alias_outbound_max = 2;
    settings.mqtt.packet_size_max = ByteSize::kib(8);
    settings.mqtt.publish_denied = if bit(1) { PublishDenied::Disconnect } else { PublishDenied::Reason };
    settings.session.subscriptions_max = 6;
    settings.session.sessions_max = 5;
    settings.retained.messages_max = 6;
    settings.limits.messages_per_second = if bit(2) { 2 } else { 0 };
    settings.limits.memory_queued_max = if bit(3) { ByteSize::kib(6) } else { ByteSize::mib(64) };
    settings.shared.strategy = match variant >> 4 & 3 {
        0 => SharedStrategy::RoundRobin,
        1 => SharedStrategy::Sticky,
        2 => SharedStrategy::Local,
        _ => SharedStrategy::Random,
    };
    settings.sys.interval = if bit(6) { Duration::from_secs(10) } else { Duration::ZERO };
    settings
}

const WORKERS: u16 = 2;
const PEERS_MAX: usize = 64;
/// Maximum number of batches between workers that one operation may lead to.
const STEPS_MAX: usize = 20_000;

impl Simulation {
    fn new(variant: u8) -> Self {
        let access = Arc::new(Moody::default());
        let node = Node::new(settings(variant), access.clone(), "fuzz".into(), WORKERS, [7; 16]);
        let posted: Arc<Mutex<Vec<_>>> = Arc::default();
        let post = posted.clone();
        node.set_mailbox(move |worker, command| {
            post.lock().expect("nothing panics while it holds this").push((worker, command));
        });
        let workers = node.build_workers();
        Self {
            node,
            access,
            workers,
            now: Time(0),
            peers: Vec::new(),
            peers_by_slot: HashMap::new(),
            wires: BTreeMap::new(),
            posted,
        }
    }

    fn apply(&mut self, op: Op) {
        let count = self.peers.len().max(1);
        let at = |peer: u8| usize::from(peer) % count;
        match op {
            Op::Open { worker } if self.peers.len() < PEERS_MAX => self.open(usize::from(worker)),
            Op::Open { .. } => {}
            Op::Send { peer, bytes } => {
                if let Some(peer) = self.peers.get_mut(at(peer)).filter(|peer| !peer.gone) {
                    peer.send(&bytes);
                }
                self.offer(at(peer));
            }
            Op::Answer { peer } => {
                if let Some(peer) = self.peers.get_mut(at(peer)).filter(|peer| !peer.gone) {
                    let bytes = peer.answers();
                    peer.send(&bytes);
                }
                self.offer(at(peer));
            }
            Op::Pass { time } => self.pass(JUMPS_MS[usize::from(time) % JUMPS_MS.len()], time & 0x80 == 0),
            Op::Lose { peer } => self.lose(at(peer)),
            Op::Turn { peer } => {
                let at = at(peer);
                if let Some(peer) = self.peers.get_mut(at) {
                    peer.stopped = !peer.stopped;
                    let bytes = if peer.stopped { 0 } else { usize::MAX };
                    self.take_output(at, bytes);
                }
            }
            Op::Read { peer } => self.take_output(at(peer), 100 + 7 * usize::from(peer)),
            Op::Step { wire } => {
                self.step(usize::from(wire));
            }
            Op::Run => self.run(),
            Op::AuthResult { allow } => {
                self.access.make_up_its_mind(allow);
            }
            Op::Stop { worker } => self.workers[usize::from(worker % WORKERS as u8)].stop(self.now),
        }
        self.end_turns();
    }

    fn open(&mut self, worker: usize) {
        let worker = worker % self.workers.len();
        let id = self.workers[worker].open(self.now, None);
        assert!(self.peers_by_slot.insert((worker, id.slot), self.peers.len()).is_none(), "a slot in use");
        self.peers.push(Peer::new(worker, id.slot));
    }

    fn offer(&mut self, at: usize) {
        let Some(peer) = self.peers.get_mut(at) else { return };
        if peer.gone || peer.held || peer.unsent.is_empty() {
            return;
        }
        let received = self.workers[peer.worker].receive(self.now, peer.slot, &peer.unsent);
        assert!(received.consumed <= peer.unsent.len());
        peer.unsent.drain(..received.consumed);
        match received.then {
            Then::Read { packet_len } => {
                assert!(peer.unsent.is_empty() || packet_len == 0 || packet_len > peer.unsent.len());
            }
            Then::Hold => peer.held = true,
            Then::Close => peer.unsent.clear(),
        }
    }

    fn take_output(&mut self, at: usize, bytes: usize) {
        let Some(peer) = self.peers.get_mut(at).filter(|peer| !peer.gone) else { return };
        let worker = &mut self.workers[peer.worker];
        let out = worker.output(peer.slot).expect("an open connection has an output");
        let mut left = out.len().min(bytes);
        let any = left > 0;
        while left > 0 {
            let pending = out.pending();
            let count = pending.len().min(left);
            peer.receive(&pending[..count]);
            out.advance(count);
            left -= count;
        }
        let empty = out.is_empty();
        if any {
            worker.written(self.now, peer.slot);
        }
        if worker.is_closing(peer.slot) && (empty || worker.is_overdue(peer.slot)) {
            self.vacate(at);
        }
    }

    fn lose(&mut self, at: usize) {
        let Some(peer) = self.peers.get(at).filter(|peer| !peer.gone) else { return };
        self.workers[peer.worker].lost(self.now, peer.slot);
        self.vacate(at);
    }

    fn vacate(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        peer.gone = true;
        self.workers[peer.worker].vacate(peer.slot);
        self.peers_by_slot.remove(&(peer.worker, peer.slot));
    }

    fn pass(&mut self, milliseconds: u64, punctual: bool) {
        self.now = Time(self.now.0 + milliseconds);
        if punctual {
            self.tick();
        }
    }

    fn tick(&mut self) {
        for worker in &mut self.workers {
            if worker.next_timeout() <= self.now {
                worker.tick(self.now);
            }
        }
    }

    fn run(&mut self) {
        // Each wire in its turn: as between threads, none waits for ever for another.
        for wire in 0..STEPS_MAX {
            self.end_turns();
            if !self.step(wire) {
                return;
            }
        }
        panic!("workers write to each other without end");
    }

    /// Delivers one batch; returns false when there is none.
    fn step(&mut self, wire: usize) -> bool {
        let count = self.wires.len().max(1);
        let Some(&(from, to)) = self.wires.keys().nth(wire % count) else { return false };
        let wire = self.wires.get_mut(&(from, to)).expect("it has a key");
        let batch = wire.pop_front();
        if wire.is_empty() {
            self.wires.remove(&(from, to));
        }
        if let Some(mut batch) = batch {
            self.workers[to].take_batch(self.now, &mut batch);
            batch.recycle(0);
        }
        true
    }

    fn end_turns(&mut self) {
        for (worker, command) in self.posted.lock().expect("nothing panics while it holds this").drain(..) {
            let (from, to) = (self.workers.len(), worker.index());
            self.wires.entry((from, to)).or_default().push_back(Batch::of(command));
        }
        for from in 0..self.workers.len() {
            self.flush(from);
            for to in 0..self.workers.len() {
                let outgoing = self.workers[from].outgoing(WorkerId(to as u16));
                if !outgoing.is_empty() {
                    let batch = std::mem::take(outgoing);
                    self.wires.entry((from, to)).or_default().push_back(batch);
                }
            }
            self.workers[from].end_turn();
        }
    }

    /// Writes, closes and wakes connections until nothing is left to do.
    fn flush(&mut self, worker: usize) {
        let mut slots = Vec::new();
        for _ in 0..STEPS_MAX {
            self.workers[worker].take_dirty(&mut slots);
            let dirty = std::mem::take(&mut slots);
            for slot in &dirty {
                if let Some(at) = self.peers_by_slot.get(&(worker, *slot)).copied() {
                    let bytes = if self.peers[at].stopped { 0 } else { usize::MAX };
                    self.take_output(at, bytes);
                }
            }
            self.workers[worker].take_woken(&mut slots);
            let woken = std::mem::take(&mut slots);
            for slot in &woken {
                if let Some(at) = self.peers_by_slot.get(&(worker, *slot)).copied() {
                    self.peers[at].held = false;
                    self.offer(at);
                }
            }
            if dirty.is_empty() && woken.is_empty() {
                return;
            }
        }
        panic!("a connection keeps its worker busy without end");
    }

    fn check_invariants(&self) {
        for worker in &self.workers {
            worker.check_invariants();
        }
    }

    /// Disconnects all clients and lets all timers fire; then no state may be left.
    fn end(mut self) {
        while self.access.make_up_its_mind(0) {}
        self.end_turns();
        self.run();
        for at in 0..self.peers.len() {
            self.lose(at);
        }
        for milliseconds in [0, 8 * 24 * 3_600_000, 200, 10_000, 200] {
            self.pass(milliseconds, true);
            self.end_turns();
            self.run();
            self.check_invariants();
        }
        for worker in &self.workers {
            worker.check_quiet();
        }
        assert_eq!(self.node.routes.len(), 0, "routes are left");
        let sum = |figure: fn(&Published) -> u64| self.node.published.iter().map(figure).sum::<u64>();
        assert_eq!(sum(|worker| Published::get(&worker.queued_bytes)), 0);
        assert_eq!(sum(|worker| Published::get(&worker.offline_bytes)), 0);
        let total = |counter: fn(&Counters) -> u64| {
            self.workers.iter().map(|worker| counter(worker.counters())).sum::<u64>()
        };
        assert_eq!(total(|c| c.connections_opened), total(|c| c.connections_closed));
        assert_eq!(total(|c| c.clients_connected), total(|c| c.clients_disconnected));
        assert_eq!(total(|c| c.subscriptions_added), total(|c| c.subscriptions_removed));
    }
}

const JUMPS_MS: [u64; 8] = [1, 60, 120, 1_000, 5_200, 11_000, 120_000, 3 * 24 * 3_600_000];
