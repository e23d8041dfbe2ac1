//! Tables, records and changes of records.

use serde::Serialize;

use crate::state::Proposed;

/// Name of a table: lower-case ASCII characters, digits and `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(&'static str);

impl Table {
    /// Makes a table of this name.
    ///
    /// # Panics
    /// Panics when the name is empty or has other characters. Tables are named in the source.
    pub const fn named(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty());
        let mut at = 0;
        while at < bytes.len() {
            assert!(bytes[at] == b'_' || bytes[at].is_ascii_lowercase() || bytes[at].is_ascii_digit());
            at += 1;
        }
        Self(name)
    }

    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Number of a batch: how many were accepted up to and including this one. The first is 1; 0 is before all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// Condition of a change. When it is not met, the whole batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Anything,
    /// The record does not exist.
    Absent,
    /// The record exists, with any value.
    Present,
    /// The record exists, and this revision changed it last.
    At(Revision),
}

impl Expected {
    pub(crate) fn holds(self, found: Option<Revision>) -> bool {
        match self {
            Self::Anything => true,
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::At(revision) => found == Some(revision),
        }
    }
}

/// A record to write or to remove.
#[derive(Clone, PartialEq, Eq)]
pub struct Change {
    pub(crate) table: Table,
    pub(crate) key: Box<str>,
    /// JSON; `None` removes the record.
    pub(crate) value: Option<Box<str>>,
    pub(crate) expected: Expected,
}

impl Change {
    /// Writes a record, whether it exists or not.
    ///
    /// # Errors
    /// The value has no JSON: a map whose keys are not strings.
    pub fn put(table: Table, key: impl Into<Box<str>>, value: &impl Serialize) -> serde_json::Result<Self> {
        let value = serde_json::to_string(value)?.into_boxed_str();
        Ok(Self { table, key: key.into(), value: Some(value), expected: Expected::Anything })
    }

    /// Writes a number. Every number has a JSON.
    pub fn number(table: Table, key: impl Into<Box<str>>, value: u64) -> Self {
        Self { table, key: key.into(), value: Some(value.to_string().into()), expected: Expected::Anything }
    }

    /// Removes a record, if it exists.
    pub fn remove(table: Table, key: impl Into<Box<str>>) -> Self {
        Self { table, key: key.into(), value: None, expected: Expected::Anything }
    }

    #[must_use]
    pub fn expecting(self, expected: Expected) -> Self {
        Self { expected, ..self }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn proposed(&self) -> Proposed<'_> {
        let (table, key, value) = (self.table.name(), &*self.key, self.value.as_deref());
        Proposed { table, key, value, expected: self.expected }
    }
}

/// Leaves out the value: it may hold the hash of a password.
impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = if self.value.is_some() { "put" } else { "remove" };
        write!(f, "{verb} {}/{:?} expecting {:?}", self.table.0, self.key, self.expected)
    }
}

/// A changed record, as a view receives it.
#[derive(Clone, Copy)]
pub struct Applied<'a> {
    pub key: &'a str,
    /// JSON; `None` when the record was removed.
    pub value: Option<&'a str>,
    pub revision: Revision,
}

/// A record, and the revision that changed it last.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    pub revision: Revision,
    /// JSON.
    pub value: Box<str>,
}
