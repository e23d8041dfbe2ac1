//! Limits of an index and the errors at them.

use std::fmt;

/// Limits of an [`Index`](crate::Index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Maximum number of levels of a Topic Filter. At most [`LEVELS_MAX`], which is the default.
    pub levels_max: usize,
    /// Maximum number of different unusual shapes. A shape is the positions of the `+`, the number of levels, and
    /// whether there is a `#` at the end. Shapes without `+`, or with at most [`EVERYDAY_PLUS_MAX`] of them in at
    /// most [`EVERYDAY_LEVELS_MAX`] levels, are always allowed and do not count. Default [`SHAPES_MAX`].
    ///
    /// A match never takes longer than trying every shape once. So this bounds the effect of one client's odd
    /// filters on others, and everyday filters are never refused for them. Only
    /// [`Index::reserve_shape`](crate::Index::reserve_shape) checks this limit: a filter that was granted, here or
    /// on another node, is always inserted.
    pub shapes_max: usize,
    /// Maximum number of shapes with which a match looks up the one filter of each shape instead of following the
    /// tree. Default [`TRIES_MAX`].
    pub tries_max: usize,
    /// Maximum number of nodes of the tree that a match visits before it tries shapes instead. It does so only if
    /// there are fewer than half as many shapes. Default [`VISITS_MAX`].
    pub visits_max: usize,
}

/// Maximum number of levels of a filter in any index.
pub const LEVELS_MAX: usize = u16::MAX as usize;
/// Number of first levels of a filter that may be `+` in the tree. Filters with a deeper `+` are matched one by
/// one.
pub const PLUS_LEVELS_MAX: usize = u128::BITS as usize;
/// Default of [`IndexLimits::shapes_max`].
pub const SHAPES_MAX: usize = 1024;
/// Default of [`IndexLimits::tries_max`]: a try costs about a third of a step in the tree.
pub const TRIES_MAX: usize = 24;
/// Default of [`IndexLimits::visits_max`].
pub const VISITS_MAX: usize = 512;
/// Maximum number of `+` in a filter whose shape is always allowed.
pub const EVERYDAY_PLUS_MAX: u32 = 2;
/// Maximum number of levels of a filter with `+` whose shape is always allowed.
pub const EVERYDAY_LEVELS_MAX: usize = 16;

impl Default for IndexLimits {
    fn default() -> IndexLimits {
        IndexLimits {
            levels_max: LEVELS_MAX,
            shapes_max: SHAPES_MAX,
            tries_max: TRIES_MAX,
            visits_max: VISITS_MAX,
        }
    }
}

/// Reason why a Topic Filter was not inserted. The index is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexFull {
    /// The filter has more levels than `levels_max`, see [`IndexLimits::levels_max`].
    Levels {
        /// The limit.
        levels_max: usize,
    },
    /// The 32-bit numbers of destinations or of names are used up: about two billion destinations, or 8 GB of long
    /// names.
    Numbers,
}

impl fmt::Display for IndexFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexFull::Levels { levels_max } => {
                write!(f, "the Topic Filter has more than {levels_max} levels")
            }
            IndexFull::Numbers => write!(f, "the routing index is full"),
        }
    }
}

impl std::error::Error for IndexFull {}

/// Reason why no unusual shape was reserved. The index is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapesFull {
    /// The index has `shapes_max` unusual shapes already, see [`IndexLimits::shapes_max`].
    Index {
        /// The limit.
        shapes_max: usize,
    },
    /// One of the owners is charged with its maximum number of unusual shapes already.
    Owner {
        /// Index of the owner in the [`ShapeOwners`].
        owner: usize,
        /// The owner's limit.
        shapes_max: u32,
    },
}

impl fmt::Display for ShapesFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapesFull::Index { shapes_max } => {
                write!(f, "{shapes_max} unusual arrangements of wildcards are in use and this is another")
            }
            ShapesFull::Owner { shapes_max, .. } => {
                write!(f, "{shapes_max} unusual arrangements of wildcards are charged to the same owner")
            }
        }
    }
}

impl std::error::Error for ShapesFull {}

/// Owners to whom one new unusual shape is charged, each with its maximum number of shapes. An owner is any number
/// but 0, which stands for no owner.
pub type ShapeOwners = [(u64, u32); 3];
