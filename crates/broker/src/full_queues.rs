//! Clients whose queue was full for too long. They are remembered for a while, during which no publisher waits for
//! them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::ids::Time;
use crate::node::OwnerKey;

/// User and network of a client. Clients without a user share only the network, which may be that of many devices
/// behind one router or proxy. The log counts these together, but none of them makes another one known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(OwnerKey, IpAddr);

/// Time for which publishers have waited for the full queue of a client. It restarts when the client has been sent all
/// messages that waited when the time started. A queue that has a free slot only until the next message of the same
/// publisher counts as full all the time.
#[derive(Clone, Copy, Debug)]
pub struct FullTime {
    /// Time since which publishers wait; [`Time::NEVER`] when none waits.
    since: Time,
    /// Milliseconds for which publishers waited before `since`.
    before: u64,
}

impl Default for FullTime {
    fn default() -> Self {
        Self { since: Time::NEVER, before: 0 }
    }
}

impl FullTime {
    /// Records that a publisher begins to wait.
    pub fn begins(&mut self, now: Time) {
        self.since = self.since.min(now);
    }

    /// Records that the last waiting publisher has a slot.
    pub fn ends(&mut self, now: Time) {
        if self.since != Time::NEVER {
            self.before += now.0.saturating_sub(self.since.0);
            self.since = Time::NEVER;
        }
    }

    /// Restarts at 0, because the client has been sent all messages that waited at the last start.
    pub fn restarts(&mut self, now: Time) {
        self.before = 0;
        if self.since != Time::NEVER {
            self.since = now;
        }
    }

    /// Time at which publishers will have waited for `max`; [`Time::NEVER`] while none waits.
    pub fn due(&self, max: Duration) -> Time {
        if self.since == Time::NEVER {
            return Time::NEVER;
        }
        self.since.after(max.saturating_sub(Duration::from_millis(self.before)))
    }
}

/// The remembered clients of a node.
#[derive(Debug, Default)]
pub struct FullQueues {
    /// Key that prevents finding a Client Identifier with the hash of another.
    hash_key: [u8; 16],
    /// True once a client was remembered. While it is false, a CONNECT takes no lock.
    any: AtomicBool,
    remembered: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// Time at which the queue was last full, by the hash of the Client Identifier.
    clients: HashMap<u64, Time>,
    /// Number of remembered clients of a source, and when the last of them was added.
    sources: HashMap<Source, (u32, Time)>,
}

/// Maximum number of remembered clients, and of sources.
const REMEMBERED_MAX: usize = 1 << 16;
/// Number of remembered clients of one user and network from which on every client of that user and network is known.
/// So a client cannot avoid this with another Client Identifier.
const CLIENTS_OF_SOURCE: u32 = 3;

impl Source {
    /// Makes a source. IPv6 addresses of one /64 are one source. A client without a user has [`OwnerKey::NOBODY`],
    /// whatever its mountpoint.
    pub fn new(user: OwnerKey, address: IpAddr) -> Self {
        let network = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        };
        Self(user, network)
    }

    fn has_user(&self) -> bool {
        self.0 != OwnerKey::NOBODY
    }
}

impl FullQueues {
    pub fn new(hash_key: [u8; 16]) -> Self {
        Self { hash_key, ..Self::default() }
    }

    /// Returns whether no client was ever remembered.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Relaxed)
    }

    fn hash(&self, client_id: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.hash_key);
        hasher.write(client_id.as_bytes());
        hasher.finish()
    }

    /// Remembers a client. Returns true when it should be reported to an operator: it was not remembered before, and
    /// few of its source were.
    pub fn note(&self, client_id: &str, source: Option<Source>, now: Time, remember: Duration) -> bool {
        if remember.is_zero() {
            return false;
        }
        let mut remembered = sync::lock(&self.remembered);
        remembered.make_room(now, remember);
        let is_new =
            remembered.clients.insert(self.hash(client_id), now).is_none_or(|at| at.after(remember) <= now);
        self.any.store(true, Relaxed);
        let Some(source) = source.filter(|_| is_new) else { return is_new };
        let (count, at) = remembered.sources.entry(source).or_insert((0, now));
        *count = if at.after(remember) <= now { 1 } else { *count + 1 };
        *at = now;
        *count <= CLIENTS_OF_SOURCE
    }

    /// Returns whether the client, or several of its user and network, were noted within `remember`.
    pub fn is_known(&self, client_id: &str, source: Option<Source>, now: Time, remember: Duration) -> bool {
        if self.is_empty() {
            return false;
        }
        let remembered = sync::lock(&self.remembered);
        let is_recent = |at: Time| at.after(remember) > now;
        remembered.clients.get(&self.hash(client_id)).is_some_and(|at| is_recent(*at))
            || source
                .filter(Source::has_user)
                .and_then(|source| remembered.sources.get(&source))
                .is_some_and(|(count, at)| *count >= CLIENTS_OF_SOURCE && is_recent(*at))
    }
}

impl Remembered {
    fn make_room(&mut self, now: Time, remember: Duration) {
        if self.clients.len() < REMEMBERED_MAX && self.sources.len() < REMEMBERED_MAX {
            return;
        }
        self.clients.retain(|_, at| at.after(remember) > now);
        self.sources.retain(|_, (_, at)| at.after(remember) > now);
        // A client that fills the list does not make it larger. Clients that are removed are remembered again the next
        // time.
        if self.clients.len() >= REMEMBERED_MAX {
            self.clients.clear();
        }
        if self.sources.len() >= REMEMBERED_MAX {
            self.sources.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMEMBER: Duration = Duration::from_secs(60);

    fn source(last: u8) -> Source {
        Source::new(OwnerKey::from_u32(2), IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn a_client_is_known_for_as_long_as_it_is_remembered() {
        let queues = FullQueues::default();
        assert!(!queues.is_known("1", None, Time(0), REMEMBER));
        queues.note("1", None, Time(1000), REMEMBER);
        assert!(queues.is_known("1", None, Time(60_999), REMEMBER));
        assert!(!queues.is_known("1", None, Time(61_000), REMEMBER));
        assert!(!queues.is_known("2", None, Time(1000), REMEMBER));
        assert!(!queues.is_known("1", None, Time(1000), Duration::ZERO), "a setting of 0 remembers none");
    }

    #[test]
    fn several_clients_of_one_source_make_the_source_known() {
        let queues = FullQueues::default();
        for client in ["1", "2", "2", "2"] {
            queues.note(client, Some(source(1)), Time(0), REMEMBER);
        }
        assert!(
            !queues.is_known("9", Some(source(1)), Time(0), REMEMBER),
            "two clients of one address and user do not mark the others"
        );
        queues.note("3", Some(source(1)), Time(0), REMEMBER);
        assert!(queues.is_known("9", Some(source(1)), Time(0), REMEMBER));
        assert!(!queues.is_known("9", Some(source(2)), Time(0), REMEMBER));
    }

    /// Devices of many users share the address of one router or proxy.
    #[test]
    fn clients_without_a_user_do_not_make_their_network_known() {
        let queues = FullQueues::default();
        let source = Source::new(OwnerKey::NOBODY, IpAddr::from([192, 0, 2, 1]));
        let logged = ["1", "2", "3", "4"].map(|client| queues.note(client, Some(source), Time(0), REMEMBER));
        assert_eq!(logged, [true, true, true, false], "the log is still not filled");
        assert!(!queues.is_known("9", Some(source), Time(0), REMEMBER));
        assert!(queues.is_known("4", Some(source), Time(0), REMEMBER));
    }

    #[test]
    fn time_for_which_a_queue_is_full_adds_up_until_the_client_has_received_it() {
        let max = Duration::from_millis(100);
        let mut full = FullTime::default();
        assert_eq!(full.due(max), Time::NEVER);
        full.begins(Time(1000));
        full.begins(Time(1010));
        assert_eq!(full.due(max), Time(1100));
        full.ends(Time(1060));
        full.ends(Time(1070));
        assert_eq!(full.due(max), Time::NEVER, "no publisher waits");
        full.begins(Time(5000));
        assert_eq!(full.due(max), Time(5040));
        full.restarts(Time(5030));
        assert_eq!(full.due(max), Time(5130));
    }

    #[test]
    fn a_client_is_reported_once_and_few_of_a_source_are() {
        let queues = FullQueues::default();
        let logged = ["1", "1", "2", "3", "4", "5"]
            .map(|client| queues.note(client, Some(source(1)), Time(0), REMEMBER));
        assert_eq!(logged, [true, false, true, true, false, false]);
        assert!(queues.note("1", Some(source(1)), Time(60_000), REMEMBER), "it was forgotten meanwhile");
    }

    #[test]
    fn ipv6_addresses_of_one_network_are_one_source() {
        let of = |text: &str| Source::new(OwnerKey::NOBODY, text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn the_number_of_remembered_clients_is_bounded() {
        let queues = FullQueues::default();
        for client in 0..3 * REMEMBERED_MAX {
            queues.note(&client.to_string(), None, Time(0), REMEMBER);
        }
        assert!(queues.remembered.lock().expect("no panic").clients.len() <= REMEMBERED_MAX);
    }
}
