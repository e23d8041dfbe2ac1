//! Files: the write-ahead log, its lock, and the next log while it is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::FILE;
use super::wal_reader::{OnChange, WalReader};
use crate::error::{OpenError, OpenFault};
use crate::line::{self, Group, Header, SnapshotRecord};
use crate::state::State;

/// Write-ahead log of a data directory, as far as it was read.
pub struct WriteAheadLog {
    directory: PathBuf,
    path: PathBuf,
    lock: Option<File>,
    open: Option<Open>,
}

struct Open {
    file: File,
    inode: u64,
    wal_reader: WalReader,
}

/// State of the file, compared with what was read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    Unchanged,
    /// The file does not exist.
    Missing,
    /// Another process appended.
    Grown,
    /// Another process rewrote the file, or it exists for the first time.
    Replaced,
}

/// Lock among processes. Dropping it unlocks.
pub struct LockGuard(File);

impl Drop for LockGuard {
    fn drop(&mut self) {
        // An error is ignored: closing the file unlocks, too.
        drop(self.0.unlock());
    }
}

/// Reason why a line was not appended.
pub struct AppendFailure {
    pub error: io::Error,
    /// True when the line may be on the disk.
    pub unknown: bool,
}

impl WriteAheadLog {
    pub fn new(data_dir: &Path) -> Self {
        let directory = if data_dir.as_os_str().is_empty() { Path::new(".") } else { data_dir };
        Self { directory: directory.to_owned(), path: directory.join(FILE), lock: None, open: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the log that were read.
    pub fn len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.wal_reader.len)
    }

    /// Bytes of the header and the records from the last rewrite.
    pub fn snapshot_len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.wal_reader.snapshot_len())
    }

    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    fn error(&self, fault: OpenFault) -> OpenError {
        OpenError { path: self.path.clone(), fault }
    }

    /// Waits until no other process changes the log.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lock_file(&mut self) -> Result<LockGuard, OpenError> {
        let lock_file = || {
            if self.lock.is_none() {
                fs::create_dir_all(&self.directory)?;
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).truncate(false).mode(0o600);
                self.lock = Some(options.open(self.directory.join(LOCK_FILE))?);
            }
            let Some(lock) = &self.lock else { return Err(io::Error::other("no lock")) };
            let lock = lock.try_clone()?;
            lock.lock()?;
            Ok(LockGuard(lock))
        };
        let guard: io::Result<LockGuard> = { lock_file }();
        guard.map_err(|error| self.error(OpenFault::Io(error)))
    }

    /// Compares the file with what was read of it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn file_state(&self) -> Result<FileState, OpenError> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileState::Missing),
            Err(error) => return Err(self.error(OpenFault::Io(error))),
        };
        Ok(match &self.open {
            Some(open) if open.inode == metadata.ino() => match metadata.len().cmp(&open.wal_reader.len) {
                std::cmp::Ordering::Equal => FileState::Unchanged,
                std::cmp::Ordering::Greater => FileState::Grown,
                std::cmp::Ordering::Less => FileState::Replaced,
            },
            _ => FileState::Replaced,
        })
    }

    /// Returns whether the log that was read is still the file of that name.
    pub fn is_there(&self) -> bool {
        let has_header = self.open.as_ref().is_some_and(|open| open.wal_reader.has_header());
        has_header && self.file_state().is_ok_and(|file_state| file_state == FileState::Unchanged)
    }

    /// Reads the log from the beginning. Returns the records and the number of torn bytes, which `read_only` leaves in
    /// place.
    ///
    /// # Errors
    /// The log cannot be used. The state before stays.
    pub fn load(&mut self, read_only: bool) -> Result<(State, u64), OpenError> {
        let mut state = State::default();
        let file = match OpenOptions::new().read(true).append(!read_only).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((state, 0)),
            Err(error) => return Err(self.error(OpenFault::Io(error))),
        };
        let inode = file.metadata().map_err(|error| self.error(OpenFault::Io(error)))?.ino();
        let mut open = Open { file, inode, wal_reader: WalReader::default() };
        let torn = open.read_on(&mut state, read_only, &self.path, &mut |_, _, _, _| {});
        let torn = torn.map_err(|fault| self.error(fault))?;
        self.open = Some(open);
        Ok((state, torn))
    }

    /// Reads the lines that were appended. Returns the number of torn bytes.
    ///
    /// # Errors
    /// Those of [`WriteAheadLog::load`].
    pub fn read_on(
        &mut self,
        state: &mut State,
        read_only: bool,
        on_change: OnChange<'_>,
    ) -> Result<u64, OpenError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let read = open.read_on(state, read_only, &self.path, on_change);
        read.map_err(|fault| OpenError { path: self.path.clone(), fault })
    }

    /// Links the log to a free name, which is returned.
    ///
    /// # Errors
    /// Those of the system. The log keeps its name.
    pub fn archive(&mut self) -> io::Result<PathBuf> {
        let name = |number: u32| self.directory.join(format!("{FILE}.before-cluster.{number}"));
        let free = (1..ARCHIVES_MAX).map(name).find(|path| !path.exists());
        let free = free.ok_or_else(|| io::Error::other("too many archived logs: move them away"))?;
        // The log keeps its name until another file takes the name in one step.
        fs::hard_link(&self.path, &free).or_else(|_| fs::copy(&self.path, &free).map(drop))?;
        File::open(&self.directory)?.sync_all()?;
        Ok(free)
    }

    /// Appends a line. It is on the disk when this returns.
    ///
    /// # Errors
    /// The line is not on the disk, or that is unknown.
    pub fn append(&mut self, group: &Group<'_>) -> Result<(), AppendFailure> {
        let mut bytes = Vec::new();
        let known = |error| AppendFailure { error, unknown: false };
        line::write(&mut bytes, group).map_err(|error| known(error.into()))?;
        let Some(open) = &mut self.open else { return Err(known(io::Error::other("the log is not open"))) };
        let written = open.file.write_all(&bytes).map_err(known).and_then(|()| {
            // After a failed sync, a later sync that succeeds proves nothing about these bytes.
            open.file.sync_data().map_err(|error| AppendFailure { error, unknown: true })
        });
        if let Err(failure) = written {
            let cut = open.file.set_len(open.wal_reader.len).and_then(|()| open.file.sync_data());
            return Err(AppendFailure { unknown: failure.unknown || cut.is_err(), ..failure });
        }
        open.wal_reader.appended(bytes.len() as u64);
        Ok(())
    }

    /// Rewrites the log with the current records only, and replaces the old one in one step.
    ///
    /// # Errors
    /// Those of the system. The old log is still there.
    pub fn rewrite(&mut self, state: &State) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let next = self.directory.join(NEXT_FILE);
        // A crash left this file: the caller holds the lock.
        if let Err(error) = fs::remove_file(&next)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create_new(true).mode(0o600).open(&next)?;
        let written = write_all(&file, state).and_then(|()| {
            fs::rename(&next, &self.path)?;
            // The new name is durable when the directory is.
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = written {
            // The first error is reported, whether the removal succeeds or not.
            drop(fs::remove_file(&next));
            return Err(error);
        }
        let metadata = file.metadata()?;
        let wal_reader = WalReader::written(metadata.len(), state);
        self.open = Some(Open { file, inode: metadata.ino(), wal_reader });
        Ok(())
    }
}

impl Open {
    fn read_on(
        &mut self,
        state: &mut State,
        read_only: bool,
        path: &Path,
        on_change: OnChange<'_>,
    ) -> Result<u64, OpenFault> {
        self.file.seek(SeekFrom::Start(self.wal_reader.len)).map_err(OpenFault::Io)?;
        let mut reader = BufReader::with_capacity(256 << 10, &self.file);
        let torn = self.wal_reader.read(&mut reader, state, on_change)?;
        if torn > 0 && !read_only {
            let cut = self.file.set_len(self.wal_reader.len).and_then(|()| self.file.sync_data());
            cut.map_err(OpenFault::Io)?;
            let path = path.display();
            tracing::warn!(%path, bytes = torn,
                            "the last change in the configuration store is not complete, as after a crash; it is cut off. \
                 If neither process nor machine crashed, check the disk"
            );
        }
        Ok(torn)
    }
}

fn write_all(file: &File, state: &State) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(256 << 10, file);
    let mut bytes = Vec::new();
    let header = Header::new(state.founded, state.revision, state.len() as u64);
    line::write(&mut bytes, &header)?;
    out.write_all(&bytes)?;
    for (table, records) in state.tables() {
        for (key, stored) in records {
            bytes.clear();
            let value: &RawValue = serde_json::from_str(&stored.value)?;
            let (table, key) = (table.into(), (&**key).into());
            line::write(&mut bytes, &SnapshotRecord { revision: stored.revision.0, table, key, value })?;
            out.write_all(&bytes)?;
        }
    }
    out.flush()?;
    drop(out);
    file.sync_all()
}

/// Maximum number of archived logs.
const ARCHIVES_MAX: u32 = 100;
const LOCK_FILE: &str = "registry.lock";
const NEXT_FILE: &str = "registry.log.new";
