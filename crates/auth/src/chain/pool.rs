//! Threads on which links work, apart from the reactors.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};

use super::run::Run;
use crate::link::Threads;

/// Two pools: one that computes, and one that waits for servers. So a slow server never delays a password check.
#[derive(Debug)]
pub struct Pools {
    hashing: Pool,
    network: Pool,
}

/// Size of a pool.
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

    /// Starts the threads of a pool if they do not run yet. Not for a reactor.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(&self, threads: Threads) -> std::io::Result<()> {
        self.of(threads).start(threads)
    }

    /// Queues a run. Never waits.
    ///
    /// # Errors
    /// Returns the run when the queue is full.
    pub fn submit(&self, threads: Threads, run: Arc<Run>) -> Result<(), Arc<Run>> {
        let Some(queue) = self.of(threads).queue.get() else { return Err(run) };
        queue.try_send(Job::Run(run.clone())).map_err(|_| run)
    }

    /// Queues other work for the threads that compute. Never waits.
    ///
    /// # Errors
    /// The queue is full, and the work is dropped.
    pub fn submit_other(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), QueueFull> {
        let queue = self.hashing.queue.get().ok_or(QueueFull)?;
        queue.try_send(Job::Other(work)).map_err(|_| QueueFull)
    }

    /// Returns the maximum number of runs that wait for these threads.
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

/// A few threads with a bounded queue. When it is dropped, the threads finish the queue and end.
#[derive(Debug)]
struct Pool {
    size: PoolSize,
    name: &'static str,
    queue: OnceLock<SyncSender<Job>>,
}

/// Work for a thread of a pool.
enum Job {
    Run(Arc<Run>),
    Other(Box<dyn FnOnce() + Send>),
}

/// The queue of a pool is full, or its threads do not run.
#[derive(Debug)]
pub struct QueueFull;

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
        // Two simultaneous starts both succeed. The threads of one of them end, because their queue has no sender.
        self.queue.get_or_init(|| queue);
        Ok(())
    }
}

fn serve(runs: &Mutex<Receiver<Job>>, threads: Threads) {
    loop {
        // The lock is held while waiting for a run, not while working on it.
        let job = sync::lock(runs).recv();
        match job {
            Ok(Job::Run(run)) => run.work(threads),
            Ok(Job::Other(work)) => work(),
            Err(_) => return,
        }
    }
}
