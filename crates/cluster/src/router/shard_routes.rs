//! Routes of shards: their positions on this node and on others, and SUBACKs of durable sessions, which wait until all
//! nodes that may acknowledge know the routes of the session's shard.

use broker::{SHARDS, ShardId};
use link::{Lane, NodeId, Time};
use replog::{Incarnation, Position, WriterId};

use super::ClusterRouter;
use crate::features::SHARDS as FEATURE;
use crate::meta::{Roster, ShardPlacement, ShardReplica};
use crate::mutation::{Mutation, mutated};
use crate::peer::{Peer, SettleRequest};
use crate::shard_positions::{self, writer_of};
use crate::wire::PeerMessage;

impl ClusterRouter {
    /// Notes the route positions that a worker reports.
    pub(super) fn route_positions(&mut self, positions: &[(ShardId, u64)]) {
        for (shard, position) in positions {
            self.shard_positions.reach(*shard, Position(*position));
        }
    }

    /// Returns whether a node may have a lease with respect to shards. A node without the feature knows no routes of
    /// them. Cores do not wait for it, as they do for a node that is about to know them.
    pub(super) fn may_know_shards(&self, id: NodeId) -> bool {
        let is_adopted = self.membership.meta.adopted().is_some_and(|adopted| adopted & FEATURE != 0);
        !is_adopted || self.can(id, FEATURE)
    }

    /// Returns whether this restarted core knows the routes of all shards as far as other nodes did at their first
    /// contact. It waits for a shard as long as a majority of its replicas may return: a session of the shard may have
    /// a subscription that other nodes have confirmed, and messages that are acknowledged without it are lost.
    /// `has_waited`: it does not wait any longer for a shard that is lost, unless a node is known to lead it.
    pub(super) fn knows_shards(&self, has_waited: bool) -> bool {
        if !self.has_shards() {
            return true;
        }
        // A core may not know the placement yet, and requires of other nodes what it knows of shards.
        if self.is_core() && !self.membership.meta.may_grant() {
            return false;
        }
        let Some(placement) = self.placement() else { return true };
        let roster = self.membership.meta.roster();
        placement.shards().all(|(shard, replicas)| {
            let own = self.shard_positions.get(shard);
            let of_others = self.peers.values().filter_map(|peer| peer.knew_of_shards.as_ref());
            let most = of_others.filter_map(|knew| knew.get(&shard).copied()).max();
            let is_known = own.is_some() && own >= most;
            let may_go_on = has_waited && !self.shards.is_led(shard) && is_lost(replicas, roster);
            is_known || may_go_on || mutated(Mutation::GrantBeforeShards)
        })
    }

    /// Names nodes that know more routes of shards than this node, which has restarted, while nobody leads the shards.
    /// They take turns: one that has restarted, too, or has an earlier version, does not answer.
    pub(super) fn name_route_sources(&mut self) {
        if self.leases.is_informed() || !self.has_shards() {
            return;
        }
        let Some(placement) = self.placement() else { return };
        let mut named = Vec::new();
        for (shard, _) in placement.shards().filter(|(shard, _)| !self.shards.is_led(*shard)) {
            let own = self.shard_positions.get(shard);
            let knows_more = |id: &NodeId, peer: &Peer| {
                let known = peer.knew_of_shards.as_ref().and_then(|knew| knew.get(&shard).copied());
                peer.is_up && known > own && self.can(*id, FEATURE)
            };
            let sources: Vec<NodeId> =
                self.peers.iter().filter(|(id, peer)| knows_more(id, peer)).map(|(id, _)| *id).collect();
            if let Some(at) = self.leases.sources_named.checked_rem(sources.len()) {
                named.push((shard, sources[at]));
            }
        }
        self.leases.sources_named += usize::from(!named.is_empty());
        for (shard, source) in named {
            self.inbound.name_route_source(self.node.shard_host(shard), shard, source);
        }
    }

    /// Returns the route position of a shard that all nodes that may acknowledge know.
    pub(super) fn settled_of_shard(&self, shard: ShardId) -> Position {
        match self.shard_positions.get(shard) {
            Some(own) if self.is_member() => self.leases.settled_of_shard(self.now, shard, own),
            Some(_) | None => Position::default(),
        }
    }

    /// Asks cores for the settled positions of shards, when SUBACKs wait for them.
    pub(super) fn ask_to_settle_shards(&mut self, now: Time) {
        for (shard, position) in self.subacks.shards_to_settle() {
            let message = PeerMessage::SettleShard { shard: shard.0, position };
            for id in self.peers.reachable_cores() {
                // A core without the feature has not joined since the cores have adopted it.
                if self.can(id, FEATURE) && !self.send_message(now, id, Lane::ROUTES, &message) {
                    self.subacks.ask_again();
                }
            }
        }
    }

    /// Handles a peer's request to settle a position, or a core's report about one.
    pub(super) fn shard_route_message(&mut self, from: NodeId, message: &PeerMessage<'_>) {
        match *message {
            PeerMessage::SettleShard { shard, position } if shard < SHARDS => {
                let peer = self.peers.get_mut(&from).filter(|_| self.leases.granted.is_some());
                let Some(peer) = peer else { return };
                let wanted = peer.settle.of_shards.get(&ShardId(shard)).and_then(|request| request.wanted);
                // What was reported before is reported again: the peer may have forgotten it.
                let request =
                    SettleRequest { wanted: wanted.max(Some(position)), reported: Position::default() };
                peer.settle.of_shards.insert(ShardId(shard), request);
            }
            PeerMessage::ShardSettled { shard, position } if shard < SHARDS => {
                self.leases.held.shard_settled(from, ShardId(shard), position);
            }
            PeerMessage::ReachShards(ref positions) if positions.iter().all(|(shard, _)| *shard < SHARDS) => {
                for (shard, position) in positions {
                    let shard = ShardId(*shard);
                    if self.shard_positions.get(shard).is_none_or(|own| own < *position) {
                        self.inbound.reach(self.node.shard_host(shard), shard, position.0);
                    }
                }
            }
            _ => self.counters.malformed += 1,
        }
    }

    /// Sends a node the positions of shards that this core knows and that the node has not reported. The node may know
    /// them: a core that has restored the state of a shard knows only the index of that state, which no other node
    /// reports by itself.
    pub(super) fn tell_shard_positions(&mut self, now: Time, id: NodeId) {
        let Some(grants) = self.leases.granted.as_ref().filter(|_| self.can(id, FEATURE)) else { return };
        let is_reported = |(writer, incarnation, position): &(WriterId, Incarnation, Position)| {
            grants.applied_by(id, *writer, *incarnation) >= *position
        };
        let behind = self.shard_positions.vector().filter(|known| !is_reported(known));
        let behind =
            behind.filter_map(|(writer, _, position)| Some((shard_positions::shard_of(writer)?.0, position)));
        let positions: Vec<(u16, Position)> = behind.collect();
        if !positions.is_empty() {
            // It is sent again at the next request for a lease.
            self.send_message(now, id, Lane::ROUTES, &PeerMessage::ReachShards(positions));
        }
    }

    /// Reports settled positions of shards to nodes that wait for them.
    pub(super) fn report_settled_shards(&mut self, now: Time) {
        let Some(grants) = &self.leases.granted else { return };
        for (id, peer) in self.peers.iter_mut() {
            peer.settle.of_shards.retain(|shard, request| {
                let own = self.shard_positions.get(*shard).unwrap_or_default();
                let position = grants.settled(now, writer_of(*shard), shard_positions::at(own));
                if position > request.reported {
                    let message = PeerMessage::ShardSettled { shard: shard.0, position };
                    if self.mesh.send(now, *id, Lane::ROUTES, message.encode().into()).is_err() {
                        return true;
                    }
                    request.reported = position;
                }
                request.wanted.is_some_and(|wanted| position < wanted)
            });
        }
    }

    /// Sends SUBACKs of durable sessions whose subscriptions are known.
    pub(super) fn release_subacks_of_shards(&mut self) {
        for shard in self.subacks.shards_waiting() {
            let known = self.settled_of_shard(shard);
            while let Some((connection, ticket)) = self.subacks.pop_known_of_shard(shard, known) {
                self.inbound.announce(connection, ticket, true);
            }
        }
    }
}

/// Returns whether a shard has lost a majority of its replicas for good: their cores were removed, or have another log.
/// With a majority that is only away, its state may return.
fn is_lost(shard: &ShardPlacement, roster: &Roster) -> bool {
    let exists = |replica: &&ShardReplica| {
        let member = roster.members.get(&replica.node);
        member.is_some_and(|member| member.is_core() && member.replica == Some(replica.replica))
    };
    let is_lost = |voters: &[ShardReplica]| voters.iter().filter(exists).count() <= voters.len() / 2;
    is_lost(&shard.voters) || is_lost(&shard.target())
}

impl Peer {
    /// Notes the route positions of shards that this node knows when it first contacts a restarted core.
    pub(super) fn first_knew_of_shards(&mut self, vector: &[(WriterId, Incarnation, Position)]) {
        self.knew_of_shards.get_or_insert_with(|| {
            let of_shard = |(writer, _, position): &(WriterId, Incarnation, Position)| {
                Some((shard_positions::shard_of(*writer)?, *position))
            };
            vector.iter().filter_map(of_shard).collect()
        });
    }
}

#[cfg(test)]
mod tests {
    use consensus::ReplicaId;

    use super::*;
    use crate::config::{NodeInfo, Role};
    use crate::meta::{Member, State};

    fn member(replica: u64, state: State) -> Member {
        let (name, region, address) = Default::default();
        let info = NodeInfo { name, role: Role::Core, region, address };
        let replica = Some(ReplicaId(replica));
        Member { info, incarnation: Incarnation(1), state, leaves: false, replica }
    }

    fn replica(node: u64, replica: u64) -> ShardReplica {
        ShardReplica { node: NodeId(node), replica: ReplicaId(replica), since: 1 }
    }

    #[test]
    fn a_shard_is_lost_when_a_majority_of_its_replicas_cannot_return() {
        let voters = vec![replica(1, 10), replica(2, 20), replica(3, 30)];
        let shard = ShardPlacement { voters, ..ShardPlacement::default() };
        let mut roster = Roster::default();
        for node in 1..=3 {
            roster.members.insert(NodeId(node), member(node * 10, State::Dead));
        }
        assert!(!is_lost(&shard, &roster), "cores that are dead may start again");
        roster.members.remove(&NodeId(1));
        assert!(!is_lost(&shard, &roster), "two of three are left");
        roster.members.insert(NodeId(2), member(21, State::Alive));
        assert!(is_lost(&shard, &roster), "the disk of the second core was replaced");
    }
}
