//! Who wants this topic: one index from Topic Filters to destinations, shared by every reactor.
//!
//! Start with [`Index`], which writers change, and [`Reader`], through which one thread asks it.
//!
//! **Invariant:** routing knows neither sessions nor protocol versions: a destination is an opaque `Copy` value.

mod destination;
mod index;
mod limits;
mod reader;

pub use destination::Destination;
pub use index::{Index, Inserted, Removed};
pub use limits::{IndexFull, IndexLimits};
pub use reader::Reader;
