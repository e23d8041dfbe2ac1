//! A worker: the connections of one reactor, its shards and their retained messages.
//!
//! The caller reports events with [`Worker::open`], [`Worker::receive`], [`Worker::lost`], [`Worker::take_batch`] and
//! [`Worker::tick`]. It then collects bytes to write ([`Worker::output`]), connections to examine
//! ([`Worker::take_dirty`], [`Worker::take_woken`]) and batches for other workers ([`Worker::outgoing`]). A worker does
//! no I/O and reads no clock, so a test can play the network and the clock.

mod admin;
mod admit;
mod check;
mod clock;
mod close;
mod connect;
mod copies;
mod deliver;
mod dispatch;
mod divided;
pub(crate) use divided::Divided;
mod drain;
mod events;
mod exchange;
mod foreign;
mod lanes;
mod linked;
mod load;
mod monitor;
mod operators;
mod outbox;
mod pages;
mod peers;
mod permission;
mod plain;
mod post;
mod publish;
mod queues;
mod ready;
mod receive;
mod recheck;
mod refusals;
pub(crate) use refusals::ExceededLimits;
mod report;
mod retained;
mod review;
mod route_work;
mod shards;
mod spans;
mod store_qos0;
mod subscribe;
mod sys;
mod trace;
mod watched;
mod wills;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mqtt::{ReasonCode, Version};
use shard::{Mutation, mutated};

pub(crate) use drain::DrainState;
pub use events::{AlarmChange, Event};
pub use lanes::{LaneCounters, ReadCounters, check_frame_form, decode_frame_form};
pub(crate) use publish::{is_beyond_limits, is_own_topic};
pub use receive::{Received, Then};

use crate::access::{Access, ClientCertificate, INTERNAL_LISTENER};
use crate::batch::Batch;
use crate::connection::{Connection, Marks, Phase, Reading, Role};
use crate::counters::{Counters, Published, StoreCounters};
use crate::groups::GroupHost;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId};
use crate::node::{NO_LISTENER, Node};
use crate::out::{Out, Pool};
use crate::overload::Level;
use crate::retained::RetainedShard;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::store::{Follower, HostContext, ReplicaStart, Request, ShardHost};
use crate::subscriptions::Subscriptions;
use crate::wheel::{Timer, TimerKind, Wheel};
use clock::Clock;
use copies::RetainedCopies;
use dispatch::Dispatcher;
use events::Events;
use lanes::Lanes;
use load::WorkerLoad;
use monitor::Monitor;
use outbox::Outbox;
use peers::PeerTraffic;
use permission::Rules;
use queues::Queues;
use ready::ReadyLists;
use retained::WaitingScans;
use route_work::RouteWork;
use shards::HostedShards;
use spans::Spans;
use wills::WaitingWills;

pub struct Worker {
    id: WorkerId,
    node: Arc<Node>,
    /// Settings in force on this worker.
    settings: Arc<Settings>,
    clock: Clock,
    connections: Slots<Connection>,
    dispatcher: Dispatcher,
    outbox: Outbox,
    peers: PeerTraffic,
    /// Requests to shards that other nodes may lead; `None` when this node has all shards alone.
    lanes: Option<Box<Lanes>>,
    copies: RetainedCopies,
    wheel: Wheel,
    ready: ReadyLists,
    route_work: RouteWork,
    shards: HostedShards,
    /// Retained messages of the broker's own topics.
    own_retained: RetainedShard,
    waiting_scans: WaitingScans,
    wills: WaitingWills,
    queues: Queues,
    pool: Pool,
    scratch: deliver::Scratch,
    counters: Counters,
    monitor: Monitor,
    operators: operators::Operators,
    stage: Stage,
    load: WorkerLoad,
    housekeeping_due: Time,
    sys: sys::Sys,
    rules: Rules,
    /// Longest time for which a timer for CONNECT was armed.
    connect_timeout_max: Duration,
    /// Plain messages go the short way; false in tests that compare.
    goes_short_way: bool,
    #[cfg(test)]
    short_ways: plain::Entered,
    recheck: recheck::Recheck,
    review: review::Review,
    drain: drain::DrainProgress,
}

/// Stage of a worker between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The subscriptions of other workers may be missing in the index, so no client is served.
    Recalling,
    Serving,
    /// The node closes its connections and accepts no clients.
    Stopping,
}

/// Returns the parts of the node that a host of a shard needs.
fn host_context(node: &Arc<Node>, settings: &Arc<Settings>) -> HostContext {
    HostContext {
        settings: settings.clone(),
        node_routes: node.routes.clone(),
        load: node.load.clone(),
        access: node.access.clone(),
        hash_key: node.owner_hash(),
        counters: StoreCounters::default(),
    }
}

impl Worker {
    /// Builds a worker. [`Node::build_workers`] makes it ready to serve.
    pub(crate) fn new(id: WorkerId, node: Arc<Node>) -> Self {
        let settings = node.settings();
        let shards = node.hosted(id).filter_map(|shard| {
            let agreement = node.take_agreement(shard);
            if node.own.is_some() && agreement.is_none() {
                return None;
            }
            let context = host_context(&node, &settings);
            Some(Follower::open(node.take_shard(shard), node.log.clone(), agreement, context))
        });
        let groups = node.hosted(id).map(|shard| {
            let random = node.secret(u64::MAX - u64::from(shard.0));
            GroupHost::new(shard, settings.clone(), node.routes.clone(), random)
        });
        let shards = HostedShards::new(shards, groups.collect());
        let interval = settings.sys.interval;
        let mut lanes = node.own.map(|own| Box::new(Lanes::new(own, id, node.workers)));
        if let Some(lanes) = &mut lanes {
            let others = node.hosted(id).filter(|shard| shards.state(*shard).is_none());
            others.for_each(|shard| lanes.learn(&node, shard));
        }
        Self {
            id,
            clock: Clock::new(node.began()),
            connections: Slots::default(),
            dispatcher: Dispatcher::new(node.routes.reader(), node.secret(TOPICS_SECRET)),
            outbox: Outbox::new(id, node.workers, node.own.is_some()),
            lanes,
            peers: PeerTraffic::new(id),
            copies: RetainedCopies::default(),
            wheel: Wheel::default(),
            ready: ReadyLists::default(),
            route_work: RouteWork::default(),
            shards,
            own_retained: RetainedShard::default(),
            waiting_scans: WaitingScans::default(),
            wills: WaitingWills::default(),
            queues: Queues::default(),
            pool: Pool::default(),
            scratch: deliver::Scratch::default(),
            counters: Counters::default(),
            monitor: Monitor::new(
                id,
                Events::new(node.clone(), settings.limits.events_per_second),
                node.span_queues().map(|queues| Spans::new(queues.clone(), id)),
            ),
            operators: operators::Operators::default(),
            stage: Stage::Recalling,
            load: WorkerLoad::default(),
            housekeeping_due: Time::default(),
            sys: sys::Sys::new(id, interval),
            rules: Rules::of(&*node.access),
            connect_timeout_max: Duration::ZERO,
            goes_short_way: true,
            #[cfg(test)]
            short_ways: plain::Entered::default(),
            recheck: recheck::Recheck::default(),
            review: review::Review::default(),
            drain: drain::DrainProgress::default(),
            settings,
            node,
        }
    }

    /// Inserts the subscriptions of the shards' sessions into the index. Sends their shared subscriptions to the shards
    /// of the groups.
    pub(crate) fn recall(&mut self) {
        self.shards.recall();
        self.apply_output();
        self.routes_moved();
    }

    /// Begins a replica of a shard while the node runs.
    pub(super) fn start_replica(&mut self, ReplicaStart { state, agreement }: ReplicaStart) {
        let id = ShardId(state.id());
        let context = host_context(&self.node, &self.settings);
        let replica = Follower::open(state, self.node.log.clone(), Some(agreement), context);
        self.learn_until_known(id, replica);
        self.process_store_events();
    }

    /// Ends the replica of a shard. Requests of this node go to the other replicas.
    pub(super) fn stop_replica(&mut self, id: ShardId) {
        self.stop_replica_and_learn(id);
        self.process_store_events();
    }

    /// Starts the shards in the state in which the previous incarnation of the node ended. Wills that are due may be
    /// dispatched from now on, so the subscriptions and groups of all workers must be in place.
    pub(crate) fn start_shards(&mut self) {
        self.shards.start(self.clock.now(), self.node.incarnation);
        self.apply_output();
        for (shard, identity) in self.node.take_stale_identities() {
            self.outbox.request(shard, Request::ForgetIdentity { identity });
        }
        self.stage = Stage::Serving;
        if self.shards.iter().any(|shard| shard.retained_len() > 0) {
            self.published().retained_used.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns the settings in force on this worker.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub fn access(&self) -> &dyn Access {
        &*self.node.access
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the figures that this worker publishes.
    pub fn published(&self) -> &Published {
        &self.node.published[self.id.index()]
    }

    /// Adds an accepted Network Connection. Its bytes go to [`Self::receive`] with the slot of the returned id.
    pub fn open(&mut self, now: Time, peer: Option<SocketAddr>) -> ConnectionId {
        self.clock.set(now);
        assert!(
            self.stage != Stage::Recalling || mutated(Mutation::ServeBeforeRecall),
            "a worker serves clients only after all workers were built"
        );
        let (slot, generation) = self.connections.vacant();
        let id = ConnectionId { worker: self.id, slot, generation };
        let connection = Connection {
            id,
            phase: Phase::AwaitConnect,
            version: Version::V5,
            listener: NO_LISTENER,
            marks: Marks { problem_information: true, ..Marks::default() },
            keep_alive: 0,
            last_packet: now,
            connected_at: 0,
            messages_received: 0,
            messages_sent: 0,
            client_id: self.scratch.nobody.clone(),
            client_key: 0,
            packet_size_max: u32::MAX,
            window: 0,
            alias_max: 0,
            session_expiry: 0,
            session: None,
            out: Out::default(),
            subscriptions: Subscriptions::default(),
            flow: None,
            peer: peer.into(),
            connecting: None,
            extra: None,
        };
        let placed = self.connections.insert(connection);
        debug_assert_eq!(placed, (slot, generation));
        let timeout = self.settings.mqtt.connect_timeout;
        self.connect_timeout_max = self.connect_timeout_max.max(timeout);
        self.wheel.arm(now.after(timeout), slot, generation, TimerKind::Connect);
        self.counters.connections_opened += 1;
        id
    }

    /// Sets the address of the client if a proxy has announced it. Call this before CONNECT.
    pub fn set_peer(&mut self, slot: u32, peer: SocketAddr) {
        if let Some(connection) = self.connections.occupant(slot) {
            connection.peer = Some(peer).into();
        }
    }

    /// Sets the listener that accepted the connection, as an index into [`Node::name_listeners`]. Call this before
    /// CONNECT.
    pub fn set_listener(&mut self, slot: u32, listener: u16) {
        if let Some(connection) = self.connections.occupant(slot) {
            connection.listener = listener;
            if self.node.listener_name(listener) == INTERNAL_LISTENER {
                connection.marks.role = Role::Process;
            }
        }
    }

    /// Sets the verified certificate of the client. Call this before CONNECT.
    pub fn set_certificate(&mut self, slot: u32, certificate: Arc<ClientCertificate>) {
        if let Some(connection) = self.connections.occupant(slot) {
            connection.extra().certificate = Some(certificate);
        }
    }

    /// Returns the bytes to write to a connection. After a write the caller removes the written bytes with
    /// [`Out::advance`] and calls [`Self::written`].
    pub fn output(&mut self, slot: u32) -> Option<&mut Out> {
        self.connections.occupant(slot).map(|connection| &mut connection.out)
    }

    /// Handles that some bytes of the connection's output were written.
    pub fn written(&mut self, now: Time, slot: u32) {
        self.clock.set(now);
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.out.is_empty() {
            connection.out.return_buffer(&mut self.pool);
        }
        if connection.phase == Phase::Open {
            self.ready.wake(connection);
        }
        if connection.flow.is_some() {
            self.pump(slot);
        }
    }

    /// Records that a turn of the reactor took `took` and ends now.
    pub fn turn_took(&mut self, now: Time, took: Duration) {
        self.load.turn_took(now, took);
    }

    /// Assesses the load of the node and returns its overload level until the next call. Call this several times a
    /// second.
    pub fn assess_load(&mut self, now: Time, mailbox_bytes: u64) -> Level {
        self.load.assess(now, self.id, &self.node, &self.settings, mailbox_bytes)
    }

    /// Returns whether the node refuses new clients, as of the last assessment.
    pub fn refuses_clients(&self) -> bool {
        self.load.refuses_clients()
    }

    /// Declares that all data that clients had sent until `at` was read. After the first call, timeouts are judged by
    /// this time [MQTT-3.1.2-24]. So after a pause of the process or the machine, the worker reads the sockets before
    /// it closes a client.
    pub fn has_read_until(&mut self, at: Time) {
        self.clock.has_read_until(at);
    }

    /// Returns whether the client has CONNACK and is connected.
    pub fn is_open(&self, slot: u32) -> bool {
        self.connections.occupant_ref(slot).is_some_and(Connection::has_connack)
    }

    /// Returns whether the connection has to be closed after its output is written.
    pub fn is_closing(&self, slot: u32) -> bool {
        self.connections.occupant_ref(slot).is_none_or(|connection| connection.phase == Phase::Closing)
    }

    /// Returns whether a closing connection has used up its time for the last bytes.
    pub fn is_overdue(&self, slot: u32) -> bool {
        self.connections.occupant_ref(slot).is_some_and(|connection| connection.marks.overdue)
    }

    /// Frees a slot after its transport is closed.
    pub fn vacate(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (phase, id) = (connection.phase, connection.id);
        if phase != Phase::Closing {
            self.lost(self.clock.now(), slot);
        }
        if let Some(mut gone) = self.connections.remove(slot, id.generation) {
            gone.out.discard();
            self.counters.connections_closed += 1;
        }
    }

    /// Moves the slots of connections with output, and of closing connections, to `slots`.
    pub fn take_dirty(&mut self, slots: &mut Vec<u32>) {
        if self.monitor.events.is_pending() {
            self.publish_events();
        }
        self.ready.swap_dirty(slots);
        for slot in slots.iter() {
            if let Some(connection) = self.connections.occupant(*slot) {
                connection.marks.dirty = false;
            }
        }
    }

    /// Appends the slots of connections whose kept bytes may be offered again to `slots`.
    pub fn take_woken(&mut self, slots: &mut Vec<u32>) {
        self.ready.take_woken(slots);
    }

    /// Returns the batch for `worker`. If it is not empty, the edge sends it and leaves an empty one.
    pub fn outgoing(&mut self, worker: WorkerId) -> &mut Batch {
        self.outbox.batch(worker)
    }

    /// Returns whether the worker has work to do before it may sleep.
    pub fn has_work(&self) -> bool {
        self.ready.has_work() || self.has_inner_work()
    }

    /// Like [`Self::has_work`], apart from the connections of clients.
    pub fn has_inner_work(&self) -> bool {
        !self.peers.outbound.is_empty()
            || !self.outbox.is_empty()
            || self.has_shard_frames()
            || self.monitor.events.is_pending()
    }

    /// Handles the worker's batches for itself until none is left, at most [`SETTLE_ROUNDS`] times.
    pub fn settle(&mut self, now: Time) {
        for _ in 0..SETTLE_ROUNDS {
            if !self.settle_once(now) {
                return;
            }
        }
    }

    /// Performs one round of [`Self::settle`]. Returns false if there was nothing to do.
    pub fn settle_once(&mut self, now: Time) -> bool {
        self.pass_requests(now);
        let Some(mut batch) = self.outbox.take_own() else { return false };
        self.take_batch(now, &mut batch);
        self.outbox.recycle(batch);
        true
    }

    /// Returns the latest time at which [`Self::tick`] is due.
    pub fn next_timeout(&self) -> Time {
        let behind = if self.is_behind() { Time::default() } else { Time::NEVER };
        let own = self.housekeeping_due.min(self.sys.due()).min(self.wills.due());
        self.wheel.next().min(self.shards.next_deadline()).min(own).min(behind)
    }

    /// Returns whether a turn has left work over. [`Self::tick`] is then due at once.
    pub fn is_behind(&self) -> bool {
        self.shards.has_events() || self.ready.has_paused() || !self.route_work.is_empty()
    }

    pub fn tick(&mut self, now: Time) {
        self.clock.tick(now);
        self.renew_events();
        if mutated(Mutation::ServeBeforeRecall)
            && self.stage == Stage::Recalling
            && self.node.began().after(LATE) <= now
        {
            self.recall();
            self.start_shards();
        }
        self.shards.tick_followers(now);
        if self.shards.has_events() {
            self.process_store_events();
        }
        self.resume_paused();
        self.continue_route_work();
        let mut due = self.wheel.fire(now);
        for timer in due.drain(..) {
            self.timer(timer);
        }
        self.wheel.recycle(due);
        for at in 0..self.shards.len() {
            if self.shards.tick(at, now, self.clock.judged()) {
                self.apply_output();
            }
        }
        if self.shards.tick_groups(now) {
            self.apply_output();
        }
        if self.wills.due() <= now {
            self.publish_waiting_wills();
        }
        if self.housekeeping_due <= now {
            self.housekeeping_due = Time(now.0 + 1000);
            self.tend_retained();
            self.tend_reads();
            self.end_overdue_waits();
            self.retry_routes();
            self.request_missing_retained();
            self.shards.report_live();
            self.shards.iter_mut().for_each(ShardHost::sample_owners);
            self.publish_figures();
            self.monitor.flush_spans();
            // Two workers that update this sum at once may store the older result.
            self.node.weigh(now);
            self.close_hoarders();
            let soon = [self.recheck(), self.review()].into_iter().flatten().min();
            self.housekeeping_due = soon.unwrap_or(self.housekeeping_due);
        }
        if self.sys.due() <= now {
            self.sys.plan_next(now, self.settings.sys.interval);
            self.publish_sys();
        }
    }

    /// Ends a turn whose batches have been sent. The worker holds nothing of the shared index after this call.
    pub fn end_turn(&mut self) {
        self.dispatcher.reader.quiescent();
        self.outbox.answer_flushes();
        if self.node.log.is_some() {
            self.shards.end_turn(self.clock.now(), self.stage == Stage::Stopping);
            if self.shards.has_frames() {
                self.apply_output();
                self.send_to_peers();
            }
        }
        let published = &self.node.published[self.id.index()];
        let held = self.shards.iter().map(ShardHost::held);
        let (connected, absent) = held.fold((self.queues.bytes(), 0), |(connected, absent), held| {
            (connected + held.for_connected, absent + held.for_absent)
        });
        let is = (published.queued_bytes.load(Relaxed), published.offline_bytes.load(Relaxed));
        let mut has_changed = is != (connected + absent, absent);
        if has_changed {
            published.queued_bytes.store(connected + absent, Relaxed);
            published.offline_bytes.store(absent, Relaxed);
        }
        if self.has_cluster_shards() {
            let (requests, offers) = (self.request_bytes(), self.offer_bytes());
            let is = (published.request_bytes.load(Relaxed), published.offer_bytes.load(Relaxed));
            if is != (requests, offers) {
                published.request_bytes.store(requests, Relaxed);
                published.offer_bytes.store(offers, Relaxed);
                has_changed = true;
            }
        }
        if has_changed {
            self.node.weigh(self.clock.now());
        }
    }

    /// Returns whether the reactor reads the clock after each read from a socket: the node serves clients for as long
    /// as it has a lease, and the lease may end while the process is stopped within a turn.
    #[inline]
    pub fn needs_time_of_read(&self) -> bool {
        self.node.has_lease() && !mutated(Mutation::KeepTurnTime)
    }

    /// Returns whether the reactor reads the clock before it writes to sockets: without a lease no client is written
    /// to.
    #[inline]
    pub fn needs_time_of_write(&self) -> bool {
        self.node.freezes() && self.needs_time_of_read()
    }

    /// Returns whether no client may be read or written to now.
    pub fn is_frozen(&self, now: Time) -> bool {
        self.node.is_frozen(now)
    }

    /// Prepares for sleep: a sleeping thread must not delay the release of memory of the index.
    pub fn park(&self) {
        self.dispatcher.reader.park();
    }

    pub fn unpark(&self) {
        self.dispatcher.reader.unpark();
    }

    /// Stops the node's connections: sends every client a DISCONNECT and closes it [MQTT-4.13.1-1]. A node alone
    /// publishes no Will.
    pub fn stop(&mut self, now: Time) {
        self.clock.set(now);
        self.stage = Stage::Stopping;
        let slots: Vec<u32> = self.connections.iter().map(|(slot, ..)| slot).collect();
        for slot in slots {
            self.close(slot, ReasonCode::ServerShuttingDown);
        }
    }

    fn timer(&mut self, timer: Timer) {
        let Some(connection) = self.connections.get_mut(timer.slot, timer.generation) else { return };
        let slot = timer.slot;
        match timer.kind {
            TimerKind::Connect => {
                if matches!(
                    connection.phase,
                    Phase::AwaitConnect | Phase::Exchanging | Phase::Authenticating | Phase::Claiming
                ) {
                    // After a pause of the process, CONNECT may still be in the socket.
                    if self.clock.judged().after(JUDGED_LATE) < self.clock.now() {
                        let again = Time(self.clock.now().0 + 1);
                        return self.wheel.arm(again, slot, timer.generation, TimerKind::Connect);
                    }
                    self.counters.connect_timeouts += 1;
                    match connection.phase {
                        Phase::Claiming => self.claim_unanswered(slot),
                        _ => self.close_silently(slot),
                    }
                } else if !std::mem::replace(&mut connection.marks.keep_alive_timed, true) {
                    self.check_keep_alive(timer);
                }
            }
            TimerKind::KeepAlive => self.check_keep_alive(timer),
            TimerKind::Packet => self.check_packet_timeout(timer),
            TimerKind::Retained => self.continue_retained(slot),
            TimerKind::QueueWait => self.check_queue_wait(timer),
            TimerKind::Expiry => self.check_expiry(slot),
            TimerKind::Unblock => self.unblock(slot),
            TimerKind::Linger => {
                connection.marks.overdue = true;
                connection.out.discard();
                self.ready.mark_dirty(connection);
            }
        }
    }

    /// [MQTT-3.1.2-22]: a client that is silent for 1.5 times Keep Alive is disconnected.
    fn check_keep_alive(&mut self, timer: Timer) {
        let Some(connection) = self.connections.get_mut(timer.slot, timer.generation) else { return };
        if connection.phase != Phase::Open || connection.keep_alive == 0 {
            return;
        }
        let silence_max = connection.silence_max();
        let mut due = connection.last_packet.after(silence_max);
        // While the node keeps the client waiting, the silence is the node's fault.
        let waits = connection.flow.as_ref().is_some_and(|flow| flow.blocked.is_some() || flow.is_dividing());
        if waits || connection.marks.reading != Reading::Continues {
            due = due.max(self.clock.now().after(silence_max));
        }
        if let Some(flow) = connection.flow.take_if(|flow| flow.is_forgettable()) {
            drop(flow);
        }
        let judged = if mutated(Mutation::JudgeUnread) { self.clock.now() } else { self.clock.judged() };
        if due > judged {
            // Nothing is read without a lease, perhaps for long.
            let is_frozen = self.node.is_frozen(self.clock.now());
            let pause = if is_frozen { FROZEN_PAUSE_MS } else { 1 };
            let at = due.max(Time(self.clock.now().0 + pause));
            self.wheel.arm(at, timer.slot, timer.generation, TimerKind::KeepAlive);
            return;
        }
        self.counters.keep_alive_timeouts += 1;
        self.close(timer.slot, ReasonCode::KeepAliveTimeout);
    }

    /// Bytes of messages that wait for the answers of members of shared groups.
    fn offer_bytes(&self) -> u64 {
        self.shards.groups().iter().map(GroupHost::bytes).sum::<usize>() as u64
    }

    fn publish_figures(&mut self) {
        let mut store =
            StoreCounters { refused_by_log: self.dispatcher.refused_by_log, ..StoreCounters::default() };
        self.shards.add_counters(&mut store);
        let published = &self.node.published[self.id.index()];
        published
            .connections
            .store(self.counters.clients_connected - self.counters.clients_disconnected, Relaxed);
        published.sessions.store(self.shards.sum(ShardHost::sessions), Relaxed);
        let (retained, retained_bytes) = self.retained_figures();
        published.retained_messages.store(retained, Relaxed);
        published.retained_bytes.store(retained_bytes, Relaxed);
        published.session_subscriptions.store(self.shards.sum(ShardHost::subscriptions), Relaxed);
        published.slow.store(self.monitor.slow.len() as u64, Relaxed);
        let mut waiting = self.queues.walk_backlog(&mut self.connections, self.clock.now());
        for shard in self.shards.iter_mut() {
            waiting.add(shard.walk_backlog(self.clock.now()));
        }
        let published = &self.node.published[self.id.index()];
        published.waiting_messages.store(waiting.messages, Relaxed);
        let of_shards = self.shards.sum(ShardHost::waiting_clients);
        published.waiting_clients.store(self.queues.waiting_clients() as u64 + of_shards, Relaxed);
        published.offer_bytes.store(self.offer_bytes(), Relaxed);
        published.oldest_ms.store(waiting.oldest.as_millis() as u64, Relaxed);
        published.refresh(&self.counters, &store, &self.monitor.packets);
        if self.lanes.is_some() {
            published.refresh_shards(self.shards.iter().map(ShardHost::figures));
        }
        self.monitor.sampler.tick(self.clock.now());
    }
}

/// Maximum age of the last read of all sockets when a client without CONNECT is closed. It is longer than the sleep of
/// a reactor.
const JUDGED_LATE: Duration = Duration::from_millis(1500);
/// Time in milliseconds after which Keep Alive is looked at again while nothing is read without a lease.
const FROZEN_PAUSE_MS: u64 = 1_000;
/// Time for which a worker with [`Mutation::ServeBeforeRecall`] serves clients before it recalls its sessions.
const LATE: Duration = Duration::from_millis(500);
/// Number of the secret for the cache of topics. Those of the shards are greater.
const TOPICS_SECRET: u64 = u64::MAX - (1 << 16);
/// Maximum number of rounds of a worker's batches for itself in one turn. More would delay the sockets.
pub const SETTLE_ROUNDS: usize = 8;
