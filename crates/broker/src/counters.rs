//! Counters: plain numbers that one worker owns. The worker copies them at intervals to where others can read them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use mqtt::PacketType;

use crate::admin::{ReactorFigures, ShardFigures};

/// One number with its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name in `$SYS/broker/counters/`.
    pub name: &'static str,
    /// Metric that the number is part of, without prefix and `_total`.
    pub family: &'static str,
    /// Label that names the part: name and value.
    pub label: Option<(&'static str, &'static str)>,
    pub help: &'static str,
    /// True when the value may fall.
    pub gauge: bool,
    pub value: u64,
}

macro_rules! counters {
    ($(#[$outer:meta])* pub struct $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident as $family:literal $($label:literal = $of:literal)? $(($gauge:ident))?,)+
    }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl $name {
            /// Iterates over the counters; those of one family are adjacent.
            pub fn each(&self) -> impl Iterator<Item = Figure> {
                [$(Figure {
                    name: stringify!($field),
                    family: $family,
                    label: None $(.or(Some(($label, $of))))?,
                    help: concat!($($doc),+),
                    gauge: false $(|| stringify!($gauge) == "gauge")?,
                    value: self.$field,
                },)+].into_iter()
            }

            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }
    };
}

counters! {
    /// Counters of one worker.
    pub struct Counters {
        /// Network connections accepted.
        connections_opened as "network_connections_opened",
        /// Network connections closed.
        connections_closed as "network_connections_closed",
        /// Connections whose client was accepted.
        clients_connected as "clients_connected",
        /// Clients disconnected.
        clients_disconnected as "clients_disconnected",
        /// CONNECTs refused.
        connects_refused as "connects_refused",
        /// CONNACKs sent before the Client Identifier was claimed (`cluster.connack`).
        connacks_early as "connacks_early",
        /// Connections closed for a malformed packet or a protocol error, in TLS, WebSocket and the PROXY protocol too.
        protocol_errors as "disconnects" "reason" = "protocol_error",
        /// Connections closed for silence beyond 1.5 times Keep Alive.
        keep_alive_timeouts as "disconnects" "reason" = "keep_alive_timeout",
        /// CONNECT packets refused with 0x89 because the node was overloaded.
        connects_shed as "connects_shed",
        /// Connections closed because CONNECT did not arrive in time.
        connect_timeouts as "disconnects" "reason" = "connect_timeout",
        /// Connections closed because the rest of a packet did not arrive in time.
        packet_timeouts as "disconnects" "reason" = "packet_timeout",
        /// Connections closed because this node did not know the routes of their sessions within
        /// `cluster.suback_timeout`.
        routes_overdue as "disconnects" "reason" = "routes_overdue",
        /// Connections closed because another took their Client Identifier.
        taken_over as "disconnects" "reason" = "taken_over",
        /// Connections closed because their queue was full for too long: `queue.full_wait`, `queue.full_wait_total`, or
        /// more than an equal share of memory that is short.
        slow_readers_closed as "disconnects" "reason" = "slow_reader",
        /// Connections closed because their admission had expired, such as the token of the client.
        admissions_expired as "disconnects" "reason" = "admission_expired",
        /// Connections closed by an operator.
        kicked as "disconnects" "reason" = "administrative",
        /// Connections closed because the node is drained.
        drained as "disconnects" "reason" = "drained",
        /// CONNECTs refused because the user or the mountpoint has the maximum number of connections (`quota`).
        quota_connections as "quota_refusals" "resource" = "connections",
        /// Topic Filters refused because the client, its user or its mountpoint makes the node hold the maximum number
        /// of bytes (`quota`).
        quota_session_bytes as "quota_refusals" "resource" = "session_bytes",
        /// CONNECTs refused because of the size of their Will (`mqtt.will_size_max`).
        quota_will_bytes as "quota_refusals" "resource" = "will_bytes",
        /// Subscriptions made by clients whose sessions end with their connection.
        subscriptions_added as "subscriptions_added",
        /// Subscriptions removed of clients whose sessions end with their connection.
        subscriptions_removed as "subscriptions_removed",
        /// Retained messages that were looked at for new subscriptions, whether or not they match.
        retained_scanned as "retained_scanned",
        /// Times retained messages for a client were delayed because of `retained.scanned_per_second`.
        retained_throttled as "retained_throttled",
        /// Subscriptions of durable sessions whose retained messages continued to arrive after a reconnect.
        retained_scans_resumed as "retained_scans_resumed",
        /// PUBLISH packets received at QoS 0.
        received_qos0 as "messages_received" "qos" = "0",
        /// PUBLISH packets received at QoS 1.
        received_qos1 as "messages_received" "qos" = "1",
        /// PUBLISH packets received at QoS 2.
        received_qos2 as "messages_received" "qos" = "2",
        /// PUBLISH packets sent at QoS 0.
        sent_qos0 as "messages_sent" "qos" = "0",
        /// PUBLISH packets sent at QoS 1.
        sent_qos1 as "messages_sent" "qos" = "1",
        /// PUBLISH packets sent at QoS 2.
        sent_qos2 as "messages_sent" "qos" = "2",
        /// Bytes received.
        bytes_received as "bytes_received",
        /// Bytes queued for sending.
        bytes_sent as "bytes_sent",
        /// QoS 0 messages dropped because a connection had too many unsent bytes.
        dropped_slow_qos0 as "messages_dropped" "reason" = "slow_reader",
        /// QoS 0 messages dropped because a connection had unsent bytes, or the message was to be stored, while the
        /// node was overloaded.
        dropped_overload as "messages_dropped" "reason" = "overload",
        /// QoS 1 and 2 messages dropped because a queue was full: that of the node itself, or of a client whose queue
        /// was full for too long before.
        dropped_queue_full as "messages_dropped" "reason" = "queue_full",
        /// Messages not delivered because they had expired.
        dropped_expired as "messages_dropped" "reason" = "expired",
        /// Messages not delivered because the client's Maximum Packet Size is smaller.
        dropped_packet_size as "messages_dropped" "reason" = "packet_too_large",
        /// Messages not delivered because the access rules do not let the client read them.
        dropped_not_readable as "messages_dropped" "reason" = "not_readable",
        /// QoS 0 messages to be stored for actions that were dropped because the log or the shard accepts none.
        dropped_not_stored as "messages_dropped" "reason" = "not_stored",
        /// PUBLISH packets refused by the access rules.
        publish_denied as "publishes_denied",
        /// Wills discarded because their client has lost the right to publish them, or to connect.
        wills_denied as "wills_denied",
        /// Subscriptions refused by the access rules.
        subscribe_denied as "subscribes_denied",
        /// Topic Filters refused because the node or the client has too many unusual arrangements of wildcards.
        subscribe_shapes_refused as "subscribes_refused" "reason" = "shapes",
        /// Shared subscriptions refused because the client has the maximum number (`session.shared_subscriptions_max`).
        subscribe_shared_refused as "subscribes_refused" "reason" = "shared",
        /// SUBACKs of level `links` that were sent without the confirmation of a linked cluster, because it took longer
        /// than `routing.suback_links_timeout` or because too many waited.
        subacks_links_unconfirmed as "subacks_links_unconfirmed",
        /// Packets that waited for another server to say whether they are allowed.
        permissions_awaited as "permissions_awaited",
        /// Times a publisher was made to wait because of its rate, its in-flight messages or the node's memory.
        publishers_blocked as "publishers_blocked",
        /// Times a client was not read to the end in one turn because its last messages had very many receivers, or its
        /// packets very many filters.
        fan_out_pauses as "fan_out_pauses",
        /// SUBSCRIBE and UNSUBSCRIBE packets with so many filters that they took more than one turn.
        packets_divided as "packets_divided",
        /// PUBLISH packets refused by the store or by a limit on retained messages, or not acknowledged because another
        /// node could not accept them.
        publish_refused as "publishes_refused",
        /// Messages forwarded to another node: one for each node that receives a message.
        forwarded as "messages_forwarded",
        /// Messages received from other nodes.
        forwarded_received as "messages_forwarded_received",
        /// Events published on `$events/...`.
        events as "events",
        /// Events not published because of `limits.events_per_second`, or because their message was too large.
        events_suppressed as "events_suppressed",
        /// Malformed messages of other nodes.
        forwarded_malformed as "messages_dropped" "reason" = "malformed",
    }
}

counters! {
    /// Counters and gauges of one shard of the session store.
    pub struct StoreCounters {
        /// Claims that found the Client Identifier served by another connection.
        takeovers as "takeovers",
        /// Claims refused because the Client Identifier is in use by another user (`session.owner`).
        claims_refused as "claims_refused",
        /// Sessions refused by `session.sessions_max`.
        sessions_refused as "sessions_refused",
        /// Sessions refused because the user or the mountpoint has the maximum number (`quota`).
        quota_sessions as "quota_refusals" "resource" = "sessions",
        /// Sessions that ended at their expiry.
        sessions_expired as "sessions_expired",
        /// Sessions ended by an operator.
        sessions_kicked as "sessions_kicked",
        /// Messages waiting in queues of durable sessions now.
        queued_messages as "session_queued_messages" (gauge),
        /// Bytes of messages waiting in queues of durable sessions now.
        queued_bytes as "session_queued_bytes" (gauge),
        /// Messages dropped by the rule for full queues.
        dropped_queue_full as "messages_dropped" "reason" = "queue_full",
        /// Messages dropped in a queue because they expired.
        dropped_expired as "messages_dropped" "reason" = "expired",
        /// Messages dropped with the session that they waited for.
        dropped_session_ended as "messages_dropped" "reason" = "session_ended",
        /// Messages of shared subscriptions dropped because no member could receive them.
        dropped_no_member as "messages_dropped" "reason" = "no_group_member",
        /// Messages that a linked cluster gave to this one for a shared group, dropped because the group has no member
        /// here any more.
        dropped_no_linked_member as "messages_dropped" "reason" = "no_linked_member",
        /// QoS 0 messages to be stored for actions that were dropped because the disk is too slow
        /// (`limits.memory_unsynced_max`).
        dropped_not_stored as "messages_dropped" "reason" = "not_stored",
        /// Messages for durable sessions and retained messages refused because the disk is full or has failed.
        refused_by_log as "messages_refused_by_disk",
        /// Messages acknowledged before they were on the disk (durability `memory`).
        acknowledged_unsynced as "messages_acknowledged_unsynced",
        /// Messages of durability `memory` that waited for the disk after all, because of `limits.memory_unsynced_max`.
        unsynced_limited as "messages_unsynced_limited",
        /// Messages lost because they could not be read back from the disk.
        read_errors as "messages_unreadable",
        /// Messages that the disk could not return and that came from another core.
        read_repaired as "messages_repaired",
        /// Retained messages refused by `retained.messages_max` or `retained.bytes_max`.
        retained_refused as "retained_refused",
        /// Retained messages refused because the user or the mountpoint has the maximum number of messages or bytes
        /// (`quota`).
        quota_retained as "quota_refusals" "resource" = "retained",
    }
}

impl Counters {
    /// Number of PUBLISH packets received.
    pub fn publish_received(&self) -> u64 {
        self.received_qos0 + self.received_qos1 + self.received_qos2
    }

    /// Number of PUBLISH packets sent.
    pub fn publish_sent(&self) -> u64 {
        self.sent_qos0 + self.sent_qos1 + self.sent_qos2
    }

    pub(crate) fn count_received(&mut self, qos: mqtt::QoS) {
        match qos {
            mqtt::QoS::AtMostOnce => self.received_qos0 += 1,
            mqtt::QoS::AtLeastOnce => self.received_qos1 += 1,
            mqtt::QoS::ExactlyOnce => self.received_qos2 += 1,
        }
    }

    pub(crate) fn count_sent(&mut self, qos: mqtt::QoS) {
        match qos {
            mqtt::QoS::AtMostOnce => self.sent_qos0 += 1,
            mqtt::QoS::AtLeastOnce => self.sent_qos1 += 1,
            mqtt::QoS::ExactlyOnce => self.sent_qos2 += 1,
        }
    }
}

/// Packets by type, in both directions. A sent packet is counted when it is queued for output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Packets by the number of their type; index 0 counts bytes that are no packet.
    received: [u64; 16],
    sent: [u64; 16],
}

impl PacketCounters {
    /// Counts a packet that begins with this byte.
    pub(crate) fn received(&mut self, first_byte: u8) {
        self.received[usize::from(first_byte >> 4)] += 1;
    }

    pub(crate) fn sent(&mut self, packet: PacketType) {
        self.sent[packet as usize] += 1;
    }

    pub(crate) fn received_many(&mut self, packet: PacketType, count: u64) {
        self.received[packet as usize] += count;
    }

    pub(crate) fn sent_many(&mut self, packet: PacketType, count: u64) {
        self.sent[packet as usize] += count;
    }

    /// Iterates over the packet types, with the numbers received and sent.
    pub fn each(&self) -> impl Iterator<Item = (PacketType, u64, u64)> {
        let types = (1..16).filter_map(|number| PacketType::of(number << 4));
        types.map(|packet| (packet, self.received[packet as usize], self.sent[packet as usize]))
    }

    pub fn add(&mut self, other: &Self) {
        let rows = [(&mut self.received, &other.received), (&mut self.sent, &other.sent)];
        for (row, other) in rows {
            row.iter_mut().zip(other).for_each(|(count, other)| *count = count.wrapping_add(*other));
        }
    }
}

/// Gauges and counters of one worker for readers. Their owner refreshes them, never on the path of a packet.
#[derive(Debug, Default)]
pub struct Published {
    values: Mutex<(Counters, StoreCounters, PacketCounters)>,
    reactor: Mutex<ReactorFigures>,
    shards: Mutex<Vec<ShardFigures>>,
    /// Overload [`Level`](crate::Level), as a number.
    pub overload: AtomicU8,
    /// The worker is too busy to accept new clients.
    pub refuses_clients: AtomicBool,
    pub connections: AtomicU64,
    pub sessions: AtomicU64,
    /// Number of subscriptions of durable sessions.
    pub session_subscriptions: AtomicU64,
    /// Set by the worker that sends this worker its first retained message, before it sends it. Until then no worker
    /// needs to ask this one.
    pub retained_used: AtomicBool,
    pub retained_messages: AtomicU64,
    pub retained_bytes: AtomicU64,
    /// Bytes of messages that wait on this worker, including those in flight to durable sessions.
    pub queued_bytes: AtomicU64,
    /// Part of `queued_bytes` for durable sessions that are absent.
    pub offline_bytes: AtomicU64,
    /// Bytes of requests to shards of a cluster that are not answered.
    pub request_bytes: AtomicU64,
    /// Bytes of messages that wait for the answers of members of shared groups.
    pub offer_bytes: AtomicU64,
    /// Number of messages that wait for connected clients.
    pub waiting_messages: AtomicU64,
    /// Number of connected clients for which messages wait, or waited a moment ago.
    pub waiting_clients: AtomicU64,
    /// Age of the oldest waiting message in milliseconds.
    pub oldest_ms: AtomicU64,
    /// Number of recent deliveries that took longer than `monitor.slow_threshold`, one per client.
    pub slow: AtomicU64,
}

impl Published {
    /// Copies the numbers of the worker. The worker does so about once a second and skips it while a reader holds the
    /// lock.
    pub fn refresh(&self, counters: &Counters, store: &StoreCounters, packets: &PacketCounters) {
        if let Ok(mut values) = self.values.try_lock() {
            values.0.clone_from(counters);
            values.1.clone_from(store);
            values.2.clone_from(packets);
        }
    }

    /// Copies the numbers of the reactor that runs the worker.
    pub fn refresh_reactor(&self, figures: &ReactorFigures) {
        if let Ok(mut value) = self.reactor.try_lock() {
            value.clone_from(figures);
        }
    }

    /// Replaces the figures of the shards that the worker hosts.
    pub fn refresh_shards(&self, shards: impl Iterator<Item = ShardFigures>) {
        if let Ok(mut values) = self.shards.try_lock() {
            values.clear();
            values.extend(shards);
        }
    }

    pub fn shards(&self) -> Vec<ShardFigures> {
        sync::lock(&self.shards).clone()
    }

    pub fn counters(&self) -> (Counters, StoreCounters, PacketCounters) {
        sync::lock(&self.values).clone()
    }

    pub fn reactor(&self) -> ReactorFigures {
        sync::lock(&self.reactor).clone()
    }

    pub fn get(value: &AtomicU64) -> u64 {
        value.load(Ordering::Relaxed)
    }
}
