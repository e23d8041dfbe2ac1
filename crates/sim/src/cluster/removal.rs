//! An operator that removes one node at a time from the cluster, and lets it join again with its disk or an empty one.

use std::collections::BTreeSet;

use cluster::meta::{Command, ProposalId, Roster, State};
use cluster::{Role, RouterCommand};
use consensus::{ReplicaId, Status};
use link::NodeId;
use mqtt::ReasonCode;

use super::operators::FIRST_OTHER_PROPOSAL;
use super::step::Step;
use super::world::SimCluster;
use crate::disk::Machine;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// A node that is being removed.
#[derive(Clone, Copy, Debug)]
pub struct NodeRemoval {
    node: usize,
    since: Micros,
    method: RemovalMethod,
    /// Index of the roster in which it was last seen as a member.
    last_seen_index: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalMethod {
    /// The node was asked to leave.
    Leaves,
    /// The node is off, and is removed when the others have declared it dead.
    Removed,
}

/// Maximum time for which an operator waits.
const PATIENCE: Micros = 25 * SECOND;

impl SimCluster {
    pub(super) fn operate_membership(&mut self) {
        match self.removal.take() {
            Some(removal) => self.continue_removal(removal),
            None if self.cx.random.percent(6) => self.start_removal(),
            None => {}
        }
    }

    fn start_removal(&mut self) {
        let Some(roster) = self.last_roster() else { return };
        let members = (0..self.members.len()).filter(|node| roster.members.contains_key(&self.id_of(*node)));
        let (cores, replicants): (Vec<usize>, Vec<usize>) =
            members.partition(|node| self.plan.nodes[*node].role == Role::Core);
        let last_seen_index = roster.index;
        let among = if cores.len() < 3 || self.cx.random.percent(20) { replicants } else { cores };
        let among: Vec<usize> =
            among.into_iter().filter(|node| !self.members[*node].in_long_outage).collect();
        if among.is_empty() {
            return;
        }
        let node = *self.cx.random.pick(&among);
        let method = *self.cx.random.pick(&[RemovalMethod::Leaves, RemovalMethod::Removed]);
        self.cx.log(|| format!("operator: removes n{node}: {method:?}"));
        match method {
            RemovalMethod::Leaves => self.request_leave(node),
            RemovalMethod::Removed => self.switch_off(node),
        }
        self.removal = Some(NodeRemoval { node, since: self.cx.now(), method, last_seen_index });
    }

    fn continue_removal(&mut self, removal: NodeRemoval) {
        let NodeRemoval { node, since, method, last_seen_index } = removal;
        if self.is_removed(node, last_seen_index) {
            let report = &mut self.cx.report;
            match (method, self.plan.nodes[node].role) {
                (_, Role::Replicant) => report.cluster_replicants_removed += 1,
                (RemovalMethod::Leaves, _) => report.cluster_cores_left += 1,
                (RemovalMethod::Removed, _) => report.cluster_cores_removed += 1,
            }
            self.switch_off(node);
            self.members[node].owed_from = usize::MAX;
            if self.cx.random.percent(50) {
                self.empty_disk(node);
            }
            return self.switch_on(node);
        }
        if since + PATIENCE < self.cx.now() {
            self.switch_off(node);
            return self.switch_on(node);
        }
        if method == RemovalMethod::Removed {
            self.remove_dead(node);
        }
        self.removal = Some(removal);
    }

    /// Asks a random node that knows it as dead to remove it.
    fn remove_dead(&mut self, node: usize) {
        let asked = self.cx.random.below(self.members.len());
        let Some(process) = &self.members[asked].process else { return };
        let id = self.id_of(node);
        let known = process.router.meta().roster().members.get(&id);
        let Some(known) = known.filter(|known| known.state == State::Dead) else { return };
        let command = Command::Remove(id, Some(known.incarnation));
        self.send_command(asked, RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), command));
    }

    /// Asks for another leader, or for a new distribution of replicants.
    pub(super) fn move_leader_or_replicants(&mut self) {
        let random = &mut self.cx.random;
        let (asked, wanted) = (random.below(self.members.len()), random.below(self.members.len()));
        match random.below(100) {
            0..5 => {
                self.send_command(
                    asked,
                    RouterCommand::Proposal(
                        ProposalId(FIRST_OTHER_PROPOSAL),
                        Command::Lead(self.id_of(wanted)),
                    ),
                );
                self.cx.report.cluster_leader_transfers += 1;
            }
            5..10 => self.send_command(asked, RouterCommand::Balance),
            _ => {}
        }
    }

    fn send_command(&mut self, node: usize, command: RouterCommand) {
        if self.members[node].stopped > self.cx.now() {
            return;
        }
        let Some(process) = &mut self.members[node].process else { return };
        process.router.handle_command(process.time(&self.cx), command);
        process.wake(&mut self.cx, 10);
    }

    /// Asks the node to leave like the product does: it disconnects its clients first.
    fn request_leave(&mut self, node: usize) {
        let member = &mut self.members[node];
        if member.stopped > self.cx.now() {
            return;
        }
        member.leaves = true;
        if let Some(process) = &member.process {
            process.node.broker().close_clients(ReasonCode::ServerBusy);
        }
        self.send_command(node, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    }

    fn switch_off(&mut self, node: usize) {
        self.members[node].is_switched_off = true;
        self.kill(node, false);
    }

    fn switch_on(&mut self, node: usize) {
        self.members[node].is_switched_off = false;
        let time = self.cx.between(10 * MILLI, 4 * SECOND);
        self.cx.after(time, Event::SimCluster(Step::Start { node }));
    }

    /// Replaces the machine by an empty one, unless a client would lose its session.
    pub(super) fn empty_disk(&mut self, node: usize) {
        if self.clients.iter().any(|client| client.home() == Some(node)) {
            return;
        }
        // The clock of the old machine may have been ahead, and its record of that is lost.
        let is_set_back = self.cx.random.percent(50);
        self.cx.log(|| format!("operator: n{node} has an empty disk, its clock is set back: {is_set_back}"));
        let member = &mut self.members[node];
        if is_set_back {
            (member.incarnation, member.set_back) = (0, member.set_back + 1);
        }
        member.machine.count(&mut self.cx);
        member.machine = Machine::new(self.cx.random.draw());
        // The new log has another identity: under the old one, the replica could vote twice.
        member.setup.entropy.iter_mut().for_each(|byte| *byte = self.cx.random.draw() as u8);
        member.copy = configstore::Copy::default();
        self.oracle.loses_disk(node);
        self.cx.report.cluster_disks_emptied += 1;
        self.cx.report.cluster_clocks_set_back += u64::from(is_set_back);
    }

    /// Ends a removal at the end of the faults.
    pub(super) fn cancel_removal(&mut self) {
        if let Some(removal) = self.removal.take() {
            self.switch_off(removal.node);
            self.members[removal.node].is_switched_off = false;
        }
    }

    /// Switches a node off for long, when the others can work without it.
    pub(super) fn begin_long_outage(&mut self, node: usize) {
        if self.is_healing {
            return;
        }
        if !self.can_do_without(node) {
            return self.cx.after(SECOND, Event::SimCluster(Step::BeginLongOutage { node }));
        }
        self.members[node].in_long_outage = true;
        self.oracle.absent_node = Some(node);
        self.kill(node, false);
    }

    /// Returns whether a node is a member, and the other cores have a majority without it. During a change of the
    /// cores, a single one may have the only vote.
    fn can_do_without(&self, node: usize) -> bool {
        let known = self.members.iter().filter_map(|member| {
            let process = member.process.as_ref()?;
            let meta = process.router.meta();
            Some((meta.roster(), meta.status(process.time(&self.cx))?))
        });
        let known: Vec<(&Roster, Status)> = known.map(|(roster, status)| (&**roster, status)).collect();
        let Some(voters) =
            known.iter().max_by_key(|(roster, _)| roster.index).map(|(_, known)| &known.voters)
        else {
            return false;
        };
        let is_settled = |(roster, status): &(&Roster, Status)| {
            let cores = roster.cores().filter(|(_, core)| core.state == State::Alive);
            let cores: BTreeSet<ReplicaId> = cores.filter_map(|(_, core)| core.replica).collect();
            !status.is_changing && status.voters == *voters && voters.is_subset(&cores)
        };
        let is_whole =
            voters.len() > 2 && known.iter().filter(|known| is_settled(known)).count() >= voters.len();
        let is_member = |(roster, _): &(&Roster, Status)| roster.members.contains_key(&self.id_of(node));
        let is_core = self.plan.nodes[node].role == Role::Core;
        known.iter().any(is_member) && (!is_core || is_whole && self.removal.is_none())
    }

    /// Returns whether the last incarnation of a node that is off was a member.
    pub(super) fn was_member(&self, node: usize) -> bool {
        let known = self.last_roster().and_then(|roster| roster.members.get(&self.id_of(node)));
        known.is_some_and(|known| known.incarnation >= self.members[node].last_incarnation)
    }

    /// Starts a node again after its long outage.
    pub(super) fn end_long_outage(&mut self, node: usize) {
        self.cx.log(|| format!("n{node} comes back"));
        self.members[node].in_long_outage = false;
        (self.oracle.absent_node, self.oracle.is_settled) = (None, false);
        self.cx.after(0, Event::SimCluster(Step::Start { node }));
    }

    /// Nodes without a long outage.
    pub(super) fn available_nodes(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|node| !self.members[*node].in_long_outage).collect()
    }

    /// Returns whether the latest roster lacks a node. Only rosters later than `last_seen_index` count: a restarted
    /// node may know an older one, or none.
    fn is_removed(&self, node: usize, last_seen_index: u64) -> bool {
        let last = self.last_roster().filter(|roster| roster.index > last_seen_index);
        last.is_some_and(|roster| !roster.members.contains_key(&self.id_of(node)))
    }

    /// Latest roster of all nodes.
    fn last_roster(&self) -> Option<&Roster> {
        let processes = self.members.iter().filter_map(|member| member.process.as_ref());
        processes.map(|process| &**process.router.meta().roster()).max_by_key(|roster| roster.index)
    }

    pub(super) fn id_of(&self, node: usize) -> NodeId {
        NodeId::of_name(&self.plan.nodes[node].name)
    }
}
