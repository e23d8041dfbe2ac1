//! Routes of one connection that are too many for one turn. A client may have 100,000 subscriptions, and other clients
//! of its worker are not to wait for them.

use std::collections::{HashSet, VecDeque};
use std::vec;

use mqtt::Subscription;

use super::Worker;
use crate::connection::Connection;
use crate::ids::ConnectionId;
use crate::route::{Options, Route, RouteKind};
use crate::subscriptions::Subscriptions;

/// Maximum number of routes that one turn adds or removes for connections that begin or end: about a millisecond.
pub(super) const ROUTES_AT_ONCE: usize = 256;

/// Changes of routes that are left for later turns. Their number is bounded by that of the subscriptions of all
/// connections, and of routes that are in the index.
#[derive(Default)]
pub(super) struct RouteWork {
    removed: VecDeque<Removed>,
    restored: VecDeque<Restored>,
}

/// Routes of a connection that has ended. They lead nowhere: no later connection has its generation.
struct Removed {
    connection: ConnectionId,
    kind: RouteKind,
    filters: vec::IntoIter<Box<str>>,
}

/// Subscriptions of a resumed session whose routes for QoS 0 messages are not in the index.
struct Restored {
    connection: ConnectionId,
    filters: vec::IntoIter<Box<str>>,
    /// Filters that the client has subscribed to again meanwhile, whose routes are in the index.
    again: HashSet<Box<str>>,
}

impl RouteWork {
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.restored.is_empty()
    }

    /// Leaves routes of a resumed session for later turns.
    pub fn restore(&mut self, connection: ConnectionId, filters: Vec<Box<str>>) {
        if !filters.is_empty() {
            let (filters, again) = (filters.into_iter(), HashSet::new());
            self.restored.push_back(Restored { connection, filters, again });
        }
    }

    /// Notes that the index has the route of a subscription.
    pub fn note_route(&mut self, connection: ConnectionId, filter: &str) {
        let restored = self.restored.iter_mut().find(|restored| restored.connection == connection);
        if let Some(restored) = restored {
            restored.again.insert(filter.into());
        }
    }

    /// Ends the work for a session whose connection ends. Returns the filters that have no route.
    fn end_restore(&mut self, connection: ConnectionId) -> Vec<Box<str>> {
        let at = self.restored.iter().position(|restored| restored.connection == connection);
        let Some(Restored { filters, again, .. }) = at.and_then(|at| self.restored.remove(at)) else {
            return Vec::new();
        };
        filters.filter(|filter| !again.contains(filter)).collect()
    }
}

impl Worker {
    /// Removes the routes of a connection that ends, or leaves most of them for later turns.
    pub(super) fn remove_routes(
        &mut self,
        id: ConnectionId,
        kind: RouteKind,
        mut subscriptions: Subscriptions,
    ) {
        if !self.route_work.is_empty() {
            for filter in self.route_work.end_restore(id) {
                subscriptions.remove(&filter);
            }
        }
        if subscriptions.len() <= ROUTES_AT_ONCE {
            return subscriptions.for_each_filter(|filter| self.remove_subscription(id, kind, filter));
        }
        let (mut now, mut later): (Vec<Box<str>>, Vec<_>) = Default::default();
        // Groups are not to choose this member any more.
        subscriptions.for_each_filter(|filter| match Subscriptions::is_shared(filter) {
            true => now.push(Box::from(filter)),
            false => later.push(Box::from(filter)),
        });
        now.iter().for_each(|filter| self.remove_subscription(id, kind, filter));
        self.route_work.removed.push_back(Removed { connection: id, kind, filters: later.into_iter() });
    }

    /// Adds the route of a durable session's subscription for QoS 0 messages.
    pub(super) fn insert_route_qos0(
        &mut self,
        id: ConnectionId,
        text: &str,
        options: Options,
        subscription_id: u32,
    ) {
        let Ok(Subscription { filter, .. }) = Subscription::parse(text) else { return };
        let connection = self.connections.get(id.slot, id.generation);
        let kind = connection.map_or(RouteKind::ConnectionQos0, Connection::route_kind);
        let ConnectionId { worker, slot, generation } = id;
        let route = Route { slot, generation, subscription_id, index: worker.0, options, kind };
        if self.node.routes.insert(filter, route).is_err() {
            tracing::warn!("the routing index is full: a subscription gets no QoS 0 messages");
        }
    }

    /// Continues with routes that were left for later turns.
    pub(super) fn continue_route_work(&mut self) {
        let mut left = ROUTES_AT_ONCE;
        while left > 0
            && let Some(mut removed) = self.route_work.removed.pop_front()
        {
            for filter in removed.filters.by_ref().take(left) {
                self.remove_subscription(removed.connection, removed.kind, &filter);
                left -= 1;
            }
            if removed.filters.len() > 0 {
                self.route_work.removed.push_front(removed);
            }
        }
        while left > 0
            && let Some(mut restored) = self.route_work.restored.pop_front()
        {
            let id = restored.connection;
            for filter in restored.filters.by_ref().take(left) {
                left -= 1;
                // The subscription may be gone meanwhile, or have other options.
                let connection = self.connections.get(id.slot, id.generation);
                let subscription = connection.and_then(|connection| connection.subscriptions.get(&filter));
                if let Some((options, subscription_id)) = subscription {
                    self.insert_route_qos0(id, &filter, options, subscription_id);
                }
            }
            if restored.filters.len() > 0 {
                self.route_work.restored.push_front(restored);
            }
        }
    }
}
