//! Failure detector: the members that the cores reach. The leader of the meta group declares nodes dead by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use link::{NodeId, Time};
use replog::Incarnation;

use super::PAUSE;
use super::cut_pairs::Pair;
use super::leader_state::REACHABILITY_INTERVAL;
use super::reader::Reader;

/// Report of one core about the members that it does not reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reachability {
    /// Index up to which it has applied all committed entries.
    pub applied: u64,
    /// Incarnations of nodes, and whether each may still hold a grant of this core.
    pub cut_off: BTreeMap<NodeId, (Incarnation, bool)>,
}

impl Reachability {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.applied.to_le_bytes().to_vec();
        for (id, (incarnation, holds_grant)) in &self.cut_off {
            out.extend(id.0.to_le_bytes());
            out.extend(incarnation.0.to_le_bytes());
            out.push(u8::from(*holds_grant));
        }
        out
    }

    /// Decodes a report; returns `None` for invalid bytes. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let applied = reader.u64()?;
        let mut cut_off = BTreeMap::new();
        while !reader.is_empty() {
            let id = NodeId(reader.u64()?);
            cut_off.insert(id, (Incarnation(reader.u64()?), reader.u8()? != 0));
        }
        Some(Self { applied, cut_off })
    }
}

/// Last report of each core.
#[derive(Debug, Default)]
pub struct FailureDetector {
    reports: BTreeMap<NodeId, (Time, Reachability)>,
    /// Time since which no core reaches an incarnation.
    unreachable: BTreeMap<NodeId, (Incarnation, Time)>,
}

/// Time for which a core's report is valid.
const FRESH: Duration = Duration::from_secs(3);
/// Time after its last report during which a core counts as alive when cores are added or removed. Cores report every
/// [`REACHABILITY_INTERVAL`]. A shorter time relies less often on a core that has just died.
const LATELY: Duration = Duration::from_millis(1_500);
const _: () = assert!(
    LATELY.as_millis() > REACHABILITY_INTERVAL.as_millis() + PAUSE.as_millis()
        && LATELY.as_millis() < FRESH.as_millis()
);

/// Reports of the cores about one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opinion {
    /// True when a live core reaches it.
    pub is_heard: bool,
    /// Number of cores that do not reach it.
    pub cut_off_by: usize,
    /// Number of the cores in `cut_off_by` that know of the suspicion, and whose leases for it have expired.
    pub without_grant: usize,
}

impl FailureDetector {
    pub fn report(&mut self, now: Time, core: NodeId, reachability: Reachability) {
        self.reports.insert(core, (now, reachability));
    }

    pub fn lost(&mut self, core: NodeId) {
        self.reports.remove(&core);
    }

    fn reported_within(&self, now: Time, time: Duration) -> impl Iterator<Item = (NodeId, &Reachability)> {
        let fresh = self.reports.iter().filter(move |(_, (at, _))| at.after(time) > now);
        fresh.map(|(core, (_, reachability))| (*core, reachability))
    }

    /// Returns whether all of these cores have reported recently that they have applied the entries up to an index.
    pub fn have_applied(&self, now: Time, index: u64, mut cores: impl Iterator<Item = NodeId>) -> bool {
        let recent: BTreeMap<NodeId, &Reachability> = self.reported_within(now, LATELY).collect();
        cores.all(|core| recent.get(&core).is_some_and(|reachability| reachability.applied >= index))
    }

    /// Returns the pairs of a core and a node that do not reach each other, although a third core reaches both.
    /// `is_alive` says whether an incarnation of a node is a member that is neither dead nor suspected.
    pub fn cut_pairs(
        &self,
        now: Time,
        is_core: impl Fn(NodeId) -> bool,
        is_alive: impl Fn(NodeId, Option<Incarnation>) -> bool,
    ) -> BTreeSet<Pair> {
        let all: Vec<(NodeId, &Reachability)> = self
            .reported_within(now, FRESH)
            .filter(|(core, _)| is_core(*core) && is_alive(*core, None))
            .collect();
        let reaches_both = |one: NodeId, other: NodeId| {
            all.iter().any(|(core, reachability)| {
                let reaches = |node: NodeId| *core != node && !reachability.cut_off.contains_key(&node);
                reaches(one) && reaches(other)
            })
        };
        let cut_off = |(core, reachability): &(NodeId, &Reachability)| {
            let nodes = reachability.cut_off.iter().map(|(node, (incarnation, _))| (*node, *incarnation));
            let core = *core;
            nodes.map(move |(node, incarnation)| (core, node, incarnation)).collect::<Vec<_>>()
        };
        let cut_off = all.iter().flat_map(cut_off).filter(|(core, node, incarnation)| {
            core != node && is_alive(*node, Some(*incarnation)) && reaches_both(*core, *node)
        });
        cut_off.map(|(core, node, _)| (core.min(node), core.max(node))).collect()
    }

    /// Returns the reports about an incarnation. `suspected` is the index at which the suspicion was committed.
    pub fn opinion(
        &self,
        now: Time,
        (node, incarnation): (NodeId, Incarnation),
        suspected: Option<u64>,
        is_core: impl Fn(NodeId) -> bool,
    ) -> Opinion {
        let mut opinion = Opinion { is_heard: false, cut_off_by: 0, without_grant: 0 };
        let others = self.reported_within(now, FRESH).filter(|(core, _)| *core != node && is_core(*core));
        for (_, reachability) in others {
            match reachability.cut_off.get(&node) {
                Some((cut_off, holds_grant)) if *cut_off == incarnation => {
                    opinion.cut_off_by += 1;
                    let knows = suspected.is_some_and(|since| reachability.applied >= since);
                    opinion.without_grant += usize::from(knows && !holds_grant);
                }
                // It does not know this incarnation yet, or not that it has joined.
                Some(_) => {}
                None => opinion.is_heard = true,
            }
        }
        opinion
    }

    /// Returns the time since which no core reaches an incarnation, as long as that is reported continuously.
    pub fn unreachable_since(&mut self, now: Time, node: NodeId, incarnation: Incarnation) -> Time {
        let (known, since) = self.unreachable.entry(node).or_insert((incarnation, now));
        if *known != incarnation {
            (*known, *since) = (incarnation, now);
        }
        *since
    }

    pub fn clear_unreachable(&mut self, node: NodeId) {
        self.unreachable.remove(&node);
    }

    /// Forgets everything when another core leads: it would be old when this node leads again.
    pub fn forget(&mut self) {
        self.reports.clear();
        self.unreachable.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCARNATION: Incarnation = Incarnation(5);

    fn reachability(applied: u64, cut_off: &[(u64, u64, bool)]) -> Reachability {
        let cut_off = cut_off
            .iter()
            .map(|(node, incarnation, holds)| (NodeId(*node), (Incarnation(*incarnation), *holds)));
        Reachability { applied, cut_off: cut_off.collect() }
    }

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn a_reachability_report_keeps_its_byte_format() {
        let reachability = reachability(2, &[(3, 4, true)]);
        let bytes = reachability.encode();
        let golden = [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(bytes, golden);
        assert_eq!(Reachability::decode(&bytes), Some(reachability));
        for length in 0..bytes.len() {
            assert!(
                Reachability::decode(&bytes[..length])
                    .is_none_or(|reachability| length == 8 && reachability.cut_off.is_empty())
            );
        }
    }

    #[test]
    fn reports_count_while_they_are_fresh_and_about_that_incarnation() {
        let mut failure_detector = FailureDetector::default();
        let opinion = |failure_detector: &FailureDetector, ms: u64, since| {
            let found =
                failure_detector.opinion(Time(ms * 1000), (NodeId(9), INCARNATION), since, |core| core.0 < 4);
            (found.is_heard, found.cut_off_by, found.without_grant)
        };
        failure_detector.report(Time(0), NodeId(1), reachability(7, &[(9, 5, true)]));
        failure_detector.report(Time(0), NodeId(2), reachability(8, &[(9, 5, false)]));
        failure_detector.report(Time(0), NodeId(3), reachability(8, &[(9, 4, false)]));
        failure_detector.report(Time(0), NodeId(4), reachability(8, &[]));
        failure_detector.report(Time(0), NodeId(9), reachability(8, &[]));
        assert_eq!(
            opinion(&failure_detector, 1, None),
            (false, 2, 0),
            "no report about itself, an earlier incarnation, or by a node that is no core"
        );
        assert_eq!(opinion(&failure_detector, 1, Some(8)), (false, 2, 1));
        assert_eq!(opinion(&failure_detector, 1, Some(9)), (false, 2, 0));
        failure_detector.report(Time(0), NodeId(3), reachability(8, &[]));
        assert_eq!(opinion(&failure_detector, 1, Some(8)), (true, 2, 1));
        assert_eq!(opinion(&failure_detector, 3001, Some(8)), (false, 0, 0));
        failure_detector.lost(NodeId(3));
        assert_eq!(opinion(&failure_detector, 1, Some(8)), (false, 2, 1));
    }

    #[test]
    fn two_nodes_are_a_cut_pair_while_a_third_core_reaches_both() {
        let mut failure_detector = FailureDetector::default();
        let pairs = |failure_detector: &FailureDetector, ms: u64, alive: u64| {
            let is_alive = |node: NodeId, incarnation: Option<Incarnation>| {
                node.0 <= alive && incarnation.is_none_or(|incarnation| incarnation == INCARNATION)
            };
            let pairs = failure_detector.cut_pairs(Time(ms * 1000), |core| core.0 < 4, is_alive);
            pairs.into_iter().map(|(one, other)| (one.0, other.0)).collect::<Vec<_>>()
        };
        failure_detector.report(Time(0), NodeId(3), reachability(0, &[(1, 5, true), (9, 5, true)]));
        assert_eq!(pairs(&failure_detector, 1, 9), [], "no third core has reported");
        failure_detector.report(Time(0), NodeId(4), reachability(0, &[]));
        assert_eq!(pairs(&failure_detector, 1, 9), [], "a node that is no core does not count");
        failure_detector.report(Time(0), NodeId(2), reachability(0, &[]));
        assert_eq!(pairs(&failure_detector, 1, 9), [(1, 3), (3, 9)]);
        assert_eq!(pairs(&failure_detector, 1, 3), [(1, 3)], "the node is dead");
        failure_detector.report(Time(0), NodeId(3), reachability(0, &[(1, 4, true), (9, 5, true)]));
        assert_eq!(pairs(&failure_detector, 1, 9), [(3, 9)], "an earlier incarnation");
        failure_detector.report(Time(0), NodeId(1), reachability(0, &[(3, 5, true)]));
        assert_eq!(pairs(&failure_detector, 1, 9), [(1, 3), (3, 9)], "the other one reports the same");
        failure_detector.report(Time(0), NodeId(2), reachability(0, &[(9, 5, true)]));
        assert_eq!(pairs(&failure_detector, 1, 9), [(1, 3), (2, 9)], "no core reaches 3 and 9");
        assert_eq!(pairs(&failure_detector, 3_000, 9), [], "that was long ago");
    }

    #[test]
    fn all_cores_have_applied_the_entries_that_each_recently_reports() {
        let mut failure_detector = FailureDetector::default();
        let cores = || [NodeId(1), NodeId(2)].into_iter();
        failure_detector.report(Time(0), NodeId(1), reachability(7, &[]));
        assert!(!failure_detector.have_applied(Time(1), 6, cores()));
        failure_detector.report(Time(0), NodeId(2), reachability(6, &[]));
        assert!(failure_detector.have_applied(Time(1), 6, cores()));
        assert!(!failure_detector.have_applied(Time(1), 7, cores()));
        assert!(failure_detector.have_applied(Time(1), 9, std::iter::empty()));
        assert!(failure_detector.have_applied(Time(1_499_999), 6, cores()));
        assert!(!failure_detector.have_applied(Time(1_500_000), 6, cores()), "it may have died meanwhile");
    }

    #[test]
    fn silence_counts_for_one_incarnation() {
        let mut failure_detector = FailureDetector::default();
        assert_eq!(failure_detector.unreachable_since(Time(1), NodeId(9), INCARNATION), Time(1));
        assert_eq!(failure_detector.unreachable_since(Time(5), NodeId(9), INCARNATION), Time(1));
        assert_eq!(failure_detector.unreachable_since(Time(6), NodeId(9), Incarnation(6)), Time(6));
        failure_detector.clear_unreachable(NodeId(9));
        assert_eq!(failure_detector.unreachable_since(Time(8), NodeId(9), Incarnation(6)), Time(8));
    }
}
