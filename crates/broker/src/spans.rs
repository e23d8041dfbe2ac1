//! Spans of traced messages on their way from the workers to a thread that exports them.
//!
//! [`SpanQueues`] has one bounded queue for each worker. A worker fills a [`SpanBuffer`] of its own and swaps it with
//! an empty one in the queue. So neither side allocates, copies or waits.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use mqtt::{QoS, ReasonCode};

/// Part of the way of a message through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A PUBLISH arrived. The span ends when its message was given to all receivers.
    Publish { retain: bool, dup: bool },
    /// The receivers were found.
    Route(Receivers),
    /// The message was passed to another node.
    Forward,
    /// The message arrived from another node.
    Arrive,
    /// The message was written to a subscriber. The span begins when the message arrived at the first node, in
    /// milliseconds.
    Deliver,
    /// PUBACK or PUBREC was sent. The span begins with the PUBLISH.
    Acknowledge { reason: ReasonCode },
}

/// Numbers of the receivers of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receivers {
    /// Connected clients of this node.
    pub clients: u32,
    /// Other nodes.
    pub nodes: u32,
    /// Shards with durable sessions or shared groups.
    pub shards: u32,
}

/// A span of a traced message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub stage: Stage,
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub parent_id: [u8; 8],
    /// True if the parent is the span of the publisher.
    pub is_parent_remote: bool,
    /// Begin and end in ns since 1970.
    pub start_ns: u64,
    pub end_ns: u64,
    pub qos: QoS,
    /// Number of bytes of the payload.
    pub payload_len: u32,
}

/// Texts of a span, cut to [`TEXT_MAX`] bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanTexts<'a> {
    pub topic: &'a str,
    /// Client that published or received the message; empty if there is none.
    pub client_id: &'a str,
    /// Value of `tracestate`, at most 512 bytes.
    pub state: &'a str,
}

/// Maximum number of bytes of a topic or Client Identifier in a span.
pub const TEXT_MAX: usize = 256;
/// Room for texts, for each span of a buffer.
const TEXTS_PER_SPAN: usize = 256;

/// A bounded list of spans. All its memory is allocated at once.
#[derive(Debug)]
pub struct SpanBuffer {
    spans: Vec<(Span, [u16; 3])>,
    /// The texts of all spans, in their order.
    texts: String,
    spans_max: usize,
}

impl SpanBuffer {
    fn with_room(spans_max: usize) -> Self {
        Self {
            spans: Vec::with_capacity(spans_max),
            texts: String::with_capacity(spans_max * TEXTS_PER_SPAN),
            spans_max,
        }
    }

    /// Appends a span. Returns its index; `None` if there is no room.
    pub(crate) fn push(&mut self, span: Span, texts: SpanTexts<'_>) -> Option<usize> {
        let texts = [cut(texts.topic), cut(texts.client_id), texts.state];
        let len: usize = texts.iter().map(|text| text.len()).sum();
        if self.is_full() || self.texts.len() + len > self.spans_max * TEXTS_PER_SPAN {
            return None;
        }
        texts.iter().for_each(|text| self.texts.push_str(text));
        // None is longer than a property, which has at most 65,535 bytes [MQTT-1.5.4-1].
        self.spans.push((span, texts.map(|text| text.len() as u16)));
        Some(self.spans.len() - 1)
    }

    /// Sets the end of a span.
    pub(crate) fn end(&mut self, index: usize, end_ns: u64) {
        if let Some((span, _)) = self.spans.get_mut(index) {
            span.end_ns = end_ns.max(span.start_ns);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.spans.len() >= self.spans_max
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Calls `each` for all spans, in their order, and removes them.
    pub fn drain(&mut self, mut each: impl FnMut(&Span, SpanTexts<'_>)) {
        let mut rest = self.texts.as_str();
        for (span, lens) in &self.spans {
            let [topic, client_id, state] = lens.map(|len| {
                let (text, after) = rest.split_at_checked(len.into()).unwrap_or_default();
                rest = after;
                text
            });
            each(span, SpanTexts { topic, client_id, state });
        }
        self.spans.clear();
        self.texts.clear();
    }
}

/// The beginning of a text that a client has chosen.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// Limits of the spans of a node.
#[derive(Clone, Copy, Debug)]
pub struct SpanLimits {
    /// Maximum number of messages that one worker traces in a second.
    pub messages_per_second: u32,
    /// Maximum number of spans of one worker that wait to be taken, and likewise of those that it still has itself.
    pub queue_max: usize,
}

/// Numbers of spans since the start of the node.
#[derive(Debug, Default)]
pub struct SpanCounters {
    /// Spans that were dropped because a queue was full.
    pub dropped: AtomicU64,
    /// Messages that were not traced because of [`SpanLimits::messages_per_second`].
    pub untraced: AtomicU64,
    /// Spans that the collector has accepted.
    pub exported: AtomicU64,
    /// Spans that the collector has not accepted.
    pub lost: AtomicU64,
}

/// Spans of all workers of a node that wait to be exported.
pub struct SpanQueues {
    pub(crate) limits: SpanLimits,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Span ids are a hash under this key, so that no client can choose them.
    pub(crate) key: [u8; 16],
    queues: Mutex<Vec<Arc<Mutex<SpanBuffer>>>>,
    pub counters: SpanCounters,
}

impl SpanQueues {
    /// Makes the queues of a node. `clock` returns the time in ns since 1970. `key` is secret.
    pub fn new(
        limits: SpanLimits,
        key: [u8; 16],
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits,
            clock: Box::new(clock),
            key,
            queues: Mutex::default(),
            counters: SpanCounters::default(),
        })
    }

    /// Makes an empty buffer, for [`Self::take`].
    pub fn buffer(&self) -> SpanBuffer {
        SpanBuffer::with_room(self.limits.queue_max)
    }

    /// Adds the queue of a worker.
    pub(crate) fn join(&self) -> Arc<Mutex<SpanBuffer>> {
        let queue = Arc::new(Mutex::new(self.buffer()));
        sync::lock(&self.queues).push(queue.clone());
        queue
    }

    /// Takes the last spans of a worker that ends.
    pub(crate) fn leave(&self, last: &mut SpanBuffer) {
        let last = std::mem::replace(last, SpanBuffer::with_room(0));
        if !last.is_empty() {
            sync::lock(&self.queues).push(Arc::new(Mutex::new(last)));
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// Takes the spans of all workers: calls `each` for them, those of one worker in their order. `spare` is an empty
    /// buffer of [`Self::buffer`], and empty again afterwards. A worker that uses its queue right now keeps its spans
    /// until the next call.
    pub fn take(&self, spare: &mut SpanBuffer, mut each: impl FnMut(&Span, SpanTexts<'_>)) {
        let queues = sync::lock(&self.queues).clone();
        for queue in queues {
            if let Some(mut full) = try_lock(&queue) {
                std::mem::swap(&mut *full, spare);
            }
            spare.drain(&mut each);
        }
    }
}

/// Locks a queue unless the other side has it. Neither side waits, so no unlocking has to wake a thread.
pub(crate) fn try_lock(queue: &Mutex<SpanBuffer>) -> Option<MutexGuard<'_, SpanBuffer>> {
    match queue.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ns: u64) -> Span {
        Span {
            stage: Stage::Forward,
            trace_id: [1; 16],
            span_id: [2; 8],
            parent_id: [3; 8],
            is_parent_remote: false,
            start_ns,
            end_ns: start_ns,
            qos: QoS::AtMostOnce,
            payload_len: 0,
        }
    }

    fn taken(buffer: &mut SpanBuffer) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        buffer.drain(|span, SpanTexts { topic, client_id, state }| {
            all.push((span.start_ns, format!("{topic}|{client_id}|{state}")));
        });
        all
    }

    #[test]
    fn spans_leave_a_buffer_with_their_texts() {
        let mut buffer = SpanBuffer::with_room(3);
        let texts = |topic, client_id, state| SpanTexts { topic, client_id, state };
        assert_eq!(buffer.push(span(1), texts("a/b", "", "k=v")), Some(0));
        assert_eq!(buffer.push(span(2), texts("ü", "client", "")), Some(1));
        buffer.end(1, 0);
        buffer.end(9, 9);
        assert_eq!(taken(&mut buffer), [(1, "a/b||k=v".to_owned()), (2, "ü|client|".to_owned())]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_full_buffer_takes_no_span() {
        let mut buffer = SpanBuffer::with_room(2);
        let long = "é".repeat(40_000);
        let texts = SpanTexts { topic: &long, client_id: "", state: "" };
        assert_eq!(buffer.push(span(1), texts), Some(0));
        assert_eq!(
            buffer.push(span(2), SpanTexts { client_id: "c", ..texts }),
            None,
            "no room for its texts"
        );
        assert_eq!(buffer.push(span(2), texts), Some(1));
        assert_eq!(buffer.push(span(3), SpanTexts::default()), None, "no room for a span");
        assert_eq!(buffer.len(), 2);
        assert_eq!(taken(&mut buffer)[1].1.len(), TEXT_MAX + 2);
        assert_eq!(buffer.push(span(3), SpanTexts::default()), Some(0));
    }
}
