//! The steps from CONNECT to CONNACK: local checks, access control, and the claim of the session.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqtt::{ConnAck, Connect, Packet, PropertiesBuf, Property, QoS, ReasonCode, TopicName, Version};
use session::{Dispatched, Toggles};

use super::events::Event;
use super::publish::{is_beyond_limits, is_reserved};
use super::route_work::ROUTES_AT_ONCE;
use super::wills::{will_delay, will_message};
use super::{Stage, Worker, linked, refusals, report};
use crate::access::AuthReply;
use crate::batch::{Claimed, WorkerCommand};
use crate::connection::{Connecting, Enhanced, Phase, Role};
use crate::groups::Join;
use crate::ids::{ConnectionId, ShardSet, Ticket, client_key};
use crate::internal;
use crate::route::Options;
use crate::store::{GroupName, Identity};
use crate::subscriptions::Subscriptions;
use crate::wheel::TimerKind;

impl Worker {
    pub(super) fn connect(&mut self, slot: u32, connect: &Connect<'_>) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        // A refusal obeys these two values too.
        connection.packet_size_max = connect.maximum_packet_size();
        connection.marks.problem_information = connect.properties.request_problem_information();
        let is_internal = connection.marks.role.is_process();
        if let Err(reason) = self.check_connect(connect, is_internal) {
            return self.refuse_connect(slot, connect.version, reason);
        }
        if self.node.drain.refuses() && !is_internal {
            return self.refuse_connect(slot, connect.version, ReasonCode::UseAnotherServer);
        }
        if self.load.refuses_clients() && !is_internal {
            self.counters.connects_shed += 1;
            return self.refuse_connect(slot, connect.version, ReasonCode::ServerBusy);
        }
        let assigned = connect.client_id.is_empty();
        let client_id: Arc<str> =
            if assigned { self.new_client_id().into() } else { connect.client_id.into() };
        let mqtt = &self.settings.mqtt;
        let asked_expiry = connect.session_expiry();
        // Access control admits such a client as a link, or it is refused.
        let is_unlimited = is_internal || client_id.starts_with(internal::LINK);
        let granted_expiry = if is_unlimited { asked_expiry } else { self.node.granted_expiry(asked_expiry) };
        let keep_alive = match (connect.keep_alive, mqtt.keep_alive_max) {
            (asked, 0) => asked,
            (0, maximum) => maximum,
            (asked, maximum) => asked.min(maximum),
        };
        let events = &self.monitor.events;
        let keeps_properties = events.is_selected(Event::Connected) || events.is_selected(Event::ConnAck);
        let Some(connection) = self.connections.occupant(slot) else { return };
        connection.phase = Phase::Authenticating;
        connection.version = connect.version;
        let is_action = is_internal && connect.client_id.starts_with(internal::ACTION);
        connection.marks.role = match is_internal {
            false if connect.bridge => Role::Bridge,
            false => Role::Client,
            true if is_action && internal::stores_qos0(&connect.properties) => Role::ActionStoringQos0,
            true if is_action => Role::Action,
            true => Role::Process,
        };
        // MQTT 3.x has no Server Keep Alive; such a client uses its own Keep Alive [MQTT-3.2.2-21].
        let has_properties = connect.version.has_properties();
        connection.keep_alive = if has_properties { keep_alive } else { connect.keep_alive };
        connection.client_key = client_key(&client_id);
        connection.client_id = client_id;
        let window_max = if is_unlimited { u16::MAX } else { mqtt.inflight_max };
        connection.window = connect.receive_maximum().unwrap_or(u16::MAX).min(window_max);
        connection.alias_max = connect.topic_alias_maximum().min(mqtt.topic_alias_outbound_max);
        connection.session_expiry = granted_expiry;
        let (id, key) = (connection.id, connection.client_key);
        let will = connect.will.as_ref().map(|will| (will_message(will, id, key), will_delay(will)));
        if will.as_ref().is_some_and(|(will, _)| will.size() as u64 > mqtt.will_size_max.bytes()) {
            self.counters.quota_will_bytes += 1;
            let (reason, why) = (ReasonCode::QuotaExceeded, Some(refusals::WILL_TOO_LARGE));
            self.report_refusal(
                slot,
                "client refused: its Will is larger than mqtt.will_size_max",
                None,
                reason,
            );
            return self.refuse_connect_silently(slot, connect.version, reason, why);
        }
        if will.is_some() || connect.username.is_some() {
            let extra = connection.extra();
            extra.username = connect.username.map(Into::into);
            extra.will = will;
        }
        connection.connecting = Some(Box::new(Connecting {
            clean_start: connect.clean_start,
            asked_expiry,
            assigned,
            response_information: connect.properties.request_response_information(),
            server_keep_alive: has_properties && keep_alive != connect.keep_alive,
            attempts: 0,
            authentication_data: None,
            queue_limits: if is_internal { internal::queue_limits(&connect.properties) } else { None },
            properties: keeps_properties.then(|| connect.properties.as_bytes().into()),
        }));
        if let Some(method) = connect.properties.authentication_method() {
            return self.start_exchange(slot, method, connect);
        }
        let node = self.node.clone();
        let credentials = connection.credentials(connect.password, &node);
        let mut later = || {
            let node = node.clone();
            AuthReply::new(move |result| node.post(id.worker, WorkerCommand::AuthResult(id, result)))
        };
        let result = self.node.access.authenticate(credentials, &mut later);
        if let Some(result) = result {
            self.authenticated(id, result);
        }
    }

    /// Checks everything that needs no answer of access control or the store.
    fn check_connect(&self, connect: &Connect<'_>, is_internal: bool) -> Result<(), ReasonCode> {
        let mqtt = &self.settings.mqtt;
        if self.stage == Stage::Stopping {
            return Err(ReasonCode::ServerUnavailable); // CONNACK has no Reason Code 0x8B (3.2.2.2).
        }
        if is_internal {
            return Ok(()); // The limits are for clients.
        }
        // The refusal is 0x85, and the connection closes [MQTT-3.1.3-8] [MQTT3-3.2.2-5].
        if connect.client_id.len() > usize::from(mqtt.client_id_len_max) {
            return Err(ReasonCode::ClientIdentifierNotValid);
        }
        // [MQTT3-3.1.3-7] [MQTT3-3.1.3-8]: a client without an identifier cannot resume a session. MQTT 3.1 requires an
        // identifier.
        if connect.client_id.is_empty() && !connect.version.allows_assigned_client_id(connect.clean_start) {
            return Err(ReasonCode::ClientIdentifierNotValid);
        }
        let Some(will) = &connect.will else { return Ok(()) };
        if TopicName::parse(will.topic).is_err() || is_beyond_limits(will.topic, mqtt) {
            return Err(ReasonCode::TopicNameInvalid);
        }
        if is_reserved(will.topic, connect.client_id) {
            return Err(ReasonCode::NotAuthorized);
        }
        if will.qos as u8 > mqtt.qos_max {
            return Err(ReasonCode::QoSNotSupported); // [MQTT-3.2.2-12]
        }
        if will.retain && !mqtt.retain_available {
            return Err(ReasonCode::RetainNotSupported); // [MQTT-3.2.2-13]
        }
        if will.properties.payload_format_indicator() == Some(1) && std::str::from_utf8(will.payload).is_err()
        {
            return Err(ReasonCode::PayloadFormatInvalid);
        }
        Ok(())
    }

    /// Returns a new Client Identifier. It cannot be guessed, because a client that knows a Client Identifier can take
    /// over the session.
    fn new_client_id(&self) -> String {
        let number = self.node.assigned.fetch_add(1, Ordering::Relaxed);
        format!("auto-{number:x}-{:016x}", self.node.secret(number))
    }

    /// Sends CONNACK after the connection has claimed its Client Identifier [MQTT-3.2.0-1] [MQTT3-3.1.4-4].
    pub(super) fn claimed(&mut self, claimed: Claimed) {
        let is_kept = claimed.is_kept();
        let Claimed { connection: id, session_present, session, resume, .. } = claimed;
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        if connection.phase != Phase::Claiming {
            return;
        }
        let version = connection.version;
        let is_early = connection.marks.early;
        connection.phase = Phase::Open;
        connection.session = session;
        connection.marks.kept = is_kept;
        connection.last_packet = self.clock.now();
        connection.connected_at = (self.clock.now().0 / 1000) as u32;
        let full_queues = &self.node.load.full_queues;
        if !full_queues.is_empty() {
            let (client, source) = (&connection.client_id, connection.source(&self.node));
            connection.marks.drops =
                full_queues.is_known(client, source, self.clock.now(), self.settings.queue.full_penalty);
        }
        // The timer for CONNECT still runs. If it fires early enough, it becomes the timer for Keep Alive.
        if connection.keep_alive > 0 && connection.silence_max() < self.connect_timeout_max {
            connection.marks.keep_alive_timed = true;
            let at = self.clock.now().after(connection.silence_max());
            self.wheel.arm(at, id.slot, id.generation, TimerKind::KeepAlive);
        }
        if let Some(at) = connection.extra.as_ref().and_then(|extra| extra.expires) {
            self.wheel.arm(at, id.slot, id.generation, TimerKind::Expiry);
        }
        self.counters.clients_connected += 1;
        if connection.marks.role.is_process() {
            self.node.drain.own_connection_opened();
        }
        let (mut subscriptions, mut walks) = (Vec::new(), Vec::new());
        if let Some(resume) = resume {
            // Restore this first: the end of a connection passes this state on to the next one.
            self.restore_inbound(id.slot, resume.received, resume.toggles, resume.dispatched);
            (subscriptions, walks) = (resume.subscriptions, resume.walks);
        }
        let described = match self.connections.occupant_ref(id.slot) {
            Some(connection)
                if self.monitor.events.is_selected(Event::Connected)
                    && !connection.marks.role.is_process() =>
            {
                self.monitor.events.describe_connected(self.clock.now(), connection)
            }
            _ => None,
        };
        if !is_early && !self.send_connack(id.slot, session_present) {
            return self.refuse_connect(id.slot, version, ReasonCode::PacketTooLarge);
        }
        if let Some(connection) = self.connections.occupant_ref(id.slot) {
            report::connected(connection, session_present);
        }
        if let Some(described) = described {
            self.monitor.events.connected(described);
        }
        // The rules may have changed while the client was disconnected. A recheck at each connect would overload
        // another server, so only local rules are checked.
        let access = &self.node.access;
        let mut is_due = !subscriptions.is_empty() && access.guards_topics() && !access.may_answer_later();
        is_due |= is_early && self.has_outdated_subscribes(id.slot);
        let mut later = Vec::new();
        for (at, (text, options, subscription_id)) in subscriptions.into_iter().enumerate() {
            if !self.may_keep_by_role(id.slot, &text) {
                self.counters.subscribe_denied += 1;
                let connection = self.connections.occupant_ref(id.slot);
                tracing::debug!(
                    client = connection.map(|connection| &*connection.client_id),
                    filter = &*text,
                    "subscription removed: the client may not have it any more"
                );
                self.withdraw_subscription(id, text);
                continue;
            }
            if at < ROUTES_AT_ONCE || Subscriptions::is_shared(&text) {
                self.insert_durable(id, text, (options, subscription_id), None);
            } else if let Some(connection) = self.connections.get_mut(id.slot, id.generation) {
                later.push(text.clone());
                connection.subscriptions.insert(text, options, subscription_id);
            }
        }
        self.route_work.restore(id, later);
        if let Some(connection) = self.connections.occupant(id.slot) {
            connection.charge_session();
        }
        if is_due {
            self.recheck_connection(id.slot);
        }
        if !walks.is_empty() {
            self.resume_walks(id.slot, walks);
        }
        if is_early {
            self.subscribes_claimed(id);
        }
        self.wake(id.slot);
    }

    /// Restores the Packet Identifiers that the client's previous connections received.
    fn restore_inbound(
        &mut self,
        slot: u32,
        received: Vec<u16>,
        toggles: Toggles,
        mut dispatched: Vec<Dispatched<ShardSet>>,
    ) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let Some(session) = connection.session else { return };
        if received.is_empty() && toggles.is_empty() && dispatched.is_empty() {
            return;
        }
        // Messages that the shard remembers are not dispatched again.
        let remembered = |dispatched: &mut Dispatched<_>| received.contains(&dispatched.packet_id.get());
        let remembered: Vec<_> = dispatched.extract_if(.., remembered).collect();
        let of = |packet_id| Identity::of_publish(session, packet_id, toggles.get(packet_id));
        let remembered: Vec<_> = remembered.iter().map(|it| (of(it.packet_id), it.shards)).collect();
        let is_in_cluster = self.lanes.is_some();
        let inbound = &mut connection.flow().inbound;
        inbound.restore(received);
        if is_in_cluster {
            inbound.note_earlier();
        }
        inbound.restore_dispatched(dispatched);
        inbound.toggles = toggles;
        for (identity, shards) in remembered {
            self.forget_identity(identity, shards);
        }
    }

    /// Adds a durable session's subscription to the connection. The connection delivers its QoS 0 messages, which no
    /// store keeps. It is a member of its shared groups while it exists. `reply`: what a group answers.
    pub(super) fn insert_durable(
        &mut self,
        id: ConnectionId,
        text: Box<str>,
        (options, subscription_id): (Options, u32),
        reply: Option<(Ticket, u32)>,
    ) {
        if let Some(group) = GroupName::parse(&text) {
            let session =
                self.connections.get(id.slot, id.generation).and_then(|connection| connection.session);
            let (connection, shapes) = (id, None);
            self.join_group(Join { group, connection, session, options, subscription_id, reply, shapes });
        } else {
            self.insert_route_qos0(id, &text, options, subscription_id);
            self.route_work.note_route(id, &text);
        }
        if let Some(connection) = self.connections.get_mut(id.slot, id.generation) {
            connection.subscriptions.insert(text, options, subscription_id);
        }
    }

    /// Sends CONNACK. Returns false if it is larger than the client's Maximum Packet Size.
    pub(super) fn send_connack(&mut self, slot: u32, session_present: bool) -> bool {
        let settings = self.settings.clone();
        let mqtt = &settings.mqtt;
        let Some(connection) = self.connections.occupant(slot) else { return true };
        if self.monitor.events.is_selected(Event::ConnAck) && !connection.marks.role.is_process() {
            self.monitor.events.connack(self.clock.now(), connection, ReasonCode::Success);
        }
        let connecting = connection.connecting.take();
        let mut properties = PropertiesBuf::default();
        if connection.version.has_properties()
            && let Some(connecting) = connecting
        {
            if connecting.asked_expiry != connection.session_expiry {
                properties.push(Property::SessionExpiryInterval(connection.session_expiry));
            }
            let receive_max = connection.receive_max(mqtt);
            if receive_max != u16::MAX {
                properties.push(Property::ReceiveMaximum(receive_max));
            }
            if mqtt.qos_max < 2 {
                properties.push(Property::MaximumQoS(mqtt.qos_max));
            }
            if !mqtt.retain_available {
                properties.push(Property::RetainAvailable(0));
            }
            properties.push(Property::MaximumPacketSize(mqtt.packet_size_max.bytes() as u32));
            if let Some(Enhanced { method, .. }) =
                connection.extra.as_ref().and_then(|extra| extra.enhanced.as_ref())
            {
                properties.push(Property::AuthenticationMethod(method)); // [MQTT-4.12.0-5]
                if let Some(data) = &connecting.authentication_data {
                    properties.push(Property::AuthenticationData(data));
                }
            }
            if connecting.assigned {
                properties.push(Property::AssignedClientIdentifier(connection.own_client_id())); // [MQTT-3.1.3-7]
            }
            if mqtt.topic_alias_max > 0 {
                properties.push(Property::TopicAliasMaximum(mqtt.topic_alias_max));
            }
            if !mqtt.wildcard_subscription_available {
                properties.push(Property::WildcardSubscriptionAvailable(0));
            }
            if !mqtt.subscription_identifier_available {
                properties.push(Property::SubscriptionIdentifierAvailable(0));
            }
            if !mqtt.shared_subscription_available {
                properties.push(Property::SharedSubscriptionAvailable(0));
            }
            if connecting.server_keep_alive {
                properties.push(Property::ServerKeepAlive(connection.keep_alive));
            }
            // [MQTT-3.1.2-28]: only if the client asks for it.
            if connecting.response_information && !mqtt.response_information.is_empty() {
                properties.push(Property::ResponseInformation(&mqtt.response_information));
            }
            if let Some(terms) = connection.link_terms() {
                let export = linked::export_name(self.node.routes.linked_prefix(), terms);
                properties.push(Property::UserProperty(internal::LINK_EXPORT, &export));
                if let Some(history) = terms.history.as_deref() {
                    properties.push(Property::UserProperty(internal::LINK_HISTORY, history));
                }
            }
        }
        let properties = properties.as_properties();
        let packet = Packet::ConnAck(ConnAck { session_present, reason: ReasonCode::Success, properties });
        let sent = connection.put(&packet, &mut self.pool);
        if sent {
            self.monitor.packet_sent(self.clock.now(), connection, &packet);
            self.ready.mark_dirty(connection);
        }
        sent
    }

    /// Sends CONNACK with an error and ends the connection [MQTT-3.2.2-7].
    pub(super) fn refuse_connect(&mut self, slot: u32, version: Version, reason: ReasonCode) {
        self.report_refusal(slot, "client refused", None, reason);
        self.refuse_connect_silently(slot, version, reason, refusals::connect(reason));
    }

    /// Refuses a client whose Will the access rules deny.
    pub(super) fn refuse_will(&mut self, slot: u32, version: Version, topic: &str) {
        let reason = ReasonCode::NotAuthorized;
        self.report_refusal(slot, "client refused: it may not publish its Will", Some(topic), reason);
        self.refuse_connect_silently(slot, version, reason, Some(refusals::WILL_DENIED));
    }

    /// Refuses a client without a log line. A client gets the Reason String only if it asks for such texts and the
    /// packet fits [MQTT-3.2.2-19].
    fn refuse_connect_silently(
        &mut self,
        slot: u32,
        version: Version,
        reason: ReasonCode,
        why: Option<&'static str>,
    ) {
        self.counters.connects_refused += 1;
        let Some(connection) = self.connections.occupant(slot) else { return };
        let why = why.filter(|_| connection.marks.problem_information);
        let reference = self.node.drain.reference_for(reason);
        let reference = reference.as_deref().map(Property::ServerReference);
        let properties =
            PropertiesBuf::from_iter(reference.into_iter().chain(why.map(Property::ReasonString)));
        let refusal = |properties| Packet::ConnAck(ConnAck { session_present: false, reason, properties }); // [MQTT-3.2.2-6]
        let packet = refusal(properties.as_properties());
        connection.version = version;
        if self.monitor.events.is_selected(Event::ConnAck) && !connection.marks.role.is_process() {
            self.monitor.events.connack(self.clock.now(), connection, reason);
        }
        if !connection.put(&packet, &mut self.pool) {
            connection.put(&refusal(mqtt::Properties::default()), &mut self.pool);
        }
        if let Some(extra) = connection.extra.as_mut() {
            extra.will = None; // A client that was not accepted has no Will.
        }
        self.monitor.packet_sent(self.clock.now(), connection, &packet);
        self.ready.mark_dirty(connection);
        self.close_silently(slot);
    }

    /// Refuses a client whose Client Identifier the shard has not given to it in time.
    pub(super) fn claim_unanswered(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (version, reason) = (connection.version, ReasonCode::ServerUnavailable);
        let is_early = connection.is_claiming_early();
        self.report_refusal(slot, "client refused: the shard of its session does not answer", None, reason);
        match is_early {
            true => self.disown(slot, reason, refusals::NO_ANSWER),
            false => self.refuse_connect_silently(slot, version, reason, Some(refusals::NO_ANSWER)),
        }
    }

    /// Closes a client that has CONNACK and does not get its Client Identifier.
    fn disown(&mut self, slot: u32, reason: ReasonCode, why: &str) {
        self.counters.connects_refused += 1;
        // CONNACK could say more than DISCONNECT.
        let reason = match reason {
            ReasonCode::ClientIdentifierNotValid => ReasonCode::NotAuthorized,
            ReasonCode::ServerUnavailable => ReasonCode::ServerBusy,
            ReasonCode::Banned => ReasonCode::AdministrativeAction,
            reason => reason,
        };
        self.close_because(slot, reason, why);
    }

    pub(super) fn claim_refused(&mut self, id: ConnectionId, reason: ReasonCode) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        if connection.phase == Phase::Claiming {
            connection.marks.claimed = false;
            let version = connection.version;
            if reason == ReasonCode::Banned {
                self.node.access.flapped(connection.identity(&self.node));
            }
            if !connection.is_claiming_early() {
                return self.refuse_connect(id.slot, version, reason);
            }
            self.report_refusal(id.slot, "client refused after CONNACK", None, reason);
            let why = refusals::connect(reason).map_or_else(|| reason.to_string(), str::to_owned);
            self.disown(id.slot, reason, &why);
        }
    }
}

impl Worker {
    /// Refuses a client whose session is claimed: other nodes have not confirmed in time that they know its
    /// subscriptions.
    pub(super) fn claim_unknown_elsewhere(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        if connection.phase == Phase::Claiming {
            let version = connection.version;
            self.refuse_connect(id.slot, version, ReasonCode::ServerBusy);
        }
    }
}

/// Returns the QoS that a subscription is granted.
pub(super) fn granted_qos(asked: QoS, qos_max: u8) -> QoS {
    asked.min(QoS::from_bits(qos_max).unwrap_or(QoS::ExactlyOnce))
}
