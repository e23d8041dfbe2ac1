//! Checkpoints of the state, and freeing of segments. They keep the log about as short as its live data.
//!
//! A segment is freed when a checkpoint covers the batches in it, and when the log has kept the messages in it that are
//! needed. Both are work of this replica alone: nothing is proposed, and no key of a message changes.

use std::collections::{BTreeMap, VecDeque};

use shard::MessageKey;

use super::Replica;
use super::agreed::write_part;
use crate::ids::Time;
use crate::store::log::Vacate;

/// Number of bytes appended since the last checkpoint after which the next one is written, unless the state itself is
/// larger.
const BYTES_BETWEEN: u64 = 16 << 20;
/// Bytes of parts that are written in one turn.
const PARTS_AT_ONCE: usize = 256 * 1024;
/// Entries looked at in one turn, for a segment that is to be freed.
pub(super) const LOOKED_AT_AT_ONCE: usize = 256;
/// Number of messages that the log is asked to keep at once, and their bytes. All that are needed of the same batch as
/// the last of them come on top.
const KEPT_AT_ONCE: usize = 256;
pub(super) const KEPT_BYTES_AT_ONCE: u64 = 1 << 20;
/// Number of bytes that are fetched from another replica at once. What comes behind them on the link waits that long.
pub(super) const FETCHED_BYTES_AT_ONCE: u64 = 64 << 10;

/// Progress of the current checkpoint, and segments that are to be freed.
#[derive(Default)]
pub(super) struct Checkpointing {
    /// Bytes appended since the last checkpoint began.
    appended: u64,
    /// Size of the state when the last checkpoint began. The next one is due when as many bytes are appended, and at
    /// least [`BYTES_BETWEEN`].
    state_bytes: u64,
    /// Index of the checkpoint that is being written.
    writing: Option<u64>,
    /// Index of the last checkpoint that was begun, and of the last one that is durable.
    begun: u64,
    durable: u64,
    /// Segments to be freed, in the order of the log. Only the first is worked on: otherwise records for later ones
    /// could take the room that the checkpoint for the first needs on a full disk.
    vacating: VecDeque<Vacating>,
    /// Number of records of kept messages that are not durable yet. It is negative while it is not known how many there
    /// are.
    keeping: i64,
}

/// A segment whose needed messages are kept.
struct Vacating {
    vacate: Vacate,
    step: Step,
}

/// Keys and sizes of messages that are needed.
pub(super) type Needed = BTreeMap<MessageKey, u64>;

/// Progress with the messages of a segment.
enum Step {
    /// Looks for entries that need messages of the segment: position at which the walk continues, and the messages so
    /// far.
    Looking(shard::Cursor, Needed),
    Keeping(Keeping),
    /// Waits for messages that the disk cannot return: other replicas are asked for them.
    Repairing(Vec<MessageKey>),
    /// Everything is kept.
    Kept,
}

/// Messages that the log is asked to keep.
struct Keeping {
    /// Messages that are left.
    left: Needed,
    /// The log works on some that were taken from `left`.
    is_asked: bool,
    /// Messages of batches that the disk could not return. They are tried once more.
    failed: Needed,
    is_second_try: bool,
}

/// Takes the keys of the next messages, in ascending order: some with about this size, and all of the same batch as the
/// last of them. What the log keeps of a batch replaces what it kept before.
pub(super) fn take_some(left: &mut Needed, bytes_max: u64) -> Vec<MessageKey> {
    let (mut keys, mut bytes) = (Vec::new(), 0);
    while let Some(next) = left.first_entry() {
        let is_enough = keys.len() >= KEPT_AT_ONCE || bytes >= bytes_max;
        if is_enough && keys.last().is_some_and(|last: &MessageKey| last.index() != next.key().index()) {
            break;
        }
        let (key, size) = next.remove_entry();
        keys.push(key);
        bytes += size;
    }
    keys
}

impl Keeping {
    fn of(needed: Needed, is_second_try: bool) -> Self {
        Self { left: needed, is_asked: false, failed: Needed::new(), is_second_try }
    }
}

impl Vacating {
    fn is_kept(&self) -> bool {
        matches!(self.step, Step::Kept)
    }
}

impl Checkpointing {
    pub fn appended(&mut self, bytes: usize) {
        self.appended += bytes as u64;
    }

    /// Time of the next work of a state that has applied `applied`: now or never.
    pub fn due(&self, applied: u64) -> Time {
        let is_busy = self.writing.is_some() || self.is_wanted() || self.can_keep(applied);
        if is_busy { Time::default() } else { Time::NEVER }
    }

    /// Returns whether a checkpoint should begin, when none is being written.
    fn is_wanted(&self) -> bool {
        let is_pending = self.begun > self.durable;
        let for_room = self.vacating.front().filter(|front| front.is_kept()).map(|front| front.vacate.last());
        !is_pending
            && (self.appended >= BYTES_BETWEEN.max(self.state_bytes)
                || for_room.is_some_and(|last| last > self.begun))
    }

    /// Returns whether there is work for the messages of the first segment.
    fn can_keep(&self, applied: u64) -> bool {
        let current = self.vacating.front();
        current.is_some_and(|current| match &current.step {
            // A batch that is not applied may add entries with its messages.
            Step::Looking(..) => current.vacate.last() <= applied,
            Step::Keeping(keeping) => !keeping.is_asked && self.keeping == 0,
            Step::Repairing(_) | Step::Kept => false,
        })
    }

    /// Records that so many records of messages of another replica are queued.
    pub fn fetched(&mut self, records: usize) {
        self.keeping += records as i64;
    }

    /// Returns whether all records of kept messages are durable, and the log works on no others.
    pub fn all_kept_durable(&self) -> bool {
        let front = self.vacating.front().map(|front| &front.step);
        self.keeping == 0 && !matches!(front, Some(Step::Keeping(keeping)) if keeping.is_asked)
    }

    /// Returns whether a segment waits for messages of other replicas.
    pub fn is_repairing(&self) -> bool {
        self.vacating.front().is_some_and(|front| matches!(front.step, Step::Repairing(_)))
    }

    /// Goes on with the segment that has waited for messages of other replicas, unless they are still sought. It is
    /// free when what has come is durable.
    pub fn repaired(&mut self, is_sought: impl Fn(&MessageKey) -> bool) {
        if let Some(front) = self.vacating.front_mut()
            && let Step::Repairing(keys) = &front.step
            && !keys.iter().any(is_sought)
        {
            front.step = Step::Keeping(Keeping::of(Needed::new(), true));
        }
    }

    /// Looks again for what is needed of each segment: the state is another one.
    pub fn begin_again(&mut self) {
        for vacating in &mut self.vacating {
            if matches!(vacating.step, Step::Looking(..)) {
                vacating.step = Step::Looking(shard::Cursor::default(), Needed::new());
            }
        }
    }

    fn begin(&mut self, index: u64, state_bytes: u64) {
        self.writing = Some(index);
        self.begun = index;
        self.appended = 0;
        self.state_bytes = state_bytes;
    }
}

impl Replica {
    /// Writes the next piece of the current checkpoint, or the first one of a checkpoint that is wanted.
    pub(super) fn continue_checkpoint(&mut self) {
        let Some(log) = self.log.clone() else { return };
        self.keep_messages();
        if self.agreement.is_some() {
            // The agreement decides when a checkpoint is written.
            return;
        }
        if self.checkpointing.writing.is_none() && self.checkpointing.is_wanted() && !self.state.is_midway() {
            self.checkpointing.begin(self.state.begin_checkpoint(), self.state.live_bytes());
        }
        let Some(checkpoint) = self.checkpointing.writing else { return };
        let id = self.id;
        let put = &mut |part, bytes: &[u8]| log.part(id, checkpoint, part, bytes.to_vec());
        let done = self.state.write_parts(PARTS_AT_ONCE, &mut |part, bytes| write_part(part, bytes, put));
        if done {
            log.checkpointed(id, checkpoint);
            self.checkpointing.writing = None;
        }
    }

    /// Records that the checkpoint at this index is complete and durable.
    pub(super) fn checkpoint_durable(&mut self, index: u64) {
        self.checkpointing.durable = index;
        self.release_segments();
    }

    /// Frees segments that are not needed after the last durable checkpoint. An agreement knows that checkpoint, and
    /// frees the segments itself.
    fn release_segments(&mut self) {
        let Some(log) = &self.log else { return };
        let Checkpointing { durable, vacating, .. } = &mut self.checkpointing;
        match &mut self.agreement {
            Some(agreement) => {
                while let Some(front) = vacating.pop_front_if(|front| front.is_kept()) {
                    agreement.bodies_kept(front.vacate.segment);
                }
            }
            None => {
                let is_free = |front: &mut Vacating| front.is_kept() && front.vacate.last() <= *durable;
                while let Some(front) = vacating.pop_front_if(is_free) {
                    log.vacated(self.id, front.vacate.segment);
                }
            }
        }
    }

    /// Starts to free a segment.
    pub(super) fn vacate(&mut self, vacate: Vacate) {
        let step = Step::Looking(shard::Cursor::default(), Needed::new());
        self.checkpointing.vacating.push_back(Vacating { vacate, step });
    }

    /// Finds the messages that are needed of a segment to be freed, and asks the log to keep them.
    fn keep_messages(&mut self) {
        if !self.checkpointing.can_keep(self.state.applied()) || self.applying.is_restoring() {
            return;
        }
        let repairs = self.repairs();
        let Some(log) = &self.log else { return };
        let Some(current) = self.checkpointing.vacating.front_mut() else { return };
        match &mut current.step {
            Step::Looking(cursor, needed) => {
                let is_in = |index| current.vacate.contains(index);
                let found = self.state.needed_messages(is_in, *cursor, LOOKED_AT_AT_ONCE);
                needed.extend(found.messages);
                match found.cursor {
                    Some(next) => *cursor = next,
                    None if needed.is_empty() => {
                        current.step = Step::Kept;
                        self.release_segments();
                    }
                    None => current.step = Step::Keeping(Keeping::of(std::mem::take(needed), false)),
                }
            }
            Step::Keeping(keeping) => {
                let next = take_some(&mut keeping.left, KEPT_BYTES_AT_ONCE);
                if !next.is_empty() {
                    keeping.is_asked = true;
                    return log.keep(self.id, next, keeping.is_second_try);
                }
                let failed = std::mem::take(&mut keeping.failed);
                if !failed.is_empty() && !keeping.is_second_try {
                    *keeping = Keeping::of(failed, true);
                    return;
                }
                if !failed.is_empty() && repairs {
                    let failed: Vec<MessageKey> = failed.into_keys().collect();
                    self.repair.add(failed.iter().copied());
                    current.step = Step::Repairing(failed);
                    return;
                }
                current.step = Step::Kept;
                // The last checkpoint may cover the segment. No other one follows if nothing is appended.
                self.release_segments();
            }
            Step::Repairing(_) | Step::Kept => {}
        }
    }

    /// Records that the log has queued the messages that it was asked for, in so many records, except these of batches
    /// that the disk could not return.
    pub(super) fn kept(&mut self, records: u64, failed: Vec<MessageKey>) {
        self.checkpointing.keeping += records as i64;
        if let Some(Vacating { step: Step::Keeping(keeping), .. }) = self.checkpointing.vacating.front_mut() {
            keeping.is_asked = false;
            // The size of a message that is tried again does not matter: there are few.
            keeping.failed.extend(failed.into_iter().map(|key| (key, KEPT_BYTES_AT_ONCE)));
        }
    }

    /// Records that so many records of kept messages are durable.
    pub(super) fn kept_durable(&mut self, records: u64) {
        self.checkpointing.keeping -= records as i64;
    }
}
