//! The records themselves, without a disk.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::change::{Applied, Change, Revision, Stored};
use crate::error::ProposeError;
use crate::local::Limits;

/// All records at one revision.
#[derive(Default)]
pub struct State {
    pub revision: u64,
    tables: BTreeMap<Box<str>, BTreeMap<Box<str>, Stored>>,
    records: usize,
    /// About what the journal takes for the records that there are.
    live_bytes: u64,
}

/// What batches that were accepted, and are not durable yet, would make of the records.
#[derive(Default)]
pub struct Pending {
    records: HashMap<(Box<str>, Box<str>), Option<Revision>>,
    batches: u64,
    more: isize,
}

impl State {
    pub fn get(&self, table: &str, key: &str) -> Option<&Stored> {
        self.tables.get(table)?.get(key)
    }

    pub fn len(&self) -> usize {
        self.records
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The table's records, in the order of keys.
    pub fn table(&self, table: &str) -> impl Iterator<Item = Applied<'_>> {
        self.tables.get(table).into_iter().flatten().map(|(key, stored)| Applied {
            key,
            value: Some(&stored.value),
            revision: stored.revision,
        })
    }

    /// Those behind a key, or all.
    pub fn behind(&self, table: &str, after: Option<&str>) -> impl Iterator<Item = (&Box<str>, &Stored)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let records = self.tables.get(table).into_iter();
        records.flat_map(move |records| records.range::<str, _>((from, Bound::Unbounded)))
    }

    pub fn tables(&self) -> impl Iterator<Item = (&str, &BTreeMap<Box<str>, Stored>)> {
        self.tables.iter().map(|(name, records)| (&**name, records))
    }

    /// Writes or removes one record.
    pub fn set(&mut self, table: &str, key: &str, value: Option<&str>, revision: Revision) {
        let Some(value) = value else {
            let removed = self.tables.get_mut(table).and_then(|records| records.remove(key));
            if let Some(old) = removed {
                self.records -= 1;
                self.live_bytes -= bytes(key, &old.value);
            }
            return;
        };
        if !self.tables.contains_key(table) {
            self.tables.insert(table.into(), BTreeMap::new());
        }
        let Some(records) = self.tables.get_mut(table) else { return };
        self.live_bytes += bytes(key, value);
        match records.insert(key.into(), Stored { revision, value: value.into() }) {
            Some(old) => self.live_bytes -= bytes(key, &old.value),
            None => self.records += 1,
        }
    }

    /// Whether a batch can be accepted behind those pending; it is pending then. Gives its revision.
    ///
    /// # Errors
    /// What it expects is not so, or a limit.
    pub fn accept(
        &self,
        batch: &[Change],
        pending: &mut Pending,
        limits: &Limits,
    ) -> Result<Revision, ProposeError> {
        let revision = Revision(self.revision + pending.batches + 1);
        let mut mine: HashMap<(Box<str>, Box<str>), Option<Revision>> = HashMap::new();
        let mut more = pending.more;
        for change in batch {
            let name: (Box<str>, Box<str>) = (change.table.name().into(), change.key.clone());
            let before = mine.get(&name).or_else(|| pending.records.get(&name)).copied();
            let found = before.unwrap_or_else(|| self.get(&name.0, &name.1).map(|stored| stored.revision));
            if !change.expected.holds(found) {
                return Err(ProposeError::Conflict { table: change.table.name(), key: name.1, found });
            }
            more += isize::from(change.value.is_some()) - isize::from(found.is_some());
            mine.insert(name, change.value.is_some().then_some(revision));
        }
        if more > pending.more && self.records.saturating_add_signed(more) > limits.records_max {
            return Err(ProposeError::TooManyRecords { maximum: limits.records_max });
        }
        pending.records.extend(mine);
        pending.batches += 1;
        pending.more = more;
        Ok(revision)
    }
}

fn bytes(key: &str, value: &str) -> u64 {
    (key.len() + value.len()) as u64 + LINE_OVERHEAD
}

/// Sum, field names, revision and a table's name.
const LINE_OVERHEAD: u64 = 48;
