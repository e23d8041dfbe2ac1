//! QoS 1 and 2 deliveries of one session: their numbers, the open ones, and those that wait.

use std::collections::VecDeque;
use std::ops::Range;

use mqtt::PacketId;

use crate::entry::{Entry, Phase};
use crate::limits::Limits;

/// Queue of deliveries.
///
/// Deliveries are numbered. The Packet Identifier of delivery `n` is `1 + n mod 65,535`. `n` is not opened unless
/// `n` minus the oldest unfinished is below 65,535, so an identifier in use is never assigned again [MQTT-2.2.1-3].
///
/// **Invariant:** `open` holds the deliveries from `first` on; its first is unfinished, and `unfinished` of them
/// are. Between `open` and `next` some may have been dropped before they were opened. `waiting` holds `next..end`,
/// and those below `within` are within the limits of the queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    open: VecDeque<Entry>,
    /// Number of the first of `open`; meaningless while `open` is empty.
    first: u64,
    waiting: VecDeque<Entry>,
    /// Number of the first of `waiting`, or of the next delivery.
    next: u64,
    within: u64,
    /// Deliveries below this number were open before the present connection.
    pub dup_below: u64,
    unfinished: u32,
    /// Bytes of the messages of `open` that are still needed.
    open_bytes: u64,
    waiting_bytes: u64,
    /// Bytes of the messages of `waiting` that are within the limits.
    within_bytes: u64,
}

pub(crate) const PACKET_IDS: u64 = u16::MAX as u64;
/// Upper bound of delivery numbers. No session lasts long enough to reach it.
const NUMBER_MAX: u64 = 1 << 56;
/// Maximum number of pinned deliveries of a session, whatever its client's Receive Maximum.
pub const PINNED_MAX: u16 = 1024;
/// [`PINNED_MAX`] of the session of a linked cluster, whose messages are on their way for a long time.
pub const LINK_PINNED_MAX: u16 = 32_768;
/// Maximum number of bytes that are pinned for a linked cluster. One message may be larger.
pub const LINK_PINNED_BYTES_MAX: u64 = 64 << 20;

/// Deliveries of a session that may be open at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub deliveries: u16,
    /// Bytes of their messages. One message may be larger.
    pub bytes: u64,
}

impl Queue {
    /// Creates an empty queue that continues at a number.
    pub fn at(next: u64) -> Self {
        Self { next, within: next, ..Self::default() }
    }

    /// Restores a queue from a checkpoint. `None` when it is contradictory.
    pub fn restore(
        open: VecDeque<Entry>,
        waiting: VecDeque<Entry>,
        (first, next, within, dup_below): (u64, u64, u64, u64),
    ) -> Option<Self> {
        let sound = next < NUMBER_MAX
            && open.len() as u64 <= PACKET_IDS
            && (open.is_empty() || first.checked_add(open.len() as u64)? <= next)
            && (next..=next.checked_add(waiting.len() as u64)?).contains(&within)
            && dup_below <= next
            && open.front().is_none_or(|entry| entry.phase() != Phase::Finished)
            && open.iter().all(|entry| entry.phase() != Phase::Waiting)
            && waiting.iter().all(|entry| entry.phase() == Phase::Waiting);
        if !sound {
            return None;
        }
        let unfinished = open.iter().filter(|entry| entry.phase() != Phase::Finished).count() as u32;
        let open_bytes = open.iter().filter(|entry| entry.needs_body()).map(Entry::size).sum();
        let waiting_bytes = waiting.iter().map(Entry::size).sum();
        let within_bytes = waiting.iter().take((within - next) as usize).map(Entry::size).sum();
        Some(Self {
            open,
            first,
            waiting,
            next,
            within,
            dup_below,
            unfinished,
            open_bytes,
            waiting_bytes,
            within_bytes,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    /// Range of the open deliveries, finished ones among them included.
    pub fn open_range(&self) -> Range<u64> {
        if self.open.is_empty() {
            return self.next..self.next;
        }
        self.first..self.first + self.open.len() as u64
    }

    pub fn waiting_range(&self) -> Range<u64> {
        self.next..self.end()
    }

    /// Number of the next delivery.
    pub fn end(&self) -> u64 {
        self.next + self.waiting.len() as u64
    }

    /// Deliveries below this number are within the limits.
    pub fn within(&self) -> u64 {
        self.within
    }

    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    pub fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub fn bytes(&self) -> u64 {
        self.open_bytes + self.waiting_bytes
    }

    pub fn get(&self, n: u64) -> Option<&Entry> {
        match n.checked_sub(self.next) {
            Some(at) => self.waiting.get(usize::try_from(at).ok()?),
            None => self.open.get(usize::try_from(n.checked_sub(self.open_range().start)?).ok()?),
        }
    }

    pub fn get_mut(&mut self, n: u64) -> Option<&mut Entry> {
        match n.checked_sub(self.next) {
            Some(at) => self.waiting.get_mut(usize::try_from(at).ok()?),
            None => {
                let first = self.open_range().start;
                self.open.get_mut(usize::try_from(n.checked_sub(first)?).ok()?)
            }
        }
    }

    /// Returns the entries from delivery `n` on, with their numbers.
    pub fn from(&self, n: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let first = self.open_range().start;
        let skip = |from: u64| usize::try_from(n.saturating_sub(from)).unwrap_or(usize::MAX);
        let (open, waiting) = (skip(first).min(self.open.len()), skip(self.next).min(self.waiting.len()));
        let open = (first + open as u64..).zip(self.open.range(open..));
        open.chain((self.next + waiting as u64..).zip(self.waiting.range(waiting..)))
    }

    pub fn into_entries(self) -> impl Iterator<Item = (u64, Entry)> {
        let first = self.open_range().start;
        (first..).zip(self.open).chain((self.next..).zip(self.waiting))
    }

    /// Returns whether another message would exceed the limits, or others are beyond the limits already.
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.within < self.end() || self.is_within_full(limits)
    }

    fn is_within_full(&self, limits: &Limits) -> bool {
        self.within - self.next >= u64::from(limits.queue_messages_max.max(1))
            || self.within_bytes >= limits.queue_bytes_max.max(1)
    }

    /// Appends a delivery. `over`: it is beyond the limits, as all later ones then are.
    pub fn push(&mut self, entry: Entry, over: bool) -> u64 {
        debug_assert_eq!(entry.phase(), Phase::Waiting);
        debug_assert!(over || self.within == self.end());
        grow(&mut self.waiting);
        self.waiting.push_back(entry);
        self.waiting_bytes += entry.size();
        if !over {
            self.within += 1;
            self.within_bytes += entry.size();
        }
        self.end() - 1
    }

    /// Moves deliveries beyond the limits into slots that have become free.
    pub fn move_up(&mut self, limits: &Limits) {
        while self.within < self.end() && !self.is_within_full(limits) {
            self.within_bytes += self.waiting[(self.within - self.next) as usize].size();
            self.within += 1;
        }
    }

    pub fn next_waiting(&self) -> Option<&Entry> {
        self.waiting.front()
    }

    /// Removes the oldest waiting delivery and returns it with its number.
    pub fn pop_waiting(&mut self) -> Option<(u64, Entry)> {
        let entry = self.waiting.pop_front()?;
        let n = self.next;
        self.next += 1;
        self.waiting_bytes -= entry.size();
        if n < self.within {
            self.within_bytes -= entry.size();
        } else {
            self.within = self.next;
        }
        shrink(&mut self.waiting);
        Some((n, entry))
    }

    /// Removes the newest delivery beyond the limits.
    pub fn pop_over(&mut self) -> Option<Entry> {
        if self.within == self.end() {
            return None;
        }
        let entry = self.waiting.pop_back()?;
        self.waiting_bytes -= entry.size();
        Some(entry)
    }

    /// Returns whether the oldest waiting delivery may be opened.
    pub fn window_open(&self, window: Window) -> bool {
        // Open deliveries are never dropped, so their bytes are bounded too.
        let room = self.open_bytes < window.bytes || self.open_bytes == 0;
        let id_free = self.next - self.open_range().start < PACKET_IDS;
        self.unfinished < u32::from(window.deliveries) && id_free && room
    }

    /// Opens the oldest waiting delivery, which the window must allow; returns its number.
    pub fn open_next(&mut self) -> Option<u64> {
        let opened = self.next;
        let (n, mut entry) = self.pop_waiting()?;
        debug_assert_eq!(n, opened);
        entry.set_phase(Phase::Pinned);
        if self.open.is_empty() {
            self.first = n;
        }
        // Placeholders for deliveries that were dropped before.
        while self.first + (self.open.len() as u64) < n {
            grow(&mut self.open);
            self.open.push_back(Entry::finished());
        }
        grow(&mut self.open);
        self.open.push_back(entry);
        self.unfinished += 1;
        self.open_bytes += entry.size();
        Some(n)
    }

    /// Returns the open delivery with a Packet Identifier.
    pub fn numbered(&self, id: PacketId) -> Option<u64> {
        let first = self.open_range().start;
        // The distance from the first identifier to this one, around the circle of identifiers.
        let at = (u64::from(id.get()) - 1 + PACKET_IDS - first % PACKET_IDS) % PACKET_IDS;
        (at < self.open.len() as u64).then_some(first + at)
    }

    /// Records PUBREC for a pinned delivery.
    pub fn receive(&mut self, n: u64) {
        if let Some(entry) = self.get_mut(n) {
            debug_assert_eq!(entry.phase(), Phase::Pinned);
            entry.set_phase(Phase::Received);
            self.open_bytes -= entry.size();
        }
    }

    /// Finishes an open, unfinished delivery.
    pub fn finish(&mut self, n: u64) {
        let Some(entry) = self.get_mut(n) else { return };
        let bytes = if entry.needs_body() { entry.size() } else { 0 };
        entry.set_phase(Phase::Finished);
        self.open_bytes -= bytes;
        self.unfinished -= 1;
        while self.open.front().is_some_and(|entry| entry.phase() == Phase::Finished) {
            self.open.pop_front();
            self.first += 1;
        }
        shrink(&mut self.open);
    }

    /// Frees memory that is not needed while the session is absent.
    pub fn shrink(&mut self) {
        self.open.shrink_to_fit();
        self.waiting.shrink_to_fit();
    }

    pub fn check_invariants(&self) {
        assert!(self.open.len() as u64 <= PACKET_IDS);
        assert!(self.open.front().is_none_or(|entry| entry.phase() != Phase::Finished));
        assert!(self.open.iter().all(|entry| entry.phase() != Phase::Waiting));
        assert!(self.waiting.iter().all(|entry| entry.phase() == Phase::Waiting));
        let unfinished = self.open.iter().filter(|entry| entry.phase() != Phase::Finished).count();
        assert_eq!(unfinished, self.unfinished as usize);
        let open_bytes = self.open.iter().filter(|entry| entry.needs_body()).map(Entry::size);
        assert_eq!(open_bytes.sum::<u64>(), self.open_bytes);
        assert_eq!(self.waiting.iter().map(Entry::size).sum::<u64>(), self.waiting_bytes);
        assert!(self.open_range().end <= self.next);
        assert!(self.next <= self.within && self.within <= self.end() && self.dup_below <= self.next);
        let within = self.waiting.iter().take((self.within - self.next) as usize).map(Entry::size);
        assert_eq!(within.sum::<u64>(), self.within_bytes);
        let nothing = |entry: &Entry| entry.needs_body() || entry.details == 0;
        assert!(self.open.iter().all(nothing), "an entry without a body has no details");
    }
}

/// Grows a queue by an eighth, so that a long one wastes little. That costs at most eight copies of each entry.
fn grow(entries: &mut VecDeque<Entry>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact((entries.len() / 8).max(4));
    }
}

/// Frees memory of a long queue as it becomes short.
fn shrink(entries: &mut VecDeque<Entry>) {
    const KEPT: usize = 64;
    if entries.capacity() > KEPT && entries.len() < entries.capacity() / 4 {
        entries.shrink_to((entries.len() * 2).max(KEPT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MessageKey;
    use mqtt::QoS;

    fn queue_of(count: u64) -> Queue {
        let mut queue = Queue::at(0);
        for number in 0..count {
            queue.push(Entry::new(MessageKey::new(number, 16), 64, QoS::AtLeastOnce, false, false), false);
        }
        queue
    }

    fn id(value: u16) -> PacketId {
        PacketId::new(value).expect("not 0")
    }

    #[test]
    fn identifiers_are_assigned_in_order_and_not_twice() {
        let mut queue = queue_of(3);
        assert_eq!((queue.open_next(), queue.open_next()), (Some(0), Some(1)));
        assert_eq!(
            (queue.numbered(id(1)), queue.numbered(id(2)), queue.numbered(id(3))),
            (Some(0), Some(1), None)
        );
        queue.finish(1);
        assert_eq!(queue.open_next(), Some(2));
        assert_eq!(queue.unfinished(), 2);
        queue.check_invariants();
    }

    /// [MQTT-2.2.1-3]: the circle of identifiers does not pass one that is still in use.
    #[test]
    fn an_identifier_in_use_stops_the_circle() {
        let window = Window { deliveries: 10, bytes: u64::MAX };
        let mut queue = queue_of(PACKET_IDS + 1);
        queue.open_next();
        for _ in 1..PACKET_IDS {
            assert!(queue.window_open(window));
            let n = queue.open_next().expect("one waits");
            queue.finish(n);
        }
        assert!(!queue.window_open(window));
        queue.finish(0);
        assert!(queue.window_open(window));
        assert_eq!(queue.open_next(), Some(PACKET_IDS));
        assert_eq!(queue.numbered(id(1)), Some(PACKET_IDS));
        queue.check_invariants();
    }

    #[test]
    fn a_delivery_dropped_before_it_is_opened_keeps_its_number() {
        let mut queue = queue_of(4);
        queue.open_next();
        assert_eq!(queue.pop_waiting().map(|(n, _)| n), Some(1));
        assert!(queue.get(1).is_none());
        assert_eq!(queue.open_next(), Some(2));
        queue.check_invariants();
        assert_eq!(queue.numbered(id(3)), Some(2));
        queue.finish(0);
        assert_eq!(queue.open_range(), 2..3, "it is removed with those before it");
        queue.finish(2);
        queue.pop_waiting();
        assert!(queue.is_empty() && queue.open_range().is_empty());
        queue.check_invariants();
    }

    #[test]
    fn messages_beyond_the_limits_move_up_as_slots_become_free() {
        let limits = Limits { queue_messages_max: 2, ..Limits::default() };
        let mut queue = queue_of(2);
        assert!(queue.is_full(&limits));
        let entry = Entry::new(MessageKey::new(9, 16), 64, QoS::AtLeastOnce, false, false);
        assert_eq!((queue.push(entry, true), queue.push(entry, true)), (2, 3));
        queue.move_up(&limits);
        assert_eq!(queue.within(), 2);
        queue.open_next();
        queue.move_up(&limits);
        assert_eq!(queue.within(), 3);
        assert!(queue.pop_over().is_some() && queue.pop_over().is_none());
        queue.check_invariants();
    }
}
