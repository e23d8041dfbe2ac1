use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use mqtt::{QoS, ReasonCode};
use settings::choices;

use super::{MemberIncarnations, NodeIndex};
use crate::batch::Token;
use crate::ids::{ConnectionId, ShardId, Ticket, WorkerId};
use crate::store::{Frame, PeerFrame};

/// All messages and reports of one worker for other nodes at the end of a turn.
#[derive(Debug)]
pub struct Outbound {
    pub worker: WorkerId,
    /// Encoded messages, one after the other.
    pub frames: Vec<u8>,
    pub forwards: Vec<Forward>,
    /// Retained messages of another node that were new to this one: for nodes that get copies from here.
    pub propagated: Vec<PropagatedCopy>,
    /// SUBACKs that wait until other nodes know the subscriptions.
    pub announces: Vec<Announce>,
    /// Results of messages of other nodes: queued here, or refused.
    pub answers: Vec<(PeerTicket, ReasonCode)>,
    /// [`Inbound::key`]s of commands that were handled.
    pub taken: Vec<u32>,
    /// Retained messages of other nodes had no room here for a while: those nodes must copy them again.
    pub retained_missing: bool,
    /// Frames of the replicas of shards here for those on other nodes.
    pub agreement_frames: Vec<(ShardId, Frame)>,
    /// This node leads the shard in this term now (`Some`), or not any more (`None`).
    pub leads: Vec<(ShardId, Option<u64>)>,
    /// Route positions of shards on this node that have changed. The node knows all changes of the shard's Topic
    /// Filters up to its position. A position grows while the node runs. It was reached before [`Self::announces`].
    pub route_positions: Vec<(ShardId, u64)>,
    /// An incarnation of this node that is over for a shard, as its leader says.
    pub ended: Option<u64>,
    /// Frames for shards that other nodes lead, and answers of shards here to workers of other nodes, after
    /// [`Self::leads`]. No frame is for this node. Those of one worker to one node arrive in order. One that is lost is
    /// reported by [`Inbound::links_lost`].
    pub shard_frames: Vec<ShardFrame>,
}

/// A frame between a worker and a shard that another node leads, in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFrame {
    /// Number of the node in the cluster: the receiver in [`Outbound`], the sender in [`Inbound`].
    pub node: u64,
    pub port: Port,
    pub bytes: Bytes,
}

impl ShardFrame {
    /// Maximum length of a frame. The largest message that a client may send fits.
    pub const BYTES_MAX: usize = (257 << 20) - 64;
}

/// Receiver of a [`ShardFrame`] on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The worker that has the shard.
    Shard(ShardId),
    /// This worker.
    Worker(WorkerId),
}

/// Leader of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Number of the node in the cluster.
    pub node: u64,
    pub term: u64,
}

/// A copy of a retained message of another node that was new to this one.
#[derive(Debug)]
pub struct PropagatedCopy {
    /// Node that sent the message.
    pub from: NodeIndex,
    /// Position in [`Outbound::frames`].
    pub frame: Range<usize>,
    pub topic_hash: u32,
    /// This node retained the message in a previous incarnation.
    pub is_own: bool,
}

/// One message for one other node.
#[derive(Debug)]
pub struct Forward {
    pub to: NodeIndex,
    /// Position in [`Outbound::frames`].
    pub frame: Range<usize>,
    /// Hash of the topic: equal for messages of one topic.
    pub topic_hash: u32,
    pub qos: QoS,
    /// The message goes to the disk of that node, for a durable session or because it is retained.
    pub stored: bool,
    /// A durable session of that node wants the message. When the link has no room, the message is refused and not
    /// dropped.
    pub is_for_durable: bool,
    /// The message is retained by the other node: it must not be lost on the way, whatever its QoS.
    pub is_kept: bool,
    /// The message is for a member of a shared group. When it does not arrive, another member gets it.
    pub for_group: bool,
    /// The message waits in the link, because no member is on a reachable node.
    pub waits: bool,
    /// No other receiver gets the message, or may have got it before: a refusal means that nobody has it.
    pub is_alone: bool,
    /// Token of the request that waits until the message has arrived there.
    pub token: Option<Token>,
}

/// A SUBSCRIBE whose filters are in this node's index, or a CONNECT whose session has subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    pub connection: ConnectionId,
    pub ticket: Ticket,
    pub level: SubackLevel,
    /// Shard of the session and route position with the filters, for a durable session. This node has reached it. Other
    /// nodes have to reach it too, instead of the position of this node's own routes.
    pub shard: Option<(ShardId, u64)>,
}

choices! {
    /// Nodes that have to know a subscription before SUBACK is sent.
    pub enum SubackLevel {
        /// This node only: messages that other nodes publish meanwhile may be missed.
        Local = "local",
        /// The core that this node is attached to.
        Core = "core",
        /// Every node of the same `region`, and the core that this node is attached to. In a cluster of one region this
        /// is `cluster`.
        Region = "region",
        /// Every reachable node: messages that are published anywhere after SUBACK are delivered.
        Cluster = "cluster",
        /// Every reachable node, and each linked cluster whose link is connected and takes topics of the subscription:
        /// messages that are published there after SUBACK are delivered, too.
        Links = "links",
    }
}

/// Ticket of a message of another node that waits to be queued here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTicket {
    pub from: NodeIndex,
    /// Epoch of the link, which may have been reset since.
    pub link_epoch: u8,
    pub lane: u8,
    pub number: u32,
}

/// Messages and reports of other nodes for one worker.
#[derive(Debug, Default)]
pub struct Inbound {
    /// Key for [`Outbound::taken`], which is reported when there are messages, frames of shards or replicas, or lost
    /// links.
    pub key: u32,
    pub messages: Vec<Forwarded>,
    /// Results of messages of this worker's publishers on other nodes. `UnspecifiedError`: some nodes may have the
    /// message, and some do not.
    pub acknowledged: Vec<(Token, ReasonCode)>,
    /// Nodes that get copies of retained messages of this worker.
    pub copies: Vec<(NodeIndex, Copies)>,
    /// SUBACKs that may be sent (true), or that must be refused because a node that has to know the subscription is not
    /// reachable (false).
    pub announced: Vec<(ConnectionId, Ticket, bool)>,
    /// Numbers of nodes whose link is down, or had no room for a frame: what was sent to them may be lost. The worker
    /// sends nothing to such a node before [`Self::links_open`] names it. What it had sent before it took this batch is
    /// dropped.
    pub links_lost: Vec<u64>,
    /// Numbers of nodes that the worker may send to now, for the first time or again. These come after
    /// [`Self::links_lost`].
    pub links_open: Vec<u64>,
    /// Shards whose leader is known now, or that may be asked again after the link to their leader was lost: everything
    /// that was not answered before is sent again. These come after [`Self::links_open`].
    pub leaders: Vec<(ShardId, Leader)>,
    /// Frames of other nodes for shards here, and answers of shards there. These come after [`Self::leaders`].
    pub shard_frames: Vec<ShardFrame>,
    /// Incarnation that this node runs in from now on, because its last one is over for the others. What connections of
    /// the last one own is over, too. It comes before [`Self::leaders`].
    pub incarnation: Option<u64>,
    /// Frames of replicas of shards here on other nodes.
    pub agreement_frames: Vec<(ShardId, PeerFrame)>,
    /// Members of a new roster. They come before [`Self::shard_frames`], so that frames come from members only.
    pub members: Option<Arc<MemberIncarnations>>,
    /// Shards that this node leads in these terms, and whose earlier leaders knew no roster that is newer than
    /// [`Self::members`]. An owner of a session whose node is absent there was removed.
    pub members_settled: Vec<(ShardId, u64)>,
    /// Route positions of shards on a core, greater than those that this node has reported to it. A core that has
    /// restored a state has the index of that, which may be no index of a change. A replica whose state includes the
    /// index has reached it.
    pub route_positions: Vec<(ShardId, u64)>,
    /// Nodes that know more routes of shards than this node, which has restarted. Nobody leads these shards.
    pub route_sources: Vec<(ShardId, u64)>,
}

/// Retained messages that another node gets copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Copies {
    /// Messages of a node that is dead or has left, whose stamps end in this number: it may have sent some of them to
    /// some nodes only.
    Of(u8),
    /// Messages that were retained on this node, because those on the way to a node that restarts are lost. Also
    /// messages of that node's previous incarnations, whose stamps end in this number: no node knows which of them
    /// another one lacks.
    Own(u8),
    All,
}

/// A message that arrived from another node.
#[derive(Debug)]
pub struct Forwarded {
    /// Encoded message, for [`decode`](super::decode).
    pub frame: bytes::Bytes,
    /// Ticket of the request that waits on that node until the message is queued here.
    pub ticket: Option<PeerTicket>,
}

impl Outbound {
    pub fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            frames: Vec::new(),
            forwards: Vec::new(),
            propagated: Vec::new(),
            announces: Vec::new(),
            answers: Vec::new(),
            taken: Vec::new(),
            retained_missing: false,
            agreement_frames: Vec::new(),
            shard_frames: Vec::new(),
            leads: Vec::new(),
            route_positions: Vec::new(),
            ended: None,
        }
    }

    /// Approximate number of bytes that it keeps in memory until it is handled.
    pub fn weight(&self) -> usize {
        self.frames.len()
            + self.forwards.len() * size_of::<Forward>()
            + self.propagated.len() * size_of::<PropagatedCopy>()
            + self.announces.len() * size_of::<Announce>()
            + self.answers.len() * size_of::<(PeerTicket, ReasonCode)>()
            + self.agreement_frames.iter().map(|(_, frame)| frame.bytes.len()).sum::<usize>()
            + self.shard_frames.iter().map(|frame| size_of::<ShardFrame>() + frame.bytes.len()).sum::<usize>()
            + self.leads.len() * size_of::<(ShardId, Option<u64>)>()
            + self.route_positions.len() * size_of::<(ShardId, u64)>()
    }

    pub fn is_empty(&self) -> bool {
        self.forwards.is_empty()
            && self.propagated.is_empty()
            && self.announces.is_empty()
            && self.answers.is_empty()
            && self.taken.is_empty()
            && !self.retained_missing
            && self.agreement_frames.is_empty()
            && self.shard_frames.is_empty()
            && self.leads.is_empty()
            && self.route_positions.is_empty()
            && self.ended.is_none()
    }
}

impl Inbound {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.acknowledged.is_empty()
            && self.copies.is_empty()
            && self.announced.is_empty()
            && self.shard_frames.is_empty()
            && self.leaders.is_empty()
            && self.links_lost.is_empty()
            && self.links_open.is_empty()
            && self.incarnation.is_none()
            && self.members.is_none()
            && self.agreement_frames.is_empty()
            && self.members_settled.is_empty()
            && self.route_positions.is_empty()
            && self.route_sources.is_empty()
    }
}
