//! The one interface: who proposes, and who is told.

use std::sync::Arc;

use crate::change::{Applied, Change, Revision, Stored, Table};
use crate::error::ProposeError;

/// Owns the records. Today a file of one node; replicated, later.
pub trait ConfigStore: Send + Sync {
    /// Applies all changes or none. When it returns, they are durable, and views of this node have them. Waits for a disk, or for other
    /// nodes: never called on a reactor.
    ///
    /// # Errors
    /// [`ProposeError`]; nothing has changed then, unless it says otherwise.
    fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError>;

    /// A record as this node knows it. Whoever goes by it says so in what is proposed: [`Change::expecting`].
    fn read(&self, table: Table, key: &str) -> Option<Stored>;

    /// Up to `limit` records behind this key, in the order of keys.
    fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)>;

    /// Tells a view the records of a table, and then every change to it, as long as the ledger lives.
    ///
    /// # Errors
    /// What [`View::reset`] says; the view is told nothing more then.
    fn subscribe(&self, table: Table, view: Arc<dyn View>) -> Result<(), String>;

    /// Has views see what others changed. Costs a look at a file, at most; a ledger that is told of changes does nothing.
    fn catch_up(&self);

    /// Has views see whatever was accepted anywhere before this is called. Waits as [`ConfigStore::propose`] does.
    ///
    /// # Errors
    /// As [`ConfigStore::propose`], of no changes.
    fn catch_up_now(&self) -> Result<(), ProposeError>;

    fn figures(&self) -> Figures;
}

/// Keeps what one table says in a shape of its own. Called in the order of revisions, by one thread at a time, which holds the ledger
/// meanwhile: a view never calls it.
pub trait View: Send + Sync {
    /// The whole table, in the order of keys: at first, and whenever single changes are not to be had.
    ///
    /// # Errors
    /// Records that make no sense; what was known before holds on then.
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String>;

    /// What a batch changed. A record that makes no sense is for the view to report, and must not give anybody more than none.
    fn apply(&self, changes: &[Applied<'_>]);
}

/// What happened since the start, and what there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub revision: u64,
    /// Records of each table, in the order of names.
    pub records: Vec<(Box<str>, usize)>,
    /// Bytes of the journal.
    pub wal_bytes: u64,
    /// Batches accepted.
    pub accepted: u64,
    /// Batches refused because of what they expected, or at a limit.
    pub refused: u64,
    /// Batches that could not be made durable.
    pub failed: u64,
    /// How often the journal was forced to the disk; less than `accepted` when many propose at once.
    pub syncs: u64,
    /// How often the journal was written anew without what is dead.
    pub compactions: u64,
    /// Bytes of half-written last lines that were cut off.
    pub torn_bytes: u64,
}
