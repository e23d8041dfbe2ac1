//! Maps with one writer each, replicated to many readers: no round trip for a change, and no conflict. No I/O, clocks
//! or randomness.
//!
//! Read [`Replica`] first: one node's state of all writers, its own map among them. A [`Feed`] sends [`Delta`]s of it
//! to one peer, whose replica applies them. Any node can feed the changes of any writer, because every entry carries
//! its position.
//!
//! **Invariant:** a replica holds for each key of a writer the last operation that it has received, in whatever order
//! and however often deltas arrive. It has received all changes of a writer up to its position.

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
