//! Messages for durable sessions: their place in the queue, their way through the connection's window.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{PacketId, QoS, ReasonCode, TopicName};
use session::{PubRecOutcome, Resend, Settled};

use super::{Append, IDENTITIES_MAX, MemoryShard, Overflow, Session, ShardOutput, Waiter};
use crate::ids::{ConnectionId, GroupId, SessionId, Time};
use crate::mail::{SessionDelivery, SubscriptionIds, Token};
use crate::message::Message;
use crate::route::{Options, Route, RouteKind};
use crate::settings::{QueueFull, Settings};
use crate::store::{Acknowledgement, Completion, Enqueue, Identity};

impl MemoryShard {
    /// A message that is known: answered when the first has its places. `Err` with its identity, if it has one, when it is not.
    pub(super) fn append_again(
        &mut self,
        identity: Option<Identity>,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) -> Result<(), Option<Identity>> {
        let Some(known) = identity.and_then(|identity| self.identities.get(&identity)) else {
            return Err(identity);
        };
        match *known {
            Some(key) => self.appends[key as usize].again.extend(token),
            None => out.acknowledged.extend(token.map(|token| (token, ReasonCode::Success))),
        }
        Ok(())
    }

    pub(super) fn forget_origin(&mut self, origin: u64) {
        let (first, last) = (Identity { origin, number: 0 }, Identity { origin, number: u64::MAX });
        let known: Vec<_> = self.identities.range(first..=last).map(|(identity, _)| *identity).collect();
        for identity in known {
            self.identities.remove(&identity);
        }
    }

    pub(super) fn append(
        &mut self,
        now: Time,
        message: &Message,
        (sessions, groups): (bool, bool),
        identity: Option<Identity>,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let Ok(topic) = TopicName::parse(view.topic) else {
            out.acknowledged.extend(token.map(|token| (token, ReasonCode::TopicNameInvalid)));
            return;
        };
        let mut matches = std::mem::take(&mut self.matches);
        matches.clear();
        if self.reader.matches(topic, &mut matches) > 1 {
            matches.sort_unstable_by_key(|route| (route.kind, route.slot));
        }
        let append = token.map(|token| self.new_append(Waiter::Token(token)));
        if let Some(identity) = identity {
            self.identities.remove(&identity.twin());
            if self.identities.len() >= IDENTITIES_MAX {
                self.identities.pop_first();
            }
            self.identities.insert(identity, append);
            if let Some(key) = append {
                self.appends[key as usize].identity = Some(identity);
            }
        }
        let mut ids = Vec::new();
        let mut rest = matches.as_slice();
        while let Some(first) = rest.first() {
            let same =
                rest.iter().take_while(|route| (route.kind, route.slot) == (first.kind, first.slot)).count();
            let (routes, after) = rest.split_at(same);
            rest = after;
            match first.kind {
                RouteKind::Session if sessions => {
                    self.append_to_session(now, message, routes, append, &mut ids, out)
                }
                RouteKind::Group if groups => {
                    let group = GroupId { shard: self.id, slot: first.slot, generation: first.generation };
                    let token = append.map(|key| {
                        self.appends[key as usize].remaining += 1;
                        Token::Append { shard: self.id, key }
                    });
                    self.give(now, group, message, token, out);
                }
                _ => {}
            }
        }
        self.matches = matches;
        self.reader.quiescent();
        self.one_taken(append, out);
    }

    pub(super) fn append_to_session(
        &mut self,
        now: Time,
        message: &Message,
        routes: &[Route],
        append: Option<u32>,
        ids: &mut Vec<u32>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        let (slot, generation) = (routes[0].slot, routes[0].generation);
        let Some(session) = self.sessions.get(slot, generation) else { return };
        let own =
            view.publisher.is_some() && [session.last_owner, session.past_owner].contains(&view.publisher);
        ids.clear();
        let mut merged: Option<Options> = None;
        // [MQTT-3.8.3-3] for each subscription, then one copy for all of them [MQTT-3.3.4-2] [MQTT-3.3.4-4].
        for route in routes.iter().filter(|route| !(own && route.options.no_local())) {
            merged = Some(merged.map_or(route.options, |options| options.merge(route.options)));
            if route.subscription_id != 0 {
                ids.push(route.subscription_id);
            }
        }
        let Some(options) = merged else { return };
        let qos = view.qos.min(options.qos());
        if qos == QoS::AtMostOnce {
            return;
        }
        let entry = Enqueue {
            message: message.clone(),
            qos,
            retain: view.retain && options.retain_as_published(),
            subscription_ids: SubscriptionIds::of(ids),
            group: None,
        };
        // What nobody waits for is the node's own, such as a Will: it never waits beyond the queue.
        let deadline = append.map(|_| now.after(self.settings.queue.wait));
        self.enqueue(now, slot, generation, entry, append, deadline, out);
    }

    pub(super) fn new_append(&mut self, waiter: Waiter) -> u32 {
        let (again, identity, reason) = (Vec::new(), None, ReasonCode::Success);
        self.appends.insert(Append { waiter, again, identity, remaining: 1, reason }) as u32
    }

    pub(super) fn enqueue_request(
        &mut self,
        now: Time,
        id: SessionId,
        entries: Vec<Enqueue>,
        waiter: Option<Waiter>,
        out: &mut ShardOutput,
    ) {
        // What no publisher waits for has been acknowledged to it: it waits until there is a place.
        let deadline = match waiter {
            Some(Waiter::Token(_)) => now.after(self.settings.queue.wait),
            Some(Waiter::Page(_) | Waiter::Will { .. }) | None => Time::NEVER,
        };
        let append = waiter.map(|waiter| self.new_append(waiter));
        for entry in entries {
            if self.sessions.get(id.slot, id.generation).is_some() {
                self.enqueue(now, id.slot, id.generation, entry, append, Some(deadline), out);
            } else {
                self.bounce_or_drop(entry, out);
            }
        }
        self.one_taken(append, out);
    }

    /// Gives a message its place in a session's queue; when that is full it waits until `deadline`, while somebody reads, and
    /// so does its publisher. Without a deadline it is dropped.
    #[expect(clippy::too_many_arguments, reason = "a message, its session, and who waits for it")]
    pub(super) fn enqueue(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        entry: Enqueue,
        append: Option<u32>,
        deadline: Option<Time>,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        let full = session.is_full(&self.settings) || !session.overflow.is_empty();
        if full && session.owner.is_some() {
            let Some(deadline) = deadline else {
                self.counters.dropped_queue_full += 1;
                return;
            };
            if let Some(key) = append {
                self.appends[key as usize].remaining += 1;
            }
            session.overflow_bytes += entry.message.size();
            *self.held.of(session) += entry.message.size() as u64;
            session.overflow.push_back(Overflow { entry, append, deadline });
            if !std::mem::replace(&mut session.backlogged, true) {
                self.backlog.push(slot, generation);
            }
            if deadline < session.armed {
                self.arm(slot, generation);
            }
            return;
        }
        self.admit(slot, generation, entry);
        self.pump(now, slot, generation, out);
        self.note_backlog(slot, generation);
    }

    /// Something may wait for a session that is connected.
    fn note_backlog(&mut self, slot: u32, generation: u32) {
        if let Some(session) = self.sessions.get_mut(slot, generation)
            && session.owner.is_some()
            && session.deliveries.waiting() > 0
            && !std::mem::replace(&mut session.backlogged, true)
        {
            self.backlog.push(slot, generation);
        }
    }

    /// Puts a message into the queue, by the rule for full queues when it is.
    pub(super) fn admit(&mut self, slot: u32, generation: u32, entry: Enqueue) {
        let absent_max = self.absent_bytes_max();
        let size = entry.message.size();
        let is_full = |session: &Session, settings: &Settings| {
            session.is_full(settings) || session.owner.is_none() && session.waiting_bytes + size > absent_max
        };
        while self.sessions.get(slot, generation).is_some_and(|session| is_full(session, &self.settings)) {
            self.counters.dropped_queue_full += 1;
            let makes_room = self.settings.queue.full == QueueFull::DropOldest;
            if !(makes_room && self.skip_waiting(slot, generation)) {
                return;
            }
        }
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        session.waiting_bytes += size;
        *self.held.of(session) += size as u64;
        self.counters.queued_messages += 1;
        self.counters.queued_bytes += size as u64;
        session.deliveries.wait(entry.qos, entry);
    }

    /// Drops the oldest message that waits; false when there is none.
    pub(super) fn skip_waiting(&mut self, slot: u32, generation: u32) -> bool {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return false };
        let Some(dropped) = session.deliveries.skip_waiting() else { return false };
        let size = dropped.message.size();
        session.waiting_bytes -= size;
        *self.held.of(session) -= size as u64;
        self.counters.queued_messages -= 1;
        self.counters.queued_bytes -= size as u64;
        true
    }

    /// Bytes that may wait for a session that is away. When the node has held more than `limits.memory_queued_max` for long,
    /// this is each session's equal share of that.
    pub(super) fn absent_bytes_max(&self) -> usize {
        if !self.load.absent_give_way.load(Relaxed) {
            return usize::MAX;
        }
        let sessions = self.load.sessions.load(Relaxed).max(1);
        (self.settings.limits.memory_queued_max.bytes() / sessions) as usize
    }

    /// A session that goes away keeps what it may then have.
    pub(super) fn trim(&mut self, slot: u32, generation: u32) {
        let absent_max = self.absent_bytes_max();
        while self.sessions.get(slot, generation).is_some_and(|session| session.waiting_bytes > absent_max)
            && self.skip_waiting(slot, generation)
        {
            self.counters.dropped_queue_full += 1;
        }
    }

    pub(super) fn let_overdue_in(&mut self, now: Time, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get(slot, generation) else { return };
        if session.place_freed.after(self.settings.queue.wait) > now {
            return;
        }
        // With the last of them those before it.
        let overdue = session.overflow.iter().rposition(|overflow| overflow.deadline <= now);
        if let Some(last) = overdue {
            self.let_in(now, slot, generation, last + 1, out);
        }
    }

    /// Admits the first `count` of the overflow, full or not.
    pub(super) fn let_in(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        count: usize,
        out: &mut ShardOutput,
    ) {
        for _ in 0..count {
            let Some(session) = self.sessions.get_mut(slot, generation) else { return };
            let Some(Overflow { entry, append, .. }) = session.overflow.pop_front() else { break };
            session.overflow_bytes -= entry.message.size();
            *self.held.of(session) -= entry.message.size() as u64;
            self.admit(slot, generation, entry);
            self.one_taken(append, out);
        }
        self.pump(now, slot, generation, out);
    }

    /// Sends what the connection's window allows: first again what is unfinished, then what waits, in order.
    pub(super) fn pump(&mut self, now: Time, slot: u32, generation: u32, out: &mut ShardOutput) {
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        let Some(connection) = session.owner else { return };
        let window = session.window;
        while let Some(resend) = session.deliveries.resend_next(window) {
            let delivery = match resend {
                Resend::PubRel { packet_id } => SessionDelivery::PubRel { packet_id },
                Resend::Publish { packet_id, qos, payload } => publish(packet_id, qos, true, payload),
            };
            out.deliver(connection, delivery);
        }
        let mut freed = Vec::new();
        loop {
            while let Some(next) = session.deliveries.next_waiting()
                && next.message.view().remaining_expiry(now).is_err()
            {
                let size = next.message.size();
                session.deliveries.skip_waiting();
                session.waiting_bytes -= size;
                *self.held.of(session) -= size as u64;
                self.counters.queued_messages -= 1;
                self.counters.queued_bytes -= size as u64;
                self.counters.dropped_expired += 1;
            }
            // What is in flight is kept whatever happens, so it is bounded in bytes too.
            let room = (session.inflight_bytes as u64) < self.settings.queue.bytes_max.bytes();
            let window = if room || session.deliveries.inflight() == 0 { window } else { 0 };
            let opened = session.deliveries.open_waiting(window, |entry| Some(entry.clone()));
            if let Some((packet_id, qos, entry)) = &opened {
                let size = entry.message.size();
                session.waiting_bytes -= size;
                session.inflight_bytes += size;
                self.counters.queued_messages -= 1;
                self.counters.queued_bytes -= size as u64;
                out.deliver(connection, publish(*packet_id, *qos, false, entry));
            }
            // Places are free again for those that waited for one.
            let before = freed.len();
            while !session.is_full(&self.settings)
                && let Some(Overflow { entry, append, .. }) = session.overflow.pop_front()
            {
                let size = entry.message.size();
                session.overflow_bytes -= size;
                session.waiting_bytes += size;
                session.place_freed = now;
                self.counters.queued_messages += 1;
                self.counters.queued_bytes += size as u64;
                session.deliveries.wait(entry.qos, entry);
                freed.push(append);
            }
            if opened.is_none() && freed.len() == before {
                break;
            }
        }
        for append in freed {
            self.one_taken(append, out);
        }
    }

    pub(super) fn acknowledge(
        &mut self,
        now: Time,
        id: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
        out: &mut ShardOutput,
    ) {
        let Some(session) = self.sessions.get_mut(id.slot, id.generation) else { return };
        if session.owner != Some(connection) {
            return;
        }
        let mut release = |reason| out.complete(Completion::Release { connection, packet_id, reason });
        let done = match kind {
            Acknowledgement::PubAck => match session.deliveries.pub_ack(packet_id) {
                Settled::Finished(entry) => entry,
                Settled::Unknown => None,
            },
            Acknowledgement::PubComp => match session.deliveries.pub_comp(packet_id) {
                Settled::Finished(entry) => entry,
                Settled::Unknown => None,
            },
            Acknowledgement::PubRec { refused } => match session.deliveries.pub_rec(packet_id, refused) {
                PubRecOutcome::Release(entry) => {
                    release(ReasonCode::Success);
                    entry
                }
                PubRecOutcome::ReleaseAgain => {
                    release(ReasonCode::Success);
                    None
                }
                PubRecOutcome::Unknown => {
                    if !refused {
                        release(ReasonCode::PacketIdentifierNotFound);
                    }
                    None
                }
                PubRecOutcome::Refused(entry) => entry,
            },
        };
        let size = done.map_or(0, |entry| entry.message.size());
        session.inflight_bytes -= size;
        *self.held.of(session) -= size as u64;
        self.pump(now, id.slot, id.generation, out);
    }

    pub(super) fn forget(&mut self, id: SessionId, packet_id: PacketId, flip: bool) {
        if let Some(session) = self.sessions.get_mut(id.slot, id.generation) {
            session.received.retain(|&id| id != packet_id.get());
            if flip {
                session.toggles.flip(packet_id);
            }
        }
    }
}

fn publish(packet_id: PacketId, qos: QoS, dup: bool, entry: &Enqueue) -> SessionDelivery {
    SessionDelivery::Publish {
        packet_id,
        qos,
        dup,
        retain: entry.retain,
        message: entry.message.clone(),
        subscription_ids: entry.subscription_ids.clone(),
    }
}
