//! A request of `meridian key` to the node of a data directory: a file there, which the node executes while it runs, or
//! when it starts. A process that can write the file as the node's user can do all that the node can, so no other proof
//! is needed.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Key, KeyError};
use crate::accounts::Account;

/// Name of the file in a data directory.
pub const FILE: &str = "key-wanted.json";
const NEXT_FILE: &str = "key-wanted.json.new";
/// Lock file of a node that reads requests.
const LOCK_FILE: &str = "keys.lock";
/// Maximum number of bytes of the file.
const BYTES_MAX: u64 = 16 * 1024;
/// Permissions that other users than the owner must not have.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const UNTRUSTED: &str = "the file must belong to the node's own user, and no other user may write it";
/// Maximum time of the node: it looks once a second, and then waits for the cores.
const HANDLE_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One change of the keys or the accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequest {
    /// The key, with the hash of its token. Only the requester has the token.
    Add(Key),
    Remove(String),
    /// The account, with the hash of its password.
    AddAccount(Account),
    SetPassword {
        name: String,
        hash: String,
    },
    RemoveAccount(String),
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change is in effect.
    Done,
    /// The request is in this file until a node executes it.
    Pending { path: PathBuf, runs: bool },
}

/// Lock that a node holds while it reads requests, until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock(#[expect(dead_code, reason = "it is held")] File);

impl DirectoryLock {
    /// # Errors
    /// Those of the system: `NotFound` without a data directory, `WouldBlock` when another node holds the lock.
    pub fn begin(data_dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(false).mode(0o600).open(data_dir.join(LOCK_FILE))?;
        file.try_lock()?;
        Ok(Self(file))
    }

    /// Returns whether a node holds the lock of this directory.
    ///
    /// # Errors
    /// This is not the node's user; those of the system.
    pub fn is_held(data_dir: &Path) -> Result<bool, KeyError> {
        let path = data_dir.join(LOCK_FILE);
        let tried = File::open(&path).map(|file| file.try_lock_shared());
        let error = match tried {
            Ok(Ok(())) => return Ok(false),
            Ok(Err(fs::TryLockError::WouldBlock)) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Ok(Err(fs::TryLockError::Error(error))) | Err(error) => error,
        };
        match fs::metadata(&path) {
            Ok(metadata) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(KeyError::OtherUser { path, uid: metadata.uid() })
            }
            _ => Err(KeyError::Unreadable { path, error }),
        }
    }
}

/// Text for the log.
impl fmt::Display for KeyRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(key) => write!(f, "key {} for a {}", key.name, key.role.name()),
            Self::Remove(name) => write!(f, "key {name} removed"),
            Self::AddAccount(account) => {
                write!(f, "account {} for {}", account.name, account.role.with_article())
            }
            Self::SetPassword { name, .. } => write!(f, "new password of the account {name}"),
            Self::RemoveAccount(name) => write!(f, "account {name} removed"),
        }
    }
}

impl KeyRequest {
    /// Stores the request for the node.
    ///
    /// # Errors
    /// Another request waits already; this is not the node's user; those of the system.
    pub fn put(&self, data_dir: &Path) -> Result<PathBuf, KeyError> {
        let path = data_dir.join(FILE);
        if path.exists() {
            return Err(KeyError::Pending(path));
        }
        let next = data_dir.join(NEXT_FILE);
        let unwritten = |error| KeyError::Unreadable { path: next.clone(), error };
        let text = serde_json::to_vec(self).map_err(|error| unwritten(error.into()))?;
        let written = || {
            // A crash may have left this file.
            if let Err(error) = fs::remove_file(&next)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
            file.write_all(&text)?;
            file.sync_all()?;
            Ok((file.metadata()?.uid(), file))
        };
        let (mine, file) = written().map_err(unwritten)?;
        let nodes = [LOCK_FILE, configstore::FILE].into_iter().find_map(|name| {
            let path = data_dir.join(name);
            Some((fs::metadata(&path).ok()?.uid(), path))
        });
        // Root may change the owner to the node's user.
        if let Some((uid, path)) = nodes
            && uid != mine
            && fchown(&file, Some(uid), None).is_err()
        {
            drop(fs::remove_file(&next));
            return Err(KeyError::OtherUser { path, uid });
        }
        let renamed = fs::rename(&next, &path).and_then(|()| File::open(data_dir)?.sync_all());
        renamed.map_err(unwritten)?;
        Ok(path)
    }

    /// Reads the request that waits in this directory, if there is one.
    ///
    /// # Errors
    /// [`KeyError::InvalidRequest`]: the file is not trusted, or is invalid. Those of the system.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, KeyError> {
        let path = data_dir.join(FILE);
        // These flags neither follow a link nor wait for the other end of a pipe.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let untrusted = || io::Error::new(io::ErrorKind::InvalidData, UNTRUSTED);
        let read = || {
            let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(untrusted()),
                opened => opened?,
            };
            let metadata = file.metadata()?;
            // SAFETY: the call takes nothing and cannot fail.
            let own = unsafe { libc::geteuid() };
            let is_own = metadata.is_file() && metadata.uid() == own;
            if !is_own || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
                return Err(untrusted());
            }
            let mut text = Vec::new();
            file.take(BYTES_MAX).read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        match read() {
            Ok(request) => Ok(Some(request)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Err(KeyError::InvalidRequest { path, error: error.to_string() })
            }
            Err(error) => Err(KeyError::Unreadable { path, error }),
        }
    }

    /// Removes the request that waits in this directory.
    ///
    /// # Errors
    /// Those of the system.
    pub fn discard(data_dir: &Path) -> io::Result<()> {
        fs::remove_file(data_dir.join(FILE))?;
        File::open(data_dir)?.sync_all()
    }
}

/// Waits for `HANDLE_TIMEOUT` at most until the node has removed the file. Returns whether it has.
pub fn wait_until_handled(path: &Path) -> bool {
    let until = Instant::now() + HANDLE_TIMEOUT;
    while path.exists() {
        if Instant::now() > until {
            return false;
        }
        // tidy: allow(thread-sleep): a command that does nothing else.
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-wanted-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(configstore::FILE), "").unwrap();
        path
    }

    #[test]
    fn a_request_is_found_once_and_waits_until_it_is_withdrawn() {
        let directory = directory("found");
        assert_eq!(KeyRequest::read(&directory).unwrap(), None);
        let request = KeyRequest::Remove("a".into());
        let path = request.put(&directory).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let refused = KeyRequest::Remove("b".into()).put(&directory).unwrap_err().to_string();
        assert!(refused.contains(FILE) && refused.contains("withdraw"), "{refused}");
        assert_eq!(KeyRequest::read(&directory).unwrap(), Some(request));
        KeyRequest::discard(&directory).unwrap();
        assert_eq!(KeyRequest::read(&directory).unwrap(), None);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn requests_of_other_users_are_refused() {
        let directory = directory("others");
        let path = KeyRequest::Remove("a".into()).put(&directory).unwrap();
        let refused = || match KeyRequest::read(&directory) {
            Err(error @ KeyError::InvalidRequest { .. }) => error.to_string(),
            read => panic!("{read:?}"),
        };
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(refused().contains("own user"), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        if std::os::unix::fs::chown(&path, Some(4711), None).is_ok() {
            assert!(refused().contains("own user"));
        }
        let elsewhere = directory.join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(refused().contains("own user"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused().contains("own user"));
        fs::remove_dir(&path).unwrap();
        for text in ["", "{", "{}", "{\"remove\":1}", "{\"add\":{\"name\":\"a\",\"role\":\"admin\"}}"] {
            fs::write(&path, text).unwrap();
            assert!(refused().contains(FILE), "{text}");
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_request_of_root_belongs_to_the_nodes_user() {
        let directory = directory("user");
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(directory.join(configstore::FILE), Some(4711), None).is_ok() {
            let path = KeyRequest::Remove("a".into()).put(&directory).unwrap();
            assert_eq!(fs::metadata(path).unwrap().uid(), 4711);
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn only_one_node_reads_requests_of_a_directory() {
        let directory = directory("looks");
        assert!(!DirectoryLock::is_held(&directory).unwrap());
        let lock = DirectoryLock::begin(&directory).unwrap();
        assert!(DirectoryLock::is_held(&directory).unwrap());
        assert_eq!(DirectoryLock::begin(&directory).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(!DirectoryLock::is_held(&directory).unwrap());
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(DirectoryLock::begin(&directory).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!directory.exists(), "a node that keeps nothing makes none");
    }
}
