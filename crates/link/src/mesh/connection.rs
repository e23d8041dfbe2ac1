use bytes::Bytes;

use super::half_open_connections::Network;
use crate::error::Refusal;
use crate::handshake::{Handshake, LinkId, refusal};
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
    /// Where it comes from, of those that somebody else has dialed.
    pub network: Option<Network>,
    pub origin: Origin,
    pub stage: Stage,
    /// The name that somebody who dialed has said, proved or not.
    pub claimed_name: Option<Box<str>>,
    /// Where somebody who dialed is reached, if that is known.
    pub reached: Option<Box<str>>,
    /// One of the two has not heard of the other yet, and will.
    pub is_early: bool,
    /// What of the handshake is not written yet.
    pub out: Output,
    /// Among those that may have output.
    pub is_queued: bool,
}

/// How a connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Somebody else has dialed.
    Accepted,
    /// This node dials a peer: which of the link's connections it is.
    Slot(u8),
    /// This node dials a sought address.
    Discovery,
}

#[derive(Debug)]
pub enum Stage {
    /// The carrier makes it.
    Dialing {
        by: Time,
    },
    Handshaking {
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
    pub fn new(peer: Option<NodeId>, address: &str, origin: Origin, stage: Stage) -> Self {
        Self {
            peer,
            address: address.into(),
            network: None,
            origin,
            stage,
            claimed_name: None,
            reached: None,
            is_early: false,
            out: Output::default(),
            is_queued: false,
        }
    }

    /// Which of the link's connections it is, of those that this node dials.
    pub fn slot(&self) -> Option<u8> {
        match self.origin {
            Origin::Slot(slot) => Some(slot),
            Origin::Accepted | Origin::Discovery => None,
        }
    }

    pub fn is_dialed(&self) -> bool {
        self.origin != Origin::Accepted
    }

    /// Whether it is one of those of others whose handshake is not done.
    pub fn is_half_open(&self) -> bool {
        !self.is_dialed() && !matches!(self.stage, Stage::Channel { .. })
    }

    /// What is left to say when this node gives it up for that reason: to whoever waits for a proof.
    pub fn closing_bytes(&mut self, reason: Refusal) -> Bytes {
        if !self.is_dialed() || !matches!(self.stage, Stage::Handshaking { .. }) {
            return Bytes::new();
        }
        self.out.put(&refusal(reason));
        self.out.take().concat().into()
    }

    /// Where it leads to; of somebody who has dialed the host, as the port is another every time, unless it is known where that one is reached.
    pub fn peer_address(&self) -> &str {
        match (self.origin, &self.reached) {
            (Origin::Accepted, Some(reached)) => reached,
            (Origin::Accepted, None) => {
                self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
            }
            (Origin::Slot(_) | Origin::Discovery, _) => &self.address,
        }
    }

    /// When it is closed unless it is a channel by then.
    pub fn deadline(&self) -> Time {
        match self.stage {
            Stage::Dialing { by } | Stage::Handshaking { by, .. } => by,
            Stage::Channel { .. } => Time::NEVER,
        }
    }
}
