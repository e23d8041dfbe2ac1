//! Network between nodes. Its connections carry the bytes of the meshes: normally, slowly, in one direction only, or
//! not at all.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use link::ConnectionId;

use super::step::Step;
use crate::context::Context;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Data that arrives at an end of a connection.
pub enum Piece {
    Bytes(Bytes),
    /// The other end was closed.
    End,
}

/// One open end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub node: usize,
    pub incarnation: u32,
    pub connection: ConnectionId,
}

/// A connection between nodes. The first end has dialed.
struct Wire {
    nodes: [usize; 2],
    ends: [Option<End>; 2],
    /// Data on its way to each end.
    pipes: [Pipe; 2],
    /// True if sent data is lost without an error.
    is_half_open: bool,
    /// First bytes of the end that dialed.
    first_bytes: Vec<u8>,
}

/// Connection of an unauthenticated peer: received bytes, and whether the node has closed it.
#[derive(Default)]
struct Watched {
    bytes: Vec<u8>,
    is_closed: bool,
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<(Micros, Piece)>,
    /// Arrival time of the last piece: the order is kept.
    last: Micros,
    bytes: usize,
    /// True if the sender waits for room.
    is_awaited: bool,
    is_closed: bool,
}

/// State of the network from one node to another.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    /// Time until which nothing gets through.
    cut_until: Micros,
    slow_until: Micros,
    /// Bytes per second while it is slow.
    rate: u64,
}

pub struct Wan {
    wires: BTreeMap<usize, Wire>,
    opened: usize,
    ends: BTreeMap<(u32, ConnectionId), (usize, usize)>,
    paths: BTreeMap<(usize, usize), Path>,
    watched: BTreeMap<(u32, ConnectionId), Watched>,
    /// Minimum delay in one direction, and the maximum that is added.
    latency: Micros,
    jitter: Micros,
    /// True if no more faults happen.
    pub is_calm: bool,
}

/// Maximum number of bytes under way in one direction of a connection, like the buffers of an operating system.
const IN_FLIGHT_MAX: usize = 16 * 1024;
/// Maximum number of recorded first bytes: more than the handshake.
const FIRST_BYTES_MAX: usize = 600;
/// Time after which an operating system repeats a connection attempt.
const CONNECT_RETRY: Micros = SECOND;

impl Wan {
    pub fn new(latency: Micros, jitter: Micros) -> Self {
        Self {
            wires: BTreeMap::new(),
            opened: 0,
            ends: BTreeMap::new(),
            paths: BTreeMap::new(),
            watched: BTreeMap::new(),
            latency,
            jitter,
            is_calm: false,
        }
    }

    fn delay(&self, cx: &mut Context) -> Micros {
        let slow = !self.is_calm && cx.random.percent(1);
        self.latency + if slow { cx.between(MILLI, SECOND) } else { cx.between(20, self.jitter.max(21)) }
    }

    /// Cuts the network from one node to another, for a time.
    pub fn cut(&mut self, now: Micros, from: usize, to: usize, time: Micros) {
        let path = self.paths.entry((from, to)).or_default();
        path.cut_until = path.cut_until.max(now + time);
    }

    /// Ends all faults from one node to another.
    #[cfg(any(test, feature = "trial"))]
    pub fn mend(&mut self, cx: &mut Context, from: usize, to: usize) {
        self.paths.remove(&(from, to));
        let those = self.wires.iter().flat_map(|(wire, it)| {
            [0, 1]
                .into_iter()
                .filter(|end| it.nodes[*end] == to && it.nodes[1 - end] == from)
                .map(|end| (*wire, end))
        });
        for (wire, end) in those.collect::<Vec<_>>() {
            cx.after(0, Event::SimCluster(Step::Carry { wire, end }));
        }
    }

    /// Limits the bytes per second from one node to another, for a time.
    pub fn slow(&mut self, now: Micros, from: usize, to: usize, rate: u64, time: Micros) {
        let path = self.paths.entry((from, to)).or_default();
        (path.slow_until, path.rate) = (path.slow_until.max(now + time), rate);
    }

    /// Ends all faults.
    pub fn heal(&mut self, cx: &mut Context) {
        self.is_calm = true;
        self.paths.clear();
        let pipes = self.wires.iter_mut().flat_map(|(wire, it)| {
            it.pipes.iter_mut().enumerate().map(move |(end, pipe)| (*wire, end, pipe))
        });
        let mut due = Vec::new();
        for (wire, end, pipe) in pipes.filter(|(.., pipe)| !pipe.pieces.is_empty()) {
            // Pieces that a slow link delayed arrive now.
            pipe.pieces.iter_mut().for_each(|(at, _)| *at = (*at).min(cx.now()));
            pipe.last = cx.now();
            due.push((wire, end));
        }
        for (wire, end) in due {
            cx.after(0, Event::SimCluster(Step::Carry { wire, end }));
        }
    }

    pub fn is_cut(&self, now: Micros, from: usize, to: usize) -> Option<Micros> {
        self.paths.get(&(from, to)).map(|path| path.cut_until).filter(|until| *until > now)
    }

    /// Starts a connection attempt from a node to another.
    pub fn dial(&mut self, cx: &mut Context, from: End, to: usize) {
        let wire = self.opened;
        self.opened += 1;
        self.ends.insert((from.incarnation, from.connection), (wire, 0));
        let nodes = [from.node, to];
        let ends = [Some(from), None];
        let (pipes, first_bytes) = (Default::default(), Vec::new());
        self.wires.insert(wire, Wire { nodes, ends, pipes, is_half_open: false, first_bytes });
        let delay = self.delay(cx);
        cx.after(delay, Event::SimCluster(Step::Dial { wire }));
    }

    /// The dialing node, and the dialed one.
    pub fn nodes_of(&self, wire: usize) -> Option<[usize; 2]> {
        self.wires.get(&wire).map(|it| it.nodes)
    }

    /// Delivers a connection attempt to the other node. Returns both nodes, or `None` when the attempt was lost or
    /// given up.
    pub fn reached(&mut self, cx: &mut Context, wire: usize) -> Option<[usize; 2]> {
        let it = self.wires.get(&wire)?;
        let [from, to] = it.nodes;
        if it.ends[0].is_none() {
            self.wires.remove(&wire);
            return None;
        }
        if self.is_cut(cx.now(), from, to).is_some() {
            cx.after(CONNECT_RETRY, Event::SimCluster(Step::Dial { wire }));
            return None;
        }
        Some([from, to])
    }

    /// Sends the answer of the other node: its end, or a refusal.
    pub fn answers(&mut self, cx: &mut Context, wire: usize, end: Option<End>) {
        if let (Some(it), Some(end)) = (self.wires.get_mut(&wire), end) {
            it.ends[1] = Some(end);
            self.ends.insert((end.incarnation, end.connection), (wire, 1));
        }
        let delay = self.delay(cx);
        cx.after(delay, Event::SimCluster(Step::Dialed { wire, is_there: end.is_some() }));
    }

    /// Delivers the answer to the dialing node. Returns its end, unless it has given up or the answer is lost.
    pub fn answered(&mut self, cx: &mut Context, wire: usize, is_there: bool) -> Option<End> {
        let it = self.wires.get(&wire)?;
        let (from, to) = (it.nodes[0], it.nodes[1]);
        if let Some(until) = self.is_cut(cx.now(), to, from) {
            cx.at(until, Event::SimCluster(Step::Dialed { wire, is_there }));
            return None;
        }
        let it = self.wires.get_mut(&wire)?;
        let end = it.ends[0]?;
        if !is_there {
            self.ends.remove(&(end.incarnation, end.connection));
            self.wires.remove(&wire);
        }
        Some(end)
    }

    /// Number of bytes that a connection accepts now. If it is 0, the sender is notified when that changes.
    pub fn room(&mut self, incarnation: u32, connection: ConnectionId) -> usize {
        let Some((wire, end)) = self.ends.get(&(incarnation, connection)).copied() else {
            return IN_FLIGHT_MAX;
        };
        let Some(it) = self.wires.get_mut(&wire) else { return IN_FLIGHT_MAX };
        let pipe = &mut it.pipes[1 - end];
        let room = IN_FLIGHT_MAX.saturating_sub(pipe.bytes);
        pipe.is_awaited |= room == 0;
        room
    }

    pub fn send(&mut self, cx: &mut Context, incarnation: u32, connection: ConnectionId, bytes: Bytes) {
        let Some((wire, end)) = self.ends.get(&(incarnation, connection)).copied() else {
            if let Some(watched) = self.watched.get_mut(&(incarnation, connection)) {
                watched.bytes.extend_from_slice(&bytes);
            }
            return;
        };
        if bytes.is_empty() {
            return;
        }
        if let Some(it) =
            self.wires.get_mut(&wire).filter(|it| end == 0 && it.first_bytes.len() < FIRST_BYTES_MAX)
        {
            it.first_bytes.extend_from_slice(&bytes);
        }
        self.push(cx, wire, 1 - end, Piece::Bytes(bytes));
    }

    /// Records a connection of an unauthenticated peer.
    pub fn watch(&mut self, incarnation: u32, connection: ConnectionId) {
        self.watched.insert((incarnation, connection), Watched::default());
    }

    /// Bytes that arrived on such a connection since the last call, and whether the node has closed it.
    pub fn watched(&mut self, incarnation: u32, connection: ConnectionId) -> (Vec<u8>, bool) {
        let watched = self.watched.get_mut(&(incarnation, connection));
        watched.map_or_else(Default::default, |it| (std::mem::take(&mut it.bytes), it.is_closed))
    }

    pub fn forget(&mut self, incarnation: u32, connection: ConnectionId) {
        self.watched.remove(&(incarnation, connection));
    }

    /// First bytes that other nodes have sent to this one.
    pub fn recorded_handshakes(&self, node: usize) -> Vec<Bytes> {
        let those = self.wires.values().filter(|it| it.nodes[1] == node && !it.first_bytes.is_empty());
        those.map(|it| Bytes::copy_from_slice(&it.first_bytes)).collect()
    }

    /// Closes a node's end after all data that it has sent.
    pub fn close(&mut self, cx: &mut Context, incarnation: u32, connection: ConnectionId) {
        let Some((wire, end)) = self.ends.remove(&(incarnation, connection)) else {
            if let Some(watched) = self.watched.get_mut(&(incarnation, connection)) {
                watched.is_closed = true;
            }
            return;
        };
        if let Some(it) = self.wires.get_mut(&wire) {
            it.ends[end] = None;
            it.pipes[end] = Pipe::default();
        }
        self.push(cx, wire, 1 - end, Piece::End);
        self.tidy(wire);
    }

    fn push(&mut self, cx: &mut Context, wire: usize, to: usize, piece: Piece) {
        let delay = self.delay(cx);
        let Some(it) = self.wires.get_mut(&wire) else { return };
        let path = self.paths.get(&(it.nodes[1 - to], it.nodes[to])).copied().unwrap_or_default();
        let pipe = &mut it.pipes[to];
        if pipe.is_closed {
            return;
        }
        let length = match &piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::End => 0,
        };
        pipe.bytes += length;
        if it.is_half_open {
            return; // It stays in the sender's buffer.
        }
        pipe.last = pipe.last.max(cx.now() + delay);
        if path.slow_until > cx.now() {
            pipe.last += length as u64 * SECOND / path.rate.max(1);
        }
        pipe.is_closed = matches!(piece, Piece::End);
        pipe.pieces.push_back((pipe.last, piece));
        let at = pipe.last;
        cx.at(at, Event::SimCluster(Step::Carry { wire, end: to }));
    }

    /// Piece that arrives at an open end, and the end whose sender waits for room.
    pub fn carry(&mut self, cx: &mut Context, wire: usize, to: usize) -> (Option<(End, Piece)>, Option<End>) {
        let now = cx.now();
        let Some(it) = self.wires.get(&wire) else { return (None, None) };
        let (from_node, to_node) = (it.nodes[1 - to], it.nodes[to]);
        if let Some(until) = self.is_cut(now, from_node, to_node) {
            cx.at(until + 1, Event::SimCluster(Step::Carry { wire, end: to }));
            return (None, None);
        }
        let Some(it) = self.wires.get_mut(&wire) else { return (None, None) };
        let pipe = &mut it.pipes[to];
        let Some((_, mut piece)) = pipe.pieces.pop_front_if(|(at, _)| *at <= now) else {
            return (None, None);
        };
        if let Piece::Bytes(bytes) = &mut piece {
            if bytes.len() > 1 && cx.random.percent(10) {
                // The rest arrives separately.
                let rest = bytes.split_off(1 + cx.random.below(bytes.len() - 1));
                pipe.pieces.push_front((now, Piece::Bytes(rest)));
                cx.after(1, Event::SimCluster(Step::Carry { wire, end: to }));
            }
            pipe.bytes -= bytes.len();
        }
        if pipe.pieces.front().is_some_and(|(at, _)| *at <= now) {
            cx.after(1, Event::SimCluster(Step::Carry { wire, end: to }));
        }
        let awaits = std::mem::take(&mut pipe.is_awaited);
        let sender = it.ends[1 - to].filter(|_| awaits);
        let Some(end) = it.ends[to] else { return (None, sender) };
        if matches!(piece, Piece::End) {
            it.ends[to] = None;
            self.ends.remove(&(end.incarnation, end.connection));
            self.tidy(wire);
        }
        (Some((end, piece)), sender)
    }

    /// Reports the loss of the connection to an end.
    pub fn broken(&mut self, wire: usize, end: usize) -> Option<End> {
        let it = self.wires.get_mut(&wire)?;
        let taken = it.ends[end].take()?;
        self.ends.remove(&(taken.incarnation, taken.connection));
        self.tidy(wire);
        Some(taken)
    }

    /// Open connections between two nodes.
    pub fn between(&self, one: usize, other: usize) -> Vec<usize> {
        let those = self.wires.iter().filter(|(_, it)| it.nodes == [one, other] || it.nodes == [other, one]);
        those.filter(|(_, it)| it.ends.iter().all(Option::is_some)).map(|(wire, _)| *wire).collect()
    }

    /// Loses a connection. A part of the data under way still arrives. Both ends notice it later.
    pub fn lose(&mut self, cx: &mut Context, wire: usize) {
        let Some(it) = self.wires.get_mut(&wire) else { return };
        it.is_half_open = true;
        for (end, pipe) in it.pipes.iter_mut().enumerate() {
            let kept = cx.random.below(pipe.pieces.len() + 1);
            let lost = pipe.pieces.split_off(kept);
            cx.report.cluster_pieces_lost += lost.len() as u64;
            let at = pipe.last.max(cx.now()) + cx.between(100, SECOND);
            cx.at(at, Event::SimCluster(Step::Broken { wire, end }));
        }
        cx.report.cluster_connections_lost += 1;
    }

    /// Makes a connection carry nothing, without an error.
    pub fn swallow(&mut self, cx: &mut Context, wire: usize) {
        let Some(it) = self.wires.get_mut(&wire) else { return };
        it.is_half_open = true;
        for pipe in &mut it.pipes {
            pipe.pieces.clear();
        }
        cx.report.cluster_half_open += 1;
    }

    /// Ends all connections of a node that died. Its operating system closes them, or does not.
    pub fn dies(&mut self, cx: &mut Context, incarnation: u32, closes_connections: bool) {
        let its = |end: &Option<End>| end.is_some_and(|end| end.incarnation == incarnation);
        let those: Vec<_> =
            self.wires.iter().filter(|(_, it)| it.ends.iter().any(its)).map(|(at, _)| *at).collect();
        for wire in those {
            let Some(it) = self.wires.get_mut(&wire) else { continue };
            let end = usize::from(!its(&it.ends[0]));
            it.ends[end] = None;
            it.pipes[end] = Pipe::default();
            let pipe = &mut it.pipes[1 - end];
            let kept = cx.random.below(pipe.pieces.len() + 1);
            pipe.pieces.truncate(kept);
            pipe.is_closed = false;
            if closes_connections {
                self.push(cx, wire, 1 - end, Piece::End);
            } else {
                it.is_half_open = true;
                cx.report.cluster_half_open += 1;
            }
            self.tidy(wire);
        }
        self.ends.retain(|(of, _), _| *of != incarnation);
        self.watched.retain(|(of, _), _| *of != incarnation);
    }

    /// Removes a connection without an end.
    fn tidy(&mut self, wire: usize) {
        if self.wires.get(&wire).is_some_and(|it| it.ends.iter().all(Option::is_none)) {
            self.wires.remove(&wire);
        }
    }
}
