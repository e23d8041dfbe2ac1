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
use crate::features::{EMPTY_SHARDS, OWN_STATE, SHARDS};

/// Time for which a leader waits for a core that may have durable sessions of its own, before it places the shards
/// without them.
const OWN_STATE_WAIT: Duration = Duration::from_secs(30);

/// Reason why a core takes no part in the shards, with advice.
pub(super) const OTHER_STATE: &str = "its durable sessions and retained messages cannot be merged with those of the \
     cluster, and no client is served: start such nodes with empty data directories, one after the other. A node \
     without any settings of a cluster can use the data";

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

    /// Returns whether another core says that it has durable sessions of its own, or may have some as one of an earlier
    /// version. `None` if that is not known: the core is not reached.
    fn announces_own_state(&self, now: Time, core: NodeId) -> Option<bool> {
        let linked = self.features.get(&core).copied();
        let features = linked.or_else(|| self.relays.features(now, core))?;
        match features {
            _ if features & EMPTY_SHARDS != 0 => Some(false),
            _ if features & OWN_STATE != 0 => Some(true),
            // The other one lacks the feature of the two that this one has. Otherwise the relay may lack it.
            _ => linked.map(|_| self.config.features & EMPTY_SHARDS != 0),
        }
    }

    /// Returns whether a core may have durable sessions that are not those of the shards; `None` if that is not known.
    /// It has none if it votes in a shard already, like the core that has founded the shards.
    fn may_have_other_state(&self, now: Time, core: CoreLog) -> Option<bool> {
        if core.node == self.id {
            return Some(self.has_other_state());
        }
        let votes = self.placement.as_ref().is_some_and(|placement| {
            placement.shards().any(|(_, shard)| shard.voters.iter().any(|voter| voter.log() == core))
        });
        if votes { Some(false) } else { self.announces_own_state(now, core.node) }
    }

    /// Returns whether a core may have durable sessions with which the shards should begin, and may still say so.
    fn awaits_own_state(&mut self, now: Time) -> bool {
        // Such a core can only say so from the time when the cores can place shards.
        let since = *self.leader_state.may_place_since.get_or_insert(now);
        let since = since.max(self.leader_state.cores_known_since());
        // A core that has died may be the one that was to found the shards, and comes back in time.
        let mut others = self.roster.cores().filter(|(id, core)| *id != self.id && !core.leaves);
        since.after(OWN_STATE_WAIT) > now
            && others.any(|(id, _)| self.announces_own_state(now, id) != Some(false))
    }

    /// Returns whether this core has durable sessions of its own, and the shards of the cluster have other ones.
    pub fn has_other_state(&self) -> bool {
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
        let is_placed = self.core.as_ref()?.group().state().placement.is_some();
        if !is_placed && self.config.own_state.is_none() && self.awaits_own_state(now) {
            return None;
        }
        let cores = self.cores_of_shards(now);
        let (replicas, owner_key) = (self.config.replicas, self.config.owner_key);
        let command = match &self.core.as_ref()?.group().state().placement {
            None if self.config.own_state.is_some() => self.found_with_own_state()?,
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
        for (id, member) in roster.cores().filter(|(_, core)| core.state == State::Dead) {
            dead_since.entry(id).or_insert((member.incarnation, now));
        }
        let core = |(id, member): (NodeId, &Member)| {
            let log = CoreLog { node: id, replica: member.replica? };
            let standing = self.standing(now, log, member)?;
            Some(Core { log, region: member.info.region.clone(), standing })
        };
        roster.cores().filter_map(core).collect()
    }

    /// Returns the state of a core, for the planner. `None` for one that counts as no member.
    fn standing(&self, now: Time, log: CoreLog, member: &Member) -> Option<Standing> {
        Some(match member.state {
            // As it wanted.
            State::Dead if member.leaves => return None,
            State::Dead => {
                let since = self.leader_state.dead_since.get(&log.node).map_or(now, |(_, since)| *since);
                if since.after(self.config.replace_after) <= now { Standing::Lost } else { Standing::Away }
            }
            State::Alive if member.leaves => Standing::Leaves,
            State::Alive => match self.may_have_other_state(now, log) {
                Some(false) => Standing::Serves,
                // It gets no replicas, and loses one that an earlier leader has planned.
                Some(true) => Standing::Leaves,
                None => Standing::Away,
            },
            State::Suspect(_) => Standing::Away,
        })
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
