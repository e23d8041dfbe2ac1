//! What the state machine is told. Each command is proposed by one host, logged, and applied by all that hold the shard.

mod decode;
mod encode;

use mqtt::{PacketId, QoS};

use crate::ids::{Identity, MessageKey, SessionUid};
use crate::limits::Limits;
use crate::message::MessageView;

pub(crate) use decode::{Decoded, decode};
pub use encode::RECORD_MAX;
pub(crate) use encode::encode;

/// A command. Where it carries `epoch`, that is the one of the Claim in whose name it speaks; when another Claim has come
/// since, it changes nothing and is answered with [`Answer::Stale`](crate::Answer::Stale). A session that does not exist is
/// answered with [`Answer::Gone`](crate::Answer::Gone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// A node's life begins, `elapsed_ms` after the clock of the one before stood still, at most
    /// [`ELAPSED_MAX_MS`](crate::ELAPSED_MAX_MS) of which count. Sessions that were owned are released as of now.
    Started {
        incarnation: u64,
        elapsed_ms: u64,
    },
    Configure(Limits),
    /// Does what is due by the clock of the batch: sessions end, Wills become due, retained messages expire. At most
    /// [`TICK_MAX`](crate::TICK_MAX) of them.
    Tick,
    /// Goes through up to `count` sessions and does the releasing that a `Started` left for later.
    Sweep {
        count: u32,
    },
    Claim(Claim<'a>),
    /// The connection is gone. `expiry_s`: a new Session Expiry Interval, from DISCONNECT [MQTT-3.14.2-2]. Everything beyond
    /// the limits of the queue is settled by the rule, for nobody reads any more.
    Release {
        session: SessionUid,
        epoch: u32,
        expiry_s: Option<u32>,
        will: WillFate,
    },
    /// An operator's delete. Its Will becomes due.
    End {
        session: SessionUid,
    },
    /// `epoch` 0: not in the name of a connection.
    Subscribe {
        session: SessionUid,
        epoch: u32,
        filters: Vec<Filter<'a>>,
    },
    /// `epoch` 0: not in the name of a connection.
    Unsubscribe {
        session: SessionUid,
        epoch: u32,
        filters: Vec<&'a str>,
    },
    /// A message for the sessions that match, and that want it at QoS 1 or 2. `wait`: its publisher waits while queues of
    /// connected sessions are full; else such a queue does not take it.
    Publish {
        message: MessageView<'a>,
        wait: bool,
        identity: Option<Identity>,
    },
    Forget(Identity),
    ForgetOrigin {
        origin: u64,
    },
    /// A message for one session: a retained one of a new subscription, or its share of a group's.
    Enqueue(Enqueue<'a>),
    Acknowledge {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    /// A QoS 2 PUBLISH arrived: to be remembered before PUBREC leaves.
    Receive {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// Its PUBREL arrived: to be forgotten before PUBCOMP leaves; the identifier's toggle flips.
    Released {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// It was refused and never published: to be forgotten, and the toggle stays.
    Refuse {
        session: SessionUid,
        epoch: u32,
        packet_id: PacketId,
    },
    /// Its publishers have waited long enough: what lies beyond the limits of the queue is settled by the rule.
    Overdue {
        session: SessionUid,
    },
    /// How far the retained messages of one subscription have been queued for the session.
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
    WillDone {
        id: u64,
    },
    /// The message stands here too: these entries of its old place move. What is not, or no longer, there is passed over.
    Rewrite(Rewrite<'a>),
    OrphanDone {
        id: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub client_id: &'a str,
    /// Whose the session is; the host's business.
    pub user: u32,
    /// Of whom; the host's business.
    pub connection: u64,
    pub clean_start: bool,
    /// Session Expiry Interval, seconds; `u32::MAX` is never. With 0 no session begins, and one that is resumed ends with its
    /// Release.
    pub expiry_s: u32,
    /// Receive Maximum of the client. At most [`PINNED_MAX`](crate::PINNED_MAX) deliveries are pinned whatever it says.
    pub window: u16,
    pub will: Option<Will<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Will<'a> {
    pub message: MessageView<'a>,
    /// Will Delay Interval.
    pub delay_s: u32,
}

/// What becomes of the Will of the Claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WillFate {
    /// The client disconnected normally [MQTT-3.14.4-3].
    Discard = 0,
    /// Due after its delay or when the session ends, whichever comes first [MQTT-3.1.3-9].
    Arm = 1,
}

/// A subscription as the SUBSCRIBE says it.
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
    /// 1 or 2: of the delivery.
    pub qos: QoS,
    /// Of the delivery.
    pub retain: bool,
    /// Subscription Identifiers.
    pub ids: Vec<u32>,
    /// Taken once. Nothing is forgotten on account of it.
    pub identity: Option<Identity>,
    /// The text of the shared subscription on whose behalf. When the session ends before the message is acknowledged, it is
    /// another member's [MQTT-4.8.2-4].
    pub group: Option<&'a str>,
}

/// What a [`Command::Walk`] says of the retained messages that a subscription is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkStep<'a> {
    /// None is queued yet.
    Begin,
    /// The same, unless the session has the subscription already. Stands before the [`Command::Subscribe`] in its batch.
    BeginIfNew,
    /// All of the shards whose bits are in `done` are queued, and of another shard those up to topic `after`; "" when there is no such
    /// shard. Stands before the messages in their batch.
    At { done: u16, after: &'a str },
    /// All are queued.
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
    /// By the owner: it was never sent, and is not to be.
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
