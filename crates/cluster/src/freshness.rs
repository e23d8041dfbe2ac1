//! Which nodes may acknowledge messages: those that a majority of cores lets do so, each for a lease, as long as they know nearly all
//! routes that the core knows. So a core can say that all who may acknowledge know a route.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use link::{NodeId, Time};
use replog::{Incarnation, Position, WriterId};

use crate::mutation::{Mutation, mutated};
use crate::wire::Vector;

/// How far somebody is with each writer.
pub type KnownPositions = BTreeMap<WriterId, (Incarnation, Position)>;

/// What this core has granted to others.
#[derive(Debug)]
pub struct Grants {
    lease: Duration,
    /// Grants of an earlier life of this core may hold until then.
    recalled: Time,
    granted: BTreeMap<NodeId, Granted>,
    /// How far this core was at times past, the oldest first.
    past: VecDeque<(Time, KnownPositions)>,
}

#[derive(Debug, Default)]
struct Granted {
    until: Time,
    applied: KnownPositions,
    /// It has what was granted until then. Otherwise it is about to.
    is_holder: bool,
    /// What it has to know first: all that may have been said to be settled while it held nothing.
    entry: Option<KnownPositions>,
}

/// Looks at how far this core is, in one lease.
const SNAPSHOTS_PER_LEASE: u32 = 4;

impl Grants {
    pub fn new(now: Time, lease: Duration) -> Self {
        let recalled = if mutated(Mutation::ForgetGrants) { now } else { now.after(longer(lease)) };
        Self { lease, recalled, granted: BTreeMap::new(), past: VecDeque::new() }
    }

    /// How far this core is now.
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
        // One that is older than a lease is enough.
        while self.past.get(1).is_some_and(|(at, _)| at.after(self.lease) <= now) {
            self.past.pop_front();
        }
    }

    /// A node says how far it is.
    pub fn applied(&mut self, node: NodeId, vector: Vector) {
        let known = &mut self.granted.entry(node).or_default().applied;
        for (writer, incarnation, position) in vector {
            let known = known.entry(writer).or_default();
            // What it says last is so: a life with a greater number may be over.
            let is_last = known.0 <= incarnation || !mutated(Mutation::RememberIncarnations);
            if is_last && (known.0 != incarnation || known.1 < position) {
                *known = (incarnation, position);
            }
        }
    }

    /// Some lives of a writer are over: nobody has to know what they wrote, and whoever does knows nothing of those that follow.
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

    /// Whether what was granted to a node may hold.
    pub fn holds(&self, now: Time, node: NodeId) -> bool {
        now < self.recalled || self.granted.get(&node).is_some_and(|granted| granted.until > now)
    }

    /// Who has what was granted, and until when it may hold.
    pub fn holders(&self) -> impl Iterator<Item = (NodeId, Time)> {
        let holders = self.granted.iter().filter(|(_, granted)| granted.is_holder);
        holders.map(|(node, granted)| (*node, granted.until))
    }

    /// The others are no members any more: what they hold counts for nothing once its time is over.
    pub fn keep(&mut self, now: Time, is_member: impl Fn(NodeId) -> bool) {
        let may_hold = |granted: &Granted| granted.until > now && !mutated(Mutation::ForgetRemoved);
        self.granted.retain(|node, granted| is_member(*node) || may_hold(granted));
    }

    /// A node has begun a new life, in which it knows nothing yet. What was granted to the earlier one holds.
    pub fn restarted(&mut self, node: NodeId) {
        if let Some(granted) = self.granted.get_mut(&node) {
            granted.applied.clear();
            (granted.is_holder, granted.entry) = (false, None);
        }
    }

    /// A node asks for a lease. One that has none gets it when it knows all that this core knew when it asked first, and is waited for
    /// as if it had one meanwhile; one that has a lease keeps it while it knows what this core knew a lease ago.
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

    /// Up to where a node has applied the changes of a writer's incarnation, as it has said last.
    pub fn applied_by(&self, node: NodeId, writer: WriterId, incarnation: Incarnation) -> Position {
        let known = self.granted.get(&node).and_then(|granted| granted.applied.get(&writer));
        known.filter(|known| known.0 == incarnation).map_or(Position::default(), |known| known.1)
    }

    /// Up to where all who may acknowledge by this core's word know a writer's changes, of which this core knows those up to `own`.
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

/// Clocks of two nodes do not run at quite the same speed.
fn longer(lease: Duration) -> Duration {
    if mutated(Mutation::NoMargin) { lease } else { lease * 11 / 10 }
}

/// What cores have granted to this node.
#[derive(Debug)]
pub struct Leases {
    lease: Duration,
    /// Cores of the cluster.
    cores: usize,
    is_core: bool,
    until: BTreeMap<NodeId, Time>,
    settled: BTreeMap<NodeId, Position>,
}

impl Leases {
    pub fn new(lease: Duration, cores: usize, is_core: bool) -> Self {
        Self { lease, cores, is_core, until: BTreeMap::new(), settled: BTreeMap::new() }
    }

    /// These are the cores now; whether this node is one does not change.
    pub fn set_cores(&mut self, cores: &BTreeSet<NodeId>) {
        let counted = if mutated(Mutation::CountRemoved) { self.cores } else { 0 };
        self.cores = cores.len().max(counted);
        self.until.retain(|core, _| cores.contains(core));
        self.settled.retain(|core, _| cores.contains(core));
    }

    /// What was granted, and settled, was so of an earlier life of this node.
    pub fn forget(&mut self) {
        self.until.clear();
        self.settled.clear();
    }

    /// A core has granted a lease that was asked for at `asked`.
    pub fn granted(&mut self, core: NodeId, asked: Time) {
        let until = self.until.entry(core).or_default();
        *until = asked.after(self.lease).max(*until);
    }

    /// Until when a majority of cores lets this node acknowledge; `own` is until when this one does, if it is a core.
    pub fn fresh_until(&self, own: Time) -> Time {
        self.majority(self.until.values().copied(), own)
    }

    /// Cores that have granted something, and until when it holds.
    pub fn granted_by(&self) -> impl Iterator<Item = (NodeId, Time)> {
        self.until.iter().map(|(core, until)| (*core, *until))
    }

    /// A core says up to where it has settled this node's changes.
    pub fn settled(&mut self, core: NodeId, position: Position) {
        let settled = self.settled.entry(core).or_default();
        *settled = position.max(*settled);
    }

    /// Up to where a majority of cores has, of which this node's own word is `own` if it is one.
    pub fn settled_by_majority(&self, own: Position) -> Position {
        self.majority(self.settled.values().copied(), own)
    }

    /// What at least a majority has; `own` is this node's, if it is a core.
    fn majority<T: Ord + Copy + Default>(&self, others: impl Iterator<Item = T>, own: T) -> T {
        let mut all: Vec<T> = others.chain(self.is_core.then_some(own)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.cores / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// While a node had no lease others were told that all know what it does not.
    #[test]
    fn who_comes_back_first_hears_all_and_is_waited_for_meanwhile() {
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
    fn a_route_is_settled_when_all_who_may_acknowledge_know_it_or_may_no_more() {
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), WRITER, (Incarnation(1), Position(9))).0;
        assert_eq!(settled(&grants, 2199), 0, "an earlier life may have granted something");
        assert_eq!(settled(&grants, 2200), 9);
        assert!(grants.renew(at(3000), NodeId(2), nothing()));
        assert!(grants.renew(at(3000), NodeId(3), nothing()));
        grants.applied(NodeId(2), known(9));
        grants.applied(NodeId(3), known(5));
        assert_eq!(settled(&grants, 3001), 5);
        assert_eq!(settled(&grants, 5199), 5);
        assert_eq!(settled(&grants, 5200), 9, "its lease has run out, by a slow clock too");
    }

    /// A node may acknowledge until its lease has run out, whether or not it has heard that it was removed.
    #[test]
    fn who_is_removed_is_waited_for_as_long_as_its_lease_runs() {
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
            "and nothing of it is kept"
        );
        assert_eq!(grants.applied_by(NodeId(3), WRITER, Incarnation(1)), Position(9));
    }

    #[test]
    fn who_is_behind_by_a_lease_is_granted_none() {
        let mut grants = Grants::new(at(0), LEASE);
        grants.take_snapshot(at(3000), known(7).into_iter());
        assert!(grants.renew(at(4000), NodeId(2), nothing()), "it may not have heard yet");
        assert!(!grants.renew(at(5000), NodeId(2), known(7).into_iter()));
        assert!(grants.renew(at(5000), NodeId(WRITER.0), known(7).into_iter()), "the writer knows its own");
        grants.applied(NodeId(2), known(7));
        assert!(grants.renew(at(5000), NodeId(2), known(7).into_iter()));
        grants.restarted(NodeId(2));
        assert!(!grants.renew(at(5000), NodeId(2), known(7).into_iter()));
    }

    /// A writer was removed, and is back in a life with a smaller number. What a node knows of the greater one is nothing that it has to know.
    #[test]
    fn what_was_known_of_a_life_that_is_over_counts_for_no_other() {
        let incarnation =
            |incarnation, position| vec![(WRITER, Incarnation(incarnation), Position(position))];
        let mut grants = Grants::new(at(0), LEASE);
        let settled = |grants: &Grants, ms| grants.settled(at(ms), WRITER, (Incarnation(1), Position(9))).0;
        grants.applied(NodeId(2), incarnation(51, 2));
        grants.take_snapshot(at(3000), incarnation(51, 2).into_iter());
        assert!(grants.renew(at(3000), NodeId(2), incarnation(51, 2).into_iter()));
        assert_eq!(settled(&grants, 3001), 0, "it was told of another life");
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
        assert!(grants.renew(at(5100), NodeId(2), nothing()), "what it knew a lease ago is not asked for");
    }

    #[test]
    fn a_majority_of_cores_decides() {
        let mut leases = Leases::new(LEASE, 3, false);
        assert_eq!(leases.fresh_until(Time::NEVER), at(0));
        leases.granted(NodeId(1), at(1000));
        assert_eq!(leases.fresh_until(Time::NEVER), at(0));
        leases.granted(NodeId(2), at(500));
        assert_eq!(leases.fresh_until(Time::NEVER), at(2500));
        leases.granted(NodeId(2), at(400));
        assert_eq!(leases.fresh_until(Time::NEVER), at(2500), "an answer that is late takes nothing away");
        let mut core = Leases::new(LEASE, 3, true);
        assert_eq!(core.fresh_until(Time::NEVER), at(0), "one of three is no majority");
        core.granted(NodeId(1), at(1000));
        assert_eq!(core.fresh_until(Time::NEVER), at(3000));
        assert_eq!(Leases::new(LEASE, 1, true).fresh_until(Time::NEVER), Time::NEVER);
        core.settled(NodeId(1), Position(4));
        assert_eq!(core.settled_by_majority(Position(7)), Position(4));
        assert_eq!(core.settled_by_majority(Position(3)), Position(3));
    }
}
