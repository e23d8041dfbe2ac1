//! Shared subscription groups: their members, and which of them a message goes to.

use mqtt::{QoS, ReasonCode, TopicFilter};

use super::{ShardHost, ShardOutput};
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::mail::{Letter, MemberDelivery, SubscriptionIds, Token};
use crate::message::Message;
use crate::route::{Options, Route, RouteKind};
use crate::store::group::{Choice, Group, GroupMember};
use crate::store::{Completion, Enqueue, GroupName, Join, Member, Request};

/// Whether a message may be refused still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giving {
    New,
    /// It may have been acknowledged: it waits for room.
    Again,
}

impl ShardHost {
    pub(super) fn join(&mut self, join: Join, out: &mut ShardOutput) {
        let place = self.group_names.get(&join.group).copied().or_else(|| self.new_group(&join.group));
        let group = place.and_then(|(slot, generation)| self.groups.get_mut(slot, generation));
        let reason = if group.is_some() { ReasonCode::Success } else { ReasonCode::QuotaExceeded };
        if let Some(group) = group {
            group.join(GroupMember {
                member: join.member,
                connection: join.connection,
                options: join.options,
                subscription_id: join.subscription_id,
            });
        }
        if let Some((connection, ticket, place)) = join.reply {
            out.complete(Completion::Joined { connection, ticket, place, reason });
        }
    }

    pub(super) fn new_group(&mut self, name: &GroupName) -> Option<(u32, u32)> {
        let filter = TopicFilter::parse(&name.filter).ok()?;
        let (slot, generation) = self.groups.insert(Group::new(name.clone()));
        let options = Options::default().with_qos(QoS::ExactlyOnce);
        let route =
            Route { slot, generation, subscription_id: 0, place: self.id.0, options, kind: RouteKind::Group };
        let uses = self.group_uses.entry(name.filter.clone()).or_default();
        *uses += 1;
        let first = *uses == 1;
        let mut inserted = self.group_routes.insert(filter, route).is_ok();
        if inserted && first {
            inserted = self.node_routes.insert(filter, self.node_route(RouteKind::ShardGroups)).is_ok();
        }
        if !inserted {
            self.drop_group(slot, generation);
            return None;
        }
        self.group_names.insert(name.clone(), (slot, generation));
        Some((slot, generation))
    }

    pub(super) fn drop_group(&mut self, slot: u32, generation: u32) {
        let Some(group) = self.groups.remove(slot, generation) else { return };
        self.group_names.remove(group.name());
        let Ok(filter) = TopicFilter::parse(&group.name().filter) else { return };
        self.group_routes.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
        if let Some(uses) = self.group_uses.get_mut(filter.as_str()) {
            *uses -= 1;
            if *uses == 0 {
                self.group_uses.remove(filter.as_str());
                self.node_routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
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
            if group.is_empty() {
                self.drop_group(slot, generation);
            }
        }
        if let Some((connection, ticket)) = reply {
            out.complete(Completion::Left { connection, ticket });
        }
    }

    /// Gives a group's message to one member, which then answers `token`.
    pub(super) fn give(
        &mut self,
        now: Time,
        id: GroupId,
        message: &Message,
        (giving, token): (Giving, Option<Token>),
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let choice = match self.groups.get_mut(id.slot, id.generation) {
            Some(group) if view.remaining_expiry(now).is_ok() => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                group.choose(self.settings.shared.strategy, &view, self.random)
            }
            _ => None,
        };
        let Some(Choice { member, connection, options, subscription_id }) = choice else {
            self.counters.dropped_no_member += 1;
            self.answer(now, token, out);
            return;
        };
        let qos = view.qos.min(options.qos());
        match (member, connection) {
            (Member::Session(session), _) if qos > QoS::AtMostOnce => {
                if let (Giving::New, Some(token), Some(reason)) = (giving, token, self.publish_refusal()) {
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
                let group = group.map(|group| (Box::new(group.name().clone()), connection.is_some()));
                let entries = vec![entry];
                let request = Request::Enqueue { session, entries, group, token, page: None };
                out.requests.push((session.shard, request));
            }
            (_, Some(connection)) => {
                let message = message.clone();
                let delivery =
                    MemberDelivery { group: id, connection, message, options, subscription_id, token };
                out.letters.push((connection.worker, Letter::Member(Box::new(delivery))));
            }
            (_, None) => {
                self.counters.dropped_no_member += 1;
                self.answer(now, token, out);
            }
        }
    }

    /// Gives what a member left behind to another.
    pub(super) fn give_left_behind(
        &mut self,
        now: Time,
        name: &GroupName,
        message: &Message,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        let Some((slot, generation)) = self.group_names.get(name).copied() else {
            self.counters.dropped_no_member += 1;
            return self.answer(now, token, out);
        };
        self.give(now, GroupId { shard: self.id, slot, generation }, message, (Giving::Again, token), out);
    }

    /// Answers on behalf of members that are not to be had.
    pub(super) fn answer(&mut self, now: Time, token: Option<Token>, out: &mut ShardOutput) {
        if let Some(token) = token {
            self.answer_with(now, token, ReasonCode::Success, out);
        }
    }

    fn answer_with(&mut self, now: Time, token: Token, reason: ReasonCode, out: &mut ShardOutput) {
        match token {
            Token::Append { shard, key } if shard == self.id => self.taken(now, key, reason, out),
            token => out.acknowledged.push((token, reason)),
        }
    }
}
