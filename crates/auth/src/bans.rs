//! Bans: clients that may not connect, by Client Identifier, User Name or address, for a time or permanently.
//!
//! [`Bans`] proposes changes to the configuration store, and sees the bans that it holds. Each CONNECT calls
//! [`Bans::find`], which takes no lock; a change builds the next [`Snapshot`](snapshot::Snapshot).

mod file;
mod net;
mod record;
mod snapshot;
mod target;
mod view;

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Revision, Table};

pub use file::{BansFault, BansFileError, BansImportError};
pub use net::{Net, NetError};
pub use target::{BanKind, BanTarget, Pattern, VALUE_MAX, ValueError};
use view::BanView;

/// Id of a ban. Never reused, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BanId(pub u64);

/// Ban of a client or of several.
#[derive(Clone, Debug)]
pub struct Ban {
    pub id: BanId,
    pub target: BanTarget,
    pub reason: Box<str>,
    /// Author: the name of an API key, or empty.
    pub by: Box<str>,
    pub created_at: SystemTime,
    /// End of the ban; `None` is permanent.
    pub until: Option<SystemTime>,
}

/// Ban to be created.
#[derive(Clone, Debug)]
pub struct NewBan {
    pub target: BanTarget,
    /// Reason of at most [`REASON_MAX`] bytes.
    pub reason: String,
    pub by: String,
    pub until: Option<SystemTime>,
}

/// Maximum size of a ban's reason in bytes.
pub const REASON_MAX: usize = 1024;

/// Reason why a ban cannot be created or removed.
#[derive(Debug)]
pub enum BanError {
    /// The same target is banned already, by this ban.
    Exists(BanId),
    TooMany {
        maximum: usize,
    },
    ReasonLong,
    /// The configuration store does not accept the change.
    Write(ProposeError),
}

impl std::fmt::Display for BanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exists(id) => write!(f, "ban {} has the same target; delete it first", id.0),
            Self::TooMany { maximum } => {
                write!(f, "there are {maximum} bans; delete some, or raise `auth.bans_max`")
            }
            Self::ReasonLong => write!(f, "the reason has more than {REASON_MAX} bytes; shorten it"),
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BanError {}

/// Bans of one node. An expired ban is not found any more at once, and is removed at the next change.
pub struct Bans {
    view: Arc<BanView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held while bans are changed on this node, which avoids conflicts and repetitions.
    changing: Mutex<()>,
    bans_max: usize,
}

impl std::fmt::Debug for Bans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bans").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Bans {
    /// Creates bans that are kept in memory only.
    pub fn in_memory(bans_max: usize) -> Self {
        let config_store = Arc::new(LocalStore::in_memory());
        Self { view: Arc::default(), config_store, changing: Mutex::default(), bans_max }.watching()
    }

    /// Opens the bans of the configuration store. Existing bans beyond `bans_max` are kept, but none are added.
    ///
    /// # Errors
    /// A record is invalid: starting without these bans would admit banned clients.
    pub fn open(config_store: Arc<dyn ConfigStore>, bans_max: usize) -> Result<Self, String> {
        let view = Arc::new(BanView::default());
        config_store.subscribe(TABLE, view.clone())?;
        Ok(Self { view, config_store, changing: Mutex::default(), bans_max })
    }

    /// Registers the view at a store without records, where this cannot fail.
    fn watching(self) -> Self {
        if let Err(why) = self.config_store.subscribe(TABLE, self.view.clone()) {
            tracing::error!("{why}");
        }
        self
    }

    /// Imports `bans.json` of earlier versions, if this directory has one, and renames it to `bans.json.imported`.
    /// Returns the number of imported bans.
    ///
    /// # Errors
    /// The file cannot be used, or the configuration store does not accept the bans. The import can be repeated then.
    pub fn import(&self, data_dir: &Path) -> Result<usize, BansImportError> {
        file::import(self, data_dir)
    }

    /// Returns a ban in force that matches this client. `now` is called only when a matching ban has an end.
    pub fn find(
        &self,
        client_id: &str,
        username: Option<&str>,
        peer: Option<IpAddr>,
        now: impl Fn() -> SystemTime,
    ) -> Option<BanId> {
        self.view.snapshot().find(client_id, username, peer, now).map(|ban| ban.id)
    }

    /// Returns a number that grows whenever a ban comes into force, on any node.
    pub fn revocations(&self) -> u64 {
        self.view.revocations()
    }

    /// Returns up to `limit` bans in force after `after`, the oldest first, and whether there may be more.
    pub fn list(&self, after: Option<BanId>, limit: usize, now: SystemTime) -> (Vec<Arc<Ban>>, bool) {
        let snapshot = self.view.snapshot();
        let mut rest = snapshot.after(after).iter().filter(|ban| ban.is_in_force(now));
        let page = rest.by_ref().take(limit).cloned().collect();
        (page, rest.next().is_some())
    }

    /// Returns the number of bans that are in force or expired recently.
    pub fn len(&self) -> usize {
        self.view.snapshot().all().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a ban. Takes time proportional to the number of bans and waits for the configuration store: not for a
    /// reactor.
    ///
    /// # Errors
    /// [`BanError`]; then nothing has changed.
    pub fn add(&self, new: NewBan, now: SystemTime) -> Result<Arc<Ban>, BanError> {
        if new.reason.len() > REASON_MAX {
            return Err(BanError::ReasonLong);
        }
        let _changing = sync::lock(&self.changing);
        loop {
            let snapshot = self.view.snapshot();
            let in_force = || snapshot.all().iter().filter(|ban| ban.is_in_force(now));
            if let Some(same) = in_force().find(|ban| ban.target == new.target) {
                return Err(BanError::Exists(same.id));
            }
            if in_force().count() >= self.bans_max {
                return Err(BanError::TooMany { maximum: self.bans_max });
            }
            let (id, counted) = next_id(&*self.config_store, 0);
            let ban = Ban {
                id,
                target: new.target.clone(),
                reason: new.reason.as_str().into(),
                by: new.by.as_str().into(),
                created_at: now,
                until: new.until,
            };
            let added = record::put(&ban).map(|change| change.expecting(Expected::Absent));
            let batch = [Ok(counted), added].into_iter().collect::<Result<Vec<_>, _>>().map_err(unwritten)?;
            match self.propose(batch, &snapshot, now) {
                Ok(_) => return Ok(Arc::new(ban)),
                // Another process took the id.
                Err(ProposeError::Conflict { .. }) => {}
                Err(error) => return Err(BanError::Write(error)),
            }
        }
    }

    /// Removes a ban and returns it; `None` when there is no such ban.
    ///
    /// # Errors
    /// [`BanError::Write`]; then the ban is still in force.
    pub fn remove(&self, id: BanId, now: SystemTime) -> Result<Option<Arc<Ban>>, BanError> {
        let _changing = sync::lock(&self.changing);
        let snapshot = self.view.snapshot();
        let found = snapshot.all().iter().find(|ban| ban.id == id && ban.is_in_force(now));
        let Some(removed) = found.cloned() else { return Ok(None) };
        let change = Change::remove(TABLE, record::key(id));
        self.propose(vec![change], &snapshot, now).map_err(BanError::Write)?;
        Ok(Some(removed))
    }

    /// Proposes a change. It also removes some of the expired bans.
    fn propose(
        &self,
        mut batch: Vec<Change>,
        snapshot: &snapshot::Snapshot,
        now: SystemTime,
    ) -> Result<Revision, ProposeError> {
        let over = snapshot.all().iter().filter(|ban| !ban.is_in_force(now)).take(TIDIED_MAX);
        batch.extend(over.map(|ban| Change::remove(TABLE, record::key(ban.id))));
        self.config_store.propose(batch)
    }
}

/// Returns an id that was never used, at least `least`, and the change that reserves it.
fn next_id(config_store: &dyn ConfigStore, least: u64) -> (BanId, Change) {
    let stored = config_store.read(COUNTERS, COUNTER);
    let next = stored.as_ref().and_then(|stored| stored.value.parse().ok()).unwrap_or(1).max(least);
    (BanId(next), counter(next + 1, stored.map(|stored| stored.revision)))
}

fn counter(next: u64, read: Option<Revision>) -> Change {
    Change::number(COUNTERS, COUNTER, next).expecting(read.map_or(Expected::Absent, Expected::At))
}

fn unwritten(error: serde_json::Error) -> BanError {
    BanError::Write(ProposeError::Broken { why: error.to_string() })
}

const TABLE: Table = Table::named("bans");
/// Table of counters that only grow.
const COUNTERS: Table = Table::named("counters");
const COUNTER: &str = "bans";
const TIDIED_MAX: usize = 1_000;

impl Ban {
    pub fn is_in_force(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests;
