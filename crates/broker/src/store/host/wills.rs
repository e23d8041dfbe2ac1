//! Wills of durable sessions that are due.

use std::collections::HashMap;
use std::sync::Arc;

use shard::{Command, Mutation, SessionUid, mutated};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput, Waiter};
use crate::ids::{ShardSet, Time};
use crate::message::Message;
use crate::store::log::Condition;
use crate::store::{DueWill, Identity, Request};
use crate::will::WillOwner;

/// Number that represents the completions of a Will before their number is known.
const UNANNOUNCED: u32 = 1 << 31;

/// Wills that are not published yet.
#[derive(Debug, Default)]
pub(super) struct Wills {
    /// Wills that were due and that a shard refused: the disk was full.
    held: Vec<u64>,
    /// Time at which they are tried again.
    held_until: Option<Time>,
    /// Owners of the Wills of absent clients, as far as this incarnation of the node has seen them. There are no more
    /// of them than sessions and due Wills.
    pub of_sessions: HashMap<SessionUid, Arc<WillOwner>>,
    /// Owners of due Wills, by the number of the Will.
    pub of_due: HashMap<u64, Arc<WillOwner>>,
}

/// Shards that know identities of settled messages of this one, which they have to forget.
#[derive(Debug, Default)]
pub(super) struct Settled {
    shards: ShardSet,
    /// Number of the last request to forget.
    below: u64,
}

/// Milliseconds until a Will that was refused is tried again.
const RETRY_MS: u64 = 1000;

impl Wills {
    pub fn next_deadline(&self) -> Time {
        self.held_until.unwrap_or(Time::NEVER)
    }
}

impl ShardHost {
    /// Keeps a Will that a shard has refused until there is room again. Returns false when there is nothing to wait
    /// for.
    pub(super) fn hold_will(&mut self, now: Time, id: u64) -> bool {
        if self.replica.state().due_will(id).is_none() {
            return false;
        }
        self.wills.held.push(id);
        self.wills.held_until = Some(Time(now.0 + RETRY_MS));
        true
    }

    /// Sends the held Wills again. A receiver that already got one knows it by its identity.
    pub(super) fn send_held_wills(&mut self, now: Time, out: &mut ShardOutput) {
        if self.wills.next_deadline() > now {
            return;
        }
        if self.replica.condition() != Condition::Good {
            self.wills.held_until = Some(Time(now.0 + RETRY_MS));
            return;
        }
        self.wills.held_until = None;
        for id in std::mem::take(&mut self.wills.held) {
            self.will_due(id, out);
        }
    }

    /// Publishes a Will that has become due, or was due when the node's previous incarnation ended. The state keeps it
    /// until all its receivers have it.
    pub(super) fn will_due(&mut self, id: u64, out: &mut ShardOutput) {
        let Some(will) = self.replica.state().due_will(id) else { return };
        let Ok(will) = shard::MessageView::decode(will) else { return };
        let (owner, properties) = WillOwner::of_signed(will.properties);
        let message = Message::of_stored(&shard::MessageView { properties, ..will });
        let owner = owner.map(|owner| owner.shifted(self.replica.ahead_ms().saturating_neg()));
        let key = self.appends.insert(Waiter::Will { id, receivers: Box::default() });
        self.appends[key].remaining = UNANNOUNCED;
        // The owner in memory has more properties than the stored one.
        let owner = self.wills.of_due.get(&id).cloned().or(owner.map(Arc::new));
        out.wills.push(DueWill { shard: self.id, key, id, message, owner });
    }

    /// Records that a Will was dispatched.
    pub(super) fn will_dispatched(
        &mut self,
        now: Time,
        key: u32,
        outstanding: u32,
        known_to: ShardSet,
        out: &mut ShardOutput,
    ) {
        let Some(append) = self.appends.get_mut(key) else { return };
        // Some completions may have come before their number. A Will whose number is known waits for fewer.
        let is_dispatched = append.remaining < UNANNOUNCED / 2;
        let Waiter::Will { receivers, .. } = &mut append.waiter else { return };
        if is_dispatched {
            return;
        }
        receivers.shards = known_to;
        // One more, which is this request's own.
        append.remaining = append.remaining + outstanding + 1 - UNANNOUNCED;
        self.one_accepted(now, Some(key), out);
    }

    /// Lets other shards forget the identity of a Will or an orphan that is settled.
    ///
    /// A former leader may have sent the message, too, and its request may arrive at any time. So the identity is
    /// forgotten together with all that were settled before, and a shard accepts none of them again.
    pub(super) fn forget_settled(&mut self, identity: Identity, shards: ShardSet, out: &mut ShardOutput) {
        if !self.keeps_ephemeral() {
            let forget = |shard| (shard, Request::ForgetIdentity { identity });
            return out.requests.extend(shards.iter().map(forget));
        }
        let state = self.replica.state();
        let is_orphan = identity.is_of_orphan();
        let (identity, is_last) = match is_orphan {
            true => (Identity::of_orphan(self.id, state.first_orphan()), state.orphans().next().is_none()),
            false => (Identity::of_will(self.id, state.first_due_will()), state.due_wills().next().is_none()),
        };
        let settled = &mut self.published.settled[usize::from(is_orphan)];
        let forget = |shard| (shard, Request::ForgetBelow { identity });
        if identity.number == settled.below {
            // Another one of the same batch may have been settled before.
            let new = shards.iter().filter(|shard| !settled.shards.contains(*shard));
            out.requests.extend(new.map(forget));
            settled.shards |= shards;
            return;
        }
        settled.shards |= shards;
        settled.below = identity.number;
        out.requests.extend(settled.shards.iter().map(forget));
        if is_last {
            settled.shards = ShardSet::EMPTY;
        }
    }

    /// Records that all receivers of a Will have it. Its identity is forgotten only when that is durable.
    pub(super) fn will_done(&mut self, now: Time, id: u64, shards: ShardSet) {
        self.wills.of_due.remove(&id);
        let identity = Identity::of_will(self.id, id);
        let id = if mutated(Mutation::RepeatWills) { u64::MAX } else { id };
        self.propose(now, &Command::WillDone { id }, Continuation::Forget { identity, shards });
    }
}
