//! Mutations: faults that are built into the product on purpose. The simulator must notice each of them (`cargo
//! xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One fault that can be built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A session is resumed although a new one was requested.
    IgnoreCleanStart = 1,
    /// Sessions end too early.
    EarlyExpiry,
    /// The record of received QoS 2 messages is lost.
    ForgetIdentities,
    /// Deliveries in flight at the loss of a connection are not sent first.
    SkipPinned,
    /// Checkpoints have no retained messages.
    DropRetained,
    /// Clients that were connected when the process crashed have no Will.
    ForgetWills,
    /// A published Will is due again after a restart.
    RepeatWills,
    /// Messages read from the disk are confused with each other.
    WrongBody,
    /// A client is served although another connection has its Client Identifier.
    NoTakeover,
    /// A message is acknowledged before it is durable.
    AcknowledgeEarly,
    /// Packet Identifiers are reused too early.
    ReusePacketId,
    /// A start skips the last durable batch.
    ForgetLastBatch,
    /// A batch is applied twice.
    ApplyTwice,
    /// A node serves clients before all of its workers have put the subscriptions of their sessions into the index.
    ServeBeforeRecall,
    /// The session's queue is never read again after a failed read.
    StandStill,
    /// The second read of a message uses its old key, although the message has moved.
    ReadWhereItWas,
    /// A Will is published although its client has lost the right to publish it.
    PublishDeniedWills,
    /// Clients are closed for silence before their received bytes are read.
    JudgeUnread,
    /// The retained messages of a subscription do not continue after a reconnect.
    ForgetWalks,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Self; 19] = [
        Self::IgnoreCleanStart,
        Self::EarlyExpiry,
        Self::ForgetIdentities,
        Self::SkipPinned,
        Self::DropRetained,
        Self::ForgetWills,
        Self::RepeatWills,
        Self::WrongBody,
        Self::NoTakeover,
        Self::AcknowledgeEarly,
        Self::ReusePacketId,
        Self::ForgetLastBatch,
        Self::ApplyTwice,
        Self::ServeBeforeRecall,
        Self::StandStill,
        Self::ReadWhereItWas,
        Self::PublishDeniedWills,
        Self::JudgeUnread,
        Self::ForgetWalks,
    ];
}

/// Number of the active mutation, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// Number of times that the code of each mutation was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Activates a mutation, or none, for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// Returns how often the process has reached the code of this mutation.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Returns whether this mutation is active.
#[cfg(feature = "trial")]
pub fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Returns false: a product build has no mutations.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub const fn mutated(_: Mutation) -> bool {
    false
}
