//! Groups of replicas that agree on a log: Raft, by `openraft`, on the log of a node and the links between nodes. No
//! I/O, clocks or threads of its own: the same code runs in the program and in the simulator.
//!
//! Read [`Group`] first: one replica of one group. The owner of a [`Replica`] without a group does the [`Job`]s of the
//! state machine itself.
//!
//! **Invariant:** a replica promises and acknowledges only what is durable. **Invariant:** a replica that cannot read
//! its log does not vote.

#![forbid(unsafe_code)]

mod config;
mod first_snapshot;
mod group;
mod incoming;
mod jobs;
mod machine;
mod manifest;
mod mutation;
mod network;
mod pipeline;
mod raft_log;
mod raft_types;
mod read_back;
mod runtime;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod wire;
mod writes;

pub use config::{Config, ELECTION_TIMEOUT, HEARTBEAT};
pub use first_snapshot::FirstSnapshot;
pub use group::{
    Change, Counters, Event, Group, Leadership, Outcome, Replica, RequestId, StartError, Undecided,
};
pub use jobs::{Answer, GivenUp, Job, WriteParts, Written};
pub use machine::{Committed, STREAM_PART_BYTES, SnapshotError, StateMachine, UnsupportedVersion};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use network::Transmit;
pub use raft_log::{LogRead, LogReadResult, StorageGroups, Unreadable, log_index};
pub use raft_types::{LogGroup, Member, ReplicaId};
pub use read_back::{LastEntry, last_entry, read_back};
pub use status::{Progress, Role, Status};
pub use wire::entry_command;
