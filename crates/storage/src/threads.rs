//! The two threads of a log.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::keeper::Keeper;
use crate::state::Shared;
use crate::writer::{Commit, Writer};

/// The threads at work; dropping it stops them as [`stop`](Self::stop) does.
pub struct LogThreads {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// How long a thread sleeps at most: what waits for room on the disk is tried again that often.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs the log on threads named `log` and `log-keeper`: while one commit is synced, the next one queues.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(mut writer: Writer, mut keeper: Keeper) -> io::Result<LogThreads> {
    let shared = writer.shared().clone();
    let mut threads = LogThreads { shared: shared.clone(), writer: None, keeper: None };
    threads.writer = Some(critical::spawn("log", move || {
        loop {
            match writer.commit_once() {
                Ok(Commit::Wrote { .. }) => {}
                Ok(Commit::Idle) => {
                    if !writer.wait(WAIT_MAX, false) {
                        return;
                    }
                }
                Ok(Commit::NoRoom) => {
                    if !writer.wait(WAIT_MAX, true) {
                        return;
                    }
                }
                // Told to everybody by an event; nothing will change it.
                Err(_) => return,
            }
        }
    })?);
    threads.keeper = Some(critical::spawn("log-keeper", move || {
        while keeper.wait(WAIT_MAX) {
            keeper.keep();
            keeper.report(Instant::now());
        }
    })?);
    shared.kick_keeper();
    Ok(threads)
}

impl LogThreads {
    /// Writes what is queued and ends both threads. What waits for room on a full disk is not waited for.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop_writer();
        self.shared.stop_keeper();
        for thread in [self.writer.take(), self.keeper.take()].into_iter().flatten() {
            // One that panics ends the process.
            let _ = thread.join();
        }
    }
}

impl Drop for LogThreads {
    fn drop(&mut self) {
        self.end();
    }
}
