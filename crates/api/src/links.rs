//! Cluster links, as the API sees them: links to other clusters, unlike the links between the nodes of one cluster.

use auth::Authorship;
use serde::Serialize;
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::actions::{EntryRefused, EntrySource, WaitingMessages};
use crate::timestamp::Timestamp;

/// The cluster links of a node or its cluster.
pub trait Links: Send + Sync {
    /// Links in the order of their names, after this one. They have no status.
    fn links(&self, after: Option<&str>, limit: usize) -> Vec<ClusterLink>;

    /// One link, without its status.
    fn link(&self, name: &str) -> Option<ClusterLink>;

    /// Adds or replaces a link. Returns true when it is new. Waits for the configuration store.
    ///
    /// # Errors
    /// [`EntryRefused`]. Nothing has changed then.
    fn put_link(
        &self,
        name: &str,
        settings: &Map<String, Value>,
        by: &Authorship,
    ) -> Result<bool, EntryRefused>;

    /// Removes a link. With [`WaitingMessages::Delete`] its sessions end, those in which messages wait here for the
    /// other cluster and those of what this cluster takes. The link may be removed already, and its sessions still
    /// there.
    ///
    /// # Errors
    /// [`EntryRefused`]. There is neither the link nor a session of it: `NotFound`.
    fn remove_link(&self, name: &str, waiting: WaitingMessages) -> Result<(), EntryRefused>;

    /// State of the links that have an entry, as this node knows it: `taking` of what runs here, `giving` of sessions
    /// whose shards it leads, and the last client that this node refused. A link that this node knows nothing about is
    /// left out. It never waits: figures of sessions may be some seconds old.
    fn views(&self) -> Vec<LinkStatus>;
}

/// A node without cluster links.
impl Links for () {
    fn links(&self, _: Option<&str>, _: usize) -> Vec<ClusterLink> {
        Vec::new()
    }

    fn link(&self, _: &str) -> Option<ClusterLink> {
        None
    }

    fn put_link(&self, _: &str, _: &Map<String, Value>, _: &Authorship) -> Result<bool, EntryRefused> {
        Err(no_links())
    }

    fn remove_link(&self, _: &str, _: WaitingMessages) -> Result<(), EntryRefused> {
        Err(no_links())
    }

    fn views(&self) -> Vec<LinkStatus> {
        Vec::new()
    }
}

fn no_links() -> EntryRefused {
    EntryRefused::Unavailable("this node runs no cluster links".to_owned())
}

/// Link to another cluster.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ClusterLink {
    /// Name of the other cluster.
    pub name: String,
    pub enabled: bool,
    pub source: EntrySource,
    /// Name by which the other cluster knows this one.
    pub own_name: String,
    /// Addresses of the other cluster, separated by commas; empty when only the other cluster connects.
    pub address: String,
    /// Topic Filters that this cluster takes from the other one, by their names there; empty when it takes nothing.
    pub topics: Vec<String>,
    /// Topic Filters that the other cluster may take from this one; empty when it may take nothing.
    pub export: Vec<String>,
    /// Settings that differ from their defaults, with the keys of `[[cluster_link]]`. Secrets are names of files.
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub settings: Map<String, Value>,
    /// Name of the key that wrote it last; empty in open mode, and for an entry of the configuration file.
    pub author: String,
    /// Null for an entry of the configuration file, and for one whose record cannot be read.
    pub changed_at: Option<Timestamp>,
    /// Reason why it cannot be used, such as a secret that cannot be read; null when it can.
    pub fault: Option<String>,
    /// Messages that this cluster takes from the other one: an entry for each cluster of origin, from the node that
    /// runs it.
    pub taking: Vec<LinkTaking>,
    /// Messages that the other cluster takes from this one: an entry for each session that it has here, from the node
    /// that leads its shard.
    pub giving: Vec<LinkGiving>,
    /// The last client that was refused although it used the name of this link; null when there was none.
    pub refusal: Option<LinkRefusal>,
}

/// State of a link as one node knows it. See [`ClusterLink`] for the fields.
#[derive(Clone, Debug, Default)]
pub struct LinkStatus {
    /// Name of the link.
    pub name: String,
    pub taking: Vec<LinkTaking>,
    pub giving: Vec<LinkGiving>,
    pub refusal: Option<LinkRefusal>,
}

/// Messages of one cluster of origin that this cluster takes by a link. Counters are since the start of the node.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LinkTaking {
    /// Name of the cluster in which the messages were published. Another name than that of the link: transit.
    pub origin: String,
    /// Node that runs it.
    pub node: String,
    /// State in words, with the address or the reason.
    pub state: String,
    /// True while both clusters are connected.
    pub connected: bool,
    /// True when it has made no progress for more than 30 s.
    pub failing: bool,
    /// Seconds since it is connected; null while it is not.
    pub connected_s: Option<u64>,
    /// Address of the other cluster that is in use or was tried last; null before the first attempt.
    pub address: Option<String>,
    /// Client Identifier of the session at this cluster. It has messages that are not acknowledged yet.
    pub session: String,
    /// Topic Filters that this cluster wants from the other one, at most `filters_max` of the link.
    pub filters_wanted: u64,
    /// Topic Filters that the session at the other cluster has, as far as it has confirmed them.
    pub filters_subscribed: u64,
    /// Subscriptions that the other cluster refused, because its `export` does not include them.
    pub filters_refused: u64,
    /// Number of `filters_wanted` that stand for several Topic Filters of clients, because these have more than
    /// `filters_max`. Messages that nobody wants come by them, too.
    pub filters_broader: u64,
    /// Examples of these broader Topic Filters.
    pub broader: Vec<String>,
    /// Times that the list of subscriptions of the other cluster was not received. Filters that nobody wants any more
    /// may remain subscribed.
    pub stale_filters: u64,
    /// Messages that were passed to this cluster.
    pub messages: u64,
    /// Bytes of their packets.
    pub bytes: u64,
    /// Messages that are not complete.
    pub in_flight: u64,
    /// Messages that this cluster refused for good.
    pub refused: u64,
    /// Times that the link connected again because this cluster refused a message for now. The message comes again.
    pub postponed: u64,
    /// Messages that were not passed to this cluster, by cause.
    pub dropped: TakingDrops,
    /// Connections after the first one.
    pub reconnects: u64,
    /// Attempts to connect that failed.
    pub failed_attempts: u64,
    /// Times that the other cluster had lost the session of the link. Messages may be lost then.
    pub remote_sessions_lost: u64,
    /// Times that the other cluster continued from a backup. Messages may be missing or come again then.
    pub restores: u64,
    /// Cause of the last failure; null when there was none.
    pub last_error: Option<String>,
}

/// Messages of the other cluster that were not passed to this one, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct TakingDrops {
    /// The packet exceeds `packet_size_max`.
    pub too_large: u64,
    /// A QoS 0 message found no room.
    pub no_room: u64,
    /// The message has passed too many bridges and links.
    pub too_many_hops: u64,
    /// The message has been at this cluster before.
    pub looped: u64,
    /// No client has subscribed to it. QoS 1 and 2 only: a broader filter brought it, or the subscription had just
    /// ended. Or the topic is none of `topics`, or the message is not of this origin.
    pub unwanted: u64,
    /// A QoS 0 message arrived before the link was ready.
    pub not_ready: u64,
}

impl TakingDrops {
    /// Causes with their figures, as metrics name them.
    #[must_use]
    pub fn by_cause(&self) -> [(&'static str, u64); 6] {
        let Self { too_large, no_room, too_many_hops, looped, unwanted, not_ready } = *self;
        [
            ("too_large", too_large),
            ("no_room", no_room),
            ("too_many_hops", too_many_hops),
            ("looped", looped),
            ("unwanted", unwanted),
            ("not_ready", not_ready),
        ]
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_cause().iter().map(|(_, count)| count).sum()
    }
}

/// Session of another cluster, in which messages of one cluster of origin wait for it.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LinkGiving {
    /// Name of the cluster in which the messages were published. Another name than that of this cluster: transit.
    pub origin: String,
    /// Node that leads the shard of the session.
    pub node: String,
    /// Client Identifier of the session.
    pub session: String,
    /// True while the other cluster is connected.
    pub connected: bool,
    /// Node that has the connection; null while there is none.
    pub connection_node: Option<String>,
    /// Address of the other cluster; null while it is not connected, and while this node does not know it.
    pub address: Option<String>,
    /// Topic Filters that the other cluster has subscribed to.
    pub filters: u64,
    /// Messages that wait for the other cluster.
    pub queued_messages: u64,
    pub queued_bytes: u64,
    /// Seconds that the oldest message has waited; null when none waits.
    pub oldest_s: Option<u64>,
    /// Messages that were sent and are not acknowledged.
    pub in_flight: u64,
    /// Messages that were dropped because the queue was full, or that expired, while this node led the shard. It counts
    /// since the start of the node, and does not begin again with a new leader.
    pub dropped: u64,
}

/// A client that was refused although it used the name of a link.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LinkRefusal {
    /// Node that refused it.
    pub node: String,
    pub at: Timestamp,
    /// Address of the client; null for a Unix socket.
    pub address: Option<String>,
    /// Reason and remedy, such as a clock that differs too much.
    pub why: String,
    /// Clients that this node has refused since it started.
    pub count: u64,
}
