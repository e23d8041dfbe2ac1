//! The broker of one node, without sockets: dispatch, sessions, shared subscriptions, retained messages, Wills, limits.
//!
//! Read [`Worker`] first: a node has a few of them, which share a [`Node`] and send each other [`Batch`]es.
//!
//! **Invariant:** no socket, clock or thread in this crate; time and bytes are arguments.
//!
//! **Invariant:** a piece of state has one owner: a connection its worker, a durable session its shard, a retained
//! message the shard that its topic hashes to.

#![forbid(unsafe_code)]

pub mod admin;
mod backlog;
mod batch;
mod budget;
mod connection;
mod counters;
mod dense;
mod durability;
mod full_queues;
mod groups;
mod ids;
mod interest;
pub mod internal;
mod link_waits;
mod match_cache;
mod message;
mod message_queue;
mod mount;
mod node;
pub mod origin;
mod out;
mod overload;
pub mod peers;
mod permissions;
mod publishers;
mod quota;
mod refusal_log;
mod retained;
mod retained_jobs;
mod route;
mod routes;
pub mod settings;
mod shapes;
mod slots;
pub mod spans;
mod store;
mod subscriptions;
mod traceparent;
mod wheel;
mod will;
mod worker;

pub use ::access;
pub use batch::{Batch, Claimed, Resume, SessionDelivery, Token, TokenKind, WorkerCommand};
pub use boottime::Instant;
pub use counters::{Counters, Figure, PacketCounters, Published, StoreCounters};
pub use groups::{GroupAnswer, GroupAppend, GroupRequest};
pub use ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time, WorkerId};
pub use interest::{Changed, InterestWatch, Wake};
pub use link_waits::{Begun, LinkWaits, WaitingSuback};
pub use message::Message;
pub use node::Node;
pub use out::{OUT_SLICES_MAX, Out};
pub use overload::Level;
pub use quota::{Account, Payers, Quotas, Resource};
pub use routes::{RouteChange, Routes};
pub use store::shard_clock::Slew;
pub use store::{
    Agreement, AgreementEvent, CommittedBatch, Completion, Condition, Frame, Identity, Incarnation,
    PeerFrame, Purpose, QUEUE_REFUSED, ReplicaCounters, ReplicaProgress, ReplicaStart, Request, SHARDS, Step,
    Store, StoreEvent, StoreLog, Vacate, Wanted, shard_of_client, stale_identities,
};
#[doc(hidden)]
pub use store::{check_wire_form, decode_wire_form};
pub use will::shifted_will_properties;
pub use worker::{AlarmChange, Event, LaneCounters, ReadCounters, Received, SETTLE_ROUNDS, Then, Worker};
#[doc(hidden)]
pub use worker::{check_frame_form, decode_frame_form};
