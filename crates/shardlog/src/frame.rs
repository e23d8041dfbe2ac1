//! Frames between the replicas of a shard, in little endian:
//!
//! ```text
//! 0 replica   a frame of the group
//! 1 fetch     number u64, key u64 of each message
//! 2 bodies    number u64 of the request, offset u64, total u64, bytes
//! 3 no room   nothing
//! ```
//!
//! The bytes of 2 at the offset 0 up to the total are records: index u64, length u64, messages in the form of
//! [`StoredBatch::Kept`](shard::StoredBatch::Kept).

use shard::MessageKey;

/// Maximum number of messages in one request. One batch has fewer.
pub const KEYS_MAX: usize = 1 << 18;

/// A frame of one replica for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardFrame<'a> {
    Replica(&'a [u8]),
    /// The sender needs these messages, in ascending order.
    Fetch {
        number: u64,
        keys: Vec<MessageKey>,
    },
    Bodies(Piece<'a>),
    /// The log of the sender is full: it should not lead. Repeated while that is so.
    NoRoom,
}

/// A piece of the answer to a request for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Number of the request.
    pub number: u64,
    pub offset: u64,
    /// Size of the whole answer.
    pub total: u64,
    pub bytes: &'a [u8],
}

impl<'a> ShardFrame<'a> {
    /// Bytes before a frame of the Raft group, in [`Self::Replica`].
    pub const REPLICA: &'static [u8] = &[0];

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Replica(frame) => {
                out.extend_from_slice(Self::REPLICA);
                out.extend_from_slice(frame);
            }
            Self::Fetch { number, keys } => {
                out.push(1);
                out.extend(number.to_le_bytes());
                keys.iter().for_each(|key| out.extend(key.as_u64().to_le_bytes()));
            }
            Self::Bodies(Piece { number, offset, total, bytes }) => {
                out.push(2);
                [number, offset, total].into_iter().for_each(|field| out.extend(field.to_le_bytes()));
                out.extend_from_slice(bytes);
            }
            Self::NoRoom => out.push(3),
        }
        out
    }

    /// Decodes a frame; `None` for anything else.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        match kind {
            0 => Some(Self::Replica(rest)),
            1 => {
                let number = take_u64(&mut rest)?;
                let (keys, []) = rest.as_chunks::<8>() else { return None };
                if keys.len() > KEYS_MAX {
                    return None;
                }
                let keys: Vec<_> =
                    keys.iter().map(|key| MessageKey::from_u64(u64::from_le_bytes(*key))).collect();
                keys.is_sorted_by(|one, next| one < next).then_some(Self::Fetch { number, keys })
            }
            2 => {
                let (number, offset) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                let total = take_u64(&mut rest)?;
                let end = offset.checked_add(rest.len() as u64)?;
                (end <= total).then_some(Self::Bodies(Piece { number, offset, total, bytes: rest }))
            }
            3 => rest.is_empty().then_some(Self::NoRoom),
            _ => None,
        }
    }
}

/// Encodes messages of batches, by index.
pub fn encode_bodies(bodies: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bodies.iter().map(|(_, body)| 16 + body.len()).sum());
    for (index, body) in bodies {
        out.extend(index.to_le_bytes());
        out.extend((body.len() as u64).to_le_bytes());
        out.extend_from_slice(body);
    }
    out
}

/// Decodes messages of batches; `None` for anything else.
pub fn decode_bodies(mut bytes: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut bodies = Vec::new();
    while !bytes.is_empty() {
        let index = take_u64(&mut bytes)?;
        let length = usize::try_from(take_u64(&mut bytes)?).ok()?;
        let (body, rest) = bytes.split_at_checked(length)?;
        bodies.push((index, body.to_vec()));
        bytes = rest;
    }
    Some(bodies)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (field, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    fn frames() -> [(ShardFrame<'static>, &'static [u8]); 4] {
        let keys = vec![MessageKey::new(1, 16), MessageKey::new(2, 0)];
        let piece = Piece { number: 7, offset: 2, total: 5, bytes: b"xyz" };
        [
            (ShardFrame::Replica(b"ab"), b"\0ab"),
            (
                ShardFrame::Fetch { number: 7, keys },
                b"\x01\x07\0\0\0\0\0\0\0\x02\0\x02\0\0\0\0\0\0\0\x04\0\0\0\0\0",
            ),
            (ShardFrame::Bodies(piece), b"\x02\x07\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0xyz"),
            (ShardFrame::NoRoom, b"\x03"),
        ]
    }

    #[test]
    fn frames_have_these_bytes() {
        for (frame, bytes) in frames() {
            assert_eq!(frame.encode(), bytes, "{frame:?}");
            assert_eq!(ShardFrame::decode(bytes), Some(frame));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for (frame, bytes) in frames() {
            for end in 0..bytes.len() {
                assert_ne!(ShardFrame::decode(&bytes[..end]), Some(frame.clone()), "{end} bytes");
            }
        }
        let unsorted =
            ShardFrame::Fetch { number: 1, keys: vec![MessageKey::new(2, 0), MessageKey::new(1, 0)] };
        let beyond = ShardFrame::Bodies(Piece { number: 1, offset: 3, total: 5, bytes: b"abc" });
        let overflow =
            ShardFrame::Bodies(Piece { number: 1, offset: u64::MAX, total: u64::MAX, bytes: b"a" });
        for frame in [unsorted, beyond, overflow] {
            assert_eq!(ShardFrame::decode(&frame.encode()), None, "{frame:?}");
        }
        assert_eq!(ShardFrame::decode(&[4]), None);
    }

    /// Changed and random bytes are refused, or are exactly one frame.
    #[test]
    fn any_bytes_are_a_frame_or_are_refused() {
        let mut random = Random::new(1);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = frames()[random.below(4)].1.to_vec();
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.byte();
            }
            match random.below(4) {
                0 => bytes.truncate(random.below(bytes.len() + 1)),
                1 => bytes.extend((0..random.below(20)).map(|_| random.byte())),
                _ => {}
            }
            match ShardFrame::decode(&bytes) {
                Some(frame) => {
                    assert_eq!(frame.encode(), bytes);
                    accepted += 1;
                }
                None => refused += 1,
            }
            if let Some(bodies) = decode_bodies(&bytes) {
                assert_eq!(encode_bodies(&bodies), bytes);
            }
        }
        assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    }

    #[test]
    fn bodies_are_decoded_as_encoded_and_other_bytes_are_refused() {
        let bodies = vec![(1, b"one".to_vec()), (u64::MAX, Vec::new())];
        let bytes = encode_bodies(&bodies);
        assert_eq!(decode_bodies(&bytes), Some(bodies));
        for end in [1, 8, 17, 18, bytes.len() - 1] {
            assert_eq!(decode_bodies(&bytes[..end]), None, "{end} bytes");
        }
        let mut long = bytes.clone();
        long[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(decode_bodies(&long), None);
    }
}
