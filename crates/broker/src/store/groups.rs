//! The shared groups of one shard, their members, and the routes to them.

use std::sync::Arc;

use foldhash::quality::FixedState;
use mqtt::{QoS, ReasonCode, TopicFilter, TopicName};
use routing::{Index, Reader};

use super::group::{Choice, Group, GroupMember};
use super::{GroupName, Join, Member};
use crate::batch::Token;
use crate::ids::{GroupId, ShardId, Time};
use crate::match_cache::MatchCache;
use crate::message::{Message, MessageView};
use crate::peers::{Members, NodeIndex};
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::settings::SharedStrategy;
use crate::slots::Slots;

type HashMap<K, V> = std::collections::HashMap<K, V, FixedState>;

/// Groups whose name hashes to the shard.
pub(super) struct Groups {
    shard: ShardId,
    /// The node's index, in which the shard is the destination for all its groups.
    node_routes: Arc<Routes>,
    all: Slots<Group>,
    names: HashMap<GroupName, (u32, u32)>,
    /// Filters of the groups.
    routes: Arc<Index<Route>>,
    reader: Reader<Route>,
    /// Number of groups with each filter.
    uses: HashMap<Box<str>, u32>,
    /// Topics of messages with the groups that match.
    cache: MatchCache,
    /// Memory for [`Self::matching`].
    matches: Vec<Route>,
    /// Messages on their way to members on other nodes.
    pub offered: slab::Slab<Offered>,
    /// State of the choice among members.
    random: u64,
}

/// A message on its way to a member on another node.
#[derive(Debug)]
pub(super) struct Offered {
    pub group: GroupId,
    pub message: Message,
    /// Token of the request that waits; none for a message that another member left unfinished.
    pub token: Option<Token>,
    /// Node that the message was sent to.
    pub to: NodeIndex,
    /// Nodes that had no member, or no room.
    pub refused: Vec<NodeIndex>,
    /// Reason why a node did not accept it. The publisher gets it when no other member gets the message.
    pub declined: Option<ReasonCode>,
    /// Number of nodes that the message was offered to.
    pub offers: u8,
}

/// Nodes that may get a message of a group, in addition to the members on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllowedNodes<'a> {
    /// The message comes from another node, for a member on this one.
    pub only_here: bool,
    /// Nodes that have no member for it.
    pub not_to: &'a [NodeIndex],
}

/// Number of a filter's groups on one shard as publishers see it. It is rounded up to a power of two, and 0 while it is
/// small, so that the node's index changes rarely.
fn announced(groups: u32) -> u32 {
    if groups <= FEW_GROUPS { 0 } else { groups.checked_next_power_of_two().unwrap_or(u32::MAX) }
}

/// Number of groups of one filter on one shard that a publisher is not charged for.
const FEW_GROUPS: u32 = 4;

impl Groups {
    /// `random` seeds the choice among members.
    pub fn new(
        shard: ShardId,
        node_routes: Arc<Routes>,
        hash_key: [u8; 16],
        hasher: &FixedState,
        random: u64,
    ) -> Self {
        let routes = Arc::new(Index::new(hash_key, routing::IndexLimits::default()));
        let reader = routes.reader();
        Self {
            shard,
            node_routes,
            all: Slots::default(),
            names: HashMap::with_hasher(hasher.clone()),
            routes,
            reader,
            uses: HashMap::with_hasher(hasher.clone()),
            cache: MatchCache::new(random),
            matches: Vec::new(),
            offered: slab::Slab::new(),
            random: random | 1,
        }
    }

    pub fn get(&self, slot: u32, generation: u32) -> Option<&Group> {
        self.all.get(slot, generation)
    }

    pub fn find(&self, name: &GroupName) -> Option<GroupId> {
        let (slot, generation) = self.names.get(name).copied()?;
        Some(GroupId { shard: self.shard, slot, generation })
    }

    /// Adds a member to a group, or changes its options or its connection. Returns false when the node's index has no
    /// room for the group.
    pub fn join(&mut self, join: &Join) -> bool {
        let index = self.names.get(&join.group).copied().or_else(|| self.new_group(&join.group));
        let group = index.and_then(|(slot, generation)| self.all.get_mut(slot, generation));
        let has_joined = group.is_some();
        if let Some(group) = group {
            group.join(GroupMember {
                member: join.member,
                weight: 1,
                are_connected: false,
                connection: join.connection,
                options: join.options,
                subscription_id: join.subscription_id,
            });
        }
        self.announce_members(&join.group);
        has_joined
    }

    fn new_group(&mut self, name: &GroupName) -> Option<(u32, u32)> {
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let (slot, generation) = self.all.insert(Group::new(name.clone()));
        let route = Route { slot, generation, ..self.route(RouteKind::Group) };
        let uses = self.uses.entry(name.filter.clone()).or_default();
        *uses += 1;
        let uses = *uses;
        let mut inserted = self.routes.insert(filter, route).is_ok();
        if inserted && (uses == 1 || announced(uses) != announced(uses - 1)) {
            inserted = self.node_routes.insert(filter, self.route_of_groups(uses)).is_ok();
        }
        if !inserted {
            self.drop_group(slot, generation);
            return None;
        }
        self.names.insert(name.clone(), (slot, generation));
        Some((slot, generation))
    }

    fn route(&self, kind: RouteKind) -> Route {
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        Route { slot: 0, generation: 0, subscription_id: 0, index: self.shard.0, options, kind }
    }

    /// Route of the node's index for the groups of a filter.
    fn route_of_groups(&self, uses: u32) -> Route {
        Route { subscription_id: announced(uses), ..self.route(RouteKind::ShardGroups) }
    }

    fn drop_group(&mut self, slot: u32, generation: u32) {
        let Some(group) = self.all.remove(slot, generation) else { return };
        self.names.remove(group.name());
        let Ok(filter) = TopicFilter::parse(&group.name().filter) else { return };
        self.routes.remove(filter, (RouteKind::Group, self.shard.0, slot, generation));
        if let Some(uses) = self.uses.get_mut(filter.as_str()) {
            *uses -= 1;
            let uses = *uses;
            if uses == 0 {
                self.uses.remove(filter.as_str());
                self.node_routes.remove(filter, (RouteKind::ShardGroups, self.shard.0, 0, 0));
            } else if announced(uses) != announced(uses + 1) {
                // The route replaces one that exists, so there is room for it.
                let replaced = self.node_routes.insert(filter, self.route_of_groups(uses));
                debug_assert!(replaced.is_ok(), "a route is replaced by one of the same filter");
            }
        }
    }

    /// Removes a member, and the group with the last one.
    pub fn leave(&mut self, name: &GroupName, member: Member) {
        if let Some((slot, generation)) = self.names.get(name).copied()
            && let Some(group) = self.all.get_mut(slot, generation)
        {
            group.leave(member);
            let is_empty = group.is_empty();
            self.announce_members(name);
            if is_empty {
                self.drop_group(slot, generation);
            }
        }
    }

    /// Sets the members that a group has on another node. All of them take part as one that weighs as much.
    pub fn join_node(&mut self, name: &GroupName, node: NodeIndex, members: Members) {
        let member = Member::Node(node);
        if members.count == 0 {
            self.node_routes.note_routed(node, &name.text(), true);
            return self.leave(name, member);
        }
        let index = self.names.get(name).copied().or_else(|| self.new_group(name));
        self.node_routes.note_routed(node, &name.text(), index.is_some());
        if let Some(group) = index.and_then(|(slot, generation)| self.all.get_mut(slot, generation)) {
            group.join(GroupMember {
                member,
                weight: members.count,
                are_connected: members.are_connected,
                connection: None,
                options: Options::default().with_qos(QoS::ExactlyOnce),
                subscription_id: 0,
            });
        }
    }

    /// Notifies other nodes of the members that a group has here, when they have changed.
    fn announce_members(&mut self, name: &GroupName) {
        let index = self.names.get(name).copied();
        let Some(group) = index.and_then(|(slot, generation)| self.all.get_mut(slot, generation)) else {
            return;
        };
        let members = group.own_members();
        if members != group.announced {
            group.announced = members;
            self.node_routes.note_group(&name.text(), members);
        }
    }

    /// Chooses the member that gets a message. The second value is true when only a node that is not reachable has
    /// one: the message waits for that node.
    pub fn choose(
        &mut self,
        now: Time,
        id: GroupId,
        view: &MessageView<'_>,
        strategy: SharedStrategy,
        AllowedNodes { only_here, not_to }: AllowedNodes<'_>,
    ) -> (Option<Choice>, bool) {
        let mut is_waiting = false;
        let choice = match self.all.get_mut(id.slot, id.generation) {
            Some(group) if view.remaining_expiry(now).is_ok() => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let routes = &self.node_routes;
                // For a tenant's `#`, the topic that its mountpoint is below does not exist.
                let is_above = group.name().filter.strip_suffix("/#") == Some(view.topic);
                let is_its_own = |member: &GroupMember| !is_above || !member.options.is_behind_mountpoint();
                let may_go = |node: NodeIndex| !only_here && !not_to.contains(&node);
                let is_candidate = |member: &GroupMember| match member.member {
                    Member::Node(node) => may_go(node) && routes.is_up(node),
                    Member::Connection(_) | Member::Session(_) => is_its_own(member),
                };
                let is_cut_off = |member: &GroupMember| match member.member {
                    Member::Node(node) => may_go(node) && !routes.is_up(node),
                    Member::Connection(_) | Member::Session(_) => false,
                };
                let choice = group.choose(strategy, view, self.random, &is_candidate);
                choice.or_else(|| {
                    is_waiting = true;
                    group.choose(strategy, view, self.random, &is_cut_off)
                })
            }
            _ => None,
        };
        (choice, is_waiting)
    }

    /// Routes of the groups that match a topic. [`Self::reuse`] takes the memory back.
    pub fn matching(&mut self, topic: TopicName<'_>) -> Vec<Route> {
        let mut matches = std::mem::take(&mut self.matches);
        matches.clear();
        self.cache.routes(&self.reader, topic, &mut matches);
        self.reader.quiescent();
        matches
    }

    /// The only group that matches a topic, if the topic is known.
    pub fn known_match(&self, topic: &str) -> Option<GroupId> {
        match self.cache.find(topic, self.routes.version())?.routes() {
            [Route { kind: RouteKind::Group, slot, generation, .. }] => {
                Some(GroupId { shard: self.shard, slot: *slot, generation: *generation })
            }
            _ => None,
        }
    }

    pub fn reuse(&mut self, matches: Vec<Route>) {
        self.matches = matches;
    }

    /// Removes all groups, with their routes.
    pub fn clear(&mut self) {
        let all: Vec<(GroupName, (u32, u32))> =
            self.names.iter().map(|(name, index)| (name.clone(), *index)).collect();
        for (name, (slot, generation)) in all {
            let announced = self.all.get(slot, generation).map(|group| group.announced);
            if announced.is_some_and(|members| members != Members::default()) {
                self.node_routes.note_group(&name.text(), Members::default());
            }
            self.drop_group(slot, generation);
        }
    }

    pub fn check_empty(&self) {
        assert_eq!((self.all.len(), self.names.len()), (0, 0), "groups without members");
        assert_eq!((self.uses.len(), self.routes.len()), (0, 0), "unused filters");
    }
}
