//! Answers to the requests of other replicas.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;

use openraft::raft::{TransferLeaderRequest, VoteRequest};
use tokio::sync::RwLock;

use crate::group::Raft;
use crate::raft_log::{SnapshotData, Store};
use crate::raft_types::{ReplicaId, Snapshot, SnapshotMeta, Vote};
use crate::wire::Body;

/// State between requests: a snapshot that arrives in pieces.
pub(crate) struct Server {
    store: Store,
    incoming: Mutex<Option<Incoming>>,
    /// Held for reading by requests whose entries are not in the log yet.
    appending: RwLock<()>,
    bytes_max: u64,
}

struct Incoming {
    from: ReplicaId,
    vote: Vote,
    meta: SnapshotMeta,
    size: u64,
    bytes: Vec<u8>,
}

impl Server {
    pub fn new(store: Store, bytes_max: u64) -> Self {
        Self { store, incoming: Mutex::default(), appending: RwLock::default(), bytes_max }
    }

    pub async fn serve(&self, raft: &Raft, from: ReplicaId, question: Body) -> Body {
        self.try_serve(raft, from, question).await.unwrap_or(Body::Refused)
    }

    /// Answers a request. Returns `None` when the replica has stopped, or the body is not a request.
    async fn try_serve(&self, raft: &Raft, from: ReplicaId, question: Body) -> Option<Body> {
        match question {
            Body::Append(append) => {
                let _appending = self.appending.read().await;
                Some(Body::Appended(raft.append_entries(append.into()).await.ok()?.into()))
            }
            Body::Vote { vote, last, is_pre_vote, is_transfer } => {
                let mut request = VoteRequest::new(vote, last);
                request.leadership_transfer = is_transfer;
                let response =
                    if is_pre_vote { raft.pre_vote(request).await } else { raft.vote(request).await };
                let response = response.ok()?;
                Some(Body::Voted {
                    vote: response.vote,
                    last: response.last_log_id,
                    granted: response.vote_granted,
                })
            }
            Body::Transfer { vote, to, last } => {
                let request = TransferLeaderRequest::new(vote, to, last);
                let done = raft.handle_transfer_leader(request).await.ok()?.is_ok();
                Some(Body::Transferred { done })
            }
            Body::Snapshot { vote, meta, size, offset, bytes } => {
                let whole = match self.take(from, vote, meta, size, offset, &bytes) {
                    Ok(incoming) => incoming,
                    Err(expected) => return Some(Body::Received { vote, offset: expected }),
                };
                let last = whole.meta.last_log_id;
                // The log must not change between this check and the moment at which `openraft` takes the snapshot.
                let appended = self.appending.write().await;
                if self.store.lock().has_from(&vote, last) {
                    // If it installed this snapshot, `openraft` would assume that its log is shorter than it is.
                    self.store.wait_durable().await.ok()?;
                    return Some(Body::Received { vote, offset: size });
                }
                let snapshot =
                    Snapshot { meta: whole.meta, snapshot: SnapshotData::Bytes(whole.bytes.into()) };
                let mut installing = pin!(raft.install_full_snapshot(vote, snapshot));
                let first = poll_fn(|cx| Poll::Ready(installing.as_mut().poll(cx))).await;
                // `openraft` has the snapshot: later requests are handled after it, and need not wait until it is
                // durable.
                drop(appended);
                let response = match first {
                    Poll::Ready(response) => response,
                    Poll::Pending => installing.await,
                };
                let response = response.ok()?;
                Some(Body::Received { vote: response.vote, offset: size })
            }
            _ => None,
        }
    }

    /// Adds a piece. Returns the snapshot after the last piece, and otherwise the offset that is expected next. A
    /// leader that begins again after an error continues from there.
    fn take(
        &self,
        from: ReplicaId,
        vote: Vote,
        meta: SnapshotMeta,
        size: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Incoming, u64> {
        let mut incoming = sync::lock(&self.incoming);
        let is_known = incoming.as_ref().is_some_and(|known| {
            (known.from, known.vote, known.size) == (from, vote, size) && known.meta == meta
        });
        if offset == 0 && size <= self.bytes_max && !is_known {
            *incoming = Some(Incoming { from, vote, meta: meta.clone(), size, bytes: Vec::new() });
        } else if !is_known {
            return Err(0);
        }
        let Some(known) = &mut *incoming else { return Err(0) };
        let length = known.bytes.len() as u64;
        if offset != length || length + bytes.len() as u64 > size {
            return Err(length);
        }
        known.bytes.extend(bytes);
        let length = known.bytes.len() as u64;
        if length < size {
            return Err(length);
        }
        incoming.take().ok_or(0)
    }
}
