//! Invariants of a worker, for tests and simulations.

use std::collections::HashMap;

use super::Worker;
use crate::counters::StoreCounters;
use crate::groups::GroupHost;
use crate::ids::ShardId;
use crate::message_queue::Awaited;
use crate::store::{ReplicaCounters, SHARDS, ShardHost};

impl Worker {
    /// Checks the invariants that hold between any two calls.
    pub fn check_invariants(&self) {
        let mut queued_bytes = 0;
        let mut pending = HashMap::new();
        for (slot, generation, connection) in self.connections.iter() {
            assert_eq!((connection.id.slot, connection.id.generation), (slot, generation));
            let Some(flow) = &connection.flow else { continue };
            flow.deliveries.check_invariants();
            assert!(
                connection.session.is_none() || flow.deliveries.is_empty() && flow.queue.is_empty(),
                "the store owns the queue of a durable session"
            );
            flow.queue.check_invariants();
            let (waiting, over) = flow.queue.sizes();
            let kept: usize = flow.deliveries.inflight_payloads().map(|entry| entry.message.size()).sum();
            assert_eq!(flow.held_bytes, waiting + kept);
            queued_bytes += waiting + kept + over;
            for overflow in flow.queue.overflow() {
                if let Awaited::Record(key) = overflow.awaited {
                    *pending.entry(key as usize).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(
            self.queues.bytes(),
            queued_bytes as u64,
            "queued_bytes is the size of all waiting messages"
        );
        let awaited: HashMap<usize, u32> = self.queues.awaited().collect();
        assert_eq!(awaited, pending, "a message waits for each receiver that lacks it");
        for shard in self.shards.iter() {
            shard.check_invariants();
        }
    }

    /// Returns the term in which this node leads a shard of this worker.
    pub fn leads(&self, shard: ShardId) -> Option<u64> {
        self.shards.get(shard).map(ShardHost::term)
    }

    /// Returns the last record that a shard of this worker has applied, and a digest of its state. `None` while a
    /// record is applied in part.
    pub fn digest(&self, shard: ShardId) -> Option<(u64, u64)> {
        let state = self.shard_state(shard)?;
        Some((state.applied(), state.digest()))
    }

    /// Returns the state of a shard of this worker. `None` while a record is applied in part.
    pub fn shard_state(&self, shard: ShardId) -> Option<&shard::Shard> {
        self.shards.state(shard).filter(|state| !state.is_midway())
    }

    /// Returns the topics and payloads of the retained messages of this worker's replicas.
    pub fn retained(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for state in (0..SHARDS).filter_map(|shard| self.shards.state(ShardId(shard))) {
            let mut after = None;
            loop {
                let page = state.retained_page("#", after.as_deref(), 64);
                let view = |bytes| shard::MessageView::decode(bytes).expect("it was encoded here");
                found.extend(page.messages.iter().map(|bytes| view(bytes)).map(|message| {
                    (message.topic.to_owned(), String::from_utf8_lossy(message.payload).into_owned())
                }));
                after = page.after;
                if after.is_none() {
                    break;
                }
            }
        }
        found
    }

    /// Returns the counters of the replicas of this worker's shards.
    pub fn replica_counters(&self) -> ReplicaCounters {
        self.shards.replica_counters()
    }

    /// Number of bytes that count against `limits.memory_unsynced_max`, and number of messages that were acknowledged
    /// before they were on disk.
    pub fn unsynced(&self) -> (u64, u64) {
        let mut counters = StoreCounters::default();
        self.shards.add_counters(&mut counters);
        (self.shards.iter().map(ShardHost::unsynced_bytes).sum(), counters.acknowledged_unsynced)
    }

    /// Returns the number of messages whose identities the shards of this worker keep because publishers may send them
    /// again.
    pub fn identities(&self) -> usize {
        self.shards.iter().map(ShardHost::identities).sum()
    }

    /// Checks the additional invariants of an idle worker: no work in progress, no connections, no sessions.
    pub fn check_quiet(&self) {
        self.check_invariants();
        assert_eq!(self.connections.len(), 0);
        assert!(!self.monitor.awaits_acks());
        for shard in self.shards.iter() {
            shard.check_quiet();
        }
        self.shards.groups().iter().for_each(GroupHost::check_quiet);
    }
}
