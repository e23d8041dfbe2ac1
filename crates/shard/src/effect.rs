//! What applying a batch leads to, in the order in which it happened.

use mqtt::ReasonCode;

use crate::ids::{MessageKey, SessionUid};

/// Something that the host has to do, or may want to know. What is too large to be carried, such as subscriptions, messages
/// or who owns a session now, is read from the [`Shard`](crate::Shard) after the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// One for every command, in their order; effects of a command precede its answer, but those that a
    /// [`Claim`](crate::Command::Claim) has after the session is claimed.
    Answer { ordinal: u32, answer: Answer },
    /// A message of command `ordinal` got a place in a session's queue, as delivery `n`. `pinned`: it may be sent now. `over`:
    /// it lies beyond the limits of the queue, so its publisher is not answered before [`Effect::Room`] passes `n`, or
    /// [`Overdue`](crate::Command::Overdue) or a [`Release`](crate::Command::Release) has settled it.
    Queued { ordinal: u32, session: SessionUid, n: u64, pinned: bool, over: bool },
    /// Deliveries `from..to`, which hold no gaps, may be sent; after a Claim they may have been sent before.
    Pinned { session: SessionUid, from: u64, to: u64 },
    /// Deliveries below `before` lie within the limits of the queue now: their publishers may be answered.
    Room { session: SessionUid, before: u64 },
    /// Deliveries `from..to` waited and are gone.
    Dropped { session: SessionUid, from: u64, to: u64, reason: DropReason },
    /// A message of command `ordinal` found a full queue and got no place in it.
    NotQueued { ordinal: u32, session: SessionUid },
    /// The session is gone. `shared`: the texts of its shared subscriptions.
    SessionEnded { session: SessionUid, client_id: Box<str>, shared: Box<[Box<str>]>, reason: EndReason },
    /// The first subscription of this shard has the filter.
    FilterAdded { filter: Box<str> },
    /// No subscription of this shard has the filter any more.
    FilterRemoved { filter: Box<str> },
    /// [`Shard::due_will`](crate::Shard::due_will) is to be published, and [`WillDone`](crate::Command::WillDone) to be said
    /// when that is durable. It is the Will of this session.
    WillDue { id: u64, session: SessionUid },
    /// [`Shard::orphan`](crate::Shard::orphan) is to be given to another member of its group, and
    /// [`OrphanDone`](crate::Command::OrphanDone) to be said when that is durable.
    /// It was delivery `n` of a session that ends.
    Orphaned { id: u64, key: MessageKey, session: SessionUid, n: u64 },
    /// The retained message of the topic has expired.
    RetainedExpired { topic: Box<str> },
    /// How many retained messages there are after the batch, when that has changed, and their bytes.
    RetainedChanged { messages: u64, bytes: u64 },
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing more to say: it is done.
    Done,
    /// There is no such session.
    Gone,
    /// Another connection has claimed the session since.
    Stale,
    /// Tick, Sweep: whether the same again would find more to do.
    Progress {
        more: bool,
    },
    /// `session` is `None` when the claim was for no longer than its connection and nothing was there to resume. `present`:
    /// the session has been there [MQTT-3.2.2-2] [MQTT-3.2.2-3].
    Claimed {
        session: Option<SessionUid>,
        epoch: u32,
        present: bool,
    },
    /// Claim: the shard has no number left for another session.
    Full,
    Subscribed {
        results: Box<[Subscribed]>,
    },
    /// Success or No subscription existed, for each filter.
    Unsubscribed {
        results: Box<[ReasonCode]>,
    },
    /// The message has a place in the queues of as many sessions, or was dropped by their rule.
    Published {
        matched: u32,
    },
    /// Publish, Enqueue: the identity is known, so the message has been taken before.
    Repeated,
    /// Acknowledge: delivery `n` is finished.
    Finished {
        n: u64,
    },
    /// Acknowledge with PUBREC: PUBREL may leave, for the first time or again [MQTT-4.3.3-4].
    Release {
        n: u64,
        again: bool,
    },
    /// Acknowledge, Released, Refuse: no unfinished delivery or publish has the Packet Identifier.
    Unknown,
    /// Acknowledge: the delivery with the Packet Identifier waits for another kind of acknowledgement.
    WrongKind,
    /// Receive: the Packet Identifier is remembered with this toggle; `again`: it has been before [MQTT-4.3.3-10].
    Received {
        toggle: bool,
        again: bool,
    },
    /// Retain: whether the topic had a message before.
    Retained {
        replaced: bool,
    },
    /// Rewrite: as many of the entries exist and stand at the new place now.
    Rewritten {
        moved: u32,
    },
}

/// One filter of a [`Subscribe`](crate::Command::Subscribe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// For SUBACK.
    pub reason: ReasonCode,
    /// The subscription was there and is replaced [MQTT-3.8.4-3].
    pub existed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// By the rule for full queues.
    QueueFull,
    /// Its Message Expiry Interval passed while it waited [MQTT-3.3.2-5].
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndReason {
    /// A Claim with Clean Start [MQTT-3.1.2-4].
    CleanStart,
    /// Its Session Expiry Interval passed [MQTT-3.1.2-23].
    Expired,
    /// It was released with a Session Expiry Interval of 0.
    Released,
    /// By an operator.
    Ended,
}
