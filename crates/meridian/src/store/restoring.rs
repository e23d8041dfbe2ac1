//! Restores the state of the shards from the log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use broker::SHARDS;
use shard::Shard;
use storage::RecoveredGroup;

use super::SHOWN_EVERY;

/// Progress of all threads together.
struct Progress {
    records: AtomicU64,
    of: u64,
    shown: Mutex<Instant>,
}

/// Number of records that a thread reads between two checks of the clock.
const PROGRESS_INTERVAL: u64 = 64;

impl Progress {
    fn more(&self, records: u64) {
        let done = self.records.fetch_add(records, Ordering::Relaxed) + records;
        let mut shown = sync::lock(&self.shown);
        if shown.elapsed() >= SHOWN_EVERY {
            *shown = Instant::now();
            tracing::info!(records = done, of = self.of, "restoring sessions and queues");
        }
    }
}

/// Restores all shards: checkpoints, and the records after them. Uses as many threads as there are processors.
///
/// # Errors
/// A text that names the unreadable data.
pub fn restore(groups: Vec<RecoveredGroup>, hash_key: [u8; 16]) -> Result<Vec<Shard>, String> {
    let of = groups.iter().map(shardlog::records).sum();
    let progress = Progress { records: AtomicU64::new(0), of, shown: Mutex::new(Instant::now()) };
    let todo = Mutex::new(shardlog::sort(groups)?);
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = todo.lock().map_err(|_| "a thread panicked".to_owned())?.pop();
            let Some((id, group)) = next else { return Ok::<_, String>(done) };
            let mut read = 0;
            let mut more = || {
                read += 1;
                if read % PROGRESS_INTERVAL == 0 {
                    progress.more(PROGRESS_INTERVAL);
                }
            };
            done.push(shardlog::restore(id, group, hash_key, &mut more)?);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(usize::from(SHARDS));
    let mut shards = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in running {
            all.extend(thread.join().map_err(|_| "a thread panicked".to_owned())??);
        }
        Ok::<_, String>(all)
    })?;
    shards.sort_by_key(Shard::id);
    Ok(shards)
}
