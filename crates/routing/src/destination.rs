//! What the index stores beside a Topic Filter.

/// What a Topic Filter leads to.
///
/// The key says who; everything else rides along and is replaced by a later insert with the same filter and key.
pub trait Destination: Copy + Send + Sync + 'static {
    /// Identifies the destination within one Topic Filter.
    type Key: Copy + Eq;
    /// The key of this destination.
    fn key(&self) -> Self::Key;
}
