//! Requests of operators to a running node. [`Admin`] is the handle; each of its methods is a request.
//!
//! A request travels as a command to the worker that owns the answer. That worker calls a [`Reply`] on its own thread.
//! **Invariant:** one request costs its worker a bounded piece of work. A longer request is made in steps, each with
//! the [`Cursor`] of the previous one. A reply that is dropped without a call means that the node is stopping.

mod client;
mod counter_sum;
mod drain;
mod figures;
mod request;
mod slow;
mod top;
mod trace;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use mqtt::{PropertiesBuf, Property, QoS, ReasonCode, RetainHandling, TopicFilter, TopicName};

pub use client::{
    ClientDetail, ClientFilter, ClientInfo, ClientPage, ConnectionDetail, Kicked, Matches, QueuePage,
    QueueState, Queued, Receiver, RemoteConnection, ResourceUsage, SessionDetail, SubscriptionFilter,
    SubscriptionInfo, SubscriptionPage, Whereabouts, is_within,
};
pub(crate) use client::{SessionFigures, queued};
pub use counter_sum::CounterSum;
pub use drain::{DrainClass, DrainStep, Drained};
pub use figures::{
    AcceptErrors, AcceptFigures, Figures, ReactorFigures, ShardFigures, SpanFigures, TURN_BUCKETS,
    WorkerFigures,
};
pub use request::AdminCommand;
pub(crate) use request::{AdminRequest, ClientLocation, GroupWalk, ReceiverSearch};
pub use slow::SlowDelivery;
pub(crate) use slow::SlowTable;
pub(crate) use top::Sampler;
pub use top::{Busy, Top};
pub use trace::{Direction, Trace, TraceEvent, TraceKind, TraceSubject};
pub(crate) use trace::{EventContext, Traces, Tracing};
pub use watch::{Traffic, Watched};
pub(crate) use watch::{Watch, Watches};

use crate::batch::WorkerCommand;
use crate::ids::{ConnectionId, ShardId, Time, WorkerId, client_hash};
use crate::interest::{InterestWatch, Wake};
use crate::link_waits::{LinkWaits, WaitingSuback};
use crate::message::{Message, MessageView};
use crate::node::{Node, OwnerKey};
use crate::origin::OriginFacts;
use crate::retained;
use crate::settings::Settings;
use crate::store::client_shard;
use crate::worker::{AlarmChange, Event};

/// Number of filters in each part of a list of all filters of a client.
const FILTERS_AT_ONCE: usize = 1000;

/// Callback that gets the answer, on a worker's thread. It passes the answer on and does nothing else.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Position at which a listing continues. Its numbers are valid only during the current run of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Index of a worker, or the number of workers plus the index of a shard.
    pub stage: u32,
    /// First slot to examine.
    pub slot: u32,
    /// Number of subscriptions of that slot's client that are already listed.
    pub within: u32,
}

/// Handle of a running node for operators. It is cheap to clone and works on any thread except a worker's.
#[derive(Clone)]
pub struct Admin {
    node: Arc<Node>,
    /// Wall-clock time at which the node started, at [`Incarnation::began`](crate::Incarnation::began).
    started: SystemTime,
    clock: boottime::Instant,
}

/// A message that an operator publishes.
#[derive(Clone, Debug, Default)]
pub struct Publication {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    /// Message Expiry Interval in seconds; `None` means that the message never expires.
    pub message_expiry: Option<u32>,
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<Vec<u8>>,
    /// True sets Payload Format Indicator to 1: the payload is UTF-8 text.
    pub payload_is_text: bool,
    pub user_properties: Vec<(String, String)>,
}

impl Publication {
    /// Returns the properties as encoded in PUBLISH, without Message Expiry Interval.
    fn properties(&self) -> Result<Vec<u8>, Invalid> {
        let mut properties = PropertiesBuf::default();
        let mut fits = true;
        let mut push = |property| fits &= properties.push(property);
        if self.payload_is_text {
            push(Property::PayloadFormatIndicator(1));
        }
        if let Some(content_type) = &self.content_type {
            push(Property::ContentType(content_type));
        }
        if let Some(topic) = &self.response_topic {
            TopicName::parse(topic).map_err(|_| Invalid::Topic)?; // [MQTT-3.3.2-14]
            push(Property::ResponseTopic(topic));
        }
        if let Some(data) = &self.correlation_data {
            push(Property::CorrelationData(data));
        }
        for (name, value) in &self.user_properties {
            push(Property::UserProperty(name, value));
        }
        if fits { Ok(properties.as_properties().as_bytes().to_vec()) } else { Err(Invalid::Text) }
    }
}

/// A subscription that an operator makes for a client.
#[derive(Clone, Debug)]
pub struct NewSubscription {
    /// Topic Filter, with `$share/` if the subscription is shared.
    pub filter: String,
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
    pub subscription_id: Option<u32>,
}

/// Reasons why an action on a client fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientActionError {
    /// Neither the client nor a session of it exists.
    Unknown,
    /// The client has a session but is not connected.
    NotConnected,
    /// The client is connected to another node.
    Elsewhere,
    /// The client disconnected during the action.
    Gone,
}

/// A retained message without the bytes of its payload.
#[derive(Clone, Debug)]
pub struct RetainedInfo {
    pub topic: Box<str>,
    pub qos: QoS,
    pub payload_bytes: usize,
    pub age: Duration,
    /// Remaining part of the Message Expiry Interval.
    pub expires_in: Option<Duration>,
}

#[derive(Debug)]
pub struct RetainedPage {
    pub items: Vec<RetainedInfo>,
    /// Shard in which the next step continues, and the topic after which it continues.
    pub next: Option<(ShardId, Option<Box<str>>)>,
}

/// A complete retained message.
#[derive(Clone, Debug)]
pub struct RetainedMessage {
    pub info: RetainedInfo,
    pub payload: Vec<u8>,
    pub content_type: Option<String>,
    pub user_properties: Vec<(String, String)>,
}

/// Reasons why a request is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The topic is not a Topic Name [MQTT-4.7.1-1], exceeds the configured length or number of levels, or is reserved
    /// for the broker.
    Topic,
    /// The filter is not a Topic Filter, or exceeds the configured length or number of levels.
    Filter,
    /// The QoS is not 0, 1 or 2, or is above `mqtt.qos_max`.
    QoS,
    /// `mqtt.retain_available` is off.
    Retain,
    /// A text contains U+0000 or is longer than 65,535 bytes [MQTT-1.5.4-2].
    Text,
    /// The message is larger than `mqtt.packet_size_max`.
    Size,
    /// The payload is declared to be text and is not valid UTF-8.
    Payload,
    /// The entry exists already.
    Exists,
    /// The maximum number of entries is reached.
    TooMany,
}

impl Admin {
    /// Creates a handle. The caller reads `started` and `clock` when the node starts.
    pub fn new(node: Arc<Node>, started: SystemTime, clock: boottime::Instant) -> Self {
        Self { node, started, clock }
    }

    /// Returns the node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.node.workers).map(WorkerId)
    }

    pub fn started(&self) -> SystemTime {
        self.started
    }

    pub fn now(&self) -> Time {
        self.node.incarnation.began.after(self.clock.elapsed())
    }

    /// Converts a time of the node to wall-clock time.
    pub fn wall(&self, time: Time) -> SystemTime {
        let began = self.node.incarnation.began;
        if time < began {
            self.started.checked_sub(began.since(time)).unwrap_or(SystemTime::UNIX_EPOCH)
        } else {
            self.started + time.since(began)
        }
    }

    /// Returns the figures that the workers last published. It sends no command, and waits no longer than a copy takes.
    pub fn figures(&self) -> Figures {
        Figures::of(&self.node, self.now())
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.node.settings()
    }

    fn send(&self, worker: WorkerId, request: AdminRequest) {
        self.node.post(worker, request.into());
    }

    /// Performs one step of listing clients: first connected clients, then sessions without a connection.
    pub fn clients(&self, from: Cursor, limit: usize, filter: Arc<ClientFilter>, reply: Reply<ClientPage>) {
        let (worker, from) = match self.resolve_cursor(from) {
            Some(at) => at,
            None => return reply(ClientPage { items: Vec::new(), next: None }),
        };
        self.send(worker, AdminRequest::Clients { from, limit, filter, reply });
    }

    /// Returns the worker that owns the position of a cursor.
    fn resolve_cursor(&self, cursor: Cursor) -> Option<(WorkerId, Cursor)> {
        let worker = self.node.stage_host(cursor.stage)?;
        Some((worker, cursor))
    }

    /// Returns everything known about one client. `None` means that neither the client nor a session of it exists.
    pub fn client(&self, client_id: &str, reply: Reply<Option<Box<ClientDetail>>>) {
        let shard = client_shard(client_hash(client_id));
        self.send(
            self.node.shard_host(shard),
            AdminRequest::Client { shard, client_id: client_id.into(), reply },
        );
    }

    /// Returns whether the process should have the session of this Client Identifier, of a bridge, on this node: it
    /// leads the shard, and all replicas understand the session's limits. Two nodes may say so for a moment.
    pub fn hosts_internal(&self, client_id: &str) -> bool {
        let load = &self.node.load;
        let leads = load.led[crate::store::shard_of_client(client_id).index()].load(Relaxed);
        leads && (self.node.own.is_none() || load.reads_queue_limits.load(Relaxed))
    }

    /// Begins to watch which Topic Filters are wanted. `wake` is called on any thread, and must not wait. A node has
    /// one watch: a later one replaces it.
    pub fn watch_interest(&self, wake: Wake) -> InterestWatch {
        self.node.watch_interest(wake)
    }

    /// Sets the links to other clusters for which SUBACKs of level `links` wait. Only the first call has an effect.
    pub fn set_link_waits(&self, waits: Arc<dyn LinkWaits>) {
        self.node.set_link_waits(waits);
    }

    /// Ends the wait of a SUBACK for links. `is_confirmed` is false when a linked cluster has not answered in time.
    pub fn links_answered(&self, suback: WaitingSuback, is_confirmed: bool) {
        let command = WorkerCommand::LinksAnswered { suback, is_confirmed };
        self.node.post(suback.connection.worker, command);
    }

    /// Returns whether the leader of a shard knows all connections of its clients, and not those of durable sessions
    /// only. Then all cores of the cluster understand Claims that keep ephemeral sessions.
    pub fn keeps_ephemeral_sessions(&self) -> bool {
        self.node.load.keeps_ephemeral.load(Relaxed)
    }

    /// Returns whether the queue of a session of the process may refuse messages: all nodes of the cluster understand
    /// that.
    pub fn reads_queue_refusals(&self) -> bool {
        self.node.own.is_none() || self.node.load.reads_queue_refusals.load(Relaxed)
    }

    /// Gives messages that match these filters their [`Origin`](crate::origin::Origin), from now on. `node` is the name
    /// of this node, and `run` a number that no other run of any node has; only those of the first call count.
    ///
    /// # Errors
    /// Returns the number of filters for which the node has no room.
    pub fn select_origins(&self, filters: &BTreeSet<Box<str>>, node: &str, run: u64) -> Result<(), usize> {
        self.node.set_origin_facts(|| OriginFacts { node: node.to_owned(), run });
        self.node.routes.set_origins(filters)
    }

    /// Corrects the wall clock of origins. `since_1970` is the time now.
    pub fn set_wall_clock_of_origins(&self, since_1970: Duration) {
        let (wall, now) = (since_1970.as_millis() as u64, self.now().0);
        self.node.set_origin_wall_ms(wall.saturating_sub(now));
    }

    /// Name of this broker or its cluster that no other one has, for the hops of messages over bridges.
    pub fn unique_name(&self, name: &str) -> String {
        let key = OwnerKey::of(&self.node.owner_hash(), "$bridge/", Some(name));
        format!("{name}-{:08x}", key.as_u32())
    }

    /// Finds out where a client is, as far as this node knows.
    pub fn locate(&self, client_id: &str, reply: Reply<Whereabouts>) {
        let shard = client_shard(client_hash(client_id));
        let request = AdminRequest::Locate { shard, client_id: client_id.into(), reply };
        self.send(self.node.shard_host(shard), request);
    }

    /// Finds the connection of a client on this node without its shard. That takes a step for each 512 connections.
    pub fn find_connection(&self, client_id: &str, reply: Reply<Option<ConnectionId>>) {
        self.send(WorkerId(0), AdminRequest::FindConnection { client_id: client_id.into(), from: 0, reply });
    }

    /// Returns everything that this node knows about the connection of a client; `None` when it has no such connection.
    pub fn client_connection(&self, id: ConnectionId, reply: Reply<Option<Box<ClientDetail>>>) {
        if usize::from(id.worker.0) >= self.workers().count() {
            return reply(None);
        }
        self.send(id.worker, AdminRequest::ClientConnection { connection: id, session: None, reply });
    }

    /// Closes a connection of a client with 0x98, and ends its session if `end_session` is true. `None` means that this
    /// node has no such connection.
    pub fn kick_connection(
        &self,
        client_id: &str,
        id: ConnectionId,
        end_session: bool,
        reply: Reply<Option<Kicked>>,
    ) {
        if usize::from(id.worker.0) >= self.workers().count() {
            return reply(None);
        }
        let (client_id, durable) = (Some(client_id.into()), true);
        self.send(
            id.worker,
            AdminRequest::KickConnection { connection: id, client_id, end_session, durable, reply },
        );
    }

    /// Returns up to `limit` subscriptions of a client, starting at index `from`. `None` means that the client is
    /// unknown.
    pub fn client_subscriptions(
        &self,
        client_id: &str,
        from: usize,
        limit: usize,
        reply: Reply<Option<(Vec<SubscriptionInfo>, Option<usize>)>>,
    ) {
        let shard = client_shard(client_hash(client_id));
        let request =
            AdminRequest::ClientSubscriptions { shard, client_id: client_id.into(), from, limit, reply };
        self.send(self.node.shard_host(shard), request);
    }

    /// Returns the Topic Filters of all subscriptions of a client. `None` means that the client is unknown. They are
    /// listed in parts, so that the shard has other work in between.
    pub fn client_filters(&self, client_id: &str, reply: Reply<Option<Vec<Box<str>>>>) {
        self.list_filters(client_id.into(), Vec::new(), 0, reply);
    }

    fn list_filters(
        &self,
        client_id: Box<str>,
        mut filters: Vec<Box<str>>,
        from: usize,
        reply: Reply<Option<Vec<Box<str>>>>,
    ) {
        let (this, of) = (self.clone(), client_id.clone());
        let listed = move |found: Option<(Vec<SubscriptionInfo>, Option<usize>)>| {
            let Some((subscriptions, next)) = found else { return reply(None) };
            filters.extend(subscriptions.into_iter().map(|subscription| subscription.filter));
            match next {
                Some(next) => this.list_filters(of, filters, next, reply),
                None => reply(Some(filters)),
            }
        };
        self.client_subscriptions(&client_id, from, FILTERS_AT_ONCE, Box::new(listed));
    }

    /// Returns at most `limit` messages that wait for a client or are in flight to it. Each has up to `payload` bytes
    /// of its payload.
    pub fn queue(&self, client_id: &str, limit: usize, payload: usize, reply: Reply<Option<QueuePage>>) {
        let shard = client_shard(client_hash(client_id));
        let request = AdminRequest::Queue { shard, client_id: client_id.into(), limit, payload, reply };
        self.send(self.node.shard_host(shard), request);
    }

    /// Returns subscriptions of a connection of this node, like [`Self::client_subscriptions`]. `None` means that there
    /// is no such connection.
    pub fn connection_subscriptions(
        &self,
        id: ConnectionId,
        from: usize,
        limit: usize,
        reply: Reply<Option<(Vec<SubscriptionInfo>, Option<usize>)>>,
    ) {
        if usize::from(id.worker.0) >= self.workers().count() {
            return reply(None);
        }
        let request = AdminRequest::ConnectionSubscriptions { connection: id, from, limit, reply };
        self.send(id.worker, request);
    }

    /// Returns the queue of a connection of this node, like [`Self::queue`]. `None` means that there is no such
    /// connection.
    pub fn connection_queue(
        &self,
        id: ConnectionId,
        limit: usize,
        payload: usize,
        reply: Reply<Option<QueuePage>>,
    ) {
        if usize::from(id.worker.0) >= self.workers().count() {
            return reply(None);
        }
        self.send(id.worker, AdminRequest::ConnectionQueue { connection: id, limit, payload, reply });
    }

    /// Closes a client's connection with 0x98, and ends its durable session if `end_session` is true. `None` means that
    /// the client is unknown.
    pub fn kick(&self, client_id: &str, end_session: bool, reply: Reply<Option<Kicked>>) {
        let shard = client_shard(client_hash(client_id));
        let request = AdminRequest::Kick { shard, client_id: client_id.into(), end_session, reply };
        self.send(self.node.shard_host(shard), request);
    }

    /// Performs one step of listing subscriptions: first of connected clients, then of sessions without a connection.
    pub fn subscriptions(
        &self,
        from: Cursor,
        limit: usize,
        filter: Arc<SubscriptionFilter>,
        reply: Reply<SubscriptionPage>,
    ) {
        let Some((worker, from)) = self.resolve_cursor(from) else {
            return reply(SubscriptionPage { items: Vec::new(), next: None });
        };
        self.send(worker, AdminRequest::Subscriptions { from, limit, filter, reply });
    }

    /// Subscribes a connected client as if it had sent SUBSCRIBE. The reply is the Reason Code of the SUBACK. The
    /// access rules do not apply: the operator decides.
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub fn subscribe(
        &self,
        client_id: &str,
        subscription: NewSubscription,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) -> Result<(), Invalid> {
        mqtt::Subscription::parse(&subscription.filter).map_err(|_| Invalid::Filter)?;
        let shard = client_shard(client_hash(client_id));
        let request = AdminRequest::Subscribe { shard, client_id: client_id.into(), subscription, reply };
        self.send(self.node.shard_host(shard), request);
        Ok(())
    }

    /// Subscribes a connection of this node, like [`Self::subscribe`].
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub fn subscribe_connection(
        &self,
        id: ConnectionId,
        subscription: NewSubscription,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) -> Result<(), Invalid> {
        mqtt::Subscription::parse(&subscription.filter).map_err(|_| Invalid::Filter)?;
        if usize::from(id.worker.0) >= self.workers().count() {
            reply(Err(ClientActionError::Unknown));
            return Ok(());
        }
        self.send(id.worker, AdminRequest::SubscribeConnection { connection: id, subscription, reply });
        Ok(())
    }

    /// Removes a subscription of a connection of this node, like [`Self::unsubscribe`].
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub fn unsubscribe_connection(
        &self,
        id: ConnectionId,
        filter: &str,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) -> Result<(), Invalid> {
        mqtt::Subscription::parse(filter).map_err(|_| Invalid::Filter)?;
        if usize::from(id.worker.0) >= self.workers().count() {
            reply(Err(ClientActionError::Unknown));
            return Ok(());
        }
        let request = AdminRequest::UnsubscribeConnection { connection: id, filter: filter.into(), reply };
        self.send(id.worker, request);
        Ok(())
    }

    /// Removes a subscription of a connected client. The reply is the Reason Code of the UNSUBACK.
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub fn unsubscribe(
        &self,
        client_id: &str,
        filter: &str,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) -> Result<(), Invalid> {
        mqtt::Subscription::parse(filter).map_err(|_| Invalid::Filter)?;
        let shard = client_shard(client_hash(client_id));
        let request =
            AdminRequest::Unsubscribe { shard, client_id: client_id.into(), filter: filter.into(), reply };
        self.send(self.node.shard_host(shard), request);
        Ok(())
    }

    /// Sets the name of the node, as events have it. Only the first call has an effect.
    pub fn name_node(&self, name: &str) {
        self.node.set_name(name);
    }

    /// Returns whether the event about alarms has subscriptions.
    pub fn are_alarms_selected(&self) -> bool {
        self.node.load.events.load(Relaxed) & Event::Alarm.bit() != 0
    }

    /// Returns a number that changes when the event about alarms gets another subscription, as far as this node knows.
    pub fn alarm_subscriptions(&self) -> u32 {
        self.node.load.alarm_subscriptions.load(Relaxed)
    }

    /// Publishes a change of an alarm as an event, if the event has subscriptions.
    pub fn alarm_changed(&self, alarm: AlarmChange) {
        self.send(WorkerId(0), AdminRequest::AlarmChanged(Box::new(alarm)));
    }

    /// Publishes a message. The reply comes when all receivers have it, as a PUBACK would.
    ///
    /// # Errors
    /// Fails if a client could not publish the message either.
    pub fn publish(&self, publication: &Publication, reply: Reply<ReasonCode>) -> Result<(), Invalid> {
        let message = self.message(publication)?;
        let worker =
            WorkerId((crate::ids::hash(publication.topic.as_bytes()) % u32::from(self.node.workers)) as u16);
        self.send(worker, AdminRequest::Publish { message, reply });
        Ok(())
    }

    fn message(&self, publication: &Publication) -> Result<Message, Invalid> {
        let settings = self.node.settings();
        let mqtt = &settings.mqtt;
        let topic = &publication.topic;
        let valid = TopicName::parse(topic).is_ok()
            && !crate::worker::is_beyond_limits(topic, mqtt)
            && !crate::worker::is_own_topic(topic);
        if !valid {
            return Err(Invalid::Topic);
        }
        let qos =
            QoS::from_bits(publication.qos).filter(|qos| *qos as u8 <= mqtt.qos_max).ok_or(Invalid::QoS)?;
        if publication.retain && !mqtt.retain_available {
            return Err(Invalid::Retain);
        }
        if publication.payload_is_text && std::str::from_utf8(&publication.payload).is_err() {
            return Err(Invalid::Payload);
        }
        let properties = publication.properties()?;
        let size = topic.len() + publication.payload.len() + properties.len() + 16;
        if size as u64 > mqtt.packet_size_max.bytes() {
            return Err(Invalid::Size);
        }
        // The interval starts when the worker publishes the message.
        let expires =
            publication.message_expiry.map_or(Time::NEVER, |seconds| Time(u64::from(seconds) * 1000));
        let view = MessageView {
            topic,
            properties: &properties,
            payload: &publication.payload,
            qos,
            retain: publication.retain,
            expires,
            received: Time::default(),
            publisher: None,
            publisher_key: 0,
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        };
        Ok(view.to_message())
    }

    /// Performs one step of listing the retained messages that match. `from` is `next` of the previous step.
    ///
    /// # Errors
    /// Fails if the filter is invalid.
    pub fn retained(
        &self,
        filter: &str,
        from: Option<(ShardId, Option<Box<str>>)>,
        limit: usize,
        reply: Reply<RetainedPage>,
    ) -> Result<(), Invalid> {
        TopicFilter::parse(filter).map_err(|_| Invalid::Filter)?;
        let (first, last) = retained::shard_range(filter);
        let (shard, after) = from.unwrap_or((first, None));
        if shard > last || shard < first {
            reply(RetainedPage { items: Vec::new(), next: None });
            return Ok(());
        }
        let host = self.node.retained_host(shard);
        self.send(host, AdminRequest::Retained { shard, last, filter: filter.into(), after, limit, reply });
        Ok(())
    }

    pub fn retained_message(&self, topic: &str, reply: Reply<Option<Box<RetainedMessage>>>) {
        let host = self.node.retained_host(retained::shard_of(topic));
        self.send(host, AdminRequest::RetainedMessage { topic: topic.into(), reply });
    }

    /// Deletes the retained messages of these topics without sending anything to clients. Returns the number of replies
    /// to expect. Each worker that hosts one of the topics replies with the number of messages that it deleted.
    pub fn delete_retained(
        &self,
        topics: &[Box<str>],
        reply: impl Fn(usize) + Clone + Send + 'static,
    ) -> usize {
        let mut by_host: Vec<Vec<Box<str>>> = vec![Vec::new(); usize::from(self.node.workers)];
        for topic in topics {
            let host = self.node.retained_host(retained::shard_of(topic));
            by_host[host.index()].push(topic.clone());
        }
        let mut requested = 0;
        for (host, topics) in self.workers().zip(by_host) {
            if !topics.is_empty() {
                requested += 1;
                self.send(host, AdminRequest::DeleteRetained { topics, reply: Box::new(reply.clone()) });
            }
        }
        requested
    }

    /// Finds the receivers of a message on this topic, up to `limit`. All members of matching shared groups count as
    /// receivers.
    ///
    /// # Errors
    /// Fails if the topic is not a Topic Name.
    pub fn find_receivers(&self, topic: &str, limit: usize, reply: Reply<Matches>) -> Result<(), Invalid> {
        TopicName::parse(topic).map_err(|_| Invalid::Topic)?;
        let matches = Matches::default();
        self.send(
            WorkerId(0),
            AdminRequest::FindReceivers(Box::new(ReceiverSearch {
                topic: topic.into(),
                limit,
                walk: None,
                matches,
                reply,
            })),
        );
        Ok(())
    }

    /// Returns up to `limit` filters of the index that begin with `prefix`, with their destinations, in no particular
    /// order. The second value is true if there are more. The call scans the whole index on the calling thread, so do
    /// not call it on a thread that others wait for.
    pub fn routes(&self, prefix: &str, limit: usize) -> (Vec<FilterRoutes>, bool) {
        client::routes(&self.node, prefix, limit)
    }

    /// Starts to count messages on topics that match `filter`.
    ///
    /// # Errors
    /// Fails if the filter is invalid or already watched, or if 64 filters are watched.
    pub fn watch(&self, filter: &str) -> Result<Watched, Invalid> {
        self.node.watches.add(filter, self.now(), self.node.workers)?;
        self.send_watches();
        self.watched().into_iter().find(|watched| *watched.filter == *filter).ok_or(Invalid::Filter)
    }

    /// Stops watching a filter. Returns false if the filter was not watched.
    pub fn unwatch(&self, filter: &str) -> bool {
        let known = self.node.watches.remove(filter);
        self.send_watches();
        known
    }

    pub fn watched(&self) -> Vec<Watched> {
        self.node.watches.list()
    }

    fn send_watches(&self) {
        for worker in self.workers() {
            self.send(worker, AdminRequest::Watches(self.node.watches.current()));
        }
    }

    /// Returns the slowest deliveries of one worker's clients.
    pub fn slow(&self, worker: WorkerId, reply: Reply<Vec<SlowDelivery>>) {
        self.send(worker, AdminRequest::Slow { reply });
    }

    /// Clears the table of slow deliveries on all workers.
    pub fn forget_slow(&self) {
        for worker in self.workers() {
            self.send(worker, AdminRequest::ForgetSlow);
        }
    }

    /// Returns the busiest clients and topics of one worker, found by sampling.
    pub fn top(&self, worker: WorkerId, reply: Reply<Top>) {
        self.send(worker, AdminRequest::Top { reply });
    }

    /// Returns the number of durable sessions in the shards of one worker now. [`Self::figures`] is up to a second old.
    pub fn session_count(&self, worker: WorkerId, reply: Reply<u64>) {
        self.send(worker, AdminRequest::SessionCount { reply });
    }

    /// Starts a trace on all workers. It runs until the returned [`Trace`] is dropped.
    ///
    /// `sink` is called on the workers' threads for each event and must not block. It returns false if the event was
    /// lost, and such events are counted.
    ///
    /// # Errors
    /// Fails if 8 traces run already, or if the filter is invalid.
    pub fn trace(
        &self,
        subject: TraceSubject,
        payload_max: usize,
        sink: impl Fn(TraceEvent) -> bool + Send + Sync + 'static,
    ) -> Result<Trace, Invalid> {
        if let TraceSubject::Topic(filter) = &subject {
            TopicFilter::parse(filter).map_err(|_| Invalid::Filter)?;
        }
        let trace = self.node.traces.begin(subject, payload_max, Box::new(sink)).ok_or(Invalid::TooMany)?;
        self.send_traces();
        let admin = self.clone();
        Ok(Trace::new(trace, move |id| {
            admin.node.traces.end(id);
            admin.send_traces();
        }))
    }

    fn send_traces(&self) {
        for worker in self.workers() {
            self.send(worker, AdminRequest::Traces(self.node.traces.current()));
        }
    }

    /// Replaces the settings. Settings that are read only at start must keep their values. Connections keep the limits
    /// that their CONNACK announced.
    pub fn set_settings(&self, settings: Settings) {
        let settings = Arc::new(settings);
        for worker in self.workers() {
            self.send(worker, AdminRequest::Settings(settings.clone()));
        }
    }
}

/// A filter of the index, with up to 1,000 of its destinations.
#[derive(Clone, Debug)]
pub struct FilterRoutes {
    pub filter: Box<str>,
    pub destinations: Vec<RouteInfo>,
}

/// One destination of a filter.
#[derive(Clone, Debug)]
pub struct RouteInfo {
    /// `client`, `session_qos0`, `shard`, `shard_groups` or `node`.
    pub kind: &'static str,
    pub worker: Option<u16>,
    pub shard: Option<u16>,
}
