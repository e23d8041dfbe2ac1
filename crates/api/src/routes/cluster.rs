//! `/cluster`: the node's part in its cluster, its members, and the actions of operators on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::http::StatusCode;
use broker::admin::Admin;
use serde::Deserialize;
use settings::{HostPort, NotHostPort};
use tokio::sync::oneshot;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::ask::ask;
use crate::cluster::{Cluster, ClusterView, MemberView, MembershipView, Order, OrderError};
use crate::extract::{Body, Path};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::{Phase, State};

api_routes! {
    "/api/v1/cluster": get cluster;
    "/api/v1/cluster/nodes/{name}": delete remove;
    "/api/v1/cluster/leader": put lead;
    "/api/v1/cluster/balance": post balance;
    "/api/v1/cluster/join": post join;
    "/api/v1/cluster/leave": post leave;
}

/// Maximum time for an order. The cores give up earlier; this bound is for a node that stops in the meantime.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time within which a decision of the cores is visible in this node's answers, unless the node is unreachable.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
const SHOWN_EVERY: Duration = Duration::from_millis(10);

/// Returns the node's part in its cluster: its links to other nodes, the routes of each node that it knows, and the
/// members that the cores agree on.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/cluster", tag = "node", operation_id = "cluster", security(("token" = ["viewer"])),
    responses((status = 200, body = ClusterView))))]
async fn cluster(state: State) -> Result<Json<ClusterView>, Problem> {
    part(&state).map(|(_, view)| Json(view))
}

fn of_state(state: &State) -> Result<&Arc<dyn Cluster>, Problem> {
    state.cluster.as_ref().ok_or_else(|| {
        Problem::not_found("this node belongs to no cluster: cluster.listen is not set in its configuration")
    })
}

fn part(state: &State) -> Result<(Arc<dyn Cluster>, ClusterView), Problem> {
    let cluster = of_state(state)?;
    match cluster.view() {
        Some(view) => Ok((cluster.clone(), view)),
        None => Err(Problem::unavailable("the node has not started its part in the cluster yet")),
    }
}

/// Removes a dead node from the cluster: nothing is kept for it any more. When it starts again it joins as any other
/// node does.
///
/// Only the incarnation that this node knows to be dead is removed. When the node has joined again in the meantime it
/// stays, and the answer is 409.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/cluster/nodes/{name}", tag = "node", operation_id = "remove_node",
    security(("token" = ["admin"])),
    params(("name" = String, Path)),
    responses((status = 204)),
))]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    caller.note(|| name.clone());
    let (cluster, view) = part(&state)?;
    let incarnation = may_go(&view, &name)?;
    let removed = execute(&*cluster, Order::Remove { node: name.clone(), incarnation }).await.map_err(|disobeyed| match disobeyed {
        OrderError::Refused(why) => Problem::conflict(format!("node `{name}` was not removed: {why}")),
        OrderError::Unknown(why) => Problem::unavailable(format!(
            "the cores did not agree to remove `{name}`: {why}. They may still do so: `meridian ctl cluster` \
             shows the members"
        )),
    })?;
    let is_gone = |members: &[MemberView]| {
        !members.iter().any(|member| member.node == name && member.incarnation == incarnation)
    };
    shown(&*cluster, |membership| is_gone(&membership.members)).await;
    Ok(removed)
}

/// Waits for `SHOWN_WITHIN` at most until this node's own answers show the decision of the cores. Otherwise the
/// operator's next request would show the old state.
async fn shown(cluster: &dyn Cluster, is_shown: impl Fn(&MembershipView) -> bool) {
    let until = Instant::now() + SHOWN_WITHIN;
    let holds = || cluster.view().is_some_and(|view| is_shown(&view.membership));
    while !holds() && Instant::now() < until {
        tokio::time::sleep(SHOWN_EVERY).await;
    }
}

/// Waits until an order is carried out.
async fn execute(cluster: &dyn Cluster, order: Order) -> Result<StatusCode, OrderError> {
    let (sender, receiver) = oneshot::channel();
    // The receiver is gone when the request was dropped in the meantime.
    cluster.order(order, Box::new(move |obeyed| drop(sender.send(obeyed))));
    match tokio::time::timeout(ORDER_TIMEOUT, receiver).await {
        Ok(Ok(obeyed)) => obeyed.map(|()| StatusCode::NO_CONTENT),
        Ok(Err(_)) | Err(_) => Err(OrderError::Unknown("this node is stopping".to_owned())),
    }
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Leader {
    /// Core to become the leader.
    node: String,
}

/// Makes another core the leader. The cores agree on nothing for a moment; nothing else depends on the leader.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/cluster/leader", tag = "node", operation_id = "transfer_lead",
    security(("token" = ["admin"])),
    request_body = Leader,
    responses((status = 204)),
))]
async fn lead(state: State, caller: Caller, Body(body): Body<Leader>) -> Result<StatusCode, Problem> {
    caller.note(|| body.node.clone());
    let (cluster, view) = part(&state)?;
    may_lead(&view.membership, &body.node)?;
    let led = execute(&*cluster, Order::Lead(body.node.clone())).await.map_err(|why| {
        Problem::unavailable(format!(
            "`{}` did not become the leader: {why}. `meridian ctl cluster` on a core shows the leader and \
             the voters",
            body.node
        ))
    })?;
    // A replicant does not know the leader.
    let leads =
        |it: &MembershipView| it.replica.as_ref().is_none_or(|it| it.leader.as_ref() == Some(&body.node));
    shown(&*cluster, leads).await;
    Ok(led)
}

/// Spreads the replicants evenly over the cores. Replicants of a region go to the cores of that region where it has
/// some. They move within a second and lose nothing.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/cluster/balance", tag = "node", operation_id = "balance_replicants",
    security(("token" = ["operator"])),
    responses((status = 204)),
))]
async fn balance(state: State) -> Result<StatusCode, Problem> {
    let (cluster, _) = part(&state)?;
    execute(&*cluster, Order::Balance).await.map_err(|why| Problem::unavailable(why.to_string()))
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Join {
    /// Cluster ports of nodes of the cluster, each as `HOST:PORT`.
    addresses: Vec<String>,
}

/// Maximum number of addresses in one request.
const ADDRESSES_MAX: usize = 16;

/// Gives a node that waits for its cluster, or reaches no core any more, the addresses of other nodes. They are used
/// until the process ends; `cluster.join` is permanent.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/cluster/join", tag = "node", operation_id = "join_cluster",
    security(("token" = ["admin"])),
    request_body = Join,
    responses((status = 204)),
))]
async fn join(state: State, caller: Caller, Body(body): Body<Join>) -> Result<StatusCode, Problem> {
    caller.note(|| body.addresses.join(", "));
    let (cluster, view) = part(&state)?;
    may_join(&view)?;
    if body.addresses.is_empty() || body.addresses.len() > ADDRESSES_MAX {
        return Err(Problem::invalid("addresses", format!("name 1 to {ADDRESSES_MAX} addresses")));
    }
    let mut addresses = Vec::new();
    for text in &body.addresses {
        let address: HostPort = text.parse().map_err(|why: NotHostPort| {
            Problem::invalid("addresses", format!("{text:?} is not HOST:PORT of a cluster port: {why}"))
        })?;
        addresses.push(address.as_str().to_owned());
    }
    execute(&*cluster, Order::JoinAt(addresses)).await.map_err(|why| Problem::unavailable(why.to_string()))
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct Leave {
    /// True to discard the durable sessions on this node's disk.
    #[serde(default)]
    discard_sessions: bool,
}

/// Stops this node permanently and removes it from the cluster. Its clients are disconnected, and it gives up its vote.
/// When it starts again it joins as any other node does.
///
/// A node that already leaves returns the same answer. A node that stops for another reason stays a member, and the
/// answer is 409.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/cluster/leave", tag = "node", operation_id = "leave_cluster",
    security(("token" = ["admin"])),
    request_body = Leave,
    responses((status = 202, description = "The stop has begun")),
))]
async fn leave(state: State, Body(body): Body<Leave>) -> Result<StatusCode, Problem> {
    if of_state(&state)?.is_leaving() {
        return Ok(StatusCode::ACCEPTED);
    }
    if state.phase() == Phase::Stopping {
        return Err(stays("it has begun to stop"));
    }
    let (cluster, view) = part(&state)?;
    may_leave(&view)?;
    if !have_sessions_replicas(&view) && !body.discard_sessions {
        refuse_loss(&state.admin).await?;
    }
    match execute(&*cluster, Order::Leave).await {
        Ok(_) => Ok(StatusCode::ACCEPTED),
        Err(OrderError::Refused(why)) => Err(stays(&why)),
        Err(OrderError::Unknown(why)) => Err(Problem::unavailable(why)),
    }
}

/// Refuses to discard durable sessions. The workers count them now, so one of a moment ago is not overlooked.
async fn refuse_loss(admin: &Admin) -> Result<(), Problem> {
    let mut sessions = 0;
    for worker in admin.workers() {
        sessions += ask(|reply| admin.session_count(worker, reply)).await?;
    }
    match sessions {
        0 => Ok(()),
        _ => Err(Problem::conflict(format!(
            "{sessions} durable sessions are stored on this node, and their queued messages would be lost: \
             confirm the loss (discard_sessions, `--discard-sessions`), or move the clients to other nodes \
             first"
        ))),
    }
}

/// Returns whether other cores have the sessions of this node before it leaves. A core that waits for something may
/// have sessions of its own, which no other core has.
fn have_sessions_replicas(view: &ClusterView) -> bool {
    view.shards.is_some() && view.membership.waits_for.is_none()
}

fn stays(why: &str) -> Problem {
    Problem::conflict(format!(
        "this node does not leave its cluster: {why}. It stays a member; repeat the command when it runs \
         again, or remove it when it is dead (`meridian ctl cluster remove`, on another node)"
    ))
}

fn may_lead(membership: &MembershipView, name: &str) -> Result<(), Problem> {
    let member = member(membership, name)?;
    let why = match member.state {
        _ if member.role != "core" => "is a replicant: only a core can be the leader",
        "alive" if membership.replica.is_some() && !member.votes => "has no vote yet: wait until it has one",
        "alive" => return Ok(()),
        _ => "is not alive",
    };
    Err(Problem::conflict(format!("node `{name}` {why}")))
}

/// Refuses a node that is already a member: an address does not move it to another cluster.
fn may_join(view: &ClusterView) -> Result<(), Problem> {
    let membership = &view.membership;
    if !membership.joined {
        return Ok(());
    }
    if membership.members.iter().all(|member| member.node == view.node) {
        return Err(Problem::conflict(
            "this node is a member of its own new cluster, and cannot move to another one: stop it, remove \
             its data directory, and start it with --join",
        ));
    }
    if view.links.iter().any(|link| link.state == "up" && link.role == "core") {
        return Err(Problem::conflict("this node is already a member of its cluster and reaches its cores"));
    }
    Ok(())
}

fn may_leave(view: &ClusterView) -> Result<(), Problem> {
    let membership = &view.membership;
    if !membership.joined {
        return Err(Problem::conflict("this node is no member of the cluster yet: stop it"));
    }
    let mut cores =
        membership.members.iter().filter(|member| member.role == "core" && member.state == "alive");
    if !cores.any(|core| core.node != view.node) {
        return Err(Problem::conflict(
            "no other core of the cluster is alive: without this node there would be nobody to agree that it leaves",
        ));
    }
    Ok(())
}

fn member<'a>(membership: &'a MembershipView, name: &str) -> Result<&'a crate::cluster::MemberView, Problem> {
    membership.members.iter().find(|member| member.node == name).ok_or_else(|| {
        let known: Vec<&str> = membership.members.iter().map(|member| member.node.as_str()).collect();
        Problem::not_found(format!(
            "there is no node `{name}` in this cluster; there are {}",
            if known.is_empty() { "none yet".to_owned() } else { known.join(", ") }
        ))
    })
}

/// Returns the incarnation to remove. Only a dead node is removed: a running one would join again, and messages that it
/// acknowledged could be lost in the meantime.
fn may_go(view: &ClusterView, name: &str) -> Result<u64, Problem> {
    let member = member(&view.membership, name)?;
    match member.state {
        "dead" => Ok(member.incarnation),
        "alive" => Err(Problem::conflict(format!(
            "node `{name}` is alive, as far as the cores agree: stop it first, as a running node would join \
             again, or let it leave (`meridian ctl cluster leave` on that node). A stopped node is dead as \
             soon as a majority of the cores agrees on it, or half of an even number including the leader"
        ))),
        "leaving" => Err(Problem::conflict(format!("node `{name}` is leaving already"))),
        _ => Err(Problem::conflict(format!(
            "the cores do not agree yet that node `{name}` is dead: stop it, and wait until `meridian ctl \
             cluster` shows it as dead. That takes a majority of the cores"
        ))),
    }
}
