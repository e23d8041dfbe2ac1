//! Links as operators see them.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use bridges::RunnerView;

/// State of a link, as far as this node knows it.
#[derive(Clone, Debug, Default)]
pub struct LinkView {
    /// Name of the link.
    pub name: String,
    /// Messages that this cluster takes, if this node runs the link.
    pub taking: Vec<Taking>,
    /// Messages that the other cluster takes, if this node leads the shard of its session.
    pub giving: Vec<Giving>,
    pub refusal: Option<Refusal>,
}

/// Messages of one cluster of origin that this cluster takes.
#[derive(Clone, Debug, Default)]
pub struct Taking {
    pub origin: String,
    /// Client Identifier of the session here.
    pub session: String,
    pub relay: RunnerView,
    /// Number of filters that the link takes from the other cluster.
    pub filters_wanted: u64,
    /// Number of these that stand for several filters of clients, because there are more than the maximum.
    pub filters_broader: u64,
    /// Examples of the broader filters.
    pub broader: Vec<String>,
}

/// Session of another cluster, with what waits for it.
#[derive(Clone, Debug, Default)]
pub struct Giving {
    /// Cluster whose messages it gets.
    pub origin: String,
    /// Client Identifier of the session.
    pub session: String,
    pub is_connected: bool,
    /// Number of the node that has the connection, if it is another one.
    pub elsewhere: Option<u64>,
    pub address: Option<SocketAddr>,
    pub filters: u64,
    pub queued_messages: u64,
    pub queued_bytes: u64,
    /// Seconds that the oldest message has waited.
    pub oldest_s: Option<u64>,
    pub in_flight: u64,
    /// Messages that were dropped or have expired while this node led the shard, since it started.
    pub dropped: u64,
}

/// The last client that was refused although it used the name of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub at: SystemTime,
    pub address: Option<IpAddr>,
    /// Reason and remedy.
    pub why: String,
    /// Clients that were refused since the start.
    pub count: u64,
}
