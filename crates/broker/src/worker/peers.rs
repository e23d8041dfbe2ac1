//! Exchange of messages, completions and retained copies between this worker and other nodes of the cluster.

use std::ops::Range;

use mqtt::{Properties, QoS, ReasonCode};
use slab::Slab;

use super::Worker;
use super::dispatch::{Origin, Publishing};
use super::spans::OpenSpan;
use crate::batch::Token;
use crate::connection::{AckKind, LinksStage, PendingAck, PendingFilter};
use crate::durability::Durability;
use crate::groups::{GroupRequest, Offer};
use crate::ids::{ConnectionId, ShardId, Ticket, Time, WorkerId, hash};
use crate::link_waits::{Begun, WaitingSuback};
use crate::message::MessageView;
use crate::node::Node;
use crate::peers::{
    Announce, Forward, Forwarded, FrameExtras, Framed, Inbound, NodeIndex, Outbound, PeerTicket, SubackLevel,
    Wants, encode,
};
use crate::quota::Payers;
use crate::retained;
use crate::route::Route;
use crate::store::{GroupName, QUEUE_REFUSED, Request, SHARDS, worse};

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

/// Messages that this worker exchanges with other nodes of the cluster.
pub(super) struct PeerTraffic {
    /// Messages and reports of this turn for other nodes.
    pub outbound: Outbound,
    /// Messages of other nodes that wait to be stored here.
    arrivals: Slab<Arrival>,
    /// Route position of each shard that all nodes that may acknowledge messages have reached, as far as it is known.
    known: [u64; SHARDS as usize],
    /// SUBACKs that do not wait for links because too many do, since [`Worker::send_to_peers`] has counted them.
    links_busy: u64,
}

impl PeerTraffic {
    pub fn new(worker: WorkerId) -> Self {
        Self {
            outbound: Outbound::new(worker),
            arrivals: Slab::new(),
            known: [0; SHARDS as usize],
            links_busy: 0,
        }
    }

    /// Returns the location of a message in the frames of this turn, and the hash of its topic.
    pub fn frame(
        &mut self,
        framed: &mut InFrames,
        view: &MessageView<'_>,
        extras: FrameExtras<'_>,
        now: Time,
    ) -> (Range<usize>, u32) {
        let frames = &mut self.outbound.frames;
        let location = framed.get_or_insert_with(|| {
            let start = frames.len();
            encode(view, extras, now, frames);
            (start..frames.len(), hash(view.topic.as_bytes()))
        });
        location.clone()
    }

    /// Queues a message for another node. `frame` is a result of [`Self::frame`].
    pub fn forward(
        &mut self,
        to: NodeIndex,
        (frame, topic_hash): (Range<usize>, u32),
        qos: QoS,
        purpose: ForwardPurpose,
        token: Option<Token>,
    ) {
        let forward = Forward {
            to,
            frame,
            topic_hash,
            qos,
            stored: matches!(
                purpose,
                ForwardPurpose::Subscribers { stored: true } | ForwardPurpose::Retained
            ),
            is_for_durable: purpose == ForwardPurpose::Subscribers { stored: true },
            is_kept: matches!(purpose, ForwardPurpose::Retained | ForwardPurpose::Copy),
            for_group: matches!(purpose, ForwardPurpose::Group { .. }),
            waits: purpose == ForwardPurpose::Group { waits: true },
            is_alone: false,
            token,
        };
        self.outbound.forwards.push(forward);
    }

    /// Marks the retained message that was last forwarded to all nodes as one that a durable session on `to` wants.
    pub fn retained_is_for_durable(&mut self, to: NodeIndex, others: u16) {
        let last = self.outbound.forwards.iter_mut().rev().take(usize::from(others));
        last.filter(|forward| forward.to == to).for_each(|forward| forward.is_for_durable = true);
    }

    /// Marks the message that was last forwarded as one without other receivers.
    pub fn forwarded_alone(&mut self) {
        if let Some(forward) = self.outbound.forwards.last_mut() {
            forward.is_alone = true;
        }
    }

    /// Announces subscriptions that this node knows to other nodes, and then to links. Returns true if others must know
    /// them before SUBACK is sent; more completions then come.
    pub fn announce(&mut self, node: &Node, connection: ConnectionId, pending: &mut PendingAck) -> bool {
        let level = std::mem::replace(&mut pending.level, SubackLevel::Local);
        let PendingAck { ticket, shard, .. } = *pending;
        let is_awaited =
            level != SubackLevel::Local && !pending.filters.is_empty() && node.routes.peers().is_some();
        if is_awaited {
            // The connection of a durable session gets messages of QoS 0 by the routes of this node, and the shard gets
            // the others by its own.
            let of_shard = shard.filter(|shard| !self.is_known(*shard)).map(Some);
            for shard in [None].into_iter().chain(of_shard) {
                self.outbound.announces.push(Announce { connection, ticket, level, shard });
                pending.outstanding += 1;
            }
        }
        // The node of a link must know the subscription before it is asked.
        is_awaited || self.await_links(node, connection, pending)
    }

    /// Begins to wait for links, if that is due. Returns true if a completion then comes.
    fn await_links(&mut self, node: &Node, connection: ConnectionId, pending: &mut PendingAck) -> bool {
        if pending.links != LinksStage::Due {
            return false;
        }
        pending.links = LinksStage::Done;
        let Some(waits) = node.link_waits() else { return false };
        let reasons = &pending.reasons;
        let is_granted =
            |filter: &&PendingFilter| reasons[filter.index as usize] < ReasonCode::UnspecifiedError.as_u8();
        let granted: Vec<Box<str>> =
            pending.filters.iter().filter(is_granted).map(|filter| filter.text.clone()).collect();
        if granted.is_empty() {
            return false;
        }
        let suback = WaitingSuback { connection, ticket: pending.ticket };
        match waits.begin(suback, granted, node.settings().routing.suback_links_timeout) {
            Begun::Waits => {
                pending.links = LinksStage::Waiting;
                pending.outstanding += 1;
                true
            }
            Begun::Nothing => false,
            Begun::Busy => {
                self.links_busy += 1;
                false
            }
        }
    }

    /// Announces the subscriptions of a session that a connection has claimed.
    pub fn announce_claim(&mut self, connection: ConnectionId, shard: (ShardId, u64)) {
        let (ticket, level, shard) = (Ticket::CONNECT, SubackLevel::Cluster, Some(shard));
        self.outbound.announces.push(Announce { connection, ticket, level, shard });
    }

    /// Returns whether all nodes that may acknowledge messages have reached a route position.
    pub fn is_known(&self, (shard, position): (ShardId, u64)) -> bool {
        self.known.get(shard.index()).is_some_and(|known| *known >= position)
    }

    /// Notes that other nodes have reached a route position. One that has not gets no lease before it has.
    pub fn note_known(&mut self, (shard, position): (ShardId, u64)) {
        if let Some(known) = self.known.get_mut(shard.index()) {
            *known = position.max(*known);
        }
    }

    /// Returns the message that waits under `key`.
    fn arrival(&mut self, key: Option<u32>) -> Option<&mut Arrival> {
        self.arrivals.get_mut(key? as usize)
    }

    /// Notes that one of the completions of another node's message has come.
    pub fn has_arrived(&mut self, key: u32, reason: ReasonCode) {
        let Some(arrival) = self.arrivals.get_mut(key as usize) else { return };
        let is_unknown = reason.is_error() && reason != QUEUE_REFUSED && arrival.is_given;
        let reason = if is_unknown { ReasonCode::UnspecifiedError } else { reason };
        arrival.reason = worse(arrival.reason, reason);
        arrival.outstanding -= 1;
        if arrival.outstanding == 0 {
            let Arrival { ticket, reason, .. } = self.arrivals.remove(key as usize);
            self.outbound.answers.push((ticket, reason));
        }
    }
}

/// Purpose of a message for another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardPurpose {
    /// Delivery to the subscribers of that node. `stored` is true if a durable session is among them.
    Subscribers { stored: bool },
    /// Delivery to the subscribers of that node, which also retains the message. A node that loses the message on the
    /// way has not kept it.
    Retained,
    /// A retained message that the node may have missed.
    Copy,
    /// Delivery to a member of a shared group. `waits` is true if no member is on a reachable node.
    Group { waits: bool },
}

impl Worker {
    /// Submits the messages for other nodes. Call this at the end of a turn, after the batches for other workers are
    /// sent.
    pub fn send_to_peers(&mut self) {
        self.counters.subacks_links_unconfirmed += std::mem::take(&mut self.peers.links_busy);
        if self.peers.outbound.is_empty() {
            return;
        }
        let outbound = std::mem::replace(&mut self.peers.outbound, Outbound::new(self.id));
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
        let extras = FrameExtras { origins: self.node.origins(), ..FrameExtras::default() };
        let frame = self.peers.frame(framed, view, extras, self.clock.now());
        let purpose = ForwardPurpose::Subscribers { stored: wants.includes(Wants::STORED) };
        self.peers.forward(NodeIndex(routes[0].index), frame, view.qos, purpose, token);
        self.counters.forwarded += 1;
        if view.span != 0 {
            self.monitor.span_forwarded(view);
        }
        u32::from(token.is_some())
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
            let extras = FrameExtras { stamp, is_copy, group: None, origins: self.node.origins() };
            let frame = self.peers.frame(&mut framed, view, extras, self.clock.now());
            self.peers.forward(to, frame, view.qos, ForwardPurpose::Retained, token);
            if view.span != 0 {
                self.monitor.span_forwarded(view);
            }
        }
        self.counters.forwarded += u64::from(others);
        if token.is_some() { u32::from(others) } else { 0 }
    }

    /// Forwards a message of a shared group to a member on another node.
    pub(super) fn forward_to_group(&mut self, offer: &Offer) {
        let view = offer.message.view();
        let text = offer.group.text();
        let origins = self.node.origins();
        let extras = FrameExtras { group: Some(&text), origins, ..FrameExtras::default() };
        let frame = self.peers.frame(&mut None, &view, extras, self.clock.now());
        let purpose = ForwardPurpose::Group { waits: offer.waits };
        self.peers.forward(offer.to, frame, view.qos, purpose, offer.token);
        if view.span != 0 {
            self.monitor.span_forwarded(&view);
        }
        self.counters.forwarded += 1;
    }

    pub(super) fn take_inbound(&mut self, inbound: Inbound) {
        let Inbound {
            key,
            messages,
            acknowledged,
            copies,
            announced,
            shard_frames,
            leaders,
            links_lost,
            // Requests go to a node when it is known to lead a shard, and answers when it asks.
            links_open: _,
            incarnation,
            members,
            members_settled,
            agreement_frames,
            route_positions,
            route_sources,
        } = inbound;
        let has_frames = !shard_frames.is_empty() || !agreement_frames.is_empty();
        if !messages.is_empty() || has_frames || !links_lost.is_empty() {
            self.peers.outbound.taken.push(key);
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
        // A leader may be announced again after its link was down.
        self.links_lost(&links_lost);
        if let Some(incarnation) = incarnation {
            self.restart_incarnation(incarnation);
            self.node.worker_restarted();
        }
        self.leaders_known(leaders);
        if let Some(members) = members {
            self.members_known(&members);
        }
        self.members_settled(&members_settled);
        shard_frames.iter().for_each(|frame| self.take_shard_frame(frame));
        if !agreement_frames.is_empty() {
            let frames = agreement_frames.into_iter().map(|(shard, frame)| (shard, frame.into()));
            self.shards.queue_events(frames.collect());
            self.process_store_events();
        }
        if !route_positions.is_empty() {
            for (shard, index) in route_positions {
                self.routes_known_up_to(shard, index);
            }
            self.routes_moved();
        }
        route_sources.into_iter().for_each(|(shard, node)| self.routes_known_by(shard, node));
        self.copy_all(copies);
        for (connection, ticket, is_known) in announced {
            if ticket == Ticket::CONNECT {
                self.claim_announced(connection, is_known);
            } else if is_known {
                let pending = self.pending_ack(connection, ticket, AckKind::Sub);
                // The last answer means that the shard's routes are known, too.
                let last = pending.filter(|pending| pending.outstanding == 1);
                if let Some(shard) = last.and_then(|pending| pending.shard) {
                    self.peers.note_known(shard);
                }
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
        let key = arrival.map(|arrival| self.peers.arrivals.insert(arrival) as u32);
        match crate::peers::decode(frame, self.clock.now()) {
            Ok(mut framed) if framed.group.is_some() => {
                self.counters.forwarded_received += 1;
                if self.monitor.records_spans(&framed.view) {
                    (framed.view.span, _) = self.monitor.begin_arrived(self.clock.now(), &framed.view);
                }
                self.forwarded_to_group(&framed, key);
            }
            Ok(framed) if framed.is_copy => self.keep_copy(&framed, ticket.map(|ticket| ticket.from), key),
            Ok(Framed { name, mut view, stamp, .. }) => {
                self.node.observe_stamp(stamp);
                self.counters.forwarded_received += 1;
                self.monitor.forwarded(&view);
                let mut span = OpenSpan::default();
                if self.monitor.records_spans(&view) {
                    (view.span, span) = self.monitor.begin_arrived(self.clock.now(), &view);
                }
                let token = key.map(|key| Token::Forwarded { worker: self.id, key });
                let publishing =
                    Publishing { token, origin: Origin::Peer { stamp }, ..Publishing::default() };
                let dispatched = self.dispatch_as(name, view, publishing);
                if view.span != 0 {
                    self.monitor.end_span(span);
                }
                if let Some(arrival) = self.peers.arrival(key) {
                    arrival.outstanding += dispatched.outstanding;
                    arrival.reason = dispatched.refused.unwrap_or(ReasonCode::Success);
                    arrival.is_given = dispatched.refused.is_none();
                }
            }
            Err(_) => self.counters.forwarded_malformed += 1,
        }
        if let Some(key) = key {
            self.peers.has_arrived(key, ReasonCode::Success);
        }
    }

    fn forwarded_to_group(&mut self, framed: &Framed<'_>, key: Option<u32>) {
        let Some(group) = framed.group.and_then(GroupName::parse) else { return };
        if let Some(arrival) = self.peers.arrival(key) {
            arrival.outstanding += 1;
        }
        let token = key.map(|key| Token::Forwarded { worker: self.id, key });
        let (shard, message, refusal) = (group.shard(), framed.view.to_message(), self.node.refusal());
        let deliver = GroupRequest::DeliverLocally { group: Box::new(group), message, refusal, token };
        self.outbox.group_request(shard, deliver);
    }

    /// Keeps a copy of another node's retained message that this node may have missed.
    fn keep_copy(&mut self, framed: &Framed<'_>, copied_by: Option<NodeIndex>, key: Option<u32>) {
        let Framed { view, stamp, .. } = *framed;
        self.node.observe_stamp(stamp);
        let shard = retained::shard_of(view.topic);
        if shard == retained::OWN_TOPICS || self.has_cluster_shards() {
            return;
        }
        self.announce_retained(view.topic);
        if let Some(arrival) = self.peers.arrival(key) {
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

    /// Requests the retained messages that this node has missed. Only worker 0 asks, about once a second, on behalf of
    /// all workers.
    pub(super) fn request_missing_retained(&mut self) {
        let may_be_copied = self.id.index() == 0 && !self.has_cluster_shards();
        self.peers.outbound.retained_missing |= may_be_copied && self.node.take_retained_missing();
    }
}

/// Returns the nodes that must know a subscription before SUBACK, as the client asks.
pub(super) fn suback_level(properties: &Properties<'_>) -> Option<SubackLevel> {
    match properties.user_properties().find(|(name, _)| *name == SUBACK_PROPERTY)?.1 {
        "local" => Some(SubackLevel::Local),
        "core" => Some(SubackLevel::Core),
        "region" => Some(SubackLevel::Region),
        "cluster" => Some(SubackLevel::Cluster),
        "links" => Some(SubackLevel::Links),
        _ => None,
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
        span: 0,
    }
}
