//! The consumer of an action: from the messages of its session to batches, and from their results to acknowledgements.

mod given_up;
mod outgoing;
mod outputs;
mod session;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bridge::{Client, CloseReason, Event, Time, VIA};
use mqtt::{
    Packet, PacketId, PacketType, Publish, QoS, ReasonCode, RetainHandling, SubscriptionOptions,
    put_short_ack,
};
use random::Random;
use sinks::Order;

use self::outgoing::{BrokerLimits, Finished, Outbound, Purpose};
use self::outputs::size;
use self::session::selects;
pub use self::session::{brief_connect, client_id, filters};
use crate::counters::Counters;
use crate::incoming::Incoming;
use crate::lane::{Batch, BatchLimits, Failures, Item, Lane, Outcome, Sequence, Written};
use crate::plan::{Made, Output, Plan};

/// Point in time by two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    pub time: Time,
    /// Time since 1970.
    pub wall: Duration,
}

/// Handles the messages of an action without I/O, clocks or threads.
///
/// **Invariant:** a message is acknowledged when all its outputs are written, or were given up. Acknowledgements leave
/// in the order of the messages.
///
/// **Invariant:** records of one lane are in the order of their messages, and at most one batch of a lane is being
/// written.
pub struct Consumer {
    plan: Arc<Plan>,
    /// Name of the action in the hops of messages.
    hop: String,
    random: Random,
    client: Option<Client>,
    /// Subscriptions that the session has.
    subscribed: Vec<String>,
    /// Subscriptions that were granted on this connection.
    granted: Vec<String>,
    /// Number of the connection.
    epoch: u64,
    /// Messages that are not acknowledged, in the order of arrival. The first one has the number `first`.
    pending: VecDeque<Pending>,
    first: Sequence,
    /// Bytes of the messages, records and dead letters that are not complete.
    bytes: usize,
    /// Messages without outputs, because too much is in memory, in the order of arrival.
    deferred: VecDeque<Sequence>,
    /// Bytes of the deferred messages.
    deferred_bytes: usize,
    lanes: Vec<Lane>,
    next_lane: usize,
    limits: BatchLimits,
    outbound: Outbound,
    counters: Counters,
    last_error: Option<String>,
    is_stopping: bool,
    /// Time since 1970 of the last input.
    wall: Duration,
}

/// A message that is not acknowledged.
#[derive(Debug)]
struct Pending {
    /// `None` with QoS 0.
    packet_id: Option<PacketId>,
    /// Number of outputs that are not complete. A message whose outputs are not made counts as one.
    open: usize,
    /// Bytes of the message, its records and its dead letters.
    bytes: usize,
    /// The message, in case it has to be given up.
    message: Option<Box<Incoming>>,
    /// The first output that failed, with the reason.
    failure: Option<Failure>,
    /// True when the dead letter was sent, or none is needed.
    is_settled: bool,
}

/// Reason why a message was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Short name.
    pub reason: &'static str,
    pub text: String,
}

impl Consumer {
    /// Creates a consumer. `own_id` is the name of this node or cluster in the hops of messages, and `subscribed` the
    /// filters that the session has from earlier settings.
    pub fn new(plan: Arc<Plan>, own_id: &str, subscribed: Vec<String>, seed: u64) -> Self {
        let settings = &plan.settings;
        let lanes = match plan.output {
            Output::Publish(_) => 0,
            Output::Write(_) => usize::from(settings.connections),
        };
        let limits = BatchLimits {
            records_max: settings.batch_max as usize,
            bytes_max: settings.batch_bytes_max.bytes() as usize,
            wait: settings.batch_wait,
        };
        Self {
            hop: format!("{own_id}/{}", settings.name),
            random: Random::new(seed),
            client: None,
            subscribed,
            granted: Vec::new(),
            epoch: 0,
            pending: VecDeque::new(),
            first: 0,
            bytes: 0,
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            lanes: std::iter::repeat_with(Lane::default).take(lanes).collect(),
            next_lane: 0,
            limits,
            outbound: Outbound::new(plan.settings.retry_min, plan.settings.retry_max),
            counters: Counters::default(),
            last_error: None,
            is_stopping: false,
            wall: Duration::ZERO,
            plan,
        }
    }

    /// Continues with the counters of an earlier consumer.
    #[must_use]
    pub fn with_counters(self, counters: Counters) -> Self {
        Self { counters, ..self }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Number of messages that are not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// The last message that was given up or could not be read, for people.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Number of the connection to the broker.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Starts with a new connection. What was not acknowledged comes again.
    ///
    /// # Errors
    /// The settings do not fit into a CONNECT.
    pub fn opened(&mut self, now: Now) -> Result<(), CloseReason> {
        self.forget();
        let options = self.connect_options();
        self.client = Some(Client::new(now.time, &options)?);
        Ok(())
    }

    /// Forgets the connection and everything that came on it.
    pub fn forget(&mut self) {
        self.client = None;
        self.granted.clear();
        self.epoch += 1;
        self.pending.clear();
        self.lanes.iter_mut().for_each(Lane::clear);
        self.outbound.forget();
        self.deferred.clear();
        (self.bytes, self.deferred_bytes) = (0, 0);
    }

    /// True when no batch is being written.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| !lane.is_busy())
    }

    /// True when no message is being published.
    pub fn has_published_all(&self) -> bool {
        self.outbound.open() == 0
    }

    /// Returns whether the caller should read from the broker. Unread messages stay in the session. While messages are
    /// being published the answers of the broker must be read. Messages between them are deferred.
    pub fn wants_read(&self) -> bool {
        self.bytes < BYTES_MAX || self.outbound.open() > 0
    }

    /// True when so much is in memory that no further outputs are made.
    fn is_full(&self) -> bool {
        self.bytes - self.deferred_bytes >= BYTES_MAX
    }

    /// Time since which this broker refuses messages for a reason that may pass, and the reason.
    pub fn failing(&self) -> Option<&(Time, String)> {
        self.outbound.failing()
    }

    /// Bytes to send to the broker.
    pub fn outgoing(&self) -> &[u8] {
        self.client.as_ref().map_or(&[], |client| client.unsent().bytes())
    }

    /// Notes that bytes were sent.
    pub fn sent(&mut self, count: usize) {
        if let Some(client) = &mut self.client {
            client.unsent_mut().consume(count);
        }
    }

    /// Handles bytes from the broker.
    ///
    /// # Errors
    /// The broker has ended the connection.
    pub fn receive(&mut self, now: Now, bytes: &[u8]) -> Result<(), CloseReason> {
        self.wall = now.wall;
        let Some(mut client) = self.client.take() else { return Ok(()) };
        client.receive(now.time, bytes);
        let handled = self.handle_all(now, &mut client);
        self.client = Some(client);
        self.acknowledge();
        handled
    }

    fn handle_all(&mut self, now: Now, client: &mut Client) -> Result<(), CloseReason> {
        loop {
            let Some((event, out)) = client.poll(now.time)? else { return Ok(()) };
            match event {
                Event::Connected => self.connected(now, client),
                Event::Packet(Packet::Publish(publish)) => self.publish(now, &publish, out.buffer()),
                Event::Packet(Packet::PubAck(ack) | Packet::PubComp(ack)) => {
                    let finished =
                        self.outbound.acknowledged(now.time, ack.packet_id, ack.reason, out.buffer());
                    self.published(finished);
                }
                Event::Packet(Packet::PubRec(ack)) => {
                    let finished = self.outbound.received(now.time, ack.packet_id, ack.reason, out.buffer());
                    self.published(finished);
                }
                Event::Subscribed(answers) => self.subscribed(answers),
                Event::Unsubscribed(ended) => {
                    self.subscribed.retain(|known| ended.iter().all(|(filter, _)| filter != known));
                }
                Event::Packet(_) | Event::TooLarge(..) => {}
            }
        }
    }

    /// Subscribes the sources of the rule, and ends subscriptions of earlier settings.
    fn connected(&mut self, now: Now, client: &mut Client) {
        let limits = client.limits();
        if limits.is_some_and(|limits| !limits.session_present) {
            self.subscribed.clear();
        }
        self.outbound.connected(limits.map_or_else(BrokerLimits::default, |limits| BrokerLimits {
            receive_maximum: limits.receive_maximum,
            maximum_qos: limits.maximum_qos,
            retain_available: limits.retain_available,
            packet_size_max: limits.packet_size_max,
        }));
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
            ..SubscriptionOptions::default()
        };
        let wanted = filters(&self.plan);
        let new: Vec<_> = wanted.iter().map(|filter| (filter.clone(), options)).collect();
        let gone: Vec<_> =
            self.subscribed.iter().filter(|filter| !wanted.contains(filter)).cloned().collect();
        if !new.is_empty() {
            client.subscribe(now.time, &new);
        }
        if !gone.is_empty() {
            client.unsubscribe(now.time, &gone);
        }
    }

    fn subscribed(&mut self, answers: Vec<(String, ReasonCode)>) {
        for (filter, reason) in answers {
            if reason.is_error() {
                self.last_error =
                    Some(format!("the broker refused the subscription to `{filter}`: {reason}"));
                continue;
            }
            if !self.subscribed.contains(&filter) {
                self.subscribed.push(filter.clone());
            }
            self.granted.push(filter);
        }
    }

    fn publish(&mut self, now: Now, publish: &Publish<'_>, out: &mut Vec<u8>) {
        self.counters.received += 1;
        let is_stored = publish.packet_id.is_some();
        let has_room =
            self.pending.len() < usize::from(self.plan.settings.in_flight) && self.bytes < BYTES_MAX;
        if !is_stored && !has_room {
            self.counters.dropped_qos0 += 1;
            return;
        }
        let plan = self.plan.clone();
        let passed_on = format!("{}/", client_id(&plan.settings.name));
        let of_broker = publish.topic.strip_prefix(&passed_on).unwrap_or(publish.topic);
        let sequence = self.first + self.pending.len() as u64;
        self.pending.push_back(Pending {
            packet_id: publish.packet_id,
            open: 0,
            bytes: 0,
            message: None,
            failure: None,
            is_settled: false,
        });
        // A filter of another rule's fallback, or one that has just ended, may have led here. So may one of an earlier
        // action with this name, which belonged to another tenant.
        let seen = plan.namespace.seen(of_broker);
        let selected = seen.filter(|topic| plan.rule.sources().iter().any(|source| selects(source, topic)));
        let Some(topic) = selected else {
            self.counters.not_selected += 1;
            return;
        };
        let now_ms = u64::try_from(now.wall.as_millis()).unwrap_or(u64::MAX);
        let message = Box::new(Incoming::of(publish, of_broker, now_ms).within(&plan.namespace, topic));
        let bytes = message.size();
        let Some(pending) = self.pending.back_mut() else { return };
        (pending.open, pending.bytes, pending.message) = (1, bytes, Some(message));
        self.bytes += bytes;
        self.deferred.push_back(sequence);
        self.deferred_bytes += bytes;
        self.make_deferred(now, out);
    }

    /// Makes outputs of deferred messages, as far as the memory allows.
    fn make_deferred(&mut self, now: Now, out: &mut Vec<u8>) {
        while !self.is_stopping && !self.is_full() {
            let Some(sequence) = self.deferred.pop_front() else { return };
            let at = (sequence - self.first) as usize;
            let Some(pending) = self.pending.get_mut(at) else { continue };
            self.deferred_bytes -= pending.bytes;
            let Some(message) = pending.message.take() else { continue };
            self.make_outputs(now, sequence, message, out);
        }
    }

    /// Evaluates the rule for a message, and passes its outputs on.
    fn make_outputs(&mut self, now: Now, sequence: Sequence, message: Box<Incoming>, out: &mut Vec<u8>) {
        let plan = self.plan.clone();
        let made = self.make(now, &plan, &message);
        let Some(pending) = self.pending.get_mut((sequence - self.first) as usize) else { return };
        pending.open -= 1;
        if made.as_ref().is_ok_and(Vec::is_empty) {
            self.bytes -= std::mem::take(&mut pending.bytes);
            return;
        }
        let made_bytes: usize = made.iter().flatten().map(size).sum();
        pending.bytes += made_bytes;
        self.bytes += made_bytes;
        pending.message = Some(message);
        match made {
            Ok(all) => all.into_iter().for_each(|made| self.pass(now, sequence, made, out)),
            Err(failure) => self.fail(sequence, failure),
        }
        self.settle(sequence, out);
    }

    /// Puts a record into its lane, or publishes a message.
    fn pass(&mut self, now: Now, sequence: Sequence, made: Made, out: &mut Vec<u8>) {
        let at = (sequence - self.first) as usize;
        let lane = self.lane_of(at);
        let hops = self.pending.get(at).and_then(|pending| pending.message.as_deref());
        let hops = hops.map_or_else(Vec::new, hops_of);
        match made {
            Made::Record(record) => {
                let Some(pending) = self.pending.get_mut(at) else { return };
                pending.open += 1;
                let received_ms = pending.message.as_deref().map_or(0, |message| message.origin.received_ms);
                let failures = Failures::default();
                self.lanes[lane].push(now.time, Item { sequence, record, received_ms, failures });
            }
            Made::Message(message) => {
                let hops_max = usize::from(self.plan.settings.hops_max);
                if hops.contains(&self.hop) || hops.len() >= hops_max {
                    self.counters.loops += 1;
                    return;
                }
                if let Some(pending) = self.pending.get_mut(at) {
                    pending.open += 1;
                }
                let mut properties: Vec<(&str, &str)> = hops.iter().map(|hop| (VIA, &**hop)).collect();
                properties.push((VIA, &self.hop));
                properties.extend(message.user_properties.iter().map(|(name, value)| (&**name, &**value)));
                let packet = outgoing::Message {
                    topic: &message.topic,
                    payload: &message.payload,
                    qos: message.qos,
                    retain: message.retain,
                    user_properties: &properties,
                    passed_on: None,
                };
                let finished = self.outbound.publish(sequence, Purpose::Output, &packet, out);
                self.published(finished);
            }
        }
    }

    /// Chooses the lane of a message.
    fn lane_of(&mut self, at: usize) -> usize {
        let count = self.lanes.len();
        if count < 2 {
            return 0;
        }
        let message = self.pending.get(at).and_then(|pending| pending.message.as_deref());
        let key = match (self.plan.settings.order, message) {
            (Order::Topic, Some(message)) => message.topic.as_bytes(),
            (Order::Client, Some(message)) => message.origin.client_id.as_bytes(),
            (Order::None, _) | (_, None) => {
                self.next_lane = (self.next_lane + 1) % count;
                return self.next_lane;
            }
        };
        (shard::fnv64(key) % count as u64) as usize
    }

    /// Notes that an output of a message cannot be made or written.
    fn fail(&mut self, sequence: Sequence, failure: Failure) {
        self.last_error = Some(failure.text.clone());
        let at = sequence.checked_sub(self.first).map(|at| at as usize);
        if let Some(pending) = at.and_then(|at| self.pending.get_mut(at)) {
            pending.failure.get_or_insert(failure);
        }
    }

    /// Handles published messages that are complete.
    fn published(&mut self, finished: impl IntoIterator<Item = Finished>) {
        for Finished { sequence, purpose, bytes, refused } in finished {
            match (purpose, refused) {
                (Purpose::Output, None) => {
                    self.counters.written += 1;
                    self.counters.bytes += bytes as u64;
                    self.counters.last_write = Some(self.wall);
                }
                (Purpose::DeadLetter, None) => self.counters.dead_letters += 1,
                (Purpose::Fallback, None) => self.counters.fallbacks += 1,
                (Purpose::Output, Some(text)) => {
                    self.counters.refused += 1;
                    self.fail(sequence, Failure { reason: "refused", text });
                }
                (Purpose::DeadLetter | Purpose::Fallback, Some(text)) => {
                    self.counters.dropped += 1;
                    self.last_error = Some(text);
                }
            }
            self.completed(sequence);
        }
    }

    fn completed(&mut self, sequence: Sequence) {
        let at = sequence.checked_sub(self.first).map(|at| at as usize);
        if let Some(pending) = at.and_then(|at| self.pending.get_mut(at)) {
            pending.open = pending.open.saturating_sub(1);
        }
    }

    /// Handles the results of a batch, in the order of its records. Those of an earlier connection have no effect on
    /// messages, which came again. `again` are the records that are to be written again;
    /// `None` when the batch is not complete.
    pub fn written(&mut self, lane: usize, epoch: u64, results: Vec<Written>, again: Option<Vec<Item>>) {
        if let Some((lane, again)) = self.lanes.get_mut(lane).zip(again) {
            lane.finished();
            if epoch == self.epoch {
                lane.take_back(again);
            }
        }
        let is_confirmed = results.iter().any(|result| result.outcome == Outcome::Written);
        self.counters.batches += u64::from(is_confirmed);
        let mut settled = Vec::new();
        for Written { sequence, bytes, outcome } in results {
            let failure = match outcome {
                Outcome::Written => {
                    self.counters.written += 1;
                    self.counters.bytes += bytes as u64;
                    None
                }
                Outcome::Refused(text) => {
                    self.counters.refused += 1;
                    Some(Failure { reason: "refused", text })
                }
                Outcome::Expired(text) => {
                    self.counters.expired += 1;
                    Some(Failure { reason: "expired", text })
                }
                Outcome::GivenUp(text) => {
                    self.counters.given_up += 1;
                    Some(Failure { reason: "failed", text })
                }
                Outcome::Abandoned => continue,
            };
            if epoch != self.epoch {
                continue;
            }
            if let Some(failure) = failure {
                self.fail(sequence, failure);
            }
            self.completed(sequence);
            settled.push(sequence);
        }
        let Some(mut client) = self.client.take() else { return };
        settled.dedup();
        for sequence in settled {
            self.settle(sequence, client.unsent_mut().buffer());
        }
        self.client = Some(client);
        self.acknowledge();
    }

    /// Acknowledges the messages that are complete, from the first one on.
    fn acknowledge(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        while let Some(pending) = self.pending.front() {
            if pending.open > 0 {
                break;
            }
            if !pending.is_settled && pending.failure.is_some() {
                self.settle(self.first, client.unsent_mut().buffer());
                continue;
            }
            if let Some(id) = pending.packet_id {
                put_short_ack(PacketType::PubAck, id, client.unsent_mut().buffer());
            }
            self.bytes = self.bytes.saturating_sub(pending.bytes);
            self.pending.pop_front();
            self.first += 1;
        }
        self.client = Some(client);
    }

    /// Publishes again what the broker has refused, when it is due. Makes outputs of deferred messages.
    pub fn handle_timeout(&mut self, now: Now) {
        self.wall = now.wall;
        if let Some(mut client) = self.client.take() {
            let out = client.unsent_mut().buffer();
            self.outbound.handle_timeout(now.time, out);
            self.make_deferred(now, out);
            self.client = Some(client);
            self.acknowledge();
        }
        self.counters.retries += std::mem::take(&mut self.outbound.retries);
    }

    /// Takes the next batch that is due, with the number of its lane.
    pub fn poll_batch(&mut self, now: Now) -> Option<(usize, Batch)> {
        if self.is_stopping {
            return None;
        }
        let (limits, epoch) = (self.limits, self.epoch);
        let mut lanes = self.lanes.iter_mut().enumerate();
        lanes.find_map(|(at, lane)| Some((at, Batch { items: lane.take(now.time, &limits)?, epoch })))
    }

    /// Time at which [`Self::poll_batch`] may have a batch, or [`Self::handle_timeout`] must be called.
    pub fn timeout(&self) -> Option<Time> {
        let due = self.lanes.iter().filter_map(|lane| lane.due(&self.limits));
        let can_make = !self.deferred.is_empty() && !self.is_full();
        let due = due.chain(can_make.then_some(Time::default()));
        due.filter(|_| !self.is_stopping).chain(self.outbound.timeout()).min()
    }

    /// Starts no further batch.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Closes the connection in an orderly way.
    pub fn disconnect(&mut self) {
        if let Some(client) = &mut self.client {
            client.disconnect(ReasonCode::Success);
        }
    }

    /// True once the broker has granted all subscriptions.
    pub fn is_subscribed(&self) -> bool {
        self.has_answers() && filters(&self.plan).iter().all(|filter| self.granted.contains(filter))
    }

    /// True when the broker has refused a subscription.
    pub fn is_refused(&self) -> bool {
        self.has_answers() && !self.is_subscribed()
    }

    fn has_answers(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.limits().is_some() && client.requests_open() == 0)
    }
}

fn hops_of(message: &Incoming) -> Vec<String> {
    let users = message.properties();
    users.user_properties().filter(|(name, _)| *name == VIA).map(|(_, hop)| hop.to_owned()).collect()
}

/// Bytes of messages and records at which an action makes no further records, and reads no further messages.
const BYTES_MAX: usize = 32 << 20;

#[cfg(test)]
mod tests;
