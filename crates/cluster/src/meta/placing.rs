//! Part of a node in the placement of shards: the leader of the meta group decides, and cores report what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use broker::{SHARDS as SHARD_COUNT, ShardId};
use link::{NodeId, Time};

use super::leader_state::ChangingShard;
use super::placement::leaders::{Candidate, DrainedNodes, LeaderPreference, ShardLeaders, preferred_leaders};
use super::placement::planner::{self, Core, Standing};
use super::placement::{CoreLog, Placement, PlacementCommand};
use super::proposals::Reply;
use super::{Command, LIMIT, Member, Meta, State};
use crate::features::{EMPTY_SHARDS, OWN_STATE, SHARDS};

/// Time for which a leader waits for a core that does not answer and may have durable sessions of its own. Then it
/// places the shards without them. For a core with sessions that answers, the leader waits without end, and notifies
/// operators after this time.
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

    /// Returns a number that grows when other nodes do not reach each other than before, as far as this core knows.
    pub fn cut_pairs_version(&self) -> u64 {
        self.cut_pairs.version()
    }

    /// Returns the preferred leaders of all shards, as far as this node knows the placement, the roster, the nodes that
    /// do not reach each other, and the `present` leaders. `None` before there is a placement.
    pub fn preferred_leaders<'a>(
        &self,
        preference: impl Fn(ShardId) -> LeaderPreference<'a>,
        present: &[Option<NodeId>],
    ) -> Option<ShardLeaders> {
        // A suspect core may answer soon. Nothing is transferred to it until then.
        let can_lead = |id: NodeId, member: &Member| {
            member.state != State::Dead && !member.leaves && !self.drained.contains_key(&id)
        };
        let core = |(id, member): (NodeId, &Member)| {
            let member = Some(member).filter(|member| can_lead(id, member))?;
            let candidate =
                Candidate { region: member.info.region.clone(), unreached: self.cut_pairs.count(id) };
            Some((CoreLog { node: id, replica: member.replica? }, candidate))
        };
        let cores: BTreeMap<CoreLog, Candidate> = self.roster.cores().filter_map(core).collect();
        Some(preferred_leaders(self.placement.as_ref()?, &cores, &self.drained, preference, present))
    }

    /// Sets the nodes that are drained. A core among them leads no shard that another voter can lead.
    pub fn set_drained(&mut self, nodes: DrainedNodes) {
        self.drained_version += u64::from(nodes != self.drained);
        self.drained = nodes;
    }

    /// Returns a number that grows when the nodes that are drained change.
    pub fn drained_version(&self) -> u64 {
        self.drained_version
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

    /// Returns whether another core announces durable sessions of its own. `None` if that is not known: the core does
    /// not answer.
    fn announces_own_state(&self, now: Time, core: NodeId) -> Option<bool> {
        let linked = |core: NodeId| {
            let common = *self.features.get(&core)?;
            has_own_state(common, self.config.features & EMPTY_SHARDS != 0)
        };
        linked(core).or_else(|| {
            // The relay reports the features that it has in common with the core.
            let relay = linked(self.relays.by(now, core)?)?;
            has_own_state(self.relays.features(now, core)?, !relay)
        })
    }

    /// Returns whether a core has durable sessions that are not those of the shards. `None` if that is not known.
    fn has_core_other_state(&self, now: Time, core: CoreLog) -> Option<bool> {
        if core.node == self.id {
            return Some(self.has_other_state());
        }
        let announced = self.announces_own_state(now, core.node);
        let Some(placement) = &self.placement else { return announced };
        let votes = placement.shards().any(|(_, shard)| shard.voters.iter().any(|voter| voter.log() == core));
        match announced {
            // The core that has founded the shards announces sessions until its next start. Any other core with
            // sessions refuses the shards, even as a voter: it may have got the sessions after it was chosen.
            Some(true) => Some(!placement.has_oldest_voters(core)),
            Some(false) => Some(false),
            // A voter that was suspected a moment ago counts as one that serves.
            None => votes.then_some(false),
        }
    }

    /// Returns whether the first placement has to wait for the durable sessions of another core. Also notes the cores
    /// that operators should look at.
    fn awaits_own_state(&mut self, now: Time) -> bool {
        // Such a core founds the shards only when all cores can place them.
        let since = *self.leader_state.may_place_since.get_or_insert(now);
        let since = since.max(self.leader_state.cores_known_since());
        let has_waited_long = since.after(OWN_STATE_WAIT) <= now;
        let others = self.roster.cores().filter(|(id, core)| *id != self.id && !core.leaves);
        let announced: BTreeMap<NodeId, Option<bool>> =
            others.map(|(id, _)| (id, self.announces_own_state(now, id))).collect();
        // A core that does not answer may be the one that was to found the shards. It may come back in time.
        let silent_since = &mut self.leader_state.silent_since;
        silent_since.retain(|id, _| announced.get(id) == Some(&None));
        let mut is_one_awaited = false;
        for (id, _) in announced.iter().filter(|(_, announced)| announced.is_none()) {
            let silent_since = since.max(*silent_since.entry(*id).or_insert(now));
            is_one_awaited |= silent_since.after(OWN_STATE_WAIT) > now;
        }
        let with_state: Vec<NodeId> =
            announced.iter().filter(|(_, announced)| **announced == Some(true)).map(|(id, _)| *id).collect();
        let waits = !with_state.is_empty() || is_one_awaited;
        self.leader_state.awaited = if has_waited_long { with_state } else { Vec::new() };
        waits
    }

    /// Describes for operators why the shards have not begun, if this leader waits for the sessions of other cores.
    pub(super) fn awaited_sessions(&self) -> Option<String> {
        if self.placement.is_some() {
            return None;
        }
        let name = |id: &NodeId| self.roster.members.get(id).map(|member| &*member.info.name);
        let names: Vec<&str> = self.leader_state.awaited.iter().filter_map(name).collect();
        let names = Some(names.join(", ")).filter(|names| !names.is_empty())?;
        Some(format!(
            "the cluster waits for the durable sessions and retained messages of {names}: look into the log there. If \
             they are not needed, start such nodes with empty data directories, one after the other"
        ))
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
        self.leader_state.awaited.clear();
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
            State::Alive => match self.has_core_other_state(now, log) {
                Some(true) => Standing::Refused,
                _ if member.leaves => Standing::Leaves,
                Some(false) => Standing::Serves,
                None => Standing::Away,
            },
            State::Suspect(_) => Standing::Away,
        })
    }
}

/// Returns whether a core has durable sessions of its own. `common` are the features that it has in common with another
/// core. `is_other_empty` says whether that one has none. `None`: the core does not share its shards, perhaps because
/// it runs with another configuration now.
fn has_own_state(common: u64, is_other_empty: bool) -> Option<bool> {
    match common {
        _ if common & SHARDS == 0 => None,
        _ if common & EMPTY_SHARDS != 0 => Some(false),
        _ if common & OWN_STATE != 0 => Some(true),
        // Each core that offers `SHARDS` offers one of the two, so they offer different ones.
        _ => Some(is_other_empty),
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
