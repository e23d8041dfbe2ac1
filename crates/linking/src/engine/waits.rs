//! SUBACKs that wait for links: those of this node, and questions about the links that run here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bridges::Until;
use broker::admin::Admin;
use broker::{Begun, ConnectionId, InterestWatch, LinkWaits, WaitingSuback};
use mqtt::Subscription;

use super::{Shared, Thread};
use crate::answers::{ANSWER_MAX, OpenQuestion, Part, Reply};
use crate::puller::{Key, Puller};
use crate::question::{Question, decode_answer, encode_answer};
use crate::registry::Registry;
use crate::subacks::{Answer, BYTES_MAX, Output, Subacks, WAITS_MAX, bytes_of};

/// Maximum time for the answer of another node.
const ANSWER_ARRIVES: Duration = Duration::from_secs(2);

/// The other nodes of the cluster.
pub trait Nodes: Send + Sync {
    /// Returns the name of the node that leads the shard of a Client Identifier, as far as this node knows.
    fn leader_of(&self, client_id: &str) -> Option<String>;

    /// Asks a node. It answers by an [`Answerer`].
    fn ask(&self, node: &str, question: Vec<u8>, within: Duration, reply: Box<dyn FnOnce(Answered) + Send>);
}

/// Result of [`Nodes::ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    Bytes(Vec<u8>),
    /// The version of the node does not know such questions.
    Unsupported,
    /// No answer has come.
    Lost,
}

/// Events for the thread from others.
#[derive(Default)]
pub struct Inbox {
    begun: Vec<Begin>,
    /// Bytes of the filters of `begun`.
    begun_bytes: usize,
    cancelled: Vec<ConnectionId>,
    questions: Vec<(Question, Reply)>,
    answered: Vec<(u64, Answer)>,
    /// True when the thread takes nothing any more.
    is_closed: bool,
}

/// A SUBACK that begins to wait.
struct Begin {
    suback: WaitingSuback,
    filters: Vec<Box<str>>,
    at: Instant,
    within: Duration,
}

impl Inbox {
    /// Adds a SUBACK. Returns false if there is no room, or nothing is taken any more.
    fn begin(&mut self, begin: Begin) -> bool {
        let bytes = bytes_of(&begin.filters);
        let has_room = self.begun.len() < WAITS_MAX && self.begun_bytes.saturating_add(bytes) <= BYTES_MAX;
        if self.is_closed || !has_room {
            return false;
        }
        self.begun_bytes += bytes;
        self.begun.push(begin);
        true
    }

    /// Takes all events.
    fn take(&mut self) -> Self {
        let is_closed = self.is_closed;
        std::mem::replace(self, Self { is_closed, ..Self::default() })
    }

    /// Takes the SUBACKs whose time is over.
    fn take_overdue(&mut self, now: Instant) -> Vec<WaitingSuback> {
        let overdue = self.begun.extract_if(.., |begin| begin.at + begin.within <= now);
        let overdue = overdue.map(|begin| (bytes_of(&begin.filters), begin.suback)).collect::<Vec<_>>();
        self.begun_bytes -= overdue.iter().map(|(bytes, _)| bytes).sum::<usize>();
        overdue.into_iter().map(|(_, suback)| suback).collect()
    }
}

/// The links, as the workers know them.
pub(super) struct Waits {
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Arc<Registry>,
}

impl LinkWaits for Waits {
    fn begin(&self, suback: WaitingSuback, filters: Vec<Box<str>>, within: Duration) -> Begun {
        // The thread knows what new definitions take.
        if self.shared.take_nothing.load(Ordering::Acquire) == self.registry.changes() {
            return Begun::Nothing;
        }
        let begin = Begin { suback, filters, at: Instant::now(), within };
        if !sync::lock(&self.shared.inbox).begin(begin) {
            return Begun::Busy;
        }
        self.shared.wake();
        Begun::Waits
    }

    fn cancel(&self, connection: ConnectionId) {
        sync::lock(&self.shared.inbox).cancelled.push(connection);
        self.shared.wake();
    }
}

/// Answers the questions of other nodes.
#[derive(Clone)]
pub struct Answerer(pub(super) Arc<Shared>);

impl Answerer {
    /// Returns whether the bytes are a question for it.
    pub fn is_for(question: &[u8]) -> bool {
        Question::is_one(question)
    }

    /// Answers a question of another node. The reply is dropped if the question is not valid.
    pub fn answer(&self, question: &[u8], reply: Box<dyn FnOnce(Vec<u8>) + Send>) {
        let Some(question) = Question::decode(question) else { return };
        let reply: Reply = Box::new(move |parts| reply(encode_answer(&parts)));
        let mut inbox = sync::lock(&self.0.inbox);
        if inbox.is_closed || self.0.is_stopping.load(Ordering::Acquire) {
            drop(inbox);
            // The link moves to another node.
            return reply(vec![false; question.parts.len()]);
        }
        inbox.questions.push((question, reply));
        drop(inbox);
        self.0.wake();
    }
}

impl Thread {
    /// Handles what has happened with SUBACKs that wait for links.
    pub(super) fn serve_subacks(&mut self, now: Instant) {
        let inbox = sync::lock(&self.shared.inbox).take();
        let are_definitions_new = self.read.is_none_or(|(seen, _)| seen != self.registry.changes());
        if are_definitions_new && !(inbox.begun.is_empty() && inbox.questions.is_empty()) {
            self.look();
        }
        for Begin { suback, filters, at, within } in inbox.begun {
            let links = self.links_of(&filters);
            self.subacks.begin(at, suback, within, links);
        }
        inbox.cancelled.into_iter().for_each(|connection| self.subacks.cancel(connection));
        for (number, answer) in inbox.answered {
            self.subacks.answered(now, number, answer);
        }
        if self.subacks.timeout().is_some_and(|due| due <= now) {
            self.subacks.handle_timeout(now);
        }
        for (question, reply) in inbox.questions {
            self.answer(now, question, reply);
        }
        while let Some(output) = self.subacks.poll_output() {
            match output {
                Output::Done { suback, is_confirmed } => self.admin.links_answered(suback, is_confirmed),
                Output::Ask { number, session, parts } => self.ask(now, number, Question { session, parts }),
            }
        }
        let pullers = &self.pullers;
        self.answers.release(now, |session, start| {
            let puller = pullers.iter().find(|(key, _)| key.session() == session).map(|(_, puller)| puller);
            // Nobody waits for a link that is off or removed.
            puller.is_none_or(|it| !it.is_wanted() || it.running.is_some() && it.starts == start)
        });
    }

    /// Returns the time at which [`Self::serve_subacks`] is due.
    pub(super) fn subacks_due(&self) -> Option<Instant> {
        self.subacks.timeout().into_iter().chain(self.answers.timeout()).min()
    }

    /// Ends all waits, because this node stops.
    pub(super) fn end_subacks(&mut self) {
        self.subacks.end_all();
        let inbox = {
            let mut inbox = sync::lock(&self.shared.inbox);
            inbox.is_closed = true;
            inbox.take()
        };
        while let Some(output) = self.subacks.poll_output() {
            if let Output::Done { suback, is_confirmed } = output {
                self.admin.links_answered(suback, is_confirmed);
            }
        }
        for begin in inbox.begun {
            self.admin.links_answered(begin.suback, false);
        }
        for (question, reply) in inbox.questions {
            reply(vec![false; question.parts.len()]);
        }
        self.answers.release(Instant::now() + ANSWER_MAX, |_, _| false);
    }

    /// Returns the links that take some of these filters: the session of each here, and the filters.
    fn links_of(&self, filters: &[Box<str>]) -> Vec<(String, Vec<Box<str>>)> {
        let links = self.pullers.iter().filter(|(_, puller)| puller.is_wanted());
        let links = links.map(|(key, puller)| {
            let taken = filters.iter().filter(|filter| puller.takes(filter)).cloned().collect();
            (key.session(), taken)
        });
        links.filter(|(_, filters): &(_, Vec<_>)| !filters.is_empty()).collect()
    }

    /// Asks the node that runs a link, which may be this one.
    fn ask(&mut self, now: Instant, number: u64, question: Question) {
        let shared = self.shared.clone();
        let answered = move |answer| {
            sync::lock(&shared.inbox).answered.push((number, answer));
            shared.wake();
        };
        let is_link =
            |(key, puller): &(&Key, &Puller)| key.session() == question.session && puller.is_wanted();
        if !self.pullers.iter().any(|link| is_link(&link)) {
            // It was switched off or removed meanwhile.
            return answered(Answer::Parts(vec![true; question.parts.len()]));
        }
        let nodes = self.nodes.clone().filter(|_| !self.admin.hosts_internal(&question.session));
        let Some(nodes) = nodes else {
            return self.answer(now, question, Box::new(move |parts| answered(Answer::Parts(parts))));
        };
        let leader = nodes.leader_of(&question.session);
        let Some(node) = leader.filter(|leader| *leader != self.registry.own().node) else {
            return answered(Answer::Lost);
        };
        let reply = move |answer| {
            answered(match answer {
                Answered::Bytes(bytes) => Answer::Parts(decode_answer(&bytes)),
                Answered::Unsupported => Answer::Unsupported,
                Answered::Lost => Answer::Lost,
            });
        };
        nodes.ask(&node, question.encode(), ANSWER_ARRIVES, Box::new(reply));
    }

    /// Answers a question about a link, at once or when the other cluster has answered.
    fn answer(&mut self, now: Instant, question: Question, reply: Reply) {
        let Question { session, parts } = question;
        let is_here = self.admin.hosts_internal(&session);
        let found = self.pullers.iter_mut().find(|(key, _)| key.session() == session).map(|(_, it)| it);
        if let Some(answer) = answer_at_once(is_here, found.as_deref()) {
            return reply(vec![answer; parts.len()]);
        }
        let Some(Puller { running: Some(running), starts, .. }) = found else {
            return reply(vec![false; parts.len()]);
        };
        let Some(watch) = self.watch.as_ref().filter(|_| !running.is_new) else {
            return reply(vec![false; parts.len()]);
        };
        let mut wanted = Vec::new();
        for filters in &parts {
            let locals: Vec<&str> = filters.iter().filter_map(|filter| wanted_as(watch, filter)).collect();
            // The node may learn of a shared group, or of a node that was cut off, a moment later.
            let are_wanted = locals.iter().all(|local| watch.is_wanted(None, local));
            let of_part = are_wanted.then(|| {
                locals.iter().for_each(|local| running.interest.set(local, true));
                locals.iter().flat_map(|local| running.interest.remote(local)).collect::<Vec<_>>()
            });
            wanted.push(of_part);
        }
        running.flush();
        let parts = wanted.into_iter().map(|filters| {
            let Some(filters) = filters else { return Part::Is(false) };
            let shared = self.shared.clone();
            let (until, is_over) = Until::new(move || shared.wake());
            running.runner.hold(filters, until);
            Part::Waits(is_over)
        });
        let (parts, start) = (parts.collect(), *starts);
        self.answers.push(OpenQuestion { session, start, parts, until: now + ANSWER_MAX, reply });
    }
}

/// Returns the answer to a question about a link, if it depends on no filters. A node that does not have the session of
/// the link cannot know what the other cluster has.
fn answer_at_once(is_here: bool, link: Option<&Puller>) -> Option<bool> {
    if !is_here {
        return Some(false);
    }
    // Nobody waits for a link that is off, does not exist or does not start.
    let is_awaited = link.is_some_and(|puller| puller.is_wanted() && puller.failure.is_none());
    (!is_awaited).then_some(true)
}

/// Returns what the interest names a filter of a client: a group over all linked clusters as such, and another shared
/// subscription by its filter.
fn wanted_as<'a>(watch: &InterestWatch, filter: &'a str) -> Option<&'a str> {
    if watch.is_linked_group(filter) {
        return Some(filter);
    }
    Some(Subscription::parse(filter).ok()?.filter.as_str())
}

/// Ends the waits whose time is over, while the thread is busy with something else.
pub(super) fn end_overdue(subacks: &mut Subacks, shared: &Shared, admin: &Admin) {
    let now = Instant::now();
    for suback in sync::lock(&shared.inbox).take_overdue(now) {
        admin.links_answered(suback, false);
    }
    if subacks.timeout().is_some_and(|due| due <= now) {
        subacks.handle_timeout(now);
    }
    while let Some((suback, is_confirmed)) = subacks.poll_done() {
        admin.links_answered(suback, is_confirmed);
    }
}

#[cfg(test)]
mod tests;
