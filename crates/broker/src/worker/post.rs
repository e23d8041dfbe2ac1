//! Handling of batches and commands from other workers.

use mqtt::{PlainPublish, ReasonCode};

use super::Worker;
use super::deliver::EncodeOnce;
use crate::batch::{Batch, BatchDelivery, Body, FlushWaiter, Token, WorkerCommand};
use crate::connection::Phase;
use crate::groups::{GroupAnswer, GroupRequest};
use crate::ids::{ConnectionId, ShardId, Time};
use crate::message::{MessageView, Shared};
use crate::peers::NodeIndex;
use crate::store::{Completion, Request, ShardOutput};

impl Worker {
    /// Handles a batch. The vectors of the batch remain for [`Batch::recycle`].
    pub fn take_batch(&mut self, now: Time, batch: &mut Batch) {
        self.clock.set(now);
        // The messages of one publisher are adjacent, and often have the same topic.
        let mut topic = "";
        for BatchDelivery { body, targets, token, .. } in batch.deliveries.drain(..) {
            let targets = &batch.targets[targets];
            let waits = match &body {
                Body::Plain { packet, shape, received } => {
                    let plain = PlainPublish::of_copy(*shape, &batch.records[packet.clone()]);
                    if plain.topic != topic.as_bytes() {
                        topic = std::str::from_utf8(plain.topic).expect("it was a Topic Name");
                    }
                    let (payload, qos) = (plain.payload, plain.qos);
                    let view = MessageView { payload, qos, received: *received, ..MessageView::plain(topic) };
                    let mut once = EncodeOnce::of_packet(&plain, targets.len());
                    self.deliver_each(targets, &mut Shared::of(view), &mut once, token)
                }
                Body::Inline(range) => {
                    let view = MessageView::decode(&batch.records[range.clone()]);
                    self.deliver_all(targets, &mut Shared::of(view), token)
                }
                Body::Shared(message) => self.deliver_all(targets, &mut Shared::from(message), token),
            };
            if let Some(token) = token.filter(|_| !waits) {
                self.answer(token, ReasonCode::Success);
            }
        }
        for command in batch.commands.drain(..) {
            self.handle_command(command);
        }
        let mut acknowledged = batch.acknowledged.drain(..).peekable();
        while let Some((token, reason)) = acknowledged.next() {
            let Some((connection, sequence)) =
                self.own_publish(token).filter(|(it, _)| self.groups_acks(*it))
            else {
                // The publisher is on this worker, or it is on another worker and waited for a connection of this one.
                self.answer(token, reason);
                continue;
            };
            // The publishes of one connection that are complete are acknowledged together.
            let mut polls = self.complete_publish(connection, sequence, reason);
            while let Some((token, reason)) = acknowledged
                .next_if(|(token, _)| self.own_publish(*token).is_some_and(|(next, _)| next == connection))
            {
                let Some((_, sequence)) = self.own_publish(token) else { break };
                polls |= self.complete_publish(connection, sequence, reason);
            }
            if polls {
                self.poll_inbound(connection.slot);
            }
        }
    }

    /// Returns whether several completions for a publisher may be handled before its acknowledgements are sent. Each of
    /// them may let a PUBLISH continue that waits.
    fn groups_acks(&self, ConnectionId { slot, generation, .. }: ConnectionId) -> bool {
        let connection = self.connections.get(slot, generation);
        let flow = connection.and_then(|connection| connection.flow.as_deref());
        self.goes_short_way && flow.is_some_and(|flow| flow.blocked.is_none())
    }

    /// Connection of this worker whose publish waits for the completion, and the number of the publish.
    fn own_publish(&self, token: Token) -> Option<(ConnectionId, u32)> {
        match token {
            Token::Publish { connection, sequence } if connection.worker == self.id => {
                Some((connection, sequence))
            }
            _ => None,
        }
    }

    fn handle_command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Request(shard, request) => {
                self.shards.apply(self.clock.now(), shard, request);
                self.apply_output();
            }
            WorkerCommand::Group(shard, request) => {
                self.shards.apply_to_groups(self.clock.now(), shard, request);
                self.apply_output();
            }
            WorkerCommand::Completion(completion) => self.completion(completion),
            WorkerCommand::GroupsTook(shard, request) => self.groups_took(shard, request),
            WorkerCommand::GroupAnswer(GroupAnswer::Joined { connection, ticket, index, reason }) => {
                self.joined(connection, ticket, index, reason);
            }
            WorkerCommand::GroupAnswer(GroupAnswer::Left { connection, ticket }) => {
                self.left(connection, ticket);
            }
            // The answer follows after the batches of this turn are sent.
            WorkerCommand::Flush(waiter) => self.outbox.await_flush(waiter),
            WorkerCommand::Flushed(FlushWaiter::Connection(connection, ticket)) => {
                self.flushed(connection, ticket)
            }
            WorkerCommand::Flushed(FlushWaiter::Copies { key, .. }) => self.copies_flushed(key),
            WorkerCommand::Store(events) => {
                self.shards.queue_events(events);
                self.process_store_events();
            }
            WorkerCommand::Scan(scan) => self.scan(*scan),
            WorkerCommand::Page(page) => self.page(*page),
            WorkerCommand::DropScan(connection) => self.drop_scan(connection),
            WorkerCommand::Member(delivery) => self.member_delivery(delivery),
            WorkerCommand::AuthResult(connection, result) => self.authenticated(connection, result),
            WorkerCommand::RetryAuthorize(connection, about) => self.retry_authorize(connection, about),
            WorkerCommand::Will(will) => self.receive_will(*will),
            WorkerCommand::AdminRequest(request) => self.admin_request(*request.0),
            WorkerCommand::Peers(inbound) => self.take_inbound(*inbound),
            WorkerCommand::ShardFrame(frame) => self.take_shard_frame(&frame),
            WorkerCommand::AwaitRoutes { shard, index, worker } => self.await_routes(shard, index, worker),
            WorkerCommand::RoutesReached { shard, position } => self.routes_reached(shard, position),
            WorkerCommand::StartReplica(start) => self.start_replica(*start),
            WorkerCommand::StopReplica(shard) => self.stop_replica(shard),
            WorkerCommand::LinksAnswered { suback, is_confirmed } => {
                self.links_answered(suback, is_confirmed)
            }
        }
    }

    /// Passes a message that shared groups have to its shard. Nothing follows the Release of a client. It sends the
    /// message again, and groups may get it twice.
    fn groups_took(&mut self, shard: ShardId, request: Request) {
        let publisher = match request.token() {
            Some(Token::Publish { connection, .. }) => Some(connection),
            _ => None,
        };
        let is_open = |id: ConnectionId| {
            self.connections.get(id.slot, id.generation).is_some_and(|it| it.phase == Phase::Open)
        };
        if publisher.is_none_or(is_open) {
            self.outbox.request(shard, request);
        }
    }

    /// Passes events of the log to the shards of this worker, as many as fit one turn.
    pub(super) fn process_store_events(&mut self) {
        self.shards.process_events(self.clock.now());
        if self.shards.take_over() {
            self.published().retained_used.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        for (shard, term) in self.shards.take_led() {
            self.announce_leader(shard, term);
        }
        self.apply_output();
        self.routes_moved();
        self.resume_scans();
    }

    pub(super) fn completion(&mut self, completion: Completion) {
        match completion {
            Completion::Claimed(claimed) => {
                let connection = claimed.connection;
                self.claimed(claimed);
                self.release_held(connection);
            }
            Completion::ClaimRefused { connection, reason } => self.claim_refused(connection, reason),
            Completion::Revoke { connection } => self.revoke(connection),
            Completion::QueueFull { connection } => self.queue_was_full(connection),
            Completion::Subscribed { connection, ticket, results } => {
                self.subscribed(connection, ticket, &results)
            }
            Completion::Unsubscribed { connection, ticket, results } => {
                self.unsubscribed(connection, ticket, &results);
            }
            Completion::Deliver { connection, first, more } => {
                self.session_deliveries(connection, first, more);
            }
            Completion::Release { connection, packet_id, reason } => {
                self.release_delivery(connection, packet_id, reason)
            }
            Completion::WrongAcknowledgement { connection } => self.wrong_acknowledgement(connection),
            Completion::Complete { connection, packet_id } => self.complete_release(connection, packet_id),
            Completion::RoomForPage { connection } => self.room_for_page(connection),
            Completion::RoomToRetain { connection, is_there } => self.room_to_retain(connection, is_there),
        }
    }

    /// Sends the output of a shard of this worker to its receivers.
    pub(super) fn apply_output(&mut self) {
        // Most requests have no output, and a message of a shared group is one command.
        if let Some(command) = self.shards.take_only_command() {
            if let Some((worker, command)) = command {
                self.outbox.post(worker, command);
            }
            return;
        }
        let mut output = self.shards.take_output();
        for (worker, command) in output.commands.drain(..) {
            self.outbox.post(worker, command);
        }
        for (shard, request) in output.requests.drain(..) {
            self.outbox.request(shard, request);
        }
        for (token, reason) in output.acknowledged.drain(..) {
            match token {
                // Queue the answer behind the commands, so that the completions of one shard stay in order.
                Token::Publish { connection, .. } => {
                    self.outbox.complete(connection.worker, token, reason);
                }
                Token::Operator { worker, .. } | Token::Requested { lane: worker, .. } => {
                    self.outbox.complete(worker, token, reason)
                }
                Token::Forwarded { worker, .. } | Token::Copy { worker, .. } => {
                    self.outbox.complete(worker, token, reason)
                }
                Token::Append { .. } | Token::Offered { .. } | Token::Groups { .. } => {
                    self.answer(token, reason)
                }
            }
        }
        if output.has_rare_parts() {
            self.apply_rare_output(&mut output);
        }
        self.shards.recycle(output);
    }

    fn apply_rare_output(&mut self, output: &mut ShardOutput) {
        for (lane, number) in output.late.drain(..) {
            self.proposed_late(lane, number);
        }
        for (client_id, message, why) in output.dropped.drain(..) {
            self.monitor.events.delivery_dropped_in_session(self.clock.now(), &client_id, &message, why);
        }
        for (shard, request) in output.group_requests.drain(..) {
            match request {
                GroupRequest::DeliverOrphan { .. } => self.receive_orphan(shard, request),
                _ => self.outbox.group_request(shard, request),
            }
        }
        for offer in output.offered.drain(..) {
            self.forward_to_group(&offer);
        }
        for (node, topic, stamp) in output.deleted.drain(..) {
            let all = (0..self.node.others()).map(NodeIndex).filter(|_| node.is_none());
            node.into_iter().chain(all).for_each(|node| self.send_deletion(node, &topic, stamp));
        }
        for (from, message, stamp) in output.propagated.drain(..) {
            self.propagate(from, &message, stamp);
        }
        self.peers.outbound.agreement_frames.append(&mut output.frames);
        for will in output.wills.drain(..) {
            self.outbox.post(self.id, WorkerCommand::Will(Box::new(will)));
        }
    }
}
