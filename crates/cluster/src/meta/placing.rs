//! Part of a node in the placement of shards: the leader of the meta group decides, and cores report what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use broker::{SHARDS as SHARD_COUNT, ShardId};
use link::{NodeId, Time};

use super::leader_state::ChangingShard;
use super::placement::leaders::{PreferredLeaders, preferred_leaders};
use super::placement::planner::{self, Core, Standing};
use super::placement::{CoreLog, Placement, PlacementCommand};
use super::proposals::Reply;
use super::{Command, LIMIT, Member, Meta, State};
use crate::config::LeaderPolicy;
use crate::features::{EMPTY_SHARDS, SHARDS};

/// Time for which a leader waits for a core that may have durable sessions of its own, before it places the shards
/// without them.
const OWN_STATE_WAIT: Duration = Duration::from_secs(30);

impl Meta {
    /// Returns the committed placement of shards, as far as this node knows it. `None` before there is one.
    pub fn placement(&self) -> Option<&Arc<Placement>> {
        self.placement.as_ref()
    }

    /// Returns the log of this core, which has its replicas of shards. `None` on a replicant.
    pub fn core_log(&self) -> Option<CoreLog> {
        self.replica().map(|replica| CoreLog { node: self.id, replica })
    }

    /// Returns the preferred leaders of all shards, as far as this node knows the placement and the roster. `None`
    /// before there is a placement.
    pub fn preferred_leaders(&self, policy: &LeaderPolicy) -> Option<PreferredLeaders> {
        // A suspect core may answer soon. Nothing is transferred to it until then.
        let can_lead = |member: &&Member| member.state != State::Dead && !member.leaves;
        let core = |(id, member): (NodeId, &Member)| {
            let member = Some(member).filter(can_lead)?;
            Some((CoreLog { node: id, replica: member.replica? }, member.info.region.clone()))
        };
        let cores: BTreeMap<CoreLog, Box<str>> = self.roster.cores().filter_map(core).collect();
        Some(preferred_leaders(self.placement.as_ref()?, &cores, policy))
    }

    /// Notes that the group of a shard, which this core leads, has exactly the voters of
    /// [`ShardPlacement::target`](super::ShardPlacement::target) in this epoch. The node reports it until the placement
    /// shows it.
    pub fn shard_changed(&mut self, shard: ShardId, epoch: u64) {
        let is_known = self.placement.as_ref().is_some_and(|placement| placement.shard(shard).is_some());
        if is_known && self.core.is_some() {
            // The owner may say it again at each of its turns.
            let known = self.changed_shards.entry(shard).or_insert(0);
            if epoch > *known {
                *known = epoch;
                self.due = Time::default();
            }
        }
    }

    /// Proposes the owner's reports to the leader.
    pub(super) fn report_changed_shards(&mut self, now: Time) {
        let Some(placement) = &self.placement else { return };
        self.changed_shards.retain(|shard, epoch| {
            let present = placement.shard(*shard).map(|shard| (shard.epoch, shard.is_settled()));
            present.is_some_and(|(known, is_settled)| *epoch > known || *epoch == known && !is_settled)
        });
        for (shard, epoch) in &self.changed_shards {
            if !self.proposals.has_shard(*shard) {
                let done = Command::Placement(PlacementCommand::Done { shard: *shard, epoch: *epoch });
                self.proposals.push(now.after(LIMIT), Reply::Shard(*shard), done.encode());
            }
        }
    }

    /// Proposes a first placement that begins with the state of this core, if it has some and does not lead.
    pub(super) fn offer_own_state(&mut self, now: Time) {
        let is_possible = self.placement.is_none()
            && self.is_member()
            && !self.leads(now)
            && self.adopted().is_some_and(|adopted| adopted & SHARDS != 0);
        if !is_possible || self.proposals.has_placement() {
            return;
        }
        if let Some(found) = self.found_with_own_state() {
            self.proposals.push(now.after(LIMIT), Reply::Placement, Command::Placement(found).encode());
        }
    }

    /// Returns the first placement that has only this core, if shards begin with its state. Others get replicas later.
    fn found_with_own_state(&self) -> Option<PlacementCommand> {
        let own = Core { log: self.core_log()?, region: self.own.region.clone(), standing: Standing::Serves };
        let owner_key = self.config.own_state?;
        let first = planner::found(&[own], SHARD_COUNT, self.config.replicas, owner_key)?;
        Some(PlacementCommand::Found(first.into()))
    }

    /// Returns whether a core may propose this first placement: it begins with the state of that core.
    pub(super) fn may_found(&self, from: NodeId, first: &Placement) -> bool {
        let replica = self.roster.members.get(&from).and_then(|member| member.replica);
        self.config.own_state.is_none()
            && first.shards().len() == usize::from(SHARD_COUNT)
            && replica.is_some_and(|replica| first.is_founded_in(CoreLog { node: from, replica }))
    }

    /// Returns whether a core may have durable sessions with which the shards should begin, and may still say so.
    fn awaits_own_state(&self, now: Time) -> bool {
        let is_empty = |id: NodeId| {
            let features = self.features.get(&id).copied().or_else(|| self.relays.features(now, id));
            features.is_some_and(|features| features & EMPTY_SHARDS != 0)
        };
        let mut others = self.roster.cores().filter(|(id, core)| *id != self.id && core.state != State::Dead);
        self.leader_state.cores_known_since().after(OWN_STATE_WAIT) > now
            && others.any(|(id, _)| !is_empty(id))
    }

    /// Returns whether this core has durable sessions of its own, and the shards of the cluster have other ones.
    pub(super) fn has_other_state(&self) -> bool {
        let placed = self.placement.as_deref().zip(self.config.own_state);
        placed.is_some_and(|(placement, owner_key)| !self.is_founded_here(placement, owner_key))
    }

    fn is_founded_here(&self, placement: &Placement, owner_key: [u8; 16]) -> bool {
        placement.owner_key == owner_key && self.core_log().is_some_and(|log| placement.is_founded_in(log))
    }

    /// Notes that the shards begin with the state of this core, if the placement says so. Then it is no state of its
    /// own any more.
    pub(super) fn note_founding(&mut self) {
        let placed = self.placement.as_deref().zip(self.config.own_state);
        if placed.is_some_and(|(placement, owner_key)| self.is_founded_here(placement, owner_key)) {
            self.config.own_state = None;
        }
    }

    /// Returns the next command of this leader about the placement.
    pub(super) fn next_placement(&mut self, now: Time) -> Option<Command> {
        let is_adopted = self.adopted().is_some_and(|adopted| adopted & SHARDS != 0);
        if !is_adopted || !self.knows_cores(now) || !self.has_quorum(now) {
            return None;
        }
        let cores = self.cores_of_shards(now);
        let (replicas, owner_key) = (self.config.replicas, self.config.owner_key);
        let command = match &self.core.as_ref()?.group().state().placement {
            None if self.config.own_state.is_some() => self.found_with_own_state()?,
            None if self.awaits_own_state(now) => return None,
            None => {
                let first = planner::found(&cores, SHARD_COUNT, replicas, owner_key)?;
                PlacementCommand::Found(first.into())
            }
            Some(placement) => {
                let changing = &mut self.leader_state.changing_shards;
                let stalled = stalled_shards(now, placement, self.config.replace_after, changing);
                PlacementCommand::Move(planner::next_move(&cores, placement, &stalled)?)
            }
        };
        Some(Command::Placement(command))
    }

    /// Returns the cores of the roster as the planner sees them.
    fn cores_of_shards(&mut self, now: Time) -> Vec<Core> {
        let roster = self.roster.clone();
        let dead_since = &mut self.leader_state.dead_since;
        dead_since.retain(|id, (incarnation, _)| {
            let member = roster.members.get(id);
            member.is_some_and(|it| it.state == State::Dead && it.incarnation == *incarnation)
        });
        let replace_after = self.config.replace_after;
        let mut standing = |id: NodeId, member: &Member| {
            Some(match member.state {
                // It counts as no member, as it wanted.
                State::Dead if member.leaves => return None,
                State::Dead => {
                    let (_, since) = *dead_since.entry(id).or_insert((member.incarnation, now));
                    if since.after(replace_after) <= now { Standing::Lost } else { Standing::Away }
                }
                State::Alive if member.leaves => Standing::Leaves,
                State::Alive => Standing::Serves,
                State::Suspect(_) => Standing::Away,
            })
        };
        let core = |(id, member): (NodeId, &Member)| {
            let log = CoreLog { node: id, replica: member.replica? };
            Some(Core { log, region: member.info.region.clone(), standing: standing(id, member)? })
        };
        roster.cores().filter_map(core).collect()
    }
}

/// Returns the shards that have been changing for longer than `limit`, as far as this leader knows. Logs each change
/// once.
fn stalled_shards(
    now: Time,
    placement: &Placement,
    limit: Duration,
    known: &mut BTreeMap<ShardId, ChangingShard>,
) -> BTreeSet<ShardId> {
    let changing = |id: ShardId| placement.shard(id).filter(|shard| !shard.is_settled());
    known.retain(|id, known| changing(*id).is_some_and(|shard| shard.epoch == known.epoch));
    let mut stalled = BTreeSet::new();
    for (id, shard) in placement.shards().filter(|(_, shard)| !shard.is_settled()) {
        let new = ChangingShard { epoch: shard.epoch, since: now, is_logged: false };
        let known = known.entry(id).or_insert(new);
        if known.since.after(limit) > now {
            continue;
        }
        stalled.insert(id);
        if !std::mem::replace(&mut known.is_logged, true) {
            let seconds = limit.as_secs();
            tracing::warn!(
                "the replicas of shard {} have been changing for {seconds} s: a majority of them does not answer, or the new one cannot catch up; other shards change meanwhile",
                id.0
            );
        }
    }
    stalled
}
