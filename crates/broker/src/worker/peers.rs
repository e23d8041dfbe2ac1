//! Exchange of messages, completions and retained copies between this worker and other nodes of the cluster.

use std::ops::Range;

use mqtt::{Properties, QoS, ReasonCode};

use super::Worker;
use super::dispatch::Publishing;
use crate::batch::Token;
use crate::connection::{AckKind, PendingAck};
use crate::durability::Durability;
use crate::ids::{ConnectionId, ShardId, Time, hash};
use crate::message::{Message, MessageView};
use crate::peers::{
    Announce, Copies, Forward, Forwarded, FrameExtras, Framed, Inbound, NodeIndex, Outbound, PeerTicket,
    PropagatedCopy, SubackLevel, Wants, encode,
};
use crate::quota::Payers;
use crate::retained::{self, Scan};
use crate::route::Route;
use crate::store::{GroupName, Offer, Request, ShardHost};

/// User Property of SUBSCRIBE that selects the nodes that must know the subscription before SUBACK.
const SUBACK_PROPERTY: &str = "suback";
/// Reason String for a connection whose SUBACK would have to wait for longer than `cluster.suback_timeout`.
const UNKNOWN_ELSEWHERE: &str = "Server busy: other nodes of the cluster have not confirmed in time that they know the subscription; subscribe again";

/// Location of a forwarded message in the frames of this turn, and the hash of its topic.
pub(super) type InFrames = Option<(Range<usize>, u32)>;

/// A message of another node that waits for completions.
pub(super) struct Arrival {
    ticket: PeerTicket,
    outstanding: u32,
    reason: ReasonCode,
    /// True if receivers on this node already have the message. A later error then does not mean that none has it.
    is_given: bool,
}

impl Worker {
    /// Submits the messages for other nodes. Call this at the end of a turn, after the batches for other workers are
    /// sent.
    pub fn send_to_peers(&mut self) {
        if self.outbound.is_empty() {
            return;
        }
        let outbound = std::mem::replace(&mut self.outbound, Outbound::new(self.id));
        if let Some(peers) = self.node.routes.peers() {
            peers.submit(outbound);
        }
    }

    /// Returns the number of bytes that were submitted for other nodes and are not handled yet.
    pub fn peers_backlog(&self) -> usize {
        self.node.routes.peers().map_or(0, |peers| peers.backlog())
    }

    /// Forwards a message to another node on behalf of all `routes`. Returns the number of completions that will come
    /// for the token.
    pub(super) fn forward(
        &mut self,
        routes: &[Route],
        view: &MessageView<'_>,
        framed: &mut InFrames,
        token: Option<Token>,
    ) -> u32 {
        let wants = routes.iter().fold(Wants::NOTHING, |wants, route| wants.with(route.wants()));
        if !wants.takes(view.qos) {
            return 0;
        }
        let (frame, topic_hash) = self.frame(framed, view, FrameExtras::default());
        let stored = wants.includes(Wants::STORED);
        let (to, qos) = (NodeIndex(routes[0].index), view.qos);
        let forward = Forward {
            to,
            frame,
            topic_hash,
            qos,
            stored,
            is_for_durable: stored,
            is_kept: false,
            for_group: false,
            waits: false,
            is_alone: false,
            token,
        };
        self.outbound.forwards.push(forward);
        self.counters.forwarded += 1;
        u32::from(token.is_some())
    }

    /// Marks the retained message that was last forwarded to all nodes as one that a durable session on `to` wants.
    pub(super) fn retained_is_for_durable(&mut self, to: NodeIndex) {
        let others = usize::from(self.node.others());
        let last = self.outbound.forwards.iter_mut().rev().take(others);
        last.filter(|forward| forward.to == to).for_each(|forward| forward.is_for_durable = true);
    }

    /// Marks the message that was last forwarded as one without other receivers.
    pub(super) fn forwarded_alone(&mut self) {
        if let Some(forward) = self.outbound.forwards.last_mut() {
            forward.is_alone = true;
        }
    }

    /// Forwards a retained message to all other nodes. They keep it and, unless it is a copy, deliver it to their
    /// subscribers. Returns the number of completions that will come for the token.
    pub(super) fn forward_retained(
        &mut self,
        view: &MessageView<'_>,
        (stamp, is_copy): (u64, bool),
        token: Option<Token>,
    ) -> u32 {
        let others = self.node.others();
        let mut framed = None;
        for to in (0..others).map(NodeIndex) {
            let (frame, topic_hash) =
                self.frame(&mut framed, view, FrameExtras { stamp, is_copy, group: None });
            // A node that loses the message on the way has not kept it.
            let (qos, stored) = (view.qos, true);
            let forward = Forward {
                to,
                frame,
                topic_hash,
                qos,
                stored,
                is_for_durable: false,
                is_kept: true,
                for_group: false,
                waits: false,
                is_alone: false,
                token,
            };
            self.outbound.forwards.push(forward);
        }
        self.counters.forwarded += u64::from(others);
        if token.is_some() { u32::from(others) } else { 0 }
    }

    /// Returns the location of a message in the frames of this turn, and the hash of its topic.
    fn frame(
        &mut self,
        framed: &mut InFrames,
        view: &MessageView<'_>,
        extras: FrameExtras<'_>,
    ) -> (Range<usize>, u32) {
        let frames = &mut self.outbound.frames;
        let location = framed.get_or_insert_with(|| {
            let start = frames.len();
            encode(view, extras, self.clock.now(), frames);
            (start..frames.len(), hash(view.topic.as_bytes()))
        });
        location.clone()
    }

    /// Forwards a message of a shared group to a member on another node.
    pub(super) fn forward_to_group(&mut self, offer: &Offer) {
        let view = offer.message.view();
        let text = offer.group.text();
        let extras = FrameExtras { group: Some(&text), ..FrameExtras::default() };
        let (frame, topic_hash) = self.frame(&mut None, &view, extras);
        let forward = Forward {
            to: offer.to,
            frame,
            topic_hash,
            qos: view.qos,
            stored: false,
            is_for_durable: false,
            is_kept: false,
            for_group: true,
            waits: offer.waits,
            is_alone: false,
            token: offer.token,
        };
        self.outbound.forwards.push(forward);
        self.counters.forwarded += 1;
    }

    /// Returns the nodes that must know a subscription before SUBACK, as set by the client, the listener or the
    /// settings.
    pub(super) fn suback_level(&self, listener: u16, properties: &Properties<'_>) -> SubackLevel {
        let asked = properties.user_properties().find(|(name, _)| *name == SUBACK_PROPERTY);
        match asked {
            Some((_, "local")) => SubackLevel::Local,
            Some((_, "core")) => SubackLevel::Core,
            Some((_, "region")) => SubackLevel::Region,
            Some((_, "cluster")) => SubackLevel::Cluster,
            _ => self.node.listener_suback(listener).unwrap_or(self.settings.routing.suback),
        }
    }

    /// Announces subscriptions that this node knows to other nodes. Returns true if others must know them before SUBACK
    /// is sent; one more completion then comes.
    pub(super) fn announce(&mut self, connection: ConnectionId, pending: &mut PendingAck) -> bool {
        let level = std::mem::replace(&mut pending.level, SubackLevel::Local);
        let is_awaited =
            level != SubackLevel::Local && !pending.filters.is_empty() && self.node.routes.peers().is_some();
        if is_awaited {
            self.outbound.announces.push(Announce { connection, ticket: pending.ticket, level });
            pending.outstanding = 1;
        }
        is_awaited
    }

    pub(super) fn take_inbound(&mut self, inbound: Inbound) {
        let Inbound { key, messages, acknowledged, copies, announced } = inbound;
        if !messages.is_empty() {
            self.outbound.taken.push(key);
        }
        for message in messages {
            self.forwarded(&message);
        }
        for (token, reason) in acknowledged {
            match token {
                Token::Publish { connection, .. }
                    if reason == ReasonCode::UnspecifiedError && connection.worker == self.id =>
                {
                    self.publish_unknown(connection);
                }
                _ => self.answer(token, reason),
            }
        }
        self.copy_all(copies);
        for (connection, ticket, is_known) in announced {
            if is_known {
                self.one_stored(connection, ticket, AckKind::Sub);
            } else if self.connections.get_mut(connection.slot, connection.generation).is_some() {
                // It is unknown whether other nodes know the subscription, so it is neither granted nor refused.
                self.close_because(connection.slot, ReasonCode::ServerBusy, UNKNOWN_ELSEWHERE);
            }
        }
    }

    fn forwarded(&mut self, Forwarded { frame, ticket }: &Forwarded) {
        let arrival = ticket.map(|ticket| Arrival {
            ticket,
            outstanding: 1,
            reason: ReasonCode::Success,
            is_given: false,
        });
        let key = arrival.map(|arrival| self.arrivals.insert(arrival) as u32);
        match crate::peers::decode(frame, self.clock.now()) {
            Ok(framed) if framed.group.is_some() => {
                self.counters.forwarded_received += 1;
                self.forwarded_to_group(&framed, key);
            }
            Ok(framed) if framed.is_copy => self.keep_copy(&framed, ticket.map(|ticket| ticket.from), key),
            Ok(Framed { name, view, stamp, .. }) => {
                self.node.observe_stamp(stamp);
                self.counters.forwarded_received += 1;
                self.monitor.forwarded(&view);
                let token = key.map(|key| Token::Forwarded { worker: self.id, key });
                let publishing = Publishing { token, is_forwarded: true, stamp, ..Publishing::default() };
                let dispatched = self.dispatch_as(name, view, publishing);
                if let Some(arrival) = key.and_then(|key| self.arrivals.get_mut(key as usize)) {
                    arrival.outstanding += dispatched.outstanding;
                    arrival.reason = dispatched.refused.unwrap_or(ReasonCode::Success);
                    arrival.is_given = dispatched.refused.is_none();
                }
            }
            Err(_) => self.counters.forwarded_malformed += 1,
        }
        if let Some(key) = key {
            self.has_arrived(key, ReasonCode::Success);
        }
    }

    fn forwarded_to_group(&mut self, framed: &Framed<'_>, key: Option<u32>) {
        let Some(group) = framed.group.and_then(GroupName::parse) else { return };
        if let Some(arrival) = key.and_then(|key| self.arrivals.get_mut(key as usize)) {
            arrival.outstanding += 1;
        }
        let token = key.map(|key| Token::Forwarded { worker: self.id, key });
        let (shard, message, refusal) = (group.shard(), framed.view.to_message(), self.node.refusal());
        self.outbox
            .request(shard, Request::DeliverLocally { group: Box::new(group), message, refusal, token });
    }

    /// Keeps a copy of another node's retained message that this node may have missed.
    fn keep_copy(&mut self, framed: &Framed<'_>, copied_by: Option<NodeIndex>, key: Option<u32>) {
        let Framed { view, stamp, .. } = *framed;
        self.node.observe_stamp(stamp);
        let shard = retained::shard_of(view.topic);
        if shard == retained::OWN_TOPICS {
            return;
        }
        self.announce_retained(view.topic);
        if let Some(arrival) = key.and_then(|key| self.arrivals.get_mut(key as usize)) {
            arrival.outstanding += 1;
        }
        let token = key.map(|key| Token::Forwarded { worker: self.id, key });
        let (message, refusal) = (view.to_message(), self.node.refusal());
        if refusal.is_some() {
            self.node.note_retained_missing();
        }
        let stamp = stamp.max(1);
        let payers = Payers::default();
        self.outbox.request(shard, Request::Retain { message, stamp, copied_by, refusal, token, payers });
    }

    /// Passes a copy from `from` on to the nodes that already have all earlier copies of this node.
    pub(super) fn propagate(&mut self, from: NodeIndex, message: &Message, stamp: u64) {
        let extras = FrameExtras { stamp, is_copy: true, group: None };
        let (frame, topic_hash) = self.frame(&mut None, &message.view(), extras);
        let is_own = self.node.is_own_stamp(stamp);
        self.outbound.propagated.push(PropagatedCopy { from, frame, topic_hash, is_own });
    }

    /// Requests the retained messages that this node has missed. Only worker 0 asks, about once a second, on behalf of
    /// all workers.
    pub(super) fn request_missing_retained(&mut self) {
        self.outbound.retained_missing |= self.id.index() == 0 && self.node.take_retained_missing();
    }

    /// Sends another node the deletions of retained messages that it may have missed.
    pub(super) fn copy_deletions(&mut self, to: NodeIndex, which: Copies) {
        let known = self.shards.iter().flat_map(ShardHost::retained_deletions);
        let wanted: Vec<(Box<str>, u64)> = known
            .filter(|(_, at)| self.is_copied(which, *at))
            .map(|(topic, at)| (topic.into(), at))
            .collect();
        for (topic, stamp) in wanted {
            self.send_copy(to, &deletion(&topic, self.clock.now()), stamp, None);
        }
    }

    /// Notifies a node that a topic has no retained message as of `stamp`. A node that did not know this notifies
    /// others.
    pub(super) fn send_deletion(&mut self, to: NodeIndex, topic: &str, stamp: u64) {
        self.send_copy(to, &MessageView { retain: false, ..deletion(topic, self.clock.now()) }, stamp, None);
    }

    /// Sends a retained message, or a deletion, to a node that may have missed it.
    fn send_copy(&mut self, to: NodeIndex, view: &MessageView<'_>, stamp: u64, token: Option<Token>) {
        let extras = FrameExtras { stamp, is_copy: true, group: None };
        let (frame, topic_hash) = self.frame(&mut None, view, extras);
        self.outbound.forwards.push(Forward {
            to,
            frame,
            topic_hash,
            qos: QoS::AtLeastOnce,
            stored: false,
            is_for_durable: false,
            is_kept: true,
            for_group: false,
            waits: false,
            is_alone: false,
            token,
        });
    }

    /// Sends the next page of this worker's retained messages to another node. The page after it follows when this one
    /// has arrived.
    pub(super) fn copy_retained(&mut self, to: NodeIndex, which: Copies, from: Option<(ShardId, Box<str>)>) {
        let connection = ConnectionId { worker: self.id, slot: 0, generation: 0 };
        let done = from.as_ref().map_or(0, |(shard, _)| self.node.retained_shards(self.id, Some(*shard)));
        let page = self.retained_page(Scan { connection, filter: "#".into(), done, from, limit: usize::MAX });
        let is_wanted = |message: &&Message| self.is_copied(which, message.view().publisher_key);
        let messages: Vec<Message> = page.messages.iter().filter(is_wanted).cloned().collect();
        let last = messages.len().saturating_sub(1);
        for (at, message) in messages.iter().enumerate() {
            let view = message.view();
            let next = page.next.clone().filter(|_| at == last);
            let token = next.map(|from| self.copy_token(to, which, from));
            self.send_copy(to, &view, view.publisher_key.max(1), token);
        }
        // This page has no message to send.
        if messages.is_empty()
            && let Some(from) = page.next
        {
            let token = self.copy_token(to, which, from);
            self.outbox.complete_here(token, ReasonCode::Success);
        }
    }

    /// Returns whether the copies include a retained message or deletion with this stamp.
    fn is_copied(&self, which: Copies, stamp: u64) -> bool {
        match which {
            Copies::All => true,
            Copies::Of(theirs) => stamp as u8 == theirs,
            Copies::Own(theirs) => self.node.is_own_stamp(stamp) || stamp as u8 == theirs,
        }
    }

    fn copy_token(&mut self, to: NodeIndex, which: Copies, from: (ShardId, Box<str>)) -> Token {
        Token::Copy { worker: self.id, key: self.copies.insert((to, which, from)) as u32 }
    }

    /// Continues a copy whose last page has arrived.
    pub(super) fn continue_copy(&mut self, key: u32) {
        if let Some((to, which, from)) = self.copies.try_remove(key as usize) {
            self.copy_retained(to, which, Some(from));
        }
    }

    /// Notes that one of the completions of another node's message has come.
    pub(super) fn has_arrived(&mut self, key: u32, reason: ReasonCode) {
        let Some(arrival) = self.arrivals.get_mut(key as usize) else { return };
        if reason.is_error() {
            arrival.reason = if arrival.is_given { ReasonCode::UnspecifiedError } else { reason };
        }
        arrival.outstanding -= 1;
        if arrival.outstanding == 0 {
            let Arrival { ticket, reason, .. } = self.arrivals.remove(key as usize);
            self.outbound.answers.push((ticket, reason));
        }
    }
}

/// Returns the message that deletes the retained message of a topic.
pub(super) fn deletion(topic: &str, now: Time) -> MessageView<'_> {
    MessageView {
        topic,
        properties: &[],
        payload: &[],
        qos: QoS::AtLeastOnce,
        retain: true,
        expires: Time::NEVER,
        received: now,
        publisher: None,
        publisher_key: 0,
        durability: Durability::LocalDisk,
    }
}
