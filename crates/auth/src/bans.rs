//! Clients that may not connect: by Client Identifier, User Name or address, for a while or for good.
//!
//! [`Bans`] owns them and their file. Each CONNECT asks [`Bans::find`], which takes no lock; a change builds the next
//! [`Snapshot`](snapshot::Snapshot) and replaces the file before it is in force.

mod file;
mod net;
mod snapshot;
mod target;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;

pub use file::{BansFault, BansFileError};
pub use net::{Net, NetError};
use snapshot::Snapshot;
pub use target::{BanKind, BanTarget, Pattern, VALUE_MAX, ValueError};

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

/// Why a ban cannot be made or taken back. Nothing has changed then.
#[derive(Debug)]
pub enum BanError {
    /// The same is banned already, by this ban.
    Exists(BanId),
    TooMany {
        maximum: usize,
    },
    ReasonLong,
    /// The file cannot be written.
    Write(std::io::Error),
}

impl std::fmt::Display for BanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exists(id) => write!(f, "ban {} says the same; delete it first", id.0),
            Self::TooMany { maximum } => {
                write!(f, "there are {maximum} bans; delete some, or raise `auth.bans_max`")
            }
            Self::ReasonLong => write!(f, "the reason has more than {REASON_MAX} bytes; shorten it"),
            Self::Write(error) => write!(f, "the file of bans cannot be written: {error}"),
        }
    }
}

impl std::error::Error for BanError {}

/// The bans of one node. A ban that is over is found no more at once, and removed at the next change.
#[derive(Debug)]
pub struct Bans {
    snapshot: ArcSwap<Snapshot>,
    /// The next id. Held by whoever changes bans, through the writing of the file.
    changing: Mutex<u64>,
    /// `None`: they are forgotten when the process ends.
    path: Option<PathBuf>,
    bans_max: usize,
}

impl Bans {
    /// Bans that are kept in memory only.
    pub fn in_memory(bans_max: usize) -> Self {
        Self { snapshot: ArcSwap::default(), changing: Mutex::new(1), path: None, bans_max }
    }

    /// Reads `bans.json` in this directory; there are no bans when it does not exist. More than `bans_max` are kept when they
    /// are there already, but none are added.
    ///
    /// # Errors
    /// A file that cannot be used: starting without its bans would let in who was sent away.
    pub fn open(data_dir: &Path, bans_max: usize, now: SystemTime) -> Result<Self, BansFileError> {
        let path = data_dir.join("bans.json");
        let (bans, next_id) = file::read(&path)?;
        let snapshot = Snapshot::new(bans.into_iter().filter(|ban| ban.is_in_force(now)));
        Ok(Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            changing: Mutex::new(next_id),
            path: Some(path),
            bans_max,
        })
    }

    /// A ban in force that means this client. `now` is asked for only when there is one with an end.
    pub fn find(
        &self,
        client_id: &str,
        username: Option<&str>,
        peer: Option<IpAddr>,
        now: impl Fn() -> SystemTime,
    ) -> Option<BanId> {
        self.snapshot.load().find(client_id, username, peer, now).map(|ban| ban.id)
    }

    /// Up to `limit` bans in force behind `after`, the oldest first, and whether there may be more.
    pub fn list(&self, after: Option<BanId>, limit: usize, now: SystemTime) -> (Vec<Arc<Ban>>, bool) {
        let snapshot = self.snapshot.load();
        let mut rest = snapshot.after(after).iter().filter(|ban| ban.is_in_force(now));
        let page = rest.by_ref().take(limit).cloned().collect();
        (page, rest.next().is_some())
    }

    /// How many are in force or were a short while ago.
    pub fn len(&self) -> usize {
        self.snapshot.load().all().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bans. Takes time with the number of bans and writes a file: not for a reactor.
    ///
    /// # Errors
    /// [`BanError`]; nothing has changed then.
    pub fn add(&self, new: NewBan, now: SystemTime) -> Result<Arc<Ban>, BanError> {
        if new.reason.len() > REASON_MAX {
            return Err(BanError::ReasonLong);
        }
        let mut next_id = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bans = self.in_force(now);
        if let Some(same) = bans.iter().find(|ban| ban.target == new.target) {
            return Err(BanError::Exists(same.id));
        }
        if bans.len() >= self.bans_max {
            return Err(BanError::TooMany { maximum: self.bans_max });
        }
        let ban = Arc::new(Ban {
            id: BanId(*next_id),
            target: new.target,
            reason: new.reason.into(),
            by: new.by.into(),
            created_at: now,
            until: new.until,
        });
        bans.push(ban.clone());
        self.replace(bans, *next_id + 1)?;
        *next_id += 1;
        Ok(ban)
    }

    /// Takes a ban back; returns it, or `None` when there is no such ban.
    ///
    /// # Errors
    /// [`BanError::Write`]; the ban is in force still.
    pub fn remove(&self, id: BanId, now: SystemTime) -> Result<Option<Arc<Ban>>, BanError> {
        let next_id = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bans = self.in_force(now);
        let Some(at) = bans.iter().position(|ban| ban.id == id) else { return Ok(None) };
        let removed = bans.remove(at);
        self.replace(bans, *next_id)?;
        Ok(Some(removed))
    }

    fn in_force(&self, now: SystemTime) -> Vec<Arc<Ban>> {
        let snapshot = self.snapshot.load();
        snapshot.all().iter().filter(|ban| ban.is_in_force(now)).cloned().collect()
    }

    /// The file first: what is in force is what a restart will find.
    fn replace(&self, bans: Vec<Arc<Ban>>, next_id: u64) -> Result<(), BanError> {
        if let Some(path) = &self.path {
            file::write(path, bans.iter(), next_id).map_err(BanError::Write)?;
        }
        self.snapshot.store(Arc::new(Snapshot::new(bans.into_iter())));
        Ok(())
    }
}

impl Ban {
    pub fn is_in_force(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests;
