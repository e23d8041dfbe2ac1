//! A file of lines that survive a power cut once they are reported as written.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::finished::Stamp;

/// Permissions of new files: other users read nothing.
const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;
/// Size of a block that is searched for the end of the last line.
const BLOCK: usize = 64 << 10;

/// Limits at which a new file begins, and old ones are removed.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub size_max: u64,
    /// 0 is never.
    pub age_max: Duration,
    pub files_max: usize,
}

impl Rotation {
    /// Returns whether a new file begins before a batch is written. A file without lines is never finished, so one
    /// batch can be larger than a file.
    fn is_due(&self, len: u64, age: Duration, batch: u64) -> bool {
        let is_full = len.saturating_add(batch) > self.size_max;
        let is_old = !self.age_max.is_zero() && age >= self.age_max;
        len > 0 && (is_full || is_old)
    }
}

/// The file of an action and its finished files.
pub struct Lines {
    directory: PathBuf,
    name: String,
    path: PathBuf,
    rotation: Rotation,
    current: Option<Current>,
}

/// The open file. It is locked.
struct Current {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Number of bytes that are complete lines, all of them synchronized.
    len: u64,
    began: SystemTime,
}

impl Lines {
    /// Opens no file yet.
    pub fn new(directory: PathBuf, name: &str, rotation: Rotation) -> Self {
        let path = directory.join(format!("{name}.ndjson"));
        Self { directory, name: name.to_owned(), path, rotation, current: None }
    }

    /// Writes complete lines and waits until the disk has them.
    ///
    /// # Errors
    /// A sentence. The file then has none of the lines, unless it cannot be truncated either.
    pub fn append(&mut self, batch: &[u8]) -> Result<(), String> {
        self.append_at(batch, SystemTime::now()).map_err(|error| self.explain(&error))
    }

    pub(super) fn append_at(&mut self, batch: &[u8], now: SystemTime) -> io::Result<()> {
        let mut current = self.usable(now)?;
        let age = now.duration_since(current.began).unwrap_or_default();
        if self.rotation.is_due(current.len, age, batch.len() as u64) {
            self.finish(current, now)?;
            current = self.open(now)?;
        }
        if current.len == 0 {
            current.began = now;
        }
        // After an error the file stays closed, and the next call opens and repairs it.
        current.append(batch)?;
        self.current = Some(current);
        Ok(())
    }

    /// Returns the open file if its path still leads to it and nobody else has changed its size. Otherwise opens it.
    fn usable(&mut self, now: SystemTime) -> io::Result<Current> {
        if let Some(current) = self.current.take() {
            match fs::metadata(&self.path) {
                Ok(found) if identity(&found) == current.identity && found.len() == current.len => {
                    return Ok(current);
                }
                Ok(_) => {
                    tracing::warn!(path = %self.path.display(), "file: changed by others; opening it again")
                }
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "file: removed by others; creating it again");
                }
            }
        }
        self.open(now)
    }

    fn open(&self, now: SystemTime) -> io::Result<Current> {
        create_directory(&self.directory)?;
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(FILE_MODE);
        let file = options.open(&self.path)?;
        lock(&file)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
        }
        // The previous owner of the lock can have renamed it in the meantime.
        if identity(&fs::metadata(&self.path)?) != identity(&found) {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "it was replaced while it was opened"));
        }
        let len = cut_incomplete_line(&file, &self.path)?;
        sync_directory(&self.directory)?;
        let began = found.created().or_else(|_| found.modified()).unwrap_or(now);
        Ok(Current { file, identity: identity(&found), len, began })
    }

    /// Renames the file, and removes the oldest finished ones.
    fn finish(&self, current: Current, now: SystemTime) -> io::Result<()> {
        let mut stamps = self.finished()?;
        let stamp = Stamp::next(now, stamps.last());
        fs::rename(&self.path, self.directory.join(stamp.file_name(&self.name)))?;
        // The lock ends only after the file has its new name.
        drop(current);
        stamps.push(stamp);
        let excess = stamps.len().saturating_sub(self.rotation.files_max);
        for old in &stamps[..excess] {
            let path = self.directory.join(old.file_name(&self.name));
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "file: old file not removed; trying at the next change");
            }
        }
        sync_directory(&self.directory)
    }

    /// Returns the stamps of finished files, the oldest one first.
    fn finished(&self) -> io::Result<Vec<Stamp>> {
        let mut stamps = vec![];
        for entry in fs::read_dir(&self.directory)? {
            stamps.extend(Stamp::parse(&entry?.file_name(), &self.name));
        }
        stamps.sort_unstable();
        Ok(stamps)
    }

    /// Checks that files can be created in the directory, with one that is removed at once.
    ///
    /// # Errors
    /// A sentence.
    pub fn test(&self) -> Result<String, String> {
        let directory = self.directory.display();
        if !self.directory.exists() {
            let existing = self.directory.ancestors().skip(1).find(|path| path.exists());
            return match existing {
                Some(parent) if parent.is_dir() => Ok(format!(
                    "the directory {directory} does not exist yet; the first record creates it in {}",
                    parent.display()
                )),
                _ => Err(format!("{directory}: a part of the path is not a directory")),
            };
        }
        let probe = self.directory.join(format!(".{}.test-{}", self.name, std::process::id()));
        let created = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&probe);
        created.and_then(|_| fs::remove_file(&probe)).map_err(|error| self.explain(&error))?;
        Ok(format!("files can be written in {directory}"))
    }

    fn explain(&self, error: &io::Error) -> String {
        let path = self.path.display();
        let directory = self.directory.display();
        match error.kind() {
            ErrorKind::StorageFull => format!("{path}: the disk is full; free space, or lower files_max"),
            ErrorKind::QuotaExceeded => {
                format!("{path}: the disk quota is used up; free space, or lower files_max")
            }
            ErrorKind::ReadOnlyFilesystem => {
                format!("{path}: the file system is read-only; mount it for writing")
            }
            ErrorKind::PermissionDenied => {
                format!("{path}: permission denied; allow the user of the broker to write in {directory}")
            }
            ErrorKind::WouldBlock => format!(
                "{path}: another process has locked the file; stop it, or give this action another name or directory"
            ),
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                format!("{directory}: a part of the path is not a directory")
            }
            _ => format!("{path}: {error}"),
        }
    }
}

impl Current {
    fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(batch).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            if let Err(error) = self.file.set_len(self.len).and_then(|()| self.file.sync_data()) {
                tracing::warn!(%error, "file: lines of a failed batch remain; they can occur twice");
            }
            return Err(error);
        }
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(ErrorKind::NotFound, "the file was removed while it was written"));
        }
        self.len += batch.len() as u64;
        Ok(())
    }
}

fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
        TryLockError::Error(error) => error,
    })
}

/// Cuts off what follows the last line feed: a line that was being written when the node stopped. It was not reported
/// as written. Returns the length of the file.
fn cut_incomplete_line(mut file: &File, path: &Path) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut end = len;
    let mut block = vec![0; BLOCK];
    let complete = loop {
        if end == 0 {
            break 0;
        }
        let begin = end.saturating_sub(BLOCK as u64);
        let part = &mut block[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            break begin + at as u64 + 1;
        }
        end = begin;
    };
    if complete < len {
        tracing::warn!(path = %path.display(), bytes = len - complete, "file: incomplete last line; cutting it off");
        file.set_len(complete)?;
        file.sync_data()?;
    }
    Ok(complete)
}

/// Creates the directory and those above it, and makes their entries durable.
fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let existing = directory.ancestors().skip(1).find(|path| path.is_dir()).map(Path::to_owned);
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    for parent in directory.ancestors().skip(1) {
        sync_directory(parent)?;
        if Some(parent) == existing.as_deref() {
            break;
        }
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_begins_at_the_limits() {
        let rotation = |size_max, age| Rotation { size_max, age_max: Duration::from_secs(age), files_max: 1 };
        for (rotation, len, age, batch, is_due) in [
            (rotation(100, 0), 0, 0, 10, false),
            (rotation(100, 0), 0, 0, 1000, false),
            (rotation(100, 0), 90, 0, 10, false),
            (rotation(100, 0), 90, 0, 11, true),
            (rotation(100, 0), 100, 0, 1, true),
            (rotation(100, 0), 50, 1_000_000, 10, false),
            (rotation(100, 60), 50, 59, 10, false),
            (rotation(100, 60), 50, 60, 10, true),
            (rotation(100, 60), 0, 1000, 10, false),
            (rotation(100, 0), u64::MAX, 0, 10, true),
        ] {
            let found = rotation.is_due(len, Duration::from_secs(age), batch);
            assert_eq!(found, is_due, "{rotation:?} {len} {age} {batch}");
        }
    }
}
