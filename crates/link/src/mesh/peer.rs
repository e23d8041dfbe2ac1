use std::time::Duration;

use bytes::Bytes;

use super::event::ConnectionId;
use super::half_open_connections::Network;
use crate::lane::Class;
use crate::link::Link;
use crate::node::NodeId;
use crate::time::Time;

/// A node that this one is to be joined to.
#[derive(Debug)]
pub struct Peer {
    pub name: Box<str>,
    pub address: Box<str>,
    /// Where it has last dialed from.
    pub network: Option<Network>,
    pub link: Link,
    /// The connections that this node dials; none when the peer dials.
    pub slots: Vec<Slot>,
    /// By the index of their channels.
    pub channels: Vec<Option<ConnectionId>>,
    /// Bits of the channels whose connections are among those that may have output.
    pub queued: u32,
    /// Among those whose links have events.
    pub has_queued_events: bool,
    pub is_up: bool,
    pub since: Time,
    /// As of the last handshake.
    pub version: u16,
    pub features: u64,
    pub last_error: Option<(Time, Box<str>)>,
    /// What it said of itself as its last connection was made.
    pub descriptor: Bytes,
    /// While the link is up or down as it is.
    pub namesake: Option<Namesake>,
}

/// Another process that goes by the name of a peer, as it has introduced itself.
#[derive(Debug)]
pub struct Namesake {
    pub descriptor: Bytes,
    pub address: Box<str>,
    /// It is looked at anew then.
    pub until: Time,
}

/// One connection that this node is to make, or has.
#[derive(Debug)]
pub struct Slot {
    pub connection: Option<ConnectionId>,
    /// When it is dialed next.
    pub due: Time,
    /// What the next attempt waits for at most, if this one fails.
    pub pause: Duration,
    /// The link had begun anew when it was last dialed: it was, or is, dialed again at once.
    pub is_redialed: bool,
}

/// A peer, as an operator sees it.
#[derive(Debug)]
pub struct PeerStatus<'a> {
    pub node: NodeId,
    pub name: &'a str,
    /// As configured.
    pub address: &'a str,
    /// Whether this node dials it, or is dialed by it.
    pub is_dialed: bool,
    pub is_up: bool,
    /// Since when it is up, or suspect.
    pub since: Time,
    /// Connections that carry frames, and how many there are to be.
    pub connections: (usize, usize),
    /// Of the last handshake; 0 before the first.
    pub version: u16,
    pub features: u64,
    /// What went wrong last, and when.
    pub last_error: Option<(Time, &'a str)>,
    /// Its [`Identity::descriptor`](crate::Identity::descriptor) as of the last handshake.
    pub descriptor: &'a Bytes,
    /// Its counters, round trip and what waits: [`Link::counters`], [`Link::round_trip`], [`Link::waiting`], [`Link::unconsumed`].
    pub link: &'a Link,
}

impl PeerStatus<'_> {
    /// Whether it has been heard of so lately that no other process may take its name.
    pub fn is_alive(&self, now: Time) -> bool {
        is_alive(now, self.link)
    }

    /// Of every class: what waits, as [`Link::waiting`] says.
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

    /// Another process that goes by its name while it is there.
    pub fn namesake(&self, now: Time) -> Option<&Namesake> {
        self.namesake.as_ref().filter(|namesake| namesake.until > now && self.is_alive(now))
    }

    /// Where it is, as far as that is known without asking for names.
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
