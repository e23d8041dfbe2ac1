//! Model of the rules, written as simply as possible: vectors that are searched, and no deferred work.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, Subscription, TopicFilter, TopicName};
use shard::{
    Acknowledgement, Limits, NEVER, NodeIncarnation, Phase, QueueFull, QueueLimits, RequestNumber, ShardSet,
};

#[derive(Default)]
pub struct Model {
    pub now: u64,
    pub limits: Limits,
    pub sessions: BTreeMap<String, Session>,
    pub ephemerals: BTreeMap<String, Ephemeral>,
    /// Last incarnation of each node, and whether it is over. Node 0 has the shard alone.
    pub nodes: BTreeMap<u64, (u64, bool)>,
    pub identities: BTreeSet<(u64, u64)>,
    /// Numbers below which identities are not accepted any more, by origin.
    pub floors: BTreeMap<u64, u64>,
    /// Payload and expiry by topic.
    pub retained: BTreeMap<String, (Vec<u8>, u64)>,
    /// Payloads of Wills that are due.
    pub wills: Vec<Vec<u8>>,
    /// Payloads of orphaned messages.
    pub orphans: Vec<Vec<u8>>,
}

#[derive(Clone, Default, Debug)]
pub struct Session {
    pub owned: bool,
    /// Node of the last Claim.
    pub owner: Option<NodeIncarnation>,
    pub epoch: u32,
    pub window: u16,
    pub expiry_s: u32,
    pub ends: u64,
    pub will: Option<Will>,
    pub subscriptions: BTreeMap<String, (u8, u32)>,
    pub walks: BTreeMap<String, (ShardSet, &'static str)>,
    pub queue_limits: Option<QueueLimits>,
    pub entries: Vec<Entry>,
    pub next: u64,
    /// Number of the last command of the present epoch that had one.
    pub last_number: u64,
    pub received: Vec<u16>,
    pub toggles: BTreeSet<u16>,
}

#[derive(Clone, Debug)]
pub struct Ephemeral {
    pub owner: Option<NodeIncarnation>,
    pub will: Option<Vec<u8>>,
    /// Number of the Claim.
    pub number: Option<RequestNumber>,
}

#[derive(Clone, Debug)]
pub struct Will {
    pub payload: Vec<u8>,
    pub delay_s: u32,
    pub due: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub n: u64,
    pub payload: Vec<u8>,
    pub size: u64,
    pub qos: QoS,
    pub retain: bool,
    pub ids: Vec<u32>,
    pub expires: u64,
    pub grouped: bool,
    pub phase: Phase,
    pub over: bool,
}

/// An incoming message.
#[derive(Clone)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub payload: Vec<u8>,
    pub size: u64,
    pub qos: QoS,
    pub retain: bool,
    pub expires: u64,
    pub publisher: &'a str,
}

fn after(now: u64, seconds: u32) -> u64 {
    if seconds == u32::MAX { NEVER } else { now + u64::from(seconds) * 1000 }
}

impl Model {
    /// Returns whether a message with the identity was accepted, or will never be.
    pub fn knows(&self, (origin, number): (u64, u64)) -> bool {
        self.floors.get(&origin).is_some_and(|floor| number < *floor)
            || self.identities.contains(&(origin, number))
    }

    pub fn forget_below(&mut self, origin: u64, number: u64) {
        self.identities.retain(|(of, known)| *of != origin || *known >= number);
        let floor = self.floors.entry(origin).or_default();
        *floor = number.max(*floor);
    }

    /// Applies the whole effect of a sequence of Ticks, however many it takes.
    pub fn tick(&mut self) {
        for client in self.sessions.keys().cloned().collect::<Vec<_>>() {
            let session = &self.sessions[&client];
            if !session.owned && session.ends <= self.now {
                self.end(&client);
            } else if session.will.as_ref().is_some_and(|will| will.due <= self.now) {
                let will = self.sessions.get_mut(&client).and_then(|session| session.will.take());
                self.wills.extend(will.map(|will| will.payload));
            }
        }
        self.retained.retain(|_, (_, expires)| *expires > self.now || *expires == NEVER);
    }

    /// Releases the sessions whose owner is one of these.
    fn release_owned(&mut self, is_gone: impl Fn(Option<NodeIncarnation>) -> bool) {
        let owned = self.sessions.iter().filter(|(_, session)| session.owned && is_gone(session.owner));
        for client in owned.map(|(client, _)| client.clone()).collect::<Vec<_>>() {
            self.release(&client, None, true);
        }
        let owned = self.ephemerals.iter().filter(|(_, session)| is_gone(session.owner));
        for client in owned.map(|(client, _)| client.clone()).collect::<Vec<_>>() {
            self.end_ephemeral(&client, true);
        }
    }

    pub fn end_ephemeral(&mut self, client: &str, arm: bool) {
        let session = self.ephemerals.remove(client);
        self.wills.extend(session.and_then(|session| session.will).filter(|_| arm));
    }

    pub fn start_alone(&mut self) {
        self.nodes = BTreeMap::new();
        self.release_owned(|_| true);
    }

    pub fn end_node(&mut self, ended: NodeIncarnation) {
        let last = self.nodes.get(&ended.node).map_or(0, |(incarnation, _)| *incarnation);
        if last <= ended.incarnation {
            self.nodes.insert(ended.node, (ended.incarnation, true));
        }
        self.release_owned(|owner| {
            owner.is_some_and(|owner| owner.node == ended.node && owner.incarnation <= ended.incarnation)
        });
    }

    /// Returns whether an incarnation is over. One that is unknown is not.
    pub fn is_over(&self, owner: NodeIncarnation) -> bool {
        let last = self.nodes.get(&owner.node);
        last.is_some_and(|(last, is_over)| {
            *last > owner.incarnation || *last == owner.incarnation && *is_over
        })
    }

    /// Returns whether an incarnation may claim sessions and send messages.
    pub fn enter(&mut self, owner: Option<NodeIncarnation>) -> bool {
        let Some(NodeIncarnation { node, incarnation }) = owner else { return true };
        match self.nodes.get(&node) {
            Some((last, is_over)) if *last == incarnation => !is_over,
            Some((last, _)) if *last > incarnation => false,
            _ => {
                self.release_owned(|owner| owner.is_some_and(|owner| owner.node == node));
                self.nodes.insert(node, (incarnation, false));
                true
            }
        }
    }

    /// Returns whether the session existed; `None` when there is none now.
    pub fn claim(
        &mut self,
        client: &str,
        owner: Option<NodeIncarnation>,
        (clean, expiry_s, window): (bool, u32, u16),
        queue_limits: Option<QueueLimits>,
        will: Option<Will>,
    ) -> (bool, Option<u32>) {
        self.end_ephemeral(client, true);
        if self.sessions.get(client).is_some_and(|session| session.owned) {
            self.release(client, None, true);
        }
        if self.sessions.get(client).is_some_and(|session| clean || session.ends <= self.now) {
            self.end(client);
        }
        let present = self.sessions.contains_key(client);
        if !present && expiry_s == 0 {
            return (false, None);
        }
        let session = self.sessions.entry(client.to_owned()).or_default();
        let due = session.will.take().filter(|will| will.due <= self.now);
        self.wills.extend(due.map(|will| will.payload));
        session.epoch += 1;
        session.last_number = 0;
        (session.owned, session.owner, session.ends) = (true, owner, NEVER);
        (session.window, session.expiry_s, session.will) = (window, expiry_s, will);
        session.queue_limits = queue_limits;
        let epoch = session.epoch;
        self.pump(client);
        (present, Some(epoch))
    }

    fn limits_of(&self, client: &str) -> Limits {
        let own = self.sessions.get(client).and_then(|session| session.queue_limits);
        own.map_or(self.limits, |own| Limits {
            queue_messages_max: own.messages_max,
            queue_bytes_max: own.bytes_max,
            queue_age_max_ms: own.age_max_ms,
            queue_full: own.full,
            ..self.limits
        })
    }

    pub fn release(&mut self, client: &str, expiry_s: Option<u32>, arm: bool) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(client) else { return };
        session.owned = false;
        session.expiry_s = expiry_s.unwrap_or(session.expiry_s);
        session.ends = after(now, session.expiry_s);
        session.will.take_if(|_| !arm);
        if let Some(will) = &mut session.will {
            will.due = after(now, will.delay_s).min(session.ends);
        }
        let due = session.will.take_if(|will| will.due <= now);
        self.wills.extend(due.map(|will| will.payload));
        self.settle(client);
        let max = self.limits_of(client).absent_bytes_max;
        let ends = self.sessions[client].ends;
        while self.sessions[client].waiting_bytes() > max && self.drop_oldest(client) {}
        if ends <= now {
            self.end(client);
        }
    }

    pub fn end(&mut self, client: &str) {
        let Some(session) = self.sessions.remove(client) else { return };
        self.wills.extend(session.will.map(|will| will.payload));
        for entry in session.entries {
            let may_go = match entry.phase {
                Phase::Waiting => true,
                Phase::Pinned => entry.qos == QoS::AtLeastOnce,
                Phase::Received | Phase::Finished => false,
            };
            if entry.grouped && may_go {
                self.orphans.push(entry.payload);
            }
        }
    }

    /// Returns the sessions that receive a message, each with the QoS, RETAIN and Subscription Identifiers.
    fn receivers(&self, message: &Message<'_>) -> Vec<(String, QoS, bool, Vec<u32>)> {
        let mut receivers = Vec::new();
        let topic = TopicName::parse(message.topic).expect("a topic");
        for client in self.sessions.keys().cloned() {
            let mut best: Option<(u8, bool)> = None;
            let mut ids = Vec::new();
            for (text, (options, id)) in &self.sessions[&client].subscriptions {
                let filter = TopicFilter::parse(text).expect("a filter");
                let shared = Subscription::parse(text).is_ok_and(|parsed| parsed.share.is_some());
                let own = options & 4 != 0 && message.publisher == client;
                if shared || own || !filter.matches(topic) {
                    continue;
                }
                let (qos, retain) = best.unwrap_or_default();
                best = Some((qos.max(options & 3), retain || options & 8 != 0));
                ids.extend((*id != 0).then_some(*id));
            }
            let Some((qos, keeps_retain)) = best else { continue };
            let qos = message.qos.min(QoS::from_bits(qos).expect("a QoS"));
            if qos > QoS::AtMostOnce {
                ids.sort_unstable();
                receivers.push((client, qos, message.retain && keeps_retain, ids));
            }
        }
        receivers
    }

    /// Returns whether the queue of a session refuses a message of a publisher that waits.
    pub fn refuses(&self, client: &str, size: u64) -> bool {
        let limits = self.limits_of(client);
        let session = &self.sessions[client];
        let is_too_much = !session.owned && session.waiting_bytes() + size > limits.absent_bytes_max;
        limits.queue_full == QueueFull::Refuse && (session.is_full(&limits) || is_too_much)
    }

    /// Returns whether a session refuses a message.
    pub fn refuses_publish(&self, message: &Message<'_>) -> bool {
        self.receivers(message).iter().any(|(client, ..)| self.refuses(client, message.size))
    }

    pub fn publish(&mut self, message: &Message<'_>, wait: bool) -> u32 {
        let receivers = self.receivers(message);
        let matched = receivers.len() as u32;
        for (client, qos, retain, ids) in receivers {
            self.enqueue(&client, message, qos, retain, ids, false, wait);
        }
        matched
    }

    #[expect(clippy::too_many_arguments, reason = "all fields of a queued message")]
    pub fn enqueue(
        &mut self,
        client: &str,
        message: &Message<'_>,
        qos: QoS,
        retain: bool,
        ids: Vec<u32>,
        grouped: bool,
        wait: bool,
    ) {
        let limits = self.limits_of(client);
        let session = &self.sessions[client];
        let mut over = false;
        if session.owned {
            over = session.is_full(&limits);
            if over && !wait {
                return;
            }
        } else {
            loop {
                let session = &self.sessions[client];
                let bytes = session.waiting_bytes() + message.size;
                if !session.is_full(&limits) && bytes <= limits.absent_bytes_max {
                    break;
                }
                if limits.queue_full != QueueFull::DropOldest || !self.drop_oldest(client) {
                    return;
                }
            }
        }
        let session = self.sessions.get_mut(client).expect("is there");
        let n = session.next;
        session.next += 1;
        let (payload, size) = (message.payload.clone(), message.size);
        let expires = message.expires.min(self.now.saturating_add(limits.queue_age_max_ms));
        let phase = Phase::Waiting;
        session.entries.push(Entry { n, payload, size, qos, retain, ids, expires, grouped, phase, over });
        self.pump(client);
    }

    fn drop_oldest(&mut self, client: &str) -> bool {
        let session = self.sessions.get_mut(client).expect("is there");
        let oldest = session.entries.iter().position(|entry| entry.phase == Phase::Waiting);
        oldest.map(|at| session.entries.remove(at)).is_some()
    }

    /// Settles the messages beyond the limits by the rule for full queues.
    pub fn settle(&mut self, client: &str) {
        loop {
            let limits = self.limits_of(client);
            let Some(session) = self.sessions.get_mut(client) else { return };
            session.move_up(&limits);
            if !session.entries.iter().any(|entry| entry.over) {
                return;
            }
            match limits.queue_full {
                QueueFull::DropOldest => {
                    self.drop_oldest(client);
                }
                QueueFull::DropNewest | QueueFull::Refuse => {
                    session.entries.retain(|entry| !entry.over);
                    let waiting = session.entries.iter().filter(|entry| entry.phase == Phase::Waiting);
                    let waiting = waiting.count() as u64;
                    // Numbers of deliveries that were never opened are given again.
                    let first = session.entries.iter().find(|entry| entry.phase == Phase::Waiting);
                    session.next = first.map_or(session.next, |first| first.n + waiting);
                }
            }
        }
    }

    pub fn pump(&mut self, client: &str) {
        let (now, limits) = (self.now, self.limits_of(client));
        let Some(session) = self.sessions.get_mut(client).filter(|session| session.owned) else { return };
        loop {
            let unfinished = session.entries.iter().filter(|entry| entry.phase != Phase::Waiting);
            let pinned = session.entries.iter().filter(|entry| entry.phase == Phase::Pinned);
            let bytes: u64 = pinned.map(|entry| entry.size).sum();
            let (pinned_max, bytes_max) = match client.starts_with(shard::LINK) {
                true => (shard::LINK_PINNED_MAX, shard::LINK_PINNED_BYTES_MAX.min(limits.queue_bytes_max)),
                false => (shard::PINNED_MAX, limits.queue_bytes_max),
            };
            let window = usize::from(session.window.clamp(1, pinned_max));
            if unfinished.count() >= window || (bytes >= bytes_max && bytes > 0) {
                break;
            }
            let next = session.entries.iter_mut().find(|entry| entry.phase == Phase::Waiting);
            let Some(next) = next else { break };
            if next.expires > now || next.expires == NEVER {
                (next.phase, next.over) = (Phase::Pinned, false);
            } else {
                let n = next.n;
                session.entries.retain(|entry| entry.n != n);
            }
        }
        session.move_up(&limits);
    }

    /// Returns true when the delivery is known.
    pub fn acknowledge(&mut self, client: &str, id: u16, kind: Acknowledgement) -> bool {
        let session = self.sessions.get_mut(client).expect("is there");
        let open =
            |entry: &&mut Entry| entry.phase != Phase::Waiting && shard::packet_id(entry.n).get() == id;
        let Some(entry) = session.entries.iter_mut().find(open) else { return false };
        let finished = match (kind, entry.phase, entry.qos) {
            (Acknowledgement::PubAck, Phase::Pinned, QoS::AtLeastOnce)
            | (Acknowledgement::PubRecRefused, Phase::Pinned, QoS::ExactlyOnce)
            | (Acknowledgement::PubComp, Phase::Received, _)
            | (Acknowledgement::Skip, Phase::Pinned, _) => true,
            (Acknowledgement::PubRec, Phase::Pinned | Phase::Received, QoS::ExactlyOnce) => false,
            _ => return false,
        };
        entry.phase = Phase::Received;
        let n = entry.n;
        session.entries.retain(|entry| !(finished && entry.n == n));
        self.pump(client);
        true
    }
}

impl Session {
    fn waiting_bytes(&self) -> u64 {
        let waiting = self.entries.iter().filter(|entry| entry.phase == Phase::Waiting);
        waiting.map(|entry| entry.size).sum()
    }

    fn within(&self) -> (u32, u64) {
        let within = self.entries.iter().filter(|entry| entry.phase == Phase::Waiting && !entry.over);
        within.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.size))
    }

    fn is_full(&self, limits: &Limits) -> bool {
        let (count, bytes) = self.within();
        let others_wait = self.entries.iter().any(|entry| entry.over);
        others_wait || count >= limits.queue_messages_max || bytes >= limits.queue_bytes_max
    }

    fn move_up(&mut self, limits: &Limits) {
        while let Some(at) = self.entries.iter().position(|entry| entry.over) {
            let (count, bytes) = self.within();
            if count >= limits.queue_messages_max || bytes >= limits.queue_bytes_max {
                return;
            }
            self.entries[at].over = false;
        }
    }
}
