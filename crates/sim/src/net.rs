//! The network between clients and the node: bytes take time, arrive in pieces, or not at all.

use std::collections::{BTreeMap, VecDeque};

use crate::context::Context;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// A client's Network Connection, for as long as the simulation lasts.
pub type Link = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    ToNode,
    ToClient,
}

/// What travels.
pub enum Piece {
    Bytes(Vec<u8>),
    /// The sender closed its end.
    End,
}

#[derive(Default)]
struct Pipe {
    pieces: VecDeque<Piece>,
    /// When the last of them arrives: none overtakes another.
    last: Micros,
    /// What is sent goes nowhere.
    broken: bool,
}

struct Wire {
    client: usize,
    to_node: Pipe,
    to_client: Pipe,
}

#[derive(Default)]
pub struct Net {
    /// By link.
    wires: Vec<Wire>,
    /// By client: until then nothing arrives, in either direction.
    parted: BTreeMap<usize, Micros>,
    /// Nothing goes wrong any more.
    pub calm: bool,
}

impl Net {
    /// A connection of a client.
    pub fn open(&mut self, client: usize) -> Link {
        self.wires.push(Wire { client, to_node: Pipe::default(), to_client: Pipe::default() });
        self.wires.len() - 1
    }

    /// Connections so far, which is the next one's number.
    pub fn opened(&self) -> Link {
        self.wires.len()
    }

    /// Sends, in pieces of the seed's choice.
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

    /// Closes one end, behind everything that was sent.
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

    /// The piece that has arrived; `None` when it was lost.
    pub fn take(&mut self, link: Link, direction: Direction) -> Option<Piece> {
        self.wires.get_mut(link)?.pipe(direction).pieces.pop_front()
    }

    /// The connection is lost: some of what is under way still arrives, perhaps half of a packet. Both ends learn of it some time.
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

    /// The node is gone, and with it its ends of all connections. Clients learn of it some time.
    pub fn lose_all(&mut self, cx: &mut Context) {
        for link in 0..self.wires.len() {
            self.lose(cx, link);
        }
    }

    /// Nothing of this client's arrives for so long.
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
