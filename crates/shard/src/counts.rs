//! What a shard counts.

/// Levels follow from the state; totals count since this shard began on this node and are no part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions.
    pub sessions: u64,
    /// Sessions with a connection.
    pub owned: u64,
    /// Subscriptions of all sessions, shared ones included.
    pub subscriptions: u64,
    /// Messages that wait, those beyond limits included.
    pub queued_messages: u64,
    /// Bytes of these.
    pub queued_bytes: u64,
    /// Bytes of the messages that wait or are pinned, for all sessions.
    pub held_bytes: u64,
    /// The same for sessions without a connection.
    pub held_absent_bytes: u64,
    /// Total: messages that got a place in a queue.
    pub enqueued: u64,
    /// Total: messages that queues lost by their rule.
    pub dropped_queue_full: u64,
    /// Total: messages that expired in a queue.
    pub dropped_expired: u64,
    /// Total: messages that were unfinished when their session ended, and are nobody else's.
    pub dropped_session_ended: u64,
    /// Total: deliveries that the owner skipped.
    pub skipped: u64,
    /// Total: messages that were taken before.
    pub repeated: u64,
    /// Total: commands of a connection that is not the owner any more.
    pub stale: u64,
    /// Total: sessions that ended because their time came.
    pub sessions_expired: u64,
    /// Total: sessions that ended in other ways.
    pub sessions_ended: u64,
    /// Total: retained messages that expired.
    pub retained_expired: u64,
}
