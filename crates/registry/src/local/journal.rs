//! The files: the journal, the lock beside it, and the next journal while it is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::FILE;
use super::reading::{Note, Reading};
use crate::error::{OpenError, OpenFault};
use crate::line::{self, Group, Header, Kept};
use crate::state::State;

/// The journal of a data directory, as far as it was read.
pub struct Journal {
    directory: PathBuf,
    path: PathBuf,
    lock: Option<File>,
    open: Option<Open>,
}

struct Open {
    file: File,
    inode: u64,
    reading: Reading,
}

/// The journal beside what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    AsKnown,
    /// There is none.
    Gone,
    /// Somebody appended.
    Longer,
    /// Somebody wrote it anew, or it is there for the first time.
    Another,
}

/// The lock among processes, until it is dropped.
pub struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing it would do as well; there is nothing else to do about it.
        drop(self.0.unlock());
    }
}

/// Why a line is not there.
pub struct AppendFailure {
    pub error: io::Error,
    /// It may be there after all.
    pub unknown: bool,
}

impl Journal {
    pub fn new(data_dir: &Path) -> Self {
        let directory = if data_dir.as_os_str().is_empty() { Path::new(".") } else { data_dir };
        Self { directory: directory.to_owned(), path: directory.join(FILE), lock: None, open: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the journal as it is known.
    pub fn len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reading.len)
    }

    /// Bytes of it that say what there was when it was last written anew.
    pub fn snapshot_len(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.reading.snapshot_len())
    }

    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    fn error(&self, fault: OpenFault) -> OpenError {
        OpenError { path: self.path.clone(), fault }
    }

    /// Waits until no other process changes the journal.
    ///
    /// # Errors
    /// Those of the system.
    pub fn hold(&mut self) -> Result<Held, OpenError> {
        let hold = || {
            if self.lock.is_none() {
                fs::create_dir_all(&self.directory)?;
                let mut options = OpenOptions::new();
                let options = options.write(true).create(true).truncate(false).mode(0o600);
                self.lock = Some(options.open(self.directory.join(LOCK_FILE))?);
            }
            let Some(lock) = &self.lock else { return Err(io::Error::other("no lock")) };
            let lock = lock.try_clone()?;
            lock.lock()?;
            Ok(Held(lock))
        };
        let held: io::Result<Held> = { hold }();
        held.map_err(|error| self.error(OpenFault::Io(error)))
    }

    /// # Errors
    /// Those of the system.
    pub fn seen(&self) -> Result<Seen, OpenError> {
        let metadata = match fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seen::Gone),
            Err(error) => return Err(self.error(OpenFault::Io(error))),
        };
        Ok(match &self.open {
            Some(open) if open.inode == metadata.ino() => match metadata.len().cmp(&open.reading.len) {
                std::cmp::Ordering::Equal => Seen::AsKnown,
                std::cmp::Ordering::Greater => Seen::Longer,
                std::cmp::Ordering::Less => Seen::Another,
            },
            _ => Seen::Another,
        })
    }

    /// Whether the journal that is known is still the one with the name.
    pub fn is_there(&self) -> bool {
        let begun = self.open.as_ref().is_some_and(|open| open.reading.begun());
        begun && self.seen().is_ok_and(|seen| seen == Seen::AsKnown)
    }

    /// Reads it from the beginning; gives the records and the bytes that were torn. `untouched` leaves those where they are.
    ///
    /// # Errors
    /// A journal that cannot be used; what was known of it stays.
    pub fn load(&mut self, untouched: bool) -> Result<(State, u64), OpenError> {
        let mut state = State::default();
        let file = match OpenOptions::new().read(true).append(!untouched).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((state, 0)),
            Err(error) => return Err(self.error(OpenFault::Io(error))),
        };
        let inode = file.metadata().map_err(|error| self.error(OpenFault::Io(error)))?.ino();
        let mut open = Open { file, inode, reading: Reading::default() };
        let torn = open.read_on(&mut state, untouched, &self.path, &mut |_, _, _, _| {});
        let torn = torn.map_err(|fault| self.error(fault))?;
        self.open = Some(open);
        Ok((state, torn))
    }

    /// Reads what was appended since; gives the bytes that were torn.
    ///
    /// # Errors
    /// As [`Journal::load`].
    pub fn read_on(&mut self, state: &mut State, untouched: bool, note: Note<'_>) -> Result<u64, OpenError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let read = open.read_on(state, untouched, &self.path, note);
        read.map_err(|fault| OpenError { path: self.path.clone(), fault })
    }

    /// Puts the journal aside under a name that nothing has; gives that.
    ///
    /// # Errors
    /// Those of the system; it is where it was then.
    pub fn put_aside(&mut self) -> io::Result<PathBuf> {
        let name = |number: u32| self.directory.join(format!("{FILE}.before-cluster.{number}"));
        let free = (1..ASIDE_MAX).map(name).find(|path| !path.exists());
        let free =
            free.ok_or_else(|| io::Error::other("too many journals were put aside: move them away"))?;
        // The journal stays until another one takes its name in one step.
        fs::hard_link(&self.path, &free).or_else(|_| fs::copy(&self.path, &free).map(drop))?;
        File::open(&self.directory)?.sync_all()?;
        Ok(free)
    }

    /// Appends a line; it is on the disk when this returns.
    ///
    /// # Errors
    /// Then the line is not there, or it is not known whether it is.
    pub fn append(&mut self, group: &Group<'_>) -> Result<(), AppendFailure> {
        let mut bytes = Vec::new();
        let known = |error| AppendFailure { error, unknown: false };
        line::write(&mut bytes, group).map_err(|error| known(error.into()))?;
        let Some(open) = &mut self.open else { return Err(known(io::Error::other("it is not open"))) };
        let written = open.file.write_all(&bytes).map_err(known).and_then(|()| {
            // After a sync that failed nobody knows what a later one says of these bytes.
            open.file.sync_data().map_err(|error| AppendFailure { error, unknown: true })
        });
        if let Err(failure) = written {
            let cut = open.file.set_len(open.reading.len).and_then(|()| open.file.sync_data());
            return Err(AppendFailure { unknown: failure.unknown || cut.is_err(), ..failure });
        }
        open.reading.appended(bytes.len() as u64);
        Ok(())
    }

    /// Writes the journal anew, without what is dead, and puts it in the place of the old one in one step.
    ///
    /// # Errors
    /// Those of the system; the old one is still there.
    pub fn rewrite(&mut self, state: &State) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let next = self.directory.join(NEXT_FILE);
        // Left by a crash; whoever is here holds the lock.
        if let Err(error) = fs::remove_file(&next)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create_new(true).mode(0o600).open(&next)?;
        let written = write_all(&file, state).and_then(|()| {
            fs::rename(&next, &self.path)?;
            // The new name is on the disk when the directory is.
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = written {
            // Whether it can be taken away or not, what went wrong before is what is told.
            drop(fs::remove_file(&next));
            return Err(error);
        }
        let metadata = file.metadata()?;
        let reading = Reading::written(metadata.len(), state);
        self.open = Some(Open { file, inode: metadata.ino(), reading });
        Ok(())
    }
}

impl Open {
    fn read_on(
        &mut self,
        state: &mut State,
        untouched: bool,
        path: &Path,
        note: Note<'_>,
    ) -> Result<u64, OpenFault> {
        self.file.seek(SeekFrom::Start(self.reading.len)).map_err(OpenFault::Io)?;
        let mut reader = BufReader::with_capacity(256 << 10, &self.file);
        let torn = self.reading.read(&mut reader, state, note)?;
        if torn > 0 && !untouched {
            let cut = self.file.set_len(self.reading.len).and_then(|()| self.file.sync_data());
            cut.map_err(OpenFault::Io)?;
            let path = path.display();
            tracing::warn!(%path, bytes = torn,
                            "the last change in the registry is not complete, as after a crash; it is cut off. If neither process nor machine crashed, check the disk"
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
            line::write(&mut bytes, &Kept { revision: stored.revision.0, table, key, value })?;
            out.write_all(&bytes)?;
        }
    }
    out.flush()?;
    drop(out);
    file.sync_all()
}

/// Journals that were put aside, at most.
const ASIDE_MAX: u32 = 100;
const LOCK_FILE: &str = "registry.lock";
const NEXT_FILE: &str = "registry.log.new";
