//! The network between nodes: connections that carry the bytes of their meshes, slowly, in one direction only, or no more.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use link::ConnectionId;

use super::step::Step;
use crate::context::Context;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// What arrives at an end.
pub enum Piece {
    Bytes(Bytes),
    /// The other end was closed.
    End,
}

/// One end of a connection, while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub node: usize,
    pub incarnation: u32,
    pub connection: ConnectionId,
}

/// One connection: the first end has dialed.
struct Wire {
    nodes: [usize; 2],
    ends: [Option<End>; 2],
    /// On the way to each end.
    pipes: [Pipe; 2],
    /// What is sent vanishes, and nobody is told.
    is_half_open: bool,
    /// What whoever dialed has said first.
    first_bytes: Vec<u8>,
}

/// A connection of somebody who is no node: what came on it, and whether the node has closed it.
#[derive(Default)]
struct Watched {
    bytes: Vec<u8>,
    is_closed: bool,
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<(Micros, Piece)>,
    /// When the last of them arrives: none overtakes another.
    last: Micros,
    bytes: usize,
    /// Its sender waits until some of it has arrived.
    is_awaited: bool,
    is_closed: bool,
}

/// From one node to another.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    /// Nothing gets through until then.
    cut_until: Micros,
    slow_until: Micros,
    /// Bytes a second while it is slow.
    rate: u64,
}

pub struct Wan {
    wires: BTreeMap<usize, Wire>,
    opened: usize,
    ends: BTreeMap<(u32, ConnectionId), (usize, usize)>,
    paths: BTreeMap<(usize, usize), Path>,
    watched: BTreeMap<(u32, ConnectionId), Watched>,
    /// One way, at least, and what may be added.
    latency: Micros,
    jitter: Micros,
    /// Nothing goes wrong any more.
    pub is_calm: bool,
}

/// Bytes under way in one direction of a connection: what a system's buffers hold.
const IN_FLIGHT_MAX: usize = 16 * 1024;
/// Of what whoever dialed has said, more than the handshake.
const FIRST_BYTES_MAX: usize = 600;
/// How long a system waits before it tries to connect once more.
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

    /// Nothing gets from one node to another for so long.
    pub fn cut(&mut self, now: Micros, from: usize, to: usize, time: Micros) {
        let path = self.paths.entry((from, to)).or_default();
        path.cut_until = path.cut_until.max(now + time);
    }

    /// All gets from one node to another again.
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

    /// So many bytes a second get from one node to another, for so long.
    pub fn slow(&mut self, now: Micros, from: usize, to: usize, rate: u64, time: Micros) {
        let path = self.paths.entry((from, to)).or_default();
        (path.slow_until, path.rate) = (path.slow_until.max(now + time), rate);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&mut self, cx: &mut Context) {
        self.is_calm = true;
        self.paths.clear();
        let pipes = self.wires.iter_mut().flat_map(|(wire, it)| {
            it.pipes.iter_mut().enumerate().map(move |(end, pipe)| (*wire, end, pipe))
        });
        let mut due = Vec::new();
        for (wire, end, pipe) in pipes.filter(|(.., pipe)| !pipe.pieces.is_empty()) {
            // What a slow link had made late comes now.
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

    /// A node wants to be connected to another.
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

    /// Who dials, and who is dialed.
    pub fn nodes_of(&self, wire: usize) -> Option<[usize; 2]> {
        self.wires.get(&wire).map(|it| it.nodes)
    }

    /// The wish has reached the other node, whose number is returned; `None` when it did not, or nobody wishes it any more.
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

    /// The other node answers: with its end, or with a refusal.
    pub fn answers(&mut self, cx: &mut Context, wire: usize, end: Option<End>) {
        if let (Some(it), Some(end)) = (self.wires.get_mut(&wire), end) {
            it.ends[1] = Some(end);
            self.ends.insert((end.incarnation, end.connection), (wire, 1));
        }
        let delay = self.delay(cx);
        cx.after(delay, Event::SimCluster(Step::Dialed { wire, is_there: end.is_some() }));
    }

    /// The answer has reached the node that dialed; its end is returned, unless it has given up or the answer does not get through.
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

    /// How many bytes of a connection may leave now. None at all: its sender is told when that changes.
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

    /// A connection of somebody who is no node.
    pub fn watch(&mut self, incarnation: u32, connection: ConnectionId) {
        self.watched.insert((incarnation, connection), Watched::default());
    }

    /// What came on such a connection since the last call, and whether the node has closed it.
    pub fn watched(&mut self, incarnation: u32, connection: ConnectionId) -> (Vec<u8>, bool) {
        let watched = self.watched.get_mut(&(incarnation, connection));
        watched.map_or_else(Default::default, |it| (std::mem::take(&mut it.bytes), it.is_closed))
    }

    pub fn forget(&mut self, incarnation: u32, connection: ConnectionId) {
        self.watched.remove(&(incarnation, connection));
    }

    /// What other nodes have said first to this one.
    pub fn recorded_handshakes(&self, node: usize) -> Vec<Bytes> {
        let those = self.wires.values().filter(|it| it.nodes[1] == node && !it.first_bytes.is_empty());
        those.map(|it| Bytes::copy_from_slice(&it.first_bytes)).collect()
    }

    /// A node closes its end, behind what it has sent.
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
            return; // It fills the sender's buffer, and no more.
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

    /// What has arrived at an end, whoever has that; who waits to send more is returned, too.
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
                // The rest comes by itself.
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

    /// An end has learned that the connection is gone.
    pub fn broken(&mut self, wire: usize, end: usize) -> Option<End> {
        let it = self.wires.get_mut(&wire)?;
        let taken = it.ends[end].take()?;
        self.ends.remove(&(taken.incarnation, taken.connection));
        self.tidy(wire);
        Some(taken)
    }

    /// Connections between two nodes.
    pub fn between(&self, one: usize, other: usize) -> Vec<usize> {
        let those = self.wires.iter().filter(|(_, it)| it.nodes == [one, other] || it.nodes == [other, one]);
        those.filter(|(_, it)| it.ends.iter().all(Option::is_some)).map(|(wire, _)| *wire).collect()
    }

    /// A connection is lost: some of what is under way still arrives. Both ends learn of it some time.
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

    /// Nothing arrives over a connection any more, and nobody is told.
    pub fn swallow(&mut self, cx: &mut Context, wire: usize) {
        let Some(it) = self.wires.get_mut(&wire) else { return };
        it.is_half_open = true;
        for pipe in &mut it.pipes {
            pipe.pieces.clear();
        }
        cx.report.cluster_half_open += 1;
    }

    /// A node has died, and with it its ends. Its peers are told by its system, or are not.
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

    /// Forgets a connection that has no end any more.
    fn tidy(&mut self, wire: usize) {
        if self.wires.get(&wire).is_some_and(|it| it.ends.iter().all(Option::is_none)) {
            self.wires.remove(&wire);
        }
    }
}
