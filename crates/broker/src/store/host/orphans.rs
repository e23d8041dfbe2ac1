//! Orphans: messages that a member of a shared group left unfinished, and the search for their new receivers.
//!
//! The state keeps an orphan until it is durably queued elsewhere. The process may end in between, so the new queue
//! remembers the orphan's identity. After a restart the node asks all shards before it gives an orphan to another
//! member.

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
}

impl ShardHost {
    /// Starts the search after a restart: the previous incarnation may have given orphans to others and ended before it
    /// recorded that.
    pub(super) fn search_orphans(&mut self, out: &mut ShardOutput) {
        let orphans: Arc<[u64]> = self.replica.state().orphans().map(|(id, _)| id).collect();
        if orphans.is_empty() {
            return;
        }
        let asker = self.id;
        let unanswered = ShardSet::full();
        let ask = |shard| (shard, Request::FindOrphans { asker, orphans: orphans.clone() });
        out.requests.extend(unanswered.iter().map(ask));
        self.orphan_search = Some(OrphanSearch { orphans, known: BTreeMap::new(), unanswered });
    }

    pub(super) fn find_orphans(&self, asker: ShardId, orphans: &[u64], out: &mut ShardOutput) {
        let is_known = |id: &u64| self.replica.state().knows(Identity::of_orphan(asker, *id).into());
        let orphans = orphans.iter().copied().filter(is_known).collect();
        out.requests.push((asker, Request::OrphansKnown { by: self.id, orphans }));
    }

    pub(super) fn orphans_known(&mut self, now: Time, by: ShardId, orphans: &[u64]) {
        let Some(orphan_search) = &mut self.orphan_search else { return };
        for id in orphans {
            orphan_search.known.entry(*id).or_default().insert(by);
        }
        orphan_search.unanswered.remove(by);
        if !orphan_search.unanswered.is_empty() {
            return;
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
