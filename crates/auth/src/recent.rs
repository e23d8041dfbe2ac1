//! Clients with a recent success, so that a thousand simultaneous reconnects do not cost a thousand hashes or requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use access::Admission;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Record of one success: a hash under a key that only this process has and that is never written. It covers everything
/// that the success depended on, including the stored hash, so a changed password gives another fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// Builder of a [`Fingerprint`].
pub struct FingerprintBuilder(Hmac<Sha256>);

/// Recent successes. The oldest are removed first when there are too many.
#[derive(Debug)]
pub struct Recent {
    key: [u8; 32],
    time: Duration,
    shard_max: usize,
    /// Part of each fingerprint, so that an authentication that began before [`Recent::clear`] is not remembered after
    /// it.
    epoch: AtomicU64,
    /// Several shards, so that reactors rarely contend for a lock, which is held for one look-up.
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    successes: HashMap<Fingerprint, Success>,
    /// Keys in `successes`, in order of arrival, each once.
    order: VecDeque<Fingerprint>,
}

#[derive(Debug)]
struct Success {
    until: Instant,
    /// End of the admission, independent of the remembering.
    ends: Option<Instant>,
    /// `None` when the admission is the default, as most are.
    admission: Option<Box<Admission>>,
}

impl Recent {
    /// Creates a store for about `max` successes, each for `time`; for none when one of them is 0.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(max: usize, time: Duration) -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let shard_max = max.div_ceil(SHARDS);
        Ok(Self { key, time, shard_max, epoch: AtomicU64::new(0), shards: Default::default() })
    }

    pub fn fingerprint_builder(&self) -> FingerprintBuilder {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of every length");
        let mut fingerprint_builder = FingerprintBuilder(mac);
        fingerprint_builder.part(&self.epoch.load(Ordering::Acquire).to_le_bytes());
        fingerprint_builder
    }

    /// Returns the admission of the client, with its remaining time.
    pub fn get(&self, fingerprint: &Fingerprint, now: Instant) -> Option<Admission> {
        self.shard(fingerprint, |shard| {
            let success = shard.successes.get(fingerprint).filter(|success| now < success.until)?;
            let admission = success.admission.as_deref().cloned().unwrap_or_default();
            let lifetime = success.ends.map(|ends| ends.saturating_duration_since(now));
            Some(Admission { lifetime, ..admission })
        })
    }

    /// Remembers a success, at most until its end.
    pub fn insert(&self, fingerprint: Fingerprint, admission: &Admission, now: Instant) {
        let time = admission.lifetime.map_or(self.time, |lifetime| lifetime.min(self.time));
        if self.shard_max == 0 || time.is_zero() {
            return;
        }
        let success = Success {
            until: now + time,
            ends: admission.lifetime.and_then(|lifetime| now.checked_add(lifetime)),
            admission: (*admission != Admission::default()).then(|| Box::new(admission.clone())),
        };
        self.shard(&fingerprint, |shard| {
            if shard.successes.insert(fingerprint, success).is_none() {
                shard.order.push_back(fingerprint);
            }
            if shard.order.len() > self.shard_max
                && let Some(oldest) = shard.order.pop_front()
            {
                shard.successes.remove(&oldest);
            }
        });
    }

    pub fn clear(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        for shard in &self.shards {
            *sync::lock(shard) = Shard::default();
        }
    }

    fn shard<T>(&self, fingerprint: &Fingerprint, use_it: impl FnOnce(&mut Shard) -> T) -> T {
        let shard = &self.shards[usize::from(fingerprint.0[0]) % SHARDS];
        use_it(&mut sync::lock(shard))
    }
}

impl FingerprintBuilder {
    pub fn part(&mut self, part: &[u8]) {
        // The length separates this part from the next.
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds an optional part. A missing part differs from an empty one.
    pub fn optional(&mut self, part: Option<&[u8]>) {
        self.part(if part.is_some() { b"+" } else { b"-" });
        self.part(part.unwrap_or_default());
    }

    pub fn end(self) -> Fingerprint {
        Fingerprint(self.0.finalize().into_bytes().into())
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

    fn plain(recent: &Recent, fingerprint: Fingerprint, now: Instant) {
        recent.insert(fingerprint, &Admission::default(), now);
    }

    #[test]
    fn parts_of_a_fingerprint_are_separated() {
        let recent = recent(10);
        let print = |parts: &[Option<&[u8]>]| {
            let mut fingerprint_builder = recent.fingerprint_builder();
            parts.iter().for_each(|part| fingerprint_builder.optional(*part));
            fingerprint_builder.end()
        };
        let first = print(&[Some(b"alice"), Some(b"pw")]);
        assert_eq!(first, print(&[Some(b"alice"), Some(b"pw")]));
        assert_ne!(first, print(&[Some(b"alice"), Some(b"pw2")]));
        assert_ne!(first, print(&[Some(b"alicep"), Some(b"w")]));
        assert_ne!(print(&[Some(b"")]), print(&[None]));
        let other = Recent::new(10, TIME).unwrap();
        assert_ne!(recent.fingerprint_builder().end(), other.fingerprint_builder().end(), "the key differs");
        let before = print(&[]);
        recent.clear();
        assert_ne!(before, print(&[]), "an authentication that began before is not remembered after");
    }

    #[test]
    fn a_success_is_remembered_until_its_time_is_over() {
        let (recent, now) = (recent(10), Instant::now());
        let fingerprint = Fingerprint([1; 32]);
        assert!(recent.get(&fingerprint, now).is_none());
        plain(&recent, fingerprint, now);
        let just_before = now + TIME - Duration::from_millis(1);
        assert_eq!(recent.get(&fingerprint, just_before), Some(Admission::default()));
        assert!(recent.get(&fingerprint, now + TIME).is_none());
        plain(&recent, fingerprint, now + TIME);
        assert!(recent.get(&fingerprint, now + TIME).is_some());
        recent.clear();
        assert!(recent.get(&fingerprint, now + TIME).is_none());
    }

    #[test]
    fn an_admission_is_remembered_until_its_end_at_most() {
        let (recent, now) = (recent(10), Instant::now());
        let second = Duration::from_secs(1);
        let admission = |lifetime| Admission {
            username: Some("alice".into()),
            lifetime: Some(lifetime),
            ..Admission::default()
        };
        let (short, long, over) = (Fingerprint([1; 32]), Fingerprint([2; 32]), Fingerprint([3; 32]));
        recent.insert(short, &admission(10 * second), now);
        assert_eq!(recent.get(&short, now + 4 * second), Some(admission(6 * second)));
        assert!(recent.get(&short, now + 10 * second).is_none());
        recent.insert(long, &admission(10 * TIME), now);
        assert_eq!(recent.get(&long, now + TIME / 2), Some(admission(10 * TIME - TIME / 2)));
        assert!(recent.get(&long, now + TIME).is_none());
        recent.insert(over, &admission(Duration::ZERO), now);
        assert!(recent.get(&over, now).is_none());
    }

    #[test]
    fn the_oldest_successes_are_removed_when_there_are_too_many() {
        let (recent, now) = (recent(2 * SHARDS), Instant::now());
        let print = |n: u8| {
            let mut bytes = [0; 32];
            bytes[1] = n;
            Fingerprint(bytes)
        };
        for n in 0..100 {
            plain(&recent, print(n), now);
        }
        let kept: Vec<u8> = (0..100).filter(|n| recent.get(&print(*n), now).is_some()).collect();
        assert_eq!(kept, [98, 99]);
    }

    #[test]
    fn no_success_is_remembered_with_a_limit_of_0() {
        let now = Instant::now();
        for recent in [recent(0), Recent::new(10, Duration::ZERO).unwrap()] {
            plain(&recent, Fingerprint([1; 32]), now);
            assert!(recent.get(&Fingerprint([1; 32]), now).is_none());
        }
    }
}
