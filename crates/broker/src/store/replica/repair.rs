//! Messages that the disk of this node cannot return, although other replicas of the shard have them.
//!
//! A repair asks the other voters for all messages that are needed of the damaged batches, and writes them again: one
//! bad sector loses no message that another disk has. Reads of these messages wait meanwhile. A message is lost only if
//! no voter has it.

use std::collections::BTreeSet;

use shard::{Cursor, MessageKey, Mutation, StoredBatch, mutated};

use super::checkpoint::{KEPT_BYTES_AT_ONCE, LOOKED_AT_AT_ONCE, Needed, take_some};
use super::reads::{Read, ReadResult};
use super::{Replica, ReplicaEvent};
use crate::ids::Time;
use crate::message::Message;
use crate::store::log::{Condition, Purpose, Wanted};

/// Progress of repairs.
#[derive(Default)]
pub(super) struct Repair {
    /// Messages to seek next.
    wanted: BTreeSet<MessageKey>,
    /// Reads that wait for messages in `wanted` or `current`.
    reads: Vec<Wanted>,
    current: Option<Current>,
}

/// Messages that are being sought.
struct Current {
    batches: BTreeSet<u64>,
    /// Position at which the walk over the state continues; `None` when it is complete. It finds everything that is
    /// needed of the batches, because what the log keeps of a batch replaces what it kept before.
    cursor: Option<Cursor>,
    /// Messages for which no voter was asked yet.
    left: Needed,
    /// Messages for which voters are being asked.
    asked: Vec<MessageKey>,
}

/// Maximum number of messages that wait for a repair because other replicas have asked for them. They ask again.
const WANTED_MAX: usize = 1 << 18;

impl Repair {
    /// Adds messages that this node needs.
    pub fn add(&mut self, keys: impl IntoIterator<Item = MessageKey>) {
        let new =
            keys.into_iter().filter(|key| !self.current.as_ref().is_some_and(|current| current.has(key)));
        self.wanted.extend(new);
    }

    /// Adds messages for which another replica has asked.
    pub fn add_for_others(&mut self, keys: Vec<MessageKey>) {
        let room = WANTED_MAX.saturating_sub(self.wanted.len());
        self.add(keys.into_iter().take(room));
    }

    /// Returns whether a message is being sought, or is to be.
    pub fn seeks(&self, key: &MessageKey) -> bool {
        self.wanted.contains(key) || self.current.as_ref().is_some_and(|current| current.has(key))
    }

    /// Time of the next work: now or never.
    pub fn due(&self) -> Time {
        let has_work = match &self.current {
            Some(current) => current.asked.is_empty(),
            None => !self.wanted.is_empty(),
        };
        if has_work { Time::default() } else { Time::NEVER }
    }

    /// Forgets the reads: the host that wanted them is gone.
    pub fn end_reads(&mut self) {
        self.reads.clear();
    }

    /// Looks again for what is needed: the state is another one.
    pub fn begin_again(&mut self) {
        if let Some(Current { cursor: Some(cursor), .. }) = &mut self.current {
            *cursor = Cursor::default();
        }
    }
}

impl Current {
    fn of(keys: BTreeSet<MessageKey>) -> Self {
        let batches = keys.iter().map(|key| key.index()).collect();
        // The sizes do not matter: there are few.
        let left = keys.into_iter().map(|key| (key, KEPT_BYTES_AT_ONCE)).collect();
        Self { batches, cursor: Some(Cursor::default()), left, asked: Vec::new() }
    }

    fn has(&self, key: &MessageKey) -> bool {
        self.left.contains_key(key) || self.asked.binary_search(key).is_ok()
    }
}

/// Faults that a repair would hide.
const HIDDEN: [Mutation; 3] = [Mutation::SkipUnreadable, Mutation::DropBodies, Mutation::ReadEarly];

impl Replica {
    /// Returns whether other replicas are asked for messages that the disk cannot return.
    pub(super) fn repairs(&self) -> bool {
        self.is_agreed() && !HIDDEN.into_iter().any(mutated)
    }

    /// Makes a read wait until other replicas were asked. Returns its result for now.
    pub(super) fn read_from_others(&mut self, wanted: Wanted) -> ReadResult {
        self.repair.add([wanted.key]);
        if matches!(wanted.purpose, Purpose::QueuePageRead { .. }) {
            // An operator does not wait for other nodes, and finds the message the next time.
            return ReadResult::NotNeeded;
        }
        self.repair.reads.push(wanted);
        ReadResult::Again
    }

    /// Looks for messages that are needed of damaged batches, and asks the other voters for them.
    pub(super) fn continue_repair(&mut self) {
        if self.repair.due() == Time::NEVER {
            return;
        }
        let Repair { current, wanted, .. } = &mut self.repair;
        let now = current.get_or_insert_with(|| Current::of(std::mem::take(wanted)));
        if let Some(cursor) = now.cursor {
            let batches = &now.batches;
            let found =
                self.state.needed_messages(|index| batches.contains(&index), cursor, LOOKED_AT_AT_ONCE);
            now.left.extend(found.messages);
            now.cursor = found.cursor;
            return;
        }
        let next = take_some(&mut now.left, KEPT_BYTES_AT_ONCE);
        if next.is_empty() {
            *current = None;
            return self.note_repaired();
        }
        now.asked = next.clone();
        self.with_agreement(|agreement| agreement.seek(next));
    }

    /// Writes messages that other replicas have sent, and gives them to the reads that wait. Those that are missing are
    /// lost.
    pub(super) fn sought(&mut self, bodies: Vec<(u64, Vec<u8>)>) {
        let Some(current) = &mut self.repair.current else { return };
        let asked = std::mem::take(&mut current.asked);
        let found = |key: MessageKey| {
            let at = bodies.binary_search_by_key(&key.index(), |(index, _)| *index).ok()?;
            let view = StoredBatch::Kept(&bodies[at].1).message(key).ok()?;
            Some(Message::of_stored(&view))
        };
        let lost: Vec<_> = asked.iter().filter(|key| found(**key).is_none()).collect();
        let (count, shard) = (asked.len() - lost.len(), self.id.0);
        if count > 0 {
            self.counters.repaired += count as u64;
            tracing::warn!(
                shard,
                count,
                "the disk could not return messages; they were read from another core. Check the disk"
            );
        }
        if !lost.is_empty() {
            tracing::error!(shard, ?lost, "no core can read messages from its disk; they are lost");
        }
        let is_answered = |wanted: &mut Wanted| asked.binary_search(&wanted.key).is_ok();
        let reads: Vec<Wanted> = self.repair.reads.extract_if(.., is_answered).collect();
        let result = |Wanted { purpose, key, .. }| {
            let result = match found(key) {
                Some(mut message) => {
                    self.to_node(&mut message);
                    ReadResult::Found(message)
                }
                None if self.is_needed(purpose) => ReadResult::Lost,
                None => ReadResult::NotNeeded,
            };
            Read { purpose, result }
        };
        let results: Vec<Read> = reads.into_iter().map(result).collect();
        if !results.is_empty() {
            self.events.push_back(ReplicaEvent::Read(results));
        }
        // On a full disk only what frees a segment is written.
        let may_write = self.condition != Condition::Full || self.checkpointing.is_repairing();
        if let Some(log) = self.log.as_ref().filter(|_| may_write && !bodies.is_empty()) {
            self.checkpointing.fetched(bodies.len());
            log.append_bodies(self.id, bodies);
        }
        self.note_repaired();
    }

    /// Goes on with the segment that is to be freed, if it has waited for messages that are not sought any more.
    fn note_repaired(&mut self) {
        let repair = &self.repair;
        self.checkpointing.repaired(|key| repair.seeks(key));
    }
}
