//! Shards of a broker on the log of `storage`: records, notifications, and recovery of a node's state at a start.
//! The caller provides threads, files and clocks, so the program and the simulator run the same code.
//!
//! Read [`ShardLog`] first; [`restore`] reads the state back.
//!
//! **Invariant:** a shard is notified only of events that the log has reported.

#![forbid(unsafe_code)]

mod agreement;
mod bodies;
mod frame;
mod log;
mod members;
mod merge;
mod moment;
mod own_state;
mod placed;
mod restore;
mod seeking;
mod transfer;

pub use agreement::{
    AgreementInput, AgreementOwner, AgreementRead, ShardAgreement, log_group, storage_groups,
};
pub use frame::ShardFrame;
pub use log::{
    EventForwarder, LogNotifier, META, MetaListener, ReadRequest, RecordForm, ShardLog, URGENT, group_of,
    is_of_agreement,
};
pub use members::TargetMembers;
pub use merge::{CoreData, MergedShard, as_alone, merge_meta, merge_shard};
pub use moment::Moment;
pub use own_state::{GroupsOfCore, OwnState, sort_groups};
pub use placed::{FOLLOW_AGAIN_MS, PlacedConfig, PlacedReplicas, StoredReplicas};
pub use restore::{incarnation, records, restore, sort, take_meta};
pub use transfer::TransferPermit;
