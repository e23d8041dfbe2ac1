//! Commands of the state machine. One host proposes each command, it is logged, and all replicas of the shard apply
//! it.

mod decode;
mod encode;

use mqtt::{PacketId, QoS};

use crate::eras::NodeIncarnation;
use crate::ids::{Identity, MessageKey, SessionUid};
use crate::limits::{Limits, QueueLimits};
use crate::message::MessageView;
use crate::shard_set::ShardSet;

pub(crate) use decode::{Decoded, decode};
pub use encode::RECORD_MAX;
pub(crate) use encode::encode;

/// A command. A command with `epoch` is issued under the Claim with that epoch. When another Claim has come since,
/// the command changes nothing and the answer is [`Answer::Stale`](crate::Answer::Stale). The answer for a session
/// that does not exist is [`Answer::Gone`](crate::Answer::Gone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Begins an incarnation of the node, `elapsed_ms` after the clock of the previous one stopped. At most
    /// [`ELAPSED_MAX_MS`](crate::ELAPSED_MAX_MS) of it count. Releases owned sessions as of now.
    Started {
        incarnation: u64,
        elapsed_ms: u64,
    },
    /// Ends the incarnations of a node of the cluster up to this one: its cores agree that it is gone. Releases its
    /// sessions as of now.
    NodeEnded(NodeIncarnation),
    Configure(Limits),
    /// Handles everything that is due by the clock of the batch: sessions end, Wills become due, retained messages
    /// expire. Handles at most [`TICK_MAX`](crate::TICK_MAX) of them.
    Tick,
    /// Releases up to `count` sessions that a `Started` or `NodeEnded` left for later.
    Sweep {
        count: u32,
    },
    Claim(Claim<'a>),
    /// Ends the ownership of a connection that is gone. `expiry_s` is a new Session Expiry Interval, from
    /// DISCONNECT [MQTT-3.14.2-2]. Nobody reads the queue any more, so all messages beyond its limits are settled
    /// by the rule for full queues.
    Release {
        session: SessionUid,
        epoch: u32,
        expiry_s: Option<u32>,
        will: WillFate,
    },
    /// Deletes a session for an operator. Its Will becomes due.
    End {
        session: SessionUid,
    },
    /// Adds subscriptions. `epoch` 0: not on behalf of a connection.
    Subscribe {
        session: SessionUid,
        epoch: u32,
        filters: Vec<Filter<'a>>,
    },
    /// Removes subscriptions. `epoch` 0: not on behalf of a connection.
    Unsubscribe {
        session: SessionUid,
        epoch: u32,
        filters: Vec<&'a str>,
    },
    /// Delivers a message to the sessions that match it at QoS 1 or 2. `wait`: its publisher waits while queues of
    /// connected sessions are full; otherwise such a queue does not accept it.
    Publish {
        message: MessageView<'a>,
        wait: bool,
        identity: Option<Identity>,
    },
    Forget(Identity),
    /// Forgets the identities of the same origin with a lower number. No message with such an identity is accepted any
    /// more. Earlier versions do not know this command.
    ForgetBelow(Identity),
    ForgetOrigin {
        origin: u64,
    },
    /// Delivers a message to one session: a retained message of a new subscription, or a message of a shared group.
    Enqueue(Enqueue<'a>),
    Acknowledge {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    /// Records a QoS 2 PUBLISH before PUBREC is sent.
    Receive {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// Records the PUBREL of a QoS 2 PUBLISH before PUBCOMP is sent; the identifier's toggle flips.
    Released {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// Removes the record of a QoS 2 PUBLISH that was refused and never published; the toggle stays.
    Refuse {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// Settles the messages beyond the limits of the queue by the rule for full queues, because their publishers
    /// have waited long enough.
    Overdue {
        session: SessionUid,
    },
    /// Records which retained messages of one subscription have been queued for the session.
    Walk {
        session: SessionUid,
        filter: &'a str,
        step: WalkStep<'a>,
    },
    /// Stores a retained message, or removes the topic's when the payload is empty [MQTT-3.3.1-5] [MQTT-3.3.1-6]
    /// [MQTT-3.3.1-7].
    Retain {
        message: MessageView<'a>,
    },
    /// The same, for a message that comes from a linked cluster: it was published there at its time of arrival. The
    /// later one of two messages wins, so both clusters end with the same one. A message that was removed is forgotten.
    RetainIfLater {
        message: MessageView<'a>,
    },
    WillDone {
        id: u64,
    },
    /// Stores the message again: these entries of its old key now refer to this one. Entries that do not exist are
    /// skipped.
    Rewrite(Rewrite<'a>),
    OrphanDone {
        id: u64,
    },
}

impl Command<'_> {
    /// Returns the session of a command that a connection issues, and the command's epoch. A Walk has no epoch.
    pub fn of_session(&self) -> Option<(SessionUid, Option<u32>)> {
        match self {
            Self::Release { session, epoch, .. }
            | Self::Subscribe { session, epoch, .. }
            | Self::Unsubscribe { session, epoch, .. }
            | Self::Acknowledge { session, epoch, .. }
            | Self::Receive { session, epoch, .. }
            | Self::Released { session, epoch, .. }
            | Self::Refuse { session, epoch, .. } => Some((*session, Some(*epoch))),
            Self::Walk { session, .. } => Some((*session, None)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub client_id: &'a str,
    /// User of the session; meaningful to the host only.
    pub user: u32,
    /// Node of the connection; `None` on a node that holds the shard alone, for the incarnation of its last
    /// [`Command::Started`]. The answer for an incarnation that is over is [`Answer::Stale`](crate::Answer::Stale).
    pub owner: Option<NodeIncarnation>,
    /// Connection that claims the session; meaningful to its node only.
    pub connection: u64,
    pub clean_start: bool,
    /// Session Expiry Interval in seconds; `u32::MAX` is never. With 0 no durable session begins, and a resumed one
    /// ends with its Release.
    pub expiry_s: u32,
    /// Receive Maximum of the client. Whatever its value, at most [`PINNED_MAX`](crate::PINNED_MAX) deliveries are
    /// pinned, or [`LINK_PINNED_MAX`](crate::LINK_PINNED_MAX) of a linked cluster.
    pub window: u16,
    pub will: Option<Will<'a>>,
    /// True when an ephemeral session begins if no session is to outlive the connection. Otherwise nothing of such a
    /// Claim is kept. Earlier versions do not know this field, and refuse it.
    pub keeps_ephemeral: bool,
    /// Limits of the session's queue; `None` for those of the shard. Earlier versions refuse this field.
    pub queue_limits: Option<QueueLimits>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    pub message: MessageView<'a>,
    /// Will Delay Interval in seconds.
    pub delay_s: u32,
}

/// Handling of the Will when a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WillFate {
    /// The client disconnected normally [MQTT-3.14.4-3].
    Discard = 0,
    /// The Will becomes due after its delay or when the session ends, whichever comes first [MQTT-3.1.3-9].
    Arm = 1,
}

/// A subscription as in SUBSCRIBE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter<'a> {
    /// A Topic Filter, or `$share/{ShareName}/{filter}`.
    pub text: &'a str,
    /// Subscription Options, as the byte on the wire.
    pub options: u8,
    /// Subscription Identifier; 0 is none.
    pub id: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue<'a> {
    pub session: SessionUid,
    pub message: MessageView<'a>,
    /// QoS of the delivery: 1 or 2.
    pub qos: QoS,
    /// RETAIN flag of the delivery.
    pub retain: bool,
    /// Subscription Identifiers.
    pub ids: Vec<u32>,
    /// Identity by which the message is accepted once. It does not remove the record of another identity.
    pub identity: Option<Identity>,
    /// Text of the shared subscription that the delivery belongs to. When the session ends before the message is
    /// acknowledged, another member receives it [MQTT-4.8.2-4].
    pub group: Option<&'a str>,
}

/// Step of a [`Command::Walk`]: progress of queueing the retained messages of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep<'a> {
    /// No message is queued yet.
    Begin,
    /// Like `Begin`, unless the session has the subscription already. Comes before the [`Command::Subscribe`] in
    /// its batch.
    BeginIfNew,
    /// All messages of the shards in `done` are queued. Of one more shard, those up to topic
    /// `after` are; "" when there is no such shard. Comes before the messages in their batch.
    At { done: ShardSet, after: &'a str },
    /// All messages are queued.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Acknowledgement {
    PubAck = 0,
    PubRec = 1,
    /// PUBREC with an error Reason Code.
    PubRecRefused = 2,
    PubComp = 3,
    /// The owner did not send the delivery and will not send it.
    Skip = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite<'a> {
    pub from: MessageKey,
    pub message: MessageView<'a>,
    pub entries: Vec<(SessionUid, u64)>,
    /// Ids of orphans.
    pub orphans: Vec<u64>,
}
