//! The busiest clients and topics, found by sampling one of [`SAMPLE`] messages.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::ids::Time;
use random::Random;

/// Average number of messages for each one that is sampled.
pub(crate) const SAMPLE: u64 = 16;
/// Number of names that are counted at one time. A name with more than one in `COUNTERS` messages is always among them.
const COUNTERS: usize = 64;
/// Duration of a window. Counting restarts after it.
const WINDOW: Duration = Duration::from_secs(10);

/// The busiest clients and topics of one worker in its last complete window, busiest first. The figures are estimates
/// from one message in `sample`.
#[derive(Clone, Debug, Default)]
pub struct Top {
    pub window: Duration,
    pub sample: u64,
    pub publishers: Vec<Busy>,
    pub subscribers: Vec<Busy>,
    pub topics: Vec<Busy>,
}

/// A client or topic, with its messages and bytes in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    pub name: Arc<str>,
    pub messages: u64,
    pub bytes: u64,
}

/// Counters of the current window of a worker.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    hasher: RandomState,
    received: RandomSampler,
    sent: RandomSampler,
    publishers: Sketch,
    subscribers: Sketch,
    topics: Sketch,
    begun: Time,
    last: Top,
}

impl Sampler {
    /// Counts a PUBLISH that a client sent.
    pub fn received(&mut self, client_id: &Arc<str>, topic: &str, bytes: usize) {
        if self.received.is_next() {
            let hash = self.hasher.hash_one(&**client_id);
            self.publishers.count(hash, bytes, || client_id.clone());
            let hash = self.hasher.hash_one(topic);
            self.topics.count(hash, bytes, || topic.into());
        }
    }

    /// Counts a message that is sent to a client.
    pub fn sent(&mut self, client_id: &Arc<str>, bytes: usize) {
        if self.sent.is_next() {
            let hash = self.hasher.hash_one(&**client_id);
            self.subscribers.count(hash, bytes, || client_id.clone());
        }
    }

    /// Ends the window when it is over. The worker calls this about once a second.
    pub fn tick(&mut self, now: Time) {
        if self.begun.after(WINDOW) > now {
            return;
        }
        self.last = Top {
            window: now.since(self.begun),
            sample: SAMPLE,
            publishers: self.publishers.take(),
            subscribers: self.subscribers.take(),
            topics: self.topics.take(),
        };
        self.begun = now;
    }

    pub fn last(&self) -> Top {
        self.last.clone()
    }
}

/// Selects one of [`SAMPLE`] messages on average, in steps of random length. Periodic traffic therefore cannot fall
/// into step with the sampling.
#[derive(Debug)]
struct RandomSampler {
    left: u32,
    random: Random,
}

impl Default for RandomSampler {
    fn default() -> Self {
        Self { left: 1, random: Random::new(0) }
    }
}

impl RandomSampler {
    #[inline]
    fn is_next(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        // Steps of 1 to 31 have a mean of 16.
        self.left = 1 + self.random.below_u64(2 * SAMPLE - 1) as u32;
        true
    }
}

/// Counters of the Space-Saving algorithm. A new name replaces the one with the lowest count and inherits that count,
/// so that no frequent name is missed (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k
/// elements, 2005).
#[derive(Debug, Default)]
struct Sketch {
    hashes: Vec<u64>,
    counters: Vec<Counter>,
}

#[derive(Debug)]
struct Counter {
    name: Arc<str>,
    messages: u64,
    bytes: u64,
    /// Number of messages that were inherited and may belong to other names.
    inherited: u64,
}

impl Sketch {
    fn count(&mut self, hash: u64, bytes: usize, name: impl FnOnce() -> Arc<str>) {
        if let Some(at) = self.hashes.iter().position(|known| *known == hash) {
            self.counters[at].messages += 1;
            self.counters[at].bytes += bytes as u64;
            return;
        }
        let mut counter = Counter { name: name(), messages: 1, bytes: bytes as u64, inherited: 0 };
        if self.counters.len() < COUNTERS {
            self.hashes.push(hash);
            self.counters.push(counter);
            return;
        }
        if let Some((at, least)) =
            self.counters.iter().enumerate().min_by_key(|(_, counter)| counter.messages)
        {
            counter.messages += least.messages;
            counter.inherited = least.messages;
            self.hashes[at] = hash;
            self.counters[at] = counter;
        }
    }

    fn take(&mut self) -> Vec<Busy> {
        self.hashes.clear();
        let sure = |counter: Counter| Busy {
            name: counter.name,
            messages: (counter.messages - counter.inherited) * SAMPLE,
            bytes: counter.bytes * SAMPLE,
        };
        let mut all: Vec<_> = self.counters.drain(..).map(sure).collect();
        all.sort_by_key(|busy| std::cmp::Reverse(busy.messages));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_finds_the_busiest_client_and_topic() {
        let mut sampler = Sampler::default();
        let (loud, quiet): (Arc<str>, Vec<Arc<str>>) =
            ("loud".into(), (0..1000).map(|number| format!("quiet-{number}").into()).collect());
        for number in 0..160_000 {
            // The order is not in step with the sampling.
            match number * 7919 % 10 {
                0..3 => sampler.received(&loud, "a/loud", 100),
                _ => sampler.received(&quiet[number * 31 % 1000], "a/quiet", 10),
            }
        }
        sampler.tick(Time(10_000));
        let top = sampler.last();
        assert_eq!(&*top.publishers[0].name, "loud");
        assert!((40_000..56_000).contains(&top.publishers[0].messages), "{:?}", top.publishers[0]);
        assert_eq!(top.publishers[0].bytes, top.publishers[0].messages * 100);
        assert_eq!(&*top.topics[0].name, "a/quiet");
        assert!(top.publishers.len() <= COUNTERS);
        sampler.tick(Time(15_000));
        assert_eq!(
            sampler.last().publishers.len(),
            top.publishers.len(),
            "a window must be complete before its figures are published"
        );
        sampler.tick(Time(20_000));
        assert_eq!(sampler.last().publishers, []);
    }
}
