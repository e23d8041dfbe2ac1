//! Names of recent publishers, for events about deliveries of their messages. It is empty while nobody selects such
//! events.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::connection::Connection;

/// Maximum number of publishers that are remembered.
const PUBLISHERS_MAX: usize = 1 << 16;
/// Maximum length of a name that is remembered.
const NAME_MAX: usize = 1024;

/// Names of a publisher.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub client_id: Arc<str>,
    pub username: Option<Box<str>>,
    /// Empty without one.
    pub mountpoint: Box<str>,
}

/// Client Identifiers and user names of publishers, by [`client_key`](crate::ids::client_key).
#[derive(Debug, Default)]
pub(crate) struct Publishers(Mutex<HashMap<u64, Names>>);

impl Publishers {
    /// Remembers a publisher. When there are too many, the others are forgotten first.
    pub fn note(&self, key: u64, connection: &Connection) {
        let client_id = connection.own_client_id();
        let username = connection.username().filter(|username| username.len() <= NAME_MAX);
        let mut known = sync::lock(&self.0);
        let is_known = known.get(&key).is_some_and(|known| *known.client_id == *client_id);
        if is_known || client_id.len() > NAME_MAX {
            return;
        }
        if known.len() >= PUBLISHERS_MAX {
            known.clear();
        }
        let (client_id, username) = (client_id.into(), username.map(Into::into));
        known.insert(key, Names { client_id, username, mountpoint: connection.mountpoint().into() });
    }

    pub fn get(&self, key: u64) -> Option<Names> {
        sync::lock(&self.0).get(&key).cloned()
    }

    pub fn forget(&self) {
        *sync::lock(&self.0) = HashMap::new();
    }
}
