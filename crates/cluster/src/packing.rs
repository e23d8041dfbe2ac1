//! Frames between regions, made smaller: `0 u8 | 1 u8, LZ4 block | length u32, little endian, of what was packed | the block`.
//!
//! No word and no message begins with 0, so a frame says by itself whether it is packed.

use bytes::Bytes;

/// Smaller frames are not worth it.
const MIN: usize = 256;
/// Larger ones are sent as they are, so that nobody has to make room for more than this before it has looked.
const MAX: usize = 1 << 20;
/// A packed frame stands for so many times its bytes at most: credit counts those on the way, and what becomes of them has to have a bound, too.
const RATIO_MAX: usize = 32;
const HEADER: usize = 6;

/// The frame packed, when that makes it smaller by an eighth at least.
pub fn pack(frame: &[u8]) -> Option<Bytes> {
    if !(MIN..=MAX).contains(&frame.len()) {
        return None;
    }
    let mut packed = vec![0; HEADER + lz4_flex::block::get_maximum_output_size(frame.len())];
    let length = lz4_flex::block::compress_into(frame, &mut packed[HEADER..]).ok()?;
    packed[1] = 1;
    packed[2..HEADER].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    packed.truncate(HEADER + length);
    let is_smaller = packed.len() <= frame.len() / 8 * 7;
    (is_smaller && frame.len() <= packed.len() * RATIO_MAX).then(|| packed.into())
}

/// What a frame stands for: itself when it is not packed, `None` when it is and was not packed like this. Never panics.
pub fn unpack(frame: &Bytes) -> Option<Bytes> {
    if frame.first() != Some(&0) {
        return Some(frame.clone());
    }
    let (header, block) = frame.split_first_chunk::<HEADER>()?;
    let [0, 1, a, b, c, d] = *header else { return None };
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > MAX || length > frame.len() * RATIO_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    let found = lz4_flex::block::decompress_into(block, &mut bytes).ok()?;
    (found == length).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(length: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        // It repeats itself, and not too often.
        std::iter::repeat_with(|| format!("sensors/{}/temperature ", next()))
            .flat_map(String::into_bytes)
            .take(length)
            .collect()
    }

    fn header(length: u32) -> Vec<u8> {
        [&[0, 1][..], &length.to_le_bytes()].concat()
    }

    /// The bytes of this form, for ever: 300 times `ab` as one match.
    #[test]
    fn a_packed_frame_has_these_bytes() {
        let golden =
            [&header(300)[..], &[0x2f, b'a', b'b', 2, 0, 255, 19, 0x50, b'b', b'a', b'b', b'a', b'b']]
                .concat();
        let unpacked = unpack(&golden.clone().into()).expect("a good frame");
        assert!(unpacked.len() == 300 && unpacked.chunks(2).all(|pair| pair == b"ab"), "{unpacked:?}");
    }

    #[test]
    fn what_is_packed_is_smaller_and_comes_back() {
        for length in [MIN, 1000, 64 << 10, MAX] {
            let bytes = text(length);
            let packed = pack(&bytes).expect("text can be packed");
            assert!(packed.len() < bytes.len() && packed[0] == 0);
            assert_eq!(unpack(&packed).as_deref(), Some(&bytes[..]));
        }
    }

    #[test]
    fn what_is_small_large_or_like_noise_goes_as_it_is() {
        assert_eq!(pack(&text(MIN - 1)), None);
        assert_eq!(pack(&text(MAX + 1)), None);
        let noise: Vec<u8> =
            (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 19) as u8 ^ (at >> 3) as u8).collect();
        assert!(pack(&noise).is_none_or(|packed| packed.len() < noise.len()));
        let plain = Bytes::from_static(&[1, 2, 3]);
        assert_eq!(unpack(&plain), Some(plain));
    }

    /// However little it takes to say much, a frame stands for a bounded number of bytes.
    #[test]
    fn nothing_small_becomes_large() {
        let zeros = vec![7; MAX];
        assert_eq!(pack(&zeros), None, "it would stand for more than {RATIO_MAX} times its bytes");
        let bomb = lz4_flex::block::compress(&zeros);
        assert_eq!(unpack(&[header(MAX as u32), bomb].concat().into()), None);
        assert_eq!(unpack(&[header(u32::MAX), vec![0; 64]].concat().into()), None);
    }

    #[test]
    fn what_was_not_packed_like_this_is_refused() {
        let packed = pack(&text(1000)).expect("text can be packed");
        for length in 1..packed.len() {
            assert_eq!(unpack(&packed.slice(..length)), None, "{length}");
        }
        let mut other = packed.to_vec();
        other[1] = 2;
        assert_eq!(unpack(&other.into()), None, "another method");
        let mut longer = packed.to_vec();
        longer[2] ^= 1;
        assert_eq!(unpack(&longer.into()), None, "another length");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(rest in proptest::collection::vec(any::<u8>(), 0..600), length in 0_u32..2000) {
            let _ = unpack(&[header(length), rest.clone()].concat().into());
            let _ = unpack(&[vec![0], rest].concat().into());
        }

        #[test]
        fn every_frame_comes_back(seed in proptest::collection::vec(any::<u8>(), 1..40), times in 1_usize..200) {
            let bytes = seed.repeat(times);
            if let Some(packed) = pack(&bytes) {
                prop_assert!(packed.len() < bytes.len());
                prop_assert_eq!(unpack(&packed).map(Vec::from), Some(bytes));
            }
        }
    }
}
