//! Leases: which nodes may acknowledge messages. A majority of cores grants each node a lease, as long as it knows
//! nearly all routes that the core knows. So a core can tell when all nodes that may acknowledge know a route.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use broker::ShardId;
use link::{NodeId, Time};
use replog::{Incarnation, Position, WriterId};

use crate::mutation::{Mutation, mutated};
use crate::wire::Vector;

/// Position of a node in the changes of each writer.
pub type KnownPositions = BTreeMap<WriterId, (Incarnation, Position)>;

/// Grants of this core to other nodes.
#[derive(Debug)]
pub struct Grants {
    lease: Duration,
    /// Time until which grants of an earlier incarnation of this core may hold.
    recalled: Time,
    granted: BTreeMap<NodeId, Granted>,
    /// Positions of this core at earlier times, the oldest first.
    past: VecDeque<(Time, KnownPositions)>,
}

#[derive(Debug, Default)]
struct Granted {
    until: Time,
    applied: KnownPositions,
    /// True while it has a lease, which runs until then. Otherwise it is about to get one.
    is_holder: bool,
    /// Positions that it must reach first: all that may have been reported as settled while it had no lease.
    entry: Option<KnownPositions>,
}

/// Snapshots of this core's positions per lease.
const SNAPSHOTS_PER_LEASE: u32 = 4;

impl Grants {
    pub fn new(now: Time, lease: Duration) -> Self {
        let recalled = if mutated(Mutation::ForgetGrants) { now } else { now.after(longer(lease)) };
        Self { lease, recalled, granted: BTreeMap::new(), past: VecDeque::new() }
    }

    /// Records this core's positions now.
    pub fn take_snapshot(
        &mut self,
        now: Time,
        vector: impl Iterator<Item = (WriterId, Incarnation, Position)>,
    ) {
        let since_last = self.past.back().map_or(u64::MAX, |(at, _)| now.since(*at));
        if since_last < (self.lease / SNAPSHOTS_PER_LEASE).as_micros() as u64 {
            return;
        }
        let known = vector.map(|(writer, incarnation, position)| (writer, (incarnation, position)));
        self.past.push_back((now, known.collect()));
        // One snapshot that is older than a lease is enough.
        while self.past.get(1).is_some_and(|(at, _)| at.after(self.lease) <= now) {
            self.past.pop_front();
        }
    }

    /// Notes the positions that a node reports.
    pub fn applied(&mut self, node: NodeId, vector: Vector) {
        let known = &mut self.granted.entry(node).or_default().applied;
        for (writer, incarnation, position) in vector {
            let known = known.entry(writer).or_default();
            // The last report counts: an incarnation with a greater number may be over.
            let is_last = known.0 <= incarnation || !mutated(Mutation::RememberIncarnations);
            if is_last && (known.0 != incarnation || known.1 < position) {
                *known = (incarnation, position);
            }
        }
    }

    /// Forgets ended incarnations of a writer: no node has to know their changes, and a node that does knows nothing of
    /// later ones.
    pub fn forget_incarnations(&mut self, writer: WriterId, is_over: impl Fn(Incarnation) -> bool) {
        let forget = |known: &mut KnownPositions| {
            if known.get(&writer).is_some_and(|(incarnation, _)| is_over(*incarnation)) {
                known.remove(&writer);
            }
        };
        for granted in self.granted.values_mut() {
            forget(&mut granted.applied);
            granted.entry.iter_mut().for_each(forget);
        }
        self.past.iter_mut().for_each(|(_, known)| forget(known));
    }

    /// Returns whether a grant to a node may hold.
    pub fn holds(&self, now: Time, node: NodeId) -> bool {
        now < self.recalled || self.granted.get(&node).is_some_and(|granted| granted.until > now)
    }

    /// Iterates over the nodes with a grant, and the time until which it may hold.
    pub fn holders(&self) -> impl Iterator<Item = (NodeId, Time)> {
        let holders = self.granted.iter().filter(|(_, granted)| granted.is_holder);
        holders.map(|(node, granted)| (*node, granted.until))
    }

    /// Drops all nodes but the members: their grants count until they expire.
    pub fn keep(&mut self, now: Time, is_member: impl Fn(NodeId) -> bool) {
        let may_hold = |granted: &Granted| granted.until > now && !mutated(Mutation::ForgetRemoved);
        self.granted.retain(|node, granted| is_member(*node) || may_hold(granted));
    }

    /// Notes that a node has a new incarnation, which knows nothing yet. Grants to the earlier one hold.
    pub fn restarted(&mut self, node: NodeId) {
        if let Some(granted) = self.granted.get_mut(&node) {
            granted.applied.clear();
            (granted.is_holder, granted.entry) = (false, None);
        }
    }

    /// Handles a node's request for a lease. A node without one gets it once it knows all that this core knew at its
    /// first request; meanwhile it is waited for like a holder. A node with a lease keeps it while it knows what this
    /// core knew one lease ago.
    pub fn renew(
        &mut self,
        now: Time,
        node: NodeId,
        vector: impl Iterator<Item = (WriterId, Incarnation, Position)>,
    ) -> bool {
        let granted = self.granted.entry(node).or_default();
        if !granted.is_holder || granted.until <= now {
            granted.is_holder = false;
            if granted.entry.is_none() || granted.until <= now {
                let others = vector.filter(|(writer, ..)| writer.0 != node.0);
                let known = others.map(|(writer, incarnation, position)| (writer, (incarnation, position)));
                granted.entry = Some(known.collect());
                granted.until = now.after(longer(self.lease)).max(granted.until);
            }
            let knows = |(writer, position): (&WriterId, &(Incarnation, Position))| {
                granted.applied.get(writer).copied().unwrap_or_default() >= *position
            };
            if !granted.entry.iter().flatten().all(knows) {
                return false;
            }
            (granted.is_holder, granted.entry) = (true, None);
            granted.until = now.after(longer(self.lease));
            return true;
        }
        let old = self.past.front().filter(|(at, _)| at.after(self.lease) <= now);
        let is_behind = old.is_some_and(|(_, known)| {
            known.iter().any(|(writer, position)| {
                writer.0 != node.0 && granted.applied.get(writer).copied().unwrap_or_default() < *position
            })
        });
        if !is_behind {
            granted.until = now.after(longer(self.lease));
        }
        !is_behind
    }

    /// Returns the position up to which a node has applied the changes of a writer's incarnation, by its last report.
    pub fn applied_by(&self, node: NodeId, writer: WriterId, incarnation: Incarnation) -> Position {
        let known = self.granted.get(&node).and_then(|granted| granted.applied.get(&writer));
        known.filter(|known| known.0 == incarnation).map_or(Position::default(), |known| known.1)
    }

    /// Returns the position in a writer's changes that all nodes with a grant of this core know. This core knows the
    /// changes up to `own`.
    pub fn settled(
        &self,
        now: Time,
        writer: WriterId,
        (incarnation, own): (Incarnation, Position),
    ) -> Position {
        if now < self.recalled {
            return Position::default();
        }
        let others = self.granted.iter().filter(|(node, granted)| node.0 != writer.0 && granted.until > now);
        let positions = others.map(|(node, _)| self.applied_by(*node, writer, incarnation));
        positions.min().map_or(own, |least| least.min(own))
    }
}

/// Lengthens a lease, because the clocks of two nodes do not run at quite the same speed.
fn longer(lease: Duration) -> Duration {
    if mutated(Mutation::NoMargin) { lease } else { lease * 11 / 10 }
}

/// Grants of cores to this node.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    /// Number of cores of the cluster; while no other is known, this node alone if it is one.
    cores: usize,
    is_core: bool,
    until: BTreeMap<NodeId, Time>,
    settled: BTreeMap<NodeId, Position>,
    settled_of_shards: BTreeMap<(ShardId, NodeId), Position>,
}

impl Leases {
    pub fn new(lease: Duration, is_core: bool) -> Self {
        let cores = usize::from(is_core);
        Self {
            lease,
            cores,
            is_core,
            until: BTreeMap::new(),
            settled: BTreeMap::new(),
            settled_of_shards: BTreeMap::new(),
        }
    }

    /// Sets the cores. This node itself does not change its role.
    pub fn set_cores(&mut self, cores: &BTreeSet<NodeId>) {
        let counted = if mutated(Mutation::CountRemoved) { self.cores } else { 0 };
        self.cores = cores.len().max(counted);
        self.until.retain(|core, _| cores.contains(core));
        self.settled.retain(|core, _| cores.contains(core));
        self.settled_of_shards.retain(|(_, core), _| cores.contains(core));
    }

    /// Forgets all grants, and the settled positions of this node: they belonged to an earlier incarnation of it.
    pub fn forget(&mut self) {
        self.until.clear();
        self.settled.clear();
    }

    /// Notes that a core has granted a lease that was requested at `asked`.
    pub fn granted(&mut self, core: NodeId, asked: Time) {
        let until = self.until.entry(core).or_default();
        *until = asked.after(self.lease).max(*until);
    }

    /// Returns the time until which a majority of cores lets this node acknowledge. `own` is the time of this core's
    /// own grant, if it is one.
    pub fn fresh_until(&self, own: Time) -> Time {
        self.majority(self.until.values().copied(), own)
    }

    /// Iterates over the cores with a grant to this node, and the time until which it holds.
    pub fn granted_by(&self) -> impl Iterator<Item = (NodeId, Time)> {
        self.until.iter().map(|(core, until)| (*core, *until))
    }

    /// Notes the position up to which a core has settled this node's changes.
    pub fn settled(&mut self, core: NodeId, position: Position) {
        let settled = self.settled.entry(core).or_default();
        *settled = position.max(*settled);
    }

    /// Notes the position up to which a core has settled the changes of a shard.
    pub fn shard_settled(&mut self, core: NodeId, shard: ShardId, position: Position) {
        let settled = self.settled_of_shards.entry((shard, core)).or_default();
        *settled = position.max(*settled);
    }

    /// Returns the position of a shard that a majority of cores has settled. `own` is that of this core, if it is one.
    pub fn shard_settled_by_majority(&self, shard: ShardId, own: Position) -> Position {
        let of_shard = (shard, NodeId(u64::MIN))..=(shard, NodeId(u64::MAX));
        self.majority(self.settled_of_shards.range(of_shard).map(|(_, position)| *position), own)
    }

    /// Returns the position that a majority of cores has settled. `own` is this core's own position, if it is one.
    pub fn settled_by_majority(&self, own: Position) -> Position {
        self.majority(self.settled.values().copied(), own)
    }

    /// Returns the greatest value that a majority has reached; `own` is this node's, if it is a core.
    fn majority<T: Ord + Copy + Default>(&self, others: impl Iterator<Item = T>, own: T) -> T {
        let mut all: Vec<T> = others.chain(self.is_core.then_some(own)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.cores / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard_positions::{self, writer_of};

    const LEASE: Duration = Duration::from_secs(2);
    const WRITER: WriterId = WriterId(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1000)
    }

    fn known(position: u64) -> Vector {
        vec![(WRITER, Incarnation(1), Position(position))]
    }

    fn nothing() -> std::vec::IntoIter<(WriterId, Incarnation, Position)> {
        Vec::new().into_iter()
    }

    /// Others were promised, while a node had no lease, that all nodes know changes that it does not know.
    #[test]
    fn a_returning_node_first_learns_everything_and_is_waited_for_meanwhile() {
        let mut grants = Grants::new(at(0), LEASE);
        let settled =
            |grants: &Grants, ms, own| grants.settled(at(ms), WRITER, (Incarnation(1), Position(own))).0;
        assert_eq!(settled(&grants, 3000, 9), 9);
        assert!(!grants.renew(at(3001), NodeId(2), known(9).into_iter()));
        assert_eq!(settled(&grants, 3002, 10), 0, "it may have its lease soon");
        assert!(!grants.renew(at(3500), NodeId(2), known(10).into_iter()));
        grants.applied(NodeId(2), known(9));
        assert!(grants.renew(at(4000), NodeId(2), known(11).into_iter()));
        assert_eq!(settled(&grants, 4001, 11), 9);
        assert_eq!(settled(&grants, 6200, 11), 11);
        assert!(!grants.renew(at(6201), NodeId(2), known(11).into_iter()));
    }

    #[test]
    fn a_route_is_settled_when_all_lease_holders_know_it_or_have_expired() {
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), WRITER, (Incarnation(1), Position(9))).0;
        assert_eq!(settled(&grants, 2199), 0, "an earlier incarnation may have granted a lease");
        assert_eq!(settled(&grants, 2200), 9);
        assert!(grants.renew(at(3000), NodeId(2), nothing()));
        assert!(grants.renew(at(3000), NodeId(3), nothing()));
        grants.applied(NodeId(2), known(9));
        grants.applied(NodeId(3), known(5));
        assert_eq!(settled(&grants, 3001), 5);
        assert_eq!(settled(&grants, 5199), 5);
        assert_eq!(settled(&grants, 5200), 9, "its lease has run out, by a slow clock too");
    }

    /// A node may acknowledge until its lease expires, even if it does not know that it was removed.
    #[test]
    fn a_removed_node_is_waited_for_until_its_lease_expires() {
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), WRITER, (Incarnation(1), Position(9))).0;
        grants.applied(NodeId(2), known(5));
        grants.applied(NodeId(3), known(9));
        assert!(grants.renew(at(3000), NodeId(2), nothing()));
        assert!(grants.renew(at(3000), NodeId(3), nothing()));
        grants.keep(at(3001), |node| node == NodeId(3));
        assert!(grants.holds(at(3002), NodeId(2)));
        assert_eq!(settled(&grants, 3002), 5);
        assert!(grants.renew(at(5000), NodeId(3), nothing()));
        grants.keep(at(5199), |node| node == NodeId(3));
        assert_eq!(settled(&grants, 5199), 5);
        assert_eq!(settled(&grants, 5200), 9, "its lease has run out");
        grants.keep(at(5200), |node| node == NodeId(3));
        assert_eq!(
            grants.applied_by(NodeId(2), WRITER, Incarnation(1)),
            Position(0),
            "and its state is dropped"
        );
        assert_eq!(grants.applied_by(NodeId(3), WRITER, Incarnation(1)), Position(9));
    }

    #[test]
    fn a_node_that_is_behind_by_a_lease_gets_none() {
        let mut grants = Grants::new(at(0), LEASE);
        grants.take_snapshot(at(3000), known(7).into_iter());
        assert!(grants.renew(at(4000), NodeId(2), nothing()), "it may not know yet");
        assert!(!grants.renew(at(5000), NodeId(2), known(7).into_iter()));
        assert!(grants.renew(at(5000), NodeId(WRITER.0), known(7).into_iter()), "the writer knows its own");
        grants.applied(NodeId(2), known(7));
        assert!(grants.renew(at(5000), NodeId(2), known(7).into_iter()));
        grants.restarted(NodeId(2));
        assert!(!grants.renew(at(5000), NodeId(2), known(7).into_iter()));
    }

    /// A writer was removed, and returned with an incarnation with a smaller number. The state of a node about the
    /// greater one is irrelevant.
    #[test]
    fn positions_of_an_ended_incarnation_do_not_count_for_another() {
        let incarnation =
            |incarnation, position| vec![(WRITER, Incarnation(incarnation), Position(position))];
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), WRITER, (Incarnation(1), Position(9))).0;
        grants.applied(NodeId(2), incarnation(51, 2));
        grants.take_snapshot(at(3000), incarnation(51, 2).into_iter());
        assert!(grants.renew(at(3000), NodeId(2), incarnation(51, 2).into_iter()));
        assert_eq!(settled(&grants, 3001), 0, "it knew another incarnation");
        grants.forget_incarnations(WRITER, |incarnation| incarnation > Incarnation(1));
        assert!(!grants.renew(at(3001), NodeId(3), incarnation(1, 9).into_iter()));
        grants.applied(NodeId(2), incarnation(1, 1));
        assert_eq!(settled(&grants, 3002), 0, "another one may have a lease soon");
        grants.applied(NodeId(3), incarnation(51, 99));
        grants.applied(NodeId(3), incarnation(1, 8));
        assert!(!grants.renew(at(3003), NodeId(3), nothing()));
        grants.applied(NodeId(3), incarnation(1, 9));
        assert!(grants.renew(at(3004), NodeId(3), nothing()));
        assert_eq!(settled(&grants, 3005), 1);
        assert!(grants.renew(at(5100), NodeId(2), nothing()), "its positions of one lease ago suffice");
    }

    /// A shard is a writer that is no node. Position 0 says that a node knows that no session has a subscription.
    #[test]
    fn a_node_has_a_lease_when_it_knows_the_routes_of_shards() {
        let shard = writer_of(ShardId(3));
        let of_shard = |position| vec![(shard, Incarnation(1), Position(position))];
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), shard, shard_positions::at(Position(9))).0;
        assert!(!grants.renew(at(3000), NodeId(20), of_shard(0).into_iter()));
        grants.applied(NodeId(20), of_shard(0));
        assert!(grants.renew(at(3000), NodeId(20), of_shard(0).into_iter()));
        assert_eq!(settled(&grants, 3001), 0, "a holder does not know position 9");
        grants.applied(NodeId(20), of_shard(8));
        assert_eq!(settled(&grants, 3002), 8);
        grants.take_snapshot(at(3003), of_shard(9).into_iter());
        assert!(grants.renew(at(4000), NodeId(20), of_shard(9).into_iter()), "it may not know yet");
        assert!(!grants.renew(at(5003), NodeId(20), of_shard(9).into_iter()));
        assert_eq!(settled(&grants, 6199), 8);
        assert_eq!(settled(&grants, 6200), 9, "its lease has run out");
        assert!(
            !grants.renew(at(7000), NodeId(20), of_shard(9).into_iter()),
            "it has to know position 9 first"
        );
        assert_eq!(settled(&grants, 7001), 8, "it may have a lease soon");
        grants.applied(NodeId(20), of_shard(9));
        assert!(grants.renew(at(7002), NodeId(20), of_shard(10).into_iter()));
        assert_eq!(settled(&grants, 7003), 9);
        grants.restarted(NodeId(20));
        assert!(!grants.renew(at(7004), NodeId(20), of_shard(10).into_iter()));
    }

    #[test]
    fn a_majority_of_cores_settles_each_shard() {
        let mut leases = Leases::new(LEASE, true);
        let shards = [3, 4].map(ShardId);
        leases.set_cores(&BTreeSet::from([1, 2, 3].map(NodeId)));
        leases.shard_settled(NodeId(1), shards[0], Position(4));
        leases.shard_settled(NodeId(2), shards[1], Position(9));
        let settled = |leases: &Leases, own| {
            shards.map(|shard| leases.shard_settled_by_majority(shard, Position(own)).0)
        };
        assert_eq!(settled(&leases, 6), [4, 6]);
        leases.shard_settled(NodeId(1), shards[0], Position(2));
        leases.forget();
        assert_eq!(settled(&leases, 6), [4, 6], "nodes that know a position know it still");
        leases.set_cores(&BTreeSet::from([1, 3].map(NodeId)));
        assert_eq!(settled(&leases, 6), [4, 0]);
    }

    #[test]
    fn a_majority_of_cores_decides() {
        let cores = BTreeSet::from([1, 2, 3].map(NodeId));
        let mut leases = Leases::new(LEASE, false);
        leases.set_cores(&cores);
        assert_eq!(leases.fresh_until(Time::NEVER), at(0));
        leases.granted(NodeId(1), at(1000));
        assert_eq!(leases.fresh_until(Time::NEVER), at(0));
        leases.granted(NodeId(2), at(500));
        assert_eq!(leases.fresh_until(Time::NEVER), at(2500));
        leases.granted(NodeId(2), at(400));
        assert_eq!(leases.fresh_until(Time::NEVER), at(2500), "an answer that is late takes nothing away");
        let mut core = Leases::new(LEASE, true);
        core.set_cores(&cores);
        assert_eq!(core.fresh_until(Time::NEVER), at(0), "one of three is no majority");
        core.granted(NodeId(1), at(1000));
        assert_eq!(core.fresh_until(Time::NEVER), at(3000));
        assert_eq!(Leases::new(LEASE, true).fresh_until(Time::NEVER), Time::NEVER);
        core.settled(NodeId(1), Position(4));
        assert_eq!(core.settled_by_majority(Position(7)), Position(4));
        assert_eq!(core.settled_by_majority(Position(3)), Position(3));
    }
}
