//! Sessions of accounts: what a browser gets for a name and a password, instead of a token.
//!
//! A session is a record in the configuration store, so it is valid on every node of a cluster, survives a restart,
//! and ends everywhere at once. The record has the hash of the session's secret; the cookie has the secret. The cookie
//! also says when the session was last used, signed with a key in the record. So idle sessions end without a write for
//! each request. When the cores of a cluster have no majority, a node keeps a new session for itself, in memory.
//!
//! Read [`Sessions::begin`] and [`Sessions::check`] first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use base64ct::{Base64UrlUnpadded, Encoding as _};
use configstore::{Applied, Change, ConfigStore, ProposeError, Table, View};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::accounts::{Account, AccountCache};
use crate::keys::KeyError;
use crate::role::Role;
use crate::timestamp::Timestamp;

pub const TABLE: Table = Table::named("sessions");
/// Bytes of a secret and of a signing key.
const SECRET_LEN: usize = 32;
/// Maximum number of records that a login removes: those that are over, and those beyond a limit.
const REMOVED_MAX: usize = 256;

/// Limits of sessions.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// Maximum time from the login.
    pub lifetime: Duration,
    /// Maximum time without a request.
    pub idle: Duration,
    pub per_account: usize,
    pub all: usize,
}

/// Name of a session: the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(Box<str>);

impl SessionId {
    fn of(secret: &[u8; SECRET_LEN]) -> Self {
        Self(Base64UrlUnpadded::encode_string(&Sha256::digest(secret)).into())
    }
}

/// Record of a session. Times are seconds since 1970.
#[derive(Clone, Serialize, Deserialize)]
struct Session {
    account: Arc<str>,
    /// Epoch of the account at the login.
    epoch: u64,
    began_s: u64,
    ends_s: u64,
    /// Key that signs the time of the last use, in base64url.
    key: Box<str>,
}

/// A request with a valid session. `Debug` does not show the cookie.
#[derive(Clone)]
pub struct Admitted {
    pub account: Arc<str>,
    pub role: Role,
    pub id: SessionId,
    /// Value of the cookie with a new time of use, when it is time for one.
    pub refreshed: Option<String>,
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { account, role, .. } = self;
        f.debug_struct("Admitted").field("account", account).field("role", role).finish_non_exhaustive()
    }
}

/// Reason why a cookie is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Cookie with another form.
    Malformed,
    /// This node knows no such session. Another node may have begun it a moment ago.
    Unknown,
    /// Session whose lifetime is over, which was idle for too long, or whose account has changed.
    Ended,
}

/// A new session.
pub struct Begun {
    /// Value of the cookie.
    pub cookie: String,
    pub ends_at: Timestamp,
}

/// Sessions of the configuration store, as this node knows them.
#[derive(Default)]
pub(crate) struct SessionCache {
    sessions: ArcSwap<HashMap<SessionId, Arc<Session>>>,
}

impl View for SessionCache {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        self.sessions.store(Arc::new(records.filter_map(|record| read(&record)).collect()));
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut sessions = HashMap::clone(&self.sessions.load());
        for change in changes {
            sessions.remove(&SessionId(change.key.into()));
            sessions.extend(read(change));
        }
        self.sessions.store(Arc::new(sessions));
    }
}

/// Reads a record; `None` when it is removed or invalid, which admits nobody.
fn read(record: &Applied<'_>) -> Option<(SessionId, Arc<Session>)> {
    let session = serde_json::from_str(record.value?).ok()?;
    Some((SessionId(record.key.into()), Arc::new(session)))
}

/// All sessions, and their limits.
pub struct Sessions {
    config_store: Arc<dyn ConfigStore>,
    known: Arc<SessionCache>,
    accounts: Arc<AccountCache>,
    /// Sessions that only this node knows, because the cores had no majority.
    own: Mutex<HashMap<SessionId, Arc<Session>>>,
    displaced: AtomicU64,
}

impl Sessions {
    pub(crate) fn open(
        config_store: Arc<dyn ConfigStore>,
        accounts: Arc<AccountCache>,
    ) -> Result<Self, KeyError> {
        let known = Arc::new(SessionCache::default());
        config_store.subscribe(TABLE, known.clone()).map_err(KeyError::ConfigStore)?;
        Ok(Self { config_store, known, accounts, own: Mutex::default(), displaced: AtomicU64::new(0) })
    }

    /// Begins a session of an account whose password was right. Removes sessions that are over; and when there are too
    /// many, the oldest ones. Waits for the disk.
    ///
    /// # Errors
    /// The system provides no randomness; the configuration store cannot be written.
    pub fn begin(&self, account: &Account, limits: SessionLimits) -> Result<Begun, KeyError> {
        let (secret, key) = (random()?, random()?);
        let now = now_s();
        let session = Session {
            account: account.name.clone(),
            epoch: account.epoch(),
            began_s: now,
            ends_s: now.saturating_add(limits.lifetime.as_secs()),
            key: Base64UrlUnpadded::encode_string(&key).into(),
        };
        let id = SessionId::of(&secret);
        let begun = Begun {
            cookie: cookie(&secret, &key, now),
            ends_at: Timestamp::of_ms(session.ends_s.saturating_mul(1_000)),
        };
        let put = Change::put(TABLE, id.0.clone(), &session)
            .map_err(|error| KeyError::ConfigStore(error.to_string()))?;
        let (over, displaced) = self.surplus(&account.name, limits, now);
        let removed = over.iter().chain(&displaced).take(REMOVED_MAX);
        let mut batch: Vec<Change> = removed.map(|id| Change::remove(TABLE, id.0.clone())).collect();
        batch.push(put);
        match self.config_store.propose(batch) {
            Ok(_) => {
                self.displaced.fetch_add(displaced.len() as u64, Ordering::Relaxed);
            }
            Err(ProposeError::NotCommitted { why, .. }) => {
                tracing::warn!(
                    account = &*account.name,
                    "sessions: the cores do not accept a new session; keeping it on this node only: {why}"
                );
                self.keep(id, session, limits);
            }
            Err(error) => return Err(KeyError::Write(error)),
        }
        Ok(begun)
    }

    /// Returns the sessions that are over, and the oldest ones that are too many with one more of this account.
    fn surplus(&self, account: &str, limits: SessionLimits, now: u64) -> (Vec<SessionId>, Vec<SessionId>) {
        let sessions = self.known.sessions.load();
        let (valid, over): (Vec<_>, Vec<_>) =
            sessions.iter().partition(|(_, session)| self.account(session, now).is_some());
        let over = over.into_iter().map(|(id, _)| id.clone()).collect();
        let mut valid: Vec<_> = valid.into_iter().collect();
        valid.sort_by(|(a, x), (b, y)| (x.began_s, &a.0).cmp(&(y.began_s, &b.0)));
        let of_account = valid.iter().filter(|(_, session)| *session.account == *account).count();
        let mut left = (of_account + 1).saturating_sub(limits.per_account);
        let mut displaced: Vec<SessionId> = Vec::new();
        valid.retain(|(id, session)| {
            let goes = left > 0 && *session.account == *account;
            if goes {
                left -= 1;
                displaced.push((*id).clone());
            }
            !goes
        });
        let surplus = (valid.len() + 1).saturating_sub(limits.all);
        displaced.extend(valid.iter().take(surplus).map(|(id, _)| (*id).clone()));
        (over, displaced)
    }

    /// Keeps a session on this node only, within the same limits.
    fn keep(&self, id: SessionId, session: Session, limits: SessionLimits) {
        let now = now_s();
        let mut own = sync::lock(&self.own);
        own.retain(|_, session| self.account(session, now).is_some());
        let oldest = |own: &HashMap<SessionId, Arc<Session>>, of: Option<&str>| {
            let counted = own.iter().filter(|(_, session)| of.is_none_or(|name| *session.account == *name));
            let oldest = counted.clone().min_by(|(a, x), (b, y)| (x.began_s, &a.0).cmp(&(y.began_s, &b.0)));
            (counted.count(), oldest.map(|(id, _)| id.clone()))
        };
        for (most, of) in [(limits.per_account, Some(&*session.account)), (limits.all, None)] {
            if let (count, Some(id)) = oldest(&own, of)
                && count >= most
            {
                own.remove(&id);
                self.displaced.fetch_add(1, Ordering::Relaxed);
            }
        }
        own.insert(id, Arc::new(session));
    }

    /// Returns who sends a request with this value of the cookie.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn check(&self, cookie: &str, idle: Duration) -> Result<Admitted, Refused> {
        self.check_at(cookie, idle, now_s())
    }

    fn check_at(&self, cookie: &str, idle: Duration, now: u64) -> Result<Admitted, Refused> {
        let Cookie { secret, used_s, signature } = Cookie::parse(cookie).ok_or(Refused::Malformed)?;
        let id = SessionId::of(&secret);
        self.config_store.catch_up();
        let session = self.find(&id).ok_or(Refused::Unknown)?;
        let mut key = [0; SECRET_LEN];
        let is_key =
            Base64UrlUnpadded::decode(&*session.key, &mut key).is_ok_and(|key| key.len() == SECRET_LEN);
        // `verify_slice` compares in constant time.
        if !is_key || mac(&key, used_s).verify_slice(&signature).is_err() {
            return Err(Refused::Malformed);
        }
        let account = self.account(&session, now).ok_or(Refused::Ended)?;
        let idle_s = now.saturating_sub(used_s);
        if idle_s > idle.as_secs() {
            return Err(Refused::Ended);
        }
        let refreshed = (idle_s >= (idle.as_secs() / 8).clamp(1, REFRESH_MAX_S))
            .then(|| self::cookie(&secret, &key, now));
        Ok(Admitted { account: account.name.clone(), role: account.role, id, refreshed })
    }

    /// Returns whether this session exists and is not over. It may be idle.
    pub fn is_valid(&self, id: &SessionId) -> bool {
        self.config_store.catch_up();
        self.find(id).is_some_and(|session| self.account(&session, now_s()).is_some())
    }

    fn find(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.known.sessions.load().get(id).cloned().or_else(|| sync::lock(&self.own).get(id).cloned())
    }

    /// Returns the account of a session that is not over.
    fn account(&self, session: &Session, now: u64) -> Option<Arc<Account>> {
        let account = self.accounts.get(&session.account)?;
        (account.epoch() == session.epoch && now < session.ends_s).then_some(account)
    }

    /// Ends a session. Waits for the disk.
    ///
    /// # Errors
    /// The configuration store cannot be written.
    pub fn end(&self, id: &SessionId) -> Result<(), KeyError> {
        let was_own = sync::lock(&self.own).remove(id).is_some();
        if was_own && !self.known.sessions.load().contains_key(id) {
            return Ok(());
        }
        self.config_store
            .propose(vec![Change::remove(TABLE, id.0.clone())])
            .map(drop)
            .map_err(KeyError::Write)
    }

    /// Reads the sessions that other nodes have begun. Waits for other nodes.
    pub fn refresh(&self) {
        if let Err(error) = self.config_store.catch_up_now() {
            tracing::debug!("sessions: those of other nodes cannot be read: {error}");
        }
    }

    /// Returns the number of valid sessions of each account.
    pub fn counts(&self) -> HashMap<Arc<str>, usize> {
        let (now, mut counts) = (now_s(), HashMap::new());
        let (known, own) = (self.known.sessions.load(), sync::lock(&self.own));
        for session in known.values().chain(own.values()) {
            if let Some(account) = self.account(session, now) {
                *counts.entry(account.name.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// Number of sessions that ended on this node because there were too many.
    pub fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }
}

/// Maximum time in seconds after which the cookie gets a new time of use.
const REFRESH_MAX_S: u64 = 60;

/// Contents of a cookie: `SECRET.TIME.SIGNATURE`.
struct Cookie {
    secret: [u8; SECRET_LEN],
    used_s: u64,
    signature: [u8; 32],
}

impl Cookie {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let (secret, time, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || time.len() > 16 {
            return None;
        }
        let bytes = |text: &str| {
            let mut bytes = [0; 32];
            let decoded = Base64UrlUnpadded::decode(text, &mut bytes).ok()?;
            (decoded.len() == 32).then_some(bytes)
        };
        Some(Self {
            secret: bytes(secret)?,
            used_s: u64::from_str_radix(time, 16).ok()?,
            signature: bytes(signature)?,
        })
    }
}

fn cookie(secret: &[u8; SECRET_LEN], key: &[u8; SECRET_LEN], used_s: u64) -> String {
    let signature = mac(key, used_s).finalize().into_bytes();
    let [secret, signature] = [&secret[..], &signature[..]].map(Base64UrlUnpadded::encode_string);
    format!("{secret}.{used_s:x}.{signature}")
}

fn mac(key: &[u8; SECRET_LEN], used_s: u64) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.chain_update(used_s.to_le_bytes())
}

fn random() -> Result<[u8; SECRET_LEN], KeyError> {
    let mut random = [0; SECRET_LEN];
    getrandom::fill(&mut random).map_err(KeyError::Random)?;
    Ok(random)
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use configstore::LocalStore;

    use super::*;
    use crate::keys::Keys;

    const HOUR: Duration = Duration::from_secs(3_600);
    const LIMITS: SessionLimits =
        SessionLimits { lifetime: Duration::from_secs(43_200), idle: HOUR, per_account: 3, all: 5 };

    fn keys() -> Keys {
        let keys = Keys::open(Arc::new(LocalStore::in_memory())).unwrap();
        for name in ["ann", "bob", "eve"] {
            let account = Account::new(name, Role::Admin, String::new()).unwrap();
            keys.accounts().add(&account).unwrap();
        }
        keys
    }

    fn begin(keys: &Keys, name: &str) -> String {
        keys.sessions().begin(&keys.accounts().get(name).unwrap(), LIMITS).unwrap().cookie
    }

    fn valid(keys: &Keys, cookie: &str) -> bool {
        keys.sessions().check(cookie, HOUR).is_ok()
    }

    #[test]
    fn a_session_is_valid_until_it_is_idle_or_its_time_is_over() {
        let keys = keys();
        let sessions = keys.sessions();
        let mut cookie = begin(&keys, "ann");
        let began = now_s();
        let admitted = sessions.check_at(&cookie, HOUR, began).unwrap();
        assert_eq!((&*admitted.account, admitted.role), ("ann", Role::Admin));
        assert!(admitted.refreshed.is_none(), "it was just used");
        assert_eq!(sessions.check_at(&cookie, HOUR, began + 3_700).unwrap_err(), Refused::Ended, "idle");
        // Used each half hour, it lasts until its lifetime is over.
        let mut now = began;
        while now + 1_800 < began + 43_200 {
            now += 1_800;
            cookie = sessions.check_at(&cookie, HOUR, now).unwrap().refreshed.unwrap();
        }
        assert!(sessions.check_at(&cookie, HOUR, began + 43_190).is_ok());
        assert_eq!(sessions.check_at(&cookie, HOUR, began + 43_210).unwrap_err(), Refused::Ended);
    }

    #[test]
    fn a_cookie_that_was_changed_is_refused() {
        let keys = keys();
        let (cookie, other) = (begin(&keys, "ann"), begin(&keys, "ann"));
        let parts: Vec<_> = cookie.split('.').collect();
        let theirs: Vec<_> = other.split('.').collect();
        let later = format!("{:x}", now_s() + 600);
        for (bad, why) in [
            (format!("{}.{later}.{}", parts[0], parts[2]), Refused::Malformed),
            (format!("{}.{later}.{}", parts[0], theirs[2]), Refused::Malformed),
            (format!("{}.{}.{}", "A".repeat(43), parts[1], parts[2]), Refused::Unknown),
            (format!("{cookie}.x"), Refused::Malformed),
            (parts[0].to_owned(), Refused::Malformed),
            (String::new(), Refused::Malformed),
        ] {
            assert_eq!(keys.sessions().check(&bad, HOUR).unwrap_err(), why, "{bad}");
        }
        assert!(valid(&keys, &cookie) && valid(&keys, &other));
    }

    #[test]
    fn a_changed_or_removed_account_has_no_session() {
        let keys = keys();
        let (ann, bob, eve) = (begin(&keys, "ann"), begin(&keys, "bob"), begin(&keys, "eve"));
        keys.accounts().change("ann", Some(Role::Viewer), None).unwrap();
        keys.accounts().change("bob", None, Some("new".to_owned())).unwrap();
        keys.accounts().remove("eve", false).unwrap();
        keys.accounts().add(&Account::new("eve", Role::Admin, String::new()).unwrap()).unwrap();
        assert!([&ann, &bob, &eve].iter().all(|cookie| !valid(&keys, cookie)));
        assert!(keys.sessions().counts().is_empty());
        // The next login removes their records.
        begin(&keys, "ann");
        assert_eq!(keys.sessions().known.sessions.load().len(), 1);
    }

    #[test]
    fn a_session_that_was_ended_is_unknown_and_others_remain() {
        let keys = keys();
        let (one, other) = (begin(&keys, "ann"), begin(&keys, "ann"));
        let id = keys.sessions().check(&one, HOUR).unwrap().id;
        keys.sessions().end(&id).unwrap();
        assert_eq!(keys.sessions().check(&one, HOUR).unwrap_err(), Refused::Unknown);
        assert!(valid(&keys, &other));
        keys.sessions().end(&id).unwrap();
    }

    #[test]
    fn the_oldest_sessions_end_when_there_are_too_many() {
        let keys = keys();
        let of_ann: Vec<_> = (0..4).map(|_| begin(&keys, "ann")).collect();
        assert_eq!(of_ann.iter().filter(|cookie| valid(&keys, cookie)).count(), 3, "of one account");
        assert!(valid(&keys, &of_ann[3]));
        assert_eq!(keys.sessions().displaced(), 1);
        let of_others: Vec<_> = ["bob", "bob", "eve"].iter().map(|name| begin(&keys, name)).collect();
        assert_eq!(keys.sessions().counts().values().sum::<usize>(), 5, "of all accounts");
        assert!(valid(&keys, &of_others[2]));
        assert_eq!(keys.sessions().displaced(), 2);
    }

    #[test]
    fn sessions_of_this_node_alone_have_the_same_limits_and_can_be_ended() {
        let keys = keys();
        let (sessions, ann) = (keys.sessions(), keys.accounts().get("ann").unwrap());
        let mut cookies = Vec::new();
        for at in 0..5 {
            let (secret, key) = (random().unwrap(), random().unwrap());
            let now = now_s();
            let session = Session {
                account: ann.name.clone(),
                epoch: ann.epoch(),
                began_s: now + at,
                ends_s: now + 100,
                key: Base64UrlUnpadded::encode_string(&key).into(),
            };
            sessions.keep(SessionId::of(&secret), session, LIMITS);
            cookies.push(cookie(&secret, &key, now));
        }
        let now_valid: Vec<_> = cookies.iter().map(|cookie| valid(&keys, cookie)).collect();
        assert_eq!(now_valid, [false, false, true, true, true]);
        let id = sessions.check(&cookies[4], HOUR).unwrap().id;
        sessions.end(&id).unwrap();
        assert!(!valid(&keys, &cookies[4]));
    }
}
