use std::fmt;

use crate::id::{Incarnation, Position, WriterId};

/// What a key has. Small: it is copied.
pub trait Value: Clone + PartialEq {
    fn encode(&self, out: &mut Vec<u8>);

    /// From the front of `bytes`, which then begin behind it; `None` when that is no value.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

/// All last operations of one incarnation of a writer whose position is in `after..=upto`, without `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta<V> {
    pub writer: WriterId,
    pub incarnation: Incarnation,
    pub after: Position,
    pub upto: Position,
    pub copy: CopyPart,
    pub operations: Vec<Operation<V>>,
}

/// Whether a delta is of a whole copy, for a reader that has missed deletions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPart {
    No,
    /// Of one that goes on.
    Part,
    /// Its end: keys that it did not mention are deleted.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<V> {
    pub position: Position,
    pub key: Box<[u8]>,
    /// `None`: deleted.
    pub value: Option<V>,
}

/// Bytes that are no delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaError {
    /// Where.
    pub offset: usize,
}

impl fmt::Display for DeltaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no delta of a replicated map, from byte {} on", self.offset)
    }
}

impl std::error::Error for DeltaError {}

const VERSION: u8 = 1;

impl<V: Value> Delta<V> {
    /// Version u8, copy u8, writer u64, incarnation u64, after u64, length of the range; then for each operation the step of its position,
    /// length of the key with the lowest bit for a value, key, value. Lengths and steps are of variable length.
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

    /// # Errors
    /// For bytes that no [`Self::encode`] made. Never panics.
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

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
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

    /// The bytes of version 1, for ever.
    #[test]
    fn a_delta_has_these_bytes() {
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
    fn no_bytes_panic_and_what_is_cut_is_refused() {
        let mut bytes = Vec::new();
        delta().encode(&mut bytes);
        // After its head and after each operation it would be a shorter one.
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
    fn numbers_have_one_meaning() {
        for number in [0, 1, 127, 128, 300, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            assert_eq!(take_number(&mut &bytes[..]), Some(number));
        }
        assert_eq!(take_number(&mut &[0xff; 10][..]), None);
    }
}
