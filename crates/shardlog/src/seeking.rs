//! Messages that the disk of this node cannot return, and for which a replica asks the other voters, one after the
//! other.
//!
//! A voter that does not answer may be the only one with a message. It is waited for, up to a bound: a queue must not
//! stand still because of a node that never comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use link::{NodeId, Time};
use shard::{MessageKey, StoredBatch};

use crate::bodies::Exchange;
use crate::frame::Piece;

/// Time after which a voter that has not answered any request is not waited for.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Number of the first request. Those of [`ShardAgreement::exchange`](crate::ShardAgreement) begin at 0.
const FIRST_NUMBER: u64 = 1 << 63;

/// Messages that are sought.
#[derive(Debug)]
pub struct Seeking {
    exchange: Exchange,
    sought: Option<Sought>,
    /// Voters that have not answered since their first request.
    silent: BTreeMap<NodeId, Time>,
}

#[derive(Debug)]
struct Sought {
    /// Messages with which the search began.
    all: Vec<MessageKey>,
    /// Messages that are left.
    keys: Vec<MessageKey>,
    /// Voters that have answered.
    answered: BTreeSet<NodeId>,
    /// Voter that was asked last.
    asked: Option<NodeId>,
    /// Messages that were found, by the indexes of their batches. Several voters may have parts of one.
    found: BTreeMap<u64, Vec<u8>>,
}

/// Next step of a search.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Ask(NodeId, Vec<u8>),
    /// The messages that were found, by the indexes of their batches, and those that no voter has.
    Found(Vec<(u64, Vec<u8>)>, Vec<MessageKey>),
}

impl Default for Seeking {
    fn default() -> Self {
        Self { exchange: Exchange::with_numbers_after(FIRST_NUMBER), sought: None, silent: BTreeMap::new() }
    }
}

impl Seeking {
    /// Returns whether an answer with this number is for a request from here.
    pub fn has_asked(number: u64) -> bool {
        number >= FIRST_NUMBER
    }

    /// Begins to seek messages, all that are needed of each batch.
    pub fn begin(&mut self, now: Time, keys: Vec<MessageKey>) {
        debug_assert!(self.sought.is_none(), "one search at a time");
        self.exchange.fetch(now, keys.clone());
        let (answered, found) = (BTreeSet::new(), BTreeMap::new());
        self.sought = Some(Sought { all: keys.clone(), keys, answered, asked: None, found });
    }

    /// Time of the next call of [`Self::next`].
    pub fn due(&self) -> Time {
        match &self.sought {
            Some(sought) if sought.keys.is_empty() => Time(0),
            Some(_) => self.exchange.due(),
            None => Time::NEVER,
        }
    }

    /// Returns the next request for one of the voters, or the result.
    pub fn next(&mut self, now: Time, voters: &BTreeSet<NodeId>) -> Option<Next> {
        if self.due() > now {
            return None;
        }
        self.silent.retain(|node, _| voters.contains(node));
        let sought = self.sought.as_mut()?;
        if !sought.keys.is_empty() {
            let silent = &self.silent;
            let is_waited_for =
                |node: &NodeId| silent.get(node).is_none_or(|since| now < since.after(WAIT_MAX));
            let left = || voters.iter().filter(|node| !sought.answered.contains(node) && is_waited_for(node));
            // The next one after the last: a voter that is not reachable holds up no other one.
            let next = left().find(|node| Some(**node) > sought.asked).or_else(|| left().next()).copied();
            if let Some(node) = next {
                sought.asked = Some(node);
                self.silent.entry(node).or_insert(now);
                let (to, frame) = self.exchange.ask(now, Some(node))?;
                return Some(Next::Ask(to, frame));
            }
        }
        self.exchange.forget();
        let Sought { keys, found, .. } = self.sought.take()?;
        Some(Next::Found(found.into_iter().collect(), keys))
    }

    /// Handles a piece of an answer.
    pub fn received(&mut self, now: Time, from: NodeId, piece: Piece<'_>) {
        let Some(bodies) = self.exchange.received(now, from, piece) else { return };
        let Some(sought) = &mut self.sought else { return };
        self.silent.remove(&from);
        sought.answered.insert(from);
        for (index, body) in bodies {
            let known = sought.found.entry(index).or_default();
            let of_batch: Vec<_> = sought.all.iter().filter(|key| key.index() == index).copied().collect();
            let parts = [StoredBatch::Kept(known), StoredBatch::Kept(&body)];
            let (merged, missing) = StoredBatch::keep_of(&parts, &of_batch);
            *known = merged;
            sought.keys.retain(|key| key.index() != index || missing.contains(key));
        }
        sought.found.retain(|_, body| !body.is_empty());
        if !sought.keys.is_empty() {
            self.exchange.fetch(now, sought.keys.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use shard::{BatchBuilder, Command, MessageView};

    use super::*;
    use crate::frame::{ShardFrame, encode_bodies};

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);

    /// Two messages of one batch, as another replica sends them, and their keys.
    fn batch() -> (Vec<u8>, Vec<MessageKey>) {
        let mut builder = BatchBuilder::new(0);
        let keys: Vec<_> = ["one", "two"]
            .map(|payload| {
                let message = MessageView {
                    topic: "t",
                    properties: &[],
                    payload: payload.as_bytes(),
                    qos: mqtt::QoS::AtLeastOnce,
                    retain: false,
                    expires: shard::NEVER,
                    received: 9,
                    publisher_key: 3,
                };
                let pushed = builder.push(&Command::Publish { message, wait: true, identity: None });
                MessageKey::new(7, pushed.message.expect("a message"))
            })
            .into();
        (builder.finish(), keys)
    }

    fn kept(keys: &[MessageKey]) -> Vec<u8> {
        StoredBatch::Whole(&batch().0).keep(keys).0
    }

    fn voters() -> BTreeSet<NodeId> {
        BTreeSet::from([ONE, TWO])
    }

    fn begun() -> Seeking {
        let mut seeking = Seeking::default();
        seeking.begin(Time(0), batch().1);
        seeking
    }

    /// Node that is asked now, and the number of the request.
    fn asked(seeking: &mut Seeking, now: Time) -> (NodeId, u64) {
        match seeking.next(now, &voters()) {
            Some(Next::Ask(node, frame)) => match ShardFrame::decode(&frame) {
                Some(ShardFrame::Fetch { number, .. }) => (node, number),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    fn answer(seeking: &mut Seeking, (from, number): (NodeId, u64), bodies: &[(u64, Vec<u8>)]) {
        let bytes = encode_bodies(bodies);
        let piece = Piece { number, offset: 0, total: bytes.len() as u64, bytes: &bytes };
        seeking.received(Time(1), from, piece);
    }

    #[test]
    fn the_first_voter_that_has_the_messages_is_enough() {
        let (mut seeking, (_, keys)) = (begun(), batch());
        let first = asked(&mut seeking, Time(0));
        assert_eq!((first.0, seeking.next(Time(0), &voters())), (ONE, None));
        let bodies = vec![(7, kept(&keys))];
        answer(&mut seeking, first, &bodies);
        assert_eq!(seeking.next(Time(1), &voters()), Some(Next::Found(bodies, Vec::new())));
        assert_eq!(seeking.due(), Time::NEVER);
    }

    #[test]
    fn every_voter_is_asked_before_a_message_is_lost() {
        let (mut seeking, (_, keys)) = (begun(), batch());
        let first = asked(&mut seeking, Time(0));
        answer(&mut seeking, first, &[(7, kept(&keys[..1]))]);
        let second = asked(&mut seeking, Time(1));
        assert_eq!((first.0, second.0), (ONE, TWO));
        answer(&mut seeking, second, &[]);
        let found = vec![(7, kept(&keys[..1]))];
        assert_eq!(seeking.next(Time(1), &voters()), Some(Next::Found(found, keys[1..].to_vec())));
    }

    /// The log keeps one record of a batch: another one replaces it.
    #[test]
    fn parts_of_a_batch_come_from_several_voters() {
        let (mut seeking, (_, keys)) = (begun(), batch());
        let first = asked(&mut seeking, Time(0));
        answer(&mut seeking, first, &[(7, kept(&keys[1..]))]);
        let second = asked(&mut seeking, Time(1));
        answer(&mut seeking, second, &[(7, kept(&keys[..1]))]);
        let found = vec![(7, kept(&keys))];
        assert_eq!(seeking.next(Time(1), &voters()), Some(Next::Found(found, Vec::new())));
    }

    #[test]
    fn a_voter_that_does_not_answer_is_waited_for_up_to_a_bound() {
        let mut seeking = begun();
        let first = asked(&mut seeking, Time(0));
        answer(&mut seeking, first, &[]);
        let wait = WAIT_MAX.as_micros() as u64;
        let (mut requests, mut found) = (0, None);
        while found.is_none() {
            let now = seeking.due();
            match seeking.next(now, &voters()) {
                Some(Next::Ask(node, _)) => {
                    assert!(node == TWO && now.0 < wait + 1, "{node} at {now:?}");
                    requests += 1;
                }
                next => found = next.map(|next| (now, next)),
            }
        }
        assert!((4..50).contains(&requests), "{requests} requests");
        assert!(matches!(found, Some((now, Next::Found(bodies, _))) if bodies.is_empty() && now.0 > wait));
        // It is not waited for once more, until it answers.
        seeking.begin(Time(wait * 2), batch().1);
        let first = asked(&mut seeking, Time(wait * 2));
        answer(&mut seeking, first, &[]);
        assert!(matches!(seeking.next(Time(wait * 2), &voters()), Some(Next::Found(..))));
    }

    #[test]
    fn a_voter_that_is_not_reachable_holds_up_no_other_one() {
        let (mut seeking, (_, keys)) = (begun(), batch());
        assert_eq!(asked(&mut seeking, Time(0)).0, ONE);
        let due = seeking.due();
        let second = asked(&mut seeking, due);
        assert_eq!(second.0, TWO);
        answer(&mut seeking, second, &[(7, kept(&keys))]);
        assert!(matches!(seeking.next(due, &voters()), Some(Next::Found(_, lost)) if lost.is_empty()));
    }
}
