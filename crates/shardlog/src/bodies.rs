//! Messages that a replica fetches from another one: those that a received state refers to, and those that its own disk
//! cannot return.
//!
//! A request names the messages, all that are needed of each of their batches. The other replica reads them from its
//! log. It leaves out those that its own state does not need any more: the entries after the received state finish
//! them. A leader whose disk cannot return some does not answer. It seeks them first, at the other voters
//! ([`Seeking`](crate::seeking::Seeking)), so that the new replica gets all. A follower leaves them out: only others
//! that seek ask it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use broker::ShardId;
use consensus::Config;
use link::{NodeId, Time};
use shard::MessageKey;
use storage::Log;

use crate::frame::{Piece, ShardFrame, decode_bodies, encode_bodies};
use crate::log::{RecordForm, group_of, stored};

/// Time after which a request without any answer is repeated. It doubles with each repetition, up to the maximum.
const ASK_AGAIN: Duration = Duration::from_secs(3);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(60);
/// Time after which messages that the disk could not return are read again for another node. It doubles with each
/// failure, up to the maximum. Meanwhile they are sought at the other voters.
const READ_AGAIN: Duration = Duration::from_millis(100);
const READ_AGAIN_MAX: Duration = Duration::from_secs(5);
/// Time after the last repetition of a request after which nothing is read for it any more.
const ASKED_KEPT: Duration = Duration::from_secs(120);
/// Time after which a leader is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Size of a piece of an answer.
const PIECE_BYTES: usize = 128 << 10;
/// Maximum size of an answer: somewhat more than the largest message.
const ANSWER_MAX: u64 = 320 << 20;

/// Messages that a replica wants, and those that it sends.
#[derive(Debug, Default)]
pub struct Exchange {
    wanted: Option<Wanted>,
    /// Maximum number of bytes that are fetched in a second; `None` for no limit.
    rate: Option<NonZeroU64>,
    /// Time before which nothing more is fetched.
    ready: Time,
    /// Number of the last request.
    number: u64,
    /// Requests of other nodes whose messages are being read, or are to be read again.
    reading: BTreeMap<NodeId, Asked>,
}

/// A request of another node.
#[derive(Debug)]
struct Asked {
    /// Number of its last repetition, and the time of that.
    number: u64,
    heard: Time,
    keys: Vec<MessageKey>,
    /// Time of the next read. `None` while the messages are being read.
    again: Option<Time>,
    /// Time between the next two reads.
    wait: Duration,
}

#[derive(Debug)]
struct Wanted {
    keys: Vec<MessageKey>,
    /// Node that was asked.
    from: Option<NodeId>,
    /// Time of the next request, and the wait after it.
    due: Time,
    wait: Duration,
    received: Vec<u8>,
}

/// Request to read messages for another node.
#[derive(Debug)]
pub struct BodiesRead {
    shard: ShardId,
    form: RecordForm,
    to: NodeId,
    keys: Vec<MessageKey>,
}

/// Messages for another node, encoded; `None` if nothing was read.
#[derive(Debug)]
pub struct BodiesReadResult {
    to: NodeId,
    bodies: Option<Vec<u8>>,
    /// Messages that the disk cannot return. They are not among `bodies`.
    unreadable: Vec<MessageKey>,
}

/// Returns which messages of a request a replica reads. It has the batches up to `same` for sure, and none after
/// `last`. `None`: it has batches between them, and cannot tell whether others have the same. It does not answer, and
/// is asked again.
///
/// A replica that prepares a received state has to answer: it waits for the messages of that state, and the leader may
/// have to seek them here. So has one without any entry: it may be all that is left of a voter.
pub fn readable_keys(mut keys: Vec<MessageKey>, (same, last): (u64, u64)) -> Option<Vec<MessageKey>> {
    if keys.iter().any(|key| (same + 1..=last).contains(&key.index())) {
        return None;
    }
    keys.retain(|key| key.index() <= same);
    Some(keys)
}

impl BodiesRead {
    /// Reads the messages. Waits for the disk, which is asked twice for each.
    pub fn run(self, log: &Log) -> BodiesReadResult {
        let Self { shard, form, to, keys } = self;
        let (mut bodies, mut unreadable) = (Vec::new(), Vec::new());
        for keys in keys.chunk_by(|one, next| one.index() == next.index()) {
            let index = keys[0].index();
            let read = || log.read_bodies(group_of(shard), index);
            match read().or_else(|_| read()) {
                Ok(read) => {
                    let (kept, _) = stored(&read, index, form).keep_shifted(keys, form.behind_ms(index));
                    if !kept.is_empty() {
                        bodies.push((index, kept));
                    }
                }
                Err(storage::Error::NotFound { .. }) => {}
                Err(error) => {
                    tracing::error!(%error, shard = shard.0, index, "messages cannot be read for another replica");
                    unreadable.extend_from_slice(keys);
                }
            }
        }
        BodiesReadResult { to, bodies: Some(encode_bodies(&bodies)), unreadable }
    }

    /// Ends the read without an answer. The messages are read again.
    pub fn fail(self) -> BodiesReadResult {
        BodiesReadResult { to: self.to, bodies: None, unreadable: Vec::new() }
    }

    /// Ends the read as on a disk that returns none of the messages.
    pub fn cannot_read(self) -> BodiesReadResult {
        BodiesReadResult { to: self.to, bodies: Some(Vec::new()), unreadable: self.keys }
    }
}

impl BodiesReadResult {
    /// Takes the messages that the disk cannot return, except those that are lost everywhere. If there are any, the
    /// result is no answer any more: they are read again, and other replicas may have sent them meanwhile.
    pub fn take_unreadable(&mut self, is_lost: impl Fn(&MessageKey) -> bool) -> Vec<MessageKey> {
        let mut unreadable = std::mem::take(&mut self.unreadable);
        unreadable.retain(|key| !is_lost(key));
        if !unreadable.is_empty() {
            self.bodies = None;
        }
        unreadable
    }
}

impl Exchange {
    /// Creates an exchange whose requests have the numbers after this one.
    pub fn with_numbers_after(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    /// Creates an exchange that fetches at most so many bytes in a second.
    pub fn with_rate(rate: NonZeroU64) -> Self {
        Self { rate: Some(rate), ..Self::default() }
    }

    /// Requests messages, as soon as the rate allows it. The previous request is over.
    pub fn fetch(&mut self, now: Time, keys: Vec<MessageKey>) {
        let due = now.max(self.ready);
        self.wanted = Some(Wanted { keys, from: None, due, wait: ASK_AGAIN, received: Vec::new() });
    }

    /// Ends the request.
    pub fn forget(&mut self) {
        self.wanted = None;
    }

    /// Time of the next call of [`Self::ask`].
    pub fn due(&self) -> Time {
        self.wanted.as_ref().map_or(Time::NEVER, |wanted| wanted.due)
    }

    /// Returns the request for the leader, if that is known.
    pub fn ask(&mut self, now: Time, leader: Option<NodeId>) -> Option<(NodeId, Vec<u8>)> {
        let wanted = self.wanted.as_mut()?;
        wanted.received.clear();
        wanted.from = leader;
        wanted.due = now.after(if leader.is_some() { wanted.wait } else { LOOK_AGAIN });
        if leader.is_some() {
            wanted.wait = (wanted.wait * 2).min(ASK_AGAIN_MAX);
        }
        // Answers to an earlier request are not mixed with those to this one.
        self.number += 1;
        let fetch = ShardFrame::Fetch { number: self.number, keys: wanted.keys.clone() };
        Some((leader?, fetch.encode()))
    }

    /// Handles a piece of an answer. Returns the messages, with the indexes of their batches, when all are here.
    pub fn received(&mut self, now: Time, from: NodeId, piece: Piece<'_>) -> Option<Vec<(u64, Vec<u8>)>> {
        let wanted = self.wanted.as_mut()?;
        let Piece { number, offset, total, bytes } = piece;
        let is_next =
            number == self.number && wanted.from == Some(from) && offset == wanted.received.len() as u64;
        if !is_next || total > ANSWER_MAX {
            return None;
        }
        wanted.received.extend_from_slice(bytes);
        (wanted.due, wanted.wait) = (now.after(ASK_AGAIN), ASK_AGAIN);
        if (wanted.received.len() as u64) < total {
            return None;
        }
        if let Some(rate) = self.rate {
            self.ready = now.max(self.ready).after(Config::copy_time(rate, total));
        }
        let bodies = decode_bodies(&wanted.received);
        let is_asked_for = |index: &u64| wanted.keys.binary_search_by_key(index, |key| key.index()).is_ok();
        let bodies = bodies.filter(|bodies| {
            bodies.is_sorted_by_key(|(index, _)| *index)
                && bodies.iter().all(|(index, _)| is_asked_for(index))
        });
        match bodies {
            Some(bodies) => {
                self.wanted = None;
                Some(bodies)
            }
            None => {
                tracing::warn!(%from, "messages of another replica cannot be decoded; asking again");
                wanted.received.clear();
                None
            }
        }
    }

    /// Handles another replica's request. Returns a read, unless one for that node is being done, or a repetition of
    /// the same is to be read again. The answer is for the last repetition.
    pub fn asked(
        &mut self,
        now: Time,
        (shard, form): (ShardId, RecordForm),
        (to, number): (NodeId, u64),
        keys: Vec<MessageKey>,
    ) -> Option<BodiesRead> {
        if let Some(asked) = self.reading.get_mut(&to) {
            let is_same = asked.keys == keys;
            if is_same {
                (asked.number, asked.heard) = (number, now);
            }
            if is_same || asked.again.is_none() {
                return None;
            }
        }
        let asked = Asked { number, heard: now, keys: keys.clone(), again: None, wait: READ_AGAIN };
        self.reading.insert(to, asked);
        Some(BodiesRead { shard, form, to, keys })
    }

    /// Time of the next call of [`Self::read_again`].
    pub fn read_due(&self) -> Time {
        self.reading.values().filter_map(|asked| asked.again).min().unwrap_or(Time::NEVER)
    }

    /// Returns the next read for a request whose messages the disk could not return before.
    pub fn read_again(&mut self, now: Time, (shard, form): (ShardId, RecordForm)) -> Option<BodiesRead> {
        // The replica may want something else now, or be gone.
        self.reading.retain(|_, asked| asked.again.is_none() || asked.heard.after(ASKED_KEPT) > now);
        let mut due =
            self.reading.iter_mut().filter(|(_, asked)| asked.again.is_some_and(|again| again <= now));
        let (to, asked) = due.next()?;
        asked.again = None;
        Some(BodiesRead { shard, form, to: *to, keys: asked.keys.clone() })
    }

    /// Number of the request that a read is for.
    pub fn number(&self, result: &BodiesReadResult) -> Option<u64> {
        self.reading.get(&result.to).map(|asked| asked.number)
    }

    /// Returns the frames of an answer. Without one, the messages are read again later.
    pub fn answer(&mut self, now: Time, result: BodiesReadResult) -> Vec<(NodeId, Vec<u8>)> {
        let BodiesReadResult { to, bodies, .. } = result;
        let Some(asked) = self.reading.get_mut(&to) else { return Vec::new() };
        let Some(bodies) = bodies else {
            asked.again = Some(now.after(asked.wait));
            asked.wait = (asked.wait * 2).min(READ_AGAIN_MAX);
            return Vec::new();
        };
        let number = asked.number;
        self.reading.remove(&to);
        let total = bodies.len() as u64;
        let frame = |offset: usize, bytes: &[u8]| {
            let piece = Piece { number, offset: offset as u64, total, bytes };
            (to, ShardFrame::Bodies(piece).encode())
        };
        if bodies.is_empty() {
            return vec![frame(0, &[])];
        }
        let pieces = bodies.chunks(PIECE_BYTES).enumerate();
        pieces.map(|(at, bytes)| frame(at * PIECE_BYTES, bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: NodeId = NodeId(1);
    const FOLLOWER: NodeId = NodeId(2);

    fn keys() -> Vec<MessageKey> {
        vec![MessageKey::new(3, 0), MessageKey::new(3, 64), MessageKey::new(9, 8)]
    }

    /// A follower that has asked, and the number of its request.
    fn asked() -> (Exchange, u64) {
        let mut follower = Exchange::default();
        follower.fetch(Time(0), keys());
        let (to, frame) = follower.ask(Time(0), Some(LEADER)).expect("a request");
        assert_eq!(to, LEADER);
        match ShardFrame::decode(&frame) {
            Some(ShardFrame::Fetch { number, keys: wanted }) if wanted == keys() => (follower, number),
            other => panic!("{other:?}"),
        }
    }

    fn is_asked(leader: &mut Exchange, now: Time, by: (NodeId, u64)) -> Option<BodiesRead> {
        leader.asked(now, (ShardId(1), RecordForm::AGREED), by, keys())
    }

    fn pieces(number: u64, bodies: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
        let mut leader = Exchange::default();
        is_asked(&mut leader, Time(0), (FOLLOWER, number)).expect("a read");
        let result =
            BodiesReadResult { to: FOLLOWER, bodies: Some(encode_bodies(bodies)), unreadable: Vec::new() };
        let frames = leader.answer(Time(0), result);
        frames
            .into_iter()
            .map(|(to, frame)| (to == FOLLOWER).then_some(frame).expect("for the follower"))
            .collect()
    }

    fn give(follower: &mut Exchange, from: NodeId, frame: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
        match ShardFrame::decode(frame) {
            Some(ShardFrame::Bodies(piece)) => follower.received(Time(1), from, piece),
            other => panic!("{other:?}"),
        }
    }

    /// The leader seeks messages of the state, and the replica waits for the leader's answer: both would wait.
    #[test]
    fn a_replica_that_prepares_a_state_answers_unless_it_may_have_a_message() {
        assert_eq!(readable_keys(keys(), (9, u64::MAX)), Some(keys()));
        assert_eq!(readable_keys(keys(), (8, u64::MAX)), None, "it has not applied the last one yet");
        assert_eq!(readable_keys(keys(), (8, 8)), Some(keys()[..2].to_vec()));
        assert_eq!(readable_keys(keys(), (2, 2)), Some(Vec::new()));
        assert_eq!(readable_keys(keys(), (2, 3)), None, "it may have two of them alone");
        assert_eq!(readable_keys(keys(), (4, 8)), Some(keys()[..2].to_vec()));
    }

    #[test]
    fn messages_come_in_pieces() {
        let (mut follower, number) = asked();
        let bodies = vec![(3, vec![1; PIECE_BYTES]), (9, vec![2; 10])];
        let pieces = pieces(number, &bodies);
        assert_eq!(pieces.len(), 2);
        assert_eq!(give(&mut follower, LEADER, &pieces[0]), None);
        assert_eq!(give(&mut follower, LEADER, &pieces[1]), Some(bodies));
        assert_eq!(follower.due(), Time::NEVER, "nothing is wanted any more");
    }

    /// Copies leave room to everything else.
    #[test]
    fn messages_are_fetched_at_a_bounded_rate() {
        let rate = NonZeroU64::new(1 << 20).expect("not 0");
        let mut follower = Exchange::with_rate(rate);
        let (mut now, mut bytes) = (Time(0), 0);
        for number in 1..=9 {
            follower.fetch(now, keys());
            now = now.max(follower.due());
            follower.ask(now, Some(LEADER)).expect("a request");
            for frame in pieces(number, &[(3, vec![1; PIECE_BYTES])]) {
                bytes += frame.len();
                match ShardFrame::decode(&frame) {
                    Some(ShardFrame::Bodies(piece)) => drop(follower.received(now, LEADER, piece)),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(bytes > 9 * PIECE_BYTES);
        // The last answer has no successor that would wait.
        assert!((1_000_000..1_010_000).contains(&now.0), "{bytes} bytes in {now:?}");
    }

    #[test]
    fn an_answer_may_have_no_message() {
        let (mut follower, number) = asked();
        assert_eq!(give(&mut follower, LEADER, &pieces(number, &[])[0]), Some(Vec::new()));
    }

    #[test]
    fn what_was_lost_is_asked_for_again() {
        let (mut follower, number) = asked();
        let bodies = vec![(3, vec![1; 2 * PIECE_BYTES])];
        let before = pieces(number, &bodies);
        assert_eq!(give(&mut follower, LEADER, &before[0]), None);
        assert_eq!(give(&mut follower, LEADER, &before[2]), None, "the second piece was lost");
        let due = follower.due();
        assert!(due < Time::NEVER);
        follower.ask(due, Some(FOLLOWER));
        for piece in &before {
            assert_eq!(give(&mut follower, LEADER, piece), None, "an answer to the earlier request");
        }
        let again: Vec<_> =
            pieces(number + 1, &bodies).iter().map(|piece| give(&mut follower, FOLLOWER, piece)).collect();
        assert_eq!(again, [None, None, Some(bodies)]);
    }

    #[test]
    fn without_a_leader_nobody_is_asked_for_now() {
        let mut follower = Exchange::default();
        follower.fetch(Time(0), keys());
        assert_eq!(follower.ask(Time(0), None), None);
        assert!(follower.due() > Time(0) && follower.due() < Time::NEVER);
    }

    #[test]
    fn messages_that_were_not_asked_for_are_refused() {
        let unasked = vec![(4, vec![1])];
        let unsorted = vec![(9, vec![1]), (3, vec![1])];
        for bodies in [unasked, unsorted] {
            let (mut follower, number) = asked();
            assert_eq!(give(&mut follower, LEADER, &pieces(number, &bodies)[0]), None);
            assert!(follower.due() < Time::NEVER, "it asks again");
        }
    }

    #[test]
    fn the_answer_to_a_slow_read_is_for_the_last_repetition() {
        let (mut follower, number) = asked();
        let mut leader = Exchange::default();
        let read = is_asked(&mut leader, Time(0), (FOLLOWER, number)).expect("a read");
        let first = follower.due();
        follower.ask(first, Some(LEADER));
        assert!(follower.due().0 - first.0 > first.0, "the next repetition comes later");
        assert!(is_asked(&mut leader, Time(0), (FOLLOWER, number + 1)).is_none());
        let (to, bodies) = (read.to, Some(Vec::new()));
        let frames = leader.answer(Time(0), BodiesReadResult { to, bodies, unreadable: Vec::new() });
        assert_eq!(give(&mut follower, LEADER, &frames[0].1), Some(Vec::new()));
    }

    #[test]
    fn one_read_at_a_time_is_done_for_a_node() {
        let mut leader = Exchange::default();
        let read = is_asked(&mut leader, Time(0), (FOLLOWER, 1)).expect("a read");
        assert!(is_asked(&mut leader, Time(0), (FOLLOWER, 2)).is_none());
        assert!(is_asked(&mut leader, Time(0), (NodeId(3), 1)).is_some());
        let (to, bodies) = (read.to, Some(Vec::new()));
        leader.answer(Time(0), BodiesReadResult { to, bodies, unreadable: Vec::new() });
        assert!(is_asked(&mut leader, Time(0), (FOLLOWER, 3)).is_some());
    }

    /// The messages are sought meanwhile. The other node would ask again after up to a minute.
    #[test]
    fn messages_that_cannot_be_read_are_read_again() {
        const FORM: (ShardId, RecordForm) = (ShardId(1), RecordForm::AGREED);
        let mut leader = Exchange::default();
        let mut read = is_asked(&mut leader, Time(0), (FOLLOWER, 1)).expect("a read");
        assert_eq!(leader.read_due(), Time::NEVER);
        let (mut now, mut reads) = (Time(0), 0);
        while now < Time(0).after(ASKED_KEPT / 4) {
            let mut result = read.cannot_read();
            assert_eq!(result.take_unreadable(|_| false), keys());
            assert_eq!(leader.answer(now, result), Vec::new());
            assert!(
                leader.read_again(now, FORM).is_none() && leader.read_due() < now.after(READ_AGAIN_MAX * 2)
            );
            assert!(is_asked(&mut leader, now, (FOLLOWER, 2)).is_none());
            (now, reads) = (leader.read_due(), reads + 1);
            read = leader.read_again(now, FORM).expect("a read");
        }
        assert!((8..16).contains(&reads), "{reads}");
        let frames = leader
            .answer(now, BodiesReadResult { to: FOLLOWER, bodies: Some(Vec::new()), unreadable: Vec::new() });
        assert!(matches!(
            ShardFrame::decode(&frames[0].1),
            Some(ShardFrame::Bodies(Piece { number: 2, total: 0, .. }))
        ));
        assert_eq!(leader.read_due(), Time::NEVER);
        // Nothing is read for a node that is gone, and another request replaces what cannot be read.
        for other in [false, true] {
            let read = is_asked(&mut leader, now, (FOLLOWER, 3)).expect("a read");
            leader.answer(now, read.fail());
            if other {
                assert!(leader.asked(now, FORM, (FOLLOWER, 4), keys()[1..].to_vec()).is_some());
            }
            assert!(leader.read_again(now.after(ASKED_KEPT), FORM).is_none());
            assert_eq!(leader.reading.len(), usize::from(other));
        }
    }
}
