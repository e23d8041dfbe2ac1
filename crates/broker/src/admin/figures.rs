//! Figures of the node, as its workers last published them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::counters::{Counters, PacketCounters, Published, StoreCounters};
use crate::ids::{ShardId, Time};
use crate::node::Node;
use crate::spans::SpanCounters;
use crate::store::ReplicaProgress;

/// All figures of a node at one moment. The figures of a worker are up to about a second old.
#[derive(Clone, Debug)]
pub struct Figures {
    pub at: Time,
    pub workers: Vec<WorkerFigures>,
    /// Number of pairs of Topic Filter and destination in the routing index.
    pub routes: u64,
    /// Number of unusual wildcard shapes that the node still accepts, out of `routing.shapes_max`.
    pub shapes_free: u64,
    pub traces: u64,
    /// Number of trace events that were discarded because there were too many.
    pub trace_events_lost: u64,
    pub spans: SpanFigures,
}

/// Numbers of spans of traced messages since the node began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanFigures {
    /// Spans that the collector has accepted.
    pub exported: u64,
    /// Spans that were dropped because a queue was full.
    pub dropped: u64,
    /// Spans that the collector has not accepted.
    pub lost: u64,
    /// Messages that were not traced because there were too many.
    pub untraced: u64,
}

/// Figures of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerFigures {
    pub counters: Counters,
    /// Counters of the shards that the worker hosts, summed.
    pub store: StoreCounters,
    pub packets: PacketCounters,
    pub connections: u64,
    /// Number of durable sessions.
    pub sessions: u64,
    /// Number of subscriptions of durable sessions.
    pub session_subscriptions: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    /// Bytes of waiting messages, including messages in flight to durable sessions.
    pub queued_bytes: u64,
    /// Part of `queued_bytes` that waits for disconnected clients.
    pub offline_bytes: u64,
    /// Bytes of requests to shards of a cluster that are not answered.
    pub request_bytes: u64,
    /// Bytes of messages that wait for the answers of members of shared groups.
    pub offer_bytes: u64,
    /// Number of messages that wait for connected clients.
    pub waiting_messages: u64,
    /// Time that the oldest of `waiting_messages` has waited.
    pub oldest: Duration,
    /// Number of clients in the table of slow subscribers.
    pub slow: u64,
    /// Overload level, 0 to 3. A higher level refuses more kinds of work.
    pub overload: u8,
    pub reactor: ReactorFigures,
    /// Shards that this node leads, if the shards belong to the cluster.
    pub shards: Vec<ShardFigures>,
}

/// Sizes of a shard that this node leads, and the progress of its other replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFigures {
    pub shard: ShardId,
    /// Term in which it leads.
    pub term: u64,
    /// Index of the last record that is applied.
    pub applied: u64,
    pub sessions: u64,
    /// Number of sessions with a connection.
    pub connected: u64,
    /// Number of subscriptions of all sessions.
    pub subscriptions: u64,
    pub queued_messages: u64,
    pub queued_bytes: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    pub replicas: Vec<ReplicaProgress>,
}

/// Figures that a reactor reports about its loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactorFigures {
    pub turns: u64,
    /// Time spent in turns: all time except waiting for events.
    pub busy: Duration,
    /// Histogram of turn times. Bucket n counts turns of at least 2^(n-1) and less than 2^n microseconds; the last
    /// bucket also counts all longer turns.
    pub turn_us: [u64; TURN_BUCKETS],
    /// Weight of the commands in the mailbox, in bytes.
    pub mailbox_bytes: u64,
    /// Number of the thread that runs the reactor.
    pub thread: u16,
    /// Times that another thread has taken over the reactor.
    pub moves: u64,
    pub accept_errors: AcceptErrors,
    pub door: AcceptFigures,
}

/// Figures on connections before their CONNECT succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptFigures {
    /// Number of unauthenticated connections of the whole node. Only the first reactor reports it.
    pub half_open: u64,
    /// Times that accepting paused because of too many unauthenticated connections.
    pub waits_half_open: u64,
    /// Times that accepting paused because of the rate limit for new connections.
    pub waits_rate: u64,
    /// Times that accepting paused because the node was overloaded.
    pub waits_overload: u64,
    /// Times that the node, while overloaded, stopped reading the connection that sent most. Each pause lasts one
    /// second.
    pub noisy_paused: u64,
    /// Unauthenticated connections closed because their address had reached its limit.
    pub closed_address: u64,
    /// Unauthenticated connections closed because TLS, WebSocket or PROXY handshakes took too long.
    pub closed_timeout: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
}

/// Numbers of connections that were not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptErrors {
    /// The process had no file descriptors left.
    pub descriptors: u64,
    /// The number of connections had reached its limit.
    pub limit: u64,
    pub other: u64,
}

/// Number of buckets of turn times. The last bucket starts at 2^22 us (4 s).
pub const TURN_BUCKETS: usize = 24;

impl ReactorFigures {
    /// Counts a turn that took `took`.
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
            spans: node.span_queues().map(|queues| SpanFigures::of(&queues.counters)).unwrap_or_default(),
        }
    }

    /// Returns the sum of a figure over all workers.
    pub fn total(&self, figure: impl Fn(&WorkerFigures) -> u64) -> u64 {
        self.workers.iter().map(figure).sum()
    }

    /// Returns the counters of all workers, summed.
    pub fn counters(&self) -> (Counters, StoreCounters, PacketCounters) {
        let mut sum = (Counters::default(), StoreCounters::default(), PacketCounters::default());
        for worker in &self.workers {
            sum.0.add(&worker.counters);
            sum.1.add(&worker.store);
            sum.2.add(&worker.packets);
        }
        sum
    }

    /// Returns the number of subscriptions of all clients and sessions.
    pub fn subscriptions(&self) -> u64 {
        self.total(|worker| {
            let ephemeral =
                worker.counters.subscriptions_added.saturating_sub(worker.counters.subscriptions_removed);
            worker.session_subscriptions + ephemeral
        })
    }
}

impl SpanFigures {
    fn of(counters: &SpanCounters) -> Self {
        Self {
            exported: counters.exported.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
            lost: counters.lost.load(Relaxed),
            untraced: counters.untraced.load(Relaxed),
        }
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
            request_bytes: published.request_bytes.load(Relaxed),
            offer_bytes: published.offer_bytes.load(Relaxed),
            waiting_messages: published.waiting_messages.load(Relaxed),
            oldest: Duration::from_millis(published.oldest_ms.load(Relaxed)),
            slow: published.slow.load(Relaxed),
            overload: published.overload.load(Relaxed),
            shards: published.shards(),
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
