//! The two threads of a log.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::keeper::Keeper;
use crate::state::Shared;
use crate::writer::{Commit, Writer};

/// Running threads. Dropping it stops them as [`stop`](Self::stop) does.
pub struct LogThreads {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// Maximum time that a thread sleeps. Records that wait for room on the disk are tried again at this interval.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Runs the log on threads named `log` and `log-keeper`. While one commit is synced, the next one queues.
///
/// # Errors
/// Fails when the system cannot start a thread.
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
                // An event has reported it to all groups, and it is final.
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
    /// Writes the queued records and ends both threads. Does not wait for room on a full disk.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stop_writer();
        self.shared.stop_keeper();
        for thread in [self.writer.take(), self.keeper.take()].into_iter().flatten() {
            // A thread that panics ends the process.
            let _ = thread.join();
        }
    }
}

impl Drop for LogThreads {
    fn drop(&mut self) {
        self.end();
    }
}
