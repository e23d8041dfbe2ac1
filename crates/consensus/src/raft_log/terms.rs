//! Terms of the entries of a log.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::raft_types::LogId;
use crate::wire::{log_id, term_of};

/// Ids of consecutive entries: the first index of each term.
#[derive(Default)]
pub(super) struct Terms {
    first: VecDeque<LogId>,
    last: Option<LogId>,
}

impl Terms {
    pub fn last(&self) -> Option<LogId> {
        self.last
    }

    pub fn push(&mut self, id: LogId) {
        if self.first.back().is_none_or(|back| back.leader_id != id.leader_id) {
            self.first.push_back(id);
        }
        self.last = Some(id);
    }

    /// Id of the entry at an index.
    pub fn get(&self, index: u64) -> Option<LogId> {
        let last = self.last.filter(|last| index <= last.index)?;
        let runs = self.first.partition_point(|first| first.index <= index);
        let first = self.first.get(runs.checked_sub(1)?)?;
        Some(log_id(term_of(first), index.min(last.index)))
    }

    /// Removes the entries from `next` on.
    pub fn truncate(&mut self, next: u64) {
        self.last = next.checked_sub(1).and_then(|last| self.get(last.min(self.last?.index)));
        while self.first.back().is_some_and(|first| first.index >= next) {
            self.first.pop_back();
        }
    }

    /// Removes the entries before `next`.
    pub fn purge(&mut self, next: u64) {
        if self.first.front().is_none_or(|front| next <= front.index) {
            return;
        }
        let first = self.get(next);
        self.last = self.last.filter(|_| first.is_some());
        while self.first.front().is_some_and(|front| front.index < next) {
            self.first.pop_front();
        }
        if let Some(first) = first
            && self.first.front().is_none_or(|front| front.index != first.index)
        {
            self.first.push_front(first);
        }
    }

    /// The last id of each term in a range.
    pub fn last_ids(&self, range: &RangeInclusive<LogId>) -> Vec<LogId> {
        let (start, end) = (range.start().index, range.end().index);
        let later =
            self.first.iter().map(|first| first.index).filter(|first| (start + 1..=end).contains(first));
        later.filter_map(|first| self.get(first - 1)).chain([*range.end()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terms of entries from index `first` on.
    fn terms(first: u64, terms: &[u64]) -> Terms {
        let mut all = Terms::default();
        (first..).zip(terms).for_each(|(index, term)| all.push(log_id(*term, index)));
        all
    }

    fn found(terms: &Terms) -> Vec<(u64, u64)> {
        let ids = (0..20).filter_map(|index| terms.get(index));
        ids.map(|id| (term_of(&id), id.index)).collect()
    }

    #[test]
    fn entries_are_removed_at_both_ends() {
        for first in 0..8 {
            for next in 0..12 {
                let mut all = terms(2, &[1, 1, 3, 3, 3, 4, 7]);
                let expected = |range: std::ops::Range<u64>| -> Vec<(u64, u64)> {
                    let all = [(1, 2), (1, 3), (3, 4), (3, 5), (3, 6), (4, 7), (7, 8)];
                    all.into_iter().filter(|(_, index)| range.contains(index)).collect()
                };
                all.purge(first);
                assert_eq!(found(&all), expected(first..20), "purged before {first}");
                all.truncate(next);
                assert_eq!(found(&all), expected(first..next), "purged before {first}, truncated at {next}");
                assert_eq!(
                    all.last().map(|id| id.index),
                    expected(first..next).last().map(|(_, index)| *index)
                );
            }
        }
    }

    /// The documentation of `openraft` says the first ones. Its own search returns the last ones.
    #[test]
    fn the_ids_of_a_range_are_the_last_of_each_term() {
        let all = terms(2, &[2, 2, 5, 5]);
        let id = |index| all.get(index).expect("an entry");
        let ids = |from, to| all.last_ids(&(id(from)..=id(to)));
        assert_eq!(ids(2, 5), [log_id(2, 3), log_id(5, 5)]);
        assert_eq!(ids(2, 4), [log_id(2, 3), log_id(5, 4)]);
        assert_eq!(ids(3, 3), [log_id(2, 3)]);
        assert_eq!(ids(4, 5), [log_id(5, 5)]);
    }
}
