//! Spans of traced messages ([`crate::spans`]): what this worker did with messages whose publishers ask for that.
//!
//! A message is traced if its trace context is sampled, and the rate has room for it. It then has a number, its
//! [`MessageView::span`](crate::message::MessageView::span), for as long as it is in this process. A message that comes
//! from the log has none: its delivery is traced by its properties alone.
//!
//! **Invariant:** a message without properties costs nothing here, and any other one a test of a bit while the node
//! records no spans.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex};

use mqtt::{PacketId, QoS, ReasonCode};
use siphasher::sip::SipHasher13;

use super::monitor::Monitor;
use crate::connection::Connection;
use crate::ids::{ConnectionId, Time, WorkerId};
use crate::message::MessageView;
use crate::route::{Route, RouteKind};
use crate::spans::{Receivers, Span, SpanBuffer, SpanQueues, SpanTexts, Stage, try_lock};
use crate::traceparent::TraceContext;

/// Maximum number of traced messages whose acknowledgements have not been sent.
const UNACKNOWLEDGED_MAX: usize = 4096;
/// Number of contexts whose admission is remembered, for messages that come from the log for several sessions.
const RECENT: usize = 8;

/// Spans of one worker.
pub(super) struct Spans {
    queues: Arc<SpanQueues>,
    queue: Arc<Mutex<SpanBuffer>>,
    own: SpanBuffer,
    /// Number of the last span.
    last: u32,
    /// First number after the last one.
    end: u32,
    /// Second of the node's time, and the number of messages that were traced in it.
    second: u64,
    spent: u32,
    /// Contexts of messages from the log, and whether they are traced, in the current second.
    recent: [Option<RecentContext>; RECENT],
    recent_at: usize,
    unacknowledged: BTreeMap<(u32, u32, u16), Unacknowledged>,
}

/// Trace id and parent id of a message from the log, and whether it is traced.
type RecentContext = ([u8; 16], [u8; 8], bool);

/// A traced message whose acknowledgement has not been sent.
struct Unacknowledged {
    span: Span,
    topic: Box<str>,
    state: Box<str>,
}

/// A span that has not ended: its index in the buffer, if it was not dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenSpan(Option<usize>);

impl Spans {
    pub fn new(queues: Arc<SpanQueues>, worker: WorkerId) -> Box<Self> {
        // Spans of one message have different numbers on all workers.
        let first = u32::from(worker.0) << NUMBER_BITS;
        Box::new(Self {
            queue: queues.join(),
            own: queues.buffer(),
            queues,
            last: first,
            end: first.saturating_add(1 << NUMBER_BITS),
            second: 0,
            spent: 0,
            recent: [None; RECENT],
            recent_at: 0,
            unacknowledged: BTreeMap::new(),
        })
    }

    pub fn awaits_acks(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Passes the spans on, if those before have been taken.
    pub fn flush(&mut self) {
        if self.own.is_empty() {
            return;
        }
        if let Some(mut queue) = try_lock(&self.queue)
            && queue.is_empty()
        {
            std::mem::swap(&mut *queue, &mut self.own);
        }
    }

    /// Returns whether one more message may be traced.
    fn admit(&mut self, now: Time) -> bool {
        let second = now.0 / 1000;
        if second != self.second {
            (self.second, self.spent, self.recent) = (second, 0, [None; RECENT]);
        }
        if self.spent >= self.queues.limits.messages_per_second {
            SpanQueues::count(&self.queues.counters.untraced);
            return false;
        }
        self.spent += 1;
        true
    }

    /// Returns whether a message from the log is traced. All its deliveries count as one.
    fn admit_again(&mut self, now: Time, context: &TraceContext<'_>) -> bool {
        let TraceContext { trace_id, parent_id, .. } = *context;
        let is_same = |it: &([u8; 16], [u8; 8], bool)| (it.0, it.1) == (trace_id, parent_id);
        if self.second == now.0 / 1000
            && let Some((.., is_traced)) = self.recent.iter().flatten().find(|recent| is_same(recent))
        {
            return *is_traced;
        }
        let is_traced = self.admit(now);
        self.recent[self.recent_at % RECENT] = Some((trace_id, parent_id, is_traced));
        self.recent_at += 1;
        is_traced
    }

    fn next_number(&mut self) -> u32 {
        self.last += 1;
        if self.last >= self.end {
            self.last = self.end - (1 << NUMBER_BITS) + 1;
        }
        self.last
    }

    /// Id of the span with a number. No client can choose it.
    fn id(&self, context: &TraceContext<'_>, number: u32) -> [u8; 8] {
        let mut hasher = SipHasher13::new_with_key(&self.queues.key);
        hasher.write(&context.trace_id);
        hasher.write(&context.parent_id);
        hasher.write_u32(number);
        hasher.finish().max(1).to_be_bytes()
    }

    /// Begins the first span of a message on this node. Returns the number of the message, or 0 if it is not traced.
    fn begin(&mut self, now: Time, view: &MessageView<'_>, stage: Stage, client_id: &str) -> (u32, OpenSpan) {
        let untraced = (0, OpenSpan::default());
        let Some(context) = TraceContext::of(view).filter(|context| context.is_sampled) else {
            return untraced;
        };
        if !self.admit(now) {
            return untraced;
        }
        // Indexes are those of one message only.
        self.flush();
        let number = self.next_number();
        let (span_id, parent_id) = (self.id(&context, number), context.parent_id);
        let span = self.span(view, &context, stage, (span_id, parent_id));
        (number, self.push(Span { is_parent_remote: true, ..span }, view.topic, client_id, context.state))
    }

    /// Begins a span of a message that is traced. Its parent is the first span of the message on this node.
    fn begin_child(&mut self, view: &MessageView<'_>, stage: Stage, client_id: &str) -> OpenSpan {
        if self.is_full() {
            return OpenSpan::default();
        }
        let Some((span, context)) = self.child(view, stage) else { return OpenSpan::default() };
        self.push(span, view.topic, client_id, context.state)
    }

    /// Returns whether there is no room for a span, which then counts as dropped. Nothing else is done for it.
    fn is_full(&self) -> bool {
        let is_full = self.own.is_full();
        if is_full {
            SpanQueues::count(&self.queues.counters.dropped);
        }
        is_full
    }

    fn child<'a>(&mut self, view: &MessageView<'a>, stage: Stage) -> Option<(Span, TraceContext<'a>)> {
        let context = TraceContext::of(view)?;
        let number = self.next_number();
        let ids = (self.id(&context, number), self.id(&context, view.span));
        Some((self.span(view, &context, stage, ids), context))
    }

    fn span(
        &self,
        view: &MessageView<'_>,
        context: &TraceContext<'_>,
        stage: Stage,
        (span_id, parent_id): ([u8; 8], [u8; 8]),
    ) -> Span {
        let now_ns = self.queues.now_ns();
        Span {
            stage,
            trace_id: context.trace_id,
            span_id,
            parent_id,
            is_parent_remote: false,
            start_ns: now_ns,
            end_ns: now_ns,
            qos: view.qos,
            payload_len: u32::try_from(view.payload.len()).unwrap_or(u32::MAX),
        }
    }

    fn push(&mut self, span: Span, topic: &str, client_id: &str, state: &str) -> OpenSpan {
        let pushed = self.own.push(span, SpanTexts { topic, client_id, state });
        if pushed.is_none() {
            SpanQueues::count(&self.queues.counters.dropped);
        }
        OpenSpan(pushed)
    }

    fn end(&mut self, OpenSpan(index): OpenSpan) {
        if let Some(index) = index {
            self.own.end(index, self.queues.now_ns());
        }
    }

    /// Notes that a traced message has to be acknowledged.
    fn await_ack(
        &mut self,
        ConnectionId { slot, generation, .. }: ConnectionId,
        id: PacketId,
        view: &MessageView<'_>,
    ) {
        if self.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return SpanQueues::count(&self.queues.counters.dropped);
        }
        let stage = Stage::Acknowledge { reason: ReasonCode::Success };
        let Some((span, context)) = self.child(view, stage) else { return };
        let state = context.state.into();
        let topic = view.topic[..view.topic.floor_char_boundary(crate::spans::TEXT_MAX)].into();
        self.unacknowledged.insert((slot, generation, id.get()), Unacknowledged { span, topic, state });
    }

    fn acknowledged(&mut self, connection: &Connection, packet_id: PacketId, reason: ReasonCode) {
        let ConnectionId { slot, generation, .. } = connection.id;
        let Some(awaited) = self.unacknowledged.remove(&(slot, generation, packet_id.get())) else { return };
        let Unacknowledged { span, topic, state } = awaited;
        let end_ns = self.queues.now_ns().max(span.start_ns);
        let span = Span { stage: Stage::Acknowledge { reason }, end_ns, ..span };
        self.push(span, &topic, &connection.client_id, &state);
    }

    fn connection_ended(&mut self, ConnectionId { slot, generation, .. }: ConnectionId) {
        let range = (slot, generation, 0)..=(slot, generation, u16::MAX);
        let keys: Vec<_> = self.unacknowledged.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.unacknowledged.remove(&key);
        }
    }

    /// Records that a message was written to a subscriber. `is_stored`: it may come from the log.
    fn delivered(&mut self, now: Time, connection: &Connection, view: &MessageView<'_>, is_stored: bool) {
        // A retained message is delivered to new subscribers for ever. They have no part in its trace.
        if view.span == 0 && (!is_stored || view.retain) {
            return;
        }
        let span = if view.span != 0 {
            if self.is_full() {
                return;
            }
            self.child(view, Stage::Deliver)
        } else {
            let sampled = TraceContext::of(view).filter(|context| context.is_sampled);
            let Some(context) = sampled.filter(|context| self.admit_again(now, context)) else { return };
            let number = self.next_number();
            let ids = (self.id(&context, number), context.parent_id);
            let span = self.span(view, &context, Stage::Deliver, ids);
            Some((Span { is_parent_remote: true, ..span }, context))
        };
        let Some((span, context)) = span else { return };
        let waited_ns = now.0.saturating_sub(view.received.0).saturating_mul(1_000_000);
        let span = Span { start_ns: span.start_ns.saturating_sub(waited_ns), ..span };
        self.push(span, view.topic, &connection.client_id, context.state);
    }
}

impl Drop for Spans {
    /// Passes the last spans on, when the worker ends.
    fn drop(&mut self) {
        self.queues.leave(&mut self.own);
    }
}

/// Number of bits of a span's number that do not name its worker.
const NUMBER_BITS: u32 = 20;

impl Monitor {
    /// Begins the trace of a message that a client or, without a connection, an operator publishes, if it asks for
    /// that. Returns the value of [`MessageView::span`].
    #[cold]
    pub(super) fn begin_published(
        &mut self,
        now: Time,
        connection: Option<&Connection>,
        view: &MessageView<'_>,
        (packet_id, dup): (Option<PacketId>, bool),
    ) -> (u32, OpenSpan) {
        let Some(spans) = &mut self.spans else { return Default::default() };
        let client_id = connection.map_or("", |connection| &connection.client_id);
        let stage = Stage::Publish { retain: view.retain, dup };
        let (number, open) = spans.begin(now, view, stage, client_id);
        if number != 0
            && let (Some(connection), Some(packet_id)) = (connection, packet_id)
        {
            spans.await_ack(connection.id, packet_id, &MessageView { span: number, ..*view });
            self.note_observers();
        }
        (number, open)
    }

    /// Begins the trace of a message of another node, if it asks for that. Returns the value of
    /// [`MessageView::span`].
    #[cold]
    pub(super) fn begin_arrived(&mut self, now: Time, view: &MessageView<'_>) -> (u32, OpenSpan) {
        let Some(spans) = &mut self.spans else { return Default::default() };
        spans.begin(now, view, Stage::Arrive, "")
    }

    /// Begins the span of the dispatch of a traced message.
    #[cold]
    pub(super) fn begin_route(&mut self, view: &MessageView<'_>, routes: &[Route]) -> OpenSpan {
        let Some(spans) = &mut self.spans else { return OpenSpan::default() };
        spans.begin_child(view, Stage::Route(receivers(routes, view.qos)), "")
    }

    /// Ends a span.
    #[cold]
    pub(super) fn end_span(&mut self, open: OpenSpan) {
        if let Some(spans) = &mut self.spans {
            spans.end(open);
        }
    }

    /// Records that a traced message is passed to another node.
    #[cold]
    pub(super) fn span_forwarded(&mut self, view: &MessageView<'_>) {
        if let Some(spans) = &mut self.spans {
            spans.begin_child(view, Stage::Forward, "");
        }
    }

    /// Records that a message was written to a subscriber. `is_stored`: it may come from the log.
    #[cold]
    pub(super) fn span_delivered(
        &mut self,
        now: Time,
        connection: &Connection,
        view: &MessageView<'_>,
        is_stored: bool,
    ) {
        if view.properties.is_empty() {
            return;
        }
        if let Some(spans) = &mut self.spans {
            spans.delivered(now, connection, view, is_stored);
        }
    }

    /// Records that PUBACK or PUBREC is sent to a publisher.
    #[cold]
    pub(super) fn span_acknowledged(
        &mut self,
        connection: &Connection,
        packet_id: PacketId,
        reason: ReasonCode,
    ) {
        let Some(spans) = &mut self.spans else { return };
        spans.acknowledged(connection, packet_id, reason);
        if !spans.awaits_acks() {
            self.note_observers();
        }
    }

    /// Forgets the acknowledgements that a connection waits for.
    #[cold]
    pub(super) fn span_connection_ended(&mut self, id: ConnectionId) {
        let Some(spans) = &mut self.spans else { return };
        spans.connection_ended(id);
        self.note_observers();
    }

    /// Passes the recorded spans on.
    pub(super) fn flush_spans(&mut self) {
        if let Some(spans) = &mut self.spans {
            spans.flush();
        }
    }
}

/// Counts the receivers that routes lead to. Those of one receiver are adjacent. A durable session has a route to its
/// connection for QoS 0, and one to its shard for QoS 1 and 2.
fn receivers(routes: &[Route], qos: QoS) -> Receivers {
    let mut receivers = Receivers::default();
    let mut before = None;
    for route in routes {
        let key = (route.kind, route.index, route.slot, route.generation);
        if before.replace(key) == Some(key) {
            continue;
        }
        match route.kind {
            RouteKind::ConnectionQos0 | RouteKind::ConnectionLink
                if qos.min(route.options.qos()) > QoS::AtMostOnce => {}
            RouteKind::Shard if qos == QoS::AtMostOnce => {}
            RouteKind::Connection | RouteKind::ConnectionQos0 | RouteKind::ConnectionLink => {
                receivers.clients += 1;
            }
            RouteKind::Node => receivers.nodes += 1,
            RouteKind::Shard | RouteKind::ShardGroups => receivers.shards += 1,
            RouteKind::Origin | RouteKind::Session | RouteKind::Group => {}
        }
    }
    receivers
}
