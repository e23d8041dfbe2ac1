//! View of the store for operators, and its backups while the node runs.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use api::{
    Backup, BackupFile, BackupPart, BackupRefused, Durations, RecoveryView, Storage, StorageCondition,
    StorageView, Timestamp,
};
use broker::{Condition, StoreLog as _};
use shardlog::ShardLog;
use storage::offline::CopyReport;
use storage::{Histogram, RealDisk};

use super::backup_files;
use super::replicas::ReplicasFile;

/// Information about an open store for operators.
pub struct Operator {
    log: Arc<ShardLog>,
    directory: PathBuf,
    reserve_bytes: u64,
    recovery: RecoveryView,
    backup_dir: Option<PathBuf>,
    backup: Arc<Mutex<Option<Backup>>>,
}

impl Operator {
    pub fn new(
        log: Arc<ShardLog>,
        directory: PathBuf,
        reserve_bytes: u64,
        recovery: RecoveryView,
        backup_dir: Option<PathBuf>,
    ) -> Arc<Self> {
        let backup = Arc::default();
        Arc::new(Self { log, directory, reserve_bytes, recovery, backup_dir, backup })
    }

    fn backup(&self) -> MutexGuard<'_, Option<Backup>> {
        sync::lock(&self.backup)
    }

    /// Directory of backups.
    fn backup_dir(&self) -> Result<&Path, BackupRefused> {
        let why = "no directory for backups is configured: set storage.backup_dir and restart the node";
        self.backup_dir.as_deref().ok_or_else(|| BackupRefused::Conflict(why.to_owned()))
    }

    /// Directory of a backup that is not being made.
    fn finished_backup(&self, name: &str) -> Result<PathBuf, BackupRefused> {
        let directory = self.backup_dir()?.join(name);
        let is_running = |backup: &Backup| backup.name == name && backup.ended_at.is_none();
        if self.backup().as_ref().is_some_and(is_running) {
            return Err(BackupRefused::Conflict(
                "the backup is being made: wait until it is done".to_owned(),
            ));
        }
        Ok(directory)
    }
}

impl Storage for Operator {
    fn condition(&self) -> StorageCondition {
        match self.log.condition() {
            Condition::Good if self.log.log().reported_full().is_some() => StorageCondition::Full,
            Condition::Good => StorageCondition::Good,
            Condition::Full => StorageCondition::Full,
            Condition::Failed => StorageCondition::Failed,
        }
    }

    fn view(&self) -> StorageView {
        let stats = self.log.log().stats();
        StorageView {
            state: self.condition().name(),
            detail: stats
                .failed
                .or(stats.damage)
                .or_else(|| self.log.log().reported_full().map(|lack| lack.to_string())),
            directory: self.directory.display().to_string(),
            segments: stats.segments as u64,
            bytes: stats.bytes,
            live_bytes: stats.live_bytes,
            reserve_bytes: self.reserve_bytes,
            spares: stats.spares as u64,
            vacating: stats.vacating as u64,
            freed: stats.freed,
            queue_records: stats.queue_records,
            queue_bytes: stats.queue_bytes,
            commits: stats.commits,
            records: stats.records,
            bytes_written: stats.bytes_written,
            checkpoint_bytes: stats.checkpoint_bytes,
            moved_bytes: stats.moved_bytes,
            checkpoints: stats.groups.iter().filter(|group| group.checkpoint.is_some()).count() as u64,
            full_count: stats.full_count,
            sync: durations(&stats.sync),
            commit: durations(&stats.commit),
            recovery: self.recovery.clone(),
            backup_dir: self.backup_dir.as_ref().map(|path| path.display().to_string()),
            backup: self.backup().clone(),
        }
    }

    fn backup_files(&self, name: &str) -> Result<Vec<BackupFile>, BackupRefused> {
        backup_files::list(&self.finished_backup(name)?)
    }

    fn read_backup(
        &self,
        name: &str,
        file: &str,
        offset: u64,
        bytes_max: usize,
    ) -> Result<BackupPart, BackupRefused> {
        backup_files::read(&self.finished_backup(name)?, file, offset, bytes_max)
    }

    fn remove_backup(&self, name: &str) -> Result<(), BackupRefused> {
        backup_files::remove(&self.finished_backup(name)?)
    }

    fn start_backup(&self, name: &str) -> Result<Backup, BackupRefused> {
        let backup_dir = self.backup_dir()?;
        let mut last = self.backup();
        if last.as_ref().is_some_and(|backup| backup.ended_at.is_none()) {
            return Err(BackupRefused::Conflict("a backup is being made: wait until it is done".to_owned()));
        }
        let path = backup_dir.join(name);
        make_directory(&path)?;
        let backup = Backup {
            name: name.to_owned(),
            path: path.display().to_string(),
            state: "running",
            segments_done: 0,
            segments: 0,
            bytes: 0,
            started_at: Timestamp::now(),
            ended_at: None,
            error: None,
        };
        let (log, directory, progress) = (self.log.clone(), self.directory.clone(), self.backup.clone());
        let run = move || {
            let copied = copy(&log, &directory, &path, &progress);
            if copied.is_err()
                && let Err(error) = fs::remove_dir_all(&path)
            {
                tracing::warn!(%error, path = %path.display(), "an incomplete backup is left: remove it");
            }
            ended(&progress, copied);
        };
        // tidy: allow(thread): without this thread only the backup fails.
        let spawned = thread::Builder::new().name("backup".to_owned()).spawn(run);
        spawned.map_err(|error| BackupRefused::Failed(format!("no thread for the backup: {error}")))?;
        *last = Some(backup.clone());
        Ok(backup)
    }
}

/// Creates a new directory: nothing is written through a link, nor over existing files.
fn make_directory(path: &Path) -> Result<(), BackupRefused> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => BackupRefused::Name(format!(
            "{} is there already: choose another name, or remove it",
            path.display()
        )),
        std::io::ErrorKind::NotFound => BackupRefused::Conflict(format!(
            "{} cannot be made: make the directory of storage.backup_dir first",
            path.display()
        )),
        _ => BackupRefused::Failed(format!("{} cannot be made: {error}", path.display())),
    })
}

/// Copies the log, and the list of the replicas in it.
fn copy(
    log: &ShardLog,
    directory: &Path,
    path: &Path,
    progress: &Mutex<Option<Backup>>,
) -> Result<CopyReport, storage::Error> {
    let list = ReplicasFile::of(directory);
    let read = || list.read().map_err(storage::Error::Invalid);
    let before = read()?;
    // The list says which form the records of a shard have.
    let check = || match (&before, list.read()?) {
        (None, None) => Ok(()),
        (Some(before), Some(after)) if before.own == after.own && before.forms == after.forms => Ok(()),
        _ => {
            Err("a cluster began with the sessions of this node meanwhile: make the backup again".to_owned())
        }
    };
    let to = RealDisk::open(path)?;
    if let Some(stored) = &before {
        let written = ReplicasFile::of_backup(path).write(stored);
        written.map_err(|error| storage::Error::Invalid(format!("{}: {error}", path.display())))?;
    }
    let mut report = |done, all| {
        if let Some(backup) = &mut *sync::lock(progress) {
            (backup.segments_done, backup.segments) = (done as u64, all as u64);
        }
    };
    log.log().backup(&to, &mut report, &check)
}

fn ended(progress: &Mutex<Option<Backup>>, copied: Result<CopyReport, storage::Error>) {
    let mut progress = sync::lock(progress);
    let Some(backup) = &mut *progress else { return };
    backup.ended_at = Some(Timestamp::now());
    match copied {
        Ok(CopyReport { segments, bytes }) => {
            (backup.state, backup.bytes) = ("done", bytes);
            tracing::info!(path = backup.path, segments, bytes, "the store was copied");
        }
        Err(error) => {
            tracing::error!(path = backup.path, %error, "no backup was made");
            (backup.state, backup.error) = ("failed", Some(error.to_string()));
        }
    }
}

fn durations(histogram: &Histogram) -> Durations {
    let us = |time: Duration| time.as_micros() as u64;
    let (bounds, counts): (Vec<_>, Vec<_>) = histogram.buckets().unzip();
    Durations {
        count: histogram.count(),
        // The last bucket has no upper bound of its own.
        p50_us: us(histogram.quantile(0.5)).min(us(histogram.max())),
        p99_us: us(histogram.quantile(0.99)).min(us(histogram.max())),
        max_us: us(histogram.max()),
        buckets: (bounds.into_iter().flatten().map(|bound: Duration| bound.as_secs_f64()).collect(), counts),
        sum_s: histogram.sum().as_secs_f64(),
    }
}
