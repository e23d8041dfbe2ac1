//! Accounts: people who log in to the API and the dashboard with a name and a password.
//!
//! The configuration store holds names, roles and hashes. An account that changes begins another epoch, which ends its
//! sessions on every node at once; see [`Sessions`](crate::sessions::Sessions).

use std::sync::Arc;

use arc_swap::ArcSwap;
use auth::PasswordHash;
use configstore::{Applied, Change, ConfigStore, Expected, ProposeError, Table, View};
use serde::{Deserialize, Serialize};

use crate::keys::{KeyCache, KeyError, is_name};
use crate::role::Role;
use crate::timestamp::Timestamp;

/// Maximum number of accounts.
pub const ACCOUNTS_MAX: usize = 256;
/// Minimum number of characters of a password.
pub const PASSWORD_MIN: usize = 8;
/// Maximum number of bytes of a password.
pub const PASSWORD_MAX: usize = 256;
const TABLE: Table = Table::named("accounts");

/// One account. `Debug` does not show the hash.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub name: Arc<str>,
    pub role: Role,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
    /// Argon2id, in the form of a password file.
    hash: String,
    /// Random number of this state of the account. Sessions of another epoch are invalid.
    epoch: u64,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, role, .. } = self;
        f.debug_struct("Account").field("name", name).field("role", role).finish_non_exhaustive()
    }
}

impl Account {
    /// Makes an account with a hash of [`hash`].
    ///
    /// # Errors
    /// The name is invalid, or the system provides no randomness.
    pub fn new(name: &str, role: Role, hash: String) -> Result<Self, KeyError> {
        if !is_name(name) {
            return Err(KeyError::BadName);
        }
        let now = Timestamp::now();
        Ok(Self { name: name.into(), role, created_at: now, changed_at: now, hash, epoch: random()? })
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether this is the password. Takes about 50 ms of a CPU.
    pub fn matches(&self, password: &str) -> bool {
        PasswordHash::parse(&self.hash).is_ok_and(|hash| hash.matches(password.as_bytes()))
    }

    pub(crate) fn has_hash(&self, hash: &str) -> bool {
        self.hash == hash
    }
}

/// Checks a new password of this account.
///
/// # Errors
/// The reason why it is not accepted.
pub fn check_password(name: &str, password: &str) -> Result<(), KeyError> {
    if password.chars().count() < PASSWORD_MIN || password.len() > PASSWORD_MAX || password == name {
        return Err(KeyError::BadPassword);
    }
    Ok(())
}

/// Hashes a password. Takes about 50 ms of a CPU.
///
/// # Errors
/// The system provides no randomness.
pub fn hash(password: &str) -> Result<String, KeyError> {
    let hash = PasswordHash::create(password.as_bytes()).map_err(KeyError::Random)?;
    Ok(hash.as_str().to_owned())
}

/// Returns whether the password is right, and takes as long when there is no such account.
pub fn verify(account: Option<&Account>, password: &str) -> bool {
    match account {
        Some(account) => account.matches(password),
        None => PasswordHash::parse(DECOY).is_ok_and(|hash| hash.matches(password.as_bytes())),
    }
}

/// A hash with the cost of every account, of no password.
const DECOY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn random() -> Result<u64, KeyError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    Ok(u64::from_le_bytes(random))
}

/// Accounts of a node, in the order of their names.
#[derive(Debug, Default)]
pub(crate) struct AccountCache {
    accounts: ArcSwap<Vec<Arc<Account>>>,
}

impl AccountCache {
    pub fn get(&self, name: &str) -> Option<Arc<Account>> {
        let accounts = self.accounts.load();
        let index = accounts.binary_search_by(|account| (*account.name).cmp(name)).ok()?;
        Some(accounts[index].clone())
    }

    pub fn is_empty(&self) -> bool {
        self.accounts.load().is_empty()
    }

    /// Returns whether an admin has an account, other than this one.
    pub fn has_admin(&self, without: Option<&str>) -> bool {
        let other = |account: &&Arc<Account>| without.is_none_or(|name| *account.name != *name);
        self.accounts.load().iter().filter(other).any(|account| account.role == Role::Admin)
    }

    fn store(&self, mut accounts: Vec<Arc<Account>>) {
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        self.accounts.store(Arc::new(accounts));
    }
}

impl View for AccountCache {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        // An invalid account admits nobody.
        let read = |record: Applied<'_>| match read(&record) {
            Ok(account) => Some(Arc::new(account)),
            Err(why) => {
                tracing::error!("{why}");
                None
            }
        };
        self.store(records.filter_map(read).collect());
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut accounts = self.accounts.load().to_vec();
        for change in changes {
            accounts.retain(|account| *account.name != *change.key);
            match change.value.map(|_| read(change)) {
                Some(Ok(account)) => accounts.push(Arc::new(account)),
                Some(Err(why)) => tracing::error!("{why}"),
                None => {}
            }
        }
        tracing::info!(accounts = accounts.len(), "accounts: changed");
        self.store(accounts);
    }
}

fn read(record: &Applied<'_>) -> Result<Account, String> {
    let account: Result<Account, _> = serde_json::from_str(record.value.unwrap_or_default());
    let why = match account {
        Ok(account) if *account.name == *record.key => return Ok(account),
        Ok(account) => format!("it is that of {}", account.name),
        Err(error) => error.to_string(),
    };
    Err(format!("the account {} of the configuration store cannot be used: {why}", record.key))
}

/// Accounts of a running node, and their changes.
pub struct Accounts {
    config_store: Arc<dyn ConfigStore>,
    pub(crate) known: Arc<AccountCache>,
    /// Keys of admins count as admins that remain.
    keys: Arc<KeyCache>,
}

impl Accounts {
    pub(crate) fn open(config_store: Arc<dyn ConfigStore>, keys: Arc<KeyCache>) -> Result<Self, KeyError> {
        let known = Arc::new(AccountCache::default());
        config_store.subscribe(TABLE, known.clone()).map_err(KeyError::ConfigStore)?;
        Ok(Self { config_store, known, keys })
    }

    pub fn get(&self, name: &str) -> Option<Arc<Account>> {
        self.config_store.catch_up();
        self.known.get(name)
    }

    /// Returns whether this very account exists, in any epoch with its password.
    pub(crate) fn has(&self, account: &Account) -> bool {
        self.get(&account.name).is_some_and(|stored| stored.has_hash(&account.hash))
    }

    pub fn list(&self) -> Vec<Arc<Account>> {
        self.config_store.catch_up();
        self.known.accounts.load().to_vec()
    }

    /// Adds an account. Waits for the disk, like the following functions.
    ///
    /// # Errors
    /// It exists; there are too many; the configuration store refuses it; [`KeyError::LastAdmin`] when it is no admin's
    /// and there is no other admin.
    pub fn add(&self, account: &Account) -> Result<(), KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        if account.role != Role::Admin && !self.has_other_admin(None) {
            return Err(KeyError::LastAdmin);
        }
        self.add_any(account)
    }

    pub(crate) fn add_any(&self, account: &Account) -> Result<(), KeyError> {
        let exists = || KeyError::AccountExists(account.name.to_string());
        if !is_name(&account.name) {
            return Err(KeyError::BadName);
        }
        if self.known.get(&account.name).is_some() {
            return Err(exists());
        }
        if self.known.accounts.load().len() >= ACCOUNTS_MAX {
            return Err(KeyError::TooManyAccounts);
        }
        self.propose(put(account)?.expecting(Expected::Absent), exists)
    }

    /// Changes role, password or both, which ends the sessions of the account. `Some` is a new value.
    ///
    /// # Errors
    /// No such account; the configuration store refuses it; [`KeyError::LastAdmin`] when no admin would remain.
    pub fn change(
        &self,
        name: &str,
        role: Option<Role>,
        hash: Option<String>,
    ) -> Result<Arc<Account>, KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        if role.is_some_and(|role| role != Role::Admin)
            && self.known.get(name).is_some_and(|account| account.role == Role::Admin)
            && !self.has_other_admin(Some(name))
        {
            return Err(KeyError::LastAdmin);
        }
        self.change_any(name, role, hash)
    }

    pub(crate) fn change_any(
        &self,
        name: &str,
        role: Option<Role>,
        hash: Option<String>,
    ) -> Result<Arc<Account>, KeyError> {
        loop {
            let unknown = || KeyError::UnknownAccount(name.to_owned());
            let stored = self.config_store.read(TABLE, name).ok_or_else(unknown)?;
            let before: Account = serde_json::from_str(&stored.value).map_err(|error| {
                KeyError::ConfigStore(format!("the account {name} cannot be read: {error}"))
            })?;
            let after = Account {
                role: role.unwrap_or(before.role),
                hash: hash.clone().unwrap_or(before.hash),
                changed_at: Timestamp::now(),
                epoch: random()?,
                ..before
            };
            // A role that another node has changed meanwhile must not come back with a new password.
            let put = put(&after)?.expecting(Expected::At(stored.revision));
            match self.config_store.propose(vec![put]) {
                Ok(_) => return Ok(Arc::new(after)),
                Err(ProposeError::Conflict { found: Some(_), .. }) => {}
                Err(ProposeError::Conflict { .. }) => return Err(unknown()),
                Err(error) => return Err(KeyError::Write(error)),
            }
        }
    }

    /// Removes an account, which ends its sessions.
    ///
    /// # Errors
    /// No such account; the configuration store refuses it; [`KeyError::LastAdmin`] when no admin would remain. The
    /// last account of a node without keys may be removed with `to_none`.
    pub fn remove(&self, name: &str, to_none: bool) -> Result<(), KeyError> {
        self.config_store.catch_up_now().map_err(KeyError::Write)?;
        let last_of_all = self.known.accounts.load().len() == 1 && self.keys.is_empty();
        if self.known.get(name).is_some() && !self.has_other_admin(Some(name)) && !(last_of_all && to_none) {
            return Err(KeyError::LastAdmin);
        }
        self.remove_any(name)
    }

    pub(crate) fn remove_any(&self, name: &str) -> Result<(), KeyError> {
        let unknown = || KeyError::UnknownAccount(name.to_owned());
        if !is_name(name) {
            return Err(unknown());
        }
        self.propose(Change::remove(TABLE, name).expecting(Expected::Present), unknown)
    }

    fn propose(&self, change: Change, conflict: impl FnOnce() -> KeyError) -> Result<(), KeyError> {
        match self.config_store.propose(vec![change]) {
            Ok(_) => Ok(()),
            Err(ProposeError::Conflict { .. }) => Err(conflict()),
            Err(error) => Err(KeyError::Write(error)),
        }
    }

    /// Returns whether an admin can still authenticate without this account.
    fn has_other_admin(&self, without: Option<&str>) -> bool {
        self.known.has_admin(without) || self.keys.has_admin(None)
    }
}

fn put(account: &Account) -> Result<Change, KeyError> {
    Change::put(TABLE, &*account.name, account).map_err(|error| KeyError::ConfigStore(error.to_string()))
}

#[cfg(test)]
mod tests {
    use configstore::LocalStore;

    use super::*;
    use crate::keys::{Keys, NewKey};

    fn account(name: &str, role: Role) -> Account {
        Account::new(name, role, "no hash".to_owned()).unwrap()
    }

    fn keys() -> Keys {
        Keys::open(Arc::new(LocalStore::in_memory())).unwrap()
    }

    #[test]
    fn an_admin_remains_among_accounts_and_keys_together() {
        let keys = keys();
        let accounts = keys.accounts();
        assert!(matches!(accounts.add(&account("v", Role::Viewer)), Err(KeyError::LastAdmin)));
        accounts.add(&account("ann", Role::Admin)).unwrap();
        accounts.add(&account("v", Role::Viewer)).unwrap();
        assert!(matches!(accounts.remove("ann", true), Err(KeyError::LastAdmin)), "a viewer is left");
        let demoted = accounts.change("ann", Some(Role::Operator), None);
        assert!(matches!(demoted, Err(KeyError::LastAdmin)));
        let new = NewKey { name: "k".into(), role: Role::Admin, expires_in: None };
        keys.add(&new).unwrap();
        accounts.change("ann", Some(Role::Operator), None).unwrap();
        assert!(matches!(keys.remove("k", true), Err(KeyError::LastAdmin)), "accounts are left");
        accounts.change("ann", Some(Role::Admin), None).unwrap();
        keys.remove("k", true).unwrap();
        accounts.remove("v", true).unwrap();
        assert!(matches!(accounts.remove("ann", false), Err(KeyError::LastAdmin)));
        accounts.remove("ann", true).unwrap();
        assert!(keys.is_empty());
    }

    #[test]
    fn each_change_begins_another_epoch() {
        let keys = keys();
        let accounts = keys.accounts();
        accounts.add(&account("ann", Role::Admin)).unwrap();
        let first = accounts.get("ann").unwrap().epoch();
        let second = accounts.change("ann", None, Some("another hash".to_owned())).unwrap().epoch();
        assert_ne!(first, second);
        accounts.remove("ann", true).unwrap();
        accounts.add(&account("ann", Role::Admin)).unwrap();
        assert!(![first, second].contains(&accounts.get("ann").unwrap().epoch()));
        assert!(matches!(accounts.add(&account("ann", Role::Admin)), Err(KeyError::AccountExists(_))));
        assert!(matches!(accounts.change("bob", None, None), Err(KeyError::UnknownAccount(_))));
    }

    #[test]
    fn a_password_is_right_or_wrong_and_nobody_has_one_without_an_account() {
        let ann = Account::new("ann", Role::Admin, hash("correct horse").unwrap()).unwrap();
        assert!(verify(Some(&ann), "correct horse"));
        assert!(!verify(Some(&ann), "correct horse "));
        assert!(!verify(None, "correct horse"));
        let costs = |hash: &str| hash.split('$').take(4).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(costs(&ann.hash), costs(DECOY), "an unknown name takes as long");
        assert!(PasswordHash::parse(DECOY).is_ok());
        assert!(!format!("{ann:?}").contains("argon2"));
        for bad in ["", "seven77", &"x".repeat(PASSWORD_MAX + 1), "administrator"] {
            assert!(check_password("administrator", bad).is_err(), "{bad}");
        }
        assert!(check_password("administrator", "äöüäöüäö").is_ok(), "characters are counted, not bytes");
    }
}
