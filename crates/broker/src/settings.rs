//! Settings of the broker: protocol features and limits.
//!
//! Each is declared once: default, range, text and reload behaviour are here and nowhere else. The reference page and
//! the example file are generated.

use std::time::Duration;

use settings::{ByteSize, choices, section};

pub use crate::durability::{Durability, DurabilityRule, Filter};
pub use crate::groups::LinkedPrefix;
pub use crate::peers::SubackLevel;

/// All sections of the broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub mqtt: Mqtt,
    pub session: SessionSettings,
    pub queue: Queue,
    pub limits: Limits,
    pub quota: Quota,
    pub shared: Shared,
    pub retained: Retained,
    pub sys: Sys,
    pub monitor: Monitor,
    pub routing: Routing,
    pub overload: Overload,
    /// Durability rules; the first whose filter matches applies.
    pub durability: Vec<DurabilityRule>,
}

section! {
    /// Features and limits of the protocol. Limits that MQTT lets a server announce are announced in CONNACK.
    [mqtt]
    pub struct Mqtt {
        /// Highest QoS of a PUBLISH from a client and of a granted subscription. Announced as Maximum QoS.
        pub qos_max: u8 = "2" in "0..=2", at start;
        /// Allows retained messages. Announced as Retain Available.
        pub retain_available: bool = "true", at start;
        /// Allows Topic Filters with `+` and `#`. Announced as Wildcard Subscription Available.
        pub wildcard_subscription_available: bool = "true", at start;
        /// Allows `$share` subscriptions. Announced as Shared Subscription Available.
        pub shared_subscription_available: bool = "true", at start;
        /// Allows Subscription Identifiers in SUBSCRIBE. Announced as Subscription Identifiers Available.
        pub subscription_identifier_available: bool = "true", at start;
        /// Maximum size of a packet from a client, including the fixed header. Announced as Maximum Packet Size.
        pub packet_size_max: ByteSize = "1MiB" in "64B..=256MiB", at start;
        /// Maximum size of a packet before the client has logged in, including the fixed header: its CONNECT with Will,
        /// user name and password. A larger one is refused as soon as its fixed header has arrived.
        pub packet_size_before_login_max: ByteSize = "64KiB" in "64B..=256MiB", on reload;
        /// Maximum number of QoS 1 and 2 messages that a client may have sent without an acknowledgement from the
        /// broker. Announced as Receive Maximum.
        pub receive_max: u16 = "1024" in "1..=65535", at start;
        /// Maximum number of QoS 1 and 2 messages that the broker may have sent to a client without an acknowledgement.
        /// A smaller Receive Maximum of the client takes precedence. At most 1024 for a session that outlives its
        /// connection.
        pub inflight_max: u16 = "1024" in "1..=65535", on reload;
        /// Maximum number of Topic Aliases that a client may use towards the broker; 0 allows none. Announced as Topic
        /// Alias Maximum.
        pub topic_alias_max: u16 = "32", at start;
        /// Maximum number of bytes of the topics of all Topic Aliases that a client uses towards the broker. Beyond it
        /// the connection is closed with 0x97.
        pub topic_alias_bytes_max: ByteSize = "16KiB", on reload;
        /// Maximum number of Topic Aliases that the broker uses towards a client that allows them; 0 uses none.
        pub topic_alias_outbound_max: u16 = "32", on reload;
        /// Maximum Keep Alive in seconds. A client that asks for more, or for none, gets this value as Server Keep
        /// Alive. 0 leaves the choice to the client.
        pub keep_alive_max: u16 = "0", on reload;
        /// Maximum time from the start of a connection until its CONNECT is complete.
        pub connect_timeout: Duration = "10s" in "100ms..=10m", on reload;
        /// Maximum time for the rest of a packet to arrive. It restarts whenever another 1 KiB of the packet has
        /// arrived, so a slow line can carry a large packet.
        pub packet_timeout: Duration = "30s" in "100ms..=1h", on reload;
        /// Maximum number of levels of a Topic Name or Topic Filter. `+` is accepted in the first 128 levels. Matching
        /// a deeper topic takes longer.
        pub topic_levels_max: u16 = "200" in "1..=65535", at start;
        /// Maximum number of bytes of a Topic Name or Topic Filter, including `$share` and a mountpoint.
        pub topic_len_max: u16 = "4096" in "1..=65535", at start;
        /// Maximum number of bytes of a Will: its topic, payload and properties. A larger one gets CONNACK 0x97.
        pub will_size_max: ByteSize = "32KiB", on reload;
        /// Maximum number of bytes of a Client Identifier.
        pub client_id_len_max: u16 = "4096" in "23..=65535", on reload;
        /// Response Information for clients that request it; none is sent when empty.
        pub response_information: String = "", on reload;
        /// Reaction to a PUBLISH that the access rules refuse.
        pub publish_denied: PublishDenied = "reason", on reload;
    }
}

choices! {
    /// Reaction to a PUBLISH that the access rules refuse.
    pub enum PublishDenied {
        /// The message is dropped; MQTT 5.0 clients get Reason Code 0x87, older ones a plain acknowledgement.
        Reason = "reason",
        /// The connection is closed, with Reason Code 0x87 for MQTT 5.0.
        Disconnect = "disconnect",
        /// The message is dropped and acknowledged as if it had been accepted.
        Ignore = "ignore",
    }
}

section! {
    /// Exchange of subscriptions between the nodes of a cluster.
    [routing]
    pub struct Routing {
        /// Nodes that have to know a subscription before SUBACK is sent. Subscriptions of sessions that outlive their
        /// connection always wait for `cluster`, and for `links` if that is set. A client may ask for another level by
        /// a User Property `suback` of its SUBSCRIBE.
        pub suback: SubackLevel = "region", on reload;
        /// Maximum time that a SUBACK of level `links` waits for linked clusters, after the nodes of this cluster know
        /// the subscription. After that, SUBACK is sent all the same.
        pub suback_links_timeout: Duration = "5s" in "100ms..=5m", on reload;
        /// Maximum number of unusual arrangements of wildcards in all Topic Filters of the node. A message costs at
        /// worst one look at each. Usual arrangements, with up to two `+` in up to 16 levels, are not limited. A
        /// SUBSCRIBE beyond it gets 0x97. Filters that other nodes have granted are always routed.
        pub shapes_max: u32 = "1024" in "1..=65536", at start;
        /// Maximum number of unusual arrangements of wildcards that one client may add. An arrangement that is already
        /// in use does not count.
        pub shapes_client_max: u32 = "64", on reload;
        /// Maximum number of unusual arrangements of wildcards that all clients of one user may add. Clients without a
        /// user name count as one user.
        pub shapes_user_max: u32 = "256", on reload;
        /// Maximum number of unusual arrangements of wildcards that all clients behind one mountpoint may add.
        pub shapes_mountpoint_max: u32 = "256", on reload;
        /// Gathers changes of routes while other changes are being sent.
        pub batch_sync: BatchSync = "auto", at start;
    }
}

choices! {
    /// Gathering of changes of routes.
    pub enum BatchSync {
        /// A change is sent at once when nothing was sent just before, and is gathered for up to 2 ms otherwise.
        Auto = "auto",
        /// Each change is sent by itself, to measure the effect of gathering.
        Off = "off",
    }
}

section! {
    /// Sessions that outlive their connection.
    [session]
    pub struct SessionSettings {
        /// Maximum Session Expiry Interval that is granted. Sessions of older clients that connect without Clean
        /// Session expire after this time.
        pub expiry_max: Duration = "7d", on reload;
        /// Maximum number of subscriptions of one client.
        pub subscriptions_max: u32 = "100000" in "1..", on reload;
        /// Maximum number of shared subscriptions of one client. A message is delivered once more for each one that
        /// matches. A SUBSCRIBE beyond it gets 0x97.
        pub shared_subscriptions_max: u32 = "1000" in "1..", on reload;
        /// Maximum number of sessions that outlive their connection and that the node stores. In a cluster, replicas
        /// count too.
        pub sessions_max: u32 = "10000000", on reload;
        /// Clients that may take over a connection or a session with the same Client Identifier. A tenant can never
        /// take over from another one.
        pub owner: SessionOwner = "user", at start;
    }
}

choices! {
    /// Clients that may take over what belongs to a Client Identifier.
    pub enum SessionOwner {
        /// The user that has it. What belongs to no user may be taken over by any client. Other clients are refused
        /// with 0x85.
        User = "user",
        /// Any client that may connect.
        Anybody = "anybody",
    }
}

section! {
    /// Messages that wait for a client that is slower than its publishers, or absent.
    [queue]
    pub struct Queue {
        /// Maximum number of messages that wait for one session, in addition to those in flight.
        pub messages_max: u32 = "1000" in "1..", on reload;
        /// Maximum number of bytes of the messages that wait for one session.
        pub bytes_max: ByteSize = "16MiB" in "1KiB..", on reload;
        /// Maximum time that a message waits for a durable session, as if that were its Message Expiry Interval; 0 is
        /// no limit.
        pub age_max: Duration = "0s", on reload;
        /// Maximum time that publishers of QoS 1 and 2 wait for a slot in the full queue of a connected client. Then
        /// that client is closed.
        pub full_wait: Duration = "5s", on reload;
        /// Maximum total time that publishers wait for the full queue of a connected client until it has received the
        /// messages that waited when the queue became full. Then they may wait as long again. A client that needs
        /// longer is closed, even if it receives a message now and then; a durable session drops messages by `full`.
        /// With the default of `messages_max`, a client that receives 100 messages a second is never closed.
        pub full_wait_total: Duration = "10s" in "100ms..", on reload;
        /// Time for which a client is remembered whose queue was full for too long. Meanwhile no publisher waits for
        /// it: messages that find its queue full again are dropped. Three such clients of one user and address make all
        /// clients of both remembered. Clients without a user name are remembered one by one. 0 remembers none.
        pub full_penalty: Duration = "10m", on reload;
        /// Maximum number of unsent bytes of a connection. Beyond it QoS 0 messages for the connection are dropped.
        pub unsent_bytes_max: ByteSize = "4MiB" in "1KiB..", on reload;
        /// Message that is dropped when the queue of an absent client is full.
        pub full: QueueFull = "drop_oldest", on reload;
    }
}

choices! {
    /// Message that is dropped when the queue of a durable session without a connection is full.
    pub enum QueueFull {
        /// The oldest message, so that the newest ones arrive.
        DropOldest = "drop_oldest",
        /// The arriving message, so that accepted messages stay.
        DropNewest = "drop_newest",
    }
}

section! {
    /// Limits of the node and of each client's rate.
    [limits]
    pub struct Limits {
        /// Maximum number of connections; 0 is the number that the limit of file descriptors allows.
        pub connections_max: u32 = "0", at start;
        /// Maximum number of connections whose CONNECT has not succeeded yet. Beyond it no more are accepted, and
        /// others wait in the listen backlog.
        pub unauthenticated_max: u32 = "10000" in "1..", on reload;
        /// Maximum number of such connections of one IPv4 address, or of one /64 of IPv6. Beyond it connections are
        /// closed at once. 0 is no limit.
        pub unauthenticated_per_address: u32 = "0", on reload;
        /// Maximum number of new connections a second, of all listeners together; others wait in the listen backlog. 0
        /// is no limit.
        pub connect_rate: u32 = "0", on reload;
        /// Maximum number of PUBLISH packets a second that are read from one client; 0 is no limit. After a pause the
        /// number of one second may arrive at once.
        pub messages_per_second: u32 = "0", on reload;
        /// Maximum number of bytes a second that are read from one client; 0 is no limit.
        pub bytes_per_second: ByteSize = "0", on reload;
        /// Maximum number of bytes of all queues of the node together. Beyond it publishers of QoS 1 and 2 are slowed
        /// down. A connected client holds at most as much as is still free, a user or a mountpoint at most three times
        /// that. When the limit is reached for `queue.full_wait`, queues of absent clients are cut to an equal share by
        /// `queue.full`. When connected clients hold more than half for `queue.full_wait`, those that hold more than an
        /// equal share and do not acknowledge are closed.
        pub memory_queued_max: ByteSize = "1GiB" in "1MiB..", on reload;
        /// Maximum number of bytes of messages with durability `memory` that were acknowledged and are not on the disk
        /// yet: a crash may lose them. Beyond it such a message waits for the disk as others do. Each of 16 shards has
        /// an equal part.
        pub memory_unsynced_max: ByteSize = "64MiB", on reload;
        /// Maximum number of warnings a minute in the log about refused clients, PUBLISH, SUBSCRIBE and Will. The rest
        /// is logged at level `debug`.
        pub refusals_logged_per_minute: u32 = "60" in "0..=1000000", on reload;
        /// Maximum number of events (`$events/...`) a second that one reactor publishes. Each 4 KiB of a message in an
        /// event count as one more. The rest is suppressed and counted.
        pub events_per_second: u32 = "10000", on reload;
    }
}

section! {
    /// Limits of one client, one user or one mountpoint, so that none can use up what all share.
    [quota]
    pub struct Quota {
        /// Maximum part of the node's connections (`limits.connections_max`), of its sessions that outlive their
        /// connection (`session.sessions_max`) and of its retained messages and their bytes (`retained.messages_max`,
        /// `retained.bytes_max`) that one user or one mountpoint may have, in percent. 100 is no separate limit. In a
        /// cluster each node counts the connections that it has, and the sessions and retained messages of the shards
        /// that it leads. It then gives the part of the limit that these shards are of all 16.
        /// Requests beyond it are refused with 0x97. Clients without user name and mountpoint are not counted together.
        /// A retained message counts for the client that has published it. After a restart it counts for no client
        /// until it is published again.
        pub user_percent: u8 = "90" in "1..=100", on reload;
        /// Maximum number of bytes that one client may make the node hold for its session: Topic Filters, Will and
        /// Client Identifier. A filter counts 64 bytes more than its length. A SUBSCRIBE beyond it gets 0x97.
        pub client_bytes_max: ByteSize = "16MiB" in "64KiB..", on reload;
        /// Maximum number of such bytes of all connected clients of one user or one mountpoint together.
        pub user_bytes_max: ByteSize = "256MiB" in "64KiB..", on reload;
    }
}

section! {
    /// Shared subscriptions.
    [shared]
    pub struct Shared {
        /// Member of the group that gets a message.
        pub strategy: SharedStrategy = "round_robin", on reload;
        /// Groups whose ShareNames begin with this have one member over all linked clusters: a message goes to a
        /// member in the cluster where it is published, and without one to a member in another cluster. It must be the
        /// same in all linked clusters. Empty: there are no such groups.
        pub linked_prefix: LinkedPrefix = "linked:", at start;
    }
}

choices! {
    /// Choice of the member of a shared group that gets a message.
    pub enum SharedStrategy {
        /// Each member in turn.
        RoundRobin = "round_robin",
        /// A random member.
        Random = "random",
        /// The same member until it leaves.
        Sticky = "sticky",
        /// The same member for all messages of one publisher.
        HashClientId = "hash_client_id",
        /// The same member for all messages of one Topic Name.
        HashTopic = "hash_topic",
        /// A member on the publisher's thread, else one on the publisher's node, else each in turn.
        Local = "local",
    }
}

impl SharedStrategy {
    /// All strategies.
    pub const ALL: [Self; 6] =
        [Self::RoundRobin, Self::Random, Self::Sticky, Self::HashClientId, Self::HashTopic, Self::Local];
}

section! {
    /// Retained messages.
    [retained]
    pub struct Retained {
        /// Maximum number of retained messages.
        pub messages_max: u64 = "1000000", on reload;
        /// Maximum number of bytes of all retained messages.
        pub bytes_max: ByteSize = "1GiB", on reload;
        /// Maximum number of retained messages that are looked at in a second for the subscriptions of one client,
        /// whether or not they match. The rest follows later, so a SUBSCRIBE with very many filters does not delay
        /// other clients.
        pub scanned_per_second: u32 = "200000" in "1000..", on reload;
    }
}

section! {
    /// The broker's own topics under `$SYS`.
    [sys]
    pub struct Sys {
        /// Time between two rounds of `$SYS` messages; 0 publishes none.
        pub interval: Duration = "10s", on reload;
    }
}

section! {
    /// Observation of clients.
    [monitor]
    pub struct Monitor {
        /// Delay from the arrival of a message to its acknowledgement beyond which the client counts as a slow
        /// subscriber.
        pub slow_threshold: Duration = "500ms", on reload;
        /// Number of slow subscribers that each worker remembers for five minutes, the slowest ones.
        pub slow_max: u32 = "100" in "1..=1000", on reload;
    }
}

section! {
    /// Overload: the node has too much to do and refuses some of it. At level 1 it refuses new connections, at level 2
    /// also QoS 0 messages to clients with unsent bytes, at level 3 it also stops reading from the clients that send
    /// most.
    [overload]
    pub struct Overload {
        /// Duration of a turn of a reactor, averaged over about a second, at which level 1 begins. Level 2 begins at
        /// twice, level 3 at four times as much. 0 ignores it.
        pub turn: Duration = "500ms", on reload;
        /// Bytes that wait in a reactor's mailbox at which level 1 begins; the other levels as with `turn`.
        pub mailbox_bytes: ByteSize = "64MiB", on reload;
        /// Bytes that wait for connected clients, in percent of `limits.memory_queued_max`, at which level 1 begins.
        /// Each further level takes half of what is left. 0 ignores them.
        pub queued_percent: u8 = "80" in "0..=100", on reload;
        /// Time for which the load has to be lower before the level falls by one.
        pub cooldown: Duration = "3s", on reload;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other parts and the documents rely on these names and numbers.
    #[test]
    fn defaults_are_the_documented_ones() {
        let Settings {
            mqtt,
            session,
            queue,
            limits,
            quota,
            shared,
            retained,
            sys,
            monitor,
            routing,
            overload,
            durability,
        } = Settings::default();
        assert_eq!((routing.suback, routing.batch_sync), (SubackLevel::Region, BatchSync::Auto));
        assert_eq!(durability, []);
        assert_eq!((overload.turn, overload.queued_percent), (Duration::from_millis(500), 80));
        assert_eq!((mqtt.qos_max, mqtt.packet_size_max), (2, ByteSize::mib(1)));
        assert_eq!((mqtt.receive_max, mqtt.inflight_max), (1024, 1024));
        assert_eq!(
            (mqtt.publish_denied, mqtt.connect_timeout),
            (PublishDenied::Reason, Duration::from_secs(10))
        );
        assert_eq!(session.expiry_max, Duration::from_secs(7 * 24 * 3600));
        assert_eq!((queue.messages_max, queue.full), (1000, QueueFull::DropOldest));
        assert_eq!((limits.connections_max, limits.memory_queued_max), (0, ByteSize::gib(1)));
        assert_eq!(limits.refusals_logged_per_minute, 60);
        assert_eq!(quota.user_percent, 90);
        assert_eq!(shared.strategy, SharedStrategy::RoundRobin);
        assert_eq!((retained.messages_max, sys.interval), (1_000_000, Duration::from_secs(10)));
        assert_eq!(monitor.slow_threshold, Duration::from_millis(500));
    }
}
