//! Quotas: amounts of the node's resources that one user or one mountpoint may use.
//!
//! A resource is charged where it is acquired and released where it ends. The accounts of a user and of a mountpoint
//! are shared by all workers. A resource of one client alone is counted by its owner: its worker, or the shard of its
//! session.
//!
//! Only admission checks a limit ([`Payers::take`]). A resource that was granted before, or by another node, is charged
//! and never refused ([`Account::charge`]).

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::admin::ResourceUsage;
use crate::node::OwnerKey;
use crate::settings::Quota;

/// A resource that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resource {
    /// Connected clients.
    Connections,
    /// Sessions that outlive their connection.
    Sessions,
    /// Bytes of Topic Filters, Wills and Client Identifiers of connected clients.
    SessionBytes,
    /// Bytes of messages that wait for connected clients.
    QueuedBytes,
    /// Messages that clients have retained in the shards that this node leads: all clients of the cluster when its
    /// shards have replicas, otherwise this node's own clients.
    RetainedMessages,
    /// Bytes of these retained messages.
    RetainedBytes,
}

const RESOURCES: usize = 6;

/// Resources of one user or one mountpoint.
#[derive(Debug)]
pub struct Account {
    owner: OwnerKey,
    used: [AtomicU64; RESOURCES],
}

impl Account {
    fn of(owner: OwnerKey) -> Self {
        Self { owner, used: Default::default() }
    }

    pub fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize].load(Relaxed)
    }

    /// Charges `amount` when the total is then at most `max`. Otherwise returns false and charges nothing.
    pub fn take(&self, resource: Resource, amount: u64, max: u64) -> bool {
        let used = &self.used[resource as usize];
        let next = |used: u64| used.checked_add(amount).filter(|next| *next <= max);
        used.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Charges `amount` without a limit.
    pub fn charge(&self, resource: Resource, amount: u64) {
        self.used[resource as usize].fetch_add(amount, Relaxed);
    }

    /// Releases what was taken or charged.
    pub fn release(&self, resource: Resource, amount: u64) {
        let before = self.used[resource as usize].fetch_sub(amount, Relaxed);
        debug_assert!(before >= amount, "more {resource:?} released than taken");
    }

    /// All resources of the account, for operators.
    pub fn holdings(&self) -> ResourceUsage {
        ResourceUsage {
            connections: self.used(Resource::Connections),
            sessions: self.used(Resource::Sessions),
            session_bytes: self.used(Resource::SessionBytes),
            queued_bytes: self.used(Resource::QueuedBytes),
            retained_messages: self.used(Resource::RetainedMessages),
            retained_bytes: self.used(Resource::RetainedBytes),
        }
    }

    fn is_empty(&self) -> bool {
        self.holdings() == ResourceUsage::default()
    }

    /// Returns whether it has a resource that ends with clients and sessions. Retained messages stay.
    fn is_left_over(&self) -> bool {
        ResourceUsage { retained_messages: 0, retained_bytes: 0, ..self.holdings() }
            != ResourceUsage::default()
    }
}

/// Accounts that pay for a client's resources: its user's and its mountpoint's, if it has them.
#[derive(Clone, Debug, Default)]
pub struct Payers {
    user: Option<Arc<Account>>,
    mountpoint: Option<Arc<Account>>,
}

impl Payers {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.user.is_none() && self.mountpoint.is_none()
    }

    pub fn each(&self) -> impl Iterator<Item = &Account> {
        [&self.user, &self.mountpoint].into_iter().filter_map(Option::as_deref)
    }

    /// Charges `amount` to each payer when none of them then has more than `max`. Otherwise returns false and charges
    /// nothing.
    pub fn take(&self, resource: Resource, amount: u64, max: u64) -> bool {
        for (at, account) in self.each().enumerate() {
            if !account.take(resource, amount, max) {
                self.each().take(at).for_each(|account| account.release(resource, amount));
                return false;
            }
        }
        true
    }

    pub fn charge(&self, resource: Resource, amount: u64) {
        self.each().for_each(|account| account.charge(resource, amount));
    }

    pub fn release(&self, resource: Resource, amount: u64) {
        self.each().for_each(|account| account.release(resource, amount));
    }

    /// Amount of the payer that has most.
    pub fn most_used(&self, resource: Resource) -> u64 {
        self.each().map(|account| account.used(resource)).max().unwrap_or(0)
    }

    /// Keys of the user and of the mountpoint, for [`Quotas::payers`] of another node.
    pub fn owners(&self) -> (OwnerKey, OwnerKey) {
        let owner = |account: &Option<Arc<Account>>| account.as_ref().map_or(OwnerKey::NOBODY, |it| it.owner);
        (owner(&self.user), owner(&self.mountpoint))
    }

    pub fn user(&self) -> Option<&Arc<Account>> {
        self.user.as_ref()
    }

    pub fn mountpoint(&self) -> Option<&Arc<Account>> {
        self.mountpoint.as_ref()
    }
}

/// The accounts of a node. **Invariant:** an account exists as long as it is referenced or anything is charged to it.
#[derive(Debug, Default)]
pub struct Quotas {
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    by_owner: HashMap<OwnerKey, Arc<Account>>,
    /// Number of accounts at which unused ones are removed.
    sweep_at: usize,
}

/// Number of accounts up to which none is removed.
const ACCOUNTS_KEPT: usize = 1024;

impl Quotas {
    /// Account of an owner; `None` for clients without user name and mountpoint, which share nothing.
    pub fn account(&self, owner: OwnerKey) -> Option<Arc<Account>> {
        if owner == OwnerKey::NOBODY {
            return None;
        }
        let mut accounts = sync::lock(&self.accounts);
        if accounts.by_owner.len() >= accounts.sweep_at.max(ACCOUNTS_KEPT) {
            accounts.by_owner.retain(|_, account| Arc::strong_count(account) > 1 || !account.is_empty());
            accounts.sweep_at = 2 * accounts.by_owner.len();
        }
        Some(accounts.by_owner.entry(owner).or_insert_with(|| Arc::new(Account::of(owner))).clone())
    }

    /// Number of accounts that are charged for a resource that ends with clients and sessions.
    pub fn charged(&self) -> usize {
        let accounts = sync::lock(&self.accounts);
        accounts.by_owner.values().filter(|account| account.is_left_over()).count()
    }

    /// Payers for a client of `user` behind `mountpoint`; each is [`OwnerKey::NOBODY`] where there is none.
    pub fn payers(&self, user: OwnerKey, mountpoint: OwnerKey) -> Payers {
        let mountpoint = if user == mountpoint { OwnerKey::NOBODY } else { mountpoint };
        Payers { user: self.account(user), mountpoint: self.account(mountpoint) }
    }
}

impl Quota {
    /// Maximum amount of a resource for one user or mountpoint. `max` is the maximum for the node.
    pub fn share_of(&self, max: u64) -> u64 {
        (u128::from(max) * u128::from(self.user_percent) / 100).max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(key: u32) -> OwnerKey {
        OwnerKey::from_u32(key)
    }

    #[test]
    fn a_refused_amount_is_charged_to_nobody() {
        let quotas = Quotas::default();
        let tenant = quotas.account(owner(3)).expect("an account");
        let first = quotas.payers(owner(5), owner(3));
        let second = quotas.payers(owner(7), owner(3));
        assert!(first.take(Resource::Sessions, 6, 10));
        assert!(!second.take(Resource::Sessions, 6, 10), "the mountpoint has 6 already");
        assert_eq!(second.user().map(|user| user.used(Resource::Sessions)), Some(0));
        assert_eq!(tenant.used(Resource::Sessions), 6);
        first.release(Resource::Sessions, 6);
        assert!(second.take(Resource::Sessions, 6, 10));
    }

    #[test]
    fn clients_without_a_user_share_no_account() {
        let quotas = Quotas::default();
        let nobody = quotas.payers(OwnerKey::NOBODY, OwnerKey::NOBODY);
        assert!(nobody.take(Resource::Connections, u64::MAX, 0));
        assert_eq!(nobody.most_used(Resource::Connections), 0);
    }

    #[test]
    fn accounts_are_forgotten_when_nothing_is_charged_to_them() {
        let quotas = Quotas::default();
        let used = quotas.account(owner(2)).expect("an account");
        used.charge(Resource::Sessions, 1);
        drop(used);
        for key in 2..5 * ACCOUNTS_KEPT as u32 {
            quotas.account(owner(2 * key));
        }
        assert!(quotas.accounts.lock().expect("no panic").by_owner.len() <= 2 * ACCOUNTS_KEPT + 2);
        assert_eq!(quotas.account(owner(2)).expect("kept").used(Resource::Sessions), 1);
    }

    #[test]
    fn a_share_is_never_0() {
        let quota = Quota { user_percent: 90, ..Quota::default() };
        assert_eq!([0, 1, 10, 1000, u64::MAX].map(|max| quota.share_of(max))[..4], [1, 1, 9, 900]);
    }
}
