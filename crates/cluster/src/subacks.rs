use std::collections::VecDeque;

use broker::{ConnectionId, Ticket};
use link::Time;
use replog::Position;

/// SUBACKs that wait until this node's changes up to a position are known.
#[derive(Debug, Default)]
pub struct Subacks {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    position: Position,
    connection: ConnectionId,
    ticket: Ticket,
    deadline: Time,
}

impl Subacks {
    /// Adds a SUBACK. Positions never decrease.
    pub fn push(&mut self, position: Position, connection: ConnectionId, ticket: Ticket, deadline: Time) {
        debug_assert!(self.waiting.back().is_none_or(|last| last.position <= position));
        self.waiting.push_back(Waiting { position, connection, ticket, deadline });
    }

    /// Adjusts all positions after this node's changes were renumbered, up to `last`.
    pub fn rebase(&mut self, last: Position) {
        self.waiting.iter_mut().for_each(|waiting| waiting.position = last);
    }

    /// Takes the next SUBACK whose position is known.
    pub fn pop_known(&mut self, known: Position) -> Option<(ConnectionId, Ticket)> {
        let waiting = self.waiting.pop_front_if(|waiting| waiting.position <= known)?;
        Some((waiting.connection, waiting.ticket))
    }

    /// Takes the next SUBACK that has waited for too long.
    pub fn pop_overdue(&mut self, now: Time) -> Option<(ConnectionId, Ticket)> {
        let waiting = self.waiting.pop_front_if(|waiting| waiting.deadline <= now)?;
        Some((waiting.connection, waiting.ticket))
    }

    /// Returns the position that the last one waits for.
    pub fn last(&self) -> Option<Position> {
        self.waiting.back().map(|waiting| waiting.position)
    }

    pub fn deadline(&self) -> Time {
        self.waiting.front().map_or(Time::NEVER, |waiting| waiting.deadline)
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
