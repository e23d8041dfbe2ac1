//! What all workers of a node share.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use mqtt::ReasonCode;
use routing::{Index, IndexLimits};
use shard::{Mutation, Shard, mutated};

use crate::access::Access;
use crate::admin::{AdminRequest, Traces, Watches};
use crate::batch::WorkerCommand;
use crate::counters::Published;
use crate::durability::Durability;
use crate::full_queues::FullQueues;
use crate::ids::{ShardId, Time, WorkerId};
use crate::peers::{Inbound, Members, NodeIndex, Peers, SubackLevel};
use crate::quota::{Payers, Quotas};
use crate::refusal_log::RefusalLog;
use crate::retained;
use crate::routes::Routes;
use crate::settings::Settings;
use crate::store::{Condition, GroupName, Incarnation, Request, SHARDS, Store, StoreEvent, StoreLog};
use crate::worker::Worker;

/// The parts of a node that every worker reads. **Invariant:** nothing here is locked on the path of a packet.
pub struct Node {
    /// In force now. Workers keep what they were last told, see [`Admin::set_settings`](crate::admin::Admin::set_settings).
    settings: ArcSwap<Settings>,
    pub access: Arc<dyn Access>,
    pub routes: Arc<Routes>,
    /// Shown in `$SYS/broker/version`.
    pub version: String,
    pub workers: u16,
    /// One per worker.
    pub published: Vec<Published>,
    listeners: OnceLock<Vec<String>>,
    /// What their messages are acknowledged for, by their places.
    durability: OnceLock<Vec<Durability>>,
    /// Who has to know of their subscriptions, by their places.
    suback: OnceLock<Vec<Option<SubackLevel>>>,
    /// How threads that are no workers reach one.
    mailbox: OnceLock<Box<dyn Fn(WorkerId, WorkerCommand) + Send + Sync>>,
    pub(crate) refusal_log: RefusalLog,
    pub(crate) watches: Watches,
    pub(crate) traces: Traces,
    pub(crate) hash_key: [u8; 16],
    /// More waits than `limits.memory_queued_max`, as of a worker's last turn.
    overloaded: AtomicBool,
    /// When that began, in milliseconds and never 0; 0 while it is not so.
    overloaded_since: AtomicU64,
    /// When more than half of it began to wait for connected clients; as `overloaded_since`.
    half_since: AtomicU64,
    /// More waits than three quarters of `limits.memory_queued_max`.
    nearly_full: AtomicBool,
    /// In milliseconds.
    fresh_until: AtomicU64,
    /// As of [`Self::stamp_retained`].
    others: AtomicU16,
    /// What is retained gets a time by which other nodes can compare it.
    is_stamping: AtomicBool,
    wall_ms: AtomicU64,
    last_stamp: AtomicU64,
    /// Other nodes have retained something for which there was no room here.
    retained_missing: AtomicBool,
    pub(crate) load: Arc<NodeLoad>,
    connections_max: AtomicU64,
    /// Where shards make things durable, if they do.
    pub(crate) log: Option<Arc<dyn StoreLog>>,
    pub(crate) incarnation: Incarnation,
    /// All workers are built, with the subscriptions of the sessions that were found.
    has_begun: AtomicBool,
    /// The shards as they were found, until their workers take them over.
    found: Mutex<Vec<Shard>>,
    /// Assigned Client Identifiers are made of this and a counter.
    pub(crate) assigned: AtomicU64,
}

/// Whose a Client Identifier is; odd behind a mountpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerKey(u32);

impl OwnerKey {
    /// No user, no tenant.
    pub const NOBODY: Self = Self(0);

    /// Of a user, or of all that is behind a mountpoint.
    pub(crate) fn of(hash_key: &[u8; 16], mountpoint: &str, username: Option<&str>) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(hash_key);
        hasher.write(mountpoint.as_bytes());
        hasher.write_u8(0xFF); // Not in any text.
        hasher.write(username.unwrap_or_default().as_bytes());
        let hash = hasher.finish() as u32;
        match (mountpoint, username) {
            ("", None) => Self::NOBODY,
            ("", Some(_)) => Self((hash & !1).max(2)),
            _ => Self(hash | 1),
        }
    }

    pub(crate) fn is_mounted(self) -> bool {
        self.0 & 1 == 1
    }

    pub(crate) fn from_u32(key: u32) -> Self {
        Self(key)
    }

    pub(crate) fn as_u32(self) -> u32 {
        self.0
    }

    /// Whether another may have what this one has. What is nobody's anybody may have, but no tenant: in front of its mountpoint
    /// somebody may have subscribed to more than it may see.
    pub fn allows_takeover_by(self, other: Self) -> bool {
        self == other || (self == Self::NOBODY && !other.is_mounted())
    }
}

/// The listener of a connection that came in by none.
pub(crate) const NO_LISTENER: u16 = u16::MAX;

/// What the shards of the session store need to know of the whole node.
#[derive(Debug, Default)]
pub struct NodeLoad {
    /// Sessions that outlive their connection.
    pub sessions: AtomicU64,
    /// More than `limits.memory_queued_max` has waited for longer than `queue.full_wait`: what waits for absent clients gives way.
    pub absent_give_way: AtomicBool,
    /// Retained messages of each shard, of batches that are applied.
    pub retained: [RetainedFigures; SHARDS as usize],
    /// There is no place for any more of them, or not for a large one.
    pub retained_is_short: AtomicBool,
    /// Bytes of all queues, as of a worker's last turn.
    pub queued: AtomicU64,
    /// More than half of `limits.memory_queued_max` has waited for connected clients for longer than `queue.full_wait`: those that have
    /// more than their share and acknowledge nothing are closed.
    pub hoarders_give_way: AtomicBool,
    pub full_queues: FullQueues,
    pub quotas: Quotas,
}

/// How many retained messages a shard has.
#[derive(Debug, Default)]
pub struct RetainedFigures {
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
}

impl NodeLoad {
    /// Bytes that may wait for one connected client: what is free. However many take all they can, each newcomer gets as much as
    /// they have.
    pub fn queue_share(&self, settings: &Settings) -> u64 {
        settings.limits.memory_queued_max.bytes().saturating_sub(self.queued.load(Relaxed)).max(1)
    }

    /// What a shard has is noted.
    pub fn note_retained(&self, own: ShardId, (messages, bytes): (u64, u64), settings: &Settings) {
        let figures = &self.retained[own.index()];
        figures.messages.store(messages, Relaxed);
        figures.bytes.store(bytes, Relaxed);
        let (others, others_bytes) = self.retained_elsewhere(own);
        let limits = &settings.retained;
        let largest = settings.mqtt.packet_size_max.bytes();
        let is_short = messages + others >= limits.messages_max
            || (bytes + others_bytes).saturating_add(largest) > limits.bytes_max.bytes();
        self.retained_is_short.store(is_short, Relaxed);
    }

    /// Retained messages of all shards but this one, and their bytes: limits are kept about right without a counter that all
    /// would write to.
    pub fn retained_elsewhere(&self, own: ShardId) -> (u64, u64) {
        let others = self.retained.iter().enumerate().filter(|(at, _)| *at != own.index());
        others.fold((0, 0), |(messages, bytes), (_, figures)| {
            (messages + figures.messages.load(Relaxed), bytes + figures.bytes.load(Relaxed))
        })
    }
}

impl Node {
    /// A node that keeps nothing on disk.
    ///
    /// `seed` is secret randomness: keys of hash tables, assigned identifiers, choices in shared groups.
    pub fn new(
        settings: Settings,
        access: Arc<dyn Access>,
        version: String,
        workers: u16,
        seed: [u8; 16],
    ) -> Arc<Self> {
        let store =
            Store { log: None, shards: Vec::new(), incarnation: Incarnation::default(), hash_key: seed };
        Self::with_store(settings, access, version, workers, store)
    }

    /// A node that goes on with what `store` holds.
    pub fn with_store(
        settings: Settings,
        access: Arc<dyn Access>,
        version: String,
        workers: u16,
        store: Store,
    ) -> Arc<Self> {
        let Store { log, shards, incarnation, hash_key: seed } = store;
        // Not `mqtt.topic_levels_max`: what another node has granted, or this one before a restart, may have more levels.
        let limits =
            IndexLimits { shapes_max: settings.routing.shapes_max as usize, ..IndexLimits::default() };
        Arc::new(Self {
            routes: Arc::new(Routes::new(Index::new(seed, limits))),
            settings: ArcSwap::from_pointee(settings),
            access,
            version,
            workers,
            published: (0..workers).map(|_| Published::default()).collect(),
            listeners: OnceLock::new(),
            durability: OnceLock::new(),
            suback: OnceLock::new(),
            mailbox: OnceLock::new(),
            refusal_log: RefusalLog::default(),
            watches: Watches::default(),
            traces: Traces::default(),
            hash_key: seed,
            overloaded: AtomicBool::new(false),
            overloaded_since: AtomicU64::new(0),
            half_since: AtomicU64::new(0),
            nearly_full: AtomicBool::new(false),
            fresh_until: AtomicU64::new(u64::MAX),
            others: AtomicU16::new(0),
            is_stamping: AtomicBool::new(false),
            wall_ms: AtomicU64::new(0),
            last_stamp: AtomicU64::new(0),
            retained_missing: AtomicBool::new(false),
            load: Arc::new(NodeLoad { full_queues: FullQueues::new(seed), ..NodeLoad::default() }),
            connections_max: AtomicU64::new(u64::MAX),
            log,
            incarnation,
            found: Mutex::new(shards),
            has_begun: AtomicBool::new(false),
            assigned: AtomicU64::new(0),
        })
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    pub(crate) fn set_settings(&self, settings: Arc<Settings>) {
        self.settings.store(settings);
    }

    /// The worker that answers for a stage of a listing: each worker for its connections, then the host of each shard.
    pub(crate) fn stage_host(&self, stage: u32) -> Option<WorkerId> {
        match stage.checked_sub(u32::from(self.workers)) {
            None => Some(WorkerId(stage as u16)),
            Some(shard) if shard < u32::from(SHARDS) => Some(self.shard_host(ShardId(shard as u16))),
            Some(_) => None,
        }
    }

    /// A number that tells nothing of the node's secret, nor of those for other `number`s.
    pub(crate) fn secret(&self, number: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.hash_key);
        hasher.write_u64(number);
        hasher.finish()
    }

    /// Stands for those who own a Client Identifier together: a user, or a tenant and its user. Not to be found from outside.
    pub(crate) fn owner_key(&self, mountpoint: &str, username: Option<&str>) -> OwnerKey {
        OwnerKey::of(&self.hash_key, mountpoint, username)
    }

    /// Who pays for what a client takes.
    pub(crate) fn payers(&self, mountpoint: &str, username: Option<&str>) -> Payers {
        let user = if username.is_some() { self.owner_key(mountpoint, username) } else { OwnerKey::NOBODY };
        self.load.quotas.payers(user, self.owner_key(mountpoint, None))
    }

    /// Says how many connections there may be, which the quotas of users are a part of.
    pub fn set_connections_max(&self, max: u64) {
        self.connections_max.store(max, Relaxed);
    }

    /// How many users and mountpoints have anything of the node.
    pub fn charged_accounts(&self) -> usize {
        self.load.quotas.charged()
    }

    pub(crate) fn connections_max(&self) -> u64 {
        self.connections_max.load(Relaxed)
    }

    /// Says what the configuration calls the listeners. The first call counts.
    pub fn name_listeners(&self, names: Vec<String>) {
        if self.listeners.set(names).is_err() {
            debug_assert!(false, "a node's listeners are named once");
        }
    }

    /// Says what the listeners' messages are acknowledged for, in the order of [`Self::name_listeners`]. The first call counts.
    pub fn set_durability(&self, listeners: Vec<Durability>) {
        if self.durability.set(listeners).is_err() {
            debug_assert!(false, "a listener has one durability");
        }
    }

    /// Says who has to know of subscriptions before SUBACK, in the order of [`Self::name_listeners`]. The first call counts.
    pub fn set_suback(&self, listeners: Vec<Option<SubackLevel>>) {
        if self.suback.set(listeners).is_err() {
            debug_assert!(false, "a listener has one level");
        }
    }

    pub(crate) fn listener_suback(&self, listener: u16) -> Option<SubackLevel> {
        self.suback.get().and_then(|known| known.get(usize::from(listener))).copied().flatten()
    }

    pub(crate) fn listener_durability(&self, listener: u16) -> Durability {
        let known = self.durability.get();
        known.and_then(|known| known.get(usize::from(listener))).copied().unwrap_or_default()
    }

    /// Empty for [`NO_LISTENER`].
    pub(crate) fn listener_name(&self, listener: u16) -> &str {
        let names = self.listeners.get();
        names.and_then(|names| names.get(usize::from(listener))).map_or("", String::as_str)
    }

    /// Says how letters from other threads reach a worker. The first call counts.
    pub fn set_mailbox(&self, mailbox: impl Fn(WorkerId, WorkerCommand) + Send + Sync + 'static) {
        if self.mailbox.set(Box::new(mailbox)).is_err() {
            debug_assert!(false, "a node has one mailbox");
        }
    }

    /// Sends a letter from any thread.
    pub(crate) fn post(&self, worker: WorkerId, command: WorkerCommand) {
        if let Some(mailbox) = self.mailbox.get() {
            mailbox(worker, command);
        }
    }

    /// Builds the node's workers, one for each reactor, in the order of their ids. To be called once, after
    /// [`Self::join_cluster`] and before anything is accepted from clients.
    ///
    /// A message that is dispatched before every durable subscription and every member of a shared group is in the index would
    /// be acknowledged with "No matching subscribers" and lost. So all workers are built before any of them may serve.
    pub fn build_workers(self: &Arc<Self>) -> Vec<Worker> {
        let ids = (0..self.workers).map(WorkerId);
        let mut workers: Vec<_> = ids.map(|id| Worker::new(id, self.clone())).collect();
        if mutated(Mutation::ServeBeforeRecall) {
            workers[0].recall();
            workers[0].start_shards();
        } else {
            workers.iter_mut().for_each(Worker::recall);
            exchange(&mut workers, self.began());
            workers.iter_mut().for_each(Worker::start_shards);
        }
        self.has_begun.store(true, Release);
        // Other nodes are notified of the routes that this node starts with when they are complete.
        if let Some(peers) = self.routes.peers() {
            peers.routes_changed();
        }
        workers
    }

    /// Whether all subscriptions of durable sessions are in the index.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Acquire)
    }

    /// The state that a shard begins with: what was found on the disk, or nothing.
    pub(crate) fn take_shard(&self, id: ShardId) -> Shard {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match found.iter().position(|shard| shard.id() == id.0) {
            Some(at) => found.swap_remove(at),
            None => Shard::new(id.0, self.hash_key),
        }
    }

    /// The log tells this node from now on. After [`Self::set_mailbox`].
    pub fn connect_log(self: &Arc<Self>) {
        if let Some(log) = &self.log {
            log.connect(self);
        }
    }

    /// The node belongs to a cluster. After [`Self::set_mailbox`], and before its workers begin. `clock` stands at [`Self::began`].
    ///
    /// # Errors
    /// Those of [`Peers::connect`].
    pub fn join_cluster(self: &Arc<Self>, peers: Arc<dyn Peers>, clock: Instant) -> Result<(), String> {
        self.routes.connect_peers(peers.clone());
        peers.connect(self, clock)
    }

    /// What the node needs to know to keep retained messages as others do: how many other nodes there are (their places are the numbers
    /// below), the time of the world in milliseconds when this node's [`Time`] was [`Self::began`], and a number that no other node should
    /// have, for what is retained at the same time.
    pub fn stamp_retained(&self, others: u16, wall_ms: u64, own: u8) {
        self.set_other_nodes(others);
        self.is_stamping.store(true, Relaxed);
        self.wall_ms.store(wall_ms, Relaxed);
        self.last_stamp.store(u64::from(own), Relaxed);
    }

    /// The time of the world when this node's [`Time`] was [`Self::began`] is another one than was thought, milliseconds.
    pub fn set_wall_clock(&self, wall_ms: u64) {
        self.wall_ms.store(wall_ms, Relaxed);
    }

    /// So many places of other nodes there are now.
    pub fn set_other_nodes(&self, others: u16) {
        self.others.store(others, Relaxed);
    }

    /// How many other nodes there are.
    pub(crate) fn others(&self) -> u16 {
        self.others.load(Relaxed)
    }

    /// A time for a message that is retained now: greater than that of every one that this node has seen; 0 on a node without others. Its
    /// upper 48 bits are milliseconds of the world, and the lowest 8 the node's own.
    pub(crate) fn stamp(&self, now: Time) -> u64 {
        if !self.is_stamping.load(Relaxed) {
            return 0;
        }
        let wall_ms =
            self.wall_ms.load(Relaxed).saturating_add(now.0.saturating_sub(self.incarnation.began.0)) << 16;
        let next = |last: u64| {
            let own = last & 0xff;
            Some((wall_ms | own).max((last & !0xff).saturating_add(0x100) | own))
        };
        let last = self.last_stamp.fetch_update(Relaxed, Relaxed, next).unwrap_or_default();
        next(last).unwrap_or_default()
    }

    /// Whether a stamp may be of this node, in any of its lives.
    pub(crate) fn is_own_stamp(&self, stamp: u64) -> bool {
        (stamp ^ self.last_stamp.load(Relaxed)) & 0xff == 0
    }

    /// Another node has retained something then.
    pub(crate) fn observe_stamp(&self, stamp: u64) {
        let next = |last: u64| (stamp > last).then_some(stamp & !0xff | last & 0xff);
        // Nothing changes when it is an old one.
        let _ = self.last_stamp.fetch_update(Relaxed, Relaxed, next);
    }

    /// Until then this node knows all routes that others were told are known, so that it may acknowledge messages of QoS 1 and 2.
    pub fn set_fresh_until(&self, until: Time) {
        self.fresh_until.store(until.0, Relaxed);
    }

    /// Whether somebody may have subscribed elsewhere of whom this node has not heard.
    pub(crate) fn is_stale(&self, now: Time) -> bool {
        self.fresh_until.load(Relaxed) <= now.0
    }

    /// A shared group, `$share/{ShareName}/{filter}`, has these members on another node. Ignored when that is no name of a group.
    pub fn members_of_peer(&self, text: &str, node: NodeIndex, members: Members) {
        if let Some(group) = GroupName::parse(text) {
            let (shard, group) = (group.shard(), Box::new(group));
            let join = Request::JoinNode { group, node, members };
            self.routes.joins();
            self.post(self.shard_host(shard), WorkerCommand::Request(shard, join));
        }
    }

    /// Closes all connections of clients, a few of each worker at a time: what they were promised holds no more.
    pub fn close_clients(self: &Arc<Self>, reason: ReasonCode) {
        (0..self.workers).for_each(|worker| self.close_some(WorkerId(worker), 0, reason));
    }

    fn close_some(self: &Arc<Self>, worker: WorkerId, from: u32, reason: ReasonCode) {
        let node = self.clone();
        let reply = Box::new(move |next| {
            if let Some(next) = next {
                node.close_some(worker, next, reason);
            }
        });
        let request = AdminRequest::KickAll { from, reason, reply };
        self.post(worker, request.into());
    }

    /// Other nodes have something for a worker, from any thread.
    pub fn post_inbound(&self, worker: WorkerId, inbound: Inbound) {
        self.post(worker, WorkerCommand::Peers(Box::new(inbound)));
    }

    /// When the node's time began in this life.
    pub fn began(&self) -> Time {
        self.incarnation.began
    }

    /// The log has something to say to a shard.
    pub fn store_event(&self, shard: ShardId, event: StoreEvent) {
        self.post(self.shard_host(shard), WorkerCommand::Store(vec![(shard, event)]));
    }

    /// Batches up to these indexes are durable.
    pub fn store_durable(&self, shards: impl Iterator<Item = (ShardId, u64)>) {
        let mut by_worker: Vec<Vec<_>> = (0..self.workers).map(|_| Vec::new()).collect();
        for (shard, index) in shards {
            by_worker[self.shard_host(shard).index()].push((shard, StoreEvent::Durable(index)));
        }
        for (worker, events) in by_worker.into_iter().enumerate() {
            if !events.is_empty() {
                self.post(WorkerId(worker as u16), WorkerCommand::Store(events));
            }
        }
    }

    /// Why the log takes no message now. Asked once for each, before anybody has it: what one shard has taken no other may refuse.
    pub(crate) fn refusal(&self) -> Option<ReasonCode> {
        self.log.as_ref().and_then(|log| match log.condition() {
            Condition::Good => None,
            Condition::Full => Some(ReasonCode::QuotaExceeded),
            Condition::Failed => Some(ReasonCode::ImplementationSpecificError),
        })
    }

    /// What other nodes have retained, or do now, finds no room.
    pub(crate) fn note_retained_missing(&self) {
        self.retained_missing.store(true, Relaxed);
    }

    /// Whether something that others have retained is missing, and there may be room for it now. True once.
    pub(crate) fn take_retained_missing(&self) -> bool {
        self.retained_missing.load(Relaxed)
            && self.refusal().is_none()
            && self.retained_missing.swap(false, Relaxed)
    }

    /// Whether the log takes messages has changed.
    pub fn store_condition(&self, condition: Condition) {
        for worker in (0..self.workers).map(WorkerId) {
            let events = self.hosted(worker).map(|shard| (shard, StoreEvent::Condition(condition)));
            self.post(worker, WorkerCommand::Store(events.collect()));
        }
    }

    /// The worker that hosts a shard of the session store.
    pub fn shard_host(&self, shard: ShardId) -> WorkerId {
        WorkerId(shard.0 % self.workers)
    }

    /// Whether it has to be asked if there is a place for another retained message.
    pub(crate) fn is_short_of_retained(&self) -> bool {
        self.load.retained_is_short.load(Relaxed)
    }

    /// The worker that has the retained messages of a [`shard`](crate::retained::shard_of).
    pub(crate) fn retained_host(&self, shard: ShardId) -> WorkerId {
        if shard == retained::OWN_TOPICS { WorkerId(0) } else { self.shard_host(shard) }
    }

    /// Shards that a worker hosts, before another one or all, as bits.
    pub(crate) fn retained_shards(&self, worker: WorkerId, before: Option<ShardId>) -> u16 {
        let hosted = self.hosted(worker).filter(|shard| before.is_none_or(|before| *shard < before));
        hosted.fold(0, |shards, shard| shards | 1 << shard.0)
    }

    /// Shards that a worker hosts.
    pub fn hosted(&self, worker: WorkerId) -> impl Iterator<Item = ShardId> {
        let workers = self.workers;
        (0..SHARDS).map(ShardId).filter(move |shard| shard.0 % workers == worker.0)
    }

    /// Whether messages that wait take more memory than `limits.memory_queued_max`: publishers wait, but for clients that are
    /// away no longer than `queue.full_wait`, because these may not come back for days.
    pub(crate) fn is_overloaded(&self) -> bool {
        // The flag is enough on the path of a packet; the sum is for when it is up.
        if !self.overloaded.load(Relaxed) {
            return false;
        }
        let (queued, absent) = self.queued_bytes();
        let counts =
            if self.load.absent_give_way.load(Relaxed) { queued.saturating_sub(absent) } else { queued };
        counts > self.settings.load().limits.memory_queued_max.bytes()
    }

    /// Whether a publisher should have no more than one message unanswered, so that nobody fills the rest at once.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Relaxed)
    }

    /// An equal share of half of `limits.memory_queued_max` among the connected clients for whom something waits.
    pub(crate) fn equal_share(&self) -> u64 {
        let sum = |figure: fn(&Published) -> &AtomicU64| -> u64 {
            self.published.iter().map(|worker| Published::get(figure(worker))).sum()
        };
        let clients = sum(|worker| &worker.waiting_clients);
        self.settings.load().limits.memory_queued_max.bytes() / 2 / clients.max(1)
    }

    /// A worker's `queued_bytes` have changed, or time has passed.
    pub(crate) fn weigh(&self, now: Time) {
        let set = |flag: &AtomicBool, value| {
            if flag.load(Relaxed) != value {
                flag.store(value, Relaxed);
            }
        };
        let (queued, absent) = self.queued_bytes();
        let settings = self.settings.load();
        let maximum = settings.limits.memory_queued_max.bytes();
        self.load.queued.store(queued, Relaxed);
        set(&self.overloaded, queued > maximum);
        set(&self.nearly_full, queued > maximum / 4 * 3);
        let half_since = self.half_since.load(Relaxed);
        if queued.saturating_sub(absent) <= maximum / 2 {
            if half_since != 0 {
                self.half_since.store(0, Relaxed);
                set(&self.load.hoarders_give_way, false);
            }
        } else if half_since == 0 {
            self.half_since.store(now.0.max(1), Relaxed);
        } else if Time(half_since).after(settings.queue.full_wait) <= now {
            set(&self.load.hoarders_give_way, true);
        }
        let since = self.overloaded_since.load(Relaxed);
        if since == 0 && queued > maximum {
            self.overloaded_since.store(now.0.max(1), Relaxed);
        } else if since != 0 && queued <= maximum / 4 * 3 {
            // Not at once, or everybody would wait again for the next message.
            self.overloaded_since.store(0, Relaxed);
            set(&self.load.absent_give_way, false);
        } else if since != 0 && Time(since).after(settings.queue.full_wait) <= now {
            set(&self.load.absent_give_way, true);
        }
    }

    /// Bytes that wait for clients that are connected.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let (queued, absent) = self.queued_bytes();
        queued.saturating_sub(absent)
    }

    /// Bytes that wait on all workers, and those of them that wait for absent clients.
    fn queued_bytes(&self) -> (u64, u64) {
        let sum = |figure: fn(&Published) -> &AtomicU64| {
            self.published.iter().map(|worker| Published::get(figure(worker))).sum()
        };
        (sum(|worker| &worker.queued_bytes), sum(|worker| &worker.offline_bytes))
    }

    /// The Session Expiry Interval that is granted for the one asked for, both in seconds.
    pub(crate) fn granted_expiry(&self, asked: u32) -> u32 {
        asked.min(u32::try_from(self.settings.load().session.expiry_max.as_secs()).unwrap_or(u32::MAX))
    }
}

/// Delivers what the workers have for each other until nothing is left.
fn exchange(workers: &mut [Worker], now: Time) {
    loop {
        let mut is_quiet = true;
        for from in 0..workers.len() {
            for to in 0..workers.len() {
                let outgoing = workers[from].outgoing(WorkerId(to as u16));
                if outgoing.is_empty() {
                    continue;
                }
                let mut batch = std::mem::take(outgoing);
                workers[to].take_batch(now, &mut batch);
                is_quiet = false;
            }
        }
        if is_quiet {
            return;
        }
    }
}
