//! Wills of durable sessions that are due.

use shard::Command;

use super::propose::Asked;
use super::{ShardHost, ShardOutput, Waiter};
use crate::ids::Time;
use crate::message::Message;
use crate::store::{DueWill, Identity};

/// What stands for the completions of a Will before it is known how many there are.
const UNTOLD: u32 = 1 << 31;

impl ShardHost {
    /// A Will has become due, or was when the node's last life ended. The state keeps it until everybody whom it is for has it.
    pub(super) fn will_due(&mut self, id: u64, out: &mut ShardOutput) {
        let Some(will) = self.state.due_will(id) else { return };
        let Ok(will) = shard::MessageView::decode(will) else { return };
        let message = Message::of_stored(&will);
        let key = self.new_append(Waiter::Will { id, shards: 0 });
        self.appends[key as usize].remaining = UNTOLD;
        out.wills.push(DueWill { shard: self.id, key, id, message });
    }

    /// A Will is on its way.
    pub(super) fn will_dispatched(
        &mut self,
        now: Time,
        key: u32,
        outstanding: u32,
        told: u16,
        out: &mut ShardOutput,
    ) {
        let Some(append) = self.appends.get_mut(key as usize) else { return };
        let Waiter::Will { shards, .. } = &mut append.waiter else { return };
        *shards = told;
        // One more, which is this request's own.
        append.remaining = append.remaining + outstanding + 1 - UNTOLD;
        self.one_taken(now, Some(key), out);
    }

    /// Everybody whom a Will is for has it. Its identity is forgotten when that is durable, and no sooner.
    pub(super) fn will_done(&mut self, now: Time, id: u64, shards: u16) {
        let identity = Identity::of_will(self.id, id);
        self.propose(now, &Command::WillDone { id }, Asked::WillDone { identity, shards });
    }
}
