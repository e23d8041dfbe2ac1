//! Processes of the nodes, their incarnations, and the members of the groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::peers::{Inbound, LastIncarnation, MemberIncarnations};
use broker::{LaneCounters, ReadCounters, ReplicaCounters, SHARDS, ShardId, Time};
use link::NodeId;
use shardlog::{AgreementInput, TargetMembers};

use super::network::{Step, node_id};
use super::world::{AgreedShards, REPLICAS};
use crate::node::{Node, StartFailure};
use crate::schedule::{Event, MILLI, SECOND};

/// Returns the nodes that lead when all work: each leads as many shards as the others.
pub fn spread_leaders() -> Vec<NodeId> {
    (0..usize::from(SHARDS)).map(|shard| node_id(shard % REPLICAS)).collect()
}

impl AgreedShards {
    pub(super) fn start(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.node.is_some() {
            return;
        }
        self.incarnations += 1;
        host.mailbox = Arc::default();
        let peers = host.mailbox.clone();
        let (overlaps, freezes) = (self.overlaps, self.freezes);
        let join = move |node: &Arc<broker::Node>| {
            assert_eq!(node.join_cluster(peers, broker::Instant::now()), Ok(()));
            node.set_fresh_until(Time(0));
            node.set_cluster_clock(None);
            node.keep_ephemeral_sessions(true);
            node.overlap_connacks(overlaps);
            node.freeze_without_lease(freezes);
        };
        if let Some(replica) = &mut host.setup.replica {
            replica.transfer_permit = Arc::default();
            replica.began_ms = host.wall.start(self.cx.now() / MILLI);
        }
        let placed = host.setup.replica.as_ref().and_then(|replica| replica.placed.clone());
        if let Some(placed) = &placed {
            sync::lock(&placed.reached).clear();
        }
        let started =
            Node::start_in(&mut self.cx, &mut host.machine, host.setup.clone(), self.incarnations, join);
        if let Some((meta, placed)) = self.meta.as_mut().zip(placed) {
            meta.joined(at, placed.own);
        }
        self.leases.start(at);
        (host.counted, host.counted_reads) = (ReplicaCounters::default(), ReadCounters::default());
        host.counted_lanes = LaneCounters::default();
        (host.counted_transfers, host.counted_early) = ((0, 0), 0);
        (host.leads, host.leaders) = (BTreeMap::new(), BTreeMap::new());
        match started {
            Ok(node) => host.node = Some(node),
            Err(StartFailure::Broken(why)) => panic!("node {at} does not start: {why}"),
            Err(StartFailure::Disk | StartFailure::Outdated) => {
                host.machine.kill();
                return self.cx.after(SECOND, Event::AgreedShards(Step::Start { node: at }));
            }
        }
        self.cx.log(|| format!("node {at} starts"));
        self.join(at, u64::from(self.incarnations));
        self.after_turn(at);
    }

    /// Lets a node join the cluster in an incarnation, which ends its earlier ones.
    fn join(&mut self, at: usize, incarnation: u64) {
        self.hosts[at].incarnation = incarnation;
        self.members.insert(node_id(at).0, LastIncarnation { incarnation, is_dead: false });
        self.pass_members();
    }

    /// Passes the members to all nodes.
    fn pass_members(&mut self) {
        let members: Arc<MemberIncarnations> =
            Arc::new(self.members.iter().map(|(node, last)| (*node, *last)).collect());
        for at in 0..self.hosts.len() {
            self.inform(at, || Inbound { members: Some(members.clone()), ..Inbound::default() });
        }
    }

    /// Ends an incarnation of a node. A process that does not run may be removed, too.
    pub(super) fn incarnation_ended(&mut self, at: usize, incarnation: u64) {
        let id = node_id(at).0;
        if self.members.get(&id).is_none_or(|last| last.incarnation != incarnation) {
            return;
        }
        self.end_claims(at);
        let runs = self.hosts[at].node.is_some();
        if !runs && self.cx.random.below(2) == 0 {
            self.members.remove(&id);
        } else {
            self.members.insert(id, LastIncarnation { incarnation, is_dead: true });
        }
        self.pass_members();
        if runs {
            self.leave_node(at);
            let delay = self.cx.between(MILLI, 3 * SECOND);
            self.cx.after(delay, Event::AgreedShards(Step::Restarted { node: at, incarnation }));
        }
    }

    /// Lets a node go on in another incarnation, unless it has done so already.
    pub(super) fn restart_incarnation(&mut self, at: usize, incarnation: u64) {
        let host = &self.hosts[at];
        let Some(node) = host.node.as_ref().filter(|_| host.incarnation == incarnation) else { return };
        if let Some(until) = node.paused_until(self.cx.now()) {
            let at_last = until + self.cx.between(MILLI, 3 * SECOND);
            return self.cx.at(at_last, Event::AgreedShards(Step::Restarted { node: at, incarnation }));
        }
        self.cx.log(|| format!("node {at} goes on in another incarnation"));
        self.end_claims(at);
        self.leases.pardon(at);
        self.cx.report.agreed_incarnations += 1;
        self.incarnations += 1;
        let incarnation = u64::from(self.incarnations);
        let leaders: Vec<_> =
            self.hosts[at].leaders.iter().map(|(shard, leader)| (*shard, *leader)).collect();
        let inbound =
            || Inbound { incarnation: Some(incarnation), leaders: leaders.clone(), ..Inbound::default() };
        self.inform(at, inbound);
        self.join(at, incarnation);
    }

    /// Tells a node which nodes should lead the shards, by number. If replicas move, the node learns it with the next
    /// placement.
    pub(super) fn prefer(&mut self, at: usize, leaders: Vec<NodeId>) {
        let host = &mut self.hosts[at];
        if self.meta.is_some() {
            host.preferred = leaders;
            return;
        }
        let Some(replica) = &mut host.setup.replica else { return };
        replica.leaders.clone_from(&leaders);
        let Some(node) = &mut host.node else { return };
        for (shard, leader) in leaders.into_iter().enumerate() {
            let input = AgreementInput::PreferredLeader(Some(leader));
            node.broker().store_event(ShardId(shard as u16), input.into());
        }
        node.send_posted(&mut self.cx);
    }

    /// Asks the leaders to replace the members that are lost. They refuse what is done already.
    pub(super) fn reconcile(&mut self) {
        let replicas = self.hosts[..REPLICAS].iter().filter_map(|host| host.setup.replica.as_ref());
        let voters = replicas.map(|replica| (replica.config.id, replica.config.own)).collect();
        let target = TargetMembers {
            epoch: 1,
            voters,
            known: Default::default(),
            founders: BTreeMap::new(),
            is_settled: false,
        };
        for host in &mut self.hosts {
            if let Some(replica) = &mut host.setup.replica {
                replica.target = target.clone();
            }
            let Some(node) = &mut host.node else { continue };
            for shard in (0..SHARDS).map(ShardId) {
                node.broker().store_event(shard, AgreementInput::Target(target.clone()).into());
            }
            node.send_posted(&mut self.cx);
        }
    }
}
