//! Requests to nodes: to this one's own handler, and to others.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::forwarded::{ForwardedRequest, ForwardedResponse};
use super::{Fanout, entries, merge};
use crate::extract::too_large;
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

/// Maximum time for an answer. The cluster router gives up earlier; this bound is for a node that stops in the
/// meantime.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(120);

/// A request that goes to several nodes.
pub struct GatherRequest {
    pub state: State,
    parts: Parts,
    body: Vec<u8>,
    next: Next,
    /// Node that the request names.
    node: Option<String>,
    /// Query without `node`.
    pub query: Vec<(String, String)>,
    /// Client that the path names, or the query of a list.
    client_id: Option<String>,
}

/// Answer of one node, or the reason why there is none.
pub struct NodeResponse {
    pub node: String,
    pub answer: Result<ForwardedResponse, Problem>,
}

impl GatherRequest {
    /// # Errors
    /// The fault of the request.
    pub async fn begin(state: State, request: Request, next: Next) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let params = RawPathParams::from_request_parts(&mut parts, &()).await.ok();
        let client_id =
            params.as_ref().and_then(|params| params.iter().find(|(name, _)| *name == "client_id"));
        let client_id = client_id.map(|(_, client_id)| client_id.to_owned());
        let body = axum::body::to_bytes(body, state.settings.body_max.bytes() as usize);
        let body = body.await.map_err(|_| too_large(&state))?.to_vec();
        let query = parts.uri.query().unwrap_or_default();
        let mut query: Vec<(String, String)> = serde_html_form::from_str(query)
            .map_err(|error| Problem::bad_request(format!("the query: {error}")))?;
        let mut named = query.extract_if(.., |(name, _)| name == "node").map(|(_, node)| node);
        let node = named.next();
        if named.next().is_some() {
            return Err(Problem::bad_request("node: name one node, or leave it out for all"));
        }
        drop(named);
        let of_list = || query.iter().find(|(name, _)| name == "client_id").map(|(_, value)| value.clone());
        let client_id = client_id.or_else(of_list);
        Ok(Self { state, parts, body, next, node, query, client_id })
    }

    /// # Errors
    /// The reason why there is no answer.
    pub async fn answer(self, fanout: Fanout) -> Result<Response, Problem> {
        if let Some(node) = &self.node {
            let answer = self.ask(node, &self.query).await.answer?;
            return Ok(response(answer.status, answer.body));
        }
        let is_about_client = matches!(fanout, Fanout::BestMatch | Fanout::All | Fanout::Pages);
        if is_about_client && self.leader_of_client().is_some() {
            return merge::leader_and_owner(&self, fanout).await;
        }
        match fanout {
            Fanout::Local => Ok(self.ask_local(&self.query).await),
            Fanout::Pages => merge::pages(&self).await,
            Fanout::BestMatch => merge::best(&self).await,
            Fanout::All => merge::each(&self).await,
            Fanout::Receivers => merge::receivers(&self).await,
            Fanout::Alarms => merge::alarms(&self).await,
            Fanout::History => merge::history(&self).await,
            Fanout::Statuses => entries::merged(&self, entries::status).await,
            Fanout::Links => entries::merged(&self, entries::link).await,
        }
    }

    /// Returns the node that leads the shard of the client that the request names. `None` if it names no client, or
    /// each node has shards of its own.
    pub fn leader_of_client(&self) -> Option<Result<String, Problem>> {
        let shards = self.state.cluster.as_ref()?.view()?.shards?;
        let id = broker::shard_of_client(self.client_id.as_ref()?);
        let shard = shards.items.into_iter().find(|shard| shard.shard == id.0)?;
        Some(shard.leader.ok_or_else(|| {
            Problem::unavailable(format!(
                "shard {} of this client has no leader that this node reaches; its replicas are on {}. `meridian ctl \
                 cluster shards` shows all shards",
                id.0,
                shard.replicas.join(", ")
            ))
        }))
    }

    /// Names of all nodes of the cluster, in an order that is the same on each.
    pub fn nodes(&self) -> Vec<String> {
        let view = self.state.cluster.as_ref().and_then(|cluster| cluster.view());
        let others = view.into_iter().flat_map(|view| view.links).map(|link| link.node);
        let mut nodes: Vec<String> = others.chain([self.own().to_owned()]).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Names of the nodes that may have connections: those that the cores have not declared dead.
    pub fn live_nodes(&self) -> Vec<String> {
        let view = self.state.cluster.as_ref().and_then(|cluster| cluster.view());
        let links = view.into_iter().flat_map(|view| view.links).filter(|link| link.state != "dead");
        links.map(|link| link.node).chain([self.own().to_owned()]).collect()
    }

    /// Returns whether the request changes nothing, so that it may be sent again.
    pub fn is_read(&self) -> bool {
        self.parts.method.is_safe()
    }

    pub fn own(&self) -> &str {
        &self.state.node.name
    }

    /// Returns the value of a query parameter.
    pub fn query_value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the query with these parameters replaced; `None` removes one.
    pub fn query_with(&self, changes: &[(&str, Option<String>)]) -> Vec<(String, String)> {
        let is_changed = |known: &str| changes.iter().any(|(name, _)| *name == known);
        let kept = self.query.iter().filter(|(name, _)| !is_changed(name)).cloned();
        let new = changes.iter().filter_map(|(name, value)| Some(((*name).to_owned(), value.clone()?)));
        kept.chain(new).collect()
    }

    /// Asks one node.
    pub async fn ask(&self, node: &str, query: &[(String, String)]) -> NodeResponse {
        match self.ask_all(&[node.to_owned()], query).await.pop() {
            Some(answer) => answer,
            None => {
                NodeResponse { node: node.to_owned(), answer: Err(Problem::internal("no node was asked")) }
            }
        }
    }

    /// Asks nodes at the same time. The answers are in the order of their names.
    pub async fn ask_all(&self, nodes: &[String], query: &[(String, String)]) -> Vec<NodeResponse> {
        self.ask_all_within(FORWARD_TIMEOUT, nodes, query).await
    }

    /// Asks nodes at the same time, and waits at most `patience` for all of them together.
    pub async fn ask_all_within(
        &self,
        patience: Duration,
        nodes: &[String],
        query: &[(String, String)],
    ) -> Vec<NodeResponse> {
        let until = Instant::now() + patience;
        let mut pending = Vec::new();
        for node in nodes.iter().filter(|node| *node != self.own()) {
            pending.push((node.clone(), self.forward(node, query)));
        }
        let mut answers = Vec::new();
        if nodes.iter().any(|node| node == self.own()) {
            let broken = || Problem::internal("the answer ended early; the node's log has details");
            let answer = ForwardedResponse::read(self.ask_local(query).await).await.ok_or_else(broken);
            answers.push(NodeResponse { node: self.own().to_owned(), answer });
        }
        for (node, answer) in pending {
            let answer = match answer {
                Ok(answer) => await_response(&node, answer, until).await,
                Err(problem) => Err(problem),
            };
            answers.push(NodeResponse { node, answer });
        }
        answers.sort_by(|a, b| a.node.cmp(&b.node));
        answers
    }

    /// Returns this node's own answer.
    async fn ask_local(&self, query: &[(String, String)]) -> Response {
        let mut request = Request::from_parts(self.parts.clone(), Body::from(self.body.clone()));
        match self.target(query).parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return Problem::bad_request("the query cannot be passed on").into_response(),
        }
        self.next.clone().run(request).await
    }

    fn target(&self, query: &[(String, String)]) -> String {
        let path = self.parts.uri.path();
        // Pairs of texts can always be encoded.
        let query = serde_html_form::to_string(query).unwrap_or_default();
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }

    /// Asks another node. The receiver returns the answer.
    fn forward(
        &self,
        node: &str,
        query: &[(String, String)],
    ) -> Result<oneshot::Receiver<Result<Vec<u8>, String>>, Problem> {
        let cluster = self.state.cluster.as_ref().ok_or_else(|| {
            Problem::not_found(format!("there is no node `{node}`: this one belongs to no cluster"))
        })?;
        if !self.nodes().iter().any(|known| known == node) {
            let known = self.nodes().join(", ");
            return Err(Problem::not_found(format!(
                "there is no node `{node}` in this cluster; there are {known}"
            )));
        }
        let caller: Option<&Caller> = self.parts.extensions.get();
        let caller = caller.ok_or_else(|| Problem::internal("the request has no caller"))?;
        let question = ForwardedRequest {
            method: self.parts.method.as_str().to_owned(),
            target: self.target(query),
            body: String::from_utf8(self.body.clone())
                .map_err(|_| Problem::bad_request("the body is not valid UTF-8"))?,
            by: caller.name.as_deref().map(str::to_owned),
            role: caller.role,
            address: caller.address,
        };
        let question = serde_json::to_vec(&question)
            .map_err(|error| Problem::internal(format!("the request cannot be passed on: {error}")))?;
        let (sender, receiver) = oneshot::channel();
        // The receiver is gone when the request was dropped in the meantime.
        cluster.ask(node, question, Box::new(move |answer| drop(sender.send(answer))));
        Ok(receiver)
    }
}

async fn await_response(
    node: &str,
    answer: oneshot::Receiver<Result<Vec<u8>, String>>,
    until: Instant,
) -> Result<ForwardedResponse, Problem> {
    let no_answer = |why: &str| {
        Problem::unavailable(format!(
            "no answer from node `{node}`: {why}. `meridian ctl links` shows its link; a requested change \
             may have been made"
        ))
    };
    match tokio::time::timeout_at(until, answer).await {
        Ok(Ok(Ok(bytes))) => {
            ForwardedResponse::decode(&bytes).ok_or_else(|| no_answer("its answer is invalid"))
        }
        Ok(Ok(Err(why))) => Err(no_answer(&why)),
        Ok(Err(_)) => Err(no_answer("this node is stopping")),
        Err(_) => Err(no_answer("it takes too long")),
    }
}

/// Builds a response from the answer of a node, unchanged.
pub fn response(status: u16, body: Vec<u8>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if status.is_success() { "application/json" } else { "application/problem+json" };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Builds a response from a merged answer.
pub fn document(status: u16, document: &Value) -> Response {
    response(status, document.to_string().into_bytes())
}
