//! The index: a tree of levels for filters with wildcards, a table of the others, and the one lock of their
//! writers.

use std::sync::{Arc, Mutex, MutexGuard};

use mqtt::TopicFilter;

use crate::destinations::{Destinations, DestinationsTail};
use crate::epoch::{self, Domain, RetiredList};
use crate::hash::PathHasher;
use crate::limits::LEVELS_MAX;
use crate::names::{Names, NamesTail};
use crate::retired::{Bin, Garbage};
use crate::shapes::{ShapeCounts, Shapes};
use crate::slot::{Children, Exact, Node};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::table::Table;
use crate::unindexed::UnindexedFilters;
use crate::units::Units;
use crate::writing::{Change, Tools, WriterScratch};
use crate::{Destination, IndexFull, IndexLimits, Reader, ShapeOwners, ShapesFull};

/// Result of [`Index::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The filter was not in the index.
    New,
    /// The filter was there with other destinations.
    Added,
    /// The filter already had a destination with this key; the new one replaced it.
    Replaced,
}

/// Result of [`Index::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The destination was the filter's last one: the filter is removed.
    Last,
    /// The filter has other destinations left.
    Removed,
    /// The filter did not exist, or it had no such destination.
    NotFound,
}

/// Topic Filters and their destinations, shared by all threads in an [`Arc`].
///
/// Readers, one for each thread, never wait. Writers wait for each other: for about a microsecond, at worst for the
/// copy of one segment of a table.
pub struct Index<D: Destination> {
    pub(crate) hasher: PathHasher,
    pub(crate) limits: IndexLimits,
    domain: Domain,
    pub(crate) root: Root,
    pub(crate) nodes: Table<Node>,
    pub(crate) exacts: Table<Exact>,
    pub(crate) names: Names,
    pub(crate) destinations: Destinations<D>,
    pub(crate) shapes: Shapes,
    pub(crate) unindexed: UnindexedFilters,
    filters: AtomicUsize,
    pairs: AtomicUsize,
    /// Number of changes of the routes.
    version: AtomicU64,
    writer: Mutex<Writer>,
}

/// The node of no levels.
pub(crate) struct Root {
    pub children: Children,
    /// Destinations of the filter `#`.
    pub below: AtomicU32,
}

/// State that only writers use.
struct Writer {
    retired: RetiredList<Garbage>,
    /// Sum of the weights of the objects in the retired list.
    waiting: usize,
    names: NamesTail,
    destinations: DestinationsTail,
    shapes: ShapeCounts,
    scratch: WriterScratch,
    /// Units of memory. Dropped after the tables, which have segments in them.
    units: Units,
}

/// Maximum number of objects that one call frees, so that no writer waits long for it.
const COLLECT_MAX: usize = 256;
/// Number of waiting bytes at which writers free memory, with 64 bytes for each number or name.
const WAITING_MAX: usize = 64 * 128;

impl<D: Destination> Index<D> {
    /// Creates an empty index. `hash_key` is the process's secret: with it, a client could create names that
    /// collide.
    pub fn new(hash_key: [u8; 16], limits: IndexLimits) -> Index<D> {
        Index::with_hasher(PathHasher::new(hash_key), limits)
    }

    pub(crate) fn with_hasher(hasher: PathHasher, limits: IndexLimits) -> Index<D> {
        Index {
            hasher,
            limits: IndexLimits { levels_max: limits.levels_max.clamp(1, LEVELS_MAX), ..limits },
            domain: Domain::new(),
            root: Root { children: Children::none(), below: AtomicU32::new(0) },
            nodes: Table::new(),
            exacts: Table::new(),
            names: Names::new(),
            destinations: Destinations::new(),
            shapes: Shapes::new(),
            unindexed: UnindexedFilters::default(),
            filters: AtomicUsize::new(0),
            pairs: AtomicUsize::new(0),
            version: AtomicU64::new(0),
            writer: Mutex::new(Writer {
                retired: RetiredList::new(),
                waiting: 0,
                names: NamesTail::default(),
                destinations: DestinationsTail::default(),
                shapes: ShapeCounts::default(),
                scratch: WriterScratch::default(),
                units: Units::new(),
            }),
        }
    }

    /// Adds a destination to a filter, or replaces the one with the same key. On an error nothing has changed.
    pub fn insert(&self, filter: TopicFilter<'_>, destination: D) -> Result<Inserted, IndexFull> {
        let mut lock = self.lock();
        let inserted = self.change(&mut lock, filter).insert(destination)?;
        self.version.fetch_add(1, Ordering::Release);
        match inserted {
            Inserted::New => {
                self.filters.fetch_add(1, Ordering::Relaxed);
                self.pairs.fetch_add(1, Ordering::Relaxed);
            }
            Inserted::Added => {
                self.pairs.fetch_add(1, Ordering::Relaxed);
            }
            Inserted::Replaced => {}
        }
        self.collect_if_many(&mut lock);
        Ok(inserted)
    }

    /// Removes the destination with this key from a filter.
    pub fn remove(&self, filter: TopicFilter<'_>, key: D::Key) -> Removed {
        let mut lock = self.lock();
        let removed = self.change(&mut lock, filter).remove(key);
        self.version.fetch_add(1, Ordering::Release);
        match removed {
            Removed::Last => {
                self.filters.fetch_sub(1, Ordering::Relaxed);
                self.pairs.fetch_sub(1, Ordering::Relaxed);
            }
            Removed::Removed => {
                self.pairs.fetch_sub(1, Ordering::Relaxed);
            }
            Removed::NotFound => {}
        }
        self.collect_if_many(&mut lock);
        removed
    }

    /// Version of the routes: another one after each change. While it stays the same, a topic has the same
    /// destinations. A change takes effect before the version does, and the version before `insert` and `remove`
    /// return. So the version must be read before [`Reader::matches`](crate::Reader::matches) is called.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Reserves an unusual shape for a filter that is about to be inserted, within [`IndexLimits::shapes_max`] and
    /// the limits of its owners. A shape that exists already is free for its next users. A new one is charged to
    /// `owners` until its last filter is removed and its last reservation released. Returns false when there was
    /// nothing to reserve: then nothing is to be released.
    ///
    /// # Errors
    /// There are too many unusual shapes.
    pub fn reserve_shape(&self, filter: TopicFilter<'_>, owners: &ShapeOwners) -> Result<bool, ShapesFull> {
        let mut lock = self.lock();
        let reserved = self.change(&mut lock, filter).reserve_shape(owners);
        self.collect_if_many(&mut lock);
        reserved
    }

    /// Ends a reservation for which [`Self::reserve_shape`] returned true.
    pub fn release_shape(&self, filter: TopicFilter<'_>) {
        let mut lock = self.lock();
        self.change(&mut lock, filter).release_shape();
        self.collect_if_many(&mut lock);
    }

    /// Charges the shape of a filter in the index to its owners, if it is unusual and not charged yet. No limit
    /// applies: the filter was granted before.
    pub fn charge_shape(&self, filter: TopicFilter<'_>, owners: &ShapeOwners) {
        self.change(&mut self.lock(), filter).charge_shape(owners);
    }

    /// Number of unusual shapes, see [`IndexLimits::shapes_max`].
    pub fn unusual_shapes(&self) -> usize {
        Shapes::unusual(&self.lock().shapes)
    }

    /// Limits of the index.
    pub fn limits(&self) -> IndexLimits {
        self.limits
    }

    /// Returns whether one of the destinations of exactly this filter satisfies the predicate, whatever other
    /// filters match the same topics. Waits for writers. Stops at the first match, so it examines few destinations
    /// when most match.
    pub fn any_of(&self, filter: TopicFilter<'_>, predicate: impl FnMut(&D) -> bool) -> bool {
        let mut lock = self.lock();
        self.change(&mut lock, filter).any(predicate)
    }

    /// Creates a reader for the calling thread.
    pub fn reader(self: &Arc<Self>) -> Reader<D> {
        Reader::new(self.clone())
    }

    /// Number of pairs of filter and destination.
    pub fn len(&self) -> usize {
        self.pairs.load(Ordering::Relaxed)
    }

    /// Returns whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of different filters.
    pub fn filters(&self) -> usize {
        self.filters.load(Ordering::Relaxed)
    }

    /// Bytes of memory held, including memory that was freed for reuse and memory that waits for readers.
    pub fn memory(&self) -> usize {
        let writer = self.lock();
        size_of::<Self>()
            + self.nodes.bytes()
            + self.exacts.bytes()
            + writer.names.bytes()
            + self.destinations.bytes(&writer.destinations)
            + Shapes::bytes(&writer.shapes)
            + self.unindexed.bytes()
            + writer.retired.len() * size_of::<(u64, Garbage)>()
            + writer.retired.iter().map(Garbage::bytes).sum::<usize>()
            + writer.units.bytes()
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    fn change<'a>(&'a self, writer: &'a mut Writer, filter: TopicFilter<'a>) -> Change<'a, D> {
        let Writer { retired, waiting, names, destinations, shapes, scratch, units } = writer;
        let bin = Bin { domain: &self.domain, retired, units, waiting };
        Change::new(self, Tools { bin, names, destinations, shapes }, scratch, filter)
    }

    /// Checks that each of this many filters in the tree has its shape counted.
    pub(crate) fn check_shapes(&self, filters: usize) {
        let writer = self.lock();
        assert_eq!(Shapes::counts(&writer.shapes).map(|(_, count)| count as usize).sum::<usize>(), filters);
    }

    /// Frees the memory that can be freed, unless a writer is active. Calls `quiescent` after the epoch was
    /// advanced.
    pub(crate) fn tidy(&self, quiescent: impl FnOnce()) {
        let mut lock = match self.writer.try_lock() {
            Ok(lock) => lock,
            Err(std::sync::TryLockError::Poisoned(lock)) => lock.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        self.domain.advance(&mut lock.retired);
        quiescent();
        self.collect(&mut lock);
    }

    fn collect_if_many(&self, writer: &mut Writer) {
        if writer.waiting >= WAITING_MAX {
            self.domain.advance(&mut writer.retired);
            self.collect(writer);
        }
    }

    fn collect(&self, writer: &mut Writer) {
        let Writer { retired, waiting, names, destinations, units, .. } = writer;
        self.domain.collect(retired, COLLECT_MAX, |garbage| {
            *waiting -= garbage.weight();
            self.free(garbage, names, destinations, units);
        });
    }

    fn free(
        &self,
        garbage: Garbage,
        names: &mut NamesTail,
        destinations: &mut DestinationsTail,
        units: &mut Units,
    ) {
        match garbage {
            Garbage::Unit(number) => units.give(number),
            // SAFETY: no reader can hold it any more.
            Garbage::Memory(memory) => unsafe { memory.free() },
            Garbage::Single(number) => self.destinations.free_single(destinations, number),
            Garbage::Set(number) => self.destinations.free_set(destinations, number),
            Garbage::Name(place, bytes) => self.names.free(names, place, bytes),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        epoch::lock(&self.writer)
    }
}

impl<D: Destination> Drop for Index<D> {
    fn drop(&mut self) {
        // Readers keep the index in an `Arc`, so there are none.
        let mut lock = self.lock();
        let Writer { retired, names, destinations, units, .. } = &mut *lock;
        retired.drain().for_each(|garbage| self.free(garbage, names, destinations, units));
        let tail = std::mem::take(destinations);
        drop(lock);
        self.destinations.clear(&tail);
    }
}
