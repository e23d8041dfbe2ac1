//! The log of a node, as the shards of its broker see it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use broker::{Condition, Message, Node, ShardId, StoreEvent, StoreLog, Wanted};
use shard::{Mutation, mutated};
use storage::{GroupId, Log, LogEvents, Record, SegmentId, Vacate};

/// The groups of the node's replica of the meta group: its entries, and its votes.
pub const META: [GroupId; 2] = [GroupId(0), GroupId(u16::MAX)];

pub fn group_of(shard: ShardId) -> GroupId {
    GroupId(shard.0 + 1)
}

fn shard_of(group: GroupId) -> ShardId {
    ShardId(group.0 - 1)
}

/// Whoever the groups of [`META`] belong to.
pub trait MetaEvents: Send + Sync {
    /// As in [`LogEvents`].
    fn durable(&self, group: GroupId, index: u64);
    fn checkpoint_durable(&self, group: GroupId, index: u64);
    fn vacate(&self, vacate: Vacate);
    fn failed(&self);
}

/// What the log tells, and whom: nobody until the node is there.
#[derive(Default)]
pub struct Told {
    node: OnceLock<Weak<Node>>,
    meta: OnceLock<Box<dyn MetaEvents>>,
    /// What the log wants back of the meta group before somebody hears it.
    unheard: Mutex<Vec<Vacate>>,
    condition: AtomicU8,
}

impl Told {
    fn tell(&self, node: &Arc<Node>) {
        if self.node.set(Arc::downgrade(node)).is_err() {
            debug_assert!(false, "a log has one node");
        }
    }

    /// Somebody hears what is about the groups of [`META`] from now on. The first call counts.
    pub fn hear_meta(&self, meta: Box<dyn MetaEvents>) {
        let mut unheard = self.unheard();
        let meta = self.meta.get_or_init(|| meta);
        unheard.drain(..).for_each(|vacate| meta.vacate(vacate));
    }

    fn unheard(&self) -> MutexGuard<'_, Vec<Vacate>> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.get()?.upgrade()
    }

    fn event(&self, shard: ShardId, event: StoreEvent) {
        if let Some(node) = self.node() {
            node.store_event(shard, event);
        }
    }

    fn condition(&self, condition: Condition) {
        self.condition.store(condition as u8, Ordering::Release);
        if let Some(node) = self.node() {
            node.store_condition(condition);
        }
    }
}

/// The events of the log, passed on to the workers' mailboxes.
pub struct Events(pub Arc<Told>);

impl LogEvents for Events {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        if let Some(meta) = self.0.meta.get() {
            let of_meta = groups.iter().filter(|(group, _)| META.contains(group));
            of_meta.for_each(|(group, index)| meta.durable(*group, *index));
        }
        if let Some(node) = self.0.node() {
            let of_shards = groups.iter().filter(|(group, _)| !META.contains(group));
            node.store_durable(of_shards.map(|(group, index)| (shard_of(*group), *index)));
        }
    }

    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        if META.contains(&group) {
            self.0.meta.get().into_iter().for_each(|meta| meta.checkpoint_durable(group, index));
            return;
        }
        self.0.event(shard_of(group), StoreEvent::Checkpointed(index));
    }

    fn vacate(&mut self, vacate: Vacate) {
        if META.contains(&vacate.group) {
            let mut unheard = self.0.unheard();
            match self.0.meta.get() {
                Some(meta) => meta.vacate(vacate),
                None => unheard.push(vacate),
            }
            return;
        }
        let Vacate { group, segment, first, last } = vacate;
        self.0.event(shard_of(group), StoreEvent::Vacate { segment: segment.0, first, last });
    }

    fn full(&mut self) {
        tracing::error!(
            "the disk is full: messages for durable sessions are refused until there is room (other work goes on)"
        );
        self.0.condition(Condition::Full);
    }

    fn room(&mut self) {
        tracing::info!("the disk has room again: messages for durable sessions are taken");
        self.0.condition(Condition::Good);
    }

    fn failed(&mut self, error: &storage::Error) {
        tracing::error!(
            %error,
            "the disk has failed: nothing is acknowledged any more that has to be kept. Look at the disk, then restart the node"
        );
        self.0.meta.get().into_iter().for_each(|meta| meta.failed());
        self.0.condition(Condition::Failed);
    }
}

/// Messages that a shard wants back.
#[derive(Debug)]
pub struct Reading {
    shard: ShardId,
    wanted: Vec<Wanted>,
}

/// Has what shards want back read, some time and elsewhere: a disk may take long, and a reactor never waits.
type ReadBy = Box<dyn Fn(Reading) + Send + Sync>;

/// A shard's side of the log.
pub struct ShardLog {
    log: Log,
    told: Arc<Told>,
    read_by: ReadBy,
}

impl ShardLog {
    /// `read_by` is called on reactors, and sees to it that [`Reading::run`] is called elsewhere.
    pub fn new(log: Log, told: Arc<Told>, read_by: impl Fn(Reading) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { log, told, read_by: Box::new(read_by) })
    }

    pub fn log(&self) -> &Log {
        &self.log
    }
}

impl Reading {
    /// Reads, and tells the shard. Waits for the disk.
    pub fn run(self, log: &Log, told: &Told) {
        let Self { shard, wanted } = self;
        // Messages that were published together lie in one record.
        let mut records: HashMap<u64, Option<Arc<[u8]>>> = HashMap::new();
        let read = wanted.into_iter().map(|wanted| {
            let index = wanted.key.index();
            let record = records.entry(index).or_insert_with(|| match log.read(group_of(shard), index) {
                Ok(record) => Some(record),
                Err(error) => {
                    tracing::error!(%error, shard = shard.0, index, "a message cannot be read back");
                    None
                }
            });
            let view = record.as_ref().and_then(|record| shard::message_at(record, wanted.key).ok());
            (wanted, view.map(|view| Message::of_stored(&view)))
        });
        let mut read: Vec<_> = read.collect();
        if mutated(Mutation::WrongBody)
            && let [(_, first), .., (_, last)] = &mut read[..]
        {
            std::mem::swap(first, last);
        }
        told.event(shard, StoreEvent::Read(read));
    }
}

impl StoreLog for ShardLog {
    fn connect(&self, node: &Arc<Node>) {
        self.told.tell(node);
    }

    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>) {
        self.log.append([Record::Entry { group: group_of(shard), term: 1, index, payload: batch }]);
    }

    fn part(&self, shard: ShardId, checkpoint: u64, part: u32, bytes: Vec<u8>) {
        let payload = bytes.into();
        self.log.append([Record::Part { group: group_of(shard), part, checkpoint, payload }]);
    }

    fn checkpointed(&self, shard: ShardId, checkpoint: u64) {
        self.log.append([Record::Done { group: group_of(shard), checkpoint }]);
    }

    fn read(&self, shard: ShardId, wanted: Vec<Wanted>) {
        (self.read_by)(Reading { shard, wanted });
    }

    fn vacated(&self, shard: ShardId, segment: u64) {
        if let Err(refused) = self.log.vacated(group_of(shard), SegmentId(segment)) {
            tracing::error!(%refused, shard = shard.0, segment, "a segment is kept");
        }
    }

    fn report_live(&self, shard: ShardId, bytes: u64) {
        self.log.report_live(group_of(shard), bytes);
    }

    fn condition(&self) -> Condition {
        match self.told.condition.load(Ordering::Acquire) {
            0 => Condition::Good,
            1 => Condition::Full,
            _ => Condition::Failed,
        }
    }
}
