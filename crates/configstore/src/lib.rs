//! Configuration store: small durable records in tables, such as users, rules, bans and keys, changed by commands.
//!
//! Writers know only [`ConfigStore`]. They propose [`Change`]s, and an accepted change is durable before it takes
//! effect. Readers are [`View`]s. A view receives the records of its table and then every change in order, and keeps
//! them in its own form.
//!
//! [`LocalStore`] keeps the records of one node in a write-ahead log in its data directory. [`ReplicatedStore`] keeps a
//! copy there of the records of a cluster, whose state machine is [`Records`]. The crate knows no table by name, and
//! not what the records mean.
//!
//! **Invariant:** no change takes effect or reaches a view before it is durable: on the disk of the node, or on those
//! of a majority of the cores. **Invariant:** every store applies the same changes in the same order, and gives each
//! batch the next revision.

#![forbid(unsafe_code)]

mod batch;
mod change;
mod error;
mod line;
mod local;
mod records;
mod replicated;
mod state;
mod store;

pub use batch::{Answer, BATCH_MAX, encode_batch};
pub use change::{Applied, Change, Expected, Revision, Stored, Table};
pub use error::{OpenError, OpenFault, ProposeError};
pub use local::{FILE, Limits, LocalStore};
pub use records::{Copy, Position, RecordUpdate, Records, RecordsLimits, SnapshotReader};
pub use replicated::{ClusterState, ProposalCallback, ProposalFailed, Proposer, ReplicatedStore};
pub use store::{ConfigStore, Figures, View};
