//! What the log asks of a disk, as narrow as it can be: the seam where faults are put in.

mod real;

use std::io;
use std::sync::Arc;

pub use real::{LOCK_FILE, RealDisk};

/// A directory of files. Names are plain: no separators. Changes of the directory (create, rename, remove) last only after
/// [`sync_dir`](Disk::sync_dir), contents only after [`DiskFile::sync_data`].
pub trait Disk: Send + Sync {
    /// A new file of exactly `bytes` zeros, written and not merely reserved. A file of that name is replaced. When there is no room
    /// (`StorageFull`), nothing is left behind.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// An existing file, for reading and, unless the disk is read-only, writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives the file another name; what had that name is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// All names, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Returns when every change of the directory so far is durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// How messages call the file.
    fn path(&self, name: &str) -> String;
}

/// An open file. It stays usable when it is renamed or removed. Positions are bytes from its beginning.
pub trait DiskFile: Send + Sync {
    /// Bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills the buffer; `UnexpectedEof` when the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of it. After an error any part of it may be there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns when everything written so far is durable. After an error nothing is known of any of it, and trying again proves nothing.
    fn sync_data(&self) -> io::Result<()>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Puts a small file in place whole: written beside, synced, renamed, the directory synced.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = format!("{name}.new");
    let file = disk.create(&beside, bytes.len() as u64)?;
    file.write_at(bytes, 0)?;
    file.sync_data()?;
    disk.rename(&beside, name)?;
    disk.sync_dir()
}

/// A file whole. `limit` bounds what is read of one that is not ours.
pub(crate) fn read_whole(disk: &dyn Disk, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let mut bytes = vec![0; file.len()?.min(limit) as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}
