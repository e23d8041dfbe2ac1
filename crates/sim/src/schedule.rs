//! Virtual time, and the schedule of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use crate::cluster::Step;
use crate::net::{Direction, Link};

/// Microseconds of virtual time.
pub type Micros = u64;

pub const MILLI: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// An event. Events of one incarnation of the node do nothing in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Starts the node's process.
    Start,
    /// Runs a turn of a reactor by timer.
    Turn { incarnation: u32, worker: usize },
    /// Delivers the next batch of one reactor to another.
    Batch { incarnation: u32, from: usize, to: usize },
    /// Delivers the next command of the log to a reactor.
    WorkerCommand { incarnation: u32, worker: usize },
    /// Commits the queued records of the log.
    Commit { incarnation: u32 },
    /// Lets the log's keeper free segments.
    Keep { incarnation: u32 },
    /// Handles the next request of a reader of the log.
    Read { incarnation: u32, reader: usize },
    /// Records the node's time.
    Note { incarnation: u32 },
    /// Goes on with replicas that begin and end.
    Follow { incarnation: u32 },
    /// Delivers the next piece to one end of a connection.
    Arrive { link: Link, direction: Direction },
    /// Reports the loss of a connection to one end.
    Lost { link: Link, direction: Direction },
    /// Lets a client act.
    Act { client: usize },
    /// Ends the node's process.
    End { incarnation: u32 },
    /// Removes the limit of room on the disk.
    Room,
    /// Ends a stop of the process: it has read all data that arrived meanwhile.
    ReadAll { incarnation: u32 },
    /// Causes the next fault of the plan.
    Fault { number: usize },
    /// Event of simulated clusters only.
    SimCluster(Step),
    /// Event of consensus groups only.
    Quorum(crate::quorum::Step),
    /// Event of shards with replicas only.
    AgreedShards(crate::agreed::Step),
    /// Event of linked clusters only.
    Linked(crate::linked::Step),
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
            | Self::Note { incarnation }
            | Self::Follow { incarnation } => Some(*incarnation),
            _ => None,
        }
    }
}

/// Scheduled events by time. Events of one time have a random order.
#[derive(Default)]
pub struct Schedule {
    now: Micros,
    /// Time and tie of each event, and its key. Entries are small because the heap moves them.
    due: BinaryHeap<Reverse<(u128, usize)>>,
    events: Slab<Event>,
    handled: u64,
}

impl Schedule {
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Number of events so far.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// Schedules an event. `tie` orders events of one time.
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

    /// Advances the time. No event is due before that.
    pub fn pass_to(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }
}
