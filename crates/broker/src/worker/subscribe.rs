//! SUBSCRIBE and UNSUBSCRIBE.

use mqtt::{
    QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilters, Subscription, SubscriptionOptions,
    TopicFilter, Unsubscribe, UnsubscribeFilters,
};
use routing::PLUS_LEVELS_MAX;

use super::Worker;
use super::connect::granted_qos;
use super::divided::{Divided, FILTER_FAN_OUT, FILTERS_AT_ONCE};
use super::events::Event;
use super::peers::suback_level;
use super::publish::is_beyond_limits;
use super::refusals::{self, ExceededLimits};
use super::report;
use crate::access::Action;
use crate::connection::{AckKind, Connection, LinksStage, PendingAck, PendingFilter, Phase, Role};
use crate::groups::{GROUP_SUBSCRIPTION, GroupRequest, Join};
use crate::ids::{ConnectionId, Ticket};
use crate::link_waits::WaitingSuback;
use crate::mount::mounted_filter;
use crate::node::Node;
use crate::peers::SubackLevel;
use crate::route::{Options, Route, RouteKind};
use crate::settings::Settings;
use crate::shapes::{self, ShapeReservations};
use crate::store::{GroupName, Request};
use crate::subscriptions::bytes_of;

impl Worker {
    pub(super) fn subscribe(&mut self, slot: u32, subscribe: &Subscribe<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let asked = suback_level(&subscribe.properties).or(self.node.listener_suback(connection.listener));
        let level = asked.unwrap_or(self.settings.routing.suback);
        connection.check_unused(subscribe.packet_id)?;
        let subscription_id = subscribe.properties.subscription_identifier();
        if subscription_id.is_some() && !self.settings.mqtt.subscription_identifier_available {
            return Err(ReasonCode::SubscriptionIdentifiersNotSupported);
        }
        let (packet_id, subscription_id) = (subscribe.packet_id, subscription_id.unwrap_or(0));
        if subscribe.filters.len() > FILTERS_AT_ONCE {
            self.divide(slot, Divided::of_subscribe(subscribe, level, subscription_id));
            return Ok(());
        }
        self.subscribe_in_client(slot, (Ticket::of(packet_id), level), subscribe.filters, subscription_id)
    }

    /// Handles filters as the client has sent them, without its mountpoint.
    pub(super) fn subscribe_in_client(
        &mut self,
        slot: u32,
        (ticket, level): (Ticket, SubackLevel),
        filters: SubscribeFilters<'_>,
        subscription_id: u32,
    ) -> Result<(), ReasonCode> {
        self.dispatcher.fan_out += FILTER_FAN_OUT * filters.len() as u64;
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        if !connection.marks.mounted {
            return self.subscribe_to(slot, (ticket, level), filters.iter(), subscription_id);
        }
        let mountpoint = connection.mountpoint();
        let mounted = filters.iter().map(|(text, asked)| (mounted_filter(mountpoint, text), asked));
        let mounted: Vec<_> = mounted.collect();
        let filters = mounted.iter().map(|(text, asked)| (text.as_str(), *asked));
        self.subscribe_to(slot, (ticket, level), filters, subscription_id)
    }

    /// Handles the filters of a SUBSCRIBE from a client or an operator. [`Self::finish_ack`] answers under the ticket.
    pub(super) fn subscribe_to<'f>(
        &mut self,
        slot: u32,
        (ticket, level): (Ticket, SubackLevel),
        filters: impl Iterator<Item = (&'f str, SubscriptionOptions)>,
        subscription_id: u32,
    ) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let (id, session) = (connection.id, connection.session);
        let is_bridge = connection.marks.role == Role::Bridge && ticket.operator().is_none();
        // What a linked cluster wants of this one is no interest in other clusters.
        let has_interest = connection.marks.role != Role::Link && !connection.marks.role.is_process();
        let awaits_links = level == SubackLevel::Links && has_interest;
        let mut pending = PendingAck {
            ticket,
            kind: AckKind::Sub,
            // Read the generation before the permissions are checked.
            rules: self.node.access.generation(),
            // A durable session must not miss messages from any node.
            level: if session.is_some() || level == SubackLevel::Links {
                SubackLevel::Cluster
            } else {
                level
            },
            links: if awaits_links { LinksStage::Due } else { LinksStage::Done },
            shard: None,
            outstanding: 0,
            is_answered: false,
            reasons: Vec::with_capacity(filters.size_hint().0),
            filters: Vec::new(),
            exceeded: ExceededLimits::default(),
            bytes: 0,
            shared: 0,
        };
        connection.charge_session();
        let mut durable = Vec::new();
        let mut joins = Vec::new();
        let mut shapes = ShapeReservations::default();
        for (text, asked) in filters {
            let asked = if is_bridge { of_bridge(text, asked) } else { asked };
            let checked = connection.check_subscription(&self.node, &self.settings, text, asked, &pending);
            let reserve = |it| connection.reserve_shape(&self.node, &self.settings, it, &mut shapes);
            let subscription = match checked.and_then(reserve) {
                Ok(subscription) => subscription,
                Err(Refusal::Filter(reason)) => {
                    pending.reasons.push(reason.as_u8());
                    continue;
                }
                Err(Refusal::Denied(filter)) => {
                    self.counters.subscribe_denied += 1;
                    if self.monitor.events.is_selected(Event::Authz) {
                        let about = ("subscribe", filter.as_str());
                        self.monitor.events.authorized(self.clock.now(), connection, about, false);
                    }
                    let permit = self.node.may_log_refusal(self.clock.now(), &self.settings);
                    let refused = "SUBSCRIBE denied by the access rules";
                    let reason = ReasonCode::NotAuthorized;
                    report::refusal(permit, connection, refused, Some(filter.as_str()), reason);
                    pending.reasons.push(reason.as_u8());
                    continue;
                }
                Err(Refusal::Shapes) => {
                    self.counters.subscribe_shapes_refused += 1;
                    pending.exceeded.shapes = true;
                    pending.reasons.push(ReasonCode::QuotaExceeded.as_u8());
                    continue;
                }
                Err(Refusal::Shared) => {
                    self.counters.subscribe_shared_refused += 1;
                    pending.exceeded.shared = true;
                    pending.reasons.push(ReasonCode::QuotaExceeded.as_u8());
                    continue;
                }
                Err(Refusal::Bytes) => {
                    self.counters.quota_session_bytes += 1;
                    pending.exceeded.bytes = true;
                    pending.reasons.push(ReasonCode::QuotaExceeded.as_u8());
                    continue;
                }
                Err(Refusal::Connection(reason)) => return Err(reason),
            };
            let is_heard = ticket.operator().is_none() && !connection.marks.role.is_process();
            if is_heard && self.monitor.events.is_selected(Event::Authz) {
                let about = ("subscribe", subscription.filter.as_str());
                self.monitor.events.authorized(self.clock.now(), connection, about, true);
            }
            let qos = granted_qos(asked.qos, self.settings.mqtt.qos_max);
            let mut options = Options::from(asked).with_qos(qos);
            if connection.marks.role == Role::Link {
                options = options.of_link();
            }
            if connection.is_all_of_tenant(subscription.filter) {
                options = options.behind_mountpoint();
            }
            let index = pending.reasons.len() as u32;
            let shared = subscription.share.is_some();
            // It says that the broker, and no client, has put the name of the group into a message.
            let subscription_id = match connection.marks.role {
                Role::Link if shared => GROUP_SUBSCRIPTION,
                Role::Link => 0,
                _ => subscription_id,
            };
            let mut reason = qos as u8; // [MQTT-3.9.3-1]
            let mut existed = false;
            if session.is_some() {
                pending.bytes += bytes_of(text);
                pending.shared += u32::from(shared);
                durable.push((text.into(), options, subscription_id));
            } else {
                match connection.insert_ephemeral(&self.node, text, &subscription, options, subscription_id) {
                    Ok(known) => {
                        existed = known;
                        self.counters.subscriptions_added += u64::from(!known);
                    }
                    Err(refused) => reason = refused.as_u8(),
                }
            }
            pending.reasons.push(reason);
            if reason >= ReasonCode::UnspecifiedError.as_u8() {
                continue;
            }
            // That of a durable session joins when its shard has the subscription.
            if let Some(share) = subscription.share.filter(|_| session.is_none()) {
                let group = GroupName { share: share.into(), filter: subscription.filter.as_str().into() };
                let reply = Some((ticket, pending.filters.len() as u32));
                let (connection, session, shapes) = (id, None, None);
                joins.push(Join { group, connection, session, options, subscription_id, reply, shapes });
            }
            pending.outstanding += u32::from(shared);
            if options.retain_handling() == RetainHandling::Send
                && let Some(flow) = connection.flow.as_mut()
            {
                // A later page would overwrite the progress with which the session's shard begins the new walk.
                flow.replace_retained(text);
            }
            pending.filters.push(PendingFilter {
                text: text.into(),
                options,
                subscription_id,
                index,
                shared,
                existed,
            });
        }
        let shapes = shapes.shared();
        for join in joins {
            self.join_group(Join { shapes: shapes.clone(), ..join });
        }
        if let Some(session) = session.filter(|_| !durable.is_empty()) {
            let retained = self.has_retained();
            let request =
                Request::Subscribe { session, connection: id, ticket, filters: durable, shapes, retained };
            self.outbox.request(session.shard, request);
            pending.outstanding += 1;
        }
        self.await_store(slot, pending);
        Ok(())
    }

    pub(super) fn unsubscribe(&mut self, slot: u32, unsubscribe: &Unsubscribe<'_>) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        connection.check_unused(unsubscribe.packet_id)?;
        if unsubscribe.filters.len() > FILTERS_AT_ONCE {
            self.divide(slot, Divided::of_unsubscribe(unsubscribe));
        } else {
            self.unsubscribe_in_client(slot, Ticket::of(unsubscribe.packet_id), unsubscribe.filters);
        }
        Ok(())
    }

    /// Handles filters as the client has sent them, without its mountpoint.
    pub(super) fn unsubscribe_in_client(
        &mut self,
        slot: u32,
        ticket: Ticket,
        filters: UnsubscribeFilters<'_>,
    ) {
        self.dispatcher.fan_out += FILTER_FAN_OUT * filters.len() as u64;
        let Some(connection) = self.connections.occupant(slot) else { return };
        if !connection.marks.mounted {
            return self.unsubscribe_from(slot, ticket, filters.iter());
        }
        let mountpoint = connection.mountpoint();
        let mounted: Vec<_> = filters.iter().map(|text| mounted_filter(mountpoint, text)).collect();
        self.unsubscribe_from(slot, ticket, mounted.iter().map(String::as_str));
    }

    /// Handles the filters of an UNSUBSCRIBE from a client or an operator. [`Self::finish_ack`] answers under the
    /// ticket.
    pub(super) fn unsubscribe_from<'f>(
        &mut self,
        slot: u32,
        ticket: Ticket,
        filters: impl Iterator<Item = &'f str>,
    ) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let (id, session) = (connection.id, connection.session);
        let mut pending = PendingAck {
            ticket,
            kind: AckKind::Unsub,
            rules: 0,
            level: SubackLevel::Local,
            links: LinksStage::Done,
            shard: None,
            outstanding: 0,
            is_answered: false,
            reasons: Vec::new(),
            filters: Vec::new(),
            exceeded: ExceededLimits::default(),
            bytes: 0,
            shared: 0,
        };
        let mut durable = Vec::new();
        for text in filters {
            let index = pending.reasons.len() as u32;
            let Ok(subscription) = Subscription::parse(text) else {
                pending.reasons.push(ReasonCode::TopicFilterInvalid.as_u8());
                continue;
            };
            if session.is_some() {
                // The shard decides: a SUBSCRIBE may still be on its way to it.
                pending.reasons.push(ReasonCode::Success.as_u8());
                pending.filters.push(PendingFilter::to_remove(text, index, subscription.share.is_some()));
                pending.outstanding += u32::from(subscription.share.is_some());
                durable.push(text.into());
                continue;
            }
            let Some(connection) = self.connections.occupant(slot) else { return };
            let known = connection.subscriptions.remove(text); // [MQTT-3.10.4-1]
            let reason = if known { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
            pending.reasons.push(reason.as_u8());
            if !known {
                continue;
            }
            self.counters.subscriptions_removed += 1;
            self.note_unsubscribed(slot, text);
            if let Some(share) = subscription.share {
                let group = GroupName { share: share.into(), filter: subscription.filter.as_str().into() };
                self.leave_group(id, group, Some(ticket));
                pending.outstanding += 1;
            } else {
                self.remove_subscription(id, RouteKind::Connection, text);
            }
        }
        if let Some(session) = session.filter(|_| !durable.is_empty()) {
            self.outbox.request(
                session.shard,
                Request::Unsubscribe { session, connection: id, ticket, filters: durable },
            );
            pending.outstanding += 1;
        }
        self.await_store(slot, pending);
    }

    /// Adds a connection to a shared group.
    pub(super) fn join_group(&mut self, join: Join) {
        let shard = join.group.shard();
        self.outbox.group_request(shard, GroupRequest::Join(Box::new(join)));
    }

    fn await_store(&mut self, slot: u32, mut pending: PendingAck) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        let is_claiming = connection.phase == Phase::Claiming;
        let is_done =
            pending.outstanding == 0 && !self.peers.announce(&self.node, connection.id, &mut pending);
        if is_done && !is_claiming {
            return self.finish_ack(slot, pending);
        }
        // See `subscribes_claimed`.
        pending.outstanding += u32::from(is_claiming);
        connection.flow().acknowledging.push_back(pending);
    }

    /// Lets SUBACKs go that have waited for the Claim of their connection.
    pub(super) fn subscribes_claimed(&mut self, id: ConnectionId) {
        let flow = self.connections.get(id.slot, id.generation).and_then(|it| it.flow.as_ref());
        let tickets: Vec<_> =
            flow.iter().flat_map(|flow| &flow.acknowledging).map(|pending| pending.ticket).collect();
        for ticket in tickets {
            self.one_stored(id, ticket, AckKind::Sub);
        }
    }

    /// Returns whether the rules have changed since the filters of a SUBSCRIBE without SUBACK were checked.
    pub(super) fn has_outdated_subscribes(&self, slot: u32) -> bool {
        let access = &self.node.access;
        let rules = access.generation();
        let flow = self.connections.occupant_ref(slot).and_then(|connection| connection.flow.as_ref());
        let mut waiting = flow.iter().flat_map(|flow| &flow.acknowledging);
        access.guards_topics() && waiting.any(|pending| pending.rules != rules)
    }

    /// Handles the answer of the store to the subscriptions of a durable session.
    pub(super) fn subscribed(&mut self, id: ConnectionId, ticket: Ticket, results: &[(ReasonCode, bool)]) {
        let denied = self.denied_meanwhile(id, ticket);
        let Some(pending) = self.unanswered(id, ticket, AckKind::Sub) else { return };
        let mut granted = Vec::new();
        let mut withdrawn = Vec::new();
        for (at, (filter, (reason, existed))) in pending.filters.iter_mut().zip(results).enumerate() {
            filter.existed = *existed;
            pending.reasons[filter.index as usize] = reason.as_u8();
            if !reason.is_error() && !denied.contains(&at) {
                // A group answers when it has the connection.
                let reply = filter.shared.then_some((ticket, at as u32));
                granted.push((filter.text.clone(), filter.options, filter.subscription_id, reply));
                continue;
            }
            if filter.shared {
                pending.outstanding -= 1; // The group gets no request and sends no answer.
            }
            if !reason.is_error() {
                pending.reasons[filter.index as usize] = ReasonCode::NotAuthorized.as_u8();
                withdrawn.push(filter.text.clone());
            }
        }
        self.counters.subscribe_denied += withdrawn.len() as u64;
        for filter in withdrawn {
            self.withdraw_subscription(id, filter);
        }
        for (text, options, subscription_id, reply) in granted {
            self.insert_durable(id, text, (options, subscription_id), reply);
        }
        self.one_stored(id, ticket, AckKind::Sub);
    }

    /// Returns the indexes of filters of a SUBSCRIBE that the rules no longer allow, because they changed while the
    /// store was asked. The recheck of all connections did not find these subscriptions yet.
    fn denied_meanwhile(&mut self, id: ConnectionId, ticket: Ticket) -> Vec<usize> {
        let rules = self.node.access.generation();
        let is_checked = ticket.operator().is_some() || !self.node.access.guards_topics();
        let Some(pending) = self.pending_ack(id, ticket, AckKind::Sub) else { return Vec::new() };
        if is_checked || pending.rules == rules {
            return Vec::new();
        }
        let filters: Vec<_> =
            pending.filters.iter().map(|filter| (filter.text.clone(), filter.options)).collect();
        let answers: Vec<_> =
            filters.iter().map(|(text, options)| self.may_keep(id.slot, text, *options)).collect();
        if answers.contains(&None)
            && let Some(connection) = self.connections.occupant(id.slot)
        {
            connection.marks.recheck = true; // Recheck when the answer is known.
        }
        let denied = answers.iter().enumerate().filter(|(_, answer)| **answer == Some(false));
        denied.map(|(at, _)| at).collect()
    }

    /// Handles the answer of the store that subscriptions of a durable session are removed.
    pub(super) fn unsubscribed(&mut self, id: ConnectionId, ticket: Ticket, results: &[ReasonCode]) {
        let Some(pending) = self.unanswered(id, ticket, AckKind::Unsub) else { return };
        let mut gone = Vec::new();
        for (filter, reason) in pending.filters.iter().zip(results) {
            pending.reasons[filter.index as usize] = reason.as_u8();
            if *reason == ReasonCode::Success {
                gone.push((filter.text.clone(), filter.shared));
            } else if filter.shared {
                pending.outstanding -= 1; // The group gets no request and sends no answer.
            }
        }
        for (text, is_shared) in gone {
            self.note_unsubscribed(id.slot, &text);
            let mut kind = RouteKind::ConnectionQos0;
            if let Some(connection) = self.connections.get_mut(id.slot, id.generation) {
                connection.subscriptions.remove(&text);
                kind = connection.route_kind();
            }
            match GroupName::parse(&text).filter(|_| is_shared) {
                Some(group) => self.leave_group(id, group, Some(ticket)),
                None => self.remove_subscription(id, kind, &text),
            }
        }
        self.one_stored(id, ticket, AckKind::Unsub);
    }

    /// Records the end of a subscription as an event.
    fn note_unsubscribed(&mut self, slot: u32, filter: &str) {
        if self.monitor.events.is_selected(Event::Unsubscribed)
            && let Some(connection) = self.connections.occupant_ref(slot)
            && !connection.marks.role.is_process()
        {
            self.monitor.events.unsubscribed(self.clock.now(), connection, filter);
        }
    }

    /// Records a subscription as an event.
    fn note_subscribed(&mut self, slot: u32, filter: &str, granted: (QoS, u32)) {
        if self.monitor.events.is_selected(Event::Subscribed)
            && let Some(connection) = self.connections.occupant_ref(slot)
            && !connection.marks.role.is_process()
        {
            self.monitor.events.subscribed(self.clock.now(), connection, filter, granted);
        }
    }

    /// Handles the answer of a shared group that has accepted a member or has no room for it.
    pub(super) fn joined(&mut self, id: ConnectionId, ticket: Ticket, index: u32, reason: ReasonCode) {
        if reason.is_error()
            && let Some(pending) = self.pending_ack(id, ticket, AckKind::Sub)
            && let Some(filter) = pending.filters.get(index as usize)
        {
            pending.reasons[filter.index as usize] = reason.as_u8();
            let text = filter.text.clone();
            self.forget_shared(id, text);
        }
        self.one_stored(id, ticket, AckKind::Sub);
    }

    /// Removes a shared subscription that its group has refused.
    fn forget_shared(&mut self, id: ConnectionId, text: Box<str>) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        let known = connection.subscriptions.remove(&text);
        match connection.session {
            Some(session) => self.outbox.request(session.shard, Request::Withdraw { session, filter: text }),
            None => self.counters.subscriptions_removed += u64::from(known),
        }
    }

    /// Removes a subscription of a durable session that the access rules do not allow.
    pub(super) fn withdraw_subscription(&mut self, id: ConnectionId, filter: Box<str>) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        let Some(session) = connection.session else { return };
        // A subscription that replaces an earlier one is already in the list.
        let kind = connection.route_kind();
        if connection.subscriptions.remove(&filter) {
            self.remove_subscription(id, kind, &filter);
        }
        self.outbox.request(session.shard, Request::Withdraw { session, filter });
    }

    /// Handles the answer of a shared group that a member has left.
    pub(super) fn left(&mut self, id: ConnectionId, ticket: Ticket) {
        self.one_stored(id, ticket, AckKind::Unsub);
    }

    /// Handles the answer of the links to other clusters. Without a confirmation the client gets its SUBACK all the
    /// same: this cluster has the subscription.
    pub(super) fn links_answered(&mut self, suback: WaitingSuback, is_confirmed: bool) {
        let WaitingSuback { connection, ticket } = suback;
        let Some(pending) = self.pending_ack(connection, ticket, AckKind::Sub) else { return };
        if pending.links != LinksStage::Waiting {
            return;
        }
        pending.links = LinksStage::Done;
        self.counters.subacks_links_unconfirmed += u64::from(!is_confirmed);
        self.one_stored(connection, ticket, AckKind::Sub);
    }

    pub(super) fn pending_ack(
        &mut self,
        id: ConnectionId,
        ticket: Ticket,
        kind: AckKind,
    ) -> Option<&mut PendingAck> {
        let flow = self.connections.get_mut(id.slot, id.generation)?.flow.as_mut()?;
        flow.acknowledging.iter_mut().find(|pending| pending.ticket == ticket && pending.kind == kind)
    }

    /// Finds a SUBSCRIBE or UNSUBSCRIBE that the session's shard answers for the first time.
    fn unanswered(&mut self, id: ConnectionId, ticket: Ticket, kind: AckKind) -> Option<&mut PendingAck> {
        let pending = self.pending_ack(id, ticket, kind)?;
        (!std::mem::replace(&mut pending.is_answered, true)).then_some(pending)
    }

    pub(super) fn one_stored(&mut self, id: ConnectionId, ticket: Ticket, kind: AckKind) {
        let Some(pending) = self.pending_ack(id, ticket, kind) else { return };
        pending.outstanding -= 1;
        if pending.outstanding > 0 {
            return;
        }
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        let acknowledging = &mut connection.flow().acknowledging;
        let is_it = |pending: &PendingAck| pending.ticket == ticket && pending.kind == kind;
        let Some(at) = acknowledging.iter().position(is_it) else { return };
        if self.peers.announce(&self.node, id, &mut acknowledging[at]) {
            return;
        }
        let Some(pending) = acknowledging.remove(at) else { return };
        // Reading may have stopped because of this acknowledgement.
        self.ready.wake(connection);
        self.schedule_piece(id.slot);
        self.finish_ack(id.slot, pending);
    }

    /// Sends SUBACK or UNSUBACK, or ends a piece of the packet, then sends the retained messages of new subscriptions
    /// [MQTT-3.8.4-1] [MQTT-3.10.4-4].
    fn finish_ack(&mut self, slot: u32, pending: PendingAck) {
        match (pending.ticket.piece(), pending.ticket.packet_id()) {
            (Some(piece), _) => self.end_piece(slot, piece, &pending),
            (None, Some(id)) => {
                self.send_reasons(slot, (pending.kind, id), &pending.reasons, pending.exceeded);
            }
            (None, None) => self.answer_operator(pending.ticket, pending.reasons.first().copied()),
        }
        if let Some(connection) = self.connections.occupant(slot) {
            connection.charge_session();
        }
        if pending.kind == AckKind::Unsub {
            return;
        }
        let mut has_begun = false;
        for PendingFilter { text, options, subscription_id, index, shared, existed } in pending.filters {
            let refused = pending.reasons[index as usize] >= ReasonCode::UnspecifiedError.as_u8();
            if !refused {
                self.note_subscribed(slot, &text, (options.qos(), subscription_id));
            }
            let wanted = match options.retain_handling() {
                RetainHandling::Send => true,          // [MQTT-3.3.1-9]
                RetainHandling::SendIfNew => !existed, // [MQTT-3.3.1-10]
                RetainHandling::DoNotSend => false,    // [MQTT-3.3.1-11]
            };
            if wanted && !shared && !refused {
                let begun = self.send_retained(slot, &text, options, subscription_id);
                has_begun |= begun;
                if !begun {
                    self.end_walk(slot, text, options);
                }
            }
        }
        if has_begun {
            self.begin_retained(slot);
        }
    }
}

impl Connection {
    /// Returns whether a client behind a mountpoint subscribes to everything below it.
    fn is_all_of_tenant(&self, filter: TopicFilter<'_>) -> bool {
        self.marks.mounted && self.unmounted(filter.as_str()) == Some("#")
    }

    /// Checks one filter of a SUBSCRIBE from the client or an operator.
    fn check_subscription<'a>(
        &self,
        node: &Node,
        settings: &Settings,
        text: &'a str,
        asked: SubscriptionOptions,
        pending: &PendingAck,
    ) -> Result<Subscription<'a>, Refusal<'a>> {
        let ticket = pending.ticket;
        let mqtt = &settings.mqtt;
        let invalid = Refusal::Filter(ReasonCode::TopicFilterInvalid);
        // The decoder has parsed the filter without the mountpoint.
        let is_parsed = !self.marks.mounted && ticket.operator().is_none();
        let subscription = if is_parsed { Subscription::of_parsed(text) } else { Subscription::parse(text) };
        let subscription = subscription.map_err(|_| invalid)?;
        if subscription.share.is_some() && asked.no_local {
            return Err(Refusal::Connection(ReasonCode::ProtocolError)); // [MQTT-3.8.3-4]
        }
        let filter = subscription.filter.as_str();
        let is_too_long = text.len() > usize::from(mqtt.topic_len_max);
        if is_too_long || is_beyond_limits(filter, mqtt) || has_deep_plus(filter) {
            return Err(invalid);
        }
        if subscription.share.is_some() && !mqtt.shared_subscription_available {
            return Err(Refusal::Filter(ReasonCode::SharedSubscriptionsNotSupported));
        }
        // [MQTT3-3.8.3-2]
        if subscription.filter.has_wildcard() && !mqtt.wildcard_subscription_available {
            return Err(Refusal::Filter(ReasonCode::WildcardSubscriptionsNotSupported));
        }
        // An operator may ask for a filter outside of the client's mountpoint.
        let Some(own) = self.unmounted(filter) else {
            return Err(Refusal::Filter(ReasonCode::NotAuthorized));
        };
        if !self.may_take_by_link(node, &subscription) {
            return Err(Refusal::Denied(subscription.filter));
        }
        if ticket.operator().is_none() && !self.may_read_own_topics(node, filter) {
            return Err(Refusal::Denied(subscription.filter));
        }
        // The access rules do not apply to operators.
        if node.access.guards_topics() && ticket.operator().is_none() {
            let action = Action::Subscribe { qos: asked.qos };
            if !self.is_permitted(node, action, own) {
                return Err(Refusal::Denied(subscription.filter));
            }
        }
        let subscriptions = &self.subscriptions;
        if subscriptions.contains(text) {
            return Ok(subscription);
        }
        if subscriptions.len() >= settings.session.subscriptions_max as usize {
            return Err(Refusal::Filter(ReasonCode::QuotaExceeded));
        }
        let shared_max = settings.session.shared_subscriptions_max as usize;
        if subscription.share.is_some() && self.shared_subscriptions(pending) >= shared_max {
            return Err(Refusal::Shared);
        }
        if !self.has_room_for_bytes(&settings.quota, pending.bytes + bytes_of(text)) {
            return Err(Refusal::Bytes);
        }
        Ok(subscription)
    }

    /// Reserves the shape of a filter. Refuses an unusual shape if the node, the client, its user or its mountpoint has
    /// too many.
    fn reserve_shape<'a>(
        &self,
        node: &Node,
        settings: &Settings,
        subscription: Subscription<'a>,
        reserved: &mut ShapeReservations,
    ) -> Result<Subscription<'a>, Refusal<'a>> {
        if !shapes::may_be_unusual(subscription.filter.as_str()) {
            return Ok(subscription);
        }
        let mountpoint = self.mountpoint();
        let user = node.owner_key(mountpoint, self.username());
        let owners = shapes::owners(&self.client_id, user, mountpoint, &settings.routing);
        reserved.reserve(&node.routes, subscription.filter, &owners).map_err(|_| Refusal::Shapes)?;
        Ok(subscription)
    }

    /// Inserts a subscription of an ephemeral session. Returns true if it replaces an existing one [MQTT-3.8.4-3].
    fn insert_ephemeral(
        &mut self,
        node: &Node,
        text: &str,
        subscription: &Subscription<'_>,
        options: Options,
        subscription_id: u32,
    ) -> Result<bool, ReasonCode> {
        let id = self.id;
        if subscription.share.is_none() {
            let kind = RouteKind::Connection;
            let route = Route {
                slot: id.slot,
                generation: id.generation,
                subscription_id,
                index: id.worker.0,
                options,
                kind,
            };
            node.routes.insert(subscription.filter, route).map_err(|_| ReasonCode::QuotaExceeded)?;
        }
        Ok(self.subscriptions.insert(text.into(), options, subscription_id))
    }

    /// Returns the Reason String of a SUBACK or UNSUBACK. The client must ask for such texts [MQTT-3.1.2-29], and the
    /// packet must fit [MQTT-3.9.2-1] [MQTT-3.11.2-1]. There are no User Properties that could make it too large
    /// [MQTT-3.9.2-2] [MQTT-3.11.2-2].
    pub(super) fn refusal(&self, reasons: &[u8], exceeded: ExceededLimits) -> Option<String> {
        if !self.version.has_properties() || !self.marks.problem_information {
            return None;
        }
        let room = (self.packet_size_max as usize).saturating_sub(ACK_FRAME + reasons.len());
        refusals::reason_string(reasons, exceeded).filter(|why| why.len() <= room)
    }
}

/// Maximum number of bytes of an acknowledgement, without the text of its Reason String and the Reason Codes of SUBACK
/// or UNSUBACK.
pub(super) const ACK_FRAME: usize = 16;

/// Returns the options of a bridge's subscription, which versions before 5.0 cannot request. The bridge does not get
/// its own messages back, and messages keep their RETAIN flag.
fn of_bridge(filter: &str, asked: SubscriptionOptions) -> SubscriptionOptions {
    let is_shared = filter.starts_with("$share/"); // [MQTT-3.8.3-4]
    SubscriptionOptions { no_local: !is_shared, retain_as_published: true, ..asked }
}

/// Returns whether a filter has a `+` on a level that is too deep for the tree of routes.
fn has_deep_plus(filter: &str) -> bool {
    filter.len() > PLUS_LEVELS_MAX && filter.split('/').skip(PLUS_LEVELS_MAX).any(|level| level == "+")
}

/// Reasons why a subscription is not granted.
#[derive(Clone, Copy, Debug)]
enum Refusal<'a> {
    Filter(ReasonCode),
    /// The access rules deny this filter.
    Denied(TopicFilter<'a>),
    /// The filter has an unusual wildcard shape, and there are too many.
    Shapes,
    /// The client, its user or its mountpoint uses too many bytes of the node.
    Bytes,
    /// The client has too many shared subscriptions.
    Shared,
    Connection(ReasonCode),
}
