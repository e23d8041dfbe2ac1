//! Extent of a value: its nesting and its size.

/// Nesting and size of a value. Values can share parts, so a value may have far more parts than it takes memory: every
/// part counts as often as it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Nesting of arrays and objects; 0 for other values.
    pub depth: u16,
    /// Number of values in the value, including itself. `u32::MAX` is any number from there.
    pub size: u32,
}

impl Extent {
    /// Extent of a value without parts.
    pub const LEAF: Self = Self { depth: 0, size: 1 };

    /// Extent of an array or object without parts.
    pub const EMPTY: Self = Self { depth: 1, size: 1 };

    /// Adds a part.
    #[must_use]
    pub fn with(self, part: Self) -> Self {
        Self {
            depth: self.depth.max(part.depth.saturating_add(1)),
            size: self.size.saturating_add(part.size),
        }
    }

    /// Removes a part. The depth stays, because other parts may have it too.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        let size = if self.size == u32::MAX { u32::MAX } else { self.size.saturating_sub(part.size) };
        Self { size, ..self }
    }
}
