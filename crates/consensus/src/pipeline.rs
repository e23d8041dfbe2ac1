//! Requests to append entries at one replica. Several may be on their way.
//!
//! An entry need not wait for the answers to earlier ones: a leader commits each after one round trip. The link keeps
//! the order of requests, and the answers are passed on in that order. If one fails, `openraft` begins again after the
//! last entry that the replica has confirmed.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use openraft::AsyncRuntime;
use openraft::base::BoxFuture;
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};

use crate::network::{Client, RpcError, last_entry};
use crate::raft_types::{Entry, LogId, Types};
use crate::runtime::Runtime;

/// Time between two requests while an answer is awaited. Replicas that are near answer earlier: then the entries of
/// that time share a request.
const PACE: Duration = Duration::from_millis(5);
/// Maximum number of requests on their way.
const REQUESTS_MAX: usize = 128;
/// Size of the entries on their way up to which another request leaves. All shards of a node may share a slow link.
const BYTES_MAX: usize = 256 << 10;

type Request = AppendEntriesRequest<Types>;
type Response = AppendEntriesResponse<Types>;
type Sleep = <Runtime as AsyncRuntime>::Sleep;

/// Answers to the requests of `S`, in their order.
pub(crate) struct Pipeline<'a, S> {
    client: &'a Client,
    /// `None` at its end.
    requests: Option<S>,
    /// Maximum time for each answer, from that to the previous request on.
    limit: Duration,
    /// End of that time for the first request on its way.
    deadline: Option<Pin<Box<Sleep>>>,
    in_flight: VecDeque<InFlight<'a>>,
    bytes: usize,
    /// Time until another request may leave.
    pause: Option<Pin<Box<Sleep>>>,
    /// Last entry of the log when the requests began, for a replica without a vote: up to it, entries leave at
    /// [`Config::copy_rate`](crate::Config::copy_rate). Later ones leave at once, so that the replica catches up
    /// however many there are.
    copied_until: Option<u64>,
    /// True while `pause` is for the rate. Answers do not end it.
    is_copying: bool,
}

struct InFlight<'a> {
    previous: Option<LogId>,
    last: Option<LogId>,
    bytes: usize,
    /// True if others were on their way: the replica had not confirmed the previous entry.
    is_ahead: bool,
    answer: BoxFuture<'a, Result<Response, RpcError>>,
    /// Answer that arrived before those of earlier requests.
    early: Option<Result<Response, RpcError>>,
}

impl<'a, S: Stream<Item = Request> + Unpin> Pipeline<'a, S> {
    pub fn new(client: &'a Client, requests: S, limit: Duration) -> Self {
        Self {
            client,
            requests: Some(requests),
            limit,
            deadline: None,
            in_flight: VecDeque::new(),
            bytes: 0,
            pause: None,
            copied_until: client.copied_until(),
            is_copying: false,
        }
    }

    /// Returns whether another request may leave now.
    fn may_send(&mut self, cx: &mut Context<'_>) -> bool {
        if self.in_flight.is_empty() && !self.is_copying {
            self.pause = None;
            return true;
        }
        if self.in_flight.len() >= REQUESTS_MAX || self.bytes >= BYTES_MAX {
            return false;
        }
        if self.pause.as_mut().is_some_and(|pause| pause.as_mut().poll(cx).is_pending()) {
            return false;
        }
        (self.pause, self.is_copying) = (None, false);
        true
    }

    fn send(&mut self, cx: &mut Context<'_>, request: Request) {
        let bytes = request.entries.iter().map(size).sum();
        let (previous, is_ahead) = (request.prev_log_id, !self.in_flight.is_empty());
        let last = last_entry(&request);
        let mut answer: BoxFuture<'a, _> = Box::pin(self.client.append(request, is_ahead));
        if !is_ahead {
            self.deadline = Some(Box::pin(Runtime::sleep(self.limit)));
        }
        // The request leaves now.
        let early = match answer.as_mut().poll(cx) {
            Poll::Ready(early) => Some(early),
            Poll::Pending => None,
        };
        self.bytes += bytes;
        self.is_copying = last.is_some_and(|last| Some(last.index) <= self.copied_until);
        self.in_flight.push_back(InFlight { previous, last, bytes, is_ahead, answer, early });
        let pause = if self.is_copying { self.client.copy_time(bytes).max(PACE) } else { PACE };
        self.pause = Some(Box::pin(Runtime::sleep(pause)));
    }

    /// Ends the stream after an answer behind which nothing counts.
    fn end(&mut self) {
        (self.requests, self.pause, self.deadline, self.bytes) = (None, None, None, 0);
        self.in_flight.clear();
    }
}

impl<S: Stream<Item = Request> + Unpin> Stream for Pipeline<'_, S> {
    type Item = Result<StreamAppendResult<Types>, RpcError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.requests.is_some() && this.may_send(cx) {
            let Some(requests) = &mut this.requests else { break };
            match Pin::new(requests).poll_next(cx) {
                Poll::Ready(Some(request)) => this.send(cx, request),
                Poll::Ready(None) => this.requests = None,
                Poll::Pending => break,
            }
        }
        let Some(first) = this.in_flight.front_mut() else {
            return if this.requests.is_none() { Poll::Ready(None) } else { Poll::Pending };
        };
        let answer = match first.early.take() {
            Some(early) => early,
            None => match first.answer.as_mut().poll(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending => match this.deadline.as_mut().map(|deadline| deadline.as_mut().poll(cx)) {
                    Some(Poll::Ready(())) => this.client.unanswered(first.last),
                    Some(Poll::Pending) | None => return Poll::Pending,
                },
            },
        };
        let (previous, last, is_ahead) = (first.previous, first.last, first.is_ahead);
        this.bytes -= first.bytes;
        this.in_flight.pop_front();
        let next = (!this.in_flight.is_empty()).then(|| Box::pin(Runtime::sleep(this.limit)));
        this.deadline = next;
        let response = match answer {
            // An earlier request was overtaken, or its entries are gone again: the replica has not lost them.
            Ok(Response::Conflict) if is_ahead => {
                Err(failed("the replica lacks entries of an earlier request"))
            }
            other => other,
        };
        let goes_on = match &response {
            Ok(Response::Success) => true,
            Ok(Response::PartialSuccess(confirmed)) => *confirmed == last,
            Ok(Response::Conflict | Response::HigherVote(_)) | Err(_) => false,
        };
        if !goes_on {
            this.end();
        }
        Poll::Ready(Some(response.map(|response| response.into_stream_result(previous, last))))
    }
}

pub(crate) fn failed(why: &str) -> RpcError {
    RPCError::Network(NetworkError::from_string(why))
}

/// Approximate size of an entry in a frame.
pub(crate) fn size(entry: &Entry) -> usize {
    const HEAD: usize = 32;
    match &entry.payload {
        openraft::EntryPayload::Normal(command) => HEAD + command.0.len(),
        _ => HEAD,
    }
}
