//! Shared groups: their members, and the choice of the member that gets a message.

use mqtt::{QoS, ReasonCode, TopicFilter};

use super::{ShardHost, ShardOutput};
use crate::batch::{MemberDelivery, SubscriptionIds, Token, WorkerCommand};
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::message::Message;
use crate::peers::{Members, NodeIndex};
use crate::route::{Options, Route, RouteKind};
use crate::store::group::{Choice, Group, GroupMember};
use crate::store::{Completion, Enqueue, EnqueueForGroup, GroupName, Identity, Join, Member, Request};

/// Conditions under which a message is given to a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupDelivery<'a> {
    /// Reason why a member that needs the log does not get it.
    pub refusal: Option<ReasonCode>,
    /// The message comes from another node, for a member on this one.
    pub only_here: bool,
    /// Nodes that have no member for it.
    pub not_to: &'a [NodeIndex],
    /// Reason why such a node did not accept it, unless it had no members. The publisher gets it as the answer when no
    /// other member gets the message.
    pub declined: Option<ReasonCode>,
    /// Number of nodes that the message was offered to.
    pub offers: u8,
    /// Identity of a message that another member left unfinished.
    pub identity: Option<Identity>,
    /// Token that the member answers.
    pub token: Option<Token>,
}

/// A message on its way to a member on another node.
#[derive(Debug)]
pub struct Offered {
    group: GroupId,
    message: Message,
    /// Token of the request that waits; none for a message that another member left unfinished.
    token: Option<Token>,
    /// Node that the message was sent to.
    to: NodeIndex,
    /// Nodes that had no member, or no room.
    refused: Vec<NodeIndex>,
    /// Reason to refuse, as in [`GroupDelivery`].
    declined: Option<ReasonCode>,
    offers: u8,
}

/// A message for a member of a shared group on another node.
#[derive(Debug)]
pub struct Offer {
    pub to: NodeIndex,
    pub group: Box<GroupName>,
    pub message: Message,
    /// Token for the result: whether a member there has it.
    pub token: Option<Token>,
    /// No other member is connected, and that node is not reachable: the message waits for the node.
    pub waits: bool,
}

/// Number of a filter's groups on one shard as publishers see it. It is rounded up to a power of two, and 0 while it is
/// small, so that the node's index changes rarely.
fn announced(groups: u32) -> u32 {
    if groups <= FEW_GROUPS { 0 } else { groups.checked_next_power_of_two().unwrap_or(u32::MAX) }
}

/// Number of groups of one filter on one shard that a publisher is not charged for.
const FEW_GROUPS: u32 = 4;

/// Maximum number of nodes that a message is offered to without success.
const OFFERS_MAX: u8 = 16;

impl ShardHost {
    pub(super) fn join(&mut self, join: Join, out: &mut ShardOutput) {
        let index = self.group_names.get(&join.group).copied().or_else(|| self.new_group(&join.group));
        let group = index.and_then(|(slot, generation)| self.groups.get_mut(slot, generation));
        let reason = if group.is_some() { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
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
        if let Some((connection, ticket, index)) = join.reply {
            out.complete(Completion::Joined { connection, ticket, index, reason });
        }
    }

    pub(super) fn new_group(&mut self, name: &GroupName) -> Option<(u32, u32)> {
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let (slot, generation) = self.groups.insert(Group::new(name.clone()));
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        let route =
            Route { slot, generation, subscription_id: 0, index: self.id.0, options, kind: RouteKind::Group };
        let uses = self.group_uses.entry(name.filter.clone()).or_default();
        *uses += 1;
        let uses = *uses;
        let mut inserted = self.group_routes.insert(filter, route).is_ok();
        if inserted && (uses == 1 || announced(uses) != announced(uses - 1)) {
            inserted = self.node_routes.insert(filter, self.route_of_groups(uses)).is_ok();
        }
        if !inserted {
            self.drop_group(slot, generation);
            return None;
        }
        self.group_names.insert(name.clone(), (slot, generation));
        Some((slot, generation))
    }

    /// Route of the node's index for the groups of a filter.
    fn route_of_groups(&self, uses: u32) -> Route {
        Route { subscription_id: announced(uses), ..self.node_route(RouteKind::ShardGroups) }
    }

    pub(super) fn drop_group(&mut self, slot: u32, generation: u32) {
        let Some(group) = self.groups.remove(slot, generation) else { return };
        self.group_names.remove(group.name());
        let Ok(filter) = TopicFilter::parse(&group.name().filter) else { return };
        self.group_routes.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
        if let Some(uses) = self.group_uses.get_mut(filter.as_str()) {
            *uses -= 1;
            let uses = *uses;
            if uses == 0 {
                self.group_uses.remove(filter.as_str());
                self.node_routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
            } else if announced(uses) != announced(uses + 1) {
                // The route replaces one that exists, so there is room for it.
                let replaced = self.node_routes.insert(filter, self.route_of_groups(uses));
                debug_assert!(replaced.is_ok(), "a route is replaced by one of the same filter");
            }
        }
    }

    pub(super) fn leave(
        &mut self,
        name: GroupName,
        member: Member,
        reply: Option<(ConnectionId, Ticket)>,
        out: &mut ShardOutput,
    ) {
        if let Some((slot, generation)) = self.group_names.get(&name).copied()
            && let Some(group) = self.groups.get_mut(slot, generation)
        {
            group.leave(member);
            let is_empty = group.is_empty();
            self.announce_members(&name);
            if is_empty {
                self.drop_group(slot, generation);
            }
        }
        if let Some((connection, ticket)) = reply {
            out.complete(Completion::Left { connection, ticket });
        }
    }

    /// Gives a group's message to one member.
    pub(super) fn deliver_to_member(
        &mut self,
        now: Time,
        id: GroupId,
        message: &Message,
        GroupDelivery { refusal, only_here, not_to, declined, offers, identity, token }: GroupDelivery<'_>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        // The message waits for a node that is not reachable, as other messages do. No publisher waits for that.
        let mut is_waiting = false;
        let choice = match self.groups.get_mut(id.slot, id.generation) {
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
                let strategy = self.settings.shared.strategy;
                let choice = group.choose(strategy, &view, self.random, &is_candidate);
                choice.or_else(|| {
                    is_waiting = true;
                    group.choose(strategy, &view, self.random, &is_cut_off)
                })
            }
            _ => None,
        };
        let Some(Choice { member, connection, options, subscription_id }) = choice else {
            if let (true, Some(token)) = (only_here, token) {
                // The node that sent the message may know another member.
                return self.answer_with(now, token, ReasonCode::ServerUnavailable, out);
            }
            if let (Some(reason), Some(token)) = (declined, token) {
                return self.answer_with(now, token, reason, out);
            }
            self.counters.dropped_no_member += 1;
            return self.answer(now, token, out);
        };
        let qos = view.qos.min(options.qos());
        match (member, connection) {
            (Member::Session(session), _) if qos > QoS::AtMostOnce => {
                if let (Some(reason), Some(token)) = (refusal, token) {
                    self.counters.refused_by_log += 1;
                    return self.answer_with(now, token, reason, out);
                }
                let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
                let entry = Enqueue {
                    message: message.clone(),
                    qos,
                    retain: view.retain && options.retain_as_published(),
                    subscription_ids: SubscriptionIds::of(ids),
                    group: Some(id),
                };
                let group = self.groups.get(id.slot, id.generation);
                let group = group.map(|group| {
                    let name = group.name().clone();
                    Box::new(EnqueueForGroup { name, is_connected: connection.is_some(), identity })
                });
                let entries = vec![entry];
                let request = Request::Enqueue { session, entries, group, token, page: None };
                out.requests.push((session.shard, request));
            }
            (_, Some(connection)) => {
                let message = message.clone();
                let delivery =
                    MemberDelivery { group: id, connection, message, options, subscription_id, token };
                out.commands.push((connection.worker, WorkerCommand::Member(Box::new(delivery))));
            }
            (Member::Node(node), _) => {
                let refused = not_to.to_vec();
                let kept = message.clone();
                // No publisher waits for an orphan, or for a message to a node that is not reachable. Such a message
                // was acknowledged already: when that node has no member, another member gets it.
                let is_assured = qos > QoS::AtMostOnce || token.is_some() && !is_waiting;
                let token_kept = if is_waiting { None } else { token };
                let offered = || Offered {
                    group: id,
                    message: kept,
                    token: token_kept,
                    to: node,
                    refused,
                    declined,
                    offers,
                };
                self.offer_to_node((node, is_waiting), id, message, is_assured.then(offered), out);
                if is_waiting {
                    self.answer(now, token, out);
                }
            }
            (_, None) => {
                self.counters.dropped_no_member += 1;
                self.answer(now, token, out);
            }
        }
    }

    /// Gives a message that a member left unfinished to another one.
    pub(super) fn deliver_orphan(
        &mut self,
        now: Time,
        name: &GroupName,
        message: &Message,
        (identity, token): (Identity, Option<Token>),
        out: &mut ShardOutput,
    ) {
        let Some((slot, generation)) = self.group_names.get(name).copied() else {
            self.counters.dropped_no_member += 1;
            return self.answer(now, token, out);
        };
        self.deliver_to_member(
            now,
            GroupId { shard: self.id, slot, generation },
            message,
            GroupDelivery { identity: Some(identity), token, ..GroupDelivery::default() },
            out,
        );
    }

    /// Sets the members that a group has on another node. All of them take part as one that weighs as much.
    pub(super) fn join_node(&mut self, name: GroupName, node: NodeIndex, members: Members) {
        let member = Member::Node(node);
        if members.count == 0 {
            self.node_routes.note_routed(node, &name.text(), true);
            return self.leave(name, member, None, &mut ShardOutput::default());
        }
        let index = self.group_names.get(&name).copied().or_else(|| self.new_group(&name));
        self.node_routes.note_routed(node, &name.text(), index.is_some());
        if let Some(group) = index.and_then(|(slot, generation)| self.groups.get_mut(slot, generation)) {
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
        let index = self.group_names.get(name).copied();
        let Some(group) = index.and_then(|(slot, generation)| self.groups.get_mut(slot, generation)) else {
            return;
        };
        let members = group.own_members();
        if members != group.announced {
            group.announced = members;
            self.node_routes.note_group(&name.text(), members);
        }
    }

    fn offer_to_node(
        &mut self,
        (to, waits): (NodeIndex, bool),
        id: GroupId,
        message: &Message,
        offered: Option<Offered>,
        out: &mut ShardOutput,
    ) {
        let Some(group) = self.groups.get(id.slot, id.generation) else { return };
        let name = Box::new(group.name().clone());
        let token = offered
            .map(|offered| Token::Offered { shard: self.id, key: self.offered.insert(offered) as u32 });
        out.offered.push(Offer { to, group: name, message: message.clone(), token, waits });
    }

    /// Handles the answer of another node: a member there has the message, or there is none and another member gets it.
    pub(super) fn offer_answered(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(offered) = self.offered.try_remove(key as usize) else { return };
        let Offered { group, message, token, to, mut refused, mut declined, mut offers } = offered;
        match reason {
            ReasonCode::ServerUnavailable => refused.push(to),
            // The node has become unreachable since it was chosen. The next choice sees that, and takes the node only
            // when there is no other member.
            ReasonCode::ServerBusy => {}
            ReasonCode::QuotaExceeded | ReasonCode::ImplementationSpecificError => {
                declined = Some(reason);
                refused.push(to);
            }
            _ => return token.into_iter().for_each(|token| self.answer_with(now, token, reason, out)),
        }
        // A strategy that prefers one member would choose the same node again until that node's update of its members
        // arrives.
        offers += 1;
        if offers > OFFERS_MAX {
            self.counters.dropped_no_member += 1;
            let reason = declined.unwrap_or(ReasonCode::Success);
            return token.into_iter().for_each(|token| self.answer_with(now, token, reason, out));
        }
        let delivery =
            GroupDelivery { not_to: &refused, declined, offers, token, ..GroupDelivery::default() };
        self.deliver_to_member(now, group, &message, delivery, out);
    }

    /// Delivers a message for which another node has chosen a member on this one.
    pub(super) fn deliver_locally(
        &mut self,
        now: Time,
        name: &GroupName,
        message: &Message,
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) {
        let Some((slot, generation)) = self.group_names.get(name).copied() else {
            return match token {
                Some(token) => self.answer_with(now, token, ReasonCode::ServerUnavailable, out),
                None => self.counters.dropped_no_member += 1,
            };
        };
        self.deliver_to_member(
            now,
            GroupId { shard: self.id, slot, generation },
            message,
            GroupDelivery { refusal, only_here: true, token, ..GroupDelivery::default() },
            out,
        );
    }

    /// Answers on behalf of members that are not available.
    pub(super) fn answer(&mut self, now: Time, token: Option<Token>, out: &mut ShardOutput) {
        if let Some(token) = token {
            self.answer_with(now, token, ReasonCode::Success, out);
        }
    }

    fn answer_with(&mut self, now: Time, token: Token, reason: ReasonCode, out: &mut ShardOutput) {
        match token {
            Token::Append { shard, key } if shard == self.id => self.accepted(now, key, reason, out),
            token => out.acknowledged.push((token, reason)),
        }
    }
}
