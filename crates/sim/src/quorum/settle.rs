//! Checks of a consensus group after the last fault.

use consensus::{Role, Status};
use link::Time;

use super::world::Quorum;
use crate::schedule::{Micros, SECOND};

/// Maximum time until a group works again after the last fault.
const PATIENCE: Micros = 120 * SECOND;

impl Quorum {
    pub(super) fn settle(&mut self) {
        self.is_calm = true;
        self.cx.log(|| "everything works".into());
        for host in 0..self.hosts.len() {
            let at = &mut self.hosts[host];
            at.disk.catch_up();
            at.disk.set_plan(storage::fault::FaultPlan::default());
            if let Some(replica) = &mut at.replica {
                replica.paused_until = 0;
            }
            let has_failed = at.replica.as_ref().is_some_and(|replica| replica.has_failed);
            if has_failed {
                self.kill(host, 1);
            }
            self.turn(host);
        }
        let (until, before) = (self.cx.now() + PATIENCE, self.oracle.last_confirmed());
        while !self.is_settled(before) {
            assert!(self.cx.now() < until, "no agreement: {:?}", self.all());
            let next = self.cx.now() + SECOND;
            self.pass(next);
        }
        let members: Vec<usize> = self.wanted_voters.iter().copied().collect();
        for host in members {
            let Some(replica) = &self.hosts[host].replica else { continue };
            self.oracle.settled(&mut self.cx.report, replica.group.id(), &replica.group.state().entries);
        }
    }

    /// Returns whether the voters are the wanted ones, one of them leads, and all have the same entries, including a
    /// proposal made after the last fault.
    fn is_settled(&mut self, before: u64) -> bool {
        let Some(leader) = self.leader() else { return false };
        let statuses = self.all();
        let Some(status) = statuses[leader].clone() else { return false };
        let wanted_voters = self.wanted_voters.iter().map(|at| self.hosts[*at].id).collect();
        if status.voters != wanted_voters || status.is_changing || status.role != Role::Leader {
            return false;
        }
        let confirmed = self.oracle.last_confirmed();
        self.wanted_voters.iter().all(|at| {
            statuses[*at]
                .as_ref()
                .is_some_and(|other| other.applied >= Some(confirmed) && other.term == status.term)
        }) && confirmed > before
    }

    fn all(&self) -> Vec<Option<Status>> {
        let now = Time(self.cx.now());
        self.hosts.iter().map(|host| Some(host.replica.as_ref()?.group.status(now))).collect()
    }
}
