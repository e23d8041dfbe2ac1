//! Leader of the meta group: it gives cores their votes, and declares nodes dead that no core reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use broker::ShardId;
use consensus::{Change, Outcome, ReplicaId, RequestId, Role as Part, Status, Undecided};
use link::{NodeId, Time};
use replog::Incarnation;

use super::adoption::CompatibleForm;
use super::cut_pairs::PairChange;
use super::failure_detector::Reachability;
use super::placement::{Placement, PlacementCommand, ShardMove};
use super::{
    Answer, Command, LIMIT, LinkStatus, Meta, MetaFrame, OwnedMetaMessage, PAUSE, RequestOrigin, Roster,
    State,
};
use crate::config::Role;
use crate::features::INCARNATIONS;
use crate::mutation::{Mutation, mutated};

/// Maximum number of entries that a learner may lack when it gets a vote.
const BEHIND_MAX: u64 = 100;
/// Time in microseconds after which a replica that has not answered does not count. Replicas keep a silent leader for
/// the same time.
const SILENCE_MAX: u64 = 2 * consensus::ELECTION_TIMEOUT.as_micros() as u64;
/// Interval between reachability reports of this core while nothing changes.
pub(super) const REACHABILITY_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two changes of the set of cores while there are replicants, which learn of it later. In leases.
const LEASES: u32 = 3;
/// Time that replicants of a new cluster wait for its cores.
const FOUNDING: Duration = Duration::from_secs(10);

/// State of a leader.
#[derive(Debug)]
pub struct LeaderState {
    leads: bool,
    /// Time at which this node began or ceased to lead.
    began: Time,
    /// Time until which a proposal or a change of the replicas is in progress.
    busy_until: Option<Time>,
    /// Present set of cores, the time since which it is valid, and the index that made it so.
    cores: BTreeSet<NodeId>,
    cores_since: (Time, u64),
    /// Time since which each core of that set has known the set.
    counted_since: Option<Time>,
    /// True when another core may be added or removed, as far as the roster says.
    is_settled: bool,
    /// Operation that may still change the set of cores and is not in the roster.
    unapplied: Option<Unapplied>,
    /// Dead members, and the time since which this leader knows that.
    pub(super) dead_since: BTreeMap<NodeId, (Incarnation, Time)>,
    /// Time since which this leader has been able to place the shards for the first time.
    pub(super) may_place_since: Option<Time>,
    /// Times since which other cores do not answer, while the first placement may have to wait for them.
    pub(super) silent_since: BTreeMap<NodeId, Time>,
    /// Cores with sessions of their own for whom the first placement has waited so long that operators are notified.
    pub(super) awaited: Vec<NodeId>,
    /// Shards that are changing.
    pub(super) changing_shards: BTreeMap<ShardId, ChangingShard>,
    /// Last report, its time, and the leader that it was sent to.
    last_report: Option<(Time, Option<NodeId>, Reachability)>,
}

/// Change of a shard that is not done.
#[derive(Clone, Copy, Debug)]
pub struct ChangingShard {
    pub epoch: u64,
    /// Time since which this leader knows of it.
    pub since: Time,
    pub is_logged: bool,
}

/// Result of submitting a proposal.
#[derive(Debug)]
pub enum Submission {
    Submitted,
    Answered(Answer),
}

/// A change of the set of cores that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unapplied {
    /// The group was asked for it.
    Submitted(RequestId),
    /// The outcome is unknown, or an earlier leader began it: it is among the entries up to this index, if anywhere.
    Upto(u64),
}

impl LeaderState {
    pub fn new(now: Time) -> Self {
        Self {
            leads: false,
            began: now,
            busy_until: None,
            cores: BTreeSet::new(),
            cores_since: (now, 0),
            counted_since: None,
            is_settled: false,
            unapplied: None,
            dead_since: BTreeMap::new(),
            may_place_since: None,
            silent_since: BTreeMap::new(),
            awaited: Vec::new(),
            changing_shards: BTreeMap::new(),
            last_report: None,
        }
    }

    /// Time since which this leader has known the present set of cores.
    pub(super) fn cores_known_since(&self) -> Time {
        self.began.max(self.cores_since.0)
    }

    pub fn done(&mut self, now: Time, outcome: &Result<Outcome, Undecided>) {
        // A refused change is tried again after a pause.
        self.busy_until = outcome.as_ref().err().map(|_| now.after(PAUSE));
    }
}

impl Meta {
    /// Handles the outcome of a request to the group.
    pub(super) fn note_outcome(
        &mut self,
        now: Time,
        request: RequestId,
        outcome: &Result<Outcome, Undecided>,
    ) {
        if self.leader_state.unapplied == Some(Unapplied::Submitted(request)) {
            let last = self.status(now).and_then(|status| status.last).unwrap_or(0);
            self.leader_state.unapplied = outcome.as_ref().err().map(|_| Unapplied::Upto(last));
        }
    }

    fn changes_cores(&self, command: &Command) -> bool {
        let is_core = |id: &NodeId| self.roster.members.get(id).is_some_and(super::Member::is_core);
        match command {
            Command::Join { info, .. } => is_core(&NodeId::of_name(&info.name)) != (info.role == Role::Core),
            Command::Remove(id, _) => is_core(id),
            Command::Found(_)
            | Command::Suspect(..)
            | Command::ClearSuspicion(..)
            | Command::DeclareDead(..)
            | Command::Leave(..)
            | Command::Lead(_)
            | Command::Records(_)
            | Command::Adopt(_)
            | Command::Placement(_) => false,
        }
    }

    /// Returns whether a command may be proposed now. Cores are added or removed one at a time, and the next one only
    /// when all cores know of the last change. Then majorities before and after a change have a core in common. So the
    /// cores of a new cluster join before its replicants.
    pub(super) fn allows(&self, now: Time, command: &Command) -> bool {
        let members = &self.roster.members;
        if let Command::Join { info, .. } = command {
            let is_core = |id: NodeId| members.get(&id).is_some_and(super::Member::is_core);
            let is_new = info.role != Role::Core && !members.contains_key(&NodeId::of_name(&info.name));
            let is_early = self.leader_state.began.after(FOUNDING) > now;
            if is_new && is_early && self.founding.awaits_core(is_core) {
                return false;
            }
        }
        let is_of_a_core = matches!(command, Command::Join { info, .. } if info.role == Role::Core);
        if is_of_a_core && self.leader_state.unapplied.is_some() {
            // It may not understand the feature that is about to be adopted.
            return false;
        }
        let is_settled = self.leader_state.is_settled && self.leader_state.unapplied.is_none();
        !self.changes_cores(command) || is_settled || mutated(Mutation::ManyCoresAtOnce)
    }

    /// Returns whether no core may be added or removed and nothing adopted before the command is applied.
    fn is_exclusive(&self, command: &Command) -> bool {
        matches!(command, Command::Adopt(_)) || self.changes_cores(command)
    }

    /// Returns whether the roster has the cores of the whole log: the log has no unapplied entry that changes them, and
    /// no core of the beginning is still about to join.
    pub(super) fn knows_cores(&self, now: Time) -> bool {
        let members = &self.roster.members;
        let is_core = |id: NodeId| members.get(&id).is_some_and(super::Member::is_core);
        let is_early = self.leader_state.began.after(FOUNDING) > now;
        self.leader_state.unapplied.is_none() && !(is_early && self.founding.awaits_core(is_core))
    }

    pub(super) fn run_leader(&mut self, now: Time, status: Option<&Status>, link_status: &[LinkStatus]) {
        let Some(status) = status else { return };
        let reachability = self.reachability(status, link_status);
        self.report_reachability(now, &reachability, link_status);
        let leads = status.role == Part::Leader;
        if leads != self.leader_state.leads {
            self.leader_state = LeaderState { leads, ..LeaderState::new(now) };
            self.failure_detector.forget();
            if leads {
                self.leader_state.unapplied = status.last.map(Unapplied::Upto);
                tracing::info!(term = status.term, "this core leads the meta group");
            }
        }
        self.failure_detector.report(now, self.id, reachability);
        self.note_cut_pairs(now);
        if !leads {
            return;
        }
        if let Some(Unapplied::Upto(last)) = self.leader_state.unapplied
            && status.applied >= Some(last)
        {
            self.leader_state.unapplied = None;
        }
        self.note_cores(now);
        if self.leader_state.busy_until.is_some_and(|until| until > now) || self.roster.founded == 0 {
            return;
        }
        self.leader_state.busy_until = None;
        let command = self.verdict(now).or_else(|| self.departure(now, status));
        let command = command.or_else(|| self.adoption(now, status));
        let change = change_of(&self.roster, self.placement.as_deref(), status);
        let command = command.or_else(|| if change.is_none() { self.next_placement(now) } else { None });
        let is_exclusive = command.as_ref().is_some_and(|command| self.is_exclusive(command));
        let Some(core) = &mut self.core else { return };
        let request = match (command, change) {
            (Some(command), _) => {
                tracing::info!("{}", describe(&self.roster, &command));
                core.propose(RequestOrigin::Leader, command.encode())
            }
            (None, Some(change)) => {
                tracing::info!(?change, "changing the replicas of the meta group");
                core.change_members(change)
            }
            (None, None) => return,
        };
        if is_exclusive {
            self.leader_state.unapplied = Some(Unapplied::Submitted(request));
        }
        self.leader_state.busy_until = Some(now.after(LIMIT));
    }

    /// Returns the nodes that this core does not reach.
    fn reachability(&self, status: &Status, link_status: &[LinkStatus]) -> Reachability {
        let cut_off = self.roster.members.iter().filter_map(|(id, member)| {
            let link_status = link_status.iter().find(|link_status| link_status.id == *id);
            let is_cut_off = *id != self.id && link_status.is_none_or(|link_status| !link_status.is_up);
            let holds_grant = link_status.is_some_and(|link_status| link_status.holds_grant);
            (is_cut_off && member.state != State::Dead).then_some((*id, (member.incarnation, holds_grant)))
        });
        // Only the log counts here, not rosters that other nodes sent.
        let applied = if status.applied.is_some() { self.roster.index } else { 0 };
        Reachability { applied, cut_off: cut_off.collect() }
    }

    fn report_reachability(&mut self, now: Time, reachability: &Reachability, link_status: &[LinkStatus]) {
        let leader = self.leader();
        let is_reported = self.leader_state.last_report.as_ref().is_some_and(|(at, to, last_report)| {
            (*to, last_report) == (leader, reachability) && at.after(REACHABILITY_INTERVAL) > now
        });
        if is_reported {
            return;
        }
        // The leader may be no core in this roster yet. A core that has given up its vote does not know the leader, and
        // remains a core as long as the roster says so.
        let cores: BTreeSet<NodeId> = self.roster.cores().map(|(id, _)| id).chain(leader).collect();
        let others = cores.into_iter().filter(|core| *core != self.id);
        let reached: Vec<NodeId> = others.filter(|core| self.may_reach(*core, link_status)).collect();
        for to in &reached {
            self.out.push_back(MetaFrame {
                to: *to,
                message: OwnedMetaMessage::Reachability(reachability.encode()),
            });
        }
        if !reached.is_empty() {
            self.leader_state.last_report = Some((now, leader, reachability.clone()));
        }
    }

    /// Notes which nodes do not reach each other, as the cores report.
    fn note_cut_pairs(&mut self, now: Time) {
        let members = &self.roster.members;
        let is_core = |node: NodeId| members.get(&node).is_some_and(super::Member::is_core);
        let is_alive = |node: NodeId, incarnation: Option<Incarnation>| {
            members.get(&node).is_some_and(|member| {
                member.state == State::Alive
                    && incarnation.is_none_or(|incarnation| incarnation == member.incarnation)
            })
        };
        let reported = self.failure_detector.cut_pairs(now, is_core, is_alive);
        for change in self.cut_pairs.update(now, &reported) {
            let name = |node: &NodeId| name(&self.roster, node);
            match change {
                PairChange::Cut((one, other)) => tracing::warn!(
                    "nodes {} and {} do not reach each other, and a core reaches both: shards are led by cores that reach more nodes, if they have replicas; check the network between the two nodes",
                    name(&one),
                    name(&other)
                ),
                PairChange::Restored((one, other)) => {
                    tracing::info!(
                        "nodes {} and {} reach each other again, or one of them is gone",
                        name(&one),
                        name(&other)
                    );
                }
            }
        }
    }

    /// Notes whether the present cores know of each other.
    fn note_cores(&mut self, now: Time) {
        let cores: BTreeSet<NodeId> = self.roster.cores().map(|(id, _)| id).collect();
        if cores != self.leader_state.cores {
            self.leader_state.cores = cores;
            self.leader_state.cores_since = (now, self.roster.index);
            self.leader_state.counted_since = None;
        }
        let (since, index) = self.leader_state.cores_since;
        let all = self.roster.cores().map(|(id, _)| id);
        if self.leader_state.counted_since.is_none() && self.failure_detector.have_applied(now, index, all) {
            self.leader_state.counted_since = Some(now);
        }
        let alive = self.roster.cores().filter(|(_, core)| core.state == State::Alive).map(|(id, _)| id);
        let all_know = self.failure_detector.have_applied(now, index, alive);
        let has_replicants = self.roster.members.values().any(|member| !member.is_core());
        let is_over = since.after(self.config.lease * LEASES) <= now;
        self.leader_state.is_settled = all_know && (is_over || !has_replicants);
    }

    /// Returns the number of cores without valid grants that leaves too few for a majority. Half of an even number is
    /// enough, once no core counts by an earlier set of cores, nor is about to count by another.
    fn enough_cores(&self, now: Time) -> usize {
        let cores = self.roster.cores().count();
        let lag = self.config.lease * LEASES;
        let count_alike = self.leader_state.counted_since.is_some_and(|since| since.after(lag) <= now);
        if count_alike && self.leader_state.unapplied.is_none() { cores - cores / 2 } else { cores / 2 + 1 }
    }

    /// Returns the command about a node that no core reaches, if one is due.
    fn verdict(&mut self, now: Time) -> Option<Command> {
        if !self.has_quorum(now) {
            return None;
        }
        let enough = self.enough_cores(now);
        let roster = self.roster.clone();
        // This node was suspected before it led. A majority reaches it now, and no other core reports that.
        let own = roster.members.get(&self.id).filter(|own| own.incarnation == self.incarnation());
        if own.is_some_and(|own| matches!(own.state, State::Suspect(_))) && !mutated(Mutation::StaySuspect) {
            return Some(Command::ClearSuspicion(self.id, self.incarnation()));
        }
        for (id, member) in roster.members.iter().filter(|(id, _)| **id != self.id) {
            let suspected = match member.state {
                State::Alive => None,
                State::Suspect(since) => Some(since),
                State::Dead => continue,
            };
            let incarnation = member.incarnation;
            let is_core = |core| roster.members.get(&core).is_some_and(super::Member::is_core);
            let opinion = self.failure_detector.opinion(now, (*id, incarnation), suspected, is_core);
            if opinion.is_heard || opinion.cut_off_by < enough {
                self.failure_detector.clear_unreachable(*id);
                if opinion.is_heard && suspected.is_some() {
                    return Some(Command::ClearSuspicion(*id, incarnation));
                }
                continue;
            }
            let since = self.failure_detector.unreachable_since(now, *id, incarnation);
            if suspected.is_none() && since.after(self.config.patience) <= now {
                return Some(Command::Suspect(*id, incarnation));
            }
            let has_no_grants = opinion.without_grant >= enough || mutated(Mutation::DeclareDeadAtOnce);
            if suspected.is_some() && has_no_grants {
                return Some(Command::DeclareDead(*id, incarnation));
            }
        }
        None
    }

    /// Returns the command that removes a node which wants to leave and has no vote, or none any more.
    fn departure(&self, now: Time, status: &Status) -> Option<Command> {
        let has_part = |replica: ReplicaId| status.members.iter().any(|(id, _)| *id == replica);
        // Other cores have its shards first. A core that has died meanwhile keeps those that need it, because it may
        // return.
        let has_shards =
            |id: &NodeId| self.placement.as_ref().is_some_and(|placement| placement.has_node(*id));
        let leaving = self.roster.members.iter().filter(|(_, member)| member.leaves);
        let leaving = leaving.filter(|(id, _)| !has_shards(id));
        let mut gone = leaving.filter(|(_, member)| !member.replica.is_some_and(has_part));
        let (id, member) = gone.next()?;
        // Another core may have died a moment ago, and the leaving one is needed to agree on that. So the others must
        // first report that they have applied its leave.
        let stays = |(core, member): &(NodeId, &super::Member)| core != id && member.state != State::Dead;
        let staying = self.roster.cores().filter(stays).map(|(core, _)| core);
        if member.is_core() && !self.failure_detector.have_applied(now, self.roster.index, staying) {
            return None;
        }
        let command = Command::Remove(*id, self.may_ask_for(INCARNATIONS).then_some(member.incarnation));
        self.allows(now, &command).then_some(command)
    }

    /// Submits a node's proposal to the group, which this core leads, if that is possible now.
    pub(super) fn submit(&mut self, now: Time, origin: RequestOrigin, command: &[u8]) -> Option<Submission> {
        let Some(decoded) = Command::decode(command) else {
            return Some(Submission::Answered(self.unread_here()));
        };
        if !self.allows(now, &decoded) {
            return None;
        }
        let from = match origin {
            RequestOrigin::Other(node, _) => node,
            RequestOrigin::Own(_) | RequestOrigin::Leader | RequestOrigin::Barrier => self.id,
        };
        let command = match self.compatible_form(now, from, decoded)? {
            CompatibleForm::Command(command) => command,
            CompatibleForm::Answered(answer) => return Some(Submission::Answered(answer)),
        };
        let is_exclusive = self.is_exclusive(&command);
        let core = self.core.as_mut()?;
        Some(match command {
            Command::Lead(node) if node == self.id => Submission::Answered(Answer::Done),
            Command::Lead(node) => {
                core.transfer(origin, self.roster.members.get(&node)?.replica?);
                Submission::Submitted
            }
            _ => {
                let request = core.propose(origin, command.encode());
                if is_exclusive {
                    self.leader_state.unapplied = Some(Unapplied::Submitted(request));
                }
                Submission::Submitted
            }
        })
    }

    /// Submits this node's proposals, or sends them to a core that can.
    pub(super) fn submit_proposals(
        &mut self,
        now: Time,
        status: Option<&Status>,
        link_status: &[LinkStatus],
    ) {
        for id in self.proposals.take_overdue(now) {
            let why = "no majority of the cores has agreed in time: check that a majority is running (meridian ctl cluster status)";
            self.answered.push_back((id, Err(why.to_owned())));
        }
        let leads = status.is_some_and(|status| status.role == Part::Leader);
        let is_up =
            |id: &NodeId| link_status.iter().any(|link_status| link_status.id == *id && link_status.is_up);
        let cores: Vec<NodeId> = self.roster.cores().map(|(id, _)| id).filter(is_up).collect();
        for due in self.proposals.take_due(now) {
            if leads {
                match self.submit(now, RequestOrigin::Own(due.number), &due.command) {
                    Some(Submission::Submitted) => {}
                    Some(Submission::Answered(answer)) => self.handle_outcome(due.number, answer),
                    None => self.proposals.retry(now, due.number),
                }
                continue;
            }
            let leader = due.hint.or_else(|| self.leader());
            let next = || cores.get(due.tries as usize % cores.len().max(1)).copied();
            // The link of a core may be lost while the core runs, and another core may lead. The next core may know the
            // leader.
            let is_tried = |id: &NodeId| is_up(id) || due.tries % 2 == 1 && self.may_reach(*id, link_status);
            let Some(to) = leader.filter(is_tried).or_else(next) else {
                self.proposals.retry(now, due.number);
                continue;
            };
            self.proposals.asked(due.number, to);
            self.out.push_back(MetaFrame { to, message: OwnedMetaMessage::Propose(due.number, due.command) });
        }
    }

    /// Handles a frame that a link had no room for.
    pub fn unsent(&mut self, frame: &MetaFrame) {
        if let (OwnedMetaMessage::Roster(_), Some(core)) = (&frame.message, &mut self.core) {
            core.roster_unsent(frame.to);
        }
    }

    /// Sends linked nodes the present roster and placement.
    pub(super) fn send_roster(&mut self, link_status: &[LinkStatus]) {
        if let Some(core) = self.core.as_mut().filter(|_| self.roster.index > 0) {
            self.out.extend(core.announcements(link_status));
        }
    }

    /// Transfers leadership to another core before this one stops.
    pub fn resign(&mut self, now: Time) {
        if self.core.as_mut().is_some_and(|core| core.resign(now)) {
            self.due = Time::default();
        }
    }
}

/// Returns the next change of the replicas, if they differ from the roster.
fn change_of(roster: &Roster, placement: Option<&Placement>, status: &Status) -> Option<Change> {
    // A core that leaves hands its shards over first: until then it has to learn what is agreed, and agree itself.
    let has_shards = |id: NodeId| placement.is_some_and(|placement| placement.has_node(id));
    let hands_over = |id: NodeId, member: &super::Member| member.state != State::Dead && has_shards(id);
    let staying = roster.cores().filter(|(id, member)| !member.leaves || hands_over(*id, member));
    let wanted: std::collections::BTreeMap<ReplicaId, NodeId> =
        staying.filter_map(|(id, member)| Some((member.replica?, id))).collect();
    let is_known = |replica: &ReplicaId| status.voters.contains(replica) || status.learners.contains(replica);
    if let Some((replica, node)) = wanted.iter().find(|(replica, _)| !is_known(replica)) {
        return Some(Change::AddLearner(*replica, consensus::Member { node: *node }));
    }
    let progress = |replica: &ReplicaId| status.progress.iter().find(|progress| progress.replica == *replica);
    let last_of = |replica: &ReplicaId| progress(replica).and_then(|progress| progress.last);
    let has_most = |replica: &&ReplicaId| {
        last_of(replica).is_some_and(|last| last + BEHIND_MAX >= status.last.unwrap_or(0))
    };
    let learners = status.learners.iter().filter(|replica| wanted.contains_key(replica));
    let mut ready: Vec<ReplicaId> = learners.clone().filter(has_most).copied().collect();
    let (keep, unwanted): (BTreeSet<ReplicaId>, BTreeSet<ReplicaId>) =
        status.voters.iter().partition(|replica| wanted.contains_key(replica));
    // A core that returns with an empty disk replaces its earlier replica once it has the entries that the earlier one
    // had.
    let is_replaced = |replica: &ReplicaId| {
        let node = status.members.iter().find(|(id, _)| id == replica).map(|(_, member)| member.node);
        learners.clone().any(|learner| wanted.get(learner).copied() == node)
    };
    let mut target = keep;
    if ready.is_empty() && unwanted.iter().any(is_replaced) {
        target.extend(unwanted);
    }
    // An even number of voters tolerates no more failures than one voter less.
    if (target.len() + ready.len()).is_multiple_of(2) {
        ready.pop();
    }
    // The leader keeps its vote. Of the others, the one removed contributes least to a majority: it is unreachable or
    // behind.
    let counts_on_the_dead = mutated(Mutation::CountOnDead);
    if target.len().is_multiple_of(2) && ready.is_empty() && !counts_on_the_dead {
        let use_of = |replica: &ReplicaId| {
            let member = wanted.get(replica).and_then(|node| roster.members.get(node));
            let is_alive = member.is_some_and(|member| member.state == State::Alive);
            (Some(*replica) == status.leader, is_alive, last_of(replica))
        };
        if let Some(one) = target.iter().copied().min_by_key(use_of) {
            target.remove(&one);
        }
    }
    target.extend(ready);
    // A change also needs a majority of the new voters: if they had died, everything would wait for them.
    let answers = |replica: &&ReplicaId| {
        let silence = progress(replica).and_then(|progress| progress.silence);
        Some(**replica) == status.leader || silence.is_some_and(|silence| silence <= SILENCE_MAX)
    };
    let can_agree =
        status.is_changing || counts_on_the_dead || target.iter().filter(answers).count() > target.len() / 2;
    if !target.is_empty() && (target != status.voters || status.is_changing) && can_agree {
        return Some(Change::SetVoters(target));
    }
    let unwanted = status.learners.iter().find(|replica| !wanted.contains_key(replica));
    unwanted.map(|replica| Change::RemoveLearner(*replica))
}

/// Describes a command for the log.
fn describe(roster: &Roster, command: &Command) -> String {
    let name = |id: &NodeId| name(roster, id);
    match command {
        Command::Suspect(id, _) => format!("node {} is suspected: no core reaches it", name(id)),
        Command::ClearSuspicion(id, _) => format!("node {} is no longer suspected", name(id)),
        Command::DeclareDead(id, _) => {
            format!("node {} is declared dead: no core reaches it, and it may acknowledge nothing", name(id))
        }
        Command::Remove(id, _) => format!("node {} has left the cluster", name(id)),
        Command::Adopt(features) => {
            format!("all cores support the features {features:#x}; commands may use them from now on")
        }
        Command::Placement(command) => describe_placement(&name, command),
        other => format!("{other:?}"),
    }
}

fn name(roster: &Roster, id: &NodeId) -> String {
    roster.members.get(id).map_or_else(|| id.to_string(), |it| it.info.name.to_string())
}

/// Describes a command about the placement for the log.
fn describe_placement(name: &dyn Fn(&NodeId) -> String, command: &PlacementCommand) -> String {
    match command {
        PlacementCommand::Found(placement) => {
            let (shards, replicas) = (placement.shards().len(), placement.replicas.get());
            format!("{shards} shards are placed on the cores, with up to {replicas} replicas each")
        }
        PlacementCommand::Move(ShardMove { shard, add, remove, .. }) => {
            let name = |node: Option<NodeId>| node.map_or_else(|| "none".to_owned(), |node| name(&node));
            let (added, removed) = (add.map(|log| log.node), remove.map(|replica| replica.node));
            let ShardId(number) = shard;
            format!(
                "shard {number} changes: replica added {}, replica removed {}",
                name(added),
                name(removed)
            )
        }
        PlacementCommand::Done { shard: ShardId(number), .. } => format!("shard {number} has changed"),
    }
}

#[cfg(test)]
mod tests {
    use consensus::Progress;

    use super::*;
    use crate::config::{NodeInfo, Replicas};
    use crate::meta::Member;
    use crate::meta::placement::CoreLog;
    use crate::meta::placement::planner::{Core, Standing, found};

    /// Returns a roster of cores with names and replicas.
    fn roster(cores: &[(&str, u64)]) -> Roster {
        let mut roster = Roster { founded: 1, ..Roster::default() };
        for (name, replica) in cores {
            let info =
                NodeInfo { name: (*name).into(), role: Role::Core, region: "".into(), address: "h:1".into() };
            let member = Member {
                info,
                incarnation: Incarnation(1),
                state: State::Alive,
                leaves: false,
                replica: Some(ReplicaId(*replica)),
            };
            roster.members.insert(NodeId::of_name(name), member);
        }
        roster
    }

    /// Returns the leader's status of the group, whose last entry is 1,000: the replicas with their nodes and
    /// positions.
    fn status(voters: &[(&str, u64, u64)], learners: &[(&str, u64, u64)]) -> Status {
        let all = || voters.iter().chain(learners);
        Status {
            role: Part::Leader,
            term: 1,
            leader: voters.first().map(|(_, replica, _)| ReplicaId(*replica)),
            voters: voters.iter().map(|(_, replica, _)| ReplicaId(*replica)).collect(),
            learners: learners.iter().map(|(_, replica, _)| ReplicaId(*replica)).collect(),
            members: all()
                .map(|(name, replica, _)| {
                    (ReplicaId(*replica), consensus::Member { node: NodeId::of_name(name) })
                })
                .collect(),
            is_changing: false,
            last: Some(1000),
            applied: Some(1000),
            snapshot: None,
            quorum_age: None,
            progress: all()
                .map(|(_, replica, last)| Progress {
                    replica: ReplicaId(*replica),
                    last: Some(*last),
                    silence: Some(0),
                })
                .collect(),
            failure: None,
        }
    }

    fn change_of(roster: &Roster, status: &Status) -> Option<Change> {
        super::change_of(roster, None, status)
    }

    fn votes(replicas: &[u64]) -> Option<Change> {
        Some(Change::SetVoters(replicas.iter().map(|replica| ReplicaId(*replica)).collect()))
    }

    #[test]
    fn a_core_learns_first_and_votes_once_it_is_nearly_complete_and_the_number_stays_odd() {
        let (two, three) = (roster(&[("a", 1), ("b", 2)]), roster(&[("a", 1), ("b", 2), ("c", 3)]));
        let a = ("a", 1, 1000);
        let add = Change::AddLearner(ReplicaId(2), consensus::Member { node: NodeId::of_name("b") });
        assert_eq!(change_of(&two, &status(&[a], &[])), Some(add));
        assert_eq!(
            change_of(&two, &status(&[a], &[("b", 2, 1000)])),
            None,
            "two tolerate no more failures than one"
        );
        let behind = status(&[a], &[("b", 2, 1000), ("c", 3, 800)]);
        assert_eq!(change_of(&three, &behind), None);
        let ready = status(&[a], &[("b", 2, 1000), ("c", 3, 950)]);
        assert_eq!(change_of(&three, &ready), votes(&[1, 2, 3]));
        let half_way = Status { is_changing: true, ..status(&[a, ("b", 2, 1000), ("c", 3, 950)], &[]) };
        assert_eq!(change_of(&three, &half_way), votes(&[1, 2, 3]), "it is asked again");
        assert_eq!(change_of(&three, &Status { is_changing: false, ..half_way }), None);
    }

    #[test]
    fn a_core_with_an_empty_disk_replaces_itself_once_it_is_nearly_complete() {
        let wanted = roster(&[("a", 1), ("b", 2), ("c", 4)]);
        let voters = [("a", 1, 1000), ("b", 2, 1000), ("c", 3, 900)];
        assert!(matches!(
            change_of(&wanted, &status(&voters, &[])),
            Some(Change::AddLearner(ReplicaId(4), _))
        ));
        assert_eq!(change_of(&wanted, &status(&voters, &[("c", 4, 3)])), None);
        assert_eq!(change_of(&wanted, &status(&voters, &[("c", 4, 990)])), votes(&[1, 2, 4]));
    }

    #[test]
    fn a_dead_or_slow_core_gets_no_decisive_vote() {
        let voters = [("a", 1, 1000), ("b", 2, 1000), ("c", 3, 1000)];
        let two = roster(&[("b", 2), ("c", 3)]);
        assert_eq!(change_of(&two, &status(&voters, &[])), votes(&[3]), "the leader leaves");
        let mut behind = status(&voters, &[]);
        behind.progress[2].last = Some(999);
        assert_eq!(change_of(&two, &behind), votes(&[2]), "c does not report whether it is alive");
        let mut without = two.clone();
        without.members.get_mut(&NodeId::of_name("c")).expect("a member").state = State::Dead;
        assert_eq!(change_of(&without, &status(&voters, &[])), votes(&[2]));
        behind.progress[1].silence = None;
        assert_eq!(change_of(&two, &behind), None, "b does not answer");
        let five = roster(&[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]);
        let mut grows = status(&voters, &[("d", 4, 990), ("e", 5, 990)]);
        (1..3).for_each(|replica| grows.progress[replica].silence = Some(SILENCE_MAX + 1));
        assert_eq!(change_of(&five, &grows), votes(&[1, 2, 3, 4, 5]));
        grows.progress[4].silence = Some(SILENCE_MAX + 1);
        assert_eq!(change_of(&five, &grows), None, "three of five do not answer");
    }

    /// A core moves its shards while it has a vote.
    #[test]
    fn a_core_that_leaves_keeps_its_vote_until_it_has_no_shards() {
        let mut leaves = roster(&[("a", 1), ("b", 2), ("c", 3)]);
        let c = NodeId::of_name("c");
        leaves.members.get_mut(&c).expect("a member").leaves = true;
        let all = status(&[("a", 1, 1000), ("b", 2, 1000), ("c", 3, 1000)], &[]);
        let placed = |names: &[(&str, u64)]| {
            let log = |(name, replica): &(&str, u64)| CoreLog {
                node: NodeId::of_name(name),
                replica: ReplicaId(*replica),
            };
            let core = |core| Core { log: log(core), region: "".into(), standing: Standing::Serves };
            let cores: Vec<Core> = names.iter().map(core).collect();
            found(&cores, 16, Replicas::default(), [7; 16]).expect("a core")
        };
        let change = |roster: &Roster, placement: &Placement| super::change_of(roster, Some(placement), &all);
        let before = placed(&[("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(change(&leaves, &before), None);
        assert_eq!(change(&leaves, &placed(&[("a", 1), ("b", 2)])), votes(&[1]), "its shards have moved");
        leaves.members.get_mut(&c).expect("a member").state = State::Dead;
        assert_eq!(change(&leaves, &before), votes(&[1]));
    }

    #[test]
    fn a_removed_core_loses_its_vote_to_a_learner() {
        let voters = [("a", 1, 1000), ("b", 2, 1000), ("c", 3, 900)];
        let two = roster(&[("a", 1), ("b", 2)]);
        assert_eq!(
            change_of(&two, &status(&voters, &[])),
            votes(&[1]),
            "two tolerate no more failures than one"
        );
        assert_eq!(change_of(&two, &status(&voters[..2], &[])), votes(&[1]));
        let leaves = Status { leader: Some(ReplicaId(3)), ..status(&voters, &[]) };
        assert_eq!(
            change_of(&two, &leaves),
            votes(&[2]),
            "two tolerate no more failures than one, whichever leads"
        );
        let four = roster(&[("a", 1), ("b", 2), ("d", 5)]);
        assert_eq!(change_of(&four, &status(&voters, &[("d", 5, 1000)])), votes(&[1, 2, 5]));
        let learner = status(&voters[..1], &[("b", 2, 1000)]);
        assert_eq!(change_of(&roster(&[("a", 1)]), &learner), Some(Change::RemoveLearner(ReplicaId(2))));
        assert_eq!(
            change_of(&Roster::default(), &status(&voters[..1], &[])),
            None,
            "there is always a voter"
        );
    }
}
