//! One simulation of a cluster: the events, and the nodes and clients that they are for.

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use cluster::Role;
use cluster::meta::{self, Roster, State};
use link::NodeId;
use replog::Incarnation;

use super::client::{Client, Scene};
use super::hostile::{HOSTILE, Hostile};
use super::member::Member;
use super::operators::Operators;
use super::oracle::Oracle;
use super::plan::Plan;
use super::removal::NodeRemoval;
use super::shard_groups::ShardGroups;
use super::step::Step;
use super::unauthenticated::UnauthenticatedPeer;
use super::wan::{End, Piece, Wan};
use crate::context::Context;
use crate::disk::Machine;
use crate::net::{self, Direction, Link, Net};
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;
use random::Random;

/// Time between the arrival of a packet and a client's answer, after the last fault.
const ANSWER: Micros = 20 * MILLI;

/// A cluster that runs with faults, and then without any.
pub struct SimCluster {
    pub(super) cx: Context,
    pub(super) net: Net,
    pub(super) wan: Wan,
    pub(super) plan: Plan,
    pub(super) members: Vec<Member>,
    pub(super) clients: Vec<Client>,
    pub(super) oracle: Oracle,
    /// Node of each client's connection, and the incarnation of that node.
    pub(super) homes: BTreeMap<Link, (usize, u32)>,
    /// Number of incarnations of all nodes so far.
    pub(super) incarnations: u32,
    pub(super) unauthenticated_peers: Vec<UnauthenticatedPeer>,
    pub(super) hostile: Hostile,
    pub(super) operators: Operators,
    pub(super) removal: Option<NodeRemoval>,
    pub(super) is_healing: bool,
    pub(super) decisions: Decisions,
    pub(super) shard_groups: ShardGroups,
    /// Route positions of shards for which SUBACKs were sent.
    pub(super) shards_promised: BTreeMap<ShardId, u64>,
    /// Node and number of messages that may not have arrived at the node when they were acknowledged.
    on_their_way: BTreeSet<(usize, usize)>,
    /// Node and number of messages for durable sessions whose node had restarted when the messages were acknowledged.
    for_restarted: BTreeSet<(usize, usize)>,
}

/// Decisions of the meta group, as observed on the nodes.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    /// Index of the latest roster that any node has known.
    index: u64,
    founded: u128,
    /// Last dead incarnation of each node.
    dead: BTreeMap<usize, Incarnation>,
    /// Index of the roster that each node knew.
    known: BTreeMap<usize, u64>,
    /// Features that entries of the log may require.
    adopted: u64,
}

impl SimCluster {
    pub fn new(seed: u64, is_full: bool, trace: Trace) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9) ^ 0xC1A5_7E12);
        let plan = Plan::of(seed, is_full, &mut random);
        Self::of(random, plan, trace)
    }

    /// Makes a cluster without random events, for scenarios.
    #[cfg(any(test, feature = "trial"))]
    pub(super) fn of_plan(seed: u64, plan: Plan, trace: Trace) -> Self {
        Self::of(Random::new(seed), plan, trace)
    }

    fn of(mut random: Random, plan: Plan, trace: Trace) -> Self {
        // A node without this feature never gets the retained messages that it missed while its log was full.
        let of_copies = if plan.may_lack_room() { cluster::COPIES } else { 0 };
        let of_shards = of_copies
            | cluster::SHARDS
            | cluster::EPHEMERAL_SESSIONS
            | cluster::QUEUE_LIMITS
            | cluster::QUEUE_REFUSALS
            | cluster::ORIGINS
            | cluster::LINKS
            | cluster::LINKED_GROUPS;
        let always = |number: usize| match plan.places_shards {
            true if plan.own_states.contains(&number) => of_shards | cluster::OWN_STATE,
            true => of_shards | cluster::EMPTY_SHARDS,
            false => of_copies,
        };
        let member = |(number, setup): (usize, &crate::node::Setup)| Member {
            number,
            machine: Machine::new(random.draw()),
            setup: setup.clone(),
            process: None,
            incarnation: 0,
            set_back: 0,
            last_incarnation: Incarnation(0),
            began: 0,
            features: 0,
            is_switched_off: false,
            lacks_room: false,
            lacked_room: 0,
            stopped: 0,
            owed_from: 0,
            in_long_outage: false,
            leaves: false,
            log: plan.old.contains(&number).then_some(0),
            links: None,
            always: always(number),
            copy: configstore::Copy::default(),
            shards_until: None,
        };
        let members: Vec<Member> = plan.setups.iter().enumerate().map(member).collect();
        let home = |number: usize| (number % 5 == 4).then_some(number % members.len());
        let client = |number: usize| match number % 5 {
            1 | 3 => Client::member(number),
            _ => Client::new(number, home(number)),
        };
        let clients = (0..plan.clients).map(client).collect();
        let regions = plan.nodes.iter().map(|node| node.region.clone()).collect();
        let mut oracle = Oracle::new(plan.config.without_quorum == cluster::WithoutQuorum::Serve, regions);
        oracle.is_tight = plan.is_tight;
        oracle.groups.are_assured =
            !plan.is_tight && plan.config.forward_ack == cluster::ForwardAck::Received;
        let cx = Context {
            random,
            schedule: Schedule::default(),
            report: Report::default(),
            trace,
            has_slow_reads: true,
        };
        Self {
            cx,
            net: Net::default(),
            wan: Wan::new(plan.latency, plan.jitter),
            plan,
            members,
            clients,
            oracle,
            homes: BTreeMap::new(),
            incarnations: 0,
            unauthenticated_peers: Vec::new(),
            hostile: Hostile::default(),
            operators: Operators::default(),
            removal: None,
            is_healing: false,
            decisions: Decisions::default(),
            shard_groups: ShardGroups::default(),
            shards_promised: BTreeMap::new(),
            on_their_way: BTreeSet::new(),
            for_restarted: BTreeSet::new(),
        }
    }

    /// Runs the simulation.
    ///
    /// # Panics
    /// Panics when a check fails.
    pub fn run(&mut self) {
        self.cx.report.seeds = 1;
        let plan = &self.plan;
        self.cx.log(|| format!("nodes: {:?}", plan.nodes));
        self.cx.log(|| format!("settings: {:?}; {:?}", plan.config, plan.mesh));
        for node in 0..self.members.len() {
            let at = self.cx.between(0, SECOND);
            self.cx.at(at, Event::SimCluster(Step::Start { node }));
        }
        for (number, (at, _)) in self.plan.faults.iter().enumerate() {
            self.cx.at(*at, Event::Fault { number });
        }
        for client in 0..self.clients.len() {
            let delay = self.cx.between(0, 2 * SECOND);
            self.acts_after(client, delay);
        }
        self.cx.at(2 * SECOND, Event::SimCluster(Step::Operate));
        if self.plan.has_hostile_client {
            self.cx.at(SECOND, Event::Act { client: HOSTILE });
        }
        self.run_until(self.plan.length);
        self.heal();
        self.check_converged();
        if let Some(absent_node) = self.members.iter().position(|member| member.in_long_outage) {
            self.end_long_outage(absent_node);
            self.check_converged();
            self.cx.report.cluster_check_long_outage += 1;
        }
        let report = &mut self.cx.report;
        report.seconds = self.cx.schedule.now() / SECOND;
        report.events = self.cx.schedule.handled();
        self.count_operations();
        for member in &mut self.members {
            member.machine.count(&mut self.cx);
            if let Some(process) = &mut member.process {
                process.check(&mut self.cx);
                self.cx.report.cluster_retransmitted += process.retransmitted();
                self.cx.report.cluster_retained_requests += process.router.counters().copies_requested;
                self.cx.report.cluster_relayed += process.router.counters().relayed;
            }
        }
    }

    pub fn report(&self) -> Report {
        let mut report = self.cx.report.clone();
        report.add(&self.oracle.excused);
        report
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.cx.trace.take()
    }

    pub(super) fn run_until(&mut self, until: Micros) {
        while let Some(event) = self.cx.schedule.next(until) {
            self.happens(event);
            if self.oracle.has_acknowledged() {
                self.review_acknowledgements();
            }
        }
        self.cx.schedule.pass_to(until);
    }

    fn happens(&mut self, event: Event) {
        // Events for a stopped process wait, and keep their order.
        if let Some(until) = self.paused_until(&event) {
            return self.cx.at(until, event);
        }
        match event {
            Event::Act { client } => self.act(client),
            Event::Fault { number } => {
                let fault = self.plan.faults[number].1.clone();
                self.fault(&fault);
            }
            Event::Arrive { link, direction: Direction::ToNode } => {
                let piece = self.net.take(link, Direction::ToNode);
                self.at_node(link, piece);
            }
            Event::Lost { link, direction: Direction::ToNode } => {
                self.at_node(link, Some(net::Piece::End));
            }
            Event::Arrive { link, direction: Direction::ToClient } => {
                match self.net.take(link, Direction::ToClient) {
                    Some(net::Piece::Bytes(bytes)) => {
                        let (client, mut scene) = self.client_of(link);
                        if let Some(client) = client {
                            client.reads(&mut scene, link, &bytes);
                        }
                        if self.is_healing {
                            self.answers_soon(link);
                        }
                    }
                    Some(net::Piece::End) => self.client_loses(link),
                    None => {}
                }
            }
            Event::Lost { link, direction: Direction::ToClient } => self.client_loses(link),
            Event::Turn { incarnation, .. }
            | Event::Batch { incarnation, .. }
            | Event::WorkerCommand { incarnation, .. }
            | Event::Commit { incarnation }
            | Event::Keep { incarnation }
            | Event::Read { incarnation, .. }
            | Event::Note { incarnation }
            | Event::Follow { incarnation } => self.handle_process_event(incarnation, event),
            Event::SimCluster(step) => self.step(step),
            Event::Start
            | Event::End { .. }
            | Event::Room
            | Event::ReadAll { .. }
            | Event::Quorum(_)
            | Event::AgreedShards(_)
            | Event::Linked(_) => {}
        }
    }

    /// Handles an event of a node's incarnation.
    fn handle_process_event(&mut self, incarnation: u32, event: Event) {
        let Some(number) = self.node_of(incarnation) else { return };
        let member = &mut self.members[number];
        let Some(process) = &mut member.process else { return };
        let is_turn = matches!(event, Event::SimCluster(Step::Turn { .. }));
        if is_turn {
            process.turn(&mut self.cx, &mut self.wan, &mut member.copy);
            self.operators.record_answers(process.take_answers());
        } else {
            process.node.handle(&mut self.cx, &mut self.net, &mut member.machine, event);
            if process.node.failed() == Some(self.cx.now()) {
                let after = self.cx.between(0, 5 * SECOND);
                self.cx.after(after, Event::SimCluster(Step::End { incarnation }));
            }
        }
        process.look(&mut self.cx);
        process.node.take_ended();
        let is_to_be_checked = process.is_to_be_checked();
        if is_turn {
            self.change_shards(number);
        }
        if is_to_be_checked {
            self.check_leases();
            self.check_shard_routes();
        }
        self.check_shard_subacks(number);
        self.check_disk_space(number);
        self.check_agreement(number);
        self.check_adopted(number);
    }

    /// Asserts that no two majorities of cores exist at one time. Each would rely on a set of cores that does not know
    /// of the other.
    fn check_majorities(&mut self) {
        let mut sets = BTreeMap::<BTreeSet<NodeId>, usize>::new();
        for (process, info) in self.members.iter().zip(&self.plan.nodes) {
            let meta = process.process.as_ref().map(|process| process.router.meta());
            let Some(meta) = meta.filter(|meta| meta.may_grant()) else { continue };
            let cores: BTreeSet<NodeId> = meta.roster().cores().map(|(id, _)| id).collect();
            if cores.contains(&NodeId::of_name(&info.name)) {
                *sets.entry(cores).or_default() += 1;
            }
        }
        let majorities = sets.iter().filter(|(cores, knowing)| **knowing > cores.len() / 2);
        assert!(majorities.count() <= 1, "two majorities of cores at one time: {sets:?}");
        self.cx.report.cluster_check_majorities += u64::from(sets.len() > 1);
    }

    /// Checks that the core knows every lease that a node relies on. This also holds after the core has removed the
    /// node.
    fn check_leases(&mut self) {
        for node in 0..self.members.len() {
            let Some(process) = &self.members[node].process else { continue };
            let now = process.time(&self.cx);
            if self.oracle.serves_alone || !process.router.may_acknowledge(now) {
                continue;
            }
            let id = self.id_of(node);
            for (core, _) in process.router.leases(now) {
                let at = self.plan.nodes.iter().position(|info| NodeId::of_name(&info.name) == core);
                // A core that starts waits until all leases that it had granted have expired.
                let Some(granter) = at.and_then(|at| self.members[at].process.as_ref()) else { continue };
                let has_granted = granter.router.has_granted(granter.time(&self.cx), id);
                assert!(has_granted, "n{node} relies on a lease of n{at:?}, which has forgotten it");
                let is_removed = !granter.router.meta().roster().members.contains_key(&id);
                self.cx.report.cluster_check_leases += 1;
                self.cx.report.cluster_check_leases_of_removed += u64::from(is_removed);
            }
        }
    }

    /// Asserts that a core that is a member has all features that the log may require.
    fn check_adopted(&mut self, number: usize) {
        let member = &self.members[number];
        let Some(meta) = member.process.as_ref().map(|process| process.router.meta()) else { return };
        let Some(adopted) = meta.adopted() else { return };
        self.decisions.adopted |= adopted;
        let lacking = self.decisions.adopted & !member.features;
        if lacking != 0 {
            let incarnation = meta.incarnation();
            let id = NodeId::of_name(&self.plan.nodes[number].name);
            let others = self.members.iter().filter_map(|member| member.process.as_ref());
            let last = others.map(|it| it.router.meta().roster()).max_by_key(|roster| roster.index);
            let known = last.and_then(|roster| roster.members.get(&id));
            let is_member = known.is_some_and(|known| known.incarnation == incarnation);
            assert!(!is_member, "n{number} lacks features {lacking:#x}, which the log may require");
            self.cx.report.cluster_check_outdated += 1;
        }
    }

    /// Asserts that there is one cluster, and that a dead incarnation may acknowledge nothing, whatever it knows.
    fn check_agreement(&mut self, number: usize) {
        let Some(process) = &self.members[number].process else { return };
        let roster = process.router.meta().roster();
        let index = roster.index;
        let decisions = &mut self.decisions;
        if roster.founded != 0 {
            assert!(
                decisions.founded == 0 || decisions.founded == roster.founded,
                "n{number} belongs to another cluster than the others"
            );
            decisions.founded = roster.founded;
        }
        let news = (index > decisions.index).then(|| roster.clone());
        if decisions.known.insert(number, index) != Some(index) {
            self.cx.log(|| {
                format!("n{number}: knows the meta group's roster up to {index}: {}", description(roster))
            });
            self.check_majorities();
            self.check_leases();
        }
        let decisions = &mut self.decisions;
        let mut suspects = vec![number];
        if let Some(roster) = news {
            decisions.index = index;
            for (node, info) in self.plan.nodes.iter().enumerate() {
                let member = roster.members.get(&NodeId::of_name(&info.name));
                // The node was removed, and has lost its number.
                decisions.dead.retain(|dead, incarnation| {
                    *dead != node || member.is_none_or(|member| member.incarnation >= *incarnation)
                });
                let Some(member) = member.filter(|member| member.state == State::Dead) else { continue };
                if decisions.dead.insert(node, member.incarnation) != Some(member.incarnation) {
                    suspects.push(node);
                    self.cx.report.cluster_nodes_declared_dead += 1;
                }
            }
        }
        for node in suspects.into_iter().filter(|_| !self.oracle.serves_alone) {
            let Some(dead) = self.decisions.dead.get(&node).copied() else { continue };
            let process = self.members[node].process.as_ref();
            let Some(process) = process.filter(|process| process.router.incarnation() <= dead) else {
                continue;
            };
            let may = process.router.may_acknowledge(process.time(&self.cx));
            assert!(!may, "n{node} was declared dead, and may acknowledge messages");
            self.cx.report.cluster_check_dead += 1;
        }
    }

    /// Handles data that arrives at a node's end of a client's connection.
    fn at_node(&mut self, link: Link, piece: Option<net::Piece>) {
        let (Some(piece), Some((node, incarnation))) = (piece, self.homes.get(&link).copied()) else {
            return;
        };
        let process = self.members[node].process.as_mut();
        let Some(process) = process.filter(|process| process.node.incarnation() == incarnation) else {
            return;
        };
        match piece {
            net::Piece::Bytes(bytes) => process.node.receive(&mut self.cx, &mut self.net, link, &bytes),
            net::Piece::End => process.node.lost(&mut self.cx, &mut self.net, link),
        }
        process.look(&mut self.cx);
    }

    fn client_of(&mut self, link: Link) -> (Option<&mut Client>, Scene<'_>) {
        let scene = Scene { cx: &mut self.cx, net: &mut self.net, oracle: &mut self.oracle };
        let client = scene.net.client_of(link);
        (client.and_then(|client| self.clients.get_mut(client)), scene)
    }

    fn client_loses(&mut self, link: Link) {
        self.hostile.link.take_if(|own| *own == link);
        let (client, mut scene) = self.client_of(link);
        if let Some(client) = client {
            client.loses_link(&mut scene, link);
        }
        self.net.close(&mut self.cx, link, Direction::ToNode);
    }

    fn act(&mut self, number: usize) {
        if number == HOSTILE {
            return self.act_hostile();
        }
        if self.clients[number].due > self.cx.now() {
            return;
        }
        self.clients[number].due = Micros::MAX;
        let is_healing = self.is_healing;
        if self.clients[number].link().is_none() {
            let home = self.clients[number].home();
            let node = home.unwrap_or_else(|| self.cx.random.below(self.members.len()));
            self.connect(number, node);
        } else {
            self.note_known_again();
            let mut scene = Scene { cx: &mut self.cx, net: &mut self.net, oracle: &mut self.oracle };
            let client = &mut self.clients[number];
            if is_healing {
                client.answers(&mut scene, usize::MAX);
            } else {
                client.act(&mut scene);
            }
        }
        let pace = self.plan.pace;
        let delay = match self.clients[number].link() {
            _ if !is_healing => self.cx.between(MILLI, pace),
            // A packet is answered soon after it has arrived.
            Some(_) => SECOND,
            None => ANSWER,
        };
        self.acts_after(number, delay);
    }

    /// Schedules the client's next action after `delay`, unless an earlier one is scheduled.
    pub(super) fn acts_after(&mut self, number: usize, delay: Micros) {
        let (at, client) = (self.cx.now() + delay, &mut self.clients[number]);
        if at < client.due {
            client.due = at;
            self.cx.at(at, Event::Act { client: number });
        }
    }

    fn answers_soon(&mut self, link: Link) {
        let client = self.net.client_of(link);
        if let Some(number) =
            client.filter(|number| self.clients.get(*number).is_some_and(Client::has_answers))
        {
            self.acts_after(number, ANSWER);
        }
    }

    /// Connects a client to a node, if that runs.
    pub(super) fn connect(&mut self, client: usize, node: usize) {
        if self.members[node].stopped > self.cx.now() {
            return;
        }
        let Some(process) = &mut self.members[node].process else { return };
        let (link, incarnation) = (self.net.open(client), process.node.incarnation());
        self.homes.insert(link, (node, incarnation));
        process.node.open(&mut self.cx, link);
        self.cx.report.connections += 1;
        let mut scene = Scene { cx: &mut self.cx, net: &mut self.net, oracle: &mut self.oracle };
        self.clients[client].connects(&mut scene, link, node, incarnation);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start { node } => self.start(node),
            Step::Turn { incarnation } => self.handle_process_event(incarnation, Event::SimCluster(step)),
            Step::Carry { wire, end } => {
                let (arrived, sender) = self.wan.carry(&mut self.cx, wire, end);
                if let Some((end, piece)) = arrived {
                    self.at_mesh(end, piece);
                }
                if let Some(process) = sender.and_then(|end| self.members[end.node].process.as_mut()) {
                    process.wake(&mut self.cx, 10);
                }
            }
            Step::Broken { wire, end } => {
                if let Some(end) = self.wan.broken(wire, end) {
                    self.at_mesh(end, Piece::End);
                }
            }
            Step::Dial { wire } => {
                let Some([from, node]) = self.wan.reached(&mut self.cx, wire) else { return };
                let from = ([10, 0, 0, from as u8], wire as u16).into();
                let end = self.members.get_mut(node).and_then(|member| {
                    let process = member.process.as_mut()?;
                    let (now, incarnation) = (process.time(&self.cx), process.node.incarnation());
                    let connection = process.router.mesh().accepted(now, from)?;
                    process.wake(&mut self.cx, 10);
                    Some(End { node, incarnation, connection })
                });
                self.wan.answers(&mut self.cx, wire, end);
            }
            Step::Dialed { wire, is_there } => {
                let Some(end) = self.wan.answered(&mut self.cx, wire, is_there) else { return };
                let Some(process) = self.members[end.node].process.as_mut() else { return };
                if process.node.incarnation() != end.incarnation {
                    return;
                }
                let now = process.time(&self.cx);
                if is_there {
                    process.router.mesh().dialed(now, end.connection);
                } else {
                    process.router.mesh().closed(now, end.connection, "connection refused");
                }
                process.wake(&mut self.cx, 10);
            }
            Step::Flap { one, other, until } => self.flap(one, other, until),
            Step::Intrude { unauthenticated } => self.send_unauthenticated(unauthenticated),
            Step::CheckRejected { unauthenticated } => self.check_rejected(unauthenticated),
            Step::End { incarnation } => self.ends(incarnation),
            Step::Room { node } => self.members[node].machine.disk.set_capacity(None),
            Step::Operate => self.operate(),
            Step::BeginLongOutage { node } => self.begin_long_outage(node),
            Step::Impersonate => self.impersonate(),
            Step::Resume { client, link } => self.resume(client, link),
        }
    }

    /// Handles data that arrives at an end of a connection between nodes.
    fn at_mesh(&mut self, end: End, piece: Piece) {
        let Some(process) = self.members[end.node].process.as_mut() else { return };
        if process.node.incarnation() != end.incarnation {
            return;
        }
        let now = process.time(&self.cx);
        match piece {
            Piece::Bytes(bytes) => process.router.mesh().input(now, end.connection, bytes),
            Piece::End => process.router.mesh().closed(now, end.connection, "connection reset"),
        }
        let delay = self.cx.between(1, 200);
        process.wake(&mut self.cx, delay);
    }

    /// Removes debts for messages that were acknowledged while the publisher's node could not reach another. Such a
    /// message waits at that node until its next restart, and only if links have enough room.
    fn review_acknowledgements(&mut self) {
        let (is_tight, is_sent) =
            (self.plan.is_tight, self.plan.config.forward_ack == cluster::ForwardAck::Sent);
        let owed_from: Vec<usize> = self.members.iter().map(|member| member.owed_from).collect();
        for number in self.oracle.take_acknowledged() {
            let (members, plan, on_their_way) = (&mut self.members, &self.plan, &mut self.on_their_way);
            let (for_restarted, report) = (&mut self.for_restarted, &mut self.cx.report);
            let serves_alone = self.oracle.serves_alone;
            self.oracle.deletion_is_everywhere(number, |sent, node, incarnation| {
                let others = (0..members.len()).filter(|other| *other != node);
                let process = members[node]
                    .process
                    .as_mut()
                    .filter(|process| process.node.incarnation() == incarnation);
                process.is_some_and(|process| {
                    let names = others.map(|other| NodeId::of_name(&plan.nodes[other].name));
                    !is_sent
                        && !is_tight
                        && names.into_iter().all(|peer| !process.was_interrupted(peer, sent))
                })
            });
            self.oracle.forget_owed(number, |message, view, since| {
                if message.node == view.node {
                    return false;
                }
                let peer = NodeId::of_name(&plan.nodes[view.node].name);
                // A restarted core waits only for a limited time for unreachable nodes, because nobody has decided yet
                // which are alive.
                let (mut cores, mut knowing, mut is_new) = (0, 0, false);
                let all = members.iter_mut().zip(&plan.nodes).filter(|(_, info)| info.role == Role::Core);
                for (core, _) in all {
                    cores += 1;
                    is_new |= core.began > since;
                    let is_own = core.number == view.node;
                    let process = core.process.as_mut().filter(|_| core.began <= since);
                    knowing +=
                        usize::from(process.is_some_and(|it| is_own || !it.was_interrupted(peer, since)));
                }
                if is_new && knowing <= cores / 2 {
                    report.cluster_excused_cores_restarted += 1;
                    return true;
                }
                // The publisher's node may not have known the session, however late the message is acknowledged.
                if view.is_durable && number < owed_from[view.node] {
                    report.cluster_excused_removed += 1;
                    return true;
                }
                let to = &members[view.node];
                let has_room = !to.lacks_room && to.lacked_room < message.sent;
                let began = to.process.as_ref().map_or(Micros::MAX, |_| to.began);
                let process = members[message.node].process.as_mut();
                let process = process.filter(|process| process.node.incarnation() == message.incarnation);
                let found = process.as_ref().and_then(|it| it.restart_found_at(peer, message.sent));
                let may_wait =
                    is_sent || process.is_none_or(|process| process.was_interrupted(peer, message.sent));
                if may_wait && !view.is_durable && !is_tight && has_room {
                    report.cluster_check_waited += 1;
                    on_their_way.insert((view.node, number));
                    return false;
                }
                // A core without other cores acknowledges as soon as it suspects another node.
                let may_be_lost = is_sent || is_tight || !has_room || serves_alone || cores < 2;
                if may_wait && !may_be_lost && view.is_durable && found.is_some_and(|found| began <= found) {
                    report.cluster_check_restarted += 1;
                    for_restarted.insert((view.node, number));
                    return false;
                }
                report.cluster_excused_unreached += u64::from(may_wait);
                may_wait
            });
        }
    }

    /// Drops debts of messages on their way to a node whose log is full: it cannot store them.
    fn check_disk_space(&mut self, node: usize) {
        let member = &mut self.members[node];
        let lacks_room = member.process.as_ref().is_some_and(|process| process.node.lacks_room());
        let lacked_room = std::mem::replace(&mut member.lacks_room, lacks_room);
        if !lacks_room && !lacked_room {
            return;
        }
        member.lacked_room = self.cx.now();
        if lacked_room == lacks_room {
            return;
        }
        self.cx.log(|| format!("n{node}: its log has room: {lacked_room}"));
        if !lacks_room {
            return;
        }
        let report = &mut self.cx.report;
        for (_, number) in self.on_their_way.extract_if((node, 0)..=(node, usize::MAX), |_| true) {
            self.oracle.forget_owed(number, |_, view, _| {
                let is_lost = view.node == node && !view.is_durable;
                report.cluster_excused_no_room += u64::from(is_lost);
                is_lost
            });
        }
        self.forgets_restarted(node);
    }

    /// Drops debts of messages for a restarted node: they may be lost with its next restart, or find no room.
    pub(super) fn forgets_restarted(&mut self, node: usize) {
        for (_, number) in self.for_restarted.extract_if((node, 0)..=(node, usize::MAX), |_| true) {
            self.oracle.forget_owed(number, |_, view, _| view.node == node && view.is_durable);
        }
    }
}

/// Describes a roster for the trace.
fn description(roster: &Roster) -> String {
    let description = roster.members.values().map(|member| {
        let meta::Member { info, incarnation, state, leaves, .. } = member;
        let leaves = if *leaves { ", leaves" } else { "" };
        format!("{} ({:?} {}, {state:?}{leaves})", info.name, info.role, incarnation.0)
    });
    description.collect::<Vec<_>>().join(", ")
}
