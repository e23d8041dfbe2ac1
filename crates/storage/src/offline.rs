//! Operations on a log that no node uses: inspect, verify, repair, copy.

mod check;
mod copy;
mod repair;

pub use check::{CheckReport, OfflineStats, SegmentReport, check, stats};
pub use copy::{CopyReport, copy, restore};
pub use repair::{RepairReport, RepairedGroup, repair};
