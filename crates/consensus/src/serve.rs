//! Answers to the requests of other replicas.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex as SyncMutex};
use std::task::Poll;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::raft::{TransferLeaderRequest, VoteRequest};
use tokio::sync::{Mutex, RwLock, oneshot};

use crate::config::Config;
use crate::group::Raft;
use crate::incoming::{Incoming, Source};
use crate::jobs::{Jobs, NotRestored, Restore};
use crate::machine::{INVALID_SNAPSHOT, SnapshotError, State, UNSUPPORTED_VERSION};
use crate::mutation::{Mutation, mutated};
use crate::raft_log::{NotBegun, Restored, SnapshotData, Store};
use crate::raft_types::{ReplicaId, Snapshot, Vote};
use crate::runtime::Runtime;
use crate::wire::{Appended, Body, SnapshotForm, SnapshotPiece, term_of};

/// Time for which a piece of a snapshot waits for the log, and a whole one for its installation. Shorter than the time
/// after which its sender asks again.
const PATIENCE: Duration = Duration::from_secs(5);

/// State between requests: a snapshot that arrives in pieces, or is being installed.
pub(crate) struct Server {
    store: Store,
    state: Arc<SyncMutex<State>>,
    jobs: Jobs,
    receiving: Mutex<Receiving>,
    /// Held for reading by requests whose entries are not in the log yet.
    appending: RwLock<()>,
    bytes_max: u64,
    /// Time after a message of the leader in which no election begins.
    lease: Duration,
    /// True if snapshots of earlier versions can be read.
    is_stream: bool,
}

/// Snapshot of another replica.
enum Receiving {
    Nothing,
    Arrives(Incoming),
    /// A task installs it.
    Installs(Installation),
}

/// A snapshot that is whole, and the requests that wait until it is installed.
struct Installation {
    source: Source,
    waiters: Waiters,
}

type Waiters = Arc<SyncMutex<Vec<oneshot::Sender<Option<Body>>>>>;

impl Installation {
    /// Returns a future with the answer to the leader.
    fn wait(&self) -> oneshot::Receiver<Option<Body>> {
        let (sender, receiver) = oneshot::channel();
        sync::lock(&self.waiters).push(sender);
        receiver
    }
}

/// Result of a piece of a snapshot.
enum Piece {
    /// The next piece begins at this offset.
    Expected(u64),
    /// A later leader was seen.
    Outvoted(Vote),
    /// The entries of the snapshot are here.
    Known,
    /// The snapshot is here. This has the answer when it is installed.
    Installs(oneshot::Receiver<Option<Body>>),
}

impl Receiving {
    fn source(&self) -> Option<&Source> {
        match self {
            Self::Nothing => None,
            Self::Arrives(incoming) => Some(&incoming.source),
            Self::Installs(installation) => Some(&installation.source),
        }
    }
}

impl Server {
    pub fn new(
        store: Store,
        state: Arc<SyncMutex<State>>,
        jobs: Jobs,
        config: &Config,
        is_stream: bool,
    ) -> Self {
        let (bytes_max, lease) = (config.snapshot_bytes_max, config.lease());
        let (receiving, appending) = (Mutex::new(Receiving::Nothing), RwLock::default());
        Self { store, state, jobs, receiving, appending, bytes_max, lease, is_stream }
    }

    pub async fn serve(self: &Arc<Self>, raft: &Raft, from: ReplicaId, question: Body) -> Body {
        self.try_serve(raft, from, question).await.unwrap_or(Body::Refused)
    }

    /// Answers a request. Returns `None` when the replica has stopped, or the body is not a request.
    async fn try_serve(self: &Arc<Self>, raft: &Raft, from: ReplicaId, question: Body) -> Option<Body> {
        match question {
            Body::Append(append) => {
                let _appending = self.appending.read().await;
                let answer = raft.append_entries(append.into()).await.ok()?.into();
                if !matches!(answer, Appended::HigherVote(_)) {
                    Runtime::stay_calm(self.lease);
                }
                Some(Body::Appended(answer))
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
                // After a start, `openraft` knows which entries are durable only when others are appended.
                let last = last.filter(|last| !self.store.lock().has_durably(&vote, Some(*last)));
                let request = TransferLeaderRequest::new(vote, to, last);
                let done = raft.handle_transfer_leader(request).await.ok()?.is_ok();
                Some(Body::Transferred { done })
            }
            Body::Snapshot(piece) => {
                let (vote, size) = (piece.vote, piece.size);
                match self.take(raft, from, piece).await? {
                    Piece::Expected(offset) => Some(Body::Received { vote, offset }),
                    Piece::Outvoted(vote) => Some(Body::Received { vote, offset: 0 }),
                    // The entries may be in a snapshot that was just installed.
                    Piece::Known => self.known(vote, size).await,
                    Piece::Installs(ended) => match Runtime::timeout(PATIENCE, ended).await {
                        Ok(answer) => answer.ok()?,
                        Err(_) => Some(Body::Installing { vote }),
                    },
                }
            }
            _ => None,
        }
    }

    /// Starts the task that installs a snapshot. The owner may need minutes for it.
    fn start_install(self: &Arc<Self>, raft: &Raft, whole: Incoming) -> Installation {
        let (source, waiters) = (whole.source.clone(), Waiters::default());
        let (server, raft, ended) = (self.clone(), raft.clone(), waiters.clone());
        let task = async move {
            let answer = server.install(&raft, whole).await;
            let mut receiving = server.receiving.lock().await;
            if matches!(&*receiving, Receiving::Installs(current) if Arc::ptr_eq(&current.waiters, &ended)) {
                *receiving = Receiving::Nothing;
            }
            for waiter in sync::lock(&ended).drain(..) {
                // The request may have been answered.
                let _ = waiter.send(answer.clone());
            }
        };
        // The task ends by itself.
        drop(<Runtime as AsyncRuntime>::spawn(task));
        Installation { source, waiters }
    }

    /// Installs a snapshot, and returns the answer to the leader.
    async fn install(&self, raft: &Raft, whole: Incoming) -> Option<Body> {
        let Incoming { source: Source { vote, meta, size, .. }, writer, .. } = whole;
        let last = meta.last_log_id?;
        let is_known = {
            let _appended = self.appending.write().await;
            self.store.lock().has_from(&vote, Some(last))
        };
        if is_known {
            // Later entries need not wait for the disk with this answer.
            return self.known(vote, size).await;
        }
        // While the owner reads the snapshot and fetches what it refers to, `openraft` goes on without it.
        writer.prepares().ok()?;
        let restore = match Restore::run(&self.jobs, &last, &writer).await {
            Ok(restore) => restore,
            Err(NotRestored::Unreadable(error)) => {
                self.stop(raft, error).await;
                return None;
            }
            Err(NotRestored::GivenUp) => {
                drop(writer);
                // The leader does not send it again at once.
                Runtime::sleep(PATIENCE).await;
                return None;
            }
        };
        // The log must not change between this check and the moment at which `openraft` takes the snapshot.
        let appended = self.appending.write().await;
        if self.store.lock().has_from(&vote, Some(last)) {
            // If it installed this snapshot, `openraft` would assume that its log is shorter than it is.
            drop(appended);
            return self.known(vote, size).await;
        }
        // Until here the checkpoint can be given up for a segment that the log needs.
        writer.installs().ok()?;
        let snapshot = SnapshotData::Received(Box::new(Restored { writer, restore }));
        let mut installing = pin!(raft.install_full_snapshot(vote, Snapshot { meta, snapshot }));
        let first = poll_fn(|cx| Poll::Ready(installing.as_mut().poll(cx))).await;
        // `openraft` has the snapshot: later requests are handled after it, and need not wait until it is durable.
        drop(appended);
        let response = match first {
            Poll::Ready(response) => response,
            Poll::Pending => installing.await,
        };
        // `openraft` does not install a snapshot of entries that it knows to be committed. They may be on their way to
        // the disk.
        self.known(response.ok()?.vote, size).await
    }

    /// Answers that all of a snapshot is here, when it is durable.
    async fn known(&self, vote: Vote, size: u64) -> Option<Body> {
        self.store.wait_all_durable().await.ok()?;
        Some(Body::Received { vote, offset: size })
    }

    /// Stops the replica: its owner cannot read a snapshot.
    async fn stop(&self, raft: &Raft, error: SnapshotError) {
        let why = match error {
            SnapshotError::Invalid => INVALID_SNAPSHOT,
            SnapshotError::UnsupportedVersion => UNSUPPORTED_VERSION,
        };
        sync::lock(&self.state).is_outdated |= matches!(error, SnapshotError::UnsupportedVersion);
        tracing::error!("consensus: a snapshot of another replica cannot be read, {why}; the replica stops");
        self.store.lock().fail(why);
        // It may have stopped already.
        let _ = raft.shutdown().await;
    }

    /// Adds a piece. A leader that begins again after an error continues after the pieces that are here. Returns `None`
    /// for a piece of something else.
    async fn take(self: &Arc<Self>, raft: &Raft, from: ReplicaId, piece: SnapshotPiece) -> Option<Piece> {
        let last = piece.meta.last_log_id?;
        let is_readable = piece.form == SnapshotForm::Parts || self.is_stream;
        // `openraft` asserts that a snapshot has no entry of a later leader.
        if !is_readable || piece.size > self.bytes_max || term_of(&last) > piece.vote.leader_id.term {
            return None;
        }
        let mut receiving = self.receiving.lock().await;
        loop {
            let known = receiving.source().map(|source| source.vote);
            let seen = self.store.lock().vote().into_iter().chain(known).find(|seen| *seen > piece.vote);
            if let Some(later) = seen {
                return Some(Piece::Outvoted(later));
            }
            if sync::lock(&self.state).applied.is_some_and(|applied| applied.index >= last.index) {
                return Some(Piece::Known);
            }
            match &*receiving {
                Receiving::Arrives(known) if known.source.has(from, &piece) && known.writer.is_current() => {
                    break;
                }
                Receiving::Installs(installation) if installation.source.has(from, &piece) => {
                    return Some(Piece::Installs(installation.wait()));
                }
                _ => {}
            }
            if piece.offset != 0 {
                return Some(Piece::Expected(0));
            }
            // The checkpoint of another snapshot is given up.
            *receiving = Receiving::Nothing;
            self.store.lock().abandon_prepared();
            match self.store.begin_received(last.index + 1) {
                Ok(writer) => *receiving = Receiving::Arrives(Incoming::new(from, &piece, writer).ok()?),
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
        let Receiving::Arrives(known) = &mut *receiving else { return None };
        if mutated(Mutation::MixSnapshots) {
            known.source.meta = piece.meta.clone();
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
            *receiving = Receiving::Nothing;
            return None;
        }
        if !piece.bytes.is_empty() {
            known.writer.advanced();
        }
        if !known.is_whole() {
            return Some(Piece::Expected(known.received));
        }
        let Receiving::Arrives(whole) = std::mem::replace(&mut *receiving, Receiving::Nothing) else {
            return None;
        };
        let installation = self.start_install(raft, whole);
        let ended = installation.wait();
        *receiving = Receiving::Installs(installation);
        Some(Piece::Installs(ended))
    }
}
