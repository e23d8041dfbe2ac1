//! Replicas of shards on one core: they begin and end as the placement says.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use broker::{ReplicaStart, ShardId, Time};
use cluster::meta::{CoreLog, Placement, ReplicaRole, ShardPlacement, ShardReplica, StoredReplica};
use consensus::{Config, Member, ReplicaId};
use storage::{Log, RecoveredGroup};

use crate::agreement::{AgreementInput, AgreementOwner, ShardAgreement};
use crate::log::{LogNotifier, group_of, votes_of};
use crate::members::TargetMembers;

/// Replicas in the log of a core: for each shard the index of the command that added the replica.
pub type StoredReplicas = BTreeMap<ShardId, u64>;

/// What [`PlacedReplicas`] need of the core.
pub struct PlacedConfig {
    pub own: CoreLog,
    /// Parameters of each group, but for its number, the identity of the replica, and the seed.
    pub group: Config,
    pub log: Log,
    pub notifier: Arc<LogNotifier>,
    /// Makes the functions that the agreement of a shard calls.
    pub owner: Box<dyn Fn() -> AgreementOwner + Send>,
    /// Stores durably which replicas the log has.
    pub store: Box<dyn FnMut(&StoredReplicas) -> io::Result<()> + Send>,
}

/// Replicas of shards on one core. The owner calls [`Self::follow`] for each new placement, and again after
/// [`FOLLOW_AGAIN_MS`] while it returns true.
///
/// **Invariant:** before a replica writes anything, the core has stored which one it is. A replica that the shard has no
/// more never runs again, because it may have forgotten a vote.
pub struct PlacedReplicas {
    config: PlacedConfig,
    stored: StoredReplicas,
    /// Data of replicas that were in the log at the start and have not begun yet.
    recovered: Vec<RecoveredGroup>,
    running: BTreeMap<ShardId, Running>,
    /// Replicas that the worker has not dropped yet. Their data is removed after that.
    ending: BTreeMap<ShardId, Weak<()>>,
}

struct Running {
    since: u64,
    told: Option<TargetMembers>,
    /// Shared with the agreement, as long as it exists.
    exists: Weak<()>,
}

/// Time in milliseconds after which a replica that ends is looked at again.
pub const FOLLOW_AGAIN_MS: u64 = 100;

impl PlacedReplicas {
    /// `stored` is what [`PlacedConfig::store`] has stored last. `recovered` are the groups of the log at the start.
    pub fn new(config: PlacedConfig, stored: StoredReplicas, recovered: Vec<RecoveredGroup>) -> Self {
        Self { config, stored, recovered, running: BTreeMap::new(), ending: BTreeMap::new() }
    }

    /// Begins and ends replicas, and tells their groups which members they should have. Returns whether some replica
    /// waits: then it has to be called again.
    ///
    /// # Errors
    /// A replica that cannot be read, or whose beginning cannot be stored, with advice. The others are followed.
    pub fn follow(&mut self, now: Time, placement: &Placement) -> Result<bool, String> {
        let own = self.config.own;
        let mut problems = Vec::new();
        for (id, shard) in placement.shards() {
            let kept = self.stored.get(&id).map(|since| placement.stored(own, id, *since));
            let wanted = placement.replicas_in(own).find(|(of, replica, role)| {
                *of == id && (*role != ReplicaRole::Leaving || self.stored.get(&id) == Some(&replica.since))
            });
            let done = match (kept, wanted) {
                (Some(StoredReplica::Unknown), _) | (None, None) => Ok(()),
                (Some(StoredReplica::Current(_)), Some((_, replica, _))) => {
                    self.run(now, placement, (id, shard), replica)
                }
                (Some(StoredReplica::Current(_)), None) => Ok(()),
                (Some(StoredReplica::Removed), wanted) => match (self.end(id), wanted) {
                    (Ok(true), Some((_, replica, _))) => self.begin(now, placement, (id, shard), replica),
                    (ended, _) => ended.map(|_| ()),
                },
                (None, Some((_, replica, _))) => self.begin(now, placement, (id, shard), replica),
            };
            problems.extend(done.err());
        }
        if problems.is_empty() { Ok(!self.ending.is_empty()) } else { Err(problems.join("; ")) }
    }

    /// Begins a new replica.
    fn begin(
        &mut self,
        now: Time,
        placement: &Placement,
        (id, shard): (ShardId, &ShardPlacement),
        replica: ShardReplica,
    ) -> Result<(), String> {
        self.stored.insert(id, replica.since);
        if let Err(error) = self.store() {
            self.stored.remove(&id);
            return Err(error);
        }
        self.run(now, placement, (id, shard), replica)
    }

    fn run(
        &mut self,
        now: Time,
        placement: &Placement,
        (id, shard): (ShardId, &ShardPlacement),
        replica: ShardReplica,
    ) -> Result<(), String> {
        if !self.running.contains_key(&id) {
            self.start(now, placement, id, replica)?;
        }
        let target = target_of(shard);
        let Some(running) = self.running.get_mut(&id) else { return Ok(()) };
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
        let of_shard = |group: &mut RecoveredGroup| [group_of(id), votes_of(id)].contains(&group.group);
        let recovered: Vec<RecoveredGroup> = self.recovered.extract_if(.., of_shard).collect();
        let group = Config {
            id: raft_id(replica),
            own: Member { node: replica.node },
            seed: self.config.group.seed ^ u64::from(id.0) << 32,
            ..self.config.group.clone()
        };
        let (log, owner) = (self.config.log.clone(), (self.config.owner)());
        let started = ShardAgreement::start(now, id, group, log, &recovered, placement.owner_key, owner);
        let (state, agreement) = started.map_err(|error| {
            format!(
                "the replica of shard {} cannot be read: {error}. The other replicas go on; to make it again, stop \
                 this node, move its data directory away, and start it with an empty one",
                id.0
            )
        })?;
        let exists = agreement.exists();
        tracing::info!(shard = id.0, since = replica.since, "a replica of a shard begins");
        self.running.insert(id, Running { since: replica.since, told: None, exists });
        self.config.notifier.start_replica(id, ReplicaStart { state, agreement: Box::new(agreement) });
        Ok(())
    }

    /// Ends a replica that the shard has no more, and removes its data. Returns false while the worker has it.
    fn end(&mut self, id: ShardId) -> Result<bool, String> {
        if let Some(Running { exists, .. }) = self.running.remove(&id) {
            tracing::info!(shard = id.0, "the replica of a shard ends");
            self.config.notifier.stop_replica(id);
            self.ending.insert(id, exists);
        }
        if self.ending.get(&id).is_some_and(|exists| exists.strong_count() > 0) {
            return Ok(false);
        }
        self.recovered.retain(|group| ![group_of(id), votes_of(id)].contains(&group.group));
        self.ending.remove(&id);
        self.stored.remove(&id);
        self.store()?;
        Ok(true)
    }

    fn store(&mut self) -> Result<(), String> {
        (self.config.store)(&self.stored)
            .map_err(|error| format!("the list of replicas cannot be stored: {error}"))
    }
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

fn target_of(shard: &ShardPlacement) -> TargetMembers {
    let target = shard.target();
    let voters = target.iter().map(|voter| (raft_id(*voter), Member { node: voter.node })).collect();
    TargetMembers {
        epoch: shard.epoch,
        voters,
        founds: target.iter().all(|voter| voter.since == shard.epoch),
        is_settled: shard.is_settled(),
    }
}
