//! Pairs of nodes that do not reach each other, although a third core reaches both.
//!
//! Cores report the nodes that they do not reach to all other cores. So each core knows these pairs. A core of such a
//! pair leads no shard that a core with fewer pairs can lead: the clients of the other node could not use the shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use link::{NodeId, Time};

/// Two nodes, the smaller id first. At least one of them is a core.
pub type Pair = (NodeId, NodeId);

/// Time for which two nodes are reported before they count as a pair.
const COUNTS_AFTER: Duration = Duration::from_secs(2);
/// Time without a report after which two nodes are no pair any more. A link that fails again and again stays one.
const ENDS_AFTER: Duration = Duration::from_secs(5);

/// The pairs that this core knows.
#[derive(Debug, Default)]
pub struct CutPairs {
    known: BTreeMap<Pair, KnownPair>,
    version: u64,
}

#[derive(Clone, Copy, Debug)]
struct KnownPair {
    first: Time,
    last: Time,
    counts: bool,
}

/// A pair that has begun or ended to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairChange {
    Cut(Pair),
    Restored(Pair),
}

impl CutPairs {
    /// Learns the pairs that are reported now. Returns what has changed.
    pub fn update(&mut self, now: Time, reported: &BTreeSet<Pair>) -> Vec<PairChange> {
        let mut changes = Vec::new();
        for pair in reported {
            let new = KnownPair { first: now, last: now, counts: false };
            let known = self.known.entry(*pair).or_insert(new);
            known.last = now;
            if !known.counts && known.first.after(COUNTS_AFTER) <= now {
                known.counts = true;
                changes.push(PairChange::Cut(*pair));
            }
        }
        self.known.retain(|pair, known| {
            let stays = known.last.after(ENDS_AFTER) > now;
            if !stays && known.counts {
                changes.push(PairChange::Restored(*pair));
            }
            stays
        });
        self.version += u64::from(!changes.is_empty());
        changes
    }

    /// Returns the number of nodes that a node does not reach.
    pub fn count(&self, node: NodeId) -> usize {
        self.pairs().filter(|(one, other)| *one == node || *other == node).count()
    }

    /// Iterates over the pairs.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.known.iter().filter(|(_, known)| known.counts).map(|(pair, _)| *pair)
    }

    /// Returns a number that grows when the pairs change.
    pub fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: Pair = (NodeId(1), NodeId(2));
    const OTHER: Pair = (NodeId(1), NodeId(3));

    /// Updates every half second from one time to another. Returns the changes with their times in seconds.
    fn update(
        pairs: &mut CutPairs,
        seconds: std::ops::Range<u64>,
        reported: &[Pair],
    ) -> Vec<(f64, PairChange)> {
        let reported = reported.iter().copied().collect();
        let mut changes = Vec::new();
        for half in 2 * seconds.start..2 * seconds.end {
            let all = pairs.update(Time(half * 500_000), &reported);
            changes.extend(all.into_iter().map(|change| (half as f64 / 2.0, change)));
        }
        changes
    }

    #[test]
    fn a_pair_counts_after_a_while_and_ends_after_a_while() {
        let mut pairs = CutPairs::default();
        assert_eq!(update(&mut pairs, 0..2, &[PAIR, OTHER]), []);
        assert_eq!((pairs.count(PAIR.0), pairs.version()), (0, 0));
        let cut = [PAIR, OTHER].map(|pair| (2.0, PairChange::Cut(pair)));
        assert_eq!(update(&mut pairs, 2..9, &[PAIR, OTHER]), cut);
        let counts = [1, 2, 3, 4].map(|node| pairs.count(NodeId(node)));
        assert_eq!((counts, pairs.version()), ([2, 1, 1, 0], 1));
        assert_eq!(update(&mut pairs, 9..15, &[OTHER]), [(13.5, PairChange::Restored(PAIR))]);
        assert_eq!((pairs.pairs().collect::<Vec<_>>(), pairs.version()), (vec![OTHER], 2));
    }

    #[test]
    fn a_short_cut_is_no_pair_and_one_that_repeats_is() {
        let mut pairs = CutPairs::default();
        assert_eq!(update(&mut pairs, 0..1, &[PAIR]), []);
        assert_eq!(update(&mut pairs, 1..9, &[]), []);
        assert_eq!(update(&mut pairs, 10..11, &[PAIR]), []);
        assert_eq!(update(&mut pairs, 11..12, &[]), []);
        assert_eq!(update(&mut pairs, 12..13, &[PAIR]), [(12.0, PairChange::Cut(PAIR))]);
        assert_eq!(update(&mut pairs, 13..17, &[]), []);
        assert_eq!(pairs.count(PAIR.1), 1);
    }
}
