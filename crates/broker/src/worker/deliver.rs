//! Delivery of messages to the connections of this worker. A message goes straight into the output of a client that
//! keeps up, and into the queue of any other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mqtt::{Ack, Packet, PacketId, PacketType, PlainPublish, QoS, ReasonCode, Version};
use session::{AckOutcome, OutboundAliases, PubRecOutcome, TopicAlias};

use super::Worker;
use super::linked;
use super::queues::Waits;
use super::trace::TracedPublish;
use crate::batch::{MemberDelivery, SessionDelivery, Target, Token, WorkerCommand};
use crate::connection::{Connection, Phase, Role, queued};
use crate::groups::GroupRequest;
use crate::ids::{ConnectionId, GroupId, Time};
use crate::message::{MessageView, Shared};
use crate::message_queue::{Awaited, MessageQueue, Overflow};
use crate::node::Node;
use crate::origin;
use crate::overload::Level;
use crate::route::Route;
use crate::settings::{self, Settings};
use crate::store::{Acknowledgement, Completion, Request};
use crate::wheel::{Timer, TimerKind};

/// Unsent bytes at which queues stop filling a connection's output: about as much as the kernel accepts at once.
pub(super) const OUT_FULL: usize = 256 * 1024;

/// Size up to which a message fits a packet of any version, including the bytes that the broker adds: Subscription
/// Identifiers, and a long topic in place of a Topic Alias.
pub(super) const FITS_ALWAYS: usize = mqtt::PACKET_SIZE_MAX as usize / 2;

/// Size from which a payload is shared between receivers instead of copied for each.
pub(super) const SHARED_MIN: usize = 8 * 1024;

/// Reason that a trace gives for a message that the access rules deny.
pub(super) const NOT_READABLE: &str = "the access rules do not allow the client to receive it";

/// Vectors for the message that is being handled, kept to avoid allocations.
pub(super) struct Scratch {
    pub routes: Vec<Route>,
    pub targets: Vec<Target>,
    pub ids: Vec<u32>,
    pub properties: Vec<u8>,
    /// Topic with the mountpoint of a client.
    pub topic: String,
    pub encoded: Vec<u8>,
    /// Empty Client Identifier, for connections that have none yet.
    pub nobody: Arc<str>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            targets: Vec::new(),
            ids: Vec::new(),
            properties: Vec::new(),
            topic: String::new(),
            encoded: Vec::new(),
            nobody: Arc::from(""),
        }
    }
}

/// A PUBLISH that is encoded once for many receivers. The encodings differ by version, QoS, RETAIN and the length of
/// the mountpoint; the Packet Identifier is overwritten for each receiver.
pub(super) struct EncodeOnce<'p> {
    /// The publisher's packet if it is plain. Receivers of the same form get its bytes.
    published: Option<&'p PlainPublish<'p>>,
    /// True if there are enough receivers for this to save time.
    several: bool,
    is_for_one: bool,
    buffer: Vec<u8>,
    known: Vec<(Form, std::ops::Range<usize>)>,
}

type Form = (Version, QoS, bool, usize);

impl<'p> EncodeOnce<'p> {
    pub fn for_receivers(count: usize) -> Self {
        let (several, is_for_one) = (count > 2, count == 1);
        Self { published: None, several, is_for_one, buffer: Vec::new(), known: Vec::new() }
    }

    /// Starts with the packet of the publisher.
    pub fn of_packet(published: &'p PlainPublish<'p>, receivers: usize) -> Self {
        Self { published: Some(published), ..Self::for_receivers(receivers) }
    }

    pub fn is_for_several(&self) -> bool {
        self.several
    }

    /// Returns whether the message has one receiver on this worker.
    pub fn is_for_one(&self) -> bool {
        self.is_for_one
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Appends the packet of one receiver.
    pub fn append(&mut self, packet: &mqtt::Outgoing<'_>, version: Version, out: &mut Vec<u8>) {
        let plain = packet.topic_alias.is_none() && packet.subscription_ids.is_empty();
        if let Some(published) = self.published
            && plain
            && !packet.dup
            && !packet.retain
            // A receiver with a mountpoint knows the topic by a shorter name.
            && packet.topic.len() == published.topic.len()
            && published.has_form(version, packet.qos)
        {
            return published.copy_to(packet.packet_id, out);
        }
        if !self.several || !plain {
            return packet.encode(version, out);
        }
        let form = (version, packet.qos, packet.retain, packet.topic.len());
        let range = match self.known.iter().find(|(known, _)| *known == form) {
            Some((_, range)) => range.clone(),
            None => {
                let start = self.buffer.len();
                packet.encode(version, &mut self.buffer);
                let range = start..self.buffer.len();
                self.known.push((form, range.clone()));
                range
            }
        };
        let at = out.len();
        out.extend_from_slice(&self.buffer[range]);
        if let Some(id) = packet.packet_id.filter(|_| packet.qos > QoS::AtMostOnce) {
            // Fixed header, Topic Name with its length, Packet Identifier [MQTT-2.2.1-2].
            let length_bytes = out[at + 1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
            let offset = at + 1 + length_bytes + 2 + packet.topic.len();
            out[offset..offset + 2].copy_from_slice(&id.get().to_be_bytes());
        }
    }
}

/// A message for one connection: how the connection gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery<'a> {
    pub qos: QoS,
    /// QoS of the subscription.
    pub subscribed: QoS,
    pub retain: bool,
    /// Subscription Identifiers of all matching subscriptions.
    pub ids: &'a [u32],
    /// Shared group whose member the connection is.
    pub group: Option<GroupId>,
    pub full: WhenFull,
}

/// Treatment of a QoS 1 or 2 message for a connection whose queue is full.
#[derive(Clone, Copy, Debug)]
pub(super) enum WhenFull {
    /// Drop the message: it comes from the node itself.
    Drop,
    /// Keep the message; no publisher waits for it.
    Wait,
    /// Keep the message and let its publisher wait.
    Tell(Token),
}

/// A QoS 1 or 2 message that cannot be sent at once.
#[derive(Debug)]
pub(super) struct Enqueuing<'a> {
    pub size: usize,
    /// The queue of the receiver has a free slot.
    pub has_slot: bool,
    /// Generation of the rules that allow the message.
    pub rules: u64,
    pub full: WhenFull,
    /// The message has no other receiver on this worker.
    pub is_only_receiver: bool,
    pub waits: &'a mut Waits,
}

/// Properties of a message that differ between receivers.
pub(super) struct DeliveryParams<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub dup: bool,
    pub packet_id: Option<PacketId>,
    pub ids: &'a [u32],
    pub expiry: Option<u32>,
}

impl<'a> DeliveryParams<'a> {
    /// The packet for a receiver that knows the topic by this name.
    pub fn packet(&self, view: &MessageView<'a>, topic: &'a str) -> mqtt::Outgoing<'a> {
        mqtt::Outgoing {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            packet_id: self.packet_id,
            topic,
            topic_alias: None,
            message_expiry: self.expiry,
            subscription_ids: self.ids,
            properties: origin::split(view.properties).1,
            payload: view.payload,
        }
    }
}

impl Worker {
    /// Delivers a message to one connection. `ids` are the Subscription Identifiers of all its matching subscriptions.
    /// If a receiver has no free queue slot, `waits` says so, and `token` completes when the last such receiver has a
    /// slot.
    pub(super) fn deliver(
        &mut self,
        target: &Target,
        ids: &[u32],
        shared: &mut Shared<'_>,
        once: &mut EncodeOnce<'_>,
        token: Option<Token>,
        waits: &mut Waits,
    ) {
        if ids.is_empty() && self.deliver_plain(target, None, shared, once, token, waits) {
            return;
        }
        let options = target.options;
        let view = shared.view;
        let retain = view.retain && options.retain_as_published(); // [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        let qos = view.qos.min(options.qos());
        let full = token.map_or(WhenFull::Drop, WhenFull::Tell);
        if view.retain {
            self.overtake(target, view.topic);
        }
        let delivery = Delivery { qos, subscribed: options.qos(), retain, ids, group: None, full };
        self.deliver_as((target.slot, target.generation), &delivery, shared, once, waits);
    }

    /// Delivers a message to one connection: into its output, its queue or its overflow.
    pub(super) fn deliver_as(
        &mut self,
        (slot, generation): (u32, u32),
        delivery: &Delivery<'_>,
        shared: &mut Shared<'_>,
        once: &mut EncodeOnce<'_>,
        waits: &mut Waits,
    ) {
        let Delivery { qos, subscribed, retain, ids, group, full } = *delivery;
        let Some(connection) = self.connections.get_mut(slot, generation) else { return };
        if connection.phase != Phase::Open {
            return;
        }
        // A `#` filter also matches the topic above the mountpoint, which does not belong to the client.
        if connection.unmounted(shared.view.topic).is_none() {
            return;
        }
        if !connection.takes_by_link(&shared.view) {
            return;
        }
        let Ok(expiry) = shared.view.remaining_expiry(self.clock.now()) else {
            self.counters.dropped_expired += 1;
            return self.monitor.dropped(self.clock.now(), connection, &shared.view, "expired");
        };
        let rules = self.rules.current(&*self.node.access);
        if rules.guards_topics && !connection.may_receive(&self.node, rules, shared.view.topic) {
            self.counters.dropped_not_readable += 1;
            return self.monitor.dropped(self.clock.now(), connection, &shared.view, NOT_READABLE);
        }
        let queue = &self.settings.queue;
        if qos == QoS::AtMostOnce {
            if connection.marks.role == Role::ActionStoringQos0
                && subscribed > QoS::AtMostOnce
                && group.is_none()
            {
                return self.store_qos0(slot, (retain, ids), shared);
            }
            let why = if self.load.level() >= Level::High && !connection.out.is_empty() {
                self.counters.dropped_overload += 1;
                "the node is overloaded, and the client does not read"
            } else if connection.out.len() as u64 > queue.unsent_bytes_max.bytes() {
                self.counters.dropped_slow_qos0 += 1;
                "the client does not read fast enough"
            } else {
                let params = DeliveryParams { qos, retain, dup: false, packet_id: None, ids, expiry };
                return self.write(slot, shared, &params, once);
            };
            self.monitor.note_slow(self.clock.now(), connection, &self.settings.monitor);
            return self.monitor.dropped(self.clock.now(), connection, &shared.view, why);
        }
        let room = connection.out.len() < OUT_FULL;
        let window = connection.window;
        let flow = connection.flow();
        let is_open = room && flow.queue.is_empty() && flow.deliveries.window_open(window);
        if is_open
            && (group.is_none()
                || connection.has_queue_room(self.node.load.queue_share(&self.settings), queue))
        {
            // Keep only messages of a shared group: another member may need them. Other messages end with the
            // connection.
            let kept = group.map(|_| queued(shared.message(), qos, retain, ids, group));
            if let Some(entry) = &kept {
                self.queues.hold(connection, entry.message.size());
            }
            let packet_id = Some(connection.flow().deliveries.open(qos, kept));
            let params = DeliveryParams { qos, retain, dup: false, packet_id, ids, expiry };
            return self.write(slot, shared, &params, once);
        }
        let has_slot = connection.has_queue_slot(self.node.load.queue_share(&self.settings), queue);
        // A message of a shared group goes to another member when the connection is closed.
        if !has_slot && (matches!(full, WhenFull::Drop) || connection.drops(group, full)) {
            self.counters.dropped_queue_full += 1;
            let mut why = "the client's queue is full";
            if connection.drops(group, full) {
                note_full_queue(connection, &self.node, &self.settings, self.clock.now());
                why = "the client's queue is full again";
            }
            return self.monitor.dropped(self.clock.now(), connection, &shared.view, why);
        }
        let entry = queued(shared.message(), qos, retain, ids, group);
        let mut waiting = Enqueuing {
            size: entry.message.size(),
            has_slot,
            rules: rules.generation,
            full,
            is_only_receiver: once.is_for_one(),
            waits,
        };
        self.enqueue((slot, generation), &mut waiting, |queue, overflow| queue.push(entry, overflow));
    }

    /// Adds a message to the queue of a connection, or to those that wait for a slot in it. `push` adds it.
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        (slot, generation): (u32, u32),
        message: &mut Enqueuing<'_>,
        push: impl FnOnce(&mut MessageQueue, Option<Overflow>),
    ) {
        let now = self.clock.now();
        let Some(connection) = self.connections.get_mut(slot, generation) else { return };
        if message.has_slot {
            self.queues.hold(connection, message.size);
            let flow = connection.flow();
            if flow.queue.queued() == 0 {
                flow.waiting_rules = message.rules;
                flow.place_freed = now;
                flow.restart_wait(now);
            }
            push(&mut flow.queue, None);
        } else {
            let awaited = match message.full {
                WhenFull::Drop | WhenFull::Wait => Awaited::Nobody,
                WhenFull::Tell(token) if message.is_only_receiver => {
                    *message.waits = Waits::ForOnlyReceiver;
                    Awaited::By(token)
                }
                WhenFull::Tell(token) => self.queues.await_receiver(message.waits, token),
            };
            let queue = &self.settings.queue;
            let drops = connection.marks.drops;
            let flow = connection.flow();
            if flow.queue.overflowing() == 0 {
                flow.becomes_full(now);
            }
            let deadline =
                now.after(if drops { Duration::ZERO } else { queue.full_wait.min(queue.full_wait_total) });
            if awaited != Awaited::Nobody && !std::mem::replace(&mut flow.wait_timed, true) {
                let deadline = deadline.min(flow.full.due(queue.full_wait_total));
                self.wheel.arm(deadline, slot, generation, TimerKind::QueueWait);
            }
            push(&mut flow.queue, Some(Overflow { awaited, deadline }));
            self.queues.overflows(message.size);
        }
        self.queues.note_backlog(connection);
        self.monitor.note_slow(now, connection, &self.settings.monitor);
    }

    /// Appends a PUBLISH to a connection's output.
    fn write(
        &mut self,
        slot: u32,
        shared: &mut Shared<'_>,
        params: &DeliveryParams<'_>,
        once: &mut EncodeOnce<'_>,
    ) {
        let view = shared.view;
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(topic) = connection.unmounted(view.topic) else {
            debug_assert!(false, "a client has no subscriptions outside of its mountpoint");
            return;
        };
        let version = connection.version;
        let mut with_origin = Vec::new();
        let mut packet = params.packet(&view, topic);
        if connection.marks.role.gets_origins() {
            origin::put_for_process(view.properties, &mut with_origin);
            packet.properties = &with_origin;
        }
        let has_time = connection.marks.role == Role::Link && params.retain;
        let mut with_time = Vec::new();
        if has_time {
            let published_ms = self.node.origin_wall_ms().saturating_add(view.received.0);
            linked::put_time(view.properties, published_ms, &mut with_time);
            packet.properties = &with_time;
        }
        let size_max = connection.packet_size_max;
        let bounded = size_max != u32::MAX || view.encoded_len() > FITS_ALWAYS;
        let is_oversized =
            |packet: &mqtt::Outgoing<'_>| bounded && packet.encoded_len(version) > size_max as usize;
        if connection.alias_max > 0 {
            let alias_max = connection.alias_max;
            let flow = connection.flow();
            let aliases = flow.aliases_out.get_or_insert_with(|| OutboundAliases::new(alias_max));
            match aliases.name(topic) {
                TopicAlias::None => {}
                TopicAlias::Introduce(alias) => {
                    packet.topic_alias = Some(alias);
                    // The client must not miss the packet that introduces an alias.
                    if is_oversized(&packet) {
                        aliases.undo_introduce();
                        packet.topic_alias = None;
                    }
                }
                TopicAlias::Use(alias) => (packet.topic, packet.topic_alias) = ("", Some(alias)),
            }
        }
        if is_oversized(&packet) {
            self.counters.dropped_packet_size += 1;
            self.finish_unsent(slot, params);
            return self.dropped(slot, &view, "larger than the client's Maximum Packet Size");
        }
        let before = connection.out.len();
        if view.payload.len() >= SHARED_MIN && (once.several || shared.is_shared()) {
            packet.encode_head(version, connection.out.buffer(&mut self.pool));
            connection.out.append_shared(shared.message(), view.payload.len());
        } else if connection.marks.role.gets_origins() || has_time {
            packet.encode(version, connection.out.buffer(&mut self.pool));
        } else {
            once.append(&packet, version, connection.out.buffer(&mut self.pool));
        }
        let size = connection.out.len() - before;
        connection.messages_sent = connection.messages_sent.wrapping_add(1);
        if let Some(packet_id) = params.packet_id {
            connection.watch_delivery(packet_id, &view);
        }
        self.counters.bytes_sent += size as u64;
        self.counters.count_sent(params.qos);
        if self.monitor.events.observes_fates() {
            let sent = (&view, params.qos, params.packet_id);
            self.monitor.events.sent(self.clock.now(), connection, sent, || shared.message());
        }
        let DeliveryParams { qos, retain, dup, .. } = *params;
        let packet_id = params.packet_id.map(PacketId::get);
        let publish = TracedPublish { qos, retain, dup, packet_id, ..TracedPublish::of(&view) };
        self.monitor.sent(self.clock.now(), connection, (&view, &publish), size);
        self.ready.mark_dirty(connection);
    }

    /// Counts and traces a message that a client does not get.
    #[cold]
    pub(super) fn dropped(&mut self, slot: u32, view: &MessageView<'_>, why: &str) {
        if let Some(connection) = self.connections.occupant_ref(slot) {
            self.monitor.dropped(self.clock.now(), connection, view, why);
        }
    }

    /// Completes a delivery that is not sent, because the client may not get it or because it exceeds the Maximum
    /// Packet Size [MQTT-3.1.2-25]. The delivery then counts as sent.
    fn finish_unsent(&mut self, slot: u32, params: &DeliveryParams<'_>) {
        let Some(packet_id) = params.packet_id else { return };
        let Some(connection) = self.connections.occupant(slot) else { return };
        if let Some(session) = connection.session {
            let id = connection.id;
            let kind = crate::store::Acknowledgement::PubRec { refused: true };
            let kind =
                if params.qos == QoS::ExactlyOnce { kind } else { crate::store::Acknowledgement::PubAck };
            return self
                .outbox
                .request(session.shard, Request::Acknowledge { session, connection: id, packet_id, kind });
        }
        let deliveries = &mut connection.flow().deliveries;
        let kept = match params.qos {
            QoS::ExactlyOnce => match deliveries.pub_rec(packet_id, true) {
                PubRecOutcome::Refused(kept) => kept,
                PubRecOutcome::Release(_)
                | PubRecOutcome::ReleaseAgain
                | PubRecOutcome::Unknown
                | PubRecOutcome::WrongKind => None,
            },
            QoS::AtMostOnce | QoS::AtLeastOnce => match deliveries.pub_ack(packet_id) {
                AckOutcome::Finished(kept) => kept,
                AckOutcome::Unknown | AckOutcome::WrongKind => None,
            },
        };
        self.queues.release(connection, kept.map_or(0, |entry| entry.message.size()));
    }

    /// Sends waiting messages of a connection, as far as its window and output allow, and accepts messages of waiting
    /// publishers.
    pub(super) fn pump(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.flow.as_ref().is_none_or(|flow| flow.has_nothing_to_send()) {
            return;
        }
        self.pump_durable(slot);
        self.pump_ephemeral(slot);
        self.ask_for_page(slot);
    }

    fn pump_durable(&mut self, slot: u32) {
        while let Some(connection) = self.connections.occupant(slot)
            && connection.phase == Phase::Open
            && connection.out.len() < OUT_FULL
            && let Some(flow) = connection.flow.as_mut()
            && let Some(delivery) = flow.ready.pop_front()
        {
            match delivery {
                SessionDelivery::PubRel { packet_id } => {
                    self.send_ack(slot, PacketType::PubRel, packet_id, ReasonCode::Success);
                }
                SessionDelivery::Publish { packet_id, qos, dup, retain, message, subscription_ids } => {
                    let mut shared = Shared::from(&message);
                    // The store skips messages that expired before they were bound to a Packet Identifier. Later, the
                    // message is sent with the rest of its interval, or with 0.
                    let expiry = shared.view.remaining_expiry(self.clock.now()).unwrap_or(Some(0));
                    let ids = subscription_ids.as_slice();
                    let params = DeliveryParams { qos, retain, dup, packet_id: Some(packet_id), ids, expiry };
                    if connection.unmounted(shared.view.topic).is_none() {
                        self.finish_unsent(slot, &params);
                        continue;
                    }
                    // The rules, or what a link exports, may have changed since the message was queued or first sent.
                    let rules = self.rules.current(&*self.node.access);
                    let is_readable = connection.takes_by_link(&shared.view)
                        && (!rules.guards_topics
                            || connection.may_receive(&self.node, rules, shared.view.topic));
                    if !is_readable {
                        self.counters.dropped_not_readable += 1;
                        if dup && qos == QoS::ExactlyOnce {
                            // The client may have received it. PUBREL follows, so that both sides release the Packet
                            // Identifier.
                            self.acknowledge(slot, packet_id, Acknowledgement::PubRec { refused: false });
                        } else {
                            self.finish_unsent(slot, &params);
                        }
                        self.dropped(slot, &shared.view, NOT_READABLE);
                        continue;
                    }
                    self.write(slot, &mut shared, &params, &mut EncodeOnce::for_receivers(1));
                }
            }
        }
    }

    fn pump_ephemeral(&mut self, slot: u32) {
        loop {
            self.send_waiting(slot);
            let Some(connection) = self.connections.occupant_ref(slot) else { return };
            let (is_open, room) = (connection.phase == Phase::Open, connection.out.len() < OUT_FULL);
            // What was sent left places for waiting publishers. Without room in the output, they only fill the queue.
            if !is_open || !self.drain_overflow(slot) || !room {
                return;
            }
        }
    }

    /// Sends messages from the queue of an ephemeral session, as far as its window and output allow.
    fn send_waiting(&mut self, slot: u32) {
        loop {
            self.send_packets(slot);
            if !self.send_first(slot) {
                return;
            }
        }
    }

    /// Sends or drops the first message of the queue of an ephemeral session. Returns false if it has to wait.
    fn send_first(&mut self, slot: u32) -> bool {
        let Some(connection) = self.connections.occupant(slot) else { return false };
        if connection.phase != Phase::Open || connection.out.len() >= OUT_FULL {
            return false;
        }
        let now = self.clock.now();
        let window = connection.window;
        let Some(flow) = connection.flow.as_mut() else { return false };
        let Some(expiry) = flow.queue.first_expiry(now) else { return false };
        if expiry.is_ok() && !flow.deliveries.window_open(window) {
            return false;
        }
        // The rules may have changed since the message was queued.
        let rules = self.rules.current(&*self.node.access);
        if flow.waiting_rules != rules.generation && rules.guards_topics {
            let Some(message) = flow.queue.first_message() else { return false };
            if !connection.may_receive(&self.node, rules, message.view().topic) {
                self.queues.skip_waiting(connection, now);
                self.counters.dropped_not_readable += 1;
                self.monitor.dropped(now, connection, &message.view(), NOT_READABLE);
                return true;
            }
        }
        let Ok(expiry) = expiry else {
            if let Some(entry) = self.queues.skip_waiting(connection, now) {
                self.counters.dropped_expired += 1;
                self.monitor.dropped(now, connection, &entry.message.view(), "expired in its queue");
            }
            return true;
        };
        let Some(flow) = connection.flow.as_mut() else { return false };
        let Some(entry) = flow.queue.pop() else { return false };
        let kept = entry.group.is_some().then(|| entry.clone());
        let packet_id = Some(flow.deliveries.open(entry.qos, kept));
        flow.note_left(now);
        if entry.group.is_none() {
            self.queues.release(connection, entry.message.size());
        }
        let ids = entry.subscription_ids.as_slice();
        let params =
            DeliveryParams { qos: entry.qos, retain: entry.retain, dup: false, packet_id, ids, expiry };
        self.write(slot, &mut Shared::from(&entry.message), &params, &mut EncodeOnce::for_receivers(1));
        true
    }

    /// Moves messages from the overflow to free queue slots and notifies their publishers. Returns false if none could
    /// be moved.
    fn drain_overflow(&mut self, slot: u32) -> bool {
        let mut moves = false;
        let share = self.node.load.queue_share(&self.settings);
        let Some(connection) = self.connections.occupant(slot) else { return false };
        while let Some(size) = connection.flow.as_ref().and_then(|flow| flow.queue.overflow_size())
            && connection.has_queue_room(share, &self.settings.queue)
            && let Some(Overflow { awaited, .. }) = connection.flow().queue.admit()
        {
            connection.hold(size);
            if let Some(token) = self.queues.receiver_done(awaited) {
                self.outbox.complete_later(token);
            }
            moves = true;
        }
        if moves && connection.flow().queue.overflowing() == 0 {
            connection.flow().full.ends(self.clock.now());
        }
        moves
    }

    /// Notes that one of the receivers of a waiting message is disconnected.
    pub(super) fn receiver_done(&mut self, awaited: Awaited) {
        if let Some(token) = self.queues.receiver_done(awaited) {
            self.outbox.complete_later(token);
        }
    }

    /// Closes a client whose full queue makes publishers wait for too long. The client is closed if it frees no queue
    /// slot for `queue.full_wait`. It is also closed if publishers have waited for `queue.full_wait_total` and it has
    /// not accepted the messages that waited when its queue became full. The publishers then continue.
    pub(super) fn check_queue_wait(&mut self, timer: Timer) {
        if self.connections.get_mut(timer.slot, timer.generation).is_none() {
            return;
        }
        // There may be room because other clients hold less memory.
        self.drain_overflow(timer.slot);
        let Some(connection) = self.connections.get_mut(timer.slot, timer.generation) else { return };
        let drops = connection.marks.drops;
        let Some(flow) = connection.flow.as_mut() else { return };
        flow.wait_timed = false;
        // A message without a waiting publisher does not close the client.
        let is_waited_for = |overflow: &&Overflow| overflow.awaited != Awaited::Nobody;
        let Some(oldest) = flow.queue.overflow().iter().find(is_waited_for) else { return };
        let queue = &self.settings.queue;
        let mut at = oldest.deadline;
        if !drops {
            at = at.max(flow.place_freed.after(queue.full_wait)).min(flow.full.due(queue.full_wait_total));
        }
        if at > self.clock.judged() {
            flow.wait_timed = true;
            let at = at.max(Time(self.clock.now().0 + 1));
            return self.wheel.arm(at, timer.slot, timer.generation, TimerKind::QueueWait);
        }
        self.close_slow_reader(timer.slot);
    }

    /// Closes a client whose queue was full for too long, and remembers it.
    pub(super) fn close_slow_reader(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        self.counters.slow_readers_closed += 1;
        tracing::debug!(
            client = &*connection.client_id,
            "client disconnected: its queue was full for too long"
        );
        note_full_queue(connection, &self.node, &self.settings, self.clock.now());
        self.close(slot, ReasonCode::QuotaExceeded);
    }

    /// Closes connections that hold too much queue memory while it is short. Such a connection holds more than an equal
    /// share. It has also accepted nothing for `queue.full_wait`, or too little for `queue.full_wait_total`. Waiting
    /// publishers are not a condition: memory that one client does not free is missing for all others.
    pub(super) fn close_hoarders(&mut self) {
        if !self.node.load.hoarders_give_way.load(Ordering::Relaxed) {
            return;
        }
        let (share, wait) = (self.node.equal_share(), self.settings.queue.full_wait);
        let mut to_free =
            self.node.waiting_bytes().saturating_sub(self.settings.limits.memory_queued_max.bytes() / 2);
        let mut hoarders = Vec::new();
        for (slot, generation) in self.queues.backlogged() {
            let Some(flow) =
                self.connections.get(slot, generation).and_then(|connection| connection.flow.as_deref())
            else {
                continue;
            };
            let held = flow.held_bytes as u64;
            let is_stuck = flow.place_freed.after(wait) <= self.clock.judged()
                || flow.waiting_since.after(self.settings.queue.full_wait_total) <= self.clock.judged();
            if to_free > 0 && held >= share.max(1) && is_stuck {
                to_free = to_free.saturating_sub(held);
                hoarders.push(slot);
            }
        }
        hoarders.into_iter().for_each(|slot| self.close_slow_reader(slot));
        for shard in self.shards.iter_mut() {
            for connection in shard.hoarders(self.clock.judged(), share, &mut to_free) {
                let worker = connection.worker;
                let command = WorkerCommand::Completion(Completion::QueueFull { connection });
                self.outbox.post(worker, command);
            }
        }
    }

    /// Closes the connection of a durable session whose shard reports that its queue was full for too long.
    pub(super) fn queue_was_full(&mut self, id: ConnectionId) {
        if self.connections.get_mut(id.slot, id.generation).is_some() {
            self.close_slow_reader(id.slot);
        }
    }

    /// Queues deliveries of a durable session from its shard.
    pub(super) fn session_deliveries(
        &mut self,
        id: ConnectionId,
        first: SessionDelivery,
        more: Vec<SessionDelivery>,
    ) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        let window = usize::from(connection.window);
        let flow = connection.flow();
        if !flow.retained.is_empty() {
            for delivery in [&first].into_iter().chain(&more) {
                // Messages of a page of retained messages have RETAIN set. A message that was sent before is not newer
                // than the pages to come.
                if let SessionDelivery::Publish { retain: false, dup: false, message, .. } = delivery
                    && message.view().retain
                {
                    flow.overtake(message.view().topic);
                }
            }
        }
        let ready = &mut flow.ready;
        ready.push_back(first);
        ready.extend(more);
        // Deliveries in flight fit the window, unless the client acknowledges deliveries that it was never sent.
        // Without this check such a client could fill the queue without end.
        let publishes = |ready: &VecDeque<SessionDelivery>| {
            ready.iter().filter(|delivery| matches!(delivery, SessionDelivery::Publish { .. })).count()
        };
        if ready.len() > window && publishes(ready) > window {
            self.counters.protocol_errors += 1;
            return self.close(id.slot, ReasonCode::ProtocolError);
        }
        self.pump(id.slot);
    }

    /// Delivers a shared subscription's message to a member that is connected to this worker.
    pub(super) fn member_delivery(&mut self, delivery: MemberDelivery) {
        let MemberDelivery { group, connection: id, message, options, subscription_id, token } = delivery;
        let connection = self.connections.get_mut(id.slot, id.generation);
        let Some(connection) = connection.filter(|connection| connection.phase == Phase::Open) else {
            let bounce = GroupRequest::Bounce { group, message, token };
            return self.outbox.group_request(group.shard, bounce);
        };
        let durable = connection.session.is_some();
        let mut shared = Shared::from(&message);
        let view = shared.view;
        let qos = view.qos.min(options.qos());
        debug_assert!(
            !durable || qos == QoS::AtMostOnce,
            "a durable member gets QoS 1 and 2 from its session"
        );
        let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
        let retain = view.retain && options.retain_as_published();
        let mut waits = Waits::No;
        let once = &mut EncodeOnce::for_receivers(1);
        let target = Target {
            slot: id.slot,
            generation: id.generation,
            subscription_id: 0,
            options,
            continues: false,
        };
        if ids.is_empty()
            && !durable
            && self.deliver_plain(&target, Some(group), &mut shared, once, token, &mut waits)
        {
            #[cfg(test)]
            {
                self.short_ways.to_members += 1;
            }
            if let Some(token) = token {
                self.answer(token, ReasonCode::Success);
            }
            return;
        }
        // A message without a token is already acknowledged to its publisher, so it must not be dropped.
        let full = token.map_or(WhenFull::Wait, WhenFull::Tell);
        let delivery = Delivery { qos, subscribed: options.qos(), retain, ids, group: Some(group), full };
        self.deliver_as((id.slot, id.generation), &delivery, &mut shared, once, &mut waits);
        if waits == Waits::No
            && let Some(token) = token
        {
            self.answer(token, ReasonCode::Success);
        }
    }

    /// Sends PUBREL after the store has recorded PUBREC [MQTT-4.3.3-4].
    pub(super) fn release_delivery(&mut self, id: ConnectionId, packet_id: PacketId, reason: ReasonCode) {
        self.send_to(id, &Packet::PubRel(Ack { packet_id, reason, properties: mqtt::Properties::default() }));
    }

    /// Sends PUBCOMP after the store has released a QoS 2 Packet Identifier. The next message with this identifier is a
    /// new one. An answer that comes again changes nothing: the client may have used the identifier for that message.
    pub(super) fn complete_release(&mut self, id: ConnectionId, packet_id: PacketId) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        if connection.phase != Phase::Open || !connection.flow().inbound.end_release(packet_id) {
            return;
        }
        let ack = Ack { packet_id, reason: ReasonCode::Success, properties: mqtt::Properties::default() };
        self.send(id.slot, &Packet::PubComp(ack));
        self.unblock(id.slot);
    }

    fn send_to(&mut self, id: ConnectionId, packet: &Packet<'_>) {
        let open = |connection: &mut Connection| connection.phase == Phase::Open;
        if self.connections.get_mut(id.slot, id.generation).is_some_and(open) {
            self.send(id.slot, packet);
        }
    }
}

impl Connection {
    /// Returns whether the queue has a slot for a message that arrives now. Earlier messages that wait for a slot come
    /// first.
    pub(super) fn has_queue_slot(&self, share: u64, queue: &settings::Queue) -> bool {
        self.flow.as_deref().is_none_or(|flow| flow.queue.overflowing() == 0)
            && self.has_queue_room(share, queue)
    }

    /// Returns whether a message for the full queue is dropped, because the queue was full for too long before.
    fn drops(&self, group: Option<GroupId>, full: WhenFull) -> bool {
        self.marks.drops && group.is_none() && matches!(full, WhenFull::Tell(_))
    }
}

/// Remembers the client because its queue was full, once for each connection.
fn note_full_queue(connection: &mut Connection, node: &Node, settings: &Settings, now: Time) {
    if std::mem::replace(&mut connection.flow().noted_full, true) {
        return;
    }
    let (client, source) = (connection.client_id.clone(), connection.source(node));
    if node.load.full_queues.note(&client, source, now, settings.queue.full_penalty) {
        tracing::warn!(
            client = &*client,
            user = connection.username(),
            "queue full for too long: the client acknowledges too slowly; for queue.full_penalty its full queue drops messages, \
             and no publisher waits for it"
        );
    }
}
