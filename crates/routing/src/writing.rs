//! One change of the index, made under the writers' lock.
//!
//! Readers may look at any moment. So a path is created from its first level on, and its destination is added last;
//! they are removed in the opposite order. In between, a reader sees a node without destinations.

use mqtt::TopicFilter;

use crate::destinations::{Destinations, DestinationsTail};
use crate::epoch::Guard;
use crate::names::{Level, Names, NamesTail, Split};
use crate::retired::{Bin, Garbage};
use crate::shapes::{Shape, ShapeCounts};
use crate::slot::{Exact, Node, Slot};
use crate::sync::{AtomicU32, Ordering};
use crate::{Destination, Index, IndexFull, Inserted, Removed, ShapeOwners, ShapesFull};

/// A writer's own state, borrowed for one change.
pub struct Tools<'a> {
    pub bin: Bin<'a>,
    pub names: &'a mut NamesTail,
    pub destinations: &'a mut DestinationsTail,
    pub shapes: &'a mut ShapeCounts,
}

/// Memory that is kept between changes.
#[derive(Default)]
pub struct WriterScratch {
    split: Split,
    paths: Vec<u64>,
}

pub struct Change<'a, D: Destination> {
    index: &'a Index<D>,
    tools: Tools<'a>,
    filter: TopicFilter<'a>,
    /// Levels without a `#` at the end.
    levels: &'a [Level],
    /// Hash of each level with all levels before it.
    paths: &'a [u64],
    /// True when there was a `#` at the end.
    rest: bool,
    /// True when the filter has no more levels than allowed.
    whole: bool,
}

/// Part of a path that is in the tree.
enum Found {
    /// The path is there down to this number of levels.
    Levels(usize),
    /// Another path has the hash of one of its levels.
    Taken,
}

impl<'a, D: Destination> Change<'a, D> {
    pub fn new(
        index: &'a Index<D>,
        tools: Tools<'a>,
        scratch: &'a mut WriterScratch,
        filter: TopicFilter<'a>,
    ) -> Change<'a, D> {
        let WriterScratch { split, paths } = scratch;
        let text = filter.as_str();
        let whole = split.split(text, &index.hasher, index.limits.levels_max);
        let levels = &mut split.levels;
        let rest = whole && levels.last().is_some_and(|level| level.text(text) == b"#");
        if rest {
            levels.pop();
        }
        paths.clear();
        let mut path = index.hasher.root;
        for level in levels.iter() {
            path = index.hasher.child(path, level.hash);
            paths.push(path);
        }
        Change { index, tools, filter, levels, paths, rest, whole }
    }

    pub fn insert(mut self, destination: D) -> Result<Inserted, IndexFull> {
        let (index, text) = (self.index, self.filter.as_str());
        if !self.whole {
            return Err(IndexFull::Levels { levels_max: index.limits.levels_max });
        }
        if !Destinations::<D>::has_room(self.tools.destinations) || !self.tools.names.has_room(text.len() + 2)
        {
            return Err(IndexFull::Numbers);
        }
        if !self.filter.has_wildcard() {
            return Ok(self.insert_exact(destination));
        }
        if let Some(unindexed_filter) = index.unindexed.find(text) {
            return Ok(self.put(&unindexed_filter.destinations, destination));
        }
        let depth = match self.survey() {
            Found::Levels(depth) => depth,
            Found::Taken => return Ok(self.put(&index.unindexed.add(text).destinations, destination)),
        };
        if depth == self.levels.len() && self.cell().load(Ordering::Relaxed) != 0 {
            return Ok(self.put(self.cell(), destination));
        }
        // A shape has a bit for the first levels only. A filter with a deeper `+` is matched one by one.
        let Some(shape) = Shape::of(self.levels, self.rest) else {
            return Ok(self.put(&index.unindexed.add(text).destinations, destination));
        };
        index.shapes.add(self.tools.shapes, shape, &mut self.tools.bin);
        self.grow(depth);
        let was_live = self.node(self.levels.len()).is_none_or(Slot::is_live);
        let inserted = self.put(self.cell(), destination);
        if !was_live {
            index.nodes.count_live(self.paths[self.levels.len() - 1]);
        }
        Ok(inserted)
    }

    /// Reserves a shape, see [`Index::reserve_shape`].
    pub fn reserve_shape(mut self, owners: &ShapeOwners) -> Result<bool, ShapesFull> {
        let Some(shape) = self.shape() else { return Ok(false) };
        let index = self.index;
        let Tools { bin, shapes, .. } = &mut self.tools;
        index.shapes.reserve(shapes, shape, owners, index.limits.shapes_max, bin)
    }

    /// Releases a shape, see [`Index::release_shape`].
    pub fn release_shape(mut self) {
        if let Some(shape) = self.shape() {
            let Tools { bin, shapes, .. } = &mut self.tools;
            self.index.shapes.release(shapes, shape, bin);
        }
    }

    /// Charges a shape, see [`Index::charge_shape`].
    pub fn charge_shape(self, owners: &ShapeOwners) {
        if let Some(shape) = self.shape() {
            self.tools.shapes.charge(shape, owners);
        }
    }

    /// Returns the shape of a filter in the tree. `None` for one without wildcards, with too many levels, or with a
    /// `+` that is too deep.
    fn shape(&self) -> Option<Shape> {
        (self.whole && self.filter.has_wildcard()).then(|| Shape::of(self.levels, self.rest)).flatten()
    }

    pub fn remove(mut self, key: D::Key) -> Removed {
        let index = self.index;
        if !self.whole {
            return Removed::NotFound;
        }
        if !self.filter.has_wildcard() {
            return self.remove_exact(key);
        }
        if let Some(unindexed_filter) = index.unindexed.find(self.filter.as_str()) {
            return self.take(&unindexed_filter.destinations, key);
        }
        match self.survey() {
            Found::Levels(depth) if depth == self.levels.len() => {}
            _ => return Removed::NotFound,
        }
        let removed = self.take(self.cell(), key);
        if removed == Removed::Last {
            self.prune();
            if let Some(shape) = Shape::of(self.levels, self.rest) {
                index.shapes.remove(self.tools.shapes, shape, &mut self.tools.bin);
            }
        }
        removed
    }

    /// Returns whether one of the filter's destinations satisfies the predicate.
    pub fn any(&self, predicate: impl FnMut(&D) -> bool) -> bool {
        let index = self.index;
        if !self.whole {
            return false;
        }
        let cell = if !self.filter.has_wildcard() {
            self.exact(self.exact_hash()).map(|slot| &slot.destinations)
        } else if let Some(unindexed_filter) = index.unindexed.find(self.filter.as_str()) {
            Some(&unindexed_filter.destinations)
        } else {
            match self.survey() {
                Found::Levels(depth) if depth == self.levels.len() => Some(self.cell()),
                _ => None,
            }
        };
        cell.is_some_and(|cell| {
            // SAFETY: this is the writer, and nothing is freed before it has released the lock.
            let guard = unsafe { Guard::new() };
            index.destinations.any(cell.load(Ordering::Relaxed), predicate, &guard)
        })
    }

    fn put(&mut self, cell: &AtomicU32, destination: D) -> Inserted {
        let Tools { bin, destinations, .. } = &mut self.tools;
        self.index.destinations.insert(cell, destination, destinations, &self.index.hasher, bin)
    }

    fn take(&mut self, cell: &AtomicU32, key: D::Key) -> Removed {
        let Tools { bin, destinations, .. } = &mut self.tools;
        self.index.destinations.remove(cell, key, destinations, &self.index.hasher, bin)
    }

    /// Returns how much of the path is in the tree and live.
    fn survey(&self) -> Found {
        let mut depth = self.levels.len();
        for (i, level) in self.levels.iter().enumerate() {
            if self.paths[i] == 0 || self.paths[i] == self.index.hasher.root {
                return Found::Taken;
            }
            let node = self.node(i + 1);
            // SAFETY: the arena is this index's, and only writers free.
            let predicate =
                |node: &Node| unsafe { self.index.names.is(node.name(), level, self.filter.as_str()) };
            match node {
                Some(node) if !predicate(node) => return Found::Taken,
                Some(node) if node.is_live() => {}
                // The path may even collide with itself.
                None if self.paths[..i].contains(&self.paths[i]) => return Found::Taken,
                _ => depth = depth.min(i),
            }
        }
        Found::Levels(depth)
    }

    /// Returns the entry with the hash of the first `depth` levels; `None` for no levels.
    fn node(&self, depth: usize) -> Option<&'a Node> {
        // SAFETY: this is the writer. What it retires is freed after the change at the earliest. But an entry may
        // leave the table earlier, so no reference is kept across a call that inserts into the table or counts a
        // death.
        let guard = unsafe { Guard::new() };
        let hash = self.paths[depth.checked_sub(1)?];
        let node: *const Node = self.index.nodes.view(&guard).find(hash, |_| true)?;
        // SAFETY: as above.
        Some(unsafe { &*node })
    }

    /// Returns the cell of the filter's destinations. Its whole path is in the tree.
    fn cell(&self) -> &'a AtomicU32 {
        match self.node(self.levels.len()) {
            None => &self.index.root.below,
            Some(node) if self.rest => &node.below,
            Some(node) => &node.exact,
        }
    }

    /// Makes the path live from `depth` levels on, except the last node, which has no destinations yet.
    fn grow(&mut self, depth: usize) {
        let index = self.index;
        for i in depth..self.levels.len() {
            let level = self.levels[i];
            // The parent first, so that it is live when a new segment leaves out dead entries.
            match self.node(i) {
                None => index.root.children.add(level.name),
                Some(parent) => {
                    let was_live = parent.is_live();
                    parent.children.add(level.name);
                    if !was_live {
                        index.nodes.count_live(self.paths[i - 1]);
                    }
                }
            }
            if self.node(i + 1).is_none() {
                let name = index.names.pack(self.tools.names, &level, self.filter.as_str());
                let hash = self.paths[i];
                index.nodes.insert(hash, &mut self.tools.bin, drop_node, |node| node.publish(hash, name));
            }
        }
    }

    /// Removes unused nodes from the tree, from the end of the path on.
    fn prune(&mut self) {
        let index = self.index;
        for i in (0..self.levels.len()).rev() {
            if self.node(i + 1).expect("the path is in the tree").is_live() {
                return;
            }
            index.nodes.count_dead(self.paths[i], &mut self.tools.bin, drop_node);
            let name = self.levels[i].name;
            match self.node(i) {
                None => index.root.children.remove(name),
                Some(parent) => parent.children.remove(name),
            }
        }
    }

    fn exact_hash(&self) -> u64 {
        self.index.hasher.exact(self.paths.last().copied().unwrap_or(self.index.hasher.root))
    }

    fn exact(&self, hash: u64) -> Option<&'a Exact> {
        // SAFETY: as in `node`.
        let guard = unsafe { Guard::new() };
        let text = self.filter.as_str().as_bytes();
        // SAFETY: the entry's hash was seen, and this is the writer.
        let predicate = |slot: &Exact| unsafe { self.index.exact_name(slot) } == text;
        let slot: *const Exact = self.index.exacts.view(&guard).find(hash, predicate)?;
        // SAFETY: as in `node`.
        Some(unsafe { &*slot })
    }

    fn insert_exact(&mut self, destination: D) -> Inserted {
        let (index, hash) = (self.index, self.exact_hash());
        if self.exact(hash).is_none() {
            let name = index.store_exact_name(self.tools.names, self.filter.as_str());
            let dropped = |slot: &Exact, bin: &mut Bin<'_>| drop_exact(index, slot, bin);
            index.exacts.insert(hash, &mut self.tools.bin, dropped, |slot| slot.publish(hash, name));
        }
        let slot = self.exact(hash).expect("it was there or was added");
        let was_live = slot.is_live();
        let inserted = self.put(&slot.destinations, destination);
        if !was_live {
            index.exacts.count_live(hash);
        }
        inserted
    }

    fn remove_exact(&mut self, key: D::Key) -> Removed {
        let (index, hash) = (self.index, self.exact_hash());
        let Some(slot) = self.exact(hash) else { return Removed::NotFound };
        let removed = self.take(&slot.destinations, key);
        if removed == Removed::Last {
            let dropped = |slot: &Exact, bin: &mut Bin<'_>| drop_exact(index, slot, bin);
            index.exacts.count_dead(hash, &mut self.tools.bin, dropped);
        }
        removed
    }
}

/// Retires the name of a dead node that a new segment leaves out.
fn drop_node(node: &Node, bin: &mut Bin<'_>) {
    if let Some((offset, bytes)) = Names::offset(node.name()) {
        bin.retire(Garbage::Name(offset, bytes));
    }
}

/// Retires the name of a dead exact filter that a new segment leaves out.
fn drop_exact<D: Destination>(index: &Index<D>, slot: &Exact, bin: &mut Bin<'_>) {
    // SAFETY: the entry's hash was seen, and its name is retired only here.
    let length = unsafe { index.exact_name(slot) }.len();
    bin.retire(Garbage::Name(slot.name(), EXACT_PREFIX + length));
}

/// Bytes before the text of an exact filter in the arena, which hold its length.
pub const EXACT_PREFIX: usize = 2;

impl<D: Destination> Index<D> {
    fn store_exact_name(&self, names: &mut NamesTail, text: &str) -> u32 {
        let length = u16::try_from(text.len()).expect("a filter has at most 65,535 bytes");
        self.names.store(names, &[&length.to_le_bytes(), text.as_bytes()])
    }

    /// Returns the text of an exact filter.
    ///
    /// # Safety
    /// The entry's hash was seen, and during `'n` the entry is kept by a guard or by the writers' lock.
    #[inline(always)]
    pub(crate) unsafe fn exact_name<'n>(&self, slot: &Exact) -> &'n [u8] {
        // SAFETY: written by `store_exact_name`, and not freed, as promised by the caller.
        unsafe {
            let prefix = self.names.get(slot.name(), EXACT_PREFIX);
            let length = usize::from(u16::from_le_bytes([prefix[0], prefix[1]]));
            &self.names.get(slot.name(), EXACT_PREFIX + length)[EXACT_PREFIX..]
        }
    }
}
