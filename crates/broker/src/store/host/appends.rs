//! Appends: messages that are not queued everywhere yet, with the publishers and other requests that wait for that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use foldhash::quality::FixedState;
use mqtt::ReasonCode;
use shard::SessionUid;

use super::HashMap;
use super::live::Live;
use crate::batch::Token;
use crate::ids::{ConnectionId, ShardSet, Time};
use crate::message::Message;
use crate::store::Identity;

/// Appends of one shard. They wait for members of groups, for the log, or for full queues.
pub(super) struct Appends {
    all: slab::Slab<Append>,
    /// Difference between keys and places. A key of another host of the shard is none here: answers may be late.
    salt: u32,
    /// Messages that their publishers may send again and that are not queued everywhere yet, with their appends.
    accepting: HashMap<Identity, u32>,
    /// Messages that go to shared groups first and then to sessions, by [`Identity::line`]. Each goes to sessions after
    /// the earlier messages of its line, although their group members may be slower.
    ordered: HashMap<(u64, u64), VecDeque<Ordered>>,
    /// Sessions whose publishers wait, by the time at which the wait ends. An entry is valid while the `armed` of its
    /// session is the same time.
    deadlines: BinaryHeap<Reverse<(Time, SessionUid)>>,
    /// Bytes of messages that were acknowledged before they are on disk, and are not queued yet.
    pub unsynced: u64,
}

#[derive(Debug)]
pub(super) struct Append {
    pub waiter: Waiter,
    /// Tokens of the same message sent again.
    pub duplicates: Vec<Token>,
    pub identity: Option<Identity>,
    pub remaining: u32,
    /// Number of groups that the message was given to. With several, one may have accepted it and another one not.
    pub groups: u16,
    pub reason: ReasonCode,
}

/// Receiver of the result of an append.
#[derive(Debug)]
pub(super) enum Waiter {
    Token(Token),
    /// The connection of a session that may have more retained messages to get.
    Page(SessionUid, ConnectionId),
    /// A message that goes to groups before it goes to sessions: it is in [`Appends::ordered`].
    Groups(Identity),
    /// A Will that was due, and the shards that know its identity.
    Will {
        id: u64,
        shards: ShardSet,
    },
    /// A message that a member of a shared group left unfinished, and the shards that know its identity.
    Orphan {
        id: u64,
        shards: ShardSet,
    },
    /// No receiver any more: the message was acknowledged before it was on disk. The number is its size in bytes.
    Unsynced(u64),
}

/// A message for groups, and then for sessions.
pub(super) struct Ordered {
    pub identity: Identity,
    pub message: Message,
    pub append: Option<u32>,
    /// Result of the groups, when that is known.
    pub accepted: Option<ReasonCode>,
}

impl Appends {
    pub fn new(hasher: &FixedState) -> Self {
        Self {
            all: slab::Slab::new(),
            salt: 0,
            accepting: HashMap::with_hasher(hasher.clone()),
            ordered: HashMap::with_hasher(hasher.clone()),
            deadlines: BinaryHeap::new(),
            unsynced: 0,
        }
    }

    pub fn insert(&mut self, waiter: Waiter) -> u32 {
        let (duplicates, identity, reason) = (Vec::new(), None, ReasonCode::Success);
        let append = Append { waiter, duplicates, identity, remaining: 1, groups: 0, reason };
        self.all.insert(append) as u32 ^ self.salt
    }

    /// Sets the term of the host, before there are any appends. Each of 256 terms has keys of its own.
    pub fn set_term(&mut self, term: u64) {
        debug_assert!(self.all.is_empty());
        self.salt = (term as u32) << 24;
    }

    fn place(&self, key: u32) -> usize {
        (key ^ self.salt) as usize
    }

    pub fn get(&self, key: u32) -> Option<&Append> {
        self.all.get(self.place(key))
    }

    pub fn get_mut(&mut self, key: u32) -> Option<&mut Append> {
        self.all.get_mut(self.place(key))
    }

    /// The append of a message that its publisher may send again, while it is not queued everywhere.
    pub fn of_identity(&mut self, identity: Identity) -> Option<&mut Append> {
        let key = self.accepting.get(&identity)?;
        self.all.get_mut(self.place(*key))
    }

    /// Answers repetitions of the message with the result of this append.
    pub fn identify(&mut self, key: u32, identity: Identity) {
        self.accepting.insert(identity, key);
        self[key].identity = Some(identity);
    }

    /// Records one result of an append. Returns the append when it was the last one.
    pub fn one_accepted(&mut self, key: u32, reason: ReasonCode) -> Option<Append> {
        let place = self.place(key);
        let append = self.all.get_mut(place)?;
        if reason.is_error() {
            append.reason = reason;
        }
        append.remaining -= 1;
        if append.remaining > 0 {
            return None;
        }
        if append.reason.is_error() && append.groups > 1 {
            append.reason = ReasonCode::UnspecifiedError;
        }
        let append = self.all.remove(place);
        // A member's part of a group's message carries the identity, too, and does not answer repetitions.
        if let Some(identity) = append.identity
            && self.accepting.get(&identity) == Some(&key)
        {
            self.accepting.remove(&identity);
        }
        Some(append)
    }

    /// Returns whether an earlier message of the same line waits for groups.
    pub fn has_ordered(&self, identity: Identity) -> bool {
        self.ordered.contains_key(&identity.line())
    }

    pub fn push_ordered(&mut self, ordered: Ordered) {
        self.ordered.entry(ordered.identity.line()).or_default().push_back(ordered);
    }

    /// Records the result of the groups for a message. Returns the messages that are ready for the sessions, in the
    /// order of their publisher.
    pub fn groups_took(&mut self, identity: Identity, reason: ReasonCode) -> Vec<Ordered> {
        let queue = self.ordered.entry(identity.line()).or_default();
        if let Some(ordered) = queue.iter_mut().find(|ordered| ordered.identity == identity) {
            ordered.accepted = Some(reason);
        }
        let mut ready = Vec::new();
        while let Some(ordered) = queue.pop_front_if(|ordered| ordered.accepted.is_some()) {
            ready.push(ordered);
        }
        if queue.is_empty() {
            self.ordered.remove(&identity.line());
        }
        ready
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
        assert_eq!(self.ordered.len(), 0, "messages that wait for groups");
    }
}

impl std::ops::Index<u32> for Appends {
    type Output = Append;

    fn index(&self, key: u32) -> &Append {
        &self.all[self.place(key)]
    }
}

impl std::ops::IndexMut<u32> for Appends {
    fn index_mut(&mut self, key: u32) -> &mut Append {
        let place = self.place(key);
        &mut self.all[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a group's member is queued before the message itself: a repetition still gets the answer of the
    /// first.
    #[test]
    fn a_members_part_that_is_queued_first_leaves_the_append_of_the_message() {
        let mut appends = Appends::new(&FixedState::default());
        let identity = Identity { origin: 1, number: 2 };
        let message = appends.insert(Waiter::Unsynced(0));
        appends.identify(message, identity);
        let part = appends.insert(Waiter::Unsynced(0));
        appends[part].identity = Some(identity);
        assert!(appends.one_accepted(part, ReasonCode::Success).is_some());
        assert!(appends.of_identity(identity).is_some(), "a repetition would be dispatched again");
        assert!(appends.one_accepted(message, ReasonCode::Success).is_some());
        assert!(appends.of_identity(identity).is_none());
        appends.check_empty();
    }
}
