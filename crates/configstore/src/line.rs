//! Lines of the write-ahead log: the CRC-32 of a JSON document, and the document.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::state::Proposed;

/// First line. It is followed by `records` lines with the records at revision `base`, and then by the changes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub registry: u64,
    pub base: u64,
    pub records: u64,
    /// Cluster whose records the file copies, in hexadecimal digits. Only version 2 has it; earlier programs refuse
    /// that version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

impl Header {
    /// Makes the header of a file. `cluster` is 0 for a node's own records.
    pub fn new(cluster: u128, base: u64, records: u64) -> Self {
        let (registry, cluster) = match cluster {
            0 => (VERSION, None),
            number => (VERSION_OF_COPY, Some(format!("{number:032x}"))),
        };
        Self { registry, base, records, cluster }
    }

    /// Number of the cluster, 0 for a node's own records. Returns `None` when the header is contradictory.
    pub fn founded(&self) -> Option<u128> {
        match (&self.cluster, self.registry) {
            (None, VERSION) => Some(0),
            (Some(digits), VERSION_OF_COPY) => {
                u128::from_str_radix(digits, 16).ok().filter(|number| *number != 0)
            }
            _ => None,
        }
    }
}

/// The only field that is read from a log of a later version.
#[derive(Deserialize)]
pub struct Versioned {
    pub registry: u64,
}

/// A record at revision `base`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord<'a> {
    #[serde(rename = "r")]
    pub revision: u64,
    #[serde(rename = "t", borrow)]
    pub table: Cow<'a, str>,
    #[serde(rename = "k", borrow)]
    pub key: Cow<'a, str>,
    #[serde(rename = "v", borrow)]
    pub value: &'a RawValue,
}

/// Batches that were written together. The first has this revision, and each of the others the next one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group<'a> {
    #[serde(rename = "r")]
    pub revision: u64,
    #[serde(rename = "b", borrow)]
    pub batches: Vec<Vec<Entry<'a>>>,
}

/// A change of a record.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<'a> {
    #[serde(rename = "t", borrow)]
    pub table: Cow<'a, str>,
    #[serde(rename = "k", borrow)]
    pub key: Cow<'a, str>,
    /// The record is removed when this is absent.
    #[serde(rename = "v", borrow, default, skip_serializing_if = "Option::is_none")]
    pub value: Option<&'a RawValue>,
}

impl<'a> Entry<'a> {
    /// Converts a change.
    ///
    /// # Errors
    /// The value is not JSON, which [`Change`](crate::Change) rules out.
    pub fn of(change: Proposed<'a>) -> serde_json::Result<Self> {
        let value = change.value.map(serde_json::from_str).transpose()?;
        Ok(Self { table: change.table.into(), key: change.key.into(), value })
    }
}

/// Appends a line with this document.
///
/// # Errors
/// Those of JSON. The documents of this module cause none.
pub fn write(out: &mut Vec<u8>, document: &impl Serialize) -> serde_json::Result<()> {
    let at = out.len();
    out.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *out, document)?;
    let sum = format!("{:08x}", crc32fast::hash(&out[at + SUM_LEN + 1..]));
    out[at..at + SUM_LEN].copy_from_slice(sum.as_bytes());
    out.push(b'\n');
    Ok(())
}

/// Document of a line without its line feed. Returns `None` when the checksum differs.
pub fn document(line: &[u8]) -> Option<&str> {
    let (sum, rest) = line.split_at_checked(SUM_LEN)?;
    let document = rest.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32fast::hash(document)).then(|| std::str::from_utf8(document).ok())?
}

pub const VERSION: u64 = 1;
pub const VERSION_OF_COPY: u64 = 2;
const SUM_LEN: usize = 8;
