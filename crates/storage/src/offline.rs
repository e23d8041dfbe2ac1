//! What is done to a log that no node uses: looked at, verified, saved, copied.

mod check;
mod copy;
mod repair;

pub use check::{CheckReport, OfflineStats, SegmentReport, check, stats};
pub use copy::{CopyReport, copy, restore};
pub use repair::{RepairReport, RepairedGroup, repair};
