//! Clients that may not connect: by Client Identifier, User Name or address, for a while or for good.
//!
//! [`Bans`] proposes them to the registry, and sees what is in force there. Each CONNECT asks [`Bans::find`], which takes no lock; a
//! change builds the next [`Snapshot`](snapshot::Snapshot).

mod file;
mod net;
mod record;
mod snapshot;
mod target;
mod view;

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Revision, Table};

pub use file::{BansFault, BansFileError, BansImportError};
pub use net::{Net, NetError};
pub use target::{BanKind, BanTarget, Pattern, VALUE_MAX, ValueError};
use view::BanView;

/// Never used twice, not even after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BanId(pub u64);

/// One ban.
#[derive(Clone, Debug)]
pub struct Ban {
    pub id: BanId,
    pub target: BanTarget,
    pub reason: Box<str>,
    /// Who said so: the name of an API key, or empty.
    pub by: Box<str>,
    pub created_at: SystemTime,
    /// In force before this time; `None` is for good.
    pub until: Option<SystemTime>,
}

/// A ban to be.
#[derive(Clone, Debug)]
pub struct NewBan {
    pub target: BanTarget,
    /// At most [`REASON_MAX`] bytes.
    pub reason: String,
    pub by: String,
    pub until: Option<SystemTime>,
}

/// Bytes of a ban's reason.
pub const REASON_MAX: usize = 1024;

/// Why a ban cannot be made or taken back.
#[derive(Debug)]
pub enum BanError {
    /// The same is banned already, by this ban.
    Exists(BanId),
    TooMany {
        maximum: usize,
    },
    ReasonLong,
    /// The registry does not take it.
    Write(ProposeError),
}

impl std::fmt::Display for BanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exists(id) => write!(f, "ban {} says the same; delete it first", id.0),
            Self::TooMany { maximum } => {
                write!(f, "there are {maximum} bans; delete some, or raise `auth.bans_max`")
            }
            Self::ReasonLong => write!(f, "the reason has more than {REASON_MAX} bytes; shorten it"),
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BanError {}

/// The bans of one node. A ban that is over is found no more at once, and removed at the next change.
pub struct Bans {
    view: Arc<BanView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held by whoever changes bans on this node, so that they do not have to try again.
    changing: Mutex<()>,
    bans_max: usize,
}

impl std::fmt::Debug for Bans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bans").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Bans {
    /// Bans that are kept in memory only.
    pub fn in_memory(bans_max: usize) -> Self {
        let config_store = Arc::new(LocalStore::in_memory());
        Self { view: Arc::default(), config_store, changing: Mutex::default(), bans_max }.watching()
    }

    /// The bans of the registry. More than `bans_max` are kept when they are there already, but none are added.
    ///
    /// # Errors
    /// Records that make no sense: starting without these bans would let in who was sent away.
    pub fn open(config_store: Arc<dyn ConfigStore>, bans_max: usize) -> Result<Self, String> {
        let view = Arc::new(BanView::default());
        config_store.subscribe(TABLE, view.clone())?;
        Ok(Self { view, config_store, changing: Mutex::default(), bans_max })
    }

    /// For a ledger without records, which cannot say no.
    fn watching(self) -> Self {
        if let Err(why) = self.config_store.subscribe(TABLE, self.view.clone()) {
            tracing::error!("{why}");
        }
        self
    }

    /// Takes over `bans.json` of earlier versions, when it is in this directory, and renames it to `bans.json.imported`. Says how many
    /// bans came in.
    ///
    /// # Errors
    /// A file that cannot be used, or a registry that does not take them. Both stay as they are, or nearly: it can be done again.
    pub fn import(&self, data_dir: &Path) -> Result<usize, BansImportError> {
        file::import(self, data_dir)
    }

    /// A ban in force that means this client. `now` is asked for only when there is one with an end.
    pub fn find(
        &self,
        client_id: &str,
        username: Option<&str>,
        peer: Option<IpAddr>,
        now: impl Fn() -> SystemTime,
    ) -> Option<BanId> {
        self.view.snapshot().find(client_id, username, peer, now).map(|ban| ban.id)
    }

    /// Grows when a ban comes into force, whoever made it, on whichever node.
    pub fn revocations(&self) -> u64 {
        self.view.revocations()
    }

    /// Up to `limit` bans in force behind `after`, the oldest first, and whether there may be more.
    pub fn list(&self, after: Option<BanId>, limit: usize, now: SystemTime) -> (Vec<Arc<Ban>>, bool) {
        let snapshot = self.view.snapshot();
        let mut rest = snapshot.after(after).iter().filter(|ban| ban.is_in_force(now));
        let page = rest.by_ref().take(limit).cloned().collect();
        (page, rest.next().is_some())
    }

    /// How many are in force or were a short while ago.
    pub fn len(&self) -> usize {
        self.view.snapshot().all().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bans. Takes time with the number of bans and waits for the registry: not for a reactor.
    ///
    /// # Errors
    /// [`BanError`]; nothing has changed then.
    pub fn add(&self, new: NewBan, now: SystemTime) -> Result<Arc<Ban>, BanError> {
        if new.reason.len() > REASON_MAX {
            return Err(BanError::ReasonLong);
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Takes a ban back; returns it, or `None` when there is no such ban.
    ///
    /// # Errors
    /// [`BanError::Write`]; the ban is in force still.
    pub fn remove(&self, id: BanId, now: SystemTime) -> Result<Option<Arc<Ban>>, BanError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.view.snapshot();
        let found = snapshot.all().iter().find(|ban| ban.id == id && ban.is_in_force(now));
        let Some(removed) = found.cloned() else { return Ok(None) };
        let change = Change::remove(TABLE, record::key(id));
        self.propose(vec![change], &snapshot, now).map_err(BanError::Write)?;
        Ok(Some(removed))
    }

    /// Some of those that are over go with every change.
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

/// An id that was never used, at least this one, and the change that keeps it from being used again.
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
/// Numbers that only grow.
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
