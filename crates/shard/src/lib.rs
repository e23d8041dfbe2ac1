//! State of durable sessions as a deterministic state machine: commands in, effects out, no I/O, no clock, no
//! randomness.
//!
//! Read [`Command`] and [`Effect`] first, then [`Shard`]. `docs/shard.md` describes the state, its rules and who
//! may send which command.
//!
//! **Invariant:** state and effects of a shard depend only on the batches that it applied. They do not depend on
//! the node that applies them, nor on whether it began with the first batch or with a checkpoint.

#![forbid(unsafe_code)]

mod batch;
mod bodies;
mod command;
mod counts;
mod deadline;
mod effect;
mod entry;
mod ephemeral;
mod eras;
mod error;
mod groups;
mod identities;
mod ids;
mod inbound;
mod kept;
mod limits;
mod links;
mod message;
mod mutation;
mod origin;
mod parts;
mod queue;
mod request_number;
mod requests;
mod retained;
mod route;
mod session;
mod sessions;
mod shard;
mod shard_set;
mod subscriptions;
mod wire;

pub use batch::{BatchBuilder, Pushed, commands, message_at, request_numbers};
pub use command::{
    Acknowledgement, Claim, Command, Enqueue, Filter, RECORD_MAX, Rewrite, WalkStep, Will, WillFate,
};
pub use counts::Counts;
pub use effect::{Answer, DropReason, Effect, EndReason, Subscribed};
pub use entry::Phase;
pub use ephemeral::EPHEMERAL_EPOCH;
pub use eras::NodeIncarnation;
pub use error::{ApplyError, Malformed, RestoreError};
pub use ids::{
    BUCKETS, INDEX_MAX, Identity, MESSAGE_ALIGN, MESSAGE_OFFSET_MAX, MessageKey, PartId, REST,
    RETAINED_FIRST, SESSIONS_MAX, SHARDS, SessionUid, ShardId, client_bucket, fnv64, retained_bucket,
};
pub use kept::StoredBatch;
pub use limits::{Limits, QueueFull, QueueLimits};
pub use links::{GROUP, LINK, LINK_SHARE, LinkFilter, ORIGIN_CLUSTER, origin_cluster, wanted_origin};
pub use message::{Expired, MessageView, NEVER};
pub use mutation::{Mutation, mutated};
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use origin::{ORIGIN_MARK, put_origin, split as split_origin};
pub use queue::{LINK_PINNED_BYTES_MAX, LINK_PINNED_MAX, PINNED_MAX};
pub use request_number::{LANES_MAX, RequestNumber};
pub use requests::{CLAIMS_MAX, REFUSALS_MAX};
pub use retained::RetainedPage;
pub use route::{BEHIND_MOUNTPOINT, OF_LINK};
pub use shard::{
    CLOCK_STEP_MAX_MS, Cursor, ELAPSED_MAX_MS, EntryView, EphemeralView, Found, Orphan, SessionView, Shard,
    TICK_MAX, packet_id,
};
pub use shard_set::ShardSet;
