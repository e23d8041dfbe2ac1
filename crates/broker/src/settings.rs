//! The settings of the broker: what the protocol allows here, and how much of everything.
//!
//! Declared once: default, range, text and reload behaviour stand here and nowhere else; the reference page and the
//! example file are generated.

use std::time::Duration;

use settings::{ByteSize, choices, section};

pub use crate::durability::{Durability, DurabilityRule, Filter};
pub use crate::peers::SubackLevel;

/// All of the broker's sections.
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
    /// The first whose filter matches counts.
    pub durability: Vec<DurabilityRule>,
}

section! {
    /// What clients may use of the protocol. What a server may limit is announced in CONNACK.
    [mqtt]
    pub struct Mqtt {
        /// Highest QoS of a PUBLISH from a client and of a granted subscription. Announced as Maximum QoS.
        pub qos_max: u8 = "2" in "0..=2", at start;
        /// Whether messages may be retained. Announced as Retain Available.
        pub retain_available: bool = "true", at start;
        /// Whether Topic Filters may hold `+` and `#`. Announced as Wildcard Subscription Available.
        pub wildcard_subscription_available: bool = "true", at start;
        /// Whether `$share` subscriptions are accepted. Announced as Shared Subscription Available.
        pub shared_subscription_available: bool = "true", at start;
        /// Whether SUBSCRIBE may carry a Subscription Identifier. Announced as Subscription Identifiers Available.
        pub subscription_identifier_available: bool = "true", at start;
        /// Largest packet accepted from a client, fixed header included. Announced as Maximum Packet Size.
        pub packet_size_max: ByteSize = "1MiB" in "64B..=256MiB", at start;
        /// Largest packet accepted from a client that has not logged in yet, fixed header included: its CONNECT with Will, user name and
        /// password. A larger one is refused as soon as its fixed header is there.
        pub packet_size_before_login_max: ByteSize = "64KiB" in "64B..=256MiB", on reload;
        /// QoS 1 and 2 messages that a client may have sent without an answer of ours. Announced as Receive Maximum.
        pub receive_max: u16 = "1024" in "1..=65535", at start;
        /// QoS 1 and 2 messages sent to a client and not yet acknowledged by it. A smaller Receive Maximum of the
        /// client goes first.
        pub inflight_max: u16 = "1024" in "1..=65535", on reload;
        /// Topic Aliases that a client may use towards the broker; 0 allows none. Announced as Topic Alias Maximum.
        pub topic_alias_max: u16 = "32", at start;
        /// Bytes of the topics of all Topic Aliases that a client uses towards the broker. Beyond it the connection is closed with 0x97.
        pub topic_alias_bytes_max: ByteSize = "16KiB", on reload;
        /// Topic Aliases that the broker uses towards a client that allows them; 0 uses none.
        pub topic_alias_outbound_max: u16 = "32", on reload;
        /// Longest Keep Alive in seconds; a client that asks for more, or for none, is told this one as Server Keep
        /// Alive. 0 leaves the choice to the client.
        pub keep_alive_max: u16 = "0", on reload;
        /// How long a new connection may take until its CONNECT is complete.
        pub connect_timeout: Duration = "10s" in "100ms..=10m", on reload;
        /// Maximum time for the rest of a packet to arrive. It restarts whenever another 1 KiB of the packet has arrived, so a slow line
        /// can carry a large packet.
        pub packet_timeout: Duration = "30s" in "100ms..=1h", on reload;
        /// Maximum number of levels of a Topic Name or Topic Filter. `+` is accepted in the first 128 levels. Matching a deeper topic takes longer.
        pub topic_levels_max: u16 = "200" in "1..=65535", at start;
        /// Bytes of a Topic Name or Topic Filter, at most, with `$share` and a mountpoint.
        pub topic_len_max: u16 = "4096" in "1..=65535", at start;
        /// Bytes of a Will, at most: its topic, payload and properties. A larger one gets CONNACK 0x97.
        pub will_size_max: ByteSize = "32KiB", on reload;
        /// Bytes of a Client Identifier, at most.
        pub client_id_len_max: u16 = "4096" in "23..=65535", on reload;
        /// Response Information for clients that ask for it; none is sent when empty.
        pub response_information: String = "", on reload;
        /// What happens to a PUBLISH that the access rules refuse.
        pub publish_denied: PublishDenied = "reason", on reload;
    }
}

choices! {
    /// What happens to a PUBLISH that the access rules refuse.
    pub enum PublishDenied {
        /// The message is dropped; MQTT 5.0 clients get Reason Code 0x87, older ones a plain acknowledgement.
        Reason = "reason",
        /// The connection is closed, with Reason Code 0x87 for MQTT 5.0.
        Disconnect = "disconnect",
        /// The message is dropped and acknowledged as if it had been taken.
        Ignore = "ignore",
    }
}

section! {
    /// How nodes of a cluster tell each other what their clients want.
    [routing]
    pub struct Routing {
        /// Who has to know of a subscription before SUBACK leaves. Subscriptions of sessions that outlive their connection always wait for
        /// `cluster`; a client may ask for another level by a User Property `suback` of its SUBSCRIBE.
        pub suback: SubackLevel = "region", on reload;
        /// Unusual arrangements of wildcards in all Topic Filters of the node, at most: a message costs at worst one look at each. Usual
        /// ones, with up to two `+` in up to 16 levels, are not limited. A SUBSCRIBE beyond it gets 0x97; what other nodes have
        /// granted is always routed.
        pub shapes_max: u32 = "1024" in "1..=65536", at start;
        /// Unusual arrangements of wildcards that one client may bring, at most. One that is in use already costs nothing.
        pub shapes_client_max: u32 = "64", on reload;
        /// Unusual arrangements of wildcards that all clients of one user may bring, at most. Clients without a user name count as one
        /// user.
        pub shapes_user_max: u32 = "256", on reload;
        /// Unusual arrangements of wildcards that all clients behind one mountpoint may bring, at most.
        pub shapes_mountpoint_max: u32 = "256", on reload;
        /// Whether changes are gathered while others are on their way.
        pub batch_sync: BatchSync = "auto", at start;
    }
}

choices! {
    /// Whether changes of routes are gathered.
    pub enum BatchSync {
        /// Sent at once when nothing was sent just before, gathered for up to 2 ms otherwise.
        Auto = "auto",
        /// Each change by itself, to see what gathering is worth.
        Off = "off",
    }
}

section! {
    /// Sessions that outlive their connection.
    [session]
    pub struct SessionSettings {
        /// Longest Session Expiry Interval that is granted; also the life of sessions of older clients that connect
        /// without Clean Session.
        pub expiry_max: Duration = "7d", on reload;
        /// Subscriptions of one client, at most.
        pub subscriptions_max: u32 = "100000" in "1..", on reload;
        /// Maximum number of shared subscriptions of one client. Each matching one makes a message be delivered once more. A SUBSCRIBE
        /// beyond it gets 0x97.
        pub shared_subscriptions_max: u32 = "1000" in "1..", on reload;
        /// Sessions that outlive their connection, in all.
        pub sessions_max: u32 = "10000000", on reload;
        /// Who may take over a connection or a session with the same Client Identifier. Never one tenant from another.
        pub owner: SessionOwner = "user", at start;
    }
}

choices! {
    /// Who may take over what a Client Identifier stands for.
    pub enum SessionOwner {
        /// The user who has it; what has no user name may be taken over by anybody. Others are refused with 0x85.
        User = "user",
        /// Whoever may connect.
        Anybody = "anybody",
    }
}

section! {
    /// What waits for a client that is slower than its publishers, or away.
    [queue]
    pub struct Queue {
        /// Messages that wait for one session, beyond those in flight.
        pub messages_max: u32 = "1000" in "1..", on reload;
        /// Bytes of the messages that wait for one session.
        pub bytes_max: ByteSize = "16MiB" in "1KiB..", on reload;
        /// How long a message waits for a durable session at most, as if that were its Message Expiry Interval; 0 is no limit.
        pub age_max: Duration = "0s", on reload;
        /// How long publishers of QoS 1 and 2 wait for a place in the full queue of a connected client before that
        /// client is closed.
        pub full_wait: Duration = "5s", on reload;
        /// How long publishers wait in all for the full queue of a connected client until it has taken the messages that waited when the queue
        /// became full. Then they may wait as long again. A client that needs longer is closed, even if it takes a message now and then;
        /// a durable session gives up messages by `full`. With the default of `messages_max`, a client that takes 100 messages a second
        /// is never closed.
        pub full_wait_total: Duration = "10s" in "100ms..", on reload;
        /// How long a client is remembered whose queue was full for too long. Meanwhile no publisher waits for it: messages that find
        /// its queue full again are dropped. Three such clients of one user and address make all clients of both remembered. Clients
        /// without a user name are remembered one by one. 0 remembers none.
        pub full_penalty: Duration = "10m", on reload;
        /// Unsent bytes of a connection beyond which QoS 0 messages for it are dropped.
        pub unsent_bytes_max: ByteSize = "4MiB" in "1KiB..", on reload;
        /// What the full queue of a client that is away gives up.
        pub full: QueueFull = "drop_oldest", on reload;
    }
}

choices! {
    /// What the full queue of a durable session without a connection gives up.
    pub enum QueueFull {
        /// The oldest message, so that the latest news arrives.
        DropOldest = "drop_oldest",
        /// The arriving message, so that what was accepted stays.
        DropNewest = "drop_newest",
    }
}

section! {
    /// Limits of the node and of each client's pace.
    [limits]
    pub struct Limits {
        /// Connections at one time; 0 is what the limit of file descriptors allows.
        pub connections_max: u32 = "0", at start;
        /// Connections at one time that have not come through CONNECT; beyond it no more are accepted, and others wait in the
        /// backlog.
        pub unauthenticated_max: u32 = "10000" in "1..", on reload;
        /// The same of one IPv4 address, or of one /64 of IPv6; beyond it connections are closed at once. 0 is no limit.
        pub unauthenticated_per_address: u32 = "0", on reload;
        /// New connections a second, of all listeners together; others wait in the backlog. 0 is no limit.
        pub connect_rate: u32 = "0", on reload;
        /// PUBLISH packets a second that are read from one client; 0 is no limit. After a pause a second's worth at once.
        pub messages_per_second: u32 = "0", on reload;
        /// Bytes a second that are read from one client; 0 is no limit.
        pub bytes_per_second: ByteSize = "0", on reload;
        /// Bytes of all queues of the node together; beyond it publishers of QoS 1 and 2 are slowed. A connected client holds at most as
        /// much as is still free, a user or a mountpoint at most three times that. When the limit is reached for `queue.full_wait`, queues
        /// of clients that are away are cut to an equal share by `queue.full`. When connected clients hold more than half for
        /// `queue.full_wait`, those that hold more than an equal share and do not acknowledge are closed.
        pub memory_queued_max: ByteSize = "1GiB" in "1MiB..", on reload;
        /// Bytes of messages with durability `memory` that were acknowledged and are not on the disk yet: what a crash may lose. Beyond,
        /// such a message waits for the disk as others do. Each of 16 shards has its part.
        pub memory_unsynced_max: ByteSize = "64MiB", on reload;
        /// Maximum number of warnings a minute in the log about refused clients, PUBLISH, SUBSCRIBE and Will. The rest is logged at level
        /// `debug`.
        pub refusals_logged_per_minute: u32 = "60" in "0..=1000000", on reload;
    }
}

section! {
    /// What one client, one user or one mountpoint may have, so that nobody can take what belongs to all.
    [quota]
    pub struct Quota {
        /// Part of the node's connections (`limits.connections_max`), of its sessions that outlive their connection (`session.sessions_max`) and
        /// of its retained messages and their bytes (`retained.messages_max`, `retained.bytes_max`) that one user or one mountpoint may have,
        /// in percent. 100 is no limit of its own. What is beyond it is refused with 0x97. Clients without user name and mountpoint are
        /// not counted together. A retained message counts for the client that has published it; after a restart for nobody, until it is
        /// published again.
        pub user_percent: u8 = "90" in "1..=100", on reload;
        /// Bytes that one client may make the node hold for its session: Topic Filters, Will and Client Identifier. A filter counts
        /// with 64 bytes more than it has. A SUBSCRIBE beyond it gets 0x97.
        pub client_bytes_max: ByteSize = "16MiB" in "64KiB..", on reload;
        /// The same of all connected clients of one user or one mountpoint together.
        pub user_bytes_max: ByteSize = "256MiB" in "64KiB..", on reload;
    }
}

section! {
    /// Shared subscriptions.
    [shared]
    pub struct Shared {
        /// Which member of the group gets a message.
        pub strategy: SharedStrategy = "round_robin", on reload;
    }
}

choices! {
    /// Which member of a shared subscription gets a message.
    pub enum SharedStrategy {
        /// Each in turn.
        RoundRobin = "round_robin",
        /// Any.
        Random = "random",
        /// The same until it leaves.
        Sticky = "sticky",
        /// The same for one publishing client.
        HashClientId = "hash_client_id",
        /// The same for one Topic Name.
        HashTopic = "hash_topic",
        /// One on the thread, then on the node, of the publisher where there is one; else each in turn.
        Local = "local",
    }
}

impl SharedStrategy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::RoundRobin, Self::Random, Self::Sticky, Self::HashClientId, Self::HashTopic, Self::Local];
}

section! {
    /// Retained messages.
    [retained]
    pub struct Retained {
        /// Retained messages, at most.
        pub messages_max: u64 = "1000000", on reload;
        /// Bytes of all retained messages, at most.
        pub bytes_max: ByteSize = "1GiB", on reload;
        /// Retained messages that are looked at in a second for the subscriptions of one client, whether or not they match. What is left
        /// comes later, so a SUBSCRIBE with very many filters takes nothing from other clients.
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
    /// What the node observes about its clients.
    [monitor]
    pub struct Monitor {
        /// A delivery that is acknowledged later than this after its message arrived makes its client a slow subscriber.
        pub slow_threshold: Duration = "500ms", on reload;
        /// Slow subscribers that each worker remembers, the slowest ones, for five minutes.
        pub slow_max: u32 = "100" in "1..=1000", on reload;
    }
}

section! {
    /// When the node has too much to do, and gives up some of it: at level 1 new connections, at level 2 also QoS 0 messages to clients
    /// with unsent bytes, at level 3 also reading from those who send most.
    [overload]
    pub struct Overload {
        /// Time that a turn of a reactor takes, averaged over about a second, at which level 1 begins; level 2 at twice, level 3 at four
        /// times as much. 0 leaves it out.
        pub turn: Duration = "500ms", on reload;
        /// Bytes that wait in a reactor's mailbox; as with `turn`.
        pub mailbox_bytes: ByteSize = "64MiB", on reload;
        /// Bytes that wait for connected clients, in percent of `limits.memory_queued_max`, at which level 1 begins; each further level
        /// takes half of what is left. 0 leaves it out.
        pub queued_percent: u8 = "80" in "0..=100", on reload;
        /// How long the load has to be lower before the level falls by one.
        pub cooldown: Duration = "3s", on reload;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and numbers other parts and the documents rely on.
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
