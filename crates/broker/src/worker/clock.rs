//! Time as the caller of a worker has reported it.

use crate::ids::Time;

/// Time of the current call, and the time by which clients are judged.
///
/// **Invariant:** a client is closed for its silence only after everything that it had sent by then was read.
pub(super) struct Clock {
    now: Time,
    /// Time by which timeouts of clients are judged: all data that clients had sent until then was read. It equals
    /// `now` if the caller does not call [`Self::has_read_until`].
    judged: Time,
    /// True after a call of [`Self::has_read_until`].
    reads_sockets: bool,
}

impl Clock {
    pub fn new(now: Time) -> Self {
        Self { now, judged: now, reads_sockets: false }
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn set(&mut self, now: Time) {
        self.now = now;
    }

    /// Begins a tick. Without sockets, everything that was sent was read.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if !self.reads_sockets {
            self.judged = now;
        }
    }

    /// Time by which timeouts of clients are judged.
    pub fn judged(&self) -> Time {
        self.judged
    }

    /// Declares that all data that clients had sent until `at` was read.
    pub fn has_read_until(&mut self, at: Time) {
        self.reads_sockets = true;
        self.judged = self.judged.max(at);
    }
}
