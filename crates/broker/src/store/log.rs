//! Interface of a shard to the log that makes its batches durable.

use std::sync::Arc;

use crate::ids::{ShardId, Time};
use crate::message::Message;
use crate::node::Node;

/// The log of a node, on threads of its own. No function blocks, because reactors call them. Results arrive as
/// [`WorkerCommand::Store`](crate::WorkerCommand::Store) at the worker that hosts the shard.
///
/// **Invariant:** batches of one shard become durable in the order of their indexes, and [`StoreEvent::Durable`]
/// reports them only then.
pub trait StoreLog: Send + Sync {
    /// Sets the node that receives the events. It is called once, before anything else.
    fn connect(&self, node: &Arc<Node>);
    /// Queues a batch, whose index is one more than that of the shard's last one. The log drops its reference before it
    /// reports the batch as durable, because the shard reuses the memory.
    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>);
    /// Queues a part of the checkpoint that stands for everything up to index `checkpoint`.
    fn part(&self, shard: ShardId, checkpoint: u64, part: u32, bytes: Vec<u8>);
    /// Ends the checkpoint: all parts that changed are queued. Answered by [`StoreEvent::Checkpointed`].
    fn checkpointed(&self, shard: ShardId, checkpoint: u64);
    /// Reads messages of batches. Answered by [`StoreEvent::Read`].
    fn read(&self, shard: ShardId, wanted: Vec<Wanted>);
    /// Writes messages again whose segment is to be freed, so that they can be read afterwards too. The keys are
    /// ascending, and include all that are needed of each batch. Answered by [`StoreEvent::Kept`]. `is_second_try`: the
    /// disk could not return these batches the first time.
    fn keep(&self, shard: ShardId, keys: Vec<shard::MessageKey>, is_second_try: bool);
    /// Reports that the shard needs nothing of this segment any more, durably.
    fn vacated(&self, shard: ShardId, segment: u64);
    /// Reports the number of bytes that the shard needs: its state and the messages it refers to.
    fn report_live(&self, shard: ShardId, bytes: u64);
    /// Returns whether messages may be accepted at all.
    fn condition(&self) -> Condition;
    /// Maximum number of bytes of one session's messages that are kept in memory until they are sent, although they are
    /// on disk. With 0 each message that waits is read from disk, which tests use.
    fn ahead_bytes(&self) -> u64 {
        256 * 1024
    }
}

/// State of the log that decides whether it accepts messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Good,
    /// No room: only records that free some are accepted until there is.
    Full,
    /// The disk has failed: nothing becomes durable any more.
    Failed,
}

/// A message to read, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub purpose: Purpose,
    pub key: shard::MessageKey,
    /// The disk could not return the message the first time.
    pub is_second_try: bool,
}

impl Wanted {
    pub fn new(purpose: Purpose, key: shard::MessageKey) -> Self {
        Self { purpose, key, is_second_try: false }
    }
}

/// Purpose of a message that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Send it as this delivery of a session.
    Delivery { session: shard::SessionUid, number: u64 },
    /// Give it to another member of its shared group.
    Orphan { id: u64 },
    /// Show this delivery of a session to an operator, as entry `at` of a page.
    QueuePageRead { ticket: usize, at: usize, session: shard::SessionUid, number: u64 },
}

/// An event of the log for a shard.
#[derive(Debug)]
pub enum StoreEvent {
    /// Everything up to this index is durable.
    Durable(u64),
    /// The checkpoint of this index is complete.
    Checkpointed(u64),
    /// Messages that were requested; `None` where the disk could not return one.
    Read(Vec<(Wanted, Option<Message>)>),
    /// A segment is to be freed: what the shard needs of these batches has to be kept.
    Vacate(Vacate),
    /// The messages of [`StoreLog::keep`] are queued in so many records, except those of batches that the disk could
    /// not return. [`Self::KeptDurable`] follows, or came before.
    Kept { records: u64, failed: Vec<shard::MessageKey> },
    /// The number of further records of kept messages that are durable.
    KeptDurable(u64),
    /// The condition of the log has changed: it has room again, or none any more.
    Condition(Condition),
}

/// A segment that is to be freed, and what a shard has in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vacate {
    pub segment: u64,
    /// First and last index of the batches in the segment; `None` without any.
    pub batches: Option<(u64, u64)>,
    /// Indexes of the batches whose kept messages are in the segment, in ascending order. There may be newer ones
    /// elsewhere.
    pub kept: Vec<u64>,
}

impl Vacate {
    /// Returns whether the segment has the batch of this index, or messages that were kept of it.
    pub fn contains(&self, index: u64) -> bool {
        self.batches.is_some_and(|(first, last)| (first..=last).contains(&index))
            || self.kept.binary_search(&index).is_ok()
    }

    /// Index of the last batch in the segment; 0 without any.
    pub fn last(&self) -> u64 {
        self.batches.map_or(0, |(_, last)| last)
    }
}

/// State with which a node starts.
pub struct Store {
    /// Log that makes changes durable; with `None` nothing outlives the process.
    pub log: Option<Arc<dyn StoreLog>>,
    /// Shards that were found on disk; those that are missing are empty.
    pub shards: Vec<shard::Shard>,
    pub incarnation: Incarnation,
    /// Secret randomness: keys of hash tables, assigned identifiers, choices in shared groups, and owners of sessions.
    /// With a log it is the same in every incarnation.
    pub hash_key: [u8; 16],
}

/// One run of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// Time of the node at its start: later than any time in the shards.
    pub began: Time,
    /// A number that no previous incarnation had.
    pub number: u64,
}
