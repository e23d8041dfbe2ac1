//! Interface of a shard to the log that makes its batches durable, and to the agreement of its replicas.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shard::MessageKey;

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
    fn keep(&self, shard: ShardId, keys: Vec<MessageKey>, is_second_try: bool);
    /// Writes messages that another replica has sent, with the indexes of their batches. The log reports them by
    /// [`StoreEvent::KeptDurable`].
    fn append_bodies(&self, shard: ShardId, bodies: Vec<(u64, Vec<u8>)>);
    /// Returns whether the log has this batch, or messages that were kept of it.
    fn has_bodies(&self, shard: ShardId, index: u64) -> bool;
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
    pub key: MessageKey,
    /// The disk could not return the message the first time.
    pub is_second_try: bool,
}

impl Wanted {
    pub fn new(purpose: Purpose, key: MessageKey) -> Self {
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
    Kept { records: u64, failed: Vec<MessageKey> },
    /// The number of further records of kept messages that are durable.
    KeptDurable(u64),
    /// The condition of the log has changed: it has room again, or none any more.
    Condition(Condition),
    /// An event for the [`Agreement`] of the shard.
    Agreement(AgreementEvent),
    /// A frame of another replica.
    Frame(PeerFrame),
    /// The link to this node of the cluster is down: what was sent to it is lost.
    LinkLost(u64),
    /// Effects of earlier events are left from the last turn.
    More,
}

impl StoreEvent {
    /// Returns whether the event is for the [`Agreement`] of the shard.
    pub(crate) fn is_for_agreement(&self) -> bool {
        matches!(self, Self::Agreement(_) | Self::Frame(_) | Self::LinkLost(_))
    }
}

/// Agreement of the replicas of a shard on its batches, as one of them uses it. It belongs to the worker of the shard.
/// No function blocks.
///
/// The replica does one [`Step`] at a time, in their order. It ends each with [`Self::done`], [`Self::wrote`],
/// [`Self::prepared`] or [`Self::refuse`]. [`Step::Leads`], [`Step::Follows`], [`Step::Vacate`], [`Step::Bodies`],
/// [`Step::Sought`], [`Step::Unreadable`], [`Step::AbandonRestore`] and [`Step::Readable`] need no end. They,
/// [`Step::WriteParts`] and batches may come while a state is prepared.
///
/// **Invariant:** the batches that are committed, and their order, are the same on all replicas.
pub trait Agreement: Send {
    /// Handles an event of the log. [`Self::turn`] must follow.
    fn handle(&mut self, event: AgreementEvent);
    /// Handles a frame of another replica. [`Self::turn`] must follow.
    fn receive(&mut self, frame: PeerFrame);
    /// Handles the loss of the link to a node.
    fn link_lost(&mut self, node: u64);
    /// Sets the condition of the node's log. A leader whose log is full transfers its leadership.
    fn set_condition(&mut self, condition: Condition);
    /// Runs everything that is due.
    fn turn(&mut self, now: Time);
    /// Time of the next call of [`Self::turn`], at the latest.
    fn timeout(&self) -> Time;
    /// Takes a frame for another replica.
    fn poll_frame(&mut self) -> Option<Frame>;
    /// Index up to which the log of this node has the batches. One can be committed before: others have it then.
    fn durable(&self) -> u64;
    /// Proposes a batch, between [`Step::Leads`] and [`Step::Follows`]. `number` is one more than that of the last one.
    /// A batch that is committed meanwhile comes as [`Step::Commit`] with its number, in the order of the numbers.
    fn propose(&mut self, number: u64, batch: Arc<Vec<u8>>);
    /// Requests a read barrier, between [`Step::Leads`] and [`Step::Follows`]. [`Step::Readable`] has the same number.
    /// It comes unless the replica leads no more, and only for the last one. [`Self::turn`] must follow.
    fn read_barrier(&mut self, number: u64);
    /// Takes the next step.
    fn poll(&mut self) -> Option<Step>;
    /// Ends the step.
    fn done(&mut self);
    /// Writes a part of the checkpoint, for [`Step::WriteParts`].
    fn put(&mut self, part: u32, bytes: &[u8]);
    /// Ends [`Step::WriteParts`]. `is_last`: all parts are written.
    fn wrote(&mut self, is_last: bool);
    /// Ends a step that cannot be done: the replica takes no further part in the agreement.
    fn refuse(&mut self, why: &str);
    /// Asks another replica for messages that a received state refers to, all that it needs of each of these batches.
    /// Answered by [`Step::Bodies`].
    fn fetch(&mut self, keys: Vec<MessageKey>);
    /// Asks the other voters for messages that the disk of this node cannot return, all that are needed of each of
    /// these batches. Answered by [`Step::Sought`]. Only one such request is made at a time.
    fn seek(&mut self, keys: Vec<MessageKey>);
    /// Ends [`Step::Prepare`]. `is_complete`: the log has all messages. Otherwise they have no room, and the state
    /// stays as it is.
    fn prepared(&mut self, is_complete: bool);
    /// Reports that the log has what the state needs of a segment elsewhere too, durably.
    fn bodies_kept(&mut self, segment: u64);
    /// Number of the last own batch that a majority of the replicas has in memory at least, with all before it. Batches
    /// that are committed count, whether replicas report what they have in memory or not. 0 if there is none.
    fn held(&mut self) -> u64;
    /// Returns the progress of the other replicas, as the leader knows it. Empty while this replica follows.
    fn progress(&self) -> Vec<ReplicaProgress>;
}

/// Progress of another replica of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaProgress {
    pub node: u64,
    /// Number of entries that it lacks; `None` while that is not known.
    pub behind: Option<u64>,
    /// Time since its last answer; `None` if there was none.
    pub silence: Option<Duration>,
}

/// An event for an [`Agreement`]. Only its implementation knows what it is.
pub type AgreementEvent = Box<dyn Any + Send>;

/// Work of a replica for its [`Agreement`].
#[derive(Debug)]
pub enum Step {
    /// The replica leads in this term. Its state has everything that was committed before.
    Leads {
        term: u64,
    },
    /// The replica leads no more. Batches that it has proposed may be lost, or be committed later.
    Follows,
    /// Apply a batch.
    Commit(CommittedBatch),
    /// Entries up to this index are no batches.
    PassOver(u64),
    /// Begin a checkpoint of the present state.
    BeginCheckpoint,
    /// Write parts of the checkpoint until this number of bytes is exceeded.
    WriteParts {
        budget: usize,
    },
    /// Begin to read a state that another replica has sent.
    BeginRestore,
    RestorePart {
        part: u32,
        bytes: Arc<[u8]>,
    },
    /// All parts were read. The state includes the batches up to this index. [`Agreement::fetch`] gets the messages
    /// that it refers to; the step ends when the log has them, durably.
    Prepare {
        index: u64,
    },
    /// The state that was read replaces the present one.
    Restored,
    /// The state that is being read is not wanted any more.
    AbandonRestore,
    /// The messages of [`Agreement::fetch`], with the indexes of their batches, in the form of
    /// [`StoredBatch::Kept`](shard::StoredBatch::Kept). Those that nobody needs any more are missing.
    Bodies(Vec<(u64, Vec<u8>)>),
    /// The messages of [`Agreement::seek`], in the form of [`Self::Bodies`]. Those that no voter has are missing.
    Sought(Vec<(u64, Vec<u8>)>),
    /// The disk cannot return messages for which another replica has asked. They are to be sought, and the other
    /// replica asks again.
    Unreadable(Vec<MessageKey>),
    /// A majority has confirmed that this replica led after the read barrier was requested. The state has everything
    /// that was committed before.
    Readable(u64),
    /// A segment is to be freed: what the state needs of these batches has to be kept.
    Vacate(Vacate),
}

/// A batch on which the replicas agree.
#[derive(Debug)]
pub struct CommittedBatch {
    /// Index in the log of the shard. It grows, but not by one: the agreement has entries of its own.
    pub index: u64,
    /// Number with which this replica has proposed the batch since it leads.
    pub number: Option<u64>,
    pub bytes: Arc<Vec<u8>>,
}

/// A frame of an [`Agreement`] for another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the node in the cluster.
    pub to: u64,
    pub bytes: Vec<u8>,
    /// True for a heartbeat and for its answer: its order among other frames does not matter.
    pub is_heartbeat: bool,
}

impl Frame {
    /// Makes a frame that is no heartbeat.
    pub fn new(to: u64, bytes: Vec<u8>) -> Self {
        Self { to, bytes, is_heartbeat: false }
    }
}

/// A frame of an [`Agreement`] of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFrame {
    /// Number of the node in the cluster.
    pub from: u64,
    pub bytes: Bytes,
}

impl From<PeerFrame> for StoreEvent {
    fn from(frame: PeerFrame) -> Self {
        Self::Frame(frame)
    }
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
    /// Agreements of the shards that other nodes have too. On a node of a cluster ([`Self::own`]), a shard without one
    /// has no replica here at the start. Otherwise it is on this node alone.
    pub agreements: Vec<(ShardId, Box<dyn Agreement>)>,
    /// This node in its cluster, when the shards belong to the cluster.
    pub own: Option<shard::NodeIncarnation>,
    pub incarnation: Incarnation,
    /// Secret randomness: keys of hash tables, assigned identifiers, choices in shared groups, and owners of sessions.
    /// With a log it is the same in every incarnation.
    pub hash_key: [u8; 16],
}

/// A replica of a shard that begins on a node that runs.
pub struct ReplicaStart {
    pub state: shard::Shard,
    pub agreement: Box<dyn Agreement>,
}

impl fmt::Debug for ReplicaStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaStart").field("shard", &self.state.id()).finish_non_exhaustive()
    }
}

/// One run of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// Time of the node at its start: later than any time in the shards.
    pub began: Time,
    /// A number that no previous incarnation had.
    pub number: u64,
}
