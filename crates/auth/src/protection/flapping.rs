//! Flapping: Client Identifiers that connect too often.

use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use super::settings::Protection as Settings;
use super::table::{Table, TableFigures};
use crate::bans::{BanError, BanKind, BanTarget, Bans, NewBan, Pattern};

/// Counts connects, and bans flapping Client Identifiers. Bans are written to a file, so a separate thread makes them.
#[derive(Debug)]
pub struct Flapping {
    connects: Table<Connects>,
    /// Connects to all nodes of the cluster.
    cluster_connects: Table<Connects>,
    queue: OnceLock<SyncSender<BanRequest>>,
    counters: Arc<Counters>,
}

/// Nodes whose connects are counted.
#[derive(Clone, Copy, Debug)]
pub enum Scope {
    Node,
    Cluster,
}

#[derive(Debug, Default)]
struct Counters {
    banned: AtomicU64,
    failed: AtomicU64,
}

struct BanRequest {
    bans: Arc<Bans>,
    ban: NewBan,
}

/// Number of connects in the current window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connects {
    since: Option<Instant>,
    count: u32,
}

impl Connects {
    /// Counts a connect; returns the number within `window`.
    pub fn count(&mut self, window: Duration, now: Instant) -> u32 {
        let is_over = self.since.is_none_or(|since| now.saturating_duration_since(since) >= window);
        if is_over {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count
    }
}

impl Flapping {
    pub fn new(entries_max: usize) -> Self {
        Self {
            connects: Table::new(entries_max),
            cluster_connects: Table::new(entries_max),
            queue: OnceLock::new(),
            counters: Arc::default(),
        }
    }

    fn table(&self, scope: Scope) -> &Table<Connects> {
        match scope {
            Scope::Node => &self.connects,
            Scope::Cluster => &self.cluster_connects,
        }
    }

    /// Counts a connect. Returns whether this client has connected too often.
    pub fn connect(&self, scope: Scope, name: &impl Hash, settings: &Settings, now: Instant) -> bool {
        if settings.flapping_connects_max == 0 {
            return false;
        }
        let window = settings.flapping_window;
        let count = self.table(scope).with(name, |connects| connects.count(window, now));
        count > settings.flapping_connects_max
    }

    /// Bans the Client Identifier of a client without a mountpoint, a moment later.
    pub fn ban(&self, client_id: &str, settings: &Settings, bans: &Arc<Bans>) {
        let reason = format!(
            "flapping: connected more than {} times within {} s",
            settings.flapping_connects_max,
            settings.flapping_window.as_secs()
        );
        // A ban cannot name an identifier that ends with `*`: it would be read as a prefix. Such a client is refused,
        // not banned.
        let target = BanTarget::parse(BanKind::ClientId, client_id).ok();
        let Some(target @ BanTarget::ClientId(Pattern::Exact(_))) = target else { return };
        let ban = NewBan {
            target,
            reason,
            by: "protection".to_owned(),
            until: SystemTime::now().checked_add(settings.flapping_ban),
        };
        let is_queued = self.queue().is_some_and(|queue| {
            // When too many are banned at once, the next connect of this one tries again.
            queue.try_send(BanRequest { bans: bans.clone(), ban }).is_ok()
        });
        if !is_queued {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of bans that were created, and that could not be created.
    pub fn figures(&self) -> (u64, u64) {
        (self.counters.banned.load(Ordering::Relaxed), self.counters.failed.load(Ordering::Relaxed))
    }

    pub fn table_figures(&self, scope: Scope) -> TableFigures {
        self.table(scope).figures()
    }

    /// The first flapping client starts the thread. Most nodes never need it.
    fn queue(&self) -> Option<&SyncSender<BanRequest>> {
        if let Some(queue) = self.queue.get() {
            return Some(queue);
        }
        let (queue, requests) = sync_channel(BAN_REQUESTS_MAX);
        let counters = self.counters.clone();
        if let Err(error) = critical::spawn("auth-bans", move || process_ban_requests(&requests, &counters)) {
            tracing::error!(%error, "flapping: cannot start the thread for bans; clients that flap are refused, but not banned");
            return None;
        }
        Some(self.queue.get_or_init(|| queue))
    }
}

fn process_ban_requests(requests: &Receiver<BanRequest>, counters: &Counters) {
    while let Ok(BanRequest { bans, ban }) = requests.recv() {
        let target = ban.target.clone();
        match bans.add(ban, SystemTime::now()) {
            Ok(ban) => {
                counters.banned.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(ban = ban.id.0, target = ?ban.target, reason = &*ban.reason, "flapping: client banned");
            }
            // Banned by the previous connect, or by an operator.
            Err(BanError::Exists(_)) => {}
            Err(error) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, ?target, "flapping: client cannot be banned");
            }
        }
    }
}

const BAN_REQUESTS_MAX: usize = 256;
