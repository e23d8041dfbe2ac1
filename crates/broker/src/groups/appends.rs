//! Messages for all groups that match a topic, and the requests that wait until members have them.

use std::collections::{HashMap, HashSet, VecDeque};

use mqtt::{ReasonCode, TopicName};

use super::GroupHost;
use super::linked::placeholder;
use super::offers::Delivery;
use crate::batch::{Token, WorkerCommand};
use crate::ids::Time;
use crate::message::Message;
use crate::route::{Route, RouteKind};
use crate::store::{GroupName, Identity, QUEUE_REFUSED, Request, ShardOutput, worse};

/// A message for the groups of a host, and perhaps for durable sessions of the shard with the same number.
#[derive(Debug)]
pub struct GroupAppend {
    pub message: Message,
    /// Sessions of the shard match, too. They get a message with an identity after the groups.
    pub sessions: bool,
    /// Identity of a message that its publisher may send again.
    pub identity: Option<Identity>,
    /// The message may have been sent before. It is dispatched again only if the shard does not know its identity.
    pub is_again: bool,
    /// Reason why the log accepts no message.
    pub refusal: Option<ReasonCode>,
    pub token: Option<Token>,
    /// The only group that gets the message: another cluster has chosen this one for it.
    pub only: Option<Box<GroupName>>,
}

/// Messages that members of several groups have to accept.
#[derive(Default)]
pub(super) struct Appends {
    waiting: slab::Slab<Waiting>,
    /// Messages with identities, by [`Identity::line`]. Each goes to sessions after the earlier messages of its line,
    /// although their members may be slower.
    ordered: HashMap<(u64, u64), VecDeque<Ordered>>,
    /// Identities of all messages in `ordered`.
    identities: HashSet<Identity>,
    /// Bytes of all messages in `ordered`.
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    waiter: Waiter,
    /// Number of answers that are still to come.
    remaining: u32,
    /// Number of groups that the message was given to. With several, one may have accepted it and another one not.
    groups: u32,
    reason: ReasonCode,
}

#[derive(Debug)]
enum Waiter {
    Token(Token),
    /// The message of this identity waits for its groups.
    Groups(Identity),
    /// The message of this identity waits for the answer whether it is known.
    Question(Identity),
}

#[derive(Debug)]
struct Ordered {
    identity: Identity,
    message: Message,
    sessions: bool,
    refusal: Option<ReasonCode>,
    /// Value of [`GroupAppend::only`].
    only: Option<Box<GroupName>>,
    /// Token of the message, and those of repetitions.
    tokens: Vec<Token>,
    /// Result of the groups, when that is known.
    result: Option<Taken>,
}

#[derive(Clone, Copy, Debug)]
enum Taken {
    /// All groups have the message.
    ByGroups,
    /// The message was dispatched before.
    Before,
    Refused(ReasonCode),
}

impl Appends {
    fn insert(&mut self, waiter: Waiter) -> u32 {
        self.waiting.insert(Waiting { waiter, remaining: 1, groups: 0, reason: ReasonCode::Success }) as u32
    }

    /// Finds a message. `is_late`: it is one of the last of its line, and otherwise one of the first.
    fn of_identity(&mut self, identity: Identity, is_late: bool) -> Option<&mut Ordered> {
        if !self.identities.contains(&identity) {
            return None;
        }
        let mut line = self.ordered.get_mut(&identity.line())?.iter_mut();
        let is_it = |ordered: &&mut Ordered| ordered.identity == identity;
        if is_late { line.rfind(is_it) } else { line.find(is_it) }
    }

    /// Bytes of the messages with identities.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, ordered: Ordered) {
        self.bytes += ordered.message.size();
        self.identities.insert(ordered.identity);
        self.ordered.entry(ordered.identity.line()).or_default().push_back(ordered);
    }

    /// Records what has become of a message. Returns the messages that are ready, in the order of their publisher.
    fn taken(&mut self, identity: Identity, result: Taken) -> Vec<(Ordered, Taken)> {
        if let Some(ordered) = self.of_identity(identity, false) {
            ordered.result = Some(result);
        }
        let Some(queue) = self.ordered.get_mut(&identity.line()) else { return Vec::new() };
        let mut ready = Vec::new();
        while let Some(result) = queue.front().and_then(|ordered| ordered.result) {
            let Some(ordered) = queue.pop_front() else { break };
            self.identities.remove(&ordered.identity);
            self.bytes -= ordered.message.size();
            ready.push((ordered, result));
        }
        if queue.is_empty() {
            self.ordered.remove(&identity.line());
        }
        ready
    }

    pub fn check_empty(&self) {
        let lengths = (self.waiting.len(), self.ordered.len(), self.identities.len(), self.bytes);
        assert_eq!(lengths, (0, 0, 0, 0), "messages that wait for groups");
    }
}

impl GroupHost {
    /// Gives a message to one member of each group that matches. A message with an identity goes to the shard then: it
    /// is known there, so a repetition is not given to the groups again. A crash in between may bring it twice to a
    /// group, but loses it for none.
    pub(super) fn append(&mut self, now: Time, append: GroupAppend, out: &mut ShardOutput) {
        let GroupAppend { message, sessions, identity, is_again, refusal, token, only } = append;
        let Some(identity) = identity else {
            if let Some(only) = only {
                let delivery = Delivery { refusal, token, ..Delivery::default() };
                return self.deliver_to_one(now, &only, &message, delivery, out);
            }
            return self.deliver_to_groups(now, &message, refusal, token, out);
        };
        if let Some(ordered) = self.appends.of_identity(identity, true) {
            return ordered.tokens.extend(token);
        }
        let tokens = token.into_iter().collect();
        let ordered = Ordered { identity, message, sessions, refusal, only, tokens, result: None };
        self.appends.push(ordered);
        // A Will may have been published before a crash.
        if is_again || identity.is_of_shard() {
            let key = self.appends.insert(Waiter::Question(identity));
            let token = Token::Groups { shard: self.id, key };
            return out.requests.push((self.id, Request::FindIdentity { identity, token }));
        }
        self.deliver_ordered(now, identity, out);
    }

    fn deliver_ordered(&mut self, now: Time, identity: Identity, out: &mut ShardOutput) {
        let Some(ordered) = self.appends.of_identity(identity, true) else { return };
        let (message, refusal, only) = (ordered.message.clone(), ordered.refusal, ordered.only.clone());
        let key = self.appends.insert(Waiter::Groups(identity));
        let Some(only) = only else { return self.deliver_to_all(now, &message, refusal, key, out) };
        let token = Some(self.awaits_group(key));
        self.deliver_to_one(now, &only, &message, Delivery { refusal, token, ..Delivery::default() }, out);
        self.accepted(now, key, ReasonCode::Success, out);
    }

    /// Gives a message to the only group that it is for.
    pub(super) fn deliver_to_one(
        &mut self,
        now: Time,
        name: &GroupName,
        message: &Message,
        delivery: Delivery,
        out: &mut ShardOutput,
    ) {
        match self.routes.groups(self.id).find(name) {
            Some(slot) => self.deliver(now, self.group_id(slot), message, delivery, out),
            None => self.no_member(now, message, delivery, out),
        }
    }

    /// Gives a message without an identity to the groups.
    fn deliver_to_groups(
        &mut self,
        now: Time,
        message: &Message,
        refusal: Option<ReasonCode>,
        token: Option<Token>,
        out: &mut ShardOutput,
    ) {
        let view = message.view();
        if let Some(route) = self.known_match(view.topic)
            && Self::is_for_group(&route, &view)
        {
            let group = self.group_id((route.slot, route.generation));
            // The only member that gets it answers.
            let delivery = Delivery { refusal, token, ..Delivery::default() };
            return self.deliver_view(now, group, (message, &view), delivery, out);
        }
        match token {
            Some(token) => {
                let key = self.appends.insert(Waiter::Token(token));
                self.deliver_to_all(now, message, refusal, key, out);
            }
            None => self.deliver_each(now, message, refusal, None, out),
        }
    }

    fn deliver_to_all(
        &mut self,
        now: Time,
        message: &Message,
        refusal: Option<ReasonCode>,
        key: u32,
        out: &mut ShardOutput,
    ) {
        self.deliver_each(now, message, refusal, Some(key), out);
        self.accepted(now, key, ReasonCode::Success, out);
    }

    fn deliver_each(
        &mut self,
        now: Time,
        message: &Message,
        refusal: Option<ReasonCode>,
        key: Option<u32>,
        out: &mut ShardOutput,
    ) {
        let Ok(topic) = TopicName::parse(message.view().topic) else { return };
        let matches = self.matching(topic);
        let is_for =
            |route: &&Route| route.kind == RouteKind::Group && Self::is_for_group(route, &message.view());
        for route in matches.iter().filter(is_for) {
            let token = key.map(|key| self.awaits_group(key));
            let group = self.group_id((route.slot, route.generation));
            let delivery = Delivery { refusal, token, ..Delivery::default() };
            self.deliver(now, group, message, delivery, out);
        }
        self.reuse(matches);
    }

    /// Notes that a message waits for one more group. Returns the token of the answer.
    fn awaits_group(&mut self, key: u32) -> Token {
        if let Some(waiting) = self.appends.waiting.get_mut(key as usize) {
            waiting.remaining += 1;
            waiting.groups += 1;
        }
        Token::Groups { shard: self.id, key }
    }

    /// Handles one of the answers that a message waits for.
    pub(super) fn accepted(&mut self, now: Time, key: u32, reason: ReasonCode, out: &mut ShardOutput) {
        let Some(waiting) = self.appends.waiting.get_mut(key as usize) else { return };
        waiting.reason = worse(waiting.reason, reason);
        waiting.remaining -= 1;
        if waiting.remaining > 0 {
            return;
        }
        let Waiting { waiter, groups, reason: worst, .. } = self.appends.waiting.remove(key as usize);
        // Another group may have the message.
        let is_unknown = worst.is_error() && worst != QUEUE_REFUSED && groups > 1;
        let worst = if is_unknown { ReasonCode::UnspecifiedError } else { worst };
        match waiter {
            Waiter::Token(token) => self.answer_with(now, token, worst, out),
            Waiter::Groups(identity) => {
                let result = if worst.is_error() { Taken::Refused(worst) } else { Taken::ByGroups };
                self.taken(now, identity, result, out);
            }
            Waiter::Question(identity) if reason == ReasonCode::NoMatchingSubscribers => {
                self.deliver_ordered(now, identity, out);
            }
            Waiter::Question(identity) => {
                let result = if reason.is_error() { Taken::Refused(reason) } else { Taken::Before };
                self.taken(now, identity, result, out);
            }
        }
    }

    /// Continues after the groups have a message or have refused it: the shard gets the messages of its publisher in
    /// their order [MQTT-4.6.0-6].
    fn taken(&mut self, now: Time, identity: Identity, result: Taken, out: &mut ShardOutput) {
        for (ordered, result) in self.appends.taken(identity, result) {
            let Ordered { identity, message, sessions, refusal, tokens, only, .. } = ordered;
            // The log gets the identity, and no session the message.
            let message = if only.is_some() { placeholder(&message) } else { message };
            let reason = match result {
                Taken::ByGroups => {
                    // Only sessions need the log now.
                    let refusal = refusal.filter(|_| sessions);
                    for token in tokens {
                        let (message, identity) = (message.clone(), Some(identity));
                        let append = Request::Append { message, identity, refusal, token: Some(token) };
                        match token {
                            // In a cluster the Release of a client waits for what its worker has on the way to
                            // shards. So that worker asks, if the client is still there. On a node alone, a repetition
                            // asks after this request, because both come from here.
                            Token::Publish { connection, .. } if self.routes.are_shards_agreed() => {
                                let command = WorkerCommand::GroupsTook(self.id, append);
                                out.commands.push((connection.worker, command));
                            }
                            _ => out.requests.push((self.id, append)),
                        }
                    }
                    continue;
                }
                Taken::Before => ReasonCode::Success,
                Taken::Refused(reason) => reason,
            };
            for token in tokens {
                self.answer_with(now, token, reason, out);
            }
        }
    }
}
