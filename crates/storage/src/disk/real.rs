//! Directory of the file system, locked for this process.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Disk, DiskFile, Pause};
use crate::error::{Error, is_full};

/// Name of the file that a process locks while it uses the directory. The file stays when the process ends; only
/// the lock counts.
pub const LOCK_FILE: &str = "lock";

/// Maximum size of a directory.
#[derive(Debug)]
struct Limit {
    /// Maximum size of all files in bytes.
    bytes_max: u64,
    /// Final sizes of files that are being filled with zeros. No file is renamed or removed while this is locked.
    in_creation: Mutex<BTreeMap<String, u64>>,
}

/// A directory that this process uses exclusively, until the value is dropped or the process ends in any way.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
    /// The open directory: a later sync needs no further descriptor.
    opened: File,
    writable: bool,
    limit: Option<Limit>,
    /// Held for its lock.
    _lock: Option<File>,
}

impl RealDisk {
    /// Opens and locks the directory. Creates it with mode 0700 when it does not exist.
    ///
    /// # Errors
    /// [`Error::InUse`] with the other process's id; [`Error::Io`] when the directory cannot be created or written,
    /// as on a read-only disk.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        let shown = directory.display().to_string();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(Error::io(&shown, "create"))?;
        let opened = File::open(&directory).map_err(Error::io(&shown, "open"))?;
        let path = directory.join(LOCK_FILE);
        let shown = path.display().to_string();
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io(&shown, "open"))?;
        take(&lock, &directory, &shown)?;
        // For the error message of a second process. Nothing depends on the note, so it need not be durable.
        let note = format!("{}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(note.as_bytes()))
            .map_err(Error::io(&shown, "write"))?;
        Ok(Self { directory, opened, writable: true, limit: None, _lock: Some(lock) })
    }

    /// Opens a directory for reading only. It is refused while a process uses it. A disk that cannot be written has
    /// no lock file and accepts none; there the directory is not locked.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), and [`Error::Missing`] when the directory does not exist.
    pub fn open_read_only(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        let shown = directory.display().to_string();
        if !directory.is_dir() {
            return Err(Error::Invalid(format!(
                "{shown} is not a directory: give the directory in which the node keeps its log"
            )));
        }
        let opened = File::open(&directory).map_err(Error::io(&shown, "open"))?;
        let path = directory.join(LOCK_FILE);
        let lock = match File::open(&path) {
            Ok(lock) => {
                take(&lock, &directory, &path.display().to_string())?;
                Some(lock)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io(&path.display().to_string(), "open")(error)),
        };
        Ok(Self { directory, opened, writable: false, limit: None, _lock: lock })
    }

    /// Limits the total size of the directory. A file that would exceed the limit is not created, as on a full
    /// disk. Files of up to [`SMALL`] bytes, such as the log's identity, are always created.
    #[must_use]
    pub fn limited_to(mut self, bytes_max: u64) -> Self {
        self.limit = Some(Limit { bytes_max, in_creation: Mutex::default() });
        self
    }

    /// Creates a file, unless it would exceed the maximum size of the directory.
    fn create_within_limit(
        &self,
        name: &str,
        bytes: u64,
        pause: Option<&Pause<'_>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        let Some(limit) = self.limit.as_ref().filter(|_| bytes > SMALL) else {
            return self.fill(name, bytes, pause);
        };
        limit.reserve(&self.directory, name, bytes)?;
        let made = self.fill(name, bytes, pause);
        limit.in_creation().remove(name);
        made
    }

    /// Writes the zeros of a new file. As long as there are pauses, each piece is durable before the next one is
    /// written, so that a sync of another file never waits for more than one piece.
    fn fill(&self, name: &str, bytes: u64, pause: Option<&Pause<'_>>) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.at(name);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        // Written, not only reserved: the first write into reserved blocks changes the file's metadata, and makes
        // each sync slower.
        let zeros = vec![0; PIECE_MAX.min(bytes as usize)];
        let (mut at, mut pause, mut piece) = (0, pause, PieceSize::new());
        while at < bytes {
            let size = if pause.is_some() { piece.bytes } else { PIECE_MAX };
            let n = size.min((bytes - at) as usize);
            let begun = Instant::now();
            let written = file.write_all_at(&zeros[..n], at);
            if let Err(error) = written.and_then(|()| if pause.is_some() { file.sync_data() } else { Ok(()) })
            {
                if is_full(&error) {
                    // Best effort: the next start finds and removes the remains.
                    fs::remove_file(&path).unwrap_or_default();
                }
                return Err(error);
            }
            at += n as u64;
            let took = begun.elapsed();
            piece.adapt(took);
            pause = pause.filter(|pause| pause(took, n as u32));
        }
        Ok(Arc::new(RealFile(file)))
    }

    /// Path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Limit {
    fn in_creation(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        sync::lock(&self.in_creation)
    }

    /// Reserves room for a new file, because writer and keeper may create files at the same time. The caller ends
    /// the reservation when the file has its size.
    ///
    /// # Errors
    /// `QuotaExceeded` when the file would exceed the maximum.
    fn reserve(&self, directory: &Path, name: &str, bytes: u64) -> io::Result<()> {
        let mut in_creation = self.in_creation();
        let mut used: u64 = in_creation.values().sum();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let of_entry = entry.file_name();
            // An existing file of that name will be replaced.
            let is_known = of_entry.to_str().is_some_and(|of| of == name || in_creation.contains_key(of));
            if !is_known {
                // Other files, such as the clock's, may be removed at the same time.
                used += entry.metadata().map_or(0, |metadata| metadata.len());
            }
        }
        if used + bytes > self.bytes_max {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        in_creation.insert(name.to_owned(), bytes);
        Ok(())
    }
}

fn take(lock: &File, directory: &Path, shown: &str) -> Result<(), Error> {
    match lock.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let mut note = String::new();
            let pid = lock.take(32).read_to_string(&mut note).ok().and_then(|_| note.trim().parse().ok());
            Err(Error::InUse { directory: directory.to_owned(), pid })
        }
        Err(TryLockError::Error(error)) => Err(Error::io(shown, "lock")(error)),
    }
}

/// Size of the largest file that is created beyond the maximum size of a directory, in bytes.
const SMALL: u64 = 64 << 10;

/// Size of the smallest and the largest piece of a file that is filled with zeros, in bytes.
const PIECE_MIN: usize = 64 << 10;
const PIECE_MAX: usize = 1 << 20;
/// Time of a piece after which the next one is smaller. Syncs of other files wait for a piece.
const PIECE_LONG: Duration = Duration::from_millis(2);
/// Time of a piece after which the next one is larger.
const PIECE_SHORT: Duration = Duration::from_micros(500);

/// Size of the next piece of a file that is filled with zeros. A piece takes about 0.5 to 2 ms, except on disks where a
/// small piece takes nearly as long as a large one.
struct PieceSize {
    bytes: usize,
    /// Smallest size that is worth its time.
    least: usize,
    /// Time of the last piece, if it was halved after that.
    before: Option<Duration>,
}

impl PieceSize {
    fn new() -> Self {
        Self { bytes: PIECE_MAX, least: PIECE_MIN, before: None }
    }

    /// Chooses the size after a piece of [`Self::bytes`] that took `took`.
    fn adapt(&mut self, took: Duration) {
        let before = self.before.take();
        if before.is_some_and(|before| took > before * 3 / 4) {
            self.least = self.bytes * 2;
            self.bytes = self.least;
        } else if took > PIECE_LONG && self.bytes > self.least {
            self.before = Some(took);
            self.bytes /= 2;
        } else if took < PIECE_SHORT {
            self.bytes = (self.bytes * 2).min(PIECE_MAX);
        }
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.create_within_limit(name, bytes, None)
    }

    fn create_slowly(&self, name: &str, bytes: u64, pause: &Pause<'_>) -> io::Result<Arc<dyn DiskFile>> {
        self.create_within_limit(name, bytes, Some(pause))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(self.writable).open(self.at(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let _unchanged = self.limit.as_ref().map(Limit::in_creation);
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let _unchanged = self.limit.as_ref().map(Limit::in_creation);
        fs::remove_file(self.at(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.directory)?
            .filter_map(|entry| match entry {
                // A name that is not UTF-8 is not a file of the log.
                Ok(entry) => entry.file_name().into_string().ok().map(Ok),
                Err(error) => Some(Err(error)),
            })
            .collect()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.opened.sync_all()
    }

    fn path(&self, name: &str) -> String {
        self.at(name).display().to_string()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of `n` pieces in KiB, on a disk that takes `fixed` for any piece and `per_kib` for each KiB.
    fn sizes(n: usize, fixed: Duration, per_kib: Duration) -> Vec<usize> {
        let mut piece = PieceSize::new();
        let mut next = || {
            let kib = piece.bytes >> 10;
            piece.adapt(fixed + per_kib * kib as u32);
            kib
        };
        std::iter::repeat_with(&mut next).take(n).collect()
    }

    #[test]
    fn pieces_of_a_disk_are_as_small_as_is_worth_their_time() {
        let micros = Duration::from_micros;
        assert_eq!(sizes(4, micros(200), Duration::from_nanos(400)), [1024; 4], "0.6 ms each");
        assert_eq!(sizes(6, micros(50), micros(9)), [1024, 512, 256, 128, 128, 128], "9 ms for a MiB");
        assert_eq!(sizes(6, micros(50), micros(90)), [1024, 512, 256, 128, 64, 64], "92 ms for a MiB");
        assert_eq!(sizes(4, micros(10_000), micros(8)), [1024, 512, 1024, 1024], "10 ms for anything");
    }

    #[test]
    fn pieces_grow_again() {
        let mut piece = PieceSize::new();
        for _ in 0..4 {
            piece.adapt(Duration::from_millis(5) * (piece.bytes >> 16) as u32);
        }
        assert_eq!(piece.bytes, PIECE_MIN);
        for _ in 0..9 {
            piece.adapt(Duration::from_micros(100));
        }
        assert_eq!(piece.bytes, PIECE_MAX);
    }
}
