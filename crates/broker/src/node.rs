//! State that all workers of a node share.

mod load;

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use boottime::Instant;
use mqtt::ReasonCode;
use routing::{Index, IndexLimits};
use shard::{Mutation, NodeIncarnation, Shard, mutated};
use siphasher::sip::SipHasher13;

use crate::access::Access;
use crate::admin::{AdminRequest, Traces, Watches};
use crate::batch::WorkerCommand;
use crate::counters::Published;
use crate::durability::Durability;
use crate::full_queues::FullQueues;
use crate::groups::GroupRequest;
use crate::ids::{ShardId, ShardSet, Time, WorkerId};
use crate::interest::{InterestWatch, Wake};
use crate::link_waits::LinkWaits;
use crate::origin::{OriginFacts, Origins};
use crate::peers::{Inbound, Members, NodeIndex, Peers, SubackLevel};
use crate::publishers::Publishers;
use crate::quota::Payers;
use crate::refusal_log::RefusalLog;
use crate::retained;
use crate::routes::Routes;
use crate::settings::Settings;
use crate::spans::SpanQueues;
use crate::store::{
    Agreement, Condition, GroupName, Identity, Incarnation, ReplicaStart, SHARDS, Store, StoreEvent,
    StoreLog, stale_identities,
};
use crate::worker::{DrainState, Worker};

pub use self::load::NodeLoad;

/// Parts of a node that every worker reads. **Invariant:** nothing here is locked on the path of a packet.
pub struct Node {
    /// Settings in force. Each worker keeps a copy, which is updated by
    /// [`Admin::set_settings`](crate::admin::Admin::set_settings).
    settings: ArcSwap<Settings>,
    pub access: Arc<dyn Access>,
    pub routes: Arc<Routes>,
    /// Version in `$SYS/broker/version`.
    pub version: String,
    pub workers: u16,
    /// Published numbers, one entry per worker.
    pub published: Vec<Published>,
    listeners: OnceLock<Vec<String>>,
    /// Durability of the messages of each listener, by its index.
    durability: OnceLock<Vec<Durability>>,
    /// Nodes that must know the subscriptions of each listener before SUBACK, by its index.
    suback: OnceLock<Vec<Option<SubackLevel>>>,
    /// Links to other clusters, for SUBACKs of level `links`.
    link_waits: OnceLock<Arc<dyn LinkWaits>>,
    /// Function by which threads that are not workers send a command to a worker.
    mailbox: OnceLock<Box<dyn Fn(WorkerId, WorkerCommand) + Send + Sync>>,
    pub(crate) refusal_log: RefusalLog,
    pub(crate) watches: Watches,
    pub(crate) traces: Traces,
    pub(crate) hash_key: [u8; 16],
    /// Key for the owners of Client Identifiers, see [`Self::set_owner_hash`].
    owner_hash: OnceLock<[u8; 16]>,
    /// True while more than `limits.memory_queued_max` waits, as of the last turn of a worker.
    overloaded: AtomicBool,
    /// Time in milliseconds at which the overload began, at least 1; 0 while the node is not overloaded.
    overloaded_since: AtomicU64,
    /// Time in milliseconds since which more than half of the limit waits for connected clients, at least 1; 0 while
    /// less waits.
    half_since: AtomicU64,
    /// True while more than three quarters of `limits.memory_queued_max` wait.
    nearly_full: AtomicBool,
    /// Time in milliseconds at which the lease ends, see [`Self::set_fresh_until`].
    fresh_until: AtomicU64,
    /// Number of workers that still serve clients in an incarnation of this node that is over.
    restarting: AtomicUsize,
    overlaps_connacks: AtomicBool,
    freezes: AtomicBool,
    /// True while this node knows all routes that others may have been promised that it knows.
    knows_routes: AtomicBool,
    /// Number of other nodes, see [`Self::set_other_nodes`].
    others: AtomicU16,
    /// True when retained messages get a stamp by which other nodes can compare them.
    is_stamping: AtomicBool,
    wall_ms: AtomicU64,
    name: OnceLock<Box<str>>,
    pub(crate) publishers: Publishers,
    last_stamp: AtomicU64,
    /// True when other nodes have retained messages for which there was no room here.
    retained_missing: AtomicBool,
    pub(crate) load: Arc<NodeLoad>,
    connections_max: AtomicU64,
    /// Log of the shards, if they are durable.
    pub(crate) log: Option<Arc<dyn StoreLog>>,
    pub(crate) incarnation: Incarnation,
    /// This node in a cluster whose shards have leaders on any of its nodes.
    pub(crate) own: Option<NodeIncarnation>,
    /// True once all workers are built, with the subscriptions of the sessions that were found.
    has_begun: AtomicBool,
    /// Restored shards, until their workers take them.
    found: Mutex<Vec<Shard>>,
    /// Identities that the shards have to forget at the start.
    stale: Mutex<Vec<(ShardId, Identity)>>,
    /// Agreements of the shards, until their workers take them.
    agreements: Mutex<Vec<(ShardId, Box<dyn Agreement>)>>,
    origin_facts: OnceLock<OriginFacts>,
    origin_wall_ms: AtomicU64,
    pub(crate) drain: DrainState,
    /// Counter that assigned Client Identifiers are made of.
    pub(crate) assigned: AtomicU64,
    spans: OnceLock<Arc<SpanQueues>>,
}

/// Key of the owner of a Client Identifier; odd for a client with a mountpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnerKey(u32);

impl OwnerKey {
    /// Key of clients without user and tenant.
    pub const NOBODY: Self = Self(0);

    /// Makes the key of a user, or of all clients behind a mountpoint.
    pub(crate) fn of(hash_key: &[u8; 16], mountpoint: &str, username: Option<&str>) -> Self {
        // Sessions are stored with this value. The hash function is fixed by name, so that a new toolchain cannot
        // change it.
        let mut hasher = SipHasher13::new();
        hasher.write(hash_key);
        hasher.write(mountpoint.as_bytes());
        hasher.write_u8(0xFF); // This byte is in no text.
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

    /// Key of the mountpoint of a client with this owner, as far as the Client Identifier contains it: that of a tenant
    /// is its first level. A mountpoint of several levels is known when the client reconnects.
    pub(crate) fn mountpoint_of(self, hash_key: &[u8; 16], client_id: &str) -> Self {
        match client_id.find('/') {
            Some(end) if self.is_mounted() => Self::of(hash_key, &client_id[..=end], None),
            _ => Self::NOBODY,
        }
    }

    pub(crate) fn from_u32(key: u32) -> Self {
        Self(key)
    }

    pub(crate) fn as_u32(self) -> u32 {
        self.0
    }

    /// Returns whether a client with the key `other` may take over what belongs to this one. Anybody may take what
    /// belongs to nobody, but a tenant may not: a client without a mountpoint may have subscribed to more than the
    /// tenant may see.
    pub fn allows_takeover_by(self, other: Self) -> bool {
        self == other || (self == Self::NOBODY && !other.is_mounted())
    }
}

/// Listener index of a connection without a listener.
pub(crate) const NO_LISTENER: u16 = u16::MAX;

impl Node {
    /// Creates a node that keeps nothing on disk.
    ///
    /// `seed` is secret randomness: keys of hash tables, assigned identifiers, choices in shared groups.
    pub fn new(
        settings: Settings,
        access: Arc<dyn Access>,
        version: String,
        workers: u16,
        seed: [u8; 16],
    ) -> Arc<Self> {
        let store = Store {
            log: None,
            shards: Vec::new(),
            agreements: Vec::new(),
            own: None,
            incarnation: Incarnation::default(),
            hash_key: seed,
        };
        Self::with_store(settings, access, version, workers, store)
    }

    /// Creates a node that continues with the contents of `store`.
    pub fn with_store(
        settings: Settings,
        access: Arc<dyn Access>,
        version: String,
        workers: u16,
        store: Store,
    ) -> Arc<Self> {
        let Store { log, shards, agreements, own, incarnation, hash_key: seed } = store;
        let stale = match own {
            None => stale_identities(&shards.iter().collect::<Vec<_>>()),
            Some(_) => Vec::new(),
        };
        // `mqtt.topic_levels_max` does not apply: a filter that another node granted, or this node before a restart,
        // may have more levels.
        let limits =
            IndexLimits { shapes_max: settings.routing.shapes_max as usize, ..IndexLimits::default() };
        let routes = Routes::new(Index::new(seed, limits), seed, own.is_some());
        routes.set_linked_prefix(settings.shared.linked_prefix.clone());
        Arc::new(Self {
            routes: Arc::new(routes),
            settings: ArcSwap::from_pointee(settings),
            access,
            version,
            workers,
            published: (0..workers).map(|_| Published::default()).collect(),
            listeners: OnceLock::new(),
            durability: OnceLock::new(),
            suback: OnceLock::new(),
            link_waits: OnceLock::new(),
            mailbox: OnceLock::new(),
            refusal_log: RefusalLog::default(),
            watches: Watches::default(),
            traces: Traces::default(),
            hash_key: seed,
            owner_hash: OnceLock::new(),
            overloaded: AtomicBool::new(false),
            overloaded_since: AtomicU64::new(0),
            half_since: AtomicU64::new(0),
            nearly_full: AtomicBool::new(false),
            fresh_until: AtomicU64::new(u64::MAX),
            restarting: AtomicUsize::new(0),
            overlaps_connacks: AtomicBool::new(false),
            freezes: AtomicBool::new(false),
            knows_routes: AtomicBool::new(false),
            others: AtomicU16::new(0),
            is_stamping: AtomicBool::new(false),
            wall_ms: AtomicU64::new(0),
            name: OnceLock::new(),
            publishers: Publishers::default(),
            last_stamp: AtomicU64::new(0),
            retained_missing: AtomicBool::new(false),
            load: Arc::new(NodeLoad { full_queues: FullQueues::new(seed), ..NodeLoad::default() }),
            connections_max: AtomicU64::new(u64::MAX),
            log,
            incarnation,
            own,
            stale: Mutex::new(stale),
            found: Mutex::new(shards),
            agreements: Mutex::new(agreements),
            has_begun: AtomicBool::new(false),
            assigned: AtomicU64::new(0),
            origin_facts: OnceLock::new(),
            origin_wall_ms: AtomicU64::new(0),
            drain: DrainState::default(),
            spans: OnceLock::new(),
        })
    }

    /// Lets workers record spans of messages that ask for them. It is called before [`Self::build_workers`]. Only the
    /// first call has an effect.
    pub fn record_spans(&self, queues: Arc<SpanQueues>) {
        if self.spans.set(queues).is_err() {
            debug_assert!(false, "the spans of a node have one exporter");
        }
    }

    pub(crate) fn span_queues(&self) -> Option<&Arc<SpanQueues>> {
        self.spans.get()
    }

    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    pub(crate) fn set_settings(&self, settings: Arc<Settings>) {
        self.settings.store(settings);
    }

    /// Worker that answers for a stage of a listing. The first stages are the workers, for their connections; the next
    /// are the shards, by their hosts.
    pub(crate) fn stage_host(&self, stage: u32) -> Option<WorkerId> {
        match stage.checked_sub(u32::from(self.workers)) {
            None => Some(WorkerId(stage as u16)),
            Some(shard) if shard < u32::from(SHARDS) => Some(self.shard_host(ShardId(shard as u16))),
            Some(_) => None,
        }
    }

    /// A number that reveals nothing about the node's secret, nor about the results for other `number`s.
    pub(crate) fn secret(&self, number: u64) -> u64 {
        let mut hasher = SipHasher13::new();
        hasher.write(&self.hash_key);
        hasher.write_u64(number);
        hasher.finish()
    }

    /// Key of the clients that own a Client Identifier together: a user, or a tenant and its user. It cannot be
    /// computed outside of the node.
    pub(crate) fn owner_key(&self, mountpoint: &str, username: Option<&str>) -> OwnerKey {
        OwnerKey::of(&self.owner_hash(), mountpoint, username)
    }

    /// Sets the key by which all nodes of a cluster find the same owner of a Client Identifier. Only the first call has
    /// an effect. It comes before any client is accepted. A node alone uses its own key.
    pub fn set_owner_hash(&self, key: [u8; 16]) {
        let known = self.owner_hash.get_or_init(|| key);
        debug_assert_eq!(*known, key, "a cluster has one key");
    }

    /// Says whether shards that this node leads may keep ephemeral sessions: all replicas must understand that.
    pub fn keep_ephemeral_sessions(&self, keeps: bool) {
        self.load.keeps_ephemeral.store(keeps, Relaxed);
    }

    /// Says whether all replicas understand Claims with limits for the queue of their session.
    pub fn read_queue_limits(&self, read: bool) {
        self.load.reads_queue_limits.store(read, Relaxed);
    }

    /// Begins to watch which Topic Filters are wanted, see
    /// [`Admin::watch_interest`](crate::admin::Admin::watch_interest).
    pub fn watch_interest(self: &Arc<Self>, wake: Wake) -> InterestWatch {
        InterestWatch::begin(self, wake)
    }

    /// Says whether all nodes of the cluster know the routes of linked clusters.
    pub fn read_links(&self, read: bool) {
        self.load.reads_links.store(read, Relaxed);
    }

    /// Returns whether linked clusters may have sessions.
    pub(crate) fn serves_links(&self) -> bool {
        let load = &self.load;
        self.own.is_none() || load.reads_links.load(Relaxed) && load.reads_queue_limits.load(Relaxed)
    }

    /// Says whether all nodes of the cluster know that linked clusters join shared groups.
    pub fn read_linked_groups(&self, read: bool) {
        self.load.reads_linked_groups.store(read, Relaxed);
    }

    /// Returns whether linked clusters may join shared groups.
    pub(crate) fn serves_linked_groups(&self) -> bool {
        self.own.is_none() || self.load.reads_linked_groups.load(Relaxed)
    }

    /// Says whether all nodes of the cluster understand queues that refuse messages.
    pub fn read_queue_refusals(&self, read: bool) {
        self.load.reads_queue_refusals.store(read, Relaxed);
    }

    /// Says whether all nodes of the cluster understand origins of messages.
    pub fn read_origins(&self, read: bool) {
        self.load.reads_origins.store(read, Relaxed);
    }

    /// Says whether messages have an origin now. They do on a node alone.
    pub(crate) fn origins(&self) -> Origins {
        match self.routes.peers() {
            Some(_) if !self.load.reads_origins.load(Relaxed) => Origins::Removed,
            _ => Origins::Kept,
        }
    }

    /// Says whether CONNACK may be sent before the Claim of the client is answered (`cluster.connack`).
    pub fn overlap_connacks(&self, overlaps: bool) {
        self.overlaps_connacks.store(overlaps, Relaxed);
    }

    /// Returns whether CONNACK may overlap with the Claim. The shard has to keep the Will of such a client.
    pub(crate) fn overlaps_connacks(&self) -> bool {
        self.overlaps_connacks.load(Relaxed) && self.load.keeps_ephemeral.load(Relaxed)
    }

    pub(crate) fn owner_hash(&self) -> [u8; 16] {
        self.owner_hash.get().copied().unwrap_or(self.hash_key)
    }

    /// Accounts that pay for a client's resources.
    pub(crate) fn payers(&self, mountpoint: &str, username: Option<&str>) -> Payers {
        let user = if username.is_some() { self.owner_key(mountpoint, username) } else { OwnerKey::NOBODY };
        self.load.quotas.payers(user, self.owner_key(mountpoint, None))
    }

    /// Accounts that pay for a client of another node.
    pub(crate) fn payers_of(&self, owner: OwnerKey, client_id: &str) -> Payers {
        self.load.quotas.payers(owner, owner.mountpoint_of(&self.owner_hash(), client_id))
    }

    /// Sets the maximum number of connections, from which the quotas of users are computed.
    pub fn set_connections_max(&self, max: u64) {
        self.connections_max.store(max, Relaxed);
    }

    /// Number of users and mountpoints that have anything charged to them.
    pub fn charged_accounts(&self) -> usize {
        self.load.quotas.charged()
    }

    pub(crate) fn connections_max(&self) -> u64 {
        self.connections_max.load(Relaxed)
    }

    /// Sets the names of the listeners in the configuration. Only the first call has an effect.
    pub fn name_listeners(&self, names: Vec<String>) {
        if self.listeners.set(names).is_err() {
            debug_assert!(false, "a node's listeners are named once");
        }
    }

    /// Sets the durability of the listeners' messages, in the order of [`Self::name_listeners`]. Only the first call
    /// has an effect.
    pub fn set_durability(&self, listeners: Vec<Durability>) {
        if self.durability.set(listeners).is_err() {
            debug_assert!(false, "a listener has one durability");
        }
    }

    /// Sets which nodes must know subscriptions before SUBACK, in the order of [`Self::name_listeners`]. Only the first
    /// call has an effect.
    pub fn set_suback(&self, listeners: Vec<Option<SubackLevel>>) {
        if self.suback.set(listeners).is_err() {
            debug_assert!(false, "a listener has one level");
        }
    }

    /// Sets the links for which SUBACKs of level `links` wait, see
    /// [`Admin::set_link_waits`](crate::admin::Admin::set_link_waits).
    pub(crate) fn set_link_waits(&self, waits: Arc<dyn LinkWaits>) {
        if self.link_waits.set(waits).is_err() {
            debug_assert!(false, "a node has one engine of links");
        }
    }

    pub(crate) fn link_waits(&self) -> Option<&Arc<dyn LinkWaits>> {
        self.link_waits.get()
    }

    pub(crate) fn listener_suback(&self, listener: u16) -> Option<SubackLevel> {
        self.suback.get().and_then(|known| known.get(usize::from(listener))).copied().flatten()
    }

    pub(crate) fn listener_durability(&self, listener: u16) -> Durability {
        let known = self.durability.get();
        known.and_then(|known| known.get(usize::from(listener))).copied().unwrap_or_default()
    }

    /// Name of a listener; empty for [`NO_LISTENER`].
    pub(crate) fn listener_name(&self, listener: u16) -> &str {
        let names = self.listeners.get();
        names.and_then(|names| names.get(usize::from(listener))).map_or("", String::as_str)
    }

    /// Sets the function by which other threads send commands to a worker. Only the first call has an effect.
    pub fn set_mailbox(&self, mailbox: impl Fn(WorkerId, WorkerCommand) + Send + Sync + 'static) {
        if self.mailbox.set(Box::new(mailbox)).is_err() {
            debug_assert!(false, "a node has one mailbox");
        }
    }

    /// Sends a command to a worker from any thread.
    pub(crate) fn post(&self, worker: WorkerId, command: WorkerCommand) {
        if let Some(mailbox) = self.mailbox.get() {
            mailbox(worker, command);
        }
    }

    /// Builds the node's workers, one for each reactor, in the order of their ids. It is called once, after
    /// [`Self::join_cluster`] and before any client is accepted.
    ///
    /// All workers are built before any of them may serve. Otherwise a message could be dispatched before every durable
    /// subscription and every member of a shared group is in the index. It would be acknowledged with "No matching
    /// subscribers" and lost.
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
        // Other nodes are notified once all routes that this node starts with are complete.
        if let Some(peers) = self.routes.peers() {
            peers.routes_changed();
        }
        workers
    }

    /// Returns whether all subscriptions of durable sessions are in the index.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Acquire)
    }

    /// Initial state of a shard: restored from the disk, or empty.
    pub(crate) fn take_shard(&self, id: ShardId) -> Shard {
        let mut found = sync::lock(&self.found);
        match found.iter().position(|shard| shard.id() == id.0) {
            Some(at) => found.swap_remove(at),
            None => Shard::new(id.0, self.hash_key),
        }
    }

    /// Takes the identities that the shards have to forget, once.
    pub(crate) fn take_stale_identities(&self) -> Vec<(ShardId, Identity)> {
        std::mem::take(&mut *sync::lock(&self.stale))
    }

    /// Takes the agreement of a shard that other nodes have too.
    pub(crate) fn take_agreement(&self, id: ShardId) -> Option<Box<dyn Agreement>> {
        let mut agreements = sync::lock(&self.agreements);
        let at = agreements.iter().position(|(shard, _)| *shard == id)?;
        Some(agreements.swap_remove(at).1)
    }

    /// Begins a replica of a shard, on a node whose shards belong to its cluster. Its events follow.
    pub fn start_replica(&self, start: ReplicaStart) {
        debug_assert!(self.own.is_some(), "the shards of a node alone begin with it");
        let worker = self.shard_host(ShardId(start.state.id()));
        self.post(worker, WorkerCommand::StartReplica(Box::new(start)));
    }

    /// Ends the replica of a shard on this node.
    pub fn stop_replica(&self, shard: ShardId) {
        self.post(self.shard_host(shard), WorkerCommand::StopReplica(shard));
    }

    /// Connects the log, which sends its events to this node from now on. It is called after [`Self::set_mailbox`].
    pub fn connect_log(self: &Arc<Self>) {
        if let Some(log) = &self.log {
            log.connect(self);
        }
    }

    /// Connects the node to a cluster. It is called after [`Self::set_mailbox`] and before the workers start. `clock`
    /// is the instant of the node's time [`Self::began`].
    ///
    /// # Errors
    /// Those of [`Peers::connect`].
    pub fn join_cluster(self: &Arc<Self>, peers: Arc<dyn Peers>, clock: Instant) -> Result<(), String> {
        self.routes.connect_peers(peers.clone());
        peers.connect(self, clock)
    }

    /// Starts stamping retained messages, so that all nodes of a cluster keep the same ones. `wall_ms` is the
    /// wall-clock time in milliseconds at the node's time [`Self::began`]. `own` is a number that no other node should
    /// have, for messages that are retained at the same time.
    pub fn stamp_retained(&self, wall_ms: u64, own: u8) {
        self.is_stamping.store(true, Relaxed);
        self.wall_ms.store(wall_ms, Relaxed);
        self.last_stamp.store(u64::from(own), Relaxed);
    }

    /// Corrects the wall-clock time in milliseconds at the node's time [`Self::began`].
    pub fn set_wall_clock(&self, wall_ms: u64) {
        self.wall_ms.store(wall_ms, Relaxed);
    }

    /// Sets the clock of most nodes of the cluster, which the shards follow: its time in milliseconds at the node's
    /// time [`Self::began`]. `None`: most nodes do not agree, as far as this node knows.
    pub fn set_cluster_clock(&self, base_ms: Option<u64>) {
        let began = i128::from(self.incarnation.began.0);
        let ahead = base_ms.map(|base| i64::try_from(i128::from(base) - began).unwrap_or(0));
        self.load.cluster_clock.set(ahead);
    }

    /// Wall-clock time of a time of the node, in milliseconds since 1970.
    pub(crate) fn wall_ms(&self, time: Time) -> u64 {
        self.wall_ms.load(Relaxed).saturating_add(time.0).saturating_sub(self.incarnation.began.0)
    }

    /// Sets the name of the node. Only the first call has an effect.
    pub fn set_name(&self, name: &str) {
        if self.name.set(name.into()).is_err() {
            debug_assert!(false, "a node has one name");
        }
    }

    /// Name of the node; empty until it is set.
    pub(crate) fn name(&self) -> &str {
        self.name.get().map_or("", |name| name)
    }

    /// Sets the number of indexes of other nodes: these are the numbers below it.
    pub fn set_other_nodes(&self, others: u16) {
        self.others.store(others, Relaxed);
    }

    /// Number of other nodes.
    pub(crate) fn others(&self) -> u16 {
        self.others.load(Relaxed)
    }

    /// Stamp of a message that is retained now: greater than every stamp that this node has seen. Its upper 48 bits are
    /// milliseconds of wall-clock time, and the lowest 8 are the node's own number. 0 on a node without others, and in
    /// a cluster whose shards have replicas: there the topic's shard decides which message is the last one.
    pub(crate) fn stamp(&self, now: Time) -> u64 {
        if self.own.is_some() || !self.is_stamping.load(Relaxed) {
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

    /// Returns whether a stamp may be of this node, in any of its incarnations.
    pub(crate) fn is_own_stamp(&self, stamp: u64) -> bool {
        (stamp ^ self.last_stamp.load(Relaxed)) & 0xff == 0
    }

    /// Records the stamp of a message that another node has retained.
    pub(crate) fn observe_stamp(&self, stamp: u64) {
        let next = |last: u64| (stamp > last).then_some(stamp & !0xff | last & 0xff);
        // An error means that the stamp is an old one, which changes nothing.
        let _ = self.last_stamp.fetch_update(Relaxed, Relaxed, next);
    }

    /// Sets the end of the lease. Until then this node knows all routes whose SUBACK was sent anywhere, so that it may
    /// acknowledge messages of QoS 1 and 2. A lease of a new incarnation begins when all workers have closed the
    /// connections of the one before: other nodes may serve their clients.
    pub fn set_fresh_until(&self, until: Time) {
        let until = if self.restarting.load(Acquire) > 0 { Time(0) } else { until };
        self.fresh_until.store(until.0, Relaxed);
    }

    /// Notes that a worker goes on in the incarnation that [`Self::post_inbound`] has sent it.
    pub(crate) fn worker_restarted(&self) {
        self.restarting.fetch_sub(1, Release);
    }

    /// Takes the samples of connected clients that were requested by the last call, and requests new ones, which takes
    /// a second. Returns the shards that this node leads in a cluster, each with the number of clients by node.
    pub fn take_owner_samples(&self) -> Vec<(ShardId, BTreeMap<u64, u64>)> {
        let samples = &self.load.owner_samples;
        let shards = (0..).map(ShardId).zip(&samples.taken);
        let taken = shards.filter_map(|(shard, sample)| Some((shard, sync::lock(sample).take()?))).collect();
        samples.requested.fetch_add(1, Relaxed);
        taken
    }

    /// Says whether clients are neither read nor written to without a lease (`cluster.without_quorum = "freeze"`).
    pub fn freeze_without_lease(&self, freezes: bool) {
        self.freezes.store(freezes, Relaxed);
    }

    /// Returns whether clients are neither read nor written to without a lease.
    pub(crate) fn freezes(&self) -> bool {
        self.freezes.load(Relaxed)
    }

    /// Returns whether no client may be read or written to now: others may have taken its Client Identifier over.
    pub fn is_frozen(&self, now: Time) -> bool {
        self.freezes() && self.is_stale(now) && !mutated(Mutation::ServeFrozen)
    }

    /// Says whether this node knows all routes that others may have been promised that it knows.
    pub fn set_knows_routes(&self, knows: bool) {
        self.knows_routes.store(knows, Relaxed);
    }

    /// Returns whether nodes that have restarted may learn routes of shards without a leader from this one.
    pub(crate) fn knows_routes(&self) -> bool {
        self.knows_routes.load(Relaxed)
    }

    /// Returns whether this node has a lease, or had one. A node alone needs none.
    #[inline]
    pub(crate) fn has_lease(&self) -> bool {
        self.fresh_until.load(Relaxed) != u64::MAX
    }

    /// Returns whether another node may have a subscription that this node does not know.
    pub(crate) fn is_stale(&self, now: Time) -> bool {
        self.fresh_until.load(Relaxed) <= now.0
    }

    /// Sets the members of a shared group, `$share/{ShareName}/{filter}`, on another node. A text that names no group
    /// is ignored.
    pub fn members_of_peer(&self, text: &str, node: NodeIndex, members: Members) {
        if let Some(group) = GroupName::parse(text) {
            let (shard, group) = (group.shard(), Box::new(group));
            let join = GroupRequest::JoinNode { group, node, members };
            self.routes.joins();
            self.post(self.shard_host(shard), WorkerCommand::Group(shard, join));
        }
    }

    /// Closes all connections of clients, a few of each worker at a time. The guarantees that the clients were given no
    /// longer hold.
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

    /// Sends a worker the messages and commands of other nodes, from any thread. A new incarnation comes from the
    /// thread that sets the lease.
    pub fn post_inbound(&self, worker: WorkerId, inbound: Inbound) {
        if inbound.incarnation.is_some() {
            self.restarting.fetch_add(1, Relaxed);
            self.set_fresh_until(Time(0));
        }
        self.post(worker, WorkerCommand::Peers(Box::new(inbound)));
    }

    /// Facts for the origins of messages; without any before [`Admin::select_origins`](crate::admin::Admin).
    pub(crate) fn origin_facts(&self) -> &OriginFacts {
        static NONE: OriginFacts = OriginFacts { node: String::new(), run: 0 };
        self.origin_facts.get().unwrap_or(&NONE)
    }

    /// Wall clock at time 0 of the node, in ms since 1970, for origins.
    pub(crate) fn origin_wall_ms(&self) -> u64 {
        self.origin_wall_ms.load(Relaxed)
    }

    pub(crate) fn set_origin_wall_ms(&self, wall_ms: u64) {
        self.origin_wall_ms.store(wall_ms, Relaxed);
    }

    pub(crate) fn set_origin_facts(&self, make: impl FnOnce() -> OriginFacts) {
        self.origin_facts.get_or_init(make);
    }

    /// Start of the node's time in this incarnation.
    pub fn began(&self) -> Time {
        self.incarnation.began
    }

    /// Passes an event of the log to a shard.
    pub fn store_event(&self, shard: ShardId, event: StoreEvent) {
        self.post(self.shard_host(shard), WorkerCommand::Store(vec![(shard, event)]));
    }

    /// Passes events of the log to several shards.
    pub fn store_events(&self, events: impl Iterator<Item = (ShardId, StoreEvent)>) {
        let mut by_worker: Vec<Vec<_>> = (0..self.workers).map(|_| Vec::new()).collect();
        for (shard, event) in events {
            by_worker[self.shard_host(shard).index()].push((shard, event));
        }
        for (worker, events) in by_worker.into_iter().enumerate() {
            if !events.is_empty() {
                self.post(WorkerId(worker as u16), WorkerCommand::Store(events));
            }
        }
    }

    /// Reason why the log accepts no message now. It is checked once for each message, before the message is
    /// dispatched: when one shard has accepted it, no other may refuse it. In a cluster whose shards have replicas it
    /// does not depend on this node: another one leads then.
    pub(crate) fn refusal(&self) -> Option<ReasonCode> {
        let log = self.log.as_ref().filter(|_| self.own.is_none());
        log.and_then(|log| match log.condition() {
            Condition::Good => None,
            Condition::Full => Some(ReasonCode::QuotaExceeded),
            Condition::Failed => Some(ReasonCode::ImplementationSpecificError),
        })
    }

    /// Records that a retained message of another node finds no room.
    pub(crate) fn note_retained_missing(&self) {
        self.retained_missing.store(true, Relaxed);
    }

    /// Returns true, once, when retained messages of others are missing and there may be room for them now.
    pub(crate) fn take_retained_missing(&self) -> bool {
        self.retained_missing.load(Relaxed)
            && self.refusal().is_none()
            && self.retained_missing.swap(false, Relaxed)
    }

    /// Sets whether the log accepts messages.
    pub fn store_condition(&self, condition: Condition) {
        for worker in (0..self.workers).map(WorkerId) {
            let events = self.hosted(worker).map(|shard| (shard, StoreEvent::Condition(condition)));
            self.post(worker, WorkerCommand::Store(events.collect()));
        }
    }

    /// The worker that hosts a shard of the session store.
    pub fn shard_host(&self, shard: ShardId) -> WorkerId {
        WorkerId::host_of(shard, self.workers)
    }

    /// Returns the number of refusals that were not logged if one more may be logged as a warning; `None` if not.
    pub(crate) fn may_log_refusal(&self, now: Time, settings: &Settings) -> Option<u64> {
        self.refusal_log.take(now, settings.limits.refusals_logged_per_minute)
    }

    /// Returns whether a shard must be asked for room before a message is retained.
    pub(crate) fn is_short_of_retained(&self) -> bool {
        self.load.retained_is_short.load(Relaxed)
    }

    /// The worker that has the retained messages of a [`shard`](crate::retained::shard_of).
    pub(crate) fn retained_host(&self, shard: ShardId) -> WorkerId {
        if shard == retained::OWN_TOPICS { WorkerId(0) } else { self.shard_host(shard) }
    }

    /// Set of the shards that a worker hosts: those before `before`, or all without it.
    pub(crate) fn retained_shards(&self, worker: WorkerId, before: Option<ShardId>) -> ShardSet {
        self.hosted(worker).filter(|shard| before.is_none_or(|before| *shard < before)).collect()
    }

    /// Shards that a worker hosts.
    pub fn hosted(&self, worker: WorkerId) -> impl Iterator<Item = ShardId> {
        let workers = self.workers;
        (0..SHARDS).map(ShardId).filter(move |shard| shard.0 % workers == worker.0)
    }

    /// Returns whether waiting messages take more memory than `limits.memory_queued_max`. Publishers then wait. They
    /// wait no longer than `queue.full_wait` for absent clients, because these may stay away for days.
    pub(crate) fn is_overloaded(&self) -> bool {
        // The flag is enough on the path of a packet; the sum is computed only while the flag is set.
        if !self.overloaded.load(Relaxed) {
            return false;
        }
        let Waiting { all: queued, absent, .. } = self.waiting();
        let counts =
            if self.load.absent_give_way.load(Relaxed) { queued.saturating_sub(absent) } else { queued };
        counts > self.settings.load().limits.memory_queued_max.bytes()
    }

    /// Returns whether a publisher should have only one unacknowledged message, so that no client uses up the rest of
    /// the memory at once.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.nearly_full.load(Relaxed)
    }

    /// An equal share of half of `limits.memory_queued_max` among the connected clients for which messages wait.
    pub(crate) fn equal_share(&self) -> u64 {
        let sum = |figure: fn(&Published) -> &AtomicU64| -> u64 {
            self.published.iter().map(|worker| Published::get(figure(worker))).sum()
        };
        let clients = sum(|worker| &worker.waiting_clients);
        self.settings.load().limits.memory_queued_max.bytes() / 2 / clients.max(1)
    }

    /// Updates the load after a worker's `queued_bytes` have changed or time has passed.
    pub(crate) fn weigh(&self, now: Time) {
        let set = |flag: &AtomicBool, value| {
            if flag.load(Relaxed) != value {
                flag.store(value, Relaxed);
            }
        };
        let Waiting { all: queued, absent, requests } = self.waiting();
        let settings = self.settings.load();
        let maximum = settings.limits.memory_queued_max.bytes();
        self.load.queued.store(queued, Relaxed);
        set(&self.overloaded, queued > maximum);
        set(&self.nearly_full, queued > maximum / 4 * 3);
        let half_since = self.half_since.load(Relaxed);
        if queued.saturating_sub(absent + requests) <= maximum / 2 {
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
        // Absent clients do not give way to requests: these wait for shards, and publishers wait with them.
        let for_clients = queued.saturating_sub(requests);
        if since == 0 && for_clients > maximum {
            self.overloaded_since.store(now.0.max(1), Relaxed);
        } else if since != 0 && for_clients <= maximum / 4 * 3 {
            // Not as soon as the load is below the maximum, or the next message would make all publishers wait again.
            self.overloaded_since.store(0, Relaxed);
            set(&self.load.absent_give_way, false);
        } else if since != 0 && Time(since).after(settings.queue.full_wait) <= now {
            set(&self.load.absent_give_way, true);
        }
    }

    /// Bytes that wait for connected clients.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let Waiting { all, absent, requests } = self.waiting();
        all.saturating_sub(absent + requests)
    }

    /// Bytes that wait on all workers.
    fn waiting(&self) -> Waiting {
        let mut sum = Waiting::default();
        for worker in &self.published {
            sum.all += Published::get(&worker.queued_bytes);
            sum.absent += Published::get(&worker.offline_bytes);
        }
        if self.own.is_some() {
            let requests = |worker: &Published| {
                Published::get(&worker.request_bytes) + Published::get(&worker.offer_bytes)
            };
            sum.requests = self.published.iter().map(requests).sum();
            sum.all += sum.requests;
        }
        sum
    }

    /// Session Expiry Interval that is granted for the requested one, both in seconds.
    pub(crate) fn granted_expiry(&self, asked: u32) -> u32 {
        asked.min(u32::try_from(self.settings.load().session.expiry_max.as_secs()).unwrap_or(u32::MAX))
    }
}

/// Bytes that wait on a node.
#[derive(Default)]
struct Waiting {
    all: u64,
    /// Part of `all` for absent clients.
    absent: u64,
    /// Part of `all` in requests to shards of a cluster and to members of its shared groups.
    requests: u64,
}

/// Delivers the batches between workers until none is left.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions on disk carry these numbers. A change of one makes users lose their sessions at the next start.
    #[test]
    fn owner_keys_are_the_same_for_ever() {
        let key = |mountpoint, username| OwnerKey::of(b"a fixed hash key", mountpoint, username).0;
        let keys = [key("", None), key("", Some("alice")), key("plant/", None), key("plant/", Some("alice"))];
        assert_eq!(keys, [0, 942_349_610, 1_592_060_085, 1_665_127_691]);
    }
}
