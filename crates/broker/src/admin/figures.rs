//! The node in numbers, as its workers last published them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::counters::{Counters, PacketCounters, Published, StoreCounters};
use crate::ids::Time;
use crate::node::Node;

/// All figures of a node at one moment; those of each worker are up to about a second old.
#[derive(Clone, Debug)]
pub struct Figures {
    pub at: Time,
    pub workers: Vec<WorkerFigures>,
    /// Pairs of Topic Filter and destination in the routing index.
    pub routes: u64,
    /// Unusual arrangements of wildcards that the node still takes, of `routing.shapes_max`.
    pub shapes_free: u64,
    pub traces: u64,
    /// Events of traces that were not handed on because there were too many.
    pub trace_events_lost: u64,
}

/// One worker's figures.
#[derive(Clone, Debug, Default)]
pub struct WorkerFigures {
    pub counters: Counters,
    /// Of the shards that it hosts, summed.
    pub store: StoreCounters,
    pub packets: PacketCounters,
    pub connections: u64,
    /// Durable sessions.
    pub sessions: u64,
    /// Subscriptions of durable sessions.
    pub session_subscriptions: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    /// Bytes of messages that wait, in flight to durable sessions included.
    pub queued_bytes: u64,
    /// Of these, for durable sessions that are away.
    pub offline_bytes: u64,
    /// Messages that wait for clients that are connected.
    pub waiting_messages: u64,
    /// For how long the oldest of them has waited.
    pub oldest: Duration,
    /// Clients in the table of slow subscribers.
    pub slow: u64,
    /// Of 0 to 3: what it gives up because it has too much to do.
    pub overload: u8,
    pub reactor: ReactorFigures,
}

/// What a reactor tells of its loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorFigures {
    pub turns: u64,
    /// Time spent in turns, which is all but waiting.
    pub busy: Duration,
    /// Turns that took less than 2^n microseconds and not less than half of that; the last holds all longer ones.
    pub turn_us: [u64; TURN_BUCKETS],
    /// Weight of what waits in its mailbox.
    pub mailbox_bytes: u64,
    pub accept_errors: AcceptErrors,
    pub door: AcceptFigures,
}

/// Connections on their way to CONNECT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptFigures {
    /// Of the whole node, told by its first reactor.
    pub half_open: u64,
    /// Times that accepting paused because so many were half open.
    pub waits_half_open: u64,
    /// Times that accepting paused for the rate of new connections.
    pub waits_rate: u64,
    /// Times that accepting paused because the node was overloaded.
    pub waits_overload: u64,
    /// Times that a connection was not read for a second because it sent most while the node was overloaded.
    pub noisy_paused: u64,
    /// Half-open connections closed because their address had as many as it may.
    pub closed_address: u64,
    /// Those that were not through TLS, WebSocket and the PROXY header in time.
    pub closed_timeout: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
}

/// Connections that were not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptErrors {
    /// The process has no descriptors left.
    pub descriptors: u64,
    /// A limit on connections was reached.
    pub limit: u64,
    pub other: u64,
}

/// Buckets of turn times: up to 2^23 us, which is 8 s.
pub const TURN_BUCKETS: usize = 24;

impl ReactorFigures {
    /// A turn has taken so long.
    pub fn turn(&mut self, took: Duration) {
        self.turns += 1;
        self.busy += took;
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.turn_us[bucket.min(TURN_BUCKETS - 1)] += 1;
    }
}

impl Figures {
    pub(super) fn of(node: &Node, at: Time) -> Self {
        Self {
            at,
            workers: node.published.iter().map(WorkerFigures::of).collect(),
            routes: node.routes.len() as u64,
            shapes_free: node.routes.shapes_free() as u64,
            traces: node.traces.running() as u64,
            trace_events_lost: node.traces.lost(),
        }
    }

    /// Sum over all workers.
    pub fn total(&self, figure: impl Fn(&WorkerFigures) -> u64) -> u64 {
        self.workers.iter().map(figure).sum()
    }

    /// All workers' counters as one.
    pub fn counters(&self) -> (Counters, StoreCounters, PacketCounters) {
        let mut sum = (Counters::default(), StoreCounters::default(), PacketCounters::default());
        for worker in &self.workers {
            sum.0.add(&worker.counters);
            sum.1.add(&worker.store);
            sum.2.add(&worker.packets);
        }
        sum
    }

    /// Subscriptions of all clients and sessions.
    pub fn subscriptions(&self) -> u64 {
        self.total(|worker| {
            let ephemeral =
                worker.counters.subscriptions_added.saturating_sub(worker.counters.subscriptions_removed);
            worker.session_subscriptions + ephemeral
        })
    }
}

impl WorkerFigures {
    fn of(published: &Published) -> Self {
        let (counters, store, packets) = published.counters();
        Self {
            counters,
            store,
            packets,
            connections: published.connections.load(Relaxed),
            sessions: published.sessions.load(Relaxed),
            session_subscriptions: published.session_subscriptions.load(Relaxed),
            retained_messages: published.retained_messages.load(Relaxed),
            retained_bytes: published.retained_bytes.load(Relaxed),
            queued_bytes: published.queued_bytes.load(Relaxed),
            offline_bytes: published.offline_bytes.load(Relaxed),
            waiting_messages: published.waiting_messages.load(Relaxed),
            oldest: Duration::from_millis(published.oldest_ms.load(Relaxed)),
            slow: published.slow.load(Relaxed),
            overload: published.overload.load(Relaxed),
            reactor: published.reactor(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_falls_into_the_bucket_of_its_time() {
        let mut figures = ReactorFigures::default();
        for (us, bucket) in
            [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (u64::MAX / 2, 23)]
        {
            let before = figures.turn_us[bucket];
            figures.turn(Duration::from_micros(us));
            assert_eq!(figures.turn_us[bucket], before + 1, "{us}");
        }
        assert_eq!(figures.turns, 8);
    }
}
