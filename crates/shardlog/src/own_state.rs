//! State of a node alone, with which the shards of a new cluster begin.
//!
//! A shard of a node alone and the replica of a shard use the same group of the log, so messages keep their keys. The
//! replica begins with a snapshot of the state. Its mark is the moment of the change: before it is durable, the log has
//! the shard of a node alone, and after it the replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{ShardId, Time};
use consensus::{FirstSnapshot, Member, ReplicaId};
use shard::{BatchBuilder, CLOCK_STEP_MAX_MS, Command, ELAPSED_MAX_MS, Shard};
use storage::{Log, RecoveredGroup};

use crate::agreement::storage_groups;
use crate::log::{LogNotifier, RecordForm, batch_of_own, group_of};
use crate::placed::StoredReplicas;

/// State of a node alone that no replica has yet.
pub struct OwnState {
    pub shards: BTreeMap<ShardId, Shard>,
    /// Key of the hash by which the node finds the owners of sessions.
    pub owner_key: [u8; 16],
    /// Returns the present time of the node alone. Its sessions expire by that.
    pub now: Box<dyn Fn() -> Time + Send>,
}

/// Groups of the log of a core at its start.
#[derive(Default)]
pub struct GroupsOfCore {
    /// Shards of the node alone that are about to become replicas.
    pub own: Vec<RecoveredGroup>,
    pub replicas: Vec<RecoveredGroup>,
}

/// Sorts the groups of a core by the form that they have.
pub fn sort_groups(stored: &StoredReplicas, groups: Vec<RecoveredGroup>) -> GroupsOfCore {
    let is_own = |group: &RecoveredGroup| {
        let mut own = stored.own.iter();
        let Some(shard) = own.find(|shard| group_of(**shard) == group.group) else { return false };
        let form = stored.forms.get(shard);
        form.is_none_or(|form| group.checkpoint < Some(form.batches_until))
    };
    let (own, replicas) = groups.into_iter().partition(is_own);
    GroupsOfCore { own, replicas }
}

/// Batches of the node alone that its shards need before they become replicas, and that are not durable yet: the index
/// of the last one for each shard.
pub(crate) struct LastBatches(BTreeMap<ShardId, u64>);

impl LastBatches {
    /// Removes the identities that the shards remember after the end of their exchanges, like each start of a node
    /// alone. Replicas cannot do it: it needs all shards. The log has the form of a node alone, before and after it.
    ///
    /// # Errors
    /// A state cannot be changed, which is a fault of this program.
    pub fn append(log: &Log, own: &mut OwnState) -> Result<Self, String> {
        let mut stale: BTreeMap<ShardId, Vec<broker::Identity>> = BTreeMap::new();
        for (shard, identity) in broker::stale_identities(&own.shards.values().collect::<Vec<_>>()) {
            stale.entry(shard).or_default().push(identity);
        }
        let mut last = BTreeMap::new();
        for (id, identities) in stale {
            let Some(shard) = own.shards.get_mut(&id) else { continue };
            for some in identities.chunks(FORGOTTEN_AT_ONCE) {
                let mut batch = BatchBuilder::new(shard.now());
                for &broker::Identity { origin, number } in some {
                    batch.push(&Command::Forget(shard::Identity { origin, number }));
                }
                let (index, batch) = (shard.applied() + 1, batch.finish());
                shard.apply(index, &batch, &mut Vec::new()).map_err(|error| error.to_string())?;
                log.append([batch_of_own(id, index, Arc::new(batch))]);
                last.insert(id, index);
            }
        }
        Ok(Self(last))
    }

    /// Returns whether all batches are durable.
    pub fn are_durable(&mut self, notifier: &LogNotifier) -> bool {
        self.0.retain(|shard, last| notifier.take_durable(*shard) < *last);
        self.0.is_empty()
    }
}

/// Change of the shard of a node alone into the first replica of a shard.
pub(crate) struct Conversion {
    shard: ShardId,
    /// State of the replica, whose parts are being written.
    state: Shard,
    /// `None` when everything is written.
    snapshot: Option<FirstSnapshot>,
    /// Number of parts that are not durable.
    in_flight: u64,
    is_durable: bool,
}

/// Number of bytes of parts that are written before they are durable.
const BYTES_IN_FLIGHT: usize = 4 << 20;
/// Maximum number of identities that one batch removes.
const FORGOTTEN_AT_ONCE: usize = 4_096;
/// Maximum number of sessions that one batch releases.
const RELEASED_AT_ONCE: u32 = 4_096;

/// Returns the state that a shard of a node alone has in a cluster at the time `now`, and the form of its records in
/// the log. The clients that were connected are released. `own_now` is the same time by the clock of the node alone.
///
/// # Errors
/// The state cannot be read, which is a fault of this program.
pub(crate) fn in_cluster(
    shard: &Shard,
    (own_now, now): (Time, Time),
    hash_key: [u8; 16],
) -> Result<(Shard, RecordForm), String> {
    let batches_behind_ms = now.0.saturating_sub(own_now.0);
    let will_properties =
        |properties: &[u8]| broker::shifted_will_properties(properties, batches_behind_ms.cast_signed());
    let mut state =
        shard.shifted(batches_behind_ms, hash_key, &will_properties).map_err(|error| error.to_string())?;
    // Sessions end now and not earlier, as at a restart of the node alone.
    while state.now().saturating_add(ELAPSED_MAX_MS) < now.0 {
        let step = state.now() + CLOCK_STEP_MAX_MS;
        apply(&mut state, step, &Command::Tick)?;
    }
    let elapsed_ms = now.0.saturating_sub(state.now());
    apply(&mut state, now.0, &Command::Started { incarnation: now.0, elapsed_ms })?;
    sweep(&mut state, now.0)?;
    let form = RecordForm { batches_until: state.applied(), batches_behind_ms };
    Ok((state, form))
}

/// Releases the clients that were connected, after a [`Command::Started`].
pub(crate) fn sweep(state: &mut Shard, now: u64) -> Result<(), String> {
    while state.sweeping() {
        apply(state, now, &Command::Sweep { count: RELEASED_AT_ONCE })?;
    }
    Ok(())
}

/// Applies a command that is not in the log: the snapshot includes it. Its effects follow from the state.
pub(crate) fn apply(state: &mut Shard, now: u64, command: &Command<'_>) -> Result<(), String> {
    let mut batch = BatchBuilder::new(now);
    batch.push(command);
    let applied = state.apply(state.applied() + 1, &batch.finish(), &mut Vec::new());
    applied.map_err(|error| error.to_string())
}

impl Conversion {
    /// Begins to write the state. The core has stored the form of the shard's records.
    pub fn begin(log: &Log, shard: ShardId, mut state: Shard) -> Self {
        let checkpoint = state.begin_checkpoint();
        let previous = log.recovered(group_of(shard));
        // Indexes of Raft are one lower.
        let last = checkpoint - 1;
        let snapshot = FirstSnapshot::begin(log.clone(), storage_groups(shard), last, previous.as_ref());
        Self { shard, state, snapshot: Some(snapshot), in_flight: 0, is_durable: false }
    }

    /// Goes on when parts and perhaps a checkpoint have become durable. Returns true when the log has the replica.
    pub fn advance(&mut self, (parts, checkpoint): (u64, Option<u64>), founder: (ReplicaId, Member)) -> bool {
        self.in_flight = self.in_flight.saturating_sub(parts);
        self.is_durable |= self.snapshot.is_none() && checkpoint >= Some(self.state.applied());
        if self.in_flight == 0
            && let Some(snapshot) = &mut self.snapshot
        {
            let in_flight = &mut self.in_flight;
            let is_last = self.state.write_parts(BYTES_IN_FLIGHT, &mut |part, bytes| {
                snapshot.put(part.as_u32(), bytes);
                *in_flight += 1;
            });
            if is_last && let Some(snapshot) = self.snapshot.take() {
                let (id, member) = founder;
                snapshot.finish(id, member);
                tracing::info!(
                    shard = self.shard.0,
                    sessions = self.state.counts().sessions,
                    "a shard of this node becomes the first replica of a shard of the cluster"
                );
            }
        }
        self.is_durable
    }
}
