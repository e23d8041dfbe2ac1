//! Scenarios: cases that simulations once found, replayed step by step. They have a few cores and links of one
//! millisecond, and randomness does not affect the result. `meta_group` has members that join, die and leave. In the
//! other modules no member leaves or is removed. [`Scenario`] is the common part.

#![cfg_attr(not(test), allow(dead_code, reason = "only some scenarios notice a mutation"))]

use std::time::Duration;

use broker::peers::SubackLevel;
use broker::settings::Settings;
use cluster::meta::{Meta, REPLACE_AFTER};
use cluster::{Config, ForwardAck, LeaderPolicy, NodeInfo, Replicas, Role, WithoutQuorum};
use link::{MeshConfig, NodeId};
use mqtt::QoS;
use replog::{Batching, Incarnation};

use super::client::{Client, RetainAction, Scene};
use super::oracle::{GROUPS, Level, RETAINED};
use super::plan::{Fault, Plan, SNAPSHOT_AFTER};
use super::world::SimCluster;
use crate::node::Setup;
use crate::schedule::{MILLI, Micros, SECOND};
use crate::trace::Trace;

#[cfg(test)]
mod clocks;
#[cfg(test)]
mod groups;
mod leases;
mod meta_group;
#[cfg(test)]
mod regions;
mod restarts;
mod retained;
mod routes;
mod sessions;
mod shard_routes;

const SEED: u64 = 7;
/// Longer than any scenario takes.
const LONG: Micros = 1_000 * SECOND;
/// Time after which new replicants are spread over the cores, and all cores vote.
const SETTLED: Micros = 8 * SECOND;

fn plan(batching: Duration) -> Plan {
    let info = |at: usize| NodeInfo {
        name: format!("n{at}").into(),
        role: Role::Core,
        region: "r".into(),
        address: at.to_string().into(),
    };
    let nodes: Vec<NodeInfo> = (0..3).map(info).collect();
    let mut settings = Settings::default();
    settings.sys.interval = Duration::ZERO;
    // Level of clients before MQTT 5, which cannot request one.
    settings.routing.suback = SubackLevel::Core;
    let setup = Setup {
        urgent: &[],
        rules: std::sync::Arc::default(),
        settings,
        workers: 1,
        segment_bytes: 64 << 10,
        commit_bytes_max: 8 << 20,
        low_bytes_per_commit: 1 << 20,
        entropy: entropy(0),
        sync_max: 300,
        keeps_ahead: true,
        replica: None,
        #[cfg(feature = "trial")]
        mutation: None,
    };
    let mut mesh = MeshConfig { dial_max: Duration::from_millis(200), ..MeshConfig::default() };
    (mesh.link.heartbeat, mesh.link.silence_max) = (Duration::from_millis(100), Duration::from_millis(500));
    let setups = (0..3).map(|at| Setup { entropy: entropy(at), ..setup.clone() });
    Plan {
        setups: setups.collect(),
        config: Config {
            own: nodes[0].clone(),
            incarnation: Incarnation(0),
            wall_ms: 0,
            batching: Batching { interval: batching, bytes_max: 64 << 10, in_flight_max: 4 << 20 },
            tombstones_max: 1_000,
            forward_ack: ForwardAck::Received,
            suback_timeout: Duration::from_secs(10),
            qos0_linger: Duration::ZERO,
            lease: Duration::from_secs(2),
            packs: true,
            without_quorum: WithoutQuorum::Hold,
            leaders: LeaderPolicy::Spread,
        },
        mesh,
        latency: MILLI,
        jitter: 100,
        nodes,
        clients: 0,
        pace: SECOND,
        length: LONG,
        faults: Vec::new(),
        is_tight: false,
        has_hostile_client: false,
        patience: Duration::ZERO,
        join_lists: Vec::new(),
        old: Vec::new(),
        rates: Vec::new(),
        places_shards: false,
        own_states: Vec::new(),
        replicas: Replicas::default(),
        replace_after: REPLACE_AFTER,
        snapshot_after: SNAPSHOT_AFTER,
        skews: vec![0; 3],
    }
}

/// Returns the entropy of a node: the logs of any two nodes differ.
fn entropy(node: usize) -> [u8; 48] {
    [node as u8 + 1; 48]
}

/// A cluster of three or more nodes, a subscriber on the first and a publisher on the third.
struct Scenario {
    cluster: SimCluster,
}

const SUBSCRIBER: usize = 0;
const PUBLISHER: usize = 1;
const PUBLISHER_NODE: usize = 2;
/// Number of the fourth node, where there is one.
const REPLICANT: usize = 3;

impl Plan {
    /// Adds a node.
    fn add(&mut self, role: Role) {
        let at = self.nodes.len();
        let mut info = NodeInfo { name: format!("n{at}").into(), role, ..self.nodes[0].clone() };
        info.address = at.to_string().into();
        self.nodes.push(info);
        self.setups.push(Setup { entropy: entropy(at), ..self.setups[0].clone() });
        self.skews.push(0);
    }

    /// Returns a plan whose cores declare no node dead. A cut has then the effects that it has before the cores decide.
    fn undecided(self) -> Self {
        Self { patience: Duration::from_micros(LONG), ..self }
    }
}

impl Scenario {
    fn of(plan: Plan) -> Self {
        Self::of_links(plan, |_| None)
    }

    /// Starts a scenario with given link features instead of random ones. It begins when replicants stay with their
    /// cores.
    fn of_links(plan: Plan, links: impl Fn(usize) -> Option<u64>) -> Self {
        let mut scenario = Self::of_seed(SEED, plan, links);
        scenario.run_for(SETTLED);
        scenario
    }

    /// Starts a scenario with another seed: another leader, and another order of messages.
    fn of_seed(seed: u64, plan: Plan, links: impl Fn(usize) -> Option<u64>) -> Self {
        Self::of_first(seed, plan, links, 0)
    }

    /// Starts a scenario without this number of nodes, the last ones.
    fn of_first(seed: u64, plan: Plan, links: impl Fn(usize) -> Option<u64>, later: usize) -> Self {
        let mut cluster = SimCluster::of_plan(seed, plan, Trace::default());
        let count = cluster.members.len() - later;
        cluster.wan.is_calm = true;
        cluster.net.calm = true;
        for node in 0..cluster.members.len() {
            cluster.members[node].log.get_or_insert(cluster::LOG);
            cluster.members[node].links = links(node);
            if node < count {
                cluster.start(node);
            }
        }
        let mut scenario = Self { cluster };
        scenario.run_for(5 * SECOND);
        for (number, node) in [(SUBSCRIBER, 0), (PUBLISHER, PUBLISHER_NODE)] {
            // Members speak MQTT 5, in which a SUBSCRIBE can request a level.
            scenario.cluster.clients.push(Client::member(number));
            scenario.cluster.connect(number, node);
        }
        scenario.run_for(SECOND);
        scenario.until("all belong to it", |scenario| (0..count).all(|node| scenario.members(node) == count));
        scenario
    }

    fn meta(&self, node: usize) -> Option<&Meta> {
        Some(self.cluster.members[node].process.as_ref()?.router.meta())
    }

    /// Number of members that a node knows, or 0 if it is not a member.
    fn members(&self, node: usize) -> usize {
        self.meta(node).filter(|meta| meta.is_member()).map_or(0, |meta| meta.roster().members.len())
    }

    fn run_for(&mut self, time: Micros) {
        let until = self.cluster.cx.now() + time;
        self.cluster.run_until(until);
    }

    fn with(&mut self, client: usize, what: impl FnOnce(&mut Client, &mut Scene<'_>)) {
        let cluster = &mut self.cluster;
        let mut scene = Scene { cx: &mut cluster.cx, net: &mut cluster.net, oracle: &mut cluster.oracle };
        what(&mut cluster.clients[client], &mut scene);
    }

    fn subscribes(&mut self) {
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(SUBSCRIBER, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    }

    /// Returns whether the subscriber has its SUBACK.
    fn is_subscribed(&mut self) -> bool {
        let (.., view) = self.cluster.clients[SUBSCRIBER].location().expect("the subscriber is connected");
        self.cluster.oracle.view(view).granted.contains_key("t/#")
    }

    fn publishes(&mut self) -> usize {
        self.publishes_on("t/0", QoS::AtLeastOnce, RetainAction::Nothing)
    }

    fn publishes_on(&mut self, topic: &str, qos: QoS, retain_action: RetainAction) -> usize {
        self.publishes_as(PUBLISHER, topic, qos, retain_action)
    }

    fn publishes_as(&mut self, client: usize, topic: &str, qos: QoS, retain_action: RetainAction) -> usize {
        let number = self.cluster.oracle.next_number();
        self.with(client, |client, scene| client.publishes(scene, topic, qos, retain_action));
        number
    }

    /// Subscribes a client to the shared group.
    fn joins_group(&mut self, client: usize) {
        let filters = vec![(GROUPS[0].to_owned(), QoS::AtLeastOnce)];
        self.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    }

    /// Adds a client to a node.
    fn connects(&mut self, node: usize) -> usize {
        let number = self.cluster.clients.len();
        self.cluster.clients.push(Client::new(number, None));
        self.cluster.connect(number, node);
        self.run_for(SECOND);
        number
    }

    /// Adds a subscriber to a node, and waits until all nodes know the subscription.
    fn has_subscriber(&mut self, node: usize) -> usize {
        let number = self.cluster.clients.len();
        self.cluster.clients.push(Client::member(number));
        self.cluster.connect(number, node);
        self.run_for(100 * MILLI);
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(number, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        self.until_granted(number, "t/#");
        number
    }

    /// Retained messages that a new subscriber finds on a node.
    fn retained(&mut self, node: usize) -> Vec<usize> {
        let view = self.reads(node);
        self.cluster.oracle.view(view).retained.values().copied().collect()
    }

    /// Subscribes a new client to all retained messages of a node. Returns the session.
    fn reads(&mut self, node: usize) -> usize {
        let reader = self.connects(node);
        let filters = vec![(RETAINED.to_owned(), QoS::AtLeastOnce)];
        self.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        self.run_for(SECOND);
        self.cluster.clients[reader].location().expect("the reader is connected").2
    }

    /// State of the link from a node to another: whether it is up, and how often the other was restarted.
    fn link(&mut self, from: usize, to: usize) -> (bool, u64) {
        let process = self.cluster.members[from].process.as_mut().expect("the node runs");
        let peer = process.router.mesh().peer(NodeId::of_name(&format!("n{to}"))).expect("a peer");
        (peer.is_up, peer.link.counters().restarts)
    }

    fn got_in_group(&self, number: usize) -> u32 {
        self.cluster.oracle.arrivals_in_group(number, GROUPS[0])
    }

    fn is_acknowledged(&self, number: usize) -> bool {
        self.cluster.oracle.is_acknowledged(number)
    }

    fn has_arrived(&self, number: usize) -> bool {
        self.has_arrived_at(SUBSCRIBER, number)
    }

    fn has_arrived_at(&self, client: usize, number: usize) -> bool {
        let (.., view) = self.cluster.clients[client].location().expect("the client is connected");
        self.cluster.oracle.has_arrived(view, number)
    }

    /// Number of routes to other nodes that a node knows.
    fn routes_known(&self, node: usize) -> usize {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let mut known = 0;
        process
            .node
            .broker()
            .routes
            .for_each_wanted(|_, location, _| known += usize::from(location.is_some()));
        known
    }

    /// Waits for SUBACK, for less than the time after which it is sent in any case.
    fn until_granted(&mut self, client: usize, filter: &str) {
        let (.., view) = self.cluster.clients[client].location().expect("the client is connected");
        let mut waited = 0;
        while !self.cluster.oracle.view(view).granted.contains_key(filter) {
            self.run_for(MILLI);
            waited += 1;
            assert!(waited < 90_000, "no SUBACK for {filter}");
        }
    }

    /// Returns whether a node knows a route of another one for a filter.
    fn knows_route(&self, node: usize, wanted: &str) -> bool {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let mut is_known = false;
        process.node.broker().routes.for_each_wanted(|filter, location, _| {
            is_known |= location.is_some() && filter == wanted;
        });
        is_known
    }

    fn part(&mut self, one: usize, other: usize) {
        let now = self.cluster.cx.now();
        self.cluster.wan.cut(now, one, other, LONG);
        self.cluster.wan.cut(now, other, one, LONG);
    }

    fn join(&mut self, one: usize, other: usize) {
        self.cluster.wan.mend(&mut self.cluster.cx, one, other);
        self.cluster.wan.mend(&mut self.cluster.cx, other, one);
    }

    /// Asserts that a message is acknowledged while the first node is cut off, and arrives when the node is back.
    fn assert_waits_for_the_first_node(&mut self, publisher: usize) {
        let number = self.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
        self.run_for(SECOND);
        assert!(self.is_acknowledged(number) && !self.has_arrived(number));
        self.join(0, REPLICANT);
        self.run_for(5 * SECOND);
        assert!(self.has_arrived(number));
    }

    fn restart(&mut self, node: usize) {
        self.cluster.fault(&Fault::Kill { node });
        self.cluster.start(node);
    }

    /// Kills a node for good.
    fn shuts_down(&mut self, node: usize) {
        self.cluster.members[node].is_switched_off = true;
        self.cluster.fault(&Fault::Kill { node });
    }

    /// Core to which a replicant is attached.
    fn attached(&self, replicant: usize) -> usize {
        let process = self.cluster.members[replicant].process.as_ref().expect("the node runs");
        let core = process.router.view(process.time(&self.cluster.cx)).attached.expect("a core is there");
        (0..self.cluster.members.len()).find(|node| *core == format!("n{node}")).expect("a node")
    }

    /// Returns whether a node is linked to another one whose link has restarted `restarts` times.
    fn is_joined(&self, from: usize, to: usize, restarts: u64) -> bool {
        let process = self.cluster.members[from].process.as_ref().expect("the node runs");
        let links = process.router.view(process.time(&self.cluster.cx)).links;
        links
            .iter()
            .any(|link| *link.peer.name == format!("n{to}") && link.is_up && link.restarts == restarts)
    }

    /// Returns whether a node may acknowledge.
    fn may_acknowledge(&self, node: usize) -> bool {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        process.router.may_acknowledge(process.time(&self.cluster.cx))
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let mut waited = 0;
        while !is_so(self) {
            self.run_for(10 * MILLI);
            waited += 1;
            assert!(waited < 6_000, "not in a minute: {what}");
        }
    }

    /// Cuts a node off from all others.
    fn isolate(&mut self, node: usize) {
        for other in (0..self.cluster.members.len()).filter(|other| *other != node) {
            self.part(node, other);
        }
    }

    fn release(&mut self, node: usize) {
        for other in (0..self.cluster.members.len()).filter(|other| *other != node) {
            self.join(node, other);
        }
    }
}

fn id(node: usize) -> NodeId {
    NodeId::of_name(&format!("n{node}"))
}

/// Mutations, and the scenarios that notice them.
#[cfg(feature = "trial")]
pub const TRIALS: [(cluster::Mutation, fn()); 39] = [
    (cluster::Mutation::CountFromReceipt, leases::a_lease_counts_from_the_request_however_late_its_grant_is),
    (cluster::Mutation::SettleCutOff, leases::a_node_that_is_cut_off_acknowledges_nothing_that_only_it_has),
    (
        cluster::Mutation::SettleForgotten,
        sessions::a_message_for_a_durable_session_that_is_lost_with_its_node_is_not_acknowledged,
    ),
    (
        cluster::Mutation::ConfirmToNext,
        restarts::a_message_of_the_previous_incarnation_is_not_confirmed_to_the_next,
    ),
    (
        cluster::Mutation::ForgetRemoved,
        meta_group::removed::subacks_wait_for_the_lease_of_a_node_that_has_left,
    ),
    (
        cluster::Mutation::RefuseShapes,
        routes::a_filter_granted_by_another_node_is_routed_beyond_the_limit_of_shapes,
    ),
    (
        cluster::Mutation::IgnoreCopyRequests,
        retained::retained_messages_missed_on_a_full_disk_are_copied_when_there_is_room,
    ),
    (cluster::Mutation::ForgetGrants, leases::restarted_cores_wait_for_the_leases_that_they_have_forgotten),
    (
        cluster::Mutation::GrantUninformed,
        leases::a_restarted_core_gets_the_routes_of_every_node_before_it_grants_a_lease,
    ),
    (
        cluster::Mutation::GrantSuspects,
        meta_group::dead::a_suspected_node_gets_no_lease_from_a_core_that_reaches_it_again,
    ),
    (cluster::Mutation::DeclareDeadAtOnce, meta_group::dead::a_node_with_a_lease_is_not_declared_dead),
    (cluster::Mutation::NoMargin, meta_group::dead::a_node_with_a_lease_by_a_slow_clock_is_not_declared_dead),
    (
        cluster::Mutation::PurgeSuspects,
        meta_group::dead::a_suspected_node_that_is_reachable_again_keeps_its_routes,
    ),
    (
        cluster::Mutation::KeepClients,
        meta_group::dead::a_client_connected_to_a_node_that_was_declared_dead_misses_nothing,
    ),
    (
        cluster::Mutation::StayDead,
        meta_group::dead::a_node_that_is_cut_off_is_declared_dead_acknowledges_nothing_and_joins_again,
    ),
    (
        cluster::Mutation::ForgetRelays,
        meta_group::removed::a_core_that_does_not_reach_the_leader_is_relayed_by_another,
    ),
    (cluster::Mutation::FoundAlone, meta_group::founding::nodes_that_know_only_addresses_form_one_cluster),
    (cluster::Mutation::CountRemoved, meta_group::majorities::a_removed_core_does_not_count_for_majorities),
    (cluster::Mutation::ManyCoresAtOnce, meta_group::majorities::cores_are_removed_one_after_the_other),
    (
        cluster::Mutation::ForgetEarly,
        routes::routes_of_sessions_are_kept_while_their_restarted_node_announces_them_again,
    ),
    (
        cluster::Mutation::AdoptUnread,
        meta_group::majorities::a_command_that_one_core_cannot_read_is_committed_after_its_update,
    ),
    (
        cluster::Mutation::OldIncarnationsJoin,
        meta_group::founding::a_node_that_has_lost_its_incarnation_number_takes_a_greater_one,
    ),
    (
        cluster::Mutation::RememberIncarnations,
        meta_group::removed::routes_of_a_node_that_left_and_joins_with_a_smaller_incarnation_are_accepted,
    ),
    (
        cluster::Mutation::RememberIncarnations,
        meta_group::removed::an_incarnation_that_never_joined_does_not_block_a_smaller_one,
    ),
    (
        cluster::Mutation::RememberIncarnations,
        meta_group::removed::messages_for_a_smaller_incarnation_are_not_lost_with_the_link_to_a_greater_one,
    ),
    (
        cluster::Mutation::AskOneCore,
        leases::a_route_of_a_dead_core_that_one_core_alone_knows_reaches_the_others,
    ),
    (cluster::Mutation::ForgetAway, routes::routes_of_an_absent_replicant_reach_its_restarted_core),
    (
        cluster::Mutation::StayAttached,
        meta_group::removed::a_replicant_leaves_a_core_that_is_dead_for_the_others,
    ),
    (
        cluster::Mutation::GrantInTime,
        leases::a_restarted_core_waits_for_the_routes_of_a_linked_node_without_a_limit,
    ),
    (
        cluster::Mutation::StaySuspect,
        meta_group::removed::a_core_that_leads_while_it_is_suspected_reports_itself_alive,
    ),
    (
        cluster::Mutation::ForgetLegacy,
        meta_group::removed::retained_messages_that_a_dead_node_sent_to_some_nodes_reach_the_others,
    ),
    (
        cluster::Mutation::CountOnDead,
        meta_group::removed::a_leader_that_leaves_while_another_core_is_dead_waits_for_no_vote_of_it,
    ),
    (
        cluster::Mutation::GrantWithoutShards,
        shard_routes::a_node_that_returns_has_no_lease_before_it_knows_the_routes_of_shards,
    ),
    (
        cluster::Mutation::GrantBeforeShards,
        shard_routes::a_restarted_core_grants_nothing_before_it_knows_the_shards_as_the_others_do,
    ),
    (cluster::Mutation::PlaceOnDead, meta_group::placement::a_dead_core_gets_no_replicas_of_another_one),
    (cluster::Mutation::MoveManyShards, meta_group::placement::replicas_of_shards_follow_the_cores),
    (cluster::Mutation::ForgetPlacement, meta_group::placement::a_placement_outlasts_a_restart_of_all_cores),
    (
        cluster::Mutation::LeadUnreached,
        meta_group::placement::shards_are_led_by_a_core_that_reaches_all_nodes,
    ),
    (
        cluster::Mutation::SendToDead,
        restarts::messages_for_routes_of_a_new_incarnation_learned_from_others_arrive_there,
    ),
];
