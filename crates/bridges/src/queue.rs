//! Queue of a session of the process: messages that wait, and those that were dropped.

use broker::admin::ClientDetail;

/// Queue of a session, as the leader of its shard said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    pub messages: u64,
    pub bytes: u64,
    /// Seconds that the oldest message has waited.
    pub oldest_s: Option<u64>,
    /// Messages that were dropped because the queue was full, or that were too old, while this node led the shard.
    pub dropped: u64,
}

/// Sum of a counter that begins again with each leader of its shard. So a metric of this node never goes back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    total: u64,
    /// Value of the counter, as it was seen last.
    seen: u64,
}

impl Sum {
    /// Adds what was counted since the last call.
    pub fn add(&mut self, counted: u64) -> u64 {
        self.total += if counted < self.seen { counted } else { counted - self.seen };
        self.seen = counted;
        self.total
    }

    /// Notes that the counter begins again: another node leads the shard.
    pub fn begin_again(&mut self) {
        self.seen = 0;
    }
}

/// Queue of one session, while this node leads its shard and after that.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueWatch {
    queue: Queue,
    dropped: Sum,
}

impl QueueWatch {
    pub fn queue(&self) -> Queue {
        self.queue
    }

    /// Notes an answer of the shard.
    pub fn answered(&mut self, detail: &ClientDetail) {
        let Some(session) = &detail.session else { return };
        self.queue = Queue {
            messages: session.queued_messages as u64,
            bytes: session.queued_bytes,
            oldest_s: session.oldest_queued.map(|waits| waits.as_secs()),
            dropped: self.dropped.add(session.dropped),
        };
    }

    /// Notes that another node leads the shard.
    pub fn is_elsewhere(&mut self) {
        self.dropped.begin_again();
        self.queue = Queue { dropped: self.queue.dropped, ..Queue::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_messages_add_up_over_the_times_as_leader() {
        let mut sum = Sum::default();
        assert_eq!([sum.add(2), sum.add(2), sum.add(5)], [2, 2, 5]);
        assert_eq!(sum.add(1), 6, "the node has led the shard again between two looks");
        sum.begin_again();
        assert_eq!([sum.add(3), sum.add(4)], [9, 10], "another node led it meanwhile");
    }
}
