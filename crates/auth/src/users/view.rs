//! View of the users in the configuration store, for look-ups at CONNECT.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use access::{Admission, Grants, Principal, Validity};
use arc_swap::ArcSwap;
use configstore::{Applied, Revision, View};

use super::UserRecord;
use crate::password_hash::{PasswordHash, ScramKeys};
use crate::rules::RuleSet;

/// User, prepared for look-ups.
#[derive(Debug)]
pub struct User {
    pub hash: Option<Arc<PasswordHash>>,
    pub scram: Option<ScramKeys>,
    pub enabled: bool,
    /// Revision of the last change.
    pub revision: Revision,
    /// `None` for a user with default rights.
    pub principal: Option<Arc<Principal>>,
    /// `None` for an invalid record.
    pub epoch: Option<u64>,
    /// Validity of the admissions of this epoch.
    validity: Arc<Validity>,
    leaves_clients: bool,
}

impl User {
    pub fn admission(&self) -> Admission {
        let (principal, validity) = (self.principal.clone(), Some(self.validity.clone()));
        Admission { principal, validity, ..Admission::default() }
    }

    /// Keeps the validity of the previous record if its clients stay connected; otherwise returns the validity that
    /// ends.
    fn follow(&mut self, before: &Self) -> Option<Arc<Validity>> {
        if self.epoch.is_none() || self.epoch != before.epoch {
            return Some(before.validity.clone());
        }
        self.validity = before.validity.clone();
        None
    }
}

/// View of the table of users. It has many small maps, so that a change copies one of them and a look-up takes no lock.
#[derive(Debug)]
pub struct UserView {
    shards: Box<[ArcSwap<Shard>]>,
    hasher: RandomState,
    len: AtomicUsize,
    kinds: ArcSwap<Kinds>,
    /// Number of times that admissions by a record ended.
    revocations: AtomicU64,
    /// Held while changes are applied.
    counts: Mutex<Counts>,
}

type Shard = HashMap<Box<str>, Arc<User>>;

/// Costs of hashes, with an example of each, and kinds of SCRAM keys, with the number of users that have them.
#[derive(Debug, Default)]
struct Counts {
    costs: HashMap<Cost, (usize, Arc<PasswordHash>)>,
    scram: HashMap<(u32, usize), usize>,
    removed: RemovedUsers,
}

/// Clients that stay connected although their users were removed. The next user with the same name inherits them.
#[derive(Debug, Default)]
struct RemovedUsers(HashMap<Box<str>, Weak<Validity>>);

impl RemovedUsers {
    fn put(&mut self, name: &str, validity: &Arc<Validity>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, validity| validity.strong_count() > 0);
            self.0.reserve(self.0.len().max(16));
        }
        self.0.insert(name.into(), Arc::downgrade(validity));
    }

    /// Returns the validity; `None` when none of its clients is connected.
    fn take(&mut self, name: &str) -> Option<Arc<Validity>> {
        self.0.remove(name)?.upgrade()
    }

    fn into_standings(self) -> impl Iterator<Item = Arc<Validity>> {
        self.0.into_values().filter_map(|validity| validity.upgrade())
    }
}

type Cost = (u8, u32, u32, u32);

/// [`Counts`] in a fixed order, for the choice of decoys.
#[derive(Debug, Default)]
pub struct Kinds {
    /// Hashes, each with the number of users up to it.
    hashes: Vec<(usize, Arc<PasswordHash>)>,
    /// Iterations and length of the salt.
    pub scram: Vec<(u32, usize)>,
}

impl Kinds {
    /// Returns one of the hashes, as often as users have its cost. The same number gives the same hash.
    pub fn decoy(&self, number: u64) -> Option<&Arc<PasswordHash>> {
        let (total, _) = self.hashes.last()?;
        let at = (number % (*total).max(1) as u64) as usize;
        self.hashes.get(self.hashes.partition_point(|(up_to, _)| *up_to <= at)).map(|(_, hash)| hash)
    }
}

impl Default for UserView {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| ArcSwap::default()).collect(),
            hasher: RandomState::new(),
            len: AtomicUsize::new(0),
            kinds: ArcSwap::default(),
            revocations: AtomicU64::new(0),
            counts: Mutex::default(),
        }
    }
}

impl UserView {
    pub fn get(&self, name: &str) -> Option<Arc<User>> {
        self.shards[self.shard(name)].load().get(name).cloned()
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub fn kinds(&self) -> arc_swap::Guard<Arc<Kinds>> {
        self.kinds.load()
    }

    /// Returns a number that is constant for a name in this process.
    pub fn number(&self, name: &str) -> u64 {
        self.hasher.hash_one((name, "decoy"))
    }

    pub fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    /// Ends admissions. Called after the change is in force, so that reconnecting clients see it.
    fn end(&self, standings: &[Arc<Validity>]) {
        standings.iter().for_each(|validity| validity.end());
        if !standings.is_empty() {
            self.revocations.fetch_add(1, Ordering::Release);
        }
    }

    fn shard(&self, name: &str) -> usize {
        self.hasher.hash_one(name) as usize % SHARDS
    }

    fn publish(&self, counts: &Counts) {
        let mut costs: Vec<_> = counts.costs.iter().collect();
        costs.sort_by_key(|(cost, _)| **cost);
        let mut up_to = 0;
        let hashes = costs.into_iter().map(|(_, (count, hash))| {
            up_to += count;
            (up_to, hash.clone())
        });
        let mut scram: Vec<_> = counts.scram.keys().copied().collect();
        scram.sort_unstable();
        self.kinds.store(Arc::new(Kinds { hashes: hashes.collect(), scram }));
    }
}

impl Counts {
    fn add(&mut self, user: &User) {
        if let Some(hash) = &user.hash {
            let room = self.costs.len() < COSTS_MAX;
            match self.costs.get_mut(&hash.cost()) {
                Some((count, _)) => *count += 1,
                None if room => {
                    self.costs.insert(hash.cost(), (1, hash.clone()));
                }
                None => {}
            }
        }
        if let Some(keys) = &user.scram {
            *self.scram.entry((keys.iterations, keys.salt.len())).or_default() += 1;
        }
    }

    fn remove(&mut self, user: &User) {
        if let Some(hash) = &user.hash
            && let Some((count, _)) = self.costs.get_mut(&hash.cost())
        {
            *count -= 1;
            if *count == 0 {
                self.costs.remove(&hash.cost());
            }
        }
        if let Some(keys) = &user.scram {
            let kind = (keys.iterations, keys.salt.len());
            if let Some(count) = self.scram.get_mut(&kind) {
                *count -= 1;
                if *count == 0 {
                    self.scram.remove(&kind);
                }
            }
        }
    }
}

impl View for UserView {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::new()).collect();
        let (mut counts, mut len) = (Counts::default(), 0);
        let mut now = sync::lock(&self.counts);
        let mut ended = Vec::new();
        for record in records {
            let mut user = read(record.key, record.value.unwrap_or_default(), record.revision);
            if let Some(before) = self.get(record.key) {
                ended.extend(user.follow(&before));
            }
            counts.add(&user);
            shards[self.shard(record.key)].insert(record.key.into(), Arc::new(user));
            len += 1;
        }
        // Whether such a user existed again meanwhile is unknown.
        ended.extend(std::mem::replace(&mut *now, counts).removed.into_standings());
        for (shard, new) in self.shards.iter().zip(shards) {
            let new = Arc::new(new);
            let before = shard.swap(new.clone());
            let gone = before.iter().filter(|(name, _)| !new.contains_key(*name));
            ended.extend(gone.map(|(_, user)| user.validity.clone()));
        }
        self.len.store(len, Ordering::Release);
        self.publish(&now);
        self.end(&ended);
        Ok(())
    }

    fn apply(&self, changes: &[Applied<'_>]) {
        let mut counts = sync::lock(&self.counts);
        let mut shards: HashMap<usize, Shard> = HashMap::new();
        let mut len = self.len();
        let mut ended = Vec::new();
        for change in changes {
            let at = self.shard(change.key);
            let shard = shards.entry(at).or_insert_with(|| Shard::clone(&self.shards[at].load()));
            let old = match change.value {
                Some(value) => {
                    let mut user = read(change.key, value, change.revision);
                    match shard.get(change.key) {
                        Some(before) => ended.extend(user.follow(before)),
                        None => user.validity = counts.removed.take(change.key).unwrap_or_default(),
                    }
                    counts.add(&user);
                    len += 1;
                    shard.insert(change.key.into(), Arc::new(user))
                }
                None => {
                    let old = shard.remove(change.key);
                    match &old {
                        Some(user) if user.leaves_clients => counts.removed.put(change.key, &user.validity),
                        Some(user) => ended.push(user.validity.clone()),
                        None => {}
                    }
                    old
                }
            };
            if let Some(old) = old {
                counts.remove(&old);
                len -= 1;
            }
        }
        for (at, shard) in shards {
            self.shards[at].store(Arc::new(shard));
        }
        self.len.store(len, Ordering::Release);
        self.publish(&counts);
        self.end(&ended);
    }
}

/// Reads a record. A user with an invalid record cannot log in, and no other link admits it.
fn read(name: &str, value: &str, revision: Revision) -> User {
    let read = || -> Result<User, String> {
        let record: UserRecord = serde_json::from_str(value).map_err(|error| error.to_string())?;
        record.check(name).map_err(|error| error.to_string())?;
        // A user with only SCRAM keys can also send a plain password, as with a password file.
        let hash = record.hash.as_deref().or(record.scram.as_deref());
        let hash = hash.and_then(|hash| PasswordHash::parse(hash).ok()).map(Arc::new);
        let of_hash = hash.as_ref().and_then(|hash| hash.scram());
        let keys = record.scram.as_deref().and_then(|keys| PasswordHash::parse(keys).ok()?.scram());
        let principal = principal(&record)?.map(Arc::new);
        Ok(User {
            hash,
            scram: keys.or(of_hash),
            enabled: record.enabled,
            revision,
            principal,
            epoch: Some(record.epoch()),
            validity: Arc::default(),
            leaves_clients: record.leaves_clients,
        })
    };
    read().unwrap_or_else(|why| {
        tracing::error!(
            user = name,
            "users: invalid record in the configuration store, refusing the user; {why}"
        );
        User {
            hash: None,
            scram: None,
            enabled: false,
            revision,
            principal: None,
            epoch: None,
            validity: Arc::default(),
            leaves_clients: false,
        }
    })
}

fn principal(record: &UserRecord) -> Result<Option<Principal>, String> {
    let numbers: Vec<String> = (1..=record.rules.len()).map(|number| number.to_string()).collect();
    let lines = numbers.iter().zip(&record.rules).map(|(number, line)| (number.as_str(), line.as_str()));
    let grants: Option<Box<dyn Grants>> = match record.rules.is_empty() {
        true => None,
        false => Some(Box::new(RuleSet::parse_lines(lines).map_err(|(_, error)| error.to_string())?)),
    };
    let says = record.superuser
        || record.tenant.is_some()
        || !record.attributes.is_empty()
        || record.rates.is_some()
        || grants.is_some();
    let attributes =
        record.attributes.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    Ok(says.then(|| Principal {
        superuser: record.superuser,
        mountpoint: record.tenant.as_ref().map(|tenant| format!("{tenant}/").into()),
        attributes: attributes.collect(),
        grants,
        rates: record.rates.map(Into::into),
        link: None,
    }))
}

const SHARDS: usize = 1_024;
/// Maximum number of hash costs from which decoys are chosen.
const COSTS_MAX: usize = 64;
