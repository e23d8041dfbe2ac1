use crate::handshake::{Handshake, LinkId};
use crate::link::ChannelId;
use crate::node::NodeId;
use crate::output::Output;
use crate::time::Time;

/// One connection, from the wish for it to its end.
#[derive(Debug)]
pub struct Connection {
    /// Whom this node dials, or who has proved to be a peer.
    pub peer: Option<NodeId>,
    /// The address that it was dialed at or comes from.
    pub address: Box<str>,
    /// Which of the link's connections it is, of those that this node dials.
    pub slot: Option<u8>,
    pub stage: Stage,
    /// The name that somebody who dialed has said, proved or not.
    pub says: Option<Box<str>>,
    /// What of the handshake is not written yet.
    pub out: Output,
    /// Among those that may have output.
    pub is_queued: bool,
}

#[derive(Debug)]
pub enum Stage {
    /// The carrier makes it.
    Dialing {
        by: Time,
    },
    Shaking {
        handshake: Box<Handshake>,
        by: Time,
        own: LinkId,
    },
    Channel {
        id: ChannelId,
        since: Time,
    },
}

impl Connection {
    pub fn new(peer: Option<NodeId>, address: &str, slot: Option<u8>, stage: Stage) -> Self {
        Self {
            peer,
            address: address.into(),
            slot,
            stage,
            says: None,
            out: Output::default(),
            is_queued: false,
        }
    }

    /// When it is closed unless it is a channel by then.
    pub fn deadline(&self) -> Time {
        match self.stage {
            Stage::Dialing { by } | Stage::Shaking { by, .. } => by,
            Stage::Channel { .. } => Time::NEVER,
        }
    }
}
