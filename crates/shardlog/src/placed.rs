//! Replicas of shards on one core: they begin and end as the placement says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use broker::{ReplicaStart, ShardId, Time};
use cluster::meta::{CoreLog, Placement, ReplicaRole, ShardReplica, StoredReplica};
use consensus::{Config, Member, ReplicaId, StartError};
use link::NodeId;
use storage::{AfterDrop, Log, RecoveredGroup};

use crate::agreement::{AgreementInput, AgreementOwner, ShardAgreement};
use crate::log::{LogNotifier, RecordForm, group_of, votes_of};
use crate::members::TargetMembers;
use crate::own_state::{Conversion, LastBatches, OwnState, in_cluster};

/// Replicas in the log of a core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredReplicas {
    /// Version of the last placement that changed this list. An older one says nothing about it.
    pub version: u64,
    /// Index of the command that added the replica, for each shard.
    pub since: BTreeMap<ShardId, u64>,
    /// Shards of the node alone with which shards of the cluster begin, and which are no replicas yet.
    pub own: BTreeSet<ShardId>,
    /// Form of the records of replicas that begin with such a shard.
    pub forms: BTreeMap<ShardId, RecordForm>,
    /// Replicas that could not be read, and whose data the log may have dropped since.
    pub failed: BTreeSet<ShardId>,
}

/// The parts of the core that [`PlacedReplicas`] need.
pub struct PlacedConfig {
    pub own: CoreLog,
    /// Parameters of each group, but for its number, the identity of the replica, and the seed.
    pub group: Config,
    pub log: Log,
    pub notifier: Arc<LogNotifier>,
    /// Makes the functions that the agreement of a shard calls.
    pub owner: Box<dyn Fn() -> AgreementOwner + Send>,
    /// Stores durably which replicas the log has.
    pub store: StoreList,
}

/// Stores a list of replicas durably.
pub type StoreList = Box<dyn FnMut(&StoredReplicas) -> io::Result<()> + Send>;

/// Replicas of shards on one core. The owner calls [`Self::follow`] for each new placement, and again after
/// [`FOLLOW_AGAIN_MS`] while [`Self::waits`].
///
/// **Invariant:** before a replica writes anything, the core has stored which one it is, and nothing of an earlier one
/// is left. A replica that the shard has no more never runs again, because it may have forgotten a vote.
pub struct PlacedReplicas {
    config: PlacedConfig,
    stored: StoredReplicas,
    /// Data of replicas that were in the log at the start and have not begun yet.
    recovered: Vec<RecoveredGroup>,
    /// State of this node alone that no replica has, and those of its shards that are becoming replicas.
    own: Option<OwnState>,
    /// Last batches of the node alone, until they are durable and the list of replicas is stored.
    last_batches: Option<LastBatches>,
    conversions: BTreeMap<ShardId, Conversion>,
    is_refused: bool,
    running: BTreeMap<ShardId, Running>,
    ending: BTreeMap<ShardId, Ending>,
    /// Replicas that cannot be read, as of [`StoredReplicas::since`]. They do not run in this process.
    failed: BTreeMap<ShardId, u64>,
}

struct Running {
    since: u64,
    told: Option<TargetMembers>,
    preferred_leader: Option<NodeId>,
    /// Shared with the agreement and its reads, as long as they exist.
    exists: Weak<()>,
}

/// Step of a replica that ends.
enum Ending {
    /// The worker may still have it, or a thread that reads for it.
    Stops(Weak<()>),
    /// The log is dropping its data.
    Drops,
}

/// Time in milliseconds after which a replica that ends is looked at again.
pub const FOLLOW_AGAIN_MS: u64 = 100;

impl PlacedReplicas {
    /// `stored` is what [`PlacedConfig::store`] has stored last. `recovered` are the groups of the log at the start,
    /// except those of `own`.
    pub fn new(
        config: PlacedConfig,
        mut stored: StoredReplicas,
        recovered: Vec<RecoveredGroup>,
        own: Option<OwnState>,
    ) -> Self {
        // The others became replicas before the last stop.
        stored.own.retain(|shard| own.as_ref().is_some_and(|own| own.shards.contains_key(shard)));
        let (running, ending, failed, conversions, last_batches) = Default::default();
        let is_refused = false;
        Self {
            config,
            stored,
            recovered,
            own,
            last_batches,
            conversions,
            is_refused,
            running,
            ending,
            failed,
        }
    }

    /// Returns whether some replica begins with the state of this node, or ends: [`Self::follow`] goes on with it.
    pub fn waits(&self) -> bool {
        !self.ending.is_empty() || !self.conversions.is_empty() || self.last_batches.is_some()
    }

    /// Returns whether the cluster has a state of its own, so that this node cannot take part with that of its own.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Begins and ends replicas, and tells their groups which members they should have.
    ///
    /// # Errors
    /// A replica that cannot be read, or whose beginning or end cannot be stored, with advice. The others are followed.
    pub fn follow(&mut self, now: Time, placement: &Placement) -> Result<(), String> {
        if placement.version < self.stored.version {
            return Ok(());
        }
        let own = self.config.own;
        // Both clocks at one moment: the conversion of a shard may take long.
        let own_now = self.own.as_ref().map_or(now, |own| (own.now)());
        if !self.accept_own_state(placement)? {
            return Ok(());
        }
        let mut problems = Vec::new();
        for (id, _) in placement.shards() {
            if self.stored.own.contains(&id) {
                problems.extend(self.begin_with_own((own_now, now), placement, id).err());
                continue;
            }
            let since = self.stored.since.get(&id).copied();
            let kept = since.map(|since| placement.stored(own, id, since));
            let mut all = placement.replicas_in(own).filter(|(of, ..)| *of == id);
            let wanted =
                all.find(|(_, replica, role)| *role != ReplicaRole::Leaving || since == Some(replica.since));
            let wanted = wanted.map(|(_, replica, _)| replica);
            let done = match (kept, wanted) {
                (Some(StoredReplica::Unknown), _) | (Some(StoredReplica::Current(_)), None) => Ok(()),
                (Some(StoredReplica::Current(_)), Some(replica)) => self.run(now, placement, id, replica),
                (Some(StoredReplica::Removed), wanted) => self.end_and_begin(now, placement, id, wanted),
                // It may be what a node alone without content has left. The log frees nothing before it is dropped.
                (None, wanted) if self.has_data(id) => self.end_and_begin(now, placement, id, wanted),
                (None, None) => Ok(()),
                (None, Some(replica)) => self.begin(now, placement, id, replica),
            };
            problems.extend(done.err());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Tells the groups of the replicas which nodes should lead them, by the number of the shard.
    pub fn prefer(&mut self, leaders: &[Option<NodeId>]) {
        for (id, running) in &mut self.running {
            let preferred = leaders.get(usize::from(id.0)).copied().flatten();
            if std::mem::replace(&mut running.preferred_leader, preferred) != preferred {
                self.config.notifier.tell(*id, AgreementInput::PreferredLeader(preferred));
            }
        }
    }

    /// Notes durably that shards of the cluster begin with the state of this node, if it has one. Returns false if it
    /// waits for the last batches of the node alone.
    ///
    /// # Errors
    /// The cluster has another state, or the list cannot be stored. Nothing has changed.
    fn accept_own_state(&mut self, placement: &Placement) -> Result<bool, String> {
        let Some(own) = self.own.as_mut().filter(|own| !own.shards.is_empty()) else { return Ok(true) };
        if self.stored != StoredReplicas::default() {
            // It was accepted before.
            return Ok(true);
        }
        if !placement.is_founded_in(self.config.own) || placement.owner_key != own.owner_key {
            self.is_refused = true;
            return Err("the durable sessions and retained messages of this node cannot be merged with those of its \
                 cluster: start the node with an empty data directory. Its data stays as it is, and can be used by a \
                 node without cluster.replicas"
                .to_owned());
        }
        let shards = own.shards.keys().copied().collect();
        let last_batches = match &mut self.last_batches {
            Some(last_batches) => last_batches,
            none => none.insert(LastBatches::append(&self.config.log, own)?),
        };
        if !last_batches.are_durable(&self.config.notifier) {
            return Ok(false);
        }
        let before = self.stored.clone();
        self.stored.own = shards;
        self.store(placement, before)?;
        self.last_batches = None;
        Ok(true)
    }

    /// Begins the first replica of a shard with the state of this node alone. It takes several calls.
    fn begin_with_own(
        &mut self,
        (own_now, now): (Time, Time),
        placement: &Placement,
        id: ShardId,
    ) -> Result<(), String> {
        let voters = placement.shard(id).map(|shard| &shard.voters[..]);
        let Some([replica]) = voters.filter(|voters| voters.iter().all(|it| it.log() == self.config.own))
        else {
            return Err(format!(
                "shard {} of this node is not the first one of its cluster; it stays unused",
                id.0
            ));
        };
        let replica = *replica;
        if !self.conversions.contains_key(&id) {
            self.begin_conversion((own_now, now), placement, id, replica)?;
        }
        let durable = self.config.notifier.take_checkpoint_events(id);
        let founder = (raft_id(replica), Member { node: replica.node });
        let is_done =
            self.conversions.get_mut(&id).is_some_and(|conversion| conversion.advance(durable, founder));
        if !is_done {
            return Ok(());
        }
        let before = self.stored.clone();
        self.stored.own.remove(&id);
        self.store(placement, before)?;
        self.conversions.remove(&id);
        self.recovered.extend(self.config.log.recovered(group_of(id)));
        self.run(now, placement, id, replica)
    }

    fn begin_conversion(
        &mut self,
        times: (Time, Time),
        placement: &Placement,
        id: ShardId,
        replica: ShardReplica,
    ) -> Result<(), String> {
        let Some(own) = &mut self.own else { return Ok(()) };
        let Some(shard) = own.shards.get(&id) else { return Ok(()) };
        let (state, form) = in_cluster(shard, times, placement.owner_key)?;
        let before = self.stored.clone();
        self.stored.since.insert(id, replica.since);
        self.stored.forms.insert(id, form);
        self.store(placement, before)?;
        if let Some(own) = &mut self.own {
            own.shards.remove(&id);
        }
        self.conversions.insert(id, Conversion::begin(&self.config.log, id, state));
        Ok(())
    }

    /// Returns whether the log has something of a replica that is not on the list, or that ends.
    fn has_data(&self, id: ShardId) -> bool {
        self.ending.contains_key(&id) || self.recovered.iter().any(|group| is_of(id, group))
    }

    /// Ends the replica of a shard. Begins another one when nothing of it is left.
    fn end_and_begin(
        &mut self,
        now: Time,
        placement: &Placement,
        id: ShardId,
        next: Option<ShardReplica>,
    ) -> Result<(), String> {
        if !self.end(placement, id)? {
            return Ok(());
        }
        next.map_or(Ok(()), |replica| self.begin(now, placement, id, replica))
    }

    /// Begins a new replica.
    fn begin(
        &mut self,
        now: Time,
        placement: &Placement,
        id: ShardId,
        replica: ShardReplica,
    ) -> Result<(), String> {
        let before = self.stored.clone();
        self.stored.since.insert(id, replica.since);
        self.store(placement, before)?;
        self.run(now, placement, id, replica)
    }

    fn run(
        &mut self,
        now: Time,
        placement: &Placement,
        id: ShardId,
        replica: ShardReplica,
    ) -> Result<(), String> {
        if self.failed.get(&id) == Some(&replica.since) {
            return Ok(());
        }
        // The log drops the entries first, and nothing of it if it needs no room.
        let has_entries = || self.recovered.iter().any(|group| group.group == group_of(id));
        if self.stored.failed.contains(&id) && !self.running.contains_key(&id) && !has_entries() {
            self.failed.insert(id, replica.since);
            return Err(cannot_be_read(id, &"its data was dropped after that"));
        }
        if !self.running.contains_key(&id) {
            self.start(now, placement, id, replica)?;
        }
        let Some((target, running)) = target_of(placement, id, replica).zip(self.running.get_mut(&id)) else {
            return Ok(());
        };
        if running.since == replica.since && running.told.as_ref() != Some(&target) {
            running.told = Some(target.clone());
            self.config.notifier.tell(id, AgreementInput::Target(target));
        }
        Ok(())
    }

    fn start(
        &mut self,
        now: Time,
        placement: &Placement,
        id: ShardId,
        replica: ShardReplica,
    ) -> Result<(), String> {
        let recovered: Vec<RecoveredGroup> =
            self.recovered.extract_if(.., |group| is_of(id, group)).collect();
        let group = Config {
            id: raft_id(replica),
            own: Member { node: replica.node },
            seed: self.config.group.seed ^ u64::from(id.0) << 32,
            ..self.config.group.clone()
        };
        let (log, owner) = (self.config.log.clone(), (self.config.owner)());
        let started = ShardAgreement::start(now, id, group, log, &recovered, placement.owner_key, owner);
        let form = self.stored.forms.get(&id).copied().unwrap_or(RecordForm::AGREED);
        let (state, agreement) = match started {
            Ok(started) => started,
            Err(error) => {
                // Without what it had, it could vote twice.
                self.failed.insert(id, replica.since);
                self.abandon(placement, id, &error)?;
                return Err(cannot_be_read(id, &error));
            }
        };
        if self.stored.failed.contains(&id) {
            // The disk has returned it this time.
            let before = self.stored.clone();
            self.stored.failed.remove(&id);
            self.store(placement, before)?;
        }
        self.config.notifier.set_form(id, form);
        let agreement = agreement.with_records(form);
        let exists = agreement.exists();
        tracing::info!(shard = id.0, since = replica.since, "a replica of a shard begins");
        self.running.insert(id, Running { since: replica.since, told: None, preferred_leader: None, exists });
        self.config.notifier.start_replica(id, ReplicaStart { state, agreement: Box::new(agreement) });
        Ok(())
    }

    /// Lets the log drop a replica that cannot be read, when it has to free segments: it would free none for its sake.
    /// The only replica of its shard stays, because `meridian storage repair` may save something of it.
    fn abandon(&mut self, placement: &Placement, id: ShardId, error: &StartError) -> Result<(), String> {
        let own = self.config.own;
        let is_only =
            placement.shard(id).is_none_or(|shard| shard.voters.iter().all(|voter| voter.log() == own));
        if is_only || matches!(error, StartError::UnsupportedVersion) {
            return Ok(());
        }
        let before = self.stored.clone();
        self.stored.failed.insert(id);
        self.store(placement, before)?;
        self.config.log.abandon(&[group_of(id), votes_of(id)], AfterDrop::Same);
        Ok(())
    }

    /// Ends a replica that the shard has no more, and drops its data. Returns true when nothing of it is left.
    fn end(&mut self, placement: &Placement, id: ShardId) -> Result<bool, String> {
        if let Some(Running { exists, .. }) = self.running.remove(&id) {
            tracing::info!(shard = id.0, "the replica of a shard ends");
            self.config.notifier.stop_replica(id);
            self.ending.insert(id, Ending::Stops(exists));
        }
        self.recovered.retain(|group| !is_of(id, group));
        match self.ending.get(&id) {
            // Its reads may have no result yet, and may write to the log.
            Some(Ending::Stops(exists))
                if exists.strong_count() > 0 || self.config.notifier.has_reads(id) =>
            {
                Ok(false)
            }
            Some(Ending::Stops(_)) | None => {
                self.config.notifier.drops(id);
                self.config.log.drop_group(group_of(id));
                self.config.log.drop_group(votes_of(id));
                self.ending.insert(id, Ending::Drops);
                Ok(false)
            }
            Some(Ending::Drops) if !self.config.notifier.has_dropped(id) => Ok(false),
            Some(Ending::Drops) => {
                let before = self.stored.clone();
                self.stored.since.remove(&id);
                self.stored.forms.remove(&id);
                self.stored.failed.remove(&id);
                self.store(placement, before)?;
                self.ending.remove(&id);
                self.failed.remove(&id);
                Ok(true)
            }
        }
    }

    /// Stores the list, or takes its change back.
    fn store(&mut self, placement: &Placement, before: StoredReplicas) -> Result<(), String> {
        self.stored.version = placement.version;
        (self.config.store)(&self.stored).map_err(|error| {
            self.stored = before;
            format!("the list of replicas cannot be stored: {error}")
        })
    }
}

/// Returns whether a group of the log belongs to the replica of a shard.
fn is_of(id: ShardId, group: &RecoveredGroup) -> bool {
    [group_of(id), votes_of(id)].contains(&group.group)
}

/// Number of a replica in its Raft group. A replica that was added later has another one.
fn raft_id(replica: ShardReplica) -> ReplicaId {
    let mix = |value: u64| {
        let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ value >> 31
    };
    ReplicaId(mix(replica.replica.0 ^ mix(replica.since.wrapping_mul(0x9E37_79B9_7F4A_7C15))).max(1))
}

fn cannot_be_read(id: ShardId, why: &dyn fmt::Display) -> String {
    format!(
        "the replica of shard {} cannot be read: {why}. It takes no part until this node has another one: stop the \
         node, move its data directory away, and start it with an empty one. The other replicas of this node go on",
        id.0
    )
}

/// Returns the members that the group of a shard should have, for one of its replicas.
fn target_of(placement: &Placement, id: ShardId, own: ShardReplica) -> Option<TargetMembers> {
    let shard = placement.shard(id)?;
    let members = |replicas: &[ShardReplica]| -> BTreeMap<ReplicaId, Member> {
        replicas.iter().map(|replica| (raft_id(*replica), Member { node: replica.node })).collect()
    };
    // The first voters are those that the first command has added. They make the group, unless it exists already: a
    // change of them is reported by a leader only.
    let first = placement.shards().flat_map(|(_, shard)| &shard.voters).map(|voter| voter.since).min();
    let are_first = shard.voters.iter().all(|voter| Some(voter.since) == first);
    let makes = are_first && shard.voters.contains(&own);
    Some(TargetMembers {
        epoch: shard.epoch,
        voters: members(&shard.target()),
        known: shard.voters.iter().copied().map(raft_id).collect(),
        founders: if makes { members(&shard.voters) } else { BTreeMap::new() },
        is_settled: shard.is_settled(),
    })
}

#[cfg(test)]
mod tests;
