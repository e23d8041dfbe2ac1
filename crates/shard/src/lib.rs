//! The state of durable sessions as a deterministic state machine: commands in, effects out, no I/O, no clock, no randomness.
//!
//! Read [`Command`] and [`Effect`] first, then [`Shard`]. The state, its rules and who may send what: `docs/shard.md`.
//!
//! **Invariant:** what a shard holds and what it says depends on the batches alone that it applied, not on the node that
//! applies them, nor on whether it began with the first batch or with a checkpoint.

mod batch;
mod command;
mod effect;
mod error;
mod ids;
mod limits;
mod message;
mod wire;

pub use batch::{BatchBuilder, Pushed, commands, message_at};
pub use command::{Acknowledgement, Claim, Command, Enqueue, Filter, RECORD_MAX, Rewrite, Will, WillFate};
pub use effect::{Answer, DropReason, Effect, EndReason, Subscribed};
pub use error::{ApplyError, Malformed, RestoreError};
pub use ids::{
    BUCKETS, INDEX_MAX, Identity, MESSAGE_ALIGN, MESSAGE_OFFSET_MAX, MessageKey, PartId, REST,
    RETAINED_FIRST, SESSIONS_MAX, SessionUid, client_bucket, fnv64, retained_bucket,
};
pub use limits::{Limits, QueueFull};
pub use message::{Expired, MessageView, NEVER};
