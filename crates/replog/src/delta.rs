use std::fmt;

use crate::id::{Incarnation, Position, WriterId};

/// Value of a key. It is small: it is copied.
pub trait Value: Clone + PartialEq {
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a value from the front of `bytes` and advances it. Returns `None` for an invalid value.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

/// All last operations of one incarnation of a writer with positions in `after..=upto`, without `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta<V> {
    pub writer: WriterId,
    pub incarnation: Incarnation,
    pub after: Position,
    pub upto: Position,
    pub copy: CopyPart,
    pub operations: Vec<Operation<V>>,
}

/// Part of a whole copy for a reader that has missed deletions, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPart {
    No,
    /// Part of a copy that continues.
    Part,
    /// Last part of a copy: keys that the copy did not contain are deleted.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<V> {
    pub position: Position,
    pub key: Box<[u8]>,
    /// New value, or `None` for a deletion.
    pub value: Option<V>,
}

/// Error of bytes that are no delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaError {
    /// Offset of the first invalid byte.
    pub offset: usize,
}

impl fmt::Display for DeltaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid delta of a replicated map at byte {}", self.offset)
    }
}

impl std::error::Error for DeltaError {}

const VERSION: u8 = 1;

impl<V: Value> Delta<V> {
    /// Encodes the delta: version u8, copy u8, writer u64, incarnation u64, after u64, length of the range. For each
    /// operation: the step of its position, the length of the key with a bit for a value as lowest bit, key, value.
    /// Lengths and steps are of variable length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.push(match self.copy {
            CopyPart::No => 0,
            CopyPart::Part => 1,
            CopyPart::End => 2,
        });
        for number in [self.writer.0, self.incarnation.0, self.after.0] {
            out.extend(number.to_le_bytes());
        }
        put_number(self.upto.0 - self.after.0, out);
        let mut before = self.after.0;
        for Operation { position, key, value } in &self.operations {
            put_number(position.0 - before, out);
            put_number((key.len() as u64) << 1 | u64::from(value.is_some()), out);
            out.extend(&**key);
            if let Some(value) = value {
                value.encode(out);
            }
            before = position.0;
        }
    }

    /// Decodes a delta. Never panics.
    ///
    /// # Errors
    /// The bytes do not come from [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DeltaError> {
        let mut rest = bytes;
        Self::read(&mut rest).ok_or(DeltaError { offset: bytes.len() - rest.len() })
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let [version, copy] = take(bytes)?;
        let copy = match (version, copy) {
            (VERSION, 0) => CopyPart::No,
            (VERSION, 1) => CopyPart::Part,
            (VERSION, 2) => CopyPart::End,
            _ => return None,
        };
        let mut number = || Some(u64::from_le_bytes(take(bytes)?));
        let (writer, incarnation, after) = (WriterId(number()?), Incarnation(number()?), Position(number()?));
        let upto = Position(after.0.checked_add(take_number(bytes)?)?);
        let mut operations = Vec::new();
        let mut before = after;
        while !bytes.is_empty() {
            let step = take_number(bytes)?;
            let position = Position(before.0.checked_add(step)?);
            let length = take_number(bytes)?;
            let key = take_slice(bytes, usize::try_from(length >> 1).ok()?)?;
            let value = if length & 1 == 1 { Some(V::decode(bytes)?) } else { None };
            if step == 0 || position > upto {
                return None;
            }
            operations.push(Operation { position, key: key.into(), value });
            before = position;
        }
        Some(Self { writer, incarnation, after, upto, copy, operations })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

fn take_slice<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Appends a number: seven bits per byte, the lowest first; the highest bit means that more follow.
fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = take(bytes)?;
        let part = u64::from(byte & 0x7f);
        if part.checked_shl(shift)? >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Value for u8 {
        fn encode(&self, out: &mut Vec<u8>) {
            out.push(*self);
        }

        fn decode(bytes: &mut &[u8]) -> Option<Self> {
            let [byte] = take(bytes)?;
            Some(byte)
        }
    }

    fn delta() -> Delta<u8> {
        let operation =
            |position, key: &[u8], value| Operation { position: Position(position), key: key.into(), value };
        Delta {
            writer: WriterId(3),
            incarnation: Incarnation(2),
            after: Position(100),
            upto: Position(500),
            copy: CopyPart::Part,
            operations: vec![operation(101, b"a/b", Some(7)), operation(400, b"c", None)],
        }
    }

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn a_delta_keeps_its_byte_format() {
        let mut bytes = Vec::new();
        delta().encode(&mut bytes);
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = [
            "0101",
            "0300000000000000",
            "0200000000000000",
            "6400000000000000",
            "9003",
            "0107612f6207",
            "ab020263",
        ];
        assert_eq!(found, golden.concat());
        assert_eq!(Delta::decode(&bytes), Ok(delta()));
    }

    #[test]
    fn no_bytes_panic_and_cut_deltas_are_refused() {
        let mut bytes = Vec::new();
        delta().encode(&mut bytes);
        // Cut after its head or after an operation it is a valid shorter delta.
        let whole = [28, 34, bytes.len()];
        for length in 0..=bytes.len() {
            assert_eq!(Delta::<u8>::decode(&bytes[..length]).is_ok(), whole.contains(&length), "{length}");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = bytes.clone();
                bad[at] = value;
                if let Ok(delta) = Delta::<u8>::decode(&bad) {
                    let mut again = Vec::new();
                    delta.encode(&mut again);
                    assert_eq!(Delta::decode(&again), Ok(delta));
                }
            }
        }
    }

    #[test]
    fn numbers_have_one_encoding() {
        for number in [0, 1, 127, 128, 300, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            assert_eq!(take_number(&mut &bytes[..]), Some(number));
        }
        assert_eq!(take_number(&mut &[0xff; 10][..]), None);
    }
}
