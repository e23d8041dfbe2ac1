//! Time of a shard whose replicas are on several nodes.
//!
//! Sessions, Wills and messages of a shard end by the clock of its state. It moves with the batches of the leader. Each
//! replica continues it by its own monotonic clock, so the clock of the machine decides nothing. When a leader begins,
//! it makes up for the time in which no replica ran: it sets the time to that of most nodes, if that is later. From
//! then on the time changes its speed only, by a hundredth.
//!
//! **Invariant:** the time of a shard never goes back, and it follows no clock of one machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use shard::{Mutation, mutated};

use crate::ids::Time;
use crate::node::NodeLoad;

/// Clock of most nodes of the cluster, as far as this node knows it.
#[derive(Debug, Default)]
pub struct ClusterClock {
    /// Time in milliseconds by which it is ahead of the time of this node, or [`UNKNOWN`]. A node that compares its
    /// clock with no other follows its own.
    ahead: AtomicI64,
    /// A new leader has waited in vain until the clock was known. No other one waits.
    is_given_up: AtomicBool,
}

const UNKNOWN: i64 = i64::MIN;

impl ClusterClock {
    /// Sets the time by which the clock is ahead of the time of this node; `None` while most nodes do not agree.
    pub fn set(&self, ahead: Option<i64>) {
        self.ahead.store(ahead.unwrap_or(UNKNOWN), Relaxed);
    }

    /// Returns the time by which the clock is ahead of the time of this node, if it is known.
    pub fn ahead(&self) -> Option<i64> {
        if mutated(Mutation::FollowOwnClock) {
            return Some(0);
        }
        Some(self.ahead.load(Relaxed)).filter(|ahead| *ahead != UNKNOWN)
    }
}

/// Difference of two clocks, which changes by at most a hundredth of the time that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slew {
    ahead_ms: i64,
    /// Time of a monotonic clock up to which the difference has changed, in milliseconds.
    moved: u64,
}

/// Time in which the difference changes by 1.
const SLOWNESS: u64 = 100;

impl Slew {
    pub fn new(now_ms: u64, ahead_ms: i64) -> Self {
        Self { ahead_ms, moved: now_ms }
    }

    pub fn ahead_ms(&self) -> i64 {
        self.ahead_ms
    }

    /// Moves the difference towards another one, as far as the time since the last call allows.
    pub fn move_towards(&mut self, now_ms: u64, target_ms: i64) {
        let steps = now_ms.saturating_sub(self.moved) / SLOWNESS;
        let distance = target_ms.saturating_sub(self.ahead_ms);
        let most = steps.cast_signed();
        self.ahead_ms = self.ahead_ms.saturating_add(distance.clamp(-most, most));
        self.moved = if self.ahead_ms == target_ms { now_ms } else { self.moved + steps * SLOWNESS };
    }
}

/// Time of one shard, on a node with one of its replicas.
pub(super) struct ShardClock {
    load: Arc<NodeLoad>,
    /// Time by which the shard is ahead of the time of this node; `None` before the first batch of a new shard.
    slew: Option<Slew>,
}

/// Maximum time for which a new leader waits until the clock of most nodes is known. Nodes compare their clocks within
/// about three seconds of a start.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which it looks.
pub(super) const WAIT: Duration = Duration::from_millis(50);

impl ShardClock {
    pub fn new(load: Arc<NodeLoad>) -> Self {
        Self { load, slew: None }
    }

    /// Notes that the clock of the state has reached a time. The state of a new shard has none.
    pub fn observe(&mut self, now: Time, state_ms: u64) {
        if state_ms == 0 {
            return;
        }
        let ahead = difference(state_ms, now.0);
        if self.slew.is_none_or(|slew| slew.ahead_ms < ahead) {
            self.slew = Some(Slew::new(now.0, ahead));
        }
    }

    /// Returns whether a new leader has to wait until the clock of most nodes is known.
    pub fn awaits_cluster(&self) -> bool {
        let clock = &self.load.cluster_clock;
        clock.ahead().is_none() && !clock.is_given_up.load(Relaxed)
    }

    /// Notes that the clock of most nodes was not known in time.
    pub fn give_up(&self) {
        self.load.cluster_clock.is_given_up.store(true, Relaxed);
    }

    /// Begins a period in which this node leads the shard. The time that has passed while no replica ran counts from
    /// now on.
    pub fn lead(&mut self, now: Time) {
        let of_cluster = self.load.cluster_clock.ahead();
        let ahead = match self.slew {
            Some(slew) => of_cluster.map_or(slew.ahead_ms, |ahead| ahead.max(slew.ahead_ms)),
            None => of_cluster.unwrap_or(0),
        };
        self.slew = Some(Slew::new(now.0, ahead));
    }

    /// Continues towards the clock of most nodes, and returns the time of the shard.
    pub fn advance(&mut self, now: Time) -> u64 {
        if let (Some(slew), Some(target)) = (&mut self.slew, self.load.cluster_clock.ahead()) {
            slew.move_towards(now.0, target);
        }
        shifted(now.0, self.ahead_ms())
    }

    /// The same for reads of a replica that follows. It may have started while nothing happened to the shard, and not
    /// know for how long.
    pub fn read_ahead_ms(&self) -> i64 {
        let ahead = self.ahead_ms();
        self.load.cluster_clock.ahead().map_or(ahead, |of_cluster| of_cluster.max(ahead))
    }

    /// Time by which the shard is ahead of the time of this node, in milliseconds.
    pub fn ahead_ms(&self) -> i64 {
        self.slew.map_or_else(|| self.load.cluster_clock.ahead().unwrap_or(0), |slew| slew.ahead_ms)
    }
}

/// Adds a difference to a time. [`shard::NEVER`] stays, and no other time becomes that.
pub(crate) fn shifted(ms: u64, ahead_ms: i64) -> u64 {
    if ms == shard::NEVER { ms } else { ms.saturating_add_signed(ahead_ms).min(shard::NEVER - 1) }
}

fn difference(one: u64, other: u64) -> i64 {
    i64::try_from(i128::from(one) - i128::from(other)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use shard::NEVER;

    use super::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;

    /// Clock of a node whose time is `cluster_ahead` behind that of most nodes.
    fn clock(cluster_ahead: Option<i64>) -> (ShardClock, Arc<NodeLoad>) {
        let load = Arc::<NodeLoad>::default();
        load.cluster_clock.set(cluster_ahead);
        (ShardClock::new(load.clone()), load)
    }

    #[test]
    fn a_new_leader_makes_up_for_the_time_without_one() {
        let (mut clock, _) = clock(Some(0));
        clock.observe(Time(5 * HOUR), 2 * HOUR);
        assert_eq!(clock.advance(Time(5 * HOUR)), 2 * HOUR);
        clock.lead(Time(5 * HOUR));
        assert_eq!(clock.advance(Time(5 * HOUR)), 5 * HOUR);
    }

    #[test]
    fn a_leader_whose_own_clock_is_ahead_follows_the_others() {
        let (mut clock, _) = clock(Some(-(DAY.cast_signed())));
        clock.observe(Time(DAY + HOUR), HOUR);
        clock.lead(Time(DAY + HOUR));
        assert_eq!(clock.advance(Time(DAY + HOUR + 7)), HOUR + 7);
    }

    #[test]
    fn a_clock_that_jumps_changes_the_speed_only() {
        let (mut clock, load) = clock(Some(0));
        clock.observe(Time(HOUR), HOUR);
        clock.lead(Time(HOUR));
        for (jump, expected) in [(DAY.cast_signed(), HOUR + 1_000), (-(DAY.cast_signed()), HOUR - 1_000)] {
            load.cluster_clock.set(Some(jump));
            clock.slew = Some(Slew::new(HOUR, 0));
            let mut last = HOUR;
            for passed in 0..=100_000 {
                let now = clock.advance(Time(HOUR + passed));
                assert!(now >= last, "it never goes back");
                last = now;
            }
            assert_eq!(last, expected + 100_000);
        }
        load.cluster_clock.set(None);
        let before = clock.advance(Time(HOUR + 100_000));
        assert_eq!(clock.advance(Time(HOUR + 300_000)), before + 200_000, "no other clock is known");
    }

    #[test]
    fn a_replica_continues_the_time_of_its_leader() {
        let (mut clock, _) = clock(Some(0));
        clock.observe(Time(HOUR), 2 * HOUR);
        clock.observe(Time(HOUR + 1_000), 2 * HOUR);
        clock.lead(Time(HOUR + 3_000));
        assert_eq!(clock.advance(Time(HOUR + 3_000)), 2 * HOUR + 3_000, "not behind the leader before");
    }

    #[test]
    fn a_new_shard_begins_at_the_time_of_most_nodes() {
        let begins = |cluster_ahead| {
            let (mut clock, _) = clock(cluster_ahead);
            clock.observe(Time(HOUR), 0);
            clock.lead(Time(HOUR));
            clock.advance(Time(HOUR))
        };
        assert_eq!((begins(Some(5)), begins(Some(-5)), begins(None)), (HOUR + 5, HOUR - 5, HOUR));
    }

    #[test]
    fn a_replica_that_was_idle_reads_by_the_time_of_most_nodes() {
        let (mut clock, load) = clock(Some(0));
        clock.observe(Time(5 * HOUR), 2 * HOUR);
        assert_eq!((clock.ahead_ms(), clock.read_ahead_ms()), (-3 * HOUR.cast_signed(), 0));
        load.cluster_clock.set(None);
        assert_eq!(clock.read_ahead_ms(), clock.ahead_ms());
        assert!(clock.awaits_cluster());
        clock.give_up();
        assert!(!clock.awaits_cluster());
    }

    #[test]
    fn no_time_becomes_never() {
        for ahead in [i64::MIN, -1, 0, 1, i64::MAX] {
            assert_eq!(shifted(NEVER, ahead), NEVER);
            assert!([0, 1, NEVER - 1].into_iter().all(|ms| shifted(ms, ahead) < NEVER));
        }
        let mut slew = Slew::new(0, i64::MIN);
        slew.move_towards(u64::MAX, i64::MAX);
        slew.move_towards(0, i64::MIN);
        assert_eq!(difference(u64::MAX, 0), i64::MAX);
    }
}
