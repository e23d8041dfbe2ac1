//! The session store: owners of Client Identifiers, and the contents of durable sessions.
//!
//! Workers send it [`Request`]s and receive [`Completion`]s; nothing is acknowledged to a client before its completion
//! has arrived. A [`ShardHost`] is one shard of it, hosted by one of the workers. Requests to a shard travel like any
//! other command.
//!
//! **Invariant:** the worker that sends a request never assumes when its completion arrives, or in which order
//! completions of different sessions do.

mod follower;
mod host;
mod log;
mod replica;
mod replica_routes;
mod retained_stamps;
pub(crate) mod shard_clock;
mod shard_routes;
mod stale;
pub(crate) mod wire;

use std::borrow::Cow;
use std::sync::Arc;

use crate::shapes::ShapeReservations;
use mqtt::{PacketId, QoS, ReasonCode, Subscription};
use session::Dispatched;
pub use shard::SHARDS;
use shard::{LINK_SHARE, QueueLimits, SessionUid};

pub(crate) use follower::Follower;
pub use host::ShardOutput;
pub(crate) use host::{
    HostContext, Numbered, Producer, ReadTicket, SUBSCRIPTIONS_AT_ONCE, ShardHost, is_kept,
};
pub use log::{
    Agreement, AgreementEvent, CommittedBatch, Condition, Frame, Incarnation, PeerFrame, Purpose,
    ReplicaProgress, ReplicaStart, Step, Store, StoreEvent, StoreLog, Vacate, Wanted,
};
pub use replica::ReplicaCounters;
pub(crate) use replica_routes::ReplicaRoutes;
pub(crate) use shard_routes::ShardRoutes;
pub use stale::stale_identities;
#[doc(hidden)]
pub use wire::{check_wire_form, decode_wire_form};

use crate::batch::{Claimed, SessionDelivery, SubscriptionIds, Token};
use crate::durability::Durability;
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, WorkerId, hash};
use crate::message::Message;
use crate::node::OwnerKey;
use crate::peers::NodeIndex;
use crate::quota::Payers;
use crate::route::Options;
use crate::will::WillOwner;

/// Result of a message that the full queue of a durable session refuses. The publisher gets Quota exceeded, although
/// other sessions may have the message: with Quota exceeded itself, its connection would be closed then. This Reason
/// Code is for DISCONNECT only, so no other result of a message has it.
pub const QUEUE_REFUSED: ReasonCode = ReasonCode::MessageRateTooHigh;

/// Returns the Reason Code that a publisher gets.
pub(crate) fn reason_for_publisher(reason: ReasonCode) -> ReasonCode {
    if reason == QUEUE_REFUSED { ReasonCode::QuotaExceeded } else { reason }
}

/// Returns the worse of two results of a message. A refusal is better than a failure, after which nobody knows who has
/// the message.
pub(crate) fn worse(known: ReasonCode, other: ReasonCode) -> ReasonCode {
    let is_worse = other.is_error() && !(other == QUEUE_REFUSED && known.is_error());
    if is_worse { other } else { known }
}

/// A request of a worker to a shard. Requests of one worker to one shard are applied in the order in which they were
/// sent.
#[derive(Debug)]
pub enum Request {
    /// A connection wants to serve a Client Identifier.
    Claim(Box<Claim>),
    /// A connection has a session that an earlier leader of the shard has served. Not answered, unless the connection
    /// does not own the session any more: then it is revoked.
    Attach(Box<Attach>),
    /// A connection stops serving its Client Identifier: it was closed, or this is the answer to a revocation.
    Release(Box<Release>),
    /// Adds subscriptions of a durable session. Answered by [`Completion::Subscribed`] with the same `ticket`.
    Subscribe {
        session: SessionId,
        connection: ConnectionId,
        ticket: Ticket,
        filters: Vec<(Box<str>, Options, u32)>,
        /// Reservations of the unusual arrangements of wildcards.
        shapes: Option<Arc<ShapeReservations>>,
        /// Retained messages exist: the session remembers the subscriptions that are to get some.
        retained: bool,
    },
    /// Removes subscriptions. Answered by [`Completion::Unsubscribed`].
    Unsubscribe {
        session: SessionId,
        connection: ConnectionId,
        ticket: Ticket,
        filters: Vec<Box<str>>,
    },
    /// Removes a subscription that the access rules no longer allow. Not answered.
    Withdraw {
        session: SessionId,
        filter: Box<str>,
    },
    /// Appends a message for the shard's durable sessions that match.
    Append {
        message: Message,
        /// Identity of a message that its publisher may send again. A message that is known already is only answered,
        /// when the first one is queued.
        identity: Option<Identity>,
        /// Reason to refuse the parts that need the log. With `None` they are accepted, whatever the state of the log
        /// is now.
        refusal: Option<ReasonCode>,
        token: Option<Token>,
    },
    /// Forgets an identity: the publisher does not send the message again. Not answered. In a cluster the exchange of
    /// the message does not end before this is committed.
    ForgetIdentity {
        identity: Identity,
    },
    /// Forgets the identities of one origin with lower numbers. Their messages are settled, and none is accepted any
    /// more, whichever former leader has sent it. Not answered.
    ForgetBelow {
        identity: Identity,
    },
    /// Forgets all identities of a session that has ended. Not answered.
    ForgetOrigin {
        origin: u64,
    },
    /// Stores the retained message of a topic of this shard, or deletes it when the payload is empty [MQTT-3.3.1-6].
    Retain {
        message: Message,
        /// Stamp of the message; 0 on a node without others.
        stamp: u64,
        /// The node that has sent this copy of its own retained message.
        copied_by: Option<NodeIndex>,
        /// Reason to refuse, as in [`Request::Append`].
        refusal: Option<ReasonCode>,
        token: Option<Token>,
        /// Accounts that pay for the message: none for one of another node.
        payers: Payers,
    },
    /// Asks whether there is room for a topic's retained message of about this size. Answered by
    /// [`Completion::RoomToRetain`].
    AskRoomToRetain {
        topic: Box<str>,
        size: u64,
        connection: ConnectionId,
        payers: Payers,
    },
    /// Deletes a topic's retained message for an operator. Answered by `token`: [`ReasonCode::NoSubscriptionExisted`]
    /// when there was none.
    DeleteRetained {
        topic: Box<str>,
        token: Token,
    },
    /// Queues messages for one durable session: retained ones of a new subscription, one of a shared group, or one of
    /// QoS 0 that the session stores. The last one has neither group, token nor page.
    Enqueue {
        session: SessionId,
        entries: Vec<Enqueue>,
        /// Present for a message of a shared group.
        group: Option<Box<EnqueueForGroup>>,
        token: Option<Token>,
        /// Present for a page of retained messages. Answered by [`Completion::RoomForPage`] when there is room for
        /// another one.
        page: Option<Box<EnqueueForPage>>,
    },
    /// Asks whether the queue of a session has room for a page of retained messages. Answered by
    /// [`Completion::RoomForPage`] when it has.
    AskRoomForPage {
        session: SessionId,
        connection: ConnectionId,
    },
    /// Ends the walk of a subscription: it has no more retained messages to get. Not answered.
    EndWalk {
        session: SessionId,
        filter: Box<str>,
    },
    /// Reports the client's acknowledgement of a QoS 1 or 2 delivery.
    Acknowledge {
        session: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    /// Remembers a QoS 2 PUBLISH of a durable session before PUBREC is sent. The message is already queued wherever the
    /// store is responsible for that.
    Receive {
        session: SessionId,
        packet_id: PacketId,
        /// Durability class. With `memory`, PUBREC does not wait for the disk. PUBCOMP does, so that the identifier is
        /// not used again before it is forgotten.
        durability: Durability,
        token: Token,
    },
    /// Forgets a QoS 2 PUBLISH whose PUBREL arrived, before PUBCOMP is sent. The Packet Identifier's toggle flips,
    /// whether it is known or not.
    Released {
        session: SessionId,
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// Forgets a QoS 2 PUBLISH that was refused. Not answered.
    Forget {
        session: SessionId,
        packet_id: PacketId,
        /// True when some shards may have the message: the Packet Identifier's toggle flips, so that its next message
        /// is a different one.
        flip: bool,
        /// Token that the worker completes when the request is committed, in a cluster. It stays in the worker.
        token: Option<Token>,
    },
    /// Queues a message for one of the shard's durable sessions in a shared group. Answered by the token:
    /// [`ReasonCode::ServerUnavailable`] when there is none.
    EnqueueToGroup(Box<EnqueueToGroup>),
    /// Asks whether a message with this identity was accepted. Answered by the token:
    /// [`ReasonCode::NoMatchingSubscribers`] when it was not.
    FindIdentity {
        identity: Identity,
        token: Token,
    },
    /// Asks whether messages that sessions of the asking shard left unfinished were given to a session here before the
    /// process ended. Answered by [`Request::OrphansKnown`].
    FindOrphans {
        asker: ShardId,
        orphans: Arc<[u64]>,
    },
    OrphansKnown {
        by: ShardId,
        orphans: Vec<u64>,
    },
    /// Reports that this shard remembers the identity of a message whose publisher waits; [`Request::Accepted`]
    /// follows.
    AcceptedBy {
        key: u32,
        by: ShardId,
    },
    /// Reports that a due Will was dispatched. So many completions will arrive, among others from these shards.
    WillDispatched {
        key: u32,
        outstanding: u32,
        shards: ShardSet,
    },
    /// Reports that all members that had to accept a message have it.
    Accepted {
        key: u32,
        reason: ReasonCode,
    },
}

/// A message of a shard to a worker.
#[derive(Debug)]
pub enum Completion {
    Claimed(Claimed),
    /// The shard has not applied the Claim, and keeps nothing of the connection.
    ClaimRefused {
        connection: ConnectionId,
        reason: ReasonCode,
    },
    /// Another connection claims the Client Identifier: close with 0x8E and release [MQTT-3.1.4-3].
    Revoke {
        connection: ConnectionId,
    },
    /// The queue was full for too long: close with 0x97, and remember the client.
    QueueFull {
        connection: ConnectionId,
    },
    /// SUBACK may be sent. For each filter: its Reason Code, and whether the subscription existed already.
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
        /// The deliveries after the first. There are often none, which takes no memory.
        more: Vec<SessionDelivery>,
    },
    /// PUBREC of the client is remembered; PUBREL may be sent.
    Release {
        connection: ConnectionId,
        packet_id: PacketId,
        reason: ReasonCode,
    },
    /// The client has acknowledged a delivery with the wrong kind of packet: a Protocol Error.
    WrongAcknowledgement {
        connection: ConnectionId,
    },
    /// PUBREL is remembered; PUBCOMP may be sent.
    Complete {
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// The queue of a session has room for a page of retained messages and contains the previous one.
    RoomForPage {
        connection: ConnectionId,
    },
    RoomToRetain {
        connection: ConnectionId,
        is_there: bool,
    },
}

impl Request {
    /// Token of the request, if something waits for its result.
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Append { token, .. }
            | Self::Retain { token, .. }
            | Self::Enqueue { token, .. }
            | Self::Forget { token, .. } => *token,
            Self::DeleteRetained { token, .. }
            | Self::Receive { token, .. }
            | Self::FindIdentity { token, .. } => Some(*token),
            Self::EnqueueToGroup(enqueue) => Some(enqueue.token),
            _ => None,
        }
    }

    /// Session of a request that only the connection of the session may make.
    pub(crate) fn of_connection(&self) -> Option<SessionId> {
        match self {
            Self::Subscribe { session, ticket, .. } | Self::Unsubscribe { session, ticket, .. } => {
                ticket.packet_id().map(|_| *session)
            }
            Self::Withdraw { session, .. }
            | Self::Enqueue { session, page: Some(_), .. }
            | Self::EndWalk { session, .. }
            | Self::Acknowledge { session, .. }
            | Self::Receive { session, .. }
            | Self::Released { session, .. }
            | Self::Forget { session, .. } => Some(*session),
            _ => None,
        }
    }
}

impl Completion {
    /// The connection that receives it.
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
            | Completion::RoomToRetain { connection, .. } => *connection,
        }
    }
}

#[derive(Debug)]
pub struct Claim {
    pub client_id: Arc<str>,
    pub connection: ConnectionId,
    /// Owner of the Client Identifier.
    pub user: OwnerKey,
    /// Payers for the session when it outlives the connection.
    pub payers: Payers,
    pub clean_start: bool,
    /// Session Expiry Interval in seconds, already bounded by `session.expiry_max`.
    pub expiry: u32,
    /// Maximum number of QoS 1 and 2 deliveries to the connection without acknowledgement.
    pub window: u16,
    /// The Will and its delay in seconds, for a session that outlives the connection. The store publishes it even if
    /// the connection's worker cannot request that. Its `expires` is still an interval, its topic is the node's, and it
    /// is signed, see `WillOwner::sign`.
    pub will: Option<(Message, u32)>,
    /// Limits of the session's queue; `None` for the settings of the node.
    pub queue_limits: Option<QueueLimits>,
    /// Number of the request; 0 on a node alone.
    pub number: u64,
}

/// A connection and its session, for the next leader of the shard.
#[derive(Debug)]
pub struct Attach {
    pub client_id: Arc<str>,
    pub session: SessionId,
    pub epoch: u32,
    pub connection: ConnectionId,
    /// Owner of the Client Identifier.
    pub user: OwnerKey,
    pub payers: Payers,
    /// Value of [`Claim::window`].
    pub window: u16,
    /// Last delivery that the shard has sent over this connection.
    pub last: Option<PacketId>,
    /// Value of [`Release::known_to`].
    pub known_to: ShardSet,
}

/// Treatment of the Will of a [`Claim`] when its connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WillDisposition {
    /// The client deleted it by DISCONNECT [MQTT-3.14.4-3], or it has none.
    Discard,
    /// The Will is due after its delay, or when the session ends if that is earlier [MQTT-3.1.3-9].
    Arm,
}

/// A Will for a worker to publish. It waits for [`Request::WillDispatched`], and for the completions that this
/// announces.
#[derive(Debug)]
pub struct DueWill {
    pub shard: ShardId,
    /// Key of the [`Token::Append`] that completions go to.
    pub key: u32,
    /// Number of the Will in the shard: the same when it is published again after a crash.
    pub id: u64,
    pub message: Message,
    /// Client whose Will it is; `None` for a Will that was written by a version that did not store the client.
    pub owner: Option<Arc<WillOwner>>,
}

#[derive(Debug)]
pub struct Release {
    pub client_id: Arc<str>,
    pub connection: ConnectionId,
    /// A new Session Expiry Interval, from DISCONNECT [MQTT-3.14.2-2].
    pub expiry: Option<u32>,
    pub will: WillDisposition,
    /// Client that leaves a Will, if there is one.
    pub will_owner: Option<Arc<WillOwner>>,
    /// QoS 2 messages of the client that were dispatched and that the session may not remember, for [`Resume`]; `None`
    /// from a connection that was closed before it received any.
    ///
    /// [`Resume`]: crate::batch::Resume
    pub dispatched: Option<Vec<Dispatched<ShardSet>>>,
    /// Shards that may remember other messages of the session by their identities. They are notified when the
    /// session ends.
    pub known_to: ShardSet,
    /// Number of the request; 0 on a node alone.
    pub number: u64,
}

impl Release {
    /// Lane and number of the request of a node of the cluster.
    pub(crate) fn late(&self) -> Option<(WorkerId, u64)> {
        (self.number > 0).then_some((self.connection.worker, self.number))
    }
}

/// Identity of a message that its publisher may send again, on another connection or after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Origin: [`SessionId::origin`] for a session. With [`OF_SHARD`] it is a shard, for Wills; with the next bit too,
    /// for orphans.
    pub origin: u64,
    /// The Packet Identifier times 2, plus its toggle. For a Will or an orphan: its number times 2.
    pub number: u64,
}

/// Bit of an origin that is no session.
const OF_SHARD: u64 = 1 << 63;
/// Bit of the origins of orphans, among those.
const OF_ORPHAN: u64 = 1 << 62;

impl Identity {
    /// Identity of a QoS 2 PUBLISH. The toggle flips with each release, so that an identifier's next message is a
    /// different one.
    pub fn of_publish(session: SessionId, packet_id: PacketId, toggle: bool) -> Self {
        Self { origin: session.origin(), number: u64::from(packet_id.get()) * 2 + u64::from(toggle) }
    }

    /// Identity of a Will, by its shard's number for it.
    pub fn of_will(shard: ShardId, id: u64) -> Self {
        Self { origin: OF_SHARD | u64::from(shard.0), number: id * 2 }
    }

    /// Identity of a message that a member of a shared group left unfinished, by the shard's number for it.
    pub fn of_orphan(shard: ShardId, id: u64) -> Self {
        Self { origin: OF_SHARD | OF_ORPHAN | u64::from(shard.0), number: id * 2 }
    }

    /// Returns whether the message is an orphan of a shard.
    pub(crate) fn is_of_orphan(self) -> bool {
        self.origin & (OF_SHARD | OF_ORPHAN) == OF_SHARD | OF_ORPHAN
    }

    /// Returns whether the message is one of a shard: a Will or an orphan.
    pub fn is_of_shard(self) -> bool {
        self.origin & OF_SHARD != 0
    }

    /// Origin and Packet Identifier of a QoS 2 PUBLISH; `None` for a Will or an orphan.
    pub fn exchange(self) -> Option<(u64, u16)> {
        (!self.is_of_shard()).then_some((self.origin, (self.number / 2) as u16))
    }

    /// Key that is equal for messages that keep their order: those of one publisher. Each Will and each orphan has its
    /// own.
    pub fn line(self) -> (u64, u64) {
        (self.origin, if self.origin & OF_SHARD == 0 { 0 } else { self.number })
    }

    /// Identity of the message before or after it under the same Packet Identifier. When one arrives, the other is not
    /// sent again.
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

/// One message for one durable session.
#[derive(Clone, Debug)]
pub struct Enqueue {
    pub message: Message,
    pub qos: QoS,
    pub retain: bool,
    pub subscription_ids: SubscriptionIds,
    pub group: Option<GroupId>,
}

/// A message of a shared group for a durable session that its shard chooses.
#[derive(Debug)]
pub struct EnqueueToGroup {
    pub name: GroupName,
    pub group: GroupId,
    pub message: Message,
    /// Value of [`EnqueueForGroup::identity`].
    pub identity: Option<Identity>,
    pub token: Token,
}

/// Properties of a message from a shared group to a durable session.
#[derive(Debug)]
pub struct EnqueueForGroup {
    pub name: GroupName,
    /// The group takes the session for connected. One that is not refuses the message with
    /// [`ReasonCode::ServerUnavailable`], because another member may be connected.
    pub is_connected: bool,
    /// Identity of a message that another member left unfinished. It is given once, even if the process ends before
    /// that is known.
    pub identity: Option<Identity>,
}

/// A page of retained messages for a subscription of a durable session.
#[derive(Debug)]
pub struct EnqueueForPage {
    pub connection: ConnectionId,
    pub filter: Box<str>,
    /// Progress of the walk with this page; `None` at its end. Earlier messages are in the queue, or are added with
    /// this page.
    pub progress: Option<WalkProgress>,
}

/// Progress of a walk over retained messages, whichever workers host the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkProgress {
    /// Shards that have no more.
    pub done: ShardSet,
    /// Topic after which the walk continues in another shard.
    pub after: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "these are the names of the packets")]
pub enum Acknowledgement {
    PubAck,
    PubRec { refused: bool },
    PubComp,
}

/// A shared subscription: the text after `$share/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName {
    pub share: Box<str>,
    pub filter: Box<str>,
}

impl GroupName {
    /// Parses `$share/{ShareName}/{filter}`; `None` for a subscription that is not shared.
    pub fn parse(text: &str) -> Option<Self> {
        let subscription = Subscription::parse(text).ok()?;
        Some(Self { share: subscription.share?.into(), filter: subscription.filter.as_str().into() })
    }

    /// Text of the subscription in a SUBSCRIBE.
    pub fn text(&self) -> String {
        format!("$share/{}/{}", self.share, self.filter)
    }

    /// The shard that owns the group. It is the same for linked clusters that are members.
    pub fn shard(&self) -> ShardId {
        let (share, _) = self.share_of_clients();
        let hash = hash(share.as_bytes()).rotate_left(5) ^ hash(self.filter.as_bytes());
        ShardId::of_hash(hash)
    }

    /// Members that join by this name.
    pub(crate) fn kind(&self) -> MemberKind {
        self.share_of_clients().1
    }

    /// Name by which clients join the group.
    pub(crate) fn of_clients(&self) -> Cow<'_, Self> {
        match self.share_of_clients() {
            (_, MemberKind::Client) => Cow::Borrowed(self),
            (share, MemberKind::Link) => {
                Cow::Owned(Self { share: share.into(), filter: self.filter.clone() })
            }
        }
    }

    /// Name by which members of this kind join the group. To be called with the name of the clients.
    pub(crate) fn of(self, kind: MemberKind) -> Self {
        match kind {
            MemberKind::Client => self,
            MemberKind::Link => Self { share: format!("{LINK_SHARE}{}", self.share).into(), ..self },
        }
    }

    fn share_of_clients(&self) -> (&str, MemberKind) {
        match self.share.strip_prefix(LINK_SHARE) {
            Some(share) => (share, MemberKind::Link),
            None => (&self.share, MemberKind::Client),
        }
    }
}

/// Members of a shared group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberKind {
    Client,
    /// Sessions of linked clusters, which pass messages on to members of the group there.
    Link,
}

/// The shard that owns a Client Identifier: identifiers hash to fixed buckets, buckets belong to shards.
pub fn client_shard(client_hash: u32) -> ShardId {
    ShardId::of_hash(client_hash)
}

/// The shard that a Client Identifier belongs to.
pub fn shard_of_client(client_id: &str) -> ShardId {
    client_shard(crate::ids::client_hash(client_id))
}

/// Id of a session in the broker.
pub(crate) fn session_id(shard: ShardId, uid: SessionUid) -> SessionId {
    let number = uid.as_u64();
    SessionId { shard, slot: number as u32, generation: (number >> 32) as u32 }
}

/// Id of a session in its shard.
pub(crate) fn session_uid(id: SessionId) -> SessionUid {
    SessionUid::from_u64(u64::from(id.generation) << 32 | u64::from(id.slot))
}
