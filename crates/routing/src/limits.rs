//! Bounds of an index and what happens at them.

use std::fmt;

/// Bounds of an [`Index`](crate::Index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Most levels of a Topic Filter. At most [`LEVELS_MAX`], which is the default.
    pub levels_max: usize,
    /// Most different shapes (where a filter has its `+`, how many levels, whether it ends in `#`) besides those that
    /// are always allowed: without `+`, or with at most [`EVERYDAY_PLUS_MAX`] of them in at most
    /// [`EVERYDAY_LEVELS_MAX`] levels. Default [`SHAPES_MAX`].
    ///
    /// A match never takes longer than trying every shape once, so this bounds what one client's odd filters can do
    /// to others, while everyday filters are never refused for them. Only [`Index::reserve_shape`](crate::Index::reserve_shape)
    /// looks at this limit: a filter that was granted, here or on another node, is always inserted.
    pub shapes_max: usize,
    /// With no more shapes than this, a match looks up the one filter of each that can match instead of following
    /// the tree. Default [`TRIES_MAX`].
    pub tries_max: usize,
    /// How many nodes of the tree a match may visit before it turns to trying shapes instead, provided that there
    /// are fewer than half as many of those. Default [`VISITS_MAX`].
    pub visits_max: usize,
}

/// Levels that a filter can have in any index.
pub const LEVELS_MAX: usize = u16::MAX as usize;
/// Number of first levels of a filter that may be `+` in the tree. Filters with a deeper `+` are matched one by one.
pub const PLUS_LEVELS_MAX: usize = u128::BITS as usize;
/// Default of [`IndexLimits::shapes_max`].
pub const SHAPES_MAX: usize = 1024;
/// Default of [`IndexLimits::tries_max`]: a try costs about a third of a step in the tree.
pub const TRIES_MAX: usize = 24;
/// Default of [`IndexLimits::visits_max`].
pub const VISITS_MAX: usize = 512;
/// Most `+` in a filter whose shape is always allowed.
pub const EVERYDAY_PLUS_MAX: u32 = 2;
/// Most levels of a filter with `+` whose shape is always allowed.
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

/// Why a Topic Filter was not inserted. The index is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexFull {
    /// The filter has more levels than `levels_max`, see [`IndexLimits::levels_max`].
    Levels {
        /// The limit.
        levels_max: usize,
    },
    /// The 32-bit numbers of destinations or of names are used up: about two thousand million destinations, or 8 GB of
    /// long names.
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

/// Why no unusual shape was reserved. The index is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapesFull {
    /// There are `shapes_max` unusual shapes already, see [`IndexLimits::shapes_max`].
    Index {
        /// The limit.
        shapes_max: usize,
    },
    /// As many unusual shapes are charged to one of the owners as may be.
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

/// Owners to whom one new unusual shape is charged, each with the number of shapes that it may have. An owner is any number but 0,
/// which stands for nobody.
pub type ShapeOwners = [(u64, u32); 3];
