//! Wall clocks of the nodes, and the time that the shards follow. One clock at a time is wrong.
//!
//! A simple cluster router: a node knows the clocks of the nodes that it reaches, and of two replicants. The time of
//! shards follows most of them, as soon as these are a majority of all nodes. So no session ends early and no message
//! is lost, although the node with the wrong clock leads. Without the replicants, a dead core and a wrong clock of
//! another one would leave no majority. A new leader does not know then for how long the shard had none, and deadlines
//! may come early by that.

use broker::Slew;
use random::Random;

use super::world::AgreedShards;
use crate::schedule::MILLI;

/// Time in milliseconds at which the simulation begins, by a right clock.
const BEGAN_MS: u64 = 400 * DAY_MS;
const DAY_MS: u64 = 24 * 3_600_000;
/// Maximum difference of clocks that agree, in milliseconds.
const AGREES_MS: i64 = 2_000;
/// Number of replicants, whose clocks are right.
const REPLICANTS: usize = 2;

/// Wall clock of a node.
#[derive(Default)]
pub struct WallClock {
    /// Time in milliseconds by which it is ahead of a right clock.
    pub ahead_ms: i64,
    /// Time by which the clock of most nodes is ahead of the time of the node's process.
    followed: Option<Slew>,
}

impl WallClock {
    /// Begins another process. Returns the time in milliseconds at which it begins, by this clock.
    pub fn start(&mut self, now_ms: u64) -> u64 {
        self.followed = None;
        (BEGAN_MS + now_ms).saturating_add_signed(self.ahead_ms)
    }
}

/// A wrong clock, in milliseconds ahead of a right one.
pub fn wrong(random: &mut Random) -> i64 {
    let day = DAY_MS.cast_signed();
    *random.pick(&[2 * day, -2 * day, 3_600_000, -3_600_000, 10_000, -10_000])
}

impl AgreedShards {
    /// Sets the clock of a node. All others are right then.
    pub(super) fn set_clock(&mut self, node: usize, ahead_ms: i64) {
        self.cx.report.agreed_clocks_set += 1;
        for (at, host) in self.hosts.iter_mut().enumerate() {
            host.wall.ahead_ms = if at == node { ahead_ms } else { 0 };
        }
    }

    /// Lets each node compare its clock with those that it reaches.
    pub(super) fn compare_clocks(&mut self) {
        let now = self.cx.now();
        let is_awake = |at: usize| self.hosts[at].node.as_ref().is_some_and(|node| !node.is_paused(now));
        let known: Vec<Vec<i64>> = (0..self.hosts.len())
            .map(|at| {
                let reached = |other: &usize| *other == at || self.losses(at, *other).is_some();
                let others = (0..self.hosts.len()).filter(|other| is_awake(*other)).filter(reached);
                others.map(|other| self.hosts[other].wall.ahead_ms).collect()
            })
            .collect();
        let majority = self.hosts.len() / 2 + 1;
        for (host, mut clocks) in self.hosts.iter_mut().zip(known) {
            let Some(node) = host.node.as_ref().filter(|node| !node.is_paused(now)) else { continue };
            clocks.extend([0; REPLICANTS]);
            clocks.sort_unstable();
            let Some(middle) = clocks.get(clocks.len() / 2).copied() else { continue };
            let agreeing = clocks.iter().filter(|ahead| (*ahead - middle).abs() <= AGREES_MS).count();
            if agreeing < majority || 2 * agreeing <= clocks.len() {
                continue;
            }
            let now_ms = now / MILLI;
            let wall = (BEGAN_MS + now_ms).saturating_add_signed(middle).cast_signed();
            let ahead = wall - node.time(&self.cx).0.cast_signed();
            let followed = host.wall.followed.get_or_insert_with(|| Slew::new(now_ms, ahead));
            followed.move_towards(now_ms, ahead);
            let base = node.broker().began().0.saturating_add_signed(followed.ahead_ms());
            node.broker().set_cluster_clock(Some(base));
        }
    }
}
