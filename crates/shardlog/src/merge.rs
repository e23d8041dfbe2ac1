//! Makes the log of a node alone from the logs of the cores of a cluster: the restore of a cluster.
//!
//! Of each shard, the replica with the greatest last entry counts. Its state is read as if the replica was elected,
//! with all its entries. Then the clients that were connected are released, as at a restart of a node alone. A node can
//! start with the result alone, or as the first core of a new cluster of any size.

use std::collections::BTreeMap;

use broker::ShardId;
use cluster::meta::MetaState;
use consensus::{LastEntry, StorageGroups, last_entry, log_index, read_back};
use shard::{Command, Counts, Cursor, MessageKey, Shard};
use storage::{Log, Record};

use crate::agreement::{Restoring, storage_groups};
use crate::log::{META, RecordForm, group_of, stored};
use crate::own_state::{apply, sweep};
use crate::placed::StoredReplicas;

/// Data of a core on its disk, or a backup of it.
pub struct CoreData {
    /// Name of the directory, for messages.
    pub name: String,
    pub log: Log,
    pub stored: StoredReplicas,
}

/// A shard that was written.
#[derive(Clone, Copy, Debug)]
pub struct MergedShard {
    /// Position of the core whose replica was taken.
    pub core: usize,
    /// Number of replicas that were compared.
    pub replicas: usize,
    pub counts: Counts,
    pub retained: u64,
    /// Time of the last batch, in milliseconds since 1970.
    pub now_ms: u64,
    /// Messages in queues that no core has any more, or that no disk returns.
    pub lost_messages: u64,
}

/// Number of bytes of parts, and of messages, that are written before the log is flushed.
const BYTES_AT_ONCE: usize = 4 << 20;
/// Entries of queues that one step examines.
const EXAMINED_AT_ONCE: usize = 4_096;

/// Returns what the cores have agreed on last: members, records of operators, and the placement of shards.
///
/// # Errors
/// No core has it, or it cannot be read.
pub fn merge_meta(cores: &[CoreData]) -> Result<MetaState, String> {
    let [entries, votes] = META;
    let groups = StorageGroups { entries, votes };
    let mut newest: Option<(usize, MetaState)> = None;
    for (core, _) in best(cores, groups)? {
        // Everything that this program can read.
        let mut state = MetaState::new(Default::default(), u64::MAX);
        read_group(&cores[core], groups, &mut state)?;
        if let Some((other, known)) = &newest
            && known.roster.founded != state.roster.founded
        {
            return Err(format!("{} and {} are of different clusters", cores[*other].name, cores[core].name));
        }
        newest = Some((core, state));
    }
    let newest = newest.map(|(_, state)| state);
    newest.ok_or_else(|| "no directory has what the cores agreed on: add that of a core".to_owned())
}

/// Writes a shard into the log of a node alone. `hash_key` is the first half of that log's secret, and the key of the
/// placement. `flush` writes what was appended. Returns `None` if no core has a replica.
///
/// # Errors
/// The newest replica cannot be read, or the log cannot be written.
pub fn merge_shard(
    shard: ShardId,
    cores: &[CoreData],
    hash_key: [u8; 16],
    to: &Log,
    flush: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Option<MergedShard>, String> {
    if let Some(core) = cores.iter().find(|core| core.stored.own.contains(&shard)) {
        return Err(format!(
            "{} is of the moment at which a cluster began with the sessions of one node: start that node once more, \
             or take a later backup",
            core.name
        ));
    }
    let found = best(cores, storage_groups(shard))?;
    let Some((core, _)) = found.last().copied() else { return Ok(None) };
    let mut machine = Restoring { shard: Shard::new(shard.0, hash_key), hash_key };
    let last = read_group(&cores[core], storage_groups(shard), &mut machine)?;
    let Restoring { shard: mut state, .. } = machine;
    // The state includes entries that are no batches, too.
    state.pass_over(last.map_or(0, |last| log_index(last.index)));
    let state = as_alone(&state, hash_key)?;
    let mut writer = Writer { shard, to, flush, queued: 0 };
    let lost_messages = writer.put_messages(&state, &sources(shard, cores, &found))?;
    let merged = MergedShard {
        core,
        replicas: found.len(),
        counts: *state.counts(),
        retained: state.retained_counts().0,
        now_ms: state.now(),
        lost_messages,
    };
    writer.put_state(state)?;
    Ok(Some(merged))
}

/// Returns the state that a shard of a cluster has on a node alone. The clients that were connected are released. Its
/// next checkpoint has all parts, and not only those that have changed since the last one.
///
/// # Errors
/// The state contradicts itself, which is a fault of this program.
pub fn as_alone(shard: &Shard, hash_key: [u8; 16]) -> Result<Shard, String> {
    let copy = shard.shifted(0, hash_key, &<[u8]>::to_vec);
    let mut state = copy.map_err(|error| error.to_string())?;
    let now = state.now();
    apply(&mut state, now, &Command::Started { incarnation: now, elapsed_ms: 0 })?;
    sweep(&mut state, now)?;
    Ok(state)
}

/// Returns the cores that have a replica of a group, and its last entry. The newest one is last.
fn best(cores: &[CoreData], groups: StorageGroups) -> Result<Vec<(usize, LastEntry)>, String> {
    let mut found = Vec::new();
    for (at, core) in cores.iter().enumerate() {
        let recovered = [groups.entries, groups.votes].map(|group| core.log.recovered(group));
        let recovered: Vec<_> = recovered.into_iter().flatten().collect();
        let last = last_entry(&core.log, groups, &recovered).map_err(|error| {
            format!("{}: {error}. Without this directory, its replicas are not compared", core.name)
        })?;
        found.extend(last.map(|last| (at, last)));
    }
    found.sort_by_key(|(_, last)| *last);
    Ok(found)
}

fn read_group(
    core: &CoreData,
    groups: StorageGroups,
    machine: &mut impl consensus::StateMachine,
) -> Result<Option<LastEntry>, String> {
    let recovered = [groups.entries, groups.votes].map(|group| core.log.recovered(group));
    let recovered: Vec<_> = recovered.into_iter().flatten().collect();
    read_back(&core.log, groups, &recovered, machine).map_err(|error| format!("{}: {error}", core.name))
}

/// Logs that may have the messages of a shard, the newest replica first.
fn sources<'a>(
    shard: ShardId,
    cores: &'a [CoreData],
    found: &[(usize, LastEntry)],
) -> Vec<(&'a Log, RecordForm)> {
    let source = |(at, _): &(usize, LastEntry)| {
        let core = &cores[*at];
        (&core.log, core.stored.forms.get(&shard).copied().unwrap_or(RecordForm::AGREED))
    };
    found.iter().rev().map(source).collect()
}

/// Writer of one shard.
struct Writer<'a> {
    shard: ShardId,
    to: &'a Log,
    flush: &'a mut dyn FnMut() -> Result<(), String>,
    /// Bytes that were appended since the last flush.
    queued: usize,
}

impl Writer<'_> {
    fn queued(&mut self, bytes: usize) -> Result<(), String> {
        self.queued += bytes;
        if self.queued < BYTES_AT_ONCE {
            return Ok(());
        }
        self.queued = 0;
        (self.flush)()
    }

    /// Writes the messages that queues need, as a log keeps them after their segment was freed. Returns how many were
    /// not found.
    fn put_messages(&mut self, state: &Shard, sources: &[(&Log, RecordForm)]) -> Result<u64, String> {
        let (mut needed, mut cursor) = (BTreeMap::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            let found = state.needed_messages(|_| true, from, EXAMINED_AT_ONCE);
            needed.extend(found.messages);
            cursor = found.cursor;
        }
        let keys: Vec<MessageKey> = needed.into_keys().collect();
        let mut lost = 0;
        for keys in keys.chunk_by(|one, next| one.index() == next.index()) {
            let (index, kept, missing) = read_messages(self.shard, keys, sources);
            lost += missing as u64;
            if !kept.is_empty() {
                let bytes = kept.len();
                self.to.append_bodies(group_of(self.shard), vec![(index, kept.into())]);
                self.queued(bytes)?;
            }
        }
        Ok(lost)
    }

    /// Writes the state as a checkpoint.
    fn put_state(&mut self, mut state: Shard) -> Result<(), String> {
        let (group, checkpoint) = (group_of(self.shard), state.begin_checkpoint());
        let mut is_last = false;
        while !is_last {
            let mut bytes_put = 0;
            is_last = state.write_parts(BYTES_AT_ONCE, &mut |part, bytes| {
                bytes_put += bytes.len();
                let (part, payload) = (part.as_u32(), bytes.into());
                self.to.append([Record::Part { group, part, checkpoint, payload }]);
            });
            self.queued(bytes_put)?;
        }
        self.to.append([Record::Done { group, checkpoint }]);
        (self.flush)()
    }
}

/// Reads messages of one record from the first log that has all of them. Returns the index of the record, the messages,
/// and how many are missing.
fn read_messages(
    shard: ShardId,
    keys: &[MessageKey],
    sources: &[(&Log, RecordForm)],
) -> (u64, Vec<u8>, usize) {
    let index = keys[0].index();
    let mut best = (index, Vec::new(), keys.len());
    for (log, form) in sources {
        let Ok(read) = log.read_bodies(group_of(shard), index) else { continue };
        let (kept, missing) = stored(&read, index, *form).keep_shifted(keys, form.behind_ms(index));
        if missing.len() < best.2 {
            best = (index, kept, missing.len());
        }
        if best.2 == 0 {
            break;
        }
    }
    best
}
