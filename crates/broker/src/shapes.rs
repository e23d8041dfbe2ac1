//! Unusual arrangements of wildcards, and how many of them each client may add to the node's index.
//!
//! A match costs at worst one look at each arrangement, so the node has a limit for them. Only a SUBSCRIBE of a local
//! client can be refused for it. Filters that were granted once, here or on another node, are always routed.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use mqtt::TopicFilter;
use routing::{EVERYDAY_LEVELS_MAX, EVERYDAY_PLUS_MAX, ShapeOwners, ShapesFull};

use crate::node::OwnerKey;
use crate::routes::Routes;
use crate::settings;

/// Arrangements that one SUBSCRIBE adds. They are reserved until all its filters are in the index or refused.
#[derive(Default)]
pub struct ShapeReservations {
    /// `None` while nothing is reserved.
    routes: Option<Arc<Routes>>,
    filters: Vec<Box<str>>,
}

impl ShapeReservations {
    /// Reserves the arrangement of one more filter.
    ///
    /// # Errors
    /// If the node or one of the owners has too many.
    pub(crate) fn reserve(
        &mut self,
        routes: &Arc<Routes>,
        filter: TopicFilter<'_>,
        owners: &ShapeOwners,
    ) -> Result<(), ShapesFull> {
        if routes.reserve_shape(filter, owners)? {
            self.routes.get_or_insert_with(|| routes.clone());
            self.filters.push(filter.as_str().into());
        }
        Ok(())
    }

    /// Shared reservations; `None` when nothing is reserved.
    pub(crate) fn shared(self) -> Option<Arc<Self>> {
        (!self.filters.is_empty()).then(|| Arc::new(self))
    }
}

impl fmt::Debug for ShapeReservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.filters).finish()
    }
}

impl Drop for ShapeReservations {
    fn drop(&mut self) {
        let Some(routes) = &self.routes else { return };
        for text in &self.filters {
            if let Ok(filter) = TopicFilter::parse(text) {
                routes.release_shape(filter);
            }
        }
    }
}

/// Returns whether a well-formed filter may have an arrangement that is limited. It is cheap and takes no lock: `+` is
/// a whole level [MQTT-4.7.1-2].
pub fn may_be_unusual(filter: &str) -> bool {
    let count = |wanted: u8| filter.bytes().filter(|byte| *byte == wanted).count();
    let plus = count(b'+');
    plus > EVERYDAY_PLUS_MAX as usize || plus > 0 && count(b'/') >= EVERYDAY_LEVELS_MAX
}

/// Owners that a client's new arrangements are charged to: the client, its user and its mountpoint. Clients without a
/// user name share one owner.
pub fn owners(
    client_id: &str,
    user: OwnerKey,
    mountpoint: &str,
    settings: &settings::Routing,
) -> ShapeOwners {
    let key = |kind: u8, bytes: &[u8]| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(kind);
        hasher.write(bytes);
        hasher.finish().max(1)
    };
    let mountpoint_usage = if mountpoint.is_empty() { 0 } else { key(2, mountpoint.as_bytes()) };
    [
        (key(0, client_id.as_bytes()), settings.shapes_client_max),
        (key(1, &user.as_u32().to_le_bytes()), settings.shapes_user_max),
        (mountpoint_usage, settings.shapes_mountpoint_max),
    ]
}
