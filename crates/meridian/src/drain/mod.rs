//! Drains of this node: takes its clients and its shards away gently, as an operator orders or before a stop.

pub mod order;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::{
    Cluster as _, DrainOrder, DrainRefused, DrainView, Drains, LoadQuestion, LoadUnknown, NodeLoad, ask_load,
};
use auth::Authorship;
use broker::admin::{Admin, DrainStep, Drained};
use configstore::{Change, ConfigStore};
use mqtt::ReasonCode;

use self::order::{Emptied, Order, Orders, TABLE};
use self::plan::{Kind, Observed, Other, Phase, Plan};
use crate::cluster::Cluster;

/// Mean time between two ticks. Each is up to a fifth shorter or longer, so that clients of several nodes that are
/// drained do not connect in step.
const TICK: Duration = Duration::from_millis(100);
/// Time between two looks at the other nodes.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two questions to each other node, and time for which an answer counts.
const ASK: Duration = Duration::from_secs(1);
const ANSWER_COUNTS: Duration = Duration::from_secs(5);
/// Time after which the router gets the drained nodes again, and a record that could not be removed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// Maximum time for a worker's answer to a step.
const STEP_LIMIT: Duration = Duration::from_secs(2);
/// Maximum length in bytes of another node's address for clients. Longer ones are not used.
const ADDRESS_MAX: usize = 512;

/// Drains of a node and the orders for them.
pub struct Drainer {
    admin: Admin,
    name: String,
    cluster: Option<Arc<Cluster>>,
    config_store: Arc<dyn ConfigStore>,
    orders: Arc<Orders>,
    status: Mutex<Option<DrainView>>,
    refuses: AtomicBool,
    /// True if the node does not return after its stop.
    leaves: AtomicBool,
    loads: Arc<Mutex<Loads>>,
    /// True if durable sessions do not move to other nodes.
    keeps_sessions: bool,
}

/// Answers of other nodes about their load.
#[derive(Default)]
struct Loads {
    by_node: BTreeMap<String, (Instant, NodeLoad)>,
    /// Nodes of an earlier version, which get another question.
    earlier: BTreeSet<String>,
}

impl Loads {
    fn question(&self, node: &str) -> LoadQuestion {
        if self.earlier.contains(node) { LoadQuestion::Node } else { LoadQuestion::Load }
    }

    fn answered(&mut self, node: String, answer: Result<NodeLoad, LoadUnknown>) {
        match answer {
            Ok(load) => drop(self.by_node.insert(node, (Instant::now(), load))),
            Err(LoadUnknown::EarlierVersion) => drop(self.earlier.insert(node)),
            Err(LoadUnknown::NoAnswer) => {}
        }
    }
}

impl Drainer {
    /// Starts to follow the orders for this node.
    ///
    /// # Errors
    /// Orders that cannot be read, or no thread.
    pub fn start(
        admin: Admin,
        name: &str,
        cluster: Option<Arc<Cluster>>,
        config_store: Arc<dyn ConfigStore>,
    ) -> Result<Arc<Self>, String> {
        let orders = Arc::new(Orders::default());
        config_store.subscribe(TABLE, orders.clone())?;
        let drainer = Arc::new(Self {
            admin,
            name: name.to_owned(),
            keeps_sessions: cluster.as_ref().is_none_or(|cluster| cluster.own().is_none()),
            cluster,
            config_store,
            orders,
            status: Mutex::default(),
            refuses: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            loads: Arc::default(),
        });
        let runs = drainer.clone();
        critical::spawn("drain", move || Run::new(&runs).run())
            .map_err(|error| format!("no thread for drains: {error}"))?;
        Ok(drainer)
    }

    /// Drains this node before it stops, for at most this time. `is_interrupted` waits for a moment, and returns
    /// whether an operator wants the stop to go on.
    pub fn drain_to_stop(
        self: &Arc<Self>,
        within: Duration,
        leaves: bool,
        mut is_interrupted: impl FnMut(Duration) -> bool,
    ) {
        let Some(cluster) = self.cluster.as_ref().filter(|_| !within.is_zero()) else { return };
        let is_other = |member: &api::MemberView| member.node != self.name && member.state == "alive";
        if !cluster.view().is_some_and(|view| view.membership.members.iter().any(is_other)) {
            return;
        }
        self.leaves.store(leaves, Ordering::Relaxed);
        let drain = self.orders.recorded(&self.name).filter(Order::is_drain);
        let is_drained = drain.is_some();
        let order = Order::of_stop(within, drain.map(|order| order.to).unwrap_or_default());
        // The order of a drain outlives the stop, and says the same to other nodes.
        if !leaves && !is_drained {
            self.record_stop(order.clone());
        }
        *sync::lock(&self.status) = None;
        self.orders.stop(order);
        let until = Instant::now() + within;
        let is_done =
            || sync::lock(&self.status).as_ref().is_some_and(|it| it.kind == "stop" && it.state == "drained");
        tracing::info!(?within, "drain before the stop; a signal ends the drain");
        while Instant::now() < until && !is_done() {
            if is_interrupted(TICK) {
                tracing::info!("drain ended by a signal");
                return;
            }
        }
        let clients_left = self.view().map_or(0, |view| view.clients_left);
        tracing::info!(clients_left, "drain before the stop has ended");
    }

    /// Tells other nodes that this one stops, as far as the cores agree in time.
    fn record_stop(&self, order: Order) {
        let (config_store, name) = (self.config_store.clone(), self.name.clone());
        let record = move || {
            let change = Change::put(TABLE, name, &order);
            if let Some(error) = change.ok().and_then(|change| config_store.propose(vec![change]).err()) {
                tracing::warn!(%error, "the cluster does not know that this node stops: shards may return to it for a moment");
            }
        };
        // The process ends without waiting for it.
        if let Err(error) = critical::spawn("drain-order", record) {
            tracing::warn!(%error, "no thread to tell the cluster that this node stops");
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.orders.end();
    }

    fn propose(&self, changes: Vec<Change>) -> Result<(), DrainRefused> {
        self.config_store.propose(changes).map(drop).map_err(DrainRefused::NotCommitted)
    }

    /// Returns the nodes that get the clients as they are now, as far as this one knows: those that the order names, or
    /// all others. `None` without a cluster.
    fn others(&self, emptied: &Emptied, order: &Order) -> Option<Vec<Other>> {
        let view = self.cluster.as_ref()?.view();
        let Some(view) = view else { return Some(Vec::new()) };
        let is_up = |name: &str| view.links.iter().any(|link| link.node == name && link.state == "up");
        let loads = sync::lock(&self.loads);
        let other = |member: &api::MemberView| {
            let name = &member.node;
            let load =
                loads.by_node.get(name).filter(|(at, _)| at.elapsed() < ANSWER_COUNTS).map(|(_, load)| load);
            let is_open = member.state == "alive" && is_up(name) && !emptied.contains_key(name);
            let known_max = load.filter(|load| load.connections_max > 0);
            Other {
                name: name.clone(),
                accepts_clients: is_open && load.is_none_or(|load| load.accepts_clients || load.overload > 0),
                overload: load.map_or(0, |load| load.overload),
                room: known_max.map(|load| load.connections_max.saturating_sub(load.connections)),
            }
        };
        let others = view.membership.members.iter().filter(|member| member.node != self.name);
        let others: Vec<Other> = others.map(other).collect();
        let is_named = |other: &&Other| order.to.contains(&other.name);
        let named_accepts = others.iter().filter(is_named).any(|other| other.accepts_clients);
        // A node that stops cannot wait for the named ones.
        if order.to.is_empty() || order.stops && !named_accepts {
            return Some(others);
        }
        Some(others.into_iter().filter(|other| is_named(&other)).collect())
    }

    /// Returns the addresses for clients of nodes that accept them, of those that an order names.
    fn addresses(&self, others: &[Other]) -> Vec<String> {
        let loads = sync::lock(&self.loads);
        let address = |other: &Other| {
            let (_, load) = loads.by_node.get(&other.name)?;
            load.client_address.clone().filter(|address| is_address(address))
        };
        others
            .iter()
            .filter(|other| other.accepts_clients && other.overload == 0)
            .filter_map(address)
            .collect()
    }

    /// Number of shards that this node leads, if another core can lead them.
    fn shards_to_leave(&self, emptied: &Emptied) -> u64 {
        let Some(view) = self.cluster.as_ref().and_then(|cluster| cluster.view()) else { return 0 };
        let is_up = |name: &str| view.links.iter().any(|link| link.node == name && link.state == "up");
        let can_lead = |member: &api::MemberView| {
            let is_open = member.state == "alive" && is_up(&member.node);
            member.role == "core" && is_open && !emptied.contains_key(&member.node)
        };
        let members = view.membership.members.iter();
        let open: BTreeSet<&str> = members.filter(|it| can_lead(it)).map(|it| &*it.node).collect();
        let shards = view.shards.as_ref().map_or(&[][..], |shards| &shards.items);
        let is_led = |shard: &&api::ShardView| {
            shard.leader.as_ref() == Some(&self.name)
                && shard.replicas.iter().any(|node| open.contains(&**node))
        };
        shards.iter().filter(is_led).count() as u64
    }

    fn ask_others(&self) {
        let Some(cluster) = &self.cluster else { return };
        let Some(view) = cluster.view() else { return };
        for link in view.links.iter().filter(|link| link.state == "up") {
            let (loads, name) = (Arc::downgrade(&self.loads), link.node.clone());
            let question = sync::lock(&self.loads).question(&name);
            ask_load(&**cluster, &link.node, question, move |answer| {
                if let Some(loads) = loads.upgrade() {
                    sync::lock(&loads).answered(name, answer);
                }
            });
        }
        sync::lock(&self.loads).by_node.retain(|_, (at, _)| at.elapsed() < ANSWER_COUNTS);
    }
}

impl Drains for Drainer {
    fn view(&self) -> Option<DrainView> {
        sync::lock(&self.status).clone()
    }

    fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    fn order(&self, node: &str, order: &DrainOrder, by: &Authorship) -> Result<(), DrainRefused> {
        let is_drained = |name: &&String| self.orders.recorded(name).is_some_and(|order| order.is_drain());
        if let Some(name) = order.to.iter().find(is_drained) {
            return Err(DrainRefused::Conflict(format!(
                "node `{name}` is drained itself: name a node that accepts clients"
            )));
        }
        self.rebalance_or_drain(&[(node.to_owned(), None)], order, by)
    }

    fn rebalance(
        &self,
        nodes: &[(String, u64)],
        order: &DrainOrder,
        by: &Authorship,
    ) -> Result<(), DrainRefused> {
        let nodes: Vec<_> = nodes.iter().map(|(name, keep)| (name.clone(), Some(*keep))).collect();
        for (name, _) in &nodes {
            if self.orders.recorded(name).is_some_and(|order| order.terms().kind == Kind::Drain) {
                return Err(DrainRefused::Conflict(format!(
                    "node `{name}` is drained: cancel its drain first"
                )));
            }
        }
        self.rebalance_or_drain(&nodes, order, by)
    }

    fn cancel(&self, node: &str) -> Result<bool, DrainRefused> {
        if self.orders.recorded(node).is_none() {
            return Ok(false);
        }
        self.propose(vec![Change::remove(TABLE, node)])?;
        Ok(true)
    }
}

impl Drainer {
    fn rebalance_or_drain(
        &self,
        nodes: &[(String, Option<u64>)],
        order: &DrainOrder,
        by: &Authorship,
    ) -> Result<(), DrainRefused> {
        let put = |(name, keep): &(String, Option<u64>)| {
            Change::put(TABLE, name.as_str(), &Order::of_operator(order, *keep, &by.author))
        };
        let changes: Result<Vec<_>, _> = nodes.iter().map(put).collect();
        self.propose(changes.map_err(|error| DrainRefused::Conflict(error.to_string()))?)
    }
}

/// Loop of the thread.
struct Run<'a> {
    drainer: &'a Drainer,
    began: Instant,
    plan: Option<(Order, Plan)>,
    /// Last phase that was logged.
    phase: Option<Phase>,
    emptied: Emptied,
    observed: Observed,
    /// Addresses for clients that refusals and disconnects name.
    addresses: Vec<String>,
    looked: Option<Instant>,
    asked: Option<Instant>,
    /// Time at which the router got the drained nodes, and at which a record was last removed.
    routed: Option<Instant>,
    removed: Option<Instant>,
    /// Number of ticks that disconnected clients; it wraps.
    turns: u32,
}

impl<'a> Run<'a> {
    fn new(drainer: &'a Drainer) -> Self {
        Self {
            drainer,
            began: Instant::now(),
            plan: None,
            phase: None,
            emptied: Emptied::new(),
            observed: Observed::default(),
            addresses: Vec::new(),
            looked: None,
            asked: None,
            routed: None,
            removed: None,
            turns: 0,
        }
    }

    fn run(mut self) {
        let mut version = 0;
        loop {
            let Some(next) = self.drainer.orders.wait(version, self.pause()) else { return };
            version = next;
            self.turn();
        }
    }

    /// Time until the next turn, unless orders change.
    fn pause(&self) -> Duration {
        if self.plan.is_none() {
            return AGAIN;
        }
        let mut random = [0];
        // Without randomness, ticks are regular.
        let _ = getrandom::fill(&mut random);
        TICK.mul_f64(0.8 + f64::from(random[0]) / 640.0)
    }

    fn turn(&mut self) {
        let emptied = self.drainer.orders.emptied(&self.drainer.name);
        self.route(emptied);
        self.remove_own_stop();
        match (self.drainer.orders.of(&self.drainer.name), &mut self.plan) {
            (None, None) => {}
            (None, Some(_)) => self.end_plan(),
            (Some(order), Some((known, _))) if *known == order => self.tick(),
            (Some(order), _) => {
                self.begin(order);
                self.tick();
            }
        }
    }

    /// Passes the drained nodes on to the thread of the cluster router. It may have started later than this one.
    fn route(&mut self, emptied: Emptied) {
        let is_again = !emptied.is_empty() && is_due(self.routed, AGAIN);
        if emptied == self.emptied && !is_again {
            return;
        }
        self.routed = Some(Instant::now());
        self.emptied = emptied;
        if let Some(cluster) = &self.drainer.cluster {
            cluster.set_drained(&self.emptied, &self.drainer.name);
        }
    }

    /// Removes the order of an earlier stop of this node: it runs again.
    fn remove_own_stop(&mut self) {
        let Drainer { orders, name, .. } = self.drainer;
        let is_earlier = orders.recorded(name).is_some_and(|order| order.stops) && !orders.stops();
        if is_earlier {
            self.remove_record();
        }
    }

    fn remove_record(&mut self) {
        if !is_due(self.removed, AGAIN) {
            return;
        }
        if let Err(DrainRefused::NotCommitted(error)) =
            self.drainer.propose(vec![Change::remove(TABLE, self.drainer.name.as_str())])
        {
            tracing::debug!(%error, "the order of a drain that is over is not removed yet");
        }
        self.removed = Some(Instant::now());
    }

    fn begin(&mut self, order: Order) {
        self.looked = None;
        self.look(&order);
        let (now, terms) = (self.began.elapsed(), order.terms());
        let plan = match self.plan.take() {
            Some((_, mut plan)) => {
                plan.set_terms(now, terms, &self.observed);
                plan
            }
            None => Plan::begin(now, terms, &self.observed),
        };
        let refuses = plan.refuses();
        self.drainer.refuses.store(refuses, Ordering::Relaxed);
        self.drainer.admin.refuse_clients(refuses);
        let kind = kind_name(terms.kind);
        tracing::info!(
            kind,
            clients = self.observed.clients,
            rate = plan.rate(),
            to = order.to.join(", "),
            by = order.by.as_deref(),
            "drain: this node disconnects its clients"
        );
        self.plan = Some((order, plan));
    }

    fn end_plan(&mut self) {
        self.plan = None;
        // They may have another version at the next drain.
        sync::lock(&self.drainer.loads).earlier.clear();
        self.phase = None;
        self.use_addresses(Vec::new());
        self.drainer.refuses.store(false, Ordering::Relaxed);
        self.drainer.admin.refuse_clients(false);
        *sync::lock(&self.drainer.status) = None;
        tracing::info!("drain: the order is cancelled or done; this node accepts clients");
    }

    fn look(&mut self, order: &Order) {
        self.observed.clients = self.drainer.admin.connected_clients();
        if is_due(self.looked, LOOK) {
            self.looked = Some(Instant::now());
            self.observed.others = self.drainer.others(&self.emptied, order);
            self.observed.shards_led = self.drainer.shards_to_leave(&self.emptied);
            let named = self.observed.others.as_deref().filter(|_| !order.to.is_empty());
            let addresses = self.drainer.addresses(named.unwrap_or_default());
            self.use_addresses(addresses);
        }
    }

    /// Sets the addresses that refusals and disconnects name from now on; none: those of `node.server_reference`.
    fn use_addresses(&mut self, addresses: Vec<String>) {
        if addresses != self.addresses {
            self.drainer.admin.set_successors(&addresses);
            self.addresses = addresses;
        }
    }

    fn tick(&mut self) {
        if is_due(self.asked, ASK) {
            self.asked = Some(Instant::now());
            self.drainer.ask_others();
        }
        let Some(order) = self.plan.as_ref().map(|(order, _)| order.clone()) else { return };
        self.look(&order);
        let now = self.began.elapsed();
        let Some((order, plan)) = &mut self.plan else { return };
        let some = plan.tick(now, &self.observed);
        if some > 0 {
            let moved = self.drainer.leaves.load(Ordering::Relaxed) && order.stops;
            let step = DrainStep {
                limit: some,
                class: plan.class(),
                hurries: plan.hurries(now),
                reason: if moved { ReasonCode::ServerMoved } else { ReasonCode::UseAnotherServer },
            };
            self.turns = self.turns.wrapping_add(1);
            let Drained { disconnected, is_exhausted } = drain_some(&self.drainer.admin, &step, self.turns);
            plan.stepped(now, disconnected.into(), is_exhausted);
        }
        let is_over = self.publish(now);
        if is_over {
            self.remove_record();
        }
    }

    /// Publishes and logs the progress. Returns whether the order is done, so that its record is not needed any more.
    fn publish(&mut self, now: Duration) -> bool {
        let Some((order, plan)) = &self.plan else { return false };
        let progress = plan.progress(now, &self.observed);
        let kind = order.terms().kind;
        let (state, paused_because) = match &progress.phase {
            Phase::Waiting => ("waiting", None),
            Phase::Disconnecting => ("disconnecting", None),
            Phase::Paused(pause) => ("paused", Some(pause.describe(&order.to))),
            Phase::Done => ("drained", None),
        };
        let kept = if self.drainer.keeps_sessions {
            self.drainer.admin.figures().total(|it| it.sessions)
        } else {
            0
        };
        let view = DrainView {
            node: self.drainer.name.clone(),
            kind: kind_name(kind),
            to: order.to.clone(),
            state,
            paused_because: paused_because.clone(),
            stalled_s: progress.stalled.as_secs(),
            clients_before: progress.clients_before,
            clients_left: progress.clients_left,
            disconnected: progress.disconnected,
            shards_led: self.observed.shards_led,
            sessions_stay: kept,
            rate: plan.rate(),
            left_s: progress.left.map(|left| left.as_secs()),
            started_at: order.at,
            by: order.by.clone(),
        };
        *sync::lock(&self.drainer.status) = Some(view);
        if self.phase.as_ref().is_none_or(|known| differs(known, &progress.phase)) {
            let (left, disconnected) = (progress.clients_left, progress.disconnected);
            match paused_because {
                Some(why) => tracing::warn!(left, disconnected, "drain paused: {why}; it goes on by itself"),
                None => tracing::info!(left, disconnected, state, "drain"),
            }
        }
        self.phase = Some(progress.phase);
        self.phase == Some(Phase::Done) && matches!(kind, Kind::Rebalance { .. })
    }
}

/// Returns the part of one worker of so many, in a turn. The parts of all of them are `limit` together, and each worker
/// gets one more in some turns.
fn part(limit: u32, count: u32, at: u32, turn: u32) -> u32 {
    (limit + at.wrapping_add(turn) % count) / count
}

/// Returns whether two phases are of different kinds. Numbers of a pause may change often.
fn differs(a: &Phase, b: &Phase) -> bool {
    std::mem::discriminant(a) != std::mem::discriminant(b)
}

/// Returns whether another node's address for clients can be part of a Server Reference.
fn is_address(address: &str) -> bool {
    let is_text = address.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    is_text && !address.trim().is_empty() && address.len() <= ADDRESS_MAX
}

fn is_due(last: Option<Instant>, after: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= after)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Drain => "drain",
        Kind::Rebalance { .. } => "rebalance",
        Kind::Stop => "stop",
    }
}

/// Disconnects some clients of all workers, each an equal part of them. `turn` says which workers get one more.
fn drain_some(admin: &Admin, step: &DrainStep, turn: u32) -> Drained {
    let workers: Vec<_> = admin.workers().collect();
    let (sender, answers) = mpsc::sync_channel(workers.len());
    let count = workers.len() as u32;
    for (at, worker) in (0..).zip(workers) {
        let limit = part(step.limit, count, at, turn);
        let sender = sender.clone();
        // The receiver waits for a bounded time only.
        let reply = Box::new(move |drained| {
            let _ = sender.try_send(drained);
        });
        admin.drain_some(worker, DrainStep { limit, ..step.clone() }, reply);
    }
    drop(sender);
    let until = Instant::now() + STEP_LIMIT;
    let mut sum = Drained { disconnected: 0, is_exhausted: true };
    for _ in 0..count {
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(drained) => {
                sum.disconnected += drained.disconnected;
                sum.is_exhausted &= drained.is_exhausted;
            }
            // A worker is busy, or the node stops.
            Err(_) => return Drained { is_exhausted: false, ..sum },
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_an_earlier_version_gets_the_question_that_it_knows() {
        let mut loads = Loads::default();
        loads.answered("old".to_owned(), Err(LoadUnknown::EarlierVersion));
        loads.answered("new".to_owned(), Err(LoadUnknown::NoAnswer));
        assert_eq!((loads.question("old"), loads.question("new")), (LoadQuestion::Node, LoadQuestion::Load));
        loads.answered("old".to_owned(), Ok(NodeLoad { connections: 7, ..NodeLoad::default() }));
        assert_eq!((loads.by_node["old"].1.connections, loads.by_node.len()), (7, 1));
    }

    #[test]
    fn only_an_address_of_another_node_is_named_to_clients() {
        for address in ["n2:1883", "a.example b.example:8883", "[2001:db8::1]:1883"] {
            assert!(is_address(address), "{address}");
        }
        for address in ["", " ", "a\0b", "a\nb", "ü", &"a".repeat(ADDRESS_MAX + 1)] {
            assert!(!is_address(address), "{address:?}");
        }
    }

    #[test]
    fn each_worker_gets_its_turn() {
        for (limit, count) in [(1, 2), (5, 4), (0, 3), (7, 1)] {
            let mut sums = vec![0; count as usize];
            for turn in 0..count {
                let parts: Vec<u32> = (0..count).map(|at| part(limit, count, at, turn)).collect();
                assert_eq!(parts.iter().sum::<u32>(), limit);
                sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            }
            assert!(sums.iter().all(|sum| *sum == limit), "{sums:?}");
        }
    }
}
