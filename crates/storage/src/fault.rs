//! A disk in memory that loses power, tears and reorders writes, fills up and fails, the same way for the same seed. For tests: of this
//! crate, and of whoever keeps its state on a [`Disk`](crate::Disk).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// What is written whole or not at all when the power goes, in bytes. Smaller than what disks promise today.
pub const SECTOR: usize = 512;

/// Handles share one disk. Operations that change something (create, write, sync, rename, remove, sync of the directory) are counted from 1.
#[derive(Clone)]
pub struct FaultDisk {
    inner: Arc<Mutex<Inner>>,
}

/// When what goes wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The power goes at this operation: it has half happened, and every later one fails.
    pub cut_at: Option<u64>,
    /// The sync at or after this operation fails; what it should have written is lost, although it can still be read until the power goes.
    /// Later ones succeed.
    pub sync_fails_at: Option<u64>,
    /// The write at or after this operation fails for lack of room, after a part of it; once.
    pub write_full_at: Option<u64>,
    /// Syncs say that they have written what they have not: the power takes it as if there had been none. [`FaultDisk::catch_up`] writes it.
    pub lies: bool,
    /// No file can be opened or made for lack of descriptors. [`FaultDisk::set_no_descriptors`] changes it.
    pub no_descriptors: bool,
    /// Room for so many bytes of files; `None`: no bound. [`FaultDisk::set_capacity`] changes it.
    pub capacity: Option<u64>,
}

/// How often what happened, so that a test can show that it tested it.
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
    /// Adds up.
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
    /// Changes of the directory since it was synced.
    changes: Vec<Change>,
    counts: FaultCounts,
}

#[derive(Clone, Default)]
struct Content {
    /// As a process reads it.
    current: Vec<u8>,
    /// As it is after a power cut, but for what is pending.
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

/// Numbers from a seed.
#[derive(Clone, Default)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// One below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

impl FaultDisk {
    /// An empty disk on which everything works until it is told otherwise.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { inner: Arc::new(Mutex::new(Inner { random: Random::new(seed), ..Inner::default() })) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this goes wrong, and nothing else.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Something goes wrong beside what does already, or no more.
    pub fn change_plan(&self, change: impl FnOnce(&mut FaultPlan)) {
        change(&mut self.lock().plan);
    }

    pub fn set_no_descriptors(&self, none_left: bool) {
        self.change_plan(|plan| plan.no_descriptors = none_left);
    }

    /// More room, or less.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.change_plan(|plan| plan.capacity = bytes);
    }

    /// What a disk has said to be written and has not is written now.
    pub fn catch_up(&self) {
        let mut inner = self.lock();
        if !std::mem::take(&mut inner.plan.lies) {
            return;
        }
        inner.files.values_mut().for_each(Content::sync);
        inner.sync_names();
    }

    /// Operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// The disk after the power went, now or at [`FaultPlan::cut_at`]: what was synced is there; of the rest the seed decides whether all of
    /// it, none, the first writes, or any sectors of it are. Likewise for names. The old handle is dead.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut inner = self.lock();
        inner.dead = true;
        inner.counts.cuts += 1;
        let mut after = Inner { random: Random::new(inner.random.draw()), ..Inner::default() };
        let mut random = inner.random.clone();
        let mut counts = inner.counts;
        let mode = random.below(4);
        let mut names = inner.durable_names.clone();
        let kept = random.below(inner.changes.len() as u64 + 1) as usize;
        let names_mode = random.below(4);
        for (n, change) in inner.changes.iter().enumerate() {
            let keep = match names_mode {
                0 => false,
                1 => true,
                2 => n < kept,
                _ => random.below(2) == 0,
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

    /// The disk after the process was killed and the system went on: everything written is there, synced or not.
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

    /// Changes one bit of a file, as a disk does on its own.
    ///
    /// # Panics
    /// There is no such file, or it is shorter.
    pub fn flip(&self, name: &str, offset: u64, bit: u32) {
        let mut inner = self.lock();
        let id = inner.names[name];
        let content = inner.files.get_mut(&id).expect("a name has a file");
        content.current[offset as usize] ^= 1 << (bit % 8);
        if let Some(byte) = content.durable.get_mut(offset as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// The bytes of a file as a process reads them.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.lock();
        Some(inner.files[inner.names.get(name)?].current.clone())
    }

    /// Puts a file there, durable.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut inner = self.lock();
        let id = inner.new_file();
        let content = Content { current: bytes.to_vec(), durable: bytes.to_vec(), pending: vec![] };
        inner.files.insert(id, content);
        inner.names.insert(name.to_owned(), id);
        inner.durable_names.insert(name.to_owned(), id);
    }

    /// Takes a file away, durably.
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

    /// Counts an operation. True: the power goes with this one.
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
                // The link before it may have been lost: then the new name alone appears.
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

    /// Only what is still pending: what an earlier sync failed to write never gets there.
    fn sync(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.pending) {
            put(&mut self.durable, at, &bytes);
        }
    }

    fn crash(&self, mode: u64, random: &mut Random, counts: &mut FaultCounts) -> Self {
        let mut bytes = self.durable.clone();
        let writes = self.pending.len() as u64;
        let kept = random.below(writes + 1);
        let sectors: BTreeSet<usize> =
            self.pending.iter().flat_map(|(at, b)| touched(*at, b.len())).collect();
        for sector in sectors {
            // A sector is as it was after some write: what came before in it is there too.
            let upto = match mode {
                0 => 0,
                1 => writes,
                2 => kept,
                _ => random.below(writes + 1),
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
            let part = inner.random.below(bytes.len() as u64 + 1) as usize;
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
