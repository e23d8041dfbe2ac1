//! Iteration over the whole index, for operators and for tests.

use crate::epoch::Guard;
use crate::slot::{Node, Slot};
use crate::sync::Ordering;
use crate::table::View;
use crate::{Destination, Index, Reader};

impl<D: Destination> Index<D> {
    /// Calls `f` with every filter and each of its destinations, in no particular order.
    ///
    /// `reader` belongs to this index. Filters that exist before and after the call are reported; those added or
    /// removed during the call may or may not be. No memory is reclaimed until the call returns.
    ///
    /// # Panics
    /// Panics when `reader` belongs to another index.
    pub fn for_each(&self, reader: &Reader<D>, mut f: impl FnMut(&str, D)) {
        assert!(std::ptr::eq(self, &raw const **reader.index()), "the reader belongs to another index");
        let inside = reader.enter();
        let guard = &inside.guard;
        let mut destinations = Vec::new();
        let mut report = |name: &[u8], reference: u32| {
            destinations.clear();
            self.destinations.extend(reference, &mut destinations, guard);
            if !destinations.is_empty() {
                let name = std::str::from_utf8(name).expect("names come from text");
                destinations.iter().for_each(|destination| f(name, *destination));
            }
        };
        report(b"#", self.root.below.load(Ordering::Acquire));
        for unindexed_filter in self.unindexed.iter() {
            report(unindexed_filter.filter.as_bytes(), unindexed_filter.destinations.load(Ordering::Acquire));
        }
        self.exacts.view(guard).for_each(|slot| {
            // SAFETY: the view shows entries whose hash was seen, and the guard keeps them.
            report(unsafe { self.exact_name(slot) }, slot.destinations.load(Ordering::Acquire));
        });
        let nodes = self.nodes.view(guard);
        let mut name = Vec::new();
        nodes.for_each(|node| {
            let (below, exact) = (node.below.load(Ordering::Acquire), node.exact.load(Ordering::Acquire));
            if below | exact == 0 || !self.name_path(node, nodes, &mut name, guard) {
                return;
            }
            report(&name, exact);
            name.extend_from_slice(b"/#");
            report(&name, below);
        });
    }

    /// Writes the path of a node, which is found from its end to its beginning. Returns false if the node was
    /// removed in the meantime.
    fn name_path(&self, node: &Node, nodes: View<'_, Node>, name: &mut Vec<u8>, _: &Guard<'_>) -> bool {
        name.clear();
        let (mut packed, mut hash) = (node.name(), node.hash());
        let mut level = Vec::new();
        loop {
            level.clear();
            // SAFETY: names of nodes are in this arena, and the guard keeps them.
            unsafe { self.names.append(packed, &mut level) };
            hash = self.hasher.parent(hash, self.hasher.level(&level));
            // The name is reversed here, and the whole path at the end.
            name.extend(level.iter().rev());
            if hash == self.hasher.root {
                name.reverse();
                return true;
            }
            name.push(b'/');
            match nodes.find(hash, |_| true) {
                Some(parent) => packed = parent.name(),
                None => return false,
            }
        }
    }

    /// Checks the invariants that hold between any two changes. For tests: there must be no writer during the call.
    ///
    /// # Panics
    /// Panics when an invariant does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self, reader: &Reader<D>) {
        let inside = reader.enter();
        let nodes = self.nodes.view(&inside.guard);
        let (mut live, mut children, mut filters) = (0, 0, 0);
        nodes.for_each(|node| {
            if !node.is_live() {
                return;
            }
            live += 1;
            children += node.children.kinds().count();
            filters +=
                [&node.below, &node.exact].iter().filter(|cell| cell.load(Ordering::Relaxed) != 0).count();
            let mut name = Vec::new();
            assert!(self.name_path(node, nodes, &mut name, &inside.guard), "a live node has live ancestors");
            let same = nodes.find(node.hash(), |_| true).expect("a node is found by its hash");
            assert!(std::ptr::eq(same, node), "a hash is in the table once");
        });
        children += self.root.children.kinds().count();
        assert_eq!(live, children, "every live node is counted by its parent");
        assert_eq!(self.nodes.live(), live);
        filters += usize::from(self.root.below.load(Ordering::Relaxed) != 0);
        self.check_shapes(filters);
        filters += self.unindexed.live();
        let exacts = self.exacts.view(&inside.guard);
        let mut live = 0;
        exacts.for_each(|slot| live += usize::from(slot.is_live()));
        assert_eq!(self.exacts.live(), live);
        assert_eq!(self.filters(), filters + live);
        drop(inside);
        let mut pairs = 0;
        self.for_each(reader, |_, _| pairs += 1);
        assert_eq!(self.len(), pairs);
    }
}
