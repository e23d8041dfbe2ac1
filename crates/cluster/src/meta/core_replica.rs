//! This core's replica of the meta group, and what the core does whether it leads or not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use consensus::{
    Change, Event, Group, LogRead, LogReadResult, Outcome, Progress, ReplicaId, RequestId, Role, Status,
};
use link::{NodeId, Time};
use storage::LogEvent;

use super::announcement::Announcement;
use super::command::Answer;
use super::{LIMIT, LinkStatus, MetaFrame, MetaState, OwnedMetaMessage, Placement, QUORUM_AGE_MAX, Roster};

/// Requester of an operation of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    /// This node, for a proposal of its own.
    Own(u64),
    Other(NodeId, u64),
    Leader,
    Barrier,
}

/// Replica of the meta group on a core, its requests in progress, and the announcements that the core has sent.
pub struct CoreReplica {
    group: Group<MetaState>,
    /// Requests to the group in progress.
    requests: BTreeMap<RequestId, RequestOrigin>,
    /// Answers to the newest commands, by index, for the outcomes of proposals of this node.
    answers: BTreeMap<u64, Answer>,
    catch_up: CatchUp,
    /// Node of the leading replica, and the time of its last message.
    leader_heard: Option<(NodeId, Time)>,
    announcement: Announcement,
    /// Index of the roster and version of the placement last sent to each linked node.
    reported: BTreeMap<NodeId, (u64, u64)>,
    /// Cores that were not admitted because their versions are too old.
    turned_away: VecDeque<NodeId>,
    has_logged_stopped: bool,
}

/// Progress of a core towards a state that has all entries committed before its incarnation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatchUp {
    /// Entries may be missing. The leader was asked at this time, or never if it is 0.
    Behind {
        asked_at: Time,
    },
    Complete,
}

impl CoreReplica {
    pub fn new(group: Group<MetaState>) -> Self {
        let state = group.state();
        let announcement = Announcement::new(&state.roster, state.placement.as_ref());
        Self {
            group,
            requests: BTreeMap::new(),
            answers: BTreeMap::new(),
            catch_up: CatchUp::Behind { asked_at: Time::default() },
            leader_heard: None,
            announcement,
            reported: BTreeMap::new(),
            turned_away: VecDeque::new(),
            has_logged_stopped: false,
        }
    }

    /// Sets the nodes whose version reads snapshots in parts.
    pub fn set_part_readers(&mut self, nodes: BTreeSet<NodeId>) {
        self.group.set_part_readers(nodes);
    }

    pub fn group(&self) -> &Group<MetaState> {
        &self.group
    }

    /// Returns whether the state has all entries committed before this incarnation began.
    pub fn is_caught_up(&self) -> bool {
        self.catch_up == CatchUp::Complete
    }

    /// Returns the node whose replica leads, as far as this core knows.
    pub fn leader(&self) -> Option<NodeId> {
        let status = self.group.status(Time::default());
        let leader = status.leader?;
        status.members.iter().find(|(id, _)| *id == leader).map(|(_, member)| member.node)
    }

    /// Returns whether a majority of the voters was reached recently. For a follower: whether it receives messages of
    /// its leader.
    pub fn has_quorum(&self, now: Time) -> bool {
        let status = self.group.status(now);
        match status.role {
            Role::Leader => {
                status.voters.len() < 2
                    || status.quorum_age.is_some_and(|age| age < QUORUM_AGE_MAX.as_micros() as u64)
            }
            // A replica that cannot win an election keeps its last leader, however old its last message is.
            Role::Follower | Role::Learner => {
                let last_contact = self.leader_heard.filter(|(leader, _)| self.leader() == Some(*leader));
                last_contact.is_some_and(|(_, at)| at.after(QUORUM_AGE_MAX) > now)
            }
            Role::Candidate | Role::Stopped => false,
        }
    }

    pub fn handle_log_event(&mut self, event: LogEvent) {
        match event {
            LogEvent::Durable(group_id, index) => self.group.durable(group_id, index),
            LogEvent::Checkpointed(group_id, index) => self.group.checkpoint_durable(group_id, index),
            LogEvent::PartsDurable(group_id, parts) => self.group.parts_durable(group_id, parts),
            LogEvent::Vacate(vacate) => self.group.vacate(vacate),
            LogEvent::BodiesDurable(..) | LogEvent::Dropped(_) | LogEvent::Full(_) | LogEvent::Room => {}
            LogEvent::Failed(_) => self.group.fail("the disk has failed"),
        }
    }

    /// Returns a request of the replica to read from the log.
    pub fn poll_read(&mut self) -> Option<LogRead> {
        self.group.poll_read()
    }

    pub fn handle_read(&mut self, result: LogReadResult) {
        self.group.handle_read(result);
    }

    /// Handles a frame of another replica.
    pub fn receive(&mut self, now: Time, from: NodeId, frame: &[u8]) {
        self.group.receive(from, frame);
        if self.leader() == Some(from) {
            self.leader_heard = Some((from, now));
        }
    }

    /// Notes that a node's link is up or down: it may have forgotten the roster.
    pub fn link_changed(&mut self, node: NodeId, is_up: bool) {
        self.reported.remove(&node);
        if !is_up {
            self.group.lost(node);
        }
    }

    pub fn turn(&mut self, now: Time) {
        self.group.turn(now);
        let has_requests = !self.requests.is_empty();
        self.answers.extend(self.group.drain_effects().filter(|_| has_requests));
        // The status says who leads.
        while self.group.poll_leadership().is_some() {}
    }

    /// Returns frames for other replicas.
    pub fn poll_frame(&mut self) -> Option<MetaFrame> {
        let transmit = self.group.poll_transmit()?;
        Some(MetaFrame { to: transmit.to, message: OwnedMetaMessage::Replica(transmit.frame) })
    }

    /// Returns the outcome of a request, with its origin, and the answer to a command.
    pub fn poll_outcome(&mut self) -> Option<(Option<RequestOrigin>, Event, Option<Answer>)> {
        let Some(event) = self.group.poll_event() else {
            // The answers to commands of other nodes. An outcome comes in the turn in which its command is applied.
            self.answers.clear();
            return None;
        };
        let answer = match &event.outcome {
            Ok(Outcome::Applied(index)) => self.answers.remove(index),
            _ => None,
        };
        let origin = self.requests.remove(&event.request);
        if origin == Some(RequestOrigin::Barrier) && event.outcome == Ok(Outcome::Readable) {
            self.catch_up = CatchUp::Complete;
        }
        Some((origin, event, answer))
    }

    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Starts a group of this core alone.
    pub fn initialize(&mut self, own: NodeId) {
        let members = [(self.group.id(), consensus::Member { node: own })].into();
        let request = self.group.initialize(members);
        self.requests.insert(request, RequestOrigin::Leader);
    }

    pub fn propose(&mut self, origin: RequestOrigin, command: Vec<u8>) -> RequestId {
        let request = self.group.propose(command, LIMIT);
        self.requests.insert(request, origin);
        request
    }

    pub fn change_members(&mut self, change: Change) -> RequestId {
        let request = self.group.change_members(change, LIMIT);
        self.requests.insert(request, RequestOrigin::Leader);
        request
    }

    /// Transfers leadership to another replica.
    pub fn transfer(&mut self, origin: RequestOrigin, to: ReplicaId) {
        let request = self.group.transfer(to);
        self.requests.insert(request, origin);
    }

    /// Transfers leadership to another core before this one stops. Returns false if this core does not lead.
    pub fn resign(&mut self, now: Time) -> bool {
        let status = self.group.status(now);
        let is_other =
            |other: &&Progress| other.replica != self.group.id() && status.voters.contains(&other.replica);
        let next = status.progress.iter().filter(is_other).max_by_key(|other| other.last);
        let next = next.filter(|_| status.role == Role::Leader);
        next.map(|next| self.transfer(RequestOrigin::Leader, next.replica)).is_some()
    }

    /// Finds out, on a core that has started, whether its state has all committed entries. `has_own_join`: the state
    /// has the Join of this incarnation, and thus all entries before it.
    pub fn catch_up(&mut self, now: Time, status: &Status, has_own_join: bool) {
        let CatchUp::Behind { asked_at } = self.catch_up else { return };
        if asked_at.after(LIMIT / 5) > now && asked_at != Time::default() {
            return;
        }
        if status.role == Role::Leader {
            let request = self.group.read_barrier(LIMIT);
            self.requests.insert(request, RequestOrigin::Barrier);
            self.catch_up = CatchUp::Behind { asked_at: now };
        } else if has_own_join {
            self.catch_up = CatchUp::Complete;
        }
    }

    /// Notes the present roster and placement.
    pub fn announce(&mut self, roster: &Roster, placement: Option<&Placement>) {
        self.announcement = Announcement::new(roster, placement);
    }

    /// Returns the present roster and placement for each linked node that does not have them.
    pub fn announcements(&mut self, link_status: &[LinkStatus]) -> impl Iterator<Item = MetaFrame> {
        let Self { announcement, reported, .. } = self;
        let nodes = link_status.iter().filter(|link_status| link_status.is_up);
        nodes.filter_map(move |link| {
            let (versions, bytes) = announcement.for_node(link.features);
            let last = reported.insert(link.id, versions);
            let is_new = last.unwrap_or_default() != versions;
            is_new.then(|| MetaFrame { to: link.id, message: OwnedMetaMessage::Roster(bytes.clone()) })
        })
    }

    /// Notes that a roster was not sent to a node.
    pub fn roster_unsent(&mut self, to: NodeId) {
        self.reported.remove(&to);
    }

    /// Notes that this leader has not admitted a core.
    pub fn turn_away(&mut self, core: NodeId) {
        self.turned_away.push_back(core);
    }

    /// Returns a core that this leader has not admitted: its version lacks a feature that the log uses.
    pub fn poll_turned_away(&mut self) -> Option<NodeId> {
        self.turned_away.pop_front()
    }

    /// Logs cores that have lost entries.
    pub fn log_forgetful(&mut self, roster: &Roster) {
        while let Some(replica) = self.group.poll_regressed() {
            let core = roster.cores().find(|(_, core)| core.replica == Some(replica));
            let name = core.map_or_else(|| replica.to_string(), |(_, core)| core.info.name.to_string());
            tracing::error!(
                core = %name,
                "this core lacks entries that it had confirmed to have on its disk, and receives them again: its disk, or a layer below, does not keep what it confirms, or its data \
                 directory is an older copy. The agreement of the cores is safe only while the others are intact: replace this core (docs/clustering.md, Replace a core)"
            );
        }
    }

    /// Logs once that the replica has stopped.
    pub fn log_stopped(&mut self, own: &str, status: &Status) {
        if let Some(why) = status.failure.as_ref().filter(|_| !self.has_logged_stopped) {
            tracing::error!(node = %own, "this core takes no part in what the cores agree on any more: {why}");
            self.has_logged_stopped = true;
        }
    }
}
