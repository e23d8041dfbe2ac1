//! Entries of the hash tables. The identity of an entry never changes while its table exists; its destinations and
//! children do.

use crate::names::Packed;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// An entry of a [`Table`](crate::table::Table).
pub trait Slot: Sized {
    fn empty() -> Self;
    /// Returns the hash, 0 while the entry is empty. A reader that sees another value also sees all other
    /// identifying fields.
    fn hash(&self) -> u64;
    /// Returns whether the entry is in use, so that a new table needs it.
    fn is_live(&self) -> bool;
    /// Copies the entry for a new table, which no other thread sees yet.
    fn copy(&self) -> Self;
}

/// A path that some filter with wildcards begins with: one edge of the tree and the node at its end.
///
/// 32 bytes and never across a cache line, so that a step of a match is one miss.
#[repr(C, align(32))]
pub struct Node {
    hash: AtomicU64,
    name_head: AtomicU64,
    name_tail: AtomicU32,
    /// Number of children directly below.
    pub children: Children,
    /// Destinations of the filter that is this path and `/#`; 0 for none.
    pub below: AtomicU32,
    /// Destinations of the filter that is this path; 0 for none.
    pub exact: AtomicU32,
}

const _: () = assert!(cfg!(loom) || size_of::<Node>() == 32);

/// Count of a node's live children: one bit for `+`, the rest for names.
pub struct Children(AtomicU32);

/// Kinds of a node's children, for a reader.
#[derive(Clone, Copy)]
pub struct ChildKinds(u32);

impl ChildKinds {
    #[inline(always)]
    pub fn has_plus(self) -> bool {
        self.0 & 1 != 0
    }

    #[inline(always)]
    pub fn has_names(self) -> bool {
        self.0 > 1
    }

    pub fn count(self) -> usize {
        (self.0 >> 1) as usize + (self.0 & 1) as usize
    }
}

impl Children {
    pub fn none() -> Children {
        Children(AtomicU32::new(0))
    }

    #[inline(always)]
    pub fn kinds(&self) -> ChildKinds {
        ChildKinds(self.0.load(Ordering::Acquire))
    }

    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Adds a child. Only writers call this, so load and store suffice.
    pub fn add(&self, name: Packed) {
        let now = self.0.load(Ordering::Relaxed);
        assert!(name != Packed::PLUS || now & 1 == 0, "a node has one `+`");
        self.0.store(now + step(name), Ordering::Release);
    }

    /// Removes a child.
    pub fn remove(&self, name: Packed) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.checked_sub(step(name)).expect("the child was counted"), Ordering::Release);
    }
}

fn step(name: Packed) -> u32 {
    if name == Packed::PLUS { 1 } else { 2 }
}

impl Node {
    /// Publishes the entry's identity. This is a writer's last step for a new entry.
    pub fn publish(&self, hash: u64, name: Packed) {
        self.name_head.store(name.head, Ordering::Relaxed);
        self.name_tail.store(name.tail, Ordering::Relaxed);
        self.hash.store(hash, Ordering::Release);
    }

    /// Returns the name of the path's last level. Call it only for an entry whose hash was seen.
    #[inline(always)]
    pub fn name(&self) -> Packed {
        Packed { head: self.name_head.load(Ordering::Relaxed), tail: self.name_tail.load(Ordering::Relaxed) }
    }
}

impl Slot for Node {
    fn empty() -> Node {
        Node {
            hash: AtomicU64::new(0),
            name_head: AtomicU64::new(0),
            name_tail: AtomicU32::new(0),
            children: Children::none(),
            below: AtomicU32::new(0),
            exact: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    fn hash(&self) -> u64 {
        self.hash.load(Ordering::Acquire)
    }

    fn is_live(&self) -> bool {
        self.below.load(Ordering::Relaxed) | self.exact.load(Ordering::Relaxed) != 0
            || !self.children.is_empty()
    }

    fn copy(&self) -> Node {
        Node {
            hash: copy64(&self.hash),
            name_head: copy64(&self.name_head),
            name_tail: copy32(&self.name_tail),
            children: Children(copy32(&self.children.0)),
            below: copy32(&self.below),
            exact: copy32(&self.exact),
        }
    }
}

/// A filter without a wildcard, found by its whole hash.
#[repr(C, align(16))]
pub struct Exact {
    hash: AtomicU64,
    /// Offset of its length and text in the arena.
    name: AtomicU32,
    /// Destinations of the filter; 0 for none.
    pub destinations: AtomicU32,
}

impl Exact {
    pub fn publish(&self, hash: u64, name: u32) {
        self.name.store(name, Ordering::Relaxed);
        self.hash.store(hash, Ordering::Release);
    }

    #[inline(always)]
    pub fn name(&self) -> u32 {
        self.name.load(Ordering::Relaxed)
    }
}

impl Slot for Exact {
    fn empty() -> Exact {
        Exact { hash: AtomicU64::new(0), name: AtomicU32::new(0), destinations: AtomicU32::new(0) }
    }

    #[inline(always)]
    fn hash(&self) -> u64 {
        self.hash.load(Ordering::Acquire)
    }

    fn is_live(&self) -> bool {
        self.destinations.load(Ordering::Relaxed) != 0
    }

    fn copy(&self) -> Exact {
        Exact { hash: copy64(&self.hash), name: copy32(&self.name), destinations: copy32(&self.destinations) }
    }
}

/// Location of a destination in a large set. For writers only.
#[repr(C, align(16))]
pub struct Member {
    hash: AtomicU64,
    set: AtomicU32,
    location: AtomicU32,
}

/// Value for no location in any set.
const NO_LOCATION: u32 = u32::MAX;

impl Member {
    pub fn publish(&self, hash: u64, set: u32, location: u32) {
        self.set.store(set, Ordering::Relaxed);
        self.location.store(location, Ordering::Relaxed);
        self.hash.store(hash, Ordering::Release);
    }

    pub fn location_in(&self, set: u32) -> Option<u32> {
        let location = self.location.load(Ordering::Relaxed);
        (location != NO_LOCATION && self.set.load(Ordering::Relaxed) == set).then_some(location)
    }

    pub fn move_to(&self, location: u32) {
        self.location.store(location, Ordering::Relaxed);
    }

    pub fn clear(&self) {
        self.location.store(NO_LOCATION, Ordering::Relaxed);
    }
}

impl Slot for Member {
    fn empty() -> Member {
        Member { hash: AtomicU64::new(0), set: AtomicU32::new(0), location: AtomicU32::new(NO_LOCATION) }
    }

    fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    fn is_live(&self) -> bool {
        self.location.load(Ordering::Relaxed) != NO_LOCATION
    }

    fn copy(&self) -> Member {
        Member { hash: copy64(&self.hash), set: copy32(&self.set), location: copy32(&self.location) }
    }
}

fn copy32(from: &AtomicU32) -> AtomicU32 {
    AtomicU32::new(from.load(Ordering::Relaxed))
}

fn copy64(from: &AtomicU64) -> AtomicU64 {
    AtomicU64::new(from.load(Ordering::Relaxed))
}
