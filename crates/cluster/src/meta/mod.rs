//! Membership by agreement of the cores: how a node finds the others, joins them, and learns which ones are alive.
//!
//! Read [`Meta`] first. The agreed state is a [`Roster`]. Each core has a replica of it, and sends it to all nodes that
//! it is linked to.

mod admission;
mod adoption;
mod announcement;
mod command;
mod core_replica;
mod cut_pairs;
mod descriptor;
mod failure_detector;
mod founding;
mod leader_state;
mod meta_state;
pub mod placement;
mod placing;
mod proposals;
mod reader;
mod record_sync;
mod records;
mod relays;
mod roster;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use broker::ShardId;
use consensus::{Group, LogRead, LogReadResult, Outcome, ReplicaId, Status};
use link::{NodeId, Time};
use replog::Incarnation;
use storage::LogEvent;

pub use command::{Answer, Command, RecordBatch};
pub use descriptor::NodeDescriptor;
pub use meta_state::MetaState;
pub use placement::leaders::{DrainedNodes, LeaderPreference, ShardLeaders};
pub use placement::{CoreLog, Placement, ReplicaRole, ShardPlacement, ShardReplica, StoredReplica};
pub use record_sync::RecordSyncConfig;
pub use roster::{Member, NODES_MAX, Roster, State};

use crate::config::{NodeInfo, Replicas, Role};
use crate::features::{RECORDS, SNAPSHOT_PARTS};
use crate::mutation::{Mutation, mutated};
use admission::{Admission, LeaveStep, ShardProgress};
use announcement::Announced;
use core_replica::{CoreReplica, RequestOrigin};
use cut_pairs::CutPairs;
use failure_detector::{FailureDetector, Reachability};
use founding::Founding;
use leader_state::{LeaderState, Submission};
use placing::OTHER_STATE;
use proposals::{Proposals, Reply};
use record_sync::RecordSync;
use relays::Relays;

/// Configuration of a node's part in the meta group.
#[derive(Clone, Debug)]
pub struct MetaConfig {
    /// Addresses at which other nodes can be met, `HOST:PORT`. A core without any founds a cluster by itself.
    pub join: Vec<Box<str>>,
    /// Number of cores that a new cluster waits for.
    pub expect: usize,
    /// Time for which no core reaches a node before it is suspected.
    pub patience: Duration,
    /// Time for which a grant of a core holds.
    pub lease: Duration,
    /// Random id of a cluster that this node founds.
    pub founding: u128,
    pub record_sync: RecordSyncConfig,
    /// Number of replicas of each shard, if this node places the shards of its cluster for the first time.
    pub replicas: Replicas,
    /// Random key for the same case ([`Placement::owner_key`]).
    pub owner_key: [u8; 16],
    /// Key for the same case, on a core with durable sessions of its own: the shards of the cluster begin with these.
    pub own_state: Option<[u8; 16]>,
    /// Time for which a core is dead before its replicas of shards are replaced. After the same time, a shard that is
    /// still changing no longer holds up the others.
    pub replace_after: Duration,
    /// Features of this node, as announced in its handshakes.
    pub features: u64,
}

/// Id of an operator's request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProposalId(pub u64);

/// Message between nodes about the state of the meta group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaMessage<'a> {
    /// Frame of the meta group's replicas.
    Replica(&'a [u8]),
    /// Roster that the sender knows, with the placement of shards for peers with
    /// [`SHARDS`](crate::features::SHARDS).
    Roster(&'a [u8]),
    /// Proposal of the sender.
    Propose { number: u64, command: &'a [u8] },
    /// Outcome of a proposal. Empty: this node does not lead, but perhaps `leader` does.
    Proposed { number: u64, leader: u64, answer: &'a [u8] },
    /// Report of a core about the nodes that it does not reach, sent to all other cores.
    Reachability(&'a [u8]),
    /// Position of the sender's copy of the records, and its request for more.
    Copied(&'a [u8]),
    /// Records that a copy lacks.
    Records(&'a [u8]),
    /// Message between two nodes that are not linked, for the receiver to relay, or relayed to the receiver. `features`
    /// are those of `from`. Only for peers with [`RELAYS`](crate::features::RELAYS).
    Relay { from: NodeId, to: NodeId, features: u64, message: &'a [u8] },
}

/// Frame for another node.
#[derive(Debug)]
pub struct MetaFrame {
    pub to: NodeId,
    pub message: OwnedMetaMessage,
}

/// Outgoing [`MetaMessage`].
#[derive(Debug)]
pub enum OwnedMetaMessage {
    Replica(Vec<u8>),
    Roster(Arc<[u8]>),
    Propose(u64, Vec<u8>),
    Proposed(u64, u64, Vec<u8>),
    Reachability(Vec<u8>),
    Copied(Vec<u8>),
    Records(Vec<u8>),
    Relay { from: NodeId, to: NodeId, features: u64, message: Vec<u8> },
}

impl OwnedMetaMessage {
    pub fn message(&self) -> MetaMessage<'_> {
        match self {
            Self::Replica(frame) => MetaMessage::Replica(frame),
            Self::Roster(roster) => MetaMessage::Roster(roster),
            Self::Propose(number, command) => MetaMessage::Propose { number: *number, command },
            Self::Proposed(number, leader, answer) => {
                MetaMessage::Proposed { number: *number, leader: *leader, answer }
            }
            Self::Reachability(reachability) => MetaMessage::Reachability(reachability),
            Self::Copied(ask) => MetaMessage::Copied(ask),
            Self::Records(reported) => MetaMessage::Records(reported),
            Self::Relay { from, to, features, message } => {
                MetaMessage::Relay { from: *from, to: *to, features: *features, message }
            }
        }
    }
}

/// This node's view of another one. The cluster router passes it in each turn.
#[derive(Clone, Copy, Debug)]
pub struct LinkStatus {
    pub id: NodeId,
    pub is_up: bool,
    /// True when a grant of this core to it may still hold.
    pub holds_grant: bool,
    /// Features that both nodes have; unknown while the link is down.
    pub features: Option<u64>,
}

/// One node's part in the agreement of the cores. No I/O, clocks or threads; the cluster router owns it.
pub struct Meta {
    own: NodeInfo,
    id: NodeId,
    incarnation: Incarnation,
    config: MetaConfig,
    /// Replica of the meta group, if this node is a core.
    core: Option<CoreReplica>,
    roster: Arc<Roster>,
    placement: Option<Arc<Placement>>,
    /// Reports of the owner that shards have changed, until the placement shows it: shards and epochs.
    changed_shards: BTreeMap<ShardId, u64>,
    /// Nodes that are drained, as operators have ordered, and the number of changes of them.
    drained: DrainedNodes,
    drained_version: u64,
    /// True once this incarnation has been a member.
    was_member: bool,
    founding: Founding,
    proposals: Proposals,
    leader_state: LeaderState,
    failure_detector: FailureDetector,
    cut_pairs: CutPairs,
    relays: Relays,
    record_sync: RecordSync,
    /// Features of linked nodes.
    features: BTreeMap<NodeId, u64>,
    out: VecDeque<MetaFrame>,
    answered: VecDeque<(ProposalId, Result<Answer, String>)>,
    logged_waiting: Option<(Time, String)>,
    admission: Admission,
    due: Time,
}

/// Maximum time to wait for proposals of this node, and for requests to the group.
const LIMIT: Duration = Duration::from_secs(5);
/// Time within which a majority must have answered a leader. No replica stands for election before it is over, so no
/// two claim to lead a majority at the same time.
const QUORUM_AGE_MAX: Duration = Duration::from_millis(3 * consensus::ELECTION_TIMEOUT.as_millis() as u64);
/// Error text for a proposal that some core has received but not answered: it may still be committed.
const NOT_KNOWN: &str = "not all cores were reached in time, so it is unknown whether the change holds: check the result, and try again";
/// Maximum number of addresses at which other nodes can be met.
const ADDRESSES_MAX: usize = 64;
/// Interval between comparisons of the present and the wanted state.
const PAUSE: Duration = Duration::from_millis(250);
/// Interval between repeated log lines about what the node waits for.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Default of [`MetaConfig::replace_after`]: longer than a restart with its recovery.
pub const REPLACE_AFTER: Duration = Duration::from_secs(600);

impl Meta {
    /// Creates the state. A core has a `group`.
    pub fn new(
        now: Time,
        own: NodeInfo,
        incarnation: Incarnation,
        config: MetaConfig,
        group: Option<Group<MetaState>>,
    ) -> Self {
        let id = NodeId::of_name(&own.name);
        debug_assert_eq!(group.is_some(), own.role == Role::Core);
        let state = group.as_ref().map(Group::state);
        let roster = Arc::new(state.map(|state| state.roster.clone()).unwrap_or_default());
        let placement = state.and_then(|state| state.placement.clone()).map(Arc::new);
        Self {
            founding: Founding::new(id, &own, &config.join, config.expect),
            proposals: Proposals::new(incarnation),
            leader_state: LeaderState::new(now),
            failure_detector: FailureDetector::default(),
            cut_pairs: CutPairs::default(),
            relays: Relays::default(),
            record_sync: RecordSync::new(config.record_sync),
            roster,
            placement,
            changed_shards: BTreeMap::new(),
            drained: DrainedNodes::new(),
            drained_version: 0,
            was_member: false,
            own,
            id,
            incarnation,
            config,
            core: group.map(CoreReplica::new),
            features: BTreeMap::new(),
            out: VecDeque::new(),
            answered: VecDeque::new(),
            logged_waiting: None,
            admission: Admission::default(),
            due: now,
        }
    }

    /// Returns the committed roster, as far as this node knows it.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Iterates over the addresses at which other nodes can be met: those of the configuration and of other nodes, and
    /// those of all cores that this node knows. A known core may not lead, but the leader can admit it.
    pub fn join_addresses(&self) -> impl Iterator<Item = &str> {
        let cores = self.roster.cores().filter(|(id, _)| *id != self.id).map(|(_, core)| &*core.info.address);
        let join = self.config.join.iter().map(|address| &**address);
        join.chain(self.founding.addresses()).chain(cores)
    }

    /// Returns whether the configuration or an operator has named the address.
    pub fn is_given(&self, address: &str) -> bool {
        self.config.join.iter().any(|given| **given == *address)
    }

    /// Adds addresses until the process ends.
    pub fn join_at(&mut self, addresses: Vec<Box<str>>) {
        for address in addresses {
            if self.config.join.len() < ADDRESSES_MAX && !self.config.join.contains(&address) {
                self.config.join.push(address);
            }
        }
    }

    /// Returns the number of messages that this core has relayed between nodes that do not reach each other.
    pub fn relayed_count(&self) -> u64 {
        self.relays.relayed_count
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns whether this incarnation of this node belongs to the cluster.
    pub fn is_member(&self) -> bool {
        let member = self.roster.members.get(&self.id);
        member.is_some_and(|member| member.incarnation == self.incarnation && member.state != State::Dead)
    }

    /// Returns whether this incarnation of this node has ever belonged to the cluster.
    pub fn was_member(&self) -> bool {
        self.was_member
    }

    /// Returns whether this incarnation was a member and is none any more: the others have declared it dead, or another
    /// incarnation has taken its name.
    pub fn is_over(&self) -> bool {
        let is_dead = self.roster.members.get(&self.id).is_some_and(|member| {
            member.incarnation == self.incarnation && member.state == State::Dead
                || member.incarnation > self.incarnation && !mutated(Mutation::OldIncarnationsJoin)
        });
        let is_removed = self.was_member && !self.roster.members.contains_key(&self.id) && !self.is_leaving();
        is_dead || is_removed || self.admission.is_refused()
    }

    /// Returns whether this core may grant leases: it knows which nodes must not get one.
    pub fn may_grant(&self) -> bool {
        self.core.as_ref().is_some_and(CoreReplica::is_caught_up) && self.is_member()
    }

    /// Returns whether this core may grant a lease to a node.
    pub fn may_be_granted(&self, node: NodeId, incarnation: Option<Incarnation>) -> bool {
        let member = self.roster.members.get(&node);
        member.is_some_and(|member| {
            let is_suspect = matches!(member.state, State::Suspect(_)) && mutated(Mutation::GrantSuspects);
            (member.state == State::Alive || is_suspect)
                && incarnation.is_none_or(|incarnation| incarnation == member.incarnation)
        })
    }

    /// Returns the descriptor that this node announces to nodes that it meets.
    pub fn descriptor(&self) -> NodeDescriptor {
        NodeDescriptor {
            role: self.own.role,
            region: self.own.region.clone(),
            address: self.own.address.clone(),
            incarnation: self.incarnation,
            founded: self.roster.founded,
            known: if self.own.role == Role::Core { self.founding.hash() } else { 0 },
            others: if self.roster.founded == 0 { self.founding.others() } else { Vec::new() },
        }
    }

    /// Returns the status of this core's replica.
    pub fn status(&self, now: Time) -> Option<Status> {
        self.core.as_ref().map(|core| core.group().status(now))
    }

    /// Returns the id of this node's replica.
    pub fn replica(&self) -> Option<ReplicaId> {
        self.core.as_ref().map(|core| core.group().id())
    }

    /// Describes for operators why this node is no member yet, or serves no client as a member.
    pub fn waits_for(&self) -> Option<String> {
        if self.has_other_state() {
            return Some(OTHER_STATE.to_owned());
        }
        if self.is_member() {
            return self.awaited_sessions();
        }
        Some(if let Some(why) = self.admission.rejection() {
            why.to_owned()
        } else if self.roster.founded == 0 {
            self.founding.waits_for()
        } else {
            "the cores have not let this node in yet: a majority of them must be running".to_owned()
        })
    }

    /// Handles an introduction. Returns whether to link the node: it may become a member, or let this node become one.
    pub fn introduced(&mut self, node: NodeId, descriptor: &NodeDescriptor, address: Option<&str>) -> bool {
        self.founding.introduced(node, descriptor, address);
        self.due = Time::default();
        if node == self.id || self.roster.members.contains_key(&node) {
            return false;
        }
        let ours = self.roster.founded;
        let is_other = ours != 0 && descriptor.founded != 0 && descriptor.founded != ours;
        // A replicant cannot admit nodes. A core will be able to once there is a cluster, and the link exists then.
        !is_other && (descriptor.role == Role::Core || self.own.role == Role::Core || ours != 0)
    }

    pub fn handle_log_event(&mut self, event: LogEvent) {
        let Some(core) = &mut self.core else { return };
        core.handle_log_event(event);
        self.due = Time::default();
    }

    /// Returns a request of this core's replica to read from the log.
    pub fn poll_read(&mut self) -> Option<LogRead> {
        self.core.as_mut()?.poll_read()
    }

    /// Handles the result of a read.
    pub fn handle_read(&mut self, result: LogReadResult) {
        if let Some(core) = &mut self.core {
            core.handle_read(result);
        }
    }

    /// Notes that a node's link is up or down.
    pub fn link_changed(&mut self, node: NodeId, is_up: bool) {
        self.features.remove(&node);
        self.relays.changed(node);
        if let Some(core) = &mut self.core {
            core.link_changed(node, is_up);
        }
        if !is_up {
            self.failure_detector.lost(node);
            self.proposals.lost(node);
            self.record_sync.lost(node);
        }
        self.due = Time::default();
    }

    /// Handles a message. Returns false for a message that this version does not know.
    pub fn handle_message(&mut self, now: Time, from: NodeId, message: &MetaMessage<'_>) -> bool {
        self.due = Time::default();
        match message {
            MetaMessage::Replica(frame) => {
                if let Some(core) = &mut self.core {
                    core.receive(now, from, frame);
                }
                true
            }
            MetaMessage::Roster(bytes) => match Announced::decode(bytes) {
                Some(Announced { roster, placement }) => {
                    self.learn(roster, placement);
                    true
                }
                None => false,
            },
            MetaMessage::Propose { number, command } => {
                self.propose_for(now, from, *number, command);
                true
            }
            MetaMessage::Proposed { number, leader, answer } => {
                if answer.is_empty() {
                    self.proposals.not_leader(now, from, *number, NodeId(*leader));
                    return true;
                }
                let answer = Answer::decode(answer).map(|answer| self.handle_outcome(*number, answer));
                answer.is_some()
            }
            MetaMessage::Reachability(bytes) => match Reachability::decode(bytes) {
                Some(reachability) => {
                    if self.roster.members.get(&from).is_some_and(Member::is_core) {
                        self.failure_detector.report(now, from, reachability);
                    }
                    true
                }
                None => false,
            },
            MetaMessage::Copied(ask) => self.records_requested(now, from, ask),
            MetaMessage::Records(reported) => {
                self.record_sync.answered(now, from, self.roster.founded, reported)
            }
            MetaMessage::Relay { from: of, to, features, message } => {
                self.relayed(now, from, (*of, *to, *features), message)
            }
        }
    }

    /// Adopts a roster and a placement of its cluster, each unless a later one is known.
    fn learn(&mut self, roster: Roster, placement: Option<Placement>) {
        let ours = self.roster.founded;
        if ours != 0 && roster.founded != ours {
            return;
        }
        let is_newer = roster.index > self.roster.index;
        let known = self.placement.as_ref().map_or(0, |placement| placement.version);
        let placement = placement.filter(|placement| placement.version > known);
        if !is_newer && placement.is_none() {
            return;
        }
        if is_newer {
            self.roster = Arc::new(roster);
            self.was_member |= self.is_member();
        }
        if let Some(placement) = placement {
            self.placement = Some(Arc::new(placement));
        }
        if let Some(core) = &mut self.core {
            core.announce(&self.roster, self.placement.as_deref());
        }
    }

    /// Proposes an operator's command.
    pub fn propose(&mut self, now: Time, id: ProposalId, command: &Command) {
        if !self.proposals.push(now.after(LIMIT), Reply::Operator(id), command.encode()) {
            self.answered.push_back((id, Err("too many such requests wait already".to_owned())));
        }
        self.due = Time::default();
    }

    /// Returns the outcome of an operator's request.
    pub fn poll_answered(&mut self) -> Option<(ProposalId, Result<Answer, String>)> {
        self.answered.pop_front()
    }

    /// Returns a core that this leader has not admitted: its version lacks a feature that the log uses.
    pub fn poll_turned_away(&mut self) -> Option<NodeId> {
        self.core.as_mut()?.poll_turned_away()
    }

    pub fn poll_frame(&mut self) -> Option<MetaFrame> {
        self.out.pop_front()
    }

    /// Returns the time by which [`Self::turn`] is due.
    pub fn timeout(&self) -> Time {
        self.core.as_ref().map_or(Time::NEVER, |core| core.group().timeout()).min(self.due)
    }

    pub fn turn(&mut self, now: Time, link_status: &[LinkStatus]) {
        if let Some(core) = &mut self.core {
            core.turn(now);
        }
        self.take_outcomes(now);
        self.learn_own();
        if now >= self.due {
            self.due = now.after(PAUSE);
            self.features = link_status
                .iter()
                .filter_map(|link_status| Some((link_status.id, link_status.features?)))
                .collect();
            let part_readers = self.part_readers(now);
            if let Some(core) = &mut self.core {
                core.set_part_readers(part_readers);
            }
            self.update(now, link_status);
            if let Some(core) = &mut self.core {
                core.turn(now);
            }
            self.take_outcomes(now);
            self.learn_own();
        }
        self.send_roster(link_status);
        self.sync_records(now, link_status);
        self.out.extend(std::iter::from_fn(|| self.core.as_mut()?.poll_frame()));
        self.route_via_relays(now, link_status);
    }

    /// Nodes that are linked to this one, or reached by a relay, and read snapshots in parts.
    fn part_readers(&self, now: Time) -> BTreeSet<NodeId> {
        let has_it = |features: u64| features & SNAPSHOT_PARTS != 0;
        let linked = self.features.iter().filter(|(_, features)| has_it(**features)).map(|(node, _)| *node);
        let relayed = self.roster.members.keys().copied().filter(|node| {
            !self.features.contains_key(node) && self.relays.features(now, *node).is_some_and(has_it)
        });
        linked.chain(relayed).collect()
    }

    /// Adopts the state that this core's replica has applied.
    fn learn_own(&mut self) {
        let Some(core) = &self.core else { return };
        let state = core.group().state();
        let version = |placement: &Placement| placement.version;
        let is_newer = state.placement.as_ref().map(version) > self.placement.as_deref().map(version);
        if state.roster.index > self.roster.index || is_newer {
            let (roster, placement) = (state.roster.clone(), state.placement.clone());
            self.learn(roster, placement);
        }
    }

    /// Compares the present state with the wanted one.
    fn update(&mut self, now: Time, link_status: &[LinkStatus]) {
        self.note_founding();
        self.found_or_join(now);
        self.log_waiting(now);
        let status = self.status(now);
        if let (Some(core), Some(status)) = (&mut self.core, &status) {
            core.log_stopped(&self.own.name, status);
            core.log_forgetful(&self.roster);
            let has_own_join = self.roster.members.get(&self.id).is_some_and(|own| {
                own.incarnation == self.incarnation && status.applied >= Some(self.roster.index)
            });
            core.catch_up(now, status, has_own_join);
        }
        self.run_leader(now, status.as_ref(), link_status);
        self.offer_own_state(now);
        self.report_changed_shards(now);
        self.submit_proposals(now, status.as_ref(), link_status);
    }

    fn found_or_join(&mut self, now: Time) {
        if self.is_leaving() {
            return self.continue_leave(now);
        }
        if self.roster.founded == 0 {
            return self.found(now);
        }
        let is_told = self.roster.members.get(&self.id).is_some_and(|known| {
            (&known.info, known.incarnation, known.replica) == (&self.own, self.incarnation, self.replica())
        });
        // With another state it gets no shards. The cores may need its vote to agree on anything.
        let may_join = !self.has_other_state() || self.has_vote(now);
        if !is_told && !self.is_over() && !self.proposals.has_own() && may_join {
            let (info, incarnation) = (self.own.clone(), self.incarnation);
            let join = Command::Join { info, incarnation, replica: self.replica() };
            self.proposals.push(now.after(LIMIT), Reply::Own, join.encode());
        }
    }

    /// Takes the next step to found a cluster, on a core that may.
    fn found(&mut self, now: Time) {
        let Some(core) = self.core.as_mut().filter(|core| !core.has_requests()) else { return };
        let status = core.group().status(now);
        if status.voters.is_empty() && self.founding.founds() {
            tracing::info!(node = %self.own.name, "founding a cluster: no node that was asked belongs to one");
            core.initialize(self.id);
        } else if status.role == consensus::Role::Leader {
            core.propose(RequestOrigin::Leader, Command::Found(self.config.founding).encode());
        }
    }

    /// Lets this node leave the cluster, for the rest of this process: [`Self::poll_answered`] reports the end of its
    /// membership.
    pub fn leave(&mut self, now: Time, id: ProposalId) {
        let has_other = self.roster.cores().any(|(id, core)| id != self.id && !core.leaves);
        if self.own.role == Role::Core && !has_other {
            let why = "this is the last core of its cluster, and the cluster would end with it";
            self.answered.push_back((id, Err(why.to_owned())));
            return;
        }
        self.admission.leave(now, id);
        self.proposals.forget_own();
        self.resign(now);
        self.due = Time::default();
    }

    pub fn is_leaving(&self) -> bool {
        self.admission.is_leaving()
    }

    fn continue_leave(&mut self, now: Time) {
        let own = self.roster.members.get(&self.id).filter(|own| own.incarnation == self.incarnation);
        let placement = self.placement.as_deref().zip(self.core_log());
        let shards = placement.map_or_else(ShardProgress::default, |(placement, log)| ShardProgress {
            version: placement.version,
            replicas: placement.replicas_in(log).count(),
        });
        match self.admission.continue_leave(now, own, shards) {
            LeaveStep::Answer(id, outcome) => self.answered.push_back((id, outcome)),
            LeaveStep::Propose if !self.proposals.has_own() => {
                let command = Command::Leave(self.id, self.incarnation);
                self.proposals.push(now.after(LIMIT), Reply::Own, command.encode());
            }
            LeaveStep::Propose | LeaveStep::Nothing => {}
        }
    }

    /// Starts another incarnation of this node, because its last one is over.
    pub fn restart_incarnation(&mut self) -> Incarnation {
        let known = self.roster.members.get(&self.id).map_or(Incarnation(0), |member| member.incarnation);
        let next = Incarnation(known.max(self.incarnation).0.saturating_add(1));
        self.incarnation = self.admission.next_incarnation(next);
        self.was_member = false;
        self.proposals.forget_own();
        self.due = Time::default();
        self.incarnation
    }

    fn log_waiting(&mut self, now: Time) {
        let waits = self.waits_for().filter(|_| !self.is_leaving());
        let (Some(what), last) = (waits, &self.logged_waiting) else {
            if self.logged_waiting.take().is_some() {
                let members = self.roster.members.len();
                tracing::info!(node = %self.own.name, members, "this node belongs to the cluster");
            }
            return;
        };
        if last.as_ref().is_some_and(|(at, logged)| *logged == what && at.after(LOG_INTERVAL) > now) {
            return;
        }
        let node = &*self.own.name;
        if self.has_other_state() {
            tracing::error!(node, "this node takes no part in the shards of the cluster: {what}");
        } else if self.is_member() {
            tracing::error!(node, "no client is served: {what}");
        } else {
            tracing::info!(node, "not yet a member of the cluster: {what}");
        }
        self.logged_waiting = Some((now, what));
    }

    fn take_outcomes(&mut self, now: Time) {
        while let Some((origin, event, answer)) = self.core.as_mut().and_then(CoreReplica::poll_outcome) {
            self.note_outcome(now, event.request, &event.outcome);
            let answer = match &event.outcome {
                Ok(Outcome::Applied(_)) => answer,
                Ok(Outcome::Transferred) => Some(Answer::Done),
                _ => None,
            };
            match origin {
                Some(RequestOrigin::Own(number)) => match (answer, &event.outcome) {
                    (Some(answer), _) => self.handle_outcome(number, answer),
                    _ => self.proposals.retry(now, number),
                },
                Some(RequestOrigin::Other(from, number)) => {
                    self.send_outcome(from, number, answer.map(|answer| answer.encode()).unwrap_or_default());
                }
                Some(RequestOrigin::Leader) => self.leader_state.done(now, &event.outcome),
                Some(RequestOrigin::Barrier) | None => {}
            }
            self.due = Time::default();
        }
    }

    /// Returns whether a majority of the voters was reached recently. For a follower: whether it receives messages of
    /// its leader.
    pub fn has_quorum(&self, now: Time) -> bool {
        self.core.as_ref().is_some_and(|core| core.has_quorum(now))
    }

    /// Returns whether this core votes in the meta group.
    pub fn has_vote(&self, now: Time) -> bool {
        let status = self.status(now).zip(self.replica());
        status.is_some_and(|(status, replica)| status.voters.contains(&replica))
    }

    /// Returns whether this core's replica leads.
    pub fn leads(&self, now: Time) -> bool {
        self.status(now).is_some_and(|status| status.role == consensus::Role::Leader)
    }

    /// Returns the node whose replica leads, as far as this core knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.core.as_ref()?.leader()
    }

    fn propose_for(&mut self, now: Time, from: NodeId, number: u64, command: &[u8]) {
        let is_asked = self.leader() == Some(self.id);
        let origin = RequestOrigin::Other(from, number);
        let answer = match is_asked.then(|| self.submit(now, origin, command)).flatten() {
            Some(Submission::Submitted) => return,
            // Versions before records do not know such an answer. Newer nodes that lack a feature do.
            Some(Submission::Answered(Answer::Unread(_))) if !self.has_features(now, from, RECORDS) => {
                Answer::Refused.encode()
            }
            Some(Submission::Answered(answer)) => answer.encode(),
            None => Vec::new(),
        };
        self.send_outcome(from, number, answer);
    }

    fn send_outcome(&mut self, to: NodeId, number: u64, answer: Vec<u8>) {
        let leader = self.leader().unwrap_or(NodeId(0));
        self.out.push_back(MetaFrame { to, message: OwnedMetaMessage::Proposed(number, leader.0, answer) });
    }

    pub(super) fn handle_outcome(&mut self, number: u64, answer: Answer) {
        // No operator waits for a proposal whose time is over.
        let Some((reply, may_be_applied)) = self.proposals.done(number) else { return };
        if let Reply::Operator(id) = reply {
            let is_refused_for_now = matches!(answer, Answer::Unread(_));
            let outcome =
                if may_be_applied && is_refused_for_now { Err(NOT_KNOWN.to_owned()) } else { Ok(answer) };
            return self.answered.push_back((id, outcome));
        }
        if let Reply::Placement | Reply::Shard(_) = reply {
            return;
        }
        if let Answer::Unread(why) = &answer {
            self.admission.reject(why.clone());
        }
        if let Answer::Old(next) = answer
            && next > self.incarnation
        {
            // This incarnation number was used already: the cluster router restarts with a greater one.
            tracing::warn!(node = %self.own.name, "a later incarnation of this node has joined before; this node restarts with a greater number");
            self.admission.refuse(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeInfo;

    fn info(name: &str, role: Role) -> NodeInfo {
        NodeInfo { name: name.into(), role, region: "".into(), address: "h:1".into() }
    }

    /// Returns a node without a replica in a cluster of one core.
    fn replicant(core: NodeId) -> Meta {
        let config = MetaConfig {
            join: Vec::new(),
            expect: 1,
            patience: Duration::from_secs(1),
            lease: Duration::from_secs(5),
            founding: 1,
            record_sync: RecordSyncConfig::default(),
            replicas: Replicas::default(),
            owner_key: [7; 16],
            own_state: None,
            replace_after: REPLACE_AFTER,
            features: u64::MAX,
        };
        let mut meta = Meta::new(Time(0), info("r", Role::Replicant), Incarnation(5), config, None);
        let member = Member {
            info: info("c", Role::Core),
            incarnation: Incarnation(1),
            state: State::Alive,
            leaves: false,
            replica: Some(ReplicaId(1)),
        };
        let roster = Roster { founded: 1, index: 1, members: [(core, member)].into() };
        assert!(meta.handle_message(Time(0), core, &MetaMessage::Roster(&roster.encode())));
        meta
    }

    /// Returns the numbers of the proposals that it sends the core: those of operators, and its own.
    fn asked(meta: &mut Meta, now: Time, core: NodeId) -> (Vec<u64>, Vec<u64>) {
        meta.turn(now, &[LinkStatus { id: core, is_up: true, holds_grant: false, features: Some(u64::MAX) }]);
        let messages = std::iter::from_fn(|| meta.poll_frame());
        let proposals = messages.filter_map(|frame| match frame.message {
            OwnedMetaMessage::Propose(number, command) => Some((number, Command::decode(&command)?)),
            _ => None,
        });
        let (own, others): (Vec<_>, _) =
            proposals.partition(|(_, command)| matches!(command, Command::Join { .. }));
        let numbers =
            |proposals: Vec<(u64, Command)>| proposals.into_iter().map(|(number, _)| number).collect();
        (numbers(others), numbers(own))
    }

    #[test]
    fn an_answer_to_an_expired_proposal_does_not_end_an_incarnation() {
        let core = NodeId::of_name("c");
        let mut meta = replicant(core);
        let remove = Command::Remove(NodeId::of_name("x"), Some(Incarnation(1000)));
        meta.propose(Time(0), ProposalId(1), &remove);
        let (operators, own) = asked(&mut meta, Time(0), core);
        let ([operators], [own]) = (operators.as_slice(), own.as_slice()) else {
            panic!("asked for {operators:?} and {own:?}")
        };
        let late = Time(0).after(LIMIT);
        assert_eq!(asked(&mut meta, late, core), (Vec::new(), Vec::new()));
        assert!(matches!(meta.poll_answered(), Some((ProposalId(1), Err(_)))), "the operator gets an answer");
        let answer = Answer::Old(Incarnation(2000)).encode();
        let reported = |number| MetaMessage::Proposed { number, leader: core.0, answer: &answer };
        for number in [*operators, *own, 1] {
            assert!(meta.handle_message(late, core, &reported(number)));
            assert!(!meta.is_over(), "{number}");
        }
        let (_, retry) = asked(&mut meta, late.after(PAUSE), core);
        assert_eq!(retry.len(), 1, "it still wants to join");
        assert!(meta.handle_message(late, core, &reported(retry[0])));
        assert!(meta.is_over());
        assert_eq!(meta.restart_incarnation(), Incarnation(2000));
    }
}
