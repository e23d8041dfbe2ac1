//! The records that the cores agree on, on their way between the fabric and this node's ledger.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use cluster::{Fabric, Letter};
use link::Time;
use registry::{Agree, AgreedLedger, Delivery, Known, Position, Told};

use super::Shared;

/// How often a node that leads looks whether it has something that the cluster has not.
const LOOK: Duration = Duration::from_secs(1);
/// From one look at what is known to the next, unless something comes.
const KNOW: Duration = Duration::from_millis(50);

/// What the thread of the fabric and that of the ledger tell each other.
#[derive(Default)]
pub struct Copies {
    deliveries: OnceLock<SyncSender<Delivery>>,
    known: Mutex<(Known, Option<Time>)>,
    first: Mutex<First>,
}

/// Whether it is known whose records hold here: the first copy is there, or the cluster has none.
#[derive(Default)]
enum First {
    #[default]
    Awaited,
    AwaitedBy(Box<dyn FnOnce() + Send>),
    Here,
}

impl Copies {
    /// Takes from the fabric what has come. Called after each of its turns.
    pub fn tend(&self, now: Time, fabric: &mut Fabric) {
        let Some(deliveries) = self.deliveries.get() else { return };
        while let Some(delivery) = fabric.poll_delivery() {
            // There is room: the next comes when the ledger has taken this one.
            if let Err(TrySendError::Full(_)) = deliveries.try_send(delivery) {
                tracing::error!("a change that the cores agree on found no place on its way to the ledger");
            }
        }
        let mut known = self.lock();
        if known.1.is_some_and(|at| at.after(KNOW) > now) {
            return;
        }
        if let Some(meta) = fabric.meta() {
            let founded = meta.roster().founded;
            let leads = meta.has_quorum(now) && meta.leads(now);
            let revision = meta.records_revision();
            *known = (Known { founded, revision, leads }, Some(now));
            drop(known);
            if founded != 0 && revision == Some(0) {
                self.arrived();
            }
        }
    }

    /// Calls it as soon as it is known whose records hold here; at once, when it is.
    pub fn when_known(&self, call: Box<dyn FnOnce() + Send>) {
        let mut first = self.lock_first();
        match *first {
            First::Here => {
                drop(first);
                call();
            }
            _ => *first = First::AwaitedBy(call),
        }
    }

    fn arrived(&self) {
        let before = std::mem::replace(&mut *self.lock_first(), First::Here);
        if let First::AwaitedBy(call) = before {
            call();
        }
    }

    fn lock_first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, (Known, Option<Time>)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reaches the cores by way of the fabric.
struct Cores(Weak<Shared>);

impl Agree for Cores {
    fn propose(&self, batch: Vec<u8>, told: Told) {
        // Without the fabric nobody is told; who waits gives up.
        if let Some(shared) = self.0.upgrade() {
            shared.wishes.wish_records(shared.sender.get(), batch, told);
        }
    }

    fn known(&self) -> Known {
        self.0.upgrade().map(|shared| shared.copies.lock().0).unwrap_or_default()
    }
}

/// The ledger follows what the cores agree on, on a thread of its own: it waits for the disk.
///
/// # Errors
/// No thread.
pub fn start(shared: &Arc<Shared>, ledger: Arc<AgreedLedger>) -> Result<(), String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    if shared.copies.deliveries.set(sender).is_err() {
        return Err("the records of the cluster are copied already".to_owned());
    }
    ledger.attach(Arc::new(Cores(Arc::downgrade(shared))));
    if ledger.position().founded != 0 {
        shared.copies.arrived();
    }
    let fabric = Arc::downgrade(shared);
    let run = move || {
        let (mut at, mut is_told) = (ledger.position(), false);
        while let Some(shared) = fabric.upgrade() {
            // What the fabric is not there to hear yet is said when it is.
            if !is_told && let Some(sender) = shared.sender.get() {
                is_told = sender.send(Letter::Copied(at)).is_ok();
            }
            drop(shared);
            match receiver.recv_timeout(if is_told { LOOK } else { KNOW }) {
                Ok(delivery) => {
                    let before = at;
                    (at, is_told) = (ledger.take(&delivery), false);
                    if at != Position::default()
                        && at != Position::LOST
                        && let Some(shared) = fabric.upgrade()
                    {
                        shared.copies.arrived();
                    }
                    if at == before {
                        // The disk, or the cores, did not let it: not again at once.
                        // tidy: allow(thread-sleep): a thread of its own with nothing else to do.
                        std::thread::sleep(LOOK);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    ledger.tidy();
                    bring_in(&fabric, &ledger);
                    let known = fabric.upgrade().map(|shared| shared.copies.lock().0).unwrap_or_default();
                    if at == Position::default() && known.founded != 0 && known.revision == Some(0) {
                        at = ledger.take_nothing(known.founded);
                        is_told = at == Position::default();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    let thread = vital::spawn("records", run);
    thread.map(drop).map_err(|error| format!("no thread for the records of the cluster: {error}"))
}

/// What the node had before it founded a cluster.
fn bring_in(shared: &Weak<Shared>, ledger: &AgreedLedger) {
    let leads = shared.upgrade().is_some_and(|shared| shared.copies.lock().0.leads);
    if leads && let Err(error) = ledger.bring_in() {
        tracing::warn!("what this node had before there was a cluster is brought in later: {error}");
    }
}
