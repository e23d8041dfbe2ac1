//! Keyed hashes of levels and of paths of levels.
//!
//! A level is hashed with SipHash-1-3 under the process's secret, so that clients cannot choose names whose probes
//! collide. A path is folded from the hashes of its levels: [`PathHasher::child`] is a bijection of the parent for
//! a given level. So two different paths that end in the same level name never share a hash unless their parents
//! do. For that reason the index verifies one name for each level instead of whole paths.

use std::hash::{Hash, Hasher};

/// State of SipHash: `C` rounds per word, `F` at the end.
#[derive(Clone, Copy)]
struct Sip<const C: usize, const F: usize> {
    v: [u64; 4],
}

impl<const C: usize, const F: usize> Sip<C, F> {
    fn keyed(key: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(key);
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        Sip {
            v: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    #[inline(always)]
    fn round(&mut self) {
        let [a, b, c, d] = &mut self.v;
        *a = a.wrapping_add(*b);
        *c = c.wrapping_add(*d);
        *b = b.rotate_left(13) ^ *a;
        *d = d.rotate_left(16) ^ *c;
        *a = a.rotate_left(32).wrapping_add(*d);
        *c = c.wrapping_add(*b);
        *d = d.rotate_left(21) ^ *a;
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }

    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.v[3] ^= word;
        for _ in 0..C {
            self.round();
        }
        self.v[0] ^= word;
    }

    #[inline(always)]
    fn finish(mut self) -> u64 {
        self.v[2] ^= 0xff;
        for _ in 0..F {
            self.round();
        }
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }

    #[inline(always)]
    fn hash(mut self, bytes: &[u8]) -> u64 {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.absorb(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.absorb(u64::from_le_bytes(last) | (bytes.len() as u64) << 56);
        self.finish()
    }
}

/// Hashes levels, paths and keys under one secret.
pub struct PathHasher {
    sip: Sip<1, 3>,
    /// Path of no levels.
    pub root: u64,
    /// Hash of the level `+` of a filter. A level of a topic is never `+`, so it has this hash only by chance.
    pub plus: u64,
    exact: u64,
    /// Number of bits of a path's hash: fewer in tests that need collisions.
    #[cfg(test)]
    width: u32,
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Inverse of `ODD`: their product is 1 modulo every power of two up to 2^64.
const ODD_INVERSE: u64 = {
    let mut inverse = ODD;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(ODD.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};
const _: () = assert!(ODD.wrapping_mul(ODD_INVERSE) == 1);

impl PathHasher {
    pub fn new(key: [u8; 16]) -> PathHasher {
        let sip = Sip::keyed(key);
        PathHasher {
            sip,
            root: sip.hash(b"/root of all paths"),
            plus: sip.hash(b"+"),
            exact: sip.hash(b"/exact filters"),
            #[cfg(test)]
            width: 64,
        }
    }

    /// Creates a hasher whose paths share few hashes, so that collisions happen. `width` is even.
    #[cfg(test)]
    pub fn narrow(key: [u8; 16], width: u32) -> PathHasher {
        assert!(width.is_multiple_of(2) && (4..=64).contains(&width));
        let mut hasher = PathHasher { width, ..PathHasher::new(key) };
        hasher.root &= hasher.mask();
        hasher
    }

    #[cfg(test)]
    fn width(&self) -> u32 {
        self.width
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn width(&self) -> u32 {
        64
    }

    #[inline(always)]
    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.width())
    }

    /// Returns the hash of one level's name.
    #[inline]
    pub fn level(&self, name: &[u8]) -> u64 {
        self.sip.hash(name)
    }

    /// Returns the hash of a name of fewer than 16 bytes, which are the low ones of `name`; the others are 0.
    #[inline(always)]
    pub fn short_level(&self, name: u128, length: usize) -> u64 {
        let mut sip = self.sip;
        let (low, high) = (name as u64, (name >> 64) as u64);
        if length < 8 {
            sip.absorb(low | (length as u64) << 56);
        } else {
            sip.absorb(low);
            sip.absorb(high | (length as u64) << 56);
        }
        sip.finish()
    }

    /// Returns the path of `level` below `parent`. Every step is a bijection of `width` bits.
    #[inline(always)]
    pub fn child(&self, parent: u64, level: u64) -> u64 {
        let x = ((parent ^ level) & self.mask()).wrapping_mul(ODD) & self.mask();
        x ^ (x >> (self.width() / 2))
    }

    /// Returns the `parent` whose child by `level` is `child`.
    pub fn parent(&self, child: u64, level: u64) -> u64 {
        let x = child ^ (child >> (self.width() / 2));
        (x.wrapping_mul(ODD_INVERSE) ^ level) & self.mask()
    }

    /// Returns the hash of a whole name in the table of exact filters, from that of its path; never 0. It need not
    /// be one-to-one, because that table compares whole names.
    #[inline(always)]
    pub fn exact(&self, path: u64) -> u64 {
        (path ^ self.exact & self.mask()).max(1)
    }

    /// Returns the hash of a destination's key within one set; never 0.
    pub fn member<K: Hash>(&self, set: u32, key: &K) -> u64 {
        let mut words = Words(self.sip);
        words.write_u32(set);
        key.hash(&mut words);
        words.finish().max(1)
    }
}

/// Hasher that takes each integer as one word, which is faster than a stream of bytes.
struct Words(Sip<1, 3>);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        self.0.absorb(self.0.hash(bytes));
    }
    fn write_u8(&mut self, n: u8) {
        self.0.absorb(n.into());
    }
    fn write_u16(&mut self, n: u16) {
        self.0.absorb(n.into());
    }
    fn write_u32(&mut self, n: u32) {
        self.0.absorb(n.into());
    }
    fn write_u64(&mut self, n: u64) {
        self.0.absorb(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.0.absorb(n as u64);
    }
    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sip_hash_1_3_equals_that_of_std() {
        let bytes: Vec<u8> = (0..100).collect();
        for length in 0..bytes.len() {
            let mut std = std::hash::DefaultHasher::new();
            std.write(&bytes[..length]);
            assert_eq!(Sip::<1, 3>::keyed([0; 16]).hash(&bytes[..length]), std.finish(), "{length} bytes");
        }
    }

    /// Uses the example of the SipHash paper: key and message are 00 01 02 ..., with 2 and 4 rounds.
    #[test]
    fn the_key_is_used_as_published() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(Sip::<2, 4>::keyed(bytes).hash(&bytes[..15]), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn a_path_determines_its_parent() {
        for hasher in [PathHasher::new([7; 16]), PathHasher::narrow([7; 16], 10)] {
            let mut path = hasher.root;
            for name in ["", "a", "bench", "+", "a rather long name of a level"] {
                let level = hasher.level(name.as_bytes());
                let child = hasher.child(path, level);
                assert_eq!(hasher.parent(child, level), path);
                path = child;
            }
        }
    }

    #[test]
    fn narrow_paths_are_a_bijection_of_the_parent() {
        let hasher = PathHasher::narrow([1; 16], 8);
        let level = hasher.level(b"x");
        let mut children: Vec<u64> = (0..256).map(|parent| hasher.child(parent, level)).collect();
        children.sort_unstable();
        assert_eq!(children, (0..256).collect::<Vec<u64>>());
    }

    #[test]
    fn another_secret_gives_other_hashes() {
        assert_ne!(PathHasher::new([1; 16]).level(b"a"), PathHasher::new([2; 16]).level(b"a"));
        let hasher = PathHasher::new([1; 16]);
        assert_ne!(hasher.member(1, &(3u8, 4u32)), hasher.member(2, &(3u8, 4u32)));
    }
}
