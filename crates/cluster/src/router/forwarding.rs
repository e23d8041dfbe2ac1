//! Messages to and from other nodes.

use std::ops::Range;

use broker::peers::{Copies, Forward, Forwarded, Outbound, PeerTicket, PropagatedCopy, as_copy};
use broker::{QUEUE_REFUSED, Token, WorkerId};
use bytes::Bytes;
use link::{Class, Credit, Lane, NodeId, Refused, Time};
use mqtt::{QoS, ReasonCode};
use replog::{Incarnation, WriterId};

use super::ClusterRouter;
use crate::backlog::RetainedCopy;
use crate::config::ForwardAck;
use crate::features::COPIES;
use crate::inbound::Taken;
use crate::mutation::{Mutation, mutated};
use crate::packing;
use crate::peer::{IfLost, Peer, Waiting};
use crate::wire::{Confirmed, PeerMessage};

impl ClusterRouter {
    /// Forwards a worker's messages to other nodes.
    pub(super) fn outbound(&mut self, now: Time, outbound: Outbound) {
        let Outbound { worker, frames, forwards, propagated, announces, answers, taken, .. } = outbound;
        let Outbound { retained_missing, agreement_frames, shard_frames, leads, ended, .. } = outbound;
        let route_positions = outbound.route_positions;
        // Subscriptions are sent before the messages of the clients that made them.
        self.routes_changed();
        self.route_positions(&route_positions);
        self.announced(now, &announces);
        let frames = Bytes::from(frames);
        // One message for several nodes of other regions is packed once.
        let mut packed = None;
        for forward in forwards {
            self.forward(now, worker, &frames, &forward, &mut packed);
        }
        for propagated in propagated {
            self.forward_learned(now, &propagated, &frames.slice(propagated.frame.clone()));
        }
        for (ticket, reason) in answers {
            self.answered(ticket, reason);
        }
        if retained_missing {
            self.retained_missing = true;
            self.counters.copies_requested += 1;
            self.peers.values_mut().for_each(|peer| peer.needs_copy_request = true);
        }
        for (shard, frame) in agreement_frames {
            self.send_agreement_frame(now, shard, frame);
        }
        self.shards_led(now, worker, leads);
        for frame in &shard_frames {
            self.send_shard_frame(now, worker, frame);
        }
        if let Some(incarnation) = ended {
            self.own_incarnation_ended(incarnation);
        }
        // The worker may have sent these frames before it took a notice of a lost link.
        for key in taken {
            let Taken { credits, links_lost } = self.inbound.handled(key);
            for (peer, credit) in credits {
                self.mesh.consume(peer, credit);
            }
            self.links_lost_taken(worker, &links_lost);
        }
    }

    /// Asks peers for their retained messages. Unreachable ones are asked later.
    pub(super) fn ask_for_copies(&mut self, now: Time) {
        if !self.retained_missing {
            return;
        }
        let those: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| peer.needs_copy_request).map(|(id, _)| *id).collect();
        self.retained_missing = !those.is_empty();
        for id in those {
            let is_up = self.peers.get(&id).is_some_and(|peer| peer.is_up);
            // A node without the feature copies again when one of the two restarts.
            let is_asked = is_up
                && (!self.can(id, COPIES)
                    || self.send_message(now, id, Lane::ROUTES, &PeerMessage::RequestCopies));
            if let Some(peer) = self.peers.get_mut(&id).filter(|_| is_asked) {
                peer.needs_copy_request = false;
            }
        }
    }

    /// Handles a peer's request for another copy, after it had no room.
    pub(super) fn copy_again(&mut self, from: NodeId) {
        let Some(peer) = self.peers.get(&from) else { return };
        // A peer that was not copied anything yet has missed nothing.
        if let Some(copies) = peer.copies {
            self.inbound.copy_to(peer.index, copies);
        }
    }

    /// Forwards retained messages that this node has newly learned from a peer. They go to the nodes that got a full
    /// copy from here. Those that this node had retained in an earlier incarnation, and does not know any more, go to
    /// all others. Forwarding is delayed while much waits. The receivers may have them already.
    fn forward_learned(&mut self, now: Time, propagated: &PropagatedCopy, frame: &Bytes) {
        let lane = Lane::assured((propagated.topic_hash & 0xff) as u8);
        let is_for = |peer: &Peer| match peer.copies {
            Some(Copies::All) => peer.index != propagated.from,
            Some(Copies::Own(_)) => propagated.is_own && peer.index != propagated.from,
            Some(Copies::Of(_)) | None => false,
        };
        let those: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| is_for(peer)).map(|(id, _)| *id).collect();
        for id in those {
            if !self.has_room(now, id) || self.mesh.send(now, id, lane, frame.clone().into()).is_err() {
                // A copy does not keep the rest of this turn's buffer in memory.
                let frame = Bytes::copy_from_slice(frame);
                self.queue_copy(id, RetainedCopy { lane, frame, waits: None });
            }
        }
    }

    /// Returns whether copies may be sent to a peer: they leave half of the room to messages.
    fn has_room(&self, now: Time, id: NodeId) -> bool {
        self.mesh.peer(id).is_some_and(|status| {
            status.link.waiting(now, Class::Assured).0 <= status.link.config().buffer_max.assured / 2
        })
    }

    /// Queues a copy that the link had no room for.
    fn queue_copy(&mut self, id: NodeId, copy: RetainedCopy) {
        let waits = copy.waits;
        let is_kept = match self.peers.get_mut(&id) {
            Some(peer) if peer.copies.is_some() => {
                self.counters.copies_deferred += 1;
                peer.backlog.push(copy)
            }
            // Nothing was sent to it yet: all is copied once it is reachable.
            Some(_) | None => false,
        };
        if let Some((worker, token)) = waits.filter(|_| !is_kept) {
            self.inbound.acknowledge(worker, token, ReasonCode::Success);
        }
    }

    /// Sends queued copies if the links have room now.
    pub(super) fn send_backlog(&mut self, now: Time) {
        let those = self.peers.iter().filter(|(_, peer)| peer.is_up && !peer.backlog.is_empty());
        let those: Vec<NodeId> = those.map(|(id, _)| *id).collect();
        for id in those {
            while self.has_room(now, id)
                && let Some(peer) = self.peers.get_mut(&id)
                && let Some(copy) = peer.backlog.front()
            {
                let sent = self.mesh.send(now, id, copy.lane, copy.frame.clone().into());
                if matches!(sent, Err(Refused::Full { .. } | Refused::Down)) {
                    break;
                }
                let Some(RetainedCopy { lane, waits: Some((worker, token)), .. }) = peer.backlog.pop() else {
                    continue;
                };
                match sent {
                    Ok(number) if self.config.forward_ack == ForwardAck::Received => {
                        let sent = Waiting::new(number, worker, token, IfLost::Nothing, false);
                        peer.sent[usize::from(lane.index())].push(sent);
                    }
                    Ok(_) | Err(_) => {
                        self.inbound.acknowledge(worker, token, ReasonCode::Success);
                    }
                }
            }
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            if let Some(copies) = peer.copies
                && peer.backlog.take_missing()
            {
                self.inbound.copy_to(peer.index, copies);
            }
        }
    }

    /// Clears the backlog of a peer that has restarted: everything is copied to it again.
    pub(super) fn clear_backlog(&mut self, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let mut backlog = std::mem::take(&mut peer.backlog);
        while let Some(copy) = backlog.pop() {
            if let Some((worker, token)) = copy.waits {
                self.inbound.acknowledge(worker, token, ReasonCode::Success);
            }
        }
    }

    fn forward(
        &mut self,
        now: Time,
        worker: WorkerId,
        frames: &Bytes,
        forward: &Forward,
        packed: &mut Option<(Range<usize>, Bytes)>,
    ) {
        let found = self.peers.node_at(forward.to);
        let Some((id, peer)) = found.and_then(|id| Some((id, self.peers.get_mut(&id)?))) else {
            // The peer was a member when it was chosen.
            let reason = if forward.for_group { ReasonCode::ServerUnavailable } else { ReasonCode::Success };
            if let Some(token) = forward.token {
                self.inbound.acknowledge(worker, token, reason);
            }
            return;
        };
        if !peer.is_up
            && forward.for_group
            && !forward.waits
            && let Some(token) = forward.token
        {
            // The node was reachable when it was chosen. Another one may have a connected member.
            return self.inbound.acknowledge(worker, token, ReasonCode::ServerBusy);
        }
        let may_be_lost = forward.qos == QoS::AtMostOnce && !forward.is_kept;
        let lane_of = if may_be_lost { Lane::best_effort } else { Lane::assured };
        let lane = lane_of((forward.topic_hash & 0xff) as u8);
        let mut frame = frames.slice(forward.frame.clone());
        if peer.packs {
            if packed.as_ref().is_none_or(|(range, _)| *range != forward.frame) {
                *packed =
                    Some((forward.frame.clone(), packing::pack(&frame).unwrap_or_else(|| frame.clone())));
            }
            let smaller = packed.as_ref().map(|(_, packed)| packed.clone());
            self.counters.count_packed(&frame, smaller.as_ref());
            frame = smaller.unwrap_or(frame);
        }
        let again = (mutated(Mutation::GiveTwice) && forward.for_group).then(|| frame.clone());
        let sent = self.mesh.send(now, id, lane, frame.into());
        if let Some(frame) = again {
            self.forward_again(id, lane, frame);
        }
        if forward.is_kept && matches!(sent, Err(Refused::Full { .. } | Refused::Down)) {
            // Subscribers there have lost the message, but retained messages must become the same everywhere.
            let frame = as_copy(&frames[forward.frame.clone()]).into();
            let page = forward.token.filter(|token| matches!(token, Token::Copy { .. }));
            self.queue_copy(id, RetainedCopy { lane, frame, waits: page.map(|token| (worker, token)) });
            if page.is_some() {
                return;
            }
        }
        let Some(peer) = self.peers.get(&id) else { return };
        let goes_on = !peer.is_up && !forward.waits && self.may_ignore(now, peer);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if !peer.is_up && matches!(sent, Err(Refused::Full { .. } | Refused::Down)) {
            peer.turned_away += 1;
            if peer.turned_away == 1 {
                tracing::warn!(
                    node = &*peer.info.name,
                    "no room for messages to the node: it is not reachable and its buffer is full; those for durable \
                     sessions are refused, others are dropped. See cluster.buffer_max"
                );
            }
        }
        let Some(token) = forward.token else {
            return match sent {
                Err(_) if forward.qos == QoS::AtMostOnce => self.counters.dropped_qos0 += 1,
                Err(_) => self.counters.dropped_suspect += 1,
                Ok(_) => {}
            };
        };
        let reason = match sent {
            Ok(number)
                if !goes_on
                    && self.config.forward_ack == ForwardAck::Received
                    && !mutated(Mutation::ConfirmEarly) =>
            {
                let if_lost = match forward {
                    // A QoS 2 message belongs to one member once it was first sent [MQTT-4.8.2-6].
                    Forward { for_group: true, qos: QoS::AtLeastOnce, .. } => IfLost::GiveAnother,
                    Forward { stored: true, .. } if peer.ahead.is_some() => IfLost::Wait,
                    Forward { stored: true, .. } => IfLost::Refuse,
                    _ => IfLost::Nothing,
                };
                let sent = Waiting::new(number, worker, token, if_lost, forward.is_alone);
                return peer.sent[usize::from(lane.index())].push(sent);
            }
            // The message waits in the link for the node; the publisher does not wait.
            Ok(_) => ReasonCode::Success,
            // Connected clients there are unreachable. A message for a durable session is kept or refused.
            Err(_) if goes_on && !forward.is_for_durable => {
                self.counters.dropped_suspect += 1;
                ReasonCode::Success
            }
            Err(Refused::TooLarge { .. }) => {
                self.counters.refused += 1;
                ReasonCode::ImplementationSpecificError
            }
            Err(Refused::Full { .. } | Refused::Down | Refused::Unsupported) => {
                self.counters.refused += 1;
                ReasonCode::QuotaExceeded
            }
        };
        let is_clean = forward.for_group || forward.is_alone;
        if reason.is_error() {
            self.node.routes.has_lost(forward.to);
        }
        self.inbound.acknowledge(worker, token, refusal(reason, is_clean));
    }

    /// Passes a peer's message to the worker of its lane.
    pub(super) fn message_came(
        &mut self,
        from: NodeId,
        lane: Lane,
        number: u64,
        frame: Bytes,
        credit: Credit,
    ) {
        let Some(peer) = self.peers.get(&from) else { return };
        let is_assured = lane.class() == Class::Assured;
        let ticket = is_assured.then(|| peer.ticket(lane, number));
        if mutated(Mutation::Relay)
            && let Some(next) = self.peers.ids().find(|id| *id > from)
        {
            self.forward_again(next, lane, frame.clone());
        }
        self.inbound.push_message(from, lane, Forwarded { frame, ticket }, credit);
    }

    /// Forwards a message again: a fault for the simulator only.
    fn forward_again(&mut self, to: NodeId, lane: Lane, frame: Bytes) {
        if self.mesh.send(self.now, to, lane, frame.into()).is_err() {
            self.counters.dropped_qos0 += 1;
        }
    }

    /// Handles a worker's answer: a peer's message is stored here.
    fn answered(&mut self, ticket: PeerTicket, reason: ReasonCode) {
        let Some(id) = self.peers.node_at(ticket.from) else { return };
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.confirm(ticket, reason);
        }
    }

    /// Confirms peers' messages that are stored here.
    pub(super) fn send_confirmations(&mut self, now: Time) {
        for (id, peer) in self.peers.iter_mut() {
            if peer.confirmations.is_empty() {
                continue;
            }
            let message = PeerMessage::Confirm(peer.confirmations.ranges());
            // Confirmations without room are sent with the next ones.
            if self.mesh.send(now, *id, Lane::CLAIMS, message.encode().into()).is_ok() {
                peer.confirmations.clear();
            }
        }
    }

    /// Handles confirmations of a peer, and answers the publishers.
    pub(super) fn confirmed(&mut self, from: NodeId, confirmed: &[Confirmed]) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        for Confirmed { lane, reason, first, count } in confirmed {
            let Some(sent) = peer.sent.get_mut(usize::from(*lane)) else { continue };
            let reason = reason_of(*reason);
            if reason.is_error() {
                self.node.routes.has_lost(peer.index);
            }
            sent.answer(*first, *count, |waiting| {
                let is_clean = waiting.if_lost == IfLost::GiveAnother || waiting.is_alone;
                self.inbound.acknowledge(waiting.worker, waiting.token, refusal(reason, is_clean));
            });
        }
    }

    /// Notes that a peer has a later incarnation than the one that this node's link belongs to: messages are for that
    /// from now on. If the link's incarnation is not known yet, it may be the later one. A node that has lost its
    /// number may continue with a smaller one than before its removal, or in an incarnation that has not joined. Where
    /// such a one may still join, the link finds out that it runs.
    pub(super) fn expect_restart(&mut self, writer: WriterId) {
        let id = NodeId(writer.0);
        let Some((peer, known)) = self.peers.get(&id).zip(self.routes.replica.incarnation(writer)) else {
            return;
        };
        let is_over = |incarnation: Incarnation| {
            let another_goes_on =
                peer.member == Some(known) || self.routes.replica.is_dead(writer, incarnation);
            incarnation > known && another_goes_on && !mutated(Mutation::RememberIncarnations)
        };
        // If a restart is expected already, an answer may be in transit that an even later incarnation has not given.
        let is_news = peer.ahead.is_none_or(|incarnation| incarnation < known);
        if is_news && peer.incarnation.is_none_or(|incarnation| incarnation < known || is_over(incarnation)) {
            self.expect_other_link(id);
        }
    }

    /// Notes that a peer may have forgotten the link: messages from now on are for the link that follows, if it has.
    pub(super) fn expect_other_link(&mut self, id: NodeId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.ahead = Some(self.routes.replica.incarnation(WriterId(id.0)).unwrap_or(Incarnation(0)));
        if !mutated(Mutation::SendToDead) {
            self.mesh.expect_restart(self.now, id);
        }
        self.node.routes.has_lost(peer.index);
    }

    /// Releases publishers that wait for unreachable peers, once it is known that this node is not the one cut off.
    pub(super) fn settle_suspects(&mut self, now: Time) {
        let is_due = |peer: &Peer| !peer.is_up && peer.has_waiting() && self.may_ignore(now, peer);
        let due: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.settle_messages(id, false));
    }

    /// Gives up unconfirmed messages, because this node was declared dead. Messages to unreachable peers may be lost
    /// with the links, so their publishers get no acknowledgement.
    pub(super) fn give_up_unconfirmed(&mut self) {
        for peer in self.peers.values_mut().filter(|peer| !peer.is_up) {
            for waiting in peer.take_sent() {
                self.inbound.acknowledge(waiting.worker, waiting.token, ReasonCode::UnspecifiedError);
            }
        }
    }

    /// Settles the messages in transit to a peer whose link is down, or that has forgotten the link: publishers
    /// continue. A lost message for a durable session was not safe, so its publisher gets no acknowledgement.
    pub(super) fn settle_messages(&mut self, id: NodeId, is_forgotten: bool) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // For a peer that is ahead this was done before; messages sent since then wait in the link.
        if is_forgotten && peer.ahead.is_none() {
            self.node.routes.has_lost(peer.index);
        }
        for waiting in peer.take_sent() {
            let reason = match waiting.if_lost {
                IfLost::GiveAnother => ReasonCode::ServerUnavailable,
                // The peer may have stored it before that.
                IfLost::Refuse if is_forgotten && !mutated(Mutation::SettleForgotten) => {
                    ReasonCode::UnspecifiedError
                }
                IfLost::Refuse | IfLost::Wait | IfLost::Nothing => ReasonCode::Success,
            };
            self.inbound.acknowledge(waiting.worker, waiting.token, reason);
        }
    }
}

/// Returns the Reason Code of another node's answer. A code that this node does not know becomes a general refusal for
/// the publisher.
fn reason_of(byte: u8) -> ReasonCode {
    let known = [
        ReasonCode::Success,
        ReasonCode::QuotaExceeded,
        ReasonCode::ServerUnavailable,
        ReasonCode::ImplementationSpecificError,
        QUEUE_REFUSED,
    ];
    known.into_iter().find(|reason| reason.as_u8() == byte).unwrap_or(ReasonCode::UnspecifiedError)
}

/// Returns the Reason Code of a refusal. A refusal says that no node has the message. If other nodes may have it, the
/// publisher gets neither a refusal nor an acknowledgement, unless a full queue has refused the message.
fn refusal(reason: ReasonCode, is_clean: bool) -> ReasonCode {
    let is_unknown = reason.is_error() && reason != QUEUE_REFUSED && !is_clean;
    if is_unknown { ReasonCode::UnspecifiedError } else { reason }
}
