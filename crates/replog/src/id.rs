/// Who writes a map: a node, or a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

/// A life of a writer; it only grows, unless the writer has lost its number and its earlier lives were declared dead. What an earlier one wrote is void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// How many changes of an incarnation there are before and with the one that stands there; 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);
