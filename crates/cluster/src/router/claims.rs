//! Regions from which the clients of each shard connect, so that its leader can be near them.
//!
//! Only the leader of a shard sees its Claims. So a core knows the regions of the shards that it leads, and moves those
//! only.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{SHARDS, ShardId};
use link::{NodeId, Time};

use super::ClusterRouter;
use crate::config::LeaderPolicy;

/// Time between two looks at the Claims.
const LOOK: Duration = Duration::from_secs(10);
/// Part of the earlier Claims that counts less at each look: half of them are forgotten after about a minute.
const FADE: u64 = 8;
/// Value of one Claim, so that few of them fade too.
const CLAIM: u64 = 1_000;
/// Number of recent Claims from which on a region can be chosen.
const CLAIMS_MIN: u64 = 20;
/// Share of the Claims, in percent, from which on a region is chosen. A leader does not move back and forth between two
/// regions with about as many clients.
const SHARE_MIN: u64 = 60;

/// Preferred region of each shard that this node leads.
#[derive(Debug, Default)]
pub(super) struct ClaimRegions {
    due: Time,
    shards: [Option<ShardClaims>; SHARDS as usize],
    version: u64,
}

#[derive(Debug)]
struct ShardClaims {
    /// Region of the leader, until most Claims come from another.
    region: Box<str>,
    recent: BTreeMap<Box<str>, u64>,
}

impl ClaimRegions {
    pub fn due(&self) -> Time {
        self.due
    }

    /// Returns a number that grows when [`Self::region`] of a shard changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the region in which a shard should be led; `None` if this node does not lead it.
    pub fn region(&self, shard: ShardId) -> Option<&str> {
        self.shards.get(shard.index())?.as_ref().map(|claims| &*claims.region)
    }

    /// Learns of the Claims since the last call, by region. Returns the shards with another region than before.
    fn learn(
        &mut self,
        now: Time,
        own: &str,
        leads: impl Fn(ShardId) -> bool,
        claims: &[(ShardId, Box<str>, u64)],
    ) -> Vec<ShardId> {
        self.due = now.after(LOOK);
        let mut moved = Vec::new();
        for (shard, known) in (0..).map(ShardId).zip(&mut self.shards) {
            if !leads(shard) {
                self.version += u64::from(known.take().is_some());
                continue;
            }
            let known = known.get_or_insert_with(|| {
                self.version += 1;
                ShardClaims { region: own.into(), recent: BTreeMap::new() }
            });
            for (_, region, count) in claims.iter().filter(|(of, ..)| *of == shard) {
                *known.recent.entry(region.clone()).or_default() += count * CLAIM;
            }
            if let Some(region) = known.most() {
                known.region = region;
                self.version += 1;
                moved.push(shard);
            }
            known.recent.values_mut().for_each(|count| *count -= count.div_ceil(FADE));
            known.recent.retain(|_, count| *count > 0);
        }
        moved
    }
}

impl ShardClaims {
    /// Returns the region from which most Claims come, if it is not the present one.
    fn most(&self) -> Option<Box<str>> {
        let sum: u64 = self.recent.values().sum();
        let (region, most) = self.recent.iter().max_by_key(|(_, count)| **count)?;
        let is_clear = sum >= CLAIMS_MIN * CLAIM && most * 100 >= sum * SHARE_MIN;
        (is_clear && *region != self.region).then(|| region.clone())
    }
}

impl ClusterRouter {
    /// Looks from where the clients of this node's shards connect, if their leaders follow them.
    pub(super) fn follow_claims(&mut self, now: Time) {
        if self.config.leaders != LeaderPolicy::Follow || now < self.claims.due() {
            return;
        }
        let roster = self.membership.meta.roster();
        let region_of = |node: u64| roster.members.get(&NodeId(node)).map(|it| it.info.region.clone());
        let taken = self.node.take_claim_origins().into_iter();
        let claims: Vec<_> =
            taken.filter_map(|(shard, node, count)| Some((shard, region_of(node)?, count))).collect();
        let own = &self.config.own.region;
        let moved = self.claims.learn(now, own, |shard| self.shards.is_led_here(shard), &claims);
        for shard in moved {
            let region = self.claims.region(shard).unwrap_or_default();
            tracing::info!(
                shard = shard.0,
                region,
                "most clients of shard {} connect in region `{region}`: a core there should lead it (cluster.leaders)",
                shard.0
            );
        }
    }

    /// Returns the time of the next look at the Claims.
    pub(super) fn claims_due(&self) -> Time {
        if self.config.leaders == LeaderPolicy::Follow { self.claims.due() } else { Time::NEVER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(3);

    fn look(regions: &mut ClaimRegions, claims: &[(&str, u64)]) -> bool {
        let claims: Vec<_> = claims.iter().map(|(region, count)| (SHARD, (*region).into(), *count)).collect();
        let now = regions.due();
        let moved = regions.learn(now, "home", |shard| shard == SHARD, &claims);
        assert!(moved.iter().all(|shard| *shard == SHARD));
        !moved.is_empty()
    }

    #[test]
    fn a_shard_stays_in_its_leaders_region_until_most_claims_come_from_another() {
        let mut regions = ClaimRegions::default();
        assert_eq!(regions.region(SHARD), None);
        assert!(!look(&mut regions, &[("far", CLAIMS_MIN - 1)]));
        assert_eq!(regions.region(SHARD), Some("home"));
        // Of those before, one eighth is forgotten.
        assert!(look(&mut regions, &[("far", 5)]));
        assert_eq!((regions.region(SHARD), regions.region(ShardId(4))), (Some("far"), None));
        assert!(!look(&mut regions, &[("far", 5)]));
    }

    #[test]
    fn a_leader_does_not_move_between_regions_with_as_many_clients() {
        let mut regions = ClaimRegions::default();
        for round in 0..100 {
            let (home, far) = if round % 2 == 0 { (41, 59) } else { (59, 41) };
            assert!(!look(&mut regions, &[("home", home), ("far", far)]), "round {round}");
        }
        assert!((0..100).any(|_| look(&mut regions, &[("home", 39), ("far", 61)])));
    }

    #[test]
    fn few_claims_long_ago_do_not_count() {
        let mut regions = ClaimRegions::default();
        for _ in 0..100 {
            // Four in two minutes.
            for claims in [&[("far", 4)][..], &[], &[], &[], &[], &[], &[], &[], &[], &[], &[], &[]] {
                assert!(!look(&mut regions, claims));
            }
        }
        (0..200).for_each(|_| assert!(!look(&mut regions, &[])));
        assert!(regions.shards[SHARD.index()].as_ref().is_some_and(|claims| claims.recent.is_empty()));
    }

    #[test]
    fn a_core_that_leads_again_begins_anew() {
        let mut regions = ClaimRegions::default();
        assert!(look(&mut regions, &[("far", 100)]));
        let (now, version) = (regions.due(), regions.version());
        assert_eq!(regions.learn(now, "home", |_| false, &[]), []);
        assert_eq!(regions.region(SHARD), None);
        assert!(regions.version() > version);
        assert!(!look(&mut regions, &[]));
        assert_eq!(regions.region(SHARD), Some("home"));
    }
}
