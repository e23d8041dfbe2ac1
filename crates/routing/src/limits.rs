//! Bounds of an index and what happens at them.

use std::fmt;

/// Bounds of an [`Index`](crate::Index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLimits {
    /// Most levels of a Topic Filter, 1 to 128. Default 128.
    pub levels_max: usize,
}

impl Default for IndexLimits {
    fn default() -> IndexLimits {
        IndexLimits { levels_max: 128 }
    }
}

/// Why a Topic Filter was not inserted. The index is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexFull {
    /// The filter has more levels than [`IndexLimits::levels_max`].
    Levels {
        /// Levels of the filter.
        levels: usize,
        /// The limit.
        levels_max: usize,
    },
}

impl fmt::Display for IndexFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexFull::Levels { levels, levels_max } => {
                write!(f, "a Topic Filter of {levels} levels where {levels_max} are allowed")
            }
        }
    }
}

impl std::error::Error for IndexFull {}
