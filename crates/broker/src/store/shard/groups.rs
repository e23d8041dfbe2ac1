//! Shared subscription groups, and appends that wait for their members.

use mqtt::{QoS, ReasonCode, TopicFilter};

use super::{Append, MemoryShard, ShardOutput, Waiter};
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::mail::{Letter, MemberDelivery, SubscriptionIds, Token};
use crate::message::Message;
use crate::route::{Options, Route, RouteKind};
use crate::store::group::{Choice, Group, GroupMember};
use crate::store::{Completion, Enqueue, GroupName, Join, Member, Request};

impl MemoryShard {
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
        let uses = self.uses.entry(name.filter.clone()).or_default();
        uses.groups += 1;
        let first = uses.groups == 1;
        let mut inserted = self.routes.insert(filter, route).is_ok();
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
        self.routes.remove(filter, (RouteKind::Group, self.id.0, slot, generation));
        if let Some(uses) = self.uses.get_mut(filter.as_str()) {
            uses.groups -= 1;
            if uses.groups == 0 {
                self.node_routes.remove(filter, (RouteKind::ShardGroups, self.id.0, 0, 0));
            }
            self.forget_uses(filter);
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
        token: Option<Token>,
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
            self.answer(token, out);
            return;
        };
        let qos = view.qos.min(options.qos());
        match (member, connection) {
            (Member::Session(session), _) if qos > QoS::AtMostOnce => {
                let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
                let entry = Enqueue {
                    message: message.clone(),
                    qos,
                    retain: view.retain && options.retain_as_published(),
                    subscription_ids: SubscriptionIds::of(ids),
                    group: Some(id),
                };
                let request = Request::Enqueue { session, entries: vec![entry], token, page: None };
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
                self.answer(token, out);
            }
        }
    }

    /// Answers on behalf of members that are not to be had.
    pub(super) fn answer(&mut self, token: Option<Token>, out: &mut ShardOutput) {
        match token {
            Some(Token::Append { shard, key }) if shard == self.id => self.one_taken(Some(key), out),
            Some(token) => out.acknowledged.push((token, ReasonCode::Success)),
            None => {}
        }
    }

    pub(super) fn one_taken(&mut self, append: Option<u32>, out: &mut ShardOutput) {
        if let Some(key) = append {
            self.taken(key, ReasonCode::Success, out);
        }
    }

    pub(super) fn taken(&mut self, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(append) = self.appends.get_mut(key as usize) else { return };
        if reason.is_error() {
            append.reason = reason;
        }
        append.remaining -= 1;
        if append.remaining == 0 {
            let Append { waiter, again, identity, reason, .. } = self.appends.remove(key as usize);
            if let Some(waits) = identity.and_then(|identity| self.identities.get_mut(&identity)) {
                waits.take_if(|waits| *waits == key);
            }
            out.acknowledged.extend(again.into_iter().map(|token| (token, reason)));
            match waiter {
                Waiter::Token(token) => out.acknowledged.push((token, reason)),
                Waiter::Page(connection) => out.complete(Completion::PageTaken { connection }),
                Waiter::Will { id, shards } => self.will_done(id, shards, out),
            }
        }
    }
}
