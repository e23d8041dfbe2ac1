//! End of a simulation: without further faults, every node knows the routes of the others, and any two nodes exchange
//! messages.

use std::collections::{BTreeMap, BTreeSet};

use broker::peers::Wants;
use cluster::meta::{ShardPlacement, ShardReplica, State};
use link::PeerStatus;
use mqtt::QoS;

use super::client::{Client, RetainAction, Scene};
use super::oracle::{GROUP_TOPICS, GROUPS, Level, RETAINED, SHARE};
use super::plan::Fault;
use super::step::Step;
use super::world::SimCluster;
use crate::schedule::{Event, SECOND};

/// Maximum number of seconds until all messages have arrived.
const PATIENCE: usize = 600;
/// Seconds of silence. Longer than all timers except those by which nodes find each other.
const SILENCE: usize = 4;
/// Maximum number of seconds until all nodes are joined and members after the last fault. The cores may need several
/// elections, and cores join one at a time.
const JOINED_PATIENCE: usize = 90;
/// The same, with shards whose replicas move one after the other. A change that cannot end holds up the others for up
/// to 100 s.
const PLACED_PATIENCE: usize = 400;

/// Routes of a node by filter.
type Wanted = BTreeMap<String, Wants>;
/// Routes by node and filter.
type WantedThere = BTreeMap<(usize, String), Wants>;

impl SimCluster {
    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.cx.log(|| "healing".to_owned());
        self.cancel_removal();
        self.update_all();
        self.is_healing = true;
        self.cx.has_slow_reads = false;
        self.net.calm = true;
        self.wan.heal(&mut self.cx);
        // Many unauthenticated connections would keep nodes out until the handshake time-out.
        self.close_unauthenticated();
        for node in 0..self.members.len() {
            let member = &self.members[node];
            member.machine.mend();
            let failed = member.process.as_ref().filter(|process| process.node.failed().is_some());
            if let Some(process) = failed {
                let incarnation = process.node.incarnation();
                self.ends(incarnation);
            }
            self.cx.after(0, Event::SimCluster(Step::Start { node }));
        }
    }

    /// Restarts nodes of older versions with this one.
    fn update_all(&mut self) {
        for node in 0..self.members.len() {
            let member = &mut self.members[node];
            member.log = Some(cluster::LOG);
            if member.features & cluster::LOG != cluster::LOG {
                self.fault(&Fault::Kill { node });
            }
        }
    }

    /// Writes the nodes' view of the meta group to the trace.
    fn trace_members(&mut self) {
        for (node, member) in self.members.iter_mut().enumerate() {
            let Some(process) = &mut member.process else { continue };
            let now = process.time(&self.cx);
            let is_cut_off = |peer: &PeerStatus<'_>| !peer.is_up;
            let cut_off = process.router.mesh().peers().filter(is_cut_off).map(|peer| peer.name.to_owned());
            let cut_off: Vec<String> = cut_off.collect();
            let meta = process.router.meta();
            let (roster, status, waits_for) = (meta.roster(), meta.status(now), meta.waits_for());
            self.cx.log(|| format!("n{node}: {roster:?}, {status:?}, waits for {waits_for:?}"));
            let (view, copy) = (process.router.view(now), member.copy.position());
            let (by, grants) = (view.granted_by, view.grants);
            self.cx.log(|| {
                let attached = view.attached;
                format!("n{node}: attached to {attached:?}, leases of {by:?}, grants {grants:?}, cut off from {cut_off:?}, {copy:?}")
            });
        }
    }

    /// Asserts that the available nodes get the same state, and exchange messages.
    pub(super) fn check_converged(&mut self) {
        self.settle();
        self.cx.report.cluster_check_placement += u64::from(self.plan.places_shards);
        self.check_routes();
        self.check_records();
        self.exchange();
        self.check_features();
    }

    /// Runs until nothing happens any more.
    pub(super) fn settle(&mut self) {
        let mut silent = 0;
        for second in 1..=PATIENCE {
            let until = self.cx.now() + SECOND;
            self.run_until(until);
            // Data for another node waits until the two are joined, however quiet the clients are.
            let mut is_quiet = self.are_joined() && self.copies_are_the_same() && self.are_placed();
            let patience = if self.plan.places_shards { PLACED_PATIENCE } else { JOINED_PATIENCE };
            if !is_quiet && second > patience {
                self.trace_members();
                panic!("nodes are not joined, or differ, after {second} s");
            }
            let absent_node = self.oracle.absent_node;
            let can_ask = |client: &&mut Client| client.home().is_none_or(|home| Some(home) != absent_node);
            for client in self.clients.iter_mut().filter(can_ask) {
                is_quiet &= client.is_quiet() & !std::mem::take(&mut client.has_received);
            }
            silent = if is_quiet { silent + 1 } else { 0 };
            if silent >= SILENCE {
                self.cx.report.check_answered += self.clients.len() as u64;
                return self.oracle.check_all_arrived();
            }
        }
        self.trace_members();
        let waiting: Vec<String> = self.clients.iter().filter_map(Client::waits_for).collect();
        panic!("clients never become quiet: {waiting:?}");
    }

    /// Returns whether every available node runs and has all connections of its links to all others. Data in a lane
    /// waits for its connection. The meta group must also have adopted all features of this version.
    fn are_joined(&mut self) -> bool {
        let available_nodes = self.available_nodes();
        let count = available_nodes.len();
        // Features of an absent node are unknown, so the cores cannot adopt them.
        let absent_node = self.oracle.absent_node;
        let shards = cluster::SHARDS
            | cluster::EPHEMERAL_SESSIONS
            | cluster::QUEUE_LIMITS
            | cluster::QUEUE_REFUSALS
            | cluster::ORIGINS
            | cluster::LINKS
            | cluster::LINKED_GROUPS;
        let all = cluster::LOG | if self.plan.places_shards { shards } else { 0 };
        let is_open = |adopted: u64| absent_node.is_some() || adopted == all;
        let absent_node = absent_node.map(|node| self.id_of(node));
        available_nodes.into_iter().all(|node| {
            let Some(process) = &mut self.members[node].process else { return false };
            let meta = process.router.meta();
            let alive = meta.roster().members.values().filter(|member| member.state == State::Alive);
            let is_whole = meta.is_member() && alive.count() == count && meta.adopted().is_none_or(is_open);
            let is_linked = |peer: PeerStatus<'_>| peer.is_up && peer.connections.0 == peer.connections.1;
            is_whole
                && process.router.mesh().peers().all(|peer| Some(peer.node) == absent_node || is_linked(peer))
        })
    }

    /// Returns whether all available nodes know the same placement of shards, and each shard has as many replicas as
    /// it should, or cannot change because too many of its replicas are lost.
    fn are_placed(&mut self) -> bool {
        if !self.plan.places_shards {
            return true;
        }
        let available_nodes = self.available_nodes();
        let router = |node: usize| self.members[node].process.as_ref().map(|process| &process.router);
        let mut placements =
            available_nodes.iter().map(|node| router(*node).map(|router| router.placement()));
        let first = placements.next().flatten().flatten();
        if !placements.all(|it| it.is_some_and(|placement| placement == first)) {
            return false;
        }
        if self.oracle.absent_node.is_some() {
            // Its replicas are replaced, or wait for it.
            return true;
        }
        let (Some(placement), Some(router)) = (first, router(available_nodes[0])) else { return false };
        let roster = router.meta().roster();
        let is_there = |voter: &&ShardReplica| {
            let member = roster.members.get(&voter.node);
            member.is_some_and(|member| member.replica == Some(voter.replica))
        };
        let wanted = usize::from(placement.replicas.get()).min(roster.cores().count());
        let is_whole = |shard: &ShardPlacement| {
            let there = shard.voters.iter().filter(is_there).count();
            shard.is_settled() && there == wanted && shard.voters.len() == wanted
        };
        placement.shards().all(|(id, shard)| is_whole(shard) || !self.can_change_shard(id, shard))
    }

    /// Routes of a node's own clients, and those of other nodes that it knows.
    fn wants_at(&self, number: usize) -> Option<(Wanted, WantedThere)> {
        let process = self.members[number].process.as_ref()?;
        let (mut wanted, mut of_others) = (Wanted::new(), WantedThere::new());
        process.node.broker().routes.for_each_wanted(|filter, location, wants| match location {
            None => {
                let all = wanted.entry(filter.to_owned()).or_default();
                *all = all.with(wants);
            }
            Some(location) => {
                let id = process.router.node_at(location).expect("a location belongs to a node");
                let of_name = |node: &cluster::NodeInfo| link::NodeId::of_name(&node.name) == id;
                let other = self.plan.nodes.iter().position(of_name).expect("there are no others");
                let before = of_others.insert((other, filter.to_owned()), wants);
                assert!(before.is_none(), "n{number} knows two routes of n{other} for {filter}");
            }
        });
        Some((wanted, of_others))
    }

    /// Marks a node that was removed and joined again as owed all further messages, once all others know its routes. To
    /// be called before each message: a message may have been routed before the last of them knew the routes, and be
    /// acknowledged after that.
    pub(super) fn note_known_again(&mut self) {
        for node in 0..self.members.len() {
            let member = &self.members[node];
            // A process that has just started does not know the subscriptions of the sessions on its disk yet.
            let has_begun = member.process.as_ref().is_some_and(|it| it.node.broker().has_begun());
            if member.owed_from < usize::MAX || !has_begun {
                continue;
            }
            let Some((wanted, _)) = self.wants_at(node) else { continue };
            let mut others = (0..self.members.len()).filter(|other| *other != node);
            let is_known = others.all(|other| {
                self.wants_at(other).is_some_and(|(_, known)| {
                    wanted.iter().all(|(filter, wants)| known.get(&(node, filter.clone())) == Some(wants))
                })
            });
            if is_known {
                self.members[node].owed_from = self.oracle.next_number();
            }
        }
    }

    /// Asserts that every node knows exactly the routes of every other.
    pub(super) fn check_routes(&mut self) {
        let (mut own, mut known) = (Vec::new(), Vec::new());
        for number in self.available_nodes() {
            let (wanted, of_others) = self.wants_at(number).expect("every node runs");
            own.push((number, wanted));
            known.push((number, of_others));
        }
        // Routes of a dead node's durable sessions are kept for it. Nobody declares an incarnation dead that was never
        // a member.
        let absent_node = self.oracle.absent_node;
        let was_member = absent_node.is_some_and(|node| self.was_member(node));
        let kept =
            self.oracle.views().iter().filter(|view| Some(view.node) == absent_node && view.is_durable);
        let kept: BTreeSet<&String> = kept.flat_map(|view| &view.asked).collect();
        for (number, of_others) in &mut known {
            of_others.retain(|(other, filter), wants| {
                let in_long_outage = Some(*other) == absent_node;
                let is_kept = !was_member || *wants == Wants::STORED && kept.contains(filter);
                assert!(
                    !in_long_outage || is_kept,
                    "n{number} knows a route of n{other}, which is dead, for {filter}: {wants:?}"
                );
                !in_long_outage
            });
        }
        for (number, of_others) in &known {
            let all = own.iter().filter(|(other, _)| other != number);
            let expected: WantedThere = all
                .flat_map(|(other, wanted)| {
                    wanted.iter().map(|(filter, wants)| ((*other, filter.clone()), *wants))
                })
                .collect();
            assert_eq!(*of_others, expected, "n{number} does not know the routes of the others");
            self.cx.report.cluster_check_routes += expected.len() as u64;
        }
        // The routes of a node match the subscriptions of its clients. Durable sessions may have more than their
        // clients know.
        for (number, wanted) in &own {
            let views =
                || self.oracle.views().iter().filter(|view| view.node == *number && view.is_connected);
            let granted = views().flat_map(|view| view.granted.keys());
            // Routes of shared groups have no filters.
            let granted: BTreeSet<&String> = granted.filter(|filter| !filter.starts_with(SHARE)).collect();
            let durable = views().filter(|view| view.is_durable);
            let perhaps: BTreeSet<&String> = durable.flat_map(|view| &view.asked).collect();
            let wanted: BTreeSet<&String> = wanted.keys().collect();
            let missing: Vec<_> = granted.difference(&wanted).collect();
            assert!(missing.is_empty(), "n{number} lacks routes of its clients: {missing:?}");
            let more: Vec<_> =
                wanted.difference(&granted).filter(|filter| !perhaps.contains(*filter)).collect();
            assert!(more.is_empty(), "n{number} has routes that no client has: {more:?}");
        }
    }

    /// Asserts that any two nodes know their common features, and that no node got a message that it cannot read.
    pub(super) fn check_features(&mut self) {
        let offers: Vec<u64> = self.members.iter().map(|member| member.features).collect();
        let available_nodes = self.available_nodes();
        for node in available_nodes.iter().copied() {
            let member = &mut self.members[node];
            let process = member.process.as_mut().expect("every node runs");
            let malformed = process.router.counters().malformed;
            assert_eq!(malformed, 0, "n{node} got messages that it cannot read");
            let view = process.router.view(process.time(&self.cx));
            assert_eq!(view.clock_off, None, "n{node}, whose clock is right");
            for link in &view.links {
                assert!(!link.clock_differs, "n{node} reports a wrong clock of {}", link.peer.name);
                self.cx.report.cluster_check_clocks += u64::from(link.clock_ahead.is_some());
            }
            for other in available_nodes.iter().copied().filter(|other| *other != node) {
                let id = link::NodeId::of_name(&self.plan.nodes[other].name);
                let peer = process.router.mesh().peer(id);
                let known = peer.map(|peer| peer.features);
                assert_eq!(
                    known,
                    Some(offers[node] & offers[other]),
                    "n{node} has wrong features of n{other}"
                );
                let report = &mut self.cx.report;
                match [node, other].map(|at| offers[at] & cluster::FEATURES & !cluster::LOG != 0) {
                    [true, true] => report.cluster_check_features_both += 1,
                    [true, false] => report.cluster_check_features_own += 1,
                    [false, true] => report.cluster_check_features_theirs += 1,
                    [false, false] => report.cluster_check_features_none += 1,
                }
                let is_later = (offers[node] ^ offers[other]) & !cluster::FEATURES != 0;
                report.cluster_check_features_later += u64::from(is_later);
            }
        }
    }

    /// Exchanges messages of every QoS between any two nodes, with subscribers of each level of SUBACK. Each node has
    /// members of shared groups, sets a retained message, and deletes one of another node.
    pub(super) fn exchange(&mut self) {
        self.oracle.is_settled = false;
        let available_nodes = self.available_nodes();
        let first = self.connect_more(|number| Client::new(number, None));
        let members = self.connect_more(Client::member);
        let readers = self.connect_more(|number| Client::new(number, None));
        self.settle();
        let levels = [Level::Cluster, Level::Local, Level::Core, Level::Region];
        for (at, node) in available_nodes.iter().enumerate() {
            let level = levels[at % levels.len()];
            let filters =
                vec![(format!("p/{node}/#"), QoS::ExactlyOnce), ("p/+/all".to_owned(), QoS::AtLeastOnce)];
            self.with_client(first + at, |client, scene| client.subscribes_to(scene, filters, level));
            let group = vec![(GROUPS[node % 2].to_owned(), QoS::ExactlyOnce)];
            self.with_client(members + at, |client, scene| client.subscribes_to(scene, group, level));
        }
        self.settle();
        self.oracle.is_settled = true;
        for round in 0..2 {
            for (at, node) in available_nodes.iter().enumerate() {
                for other in &available_nodes {
                    let topics = [format!("p/{other}/x"), format!("p/{other}/all")];
                    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                        self.publishes(first + at, &topics[round], qos, RetainAction::Nothing);
                        let topic = GROUP_TOPICS[other % GROUP_TOPICS.len()];
                        self.publishes(first + at, topic, qos, RetainAction::Nothing);
                    }
                    let until = self.cx.now() + SECOND / 4;
                    self.run_until(until);
                    self.cx.report.cluster_check_pairs += u64::from(node != other);
                }
                // In the first round, each node sets a retained message. In the second, every other node deletes one.
                if round == 0 {
                    self.publishes(
                        first + at,
                        &format!("r/q/{node}"),
                        QoS::AtLeastOnce,
                        RetainAction::Message,
                    );
                } else if node % 2 == 0 {
                    let topic = format!("r/q/{}", available_nodes[(at + 1) % available_nodes.len()]);
                    self.publishes(first + at, &topic, QoS::ExactlyOnce, RetainAction::Deletion);
                }
            }
            self.settle();
        }
        for at in 0..available_nodes.len() {
            let filters = vec![(RETAINED.to_owned(), QoS::AtLeastOnce)];
            self.with_client(readers + at, |client, scene| {
                client.subscribes_to(scene, filters, Level::Local)
            });
        }
        self.settle();
        let views = self.clients[readers..].iter().filter_map(Client::location).map(|(.., view)| view);
        let views: Vec<usize> = views.collect();
        self.oracle.check_retained(&mut self.cx, &views);
    }

    /// Adds a client to each available node. Returns the number of the first.
    fn connect_more(&mut self, client: impl Fn(usize) -> Client) -> usize {
        let first = self.clients.len();
        for node in self.available_nodes() {
            let number = self.clients.len();
            self.clients.push(client(number));
            self.connect(number, node);
            self.acts_after(number, SECOND / 10);
        }
        first
    }

    fn publishes(&mut self, client: usize, topic: &str, qos: QoS, retain_action: RetainAction) {
        self.note_known_again();
        self.with_client(client, |client, scene| client.publishes(scene, topic, qos, retain_action));
    }

    fn with_client(&mut self, client: usize, what: impl FnOnce(&mut Client, &mut Scene<'_>)) {
        let mut scene = Scene { cx: &mut self.cx, net: &mut self.net, oracle: &mut self.oracle };
        what(&mut self.clients[client], &mut scene);
    }
}
