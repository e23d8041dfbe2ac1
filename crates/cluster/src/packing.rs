//! Compression of frames between regions:
//! `0 u8 | 1 u8, LZ4 block | length u32, little endian, of the original | the block`.
//!
//! No cluster message and no MQTT message begins with 0, so each frame shows whether it is packed.

use bytes::Bytes;

/// Minimum size of a frame to pack, in bytes. Smaller ones are not worth it.
const MIN: usize = 256;
/// Maximum size of a frame to pack, in bytes. Larger ones are sent as they are, so that no receiver has to allocate
/// more than this before it has checked the frame.
const MAX: usize = 1 << 20;
/// Maximum ratio of the original's size to the packed one. Credit counts packed bytes, so the unpacked bytes need a
/// bound, too.
const RATIO_MAX: usize = 32;
const HEADER: usize = 6;

/// Returns the packed frame if it is at least an eighth smaller.
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

/// Returns the original of a frame: the frame itself if it is not packed, or `None` if its packing is invalid. Never
/// panics.
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
        // The text repeats itself, but not too often.
        std::iter::repeat_with(|| format!("sensors/{}/temperature ", next()))
            .flat_map(String::into_bytes)
            .take(length)
            .collect()
    }

    fn header(length: u32) -> Vec<u8> {
        [&[0, 1][..], &length.to_le_bytes()].concat()
    }

    /// Checks the permanent bytes of this form: 300 times `ab` as one match.
    #[test]
    fn a_packed_frame_keeps_its_byte_format() {
        let golden =
            [&header(300)[..], &[0x2f, b'a', b'b', 2, 0, 255, 19, 0x50, b'b', b'a', b'b', b'a', b'b']]
                .concat();
        let unpacked = unpack(&golden.clone().into()).expect("a good frame");
        assert!(unpacked.len() == 300 && unpacked.chunks(2).all(|pair| pair == b"ab"), "{unpacked:?}");
    }

    #[test]
    fn a_packed_frame_is_smaller_and_unpacks_to_the_original() {
        for length in [MIN, 1000, 64 << 10, MAX] {
            let bytes = text(length);
            let packed = pack(&bytes).expect("text can be packed");
            assert!(packed.len() < bytes.len() && packed[0] == 0);
            assert_eq!(unpack(&packed).as_deref(), Some(&bytes[..]));
        }
    }

    #[test]
    fn small_large_and_random_frames_are_not_packed() {
        assert_eq!(pack(&text(MIN - 1)), None);
        assert_eq!(pack(&text(MAX + 1)), None);
        let noise: Vec<u8> =
            (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 19) as u8 ^ (at >> 3) as u8).collect();
        assert!(pack(&noise).is_none_or(|packed| packed.len() < noise.len()));
        let plain = Bytes::from_static(&[1, 2, 3]);
        assert_eq!(unpack(&plain), Some(plain));
    }

    /// The size of an unpacked frame has a bound, however small the packed one is.
    #[test]
    fn the_size_of_an_unpacked_frame_has_a_bound() {
        let zeros = vec![7; MAX];
        assert_eq!(pack(&zeros), None, "it would unpack to more than {RATIO_MAX} times its bytes");
        let bomb = lz4_flex::block::compress(&zeros);
        assert_eq!(unpack(&[header(MAX as u32), bomb].concat().into()), None);
        assert_eq!(unpack(&[header(u32::MAX), vec![0; 64]].concat().into()), None);
    }

    #[test]
    fn an_invalid_packed_frame_is_refused() {
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
        fn every_frame_unpacks_to_the_original(seed in proptest::collection::vec(any::<u8>(), 1..40), times in 1_usize..200) {
            let bytes = seed.repeat(times);
            if let Some(packed) = pack(&bytes) {
                prop_assert!(packed.len() < bytes.len());
                prop_assert_eq!(unpack(&packed).map(Vec::from), Some(bytes));
            }
        }
    }
}
