//! What the log tells its groups.

use crate::error::{Error, Shortage};
use crate::id::{GroupId, SegmentId};

/// Called on the log's thread (by [`Writer::commit_once`](crate::Writer::commit_once)), between one commit and the next: while a call
/// runs, nothing becomes durable for anybody. So an implementation passes the news on, to a mailbox of a reactor for instance, and
/// returns; it never waits, and never calls back into the log except to [`append`](crate::Log::append).
pub trait LogListener: Send {
    /// Entries are durable: for each group named, all up to this index. One call for each commit, after its sync; each group once.
    fn durable(&mut self, groups: &[(GroupId, u64)]);

    /// The checkpoint at `index` is complete and durable. Entries up to it are needed for their bodies only.
    fn checkpoint_durable(&mut self, group: GroupId, index: u64);

    /// The segment is to be freed: see [`Vacate`].
    fn vacate(&mut self, vacate: Vacate);

    /// There cannot be another spare segment, for lack of this. Propose only what frees space or is small, until [`room`](Self::room): it is
    /// written into what `storage.reserve` kept.
    fn full(&mut self, shortage: Shortage);

    /// There is room again.
    fn room(&mut self);

    /// A write or sync failed. For good: nothing will be durable any more, and what is queued or appended is dropped. Called once.
    fn failed(&mut self, error: &Error);
}

/// A request to a group: nothing that it still needs may remain in the segment. It (1) appends again what is live of the entries `first`
/// to `last`, under new indexes, (2) writes a checkpoint at `last` or later, and then, with all of that durable, (3) answers
/// [`Log::vacated`](crate::Log::vacated). Parts of checkpoints are moved by the log itself: a group need not write them again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacate {
    pub group: GroupId,
    pub segment: SegmentId,
    /// Lowest index of the group's entries in the segment.
    pub first: u64,
    /// Highest one.
    pub last: u64,
}

/// Nobody listens: for a log that is only looked at, or copied.
impl LogListener for () {
    fn durable(&mut self, _: &[(GroupId, u64)]) {}
    fn checkpoint_durable(&mut self, _: GroupId, _: u64) {}
    fn vacate(&mut self, _: Vacate) {}
    fn full(&mut self, _: Shortage) {}
    fn room(&mut self) {}
    fn failed(&mut self, _: &Error) {}
}
