//! Bytes from a connection: framing, decoding and handling of packets.

use std::collections::VecDeque;

use mqtt::{
    Ack, DecodeError, Packet, PacketId, PacketType, PropertiesBuf, Property, QoS, ReasonCode, SHORT_ACK_LEN,
    Version,
};
use session::{AckOutcome, PubRecOutcome, Released};
use shard::{Mutation, mutated};

use super::divided::FILTERS_AT_ONCE;
use super::events::{Completing, Event};
use super::foreign::ForeignProtocol;
use super::subscribe::ACK_FRAME;
use super::{Worker, refusals};
use crate::batch::SessionDelivery;
use crate::connection::{Blocked, Flow, Phase, Reading, Unfinished};
use crate::ids::{ConnectionId, ShardSet, Time};
use crate::overload::Level;
use crate::store::{Acknowledgement, Identity, Request};
use crate::wheel::{Timer, TimerKind};

/// Result of [`Worker::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes that the caller need not keep.
    pub consumed: usize,
    pub then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Continue to read. If bytes are left over, they begin a packet of `packet_len` bytes in all; 0 if its length is
    /// not known yet.
    Read { packet_len: usize },
    /// Keep the remaining bytes and read nothing until the slot is woken.
    Hold,
    /// The connection is closing; read nothing more.
    Close,
}

/// Reason Code for an acknowledgement of another kind than its delivery waits for [MQTT-4.13.1-1] [MQTT3-4.8.0-1].
const WRONG_KIND: ReasonCode = ReasonCode::ProtocolError;

/// Result of handling a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// The packet has to wait and has had no effect.
    Blocked,
}

/// Maximum number of bytes of packets that are kept behind a PUBLISH or SUBSCRIBE that waits.
const PARKED_MAX: usize = 64 * 1024;
/// Unsent bytes beyond `queue.unsent_bytes_max` at which the node stops reading from a client that does not read.
const ANSWERS_MAX: usize = 64 * 1024;

/// Maximum number of deliveries that one client's packets may cause before the next connection is handled. With 1,000
/// receivers it is 65 messages. Filters of SUBSCRIBE and UNSUBSCRIBE count too (`FILTER_FAN_OUT`).
pub(super) const FAN_OUT_MAX: u64 = 65_536;

/// Maximum number of SUBSCRIBE and UNSUBSCRIBE packets of one client that wait for the store.
pub(super) const UNANSWERED_MAX: usize = 64;

impl Worker {
    /// Handles the bytes of a connection. New bytes follow those that an earlier call left over.
    pub fn receive(&mut self, now: Time, slot: u32, bytes: &[u8]) -> Received {
        self.clock.set(now);
        let received = self.receive_packets(slot, bytes);
        self.counters.bytes_received += received.consumed as u64;
        if received.then == Then::Hold
            && let Some(flow) = self.connections.occupant(slot).and_then(|it| it.flow.as_mut())
            && let Some(unfinished) = flow.unfinished.as_mut()
        {
            // The client waits for the node now. The timer restarts when the connection is read again.
            unfinished.len = 0;
        }
        received
    }

    fn receive_packets(&mut self, slot: u32, bytes: &[u8]) -> Received {
        let now = self.clock.now();
        let fan_out_max = self.dispatcher.fan_out + FAN_OUT_MAX;
        let mut consumed = 0;
        loop {
            let Some(connection) = self.connections.occupant(slot) else {
                return Received { consumed: bytes.len(), then: Then::Close };
            };
            match connection.phase {
                Phase::AwaitConnect | Phase::Exchanging | Phase::Open => {}
                Phase::Claiming if connection.marks.early => {}
                Phase::Authenticating | Phase::Claiming => {
                    connection.marks.reading = Reading::Held;
                    return Received { consumed, then: Then::Hold };
                }
                Phase::Closing => return Received { consumed: bytes.len(), then: Then::Close },
            }
            let unread_max = self.settings.queue.unsent_bytes_max.bytes() as usize + ANSWERS_MAX;
            let unanswered = connection.flow.as_ref().map_or(0, |flow| flow.acknowledging.len());
            if connection.out.len() > unread_max || unanswered >= UNANSWERED_MAX {
                connection.marks.reading = Reading::Held;
                return Received { consumed, then: Then::Hold };
            }
            let rest = &bytes[consumed..];
            let mqtt = &self.settings.mqtt;
            let size_max = match connection.phase {
                Phase::Open | Phase::Claiming => mqtt.packet_size_max,
                Phase::AwaitConnect if let Some(foreign) = ForeignProtocol::of(rest) => {
                    self.refuse_foreign(slot, foreign);
                    continue;
                }
                // The size limit before login bounds the memory of an unauthenticated client before the body of its
                // packet arrives.
                _ => mqtt.packet_size_max.min(mqtt.packet_size_before_login_max),
            };
            let size_max = size_max.bytes() as u32;
            let length = match mqtt::frame(rest, size_max) {
                Ok(Some(length)) if length <= rest.len() => length,
                // Nothing tells how long the rest of it takes before the answer to the Claim.
                Ok(_) if connection.phase == Phase::Claiming && !rest.is_empty() => {
                    return self.hold(slot, consumed);
                }
                Ok(length) => {
                    let then = Then::Read { packet_len: length.unwrap_or(0) };
                    let unfinished = connection.flow.as_ref().is_some_and(|flow| flow.unfinished.is_some());
                    if unfinished || !rest.is_empty() {
                        self.time_packet(slot, rest.len(), consumed > 0);
                    }
                    return Received { consumed, then };
                }
                // It is refused after the answer to the Claim, like everything else.
                Err(_) if connection.phase == Phase::Claiming => return self.hold(slot, consumed),
                Err(error) => {
                    self.refuse(slot, rest, error);
                    continue;
                }
            };
            let packet = &rest[..length];
            if connection.phase == Phase::Claiming {
                if !self.may_subscribe_early(slot, packet) {
                    return self.hold(slot, consumed);
                }
                self.monitor.packets.received(packet[0]);
                self.packet(slot, packet);
                consumed += length;
                continue;
            }
            self.monitor.packets.received(packet[0]);
            connection.last_packet = now;
            let flow = connection.flow.as_ref();
            let is_waiting = flow.is_some_and(|flow| {
                (flow.blocked.is_some() || flow.is_dividing())
                    && !passes_blocked(connection.version, flow, packet)
            });
            if is_waiting {
                // Acknowledgements pass a waiting packet; other packets keep their order. The end of the stream
                // usually follows DISCONNECT. Reading stops here, so that DISCONNECT is handled before that end
                // [MQTT-3.14.4-3].
                let parked = flow.and_then(|flow| flow.blocked.as_ref()).map_or(0, Blocked::len);
                if parked + length > PARKED_MAX || packet[0] >> 4 == PacketType::Disconnect as u8 {
                    connection.marks.reading = Reading::Held;
                    return Received { consumed, then: Then::Hold };
                }
                self.park_packet(slot, packet);
            } else {
                let handled = self.short_packets(slot, rest, length);
                if handled > 0 {
                    consumed += handled - length;
                } else if self.packet(slot, packet) == Step::Blocked {
                    self.park_packet(slot, packet);
                }
            }
            consumed += length;
            if self.dispatcher.fan_out >= fan_out_max && self.pause_fan_out(slot) {
                return Received { consumed, then: Then::Hold };
            }
        }
    }

    /// Keeps the rest of the bytes until the slot is woken.
    fn hold(&mut self, slot: u32, consumed: usize) -> Received {
        if let Some(connection) = self.connections.occupant(slot) {
            connection.marks.reading = Reading::Held;
        }
        Received { consumed, then: Then::Hold }
    }

    /// Returns whether a packet of a client whose Claim is not answered may be handled: a SUBSCRIBE of an ephemeral
    /// session. Other nodes learn its filters meanwhile. The client gets SUBACK and messages after the answer. Shared
    /// groups count on their members, so they wait.
    #[cold]
    #[inline(never)]
    fn may_subscribe_early(&mut self, slot: u32, packet: &[u8]) -> bool {
        let Some(connection) = self.connections.occupant_ref(slot) else { return false };
        let (version, is_durable) = (connection.version, connection.session_expiry > 0);
        if packet[0] >> 4 != PacketType::Subscribe as u8 || is_durable || self.rules().may_answer_later {
            return false;
        }
        let Ok(Packet::Subscribe(subscribe)) = mqtt::decode(version, packet) else { return false };
        // One that closes the connection does so after the answer.
        let has_id = subscribe.properties.subscription_identifier().is_some();
        let is_wrong = has_id && !self.settings.mqtt.subscription_identifier_available;
        let connection = self.connections.occupant_ref(slot);
        let is_unused = connection.is_some_and(|it| it.check_unused(subscribe.packet_id).is_ok());
        let is_small = subscribe.filters.len() <= FILTERS_AT_ONCE;
        is_unused
            && is_small
            && !is_wrong
            && !subscribe.filters.iter().any(|(text, _)| text.starts_with("$share/"))
    }

    /// Stops reading from a publisher for this turn, so that its messages reach their receivers and other connections
    /// are handled. Returns false if the connection is not open.
    #[cold]
    #[inline(never)]
    fn pause_fan_out(&mut self, slot: u32) -> bool {
        let Some(connection) = self.connections.occupant(slot) else { return false };
        if connection.phase != Phase::Open {
            return false;
        }
        self.ready.pause(connection);
        self.counters.fan_out_pauses += 1;
        true
    }

    /// Resumes reading from paused connections.
    pub(super) fn resume_paused(&mut self) {
        for ConnectionId { slot, generation, .. } in self.ready.take_paused() {
            let Some(connection) = self.connections.get_mut(slot, generation) else { continue };
            if connection.marks.reading == Reading::Paused {
                connection.marks.reading = Reading::Held;
            }
            if self.continue_divided(slot) {
                continue;
            }
            let Some(connection) = self.connections.get_mut(slot, generation) else { continue };
            if connection.flow.as_ref().is_some_and(|flow| flow.blocked.is_some()) {
                self.unblock(slot);
            } else {
                self.ready.wake(connection);
            }
        }
    }

    /// Notes that the edge has kept `len` bytes of an incomplete packet so far.
    pub fn receives(&mut self, now: Time, slot: u32, len: usize) {
        self.clock.set(now);
        self.time_packet(slot, len, false);
    }

    /// Times an incomplete packet. `len` bytes of it have arrived; 0 means that no packet has begun. Before CONNACK,
    /// one time limit covers all packets.
    fn time_packet(&mut self, slot: u32, len: usize, is_new: bool) {
        let (now, timeout) = (self.clock.now(), self.settings.mqtt.packet_timeout);
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.phase != Phase::Open {
            return;
        }
        let generation = connection.id.generation;
        let flow = connection.flow();
        let is_timed = flow.unfinished.is_some();
        let unfinished = flow.unfinished.get_or_insert(Unfinished { len: 0, len_before: 0, since: now });
        unfinished.arrived(now, len as u32, is_new);
        if !is_timed {
            self.wheel.arm(now.after(timeout), slot, generation, TimerKind::Packet);
        }
    }

    /// Closes a connection if the rest of its packet is overdue.
    pub(super) fn check_packet_timeout(&mut self, timer: Timer) {
        let (now, timeout) = (self.clock.now(), self.settings.mqtt.packet_timeout);
        // While the node reads little or nothing, missing bytes are not the client's fault.
        let is_shed = self.load.level() == Level::Severe;
        let Some(connection) = self.connections.get_mut(timer.slot, timer.generation) else { return };
        let is_open = connection.phase == Phase::Open;
        let Some(flow) = connection.flow.as_mut() else { return };
        let Some(unfinished) = flow.unfinished.as_mut() else { return };
        if unfinished.len == 0 || !is_open {
            flow.unfinished = None;
            return;
        }
        if is_shed {
            unfinished.since = now;
        }
        let due = unfinished.since.after(timeout);
        // After a pause of the process, the rest may still be in the socket.
        if due > self.clock.judged() {
            let due = due.max(Time(now.0 + 1));
            self.wheel.arm(due, timer.slot, timer.generation, TimerKind::Packet);
            return;
        }
        self.counters.packet_timeouts += 1;
        let why = "the rest of a packet did not come in time (mqtt.packet_timeout)";
        self.close_because(timer.slot, ReasonCode::ImplementationSpecificError, why);
    }

    /// Handles the first packet of the bytes, of this length, if it needs no general decoder: a plain PUBLISH, or an
    /// acknowledgement of success. Acknowledgements that follow it may be handled too. Returns the length of the
    /// handled packets; 0, without an effect, if the first packet needs the general decoder.
    fn short_packets(&mut self, slot: u32, bytes: &[u8], length: usize) -> usize {
        let (packet, after) = bytes.split_at(length);
        let Some((packet_type, packet_id)) = mqtt::short_ack(packet) else {
            return if self.publish_plain(slot, packet) { length } else { 0 };
        };
        let Some(connection) = self.connections.occupant_ref(slot) else { return 0 };
        let version = connection.version;
        if connection.phase != Phase::Open || self.monitor.is_traced() || !self.goes_short_way {
            return 0;
        }
        if packet_type == PacketType::PubAck {
            let handled = self.pub_acks(slot, bytes);
            if handled > 0 {
                return handled;
            }
        }
        let ack = Ack { packet_id, reason: ReasonCode::Success, properties: mqtt::Properties::EMPTY };
        // Of a run of acknowledgements the last one fills the window.
        let is_last = || {
            let next = after.first_chunk::<SHORT_ACK_LEN>().and_then(|next| mqtt::short_ack(next));
            next.is_none_or(|(next, _)| next != packet_type)
        };
        let handled = match packet_type {
            PacketType::PubAck => self.pub_ack(slot, ack, is_last()),
            PacketType::PubRec => self.pub_rec(slot, ack),
            PacketType::PubRel => {
                self.pub_rel(slot, ack);
                Ok(())
            }
            _ => self.pub_comp(slot, ack, is_last()),
        };
        if let Err(reason) = handled {
            self.refuse_packet(slot, version, Phase::Open, reason);
        }
        length
    }

    fn packet(&mut self, slot: u32, bytes: &[u8]) -> Step {
        let Some(connection) = self.connections.occupant(slot) else { return Step::Done };
        let (version, phase) = (connection.version, connection.phase);
        let decoded = mqtt::decode(version, bytes);
        if self.monitor.is_traced()
            && let Ok(packet) = &decoded
        {
            self.monitor.trace_packet_in(self.clock.now(), connection, packet);
        }
        let result = match decoded {
            // A packet that only servers send is a Protocol Error, whatever its content.
            Err(_) if phase == Phase::Open && is_servers(bytes[0]) => Err(ReasonCode::ProtocolError),
            Err(error) => {
                self.refuse(slot, bytes, error);
                return Step::Done;
            }
            Ok(Packet::Publish(publish)) if phase == Phase::Open => {
                return self.publish_packet(slot, &publish, bytes.len());
            }
            Ok(Packet::Subscribe(subscribe))
                if phase == Phase::Open
                    && subscribe.filters.len() <= FILTERS_AT_ONCE
                    && self.rules().may_answer_later
                    && self.awaits_permissions(slot, subscribe.filters) =>
            {
                return Step::Blocked;
            }
            Ok(Packet::Connect(connect)) if phase == Phase::AwaitConnect => {
                self.connect(slot, &connect);
                Ok(())
            }
            // The first packet must be CONNECT [MQTT-3.1.0-1]; the server sends nothing before it.
            Ok(_) if phase == Phase::AwaitConnect => {
                self.counters.protocol_errors += 1;
                self.close_silently(slot);
                Ok(())
            }
            Ok(Packet::Auth(auth)) if phase == Phase::Exchanging => self.continue_exchange(slot, &auth),
            Ok(Packet::Disconnect(_)) if phase == Phase::Exchanging => {
                self.close_silently(slot);
                Ok(())
            }
            Ok(_) if phase == Phase::Exchanging => Err(ReasonCode::ProtocolError),
            Ok(packet) => self.open_packet(slot, packet),
        };
        if let Err(reason) = result {
            self.refuse_packet(slot, version, phase, reason);
        }
        Step::Done
    }

    /// Closes the connection of a packet that is a Protocol Error.
    pub(super) fn refuse_packet(&mut self, slot: u32, version: Version, phase: Phase, reason: ReasonCode) {
        self.counters.protocol_errors += 1;
        match phase {
            // Before CONNACK the server cannot send DISCONNECT, so CONNACK carries the reason.
            Phase::Exchanging => self.refuse_connect(slot, version, reason),
            _ => self.close(slot, reason),
        }
    }

    fn open_packet(&mut self, slot: u32, packet: Packet<'_>) -> Result<(), ReasonCode> {
        match packet {
            Packet::PubAck(ack) => return self.pub_ack(slot, ack, true),
            Packet::PubRec(ack) => return self.pub_rec(slot, ack),
            Packet::PubRel(ack) => self.pub_rel(slot, ack),
            Packet::PubComp(ack) => return self.pub_comp(slot, ack, true),
            Packet::Subscribe(subscribe) => return self.subscribe(slot, &subscribe),
            Packet::Unsubscribe(unsubscribe) => return self.unsubscribe(slot, &unsubscribe),
            Packet::PingReq => self.send(slot, &Packet::PingResp), // [MQTT-3.12.4-1]
            Packet::Disconnect(disconnect) => return self.disconnect(slot, &disconnect),
            Packet::Auth(auth) => return self.re_authenticate(slot, &auth),
            // A second CONNECT [MQTT-3.1.0-2], or a packet that only servers send. The caller handles PUBLISH.
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp
            | Packet::Publish(_) => return Err(ReasonCode::ProtocolError),
        }
        Ok(())
    }

    /// Handles PUBACK. `fills`: messages that wait for the window are sent now.
    fn pub_ack(&mut self, slot: u32, ack: Ack<'_>, fills: bool) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        self.monitor.settle_probe(self.clock.now(), connection, ack.packet_id, &self.settings.monitor);
        if self.monitor.events.is_selected(Event::Acked) {
            let about = (Completing::PubAck, ack.packet_id);
            self.monitor.events.acknowledged(self.clock.now(), connection, about, ack.properties);
        }
        if connection.session.is_some() {
            self.acknowledge(slot, ack.packet_id, Acknowledgement::PubAck);
            return Ok(());
        }
        if let Some(flow) = connection.flow.as_mut() {
            match flow.deliveries.pub_ack(ack.packet_id) {
                AckOutcome::Finished(Some(entry)) => self.queues.release(connection, entry.message.size()),
                // An unknown identifier is a late answer to a completed delivery and has no effect [MQTT-4.3.2-5].
                AckOutcome::Finished(None) | AckOutcome::Unknown => {}
                AckOutcome::WrongKind => return Err(WRONG_KIND),
            }
            if fills {
                self.pump(slot);
            }
        }
        Ok(())
    }

    fn pub_rec(&mut self, slot: u32, ack: Ack<'_>) -> Result<(), ReasonCode> {
        let refused = ack.reason.is_error();
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        if refused {
            self.monitor.settle_probe(self.clock.now(), connection, ack.packet_id, &self.settings.monitor);
        }
        if self.monitor.events.is_selected(Event::Acked) {
            self.monitor.events.received(connection.id, ack.packet_id, refused);
        }
        if connection.session.is_some() {
            self.acknowledge(slot, ack.packet_id, Acknowledgement::PubRec { refused });
            return Ok(());
        }
        let reason = match connection.flow().deliveries.pub_rec(ack.packet_id, refused) {
            PubRecOutcome::Release(entry) => {
                self.queues.release(connection, entry.map_or(0, |entry| entry.message.size()));
                ReasonCode::Success
            }
            PubRecOutcome::ReleaseAgain => ReasonCode::Success,
            PubRecOutcome::Refused(entry) => {
                self.queues.release(connection, entry.map_or(0, |entry| entry.message.size()));
                self.pump(slot);
                return Ok(());
            }
            PubRecOutcome::Unknown if refused => return Ok(()),
            PubRecOutcome::Unknown => ReasonCode::PacketIdentifierNotFound,
            PubRecOutcome::WrongKind => return Err(WRONG_KIND),
        };
        self.send_ack(slot, PacketType::PubRel, ack.packet_id, reason);
        Ok(())
    }

    /// Handles PUBCOMP. `fills`: messages that wait for the window are sent now.
    fn pub_comp(&mut self, slot: u32, ack: Ack<'_>, fills: bool) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        self.monitor.settle_probe(self.clock.now(), connection, ack.packet_id, &self.settings.monitor);
        if self.monitor.events.is_selected(Event::Acked) {
            let about = (Completing::PubComp, ack.packet_id);
            self.monitor.events.acknowledged(self.clock.now(), connection, about, ack.properties);
        }
        if connection.session.is_some() {
            self.acknowledge(slot, ack.packet_id, Acknowledgement::PubComp);
            return Ok(());
        }
        if let Some(flow) = connection.flow.as_mut() {
            match flow.deliveries.pub_comp(ack.packet_id) {
                AckOutcome::Finished(_) | AckOutcome::Unknown => {}
                AckOutcome::WrongKind => return Err(WRONG_KIND),
            }
            if fills {
                self.pump(slot);
            }
        }
        Ok(())
    }

    /// Closes a connection whose client has sent the wrong kind of acknowledgement for a delivery, as its shard
    /// reports.
    pub(super) fn wrong_acknowledgement(&mut self, id: ConnectionId) {
        if self.connections.get_mut(id.slot, id.generation).is_some_and(|it| it.phase == Phase::Open) {
            self.counters.protocol_errors += 1;
            self.close(id.slot, WRONG_KIND);
        }
    }

    /// Handles PUBREL. PUBCOMP follows at once, or for a durable session when the store has released the identifier
    /// [MQTT-4.3.3-11].
    fn pub_rel(&mut self, slot: u32, ack: Ack<'_>) {
        self.release(slot, ack.packet_id);
        self.unblock(slot);
    }

    pub(super) fn release(&mut self, slot: u32, packet_id: PacketId) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (session, id) = (connection.session, connection.id);
        match (connection.flow().inbound.release(packet_id), session) {
            (Released::Released, Some(session)) => {
                // The node that received the message may be gone, and with it its requests to forget the identity.
                let is_in_cluster = self.lanes.is_some() && !mutated(Mutation::ReleaseKnown);
                if is_in_cluster && connection.flow().inbound.take_earlier(packet_id) {
                    let toggle = connection.flow().inbound.toggles.get(packet_id);
                    let identity = Identity::of_publish(session, packet_id, toggle);
                    self.forget_identity(identity, ShardSet::full());
                }
                let Some(connection) = self.connections.occupant(slot) else { return };
                connection.flow().inbound.await_store(packet_id);
                self.outbox.request(session.shard, Request::Released { session, connection: id, packet_id });
            }
            (Released::Released, None) => {
                self.send_ack(slot, PacketType::PubComp, packet_id, ReasonCode::Success);
            }
            // PUBCOMP follows PUBREC. A client may send PUBREL too early [MQTT-4.3.3-3]. It looks like a client that
            // has just read the PUBREC of a PUBLISH without subscribers, so closing the connection would depend on
            // timing.
            (Released::Early, _) => {}
            // One PUBCOMP answers both. An earlier one would let the client use the identifier too early.
            (Released::Waits, _) => {}
            (Released::Unknown, _) => {
                self.send_ack(slot, PacketType::PubComp, packet_id, ReasonCode::PacketIdentifierNotFound);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, slot: u32, packet_id: PacketId, kind: Acknowledgement) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if let Some(flow) = connection.flow.as_mut() {
            withdraw(&mut flow.ready, packet_id, kind);
        }
        if let Some(session) = connection.session {
            let connection = connection.id;
            self.outbox.request(session.shard, Request::Acknowledge { session, connection, packet_id, kind });
        }
    }

    /// Appends one of the four acknowledgements to a connection's output. None carries User Properties, and none a
    /// Reason String, so these cannot make it too large [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3]
    /// [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3].
    pub(super) fn send_ack(
        &mut self,
        slot: u32,
        packet_type: PacketType,
        packet_id: PacketId,
        reason: ReasonCode,
    ) {
        if reason == ReasonCode::Success && !self.monitor.observes_acks() {
            return self.send_short_ack(slot, packet_type, packet_id);
        }
        self.note_ack(slot, packet_type, packet_id, reason);
        let ack = Ack { packet_id, reason, properties: mqtt::Properties::default() };
        let packet = match packet_type {
            PacketType::PubRec => Packet::PubRec(ack),
            PacketType::PubRel => Packet::PubRel(ack),
            PacketType::PubComp => Packet::PubComp(ack),
            _ => Packet::PubAck(ack),
        };
        if reason.is_error() && self.send_refusal(slot, &packet) {
            return;
        }
        self.send(slot, &packet);
    }

    /// Ends the span of a traced message that is acknowledged.
    #[inline(never)]
    fn note_ack(&mut self, slot: u32, packet_type: PacketType, packet_id: PacketId, reason: ReasonCode) {
        if matches!(packet_type, PacketType::PubAck | PacketType::PubRec)
            && self.monitor.awaits_acks()
            && let Some(connection) = self.connections.occupant_ref(slot)
        {
            self.monitor.span_acknowledged(connection, packet_id, reason);
        }
    }

    /// Sends an acknowledgement of success. It fits the Maximum Packet Size of every client but one whose maximum no
    /// packet fits.
    fn send_short_ack(&mut self, slot: u32, packet_type: PacketType, packet_id: PacketId) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        if (connection.packet_size_max as usize) < SHORT_ACK_LEN {
            return self.close(slot, ReasonCode::PacketTooLarge);
        }
        mqtt::put_short_ack(packet_type, packet_id, connection.out.buffer(&mut self.pool));
        self.counters.bytes_sent += SHORT_ACK_LEN as u64;
        self.monitor.packets.sent(packet_type);
        self.ready.mark_dirty(connection);
    }

    /// Sends an acknowledgement that refuses a PUBLISH with a Reason String. The client must ask for such texts
    /// [MQTT-3.1.2-29], and the packet must fit [MQTT-3.4.2-2] [MQTT-3.5.2-2]. Returns false if the acknowledgement has
    /// to be sent without the text.
    #[cold]
    #[inline(never)]
    fn send_refusal(&mut self, slot: u32, ack: &Packet<'_>) -> bool {
        let (Packet::PubAck(refused) | Packet::PubRec(refused)) = ack else { return false };
        let Some(connection) = self.connections.occupant_ref(slot) else { return false };
        let room = (connection.packet_size_max as usize).saturating_sub(ACK_FRAME);
        let wants = connection.version.has_properties() && connection.marks.problem_information;
        let why = refusals::publish(refused.reason).filter(|why| wants && why.len() <= room);
        let Some(why) = why else { return false };
        let properties = PropertiesBuf::from_iter([Property::ReasonString(why)]);
        let Ack { packet_id, reason, .. } = *refused;
        let refused = Ack { packet_id, reason, properties: properties.as_properties() };
        let is_puback = matches!(ack, Packet::PubAck(_));
        self.send(slot, &if is_puback { Packet::PubAck(refused) } else { Packet::PubRec(refused) });
        true
    }

    pub(super) fn send(&mut self, slot: u32, packet: &Packet<'_>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        let before = connection.out.len();
        if !connection.put(packet, &mut self.pool) {
            return self.close(slot, ReasonCode::PacketTooLarge);
        }
        self.counters.bytes_sent += (connection.out.len() - before) as u64;
        self.monitor.packet_sent(self.clock.now(), connection, packet);
        self.ready.mark_dirty(connection);
    }

    /// Closes the connection of a client that speaks another protocol, with an answer if the client can read one.
    #[cold]
    fn refuse_foreign(&mut self, slot: u32, foreign: ForeignProtocol) {
        self.counters.protocol_errors += 1;
        self.report_foreign(slot, foreign.what());
        let Some(connection) = self.connections.occupant(slot) else { return };
        if let Some(answer) = foreign.answer() {
            connection.out.buffer(&mut self.pool).extend_from_slice(answer.as_bytes());
            self.ready.mark_dirty(connection);
        }
        self.close_silently(slot);
    }

    /// Refuses bytes that are no valid packet: sends the Reason Code and closes the connection [MQTT-4.13.1-1].
    fn refuse(&mut self, slot: u32, bytes: &[u8], error: DecodeError) {
        self.counters.protocol_errors += 1;
        let Some(connection) = self.connections.occupant(slot) else { return };
        tracing::debug!(client = &*connection.client_id, peer = ?connection.peer(), %error, "bad packet");
        if connection.phase == Phase::Open {
            return self.close_because(slot, error.reason_code(), &error.to_string());
        }
        if connection.phase != Phase::AwaitConnect {
            let version = connection.version;
            return self.refuse_connect(slot, version, error.reason_code());
        }
        // CONNACK of 5.0 can carry the reason [MQTT-3.1.4-2]; in 3.x it can only say that the version is not supported
        // [MQTT3-3.1.2-2]. A client of an unknown version gets the CONNACK of 3.1.1, which every client can read.
        let reason = error.reason_code();
        match mqtt::connect_version(bytes) {
            Some(Version::V5) => self.refuse_connect(slot, Version::V5, reason),
            version if reason == ReasonCode::UnsupportedProtocolVersion => {
                self.refuse_connect(slot, version.unwrap_or(Version::V3_1_1), reason);
            }
            _ => self.close_silently(slot),
        }
    }

    fn park_packet(&mut self, slot: u32, packet: &[u8]) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.phase == Phase::Open {
            let flow = connection.flow();
            flow.blocked.get_or_insert_with(Blocked::default).push(packet);
        }
    }

    /// Handles the packets that had to wait.
    pub(super) fn unblock(&mut self, slot: u32) {
        if self.is_dividing(slot) {
            return self.schedule_piece(slot);
        }
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(mut blocked) = connection.flow.as_mut().and_then(|flow| flow.blocked.take()) else { return };
        let fan_out_max = self.dispatcher.fan_out + FAN_OUT_MAX;
        // One of the packets may end the connection; the packets behind it are then ignored.
        while self.connections.occupant(slot).is_some_and(|connection| connection.phase == Phase::Open)
            && let Some(packet) = blocked.first()
        {
            let length = packet.len();
            let step = self.packet(slot, packet);
            if step == Step::Done {
                blocked.pop(length);
            }
            let pauses = step == Step::Done
                && blocked.first().is_some()
                && self.dispatcher.fan_out >= fan_out_max
                && self.pause_fan_out(slot);
            if step == Step::Blocked || pauses || self.is_dividing(slot) {
                if let Some(connection) = self.connections.occupant(slot) {
                    connection.flow().blocked = Some(blocked);
                }
                return;
            }
        }
        self.wake(slot);
    }

    /// Lets the edge offer the kept bytes of a connection again.
    pub(super) fn wake(&mut self, slot: u32) {
        if let Some(connection) = self.connections.occupant(slot) {
            self.ready.wake(connection);
        }
    }

    /// Arms a timer for [`Self::unblock`], unless an earlier one is armed.
    pub(super) fn try_again_at(&mut self, at: Time, slot: u32) {
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return };
        let generation = connection.id.generation;
        let flow = connection.flow();
        if flow.retry_at <= now || at < flow.retry_at {
            flow.retry_at = at;
            self.wheel.arm(at, slot, generation, TimerKind::Unblock);
        }
    }
}

/// Drops an unsent delivery that the client has acknowledged, perhaps because it remembers an earlier connection.
/// Without this, the client could make the store pass on more and more deliveries that it does not read.
fn withdraw(ready: &mut VecDeque<SessionDelivery>, id: PacketId, kind: Acknowledgement) {
    let (Some(first), Some(last)) = (ready.front(), ready.back()) else { return };
    // Deliveries are in the order of their numbers, and Packet Identifiers wrap around (`session::Deliveries`). A
    // delivery that was sent precedes the first of these, so there is nothing to drop.
    let from_first =
        |id: PacketId| (u32::from(id.get()) + 65_535 - u32::from(first.packet_id().get())) % 65_535;
    if from_first(id) > from_first(last.packet_id()) {
        return;
    }
    let meant = |delivery: &SessionDelivery| match (delivery, kind) {
        (SessionDelivery::Publish { packet_id, qos: QoS::AtLeastOnce, .. }, Acknowledgement::PubAck)
        | (
            SessionDelivery::Publish { packet_id, qos: QoS::ExactlyOnce, .. },
            Acknowledgement::PubRec { .. },
        )
        | (SessionDelivery::PubRel { packet_id }, Acknowledgement::PubComp) => *packet_id == id,
        _ => false,
    };
    if let Some(at) = ready.iter().position(meant) {
        ready.remove(at);
    }
}

/// Returns whether only servers send this packet: CONNACK, SUBACK, UNSUBACK or PINGRESP.
fn is_servers(first_byte: u8) -> bool {
    matches!(first_byte >> 4, 2 | 9 | 11 | 13)
}

/// Returns whether a packet is handled while a PUBLISH or SUBSCRIBE of the client waits. This applies to PUBACK,
/// PUBREC, PUBCOMP, PINGREQ, and the PUBREL of a message before that PUBLISH.
fn passes_blocked(version: Version, flow: &Flow, packet: &[u8]) -> bool {
    match packet[0] >> 4 {
        4 | 5 | 7 | 12 => true,
        6 => match mqtt::decode(version, packet) {
            // An unknown identifier may belong to the waiting PUBLISH.
            Ok(Packet::PubRel(Ack { packet_id, .. })) => {
                flow.inbound.has_received(packet_id) && !flow.inbound.is_being_released(packet_id)
            }
            _ => true,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packet Identifiers wrap around from 65,535 to 1.
    #[test]
    fn only_unsent_deliveries_can_be_withdrawn() {
        let ids = [65_534, 65_535, 1, 2];
        let ready = || ids.map(|id| SessionDelivery::PubRel { packet_id: PacketId::new(id).expect("not 0") });
        let left = |id: u16, kind| {
            let mut ready = VecDeque::from(ready());
            withdraw(&mut ready, PacketId::new(id).expect("not 0"), kind);
            ready.iter().map(|delivery| delivery.packet_id().get()).collect::<Vec<_>>()
        };
        for id in ids {
            let others: Vec<u16> = ids.into_iter().filter(|other| *other != id).collect();
            assert_eq!(left(id, Acknowledgement::PubComp), others);
            assert_eq!(left(id, Acknowledgement::PubAck), ids, "the wrong kind of acknowledgement");
        }
        for id in [65_533, 3, 30_000] {
            assert_eq!(left(id, Acknowledgement::PubComp), ids);
        }
        let mut none = VecDeque::new();
        withdraw(&mut none, PacketId::new(1).expect("not 0"), Acknowledgement::PubComp);
        assert_eq!(none.len(), 0);
    }
}
