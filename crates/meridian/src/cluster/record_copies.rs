//! Replicated records: the queue between the cluster router and this node's configuration store.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use cluster::{ClusterRouter, RouterCommand};
use configstore::{ClusterState, Position, ProposalCallback, Proposer, RecordUpdate, ReplicatedStore};
use link::Time;

use super::Shared;
use super::known::WhenKnown;

/// Interval at which a leader checks for records of its own that the cluster lacks.
const LEADER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the known state of the cluster is refreshed, unless records arrive.
const KNOWN_INTERVAL: Duration = Duration::from_millis(50);

/// State that the threads of the cluster router and of the configuration store share.
#[derive(Default)]
pub struct RecordCopies {
    deliveries: OnceLock<SyncSender<RecordUpdate>>,
    cluster_state: Mutex<(ClusterState, Option<Time>)>,
    /// The first copy. It counts as known when the cluster has no records.
    pub first: WhenKnown,
}

impl RecordCopies {
    /// Forwards record updates that the cluster router received. Called after each of its turns.
    pub fn poll(&self, now: Time, router: &mut ClusterRouter) {
        let Some(deliveries) = self.deliveries.get() else { return };
        while let Some(delivery) = router.poll_delivery() {
            // The channel has room: the router hands out the next update when the store has taken this one.
            if let Err(TrySendError::Full(_)) = deliveries.try_send(delivery) {
                tracing::error!(
                    "a replicated change was dropped on its way to the configuration \
                     store: its queue is full"
                );
            }
        }
        let mut cluster_state = self.lock();
        if cluster_state.1.is_some_and(|at| at.after(KNOWN_INTERVAL) > now) {
            return;
        }
        let meta = router.meta();
        let founded = meta.roster().founded;
        let leads = meta.has_quorum(now) && meta.leads(now);
        let revision = meta.records_revision();
        *cluster_state = (ClusterState { founded, revision, leads }, Some(now));
        drop(cluster_state);
        if founded != 0 && revision == Some(0) {
            self.first.known();
        }
    }

    fn lock(&self) -> MutexGuard<'_, (ClusterState, Option<Time>)> {
        sync::lock(&self.cluster_state)
    }
}

/// Proposes to the cores through the cluster router.
struct Cores(Weak<Shared>);

impl Proposer for Cores {
    fn propose(&self, batch: Vec<u8>, callback: ProposalCallback) {
        // Without the cluster router the callback is dropped, which ends the wait.
        if let Some(shared) = self.0.upgrade() {
            shared.proposals.propose_records(shared.sender.get(), batch, callback);
        }
    }

    fn cluster_state(&self) -> ClusterState {
        self.0.upgrade().map(|shared| shared.record_copies.lock().0).unwrap_or_default()
    }
}

/// Starts the thread that copies replicated records to the configuration store. It has a thread of its own because it
/// waits for the disk.
///
/// # Errors
/// The thread cannot be started.
pub fn start(shared: &Arc<Shared>, config_store: Arc<ReplicatedStore>) -> Result<(), String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    if shared.record_copies.deliveries.set(sender).is_err() {
        return Err("the records of the cluster are copied already".to_owned());
    }
    config_store.attach(Arc::new(Cores(Arc::downgrade(shared))));
    if config_store.position().founded != 0 {
        shared.record_copies.first.known();
    }
    let router = Arc::downgrade(shared);
    let run = move || {
        let (mut at, mut is_reported) = (config_store.position(), false);
        while let Some(shared) = router.upgrade() {
            // The position is reported again once the cluster router exists.
            if !is_reported && let Some(sender) = shared.sender.get() {
                is_reported = sender.send(RouterCommand::RecordsCopied(at)).is_ok();
            }
            drop(shared);
            match receiver.recv_timeout(if is_reported { LEADER_POLL_INTERVAL } else { KNOWN_INTERVAL }) {
                Ok(delivery) => {
                    let before = at;
                    (at, is_reported) = (config_store.take(&delivery), false);
                    if at != Position::default()
                        && at != Position::LOST
                        && let Some(shared) = router.upgrade()
                    {
                        shared.record_copies.first.known();
                    }
                    if at == before {
                        // The disk or the cores refused the update: wait before the next try.
                        // tidy: allow(thread-sleep): a thread of its own with nothing else to do.
                        std::thread::sleep(LEADER_POLL_INTERVAL);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    config_store.tidy();
                    import_own_records(&router, &config_store);
                    let cluster_state =
                        router.upgrade().map(|shared| shared.record_copies.lock().0).unwrap_or_default();
                    if at == Position::default()
                        && cluster_state.founded != 0
                        && cluster_state.revision == Some(0)
                    {
                        at = config_store.init_empty(cluster_state.founded);
                        is_reported = at == Position::default();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    let thread = critical::spawn("records", run);
    thread.map(drop).map_err(|error| format!("no thread for the records of the cluster: {error}"))
}

/// Imports the records that the node had before it founded a cluster.
fn import_own_records(shared: &Weak<Shared>, config_store: &ReplicatedStore) {
    let leads = shared.upgrade().is_some_and(|shared| shared.record_copies.lock().0.leads);
    if leads && let Err(error) = config_store.import_own_records() {
        tracing::warn!(
            "records from before the cluster was founded are not imported yet, the \
             import is tried again: {error}"
        );
    }
}
