//! API keys and their roles. The configuration store holds names, roles and hashes; a token is shown once, when its key
//! is made.
//!
//! [`Keys`] also has the accounts and their sessions, the other way to authenticate: an admin must remain among both.

mod request;
mod request_handler;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64ct::{Base64UrlUnpadded, Encoding as _};
use configstore::{Applied, Change, ConfigStore, Expected, LocalStore, ProposeError, Table, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::accounts::{ACCOUNTS_MAX, Account, Accounts, PASSWORD_MAX, PASSWORD_MIN, check_password, hash};
use crate::role::Role;
use crate::sessions::Sessions;
use crate::timestamp::Timestamp;
pub use request::Outcome;
use request::{DirectoryLock, KeyRequest};
pub(crate) use request_handler::KeyRequestHandler;

/// Maximum number of keys: each request with a token is compared with all of them.
pub const KEYS_MAX: usize = 256;
/// Maximum number of bytes of a name.
pub const NAME_MAX: usize = 64;
const TABLE: Table = Table::named("keys");
/// File of the keys in earlier versions.
const LEGACY_FILE: &str = "api-keys.json";
const PREFIX: &str = "mrd_";
/// Minimum and maximum number of characters of a token that is not made here. Nobody guesses a random one of 32
/// characters.
const GIVEN_TOKEN_LENGTHS: RangeInclusive<usize> = 32..=256;

/// One key, without its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub name: Arc<str>,
    pub role: Role,
    pub created_at: Timestamp,
    /// Expiry; `None` is never.
    pub expires_at: Option<Timestamp>,
    /// SHA-256 of the token. The token has 256 bits of randomness, so a slower hash is not needed against guessing.
    sha256: Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hash([u8; 32]);

impl Hash {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Compares in constant time.
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

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub name: String,
    pub role: Role,
    pub expires_in: Option<Duration>,
}

/// Reason why the keys cannot be read or changed.
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
    /// The configuration store cannot be used.
    ConfigStore(String),
    /// The configuration store refuses the change.
    Write(ProposeError),
    Random(getrandom::Error),
    BadName,
    /// A given token is too short, too long, or has other characters than visible ASCII.
    BadToken,
    Exists(String),
    TooMany,
    Unknown(String),
    /// The last key or account of an admin; without it no admin could manage them any more.
    LastAdmin,
    /// A password is too short, too long, or the name itself.
    BadPassword,
    AccountExists(String),
    UnknownAccount(String),
    TooManyAccounts,
    /// An earlier request in this file still waits for a node.
    Pending(PathBuf),
    /// The node's files belong to the user with this number.
    OtherUser {
        path: PathBuf,
        uid: u32,
    },
    /// The request in this file is invalid.
    InvalidRequest {
        path: PathBuf,
        error: String,
    },
    /// The node has processed the request, and it is not in effect.
    NotApplied,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => write!(f, "{}: {error}", path.display()),
            Self::NotUnderstood { path, error } => write!(
                f,
                "{}: {error}; correct the file, or move it away and make new keys with `meridian key add`",
                path.display()
            ),
            Self::ConfigStore(why) => f.write_str(why),
            Self::Write(error) => error.fmt(f),
            Self::Random(error) => write!(f, "the system provides no randomness: {error}"),
            Self::BadName => {
                write!(f, "a name is 1 to {NAME_MAX} characters of a-z, A-Z, 0-9, `.`, `_`, `-`, `@`")
            }
            Self::BadToken => write!(
                f,
                "a token is {} to {} random characters without spaces, such as those of `openssl rand -hex 32`",
                GIVEN_TOKEN_LENGTHS.start(),
                GIVEN_TOKEN_LENGTHS.end()
            ),
            Self::Exists(name) => {
                write!(f, "there is a key `{name}` already; remove it first, or choose another name")
            }
            Self::TooMany => write!(f, "there are {KEYS_MAX} keys, which is the limit; remove some"),
            Self::Unknown(name) => write!(f, "there is no key `{name}`"),
            Self::LastAdmin => f.write_str(
                "this would leave no key and no account with the role admin to manage them by the API; make one first",
            ),
            Self::BadPassword => write!(
                f,
                "a password has at least {PASSWORD_MIN} characters and at most {PASSWORD_MAX} bytes, and is not the name"
            ),
            Self::AccountExists(name) => {
                write!(f, "there is an account `{name}` already; change its password or its role, or choose another name")
            }
            Self::UnknownAccount(name) => write!(f, "there is no account `{name}`"),
            Self::TooManyAccounts => {
                write!(f, "there are {ACCOUNTS_MAX} accounts, which is the limit; remove some")
            }
            Self::Pending(path) => write!(
                f,
                "an earlier request waits in {} for the node, which does not run or reaches no majority of \
                 the cores: start it, or remove the file to withdraw the request",
                path.display()
            ),
            Self::OtherUser { path, uid } => write!(
                f,
                "{} belongs to another user, that of the node: run this command as that user (sudo -u \
                 '#{uid}' meridian key ...)",
                path.display()
            ),
            Self::InvalidRequest { path, error } => {
                write!(
                    f,
                    "{}: {error}; only `meridian key` of the same version may write this file",
                    path.display()
                )
            }
            Self::NotApplied => f.write_str(
                "the node has processed the request, and the keys do not show it: the node's log and \
                 `meridian ctl audit` have the reason",
            ),
        }
    }
}

impl std::error::Error for KeyError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    keys: Vec<Key>,
}

/// Keys of a data directory, as `meridian key` uses them, whether a node runs there or not.
#[derive(Clone, Debug)]
pub struct KeyFile {
    data_dir: PathBuf,
}

impl KeyFile {
    pub fn in_directory(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }

    pub fn path(&self) -> PathBuf {
        self.data_dir.join(configstore::FILE)
    }

    /// Returns the keys in the order they were made. Changes nothing.
    ///
    /// # Errors
    /// The configuration store cannot be read or understood.
    pub fn read(&self) -> Result<Vec<Key>, KeyError> {
        Ok(Keys::read_only(&self.data_dir)?.known.keys.load().to_vec())
    }

    /// Makes a key and its token. A node that runs here writes it, with an entry in its audit log. Keys of a cluster
    /// are written by the next node that runs here.
    ///
    /// # Errors
    /// A bad or known name; too many keys; the configuration store cannot be read or written; the node refuses it.
    pub fn add(&self, new: &NewKey) -> Result<(Key, String, Outcome), KeyError> {
        let token = token()?;
        let (key, outcome) = self.add_checked(new, &token)?;
        Ok((key, token, outcome))
    }

    /// Makes a key with this token, in the same way.
    ///
    /// # Errors
    /// Those of [`KeyFile::add`], and [`KeyError::BadToken`].
    pub fn add_with_token(&self, new: &NewKey, token: &str) -> Result<(Key, Outcome), KeyError> {
        if !GIVEN_TOKEN_LENGTHS.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::BadToken);
        }
        self.add_checked(new, token)
    }

    /// Returns whether a key of this name exists, or any key waits for the node to make it.
    ///
    /// # Errors
    /// The configuration store cannot be read or understood.
    pub fn has(&self, name: &str) -> Result<bool, KeyError> {
        Ok(self.has_pending_key() || self.read()?.iter().any(|key| *key.name == *name))
    }

    fn add_checked(&self, new: &NewKey, token: &str) -> Result<(Key, Outcome), KeyError> {
        let runs = DirectoryLock::is_held(&self.data_dir)?;
        if !runs {
            match self.keys()?.add_any(new, token) {
                Err(KeyError::Write(ProposeError::OfCluster)) => {}
                made => return made.map(|key| (key, Outcome::Done)),
            }
        }
        let key = Keys::read_only(&self.data_dir)?.new_key(new, token)?;
        let outcome = self.request_change(&KeyRequest::Add(key.clone()), runs)?;
        Ok((key, outcome))
    }

    /// Removes a key, in the same way.
    ///
    /// # Errors
    /// No such key; the configuration store cannot be read or written; the node refuses it.
    pub fn remove(&self, name: &str) -> Result<Outcome, KeyError> {
        let runs = DirectoryLock::is_held(&self.data_dir)?;
        if !runs {
            match self.keys()?.remove_any(name) {
                Err(KeyError::Write(ProposeError::OfCluster)) => {}
                removed => return removed.map(|()| Outcome::Done),
            }
        }
        if !self.read()?.iter().any(|key| *key.name == *name) {
            return Err(KeyError::Unknown(name.to_owned()));
        }
        self.request_change(&KeyRequest::Remove(name.to_owned()), runs)
    }

    /// Returns whether a request for a key or an account waits for the node to run.
    pub fn has_pending_key(&self) -> bool {
        let request = KeyRequest::read(&self.data_dir);
        matches!(request, Ok(Some(KeyRequest::Add(_) | KeyRequest::AddAccount(_))))
    }

    /// Returns the accounts in the order of their names. Changes nothing.
    ///
    /// # Errors
    /// The configuration store cannot be read or understood.
    pub fn accounts(&self) -> Result<Vec<Arc<Account>>, KeyError> {
        Ok(Keys::read_only(&self.data_dir)?.accounts.list())
    }

    /// Makes an account, like [`KeyFile::add`].
    ///
    /// # Errors
    /// A bad or known name, a bad password, too many accounts; those of [`KeyFile::add`].
    pub fn add_account(&self, name: &str, role: Role, password: &str) -> Result<Outcome, KeyError> {
        check_password(name, password)?;
        if self.accounts()?.iter().any(|account| *account.name == *name) {
            return Err(KeyError::AccountExists(name.to_owned()));
        }
        self.make(&KeyRequest::AddAccount(Account::new(name, role, hash(password)?)?))
    }

    /// Changes the password of an account, which ends its sessions.
    ///
    /// # Errors
    /// No such account, a bad password; those of [`KeyFile::add`].
    pub fn set_password(&self, name: &str, password: &str) -> Result<Outcome, KeyError> {
        check_password(name, password)?;
        self.known_account(name)?;
        self.make(&KeyRequest::SetPassword { name: name.to_owned(), hash: hash(password)? })
    }

    /// Removes an account, which ends its sessions.
    ///
    /// # Errors
    /// No such account; those of [`KeyFile::remove`].
    pub fn remove_account(&self, name: &str) -> Result<Outcome, KeyError> {
        self.known_account(name)?;
        self.make(&KeyRequest::RemoveAccount(name.to_owned()))
    }

    fn known_account(&self, name: &str) -> Result<(), KeyError> {
        match self.accounts()?.iter().any(|account| *account.name == *name) {
            true => Ok(()),
            false => Err(KeyError::UnknownAccount(name.to_owned())),
        }
    }

    /// Executes a request here, or lets a node do it.
    fn make(&self, request: &KeyRequest) -> Result<Outcome, KeyError> {
        let runs = DirectoryLock::is_held(&self.data_dir)?;
        if !runs {
            match self.keys()?.make(request) {
                Err(KeyError::Write(ProposeError::OfCluster)) => {}
                made => return made.map(|()| Outcome::Done),
            }
        }
        self.request_change(request, runs)
    }

    fn request_change(&self, request: &KeyRequest, runs: bool) -> Result<Outcome, KeyError> {
        let path = request.put(&self.data_dir)?;
        if !runs || !request::wait_until_handled(&path) {
            return Ok(Outcome::Pending { path, runs });
        }
        let stored = Keys::read_only(&self.data_dir)?;
        let keys = stored.known.keys.load();
        let is_done = match request {
            KeyRequest::Add(key) => keys.iter().any(|other| other.sha256.is(&key.sha256)),
            KeyRequest::Remove(name) => !keys.iter().any(|key| *key.name == **name),
            KeyRequest::AddAccount(account) => stored.accounts.has(account),
            KeyRequest::SetPassword { name, hash } => {
                stored.accounts.get(name).is_some_and(|account| account.has_hash(hash))
            }
            KeyRequest::RemoveAccount(name) => stored.accounts.get(name).is_none(),
        };
        if is_done { Ok(Outcome::Done) } else { Err(KeyError::NotApplied) }
    }

    fn keys(&self) -> Result<Keys, KeyError> {
        let config_store = LocalStore::open(&self.data_dir);
        let keys =
            Keys::open(Arc::new(config_store.map_err(|error| KeyError::ConfigStore(error.to_string()))?))?;
        keys.import(&self.data_dir)?;
        Ok(keys)
    }
}

/// Returns the keys of `api-keys.json`; none when there is no such file.
fn legacy(data_dir: &Path) -> Result<Vec<Key>, KeyError> {
    let path = data_dir.join(LEGACY_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(KeyError::Unreadable { path, error }),
    };
    let not_understood = |error| KeyError::NotUnderstood { path: path.clone(), error };
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

pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

fn token() -> Result<String, KeyError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    Ok(format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&random)))
}

/// Keys of a running node. Changes by `meridian key` are visible within a second.
pub struct Keys {
    config_store: Arc<dyn ConfigStore>,
    known: Arc<KeyCache>,
    used: Mutex<HashMap<Arc<str>, Timestamp>>,
    accounts: Accounts,
    sessions: Sessions,
}

/// Cache of the table of keys, in the order they were made.
#[derive(Debug, Default)]
pub(crate) struct KeyCache {
    keys: ArcSwap<Vec<Key>>,
}

impl KeyCache {
    pub fn is_empty(&self) -> bool {
        self.keys.load().is_empty()
    }

    /// Returns whether a valid key of an admin exists, other than this one.
    pub fn has_admin(&self, without: Option<&str>) -> bool {
        let now = Timestamp::now();
        let counts = |key: &Key| {
            key.role == Role::Admin
                && key.expires_at.is_none_or(|expires| expires > now)
                && without.is_none_or(|name| *key.name != *name)
        };
        self.keys.load().iter().any(counts)
    }

    fn store(&self, mut keys: Vec<Key>) {
        keys.sort_by(|a, b| (a.created_at, &a.name).cmp(&(b.created_at, &b.name)));
        self.keys.store(Arc::new(keys));
    }
}

impl View for KeyCache {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let keys: Result<_, String> = records.map(|record| read(&record)).collect();
        self.store(keys?);
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut keys = self.keys.load().to_vec();
        for change in changes {
            // An invalid key admits no client.
            keys.retain(|key| *key.name != *change.key);
            match change.value.map(|_| read(change)) {
                Some(Ok(key)) => keys.push(key),
                Some(Err(why)) => tracing::error!("{why}"),
                None => {}
            }
        }
        tracing::info!(keys = keys.len(), "keys: changed");
        self.store(keys);
    }
}

fn read(record: &Applied<'_>) -> Result<Key, String> {
    serde_json::from_str(record.value.unwrap_or_default()).map_err(|error| {
        format!("the API key {} of the configuration store cannot be used: {error}", record.key)
    })
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("known", &self.known).finish_non_exhaustive()
    }
}

/// Reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Unknown,
    Expired,
}

impl Keys {
    /// # Errors
    /// A record that cannot be read.
    pub fn open(config_store: Arc<dyn ConfigStore>) -> Result<Self, KeyError> {
        let known = Arc::new(KeyCache::default());
        config_store.subscribe(TABLE, known.clone()).map_err(KeyError::ConfigStore)?;
        let accounts = Accounts::open(config_store.clone(), known.clone())?;
        let sessions = Sessions::open(config_store.clone(), accounts.known.clone())?;
        Ok(Self { config_store, known, used: Mutex::default(), accounts, sessions })
    }

    /// Reads the keys of a data directory as a node would. Changes nothing there.
    ///
    /// # Errors
    /// The configuration store, or a file of earlier versions, cannot be read or understood.
    pub fn read_only(data_dir: &Path) -> Result<Self, KeyError> {
        let config_store = LocalStore::read_only(data_dir);
        let keys =
            Self::open(Arc::new(config_store.map_err(|error| KeyError::ConfigStore(error.to_string()))?))?;
        let mut all = keys.known.keys.load().to_vec();
        for key in legacy(data_dir)? {
            if !all.iter().any(|other| other.name == key.name) {
                all.push(key);
            }
        }
        keys.known.store(all);
        Ok(keys)
    }

    /// Imports `api-keys.json` of earlier versions, when it is in this directory, and renames it to
    /// `api-keys.json.imported`. A key whose name is taken is left out.
    ///
    /// # Errors
    /// The file cannot be used, or the configuration store refuses its keys.
    pub fn import(&self, data_dir: &Path) -> Result<usize, KeyError> {
        let path = data_dir.join(LEGACY_FILE);
        if !path.exists() {
            return Ok(0);
        }
        let theirs = legacy(data_dir)?;
        let known = self.known.keys.load();
        let new = theirs.iter().filter(|key| !known.iter().any(|other| other.name == key.name));
        let changes = new.map(put).collect::<Result<Vec<_>, _>>()?;
        let count = changes.len();
        self.config_store.propose(changes).map_err(KeyError::Write)?;
        let renamed = fs::rename(&path, data_dir.join(format!("{LEGACY_FILE}.imported")));
        renamed.and_then(|()| fs::File::open(data_dir)?.sync_all()).map_err(|error| {
            KeyError::ConfigStore(format!(
                "{} was imported and cannot be renamed: {error}; move it away",
                path.display()
            ))
        })?;
        Ok(count)
    }

    /// Returns whether there is neither a key, not even an expired one, nor an account.
    pub fn is_empty(&self) -> bool {
        self.config_store.catch_up();
        self.known.is_empty() && self.accounts.known.is_empty()
    }

    /// Returns whether a key of this name exists and has not expired.
    pub(crate) fn is_valid(&self, name: &str) -> bool {
        self.config_store.catch_up();
        let (keys, now) = (self.known.keys.load(), Timestamp::now());
        let key = keys.iter().find(|key| *key.name == *name);
        key.is_some_and(|key| key.expires_at.is_none_or(|expires| expires > now))
    }

    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Figures of the configuration store that holds the keys, over all of its tables.
    pub(crate) fn configstore(&self) -> configstore::Figures {
        self.config_store.figures()
    }

    /// Returns all keys, each with its last use since the start of the node.
    pub fn list(&self) -> Vec<(Key, Option<Timestamp>)> {
        self.config_store.catch_up();
        let used = sync::lock(&self.used);
        self.known.keys.load().iter().map(|key| (key.clone(), used.get(&key.name).copied())).collect()
    }

    pub(crate) fn check(&self, token: &str, now: Timestamp) -> Result<(Arc<str>, Role), Denied> {
        self.config_store.catch_up();
        let hash = Hash::of(token);
        let keys = self.known.keys.load();
        // All keys are compared, so that the time does not reveal which one matches.
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
        sync::lock(&self.used).insert(key.name.clone(), now);
        Ok((key.name.clone(), key.role))
    }

    /// Makes a key and its token. Waits for the disk.
    ///
    /// # Errors
    /// A bad or known name; too many keys; the configuration store refuses it; [`KeyError::LastAdmin`] when the key is
    /// no admin's and no valid key of an admin exists.
    pub fn add(&self, new: &NewKey) -> Result<(Key, String), KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        if new.role != Role::Admin && !self.has_other_admin(None) {
            return Err(KeyError::LastAdmin);
        }
        let token = token()?;
        Ok((self.add_any(new, &token)?, token))
    }

    fn add_any(&self, new: &NewKey, token: &str) -> Result<Key, KeyError> {
        let key = self.new_key(new, token)?;
        self.put_new(&key)?;
        Ok(key)
    }

    /// Returns a key that may be stored.
    fn new_key(&self, new: &NewKey, token: &str) -> Result<Key, KeyError> {
        let created_at = Timestamp::now();
        let key = Key {
            name: new.name.as_str().into(),
            role: new.role,
            created_at,
            expires_at: new.expires_in.map(|time| created_at.after(time)),
            sha256: Hash::of(token),
        };
        self.check_new(&key)?;
        Ok(key)
    }

    fn check_new(&self, key: &Key) -> Result<(), KeyError> {
        if !is_name(&key.name) {
            return Err(KeyError::BadName);
        }
        let keys = self.known.keys.load();
        if keys.iter().any(|other| other.name == key.name) {
            return Err(KeyError::Exists(key.name.to_string()));
        }
        if keys.len() >= KEYS_MAX {
            return Err(KeyError::TooMany);
        }
        Ok(())
    }

    fn put_new(&self, key: &Key) -> Result<(), KeyError> {
        self.check_new(key)?;
        match self.config_store.propose(vec![put(key)?.expecting(Expected::Absent)]) {
            Ok(_) => Ok(()),
            Err(ProposeError::Conflict { .. }) => Err(KeyError::Exists(key.name.to_string())),
            Err(error) => Err(KeyError::Write(error)),
        }
    }

    /// Executes a request. A request that is already in effect, as after a crash, succeeds.
    ///
    /// # Errors
    /// As [`Keys::add`] and [`Keys::remove`]. An admin need not remain: the local user can make one.
    pub(crate) fn make(&self, request: &KeyRequest) -> Result<(), KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        match request {
            KeyRequest::Add(key)
                if self.known.keys.load().iter().any(|other| other.sha256.is(&key.sha256)) =>
            {
                Ok(())
            }
            KeyRequest::Add(key) => self.put_new(key),
            KeyRequest::Remove(name) => self.remove_any(name),
            KeyRequest::AddAccount(account) if self.accounts.has(account) => Ok(()),
            KeyRequest::AddAccount(account) => self.accounts.add_any(account),
            KeyRequest::SetPassword { name, hash } => {
                self.accounts.change_any(name, None, Some(hash.clone())).map(drop)
            }
            KeyRequest::RemoveAccount(name) => self.accounts.remove_any(name),
        }
    }

    /// Removes a key. Waits for the disk.
    ///
    /// # Errors
    /// No such key; the configuration store refuses it; [`KeyError::LastAdmin`] when it is the last valid one of an
    /// admin, unless it is the last of all and `to_none` is allowed.
    pub fn remove(&self, name: &str, to_none: bool) -> Result<(), KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        let keys = self.known.keys.load();
        let known = keys.iter().any(|key| *key.name == *name);
        let last_of_all = known && keys.len() == 1 && self.accounts.known.is_empty();
        if known && !self.has_other_admin(Some(name)) && !(last_of_all && to_none) {
            return Err(KeyError::LastAdmin);
        }
        self.remove_any(name)?;
        sync::lock(&self.used).remove(name);
        Ok(())
    }

    fn remove_any(&self, name: &str) -> Result<(), KeyError> {
        // A name that is too long cannot be a key.
        let unknown = || KeyError::Unknown(name.to_owned());
        if !is_name(name) {
            return Err(unknown());
        }
        let change = Change::remove(TABLE, name).expecting(Expected::Present);
        match self.config_store.propose(vec![change]) {
            Ok(_) => Ok(()),
            Err(ProposeError::Conflict { .. }) => Err(unknown()),
            Err(error) => Err(KeyError::Write(error)),
        }
    }

    /// Reads changes of other processes now instead of within a second.
    pub fn refresh(&self) {
        if let Err(error) = self.config_store.catch_up_now() {
            tracing::error!("keys: refresh failed; keeping the previous keys: {error}");
        }
    }

    /// Returns whether an admin can still authenticate without this key.
    fn has_other_admin(&self, without: Option<&str>) -> bool {
        self.known.has_admin(without) || self.accounts.known.has_admin(None)
    }
}

fn put(key: &Key) -> Result<Change, KeyError> {
    Change::put(TABLE, &*key.name, key).map_err(|error| KeyError::ConfigStore(error.to_string()))
}
