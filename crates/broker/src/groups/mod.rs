//! Shared groups: each message goes to one member, on this node or on another one.
//!
//! Each node decides for the messages that arrive here. The groups are divided among the workers by a hash of their
//! names. The [`GroupHost`] of a group knows the connections that are members, and how many members other nodes have.
//! Durable sessions are members where they are connected. While no member is connected, a message goes to a shard that
//! has durable sessions in the group, and the shard chooses one. All nodes know these shards ([`GroupDirectory`]), so
//! neither an election nor the end of a node hides a group.

mod appends;
mod directory;
mod group;
mod offers;
mod requests;

use std::sync::Arc;

use mqtt::{QoS, ReasonCode, TopicName};
use routing::Reader;

pub use self::appends::GroupAppend;
pub(crate) use self::directory::GroupDirectory;
pub use self::offers::Offer;
pub use self::requests::{GroupAnswer, GroupRequest, Join, Member};

use self::appends::Appends;
use self::directory::GroupSlot;
use self::group::Group;
use self::offers::{Delivery, Offered, Receiver};
use crate::admin::{Matches, Receiver as FoundReceiver};
use crate::batch::WorkerCommand;
use crate::counters::StoreCounters;
use crate::ids::{GroupId, SessionId, ShardId, Time};
use crate::match_cache::MatchCache;
use crate::message::MessageView;
use crate::peers::{Members, NodeIndex};
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::settings::Settings;
use crate::store::{GroupName, ShardOutput};

/// Groups whose names hash to one shard, on the worker of that shard, whether the node has a replica of it or not.
pub(crate) struct GroupHost {
    id: ShardId,
    settings: Arc<Settings>,
    /// The node's index, with the directory of the groups.
    routes: Arc<Routes>,
    reader: Reader<Route>,
    /// Members that this host knows, at the slots of the directory with their generations.
    groups: Vec<Option<(u32, Group)>>,
    /// Topics of messages with the groups that match.
    cache: MatchCache,
    /// Memory for [`Self::matching`].
    matches: Vec<Route>,
    /// Messages on their way to members that answer.
    offered: slab::Slab<Offered>,
    /// Bytes of these messages.
    offered_bytes: usize,
    appends: Appends,
    /// State of the choice among members.
    random: u64,
    pub counters: StoreCounters,
}

/// One member of a group as its host knows it.
#[derive(Clone, Copy, Debug)]
struct GroupMember {
    member: Member,
    /// Number of members that the entry represents: 1 unless it is another node.
    weight: u32,
    /// True when the members of the other node are connected.
    are_connected: bool,
    /// The durable session of the connection. Messages of QoS 1 and 2 go to its queue.
    session: Option<SessionId>,
    options: Options,
    subscription_id: u32,
}

/// Receivers that may get a message of a group.
#[derive(Clone, Copy, Debug)]
struct Allowed<'a> {
    /// The message comes from another node, for a member on this one.
    only_here: bool,
    /// Receivers that could not take it.
    not_to: &'a [Receiver],
}

/// The receiver of a message, and whether it waits because only a node that is not reachable has a member.
#[derive(Debug)]
enum Choice {
    Connection(GroupMember),
    Node { node: NodeIndex, options: Options, is_reachable: bool },
    Shard(ShardId),
}

impl GroupHost {
    /// `random` seeds the choice among members.
    pub fn new(id: ShardId, settings: Arc<Settings>, routes: Arc<Routes>, random: u64) -> Self {
        let reader = routes.groups(id).reader();
        Self {
            id,
            settings,
            routes,
            reader,
            groups: Vec::new(),
            cache: MatchCache::new(random),
            matches: Vec::new(),
            offered: slab::Slab::new(),
            offered_bytes: 0,
            appends: Appends::default(),
            random: random | 1,
            counters: StoreCounters::default(),
        }
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Bytes of messages that wait for the answers of members, and of those that wait for their turn. A message may be
    /// counted twice.
    pub fn bytes(&self) -> usize {
        self.offered_bytes + self.appends.bytes()
    }

    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
    }

    pub fn apply(&mut self, now: Time, request: GroupRequest, out: &mut ShardOutput) {
        match request {
            GroupRequest::Join(join) => self.join(&join, out),
            GroupRequest::Leave { group, connection, reply } => {
                self.leave(&group, Member::Connection(connection));
                if let Some(ticket) = reply {
                    let left = WorkerCommand::GroupAnswer(GroupAnswer::Left { connection, ticket });
                    out.commands.push((connection.worker, left));
                }
            }
            GroupRequest::JoinNode { group, node, members } => {
                self.join_node(&group, node, members);
                self.routes.joined();
            }
            GroupRequest::Append(append) => self.append(now, append, out),
            GroupRequest::DeliverLocally { group, message, refusal, token } => {
                self.deliver_locally(now, &group, &message, (refusal, token), out);
            }
            GroupRequest::DeliverOrphan { group, message, identity, token } => {
                self.deliver_orphan(now, &group, &message, (identity, token), out);
            }
            // Another member gets it [MQTT-4.8.2-4].
            GroupRequest::Bounce { group, message, token } => {
                self.deliver(now, group, &message, Delivery { token, ..Delivery::default() }, out);
            }
            GroupRequest::Offered { key, reason } => self.offer_answered(now, key, reason, out),
            GroupRequest::Accepted { key, reason } => self.accepted(now, key, reason, out),
        }
    }

    /// Adds a connection to a group, or changes its options.
    fn join(&mut self, join: &Join, out: &mut ShardOutput) {
        let Join { group, connection, session, options, subscription_id, reply, shapes: _ } = join;
        let has_joined = self.add(
            group,
            GroupMember {
                member: Member::Connection(*connection),
                weight: 1,
                are_connected: true,
                session: *session,
                options: *options,
                subscription_id: *subscription_id,
            },
        );
        if let Some((ticket, index)) = *reply {
            let connection = *connection;
            let reason = if has_joined { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
            let joined =
                WorkerCommand::GroupAnswer(GroupAnswer::Joined { connection, ticket, index, reason });
            out.commands.push((connection.worker, joined));
        }
    }

    /// Sets the members that a group has on another node. All of them take part as one that weighs as much.
    fn join_node(&mut self, name: &GroupName, node: NodeIndex, members: Members) {
        let member = Member::Node(node);
        if members.count == 0 {
            self.routes.note_routed(node, &name.text(), true);
            return self.leave(name, member);
        }
        let has_joined = self.add(
            name,
            GroupMember {
                member,
                weight: members.count,
                are_connected: members.are_connected,
                session: None,
                options: Options::default().with_qos(QoS::ExactlyOnce),
                subscription_id: 0,
            },
        );
        self.routes.note_routed(node, &name.text(), has_joined);
    }

    /// Adds or replaces a member. Returns false when the node's index has no room for the group.
    fn add(&mut self, name: &GroupName, member: GroupMember) -> bool {
        let Some((slot, generation)) = self.routes.groups(self.id).host(&self.routes, name) else {
            return false;
        };
        let at = slot as usize;
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, || None);
        }
        let known = &mut self.groups[at];
        if known.as_ref().is_none_or(|(known, _)| *known != generation) {
            *known = Some((generation, Group::default()));
        }
        if let Some((_, group)) = known {
            group.join(member);
        }
        self.report((slot, generation));
        true
    }

    /// Removes a member.
    fn leave(&mut self, name: &GroupName, member: Member) {
        let Some(slot) = self.routes.groups(self.id).find(name) else { return };
        if let Some(group) = self.group_mut(slot) {
            group.leave(member);
            self.report(slot);
        }
    }

    /// Notes in the directory how many members are connected. A group without members is dropped here.
    fn report(&mut self, slot: GroupSlot) {
        let Some(group) = self.group_mut(slot) else { return };
        let (connected, is_empty) = (group.connections(), group.is_empty());
        if is_empty {
            self.groups[slot.0 as usize] = None;
        }
        self.routes.groups(self.id).hosts(&self.routes, slot, connected, !is_empty);
    }

    fn group_mut(&mut self, slot: GroupSlot) -> Option<&mut Group> {
        group_at(&mut self.groups, slot)
    }

    /// Chooses the receiver of a message: a connected member, a shard with durable sessions, a node with absent
    /// members, and at last a node that is not reachable.
    fn choose(
        &mut self,
        now: Time,
        id: GroupId,
        view: &MessageView<'_>,
        Allowed { only_here, not_to }: Allowed<'_>,
    ) -> Option<Choice> {
        if view.remaining_expiry(now).is_err() {
            return None;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let Self { settings, routes, groups, random, .. } = self;
        let (strategy, random) = (settings.shared.strategy, *random);
        let slot = (id.slot, id.generation);
        let directory = routes.groups(id.shard);
        let is_above = || {
            let name = directory.name(slot);
            name.is_some_and(|name| name.filter.strip_suffix("/#") == Some(view.topic))
        };
        let may_go = |member: &GroupMember| match member.member {
            Member::Node(node) => !only_here && !not_to.contains(&Receiver::Node(node)),
            // For a tenant's `#`, the topic that its mountpoint is below does not exist.
            Member::Connection(connection) => {
                let is_its_own = !member.options.is_behind_mountpoint() || !is_above();
                is_its_own && !not_to.contains(&Receiver::Connection(connection))
            }
        };
        let is_up = |member: &GroupMember| match member.member {
            Member::Node(node) => routes.is_up(node),
            Member::Connection(_) => true,
        };
        let is_candidate = |member: &GroupMember| may_go(member) && is_up(member);
        let is_cut_off = |member: &GroupMember| may_go(member) && !is_up(member);
        let mut group = group_at(groups, slot);
        if let Some(group) = &mut group
            && let Some(member) = group.connected.choose(strategy, view, random, &is_candidate)
        {
            return Some(Choice::of(member, true));
        }
        // Only stored messages are for absent members.
        let is_stored = view.qos > QoS::AtMostOnce;
        // The node that forwards a message knows the shards of the cluster itself.
        if is_stored && !(only_here && routes.are_shards_agreed()) {
            let (shards, turn) = directory.take_turn(slot);
            let may_go = |shard: &ShardId| !not_to.contains(&Receiver::Shard(*shard));
            let shards: Vec<ShardId> = shards.iter().filter(may_go).collect();
            if let Some(at) = group::number(strategy, view, random, turn).checked_rem(shards.len() as u64) {
                return Some(Choice::Shard(shards[at as usize]));
            }
        }
        let Group { connected, absent } = group?;
        let absent_one = absent.choose(strategy, view, random, &|member| is_stored && is_candidate(member));
        if let Some(member) = absent_one {
            return Some(Choice::of(member, true));
        }
        let cut_off = connected.choose(strategy, view, random, &is_cut_off);
        let cut_off = cut_off
            .or_else(|| absent.choose(strategy, view, random, &|member| is_stored && is_cut_off(member)));
        cut_off.map(|member| Choice::of(member, false))
    }

    /// Routes of the groups that match a topic. [`Self::reuse`] takes the memory back.
    fn matching(&mut self, topic: TopicName<'_>) -> Vec<Route> {
        let mut matches = std::mem::take(&mut self.matches);
        matches.clear();
        self.cache.routes(&self.reader, topic, &mut matches);
        self.reader.quiescent();
        matches
    }

    /// The only group that matches a topic, if the topic is known.
    fn known_match(&self, topic: &str) -> Option<GroupId> {
        match self.cache.find(topic, self.routes.groups(self.id).version())?.routes() {
            [Route { kind: RouteKind::Group, slot, generation, .. }] => {
                Some(GroupId { shard: self.id, slot: *slot, generation: *generation })
            }
            _ => None,
        }
    }

    fn reuse(&mut self, matches: Vec<Route>) {
        self.matches = matches;
    }

    fn group_id(&self, (slot, generation): GroupSlot) -> GroupId {
        GroupId { shard: self.id, slot, generation }
    }

    /// Adds the members of groups that receive a topic's messages: connections of ephemeral sessions, and other nodes.
    /// Shards add the durable sessions.
    pub fn find_receivers(&mut self, topic: TopicName<'_>, limit: usize, matches: &mut Matches) {
        let routes = self.matching(topic);
        for route in routes.iter().filter(|route| route.kind == RouteKind::Group) {
            self.find_members((route.slot, route.generation), limit, matches);
        }
        self.reuse(routes);
    }

    fn find_members(&mut self, slot: GroupSlot, limit: usize, matches: &mut Matches) {
        let Some(name) = self.routes.groups(self.id).name(slot) else { return };
        let Some(group) = self.group_mut(slot) else { return };
        let members = [&group.connected, &group.absent].into_iter().flat_map(|some| some.members());
        // Shards add durable sessions, unless these have QoS 0.
        let is_added =
            |member: &&GroupMember| member.session.is_none() || member.options.qos() == QoS::AtMostOnce;
        for member in members.filter(is_added) {
            matches.total += 1;
            if matches.receivers.len() >= limit {
                continue;
            }
            // The worker that hosts the connection knows its client and is asked for it.
            matches.receivers.push(FoundReceiver {
                client_id: Arc::from(""),
                connected: member.is_connected(),
                durable: member.session.is_some(),
                filters: vec![name.filter.clone()],
                qos: member.options.qos(),
                share: Some(name.share.clone()),
                unnamed: Some(member.member),
            });
        }
    }

    /// Checks that nothing is in progress and no member is left.
    pub fn check_quiet(&self) {
        assert!(self.groups.iter().all(Option::is_none), "members of groups");
        assert_eq!(self.offered.len(), 0, "messages on their way to members");
        self.appends.check_empty();
        self.routes.groups(self.id).check_empty();
    }
}

/// Returns the members of a group that the host knows.
fn group_at(groups: &mut [Option<(u32, Group)>], (slot, generation): GroupSlot) -> Option<&mut Group> {
    let (known, group) = groups.get_mut(slot as usize)?.as_mut()?;
    (*known == generation).then_some(group)
}

impl Choice {
    fn of(member: GroupMember, is_reachable: bool) -> Self {
        match member.member {
            Member::Connection(_) => Self::Connection(member),
            Member::Node(node) => Self::Node { node, options: member.options, is_reachable },
        }
    }
}
