//! Streams of events (`text/event-stream`): a bounded queue for each, a limit on their number, and a common end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep};

use crate::problem::Problem;

/// Maximum number of events that wait for one reader of a stream. Further ones are lost, and the reader receives their
/// number.
pub const QUEUE: usize = 1024;
/// Time without an event after which a comment is sent, so that proxies see that the stream is active.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval at which a stream looks whether its reader may still have it.
const VALIDITY_INTERVAL: Duration = Duration::from_secs(2);
/// Approximate maximum number of bytes of events in one frame.
const FRAME: usize = 16 * 1024;

/// All streams of a server.
#[derive(Debug)]
pub struct Streams {
    open: Arc<AtomicUsize>,
    max: usize,
    stop: watch::Sender<bool>,
}

impl Streams {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Arc::default(), max, stop: watch::Sender::new(false) }
    }

    /// Opens a stream: events sent into the sink come out of the stream.
    ///
    /// # Errors
    /// 429 when `http.streams_max` are open.
    pub fn open<T: Send + 'static>(&self) -> Result<(Sink<T>, Stream<T>), Problem> {
        let Some(slot) = StreamSlot::take(&self.open, self.max) else {
            return Err(Problem::too_many(format!(
                "{} streams are open (http.streams_max); close one, or try again later",
                self.max
            )));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let stop = self.stop.subscribe();
        Ok((
            Sink { sender, lost: lost.clone() },
            Stream { receiver, lost, stop, slot, limits: Limits::default(), valid: None },
        ))
    }

    pub fn running(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends all streams.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// A slot among the streams, released on drop.
#[derive(Debug)]
struct StreamSlot(Arc<AtomicUsize>);

impl StreamSlot {
    fn take(open: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let more = |now| (now < max).then_some(now + 1);
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(open.clone()))
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Source of the events of a stream. It can be used on any thread: it never waits.
#[derive(Debug)]
pub struct Sink<T> {
    sender: mpsc::Sender<T>,
    lost: Arc<AtomicU64>,
}

impl<T> Clone for Sink<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), lost: self.lost.clone() }
    }
}

impl<T> Sink<T> {
    /// Sends an event. Returns false when it is lost, because the reader is slow or gone. A slow reader receives the
    /// number of lost events.
    pub fn send(&self, event: T) -> bool {
        let sent = self.sender.try_send(event).is_ok();
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Adds a number of events that were lost before this sink. The reader receives it.
    pub fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns whether the reader is gone.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

#[derive(Debug, Default)]
struct Limits {
    time: Option<Duration>,
    events: Option<u64>,
}

/// The other end of a sink: [`Stream::respond`] converts it to the response.
pub struct Stream<T> {
    receiver: mpsc::Receiver<T>,
    lost: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
    slot: StreamSlot,
    limits: Limits,
    valid: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl<T: Send + 'static> Stream<T> {
    /// Ends the stream with `event: end`, reason `time`, after this time.
    #[must_use]
    pub fn for_at_most(mut self, time: Duration) -> Self {
        self.limits.time = Some(time);
        self
    }

    /// Ends the stream within seconds when this is no longer true, such as that its reader has a key or a session.
    #[must_use]
    pub fn while_valid(mut self, valid: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.valid = Some(Box::new(valid));
        self
    }

    /// Ends the stream with `event: end`, reason `events`, after this number of events.
    #[must_use]
    pub fn events_max(mut self, events: u64) -> Self {
        self.limits.events = Some(events);
        self
    }

    /// Returns the response. `event` is the name of the events. `render` converts an event to its JSON value, and
    /// `None` sends nothing. `held` is dropped when the stream ends for any reason: put the source of its events there.
    pub fn respond<R: Serialize + 'static>(
        self,
        event: &'static str,
        render: impl FnMut(T) -> Option<R> + Send + 'static,
        held: impl Send + 'static,
    ) -> Response {
        let Self { receiver, lost, mut stop, slot, limits, valid } = self;
        let body = EventBody {
            receiver,
            lost,
            event,
            render: Box::new(render),
            stop: Box::pin(async move {
                tokio::select! {
                    // A sender that is gone has nothing more to stop.
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = until_invalid(valid) => {}
                }
            }),
            deadline: limits.time.map(|time| Box::pin(tokio::time::sleep(time))),
            events_left: limits.events,
            keep_alive: Box::pin(tokio::time::sleep(KEEP_ALIVE)),
            held: Some((slot, held)),
            first: true,
        };
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        (headers, axum::body::Body::new(body)).into_response()
    }
}

/// Returns when the condition is no longer true; without one, never.
async fn until_invalid(valid: Option<Box<dyn Fn() -> bool + Send + Sync>>) {
    let Some(valid) = valid else { return std::future::pending().await };
    while valid() {
        tokio::time::sleep(VALIDITY_INTERVAL).await;
    }
}

struct EventBody<T, R, H> {
    receiver: mpsc::Receiver<T>,
    lost: Arc<AtomicU64>,
    event: &'static str,
    render: Box<dyn FnMut(T) -> Option<R> + Send>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    deadline: Option<Pin<Box<Sleep>>>,
    events_left: Option<u64>,
    keep_alive: Pin<Box<Sleep>>,
    /// `None` after the end.
    held: Option<(StreamSlot, H)>,
    first: bool,
}

// The pinned parts are in boxes.
impl<T, R, H> Unpin for EventBody<T, R, H> {}

impl<T, R: Serialize, H> EventBody<T, R, H> {
    fn gather(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.first) {
            // The client receives the header of the answer and its first byte at once.
            out.extend_from_slice(b": open\n\n");
        }
        while out.len() < FRAME {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                put(&mut out, "lost", &serde_json::json!({ "count": lost }));
            }
            if self.events_left == Some(0) {
                self.end(&mut out, "events");
                break;
            }
            match self.receiver.poll_recv(cx) {
                Poll::Ready(Some(item)) => {
                    let Some(item) = (self.render)(item) else { continue };
                    put(&mut out, self.event, &item);
                    if let Some(left) = &mut self.events_left {
                        *left -= 1;
                    }
                }
                Poll::Ready(None) => {
                    self.end(&mut out, "stopping");
                    break;
                }
                Poll::Pending => break,
            }
        }
        if self.held.is_some() && self.deadline.as_mut().is_some_and(|time| time.as_mut().poll(cx).is_ready())
        {
            self.end(&mut out, "time");
        }
        if self.held.is_some() && self.stop.as_mut().poll(cx).is_ready() {
            self.end(&mut out, "stopping");
        }
        if self.keep_alive.as_mut().poll(cx).is_ready() && out.is_empty() {
            out.extend_from_slice(b": keep-alive\n\n");
        }
        if out.is_empty() {
            return None;
        }
        self.keep_alive.as_mut().reset(Instant::now() + KEEP_ALIVE);
        // Registers for the time that was just set.
        let _ = self.keep_alive.as_mut().poll(cx);
        Some(Bytes::from(out))
    }

    fn end(&mut self, out: &mut Vec<u8>, reason: &'static str) {
        put(out, "end", &serde_json::json!({ "reason": reason }));
        self.held = None;
    }
}

/// Writes one event. JSON contains no line breaks, so one `data` line is enough.
fn put<R: Serialize>(out: &mut Vec<u8>, event: &str, data: &R) {
    out.extend_from_slice(format!("event: {event}\ndata: ").as_bytes());
    if let Err(error) = serde_json::to_writer(&mut *out, data) {
        tracing::error!(%error, event, "http: an event of a stream cannot be encoded");
    }
    out.extend_from_slice(b"\n\n");
}

impl<T, R: Serialize, H> Body for EventBody<T, R, H> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.held.is_none() {
            return Poll::Ready(None);
        }
        match this.gather(cx) {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}
