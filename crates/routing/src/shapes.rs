//! Which shapes the filters with wildcards have: where their `+` are, how long they are, and whether they end in `#`.
//!
//! For one topic and one shape there is one filter that can match. When a topic leads along very many paths of the
//! tree, trying each shape is bounded where following each path is not.

use std::collections::BTreeMap;

use crate::epoch::Guard;
use crate::limbo::Bin;
use crate::limits::{EVERYDAY_LEVELS_MAX, EVERYDAY_PLUS_MAX, LEVELS_MAX};
use crate::names::{Level, Packed};
use crate::strip::Strip;
use crate::sync::{AtomicPtr, Ordering};

/// What is left of a filter without its names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    /// A bit for each `+`, the first level's the most significant.
    pub plus: u128,
    /// Levels without the `#`.
    pub levels: u8,
    /// Whether it ends in `#`.
    pub rest: bool,
}

const _: () = assert!(LEVELS_MAX <= u128::BITS as usize);

impl Shape {
    /// Of levels that do not have the `#` among them.
    pub fn of(levels: &[Level], rest: bool) -> Shape {
        let mut plus = 0;
        for (i, level) in levels.iter().enumerate() {
            if level.name == Packed::PLUS {
                plus |= Shape::bit(i);
            }
        }
        Shape { plus, levels: levels.len() as u8, rest }
    }

    fn bit(level: usize) -> u128 {
        1 << (u128::BITS as usize - 1 - level)
    }

    #[inline(always)]
    pub fn has_plus(&self, level: usize) -> bool {
        self.plus & Shape::bit(level) != 0
    }

    /// Shapes that are always admitted: there are about two thousand of them.
    fn is_everyday(&self) -> bool {
        self.plus == 0
            || self.plus.count_ones() <= EVERYDAY_PLUS_MAX && usize::from(self.levels) <= EVERYDAY_LEVELS_MAX
    }
}

/// The shapes that exist, for readers.
pub struct Shapes {
    list: AtomicPtr<u8>,
}

/// How many filters have each shape: the writer's half.
#[derive(Default)]
pub struct ShapeCounts {
    counts: BTreeMap<Shape, u32>,
    others: usize,
}

type List = Strip<(), Shape>;

impl Shapes {
    pub fn new() -> Shapes {
        Shapes { list: AtomicPtr::new(List::allocate((), 0).as_ptr()) }
    }

    /// In ascending order.
    pub fn list<'g>(&self, _: &'g Guard<'_>) -> &'g [Shape] {
        // SAFETY: always a list that is written in full, kept by the guard.
        unsafe {
            let list = List::from_ptr(self.list.load(Ordering::Acquire));
            list.slice(list.capacity())
        }
    }

    /// Whether one more filter of this shape may be added with no more than `others_max` other than everyday ones.
    pub fn admits(writer: &ShapeCounts, shape: Shape, others_max: usize) -> bool {
        shape.is_everyday() || writer.others < others_max || writer.counts.contains_key(&shape)
    }

    /// One filter more has this shape; called before readers can find it.
    pub fn add(&self, writer: &mut ShapeCounts, shape: Shape, bin: &mut Bin<'_>) {
        let count = writer.counts.entry(shape).or_insert(0);
        *count += 1;
        if *count == 1 {
            writer.others += usize::from(!shape.is_everyday());
            self.publish(writer, bin);
        }
    }

    /// One filter less has this shape; called when readers no longer find it.
    pub fn remove(&self, writer: &mut ShapeCounts, shape: Shape, bin: &mut Bin<'_>) {
        let count = writer.counts.get_mut(&shape).expect("the shape was counted");
        *count -= 1;
        if *count == 0 {
            writer.counts.remove(&shape);
            writer.others -= usize::from(!shape.is_everyday());
            self.publish(writer, bin);
        }
    }

    fn publish(&self, writer: &ShapeCounts, bin: &mut Bin<'_>) {
        let new = List::allocate((), writer.counts.len());
        for (i, shape) in writer.counts.keys().enumerate() {
            // SAFETY: within the capacity just allocated.
            unsafe { new.entries().add(i).write(*shape) };
        }
        let old = self.list.swap(new.as_ptr(), Ordering::AcqRel);
        // SAFETY: a list of this type, which nobody can newly find and which is retired here alone.
        bin.retire_memory(unsafe { List::from_ptr(old).into_memory() });
    }

    pub fn bytes(writer: &ShapeCounts) -> usize {
        // The list and, about as large again, the map.
        List::bytes(writer.counts.len()) * 2
    }

    pub fn counts(writer: &ShapeCounts) -> impl Iterator<Item = (Shape, u32)> {
        writer.counts.iter().map(|(shape, count)| (*shape, *count))
    }
}

impl Drop for Shapes {
    fn drop(&mut self) {
        // SAFETY: nobody else is left.
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
        Shape::of(&split.levels, filter.ends_with("/#"))
    }

    #[test]
    fn filters_that_differ_in_names_only_have_one_shape() {
        assert_eq!(shape("a/+/c/#"), shape("x/+//#"));
        for other in ["a/b/c/#", "+/b/c/#", "a/+/c", "a/+/#", "a/+/c/d/#"] {
            assert_ne!(shape("a/+/c/#"), shape(other), "{other}");
        }
    }

    #[test]
    fn everyday_shapes_need_no_admission() {
        let (none, long) = (ShapeCounts::default(), "a/".repeat(100));
        for filter in ["+/+/c", "a/b/c/d/e/f/#", "+", &(long.clone() + "#")] {
            assert!(Shapes::admits(&none, shape(filter), 0), "{filter}");
        }
        for filter in ["+/+/+/d", &(long + "+")] {
            assert!(!Shapes::admits(&none, shape(filter), 0), "{filter}");
            assert!(Shapes::admits(&none, shape(filter), 1), "{filter}");
        }
    }
}
