//! Attachment of a replicant to a core, and the scopes that this node requests from its peers.

use link::{Lane, NodeId, Time};
use replog::Position;

use super::ClusterRouter;
use crate::config::Role;
use crate::mutation::{Mutation, mutated};
use crate::peer::Peer;
use crate::wire::PeerMessage;

impl ClusterRouter {
    /// Chooses a core if there is none, and requests the present scope from each peer.
    pub(super) fn attach(&mut self, now: Time) {
        // Other nodes take the position in this node's first hello as the end of its earlier interest.
        if !self.has_begun && self.node.has_begun() {
            self.routes_changed();
            self.has_begun = true;
        }
        if self.rebalance_at.take_if(|at| *at <= now).is_some() {
            self.rebalance();
        }
        if self.config.own.role == Role::Replicant {
            let serves = |id: &NodeId| self.peers.get(id).is_some_and(serves);
            if !self.attached.as_ref().is_some_and(serves) {
                self.attach_to(self.best_core());
            }
        }
        self.event_log.attached(now, self.attached);
        let is_changed = |(id, peer): &(&NodeId, &Peer)| {
            peer.is_up && peer.requested_scope != Some(self.wants_from(**id, peer))
        };
        let changed: Vec<NodeId> = self.peers.iter().filter(is_changed).map(|(id, _)| *id).collect();
        for id in changed {
            self.send_hello(now, id);
        }
    }

    /// Spreads the replicants evenly over the cores, within their regions where possible. All nodes that get the
    /// request compute the same result.
    pub(super) fn balance(&mut self, now: Time) {
        let replicants = self.peers.iter().filter(|(_, peer)| !peer.is_core() && peer.is_up);
        let replicants: Vec<NodeId> = replicants.map(|(id, _)| *id).collect();
        for id in replicants {
            // A peer whose link has no room is missed until the operator asks again.
            self.send_message(now, id, Lane::CONTROL, &PeerMessage::Balance);
        }
        self.rebalance();
    }

    /// Attaches this replicant to the core that it is assigned to when all are spread evenly.
    pub(super) fn rebalance(&mut self) {
        if self.config.own.role != Role::Replicant {
            return;
        }
        let up = || self.peers.iter().filter(|(_, peer)| peer.is_up);
        let has_core = |region: &str| up().any(|(_, peer)| serves(peer) && *peer.info.region == *region);
        let own = &*self.config.own.region;
        let is_served = has_core(own);
        let in_place = |region: &str| if is_served { region == own } else { !has_core(region) };
        let replicants = up().filter(|(_, peer)| !peer.is_core() && in_place(&peer.info.region));
        let rank = replicants.filter(|(id, _)| **id < self.own).count();
        let cores = up().filter(|(_, peer)| serves(peer) && (!is_served || *peer.info.region == *own));
        let cores: Vec<NodeId> = cores.map(|(id, _)| *id).collect();
        if let Some(core) = cores.get(rank % cores.len().max(1)) {
            self.attach_to(Some(*core));
        }
    }

    fn attach_to(&mut self, core: Option<NodeId>) {
        if core != self.attached {
            self.attached = core;
            self.attached_core_forgets();
        }
    }

    /// Notes that the core has changed or restarted: its knowledge of this node's changes is void.
    pub(super) fn attached_core_forgets(&mut self) {
        self.core_knows = Position::default();
        self.region_knows = Position::default();
        self.asked_region = Position::default();
    }

    /// Returns the best core. Among reachable ones, cores that are not declared dead come first, then cores of the same
    /// region, then those with the fewest replicants. Ties are broken by a hash that is constant for this node.
    fn best_core(&self) -> Option<NodeId> {
        let cores = self.peers.iter().filter(|(_, peer)| peer.is_core() && peer.is_up);
        let order = |(id, peer): &(&NodeId, &Peer)| {
            (!serves(peer), peer.info.region != self.config.own.region, peer.load, id.0 ^ self.own.0)
        };
        cores.min_by_key(order).map(|(id, _)| *id)
    }
}

/// Returns whether a replicant may rely on a peer to pass changes both ways. A peer that the cores have declared dead
/// may be reachable from this node alone.
fn serves(peer: &Peer) -> bool {
    peer.is_core() && peer.is_up && (peer.dead.is_none() || mutated(Mutation::StayAttached))
}
