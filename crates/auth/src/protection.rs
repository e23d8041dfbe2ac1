//! Protection against clients that try too often: wrong passwords, connects of an address, flapping Client Identifiers.
//!
//! All state is in [`Table`](table::Table)s of a fixed size, with a few bytes for each entry.

mod backoff;
mod flapping;
pub mod settings;
mod table;

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use access::Credentials;
use arc_swap::ArcSwap;

use self::settings::Protection as Settings;
use crate::bans::Bans;
use backoff::{Backoff, Rule};
use flapping::{Connects, Flapping, Scope};
use table::Table;

/// Recent behaviour of clients, and the limits that follow from it.
#[derive(Debug)]
pub struct Protection {
    settings: ArcSwap<Settings>,
    /// Failures by pair of address and user name.
    pairs: Table<Backoff>,
    addresses: Table<Backoff>,
    /// Failures by user name. A name is only delayed: otherwise anyone who knows it could lock its owner out.
    usernames: Table<Backoff>,
    hasher: RandomState,
    /// True after the first failure ever; until then no client is looked up.
    failed: AtomicBool,
    connects: Table<Connects>,
    flapping: Flapping,
    figures: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    failures: AtomicU64,
    backoffs: AtomicU64,
    delayed: AtomicU64,
    rate_refused: AtomicU64,
}

/// Delay before a login is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub time: Duration,
    /// Identifies the pair of address and user name.
    pub pair: u64,
    /// Maximum number of logins of this pair that wait at one time.
    pub pair_max: u32,
}

/// Counters of protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectionFigures {
    /// Wrong logins that were counted for an address or a user name.
    pub failures: u64,
    /// Number of times that an address, a user name or a pair of both began to back off.
    pub backoffs: u64,
    /// Logins that were delayed, because their user name had too many wrong ones.
    pub delayed: u64,
    /// Connects that were refused because the address made too many in a second.
    pub rate_refused: u64,
    /// Bans of flapping Client Identifiers.
    pub flapping_banned: u64,
    /// Bans of flapping Client Identifiers that could not be created; the log has the reason.
    pub flapping_failed: u64,
    /// Entries that were removed because there were too many.
    pub evicted: u64,
    /// Number of entries.
    pub entries: u64,
}

impl Protection {
    pub fn new(settings: Settings) -> Self {
        let entries_max = settings.entries_max as usize;
        let flapping = Flapping::new(entries_max);
        Self {
            pairs: Table::new(entries_max),
            addresses: Table::new(entries_max),
            hasher: RandomState::new(),
            usernames: Table::new(entries_max),
            failed: AtomicBool::new(false),
            connects: Table::new(entries_max),
            flapping,
            figures: Counters::default(),
            settings: ArcSwap::from_pointee(settings),
        }
    }

    /// Applies new settings, and keeps the recorded state.
    pub fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Returns whether this address, alone or with this user name, has to wait before its next password is checked.
    pub fn backs_off(&self, credentials: &Credentials<'_>, now: Instant) -> bool {
        if !self.failed.load(Ordering::Relaxed) || self.settings.load().failures_max == 0 {
            return false;
        }
        let waits = |backoff: &Backoff| backoff.waits(now);
        let pair = pair(credentials);
        self.pairs.get(&pair, waits).unwrap_or(false)
            || pair.0.is_some_and(|address| self.addresses.get(&address, waits).unwrap_or(false))
    }

    /// Returns the delay before a login is checked; `None` for no delay.
    pub fn delay(&self, credentials: &Credentials<'_>, now: Instant) -> Option<Delay> {
        let settings = self.settings.load();
        let is_off = settings.failures_max == 0 || settings.failures_delay.is_zero();
        if is_off || !self.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.usernames.get(&credentials.username?, |backoff| backoff.waits(now)).filter(|waits| *waits)?;
        self.figures.delayed.fetch_add(1, Ordering::Relaxed);
        let pair = self.hasher.hash_one(pair(credentials));
        Some(Delay { time: settings.failures_delay, pair, pair_max: settings.failures_max })
    }

    /// Records a wrong login.
    pub fn failed(&self, credentials: &Credentials<'_>, now: Instant) {
        let settings = self.settings.load();
        if settings.failures_max == 0 {
            return;
        }
        self.failed.store(true, Ordering::Relaxed);
        self.figures.failures.fetch_add(1, Ordering::Relaxed);
        let rule = settings.backoff(settings.failures_max);
        let address_rule = settings.backoff(settings.failures_address_max);
        let (peer, username) = pair(credentials);
        let begins = |rule: Rule| move |backoff: &mut Backoff| backoff.fail(&rule, now);
        let pair_began = self.pairs.with(&(peer, username), begins(rule));
        let address_began = peer
            .filter(|_| address_rule.failures_max > 0)
            .is_some_and(|peer| self.addresses.with(&peer, begins(address_rule)));
        let name_began = username.is_some_and(|username| self.usernames.with(&username, begins(rule)));
        let count = [pair_began, address_began, name_began].map(u64::from).iter().sum();
        self.figures.backoffs.fetch_add(count, Ordering::Relaxed);
        let address = peer.map(tracing::field::display);
        if address_began {
            tracing::info!(
                address,
                "protection: too many wrong logins of an address; refusing its logins for a while"
            );
        } else if pair_began {
            tracing::info!(
                address,
                user = username,
                "protection: too many wrong logins of an address for a user name; refusing its logins for that name for a while"
            );
        }
        if name_began {
            let user = username;
            tracing::info!(
                user,
                "protection: too many wrong logins for a user name; delaying logins for it for a while"
            );
        }
    }

    /// Returns whether this address connects too often. Counts the connect.
    pub fn connects_too_often(&self, peer: Option<IpAddr>, now: Instant) -> bool {
        let max = self.settings.load().address_connects_per_second;
        let (Some(peer), 1..) = (peer, max) else { return false };
        let count = self.connects.with(&network(peer), |connects| connects.count(SECOND, now));
        let refused = count > max;
        if refused {
            self.figures.rate_refused.fetch_add(1, Ordering::Relaxed);
        }
        refused
    }

    /// Counts a connect of a client to this node. Returns whether it connects too often.
    ///
    /// A client without a mountpoint is banned then. A ban names no mountpoint, so it would apply to clients of others
    /// with the same Client Identifier: a client with one is refused until the window is over.
    pub fn flaps(&self, (mountpoint, client_id): (&str, &str), bans: &Arc<Bans>, now: Instant) -> bool {
        let settings = self.settings.load();
        let flaps = self.flapping.connect(Scope::Node, &(mountpoint, client_id), &settings, now);
        if flaps && mountpoint.is_empty() {
            self.flapping.ban(client_id, &settings, bans);
        }
        flaps
    }

    /// Counts a connect of a client to any node of the cluster, apart from those to this node. Returns whether it
    /// connects too often. The name includes the mountpoint.
    pub fn flaps_in_cluster(&self, name: &str, now: Instant) -> bool {
        self.flapping.connect(Scope::Cluster, &name, &self.settings.load(), now)
    }

    /// Bans a client that connects too often to the nodes of the cluster, if it has no mountpoint.
    pub fn ban_flapping(&self, (mountpoint, client_id): (&str, &str), bans: &Arc<Bans>) {
        if mountpoint.is_empty() {
            self.flapping.ban(client_id, &self.settings.load(), bans);
        }
    }

    pub fn figures(&self) -> ProtectionFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (flapping_banned, flapping_failed) = self.flapping.figures();
        let tables = [
            self.pairs.figures(),
            self.addresses.figures(),
            self.usernames.figures(),
            self.connects.figures(),
            self.flapping.table_figures(Scope::Node),
            self.flapping.table_figures(Scope::Cluster),
        ];
        ProtectionFigures {
            failures: value(&self.figures.failures),
            backoffs: value(&self.figures.backoffs),
            delayed: value(&self.figures.delayed),
            rate_refused: value(&self.figures.rate_refused),
            flapping_banned,
            flapping_failed,
            evicted: tables.iter().map(|table| table.evicted).sum(),
            entries: tables.iter().map(|table| table.entries).sum(),
        }
    }
}

/// Returns the pair under which failures of a client are counted.
fn pair<'a>(credentials: &Credentials<'a>) -> (Option<IpAddr>, Option<&'a str>) {
    (credentials.peer.map(network), credentials.username)
}

/// Returns the network that counts as one address: a household has at least a /64 of IPv6, and may use every address of
/// it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << HOST_BITS))),
    }
}

const HOST_BITS: u32 = 64;
const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
