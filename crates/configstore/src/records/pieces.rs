//! Snapshots of records piece by piece: written while batches are applied, and read as the bytes arrive.

use std::collections::BTreeMap;

use super::{RecentAnswers, Records, RecordsLimits, VERSION};
use crate::batch::{Reader, put_name, put_value};
use crate::change::{Revision, Stored};
use crate::state::State;

/// Maximum number of bytes of an answer or a record.
const ITEM_MAX: usize = 8 << 20;

type Name = (Box<str>, Box<str>);

/// Snapshot that is being written: the records when it began.
#[derive(Clone, Default)]
pub(super) struct Writing {
    /// Last record that was written.
    position: Option<Name>,
    /// Records after the position that have changed since the snapshot began, as they were then.
    before: BTreeMap<Name, Option<Stored>>,
}

impl Writing {
    /// Keeps a record as it is before a batch changes it.
    pub fn keep(&mut self, state: &State, table: &str, key: &str) {
        let name: Name = (table.into(), key.into());
        if self.position.as_ref() < Some(&name) {
            self.before.entry(name).or_insert_with(|| state.get(table, key).cloned());
        }
    }

    /// Next record of the snapshot.
    fn next(&mut self, state: &State) -> Option<(Name, Stored)> {
        loop {
            let position = self.position.as_ref().map(|(table, key)| (&**table, &**key));
            let present = state.next_after(position);
            let changed = self.before.first_key_value().map(|(name, _)| (&*name.0, &*name.1));
            let is_changed = match (&present, changed) {
                (None, None) => return None,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((table, key, _)), Some(changed)) => changed <= (*table, *key),
            };
            if !is_changed {
                let (table, key, stored) = present?;
                let (name, stored) = ((table.into(), key.into()), stored.clone());
                self.position = Some(Name::clone(&name));
                return Some((name, stored));
            }
            let (name, stored) = self.before.pop_first()?;
            self.position = Some(name.clone());
            if let Some(stored) = stored {
                return Some((name, stored));
            }
        }
    }
}

impl Records {
    /// Begins a snapshot of the present state, and adds its first bytes. All bytes are those of [`Self::snapshot`].
    pub fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        self.put_recent(out);
        super::put_head(&self.state, out);
        self.writing = Some(Writing::default());
    }

    /// Adds records of the snapshot until `out` has `length` bytes or more. Returns true when the snapshot is whole.
    pub fn write_snapshot(&mut self, length: usize, out: &mut Vec<u8>) -> bool {
        let Some(writing) = &mut self.writing else { return true };
        while out.len() < length {
            let Some(((table, key), stored)) = writing.next(&self.state) else {
                self.writing = None;
                return true;
            };
            put_name(&table, &key, out);
            out.extend(stored.revision.0.to_le_bytes());
            put_value(&stored.value, out);
        }
        false
    }
}

/// Snapshot whose bytes arrive in pieces.
#[derive(Clone, Default)]
pub struct SnapshotReader {
    /// Bytes that are not read yet: less than an answer or a record.
    buffer: Vec<u8>,
    stage: Stage,
    recent: RecentAnswers,
    state: State,
}

#[derive(Clone, Copy, Default)]
enum Stage {
    #[default]
    Version,
    /// Number of answers that are missing.
    Recent(u32),
    Head,
    /// Number of records that are missing.
    Records(u64),
}

impl SnapshotReader {
    /// Reads the next bytes. Returns false for bytes that are not of a snapshot of this version. Never panics.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = &buffer[..];
        loop {
            let mut reader = Reader(rest);
            match self.read_item(&mut reader) {
                Item::Read => rest = reader.0,
                Item::Incomplete => break,
                Item::Invalid => return false,
            }
        }
        self.buffer = rest.to_vec();
        self.buffer.len() < ITEM_MAX
    }

    /// Returns the records. `None` if bytes are missing or left over.
    pub fn finish(self, limits: RecordsLimits) -> Option<Records> {
        let is_whole = matches!(self.stage, Stage::Records(0)) && self.buffer.is_empty();
        is_whole.then(|| Records { recent: self.recent, state: self.state, ..Records::new(limits) })
    }

    fn read_item(&mut self, reader: &mut Reader<'_>) -> Item {
        let read = match self.stage {
            Stage::Version => self.read_version(reader),
            Stage::Recent(0) => {
                self.stage = Stage::Head;
                return Item::Read;
            }
            Stage::Recent(left) => self.read_answer(reader, left),
            Stage::Head => self.read_head(reader),
            Stage::Records(0) => return Item::Incomplete,
            Stage::Records(left) => self.read_record(reader, left),
        };
        read.unwrap_or(Item::Incomplete)
    }

    fn read_version(&mut self, reader: &mut Reader<'_>) -> Option<Item> {
        if reader.u8()? != VERSION {
            return Some(Item::Invalid);
        }
        self.stage = Stage::Recent(reader.u32()?);
        Some(Item::Read)
    }

    fn read_answer(&mut self, reader: &mut Reader<'_>, left: u32) -> Option<Item> {
        let id = reader.u128()?;
        let length = reader.u32()? as usize;
        self.recent.push_back((id, reader.bytes(length)?.into()));
        self.stage = Stage::Recent(left - 1);
        Some(Item::Read)
    }

    fn read_head(&mut self, reader: &mut Reader<'_>) -> Option<Item> {
        if reader.u8()? != VERSION {
            return Some(Item::Invalid);
        }
        let (revision, count) = (reader.u64()?, reader.u64()?);
        self.state.revision = revision;
        self.stage = Stage::Records(count);
        Some(Item::Read)
    }

    fn read_record(&mut self, reader: &mut Reader<'_>, left: u64) -> Option<Item> {
        let (table, key) = reader.name()?;
        let revision = reader.u64()?;
        let value = reader.value()?;
        if revision > self.state.revision || self.state.get(table, key).is_some() {
            return Some(Item::Invalid);
        }
        self.state.set(table, key, Some(value), Revision(revision));
        self.stage = Stage::Records(left - 1);
        Some(Item::Read)
    }
}

enum Item {
    Read,
    /// The rest of the bytes is missing, or they are not an item at all. [`ITEM_MAX`] limits the wait.
    Incomplete,
    Invalid,
}
