//! Slots in a session's queue, and the rule for full queues.

use std::sync::Arc;

use crate::bodies::{EntryDetails, Ids};
use crate::command::Enqueue;
use crate::effect::{Answer, DropReason, Effect};
use crate::entry::{Entry, message_size};
use crate::ids::{MessageKey, SessionUid};
use crate::limits::{Limits, QueueFull};
use crate::links::LINK;
use crate::message::NEVER;
use crate::queue::Queue;
use crate::shard::Shard;

/// A message for a session.
pub(super) struct Arrival {
    /// Number of its command.
    pub ordinal: u32,
    pub entry: Entry,
    pub details: EntryDetails,
    pub when_full: WhenFull,
}

/// Behaviour of a full queue of a session with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// The queue accepts it beyond its limits; the publisher waits.
    GoOver,
    /// The queue does not accept it: there is no publisher that could wait, as for a Will.
    Refuse,
    /// The rule for full queues applies, as without a connection.
    MakeRoom,
}

impl Shard {
    pub(super) fn enqueue_one(
        &mut self,
        ordinal: u32,
        key: MessageKey,
        enqueue: &Enqueue<'_>,
        effects: &mut Vec<Effect>,
    ) -> Answer {
        if enqueue.identity.is_some_and(|identity| self.identities.contains(identity)) {
            self.counts.repeated += 1;
            return Answer::Repeated;
        }
        let slot = match self.slot(enqueue.session, effects) {
            Ok(slot) => slot,
            Err(answer) => return answer,
        };
        let view = &enqueue.message;
        let size = message_size(view.encoded_len());
        if self.is_full_and_refuses(slot, size) {
            return Answer::Refused { session: enqueue.session };
        }
        if let Some(identity) = enqueue.identity {
            self.identities.insert(identity);
        }
        let entry = Entry::new(key, size, enqueue.qos, enqueue.retain, false);
        let group = enqueue.group.map(|group| self.group_name(slot, group));
        let details = EntryDetails { expires: view.expires, ids: Ids::of(&enqueue.ids), group };
        // A linked cluster that is slow must not make the publishers of this one wait.
        let is_link = details.group.is_some()
            && self.sessions.at(slot).is_some_and(|session| session.client_id.starts_with(LINK));
        let when_full = if is_link { WhenFull::MakeRoom } else { WhenFull::GoOver };
        self.enqueue(slot, Arrival { ordinal, entry, details, when_full }, effects);
        Answer::Done
    }

    /// Returns the name of a shared subscription, sharing the memory of the last message in the queue if it has the
    /// same.
    fn group_name(&self, slot: u32, group: &str) -> Arc<str> {
        let queue = self.sessions.queue(slot);
        let last = queue.and_then(|queue| queue.get(queue.end().checked_sub(1)?));
        let name = last.and_then(|entry| self.bodies.details(entry)?.group.as_ref());
        name.filter(|name| ***name == *group).cloned().unwrap_or_else(|| group.into())
    }

    /// Queues a message. The session's part was touched and the session is settled.
    pub(super) fn enqueue(&mut self, slot: u32, arrival: Arrival, effects: &mut Vec<Effect>) {
        let Arrival { ordinal, mut entry, mut details, when_full } = arrival;
        let size = entry.size();
        let Some(session) = self.sessions.at_mut(slot) else { return };
        let limits = session.limits(&self.limits);
        let owned = session.has_owner;
        let uid = session.uid;
        let mut over = false;
        if owned && when_full != WhenFull::MakeRoom {
            over = session.queue_mut().is_full(&limits);
            if over && when_full == WhenFull::Refuse {
                self.counts.dropped_queue_full += 1;
                return effects.push(Effect::NotQueued { ordinal, session: uid });
            }
        } else if !self.make_room(slot, size, &limits, effects) {
            self.counts.dropped_queue_full += 1;
            return effects.push(Effect::NotQueued { ordinal, session: uid });
        }
        details.expires = details.expires.min(self.now.saturating_add(limits.queue_age_max_ms));
        let expires = details.expires;
        self.bodies.add(&mut entry, details);
        self.counts.enqueued += 1;
        self.counts.queued_messages += 1;
        self.counts.queued_bytes += size;
        self.counts.held_bytes += size;
        self.counts.held_absent_bytes += if owned { 0 } else { size };
        let now = self.now;
        let Some(session) = self.sessions.at_mut(slot) else { return };
        let window = session.window(&limits);
        let queue = session.queue_mut();
        let first = queue.next_waiting().is_none();
        let n = queue.push(entry, over);
        // While another message waits, this one waits too: the window is closed.
        let turn = owned && first && queue.window_open(window);
        let pinned = turn && (expires == NEVER || expires > now);
        if pinned {
            queue.open_next();
            self.counts.queued_messages -= 1;
            self.counts.queued_bytes -= size;
        }
        effects.push(Effect::Queued { ordinal, session: uid, n, pinned, over });
        if turn && !pinned {
            self.pump(slot, effects);
        }
    }

    /// Returns whether a session's queue has no room for a message of this size, and refuses such messages.
    pub(super) fn is_full_and_refuses(&self, slot: u32, size: u64) -> bool {
        if !self.refusing.contains(&slot) {
            return false;
        }
        let Some(session) = self.sessions.at(slot) else { return false };
        let limits = session.limits(&self.limits);
        let waiting_bytes = session.queue.as_ref().map_or(0, |queue| queue.waiting_bytes());
        let is_too_much = waiting_bytes.saturating_add(size) > limits.absent_bytes_max;
        session.queue.as_ref().is_some_and(|queue| queue.is_full(&limits))
            || !session.has_owner && is_too_much
    }

    /// Makes room in the queue of an absent session, by the rule for full queues. Returns false when that is not
    /// possible.
    fn make_room(&mut self, slot: u32, size: u64, limits: &Limits, effects: &mut Vec<Effect>) -> bool {
        let mut dropped = Dropped::default();
        let room = loop {
            let Some(queue) = self.sessions.queue(slot) else {
                break size <= limits.absent_bytes_max;
            };
            let full =
                queue.is_full(limits) || queue.waiting_bytes().saturating_add(size) > limits.absent_bytes_max;
            if !full {
                break true;
            }
            if limits.queue_full != QueueFull::DropOldest || !self.drop_oldest(slot, &mut dropped) {
                break false;
            }
        };
        self.report_dropped(slot, dropped, effects);
        room
    }

    /// Settles the messages beyond the limits of a session's queue by the rule for full queues.
    pub(super) fn settle_over(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        let limits = self.limits_of(slot);
        let Some(queue) = self.sessions.queue_mut(slot) else { return };
        let end = queue.end();
        if queue.within() == end {
            return;
        }
        queue.move_up(&limits);
        let mut dropped = Dropped::default();
        match limits.queue_full {
            QueueFull::DropOldest => {
                while self.is_over(slot) && self.drop_oldest(slot, &mut dropped) {
                    if let Some(queue) = self.sessions.queue_mut(slot) {
                        queue.move_up(&limits);
                    }
                }
            }
            QueueFull::DropNewest | QueueFull::Refuse => while self.drop_over(slot, &mut dropped) {},
        }
        self.report_dropped(slot, dropped, effects);
        if let Some(session) = self.sessions.at(slot) {
            effects.push(Effect::Room { session: session.uid, before: end });
        }
    }

    fn is_over(&self, slot: u32) -> bool {
        let queue = self.sessions.queue(slot);
        queue.is_some_and(|queue| queue.within() < queue.end())
    }

    /// Limits of a session.
    pub(super) fn limits_of(&self, slot: u32) -> Limits {
        self.sessions.at(slot).map_or(self.limits, |session| session.limits(&self.limits))
    }

    /// Reduces the queue of a session whose connection goes to the limits of an absent session.
    pub(super) fn trim(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        let mut dropped = Dropped::default();
        let max = self.limits_of(slot).absent_bytes_max;
        let waits_too_much = |shard: &Self| {
            let queue = shard.sessions.queue(slot);
            queue.is_some_and(|queue| queue.waiting_bytes() > max)
        };
        while waits_too_much(self) && self.drop_oldest(slot, &mut dropped) {}
        self.report_dropped(slot, dropped, effects);
    }

    /// Drops the oldest waiting message; returns false when there is none.
    fn drop_oldest(&mut self, slot: u32, dropped: &mut Dropped) -> bool {
        let popped = self.sessions.queue_mut(slot).and_then(Queue::pop_waiting);
        let Some((n, entry)) = popped else { return false };
        dropped.note(n);
        self.counts.dropped_queue_full += 1;
        self.forget_waiting(slot, entry);
        true
    }

    fn drop_over(&mut self, slot: u32, dropped: &mut Dropped) -> bool {
        let queue = self.sessions.queue_mut(slot);
        let Some((n, entry)) = queue.and_then(|queue| Some((queue.end() - 1, queue.pop_over()?))) else {
            return false;
        };
        dropped.note(n);
        self.counts.dropped_queue_full += 1;
        self.forget_waiting(slot, entry);
        true
    }

    /// Releases a waiting message that was removed from its queue and will not be read.
    fn forget_waiting(&mut self, slot: u32, mut entry: Entry) {
        let owned = self.sessions.at(slot).is_some_and(|session| session.has_owner);
        self.counts.queued_messages -= 1;
        self.counts.queued_bytes -= entry.size();
        self.release_entry(&mut entry, owned);
    }

    /// Notes that a session no longer holds a message.
    pub(super) fn release_entry(&mut self, entry: &mut Entry, owned: bool) {
        self.counts.held_bytes -= entry.size();
        self.counts.held_absent_bytes -= if owned { 0 } else { entry.size() };
        self.bodies.remove(entry);
    }

    fn report_dropped(&self, slot: u32, dropped: Dropped, effects: &mut Vec<Effect>) {
        if let (Some((from, to)), Some(session)) = (dropped.0, self.sessions.at(slot)) {
            let reason = DropReason::QueueFull;
            effects.push(Effect::Dropped { session: session.uid, from, to, reason });
        }
    }

    /// Opens the deliveries that the window of the connection allows. Drops a bounded number of expired ones on the
    /// way.
    pub(super) fn pump(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.at(slot) else { return };
        if !self.is_owned(session) {
            return;
        }
        let (uid, limits) = (session.uid, session.limits(&self.limits));
        let window = session.window(&limits);
        let over = session.queue.as_ref().map(|queue| queue.within()).filter(|_| self.is_over(slot));
        let mut expired_left = EXPIRED_AT_ONCE;
        let mut pinned = Run { effects: &mut *effects, session: uid, from: 0, to: 0 };
        while let Some(queue) = self.sessions.queue_mut(slot) {
            let Some(next) = queue.next_waiting() else { break };
            if !queue.window_open(window) {
                break;
            }
            let size = next.size();
            if !self.bodies.is_expired(next, self.now) {
                if let Some(n) = queue.open_next() {
                    pinned.push(n);
                }
                self.counts.queued_messages -= 1;
                self.counts.queued_bytes -= size;
                continue;
            }
            if expired_left == 0 {
                break;
            }
            expired_left -= 1;
            let Some((n, entry)) = queue.pop_waiting() else { break };
            self.counts.dropped_expired += 1;
            self.forget_waiting(slot, entry);
            pinned.expired(n);
        }
        pinned.end();
        let Some(queue) = self.sessions.queue_mut(slot) else { return };
        queue.move_up(&limits);
        if over.is_some_and(|before| queue.within() > before) {
            effects.push(Effect::Room { session: uid, before: queue.within() });
        }
        if expired_left == 0 {
            self.rearm(slot);
        }
    }
}

/// Maximum number of expired messages that are dropped at once, while others wait for the same batch.
const EXPIRED_AT_ONCE: u32 = 4096;

/// Consecutive deliveries that were dropped.
#[derive(Default)]
struct Dropped(Option<(u64, u64)>);

impl Dropped {
    fn note(&mut self, n: u64) {
        let (from, to) = self.0.unwrap_or((n, n));
        self.0 = Some((from.min(n), to.max(n + 1)));
    }
}

/// Deliveries that are reported in runs.
struct Run<'a> {
    effects: &'a mut Vec<Effect>,
    session: SessionUid,
    from: u64,
    to: u64,
}

impl Run<'_> {
    fn push(&mut self, n: u64) {
        if self.from == self.to {
            self.from = n;
        }
        self.to = n + 1;
    }

    fn expired(&mut self, n: u64) {
        self.end();
        let (session, reason) = (self.session, DropReason::Expired);
        if let Some(Effect::Dropped { session: last, to, reason: DropReason::Expired, .. }) =
            self.effects.last_mut()
            && (*last, *to) == (session, n)
        {
            *to = n + 1;
            return;
        }
        self.effects.push(Effect::Dropped { session, from: n, to: n + 1, reason });
    }

    fn end(&mut self) {
        if self.from < self.to {
            let (session, from, to) = (self.session, self.from, self.to);
            self.effects.push(Effect::Pinned { session, from, to });
        }
        self.from = self.to;
    }
}
