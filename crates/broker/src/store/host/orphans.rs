//! Orphans: messages that a member of a shared group left unfinished, and the search for their new receivers.
//!
//! The state keeps an orphan until it is durably queued elsewhere. The process may end in between, so the new queue
//! remembers the orphan's identity. After a restart the node asks all shards before it gives an orphan to another
//! member.
//!
//! In a cluster, an answer to an earlier leader of this shard may come to the next one. That leader may have given an
//! orphan to the shard after the answer. So the next leader asks twice, and an answer to either question counts: one of
//! the two is later than its first question.

use std::collections::BTreeMap;
use std::sync::Arc;

use shard::Command;

use super::propose::Continuation;
use super::{ShardHost, ShardOutput, Waiter};
use crate::ids::{ShardId, ShardSet, Time};
use crate::store::log::{Purpose, Wanted};
use crate::store::{Identity, Request};

/// Orphans of the previous incarnation.
pub(super) struct OrphanSearch {
    orphans: Arc<[u64]>,
    /// Orphans that are queued, and the shards that have them.
    known: BTreeMap<u64, ShardSet>,
    /// Shards that have not answered.
    unanswered: ShardSet,
    /// Number of times that all shards are asked again.
    repetitions: u32,
}

/// Answers to a search.
#[derive(Debug, PartialEq, Eq)]
enum Answers {
    Missing,
    /// All shards have answered, and are asked again.
    Repeated,
    Complete,
}

impl OrphanSearch {
    fn new(orphans: Arc<[u64]>, repetitions: u32) -> Self {
        Self { orphans, known: BTreeMap::new(), unanswered: ShardSet::full(), repetitions }
    }

    fn requests(&self, asker: ShardId) -> impl Iterator<Item = (ShardId, Request)> {
        let ask = move |shard| (shard, Request::FindOrphans { asker, orphans: self.orphans.clone() });
        self.unanswered.iter().map(ask)
    }

    fn answered(&mut self, by: ShardId, orphans: &[u64]) -> Answers {
        for id in orphans {
            self.known.entry(*id).or_default().insert(by);
        }
        self.unanswered.remove(by);
        if !self.unanswered.is_empty() {
            return Answers::Missing;
        }
        let Some(left) = self.repetitions.checked_sub(1) else { return Answers::Complete };
        (self.repetitions, self.unanswered) = (left, ShardSet::full());
        Answers::Repeated
    }
}

impl ShardHost {
    /// Starts the search after a restart: the previous incarnation may have given orphans to others and ended before it
    /// recorded that.
    pub(super) fn search_orphans(&mut self, out: &mut ShardOutput) {
        let orphans: Arc<[u64]> = self.replica.state().orphans().map(|(id, _)| id).collect();
        if orphans.is_empty() {
            return;
        }
        let search = OrphanSearch::new(orphans, u32::from(self.replica.is_agreed()));
        out.requests.extend(search.requests(self.id));
        self.orphan_search = Some(search);
    }

    pub(super) fn find_orphans(&self, asker: ShardId, orphans: &[u64], out: &mut ShardOutput) {
        let is_known = |id: &u64| self.replica.state().knows(Identity::of_orphan(asker, *id).into());
        let orphans = orphans.iter().copied().filter(is_known).collect();
        out.requests.push((asker, Request::OrphansKnown { by: self.id, orphans }));
    }

    pub(super) fn orphans_known(&mut self, now: Time, by: ShardId, orphans: &[u64], out: &mut ShardOutput) {
        let Some(search) = &mut self.orphan_search else { return };
        match search.answered(by, orphans) {
            Answers::Missing => return,
            Answers::Repeated => return out.requests.extend(search.requests(self.id)),
            Answers::Complete => {}
        }
        let Some(OrphanSearch { orphans, known, .. }) = self.orphan_search.take() else { return };
        let mut wanted = Vec::new();
        for id in orphans.iter().copied() {
            match (known.get(&id), self.replica.state().orphan(id)) {
                (Some(shards), _) => self.orphan_done(now, id, *shards),
                (None, Some(orphan)) => {
                    wanted.push(Wanted::new(Purpose::Orphan { id }, orphan.key));
                }
                (None, None) => {}
            }
        }
        if !wanted.is_empty() {
            self.replica.read(wanted);
        }
    }

    /// Records that a shard may remember the identity of a message that an append of this shard waits for.
    pub(super) fn accepted_by(&mut self, key: u32, by: ShardId) {
        let Some(append) = self.appends.get_mut(key) else { return };
        if let Waiter::Orphan { receivers, .. } = &mut append.waiter {
            receivers.shards.insert(by);
        }
    }

    /// Records that an orphan is queued. Its identity is forgotten only when that is durable.
    pub(super) fn orphan_done(&mut self, now: Time, id: u64, shards: ShardSet) {
        let identity = Identity::of_orphan(self.id, id);
        self.propose(now, &Command::OrphanDone { id }, Continuation::Forget { identity, shards });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shard got the orphan from an earlier leader after its answer to that one, which comes first.
    #[test]
    fn an_answer_to_an_earlier_leader_hides_no_orphan() {
        let (id, has_it) = (7, ShardId(3));
        let mut search = OrphanSearch::new([id].into(), 1);
        assert_eq!(search.requests(ShardId(0)).count(), ShardSet::full().iter().count());
        let others = || ShardSet::full().iter().filter(|shard| *shard != has_it);
        assert_eq!(search.answered(has_it, &[]), Answers::Missing);
        let answers: Vec<Answers> = others().map(|shard| search.answered(shard, &[])).collect();
        assert_eq!(answers.last(), Some(&Answers::Repeated));
        assert_eq!(search.requests(ShardId(0)).count(), ShardSet::full().iter().count());
        assert_eq!(search.answered(has_it, &[id]), Answers::Missing);
        let answers: Vec<Answers> = others().map(|shard| search.answered(shard, &[])).collect();
        assert_eq!(answers.last(), Some(&Answers::Complete));
        assert!(search.known[&id].iter().eq([has_it]));
    }

    /// A node alone restarts as a whole: no earlier answer is on its way.
    #[test]
    fn a_node_alone_asks_once() {
        let mut search = OrphanSearch::new([7].into(), 0);
        let answers: Vec<Answers> =
            ShardSet::full().iter().map(|shard| search.answered(shard, &[])).collect();
        assert_eq!(answers.last(), Some(&Answers::Complete));
        assert!(answers[1..].iter().rev().skip(1).all(|answer| *answer == Answers::Missing));
    }
}
