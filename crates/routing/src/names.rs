//! Names of levels and of exact filters: short ones in the entry itself, longer ones packed in an arena.

use std::collections::BTreeMap;

use crate::hash::PathHasher;
use crate::pool::{FreeList, Pool, Tail};

/// One level of a topic or filter, with the data that a lookup needs.
#[derive(Clone, Copy)]
pub struct Level {
    pub hash: u64,
    pub name: Packed,
    /// Offset of the level in the text.
    pub start: u32,
    pub length: u32,
}

/// A level's name in twelve bytes: length and bytes of a short one; marker, length and offset of a longer one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    pub head: u64,
    pub tail: u32,
}

/// Maximum length of a name that needs no arena, in bytes.
const SHORT_MAX: usize = 11;
const LONG: u64 = 0xff;

impl Packed {
    pub const PLUS: Packed = Packed { head: 1 | (b'+' as u64) << 8, tail: 0 };

    /// Packs a name of `length` bytes that starts with the low bytes of `first`; the other bytes of `first` are 0.
    #[inline(always)]
    fn of(first: u128, length: usize) -> Packed {
        if length > SHORT_MAX {
            return Packed { head: LONG | (length as u64) << 8, tail: 0 };
        }
        Packed { head: length as u64 | (first as u64) << 8, tail: (first >> 56) as u32 }
    }

    fn is_long(self) -> bool {
        self.head & 0xff == LONG
    }

    fn long_length(self) -> usize {
        (self.head >> 8) as usize
    }
}

/// A text split into levels. Kept for reuse.
#[derive(Default)]
pub struct Split {
    pub levels: Vec<Level>,
    /// The text, followed by a `/` and padding, so that every level can be loaded as one word.
    padded: Vec<u8>,
}

/// Number of bytes that are loaded at once: more than a short name and its `/`.
const WORD: usize = 16;

impl Split {
    /// Splits `text` at `/` into hashed levels; stops after `levels_max`. Returns whether that was the whole text.
    #[inline]
    pub fn split(&mut self, text: &str, hasher: &PathHasher, levels_max: usize) -> bool {
        let Split { levels, padded } = self;
        levels.clear();
        padded.clear();
        padded.extend_from_slice(text.as_bytes());
        padded.extend_from_slice(&[b'/'; WORD]);
        let mut start = 0;
        while start <= text.len() {
            if levels.len() == levels_max {
                return false;
            }
            let word = padded[start..].first_chunk().expect("the text is padded");
            let word = u128::from_le_bytes(*word);
            let length = slash(word);
            let level = if length < WORD {
                let first = word & !(u128::MAX << (8 * length));
                Level {
                    hash: hasher.short_level(first, length),
                    name: Packed::of(first, length),
                    start: start as u32,
                    length: length as u32,
                }
            } else {
                let length = WORD + padded[start + WORD..].iter().position(|byte| *byte == b'/').unwrap_or(0);
                Level {
                    hash: hasher.level(&padded[start..start + length]),
                    name: Packed::of(0, length),
                    start: start as u32,
                    length: length as u32,
                }
            };
            start += level.length as usize + 1;
            levels.push(level);
        }
        true
    }
}

/// Returns the position of the first `/` in a word, or the word's length.
#[inline(always)]
fn slash(word: u128) -> usize {
    const ONES: u128 = u128::MAX / 0xff;
    // The lowest byte that is 0 keeps its top bit; only bytes above it may do so in error.
    let zero = word ^ (ONES * b'/' as u128);
    let found = zero.wrapping_sub(ONES) & !zero & (ONES << 7);
    found.trailing_zeros() as usize / 8
}

/// The arena: units of four bytes, allocated in runs.
pub struct Names {
    units: Pool<u32>,
}

/// Writer's half: the free runs by size.
#[derive(Default)]
pub struct NamesTail {
    tail: Tail,
    free: BTreeMap<u32, FreeList>,
}

impl NamesTail {
    pub fn has_room(&self, bytes: usize) -> bool {
        self.tail.has_room(run(bytes))
    }

    /// Bytes in use or free for reuse.
    pub fn bytes(&self) -> usize {
        self.tail.used() as usize * 4 + self.free.values().map(|list| list.len() * 4).sum::<usize>()
    }
}

/// Returns the number of units for a name. Long ones are rounded up, so that there are few sizes and a freed run
/// fits the next name.
fn run(bytes: usize) -> u32 {
    let units = bytes.div_ceil(4).max(1) as u32;
    if units <= 32 { units } else { units.next_multiple_of(units.next_power_of_two() / 8) }
}

impl Names {
    pub fn new() -> Names {
        Names { units: Pool::new() }
    }

    /// Stores a name that consists of these parts. The caller checked `has_room` before.
    pub fn store(&self, writer: &mut NamesTail, parts: &[&[u8]]) -> u32 {
        let count = run(parts.iter().map(|part| part.len()).sum());
        let offset = match writer.free.get_mut(&count).and_then(FreeList::pop) {
            Some(offset) => offset,
            None => self.units.allocate(&mut writer.tail, count).expect("room was checked"),
        };
        // SAFETY: the run belongs to this name alone: it is new, or was freed after every reader released it. It
        // has room for all bytes, and writing bytes needs no alignment.
        unsafe {
            let mut target = self.units.entry(offset).cast::<u8>();
            for part in parts {
                target.copy_from_nonoverlapping(part.as_ptr(), part.len());
                target = target.add(part.len());
            }
        }
        offset
    }

    /// Frees the run of a name of `bytes` bytes that no reader looks at any more.
    pub fn free(&self, writer: &mut NamesTail, offset: u32, bytes: usize) {
        writer.free.entry(run(bytes)).or_default().push(offset);
    }

    /// Returns a stored name.
    ///
    /// # Safety
    /// `offset` and `bytes` are those of a `store` that has not been freed, and will not be during `'a`.
    #[inline]
    pub unsafe fn get<'a>(&self, offset: u32, bytes: usize) -> &'a [u8] {
        // SAFETY: the run was written by `store` before its offset became known, and does not change.
        unsafe { std::slice::from_raw_parts(self.units.entry(offset).cast::<u8>(), bytes) }
    }

    /// Packs a level's name for an entry.
    pub fn pack(&self, writer: &mut NamesTail, level: &Level, text: &str) -> Packed {
        match level.name.is_long() {
            false => level.name,
            true => Packed { tail: self.store(writer, &[level.text(text)]), ..level.name },
        }
    }

    /// Returns the offset and the length of a packed name that is in the arena.
    pub fn offset(packed: Packed) -> Option<(u32, usize)> {
        packed.is_long().then(|| (packed.tail, packed.long_length()))
    }

    /// Returns whether an entry's name is this level of `text`.
    ///
    /// # Safety
    /// `packed` was made by `pack` of this arena, and its run is not freed during the call.
    #[inline(always)]
    pub unsafe fn is(&self, packed: Packed, level: &Level, text: &str) -> bool {
        packed.head == level.name.head
            && (packed.tail == level.name.tail && !packed.is_long()
                || packed.is_long()
                // SAFETY: promised by the caller.
                && unsafe { self.get(packed.tail, packed.long_length()) } == level.text(text))
    }

    /// Appends an entry's name to `out`.
    ///
    /// # Safety
    /// Same as for `is`.
    pub unsafe fn append(&self, packed: Packed, out: &mut Vec<u8>) {
        match Names::offset(packed) {
            // SAFETY: promised by the caller.
            Some((offset, bytes)) => out.extend_from_slice(unsafe { self.get(offset, bytes) }),
            None => {
                let length = (packed.head & 0xff) as usize;
                let bytes = (u128::from(packed.head >> 8) | u128::from(packed.tail) << 56).to_le_bytes();
                out.extend_from_slice(&bytes[..length]);
            }
        }
    }
}

impl Level {
    #[inline]
    pub fn text<'a>(&self, text: &'a str) -> &'a [u8] {
        &text.as_bytes()[self.start as usize..][..self.length as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn levels(text: &str) -> Vec<Level> {
        let mut split = Split::default();
        assert!(split.split(text, &PathHasher::new([0; 16]), 128));
        split.levels
    }

    #[test]
    fn a_text_is_split_at_every_slash() {
        for text in ["a", "", "/", "a/b", "/a//b/", "bench/1234567/a name that is long/x"] {
            let split: Vec<&[u8]> = levels(text).iter().map(|level| level.text(text)).collect();
            let expected: Vec<&[u8]> = text.split('/').map(str::as_bytes).collect();
            assert_eq!(split, expected);
        }
        let mut some = Split::default();
        assert!(!some.split("a/b/c", &PathHasher::new([0; 16]), 2));
        assert_eq!(some.levels.len(), 2);
    }

    #[test]
    fn levels_of_every_length_are_hashed_as_their_bytes() {
        let hasher = PathHasher::new([9; 16]);
        for length in 0..40 {
            let name: String = ('!'..'~').filter(|c| *c != '/').cycle().take(length).collect();
            for text in [name.clone(), format!("{name}/x"), format!("//{name}/")] {
                let mut split = Split::default();
                assert!(split.split(&text, &hasher, 128));
                for (level, name) in split.levels.iter().zip(text.split('/')) {
                    assert_eq!(level.hash, hasher.level(name.as_bytes()), "{name}");
                    assert_eq!(level.text(&text), name.as_bytes());
                }
            }
        }
    }

    #[test]
    fn names_of_every_length_are_distinguished_and_unpacked() {
        let (names, mut tail) = (Names::new(), NamesTail::default());
        let texts: Vec<String> =
            (0..40).flat_map(|n| ["x".repeat(n), "x".repeat(n) + "y", "x".repeat(n) + "\u{e9}"]).collect();
        let packed: Vec<Packed> = texts.iter().map(|t| names.pack(&mut tail, &levels(t)[0], t)).collect();
        for (i, text) in texts.iter().enumerate() {
            for (j, other) in packed.iter().enumerate() {
                // SAFETY: packed by the same arena, nothing freed.
                assert_eq!(
                    unsafe { names.is(*other, &levels(text)[0], text) },
                    texts[j] == *text,
                    "{text} {i} {j}"
                );
            }
            let mut out = Vec::new();
            // SAFETY: as above.
            unsafe { names.append(packed[i], &mut out) };
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn a_freed_run_is_reused() {
        let (names, mut tail) = (Names::new(), NamesTail::default());
        let offsets: Vec<u32> = (0..100).map(|_| names.store(&mut tail, &[&[1; 20]])).collect();
        let used = tail.tail.used();
        offsets.iter().for_each(|offset| names.free(&mut tail, *offset, 20));
        (0..100).for_each(|_| assert!(offsets.contains(&names.store(&mut tail, &[&[2; 10], &[3; 8]]))));
        assert_eq!(tail.tail.used(), used);
    }

    #[test]
    fn the_plus_level_is_packed_as_its_constant() {
        assert!(levels("+")[0].name == Packed::PLUS);
    }
}
