//! The end of a simulation, in which everything must settle, and the comparison of the replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::{SHARDS, ShardId};
use shardlog::{CoreData, StoredReplicas, merge_shard};
use storage::fault::FaultDisk;
use storage::{Commit, Disk as _};

use super::client::{WILLS_READER, missing_jobs};
use super::members::spread_leaders;
use super::network::Step;
use super::world::{AgreedShards, Host};
use crate::node::{Node, ReplicaSetup};
use crate::schedule::{Event, Micros, SECOND};

/// Time after the last fault in which everything must settle, and the same if replicas move: one after the other.
const SETTLE: Micros = 120 * SECOND;
const SETTLE_WITH_MOVES: Micros = 300 * SECOND;

impl AgreedShards {
    /// Ends all faults, and checks that nothing is lost and all replicas are equal.
    pub(super) fn settle(&mut self) {
        (self.is_calm, self.net.calm, self.cx.has_slow_reads) = (true, true, false);
        for node in 0..self.hosts.len() {
            self.start(node);
        }
        for node in 0..self.hosts.len() {
            match &mut self.meta {
                Some(meta) => {
                    self.hosts[node].preferred.clear();
                    if node < self.cores {
                        meta.set_leaves(node, false);
                    }
                }
                None => self.prefer(node, spread_leaders()),
            }
        }
        let end = self.cx.now() + if self.meta.is_some() { SETTLE_WITH_MOVES } else { SETTLE };
        while self.cx.now() < end && (0..self.hosts.len()).any(|node| self.may_restart(node)) {
            self.pass(self.cx.now() + SECOND);
        }
        self.devices.note_unserved(&mut self.cx, &mut self.messages, &self.claims);
        while self.cx.now() < end {
            self.pass(self.cx.now() + SECOND);
            let are_settled = self.clients.iter().all(|client| client.is_settled(&self.messages))
                && missing_jobs(&self.clients, &self.messages).is_empty()
                && self.retained.is_settled();
            let is_idle = self.unanswered() == 0 && self.waiting() == 0 && self.unsynced() == 0;
            if are_settled && self.is_placed() && self.are_equal() && is_idle && self.are_spread() {
                break;
            }
        }
        assert!(self.is_placed(), "{}", self.why_not_placed());
        assert!(
            self.are_spread(),
            "leaders: {:?}",
            self.hosts.iter().map(|host| &host.leads).collect::<Vec<_>>()
        );
        self.clients.iter().for_each(|client| client.check(&mut self.cx, &self.messages));
        let reader = &self.clients[WILLS_READER];
        self.devices.check_left(&mut self.cx, &self.claims, |will| reader.has_received(will));
        let missing = missing_jobs(&self.clients, &self.messages);
        assert!(missing.is_empty(), "no member of the shared group has {missing:?}");
        assert!(self.retained.is_settled(), "a read or a write of retained messages has no end");
        assert_eq!(self.unanswered(), 0, "bytes of requests without an answer");
        assert_eq!(self.waiting(), 0, "completions that wait for routes, or behind one that does");
        assert_eq!(self.unsynced(), 0, "bytes of messages that count as not queued");
        assert!(self.are_equal(), "the replicas have not caught up: {:?}", self.records());
        self.read_everywhere();
        self.claims.check(&mut self.cx.report);
        self.restore();
    }

    /// Returns whether a node stands still, or goes on in another incarnation soon.
    fn may_restart(&self, at: usize) -> bool {
        let now = self.cx.now();
        let stands_still = self.hosts[at].node.as_ref().is_none_or(|node| node.is_paused(now));
        stands_still || self.leases.is_condemned(at)
    }

    /// Makes the log of a node alone from those of all cores, as `meridian storage restore` does. It has the same state
    /// and all messages that queues need.
    fn restore(&mut self) {
        let Some(ReplicaSetup { hash_key, .. }) = self.hosts[0].setup.replica else { return };
        let segment_bytes = self.hosts[0].setup.segment_bytes;
        let cores: Vec<CoreData> = self.hosts[..self.cores].iter().enumerate().map(core_data).collect();
        let to = FaultDisk::new(1);
        let open = |to: FaultDisk| {
            let options = storage::Options { segment_bytes, reserve_bytes: 0, ..storage::Options::default() };
            storage::open(Arc::new(to), options, Box::new(()), &mut |_| ()).expect("a log")
        };
        let mut opened = open(to.clone());
        let (log, writer) = (opened.log.clone(), &mut opened.writer);
        let mut flush = || loop {
            match writer.commit_once().expect("a disk") {
                Commit::Idle => return Ok(()),
                Commit::Wrote { .. } => {}
                Commit::NoRoom => return Err("no room".to_owned()),
            }
        };
        let mut lost = BTreeMap::new();
        for shard in (0..SHARDS).map(ShardId) {
            let merged = merge_shard(shard, &cores, hash_key, &log, &mut flush);
            lost.insert(shard, merged.expect("whole logs").expect("a replica").lost_messages);
        }
        drop((opened, log));
        let groups = open(to.kill()).recovery.groups;
        for (number, group) in shardlog::sort(groups).expect("groups of shards") {
            let shard = ShardId(number);
            let restored = shardlog::restore(number, group, hash_key, &mut || ()).expect("a shard");
            let led = self.hosts.iter().filter_map(|host| host.node.as_ref()?.shard_state(shard));
            let led = led.max_by_key(|state| state.applied()).expect("a replica has a state");
            let expected = shardlog::as_alone(led, hash_key).expect("a state");
            assert!(restored.applied() >= expected.applied(), "{shard:?}: applied records are lost");
            // The log may have an entry that was not applied yet.
            if restored.applied() == expected.applied() {
                assert_eq!(restored.digest(), expected.digest(), "{shard:?} is restored to another state");
                assert_eq!(lost[&shard], 0, "{shard:?}: messages are lost");
                self.cx.report.agreed_restores_compared += 1;
            }
        }
    }

    /// Reads all retained messages from each node. All find the messages of the replicas, which are equal.
    fn read_everywhere(&mut self) {
        let readers: Vec<usize> = (0..self.hosts.len()).map(|at| self.retained.add_last_reader(at)).collect();
        for client in &readers {
            self.cx.after(SECOND, Event::AgreedShards(Step::ActRetained { client: *client }));
        }
        let end = self.cx.now() + SETTLE;
        let found =
            |this: &Self| readers.iter().map(|reader| this.retained.found(*reader)).collect::<Vec<_>>();
        while self.cx.now() < end && found(self).iter().any(Option::is_none) {
            self.pass(self.cx.now() + SECOND);
        }
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let kept: BTreeMap<String, String> =
            nodes.flat_map(Node::retained).filter(|(topic, _)| topic.starts_with("common/")).collect();
        for (at, found) in found(self).into_iter().enumerate() {
            assert_eq!(found.as_ref(), Some(&kept), "retained messages that a client of node {at} finds");
        }
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let waiting: u64 = nodes.map(|node| node.read_counters().waiting).sum();
        assert_eq!(waiting, 0, "reads of retained messages that nobody waits for");
    }

    /// Bytes of all requests that are not answered.
    fn unanswered(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.map(|node| node.lane_counters().unanswered_bytes).sum()
    }

    /// Completions that wait for routes, and those behind them.
    fn waiting(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.map(|node| node.lane_counters()).map(|counters| counters.waiting + counters.held).sum()
    }

    /// Bytes of messages that were acknowledged early, and are not known to be queued.
    fn unsynced(&self) -> u64 {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.map(|node| node.unsynced().0).sum()
    }

    /// Last record that each replica has applied, by node and shard.
    fn records(&self) -> Vec<Vec<Option<u64>>> {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let of = |node: &Node| (0..SHARDS).map(|shard| Some(node.digest(ShardId(shard))?.0)).collect();
        nodes.map(of).collect()
    }

    /// Returns whether all replicas of all shards have applied the same records. Their digests were compared then.
    fn are_equal(&mut self) -> bool {
        self.compare();
        (0..SHARDS).map(ShardId).all(|shard| {
            let digests = self.hosts.iter().map(|host| host.node.as_ref()?.digest(shard));
            let of_replicas: Vec<_> = digests.enumerate().filter(|(_, digest)| digest.is_some()).collect();
            let at: BTreeSet<usize> = of_replicas.iter().map(|(at, _)| *at).collect();
            at == self.replicas_of(shard) && of_replicas.iter().all(|(_, digest)| *digest == of_replicas[0].1)
        })
    }

    /// Nodes that should have a replica of a shard.
    fn replicas_of(&self, shard: ShardId) -> BTreeSet<usize> {
        match &self.meta {
            Some(meta) => meta.voters(shard).map(|node| node.0 as usize - 1).collect(),
            None => (0..self.cores).collect(),
        }
    }

    /// Returns whether the preferred nodes lead.
    fn are_spread(&self) -> bool {
        if let Some(meta) = &self.meta {
            return self.are_leaders_balanced(meta);
        }
        let leads = |at: usize, shard: ShardId| self.hosts[at].leads.contains_key(&shard);
        (0..SHARDS).all(|shard| leads(usize::from(shard) % self.cores, ShardId(shard)))
    }

    pub(super) fn compare(&mut self) {
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let Some(node) = &host.node else { continue };
            let counted = node.replica_counters();
            let before = std::mem::replace(&mut host.counted, counted);
            self.cx.report.agreed_restored += counted.restored - before.restored;
            self.cx.report.agreed_fetched += counted.fetched - before.fetched;
            self.cx.report.agreed_repaired += counted.repaired - before.repaired;
            self.cx.report.agreed_attached += counted.attached - before.attached;
            self.cx.report.agreed_stale += counted.stale - before.stale;
            let early = node.unsynced().1;
            let before = std::mem::replace(&mut host.counted_early, early);
            self.cx.report.agreed_fast_early += early - before;
            let counted = node.read_counters();
            let before = std::mem::replace(&mut host.counted_reads, counted);
            self.cx.report.agreed_read_indexes += counted.indexes - before.indexes;
            self.cx.report.agreed_read_behind += counted.behind - before.behind;
            self.cx.report.agreed_read_own_pages += counted.own_pages - before.own_pages;
            self.cx.report.agreed_read_leader_pages += counted.leader_pages - before.leader_pages;
            self.cx.report.agreed_read_unreadable += counted.unreadable - before.unreadable;
            self.cx.report.agreed_read_dropped += counted.dropped - before.dropped;
            let counted = node.lane_counters();
            assert_eq!(counted.malformed, 0, "no node sends bytes that are no frames");
            self.cx.report.agreed_overdue += counted.overdue - host.counted_lanes.overdue;
            self.cx.report.agreed_learned_for_replicas +=
                counted.learned_for_replicas - host.counted_lanes.learned_for_replicas;
            host.counted_lanes = counted;
            if let Some(replica) = &host.setup.replica {
                let counted = replica.transfer_permit.counts();
                let before = std::mem::replace(&mut host.counted_transfers, counted);
                self.cx.report.agreed_transfers += counted.0 - before.0;
                self.cx.report.agreed_transfers_failed += counted.1 - before.1;
            }
            assert_eq!(node.lane_counters().malformed, 0, "no node sends bytes that are no frames");
            for shard in (0..SHARDS).map(ShardId) {
                let Some((index, digest)) = node.digest(shard) else { continue };
                let known = *self.digests.entry((shard, index)).or_insert(digest);
                assert_eq!(known, digest, "{shard:?} at record {index} differs on node {at}");
                self.cx.report.agreed_compared += 1;
            }
        }
    }
}

/// A copy of what a core has on its disk.
fn core_data((at, host): (usize, &Host)) -> CoreData {
    let (disk, copy) = (&host.machine.disk, FaultDisk::new(1));
    for name in disk.list().expect("a directory") {
        copy.put(&name, &disk.contents(&name).expect("a file"));
    }
    let (log, _) = storage::offline::read(Arc::new(copy)).expect("a log");
    let placed = host.setup.replica.as_ref().and_then(|replica| replica.placed.as_ref());
    let stored = placed.map_or_else(StoredReplicas::default, |placed| sync::lock(&placed.stored).clone());
    CoreData { name: format!("node {at}"), log, stored }
}
