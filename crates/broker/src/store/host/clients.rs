//! Who is connected, by Client Identifier.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashTable;
use shard::SessionUid;

use crate::dense::Dense;
use crate::ids::{ConnectionId, WorkerId};
use crate::node::OwnerKey;
use crate::store::{Claim, Release};

/// The clients of one shard. The table has places only: it is half empty whenever it has grown, and a client is ten times a place.
pub(super) struct Clients {
    hasher: FixedState,
    places: HashTable<u32>,
    all: Dense<Client>,
}

/// Somebody who is connected, or whose claim or release is under way.
#[derive(Debug)]
pub(super) struct Client {
    client_id: Arc<str>,
    /// [`NOBODY`] for none: an `Option` would take four bytes more.
    owner: ConnectionId,
    /// Whose it is.
    pub user: OwnerKey,
    /// What clients with durable sessions have, and those that are being taken over.
    dealings: Option<Box<Dealings>>,
}

const _: () = assert!(size_of::<Client>() <= 40, "there is one for each connection");

#[derive(Debug, Default)]
pub(super) struct Dealings {
    /// Of the owner, when it is durable and its claim has been applied.
    pub session: Option<SessionUid>,
    /// The owner's claim is under way.
    pub claiming: bool,
    /// The owner has gone before its claim was applied.
    pub gone: Option<Box<Release>>,
    /// Commands about the client's session that are under way.
    pub underway: u32,
    /// A claim that waits until the owner has let go.
    pub pending: Option<Box<Claim>>,
}

/// No worker has this number: a node has fewer.
const NOBODY: ConnectionId = ConnectionId { worker: WorkerId(u16::MAX), slot: 0, generation: 0 };

impl Client {
    fn new(client_id: Arc<str>) -> Self {
        Self { client_id, owner: NOBODY, user: OwnerKey::NOBODY, dealings: None }
    }

    pub fn owner(&self) -> Option<ConnectionId> {
        (self.owner != NOBODY).then_some(self.owner)
    }

    /// A connection's from now on, with no session yet.
    pub fn owned_by(&mut self, connection: ConnectionId, user: OwnerKey) {
        (self.owner, self.user) = (connection, user);
        if let Some(dealings) = &mut self.dealings {
            dealings.session = None;
        }
    }

    pub fn disown(&mut self) {
        self.owner = NOBODY;
    }

    pub fn session(&self) -> Option<SessionUid> {
        self.dealings.as_ref()?.session
    }

    pub fn underway(&self) -> u32 {
        self.dealings.as_ref().map_or(0, |dealings| dealings.underway)
    }

    pub fn has_pending(&self) -> bool {
        self.dealings.as_ref().is_some_and(|dealings| dealings.pending.is_some())
    }

    /// Made when there are none.
    pub fn dealings(&mut self) -> &mut Dealings {
        self.dealings.get_or_insert_default()
    }

    /// `None` is the same as the default.
    pub fn dealings_if_any(&mut self) -> Option<&mut Dealings> {
        self.dealings.as_deref_mut()
    }

    /// Forgets dealings with nothing in them.
    pub fn settle(&mut self) {
        self.dealings.take_if(|dealings| {
            dealings.session.is_none()
                && !dealings.claiming
                && dealings.gone.is_none()
                && dealings.underway == 0
                && dealings.pending.is_none()
        });
    }
}

impl Clients {
    pub fn new(hasher: FixedState) -> Self {
        Self { hasher, places: HashTable::new(), all: Dense::default() }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn values(&self) -> impl Iterator<Item = &Client> {
        self.all.iter()
    }

    pub fn get(&self, client_id: &str) -> Option<&Client> {
        self.place(client_id).map(|place| &self.all[place])
    }

    pub fn get_mut(&mut self, client_id: &str) -> Option<&mut Client> {
        self.place(client_id).map(|place| &mut self.all[place])
    }

    pub fn get_or_insert(&mut self, client_id: &Arc<str>) -> &mut Client {
        let hash = self.hasher.hash_one(&**client_id);
        let found = self.places.find(hash, |place| *self.all[*place].client_id == **client_id);
        let place = match found {
            Some(place) => *place,
            None => self.insert(hash, client_id.clone()),
        };
        &mut self.all[place]
    }

    /// Forgets a client that there is no reason to remember.
    pub fn remove_if(&mut self, client_id: &str, is_idle: impl Fn(&Client) -> bool) {
        let (hash, all) = (self.hasher.hash_one(client_id), &self.all);
        let found = self.places.find_entry(hash, |place| *all[*place].client_id == *client_id);
        let Ok(found) = found else { return };
        if !is_idle(&all[*found.get()]) {
            return;
        }
        let (place, _) = found.remove();
        let last = self.all.len() as u32 - 1;
        if place != last {
            let hash = self.hasher.hash_one(&*self.all[last].client_id);
            let moved = self.places.find_mut(hash, |place| *place == last);
            *moved.expect("every client has its place in the table") = place;
        }
        self.all.swap_remove(place);
    }

    fn place(&self, client_id: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(client_id);
        self.places.find(hash, |place| *self.all[*place].client_id == *client_id).copied()
    }

    fn insert(&mut self, hash: u64, client_id: Arc<str>) -> u32 {
        let place = self.all.push(Client::new(client_id));
        let (hasher, all) = (&self.hasher, &self.all);
        self.places.insert_unique(hash, place, |place| hasher.hash_one(&*all[*place].client_id));
        place
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
            clients.get_or_insert(&name(number)).dealings().underway = number;
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
        assert_eq!((clients.len(), clients.places.len()), (0, 0));
    }

    #[test]
    fn only_dealings_with_nothing_in_them_are_forgotten() {
        let mut client = Client::new(name(0));
        client.dealings().underway = 1;
        client.settle();
        assert_eq!(client.underway(), 1);
        client.dealings().underway = 0;
        client.settle();
        assert!(client.dealings_if_any().is_none());
    }

    #[test]
    fn a_client_has_no_owner_until_it_is_told_of_one() {
        let mut client = Client::new(name(0));
        let owner = ConnectionId { worker: WorkerId(0), slot: 0, generation: 0 };
        assert_eq!(client.owner(), None);
        client.owned_by(owner, OwnerKey::NOBODY);
        assert_eq!(client.owner(), Some(owner));
        client.disown();
        assert_eq!(client.owner(), None);
    }
}
