//! Routes to one shard in the index of this node, and its shared groups. [`ReplicaRoutes`](super::ReplicaRoutes) is the
//! view of a replica.

use std::collections::BTreeSet;
use std::sync::Arc;

use mqtt::{QoS, TopicFilter};
use routing::Destination as _;
use shard::LinkFilter;

use crate::ids::ShardId;
use crate::interest;
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::store::GroupName;

/// Routes of the subscriptions that durable sessions of a shard have. A shared subscription makes the shard known to
/// its group, see [`GroupDirectory`](crate::groups::GroupDirectory).
///
/// On a node alone other nodes learn of them. When the shard belongs to a cluster, each node keeps them itself: its
/// replica does, or a worker that learns them from the leader.
#[derive(Clone)]
pub(crate) struct ShardRoutes {
    routes: Arc<Routes>,
    shard: ShardId,
    is_agreed: bool,
}

impl ShardRoutes {
    pub fn new(routes: Arc<Routes>, shard: ShardId, is_agreed: bool) -> Self {
        Self { routes, shard, is_agreed }
    }

    /// Returns whether the shard belongs to a cluster.
    pub fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// Adds the route of a filter. Returns false when the index has no room.
    pub fn add(&self, text: &str) -> bool {
        if let Some(group) = GroupName::parse(text) {
            let is_known = self.routes.groups(group.shard()).add_shard(&self.routes, &group, self.shard);
            if self.is_agreed {
                self.routes.note_routed_of_shard(self.shard, text, is_known);
            }
            return is_known;
        }
        let link = LinkFilter::parse(text);
        let Ok(filter) = TopicFilter::parse(link.map_or(text, |link| link.filter)) else { return true };
        let route = self.route(link);
        match self.is_agreed {
            true => self.routes.insert_of_replica(filter, route).is_ok(),
            false => self.routes.insert(filter, route).is_ok(),
        }
    }

    pub fn remove(&self, text: &str) {
        if let Some(group) = GroupName::parse(text) {
            self.routes.groups(group.shard()).remove_shard(&self.routes, &group, self.shard);
            return self.routes.note_routed_of_shard(self.shard, text, true);
        }
        let link = LinkFilter::parse(text);
        let Ok(filter) = TopicFilter::parse(link.map_or(text, |link| link.filter)) else { return };
        let key = self.route(link).key();
        match self.is_agreed {
            true => self.routes.remove_of_replica(filter, key),
            false => self.routes.remove(filter, key),
        }
    }

    /// Adds the routes for which the index had no room, as far as it has some now. Only the worker of the shard calls
    /// this, so that no filter is removed meanwhile.
    pub fn retry(&self) {
        for text in self.routes.some_unrouted_of_shard(self.shard) {
            if !self.add(&text) {
                return;
            }
        }
    }

    /// Changes the routes to those of another state.
    pub fn replace(&self, before: &BTreeSet<Box<str>>, state: &shard::Shard) {
        let now = state.filters();
        now.iter().filter(|filter| !before.contains(&***filter)).for_each(|filter| {
            self.add(filter);
        });
        before.iter().filter(|filter| !now.contains(&***filter)).for_each(|filter| self.remove(filter));
    }

    fn route(&self, link: Option<LinkFilter<'_>>) -> Route {
        let (kind, options) = (RouteKind::Shard, Options::default().with_qos(QoS::ExactlyOnce));
        let (slot, generation) = link.map_or((0, 0), |link| interest::slot_of_links(link.origin));
        Route { slot, generation, subscription_id: 0, index: self.shard.0, options, kind }
    }
}

#[cfg(test)]
mod tests {
    use routing::{Index, IndexLimits};

    use super::*;
    use crate::peers::NodeIndex;

    fn routes(levels_max: usize) -> Arc<Routes> {
        let index = Index::new([7; 16], IndexLimits { levels_max, ..IndexLimits::default() });
        Arc::new(Routes::new(index, [7; 16], true))
    }

    fn of_shard(routes: &Arc<Routes>, shard: u16) -> ShardRoutes {
        ShardRoutes::new(routes.clone(), ShardId(shard), true)
    }

    #[test]
    fn filters_of_a_shard_are_routed_when_there_is_room_again() {
        let routes = routes(10);
        // As when the index had no room.
        for (shard, text) in [(3, "a/b"), (3, "a/#"), (3, "$share/g/a"), (4, "c")] {
            routes.note_routed_of_shard(ShardId(shard), text, false);
        }
        routes.note_routed(NodeIndex(3), "d", false);
        of_shard(&routes, 3).retry();
        assert_eq!(routes.unrouted(), 2, "those of another shard and of a node are left");
        let has = |text, shard| {
            let filter = TopicFilter::parse(text).expect("a filter");
            routes.any_of(filter, |route| route.kind == RouteKind::Shard && route.index == shard)
        };
        assert!(has("a/b", 3) && has("a/#", 3) && !has("c", 4) && !has("$share/g/a", 3));
    }

    #[test]
    fn a_filter_without_room_is_noted_until_it_is_removed() {
        let routes = routes(1);
        let of_shard = of_shard(&routes, 3);
        assert!(!of_shard.add("a/b"));
        of_shard.retry();
        assert_eq!(routes.unrouted(), 1);
        of_shard.remove("a/b");
        of_shard.retry();
        assert_eq!(routes.unrouted(), 0);
    }
}
