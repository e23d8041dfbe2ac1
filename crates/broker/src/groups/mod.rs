//! Shared groups: each message goes to one member, on this node or on another one.
//!
//! Each node decides for the messages that arrive here. The groups are divided among the workers by a hash of their
//! names. The [`GroupHost`] of a group knows the connections that are members, and how many members other nodes have.
//! Durable sessions are members where they are connected. While no member is connected, a message goes to a shard that
//! has durable sessions in the group, and the shard chooses one. All nodes know these shards ([`GroupDirectory`]), so
//! neither an election nor the end of a node hides a group.
//!
//! A group may have one member over all linked clusters. Then sessions of linked clusters are members, too
//! ([`linked`]).

mod appends;
mod directory;
mod group;
mod linked;
mod offers;
mod requests;
mod vacant;

use std::sync::Arc;

use mqtt::{QoS, ReasonCode, TopicName};
use routing::Reader;

pub use self::appends::GroupAppend;
pub(crate) use self::directory::GroupDirectory;
pub use self::linked::LinkedPrefix;
pub(crate) use self::linked::{GROUP_SUBSCRIPTION, GROUP_TEXT_MAX, asked_share, target};
pub use self::offers::Offer;
pub use self::requests::{GroupAnswer, GroupRequest, Join, Member};

use self::appends::Appends;
use self::directory::{GroupSlot, Hosted};
use self::group::Group;
use self::linked::is_of_this_cluster;
use self::offers::{Delivery, Offered, Receiver};
use self::vacant::VacantGroups;
use crate::admin::{Matches, Receiver as FoundReceiver};
use crate::batch::WorkerCommand;
use crate::counters::StoreCounters;
use crate::ids::{GroupId, SessionId, ShardId, ShardSet, Time};
use crate::match_cache::MatchCache;
use crate::message::MessageView;
use crate::peers::{self, NodeIndex};
use crate::route::{Options, Route, RouteKind};
use crate::routes::Routes;
use crate::settings::{Settings, SharedStrategy};
use crate::store::{GroupName, MemberKind, ShardOutput};

/// Groups whose names hash to one shard, on the worker of that shard, whether the node has a replica of it or not.
pub(crate) struct GroupHost {
    id: ShardId,
    settings: Arc<Settings>,
    /// The node's index, with the directory of the groups.
    routes: Arc<Routes>,
    reader: Reader<Route>,
    /// Members that this host knows, at the slots of the directory with their generations.
    groups: Vec<Option<Members>>,
    /// Topics of messages with the groups that match.
    cache: MatchCache,
    /// Memory for [`Self::matching`].
    matches: Vec<Route>,
    /// Messages on their way to members that answer.
    offered: slab::Slab<Offered>,
    /// Bytes of these messages.
    offered_bytes: usize,
    appends: Appends,
    vacant: VacantGroups,
    /// Shards of the cluster that do not answer.
    waiting: WaitingShards,
    /// State of the choice among members.
    random: u64,
    pub counters: StoreCounters,
}

/// Shards of a cluster that do not answer. A message waits in them, so groups prefer members in other shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingShards {
    /// Shards with more than their share of requests that are not answered.
    pub full: ShardSet,
    /// Shards without a leader that is known and can be reached.
    pub without_leader: ShardSet,
}

/// Members of one group that the host knows.
#[derive(Debug, Default)]
struct Members {
    /// Generation of the group's slot.
    generation: u32,
    clients: Group,
    /// Sessions of linked clusters.
    links: Option<Box<Group>>,
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
    /// The message comes from another node, for a member of this kind on this one.
    only_here: Option<MemberKind>,
    /// Receivers that could not take it.
    not_to: &'a [Receiver],
}

/// The receiver of a message, and whether it waits because only a node that is not reachable has a member.
#[derive(Debug)]
struct Choice {
    kind: MemberKind,
    receiver: Chosen,
}

#[derive(Debug)]
enum Chosen {
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
            vacant: VacantGroups::default(),
            waiting: WaitingShards::default(),
            random: random | 1,
            counters: StoreCounters::default(),
        }
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Bytes of messages that wait for the answers of members, for their turn, and for a first member. A message may be
    /// counted twice.
    pub fn bytes(&self) -> usize {
        self.offered_bytes + self.appends.bytes() + self.vacant.bytes()
    }

    pub fn set_settings(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
    }

    /// Sets the shards that do not answer.
    pub fn set_waiting(&mut self, waiting: WaitingShards) {
        if self.waiting.full != waiting.full {
            self.routes.set_full_for_groups(self.id, waiting.full);
        }
        self.waiting = waiting;
    }

    pub fn apply(&mut self, now: Time, request: GroupRequest, out: &mut ShardOutput) {
        match request {
            GroupRequest::Join(join) => {
                self.join(&join, out);
                self.member_joined(now, &join.group, out);
            }
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
                if members.count > 0 {
                    self.member_joined(now, &group, out);
                }
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
    fn join_node(&mut self, name: &GroupName, node: NodeIndex, members: peers::Members) {
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
        if known.as_ref().is_none_or(|known| known.generation != generation) {
            *known = Some(Members { generation, ..Members::default() });
        }
        if let Some(group) = known {
            group.of(name.kind()).join(member);
        }
        self.report((slot, generation));
        true
    }

    /// Removes a member.
    fn leave(&mut self, name: &GroupName, member: Member) {
        let Some(slot) = self.routes.groups(self.id).find(name) else { return };
        if let Some(group) = self.group_mut(slot) {
            group.of(name.kind()).leave(member);
            group.links.take_if(|links| links.is_empty());
            self.report(slot);
        }
    }

    /// Notes in the directory how many members are connected. A group without members is dropped here.
    fn report(&mut self, slot: GroupSlot) {
        let Some(group) = self.group_mut(slot) else { return };
        let hosted = |group: &Group| Hosted {
            connected: group.connections(),
            has_any: !group.is_empty(),
            only_in: group.connected.shards(),
        };
        let clients = hosted(&group.clients);
        let links = group.links.as_deref().map(hosted).unwrap_or_default();
        if !clients.has_any && !links.has_any {
            self.groups[slot.0 as usize] = None;
        }
        self.routes.groups(self.id).hosts(&self.routes, slot, clients, links);
    }

    fn group_mut(&mut self, slot: GroupSlot) -> Option<&mut Members> {
        group_at(&mut self.groups, slot)
    }

    /// Chooses the receiver of a message. One whose shard does not answer is chosen only where there is no other one of
    /// its kind. The order is: a connected member, a linked cluster that is connected and has members, a
    /// shard with durable sessions, a node with absent members, the session of a linked cluster that is not connected,
    /// and at last a node that is not reachable.
    fn choose(
        &mut self,
        now: Time,
        id: GroupId,
        view: &MessageView<'_>,
        Allowed { only_here, not_to }: Allowed<'_>,
    ) -> Option<Choice> {
        use MemberKind::{Client, Link};
        if view.remaining_expiry(now).is_err() {
            return None;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let Self { settings, routes, groups, random, waiting, .. } = self;
        let (strategy, random) = (settings.shared.strategy, *random);
        // An election is over soon. Members that get all messages of a publisher or topic keep them meanwhile.
        let avoided = match strategy {
            SharedStrategy::Sticky | SharedStrategy::HashClientId | SharedStrategy::HashTopic => waiting.full,
            SharedStrategy::RoundRobin | SharedStrategy::Random | SharedStrategy::Local => {
                waiting.full | waiting.without_leader
            }
        };
        let slot = (id.slot, id.generation);
        let directory = routes.groups(id.shard);
        let is_above = || {
            let name = directory.name(slot);
            name.is_some_and(|name| name.filter.strip_suffix("/#") == Some(view.topic))
        };
        let may_go = |kind: MemberKind, member: &GroupMember| match member.member {
            Member::Node(node) => only_here.is_none() && !not_to.contains(&Receiver::Node(node, kind)),
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
        let choose_connected = |kind: MemberKind, group: &mut Group| {
            let is_candidate = |member: &GroupMember| may_go(kind, member) && is_up(member);
            let answers = |member: &GroupMember| {
                is_candidate(member) && member.shard().is_none_or(|shard| !avoided.contains(shard))
            };
            let preferred = group.connected.choose(strategy, view, random, &answers);
            preferred.or_else(|| group.connected.choose(strategy, view, random, &is_candidate))
        };
        let (mut clients, mut links) = match group_at(groups, slot) {
            Some(Members { clients, links, .. }) => (Some(clients), links.as_deref_mut()),
            None => (None, None),
        };
        let takes_clients = only_here != Some(Link);
        clients = clients.filter(|_| takes_clients);
        if let Some(group) = &mut clients
            && let Some(member) = choose_connected(Client, group)
        {
            return Some(Choice::of(member, Client, true));
        }
        // The cluster where a message was published decides. So it passes one other cluster at most.
        let takes_links = only_here != Some(Client) && is_of_this_cluster(view);
        links = links.filter(|_| takes_links);
        if let Some(group) = &mut links
            && let Some(member) = choose_connected(Link, group)
        {
            return Some(Choice::of(member, Link, true));
        }
        // Only stored messages are for absent members. The node that forwards a message knows the shards of the cluster
        // itself.
        let is_stored = view.qos > QoS::AtMostOnce;
        let mut of_shards = [None, None];
        if is_stored && !(only_here.is_some() && routes.are_shards_agreed()) {
            let turn = directory.take_turn(slot);
            let choose = |kind: MemberKind, shards: ShardSet| {
                let may_go = |shard: &ShardId| !not_to.contains(&Receiver::Shard(*shard, kind));
                let mut shards: Vec<ShardId> = shards.iter().filter(may_go).collect();
                if shards.iter().any(|shard| !avoided.contains(*shard)) {
                    shards.retain(|shard| !avoided.contains(*shard));
                }
                let at =
                    group::number(strategy, view, random, turn.number).checked_rem(shards.len() as u64)?;
                Some(Choice { kind, receiver: Chosen::Shard(shards[at as usize]) })
            };
            of_shards = [
                takes_clients.then(|| choose(Client, turn.clients)).flatten(),
                takes_links.then(|| choose(Link, turn.links)).flatten(),
            ];
        }
        for ((kind, group), choice) in [(Client, &mut clients), (Link, &mut links)].into_iter().zip(of_shards)
        {
            if choice.is_some() {
                return choice;
            }
            let is_candidate = |member: &GroupMember| is_stored && may_go(kind, member) && is_up(member);
            if let Some(group) = group
                && let Some(member) = group.absent.choose(strategy, view, random, &is_candidate)
            {
                return Some(Choice::of(member, kind, true));
            }
        }
        for (kind, group) in [(Client, clients), (Link, links)] {
            let Some(Group { connected, absent }) = group else { continue };
            let is_cut_off = |member: &GroupMember| may_go(kind, member) && !is_up(member);
            let cut_off = connected
                .choose(strategy, view, random, &is_cut_off)
                .or_else(|| absent.choose(strategy, view, random, &|member| is_stored && is_cut_off(member)));
            if let Some(member) = cut_off {
                return Some(Choice::of(member, kind, false));
            }
        }
        None
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
    fn known_match(&self, topic: &str) -> Option<Route> {
        match self.cache.find(topic, self.routes.groups(self.id).version())?.routes() {
            [route @ Route { kind: RouteKind::Group, .. }] => Some(*route),
            _ => None,
        }
    }

    /// Returns whether a message is for a group that matches its topic. Another cluster has given its messages to a
    /// member already, if the group has one over all linked clusters.
    fn is_for_group(route: &Route, view: &MessageView<'_>) -> bool {
        !route.options.is_of_linked_groups() || is_of_this_cluster(view)
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
        let links = group.links.as_deref();
        let groups = std::iter::once(&group.clients).chain(links);
        let members =
            groups.flat_map(|group| [&group.connected, &group.absent]).flat_map(|some| some.members());
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
        self.check_none_wait();
        self.routes.groups(self.id).check_empty();
    }
}

/// Returns the members of a group that the host knows.
fn group_at(groups: &mut [Option<Members>], (slot, generation): GroupSlot) -> Option<&mut Members> {
    groups.get_mut(slot as usize)?.as_mut().filter(|known| known.generation == generation)
}

impl Members {
    fn of(&mut self, kind: MemberKind) -> &mut Group {
        match kind {
            MemberKind::Client => &mut self.clients,
            MemberKind::Link => self.links.get_or_insert_default(),
        }
    }
}

impl Choice {
    fn of(member: GroupMember, kind: MemberKind, is_reachable: bool) -> Self {
        let receiver = match member.member {
            Member::Connection(_) => Chosen::Connection(member),
            Member::Node(node) => Chosen::Node { node, options: member.options, is_reachable },
        };
        Self { kind, receiver }
    }
}
