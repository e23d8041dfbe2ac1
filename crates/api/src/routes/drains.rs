//! `/drains`: nodes from which clients are taken away gently.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::node;
use crate::ask::propose;
use crate::cluster::{Cluster, ClusterView, MemberView};
use crate::drains::{DrainOrder, DrainView, LoadQuestion, LoadUnknown, NodeLoad, ask_load};
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/drains": get drains;
    "/api/v1/drains/{name}": put drain, delete cancel_drain;
    "/api/v1/rebalance": post rebalance;
}

/// Part of the mean by which a node may exceed it, in percent, unless the request has another one.
const TOLERANCE_PERCENT: u32 = 10;
const TOLERANCE_PERCENT_MAX: u32 = 1_000;
/// Maximum time for the answers of other nodes about their clients.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct DrainsQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(rename = "cursor")]
    _cursor: Option<String>,
}

/// Lists the nodes that are drained, each with its own progress.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/drains", tag = "node", operation_id = "drains", security(("token" = ["viewer"])),
    params(DrainsQuery), responses((status = 200, body = Page<DrainView>))))]
async fn drains(state: State, Query(query): Query<DrainsQuery>) -> Result<Json<Page<DrainView>>, Problem> {
    paging::limit(query.limit)?;
    Ok(Json(Page::whole(state.drains.view().into_iter().collect())))
}

/// Drains a node, or changes the pace of its drain.
///
/// The node refuses new clients, and `/health/ready` answers 503. Other cores take over the shards that it leads. After
/// `wait_s` it disconnects its clients at the given pace: idle ones first, members of shared groups last. MQTT 5.0
/// clients get 0x9C (Use another server). `to` names the nodes that get the clients and shards. The drain pauses while
/// another node is overloaded, or the others have no room. It goes on after a restart of the node, and ends only when
/// it is cancelled.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/drains/{name}", tag = "node", operation_id = "drain_node",
    security(("token" = ["operator"])), params(("name" = String, Path)), request_body = DrainOrder,
    responses((status = 204)),
))]
async fn drain(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(order): Body<DrainOrder>,
) -> Result<StatusCode, Problem> {
    caller.note(|| match order.to.is_empty() {
        true => name.clone(),
        false => format!("{name} to {}", order.to.join(", ")),
    });
    order.check()?;
    may_drain(&state, &name, &order.to)?;
    let by = caller.authorship();
    propose(&state, &caller, move |state| state.drains.order(&name, &order, &by)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Cancels the drain of a node, which accepts clients again.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/drains/{name}", tag = "node", operation_id = "cancel_drain",
    security(("token" = ["operator"])), params(("name" = String, Path)),
    responses((status = 204)),
))]
async fn cancel_drain(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let node = name.clone();
    match propose(&state, &caller, move |state| state.drains.cancel(&node)).await?? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found(format!("node `{name}` is not drained"))),
    }
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Rebalance {
    /// Number of clients that each of these nodes keeps, by name. Other nodes keep all of theirs. Without it, each node
    /// that has more clients than the mean and the tolerance keeps the mean.
    #[serde(default)]
    keep: Option<BTreeMap<String, u64>>,
    /// Part of the mean by which a node may exceed it, in percent, 0 to 1,000; default 10. It excludes `keep`.
    #[serde(default)]
    #[cfg_attr(feature = "document", schema(maximum = 1_000))]
    tolerance_percent: Option<u32>,
    /// True: return the numbers, and disconnect nobody.
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    pace: DrainOrder,
}

/// Clients of all nodes, and those that stay.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Rebalanced {
    /// Mean number of clients of the nodes that accept clients, rounded up.
    mean: u64,
    /// Tolerance in percent; null when the request has `keep`.
    tolerance_percent: Option<u32>,
    nodes: Vec<RebalancedNode>,
}

#[derive(Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct RebalancedNode {
    node: String,
    /// Connected clients; null if the node has not answered within 5 seconds. Such a node does not count.
    connections: Option<u64>,
    /// True while the node accepts new clients. Other nodes do not count.
    accepts_clients: bool,
    /// Number of clients that the node keeps; null if it keeps all.
    keep: Option<u64>,
}

/// Lets nodes with too many clients disconnect some of them, so that they connect to other nodes.
///
/// Each node with a number in `keep` of the answer disconnects clients at the given pace until it has so many. It
/// accepts new ones meanwhile, and keeps its shards. `wait_s` has no effect.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/rebalance", tag = "node", operation_id = "rebalance_clients",
    security(("token" = ["operator"])), request_body = Rebalance,
    responses((status = 200, body = Rebalanced)),
))]
async fn rebalance(
    state: State,
    caller: Caller,
    Body(body): Body<Rebalance>,
) -> Result<Json<Rebalanced>, Problem> {
    let Rebalance { keep, tolerance_percent, dry_run, pace } = body;
    pace.check()?;
    if !pace.to.is_empty() {
        return Err(Problem::invalid("pace.to", "only a drain names the nodes that get its clients"));
    }
    let view = cluster_view(&state)?;
    if let Some(keep) = &keep {
        check_keep(&state, view.as_ref(), keep)?;
        if tolerance_percent.is_some() {
            return Err(Problem::invalid("tolerance_percent", "write either this or `keep`"));
        }
    }
    let tolerance = tolerance_percent.unwrap_or(TOLERANCE_PERCENT);
    if tolerance > TOLERANCE_PERCENT_MAX {
        return Err(Problem::invalid("tolerance_percent", "write a number of percent, 0 to 1000"));
    }
    let mut nodes = loads(&state, view.as_ref()).await;
    let mean = mean(&nodes);
    for node in &mut nodes {
        node.keep = match &keep {
            Some(keep) => keep.get(&node.node).copied(),
            None => exceeds(node, mean, tolerance).then_some(mean),
        };
    }
    let kept = |node: &RebalancedNode| Some((node.node.clone(), node.keep?));
    let kept: Vec<(String, u64)> = nodes.iter().filter_map(kept).collect();
    caller.note(|| {
        let numbers: Vec<_> = kept.iter().map(|(name, keep)| format!("{name} to {keep}")).collect();
        format!("{}{}", numbers.join(", "), if dry_run { " (dry run)" } else { "" })
    });
    if !dry_run && !kept.is_empty() {
        let by = caller.authorship();
        propose(&state, &caller, move |state| state.drains.rebalance(&kept, &pace, &by)).await??;
    }
    let tolerance_percent = keep.is_none().then_some(tolerance);
    Ok(Json(Rebalanced { mean, tolerance_percent, nodes }))
}

fn check_keep(
    state: &State,
    view: Option<&ClusterView>,
    keep: &BTreeMap<String, u64>,
) -> Result<(), Problem> {
    if keep.is_empty() {
        let how = "name the nodes that have too many clients, each with the number to keep";
        return Err(Problem::invalid("keep", how));
    }
    keep.keys().try_for_each(|name| member(state, view, name))
}

/// Returns the mean number of clients of the nodes that accept clients, rounded up.
fn mean(nodes: &[RebalancedNode]) -> u64 {
    let clients = nodes.iter().filter(|node| node.accepts_clients).filter_map(|node| node.connections);
    let (count, sum) = clients.fold((0u64, 0u64), |(count, sum), some| (count + 1, sum.saturating_add(some)));
    sum.div_ceil(count.max(1))
}

/// Returns whether a node has more clients than the mean and this part of it.
fn exceeds(node: &RebalancedNode, mean: u64, tolerance_percent: u32) -> bool {
    let allowed = u128::from(mean) * (100 + u128::from(tolerance_percent)) / 100;
    node.accepts_clients && node.connections.is_some_and(|clients| u128::from(clients) > allowed)
}

/// Asks all nodes for their clients. The result is in the order of their names, and each node keeps its clients in it.
async fn loads(state: &State, view: Option<&ClusterView>) -> Vec<RebalancedNode> {
    let own = &state.node.name;
    let mut nodes = vec![RebalancedNode::new(own, Some(node::load(state)))];
    if let (Some(cluster), Some(view)) = (&state.cluster, view) {
        let until = Instant::now() + LOAD_TIMEOUT;
        let others = view.membership.members.iter().filter(|member| member.node != *own);
        let ask = |member: &MemberView| {
            let is_alive = member.state == "alive";
            is_alive.then(|| question(&**cluster, &member.node, LoadQuestion::Load))
        };
        let asked: Vec<_> = others.map(|member| (&*member.node, ask(member))).collect();
        for (name, pending) in asked {
            let load = match pending {
                Some(pending) => load(&**cluster, name, pending, until).await,
                None => None,
            };
            nodes.push(RebalancedNode::new(name, load));
        }
    }
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    nodes
}

type Pending = oneshot::Receiver<Result<NodeLoad, LoadUnknown>>;

fn question(cluster: &dyn Cluster, node: &str, question: LoadQuestion) -> Pending {
    let (sender, receiver) = oneshot::channel();
    // The receiver is gone when the request was dropped in the meantime.
    ask_load(cluster, node, question, move |answer| drop(sender.send(answer)));
    receiver
}

/// Waits for the load of a node. Asks once more if the node has an earlier version.
async fn load(cluster: &dyn Cluster, node: &str, pending: Pending, until: Instant) -> Option<NodeLoad> {
    let answer = timeout_at(until, pending).await.ok()?.ok()?;
    if answer != Err(LoadUnknown::EarlierVersion) {
        return answer.ok();
    }
    let pending = question(cluster, node, LoadQuestion::Node);
    timeout_at(until, pending).await.ok()?.ok()?.ok()
}

impl RebalancedNode {
    fn new(name: &str, load: Option<NodeLoad>) -> Self {
        Self {
            node: name.to_owned(),
            connections: load.as_ref().map(|load| load.connections),
            accepts_clients: load.is_some_and(|load| load.accepts_clients),
            keep: None,
        }
    }
}

fn cluster_view(state: &State) -> Result<Option<ClusterView>, Problem> {
    let Some(cluster) = &state.cluster else { return Ok(None) };
    let unknown = || Problem::unavailable("the node has not started its part in the cluster yet");
    cluster.view().map(Some).ok_or_else(unknown)
}

/// Refuses a name that no node has.
fn member(state: &State, view: Option<&ClusterView>, name: &str) -> Result<(), Problem> {
    let own = &state.node.name;
    let known: Vec<&str> = match view {
        Some(view) => view.membership.members.iter().map(|member| &*member.node).collect(),
        None => vec![own],
    };
    match known.contains(&name) {
        true => Ok(()),
        false => {
            Err(Problem::not_found(format!("there is no node `{name}`; there are {}", known.join(", "))))
        }
    }
}

/// Refuses to drain a node when no other one, or none of the named ones, can serve its clients.
fn may_drain(state: &State, name: &str, to: &[String]) -> Result<(), Problem> {
    let view = cluster_view(state)?;
    member(state, view.as_ref(), name)?;
    let Some(view) = view else {
        let refusal = || Problem::invalid("to", "the node belongs to no cluster: there is no other node");
        return if to.is_empty() { Ok(()) } else { Err(refusal()) };
    };
    let members = &view.membership.members;
    if !members.iter().any(|member| member.node != name && member.state == "alive") {
        return Err(Problem::conflict(format!(
            "no other node of the cluster is alive: the clients of `{name}` could go nowhere"
        )));
    }
    let states: Vec<_> = members.iter().map(|member| (&*member.node, member.state)).collect();
    to.iter().try_for_each(|target| may_take_over(&states, name, target))
}

/// Refuses a node that cannot get the clients of a node that is drained. `members` are names and states.
fn may_take_over(members: &[(&str, &str)], drained: &str, target: &str) -> Result<(), Problem> {
    let others = members.iter().filter(|(name, state)| *name != drained && *state == "alive");
    let others: Vec<&str> = others.map(|(name, _)| *name).collect();
    let advice = format!("name some of {}", others.join(", "));
    let why = match members.iter().find(|(name, _)| *name == target) {
        _ if target == drained => format!("`{target}` is the node that is drained"),
        None => format!("there is no node `{target}`"),
        Some((_, state)) if *state != "alive" => format!("node `{target}` is {state}"),
        Some(_) => return Ok(()),
    };
    Err(Problem::invalid("to", format!("{why}; {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_nodes_that_are_alive_get_the_clients() {
        let members = [("n1", "alive"), ("n2", "alive"), ("n3", "dead"), ("n4", "alive")];
        let refused =
            |target| may_take_over(&members, "n2", target).map_err(|problem| problem.detail().to_owned());
        assert_eq!(refused("n1"), Ok(()));
        for (target, why) in [
            ("n2", "to: `n2` is the node that is drained; name some of n1, n4"),
            ("n3", "to: node `n3` is dead; name some of n1, n4"),
            ("nobody", "to: there is no node `nobody`; name some of n1, n4"),
        ] {
            assert_eq!(refused(target), Err(why.to_owned()));
        }
    }

    #[test]
    fn nodes_above_the_mean_and_the_tolerance_keep_the_mean() {
        let node = |connections, accepts_clients| {
            let load = NodeLoad { connections, accepts_clients, ..NodeLoad::default() };
            RebalancedNode::new("n", Some(load))
        };
        let silent = RebalancedNode::new("s", None);
        let nodes = [node(300, true), node(100, true), node(110, true), node(900, false), silent];
        assert_eq!(mean(&nodes), 170);
        let exceeding = |tolerance| nodes.iter().filter(|node| exceeds(node, 170, tolerance)).count();
        assert_eq!((exceeding(10), exceeding(76), exceeding(77)), (1, 1, 0));
        assert!(!exceeds(&node(187, true), 170, 10) && exceeds(&node(188, true), 170, 10));
        assert_eq!((mean(&[]), mean(&nodes[3..])), (0, 0));
        assert_eq!(mean(&[node(u64::MAX, true), node(u64::MAX, true)]), u64::MAX.div_ceil(2));
        assert!(!exceeds(&node(u64::MAX, true), u64::MAX, 1_000));
    }
}
