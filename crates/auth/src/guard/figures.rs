//! What happened at the door.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::chain::LinkFigures;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Clients that a link or SCRAM let in.
    pub accepted: u64,
    /// Clients that were let in as they had been a short while ago.
    pub remembered: u64,
    /// Clients that a link or SCRAM refused, or that none knew.
    pub refused: u64,
    /// Clients that were sent away because too many waited.
    pub busy: u64,
    /// Clients that showed nothing and were refused.
    pub anonymous_refused: u64,
    /// Clients that were refused because of a ban, whatever else they had.
    pub banned: u64,
    /// Clients that were refused because a link could not find out.
    pub failed: u64,
    /// Clients that were refused because their time was out.
    pub timed_out: u64,
    /// Clients that were refused unchecked, after too many wrong logins.
    pub backed_off: u64,
    /// Clients that were refused because they, or their address, connect too often.
    pub rate_limited: u64,
    /// Clients that were right, and refused as they cannot have their mountpoint.
    pub mountpoint_refused: u64,
    /// Of `accepted`, those by SCRAM.
    pub scram_accepted: u64,
    /// Of `refused`, those by SCRAM.
    pub scram_refused: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub accepted: AtomicU64,
    pub remembered: AtomicU64,
    pub refused: AtomicU64,
    pub busy: AtomicU64,
    pub anonymous_refused: AtomicU64,
    pub banned: AtomicU64,
    pub failed: AtomicU64,
    pub timed_out: AtomicU64,
    pub backed_off: AtomicU64,
    pub rate_limited: AtomicU64,
    pub mountpoint_refused: AtomicU64,
}

impl Counters {
    pub fn figures(&self, scram: &LinkFigures) -> Figures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            accepted: value(&self.accepted) + scram.accepted,
            remembered: value(&self.remembered),
            refused: value(&self.refused) + scram.refused,
            busy: value(&self.busy),
            anonymous_refused: value(&self.anonymous_refused),
            banned: value(&self.banned),
            failed: value(&self.failed),
            timed_out: value(&self.timed_out),
            backed_off: value(&self.backed_off),
            rate_limited: value(&self.rate_limited),
            mountpoint_refused: value(&self.mountpoint_refused),
            scram_accepted: scram.accepted,
            scram_refused: scram.refused,
        }
    }
}
