//! Placement of the shards on five cores, with three replicas each. It changes while clients are connected.
//!
//! A simple meta group: the product's state machine and planner, without failures. It decides while most cores work. A
//! node learns the placement, and reports finished changes, while it reaches most cores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::{SHARDS, ShardId};
use cluster::meta::placement::leaders::{Candidate, preferred_leaders};
use cluster::meta::placement::planner::{self, Core, Standing};
use cluster::meta::placement::{PlacementCommand, ShardMove};
use cluster::meta::{
    Command, CoreLog, DrainedNodes, LeaderPreference, Member, MetaState, Placement, ShardLeaders, State,
};
use cluster::{NodeInfo, Replicas, Role};
use consensus::{Committed, ReplicaId, StateMachine as _};
use link::NodeId;
use random::Random;
use replog::Incarnation;

use super::network::{Step, node_id};
use super::world::AgreedShards;
use crate::report::Report;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Number of cores.
pub const CORES: usize = 5;
/// Time for which a core does not work before its replicas are replaced. After the same time, a change that has not
/// ended does not hold up the others.
const REPLACE_AFTER: Micros = 6 * SECOND;
/// Time between two decisions.
const DECIDE: Micros = SECOND / 5;
/// Time until a node looks for a new placement again.
const LEARN: (Micros, Micros) = (20 * MILLI, 600 * MILLI);

/// State of the meta group, and the cores as it knows them.
pub struct MetaGroup {
    state: MetaState,
    /// Index of the last command.
    index: u64,
    /// Placement in `state`.
    placement: Arc<Placement>,
    cores: Vec<CoreState>,
    /// Changes that have not ended.
    changes: BTreeMap<ShardId, Change>,
}

struct CoreState {
    log: CoreLog,
    /// Time since which the core does not run, stands still, or does not reach most cores.
    away_since: Option<Micros>,
    /// The core hands its replicas over.
    leaves: bool,
}

/// A change of the replicas of a shard.
struct Change {
    epoch: u64,
    since: Micros,
    /// Node that led the shard at the beginning, with its term.
    leader: Option<(usize, u64)>,
    /// Node whose replica leaves.
    leaving: Option<NodeId>,
    has_learner: bool,
}

impl MetaGroup {
    pub fn new(owner_key: [u8; 16]) -> Self {
        let core = |node| CoreState { log: first_log(node), away_since: None, leaves: false };
        let cores: Vec<CoreState> = (0..CORES).map(core).collect();
        let mut state = MetaState::default();
        state.roster.founded = 1;
        state.roster.members = cores.iter().map(|core| (core.log.node, core.member())).collect();
        let planned = cores.iter().map(|core| core.planned(0));
        let first = planner::found(&planned.collect::<Vec<_>>(), SHARDS, Replicas::default(), owner_key);
        let placement = Arc::new(first.expect("there are cores"));
        let command = PlacementCommand::Found(Box::new(Placement::clone(&placement)));
        let mut this = Self { state, index: 0, placement, cores, changes: BTreeMap::new() };
        assert!(this.apply(command), "the shards are placed");
        this
    }

    /// Applies a command. Returns false if it changes nothing.
    fn apply(&mut self, command: PlacementCommand) -> bool {
        self.index += 1;
        let command = Arc::new(Command::Placement(command).encode());
        let committed = Committed { index: self.index, term: 1, command };
        self.state.apply(&committed, &mut Vec::new()).expect("a command of this version");
        let placement = self.state.placement.as_ref().filter(|placement| placement.version == self.index);
        let Some(placement) = placement else { return false };
        self.placement = Arc::new(placement.clone());
        true
    }

    /// Begins a change. `leader` leads the shard. Returns false if it does not fit the placement any more.
    fn begin(&mut self, now: Micros, step: ShardMove, leader: Option<(usize, u64)>) -> bool {
        if !self.apply(PlacementCommand::Move(step)) {
            return false;
        }
        let leaving = step.remove.map(|replica| replica.node);
        let change =
            Change { epoch: self.index, since: now, leader, leaving, has_learner: step.add.is_some() };
        self.changes.insert(step.shard, change);
        true
    }

    /// Handles the report that the group of a shard has the members of an epoch.
    fn reached(&mut self, report: &mut Report, (shard, epoch): (ShardId, u64), leader: Option<(usize, u64)>) {
        if !self.apply(PlacementCommand::Done { shard, epoch }) {
            return;
        }
        let Some(change) = self.changes.remove(&shard).filter(|change| change.epoch == epoch) else { return };
        if !change.has_learner {
            report.agreed_moves_given_up += 1;
            return;
        }
        let is_led = change.leader.is_some() && change.leader == leader;
        let moves_leader = change.leader.is_some_and(|(node, _)| Some(node_id(node)) == change.leaving);
        report.agreed_moves += 1;
        report.agreed_moves_led += u64::from(is_led);
        report.agreed_moves_of_leaders += u64::from(moves_leader);
    }

    /// Returns the next change that the planner wants.
    fn next_move(&self, now: Micros) -> Option<ShardMove> {
        let cores: Vec<Core> = self.cores.iter().map(|core| core.planned(now)).collect();
        let is_stalled = |change: &Change| change.since + REPLACE_AFTER <= now;
        let stalled = self.changes.iter().filter(|(_, change)| is_stalled(change));
        let stalled: BTreeSet<ShardId> = stalled.map(|(shard, _)| *shard).collect();
        planner::next_move(&cores, &self.placement, &stalled)
    }

    /// Returns a move of a replica of some shard to a core without one.
    fn any_move(&self, random: &mut Random) -> Option<ShardMove> {
        let settled = self.placement.shards().filter(|(_, shard)| shard.is_settled());
        let settled: Vec<_> = settled.collect();
        if settled.is_empty() {
            return None;
        }
        let (shard, placed) = *random.pick(&settled);
        let has_none = |core: &&CoreState| placed.voters.iter().all(|voter| voter.node != core.log.node);
        let serves = |core: &&CoreState| core.away_since.is_none() && !core.leaves;
        let others: Vec<CoreLog> =
            self.cores.iter().filter(has_none).filter(serves).map(|core| core.log).collect();
        if others.is_empty() || placed.voters.is_empty() {
            return None;
        }
        let (add, remove) = (Some(*random.pick(&others)), Some(*random.pick(&placed.voters)));
        Some(ShardMove { version: self.placement.version, shard, add, remove })
    }

    /// Returns the nodes that should lead, if the shards have these leaders now.
    fn leaders(&self, placement: &Placement, present: &[Option<NodeId>]) -> ShardLeaders {
        let serving = self.cores.iter().filter(|core| core.away_since.is_none() && !core.leaves);
        let candidate = |core: &CoreState| (core.log, Candidate { region: "".into(), unreached: 0 });
        let serving = serving.map(candidate).collect();
        let preference = |_| LeaderPreference::Any;
        preferred_leaders(placement, &serving, &DrainedNodes::new(), preference, present)
    }

    /// Nodes of the voters of a shard.
    pub fn voters(&self, shard: ShardId) -> impl Iterator<Item = NodeId> {
        let placed = self.placement.shard(shard).into_iter();
        placed.flat_map(|placed| placed.voters.iter().map(|voter| voter.node))
    }

    /// Returns whether a shard would have no majority without the disk of a core.
    pub fn needs_disk(&self, node: usize) -> bool {
        let node = node_id(node);
        self.placement.shards().any(|(_, shard)| {
            let others = shard.voters.iter().filter(|voter| voter.node != node).count();
            others < shard.voters.len() && others * 2 <= shard.voters.len()
        })
    }

    /// Notes the log with which a core starts.
    pub fn joined(&mut self, node: usize, log: CoreLog) {
        self.cores[node].log = log;
        self.update_roster();
    }

    /// Lets a core hand its replicas over, or take some again.
    pub fn set_leaves(&mut self, node: usize, leaves: bool) {
        self.cores[node].leaves = leaves;
        self.update_roster();
    }

    fn update_roster(&mut self) {
        self.state.roster.members = self.cores.iter().map(|core| (core.log.node, core.member())).collect();
    }

    /// Returns whether nothing has to be changed.
    pub fn is_settled(&self, now: Micros) -> bool {
        self.placement.shards().all(|(_, shard)| shard.is_settled()) && self.next_move(now).is_none()
    }

    /// Shards whose replicas still change.
    pub fn unsettled(&self) -> Vec<ShardId> {
        let shards = self.placement.shards().filter(|(_, shard)| !shard.is_settled());
        shards.map(|(shard, _)| shard).collect()
    }

    pub fn version(&self) -> u64 {
        self.placement.version
    }
}

impl CoreState {
    fn member(&self) -> Member {
        let name = format!("core-{}", self.log.node.0).into();
        Member {
            info: NodeInfo { name, role: Role::Core, region: "".into(), address: "".into() },
            incarnation: Incarnation(1),
            state: State::Alive,
            leaves: self.leaves,
            replica: Some(self.log.replica),
        }
    }

    /// The core as the planner sees it.
    fn planned(&self, now: Micros) -> Core {
        let standing = match self.away_since {
            Some(since) if since + REPLACE_AFTER <= now => Standing::Lost,
            Some(_) => Standing::Away,
            None if self.leaves => Standing::Leaves,
            None => Standing::Serves,
        };
        Core { log: self.log, region: "".into(), standing }
    }
}

/// Log with which a core begins.
pub fn first_log(node: usize) -> CoreLog {
    CoreLog { node: node_id(node), replica: ReplicaId(node as u64 + 1) }
}

impl AgreedShards {
    /// Schedules the first decision, and the first look of each node.
    pub(super) fn begin_placing(&mut self) {
        if self.meta.is_none() {
            return;
        }
        self.cx.after(DECIDE, Event::AgreedShards(Step::Decide));
        for node in 0..self.cores {
            self.learn_soon(node);
        }
    }

    fn learn_soon(&mut self, node: usize) {
        let delay = self.cx.between(LEARN.0, LEARN.1);
        self.cx.after(delay, Event::AgreedShards(Step::Learn { node }));
    }

    /// Returns whether a process runs and reaches most cores.
    fn reaches_most(&self, at: usize) -> bool {
        let now = self.cx.now();
        let runs = self.hosts[at].node.as_ref().is_some_and(|node| !node.is_paused(now));
        let reached = (0..self.cores).filter(|other| *other == at || self.losses(at, *other).is_some());
        runs && reached.count() * 2 > self.cores
    }

    /// Lets the meta group make the next change, if one is wanted.
    pub(super) fn decide(&mut self) {
        self.cx.after(DECIDE, Event::AgreedShards(Step::Decide));
        let now = self.cx.now();
        let reach: Vec<bool> = (0..self.cores).map(|core| self.reaches_most(core)).collect();
        let Some(meta) = &mut self.meta else { return };
        for (core, reaches) in meta.cores.iter_mut().zip(&reach) {
            let was_lost = core.planned(now.saturating_sub(DECIDE)).standing == Standing::Lost;
            core.away_since = if *reaches { None } else { core.away_since.or(Some(now)) };
            let is_lost = core.planned(now).standing == Standing::Lost;
            self.cx.report.agreed_cores_lost += u64::from(is_lost && !was_lost);
        }
        let has_majority = reach.iter().filter(|reaches| **reaches).count() * 2 > self.cores;
        if let Some(step) = meta.next_move(now).filter(|_| has_majority) {
            self.change_replicas(step);
        }
    }

    /// Moves replicas of some shards to other cores.
    pub(super) fn move_replicas(&mut self, shards: usize) {
        for _ in 0..shards {
            let step = self.meta.as_ref().and_then(|meta| meta.any_move(&mut self.cx.random));
            step.into_iter().for_each(|step| self.change_replicas(step));
        }
    }

    fn change_replicas(&mut self, step: ShardMove) {
        let leader = self.leader_of(step.shard);
        let now = self.cx.now();
        let begins = self.meta.as_mut().is_some_and(|meta| meta.begin(now, step, leader));
        self.cx.log(|| format!("{step:?}{}", if begins { "" } else { " does not fit the placement" }));
    }

    /// Node that leads a shard, as it has said, with its term.
    fn leader_of(&self, shard: ShardId) -> Option<(usize, u64)> {
        let leads = self.hosts.iter().enumerate().filter(|(_, host)| host.node.is_some());
        let terms = leads.filter_map(|(at, host)| Some((at, *host.leads.get(&shard)?)));
        terms.max_by_key(|(_, term)| *term)
    }

    /// Lets a core follow the placement, and report what its groups have reached.
    pub(super) fn learn(&mut self, at: usize) {
        self.learn_soon(at);
        if !self.reaches_most(at) {
            return;
        }
        let reached = self.hosts[at].setup.replica.as_ref().and_then(|replica| replica.placed.as_ref());
        let reached = reached.map(|placed| std::mem::take(&mut *sync::lock(&placed.reached)));
        for (shard, epoch) in reached.into_iter().flatten() {
            let leader = self.leader_of(shard);
            if let Some(meta) = &mut self.meta {
                meta.reached(&mut self.cx.report, (shard, epoch), leader);
            }
        }
        let Some(meta) = &self.meta else { return };
        let host = &self.hosts[at];
        let present = |shard| host.leaders.get(&ShardId(shard)).map(|leader| NodeId(leader.node));
        let present: Vec<Option<NodeId>> = (0..SHARDS).map(present).collect();
        let mut leaders = meta.leaders(&meta.placement, &present);
        for ((shard, leader), other) in (0..).map(ShardId).zip(&mut leaders).zip(&host.preferred) {
            if meta.voters(shard).any(|voter| voter == *other) {
                *leader = Some(*other);
            }
        }
        let placement = meta.placement.clone();
        if let Some(node) = &mut self.hosts[at].node {
            node.follow(&mut self.cx, &placement, &leaders);
        }
        self.after_turn(at);
    }

    /// Returns whether the placement needs no change, all cores follow it, and no shard should have another leader.
    pub(super) fn is_placed(&self) -> bool {
        let Some(meta) = &self.meta else { return true };
        let follows = |node: &crate::node::Node| node.placed_version() == Some(meta.version());
        let follow = self.hosts[..self.cores].iter().all(|host| host.node.as_ref().is_some_and(follows));
        meta.is_settled(self.cx.now()) && follow
    }

    /// Describes why [`Self::is_placed`] is false.
    pub(super) fn why_not_placed(&self) -> String {
        let Some(meta) = &self.meta else { return String::new() };
        let unsettled = meta.unsettled();
        let groups =
            unsettled.iter().map(|shard| (shard, self.leader_of(*shard), meta.placement.shard(*shard)));
        let versions = self.hosts[..self.cores].iter().map(|host| host.node.as_ref()?.placed_version());
        format!(
            "replicas still move: {:?}; nodes have versions {:?} of {}; next {:?}",
            groups.collect::<Vec<_>>(),
            versions.collect::<Vec<_>>(),
            meta.version(),
            meta.next_move(self.cx.now())
        )
    }

    /// Returns whether leaders are spread as well as the placement allows.
    pub(super) fn are_leaders_balanced(&self, meta: &MetaGroup) -> bool {
        let leader = |shard| self.leader_of(ShardId(shard)).map(|(node, _)| node_id(node));
        let present: Vec<Option<NodeId>> = (0..SHARDS).map(leader).collect();
        present.iter().all(Option::is_some) && meta.leaders(&meta.placement, &present) == present
    }
}
