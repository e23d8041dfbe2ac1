//! A node without sockets, threads and clocks: its workers, the batches between them, its clients, and its time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use broker::access::{Access, AllowAll};
use broker::admin::{Admin, Reply};
use broker::settings::Settings;
use broker::spans::SpanQueues;
use broker::{Batch, Level, Node, OUT_SLICES_MAX, Published, Then, Time, Worker, WorkerCommand, WorkerId};
use mqtt::{ReasonCode, Version};

use crate::client::Client;
use crate::log::Log;
use crate::store::{Parcel, Store};
use random::Random;
use testkit::packets::{Connecting, Sent, connack, message};

/// The workers of one node and their clients. Everything that a test does is completed before the call returns, unless
/// the store holds something back or [`Net::step`] is used.
pub struct Net {
    pub node: Arc<Node>,
    pub store: Store,
    workers: Vec<Worker>,
    now: Time,
    clients: Vec<Client>,
    peers_by_slot: HashMap<(usize, u32), Peer>,
    wires: BTreeMap<(usize, usize), VecDeque<(u64, Batch)>>,
    sent: u64,
    shuffle: Option<Random>,
    slots: Vec<u32>,
    /// Commands from threads that are not workers.
    post: Arc<Mutex<Vec<(WorkerId, WorkerCommand)>>>,
}

const HASH_KEY: [u8; 16] = *b"0123456789abcdef";

/// A client's network connection, for as long as the test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub usize);

/// Order in which batches between workers travel.
#[derive(Clone, Copy, Debug)]
pub enum Travel {
    /// The order in which they were sent.
    InOrder,
    /// Shuffled by this seed, but in order between any two workers.
    Shuffled(u64),
}

/// Settings for tests: without `$SYS`, whose messages arrive by themselves.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.sys.interval = std::time::Duration::ZERO;
    settings
}

/// Runs a scenario on one worker and on several, with batches in order and shuffled, and checks that no state is left.
pub fn everywhere(scenario: impl Fn(&mut Net)) {
    everywhere_with(|_| {}, scenario);
}

/// Runs a scenario like [`everywhere`], with other settings.
pub fn everywhere_with(change: impl Fn(&mut Settings), scenario: impl Fn(&mut Net)) {
    everywhere_guarded(change, || Arc::new(AllowAll), |net, _| scenario(net));
}

/// Runs a scenario like [`everywhere_with`], under an access control of the test's.
pub fn everywhere_guarded<A: Access>(
    change: impl Fn(&mut Settings),
    access: impl Fn() -> Arc<A>,
    scenario: impl Fn(&mut Net, &A),
) {
    let shuffled = (1..=4).map(|seed| (3, Travel::Shuffled(seed)));
    for (workers, travel) in [(1, Travel::InOrder), (3, Travel::InOrder)].into_iter().chain(shuffled) {
        let mut settings = settings();
        change(&mut settings);
        let _says_where = SaysWhere(workers, travel);
        let access = access();
        let mut net = Net::of(workers, travel, settings, access.clone());
        scenario(&mut net, &access);
        net.end();
    }
}

struct SaysWhere(u16, Travel);

impl Drop for SaysWhere {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with {} workers, batches travel {:?}", self.0, self.1);
        }
    }
}

impl Net {
    pub fn of(workers: u16, travel: Travel, settings: Settings, access: Arc<dyn Access>) -> Self {
        let node = Node::new(settings, access, "test".into(), workers, *b"0123456789abcdef");
        Self::around(node, travel)
    }

    /// Makes a node that records spans of messages.
    pub fn recording(workers: u16, travel: Travel, settings: Settings, spans: Arc<SpanQueues>) -> Self {
        let node = Node::new(settings, Arc::new(AllowAll), "test".into(), workers, HASH_KEY);
        node.record_spans(spans);
        Self::around(node, travel)
    }

    /// Makes a node with a log; batches that are appended at the start are durable.
    pub fn with_log(workers: u16, settings: Settings, access: Arc<dyn Access>) -> (Self, Arc<Log>) {
        Self::from_log(workers, settings, access, (Arc::default(), Vec::new()))
    }

    /// Makes a node with a log of the test's.
    pub fn with_this_log(workers: u16, settings: Settings, log: Arc<Log>) -> (Self, Arc<Log>) {
        Self::from_log(workers, settings, Arc::new(AllowAll), (log, Vec::new()))
    }

    /// The next incarnation of a node that ends now. It has everything that is durable in its log.
    pub fn after_crash(self, log: &Log) -> (Self, Arc<Log>) {
        self.after_crash_under(log, Arc::new(AllowAll))
    }

    /// The next incarnation, under an access control of the test's.
    pub fn after_crash_under(self, log: &Log, access: Arc<dyn Access>) -> (Self, Arc<Log>) {
        let (workers, settings) = (self.workers.len() as u16, (**self.workers[0].settings()).clone());
        Self::from_log(workers, settings, access, log.killed(HASH_KEY))
    }

    fn from_log(
        workers: u16,
        settings: Settings,
        access: Arc<dyn Access>,
        found: (Arc<Log>, Vec<shard::Shard>),
    ) -> (Self, Arc<Log>) {
        let (mut net, log) = Self::just_started(workers, settings, access, found, Travel::InOrder, None);
        net.run();
        net.sync(&log);
        (net, log)
    }

    /// A restart of a node that ends now, whose workers have had no turn yet.
    pub fn just_after_crash(self, log: &Log, travel: Travel) -> (Self, Arc<Log>) {
        let (workers, settings) = (self.workers.len() as u16, (**self.workers[0].settings()).clone());
        Self::just_started(workers, settings, Arc::new(AllowAll), log.killed(HASH_KEY), travel, None)
    }

    /// Makes a node that records spans of messages, with a log; with `previous`, it has everything that is durable
    /// there.
    pub fn recording_with_log(
        settings: Settings,
        previous: Option<&Log>,
        spans: Arc<SpanQueues>,
    ) -> (Self, Arc<Log>) {
        let found = previous.map(|log| log.killed(HASH_KEY)).unwrap_or_default();
        let access = Arc::new(AllowAll);
        let (mut net, log) = Self::just_started(1, settings, access, found, Travel::InOrder, Some(spans));
        net.run();
        net.sync(&log);
        (net, log)
    }

    fn just_started(
        workers: u16,
        settings: Settings,
        access: Arc<dyn Access>,
        (log, shards): (Arc<Log>, Vec<shard::Shard>),
        travel: Travel,
        spans: Option<Arc<SpanQueues>>,
    ) -> (Self, Arc<Log>) {
        let incarnation = broker::Incarnation::default();
        let store = broker::Store {
            log: Some(log.clone()),
            shards,
            agreements: Vec::new(),
            own: None,
            incarnation,
            hash_key: HASH_KEY,
        };
        let node = Node::with_store(settings, access, "test".into(), workers, store);
        if let Some(spans) = spans {
            node.record_spans(spans);
        }
        let net = Self::around(node, travel);
        net.node.connect_log();
        (net, log)
    }

    /// Makes everything durable that was appended to the log, and what results from that.
    pub fn sync(&mut self, log: &Log) {
        loop {
            log.sync();
            self.run();
            if log.is_synced() {
                return;
            }
        }
    }

    fn around(node: Arc<Node>, travel: Travel) -> Self {
        let post = Arc::<Mutex<Vec<_>>>::default();
        let posted = post.clone();
        node.set_mailbox(move |worker, command| posted.lock().expect("one thread").push((worker, command)));
        Self {
            post,
            workers: node.build_workers(),
            node,
            store: Store::default(),
            now: Time(0),
            clients: Vec::new(),
            peers_by_slot: HashMap::new(),
            wires: BTreeMap::new(),
            sent: 0,
            shuffle: match travel {
                Travel::InOrder => None,
                Travel::Shuffled(seed) => Some(Random::new(seed)),
            },
            slots: Vec::new(),
        }
    }

    /// Interface for operators. The wall clock has no meaning here.
    pub fn admin(&self) -> Admin {
        Admin::new(self.node.clone(), std::time::SystemTime::UNIX_EPOCH, broker::Instant::now())
    }

    /// Sends one request and waits for the answer; `None` when none has arrived.
    pub fn ask<T: Send + 'static>(&mut self, question: impl FnOnce(&Admin, Reply<T>)) -> Option<T> {
        let answer = Arc::<Mutex<Option<T>>>::default();
        let answered = answer.clone();
        let reply = Box::new(move |value| {
            let before = answered.lock().expect("one thread").replace(value);
            assert!(before.is_none(), "one answer");
        });
        question(&self.admin(), reply);
        self.run();
        answer.lock().expect("one thread").take()
    }

    /// Returns whether the server has nothing more to do with a connection but to write its last bytes.
    pub fn is_over(&self, peer: Peer) -> bool {
        let client = &self.clients[peer.0];
        client.gone || self.workers[client.worker].is_closing(client.slot)
    }

    /// The sum of one counter over all workers.
    pub fn counter(&self, counter: impl Fn(&broker::Counters) -> u64) -> u64 {
        self.workers.iter().map(|worker| counter(worker.counters())).sum()
    }

    /// Number of messages that the store knows because their publishers may send them again.
    pub fn identities(&self) -> usize {
        self.workers.iter().map(Worker::identities).sum()
    }

    /// Bytes of messages that wait anywhere, as last published.
    pub fn queued_bytes(&self) -> u64 {
        self.node.published.iter().map(|published| Published::get(&published.queued_bytes)).sum()
    }

    /// Opens a connection to worker `index`, modulo the number of workers, without sending anything.
    pub fn open(&mut self, index: usize, version: Version) -> Peer {
        let worker = index % self.workers.len();
        let id = self.workers[worker].open(self.now, None);
        let peer = Peer(self.clients.len());
        self.clients.push(Client::new(worker, id.slot, version));
        self.peers_by_slot.insert((worker, id.slot), peer);
        peer
    }

    /// Sets the listener of a connection, before CONNECT.
    pub fn came_in_by(&mut self, peer: Peer, listener: u16) {
        let Client { worker, slot, .. } = self.clients[peer.0];
        self.workers[worker].set_listener(slot, listener);
    }

    /// Puts `mailbox_bytes` in the mailbox of the first worker, and nothing in the others. Returns the resulting
    /// overload level of the node.
    pub fn assess_load(&mut self, mailbox_bytes: u64) -> Level {
        let now = self.now;
        let levels: Vec<Level> = self
            .workers
            .iter_mut()
            .enumerate()
            .map(|(id, worker)| worker.assess_load(now, if id == 0 { mailbox_bytes } else { 0 }))
            .collect();
        assert!(
            levels.iter().all(|level| *level == levels[0]),
            "all workers use the highest level: {levels:?}"
        );
        levels[0]
    }

    /// Opens a connection and sends CONNECT; the answer is left for the test.
    pub fn connecting(&mut self, index: usize, connecting: Connecting) -> Peer {
        let peer = self.open(index, connecting.version);
        self.send(peer, connecting);
        peer
    }

    /// Connects a client with a new session.
    pub fn connect(&mut self, index: usize, connecting: Connecting) -> Peer {
        let peer = self.connecting(index, connecting);
        assert_eq!(self.received(peer), [connack(false)]);
        peer
    }

    /// Connects a client with a new session, from this address.
    pub fn connect_from(&mut self, index: usize, from: std::net::SocketAddr, connecting: Connecting) -> Peer {
        let peer = self.open(index, connecting.version);
        let Client { worker, slot, .. } = self.clients[peer.0];
        self.workers[worker].set_peer(slot, from);
        self.send(peer, connecting);
        assert_eq!(self.received(peer), [connack(false)]);
        peer
    }

    /// Connects a client that finds its session.
    pub fn resume(&mut self, index: usize, connecting: Connecting) -> Peer {
        let peer = self.connecting(index, connecting);
        assert_eq!(self.client(peer).next(), Some(connack(true)));
        peer
    }

    pub fn client(&mut self, peer: Peer) -> &mut Client {
        &mut self.clients[peer.0]
    }

    /// Packets that arrived since the last call.
    pub fn received(&mut self, peer: Peer) -> Vec<Sent> {
        self.client(peer).received()
    }

    pub fn send(&mut self, peer: Peer, packet: impl Into<Sent>) {
        self.send_without_running(peer, packet);
        self.run();
    }

    /// Sends several packets in one segment.
    pub fn send_all(&mut self, peer: Peer, packets: impl IntoIterator<Item = Sent>) {
        let client = self.client(peer);
        for packet in packets {
            client.write(&packet);
        }
        self.offer(peer);
        self.run();
    }

    pub fn send_without_running(&mut self, peer: Peer, packet: impl Into<Sent>) {
        self.client(peer).write(&packet.into());
        self.offer(peer);
    }

    pub fn send_bytes(&mut self, peer: Peer, bytes: &[u8]) {
        self.client(peer).unsent.extend_from_slice(bytes);
        self.offer(peer);
        self.run();
    }

    /// Loses the client's end of the connection, without a packet.
    pub fn lose(&mut self, peer: Peer) {
        self.lose_without_running(peer);
        self.run();
    }

    pub fn lose_without_running(&mut self, peer: Peer) {
        let Client { worker, slot, gone, .. } = self.clients[peer.0];
        if !gone {
            self.workers[worker].lost(self.now, slot);
            self.vacate(peer);
        }
    }

    /// Stops the client from reading: its socket's buffers are full from now on.
    pub fn stop_reading(&mut self, peer: Peer) {
        self.client(peer).reads = false;
    }

    /// Lets the client read up to `bytes` bytes, and no more.
    pub fn read(&mut self, peer: Peer, bytes: usize) {
        self.take_output(peer, bytes);
        self.run();
    }

    pub fn go_on_reading(&mut self, peer: Peer) {
        self.go_on_reading_without_running(peer);
        self.run();
    }

    pub fn go_on_reading_without_running(&mut self, peer: Peer) {
        self.client(peer).reads = true;
        self.take_output(peer, usize::MAX);
    }

    /// Bytes that wait to be written to a client.
    pub fn unread(&mut self, peer: Peer) -> usize {
        let Client { worker, slot, gone, .. } = self.clients[peer.0];
        if gone { 0 } else { self.workers[worker].output(slot).map_or(0, |out| out.len()) }
    }

    /// Releases the store's held commands and completes what follows.
    pub fn release_held(&mut self) {
        let parcels = self.store.all();
        self.forward(parcels);
        self.run();
    }

    /// Releases the store's held commands like [`Self::release_held`], the last session's first.
    pub fn release_last_first(&mut self) {
        let parcels = self.store.last_first();
        self.forward(parcels);
        self.run();
    }

    /// Passes `milliseconds`, with every timer at its time.
    pub fn pass(&mut self, milliseconds: u64) {
        let until = Time(self.now.0 + milliseconds);
        loop {
            let next = self.workers.iter().map(Worker::next_timeout).min().unwrap_or(Time::NEVER);
            let next = next.max(Time(self.now.0 + 1));
            if next > until {
                break;
            }
            self.jump_to(next);
        }
        self.jump_to(until);
    }

    /// Passes seconds at once, for long times: timers are late.
    pub fn jump(&mut self, seconds: u64) {
        self.jump_to(Time(self.now.0 + seconds * 1000));
        // Effects of timers may have timers of their own.
        self.pass(200);
    }

    /// Records that everything that clients have sent was read. From the first call on, clients are judged by the time
    /// of the last call.
    pub fn has_read_until_now(&mut self) {
        let now = self.now;
        self.workers.iter_mut().for_each(|worker| worker.has_read_until(now));
    }

    /// Lets time pass and timers fire; their effects are left for [`Self::step`].
    pub fn tick_without_running(&mut self, milliseconds: u64) {
        self.now = Time(self.now.0 + milliseconds);
        for worker in &mut self.workers {
            if worker.next_timeout() <= self.now {
                worker.tick(self.now);
            }
        }
    }

    pub fn jump_to(&mut self, now: Time) {
        self.tick_without_running(now.0 - self.now.0);
        self.run();
    }

    pub fn stop(&mut self) {
        for worker in &mut self.workers {
            worker.stop(self.now);
        }
        self.run();
    }

    /// Works until there is nothing left to do.
    pub fn run(&mut self) {
        while self.step(None) {}
    }

    /// Sends what workers have for other nodes.
    pub fn send_to_peers(&mut self) {
        self.workers.iter_mut().for_each(Worker::send_to_peers);
    }

    /// Executes one thing that can happen next; returns false when there is none. With `random` the store may also
    /// deliver one of the commands that are late.
    pub fn step(&mut self, random: Option<&mut Random>) -> bool {
        self.end_turns();
        let posted = std::mem::take(&mut *self.post.lock().expect("one thread"));
        let posted = posted.into_iter().map(|(to, command)| (to.index(), to.index(), Batch::of(command)));
        self.forward(posted);
        if let Some(random) = random
            && (self.wires.is_empty() || random.percent(30))
            && let Some(parcel) = self.store.some(random)
        {
            self.forward([parcel]);
        }
        let shuffled = self.shuffle.as_mut().map(|random| random.below(self.wires.len()));
        let pair = match shuffled {
            Some(at) => self.wires.keys().nth(at),
            None => {
                self.wires.iter().min_by_key(|(_, wire)| wire.front().map(|(sent, _)| *sent)).map(|(k, _)| k)
            }
        };
        let Some(&(from, to)) = pair else { return false };
        let Some(wire) = self.wires.get_mut(&(from, to)) else { return false };
        let batch = wire.pop_front();
        if wire.is_empty() {
            self.wires.remove(&(from, to));
        }
        if let Some((_, mut batch)) = batch {
            self.workers[to].take_batch(self.now, &mut batch);
            // The memory is used again, as the edge does.
            batch.recycle(0);
            assert!(batch.is_empty());
        }
        self.end_turns();
        true
    }

    /// Checks the invariants between any two calls.
    pub fn check_invariants(&self) {
        for worker in &self.workers {
            worker.check_invariants();
        }
    }

    /// Takes the output of each worker.
    fn end_turns(&mut self) {
        for worker in 0..self.workers.len() {
            self.flush(worker);
            for to in 0..self.workers.len() {
                self.collect(worker, to);
            }
            self.workers[worker].end_turn();
        }
        self.check_invariants();
    }

    fn flush(&mut self, worker: usize) {
        let mut slots = std::mem::take(&mut self.slots);
        loop {
            self.workers[worker].take_dirty(&mut slots);
            let any = !slots.is_empty();
            for slot in slots.drain(..) {
                if let Some(peer) = self.peers_by_slot.get(&(worker, slot)).copied() {
                    let bytes = if self.client(peer).reads { usize::MAX } else { 0 };
                    self.take_output(peer, bytes);
                }
            }
            self.workers[worker].take_woken(&mut slots);
            let woken = !slots.is_empty();
            for slot in slots.drain(..) {
                if let Some(peer) = self.peers_by_slot.get(&(worker, slot)).copied() {
                    self.client(peer).held = false;
                    self.offer(peer);
                }
            }
            if !any && !woken {
                break;
            }
        }
        self.slots = slots;
    }

    fn collect(&mut self, from: usize, to: usize) {
        let outgoing = self.workers[from].outgoing(WorkerId(to as u16));
        if outgoing.is_empty() {
            return;
        }
        let mut batch = std::mem::take(outgoing);
        let mut answers = Vec::new();
        self.store.pass(from, to, &mut batch, &mut answers);
        if !batch.is_empty() {
            self.forward([(from, to, batch)]);
        }
        self.forward(answers);
    }

    fn forward(&mut self, parcels: impl IntoIterator<Item = Parcel>) {
        for (from, to, batch) in parcels {
            self.sent += 1;
            self.wires.entry((from, to)).or_default().push_back((self.sent, batch));
        }
    }

    /// Offers the worker the bytes that the client has sent, as far as it accepts them.
    fn offer(&mut self, peer: Peer) {
        let client = &mut self.clients[peer.0];
        if client.gone || client.held || client.unsent.is_empty() {
            return;
        }
        let received = self.workers[client.worker].receive(self.now, client.slot, &client.unsent);
        client.unsent.drain(..received.consumed);
        match received.then {
            Then::Read { .. } => {}
            Then::Hold => client.held = true,
            Then::Close => client.unsent.clear(),
        }
    }

    /// Writes up to `bytes` of a connection's output to its client, and closes it when it is to be closed.
    fn take_output(&mut self, peer: Peer, bytes: usize) {
        let client = &mut self.clients[peer.0];
        if client.gone {
            return;
        }
        let worker = &mut self.workers[client.worker];
        if let Some(out) = worker.output(client.slot) {
            let before = out.len();
            let end = before.saturating_sub(bytes);
            while out.len() > end {
                let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
                let mut offered = match out.pending_slices(&mut slices) {
                    0 => out.pending().to_vec(),
                    count => slices[..count].iter().flat_map(|slice| slice.to_vec()).collect(),
                };
                offered.truncate(out.len() - end);
                client.read(&offered);
                out.advance(offered.len());
            }
            if out.len() < before {
                worker.written(self.now, client.slot);
            }
        }
        if worker.is_closing(client.slot) && worker.output(client.slot).is_none_or(|out| out.is_empty()) {
            self.vacate(peer);
        }
    }

    fn vacate(&mut self, peer: Peer) {
        let client = &mut self.clients[peer.0];
        client.gone = true;
        client.close();
        let (worker, slot) = (client.worker, client.slot);
        self.workers[worker].vacate(slot);
        self.peers_by_slot.remove(&(worker, slot));
    }

    /// Disconnects all clients and ends all sessions; then no state may be left.
    pub fn end(&mut self) {
        self.store.heal();
        self.release_held();
        for peer in 0..self.clients.len() {
            self.lose(Peer(peer));
        }
        // First longer than any session lasts, then than any Will or timer that results from its end.
        self.jump(8 * 24 * 3600);
        self.jump(10);
        self.check_left_over();
    }

    /// **Invariant:** without clients and sessions no state is left.
    fn check_left_over(&mut self) {
        assert_eq!(self.node.routes.len(), 0, "routes are left");
        assert_eq!(self.queued_bytes(), 0, "bytes are counted as queued");
        assert_eq!(self.node.charged_accounts(), 0, "resources are charged to a user or a mountpoint");
        assert_eq!(self.store.held(), 0);
        for worker in &self.workers {
            worker.check_quiet();
            assert_eq!(worker.connections(), 0);
        }
        let balanced = |name, up: fn(&broker::Counters) -> u64, down: fn(&broker::Counters) -> u64| {
            assert_eq!(self.counter(up), self.counter(down), "{name}");
        };
        balanced("connections", |c| c.connections_opened, |c| c.connections_closed);
        balanced("clients", |c| c.clients_connected, |c| c.clients_disconnected);
        balanced("subscriptions", |c| c.subscriptions_added, |c| c.subscriptions_removed);
    }
}

/// Short forms for frequent steps of scenarios.
impl Net {
    /// Subscribes a client to one filter and expects it to be granted.
    pub fn subscribe(&mut self, peer: Peer, filter: &str, qos: mqtt::QoS) {
        self.send(peer, testkit::packets::subscribe(1000).to(filter, qos));
        assert_eq!(self.received(peer), [testkit::packets::suback(1000, &[qos])]);
    }

    /// Publishes at QoS 0.
    pub fn publish(&mut self, peer: Peer, topic: &str, payload: impl ToString) {
        self.send(peer, message(topic, payload));
    }

    /// Payloads of all messages that arrived. No other packets may have arrived.
    pub fn payloads(&mut self, peer: Peer) -> Vec<String> {
        let payload = |packet| match packet {
            Sent::Publish(message) => message.payload,
            other => panic!("not a message: {other:?}"),
        };
        self.received(peer).into_iter().map(payload).collect()
    }

    /// Reason Code with which the server ended a connection; `None` while it exists.
    pub fn closed(&mut self, peer: Peer) -> Option<Option<ReasonCode>> {
        let received = self.received(peer);
        match received.as_slice() {
            [.., Sent::Disconnect { reason, .. }, Sent::Closed] => Some(Some(*reason)),
            [.., Sent::Closed] => Some(None),
            _ => None,
        }
    }
}
