//! Protection against clients that try too often: wrong passwords, connects of an address, Client Identifiers that come and go.
//!
//! Everything it remembers is in [`Table`](table::Table)s of a fixed size, and a few bytes an entry.

mod backoff;
mod flapping;
pub mod settings;
mod table;

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use broker::access::Credentials;

use self::settings::Protection as Settings;
use crate::bans::Bans;
use backoff::{Backoff, Rule};
use flapping::{Connects, Flapping};
use table::Table;

/// What clients did of late, and what follows from it.
#[derive(Debug)]
pub struct Protection {
    settings: ArcSwap<Settings>,
    /// By address and user name.
    pairs: Table<Backoff>,
    addresses: Table<Backoff>,
    /// A name only delays: anybody who knows it could refuse its owner otherwise.
    usernames: Table<Backoff>,
    hasher: RandomState,
    /// Whether there ever was a failure; until then nobody is looked up.
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

/// A wait before a login is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    pub time: Duration,
    /// Identifies the address and the user name.
    pub pair: u64,
    /// Maximum number of logins of this pair that wait at one time.
    pub pair_max: u32,
}

/// What protection did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtectionFigures {
    /// Wrong logins that were held against an address or a user name.
    pub failures: u64,
    /// How often an address, a user name or both together began to back off.
    pub backoffs: u64,
    /// Logins that waited before they were checked, because their user name had too many wrong ones.
    pub delayed: u64,
    /// Connects that were refused because the address made too many in a second.
    pub rate_refused: u64,
    /// Bans of Client Identifiers that came and went too often.
    pub flapping_banned: u64,
    /// Such bans that could not be made; the log says why.
    pub flapping_failed: u64,
    /// Entries that were given up because there were too many.
    pub evicted: u64,
    /// Entries that there are.
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

    /// Takes up other settings. What was remembered stays.
    pub fn set(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Whether this address, alone or with this user name, has to wait until it may try a password again.
    pub fn backs_off(&self, credentials: &Credentials<'_>, now: Instant) -> bool {
        if !self.failed.load(Ordering::Relaxed) || self.settings.load().failures_max == 0 {
            return false;
        }
        let waits = |backoff: &Backoff| backoff.waits(now);
        let pair = pair(credentials);
        self.pairs.get(&pair, waits).unwrap_or(false)
            || pair.0.is_some_and(|address| self.addresses.get(&address, waits).unwrap_or(false))
    }

    /// How long a login has to wait before it is checked; `None` when it does not.
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

    /// A wrong login.
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
            tracing::info!(address, "too many wrong logins of an address; refusing its logins for a while");
        } else if pair_began {
            tracing::info!(
                address,
                user = username,
                "too many wrong logins of an address for a user name; refusing its logins for that name for a while"
            );
        }
        if name_began {
            let user = username;
            tracing::info!(user, "too many wrong logins for a user name; delaying logins for it for a while");
        }
    }

    /// Whether this address connects too often. Counts the connect.
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

    /// Whether this Client Identifier comes and goes too often, which bans it. Counts the connect.
    pub fn flaps(&self, client_id: &str, bans: &Arc<Bans>, now: Instant) -> bool {
        self.flapping.connect(client_id, &self.settings.load(), bans, now)
    }

    pub fn figures(&self) -> ProtectionFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (flapping_banned, flapping_failed) = self.flapping.figures();
        let tables = [
            self.pairs.figures(),
            self.addresses.figures(),
            self.usernames.figures(),
            self.connects.figures(),
            self.flapping.table_figures(),
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

/// A client as failures are counted.
fn pair<'a>(credentials: &Credentials<'a>) -> (Option<IpAddr>, Option<&'a str>) {
    (credentials.peer.map(network), credentials.username)
}

/// The network that counts as one: a household has a /64 of IPv6 at least, and may use every address of it.
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
