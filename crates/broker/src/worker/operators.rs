//! Actions of operators: publishing messages, subscribing clients, closing connections.

use mqtt::{Disconnect, Packet, PropertiesBuf, Property, ReasonCode, SubscriptionOptions, TopicName};
use slab::Slab;

use super::Worker;
use super::dispatch::Dispatched;
use super::peers::deletion;
use super::retained::deleted;
use super::spans::OpenSpan;
use crate::admin::{ClientActionError, NewSubscription, Reply};
use crate::batch::Token;
use crate::connection::Phase;
use crate::ids::{ConnectionId, Ticket};
use crate::message::Message;
use crate::retained;

/// Requests of operators that wait for an answer.
#[derive(Default)]
pub(super) struct Operators {
    /// Requests by the key of [`Token::Operator`].
    waiting: Slab<Waiting>,
    /// Subscriptions by the operator's number in the ticket.
    subscribing: Slab<(ConnectionId, Reply<Result<ReasonCode, ClientActionError>>)>,
}

struct Publish {
    outstanding: u32,
    reason: ReasonCode,
    reply: Reply<ReasonCode>,
}

/// A deletion of retained messages in progress.
struct Deletion {
    outstanding: usize,
    deleted: usize,
    reply: Reply<usize>,
}

/// A request that waits for completions.
enum Waiting {
    Publish(Publish),
    Deletion(Deletion),
}

/// Maximum number of waiting requests of each kind on one worker. Requests are already bounded where they enter the
/// node; this limit is a last resort.
const WAITING_MAX: usize = 10_000;
/// Maximum number of connections that one step examines.
const CONNECTIONS_AT_ONCE: u32 = 512;

impl Worker {
    /// Publishes a message for an operator. The reply comes when all receivers have it. The Message Expiry Interval
    /// starts now.
    pub(super) fn publish_for_operator(&mut self, message: &Message, reply: Reply<ReasonCode>) {
        let mut view = message.view().arrived(self.clock.now());
        let Ok(name) = TopicName::parse(view.topic) else { return reply(ReasonCode::TopicNameInvalid) };
        if self.operators.waiting.len() >= WAITING_MAX {
            return reply(ReasonCode::QuotaExceeded);
        }
        self.monitor.published_by_operator(self.clock.now(), &view);
        let mut span = OpenSpan::default();
        if self.monitor.records_spans(&view) {
            (view.span, span) = self.monitor.begin_published(self.clock.now(), None, &view, (None, false));
        }
        let key = self.operators.waiting.vacant_key();
        let token = Token::Operator { worker: self.id, key: key as u32 };
        let Dispatched { outstanding, matched, refused, .. } = self.dispatch(name, view, Some(token));
        if view.span != 0 {
            self.monitor.end_span(span);
        }
        if let Some(reason) = refused {
            return reply(reason);
        }
        let reason = if matched { ReasonCode::Success } else { ReasonCode::NoMatchingSubscribers };
        if outstanding == 0 {
            return reply(reason);
        }
        self.operators.waiting.insert(Waiting::Publish(Publish { outstanding, reason, reply }));
    }

    /// Deletes the retained messages of topics that this worker hosts. The reply comes when they are deleted.
    pub(super) fn delete_for_operator(&mut self, topics: Vec<Box<str>>, reply: Reply<usize>) {
        let key = self.operators.waiting.vacant_key();
        let token = Token::Operator { worker: self.id, key: key as u32 };
        let (mut outstanding, mut deleted) = (0, 0);
        // Beyond the limit nothing is deleted, and the reply says 0.
        let topics = if self.operators.waiting.len() < WAITING_MAX { topics } else { Vec::new() };
        for topic in topics {
            self.delete_elsewhere(&topic);
            match self.delete_retained(topic, token) {
                Ok(()) => outstanding += 1,
                Err(count) => deleted += count,
            }
        }
        if outstanding == 0 {
            return reply(deleted);
        }
        self.operators.waiting.insert(Waiting::Deletion(Deletion { outstanding, deleted, reply }));
    }

    /// Sends the deletion of a retained message to the other nodes.
    fn delete_elsewhere(&mut self, topic: &str) {
        let stamp = self.node.stamp(self.clock.now());
        if stamp == 0 || retained::shard_of(topic) == retained::OWN_TOPICS || TopicName::parse(topic).is_err()
        {
            return;
        }
        let view = deletion(topic, self.clock.now());
        self.forward_retained(&view, (stamp, true), None);
    }

    /// Notes that one of the completions of an operator's request has come.
    pub(super) fn completed_for_operator(&mut self, key: u32, reason: ReasonCode) {
        let Some(waiting) = self.operators.waiting.get_mut(key as usize) else { return };
        let is_done = match waiting {
            Waiting::Publish(publish) => {
                publish.outstanding = publish.outstanding.saturating_sub(1);
                if reason.is_error() {
                    publish.reason = reason;
                }
                publish.outstanding == 0
            }
            Waiting::Deletion(deletion) => {
                deletion.outstanding -= 1;
                deletion.deleted += deleted(reason);
                deletion.outstanding == 0
            }
        };
        if !is_done {
            return;
        }
        match self.operators.waiting.remove(key as usize) {
            Waiting::Publish(Publish { reason, reply, .. }) => reply(reason),
            Waiting::Deletion(Deletion { deleted, reply, .. }) => reply(deleted),
        }
    }

    pub(super) fn subscribe_for_operator(
        &mut self,
        id: ConnectionId,
        subscription: &NewSubscription,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) {
        let Some((slot, ticket)) = self.operator_ticket(id, reply) else { return };
        let NewSubscription { filter, qos, no_local, retain_as_published, retain_handling, subscription_id } =
            subscription;
        let options = SubscriptionOptions {
            qos: *qos,
            no_local: *no_local,
            retain_as_published: *retain_as_published,
            retain_handling: *retain_handling,
        };
        let filters = std::iter::once((filter.as_str(), options));
        if let Err(reason) = self.subscribe_to(
            slot,
            (ticket, self.settings.routing.suback),
            filters,
            subscription_id.unwrap_or(0),
        ) {
            self.answer_operator(ticket, Some(reason.as_u8()));
        }
    }

    pub(super) fn unsubscribe_for_operator(
        &mut self,
        id: ConnectionId,
        filter: &str,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) {
        if let Some((slot, ticket)) = self.operator_ticket(id, reply) {
            self.unsubscribe_from(slot, ticket, std::iter::once(filter));
        }
    }

    fn operator_ticket(
        &mut self,
        id: ConnectionId,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    ) -> Option<(u32, Ticket)> {
        let open = self.connections.get(id.slot, id.generation).is_some_and(|it| it.phase == Phase::Open);
        if !open {
            reply(Err(ClientActionError::Gone));
            return None;
        }
        if self.operators.subscribing.len() >= WAITING_MAX {
            reply(Ok(ReasonCode::QuotaExceeded));
            return None;
        }
        Some((id.slot, Ticket::of_operator(self.operators.subscribing.insert((id, reply)))))
    }

    /// Sends the Reason Code of a SUBACK or UNSUBACK to the operator.
    pub(super) fn answer_operator(&mut self, ticket: Ticket, reason: Option<u8>) {
        let waiting = ticket.operator().and_then(|key| self.operators.subscribing.try_remove(key));
        if let Some((_, reply)) = waiting {
            let reason = reason.and_then(|code| ReasonCode::try_from(code).ok());
            reply(Ok(reason.unwrap_or(ReasonCode::UnspecifiedError)));
        }
    }

    /// Answers the operators that wait for a connection that has ended.
    pub(super) fn forget_operators(&mut self, id: ConnectionId) {
        if self.operators.subscribing.is_empty() {
            return;
        }
        let waiting = self.operators.subscribing.iter().filter(|(_, (of, _))| *of == id);
        for key in waiting.map(|(key, _)| key).collect::<Vec<_>>() {
            let (_, reply) = self.operators.subscribing.remove(key);
            reply(Err(ClientActionError::Gone));
        }
    }

    /// Closes a connection with `reason`, and ends its session if `end_session` is true. Returns false if the
    /// connection has already ended.
    pub(super) fn kick_connection(
        &mut self,
        id: ConnectionId,
        reason: ReasonCode,
        end_session: bool,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return false };
        if connection.phase == Phase::Closing {
            return false;
        }
        self.counters.kicked += 1;
        if !end_session || !connection.has_connack() {
            self.close_or_refuse(id.slot, reason);
            return true;
        }
        let mut properties = PropertiesBuf::default();
        if connection.marks.problem_information {
            properties.push(Property::ReasonString("session ended by an operator"));
        }
        let packet = Packet::Disconnect(Disconnect { reason, properties: properties.as_properties() });
        connection.put(&packet, &mut self.pool);
        if connection.version.has_properties() {
            self.monitor.packet_sent(self.clock.now(), connection, &packet);
            self.ready.mark_dirty(connection);
        }
        self.monitor.ended(self.clock.now(), connection, "session ended by an operator");
        self.end(id.slot, Some(0));
        true
    }

    /// Closes a connection, with CONNACK if its client has none yet [MQTT-3.2.0-2].
    pub(super) fn close_or_refuse(&mut self, slot: u32, reason: ReasonCode) {
        match self.connections.occupant_ref(slot) {
            Some(connection) if !connection.has_connack() => {
                let version = connection.version;
                self.refuse_connect(slot, version, reason);
            }
            Some(_) => self.close(slot, reason),
            None => {}
        }
    }

    /// Performs one step of closing all connections. Returns the slot at which the next step continues.
    pub(super) fn kick_all(&mut self, from: u32, reason: ReasonCode) -> Option<u32> {
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        for slot in from..until {
            let Some(connection) = self.connections.occupant(slot) else { continue };
            // A client that is about to be accepted is closed like a connected one.
            if !matches!(connection.phase, Phase::AwaitConnect | Phase::Closing) {
                let id = connection.id;
                self.kick_connection(id, reason, false);
            }
        }
        (until < self.connections.slots()).then_some(until)
    }
}
