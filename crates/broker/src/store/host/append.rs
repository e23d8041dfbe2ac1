//! Messages for durable sessions and groups, and the requests that wait until they are queued.

use std::time::Duration;

use mqtt::{ReasonCode, TopicName};
use shard::{Command, SessionUid};

use super::appends::{Append, Ordered, Waiter};
use super::groups::GroupDelivery;
use super::live::Over;
use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::batch::Token;
use crate::ids::{GroupId, SessionId, Time};
use crate::message::Message;
use crate::route::RouteKind;
use crate::store::{Enqueue, EnqueueForGroup, Identity, Request, session_uid};

impl ShardHost {
    /// Appends a message for the sessions or groups that match, or for both.
    pub(super) fn append(
        &mut self,
        now: Time,
        message: Message,
        (sessions, groups): (bool, bool),
        identity: Option<Identity>,
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) {
        if !sessions && identity.is_none() && self.append_to_group(now, &message, (refusal, token), out) {
            return;
        }
        if let Some(identity) = identity {
            if let Some(append) = self.appends.of_identity(identity) {
                // The answer is the same as for the first.
                return append.duplicates.extend(token);
            }
            if self.replica.state().knows(identity.into()) {
                return out.acknowledged.extend(token.map(|token| (token, ReasonCode::Success)));
            }
        }
        if let (true, Some(token), Some(reason)) = (sessions, token, refusal) {
            self.counters.refused_by_log += 1;
            return out.acknowledged.push((token, reason));
        }
        let append = token.map(|token| self.appends.insert(Waiter::Token(token)));
        let Some(identity) = identity else {
            if groups {
                self.deliver_to_groups(now, &message, (refusal, append), out);
            }
            return if sessions {
                self.publish(now, message, None, append, out);
            } else {
                self.one_accepted(now, append, out);
            };
        };
        if let Some(key) = append {
            self.appends.identify(key, identity);
        }
        if !groups && !self.appends.has_ordered(identity) {
            return self.publish(now, message, Some(identity), append, out);
        }
        // A message whose identity is known is not dispatched again, so the groups get it first. A crash in between may
        // bring it twice to a group, but loses it for none.
        let ordered = Ordered { identity, message: message.clone(), append, accepted: None };
        self.appends.push_ordered(ordered);
        let first = self.appends.insert(Waiter::Groups(identity));
        if groups {
            self.deliver_to_groups(now, &message, (refusal, Some(first)), out);
        }
        self.one_accepted(now, Some(first), out);
    }

    /// Continues after the groups have a message or have refused it: the sessions get the messages of its publisher in
    /// their order [MQTT-4.6.0-6].
    fn groups_took(&mut self, now: Time, identity: Identity, reason: ReasonCode, out: &mut ShardOutput) {
        for Ordered { identity, message, append, accepted } in self.appends.groups_took(identity, reason) {
            match append.zip(accepted.filter(|reason| reason.is_error())) {
                Some((append, reason)) => self.accepted(now, append, reason, out),
                None => self.publish(now, message, Some(identity), append, out),
            }
        }
    }

    pub(super) fn publish(
        &mut self,
        now: Time,
        message: Message,
        identity: Option<Identity>,
        append: Option<u32>,
        out: &mut ShardOutput,
    ) {
        self.notice_lack_of_memory(now);
        let append = self.acknowledge_early(now, &message, append, out);
        let view = message.view().stored();
        let identity = identity.map(shard::Identity::from);
        let command = Command::Publish { message: view, wait: append.is_some(), identity };
        self.propose(now, &command, Continuation::Publish { message: message.clone(), append });
    }

    /// Gives the message to one member of each group that matches; `append` waits for them.
    fn deliver_to_groups(
        &mut self,
        now: Time,
        message: &Message,
        (refusal, append): (Option<ReasonCode>, Option<u32>),
        out: &mut ShardOutput,
    ) {
        let Ok(topic) = TopicName::parse(message.view().topic) else { return };
        let matches = self.groups.matching(topic);
        for route in matches.iter().filter(|route| route.kind == RouteKind::Group) {
            let group = GroupId { shard: self.id, slot: route.slot, generation: route.generation };
            let token = append.map(|key| {
                let append = &mut self.appends[key];
                append.remaining += 1;
                append.groups = append.groups.saturating_add(1);
                Token::Append { shard: self.id, key }
            });
            self.deliver_to_member(
                now,
                group,
                message,
                GroupDelivery { refusal, token, ..GroupDelivery::default() },
                out,
            );
        }
        self.groups.reuse(matches);
    }

    /// Queues messages for one session: retained ones of a new subscription, or one of a shared group.
    pub(super) fn enqueue(
        &mut self,
        now: Time,
        id: SessionId,
        entries: Vec<Enqueue>,
        of_group: Option<&EnqueueForGroup>,
        waiter: Option<Waiter>,
        out: &mut ShardOutput,
    ) {
        let asker = waiter.as_ref().and_then(Waiter::asker);
        let append = waiter.map(|waiter| self.appends.insert(waiter));
        // The member has gone since the group chose it, and the group does not know that yet. A connected member gets
        // the message.
        let identity = of_group.and_then(|group| group.identity);
        let is_awaited = of_group.is_some_and(|group| group.is_connected);
        if is_awaited && !self.live.contains_key(&session_uid(id)) {
            for entry in entries {
                self.redeliver(entry.group, entry.message, identity, append, out);
            }
            return self.one_accepted(now, append, out);
        }
        let text = of_group.map(|group| group.name.text());
        // The next page waits until this one is in the queue, whatever its durability.
        let is_page = append.is_some_and(|key| matches!(self.appends[key].waiter, Waiter::Page(..)));
        for entry in entries {
            let Enqueue { message, qos, retain, subscription_ids, group } = entry;
            if let Some(key) = append {
                self.appends[key].remaining += 1;
            }
            let append = if is_page { append } else { self.acknowledge_early(now, &message, append, out) };
            if identity.is_some() {
                if let Some(key) = append {
                    self.appends[key].identity = identity;
                }
                let by = self.id;
                asker.into_iter().for_each(|asker| asker.remembered(by, out));
            }
            let command = Command::Enqueue(shard::Enqueue {
                session: session_uid(id),
                message: message.view().stored(),
                qos,
                retain,
                ids: subscription_ids.as_slice().to_vec(),
                identity: identity.map(shard::Identity::from),
                group: text.as_deref(),
            });
            self.propose(now, &command, Continuation::Enqueue { message: message.clone(), append, group });
        }
        self.one_accepted(now, append, out);
    }

    /// Records that a message is queued beyond the limits of a session's queue: its publisher waits until it is within
    /// them.
    pub(super) fn queue_exceeded(
        &mut self,
        now: Time,
        uid: SessionUid,
        n: u64,
        append: Option<u32>,
        waits: bool,
    ) {
        let queue = &self.settings.queue;
        let waiting = self.waiting_before(uid, n);
        let Some(live) = self.live.get_mut(&uid) else { return };
        if let Some(key) = append {
            self.appends[key].remaining += 1;
        }
        live.becomes_full(now, waiting);
        let patience = if live.drops { Duration::ZERO } else { queue.full_wait };
        let deadline = if waits { now.after(patience) } else { Time::NEVER };
        live.over.push_back(Over { n, append, deadline });
        let due = live.due_of(deadline, queue);
        self.appends.arm(&mut self.live, uid, due);
    }

    /// Number of messages that wait in a session's queue before delivery `end`.
    pub(super) fn waiting_before(&self, uid: SessionUid, end: u64) -> u64 {
        self.replica.state().session(uid).map_or(0, |session| end.saturating_sub(session.waiting().start))
    }

    /// Records that everything before delivery `before` is within the limits.
    pub(super) fn room_freed(&mut self, now: Time, uid: SessionUid, before: u64, out: &mut ShardOutput) {
        let mut freed = Vec::new();
        let waiting = self.waiting_before(uid, before);
        if let Some(live) = self.live.get_mut(&uid) {
            live.place_freed = now;
            live.turns_over(now, waiting);
            while let Some(over) = live.over.pop_front_if(|over| over.n < before) {
                freed.push(over.append);
            }
            if live.over.is_empty() {
                live.full.ends(now);
            }
        }
        for append in freed {
            self.one_accepted(now, append, out);
        }
    }

    pub(super) fn one_accepted(&mut self, now: Time, append: Option<u32>, out: &mut ShardOutput) {
        if let Some(key) = append {
            self.accepted(now, key, ReasonCode::Success, out);
        }
    }

    pub(super) fn accepted(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(append) = self.appends.one_accepted(key, reason) else { return };
        let Append { waiter, duplicates, reason, .. } = append;
        out.acknowledged.extend(duplicates.into_iter().map(|token| (token, reason)));
        match waiter {
            Waiter::Token(token) => out.acknowledged.push((token, reason)),
            Waiter::Page(session, connection) => self.room_for_page(session, connection, out),
            Waiter::Groups(identity) => self.groups_took(now, identity, reason, out),
            Waiter::Will { id, .. } if is_for_room(reason) && self.hold_will(now, id) => {}
            Waiter::Will { id, shards } => self.will_done(now, id, shards),
            Waiter::Orphan { id, shards } => self.orphan_done(now, id, shards),
            Waiter::Unsynced(bytes) => self.appends.unsynced -= bytes,
        }
    }

    /// Gives a group's message to another member, because the session it was for has ended [MQTT-4.8.2-4].
    pub(super) fn redeliver(
        &mut self,
        group: Option<GroupId>,
        message: Message,
        identity: Option<Identity>,
        append: Option<u32>,
        out: &mut ShardOutput,
    ) {
        let Some(group) = group else {
            self.counters.dropped_session_ended += 1;
            return;
        };
        let token = append.map(|key| {
            self.appends[key].remaining += 1;
            Token::Append { shard: self.id, key }
        });
        out.requests.push((group.shard, Request::Bounce { group, message, identity, token }));
    }
}

/// Returns whether the reason is a lack of room of one receiver, whatever others did with the message.
fn is_for_room(reason: ReasonCode) -> bool {
    matches!(reason, ReasonCode::QuotaExceeded | ReasonCode::UnspecifiedError)
}
