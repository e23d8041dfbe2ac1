//! What the server needs of whoever owns the node's store on disk.

use serde::Serialize;
use utoipa::ToSchema;

use crate::timestamp::Timestamp;

/// The owner of the store. Its functions may take as long as the disk does.
pub trait Storage: Send + Sync {
    /// How the disk is; never waits for it.
    fn condition(&self) -> StorageCondition;

    fn view(&self) -> StorageView;

    /// Begins to copy the store, while it goes on, into a new directory of this name below `storage.backup_dir`.
    ///
    /// # Errors
    /// [`BackupRefused`]; then nothing was begun.
    fn start_backup(&self, name: &str) -> Result<Backup, BackupRefused>;
}

/// How the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageCondition {
    Good,
    /// No room, or no file descriptor, for another part of the log: what has to be kept is refused until there is.
    Full,
    /// A write or sync failed: nothing is kept any more.
    Failed,
}

impl StorageCondition {
    pub const ALL: [Self; 3] = [Self::Good, Self::Full, Self::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Full => "full",
            Self::Failed => "failed",
        }
    }
}

/// The store in numbers. Counters begin with the process.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StorageView {
    /// `good`, `full` or `failed`.
    pub state: &'static str,
    /// Why it failed, damage that was found, or what there is none of.
    pub detail: Option<String>,
    pub directory: String,
    /// Segments that hold records.
    pub segments: u64,
    /// Size of their files.
    pub bytes: u64,
    /// What of it is needed; the log is collected when it is more than twice as large.
    pub live_bytes: u64,
    /// Kept ready for when the disk is full (`storage.reserve`).
    pub reserve_bytes: u64,
    /// Empty segments kept ready.
    pub spares: u64,
    /// Segments that are being freed.
    pub vacating: u64,
    /// Segments that were freed.
    pub freed: u64,
    /// Records that wait for the disk.
    pub queue_records: u64,
    pub queue_bytes: u64,
    /// Group commits; each is one write and one sync.
    pub commits: u64,
    pub records: u64,
    pub bytes_written: u64,
    /// Of these, parts of checkpoints.
    pub checkpoint_bytes: u64,
    /// Of these, moved out of segments that were freed.
    pub moved_bytes: u64,
    /// Shards with a checkpoint.
    pub checkpoints: u64,
    /// Times that the disk became full.
    pub full_count: u64,
    /// How long syncs of commits took.
    pub sync: Durations,
    /// How long commits took: encoding, writing, syncing.
    pub commit: Durations,
    pub recovery: RecoveryView,
    /// Where backups go; null: none can be made.
    pub backup_dir: Option<String>,
    /// The last backup of this process.
    pub backup: Option<Backup>,
}

/// How long things took. Quantiles are upper ends of buckets, each twice the one before.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Durations {
    pub count: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    /// Upper ends in seconds, and how many are in each bucket and beyond the last.
    #[serde(skip)]
    #[schema(ignore)]
    pub buckets: (Vec<f64>, Vec<u64>),
    #[serde(skip)]
    #[schema(ignore)]
    pub sum_s: f64,
}

/// What the last start found.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = StorageRecovery)]
pub struct RecoveryView {
    pub segments: u64,
    pub records: u64,
    pub bytes: u64,
    /// Bytes of a last commit that was not complete and was cut off. After a crash, nothing in it had been acknowledged; without one, the disk is suspect.
    pub truncated_bytes: u64,
    /// Damaged indexes of segments that were made again.
    pub indexes_rebuilt: u64,
    /// Durable sessions that were found.
    pub sessions: u64,
    /// How long finding the records took.
    pub read_s: f64,
    /// How long making the shards' state of them took.
    pub restored_s: f64,
}

/// A copy of the store.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = StorageBackup)]
pub struct Backup {
    pub name: String,
    /// On the node's machine.
    pub path: String,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    pub segments_done: u64,
    /// 0 until the first is copied.
    pub segments: u64,
    /// Bytes of its files, when it is done.
    pub bytes: u64,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Why it failed.
    pub error: Option<String>,
}

/// Why no backup was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRefused {
    /// Not as the node is configured, or not now.
    Conflict(String),
    /// It cannot have this name.
    Name(String),
    Failed(String),
}
