//! The threads on which links work, away from the reactors.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::run::Run;
use crate::link::Threads;

/// Two pools, so that a service that answers slowly never holds up a password: one that computes, one that waits.
#[derive(Debug)]
pub struct Pools {
    hashing: Pool,
    network: Pool,
}

/// How large a pool is.
#[derive(Clone, Copy, Debug)]
pub struct PoolSize {
    pub threads: usize,
    pub waiting_max: usize,
}

impl Pools {
    pub fn new(hashing: PoolSize, network: PoolSize) -> Self {
        let pool = |size, name| Pool { size, name, queue: OnceLock::new() };
        Self { hashing: pool(hashing, "password"), network: pool(network, "auth-net") }
    }

    /// Starts the threads of a pool when they do not run yet. Not on a reactor.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(&self, threads: Threads) -> std::io::Result<()> {
        self.of(threads).start(threads)
    }

    /// Queues a run. Never waits.
    ///
    /// # Errors
    /// The run, when the queue is full.
    pub fn submit(&self, threads: Threads, run: Arc<Run>) -> Result<(), Arc<Run>> {
        let Some(queue) = self.of(threads).queue.get() else { return Err(run) };
        queue.try_send(run).map_err(|error| match error {
            TrySendError::Full(run) | TrySendError::Disconnected(run) => run,
        })
    }

    /// Maximum number of runs that wait for these threads.
    pub fn waiting_max(&self, threads: Threads) -> usize {
        self.of(threads).size.waiting_max
    }

    fn of(&self, threads: Threads) -> &Pool {
        match threads {
            Threads::Hashing => &self.hashing,
            Threads::Network => &self.network,
        }
    }
}

/// A few threads and a bounded queue before them. Dropping it lets the threads finish what is queued and end.
#[derive(Debug)]
struct Pool {
    size: PoolSize,
    name: &'static str,
    queue: OnceLock<SyncSender<Arc<Run>>>,
}

impl Pool {
    fn start(&self, threads: Threads) -> std::io::Result<()> {
        if self.queue.get().is_some() {
            return Ok(());
        }
        let (queue, runs) = sync_channel(self.size.waiting_max);
        let runs = Arc::new(Mutex::new(runs));
        for index in 0..self.size.threads {
            let runs = runs.clone();
            critical::spawn(format!("{}-{index}", self.name), move || serve(&runs, threads))?;
        }
        // Two that start it at once both succeed; the threads of one of them end, as nobody sends to them.
        self.queue.get_or_init(|| queue);
        Ok(())
    }
}

fn serve(runs: &Mutex<Receiver<Arc<Run>>>, threads: Threads) {
    loop {
        // The lock is held while waiting for a run, not while working on it.
        let run = runs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(run) = run else { return };
        run.work(threads);
    }
}
