//! A line of the journal: the CRC-32 of a JSON document, and the document.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::change::Change;

/// The first line. `records` lines follow that say what there was at revision `base`, and then what was changed since.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub registry: u64,
    pub base: u64,
    pub records: u64,
}

/// The only field that is read of a journal of a later version.
#[derive(Deserialize)]
pub struct Versioned {
    pub registry: u64,
}

/// A record as it was at `base`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept<'a> {
    #[serde(rename = "r")]
    pub revision: u64,
    #[serde(rename = "t", borrow)]
    pub table: Cow<'a, str>,
    #[serde(rename = "k", borrow)]
    pub key: Cow<'a, str>,
    #[serde(rename = "v", borrow)]
    pub value: &'a RawValue,
}

/// Batches that were written together; the first has this revision, and each of the others the next one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group<'a> {
    #[serde(rename = "r")]
    pub revision: u64,
    #[serde(rename = "b", borrow)]
    pub batches: Vec<Vec<Entry<'a>>>,
}

/// One change.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry<'a> {
    #[serde(rename = "t", borrow)]
    pub table: Cow<'a, str>,
    #[serde(rename = "k", borrow)]
    pub key: Cow<'a, str>,
    /// Absent: the record is removed.
    #[serde(rename = "v", borrow, default, skip_serializing_if = "Option::is_none")]
    pub value: Option<&'a RawValue>,
}

impl<'a> Entry<'a> {
    /// # Errors
    /// A value that is no JSON, which [`Change`] does not make.
    pub fn of(change: &'a Change) -> serde_json::Result<Self> {
        let value = change.value.as_deref().map(serde_json::from_str).transpose()?;
        Ok(Self { table: change.table.name().into(), key: (&*change.key).into(), value })
    }
}

/// # Errors
/// Never for the documents above; JSON's own otherwise.
pub fn write(out: &mut Vec<u8>, document: &impl Serialize) -> serde_json::Result<()> {
    let at = out.len();
    out.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *out, document)?;
    let sum = format!("{:08x}", crc32fast::hash(&out[at + SUM_LEN + 1..]));
    out[at..at + SUM_LEN].copy_from_slice(sum.as_bytes());
    out.push(b'\n');
    Ok(())
}

/// The document of a line without its line feed; `None` when its sum is another.
pub fn document(line: &[u8]) -> Option<&str> {
    let (sum, rest) = line.split_at_checked(SUM_LEN)?;
    let document = rest.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32fast::hash(document)).then(|| std::str::from_utf8(document).ok())?
}

pub const VERSION: u64 = 1;
const SUM_LEN: usize = 8;
