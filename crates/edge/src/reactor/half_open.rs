//! Connections whose CONNECT has not succeeded yet, and the deadline for their layers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use broker::Time;

use super::Reactor;
use crate::connection_counts::HalfOpen;

/// Half-open connections of one reactor.
#[derive(Default)]
pub(super) struct HalfOpenConnections {
    by_slot: HashMap<u32, Entry>,
    /// Deadlines of connections with layers: time, serial number, slot. An entry stays until its time, also when the
    /// layers finish earlier.
    deadlines: BinaryHeap<Reverse<(Time, u64, u32)>>,
    serial: u64,
}

struct Entry {
    half_open: HalfOpen,
    serial: u64,
}

impl HalfOpenConnections {
    /// Adds a connection. `through_by` is the deadline for its layers, if it has any.
    pub fn enter(&mut self, slot: u32, half_open: HalfOpen, through_by: Option<Time>) {
        self.serial += 1;
        let serial = self.serial;
        self.by_slot.insert(slot, Entry { half_open, serial });
        if let Some(by) = through_by {
            self.deadlines.push(Reverse((by, serial, slot)));
        }
    }

    /// Removes a connection that has logged in or is gone.
    pub fn leave(&mut self, slot: u32) {
        self.by_slot.remove(&slot);
    }

    pub fn half_open(&mut self, slot: u32) -> Option<&mut HalfOpen> {
        self.by_slot.get_mut(&slot).map(|entry| &mut entry.half_open)
    }

    pub fn next_deadline(&self) -> Time {
        self.deadlines.peek().map_or(Time::NEVER, |Reverse((time, ..))| *time)
    }

    /// Returns the next connection that is still half open at its deadline.
    fn overdue(&mut self, now: Time) -> Option<u32> {
        while self.next_deadline() <= now {
            let Some(Reverse((_, serial, slot))) = self.deadlines.pop() else { break };
            if self.by_slot.get(&slot).is_some_and(|entry| entry.serial == serial) {
                return Some(slot);
            }
        }
        None
    }
}

impl Reactor {
    /// Closes connections whose layers are not finished in time.
    pub(super) fn reap_half_open(&mut self) {
        while let Some(slot) = self.half_open_connections.overdue(self.read_until) {
            let layers = self.peers[slot as usize].as_ref().and_then(|peer| peer.layers.as_ref());
            if layers.is_some_and(|layers| !layers.is_through()) {
                self.figures.door.closed_timeout += 1;
                self.drop_connection(slot);
            }
        }
    }

    /// Stops tracking a connection once its client has logged in.
    pub(super) fn look_at_half_open(&mut self, slot: u32) {
        if let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut)
            && peer.marks.half_open
            && self.worker.is_open(slot)
        {
            peer.marks.half_open = false;
            self.half_open_connections.leave(slot);
        }
    }
}
