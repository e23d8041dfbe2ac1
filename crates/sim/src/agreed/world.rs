//! Nodes, the network between them, and their clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker::peers::{Inbound, LastIncarnation, Leader, MemberIncarnations, Port, ShardFrame};
use broker::settings::Settings;
use broker::{
    LaneCounters, PeerFrame, ReadCounters, ReplicaCounters, SHARDS, ShardId, StoreEvent, Time, WorkerId,
};
use consensus::{LogGroup, Member, ReplicaId};
use link::NodeId;
use shardlog::{AgreementInput, TargetMembers};

use super::client::{Client, missing_jobs};
use super::ephemeral::Devices;
use super::leases::{LEASE, Leases, Released};
use super::messages::Messages;
use super::network::{Content, Mailbox, Network, Step, Taken, Travelling, node_id};
use super::retained::RetainedClients;
use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Link, Net};
use crate::node::{Node, ReplicaSetup, Setup, StartFailure};
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND, Schedule};
use crate::trace::Trace;
use random::Random;

/// Nodes whose shards have a replica on each of the first three.
pub struct AgreedShards {
    pub(super) cx: Context,
    pub(super) net: Net,
    network: Network,
    pub(super) hosts: Vec<Host>,
    pub(super) clients: Vec<Client>,
    pub(super) retained: RetainedClients,
    pub(super) devices: Devices,
    pub(super) messages: Messages,
    leases: Leases,
    /// CONNACK may overlap with the Claim of the client.
    overlaps: bool,
    /// Nodes without a lease neither read from their clients nor write to them.
    freezes: bool,
    /// Node of each client's connection.
    pub(super) homes: BTreeMap<Link, usize>,
    /// Links between nodes, by the lower and the higher one.
    links: BTreeMap<(usize, usize), NodeLink>,
    /// Members, as the nodes have agreed.
    members: BTreeMap<u64, LastIncarnation>,
    /// Number of incarnations of all nodes so far.
    incarnations: u32,
    /// Digest of each shard at each record, as the first replica has computed it.
    digests: BTreeMap<(ShardId, u64), u64>,
    faults: Vec<(Micros, Fault)>,
    length: Micros,
    pub(super) is_calm: bool,
}

/// The link between two nodes.
#[derive(Default)]
struct NodeLink {
    is_up: bool,
    /// Number of times that it was lost.
    losses: u64,
}

pub(super) struct Host {
    machine: Machine,
    setup: Setup,
    pub(super) node: Option<Node>,
    mailbox: Arc<Mailbox>,
    /// Incarnation in which the node asks shards. It may change while the process runs.
    incarnation: u64,
    /// Counters of the node that were reported.
    counted: ReplicaCounters,
    counted_reads: ReadCounters,
    counted_lanes: LaneCounters,
    counted_transfers: (u64, u64),
    /// Shards that the node leads, with the term, as far as it has said so.
    leads: BTreeMap<ShardId, u64>,
    /// Leaders that the node knows.
    leaders: BTreeMap<ShardId, Leader>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The process ends, and starts again after a time.
    Kill { node: usize, after: Micros },
    /// The power is cut.
    Cut { node: usize, after: Micros },
    /// Nothing passes between two nodes.
    Part { one: usize, other: usize, time: Micros },
    /// A node reaches no other.
    Isolate { node: usize, time: Micros },
    /// A process stands still.
    Pause { node: usize, time: Micros },
    /// The others declare a node dead whose process runs.
    DeclareDead { node: usize },
    /// A client loses its connection.
    Lose { client: usize },
    /// A node is lost with its disk. It comes back with an empty one, as other replicas.
    Replace { node: usize, after: Micros },
    /// Other nodes should lead the shards. The nodes may not know the same ones.
    Prefer { is_agreed: bool },
}

impl Fault {
    fn any(random: &mut Random, nodes: usize, clients: usize) -> Self {
        let (node, other) = (random.below(nodes), random.below(nodes));
        let time = *random.pick(&[SECOND / 2, 3 * SECOND, 10 * SECOND, 25 * SECOND]);
        match random.below(100) {
            0..30 => Self::Kill { node, after: time },
            30..50 => Self::Cut { node, after: time },
            50..62 if node != other => Self::Part { one: node, other, time },
            50..74 => Self::Isolate { node, time },
            74..82 => Self::Pause { node, time },
            82..90 => Self::DeclareDead { node },
            _ => Self::Lose { client: random.below(clients) },
        }
    }
}

/// Number of nodes with replicas.
const REPLICAS: usize = 3;
/// Shortest and longest time between two actions of a client.
const PACE: (Micros, Micros) = (5 * MILLI, 150 * MILLI);
/// The same for a device with an ephemeral session.
const DEVICE_PACE: (Micros, Micros) = (20 * MILLI, 600 * MILLI);
/// Time between two comparisons of the replicas.
const COMPARE: Micros = SECOND / 4;
/// Time between two looks at the links.
const LINKS: Micros = SECOND / 2;
/// Time after the last fault in which everything must settle.
const SETTLE: Micros = 120 * SECOND;

/// Returns the nodes that lead when all work: each leads as many shards as the others.
fn spread_leaders() -> Vec<NodeId> {
    (0..usize::from(SHARDS)).map(|shard| node_id(shard % REPLICAS)).collect()
}

impl AgreedShards {
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9) ^ 0xA6_4EED);
        // Half of the time two more nodes have no replicas.
        let nodes = if seed % 4 < 2 { REPLICAS } else { REPLICAS + 2 };
        let mut hash_key = [0; 16];
        hash_key.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let mut settings = Settings::default();
        settings.sys.interval = Duration::ZERO;
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
                ..consensus::Config::new(LogGroup(0), id, own, 0)
            };
            let voters: BTreeMap<_, _> = (0..REPLICAS).map(member).collect();
            let target = TargetMembers { epoch: 0, founders: voters.clone(), voters, is_settled: true };
            let mut entropy = [0; 48];
            entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
            Host {
                machine: Machine::new(random.draw()),
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
                        has_replicas: node < REPLICAS,
                        leaders: spread_leaders(),
                        transfer_permit: Arc::default(),
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
                leads: BTreeMap::new(),
                leaders: BTreeMap::new(),
            }
        });
        let hosts: Vec<Host> = hosts.collect();
        let overlaps = !seed.is_multiple_of(3);
        let clients = 4 + random.below(6);
        let length = (30 + random.below(40) as u64) * SECOND;
        let count = 3 + random.below(8);
        let mut faults: Vec<_> = (0..count)
            .map(|_| (5 * SECOND + random.draw() % length, Fault::any(&mut random, nodes, clients)))
            .collect();
        if seed.is_multiple_of(2) {
            // Once: the other two have everything, whatever happens to them.
            let (node, after) = (random.below(REPLICAS), random.draw() % (10 * SECOND));
            faults.push((5 * SECOND + random.draw() % length, Fault::Replace { node, after }));
        }
        for _ in 0..1 + random.below(3) {
            let is_agreed = random.below(3) > 0;
            faults.push((5 * SECOND + random.draw() % length, Fault::Prefer { is_agreed }));
        }
        faults.sort_by_key(|(at, _)| *at);
        Self {
            net: Net::default(),
            network: Network::new(*random.pick(&[100, MILLI, 40 * MILLI])),
            hosts,
            clients: (0..clients).map(Client::new).collect(),
            retained: RetainedClients::new(),
            devices: Devices::new(overlaps),
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
        for (number, (at, _)) in self.faults.iter().enumerate() {
            self.cx.schedule.at(*at, number as u64, Event::AgreedShards(Step::Fault { number }));
        }
        self.cx.after(COMPARE, Event::AgreedShards(Step::Compare));
        self.cx.after(LINKS, Event::AgreedShards(Step::Links));
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

    /// Ends all faults, and checks that nothing is lost and all replicas are equal.
    fn settle(&mut self) {
        (self.is_calm, self.net.calm, self.cx.has_slow_reads) = (true, true, false);
        for node in 0..self.hosts.len() {
            self.start(node);
        }
        (0..self.hosts.len()).for_each(|node| self.prefer(node, spread_leaders()));
        let end = self.cx.now() + SETTLE;
        while self.cx.now() < end {
            self.pass(self.cx.now() + SECOND);
            let are_settled = self.clients.iter().all(|client| client.is_settled(&self.messages))
                && missing_jobs(&self.clients, &self.messages).is_empty()
                && self.retained.is_settled();
            let is_idle = self.unanswered() == 0 && self.waiting() == 0;
            if are_settled && self.are_equal() && is_idle && self.are_spread() {
                break;
            }
        }
        assert!(
            self.are_spread(),
            "leaders: {:?}",
            self.hosts.iter().map(|host| &host.leads).collect::<Vec<_>>()
        );
        self.clients.iter().for_each(|client| client.check(&self.messages));
        let missing = missing_jobs(&self.clients, &self.messages);
        assert!(missing.is_empty(), "no member of the shared group has {missing:?}");
        assert!(self.retained.is_settled(), "a read or a write of retained messages has no end");
        assert_eq!(self.unanswered(), 0, "bytes of requests without an answer");
        assert_eq!(self.waiting(), 0, "completions that wait for routes, or behind one that does");
        assert!(self.are_equal(), "the replicas have not caught up: {:?}", self.records());
        self.read_everywhere();
    }

    /// Reads all retained messages from each node. All find the messages of the replicas, which are equal.
    fn read_everywhere(&mut self) {
        let readers: Vec<usize> = (0..self.hosts.len()).map(|at| self.retained.add_last_reader(at)).collect();
        for client in &readers {
            self.cx.after(SECOND, Event::AgreedShards(Step::ActRetained { client: *client }));
        }
        let end = self.cx.now() + SETTLE;
        let found =
            |this: &Self| readers.iter().map(|reader| this.retained.found(*reader)).collect::<Vec<_>>();
        while self.cx.now() < end && found(self).iter().any(Option::is_none) {
            self.pass(self.cx.now() + SECOND);
        }
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let kept: BTreeMap<String, String> =
            nodes.flat_map(Node::retained).filter(|(topic, _)| topic.starts_with("common/")).collect();
        for (at, found) in found(self).into_iter().enumerate() {
            assert_eq!(found.as_ref(), Some(&kept), "retained messages that a client of node {at} finds");
        }
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let waiting: u64 = nodes.map(|node| node.read_counters().waiting).sum();
        assert_eq!(waiting, 0, "reads of retained messages that nobody waits for");
    }

    /// Bytes of all requests that are not answered.
    fn unanswered(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.map(|node| node.lane_counters().unanswered_bytes).sum()
    }

    /// Completions that wait for routes, and those behind them.
    fn waiting(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.map(|node| node.lane_counters()).map(|counters| counters.waiting + counters.held).sum()
    }

    /// Last record that each replica has applied, by node and shard.
    fn records(&self) -> Vec<Vec<Option<u64>>> {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let of = |node: &Node| (0..SHARDS).map(|shard| Some(node.digest(ShardId(shard))?.0)).collect();
        nodes.map(of).collect()
    }

    /// Returns whether all replicas of all shards have applied the same records. Their digests were compared then.
    fn are_equal(&mut self) -> bool {
        self.compare();
        (0..SHARDS).map(ShardId).all(|shard| {
            let of = |host: &Host| host.node.as_ref().and_then(|node| node.digest(shard));
            let first = of(&self.hosts[0]);
            first.is_some() && self.hosts[..REPLICAS].iter().all(|host| of(host) == first)
        })
    }

    /// Returns whether the preferred nodes lead.
    fn are_spread(&self) -> bool {
        let leads = |at: usize, shard: ShardId| self.hosts[at].leads.contains_key(&shard);
        (0..SHARDS).all(|shard| leads(usize::from(shard) % REPLICAS, ShardId(shard)))
    }

    /// Tells a node which nodes should lead the shards, by number.
    fn prefer(&mut self, at: usize, leaders: Vec<NodeId>) {
        let host = &mut self.hosts[at];
        let Some(replica) = &mut host.setup.replica else { return };
        replica.leaders.clone_from(&leaders);
        let Some(node) = &mut host.node else { return };
        for (shard, leader) in leaders.into_iter().enumerate() {
            let input = AgreementInput::PreferredLeader(Some(leader));
            node.broker().store_event(ShardId(shard as u16), input.into());
        }
        node.send_posted(&mut self.cx);
    }

    fn compare(&mut self) {
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let Some(node) = &host.node else { continue };
            let counted = node.replica_counters();
            let before = std::mem::replace(&mut host.counted, counted);
            self.cx.report.agreed_restored += counted.restored - before.restored;
            self.cx.report.agreed_fetched += counted.fetched - before.fetched;
            self.cx.report.agreed_attached += counted.attached - before.attached;
            self.cx.report.agreed_stale += counted.stale - before.stale;
            let counted = node.read_counters();
            let before = std::mem::replace(&mut host.counted_reads, counted);
            self.cx.report.agreed_read_indexes += counted.indexes - before.indexes;
            self.cx.report.agreed_read_behind += counted.behind - before.behind;
            self.cx.report.agreed_read_own_pages += counted.own_pages - before.own_pages;
            self.cx.report.agreed_read_leader_pages += counted.leader_pages - before.leader_pages;
            self.cx.report.agreed_read_unreadable += counted.unreadable - before.unreadable;
            self.cx.report.agreed_read_dropped += counted.dropped - before.dropped;
            let counted = node.lane_counters();
            assert_eq!(counted.malformed, 0, "no node sends bytes that are no frames");
            self.cx.report.agreed_overdue += counted.overdue - host.counted_lanes.overdue;
            host.counted_lanes = counted;
            if let Some(replica) = &host.setup.replica {
                let counted = replica.transfer_permit.counts();
                let before = std::mem::replace(&mut host.counted_transfers, counted);
                self.cx.report.agreed_transfers += counted.0 - before.0;
                self.cx.report.agreed_transfers_failed += counted.1 - before.1;
            }
            assert_eq!(node.lane_counters().malformed, 0, "no node sends bytes that are no frames");
            for shard in (0..SHARDS).map(ShardId) {
                let Some((index, digest)) = node.digest(shard) else { continue };
                let known = *self.digests.entry((shard, index)).or_insert(digest);
                assert_eq!(known, digest, "{shard:?} at record {index} differs on node {at}");
                self.cx.report.agreed_compared += 1;
            }
        }
    }

    fn pass(&mut self, until: Micros) {
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
            Step::Fault { number } => {
                let fault = self.faults[number].1;
                self.cx.log(|| format!("{fault:?}"));
                self.fail(fault);
            }
            Step::Reconcile => {
                self.reconcile();
            }
            Step::Links => {
                self.look_at_links();
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

    /// Asks the leaders to replace the members that are lost. They refuse what is done already.
    fn reconcile(&mut self) {
        let replicas = self.hosts[..REPLICAS].iter().filter_map(|host| host.setup.replica.as_ref());
        let voters = replicas.map(|replica| (replica.config.id, replica.config.own)).collect();
        let target = TargetMembers { epoch: 1, voters, founders: BTreeMap::new(), is_settled: false };
        for host in &mut self.hosts {
            if let Some(replica) = &mut host.setup.replica {
                replica.target = target.clone();
            }
            let Some(node) = &mut host.node else { continue };
            for shard in (0..SHARDS).map(ShardId) {
                node.broker().store_event(shard, AgreementInput::Target(target.clone()).into());
            }
            node.send_posted(&mut self.cx);
        }
    }

    fn start(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.node.is_some() {
            return;
        }
        self.incarnations += 1;
        host.mailbox = Arc::default();
        let peers = host.mailbox.clone();
        let (overlaps, freezes) = (self.overlaps, self.freezes);
        let join = move |node: &Arc<broker::Node>| {
            assert_eq!(node.join_cluster(peers, std::time::Instant::now()), Ok(()));
            node.set_fresh_until(Time(0));
            node.keep_ephemeral_sessions(true);
            node.overlap_connacks(overlaps);
            node.freeze_without_lease(freezes);
        };
        if let Some(replica) = &mut host.setup.replica {
            replica.transfer_permit = Arc::default();
        }
        let started =
            Node::start_in(&mut self.cx, &mut host.machine, host.setup.clone(), self.incarnations, join);
        self.leases.start(at);
        (host.counted, host.counted_reads) = (ReplicaCounters::default(), ReadCounters::default());
        host.counted_lanes = LaneCounters::default();
        host.counted_transfers = (0, 0);
        (host.leads, host.leaders) = (BTreeMap::new(), BTreeMap::new());
        match started {
            Ok(node) => host.node = Some(node),
            Err(StartFailure::Broken(why)) => panic!("node {at} does not start: {why}"),
            Err(StartFailure::Disk | StartFailure::Outdated) => {
                host.machine.kill();
                return self.cx.after(SECOND, Event::AgreedShards(Step::Start { node: at }));
            }
        }
        self.cx.log(|| format!("node {at} starts"));
        self.join(at, u64::from(self.incarnations));
        self.after_turn(at);
    }

    /// Lets a node join the cluster in an incarnation, which ends its earlier ones.
    fn join(&mut self, at: usize, incarnation: u64) {
        self.hosts[at].incarnation = incarnation;
        self.members.insert(node_id(at).0, LastIncarnation { incarnation, is_dead: false });
        self.pass_members();
    }

    /// Passes the members to all nodes.
    fn pass_members(&mut self) {
        let members: Arc<MemberIncarnations> =
            Arc::new(self.members.iter().map(|(node, last)| (*node, *last)).collect());
        for at in 0..self.hosts.len() {
            self.inform(at, || Inbound { members: Some(members.clone()), ..Inbound::default() });
        }
    }

    /// Ends an incarnation of a node. A process that does not run may be removed, too.
    fn incarnation_ended(&mut self, at: usize, incarnation: u64) {
        let id = node_id(at).0;
        if self.members.get(&id).is_none_or(|last| last.incarnation != incarnation) {
            return;
        }
        let runs = self.hosts[at].node.is_some();
        if !runs && self.cx.random.below(2) == 0 {
            self.members.remove(&id);
        } else {
            self.members.insert(id, LastIncarnation { incarnation, is_dead: true });
        }
        self.pass_members();
        if runs {
            let delay = self.cx.between(MILLI, 3 * SECOND);
            self.cx.after(delay, Event::AgreedShards(Step::Restarted { node: at, incarnation }));
        }
    }

    /// Lets a node go on in another incarnation, unless it has done so already.
    fn restart_incarnation(&mut self, at: usize, incarnation: u64) {
        let host = &self.hosts[at];
        if host.node.is_none() || host.incarnation != incarnation {
            return;
        }
        self.cx.log(|| format!("node {at} goes on in another incarnation"));
        self.leases.pardon(at);
        self.cx.report.agreed_incarnations += 1;
        self.incarnations += 1;
        let incarnation = u64::from(self.incarnations);
        let leaders: Vec<_> =
            self.hosts[at].leaders.iter().map(|(shard, leader)| (*shard, *leader)).collect();
        let inbound =
            || Inbound { incarnation: Some(incarnation), leaders: leaders.clone(), ..Inbound::default() };
        self.inform(at, inbound);
        self.join(at, incarnation);
    }

    /// Takes down the links that do not work, and takes up those that work again.
    fn look_at_links(&mut self) {
        for one in 0..self.hosts.len() {
            for other in one + 1..self.hosts.len() {
                let works = self.hosts[one].node.is_some()
                    && self.hosts[other].node.is_some()
                    && !self.network.is_cut(self.cx.now(), (one, other));
                let link = self.links.entry((one, other)).or_default();
                match (link.is_up, works) {
                    (true, false) => self.lose_link(one, other),
                    (false, true) => self.take_up(one, other),
                    _ => {}
                }
            }
        }
    }

    /// Ends a link: what is on the way over it is lost.
    fn lose_link(&mut self, one: usize, other: usize) {
        let link = self.links.entry((one.min(other), one.max(other))).or_default();
        if !std::mem::replace(&mut link.is_up, false) {
            return;
        }
        link.losses += 1;
        for (at, lost) in [(one, other), (other, one)] {
            let lost = node_id(lost).0;
            self.hosts[at].leaders.retain(|_, leader| leader.node != lost);
            self.inform(at, || Inbound { links_lost: vec![lost], ..Inbound::default() });
            let Some(node) = &mut self.hosts[at].node else { continue };
            for shard in (0..SHARDS).map(ShardId) {
                node.broker().store_event(shard, StoreEvent::LinkLost(lost));
            }
            node.send_posted(&mut self.cx);
        }
    }

    /// Begins a link. Each node announces the shards that it leads.
    fn take_up(&mut self, one: usize, other: usize) {
        let link = self.links.entry((one, other)).or_default();
        link.is_up = true;
        for (from, to) in [(one, other), (other, one)] {
            let leads: Vec<_> =
                self.hosts[from].leads.iter().map(|(shard, term)| (*shard, Some(*term))).collect();
            leads.into_iter().for_each(|(shard, term)| self.announce(from, to, shard, term));
        }
    }

    /// Passes something to all workers of a node.
    fn inform(&mut self, at: usize, inbound: impl Fn() -> Inbound) {
        let host = &mut self.hosts[at];
        let Some(node) = &mut host.node else { return };
        for worker in 0..host.setup.workers {
            node.broker().post_inbound(WorkerId(worker), inbound());
        }
        node.send_posted(&mut self.cx);
    }

    /// Reports to another node that a node leads a shard, or does not any more.
    fn announce(&mut self, from: usize, to: usize, shard: ShardId, term: Option<u64>) {
        let Some(losses) = self.losses(from, to) else { return };
        self.send(from, to, Content::Leads(losses, shard, term));
    }

    /// Number of times that a link was lost; `None` while it is down.
    fn losses(&self, one: usize, other: usize) -> Option<u64> {
        let link = self.links.get(&(one.min(other), one.max(other)))?;
        link.is_up.then_some(link.losses)
    }

    fn send(&mut self, from: usize, to: usize, content: Content) {
        let Some(node) = &self.hosts[from].node else { return };
        let frame = Travelling { from, to, incarnation: node.incarnation(), content };
        self.network.send(&mut self.cx, frame);
    }

    /// Grants leases to the nodes that reach a majority and know the routes of all SUBACKs.
    fn grant_leases(&mut self) {
        let now = self.cx.now();
        for at in 0..self.hosts.len() {
            let linked = (0..self.hosts.len()).filter(|other| self.losses(at, *other).is_some()).count();
            let Some(node) = &self.hosts[at].node else { continue };
            let has_majority = (linked + 1) * 2 > self.hosts.len();
            if has_majority && !node.is_paused(now) && self.leases.may_grant(at) {
                node.broker().set_fresh_until(node.time(&self.cx).after(LEASE));
                self.leases.grant(at, now + LEASE.as_micros() as Micros + MILLI);
            }
        }
        self.release_announces();
    }

    /// Lets SUBACKs and CONNACKs go whose routes are known wherever a lease runs.
    fn release_announces(&mut self) {
        for Released { node, worker, connection, ticket, is_known } in self.leases.release(self.cx.now()) {
            self.cx.report.agreed_announced += 1;
            let Some(node) = &mut self.hosts[node].node else { continue };
            let announced = vec![(connection, ticket, is_known)];
            node.broker().post_inbound(worker, Inbound { announced, ..Inbound::default() });
            node.send_posted(&mut self.cx);
        }
    }

    /// Notes a leader of a shard on a node, and tells its workers.
    fn leader_known(&mut self, at: usize, shard: ShardId, leader: Leader) {
        let known = self.hosts[at].leaders.get(&shard);
        if known.is_some_and(|known| known.term > leader.term) {
            return;
        }
        self.hosts[at].leaders.insert(shard, leader);
        self.inform(at, || Inbound { leaders: vec![(shard, leader)], ..Inbound::default() });
    }

    /// Sends the frames of a node, and schedules the work of its log.
    pub(super) fn after_turn(&mut self, at: usize) {
        let Host { node: Some(node), mailbox, .. } = &mut self.hosts[at] else { return };
        node.check_log_queue(&mut self.cx);
        if node.take_writes() > 0 && self.freezes {
            self.cx.report.agreed_check_frozen += 1;
            assert!(self.leases.is_held(self.cx.now(), at), "node {at} writes to a client without a lease");
        }
        let Taken { agreement_frames, shard_frames, leads, ended, route_positions, announces } =
            mailbox.take();
        let has_moved = !route_positions.is_empty() || !announces.is_empty();
        self.leases.reached(at, &route_positions);
        let now = self.cx.now();
        announces.into_iter().for_each(|(worker, announce)| self.leases.announce(now, at, worker, announce));
        if has_moved {
            self.release_announces();
        }
        for (shard, frame) in agreement_frames {
            self.send(at, frame.to as usize - 1, Content::Agreement(shard, frame.bytes));
        }
        for (shard, term) in leads {
            let own = node_id(at).0;
            match term {
                Some(term) => {
                    self.hosts[at].leads.insert(shard, term);
                    self.leader_known(at, shard, Leader { node: own, term });
                    let settled = Step::MembersSettled { node: at, shard: shard.0, term };
                    self.cx.after(SECOND, Event::AgreedShards(settled));
                }
                None => {
                    self.hosts[at].leads.remove(&shard);
                    self.hosts[at].leaders.retain(|of, leader| *of != shard || leader.node != own);
                }
            }
            for other in (0..self.hosts.len()).filter(|other| *other != at) {
                self.announce(at, other, shard, term);
            }
        }
        for (worker, frame) in shard_frames {
            let to = frame.node as usize - 1;
            match self.losses(at, to) {
                Some(losses) => self.send(at, to, Content::Shard(losses, frame)),
                // The worker does not know yet that the link is down.
                None => self.cx.log(|| format!("{worker:?} of node {at} sends over a link that is down")),
            }
        }
        if let Some(incarnation) = ended {
            self.restart_incarnation(at, incarnation);
        }
        self.end_connections(at);
    }

    /// Handles the connections that a node has ended.
    fn end_connections(&mut self, at: usize) {
        if let Some(node) = &mut self.hosts[at].node {
            node.take_ended();
        }
    }

    fn frame(&mut self, number: u64) {
        let Some(Travelling { from, to, incarnation, content }) = self.network.take(self.cx.now(), number)
        else {
            return;
        };
        let is_current = self.hosts[from].node.as_ref().is_some_and(|node| node.incarnation() == incarnation);
        let losses = self.losses(from, to);
        let sender = node_id(from).0;
        let host = &mut self.hosts[to];
        let Some(node) = host.node.as_mut().filter(|_| is_current) else { return };
        match content {
            Content::Agreement(shard, bytes) => {
                let received = PeerFrame { from: sender, bytes };
                node.broker().store_event(shard, received.into());
                node.send_posted(&mut self.cx);
            }
            Content::Shard(of, frame) if Some(of) == losses => {
                let worker = match frame.port {
                    Port::Shard(shard) => WorkerId::host_of(shard, host.setup.workers),
                    Port::Worker(worker) => worker,
                };
                let shard_frames = vec![ShardFrame { node: sender, ..frame }];
                node.broker().post_inbound(worker, Inbound { shard_frames, ..Inbound::default() });
                node.send_posted(&mut self.cx);
            }
            Content::Leads(of, shard, term) if Some(of) == losses => match term {
                Some(term) => self.leader_known(to, shard, Leader { node: sender, term }),
                None => host.leaders.retain(|of, leader| *of != shard || leader.node != sender),
            },
            Content::Shard(..) | Content::Leads(..) => {}
        }
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { node, after } => {
                self.cx.report.kills += 1;
                self.end(node, after, |_, machine| machine.kill());
            }
            Fault::Cut { node, after } => {
                self.cx.report.power_cuts += 1;
                self.end(node, after, |cx, machine| machine.cut(cx));
            }
            Fault::Part { one, other, time } => {
                self.cx.report.partitions += 1;
                self.network.cut(one, other, self.cx.now() + time);
            }
            Fault::Isolate { node, time } => {
                self.cx.report.partitions += 1;
                let until = self.cx.now() + time;
                for other in (0..self.hosts.len()).filter(|other| *other != node) {
                    self.network.cut(node, other, until);
                }
            }
            Fault::Pause { node, time } => {
                let until = self.cx.now() + time;
                if let Some(running) = &mut self.hosts[node].node {
                    self.cx.report.process_pauses += 1;
                    running.pause_process(until);
                    let incarnation = running.incarnation();
                    self.cx.at(until, Event::ReadAll { incarnation });
                }
            }
            Fault::DeclareDead { node } => {
                if self.hosts[node].node.is_some() {
                    let incarnation = self.hosts[node].incarnation;
                    let at = self.leases.condemn(node).max(self.cx.now());
                    self.cx.at(at, Event::AgreedShards(Step::Ended { node, incarnation }));
                }
            }
            Fault::Replace { node, after } => {
                self.cx.report.agreed_replaced += 1;
                let seed = self.cx.random.draw();
                self.end(node, after, |_, machine| *machine = Machine::new(seed));
                let host = &mut self.hosts[node];
                if let Some(replica) = &mut host.setup.replica {
                    replica.config.id = ReplicaId(100 + node as u64);
                }
                self.cx.after(SECOND, Event::AgreedShards(Step::Reconcile));
            }
            Fault::Prefer { is_agreed } => {
                let any = |random: &mut Random| -> Vec<NodeId> {
                    (0..SHARDS).map(|_| node_id(random.below(REPLICAS))).collect()
                };
                let common = any(&mut self.cx.random);
                for at in 0..self.hosts.len() {
                    let leaders = if is_agreed { common.clone() } else { any(&mut self.cx.random) };
                    self.prefer(at, leaders);
                }
            }
            Fault::Lose { client } => {
                if let Some(connection) = &self.clients[client].connection {
                    self.cx.report.connections_lost += 1;
                    let link = connection.link;
                    self.net.lose(&mut self.cx, link);
                }
            }
        }
    }

    /// Ends a node's process. It starts again after a time.
    fn end(&mut self, at: usize, after: Micros, stop: impl FnOnce(&mut Context, &mut Machine)) {
        let host = &mut self.hosts[at];
        let Some(node) = host.node.take() else { return };
        let links: Vec<Link> = node.links().collect();
        let incarnation = host.incarnation;
        self.leases.end(at);
        drop(node);
        stop(&mut self.cx, &mut host.machine);
        for link in links {
            self.net.lose(&mut self.cx, link);
        }
        for other in (0..self.hosts.len()).filter(|other| *other != at) {
            self.lose_link(at, other);
        }
        let delay = self.cx.between(SECOND, 5 * SECOND);
        self.cx.after(delay, Event::AgreedShards(Step::Ended { node: at, incarnation }));
        self.cx.after(after, Event::AgreedShards(Step::Start { node: at }));
    }
}
