//! Interface of the configuration store: writers propose, views are notified.

use std::sync::Arc;

use crate::change::{Applied, Change, Revision, Stored, Table};
use crate::error::ProposeError;

/// Owner of the records: a log of one node, or the copy of a cluster's records.
pub trait ConfigStore: Send + Sync {
    /// Applies all changes or none. When it returns, they are durable, and the views of this node have them. Waits for
    /// a disk or for other nodes: never to be called on a reactor.
    ///
    /// # Errors
    /// [`ProposeError`]. Nothing has changed, unless the error says otherwise.
    fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError>;

    /// Record as this node knows it. A proposal that depends on it states so: [`Change::expecting`].
    fn read(&self, table: Table, key: &str) -> Option<Stored>;

    /// Up to `limit` records after this key, in the order of keys.
    fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)>;

    /// Passes the records of a table to a view, and then every change of the table, for the lifetime of the store.
    ///
    /// # Errors
    /// Those of [`View::reset`]. The view receives nothing more.
    fn subscribe(&self, table: Table, view: Arc<dyn View>) -> Result<(), String>;

    /// Passes changes by other processes to the views. Costs at most a look at a file. A store that receives changes
    /// does nothing.
    fn catch_up(&self);

    /// Passes all changes that were accepted anywhere before this call to the views. Waits like
    /// [`ConfigStore::propose`].
    ///
    /// # Errors
    /// Those of [`ConfigStore::propose`] for an empty batch.
    fn catch_up_now(&self) -> Result<(), ProposeError>;

    fn figures(&self) -> Figures;
}

/// Keeps the content of one table in its own form.
///
/// Calls come in the order of revisions, from one thread at a time. That thread holds the store: a view never calls it.
pub trait View: Send + Sync {
    /// Replaces the table, in the order of keys: at first, and whenever single changes are not available.
    ///
    /// # Errors
    /// The records are invalid. The view keeps its previous state.
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String>;

    /// Applies the changes of a batch. A view reports an invalid record, and must not grant more for it than without
    /// it.
    fn apply(&self, changes: &[Applied<'_>]);
}

/// Counters since the start, and the current size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub revision: u64,
    /// Number of records of each table, in the order of names.
    pub records: Vec<(Box<str>, usize)>,
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Number of accepted batches.
    pub accepted: u64,
    /// Number of batches refused for a condition or a limit.
    pub refused: u64,
    /// Number of batches that could not be made durable.
    pub failed: u64,
    /// Number of syncs of the log. Less than `accepted` when several propose at once.
    pub syncs: u64,
    /// Number of rewrites of the log without outdated lines.
    pub compactions: u64,
    /// Bytes of half-written last lines that were cut off.
    pub torn_bytes: u64,
}
