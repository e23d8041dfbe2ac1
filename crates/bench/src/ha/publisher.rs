//! A publisher's session: what is in flight, over all of its connections.

use super::checker::{Checker, Lane};
use super::message::{Message, Payloads};
use crate::codec;
use std::collections::VecDeque;

/// Sends what is due within a window, and after a reconnect what was not acknowledged: with DUP and the same Packet
/// Identifier in the same session, as a new message when the broker lost the session.
pub struct Publisher {
    number: usize,
    v5: bool,
    lanes: Vec<Topic>,
    /// The lane of the next new message.
    turn: usize,
    /// Everything since the oldest message that is not finished. The Packet Identifier is the place.
    flights: VecDeque<Flight>,
    /// Packet Identifier of the first of `flights`.
    front: u16,
    /// The first of `flights` that did not go out on this connection.
    unsent: usize,
    /// Messages in flight that the caller allows, and that the broker of this connection does.
    window: usize,
    receive_maximum: usize,
    /// Of this connection, as the broker's Receive Maximum counts them.
    open: usize,
    unfinished: usize,
    pub resent: u64,
    pub releases_resent: u64,
    /// Acknowledgements of what is not in flight.
    pub unexpected_acks: u64,
}

/// Where a lane's messages go.
pub struct Topic {
    pub qos: u8,
    pub name: String,
}

struct Flight {
    lane: usize,
    number: u64,
    due: u64,
    state: State,
    /// It went out in this session.
    was_sent: bool,
    /// It takes room of the Receive Maximum on this connection.
    open: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// For PUBACK, or for PUBREC.
    Waits,
    /// PUBREC came: the broker has it, and waits for PUBREL or has answered it.
    Taken,
    Done,
}

/// Places of `flights` at most: far fewer than there are Packet Identifiers.
const FLIGHTS_MAX: usize = 40_000;
const IDENTIFIERS: usize = 65_535;

/// What one acknowledgement settled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Settled {
    /// Nothing yet: the QoS 2 handshake goes on, or nobody waits for this.
    Nothing,
    Acknowledged,
    Refused,
}

impl Publisher {
    /// `window` is at least 1.
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

    /// Messages that are not finished.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// A connection has its CONNACK and the session is the one that was. Everything goes out again by [`Publisher::pump`].
    pub fn resumed(&mut self, receive_maximum: u16) {
        self.receive_maximum = usize::from(receive_maximum);
        self.open = 0;
        self.unsent = 0;
        for flight in &mut self.flights {
            flight.open = false;
        }
    }

    /// A connection has its CONNACK and the session is a new one. What the broker had not taken becomes new messages with
    /// new Packet Identifiers. What it had taken by PUBREC was acknowledged by that, and cannot be said again.
    pub fn session_lost(&mut self, receive_maximum: u16, checker: &mut Checker) {
        self.resumed(receive_maximum);
        // The identifiers of the old session are not used again soon, so that a late answer is told apart.
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

    /// Writes what may go out now: first what has to be repeated, then new messages as long as `next_due` has one.
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

    /// Writes what the flight at a place needs; false when it has to wait for room.
    fn send(&mut self, at: usize, room: bool, payloads: &Payloads, out: &mut Vec<u8>) -> bool {
        let id = identifier(self.front, at);
        let flight = &mut self.flights[at];
        match flight.state {
            State::Done => {}
            // PUBREL takes no room of the Receive Maximum [MQTT-4.9.0-2].
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

    /// Takes PUBACK, PUBREC or PUBCOMP. `reason` is 0 in 3.1.1.
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
        // What was never sent in this session cannot be acknowledged in it.
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

/// The Packet Identifier that is so many places after another; never 0.
fn identifier(front: u16, offset: usize) -> u16 {
    ((usize::from(front) - 1 + offset) % IDENTIFIERS) as u16 + 1
}

#[cfg(test)]
mod tests;
