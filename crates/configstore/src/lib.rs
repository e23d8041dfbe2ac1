//! Registry: small durable records in tables, such as users, rules, bans and keys, changed by commands.
//!
//! [`ConfigStore`] is all that writers know: they propose [`Change`]s, and what is accepted is durable before it is in force. Readers are
//! [`View`]s: each is told the records of its table and then every change in order, and keeps what it needs in the shape it needs.
//! [`LocalStore`] keeps the records of one node in a journal in its data directory; [`ReplicatedStore`] has a copy there of what the nodes of a
//! cluster agree on, whose state machine is [`Records`]. The crate knows no table by name, and nothing of
//! what the records mean.
//!
//! **Invariant:** nothing is in force, or told to a view, before it is durable: on the disk, or on those of most nodes that decide. **Invariant:** every ledger applies the same changes in
//! the same order, and gives each batch the next revision.

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
pub use records::{Copy, Position, RecordUpdate, Records, RecordsLimits};
pub use replicated::{ClusterState, ProposalCallback, ProposalFailed, Proposer, ReplicatedStore};
pub use store::{ConfigStore, Figures, View};
