//! Clients whose queue was full for too long. They are remembered for a while, in which no publisher waits for them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ids::Time;
use crate::node::OwnerKey;

/// The user and the network of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(OwnerKey, IpAddr);

/// The remembered clients of a node.
#[derive(Debug, Default)]
pub struct FullQueues {
    /// Makes it impossible to find a Client Identifier with the hash of another.
    hash_key: [u8; 16],
    /// Something was remembered once. While it is false, a CONNECT takes no lock.
    any: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// When the queue was last full, by the hash of the Client Identifier.
    clients: HashMap<u64, Time>,
    /// Number of remembered clients of a source, and when the last of them was added.
    sources: HashMap<Source, (u32, Time)>,
}

/// Maximum number of remembered clients, and of sources.
const REMEMBERED_MAX: usize = 1 << 16;
/// Number of clients of one source from which on all clients of the source count as known: another Client Identifier does not help.
const CLIENTS_OF_SOURCE: u32 = 3;

impl Source {
    /// IPv6 addresses of one /64 are one source.
    pub fn new(user: OwnerKey, address: IpAddr) -> Self {
        let network = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        };
        Self(user, network)
    }
}

impl FullQueues {
    pub fn new(hash_key: [u8; 16]) -> Self {
        Self { hash_key, ..Self::default() }
    }

    /// Whether nothing was ever remembered.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Relaxed)
    }

    fn hash(&self, client_id: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.hash_key);
        hasher.write(client_id.as_bytes());
        hasher.finish()
    }

    /// Remembers a client. True when an operator should hear of it: it was not remembered before, and few of its source were.
    pub fn note(&self, client_id: &str, source: Option<Source>, now: Time, remember: Duration) -> bool {
        if remember.is_zero() {
            return false;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.make_room(now, remember);
        let is_new =
            known.clients.insert(self.hash(client_id), now).is_none_or(|at| at.after(remember) <= now);
        self.any.store(true, Relaxed);
        let Some(source) = source.filter(|_| is_new) else { return is_new };
        let (count, at) = known.sources.entry(source).or_insert((0, now));
        *count = if at.after(remember) <= now { 1 } else { *count + 1 };
        *at = now;
        *count <= CLIENTS_OF_SOURCE
    }

    /// Whether the client, or several of its source, were noted within `remember`.
    pub fn is_known(&self, client_id: &str, source: Option<Source>, now: Time, remember: Duration) -> bool {
        if self.is_empty() {
            return false;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: Time| at.after(remember) > now;
        known.clients.get(&self.hash(client_id)).is_some_and(|at| is_recent(*at))
            || source
                .and_then(|source| known.sources.get(&source))
                .is_some_and(|(count, at)| *count >= CLIENTS_OF_SOURCE && is_recent(*at))
    }
}

impl Known {
    fn make_room(&mut self, now: Time, remember: Duration) {
        if self.clients.len() < REMEMBERED_MAX && self.sources.len() < REMEMBERED_MAX {
            return;
        }
        self.clients.retain(|_, at| at.after(remember) > now);
        self.sources.retain(|_, (_, at)| at.after(remember) > now);
        // A client that fills the list does not make it larger. Those who are forgotten are remembered again the next time.
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
        Source::new(OwnerKey::NOBODY, IpAddr::from([192, 0, 2, last]))
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

    #[test]
    fn an_operator_hears_of_a_client_once_and_of_few_of_a_source() {
        let queues = FullQueues::default();
        let told = ["1", "1", "2", "3", "4", "5"]
            .map(|client| queues.note(client, Some(source(1)), Time(0), REMEMBER));
        assert_eq!(told, [true, false, true, true, false, false]);
        assert!(queues.note("1", Some(source(1)), Time(60_000), REMEMBER), "it was forgotten meanwhile");
    }

    #[test]
    fn ipv6_addresses_of_one_network_are_one_source() {
        let of = |text: &str| Source::new(OwnerKey::NOBODY, text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let queues = FullQueues::default();
        for client in 0..3 * REMEMBERED_MAX {
            queues.note(&client.to_string(), None, Time(0), REMEMBER);
        }
        assert!(queues.known.lock().expect("no panic").clients.len() <= REMEMBERED_MAX);
    }
}
