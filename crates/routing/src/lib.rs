//! Routing: one index from Topic Filters to destinations, shared by all reactors.
//!
//! Start with [`Index`], which writers change, and [`Reader`], by which one thread queries it. Its design and the
//! reasons: `docs/adr/0001-routing-index.md`.
//!
//! **Invariant:** routing knows neither sessions nor protocol versions: a destination is an opaque `Copy` value.
//!
//! **Invariant:** a reader never waits. Memory that it may access is freed only after it has been quiescent.

mod destination;
mod destinations;
mod dump;
mod hash;
mod index;
mod large;
mod limits;
mod matching;
mod names;
mod pool;
mod prefetch;
mod reader;
mod retired;
mod shapes;
mod strip;
mod table;
mod unindexed;
mod units;
mod writing;

#[cfg(all(test, not(loom)))]
mod collisions;

#[cfg(not(loom))]
mod epoch;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod sync;

/// Public only for the tests with the model checker.
#[cfg(loom)]
pub mod epoch;
#[cfg(loom)]
pub mod slot;
#[cfg(loom)]
pub mod sync;

pub use destination::Destination;
pub use index::{Index, Inserted, Removed};
pub use limits::{
    EVERYDAY_LEVELS_MAX, EVERYDAY_PLUS_MAX, IndexFull, IndexLimits, LEVELS_MAX, PLUS_LEVELS_MAX, SHAPES_MAX,
    ShapeOwners, ShapesFull, TRIES_MAX, VISITS_MAX,
};
pub use reader::Reader;
