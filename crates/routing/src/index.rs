//! The index itself: a trie of levels.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mqtt::{TopicFilter, TopicName};

use crate::{Destination, IndexFull, IndexLimits, Reader};

/// What [`Index::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The filter was not in the index.
    New,
    /// The filter was there with other destinations.
    Added,
    /// The filter already had a destination with this key; the new one took its place.
    Replaced,
}

/// What [`Index::remove`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It was the filter's last destination: the filter is gone.
    Last,
    /// The filter has other destinations left.
    Removed,
    /// There was no such filter, or no such destination of it.
    NotFound,
}

/// Topic Filters and their destinations, shared by all threads in an [`Arc`].
pub struct Index<D: Destination> {
    limits: IndexLimits,
    tree: RwLock<Tree<D>>,
}

struct Tree<D> {
    root: Node<D>,
    filters: usize,
    destinations: usize,
}

struct Node<D> {
    children: HashMap<Box<str>, Node<D>>,
    destinations: Vec<D>,
}

impl<D> Node<D> {
    fn new() -> Node<D> {
        Node { children: HashMap::new(), destinations: Vec::new() }
    }
}

impl<D: Destination> Index<D> {
    /// An empty index. `hash_key` is the process's secret: with it known, a client could make names that collide.
    pub fn new(hash_key: [u8; 16], limits: IndexLimits) -> Index<D> {
        let _keyed_by_std = hash_key;
        Index { limits, tree: RwLock::new(Tree { root: Node::new(), filters: 0, destinations: 0 }) }
    }

    /// Adds a destination to a filter, or replaces the one with the same key.
    pub fn insert(&self, filter: TopicFilter<'_>, destination: D) -> Result<Inserted, IndexFull> {
        let levels = filter.levels().count();
        let levels_max = self.limits.levels_max;
        if levels > levels_max {
            return Err(IndexFull::Levels { levels, levels_max });
        }
        let mut tree = self.write();
        let mut node = &mut tree.root;
        for level in filter.levels() {
            node = node.children.entry(level.into()).or_insert_with(Node::new);
        }
        if let Some(old) = node.destinations.iter_mut().find(|d| d.key() == destination.key()) {
            *old = destination;
            return Ok(Inserted::Replaced);
        }
        node.destinations.push(destination);
        let first = node.destinations.len() == 1;
        tree.destinations += 1;
        tree.filters += usize::from(first);
        Ok(if first { Inserted::New } else { Inserted::Added })
    }

    /// Takes the destination with this key from a filter.
    pub fn remove(&self, filter: TopicFilter<'_>, key: D::Key) -> Removed {
        let mut tree = self.write();
        let levels: Vec<&str> = filter.levels().collect();
        let removed = remove_below(&mut tree.root, &levels, key);
        match removed {
            Removed::Last => {
                tree.filters -= 1;
                tree.destinations -= 1;
            }
            Removed::Removed => tree.destinations -= 1,
            Removed::NotFound => {}
        }
        removed
    }

    /// A way in for the calling thread.
    pub fn reader(self: &Arc<Self>) -> Reader<D> {
        Reader::new(self.clone())
    }

    /// How many pairs of filter and destination there are.
    pub fn len(&self) -> usize {
        self.read().destinations
    }

    /// Whether there is no filter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many different filters there are.
    pub fn filters(&self) -> usize {
        self.read().filters
    }

    /// Bytes of memory held, an estimate.
    pub fn memory(&self) -> usize {
        let tree = self.read();
        tree.filters * 200 + tree.destinations * size_of::<D>()
    }

    /// Calls `f` with every filter and destination, in no particular order.
    pub fn for_each(&self, reader: &Reader<D>, mut f: impl FnMut(&str, D)) {
        let _holds_the_index = reader;
        let tree = self.read();
        let mut name = String::new();
        visit(&tree.root, &mut name, true, &mut f);
    }

    pub(crate) fn matches(&self, topic: TopicName<'_>, out: &mut Vec<D>) -> usize {
        let tree = self.read();
        let levels: Vec<&str> = topic.levels().collect();
        collect(&tree.root, &levels, topic.as_str().starts_with('$'), out)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree<D>> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree<D>> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove_below<D: Destination>(node: &mut Node<D>, levels: &[&str], key: D::Key) -> Removed {
    let Some((first, rest)) = levels.split_first() else {
        let Some(at) = node.destinations.iter().position(|d| d.key() == key) else {
            return Removed::NotFound;
        };
        node.destinations.swap_remove(at);
        return if node.destinations.is_empty() { Removed::Last } else { Removed::Removed };
    };
    let Some(child) = node.children.get_mut(*first) else { return Removed::NotFound };
    let removed = remove_below(child, rest, key);
    if child.destinations.is_empty() && child.children.is_empty() {
        node.children.remove(*first);
    }
    removed
}

/// `hidden`: a name that starts with `$` is not matched by a wildcard at the first level [MQTT-4.7.2-1].
fn collect<D: Destination>(node: &Node<D>, levels: &[&str], hidden: bool, out: &mut Vec<D>) -> usize {
    let mut matched = 0;
    let mut take = |node: &Node<D>, out: &mut Vec<D>| {
        out.extend_from_slice(&node.destinations);
        matched += usize::from(!node.destinations.is_empty());
    };
    // `#` also matches the level above it, so it is looked for after the last level too.
    if !hidden && let Some(child) = node.children.get("#") {
        take(child, out);
    }
    let Some((first, rest)) = levels.split_first() else {
        take(node, out);
        return matched;
    };
    if let Some(child) = node.children.get(*first) {
        matched += collect(child, rest, false, out);
    }
    if !hidden && let Some(child) = node.children.get("+") {
        matched += collect(child, rest, false, out);
    }
    matched
}

fn visit<D: Destination>(node: &Node<D>, name: &mut String, root: bool, f: &mut impl FnMut(&str, D)) {
    for destination in &node.destinations {
        f(name, *destination);
    }
    let length = name.len();
    for (level, child) in &node.children {
        if !root {
            name.push('/');
        }
        name.push_str(level);
        visit(child, name, false, f);
        name.truncate(length);
    }
}
