//! Backlog of the clients of a worker: number of waiting messages and their age. A walk over the clients measures it, a
//! bounded part at a time.

use std::time::Duration;

/// Slots and generations of the clients for which messages wait, or waited at the last pass of the walk.
///
/// **Invariant:** every client is in it at most once; its owner keeps a flag for that.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    slots: Vec<(u32, u32)>,
    at: usize,
    passing: Waiting,
    last: Waiting,
}

/// Number of waiting messages and their age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub messages: u64,
    /// Age of the oldest message.
    pub oldest: Duration,
}

impl Waiting {
    pub fn add(&mut self, other: Waiting) {
        self.messages += other.messages;
        self.oldest = self.oldest.max(other.oldest);
    }
}

/// Number of slots that one step looks at.
const STEP: usize = 4096;

impl Backlog {
    /// Adds a client that is not in it yet.
    pub fn push(&mut self, slot: u32, generation: u32) {
        self.slots.push((slot, generation));
    }

    /// Looks at the next slots of the walk. `look` returns what waits for a client. On `None` the client is removed,
    /// and the caller clears its mark.
    pub fn step(&mut self, mut look: impl FnMut(u32, u32) -> Option<Waiting>) {
        for _ in 0..STEP {
            let Some((slot, generation)) = self.slots.get(self.at).copied() else {
                self.last = std::mem::take(&mut self.passing);
                self.at = 0;
                return;
            };
            match look(slot, generation) {
                Some(waiting) => {
                    self.passing.add(waiting);
                    self.at += 1;
                }
                None => drop(self.slots.swap_remove(self.at)),
            }
        }
    }

    /// Number of clients for which messages wait, or waited a moment ago.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Slots and generations of all clients in it.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.slots.iter().copied()
    }

    /// Result of the last complete walk.
    pub fn last(&self) -> Waiting {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_adds_up_messages_and_removes_clients_without_any() {
        let mut backlog = Backlog::default();
        (0..10_000).for_each(|slot| backlog.push(slot, 7));
        let mut looked = 0;
        let look = |slot: u32, _: u32| {
            let waits = slot.is_multiple_of(2);
            waits.then(|| Waiting { messages: 3, oldest: Duration::from_secs(u64::from(slot)) })
        };
        for _ in 0..2 {
            backlog.step(|slot, generation| {
                looked += 1;
                look(slot, generation)
            });
            assert_eq!(backlog.last(), Waiting::default());
        }
        backlog.step(look);
        assert_eq!(looked, 2 * STEP);
        assert_eq!(backlog.last(), Waiting { messages: 15_000, oldest: Duration::from_secs(9998) });
        assert_eq!(backlog.slots.len(), 5_000);
        for _ in 0..2 {
            backlog.step(|_, _| None);
        }
        assert_eq!(backlog.slots.len(), 0);
        backlog.step(|_, _| None);
        assert_eq!(backlog.last(), Waiting::default());
    }
}
