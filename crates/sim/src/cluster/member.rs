//! One node of a cluster over all its incarnations: its machine, its process, and its cluster router.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::peers::{Outbound, Peers};
use bytes::Bytes;
use cluster::meta::{Answer, Meta, MetaConfig, MetaState, ProposalId, RecordSyncConfig, State};
use cluster::{ClusterRouter, Config, NodeInfo, Role, RouterCommand};
use configstore::{RecordUpdate, Records, RecordsLimits};
use consensus::{Group, LogGroup, LogRead, ReplicaId, StartError, StorageGroups};
use link::{
    Class, ConnectionId, Demand, Identity, LANES_MAX, Mesh, NodeId, Output, PeerStatus, Secret, Time,
};
use replog::Incarnation;

use super::plan::Plan;
use super::shard_routes::ShardRoutes;
use super::step::Step;
use super::wan::{End, Wan};
use crate::context::Context;
use crate::disk::Machine;
use crate::node::{Node, Setup, StartFailure};
use crate::schedule::{Event, MILLI, Micros, SECOND};
use random::Random;

/// Mailbox of the cluster thread.
#[derive(Default)]
pub struct Mailbox {
    commands: Mutex<Vec<RouterCommand>>,
}

impl Mailbox {
    fn take(&self) -> Vec<RouterCommand> {
        std::mem::take(&mut *sync::lock(&self.commands))
    }

    fn is_empty(&self) -> bool {
        sync::lock(&self.commands).is_empty()
    }

    fn put(&self, command: RouterCommand) {
        sync::lock(&self.commands).push(command);
    }
}

impl Peers for Mailbox {
    fn connect(&self, _: &Arc<broker::Node>, _: broker::Instant) -> Result<(), String> {
        Ok(())
    }

    fn submit(&self, outbound: Outbound) {
        self.put(RouterCommand::Outbound(outbound));
    }

    fn backlog(&self) -> usize {
        0
    }

    fn routes_changed(&self) {
        self.put(RouterCommand::RoutesChanged);
    }

    fn suback_timeout(&self) -> Duration {
        // No worker of these nodes asks shards of the cluster.
        Duration::MAX
    }
}

/// Process of a node.
pub struct Process {
    pub node: Node,
    pub router: ClusterRouter,
    mailbox: Arc<Mailbox>,
    pub(super) number: usize,
    /// Time of the next turn of the cluster router.
    due: Micros,
    /// Connections with pending output and no room.
    full: Vec<ConnectionId>,
    /// Time at which each link was last interrupted, and the state of the peer. A link is interrupted while it is down,
    /// when it has a new connection, or when the other node is dead or not a member.
    interrupted: BTreeMap<NodeId, (Micros, PeerState)>,
    restarts: BTreeMap<NodeId, Restarts>,
    /// Set while the node is cut off from all others, until it ends.
    pub cut_off: Option<CutOff>,
    turns: u64,
    /// Rounds of turns at the last check.
    last_check_round: u64,
    /// Microseconds that its clock gains in 1,000.
    rate: u64,
    answers: Vec<(ProposalId, Result<Answer, String>)>,
    /// Reads of the replica's log, and the times at which they end.
    log_reads: Vec<(Micros, LogRead)>,
    pub(super) shard_routes: ShardRoutes,
}

/// A node that is cut off from all others.
pub struct CutOff {
    pub since: Micros,
    /// Nodes to which it had links then.
    pub linked: Vec<usize>,
}

/// Number of times that another node has lost the state of the link, as this node knows.
struct Restarts {
    count: u64,
    /// True if it was reachable at the last check.
    is_there: bool,
    /// Time when it was last unreachable.
    away: Micros,
    /// Time when this node found the last restart, and the last time before it when the other was unreachable. `None`
    /// if it was unreachable when the restart was found.
    last: Option<(Micros, Micros)>,
}

/// State of another node as a node knows it: number of connections of the link so far, and the incarnation that is a
/// member.
type PeerState = (u64, Option<Incarnation>);

pub struct Member {
    pub number: usize,
    pub machine: Machine,
    pub setup: Setup,
    pub process: Option<Process>,
    /// Number of incarnations, as far as the disk knows them.
    pub incarnation: u64,
    /// Number of replaced disks whose clock is behind that of the disk before.
    pub set_back: u64,
    /// Incarnation number at the end of the last process. That incarnation may have been declared dead meanwhile.
    pub last_incarnation: Incarnation,
    /// Time when the last incarnation began.
    pub began: Micros,
    /// Features that it offers in this incarnation.
    pub features: u64,
    /// Features of the meta group's log that it understands. Random if it is `None`.
    pub log: Option<u64>,
    /// True while an operator has switched it off.
    pub is_switched_off: bool,
    /// True while its log is full and refuses data.
    pub lacks_room: bool,
    /// Time when its log was last full.
    pub lacked_room: Micros,
    /// Time until which its process stands still.
    pub stopped: Micros,
    /// Messages from this number on are owed to its durable sessions, wherever they are published. After a removal it
    /// is `usize::MAX` until all other nodes know the routes of these sessions again.
    pub owed_from: usize,
    /// True while it is off until the others have worked without it.
    pub in_long_outage: bool,
    /// True if it was asked to leave, in this incarnation.
    pub leaves: bool,
    /// Features of links that it offers. Random if it is `None`.
    pub links: Option<u64>,
    /// Features that it always offers.
    pub always: u64,
    /// Copy of the cluster's records on its disk.
    pub copy: configstore::Copy,
    /// Time of the last changes of routes of shards that its processes learn, if there is a limit.
    pub shards_until: Option<Micros>,
}

pub const CLUSTER: [u8; 16] = [7; 16];
pub const SECRET: &[u8] = b"of the cluster";

/// Start of simulated time, in 2025, as Unix time in microseconds.
pub const BEGAN: Micros = 1_750_000_000_000_000;
/// Difference of incarnation numbers between two starts of a process. The process uses more numbers when it was
/// declared dead.
const NUMBERS_PER_INCARNATION: u64 = 1_000;
/// Difference of incarnation numbers between two clocks, so that no two incarnations of a node have one number.
const NUMBERS_PER_CLOCK: u64 = 50;
/// Turns of the cluster router between two checks of everything.
const TURNS_BETWEEN_CHECKS: u64 = 100;
/// Turns of the cluster router between two checks of leases.
const TURNS_BETWEEN_LOOKS: u64 = 16;

impl Member {
    /// Starts the node's process. `incarnation` counts the incarnations of all nodes.
    ///
    /// # Errors
    /// [`StartFailure`].
    pub fn start(&mut self, cx: &mut Context, plan: &Plan, incarnation: u32) -> Result<(), StartFailure> {
        let mailbox = Arc::<Mailbox>::default();
        let peers = mailbox.clone();
        let join = move |node: &Arc<broker::Node>| {
            // This time is for threads only. The cluster router uses the time of the simulation.
            let joined = node.join_cluster(peers, broker::Instant::now());
            assert_eq!(joined, Ok(()));
        };
        let mut node = Node::start_in(cx, &mut self.machine, self.setup.clone(), incarnation, join)?;
        (self.incarnation, self.began, self.leaves) = (self.incarnation + 1, cx.now(), false);
        (self.stopped, self.lacks_room) = (0, false);
        let now = Time(node.micros(cx.now()));
        let info = plan.nodes[self.number].clone();
        self.features = self.offers(cx);
        let (name, descriptor) = (info.name.clone(), Bytes::new());
        let identity = Identity { name, cluster: CLUSTER, features: self.features, descriptor };
        let mut random = Random::new(cx.random.draw());
        let fill =
            move |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = (random.draw() >> 40) as u8);
        let mesh = Mesh::new(identity, Secret::new(SECRET), Box::new(fill), plan.mesh.clone());
        let config = Config {
            own: info.clone(),
            incarnation: self.number(),
            wall_ms: (BEGAN + cx.now() + plan.skews[self.number]) / MILLI,
            ..plan.config.clone()
        };
        let incarnation = config.incarnation;
        let hash_seed = cx.random.draw();
        // The index of a restored state is greater than that of the last change, and smaller than that of the next.
        let shards_restored = if plan.places_shards { cx.between(0, 50) } else { 0 };
        let meta = meta(now, cx, plan, (info, incarnation), self.features, &mut node, mailbox.clone())?;
        let mut router = ClusterRouter::new(now, config, node.broker().clone(), mesh, hash_seed, meta);
        if cx.random.percent(20) {
            self.copy = configstore::Copy::default();
        }
        router.records_copied(self.copy.position());
        let mut process = Process {
            node,
            router,
            mailbox,
            number: self.number,
            due: Micros::MAX,
            full: Vec::new(),
            interrupted: BTreeMap::new(),
            restarts: BTreeMap::new(),
            cut_off: None,
            turns: 0,
            last_check_round: 0,
            rate: plan.rates.get(self.number).copied().unwrap_or(1_000),
            answers: Vec::new(),
            log_reads: Vec::new(),
            shard_routes: ShardRoutes::new(self.shards_until, shards_restored),
        };
        process.wake(cx, 0);
        self.process = Some(process);
        Ok(())
    }

    /// Incarnation number at the start of its last incarnation.
    fn number(&self) -> Incarnation {
        Incarnation(self.incarnation * NUMBERS_PER_INCARNATION + self.set_back * NUMBERS_PER_CLOCK)
    }

    /// Features of a version after or before an upgrade: any part of those of this version, and bits of a later one.
    /// Few versions understand less of the meta group's log than this one.
    fn offers(&self, cx: &mut Context) -> u64 {
        let later = *cx.random.pick(&[0, 1 << 40]);
        let some = cx.random.draw();
        let of_links = *cx.random.pick(&[0, cluster::FEATURES, some]) & cluster::FEATURES & !cluster::LOG;
        let of_log = if cx.random.percent(12) { some >> 1 } else { u64::MAX };
        later | self.always | self.links.unwrap_or(of_links) | self.log.unwrap_or(of_log) & cluster::LOG
    }
}

/// Key for the owners of sessions of a node that has sessions of its own.
pub(super) fn own_key(node: usize) -> [u8; 16] {
    [node as u8 + 100; 16]
}

/// Makes the node's part of the meta group.
fn meta(
    now: Time,
    cx: &mut Context,
    plan: &Plan,
    (own, incarnation): (NodeInfo, Incarnation),
    features: u64,
    node: &mut Node,
    mailbox: Arc<Mailbox>,
) -> Result<Meta, StartFailure> {
    let is_joined = |at: usize| match plan.nodes.iter().position(|node| node.name == own.name) {
        Some(who) if !plan.join_lists.is_empty() => plan.join_lists[who].contains(&at),
        _ => plan.nodes[at].role == Role::Core,
    };
    let at = plan.nodes.iter().position(|node| node.name == own.name);
    let owns_state = at.filter(|at| plan.own_states.contains(at));
    let joined = (0..plan.nodes.len()).filter(|at| is_joined(*at)).map(|at| plan.nodes[at].address.clone());
    let join: Vec<_> = joined.collect();
    let founding = u128::from(cx.random.draw()).max(1);
    let config = MetaConfig {
        expect: join.len(),
        join,
        patience: plan.patience,
        lease: plan.config.lease,
        founding,
        replicas: plan.replicas,
        owner_key: founding.to_le_bytes(),
        own_state: owns_state.map(own_key),
        replace_after: plan.replace_after,
        record_sync: RecordSyncConfig { part_bytes: 300 },
        features,
    };
    let (log, log_events, recovered) = node.take_meta();
    let start = || {
        let id = log.identity().log.first_chunk().map_or(1, |first| u64::from_le_bytes(*first).max(1));
        let member = consensus::Member { node: NodeId::of_name(&own.name) };
        let of_group = consensus::Config::new(LogGroup(0), ReplicaId(id), member, cx.random.draw());
        // A small cache: most entries that others lack have to be read.
        let snapshot_after = plan.snapshot_after;
        let of_group = consensus::Config { entry_cache_bytes: 2_000, snapshot_after, ..of_group };
        let [entries, votes] = shardlog::META;
        let storage_groups = StorageGroups { entries, votes };
        // A short tail: a copy that lags soon needs all records.
        let limits = RecordsLimits { tail_max: 12, ..RecordsLimits::default() };
        let agreed = MetaState::new(Records::new(limits), features);
        let group = Group::start(now, of_group, log, storage_groups, &recovered, agreed);
        log_events.set_meta_listener(Box::new(move |event| mailbox.put(RouterCommand::Log(event))));
        match group {
            Err(StartError::UnsupportedVersion) => Err(StartFailure::Outdated),
            group => Ok(group.expect("the replica's log is readable")),
        }
    };
    let group = (own.role == Role::Core).then(start).transpose()?;
    Ok(Meta::new(now, own, incarnation, config, group))
}

impl Process {
    pub fn time(&self, cx: &Context) -> Time {
        Time(self.node.micros(cx.now()) * self.rate / 1_000)
    }

    /// Schedules a turn of the cluster router after `delay`, unless an earlier one is scheduled.
    pub fn wake(&mut self, cx: &mut Context, delay: Micros) {
        let at = cx.now() + delay;
        if at < self.due {
            self.due = at;
            cx.at(at, Event::SimCluster(Step::Turn { incarnation: self.node.incarnation() }));
        }
    }

    /// Schedules a turn if the reactors have put commands into the mailbox.
    pub fn look(&mut self, cx: &mut Context) {
        if !self.mailbox.is_empty() {
            let delay = if cx.random.percent(2) { cx.between(0, 50 * MILLI) } else { cx.between(1, 300) };
            self.wake(cx, delay);
        }
    }

    /// Runs one turn of the cluster router.
    pub fn turn(&mut self, cx: &mut Context, wan: &mut Wan, copy: &mut configstore::Copy) {
        if self.due > cx.now() {
            return;
        }
        self.due = Micros::MAX;
        let now = self.time(cx);
        for command in self.mailbox.take() {
            self.router.handle_command(now, command);
        }
        for (_, read) in self.log_reads.extract_if(.., |(at, _)| *at <= cx.now()) {
            let result = read.run(self.node.storage_log());
            self.router.handle_command(now, RouterCommand::LogRead(result));
        }
        self.learn_shards(cx, wan);
        self.router.turn(now);
        self.take_shard_subacks(cx);
        while let Some(read) = self.router.poll_log_read() {
            let is_slow = cx.has_slow_reads && cx.random.percent(10);
            let delay = if is_slow { cx.between(20 * MILLI, 2 * SECOND) } else { cx.between(50, 5 * MILLI) };
            self.log_reads.push((cx.now() + delay, read));
            cx.report.cluster_log_reads += 1;
        }
        if let Some(at) = self.log_reads.iter().map(|(at, _)| *at).min() {
            self.wake(cx, at - cx.now());
        }
        while let Some(delivery) = self.router.poll_delivery() {
            assert!(copy.take(&delivery), "n{} got an update that does not fit its copy", self.number);
            match delivery {
                RecordUpdate::Tail { .. } => cx.report.cluster_records_incremental += 1,
                RecordUpdate::Whole { .. } => cx.report.cluster_records_full += 1,
            }
            self.router.records_copied(copy.position());
        }
        while let Some(outcome) = self.router.poll_proposal() {
            self.answers.push(outcome);
        }
        self.node.send_posted(cx);
        self.node.check_log_queue(cx);
        self.serve_mesh(cx, wan, now);
        self.note_links(cx);
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_BETWEEN_CHECKS) {
            self.check(cx);
        }
        let due = self.router.timeout();
        if due != Time::NEVER {
            let at = self.node.at_micros((due.0 * 1_000).div_ceil(self.rate));
            // A thread whose next turn is due at once still needs some time for it.
            self.wake(cx, at.saturating_sub(cx.now()).max(20));
        }
    }

    /// Results of operators' proposals. An error means that the result is unknown.
    pub fn take_answers(&mut self) -> Vec<(ProposalId, Result<Answer, String>)> {
        std::mem::take(&mut self.answers)
    }

    /// Executes the demands of the mesh, and moves its output.
    fn serve_mesh(&mut self, cx: &mut Context, wan: &mut Wan, now: Time) {
        let incarnation = self.node.incarnation();
        while let Some(demand) = self.router.mesh().poll_demand() {
            match demand {
                Demand::Dial { connection, address, .. } => {
                    let from = End { node: self.number, incarnation, connection };
                    wan.dial(cx, from, address.parse().unwrap_or(usize::MAX));
                }
                Demand::Close { connection, last, reason } => {
                    cx.log(|| format!("n{}: closes {connection:?}: {reason}", self.number));
                    wan.send(cx, incarnation, connection, last);
                    wan.close(cx, incarnation, connection);
                }
            }
        }
        let mut writable = std::mem::take(&mut self.full);
        while let Some(connection) = self.router.mesh().poll_writable() {
            if !writable.contains(&connection) {
                writable.push(connection);
            }
        }
        for connection in writable {
            let room = wan.room(incarnation, connection);
            if room == 0 {
                cx.report.cluster_writes_blocked += 1;
                self.full.push(connection);
                continue;
            }
            let mut out = Output::default();
            self.router.mesh().output(now, connection, room, &mut out);
            for chunk in out.take() {
                wan.send(cx, incarnation, connection, chunk);
            }
        }
        // The mesh reports a connection whose room is used up again.
        while let Some(connection) = self.router.mesh().poll_writable() {
            self.full.push(connection);
        }
        if self.full.iter().any(|connection| wan.room(incarnation, *connection) > 0) {
            self.wake(cx, 10);
        }
    }

    fn note_links(&mut self, cx: &Context) {
        let now = cx.now();
        let seen = |peer: PeerStatus<'_>| {
            let counters = peer.link.counters();
            (peer.node, peer.is_up, counters.attached, counters.restarts)
        };
        let peers: Vec<_> = self.router.mesh().peers().map(seen).collect();
        for (node, is_up, attached, restarts) in peers {
            let is_there = is_up && self.is_member(node);
            self.note_restarts(now, node, is_there, restarts);
            let member = self.router.meta().roster().members.get(&node);
            let peer_state = (attached, member.map(|member| member.incarnation));
            let interrupted = self.interrupted.entry(node).or_insert((now, peer_state));
            if !is_there || interrupted.1 != peer_state {
                *interrupted = (now, peer_state);
            }
        }
    }

    fn note_restarts(&mut self, now: Micros, node: NodeId, is_there: bool, count: u64) {
        let new = || Restarts { count, is_there, away: now, last: None };
        let known = self.restarts.entry(node).or_insert_with(new);
        if known.count != count {
            let is_first_sign = known.is_there && count == known.count + 1;
            known.last = is_first_sign.then_some((now, known.away));
        }
        if !is_there {
            known.away = now;
        }
        (known.count, known.is_there) = (count, is_there);
    }

    /// Time when this node found that another had restarted, if it could reach that one from `since` until then. Data
    /// on its way to the previous incarnation was refused; data that was sent later waits for the present one.
    pub fn restart_found_at(&self, node: NodeId, since: Micros) -> Option<Micros> {
        let (found, away) = self.restarts.get(&node)?.last?;
        (away < since && since < found).then_some(found)
    }

    /// Returns whether a periodic check is due.
    pub fn is_to_be_checked(&mut self) -> bool {
        let round = self.turns / TURNS_BETWEEN_LOOKS;
        std::mem::replace(&mut self.last_check_round, round) != round
    }

    /// Returns whether publishers of this node wait for another node.
    pub fn reaches(&mut self, node: NodeId) -> bool {
        self.router.mesh().peer(node).is_some_and(|peer| peer.is_up) && self.is_member(node)
    }

    /// Returns whether another node is a living member, as far as this one knows.
    fn is_member(&self, node: NodeId) -> bool {
        let member = self.router.meta().roster().members.get(&node);
        member.is_some_and(|member| member.state != State::Dead)
    }

    /// Returns whether the link to another node was down or reconnected since `since`, or that node was dead or not a
    /// member. Publishers do not wait for it then.
    pub fn was_interrupted(&mut self, node: NodeId, since: Micros) -> bool {
        !self.reaches(node) || self.interrupted.get(&node).is_none_or(|(at, _)| *at >= since)
    }

    /// Asserts that links hold a bounded amount, and that nothing is sent twice over one connection.
    pub fn check(&mut self, cx: &mut Context) {
        let now = self.time(cx);
        self.router.mesh().check_invariants();
        for peer in self.router.mesh().peers() {
            let config = peer.link.config();
            for (class, (held, ..)) in peer.waiting(now) {
                let most = config.buffer_max.of(class).max(FRAME_MAX);
                assert!(
                    held <= most,
                    "{held} bytes of {class:?} wait for {}, and {most} are allowed",
                    peer.name
                );
            }
            let most = (3 + 2 * u64::from(LANES_MAX)) * (config.window + FRAME_MAX);
            assert!(peer.link.unconsumed() <= most, "{} received bytes wait", peer.link.unconsumed());
            cx.report.cluster_check_memory += 1;
            let counters = peer.link.counters();
            let again: u64 = Class::ALL.iter().map(|class| counters.of(*class).retransmitted).sum();
            let lost = counters.attached > peer.connections.0 as u64;
            assert!(
                again == 0 || lost,
                "{again} frames were retransmitted to {}, and no connection was lost",
                peer.name
            );
            cx.report.cluster_check_sent_once += u64::from(again == 0);
        }
    }

    /// Number of retransmitted frames.
    pub fn retransmitted(&mut self) -> u64 {
        let of = |link: &link::Link| {
            Class::ALL.iter().map(|class| link.counters().of(*class).retransmitted).sum::<u64>()
        };
        self.router.mesh().peers().map(|peer| of(peer.link)).sum()
    }
}

/// Upper bound of the bytes of any frame in a simulation.
const FRAME_MAX: u64 = 24 * 1024;
