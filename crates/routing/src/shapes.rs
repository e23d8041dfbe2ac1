//! Shapes of filters with wildcards: the positions of their `+`, their number of levels, and whether they end in
//! `#`.
//!
//! For one topic and one shape there is one filter that can match. When a topic has very many paths in the tree,
//! trying each shape is bounded, and following each path is not.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::epoch::Guard;
use crate::limits::{
    EVERYDAY_LEVELS_MAX, EVERYDAY_PLUS_MAX, LEVELS_MAX, PLUS_LEVELS_MAX, ShapeOwners, ShapesFull,
};
use crate::names::{Level, Packed};
use crate::retired::Bin;
use crate::strip::Strip;
use crate::sync::{AtomicPtr, Ordering};

/// A filter without its names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    /// A bit for each `+`, the first level's the most significant.
    pub plus: u128,
    /// Number of levels without the `#`.
    pub levels: u16,
    /// True when the filter ends in `#`.
    pub rest: bool,
}

const _: () = assert!(LEVELS_MAX <= u16::MAX as usize && PLUS_LEVELS_MAX == u128::BITS as usize);

impl Shape {
    /// Returns the shape of levels, which do not include the `#`. `None` when there is a `+` behind the first
    /// [`PLUS_LEVELS_MAX`] levels.
    #[inline]
    pub fn of(levels: &[Level], rest: bool) -> Option<Shape> {
        let mut plus = 0;
        for (i, level) in levels.iter().enumerate() {
            if level.name == Packed::PLUS {
                if i >= PLUS_LEVELS_MAX {
                    return None;
                }
                plus |= Shape::bit(i);
            }
        }
        Some(Shape { plus, levels: levels.len() as u16, rest })
    }

    fn bit(level: usize) -> u128 {
        1 << (u128::BITS as usize - 1 - level)
    }

    #[inline(always)]
    pub fn has_plus(&self, level: usize) -> bool {
        level < PLUS_LEVELS_MAX && self.plus & Shape::bit(level) != 0
    }

    /// Returns whether the shape is always allowed: there are about two thousand of them.
    fn is_everyday(&self) -> bool {
        self.plus == 0 && usize::from(self.levels) <= PLUS_LEVELS_MAX
            || self.plus.count_ones() <= EVERYDAY_PLUS_MAX && usize::from(self.levels) <= EVERYDAY_LEVELS_MAX
    }
}

/// The existing shapes, for readers.
pub struct Shapes {
    list: AtomicPtr<u8>,
}

/// Writer's half: the number of filters with each shape.
#[derive(Default)]
pub struct ShapeCounts {
    counts: BTreeMap<Shape, Uses>,
    others: usize,
    /// Number of unusual shapes that are charged to each owner.
    charged: HashMap<u64, u32>,
}

/// Users of a shape.
#[derive(Clone, Copy, Default)]
struct Uses {
    filters: u32,
    /// Number of reservations of filters that are about to be inserted.
    reservations: u32,
    /// Owners to whom the shape is charged; 0 for none.
    owners: [u64; OWNERS],
}

const OWNERS: usize = std::mem::size_of::<ShapeOwners>() / std::mem::size_of::<(u64, u32)>();

type List = Strip<(), Shape>;

impl Shapes {
    pub fn new() -> Shapes {
        Shapes { list: AtomicPtr::new(List::allocate((), 0).as_ptr()) }
    }

    /// Returns the shapes in ascending order.
    pub fn list<'g>(&self, _: &'g Guard<'_>) -> &'g [Shape] {
        // SAFETY: always a completely written list, kept by the guard.
        unsafe {
            let list = List::from_ptr(self.list.load(Ordering::Acquire));
            list.slice(list.capacity())
        }
    }

    /// Reserves an unusual shape for a filter that is about to be inserted, and charges it to `owners` if it is
    /// new. Returns false when the shape is an everyday one, which is not reserved.
    pub fn reserve(
        &self,
        writer: &mut ShapeCounts,
        shape: Shape,
        owners: &ShapeOwners,
        others_max: usize,
        bin: &mut Bin<'_>,
    ) -> Result<bool, ShapesFull> {
        if shape.is_everyday() {
            return Ok(false);
        }
        if !writer.counts.contains_key(&shape) {
            for (owner, (key, shapes_max)) in owners.iter().enumerate() {
                if *key != 0 && writer.charged.get(key).is_some_and(|charged| charged >= shapes_max) {
                    return Err(ShapesFull::Owner { owner, shapes_max: *shapes_max });
                }
            }
            if writer.others >= others_max {
                return Err(ShapesFull::Index { shapes_max: others_max });
            }
        }
        self.change(writer, shape, bin, |uses| uses.reservations += 1);
        writer.charge(shape, owners);
        Ok(true)
    }

    /// Ends a reservation of [`Self::reserve`].
    pub fn release(&self, writer: &mut ShapeCounts, shape: Shape, bin: &mut Bin<'_>) {
        self.change(writer, shape, bin, |uses| uses.reservations -= 1);
    }

    /// Adds a filter with this shape. Called before readers can find the filter.
    pub fn add(&self, writer: &mut ShapeCounts, shape: Shape, bin: &mut Bin<'_>) {
        self.change(writer, shape, bin, |uses| uses.filters += 1);
    }

    /// Removes a filter with this shape. Called when readers no longer find the filter.
    pub fn remove(&self, writer: &mut ShapeCounts, shape: Shape, bin: &mut Bin<'_>) {
        self.change(writer, shape, bin, |uses| uses.filters -= 1);
    }

    fn change(
        &self,
        writer: &mut ShapeCounts,
        shape: Shape,
        bin: &mut Bin<'_>,
        change: impl FnOnce(&mut Uses),
    ) {
        match writer.counts.entry(shape) {
            Entry::Occupied(mut known) => {
                change(known.get_mut());
                if known.get().is_used() {
                    return;
                }
                let uses = known.remove();
                if !shape.is_everyday() {
                    writer.others -= 1;
                    uses.owners
                        .into_iter()
                        .filter(|owner| *owner != 0)
                        .for_each(|owner| writer.discharge(owner));
                }
            }
            Entry::Vacant(new) => {
                change(new.insert(Uses::default()));
                writer.others += usize::from(!shape.is_everyday());
            }
        }
        self.publish(writer, bin);
    }

    fn publish(&self, writer: &ShapeCounts, bin: &mut Bin<'_>) {
        let new = List::allocate((), writer.counts.len());
        for (i, shape) in writer.counts.keys().enumerate() {
            // SAFETY: within the capacity just allocated.
            unsafe { new.entries().add(i).write(*shape) };
        }
        let old = self.list.swap(new.as_ptr(), Ordering::AcqRel);
        // SAFETY: a list of this type, which no reader can newly find and which is retired only here.
        bin.retire_memory(unsafe { List::from_ptr(old).into_memory() });
    }

    pub fn bytes(writer: &ShapeCounts) -> usize {
        // The list and, about as large again, the map.
        List::bytes(writer.counts.len()) * 2
    }

    pub fn counts(writer: &ShapeCounts) -> impl Iterator<Item = (Shape, u32)> {
        writer.counts.iter().map(|(shape, uses)| (*shape, uses.filters))
    }

    /// Number of unusual shapes.
    pub fn unusual(writer: &ShapeCounts) -> usize {
        writer.others
    }
}

impl Uses {
    fn is_used(&self) -> bool {
        self.filters > 0 || self.reservations > 0
    }
}

impl ShapeCounts {
    /// Charges a shape that is not charged to an owner.
    pub fn charge(&mut self, shape: Shape, owners: &ShapeOwners) {
        let Some(uses) = self.counts.get_mut(&shape).filter(|_| !shape.is_everyday()) else { return };
        if uses.owners != [0; OWNERS] {
            return;
        }
        uses.owners = owners.map(|(owner, _)| owner);
        for owner in uses.owners.into_iter().filter(|owner| *owner != 0) {
            *self.charged.entry(owner).or_insert(0) += 1;
        }
    }

    fn discharge(&mut self, owner: u64) {
        if let Some(charged) = self.charged.get_mut(&owner) {
            *charged -= 1;
            if *charged == 0 {
                self.charged.remove(&owner);
            }
        }
    }
}

impl Drop for Shapes {
    fn drop(&mut self) {
        // SAFETY: there is no other user left.
        unsafe { List::from_ptr(self.list.load(Ordering::Relaxed)).into_memory().free() };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::hash::PathHasher;
    use crate::names::Split;

    fn shape(filter: &str) -> Shape {
        let mut split = Split::default();
        assert!(split.split(filter.trim_end_matches("/#"), &PathHasher::new([0; 16]), 128));
        Shape::of(&split.levels, filter.ends_with("/#")).expect("no deep `+`")
    }

    #[test]
    fn filters_that_differ_only_in_names_have_one_shape() {
        assert_eq!(shape("a/+/c/#"), shape("x/+//#"));
        for other in ["a/b/c/#", "+/b/c/#", "a/+/c", "a/+/#", "a/+/c/d/#"] {
            assert_ne!(shape("a/+/c/#"), shape(other), "{other}");
        }
    }

    #[test]
    fn everyday_shapes_are_not_reserved() {
        for filter in ["+/+/c", "a/b/c/d/e/f/#", "+", &("a/".repeat(100) + "#")] {
            assert!(shape(filter).is_everyday(), "{filter}");
        }
        for filter in ["+/+/+/d", &("a/".repeat(100) + "+")] {
            assert!(!shape(filter).is_everyday(), "{filter}");
        }
    }
}
