//! What the index stores beside a Topic Filter.

use std::hash::Hash;

/// What a Topic Filter leads to.
///
/// The key says who; everything else rides along and is replaced by a later insert with the same filter and key.
pub trait Destination: Copy + Send + Sync + 'static {
    /// Identifies the destination within one Topic Filter. Hashed to find it among thousands of the same filter.
    type Key: Copy + Eq + Hash;
    /// The key of this destination.
    fn key(&self) -> Self::Key;
}
