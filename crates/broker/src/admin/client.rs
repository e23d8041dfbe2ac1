//! Clients, sessions and subscriptions as operators see them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mqtt::{QoS, RetainHandling, Subscription, TopicName, Version};

use super::{Cursor, FilterRoutes, RouteInfo};
use crate::groups::Member;
use crate::ids::{ConnectionId, SessionId, ShardId, Time};
use crate::node::Node;
use crate::route::{Options, RouteKind};
use crate::store::Enqueue;

/// A connected client, or a durable session whose client is not connected.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    pub client_id: Arc<str>,
    pub connected: bool,
    /// Address of the client. `None` for a Unix socket and for a client that is not connected.
    pub address: Option<SocketAddr>,
    pub username: Option<Box<str>>,
    pub version: Option<Version>,
    pub connected_at: Option<Time>,
    /// Keep Alive in seconds; 0 means none.
    pub keep_alive: u16,
    /// True if the session outlives its connection.
    pub durable: bool,
    pub subscriptions: usize,
    /// Number of QoS 1 and 2 deliveries that the client has not acknowledged.
    pub inflight: usize,
    pub queued_messages: usize,
    pub queued_bytes: u64,
    /// Number of PUBLISH packets received from the client on this connection; wraps at 2^32.
    pub messages_received: u32,
    /// Number of PUBLISH packets sent to the client on this connection; wraps at 2^32.
    pub messages_sent: u32,
    /// Session whose figures are not added yet.
    pub(crate) session: Option<SessionId>,
}

/// Conditions on the clients of a listing. The default selects all clients.
#[derive(Clone, Debug, Default)]
pub struct ClientFilter {
    /// Text that the Client Identifier contains.
    pub contains: Option<String>,
    pub username: Option<String>,
    /// Network address and prefix length in bits. IPv4 addresses are never written as IPv6.
    pub network: Option<(IpAddr, u8)>,
    pub connected: Option<bool>,
    pub version: Option<Version>,
    pub min_queued: usize,
    pub min_inflight: usize,
}

#[derive(Debug)]
pub struct ClientPage {
    pub items: Vec<ClientInfo>,
    pub next: Option<Cursor>,
}

/// Everything known about one client.
#[derive(Clone, Debug)]
pub struct ClientDetail {
    pub info: ClientInfo,
    pub connection: Option<ConnectionDetail>,
    pub session: Option<SessionDetail>,
    /// The connection, if it is on another node of the cluster. That node has its details.
    pub elsewhere: Option<RemoteConnection>,
}

/// Connection on another node, as the leader of the client's shard knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteConnection {
    /// Number of the node.
    pub node: u64,
    /// Id on that node.
    pub id: ConnectionId,
}

#[derive(Clone, Debug)]
pub struct ConnectionDetail {
    pub id: ConnectionId,
    /// Configured name of the listener that accepted the connection; `None` for in-memory transports.
    pub listener: Option<Box<str>>,
    /// Maximum number of unacknowledged deliveries that the client accepts.
    pub receive_maximum: u16,
    /// Maximum size of a packet that the client accepts, in bytes. `None` means no limit.
    pub packet_size_max: Option<u32>,
    pub topic_alias_max: u16,
    /// Time since the client's last packet.
    pub silent: Duration,
    /// Number of bytes that the operating system has not accepted yet.
    pub unsent_bytes: usize,
    /// Number of bytes that the node holds for the client's session: Topic Filters, Will and Client Identifier.
    pub session_bytes: usize,
    /// Usage of the client's user. `mountpoint_usage` is that of all clients behind its mountpoint.
    pub user_usage: Option<ResourceUsage>,
    pub mountpoint_usage: Option<ResourceUsage>,
    /// True while a PUBLISH of the client waits.
    pub publisher_blocked: bool,
    pub has_will: bool,
    /// Time that a delivery has waited for its acknowledgement.
    pub oldest_unacknowledged: Option<Duration>,
    /// Attributes that authentication has found. A name may occur several times.
    pub attributes: Vec<(Box<str>, Box<str>)>,
}

/// Usage of the node's resources by a user or a mountpoint. Quotas bound these figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    pub connections: u64,
    /// Number of sessions that outlive their connection.
    pub sessions: u64,
    /// Bytes of Topic Filters, Wills and Client Identifiers of connected clients.
    pub session_bytes: u64,
    /// Bytes of messages that wait for connected clients.
    pub queued_bytes: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct SessionDetail {
    pub shard: ShardId,
    /// Number of times that a connection has claimed the session.
    pub epoch: u32,
    /// Number of QoS 2 PUBLISH packets from the client that it has not released.
    pub inbound: usize,
    /// Session Expiry Interval; `None` means that the session never expires.
    pub expiry: Option<Duration>,
    /// Time at which the session ends if the client does not reconnect.
    pub expires_at: Option<Time>,
    pub inflight: usize,
    pub queued_messages: usize,
    pub queued_bytes: u64,
    /// Number of messages that were dropped or have expired since this node leads the shard.
    pub dropped: u64,
    pub oldest_queued: Option<Duration>,
    /// Number of messages whose publishers wait for a queue slot.
    pub waiting_publishers: usize,
    pub will_due_at: Option<Time>,
}

#[derive(Clone, Debug)]
pub struct SubscriptionInfo {
    /// Topic Filter as the client wrote it, with `$share/` if the subscription is shared.
    pub filter: Box<str>,
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
    pub subscription_id: Option<u32>,
    /// Client Identifier; empty in a listing of one client.
    pub client_id: Arc<str>,
    pub connected: bool,
}

impl SubscriptionInfo {
    pub(crate) fn new(
        client_id: &Arc<str>,
        connected: bool,
        filter: &str,
        options: Options,
        id: u32,
    ) -> Self {
        Self {
            filter: filter.into(),
            qos: options.qos(),
            no_local: options.no_local(),
            retain_as_published: options.retain_as_published(),
            retain_handling: options.retain_handling(),
            subscription_id: (id != 0).then_some(id),
            client_id: client_id.clone(),
            connected,
        }
    }
}

/// Conditions on the subscriptions of a listing. The default selects all subscriptions.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionFilter {
    /// Exact Topic Filter, without `$share/`.
    pub filter: Option<String>,
    /// Topic Name that the Topic Filter matches.
    pub matching: Option<String>,
    pub share: Option<String>,
}

impl SubscriptionFilter {
    pub(crate) fn wants(&self, text: &str) -> bool {
        let Ok(subscription) = Subscription::parse(text) else { return false };
        let matching =
            |topic: &String| TopicName::parse(topic).is_ok_and(|topic| subscription.filter.matches(topic));
        self.filter.as_ref().is_none_or(|filter| *filter == subscription.filter.as_str())
            && self.share.as_ref().is_none_or(|share| subscription.share == Some(share))
            && self.matching.as_ref().is_none_or(matching)
    }
}

#[derive(Debug)]
pub struct SubscriptionPage {
    pub items: Vec<SubscriptionInfo>,
    pub next: Option<Cursor>,
}

/// A message that waits for a client or for the client's acknowledgement.
#[derive(Clone, Debug)]
pub struct Queued {
    pub state: QueueState,
    pub topic: Box<str>,
    pub qos: QoS,
    pub retain: bool,
    pub payload_bytes: usize,
    pub age: Duration,
    pub expires_in: Option<Duration>,
    /// First bytes of the payload.
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    Inflight,
    Waiting,
    /// The queue is full; the publisher waits.
    Overflow,
}

/// One page of a queue. Messages in flight are included only if they may have to be sent again: those of durable
/// sessions and of shared subscriptions.
#[derive(Debug)]
pub struct QueuePage {
    pub items: Vec<Queued>,
    pub truncated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kicked {
    pub connection_closed: bool,
    pub session_ended: bool,
    /// The connection, if it is on another node. It was not closed.
    pub elsewhere: Option<RemoteConnection>,
}

/// Location of a client as the worker of its shard knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Another node of the cluster leads the shard, or none does.
    NotLed,
    /// This node knows neither the client nor a session of it. In a cluster with cores of an earlier version, a new
    /// leader of the shard does not know connections of ephemeral sessions either.
    Unknown,
    /// The client has a session. Its connection, if there is one, was not reported to this leader of the shard yet.
    Unreported,
    /// The client has a connection of this node, or a session without a connection.
    Here,
    /// The client has a connection of another node.
    Elsewhere(RemoteConnection),
}

/// Receivers of a message on a topic.
#[derive(Debug, Default)]
pub struct Matches {
    pub receivers: Vec<Receiver>,
    /// Number of all receivers, including those beyond the limit of `receivers`.
    pub total: usize,
}

#[derive(Clone, Debug)]
pub struct Receiver {
    pub client_id: Arc<str>,
    pub connected: bool,
    pub durable: bool,
    pub filters: Vec<Box<str>>,
    /// Highest QoS that a matching subscription grants.
    pub qos: QoS,
    /// Shared group, if only one of its members gets the message.
    pub share: Option<Box<str>>,
    /// Member of a shared group whose Client Identifier is not known yet.
    pub(crate) unnamed: Option<Member>,
}

impl ClientFilter {
    /// Checks the conditions that a worker can check. [`Self::wants_queue`] checks the others when the figures of the
    /// session are known.
    pub(crate) fn wants(
        &self,
        client_id: &str,
        who: Option<(Option<&str>, Option<IpAddr>, Version)>,
    ) -> bool {
        let contains = |text: &String| client_id.contains(text.as_str());
        if !self.contains.as_ref().is_none_or(contains)
            || self.connected.is_some_and(|wanted| wanted != who.is_some())
        {
            return false;
        }
        let Some((username, address, version)) = who else {
            return self.username.is_none() && self.network.is_none() && self.version.is_none();
        };
        self.username.as_deref().is_none_or(|wanted| username == Some(wanted))
            && self.version.is_none_or(|wanted| version == wanted)
            && self
                .network
                .is_none_or(|(network, bits)| address.is_some_and(|ip| is_within(ip, network, bits)))
    }

    pub(crate) fn wants_queue(&self, info: &ClientInfo) -> bool {
        info.queued_messages >= self.min_queued && info.inflight >= self.min_inflight
    }
}

/// Returns whether `address` is in `network` with a prefix of `bits` bits. IPv4 and IPv6 addresses never match each
/// other.
pub fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32 - u32::from(bits.min(32));
            u32::from(address).checked_shr(shift) == u32::from(network).checked_shr(shift)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128 - u32::from(bits.min(128));
            u128::from(address).checked_shr(shift) == u128::from(network).checked_shr(shift)
        }
        _ => false,
    }
}

/// Returns an entry of a queue, with up to `payload_max` bytes of its payload.
pub(crate) fn queued(now: Time, state: QueueState, entry: &Enqueue, payload_max: usize) -> Queued {
    let view = entry.message.view();
    Queued {
        state,
        topic: view.topic.into(),
        qos: entry.qos,
        retain: entry.retain,
        payload_bytes: view.payload.len(),
        age: now.since(view.received),
        expires_in: (view.expires != Time::NEVER).then(|| view.expires.since(now)),
        payload: view.payload[..view.payload.len().min(payload_max)].to_vec(),
    }
}

/// Returns up to `limit` filters that begin with `prefix`, and whether there are more.
pub(super) fn routes(node: &Arc<Node>, prefix: &str, limit: usize) -> (Vec<FilterRoutes>, bool) {
    let reader = node.routes.reader();
    let mut found: Vec<FilterRoutes> = Vec::new();
    let (mut more, mut room) = (false, limit);
    node.routes.for_each(&reader, |filter, route| {
        if !filter.starts_with(prefix) {
            return;
        }
        let (kind, worker, shard) = match route.kind {
            RouteKind::Connection => ("client", Some(route.index), None),
            RouteKind::ConnectionQos0 => ("session_qos0", Some(route.index), None),
            RouteKind::ConnectionLink => ("link_qos0", Some(route.index), None),
            RouteKind::Shard if route.slot > 0 => ("shard_of_links", None, Some(route.index)),
            RouteKind::Shard => ("shard", None, Some(route.index)),
            RouteKind::ShardGroups => ("shard_groups", None, Some(route.index)),
            RouteKind::Node => ("node", None, Some(route.index)),
            RouteKind::Origin | RouteKind::Session | RouteKind::Group => return,
        };
        let info = RouteInfo { kind, worker, shard };
        // The index yields all destinations of a filter one after the other.
        let known = found.last_mut().filter(|last| *last.filter == *filter);
        match known {
            Some(known) if known.destinations.len() < DESTINATIONS_MAX => known.destinations.push(info),
            Some(_) => {}
            None if room > 0 => {
                room -= 1;
                found.push(FilterRoutes { filter: filter.into(), destinations: vec![info] });
            }
            None => more = true,
        }
    });
    (found, more)
}

/// Maximum number of destinations that are listed for one filter.
const DESTINATIONS_MAX: usize = 1000;

/// Figures that a durable session adds to a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionFigures {
    pub inflight: usize,
    pub queued_messages: usize,
    pub queued_bytes: u64,
}

impl ClientInfo {
    /// Returns a client that is connected to another node and has no durable session.
    pub(crate) fn elsewhere(client_id: &str) -> Self {
        Self {
            client_id: client_id.into(),
            connected: true,
            address: None,
            username: None,
            version: None,
            connected_at: None,
            keep_alive: 0,
            durable: false,
            subscriptions: 0,
            inflight: 0,
            queued_messages: 0,
            queued_bytes: 0,
            messages_received: 0,
            messages_sent: 0,
            session: None,
        }
    }

    pub(crate) fn add(&mut self, figures: SessionFigures) {
        self.inflight += figures.inflight;
        self.queued_messages += figures.queued_messages;
        self.queued_bytes += figures.queued_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses() {
        let within = |address: &str, network: &str, bits| {
            is_within(address.parse().expect("an address"), network.parse().expect("an address"), bits)
        };
        assert!(within("10.1.2.3", "10.1.0.0", 16));
        assert!(!within("10.2.2.3", "10.1.0.0", 16));
        assert!(within("10.2.2.3", "0.0.0.0", 0));
        assert!(within("10.1.2.3", "10.1.2.3", 32));
        assert!(!within("10.1.2.4", "10.1.2.3", 32));
        assert!(within("::ffff:10.1.2.3", "10.1.2.0", 24));
        assert!(within("2001:db8::1", "2001:db8::", 32));
        assert!(!within("2001:db9::1", "2001:db8::", 32));
        assert!(within("2001:db9::1", "::", 0));
        assert!(!within("10.1.2.3", "::", 0));
    }
}
