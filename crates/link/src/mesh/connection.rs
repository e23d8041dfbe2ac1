use bytes::Bytes;

use super::half_open_connections::Network;
use crate::error::Refusal;
use crate::handshake::{Handshake, LinkId, refusal};
use crate::link::ChannelId;
use crate::node::NodeId;
use crate::output::Output;
use crate::time::Time;

/// One connection, from the decision to dial until it ends.
#[derive(Debug)]
pub struct Connection {
    /// Peer that this node dials, or that has proved its identity.
    pub peer: Option<NodeId>,
    /// Address that was dialed or that the connection comes from.
    pub address: Box<str>,
    /// Network of an incoming connection.
    pub network: Option<Network>,
    pub origin: Origin,
    pub stage: Stage,
    /// Name that the dialer has announced, proved or not.
    pub claimed_name: Option<Box<str>>,
    /// Address at which the dialer can be reached, if known.
    pub reached: Option<Box<str>>,
    /// True when one of the two nodes does not know the other yet, but will.
    pub is_early: bool,
    /// Bytes of the handshake that are not written yet.
    pub out: Output,
    /// True while the connection is queued for output.
    pub is_queued: bool,
}

/// Origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another node has dialed.
    Accepted,
    /// This node dials a peer. The value is the index among the link's connections.
    Slot(u8),
    /// This node dials a discovery address.
    Discovery,
}

#[derive(Debug)]
pub enum Stage {
    /// The transport makes the connection.
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

    /// Returns the index among the link's connections that this node dials.
    pub fn slot(&self) -> Option<u8> {
        match self.origin {
            Origin::Slot(slot) => Some(slot),
            Origin::Accepted | Origin::Discovery => None,
        }
    }

    pub fn is_dialed(&self) -> bool {
        self.origin != Origin::Accepted
    }

    /// Returns whether this is an incoming connection whose handshake is not done.
    pub fn is_half_open(&self) -> bool {
        !self.is_dialed() && !matches!(self.stage, Stage::Channel { .. })
    }

    /// Returns the last bytes to send when this node gives the connection up for `reason`. Only an acceptor that waits
    /// for a proof receives some.
    pub fn closing_bytes(&mut self, reason: Refusal) -> Bytes {
        if !self.is_dialed() || !matches!(self.stage, Stage::Handshaking { .. }) {
            return Bytes::new();
        }
        self.out.put(&refusal(reason));
        self.out.take().concat().into()
    }

    /// Returns the address of the other end. For an incoming connection it is the host alone, as its port changes every
    /// time, unless the address at which the node can be reached is known.
    pub fn peer_address(&self) -> &str {
        match (self.origin, &self.reached) {
            (Origin::Accepted, Some(reached)) => reached,
            (Origin::Accepted, None) => {
                self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
            }
            (Origin::Slot(_) | Origin::Discovery, _) => &self.address,
        }
    }

    /// Returns the time at which the connection is closed unless it is a channel by then.
    pub fn deadline(&self) -> Time {
        match self.stage {
            Stage::Dialing { by } | Stage::Handshaking { by, .. } => by,
            Stage::Channel { .. } => Time::NEVER,
        }
    }
}
