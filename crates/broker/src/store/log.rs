//! Where the batches of shards become durable, seen from a shard.

use std::sync::Arc;

use crate::ids::{ShardId, Time};
use crate::message::Message;
use crate::node::Node;

/// The log of a node, on threads of its own. Nothing here blocks: a reactor calls it. What comes of it is told by
/// [`WorkerCommand::Store`](crate::WorkerCommand::Store) to the worker that hosts the shard.
///
/// **Invariant:** batches of one shard become durable in the order of their indexes, and [`StoreEvent::Durable`] says so only when
/// they are.
pub trait StoreLog: Send + Sync {
    /// Whom to tell from now on. Called once, before anything else.
    fn connect(&self, node: &Arc<Node>);
    /// Queues a batch, whose index is one more than the last one's of the shard. It is let go of before it is told durable, for its
    /// memory is used again.
    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>);
    /// Queues a part of the checkpoint that stands for everything up to index `checkpoint`.
    fn part(&self, shard: ShardId, checkpoint: u64, part: u32, bytes: Vec<u8>);
    /// All parts that changed are queued. Answered by [`StoreEvent::Checkpointed`].
    fn checkpointed(&self, shard: ShardId, checkpoint: u64);
    /// Reads messages of batches. Answered by [`StoreEvent::Read`].
    fn read(&self, shard: ShardId, wanted: Vec<Wanted>);
    /// The shard needs nothing of this segment any more, durably.
    fn vacated(&self, shard: ShardId, segment: u64);
    /// Bytes that the shard cannot do without: its state and the messages it refers to.
    fn report_live(&self, shard: ShardId, bytes: u64);
    /// Whether messages may be taken at all.
    fn condition(&self) -> Condition;
    /// Maximum number of bytes of one session's messages that are kept in memory, although they lie on disk, until they are sent. With 0 each
    /// message that waits is read from disk, which tests want.
    fn ahead_bytes(&self) -> u64 {
        256 * 1024
    }
}

/// Whether the log takes messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Good,
    /// There is no room: only what makes room is taken, until there is.
    Full,
    /// The disk has failed: nothing becomes durable any more.
    Failed,
}

/// A message to read, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub purpose: Purpose,
    pub key: shard::MessageKey,
    /// The disk could not give it the first time.
    pub is_second_try: bool,
}

impl Wanted {
    pub fn new(purpose: Purpose, key: shard::MessageKey) -> Self {
        Self { purpose, key, is_second_try: false }
    }
}

/// What a message is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be sent as this delivery of a session.
    Delivery { session: shard::SessionUid, number: u64 },
    /// To be given to another member of its shared group.
    Orphan { id: u64 },
    /// To be shown to an operator, as entry `at` of a page.
    QueuePageRead { ticket: usize, at: usize },
    /// To be moved out of a segment that is given back.
    Rewrite,
}

/// What the log tells a shard.
#[derive(Debug)]
pub enum StoreEvent {
    /// Everything up to this index is durable.
    Durable(u64),
    /// The checkpoint of this index is complete.
    Checkpointed(u64),
    /// What was asked for; `None` where the disk could not give it.
    Read(Vec<(Wanted, Option<Message>)>),
    /// A segment is to be given back: whatever of these indexes and parts is needed has to be written again.
    Vacate { segment: u64, first: u64, last: u64 },
    /// There is room again, or none any more.
    Condition(Condition),
}

/// What a node goes on with.
pub struct Store {
    /// Where it makes things durable; `None`: nothing outlives the process.
    pub log: Option<Arc<dyn StoreLog>>,
    /// Shards as they were found; those that are missing are empty.
    pub shards: Vec<shard::Shard>,
    pub incarnation: Incarnation,
    /// Secret randomness: keys of hash tables, assigned identifiers, choices in shared groups, and who owns a session. With a log it is
    /// the same in every life.
    pub hash_key: [u8; 16],
}

/// One life of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// The node's time as it begins: later than anything in the shards.
    pub began: Time,
    /// A number that no earlier life had.
    pub number: u64,
}
