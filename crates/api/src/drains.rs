//! Drains: clients are taken away from a node gently, as the API sees it.

use std::net::{Ipv4Addr, SocketAddr};

use auth::Authorship;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::cluster::Cluster;
use crate::fanout::{ForwardedRequest, ForwardedResponse};
use crate::problem::Problem;
use crate::role::Role;
use crate::timestamp::Timestamp;

/// Drains of a node and its cluster.
pub trait Drains: Send + Sync {
    /// Drain of this node; `None` when it is not drained.
    fn view(&self) -> Option<DrainView>;

    /// Returns whether this node refuses new clients because it is drained or stops.
    fn refuses(&self) -> bool;

    /// Orders a drain of a node, or replaces the order. It is an order of the whole cluster. Waits for other nodes.
    ///
    /// # Errors
    /// The order is not possible, or was not committed.
    fn order(&self, node: &str, order: &DrainOrder, by: &Authorship) -> Result<(), DrainRefused>;

    /// Orders nodes with more clients than these to disconnect the others. Waits for other nodes.
    ///
    /// # Errors
    /// As [`Self::order`].
    fn rebalance(
        &self,
        nodes: &[(String, u64)],
        order: &DrainOrder,
        by: &Authorship,
    ) -> Result<(), DrainRefused>;

    /// Cancels the order for a node, which accepts clients again. Returns false if there is none. Waits for other
    /// nodes.
    ///
    /// # Errors
    /// The change was not committed.
    fn cancel(&self, node: &str) -> Result<bool, DrainRefused>;
}

/// A node that is never drained.
impl Drains for () {
    fn view(&self) -> Option<DrainView> {
        None
    }

    fn refuses(&self) -> bool {
        false
    }

    fn order(&self, _: &str, _: &DrainOrder, _: &Authorship) -> Result<(), DrainRefused> {
        Err(DrainRefused::Conflict("this node cannot be drained".to_owned()))
    }

    fn rebalance(&self, _: &[(String, u64)], _: &DrainOrder, _: &Authorship) -> Result<(), DrainRefused> {
        Err(DrainRefused::Conflict("this node cannot be drained".to_owned()))
    }

    fn cancel(&self, _: &str) -> Result<bool, DrainRefused> {
        Ok(false)
    }
}

/// Reason why an order was not carried out.
#[derive(Debug)]
pub enum DrainRefused {
    /// The order does not fit the present state.
    Conflict(String),
    NotCommitted(configstore::ProposeError),
}

impl From<DrainRefused> for Problem {
    fn from(refused: DrainRefused) -> Self {
        match refused {
            DrainRefused::Conflict(why) => Self::conflict(why),
            DrainRefused::NotCommitted(error) => error.into(),
        }
    }
}

/// Maximum number of nodes that an order may name.
const TO_MAX: usize = 16;

/// Pace of a drain.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainOrder {
    /// Clients that are disconnected in a second, 0.1 to 100,000. By default they are as many as `within_s` needs, and
    /// at least 50.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(minimum = 0.1, maximum = 100_000.0))]
    pub rate: Option<f64>,
    /// Time for all clients in seconds, 1 to 86,400; default 300.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(minimum = 1, maximum = 86_400))]
    pub within_s: Option<u32>,
    /// Time in seconds between the refusal of new clients and the first disconnect, for load balancers, 0 to 3,600;
    /// default 5.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(maximum = 3_600))]
    pub wait_s: Option<u32>,
    /// Names of the nodes that get the clients and shards, at most 16. Shards go to those that have a replica. MQTT 5.0
    /// clients get the addresses of these nodes (`node.client_address`), and the drain pauses while one of them is
    /// overloaded. By default the drain counts on all other nodes. A rebalance has no such nodes.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(max_items = 16))]
    pub to: Vec<String>,
}

impl DrainOrder {
    /// # Errors
    /// The first value that is out of its range.
    pub fn check(&self) -> Result<(), Problem> {
        if self.rate.is_some_and(|rate| !(0.1..=100_000.0).contains(&rate)) {
            return Err(Problem::invalid("rate", "write a number of clients in a second, 0.1 to 100000"));
        }
        if self.within_s.is_some_and(|within| !(1..=86_400).contains(&within)) {
            return Err(Problem::invalid("within_s", "write a number of seconds, 1 to 86400"));
        }
        if self.wait_s.is_some_and(|wait| wait > 3_600) {
            return Err(Problem::invalid("wait_s", "write a number of seconds, 0 to 3600"));
        }
        if self.to.len() > TO_MAX {
            return Err(Problem::invalid("to", format!("name at most {TO_MAX} nodes")));
        }
        Ok(())
    }
}

/// Drain of one node, and its progress.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct DrainView {
    pub node: String,
    /// `drain` (of an operator), `rebalance` (only some clients leave) or `stop` (the node stops).
    pub kind: &'static str,
    /// Names of the nodes that get the clients and shards; empty: any other node.
    pub to: Vec<String>,
    /// `waiting` (for load balancers), `disconnecting`, `paused` or `drained`.
    pub state: &'static str,
    /// Reason why the drain has paused, and what ends the pause; null while it goes on.
    pub paused_because: Option<String>,
    /// Seconds since the drain has made no progress; 0 while it makes some, and when it is done.
    pub stalled_s: u64,
    /// Clients that were connected when the node began the drain.
    pub clients_before: u64,
    /// Clients that are connected now and have to leave.
    pub clients_left: u64,
    /// Clients that the drain has disconnected.
    pub disconnected: u64,
    /// Shards that the node still leads; other cores take them over.
    pub shards_led: u64,
    /// Durable sessions that stay on this node, because each node keeps its own (`cluster.replicas = 0`).
    pub sessions_stay: u64,
    /// Clients that are disconnected in a second.
    pub rate: f64,
    /// Estimated time until the drain is done, in seconds; null while it has paused.
    pub left_s: Option<u64>,
    pub started_at: Timestamp,
    /// Name of the key of the operator; null when the node stops.
    pub by: Option<String>,
}

/// Load of another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeLoad {
    /// Number of connected clients.
    pub connections: u64,
    /// Maximum number of connections; 0 is unknown.
    pub connections_max: u64,
    /// Overload level, 0 to 3.
    pub overload: u8,
    /// True if the node accepts new clients.
    pub accepts_clients: bool,
    /// Address of the node for clients; `None` if none is configured.
    pub client_address: Option<String>,
}

/// Request that asks a node for its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadQuestion {
    /// The load only. A node of an earlier version does not know this request.
    Load,
    /// The whole description of the node, which every version knows.
    Node,
}

/// Reason why the load of another node is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadUnknown {
    /// The node does not know [`LoadQuestion::Load`]. Ask it with [`LoadQuestion::Node`].
    EarlierVersion,
    NoAnswer,
}

/// Asks another node for its load. `callback` is called once, from any thread.
pub fn ask_load(
    cluster: &dyn Cluster,
    node: &str,
    question: LoadQuestion,
    callback: impl FnOnce(Result<NodeLoad, LoadUnknown>) + Send + 'static,
) {
    let target = match question {
        LoadQuestion::Load => "/api/v1/node/load",
        LoadQuestion::Node => "/api/v1/node",
    };
    let request = ForwardedRequest {
        method: "GET".to_owned(),
        target: target.to_owned(),
        body: String::new(),
        by: None,
        role: Role::Viewer,
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    // It has no map, so it can be encoded.
    let request = serde_json::to_vec(&request).unwrap_or_default();
    cluster.ask(node, request, Box::new(move |answer| callback(load_of(answer))));
}

fn load_of(answer: Result<Vec<u8>, String>) -> Result<NodeLoad, LoadUnknown> {
    let answer = answer.ok().and_then(|bytes| ForwardedResponse::decode(&bytes));
    let answer = answer.ok_or(LoadUnknown::NoAnswer)?;
    match answer.status {
        404 => Err(LoadUnknown::EarlierVersion),
        _ if answer.is_success() => serde_json::from_slice(&answer.body).map_err(|_| LoadUnknown::NoAnswer),
        _ => Err(LoadUnknown::NoAnswer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_about_a_load_is_read_from_either_version() {
        let answer = |status, body: &str| {
            load_of(Ok(ForwardedResponse { status, body: body.as_bytes().to_vec() }.encode()))
        };
        let load = NodeLoad {
            connections: 5,
            connections_max: 9,
            overload: 1,
            accepts_clients: true,
            client_address: None,
        };
        let text = r#"{"connections":5,"connections_max":9,"overload":1,"accepts_clients":true,"later":[]}"#;
        assert_eq!(answer(200, text), Ok(load));
        assert_eq!(answer(200, r#"{"connections":5}"#).unwrap().connections, 5);
        assert_eq!(answer(404, "{}"), Err(LoadUnknown::EarlierVersion));
        for unknown in
            [answer(503, text), answer(200, "x"), load_of(Ok(vec![1])), load_of(Err("gone".to_owned()))]
        {
            assert_eq!(unknown, Err(LoadUnknown::NoAnswer));
        }
    }
}
