//! A node's part in its cluster, as the API shows it.

use api::{
    ClusterView, GrantView, LaneView, LinkView, MemberView, MembershipView, NodeRoutes, ReplicaView,
    ShardView, ShardsView, TransportView, UnjoinedPeerView,
};
use cluster::meta::State;
use cluster::{ClassView, Link, Membership, NotJoined, PlacementView, Replica, Role, Routes, View};
use link::Class;
use transport::Figures;

/// `transfers`: the numbers of transfers of the leadership of shards that were made, and given up.
pub fn of(view: &View, figures: &Figures, transfers: (u64, u64)) -> ClusterView {
    let counters = view.counters;
    ClusterView {
        node: view.own.name.to_string(),
        role: role(view.own.role),
        region: view.own.region.to_string(),
        incarnation: view.incarnation,
        attached_to: view.attached.as_ref().map(ToString::to_string),
        acknowledging: view.is_fresh,
        lease_s: view.fresh_for.map(seconds),
        lease_granted_by: view.granted_by.iter().map(grant).collect(),
        leases_granted: view.grants.iter().map(grant).collect(),
        clock_offset_s: view.clock_off.map(of_clocks),
        subacks_waiting_core: view.subacks_waiting.core,
        subacks_waiting_region: view.subacks_waiting.region,
        subacks_waiting_cluster: view.subacks_waiting.cluster,
        subacks_overdue: counters.subacks_overdue,
        routes_applied: counters.routes_applied,
        routes_refused: counters.routes_refused,
        routes_unindexed: view.unrouted,
        dropped_qos0: counters.dropped_qos0,
        dropped_suspect: counters.dropped_suspect,
        refused: counters.refused,
        shard_frames_refused: counters.shard_frames_refused,
        malformed: counters.malformed,
        unauthenticated_closed: view.unauthenticated_closed,
        requests_sent: counters.requests_sent,
        requests_unanswered: counters.requests_unanswered,
        requests_received: counters.requests_received,
        requests_refused: counters.requests_refused,
        compressed_before_bytes: counters.packed_before,
        compressed_after_bytes: counters.packed_after,
        routes: view.routes.iter().map(routes).collect(),
        links: view.links.iter().map(link).collect(),
        unjoined_peers: view.not_joined.iter().map(not_joined).collect(),
        transport: transport(figures),
        membership: membership(&view.membership),
        shards: view.membership.placement.as_ref().map(|placement| shards(placement, transfers)),
    }
}

fn shards(placement: &PlacementView, transfers: (u64, u64)) -> ShardsView {
    let name = |name: &Option<Box<str>>| name.as_ref().map(ToString::to_string);
    let shard = |shard: &cluster::ShardView| ShardView {
        shard: shard.shard,
        leader: name(&shard.leader),
        replicas: shard.voters.iter().map(ToString::to_string).collect(),
        joining: name(&shard.learner),
        leaving: name(&shard.leaving),
    };
    ShardsView {
        replicas: placement.replicas,
        index: placement.version,
        transfers: transfers.0,
        transfers_failed: transfers.1,
        items: placement.shards.iter().map(shard).collect(),
    }
}

fn grant((node, left): &(Box<str>, u64)) -> GrantView {
    GrantView { node: node.to_string(), left_s: seconds(*left) }
}

fn not_joined(one: &NotJoined) -> UnjoinedPeerView {
    UnjoinedPeerView {
        address: one.address.to_string(),
        name: one.name.as_ref().map(ToString::to_string),
        reason: one.reason.to_string(),
        last_s: seconds(one.since),
        count: one.count,
    }
}

fn membership(membership: &Membership) -> MembershipView {
    MembershipView {
        stale: membership.is_stale,
        cluster_uid: (membership.founded != 0).then(|| format!("{:032x}", membership.founded)),
        index: membership.index,
        joined: membership.is_member,
        waits_for: membership.waits_for.clone(),
        members: membership.members.iter().map(member).collect(),
        replica: membership.replica.as_ref().map(replica),
    }
}

fn member(member: &cluster::MemberView) -> MemberView {
    MemberView {
        node: member.info.name.to_string(),
        role: role(member.info.role),
        region: member.info.region.to_string(),
        address: member.info.address.to_string(),
        incarnation: member.incarnation,
        state: match member.state {
            State::Alive if member.leaves => "leaving",
            State::Alive => "alive",
            State::Suspect(_) => "suspect",
            State::Dead => "dead",
        },
        votes: member.votes,
        leads: member.leads,
    }
}

fn replica(replica: &Replica) -> ReplicaView {
    ReplicaView {
        raft_state: match replica.part {
            consensus::Role::Learner => "learner",
            consensus::Role::Follower => "follower",
            consensus::Role::Candidate => "candidate",
            consensus::Role::Leader => "leader",
            consensus::Role::Stopped => "stopped",
        },
        term: replica.term,
        leader: replica.leader.as_ref().map(ToString::to_string),
        leader_via: replica.leader_via.as_ref().map(ToString::to_string),
        last_index: replica.last,
        applied_index: replica.applied,
        quorum: replica.has_quorum,
        voters: replica.voters,
        learners: replica.learners,
        failure: replica.failure.clone(),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Core => "core",
        Role::Replicant => "replicant",
    }
}

fn routes(routes: &Routes) -> NodeRoutes {
    NodeRoutes {
        node: routes.node.to_string(),
        role: role(routes.role),
        incarnation: routes.incarnation,
        position: routes.position,
        filters: routes.filters,
        tombstones: routes.tombstones,
        bytes: routes.bytes,
        digest: format!("{:016x}", routes.digest),
        suspect: routes.is_suspect,
    }
}

fn link(link: &Link) -> LinkView {
    let sum = |figure: fn(&ClassView) -> u64| link.classes.iter().map(figure).sum::<u64>();
    let (sent, again) = (sum(|class| class.counters.sent), sum(|class| class.counters.retransmitted));
    LinkView {
        node: link.peer.name.to_string(),
        address: link.peer.address.to_string(),
        role: role(link.peer.role),
        region: link.peer.region.to_string(),
        state: match (link.is_up, link.is_dead) {
            (true, _) => "up",
            (false, true) => "dead",
            (false, false) => "suspect",
        },
        state_s: seconds(link.since),
        dials: link.is_dialed,
        connections: link.connections.0,
        connections_wanted: link.connections.1,
        version: link.version,
        features: link.features,
        round_trip_ms: link.round_trip.map(|micros| micros as f64 / 1e3),
        clock_ahead_s: link.clock_ahead.map(of_clocks),
        clock_differs: link.clock_differs,
        bytes_sent: link.bytes_sent,
        bytes_received: link.bytes_received,
        connected: link.attached,
        timeouts: link.silent,
        restarts: link.restarts,
        unconsumed_bytes: link.unconsumed,
        unconfirmed: link.unconfirmed,
        retransmitted_percent: if sent == 0 { 0.0 } else { again as f64 / sent as f64 * 100.0 },
        lanes: link.classes.iter().map(lane).collect(),
        last_error: link.last_error.as_ref().map(|(_, reason)| reason.to_string()),
        last_error_s: link.last_error.as_ref().map(|(ago, _)| seconds(*ago)),
    }
}

fn lane(class: &ClassView) -> LaneView {
    LaneView {
        class: match class.class {
            Class::Control => "control",
            Class::Claims => "claims",
            Class::Agreement => "agreement",
            Class::Requests => "requests",
            Class::Routes => "routes",
            Class::Assured => "assured",
            Class::BestEffort => "best_effort",
        },
        frames_sent: class.counters.sent,
        frame_bytes_sent: class.counters.sent_bytes,
        frames_received: class.counters.received,
        frame_bytes_received: class.counters.received_bytes,
        retransmitted: class.counters.retransmitted,
        refused: class.counters.refused,
        lost: class.counters.lost,
        stalled: class.counters.stalled,
        waiting_bytes: class.waiting_bytes,
        waiting_frames: class.waiting_frames,
        oldest_s: seconds(class.oldest),
    }
}

fn transport(figures: &Figures) -> TransportView {
    TransportView {
        connections: figures.connections,
        accepted: figures.accepted,
        accept_errors: figures.accept_errors,
        dialed: figures.dialed,
        tls_errors: figures.tls_errors,
        bytes_read: figures.bytes_read,
        bytes_written: figures.bytes_written,
        reads: figures.reads,
        writes: figures.writes,
        blocked: figures.blocked,
        turns: figures.turns,
        wakeups: figures.wakeups,
        commands: figures.commands,
        bbr: !figures.is_congestion_refused,
    }
}

/// Converts a clock difference from milliseconds to seconds.
fn of_clocks(ms: i64) -> f64 {
    ms as f64 / 1e3
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
