//! Appends: messages that are not queued everywhere yet, with the publishers and other requests that wait for that.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use foldhash::quality::FixedState;
use mqtt::ReasonCode;
use shard::SessionUid;

use super::HashMap;
use super::live::Live;
use crate::batch::Token;
use crate::ids::{ConnectionId, ShardSet, Time};
use crate::store::{Identity, worse};

/// Number of lower bits of a key, which differ for the appends of a host. There are never so many at once.
const KEY_BITS: u32 = 24;

/// Appends of one shard. They wait for the log, or for full queues.
pub(super) struct Appends {
    all: HashMap<u32, Append>,
    /// Upper bits of all keys. A key of another host of the shard is none here: answers may be late.
    salt: u32,
    /// Lower bits of the next key. A key is not used again soon: a node that goes on in another incarnation repeats its
    /// answers, and the append that they were for may have ended.
    next: u32,
    /// Messages that their publishers may send again and that are not queued everywhere yet, with their appends.
    accepting: HashMap<Identity, u32>,
    /// Sessions whose publishers wait, by the time at which the wait ends. An entry is valid while the `armed` of its
    /// session is the same time.
    deadlines: BinaryHeap<Reverse<(Time, SessionUid)>>,
    /// Bytes of messages that were acknowledged before they are on disk, and are not queued yet, and of `unheld`.
    pub unsynced: u64,
    /// Appends that are acknowledged when a majority of the replicas has the message in memory.
    pub unheld: VecDeque<Unheld>,
}

/// A message whose publisher does not wait for the disks of a majority.
#[derive(Debug)]
pub(super) struct Unheld {
    /// Number of the batch of the message.
    pub number: u64,
    pub key: u32,
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Append {
    pub waiter: Waiter,
    /// Tokens of the same message sent again.
    pub duplicates: Vec<Token>,
    pub identity: Option<Identity>,
    pub remaining: u32,
    pub reason: ReasonCode,
    /// Number of the batch of its [`Unheld`], or 0.
    pub unheld: u64,
}

/// Receiver of the result of an append.
#[derive(Debug)]
pub(super) enum Waiter {
    Token(Token),
    /// The connection of a session that may have more retained messages to get.
    Page(SessionUid, ConnectionId),
    /// A Will that was due.
    Will {
        id: u64,
        receivers: Box<Receivers>,
    },
    /// A message that a member of a shared group left unfinished.
    Orphan {
        id: u64,
        receivers: Box<Receivers>,
    },
    /// No receiver any more: the message was acknowledged before it was on disk. The number is its size in bytes.
    Unsynced(u64),
}

/// Receivers of a message of the shard itself. They are boxed: most appends are of publishers, and smaller.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    /// Shards that know the identity of the message.
    pub shards: ShardSet,
    /// Answers that are counted.
    answers: BTreeSet<AnswerNumber>,
}

/// Answer of a worker, the same in each incarnation of its process. A process that starts again does not know the
/// append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AnswerNumber {
    pub node: u64,
    pub lane: u16,
    pub request: u64,
}

impl Waiter {
    pub fn receivers_mut(&mut self) -> Option<&mut Receivers> {
        match self {
            Self::Will { receivers, .. } | Self::Orphan { receivers, .. } => Some(receivers),
            Self::Token(_) | Self::Page(..) | Self::Unsynced(_) => None,
        }
    }

    /// Returns whether a publisher or a shared group waits, which can do something else with the message.
    pub fn can_be_refused(&self) -> bool {
        match self {
            Self::Token(token) => !matches!(token, Token::Append { .. } | Token::Copy { .. }),
            Self::Page(..) | Self::Will { .. } | Self::Orphan { .. } | Self::Unsynced(_) => false,
        }
    }
}

impl Appends {
    pub fn new(hasher: &FixedState) -> Self {
        Self {
            all: HashMap::with_hasher(hasher.clone()),
            salt: 0,
            next: 0,
            accepting: HashMap::with_hasher(hasher.clone()),
            deadlines: BinaryHeap::new(),
            unsynced: 0,
            unheld: VecDeque::new(),
        }
    }

    pub fn insert(&mut self, waiter: Waiter) -> u32 {
        let (duplicates, identity, reason) = (Vec::new(), None, ReasonCode::Success);
        let append = Append { waiter, duplicates, identity, remaining: 1, reason, unheld: 0 };
        let mut key = self.next_key();
        while self.all.contains_key(&key) {
            key = self.next_key();
        }
        self.all.insert(key, append);
        key
    }

    fn next_key(&mut self) -> u32 {
        let key = self.next | self.salt;
        self.next = (self.next + 1) % (1 << KEY_BITS);
        key
    }

    /// Sets the term of the host, before there are any appends. Each of 256 terms has keys of its own.
    pub fn set_term(&mut self, term: u64) {
        debug_assert!(self.all.is_empty());
        self.salt = (term as u32) << KEY_BITS;
    }

    pub fn get(&self, key: u32) -> Option<&Append> {
        self.all.get(&key)
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Append> {
        self.all.get_mut(&key)
    }

    /// The append of a message that its publisher may send again, while it is not queued everywhere.
    pub fn of_identity(&mut self, identity: Identity) -> Option<&mut Append> {
        let key = self.accepting.get(&identity)?;
        self.all.get_mut(key)
    }

    /// Answers repetitions of the message with the result of this append.
    pub fn identify(&mut self, key: u32, identity: Identity) {
        self.accepting.insert(identity, key);
        self[key].identity = Some(identity);
    }

    /// Notes an answer of a worker. Returns false if it was noted before.
    pub fn note_answer(&mut self, key: u32, answer: AnswerNumber) -> bool {
        let receivers = self.all.get_mut(&key).and_then(|append| append.waiter.receivers_mut());
        receivers.is_none_or(|receivers| receivers.answers.insert(answer))
    }

    /// Records one result of an append. Returns the append when it was the last one.
    pub fn one_accepted(&mut self, key: u32, reason: ReasonCode) -> Option<Append> {
        let append = self.all.get_mut(&key)?;
        append.reason = worse(append.reason, reason);
        append.remaining -= 1;
        if append.remaining > 0 {
            return None;
        }
        let append = self.all.remove(&key)?;
        if let Some(identity) = append.identity {
            self.accepting.remove(&identity);
        }
        Some(append)
    }

    /// Schedules a check of a session whose publishers wait, at the time when their wait ends. That is `due` at the
    /// earliest.
    pub fn arm(&mut self, sessions: &mut HashMap<SessionUid, Live>, uid: SessionUid, due: Time) {
        let Some(live) = sessions.get_mut(&uid) else { return };
        if due >= live.armed {
            return;
        }
        live.armed = due;
        self.deadlines.push(Reverse((due, uid)));
        if self.deadlines.len() > 2 * sessions.len() + 64 {
            self.deadlines
                .retain(|Reverse((at, uid))| sessions.get(uid).is_some_and(|session| session.armed == *at));
        }
    }

    /// Time of the earliest deadline; [`Time::NEVER`] without one.
    pub fn next_deadline(&self) -> Time {
        self.deadlines.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    /// Removes the earliest deadline, when it has come.
    pub fn pop_deadline(&mut self, now: Time) -> Option<(Time, SessionUid)> {
        let Reverse((at, _)) = self.deadlines.peek()?;
        if *at > now {
            return None;
        }
        self.deadlines.pop().map(|Reverse(deadline)| deadline)
    }

    pub fn check_empty(&self) {
        assert_eq!(self.all.len(), 0, "publishers that are never answered");
        assert_eq!(self.accepting.len(), 0, "publishers that are never answered");
        assert_eq!((self.unsynced, self.unheld.len()), (0, 0), "messages that are never queued");
    }
}

impl std::ops::Index<u32> for Appends {
    type Output = Append;

    fn index(&self, key: u32) -> &Append {
        &self.all[&key]
    }
}

impl std::ops::IndexMut<u32> for Appends {
    fn index_mut(&mut self, key: u32) -> &mut Append {
        self.all.get_mut(&key).expect("an append that has not ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise it would end the append of another message, whose publisher would have an acknowledgement too early.
    #[test]
    fn an_answer_that_comes_again_ends_no_later_append() {
        let mut appends = Appends::new(&FixedState::default());
        appends.set_term(3);
        let will = appends.insert(Waiter::Will { id: 1, receivers: Box::default() });
        assert!(appends.one_accepted(will, ReasonCode::Success).is_some());
        let next = appends.insert(Waiter::Unsynced(7));
        assert!(appends.one_accepted(will, ReasonCode::Success).is_none());
        assert_eq!(appends.get(next).map(|append| append.remaining), Some(1));
        assert!(appends.one_accepted(next, ReasonCode::Success).is_some());
        appends.next = (1 << KEY_BITS) - 1;
        let (last, first) = (appends.insert(Waiter::Unsynced(8)), appends.insert(Waiter::Unsynced(9)));
        appends.next = (1 << KEY_BITS) - 1;
        assert_eq!(
            (last, first, appends.insert(Waiter::Unsynced(10))),
            (0x03ff_ffff, 0x0300_0000, 0x0300_0001)
        );
    }
}
