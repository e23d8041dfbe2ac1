//! A durable session with a connection: the progress of its deliveries.

use std::collections::{BTreeSet, VecDeque};

use crate::full_queues::FullTime;
use crate::ids::{ConnectionId, Time};
use crate::message::Message;
use crate::settings::Queue;

/// State that a host keeps for a session with a connection. It ends with the connection.
#[derive(Debug)]
pub(super) struct Live {
    pub connection: ConnectionId,
    pub epoch: u32,
    /// Maximum number of deliveries that the connection may have without acknowledgement.
    pub window: u16,
    /// The next delivery to look at; earlier ones are sent, skipped or finished.
    pub next: u64,
    /// Number of PUBLISH packets sent and not finished.
    pub inflight: u32,
    /// Deliveries for which only the PUBREL was sent: they do not count as PUBLISH packets (4.9).
    pub releases: BTreeSet<u64>,
    pub inflight_bytes: u64,
    /// Messages are being read for the session.
    pub reading: bool,
    /// Deliveries that are skipped, until that is recorded in the shard. Until then no later message is sent: after a
    /// crash the skipped one would come after it [MQTT-4.6.0-6].
    pub skipping: BTreeSet<u64>,
    /// Messages queued beyond the limits, with the publishers that wait until they are within.
    pub over: VecDeque<Over>,
    /// Time at which one of them last came within the limits.
    pub place_freed: Time,
    /// Time at which the client last acknowledged anything, or connected.
    pub acknowledged: Time,
    /// Time for which `over` was not empty since the queue became full, or since all messages were sent that waited in
    /// the queue then.
    pub full: FullTime,
    /// Number of PUBLISH packets sent on this connection.
    pub sent_in_all: u64,
    /// Value of `sent_in_all` at which all messages are sent that waited in the queue when `full` began to count.
    pub full_until: u64,
    /// True when the queue was full for too long recently: no publisher waits for the client.
    pub drops: bool,
    /// Time of its earliest entry in the list of deadlines.
    pub armed: Time,
    /// Time until which due work is postponed: the client could not be judged.
    pub put_off: Time,
    pub backlogged: bool,
    /// True when there may be something to send, which is checked when the batch is applied.
    pub touched: bool,
    /// Messages of its queue that are in memory.
    pub bodies: Bodies,
}

#[derive(Debug)]
pub(super) struct Over {
    /// Number of the delivery.
    pub n: u64,
    pub append: Option<u32>,
    /// Time at which the rule for full queues decides, unless slots become free meanwhile; never when no publisher
    /// waits.
    pub deadline: Time,
}

impl Live {
    pub fn new(now: Time, connection: ConnectionId, epoch: u32, window: u16, first: u64) -> Self {
        Self {
            connection,
            epoch,
            window,
            next: first,
            inflight: 0,
            releases: BTreeSet::new(),
            inflight_bytes: 0,
            reading: false,
            skipping: BTreeSet::new(),
            over: VecDeque::new(),
            place_freed: Time::default(),
            acknowledged: now,
            full: FullTime::default(),
            sent_in_all: 0,
            full_until: 0,
            drops: false,
            armed: Time::NEVER,
            put_off: Time::default(),
            backlogged: false,
            touched: false,
            bodies: Bodies::default(),
        }
    }

    /// Returns whether delivery `n` has to wait until an earlier one is skipped.
    pub fn waits_for_skip(&self, n: u64) -> bool {
        self.skipping.first().is_some_and(|first| *first < n)
    }

    /// Records that delivery `n` is finished. A delivery that was acknowledged before it was sent again on this
    /// connection is not counted.
    pub fn finished(&mut self, n: u64) {
        if n < self.next && !self.releases.remove(&n) {
            self.inflight -= 1;
        }
    }

    /// Records that the next delivery was sent; `bytes` is its size.
    pub fn sent(&mut self, bytes: u64) {
        self.next += 1;
        self.sent_in_all += 1;
        self.inflight += 1;
        self.inflight_bytes += bytes;
    }

    /// Time at which the rule for full queues may have to decide about the message of one publisher.
    pub fn due_of(&self, deadline: Time, queue: &Queue) -> Time {
        if deadline == Time::NEVER || self.drops {
            return deadline;
        }
        let patient = deadline.max(self.place_freed.after(queue.full_wait));
        patient.min(self.full.due(queue.full_wait_total))
    }

    /// The earliest such time of all messages that wait; it looks at each.
    pub fn due(&self, queue: &Queue) -> Time {
        let earliest = self.over.iter().map(|over| over.deadline).min().unwrap_or(Time::NEVER);
        self.due_of(earliest, queue)
    }

    /// Records that a delivery is about to exceed the limits of the queue, in which `waiting` others wait.
    pub fn becomes_full(&mut self, now: Time, waiting: u64) {
        // Otherwise the queue was full before, and the messages that waited then have not been sent yet: the client
        // gets no additional time.
        if self.drops || self.over.is_empty() {
            self.turns_over(now, waiting);
        }
        self.full.begins(now);
    }

    /// Restarts the time of a client that was sent all messages that waited when its queue became full: it is slow, but
    /// it works.
    pub fn turns_over(&mut self, now: Time, waiting: u64) {
        if self.sent_in_all >= self.full_until {
            self.full_until = self.sent_in_all + waiting;
            self.full.restarts(now);
            self.drops = false;
        }
    }

    /// Stops publishers from waiting for the client until it has been sent as many messages as wait now, and its window
    /// once more.
    pub fn drops_from_now(&mut self, waiting: u64) {
        self.drops = true;
        self.full_until = self.sent_in_all + waiting + u64::from(self.window);
    }
}

/// Messages of one session's queue that are in memory, by the number of their delivery.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    first: u64,
    messages: VecDeque<Option<Message>>,
    bytes: u64,
}

impl Bodies {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, number: u64) -> Option<&Message> {
        let at = number.checked_sub(self.first)?;
        self.messages.get(usize::try_from(at).ok()?)?.as_ref()
    }

    /// Adds a message and returns by how many bytes the total grew. Numbers only grow, except for messages that are
    /// read again.
    pub fn insert(&mut self, number: u64, message: Message) -> u64 {
        let before = self.bytes;
        if self.messages.is_empty() {
            self.first = number;
        }
        while number < self.first {
            self.messages.push_front(None);
            self.first -= 1;
        }
        let at = (number - self.first) as usize;
        while self.messages.len() <= at {
            self.messages.push_back(None);
        }
        self.bytes += message.size() as u64;
        if let Some(before) = self.messages[at].replace(message) {
            self.bytes -= before.size() as u64;
        }
        self.bytes - before
    }

    /// Removes a message and returns its size in bytes.
    pub fn remove(&mut self, number: u64) -> u64 {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let entry = at.and_then(|at| self.messages.get_mut(at));
        let size = entry.and_then(Option::take).map_or(0, |message| message.size() as u64);
        self.bytes -= size;
        while let Some(None) = self.messages.front() {
            self.messages.pop_front();
            self.first += 1;
        }
        while let Some(None) = self.messages.back() {
            self.messages.pop_back();
        }
        if self.messages.is_empty() {
            self.messages.shrink_to(16);
        }
        size
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;

    use super::*;

    fn message(size: usize) -> Message {
        let payload = vec![0; size];
        let stored = shard::MessageView {
            topic: "t",
            properties: &[],
            payload: &payload,
            qos: QoS::AtLeastOnce,
            retain: false,
            expires: shard::NEVER,
            received: 0,
            publisher_key: 0,
        };
        Message::of_stored(&stored)
    }

    #[test]
    fn bodies_are_found_by_their_number_and_take_no_memory_when_removed() {
        let mut bodies = Bodies::default();
        bodies.insert(10, message(5));
        bodies.insert(12, message(7));
        bodies.insert(8, message(1));
        assert_eq!(bodies.get(11).map(Message::size), None);
        assert_eq!(bodies.get(12).map(|message| message.view().payload.len()), Some(7));
        let all = bodies.bytes();
        bodies.insert(12, message(7));
        assert_eq!(bodies.bytes(), all, "the same again");
        for number in [12, 8, 10, 10, 99, 0] {
            bodies.remove(number);
        }
        assert!(bodies.is_empty());
        assert_eq!(bodies.bytes(), 0);
    }
}
