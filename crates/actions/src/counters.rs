//! Counters of an action.

use std::time::Duration;

/// Counters since the node started. In a cluster each node counts what it has done itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages and events that came.
    pub received: u64,
    /// Messages for which WHERE did not hold, or FOREACH had no element.
    pub not_selected: u64,
    /// Messages for which the rule had an error.
    pub evaluation_errors: u64,
    /// Outputs that were not made into a message or record.
    pub render_errors: u64,
    /// Records and messages that were made.
    pub records: u64,
    /// Records that the other system has confirmed, and messages that this broker has acknowledged.
    pub written: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Batches that the other system has confirmed.
    pub batches: u64,
    /// Attempts to write that failed and were repeated.
    pub retries: u64,
    /// Records that the other system has refused.
    pub refused: u64,
    /// Records that the other system did not accept in time.
    pub expired: u64,
    /// Records that were given up because they always failed while others were written.
    pub given_up: u64,
    /// Messages that were published on the dead letter topic.
    pub dead_letters: u64,
    /// Messages that were passed to the fallback.
    pub fallbacks: u64,
    /// Messages that were lost because they were given up without dead letter and fallback.
    pub dropped: u64,
    /// Messages of QoS 0 that were lost because the action had no room for them.
    pub dropped_qos0: u64,
    /// Messages that were not published again because they come from this action, or passed too many.
    pub loops: u64,
    /// Time since 1970 of the last record that was confirmed.
    pub last_write: Option<Duration>,
}
