//! Requests that are about the whole cluster: what other nodes are asked, and how their answers become one.
//!
//! A node answers for itself in its handlers; what is here stands between them and the gate. Other nodes are asked by way of
//! [`Cluster::ask`](crate::Cluster::ask), and answer as they would answer whoever asks them.

mod asking;
mod merge;
mod passed;

use axum::extract::{MatchedPath, Request, State as FromState};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use self::asking::Asking;
use crate::problem::Problem;
use crate::state::State;

pub(crate) use self::passed::{Answering, Passed};

/// Whose answer an operation gives when the request names no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// That of the node that is asked, which is all there is to say, or all that is wanted.
    Here,
    /// Those of all nodes, one after the other, in pages.
    Pages,
    /// That of the node that knows the client best.
    Best,
    /// Every node does it.
    Each,
    /// Those of all nodes, as one list of receivers.
    Receivers,
    /// That of the node that is asked, with what others say of themselves.
    Alarms,
    /// The sum over all nodes.
    History,
}

impl Across {
    /// Of the operation with this id; `None`: it is asked of the node itself only.
    pub fn of(operation: &str) -> Option<Self> {
        Some(match operation {
            "nodes" | "list_clients" | "list_subscriptions" => Self::Pages,
            "get_client"
            | "get_client_queue"
            | "list_client_subscriptions"
            | "subscribe_client"
            | "unsubscribe_client" => Self::Best,
            "kick_client" => Self::Each,
            "match_routes" => Self::Receivers,
            "list_alarms" => Self::Alarms,
            "stats_history" => Self::History,
            "node"
            | "stats"
            | "cluster"
            | "storage"
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
            | "leave_cluster" => Self::Here,
            _ => return None,
        })
    }
}

/// Answers for the whole cluster what is about it, or for the node that is named.
pub async fn across(FromState(state): FromState<State>, request: Request, next: Next) -> Response {
    let across = state.across(&request);
    let (Some(across), false) = (across, request.extensions().get::<Passed>().is_some()) else {
        return next.run(request).await;
    };
    let query = request.uri().query().unwrap_or_default();
    let names_node = query.split('&').any(|pair| pair == "node" || pair.starts_with("node="));
    let is_alone = state.cluster.is_none() || across == Across::Here || request.method() == Method::HEAD;
    if !names_node && is_alone {
        return next.run(request).await;
    }
    match Asking::begin(state, request, next).await {
        Ok(asking) => asking.answer(across).await.unwrap_or_else(Problem::into_response),
        Err(problem) => problem.into_response(),
    }
}

impl State {
    fn across(&self, request: &Request) -> Option<Across> {
        let path = request.extensions().get::<MatchedPath>()?.as_str();
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        self.operations.at(path)?.iter().find(|operation| operation.method == *method)?.across
    }
}
