//! Answers to the requests of other replicas.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex as SyncMutex};
use std::task::Poll;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::raft::{TransferLeaderRequest, VoteRequest};
use tokio::sync::{Mutex, RwLock};

use crate::group::Raft;
use crate::incoming::Incoming;
use crate::machine::State;
use crate::mutation::{Mutation, mutated};
use crate::raft_log::{NotBegun, SnapshotData, Store};
use crate::raft_types::{ReplicaId, Snapshot, Vote};
use crate::runtime::Runtime;
use crate::wire::{Body, SnapshotForm, SnapshotPiece, term_of};

/// Time for which a piece of a snapshot waits for the log. Shorter than the time after which its sender asks again.
const PATIENCE: Duration = Duration::from_secs(5);

/// State between requests: a snapshot that arrives in pieces.
pub(crate) struct Server {
    store: Store,
    state: Arc<SyncMutex<State>>,
    incoming: Mutex<Option<Incoming>>,
    /// Held for reading by requests whose entries are not in the log yet.
    appending: RwLock<()>,
    bytes_max: u64,
    /// True if snapshots of earlier versions can be read.
    is_stream: bool,
}

/// Result of a piece of a snapshot.
enum Piece {
    /// The next piece begins at this offset.
    Expected(u64),
    /// A later leader was seen.
    Outvoted(Vote),
    /// The entries of the snapshot are here.
    Known,
    Whole(Box<Incoming>),
}

impl Server {
    pub fn new(store: Store, state: Arc<SyncMutex<State>>, bytes_max: u64, is_stream: bool) -> Self {
        let (incoming, appending) = (Mutex::default(), RwLock::default());
        Self { store, state, incoming, appending, bytes_max, is_stream }
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
            Body::Snapshot(piece) => {
                let (vote, size) = (piece.vote, piece.size);
                match self.take(from, piece).await? {
                    Piece::Expected(offset) => Some(Body::Received { vote, offset }),
                    Piece::Outvoted(vote) => Some(Body::Received { vote, offset: 0 }),
                    Piece::Known => {
                        // The entries may be in a snapshot that was just installed.
                        self.store.wait_all_durable().await.ok()?;
                        Some(Body::Received { vote, offset: size })
                    }
                    Piece::Whole(whole) => self.install(raft, *whole, size).await,
                }
            }
            _ => None,
        }
    }

    async fn install(&self, raft: &Raft, whole: Incoming, size: u64) -> Option<Body> {
        let Incoming { vote, meta, writer, .. } = whole;
        // The log must not change between this check and the moment at which `openraft` takes the snapshot.
        let appended = self.appending.write().await;
        if self.store.lock().has_from(&vote, meta.last_log_id) {
            // If it installed this snapshot, `openraft` would assume that its log is shorter than it is.
            self.store.wait_all_durable().await.ok()?;
            return Some(Body::Received { vote, offset: size });
        }
        // Until here the checkpoint can be given up for a segment that the log needs.
        writer.installs().ok()?;
        let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(writer) };
        let mut installing = pin!(raft.install_full_snapshot(vote, snapshot));
        let first = poll_fn(|cx| Poll::Ready(installing.as_mut().poll(cx))).await;
        // `openraft` has the snapshot: later requests are handled after it, and need not wait until it is durable.
        drop(appended);
        let response = match first {
            Poll::Ready(response) => response,
            Poll::Pending => installing.await,
        };
        let response = response.ok()?;
        // `openraft` does not install a snapshot of entries that it knows to be committed. They may be on their way to
        // the disk.
        self.store.wait_all_durable().await.ok()?;
        Some(Body::Received { vote: response.vote, offset: size })
    }

    /// Adds a piece. A leader that begins again after an error continues after the pieces that are here. Returns `None`
    /// for a piece of something else.
    async fn take(&self, from: ReplicaId, piece: SnapshotPiece) -> Option<Piece> {
        let last = piece.meta.last_log_id?;
        let is_readable = piece.form == SnapshotForm::Parts || self.is_stream;
        // `openraft` asserts that a snapshot has no entry of a later leader.
        if !is_readable || piece.size > self.bytes_max || term_of(&last) > piece.vote.leader_id.term {
            return None;
        }
        let mut incoming = self.incoming.lock().await;
        loop {
            let known = incoming.as_ref().map(|known| known.vote);
            let seen = self.store.lock().vote().into_iter().chain(known).find(|seen| *seen > piece.vote);
            if let Some(later) = seen {
                return Some(Piece::Outvoted(later));
            }
            if sync::lock(&self.state).applied.is_some_and(|applied| applied.index >= last.index) {
                return Some(Piece::Known);
            }
            let is_known = |known: &Incoming| known.has(from, &piece) && known.writer.is_current();
            if incoming.as_ref().is_some_and(is_known) {
                break;
            }
            if piece.offset != 0 {
                return Some(Piece::Expected(0));
            }
            // The checkpoint of another snapshot is given up.
            *incoming = None;
            match self.store.begin_received(last.index + 1) {
                Ok(writer) => *incoming = Some(Incoming::new(from, &piece, writer).ok()?),
                Err(NotBegun::Old) => return Some(Piece::Known),
                Err(NotBegun::Full) => {
                    Runtime::sleep(PATIENCE).await;
                    return Some(Piece::Expected(0));
                }
                Err(NotBegun::Busy) => {
                    let ended = self.store.checkpoint_ended();
                    match Runtime::timeout(PATIENCE, ended).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return None,
                        Err(_) => return Some(Piece::Expected(0)),
                    }
                }
            }
        }
        let known = incoming.as_mut()?;
        if mutated(Mutation::MixSnapshots) {
            known.meta = piece.meta.clone();
        }
        if piece.offset != known.received {
            return Some(Piece::Expected(known.received));
        }
        if known.writer.is_full() && !piece.bytes.is_empty() {
            Runtime::sleep(PATIENCE).await;
            return Some(Piece::Expected(known.received));
        }
        match Runtime::timeout(PATIENCE, known.writer.room()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) => return Some(Piece::Expected(known.received)),
        }
        if let Err(error) = known.feed(&piece.bytes) {
            tracing::warn!(%error, %from, "consensus: a snapshot of another replica is refused");
            *incoming = None;
            return None;
        }
        if !piece.bytes.is_empty() {
            known.writer.advanced();
        }
        if !known.is_whole() {
            return Some(Piece::Expected(known.received));
        }
        Some(Piece::Whole(Box::new(incoming.take()?)))
    }
}
