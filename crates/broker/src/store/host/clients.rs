//! Connected clients, by Client Identifier.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use shard::SessionUid;

use crate::dense::Dense;
use crate::ids::{ConnectionId, WorkerId};
use crate::node::OwnerKey;
use crate::store::host::producers::Producer;
use crate::store::{Claim, Release};

/// The clients of one shard. The table contains indexes only: it is half empty whenever it has grown, and a client is
/// ten times as large as an index.
pub(super) struct Clients {
    hasher: FixedState,
    indexes: HashTable<u32>,
    all: Dense<Client>,
}

/// A client that is connected, or whose claim or release is in progress.
#[derive(Debug)]
pub(super) struct Client {
    client_id: Arc<str>,
    /// Owner; [`NOBODY`] for none: an `Option` would take four bytes more.
    owner: ConnectionId,
    /// Key of the user and tenant.
    pub user: OwnerKey,
    /// State of clients with durable sessions, and of those that are being taken over.
    claim_state: Option<Box<ClaimState>>,
}

const _: () = assert!(size_of::<Client>() <= 40, "there is one for each connection");

#[derive(Debug, Default)]
pub(super) struct ClaimState {
    /// Session of the owner, when it is durable and its claim has been applied.
    pub session: Option<SessionUid>,
    /// A claim is in progress: that of the owner, or of a connection whose worker is gone. No other one is proposed
    /// until it is applied.
    pub claiming: bool,
    /// Connection whose claim is in progress, by its number in the state, when there is no owner because its worker is
    /// gone. The worker sends the claim again in its next round.
    pub lost: Option<(Producer, u64)>,
    /// The owner has disconnected before its claim was applied.
    pub gone: Option<Box<Release>>,
    /// Number of commands about the client's session that are in progress.
    pub underway: u32,
    /// A claim that waits until the previous owner has released the session, or until the claim of a worker that is
    /// gone is applied.
    pub pending: Option<Box<Claim>>,
}

/// No worker has this number: a node has fewer.
const NOBODY: ConnectionId = ConnectionId { worker: WorkerId(u16::MAX), slot: 0, generation: 0 };

impl Client {
    fn new(client_id: Arc<str>) -> Self {
        Self { client_id, owner: NOBODY, user: OwnerKey::NOBODY, claim_state: None }
    }

    pub fn client_id(&self) -> Arc<str> {
        self.client_id.clone()
    }

    pub fn owner(&self) -> Option<ConnectionId> {
        (self.owner != NOBODY).then_some(self.owner)
    }

    /// Sets the connection that owns the client from now on, with no session yet.
    pub fn set_owner(&mut self, connection: ConnectionId, user: OwnerKey) {
        (self.owner, self.user) = (connection, user);
        if let Some(claim_state) = &mut self.claim_state {
            claim_state.session = None;
        }
    }

    pub fn clear_owner(&mut self) {
        self.owner = NOBODY;
    }

    pub fn session(&self) -> Option<SessionUid> {
        self.claim_state.as_ref()?.session
    }

    pub fn underway(&self) -> u32 {
        self.claim_state.as_ref().map_or(0, |claim_state| claim_state.underway)
    }

    /// Returns whether a claim is in progress.
    pub fn is_claiming(&self) -> bool {
        self.claim_state.as_ref().is_some_and(|claim_state| claim_state.claiming)
    }

    /// Value of [`ClaimState::lost`].
    pub fn lost(&self) -> Option<(Producer, u64)> {
        self.claim_state.as_ref()?.lost
    }

    /// Value of [`ClaimState::gone`].
    pub fn gone(&self) -> Option<&Release> {
        self.claim_state.as_ref()?.gone.as_deref()
    }

    pub fn has_pending(&self) -> bool {
        self.claim_state.as_ref().is_some_and(|claim_state| claim_state.pending.is_some())
    }

    /// Claim state; created when there is none.
    pub fn claim_state(&mut self) -> &mut ClaimState {
        self.claim_state.get_or_insert_default()
    }

    /// Claim state, if there is one. `None` is the same as the default.
    pub fn existing_claim_state(&mut self) -> Option<&mut ClaimState> {
        self.claim_state.as_deref_mut()
    }

    /// Drops a claim state that is empty.
    pub fn settle(&mut self) {
        self.claim_state.take_if(|claim_state| {
            claim_state.session.is_none()
                && !claim_state.claiming
                && claim_state.gone.is_none()
                && claim_state.underway == 0
                && claim_state.pending.is_none()
        });
    }
}

impl Clients {
    pub fn new(hasher: FixedState) -> Self {
        Self { hasher, indexes: HashTable::new(), all: Dense::default() }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.all.iter_mut()
    }

    pub fn values(&self) -> impl Iterator<Item = &Client> {
        self.all.iter()
    }

    pub fn get(&self, client_id: &str) -> Option<&Client> {
        self.index_of(client_id).map(|index| &self.all[index])
    }

    pub fn get_mut(&mut self, client_id: &str) -> Option<&mut Client> {
        self.index_of(client_id).map(|index| &mut self.all[index])
    }

    pub fn get_or_insert(&mut self, client_id: &Arc<str>) -> &mut Client {
        let hash = self.hasher.hash_one(&**client_id);
        let found = self.indexes.find(hash, |index| *self.all[*index].client_id == **client_id);
        let index = match found {
            Some(index) => *index,
            None => self.insert(hash, client_id.clone()),
        };
        &mut self.all[index]
    }

    /// Removes a client that has no reason to be remembered.
    pub fn remove_if(&mut self, client_id: &str, is_idle: impl Fn(&Client) -> bool) {
        let (hash, all) = (self.hasher.hash_one(client_id), &self.all);
        let found = self.indexes.find_entry(hash, |index| *all[*index].client_id == *client_id);
        let Ok(found) = found else { return };
        if !is_idle(&all[*found.get()]) {
            return;
        }
        let (index, _) = found.remove();
        let last = self.all.len() as u32 - 1;
        if index != last {
            let hash = self.hasher.hash_one(&*self.all[last].client_id);
            let moved = self.indexes.find_mut(hash, |index| *index == last);
            *moved.expect("every client is in the table") = index;
        }
        self.all.swap_remove(index);
    }

    fn index_of(&self, client_id: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(client_id);
        self.indexes.find(hash, |index| *self.all[*index].client_id == *client_id).copied()
    }

    fn insert(&mut self, hash: u64, client_id: Arc<str>) -> u32 {
        let index = self.all.push(Client::new(client_id));
        let (hasher, all) = (&self.hasher, &self.all);
        self.indexes.insert_unique(hash, index, |index| hasher.hash_one(&*all[*index].client_id));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> Arc<str> {
        format!("client-{number}").into()
    }

    #[test]
    fn clients_are_found_whatever_left_before() {
        let mut clients = Clients::new(FixedState::with_seed(1));
        for number in 0..1000 {
            clients.get_or_insert(&name(number)).claim_state().underway = number;
        }
        for number in (0..1000).step_by(3) {
            clients.remove_if(&name(number), |client| client.underway() != number);
            assert!(clients.get(&name(number)).is_some());
            clients.remove_if(&name(number), |_| true);
            clients.remove_if(&name(number), |_| true);
        }
        assert_eq!(clients.len(), 666);
        for number in 0..1000 {
            let found = clients.get(&name(number)).map(Client::underway);
            assert_eq!(found, (number % 3 != 0).then_some(number));
        }
        for number in 0..1000 {
            clients.remove_if(&name(number), |_| true);
        }
        assert_eq!((clients.len(), clients.indexes.len()), (0, 0));
    }

    #[test]
    fn only_an_empty_claim_state_is_dropped() {
        let mut client = Client::new(name(0));
        client.claim_state().underway = 1;
        client.settle();
        assert_eq!(client.underway(), 1);
        client.claim_state().underway = 0;
        client.settle();
        assert!(client.existing_claim_state().is_none());
    }

    #[test]
    fn a_client_has_no_owner_until_one_is_set() {
        let mut client = Client::new(name(0));
        let owner = ConnectionId { worker: WorkerId(0), slot: 0, generation: 0 };
        assert_eq!(client.owner(), None);
        client.set_owner(owner, OwnerKey::NOBODY);
        assert_eq!(client.owner(), Some(owner));
        client.clear_owner();
        assert_eq!(client.owner(), None);
    }
}
