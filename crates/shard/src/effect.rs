//! Effects of applying a batch, in the order in which they happened.

use mqtt::ReasonCode;

use crate::ids::{MessageKey, SessionUid};

/// Effect that the host has to act on, or may want to know. Larger data, such as subscriptions, messages or the
/// owner of a session, is read from the [`Shard`](crate::Shard) after the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer to a command: one for each, in their order. Effects of a command precede its answer, except those
    /// that a [`Claim`](crate::Command::Claim) has after the session is claimed.
    Answer { ordinal: u32, answer: Answer },
    /// A message of command `ordinal` was queued for a session, as delivery `n`. `pinned`: it may be sent now.
    /// `over`: it is beyond the limits of the queue. Its publisher is then answered only when [`Effect::Room`]
    /// passes `n`, or when [`Overdue`](crate::Command::Overdue) or a [`Release`](crate::Command::Release) has
    /// settled it.
    Queued { ordinal: u32, session: SessionUid, n: u64, pinned: bool, over: bool },
    /// Deliveries `from..to`, without gaps, may be sent; after a Claim they may have been sent before.
    Pinned { session: SessionUid, from: u64, to: u64 },
    /// Deliveries below `before` are within the limits of the queue now: their publishers may be answered.
    Room { session: SessionUid, before: u64 },
    /// Waiting deliveries `from..to` were dropped.
    Dropped { session: SessionUid, from: u64, to: u64, reason: DropReason },
    /// A message of command `ordinal` was not queued, because the queue is full.
    NotQueued { ordinal: u32, session: SessionUid },
    /// The session ended.
    SessionEnded { session: SessionUid, client_id: Box<str>, reason: EndReason },
    /// The first subscription of this shard with the filter was added.
    FilterAdded { filter: Box<str> },
    /// The last subscription of this shard with the filter was removed.
    FilterRemoved { filter: Box<str> },
    /// The host has to publish [`Shard::due_will`](crate::Shard::due_will), the Will of this session, and to
    /// propose [`WillDone`](crate::Command::WillDone) when that is durable.
    WillDue { id: u64, session: SessionUid },
    /// The host has to send [`Shard::orphan`](crate::Shard::orphan) to another member of its group, and to propose
    /// [`OrphanDone`](crate::Command::OrphanDone) when that is durable. The message was delivery `n` of a session
    /// that ends.
    Orphaned { id: u64, key: MessageKey, session: SessionUid, n: u64 },
    /// The retained message of the topic expired.
    RetainedExpired { topic: Box<str> },
    /// Number and bytes of the retained messages after the batch, when they changed.
    RetainedChanged { messages: u64, bytes: u64 },
}

/// Answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The command was applied; there is no further result.
    Done,
    /// The session does not exist.
    Gone,
    /// Another connection has claimed the session since, or the connection has released it. Claim, Publish, Retain,
    /// Enqueue, Forget, ForgetOrigin: the incarnation of the owner is over.
    Stale,
    /// Tick, Sweep: true when another one would find more to do.
    Progress {
        more: bool,
    },
    /// Claim: `session` is `None` when no session is to outlive the connection and there was none to resume.
    /// `present`: the session existed before [MQTT-3.2.2-2] [MQTT-3.2.2-3].
    Claimed {
        session: Option<SessionUid>,
        epoch: u32,
        present: bool,
    },
    /// Claim: the shard has no free number for another session. Claim, Publish, Retain, Enqueue, Forget,
    /// ForgetOrigin: it has no room for another node.
    Full,
    Subscribed {
        results: Box<[Subscribed]>,
    },
    /// Reason Code for each filter: Success or No subscription existed.
    Unsubscribed {
        results: Box<[ReasonCode]>,
    },
    /// The message was queued for `matched` sessions, or dropped by the rule for full queues.
    Published {
        matched: u32,
    },
    /// Publish, Enqueue: the queue of this session, which would get the message, is full and refuses messages
    /// ([`QueueFull::Refuse`](crate::QueueFull::Refuse)). No session of the shard gets the message, and its identity is
    /// not recorded. An Enqueue with a [`RequestNumber`](crate::RequestNumber) that was applied before may have been
    /// accepted.
    Refused {
        session: SessionUid,
    },
    /// Publish with a [`RequestNumber`](crate::RequestNumber) that was applied before: its answer was `Refused`, or may
    /// have been.
    PerhapsRefused,
    /// Publish, Enqueue: the identity is known, so the message was accepted before. Publish, Retain, Enqueue,
    /// Acknowledge, Receive with a [`RequestNumber`](crate::RequestNumber): the command was applied before, and the
    /// client waits for no packet because of it.
    Repeated,
    /// Acknowledge: delivery `n` is finished.
    Finished {
        n: u64,
    },
    /// Acknowledge with PUBREC: PUBREL may be sent, for the first time or again [MQTT-4.3.3-4].
    Release {
        n: u64,
        again: bool,
    },
    /// Acknowledge, Released, Refuse: no unfinished delivery or publish has the Packet Identifier.
    Unknown,
    /// Acknowledge: the delivery with the Packet Identifier waits for another kind of acknowledgement.
    WrongKind,
    /// Receive: the Packet Identifier is recorded with this toggle; `again`: it had been before [MQTT-4.3.3-10].
    Received {
        toggle: bool,
        again: bool,
    },
    /// Retain: true when the topic had a message before.
    Retained {
        replaced: bool,
    },
    /// Rewrite: number of entries that exist and have moved.
    Rewritten {
        moved: u32,
    },
}

/// Result for one filter of a [`Subscribe`](crate::Command::Subscribe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// Reason Code for SUBACK.
    pub reason: ReasonCode,
    /// True when the subscription existed and is replaced [MQTT-3.8.4-3].
    pub existed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Dropped by the rule for full queues.
    QueueFull,
    /// The Message Expiry Interval passed while the message waited [MQTT-3.3.2-5].
    Expired,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndReason {
    /// A Claim with Clean Start [MQTT-3.1.2-4].
    CleanStart,
    /// The Session Expiry Interval passed [MQTT-3.1.2-23].
    Expired,
    /// The session was released with a Session Expiry Interval of 0.
    Released,
    /// An operator deleted the session.
    Ended,
}
