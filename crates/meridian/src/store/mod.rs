//! Storage of the node: opened at the start, passed to the broker, closed at the end.

mod backup_files;
mod clock;
mod operator;
mod readers;
mod replicas;
mod restoring;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::RecoveryView;
use broker::ShardId;
use broker::settings::Durability;
use settings::{ByteSize, section};
use shard::Shard;
use shardlog::{EventForwarder, GroupsOfCore, LogNotifier, Moment, OwnState, ShardLog, StoredReplicas};
use storage::{AfterDrop, LogThreads, RealDisk, RecoveredGroup};

use crate::storage::DIRECTORY;
use crate::system::free_bytes;

pub use self::clock::ClockFile;
use self::operator::Operator;
pub use self::readers::ReadQueue;
use self::readers::Readers;
pub use self::replicas::ReplicasFile;
use self::restoring::restore;

section! {
    /// Storage of data that survives the process: durable sessions, their queues, retained messages, Wills.
    [storage]
    pub struct StorageSettings {
        /// Durability of the node's data. `memory` keeps nothing on disk, whatever listeners and `[[durability]]`
        /// rules say.
        pub durability: Durability = "local-disk", at start;
        /// Size of a file of the log. Disk use is at least four of them and the reserve.
        pub segment_size: ByteSize = "64MiB" in "1MiB..=4GiB", at start;
        /// Space kept free in the log, for operations that free space when the disk is full.
        pub reserve: ByteSize = "128MiB" in "2MiB..=1TiB", at start;
        /// Maximum size of the log's files. When they reach it, the node behaves as on a full disk. 0 uses the whole
        /// disk; otherwise it is at least four files of `segment_size` and the reserve.
        pub disk_max: ByteSize = "0", at start;
        /// Directory for backups of a running node (`meridian ctl storage backup`), each in a directory of its own.
        /// No backups are made when unset. The directory must exist, and the node must be able to write to it.
        pub backup_dir: Option<PathBuf> = "", at start;
    }
}

impl StorageSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// `disk_max` is too small for a log.
    pub fn check(&self) -> Result<(), String> {
        let least = 4 * self.segment_size.bytes() + self.reserve.bytes();
        match self.disk_max.bytes() {
            1.. if self.disk_max.bytes() < least => Err(format!(
                "storage.disk_max = {} is less than a log needs: write at least {}, which is \
                 four files of storage.segment_size ({}) and storage.reserve ({}), or make \
                 these smaller",
                self.disk_max,
                ByteSize::kib(least.div_ceil(1024)),
                self.segment_size,
                self.reserve
            )),
            _ => Ok(()),
        }
    }
}

/// The open store of a node.
pub struct Store {
    log: Arc<ShardLog>,
    operator: Arc<Operator>,
    threads: LogThreads,
    readers: Readers,
    /// Thread that writes the time of a node alone to disk; it ends when the sender is dropped.
    clock: Option<(SyncSender<()>, JoinHandle<()>)>,
}

/// Parts of the log for a replica of the cluster's meta group.
pub struct MetaLog {
    pub log: storage::Log,
    pub notifier: Arc<LogNotifier>,
    pub recovered: Vec<RecoveredGroup>,
    pub reads: ReadQueue,
}

/// Parts of the log for the replicas of shards on a core.
pub struct ShardsLog {
    pub log: storage::Log,
    pub notifier: Arc<LogNotifier>,
    pub recovered: Vec<RecoveredGroup>,
    pub stored: StoredReplicas,
    /// State of the node alone, with which shards of the cluster begin.
    pub own: Option<OwnState>,
    pub file: ReplicasFile,
    pub reads: ReadQueue,
}

impl ShardsLog {
    /// Returns the key for owners of sessions, if the node has sessions of its own and the cluster has not begun with
    /// them yet.
    pub fn unaccepted_state(&self) -> Option<[u8; 16]> {
        self.own.as_ref().filter(|_| self.stored == StoredReplicas::default()).map(|own| own.owner_key)
    }
}

/// Shards in the log of a node.
#[derive(Default)]
struct FoundShards {
    /// State of a node alone.
    own: Vec<Shard>,
    /// List and groups of the replicas, if the shards belong to the cluster.
    of_cluster: Option<(StoredReplicas, Vec<RecoveredGroup>)>,
}

/// An open store, and the parts of the node that use it.
pub struct OpenedStore {
    pub store: Store,
    /// Initial state of the broker.
    pub broker: broker::Store,
    /// Parts for a core's replica of the meta group.
    pub meta: MetaLog,
    /// Parts for a core's replicas of shards, if the shards belong to the cluster.
    pub shards: Option<ShardsLog>,
}

/// Purposes of the log of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogUse {
    /// The node has a replica of the meta group.
    pub is_core: bool,
    /// The shards belong to the cluster, and not to the node alone.
    pub shares_shards: bool,
}

/// Interval of progress messages of a long start.
const SHOWN_EVERY: Duration = Duration::from_secs(2);
/// Interval at which the node's time is written to disk. After a crash, the node's time may stand still for as long.
const NOTED_EVERY: Duration = Duration::from_secs(5);
/// Earliest time of a clock that may be right, in milliseconds since 1970: the year 2024.
const CLOCK_MIN_MS: u64 = 1_704_067_200_000;

impl Store {
    /// Opens the store, and creates it when there is none. Logs the progress.
    ///
    /// # Errors
    /// The problem, with advice.
    pub fn open(settings: &StorageSettings, data_dir: &Path, log_use: LogUse) -> Result<OpenedStore, String> {
        let directory = data_dir.join(DIRECTORY);
        let disk = RealDisk::open(&directory).map_err(|error| error.to_string())?;
        let disk = match settings.disk_max.bytes() {
            0 => disk,
            bytes_max => disk.limited_to(bytes_max),
        };
        let options = storage::Options {
            segment_bytes: settings.segment_size.bytes() / 512 * 512,
            reserve_bytes: settings.reserve.bytes(),
            urgent: if log_use.is_core { &shardlog::URGENT } else { &[] },
            now_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
            ..storage::Options::default()
        };
        let notifier = Arc::new(match log_use.shares_shards {
            true => LogNotifier::of_agreements(broker::ShardSet::EMPTY),
            false => LogNotifier::default(),
        });
        let mut shown = Instant::now();
        let mut progress = |progress: storage::Progress| {
            if shown.elapsed() >= SHOWN_EVERY {
                shown = Instant::now();
                let storage::Progress { segments, segments_all, records } = progress;
                tracing::info!(segments, of = segments_all, records, "reading the store");
            }
        };
        let events = Box::new(EventForwarder(notifier.clone()));
        let mut opened = storage::open(Arc::new(disk), options, events, &mut progress)
            .map_err(|error| error.to_string())?;
        let report = &opened.recovery.report;
        let began = Instant::now();
        let identity = opened.log.identity().clone();
        let hash_key: [u8; 16] = identity.secret[..16].try_into().unwrap_or_default();
        let meta = shardlog::take_meta(&mut opened.recovery.groups);
        let file = ReplicasFile::of(&directory);
        let (groups, stored) = (std::mem::take(&mut opened.recovery.groups), file.read()?);
        let found = find_shards(&opened.log, &directory, log_use, (stored, hash_key), groups)?;
        let FoundShards { own: mut shards, of_cluster } = found;
        let is_new = of_cluster.as_ref().is_some_and(|(stored, _)| *stored == StoredReplicas::default());
        if is_new && !shards.is_empty() {
            // Before the cluster begins with these shards: then there is no way back. A core that has a vote already
            // is needed, with room or without, and may be one whose sessions are refused.
            match check_room(&directory, settings, &opened.log.stats(), &mut shards) {
                Err(error) if meta.is_empty() => return Err(error),
                Err(error) => tracing::warn!("{error:#}"),
                Ok(()) => {}
            }
        }
        if !log_use.is_core && !meta.is_empty() {
            // The node was a core. It becomes another one when it is a core again without them.
            opened.log.abandon(&shardlog::META, AfterDrop::AnotherCopy);
        }
        let sessions: u64 = shards.iter().map(|shard| shard.counts().sessions).sum();
        tracing::info!(
            directory = %directory.display(), segments = report.segments, bytes = report.bytes, sessions,
            read = ?report.took, restored = ?began.elapsed(), "store opened"
        );

        let recovery = RecoveryView {
            segments: report.segments as u64,
            records: report.records,
            bytes: report.bytes,
            truncated_bytes: report.cut_bytes,
            indexes_rebuilt: report.indexes_rebuilt as u64,
            sessions,
            read_s: report.took.as_secs_f64(),
            restored_s: began.elapsed().as_secs_f64(),
        };
        let clock = ClockFile::of(&directory);
        let (now, noted) = (clock::now(Duration::ZERO), clock.read());
        let incarnation = match log_use.shares_shards {
            true => cluster_incarnation()?,
            false => shardlog::incarnation(&shards, noted.as_ref(), &now),
        };
        let node = Duration::from_millis(incarnation.began.0);
        let threads = storage::spawn(opened.writer, opened.keeper).map_err(|error| error.to_string())?;
        let (readers, reads) = Readers::start(&opened.log, &notifier).map_err(|error| error.to_string())?;
        let log = opened.log.clone();
        let (shards, own) = match of_cluster.is_some() && !shards.is_empty() {
            true => (Vec::new(), Some(own_state(shards, hash_key, noted))),
            false => (shards, None),
        };
        let of_cluster = of_cluster.map(|(stored, recovered)| ShardsLog {
            log: log.clone(),
            notifier: notifier.clone(),
            recovered,
            stored,
            own,
            file,
            reads: reads.clone(),
        });
        let meta = MetaLog { log, notifier: notifier.clone(), recovered: meta, reads: reads.clone() };
        let log = ShardLog::new(opened.log, notifier, move |request| reads.read_messages(request));
        // The time of a node alone stands still from its last stop until its shards are those of the cluster.
        let clock = if log_use.shares_shards { None } else { Some(note_time(clock, node)) };
        let clock = clock.transpose().map_err(|error| error.to_string())?;
        let (reserve, backup_dir) = (settings.reserve.bytes(), settings.backup_dir.clone());
        let operator = Operator::new(log.clone(), directory, reserve, recovery, backup_dir);
        let store = Self { log: log.clone(), operator, threads, readers, clock };
        let broker = broker::Store {
            log: Some(log),
            shards,
            agreements: Vec::new(),
            own: None,
            incarnation,
            hash_key,
        };
        Ok(OpenedStore { store, broker, meta, shards: of_cluster })
    }

    /// View of the store for operators.
    pub fn operator(&self) -> Arc<dyn api::Storage> {
        self.operator.clone()
    }

    /// Number of segments of the log now.
    pub fn segments(&self) -> u64 {
        self.log.log().stats().segments as u64
    }

    /// Name of the log. A log that was restored or repaired has another one.
    pub fn log_name(&self) -> String {
        let identity = self.log.log().identity();
        format!("{}.{:x}", identity.log_text(), identity.copy)
    }

    /// Writes the queue and closes the store. Call after the node has ended.
    pub fn close(self) {
        self.threads.stop();
        self.readers.stop();
        let stats = self.log.log().stats();
        tracing::info!(
            commits = stats.commits,
            records = stats.records,
            bytes = stats.bytes_written,
            segments = stats.segments,
            live_bytes = stats.live_bytes,
            "store closed"
        );
        if let Some((end, thread)) = self.clock {
            drop(end);
            // A panic of the thread ends the process.
            let _ = thread.join();
        }
    }
}

/// Incarnation of a node whose shards belong to its cluster. Its time begins with the wall clock. The shards follow the
/// clocks of most nodes.
///
/// # Errors
/// The clock is certainly wrong.
pub fn cluster_incarnation() -> Result<broker::Incarnation, String> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    if wall < CLOCK_MIN_MS {
        return Err(
            "the clock of this machine is before 2024: set it, for example by NTP, before the node starts \
             (cluster.replicas)"
                .to_owned(),
        );
    }
    Ok(broker::Incarnation { began: broker::Time(wall), number: wall })
}

/// Maximum number of bytes of a checkpoint in one record of the log.
const RECORD_MAX: usize = 1 << 20;

/// Checks that there is room for a second copy of the shards of a node alone, with which replicas begin.
///
/// # Errors
/// There is not, with advice.
fn check_room(
    directory: &Path,
    settings: &StorageSettings,
    stats: &storage::Stats,
    shards: &mut [Shard],
) -> Result<(), String> {
    // Parts of the last checkpoint, and those that have changed since.
    let mut needed: u64 = stats.groups.iter().map(|group| group.part_bytes).sum();
    for shard in shards.iter_mut() {
        shard.begin_checkpoint();
        while !shard.write_parts(RECORD_MAX, &mut |_, bytes| needed += bytes.len() as u64) {}
    }
    let segment = settings.segment_size.bytes();
    let spares = stats.spares as u64;
    let allowed = match settings.disk_max.bytes() {
        0 => u64::MAX,
        bytes_max => bytes_max.saturating_sub(stats.bytes + spares * segment),
    };
    // A disk whose room is not known is not full for sure, and the log says so when it is.
    let free = free_bytes(directory).unwrap_or(u64::MAX).min(allowed);
    is_room(directory, needed, Room { free, spares, segment })
}

/// Room for a log, in bytes.
#[derive(Clone, Copy)]
struct Room {
    /// Bytes that the log can take in addition.
    free: u64,
    /// Empty segments that it has already.
    spares: u64,
    segment: u64,
}

impl Room {
    /// Returns the number of bytes of the segments that can be filled. The log takes whole segments only. One spare
    /// segment is for the votes of a core.
    fn usable(self) -> u64 {
        let Self { free, spares, segment } = self;
        (free / segment).saturating_add(spares.saturating_sub(1)).saturating_mul(segment)
    }
}

fn is_room(directory: &Path, needed: u64, room: Room) -> Result<(), String> {
    // A record is in one segment. So the end of each segment may stay empty, up to the size of a record.
    let filled = room.segment.saturating_sub(RECORD_MAX as u64).max(room.segment / 2);
    let needed = needed.div_ceil(filled) * room.segment;
    let free = room.usable();
    if needed <= free {
        return Ok(());
    }
    Err(format!(
        "{}: not enough room to begin a cluster with the sessions of this node: they are written once more, which \
         takes {} in whole segments, and {} are free. Free more on the disk (or set a higher storage.disk_max), or \
         start the node without cluster.replicas. Its data has not changed",
        directory.display(),
        ByteSize::kib(needed.div_ceil(1024)),
        ByteSize::kib(free / 1024)
    ))
}

fn has_no_list(directory: &Path) -> String {
    format!(
        "{}: replicas of a cluster are stored here without the file `replicas`, which says which ones. Start the node \
         with an empty data directory: it gets its replicas from the other cores",
        directory.display()
    )
}

fn has_own_sessions(directory: &Path) -> String {
    format!(
        "{}: durable sessions and retained messages of this node alone are stored here, and with cluster.replicas the \
         cores have them: start the node with an empty data directory, as a core, or without cluster.replicas",
        directory.display()
    )
}

/// Sorts the groups of the shards, and restores those that are the state of a node alone.
fn find_shards(
    log: &storage::Log,
    directory: &Path,
    log_use: LogUse,
    (stored, hash_key): (Option<StoredReplicas>, [u8; 16]),
    groups: Vec<RecoveredGroup>,
) -> Result<FoundShards, String> {
    let are_agreed = groups.iter().any(|group| shardlog::is_of_agreement(group.group));
    let ids: Vec<_> = groups.iter().map(|group| group.group).collect();
    match (log_use.shares_shards, stored) {
        (true, None) if are_agreed => Err(has_no_list(directory)),
        (false, None) if are_agreed => Err(has_shared_sessions(directory)),
        (false, None) => Ok(FoundShards { own: restore(groups, hash_key)?, of_cluster: None }),
        (false, Some(_)) => Err(has_shared_sessions(directory)),
        (true, Some(stored)) => {
            let GroupsOfCore { own, replicas } = shardlog::sort_groups(&stored, groups);
            // Those that are no group of the log have nothing.
            let mut own = if own.is_empty() { Vec::new() } else { restore(own, hash_key)? };
            own.retain(|shard| stored.own.contains(&ShardId(shard.id())) && shard.applied() > 0);
            Ok(FoundShards { own, of_cluster: Some((stored, replicas)) })
        }
        (true, None) => {
            let mut own = if groups.is_empty() { Vec::new() } else { restore(groups, hash_key)? };
            own.retain(|shard| shard.applied() > 0);
            if own.iter().any(Shard::has_content) {
                return match log_use.is_core {
                    true => Ok(FoundShards { own, of_cluster: Some(Default::default()) }),
                    false => Err(has_own_sessions(directory)),
                };
            }
            // Replicas drop what a node alone has left.
            let left = ids.into_iter().filter_map(|group| log.recovered(group)).collect();
            Ok(FoundShards { own: Vec::new(), of_cluster: Some((StoredReplicas::default(), left)) })
        }
    }
}

/// Returns the state of a node alone. `noted` is the last moment that it wrote to disk.
fn own_state(shards: Vec<Shard>, owner_key: [u8; 16], noted: Option<Moment>) -> OwnState {
    let last = shards.iter().map(|shard| Duration::from_millis(shard.now())).max().unwrap_or_default();
    let now = move || {
        let node = noted.as_ref().map_or(last, |noted| noted.node_at(&clock::now(Duration::ZERO))).max(last);
        broker::Time(node.as_millis() as u64)
    };
    let shards = shards.into_iter().map(|shard| (ShardId(shard.id()), shard)).collect();
    OwnState { shards, owner_key, now: Box::new(now) }
}

fn has_shared_sessions(directory: &Path) -> String {
    format!(
        "{}: durable sessions and retained messages of a cluster are stored here: start the node with the \
         cluster.replicas of the cluster, or with an empty data directory",
        directory.display()
    )
}

/// Starts the thread that writes the node's time to disk every few seconds, and at the end.
fn note_time(file: ClockFile, began: Duration) -> std::io::Result<(SyncSender<()>, JoinHandle<()>)> {
    let (end, ended) = sync_channel(1);
    let started = broker::Instant::now();
    let run = move || {
        loop {
            if let Err(error) = file.write(&clock::now(began + started.elapsed())) {
                tracing::debug!(%error, "the node's time cannot be written to disk");
            }
            match ended.recv_timeout(NOTED_EVERY) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        // Once more: a stop may take long.
        let _ = file.write(&clock::now(began + started.elapsed()));
    };
    Ok((end, critical::spawn("clock", run)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_cluster_does_not_begin_without_room_for_its_sessions() {
        let room = |free, spares| Room { free, spares, segment: 16 * MIB };
        let is_room = |needed, room| is_room(Path::new("/data/store"), needed, room);
        assert_eq!(is_room(0, room(0, 0)), Ok(()));
        // In a segment of 16 MiB, 15 MiB are filled for sure.
        assert_eq!(is_room(15 * MIB, room(16 * MIB, 0)), Ok(()));
        assert!(is_room(15 * MIB + 1, room(16 * MIB, 0)).is_err());
        assert!(is_room(1, room(16 * MIB - 1, 0)).is_err(), "it is not a whole segment");
        // One of the spares is for votes.
        assert!(is_room(1, room(0, 1)).is_err());
        assert_eq!(is_room(30 * MIB, room(16 * MIB, 2)), Ok(()));
        let error = is_room(30 * MIB + 1, room(16 * MIB + 5, 2)).unwrap_err();
        assert!(error.contains("/data/store") && error.contains("storage.disk_max"), "{error}");
        assert!(error.contains("takes 48MiB") && error.contains("32MiB are free"), "{error}");
        assert_eq!(is_room(u64::MAX >> 8, room(u64::MAX, 2)), Ok(()), "no limit is known");
    }

    #[test]
    fn the_room_for_the_sessions_is_that_below_the_maximum_size() {
        let group = storage::GroupStats {
            group: shardlog::META[0],
            entries: 0,
            bodies: 0,
            last: 9,
            checkpoint: Some(9),
            parts: 20,
            part_bytes: 20 * MIB,
            live_bytes: 20 * MIB,
        };
        let segment = 16 * MIB;
        let mut settings = StorageSettings { segment_size: ByteSize::mib(16), ..StorageSettings::default() };
        let stats =
            storage::Stats { bytes: 3 * segment, spares: 1, groups: vec![group], ..Default::default() };
        let mut check = |bytes: u64| {
            settings.disk_max = ByteSize::kib(bytes / 1024);
            check_room(&std::env::temp_dir(), &settings, &stats, &mut [Shard::new(0, [1; 16])])
        };
        // Two segments for the parts, three of the log, and one spare.
        assert_eq!(check(6 * segment), Ok(()));
        assert!(check(6 * segment - 1024).is_err(), "the last segment is not whole");
        assert!(check(segment).is_err(), "the log is larger already");
    }
}
