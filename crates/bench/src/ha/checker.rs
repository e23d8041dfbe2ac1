//! Comparison of acknowledged and delivered messages: exact, message by message.

use super::numbers::Numbers;
use std::collections::BTreeSet;

/// Publishers and the subscribers of each. A lane is one topic of one publisher, with one QoS and its own sequence
/// numbers, because MQTT promises order for nothing larger.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub publishers: usize,
    pub subscribers: usize,
    /// The QoS of every lane of a publisher.
    pub lanes: Vec<u8>,
    /// Publisher p is received by subscriber p mod `subscribers` only, not by all.
    pub dealt: bool,
}

impl Shape {
    /// Returns whether a subscriber must receive a publisher's messages.
    pub fn expects(&self, publisher: usize, subscriber: usize) -> bool {
        !self.dealt || publisher % self.subscribers == subscriber
    }

    /// Number of pairs of a lane and a subscriber of it.
    pub fn streams(&self) -> usize {
        let hearers = if self.dealt { 1 } else { self.subscribers };
        self.publishers.saturating_mul(self.lanes.len()).saturating_mul(hearers)
    }
}

/// A lane of a publisher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    pub publisher: usize,
    pub lane: usize,
}

/// Kind of a delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delivery {
    New,
    /// The first delivery of a message, after that of a later one.
    Late,
    Duplicate,
    /// A second delivery at QoS 2 of a message that the client itself published twice, because the broker had lost
    /// its session before the acknowledgement.
    Repeated,
    /// A message that was never published, or not for this subscriber.
    Phantom,
}

#[derive(Clone, Default)]
struct Sent {
    next: u64,
    acknowledged: Numbers,
    refused: u64,
    /// Numbers published a second time, as a new message.
    renewed: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct Stream {
    seen: Numbers,
    /// Highest received number plus one.
    high: u64,
}

/// Counts of all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub sent: u64,
    pub acknowledged: u64,
    pub refused: u64,
    /// Number of first deliveries.
    pub delivered: u64,
    /// Number of second and later deliveries, by QoS 1 and 2.
    pub duplicated: [u64; 2],
    pub repeated: u64,
    pub out_of_order: u64,
    pub phantom: u64,
}

/// A stream that lacks acknowledged messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    pub publisher: usize,
    pub qos: u8,
    pub subscriber: usize,
    pub lost: u64,
    /// The first few of their numbers.
    pub samples: Vec<u64>,
}

/// Account of all messages. Memory is one bit for each number after the first missing one in a stream, plus one for
/// each after the first unacknowledged one in a lane. Without failures it needs none. [`Checker::full`] reports that
/// the bound is reached.
pub struct Checker {
    shape: Shape,
    sent: Vec<Sent>,
    streams: Vec<Stream>,
    tally: Tally,
    /// Number of words that all sets hold.
    words: usize,
}

/// Bound of the sets in words: 256 MiB.
const WORDS_MAX: usize = 32 << 20;
/// Number of words that one renewed message counts for.
const RENEWED_WORDS: usize = 4;
/// Maximum number of streams; each costs some 50 bytes.
pub const STREAMS_MAX: usize = 4 << 20;
const SAMPLES: usize = 5;

impl Checker {
    pub fn new(shape: Shape) -> Checker {
        Checker {
            sent: vec![Sent::default(); shape.publishers * shape.lanes.len()],
            streams: vec![Stream::default(); shape.streams()],
            tally: Tally::default(),
            words: 0,
            shape,
        }
    }

    fn lane(&mut self, of: Lane) -> &mut Sent {
        &mut self.sent[of.publisher * self.shape.lanes.len() + of.lane]
    }

    /// Index of the stream from a lane to one of its subscribers.
    fn stream(&self, of: Lane, subscriber: usize) -> usize {
        let lane = of.publisher * self.shape.lanes.len() + of.lane;
        if self.shape.dealt { lane } else { lane * self.shape.subscribers + subscriber }
    }

    /// The sequence number for one more message.
    pub fn publish(&mut self, of: Lane) -> u64 {
        self.tally.sent += 1;
        let sent = self.lane(of);
        sent.next += 1;
        sent.next - 1
    }

    pub fn acknowledged(&mut self, of: Lane, number: u64) {
        let sent = self.lane(of);
        let before = sent.acknowledged.memory();
        let new = sent.acknowledged.insert(number);
        let after = sent.acknowledged.memory();
        self.words = self.words + after - before;
        self.tally.acknowledged += u64::from(new);
    }

    pub fn refused(&mut self, of: Lane) {
        self.lane(of).refused += 1;
        self.tally.refused += 1;
    }

    /// Records that the message is sent again as a new one, so that a second delivery is not counted as an error of
    /// the broker.
    pub fn renewed(&mut self, of: Lane, number: u64) {
        if self.lane(of).renewed.insert(number) {
            self.words += RENEWED_WORDS;
        }
    }

    pub fn delivered(&mut self, of: Lane, number: u64, subscriber: usize) -> Delivery {
        let known = of.publisher < self.shape.publishers
            && of.lane < self.shape.lanes.len()
            && self.shape.expects(of.publisher, subscriber)
            && number < self.lane(of).next;
        if !known {
            self.tally.phantom += 1;
            return Delivery::Phantom;
        }
        let at = self.stream(of, subscriber);
        let stream = &mut self.streams[at];
        let before = stream.seen.memory();
        let new = stream.seen.insert(number);
        let after = stream.seen.memory();
        self.words = self.words + after - before;
        if !new {
            let qos = self.shape.lanes[of.lane];
            if qos == 2 && self.lane(of).renewed.contains(&number) {
                self.tally.repeated += 1;
                return Delivery::Repeated;
            }
            self.tally.duplicated[usize::from(qos == 2)] += 1;
            return Delivery::Duplicate;
        }
        self.tally.delivered += 1;
        if number < stream.high {
            self.tally.out_of_order += 1;
            return Delivery::Late;
        }
        stream.high = number + 1;
        Delivery::New
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns whether the bound of memory is reached: to continue would lose information.
    pub fn full(&self) -> bool {
        self.words >= WORDS_MAX
    }

    /// Number of acknowledged messages that an expected subscriber has not received (yet), over all streams.
    pub fn missing(&self) -> u64 {
        self.losses(|_| {})
    }

    /// Calls `each` for every stream with missing messages, and returns the sum.
    pub fn losses(&self, mut each: impl FnMut(Loss)) -> u64 {
        let mut sum = 0;
        for publisher in 0..self.shape.publishers {
            for (lane, qos) in self.shape.lanes.iter().enumerate() {
                let of = Lane { publisher, lane };
                let acknowledged = &self.sent[publisher * self.shape.lanes.len() + lane].acknowledged;
                for subscriber in (0..self.shape.subscribers).filter(|s| self.shape.expects(publisher, *s)) {
                    let mut samples = vec![];
                    let seen = &self.streams[self.stream(of, subscriber)].seen;
                    let lost = acknowledged.without(seen, SAMPLES, &mut samples);
                    sum += lost;
                    if lost > 0 {
                        each(Loss { publisher, qos: *qos, subscriber, lost, samples });
                    }
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Lane = Lane { publisher: 0, lane: 0 };

    fn shape(publishers: usize, subscribers: usize, lanes: &[u8], dealt: bool) -> Shape {
        Shape { publishers, subscribers, lanes: lanes.to_vec(), dealt }
    }

    /// Publishes and acknowledges `messages`, and delivers them in the order of `arrivals`.
    fn after(qos: u8, messages: u64, arrivals: impl IntoIterator<Item = u64>) -> Checker {
        let mut checker = Checker::new(shape(1, 1, &[qos], false));
        for number in 0..messages {
            assert_eq!(checker.publish(FIRST), number);
            checker.acknowledged(FIRST, number);
        }
        for number in arrivals {
            checker.delivered(FIRST, number, 0);
        }
        checker
    }

    #[test]
    fn a_correct_broker_is_reported_as_correct() {
        let checker = after(2, 6400, 0..6400);
        let tally = checker.tally();
        assert_eq!((tally.delivered, tally.acknowledged, checker.missing()), (6400, 6400, 0));
        assert_eq!((tally.duplicated, tally.out_of_order, tally.phantom), ([0, 0], 0, 0));
        assert_eq!(checker.words, 0);
    }

    #[test]
    fn a_lost_message_is_found_and_named() {
        let checker = after(1, 1000, (0..1000).filter(|number| number % 100 != 99));
        let mut losses = vec![];
        assert_eq!(checker.losses(|loss| losses.push(loss)), 10);
        assert_eq!((losses.len(), losses[0].lost, losses[0].samples[0]), (1, 10, 99));
        assert_eq!(checker.tally().out_of_order, 0, "a gap is no reordering");
    }

    #[test]
    fn the_last_message_counts_too() {
        assert_eq!(after(1, 1000, 0..999).missing(), 1);
        assert_eq!(after(1, 64, 0..0).missing(), 64);
    }

    #[test]
    fn an_unacknowledged_message_is_not_lost() {
        let mut checker = after(1, 10, 0..10);
        checker.publish(FIRST);
        assert_eq!(checker.missing(), 0);
        checker.acknowledged(FIRST, 10);
        assert_eq!(checker.missing(), 1);
        checker.delivered(FIRST, 10, 0);
        assert_eq!(checker.missing(), 0);
    }

    #[test]
    fn a_second_delivery_is_a_duplicate_by_its_qos() {
        assert_eq!(after(1, 3, [0, 1, 1, 0, 2]).tally().duplicated, [2, 0]);
        assert_eq!(after(2, 3, [0, 1, 1, 2, 2, 2]).tally().duplicated, [0, 3]);
    }

    #[test]
    fn redelivery_is_no_reordering() {
        assert_eq!(after(1, 4, [0, 1, 2, 0, 1, 2, 3]).tally().out_of_order, 0);
        assert_eq!(after(1, 4, [0, 2, 1, 3]).tally().out_of_order, 1);
        assert_eq!(after(1, 4, [3, 2, 1, 0]).tally().out_of_order, 3);
    }

    #[test]
    fn a_message_sent_twice_by_the_client_is_not_the_brokers_duplicate() {
        let mut checker = after(2, 2, [0, 1]);
        checker.renewed(FIRST, 1);
        assert_eq!(checker.delivered(FIRST, 1, 0), Delivery::Repeated);
        assert_eq!(checker.delivered(FIRST, 0, 0), Delivery::Duplicate);
        assert_eq!((checker.tally().duplicated, checker.tally().repeated), ([0, 1], 1));
    }

    #[test]
    fn a_message_that_was_never_sent_is_a_phantom() {
        let mut checker = after(1, 1, [0]);
        for (publisher, lane, number) in [(0, 0, 1), (1, 0, 0), (0, 1, 0), (usize::MAX, 0, u64::MAX)] {
            assert_eq!(checker.delivered(Lane { publisher, lane }, number, 0), Delivery::Phantom);
        }
        assert_eq!(checker.tally().phantom, 4);
    }

    #[test]
    fn every_subscriber_of_a_lane_must_receive_it() {
        let mut checker = Checker::new(shape(2, 3, &[1, 2], false));
        let of = Lane { publisher: 1, lane: 1 };
        let number = checker.publish(of);
        checker.acknowledged(of, number);
        assert_eq!(checker.missing(), 3);
        assert_eq!(checker.delivered(of, number, 2), Delivery::New);
        let mut losses = vec![];
        checker.losses(|loss| losses.push((loss.publisher, loss.qos, loss.subscriber)));
        assert_eq!(losses, [(1, 2, 0), (1, 2, 1)]);
    }

    #[test]
    fn dealt_publishers_have_one_subscriber() {
        let mut checker = Checker::new(shape(5, 2, &[1], true));
        let of = Lane { publisher: 3, lane: 0 };
        let number = checker.publish(of);
        checker.acknowledged(of, number);
        assert_eq!(checker.delivered(of, number, 0), Delivery::Phantom, "subscriber 1 receives publisher 3");
        assert_eq!(checker.missing(), 1);
        assert_eq!(checker.delivered(of, number, 1), Delivery::New);
        assert_eq!(checker.missing(), 0);
    }

    /// A random schedule with injected faults, compared with a simple model.
    #[test]
    fn the_checker_agrees_with_a_model() {
        let mut random = crate::random::Random::new(0);
        let mut random = move |below: u64| random.below(below);
        for _ in 0..50 {
            let (mut arrivals, mut dropped, mut doubled) = (vec![], 0, 0);
            for number in 0..500 {
                match random(20) {
                    0 => dropped += 1,
                    1 => {
                        doubled += 1;
                        arrivals.extend([number, number]);
                    }
                    _ => arrivals.push(number),
                }
            }
            for _ in 0..random(5) {
                let at = random(arrivals.len() as u64 - 1) as usize;
                arrivals.swap(at, at + 1);
            }
            let (mut seen, mut late) = (BTreeSet::new(), 0);
            for number in &arrivals {
                late += u64::from(!seen.contains(number) && seen.last().is_some_and(|last| last > number));
                seen.insert(*number);
            }
            let checker = after(2, 500, arrivals);
            assert_eq!(checker.missing(), dropped);
            assert_eq!(checker.tally().duplicated, [0, doubled]);
            assert_eq!(checker.tally().out_of_order, late);
        }
    }
}
