//! Unauthenticated peers at a node's cluster port. None becomes a peer, and none keeps a connection longer than the
//! handshake time-out.

use std::collections::VecDeque;

use bytes::Bytes;
use link::{ConnectionId, Handshake, Identity, LinkId, NodeId, Output, Progress, Secret};

use super::member::{CLUSTER, SECRET};
use super::step::Step;
use super::world::SimCluster;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Behaviour of an unauthenticated peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sends random bytes.
    Garbage,
    /// Sends a message that is too long.
    Oversized,
    /// Proves that it knows another secret.
    WrongSecret,
    /// Knows the secret, but belongs to another cluster.
    WrongCluster,
    /// Repeats the handshake of a node.
    Replay,
    /// Sends a valid handshake at one byte per second.
    Slow,
    /// Opens many connections and sends nothing.
    Flood,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Garbage,
        Self::Oversized,
        Self::WrongSecret,
        Self::WrongCluster,
        Self::Replay,
        Self::Slow,
        Self::Flood,
    ];
}

/// One connection of an unauthenticated peer.
pub struct UnauthenticatedPeer {
    kind: Kind,
    node: usize,
    incarnation: u32,
    connection: ConnectionId,
    /// Pieces to send. The peer stops when none is left.
    unsent: VecDeque<Bytes>,
    handshake: Option<Handshake>,
}

/// Number of connections of a flood, and of their addresses: more than a node accepts in total, and per address.
const FLOOD: usize = 140;
const FLOOD_ADDRESSES: usize = 3;
/// The node closes an overdue handshake in its next turn only.
const SLACK: Micros = SECOND;

impl UnauthenticatedPeer {
    pub fn node(&self) -> usize {
        self.node
    }
}

impl SimCluster {
    /// Connects an unauthenticated peer to a node's cluster port.
    pub(super) fn connect_unauthenticated(&mut self, node: usize, kind: Kind) {
        let count = if kind == Kind::Flood { FLOOD } else { 1 };
        let addresses = 1 + self.unauthenticated_peers.len() % FLOOD_ADDRESSES;
        let handshake_max = self.plan.mesh.handshake_max.as_micros() as Micros;
        for number in 0..count {
            let Some(process) = self.members[node].process.as_mut() else { return };
            let (now, incarnation) = (process.time(&self.cx), process.node.incarnation());
            let mesh = process.router.mesh();
            let before = mesh.counters().unauthenticated_closed;
            let from = [10, 9, (number % addresses) as u8, node as u8];
            let connection = mesh.accepted(now, (from, number as u16).into());
            self.cx.report.cluster_unauthenticated_excess += mesh.counters().unauthenticated_closed - before;
            let Some(connection) = connection else { continue };
            process.wake(&mut self.cx, 10);
            self.wan.watch(incarnation, connection);
            let (unsent, handshake) = self.bytes_to_send(node, kind);
            let unauthenticated = self.unauthenticated_peers.len();
            self.unauthenticated_peers.push(UnauthenticatedPeer {
                kind,
                node,
                incarnation,
                connection,
                unsent,
                handshake,
            });
            self.cx.after(MILLI, Event::SimCluster(Step::Intrude { unauthenticated }));
            self.cx.after(handshake_max + SLACK, Event::SimCluster(Step::CheckRejected { unauthenticated }));
        }
    }

    /// Closes all unauthenticated connections.
    pub(super) fn close_unauthenticated(&mut self) {
        for it in std::mem::take(&mut self.unauthenticated_peers) {
            let process = self.members[it.node].process.as_mut();
            if let Some(process) = process.filter(|process| process.node.incarnation() == it.incarnation) {
                let now = process.time(&self.cx);
                process.router.mesh().closed(now, it.connection, "connection reset");
                self.wan.forget(it.incarnation, it.connection);
            }
        }
    }

    /// Lets an unauthenticated peer use the name of a dead node.
    pub(super) fn impersonate(&mut self) {
        if self.is_healing {
            return;
        }
        let own = |node: usize| NodeId::of_name(&self.plan.nodes[node].name);
        // Nodes dial nodes with greater ids.
        let last = (0..self.members.len())
            .filter(|at| self.members[*at].process.is_some())
            .max_by_key(|at| own(*at));
        if let Some(node) = last {
            self.connect_unauthenticated(node, Kind::WrongSecret);
        }
    }

    fn bytes_to_send(&mut self, node: usize, kind: Kind) -> (VecDeque<Bytes>, Option<Handshake>) {
        let random = &mut self.cx.random;
        let mut nonce = [0; 32];
        nonce.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let link = LinkId(u128::from(random.draw()));
        // Of two nodes, the one with the smaller id dials. A peer with another name gets that answer, and is closed.
        let own = NodeId::of_name(&self.plan.nodes[node].name);
        let others = self.plan.nodes.iter().filter(|other| NodeId::of_name(&other.name) < own);
        let mut names: Vec<_> = others.map(|other| other.name.clone()).collect();
        // The name of a running node is taken.
        let is_dead = |name: &str| {
            let number = self.plan.nodes.iter().position(|info| *info.name == *name);
            number.is_some_and(|number| self.members[number].process.is_none())
        };
        if names.iter().any(|name| is_dead(name)) {
            names.retain(|name| is_dead(name));
        }
        let name = if names.is_empty() { "nobody".into() } else { random.pick(&names).clone() };
        let (cluster, secret) = match kind {
            Kind::WrongCluster => ([8; 16], Secret::new(SECRET)),
            _ => (CLUSTER, Secret::new(b"of another cluster")),
        };
        let identity = Identity { name, cluster, features: u64::MAX, descriptor: Bytes::new() };
        let mut out = Output::default();
        let handshake = Handshake::dial(&identity, secret, link, (0, 1), nonce, &mut out);
        let hello: Bytes = out.take().concat().into();
        match kind {
            Kind::Garbage => {
                let pieces = (0..1 + random.below(3)).map(|_| {
                    let bytes = (0..1 + random.below(2_000)).map(|_| random.draw() as u8);
                    bytes.collect::<Bytes>()
                });
                (pieces.collect::<Vec<_>>().into(), None)
            }
            Kind::Oversized => {
                let mut bytes = b"MLNK".to_vec();
                bytes.extend((1_025 + random.below(64_000) as u16).to_le_bytes());
                bytes.resize(6 + random.below(70_000), 1);
                ([bytes.into()].into(), None)
            }
            Kind::WrongSecret | Kind::WrongCluster => ([hello].into(), Some(handshake)),
            Kind::Replay => {
                let recorded_handshakes = self.wan.recorded_handshakes(node);
                if recorded_handshakes.is_empty() {
                    return (VecDeque::new(), None);
                }
                self.cx.report.cluster_unauthenticated_replayed += 1;
                ([self.cx.random.pick(&recorded_handshakes).clone()].into(), None)
            }
            Kind::Slow => (hello.chunks(1).map(Bytes::copy_from_slice).collect(), None),
            Kind::Flood => (VecDeque::new(), None),
        }
    }

    /// Lets a peer send its next piece, or answer.
    pub(super) fn send_unauthenticated(&mut self, unauthenticated: usize) {
        let Some(it) = self.unauthenticated_peers.get_mut(unauthenticated) else { return };
        let Some(process) = self.members[it.node].process.as_mut() else { return };
        let (answer, is_over) = self.wan.watched(it.incarnation, it.connection);
        if is_over || process.node.incarnation() != it.incarnation {
            return;
        }
        let now = process.time(&self.cx);
        let peer = process.router.mesh().peer_of(it.connection);
        assert_eq!(peer, None, "n{} takes {:?} for a peer", it.node, it.kind);
        if let Some(bytes) = it.unsent.pop_front() {
            process.router.mesh().input(now, it.connection, bytes);
        } else if let Some(handshake) = &mut it.handshake
            && !answer.is_empty()
        {
            let mut out = Output::default();
            let progress = handshake.input(&mut Bytes::from(answer), &mut out);
            assert!(!matches!(progress, Ok(Progress::Done(_))), "an unauthenticated peer proves itself");
            // The peer continues without a valid proof.
            self.cx.report.cluster_unauthenticated_wrong_proof += 1;
            process.router.mesh().input(now, it.connection, Bytes::from_static(&[7; 32]));
            it.handshake = None;
        }
        process.wake(&mut self.cx, 10);
        let pause = if it.kind == Kind::Slow { SECOND } else { 100 * MILLI };
        self.cx.after(pause, Event::SimCluster(Step::Intrude { unauthenticated }));
    }

    /// Asserts that the peer was rejected.
    pub(super) fn check_rejected(&mut self, unauthenticated: usize) {
        let Some(it) = self.unauthenticated_peers.get(unauthenticated) else { return };
        let runs_since = self.members[it.node].stopped;
        if runs_since > 0 && runs_since + SLACK > self.cx.now() {
            return self
                .cx
                .at(runs_since + SLACK, Event::SimCluster(Step::CheckRejected { unauthenticated }));
        }
        let Some(process) = self.members[it.node].process.as_mut() else { return };
        if process.node.incarnation() != it.incarnation {
            return;
        }
        let (kind, node) = (it.kind, it.node);
        let is_over = self.wan.watched(it.incarnation, it.connection).1;
        assert!(is_over, "n{node} does not close an unauthenticated connection: {kind:?}");
        assert_eq!(process.router.mesh().peer_of(it.connection), None, "n{node} takes {kind:?} for a peer");
        self.wan.forget(it.incarnation, it.connection);
        let report = &mut self.cx.report;
        let figure = match kind {
            Kind::Garbage => &mut report.cluster_check_garbage,
            Kind::Oversized => &mut report.cluster_check_oversized,
            Kind::WrongSecret => &mut report.cluster_check_wrong_secret,
            Kind::WrongCluster => &mut report.cluster_check_wrong_cluster,
            Kind::Replay => &mut report.cluster_check_replay,
            Kind::Slow => &mut report.cluster_check_slow,
            Kind::Flood => &mut report.cluster_check_flood,
        };
        *figure += 1;
    }
}
