//! Counters of authentication.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::chain::LinkFigures;

/// Number of clients by the result of their authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Clients that a link or SCRAM admitted.
    pub accepted: u64,
    /// Clients that were admitted because a recent success is remembered.
    pub remembered: u64,
    /// Clients that a link or SCRAM refused, or that no link knew.
    pub refused: u64,
    /// Clients that were refused because too many waited.
    pub busy: u64,
    /// Clients without credentials that were refused.
    pub anonymous_refused: u64,
    /// Clients that were refused because of a ban, whatever their credentials.
    pub banned: u64,
    /// Clients that were refused because a link failed.
    pub failed: u64,
    /// Clients that were refused because their time was over.
    pub timed_out: u64,
    /// Clients that were refused without a check, after too many wrong logins.
    pub backed_off: u64,
    /// Clients that were refused because they, or their address, connect too often.
    pub rate_limited: u64,
    /// Clients with correct credentials that were refused because their mountpoint is invalid.
    pub mountpoint_refused: u64,
    /// Part of `accepted` that SCRAM admitted.
    pub scram_accepted: u64,
    /// Part of `refused` that SCRAM refused.
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
