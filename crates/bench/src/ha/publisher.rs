//! A publisher's session: messages in flight, over all of its connections.

use super::checker::{Checker, Lane};
use super::message::{Message, Payloads};
use crate::codec;
use std::collections::VecDeque;

/// Session of a publisher. It sends due messages within a window. After a reconnect it repeats unacknowledged ones:
/// with DUP and the same Packet Identifier in the same session, as new messages when the broker lost the session.
pub struct Publisher {
    number: usize,
    v5: bool,
    lanes: Vec<Topic>,
    /// Lane of the next new message.
    turn: usize,
    /// Messages since the oldest unfinished one. The index determines the Packet Identifier.
    flights: VecDeque<Flight>,
    /// Packet Identifier of the first of `flights`.
    front: u16,
    /// Index of the first of `flights` that was not sent on this connection.
    unsent: usize,
    /// Limits of messages in flight: that of the caller, and that of this connection's broker.
    window: usize,
    receive_maximum: usize,
    /// Number of messages of this connection that count for the broker's Receive Maximum.
    open: usize,
    unfinished: usize,
    pub resent: u64,
    pub releases_resent: u64,
    /// Number of acknowledgements for messages that are not in flight.
    pub unexpected_acks: u64,
}

/// Topic of a lane's messages.
pub struct Topic {
    pub qos: u8,
    pub name: String,
}

struct Flight {
    lane: usize,
    number: u64,
    due: u64,
    state: State,
    /// True when it was sent in this session.
    was_sent: bool,
    /// True when it counts for the Receive Maximum of this connection.
    open: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Waits for PUBACK, or for PUBREC.
    Waits,
    /// PUBREC has arrived: the broker has the message, and waits for PUBREL or has answered it.
    Taken,
    Done,
}

/// Maximum length of `flights`: far less than the number of Packet Identifiers.
const FLIGHTS_MAX: usize = 40_000;
const IDENTIFIERS: usize = 65_535;

/// Result of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Settled {
    /// Nothing is finished: the QoS 2 handshake continues, or no message waits for this.
    Nothing,
    Acknowledged,
    Refused,
}

impl Publisher {
    /// A new session; `window` is at least 1.
    pub fn new(number: usize, v5: bool, lanes: Vec<Topic>, window: usize) -> Publisher {
        Publisher {
            number,
            v5,
            lanes,
            turn: 0,
            flights: VecDeque::new(),
            front: 1,
            unsent: 0,
            window: window.clamp(1, FLIGHTS_MAX / 2),
            receive_maximum: IDENTIFIERS,
            open: 0,
            unfinished: 0,
            resent: 0,
            releases_resent: 0,
            unexpected_acks: 0,
        }
    }

    /// Number of unfinished messages.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// A connection has received its CONNACK, and the session still exists. [`Publisher::pump`] sends everything
    /// again.
    pub fn resumed(&mut self, receive_maximum: u16) {
        self.receive_maximum = usize::from(receive_maximum);
        self.open = 0;
        self.unsent = 0;
        for flight in &mut self.flights {
            flight.open = false;
        }
    }

    /// A connection has received its CONNACK, and the session is new. Messages without PUBREC become new messages
    /// with new Packet Identifiers. Messages with PUBREC were acknowledged by it, and cannot be repeated.
    pub fn session_lost(&mut self, receive_maximum: u16, checker: &mut Checker) {
        self.resumed(receive_maximum);
        // The identifiers of the old session are not reused soon, so that a late answer is recognised.
        self.front = identifier(self.front, self.flights.len());
        for flight in &mut self.flights {
            let of = Lane { publisher: self.number, lane: flight.lane };
            match flight.state {
                State::Waits if flight.was_sent => checker.renewed(of, flight.number),
                State::Taken => {
                    checker.acknowledged(of, flight.number);
                    self.unfinished -= 1;
                }
                _ => {}
            }
            flight.was_sent = false;
        }
        self.flights.retain(|flight| flight.state == State::Waits);
    }

    /// Writes the messages that may be sent now: first repetitions, then new messages as long as `next_due` has one.
    /// Stops when `out` holds `bytes`.
    pub fn pump(
        &mut self,
        checker: &mut Checker,
        payloads: &Payloads,
        mut next_due: impl FnMut() -> Option<u64>,
        bytes: usize,
        out: &mut Vec<u8>,
    ) {
        while out.len() < bytes {
            let room = self.open < self.window.min(self.receive_maximum);
            if self.unsent == self.flights.len() {
                if !room || self.unfinished >= self.window || self.flights.len() >= FLIGHTS_MAX {
                    return;
                }
                let Some(due) = next_due() else { return };
                let lane = self.turn;
                self.turn = (self.turn + 1) % self.lanes.len();
                let number = checker.publish(Lane { publisher: self.number, lane });
                self.unfinished += 1;
                self.flights.push_back(Flight {
                    lane,
                    number,
                    due,
                    state: State::Waits,
                    was_sent: false,
                    open: false,
                });
            }
            if !self.send(self.unsent, room, payloads, out) {
                return;
            }
            self.unsent += 1;
        }
    }

    /// Writes the next packet of the flight at an index; false when it has to wait for room.
    fn send(&mut self, at: usize, room: bool, payloads: &Payloads, out: &mut Vec<u8>) -> bool {
        let id = identifier(self.front, at);
        let flight = &mut self.flights[at];
        match flight.state {
            State::Done => {}
            // PUBREL does not count for the Receive Maximum [MQTT-4.9.0-2].
            State::Taken => {
                self.releases_resent += 1;
                codec::ack(out, codec::PUBREL, id);
            }
            State::Waits if !room => return false,
            State::Waits => {
                let topic = &self.lanes[flight.lane];
                let head =
                    codec::publish_head(self.v5.then_some(&[]), topic.qos, &topic.name, payloads.size());
                let flags = if flight.was_sent { codec::DUP } else { 0 };
                codec::publish_start(out, self.v5.then_some(&[]), topic.qos, flags, &head, id);
                let of = Lane { publisher: self.number, lane: flight.lane };
                payloads.put(out, &Message { of, number: flight.number, due: flight.due });
                self.resent += u64::from(flight.was_sent);
                flight.was_sent = true;
                flight.open = true;
                self.open += 1;
            }
        }
        true
    }

    /// Handles PUBACK, PUBREC or PUBCOMP. `reason` is 0 in 3.1.1.
    pub fn acknowledge(
        &mut self,
        kind: u8,
        id: u16,
        reason: u8,
        checker: &mut Checker,
        out: &mut Vec<u8>,
    ) -> Settled {
        let at = (usize::from(id) + IDENTIFIERS - usize::from(self.front)) % IDENTIFIERS;
        let Some(flight) = self.flights.get_mut(at) else {
            self.unexpected_acks += 1;
            return Settled::Nothing;
        };
        let (qos, failed) = (self.lanes[flight.lane].qos, reason >= 0x80);
        // A message that was not sent in this session cannot be acknowledged in it.
        match (kind, flight.state, qos) {
            (codec::PUBACK, State::Waits, 1) if flight.was_sent => {}
            (codec::PUBREC, State::Waits, 2) if flight.was_sent && failed => {}
            (codec::PUBREC, State::Waits, 2) if flight.was_sent => {
                flight.state = State::Taken;
                codec::ack(out, codec::PUBREL, id);
                return Settled::Nothing;
            }
            (codec::PUBREC, State::Taken, 2) => {
                codec::ack(out, codec::PUBREL, id);
                return Settled::Nothing;
            }
            (codec::PUBCOMP, State::Taken, 2) => {}
            _ => {
                self.unexpected_acks += 1;
                return Settled::Nothing;
            }
        }
        flight.state = State::Done;
        self.open -= usize::from(std::mem::take(&mut flight.open));
        self.unfinished -= 1;
        let of = Lane { publisher: self.number, lane: flight.lane };
        // PUBCOMP with an error still ends a message that PUBREC acknowledged.
        let settled = if failed && kind != codec::PUBCOMP {
            checker.refused(of);
            Settled::Refused
        } else {
            checker.acknowledged(of, flight.number);
            Settled::Acknowledged
        };
        while self.flights.front().is_some_and(|flight| flight.state == State::Done) {
            self.flights.pop_front();
            self.front = identifier(self.front, 1);
            self.unsent = self.unsent.saturating_sub(1);
        }
        settled
    }
}

/// Packet Identifier at a distance from another; never 0.
fn identifier(front: u16, offset: usize) -> u16 {
    ((usize::from(front) - 1 + offset) % IDENTIFIERS) as u16 + 1
}

#[cfg(test)]
mod tests;
