//! An operator takes a core out of the cluster, one at a time, and has it join again, with its disk or with an empty one.

use cluster::meta::{Command, Roster, State, WishId};
use cluster::{Letter, Role};
use link::NodeId;
use mqtt::ReasonCode;

use super::operators::ORDERS;
use super::step::Step;
use super::world::Fleet;
use crate::disk::Machine;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// A core on its way out.
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
    pub(super) fn take_cores_out(&mut self) {
        match self.outgoing.take() {
            Some(outgoing) => self.go_on_with(outgoing),
            None if self.cx.random.percent(6) => self.take_core_out(),
            None => {}
        }
    }

    fn take_core_out(&mut self) {
        let cores = (0..self.members.len()).filter(|node| self.plan.nodes[*node].role == Role::Core);
        let Some(roster) = self.last_roster() else { return };
        let cores: Vec<usize> =
            cores.filter(|node| roster.members.contains_key(&self.id_of(*node))).collect();
        let seen_in = roster.index;
        if cores.len() < 3 {
            return;
        }
        let node = *self.cx.random.pick(&cores);
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
            match way {
                Way::Leaves => self.cx.report.fleet_cores_left += 1,
                Way::Removed => self.cx.report.fleet_cores_removed += 1,
            }
            self.switch_off(node);
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

    fn order(&mut self, node: usize, letter: Letter) {
        let Some(process) = &mut self.members[node].process else { return };
        process.fabric.letter(process.time(&self.cx), letter);
        process.wake(&mut self.cx, 10);
    }

    /// As the product does when it is told: its clients go first.
    fn tell_to_leave(&mut self, node: usize) {
        let member = &mut self.members[node];
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
        self.cx.say(|| format!("operator: n{node} has an empty disk"));
        let member = &mut self.members[node];
        member.machine.count(&mut self.cx);
        member.machine = Machine::new(self.cx.random.draw());
        // Another log: who took it for the one before would vote twice.
        member.setup.entropy.iter_mut().for_each(|byte| *byte = self.cx.random.draw() as u8);
        member.copy = registry::Copy::default();
        self.oracle.loses_disk(node);
        self.cx.report.fleet_disks_emptied += 1;
    }

    /// Nobody is on the way out any more.
    pub(super) fn end_taking_out(&mut self) {
        if let Some(outgoing) = self.outgoing.take() {
            self.switch_off(outgoing.node);
            self.members[outgoing.node].is_off = false;
        }
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

    fn id_of(&self, node: usize) -> NodeId {
        NodeId::of_name(&self.plan.nodes[node].name)
    }
}
