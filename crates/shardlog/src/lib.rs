//! The shards of a broker on the log of `storage`: what of them is written, who is told of it, and how a node's life begins where the
//! last one ended. Threads, files and clocks are the caller's, so the program and the simulator run the same code.
//!
//! Read [`ShardLog`] first; [`restore`] is the way back.
//!
//! **Invariant:** a shard is told of nothing that the log has not told.

#![forbid(unsafe_code)]

mod log;
mod moment;
mod restore;

pub use log::{EventForwarder, LogNotifier, META, MetaListener, ReadRequest, ShardLog, group_of};
pub use moment::Moment;
pub use restore::{incarnation, records, restore, sort, take_meta};
