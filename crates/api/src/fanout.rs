//! Requests about the whole cluster: the requests to other nodes, and the merge of their answers.
//!
//! A node answers for itself in its handlers; this layer is between them and the gate. Other nodes are asked by way of
//! [`Cluster::ask`](crate::Cluster::ask), and answer as they would answer any client.

mod entries;
mod forwarded;
mod gather;
mod merge;

use axum::extract::{MatchedPath, Request, State as FromState};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use self::gather::GatherRequest;
use crate::problem::Problem;
use crate::state::State;

pub(crate) use self::forwarded::{ForwardHandler, Forwarded, ForwardedRequest, ForwardedResponse};

/// Nodes whose answers an operation returns when the request names no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// The node that is asked, whose answer is complete.
    Local,
    /// All nodes, one after the other, in pages.
    Pages,
    /// The node that knows the client best.
    BestMatch,
    /// All nodes; each executes the request.
    All,
    /// All nodes, as one list of receivers.
    Receivers,
    /// The node that is asked, with the alarms that others report of themselves.
    Alarms,
    /// The sum over all nodes.
    History,
    /// The node that is asked, with the statuses of actions that run on others.
    Statuses,
    /// The node that is asked, with what others know about its cluster links.
    Links,
}

impl Fanout {
    /// Returns the fanout of the operation with this id; `None` when only the node itself can be asked.
    pub fn of(operation: &str) -> Option<Self> {
        Some(match operation {
            "nodes" | "bridges" | "drains" | "list_clients" | "list_subscriptions" => Self::Pages,
            "get_client"
            | "get_client_queue"
            | "list_client_subscriptions"
            | "subscribe_client"
            | "unsubscribe_client" => Self::BestMatch,
            "kick_client" => Self::All,
            "match_routes" => Self::Receivers,
            "list_alarms" => Self::Alarms,
            "stats_history" => Self::History,
            "actions" | "action" => Self::Statuses,
            "cluster_links" | "cluster_link" => Self::Links,
            "node"
            | "bridge"
            | "node_load"
            | "stats"
            | "cluster"
            | "storage"
            | "backup_storage"
            | "get_backup"
            | "read_backup"
            | "remove_backup"
            | "get_top"
            | "list_routes"
            | "list_retained"
            | "get_retained"
            | "delete_retained"
            | "publish"
            | "publish_batch"
            | "list_slow_subscribers"
            | "list_topic_metrics"
            | "log"
            | "log_level"
            | "log_level_set"
            | "config"
            | "config_history"
            | "leave_cluster" => Self::Local,
            _ => return None,
        })
    }
}

/// Answers a request for the whole cluster, or for the node that it names.
pub async fn fanout(FromState(state): FromState<State>, request: Request, next: Next) -> Response {
    let fanout = state.fanout(&request);
    let (Some(fanout), false) = (fanout, request.extensions().get::<Forwarded>().is_some()) else {
        return next.run(request).await;
    };
    let query = request.uri().query().unwrap_or_default();
    let names_node = query.split('&').any(|pair| pair == "node" || pair.starts_with("node="));
    let is_alone = state.cluster.is_none() || fanout == Fanout::Local || request.method() == Method::HEAD;
    if !names_node && is_alone {
        return next.run(request).await;
    }
    match GatherRequest::begin(state, request, next).await {
        Ok(gather) => gather.answer(fanout).await.unwrap_or_else(Problem::into_response),
        Err(problem) => problem.into_response(),
    }
}

impl State {
    fn fanout(&self, request: &Request) -> Option<Fanout> {
        let path = request.extensions().get::<MatchedPath>()?.as_str();
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        self.operations.at(path)?.iter().find(|operation| operation.method == *method)?.fanout
    }
}
