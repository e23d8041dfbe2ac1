//! Interface between the server and the owner of the node's store on disk.

use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::timestamp::Timestamp;

/// The owner of the store. Its functions may wait for the disk.
pub trait Storage: Send + Sync {
    /// Condition of the disk; never waits for it.
    fn condition(&self) -> StorageCondition;

    fn view(&self) -> StorageView;

    /// Begins to copy the store, while the node runs, into a new directory of this name below `storage.backup_dir`.
    ///
    /// # Errors
    /// [`BackupRefused`]; then nothing was begun.
    fn start_backup(&self, name: &str) -> Result<Backup, BackupRefused>;

    /// Lists the files of a complete backup below `storage.backup_dir`.
    ///
    /// # Errors
    /// [`BackupRefused`]: there is no such backup, or it cannot be read.
    fn backup_files(&self, name: &str) -> Result<Vec<BackupFile>, BackupRefused>;

    /// Reads a part of a file of a backup, of up to `bytes_max`.
    ///
    /// # Errors
    /// Those of [`Self::backup_files`].
    fn read_backup(
        &self,
        name: &str,
        file: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<BackupPart, BackupRefused>;

    /// Removes a complete backup.
    ///
    /// # Errors
    /// Those of [`Self::backup_files`].
    fn remove_backup(&self, name: &str) -> Result<(), BackupRefused>;
}

/// Condition of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageCondition {
    Good,
    /// No space, or no file descriptor, for another segment of the log. Durable data is refused until there is.
    Full,
    /// A write or sync failed: nothing is stored any more.
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

/// Figures of the store. Counters begin with the process.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct StorageView {
    /// `good`, `full` or `failed`.
    pub state: &'static str,
    /// Reason of the failure, damage that was found, or the resource that is missing.
    pub detail: Option<String>,
    pub directory: String,
    /// Segments that hold records.
    pub segments: u64,
    /// Size of their files.
    pub bytes: u64,
    /// Bytes that are still needed; the log is collected when it is more than twice as large.
    pub live_bytes: u64,
    /// Bytes reserved for a full disk (`storage.reserve`).
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
    /// Part of `bytes_written` for checkpoints.
    pub checkpoint_bytes: u64,
    /// Part of `bytes_written` for records moved out of freed segments.
    pub moved_bytes: u64,
    /// Shards with a checkpoint.
    pub checkpoints: u64,
    /// Times that the disk became full.
    pub full_count: u64,
    /// Duration of the syncs of commits.
    pub sync: Durations,
    /// Duration of commits: encoding, writing, syncing.
    pub commit: Durations,
    pub recovery: RecoveryView,
    /// Directory of backups; null when none can be made.
    pub backup_dir: Option<String>,
    /// The last backup of this process.
    pub backup: Option<Backup>,
}

/// Distribution of durations. Quantiles are upper ends of buckets, each twice the one before.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Durations {
    pub count: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    /// Upper ends in seconds, and the count of each bucket and of all values beyond the last.
    #[serde(skip)]
    #[cfg_attr(feature = "document", schema(ignore))]
    pub buckets: (Vec<f64>, Vec<u64>),
    #[serde(skip)]
    #[cfg_attr(feature = "document", schema(ignore))]
    pub sum_s: f64,
}

/// Result of the last start.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = StorageRecovery))]
pub struct RecoveryView {
    pub segments: u64,
    pub records: u64,
    pub bytes: u64,
    /// Bytes of an incomplete last commit that were cut off. After a crash, nothing in it had been acknowledged.
    /// Without a crash, the disk may be faulty.
    pub truncated_bytes: u64,
    /// Damaged indexes of segments that were rebuilt.
    pub indexes_rebuilt: u64,
    /// Durable sessions that were found.
    pub sessions: u64,
    /// Seconds to read the records.
    pub read_s: f64,
    /// Seconds to restore the shards from the records.
    pub restored_s: f64,
}

/// A copy of the store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = StorageBackup))]
pub struct Backup {
    pub name: String,
    /// Path on the node's machine.
    pub path: String,
    /// `running`, `done` or `failed`.
    pub state: &'static str,
    pub segments_done: u64,
    /// Segments to copy; 0 until the first is copied.
    pub segments: u64,
    /// Bytes of its files, when it is done.
    pub bytes: u64,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// Reason of the failure.
    pub error: Option<String>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct BackupFile {
    pub name: String,
    pub bytes: u64,
}

/// A part of a file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPart {
    pub bytes: Vec<u8>,
    /// Number of zeros that stand in place of the bytes, if there are any.
    pub zeros: u64,
    /// Size of the file.
    pub file_bytes: u64,
}

/// Reason why a backup was not begun, read or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupRefused {
    /// The node's configuration or present state does not allow it.
    Conflict(String),
    /// The name is not allowed.
    Name(String),
    /// No such backup exists, or no such file in it.
    Unknown(String),
    Failed(String),
}
