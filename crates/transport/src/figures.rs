use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of a transport since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Current number of sockets, in any stage.
    pub connections: u64,
    pub accepted: u64,
    /// Connections that could not be accepted, for example for lack of file descriptors.
    pub accept_errors: u64,
    pub dialed: u64,
    /// Connections that TLS ended.
    pub tls_errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub reads: u64,
    pub writes: u64,
    /// Writes that the socket accepted only in part.
    pub blocked: u64,
    pub turns: u64,
    /// Times that the thread slept and was woken by a command.
    pub wakeups: u64,
    pub commands: u64,
    /// True when the configured congestion control is not available: the kernel's default is used.
    pub is_congestion_refused: bool,
}

/// Live counters behind [`Figures`]: one thread writes, any thread reads.
#[derive(Debug, Default)]
pub struct Counts {
    pub connections: AtomicU64,
    pub accepted: AtomicU64,
    pub accept_errors: AtomicU64,
    pub dialed: AtomicU64,
    pub tls_errors: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub blocked: AtomicU64,
    pub turns: AtomicU64,
    pub wakeups: AtomicU64,
    pub commands: AtomicU64,
    pub is_congestion_refused: AtomicBool,
}

/// Adds to a counter that no other thread writes, without a locked instruction.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

impl Counts {
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            connections: of(&self.connections),
            accepted: of(&self.accepted),
            accept_errors: of(&self.accept_errors),
            dialed: of(&self.dialed),
            tls_errors: of(&self.tls_errors),
            bytes_read: of(&self.bytes_read),
            bytes_written: of(&self.bytes_written),
            reads: of(&self.reads),
            writes: of(&self.writes),
            blocked: of(&self.blocked),
            turns: of(&self.turns),
            wakeups: of(&self.wakeups),
            commands: of(&self.commands),
            is_congestion_refused: self.is_congestion_refused.load(Ordering::Relaxed),
        }
    }
}
