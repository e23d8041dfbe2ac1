//! Virtual time, and what happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use crate::cluster::Step;
use crate::net::{Direction, Link};

/// Microseconds of virtual time.
pub type Micros = u64;

pub const MILLI: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// What can happen. What belongs to a life of the node does nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node's process starts.
    Start,
    /// A reactor has something to do by itself.
    Turn { incarnation: u32, worker: usize },
    /// The next batch from one reactor reaches another.
    Batch { incarnation: u32, from: usize, to: usize },
    /// The next letter of the log reaches a reactor.
    WorkerCommand { incarnation: u32, worker: usize },
    /// The log's thread writes what is queued.
    Commit { incarnation: u32 },
    /// The log's other thread makes room.
    Keep { incarnation: u32 },
    /// A reader of the log gets to its next request.
    Read { incarnation: u32, reader: usize },
    /// The node's time is written down.
    Note { incarnation: u32 },
    /// The next piece arrives at one end of a connection.
    Arrive { link: Link, direction: Direction },
    /// One end learns that the connection is gone.
    Lost { link: Link, direction: Direction },
    /// A client does something.
    Act { client: usize },
    /// The node's process ends, one way or another.
    End { incarnation: u32 },
    /// The disk has room again.
    Room,
    /// A process that stood still has read what had come meanwhile.
    ReadAll { incarnation: u32 },
    /// The next fault of the plan.
    Fault { number: usize },
    /// What only happens where there are several nodes.
    SimCluster(Step),
    /// What only happens among replicas that agree.
    Quorum(crate::quorum::Step),
}

impl Event {
    /// Incarnation of the node whose process handles the event itself; `None` for other events.
    pub fn incarnation(&self) -> Option<u32> {
        match self {
            Self::Turn { incarnation, .. }
            | Self::Batch { incarnation, .. }
            | Self::WorkerCommand { incarnation, .. }
            | Self::Commit { incarnation }
            | Self::Keep { incarnation }
            | Self::Read { incarnation, .. }
            | Self::Note { incarnation } => Some(*incarnation),
            _ => None,
        }
    }
}

/// What will happen, by its time. What happens at one time happens in an order of the seed's.
#[derive(Default)]
pub struct Schedule {
    now: Micros,
    /// Small, for they are moved about: of each event when it happens, what orders it among those of that time, and where it is.
    due: BinaryHeap<Reverse<(u128, usize)>>,
    events: Slab<Event>,
    handled: u64,
}

impl Schedule {
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Events so far.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// `tie` orders what happens at one time.
    pub fn at(&mut self, at: Micros, tie: u64, event: Event) {
        let at = at.max(self.now);
        self.due.push(Reverse((u128::from(at) << 64 | u128::from(tie), self.events.insert(event))));
    }

    /// Moves to the next event, unless it is later than `until`.
    pub fn next(&mut self, until: Micros) -> Option<Event> {
        let Reverse((first, _)) = self.due.peek()?;
        let at = (first >> 64) as Micros;
        if at > until {
            return None;
        }
        let Reverse((_, key)) = self.due.pop()?;
        self.now = at;
        self.handled += 1;
        Some(self.events.remove(key))
    }

    /// Nothing happens until then.
    pub fn pass_to(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }
}
