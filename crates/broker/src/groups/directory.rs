//! Shared groups that this node knows, whichever worker or shard has members of them.

use std::collections::HashMap as StdHashMap;
use std::sync::{Arc, Mutex};

use foldhash::quality::FixedState;
use mqtt::{QoS, TopicFilter, TopicName};
use routing::{Index, IndexLimits, Reader};
use shard::{Mutation, mutated};

use crate::ids::{ShardId, ShardSet};
use crate::peers::Members;
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::slots::Slots;
use crate::store::{GroupName, MemberKind};

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
    /// Shards with more than their share of requests of the worker that hosts the groups.
    full: ShardSet,
    names: HashMap<GroupName, (u32, u32)>,
    /// Number of groups with each filter.
    uses: HashMap<Box<str>, Uses>,
}

/// Number of groups with a filter.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    all: u32,
    /// Groups that have one member over all linked clusters.
    linked: u32,
}

struct KnownGroup {
    /// Name by which clients join.
    name: GroupName,
    /// The group has one member over all linked clusters.
    is_linked: bool,
    clients: KnownMembers,
    /// Sessions of linked clusters.
    links: KnownMembers,
    /// Number of the next turn among the shards.
    turn: u64,
}

/// Members of one kind.
#[derive(Debug, Default)]
struct KnownMembers {
    /// The worker that hosts the group has such members of it.
    is_hosted: bool,
    /// Number of connected ones on this node.
    connected: u32,
    /// Value of [`Hosted::only_in`].
    only_in: ShardSet,
    /// Shards that have such durable sessions.
    shards: ShardSet,
    /// Members that other nodes were last notified of.
    announced: Members,
}

/// Members of a group at its host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hosted {
    /// Number of members with a connection to this node.
    pub connected: u32,
    pub has_any: bool,
    /// Shards of the connected members, if a message for any of them goes to its shard. Empty otherwise.
    pub only_in: ShardSet,
}

/// Shards that have durable sessions in a group, and the number of a turn among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub clients: ShardSet,
    pub links: ShardSet,
    pub number: u64,
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
            full: ShardSet::EMPTY,
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

    /// Finds a group by the name by which members of any kind join it.
    pub fn find(&self, name: &GroupName) -> Option<GroupSlot> {
        sync::lock(&self.known).names.get(&*name.of_clients()).copied()
    }

    /// Name by which clients join a group.
    pub fn name(&self, slot: GroupSlot) -> Option<GroupName> {
        sync::lock(&self.known).groups.get(slot.0, slot.1).map(|group| group.name.clone())
    }

    /// Takes a turn among the shards that have durable sessions in a group.
    pub fn take_turn(&self, slot: GroupSlot) -> Turn {
        let mut known = sync::lock(&self.known);
        let group = known.groups.get_mut(slot.0, slot.1).filter(|_| !mutated(Mutation::ForgetGroups));
        let Some(group) = group else {
            return Turn { clients: ShardSet::EMPTY, links: ShardSet::EMPTY, number: 0 };
        };
        group.turn = group.turn.wrapping_add(1);
        Turn { clients: group.clients.shards, links: group.links.shards, number: group.turn }
    }

    /// Sets the shards with more than their share of requests of the worker that hosts the groups.
    pub fn set_full(&self, full: ShardSet) {
        sync::lock(&self.known).full = full;
    }

    /// Returns whether a message waits in a full shard, because one of its groups has no other member.
    pub fn awaits_shards(&self, topic: TopicName<'_>) -> bool {
        let mut routes = Vec::new();
        // Publishers ask only while a shard is full, ten times a second.
        self.reader().matches(topic, &mut routes);
        let known = sync::lock(&self.known);
        let groups = routes.iter().filter_map(|route| known.groups.get(route.slot, route.generation));
        groups.into_iter().any(|group| group.is_only_in(known.full))
    }

    /// Returns whether clients are members of a group that has one member over all linked clusters.
    pub fn has_clients_of_linked(&self, name: &GroupName) -> bool {
        let known = sync::lock(&self.known);
        let slot = known.names.get(name);
        let group = slot.and_then(|slot| known.groups.get(slot.0, slot.1));
        group.is_some_and(KnownGroup::has_clients_of_linked)
    }

    /// Names of the groups that have one member over all linked clusters, and clients as members.
    pub fn linked_with_clients(&self) -> Vec<GroupName> {
        let known = sync::lock(&self.known);
        let groups = known.names.values().filter_map(|slot| known.groups.get(slot.0, slot.1));
        groups.filter(|group| group.has_clients_of_linked()).map(|group| group.name.clone()).collect()
    }

    /// Makes room for members in the worker that hosts the group. Returns nothing when the node's index has no room for
    /// a new group.
    pub fn host(&self, routes: &Routes, name: &GroupName) -> Option<GroupSlot> {
        let mut known = sync::lock(&self.known);
        let slot = self.find_or_add(&mut known, routes, name)?;
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.change(routes, |group| group.of(name.kind()).is_hosted = true);
        }
        Some(slot)
    }

    /// Notes how many members of each kind are connected to this node, and whether the worker has any at all.
    pub fn hosts(&self, routes: &Routes, slot: GroupSlot, clients: Hosted, links: Hosted) {
        let mut known = sync::lock(&self.known);
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.change(routes, |group| {
                for (members, hosted) in [(&mut group.clients, clients), (&mut group.links, links)] {
                    (members.connected, members.is_hosted) = (hosted.connected, hosted.has_any);
                    members.only_in = hosted.only_in;
                }
            });
        }
        self.drop_if_unused(&mut known, routes, slot);
    }

    /// Adds a shard that has durable sessions in a group. Returns false when the node's index has no room for a new
    /// group.
    pub fn add_shard(&self, routes: &Routes, name: &GroupName, shard: ShardId) -> bool {
        let mut known = sync::lock(&self.known);
        let Some(slot) = self.find_or_add(&mut known, routes, name) else { return false };
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.change(routes, |group| group.of(name.kind()).shards.insert(shard));
        }
        true
    }

    pub fn remove_shard(&self, routes: &Routes, name: &GroupName, shard: ShardId) {
        let mut known = sync::lock(&self.known);
        let Some(slot) = known.names.get(&*name.of_clients()).copied() else { return };
        if let Some(group) = known.groups.get_mut(slot.0, slot.1) {
            group.change(routes, |group| group.of(name.kind()).shards.remove(shard));
        }
        self.drop_if_unused(&mut known, routes, slot);
    }

    fn find_or_add(&self, known: &mut Known, routes: &Routes, name: &GroupName) -> Option<GroupSlot> {
        let name = name.of_clients();
        if let Some(slot) = known.names.get(&*name) {
            return Some(*slot);
        }
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let is_linked = routes.is_linked(&name.share);
        let group = KnownGroup {
            name: name.clone().into_owned(),
            is_linked,
            clients: KnownMembers::default(),
            links: KnownMembers::default(),
            turn: 0,
        };
        let (slot, generation) = known.groups.insert(group);
        known.names.insert(name.clone().into_owned(), (slot, generation));
        let uses = known.uses.entry(name.filter.clone()).or_default();
        let before = self.route_of_groups(*uses);
        uses.all += 1;
        uses.linked += u32::from(is_linked);
        let (is_first, after) = (uses.all == 1, self.route_of_groups(*uses));
        let mut route = Route { slot, generation, ..self.route(RouteKind::Group) };
        if is_linked {
            route.options = route.options.of_linked_groups();
        }
        let mut inserted = self.filters.insert(filter, route).is_ok();
        if inserted && (is_first || before != after) {
            inserted = routes.insert(filter, after).is_ok();
        }
        if !inserted {
            self.drop_if_unused(known, routes, (slot, generation));
            return None;
        }
        Some((slot, generation))
    }

    fn drop_if_unused(&self, known: &mut Known, routes: &Routes, (slot, generation): GroupSlot) {
        let is_used = |group: &KnownGroup| group.clients.are_any() || group.links.are_any();
        if known.groups.get(slot, generation).is_none_or(is_used) {
            return;
        }
        let Some(KnownGroup { name, is_linked, .. }) = known.groups.remove(slot, generation) else { return };
        known.names.remove(&name);
        let Ok(filter) = TopicFilter::parse(&name.filter) else { return };
        let Some(uses) = known.uses.get_mut(filter.as_str()) else { return };
        let before = self.route_of_groups(*uses);
        uses.all -= 1;
        uses.linked -= u32::from(is_linked);
        let (is_last, after) = (uses.all == 0, self.route_of_groups(*uses));
        if is_last {
            known.uses.remove(filter.as_str());
            routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
        } else if before != after {
            // The route replaces one that exists, so there is room for it.
            let replaced = routes.insert(filter, after);
            debug_assert!(replaced.is_ok(), "a route is replaced by one of the same filter");
        }
        self.filters.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
    }

    fn route(&self, kind: RouteKind) -> Route {
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        Route { slot: 0, generation: 0, subscription_id: 0, index: self.id.0, options, kind }
    }

    /// Route of the node's index for the groups of a filter.
    fn route_of_groups(&self, uses: Uses) -> Route {
        let mut route = Route { subscription_id: rounded(uses.all), ..self.route(RouteKind::ShardGroups) };
        if uses.linked == uses.all {
            route.options = route.options.of_linked_groups();
        }
        route
    }

    pub fn check_empty(&self) {
        let known = sync::lock(&self.known);
        assert_eq!((known.groups.len(), known.names.len()), (0, 0), "groups without members");
        assert_eq!((known.uses.len(), self.filters.len()), (0, 0), "unused filters");
    }
}

impl KnownGroup {
    fn of(&mut self, kind: MemberKind) -> &mut KnownMembers {
        match kind {
            MemberKind::Client => &mut self.clients,
            MemberKind::Link => &mut self.links,
        }
    }

    /// Returns whether a message goes to one of these shards, whichever member gets it.
    fn is_only_in(&self, shards: ShardSet) -> bool {
        let is_only_in = |own: ShardSet| !own.is_empty() && own.iter().all(|shard| shards.contains(shard));
        match self.clients.is_hosted {
            true => is_only_in(self.clients.only_in),
            false => !self.links.are_any() && is_only_in(self.clients.shards),
        }
    }

    fn has_clients_of_linked(&self) -> bool {
        self.is_linked && self.clients.are_any()
    }

    /// Changes the members. Notifies other nodes, and links to other clusters.
    fn change(&mut self, routes: &Routes, change: impl FnOnce(&mut Self)) {
        let before = self.has_clients_of_linked();
        change(self);
        for kind in [MemberKind::Client, MemberKind::Link] {
            self.announce(routes, kind);
        }
        if before != self.has_clients_of_linked() {
            routes.interest().note_group(&self.name.text());
        }
    }

    /// Notifies other nodes of the members that the group has here, when they have changed. Absent members do not count
    /// while others are connected. Nodes of a cluster with shards of its own know the absent ones themselves.
    fn announce(&mut self, routes: &Routes, kind: MemberKind) {
        let of_kind = self.of(kind);
        let absent = if routes.are_shards_agreed() { 0 } else { of_kind.shards.len() };
        let members = match of_kind.connected {
            0 => Members { count: absent, are_connected: false },
            count => Members { count, are_connected: true },
        };
        if members != of_kind.announced {
            of_kind.announced = members;
            routes.note_group(&self.name.clone().of(kind).text(), members);
        }
    }
}

impl KnownMembers {
    fn are_any(&self) -> bool {
        self.is_hosted || !self.shards.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::LinkedPrefix;

    fn routes() -> Routes {
        let routes = Routes::new(Index::new([3; 16], IndexLimits::default()), [3; 16], false);
        routes.set_linked_prefix(LinkedPrefix::of("linked:"));
        routes
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
        let none = Hosted::default();
        directory.hosts(&routes, slot, Hosted { connected: 1, has_any: true, ..none }, none);
        directory.remove_shard(&routes, &name("g"), ShardId(4));
        assert!(directory.take_turn(slot).clients.is_empty());
        assert_eq!(directory.name(slot), Some(name("g")));
        directory.hosts(&routes, slot, none, none);
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

    /// A link wants a group while clients are members, and not because other links have joined it.
    #[test]
    fn a_linked_group_is_wanted_while_it_has_clients() {
        let (routes, directory) = (routes(), GroupDirectory::new(ShardId(2), [3; 16]));
        let (group, plain) = (name("linked:g"), name("g"));
        let of_links = group.clone().of(MemberKind::Link);
        let wanted_route = || {
            let filter = TopicFilter::parse("a/+").expect("a filter");
            routes.any_of(filter, |route| !route.options.is_of_linked_groups())
        };
        assert!(directory.add_shard(&routes, &of_links, ShardId(4)));
        let slot = directory.find(&group).expect("known by both names");
        assert_eq!(directory.find(&of_links), Some(slot));
        assert!(!directory.has_clients_of_linked(&group) && directory.linked_with_clients().is_empty());
        assert!(!wanted_route());
        assert!(directory.add_shard(&routes, &group, ShardId(5)));
        assert!(directory.has_clients_of_linked(&group));
        assert_eq!(directory.linked_with_clients(), std::slice::from_ref(&group));
        let turn = directory.take_turn(slot);
        assert!(turn.clients.contains(ShardId(5)) && !turn.clients.contains(ShardId(4)));
        assert!(turn.links.contains(ShardId(4)) && !turn.links.contains(ShardId(5)));
        assert!(directory.add_shard(&routes, &plain, ShardId(5)));
        assert!(!directory.has_clients_of_linked(&plain), "a group of its cluster");
        assert!(wanted_route());
        directory.remove_shard(&routes, &plain, ShardId(5));
        assert!(!wanted_route());
        directory.remove_shard(&routes, &group, ShardId(5));
        assert!(!directory.has_clients_of_linked(&group));
        directory.remove_shard(&routes, &of_links, ShardId(4));
        directory.check_empty();
    }
}
