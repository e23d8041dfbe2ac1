//! Pseudorandom numbers without quality requirements: jitter, filler, templates.

/// State of xorshift64.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Zero would stay zero.
        Random(seed ^ 0x9e37_79b9_7f4a_7c15 | 1)
    }

    /// A generator determined by these seeds.
    pub fn of(seeds: [u64; 3]) -> Random {
        // The finish of splitmix64, so that neighbours have nothing in common.
        let mix = |state: u64, seed: u64| {
            let z = state.wrapping_add(seed).wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random::new(seeds.into_iter().fold(0, mix))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, and 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half: the low bits of a xorshift are its worst.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let value = self.next().to_le_bytes();
            chunk.copy_from_slice(&value[..chunk.len()]);
        }
    }
}

/// Bytes that do not compress.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Random::new(crate::net::now()).fill(&mut noise);
    noise
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = Random::new(0);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (700..1300).contains(n)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_ne!(noise(64), [0; 64]);
    }
}
