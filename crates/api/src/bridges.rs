//! Bridges to other brokers, as the API sees them.

use auth::Authorship;
use serde::Serialize;
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::actions::{EntryRefused, EntrySource, WaitingMessages};
use crate::timestamp::Timestamp;

/// The bridges of a node or its cluster.
pub trait Bridges: Send + Sync {
    /// Bridges whose sessions are in shards that this node leads. In a cluster these are the ones that run here.
    fn views(&self) -> Vec<BridgeView>;

    /// One bridge, as it is configured.
    fn bridge(&self, name: &str) -> Option<BridgeEntry>;

    /// Adds or replaces a bridge. Returns true when it is new. Waits for the configuration store.
    ///
    /// # Errors
    /// [`EntryRefused`]. Nothing has changed then.
    fn put_bridge(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused>;

    /// Removes a bridge. With [`WaitingMessages::Delete`] its session ends, in which messages wait for the other
    /// broker. The bridge may be removed already, and its session still there.
    ///
    /// # Errors
    /// [`EntryRefused`]. There is neither the bridge nor its session: `NotFound`.
    fn remove_bridge(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused>;
}

/// A node without bridges.
impl Bridges for () {
    fn views(&self) -> Vec<BridgeView> {
        Vec::new()
    }

    fn bridge(&self, _: &str) -> Option<BridgeEntry> {
        None
    }

    fn put_bridge(&self, _: &str, _: &Map<String, Value>, _: &Authorship) -> Result<bool, EntryRefused> {
        Err(no_bridges())
    }

    fn remove_bridge(&self, _: &str, _: WaitingMessages) -> Result<(), EntryRefused> {
        Err(no_bridges())
    }
}

fn no_bridges() -> EntryRefused {
    EntryRefused::Unavailable("this node runs no bridges".to_owned())
}

/// A bridge to another broker, as it is configured.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct BridgeEntry {
    pub name: String,
    pub enabled: bool,
    pub source: EntrySource,
    /// Settings that differ from their defaults, with the keys of `[[bridge]]`. Secrets are names of files.
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    /// Name of the key that wrote it last; empty in open mode, and for an entry of the configuration file.
    pub author: String,
    /// Null for an entry of the configuration file, and for one whose record cannot be read.
    pub changed_at: Option<Timestamp>,
    /// Reason why this node cannot run it, such as an address of the node itself; null when it can.
    pub fault: Option<String>,
}

/// A bridge to another broker. Counters are since the start of the node.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct BridgeView {
    pub name: String,
    /// Node that runs it.
    pub node: String,
    /// False for a session whose bridge is not configured any more. It keeps what its topics get.
    pub configured: bool,
    /// Null for a session whose bridge is not configured any more.
    pub source: Option<EntrySource>,
    pub enabled: bool,
    /// True while both brokers are connected.
    pub connected: bool,
    /// True when it has made no progress for more than 30 s: it has no connection that it needs, or the other broker
    /// closes at a message each time, or acknowledges nothing. Also true for a session without a bridge.
    pub failing: bool,
    /// State in words, with the address or the reason.
    pub state: String,
    /// Seconds since it is connected; null while it is not.
    pub connected_s: Option<u64>,
    /// Cause of the last failure; null when there was none.
    pub last_error: Option<String>,
    /// Client Identifier of the session in which messages wait for the other broker.
    pub session: String,
    /// Messages that wait in the session.
    pub queued_messages: u64,
    pub queued_bytes: u64,
    /// Seconds that the oldest message has waited; null while none waits.
    pub oldest_s: Option<u64>,
    /// Messages to the other broker that are not complete.
    pub in_flight_out: u64,
    /// Messages from the other broker that are not complete.
    pub in_flight_in: u64,
    /// Messages that were sent to the other broker.
    pub messages_out: u64,
    pub bytes_out: u64,
    /// Messages of the other broker that were passed to this one.
    pub messages_in: u64,
    pub bytes_in: u64,
    /// Messages that the other broker refused for good, and messages of it that this one refused for good.
    pub refused: u64,
    /// Times that the bridge connected again because a broker refused a message for now. The message comes again.
    pub postponed: u64,
    /// Messages that were not passed on, or that the queue has dropped.
    pub dropped: u64,
    /// The same by cause.
    pub dropped_by_cause: BridgeDrops,
    /// Connections after the first one.
    pub reconnects: u64,
    /// Attempts to connect that failed.
    pub failed_attempts: u64,
    /// Times that the other broker had lost the session of the bridge. Messages may have come twice then.
    pub remote_sessions_lost: u64,
}

/// Messages that a bridge did not pass on, or that its queue has dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct BridgeDrops {
    /// The queue for the other broker was full, or a message in it was too old.
    pub queue: u64,
    /// The packet is larger than one of the brokers or the bridge accepts.
    pub too_large: u64,
    /// A message of QoS 0 came faster than the connection takes it.
    pub no_room: u64,
    /// A message of QoS 0 came while the bridge was registering its subscriptions.
    pub not_ready: u64,
    /// The message has passed too many bridges.
    pub too_many_hops: u64,
    /// The other broker closed the connection at the message each time (`closes_max`).
    pub closes: u64,
    /// The message was at the other broker before. Nothing is lost.
    pub looped: u64,
    /// No topic of the bridge matches, after a change of its topics.
    pub unmapped: u64,
}

impl BridgeDrops {
    /// Causes with their figures, as metrics name them.
    #[must_use]
    pub fn by_cause(&self) -> [(&'static str, u64); 8] {
        let Self { queue, too_large, no_room, not_ready, too_many_hops, closes, looped, unmapped } = *self;
        [
            ("queue", queue),
            ("too_large", too_large),
            ("no_room", no_room),
            ("not_ready", not_ready),
            ("too_many_hops", too_many_hops),
            ("closes", closes),
            ("looped", looped),
            ("unmapped", unmapped),
        ]
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }
}
