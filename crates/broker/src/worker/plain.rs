//! The short way of a plain message. Most messages are plain: nothing in the packet, in the settings or in the
//! receivers asks for more than to copy the bytes and to count.
//!
//! A PUBLISH is plain if it has no DUP, RETAIN and properties, its topic was published before and leads to connections
//! of ephemeral sessions only, no rule has to be asked, and its client has no mountpoint, rates or unusual state. A
//! receiver is plain if it has no mountpoint, Topic Alias Maximum, Maximum Packet Size or Subscription Identifier, and
//! takes the message at once.
//!
//! **Invariant:** the short way changes nothing that anyone notices. Each of its functions does all of its work or
//! nothing. If it does nothing, the caller goes the general way (`publish.rs`, `dispatch.rs`, `deliver.rs`), which
//! handles every message.

use mqtt::{PacketId, PacketType, PlainPublish, Publish, QoS, ReasonCode, SHORT_ACK_LEN};
use session::{AckOutcome, Received};

use super::Worker;
use super::deliver::{DeliveryParams, EncodeOnce, Enqueuing, FITS_ALWAYS, OUT_FULL, SHARED_MIN, WhenFull};
use super::events::Event;
use super::publish::{has_its_share, reason_of};
use super::queues::Waits;
use crate::access::Action;
use crate::batch::{Target, Token};
use crate::connection::{Phase, queued};
use crate::ids::{GroupId, Time};
use crate::match_cache::KnownTopic;
use crate::message::{MessageView, Shared};
use crate::overload::Level;

/// Number of messages that went each of the short ways.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entered {
    pub published: u64,
    /// Messages whose publishers access control had allowed the topic before.
    pub with_rules: u64,
    /// Messages that were queued as packets, and those of them that were sent as such.
    pub queued: u64,
    pub sent_from_queue: u64,
    /// PUBACKs that were handled in runs.
    pub acknowledged: u64,
    /// Deliveries to members of shared groups.
    pub to_members: u64,
}

impl Worker {
    /// Handles a packet if it is a plain PUBLISH. Returns false, and has no effect, if the packet has to go the general
    /// way.
    pub(super) fn publish_plain(&mut self, slot: u32, packet: &[u8]) -> bool {
        if self.monitor.is_observed() || !self.goes_short_way {
            return false;
        }
        let Some(connection) = self.connections.occupant_ref(slot) else { return false };
        let marks = connection.marks;
        if connection.phase != Phase::Open || marks.mounted || marks.paced {
            return false;
        }
        let Some(plain) = PlainPublish::read(connection.version, packet) else { return false };
        // The version comes first, as for every use of the cache.
        let version = self.dispatcher.reader.index().version();
        let Some(known) = self.dispatcher.cache.take_plain(plain.topic, version) else { return false };
        let publish = plain.named(known.name());
        let is_accepted = self.accept_plain(slot, &known, &publish, packet.len());
        if is_accepted {
            self.dispatch_plain(slot, &known, &plain, &publish);
        }
        self.dispatcher.cache.put_back(known);
        is_accepted
    }

    /// Accepts a plain PUBLISH and counts it. Returns false, and has no effect, if the general way has to decide.
    fn accept_plain(&mut self, slot: u32, known: &KnownTopic, publish: &Publish<'_>, size: usize) -> bool {
        let rules = self.rules();
        let (mqtt, limits) = (&self.settings.mqtt, &self.settings.limits);
        if known.is_beyond_limits(mqtt)
            || publish.qos as u8 > mqtt.qos_max
            || limits.messages_per_second > 0
            || limits.bytes_per_second.bytes() > 0
            || rules.may_answer_later
        {
            return false;
        }
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let receive_max = usize::from(connection.receive_max(mqtt));
        let action = Action::Publish { qos: publish.qos, retain: false };
        if !connection.has_known_permission(rules, action, known.name().as_str()) {
            return false;
        }
        #[cfg(test)]
        {
            self.short_ways.with_rules += u64::from(!rules.allow(connection, known.name().as_str()));
        }
        if let Some(packet_id) = publish.packet_id {
            // Any of these may make the publisher wait, or close its connection.
            let may_wait = self.node.is_nearly_full() || self.node.is_overloaded() || self.node.is_stale(now);
            let is_durable = connection.session.is_some();
            let inbound = &mut connection.flow().inbound;
            if may_wait
                || !inbound.has_room(receive_max)
                || has_its_share(inbound, &self.node, &self.settings)
            {
                return false;
            }
            if publish.qos == QoS::ExactlyOnce {
                if is_durable || inbound.has_received(packet_id) {
                    return false;
                }
                let received = inbound.receive(packet_id);
                debug_assert_eq!(received, Received::New);
            }
        }
        self.counters.count_received(publish.qos);
        connection.messages_received = connection.messages_received.wrapping_add(1);
        self.monitor.sampler.received(&connection.client_id, known.name().as_str(), size);
        true
    }

    /// Delivers an accepted plain message to its receivers and acknowledges it.
    fn dispatch_plain(
        &mut self,
        slot: u32,
        known: &KnownTopic,
        plain: &PlainPublish<'_>,
        publish: &Publish<'_>,
    ) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let listener = self.node.listener_durability(connection.listener);
        let view = MessageView {
            topic: publish.topic,
            properties: &[],
            payload: publish.payload,
            qos: publish.qos,
            retain: false,
            expires: Time::NEVER,
            received: self.clock.now(),
            publisher: Some(connection.id),
            publisher_key: connection.client_key,
            durability: self.settings.durability_of(known.name(), listener),
            span: 0,
        };
        let token = (publish.qos > QoS::AtMostOnce).then(|| {
            let sequence = connection.flow().inbound.next_sequence();
            Token::Publish { connection: connection.id, sequence }
        });
        let mut shared = Shared::of(view);
        let routes = known.routes();
        self.dispatcher.begin(routes.len());
        #[cfg(test)]
        {
            self.short_ways.published += 1;
        }
        if let Some(route) = known.route_to_groups() {
            let outstanding = self.append_for_groups(route, &mut shared, token);
            return self.await_completions(slot, publish, outstanding, ReasonCode::Success);
        }
        // Routes of one worker are adjacent, and each leads to another connection.
        let local = routes.iter().filter(|route| route.index == self.id.0).count();
        let mut once = EncodeOnce::of_packet(plain, local);
        let mut waits = Waits::No;
        let mut outstanding = 0;
        for route in routes {
            if route.index == self.id.0 {
                let ids = [route.subscription_id];
                let ids = if route.subscription_id == 0 { &[][..] } else { &ids };
                self.deliver(&Target::of(route), ids, &mut shared, &mut once, token, &mut waits);
            } else {
                outstanding += self.batch_plain(route, plain, &mut shared, token);
            }
        }
        outstanding += u32::from(waits != Waits::No);
        self.await_completions(slot, publish, outstanding, reason_of(!routes.is_empty()));
    }

    /// Delivers a message to a plain receiver whose subscriptions have no identifiers. `group` is the shared group
    /// whose member the receiver is. Returns false, and has no effect, if the general way has to decide.
    #[inline(always)]
    pub(super) fn deliver_plain(
        &mut self,
        target: &Target,
        group: Option<GroupId>,
        shared: &mut Shared<'_>,
        once: &mut EncodeOnce<'_>,
        token: Option<Token>,
        waits: &mut Waits,
    ) -> bool {
        let view = &shared.view;
        if view.retain
            || view.expires != Time::NEVER
            || view.encoded_len() > FITS_ALWAYS
            || !self.goes_short_way
        {
            return false;
        }
        if view.payload.len() >= SHARED_MIN && (once.is_for_several() || shared.is_shared()) {
            return false;
        }
        let rules = self.rules.current(&*self.node.access);
        let Some(connection) = self.connections.get_mut(target.slot, target.generation) else { return true };
        if !connection.is_plain_receiver()
            || !connection.has_known_permission(rules, Action::Receive, view.topic)
            || self.monitor.observes(view)
        {
            return false;
        }
        let qos = view.qos.min(target.options.qos());
        let mut packet_id = None;
        if qos == QoS::AtMostOnce {
            let unsent = connection.out.len();
            if unsent > 0
                && (self.load.level() >= Level::High
                    || unsent as u64 > self.settings.queue.unsent_bytes_max.bytes())
            {
                return false;
            }
        } else {
            let (room, window) = (connection.out.len() < OUT_FULL, connection.window);
            let flow = connection.flow();
            if !(room && flow.queue.is_empty() && flow.deliveries.window_open(window)) {
                // A message of a group is kept for another member.
                return group.is_none()
                    && self.enqueue_plain(target, qos, shared, once, (rules.generation, token), waits);
            }
            if group.is_some() {
                let share = self.node.load.queue_share(&self.settings);
                if !connection.has_queue_room(share, &self.settings.queue) {
                    return false;
                }
                self.queues.hold(connection, view.encoded_len());
            }
            let kept = group.map(|_| queued(shared.message(), qos, false, &[], group));
            packet_id = Some(connection.flow().deliveries.open(qos, kept));
        }
        let view = &shared.view;
        let params = DeliveryParams { qos, retain: false, dup: false, packet_id, ids: &[], expiry: None };
        let before = connection.out.len();
        let version = connection.version;
        once.append(&params.packet(view, view.topic), version, connection.out.buffer(&mut self.pool));
        let size = connection.out.len() - before;
        connection.messages_sent = connection.messages_sent.wrapping_add(1);
        if let Some(packet_id) = packet_id {
            connection.watch_delivery(packet_id, view);
        }
        self.counters.bytes_sent += size as u64;
        self.counters.count_sent(qos);
        self.monitor.sent_unobserved(&connection.client_id, size);
        self.ready.mark_dirty(connection);
        true
    }

    /// Handles the run of PUBACKs of success that the bytes of an open connection begin with. The first one is counted
    /// already. Returns the length of the run; 0, without an effect, if the first packet has to go another way.
    pub(super) fn pub_acks(&mut self, slot: u32, bytes: &[u8]) -> usize {
        if self.monitor.events.is_selected(Event::Acked) {
            return 0;
        }
        let Some(connection) = self.connections.occupant(slot) else { return 0 };
        if connection.session.is_some() {
            return 0;
        }
        let Some(flow) = connection.flow.as_deref_mut() else { return 0 };
        let (mut count, mut released, mut follows) = (0, 0, false);
        for packet in bytes.chunks_exact(SHORT_ACK_LEN) {
            let Some((PacketType::PubAck, packet_id)) = mqtt::short_ack(packet) else { break };
            // The general way measures the observed delivery, and closes the connection after a wrong packet.
            follows = flow.probe.packet_id == Some(packet_id);
            if follows {
                break;
            }
            match flow.deliveries.pub_ack(packet_id) {
                AckOutcome::Finished(Some(entry)) => released += entry.message.size(),
                AckOutcome::Finished(None) | AckOutcome::Unknown => {}
                AckOutcome::WrongKind => break,
            }
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        #[cfg(test)]
        {
            self.short_ways.acknowledged += count as u64;
        }
        self.monitor.packets.received_many(PacketType::PubAck, count as u64 - 1);
        self.queues.release(connection, released);
        // The last acknowledgement of a run fills the window.
        if !follows {
            self.pump(slot);
        }
        count * SHORT_ACK_LEN
    }

    /// Sends the PUBACKs of success that are due to a publisher, up to the first other acknowledgement.
    pub(super) fn send_pub_acks(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if self.monitor.observes_acks()
            || !self.goes_short_way
            || connection.phase != Phase::Open
            || connection.session.is_some()
            || (connection.packet_size_max as usize) < SHORT_ACK_LEN
        {
            return;
        }
        let Some(flow) = connection.flow.as_deref_mut() else { return };
        let Some(mut packet_id) = flow.inbound.poll_pub_ack() else { return };
        let out = connection.out.buffer(&mut self.pool);
        let mut count = 0;
        loop {
            mqtt::put_short_ack(PacketType::PubAck, packet_id, out);
            count += 1;
            let Some(next) = flow.inbound.poll_pub_ack() else { break };
            packet_id = next;
        }
        self.counters.bytes_sent += count * SHORT_ACK_LEN as u64;
        self.monitor.packets.sent_many(PacketType::PubAck, count);
        self.ready.mark_dirty(connection);
    }

    /// Queues a message for a plain receiver as the packet that it will get. Returns false, and has no effect, if the
    /// general way has to decide. `rules` is the generation of the rules that allow the message.
    fn enqueue_plain(
        &mut self,
        target: &Target,
        qos: QoS,
        shared: &Shared<'_>,
        once: &mut EncodeOnce<'_>,
        (rules, token): (u64, Option<Token>),
        waits: &mut Waits,
    ) -> bool {
        let view = &shared.view;
        // Several receivers share one copy of the message.
        if !once.is_for_one() || shared.is_shared() {
            return false;
        }
        if !view.properties.is_empty() || view.encoded_len() >= SHARED_MIN {
            return false;
        }
        let Some(connection) = self.connections.get_mut(target.slot, target.generation) else { return true };
        let share = self.node.load.queue_share(&self.settings);
        let has_slot = connection.has_queue_slot(share, &self.settings.queue);
        if !has_slot && (token.is_none() || connection.marks.drops) {
            return false;
        }
        #[cfg(test)]
        {
            self.short_ways.queued += 1;
        }
        let version = connection.version;
        let full = token.map_or(WhenFull::Drop, WhenFull::Tell);
        let mut message =
            Enqueuing { size: view.encoded_len(), has_slot, rules, full, is_only_receiver: true, waits };
        let packet_id = PacketId::new(1);
        let params = DeliveryParams { qos, retain: false, dup: false, packet_id, ids: &[], expiry: None };
        let packet = params.packet(view, view.topic);
        self.enqueue((target.slot, target.generation), &mut message, |queue, overflow| {
            queue.push_packet(view, overflow, |out| once.append(&packet, version, out));
        });
        true
    }

    /// Sends packets from the beginning of the queue of an ephemeral session, as far as its window and output allow.
    /// Stops at a message for which the general way has to decide.
    pub(super) fn send_packets(&mut self, slot: u32) {
        if self.monitor.is_observed() || !self.goes_short_way {
            return;
        }
        let rules = self.rules.current(&*self.node.access);
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return };
        if !connection.is_plain_receiver() {
            return;
        }
        let (window, connected_at) = (connection.window, connection.connected_at);
        let mut unsent = connection.out.len();
        let Some(flow) = connection.flow.as_deref_mut() else { return };
        if flow.waiting_rules != rules.generation && rules.guards_topics
            || flow.queue.first_packet().is_none()
            || unsent >= OUT_FULL
            || !flow.deliveries.window_open(window)
        {
            return;
        }
        let out = connection.out.buffer(&mut self.pool);
        let (mut messages, mut released) = (0_u32, 0);
        while unsent < OUT_FULL
            && flow.deliveries.window_open(window)
            && let Some(packet) = flow.queue.first_packet()
        {
            let qos = packet.qos();
            let packet_id = flow.deliveries.open(qos, None);
            let size = packet.copy_to(packet_id, out);
            if flow.probe.packet_id.is_none() {
                flow.probe.begin(packet_id, &packet.view(), connected_at);
            }
            released += flow.queue.remove_packet();
            flow.note_left(now);
            unsent += size;
            messages += 1;
            self.counters.bytes_sent += size as u64;
            self.counters.count_sent(qos);
            self.monitor.sent_unobserved(&connection.client_id, size);
        }
        #[cfg(test)]
        {
            self.short_ways.sent_from_queue += u64::from(messages);
        }
        connection.messages_sent = connection.messages_sent.wrapping_add(messages);
        self.queues.release(connection, released);
        self.ready.mark_dirty(connection);
    }
}

#[cfg(test)]
mod tests;
