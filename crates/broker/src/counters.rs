//! Counters: plain numbers that one worker owns, copied to where others can read them once in a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$outer:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])+ $field:ident,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[doc = $doc])+ pub $field: u64,)+ }

        impl $name {
            /// Name, meaning and value of each counter.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($field), concat!($($doc),+), self.$field),)+].into_iter()
            }

            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }
    };
}

counters! {
    /// What one worker has seen and done.
    pub struct Counters {
        /// Network connections accepted.
        connections_opened,
        /// Network connections that are gone.
        connections_closed,
        /// Connections whose client was accepted.
        clients_connected,
        /// Clients that are gone.
        clients_disconnected,
        /// CONNECTs refused.
        connects_refused,
        /// Connections closed for a malformed packet or a protocol error.
        protocol_errors,
        /// Connections closed for silence beyond 1.5 times Keep Alive.
        keep_alive_timeouts,
        /// Connections closed because CONNECT did not come in time.
        connect_timeouts,
        /// Connections closed because another took their Client Identifier.
        taken_over,
        /// Subscriptions of sessions that end with their connection, present.
        subscriptions_added,
        /// Of these, gone.
        subscriptions_removed,
        /// PUBLISH packets received.
        publish_received,
        /// Bytes received.
        bytes_received,
        /// Bytes put out for sending.
        bytes_sent,
        /// PUBLISH packets sent.
        publish_sent,
        /// QoS 0 messages dropped because a connection had too much unsent.
        dropped_slow_qos0,
        /// Messages of the node itself, QoS 1 and 2, dropped because a queue was full.
        dropped_queue_full,
        /// Messages not delivered because they had expired.
        dropped_expired,
        /// Messages not delivered because the client's Maximum Packet Size is smaller.
        dropped_packet_size,
        /// Messages not delivered because the access rules do not let the client read them.
        dropped_not_readable,
        /// PUBLISH packets refused by the access rules.
        publish_denied,
        /// Subscriptions refused by the access rules.
        subscribe_denied,
        /// Connections closed because they freed no place for a waiting publisher in `queue.wait`.
        slow_readers_closed,
        /// Times a publisher was made to wait because of its rate, its in-flight messages or the node's memory.
        publishers_blocked,
        /// PUBLISH packets refused by the store or by a limit on retained messages.
        publish_refused,
        /// Retained messages refused by `retained.messages_max` or `retained.bytes_max`.
        retained_refused,
    }
}

counters! {
    /// What one shard of the session store has seen and holds.
    pub struct StoreCounters {
        /// Claims that found the Client Identifier served by another connection.
        takeovers,
        /// Sessions refused by `session.sessions_max`.
        sessions_refused,
        /// Sessions that ended at their expiry.
        sessions_expired,
        /// Messages waiting in queues of durable sessions now.
        queued_messages,
        /// Their bytes.
        queued_bytes,
        /// Messages dropped by the rule for full queues.
        dropped_queue_full,
        /// Messages dropped in a queue because they expired.
        dropped_expired,
        /// Messages dropped with the session they waited for.
        dropped_session_ended,
        /// Messages of shared subscriptions dropped because no member could take them.
        dropped_no_member,
    }
}

/// Gauges and counters of one worker, as others read them: refreshed by their owner, never on the path of a packet.
#[derive(Debug, Default)]
pub struct Published {
    values: std::sync::Mutex<(Counters, StoreCounters)>,
    pub connections: AtomicU64,
    pub sessions: AtomicU64,
    /// Set by whoever sends this worker its first retained message, before it does: until then nobody needs to ask it.
    pub retained_used: AtomicBool,
    pub retained_messages: AtomicU64,
    pub retained_bytes: AtomicU64,
    /// Bytes of messages that wait on this worker, those in flight to durable sessions included.
    pub queued_bytes: AtomicU64,
    /// Of these, bytes of messages for durable sessions that are away.
    pub absent_bytes: AtomicU64,
}

impl Published {
    /// Refreshed about once a second by its worker, which leaves it be when a reader happens to hold it.
    pub fn refresh(&self, counters: &Counters, store: &StoreCounters) {
        if let Ok(mut values) = self.values.try_lock() {
            values.0.clone_from(counters);
            values.1.clone_from(store);
        }
    }

    pub fn counters(&self) -> (Counters, StoreCounters) {
        self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub fn get(value: &AtomicU64) -> u64 {
        value.load(Ordering::Relaxed)
    }
}
