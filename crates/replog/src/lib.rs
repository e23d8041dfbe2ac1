//! Maps with one writer each, replicated to many readers: no round trip for a change, and no conflict. No I/O, clocks or randomness.
//!
//! Read [`Replica`] first: what one node holds of all writers, its own map among them. A [`Feed`] is what one peer is sent of it, as
//! [`Delta`]s, which the peer's replica applies. Any node can feed any writer's changes on, for every entry carries its position.
//!
//! **Invariant:** a replica holds for each key of a writer the last operation that it has heard of, in whatever order and however often
//! deltas come; its position in a writer's changes is one before which it has heard of all.

#![forbid(unsafe_code)]

mod delta;
mod feed;
mod id;
mod log;
mod replica;

pub use delta::{CopyPart, Delta, DeltaError, Operation, Value};
pub use feed::{Batching, Feed};
pub use id::{Incarnation, Position, WriterId};
pub use replica::{Applied, Change, NotApplied, Replica, SourceId};
