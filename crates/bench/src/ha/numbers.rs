//! A set of sequence numbers that are mostly dense.

use std::collections::VecDeque;

/// A set of numbers from 0 on. A complete low end costs nothing; from the first hole on, every number costs one bit.
#[derive(Clone, Default)]
pub struct Numbers {
    /// Number of words before the first of `words`, all of them full.
    full: u64,
    words: VecDeque<u64>,
}

const BITS: u64 = 64;

impl Numbers {
    /// Adds a number. Returns whether it was absent.
    pub fn insert(&mut self, number: u64) -> bool {
        let Some(at) = (number / BITS).checked_sub(self.full) else { return false };
        let at = at as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (number % BITS);
        if self.words[at] & bit != 0 {
            return false;
        }
        self.words[at] |= bit;
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.full += 1;
        }
        true
    }

    #[cfg(test)]
    fn count(&self) -> u64 {
        self.full * BITS + self.words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    }

    /// Number of words of 8 bytes that the set holds.
    pub fn memory(&self) -> usize {
        self.words.len()
    }

    /// The numbers `64 * index` and the 63 after it, the lowest in the lowest bit.
    fn word(&self, index: u64) -> u64 {
        match index.checked_sub(self.full) {
            None => u64::MAX,
            Some(at) => self.words.get(at as usize).copied().unwrap_or(0),
        }
    }

    /// Count of numbers that are here and not in `other`; the lowest `samples` of them are added to `samples_found`.
    pub fn without(&self, other: &Numbers, samples: usize, samples_found: &mut Vec<u64>) -> u64 {
        let mut missing = 0;
        // Below `other.full` it lacks nothing.
        for index in other.full..self.full + self.words.len() as u64 {
            let mut word = self.word(index) & !other.word(index);
            missing += u64::from(word.count_ones());
            while word != 0 && samples_found.len() < samples {
                samples_found.push(index * BITS + u64::from(word.trailing_zeros()));
                word &= word - 1;
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(numbers: impl IntoIterator<Item = u64>) -> Numbers {
        let mut set = Numbers::default();
        numbers.into_iter().for_each(|number| {
            set.insert(number);
        });
        set
    }

    #[test]
    fn a_complete_set_costs_nothing() {
        let mut set = of(0..1_000_000);
        assert_eq!((set.count(), set.memory()), (1_000_000, 0));
        assert!(!set.insert(5), "it is there");
        assert!(set.insert(1_000_001));
        assert_eq!(set.memory(), 1);
    }

    #[test]
    fn a_hole_costs_one_bit_for_each_number_after_it() {
        let mut set = of((0..6400).filter(|number| *number != 70));
        assert_eq!(set.memory(), 99);
        assert!(set.insert(70));
        assert_eq!((set.count(), set.memory()), (6400, 0));
    }

    #[test]
    fn differences_are_found() {
        let (all, some) = (of(0..1000), of((0..1000).filter(|number| number % 100 != 37)));
        let mut samples_found = vec![];
        assert_eq!(all.without(&some, 3, &mut samples_found), 10);
        assert_eq!(samples_found, [37, 137, 237]);
        assert_eq!(some.without(&all, 3, &mut samples_found), 0);
        assert_eq!(all.without(&Numbers::default(), 0, &mut samples_found), 1000);
    }

    #[test]
    fn the_set_agrees_with_a_model() {
        let mut random = crate::random::Random::new(0);
        let mut random = move |below: u64| random.below(below);
        for _ in 0..200 {
            let (mut sets, mut models) =
                ([Numbers::default(), Numbers::default()], [BTreeSet::new(), BTreeSet::new()]);
            for _ in 0..400 {
                let (which, number) = (random(2) as usize, random(300));
                assert_eq!(sets[which].insert(number), models[which].insert(number));
            }
            let mut samples_found = vec![];
            let expected: Vec<u64> = models[0].difference(&models[1]).copied().collect();
            assert_eq!(sets[0].without(&sets[1], usize::MAX, &mut samples_found), expected.len() as u64);
            assert_eq!(samples_found, expected);
            assert_eq!(sets[0].count(), models[0].len() as u64);
        }
    }
}
