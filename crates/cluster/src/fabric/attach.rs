//! Which core a replicant hears from, and what this node asks its peers for.

use link::{NodeId, Time};
use replog::Position;

use super::Fabric;
use crate::config::Role;

impl Fabric {
    /// Chooses a core when there is none, and asks peers for what is to be heard from them now.
    pub(super) fn attach(&mut self, now: Time) {
        if self.config.own.role == Role::Replicant {
            let is_up = |id: &NodeId| self.peers.get(id).is_some_and(|peer| peer.is_up);
            if !self.attached.as_ref().is_some_and(is_up) {
                let next = self.best_core();
                if next != self.attached {
                    self.attached = next;
                    self.core_knows = Position::default();
                }
            }
        }
        let is_changed = |id: &NodeId| {
            self.peers
                .get(id)
                .is_some_and(|peer| peer.is_up && peer.asked != Some(self.wants_from(*id, peer)))
        };
        let changed: Vec<NodeId> = self.peers.keys().copied().filter(is_changed).collect();
        for id in changed {
            self.say_hello(now, id);
        }
    }

    /// Of the cores that are there one of the same region first, then that with the fewest replicants, then by chance that is the same
    /// for this node each time.
    fn best_core(&self) -> Option<NodeId> {
        let cores = self.peers.iter().filter(|(_, peer)| peer.is_core() && peer.is_up);
        let order = |(id, peer): &(&NodeId, &crate::peer::Peer)| {
            (peer.info.region != self.config.own.region, peer.load, id.0 ^ self.own.0)
        };
        cores.min_by_key(order).map(|(id, _)| *id)
    }
}
