//! Lists of connections that the edge examines next.

use crate::connection::{Connection, Reading};
use crate::ids::ConnectionId;

/// Connections of a worker that the edge examines after this turn.
///
/// **Invariant:** a connection is in the list of connections with output once at most; its mark says whether it is.
#[derive(Default)]
pub(super) struct ReadyLists {
    /// Slots of connections with output, and of closing connections.
    dirty: Vec<u32>,
    /// Slots of connections whose kept bytes may be offered again.
    woken: Vec<u32>,
    /// Connections that are read again in the next turn, or have a packet to continue with.
    paused: Vec<ConnectionId>,
}

impl ReadyLists {
    /// Adds a connection that has output or is closing.
    #[inline]
    pub fn mark_dirty(&mut self, connection: &mut Connection) {
        if !connection.marks.dirty {
            connection.marks.dirty = true;
            self.dirty.push(connection.id.slot);
        }
    }

    /// Lets the edge offer the kept bytes of a connection again, unless it is paused.
    pub fn wake(&mut self, connection: &mut Connection) {
        if connection.marks.reading == Reading::Held {
            connection.marks.reading = Reading::Continues;
            self.woken.push(connection.id.slot);
        }
    }

    /// Stops reading from a connection for this turn.
    pub fn pause(&mut self, connection: &mut Connection) {
        connection.marks.reading = Reading::Paused;
        self.paused.push(connection.id);
    }

    /// Lets the next turn continue with a packet of a connection.
    pub fn continue_later(&mut self, connection: &Connection) {
        self.paused.push(connection.id);
    }

    /// Swaps the list of connections with output and an empty one. The caller clears the marks.
    pub fn swap_dirty(&mut self, slots: &mut Vec<u32>) {
        slots.clear();
        std::mem::swap(&mut self.dirty, slots);
    }

    /// Appends the connections whose kept bytes may be offered again to `slots`.
    pub fn take_woken(&mut self, slots: &mut Vec<u32>) {
        slots.append(&mut self.woken);
    }

    pub fn take_paused(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.paused)
    }

    /// Returns whether the edge has to examine connections before it may sleep.
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.woken.is_empty()
    }

    pub fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }
}
