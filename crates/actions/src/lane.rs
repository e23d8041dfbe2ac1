//! Batches of records for the connections to another system.

use std::collections::VecDeque;
use std::time::Duration;

use bridge::Time;
use sinks::Record;

/// Number of a message within one connection to the broker, in the order of arrival.
pub type Sequence = u64;

/// A record, and the message that it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub sequence: Sequence,
    pub record: Record,
    /// Time of arrival of the message at the broker, in ms since 1970.
    pub received_ms: u64,
    pub failures: Failures,
}

/// Failed attempts to write a record alone, which may be the fault of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Number of all these attempts.
    pub attempts: u32,
    /// Number of attempts since whose predecessor another record was written.
    pub counted: u32,
    /// Number of successful writes of the action at the last attempt.
    pub successes: u64,
}

impl Failures {
    /// Notes a failed attempt. `successes` is the number of successful writes of the action.
    #[must_use]
    pub fn with(self, successes: u64) -> Self {
        let has_others = self.attempts > 0 && successes != self.successes;
        Self {
            attempts: self.attempts.saturating_add(1),
            counted: self.counted.saturating_add(u32::from(has_others)),
            successes,
        }
    }

    /// Notes that the other system was not reached with the record. It has no effect on a record that never failed.
    #[must_use]
    pub fn without_answer(self) -> Self {
        let attempts = if self.attempts > 0 { self.attempts.saturating_add(1) } else { 0 };
        Self { attempts, ..self }
    }
}

/// Records that are written together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub items: Vec<Item>,
    /// Number of the connection to the broker on which the messages came.
    pub epoch: u64,
}

/// Result of writing a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    /// The other system has refused it for good.
    Refused(String),
    /// The other system did not accept it in time.
    Expired(String),
    /// The record failed each time while other records were written.
    GivenUp(String),
    /// The record was not written, because it comes again.
    Abandoned,
}

/// A record that was written or given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub sequence: Sequence,
    pub bytes: usize,
    pub outcome: Outcome,
}

/// Limits of batches.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    pub records_max: usize,
    pub bytes_max: usize,
    pub wait: Duration,
}

/// Records for one connection, in their order. At most one batch is being written.
#[derive(Debug, Default)]
pub struct Lane {
    waiting: VecDeque<(Time, Item)>,
    bytes: usize,
    is_busy: bool,
}

impl Lane {
    pub fn push(&mut self, now: Time, item: Item) {
        self.bytes += item.record.bytes();
        self.waiting.push_back((now, item));
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Time at which a batch is due, if no record comes; `None` while one is being written, or nothing waits.
    pub fn due(&self, limits: &BatchLimits) -> Option<Time> {
        let (since, _) = self.waiting.front().filter(|_| !self.is_busy)?;
        let is_full = self.waiting.len() >= limits.records_max || self.bytes >= limits.bytes_max;
        Some(if is_full { *since } else { since.after(limits.wait) })
    }

    /// Takes the records of the next batch if it is due.
    pub fn take(&mut self, now: Time, limits: &BatchLimits) -> Option<Vec<Item>> {
        self.due(limits).filter(|due| *due <= now)?;
        let mut items = Vec::with_capacity(self.waiting.len().min(limits.records_max));
        let mut bytes = 0;
        // Whether a record fails because of itself, only another one can show. They are written one by one.
        let suspects = self.waiting.iter().take_while(|(_, item)| item.failures.attempts > 0).count();
        let least = if suspects > 0 { suspects + 1 } else { 1 };
        while let Some((_, item)) = self.waiting.front() {
            let size = item.record.bytes();
            let is_full = items.len() >= limits.records_max || bytes + size > limits.bytes_max;
            if is_full && items.len() >= least {
                break;
            }
            bytes += size;
            items.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        self.bytes -= bytes;
        self.is_busy = true;
        Some(items)
    }

    /// Takes records of the last batch back, which are to be written before all others.
    pub fn take_back(&mut self, items: Vec<Item>) {
        for item in items.into_iter().rev() {
            self.bytes += item.record.bytes();
            self.waiting.push_front((Time::default(), item));
        }
    }

    /// Notes that the batch was written, or will not be.
    pub fn finished(&mut self) {
        self.is_busy = false;
    }

    /// Forgets the records that wait. The batch that is being written stays.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BatchLimits =
        BatchLimits { records_max: 3, bytes_max: 100, wait: Duration::from_millis(10) };

    fn item(sequence: Sequence, bytes: usize) -> Item {
        let record = Record { fields: vec![Some(vec![0; bytes].into())], id: 0 };
        Item { sequence, record, received_ms: 0, failures: Failures::default() }
    }

    fn sequences(items: Option<Vec<Item>>) -> Vec<Sequence> {
        items.unwrap_or_default().iter().map(|item| item.sequence).collect()
    }

    #[test]
    fn a_record_that_failed_comes_again_with_another_one() {
        let limits = BatchLimits { records_max: 1, bytes_max: 1, wait: Duration::from_secs(1) };
        let mut lane = Lane::default();
        (0..3).for_each(|sequence| lane.push(Time(0), item(sequence, 5)));
        let mut first = lane.take(Time(0), &limits).expect("a batch");
        assert_eq!(first.len(), 1);
        first[0].failures = first[0].failures.with(0);
        lane.take_back(first);
        lane.finished();
        let again = lane.take(Time(0), &limits).expect("a batch");
        assert_eq!(again.iter().map(|item| item.sequence).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(lane.bytes, 5);
    }

    #[test]
    fn a_batch_leaves_when_it_is_full_or_old() {
        let mut lane = Lane::default();
        assert_eq!(lane.take(Time(0), &LIMITS), None);
        lane.push(Time(0), item(1, 10));
        assert_eq!(lane.take(Time(9_999), &LIMITS), None);
        assert_eq!(lane.due(&LIMITS), Some(Time(10_000)));
        assert_eq!(sequences(lane.take(Time(10_000), &LIMITS)), [1]);
        for number in 2..7 {
            lane.push(Time(10_000), item(number, 10));
        }
        assert_eq!(lane.take(Time(99_999), &LIMITS), None, "a batch is being written");
        lane.finished();
        assert_eq!(sequences(lane.take(Time(10_000), &LIMITS)), [2, 3, 4]);
        lane.finished();
        assert_eq!(lane.take(Time(10_001), &LIMITS), None, "two records wait for a third");
        assert_eq!(sequences(lane.take(Time(20_000), &LIMITS)), [5, 6]);
    }

    #[test]
    fn a_batch_has_a_maximum_of_bytes_and_at_least_one_record() {
        let mut lane = Lane::default();
        for (number, bytes) in [(1, 60), (2, 60), (3, 500), (4, 1)] {
            lane.push(Time(0), item(number, bytes));
        }
        let mut batches = Vec::new();
        while let Some(items) = lane.take(Time(1 << 40), &LIMITS) {
            batches.push(sequences(Some(items)));
            lane.finished();
        }
        assert_eq!(batches, [vec![1], vec![2], vec![3], vec![4]]);
        assert_eq!(lane.bytes, 0);
    }
}
