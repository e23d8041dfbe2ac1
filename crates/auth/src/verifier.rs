//! The threads that hash passwords, away from the reactors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use broker::access::{AuthReply, Verdict};
use mqtt::ReasonCode;

use crate::password_file::Candidate;
use crate::password_hash::{PasswordHash, Scratch};
use crate::recent::{Fingerprint, Recent};

/// A few threads and a bounded queue before them. Dropping it lets the threads finish what is queued and end.
#[derive(Debug)]
pub struct Verifier {
    queue: SyncSender<Job>,
    counters: Arc<Counters>,
}

/// One password to verify.
#[derive(Debug)]
pub struct Job {
    stored: Arc<PasswordHash>,
    password: Vec<u8>,
    /// Where success is remembered; `None` when the answer is no in any case.
    fingerprint: Option<Fingerprint>,
    reply: Reply,
}

struct Reply(AuthReply);

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthReply")
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub busy: AtomicU64,
}

impl Job {
    /// `None` for a candidate that needs no work.
    pub fn new(
        candidate: Candidate,
        username: &str,
        password: &[u8],
        recent: &Recent,
        reply: AuthReply,
    ) -> Option<Self> {
        let (stored, fingerprint) = match candidate {
            Candidate::User(stored) => {
                let fingerprint = recent.fingerprint(username, password, &stored);
                (stored, Some(fingerprint))
            }
            Candidate::Decoy(stored) => (stored, None),
            Candidate::Nobody => return None,
        };
        Some(Self { stored, password: password.to_owned(), fingerprint, reply: Reply(reply) })
    }
}

impl Verifier {
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(threads: usize, waiting_max: usize, recent: &Arc<Recent>) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(waiting_max);
        let jobs = Arc::new(Mutex::new(jobs));
        let counters = Arc::new(Counters::default());
        for index in 0..threads {
            let (jobs, recent, counters) = (jobs.clone(), recent.clone(), counters.clone());
            std::thread::Builder::new()
                .name(format!("password-{index}"))
                .spawn(move || run(&jobs, &recent, &counters))?;
        }
        Ok(Self { queue, counters })
    }

    /// Queues a job; when the queue is full, the client is told that the server is busy (0x89). Never waits.
    pub fn submit(&self, job: Job) {
        match self.queue.try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                self.counters.busy.fetch_add(1, Ordering::Relaxed);
                job.reply.0.complete(Verdict::Deny(ReasonCode::ServerBusy));
            }
        }
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn run(jobs: &Mutex<Receiver<Job>>, recent: &Recent, counters: &Counters) {
    let mut scratch = Scratch::default();
    loop {
        // The lock is held while waiting for a job, not while working on it.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { stored, password, fingerprint, reply }) = job else { return };
        let right = stored.verify(&password, &mut scratch);
        let verdict = match fingerprint {
            Some(fingerprint) if right => {
                recent.insert(fingerprint, Instant::now());
                counters.accepted.fetch_add(1, Ordering::Relaxed);
                Verdict::Allow
            }
            _ => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
                Verdict::Deny(ReasonCode::BadUserNameOrPassword)
            }
        };
        reply.0.complete(verdict);
    }
}
