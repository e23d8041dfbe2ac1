//! Events of clients, sessions and messages as messages on topics `$events/...`, for rules and for clients that the
//! access rules allow to read them.
//!
//! Each worker knows which events have subscriptions ([`Events::is_selected`]), and looks again at most a few times a
//! second. An event that nobody selects costs one test of a bit. Events are collected while a packet is handled, and
//! published at the end of the turn.
//!
//! **Invariant:** nothing that happens to a message on a topic that begins with `$`, or to a connection of the process
//! itself, is an event. So no event causes another one.
//!
//! **Invariant:** an event for actions of a tenant is about a client with the mountpoint of the tenant. It has no name
//! of a client with another one.

mod describe;
mod json;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::{PacketId, Properties, QoS, ReasonCode, TopicName};

use super::Worker;
use crate::access::Principal;
use crate::connection::Connection;
use crate::ids::{ConnectionId, Time, WorkerId};
use crate::internal::tenant_events;
use crate::message::{Message, MessageView};
use crate::node::Node;
use crate::route::Route;
pub(super) use describe::reason;
use json::{Finished, Json};

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident $topic:literal $value:literal,)*) => {
        /// Kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[$doc])* $variant,)*
        }

        impl Event {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Topic of its messages.
            pub fn topic(self) -> &'static str {
                match self {
                    $(Self::$variant => $topic,)*
                }
            }

            /// Value of the field `event`.
            pub fn value(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)*
                }
            }
        }
    };
}

events! {
    Connected "$events/client/connected" "client.connected",
    Disconnected "$events/client/disconnected" "client.disconnected",
    /// CONNACK was sent, with success or not.
    ConnAck "$events/client/connack" "client.connack",
    /// An authentication has ended.
    Authn "$events/client/authn" "client.authn",
    /// An action of a client was allowed or denied.
    Authz "$events/client/authz" "client.authz",
    Subscribed "$events/session/subscribed" "session.subscribed",
    Unsubscribed "$events/session/unsubscribed" "session.unsubscribed",
    /// A message was sent to a subscriber.
    Delivered "$events/message/delivered" "message.delivered",
    /// A subscriber has acknowledged a message of QoS 1 or 2.
    Acked "$events/message/acked" "message.acked",
    /// A message was dropped before it was routed to a subscriber.
    Dropped "$events/message/dropped" "message.dropped",
    /// A message for one subscriber was dropped.
    DeliveryDropped "$events/message/delivery_dropped" "message.delivery_dropped",
    /// An alarm of the node was activated or deactivated.
    Alarm "$events/sys/alarm" "sys.alarm",
}

impl Event {
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Events about what happens to a message after it was published.
const FATES: u16 = Event::Delivered.bit() | Event::Acked.bit() | Event::DeliveryDropped.bit();
/// Events for which a message has to be handled the general way.
const OBSERVES_MESSAGES: u16 = FATES | Event::Dropped.bit() | Event::Authz.bit();

/// Shortest time in milliseconds between two looks at the index.
const LOOK_MS: u64 = 200;
/// Bytes of a message that cost as much of the rate as one event.
const BYTES_PER_EVENT: usize = 4096;
/// Maximum size of a message in an event. JSON may be six times as large, and fits a packet.
const MESSAGE_MAX: usize = 16 << 20;
/// Maximum number of deliveries whose messages are kept for their acknowledgements, and maximum of their bytes.
const UNACKED_MAX: usize = 1 << 16;
const UNACKED_BYTES_MAX: usize = 64 << 20;

/// Events of one worker.
pub(super) struct Events {
    node: Arc<Node>,
    /// Bits of the events that have subscriptions.
    selected: u16,
    /// Bits of those with a subscription to the event about all clients.
    selected_for_all: u16,
    /// Bits of those that actions of tenants have subscribed to.
    selected_for_tenants: u16,
    /// Routes of the event about alarms at the last look, in order.
    alarm_routes: Vec<[u32; 5]>,
    /// Version of the index and time of the last look at it.
    looked: Option<(u64, Time)>,
    /// Events that are published at the end of the turn.
    queue: Vec<(Event, Finished)>,
    rate_max: u32,
    /// Second of the node's time, and what its events have cost.
    second: u64,
    spent: u32,
    suppressed: u64,
    /// Messages of QoS 1 and 2 that were sent and not acknowledged, while `Acked` is selected.
    unacked: BTreeMap<(u32, u32, u16), Unacked>,
    unacked_bytes: usize,
}

/// A message of QoS 1 or 2 that was sent and not acknowledged.
struct Unacked {
    message: Message,
    qos: QoS,
    /// True once the subscriber has sent PUBREC.
    is_received: bool,
}

/// Acknowledgement that completes a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completing {
    PubAck,
    PubComp,
}

impl Unacked {
    /// Returns whether the delivery expects this acknowledgement next. The connection is closed after another one.
    fn expects(&self, ack: Completing) -> bool {
        match ack {
            Completing::PubAck => self.qos == QoS::AtLeastOnce,
            Completing::PubComp => self.qos == QoS::ExactlyOnce && self.is_received,
        }
    }
}

impl Events {
    pub fn new(node: Arc<Node>, rate_max: u32) -> Self {
        Self {
            node,
            selected: 0,
            selected_for_all: 0,
            selected_for_tenants: 0,
            alarm_routes: Vec::new(),
            looked: None,
            queue: Vec::new(),
            rate_max,
            second: 0,
            spent: 0,
            suppressed: 0,
            unacked: BTreeMap::new(),
            unacked_bytes: 0,
        }
    }

    /// Returns whether the event has subscriptions.
    #[inline]
    pub fn is_selected(&self, event: Event) -> bool {
        self.selected & event.bit() != 0
    }

    /// Returns whether any event has subscriptions.
    pub fn is_any_selected(&self) -> bool {
        self.selected != 0
    }

    /// Returns whether an event about the fate of a published message has subscriptions.
    #[inline]
    pub fn observes_fates(&self) -> bool {
        self.selected & (FATES | Event::Dropped.bit()) != 0
    }

    /// Returns whether messages have to be handled the general way.
    pub fn observes_messages(&self) -> bool {
        self.selected & OBSERVES_MESSAGES != 0
    }

    pub fn set_rate_max(&mut self, rate_max: u32) {
        self.rate_max = rate_max;
    }

    /// Returns whether there are events to publish, or suppressed ones to count.
    #[inline]
    pub fn is_pending(&self) -> bool {
        !self.queue.is_empty() || self.suppressed > 0
    }

    /// Notes the routes of the event about alarms. Other parts of the node learn when there are new ones.
    fn note_alarm_routes(&mut self, routes: &[Route]) {
        let key = |route: &Route| {
            let kind = u32::from(route.kind as u8) << 16 | u32::from(route.index);
            [route.slot, route.generation, route.subscription_id, kind, u32::from(route.options.byte())]
        };
        let mut present: Vec<[u32; 5]> = routes.iter().map(key).collect();
        present.sort_unstable();
        if present.iter().any(|route| self.alarm_routes.binary_search(route).is_err()) {
            self.node.load.alarm_subscriptions.fetch_add(1, Relaxed);
        }
        self.alarm_routes = present;
    }

    /// Sets the events that have subscriptions.
    fn select(&mut self, for_all: u16, for_tenants: u16) {
        let selected = for_all | for_tenants;
        (self.selected_for_all, self.selected_for_tenants) = (for_all, for_tenants);
        self.selected = selected;
        self.node.load.events.store(selected, Relaxed);
        if !self.is_selected(Event::Acked) {
            self.unacked.clear();
            self.unacked_bytes = 0;
        }
        if selected & FATES == 0 {
            self.node.publishers.forget();
        }
    }

    /// Charges an event to the rate, if that has room for a message of this size. Returns false if the event is
    /// suppressed.
    fn may_emit(&mut self, now: Time, message_len: usize) -> bool {
        let second = now.0 / 1000;
        if second != self.second {
            (self.second, self.spent) = (second, 0);
        }
        let spent = self.spent.saturating_add(1);
        if spent.saturating_add(cost_of(message_len)) > self.rate_max || message_len > MESSAGE_MAX {
            self.suppressed += 1;
            return false;
        }
        self.spent = spent;
        true
    }

    /// Returns whether an event about a client with this mountpoint has subscriptions.
    fn has_reader(&self, event: Event, mountpoint: &str) -> bool {
        let bits = match mountpoint.is_empty() {
            true => self.selected_for_all,
            false => self.selected_for_all | self.selected_for_tenants,
        };
        bits & event.bit() != 0
    }

    /// Begins an event about a client with the fields that all have. `None` if it is suppressed, or nobody reads it.
    fn begin(
        &mut self,
        event: Event,
        now: Time,
        (connection, message_len): (Option<&Connection>, usize),
    ) -> Option<Json> {
        let mountpoint = connection.map(Connection::mountpoint).unwrap_or_default();
        if !self.has_reader(event, mountpoint) || !self.may_emit(now, message_len) {
            return None;
        }
        Some(Json::begin(event.value(), self.node.wall_ms(now), self.node.name()).about(mountpoint))
    }

    /// Queues an event, unless the rate has no room for its size: properties and names count, too.
    fn end(&mut self, event: Event, json: Json) {
        let finished = json.finish();
        let length = finished.text.len();
        let spent = self.spent.saturating_add(cost_of(length));
        if length >= BYTES_PER_EVENT && (spent > self.rate_max || length > MESSAGE_MAX) {
            self.suppressed += 1;
            return;
        }
        self.spent = spent;
        self.queue.push((event, finished));
    }
}

/// Number of events that this many bytes count as.
fn cost_of(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_PER_EVENT).unwrap_or(u32::MAX)
}

/// A client that is described for the event that it is connected.
pub(super) struct Described(Json);

/// Events of clients and sessions. Each of these functions is called for a selected event only.
impl Events {
    /// Describes a client that gets CONNACK next: the data of CONNECT end with it. [`Self::connected`] follows.
    #[cold]
    pub fn describe_connected(&mut self, now: Time, connection: &Connection) -> Option<Described> {
        let mut json = self.begin(Event::Connected, now, (Some(connection), 0))?;
        json.client(Some(connection), &self.node);
        json.connection(connection);
        let at = Time(u64::from(connection.connected_at) * 1000);
        json.number("connected_at", Some(self.node.wall_ms(at)));
        Some(Described(json))
    }

    #[cold]
    pub fn connected(&mut self, Described(json): Described) {
        self.end(Event::Connected, json);
    }

    #[cold]
    pub fn disconnected(
        &mut self,
        now: Time,
        connection: &Connection,
        (reason, code): (&str, Option<ReasonCode>),
        properties: Properties<'_>,
    ) {
        let Some(mut json) = self.begin(Event::Disconnected, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        json.protocol(connection);
        json.text("reason", Some(reason));
        json.number("reason_code", code.map(|code| code.as_u8().into()));
        json.properties("disconn_props", properties, None);
        let at = Time(u64::from(connection.connected_at) * 1000);
        json.number("connected_at", Some(self.node.wall_ms(at)));
        json.number("disconnected_at", Some(self.node.wall_ms(now)));
        self.end(Event::Disconnected, json);
    }

    #[cold]
    pub fn connack(&mut self, now: Time, connection: &Connection, reason: ReasonCode) {
        let Some(mut json) = self.begin(Event::ConnAck, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        json.connection(connection);
        json.number("reason_code", Some(reason.as_u8().into()));
        self.end(Event::ConnAck, json);
    }

    #[cold]
    pub fn authenticated(&mut self, now: Time, connection: &Connection, refused: Option<ReasonCode>) {
        let Some(mut json) = self.begin(Event::Authn, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        let extra = connection.extra.as_deref();
        let principal = extra.and_then(|extra| extra.principal.as_deref());
        let has_certificate = extra.is_some_and(|extra| extra.certificate.is_some());
        json.text("result", Some(if refused.is_none() { "success" } else { "failure" }));
        json.text("reason", refused.map(describe::reason).as_deref());
        json.flag("is_superuser", Some(principal.is_some_and(|Principal { superuser, .. }| *superuser)));
        json.flag("is_anonymous", Some(connection.username().is_none() && !has_certificate));
        self.end(Event::Authn, json);
    }

    #[cold]
    pub fn authorized(
        &mut self,
        now: Time,
        connection: &Connection,
        (action, topic): (&str, &str),
        is_allowed: bool,
    ) {
        if topic.starts_with('$') {
            return;
        }
        let Some(mut json) = self.begin(Event::Authz, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        json.text("topic", Some(topic));
        json.text("action", Some(action));
        json.text("result", Some(if is_allowed { "allow" } else { "deny" }));
        json.text("authz_source", None);
        self.end(Event::Authz, json);
    }

    #[cold]
    pub fn subscribed(&mut self, now: Time, connection: &Connection, filter: &str, (qos, id): (QoS, u32)) {
        let Some(mut json) = self.begin(Event::Subscribed, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        json.text("topic", Some(filter));
        json.number("qos", Some(qos as u64));
        json.subscription_id("sub_props", id);
        self.end(Event::Subscribed, json);
    }

    #[cold]
    pub fn unsubscribed(&mut self, now: Time, connection: &Connection, filter: &str) {
        let Some(mut json) = self.begin(Event::Unsubscribed, now, (Some(connection), 0)) else { return };
        json.client(Some(connection), &self.node);
        json.text("topic", Some(filter));
        json.properties("unsub_props", Properties::EMPTY, None);
        self.end(Event::Unsubscribed, json);
    }
}

/// Events of messages.
impl Events {
    /// Handles that a client of this worker has published a message. `drop_reason`: why it has no receiver.
    #[cold]
    pub fn dispatched(
        &mut self,
        now: Time,
        publisher: Option<&Connection>,
        view: &MessageView<'_>,
        drop_reason: Option<&str>,
    ) {
        if view.topic.starts_with('$') || publisher.is_some_and(|it| it.marks.role.is_process()) {
            return;
        }
        if let Some(connection) = publisher.filter(|_| self.selected & FATES != 0) {
            self.node.publishers.note(view.publisher_key, connection);
        }
        let Some(reason) = drop_reason.filter(|_| self.is_selected(Event::Dropped)) else { return };
        let Some(mut json) = self.begin(Event::Dropped, now, (publisher, view.payload.len())) else { return };
        json.message(publisher, (now, view, view.qos), &self.node);
        json.text("reason", Some(reason));
        self.end(Event::Dropped, json);
    }

    /// Handles that a message was sent to a subscriber. `message` is asked for if it has to be kept.
    #[cold]
    pub fn sent(
        &mut self,
        now: Time,
        connection: &Connection,
        (view, qos, packet_id): (&MessageView<'_>, QoS, Option<PacketId>),
        message: impl FnOnce() -> Message,
    ) {
        if is_silent(connection, view.topic) {
            return;
        }
        if let Some(packet_id) = packet_id.filter(|_| self.is_selected(Event::Acked)) {
            self.await_ack(connection.id, packet_id, (message(), qos));
        }
        if self.is_selected(Event::Delivered) {
            self.about_delivery(Event::Delivered, now, connection, (view, qos), |_| {});
        }
    }

    fn await_ack(&mut self, connection: ConnectionId, packet_id: PacketId, (message, qos): (Message, QoS)) {
        let size = message.size();
        if self.unacked.len() >= UNACKED_MAX || self.unacked_bytes + size > UNACKED_BYTES_MAX {
            self.suppressed += 1;
            return;
        }
        self.unacked_bytes += size;
        let key = (connection.slot, connection.generation, packet_id.get());
        if let Some(earlier) = self.unacked.insert(key, Unacked { message, qos, is_received: false }) {
            self.unacked_bytes -= earlier.message.size();
        }
    }

    /// Handles PUBREC. An error ends the delivery, which is no acknowledgement of the message.
    #[cold]
    pub fn received(
        &mut self,
        ConnectionId { slot, generation, .. }: ConnectionId,
        id: PacketId,
        refused: bool,
    ) {
        let key = (slot, generation, id.get());
        let Some(unacked) = self.unacked.get_mut(&key) else { return };
        if unacked.qos != QoS::ExactlyOnce || unacked.is_received {
            return;
        }
        unacked.is_received = true;
        if refused {
            self.unacked_bytes -= self.unacked.remove(&key).map_or(0, |unacked| unacked.message.size());
        }
    }

    /// Handles that a subscriber has acknowledged a delivery. An acknowledgement of the wrong kind is no event.
    #[cold]
    pub fn acknowledged(
        &mut self,
        now: Time,
        connection: &Connection,
        (ack, id): (Completing, PacketId),
        properties: Properties<'_>,
    ) {
        let ConnectionId { slot, generation, .. } = connection.id;
        let key = (slot, generation, id.get());
        if !self.unacked.get(&key).is_some_and(|unacked| unacked.expects(ack)) {
            return;
        }
        let Some(Unacked { message, qos, .. }) = self.unacked.remove(&key) else { return };
        self.unacked_bytes -= message.size();
        let view = message.view();
        self.about_delivery(Event::Acked, now, connection, (&view, qos), |json| {
            json.properties("puback_props", properties, None);
        });
    }

    /// Forgets the deliveries of a connection that has ended.
    #[inline]
    pub fn connection_ended(&mut self, ConnectionId { slot, generation, .. }: ConnectionId) {
        if self.unacked.is_empty() {
            return;
        }
        let range = (slot, generation, 0)..=(slot, generation, u16::MAX);
        let keys: Vec<_> = self.unacked.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.unacked_bytes -= self.unacked.remove(&key).map_or(0, |unacked| unacked.message.size());
        }
    }

    /// Handles that a connection does not get a message.
    #[cold]
    pub fn delivery_dropped(
        &mut self,
        now: Time,
        connection: &Connection,
        view: &MessageView<'_>,
        why: &str,
    ) {
        if is_silent(connection, view.topic) {
            return;
        }
        self.about_delivery(Event::DeliveryDropped, now, connection, (view, view.qos), |json| {
            json.text("reason", Some(describe::drop_reason(why)));
        });
    }

    /// Handles that a durable session does not get a message.
    #[cold]
    pub fn delivery_dropped_in_session(&mut self, now: Time, client_id: &str, message: &Message, why: &str) {
        let view = message.view();
        if view.topic.starts_with('$') || crate::internal::is_reserved(client_id) {
            return;
        }
        let Some(mut json) = self.begin(Event::DeliveryDropped, now, (None, view.payload.len())) else {
            return;
        };
        json.message_for(client_id, (now, &view, view.qos), &self.node);
        json.publisher(&self.node, view.publisher_key);
        json.text("reason", Some(why));
        self.end(Event::DeliveryDropped, json);
    }

    fn about_delivery(
        &mut self,
        event: Event,
        now: Time,
        connection: &Connection,
        (view, qos): (&MessageView<'_>, QoS),
        add: impl FnOnce(&mut Json),
    ) {
        let Some(mut json) = self.begin(event, now, (Some(connection), view.payload.len())) else { return };
        json.message(Some(connection), (now, view, qos), &self.node);
        json.publisher(&self.node, view.publisher_key);
        add(&mut json);
        self.end(event, json);
    }
}

fn is_silent(connection: &Connection, topic: &str) -> bool {
    topic.starts_with('$') || connection.marks.role.is_process()
}

/// An alarm of the node that was activated or deactivated. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmChange {
    pub name: String,
    /// Node that the alarm is about.
    pub node: String,
    /// `error`, `warning` or `notice`.
    pub severity: String,
    pub message: String,
    pub activated_at: u64,
    /// `None` while the alarm is active.
    pub deactivated_at: Option<u64>,
}

impl Worker {
    /// Looks which events have subscriptions, unless the index has not changed or the last look was a short time ago.
    pub(super) fn renew_events(&mut self) {
        let (now, version) = (self.clock.now(), self.dispatcher.reader.index().version());
        if let Some((last, at)) = self.monitor.events.looked
            && (last == version || at.0 + LOOK_MS > now.0)
        {
            return;
        }
        self.monitor.events.looked = Some((version, now));
        let mut routes = std::mem::take(&mut self.scratch.routes);
        let (mut for_all, mut for_tenants) = (0, 0);
        for event in Event::ALL {
            let mut find = |topic: &str| {
                routes.clear();
                if let Ok(topic) = TopicName::parse(topic) {
                    self.dispatcher.reader.matches(topic, &mut routes);
                }
                if routes.is_empty() { 0 } else { event.bit() }
            };
            for_tenants |= find(&tenant_events(event.topic(), ""));
            for_all |= find(event.topic());
            // One worker says it for all.
            if *event == Event::Alarm && self.id == WorkerId(0) {
                self.monitor.events.note_alarm_routes(&routes);
            }
        }
        self.scratch.routes = routes;
        let events = &mut self.monitor.events;
        if (for_all, for_tenants) != (events.selected_for_all, events.selected_for_tenants) {
            events.select(for_all, for_tenants);
            self.monitor.note_observers();
        }
    }

    /// Publishes the events of this turn.
    #[cold]
    pub(super) fn publish_events(&mut self) {
        self.counters.events_suppressed += std::mem::take(&mut self.monitor.events.suppressed);
        let events = &mut self.monitor.events;
        let (for_all, for_tenants) = (events.selected_for_all, events.selected_for_tenants);
        for (event, Finished { text, mountpoint, of_tenant }) in std::mem::take(&mut events.queue) {
            if for_all & event.bit() != 0 {
                self.publish_event(event.topic(), &text);
            }
            if for_tenants & event.bit() != 0 && !mountpoint.is_empty() {
                let topic = tenant_events(event.topic(), &mountpoint);
                self.publish_event(&topic, of_tenant.as_ref().unwrap_or(&text));
            }
        }
    }

    fn publish_event(&mut self, topic: &str, payload: &[u8]) {
        let received = self.clock.now();
        let view = MessageView { payload, received, ..MessageView::plain(topic) };
        if let Ok(topic) = TopicName::parse(topic) {
            self.counters.events += 1;
            self.dispatch(topic, view, None);
        }
    }

    /// Publishes a change of an alarm, if the event has subscriptions.
    pub(super) fn alarm_changed(&mut self, alarm: &AlarmChange) {
        let now = self.clock.now();
        if !self.monitor.events.is_selected(Event::Alarm) {
            // Another worker may have seen the subscription already, and the change is reported once.
            self.monitor.events.looked = None;
            self.renew_events();
        }
        let events = &mut self.monitor.events;
        if !events.is_selected(Event::Alarm) {
            return;
        }
        let Some(mut json) = events.begin(Event::Alarm, now, (None, 0)) else { return };
        json.text("name", Some(&alarm.name));
        json.flag("active", Some(alarm.deactivated_at.is_none()));
        json.text("severity", Some(&alarm.severity));
        json.text("message", Some(&alarm.message));
        json.details(&alarm.node);
        json.number("activated_at", Some(alarm.activated_at));
        json.number("deactivated_at", alarm.deactivated_at);
        events.end(Event::Alarm, json);
    }
}
