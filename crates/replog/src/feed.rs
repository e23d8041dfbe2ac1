use std::collections::BTreeMap;
use std::time::Duration;

use crate::delta::{CopyPart, Delta, Operation, Value};
use crate::id::{Incarnation, Position, WriterId};
use crate::replica::{Replica, WriterState};

/// What one peer is sent, while the link to it lasts. It sends at once when it has been quiet, and gathers otherwise; it never waits for
/// an answer.
#[derive(Debug)]
pub struct Feed {
    batching: Batching,
    fed: BTreeMap<WriterId, Fed>,
    /// Microseconds.
    last: Option<u64>,
    in_flight: u64,
    /// Whose turn it was.
    turn: WriterId,
    /// The revision of the replica at which there was nothing for the peer: nobody looks again before there is another.
    idle_revision: Option<u64>,
}

/// How changes are gathered.
#[derive(Clone, Debug)]
pub struct Batching {
    /// After a delta has left, the next one waits so long. Zero: each change leaves by itself.
    pub interval: Duration,
    /// Bytes of keys in one delta, without the last; a whole copy is made of such.
    pub bytes_max: usize,
    /// Bytes of keys that are on their way.
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
    /// A whole copy is being sent; deletions up to here were forgotten when it began.
    copy: Option<Position>,
}

/// Beside the key of each operation: its numbers.
const OPERATION: u64 = 8;

impl Feed {
    /// Begins with what the peer says that it has ([`Replica::vector`]).
    pub fn new(
        batching: Batching,
        vector: impl IntoIterator<Item = (WriterId, Incarnation, Position)>,
    ) -> Self {
        let fed = |(writer, incarnation, upto)| (writer, Fed { incarnation, upto, copy: None });
        let fed = vector.into_iter().map(fed).collect();
        Self { batching, fed, last: None, in_flight: 0, turn: WriterId(0), idle_revision: None }
    }

    /// The peer misses what comes after a position: it is sent again.
    pub fn rewind(&mut self, writer: WriterId, incarnation: Incarnation, upto: Position) {
        self.fed.insert(writer, Fed { incarnation, upto, copy: None });
        self.idle_revision = None;
    }

    /// The peer hears of other writers from this node than before: `wants` says something else from now on.
    pub fn wants_changed(&mut self) {
        self.idle_revision = None;
    }

    /// The last delta found no place on the way to the peer: it comes again.
    pub fn unsent<V: Value>(&mut self, replica: &Replica<V>, delta: &Delta<V>) {
        self.acknowledged(Self::cost(delta));
        self.idle_revision = None;
        if delta.after == Position::default() {
            // Nothing of this life has been sent, not even that there is one.
            self.fed.remove(&delta.writer);
            return;
        }
        let copy = (delta.copy != CopyPart::No).then(|| replica.floor(delta.writer));
        self.fed.insert(delta.writer, Fed { incarnation: delta.incarnation, upto: delta.after, copy });
    }

    /// The next delta for the peer, if there is one and it is time. `wants` says of which writers the peer hears from this node, the same until
    /// [`Self::wants_changed`]; a copy that has begun is finished, whether it is wanted or not, for the peer hears of that writer from nobody
    /// else meanwhile. It is always of the same replica.
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
        // A copy is bounded by what is on its way, not by time.
        if delta.copy == CopyPart::No && bytes < self.batching.bytes_max as u64 {
            self.last = Some(now);
        }
        Some(delta)
    }

    /// Bytes of deltas have arrived, as [`Self::cost`] counts them.
    pub fn acknowledged(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// What a delta counts while it is on its way.
    pub fn cost<V>(delta: &Delta<V>) -> u64 {
        delta.operations.iter().map(|operation| operation.key.len() as u64 + OPERATION).sum()
    }

    /// When the next delta may leave, microseconds.
    pub fn due(&self) -> u64 {
        let interval = u64::try_from(self.batching.interval.as_micros()).unwrap_or(u64::MAX);
        self.last.map_or(0, |last| last.saturating_add(interval))
    }

    /// When [`Self::poll`] is worth calling again, microseconds; `None` while the peer has heard of everything, or of as much as may be on
    /// its way.
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
            // What the peer knows of one that is over is worth nothing, and a writer knows best which of its lives goes on.
            Some(fed) if fed.incarnation > held.incarnation => {
                held.is_own || replica.is_dead(writer, fed.incarnation)
            }
            Some(fed) if fed.incarnation == held.incarnation => {
                fed.upto < held.position || fed.copy.is_some()
            }
            // That there is nothing in a new life is news, too.
            _ => true,
        }
    }

    fn next<V: Value>(&mut self, writer: WriterId, held: &WriterState<V>) -> (Delta<V>, u64) {
        let incarnation = held.incarnation;
        let new = Fed { incarnation, upto: Position::default(), copy: None };
        let mut fed =
            self.fed.get(&writer).copied().filter(|fed| fed.incarnation == incarnation).unwrap_or(new);
        // What was deleted behind what the peer has, and forgotten since, it can only learn from a copy; one that is under way begins
        // again.
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
