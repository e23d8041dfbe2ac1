//! Finding the filters that match a topic.
//!
//! The tree is followed level by level along all paths at once, so that the cache misses of one level overlap. A path
//! is a hash, from which that of each child follows without looking at the node: the path without any `+` is asked
//! for before the walk begins. When a topic leads along very many paths, the walk is given up for trying every shape
//! of filter once.

use mqtt::TopicName;

use crate::epoch::Guard;
use crate::names::{Level, Packed, split};
use crate::slot::Node;
use crate::sync::Ordering;
use crate::table::View;
use crate::{Destination, Index};

/// What a reader keeps between matches so as not to allocate.
#[derive(Default)]
pub struct Scratch {
    levels: Vec<Level>,
    paths: Vec<Path>,
    next: Vec<Path>,
    /// References to what was found.
    found: Vec<u32>,
    /// The hashes of a shape's path and of its ancestors.
    ancestors: Vec<u64>,
}

/// A path that filters may have.
#[derive(Clone, Copy)]
struct Path {
    hash: u64,
    /// Whether its last level is `+` instead of the topic's.
    plus: bool,
}

/// Levels of the path without `+` that are asked for ahead.
const AHEAD: usize = 8;

/// A topic, split, and the tables in which it is looked up.
struct Lookup<'a, 'g, D: Destination> {
    index: &'g Index<D>,
    nodes: View<'g, Node>,
    guard: &'g Guard<'g>,
    text: &'a str,
    levels: &'a [Level],
    /// Whether `levels` is all of the topic, which may be longer than any filter.
    whole: bool,
    /// A topic that starts with `$` is matched by no wildcard at the first level [MQTT-4.7.2-1].
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
        let Scratch { levels, paths, next, found, ancestors } = scratch;
        let text = topic.as_str();
        found.clear();
        let whole = split(text, &self.hasher, self.limits.levels_max, levels);
        let lookup = Lookup {
            index: self,
            nodes: self.nodes.view(guard),
            guard,
            text,
            levels,
            whole,
            hidden: text.starts_with('$'),
        };
        let exacts = self.exacts.view(guard);
        let exact = whole.then(|| self.hasher.exact(lookup.ask_ahead()));
        if let Some(hash) = exact {
            exacts.prefetch(hash);
        }
        if !lookup.walk(paths, next, found) {
            found.clear();
            lookup.try_shapes(ancestors, found);
        }
        if let Some(hash) = exact
            // SAFETY: the guard keeps the entry's name.
            && let Some(slot) = exacts.find(hash, |slot| unsafe { self.exact_name(slot) } == text.as_bytes())
        {
            self.push(slot.destinations.load(Ordering::Acquire), found);
        }
        if !self.strays.is_empty() {
            self.strays.matching(topic).for_each(|reference| self.push(reference, found));
        }
        found.iter().for_each(|reference| self.destinations.extend(*reference, out, guard));
        found.len()
    }

    /// Takes note of what an entry refers to, and asks for it.
    #[inline(always)]
    fn push(&self, reference: u32, found: &mut Vec<u32>) {
        if reference != 0 {
            self.destinations.prefetch(reference);
            found.push(reference);
        }
    }
}

impl<'g, D: Destination> Lookup<'_, 'g, D> {
    /// Starts loading the nodes of the path without `+`, whose hash is returned.
    #[inline(always)]
    fn ask_ahead(&self) -> u64 {
        let hasher = &self.index.hasher;
        let mut path = hasher.root;
        let any = self.index.root.children.kinds().has_names();
        for (i, level) in self.levels.iter().enumerate() {
            path = hasher.child(path, level.hash);
            if i < AHEAD && any {
                self.nodes.prefetch(path);
            }
        }
        path
    }

    /// The node of a path whose ancestors are known to be right, given the last level of it.
    #[inline(always)]
    fn node(&self, path: Path, level: &Level) -> Option<&'g Node> {
        let names = &self.index.names;
        self.nodes.find(path.hash, |node| {
            let name = node.name();
            match path.plus {
                true => name == Packed::PLUS,
                // SAFETY: names of nodes are of this arena, and the view's guard keeps them.
                false => unsafe { names.is(name, level, self.text) },
            }
        })
    }

    /// Follows all paths of the topic through the tree. False when there are so many that trying shapes is quicker.
    fn walk(&self, paths: &mut Vec<Path>, next: &mut Vec<Path>, found: &mut Vec<u32>) -> bool {
        let (index, hasher) = (self.index, &self.index.hasher);
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
        let mut visits = 0;
        for (i, level) in self.levels.iter().enumerate() {
            visits += paths.len();
            if visits > index.limits.visits_max && visits > 2 * index.shapes.list(self.guard).len() {
                return false;
            }
            let below = self.levels.get(i + 1);
            next.clear();
            for path in paths.iter() {
                let Some(node) = self.node(*path, level) else { continue };
                // `a/#` matches `a` as well as all below it.
                index.push(node.below.load(Ordering::Acquire), found);
                let Some(below) = below else {
                    if self.whole {
                        index.push(node.exact.load(Ordering::Acquire), found);
                    }
                    continue;
                };
                let kinds = node.children.kinds();
                if kinds.has_names() {
                    self.step(hasher.child(path.hash, below.hash), false, next);
                }
                if kinds.has_plus() {
                    self.step(hasher.child(path.hash, hasher.plus), true, next);
                }
            }
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
    fn try_shapes(&self, ancestors: &mut Vec<u64>, found: &mut Vec<u32>) {
        let (index, hasher) = (self.index, &self.index.hasher);
        ancestors.clear();
        ancestors.push(hasher.root);
        let mut plus = 0u128;
        for shape in index.shapes.list(self.guard) {
            let length = usize::from(shape.levels);
            let fits = match shape.rest {
                true => length <= self.levels.len(),
                false => length == self.levels.len() && self.whole,
            };
            if !fits || self.hidden && (length == 0 || shape.has_plus(0)) {
                continue;
            }
            // Shapes are sorted, so that one shares its first levels with the one before.
            ancestors.truncate(1 + (plus ^ shape.plus).leading_zeros() as usize);
            plus = shape.plus;
            while ancestors.len() <= length {
                let at = ancestors.len() - 1;
                let level = if shape.has_plus(at) { hasher.plus } else { self.levels[at].hash };
                ancestors.push(hasher.child(ancestors[at], level));
            }
            if length == 0 {
                index.push(index.root.below.load(Ordering::Acquire), found);
                continue;
            }
            let node = |depth: usize| {
                let plus = shape.has_plus(depth - 1);
                self.node(Path { hash: ancestors[depth], plus }, &self.levels[depth - 1])
            };
            let Some(last) = node(length) else { continue };
            let cell = if shape.rest { &last.below } else { &last.exact };
            let reference = cell.load(Ordering::Acquire);
            // A path is the right one if each of its levels is.
            if reference != 0 && (1..length).all(|depth| node(depth).is_some()) {
                index.push(reference, found);
            }
        }
    }
}
