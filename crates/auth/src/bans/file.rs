//! The file of bans: read at the start, replaced whole at every change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::target::{BanKind, BanTarget, ValueError};
use super::{Ban, BanId};

/// What stands in the file. Times are milliseconds since 1970.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// Ids are never used again, not even after a restart.
    next_id: u64,
    bans: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
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

/// The only field that is read of a file from a later version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

const VERSION: u32 = 1;

/// A file of bans that cannot be used.
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
    /// Ids do not ascend, or two bans mean the same.
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
            BansFault::Order { id } => write!(f, "ban {id} is out of order or there twice")?,
            BansFault::Time { id } => write!(f, "ban {id} has a time beyond all calendars")?,
        }
        f.write_str("; repair it, or move it away to start without bans")
    }
}

impl std::error::Error for BansFileError {}

/// The bans of a file and the next id; none when there is no file.
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
    let mut targets = std::collections::HashSet::new();
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

/// Replaces the file in one step: whoever reads it meets the old or the new one. Only its owner can read it. The directory
/// is made when it is missing.
pub(super) fn write<'a>(
    path: &Path,
    bans: impl Iterator<Item = &'a Arc<Ban>>,
    next_id: u64,
) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let bans = bans.map(|ban| Entry {
        id: ban.id.0,
        kind: ban.target.kind().name().to_owned(),
        value: ban.target.to_string(),
        reason: ban.reason.to_string(),
        by: ban.by.to_string(),
        created_ms: milliseconds(ban.created_at),
        until_ms: ban.until.map(milliseconds),
    });
    let contents = Contents { version: VERSION, next_id, bans: bans.collect() };
    let text = serde_json::to_vec(&contents)?;

    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // What a crash left behind is in nobody's use: one process has the data directory.
    if let Err(error) = std::fs::remove_file(&new)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = std::fs::OpenOptions::new();
    let written = options.write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        std::fs::File::open(directory)?.sync_all()
    });
    if written.is_err() {
        // The error that matters is the first one; a file that was never made cannot be removed either.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Times before 1970 cannot come from a clock that is right; they are 1970.
fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"version":1,"next_id":9,"bans":[
        {"id":3,"kind":"address","value":"10.0.0.0/8","reason":"","by":"ops","created_ms":1000,"until_ms":null},
        {"id":7,"kind":"client_id","value":"a*","reason":"loud","by":"","created_ms":2000,"until_ms":5000}]}"#;

    #[test]
    fn a_file_reads_as_it_was_written() {
        let (bans, next) = parse(FILE.as_bytes()).unwrap();
        assert_eq!(next, 9);
        assert_eq!(bans.iter().map(|ban| ban.id.0).collect::<Vec<_>>(), [3, 7]);
        assert_eq!(bans[1].until, Some(UNIX_EPOCH + Duration::from_secs(5)));
        assert_eq!((&*bans[1].reason, bans[1].target.to_string()), ("loud", "a*".to_owned()));
    }

    #[test]
    fn a_file_that_says_something_else_is_refused() {
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
