//! Encoding of a batch that nodes send to each other, and of the answer to it. Little endian:
//!
//! ```text
//! batch    version u8 = 1, id u128, mode u8, count u32, change*
//! change   table u8 + bytes, key u16 + bytes, expected u8 (3: + revision u64), 0 | 1, value u32 + bytes
//! answer   kind u8, revision u64, fields of the kind
//! ```
//!
//! Expected: 0 anything, 1 absent, 2 present, 3 at a revision. Mode: 0 all or nothing, 1 missing records only. Answers:
//! 0 accepted, 1 conflict (table, key, 0 | 1 and the revision u64), 2 too many records (u64), 3 not a batch of this
//! version. The revision of an answer is that of the records after the batch.

use serde_json::value::RawValue;

use crate::change::{Change, Expected, Revision};
use crate::error::ProposeError;
use crate::state::{Proposed, Refusal};

/// Maximum number of bytes of a batch in a cluster. A batch travels as one message between nodes.
pub const BATCH_MAX: usize = 4 << 20;
/// Maximum number of changes of a batch.
pub const CHANGES_MAX: usize = 10_000;
pub const KEY_MAX: usize = 4_096;
/// Maximum number of bytes of a value, as JSON.
pub const VALUE_MAX: usize = 64 << 10;
const TABLE_MAX: usize = 64;
const VERSION: u8 = 1;

/// Selection of the changes of a batch that are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    All,
    /// Selects the changes of records that do not exist.
    Missing,
}

/// A batch that is proposed to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Number of the proposal. A batch that is proposed twice is applied once.
    pub id: u128,
    pub mode: Mode,
    pub changes: Vec<Proposed<'a>>,
}

impl<'a> Batch<'a> {
    pub fn of(id: u128, changes: &'a [Change]) -> Self {
        Self { id, mode: Mode::All, changes: changes.iter().map(Change::proposed).collect() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.id.to_le_bytes());
        out.push(match self.mode {
            Mode::All => 0,
            Mode::Missing => 1,
        });
        out.extend((self.changes.len() as u32).to_le_bytes());
        for change in &self.changes {
            put_name(change.table, change.key, &mut out);
            match change.expected {
                Expected::Anything => out.push(0),
                Expected::Absent => out.push(1),
                Expected::Present => out.push(2),
                Expected::At(Revision(revision)) => {
                    out.push(3);
                    out.extend(revision.to_le_bytes());
                }
            }
            match change.value {
                None => out.push(0),
                Some(value) => {
                    out.push(1);
                    put_value(value, &mut out);
                }
            }
        }
        out
    }

    /// Decodes the output of [`Self::encode`], within the limits of a cluster. Returns `None` for other bytes. Never
    /// panics.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > BATCH_MAX {
            return None;
        }
        let mut reader = Reader(bytes);
        if reader.u8()? != VERSION {
            return None;
        }
        let id = reader.u128()?;
        let mode = match reader.u8()? {
            0 => Mode::All,
            1 => Mode::Missing,
            _ => return None,
        };
        let count = reader.u32()? as usize;
        if count > CHANGES_MAX {
            return None;
        }
        let mut changes = Vec::with_capacity(count.min(reader.0.len() / CHANGE_LEAST));
        for _ in 0..count {
            let (table, key) = reader.name()?;
            let expected = match reader.u8()? {
                0 => Expected::Anything,
                1 => Expected::Absent,
                2 => Expected::Present,
                3 => Expected::At(Revision(reader.u64()?)),
                _ => return None,
            };
            let value = match reader.u8()? {
                0 => None,
                1 => Some(reader.value()?),
                _ => return None,
            };
            changes.push(Proposed { table, key, value, expected });
        }
        reader.0.is_empty().then_some(Self { id, mode, changes })
    }
}

/// Encodes a batch for [`Records`](crate::Records) whose changes are all applied, or none. Each proposal needs its own
/// `id`.
pub fn encode_batch(id: u128, changes: &[Change]) -> Vec<u8> {
    Batch::of(id, changes).encode()
}

/// Result of a batch, and the revision of the records when the batch was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub revision: Revision,
    pub outcome: Result<(), ProposeError>,
}

pub(crate) fn encode_answer(revision: u64, outcome: &Result<(), Refusal>, records_max: usize) -> Vec<u8> {
    let kind = match outcome {
        Ok(()) => 0,
        Err(Refusal::Conflict { .. }) => 1,
        Err(Refusal::TooManyRecords) => 2,
    };
    let mut out = vec![kind];
    out.extend(revision.to_le_bytes());
    match outcome {
        Ok(()) => {}
        Err(Refusal::Conflict { table, key, found }) => {
            put_name(table, key, &mut out);
            out.push(u8::from(found.is_some()));
            out.extend(found.unwrap_or_default().0.to_le_bytes());
        }
        Err(Refusal::TooManyRecords) => out.extend((records_max as u64).to_le_bytes()),
    }
    out
}

/// Encodes the answer to bytes that are not a batch.
pub(crate) fn encode_no_batch(revision: u64) -> Vec<u8> {
    [&[3][..], &revision.to_le_bytes()].concat()
}

impl Answer {
    /// Decodes an answer. Returns `None` for other bytes. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let kind = reader.u8()?;
        let revision = Revision(reader.u64()?);
        let outcome = match kind {
            0 => Ok(()),
            1 => {
                let (table, key) = reader.name()?;
                let (table, key) = (table.into(), key.into());
                let found = (reader.u8()? != 0).then_some(());
                let at = Revision(reader.u64()?);
                Err(ProposeError::Conflict { table, key, found: found.map(|()| at) })
            }
            2 => Err(ProposeError::TooManyRecords { maximum: reader.u64()? as usize }),
            3 => Err(ProposeError::NotCommitted {
                why: "the leader runs another version, which cannot read the change: update the cores first"
                    .to_owned(),
                outcome_unknown: false,
            }),
            _ => return None,
        };
        reader.0.is_empty().then_some(Self { revision, outcome })
    }
}

pub(crate) fn put_name(table: &str, key: &str, out: &mut Vec<u8>) {
    out.push(table.len() as u8);
    out.extend(table.as_bytes());
    out.extend((key.len() as u16).to_le_bytes());
    out.extend(key.as_bytes());
}

pub(crate) fn put_value(value: &str, out: &mut Vec<u8>) {
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
}

/// Reads fields from untrusted bytes. Each method returns `None` when bytes are missing or a limit is exceeded.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    fn text(&mut self, length: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(length)?).ok()
    }

    pub fn name(&mut self) -> Option<(&'a str, &'a str)> {
        let length = usize::from(self.u8()?);
        let table = self.text(length)?;
        let is_name = |byte: u8| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !(1..=TABLE_MAX).contains(&table.len()) || !table.bytes().all(is_name) {
            return None;
        }
        let length = self.take().map(u16::from_le_bytes)?;
        let key = self.text(usize::from(length))?;
        (1..=KEY_MAX).contains(&key.len()).then_some((table, key))
    }

    /// Reads a JSON value on one line that is not `null`. The write-ahead log can hold no other value.
    pub fn value(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        if length > VALUE_MAX {
            return None;
        }
        let text = self.text(length)?;
        let value: &RawValue = serde_json::from_str(text).ok()?;
        (value.get() == text && text != "null" && !text.contains('\n')).then_some(text)
    }
}

/// Bytes of the shortest change.
const CHANGE_LEAST: usize = 7;
const _: () = assert!(KEY_MAX <= u16::MAX as usize && TABLE_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Table;

    const TABLE: Table = Table::named("t");

    fn batch() -> Vec<Change> {
        vec![
            Change::number(TABLE, "a", 7).expecting(Expected::Absent),
            Change::remove(TABLE, "b").expecting(Expected::At(Revision(5))),
            Change::remove(TABLE, "c").expecting(Expected::Present),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Version 1 keeps these bytes for ever.
    #[test]
    fn a_batch_has_these_bytes() {
        let changes = batch();
        let batch = Batch { mode: Mode::Missing, ..Batch::of(0x0102, &changes) };
        let bytes = batch.encode();
        let golden = concat!(
            "01",
            "02010000000000000000000000000000",
            "01",
            "03000000",
            "0174",
            "010061",
            "01",
            "01",
            "0100000037",
            "0174",
            "010062",
            "030500000000000000",
            "00",
            "0174",
            "010063",
            "02",
            "00",
        );
        assert_eq!(hex(&bytes), golden);
        assert_eq!(Batch::decode(&bytes), Some(batch));
        for length in 0..bytes.len() {
            assert_eq!(Batch::decode(&bytes[..length]), None);
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = Batch::decode(&bad);
            }
        }
    }

    #[test]
    fn a_batch_with_a_value_that_the_log_cannot_hold_is_rejected() {
        let change =
            |table, key, value| Proposed { table, key, value: Some(value), expected: Expected::Anything };
        let read = |change: Proposed<'_>| {
            let bytes = Batch { id: 1, mode: Mode::All, changes: vec![change] }.encode();
            Batch::decode(&bytes).is_some()
        };
        assert!(read(change("t", "k", "{\"a\":1}")));
        let long = "9".repeat(VALUE_MAX + 1);
        let key = "k".repeat(KEY_MAX + 1);
        for bad in [
            change("", "k", "1"),
            change("T", "k", "1"),
            change("t", "", "1"),
            change("t", &key, "1"),
            change("t", "k", "null"),
            change("t", "k", " null"),
            change("t", "k", "1 "),
            change("t", "k", "{"),
            change("t", "k", "[1,\n2]"),
            change("t", "k", &long),
        ] {
            assert!(!read(bad), "{bad:?}");
        }
    }

    /// Version 1 keeps these bytes for ever.
    #[test]
    fn answers_have_these_bytes() {
        let conflict = Refusal::Conflict { table: "t".into(), key: "k".into(), found: Some(Revision(3)) };
        let cases = [
            (encode_answer(9, &Ok(()), 5), "000900000000000000"),
            (encode_answer(9, &Err(conflict), 5), "01090000000000000001740100 6b010300000000000000"),
            (encode_answer(9, &Err(Refusal::TooManyRecords), 5), "0209000000000000000500000000000000"),
            (encode_no_batch(9), "030900000000000000"),
        ];
        for (bytes, golden) in cases {
            assert_eq!(hex(&bytes), golden.replace(' ', ""));
            let answer = Answer::decode(&bytes).expect("an answer");
            assert_eq!(answer.revision, Revision(9));
            for length in 0..bytes.len() {
                assert_eq!(Answer::decode(&bytes[..length]), None);
            }
        }
        assert_eq!(Answer::decode(&[4, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
