//! End of a connection and handling of its Will, subscriptions, queue and session.

use std::sync::Arc;
use std::time::Duration;

use mqtt::{Disconnect, Packet, Properties, PropertiesBuf, Property, ReasonCode, Subscription};

use super::events::{self, Event};
use super::{Worker, report};
use crate::batch::WorkerCommand;
use crate::connection::{LinksStage, Phase, Reading};
use crate::groups::GroupRequest;
use crate::ids::{ConnectionId, ShardSet, Ticket, Time, WorkerId, fold};
use crate::message::Message;
use crate::message_queue::Overflow;
use crate::quota::Resource;
use crate::route::RouteKind;
use crate::store::{GroupName, Release, Request, WillDisposition, client_shard};
use crate::wheel::TimerKind;
use crate::will::WillOwner;

/// Maximum time for sending the last bytes of a closed connection.
const LINGER: Duration = Duration::from_secs(2);

impl Worker {
    /// Handles DISCONNECT from the client: an orderly end. Reason Code 0x00 discards the Will [MQTT-3.14.4-3].
    pub(super) fn disconnect(&mut self, slot: u32, disconnect: &Disconnect<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let mut expiry = disconnect.properties.session_expiry_interval();
        if connection.session_expiry == 0 && expiry.is_some_and(|seconds| seconds > 0) {
            return Err(ReasonCode::ProtocolError); // [MQTT-3.14.2-2]
        }
        expiry = expiry.map(|seconds| self.node.granted_expiry(seconds));
        if disconnect.reason == ReasonCode::Success
            && let Some(extra) = connection.extra.as_mut()
        {
            extra.will = None;
        }
        report::disconnected(connection, "DISCONNECT");
        let word = if disconnect.reason == ReasonCode::Success { "normal" } else { "disconnect" };
        self.note_disconnect(slot, (word, Some(disconnect.reason)), disconnect.properties);
        self.end(slot, expiry);
        Ok(())
    }

    /// Closes a connection and sends its client the reason, if the protocol version allows it.
    pub(super) fn close(&mut self, slot: u32, reason: ReasonCode) {
        self.close_because(slot, reason, &reason.to_string());
    }

    /// Closes a connection. A client gets the Reason String only if it asks for such texts [MQTT-3.1.2-29] and the
    /// packet fits [MQTT-3.14.2-3].
    pub(super) fn close_because(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        // Another node may serve the client by now. What waits for it is too old, and was perhaps written in part.
        let is_stale = self.node.is_frozen(self.clock.now()) && !connection.out.is_empty();
        if is_stale {
            connection.out.discard();
            self.ready.mark_dirty(connection);
        }
        if connection.has_connack() && !is_stale {
            tracing::debug!(client = &*connection.client_id, %reason, why, "connection closed by the server");
            let mut properties = PropertiesBuf::default();
            let reference = self.node.drain.reference_for(reason);
            if let Some(reference) = reference.as_deref() {
                properties.push(Property::ServerReference(reference));
            }
            if connection.marks.problem_information {
                properties.push(Property::ReasonString(why));
            }
            let packet = Packet::Disconnect(Disconnect { reason, properties: properties.as_properties() });
            if !connection.put(&packet, &mut self.pool) {
                let properties = Properties::default();
                connection.put(&Packet::Disconnect(Disconnect { reason, properties }), &mut self.pool);
            }
            if connection.version.has_properties() {
                self.monitor.packet_sent(self.clock.now(), connection, &packet);
                self.ready.mark_dirty(connection);
            }
        }
        self.monitor.ended(self.clock.now(), connection, why);
        if connection.phase == Phase::Open {
            report::disconnected(connection, why);
            self.note_disconnect(slot, (&events::reason(reason), Some(reason)), Properties::EMPTY);
        }
        let Some(connection) = self.connections.occupant(slot) else { return };
        let is_durable = connection.session.is_some();
        let is_of_shard = is_durable || connection.marks.kept || connection.is_claiming_early();
        let outlives_node = self.lanes.is_some() && is_of_shard;
        if let Some(extra) = connection.extra.as_mut() {
            match reason {
                // A shard of the cluster publishes the Will [MQTT-3.1.2-8]. At the shutdown of a node alone no client
                // remains to receive it.
                ReasonCode::ServerShuttingDown if !outlives_node => extra.will = None,
                // The client is expected on another node. A Will with a delay tells others if it does not come.
                ReasonCode::UseAnotherServer | ReasonCode::ServerMoved => {
                    extra.will = extra.will.take().filter(|(_, delay)| is_durable && *delay > 0);
                }
                _ => {}
            }
        }
        self.end(slot, None);
    }

    /// Records the end of a client's connection as an event.
    fn note_disconnect(&mut self, slot: u32, reason: (&str, Option<ReasonCode>), properties: Properties<'_>) {
        if self.monitor.events.is_selected(Event::Disconnected)
            && let Some(connection) = self.connections.occupant_ref(slot)
            && !connection.marks.role.is_process()
        {
            self.monitor.events.disconnected(self.clock.now(), connection, reason, properties);
        }
    }

    pub(super) fn close_silently(&mut self, slot: u32) {
        self.end(slot, None);
    }

    /// Handles a violation of a protocol below MQTT: TLS, WebSocket or PROXY. `foreign` describes the protocol of a
    /// client that does not speak MQTT, for the log.
    pub fn refused_below(&mut self, now: Time, slot: u32, foreign: Option<&'static str>) {
        self.counters.protocol_errors += 1;
        let is_new = self.connections.occupant_ref(slot).is_some_and(|it| it.phase == Phase::AwaitConnect);
        if let Some(what) = foreign.filter(|_| is_new) {
            self.report_foreign(slot, what);
        }
        self.lost(now, slot);
    }

    /// Handles the loss of the transport.
    pub fn lost(&mut self, now: Time, slot: u32) {
        self.clock.set(now);
        if let Some(connection) = self.connections.occupant(slot) {
            connection.out.discard();
            if connection.phase != Phase::Closing {
                self.monitor.ended(self.clock.now(), connection, "connection lost");
            }
            if connection.phase == Phase::Open {
                report::disconnected(connection, "connection lost");
                self.note_disconnect(slot, ("connection_lost", None), Properties::EMPTY);
            }
        }
        self.end(slot, None);
    }

    /// Closes a connection whose Client Identifier another connection has claimed [MQTT-3.1.4-3].
    pub(super) fn revoke(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(id.slot, id.generation) else { return };
        let (version, reason) = (connection.version, ReasonCode::SessionTakenOver);
        self.counters.taken_over += 1;
        let is_claiming = connection.phase == Phase::Claiming && !connection.marks.early;
        match is_claiming && self.lanes.is_some() {
            true => self.refuse_connect(id.slot, version, reason),
            false => self.close(id.slot, reason),
        }
    }

    /// Returns whether the end of the client's stream has to be handled later: the client has CONNACK, and its Claim is
    /// not answered. What it has sent before counts, and its Will. The slot is woken after the answer.
    pub fn defers_end(&mut self, slot: u32) -> bool {
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let defers = connection.is_claiming_early();
        if defers {
            connection.marks.reading = Reading::Held;
        }
        defers
    }

    /// Ends the connection [MQTT-4.13.2-1] [MQTT3-4.8.0-2] and releases its resources. Bytes in its output may still be
    /// sent.
    pub(super) fn end(&mut self, slot: u32, expiry: Option<u32>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (id, phase, session) = (connection.id, connection.phase, connection.session);
        let (is_early, has_connack) = (connection.is_claiming_early(), connection.has_connack());
        if phase == Phase::Closing {
            return;
        }
        connection.phase = Phase::Closing;
        connection.marks.reading = Reading::Continues;
        let will = connection.extra.as_mut().and_then(|extra| extra.will.take());
        let will = will.filter(|_| has_connack);
        let payers =
            connection.extra.as_mut().map(|extra| std::mem::take(&mut extra.payers)).unwrap_or_default();
        payers.release(Resource::Connections, 1);
        let charged = connection.extra.as_mut().map_or(0, |extra| std::mem::take(&mut extra.charged_bytes));
        payers.release(Resource::SessionBytes, charged);
        let owner = will.as_ref().map(|_| Arc::new(WillOwner::of(connection, &self.node)));
        payers.release(
            Resource::QueuedBytes,
            connection.flow.as_ref().map_or(0, |flow| flow.held_bytes) as u64,
        );
        let kind = connection.route_kind();
        let subscriptions = std::mem::take(&mut connection.subscriptions);
        let flow = connection.flow.take();
        let claimed = std::mem::take(&mut connection.marks.claimed);
        let (is_kept, is_process) = (connection.marks.kept, connection.marks.role.is_process());
        let (client_id, client_key) = (connection.client_id.clone(), connection.client_key);
        if phase == Phase::Open {
            self.counters.clients_disconnected += 1;
            if is_process {
                self.node.drain.own_connection_ended();
            }
        }
        self.counters.subscriptions_removed += if session.is_none() { subscriptions.len() as u64 } else { 0 };
        self.remove_routes(id, kind, subscriptions);
        let known_to = flow.as_ref().map_or(ShardSet::EMPTY, |flow| flow.inbound.lingering);
        let unfinished = flow.as_ref().map(|flow| flow.inbound.unfinished().collect());
        let dispatched = (phase == Phase::Open).then(|| unfinished.unwrap_or_default());
        if let Some(flow) = flow {
            let mut waiting = flow.acknowledging.iter().map(|pending| pending.links);
            if let Some(waits) = self.node.link_waits()
                && waiting.any(|links| links == LinksStage::Waiting)
            {
                waits.cancel(id);
            }
            // In a cluster a page may wait for as long as a shard has no leader.
            if let Some(job) = flow.retained.first().filter(|_| flow.page_asked && self.has_cluster_shards())
            {
                self.outbox.post(WorkerId(job.worker), WorkerCommand::DropScan(id));
            }
            self.end_flow(*flow);
        }
        self.monitor.events.connection_ended(id);
        if self.monitor.awaits_acks() {
            self.monitor.span_connection_ended(id);
        }
        self.forget_operators(id);
        self.end_waits(id);
        let may_still = |(message, _): &(Message, u32)| {
            owner.as_ref().is_none_or(|owner| owner.may_still_publish(&self.node, self.clock.now(), message))
        };
        let had_will = will.is_some();
        let will = will.filter(may_still);
        self.counters.wills_denied += u64::from(had_will && will.is_none());
        // The Claim has stored the Will in the shard, or will do so. A Claim that was refused stores nothing.
        let is_stored = session.is_some() || is_kept || is_early && claimed;
        let will_owner = owner.filter(|_| will.is_some() && is_stored);
        let mut will_then = WillDisposition::Discard;
        match will {
            // The session ends with the connection, and the end of a session publishes its Will without delay
            // [MQTT-3.1.3-9].
            Some((will, _)) if !is_stored => self.publish_will(&will, &payers),
            Some((will, _)) => {
                will_then = WillDisposition::Arm;
                if is_early && let Some(lanes) = &mut self.lanes {
                    lanes.keep_will(id, will, payers);
                }
            }
            None => {}
        }
        if claimed {
            let release = Release {
                client_id,
                connection: id,
                expiry,
                will: will_then,
                will_owner,
                dispatched,
                known_to,
                number: 0,
            };
            self.outbox.request(client_shard(fold(client_key)), Request::Release(Box::new(release)));
        }
        self.wheel.arm(self.clock.now().after(LINGER), slot, id.generation, TimerKind::Linger);
        if let Some(connection) = self.connections.occupant(slot) {
            self.ready.mark_dirty(connection);
        }
    }

    /// Removes a subscription of a connection from the index.
    pub(super) fn remove_subscription(&mut self, id: ConnectionId, kind: RouteKind, text: &str) {
        let Ok(subscription) = Subscription::of_parsed(text) else { return };
        match subscription.share {
            None => {
                self.node.routes.remove(subscription.filter, (kind, id.worker.0, id.slot, id.generation));
            }
            Some(share) => {
                let group = GroupName { share: share.into(), filter: subscription.filter.as_str().into() };
                self.leave_group(id, group, None);
            }
        }
    }

    /// Removes a connection from a shared group.
    pub(super) fn leave_group(&mut self, connection: ConnectionId, group: GroupName, reply: Option<Ticket>) {
        let shard = group.shard();
        let leave = GroupRequest::Leave { group: Box::new(group), connection, reply };
        self.outbox.group_request(shard, leave);
    }

    /// Releases the queue of a client. Publishers continue, and messages of shared subscriptions go to other members
    /// [MQTT-4.8.2-4].
    fn end_flow(&mut self, flow: crate::connection::Flow) {
        let crate::connection::Flow { deliveries, queue, .. } = flow;
        let (waiting, over) = queue.sizes();
        let kept = deliveries.inflight_payloads().map(|entry| entry.message.size());
        self.queues.forget((kept.sum::<usize>() + waiting + over) as u64);
        // Packets are not for a group.
        let (others, overflow) = queue.into_parts();
        for entry in deliveries.into_unfinished().chain(others) {
            if let Some(group) = entry.group {
                let bounce = GroupRequest::Bounce { group, message: entry.message, token: None };
                self.outbox.group_request(group.shard, bounce);
            }
        }
        for Overflow { awaited, .. } in overflow {
            self.receiver_done(awaited);
        }
    }
}
