//! Finds the messages of records that are still needed, and applies the command that moved them in earlier versions.

use crate::command::Rewrite;
use crate::effect::Answer;
use crate::entry::{Entry, message_size};
use crate::ids::MessageKey;
use crate::shard::Shard;

/// Position at which a search continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Slot of the session; `u32::MAX` when orphans are searched.
    slot: u32,
    /// Number of the delivery, or id of the orphan.
    n: u64,
}

/// Messages of some records that deliveries and orphans need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Keys of the messages and their sizes in bytes, once for each delivery and orphan.
    pub messages: Vec<(MessageKey, u64)>,
    /// Position to continue at; `None`: the search is complete.
    pub cursor: Option<Cursor>,
}

const ORPHANS: u32 = u32::MAX;

impl Shard {
    pub(super) fn rewrite(&mut self, key: MessageKey, rewrite: &Rewrite<'_>) -> Answer {
        let size = message_size(rewrite.message.encoded_len());
        let shared = rewrite.entries.len() + rewrite.orphans.len() > 1;
        let same = |entry: &Entry| entry.key == rewrite.from && entry.size() == size && entry.needs_body();
        let mut moved = 0;
        for (uid, n) in &rewrite.entries {
            let Some(session) = self.sessions.get(*uid) else { continue };
            if !session.queue.as_ref().and_then(|queue| queue.get(*n)).is_some_and(same) {
                continue;
            }
            self.touch_slot(uid.slot());
            let queue = self.sessions.queue_mut(uid.slot());
            if let Some(entry) = queue.and_then(|queue| queue.get_mut(*n)) {
                self.bodies.relocate(entry, key, shared);
                moved += 1;
            }
        }
        for id in &rewrite.orphans {
            if let Some(entry) = self.orphans.get_mut(id).filter(|entry| same(entry)) {
                self.bodies.relocate(entry, key, shared);
                moved += 1;
            }
        }
        Answer::Rewritten { moved }
    }

    /// Finds the messages of these records, which were all applied, that deliveries and orphans need. Examines about
    /// `budget` of these, a session counting as one more, and returns the position to continue at. Meanwhile no other
    /// entry comes to need such a message, except that an orphan does instead of a delivery: orphans are last.
    pub fn needed_messages(&self, is_in: impl Fn(u64) -> bool, from: Cursor, budget: usize) -> Found {
        let mut found = Found::default();
        let wanted = |entry: &Entry| entry.needs_body() && is_in(entry.key.index());
        let mut examined = 0;
        if from.slot != ORPHANS {
            for session in self.sessions.from(from.slot) {
                let slot = session.uid.slot();
                examined += 1;
                let start = if slot == from.slot { from.n } else { 0 };
                for (n, entry) in session.queue.iter().flat_map(|queue| queue.from(start)) {
                    if examined > budget.max(1) {
                        found.cursor = Some(Cursor { slot, n });
                        return found;
                    }
                    examined += 1;
                    if wanted(entry) {
                        found.messages.push((entry.key, entry.size()));
                    }
                }
                if examined > budget {
                    found.cursor = Some(Cursor { slot: slot + 1, n: 0 });
                    return found;
                }
            }
        }
        let start = if from.slot == ORPHANS { from.n } else { 0 };
        for (id, entry) in self.orphans.range(start..) {
            if examined > budget {
                found.cursor = Some(Cursor { slot: ORPHANS, n: *id });
                return found;
            }
            examined += 1;
            if wanted(entry) {
                found.messages.push((entry.key, entry.size()));
            }
        }
        found
    }
}
