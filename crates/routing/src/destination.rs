//! Destination that the index stores with a Topic Filter.

use std::hash::Hash;

/// A destination of a Topic Filter.
///
/// The key identifies it. A later insert with the same filter and key replaces all other fields.
pub trait Destination: Copy + Send + Sync + 'static {
    /// Key of the destination within one Topic Filter. It is hashed to find the destination among thousands of the
    /// same filter.
    type Key: Copy + Eq + Hash;
    /// Returns the key of this destination.
    fn key(&self) -> Self::Key;
}
