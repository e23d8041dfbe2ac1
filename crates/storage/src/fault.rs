//! In-memory disk that loses power, tears and reorders writes, fills up and fails, deterministically for each seed.
//! For tests of this crate and of other crates that keep state on a [`Disk`](crate::Disk).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::disk::{Disk, DiskFile, Pause};
use random::Random;

/// Unit that a power cut writes completely or not at all, in bytes. Smaller than the unit that disks promise today.
pub const SECTOR: usize = 512;

/// A disk in memory. Its handles share one state. Operations that change something (create, write, sync, rename,
/// remove, sync of the directory) are counted from 1.
#[derive(Clone)]
pub struct FaultDisk {
    inner: Arc<Mutex<Inner>>,
}

/// Faults, and the operations at which they occur.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Operation at which the power fails. This operation happens in part, and every later one fails.
    pub cut_at: Option<u64>,
    /// The sync at or after this operation fails. The data that it should have written is lost, but can be read
    /// until the power fails. Later syncs succeed.
    pub sync_fails_at: Option<u64>,
    /// The write at or after this operation fails once for lack of room, after a part of it was written.
    pub write_full_at: Option<u64>,
    /// Syncs report success without writing. A power cut treats the data as unsynced. [`FaultDisk::catch_up`]
    /// writes it.
    pub lies: bool,
    /// No file can be opened or created for lack of descriptors. [`FaultDisk::set_no_descriptors`] changes it.
    pub no_descriptors: bool,
    /// Capacity in bytes of files; `None`: no bound. [`FaultDisk::set_capacity`] changes it.
    pub capacity: Option<u64>,
}

/// Number of each kind of fault that occurred, so that a test can show that it tested them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    pub cuts: u64,
    pub sectors_lost: u64,
    pub writes_torn: u64,
    pub names_lost: u64,
    pub syncs_failed: u64,
    pub full: u64,
}

impl FaultCounts {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.sectors_lost += other.sectors_lost;
        self.writes_torn += other.writes_torn;
        self.names_lost += other.names_lost;
        self.syncs_failed += other.syncs_failed;
        self.full += other.full;
    }
}

#[derive(Default)]
struct Inner {
    random: Random,
    plan: FaultPlan,
    operations: u64,
    dead: bool,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of the directory since its last sync.
    changes: Vec<Change>,
    counts: FaultCounts,
}

#[derive(Clone, Default)]
struct Content {
    /// Contents that a process reads.
    current: Vec<u8>,
    /// Contents after a power cut, apart from pending writes.
    durable: Vec<u8>,
    /// Writes since the last sync.
    pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum Change {
    Link(String, u64),
    Move(String, String, u64),
    Unlink(String),
}

impl FaultDisk {
    /// Creates an empty disk without faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { inner: Arc::new(Mutex::new(Inner { random: Random::new(seed), ..Inner::default() })) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        sync::lock(&self.inner)
    }

    /// Replaces all planned faults.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Adds or removes single faults and keeps the others.
    pub fn change_plan(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.lock().plan);
    }

    pub fn set_no_descriptors(&self, none_left: bool) {
        self.change_plan(|plan| plan.no_descriptors = none_left);
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.change_plan(|plan| plan.capacity = bytes);
    }

    /// Writes the data that syncs falsely reported as written.
    pub fn catch_up(&self) {
        let mut inner = self.lock();
        if !std::mem::take(&mut inner.plan.lies) {
            return;
        }
        inner.files.values_mut().for_each(Content::sync);
        inner.sync_names();
    }

    /// Number of operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    /// Total size of all files in bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Returns the disk after a power cut, now or at [`FaultPlan::cut_at`]. Synced data is there. Of the rest, the
    /// seed decides: all of it, none, the first writes, or any sectors. The same holds for names. The old handle is
    /// dead.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut inner = self.lock();
        inner.dead = true;
        inner.counts.cuts += 1;
        let mut after = Inner { random: Random::new(inner.random.draw()), ..Inner::default() };
        let mut random = inner.random.clone();
        let mut counts = inner.counts;
        let mode = random.below_u64(4);
        let mut names = inner.durable_names.clone();
        let kept = random.below_u64(inner.changes.len() as u64 + 1) as usize;
        let names_mode = random.below_u64(4);
        for (n, change) in inner.changes.iter().enumerate() {
            let keep = match names_mode {
                0 => false,
                1 => true,
                2 => n < kept,
                _ => random.below_u64(2) == 0,
            };
            if keep {
                change.apply(&mut names);
            } else {
                counts.names_lost += 1;
            }
        }
        for (name, id) in names {
            let content = inner.files[&id].crash(mode, &mut random, &mut counts);
            after.files.insert(id, content);
            after.names.insert(name, id);
        }
        after.durable_names = after.names.clone();
        after.next_file = inner.next_file;
        after.counts = counts;
        Self { inner: Arc::new(Mutex::new(after)) }
    }

    /// Returns the disk after the process was killed and the system went on: all written data is there, synced or
    /// not.
    #[must_use]
    pub fn kill(&self) -> Self {
        let mut inner = self.lock();
        inner.dead = true;
        let mut after = Inner {
            random: Random::new(inner.random.draw()),
            files: inner.files.clone(),
            next_file: inner.next_file,
            names: inner.names.clone(),
            durable_names: inner.durable_names.clone(),
            changes: inner.changes.clone(),
            counts: inner.counts,
            ..Inner::default()
        };
        after.plan.capacity = inner.plan.capacity;
        Self { inner: Arc::new(Mutex::new(after)) }
    }

    /// Changes one bit of a file, as a failing disk does.
    ///
    /// # Panics
    /// Panics when there is no such file, or when it is shorter.
    pub fn flip(&self, name: &str, offset: u64, bit: u32) {
        let mut inner = self.lock();
        let id = inner.names[name];
        let content = inner.files.get_mut(&id).expect("a name has a file");
        content.current[offset as usize] ^= 1 << (bit % 8);
        if let Some(byte) = content.durable.get_mut(offset as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Returns the bytes of a file as a process reads them.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.lock();
        Some(inner.files[inner.names.get(name)?].current.clone())
    }

    /// Creates a durable file.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut inner = self.lock();
        let id = inner.new_file();
        let content = Content { current: bytes.to_vec(), durable: bytes.to_vec(), pending: vec![] };
        inner.files.insert(id, content);
        inner.names.insert(name.to_owned(), id);
        inner.durable_names.insert(name.to_owned(), id);
    }

    /// Removes a file durably.
    pub fn lose(&self, name: &str) {
        let mut inner = self.lock();
        inner.names.remove(name);
        inner.durable_names.remove(name);
    }
}

impl Inner {
    fn new_file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file
    }

    fn used(&self) -> u64 {
        self.names.values().map(|id| self.files[id].current.len() as u64).sum()
    }

    /// Counts an operation. Returns true when the power fails with this one.
    fn operation(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(power_cut());
        }
        self.operations += 1;
        self.dead = self.plan.cut_at.is_some_and(|at| self.operations >= at);
        Ok(self.dead)
    }

    fn descriptor(&self) -> io::Result<()> {
        if self.plan.no_descriptors { Err(Error::from_raw_os_error(libc::EMFILE)) } else { Ok(()) }
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(power_cut()) } else { Ok(()) }
    }

    fn id(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn sync_names(&mut self) {
        self.durable_names = self.names.clone();
        self.changes.clear();
    }
}

fn power_cut() -> Error {
    Error::other("the power is off")
}

fn outcome(cut: bool) -> io::Result<()> {
    if cut { Err(power_cut()) } else { Ok(()) }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Link(name, id) => {
                names.insert(name.clone(), *id);
            }
            Self::Move(from, to, id) => {
                // The earlier link may have been lost: then the new name appears alone.
                if names.get(from) == Some(id) {
                    names.remove(from);
                }
                names.insert(to.clone(), *id);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
        }
    }
}

impl Content {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        put(&mut self.current, at, bytes);
        self.pending.push((at, bytes.to_vec()));
    }

    /// Writes only what is still pending. Data that an earlier sync failed to write is never written.
    fn sync(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            put(&mut self.durable, at, &bytes);
        }
    }

    fn crash(&self, mode: u64, random: &mut Random, counts: &mut FaultCounts) -> Self {
        let mut bytes = self.durable.clone();
        let writes = self.pending.len() as u64;
        let kept = random.below_u64(writes + 1);
        let sectors: BTreeSet<usize> =
            self.pending.iter().flat_map(|(at, b)| touched(*at, b.len())).collect();
        for sector in sectors {
            // A sector has the state after one of the writes, so it includes the writes before that one.
            let upto = match mode {
                0 => 0,
                1 => writes,
                2 => kept,
                _ => random.below_u64(writes + 1),
            };
            for (at, written) in &self.pending[..upto as usize] {
                let from = (*at).max(sector * SECTOR);
                let to = (at + written.len()).min((sector + 1) * SECTOR);
                if from < to {
                    put(&mut bytes, from, &written[from - at..to - at]);
                }
            }
            counts.sectors_lost += u64::from(upto < writes);
        }
        counts.writes_torn += u64::from(mode == 3 && writes > 0);
        Self { current: bytes.clone(), durable: bytes, pending: vec![] }
    }
}

fn touched(at: usize, length: usize) -> std::ops::Range<usize> {
    at / SECTOR..(at + length).div_ceil(SECTOR)
}

fn put(bytes: &mut Vec<u8>, at: usize, written: &[u8]) {
    if bytes.len() < at + written.len() {
        bytes.resize(at + written.len(), 0);
    }
    bytes[at..at + written.len()].copy_from_slice(written);
}

impl Disk for FaultDisk {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.lock();
        let cut = inner.operation()?;
        inner.descriptor()?;
        let room = inner.plan.capacity.is_none_or(|capacity| inner.used() + bytes <= capacity);
        if !room {
            inner.counts.full += 1;
            return Err(ErrorKind::StorageFull.into());
        }
        let id = inner.new_file();
        let mut content = Content::default();
        content.write(0, &vec![0; bytes as usize]);
        inner.files.insert(id, content);
        inner.change(Change::Link(name.to_owned(), id));
        outcome(cut)?;
        Ok(Arc::new(FaultFile { disk: self.clone(), id }))
    }

    fn create_slowly(&self, name: &str, bytes: u64, _: &Pause<'_>) -> io::Result<Arc<dyn DiskFile>> {
        self.create(name, bytes)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.lock();
        inner.alive()?;
        inner.descriptor()?;
        Ok(Arc::new(FaultFile { disk: self.clone(), id: inner.id(name)? }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let cut = inner.operation()?;
        let id = inner.id(from)?;
        inner.change(Change::Move(from.to_owned(), to.to_owned(), id));
        outcome(cut)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let cut = inner.operation()?;
        inner.id(name)?;
        inner.change(Change::Unlink(name.to_owned()));
        outcome(cut)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let inner = self.lock();
        inner.alive()?;
        Ok(inner.names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.operation()? {
            return Err(power_cut());
        }
        if !inner.plan.lies {
            inner.sync_names();
        }
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        name.to_owned()
    }
}

struct FaultFile {
    disk: FaultDisk,
    id: u64,
}

impl DiskFile for FaultFile {
    fn len(&self) -> io::Result<u64> {
        let inner = self.disk.lock();
        inner.alive()?;
        Ok(inner.files[&self.id].current.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let inner = self.disk.lock();
        inner.alive()?;
        let bytes = &inner.files[&self.id].current;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let slice = from.checked_add(buffer.len()).and_then(|to| bytes.get(from..to));
        buffer.copy_from_slice(slice.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        let cut = inner.operation()?;
        let full = inner.plan.write_full_at.is_some_and(|at| inner.operations >= at);
        let mut written = bytes;
        if full {
            inner.plan.write_full_at = None;
            inner.counts.full += 1;
            let part = inner.random.below_u64(bytes.len() as u64 + 1) as usize;
            written = &bytes[..part];
        }
        let content = inner.files.get_mut(&self.id).ok_or(ErrorKind::NotFound)?;
        content.write(offset as usize, written);
        outcome(cut)?;
        if full { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        if inner.operation()? {
            return Err(power_cut());
        }
        let lies = inner.plan.lies;
        let fails = inner.plan.sync_fails_at.is_some_and(|at| inner.operations >= at);
        let content = inner.files.get_mut(&self.id).ok_or(ErrorKind::NotFound)?;
        if fails {
            content.pending.clear();
            inner.plan.sync_fails_at = None;
            inner.counts.syncs_failed += 1;
            return Err(Error::other("the disk did not take it"));
        }
        if !lies {
            content.sync();
        }
        Ok(())
    }
}
