//! The product's log, with a record of its use: no thread wakes up by itself here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::{Condition, Node, ShardId, StoreLog, Wanted};
use shardlog::ShardLog;

pub struct ObservedLog {
    log: Arc<ShardLog>,
    used: AtomicBool,
    keeps_ahead: bool,
}

impl ObservedLog {
    pub fn new(log: Arc<ShardLog>, keeps_ahead: bool) -> Arc<Self> {
        Arc::new(Self { log, used: AtomicBool::new(false), keeps_ahead })
    }

    /// Returns whether there is something to write or to free since the last call.
    pub fn take_has_work(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn mark_used(&self) -> &ShardLog {
        self.used.store(true, Ordering::Relaxed);
        &self.log
    }
}

impl StoreLog for ObservedLog {
    fn connect(&self, node: &Arc<Node>) {
        self.log.connect(node);
    }

    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>) {
        self.mark_used().append(shard, index, batch);
    }

    fn part(&self, shard: ShardId, checkpoint: u64, part: u32, bytes: Vec<u8>) {
        self.mark_used().part(shard, checkpoint, part, bytes);
    }

    fn checkpointed(&self, shard: ShardId, checkpoint: u64) {
        self.mark_used().checkpointed(shard, checkpoint);
    }

    fn read(&self, shard: ShardId, wanted: Vec<Wanted>) {
        self.log.read(shard, wanted);
    }

    fn keep(&self, shard: ShardId, keys: Vec<shard::MessageKey>, is_second_try: bool) {
        self.log.keep(shard, keys, is_second_try);
    }

    fn append_bodies(&self, shard: ShardId, bodies: Vec<(u64, Vec<u8>)>) {
        self.mark_used().append_bodies(shard, bodies);
    }

    fn has_bodies(&self, shard: ShardId, index: u64) -> bool {
        self.log.has_bodies(shard, index)
    }

    fn vacated(&self, shard: ShardId, segment: u64) {
        self.mark_used().vacated(shard, segment);
    }

    fn report_live(&self, shard: ShardId, bytes: u64) {
        self.log.report_live(shard, bytes);
    }

    fn condition(&self) -> Condition {
        self.log.condition()
    }

    fn ahead_bytes(&self) -> u64 {
        if self.keeps_ahead { self.log.ahead_bytes() } else { 0 }
    }
}
