//! Time of the shard, and conversion of the times of this node.

use std::borrow::Cow;

use super::Replica;
use crate::ids::Time;
use crate::message::{Message, MessageView};
use crate::store::shard_clock::shifted;
use crate::will::shifted_will_properties;

impl Replica {
    /// Returns the time of the shard, in milliseconds. It is the node's own without other replicas.
    #[inline]
    pub fn shard_time(&mut self, now: Time) -> u64 {
        self.clock.as_mut().map_or(now.0, |clock| clock.advance(now))
    }

    /// Notes the time of the state. A state that was restored has another one.
    pub(super) fn observe_time(&mut self, now: Time) {
        if let Some(clock) = &mut self.clock {
            clock.observe(now, self.state.now());
        }
    }

    /// Begins a period in which this replica leads.
    pub fn begin_time(&mut self, now: Time) {
        if let Some(clock) = &mut self.clock {
            clock.observe(now, self.state.now());
            clock.lead(now);
        }
    }

    /// Follows the time of most nodes, as with other replicas.
    #[cfg(test)]
    pub fn follow_cluster(&mut self, load: std::sync::Arc<crate::node::NodeLoad>) {
        self.clock = Some(crate::store::shard_clock::ShardClock::new(load));
    }

    /// Returns whether a new leader has to wait for the time of most nodes. Without other replicas it is not needed.
    pub fn awaits_time(&self) -> bool {
        self.clock.as_ref().is_some_and(|clock| clock.awaits_cluster())
    }

    /// Notes that the time of most nodes was not known in time: no other shard of this node waits for it.
    pub fn give_up_time(&self) {
        if let Some(clock) = &self.clock {
            clock.give_up();
        }
    }

    /// Time by which the shard is ahead of this node, in milliseconds, for reads while this replica follows.
    pub fn read_ahead_ms(&self) -> i64 {
        self.clock.as_ref().map_or(0, |clock| clock.read_ahead_ms())
    }

    /// Time by which the shard is ahead of this node, in milliseconds.
    pub fn ahead_ms(&self) -> i64 {
        self.clock.as_ref().map_or(0, |clock| clock.ahead_ms())
    }

    /// Converts a deadline of the state to a time of this node. [`shard::NEVER`] stays.
    pub fn deadline(&self, shard_ms: u64) -> Time {
        Time(shifted(shard_ms, self.ahead_ms().saturating_neg()))
    }

    /// Converts a message of this node to the form of the log.
    pub fn stored<'a>(&self, view: &MessageView<'a>) -> shard::MessageView<'a> {
        let stored = view.stored();
        shard::MessageView { expires: shifted(stored.expires, self.ahead_ms()), ..stored }
    }

    /// Properties of a Will in the form of the log: the admission of its owner ends by the clock of the shard.
    pub fn stored_will_properties<'a>(&self, will: &MessageView<'a>) -> Cow<'a, [u8]> {
        match self.ahead_ms() {
            0 => Cow::Borrowed(will.properties),
            ahead => Cow::Owned(shifted_will_properties(will.properties, ahead)),
        }
    }

    /// Converts a message of the log to the time of this node.
    pub(super) fn to_node(&self, message: &mut Message) {
        let view = message.view();
        let expires = self.deadline(view.expires.0);
        if view.expires != expires {
            *message = MessageView { expires, ..view }.to_message();
        }
    }
}
