//! All links of one node, and their connections from the decision to dial until they end. Read [`Mesh`] first.

mod config;
mod connection;
mod counters;
mod dial;
mod discovery;
mod end;
mod event;
mod half_open_connections;
mod join;
mod peer;
mod warning_limiter;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use ring::hmac;

pub use config::MeshConfig;
pub use counters::MeshCounters;
pub use event::{ConnectionId, Demand, MeshEvent};
pub use peer::PeerStatus;

use crate::error::Refused;
use crate::frame::Frame;
use crate::handshake::{CHANNELS_MAX, DESCRIPTOR_MAX, Handshake, Identity, LinkId, Secret};
use crate::lane::Lane;
use crate::link::{Credit, Event, Link};
use crate::node::NodeId;
use crate::output::Output;
use crate::time::Time;
use connection::{Connection, Origin, Stage};
use discovery::{DISCOVERY_MAX, Discovery, INTRODUCED_MAX};
use end::{Problem, dial_hint};
use half_open_connections::{Network, UnauthenticatedLimit};
use peer::{Peer, Slot};
use warning_limiter::WarningLimiter;

/// Fills a slice with random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// The links of one node to its peers. The transport makes the connections and moves the bytes.
///
/// Of two nodes the one with the smaller [`NodeId`] dials. A node that is no peer by its name, or does not prove that
/// it knows the secret, is refused. A node that knows addresses but no names dials them for discovery: it is introduced
/// to the nodes there, which makes no peers by itself.
///
/// **Invariant:** both ends of a link keep state about the same two incarnations. An end that forgets its peer takes
/// another id, so that the peer forgets too.
///
/// **Invariant:** a peer that is alive is not replaced by another process with its name.
///
/// **Invariant:** an introduction changes no link, and is reported only when both nodes have proved that they know the
/// secret.
pub struct Mesh {
    identity: Identity,
    node: NodeId,
    secret: Secret,
    config: MeshConfig,
    random: Random,
    /// Key of this mesh alone. It derives link ids that a connection may start with once its peer has proved that it
    /// knows the secret.
    derivation: hmac::Key,
    peers: BTreeMap<NodeId, Peer>,
    discovery: BTreeMap<Box<str>, Discovery>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Number of the last connection.
    last: u64,
    /// Incoming connections whose handshake is not done.
    half_open: usize,
    writable: VecDeque<ConnectionId>,
    /// Peers whose links have events.
    peers_with_events: VecDeque<NodeId>,
    demands: VecDeque<Demand>,
    /// Events other than those of the links.
    events: VecDeque<MeshEvent>,
    /// Introductions that wait to be polled. Any node with the secret may cause them at any time.
    introductions: VecDeque<MeshEvent>,
    warning_limiter: WarningLimiter,
    unauthenticated_limit: UnauthenticatedLimit,
    counters: MeshCounters,
    /// Time before which nothing is due.
    due: Time,
}

impl Mesh {
    /// # Panics
    /// The identity's descriptor is longer than [`DESCRIPTOR_MAX`].
    pub fn new(identity: Identity, secret: Secret, mut random: Random, config: MeshConfig) -> Self {
        assert!(
            identity.descriptor.len() <= DESCRIPTOR_MAX,
            "a descriptor of {} bytes",
            identity.descriptor.len()
        );
        let mut seed = [0; 32];
        random(&mut seed);
        Self {
            node: NodeId::of_name(&identity.name),
            identity,
            secret,
            derivation: hmac::Key::new(hmac::HMAC_SHA256, &seed),
            random,
            peers: BTreeMap::new(),
            discovery: BTreeMap::new(),
            connections: BTreeMap::new(),
            last: 0,
            half_open: 0,
            writable: VecDeque::new(),
            peers_with_events: VecDeque::new(),
            demands: VecDeque::new(),
            events: VecDeque::new(),
            introductions: VecDeque::new(),
            warning_limiter: WarningLimiter::new(config.warning_interval),
            unauthenticated_limit: UnauthenticatedLimit::default(),
            counters: MeshCounters::default(),
            due: Time::NEVER,
            config,
        }
    }

    /// Returns the id of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Adds a peer to join, or updates the address of a known one.
    pub fn add_peer(&mut self, now: Time, name: &str, address: &str) {
        let node = NodeId::of_name(name);
        if node == self.node {
            let reason = "a peer has this node's own name: give each node a name of its own";
            return self.report(now, Problem { address, name: Some(name), reason, is_transient: false });
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            if *peer.address != *address {
                peer.address = address.into();
                peer.slots.iter_mut().for_each(|slot| slot.due = now);
            }
            self.due = now.min(self.due);
            return;
        }
        let is_dialed = self.node < node;
        let count = if is_dialed { self.config.connections.clamp(1, CHANNELS_MAX) } else { 0 };
        let slot = |_| Slot { connection: None, due: now, pause: self.config.dial_first, is_redialed: false };
        let slots = (0..count).map(slot).collect();
        let link = Link::new(self.link_id(), self.config.link.clone());
        self.peers.insert(node, Peer::new(now, name, address, link, slots));
        self.due = now.min(self.due);
    }

    /// Removes a peer, with everything that waits for it.
    pub fn remove_peer(&mut self, now: Time, node: NodeId) {
        let its = self.connections.iter().filter(|(_, connection)| connection.peer == Some(node));
        let its: Vec<ConnectionId> = its.map(|(id, _)| *id).collect();
        for id in its {
            self.close(now, id, "the node is no longer a peer");
        }
        self.peers.remove(&node);
    }

    /// Handles a connection accepted from the address `from`. Returns `None` when too many handshakes are open and none
    /// makes room: the connection must be closed.
    pub fn accepted(&mut self, now: Time, from: SocketAddr) -> Option<ConnectionId> {
        let network = Network::of(from.ip());
        if !self.make_room(now, network) {
            return None;
        }
        self.half_open += 1;
        self.counters.accepted += 1;
        let mut nonce = [0; 32];
        (self.random)(&mut nonce);
        let handshake = Handshake::accept(&self.identity, self.secret.clone(), nonce).into();
        let by = now.after(self.config.handshake_max);
        let stage = Stage::Handshaking { handshake, by, own: NO_LINK };
        let connection = Connection::new(None, &from.to_string(), Origin::Accepted, stage);
        Some(self.insert(Connection { network: Some(network), ..connection }))
    }

    /// Handles a connection that [`Demand::Dial`] asked for and that is established.
    pub fn dialed(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Dialing { .. } = connection.stage else { return };
        let peer = connection.peer.and_then(|peer| self.peers.get(&peer));
        let (own, channel_of_link) = match (connection.origin, peer) {
            (Origin::Slot(slot), Some(peer)) => (peer.link.id(), (slot, peer.slots.len() as u8)),
            (Origin::Discovery, _) => (NO_LINK, (0, 0)),
            (Origin::Slot(_), None) | (Origin::Accepted, _) => return,
        };
        let mut nonce = [0; 32];
        (self.random)(&mut nonce);
        let secret = self.secret.clone();
        let handshake =
            Handshake::dial(&self.identity, secret, own, channel_of_link, nonce, &mut connection.out);
        let by = now.after(self.config.handshake_max);
        connection.stage = Stage::Handshaking { handshake: handshake.into(), by, own };
        self.due = by.min(self.due);
        self.queue(id);
    }

    /// Handles received bytes. Bytes of a closed connection are ignored.
    pub fn input(&mut self, now: Time, id: ConnectionId, bytes: Bytes) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (channel, node) = match (&connection.stage, connection.peer) {
            (Stage::Channel { id, .. }, Some(node)) => (*id, node),
            (Stage::Handshaking { .. }, _) => return self.continue_handshake(now, id, bytes),
            _ => return,
        };
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Err(error) = peer.link.input(now, channel, bytes) {
            self.counters.peer_errors += 1;
            self.fail(now, id, &error.to_string(), None);
        }
        if let Some(peer) = self.peers.get(&node) {
            self.due = peer.link.acknowledge_at().min(self.due);
        }
        self.update_peer(now, node);
    }

    /// Appends the output of a connection until `out` holds `budget` bytes; the last frame may exceed it. If there is
    /// more, [`Self::poll_writable`] returns the connection again.
    pub fn output(&mut self, now: Time, id: ConnectionId, budget: usize, out: &mut Output) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.out.is_empty() {
            out.append(&mut connection.out);
        }
        let (Stage::Channel { id: channel, .. }, Some(node)) = (&connection.stage, connection.peer) else {
            return;
        };
        let channel = *channel;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.link.output(now, channel, budget, out);
        mark(node, peer, &mut self.writable, &mut self.peers_with_events);
    }

    /// Returns a connection that may have output since the last time it was returned.
    pub fn poll_writable(&mut self) -> Option<ConnectionId> {
        loop {
            let id = self.writable.pop_front()?;
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.is_queued = false;
            if let (Stage::Channel { id: channel, .. }, Some(node)) = (&connection.stage, connection.peer)
                && let Some(peer) = self.peers.get_mut(&node)
            {
                peer.queued &= !(1 << channel.index());
            }
            return Some(id);
        }
    }

    /// Accepts a frame for a peer's lane: [`Link::send`].
    ///
    /// # Errors
    /// [`Refused`] when there is no room, [`Refused::Down`] also when there is no such peer.
    pub fn send(&mut self, now: Time, peer: NodeId, lane: Lane, frame: Frame) -> Result<u64, Refused> {
        let known = self.peers.get_mut(&peer).ok_or(Refused::Down)?;
        let number = known.link.send(now, lane, frame)?;
        mark(peer, known, &mut self.writable, &mut self.peers_with_events);
        Ok(number)
    }

    /// Expects a peer to have restarted: [`Link::expect_restart`].
    pub fn expect_restart(&mut self, now: Time, peer: NodeId) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.link.expect_restart(now);
            mark(peer, known, &mut self.writable, &mut self.peers_with_events);
        }
    }

    /// Returns the credit of a peer's frame that was handled.
    pub fn consume(&mut self, peer: NodeId, credit: Credit) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.link.consume(credit);
            mark(peer, known, &mut self.writable, &mut self.peers_with_events);
        }
    }

    /// Acknowledges what a peer has sent at once, because somebody waits for it there.
    pub fn acknowledge(&mut self, peer: NodeId) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.link.acknowledge();
            mark(peer, known, &mut self.writable, &mut self.peers_with_events);
        }
    }

    /// Returns the next demand on connections, for the transport.
    pub fn poll_demand(&mut self) -> Option<Demand> {
        self.demands.pop_front()
    }

    /// Returns the next event, for the user of the links. Events of one link are in order.
    pub fn poll_event(&mut self) -> Option<MeshEvent> {
        if let Some(event) = self.events.pop_front().or_else(|| self.introductions.pop_front()) {
            return Some(event);
        }
        loop {
            let node = *self.peers_with_events.front()?;
            let peer = self.peers.get_mut(&node);
            match peer.and_then(|peer| {
                let event = peer.link.poll_event();
                peer.has_queued_events = event.is_some();
                event
            }) {
                Some(Event::Silent { .. }) => {}
                Some(event) => return Some(MeshEvent::Link { peer: node, event }),
                None => drop(self.peers_with_events.pop_front()),
            }
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] is due. It may be too early, never too late.
    pub fn timeout(&self) -> Time {
        self.due
    }

    /// Handles the passing of time: dials connections, gives up handshakes, sends pings, and suspects silent peers.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.due {
            return;
        }
        let late = self.connections.iter().filter(|(_, connection)| connection.deadline() <= now);
        let late: Vec<ConnectionId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.counters.late += 1;
            let reason = match self.connections.get(&id) {
                Some(connection) if connection.is_dialed() => {
                    format!(
                        "it was not joined within {:?}: {}",
                        self.config.handshake_max,
                        dial_hint(connection.origin)
                    )
                }
                _ => format!(
                    "it did not join within {:?}: it is no node, or overloaded",
                    self.config.handshake_max
                ),
            };
            self.fail(now, id, &reason, None);
        }
        // When one link is due, the others do work that is nearly due.
        let is_due = self.peers.values().any(|peer| peer.link.timeout() <= now);
        let due: Vec<NodeId> = if is_due { self.peers.keys().copied().collect() } else { Vec::new() };
        for node in due {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.link.handle_timeout(now);
            }
            self.sweep(now, node, "nothing arrived over it for too long");
            self.update_peer(now, node);
        }
        self.dial_due(now);
        self.discover_due(now);
        self.due = self.next_due();
    }

    /// Iterates over the peers, by id.
    pub fn peers(&self) -> impl Iterator<Item = PeerStatus<'_>> {
        self.peers.iter().map(|(node, peer)| peer.status(*node))
    }

    pub fn peer(&self, node: NodeId) -> Option<PeerStatus<'_>> {
        self.peers.get(&node).map(|peer| peer.status(node))
    }

    /// Returns the peer that a connection was dialed for, or whose channel it is.
    pub fn peer_of(&self, id: ConnectionId) -> Option<NodeId> {
        self.connections.get(&id)?.peer
    }

    /// Returns whether a connection belongs to a link: both nodes have proved who they are.
    pub fn is_joined(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| matches!(connection.stage, Stage::Channel { .. }))
    }

    pub fn counters(&self) -> &MeshCounters {
        &self.counters
    }

    /// Returns the number of connections in any stage.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub fn check_invariants(&self) {
        let half_open = self.connections.values().filter(|connection| connection.is_half_open());
        assert_eq!(half_open.count(), self.half_open);
        assert!(self.half_open <= self.config.handshakes_max);
        assert!(self.discovery.len() <= DISCOVERY_MAX && self.introductions.len() <= INTRODUCED_MAX);
        for (address, discovery) in &self.discovery {
            let Some(connection) = discovery.connection.map(|id| &self.connections[&id]) else { continue };
            assert!(connection.origin == Origin::Discovery && connection.address == *address);
        }
        for (id, connection) in &self.connections {
            if connection.origin == Origin::Discovery {
                let discovery = self.discovery.get(&connection.address);
                assert!(
                    discovery.is_some_and(|discovery| discovery.connection == Some(*id)),
                    "nobody seeks it"
                );
                assert!(connection.peer.is_none() && !matches!(connection.stage, Stage::Channel { .. }));
            }
        }
        for (node, peer) in &self.peers {
            peer.link.check_invariants();
            assert_eq!(peer.link.channels().count(), peer.channels.iter().flatten().count());
            for (index, id) in peer.channels.iter().enumerate() {
                let Some(id) = id else { continue };
                let connection = &self.connections[id];
                assert_eq!(connection.peer, Some(*node));
                let Stage::Channel { id: channel, .. } = connection.stage else {
                    panic!("a channel's connection has no channel");
                };
                assert!(usize::from(channel.index()) == index && peer.link.has(channel));
            }
            for slot in &peer.slots {
                assert!(slot.connection.is_none_or(|id| self.connections.contains_key(&id)));
            }
            assert!(!peer.link.has_events() || peer.has_queued_events, "an event that is not queued");
        }
    }

    fn insert(&mut self, connection: Connection) -> ConnectionId {
        self.last += 1;
        let id = ConnectionId(self.last);
        self.due = connection.deadline().min(self.due);
        self.connections.insert(id, connection);
        id
    }

    fn link_id(&mut self) -> LinkId {
        let mut id = [0; 16];
        (self.random)(&mut id);
        LinkId(u128::from_le_bytes(id))
    }

    /// Updates a peer after a change of its link, which may be up or suspect now.
    fn update_peer(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.is_up != peer.link.is_up() {
            (peer.is_up, peer.since) = (!peer.is_up, now);
            // Another process may be the peer now.
            peer.namesake = None;
        }
        self.mark(node);
    }

    /// Marks a peer after a change of its link, which may have output and events now.
    fn mark(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            mark(node, peer, &mut self.writable, &mut self.peers_with_events);
        }
    }

    fn queue(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.is_queued, true)
        {
            self.writable.push_back(id);
        }
    }
}

/// Link id in the handshake of a connection that belongs to no link.
const NO_LINK: LinkId = LinkId(0);

/// Queues the output and events of a peer's link. Connections that are queued already are skipped.
fn mark(
    node: NodeId,
    peer: &mut Peer,
    writable: &mut VecDeque<ConnectionId>,
    peers_with_events: &mut VecDeque<NodeId>,
) {
    if !peer.link.has_pending() {
        return;
    }
    let mut news = peer.link.take_writable() & !peer.queued;
    while news != 0 {
        let index = news.trailing_zeros();
        news &= news - 1;
        if let Some(Some(id)) = peer.channels.get(index as usize) {
            peer.queued |= 1 << index;
            writable.push_back(*id);
        }
    }
    if !peer.has_queued_events && peer.link.has_events() {
        peer.has_queued_events = true;
        peers_with_events.push_back(node);
    }
}
