//! Nodes, the network between them, and their clients: the state of a simulation, and the way of its events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker::peers::{Inbound, LastIncarnation, Leader};
use broker::settings::{Durability, DurabilityRule, Settings};
use broker::{LaneCounters, ReadCounters, ReplicaCounters, ShardId};
use consensus::{LogGroup, Member, ReplicaId};
use link::NodeId;
use settings::{ByteSize, Raw, Section};
use shardlog::TargetMembers;

use super::claims::Claims;
use super::client::Client;
use super::clocks::{self, WallClock};
use super::contenders::Contenders;
use super::ephemeral::Devices;
use super::faults::Fault;
use super::leases::Leases;
use super::links::NodeLink;
use super::members::spread_leaders;
use super::messages::{FAST, Messages};
use super::network::{Mailbox, Network, Step, node_id};
use super::placement::{CORES, MetaGroup, first_log};
use super::retained::RetainedClients;
use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Link, Net};
use crate::node::{Node, PlacedSetup, ReplicaSetup, Setup};
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;
use random::Random;

/// Nodes whose first ones, the cores, have the replicas of the shards: three cores have one of each shard, or five have
/// those that a placement gives them.
pub struct AgreedShards {
    pub(super) cx: Context,
    pub(super) net: Net,
    pub(super) network: Network,
    pub(super) hosts: Vec<Host>,
    /// Number of cores.
    pub(super) cores: usize,
    /// Placement of the shards, if their replicas move.
    pub(super) meta: Option<MetaGroup>,
    pub(super) clients: Vec<Client>,
    pub(super) retained: RetainedClients,
    pub(super) devices: Devices,
    pub(super) contenders: Contenders,
    pub(super) messages: Messages,
    pub(super) claims: Claims,
    pub(super) leases: Leases,
    /// CONNACK may overlap with the Claim of the client.
    pub(super) overlaps: bool,
    /// Nodes without a lease neither read from their clients nor write to them.
    pub(super) freezes: bool,
    /// Node of each client's connection.
    pub(super) homes: BTreeMap<Link, usize>,
    /// Links between nodes, by the lower and the higher one.
    pub(super) links: BTreeMap<(usize, usize), NodeLink>,
    /// Members, as the nodes have agreed.
    pub(super) members: BTreeMap<u64, LastIncarnation>,
    /// Number of incarnations of all nodes so far.
    pub(super) incarnations: u32,
    /// Digest of each shard at each record, as the first replica has computed it.
    pub(super) digests: BTreeMap<(ShardId, u64), u64>,
    pub(super) faults: Vec<(Micros, Fault)>,
    pub(super) length: Micros,
    pub(super) is_calm: bool,
}

pub(super) struct Host {
    pub(super) machine: Machine,
    pub(super) wall: WallClock,
    pub(super) setup: Setup,
    pub(super) node: Option<Node>,
    pub(super) mailbox: Arc<Mailbox>,
    /// Incarnation in which the node asks shards. It may change while the process runs.
    pub(super) incarnation: u64,
    /// Counters of the node that were reported.
    pub(super) counted: ReplicaCounters,
    pub(super) counted_reads: ReadCounters,
    pub(super) counted_lanes: LaneCounters,
    pub(super) counted_transfers: (u64, u64),
    pub(super) counted_early: u64,
    /// Shards that the node leads, with the term, as far as it has said so.
    pub(super) leads: BTreeMap<ShardId, u64>,
    /// Leaders that the node knows.
    pub(super) leaders: BTreeMap<ShardId, Leader>,
    /// Nodes that should lead the shards, by number, whatever the balance is. Used while replicas move.
    pub(super) preferred: Vec<NodeId>,
}

/// Choice of simulations whose replicas move between cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    Always,
    /// Two of seven seeds.
    Sometimes,
}

/// Number of replicas of each shard.
pub(super) const REPLICAS: usize = 3;
/// Shortest and longest time between two actions of a client.
const PACE: (Micros, Micros) = (5 * MILLI, 150 * MILLI);
/// The same for a device with an ephemeral session, and for a contender.
const DEVICE_PACE: (Micros, Micros) = (20 * MILLI, 600 * MILLI);
/// Time between two comparisons of the replicas.
const COMPARE: Micros = SECOND / 4;
/// Time between two looks at the links.
const LINKS: Micros = SECOND / 2;

/// Rule by which messages below a topic have durability `memory`.
fn in_memory(topic: &str) -> DurabilityRule {
    let mut rule = DurabilityRule { class: Durability::Memory, ..DurabilityRule::default() };
    rule.set("filter", &Raw::String(format!("{topic}#"))).expect("a filter");
    rule
}

impl AgreedShards {
    /// Makes the simulation of a seed. `moves`: the replicas move, as they do with some seeds in any case.
    pub fn new(seed: u64, moves: Moves, trace: Trace) -> Self {
        let moves = moves == Moves::Always || (2..4).contains(&(seed % 7));
        let cores = if moves { CORES } else { REPLICAS };
        let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9) ^ 0xA6_4EED);
        // Half of the time two more nodes have no replicas.
        let nodes = if seed % 4 < 2 { cores } else { cores + 2 };
        let mut hash_key = [0; 16];
        hash_key.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let mut settings = Settings::default();
        settings.sys.interval = Duration::ZERO;
        settings.durability = vec![in_memory(FAST), in_memory("jobs/")];
        settings.limits.memory_unsynced_max = *random.pick(&[ByteSize::kib(16), ByteSize::mib(64)]);
        let (snapshot_after, keep_entries) = (*random.pick(&[20, 100, 1000]), *random.pick(&[0, 5, 100]));
        let entry_cache_bytes = *random.pick(&[0, 1_000, 20_000]);
        let segment_bytes = *random.pick(&[16 << 10, 64 << 10, 256 << 10]);
        let sync_max = *random.pick(&[300, 5 * MILLI, 20 * MILLI]);
        let member = |node: usize| (ReplicaId(node as u64 + 1), Member { node: node_id(node) });
        let hosts = (0..nodes).map(|node| {
            let (id, own) = member(node);
            let config = consensus::Config {
                snapshot_after,
                keep_entries,
                entry_cache_bytes,
                snapshot_piece_bytes: 10_000,
                // The class of a message is that of the publisher's listener, so a leader may have no such rule.
                reports_held: random.below(4) > 0,
                ..consensus::Config::new(LogGroup(0), id, own, 0)
            };
            let voters: BTreeMap<_, _> = (0..REPLICAS).map(member).collect();
            let target = TargetMembers {
                epoch: 0,
                founders: voters.clone(),
                voters,
                known: Default::default(),
                is_settled: true,
            };
            let mut entropy = [0; 48];
            entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
            Host {
                machine: Machine::new(random.draw()),
                wall: WallClock::default(),
                setup: Setup {
                    urgent: &shardlog::URGENT,
                    settings: settings.clone(),
                    rules: Arc::default(),
                    workers: 1 + random.below(3) as u16,
                    segment_bytes,
                    commit_bytes_max: 8 << 20,
                    low_bytes_per_commit: 1 << 20,
                    entropy,
                    sync_max,
                    keeps_ahead: seed % 3 != 1,
                    replica: Some(ReplicaSetup {
                        config,
                        hash_key,
                        target,
                        has_replicas: !moves && node < REPLICAS,
                        placed: (moves && node < cores).then(|| PlacedSetup {
                            own: first_log(node),
                            stored: Arc::default(),
                            reached: Arc::default(),
                        }),
                        leaders: spread_leaders(),
                        transfer_permit: Arc::default(),
                        began_ms: 0,
                        unreadable: 0,
                    }),
                    #[cfg(feature = "trial")]
                    mutation: None,
                },
                node: None,
                mailbox: Arc::default(),
                incarnation: 0,
                counted: ReplicaCounters::default(),
                counted_reads: ReadCounters::default(),
                counted_lanes: LaneCounters::default(),
                counted_transfers: (0, 0),
                counted_early: 0,
                leads: BTreeMap::new(),
                leaders: BTreeMap::new(),
                preferred: Vec::new(),
            }
        });
        let mut hosts: Vec<Host> = hosts.collect();
        let overlaps = !seed.is_multiple_of(3);
        let clients = 4 + random.below(6);
        let length = (30 + random.below(40) as u64) * SECOND;
        let count = 3 + random.below(8);
        let mut faults: Vec<_> = (0..count)
            .map(|_| (5 * SECOND + random.draw() % length, Fault::any(&mut random, nodes, clients)))
            .collect();
        // One disk has bad sectors. The others have everything that was acknowledged.
        let bad = random.below(cores);
        let unreadable = *random.pick(&[0, 10, 40]);
        // With these faults replicas ask no others, which would hide the faults.
        let is_unaided =
            [shard::Mutation::DropBodies, shard::Mutation::ReadEarly].into_iter().any(shard::mutated);
        if let Some(replica) = &mut hosts[bad].setup.replica
            && !is_unaided
        {
            replica.unreadable = unreadable;
        }
        if seed.is_multiple_of(2) {
            // Once, and the same disk: the other two have everything, whatever happens to them.
            let (node, after) = (bad, random.draw() % (10 * SECOND));
            faults.push((5 * SECOND + random.draw() % length, Fault::Replace { node, after }));
        }
        if seed % 5 < 3 {
            faults.push((5 * SECOND + random.draw() % length, Fault::pause_in_turn(&mut random, nodes)));
        }
        for _ in 0..1 + random.below(3) {
            let is_agreed = random.below(3) > 0;
            faults.push((5 * SECOND + random.draw() % length, Fault::Prefer { is_agreed }));
        }
        if !seed.is_multiple_of(3) {
            // The first one is wrong from the beginning.
            let times = [0, 5 * SECOND + random.draw() % length, 5 * SECOND + random.draw() % length];
            let count = 1 + random.below(times.len());
            let set = |random: &mut Random| Fault::SetClock {
                node: random.below(nodes),
                ahead_ms: clocks::wrong(random),
            };
            faults.extend(times.into_iter().take(count).map(|at| (at, set(&mut random))));
        }
        if moves {
            for _ in 0..2 + random.below(4) {
                let shards = 1 + random.below(4);
                faults.push((5 * SECOND + random.draw() % length, Fault::Move { shards }));
            }
            if random.below(2) == 0 {
                let (node, time) = (random.below(cores), *random.pick(&[5 * SECOND, 15 * SECOND]));
                faults.push((5 * SECOND + random.draw() % length, Fault::Leave { node, time }));
            }
        }
        faults.sort_by_key(|(at, _)| *at);
        Self {
            net: Net::default(),
            network: Network::new(*random.pick(&[100, MILLI, 40 * MILLI])),
            hosts,
            cores,
            meta: moves.then(|| MetaGroup::new(hash_key)),
            clients: (0..clients).map(Client::new).collect(),
            retained: RetainedClients::new(),
            devices: Devices::new(overlaps),
            contenders: Contenders::new(),
            claims: Claims::new(overlaps),
            overlaps,
            freezes: seed % 5 < 2,
            messages: Messages::default(),
            leases: Leases::new(nodes),
            homes: BTreeMap::new(),
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            incarnations: 0,
            digests: BTreeMap::new(),
            faults,
            length: length + 5 * SECOND,
            is_calm: false,
            cx: Context {
                random,
                schedule: Schedule::default(),
                report: Report::default(),
                trace,
                has_slow_reads: true,
            },
        }
    }

    pub fn run(&mut self) {
        if let Some((0, Fault::SetClock { node, ahead_ms })) = self.faults.first().copied() {
            self.set_clock(node, ahead_ms);
        }
        for node in 0..self.hosts.len() {
            self.start(node);
        }
        for client in 0..self.clients.len() {
            self.cx.after(SECOND, Event::AgreedShards(Step::Act { client }));
        }
        for client in 0..self.retained.len() {
            self.cx.after(2 * SECOND, Event::AgreedShards(Step::ActRetained { client }));
        }
        for device in 0..self.devices.len() {
            self.cx.after(3 * SECOND, Event::AgreedShards(Step::ActDevice { device }));
        }
        for contender in 0..self.contenders.len() {
            self.cx.after(3 * SECOND, Event::AgreedShards(Step::ActContender { contender }));
        }
        for (number, (at, _)) in self.faults.iter().enumerate() {
            self.cx.schedule.at(*at, number as u64, Event::AgreedShards(Step::Fault { number }));
        }
        self.cx.after(COMPARE, Event::AgreedShards(Step::Compare));
        self.cx.after(LINKS, Event::AgreedShards(Step::Links));
        self.begin_placing();
        self.pass(self.length);
        self.settle();
        let report = &mut self.cx.report;
        report.seeds = 1;
        report.seconds = self.cx.schedule.now() / SECOND;
        report.events = self.cx.schedule.handled();
    }

    pub fn report(&self) -> Report {
        self.cx.report.clone()
    }

    pub fn take_trace(&mut self) -> Vec<String> {
        self.cx.trace.take()
    }

    pub(super) fn pass(&mut self, until: Micros) {
        while let Some(event) = self.cx.schedule.next(until) {
            self.handle(event);
        }
        self.cx.schedule.pass_to(until);
    }

    fn handle(&mut self, event: Event) {
        if let Some(incarnation) = event.incarnation() {
            let Some(at) = self
                .hosts
                .iter()
                .position(|host| host.node.as_ref().is_some_and(|node| node.incarnation() == incarnation))
            else {
                return;
            };
            let host = &mut self.hosts[at];
            let Some(node) = &mut host.node else { return };
            if let Some(until) = node.paused_until(self.cx.now()) {
                return self.cx.at(until, event);
            }
            node.handle(&mut self.cx, &mut self.net, &mut host.machine, event);
            return self.after_turn(at);
        }
        match event {
            Event::Arrive { link, direction } => self.arrive(link, direction),
            Event::Lost { link, direction } => self.lost(link, direction),
            Event::AgreedShards(step) => self.step(step),
            Event::ReadAll { incarnation } => self.read_all(incarnation),
            _ => {}
        }
    }

    /// Ends a pause of a process.
    fn read_all(&mut self, incarnation: u32) {
        let nodes = self.hosts.iter_mut().enumerate();
        let mut nodes = nodes.filter_map(|(at, host)| Some((at, host.node.as_mut()?)));
        let found = nodes.find(|(_, node)| node.incarnation() == incarnation);
        if let Some((at, node)) = found {
            node.has_read_all(&mut self.cx, &mut self.net);
            self.after_turn(at);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Frame { number } => self.frame(number),
            Step::Start { node } => self.start(node),
            Step::Act { client } => {
                self.act(client);
                let delay = self.cx.between(PACE.0, PACE.1);
                self.cx.after(delay, Event::AgreedShards(Step::Act { client }));
            }
            Step::ActRetained { client } => {
                self.act_retained(client);
                let delay = self.cx.between(PACE.0, PACE.1);
                self.cx.after(delay, Event::AgreedShards(Step::ActRetained { client }));
            }
            Step::ActDevice { device } => {
                self.act_device(device);
                let delay = self.cx.between(DEVICE_PACE.0, DEVICE_PACE.1);
                self.cx.after(delay, Event::AgreedShards(Step::ActDevice { device }));
            }
            Step::ActContender { contender } => {
                self.act_contender(contender);
                let delay = self.cx.between(DEVICE_PACE.0, DEVICE_PACE.1);
                self.cx.after(delay, Event::AgreedShards(Step::ActContender { contender }));
            }
            Step::Fault { number } => {
                let fault = self.faults[number].1;
                self.cx.log(|| format!("{fault:?}"));
                self.fail(fault);
            }
            Step::Reconcile => {
                self.reconcile();
            }
            Step::Decide => self.decide(),
            Step::Learn { node } => self.learn(node),
            Step::Stays { node } => {
                if let Some(meta) = &mut self.meta {
                    meta.set_leaves(node, false);
                }
            }
            Step::Links => {
                self.look_at_links();
                self.compare_clocks();
                self.grant_leases();
                self.cx.after(LINKS, Event::AgreedShards(Step::Links));
            }
            Step::Ended { node, incarnation } => self.incarnation_ended(node, incarnation),
            Step::Restarted { node, incarnation } => self.restart_incarnation(node, incarnation),
            Step::MembersSettled { node, shard, term } => {
                let shard = ShardId(shard);
                if self.hosts[node].leads.get(&shard) == Some(&term) {
                    let members_settled = || vec![(shard, term)];
                    self.inform(node, || Inbound {
                        members_settled: members_settled(),
                        ..Inbound::default()
                    });
                }
            }
            Step::Compare => {
                self.compare();
                self.cx.after(COMPARE, Event::AgreedShards(Step::Compare));
            }
        }
    }
}
