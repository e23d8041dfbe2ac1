use std::collections::BTreeMap;
use std::time::Duration;

use crate::delta::{CopyPart, Delta, Operation, Value};
use crate::id::{Incarnation, Position, WriterId};
use crate::replica::{Replica, WriterState};

/// Deltas for one peer, while the link to it lasts. A feed sends at once after a quiet time, and gathers changes
/// otherwise. It never waits for an answer.
#[derive(Debug)]
pub struct Feed {
    batching: Batching,
    fed: BTreeMap<WriterId, Fed>,
    /// Time of the last delta, in microseconds.
    last: Option<u64>,
    in_flight: u64,
    /// Writer of the last turn.
    turn: WriterId,
    /// Revision of the replica at which nothing was left to send. The feed does not search again before the revision
    /// changes.
    idle_revision: Option<u64>,
}

/// Parameters for gathering changes.
#[derive(Clone, Debug)]
pub struct Batching {
    /// Minimum time between two deltas. With zero each change leaves by itself.
    pub interval: Duration,
    /// Maximum bytes of keys in one delta, without the last key; a whole copy consists of several deltas.
    pub bytes_max: usize,
    /// Maximum bytes of keys that are in transit.
    pub in_flight_max: u64,
}

impl Default for Batching {
    fn default() -> Self {
        Self { interval: Duration::from_millis(2), bytes_max: 64 * 1024, in_flight_max: 4 << 20 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Fed {
    incarnation: Incarnation,
    upto: Position,
    /// Set while a whole copy is sent: deletions up to this position were forgotten when it began.
    copy: Option<Position>,
}

/// Bytes that each operation costs in addition to its key: its numbers.
const OPERATION: u64 = 8;

impl Feed {
    /// Creates a feed from the positions that the peer reports ([`Replica::vector`]).
    pub fn new(
        batching: Batching,
        vector: impl IntoIterator<Item = (WriterId, Incarnation, Position)>,
    ) -> Self {
        let fed = |(writer, incarnation, upto)| (writer, Fed { incarnation, upto, copy: None });
        let fed = vector.into_iter().map(fed).collect();
        Self { batching, fed, last: None, in_flight: 0, turn: WriterId(0), idle_revision: None }
    }

    /// Sends the changes after a position again, because the peer lacks them.
    pub fn rewind(&mut self, writer: WriterId, incarnation: Incarnation, upto: Position) {
        self.fed.insert(writer, Fed { incarnation, upto, copy: None });
        self.idle_revision = None;
    }

    /// Notes that `wants` has a different result from now on: the peer receives other writers from this node than
    /// before.
    pub fn wants_changed(&mut self) {
        self.idle_revision = None;
    }

    /// Returns a delta that the link refused: it is sent again.
    pub fn unsent<V: Value>(&mut self, replica: &Replica<V>, delta: &Delta<V>) {
        self.acknowledged(Self::cost(delta));
        self.idle_revision = None;
        if delta.after == Position::default() {
            // Nothing of this incarnation has been sent, not even the fact that it exists.
            self.fed.remove(&delta.writer);
            return;
        }
        let copy = (delta.copy != CopyPart::No).then(|| replica.floor(delta.writer));
        self.fed.insert(delta.writer, Fed { incarnation: delta.incarnation, upto: delta.after, copy });
    }

    /// Returns the next delta for the peer, if there is one and it is time. `wants` selects the writers that the peer
    /// receives from this node; its result must stay the same until [`Self::wants_changed`]. A copy that has begun is
    /// finished even if it is not wanted any more, because meanwhile the peer receives that writer from no other node.
    /// `replica` is the same in all calls.
    pub fn poll<V: Value>(
        &mut self,
        now: u64,
        replica: &Replica<V>,
        wants: impl Fn(WriterId) -> bool,
    ) -> Option<Delta<V>> {
        let is_idle = self.idle_revision == Some(replica.revision());
        if is_idle || self.in_flight >= self.batching.in_flight_max || now < self.due() {
            return None;
        }
        let is_fed =
            |(writer, held): &(WriterId, &WriterState<V>)| self.is_fed(replica, *writer, held, &wants);
        let all = || replica.held().filter(is_fed);
        let Some((writer, held)) = all().find(|(writer, _)| *writer > self.turn).or_else(|| all().next())
        else {
            self.idle_revision = Some(replica.revision());
            return None;
        };
        self.turn = writer;
        let (delta, bytes) = self.next(writer, held);
        self.in_flight += bytes;
        // A copy is limited by the bytes in transit, not by time.
        if delta.copy == CopyPart::No && bytes < self.batching.bytes_max as u64 {
            self.last = Some(now);
        }
        Some(delta)
    }

    /// Notes that bytes of deltas have arrived, as counted by [`Self::cost`].
    pub fn acknowledged(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Returns the cost of a delta while it is in transit, in bytes.
    pub fn cost<V>(delta: &Delta<V>) -> u64 {
        delta.operations.iter().map(|operation| operation.key.len() as u64 + OPERATION).sum()
    }

    /// Returns the time at which the next delta may leave, in microseconds.
    pub fn due(&self) -> u64 {
        let interval = u64::try_from(self.batching.interval.as_micros()).unwrap_or(u64::MAX);
        self.last.map_or(0, |last| last.saturating_add(interval))
    }

    /// Returns the time of the next call of [`Self::poll`], in microseconds. Returns `None` while the peer has
    /// everything, or as much as may be in transit.
    pub fn next_due<V: Value>(&self, replica: &Replica<V>, wants: impl Fn(WriterId) -> bool) -> Option<u64> {
        if self.idle_revision == Some(replica.revision()) {
            return None;
        }
        let is_fed = || replica.held().any(|(writer, held)| self.is_fed(replica, writer, held, &wants));
        (self.in_flight < self.batching.in_flight_max && is_fed()).then(|| self.due())
    }

    fn is_fed<V: Value>(
        &self,
        replica: &Replica<V>,
        writer: WriterId,
        held: &WriterState<V>,
        wants: impl Fn(WriterId) -> bool,
    ) -> bool {
        let is_begun = |fed: &Fed| fed.copy.is_some() && fed.incarnation == held.incarnation;
        (wants(writer) || self.fed.get(&writer).is_some_and(is_begun))
            && self.is_behind(replica, writer, held)
    }

    fn is_behind<V: Value>(&self, replica: &Replica<V>, writer: WriterId, held: &WriterState<V>) -> bool {
        match self.fed.get(&writer) {
            // State of the peer about an ended incarnation is worthless, and a writer knows best which of its
            // incarnations runs.
            Some(fed) if fed.incarnation > held.incarnation => {
                held.is_own || replica.is_dead(writer, fed.incarnation)
            }
            Some(fed) if fed.incarnation == held.incarnation => {
                fed.upto < held.position || fed.copy.is_some()
            }
            // The peer must also learn that a new incarnation is empty.
            _ => true,
        }
    }

    fn next<V: Value>(&mut self, writer: WriterId, held: &WriterState<V>) -> (Delta<V>, u64) {
        let incarnation = held.incarnation;
        let new = Fed { incarnation, upto: Position::default(), copy: None };
        let mut fed =
            self.fed.get(&writer).copied().filter(|fed| fed.incarnation == incarnation).unwrap_or(new);
        // Deletions after the peer's position that are forgotten here require a copy. A copy in progress begins again.
        let floor = held.log.floor();
        if fed.upto < floor && fed.copy.is_none_or(|known| known < floor) {
            fed = Fed { copy: Some(floor), ..new };
        }
        let after = fed.upto;
        let (mut operations, mut bytes, mut upto) = (Vec::new(), 0, held.position);
        let known = held.log.after(after).take_while(|(position, ..)| *position <= held.position);
        for (position, key, value) in known {
            if bytes >= self.batching.bytes_max as u64 {
                upto = operations.last().map_or(after, |last: &Operation<V>| last.position);
                break;
            }
            bytes += key.len() as u64 + OPERATION;
            operations.push(Operation { position, key: key.into(), value: value.cloned() });
        }
        let is_end = upto == held.position;
        let copy = match (fed.copy.is_some(), is_end) {
            (false, _) => CopyPart::No,
            (true, false) => CopyPart::Part,
            (true, true) => CopyPart::End,
        };
        self.fed.insert(writer, Fed { incarnation, upto, copy: fed.copy.filter(|_| !is_end) });
        (Delta { writer, incarnation, after, upto, copy, operations }, bytes)
    }
}
