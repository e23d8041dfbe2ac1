//! Regions of the clients of each shard, so that its leader can be near them.
//!
//! Only the leader of a shard looks at the owners of its Client Identifiers. So a core knows the regions of the shards
//! that it leads, and moves those only.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{SHARDS, ShardId};
use link::{NodeId, Time};

use super::ClusterRouter;
use crate::config::LeaderPolicy;
use crate::meta::LeaderPreference;

/// Time between two looks at the owners.
const LOOK: Duration = Duration::from_secs(10);
/// Number of connected clients from which on a shard follows them. With fewer, leaders are spread.
const CLIENTS_MIN: u64 = 20;
/// Share of the clients, in percent, from which on their region is chosen. A leader does not move back and forth
/// between two regions with about as many clients.
const SHARE_MIN: u64 = 60;

/// Regions of the shards that this node leads.
#[derive(Debug, Default)]
pub(super) struct OwnerRegions {
    due: Time,
    shards: [Shard; SHARDS as usize],
    version: u64,
}

/// Region in which a shard should be led.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Shard {
    /// This node does not lead it.
    #[default]
    OfOthers,
    /// Few clients are connected.
    OfFew,
    In(Box<str>),
}

impl OwnerRegions {
    pub fn due(&self) -> Time {
        self.due
    }

    /// Returns a number that grows when [`Self::preference`] of a shard changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn preference(&self, shard: ShardId) -> LeaderPreference<'_> {
        match self.shards.get(shard.index()) {
            None | Some(Shard::OfOthers) => LeaderPreference::Same,
            Some(Shard::OfFew) => LeaderPreference::Any,
            Some(Shard::In(region)) => LeaderPreference::In(region),
        }
    }

    /// Learns of the connected clients of each shard, or of a sample of them, by region. Returns the shards that should
    /// be led in another region than before.
    fn learn(
        &mut self,
        now: Time,
        own: &str,
        leads: impl Fn(ShardId) -> bool,
        clients: &BTreeMap<ShardId, BTreeMap<Box<str>, u64>>,
    ) -> Vec<ShardId> {
        self.due = now.after(LOOK);
        let mut moved = Vec::new();
        for (shard, known) in (0..).map(ShardId).zip(&mut self.shards) {
            let next = match clients.get(&shard) {
                _ if !leads(shard) => Shard::OfOthers,
                // A core that has begun to lead does not move the shard before it has counted.
                None if *known == Shard::OfOthers => Shard::In(own.into()),
                None => continue,
                Some(clients) => region_of(clients, known, own),
            };
            if next != *known {
                if matches!(&next, Shard::In(region) if **region != *own) {
                    moved.push(shard);
                }
                *known = next;
                self.version += 1;
            }
        }
        moved
    }
}

/// Returns the region of most clients. While none is clear, the shard stays where it should be.
fn region_of(clients: &BTreeMap<Box<str>, u64>, known: &Shard, own: &str) -> Shard {
    let sum: u64 = clients.values().sum();
    let most = clients.iter().max_by_key(|(_, count)| **count);
    match (most, known) {
        _ if sum < CLIENTS_MIN => Shard::OfFew,
        (Some((region, count)), _) if count * 100 >= sum * SHARE_MIN => Shard::In(region.clone()),
        (_, Shard::In(_)) => known.clone(),
        _ => Shard::In(own.into()),
    }
}

impl ClusterRouter {
    /// Looks where the clients of this node's shards are, if their leaders follow them.
    pub(super) fn follow_clients(&mut self, now: Time) {
        if self.config.leaders != LeaderPolicy::Follow || now < self.owners.due() {
            return;
        }
        let members = &self.membership.meta.roster().members;
        let region_of = |node: u64| members.get(&NodeId(node)).map(|member| member.info.region.clone());
        let mut clients = BTreeMap::<ShardId, BTreeMap<Box<str>, u64>>::new();
        for (shard, nodes) in self.node.take_owner_samples() {
            let regions = clients.entry(shard).or_default();
            for (node, count) in nodes {
                if let Some(region) = region_of(node) {
                    *regions.entry(region).or_default() += count;
                }
            }
        }
        let own = &self.config.own.region;
        let moved = self.owners.learn(now, own, |shard| self.shards.is_led_here(shard), &clients);
        for shard in moved {
            if let LeaderPreference::In(region) = self.owners.preference(shard) {
                tracing::info!(
                    shard = shard.0,
                    region,
                    "most clients of shard {} are in region `{region}`: a core there should lead it (cluster.leaders)",
                    shard.0
                );
            }
        }
    }

    /// Returns the time of the next look at the owners.
    pub(super) fn owners_due(&self) -> Time {
        if self.config.leaders == LeaderPolicy::Follow { self.owners.due() } else { Time::NEVER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(3);

    /// Lets a core in the region `home` look at its shard with these clients. Returns whether the shard should be led
    /// elsewhere from now on.
    fn look(regions: &mut OwnerRegions, clients: &[(&str, u64)]) -> bool {
        let clients = clients.iter().map(|(region, count)| ((*region).into(), *count)).collect();
        let moved = regions.learn(regions.due(), "home", |shard| shard == SHARD, &[(SHARD, clients)].into());
        assert!(moved.iter().all(|shard| *shard == SHARD));
        !moved.is_empty()
    }

    #[test]
    fn a_shard_stays_in_its_leaders_region_until_most_clients_are_in_another() {
        let mut regions = OwnerRegions::default();
        assert_eq!(regions.preference(SHARD), LeaderPreference::Same);
        assert!(!look(&mut regions, &[("home", 50), ("far", 50)]));
        assert_eq!(regions.preference(SHARD), LeaderPreference::In("home"));
        assert!(look(&mut regions, &[("home", 40), ("far", 60)]));
        assert_eq!(
            (regions.preference(SHARD), regions.preference(ShardId(4))),
            (LeaderPreference::In("far"), LeaderPreference::Same)
        );
        for _ in 0..9 {
            assert!(!look(&mut regions, &[("home", 59), ("far", 41)]), "it does not return yet");
            assert_eq!(regions.preference(SHARD), LeaderPreference::In("far"));
        }
    }

    #[test]
    fn shards_with_few_clients_are_spread() {
        let mut regions = OwnerRegions::default();
        assert!(!look(&mut regions, &[("far", CLIENTS_MIN - 1)]));
        assert_eq!(regions.preference(SHARD), LeaderPreference::Any);
        assert!(look(&mut regions, &[("far", CLIENTS_MIN)]));
        assert!(!look(&mut regions, &[]));
        assert_eq!(regions.preference(SHARD), LeaderPreference::Any);
    }

    #[test]
    fn a_core_that_leads_again_begins_anew() {
        let mut regions = OwnerRegions::default();
        let none = BTreeMap::new();
        assert!(look(&mut regions, &[("far", 100)]));
        let version = regions.version();
        assert_eq!(regions.learn(Time(1), "home", |_| true, &none), []);
        assert_eq!(regions.preference(SHARD), LeaderPreference::In("far"), "nothing was counted");
        assert_eq!(regions.learn(Time(2), "home", |_| false, &none), []);
        assert_eq!(regions.preference(SHARD), LeaderPreference::Same);
        assert_eq!(regions.learn(Time(3), "home", |_| true, &none), []);
        assert_eq!(regions.preference(SHARD), LeaderPreference::In("home"));
        assert!(regions.version() > version);
    }
}
