//! Passwords accepted a short while ago, so that a thousand clients that come back at once cost no thousand hashes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::password_hash::PasswordHash;

/// What is remembered of one accepted password: a hash under a key that this process alone has and never writes
/// down. It covers the stored hash too, so a changed password is a different one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// The accepted passwords of the last while. The oldest go first when there are too many.
#[derive(Debug)]
pub struct Recent {
    key: [u8; 32],
    time: Duration,
    shard_max: usize,
    /// More than one so that reactors rarely meet at a lock; it is held for one look-up.
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    until: HashMap<Fingerprint, Instant>,
    /// In order of arrival, each once, those in `until` and no others.
    order: VecDeque<Fingerprint>,
}

impl Recent {
    /// Remembers about `max` passwords for `time` each; none when one of them is 0.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(max: usize, time: Duration) -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self { key, time, shard_max: max.div_ceil(SHARDS), shards: Default::default() })
    }

    pub fn fingerprint(&self, username: &str, password: &[u8], stored: &PasswordHash) -> Fingerprint {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of every length");
        for part in [username.as_bytes(), stored.as_str().as_bytes(), password] {
            // The length keeps apart what ends here and what begins there.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Fingerprint(mac.finalize().into_bytes().into())
    }

    pub fn contains(&self, fingerprint: &Fingerprint, now: Instant) -> bool {
        self.shard(fingerprint, |shard| shard.until.get(fingerprint).is_some_and(|until| now < *until))
    }

    pub fn insert(&self, fingerprint: Fingerprint, now: Instant) {
        if self.shard_max == 0 || self.time.is_zero() {
            return;
        }
        let until = now + self.time;
        self.shard(&fingerprint, |shard| {
            if shard.until.insert(fingerprint, until).is_none() {
                shard.order.push_back(fingerprint);
            }
            if shard.order.len() > self.shard_max
                && let Some(oldest) = shard.order.pop_front()
            {
                shard.until.remove(&oldest);
            }
        });
    }

    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }

    fn shard<T>(&self, fingerprint: &Fingerprint, use_it: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = &self.shards[usize::from(fingerprint.0[0]) % SHARDS];
        use_it(&mut shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    fn recent(max: usize) -> Recent {
        Recent::new(max, TIME).unwrap()
    }

    fn stored(salt: &str) -> PasswordHash {
        PasswordHash::parse(&format!("$7$1${salt}$BWmYz0ZVJJllJtqxM+NJki5gNcY=")).unwrap()
    }

    #[test]
    fn user_password_and_stored_hash_all_count() {
        let recent = recent(10);
        let (a, b) = (stored("8rC3COp401qO7A/N"), stored("8rC3COp401qO7A/O"));
        let first = recent.fingerprint("alice", b"pw", &a);
        assert_eq!(first, recent.fingerprint("alice", b"pw", &a));
        assert_ne!(first, recent.fingerprint("alice", b"pw2", &a));
        assert_ne!(first, recent.fingerprint("alicep", b"w", &a));
        assert_ne!(first, recent.fingerprint("bob", b"pw", &a));
        assert_ne!(first, recent.fingerprint("alice", b"pw", &b));
        assert_ne!(first, Recent::new(10, TIME).unwrap().fingerprint("alice", b"pw", &a), "the key differs");
    }

    #[test]
    fn what_was_accepted_is_remembered_until_its_time_is_over() {
        let (recent, now) = (recent(10), Instant::now());
        let fingerprint = Fingerprint([1; 32]);
        assert!(!recent.contains(&fingerprint, now));
        recent.insert(fingerprint, now);
        assert!(recent.contains(&fingerprint, now + TIME - Duration::from_millis(1)));
        assert!(!recent.contains(&fingerprint, now + TIME));
        recent.insert(fingerprint, now + TIME);
        assert!(recent.contains(&fingerprint, now + TIME));
        recent.clear();
        assert!(!recent.contains(&fingerprint, now + TIME));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let (recent, now) = (recent(2 * SHARDS), Instant::now());
        let print = |n: u8| {
            let mut bytes = [0; 32];
            bytes[1] = n;
            Fingerprint(bytes)
        };
        for n in 0..100 {
            recent.insert(print(n), now);
        }
        let kept: Vec<u8> = (0..100).filter(|n| recent.contains(&print(*n), now)).collect();
        assert_eq!(kept, [98, 99]);
    }

    #[test]
    fn none_is_remembered_when_so_configured() {
        let now = Instant::now();
        for recent in [recent(0), Recent::new(10, Duration::ZERO).unwrap()] {
            recent.insert(Fingerprint([1; 32]), now);
            assert!(!recent.contains(&Fingerprint([1; 32]), now));
        }
    }
}
