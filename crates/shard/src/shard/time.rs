//! The state's clock, everything that becomes due by it, and the beginning of an incarnation.

use crate::command::WillFate;
use crate::deadline::Deadline;
use crate::effect::{Answer, Effect, EndReason};
use crate::eras::NodeIncarnation;
use crate::ids::{SESSIONS_MAX, retained_bucket};
use crate::message::NEVER;
use crate::mutation::{Mutation, mutated};
use crate::shard::Shard;

/// Maximum step of the clock in one batch: an hour. A shard that was idle for longer catches up with its next
/// batches.
pub const CLOCK_STEP_MAX_MS: u64 = 3_600_000;
/// Maximum time between two incarnations of a node that counts: a day.
pub const ELAPSED_MAX_MS: u64 = 24 * 3_600_000;
/// Maximum amount of work of one Tick.
pub const TICK_MAX: usize = 256;

impl Shard {
    pub(super) fn advance_clock(&mut self, proposed: u64) {
        // A new shard begins at the time of its first batch.
        let step = if self.now == 0 { NEVER } else { CLOCK_STEP_MAX_MS };
        // NEVER is the highest value, so the clock stops before it.
        let latest = self.now.saturating_add(step).min(NEVER - 1);
        self.now = self.now.max(proposed.min(latest));
    }

    /// Records that the node that owned sessions is gone. [`Self::sweep`] releases them, or an earlier command for
    /// a session does.
    pub(super) fn started(&mut self, incarnation: u64, before: u64, elapsed_ms: u64) {
        let latest = before.saturating_add(elapsed_ms.min(ELAPSED_MAX_MS)).min(NEVER - 1);
        self.now = self.now.max(latest);
        if self.eras.start_alone(incarnation, self.now, self.has_owned()) {
            self.sweep = 0;
        }
    }

    /// Records that a node is gone. Its sessions are released like those of [`Self::started`].
    pub(super) fn node_ended(&mut self, owner: NodeIncarnation) {
        if self.eras.end_node(owner, self.now, self.has_owned()) {
            self.sweep = 0;
        }
    }

    pub(super) fn sweep(&mut self, count: u32, effects: &mut Vec<Effect>) -> Answer {
        let mut left = count as usize;
        if self.sweep < SESSIONS_MAX {
            let some: Vec<u32> =
                self.sessions.from(self.sweep).take(left).map(|session| session.uid.slot()).collect();
            left -= some.len();
            for slot in some {
                self.sweep = slot + 1;
                self.touch_slot(slot);
                self.settle(slot, effects);
            }
            if self.sessions.from(self.sweep).next().is_none() {
                self.sweep = SESSIONS_MAX;
            }
        }
        let mut more = self.sweeping();
        if let Some(slot) = self.sweep.checked_sub(SESSIONS_MAX) {
            let next = self.sweep_ephemerals(slot, left, effects);
            self.sweep = SESSIONS_MAX + next.unwrap_or(slot);
            more &= next.is_some();
        }
        if !more {
            self.eras.swept();
            self.sweep = 0;
        }
        Answer::Progress { more }
    }

    /// Releases a session whose owner's era has ended, as of the end of that.
    pub(super) fn settle(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.at(slot) else { return };
        if !session.has_owner {
            return;
        }
        let Some(disconnected_at) = self.eras.end_of(session.era) else { return };
        let fate = if mutated(Mutation::ForgetWills) { WillFate::Discard } else { WillFate::Arm };
        self.release_slot(slot, disconnected_at, None, fate, effects);
    }

    pub(super) fn touch_slot(&mut self, slot: u32) {
        if let Some(bucket) = self.sessions.at(slot).map(|session| session.bucket) {
            self.touch(bucket);
        }
    }

    /// Time at which a [`Tick`](crate::Command::Tick) finds something to do; [`NEVER`] if none.
    pub fn next_deadline(&self) -> u64 {
        let session = self.deadlines.first().map_or(NEVER, |deadline| deadline.at());
        session.min(self.retained.next_expiry())
    }

    /// Returns whether a [`Sweep`](crate::Command::Sweep) finds something to do.
    pub fn sweeping(&self) -> bool {
        !self.eras.are_swept()
    }

    pub(super) fn tick(&mut self, effects: &mut Vec<Effect>) -> Answer {
        let mut left = TICK_MAX;
        // Each session once: a session with many expired messages would be the first again.
        let due = self.deadlines.range(..=Deadline::new(self.now, u32::MAX)).take(TICK_MAX);
        let due: Vec<u32> = due.map(|deadline| deadline.slot).collect();
        for slot in due {
            if left == 0 {
                break;
            }
            self.touch_slot(slot);
            self.look_at(slot, effects);
            let again = self.sessions.at(slot).is_some_and(|session| session.deadline() <= self.now);
            left = left.saturating_sub(if again { TICK_MAX / 4 } else { 1 });
        }
        while left > 0
            && self.retained.next_expiry() <= self.now
            && let Some(topic) = self.retained.next_expiring()
        {
            left -= 1;
            self.touch(retained_bucket(&topic));
            self.retained.remove(&topic);
            self.counts.retained_expired += 1;
            effects.push(Effect::RetainedExpired { topic });
        }
        Answer::Progress { more: self.next_deadline() <= self.now }
    }

    /// Handles everything of a session that is due.
    fn look_at(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        self.disarm(slot);
        let Some(session) = self.sessions.at(slot) else { return };
        if !session.has_owner && session.ends <= self.now {
            return self.end_slot(slot, EndReason::Expired, effects); // [MQTT-3.1.2-23]
        }
        if session.will().is_some_and(|will| will.due <= self.now) {
            self.will_due(slot, effects);
        }
        self.pump(slot, effects);
        self.rearm(slot);
    }

    /// Removes the session's deadline before its inputs change.
    pub(super) fn disarm(&mut self, slot: u32) {
        let deadline = self.sessions.at(slot).map_or(NEVER, |session| session.deadline());
        if deadline != NEVER {
            self.deadlines.remove(&Deadline::new(deadline, slot));
        }
    }

    /// Sets the session's deadline.
    pub(super) fn rearm(&mut self, slot: u32) {
        self.disarm(slot);
        let Some(session) = self.sessions.at(slot) else { return };
        let stuck = self.is_owned(session)
            && session.queue.as_ref().is_some_and(|queue| {
                queue.next_waiting().is_some()
                    && queue.window_open(session.window(&session.limits(&self.limits)))
            });
        let session = self.session_at(slot);
        session.stuck = stuck;
        let deadline = session.deadline();
        if deadline != NEVER {
            self.deadlines.insert(Deadline::new(deadline, slot));
        }
    }
}
