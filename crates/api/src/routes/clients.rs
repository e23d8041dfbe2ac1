//! `/clients`: connected clients and stored sessions, and the end of connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use auth::Net;
use axum::Json;
use base64ct::{Base64, Encoding as _};
use broker::admin::{ClientDetail, ClientFilter, ClientInfo, QueueState, RemoteConnection, Whereabouts};
use broker::{ConnectionId, ShardId, WorkerId};
use mqtt::Version;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::listing::{self, Budget};
use crate::ask::ask;
use crate::extract::{Path, Query};
use crate::paging::{self, ListingCursor, Page};
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/clients": get list;
    "/api/v1/clients/{client_id}": get get, delete kick;
    "/api/v1/clients/{client_id}/queue": get queue;
}

const LISTING: &str = "clients";

/// A connected client, or a durable session whose client is not connected.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ClientItem {
    pub client_id: String,
    pub connected: bool,
    /// Null for Unix sockets, and while not connected.
    #[cfg_attr(feature = "document", schema(example = "127.0.0.1:40000"))]
    pub address: Option<String>,
    pub username: Option<String>,
    /// `3.1`, `3.1.1` or `5.0`; null while not connected.
    #[cfg_attr(feature = "document", schema(example = "5.0"))]
    pub version: Option<&'static str>,
    pub connected_at: Option<Timestamp>,
    /// Keep Alive in seconds; 0 disables it.
    pub keep_alive_s: u16,
    /// True when the session outlives its connection.
    pub durable: bool,
    pub subscriptions: usize,
    /// Deliveries at QoS 1 and 2 that it has not acknowledged.
    pub inflight: usize,
    pub queued_messages: usize,
    pub queued_bytes: u64,
    /// Messages from the client on this connection.
    pub messages_received: u32,
    /// Messages to the client on this connection.
    pub messages_sent: u32,
    /// Node that it is connected to, or that keeps its session.
    pub node: String,
}

/// All details of one client.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Client {
    #[serde(flatten)]
    pub item: ClientItem,
    /// Null while not connected.
    pub connection: Option<Connection>,
    /// Null when the session ends with the connection.
    pub session: Option<Session>,
    /// Connection on another node, as the leader of the client's shard knows it; null without one.
    pub owner: Option<Owner>,
}

/// Location of a client's connection in a cluster whose nodes share sessions (`cluster.replicas`).
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Owner {
    pub node: String,
    /// Connection on that node, for requests between nodes.
    #[cfg_attr(feature = "document", schema(example = "0.17.3"))]
    pub connection: String,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Connection {
    /// Reactor of the connection.
    pub worker: u16,
    /// Name of the listener that accepted it.
    pub listener: Option<String>,
    /// Maximum number of deliveries in flight.
    pub receive_maximum: u16,
    /// Maximum Packet Size in bytes; null is no limit.
    pub packet_size_max: Option<u32>,
    pub topic_alias_max: u16,
    /// Time since its last packet.
    pub last_packet_ms: u64,
    /// Bytes that the system has not accepted yet.
    pub unsent_bytes: usize,
    /// Bytes that the node holds for its session (`quota.client_bytes_max`): Topic Filters, Will and Client Identifier.
    pub session_bytes: usize,
    /// Usage of all clients of its user together; null without a user name.
    pub user_usage: Option<ResourceUsage>,
    /// Usage of all clients behind its mountpoint together; null without one.
    pub mountpoint_usage: Option<ResourceUsage>,
    /// True while one of its PUBLISH packets waits for room in a queue.
    pub publisher_blocked: bool,
    pub has_will: bool,
    /// Time that the oldest delivery has waited for its acknowledgement.
    pub oldest_unacknowledged_ms: Option<u64>,
    /// Attributes that authentication has found, with their values.
    pub client_attrs: BTreeMap<String, Vec<String>>,
}

/// Usage of the node by a user or a mountpoint, which its quota bounds (`quota`).
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ResourceUsage {
    pub connections: u64,
    /// Durable sessions, connected or not.
    pub sessions: u64,
    /// Bytes of Topic Filters, Wills and Client Identifiers of connected clients.
    pub session_bytes: u64,
    /// Bytes of messages that wait for connected clients.
    pub queued_bytes: u64,
    /// Retained messages that were published on this node since its start and not replaced by others since.
    pub retained_messages: u64,
    pub retained_bytes: u64,
}

impl From<broker::admin::ResourceUsage> for ResourceUsage {
    fn from(holdings: broker::admin::ResourceUsage) -> Self {
        let broker::admin::ResourceUsage {
            connections,
            sessions,
            session_bytes,
            queued_bytes,
            retained_messages,
            retained_bytes,
        } = holdings;
        Self { connections, sessions, session_bytes, queued_bytes, retained_messages, retained_bytes }
    }
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Session {
    /// Shard that the Client Identifier belongs to.
    pub shard: u16,
    /// Core that leads the shard, which keeps the session; null while none is known.
    pub leader: Option<String>,
    /// Nodes that have a replica of the session.
    pub replicas: Vec<String>,
    /// Number of times that a connection has claimed the session.
    pub epoch: u32,
    /// Session Expiry Interval; null is never.
    pub expiry_s: Option<u64>,
    /// End of the session unless the client returns; null while it is connected.
    pub expires_at: Option<Timestamp>,
    pub inflight: usize,
    /// Messages of QoS 2 from the client that it has not released (PUBREL).
    pub inbound: usize,
    pub queued_messages: usize,
    pub queued_bytes: u64,
    pub oldest_queued_age_s: Option<u64>,
    /// Messages whose publishers wait for a queue slot.
    pub waiting_publishers: usize,
    pub will_due_at: Option<Timestamp>,
}

/// Conditions of a list of clients. A client must meet all of them.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
pub struct ClientsQuery {
    /// A part of the Client Identifier.
    search: Option<String>,
    /// Exactly this User Name. Only connected clients have one.
    username: Option<String>,
    /// An address or a network, such as `10.0.0.0/8`. Only connected clients have one.
    address: Option<String>,
    connected: Option<bool>,
    /// `3.1`, `3.1.1` or `5.0`. Only connected clients have one.
    version: Option<String>,
    /// Minimum number of waiting messages.
    min_queued: Option<usize>,
    /// Minimum number of unacknowledged deliveries.
    min_inflight: Option<usize>,
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

impl ClientsQuery {
    fn filter(&self) -> Result<ClientFilter, Problem> {
        Ok(ClientFilter {
            contains: self.search.clone().filter(|text| !text.is_empty()),
            username: self.username.clone(),
            network: self.address.as_deref().map(|text| network("address", text)).transpose()?,
            connected: self.connected,
            version: self.version.as_deref().map(version).transpose()?,
            min_queued: self.min_queued.unwrap_or(0),
            min_inflight: self.min_inflight.unwrap_or(0),
        })
    }
}

fn version(text: &str) -> Result<Version, Problem> {
    let known = VERSIONS.iter().find(|(_, name)| *name == text);
    known
        .map(|(version, _)| *version)
        .ok_or_else(|| Problem::bad_request(format!("version: expected 3.1, 3.1.1 or 5.0, found `{text}`")))
}

const VERSIONS: [(Version, &str); 3] =
    [(Version::V3_1, "3.1"), (Version::V3_1_1, "3.1.1"), (Version::V5, "5.0")];

fn version_name(version: Version) -> &'static str {
    VERSIONS.iter().find(|(known, _)| *known == version).map_or("", |(_, name)| name)
}

/// Parses an address or a network into the form that the broker uses.
pub(super) fn network(name: &str, text: &str) -> Result<(IpAddr, u8), Problem> {
    let net = Net::parse(text).map_err(|error| Problem::bad_request(format!("{name}: {error}")))?;
    Ok((net.address(), net.prefix_len()))
}

/// Lists connected clients, then durable sessions whose clients are not connected.
///
/// A client that connects or disconnects meanwhile may be missing or appear twice. A client that stays appears once.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/clients", tag = "clients", operation_id = "list_clients", security(("token" = ["viewer"])),
    params(ClientsQuery),
    responses((status = 200, body = Page<ClientItem>)),
))]
async fn list(state: State, Query(query): Query<ClientsQuery>) -> Result<Json<Page<ClientItem>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let filter = Arc::new(query.filter()?);
    let admin = &state.admin;
    let begin = listing::position::<ListingCursor>(admin, LISTING, query.cursor.as_deref())?;
    let _turn = listing::turn().await?;
    let (mut items, mut next, mut budget) =
        (Vec::new(), Some(begin.unwrap_or_default().into()), Budget::begin());
    while let Some(from) = next {
        let left = limit - items.len();
        let page = ask(|reply| admin.clients(from, left, filter.clone(), reply)).await?;
        items.extend(page.items.into_iter().map(|info| ClientItem::new(&state, info)));
        next = page.next;
        if items.len() >= limit || !budget.step() {
            break;
        }
    }
    let next = next.map(|next| listing::next(admin, LISTING, ListingCursor::from(next)));
    Ok(Json(Page::new(items, next)))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct ClientQuery {
    /// Connection of this node to return, as in `owner`, or `any` for one of this client. For requests between nodes.
    connection: Option<String>,
}

/// Parses [`Owner::connection`].
fn connection_id(text: &str) -> Result<ConnectionId, Problem> {
    let mut parts = text.splitn(3, '.');
    let mut next = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let mut id = || {
        let worker = WorkerId(u16::try_from(next()?).ok()?);
        Some(ConnectionId { worker, slot: next()?, generation: next()? })
    };
    id().ok_or_else(|| Problem::bad_request("connection: expected three numbers, such as 0.17.3"))
}

/// Returns one client by its Client Identifier (percent-encoded, including `/`).
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/clients/{client_id}", tag = "clients", operation_id = "get_client", security(("token" = ["viewer"])),
    params(("client_id" = String, Path), ClientQuery),
    responses((status = 200, body = Client)),
))]
async fn get(
    state: State,
    Path(client_id): Path<String>,
    Query(query): Query<ClientQuery>,
) -> Result<Json<Client>, Problem> {
    let detail = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| state.admin.client_connection(id, reply)).await?,
        None => ask(|reply| state.admin.client(&client_id, reply)).await?,
    };
    match detail {
        Some(detail) => Ok(Json(Client::new(&state, *detail))),
        None => Err(absent(&state, &client_id).await),
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct KickQuery {
    /// True to end the session too, with its subscriptions and waiting messages.
    #[serde(default)]
    session: bool,
    /// Connection of this node to close, as in `owner` of a client, or `any` for one of this client. For requests
    /// between nodes.
    connection: Option<String>,
}

/// Result of a kick.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Kicked {
    connection_closed: bool,
    session_ended: bool,
    /// Nodes that the client was on.
    nodes: Vec<String>,
    /// Connection on another node, if the leader of the client's shard was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "document", schema(required = false))]
    owner: Option<Owner>,
    /// Nodes of the cluster that did not answer: the client may be there, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "document", schema(required = false))]
    missing: Vec<String>,
}

/// Closes a client's connection (DISCONNECT with 0x98), and ends its session on request. In a cluster, this happens on
/// every node that the client is on.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/clients/{client_id}", tag = "clients", operation_id = "kick_client", security(("token" = ["operator"])),
    params(("client_id" = String, Path), KickQuery),
    responses((status = 200, body = Kicked)),
))]
async fn kick(
    state: State,
    Path(client_id): Path<String>,
    Query(query): Query<KickQuery>,
) -> Result<Json<Kicked>, Problem> {
    let admin = &state.admin;
    let kicked = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| admin.kick_connection(&client_id, id, query.session, reply)).await?,
        None => ask(|reply| admin.kick(&client_id, query.session, reply)).await?,
    };
    let kicked = match kicked {
        Some(kicked) => kicked,
        None => return Err(absent(&state, &client_id).await),
    };
    Ok(Json(Kicked {
        connection_closed: kicked.connection_closed,
        session_ended: kicked.session_ended,
        nodes: vec![state.node.name.clone()],
        owner: kicked.elsewhere.map(|elsewhere| Owner::new(&state, elsewhere)),
        missing: Vec::new(),
    }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct QueueQuery {
    /// Number of messages: 1 to 1000; default 100.
    limit: Option<usize>,
    /// True to show the beginnings of payloads. Needs the role operator.
    #[serde(default)]
    payload: bool,
    /// Connection of this node whose queue to return, as in `owner` of a client, or `any` for one of this client. For
    /// requests between nodes.
    connection: Option<String>,
}

/// Messages that wait for a client or for its acknowledgement, oldest first.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Queue {
    items: Vec<QueueItem>,
    next: Option<String>,
    /// True when there are more messages than the limit.
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct QueueItem {
    /// `inflight`: sent and not acknowledged; `waiting`: not sent yet.
    state: &'static str,
    packet_id: Option<u16>,
    topic: String,
    qos: u8,
    retain: bool,
    payload_bytes: usize,
    age_ms: u64,
    /// Remaining seconds of its Message Expiry Interval.
    expires_in_s: Option<u64>,
    /// First 4096 bytes in Base64, on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

/// Lists messages that wait for a client, and messages in flight to it that may have to be sent again.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/clients/{client_id}/queue", tag = "clients", operation_id = "get_client_queue", security(("token" = ["viewer"])),
    params(("client_id" = String, Path), QueueQuery),
    responses((status = 200, body = Queue)),
))]
async fn queue(
    state: State,
    caller: Caller,
    Path(client_id): Path<String>,
    Query(query): Query<QueueQuery>,
) -> Result<Json<Queue>, Problem> {
    if query.payload {
        caller.needs(Role::Operator)?;
    }
    let limit = paging::limit(query.limit)?;
    let payload = if query.payload { PAYLOAD_SHOWN } else { 0 };
    let _turn = listing::turn().await?;
    let page = match own_connection(&state, &client_id, query.connection.as_deref()).await? {
        Some(id) => ask(|reply| state.admin.connection_queue(id, limit, payload, reply)).await?,
        None => ask(|reply| state.admin.queue(&client_id, limit, payload, reply)).await?,
    };
    let page = match page {
        Some(page) => page,
        None => return Err(absent(&state, &client_id).await),
    };
    let items = page.items.into_iter().map(|queued| QueueItem {
        state: match queued.state {
            QueueState::Inflight => "inflight",
            QueueState::Waiting | QueueState::Overflow => "waiting",
        },
        packet_id: None,
        topic: queued.topic.into(),
        qos: queued.qos as u8,
        retain: queued.retain,
        payload_bytes: queued.payload_bytes,
        age_ms: queued.age.as_millis() as u64,
        expires_in_s: queued.expires_in.map(|left| left.as_secs()),
        payload: query.payload.then(|| Base64::encode_string(&queued.payload)),
    });
    Ok(Json(Queue { items: items.collect(), next: None, truncated: page.truncated }))
}

/// Maximum number of bytes of each payload shown in a queue.
const PAYLOAD_SHOWN: usize = 4096;

/// Value of the parameter `connection` for the connection of a client that a node finds by a search. It is needed with
/// cores of an earlier version: new leaders of a shard do not know connections of ephemeral sessions then.
pub(crate) const ANY_CONNECTION: &str = "any";

/// Returns the connection of this node that a request names.
///
/// # Errors
/// It is no connection of this client.
pub(super) async fn own_connection(
    state: &State,
    client_id: &str,
    connection: Option<&str>,
) -> Result<Option<ConnectionId>, Problem> {
    let id = match connection {
        None => return Ok(None),
        Some(ANY_CONNECTION) => ask(|reply| state.admin.find_connection(client_id, reply)).await?,
        Some(text) => {
            let id = connection_id(text)?;
            // The slot of a connection that another node has named may have been used again.
            let detail = ask(|reply| state.admin.client_connection(id, reply)).await?;
            detail.filter(|detail| *detail.info.client_id == *client_id).map(|_| id)
        }
    };
    id.map(Some).ok_or_else(|| unknown(client_id))
}

/// Returns why this node has no answer about a client: it does not exist, or another node has the answer.
pub(super) async fn absent(state: &State, client_id: &str) -> Problem {
    let whereabouts = match ask(|reply| state.admin.locate(client_id, reply)).await {
        Ok(whereabouts) => whereabouts,
        Err(problem) => return problem,
    };
    let (detail, owner) = match whereabouts {
        Whereabouts::Unknown => return unknown(client_id),
        Whereabouts::Here if !has_shared_shards(state) => return unknown(client_id),
        Whereabouts::Here => {
            let detail = format!("the client `{client_id}` has connected or disconnected during the request");
            return Problem::misdirected(format!("{detail}; try again"), None);
        }
        Whereabouts::NotLed => (format!("this node does not lead the shard of client `{client_id}`"), None),
        Whereabouts::Unreported => (
            format!(
                "the session of client `{client_id}` may have a connection to a node that has not reported its \
                 connections to the leader of its shard yet"
            ),
            None,
        ),
        Whereabouts::Elsewhere(connection) => {
            let owner = Owner::new(state, connection);
            (format!("the client `{client_id}` is connected to node `{}`", owner.node), Some(owner))
        }
    };
    Problem::misdirected(format!("{detail}; try again without `node`"), owner)
}

fn has_shared_shards(state: &State) -> bool {
    let view = state.cluster.as_ref().and_then(|cluster| cluster.view());
    view.is_some_and(|view| view.shards.is_some())
}

pub(super) fn unknown(client_id: &str) -> Problem {
    Problem::not_found(format!(
        "no client `{client_id}` is connected or has a session here; search with `GET \
         /api/v1/clients?search=`"
    ))
}

impl ClientItem {
    fn new(state: &State, info: ClientInfo) -> Self {
        Self {
            client_id: info.client_id.to_string(),
            connected: info.connected,
            address: info.address.map(|address| address.to_string()),
            username: info.username.map(Into::into),
            version: info.version.map(version_name),
            connected_at: info.connected_at.map(|at| state.admin.wall(at).into()),
            keep_alive_s: info.keep_alive,
            durable: info.durable,
            subscriptions: info.subscriptions,
            inflight: info.inflight,
            queued_messages: info.queued_messages,
            queued_bytes: info.queued_bytes,
            messages_received: info.messages_received,
            messages_sent: info.messages_sent,
            node: state.node.name.clone(),
        }
    }
}

impl Client {
    fn new(state: &State, detail: ClientDetail) -> Self {
        let wall = |at| Timestamp::from(state.admin.wall(at));
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let connection = detail.connection.map(|connection| Connection {
            worker: connection.id.worker.0,
            listener: connection.listener.map(Into::into),
            receive_maximum: connection.receive_maximum,
            packet_size_max: connection.packet_size_max,
            topic_alias_max: connection.topic_alias_max,
            last_packet_ms: milliseconds(connection.silent),
            unsent_bytes: connection.unsent_bytes,
            session_bytes: connection.session_bytes,
            user_usage: connection.user_usage.map(Into::into),
            mountpoint_usage: connection.mountpoint_usage.map(Into::into),
            publisher_blocked: connection.publisher_blocked,
            has_will: connection.has_will,
            oldest_unacknowledged_ms: connection.oldest_unacknowledged.map(milliseconds),
            client_attrs: connection.attributes.into_iter().fold(
                BTreeMap::new(),
                |mut all, (name, value)| {
                    all.entry(name.into()).or_insert_with(Vec::new).push(value.into());
                    all
                },
            ),
        });
        let view = state.cluster.as_ref().and_then(|cluster| cluster.view());
        let owner = detail.elsewhere.map(|elsewhere| Owner::new(state, elsewhere));
        let own = || state.node.name.clone();
        let placed = |shard: ShardId| {
            let shards = view.as_ref()?.shards.as_ref()?;
            let placed = shards.items.iter().find(|item| item.shard == shard.0)?;
            Some((placed.leader.clone(), placed.replicas.clone()))
        };
        let session = detail.session.map(|session| {
            let (leader, replicas) = placed(session.shard).unwrap_or_else(|| (Some(own()), vec![own()]));
            Session {
                shard: session.shard.0,
                leader,
                replicas,
                epoch: session.epoch,
                inbound: session.inbound,
                expiry_s: session.expiry.map(|expiry| expiry.as_secs()),
                expires_at: session.expires_at.map(wall),
                inflight: session.inflight,
                queued_messages: session.queued_messages,
                queued_bytes: session.queued_bytes,
                oldest_queued_age_s: session.oldest_queued.map(|age| age.as_secs()),
                waiting_publishers: session.waiting_publishers,
                will_due_at: session.will_due_at.map(wall),
            }
        });
        Self { item: ClientItem::new(state, detail.info), connection, session, owner }
    }
}

impl Owner {
    fn new(state: &State, RemoteConnection { node, id }: RemoteConnection) -> Self {
        let name = state.cluster.as_ref().and_then(|cluster| cluster.node_name(node));
        Self {
            // Without a name no node is asked.
            node: name.unwrap_or_else(|| format!("{node:016x}")),
            connection: format!("{}.{}.{}", id.worker.0, id.slot, id.generation),
        }
    }
}
