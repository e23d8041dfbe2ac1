//! Messages between workers: one [`Batch`] per turn and per receiver.

use std::ops::Range;
use std::sync::Arc;

use mqtt::{PacketId, PlainShape, QoS, ReasonCode};
use session::{Dispatched, Toggles};

use crate::access::AuthResult;
use crate::admin::AdminCommand;
use crate::groups::{GroupAnswer, GroupRequest};
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Time, WorkerId};
use crate::link_waits::WaitingSuback;
use crate::message::Message;
use crate::peers::{Inbound, ShardFrame};
use crate::retained::{Page, Scan};
use crate::route::{Options, Route};
use crate::store::{Completion, DueWill, ReplicaStart, Request, StoreEvent, WalkProgress};

/// All commands and deliveries of one worker for another at the end of a turn. Its vectors are reused: a steady flow of
/// messages between two workers allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) records: Vec<u8>,
    pub(crate) deliveries: Vec<BatchDelivery>,
    pub(crate) targets: Vec<Target>,
    /// Completions: the token of each waiting request, and the result.
    pub acknowledged: Vec<(Token, ReasonCode)>,
    pub commands: Vec<WorkerCommand>,
}

/// One message for some connections of the receiving worker.
#[derive(Debug)]
pub(crate) struct BatchDelivery {
    pub body: Body,
    pub targets: Range<usize>,
    pub token: Option<Token>,
    /// Number of the publish within its worker: targets of one publish are added to one delivery.
    pub serial: u64,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// The message is encoded in the batch's `records`.
    Inline(Range<usize>),
    /// The batch's `records` have a copy of the plain packet that the publisher sent. No receiver needs more.
    Plain { packet: Range<usize>, shape: PlainShape, received: Time },
    /// The message is large enough that sharing costs less than copying.
    Shared(Message),
}

/// One subscription of one connection that receives the message. Subscriptions of one connection are adjacent: the
/// first has the merged options, the others add their Subscription Identifiers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub slot: u32,
    pub generation: u32,
    pub subscription_id: u32,
    pub options: Options,
    pub continues: bool,
}

impl Target {
    /// The target of a route to a connection.
    pub fn of(route: &Route) -> Self {
        let Route { slot, generation, subscription_id, options, .. } = *route;
        Self { slot, generation, subscription_id, options, continues: false }
    }
}

/// The request that waits for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Publish number `sequence` of a connection.
    Publish { connection: ConnectionId, sequence: u32 },
    /// Message number `key` that an operator publishes on a worker.
    Operator { worker: WorkerId, key: u32 },
    /// Page number `key` of the retained messages that a worker copies to other nodes.
    Copy { worker: WorkerId, key: u32 },
    /// Message number `key` of those that the host of shared groups has offered to members.
    Offered { shard: ShardId, key: u32 },
    /// Message number `key` of those that a worker has received from other nodes.
    Forwarded { worker: WorkerId, key: u32 },
    /// Append number `key` of a shard.
    Append { shard: ShardId, key: u32 },
    /// Message number `key` of the host of shared groups, which waits for several members.
    Groups { shard: ShardId, key: u32 },
    /// Request of another node: its number on a lane, see [`Token::requested`].
    Requested { lane: WorkerId, kind: TokenKind, number_low: u32, number_high: u32 },
}

const _: () = assert!(size_of::<Token>() == 20, "a batch has one for each message");

/// Party that waits, as far as a shard makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// The publisher of a message. The message was admitted when it was dispatched.
    Publisher,
    /// An append of a shard, which may be that of a Will.
    Append,
    Other,
}

impl Token {
    /// Makes the token of a request that a worker of another node has sent. `lane` stands for that worker and a shard.
    /// The number is that of the request on this lane.
    pub fn requested(lane: WorkerId, number: u64) -> Self {
        let kind = TokenKind::Other;
        Self::Requested { lane, kind, number_low: number as u32, number_high: (number >> 32) as u32 }
    }

    /// Lane and number of a request of another node.
    pub fn as_requested(self) -> Option<(WorkerId, u64)> {
        match self {
            Self::Requested { lane, number_low, number_high, .. } => {
                Some((lane, u64::from(number_high) << 32 | u64::from(number_low)))
            }
            _ => None,
        }
    }

    /// Returns which party waits, on whichever node.
    pub(crate) fn kind(self) -> TokenKind {
        match self {
            Self::Publish { .. } => TokenKind::Publisher,
            Self::Append { .. } => TokenKind::Append,
            Self::Requested { kind, .. } => kind,
            Self::Operator { .. }
            | Self::Copy { .. }
            | Self::Offered { .. }
            | Self::Groups { .. }
            | Self::Forwarded { .. } => TokenKind::Other,
        }
    }

    /// Copy of the token of a request of another node, for this party there.
    #[must_use]
    pub(crate) fn for_kind(self, kind: TokenKind) -> Self {
        match self {
            Self::Requested { lane, number_low, number_high, .. } => {
                Self::Requested { lane, kind, number_low, number_high }
            }
            token => token,
        }
    }
}

/// A command of one worker to another: everything that is rarer than a message.
#[derive(Debug)]
pub enum WorkerCommand {
    Request(ShardId, Request),
    /// A request to the host of shared groups, with the number of its shard.
    Group(ShardId, GroupRequest),
    GroupAnswer(GroupAnswer),
    /// The groups have a message of a publisher of the receiver. This request for the shard is next.
    GroupsTook(ShardId, Request),
    Completion(Completion),
    /// Requests a [`WorkerCommand::Flushed`]. The receiver sends it once everything that it published before is in the
    /// mailboxes of the other workers. A command that is sent after the answer therefore arrives after those messages.
    Flush(FlushWaiter),
    Flushed(FlushWaiter),
    Scan(Box<Scan>),
    Page(Box<Page>),
    /// The connection that has asked for a page is closed.
    DropScan(ConnectionId),
    /// A message for a member of a shared group.
    Member(MemberDelivery),
    AuthResult(ConnectionId, AuthResult),
    /// Access control now has the answer to a question about this connection.
    RetryAuthorize(ConnectionId, AuthorizeSubject),
    /// A Will that is due; the receiver publishes it.
    Will(Box<DueWill>),
    /// A request of an operator.
    AdminRequest(AdminCommand),
    /// Messages and commands of other nodes.
    Peers(Box<Inbound>),
    /// A frame of a worker of this node, for a shard of the receiver or for the receiver.
    ShardFrame(ShardFrame),
    /// The worker waits until this node has reached this route position of a shard of the receiver. A
    /// [`WorkerCommand::RoutesReached`] answers.
    AwaitRoutes {
        shard: ShardId,
        index: u64,
        worker: WorkerId,
    },
    /// This node has reached this route position of a shard that the receiver waits for.
    RoutesReached {
        shard: ShardId,
        position: u64,
    },
    /// Events of the log for shards of the receiver.
    Store(Vec<(ShardId, StoreEvent)>),
    /// A replica of a shard of the receiver begins on this node.
    StartReplica(Box<ReplicaStart>),
    /// This node has no replica of the shard any more.
    StopReplica(ShardId),
    /// Links to other clusters have confirmed the filters of a SUBSCRIBE, or have not done so in time.
    LinksAnswered {
        suback: WaitingSuback,
        is_confirmed: bool,
    },
}

/// The request that waits until workers have passed on what they published before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushWaiter {
    /// A connection that has new subscriptions, and the number of this wait.
    Connection(ConnectionId, u32),
    /// Copy number `key` of the retained messages on a worker, for other nodes.
    Copies { worker: WorkerId, key: u32 },
}

impl FlushWaiter {
    pub fn worker(self) -> WorkerId {
        match self {
            Self::Connection(connection, _) => connection.worker,
            Self::Copies { worker, .. } => worker,
        }
    }
}

/// Subject of a question to access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizeSubject {
    Will,
    /// The packet that waits for its permission.
    Packet,
    /// An existing subscription, or the Will of a connected client.
    Subscription,
}

impl WorkerCommand {
    /// Connection that this command closes because another has claimed its Client Identifier. Packets that its client
    /// sent earlier must be handled first: one may be a DISCONNECT, after which there is no Will [MQTT-3.14.4-3].
    pub fn revoked(&self) -> Option<ConnectionId> {
        match self {
            WorkerCommand::Completion(Completion::Revoke { connection }) => Some(*connection),
            _ => None,
        }
    }

    /// Bytes of the messages in the command.
    fn messages_size(&self) -> usize {
        match self {
            WorkerCommand::Request(_, Request::Append { message, .. } | Request::Retain { message, .. }) => {
                message.size()
            }
            WorkerCommand::Request(_, Request::EnqueueToGroup(enqueue)) => enqueue.message.size(),
            WorkerCommand::GroupsTook(_, Request::Append { message, .. }) => message.size(),
            WorkerCommand::Group(_, request) => request.message_size(),
            WorkerCommand::Will(will) => will.message.size(),
            WorkerCommand::Request(_, Request::Enqueue { entries, .. }) => {
                entries.iter().map(|entry| entry.message.size()).sum()
            }
            WorkerCommand::Member(delivery) => delivery.message.size(),
            WorkerCommand::Page(page) => page.messages.iter().map(Message::size).sum(),
            WorkerCommand::Completion(Completion::Deliver { first, more, .. }) => {
                let size = |delivery: &SessionDelivery| match delivery {
                    SessionDelivery::Publish { message, .. } => message.size(),
                    SessionDelivery::PubRel { .. } => 0,
                };
                size(first) + more.iter().map(size).sum::<usize>()
            }
            WorkerCommand::ShardFrame(frame) => frame.bytes.len(),
            WorkerCommand::Peers(inbound) => inbound.messages.iter().map(|message| message.frame.len()).sum(),
            WorkerCommand::Request(..)
            | WorkerCommand::Completion(_)
            | WorkerCommand::GroupAnswer(_)
            | WorkerCommand::GroupsTook(..)
            | WorkerCommand::Flush(..)
            | WorkerCommand::Flushed(..)
            | WorkerCommand::Scan(_)
            | WorkerCommand::DropScan(_)
            | WorkerCommand::AuthResult(..)
            | WorkerCommand::AwaitRoutes { .. }
            | WorkerCommand::RoutesReached { .. }
            | WorkerCommand::RetryAuthorize(..)
            | WorkerCommand::StartReplica(_)
            | WorkerCommand::StopReplica(_)
            | WorkerCommand::LinksAnswered { .. }
            | WorkerCommand::AdminRequest(_) => 0,
            WorkerCommand::Store(events) => {
                let size = |event: &StoreEvent| match event {
                    StoreEvent::Read(read) => {
                        read.iter().filter_map(|(_, message)| message.as_ref()).map(Message::size).sum()
                    }
                    _ => 0,
                };
                events.iter().map(|(_, event)| size(event)).sum()
            }
        }
    }
}

/// A message of a shared subscription on its way to the chosen member.
#[derive(Debug)]
pub struct MemberDelivery {
    pub group: GroupId,
    pub connection: ConnectionId,
    pub message: Message,
    pub options: Options,
    pub subscription_id: u32,
    pub token: Option<Token>,
}

/// One delivery of a durable session for its connection, with the Packet Identifier that it keeps.
#[derive(Debug)]
pub enum SessionDelivery {
    Publish {
        packet_id: PacketId,
        qos: QoS,
        dup: bool,
        retain: bool,
        message: Message,
        subscription_ids: SubscriptionIds,
    },
    /// The QoS 2 delivery continues here after a reconnect.
    PubRel { packet_id: PacketId },
}

impl SessionDelivery {
    pub fn packet_id(&self) -> PacketId {
        match self {
            Self::Publish { packet_id, .. } | Self::PubRel { packet_id } => *packet_id,
        }
    }

    /// Bytes of its message.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Publish { message, .. } => message.size(),
            Self::PubRel { .. } => 0,
        }
    }
}

/// Subscription Identifiers of one delivery, usually none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionIds(Option<Arc<[u32]>>);

impl SubscriptionIds {
    pub fn of(ids: &[u32]) -> Self {
        Self((!ids.is_empty()).then(|| ids.into()))
    }

    pub fn as_slice(&self) -> &[u32] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// State that a resumed session passes to its new connection.
#[derive(Debug, Default)]
pub struct Resume {
    pub subscriptions: Vec<(Box<str>, Options, u32)>,
    /// QoS 2 Packet Identifiers received from the client and not released.
    pub received: Vec<u16>,
    /// Packet Identifiers whose next message has the second identity.
    pub toggles: Toggles,
    /// QoS 2 messages that a previous connection dispatched during this run of the node: connected clients already have
    /// them.
    pub dispatched: Vec<Dispatched<ShardSet>>,
    /// Topic Filters whose retained messages are not all queued, and the progress of each.
    pub walks: Vec<(Box<str>, WalkProgress)>,
}

/// Result of a claim that was granted.
#[derive(Debug)]
pub struct Claimed {
    pub connection: ConnectionId,
    pub session_present: bool,
    /// The durable session; `None` for a session that ends with the connection.
    pub session: Option<SessionId>,
    /// Epoch of the durable session. Without one, [`Claimed::KEPT`] or 0.
    pub epoch: u32,
    pub resume: Option<Box<Resume>>,
}

impl Claimed {
    /// The shard keeps the ephemeral session and its Will. With 0 the worker of the connection publishes the Will.
    pub const KEPT: u32 = 1;

    /// Result of a claim of an ephemeral session that the shard keeps.
    pub(crate) fn kept(connection: ConnectionId) -> Self {
        Self { connection, session_present: false, session: None, epoch: Self::KEPT, resume: None }
    }

    pub fn is_kept(&self) -> bool {
        self.session.is_none() && self.epoch == Self::KEPT
    }
}

impl Batch {
    /// Makes a batch of one command.
    pub fn of(command: WorkerCommand) -> Self {
        Self { commands: vec![command], ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty() && self.acknowledged.is_empty() && self.commands.is_empty()
    }

    /// Approximate number of bytes that the batch keeps in memory until the receiver has handled it. Mailboxes are
    /// bounded by it.
    pub fn weight(&self) -> usize {
        let shared = self.deliveries.iter().map(|delivery| match &delivery.body {
            Body::Inline(_) | Body::Plain { .. } => 0,
            Body::Shared(message) => message.size(),
        });
        let commands = self.commands.iter().map(|command| 128 + command.messages_size());
        self.records.len()
            + self.targets.len() * size_of::<Target>()
            + self.acknowledged.len() * size_of::<(Token, ReasonCode)>()
            + shared.sum::<usize>()
            + commands.sum::<usize>()
    }

    /// Empties the batch and keeps its memory, up to `keep` bytes of records.
    pub fn recycle(&mut self, keep: usize) {
        self.records.clear();
        if self.records.capacity() > keep {
            self.records = Vec::new();
        }
        self.deliveries.clear();
        self.targets.clear();
        self.acknowledged.clear();
        self.commands.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Time;
    use crate::message::MessageView;

    /// Mailboxes are bounded by the memory that their batches keep, including large messages that workers share.
    #[test]
    fn shared_messages_count_with_their_size() {
        let payload = vec![0; 100_000];
        let view = MessageView {
            topic: "t",
            properties: &[],
            payload: &payload,
            qos: QoS::AtMostOnce,
            retain: false,
            expires: Time::NEVER,
            received: Time::default(),
            publisher: None,
            publisher_key: 0,
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        };
        let message = view.to_message();
        let append = Request::Append { message: message.clone(), identity: None, refusal: None, token: None };
        let mut batch = Batch::of(WorkerCommand::Request(ShardId(0), append));
        assert!(batch.weight() > 100_000);
        let retain = Request::Retain {
            message: message.clone(),
            stamp: 0,
            copied_by: None,
            refusal: None,
            token: None,
            payers: Default::default(),
        };
        batch.commands.push(WorkerCommand::Request(ShardId(0), retain));
        assert!(batch.weight() > 200_000);
        batch.deliveries.push(BatchDelivery {
            body: Body::Shared(message),
            targets: 0..0,
            token: None,
            serial: 0,
        });
        assert!(batch.weight() > 300_000);
    }
}
