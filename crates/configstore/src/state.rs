//! Records in memory, without a disk.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::batch::{Batch, Mode};
use crate::change::{Applied, Change, Expected, Revision, Stored};
use crate::error::ProposeError;

/// All records at one revision.
#[derive(Clone, Default)]
pub struct State {
    pub revision: u64,
    /// Number of the cluster whose records these are a copy of; 0: the node's own.
    pub founded: u128,
    tables: BTreeMap<Box<str>, BTreeMap<Box<str>, Stored>>,
    records: usize,
    /// Approximate number of bytes of the current records in the log.
    live_bytes: u64,
}

/// Effect of accepted batches that are not durable yet.
#[derive(Default)]
pub struct Pending {
    records: HashMap<(Box<str>, Box<str>), Option<Revision>>,
    batches: u64,
    more: isize,
}

/// A proposed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed<'a> {
    pub table: &'a str,
    pub key: &'a str,
    /// JSON; `None` removes the record.
    pub value: Option<&'a str>,
    pub expected: Expected,
}

/// An accepted change for the views.
pub struct AppliedChange {
    pub table: Box<str>,
    pub key: Box<str>,
    pub value: Option<Box<str>>,
    pub revision: Revision,
}

impl AppliedChange {
    pub fn new(table: &str, key: &str, value: Option<&str>, revision: Revision) -> Self {
        Self { table: table.into(), key: key.into(), value: value.map(Into::into), revision }
    }

    pub fn proposed(&self) -> Proposed<'_> {
        let (table, key, value) = (&*self.table, &*self.key, self.value.as_deref());
        Proposed { table, key, value, expected: Expected::Anything }
    }
}

impl State {
    pub fn get(&self, table: &str, key: &str) -> Option<&Stored> {
        self.tables.get(table)?.get(key)
    }

    pub fn len(&self) -> usize {
        self.records
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Records of a table, in the order of keys.
    pub fn table(&self, table: &str) -> impl Iterator<Item = Applied<'_>> {
        self.tables.get(table).into_iter().flatten().map(|(key, stored)| Applied {
            key,
            value: Some(&stored.value),
            revision: stored.revision,
        })
    }

    /// Records after a key, or all of the table.
    pub fn records_after(
        &self,
        table: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&Box<str>, &Stored)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let records = self.tables.get(table).into_iter();
        records.flat_map(move |records| records.range::<str, _>((from, Bound::Unbounded)))
    }

    /// First record after a table and a key, in the order of tables and keys.
    pub fn next_after(&self, position: Option<(&str, &str)>) -> Option<(&str, &str, &Stored)> {
        let after = position.and_then(|(table, key)| {
            let (name, _) = self.tables.get_key_value(table)?;
            let (key, stored) = self.records_after(table, Some(key)).next()?;
            Some((&**name, &**key, stored))
        });
        let from = position.map_or(Bound::Unbounded, |(table, _)| Bound::Excluded(table));
        let mut later = self.tables.range::<str, _>((from, Bound::Unbounded));
        after.or_else(|| {
            later.find_map(|(table, records)| {
                let (key, stored) = records.first_key_value()?;
                Some((&**table, &**key, stored))
            })
        })
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

    /// Checks a batch against the records and the pending batches, and adds it to these. Returns its revision.
    ///
    /// # Errors
    /// A condition is not met, or a limit is exceeded.
    pub fn accept(
        &self,
        batch: &[Change],
        pending: &mut Pending,
        records_max: usize,
    ) -> Result<Revision, ProposeError> {
        let revision = Revision(self.revision + pending.batches + 1);
        let proposed = batch.iter().map(Change::proposed);
        let accepted = self.validate(proposed, pending, revision, records_max);
        accepted.map(|()| revision).map_err(|refused| match refused {
            Refusal::Conflict { table, key, found } => ProposeError::Conflict { table, key, found },
            Refusal::TooManyRecords => ProposeError::TooManyRecords { maximum: records_max },
        })
    }

    fn validate<'a>(
        &self,
        batch: impl Iterator<Item = Proposed<'a>>,
        pending: &mut Pending,
        revision: Revision,
        records_max: usize,
    ) -> Result<(), Refusal> {
        let mut changed: HashMap<(Box<str>, Box<str>), Option<Revision>> = HashMap::new();
        let mut more = pending.more;
        for Proposed { table, key, value, expected } in batch {
            let name: (Box<str>, Box<str>) = (table.into(), key.into());
            let before = changed.get(&name).or_else(|| pending.records.get(&name)).copied();
            let found = before.unwrap_or_else(|| self.get(table, key).map(|stored| stored.revision));
            if !expected.holds(found) {
                return Err(Refusal::Conflict { table: name.0, key: name.1, found });
            }
            more += isize::from(value.is_some()) - isize::from(found.is_some());
            changed.insert(name, value.is_some().then_some(revision));
        }
        if more > pending.more && self.records.saturating_add_signed(more) > records_max {
            return Err(Refusal::TooManyRecords);
        }
        pending.records.extend(changed);
        pending.batches += 1;
        pending.more = more;
        Ok(())
    }

    /// Applies a batch of the cluster, if it can be accepted. Every copy at the same revision does the same.
    ///
    /// # Errors
    /// A condition is not met, or a limit is exceeded. Nothing has changed then.
    pub fn apply(&mut self, batch: &Batch<'_>, records_max: usize) -> Result<Vec<AppliedChange>, Refusal> {
        let revision = Revision(self.revision + 1);
        let is_skipped = |change: &Proposed<'_>| {
            batch.mode == Mode::Missing && self.get(change.table, change.key).is_some()
        };
        let changes = batch.changes.iter().copied().filter(|change| !is_skipped(change));
        self.validate(changes.clone(), &mut Pending::default(), revision, records_max)?;
        let of = |change: Proposed<'_>| AppliedChange::new(change.table, change.key, change.value, revision);
        let changes: Vec<AppliedChange> = changes.map(of).collect();
        self.revision = revision.0;
        for change in &changes {
            self.set(&change.table, &change.key, change.value.as_deref(), revision);
        }
        Ok(changes)
    }
}

/// Reason why every copy refuses a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Conflict { table: Box<str>, key: Box<str>, found: Option<Revision> },
    TooManyRecords,
}

fn bytes(key: &str, value: &str) -> u64 {
    (key.len() + value.len()) as u64 + LINE_OVERHEAD
}

/// Bytes of the checksum, the field names, the revision and the name of the table.
const LINE_OVERHEAD: u64 = 48;
