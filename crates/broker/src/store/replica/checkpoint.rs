//! Checkpoints of the state, and freeing of segments. They keep the log about as short as its live data.

use std::collections::{BTreeMap, VecDeque};

use shard::{
    Answer, Command, Effect, MessageKey, Mutation, REST, RETAINED_FIRST, Rewrite, SessionUid, mutated,
};

use super::{Replica, Ticket, Urgency};
use crate::ids::Time;
use crate::message::Message;
use crate::store::log::{Purpose, Wanted};

/// Number of bytes appended since the last checkpoint after which the next one is written, unless the state itself is
/// larger.
const BYTES_BETWEEN: u64 = 16 << 20;
/// Bytes of parts that are written in one turn.
const PARTS_AT_ONCE: usize = 256 * 1024;
/// Entries looked at, and messages read, in one turn, for a segment that is to be freed.
const MOVED_AT_ONCE: usize = 256;

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
    vacating: VecDeque<Vacating>,
    /// `Rewrite` commands that are not applied yet, oldest first.
    rewriting: VecDeque<Rewriting>,
}

/// A message that is moved out of a segment that is freed. `references` is the number of deliveries and orphans that
/// use it.
struct Rewriting {
    ticket: Ticket,
    segment: u64,
    references: usize,
}

/// A segment whose live data the shard moves elsewhere.
struct Vacating {
    segment: u64,
    first: u64,
    last: u64,
    /// Position at which the walk over the entries continues; `None` after its end.
    cursor: Option<shard::Cursor>,
    /// Messages that are being read, and the references to them.
    moving: BTreeMap<MessageKey, References>,
    /// Number of `Rewrite` commands that are not durable yet.
    rewrites: usize,
    /// True when a `Rewrite` did not find all of its references. If a member of a shared group has left, its message is
    /// an orphan, which still needs the segment. Then orphans are searched again.
    is_incomplete: bool,
    /// Lowest index of a checkpoint after which nothing in the segment is needed any more.
    moved_by: Option<u64>,
}

/// References to a message.
#[derive(Default)]
struct References {
    entries: Vec<(SessionUid, u64)>,
    orphans: Vec<u64>,
}

impl Vacating {
    fn is_moved(&self, checkpoint: u64) -> bool {
        self.moved_by.is_some_and(|index| index <= checkpoint)
    }

    fn can_go_on(&self) -> bool {
        self.moved_by.is_none() && self.moving.is_empty() && (self.cursor.is_some() || self.rewrites == 0)
    }
}

impl Checkpointing {
    pub fn appended(&mut self, bytes: usize) {
        self.appended += bytes as u64;
    }

    /// Time of the next work: now or never.
    pub fn due(&self) -> Time {
        let can_go_on =
            || self.vacating.iter().find(|one| one.moved_by.is_none()).is_some_and(Vacating::can_go_on);
        let is_busy = self.writing.is_some() || self.is_wanted() || !self.vacating.is_empty() && can_go_on();
        if is_busy { Time::default() } else { Time::NEVER }
    }

    /// Returns whether a checkpoint should begin, when none is being written.
    fn is_wanted(&self) -> bool {
        let is_pending = self.begun > self.durable;
        let for_room = self.vacating.front().and_then(|front| front.moved_by);
        !is_pending
            && (self.appended >= BYTES_BETWEEN.max(self.state_bytes)
                || for_room.is_some_and(|index| index > self.begun))
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
        self.move_away();
        if self.checkpointing.writing.is_none() && self.checkpointing.is_wanted() && !self.state.is_midway() {
            self.checkpointing.begin(self.state.begin_checkpoint(), self.state.live_bytes());
        }
        let Some(checkpoint) = self.checkpointing.writing else { return };
        let id = self.id;
        let done = self.state.write_parts(PARTS_AT_ONCE, &mut |part, bytes| {
            let retained = u32::from(RETAINED_FIRST)..u32::from(REST);
            let is_retained = retained.contains(&part.as_u32());
            if is_retained && mutated(Mutation::DropRetained) {
                return;
            }
            log.part(id, checkpoint, part.as_u32(), bytes.to_vec());
        });
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

    /// Frees segments that are not needed after the last durable checkpoint.
    fn release_segments(&mut self) {
        let Some(log) = &self.log else { return };
        let Checkpointing { durable, vacating, .. } = &mut self.checkpointing;
        while let Some(front) = vacating.pop_front_if(|front| front.is_moved(*durable)) {
            log.vacated(self.id, front.segment);
        }
    }

    /// Starts to move data out of a segment that is to be freed.
    pub(super) fn vacate(&mut self, segment: u64, first: u64, last: u64) {
        self.checkpointing.vacating.push_back(Vacating {
            segment,
            first,
            last,
            cursor: Some(shard::Cursor::default()),
            moving: BTreeMap::new(),
            rewrites: 0,
            is_incomplete: false,
            moved_by: None,
        });
    }

    /// Finds the live data in the segment that is to be freed, and requests it from the log.
    fn move_away(&mut self) {
        let after = self.proposals.index();
        let Some(front) = self.checkpointing.vacating.iter_mut().find(|front| front.moved_by.is_none())
        else {
            return;
        };
        if !front.can_go_on() {
            return;
        }
        if front.cursor.is_none() && std::mem::take(&mut front.is_incomplete) {
            front.cursor = Some(shard::Cursor::AT_ORPHANS);
        }
        let Some(cursor) = front.cursor.take() else {
            front.moved_by = Some(after.max(front.last));
            self.proposals.hurry();
            // Such a checkpoint may be durable already. No other one follows as long as nothing is appended.
            self.release_segments();
            return;
        };
        let found = self.state.entries_between(front.first, front.last, cursor, MOVED_AT_ONCE);
        front.cursor = found.cursor;
        for (key, session, n) in found.entries {
            front.moving.entry(key).or_default().entries.push((session, n));
        }
        for (key, orphan) in found.orphans {
            front.moving.entry(key).or_default().orphans.push(orphan);
        }
        let wanted: Vec<_> = front.moving.keys().map(|key| Wanted::new(Purpose::Rewrite, *key)).collect();
        if !wanted.is_empty() {
            self.read(wanted);
        }
    }

    /// Writes a message again that was read from a segment that is to be freed.
    pub(super) fn rewrite(&mut self, now: Time, key: MessageKey, message: Option<Message>) {
        let vacating = self.checkpointing.vacating.iter_mut();
        let found = vacating.filter_map(|vacating| Some((vacating.moving.remove(&key)?, vacating))).next();
        let (Some((references, vacating)), Some(message)) = (found, message) else { return };
        vacating.rewrites += 1;
        let segment = vacating.segment;
        let References { entries, orphans } = references;
        let references = entries.len() + orphans.len();
        let command = Rewrite { from: key, message: message.view().stored(), entries, orphans };
        let ticket = self.propose(now, &Command::Rewrite(command), Urgency::Now);
        self.checkpointing.rewriting.push_back(Rewriting { ticket, segment, references });
    }

    /// Finds the answers to `Rewrite` commands among the effects of a batch.
    pub(super) fn note_rewritten(&mut self, index: u64, effects: &[Effect]) {
        if self.checkpointing.rewriting.front().is_none_or(|front| front.ticket.index != index) {
            return;
        }
        for effect in effects {
            let Effect::Answer { ordinal, answer } = effect else { continue };
            let ticket = Ticket { index, ordinal: *ordinal };
            let is_it = |front: &mut Rewriting| front.ticket == ticket;
            if let Some(rewriting) = self.checkpointing.rewriting.pop_front_if(is_it) {
                let moved = if let Answer::Rewritten { moved } = answer { *moved as usize } else { 0 };
                self.rewritten(rewriting.segment, rewriting.references, moved);
            }
        }
    }

    /// Records that a `Rewrite` was applied: `moved` of its `references` have the new key.
    fn rewritten(&mut self, segment: u64, references: usize, moved: usize) {
        let mut vacating = self.checkpointing.vacating.iter_mut();
        if let Some(vacating) = vacating.find(|vacating| vacating.segment == segment) {
            vacating.rewrites -= 1;
            vacating.is_incomplete |= moved < references;
        }
    }
}
