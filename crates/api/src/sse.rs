//! Streams of events (`text/event-stream`): a bounded queue for each, a limit on how many, and an end for all of them.

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

/// Events that wait for one reader of a stream; those beyond it are lost, and the reader is told how many.
pub const QUEUE: usize = 1024;
/// A comment goes out after so long without an event, so that whoever is between knows that the stream lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Bytes put into one frame as long as there are events.
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

    /// Opens one: what goes into the sink comes out of the stream.
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
            Stream { receiver, lost, stop, slot, limits: Limits::default() },
        ))
    }

    pub fn running(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends all of them.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// A place among the streams; given back when dropped.
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

/// Where events come from. Can be used on any thread: it never waits.
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
    /// Hands an event on. False: it was lost because the reader is slow, which the reader is told, or gone.
    pub fn send(&self, event: T) -> bool {
        let sent = self.sender.try_send(event).is_ok();
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// The reader is told of so many more that are lost, which did not get here.
    pub fn lose(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    /// Nobody reads any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

#[derive(Debug, Default)]
struct Limits {
    time: Option<Duration>,
    events: Option<u64>,
}

/// The other end: turn it into the response with [`Stream::respond`].
#[derive(Debug)]
pub struct Stream<T> {
    receiver: mpsc::Receiver<T>,
    lost: Arc<AtomicU64>,
    stop: watch::Receiver<bool>,
    slot: StreamSlot,
    limits: Limits,
}

impl<T: Send + 'static> Stream<T> {
    /// Ends with `event: end`, reason `time`, after so long.
    #[must_use]
    pub fn for_at_most(mut self, time: Duration) -> Self {
        self.limits.time = Some(time);
        self
    }

    /// Ends with `event: end`, reason `events`, after so many.
    #[must_use]
    pub fn events_max(mut self, events: u64) -> Self {
        self.limits.events = Some(events);
        self
    }

    /// The response. `event` is the name of the events; `render` makes what is sent as JSON out of an event, and `None` sends nothing.
    /// `held` is dropped when the stream ends, however it ends: put what feeds it there.
    pub fn respond<R: Serialize + 'static>(
        self,
        event: &'static str,
        render: impl FnMut(T) -> Option<R> + Send + 'static,
        held: impl Send + 'static,
    ) -> Response {
        let Self { receiver, lost, mut stop, slot, limits } = self;
        let body = EventBody {
            receiver,
            lost,
            event,
            render: Box::new(render),
            // A sender that is gone has nothing to stop any more either.
            stop: Box::pin(async move { drop(stop.wait_for(|stop| *stop).await) }),
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

// The parts that are pinned are in boxes.
impl<T, R, H> Unpin for EventBody<T, R, H> {}

impl<T, R: Serialize, H> EventBody<T, R, H> {
    fn gather(&mut self, cx: &mut Context<'_>) -> Option<Bytes> {
        let mut out = Vec::new();
        if std::mem::take(&mut self.first) {
            // So that whoever waits for the header of the answer, and for its first byte, has both.
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

/// JSON has no line breaks of its own, so one `data` line holds it.
fn put<R: Serialize>(out: &mut Vec<u8>, event: &str, data: &R) {
    out.extend_from_slice(format!("event: {event}\ndata: ").as_bytes());
    if let Err(error) = serde_json::to_writer(&mut *out, data) {
        tracing::error!(%error, event, "an event cannot be written");
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
