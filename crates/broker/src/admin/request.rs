//! The letters in which [`Admin`](super::Admin)'s questions travel.

use std::fmt;
use std::sync::Arc;

use mqtt::ReasonCode;

use super::client::{ClientDetail, ClientFilter, ClientPage, Kicked, Matches, QueuePage};
use super::client::{SubscriptionFilter, SubscriptionInfo, SubscriptionPage};
use super::trace::Running;
use super::watch::Watch;
use super::{
    ClientActionError, Cursor, NewSubscription, Reply, RetainedMessage, RetainedPage, SlowDelivery, Top,
};
use crate::batch::WorkerCommand;
use crate::ids::{ConnectionId, SessionId, ShardId};
use crate::message::Message;
use crate::settings::Settings;

/// What an operator wants to know, on its way.
pub struct AdminCommand(pub(crate) Box<AdminRequest>);

/// One question, or one step of answering it.
pub(crate) enum AdminRequest {
    Clients {
        from: Cursor,
        limit: usize,
        filter: Arc<ClientFilter>,
        reply: Reply<ClientPage>,
    },
    /// A page of clients on its way past the hosts of their sessions, the first of which is the receiver.
    ClientSessions {
        page: ClientPage,
        filter: Arc<ClientFilter>,
        reply: Reply<ClientPage>,
    },
    /// To the client's shard.
    Client {
        shard: ShardId,
        client_id: Box<str>,
        reply: Reply<Option<Box<ClientDetail>>>,
    },
    /// To the worker of its connection, with what the shard knows.
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
        /// Whether the session is to end, and whether there is one.
        end_session: bool,
        durable: bool,
        reply: Reply<Option<Kicked>>,
    },
    /// A step; answered with the slot to go on at.
    KickAll {
        from: u32,
        reason: ReasonCode,
        reply: Reply<Option<u32>>,
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
    Publish {
        message: Message,
        reply: Reply<ReasonCode>,
    },
    Retained {
        /// See [`retained::shard_of`](crate::retained::shard_of).
        shard: ShardId,
        /// The last one that may have some.
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
    /// The same on its way to where members of shared groups are known by name.
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
}

/// A question that goes past every worker, the first one first.
pub(crate) struct ReceiverSearch {
    pub topic: Box<str>,
    pub limit: usize,
    pub matches: Matches,
    pub reply: Reply<Matches>,
}

/// What a shard knows of a client.
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
