//! Storage: one segmented log on disk for all groups of a node, with the groups' checkpoints in it.
//!
//! [`open`] verifies the files, cuts a torn tail and returns [`Opened`]. That holds a [`Log`] to append to and to
//! read from, and the [`Writer`] and the [`Keeper`] that work for it (on threads: [`spawn`]; in tests: call by
//! call). Its [`Recovery`] gives each group its checkpoint and the entries after it. [`RealDisk`] is a directory;
//! [`fault::FaultDisk`] is one in memory that loses power.
//!
//! **Invariant:** what was reported durable is read back unchanged and in order, or an error says where it is
//! damaged; a record that was never appended is never read. **Invariant:** only the last group commit may be cut,
//! and it is cut whole. **Invariant:** what a group had before it was dropped is never read again once the drop is
//! reported. **Invariant:** after a failed write or sync nothing is reported durable any more.
//! **Invariant:** the crate does not interpret payloads.

#![forbid(unsafe_code)]

mod body_index;
mod disk;
mod entries;
mod error;
mod events;
pub mod fault;
mod header;
mod histogram;
mod id;
mod identity;
mod keeper;
mod layout;
mod load;
mod log;
#[cfg(feature = "trial")]
mod mutation;
pub mod offline;
mod open;
mod options;
mod part_index;
mod queue;
mod record;
mod recovery;
mod scan;
mod segment;
mod segment_index;
mod spare;
mod state;
mod stats;
mod threads;
#[cfg(feature = "trial")]
pub mod trial;
mod writer;

pub use disk::{Disk, DiskFile, LOCK_FILE, Pause, RealDisk};
pub use error::{Corrupt, Error, Lost, Shortage};
pub use events::{ForEachEvent, LogEvent, LogListener, Vacate};
pub use histogram::Histogram;
pub use id::{GroupId, SegmentId};
pub use identity::{IDENTITY_FILE, Identity};
pub use keeper::Keeper;
pub use log::{Bodies, Log, VacateRefused};
#[cfg(feature = "trial")]
pub use mutation::Mutation;
pub use open::{Opened, Progress, open};
pub use options::Options;
pub use queue::{AfterDrop, Record};
pub use recovery::{RecoveredEntry, RecoveredGroup, Recovery, RecoveryReport};
pub use stats::{GroupStats, Stats, Tally};
pub use threads::{LogThreads, spawn};
pub use writer::{Commit, Writer};
