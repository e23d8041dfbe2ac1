//! Counts of a shard.

/// Counts of a shard. Levels follow from the state. Totals count since this shard began on this node and are not
/// part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of sessions.
    pub sessions: u64,
    /// Number of sessions with a connection. Those whose owner is gone count until they are released.
    pub owned: u64,
    /// Number of ephemeral sessions, which all have a connection. Those whose owner is gone count until they end.
    pub ephemeral: u64,
    /// Number of subscriptions of all sessions, shared ones included.
    pub subscriptions: u64,
    /// Number of waiting messages, those beyond limits included.
    pub queued_messages: u64,
    /// Bytes of the waiting messages.
    pub queued_bytes: u64,
    /// Bytes of the messages that wait or are pinned, for all sessions.
    pub held_bytes: u64,
    /// Bytes of the messages that wait or are pinned, for sessions without a connection.
    pub held_absent_bytes: u64,
    /// Total of messages that were queued.
    pub enqueued: u64,
    /// Total of messages that queues dropped by the rule for full queues.
    pub dropped_queue_full: u64,
    /// Total of messages that expired in a queue.
    pub dropped_expired: u64,
    /// Total of messages that were unfinished when their session ended, and go to no other member.
    pub dropped_session_ended: u64,
    /// Total of deliveries that the owner skipped.
    pub skipped: u64,
    /// Total of messages that had been accepted before.
    pub repeated: u64,
    /// Total of requests that came again after they had been applied.
    pub requests_repeated: u64,
    /// Total of commands of a connection that is no longer the owner, or of a node whose incarnation is over.
    pub stale: u64,
    /// Total of sessions that expired.
    pub sessions_expired: u64,
    /// Total of sessions that ended in other ways.
    pub sessions_ended: u64,
    /// Total of retained messages that expired.
    pub retained_expired: u64,
}
