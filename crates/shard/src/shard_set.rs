//! Sets of shards.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::error::Malformed;
use crate::ids::{SHARDS, ShardId};
use crate::wire::{Reader, Writer};

/// A set of shards. Only this type knows how many it has room for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(u16);

const _: () = assert!(SHARDS as u32 <= u16::BITS, "a set has a bit for each shard");

impl ShardSet {
    pub const EMPTY: Self = Self(0);

    /// Returns the set of all shards.
    pub const fn full() -> Self {
        Self(u16::MAX >> (u16::BITS - SHARDS as u32))
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether the set contains a shard. It contains no id that is not below [`SHARDS`].
    pub const fn contains(self, shard: ShardId) -> bool {
        shard.0 < SHARDS && self.0 >> shard.0 & 1 == 1
    }

    /// Adds a shard, whose id is below [`SHARDS`].
    pub fn insert(&mut self, shard: ShardId) {
        debug_assert!(shard.0 < SHARDS, "{shard:?} is a shard");
        self.0 |= 1 << shard.0;
    }

    pub fn remove(&mut self, shard: ShardId) {
        if self.contains(shard) {
            self.0 ^= 1 << shard.0;
        }
    }

    /// Returns the shards in the order of their ids.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = ShardId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = rest.trailing_zeros() as u16;
            (rest != 0).then(|| {
                rest &= rest - 1;
                ShardId(first)
            })
        })
    }

    pub(crate) fn encode(self, out: &mut impl Writer) {
        out.u16(self.0);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u16().map(Self)
    }
}

impl BitOr for ShardSet {
    type Output = Self;

    /// Returns the union.
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for ShardSet {
    /// Adds the shards of another set.
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl FromIterator<ShardId> for ShardSet {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> Self {
        let mut set = Self::EMPTY;
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|shard| shard.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(shards: [u16; N]) -> ShardSet {
        shards.into_iter().map(ShardId).collect()
    }

    #[test]
    fn a_set_contains_what_was_inserted_and_not_removed() {
        let mut shards = set([0, 2, SHARDS - 1]);
        assert_eq!(shards.iter().collect::<Vec<_>>(), [0, 2, SHARDS - 1].map(ShardId));
        assert_eq!((shards.len(), shards.is_empty()), (3, false));
        shards.remove(ShardId(2));
        shards.remove(ShardId(2));
        assert_eq!(shards, set([0, SHARDS - 1]));
        assert!(shards.contains(ShardId(0)) && !shards.contains(ShardId(1)));
        assert!(!ShardSet::full().contains(ShardId(SHARDS)), "this is no shard");
        assert_eq!(set([]), ShardSet::default());
    }

    #[test]
    fn the_full_set_has_each_shard_once() {
        assert!(ShardSet::full().iter().map(|shard| shard.0).eq(0..SHARDS));
        assert_eq!(set([0, 1]) | set([1, 3]), set([0, 1, 3]));
        let mut shards = ShardSet::full();
        shards |= set([4]);
        assert_eq!(shards, ShardSet::full());
    }

    #[test]
    fn the_text_of_a_set_names_its_members() {
        assert_eq!(format!("{:?}", set([3, 0, 11])), "{0, 3, 11}");
    }

    /// Records and checkpoints contain these bytes.
    #[test]
    fn a_set_is_decoded_as_encoded() {
        let mut bytes = Vec::new();
        set([0, 2, 8]).encode(&mut bytes);
        assert_eq!(bytes, [0x05, 0x01]);
        assert_eq!(ShardSet::decode(&mut Reader::new(&bytes)), Ok(set([0, 2, 8])));
        assert!(ShardSet::decode(&mut Reader::new(&bytes[1..])).is_err());
    }
}
