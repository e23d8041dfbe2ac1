//! Messages of shared groups: each goes to one member, on this node or on another one.

use mqtt::{QoS, ReasonCode};

use super::{ShardHost, ShardOutput};
use crate::batch::{MemberDelivery, SubscriptionIds, Token, WorkerCommand};
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::message::{Message, MessageView};
use crate::peers::NodeIndex;
use crate::store::group::Choice;
use crate::store::groups::{AllowedNodes, Offered};
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

/// Maximum number of nodes that a message is offered to without success.
const OFFERS_MAX: u8 = 16;

impl ShardHost {
    pub(super) fn join(&mut self, join: &Join, out: &mut ShardOutput) {
        let has_joined = self.groups.join(join);
        let reason = if has_joined { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
        if let Some((connection, ticket, index)) = join.reply {
            out.complete(Completion::Joined { connection, ticket, index, reason });
        }
    }

    pub(super) fn leave(
        &mut self,
        name: &GroupName,
        member: Member,
        reply: Option<(ConnectionId, Ticket)>,
        out: &mut ShardOutput,
    ) {
        self.groups.leave(name, member);
        if let Some((connection, ticket)) = reply {
            out.complete(Completion::Left { connection, ticket });
        }
    }

    /// Gives a message without an identity to the only group that matches. The member that gets it answers the token
    /// of the publisher. Returns false, and has no effect, if several groups may match.
    pub(super) fn append_to_group(
        &mut self,
        now: Time,
        message: &Message,
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) -> bool {
        let view = message.view();
        let Some(group) = self.groups.known_match(view.topic) else { return false };
        let delivery = GroupDelivery { refusal, token, ..GroupDelivery::default() };
        self.deliver_view_to_member(now, group, (message, &view), delivery, out);
        true
    }

    /// Gives a group's message to one member.
    pub(super) fn deliver_to_member(
        &mut self,
        now: Time,
        id: GroupId,
        message: &Message,
        delivery: GroupDelivery<'_>,
        out: &mut ShardOutput,
    ) {
        self.deliver_view_to_member(now, id, (message, &message.view()), delivery, out);
    }

    fn deliver_view_to_member(
        &mut self,
        now: Time,
        id: GroupId,
        (message, view): (&Message, &MessageView<'_>),
        GroupDelivery { refusal, only_here, not_to, declined, offers, identity, token }: GroupDelivery<'_>,
        out: &mut ShardOutput,
    ) {
        let strategy = self.settings.shared.strategy;
        let nodes = AllowedNodes { only_here, not_to };
        // No publisher waits for a message that waits for a node.
        let (choice, is_waiting) = self.groups.choose(now, id, view, strategy, nodes);
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
                out.commands.push((connection.worker, WorkerCommand::Member(delivery)));
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
        let Some(group) = self.groups.find(name) else {
            self.counters.dropped_no_member += 1;
            return self.answer(now, token, out);
        };
        self.deliver_to_member(
            now,
            group,
            message,
            GroupDelivery { identity: Some(identity), token, ..GroupDelivery::default() },
            out,
        );
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
        let token = offered.map(|offered| Token::Offered {
            shard: self.id,
            key: self.groups.offered.insert(offered) as u32,
        });
        out.offered.push(Offer { to, group: name, message: message.clone(), token, waits });
    }

    /// Handles the answer of another node: a member there has the message, or there is none and another member gets it.
    pub(super) fn offer_answered(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(offered) = self.groups.offered.try_remove(key as usize) else { return };
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
        let Some(group) = self.groups.find(name) else {
            return match token {
                Some(token) => self.answer_with(now, token, ReasonCode::ServerUnavailable, out),
                None => self.counters.dropped_no_member += 1,
            };
        };
        self.deliver_to_member(
            now,
            group,
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
