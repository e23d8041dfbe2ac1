//! Incarnations of nodes, for the workers of this node: its own one, and the last ones of the members.

use std::sync::Arc;
use std::time::Duration;

use broker::peers::{LastIncarnation, MemberIncarnations};
use broker::{ShardId, WorkerId};
use link::Time;

use super::ClusterRouter;
use crate::meta::{Roster, State};

/// Shards that this node leads, and whose hosts do not know yet that the members are complete.
#[derive(Debug, Default)]
pub(super) struct UnsettledShards {
    /// Shards with their terms and the time since which this node leads them, as far as it is known.
    shards: Vec<(ShardId, u64, Time)>,
    /// Time since which this core is in contact with a majority, as far as it was looked at.
    in_contact_since: Option<Time>,
}

/// Time in which a core that is in contact with a majority gets each roster that was committed before. A leader of the
/// meta group that is cut off may be in contact for [three election time-outs](consensus::ELECTION_TIMEOUT), and so may
/// its followers after that.
const SETTLED: Duration = Duration::from_secs(10);
const _: () = assert!(SETTLED.as_millis() >= 4 * 3 * consensus::ELECTION_TIMEOUT.as_millis());

impl UnsettledShards {
    /// Notes that this node leads a shard now, or does not any more.
    pub fn led(&mut self, now: Time, shard: ShardId, term: Option<u64>) {
        self.shards.retain(|(known, ..)| *known != shard);
        self.shards.extend(term.map(|term| (shard, term, now)));
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Takes the shards whose hosts know all members now. `in_contact`: this core is in contact with a majority.
    fn take_settled(&mut self, now: Time, in_contact: bool) -> Vec<(ShardId, u64)> {
        self.in_contact_since = in_contact.then(|| self.in_contact_since.unwrap_or(now));
        let Some(contact) = self.in_contact_since else { return Vec::new() };
        let is_settled = |(.., led): &mut (ShardId, u64, Time)| contact.max(*led).after(SETTLED) <= now;
        let settled: Vec<_> =
            self.shards.extract_if(.., is_settled).map(|(shard, term, _)| (shard, term)).collect();
        if self.shards.is_empty() {
            // Nobody looks at the contact any more.
            self.in_contact_since = None;
        }
        settled
    }

    /// Returns the time at which the next shard is settled if the contact stays.
    pub fn due(&self) -> Time {
        let contact = self.in_contact_since;
        let due = self.shards.iter().filter_map(|(.., led)| Some(contact?.max(*led).after(SETTLED)));
        due.min().unwrap_or(Time::NEVER)
    }
}

impl ClusterRouter {
    /// Passes the incarnations of the members of a new roster to the workers.
    pub(super) fn tell_members(&mut self, roster: &Roster) {
        if self.has_shards() {
            self.inbound.set_members(&Arc::new(incarnations(roster)));
        }
    }

    /// Notifies the hosts of shards that have been led here for a while that they know all members.
    pub(super) fn settle_members(&mut self, now: Time) {
        if self.unsettled.is_empty() {
            return;
        }
        let meta = &self.membership.meta;
        let in_contact = meta.may_grant() && meta.has_quorum(now);
        for (shard, term) in self.unsettled.take_settled(now, in_contact) {
            self.inbound.settle_members(self.node.shard_host(shard), shard, term);
        }
    }

    /// Notifies the workers that this node goes on in another incarnation. They begin their requests again, with the
    /// leaders that they may ask.
    pub(super) fn restart_workers(&mut self) {
        if !self.has_shards() {
            return;
        }
        self.inbound.restart(self.config.incarnation.0);
        for worker in (0..self.node.workers).map(WorkerId) {
            for (shard, leader) in self.shards.known_to(self.own, worker) {
                self.inbound.lead(worker, shard, leader);
            }
        }
    }

    /// Handles a report of a leader of a shard that an incarnation of this node is over. The cores have removed this
    /// node, and it has joined again in the same incarnation, because it did not notice.
    pub(super) fn own_incarnation_ended(&mut self, incarnation: u64) {
        if self.config.incarnation.0 == incarnation && self.is_member() {
            self.restart_incarnation();
        }
    }
}

/// Returns the last incarnations of the members of a roster.
fn incarnations(roster: &Roster) -> MemberIncarnations {
    let last = roster.members.iter().map(|(id, member)| {
        let is_dead = member.state == State::Dead;
        (id.0, LastIncarnation { incarnation: member.incarnation.0, is_dead })
    });
    last.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    /// A node that is absent in the roster was certainly removed then.
    #[test]
    fn the_members_are_complete_after_a_time_in_contact_with_a_majority() {
        let mut unsettled = UnsettledShards::default();
        unsettled.led(at(1), ShardId(3), Some(7));
        assert!(unsettled.take_settled(at(20), false).is_empty(), "the roster may be old");
        assert_eq!(unsettled.due(), Time::NEVER);
        assert!(unsettled.take_settled(at(21), true).is_empty());
        assert!(unsettled.take_settled(at(30), false).is_empty());
        assert!(unsettled.take_settled(at(31), true).is_empty(), "the contact was lost meanwhile");
        assert_eq!(unsettled.due(), at(41));
        unsettled.led(at(35), ShardId(4), Some(2));
        assert_eq!(unsettled.take_settled(at(41), true), [(ShardId(3), 7)]);
        unsettled.led(at(42), ShardId(4), None);
        assert!(unsettled.is_empty());
        assert_eq!(unsettled.due(), Time::NEVER);
    }
}
