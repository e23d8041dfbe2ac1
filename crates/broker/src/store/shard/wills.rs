//! Wills of durable sessions that are due.

use super::{MemoryShard, ShardOutput, Waiter};
use crate::ids::Time;
use crate::store::{DueWill, Identity, Request, shards_of};

/// What stands for the completions of a Will before it is known how many there are.
const UNTOLD: u32 = 1 << 31;

impl MemoryShard {
    /// The Will of a session is due. It is published once.
    pub(super) fn publish_will(&mut self, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        session.will_due = Time::NEVER;
        let Some((message, _)) = session.will.take() else { return };
        let id = self.wills;
        self.wills += 1;
        let key = self.new_append(Waiter::Will { id, shards: 0 });
        self.appends[key as usize].remaining = UNTOLD;
        out.wills.push(DueWill { shard: self.id, key, id, message });
    }

    pub(super) fn will_dispatched(&mut self, key: u32, outstanding: u32, told: u16, out: &mut ShardOutput) {
        let Some(append) = self.appends.get_mut(key as usize) else { return };
        let Waiter::Will { shards, .. } = &mut append.waiter else { return };
        *shards = told;
        // One more, which is this request's own.
        append.remaining = append.remaining + outstanding + 1 - UNTOLD;
        self.one_taken(Some(key), out);
    }

    /// Everybody whom a Will is for has it: it is not published again.
    pub(super) fn will_done(&self, id: u64, shards: u16, out: &mut ShardOutput) {
        let identity = Identity::of_will(self.id, id);
        let forget = |shard| (shard, Request::ForgetIdentity { identity });
        out.requests.extend(shards_of(shards).map(forget));
    }
}
