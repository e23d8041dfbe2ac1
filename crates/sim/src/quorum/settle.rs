//! Nothing goes wrong any more: what must be true then.

use consensus::{Role, Status};
use link::Time;

use super::world::Quorum;
use crate::schedule::{Micros, SECOND};

/// A group comes to an agreement within this time, once everything works.
const PATIENCE: Micros = 120 * SECOND;

impl Quorum {
    pub(super) fn settle(&mut self) {
        self.is_calm = true;
        self.cx.say(|| "everything works".into());
        for place in 0..self.places.len() {
            let at = &mut self.places[place];
            at.disk.catch_up();
            at.disk.set_plan(storage::fault::FaultPlan::default());
            if let Some(replica) = &mut at.replica {
                replica.paused_until = 0;
            }
            let has_failed = at.replica.as_ref().is_some_and(|replica| replica.has_failed);
            if has_failed {
                self.kill(place, 1);
            }
            self.turn(place);
        }
        let (until, before) = (self.cx.now() + PATIENCE, self.oracle.told_last());
        while !self.is_settled(before) {
            assert!(self.cx.now() < until, "no agreement: {:?}", self.all());
            let next = self.cx.now() + SECOND;
            self.pass(next);
        }
        let members: Vec<usize> = self.wanted.iter().copied().collect();
        for place in members {
            let Some(replica) = &self.places[place].replica else { continue };
            self.oracle.settled(&mut self.cx.report, replica.group.id(), &replica.group.state().entries);
        }
    }

    /// The members are those that are wanted, one leads, and all have what it has; it has what was proposed since everything works.
    fn is_settled(&mut self, before: u64) -> bool {
        let Some(leader) = self.leader() else { return false };
        let statuses = self.all();
        let Some(status) = statuses[leader].clone() else { return false };
        let wanted = self.wanted.iter().map(|at| self.places[*at].id).collect();
        if status.voters != wanted || status.is_changing || status.role != Role::Leader {
            return false;
        }
        let told = self.oracle.told_last();
        self.wanted.iter().all(|at| {
            statuses[*at]
                .as_ref()
                .is_some_and(|other| other.applied >= Some(told) && other.term == status.term)
        }) && told > before
    }

    fn all(&self) -> Vec<Option<Status>> {
        let now = Time(self.cx.now());
        self.places.iter().map(|place| Some(place.replica.as_ref()?.group.status(now))).collect()
    }
}
