//! Placement of shards: the cores that have a replica of each shard, as the cores have agreed in the meta group.
//!
//! Read [`Placement`] first. The leader of the meta group plans each change ([`planner`]). The leader of the shard's
//! own Raft group makes it and reports when it is done. [`leaders`] says which replica should lead. All integers are
//! little endian:
//!
//! ```text
//! placement  1 u8, version u64, replicas u8, owner key (16 bytes), count u16, shard*
//! shard      epoch u64, count u8 of voters, replica*, learner replica, leaving replica
//! replica    node u64, replica u64, since u64; zeros are none
//! found      1 u8, placement
//! move       2 u8, version u64, shard u16, node u64 and replica u64 of the added one, removed replica
//! done       3 u8, shard u16, epoch u64
//! ```

pub mod leaders;
pub mod planner;

use broker::ShardId;
use consensus::ReplicaId;
use link::NodeId;

use super::command::Answer;
use super::reader::Reader;
use super::roster::{Roster, State};
use crate::config::Replicas;

/// Log of a core. A core that comes back with another log has none of its earlier replicas. A core that only restarts
/// has the same log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CoreLog {
    pub node: NodeId,
    /// Number of the log, as [`Member::replica`](super::Member::replica).
    pub replica: ReplicaId,
}

/// Replica of a shard in the log of a core.
///
/// A core that loses a shard and gets it again later has two replicas, one after the other. They differ in `since`,
/// because the second one has neither the votes nor the entries of the first one. The replicas of one shard differ in
/// `node` and `since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardReplica {
    pub node: NodeId,
    /// Number of the core's log, as [`Member::replica`](super::Member::replica).
    pub replica: ReplicaId,
    /// Index of the command that added the replica to the shard.
    pub since: u64,
}

/// Role of a replica in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRole {
    Voter,
    /// Replica that becomes a voter.
    Learner,
    /// Replica that has to go: a voter, or a learner that was given up. It keeps its state and takes part in its group
    /// until the group has reported the change.
    Leaving,
}

/// Meaning of a placement for a replica that a core has on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredReplica {
    /// The replica has this role.
    Current(ReplicaRole),
    /// The shard has no such replica any more, so its state can be deleted. If the core has a later replica of the
    /// shard, that one starts empty.
    Removed,
    /// The placement is older than the replica. The core keeps the state until it knows a later placement.
    Unknown,
}

/// Replicas of all shards, at one index of the meta group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the last command that changed it. A command carries the version that it was decided on.
    pub version: u64,
    /// Number of replicas that each shard should have.
    pub replicas: Replicas,
    /// Key of the hash by which all nodes find the owner of a session.
    pub owner_key: [u8; 16],
    /// One for each shard. Their number never changes.
    shards: Vec<ShardPlacement>,
}

/// Replicas of one shard.
///
/// `voters` are those of the shard's Raft group when it last reported. With a `learner` or a `leaving` replica, the
/// group has to become [`Self::target`], whatever its present members are. Until it has reported that, each node keeps
/// the replicas that it has. After that, a replica without a role can be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPlacement {
    /// Index of the command that began the last change.
    pub epoch: u64,
    /// Replicas in the order in which they were chosen. A replacement takes the slot of the one that it replaces.
    pub voters: Vec<ShardReplica>,
    /// Replica that becomes a voter.
    pub learner: Option<ShardReplica>,
    /// Replica that has to go: a voter, or a learner that was given up.
    pub leaving: Option<ShardReplica>,
}

/// Change of the replicas of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMove {
    /// Version of the placement that it was decided on.
    pub version: u64,
    pub shard: ShardId,
    /// Core that gets a replica. The index of the command becomes [`ShardReplica::since`].
    pub add: Option<CoreLog>,
    pub remove: Option<ShardReplica>,
}

/// Command about the placement. A command that does not fit the placement when it is applied changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementCommand {
    /// Place all shards for the first time. The version and all other indexes are 0.
    Found(Box<Placement>),
    /// Begin to change the replicas of a shard, or replace a change that has not been reported yet. A learner that is
    /// given up is removed by a change of its own.
    Move(ShardMove),
    /// The group of the shard has the voters that the change with this epoch asks for.
    Done { shard: ShardId, epoch: u64 },
}

/// Maximum number of shards of a cluster.
const SHARDS_MAX: usize = 4096;
/// First byte of a placement.
const FORM: u8 = 1;
/// Replica that stands for none.
const NONE: ShardReplica = ShardReplica { node: NodeId(0), replica: ReplicaId(0), since: 0 };

impl Placement {
    /// Iterates over all shards by number.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = (ShardId, &ShardPlacement)> {
        self.shards.iter().enumerate().map(|(number, shard)| (ShardId(number as u16), shard))
    }

    pub fn shard(&self, shard: ShardId) -> Option<&ShardPlacement> {
        self.shards.get(usize::from(shard.0))
    }

    /// Returns whether the only voter of each shard is in this log, as in a cluster that this core has founded alone.
    pub fn is_founded_in(&self, log: CoreLog) -> bool {
        self.shards.iter().all(|shard| matches!(&shard.voters[..], [voter] if voter.log() == log))
    }

    /// Returns whether the oldest voters of all shards are in this log. This is so for a core that has founded the
    /// shards alone, while it has one of its first replicas.
    pub fn has_oldest_voters(&self, log: CoreLog) -> bool {
        let voters = || self.shards.iter().flat_map(|shard| &shard.voters);
        let oldest = voters().map(|voter| voter.since).min();
        voters().filter(|voter| Some(voter.since) == oldest).all(|voter| voter.log() == log)
    }

    /// Returns whether a node has a replica of some shard, or is about to get or lose one.
    pub fn has_node(&self, node: NodeId) -> bool {
        self.shards.iter().any(|shard| shard.replicas().any(|replica| replica.node == node))
    }

    /// Iterates over the replicas in the log of a core, with their roles.
    pub fn replicas_in(
        &self,
        log: CoreLog,
    ) -> impl Iterator<Item = (ShardId, ShardReplica, ReplicaRole)> + '_ {
        self.shards().flat_map(move |(id, shard)| {
            let own = shard.roles().filter(move |(replica, _)| replica.log() == log);
            own.map(move |(replica, role)| (id, replica, role))
        })
    }

    /// Returns what becomes of a replica that is in the log of a core: a replica of this shard that was added at the
    /// index `since`.
    pub fn stored(&self, log: CoreLog, shard: ShardId, since: u64) -> StoredReplica {
        let mut own = self.shard(shard).into_iter().flat_map(ShardPlacement::roles);
        match own.find(|(replica, _)| replica.log() == log && replica.since == since) {
            Some((_, role)) => StoredReplica::Current(role),
            None if since > self.version => StoredReplica::Unknown,
            None => StoredReplica::Removed,
        }
    }

    /// Applies a command at an index of the log.
    pub(super) fn apply(
        placement: &mut Option<Self>,
        index: u64,
        command: PlacementCommand,
        roster: &Roster,
    ) -> Answer {
        if roster.founded == 0 {
            return Answer::Refused;
        }
        let is_changed = match (command, placement.as_mut()) {
            (PlacementCommand::Found(first), None) => {
                let mut first = *first;
                for shard in &mut first.shards {
                    shard.epoch = index;
                    shard.voters.iter_mut().for_each(|voter| voter.since = index);
                }
                *placement = Some(first);
                true
            }
            (PlacementCommand::Move(step), Some(placement)) => placement.begin(index, &step, roster),
            (PlacementCommand::Done { shard, epoch }, Some(placement)) => placement.finish(shard, epoch),
            (PlacementCommand::Found(_), Some(_)) => false,
            (PlacementCommand::Move(_) | PlacementCommand::Done { .. }, None) => false,
        };
        if let Some(placement) = placement.as_mut().filter(|_| is_changed) {
            placement.version = index;
        }
        Answer::Done
    }

    /// Begins a change, if it was decided on this version and the roster still has the core that gets a replica.
    fn begin(&mut self, index: u64, step: &ShardMove, roster: &Roster) -> bool {
        let is_there = |added: CoreLog| {
            let member = roster.members.get(&added.node);
            member.is_some_and(|member| {
                let can_take = member.is_core() && member.state != State::Dead && !member.leaves;
                can_take && member.replica == Some(added.replica)
            })
        };
        let Some(shard) = self.shards.get_mut(usize::from(step.shard.0)) else { return false };
        if step.version != self.version || !step.add.is_none_or(is_there) {
            return false;
        }
        let Some(changed) = shard.after(index, step) else { return false };
        *shard = changed;
        true
    }

    /// Ends the change of a shard with this epoch.
    fn finish(&mut self, shard: ShardId, epoch: u64) -> bool {
        let shard = self.shards.get_mut(usize::from(shard.0));
        let Some(shard) = shard.filter(|shard| shard.epoch == epoch && !shard.is_settled()) else {
            return false;
        };
        shard.settle();
        true
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORM];
        out.extend(self.version.to_le_bytes());
        out.push(self.replicas.get());
        out.extend(self.owner_key);
        out.extend((self.shards.len() as u16).to_le_bytes());
        for shard in &self.shards {
            out.extend(shard.epoch.to_le_bytes());
            out.push(shard.voters.len() as u8);
            shard.voters.iter().for_each(|voter| put_replica(Some(*voter), &mut out));
            put_replica(shard.learner, &mut out);
            put_replica(shard.leaving, &mut out);
        }
        out
    }

    /// Decodes the result of [`Self::encode`]; returns `None` for anything else. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != FORM {
            return None;
        }
        let (version, replicas) = (reader.u64()?, Replicas::new(reader.u8()?)?);
        let owner_key = reader.u128()?.to_le_bytes();
        let count = usize::from(reader.u16()?);
        if !(1..=SHARDS_MAX).contains(&count) {
            return None;
        }
        let mut shards = Vec::new();
        for _ in 0..count {
            let epoch = reader.u64()?;
            let voters = (0..reader.u8()?).map(|_| take_replica(&mut reader)?).collect::<Option<_>>()?;
            let (learner, leaving) = (take_replica(&mut reader)?, take_replica(&mut reader)?);
            shards.push(ShardPlacement { epoch, voters, learner, leaving });
        }
        let is_valid = reader.is_empty() && shards.iter().all(ShardPlacement::is_valid);
        is_valid.then_some(Self { version, replicas, owner_key, shards })
    }
}

impl ShardPlacement {
    /// Returns whether the shard's group has exactly its voters, as it has reported.
    pub fn is_settled(&self) -> bool {
        self.learner.is_none() && self.leaving.is_none()
    }

    /// Returns the voters that the shard's group should have.
    pub fn target(&self) -> Vec<ShardReplica> {
        let mut target = self.voters.clone();
        let slot = self.leaving.and_then(|leaving| target.iter().position(|voter| *voter == leaving));
        match (slot, self.learner) {
            (Some(slot), Some(learner)) => target[slot] = learner,
            (Some(slot), None) => drop(target.remove(slot)),
            (None, Some(learner)) => target.push(learner),
            (None, None) => {}
        }
        target
    }

    /// Iterates over all replicas that have a role: voters, the learner and the one that leaves.
    pub fn replicas(&self) -> impl Iterator<Item = ShardReplica> {
        self.roles().map(|(replica, _)| replica)
    }

    /// Iterates over all replicas with their roles.
    pub fn roles(&self) -> impl Iterator<Item = (ShardReplica, ReplicaRole)> + '_ {
        let given_up = self.leaving.filter(|leaving| !self.voters.contains(leaving));
        let role = |voter: ShardReplica| match Some(voter) == self.leaving {
            true => (voter, ReplicaRole::Leaving),
            false => (voter, ReplicaRole::Voter),
        };
        let voters = self.voters.iter().copied().map(role);
        let learner = self.learner.map(|learner| (learner, ReplicaRole::Learner));
        voters.chain(learner).chain(given_up.map(|leaving| (leaving, ReplicaRole::Leaving)))
    }

    /// Returns the shard with a change begun, if that makes sense. A change that replaces an unfinished one keeps a
    /// role for each replica: the group may have any of them as a voter until it reports that it has the target.
    fn after(&self, index: u64, step: &ShardMove) -> Option<Self> {
        let is_known = |removed: ShardReplica| self.replicas().any(|replica| replica == removed);
        let learner = step.add.map(|log| log.replica_since(index));
        let changed = Self { epoch: index, voters: self.voters.clone(), learner, leaving: step.remove };
        let keeps_roles = || {
            let mut given_up = self.replicas().filter(|replica| changed.replicas().all(|it| it != *replica));
            given_up.next().is_none()
        };
        let is_change = changed.is_valid() && !changed.is_settled();
        (is_change && step.remove.is_none_or(is_known) && keeps_roles()).then_some(changed)
    }

    fn settle(&mut self) {
        self.voters = self.target();
        (self.learner, self.leaving) = (None, None);
    }

    fn is_valid(&self) -> bool {
        let are_distinct = |replicas: &[ShardReplica]| {
            let is_first =
                |(at, one): (usize, &ShardReplica)| replicas[..at].iter().all(|it| it.node != one.node);
            (1..=usize::from(Replicas::MAX)).contains(&replicas.len())
                && replicas.iter().enumerate().all(is_first)
        };
        // One log has at most one replica of a shard.
        let mut others = self.voters.iter().chain(&self.leaving);
        are_distinct(&self.voters)
            && are_distinct(&self.target())
            && self.learner.is_none_or(|learner| others.all(|other| other.log() != learner.log()))
    }
}

impl PlacementCommand {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Found(placement) => {
                out.push(1);
                out.extend(placement.encode());
            }
            Self::Move(ShardMove { version, shard, add, remove }) => {
                out.push(2);
                out.extend(version.to_le_bytes());
                out.extend(shard.0.to_le_bytes());
                put_log(*add, out);
                put_replica(*remove, out);
            }
            Self::Done { shard, epoch } => {
                out.push(3);
                out.extend(shard.0.to_le_bytes());
                out.extend(epoch.to_le_bytes());
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            1 => Self::Found(Placement::decode(reader.rest())?.into()),
            2 => Self::Move(ShardMove {
                version: reader.u64()?,
                shard: ShardId(reader.u16()?),
                add: take_log(reader)?,
                remove: take_replica(reader)?,
            }),
            3 => Self::Done { shard: ShardId(reader.u16()?), epoch: reader.u64()? },
            _ => return None,
        })
    }
}

impl CoreLog {
    /// Returns a replica of a shard in this log.
    fn replica_since(self, since: u64) -> ShardReplica {
        ShardReplica { node: self.node, replica: self.replica, since }
    }
}

impl ShardReplica {
    /// Returns the log that has the replica.
    pub fn log(self) -> CoreLog {
        CoreLog { node: self.node, replica: self.replica }
    }
}

fn put_log(log: Option<CoreLog>, out: &mut Vec<u8>) {
    let CoreLog { node, replica } = log.unwrap_or(NONE.log());
    out.extend(node.0.to_le_bytes());
    out.extend(replica.0.to_le_bytes());
}

fn put_replica(replica: Option<ShardReplica>, out: &mut Vec<u8>) {
    put_log(replica.map(ShardReplica::log), out);
    out.extend(replica.unwrap_or(NONE).since.to_le_bytes());
}

/// Takes a log, or none; returns `None` when too few bytes are left.
fn take_log(reader: &mut Reader<'_>) -> Option<Option<CoreLog>> {
    let log = CoreLog { node: NodeId(reader.u64()?), replica: ReplicaId(reader.u64()?) };
    Some(Some(log).filter(|log| *log != NONE.log()))
}

/// Takes a replica, or none; returns `None` when too few bytes are left, or when there is no log but an index.
fn take_replica(reader: &mut Reader<'_>) -> Option<Option<ShardReplica>> {
    let (log, since) = (take_log(reader)?, reader.u64()?);
    (log.is_some() || since == 0).then_some(log.map(|log| log.replica_since(since)))
}

#[cfg(test)]
mod tests;
