//! API keys: who may ask what. The file holds names, roles and hashes; a token is shown once, when it is made.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::durable;
use crate::role::Role;
use crate::timestamp::Timestamp;

/// Keys, at most: each request with a token is compared with all of them.
pub const KEYS_MAX: usize = 256;
/// Bytes of a name, at most.
pub const NAME_MAX: usize = 64;
const FILE: &str = "api-keys.json";
const PREFIX: &str = "mrd_";
/// How long a file that somebody else changed may go unnoticed.
const RECHECK: Duration = Duration::from_secs(1);

/// One key, without its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub name: Arc<str>,
    pub role: Role,
    pub created_at: Timestamp,
    /// `None` is never.
    pub expires_at: Option<Timestamp>,
    /// SHA-256 of the token. The token is 256 bits of randomness, so nothing slower is needed to keep it from being guessed.
    sha256: Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hash([u8; 32]);

impl Hash {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Takes the same time wherever they differ.
    fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Base64UrlUnpadded::encode_string(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut hash = [0; 32];
        match Base64UrlUnpadded::decode(&text, &mut hash) {
            Ok(bytes) if bytes.len() == 32 => Ok(Self(hash)),
            _ => Err(serde::de::Error::custom("expected a SHA-256 in base64url")),
        }
    }
}

/// A key to be.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub name: String,
    pub role: Role,
    pub expires_in: Option<Duration>,
}

/// Why the keys cannot be read or changed. Nothing has changed then.
#[derive(Debug)]
pub enum KeyError {
    Unreadable {
        path: PathBuf,
        error: io::Error,
    },
    NotUnderstood {
        path: PathBuf,
        error: String,
    },
    Unwritable {
        path: PathBuf,
        error: io::Error,
    },
    Random(getrandom::Error),
    BadName,
    Exists(String),
    TooMany,
    Unknown(String),
    /// Without this one nobody could manage the keys any more.
    LastAdmin,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => write!(f, "{}: {error}", path.display()),
            Self::NotUnderstood { path, error } => write!(
                f,
                "{}: {error}; put the file right, or remove it and make new keys with `meridian key add`",
                path.display()
            ),
            Self::Unwritable { path, error } => write!(f, "{} cannot be written: {error}", path.display()),
            Self::Random(error) => write!(f, "the system gives no randomness: {error}"),
            Self::BadName => {
                write!(f, "a name is 1 to {NAME_MAX} characters of a-z, A-Z, 0-9, `.`, `_`, `-`, `@`")
            }
            Self::Exists(name) => write!(f, "there is a key `{name}` already; remove it first, or choose another name"),
            Self::TooMany => write!(f, "there are {KEYS_MAX} keys, which is the limit; remove some"),
            Self::Unknown(name) => write!(f, "there is no key `{name}`"),
            Self::LastAdmin => f.write_str(
                "then no key would have the role admin, and nobody could manage the keys by the API; make one first",
            ),
        }
    }
}

impl std::error::Error for KeyError {}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    keys: Vec<Key>,
}

/// The file of keys, as `meridian key` uses it.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    pub fn in_directory(data_dir: &Path) -> Self {
        Self { path: data_dir.join(FILE) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keys in the order they were made; none when there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or understood.
    pub fn read(&self) -> Result<Vec<Key>, KeyError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(KeyError::Unreadable { path: self.path.clone(), error }),
        };
        let not_understood = |error| KeyError::NotUnderstood { path: self.path.clone(), error };
        let document: Document =
            serde_json::from_str(&text).map_err(|error| not_understood(error.to_string()))?;
        if document.version != 1 {
            return Err(not_understood(format!("version {} is not known", document.version)));
        }
        let names: std::collections::HashSet<_> = document.keys.iter().map(|key| &key.name).collect();
        if names.len() != document.keys.len() || names.len() > KEYS_MAX {
            return Err(not_understood(format!("names have to differ, and {KEYS_MAX} keys are the limit")));
        }
        Ok(document.keys)
    }

    /// Makes a key, and its token.
    ///
    /// # Errors
    /// A bad or known name, too many keys, a file that cannot be read or written.
    pub fn add(&self, new: &NewKey) -> Result<(Key, String), KeyError> {
        self.change(|keys| {
            if !is_name(&new.name) {
                return Err(KeyError::BadName);
            }
            if keys.iter().any(|key| *key.name == *new.name) {
                return Err(KeyError::Exists(new.name.clone()));
            }
            if keys.len() >= KEYS_MAX {
                return Err(KeyError::TooMany);
            }
            let token = token()?;
            let created_at = Timestamp::now();
            let key = Key {
                name: new.name.as_str().into(),
                role: new.role,
                created_at,
                expires_at: new.expires_in.map(|time| created_at.after(time)),
                sha256: Hash::of(&token),
            };
            keys.push(key.clone());
            Ok((key, token))
        })
    }

    /// # Errors
    /// No such key; a file that cannot be read or written.
    pub fn remove(&self, name: &str) -> Result<(), KeyError> {
        self.change(|keys| {
            let before = keys.len();
            keys.retain(|key| *key.name != *name);
            if keys.len() < before { Ok(()) } else { Err(KeyError::Unknown(name.to_owned())) }
        })
    }

    /// Reads, changes and writes, while nobody else does.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Key>) -> Result<T, KeyError>) -> Result<T, KeyError> {
        let unwritable = |error| KeyError::Unwritable { path: self.path.clone(), error };
        let _lock = durable::lock(&self.path).map_err(unwritable)?;
        let mut keys = self.read()?;
        let changed = change(&mut keys)?;
        let document = Document { version: 1, keys };
        let mut text = serde_json::to_string_pretty(&document).map_err(|error| unwritable(error.into()))?;
        text.push('\n');
        durable::replace(&self.path, text.as_bytes()).map_err(unwritable)?;
        Ok(changed)
    }

    /// Changes whenever the file does.
    fn stamp(&self) -> Stamp {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(&self.path).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
    }
}

type Stamp = Option<(u64, u64, SystemTime)>;

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn token() -> Result<String, KeyError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    Ok(format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&random)))
}

/// The keys of a running node. The file stays the truth: what `meridian key` does to it is seen within a second.
#[derive(Debug)]
pub struct Keys {
    file: KeyFile,
    keys: ArcSwap<Vec<Key>>,
    seen: Mutex<Seen>,
    used: Mutex<HashMap<Arc<str>, Timestamp>>,
}

#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    at: Instant,
}

/// Why a token gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Unknown,
    Expired,
}

impl Keys {
    /// # Errors
    /// A file that cannot be read or understood.
    pub fn open(data_dir: &Path) -> Result<Self, KeyError> {
        let file = KeyFile::in_directory(data_dir);
        let seen = Seen { stamp: file.stamp(), at: Instant::now() };
        let keys = file.read()?;
        Ok(Self { file, keys: ArcSwap::from_pointee(keys), seen: Mutex::new(seen), used: Mutex::default() })
    }

    /// No key exists, not even one that has expired.
    pub fn is_empty(&self) -> bool {
        self.look(false);
        self.keys.load().is_empty()
    }

    /// All keys, each with when it was last used since the start of the node.
    pub fn list(&self) -> Vec<(Key, Option<Timestamp>)> {
        self.look(false);
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.keys.load().iter().map(|key| (key.clone(), used.get(&key.name).copied())).collect()
    }

    pub(crate) fn check(&self, token: &str, now: Timestamp) -> Result<(Arc<str>, Role), Denied> {
        self.look(false);
        let hash = Hash::of(token);
        let keys = self.keys.load();
        // All are compared, so that the time tells nothing about which one it is.
        let mut found = None;
        for key in keys.iter() {
            if key.sha256.is(&hash) {
                found = Some(key);
            }
        }
        let key = found.ok_or(Denied::Unknown)?;
        if key.expires_at.is_some_and(|expires| expires <= now) {
            return Err(Denied::Expired);
        }
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(key.name.clone(), now);
        Ok((key.name.clone(), key.role))
    }

    /// Makes a key, and its token. Takes as long as the disk does.
    ///
    /// # Errors
    /// As [`KeyFile::add`]; [`KeyError::LastAdmin`] when it is no admin's and there is no live one.
    pub fn add(&self, new: &NewKey) -> Result<(Key, String), KeyError> {
        self.look(true);
        if new.role != Role::Admin && !self.leaves_admin(None) {
            return Err(KeyError::LastAdmin);
        }
        let added = self.file.add(new)?;
        self.look(true);
        Ok(added)
    }

    /// Takes as long as the disk does.
    ///
    /// # Errors
    /// As [`KeyFile::remove`]; [`KeyError::LastAdmin`] when it is the last live one of an admin, unless it is the last of all and
    /// `to_none` is allowed.
    pub fn remove(&self, name: &str, to_none: bool) -> Result<(), KeyError> {
        self.look(true);
        let keys = self.keys.load();
        let known = keys.iter().any(|key| *key.name == *name);
        let last_of_all = known && keys.len() == 1;
        if known && !self.leaves_admin(Some(name)) && !(last_of_all && to_none) {
            return Err(KeyError::LastAdmin);
        }
        self.file.remove(name)?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.look(true);
        Ok(())
    }

    /// Whether an admin can still get in without this key.
    fn leaves_admin(&self, without: Option<&str>) -> bool {
        let now = Timestamp::now();
        let counts = |key: &Key| {
            key.role == Role::Admin
                && key.expires_at.is_none_or(|expires| expires > now)
                && without.is_none_or(|name| *key.name != *name)
        };
        self.keys.load().iter().any(counts)
    }

    /// Reads the file again when it has changed; looks at it once a second at most, unless `at_once`.
    pub fn look(&self, at_once: bool) {
        let Ok(mut seen) = self.seen.try_lock() else { return };
        if !at_once && seen.at.elapsed() < RECHECK {
            return;
        }
        let stamp = self.file.stamp();
        seen.at = Instant::now();
        if stamp == seen.stamp {
            return;
        }
        seen.stamp = stamp;
        match self.file.read() {
            Ok(keys) => {
                tracing::info!(keys = keys.len(), "the API keys have changed");
                self.keys.store(Arc::new(keys));
            }
            Err(error) => tracing::error!("the API keys stay what they were: {error}"),
        }
    }
}
