//! The way of a message to one member of a group.

use mqtt::{QoS, ReasonCode};

use super::linked::{for_link, is_from_link_for_group};
use super::{Allowed, Choice, Chosen, GroupHost, GroupMember};
use crate::batch::{MemberDelivery, SubscriptionIds, Token, WorkerCommand};
use crate::ids::{ConnectionId, GroupId, ShardId, Time};
use crate::message::{Message, MessageView};
use crate::peers::NodeIndex;
use crate::store::{
    Enqueue, EnqueueForGroup, EnqueueToGroup, GroupName, Identity, MemberKind, QUEUE_REFUSED, Request,
    ShardOutput,
};

/// Receiver that a message is offered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// The durable session of a connection.
    Connection(ConnectionId),
    /// A durable session of a shard, which the shard chooses.
    Shard(ShardId, MemberKind),
    /// A member on another node.
    Node(NodeIndex, MemberKind),
}

/// A message on its way to a member that answers.
#[derive(Debug)]
pub(super) struct Offered {
    group: GroupId,
    message: Message,
    /// Identity of a message that another member left unfinished.
    identity: Option<Identity>,
    /// Token of the request that waits; none for a message that was acknowledged before.
    token: Option<Token>,
    to: Receiver,
    /// Receivers that had no member, or no room.
    refused: Vec<Receiver>,
    /// Reason why one of them did not accept it. The publisher gets it when no other member gets the message.
    declined: Option<ReasonCode>,
    /// Number of times that the message was offered without success.
    offers: u8,
    /// Value of [`Delivery::refusal`].
    refusal: Option<ReasonCode>,
    /// Value of [`Delivery::only_here`].
    only_here: Option<MemberKind>,
}

/// Conditions under which a message is given to a member.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// Reason why a member that needs the log does not get it.
    pub refusal: Option<ReasonCode>,
    /// The message comes from another node, for a member of this kind on this one.
    pub only_here: Option<MemberKind>,
    /// Value of [`Offered::refused`].
    pub refused: Vec<Receiver>,
    /// Value of [`Offered::declined`].
    pub declined: Option<ReasonCode>,
    /// Value of [`Offered::offers`].
    pub offers: u8,
    /// Identity of a message that another member left unfinished.
    pub identity: Option<Identity>,
    /// Token that the member answers.
    pub token: Option<Token>,
}

/// A message on the way to its receiver.
#[derive(Clone, Copy)]
struct Sending<'a> {
    id: GroupId,
    /// Members to which the receiver belongs.
    kind: MemberKind,
    message: &'a Message,
    /// The message as the receiver gets it: a linked cluster gets the name of the group.
    sent: &'a Message,
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

/// Maximum number of times that a message is offered without success.
const OFFERS_MAX: u8 = 32;

impl GroupHost {
    /// Gives a group's message to one member.
    pub(super) fn deliver(
        &mut self,
        now: Time,
        id: GroupId,
        message: &Message,
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        self.deliver_view(now, id, (message, &message.view()), delivery, out);
    }

    pub(super) fn deliver_view(
        &mut self,
        now: Time,
        id: GroupId,
        (message, view): (&Message, &MessageView<'_>),
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        let allowed = Allowed { only_here: delivery.only_here, not_to: &delivery.refused };
        let Some(Choice { kind, receiver }) = self.choose(now, id, view, allowed) else {
            return self.no_member(now, message, delivery, out);
        };
        // Another node that chose a linked cluster has named the group.
        if kind == MemberKind::Link && delivery.only_here.is_none() {
            let Some(name) = self.routes.groups(self.id).name((id.slot, id.generation)) else {
                return self.no_member(now, message, delivery, out);
            };
            let named = for_link(view, &name);
            let sending = Sending { id, kind, message, sent: &named };
            return self.deliver_to(now, sending, receiver, &named.view(), delivery, out);
        }
        let sending = Sending { id, kind, message, sent: message };
        self.deliver_to(now, sending, receiver, view, delivery, out);
    }

    fn deliver_to(
        &mut self,
        now: Time,
        sending: Sending<'_>,
        receiver: Chosen,
        view: &MessageView<'_>,
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        let Sending { id, kind, sent, .. } = sending;
        match receiver {
            Chosen::Connection(member) => {
                self.deliver_to_connection(now, sending, member, view, delivery, out);
            }
            Chosen::Shard(shard) => {
                let receiver = (Receiver::Shard(shard, kind), shard);
                self.offer_to_store(now, sending, receiver, delivery, out, |group, token| {
                    let EnqueueForGroup { name, identity, .. } = group;
                    let (group, message) = (id, sent.clone());
                    Request::EnqueueToGroup(Box::new(EnqueueToGroup {
                        name,
                        group,
                        message,
                        identity,
                        token,
                    }))
                });
            }
            Chosen::Node { node, options, is_reachable } => {
                let qos = view.qos.min(options.qos());
                self.offer_to_node(now, sending, (node, is_reachable, qos), delivery, out);
            }
        }
    }

    /// Handles a message that no member can get.
    pub(super) fn no_member(
        &mut self,
        now: Time,
        message: &Message,
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        if let (true, Some(token)) = (delivery.only_here.is_some(), delivery.token) {
            // The node that sent the message may know another member.
            return self.answer_with(now, token, ReasonCode::ServerUnavailable, out);
        }
        if let (Some(reason), Some(token)) = (delivery.declined, delivery.token) {
            return self.answer_with(now, token, reason, out);
        }
        let Some(delivery) = self.wait_for_member(now, message, delivery) else { return };
        self.count_without_member(&message.view());
        if let Some(token) = delivery.token {
            self.answer_with(now, token, ReasonCode::Success, out);
        }
    }

    fn count_without_member(&mut self, view: &MessageView<'_>) {
        match is_from_link_for_group(view.properties) {
            true => self.counters.dropped_no_linked_member += 1,
            false => self.counters.dropped_no_member += 1,
        }
    }

    fn deliver_to_connection(
        &mut self,
        now: Time,
        sending: Sending<'_>,
        member: GroupMember,
        view: &MessageView<'_>,
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        let Sending { id, sent, .. } = sending;
        let Some(connection) = member.connection() else { return };
        let GroupMember { session, options, subscription_id, .. } = member;
        let qos = view.qos.min(options.qos());
        let Some(session) = session.filter(|_| qos > QoS::AtMostOnce) else {
            let (message, token) = (sent.clone(), delivery.token);
            let delivery = MemberDelivery { group: id, connection, message, options, subscription_id, token };
            return out.commands.push((connection.worker, WorkerCommand::Member(delivery)));
        };
        let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
        let entry = Enqueue {
            message: sent.clone(),
            qos,
            retain: view.retain && options.retain_as_published(),
            subscription_ids: SubscriptionIds::of(ids),
            group: Some(id),
        };
        let receiver = (Receiver::Connection(connection), session.shard);
        self.offer_to_store(now, sending, receiver, delivery, out, |group, token| {
            let (entries, group) = (vec![entry], Some(Box::new(group)));
            Request::Enqueue { session, entries, group, token: Some(token), page: None }
        });
    }

    /// Offers a message to a durable session: to a known one, or to one that its shard chooses.
    fn offer_to_store(
        &mut self,
        now: Time,
        sending: Sending<'_>,
        (to, shard): (Receiver, ShardId),
        delivery: Delivery,
        out: &mut ShardOutput,
        request: impl FnOnce(EnqueueForGroup, Token) -> Request,
    ) {
        let Sending { id, kind, message, .. } = sending;
        if let (Some(reason), Some(token)) = (delivery.refusal, delivery.token) {
            self.counters.refused_by_log += 1;
            return self.answer_with(now, token, reason, out);
        }
        let Some(name) = self.routes.groups(self.id).name((id.slot, id.generation)) else {
            return self.no_member(now, message, delivery, out);
        };
        let name = name.of(kind);
        let identity = delivery.identity;
        // The owner of an orphan has to know which shard may remember the identity before the orphan is queued there.
        if let (Some(_), Some(Token::Append { shard: owner, key })) = (identity, delivery.token) {
            out.requests.push((owner, Request::AcceptedBy { key, by: shard }));
        }
        let token = self.offer(id, message, to, delivery);
        let is_connected = matches!(to, Receiver::Connection(_));
        out.requests.push((shard, request(EnqueueForGroup { name, is_connected, identity }, token)));
    }

    fn offer_to_node(
        &mut self,
        now: Time,
        sending: Sending<'_>,
        (to, is_reachable, qos): (NodeIndex, bool, QoS),
        mut delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        let Sending { id, kind, message, sent } = sending;
        let Some(name) = self.routes.groups(self.id).name((id.slot, id.generation)) else {
            return self.no_member(now, message, delivery, out);
        };
        // No publisher waits for an orphan, or for a message to a node that is not reachable. Such a message was
        // acknowledged already: when that node has no member, another member gets it.
        let waiting = if is_reachable { None } else { delivery.token.take() };
        let is_assured = qos > QoS::AtMostOnce || delivery.token.is_some();
        let token = is_assured.then(|| self.offer(id, message, Receiver::Node(to, kind), delivery));
        let (group, message, waits) = (Box::new(name.of(kind)), sent.clone(), !is_reachable);
        out.offered.push(Offer { to, group, message, token, waits });
        if let Some(token) = waiting {
            self.answer_with(now, token, ReasonCode::Success, out);
        }
    }

    /// Notes that a message is offered. Returns the token that the receiver answers.
    fn offer(&mut self, group: GroupId, message: &Message, to: Receiver, delivery: Delivery) -> Token {
        let Delivery { refusal, only_here, refused, declined, offers, identity, token } = delivery;
        let message = message.clone();
        self.offered_bytes += message.size();
        let offered =
            Offered { group, message, identity, token, to, refused, declined, offers, refusal, only_here };
        Token::Offered { shard: self.id, key: self.offered.insert(offered) as u32 }
    }

    /// Handles the answer to an offer: a member has the message, or there is none and another member gets it.
    pub(super) fn offer_answered(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(offered) = self.offered.try_remove(key as usize) else { return };
        self.offered_bytes -= offered.message.size();
        let Offered { group, message, identity, token, to, mut refused, mut declined, mut offers, .. } =
            offered;
        let Offered { refusal, only_here, .. } = offered;
        match reason {
            ReasonCode::ServerUnavailable => refused.push(to),
            // The node has become unreachable since it was chosen. The next choice sees that, and takes the node only
            // when there is no other member.
            ReasonCode::ServerBusy => {}
            QUEUE_REFUSED | ReasonCode::QuotaExceeded | ReasonCode::ImplementationSpecificError => {
                declined = Some(reason);
                refused.push(to);
            }
            _ => return token.into_iter().for_each(|token| self.answer_with(now, token, reason, out)),
        }
        // A strategy that prefers one member would choose the same node again until that node's update of its members
        // arrives. A connection that has refused is not chosen again.
        offers += u8::from(!matches!(to, Receiver::Connection(_)));
        if offers > OFFERS_MAX {
            self.count_without_member(&message.view());
            let reason = declined.unwrap_or(ReasonCode::UnspecifiedError);
            return token.into_iter().for_each(|token| self.answer_with(now, token, reason, out));
        }
        let delivery = Delivery { refusal, only_here, refused, declined, offers, identity, token };
        self.deliver(now, group, &message, delivery, out);
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
        let delivery = Delivery { identity: Some(identity), token, ..Delivery::default() };
        match self.routes.groups(self.id).find(name) {
            Some(slot) => self.deliver(now, self.group_id(slot), message, delivery, out),
            None => self.no_member(now, message, delivery, out),
        }
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
        let only_here = Some(name.kind());
        let delivery = Delivery { refusal, only_here, token, ..Delivery::default() };
        match self.routes.groups(self.id).find(name) {
            Some(slot) => self.deliver(now, self.group_id(slot), message, delivery, out),
            None => self.no_member(now, message, delivery, out),
        }
    }

    /// Answers for a member.
    pub(super) fn answer_with(&mut self, now: Time, token: Token, reason: ReasonCode, out: &mut ShardOutput) {
        match token {
            Token::Groups { shard, key } if shard == self.id => self.accepted(now, key, reason, out),
            token => out.acknowledged.push((token, reason)),
        }
    }
}
