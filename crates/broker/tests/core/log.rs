//! A log under the test's control: appended batches become durable when the test says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use broker::{Condition, Message, Node, Purpose, SHARDS, ShardId, StoreEvent, StoreLog, Vacate, Wanted};
use shard::{MessageKey, StoredBatch};

/// Batches that shards have appended.
#[derive(Default)]
pub struct Log {
    node: OnceLock<Weak<Node>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    batches: BTreeMap<(u16, u64), Arc<Vec<u8>>>,
    /// Messages of batches that are kept after these are gone.
    kept: BTreeMap<(u16, u64), Vec<u8>>,
    /// Number of records of kept messages that are not durable.
    keeping: BTreeMap<u16, u64>,
    /// Appended and not durable: the last index of each shard.
    pending: BTreeMap<u16, u64>,
    /// The last durable index of each shard.
    durable: BTreeMap<u16, u64>,
    /// Checkpoints that are complete and not durable.
    checkpoints: Vec<(ShardId, u64)>,
    /// Shards that were asked for a segment, with the last index in it.
    vacating: BTreeMap<(u64, u16), u64>,
    /// Number of shards that need nothing of a segment any more.
    vacated: BTreeMap<u64, usize>,
    /// Predicate for reads that take long, and the reads that are held.
    is_held: Option<fn(Purpose) -> bool>,
    held: Vec<(ShardId, Vec<Wanted>)>,
    /// True if requests to keep messages take long, and those requests.
    holds_keeps: bool,
    held_keeps: Vec<(ShardId, Vec<MessageKey>, bool)>,
    appended: usize,
    condition: Condition,
    /// Number of further reads of messages that fail.
    failing: usize,
    /// Payload of messages that cannot be read at all.
    damaged: Vec<u8>,
    reads: usize,
    keeps_nothing_ahead: bool,
}

impl Log {
    /// Makes everything durable that was appended so far.
    pub fn sync(&self) {
        let pending = std::mem::take(&mut self.state().pending);
        self.state().durable.extend(&pending);
        let event = |(shard, index)| (ShardId(shard), StoreEvent::Durable(index));
        self.node().store_events(pending.into_iter().map(event));
        let keeping = std::mem::take(&mut self.state().keeping);
        for (shard, records) in keeping {
            self.node().store_event(ShardId(shard), StoreEvent::KeptDurable(records));
        }
        let checkpoints = std::mem::take(&mut self.state().checkpoints);
        for (shard, index) in checkpoints {
            self.node().store_event(shard, StoreEvent::Checkpointed(index));
        }
    }

    /// Returns whether everything that was appended is durable.
    pub fn is_synced(&self) -> bool {
        let state = self.state();
        state.pending.is_empty() && state.checkpoints.is_empty() && state.keeping.is_empty()
    }

    /// Asks all shards for this segment, which contains everything durable. Returns the number of shards.
    pub fn vacate(&self, segment: u64) -> usize {
        let durable = self.state().durable.clone();
        for (shard, last) in &durable {
            self.state().vacating.insert((segment, *shard), *last);
            let mut kept: Vec<(u16, u64)> = self.state().kept.keys().copied().collect();
            kept.retain(|(of, _)| of == shard);
            let kept = kept.into_iter().map(|(_, index)| index).collect();
            let vacate = Vacate { segment, batches: Some((1, *last)), kept };
            self.node().store_event(ShardId(*shard), StoreEvent::Vacate(vacate));
        }
        durable.len()
    }

    /// Number of shards that have freed this segment.
    pub fn vacated(&self, segment: u64) -> usize {
        self.state().vacated.get(&segment).copied().unwrap_or_default()
    }

    /// State after the process ends now: a log with the durable batches, and the shards that result from them.
    pub fn killed(&self, hash_key: [u8; 16]) -> (Arc<Log>, Vec<shard::Shard>) {
        let State { mut batches, durable, kept, .. } = std::mem::take(&mut *self.state());
        batches.retain(|(shard, index), _| durable.get(shard).is_some_and(|last| index <= last));
        let mut shards: Vec<_> = (0..SHARDS).map(|id| shard::Shard::new(id, hash_key)).collect();
        for ((shard, index), batch) in &batches {
            let applied = shards[usize::from(*shard)].apply(*index, batch, &mut Vec::new());
            applied.expect("what was written is read");
        }
        let log = Log::default();
        *log.state() = State { batches, durable, kept, ..State::default() };
        (Arc::new(log), shards)
    }

    /// Makes the next `count` reads of messages fail.
    pub fn fail_reads(&self, count: usize) {
        self.state().failing = count;
    }

    /// Makes messages with this payload unreadable.
    pub fn damage(&self, payload: &str) {
        self.state().damaged = payload.into();
    }

    /// Number of messages that were requested so far, readable or not.
    pub fn reads(&self) -> usize {
        self.state().reads
    }

    /// Keeps messages that wait for a client on disk only. It is called before a node starts on the log.
    pub fn keep_nothing_ahead(&self) {
        self.state().keeps_nothing_ahead = true;
    }

    /// Holds reads for these purposes until the next call. Returns how many messages were read that had been held.
    pub fn hold_reads(&self, is_held: fn(Purpose) -> bool) -> usize {
        self.state().is_held = Some(is_held);
        let held = std::mem::take(&mut self.state().held);
        let count =
            |held: &[(ShardId, Vec<Wanted>)]| held.iter().map(|(_, wanted)| wanted.len()).sum::<usize>();
        let before = count(&held);
        held.into_iter().for_each(|(shard, wanted)| self.read(shard, wanted));
        before - count(&self.state().held)
    }

    /// Holds requests to keep messages, or ends that. Returns how many messages were kept that had been held.
    pub fn hold_keeps(&self, holds: bool) -> usize {
        self.state().holds_keeps = holds;
        let held = std::mem::take(&mut self.state().held_keeps);
        let count = held.iter().map(|(_, keys, _)| keys.len()).sum();
        held.into_iter().for_each(|(shard, keys, is_second_try)| self.keep(shard, keys, is_second_try));
        count
    }

    /// Number of batches that were appended so far.
    pub fn appended(&self) -> usize {
        self.state().appended
    }

    /// Sets the condition of the disk.
    pub fn becomes(&self, condition: Condition) {
        self.state().condition = condition;
        self.node().store_condition(condition);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("one thread")
    }

    fn node(&self) -> Arc<Node> {
        self.node.get().and_then(Weak::upgrade).expect("the node exists")
    }
}

impl State {
    fn stored(&self, shard: ShardId, index: u64) -> Option<StoredBatch<'_>> {
        let at = (shard.0, index);
        let whole = self.batches.get(&at).map(|batch| StoredBatch::Whole(batch));
        whole.or_else(|| self.kept.get(&at).map(|kept| StoredBatch::Kept(kept)))
    }
}

impl StoreLog for Log {
    fn connect(&self, node: &Arc<Node>) {
        self.node.set(Arc::downgrade(node)).expect("once");
    }

    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>) {
        let mut state = self.state();
        state.appended += 1;
        state.pending.insert(shard.0, index);
        assert!(state.batches.insert((shard.0, index), batch).is_none(), "an index is used once");
    }

    fn part(&self, _: ShardId, _: u64, _: u32, _: Vec<u8>) {}

    fn checkpointed(&self, shard: ShardId, checkpoint: u64) {
        self.state().checkpoints.push((shard, checkpoint));
    }

    fn read(&self, shard: ShardId, wanted: Vec<Wanted>) {
        let is_held = self.state().is_held.unwrap_or(|_| false);
        if wanted.iter().any(|wanted| is_held(wanted.purpose)) {
            return self.state().held.push((shard, wanted));
        }
        let read = |wanted: Wanted| {
            let mut state = self.state();
            state.reads += 1;
            if state.failing > 0 {
                state.failing -= 1;
                return None;
            }
            let message =
                Message::of_stored(&state.stored(shard, wanted.key.index())?.message(wanted.key).ok()?);
            (state.damaged.is_empty() || message.view().payload != state.damaged).then_some(message)
        };
        let read = wanted.into_iter().map(|wanted| (wanted, read(wanted))).collect();
        self.node().store_event(shard, StoreEvent::Read(read));
    }

    fn keep(&self, shard: ShardId, keys: Vec<MessageKey>, is_second_try: bool) {
        let mut state = self.state();
        if state.holds_keeps {
            return state.held_keeps.push((shard, keys, is_second_try));
        }
        let (mut records, mut failed) = (0, Vec::new());
        for keys in keys.chunk_by(|one, next| one.index() == next.index()) {
            let index = keys[0].index();
            if state.failing > 0 {
                state.failing -= 1;
                failed.extend_from_slice(keys);
                continue;
            }
            let stored = state.stored(shard, index).expect("a batch that is needed");
            let (kept, missing) = stored.keep(keys);
            assert!(missing.is_empty());
            state.kept.insert((shard.0, index), kept);
            records += 1;
        }
        if records > 0 {
            *state.keeping.entry(shard.0).or_default() += records;
        }
        drop(state);
        self.node().store_event(shard, StoreEvent::Kept { records, failed });
    }

    fn append_bodies(&self, shard: ShardId, bodies: Vec<(u64, Vec<u8>)>) {
        let mut state = self.state();
        *state.keeping.entry(shard.0).or_default() += bodies.len() as u64;
        state.kept.extend(bodies.into_iter().map(|(index, kept)| ((shard.0, index), kept)));
    }

    fn has_bodies(&self, shard: ShardId, index: u64) -> bool {
        self.state().stored(shard, index).is_some()
    }

    fn vacated(&self, shard: ShardId, segment: u64) {
        let mut state = self.state();
        *state.vacated.entry(segment).or_default() += 1;
        let last = state.vacating.remove(&(segment, shard.0)).expect("a segment that was asked for");
        state.batches.retain(|(of, index), _| *of != shard.0 || *index > last);
    }

    fn report_live(&self, _: ShardId, _: u64) {}

    fn condition(&self) -> Condition {
        self.state().condition
    }

    fn ahead_bytes(&self) -> u64 {
        if self.state().keeps_nothing_ahead { 0 } else { 256 * 1024 }
    }
}
