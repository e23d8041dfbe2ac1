//! Rate of the Claims of a shard: commands of very many clients wait for each other.

use std::time::Duration;

use crate::ids::Time;
use crate::store::replica::Urgency;

/// Time in which Claims are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// Number of Claims of one window from which on they wait for each other. A cluster has 16 shards, so that is 1,600
/// connects a second.
const MANY: u32 = 10;

/// Rate of the Claims of a shard. A Claim of a single client is proposed at once. When very many clients connect, a few
/// milliseconds make no difference to them, and a batch, its frames and its sync serve several of them.
#[derive(Default)]
pub(super) struct ClaimRate {
    /// Start of the current window.
    since: Time,
    claims: u32,
    /// Number of Claims of the window before.
    before: u32,
}

impl ClaimRate {
    /// Counts a Claim.
    pub fn count(&mut self, now: Time) {
        let passed = now.since(self.since);
        if passed >= WINDOW {
            self.before = if passed < 2 * WINDOW { self.claims } else { 0 };
            (self.since, self.claims) = (now, 0);
        }
        self.claims += 1;
    }

    /// Urgency of a Claim, or of a subscription.
    pub fn urgency(&self, now: Time) -> Urgency {
        let passed = now.since(self.since);
        let claims = if passed < WINDOW { self.claims.max(self.before) } else { self.claims };
        if claims >= MANY && passed < 2 * WINDOW { Urgency::Soon } else { Urgency::Now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_wait_for_each_other_only_while_there_are_many() {
        let mut rate = ClaimRate::default();
        let mut count = |at: u64| {
            rate.count(Time(at));
            rate.urgency(Time(at)) == Urgency::Soon
        };
        for n in 0..9 {
            assert!(!count(1_000 + n), "{n}");
        }
        assert!(count(1_009));
        // The next window knows how many there were in the last one.
        assert!(count(1_100) && count(1_199));
        // There were two in that.
        assert!(!count(1_200));
        for n in 0..8 {
            assert!(!count(1_201 + n), "{n}");
        }
        assert!(count(1_299));
        let is_soon = |at: u64| rate.urgency(Time(at)) == Urgency::Soon;
        assert!(is_soon(1_300) && is_soon(1_399) && !is_soon(1_400));
    }
}
