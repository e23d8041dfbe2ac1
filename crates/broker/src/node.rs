//! What all workers of a node share.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use routing::{Index, IndexLimits};

use crate::access::Access;
use crate::counters::Published;
use crate::ids::{ShardId, Time, WorkerId};
use crate::mail::Letter;
use crate::route::Route;
use crate::settings::Settings;
use crate::store::SHARDS;

/// The parts of a node that every worker reads. **Invariant:** nothing here is locked on the path of a packet.
pub struct Node {
    pub settings: Arc<Settings>,
    pub access: Arc<dyn Access>,
    pub routes: Arc<Index<Route>>,
    /// Shown in `$SYS/broker/version`.
    pub version: String,
    pub workers: u16,
    /// One per worker.
    pub published: Vec<Published>,
    /// How threads that are no workers reach one.
    mailbox: OnceLock<Box<dyn Fn(WorkerId, Letter) + Send + Sync>>,
    pub(crate) hash_key: [u8; 16],
    /// More waits than `limits.memory_queued_max`, as of a worker's last turn.
    overloaded: AtomicBool,
    /// Sessions that outlive their connection.
    pub(crate) sessions: Arc<AtomicU64>,
    /// Assigned Client Identifiers are made of this and a counter.
    pub(crate) assigned: AtomicU64,
    pub(crate) boot: u64,
}

impl Node {
    /// `seed` is secret randomness: keys of hash tables, assigned identifiers, choices in shared groups.
    pub fn new(
        settings: Settings,
        access: Arc<dyn Access>,
        version: String,
        workers: u16,
        seed: [u8; 16],
    ) -> Arc<Self> {
        let limits =
            IndexLimits { levels_max: usize::from(settings.mqtt.topic_levels_max), ..IndexLimits::default() };
        let boot = u64::from_le_bytes(seed[..8].try_into().unwrap_or_default());
        Arc::new(Self {
            routes: Arc::new(Index::new(seed, limits)),
            settings: Arc::new(settings),
            access,
            version,
            workers,
            published: (0..workers).map(|_| Published::default()).collect(),
            mailbox: OnceLock::new(),
            hash_key: seed,
            overloaded: AtomicBool::new(false),
            sessions: Arc::default(),
            assigned: AtomicU64::new(0),
            boot: boot ^ boot.rotate_left(29),
        })
    }

    /// Says how letters from other threads reach a worker. The first call counts.
    pub fn deliver_letters_by(&self, mailbox: impl Fn(WorkerId, Letter) + Send + Sync + 'static) {
        if self.mailbox.set(Box::new(mailbox)).is_err() {
            debug_assert!(false, "a node has one mailbox");
        }
    }

    /// Sends a letter from any thread.
    pub(crate) fn post(&self, worker: WorkerId, letter: Letter) {
        if let Some(mailbox) = self.mailbox.get() {
            mailbox(worker, letter);
        }
    }

    /// The worker that hosts a shard of the session store.
    pub fn shard_host(&self, shard: ShardId) -> WorkerId {
        WorkerId(shard.0 % self.workers)
    }

    /// Shards that a worker hosts.
    pub fn hosted(&self, worker: WorkerId) -> impl Iterator<Item = ShardId> {
        let workers = self.workers;
        (0..SHARDS).map(ShardId).filter(move |shard| shard.0 % workers == worker.0)
    }

    /// Whether messages that wait take more memory than `limits.memory_queued_max`.
    pub(crate) fn is_overloaded(&self) -> bool {
        // The flag is enough on the path of a packet; the sum is for when it is up.
        self.overloaded.load(Relaxed) && self.queued_bytes() > self.settings.limits.memory_queued_max.bytes()
    }

    /// A worker's `queued_bytes` have changed.
    pub(crate) fn weigh(&self) {
        let overloaded = self.queued_bytes() > self.settings.limits.memory_queued_max.bytes();
        if self.overloaded.load(Relaxed) != overloaded {
            self.overloaded.store(overloaded, Relaxed);
        }
    }

    fn queued_bytes(&self) -> u64 {
        self.published.iter().map(|worker| Published::get(&worker.queued_bytes)).sum()
    }

    /// The Session Expiry Interval that is granted for the one asked for, both in seconds.
    pub(crate) fn granted_expiry(&self, asked: u32) -> u32 {
        asked.min(u32::try_from(self.settings.session.expiry_max.as_secs()).unwrap_or(u32::MAX))
    }
}

/// Uptime in whole seconds.
pub(crate) fn uptime(now: Time) -> u64 {
    now.0 / 1000
}
