//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A session is found although a new one was asked for.
    IgnoreCleanStart = 1,
    /// Sessions end before their time.
    EarlyExpiry,
    /// Nobody remembers which QoS 2 messages have come.
    ForgetIdentities,
    /// What was on its way when a connection was lost does not come first.
    SkipPinned,
    /// Checkpoints have no retained messages.
    DropRetained,
    /// Whoever was connected when the process died has no Will.
    ForgetWills,
    /// A Will that was published is still due after a restart.
    RepeatWills,
    /// Messages read from the disk are mistaken for each other.
    WrongBody,
    /// A Client Identifier is served although another connection has it.
    NoTakeover,
    /// A message is acknowledged when it is on its way to the disk.
    AcknowledgeEarly,
    /// Packet Identifiers are used again too soon.
    ReusePacketId,
    /// A start passes over the last thing that was durable.
    ForgetLastBatch,
    /// A batch is applied twice.
    ApplyTwice,
    /// A node serves clients before all of its workers have put the subscriptions of their sessions into the index.
    ServeBeforeRecall,
    /// After a read that failed, nothing is read for the session any more.
    StandStill,
    /// The second read of a message uses its old key, although the message has moved.
    ReadWhereItWas,
    /// A Will is published although its client has lost the right to.
    PublishDeniedWills,
    /// Clients are closed for silence before what they have sent is read.
    JudgeUnread,
    /// The retained messages of a subscription do not go on to come over the next connection.
    ForgetWalks,
}

impl Mutation {
    /// All of them.
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

/// The one that is put in, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// How often the place of each was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Puts one in, for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// How often the process has reached the place where this one can be put in.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Whether this one is put in.
#[cfg(feature = "trial")]
pub fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Never in a product build.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub const fn mutated(_: Mutation) -> bool {
    false
}
