//! Records of a worker for operators: packets, busiest and slowest clients, watched topics, traces, events and spans.
//! While nobody observes anything, a message costs one check of each.

use std::sync::Arc;

use mqtt::{Packet, PacketId, PacketType, Publish};

use super::events::{Event, Events};
use super::spans::Spans;
use super::trace::TracedPublish;
use super::watched::WatchedTopics;
use crate::admin::{Direction, Sampler, SlowTable, Tracing, Watch};
use crate::connection::Connection;
use crate::counters::PacketCounters;
use crate::ids::{Time, WorkerId};
use crate::message::MessageView;
use crate::settings;

/// Records of one worker for operators. It changes nothing that clients notice.
pub(super) struct Monitor {
    pub(super) worker: WorkerId,
    pub packets: PacketCounters,
    pub sampler: Sampler,
    pub slow: SlowTable,
    pub events: Events,
    /// Observers of single messages: some of [`MESSAGES`], [`TRACED`], [`SPANS`] and [`ACKS`].
    observers: u8,
    watched: WatchedTopics,
    pub(super) tracing: Option<Box<Tracing>>,
    pub(super) spans: Option<Box<Spans>>,
}

/// Someone observes all messages, so that they go the general way.
const MESSAGES: u8 = 1;
/// A trace runs.
const TRACED: u8 = 1 << 1;
/// Spans are recorded of messages that ask for them.
const SPANS: u8 = 1 << 2;
/// A traced message is not acknowledged yet.
const ACKS: u8 = 1 << 3;

impl Monitor {
    pub fn new(worker: WorkerId, events: Events, spans: Option<Box<Spans>>) -> Self {
        Self {
            worker,
            packets: PacketCounters::default(),
            sampler: Sampler::default(),
            slow: SlowTable::default(),
            events,
            observers: if spans.is_some() { SPANS } else { 0 },
            watched: WatchedTopics::default(),
            tracing: None,
            spans,
        }
    }

    pub fn set_watches(&mut self, list: Arc<[Arc<Watch>]>) {
        self.watched.set(list);
        self.note_observers();
    }

    pub fn set_traces(&mut self, tracing: Option<Box<Tracing>>) {
        self.tracing = tracing;
        self.note_observers();
    }

    /// Notes whether someone observes single messages, after a change of what is observed.
    pub fn note_observers(&mut self) {
        let observes_all = self.is_traced() || self.watched.is_used() || self.events.observes_messages();
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let awaits_acks = self.spans.as_ref().is_some_and(|spans| spans.awaits_acks());
        self.observers = bit(observes_all, MESSAGES)
            | bit(self.is_traced(), TRACED)
            | bit(self.spans.is_some(), SPANS)
            | bit(awaits_acks, ACKS);
    }

    /// Returns whether an operator or an event observes all messages.
    #[inline]
    pub fn is_observed(&self) -> bool {
        self.observers & MESSAGES != 0
    }

    /// Returns whether this message is observed.
    #[inline]
    pub fn observes(&self, view: &MessageView<'_>) -> bool {
        self.observers != 0 && (self.is_observed() || view.span != 0)
    }

    /// Returns whether a message may ask for spans.
    #[inline]
    pub fn records_spans(&self, view: &MessageView<'_>) -> bool {
        self.observers & SPANS != 0 && !view.properties.is_empty()
    }

    /// Returns whether acknowledgements to publishers are observed.
    #[inline]
    pub fn observes_acks(&self) -> bool {
        self.observers & (TRACED | ACKS) != 0
    }

    /// Returns whether a traced message is not acknowledged yet.
    #[inline]
    pub fn awaits_acks(&self) -> bool {
        self.observers & ACKS != 0
    }

    /// Records a PUBLISH to a client while nobody observes single messages.
    #[inline]
    pub fn sent_unobserved(&mut self, client_id: &Arc<str>, size: usize) {
        self.packets.sent(PacketType::Publish);
        self.sampler.sent(client_id, size);
    }

    /// Records a message that a client publishes. `size` is that of the packet.
    pub fn published(
        &mut self,
        now: Time,
        connection: &Connection,
        view: &MessageView<'_>,
        publish: &Publish<'_>,
        size: usize,
    ) {
        self.sampler.received(&connection.client_id, view.topic, size);
        self.watched.received(self.worker, view.topic, publish.qos, publish.payload.len());
        if self.is_traced() {
            let packet_id = publish.packet_id.map(PacketId::get);
            let traced_publish = TracedPublish { dup: publish.dup, packet_id, ..TracedPublish::of(view) };
            self.trace_publish(now, connection, Direction::In, &traced_publish);
        }
    }

    /// Records a message that an operator publishes.
    pub fn published_by_operator(&mut self, now: Time, view: &MessageView<'_>) {
        self.forwarded(view);
        if self.is_traced() {
            self.trace_operator(now, view);
        }
    }

    /// Records a message from another node.
    pub fn forwarded(&mut self, view: &MessageView<'_>) {
        self.watched.received(self.worker, view.topic, view.qos, view.payload.len());
    }

    /// Records a PUBLISH to a client. `size` is that of the packet.
    #[inline]
    pub fn sent(
        &mut self,
        now: Time,
        connection: &Connection,
        (view, publish): (&MessageView<'_>, &TracedPublish<'_>),
        size: usize,
    ) {
        self.sent_unobserved(&connection.client_id, size);
        self.watched.sent(self.worker, publish.topic, publish.qos, publish.payload.len());
        if self.observers & (TRACED | SPANS) != 0 {
            self.sent_observed(now, connection, view, publish);
        }
    }

    #[cold]
    fn sent_observed(
        &mut self,
        now: Time,
        connection: &Connection,
        view: &MessageView<'_>,
        publish: &TracedPublish<'_>,
    ) {
        if self.is_traced() {
            self.trace_publish(now, connection, Direction::Out, publish);
        }
        let is_stored = connection.session.is_some() && publish.packet_id.is_some();
        self.span_delivered(now, connection, view, is_stored);
    }

    /// Records a packet other than PUBLISH to a client.
    #[inline]
    pub fn packet_sent(&mut self, now: Time, connection: &Connection, packet: &Packet<'_>) {
        self.packets.sent(packet.packet_type());
        if self.is_traced() {
            self.trace_packet_out(now, connection, packet);
        }
    }

    /// Records a message that a client does not get.
    #[cold]
    pub fn dropped(&mut self, now: Time, connection: &Connection, view: &MessageView<'_>, why: &str) {
        self.watched.dropped(self.worker, view.topic);
        if self.is_traced() {
            self.trace_dropped(now, connection, view, why);
        }
        if self.events.is_selected(Event::DeliveryDropped) {
            self.events.delivery_dropped(now, connection, view, why);
        }
    }

    /// Records the end of a connection.
    pub fn ended(&mut self, now: Time, connection: &Connection, why: &str) {
        if self.is_traced() {
            self.trace_end(now, connection, why);
        }
    }

    /// Records the client as slow if an earlier delivery has waited too long, because a message could not be sent at
    /// once.
    pub fn note_slow(&mut self, now: Time, connection: &mut Connection, settings: &settings::Monitor) {
        let Some(flow) = connection.flow.as_mut().filter(|flow| flow.probe.packet_id.is_some()) else {
            return;
        };
        let latency = now.since(flow.probe.since);
        if latency >= settings.slow_threshold && flow.probe.report_after < now {
            // One record a second is enough while the delivery waits.
            flow.probe.report_after = Time(now.0 + 1000);
            let max = settings.slow_max as usize;
            self.slow.record(&connection.client_id, &flow.probe.topic, latency, false, now, max);
        }
    }

    /// Records the latency of an acknowledged delivery if it is the measured one.
    pub fn settle_probe(
        &mut self,
        now: Time,
        connection: &mut Connection,
        packet_id: PacketId,
        settings: &settings::Monitor,
    ) {
        let Some(flow) = connection.flow.as_mut() else { return };
        if flow.probe.packet_id != Some(packet_id) {
            return;
        }
        flow.probe.packet_id = None;
        let latency = now.since(flow.probe.since);
        if latency >= settings.slow_threshold {
            let max = settings.slow_max as usize;
            self.slow.record(&connection.client_id, &flow.probe.topic, latency, true, now, max);
        }
    }
}
