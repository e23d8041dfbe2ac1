//! Random numbers that follow from a seed, for tests, tools and sampling. They are no secrets.

#![forbid(unsafe_code)]

/// Generator of random numbers: SplitMix64 (Steele, Lea, Flood 2014). Every seed is good, also 0 and a neighbour of
/// another one.
#[derive(Clone, Debug, Default)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Random number in `0..end`; 0 when that is empty.
    #[inline]
    pub fn below(&mut self, end: usize) -> usize {
        self.below_u64(end as u64) as usize
    }

    /// Random number in `0..end`; 0 when that is empty.
    #[inline]
    pub fn below_u64(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    pub fn byte(&mut self) -> u8 {
        self.draw() as u8
    }

    /// Returns true in `percent` of 100 cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Random number of at least 0 and less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Difference of two consecutive states.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Number of a state. A generator whose state is shared by threads calls it itself.
#[inline]
#[must_use]
pub const fn mix(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of failed simulations stay valid.
    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(0);
        for end in 1..100 {
            assert!(random.below(end) < end);
            assert!((0.0..1.0).contains(&random.fraction()));
        }
        assert_eq!(random.below(0), 0);
    }
}
