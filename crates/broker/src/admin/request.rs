//! Commands that carry the requests of [`Admin`](super::Admin) to workers.

use std::fmt;
use std::sync::Arc;

use mqtt::ReasonCode;

use super::client::{ClientDetail, ClientFilter, ClientPage, Kicked, Matches, QueuePage};
use super::client::{SubscriptionFilter, SubscriptionInfo, SubscriptionPage, Whereabouts};
use super::drain::{DrainStep, Drained};
use super::trace::Running;
use super::watch::Watch;
use super::{
    ClientActionError, Cursor, NewSubscription, Reply, RetainedMessage, RetainedPage, SlowDelivery, Top,
};
use crate::batch::WorkerCommand;
use crate::ids::{ConnectionId, SessionId, ShardId};
use crate::message::Message;
use crate::settings::Settings;
use crate::worker::AlarmChange;

/// A request of an operator on its way to a worker.
pub struct AdminCommand(pub(crate) Box<AdminRequest>);

/// One request, or one step of answering it.
pub(crate) enum AdminRequest {
    Clients {
        from: Cursor,
        limit: usize,
        filter: Arc<ClientFilter>,
        reply: Reply<ClientPage>,
    },
    /// A page of clients that visits the hosts of their sessions. The receiver hosts the first of them.
    ClientSessions {
        page: ClientPage,
        filter: Arc<ClientFilter>,
        reply: Reply<ClientPage>,
    },
    /// Sent to the client's shard.
    Client {
        shard: ShardId,
        client_id: Box<str>,
        reply: Reply<Option<Box<ClientDetail>>>,
    },
    Locate {
        shard: ShardId,
        client_id: Box<str>,
        reply: Reply<Whereabouts>,
    },
    /// Goes from worker to worker until one has the connection. `from` is a slot.
    FindConnection {
        client_id: Box<str>,
        from: u32,
        reply: Reply<Option<ConnectionId>>,
    },
    /// Sent to the worker of the client's connection, with the details that the shard knows.
    ClientConnection {
        connection: ConnectionId,
        session: Option<Box<ClientDetail>>,
        reply: Reply<Option<Box<ClientDetail>>>,
    },
    ClientSubscriptions {
        shard: ShardId,
        client_id: Box<str>,
        from: usize,
        limit: usize,
        reply: Reply<Option<(Vec<SubscriptionInfo>, Option<usize>)>>,
    },
    ConnectionSubscriptions {
        connection: ConnectionId,
        from: usize,
        limit: usize,
        reply: Reply<Option<(Vec<SubscriptionInfo>, Option<usize>)>>,
    },
    Queue {
        shard: ShardId,
        client_id: Box<str>,
        limit: usize,
        payload: usize,
        reply: Reply<Option<QueuePage>>,
    },
    ConnectionQueue {
        connection: ConnectionId,
        limit: usize,
        payload: usize,
        reply: Reply<Option<QueuePage>>,
    },
    Kick {
        shard: ShardId,
        client_id: Box<str>,
        end_session: bool,
        reply: Reply<Option<Kicked>>,
    },
    KickConnection {
        connection: ConnectionId,
        /// Client that the connection must have, if another node has named the connection.
        client_id: Option<Box<str>>,
        /// True if the session has to end. `durable` is true if there is a durable session.
        end_session: bool,
        durable: bool,
        reply: Reply<Option<Kicked>>,
    },
    /// One step; the reply is the slot at which the next step continues.
    KickAll {
        from: u32,
        reason: ReasonCode,
        reply: Reply<Option<u32>>,
    },
    Drain {
        step: DrainStep,
        reply: Reply<Drained>,
    },
    Subscriptions {
        from: Cursor,
        limit: usize,
        filter: Arc<SubscriptionFilter>,
        reply: Reply<SubscriptionPage>,
    },
    Subscribe {
        shard: ShardId,
        client_id: Box<str>,
        subscription: NewSubscription,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    },
    SubscribeConnection {
        connection: ConnectionId,
        subscription: NewSubscription,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    },
    Unsubscribe {
        shard: ShardId,
        client_id: Box<str>,
        filter: Box<str>,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    },
    UnsubscribeConnection {
        connection: ConnectionId,
        filter: Box<str>,
        reply: Reply<Result<ReasonCode, ClientActionError>>,
    },
    /// An alarm was activated or deactivated.
    AlarmChanged(Box<AlarmChange>),
    Publish {
        message: Message,
        reply: Reply<ReasonCode>,
    },
    Retained {
        /// See [`retained::shard_of`](crate::retained::shard_of).
        shard: ShardId,
        /// Last shard that may have matching messages.
        last: ShardId,
        filter: Box<str>,
        after: Option<Box<str>>,
        limit: usize,
        reply: Reply<RetainedPage>,
    },
    RetainedMessage {
        topic: Box<str>,
        reply: Reply<Option<Box<RetainedMessage>>>,
    },
    DeleteRetained {
        topics: Vec<Box<str>>,
        reply: Reply<usize>,
    },
    FindReceivers(Box<ReceiverSearch>),
    /// The same search, on its way to the workers that know the names of shared group members.
    NameMembers(Box<ReceiverSearch>),
    Watches(Arc<[Arc<Watch>]>),
    Traces(Arc<[Arc<Running>]>),
    Settings(Arc<Settings>),
    Slow {
        reply: Reply<Vec<SlowDelivery>>,
    },
    ForgetSlow,
    Top {
        reply: Reply<Top>,
    },
    SessionCount {
        reply: Reply<u64>,
    },
}

/// A search that visits every worker in turn, beginning with the first.
pub(crate) struct ReceiverSearch {
    pub topic: Box<str>,
    pub limit: usize,
    /// Progress of the walk over the shared groups of one worker's shards.
    pub walk: Option<GroupWalk>,
    pub matches: Matches,
    pub reply: Reply<Matches>,
}

/// Progress of a walk over the shared groups of shards, in the order of the shards.
#[derive(Debug)]
pub(crate) struct GroupWalk {
    pub shard: ShardId,
    /// Text of the last group; `None` at the beginning of the shard.
    pub after: Option<Box<str>>,
}

/// Connection and session of a client, as its shard knows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLocation {
    pub owner: Option<ConnectionId>,
    pub session: Option<SessionId>,
}

impl From<AdminRequest> for WorkerCommand {
    fn from(request: AdminRequest) -> Self {
        WorkerCommand::AdminRequest(AdminCommand(Box::new(request)))
    }
}

impl fmt::Debug for AdminCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminCommand")
    }
}
