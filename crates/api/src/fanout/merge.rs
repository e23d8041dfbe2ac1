//! Merges the answers of nodes into one.

use std::time::Duration;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Fanout;
use super::forwarded::ForwardedResponse;
use super::gather::{GatherRequest, NodeResponse, document, response};
use crate::alarms::{Alarm, Severity};
use crate::history::HistoryView;
use crate::paging;
use crate::problem::{Kind, Problem};
use crate::routes::clients::ANY_CONNECTION;

/// Maximum time for which a leader of a client's shard is searched: an election takes up to four seconds, a transfer
/// less. `ctl` waits for ten seconds, and the last attempt may take twice `cluster.request_timeout`.
const LEADER_PATIENCE: Duration = Duration::from_secs(4);
/// Time between two attempts.
const LEADER_AGAIN: Duration = Duration::from_millis(200);

/// A position in a list of all nodes: the node, and the position on that node. All nodes sort nodes in the same order,
/// so a list that began on one node can continue on another.
#[derive(Debug, Serialize, Deserialize)]
struct PageMark {
    #[serde(rename = "n")]
    node: String,
    #[serde(rename = "c")]
    cursor: Option<String>,
    /// Connection on that node whose list it is.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    connection: Option<String>,
}

/// Returns the cursor of a list of all nodes.
fn mark(node: &str, cursor: Option<String>) -> Option<String> {
    Some(paging::encode(&PageMark { node: node.to_owned(), cursor, connection: None }))
}

/// Items collected for a page of all nodes.
#[derive(Default)]
struct MergedPage {
    items: Vec<Value>,
    missing: Vec<String>,
}

impl MergedPage {
    fn response(self, next: Option<String>) -> Response {
        let mut page = json!({ "items": self.items, "next": next });
        if !self.missing.is_empty() {
            page["missing"] = self.missing.into();
        }
        document(200, &page)
    }

    /// Adds the page of one node. Returns the position where that node's list continues, or its answer when it refuses
    /// the request.
    fn take(&mut self, answer: NodeResponse, room: usize) -> Result<PageState, ForwardedResponse> {
        let NodeResponse { node, answer } = answer;
        match answer {
            Ok(answer) if answer.is_success() => {
                let mut page: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let Value::Array(mut items) = page["items"].take() else {
                    self.missing.push(node);
                    return Ok(PageState::All);
                };
                if items.len() > room {
                    return Ok(PageState::Nothing);
                }
                self.items.append(&mut items);
                Ok(match page["next"].take() {
                    Value::String(next) => PageState::Some(next),
                    _ => PageState::All,
                })
            }
            Ok(answer) if is_client_error(&answer) => Err(answer),
            Ok(_) | Err(_) => {
                self.missing.push(node);
                Ok(PageState::All)
            }
        }
    }
}

/// Part of a node's page that was added.
enum PageState {
    All,
    Some(String),
    /// The node has more items than there is room for.
    Nothing,
}

/// Returns whether the answer blames the request, not the node.
fn is_client_error(answer: &ForwardedResponse) -> bool {
    (400..500).contains(&answer.status) && answer.status != 429
}

/// Lists the nodes one after the other. The first node fills the page; all that follow are asked at the same time for
/// the rest.
pub async fn pages(gather: &GatherRequest) -> Result<Response, Problem> {
    let limit = match gather.query_value("limit").map(str::parse::<usize>) {
        Some(Ok(limit)) => paging::limit(Some(limit))?,
        Some(Err(_)) => return Err(Problem::bad_request("limit: expected 1 to 1000")),
        None => paging::LIMIT_DEFAULT,
    };
    let begin: Option<PageMark> = paging::decode(gather.query_value("cursor"))?;
    let (from, cursor) = begin.map_or((String::new(), None), |mark| (mark.node, mark.cursor));
    let nodes: Vec<String> = gather.nodes().into_iter().filter(|node| *node >= from).collect();
    let Some((first, others)) = nodes.split_first() else { return Ok(MergedPage::default().response(None)) };
    // A position on a node that has left the cluster is ignored.
    let cursor = cursor.filter(|_| *first == from);
    let mut merged = MergedPage::default();
    let limit_of = |limit: usize| Some(limit.to_string());
    let query = gather.query_with(&[("cursor", cursor), ("limit", limit_of(limit))]);
    match merged.take(gather.ask(first, &query).await, limit) {
        Ok(PageState::All) => {}
        Ok(PageState::Some(cursor)) => return Ok(merged.response(mark(first, Some(cursor)))),
        Ok(PageState::Nothing) => {
            return Err(Problem::internal(format!("node `{first}` sent more items than requested")));
        }
        Err(refusal) => return Ok(response(refusal.status, refusal.body)),
    }
    let left = limit - merged.items.len();
    let Some(second) = others.first().filter(|_| left == 0) else {
        let query = gather.query_with(&[("cursor", None), ("limit", limit_of(left.max(1)))]);
        for answer in gather.ask_all(others, &query).await {
            let node = answer.node.clone();
            let room = limit - merged.items.len();
            match merged.take(answer, room) {
                Ok(PageState::All) => {}
                Ok(PageState::Some(cursor)) => return Ok(merged.response(mark(&node, Some(cursor)))),
                Ok(PageState::Nothing) => return Ok(merged.response(mark(&node, None))),
                Err(refusal) => return Ok(response(refusal.status, refusal.body)),
            }
        }
        return Ok(merged.response(None));
    };
    Ok(merged.response(mark(second, None)))
}

/// Returns the answer of the node where the client is. This node takes precedence, and a connection takes precedence
/// over a stored session.
pub async fn best(gather: &GatherRequest) -> Result<Response, Problem> {
    if let Some(next) = next_page(gather).await {
        return next;
    }
    let here = gather.ask(gather.own(), &gather.query).await;
    if here.answer.as_ref().is_ok_and(|answer| {
        rank(answer) == Rank::Connected || is_client_error(answer) && rank(answer) == Rank::Refused
    }) {
        return here.answer.map(|answer| of_node(&here.node, answer));
    }
    let others: Vec<String> = gather.nodes().into_iter().filter(|node| node != gather.own()).collect();
    let mut missing = Vec::new();
    let mut found: Vec<(Rank, String, ForwardedResponse)> = Vec::new();
    for NodeResponse { node, answer } in
        [here].into_iter().chain(gather.ask_all(&others, &gather.query).await)
    {
        match answer {
            Ok(answer) if answer.is_success() || is_client_error(&answer) => {
                found.push((rank(&answer), node, answer))
            }
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    // Of equal answers the first wins: this node comes first.
    let best = found.into_iter().reduce(|best, other| if other.0 > best.0 { other } else { best });
    match best {
        Some((rank, ..)) if rank == Rank::Unknown && !missing.is_empty() => Err(not_found_but(&missing)),
        Some((_, node, answer)) => Ok(of_node(&node, answer)),
        None => Err(not_found_but(&missing)),
    }
}

/// Returns the next page of a list that one node has begun, if the request has a cursor.
async fn next_page(gather: &GatherRequest) -> Option<Result<Response, Problem>> {
    let PageMark { node, cursor, connection } = match paging::decode(gather.query_value("cursor")) {
        Ok(mark) => mark?,
        Err(problem) => return Some(Err(problem)),
    };
    let query = gather.query_with(&[("cursor", cursor), ("connection", connection.clone())]);
    let answer = gather.ask(&node, &query).await.answer;
    Some(answer.and_then(|answer| match connection {
        _ if answer.status == Kind::Misdirected.status().as_u16() => Err(Problem::conflict(
            "another node leads the shard of this client now: begin the list again, without `cursor`",
        )),
        Some(connection) => Ok(of_connection((&node, &connection), answer)),
        None => Ok(of_node(&node, answer)),
    }))
}

/// Returns the answer of the leader of the client's shard, and asks the node of the connection if that is another one.
/// A leader that is not known, or not a leader any more, is looked up again for a while.
pub async fn leader_and_owner(gather: &GatherRequest, fanout: Fanout) -> Result<Response, Problem> {
    if let Some(next) = next_page(gather).await {
        return next;
    }
    let until = Instant::now() + LEADER_PATIENCE;
    loop {
        match ask_leader(gather, fanout).await? {
            Attempt::Done(response) => return Ok(response),
            Attempt::Again(problem) if Instant::now() >= until => return Err(problem),
            Attempt::Again(_) => tokio::time::sleep(LEADER_AGAIN).await,
        }
    }
}

/// Result of one attempt to ask the leader of a client's shard.
enum Attempt {
    Done(Response),
    /// Nothing was changed, and a later attempt may succeed. Otherwise this is the answer.
    Again(Problem),
}

async fn ask_leader(gather: &GatherRequest, fanout: Fanout) -> Result<Attempt, Problem> {
    let leader = match gather.leader_of_client() {
        Some(Ok(leader)) => leader,
        Some(Err(problem)) => return Ok(Attempt::Again(problem)),
        None => return Err(Problem::unavailable("the shards of the cluster are not known; try again")),
    };
    let answer = match gather.ask(&leader, &gather.query).await.answer {
        Ok(answer) => answer,
        // It may have ended a moment ago.
        Err(problem) if gather.is_read() => return Ok(Attempt::Again(unanswered(problem))),
        Err(problem) => return Err(unanswered(problem)),
    };
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let is_misdirected = answer.status == Kind::Misdirected.status().as_u16();
    let is_empty = || {
        let has_none = document["items"].as_array().is_some_and(Vec::is_empty);
        fanout == Fanout::Pages && has_none && document["next"].is_null()
    };
    let knows_all = gather.state.admin.keeps_ephemeral_sessions();
    if !knows_all && (answer.status == Kind::NotFound.status().as_u16() || is_empty()) {
        return Ok(Attempt::Done(search(gather, (&leader, answer), fanout).await?));
    }
    if !answer.is_success() && !is_misdirected {
        return Ok(Attempt::Done(of_node(&leader, answer)));
    }
    let (node, connection) = (document["owner"]["node"].as_str(), document["owner"]["connection"].as_str());
    if let Some(owner) = node.zip(connection) {
        let owner = (owner.0.to_owned(), owner.1.to_owned());
        return ask_owner(gather, (answer.status, document), (&owner.0, &owner.1)).await;
    }
    Ok(if is_misdirected {
        let detail = document["detail"].as_str().unwrap_or_default();
        Attempt::Again(Problem::unavailable(format!(
            "no node could answer for this client; the last one was `{leader}`: {detail}. `meridian ctl cluster shards` \
             shows the leaders of shards; try again"
        )))
    } else {
        Attempt::Done(of_node(&leader, answer))
    })
}

/// Asks the node of a connection, which the leader of the client's shard has named in its answer.
async fn ask_owner(
    gather: &GatherRequest,
    (status, document): (u16, Value),
    (node, connection): (&str, &str),
) -> Result<Attempt, Problem> {
    let is_misdirected = status == Kind::Misdirected.status().as_u16();
    let is_kick = document["connection_closed"].is_boolean();
    let query = gather.query_with(&[("connection", Some(connection.to_owned()))]);
    let answer = gather.ask(node, &query).await.answer;
    if !is_misdirected && !is_kick {
        // The leader has answered. Its answer remains when the connection has ended, or its node is silent.
        let of_owner = answer.ok().filter(ForwardedResponse::is_success);
        let of_owner = of_owner.and_then(|answer| serde_json::from_slice(&answer.body).ok());
        let merged = match of_owner {
            Some(of_owner) => with_connection(document, of_owner),
            None => document,
        };
        return Ok(Attempt::Done(self::document(status, &merged)));
    }
    let answer = match answer {
        Ok(answer) => answer,
        // The leader learns of its end after some seconds, and may then have the answer.
        Err(problem) if gather.is_read() => return Ok(Attempt::Again(unanswered(problem))),
        Err(problem) => return Err(unanswered(problem)),
    };
    if [Kind::NotFound, Kind::Misdirected].iter().any(|kind| answer.status == kind.status().as_u16()) {
        return Ok(Attempt::Again(Problem::unavailable(format!(
            "the connection of this client to node `{node}` ended during the request; nothing was changed, try again"
        ))));
    }
    if is_kick && answer.is_success() {
        let of_owner = serde_json::from_slice(&answer.body).unwrap_or_default();
        return Ok(Attempt::Done(self::document(status, &both(document, &of_owner))));
    }
    Ok(Attempt::Done(of_connection((node, connection), answer)))
}

/// Asks all nodes for connections of a client that the leader of its shard does not know. While a core has an earlier
/// version, a new leader does not know those of ephemeral sessions. Returns the answer of the leader if there are none.
async fn search(
    gather: &GatherRequest,
    (leader, answer): (&str, ForwardedResponse),
    fanout: Fanout,
) -> Result<Response, Problem> {
    let query = gather.query_with(&[("connection", Some(ANY_CONNECTION.to_owned()))]);
    let (mut done, mut refused, mut missing) = (Vec::new(), None, Vec::new());
    for NodeResponse { node, answer } in gather.ask_all(&gather.live_nodes(), &query).await {
        match answer {
            Ok(answer) if answer.is_success() => done.push((node, answer)),
            // The leader has found no fault in the request: a node of an earlier version does not know the parameter.
            Ok(answer) if [400, 404, 421].contains(&answer.status) => {}
            Ok(answer) if is_client_error(&answer) => refused = refused.or(Some(answer)),
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    match fanout {
        Fanout::Pages => {
            let is_some = |answer: &ForwardedResponse| {
                let page: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                page["items"].as_array().is_some_and(|items| !items.is_empty())
            };
            done.retain(|(_, answer)| is_some(answer));
        }
        Fanout::All if !done.is_empty() => {
            let all = done.iter().map(|(_, answer)| serde_json::from_slice(&answer.body).unwrap_or_default());
            let all = all.reduce(|all: Value, one| both(all, &one)).unwrap_or_default();
            return Ok(document(200, &all));
        }
        _ => {}
    }
    match (done.into_iter().next(), refused) {
        (Some((node, answer)), _) => Ok(of_connection((&node, ANY_CONNECTION), answer)),
        (None, Some(answer)) => Ok(response(answer.status, answer.body)),
        // The leader may know the client, without items.
        (None, None) if missing.is_empty() || answer.is_success() => Ok(of_node(leader, answer)),
        (None, None) => Err(not_found_but(&missing)),
    }
}

/// Changes the problem that there is no such node: a client exists although its node has just been removed.
fn unanswered(problem: Problem) -> Problem {
    match problem.kind() {
        Kind::NotFound => Problem::unavailable(format!("{}; try again", problem.detail())),
        _ => problem,
    }
}

/// Adds the details of a connection to a client as the leader of its shard knows it.
fn with_connection(mut client: Value, of_owner: Value) -> Value {
    let is_durable = client["session"].is_object();
    let of_session =
        ["session", "owner", "durable", "subscriptions", "inflight", "queued_messages", "queued_bytes"];
    if let Value::Object(of_owner) = of_owner {
        for (name, value) in of_owner {
            if name != "owner" && !(is_durable && of_session.contains(&&*name)) {
                client[name] = value;
            }
        }
    }
    client
}

/// Knowledge of a node about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Unknown,
    /// The client exists in another state.
    Conflict,
    /// The request is invalid.
    Refused,
    Offline,
    Connected,
}

fn rank(answer: &ForwardedResponse) -> Rank {
    match answer.status {
        404 => Rank::Unknown,
        409 => Rank::Conflict,
        status if !(200..300).contains(&status) => Rank::Refused,
        _ => {
            let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            if document["connected"] == false { Rank::Offline } else { Rank::Connected }
        }
    }
}

/// Returns one node's answer. A cursor in it becomes a position on that node.
fn of_node(node: &str, answer: ForwardedResponse) -> Response {
    with_mark(answer, |cursor| mark(node, Some(cursor)))
}

/// Returns one node's answer about a connection. A cursor in it becomes a position in the list of this connection.
fn of_connection((node, connection): (&str, &str), answer: ForwardedResponse) -> Response {
    let connection = Some(connection.to_owned());
    with_mark(answer, |cursor| {
        Some(paging::encode(&PageMark { node: node.to_owned(), cursor: Some(cursor), connection }))
    })
}

fn with_mark(answer: ForwardedResponse, mark: impl FnOnce(String) -> Option<String>) -> Response {
    if answer.is_success()
        && let Ok(mut body) = serde_json::from_slice::<Value>(&answer.body)
        && let Some(next) = body["next"].as_str()
    {
        body["next"] = mark(next.to_owned()).into();
        return document(answer.status, &body);
    }
    response(answer.status, answer.body)
}

fn not_found_but(missing: &[String]) -> Problem {
    Problem::unavailable(format!(
        "no such client on the nodes that answered, and no answer from {}: try again when they are back \
         (`meridian ctl links`)",
        missing.join(", ")
    ))
}

/// Executes the request on every node. Merges their results, with the names of the nodes.
pub async fn each(gather: &GatherRequest) -> Result<Response, Problem> {
    let mut done: Option<Value> = None;
    let (mut missing, mut refused) = (Vec::new(), None);
    for NodeResponse { node, answer } in gather.ask_all(&gather.nodes(), &gather.query).await {
        match answer {
            Ok(answer) if answer.is_success() => {
                let one: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                done = Some(match done {
                    None => one,
                    Some(before) => both(before, &one),
                });
            }
            Ok(answer) if is_client_error(&answer) => refused = refused.or(Some(answer)),
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    match (done, refused) {
        (Some(mut done), _) => {
            if !missing.is_empty() {
                done["missing"] = missing.into();
            }
            Ok(document(200, &done))
        }
        (None, Some(answer)) if missing.is_empty() || answer.status != 404 => {
            Ok(response(answer.status, answer.body))
        }
        (None, _) => Err(not_found_but(&missing)),
    }
}

/// Merges the results of two nodes: true where one of them is true, and both lists.
fn both(mut before: Value, other: &Value) -> Value {
    for (name, value) in other.as_object().into_iter().flatten() {
        match (&mut before[name], value) {
            (Value::Array(all), Value::Array(more)) => all.extend(more.iter().cloned()),
            (mine, Value::Bool(true)) => *mine = true.into(),
            _ => {}
        }
    }
    before
}

/// Maximum time for requests that repeat every few seconds: alarms and figures.
pub const SHORTLY: Duration = Duration::from_secs(2);

/// Lists all alarms that this node knows, then those that each other node reports of itself, prefixed with its name;
/// errors first. Nodes without a link that is up are not asked: the link has an alarm.
pub async fn alarms(gather: &GatherRequest) -> Result<Response, Problem> {
    let view = gather.state.cluster.as_ref().and_then(|cluster| cluster.view());
    let links = view.into_iter().flat_map(|view| view.links).filter(|link| link.state == "up");
    let nodes: Vec<String> = links.map(|link| link.node).chain([gather.own().to_owned()]).collect();
    let mut answers = gather.ask_all_within(SHORTLY, &nodes, &gather.query).await;
    // The sort is stable: the other nodes keep the order of their names.
    answers.sort_by_key(|answer| answer.node != gather.own());
    let (mut all, mut own) = (Vec::<Value>::new(), 0);
    let mut missing = Vec::new();
    for NodeResponse { node, answer } in answers {
        match answer {
            Ok(answer) if answer.is_success() => {
                let mut page: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let Value::Array(alarms) = page["items"].take() else { continue };
                if node == gather.own() {
                    all.extend(alarms);
                    own = all.len();
                    continue;
                }
                for mut alarm in alarms.into_iter().filter(|alarm| alarm["node"] == *node) {
                    // This node has already reported the other node's clock.
                    if all[..own]
                        .iter()
                        .any(|known| known["node"] == alarm["node"] && known["code"] == alarm["code"])
                    {
                        continue;
                    }
                    alarm["text"] = format!("{node}: {}", alarm["text"].as_str().unwrap_or_default()).into();
                    all.push(alarm);
                }
            }
            Ok(answer) if node == gather.own() => return Ok(response(answer.status, answer.body)),
            // A node of an earlier version has no list of alarms.
            Ok(answer) if answer.status == 404 => {}
            Ok(_) | Err(_) => {
                let text = format!(
                    "{node} is linked to this node and does not answer: its alarms are unknown (meridian ctl \
                     links)"
                );
                all.push(json!(Alarm::new(&node, Severity::Error, "no_answer", text)));
                missing.push(node);
            }
        }
    }
    let rank = |alarm: &Value| match alarm["severity"].as_str() {
        Some("error") => 0,
        Some("warning") => 1,
        _ => 2,
    };
    all.sort_by_key(rank);
    let mut page = json!({ "items": all, "next": null });
    if !missing.is_empty() {
        page["missing"] = missing.into();
    }
    Ok(document(200, &page))
}

/// Returns the sum over all nodes; the clock of this node dates it. Nodes without a link that is up are not asked, and
/// are named as missing.
pub async fn history(gather: &GatherRequest) -> Result<Response, Problem> {
    let (up, mut missing) = linked(gather);
    let nodes: Vec<String> = up.into_iter().chain([gather.own().to_owned()]).collect();
    let mut answers = gather.ask_all_within(SHORTLY, &nodes, &gather.query).await;
    answers.sort_by_key(|answer| answer.node != gather.own());
    let mut each = Vec::new();
    for NodeResponse { node, answer } in answers {
        match answer {
            Ok(answer) if answer.is_success() => match serde_json::from_slice::<HistoryView>(&answer.body) {
                Ok(view) => each.push(view),
                Err(_) => missing.push(node),
            },
            Ok(answer) if node == gather.own() => return Ok(response(answer.status, answer.body)),
            // A node of an earlier version keeps no history.
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    missing.sort();
    Ok(document(200, &json!(HistoryView::sum(each, missing))))
}

/// Names of the other nodes: those with a link that is up, and the rest.
pub fn linked(gather: &GatherRequest) -> (Vec<String>, Vec<String>) {
    let view = gather.state.cluster.as_ref().and_then(|cluster| cluster.view());
    let (up, down): (Vec<_>, Vec<_>) =
        view.into_iter().flat_map(|view| view.links).partition(|link| link.state == "up");
    let names = |links: Vec<crate::cluster::LinkView>| links.into_iter().map(|link| link.node).collect();
    (names(up), names(down))
}

/// Lists the receivers of a message, on any node.
pub async fn receivers(gather: &GatherRequest) -> Result<Response, Problem> {
    let limit = paging::limit(gather.query_value("limit").and_then(|limit| limit.parse().ok()))?;
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    let (mut total, mut topic) = (0, Value::Null);
    for NodeResponse { node, answer } in gather.ask_all(&gather.nodes(), &gather.query).await {
        match answer {
            Ok(answer) if answer.is_success() => {
                let mut one: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                total += one["total"].as_u64().unwrap_or(0);
                topic = one["topic"].take();
                if let Value::Array(mut some) = one["receivers"].take() {
                    all.append(&mut some);
                }
            }
            Ok(answer) if is_client_error(&answer) => return Ok(response(answer.status, answer.body)),
            Ok(_) | Err(_) => missing.push(node),
        }
    }
    all.truncate(limit);
    let truncated = total > all.len() as u64;
    let mut answer = json!({ "topic": topic, "receivers": all, "truncated": truncated, "total": total });
    if !missing.is_empty() {
        answer["missing"] = missing.into();
    }
    Ok(document(200, &answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_the_connection_ranks_first() {
        let rank = |status, body: &str| rank(&ForwardedResponse { status, body: body.as_bytes().to_vec() });
        let ranks = [
            rank(404, "{}"),
            rank(409, "{}"),
            rank(422, "{}"),
            rank(200, r#"{"connected":false}"#),
            rank(200, r#"{"connected":true}"#),
        ];
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(rank(201, r#"{"filter":"a"}"#), Rank::Connected);
    }

    #[test]
    fn results_of_two_nodes_are_merged() {
        let a = json!({"connection_closed": false, "session_ended": true, "nodes": ["a"]});
        let b = json!({"connection_closed": true, "session_ended": false, "nodes": ["b"]});
        let all = json!({"connection_closed": true, "session_ended": true, "nodes": ["a", "b"]});
        assert_eq!(both(a, &b), all);
    }

    #[test]
    fn a_session_of_the_leader_gets_the_connection_of_its_owner() {
        let of_owner = || {
            json!({"client_id": "c", "connected": true, "address": "10.0.0.1:1", "node": "n4", "subscriptions": 0,
                "durable": true, "connection": {"worker": 0}, "session": null, "owner": null})
        };
        let owner = json!({"node": "n4", "connection": "0.1.2"});
        let durable = json!({"client_id": "c", "connected": true, "address": null, "node": "n2", "subscriptions": 3,
            "durable": true, "connection": null, "session": {"shard": 7}, "owner": owner});
        let merged = with_connection(durable, of_owner());
        for (name, value) in [
            ("address", json!("10.0.0.1:1")),
            ("node", json!("n4")),
            ("subscriptions", json!(3)),
            ("connection", json!({"worker": 0})),
            ("session", json!({"shard": 7})),
            ("owner", owner.clone()),
        ] {
            assert_eq!(merged[name], value, "{name}");
        }
        let ephemeral = json!({"client_id": "c", "subscriptions": 0, "session": null, "owner": owner});
        let of_owner = json!({"client_id": "c", "subscriptions": 5, "session": null, "owner": null});
        assert_eq!(with_connection(ephemeral, of_owner)["subscriptions"], 5);
    }
}
