use std::time::Duration;

use bytes::Bytes;

use super::event::ConnectionId;
use super::half_open_connections::Network;
use crate::lane::Class;
use crate::link::Link;
use crate::node::NodeId;
use crate::time::Time;

/// A node to join.
#[derive(Debug)]
pub struct Peer {
    pub name: Box<str>,
    pub address: Box<str>,
    /// Network that it last dialed from.
    pub network: Option<Network>,
    pub link: Link,
    /// Connections that this node dials; empty when the peer dials.
    pub slots: Vec<Slot>,
    /// Connections, by the index of their channels.
    pub channels: Vec<Option<ConnectionId>>,
    /// Bits of the channels whose connections are queued for output.
    pub queued: u32,
    /// True while the peer is queued for events.
    pub has_queued_events: bool,
    pub is_up: bool,
    pub since: Time,
    /// Protocol version of the last handshake.
    pub version: u16,
    pub features: u64,
    pub last_error: Option<(Time, Box<str>)>,
    /// Descriptor that it announced in its last handshake.
    pub descriptor: Bytes,
    /// Other process with the peer's name, while the link stays in its present state.
    pub namesake: Option<Namesake>,
}

/// Another process that has introduced itself with the name of a peer.
#[derive(Debug)]
pub struct Namesake {
    pub descriptor: Bytes,
    pub address: Box<str>,
    /// Time at which it is examined again.
    pub until: Time,
}

/// One connection that this node makes, or has.
#[derive(Debug)]
pub struct Slot {
    pub connection: Option<ConnectionId>,
    /// Time at which it is dialed next.
    pub due: Time,
    /// Maximum pause before the next attempt, if this one fails.
    pub pause: Duration,
    /// True when the link had restarted at the last attempt: the slot was, or is, dialed again at once.
    pub is_redialed: bool,
}

/// Status of a peer, for operators.
#[derive(Debug)]
pub struct PeerStatus<'a> {
    pub node: NodeId,
    pub name: &'a str,
    /// Address at which it is dialed.
    pub address: &'a str,
    /// True when this node dials the peer; otherwise the peer dials this node.
    pub is_dialed: bool,
    pub is_up: bool,
    /// Time since which it is up, or suspect.
    pub since: Time,
    /// Connections that carry frames, and the configured number.
    pub connections: (usize, usize),
    /// Version of the last handshake; 0 before the first.
    pub version: u16,
    pub features: u64,
    /// Last error and its time.
    pub last_error: Option<(Time, &'a str)>,
    /// Announced [`Identity::descriptor`](crate::Identity::descriptor) in the last handshake.
    pub descriptor: &'a Bytes,
    /// Link, with counters, round trip and waiting bytes: [`Link::counters`], [`Link::round_trip`], [`Link::waiting`],
    /// [`Link::unconsumed`].
    pub link: &'a Link,
}

impl PeerStatus<'_> {
    /// Returns whether the peer sent something so recently that no other process may take its name.
    pub fn is_alive(&self, now: Time) -> bool {
        is_alive(now, self.link)
    }

    /// Returns for every class the waiting bytes and frames of [`Link::waiting`].
    pub fn waiting(&self, now: Time) -> impl Iterator<Item = (Class, (u64, u64, u64))> {
        Class::ALL.into_iter().map(move |class| (class, self.link.waiting(now, class)))
    }
}

impl Peer {
    pub fn new(now: Time, name: &str, address: &str, link: Link, slots: Vec<Slot>) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            network: None,
            link,
            slots,
            channels: Vec::new(),
            queued: 0,
            has_queued_events: false,
            is_up: false,
            since: now,
            version: 0,
            features: 0,
            last_error: None,
            descriptor: Bytes::new(),
            namesake: None,
        }
    }

    pub fn is_alive(&self, now: Time) -> bool {
        is_alive(now, &self.link)
    }

    /// Returns the other process with its name, if it is known now.
    pub fn namesake(&self, now: Time) -> Option<&Namesake> {
        self.namesake.as_ref().filter(|namesake| namesake.until > now && self.is_alive(now))
    }

    /// Iterates over the networks of the peer that are known without name resolution.
    pub fn networks(&self) -> impl Iterator<Item = Network> {
        self.network.into_iter().chain(Network::of_text(&self.address))
    }

    pub fn status(&self, node: NodeId) -> PeerStatus<'_> {
        let open = self.channels.iter().flatten().count();
        PeerStatus {
            node,
            name: &self.name,
            address: &self.address,
            is_dialed: !self.slots.is_empty(),
            is_up: self.is_up,
            since: self.since,
            connections: (open, self.slots.len().max(self.channels.len())),
            version: self.version,
            features: self.features,
            last_error: self.last_error.as_ref().map(|(at, reason)| (*at, &**reason)),
            descriptor: &self.descriptor,
            link: &self.link,
        }
    }
}

fn is_alive(now: Time, link: &Link) -> bool {
    link.last_received().is_some_and(|last_received| last_received.after(2 * link.config().heartbeat) > now)
}
