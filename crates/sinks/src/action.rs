//! Settings of actions: `[[action]]`.

use std::time::Duration;

use settings::{ByteSize, choices, section};

section! {
    /// Action: passes the outputs of a rule to a system outside, or publishes them at this broker. Messages wait in a
    /// durable session of this node or cluster until the other system has them. In a cluster give all nodes the same
    /// actions: each runs on one of them.
    [action]
    pub struct ActionSettings {
        /// Name of the action. It belongs to the session in which messages wait.
        pub name: String = "", at start;
        /// Run the action. Messages wait for an action that has run before, too, while it does not run.
        pub enabled: bool = "true", at start;
        /// Tenant that the action belongs to: the mountpoint of its clients without the `/` at the end. Its rule sees
        /// topics and events of this tenant only, and it publishes below the mountpoint. Empty: the action belongs to
        /// no tenant.
        pub tenant: String = "", at start;
        /// Text for people.
        pub description: String = "", at start;
        /// Rule that chooses messages and makes outputs of them: `SELECT ... FROM "filter" WHERE ...`.
        pub rule: String = "", at start;
        /// Name of the connector that outputs are written to. Empty: outputs are published at this broker.
        pub connector: String = "", at start;

        /// Topic of `kafka`, or of the message that is published at this broker. A template.
        pub topic: String = "", at start;
        /// Content of the message, of the body of an HTTP request, of the value of a record in Kafka, or of a line. A
        /// template; `${.}` is the whole output as JSON.
        pub content: String = "${.}", at start;
        /// QoS of the message that is published at this broker: a number, or a template such as `${qos}`.
        pub publish_qos: String = "1", at start;
        /// Retain flag of the message that is published at this broker: `true`, `false`, or a template such as
        /// `${flags.retain}`.
        pub publish_retain: String = "false", at start;
        /// User Properties of the message, or headers of the HTTP request or of the record in Kafka: a line
        /// `NAME: TEMPLATE` for each.
        pub headers: String = "", at start;
        /// Method of an HTTP request.
        pub method: Method = "POST", at start;
        /// Text that is added to the URL of the connector. A template; values are percent-encoded.
        pub path: String = "", at start;
        /// Combine the records of a batch in one HTTP request.
        pub body: Body = "each", at start;
        /// Statement of `postgresql`, such as `INSERT INTO t (time, temp) VALUES (${time}, ${payload.temp})`. Each
        /// placeholder is a parameter, never a part of the text.
        pub statement: String = "", at start;
        /// Key of a record in Kafka, which decides about its partition. A template; empty is no key.
        pub key: String = "", at start;

        /// Store messages of QoS 0, too, until the other system has them. Otherwise they are lost when they come faster
        /// than it takes them.
        pub store_qos0: bool = "true", at start;
        /// Maximum number of messages that wait.
        pub queue_messages_max: u32 = "1000000" in "1..", at start;
        /// Maximum number of bytes that wait.
        pub queue_bytes_max: ByteSize = "1GiB" in "1KiB..", at start;
        /// Maximum time that a message waits; 0 is until it expires.
        pub queue_age_max: Duration = "0s", at start;
        /// Rule for messages when the queue is full.
        pub queue_full: WhenFull = "drop_oldest", at start;
        /// Maximum number of messages that the action works on at a time. At most 1024 of them are stored ones.
        pub in_flight: u16 = "1024" in "1..=65535", at start;
        /// Maximum number of records of a batch.
        pub batch_max: u32 = "500" in "1..=65535", at start;
        /// Maximum number of bytes of a batch.
        pub batch_bytes_max: ByteSize = "1MiB" in "1KiB..=64MiB", at start;
        /// Maximum time that a record waits for others of its batch.
        pub batch_wait: Duration = "10ms" in "0s..=1m", at start;
        /// Number of connections to the other system.
        pub connections: u8 = "1" in "1..=32", at start;
        /// Records whose order is kept when there are several connections.
        pub order: Order = "topic", at start;
        /// Pause after the first failed attempt to write. It doubles with each further one, and varies by a quarter.
        pub retry_min: Duration = "500ms" in "10ms..=1h", at start;
        /// Longest pause between two attempts to write.
        pub retry_max: Duration = "30s" in "10ms..=1d", at start;
        /// Time after which a record is given up that the other system does not take; 0 is never.
        pub expire: Duration = "0s", at start;
        /// Number of attempts after which a record is given up that the other system answers with an error, or not at
        /// all. An attempt counts when other records of the action were written since the one before. 0 is no limit.
        pub attempts_max: u16 = "10" in "0..=1000", at start;
        /// Topic at this broker for records that are refused, cannot be made, or are given up. A template with
        /// `${action}`, `${topic}` and `${reason}`; empty drops them.
        pub dead_letter: String = "", at start;
        /// Name of another action that gets messages whose records are refused, cannot be made, or are given up.
        pub fallback: String = "", at start;
        /// Maximum number of actions and bridges that a message passes.
        pub hops_max: u16 = "8" in "1..=64", at start;
    }
}

choices! {
    /// Method of an HTTP request.
    pub enum Method {
        /// POST.
        Post = "POST",
        /// PUT.
        Put = "PUT",
        /// PATCH.
        Patch = "PATCH",
        /// GET, without a body.
        Get = "GET",
        /// DELETE, without a body.
        Delete = "DELETE",
    }
}

choices! {
    /// Bodies of HTTP requests.
    pub enum Body {
        /// A request for each record.
        Each = "each",
        /// A JSON array with the contents of the batch, which must be JSON.
        JsonArray = "json_array",
        /// The contents of the batch, each with a line feed after it.
        Lines = "lines",
    }
}

choices! {
    /// Rule for messages when the queue of an action is full.
    pub enum WhenFull {
        /// The oldest message is dropped, so that the newest ones arrive.
        DropOldest = "drop_oldest",
        /// The arriving message is dropped, so that accepted messages stay.
        DropNewest = "drop_newest",
        /// The arriving message is refused: its publisher gets 0x97 (Quota exceeded).
        Refuse = "refuse",
    }
}

choices! {
    /// Records whose order an action keeps.
    pub enum Order {
        /// Records of messages with the same topic.
        Topic = "topic",
        /// Records of messages of the same client.
        Client = "client",
        /// No order between connections.
        None = "none",
    }
}
