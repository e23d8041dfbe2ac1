//! Search for the filters that match a topic.
//!
//! A path is a hash that follows from the names of its levels alone. So any node can be looked up at once, without
//! its ancestors. There are two methods. While filters have few shapes, the one node of every shape is looked up,
//! with all cache misses at the same time. With more shapes, the tree is followed level by level along all paths
//! that exist. When a topic has very many such paths, the search tries the shapes instead, because their number is
//! limited.

use mqtt::TopicName;

use crate::epoch::Guard;
use crate::names::{Level, Packed, Split};
use crate::shapes::Shape;
use crate::slot::Node;
use crate::sync::Ordering;
use crate::table::View;
use crate::{Destination, Index};

/// Memory that a reader keeps between matches, so that a match does not allocate.
#[derive(Default)]
pub struct Scratch {
    split: Split,
    paths: Vec<Path>,
    next: Vec<Path>,
    /// References of the filters found.
    found: Vec<u32>,
    /// Hashes of a shape's path and of its ancestors.
    ancestors: Vec<u64>,
    tries: Vec<Try>,
    /// Depth of the path without `+` in the last walk: that much of it is prefetched in the next one.
    depth: usize,
}

/// A path that filters may have.
#[derive(Clone, Copy)]
struct Path {
    hash: u64,
    /// True when its last level is `+` instead of the topic's.
    plus: bool,
}

/// Path of a shape.
#[derive(Clone, Copy)]
struct Try {
    hash: u64,
    parent: u64,
    /// Index among the shapes.
    shape: u32,
    /// Reference of the node, once it was found.
    reference: u32,
}

/// Number of shapes tried together: about as many as the loads that a processor does at the same time.
const BATCH: usize = 16;

/// A topic, split into levels, and the tables in which it is looked up.
struct Lookup<'a, 'g, D: Destination> {
    index: &'g Index<D>,
    nodes: View<'g, Node>,
    text: &'a str,
    levels: &'a [Level],
    /// True when `levels` is the whole topic, which may be longer than any filter.
    whole: bool,
    /// True for a topic that starts with `$`: no wildcard at the first level matches it [MQTT-4.7.2-1].
    hidden: bool,
}

impl<D: Destination> Index<D> {
    pub(crate) fn collect_matches(
        &self,
        topic: TopicName<'_>,
        out: &mut Vec<D>,
        scratch: &mut Scratch,
        guard: &Guard<'_>,
    ) -> usize {
        let text = topic.as_str();
        let whole = scratch.split.split(text, &self.hasher, self.limits.levels_max);
        let Scratch { split, paths, next, found, ancestors, tries, depth } = scratch;
        let levels = &split.levels[..];
        found.clear();
        let exacts = self.exacts.view(guard);
        let exact = whole.then(|| {
            let path =
                levels.iter().fold(self.hasher.root, |path, level| self.hasher.child(path, level.hash));
            self.hasher.exact(path)
        });
        if let Some(hash) = exact {
            exacts.prefetch(hash);
        }
        let hidden = text.starts_with('$');
        let lookup = Lookup { index: self, nodes: self.nodes.view(guard), text, levels, whole, hidden };
        let shapes = self.shapes.list(guard);
        if shapes.len() <= self.limits.tries_max || !lookup.walk(paths, next, found, depth, shapes) {
            found.clear();
            lookup.try_shapes(shapes, ancestors, tries, found);
        }
        if let Some(hash) = exact
            // SAFETY: the guard keeps the entry's name.
            && let Some(slot) = exacts.find(hash, |slot| unsafe { self.exact_name(slot) } == text.as_bytes())
        {
            self.push(slot.destinations.load(Ordering::Acquire), found);
        }
        if !self.unindexed.is_empty() {
            self.unindexed.matching(topic).for_each(|reference| self.push(reference, found));
        }
        found.iter().for_each(|reference| self.destinations.extend(*reference, out, guard));
        found.len()
    }

    /// Records the reference of an entry, and prefetches its destinations.
    #[inline(always)]
    fn push(&self, reference: u32, found: &mut Vec<u32>) {
        if reference != 0 {
            self.destinations.prefetch(reference);
            found.push(reference);
        }
    }
}

impl<'g, D: Destination> Lookup<'_, 'g, D> {
    /// Returns the node of a path with this last level. The ancestors of the path are known to be right.
    #[inline(always)]
    fn node(&self, path: Path, level: &Level) -> Option<&'g Node> {
        let names = &self.index.names;
        self.nodes.find(path.hash, |node| {
            let name = node.name();
            match path.plus {
                true => name == Packed::PLUS,
                // SAFETY: names of nodes are in this arena, and the view's guard keeps them.
                false => unsafe { names.is(name, level, self.text) },
            }
        })
    }

    /// Follows all paths of the topic through the tree. Returns false when there are so many that trying shapes is
    /// faster.
    fn walk(
        &self,
        paths: &mut Vec<Path>,
        next: &mut Vec<Path>,
        found: &mut Vec<u32>,
        depth: &mut usize,
        shapes: &[Shape],
    ) -> bool {
        let (index, hasher) = (self.index, &self.index.hasher);
        let mut ahead = hasher.root;
        for level in self.levels.iter().take(*depth) {
            ahead = hasher.child(ahead, level.hash);
            self.nodes.prefetch(ahead);
        }
        if !self.hidden {
            index.push(index.root.below.load(Ordering::Acquire), found);
        }
        paths.clear();
        let kinds = index.root.children.kinds();
        if kinds.has_names() {
            paths.push(Path { hash: hasher.child(hasher.root, self.levels[0].hash), plus: false });
        }
        if kinds.has_plus() && !self.hidden {
            paths.push(Path { hash: hasher.child(hasher.root, hasher.plus), plus: true });
        }
        let (mut visits, mut first) = (0, kinds.has_names());
        *depth = 0;
        for (i, level) in self.levels.iter().enumerate() {
            visits += paths.len();
            if visits > index.limits.visits_max && visits > 2 * shapes.len() {
                return false;
            }
            let below = self.levels.get(i + 1);
            next.clear();
            for (at, path) in paths.iter().enumerate() {
                let Some(node) = self.node(*path, level) else {
                    first &= at != 0;
                    continue;
                };
                // `a/#` matches `a` as well as everything below it.
                index.push(node.below.load(Ordering::Acquire), found);
                let Some(below) = below else {
                    if self.whole {
                        index.push(node.exact.load(Ordering::Acquire), found);
                    }
                    continue;
                };
                let kinds = node.children.kinds();
                // The path without `+` is the first one as long as it exists.
                first &= at != 0 || kinds.has_names();
                if kinds.has_names() {
                    self.step(hasher.child(path.hash, below.hash), false, next);
                }
                if kinds.has_plus() {
                    self.step(hasher.child(path.hash, hasher.plus), true, next);
                }
            }
            *depth += usize::from(first);
            if next.is_empty() {
                break;
            }
            std::mem::swap(paths, next);
        }
        true
    }

    #[inline(always)]
    fn step(&self, hash: u64, plus: bool, next: &mut Vec<Path>) {
        self.nodes.prefetch(hash);
        next.push(Path { hash, plus });
    }

    /// Looks up the one filter of each shape that can match.
    fn try_shapes(
        &self,
        shapes: &[Shape],
        ancestors: &mut Vec<u64>,
        tries: &mut Vec<Try>,
        found: &mut Vec<u32>,
    ) {
        let (index, hasher) = (self.index, &self.index.hasher);
        ancestors.clear();
        ancestors.push(hasher.root);
        tries.clear();
        let (mut plus, mut known) = (0u128, 0);
        for (number, shape) in shapes.iter().enumerate() {
            let length = usize::from(shape.levels);
            let fits = match shape.rest {
                true => length <= self.levels.len(),
                false => length == self.levels.len() && self.whole,
            };
            if !fits || self.hidden && (length == 0 || shape.has_plus(0)) {
                continue;
            }
            if length == 0 {
                index.push(index.root.below.load(Ordering::Acquire), found);
                continue;
            }
            // Shapes are sorted, so a shape shares its first levels with the previous one; all of them, when both
            // have the same `+`.
            if plus != shape.plus {
                ancestors.truncate(1 + (plus ^ shape.plus).leading_zeros() as usize);
                plus = shape.plus;
            }
            while ancestors.len() <= length {
                let at = ancestors.len() - 1;
                let level = if shape.has_plus(at) { hasher.plus } else { self.levels[at].hash };
                ancestors.push(hasher.child(ancestors[at], level));
            }
            let hash = ancestors[length];
            self.nodes.prefetch(hash);
            tries.push(Try { hash, parent: ancestors[length - 1], shape: number as u32, reference: 0 });
            if tries.len() == BATCH {
                self.look_up(tries, shapes, &mut known, found);
            }
        }
        self.look_up(tries, shapes, &mut known, found);
    }

    /// Looks up the nodes of `tries`, which were prefetched. `known` levels of the path without `+` are known to be
    /// right.
    #[inline]
    fn look_up(&self, tries: &mut Vec<Try>, shapes: &[Shape], known: &mut usize, found: &mut Vec<u32>) {
        tries.retain_mut(|Try { hash, parent, shape, reference }| {
            let shape = &shapes[*shape as usize];
            let last = usize::from(shape.levels) - 1;
            let path = Path { hash: *hash, plus: shape.has_plus(last) };
            let Some(node) = self.node(path, &self.levels[last]) else { return false };
            let cell = if shape.rest { &node.below } else { &node.exact };
            *reference = cell.load(Ordering::Acquire);
            if *reference != 0 {
                self.index.destinations.prefetch(*reference);
                self.nodes.prefetch(*parent);
            }
            *reference != 0
        });
        for Try { shape, reference, .. } in tries.drain(..) {
            if self.has_ancestors(&shapes[shape as usize], known) {
                found.push(reference);
            }
        }
    }

    /// Returns whether all nodes above the last of a shape's path are those of the topic: a path is right if each
    /// of its levels is.
    fn has_ancestors(&self, shape: &Shape, known: &mut usize) -> bool {
        let hasher = &self.index.hasher;
        let mut hash = hasher.root;
        for (i, level) in self.levels[..usize::from(shape.levels) - 1].iter().enumerate() {
            let plus = shape.has_plus(i);
            hash = hasher.child(hash, if plus { hasher.plus } else { level.hash });
            if i < *known && i < shape.plus.leading_zeros() as usize {
                continue;
            }
            if self.node(Path { hash, plus }, level).is_none() {
                return false;
            }
            if i == *known && i < shape.plus.leading_zeros() as usize {
                *known += 1;
            }
        }
        true
    }
}
