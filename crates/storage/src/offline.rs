//! Operations on a log that no node uses: inspect, verify, read, repair, copy.

mod check;
mod copy;
mod read;
mod repair;

pub use check::{CheckReport, OfflineStats, SegmentReport, check, stats};
pub use copy::{CopyReport, copy, restore};
pub use read::read;
pub use repair::{RepairReport, RepairedGroup, repair};
