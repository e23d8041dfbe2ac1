//! The session store: who serves a Client Identifier, and what durable sessions hold.
//!
//! Workers reach it by [`Request`]s and hear from it by [`Completion`]s; nothing is acknowledged to a client before its
//! completion has come. A [`ShardHost`] is one shard of it, hosted by one of the workers; requests to a shard travel like any other
//! letter. **Invariant:** the worker that sends a request never assumes when, or in which order
//! between sessions, its completion comes.

mod group;
mod host;
mod log;
mod retained_stamps;

use std::sync::Arc;

use crate::shapes::ShapeReservations;
use mqtt::{PacketId, QoS, ReasonCode, Subscription};
use session::Dispatched;
use shard::SessionUid;

pub use host::ShardOutput;
pub(crate) use host::{Offer, SUBSCRIPTIONS_AT_ONCE, ShardHost, is_kept};
pub use log::{Condition, Incarnation, Purpose, Store, StoreEvent, StoreLog, Wanted};

use crate::batch::{Claimed, SessionDelivery, SubscriptionIds, Token};
use crate::durability::Durability;
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, Ticket, hash};
use crate::message::Message;
use crate::node::OwnerKey;
use crate::peers::{Members, NodeIndex};
use crate::quota::Payers;
use crate::route::Options;
use crate::will::WillOwner;

/// What a worker asks of a shard. Requests of one worker to one shard are applied in the order they were sent.
#[derive(Debug)]
pub enum Request {
    /// A connection wants to serve a Client Identifier.
    Claim(Box<Claim>),
    /// A connection stops serving its Client Identifier: it closed, or this is the answer to a revocation.
    Release(Box<Release>),
    /// Subscriptions of a durable session. Answered by [`Completion::Subscribed`] with the same `ticket`, and by a
    /// [`Completion::Joined`] for each that is shared and was not refused.
    Subscribe {
        session: SessionId,
        connection: ConnectionId,
        ticket: Ticket,
        filters: Vec<(Box<str>, Options, u32)>,
        /// Their unusual arrangements of wildcards.
        shapes: Option<Arc<ShapeReservations>>,
        /// There are retained messages: the session remembers those that the subscriptions are to get.
        retained: bool,
    },
    /// Answered by [`Completion::Unsubscribed`], and by a [`Completion::Left`] for each that is shared and existed.
    Unsubscribe {
        session: SessionId,
        connection: ConnectionId,
        ticket: Ticket,
        filters: Vec<Box<str>>,
    },
    /// A subscription that the access rules no longer allow. Not answered.
    Withdraw {
        session: SessionId,
        filter: Box<str>,
    },
    /// A message for the shard's durable sessions (`sessions`) or shared groups (`groups`) that match.
    Append {
        message: Message,
        sessions: bool,
        groups: bool,
        /// Of a message that its publisher may send again: with one that is known nothing is done but to answer, when the
        /// first has its places.
        identity: Option<Identity>,
        /// Why what needs the log is not taken; with `None` it is, whatever has become of the log since.
        refusal: Option<ReasonCode>,
        token: Option<Token>,
    },
    /// The publisher does not send this again. Not answered.
    ForgetIdentity {
        identity: Identity,
    },
    /// A session is no more, so all that it may have sent is forgotten. Not answered.
    ForgetOrigin {
        origin: u64,
    },
    /// The retained message of a topic of this shard, or its end when the payload is empty [MQTT-3.3.1-6].
    Retain {
        message: Message,
        /// When it was retained, among several nodes; 0 on a node without others.
        stamp: u64,
        /// The node that has sent a copy of what it has.
        copied_by: Option<NodeIndex>,
        /// As that of [`Request::Append`].
        refusal: Option<ReasonCode>,
        token: Option<Token>,
        /// Who pays for it: nobody for what comes from another node.
        payers: Payers,
    },
    /// Whether there is a place for a topic's retained message of about this size. Answered by [`Completion::RoomToRetain`].
    AskRoomToRetain {
        topic: Box<str>,
        size: u64,
        connection: ConnectionId,
        payers: Payers,
    },
    /// An operator deletes a topic's retained message. Answered by `token`: [`ReasonCode::NoSubscriptionExisted`] when there
    /// was none.
    DeleteRetained {
        topic: Box<str>,
        token: Token,
    },
    /// Messages for one durable session: retained ones of a new subscription, or its share of a group's.
    Enqueue {
        session: SessionId,
        entries: Vec<Enqueue>,
        /// On behalf of a shared group.
        group: Option<Box<EnqueueForGroup>>,
        token: Option<Token>,
        /// They are a page of retained messages. Answered by [`Completion::RoomForPage`] when there is room for another one.
        page: Option<Box<EnqueueForPage>>,
    },
    /// Whether the queue of a session has room for a page of retained messages. Answered by [`Completion::RoomForPage`], when it has.
    AskRoomForPage {
        session: SessionId,
        connection: ConnectionId,
    },
    /// A subscription has no more retained messages to get. Not answered.
    EndWalk {
        session: SessionId,
        filter: Box<str>,
    },
    /// The client's part in a QoS 1 or 2 delivery.
    Acknowledge {
        session: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    /// A QoS 2 PUBLISH of a durable session has arrived and is where it belongs, as far as that is the store: to be remembered
    /// before PUBREC leaves.
    Receive {
        session: SessionId,
        packet_id: PacketId,
        /// `memory`: PUBREC does not wait for the disk. PUBCOMP does, so that the identifier is not used again before it is forgotten.
        durability: Durability,
        token: Token,
    },
    /// Its PUBREL arrived: to be forgotten before PUBCOMP leaves. The Packet Identifier's toggle flips, known or not.
    Released {
        session: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// The QoS 2 PUBLISH was refused: to be forgotten. Not answered.
    Forget {
        session: SessionId,
        packet_id: PacketId,
        /// Some shards may have it: the Packet Identifier's toggle flips, so that its next message is another.
        flip: bool,
    },
    /// A member joins a shared subscription group, or changes: its options, or whether it is connected.
    Join(Box<Join>),
    Leave {
        group: Box<GroupName>,
        member: Member,
        reply: Option<(ConnectionId, Ticket)>,
    },
    /// A shared subscription group has these members on another node.
    JoinNode {
        group: Box<GroupName>,
        node: NodeIndex,
        members: Members,
    },
    /// A message of another node for a member on this one.
    DeliverLocally {
        group: Box<GroupName>,
        message: Message,
        /// As that of [`Request::Append`].
        refusal: Option<ReasonCode>,
        token: Option<Token>,
    },
    /// A message for members on another node has its place there, or has none.
    Offered {
        key: u32,
        reason: ReasonCode,
    },
    /// A message comes back from a member that cannot have it.
    Bounce {
        group: GroupId,
        message: Message,
        /// Of one that a member had left behind before.
        identity: Option<Identity>,
        token: Option<Token>,
    },
    /// A message that a session has left behind unfinished, for another member of the group.
    DeliverOrphan {
        group: Box<GroupName>,
        message: Message,
        identity: Identity,
        token: Option<Token>,
    },
    /// Whether messages that sessions of the asking shard have left behind were given to a session here before the process died. Answered by
    /// [`Request::OrphansKnown`].
    FindOrphans {
        asker: ShardId,
        orphans: Arc<[u64]>,
    },
    OrphansKnown {
        by: ShardId,
        orphans: Vec<u64>,
    },
    /// This shard remembers the identity of what somebody waits for; [`Request::Accepted`] follows.
    AcceptedBy {
        key: u32,
        by: ShardId,
    },
    /// A Will that was due is on its way: so many completions will come, from these shards among others, as bits.
    WillDispatched {
        key: u32,
        outstanding: u32,
        shards: u16,
    },
    /// All members that had to take a message have it.
    Accepted {
        key: u32,
        reason: ReasonCode,
    },
}

/// What a shard tells a worker.
#[derive(Debug)]
pub enum Completion {
    Claimed(Claimed),
    ClaimRefused {
        connection: ConnectionId,
        reason: ReasonCode,
    },
    /// Another connection claims the Client Identifier: close with 0x8E and release [MQTT-3.1.4-3].
    Revoke {
        connection: ConnectionId,
    },
    /// The queue was full for too long: close with 0x97, and remember it.
    QueueFull {
        connection: ConnectionId,
    },
    /// SUBACK may leave; per filter its Reason Code and whether the subscription existed already.
    Subscribed {
        connection: ConnectionId,
        ticket: Ticket,
        results: Vec<(ReasonCode, bool)>,
    },
    Unsubscribed {
        connection: ConnectionId,
        ticket: Ticket,
        results: Vec<ReasonCode>,
    },
    Deliver {
        connection: ConnectionId,
        first: SessionDelivery,
        /// Those that follow it: often none, which takes no memory.
        more: Vec<SessionDelivery>,
    },
    /// PUBREC is remembered; PUBREL may leave.
    Release {
        connection: ConnectionId,
        packet_id: PacketId,
        reason: ReasonCode,
    },
    /// The client has acknowledged a delivery with the wrong kind of packet: a Protocol Error.
    WrongAcknowledgement {
        connection: ConnectionId,
    },
    /// PUBREL is remembered; PUBCOMP may leave.
    Complete {
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// The queue of a session has room for a page of retained messages, and what came before is in it.
    RoomForPage {
        connection: ConnectionId,
    },
    RoomToRetain {
        connection: ConnectionId,
        is_there: bool,
    },
    /// A shared group has taken a member in, or refused it with an error; SUBACK may leave.
    Joined {
        connection: ConnectionId,
        ticket: Ticket,
        index: u32,
        reason: ReasonCode,
    },
    /// A shared group has let a member go; UNSUBACK may leave.
    Left {
        connection: ConnectionId,
        ticket: Ticket,
    },
}

impl Completion {
    /// The connection it is for.
    pub fn connection(&self) -> ConnectionId {
        match self {
            Completion::Claimed(claimed) => claimed.connection,
            Completion::ClaimRefused { connection, .. }
            | Completion::Revoke { connection }
            | Completion::QueueFull { connection }
            | Completion::Subscribed { connection, .. }
            | Completion::Unsubscribed { connection, .. }
            | Completion::Deliver { connection, .. }
            | Completion::Release { connection, .. }
            | Completion::WrongAcknowledgement { connection }
            | Completion::Complete { connection, .. }
            | Completion::RoomForPage { connection }
            | Completion::RoomToRetain { connection, .. }
            | Completion::Joined { connection, .. }
            | Completion::Left { connection, .. } => *connection,
        }
    }
}

#[derive(Debug)]
pub struct Claim {
    pub client_id: Arc<str>,
    pub connection: ConnectionId,
    /// Of whom.
    pub user: OwnerKey,
    /// Who pays for the session when it outlives the connection.
    pub payers: Payers,
    pub clean_start: bool,
    /// Session Expiry Interval in seconds, bounded by `session.expiry_max` already.
    pub expiry: u32,
    /// Deliveries at QoS 1 and 2 that the connection takes without acknowledgement.
    pub window: u16,
    /// The Will and its delay in seconds, for a session that outlives the connection: the store publishes it even when nobody
    /// is left to ask for it. Its `expires` is still an interval, its topic is the node's, and it is signed, see `WillOwner::sign`.
    pub will: Option<(Message, u32)>,
}

/// What becomes of the Will of a [`Claim`] when its connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WillDisposition {
    /// The client took it back [MQTT-3.14.4-3], or it has none.
    Discard,
    /// It is due after its delay, or when the session ends if that is earlier [MQTT-3.1.3-9].
    Arm,
}

/// A Will that a shard wants published. It waits for [`Request::WillDispatched`], and for the completions that this announces.
#[derive(Debug)]
pub struct DueWill {
    pub shard: ShardId,
    /// Completions go to [`Token::Append`] with this key.
    pub key: u32,
    /// Its number in the shard: the same when it is published again after a crash.
    pub id: u64,
    pub message: Message,
    /// The client that left it; `None` when a version that did not store this has written the Will.
    pub owner: Option<Arc<WillOwner>>,
}

#[derive(Debug)]
pub struct Release {
    pub client_id: Arc<str>,
    pub connection: ConnectionId,
    /// A new Session Expiry Interval, from DISCONNECT [MQTT-3.14.2-2].
    pub expiry: Option<u32>,
    pub will: WillDisposition,
    /// The client that leaves a Will, when there is one.
    pub will_owner: Option<Arc<WillOwner>>,
    /// QoS 2 messages of the client that were dispatched and that the session may not remember, for [`Resume`]; `None` from a
    /// connection that was closed before it had heard of any.
    ///
    /// [`Resume`]: crate::batch::Resume
    pub dispatched: Option<Vec<Dispatched>>,
    /// Shards that may know other messages of the session by their identities, as bits: they are told to forget them when it
    /// ends.
    pub known_to: u16,
}

/// What tells one message from another that its publisher may send again, on another connection or after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// [`SessionId::origin`]; with [`OF_SHARD`] a shard, for Wills, and with the next bit too for orphans.
    pub origin: u64,
    /// The Packet Identifier times 2, plus its toggle; of a Will or an orphan its number times 2.
    pub number: u64,
}

/// In an origin: it is no session.
const OF_SHARD: u64 = 1 << 63;

impl Identity {
    /// Of a QoS 2 PUBLISH. The toggle flips with each release, so that an identifier's next message is another.
    pub fn of_publish(session: SessionId, packet_id: PacketId, toggle: bool) -> Self {
        Self { origin: session.origin(), number: u64::from(packet_id.get()) * 2 + u64::from(toggle) }
    }

    /// Of a Will, by its shard's number for it.
    pub fn of_will(shard: ShardId, id: u64) -> Self {
        Self { origin: OF_SHARD | u64::from(shard.0), number: id * 2 }
    }

    /// Of a message that a member of a shared group left behind, by the shard's number for it.
    pub fn of_orphan(shard: ShardId, id: u64) -> Self {
        Self { origin: OF_SHARD | 1 << 62 | u64::from(shard.0), number: id * 2 }
    }

    /// The messages that are to keep their order have this in common: those of one publisher. Wills and orphans are each of another one.
    pub fn line(self) -> (u64, u64) {
        (self.origin, if self.origin & OF_SHARD == 0 { 0 } else { self.number })
    }

    /// The message before or after it under the same Packet Identifier: when one comes, nobody sends the other again.
    #[must_use]
    pub fn twin(self) -> Self {
        Self { number: self.number ^ 1, ..self }
    }
}

impl From<Identity> for shard::Identity {
    fn from(Identity { origin, number }: Identity) -> Self {
        Self { origin, number }
    }
}

/// The shards whose bits are set.
pub(crate) fn shards_of(bits: u16) -> impl Iterator<Item = ShardId> {
    (0..SHARDS).filter(move |shard| bits & 1 << shard != 0).map(ShardId)
}

const _: () = assert!(SHARDS <= 16, "a u16 has a bit for each");

/// One message for one durable session.
#[derive(Clone, Debug)]
pub struct Enqueue {
    pub message: Message,
    pub qos: QoS,
    pub retain: bool,
    pub subscription_ids: SubscriptionIds,
    pub group: Option<GroupId>,
}

/// A shared group gives a durable session a message.
#[derive(Debug)]
pub struct EnqueueForGroup {
    pub name: GroupName,
    /// It takes the session for connected: one that is not gives the message back, for another member may be there.
    pub is_connected: bool,
    /// Of what another member has left behind: it is given once, though the process may die before that is known.
    pub identity: Option<Identity>,
}

/// A page of retained messages for a subscription of a durable session.
#[derive(Debug)]
pub struct EnqueueForPage {
    pub connection: ConnectionId,
    pub filter: Box<str>,
    /// How far the walk has come with this page; `None` at its end. What is before is in the queue, or will be with this page.
    pub progress: Option<WalkProgress>,
}

/// How far a walk over retained messages has come, whichever workers host the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkProgress {
    /// Shards that have no more, as bits.
    pub done: u16,
    /// In another one it goes on behind this topic.
    pub after: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "these are the names of the packets")]
pub enum Acknowledgement {
    PubAck,
    PubRec { refused: bool },
    PubComp,
}

/// A shared subscription: what stands behind `$share/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupName {
    pub share: Box<str>,
    pub filter: Box<str>,
}

impl GroupName {
    /// Of `$share/{ShareName}/{filter}`; `None` for a subscription that is not shared.
    pub fn parse(text: &str) -> Option<Self> {
        let subscription = Subscription::parse(text).ok()?;
        Some(Self { share: subscription.share?.into(), filter: subscription.filter.as_str().into() })
    }

    /// As a client subscribes to it.
    pub fn text(&self) -> String {
        format!("$share/{}/{}", self.share, self.filter)
    }

    /// The shard where the group lives.
    pub fn shard(&self) -> ShardId {
        let hash = hash(self.share.as_bytes()).rotate_left(5) ^ hash(self.filter.as_bytes());
        ShardId((hash % u32::from(SHARDS)) as u16)
    }
}

/// The shard that owns a Client Identifier: identifiers hash to fixed buckets, buckets belong to shards.
pub fn client_shard(client_hash: u32) -> ShardId {
    ShardId((client_hash % BUCKETS % u32::from(SHARDS)) as u16)
}

/// A session as the broker names it.
pub(crate) fn session_id(shard: ShardId, uid: SessionUid) -> SessionId {
    let number = uid.as_u64();
    SessionId { shard, slot: number as u32, generation: (number >> 32) as u32 }
}

/// A session as its shard names it.
pub(crate) fn session_uid(id: SessionId) -> SessionUid {
    SessionUid::from_u64(u64::from(id.generation) << 32 | u64::from(id.slot))
}

/// Buckets that Client Identifiers hash to.
pub const BUCKETS: u32 = 4096;
/// Shards of a node.
pub const SHARDS: u16 = 16;

/// Who takes part in a shared subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A session that ends with this connection.
    Connection(ConnectionId),
    Session(SessionId),
    /// All members on another node.
    Node(NodeIndex),
}

#[derive(Debug)]
pub struct Join {
    pub group: GroupName,
    pub member: Member,
    /// The connection to deliver to; `None` while a durable member is away.
    pub connection: Option<ConnectionId>,
    pub options: Options,
    pub subscription_id: u32,
    /// Whom to answer with [`Completion::Joined`]: the SUBSCRIBE and the filter's place among those that were asked of the
    /// store.
    pub reply: Option<(ConnectionId, Ticket, u32)>,
    /// What the SUBSCRIBE has reserved.
    pub shapes: Option<Arc<ShapeReservations>>,
}
