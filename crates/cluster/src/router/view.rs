//! View of the cluster for operators.

use link::{NodeId, Time};

use super::ClusterRouter;
use crate::config::{NodeInfo, WithoutQuorum};
use crate::freshness::Grants;
use crate::meta::{Placement, ShardReplica};
use crate::view::{ClassView, Link, MemberView, Membership, PlacementView, Replica, Routes, ShardView, View};

impl ClusterRouter {
    /// Returns whether this node may acknowledge messages of QoS 1 and 2.
    pub fn may_acknowledge(&self, now: Time) -> bool {
        self.config.without_quorum == WithoutQuorum::Serve
            || self.fresh_until() > now && self.node.routes.unrouted() == 0
    }

    /// Iterates over the cores that let this node acknowledge, and the time until which they do.
    pub fn leases(&self, now: Time) -> impl Iterator<Item = (NodeId, Time)> {
        self.leases.held.granted_by().filter(move |(_, until)| *until > now)
    }

    /// Returns whether a lease that this core has granted to a node may still run.
    pub fn has_granted(&self, now: Time, node: NodeId) -> bool {
        self.leases.granted.as_ref().is_some_and(|grants| grants.holds(now, node))
    }

    /// Returns this node's incarnation that others know, or will learn next.
    pub fn incarnation(&self) -> replog::Incarnation {
        self.config.incarnation
    }

    /// Returns the present view.
    pub fn view(&self, now: Time) -> View {
        let routes = self.routes_view();
        let mut links: Vec<Link> =
            self.mesh.peers().filter_map(|status| self.link_view(now, &status)).collect();
        links.sort_by(|a, b| a.peer.name.cmp(&b.peer.name));
        View {
            own: self.config.own.clone(),
            incarnation: self.config.incarnation.0,
            attached: self.attachment.core().and_then(|id| Some(self.peers.get(&id)?.info.name.clone())),
            is_fresh: self.may_acknowledge(now),
            fresh_for: Some(self.fresh_until())
                .filter(|until| *until != Time::NEVER)
                .map(|until| until.since(now)),
            granted_by: self.grants_view(now, self.leases.held.granted_by()),
            grants: self.grants_view(now, self.leases.granted.iter().flat_map(Grants::holders)),
            clock_off: self.clocks.off(),
            subacks_waiting: self.subacks.counts(),
            counters: self.counters(),
            unrouted: self.node.routes.unrouted() as u64,
            unauthenticated_closed: self.mesh.counters().unauthenticated_closed,
            routes,
            links,
            not_joined: self.not_joined(now),
            membership: self.membership_view(now),
        }
    }

    fn membership_view(&self, now: Time) -> Membership {
        let meta = &self.membership.meta;
        let roster = meta.roster();
        let status = meta.status(now);
        let name = |id: NodeId| roster.members.get(&id).map(|member| member.info.name.clone());
        let leader = meta.leader();
        let has_vote = |id: NodeId| {
            status.as_ref().is_some_and(|status| {
                status.members.iter().any(|(replica, it)| it.node == id && status.voters.contains(replica))
            })
        };
        let mut members: Vec<MemberView> = roster
            .members
            .iter()
            .map(|(id, member)| MemberView {
                info: member.info.clone(),
                incarnation: member.incarnation.0,
                state: member.state,
                leaves: member.leaves,
                votes: has_vote(*id),
                leads: leader == Some(*id),
            })
            .collect();
        members.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        let replica = status.as_ref().map(|status| Replica {
            part: status.role,
            term: status.term,
            leader: leader.and_then(name),
            leader_via: meta.leader_via(now).and_then(name),
            last: status.last.unwrap_or(0),
            applied: status.applied.unwrap_or(0),
            has_quorum: meta.has_quorum(now),
            voters: status.voters.len() as u64,
            learners: status.learners.len() as u64,
            failure: status.failure.clone(),
        });
        // A node without a replica knows of a majority by its lease.
        let has_quorum = replica.as_ref().map_or(self.fresh_until() > now, |replica| replica.has_quorum);
        Membership {
            is_stale: !has_quorum,
            founded: roster.founded,
            index: roster.index,
            is_member: meta.is_member(),
            waits_for: meta.waits_for(),
            members,
            replica,
            placement: self.placement().map(|placement| self.placement_view(placement)),
        }
    }

    fn placement_view(&self, placement: &Placement) -> PlacementView {
        let roster = self.membership.meta.roster();
        let name = |replica: ShardReplica| {
            let member = roster.members.get(&replica.node);
            member.map_or_else(|| replica.node.to_string().into(), |member| member.info.name.clone())
        };
        let leader = |id| self.info(self.shards.leader(id)?).map(|info| info.name.clone());
        let shards = placement.shards().map(|(id, shard)| ShardView {
            shard: id.0,
            epoch: shard.epoch,
            leader: leader(id),
            voters: shard.voters.iter().copied().map(name).collect(),
            learner: shard.learner.map(name),
            leaving: shard.leaving.map(name),
        });
        PlacementView {
            version: placement.version,
            replicas: placement.replicas.get().into(),
            shards: shards.collect(),
            own: self.core_log().map_or(0, |log| placement.replicas_in(log).count() as u64),
        }
    }

    /// Returns the grants that hold, with names and remaining times.
    fn grants_view(&self, now: Time, all: impl Iterator<Item = (NodeId, Time)>) -> Vec<(Box<str>, u64)> {
        let holds = all.filter(|(_, until)| *until > now);
        let mut named: Vec<_> =
            holds.filter_map(|(id, until)| Some((self.info(id)?.name.clone(), until.since(now)))).collect();
        named.sort();
        named
    }

    pub(super) fn info(&self, id: NodeId) -> Option<&NodeInfo> {
        if id == self.own { Some(&self.config.own) } else { self.peers.get(&id).map(|peer| &peer.info) }
    }

    fn routes_view(&self) -> Vec<Routes> {
        let mut routes = Vec::new();
        for (writer, incarnation, position) in self.routes.replica.vector() {
            let id = NodeId(writer.0);
            let Some(info) = self.info(id) else { continue };
            let (filters, tombstones, bytes) = self.routes.replica.size(writer);
            routes.push(Routes {
                node: info.name.clone(),
                role: info.role,
                incarnation: incarnation.0,
                position: position.0,
                filters: filters as u64,
                tombstones: tombstones as u64,
                bytes: bytes as u64,
                digest: self.routes.replica.digest(writer),
                is_suspect: self.routes.replica.is_suspect(writer),
            });
        }
        let own = self.config.own.name.clone();
        routes.sort_by(|a, b| (a.node != own, &a.node).cmp(&(b.node != own, &b.node)));
        routes
    }

    fn link_view(&self, now: Time, status: &link::PeerStatus<'_>) -> Option<Link> {
        let peer = self.peers.get(&status.node)?;
        let counters = status.link.counters();
        let classes = status.waiting(now).map(|(class, (waiting_bytes, waiting_frames, oldest))| ClassView {
            class,
            counters: counters.of(class).clone(),
            waiting_bytes,
            waiting_frames,
            oldest,
        });
        Some(Link {
            peer: peer.info.clone(),
            is_up: status.is_up,
            is_dead: self.peers.is_known_dead(status.node),
            since: now.since(status.since),
            is_dialed: status.is_dialed,
            connections: (status.connections.0 as u64, status.connections.1 as u64),
            version: status.version,
            features: status.features,
            // An old value says nothing about a link without traffic.
            round_trip: status.link.round_trip().filter(|_| status.is_up),
            clock_ahead: self.clocks.ahead(status.node),
            clock_differs: self.clocks.differs(status.node),
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            attached: counters.attached,
            silent: counters.silent,
            restarts: counters.restarts,
            unconsumed: status.link.unconsumed(),
            unconfirmed: peer.sent.iter().map(|sent| sent.len() as u64).sum(),
            classes: classes.collect(),
            last_error: status.last_error.map(|(at, reason)| (now.since(at), reason.into())),
        })
    }
}
