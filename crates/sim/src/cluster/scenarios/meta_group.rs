//! Scenarios with a meta group: joining, dead, leaving and removed members, and commands of operators.

use cluster::RouterCommand;
use cluster::meta::{Answer, Command, Meta, ProposalId, Roster, State};

use super::super::operators::FIRST_OTHER_PROPOSAL;
use super::*;

pub(super) mod removed;

/// Starts cores that find each other, each with its own log.
fn meta_group_of(cores: usize, change: impl FnOnce(&mut Plan)) -> Scenario {
    meta_group_of_links(cores, |_| None, change)
}

fn meta_group_of_links(
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Scenario {
    meta_group_of_seed(super::SEED, cores, links, change)
}

fn meta_group_of_seed(
    seed: u64,
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Scenario {
    let mut plan = plan(Duration::from_millis(5));
    while plan.nodes.len() < cores {
        plan.add(Role::Core);
    }
    plan.has_meta_group = true;
    for (number, setup) in plan.setups.iter_mut().enumerate() {
        setup.entropy = [number as u8 + 1; 48];
    }
    change(&mut plan);
    let mut scenario = Scenario::of_seed(seed, plan, links);
    let nodes = 0..cores;
    scenario.until("all belong to it", |scenario| nodes.clone().all(|node| scenario.members(node) == cores));
    scenario
}

fn meta_group() -> Scenario {
    meta_group_of(3, |_| ())
}

impl Scenario {
    fn meta(&self, node: usize) -> Option<&Meta> {
        self.cluster.members[node].process.as_ref()?.router.meta()
    }

    fn known(&self, node: usize) -> &Roster {
        self.meta(node).expect("the node runs").roster()
    }

    /// Number of members that a node knows, or 0 if it is not a member.
    fn members(&self, node: usize) -> usize {
        self.meta(node).filter(|meta| meta.is_member()).map_or(0, |meta| meta.roster().members.len())
    }

    /// State of one node as another knows it.
    fn state(&self, node: usize, of: usize) -> Option<State> {
        self.known(node).members.get(&id(of)).map(|member| member.state)
    }

    /// Unjoined peers as a node reports them: the name or the address, and the reason.
    fn not_joined(&self, node: usize) -> Vec<String> {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let all = process.router.view(process.time(&self.cluster.cx)).not_joined;
        let reason =
            all.iter().map(|it| format!("{}: {}", it.name.as_ref().unwrap_or(&it.address), it.reason));
        reason.collect()
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.meta(*node).is_some_and(|meta| meta.leader() == Some(id(*node)));
        (0..self.cluster.members.len()).find(leads).expect("a replica leads")
    }

    /// Members' states, in the order of names, and the number of voters as a node knows them. `None` if it is not a
    /// member.
    fn roster(&self, node: usize) -> Option<(Vec<State>, usize)> {
        let meta = self.meta(node).filter(|meta| meta.is_member())?;
        let states = (0..3).filter_map(|at| self.state(node, at));
        let process = self.cluster.members[node].process.as_ref()?;
        let voters = meta.status(process.time(&self.cluster.cx)).map_or(0, |status| status.voters.len());
        Some((states.collect(), voters))
    }

    fn assert_whole(&self) {
        for node in 0..3 {
            assert_eq!(self.roster(node), Some((vec![State::Alive; 3], 3)), "n{node}");
        }
    }

    /// Asserts that a message gets from the third node to the subscriber on the first.
    fn assert_serves(&mut self) {
        self.run_for(SECOND);
        let number = self.publishes();
        self.run_for(2 * SECOND);
        assert!(self.is_acknowledged(number));
        assert!(self.has_arrived(number));
    }

    /// Incarnation of each member.
    fn incarnations(&self) -> Vec<u64> {
        (0..3).map(|at| self.known(0).members[&id(at)].incarnation.0).collect()
    }

    /// Features that entries of the log may require, as a core knows them.
    fn adopted(&self, node: usize) -> u64 {
        self.meta(node).and_then(Meta::adopted).expect("a core that runs")
    }

    fn revisions(&self) -> Vec<u64> {
        self.cluster.members.iter().map(|member| member.copy.position().revision).collect()
    }

    fn founded(&self) -> Vec<u128> {
        (0..3).map(|node| self.known(node).founded).collect()
    }
}

#[cfg_attr(test, test)]
pub(super) fn nodes_that_know_only_addresses_form_one_cluster() {
    let mut scenario = meta_group();
    scenario.assert_whole();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

#[test]
fn a_killed_node_joins_again_in_a_new_incarnation() {
    let mut scenario = meta_group();
    scenario.subscribes();
    for killed in [1, 2, 1] {
        scenario.run_for(3 * SECOND);
        let incarnations = scenario.incarnations();
        scenario.cluster.fault(&Fault::Kill { node: killed });
        scenario.run_for(30 * SECOND);
        scenario.assert_whole();
        let grown: Vec<bool> =
            scenario.incarnations().iter().zip(&incarnations).map(|(now, then)| now > then).collect();
        assert_eq!(grown, (0..3).map(|node| node == killed).collect::<Vec<_>>());
    }
}

#[test]
fn a_cluster_that_loses_all_processes_comes_back_with_the_same_members() {
    let mut scenario = meta_group();
    let founded = scenario.founded();
    scenario.cluster.fault(&Fault::KillMany { nodes: vec![0, 1, 2] });
    scenario.run_for(40 * SECOND);
    scenario.assert_whole();
    assert_eq!(scenario.founded(), founded);
}

#[cfg_attr(test, test)]
pub(super) fn a_node_that_is_cut_off_is_declared_dead_acknowledges_nothing_and_joins_again() {
    let mut scenario = meta_group();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    let incarnations = scenario.incarnations();
    scenario.isolate(2);
    scenario.run_for(10 * SECOND);
    assert_eq!(scenario.roster(0), Some((vec![State::Alive, State::Alive, State::Dead], 3)));
    let number = scenario.publishes();
    scenario.run_for(5 * SECOND);
    assert!(!scenario.is_acknowledged(number), "the node is in no majority");
    scenario.release(2);
    scenario.run_for(10 * SECOND);
    scenario.assert_whole();
    let now = scenario.incarnations();
    assert!(now[2] > incarnations[2] && now[..2] == incarnations[..2], "{incarnations:?} {now:?}");
    assert!(scenario.cluster.clients[PUBLISHER].location().is_none(), "its clients were disconnected");
}

/// The node's lease may last longer than the others need to notice its silence.
#[cfg_attr(test, test)]
pub(super) fn a_node_with_a_lease_is_not_declared_dead() {
    let mut scenario = meta_group();
    scenario.run_for(5 * SECOND);
    let (leader, checked) = (scenario.leader(), scenario.cluster.cx.report.cluster_check_dead);
    let cut_off = (leader + 1) % 3;
    scenario.isolate(cut_off);
    scenario.until("it is dead", |scenario| scenario.state(leader, cut_off) == Some(State::Dead));
    scenario.run_for(3 * SECOND);
    assert!(scenario.cluster.cx.report.cluster_check_dead > checked);
}

/// One clock runs at 0.96 of its speed and the others at 1.04, which leases allow for.
#[cfg_attr(test, test)]
pub(super) fn a_node_with_a_lease_by_a_slow_clock_is_not_declared_dead() {
    let mut scenario = meta_group_of(3, |plan| {
        plan.rates = vec![1_040, 1_040, 960];
        plan.config.lease = Duration::from_secs(10);
    });
    scenario.run_for(5 * SECOND);
    let checked = scenario.cluster.cx.report.cluster_check_dead;
    scenario.isolate(2);
    scenario.until("it is dead", |scenario| scenario.state(0, 2) == Some(State::Dead));
    scenario.run_for(3 * SECOND);
    assert!(scenario.cluster.cx.report.cluster_check_dead > checked);
}

#[test]
fn a_replicant_that_was_cut_off_gets_the_changes_that_it_missed() {
    let mut scenario = meta_group_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // Fewer changes than the cores keep, and more.
    for count in [3, 40] {
        scenario.part(2, 0);
        scenario.part(2, 1);
        scenario.run_for(2 * SECOND);
        let before = scenario.cluster.members[2].copy.position();
        for number in 0..count {
            scenario.cluster.propose_new_record(number % 2);
            scenario.run_for(SECOND / 4);
        }
        assert_eq!(scenario.cluster.members[2].copy.position(), before);
        assert!(!scenario.cluster.copies_are_the_same());
        // A proposal without a majority is not executed, now or later.
        scenario.cluster.propose_record(2);
        scenario.run_for(6 * SECOND);
        scenario.join(2, 0);
        scenario.join(2, 1);
        scenario.run_for(15 * SECOND);
        assert!(scenario.cluster.copies_are_the_same());
        assert!(scenario.cluster.members[2].copy.position() > before);
        scenario.cluster.check_records();
    }
    assert!(scenario.cluster.report().cluster_records_full > 0);
}

#[test]
fn a_proposal_reaches_all_nodes_within_a_second_and_the_delay_of_a_link() {
    for latency in [MILLI, 100 * MILLI] {
        let mut scenario = meta_group_of(5, |plan| {
            plan.nodes[3..].iter_mut().for_each(|node| node.role = Role::Replicant);
            plan.latency = latency;
        });
        scenario.run_for(15 * SECOND);
        let mut revision = scenario.revisions()[0];
        for node in [3, 0, 1, 2, 4, 3] {
            scenario.cluster.propose_new_record(node);
            scenario.run_for(SECOND + latency);
            revision += 1;
            assert_eq!(scenario.revisions(), [revision; 5], "by n{node}, {latency} us away");
        }
    }
}

/// Others acknowledge messages that its subscribers would have received. So no connection may continue as if it had
/// missed nothing.
#[cfg_attr(test, test)]
pub(super) fn a_client_connected_to_a_node_that_was_declared_dead_misses_nothing() {
    let mut scenario = meta_group();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    let number = scenario.publishes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_acknowledged(number), "the receiver's node is dead");
    scenario.release(0);
    scenario.until("it joins again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    assert!(scenario.cluster.clients[SUBSCRIBER].location().is_none() || scenario.has_arrived(number));
}

/// A suspicion may be wrong: it removes nothing.
#[cfg_attr(test, test)]
pub(super) fn a_suspected_node_that_is_reachable_again_keeps_its_routes() {
    let mut scenario = meta_group_of(3, |plan| plan.config.lease = Duration::from_secs(10));
    scenario.subscribes();
    scenario.run_for(15 * SECOND);
    assert!(scenario.is_subscribed());
    let incarnations = scenario.incarnations();
    scenario.isolate(0);
    scenario.until("it is suspected", |scenario| matches!(scenario.state(1, 0), Some(State::Suspect(_))));
    scenario.release(0);
    scenario.until("it is alive again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.incarnations(), incarnations);
    scenario.assert_serves();
}

/// A core receives from a suspected node again, and its report to the leader is late. The leader declares the node
/// dead. If the core had granted the node a lease, a dead node would have one.
#[cfg_attr(test, test)]
pub(super) fn a_suspected_node_gets_no_lease_from_a_core_that_reaches_it_again() {
    let mut deaths = 0;
    for late in [0, 500, 1_000] {
        let mut scenario = meta_group_of(3, |plan| {
            plan.config.lease = Duration::from_secs(6);
            plan.mesh.link.silence_max = Duration::from_millis(1_500);
        });
        scenario.run_for(10 * SECOND);
        let leader = scenario.leader();
        let (first, cut_off) = ((leader + 1) % 3, (leader + 2) % 3);
        scenario.part(cut_off, first);
        scenario.run_for(2_500 * MILLI);
        scenario.part(cut_off, leader);
        scenario.run_for((4_700 + late) * MILLI);
        let now = scenario.cluster.cx.now();
        scenario.cluster.wan.cut(now, first, leader, 1_300 * MILLI);
        scenario.join(cut_off, first);
        scenario.run_for(5 * SECOND);
        deaths += scenario.cluster.cx.report.cluster_nodes_declared_dead;
    }
    assert!(deaths > 0, "no node was declared dead while it was reachable again");
}

#[cfg_attr(test, test)]
pub(super) fn a_node_that_has_lost_its_incarnation_number_takes_a_greater_one() {
    let mut scenario = meta_group();
    scenario.restart(0);
    scenario.run_for(10 * SECOND);
    let incarnations = scenario.incarnations();
    scenario.cluster.members[0].incarnation = 0;
    scenario.restart(0);
    scenario.run_for(10 * SECOND);
    scenario.assert_whole();
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(SECOND);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
    assert!(scenario.incarnations()[0] > incarnations[0]);
}

/// Cores that found a cluster exchange the addresses of the cores that they know.
#[test]
fn a_core_with_one_address_founds_the_cluster_with_all_cores() {
    for told_of in [0, 1] {
        let mut scenario =
            meta_group_of(3, |plan| plan.join_lists = vec![vec![0, 1], vec![0, 1], vec![told_of]]);
        scenario.run_for(10 * SECOND);
        scenario.assert_whole();
    }
}

/// One of four cores is removed, and one of the remaining three is lost.
#[cfg_attr(test, test)]
pub(super) fn a_removed_core_does_not_count_for_majorities() {
    let mut scenario = meta_group_of(4, |_| ());
    scenario.run_for(8 * SECOND);
    scenario.isolate(3);
    scenario.until("it is dead", |scenario| scenario.state(0, 3) == Some(State::Dead));
    scenario.removes(0, 3, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.run_for(5 * SECOND);
    scenario.isolate(2);
    scenario.run_for(5 * SECOND);
    let writer = scenario.connects(1);
    let number = scenario.publishes_as(writer, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(10 * SECOND);
    assert!(scenario.is_acknowledged(number), "two of three cores are a majority");
}

/// Two of five cores are dead, and are removed at the same time. With one change for both, there could be two
/// majorities: one of the cores that know it, and one of those that do not.
#[cfg_attr(test, test)]
pub(super) fn cores_are_removed_one_after_the_other() {
    let mut scenario = meta_group_of(5, |_| ());
    scenario.run_for(10 * SECOND);
    let leader = scenario.leader();
    let removed = [(leader + 1) % 5, (leader + 2) % 5];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(leader, *node) == Some(State::Dead))
    });
    for (number, node) in removed.into_iter().enumerate() {
        scenario.removes(leader, node, ProposalId(FIRST_OTHER_PROPOSAL + number as u64));
    }
    scenario.until("both are removed", |scenario| scenario.members(leader) == 3);
}

/// Two nodes are removed, and the first comes back first. If the others still had its old slot, retained messages would
/// arrive twice.
#[test]
fn a_removed_node_that_joins_again_gets_every_message_once() {
    let mut scenario = meta_group_of(5, |_| ());
    scenario.run_for(10 * SECOND);
    let removed = [3, 4];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(0, *node) == Some(State::Dead))
    });
    for (number, node) in removed.into_iter().enumerate() {
        scenario.removes(0, node, ProposalId(FIRST_OTHER_PROPOSAL + number as u64));
        scenario.until("it is removed", |scenario| (0..3).all(|at| scenario.members(at) == 4 - number));
    }
    for other in 0..3 {
        scenario.join(other, 3);
    }
    scenario.until("it has joined again", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let reader = scenario.connects(3);
    let filters = vec![(RETAINED.to_owned(), QoS::ExactlyOnce)];
    scenario.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    let writer = scenario.connects(0);
    let number = scenario.publishes_as(writer, "r/0", QoS::ExactlyOnce, RetainAction::Message);
    scenario.run_for(3 * SECOND);
    // A message that arrives twice fails the simulation.
    assert!(scenario.has_arrived_at(reader, number) && scenario.is_acknowledged(number));
}

/// A node has written many routes, is declared dead, joins again and writes few. Positions of its previous incarnation
/// that cores have confirmed do not count for the new one.
#[test]
fn subscriptions_of_an_incarnation_that_wrote_less_than_the_previous_one_are_confirmed() {
    let mut scenario = meta_group();
    for _ in 0..3 {
        let client = scenario.connects(0);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario.run_for(SECOND);
        scenario.cluster.fault(&Fault::LoseClientConnection { client });
        scenario.run_for(SECOND);
    }
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    scenario.release(0);
    scenario.until("it joins again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(SECOND);
    scenario.subscribes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

/// One of three cores cannot read records. They are refused until it is updated. After that, no core of the older
/// version can take part.
#[cfg_attr(test, test)]
pub(super) fn a_command_that_one_core_cannot_read_is_committed_after_its_update() {
    let mut scenario = meta_group_of(3, |plan| plan.old = vec![1]);
    scenario.run_for(20 * SECOND);
    for node in [0, 2] {
        scenario.cluster.propose_new_record(node);
    }
    scenario.run_for(5 * SECOND);
    assert_eq!((scenario.adopted(0), scenario.cluster.operators.unread), (0, 2));
    assert_eq!(scenario.revisions(), [0; 3]);
    scenario.cluster.members[1].log = Some(cluster::LOG);
    scenario.restart(1);
    scenario.until("all cores understand it", |scenario| scenario.adopted(0) == cluster::LOG);
    scenario.cluster.propose_new_record(0);
    scenario.run_for(3 * SECOND);
    assert_eq!(scenario.revisions(), [1; 3]);
    scenario.cluster.members[0].log = Some(0);
    scenario.restart(0);
    assert_eq!(scenario.cluster.report().cluster_outdated, 1, "its log is of a later version");
    scenario.run_for(20 * SECOND);
    scenario.assert_whole();
    scenario.cluster.check_records();
}

/// The removal uses a form that all versions understand.
#[test]
fn the_version_of_a_dead_core_counts_until_it_is_removed() {
    let mut scenario = meta_group_of(4, |plan| plan.old = vec![3]);
    scenario.run_for(20 * SECOND);
    scenario.isolate(3);
    scenario.until("it is dead", |scenario| scenario.state(0, 3) == Some(State::Dead));
    scenario.cluster.propose_new_record(0);
    scenario.run_for(5 * SECOND);
    assert_eq!((scenario.adopted(0), scenario.cluster.operators.unread), (0, 1));
    scenario.removes(0, 3, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.until("all remaining cores understand it", |scenario| scenario.adopted(0) == cluster::LOG);
    assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)));
    scenario.cluster.propose_new_record(1);
    scenario.run_for(3 * SECOND);
    assert_eq!(scenario.revisions()[..3], [1; 3]);
}

/// Starts three cores with a round trip of 200 ms.
fn far_apart(seed: u64, time: Micros) -> Scenario {
    let change = |plan: &mut Plan| {
        plan.latency = 100 * MILLI;
        plan.mesh.link.silence_max = Duration::from_secs(5);
    };
    let mut scenario = meta_group_of_seed(seed, 3, |_| None, change);
    scenario.until("all vote", |scenario| {
        (0..3).all(|node| scenario.roster(node) == Some((vec![State::Alive; 3], 3)))
    });
    scenario.run_for(time);
    scenario
}

/// One election in four has a split vote, and four in a row happen once in 256.
#[test]
fn another_core_leads_soon_after_the_leader_falls_silent() {
    let mut times: Vec<Micros> = (0..40)
        .map(|round| {
            let mut scenario = far_apart(super::SEED + round, 5 * SECOND + round * 170 * MILLI);
            let (leader, now) = (scenario.leader(), scenario.cluster.cx.now());
            scenario.isolate(leader);
            scenario.until("another leads", |scenario| {
                let others = (0..3).filter(|node| *node != leader);
                let known: Vec<_> = others.filter_map(|node| scenario.meta(node)?.leader()).collect();
                known.len() == 2 && known[0] == known[1] && known[0] != id(leader)
            });
            scenario.cluster.cx.now() - now
        })
        .collect();
    times.sort_unstable();
    let bounds = [(20, 4), (35, 7), (39, 10)];
    assert!(bounds.iter().all(|(at, seconds)| times[*at] < seconds * SECOND), "{times:?}");
}

/// Both links of the leader may stall at the same time.
#[test]
fn a_link_that_stalls_for_a_second_causes_no_election() {
    let mut scenario = far_apart(super::SEED, 5 * SECOND);
    let term = |scenario: &Scenario| {
        let process = scenario.cluster.members[0].process.as_ref().expect("runs");
        scenario
            .meta(0)
            .and_then(|meta| meta.status(process.time(&scenario.cluster.cx)))
            .expect("a core")
            .term
    };
    let (leader, before) = (scenario.leader(), term(&scenario));
    for round in 0..20 {
        let now = scenario.cluster.cx.now();
        for other in (0..3).filter(|node| *node != leader) {
            scenario.cluster.wan.cut(now, leader, other, SECOND);
        }
        scenario.run_for(3 * SECOND + round * 70 * MILLI);
    }
    assert_eq!((scenario.leader(), term(&scenario)), (leader, before));
}

impl Scenario {
    /// Sends an operator's command to a node.
    fn orders(&mut self, node: usize, command: RouterCommand) {
        let process = self.cluster.members[node].process.as_mut().expect("runs");
        let now = process.time(&self.cluster.cx);
        process.router.handle_command(now, command);
        process.wake(&mut self.cluster.cx, 1);
    }

    /// Lets an operator remove a node in the incarnation that the asked node knows.
    fn removes(&mut self, node: usize, removed: usize, proposal: ProposalId) {
        let incarnation = self.known(node).members[&id(removed)].incarnation;
        self.orders(node, RouterCommand::Proposal(proposal, Command::Remove(id(removed), Some(incarnation))));
    }

    /// Result of the last command of an operator.
    fn outcome(&mut self) -> Option<Result<Answer, String>> {
        self.cluster.operators.other_answers.pop()
    }

    /// Replaces a node by another machine, whose clock implies this number of previous incarnations.
    fn is_replaced(&mut self, node: usize, incarnations: u64) {
        self.cluster.fault(&Fault::Kill { node });
        self.cluster.empty_disk(node);
        self.cluster.members[node].incarnation = incarnations;
        self.cluster.start(node);
    }

    /// Asserts that a new subscription on a node gets its SUBACK in time after many others, and then gets messages.
    fn assert_settles(&mut self, node: usize) {
        let client = self.connects(node);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        self.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        self.run_for(SECOND);
        let subscriber = self.cluster.clients.len();
        self.cluster.clients.push(Client::member(subscriber));
        self.cluster.connect(subscriber, node);
        self.run_for(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        self.run_for(5 * SECOND);
        let location = self.cluster.clients[subscriber].location();
        let is_granted =
            location.is_some_and(|(.., view)| self.cluster.oracle.view(view).granted.contains_key("t/#"));
        assert!(is_granted, "no SUBACK on n{node}");
        let number = self.publishes();
        self.run_for(2 * SECOND);
        assert!(self.is_acknowledged(number) && self.has_arrived_at(subscriber, number));
    }

    fn leaders(&self, nodes: std::ops::Range<usize>) -> Vec<Option<NodeId>> {
        let process = |node: usize| self.cluster.members[node].process.as_ref().expect("runs");
        nodes.map(|node| process(node).router.meta().expect("agreed").leader()).collect()
    }
}

#[test]
fn cores_that_leave_give_up_their_votes_and_the_last_stays() {
    for first in 0..3 {
        let mut scenario = meta_group();
        let (second, last) = ((first + 1) % 3, (first + 2) % 3);
        scenario.run_for(2 * SECOND);
        for (leaves, stays, left) in [(first, second, 2), (second, last, 1)] {
            scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
            scenario.run_for(20 * SECOND);
            assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)), "n{leaves} of {left}, n{first} first");
            assert_eq!(scenario.roster(leaves), None);
            assert_eq!(
                scenario.roster(stays),
                Some((vec![State::Alive; left], 1)),
                "two cores tolerate no more failures than one"
            );
            // The others have a leader and do not wait for the node that left, and it does not join again.
            scenario.run_for(70 * SECOND);
            assert_eq!(
                scenario.roster(stays),
                Some((vec![State::Alive; left], 1)),
                "two cores tolerate no more failures than one"
            );
            let meta = scenario.cluster.members[stays]
                .process
                .as_ref()
                .and_then(|it| it.router.meta())
                .expect("agreed");
            assert!(meta.leader().is_some(), "n{leaves} of {left}, n{first} first");
        }
        scenario.orders(last, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.run_for(SECOND);
        let outcome = scenario.outcome().expect("at once");
        assert!(outcome.is_err_and(|why| why.contains("last core")));
    }
}

/// Covers both nodes of a pair: one of them dials the other.
#[test]
fn a_node_that_has_left_and_ended_is_not_reported() {
    for leaves in 0..3 {
        let mut scenario = meta_group();
        scenario.run_for(2 * SECOND);
        scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        let others = [(leaves + 1) % 3, (leaves + 2) % 3];
        scenario.until("it has left", |scenario| {
            others.iter().all(|other| !scenario.known(*other).members.contains_key(&id(leaves)))
        });
        scenario.cluster.members[leaves].is_switched_off = true;
        scenario.cluster.kill(leaves, false);
        for _ in 0..40 {
            scenario.run_for(SECOND);
            for other in others {
                // An impostor may use the name of a running node.
                let reason = scenario.not_joined(other);
                let of_it: Vec<_> =
                    reason.iter().filter(|it| it.starts_with(&format!("n{leaves}:"))).collect();
                assert!(of_it.is_empty(), "n{other} reports n{leaves}, which has left: {of_it:?}");
            }
        }
    }
}

/// One of two cores has a vote, and passes it to the other when it leaves. After that it does not know the leader. The
/// leader lets it leave only when it has confirmed that it knows about the core that left before.
#[test]
fn a_core_without_a_vote_still_reports_its_position() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    scenario.run_for(10 * SECOND);
    let leader = scenario.leader();
    let [first, stays] = [1, 2].map(|other| (leader + other) % 3);
    for leaves in [first, leader] {
        scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.until("it has left", |scenario| !scenario.known(stays).members.contains_key(&id(leaves)));
    }
    scenario
        .until("the last leads", |scenario| scenario.meta(stays).and_then(Meta::leader) == Some(id(stays)));
    scenario.until("it acknowledges", |scenario| {
        scenario.may_acknowledge(stays) && scenario.may_acknowledge(REPLICANT)
    });
}

#[test]
fn a_leave_without_a_majority_fails_with_an_error() {
    let mut scenario = meta_group();
    for node in [0, 1] {
        scenario.part(2, node);
    }
    scenario.orders(2, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.run_for(61 * SECOND);
    let outcome = scenario.outcome().expect("its time is over");
    assert!(outcome.is_err_and(|why| why.contains("no majority")));
    assert_eq!(scenario.roster(0).map(|(states, _)| states.len()), Some(3), "no other node knows of it");
}

#[test]
fn an_operator_transfers_the_leadership_to_any_core() {
    let mut scenario = meta_group();
    for (asked, wanted) in [(0, 1), (2, 1), (2, 0), (1, 2), (1, 2)] {
        let node = NodeId::of_name(&format!("n{wanted}"));
        scenario
            .orders(asked, RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(node)));
        scenario.run_for(5 * SECOND);
        assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)), "n{wanted}, asked of n{asked}");
        assert_eq!(scenario.leaders(0..3), [Some(node); 3]);
    }
    scenario.assert_whole();
}

#[test]
fn a_restarted_core_gets_its_share_of_replicants_on_request() {
    let mut scenario = meta_group_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // The only replicant is attached to the core with the smallest number.
    let first = usize::from(NodeId::of_name("n1") < NodeId::of_name("n0"));
    scenario.cluster.fault(&Fault::Kill { node: first });
    scenario.run_for(40 * SECOND);
    assert_eq!(scenario.attached(2), 1 - first, "a restarted core gets no replicants by itself");
    scenario.orders(1 - first, RouterCommand::Balance);
    scenario.run_for(SECOND);
    assert_eq!(scenario.attached(2), first);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

/// Each replicant is first attached to the first core that it meets, which may be the same for all.
#[test]
fn replicants_that_start_together_are_spread_over_the_cores() {
    let replicants = 3..9;
    let mut scenario = meta_group_of(9, |plan| {
        plan.nodes[3..9].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    scenario.run_for(20 * SECOND);
    let mut counts = std::collections::BTreeMap::new();
    for node in replicants {
        let process = scenario.cluster.members[node].process.as_ref().expect("runs");
        let view = process.router.view(process.time(&scenario.cluster.cx));
        *counts.entry(view.attached.map(|name| name.to_string())).or_insert(0) += 1;
    }
    let even = ["n0", "n1", "n2"].map(|core| (Some(core.to_owned()), 2));
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), even);
}

/// The new incarnation of a node is the same process, to which the link already exists. Messages that the previous
/// incarnation has received are not sent to the new one.
#[test]
fn messages_that_an_incarnation_received_are_not_sent_to_the_next_one_in_the_same_process() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let publisher = scenario.connects(REPLICANT);
    let keeper = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(keeper, Some(0)));
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    scenario.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    let incarnation = scenario.incarnations()[0];
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    scenario.join(0, 1);
    scenario.join(0, 2);
    scenario.until("it has joined again", |scenario| {
        scenario.incarnations()[0] > incarnation && (0..4).all(|node| scenario.members(node) == 4)
    });
    scenario.run_for(3 * SECOND);
    scenario.join(0, REPLICANT);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 0), "the process is the same");
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(2 * SECOND);
    // The message is not acknowledged before the process ends, and the next process does not know it when the link is
    // back.
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, 0, REPLICANT, LONG);
    let number = scenario.publishes_as(publisher, "t/0", QoS::ExactlyOnce, RetainAction::Nothing);
    let mut waited = 0;
    while !scenario.has_arrived_at(keeper, number) {
        // The message is on the disk first, which may take a second.
        scenario.run_for(10 * MILLI);
        waited += 1;
        assert!(waited < 200, "the message arrives");
    }
    scenario.part(0, REPLICANT);
    scenario.restart(0);
    scenario.run_for(2 * SECOND);
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(5 * SECOND);
    scenario.join(0, REPLICANT);
    // A message that arrives twice fails the simulation.
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 1));
    assert!(scenario.is_acknowledged(number));
}

/// A node that was declared dead does not know whether an unreachable peer is still the same process. It meets the same
/// process, which receives data and dies before any of it is confirmed. Queued messages wait for the next process, and
/// arrive there only.
#[test]
fn messages_for_the_next_incarnation_are_not_given_to_one_that_dies_before_it_answers() {
    let mut scenario = meta_group_of(4, |plan| {
        plan.nodes[REPLICANT].role = Role::Replicant;
        // With one connection, messages use the connection that comes first.
        plan.mesh.connections = 1;
    });
    scenario.run_for(10 * SECOND);
    let keeper = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(keeper, Some(0)));
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    scenario.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(1, REPLICANT) == Some(State::Dead));
    scenario.join(1, REPLICANT);
    scenario.join(2, REPLICANT);
    scenario.until("it has joined again", |scenario| {
        scenario.state(REPLICANT, REPLICANT) == Some(State::Alive) && scenario.may_acknowledge(REPLICANT)
    });
    scenario.run_for(3 * SECOND);
    let publisher = scenario.connects(REPLICANT);
    let number = scenario.publishes_as(publisher, "t/0", QoS::ExactlyOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(!scenario.link(REPLICANT, 0).0);
    scenario.join(0, REPLICANT);
    let mut waited = 0;
    while scenario.link(REPLICANT, 0) != (true, 0) {
        scenario.run_for(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back, and is the same");
    }
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, 0, REPLICANT, LONG);
    scenario.run_for(100 * MILLI);
    assert!(!scenario.has_arrived_at(keeper, number));
    // All answers of the process are lost with its connections. With any of them, the queued messages would belong to
    // that process.
    for wire in scenario.cluster.wan.between(0, REPLICANT) {
        scenario.cluster.wan.swallow(&mut scenario.cluster.cx, wire);
    }
    scenario.restart(0);
    scenario.join(0, REPLICANT);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 1));
    scenario.cluster.connect(keeper, 0);
    // A message that arrives twice fails the simulation.
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number) && scenario.has_arrived_at(keeper, number));
}

/// The nodes that removed a node while it was cut off have dropped their links to it. The removed node still has its
/// own.
#[test]
fn messages_of_a_removed_node_that_is_back_are_not_lost_with_the_old_links() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(0, REPLICANT) == Some(State::Dead));
    scenario.removes(0, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.run_for(5 * SECOND);
    scenario.join(1, REPLICANT);
    scenario.join(2, REPLICANT);
    scenario.until("it has joined again", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let publisher = scenario.connects(REPLICANT);
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_waits_for_the_first_node(publisher);
}

/// Another node stops being a member and becomes one again, over the same link. Its answers belong to the requests
/// after that, and not to those before.
#[test]
fn a_node_that_is_a_member_again_over_the_same_link_answers_the_new_requests() {
    let mut scenario = meta_group_of(5, |plan| plan.config.tombstones_max = 0);
    let removed = [3, 4];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(0, *node) == Some(State::Dead))
    });
    scenario.removes(0, 4, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 4));
    // The two do not know of the removal, and exchange requests as members do.
    scenario.join(3, 4);
    scenario.run_for(5 * SECOND);
    for other in 0..3 {
        scenario.join(3, other);
    }
    scenario.until("the one has joined again", |scenario| scenario.members(3) == 4);
    scenario.release(4);
    scenario.until("the other has joined again", |scenario| (0..5).all(|node| scenario.members(node) == 5));
    assert_eq!(scenario.link(3, 4), (true, 0), "the link has stayed");
    let [stays, goes] = [("s/#", 4), ("t/#", 4)].map(|(filter, node)| {
        let client = scenario.connects(node);
        let filters = vec![(filter.to_owned(), QoS::AtLeastOnce)];
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario.until("the other knows", |scenario| scenario.knows_route(3, filter));
        client
    });
    // The removed route becomes known by a list of all remaining ones.
    scenario.with(goes, |client, scene| client.leaves(scene, "t/#"));
    scenario.until("the other knows that, too", |scenario| !scenario.knows_route(3, "t/#"));
    assert!(scenario.knows_route(3, "s/#"), "{stays}");
}

/// A node was killed before it became a member, and its next incarnation is one. A core still has a link to the first,
/// which looks intact. Messages for the node's clients wait for the incarnation that the clients are connected to.
#[test]
fn messages_for_a_member_are_not_lost_with_a_link_to_an_incarnation_that_never_joined() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let leader = scenario.leader();
    let core = (0..3).find(|node| *node != leader).expect("there are three");
    let publisher = scenario.connects(core);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(leader, REPLICANT) == Some(State::Dead));
    scenario.removes(leader, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    // It ends before it knows of a cluster, and sends nothing to members.
    scenario.restart(REPLICANT);
    scenario.join(core, REPLICANT);
    let is_linked = |scenario: &mut Scenario| {
        let process = scenario.cluster.members[core].process.as_mut().expect("the node runs");
        process.router.mesh().peer(id(REPLICANT)).is_some_and(|peer| peer.is_up)
    };
    while !is_linked(&mut scenario) {
        scenario.run_for(MILLI);
    }
    scenario.part(core, REPLICANT);
    scenario.restart(REPLICANT);
    for other in (0..3).filter(|node| *node != core) {
        scenario.join(other, REPLICANT);
    }
    scenario.until("it has joined", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let subscriber = scenario.has_subscriber(REPLICANT);
    assert_eq!(scenario.link(core, REPLICANT), (true, 0), "the core has not noticed");
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(100 * MILLI);
    scenario.join(core, REPLICANT);
    scenario.run_for(10 * SECOND);
    assert!(scenario.is_acknowledged(number));
    assert!(scenario.has_arrived_at(subscriber, number));
}
