//! Changes of entries in the configuration store.

use std::sync::{Arc, Mutex};

use configstore::{Change, ConfigStore, Expected, ProposeError, Table};

use crate::definition::{Kind, Named, Source};
use crate::error::EntryError;

/// Author and time of a change.
#[derive(Clone, Debug)]
pub struct Authorship {
    pub author: String,
    /// Time in milliseconds since 1970.
    pub now_ms: u64,
}

/// Proposes changes that depend on the present entries.
pub struct Changes {
    config_store: Arc<dyn ConfigStore>,
    /// Counter that each change increments.
    counter: &'static str,
    /// Held while entries are changed on this node.
    changing: Mutex<()>,
}

impl Changes {
    pub fn new(config_store: Arc<dyn ConfigStore>, counter: &'static str) -> Self {
        Self { config_store, counter, changing: Mutex::default() }
    }

    pub fn config_store(&self) -> &Arc<dyn ConfigStore> {
        &self.config_store
    }

    /// Proposes the change that `decide` returns, which depends on the present entries. Repeats that when another
    /// writer changed entries meanwhile. It waits for the configuration store: not for a reactor.
    ///
    /// # Errors
    /// The error of `decide`, or of the configuration store. Nothing has changed then, unless the error says
    /// otherwise: a cluster may have accepted the change.
    pub fn change<T, E: From<EntryError>>(
        &self,
        decide: impl Fn() -> Result<(Change, T), E>,
    ) -> Result<T, E> {
        let _changing = sync::lock(&self.changing);
        let mut attempts = 0;
        loop {
            // The counter is part of each change, so a decision about outdated entries is refused.
            let counter = self.config_store.read(COUNTERS, self.counter);
            let number: u64 = counter.as_ref().and_then(|counter| counter.value.parse().ok()).unwrap_or(0);
            let (change, done) = decide()?;
            let expected = counter.map_or(Expected::Absent, |counter| Expected::At(counter.revision));
            let counted =
                Change::number(COUNTERS, self.counter, number.saturating_add(1)).expecting(expected);
            match self.config_store.propose(vec![counted, change]) {
                Ok(_) => return Ok(done),
                // The copy of a node that lags may show outdated entries again.
                Err(ProposeError::Conflict { .. }) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(error) => return Err(EntryError::ConfigStore(error).into()),
            }
        }
    }
}

/// Returns whether an entry with this name would be new.
///
/// # Errors
/// It belongs to the file, or there are too many.
pub fn may_put<K: Kind>(entries: &Named<K::Settings>, name: &str) -> Result<bool, EntryError> {
    let existing = entries.get(name);
    if existing.is_some_and(|entry| entry.source == Source::File) {
        return Err(EntryError::OfFile { noun: K::NOUN, name: name.to_owned() });
    }
    if existing.is_none() && entries.len() >= K::MAX {
        return Err(EntryError::TooMany { noun: K::NOUN, maximum: K::MAX });
    }
    Ok(existing.is_none())
}

/// Returns the change that removes an entry.
///
/// # Errors
/// It belongs to the file, or there is none.
pub fn may_remove<K: Kind>(entries: &Named<K::Settings>, name: &str) -> Result<Change, EntryError> {
    match entries.get(name) {
        None => Err(EntryError::Unknown { noun: K::NOUN, name: name.to_owned() }),
        Some(entry) if entry.source == Source::File => {
            Err(EntryError::OfFile { noun: K::NOUN, name: name.to_owned() })
        }
        Some(_) => Ok(Change::remove(K::TABLE, name)),
    }
}

/// Maximum number of times that a change is decided again.
const ATTEMPTS_MAX: u32 = 16;
/// Table of counters that only grow.
const COUNTERS: Table = Table::named("counters");
