//! Requests to the host of a group.

use std::sync::Arc;

use mqtt::ReasonCode;

use super::appends::GroupAppend;
use crate::batch::Token;
use crate::ids::{ConnectionId, GroupId, SessionId, Ticket};
use crate::message::Message;
use crate::peers::{Members, NodeIndex};
use crate::route::Options;
use crate::shapes::ShapeReservations;
use crate::store::{GroupName, Identity};

/// A request to the host of a group on this node. It never travels to another node.
#[derive(Debug)]
pub enum GroupRequest {
    /// Adds a connection to a shared group, or changes its options. Answered by [`GroupAnswer::Joined`].
    Join(Box<Join>),
    /// Removes a connection from a group. Answered by [`GroupAnswer::Left`].
    Leave { group: Box<GroupName>, connection: ConnectionId, reply: Option<Ticket> },
    /// Sets the members that a group has on another node.
    JoinNode { group: Box<GroupName>, node: NodeIndex, members: Members },
    /// Delivers a message to each group that matches.
    Append(GroupAppend),
    /// Delivers a message of another node to a member on this one.
    DeliverLocally {
        group: Box<GroupName>,
        message: Message,
        /// Reason to refuse, as in [`GroupAppend::refusal`].
        refusal: Option<ReasonCode>,
        token: Option<Token>,
    },
    /// Delivers a message that a session left unfinished to another member of the group.
    DeliverOrphan { group: Box<GroupName>, message: Message, identity: Identity, token: Option<Token> },
    /// Returns a message from a member that cannot have it.
    Bounce { group: GroupId, message: Message, token: Option<Token> },
    /// Reports that a message is where it was offered to, or was refused there.
    Offered { key: u32, reason: ReasonCode },
    /// Reports that a member has a message that is for several, or the answer to a question about its identity.
    Accepted { key: u32, reason: ReasonCode },
}

/// A member of a shared group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    Connection(ConnectionId),
    /// All members on another node.
    Node(NodeIndex),
}

/// A connection for a shared group.
#[derive(Clone, Debug)]
pub struct Join {
    pub group: GroupName,
    pub connection: ConnectionId,
    /// The durable session of the connection, if it has one.
    pub session: Option<SessionId>,
    pub options: Options,
    pub subscription_id: u32,
    /// Request that is answered: the SUBSCRIBE, and the index of the filter among those that wait for an answer.
    pub reply: Option<(Ticket, u32)>,
    /// Reservations of the SUBSCRIBE.
    pub shapes: Option<Arc<ShapeReservations>>,
}

/// An answer of the host of a group to the worker of a connection.
#[derive(Clone, Copy, Debug)]
pub enum GroupAnswer {
    /// A shared group has accepted a member, or refused it with an error; SUBACK may be sent.
    Joined { connection: ConnectionId, ticket: Ticket, index: u32, reason: ReasonCode },
    /// A shared group has removed a member; UNSUBACK may be sent.
    Left { connection: ConnectionId, ticket: Ticket },
}

impl GroupAnswer {
    /// The connection that receives it.
    pub fn connection(&self) -> ConnectionId {
        match self {
            Self::Joined { connection, .. } | Self::Left { connection, .. } => *connection,
        }
    }
}

impl GroupRequest {
    /// Bytes of the message in the request.
    pub(crate) fn message_size(&self) -> usize {
        match self {
            Self::Append(GroupAppend { message, .. })
            | Self::DeliverLocally { message, .. }
            | Self::DeliverOrphan { message, .. }
            | Self::Bounce { message, .. } => message.size(),
            _ => 0,
        }
    }
}
