//! PUBLISH from a client: checks, dispatch and acknowledgement.

use std::sync::Arc;

use mqtt::{PacketId, PacketType, Publish, QoS, ReasonCode, TopicName};
use session::{DueIdentifier, Inbound, Keep, Received};
use shard::{Mutation, mutated};

use super::Worker;
use super::dispatch::{Dispatched, Dispatcher, Origin, Publishing};
use super::events::Event;
use super::linked;
use super::permission::Rules;
use super::receive::Step;
use super::spans::OpenSpan;
use crate::access::Rates;
use crate::batch::Token;
use crate::connection::{Connection, Flow, RetainRoom};
use crate::durability::Durability;
use crate::groups;
use crate::ids::{ConnectionId, SessionId, ShardId, ShardSet, Time};
use crate::internal;
use crate::message::MessageView;
use crate::mount::mounted;
use crate::node::Node;
use crate::retained;
use crate::route::{Route, RouteKind};
use crate::settings::{PublishDenied, Settings};
use crate::store::{GroupName, Identity, QUEUE_REFUSED, Request, reason_for_publisher};

/// Time in milliseconds after which a publisher is retried if the node lacks memory or cannot reach other nodes.
pub(super) const OVERLOAD_RETRY_MS: u64 = 100;

impl Worker {
    pub(super) fn publish_packet(&mut self, slot: u32, publish: &Publish<'_>, size: usize) -> Step {
        let rules = self.rules();
        if rules.may_answer_later && self.awaits_permission(slot, rules, publish) {
            return Step::Blocked;
        }
        if publish.retain && self.awaits_room(slot, publish, size) {
            return Step::Blocked;
        }
        if self.has_cluster_shards() && self.awaits_shards(slot, publish) {
            self.counters.publishers_blocked += 1;
            self.try_again_at(Time(self.clock.now().0 + OVERLOAD_RETRY_MS), slot);
            return Step::Blocked;
        }
        if let Some(retry) = self.must_wait(slot, publish, size) {
            self.counters.publishers_blocked += 1;
            if retry != Time::NEVER {
                self.try_again_at(retry, slot);
            }
            return Step::Blocked;
        }
        self.counters.count_received(publish.qos);
        if let Some(connection) = self.connections.occupant(slot) {
            connection.messages_received = connection.messages_received.wrapping_add(1);
        }
        if let Err(reason) = self.publish(slot, rules, publish, size) {
            self.counters.protocol_errors += 1;
            self.close(slot, reason);
        }
        Step::Done
    }

    /// Returns the time of the next attempt if this PUBLISH has to wait. [`Time::NEVER`] means that an acknowledgement
    /// starts the next attempt.
    pub(super) fn must_wait(&mut self, slot: u32, publish: &Publish<'_>, size: usize) -> Option<Time> {
        let limits = &self.settings.limits;
        let connection = self.connections.occupant(slot)?;
        let receive_max = usize::from(connection.receive_max(&self.settings.mqtt));
        // A known QoS 2 message needs only an answer.
        let known = |inbound: &Inbound<ShardSet>| {
            publish.qos == QoS::ExactlyOnce && publish.packet_id.is_some_and(|id| inbound.has_received(id))
        };
        if publish.qos > QoS::AtMostOnce
            && !connection.version.has_receive_maximum()
            && let Some(Flow { inbound, .. }) = connection.flow.as_deref()
            && inbound.inflight() >= receive_max
            && !known(inbound)
        {
            return Some(Time::NEVER);
        }
        if let Some(packet_id) = publish.packet_id
            && connection
                .flow
                .as_ref()
                .is_some_and(|flow| flow.inbound.waits_for_release(packet_id, receive_max))
        {
            return Some(Time::NEVER);
        }
        // A client with unanswered messages could fill the rest of the memory before the node reacts.
        let has_unanswered =
            |flow: &Flow| flow.inbound.inflight() > 0 && !known(&flow.inbound) && self.node.is_nearly_full();
        if publish.qos > QoS::AtMostOnce && connection.flow.as_deref().is_some_and(has_unanswered) {
            return Some(Time::NEVER);
        }
        // One publisher holds no more than its share, as one reader does.
        if publish.qos > QoS::AtMostOnce
            && let Some(Flow { inbound, .. }) = connection.flow.as_deref()
            && has_its_share(inbound, &self.node, &self.settings)
            && !known(inbound)
        {
            return Some(Time::NEVER);
        }
        if publish.qos > QoS::AtMostOnce
            && (self.node.is_overloaded() || self.node.is_stale(self.clock.now()))
        {
            return Some(Time(self.clock.now().0 + OVERLOAD_RETRY_MS));
        }
        let limited = limits.messages_per_second > 0 || limits.bytes_per_second.bytes() > 0;
        if limited || connection.marks.paced {
            let principal = connection.extra.as_ref().and_then(|extra| extra.principal.as_ref());
            let rates = principal.and_then(|principal| principal.rates).unwrap_or(Rates::from(limits));
            let now = self.clock.now();
            return connection.flow().budget.take(now, rates, size).err();
        }
        None
    }

    /// Returns whether a retained message has to wait until its shard confirms that there is room. The worker asks
    /// before it dispatches the message, because a refused message must reach no receiver. It asks only while room is
    /// short, or if another node leads the shard: only the leader knows what its clients have retained.
    fn awaits_room(&mut self, slot: u32, publish: &Publish<'_>, size: usize) -> bool {
        if publish.qos == QoS::AtMostOnce || publish.payload.is_empty() {
            return false;
        }
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let payers = connection.extra.as_ref().map(|extra| &extra.payers);
        let is_short = payers
            .is_some_and(|payers| payers.is_short_of_retained(&self.settings, &self.node.load))
            || self.node.is_short_of_retained();
        if !is_short && self.lanes.is_none() {
            return false;
        }
        let flow = connection.flow();
        match flow.room {
            RetainRoom::NotRequested => {}
            RetainRoom::Requested => return true,
            RetainRoom::Known(_) => return false,
        }
        let topic = connection.full_topic(publish, self.settings.mqtt.topic_alias_max);
        let shard = retained::shard_of(&topic);
        if TopicName::parse(&topic).is_err() || shard == retained::OWN_TOPICS {
            return false;
        }
        if !is_short && self.lanes.as_deref().is_some_and(|lanes| lanes.is_led_here(shard)) {
            return false;
        }
        connection.flow().room = RetainRoom::Requested;
        let payers = connection.extra.as_ref().map(|extra| extra.payers.clone()).unwrap_or_default();
        let (connection, topic) = (connection.id, topic.into());
        self.outbox.request(shard, Request::AskRoomToRetain { topic, size: size as u64, connection, payers });
        true
    }

    /// Returns whether a message has to wait because one of its shards has its share of unanswered requests, or one of
    /// its groups has members only in such shards. Apart from the path of a node alone.
    #[inline(never)]
    fn awaits_shards(&mut self, slot: u32, publish: &Publish<'_>) -> bool {
        let is_for_shards = publish.qos > QoS::AtMostOnce || publish.retain;
        let full = self.full_shards();
        if full.is_empty() && !self.node.routes.is_full_for_groups() || !is_for_shards {
            return false;
        }
        let Some(connection) = self.connections.occupant(slot) else { return false };
        if publish.qos == QoS::ExactlyOnce
            && publish.packet_id.is_some_and(|id| connection.flow().inbound.has_received(id))
        {
            return false;
        }
        let topic = connection.full_topic(publish, self.settings.mqtt.topic_alias_max);
        let Ok(name) = TopicName::parse(&topic) else { return false };
        if publish.retain && full.contains(retained::shard_of(&topic)) {
            return true;
        }
        let mut routes = std::mem::take(&mut self.scratch.routes);
        routes.clear();
        let Dispatcher { reader, cache, .. } = &mut self.dispatcher;
        let is_full = |route: &Route| match route.kind {
            RouteKind::Shard => full.contains(ShardId(route.index)),
            RouteKind::ShardGroups => {
                // The shard of the groups notes the identity of a message of QoS 2.
                publish.qos == QoS::ExactlyOnce && full.contains(ShardId(route.index))
                    || self.node.routes.groups(ShardId(route.index)).awaits_shards(name)
            }
            _ => false,
        };
        let waits =
            publish.qos > QoS::AtMostOnce && cache.routes(reader, name, &mut routes).iter().any(is_full);
        self.scratch.routes = routes;
        waits
    }

    pub(super) fn room_to_retain(&mut self, id: ConnectionId, is_there: bool) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        // An answer that comes again is not for the next message.
        if connection.flow().room == RetainRoom::Requested {
            connection.flow().room = RetainRoom::Known(is_there);
            self.unblock(id.slot);
        }
    }

    fn publish(
        &mut self,
        slot: u32,
        rules: Rules,
        publish: &Publish<'_>,
        size: usize,
    ) -> Result<(), ReasonCode> {
        let mqtt = &self.settings.mqtt;
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        if publish.qos as u8 > mqtt.qos_max {
            return Err(ReasonCode::QoSNotSupported); // [MQTT-3.2.2-11]
        }
        if publish.retain && !mqtt.retain_available {
            return Err(ReasonCode::RetainNotSupported); // [MQTT-3.2.2-14]
        }
        let mut aliased: Option<Arc<str>> = None;
        let mut expires = Time::NEVER;
        let mut invalid_payload = false;
        let properties = publish.properties;
        if !properties.is_empty() {
            if properties.subscription_identifier().is_some() {
                return Err(ReasonCode::ProtocolError); // [MQTT-3.3.4-6]
            }
            if let Some(alias) = properties.topic_alias() {
                let flow = connection.flow();
                if publish.topic.is_empty() {
                    aliased = Some(flow.aliases_in.resolve(alias, mqtt.topic_alias_max)?);
                } else {
                    let bytes_max = mqtt.topic_alias_bytes_max.bytes() as usize;
                    flow.aliases_in.set(alias, publish.topic, mqtt.topic_alias_max, bytes_max)?;
                }
            }
            if let Some(seconds) = properties.message_expiry_interval() {
                expires = Time(self.clock.now().0 + u64::from(seconds) * 1000);
            }
            invalid_payload = properties.payload_format_indicator() == Some(1)
                && std::str::from_utf8(publish.payload).is_err();
        }
        let topic = aliased.as_deref().unwrap_or(publish.topic);
        let name = TopicName::parse(topic).map_err(|_| ReasonCode::TopicNameInvalid)?;
        let is_beyond = is_beyond_limits(topic, mqtt);
        // Receive the identifier before anything can be refused: a repeated QoS 2 PUBLISH gets the same answer as the
        // first.
        if let Some(packet_id) = publish.packet_id {
            let receive_max = usize::from(connection.receive_max(mqtt));
            connection.check_receive_maximum(publish, receive_max)?;
            if publish.qos == QoS::ExactlyOnce {
                match connection.flow().inbound.receive(packet_id) {
                    Received::New => {}
                    Received::Repeated => {
                        self.send_ack(slot, PacketType::PubRec, packet_id, ReasonCode::Success);
                        return Ok(());
                    }
                    Received::RepeatedEarly => return Ok(()),
                }
            }
        }
        if is_beyond {
            return self.refuse_topic(slot, publish);
        }
        if invalid_payload {
            self.refuse_publish(slot, publish, ReasonCode::PayloadFormatInvalid);
            return Ok(());
        }
        let is_allowed = connection.may_publish(&self.node, rules, publish, topic);
        if self.monitor.events.is_selected(Event::Authz) && !connection.marks.role.is_process() {
            let about = ("publish", topic);
            self.monitor.events.authorized(self.clock.now(), connection, about, is_allowed);
        }
        if !is_allowed {
            self.counters.publish_denied += 1;
            self.report_refusal(
                slot,
                "PUBLISH denied by the access rules",
                Some(topic),
                ReasonCode::NotAuthorized,
            );
            let reason = match self.settings.mqtt.publish_denied {
                PublishDenied::Disconnect => return Err(ReasonCode::NotAuthorized),
                PublishDenied::Reason => ReasonCode::NotAuthorized,
                PublishDenied::Ignore => ReasonCode::Success,
            };
            self.refuse_publish(slot, publish, reason);
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch.properties);
        let mut room = std::mem::take(&mut self.scratch.topic);
        let (topic, name) = if connection.marks.mounted {
            let topic = mounted(connection.mountpoint(), topic, &mut room);
            let name = TopicName::parse(topic).map_err(|_| ReasonCode::TopicNameInvalid)?;
            if is_beyond_limits(topic, &self.settings.mqtt) {
                return self.refuse_topic(slot, publish);
            }
            (topic, name)
        } else {
            (topic, name)
        };
        let listener = self.node.listener_durability(connection.listener);
        let mut view = MessageView {
            topic,
            properties: properties.forwardable(&mut scratch),
            payload: publish.payload,
            qos: publish.qos,
            retain: publish.retain,
            expires,
            received: self.clock.now(),
            publisher: Some(connection.id),
            publisher_key: connection.client_key,
            durability: self.settings.durability_of(name, listener),
            span: 0,
        };
        let mut without_time = Vec::new();
        let is_of_link = connection.marks.role.is_process()
            && !view.properties.is_empty()
            && connection.client_id.starts_with(internal::LINKED);
        // Only a link may name the group that gets a message.
        let group = if is_of_link { groups::target(view.properties) } else { None };
        if publish.retain && is_of_link {
            // The time on this cluster's clock when the other one got it: the later message is retained.
            let published = linked::take_time(view.properties, &mut without_time);
            let published = published.map(|ms| ms.saturating_sub(self.node.origin_wall_ms()));
            view.received = Time(published.unwrap_or(view.received.0).min(view.received.0));
            view.properties = &without_time;
        }
        self.monitor.published(self.clock.now(), connection, &view, publish, size);
        let mut span = OpenSpan::default();
        if self.monitor.records_spans(&view) {
            let packet = (publish.packet_id, publish.dup);
            (view.span, span) =
                self.monitor.begin_published(self.clock.now(), Some(connection), &view, packet);
        }
        // A copy for a group is not retained, so that it needs no room.
        if publish.retain && connection.takes_no_room() && group.is_none() {
            self.refuse_retained(slot, publish);
        } else {
            self.publish_and_acknowledge(slot, publish, name, view, group.as_ref());
        }
        if view.span != 0 {
            self.monitor.end_span(span);
        }
        self.scratch.properties = scratch;
        self.scratch.topic = room;
        Ok(())
    }

    fn publish_and_acknowledge(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        name: TopicName<'_>,
        view: MessageView<'_>,
        group: Option<&GroupName>,
    ) {
        let Some(packet_id) = publish.packet_id else {
            self.dispatch_as(name, view, Publishing { group, ..Publishing::default() });
            return;
        };
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (id, session) = (connection.id, connection.session);
        let sequence = connection.flow().inbound.next_sequence();
        let token = Token::Publish { connection: id, sequence };
        if let Some(session) = session.filter(|_| publish.qos == QoS::ExactlyOnce) {
            let identity = (session, packet_id, publish.dup);
            let kept = (token, kept_bytes(publish, 1));
            return self.publish_and_keep(slot, name, (view, group), identity, kept);
        }
        let publishing = Publishing {
            token: Some(token),
            origin: Origin::of_client(publish.dup),
            group,
            ..Publishing::default()
        };
        let Dispatched { outstanding, matched, refused, may_be_partial, .. } =
            self.dispatch_as(name, view, publishing);
        if let Some(reason) = refused {
            return self.refuse_untaken(slot, (packet_id, publish.qos, publish.dup), reason);
        }
        self.await_completions(slot, publish, outstanding, reason_of(matched));
        if may_be_partial && let Some(connection) = self.connections.occupant(slot) {
            connection.mark_last_partial();
        }
    }

    /// Publishes a QoS 2 message of a session that outlives the connection. The store records the Packet Identifier
    /// before PUBREC is sent [MQTT-4.3.3-8], and not before it has the message. Until then the client's next connection
    /// may dispatch the message again.
    fn publish_and_keep(
        &mut self,
        slot: u32,
        name: TopicName<'_>,
        (view, group): (MessageView<'_>, Option<&GroupName>),
        (session, packet_id, dup): (SessionId, PacketId, bool),
        (token, bytes): (Token, u32),
    ) {
        let durability = view.durability;
        let Some(connection) = self.connections.occupant(slot) else { return };
        let inbound = &mut connection.flow().inbound;
        let identity = Identity::of_publish(session, packet_id, inbound.toggles.get(packet_id));
        let previous_losses = inbound.dispatched(packet_id).map(|earlier| earlier.losses);
        let repeated = previous_losses.is_some() || dup;
        // Read the counter before the message is sent: a later loss may concern this message.
        let losses = self.node.routes.losses();
        let publishing = Publishing {
            token: Some(token),
            identity: Some(identity),
            previous_losses,
            origin: Origin::of_client(repeated),
            group,
            ..Publishing::default()
        };
        let Dispatched { mut outstanding, matched, shards, stored, refused, may_be_partial } =
            self.dispatch_as(name, view, publishing);
        if let Some(reason) = refused {
            return self.refuse_untaken(slot, (packet_id, QoS::ExactlyOnce, repeated), reason);
        }
        let is_in_cluster = self.has_cluster_shards();
        let mut keep = Keep::Last { unsynced: durability == Durability::Memory };
        if !stored {
            keep = Keep::Requested;
            outstanding += 1;
            self.outbox.request(session.shard, Request::Receive { session, packet_id, durability, token });
        }
        if let Some(connection) = self.connections.occupant(slot) {
            let inbound = &mut connection.flow().inbound;
            let earlier = inbound.take_dispatched(packet_id);
            let shards = if is_in_cluster {
                // A previous connection was served until its messages had arrived. Which shards have got this one may
                // be unknown, if it was a connection of another node.
                let is_unknown = repeated && !mutated(Mutation::ReleaseKnown);
                if is_unknown { ShardSet::full() } else { shards }
            } else {
                // The message of the earlier connection may still be on its way. It must not count as a new message
                // when it arrives.
                inbound.lingering |= earlier.map_or(ShardSet::EMPTY, |earlier| earlier | shards);
                if earlier.is_none() { shards } else { ShardSet::EMPTY }
            };
            let dispatched = session::Dispatched { packet_id, shards, losses };
            inbound.wait_and_keep(dispatched, outstanding, reason_of(matched), keep);
            if is_in_cluster {
                inbound.charge_last(bytes.saturating_mul(outstanding));
            }
            if may_be_partial {
                inbound.mark_last_partial();
            }
        }
    }

    /// Lets shards forget the identity of a message that is not sent again.
    pub(super) fn forget_identity(&mut self, identity: Identity, shards: ShardSet) {
        for shard in shards.iter() {
            self.outbox.request(shard, Request::ForgetIdentity { identity });
        }
    }

    /// Acknowledges a PUBLISH according to its QoS [MQTT3-3.3.4-1]. The acknowledgement is sent at once if this PUBLISH
    /// and all earlier ones are complete [MQTT-4.6.0-2].
    pub(super) fn await_completions(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        outstanding: u32,
        reason: ReasonCode,
    ) {
        let (Some(connection), Some(packet_id)) = (self.connections.occupant(slot), publish.packet_id) else {
            return;
        };
        let inbound = &mut connection.flow().inbound;
        if outstanding == 0 && inbound.is_idle() && !(reason.is_error() && publish.qos == QoS::ExactlyOnce) {
            let packet =
                if publish.qos == QoS::ExactlyOnce { PacketType::PubRec } else { PacketType::PubAck };
            return self.send_ack(slot, packet, packet_id, reason);
        }
        inbound.wait(packet_id, publish.qos, outstanding, reason);
        if outstanding == 0 {
            return self.poll_inbound(slot);
        }
        if self.lanes.is_some() {
            inbound.charge_last(kept_bytes(publish, outstanding));
        }
    }

    /// Acknowledges a PUBLISH that is not dispatched.
    fn refuse_publish(&mut self, slot: u32, publish: &Publish<'_>, reason: ReasonCode) {
        if publish.qos == QoS::AtMostOnce || self.refuse_repeated(slot, publish, reason) {
            return;
        }
        self.give_up_dispatched(slot, publish);
        self.await_completions(slot, publish, 0, reason);
    }

    /// Refuses a topic that exceeds the limits.
    ///
    /// # Errors
    /// Fails if no acknowledgement can carry a Reason Code: before MQTT 5.0 and at QoS 0. The connection is then
    /// closed.
    fn refuse_topic(&mut self, slot: u32, publish: &Publish<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        if connection.marks.role.is_process() && publish.qos == QoS::AtMostOnce {
            // The topic is made of a message of a client. Others of the action must not suffer.
            return Ok(());
        }
        if publish.qos == QoS::AtMostOnce || !connection.version.has_receive_maximum() {
            return Err(ReasonCode::TopicNameInvalid);
        }
        self.refuse_publish(slot, publish, ReasonCode::TopicNameInvalid);
        Ok(())
    }

    /// Refuses a message that the log does not accept, so that no receiver has it. A repeated message may be stored
    /// from an earlier attempt. The client may then get neither an acknowledgement nor a refusal, so the connection is
    /// closed.
    fn refuse_untaken(
        &mut self,
        slot: u32,
        (packet_id, qos, repeated): (PacketId, QoS, bool),
        reason: ReasonCode,
    ) {
        if repeated {
            return self.close(slot, reason);
        }
        let Some(connection) = self.connections.occupant(slot) else { return };
        connection.flow().inbound.wait(packet_id, qos, 0, reason);
        self.poll_inbound(slot);
    }

    fn refuse_retained(&mut self, slot: u32, publish: &Publish<'_>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(packet_id) = publish.packet_id else { return };
        let was_dispatched = connection.flow().inbound.dispatched(packet_id).is_some();
        // A repeated QoS 1 message counts as a new message, so no receiver has a part of it.
        let repeated = publish.qos == QoS::ExactlyOnce && (publish.dup || was_dispatched);
        self.refuse_untaken(slot, (packet_id, publish.qos, repeated), ReasonCode::QuotaExceeded);
    }

    /// Refuses or ignores a QoS 2 message that any shard of a cluster may have got from an earlier connection of the
    /// client. Returns false for other messages.
    fn refuse_repeated(&mut self, slot: u32, publish: &Publish<'_>, reason: ReasonCode) -> bool {
        let is_in_cluster = self.has_cluster_shards();
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let (id, session) = (connection.id, connection.session);
        let (Some(session), Some(packet_id)) = (session, publish.packet_id) else { return false };
        let inbound = &mut connection.flow().inbound;
        let was_dispatched = inbound.dispatched(packet_id).is_some();
        let is_repeated = publish.qos == QoS::ExactlyOnce && (publish.dup || was_dispatched);
        if !is_in_cluster || !is_repeated {
            return false;
        }
        let token = Token::Publish { connection: id, sequence: inbound.next_sequence() };
        let (shards, losses) = (ShardSet::full(), 0);
        if !reason.is_error() {
            // The client goes on with PUBREL. The exchange ends when all shards have forgotten the message, also if
            // that comes to another node [MQTT-4.3.3-11].
            inbound.wait_and_keep(
                session::Dispatched { packet_id, shards, losses },
                1,
                reason,
                Keep::Ignored,
            );
            let durability = Durability::LocalDisk;
            let receive = Request::Receive { session, packet_id, durability, token };
            self.outbox.request(session.shard, receive);
            return true;
        }
        inbound.take_dispatched(packet_id);
        let dispatched = session::Dispatched { packet_id, shards: ShardSet::EMPTY, losses };
        inbound.wait_and_keep(dispatched, 1, reason, Keep::Ending);
        let identity = Identity::of_publish(session, packet_id, inbound.toggles.get(packet_id));
        self.counters.publish_refused += 1;
        self.end_refused(session, (packet_id, identity), shards, token);
        true
    }

    /// Ends the exchange of a refused message in a cluster. The client may use the Packet Identifier again when it gets
    /// PUBREC [MQTT-4.3.3-9], which waits for `token`: until then this node may be lost, and what it has asked for.
    fn end_refused(
        &mut self,
        session: SessionId,
        (packet_id, identity): (PacketId, Identity),
        shards: ShardSet,
        token: Token,
    ) {
        self.forget_identity(identity, shards);
        let end = Request::Forget { session, packet_id, flip: true, token: Some(token) };
        self.outbox.request(session.shard, end);
    }

    /// Ends a message that an earlier connection of the client dispatched and that is refused now.
    fn give_up_dispatched(&mut self, slot: u32, publish: &Publish<'_>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (Some(session), Some(packet_id)) = (connection.session, publish.packet_id) else { return };
        let inbound = &mut connection.flow().inbound;
        if let Some(shards) = inbound.take_dispatched(packet_id) {
            let identity = Identity::of_publish(session, packet_id, inbound.toggles.get(packet_id));
            inbound.toggles.flip(packet_id);
            let end = Request::Forget { session, packet_id, flip: true, token: None };
            self.outbox.request(session.shard, end);
            self.forget_identity(identity, shards);
        }
    }

    /// Notes that one of the completions of a publish has come.
    pub(super) fn publish_completed(
        &mut self,
        slot: u32,
        generation: u32,
        sequence: u32,
        reason: ReasonCode,
    ) {
        let connection = ConnectionId { worker: self.id, slot, generation };
        if self.complete_publish(connection, sequence, reason) {
            self.poll_inbound(slot);
        }
    }

    /// Notes that one of the completions of a publish has come. Returns whether acknowledgements may be due.
    pub(super) fn complete_publish(
        &mut self,
        ConnectionId { slot, generation, .. }: ConnectionId,
        sequence: u32,
        reason: ReasonCode,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(slot, generation) else { return false };
        let Some(flow) = connection.flow.as_mut() else { return false };
        let due = flow.inbound.complete(sequence, reason);
        if let (Some(DueIdentifier { packet_id, unsynced }), Some(session)) = (due, connection.session) {
            let token = Token::Publish { connection: connection.id, sequence };
            let durability = if unsynced { Durability::Memory } else { Durability::LocalDisk };
            self.outbox.request(session.shard, Request::Receive { session, packet_id, durability, token });
            return false;
        }
        true
    }

    /// Closes the connection of a publish that one node may have and another lacks. The client may get neither an
    /// acknowledgement nor a refusal.
    pub(super) fn publish_unknown(&mut self, connection: ConnectionId) {
        if self.connections.get_mut(connection.slot, connection.generation).is_some() {
            self.counters.publish_refused += 1;
            self.close(connection.slot, ReasonCode::ServerBusy);
        }
    }

    /// Sends the acknowledgements that are due to a publisher.
    pub(super) fn poll_inbound(&mut self, slot: u32) {
        self.send_pub_acks(slot);
        while let Some(connection) = self.connections.occupant(slot)
            && let Some(flow) = connection.flow.as_mut()
            && let Some(done) = flow.inbound.poll()
        {
            if done.reason.is_error() && done.keep != Keep::Ending {
                self.counters.publish_refused += 1;
                // MQTT 3.1.1 cannot refuse a PUBLISH: acknowledge it or close [MQTT3-3.3.5-2]. A message that the store
                // could not keep must not look acknowledged.
                let cannot_refuse = !connection.version.has_receive_maximum() && is_failure(done.reason);
                // Some shards may have the message although its identifier cannot be recorded. Or a member of a group
                // does not get it and other receivers have it.
                let is_failure = is_failure(done.reason) && done.reason != QUEUE_REFUSED;
                let is_taken = done.reason == ReasonCode::ImplementationSpecificError
                    && done.keep != Keep::Never
                    || done.reason == ReasonCode::UnspecifiedError
                    || done.may_be_partial && is_failure;
                if cannot_refuse || is_taken {
                    flow.inbound.leave_unfinished(&done);
                    return self.close(slot, reason_for_publisher(done.reason));
                }
            }
            if let Some(session) = connection.session {
                let packet_id = done.packet_id;
                let identity = Identity::of_publish(session, packet_id, flow.inbound.toggles.get(packet_id));
                if done.keep == Keep::Ending {
                    flow.inbound.toggles.flip(packet_id);
                } else if done.reason.is_error() && done.keep != Keep::Never {
                    if self.lanes.is_some() {
                        let sequence = flow.inbound.end_refused(&done);
                        let token = Token::Publish { connection: connection.id, sequence };
                        self.end_refused(session, (packet_id, identity), done.shards, token);
                        continue;
                    }
                    flow.inbound.toggles.flip(packet_id);
                    let end = Request::Forget { session, packet_id, flip: true, token: None };
                    self.outbox.request(session.shard, end);
                }
                self.forget_identity(identity, done.shards);
            }
            let packet = if done.qos == QoS::ExactlyOnce { PacketType::PubRec } else { PacketType::PubAck };
            self.send_ack(slot, packet, done.packet_id, reason_for_publisher(done.reason));
            if done.is_released {
                self.release(slot, done.packet_id);
            }
        }
        self.unblock(slot);
    }
}

/// Returns whether the publishes of a client that are not acknowledged take so much memory that the next one waits: as
/// much as is free, so that each new publisher gets as much as the others have. One message may be of any size.
pub(super) fn has_its_share(inbound: &Inbound<ShardSet>, node: &Node, settings: &Settings) -> bool {
    inbound.bytes() > 0 && inbound.bytes() >= node.load.queue_share(settings)
}

/// Approximate number of bytes that are kept for a message until its completions have come. Each of those that give
/// one may have its own copy.
fn kept_bytes(publish: &Publish<'_>, outstanding: u32) -> u32 {
    let bytes = publish.topic.len() + publish.payload.len() + publish.properties.as_bytes().len();
    u32::try_from(bytes).unwrap_or(u32::MAX).saturating_mul(outstanding)
}

impl Connection {
    /// Topic of a PUBLISH with the client's mountpoint; empty if its Topic Alias is unknown.
    fn full_topic(&mut self, publish: &Publish<'_>, alias_max: u16) -> String {
        let alias = publish.properties.topic_alias().filter(|_| publish.topic.is_empty());
        let aliased = alias.and_then(|alias| self.flow().aliases_in.resolve(alias, alias_max).ok());
        let topic = aliased.as_deref().unwrap_or(publish.topic);
        format!("{}{topic}", self.mountpoint())
    }

    /// [MQTT-3.3.4-7] [MQTT-3.3.4-9]: a client that exceeds the server's Receive Maximum is disconnected.
    pub(super) fn check_receive_maximum(
        &self,
        publish: &Publish<'_>,
        receive_max: usize,
    ) -> Result<(), ReasonCode> {
        let Some(flow) = &self.flow else { return Ok(()) };
        let exceeded = self.version.has_receive_maximum() && flow.inbound.inflight() >= receive_max;
        let repeated = publish.qos == QoS::ExactlyOnce
            && publish.packet_id.is_some_and(|packet_id| flow.inbound.has_received(packet_id));
        if exceeded && !repeated { Err(ReasonCode::ReceiveMaximumExceeded) } else { Ok(()) }
    }

    fn mark_last_partial(&mut self) {
        if let Some(flow) = &mut self.flow {
            flow.inbound.mark_last_partial();
        }
    }

    /// Returns whether the shard has no room for this retained message, and resets the answer.
    fn takes_no_room(&mut self) -> bool {
        let flow = self.flow.as_mut();
        flow.is_some_and(|flow| std::mem::take(&mut flow.room) == RetainRoom::Known(false))
    }
}

/// Returns the Reason Code of a PUBLISH that succeeds.
pub(super) fn reason_of(matched: bool) -> ReasonCode {
    if matched { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers }
}

/// Returns whether a Topic Name or Topic Filter has more levels or bytes than the settings allow.
pub(crate) fn is_beyond_limits(topic: &str, mqtt: &crate::settings::Mqtt) -> bool {
    topic.len() > usize::from(mqtt.topic_len_max)
        || topic.bytes().filter(|byte| *byte == b'/').count() >= usize::from(mqtt.topic_levels_max)
}

/// Returns whether only the broker itself publishes to a topic.
pub(crate) fn is_own_topic(topic: &str) -> bool {
    is_below(topic, "$SYS") || is_events(topic) || is_of_actions(topic) || is_of_links(topic)
}

/// Returns whether a topic is one of events, or a Topic Filter matches only such topics.
pub(super) fn is_events(topic: &str) -> bool {
    is_below(topic, "$events")
}

/// Returns whether a topic is one on which actions pass messages to each other, or a Topic Filter matches only such
/// topics.
pub(super) fn is_of_actions(topic: &str) -> bool {
    is_below(topic, "$action")
}

/// Returns whether a topic is one of the service for linked clusters, or a Topic Filter matches only such topics.
pub(super) fn is_of_links(topic: &str) -> bool {
    is_below(topic, "$link")
}

fn is_below(topic: &str, first_level: &str) -> bool {
    topic.strip_prefix(first_level).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a topic is reserved for the broker. That applies to all topics below `$events`, to those below
/// `$action` except for actions, to those below `$link` except for linked clusters and their service, and to those
/// below `$SYS` except one: a client, usually a bridge, publishes its connection state on
/// `$SYS/broker/connection/<Client Identifier>/state`.
pub(super) fn is_reserved(topic: &str, client_id: &str) -> bool {
    let bridge = || topic.strip_prefix(retained::BRIDGES).and_then(|rest| rest.strip_suffix("/state"));
    let is_of_action = || is_of_actions(topic) && client_id.starts_with(internal::ACTION);
    let is_of_link = || {
        let asks = || topic.strip_suffix(internal::LINK_LIST) == Some(client_id);
        is_of_links(topic) && (client_id.starts_with(internal::LINK_SERVICE) || asks())
    };
    is_own_topic(topic) && bridge() != Some(client_id) && !is_of_action() && !is_of_link()
}

/// Returns whether a message was not kept because something is lacking, and not because it is forbidden.
fn is_failure(reason: ReasonCode) -> bool {
    !matches!(reason, ReasonCode::NotAuthorized | ReasonCode::PayloadFormatInvalid)
}
