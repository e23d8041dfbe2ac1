//! Types that replicas send and store, as `openraft` needs them.

use std::fmt;
use std::sync::Arc;

use link::NodeId;
use openraft::OptionalSend;
use openraft::impls::leader_id_std;
use openraft::vote::RaftLeaderId;

use crate::runtime::Runtime;
use crate::writes::WriteTicket;

/// Id of one replica of one group. A replica that lost its log comes back with another id.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Number of a replicated log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogGroup(pub u16);

/// Node of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
}

/// Command of a log entry: bytes that the state machine understands. They are shared, not copied.
#[derive(Clone, PartialEq, Eq)]
pub struct Command(pub Arc<Vec<u8>>);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// Answer to a proposal that is applied. The owner of the group has the results of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied;

/// Types of `openraft`. Its macro for them has no way to set the responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = Command;
    type R = Applied;
    type NodeId = ReplicaId;
    type Node = Member;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, ReplicaId>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Command, ReplicaId, Member>;
    type Entry = openraft::Entry<<Self::LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = WriteTicket
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<Types>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<Types>;
pub(crate) type Payload = openraft::EntryPayload<Command, ReplicaId, Member>;
pub(crate) type Membership = openraft::Membership<ReplicaId, Member>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;
pub(crate) type Snapshot = openraft::type_config::alias::SnapshotOf<Types, crate::raft_log::SnapshotData>;
pub(crate) type IoFlushed = openraft::storage::IOFlushed<Types>;
