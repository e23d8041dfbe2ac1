//! `bans.json`, the file in which earlier versions kept their bans. It is read once and imported into the configuration
//! store.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use configstore::ProposeError;
use serde::Deserialize;

use super::record;
use super::target::{BanKind, BanTarget, ValueError};
use super::{Ban, BanId, Bans, COUNTER, COUNTERS};

/// Contents of the file. Times are milliseconds since 1970.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    #[serde(rename = "version")]
    _version: u32,
    /// Ids are never reused, not even after a restart.
    next_id: u64,
    bans: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: u64,
    kind: String,
    value: String,
    reason: String,
    by: String,
    created_ms: u64,
    until_ms: Option<u64>,
}

/// The only field that is read from a file of a later version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

const VERSION: u32 = 1;

/// File of bans that cannot be used.
#[derive(Debug)]
pub struct BansFileError {
    pub path: PathBuf,
    pub fault: BansFault,
}

#[derive(Debug)]
pub enum BansFault {
    Io(io::Error),
    NotJson(serde_json::Error),
    /// Written by a later version of this program.
    Version(u32),
    Kind {
        id: u64,
        kind: String,
    },
    Value {
        id: u64,
        error: ValueError,
    },
    /// Ids do not ascend, or two bans have the same target.
    Order {
        id: u64,
    },
    Time {
        id: u64,
    },
}

impl std::fmt::Display for BansFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the file of bans {} cannot be used: ", self.path.display())?;
        match &self.fault {
            BansFault::Io(error) => error.fmt(f)?,
            BansFault::NotJson(error) => error.fmt(f)?,
            BansFault::Version(version) => {
                write!(f, "its format is version {version}, this program knows {VERSION}")?;
            }
            BansFault::Kind { id, kind } => {
                write!(f, "ban {id} has the kind `{kind}`; known are client_id, username and address")?;
            }
            BansFault::Value { id, error } => write!(f, "ban {id}: {error}")?,
            BansFault::Order { id } => write!(f, "ban {id} is out of order or occurs twice")?,
            BansFault::Time { id } => write!(f, "ban {id} has a time outside the supported range")?,
        }
        f.write_str("; repair it, or move it away to start without bans")
    }
}

impl std::error::Error for BansFileError {}

/// Returns the bans of a file and the next id; no bans when there is no file.
pub(super) fn read(path: &Path) -> Result<(Vec<Arc<Ban>>, u64), BansFileError> {
    let error = |fault| BansFileError { path: path.to_owned(), fault };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 1)),
        Err(failure) => return Err(error(BansFault::Io(failure))),
    };
    parse(&text).map_err(error)
}

fn parse(text: &[u8]) -> Result<(Vec<Arc<Ban>>, u64), BansFault> {
    let Versioned { version } = serde_json::from_slice(text).map_err(BansFault::NotJson)?;
    if version != VERSION {
        return Err(BansFault::Version(version));
    }
    let contents: Contents = serde_json::from_slice(text).map_err(BansFault::NotJson)?;
    let mut bans: Vec<Arc<Ban>> = Vec::with_capacity(contents.bans.len());
    let mut targets = HashSet::new();
    for entry in contents.bans {
        let id = entry.id;
        let kind = BanKind::parse(&entry.kind).ok_or(BansFault::Kind { id, kind: entry.kind })?;
        let target = BanTarget::parse(kind, &entry.value).map_err(|error| BansFault::Value { id, error })?;
        let ascends = bans.last().is_none_or(|last| last.id.0 < id) && id < contents.next_id;
        if !ascends || !targets.insert(target.clone()) {
            return Err(BansFault::Order { id });
        }
        let time = |ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)).ok_or(BansFault::Time { id });
        bans.push(Arc::new(Ban {
            id: BanId(id),
            target,
            reason: entry.reason.into(),
            by: entry.by.into(),
            created_at: time(entry.created_ms)?,
            until: entry.until_ms.map(time).transpose()?,
        }));
    }
    Ok((bans, contents.next_id))
}

/// Reason why `bans.json` is not imported.
#[derive(Debug)]
pub enum BansImportError {
    File(BansFileError),
    ConfigStore(ProposeError),
    /// The imported file cannot be renamed.
    Rename {
        path: PathBuf,
        error: io::Error,
    },
}

impl std::fmt::Display for BansImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::ConfigStore(error) => {
                write!(f, "the configuration store does not accept the bans of {FILE}: {error}")
            }
            Self::Rename { path, error } => {
                write!(f, "{} is imported and cannot be renamed: {error}; move it away", path.display())
            }
        }
    }
}

impl std::error::Error for BansImportError {}

/// Implements [`Bans::import`]. Targets that are banned already stay unchanged.
pub(super) fn import(bans: &Bans, data_dir: &Path) -> Result<usize, BansImportError> {
    let path = data_dir.join(FILE);
    if !path.exists() {
        return Ok(0);
    }
    let (theirs, next) = read(&path).map_err(BansImportError::File)?;
    let (targets, ids): (HashSet<BanTarget>, HashSet<BanId>) = {
        let view = bans.view.snapshot();
        view.all().iter().map(|ban| (ban.target.clone(), ban.id)).unzip()
    };
    let (BanId(mut free), _) = super::next_id(&*bans.config_store, next);
    let mut changes = Vec::new();
    for ban in theirs.iter().filter(|ban| !targets.contains(&ban.target)) {
        let mut ban = Ban::clone(ban);
        if ids.contains(&ban.id) {
            ban.id = BanId(free);
            free += 1;
        }
        let put = record::put(&ban).map_err(|error| ProposeError::Broken { why: error.to_string() });
        changes.push(put.map_err(BansImportError::ConfigStore)?);
    }
    let count = changes.len();
    // The ids come first: whatever happens between two batches, none of them is given to another ban.
    let counted =
        super::counter(free, bans.config_store.read(COUNTERS, COUNTER).map(|stored| stored.revision));
    bans.config_store.propose(vec![counted]).map_err(BansImportError::ConfigStore)?;
    while !changes.is_empty() {
        let batch = changes.split_off(changes.len().saturating_sub(BATCH_MAX));
        bans.config_store.propose(batch).map_err(BansImportError::ConfigStore)?;
    }
    let imported = data_dir.join(format!("{FILE}.imported"));
    let renamed = std::fs::rename(&path, imported).and_then(|()| std::fs::File::open(data_dir)?.sync_all());
    renamed.map_err(|error| BansImportError::Rename { path, error })?;
    Ok(count)
}

const BATCH_MAX: usize = 1_000;
const FILE: &str = "bans.json";

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"version":1,"next_id":9,"bans":[
        {"id":3,"kind":"address","value":"10.0.0.0/8","reason":"","by":"ops","created_ms":1000,"until_ms":null},
        {"id":7,"kind":"client_id","value":"a*","reason":"loud","by":"","created_ms":2000,"until_ms":5000}]}"#;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let (bans, next) = parse(FILE.as_bytes()).unwrap();
        assert_eq!(next, 9);
        assert_eq!(bans.iter().map(|ban| ban.id.0).collect::<Vec<_>>(), [3, 7]);
        assert_eq!(bans[1].until, Some(UNIX_EPOCH + Duration::from_secs(5)));
        assert_eq!((&*bans[1].reason, bans[1].target.to_string()), ("loud", "a*".to_owned()));
    }

    #[test]
    fn an_invalid_file_is_refused() {
        #[track_caller]
        fn refused(from: &str, to: &str, why: &str) {
            let text = FILE.replacen(from, to, 1);
            assert_ne!(text, FILE);
            let fault = parse(text.as_bytes()).err().unwrap_or_else(|| panic!("{text} is taken"));
            let error = BansFileError { path: "bans.json".into(), fault }.to_string();
            assert!(error.contains(why) && error.contains("move it away"), "{error}");
        }
        refused("\"version\":1", "\"version\":2", "version 2");
        refused("]}", "]", "EOF");
        refused("\"id\":7", "\"id\":3", "ban 3 is out of order");
        refused("\"id\":7", "\"id\":9", "ban 9 is out of order");
        refused("\"client_id\"", "\"client\"", "`client`");
        refused("10.0.0.0/8", "10.0.0.0/x", "behind the slash");
        refused("\"until_ms\":null", "\"until\":null", "unknown field");
    }
}
