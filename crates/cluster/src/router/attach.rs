//! Attachment of a replicant to a core, and the scopes that this node requests from its peers.

use link::{Lane, NodeId, Time};
use replog::Position;

use super::ClusterRouter;
use crate::config::Role;
use crate::peer::Peer;
use crate::peers::Peers;
use crate::wire::PeerMessage;

/// Attachment of a replicant to a core, and what that core knows of the replicant's changes. A core is attached to
/// none.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    core: Option<NodeId>,
    /// Time of the first rebalancing: a new member is first attached to the core that it met first.
    rebalance_at: Option<Time>,
    /// Position of this node's changes that the core knows.
    core_knows: Position,
    /// Position of this node's changes that all nodes of its region know, according to the core.
    region_knows: Position,
    /// Position of this node's changes that the core was last asked about for the region.
    asked: Position,
}

impl Attachment {
    pub fn core(&self) -> Option<NodeId> {
        self.core
    }

    pub fn is_to(&self, node: NodeId) -> bool {
        self.core == Some(node)
    }

    /// Attaches this node to a core, or to none.
    pub fn attach(&mut self, core: Option<NodeId>) {
        if core != self.core {
            self.core = core;
            self.core_forgets();
        }
    }

    /// Ends the attachment to a node that is no longer a member.
    pub fn detach(&mut self, node: NodeId) {
        self.core.take_if(|core| *core == node);
    }

    /// Notes that the core, or this node, has a new incarnation: what the core knew is void.
    pub fn core_forgets(&mut self) {
        self.core_knows = Position::default();
        self.region_knows = Position::default();
        self.asked = Position::default();
    }

    /// Schedules a rebalancing.
    pub fn rebalance_at(&mut self, at: Time) {
        self.rebalance_at = Some(at);
    }

    /// Returns whether a rebalancing is due. Returns true only once.
    pub fn take_rebalance(&mut self, now: Time) -> bool {
        self.rebalance_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns the time of the next rebalancing.
    pub fn due(&self) -> Time {
        self.rebalance_at.unwrap_or(Time::NEVER)
    }

    /// Notes that a node knows this node's changes up to a position. It counts if this node is attached to that node.
    pub fn known_by_core(&mut self, node: NodeId, position: Position) {
        if self.is_to(node) {
            self.core_knows = position.max(self.core_knows);
        }
    }

    /// Notes that the region knows this node's changes up to a position, according to a node. It counts if this node
    /// is attached to that node.
    pub fn known_in_region(&mut self, node: NodeId, position: Position) {
        if self.is_to(node) {
            self.region_knows = position.max(self.region_knows);
        }
    }

    /// Returns the position of this node's changes that the core knows.
    pub fn core_knows(&self) -> Position {
        self.core_knows
    }

    /// Returns the position of this node's changes that its region knows.
    pub fn region_knows(&self) -> Position {
        self.region_knows
    }

    /// Returns the core that must be asked about a position for the region, once.
    pub fn ask_about_region(&mut self, wanted: Position) -> Option<(NodeId, Position)> {
        let core = self.core.filter(|_| self.asked < wanted)?;
        self.asked = wanted;
        Some((core, wanted))
    }

    /// Notes that the core may have missed or forgotten the last request about the region.
    pub fn ask_again(&mut self) {
        self.asked = Position::default();
    }
}

impl ClusterRouter {
    /// Chooses a core if there is none, and requests the present scope from each peer.
    pub(super) fn attach(&mut self, now: Time) {
        // Other nodes take the position in this node's first hello as the end of its earlier interest.
        if !self.routes.has_begun() && self.node.has_begun() {
            self.routes_changed();
            self.routes.begin();
        }
        if self.attachment.take_rebalance(now) {
            self.rebalance();
        }
        if self.config.own.role == Role::Replicant {
            let serves = |id: NodeId| self.peers.get(&id).is_some_and(Peer::serves);
            if !self.attachment.core().is_some_and(serves) {
                self.attachment.attach(self.peers.best_core(self.own, &self.config.own.region));
            }
        }
        self.event_log.attached(now, self.attachment.core());
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
        if let Some(core) = self.peers.assigned_core(self.own, &self.config.own.region) {
            self.attachment.attach(Some(core));
        }
    }
}

impl Peers {
    /// Returns the core that a replicant of a region is assigned to when all are spread evenly.
    fn assigned_core(&self, own: NodeId, own_region: &str) -> Option<NodeId> {
        let up = || self.iter().filter(|(_, peer)| peer.is_up);
        let has_core = |region: &str| up().any(|(_, peer)| peer.serves() && *peer.info.region == *region);
        let is_served = has_core(own_region);
        let in_place = |region: &str| if is_served { region == own_region } else { !has_core(region) };
        let replicants = up().filter(|(_, peer)| !peer.is_core() && in_place(&peer.info.region));
        let rank = replicants.filter(|(id, _)| **id < own).count();
        let cores =
            up().filter(|(_, peer)| peer.serves() && (!is_served || *peer.info.region == *own_region));
        let cores: Vec<NodeId> = cores.map(|(id, _)| *id).collect();
        cores.get(rank % cores.len().max(1)).copied()
    }

    /// Returns the best core for a replicant of a region. Among reachable ones, cores that are not declared dead come
    /// first, then cores of the same region, then those with the fewest replicants. Ties are broken by a hash that is
    /// constant for the replicant.
    fn best_core(&self, own: NodeId, own_region: &str) -> Option<NodeId> {
        let cores = self.iter().filter(|(_, peer)| peer.is_core() && peer.is_up);
        let order = |(id, peer): &(&NodeId, &Peer)| {
            (!peer.serves(), *peer.info.region != *own_region, peer.load, id.0 ^ own.0)
        };
        cores.min_by_key(order).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeInfo;

    const CORES: [NodeId; 2] = [NodeId(1), NodeId(2)];

    /// Returns reachable peers with their regions.
    fn peers(peers: &[(u64, Role, &str)]) -> Peers {
        let mut all = Peers::default();
        for (id, role, region) in peers {
            let info =
                NodeInfo { name: "n".into(), role: *role, region: (*region).into(), address: "a".into() };
            all.add(Time(0), NodeId(*id), info).is_up = true;
        }
        all
    }

    #[test]
    fn replicants_are_spread_over_the_cores_of_their_region() {
        let all = [
            (1, Role::Core, "east"),
            (2, Role::Core, "west"),
            (3, Role::Core, "west"),
            (11, Role::Replicant, "west"),
            (12, Role::Replicant, "west"),
            (13, Role::Replicant, "north"),
        ];
        let assigned = |own: u64, region: &str| {
            let others: Vec<_> = all.into_iter().filter(|(id, ..)| *id != own).collect();
            peers(&others).assigned_core(NodeId(own), region).map(|core| core.0)
        };
        assert_eq!([assigned(11, "west"), assigned(12, "west")], [Some(2), Some(3)]);
        assert_eq!(assigned(13, "north"), Some(1), "no core of that region is reachable");
        assert_eq!(peers(&[]).assigned_core(NodeId(11), "west"), None);
    }

    #[test]
    fn the_best_core_is_alive_and_near_and_has_the_fewest_replicants() {
        let mut peers = peers(&[(1, Role::Core, "east"), (2, Role::Core, "west"), (3, Role::Core, "west")]);
        let best = |peers: &Peers| peers.best_core(NodeId(8), "west").map(|core| core.0);
        peers.get_mut(&NodeId(2)).unwrap().load = 5;
        assert_eq!(best(&peers), Some(3));
        peers.get_mut(&NodeId(3)).unwrap().is_up = false;
        assert_eq!(best(&peers), Some(2));
        peers.get_mut(&NodeId(2)).unwrap().dead = Some(replog::Incarnation(1));
        assert_eq!(best(&peers), Some(1));
    }

    #[test]
    fn what_one_core_knows_does_not_count_for_the_next() {
        let mut attachment = Attachment::default();
        attachment.attach(Some(CORES[0]));
        attachment.known_by_core(CORES[0], Position(7));
        attachment.known_by_core(CORES[0], Position(5));
        attachment.known_by_core(CORES[1], Position(9));
        attachment.known_in_region(CORES[0], Position(3));
        attachment.attach(Some(CORES[0]));
        assert_eq!((attachment.core_knows(), attachment.region_knows()), (Position(7), Position(3)));
        attachment.attach(Some(CORES[1]));
        attachment.known_in_region(CORES[0], Position(8));
        assert_eq!((attachment.core_knows(), attachment.region_knows()), (Position(0), Position(0)));
    }

    #[test]
    fn each_core_is_asked_about_a_position_once() {
        let mut attachment = Attachment::default();
        assert_eq!(attachment.ask_about_region(Position(4)), None, "there is no core to ask");
        for core in CORES {
            attachment.attach(Some(core));
            assert_eq!(attachment.ask_about_region(Position(4)), Some((core, Position(4))));
            assert_eq!(attachment.ask_about_region(Position(4)), None);
        }
        attachment.ask_again();
        assert_eq!(attachment.ask_about_region(Position(4)), Some((CORES[1], Position(4))));
    }

    #[test]
    fn a_new_member_is_rebalanced_once() {
        let mut attachment = Attachment::default();
        assert_eq!(attachment.due(), Time::NEVER);
        attachment.rebalance_at(Time(5));
        assert!(!attachment.take_rebalance(Time(4)));
        assert!(attachment.take_rebalance(Time(5)) && !attachment.take_rebalance(Time(6)));
    }
}
