//! Requests that are about the whole cluster: what other nodes are asked, and how their answers become one.
//!
//! A node answers for itself in its handlers; what is here stands between them and the gate. Other nodes are asked by way of
//! [`Cluster::ask`](crate::Cluster::ask), and answer as they would answer whoever asks them.

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

pub(crate) use self::forwarded::{ForwardHandler, Forwarded};

/// Whose answer an operation gives when the request names no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// That of the node that is asked, which is all there is to say, or all that is wanted.
    Local,
    /// Those of all nodes, one after the other, in pages.
    Pages,
    /// That of the node that knows the client best.
    BestMatch,
    /// Every node does it.
    All,
    /// Those of all nodes, as one list of receivers.
    Receivers,
    /// That of the node that is asked, with what others say of themselves.
    Alarms,
    /// The sum over all nodes.
    History,
}

impl Fanout {
    /// Of the operation with this id; `None`: it is asked of the node itself only.
    pub fn of(operation: &str) -> Option<Self> {
        Some(match operation {
            "nodes" | "list_clients" | "list_subscriptions" => Self::Pages,
            "get_client"
            | "get_client_queue"
            | "list_client_subscriptions"
            | "subscribe_client"
            | "unsubscribe_client" => Self::BestMatch,
            "kick_client" => Self::All,
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
            | "leave_cluster" => Self::Local,
            _ => return None,
        })
    }
}

/// Answers for the whole cluster what is about it, or for the node that is named.
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
