//! Bridges to other brokers, as the API sees them.

use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

/// The bridges of a node.
pub trait Bridges: Send + Sync {
    /// Bridges whose sessions are in shards that this node leads. In a cluster these are the ones that run here.
    fn views(&self) -> Vec<BridgeView>;
}

/// A node without bridges.
impl Bridges for () {
    fn views(&self) -> Vec<BridgeView> {
        Vec::new()
    }
}

/// A bridge to another broker. Counters are since the start of the node.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct BridgeView {
    pub name: String,
    /// Node that runs it.
    pub node: String,
    pub enabled: bool,
    /// True while both brokers are connected.
    pub connected: bool,
    /// True when it has been without a wanted connection to the other broker for more than 30 s.
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
    /// Messages that the other broker refused, and messages of it that this one refused.
    pub refused: u64,
    /// Messages that were not passed on: too large, after too many bridges, in a loop, or of QoS 0 without room.
    pub dropped: u64,
    /// Connections after the first one.
    pub reconnects: u64,
    /// Attempts to connect that failed.
    pub failed_attempts: u64,
    /// Times that the other broker had lost the session of the bridge. Messages may have come twice then.
    pub remote_sessions_lost: u64,
}
