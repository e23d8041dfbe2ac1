use std::ops::Range;

use mqtt::{QoS, ReasonCode};
use settings::choices;

use super::NodeIndex;
use crate::batch::Token;
use crate::ids::{ConnectionId, Ticket, WorkerId};

/// Everything that one worker has for other nodes at the end of a turn.
#[derive(Debug)]
pub struct Outbound {
    pub worker: WorkerId,
    /// Encoded messages, one behind the other.
    pub frames: Vec<u8>,
    pub forwards: Vec<Forward>,
    /// What another node has retained and this one had not: for nodes that get copies from here.
    pub propagated: Vec<PropagatedCopy>,
    /// SUBACKs that wait until other nodes know of the subscriptions.
    pub announces: Vec<Announce>,
    /// Messages of other nodes that have their places here, or were refused one.
    pub answers: Vec<(PeerTicket, ReasonCode)>,
    /// [`Inbound::key`]s of what was worked through.
    pub taken: Vec<u32>,
    /// What other nodes have retained found no room here for a while: they are to copy it again.
    pub retained_missing: bool,
}

/// A copy of what a node has retained and this one had not.
#[derive(Debug)]
pub struct PropagatedCopy {
    /// Who told it.
    pub from: NodeIndex,
    /// Where it is in [`Outbound::frames`].
    pub frame: Range<usize>,
    pub topic_hash: u32,
    /// This node had retained it, in an earlier life.
    pub is_own: bool,
}

/// One message for one other node.
#[derive(Debug)]
pub struct Forward {
    pub to: NodeIndex,
    /// Where it is in [`Outbound::frames`].
    pub frame: Range<usize>,
    /// Messages of one topic have one.
    pub topic_hash: u32,
    pub qos: QoS,
    /// It goes to the disk there, for a durable session or because it is retained.
    pub stored: bool,
    /// A durable session there wants it: when the link has no room, the message is refused and not dropped.
    pub is_for_durable: bool,
    /// The node keeps it: it is not to be lost on the way, whatever its QoS.
    pub is_kept: bool,
    /// It is for a member of a shared group: when it does not arrive, another gets it.
    pub for_group: bool,
    /// And no member is anywhere that is not cut off: it waits in the link.
    pub waits: bool,
    /// Nobody else gets it, or may have got it before: a refusal means that nobody has it.
    pub is_alone: bool,
    /// Who waits until it has arrived there.
    pub token: Option<Token>,
}

/// A SUBSCRIBE whose filters are in this node's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    pub connection: ConnectionId,
    pub ticket: Ticket,
    pub level: SubackLevel,
}

choices! {
    /// Who has to know of a subscription before SUBACK leaves.
    pub enum SubackLevel {
        /// This node: what other nodes publish meanwhile may be missed.
        Local = "local",
        /// The core that this node is attached to.
        Core = "core",
        /// Every node of the same `region`, and the core that this node is attached to. In a cluster of one region this is `cluster`.
        Region = "region",
        /// Every node that is not cut off: what is published after SUBACK, wherever, is delivered.
        Cluster = "cluster",
    }
}

/// A message of another node that waits for its places here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTicket {
    pub from: NodeIndex,
    /// Of the link, which may have begun anew since.
    pub link_epoch: u8,
    pub lane: u8,
    pub number: u32,
}

/// What other nodes have for one worker.
#[derive(Debug, Default)]
pub struct Inbound {
    /// To be said in [`Outbound::taken`] when there are messages.
    pub key: u32,
    pub messages: Vec<Forwarded>,
    /// Messages of this worker's publishers that have arrived where they were sent, or not. `UnspecifiedError`: some may have it, and some
    /// have not.
    pub acknowledged: Vec<(Token, ReasonCode)>,
    /// Nodes that are to get retained messages of this worker.
    pub copies: Vec<(NodeIndex, Copies)>,
    /// SUBACKs that may leave, or may not be given: whoever had to know is not to be reached.
    pub announced: Vec<(ConnectionId, Ticket, bool)>,
}

/// Which retained messages another node is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Copies {
    /// Those of a node that is dead, or has left, whose stamps end so: it had told some of them to some nodes only.
    Of(u8),
    /// Those that were retained on this node: what was on its way to a node that begins anew is lost. And those of an earlier life of that
    /// node, whose stamps end so: nobody else knows who has not heard of them.
    Own(u8),
    All,
}

/// A message that came from another node.
#[derive(Debug)]
pub struct Forwarded {
    /// As [`decode`](super::decode) reads it.
    pub frame: bytes::Bytes,
    /// Who waits there until it has its places.
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
        }
    }

    /// Bytes that it keeps in memory until it is dealt with, roughly.
    pub fn weight(&self) -> usize {
        self.frames.len()
            + self.forwards.len() * size_of::<Forward>()
            + self.propagated.len() * size_of::<PropagatedCopy>()
            + self.announces.len() * size_of::<Announce>()
            + self.answers.len() * size_of::<(PeerTicket, ReasonCode)>()
    }

    pub fn is_empty(&self) -> bool {
        self.forwards.is_empty()
            && self.propagated.is_empty()
            && self.announces.is_empty()
            && self.answers.is_empty()
            && self.taken.is_empty()
            && !self.retained_missing
    }
}

impl Inbound {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.acknowledged.is_empty()
            && self.copies.is_empty()
            && self.announced.is_empty()
    }
}
