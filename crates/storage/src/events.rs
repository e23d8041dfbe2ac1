//! Events that the log reports to its groups.

use crate::error::{Error, Shortage};
use crate::id::{GroupId, SegmentId};

/// Listener for the events of the log.
///
/// The log's thread calls it (from [`Writer::commit_once`](crate::Writer::commit_once)) between one commit and the
/// next. While a call runs, nothing becomes durable for any group. So an implementation passes the event on, for
/// instance to a mailbox of a reactor, and returns. It never waits, and never calls back into the log except to
/// [`append`](crate::Log::append).
pub trait LogListener: Send {
    /// Entries are durable: for each named group, all entries up to this index. Called once per commit, after its
    /// sync; each group occurs once.
    fn durable(&mut self, groups: &[(GroupId, u64)]);

    /// The checkpoint at `index` is complete and durable. Entries up to it are needed only for their bodies.
    fn checkpoint_durable(&mut self, group: GroupId, index: u64);

    /// Further parts of the group are durable, this many. They become durable in the order in which they were appended,
    /// and before their checkpoint.
    fn parts_durable(&mut self, _group: GroupId, _parts: u64) {}

    /// Further records of bodies of the group are durable: so many, in the order in which they were appended.
    fn bodies_durable(&mut self, group: GroupId, records: u64);

    /// The group is dropped: see [`Log::drop_group`](crate::Log::drop_group). It is durable that everything before the
    /// drop is void. Events before this one are of what was dropped, and those after it of what follows.
    fn dropped(&mut self, _group: GroupId) {}

    /// The segment is to be freed: see [`Vacate`].
    fn vacate(&mut self, vacate: Vacate);

    /// No further spare segment can be created, for lack of this resource. Until [`room`](Self::room), propose only
    /// small records and records that free space: they go into the reserve that `storage.reserve` sets.
    fn full(&mut self, shortage: Shortage);

    /// The log has room again.
    fn room(&mut self);

    /// A write or sync failed. This is final: nothing becomes durable any more, and queued or appended records are
    /// dropped. Called once.
    fn failed(&mut self, error: &Error);
}

/// An event of the log, for an owner of groups that handles it later or elsewhere. See [`LogListener`] for the meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// All entries of the group up to this index are durable.
    Durable(GroupId, u64),
    /// The checkpoint of the group at this index is complete and durable.
    Checkpointed(GroupId, u64),
    /// Further parts of the group are durable, this many.
    PartsDurable(GroupId, u64),
    /// Further records of bodies of the group are durable: so many.
    BodiesDurable(GroupId, u64),
    /// The group is dropped, and that is durable.
    Dropped(GroupId),
    Vacate(Vacate),
    Full(Shortage),
    Room,
    /// A write or sync failed, with this error.
    Failed(String),
}

/// Listener that passes each event to a function, one by one.
pub struct ForEachEvent<F>(pub F);

impl<F: FnMut(LogEvent) + Send> LogListener for ForEachEvent<F> {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        groups.iter().for_each(|(group, index)| self.0(LogEvent::Durable(*group, *index)));
    }

    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        self.0(LogEvent::Checkpointed(group, index));
    }

    fn parts_durable(&mut self, group: GroupId, parts: u64) {
        self.0(LogEvent::PartsDurable(group, parts));
    }

    fn bodies_durable(&mut self, group: GroupId, records: u64) {
        self.0(LogEvent::BodiesDurable(group, records));
    }

    fn dropped(&mut self, group: GroupId) {
        self.0(LogEvent::Dropped(group));
    }

    fn vacate(&mut self, vacate: Vacate) {
        self.0(LogEvent::Vacate(vacate));
    }

    fn full(&mut self, shortage: Shortage) {
        self.0(LogEvent::Full(shortage));
    }

    fn room(&mut self) {
        self.0(LogEvent::Room);
    }

    fn failed(&mut self, error: &Error) {
        self.0(LogEvent::Failed(error.to_string()));
    }
}

/// Request to a group to stop needing a segment.
///
/// The group (1) appends what it needs of these entries and bodies with
/// [`Log::append_bodies`](crate::Log::append_bodies), or again as entries under new indexes. If there are entries, it
/// (2) writes a checkpoint at the last of them or later. When all of that is durable, it (3) calls
/// [`Log::vacated`](crate::Log::vacated). The log itself moves parts of checkpoints: a group need not write them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacate {
    pub group: GroupId,
    pub segment: SegmentId,
    /// Lowest and highest index of the group's entries in the segment; `None` without any.
    pub entries: Option<(u64, u64)>,
    /// Indexes of the entries whose bodies are in the segment, in ascending order. There may be newer ones elsewhere.
    pub bodies: Vec<u64>,
}

/// Ignores all events: for a log that is only inspected or copied.
impl LogListener for () {
    fn durable(&mut self, _: &[(GroupId, u64)]) {}
    fn checkpoint_durable(&mut self, _: GroupId, _: u64) {}
    fn bodies_durable(&mut self, _: GroupId, _: u64) {}
    fn vacate(&mut self, _: Vacate) {}
    fn full(&mut self, _: Shortage) {}
    fn room(&mut self) {}
    fn failed(&mut self, _: &Error) {}
}
