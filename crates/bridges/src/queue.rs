//! Queue of a session of the process: messages that wait, and those that were dropped.

use broker::admin::{ClientDetail, CounterSum};

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

/// Queue of one session, while this node leads its shard and after that.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueWatch {
    queue: Queue,
    dropped: CounterSum,
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
