//! Network between clients and the node: bytes are delayed, split, or lost.

use std::collections::{BTreeMap, VecDeque};

use crate::context::Context;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Number of a client's Network Connection, unique in the simulation.
pub type Link = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToNode,
    ToClient,
}

/// Data that travels on a connection.
pub enum Piece {
    Bytes(Vec<u8>),
    /// The sender closed its end.
    End,
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<Piece>,
    /// Arrival time of the last piece: the order is kept.
    last: Micros,
    /// True if sent data is lost.
    broken: bool,
    /// Time until which nothing arrives.
    late_until: Micros,
}

struct Wire {
    client: usize,
    to_node: Pipe,
    to_client: Pipe,
}

#[derive(Default)]
pub struct Net {
    /// Connections by link.
    wires: Vec<Wire>,
    /// Times until which nothing arrives from or at a client.
    parted: BTreeMap<usize, Micros>,
    /// True if no more faults happen.
    pub calm: bool,
}

impl Net {
    /// Opens a connection of a client.
    pub fn open(&mut self, client: usize) -> Link {
        self.wires.push(Wire { client, to_node: Pipe::default(), to_client: Pipe::default() });
        self.wires.len() - 1
    }

    /// Number of connections so far, which is the next link.
    pub fn opened(&self) -> Link {
        self.wires.len()
    }

    /// Sends bytes, in random pieces.
    pub fn send(&mut self, cx: &mut Context, link: Link, direction: Direction, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let mut rest = bytes;
        while cx.random.percent(15) && rest.len() > 1 {
            let at = 1 + cx.random.below(rest.len() - 1);
            let behind = rest.split_off(at);
            self.push(cx, link, direction, Piece::Bytes(rest));
            rest = behind;
        }
        self.push(cx, link, direction, Piece::Bytes(rest));
    }

    /// Closes one end after all data that was sent.
    pub fn close(&mut self, cx: &mut Context, link: Link, direction: Direction) {
        self.push(cx, link, direction, Piece::End);
    }

    fn push(&mut self, cx: &mut Context, link: Link, direction: Direction, piece: Piece) {
        let slow = !self.calm && cx.random.percent(2);
        let delay = if slow { cx.between(MILLI, SECOND) } else { cx.between(20, 3 * MILLI) };
        let Some(wire) = self.wires.get_mut(link) else { return };
        let parted = self.parted.get(&wire.client).copied().unwrap_or(0);
        let pipe = wire.pipe(direction);
        if pipe.broken {
            return;
        }
        pipe.last = pipe.last.max(cx.now() + delay).max(parted);
        pipe.pieces.push_back(piece);
        let at = pipe.last;
        cx.at(at, Event::Arrive { link, direction });
    }

    /// Takes the piece that has arrived. Returns `None` when it was lost.
    pub fn take(&mut self, link: Link, direction: Direction) -> Option<Piece> {
        self.wires.get_mut(link)?.pipe(direction).pieces.pop_front()
    }

    /// Loses the connection. A part of the data under way still arrives, perhaps half a packet. Both ends notice it
    /// later.
    pub fn lose(&mut self, cx: &mut Context, link: Link) {
        let patience = if self.calm { 10 * MILLI } else { 3 * SECOND };
        let Some(wire) = self.wires.get_mut(link) else { return };
        if wire.to_node.broken && wire.to_client.broken {
            return;
        }
        for direction in [Direction::ToNode, Direction::ToClient] {
            let pipe = wire.pipe(direction);
            pipe.broken = true;
            let kept = cx.random.below(pipe.pieces.len() + 1);
            pipe.pieces.truncate(kept);
            if let Some(Piece::Bytes(bytes)) = pipe.pieces.back_mut()
                && bytes.len() > 1
                && cx.random.percent(50)
            {
                bytes.truncate(1 + cx.random.below(bytes.len() - 1));
                cx.report.half_delivered += 1;
            }
            let last = pipe.last.max(cx.now());
            let at = last + cx.between(100, patience);
            cx.at(at, Event::Lost { link, direction });
        }
        cx.report.connections_lost += 1;
    }

    /// Lets a client give up a connection. What it has sent arrives late, and the node notices the end after that.
    pub fn abandon(&mut self, cx: &mut Context, link: Link) {
        let Some(wire) = self.wires.get_mut(link).filter(|wire| !wire.to_client.broken) else { return };
        (wire.to_node.broken, wire.to_client.broken) = (true, true);
        wire.to_client.pieces.clear();
        let seen = cx.between(100, 10 * MILLI);
        cx.after(seen, Event::Lost { link, direction: Direction::ToClient });
        let pipe = &mut wire.to_node;
        pipe.late_until = cx.now() + cx.between(50 * MILLI, 2 * SECOND);
        pipe.last = pipe.last.max(pipe.late_until) + cx.between(MILLI, SECOND);
        cx.at(pipe.last, Event::Lost { link, direction: Direction::ToNode });
        cx.report.connections_lost += 1;
    }

    /// Time until which nothing arrives at one end of a connection, if there is one.
    pub fn late_until(&self, now: Micros, link: Link, direction: Direction) -> Option<Micros> {
        let wire = self.wires.get(link)?;
        let pipe = if direction == Direction::ToNode { &wire.to_node } else { &wire.to_client };
        Some(pipe.late_until).filter(|until| *until > now)
    }

    /// Loses all connections when the node dies. Clients notice it later.
    pub fn lose_all(&mut self, cx: &mut Context) {
        for link in 0..self.wires.len() {
            self.lose(cx, link);
        }
    }

    /// Cuts a client off for a time.
    pub fn part(&mut self, cx: &mut Context, client: usize, time: Micros) {
        self.parted.insert(client, cx.now() + time);
        cx.report.partitions += 1;
    }

    pub fn client_of(&self, link: Link) -> Option<usize> {
        Some(self.wires.get(link)?.client)
    }
}

impl Wire {
    fn pipe(&mut self, direction: Direction) -> &mut Pipe {
        match direction {
            Direction::ToNode => &mut self.to_node,
            Direction::ToClient => &mut self.to_client,
        }
    }
}
