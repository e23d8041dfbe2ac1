//! State of the whole node that the shards of the session store need.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64};

use crate::full_queues::FullQueues;
use crate::ids::ShardId;
use crate::quota::Quotas;
use crate::settings::Settings;
use crate::store::SHARDS;
use crate::store::shard_clock::ClusterClock;

/// State of the whole node that the shards of the session store need.
#[derive(Debug, Default)]
pub struct NodeLoad {
    /// Bits of the events that have subscriptions.
    pub events: AtomicU16,
    /// Number of times that the event about alarms got another subscription; it wraps.
    pub alarm_subscriptions: AtomicU32,
    /// Number of sessions that outlive their connection.
    pub sessions: AtomicU64,
    /// True once all cores of the cluster understand Claims that keep ephemeral sessions.
    pub keeps_ephemeral: AtomicBool,
    /// True when more than `limits.memory_queued_max` has waited for longer than `queue.full_wait`. Then messages for
    /// absent clients are dropped.
    pub absent_give_way: AtomicBool,
    /// Retained messages of each shard, after the batches that it has applied.
    pub retained: [RetainedFigures; SHARDS as usize],
    /// True when there is no room for more retained messages, or none for a large one.
    pub retained_is_short: AtomicBool,
    /// Bytes of all queues, as of the last turn of a worker.
    pub queued: AtomicU64,
    /// True when more than half of `limits.memory_queued_max` has waited for connected clients for longer than
    /// `queue.full_wait`. Then connections of clients that have more than their share and acknowledge nothing are
    /// closed.
    pub hoarders_give_way: AtomicBool,
    pub full_queues: FullQueues,
    pub quotas: Quotas,
    pub owner_samples: OwnerSamples,
    /// True once all cores of the cluster understand Claims with limits for the queue of their session.
    pub reads_queue_limits: AtomicBool,
    /// True while all nodes of the cluster know the routes of linked clusters.
    pub reads_links: AtomicBool,
    /// True while all nodes of the cluster know that linked clusters join shared groups.
    pub reads_linked_groups: AtomicBool,
    /// True while all nodes of the cluster understand queues that refuse messages.
    pub reads_queue_refusals: AtomicBool,
    /// True while all nodes of the cluster understand origins of messages.
    pub reads_origins: AtomicBool,
    /// True for each shard that this node leads.
    pub led: [AtomicBool; SHARDS as usize],
    /// Sessions of each shard that another node leads and this one has a replica of, as of the last second.
    pub sessions_followed: [AtomicU64; SHARDS as usize],
    /// Time that the shards of the cluster follow.
    pub cluster_clock: ClusterClock,
}

/// Samples of the connected clients of shards, by the nodes of their connections.
#[derive(Debug, Default)]
pub struct OwnerSamples {
    /// Number of requests for samples.
    pub requested: AtomicU64,
    pub taken: [Mutex<Option<BTreeMap<u64, u64>>>; SHARDS as usize],
}

/// Retained messages of a shard and their bytes.
#[derive(Debug, Default)]
pub struct RetainedFigures {
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
}

impl NodeLoad {
    /// Number of sessions that this node stores. Any node may lead their shards.
    pub fn sessions_stored(&self) -> u64 {
        let followed: u64 = self.sessions_followed.iter().map(|sessions| sessions.load(Relaxed)).sum();
        self.sessions.load(Relaxed) + followed
    }

    /// Part of a limit of the cluster that this node may give: as many sixteenths as it leads shards, rounded up.
    /// Names are spread evenly over the shards, so all nodes together give the limit.
    pub fn led_part(&self, limit: u64) -> u64 {
        let led = self.led.iter().filter(|is_led| is_led.load(Relaxed)).count() as u64;
        limit.saturating_mul(led).div_ceil(u64::from(SHARDS))
    }

    /// Bytes that may wait for one connected client: the free part of the memory. However many clients use their share
    /// fully, each new client gets as much as they have.
    pub fn queue_share(&self, settings: &Settings) -> u64 {
        settings.limits.memory_queued_max.bytes().saturating_sub(self.queued.load(Relaxed)).max(1)
    }

    /// Records the retained messages of a shard.
    pub fn note_retained(&self, own: ShardId, (messages, bytes): (u64, u64), settings: &Settings) {
        let figures = &self.retained[own.index()];
        figures.messages.store(messages, Relaxed);
        figures.bytes.store(bytes, Relaxed);
        let (others, others_bytes) = self.retained_elsewhere(own);
        let limits = &settings.retained;
        let largest = settings.mqtt.packet_size_max.bytes();
        let is_short = messages + others >= limits.messages_max
            || (bytes + others_bytes).saturating_add(largest) > limits.bytes_max.bytes();
        self.retained_is_short.store(is_short, Relaxed);
    }

    /// Retained messages of all shards but this one, and their bytes. Limits are kept approximately, without a counter
    /// that all shards would write to.
    pub fn retained_elsewhere(&self, own: ShardId) -> (u64, u64) {
        let others = self.retained.iter().enumerate().filter(|(at, _)| *at != own.index());
        others.fold((0, 0), |(messages, bytes), (_, figures)| {
            (messages + figures.messages.load(Relaxed), bytes + figures.bytes.load(Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_nodes_are_the_limit_whoever_leads() {
        for spread in [[16, 0, 0], [6, 5, 5], [14, 1, 1]] {
            for limit in [1, 16, 1_000, 10_000_000] {
                let parts = spread.map(|led| {
                    let load = NodeLoad::default();
                    load.led[..led].iter().for_each(|is_led| is_led.store(true, Relaxed));
                    load.led_part(limit)
                });
                let all: u64 = parts.iter().sum();
                assert!((limit..limit + 3).contains(&all), "{limit} of {spread:?}: {parts:?}");
                assert!(parts[0] <= limit, "a node alone keeps to it: {parts:?}");
            }
        }
    }
}
