//! Messages for durable sessions, and the requests that wait until they are queued.

use std::collections::hash_map::Entry;
use std::time::Duration;

use mqtt::ReasonCode;
use shard::{Command, SessionUid, SessionView};

use super::appends::{Append, Waiter};
use super::live::Over;
use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::batch::{SubscriptionIds, Token};
use crate::groups::GroupRequest;
use crate::ids::{GroupId, SessionId, Time};
use crate::message::Message;
use crate::route::Options;
use crate::store::{Enqueue, EnqueueForGroup, EnqueueToGroup, Identity, QUEUE_REFUSED, session_uid};

impl ShardHost {
    /// Appends a message for the sessions that match.
    pub(super) fn append(
        &mut self,
        now: Time,
        message: Message,
        identity: Option<Identity>,
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) {
        if let Some(identity) = identity {
            if let Some(append) = self.appends.of_identity(identity) {
                // The answer is the same as for the first.
                return append.duplicates.extend(token);
            }
            if self.knows(identity) {
                return out.acknowledged.extend(token.map(|token| (token, ReasonCode::Success)));
            }
        }
        if let (Some(token), Some(reason)) = (token, refusal) {
            self.counters.refused_by_log += 1;
            return out.acknowledged.push((token, reason));
        }
        let append = token.map(|token| self.appends.insert(Waiter::Token(token)));
        if let (Some(key), Some(identity)) = (append, identity) {
            self.appends.identify(key, identity);
        }
        self.publish(now, message, identity, append, out);
    }

    /// Returns whether a message with this identity was accepted, and its publisher may send it again.
    fn knows(&self, identity: Identity) -> bool {
        self.replica.state().knows(identity.into()) && !self.published.forgetting.contains_key(&identity)
    }

    /// Handles that the state has forgotten an identity.
    pub(super) fn forgotten(&mut self, identity: Identity) {
        if let Entry::Occupied(mut entry) = self.published.forgetting.entry(identity) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Answers whether a message with this identity was accepted. One that is being appended is answered later.
    pub(super) fn find_identity(&mut self, identity: Identity, token: Token, out: &mut ShardOutput) {
        if let Some(append) = self.appends.of_identity(identity) {
            return append.duplicates.push(token);
        }
        let is_known = self.knows(identity);
        let reason = if is_known { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers };
        out.acknowledged.push((token, reason));
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
        let view = self.replica.stored(&message.view());
        let identity = identity.map(shard::Identity::from);
        let command = Command::Publish { message: view, wait: append.is_some(), identity };
        self.propose(now, &command, Continuation::Publish { message: message.clone(), append });
        self.acknowledge_when_held(&message, append);
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
        let append = waiter.map(|waiter| self.appends.insert(waiter));
        // The member has gone since the group chose it, and the group does not know that yet. A connected member gets
        // the message.
        let identity = of_group.and_then(|group| group.identity);
        let is_awaited = of_group.is_some_and(|group| group.is_connected);
        // A request that was applied before, perhaps by an earlier leader, gets the same answer again.
        if is_awaited && !self.live.contains_key(&session_uid(id)) && !self.is_repeated() {
            return self.not_accepted(now, append, ReasonCode::ServerUnavailable, out);
        }
        // The shard may have another session for a message that it has chosen the session for.
        let gone = if is_awaited { ReasonCode::ServerUnavailable } else { ReasonCode::ServerBusy };
        let text = of_group.map(|group| group.name.text());
        // The next page waits until this one is in the queue, whatever its durability. An orphan waits until it is on
        // disk. In a cluster only the token leads back to the group when the session ends before that.
        let is_page = append.is_some_and(|key| matches!(self.appends[key].waiter, Waiter::Page(..)));
        let waits = is_page || identity.is_some() || of_group.is_some() && self.replica.is_agreed();
        for entry in entries {
            let Enqueue { message, qos, retain, subscription_ids, group } = entry;
            if let Some(key) = append {
                self.appends[key].remaining += 1;
            }
            let append = if waits { append } else { self.acknowledge_early(now, &message, append, out) };
            let command = Command::Enqueue(shard::Enqueue {
                session: session_uid(id),
                message: self.replica.stored(&message.view()),
                qos,
                retain,
                ids: subscription_ids.as_slice().to_vec(),
                identity: identity.map(shard::Identity::from),
                group: text.as_deref(),
            });
            let continuation = Continuation::Enqueue { message: message.clone(), append, group, gone };
            self.propose(now, &command, continuation);
        }
        self.one_accepted(now, append, out);
    }

    /// Handles a message that the full queue of a session refuses.
    pub(super) fn publish_refused(
        &mut self,
        now: Time,
        uid: SessionUid,
        message: Message,
        key: u32,
        out: &mut ShardOutput,
    ) {
        let Some(append) = self.appends.get(key) else { return };
        if append.waiter.can_be_refused() {
            self.note_dropped(now, uid, 1);
            return self.accepted(now, key, QUEUE_REFUSED, out);
        }
        // Nobody would send it again, as for a Will. So the others get it, and this session does not.
        let identity = append.identity.map(shard::Identity::from);
        let command =
            Command::Publish { message: self.replica.stored(&message.view()), wait: false, identity };
        self.propose(now, &command, Continuation::Publish { message: message.clone(), append: Some(key) });
    }

    /// Handles a message that came again after a change of leader, and was refused by a session, or may have been. A
    /// publisher sends it again. Where nobody would, as for a Will, it counts as accepted: it must not come twice.
    pub(super) fn publish_perhaps_refused(&mut self, now: Time, key: u32, out: &mut ShardOutput) {
        let Some(append) = self.appends.get(key) else { return };
        let is_refused = append.waiter.can_be_refused();
        self.accepted(now, key, if is_refused { QUEUE_REFUSED } else { ReasonCode::Success }, out);
    }

    /// Handles a message for one session that its full queue refuses. Another member of its group may get it.
    pub(super) fn enqueue_refused(
        &mut self,
        now: Time,
        uid: SessionUid,
        message: Message,
        append: Option<u32>,
        out: &mut ShardOutput,
    ) {
        self.note_dropped(now, uid, 1);
        let waiter = append.and_then(|key| self.appends.get(key)).map(|append| &append.waiter);
        if let (Some(key), true) = (append, waiter.is_some_and(Waiter::can_be_refused)) {
            return self.accepted(now, key, QUEUE_REFUSED, out);
        }
        self.note_dropped_message(uid, Some(message), "queue_full", out);
        self.counters.dropped_queue_full += 1;
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

    /// Records the answer of a receiver in another shard. A worker repeats its answers in the next incarnation of its
    /// process.
    pub(super) fn accepted_elsewhere(
        &mut self,
        now: Time,
        key: u32,
        reason: ReasonCode,
        out: &mut ShardOutput,
    ) {
        let answer = self.producers.current_answer();
        if answer.is_none_or(|answer| self.appends.note_answer(key, answer)) {
            self.accepted(now, key, reason, out);
        }
    }

    pub(super) fn accepted(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(append) = self.appends.one_accepted(key, reason) else { return };
        let Append { waiter, duplicates, reason, .. } = append;
        out.acknowledged.extend(duplicates.into_iter().map(|token| (token, reason)));
        match waiter {
            Waiter::Token(token) => out.acknowledged.push((token, reason)),
            Waiter::Page(session, connection) => self.room_for_page(session, connection, out),
            Waiter::Will { id, .. } if is_for_room(reason) && self.hold_will(now, id) => {}
            Waiter::Will { id, receivers } => self.will_done(now, id, receivers.shards),
            Waiter::Orphan { id, receivers } => self.orphan_done(now, id, receivers.shards),
            Waiter::Unsynced(bytes) => self.appends.unsynced -= bytes,
        }
    }

    /// Refuses a message of a shared group, so that the group gives it to another member.
    fn not_accepted(&mut self, now: Time, append: Option<u32>, reason: ReasonCode, out: &mut ShardOutput) {
        if let Some(key) = append {
            self.accepted(now, key, reason, out);
        }
    }

    /// Handles a message for a session that has ended. Another member of its group gets it [MQTT-4.8.2-4].
    pub(super) fn session_gone(
        &mut self,
        now: Time,
        group: Option<(GroupId, ReasonCode)>,
        message: Message,
        append: Option<u32>,
        out: &mut ShardOutput,
    ) {
        let Some((group, reason)) = group else {
            self.counters.dropped_session_ended += 1;
            return self.one_accepted(now, append, out);
        };
        let is_unsynced = append
            .and_then(|key| self.appends.get(key))
            .is_none_or(|append| matches!(append.waiter, Waiter::Unsynced(_)));
        if !is_unsynced {
            return self.not_accepted(now, append, reason, out);
        }
        // The group has got its answer.
        let bounce = GroupRequest::Bounce { group, message, token: None };
        out.group_requests.push((group.shard, bounce));
        self.one_accepted(now, append, out);
    }

    /// Queues a message of a shared group for one of its sessions in this shard. They take turns.
    pub(super) fn enqueue_to_group(&mut self, now: Time, enqueue: EnqueueToGroup, out: &mut ShardOutput) {
        let EnqueueToGroup { name, group, message, identity, token } = enqueue;
        let (text, view) = (name.text(), message.view());
        // For a tenant's `#`, the topic that its mountpoint is below does not exist.
        let is_above = name.filter.strip_suffix("/#") == Some(view.topic);
        let last = self.group_turns.get(&*text).copied();
        let members = self.replica.state().group_members(&text, last).take(MEMBERS_AT_ONCE);
        let candidates = members.filter_map(|session| {
            let (options, id) = session.subscription(&text)?;
            let options = Options::from_byte(options);
            let may_have = !is_above || !options.is_behind_mountpoint();
            may_have.then_some((session, options, id))
        });
        // One that may end before the message is queued is the last choice.
        let mut last_choice = None;
        let chosen = candidates.into_iter().find(|candidate| {
            let ends_soon = self.ends_soon(candidate.0);
            if ends_soon {
                last_choice.get_or_insert(*candidate);
            }
            !ends_soon
        });
        let Some((session, options, id)) = chosen.or(last_choice) else {
            return out.acknowledged.push((token, ReasonCode::ServerUnavailable));
        };
        let (uid, qos) = (session.uid(), view.qos.min(options.qos()));
        let retain = view.retain && options.retain_as_published();
        let ids: &[u32] = if id == 0 { &[] } else { &[id] };
        self.group_turns.insert(text.into(), uid);
        let subscription_ids = SubscriptionIds::of(ids);
        let entry = Enqueue { message, qos, retain, subscription_ids, group: Some(group) };
        let group = EnqueueForGroup { name, is_connected: false, identity };
        let waiter = Some(Waiter::Token(token));
        self.enqueue(now, self.session_id(uid), vec![entry], Some(&group), waiter, out);
    }
}

impl ShardHost {
    /// Returns whether a session without a connection may end within seconds, or begin again.
    fn ends_soon(&self, session: SessionView<'_>) -> bool {
        let is_claimed = self.clients.get(session.client_id()).is_some_and(|client| client.underway() > 0);
        let is_live = self.live.contains_key(&session.uid());
        !is_live && (is_claimed || session.ends() < self.replica.state().now().saturating_add(SOON_MS))
    }
}

/// Time in milliseconds in which a session that ends is the last choice of its group.
const SOON_MS: u64 = 10_000;
/// Maximum number of sessions of a group that are looked at for one message.
const MEMBERS_AT_ONCE: usize = 1024;

/// Returns whether the reason is a lack of room of one receiver, whatever others did with the message.
fn is_for_room(reason: ReasonCode) -> bool {
    matches!(reason, ReasonCode::QuotaExceeded | ReasonCode::UnspecifiedError)
}
