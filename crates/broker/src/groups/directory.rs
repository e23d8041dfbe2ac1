//! Shared groups that this node knows, whichever worker or shard has members of them.

use std::collections::HashMap as StdHashMap;
use std::sync::{Arc, Mutex};

use foldhash::quality::FixedState;
use mqtt::{QoS, TopicFilter};
use routing::{Index, IndexLimits, Reader};
use shard::{Mutation, mutated};

use crate::ids::{ShardId, ShardSet};
use crate::peers::Members;
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::slots::Slots;
use crate::store::GroupName;

type HashMap<K, V> = StdHashMap<K, V, FixedState>;

/// The groups whose names hash to one shard, with their filters.
///
/// The worker that hosts the groups knows the connected members, and the members on other nodes. Any worker adds a
/// shard that has durable sessions in a group. A message that is published after that finds them.
///
/// **Invariant:** a group is here before a route leads to it, and after the last one is gone.
pub(crate) struct GroupDirectory {
    id: ShardId,
    filters: Arc<Index<Route>>,
    known: Mutex<Known>,
}

struct Known {
    groups: Slots<KnownGroup>,
    names: HashMap<GroupName, (u32, u32)>,
    /// Number of groups with each filter.
    uses: HashMap<Box<str>, u32>,
}

struct KnownGroup {
    name: GroupName,
    /// The worker that hosts the group has members of it.
    is_hosted: bool,
    /// Number of connected members on this node.
    connected: u32,
    /// Shards that have durable sessions in the group.
    shards: ShardSet,
    /// Members that other nodes were last notified of.
    announced: Members,
    /// Number of the next turn among the shards.
    turn: u64,
}

/// Slot and generation of a group in its directory.
pub(crate) type GroupSlot = (u32, u32);

/// Number of groups of one filter on one shard that a publisher is not charged for.
const FEW_GROUPS: u32 = 4;

/// Number of a filter's groups as publishers see it. It is rounded up to a power of two, and 0 while it is small, so
/// that the node's index changes rarely.
fn rounded(groups: u32) -> u32 {
    if groups <= FEW_GROUPS { 0 } else { groups.checked_next_power_of_two().unwrap_or(u32::MAX) }
}

impl GroupDirectory {
    pub fn new(id: ShardId, hash_key: [u8; 16]) -> Self {
        let [low, high] = [0, 8].map(|at| {
            let bytes: [u8; 8] = std::array::from_fn(|byte| hash_key[at + byte]);
            u64::from_le_bytes(bytes)
        });
        let hasher = FixedState::with_seed(low ^ high.rotate_left(24));
        let known = Known {
            groups: Slots::default(),
            names: HashMap::with_hasher(hasher.clone()),
            uses: HashMap::with_hasher(hasher),
        };
        Self { id, filters: Arc::new(Index::new(hash_key, IndexLimits::default())), known: Mutex::new(known) }
    }

    pub fn reader(&self) -> Reader<Route> {
        self.filters.reader()
    }

    /// Number that changes with each change of the filters.
    pub fn version(&self) -> u64 {
        self.filters.version()
    }

    pub fn find(&self, name: &GroupName) -> Option<GroupSlot> {
        sync::lock(&self.known).names.get(name).copied()
    }

    pub fn name(&self, slot: GroupSlot) -> Option<GroupName> {
        sync::lock(&self.known).groups.get(slot.0, slot.1).map(|group| group.name.clone())
    }

    /// Shards that have durable sessions in a group, and the number of a turn among them.
    pub fn take_turn(&self, slot: GroupSlot) -> (ShardSet, u64) {
        let mut known = sync::lock(&self.known);
        let group = known.groups.get_mut(slot.0, slot.1).filter(|_| !mutated(Mutation::ForgetGroups));
        let Some(group) = group else { return (ShardSet::EMPTY, 0) };
        group.turn = group.turn.wrapping_add(1);
        (group.shards, group.turn)
    }

    /// Makes room for members in the worker that hosts the group. Returns nothing when the node's index has no room for
    /// a new group.
    pub fn host(&self, routes: &Routes, name: &GroupName) -> Option<GroupSlot> {
        let mut known = sync::lock(&self.known);
        let slot = self.find_or_add(&mut known, routes, name)?;
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.is_hosted = true;
        }
        Some(slot)
    }

    /// Notes how many members of a group are connected to this node, and whether the worker has any members at all.
    pub fn hosts(&self, routes: &Routes, slot: GroupSlot, connected: u32, is_hosted: bool) {
        let mut known = sync::lock(&self.known);
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            (group.connected, group.is_hosted) = (connected, is_hosted);
            group.announce(routes);
        }
        self.drop_if_unused(&mut known, routes, slot);
    }

    /// Adds a shard that has durable sessions in a group. Returns false when the node's index has no room for a new
    /// group.
    pub fn add_shard(&self, routes: &Routes, name: &GroupName, shard: ShardId) -> bool {
        let mut known = sync::lock(&self.known);
        let Some(slot) = self.find_or_add(&mut known, routes, name) else { return false };
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.shards.insert(shard);
            group.announce(routes);
        }
        true
    }

    pub fn remove_shard(&self, routes: &Routes, name: &GroupName, shard: ShardId) {
        let mut known = sync::lock(&self.known);
        let Some(slot) = known.names.get(name).copied() else { return };
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.shards.remove(shard);
            group.announce(routes);
        }
        self.drop_if_unused(&mut known, routes, slot);
    }

    fn find_or_add(&self, known: &mut Known, routes: &Routes, name: &GroupName) -> Option<GroupSlot> {
        if let Some(slot) = known.names.get(name) {
            return Some(*slot);
        }
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let group = KnownGroup {
            name: name.clone(),
            is_hosted: false,
            connected: 0,
            shards: ShardSet::EMPTY,
            announced: Members::NONE,
            turn: 0,
        };
        let (slot, generation) = known.groups.insert(group);
        known.names.insert(name.clone(), (slot, generation));
        let uses = known.uses.entry(name.filter.clone()).or_default();
        *uses += 1;
        let uses = *uses;
        let route = Route { slot, generation, ..self.route(RouteKind::Group) };
        let mut inserted = self.filters.insert(filter, route).is_ok();
        if inserted && (uses == 1 || rounded(uses) != rounded(uses - 1)) {
            inserted = routes.insert(filter, self.route_of_groups(uses)).is_ok();
        }
        if !inserted {
            self.drop_if_unused(known, routes, (slot, generation));
            return None;
        }
        Some((slot, generation))
    }

    fn drop_if_unused(&self, known: &mut Known, routes: &Routes, (slot, generation): GroupSlot) {
        let is_used = |group: &KnownGroup| group.is_hosted || !group.shards.is_empty();
        if known.groups.get(slot, generation).is_none_or(is_used) {
            return;
        }
        let Some(KnownGroup { name, .. }) = known.groups.remove(slot, generation) else { return };
        known.names.remove(&name);
        let Ok(filter) = TopicFilter::parse(&name.filter) else { return };
        let Some(uses) = known.uses.get_mut(filter.as_str()) else { return };
        *uses -= 1;
        let uses = *uses;
        if uses == 0 {
            known.uses.remove(filter.as_str());
            routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
        } else if rounded(uses) != rounded(uses + 1) {
            // The route replaces one that exists, so there is room for it.
            let replaced = routes.insert(filter, self.route_of_groups(uses));
            debug_assert!(replaced.is_ok(), "a route is replaced by one of the same filter");
        }
        self.filters.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
    }

    fn route(&self, kind: RouteKind) -> Route {
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        Route { slot: 0, generation: 0, subscription_id: 0, index: self.id.0, options, kind }
    }

    /// Route of the node's index for the groups of a filter.
    fn route_of_groups(&self, uses: u32) -> Route {
        Route { subscription_id: rounded(uses), ..self.route(RouteKind::ShardGroups) }
    }

    pub fn check_empty(&self) {
        let known = sync::lock(&self.known);
        assert_eq!((known.groups.len(), known.names.len()), (0, 0), "groups without members");
        assert_eq!((known.uses.len(), self.filters.len()), (0, 0), "unused filters");
    }
}

impl KnownGroup {
    /// Notifies other nodes of the members that the group has here, when they have changed. Absent members do not count
    /// while others are connected. Nodes of a cluster with shards of its own know the absent ones themselves.
    fn announce(&mut self, routes: &Routes) {
        let absent = if routes.are_shards_agreed() { 0 } else { self.shards.len() };
        let members = match self.connected {
            0 => Members { count: absent, are_connected: false },
            count => Members { count, are_connected: true },
        };
        if members != self.announced {
            self.announced = members;
            routes.note_group(&self.name.text(), members);
        }
    }
}

#[cfg(test)]
mod tests {
    use mqtt::TopicName;

    use super::*;

    fn routes() -> Routes {
        Routes::new(Index::new([3; 16], IndexLimits::default()), [3; 16], false)
    }

    fn name(share: &str) -> GroupName {
        GroupName { share: share.into(), filter: "a/+".into() }
    }

    fn kinds(routes: &Routes) -> Vec<RouteKind> {
        let mut found = Vec::new();
        routes.reader().matches(TopicName::parse("a/b").expect("a topic"), &mut found);
        found.iter().map(|route| route.kind).collect()
    }

    #[test]
    fn a_group_lasts_while_it_has_connected_members_or_durable_ones() {
        let (routes, directory) = (routes(), GroupDirectory::new(ShardId(2), [3; 16]));
        assert!(directory.add_shard(&routes, &name("g"), ShardId(4)));
        assert_eq!(kinds(&routes), [RouteKind::ShardGroups]);
        let slot = directory.host(&routes, &name("g")).expect("room");
        assert_eq!(directory.find(&name("g")), Some(slot), "it is the same group");
        directory.hosts(&routes, slot, 1, true);
        directory.remove_shard(&routes, &name("g"), ShardId(4));
        assert!(directory.take_turn(slot).0.is_empty());
        assert_eq!(directory.name(slot), Some(name("g")));
        directory.hosts(&routes, slot, 0, false);
        assert_eq!(directory.find(&name("g")), None);
        assert!(kinds(&routes).is_empty());
        directory.check_empty();
    }

    #[test]
    fn groups_of_one_filter_have_one_route_of_the_node() {
        let (routes, directory) = (routes(), GroupDirectory::new(ShardId(2), [3; 16]));
        let names: Vec<_> = (0..20).map(|number| name(&number.to_string())).collect();
        for name in &names {
            assert!(directory.add_shard(&routes, name, ShardId(1)));
        }
        assert_eq!(kinds(&routes), [RouteKind::ShardGroups]);
        for name in &names {
            directory.remove_shard(&routes, name, ShardId(1));
            directory.remove_shard(&routes, name, ShardId(1));
        }
        assert!(kinds(&routes).is_empty());
        directory.check_empty();
    }
}
