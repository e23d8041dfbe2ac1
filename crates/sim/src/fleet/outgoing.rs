//! An operator takes a node out of the cluster, one at a time, and has it join again, with its disk or with an empty one.

use std::collections::BTreeSet;

use cluster::meta::{Command, Roster, State, WishId};
use cluster::{Letter, Role};
use consensus::{ReplicaId, Status};
use link::NodeId;
use mqtt::ReasonCode;

use super::operators::ORDERS;
use super::step::Step;
use super::world::Fleet;
use crate::disk::Machine;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// A node on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    node: usize,
    since: Micros,
    way: Way,
    /// The roster in which it was last seen as a member.
    seen_in: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It was told to leave.
    Leaves,
    /// It is off, and is removed when it is dead for the others.
    Removed,
}

/// Longer than that an operator does not wait.
const PATIENCE: Micros = 25 * SECOND;

impl Fleet {
    pub(super) fn take_nodes_out(&mut self) {
        match self.outgoing.take() {
            Some(outgoing) => self.go_on_with(outgoing),
            None if self.cx.random.percent(6) => self.take_node_out(),
            None => {}
        }
    }

    fn take_node_out(&mut self) {
        let Some(roster) = self.last_roster() else { return };
        let members = (0..self.members.len()).filter(|node| roster.members.contains_key(&self.id_of(*node)));
        let (cores, replicants): (Vec<usize>, Vec<usize>) =
            members.partition(|node| self.plan.nodes[*node].role == Role::Core);
        let seen_in = roster.index;
        let among = if cores.len() < 3 || self.cx.random.percent(20) { replicants } else { cores };
        let among: Vec<usize> = among.into_iter().filter(|node| !self.members[*node].is_gone).collect();
        if among.is_empty() {
            return;
        }
        let node = *self.cx.random.pick(&among);
        let way = *self.cx.random.pick(&[Way::Leaves, Way::Removed]);
        self.cx.say(|| format!("operator: takes n{node} out: {way:?}"));
        match way {
            Way::Leaves => self.tell_to_leave(node),
            Way::Removed => self.switch_off(node),
        }
        self.outgoing = Some(Outgoing { node, since: self.cx.now(), way, seen_in });
    }

    fn go_on_with(&mut self, outgoing: Outgoing) {
        let Outgoing { node, since, way, seen_in } = outgoing;
        if self.is_out(node, seen_in) {
            let report = &mut self.cx.report;
            match (way, self.plan.nodes[node].role) {
                (_, Role::Replicant) => report.fleet_replicants_out += 1,
                (Way::Leaves, _) => report.fleet_cores_left += 1,
                (Way::Removed, _) => report.fleet_cores_removed += 1,
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
        if way == Way::Removed {
            self.remove_dead(node);
        }
        self.outgoing = Some(outgoing);
    }

    /// Some node that knows it to be dead is told to remove it.
    fn remove_dead(&mut self, node: usize) {
        let asked = self.cx.random.below(self.members.len());
        let Some(process) = &self.members[asked].process else { return };
        let id = self.id_of(node);
        let known = process.fabric.meta().and_then(|meta| meta.roster().members.get(&id));
        let Some(known) = known.filter(|known| known.state == State::Dead) else { return };
        let command = Command::Remove(id, Some(known.incarnation));
        self.order(asked, Letter::Wish(WishId(ORDERS), command));
    }

    /// Another core is to lead, or replicants are to be spread anew.
    pub(super) fn move_things(&mut self) {
        let random = &mut self.cx.random;
        let (asked, wanted) = (random.below(self.members.len()), random.below(self.members.len()));
        match random.below(100) {
            0..5 => {
                self.order(asked, Letter::Wish(WishId(ORDERS), Command::Lead(self.id_of(wanted))));
                self.cx.report.fleet_leads_moved += 1;
            }
            5..10 => self.order(asked, Letter::Balance),
            _ => {}
        }
    }

    fn order(&mut self, node: usize, letter: Letter) {
        if self.members[node].stopped > self.cx.now() {
            return;
        }
        let Some(process) = &mut self.members[node].process else { return };
        process.fabric.letter(process.time(&self.cx), letter);
        process.wake(&mut self.cx, 10);
    }

    /// As the product does when it is told: its clients go first.
    fn tell_to_leave(&mut self, node: usize) {
        let member = &mut self.members[node];
        if member.stopped > self.cx.now() {
            return;
        }
        member.leaves = true;
        if let Some(process) = &member.process {
            process.node.broker().close_clients(ReasonCode::ServerBusy);
        }
        self.order(node, Letter::Leave(WishId(ORDERS)));
    }

    fn switch_off(&mut self, node: usize) {
        self.members[node].is_off = true;
        self.kill(node, false);
    }

    fn switch_on(&mut self, node: usize) {
        self.members[node].is_off = false;
        let time = self.cx.between(10 * MILLI, 4 * SECOND);
        self.cx.after(time, Event::Fleet(Step::Start { node }));
    }

    /// Another machine takes the place, where no client's session is lost by that.
    pub(super) fn empty_disk(&mut self, node: usize) {
        if self.clients.iter().any(|client| client.home() == Some(node)) {
            return;
        }
        // Its clock may have been ahead, and what said by how much is lost.
        let is_set_back = self.cx.random.percent(50);
        self.cx.say(|| format!("operator: n{node} has an empty disk, its clock is set back: {is_set_back}"));
        let member = &mut self.members[node];
        if is_set_back {
            (member.incarnation, member.set_back) = (0, member.set_back + 1);
        }
        member.machine.count(&mut self.cx);
        member.machine = Machine::new(self.cx.random.draw());
        // Another log: who took it for the one before would vote twice.
        member.setup.entropy.iter_mut().for_each(|byte| *byte = self.cx.random.draw() as u8);
        member.copy = registry::Copy::default();
        self.oracle.loses_disk(node);
        self.cx.report.fleet_disks_emptied += 1;
        self.cx.report.fleet_clocks_set_back += u64::from(is_set_back);
    }

    /// Nobody is on the way out any more.
    pub(super) fn end_taking_out(&mut self) {
        if let Some(outgoing) = self.outgoing.take() {
            self.switch_off(outgoing.node);
            self.members[outgoing.node].is_off = false;
        }
    }

    /// A node is switched off for long, when the others can do without it.
    pub(super) fn goes(&mut self, node: usize) {
        if self.is_healing {
            return;
        }
        if !self.can_do_without(node) {
            return self.cx.after(SECOND, Event::Fleet(Step::Go { node }));
        }
        self.members[node].is_gone = true;
        self.oracle.gone = Some(node);
        self.kill(node, false);
    }

    /// Whether a node is a member, and the other cores will agree on something without it: while one of them is on its way out, or in, a single
    /// core may have the only vote.
    fn can_do_without(&self, node: usize) -> bool {
        let known = self.members.iter().filter_map(|member| {
            let process = member.process.as_ref()?;
            let meta = process.fabric.meta()?;
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
        known.iter().any(is_member) && (!is_core || is_whole && self.outgoing.is_none())
    }

    /// Whether the last life of a node that is off was a member.
    pub(super) fn was_member(&self, node: usize) -> bool {
        let known = self.last_roster().and_then(|roster| roster.members.get(&self.id_of(node)));
        known.is_some_and(|known| known.incarnation >= self.members[node].ended_as)
    }

    /// Somebody starts it again.
    pub(super) fn comes_back(&mut self, node: usize) {
        self.cx.say(|| format!("n{node} comes back"));
        self.members[node].is_gone = false;
        (self.oracle.gone, self.oracle.is_settled) = (None, false);
        self.cx.after(0, Event::Fleet(Step::Start { node }));
    }

    /// The nodes that are not gone for long.
    pub(super) fn there(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|node| !self.members[*node].is_gone).collect()
    }

    /// Whether a node is no member any more, as those know who know most. Who began anew may know less than what was seen before, or
    /// nothing.
    fn is_out(&self, node: usize, seen_in: u64) -> bool {
        let last = self.last_roster().filter(|roster| roster.index > seen_in);
        last.is_some_and(|roster| !roster.members.contains_key(&self.id_of(node)))
    }

    /// What those know who know most.
    fn last_roster(&self) -> Option<&Roster> {
        let metas = self.members.iter().filter_map(|member| member.process.as_ref()?.fabric.meta());
        metas.map(|meta| &**meta.roster()).max_by_key(|roster| roster.index)
    }

    pub(super) fn id_of(&self, node: usize) -> NodeId {
        NodeId::of_name(&self.plan.nodes[node].name)
    }
}
