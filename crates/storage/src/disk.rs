//! Operations that the log needs of a disk. The trait is narrow: it is the place where tests inject faults.

mod real;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use real::{LOCK_FILE, RealDisk};

/// Pause between two pieces of a file. It gets the time that the last piece took, and its bytes. False: no more pauses.
pub type Pause<'a> = dyn Fn(Duration, u32) -> bool + 'a;

/// A directory of files. Names are plain: no separators. Changes of the directory (create, rename, remove) are
/// durable only after [`sync_dir`](Disk::sync_dir), contents only after [`DiskFile::sync_data`].
pub trait Disk: Send + Sync {
    /// Creates a file of exactly `bytes` zeros, written and not merely reserved. Replaces a file of that name. When
    /// there is no room (`StorageFull`), it leaves nothing behind.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// Like [`create`](Self::create), but with a pause after each piece of the file, so that others can use the disk.
    fn create_slowly(&self, name: &str, bytes: u64, pause: &Pause<'_>) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and, unless the disk is read-only, writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames the file. A file that had the new name is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns all names, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns when every change of the directory so far is durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Returns the name of the file for messages.
    fn path(&self, name: &str) -> String;
}

/// An open file. It stays usable when it is renamed or removed. Positions are bytes from its beginning.
pub trait DiskFile: Send + Sync {
    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills the buffer. Returns `UnexpectedEof` when the file ends before the buffer is full.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes. After an error any part of them may be in the file.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns when everything written so far is durable. After an error the state of all unsynced writes is
    /// unknown. A later success proves nothing about them.
    fn sync_data(&self) -> io::Result<()>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Replaces a small file atomically: writes a new file, syncs it, renames it and syncs the directory.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = format!("{name}.new");
    let file = disk.create(&beside, bytes.len() as u64)?;
    file.write_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&beside, name)?;
    disk.sync_dir()
}

/// Reads a whole file. `limit` bounds the bytes that are read of a file that is not ours.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; file.len()?.min(limit) as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
