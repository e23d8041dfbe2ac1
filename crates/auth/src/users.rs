//! The built-in user database: users in the registry.
//!
//! [`Users`] proposes changes, and answers what an operator asks; a CONNECT asks its [`UserView`](view::UserView) users, without a lock.
//! As a link of the chain it is named `users`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use base64ct::{Base64, Encoding};
use broker::access::Admission;
use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Revision, Stored, Table};

mod error;
mod link;
mod record;
mod view;

pub use error::UserError;
pub use record::{NAME_MAX as USER_NAME_MAX, RatesRecord, UserRecord};
use view::UserView;

use crate::password_hash::{PasswordHash, SCRAM_KEY_LEN};

/// The users of the registry.
pub struct Users {
    view: Arc<UserView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held by whoever changes users on this node, so that the limit holds.
    changing: Mutex<()>,
    users_max: usize,
    /// Makes up what SCRAM tells unknown users. The registry's, from the first user with SCRAM on.
    decoys: OnceLock<[u8; SCRAM_KEY_LEN]>,
    /// Until then.
    temporary_decoy_key: [u8; SCRAM_KEY_LEN],
}

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// What becomes of users who are there already when others are brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing is brought in; [`UserError::Exists`].
    Refuse,
    /// They stay as they are.
    Keep,
    Replace,
}

/// What becomes of clients, on whichever node, that came as a user who is changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connected {
    Close,
    Keep,
}

/// What came of bringing users in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub added: usize,
    /// Those who were there and have another record now.
    pub replaced: usize,
    pub kept: usize,
}

impl Users {
    /// Users that are kept in memory only.
    ///
    /// # Errors
    /// As [`Users::open`].
    pub fn in_memory(users_max: usize) -> Result<Self, UserError> {
        Self::open(Arc::new(LocalStore::in_memory()), users_max)
    }

    /// The users of the registry. More than `users_max` are kept when they are there already, but none are added. A record that makes no
    /// sense is a user who is refused.
    ///
    /// # Errors
    /// A system without random bytes.
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

    /// As what this user is let in.
    pub fn admission(&self, name: &str) -> Admission {
        self.view.get(name).map(|user| user.admission()).unwrap_or_default()
    }

    /// # Errors
    /// A record that makes no sense.
    pub fn get(&self, name: &str) -> Result<Option<UserRecord>, UserError> {
        self.config_store.read(TABLE, name).map(|stored| UserRecord::read(name, &stored)).transpose()
    }

    /// Up to `limit` users behind this name, in the order of their names.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Result<UserRecord, UserError>)> {
        let page = self.config_store.page(TABLE, after, limit).into_iter();
        page.map(|(name, stored)| {
            let record = UserRecord::read(&name, &stored);
            (name, record)
        })
        .collect()
    }

    /// Makes a user. Waits for the registry, as all that follows: not for a reactor.
    ///
    /// # Errors
    /// [`UserError`]; nothing has changed then, here and below.
    pub fn add(&self, name: &str, record: &UserRecord) -> Result<(), UserError> {
        record.check_new(name, None)?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.room_for(1)?;
        self.store_decoy_key(record)?;
        match self.config_store.propose(vec![record.put(name)?.expecting(Expected::Absent)]) {
            Ok(_) => Ok(()),
            Err(ProposeError::Conflict { .. }) => Err(UserError::Exists(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes of a user what `change` makes of the record; gives that. When somebody else changed the user meanwhile, `change` is asked
    /// again. Clients stay when it changes nothing for them.
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
            // What is not there any more can tell nobody that its clients stay, so it does as it goes. Nobody came by one without sense.
            let record = stored.as_ref().and_then(|stored| UserRecord::read(name, stored).ok());
            if let Some((record, stored)) = record.filter(|_| connected == Connected::Keep).zip(stored) {
                let put = UserRecord { leaves_clients: true, ..record }.put(name)?;
                batch.insert(0, put.expecting(Expected::At(stored.revision)));
            }
            match self.config_store.propose(batch) {
                Ok(_) => return Ok(()),
                // Somebody else changed it meanwhile.
                Err(ProposeError::Conflict { found: Some(_), .. }) => {}
                Err(ProposeError::Conflict { .. }) => return Err(unknown()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Brings in many users, all or, beyond [`IMPORT_BATCH_MAX`], as far as it comes: the error then says at which name. `connected` is for
    /// those who are replaced.
    ///
    /// # Errors
    /// [`UserError`]; everything is looked at before the first is brought in.
    pub fn import(
        &self,
        users: &[(String, UserRecord)],
        existing: Existing,
        connected: Connected,
    ) -> Result<Imported, UserError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The first user with SCRAM brings the key that makes up what others are told.
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

/// A password as users of the registry have it: argon2id, and keys of SCRAM-SHA-256 when these iterations are said. Takes some 50 ms,
/// and for the keys as long as a client does.
///
/// # Errors
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
/// What nobody is shown.
const SECRETS: Table = Table::named("secrets");
const DECOYS: &str = "scram_decoys";
/// Users that are brought in at once.
pub const IMPORT_BATCH_MAX: usize = 5_000;

#[cfg(test)]
mod tests;
