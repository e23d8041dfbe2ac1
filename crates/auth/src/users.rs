//! Built-in user database: users in the configuration store.
//!
//! [`Users`] proposes changes and serves operators. A CONNECT looks users up in its [`UserView`](view::UserView)
//! without a lock. As a link of the chain it has the name `users`.

use std::sync::{Arc, Mutex, OnceLock};

use access::Admission;
use base64ct::{Base64, Encoding};
use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Revision, Stored, Table};

mod error;
mod link;
mod record;
mod view;

pub use error::UserError;
pub use record::{NAME_MAX as USER_NAME_MAX, RatesRecord, UserRecord};
use view::UserView;

use crate::password_hash::{PasswordHash, SCRAM_KEY_LEN};

/// Users of the configuration store.
pub struct Users {
    view: Arc<UserView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held while users are changed on this node, so that the limit is kept.
    changing: Mutex<()>,
    users_max: usize,
    /// Key of the SCRAM answers to unknown users. It is stored with the first user that has SCRAM keys.
    decoys: OnceLock<[u8; SCRAM_KEY_LEN]>,
    /// Key that is used until then.
    temporary_decoy_key: [u8; SCRAM_KEY_LEN],
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Action for existing users when others are imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// No user is imported; [`UserError::Exists`].
    Refuse,
    /// Existing users stay unchanged.
    Keep,
    Replace,
}

/// Action for clients, on any node, that logged in as a user who is changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connected {
    Close,
    Keep,
}

/// Result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub added: usize,
    /// Existing users with a new record.
    pub replaced: usize,
    pub kept: usize,
}

impl Users {
    /// Creates users that are kept in memory only.
    ///
    /// # Errors
    /// Errors of [`Users::open`].
    pub fn in_memory(users_max: usize) -> Result<Self, UserError> {
        Self::open(Arc::new(LocalStore::in_memory()), users_max)
    }

    /// Opens the users of the configuration store. Existing users beyond `users_max` are kept, but none are added. A
    /// user with an invalid record is refused.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn open(config_store: Arc<dyn ConfigStore>, users_max: usize) -> Result<Self, UserError> {
        let view = Arc::new(UserView::default());
        config_store.subscribe(TABLE, view.clone()).map_err(UserError::System)?;
        let random = random()?;
        let decoys = OnceLock::new();
        if let Some(key) = read_decoys(&*config_store) {
            decoys.get_or_init(|| key);
        }
        Ok(Self {
            view,
            config_store,
            changing: Mutex::default(),
            users_max,
            decoys,
            temporary_decoy_key: random,
        })
    }

    pub fn len(&self) -> usize {
        self.view.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the admission of this user.
    pub fn admission(&self, name: &str) -> Admission {
        self.view.get(name).map(|user| user.admission()).unwrap_or_default()
    }

    /// # Errors
    /// The record is invalid.
    pub fn get(&self, name: &str) -> Result<Option<UserRecord>, UserError> {
        self.config_store.read(TABLE, name).map(|stored| UserRecord::read(name, &stored)).transpose()
    }

    /// Returns up to `limit` users after this name, in the order of their names.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Result<UserRecord, UserError>)> {
        let page = self.config_store.page(TABLE, after, limit).into_iter();
        page.map(|(name, stored)| {
            let record = UserRecord::read(&name, &stored);
            (name, record)
        })
        .collect()
    }

    /// Adds a user. Like the following functions, it waits for the configuration store: not for a reactor.
    ///
    /// # Errors
    /// [`UserError`]. Nothing has changed then, here and in the following functions.
    pub fn add(&self, name: &str, record: &UserRecord) -> Result<(), UserError> {
        record.check_new(name, None)?;
        let _changing = sync::lock(&self.changing);
        self.room_for(1)?;
        self.store_decoy_key(record)?;
        match self.config_store.propose(vec![record.put(name)?.expecting(Expected::Absent)]) {
            Ok(_) => Ok(()),
            Err(ProposeError::Conflict { .. }) => Err(UserError::Exists(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// Applies `change` to the record of a user, and returns the new record. When another writer changed the user
    /// meanwhile, `change` is called again. Clients stay connected when nothing changes for them.
    ///
    /// # Errors
    /// [`UserError::Unknown`] among others.
    pub fn change(
        &self,
        name: &str,
        connected: Connected,
        change: impl Fn(UserRecord) -> UserRecord,
    ) -> Result<UserRecord, UserError> {
        loop {
            let stored: Stored =
                self.config_store.read(TABLE, name).ok_or_else(|| UserError::Unknown(name.to_owned()))?;
            let before = UserRecord::read(name, &stored)?;
            let mut after = change(before.clone());
            after.check_new(name, Some(&before))?;
            after.follow(before.changed_ms);
            let keeps = connected == Connected::Keep || after.is_for_clients_as(&before);
            after.keeps_ms = keeps.then(|| before.epoch());
            self.store_decoy_key(&after)?;
            let put = after.put(name)?.expecting(Expected::At(stored.revision));
            match self.config_store.propose(vec![put]) {
                Ok(_) => return Ok(after),
                Err(ProposeError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// # Errors
    /// [`UserError::Unknown`] among others.
    pub fn remove(&self, name: &str, connected: Connected) -> Result<(), UserError> {
        let unknown = || UserError::Unknown(name.to_owned());
        if name.is_empty() || name.len() > USER_NAME_MAX {
            return Err(unknown());
        }
        loop {
            let stored = self.config_store.read(TABLE, name);
            let mut batch = vec![Change::remove(TABLE, name).expecting(Expected::Present)];
            // A removed record cannot say that its clients stay connected, so the removing batch does. No client logged
            // in by an invalid record.
            let record = stored.as_ref().and_then(|stored| UserRecord::read(name, stored).ok());
            if let Some((record, stored)) = record.filter(|_| connected == Connected::Keep).zip(stored) {
                let put = UserRecord { leaves_clients: true, ..record }.put(name)?;
                batch.insert(0, put.expecting(Expected::At(stored.revision)));
            }
            match self.config_store.propose(batch) {
                Ok(_) => return Ok(()),
                // Another writer changed the user meanwhile.
                Err(ProposeError::Conflict { found: Some(_), .. }) => {}
                Err(ProposeError::Conflict { .. }) => return Err(unknown()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Imports many users: all of them, or, beyond [`IMPORT_BATCH_MAX`], as many as possible. The error then names the
    /// user at which it stopped. `connected` applies to the clients of replaced users.
    ///
    /// # Errors
    /// [`UserError`]; all users are checked before the first is imported.
    pub fn import(
        &self,
        users: &[(String, UserRecord)],
        existing: Existing,
        connected: Connected,
    ) -> Result<Imported, UserError> {
        let _changing = sync::lock(&self.changing);
        let (mut done, mut changes) = (Imported::default(), Vec::new());
        let mut names = std::collections::HashSet::new();
        for (name, record) in users {
            record.check_new(name, None).map_err(|error| error.of(name))?;
            if !names.insert(name.as_str()) {
                return Err(UserError::Twice(name.clone()));
            }
            let mut record = record.clone();
            let expected = match (self.view.get(name), existing) {
                (None, _) => {
                    done.added += 1;
                    Expected::Absent
                }
                (Some(_), Existing::Refuse) => return Err(UserError::Exists(name.clone())),
                (Some(_), Existing::Keep) => {
                    done.kept += 1;
                    continue;
                }
                (Some(view), Existing::Replace) => {
                    done.replaced += 1;
                    record.follow(view.epoch.unwrap_or_default());
                    record.keeps_ms = view.epoch.filter(|_| connected == Connected::Keep);
                    Expected::Anything
                }
            };
            changes.push(record.put(name)?.expecting(expected));
        }
        self.room_for(done.added)?;
        for (_, record) in users {
            self.store_decoy_key(record)?;
        }
        let mut rest = changes.into_iter().peekable();
        while let Some(first) = rest.peek() {
            let name = first.key().to_owned();
            let batch: Vec<Change> = rest.by_ref().take(IMPORT_BATCH_MAX).collect();
            self.config_store.propose(batch).map_err(|error| UserError::from(error).of(&name))?;
        }
        Ok(done)
    }

    fn room_for(&self, more: usize) -> Result<(), UserError> {
        match self.len() + more > self.users_max && more > 0 {
            true => Err(UserError::TooMany { maximum: self.users_max }),
            false => Ok(()),
        }
    }

    /// Stores the key of SCRAM answers to unknown users together with the first user that has SCRAM keys.
    fn store_decoy_key(&self, record: &UserRecord) -> Result<(), UserError> {
        let of_hash = record.hash.as_deref().is_some_and(|hash| hash.starts_with("SCRAM-"));
        if !(record.scram.is_some() || of_hash) || self.decoys.get().is_some() {
            return Ok(());
        }
        let key = Change::put(SECRETS, DECOYS, &Base64::encode_string(&random()?));
        let key = key.map_err(|error| UserError::System(error.to_string()))?;
        match self.config_store.propose(vec![key.expecting(Expected::Absent)]) {
            Ok(Revision(_)) | Err(ProposeError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(key) = read_decoys(&*self.config_store) {
            self.decoys.get_or_init(|| key);
        }
        Ok(())
    }
}

/// Hashes a password for a user of the database: argon2id, and with `iterations` also SCRAM-SHA-256 keys. Takes about
/// 50 ms, and for the keys as long as a client needs.
///
/// # Errors
/// SCRAM does not accept the password, or the system provides no random bytes.
/// A password that SCRAM cannot have; a system without random bytes.
pub fn hash_password(
    password: &str,
    scram_iterations: Option<u32>,
) -> Result<(String, Option<String>), UserError> {
    let hash =
        PasswordHash::create(password.as_bytes()).map_err(|error| UserError::System(error.to_string()))?;
    let scram =
        scram_iterations.map(|iterations| PasswordHash::create_scram(password, iterations)).transpose();
    let scram = scram.map_err(|error| UserError::Fields(vec![("scram", error.to_string())]))?;
    Ok((hash.as_str().to_owned(), scram.map(|scram| scram.as_str().to_owned())))
}

fn random() -> Result<[u8; SCRAM_KEY_LEN], UserError> {
    let mut key = [0; SCRAM_KEY_LEN];
    getrandom::fill(&mut key).map_err(|error| UserError::System(error.to_string()))?;
    Ok(key)
}

fn read_decoys(config_store: &dyn ConfigStore) -> Option<[u8; SCRAM_KEY_LEN]> {
    let stored = config_store.read(SECRETS, DECOYS)?;
    let text: String = serde_json::from_str(&stored.value).ok()?;
    Base64::decode_vec(&text).ok()?.try_into().ok()
}

const TABLE: Table = Table::named("users");
/// Table of secrets, which no interface shows.
const SECRETS: Table = Table::named("secrets");
const DECOYS: &str = "scram_decoys";
/// Maximum number of users in one batch of an import.
pub const IMPORT_BATCH_MAX: usize = 5_000;

#[cfg(test)]
mod tests;
