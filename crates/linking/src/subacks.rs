//! SUBACKs of this node that wait until linked clusters have the subscriptions.
//!
//! A SUBSCRIBE has a part for each link that takes any of its filters. The node that runs the link is asked whether the
//! other cluster has answered the filters of a part. Filters without an answer are asked for again, perhaps at another
//! node: a link can move. A SUBACK leaves when all of its parts are answered, or its time is over.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{ConnectionId, WaitingSuback};

/// Maximum number of SUBACKs that wait, and of bytes of their filters.
pub const WAITS_MAX: usize = 10_000;
pub const BYTES_MAX: usize = 32 << 20;
/// [`BYTES_MAX`] of one connection, so that it leaves room to others.
const CONNECTION_BYTES_MAX: usize = 2 << 20;
/// Maximum number of questions about one link without an answer, and of those about all links. All links may run on one
/// node, which answers 16 questions of this one at a time: the rest is for requests of operators.
const OPEN_MAX: usize = 4;
const OPEN_TOTAL_MAX: usize = 8;
/// Maximum number of parts in a question, and of bytes of their filters. A part alone may have more bytes.
const PARTS_MAX: usize = 256;
const QUESTION_BYTES: usize = 64 << 10;
/// Maximum number of bytes, and of filters, of a part; a single filter may be longer.
const PART_BYTES: usize = 32 << 10;
const PART_FILTERS: usize = 1_000;
/// Time until filters without an answer are asked for again.
const AGAIN: Duration = Duration::from_millis(100);

/// Result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answers to the parts: true if the other cluster has answered the filters, or need not.
    Parts(Vec<bool>),
    /// The node does not know such questions: its version is an earlier one.
    Unsupported,
    /// No answer has come.
    Lost,
}

/// A request to the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The SUBACK may be sent. `is_confirmed` is false when a part has no answer.
    Done { suback: WaitingSuback, is_confirmed: bool },
    /// Ask the node that runs the link with this session here about these parts. [`Subacks::answered`] has the result.
    Ask { number: u64, session: String, parts: Vec<Vec<Box<str>>> },
}

/// SUBACKs that wait for links.
///
/// **Invariant:** each part without an answer of a waiting SUBACK is in a queue, in an open question, or waits to be
/// asked for again. Only the SUBACK has its filters, so that they end with it.
#[derive(Debug, Default)]
pub struct Subacks {
    waits: BTreeMap<u64, Wait>,
    of_connections: HashMap<ConnectionId, Vec<u64>>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Number of the last SUBACK or question.
    last: u64,
    /// Bytes of the filters of SUBACKs that wait.
    bytes: usize,
    /// Parts to be asked for, by the session of their link here.
    queues: BTreeMap<Arc<str>, Queue>,
    /// Session of the last question. Links take turns.
    last_asked: Arc<str>,
    open: BTreeMap<u64, (Arc<str>, Vec<PartId>)>,
    /// Parts to be asked for again, by time.
    again: VecDeque<(Instant, PartId)>,
    done: VecDeque<(WaitingSuback, bool)>,
    questions: VecDeque<Output>,
}

#[derive(Debug)]
struct Wait {
    suback: WaitingSuback,
    until: Instant,
    parts: Vec<Part>,
    /// Number of parts without an answer.
    unanswered: usize,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<PartId>,
    /// Number of questions without an answer.
    open: usize,
}

/// Filters of one SUBSCRIBE that one link takes.
#[derive(Debug)]
struct Part {
    /// Session of the link here.
    session: Arc<str>,
    filters: Vec<Box<str>>,
}

/// A part of a SUBACK, which may not wait any more.
#[derive(Clone, Copy, Debug)]
struct PartId {
    wait: u64,
    index: usize,
}

impl Subacks {
    /// Begins to wait for links. Each of `links` has the session of a link here, and the filters that it takes.
    pub fn begin(
        &mut self,
        now: Instant,
        suback: WaitingSuback,
        within: Duration,
        links: Vec<(String, Vec<Box<str>>)>,
    ) {
        let bytes: usize = links.iter().map(|(_, filters)| bytes_of(filters)).sum();
        let of_connection = self.of_connections.get(&suback.connection).into_iter().flatten();
        let of_connection: usize =
            of_connection.filter_map(|number| self.waits.get(number)).map(|wait| wait.bytes).sum();
        let is_full = self.waits.len() >= WAITS_MAX
            || self.bytes.saturating_add(bytes) > BYTES_MAX
            || of_connection.saturating_add(bytes) > CONNECTION_BYTES_MAX;
        if links.is_empty() || is_full {
            self.done.push_back((suback, links.is_empty()));
            return;
        }
        self.last += 1;
        let (number, until) = (self.last, now + within);
        let mut parts = Vec::new();
        for (session, filters) in links {
            let session: Arc<str> = session.into();
            let queue = self.queues.entry(session.clone()).or_default();
            for filters in split(filters) {
                queue.parts.push_back(PartId { wait: number, index: parts.len() });
                parts.push(Part { session: session.clone(), filters });
            }
        }
        self.bytes += bytes;
        let unanswered = parts.len();
        self.waits.insert(number, Wait { suback, until, parts, unanswered, bytes });
        self.of_connections.entry(suback.connection).or_default().push(number);
        self.deadlines.insert((until, number));
        self.ask();
    }

    /// Forgets the SUBACKs of a connection that is closed.
    pub fn cancel(&mut self, connection: ConnectionId) {
        for number in self.of_connections.remove(&connection).unwrap_or_default() {
            self.remove(number);
        }
    }

    /// Handles the result of a question.
    pub fn answered(&mut self, now: Instant, number: u64, answer: Answer) {
        let Some((session, parts)) = self.open.remove(&number) else { return };
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.open -= 1;
        }
        for (at, part) in parts.into_iter().enumerate() {
            let is_answered = match &answer {
                Answer::Parts(answers) => answers.get(at).copied().unwrap_or(false),
                Answer::Unsupported => true,
                Answer::Lost => false,
            };
            let Some(wait) = self.waits.get_mut(&part.wait) else { continue };
            if !is_answered {
                self.again.push_back((now + AGAIN, part));
                continue;
            }
            wait.unanswered -= 1;
            if wait.unanswered == 0 {
                self.end(part.wait, true);
            }
        }
        self.ask();
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub fn timeout(&self) -> Option<Instant> {
        let again = self.again.front().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        again.into_iter().chain(deadline).min()
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((until, number)) = self.deadlines.first().copied()
            && until <= now
        {
            self.end(number, false);
        }
        while let Some((_, id)) = self.again.pop_front_if(|(at, _)| *at <= now) {
            if let Some(part) = part_of(&self.waits, id) {
                self.queues.entry(part.session.clone()).or_default().parts.push_back(id);
            }
        }
        self.ask();
    }

    /// Ends all waits: the links stop.
    pub fn end_all(&mut self) {
        for number in self.waits.keys().copied().collect::<Vec<_>>() {
            self.end(number, false);
        }
    }

    /// Returns a SUBACK that may be sent, and whether it is confirmed: [`Output::Done`].
    pub fn poll_done(&mut self) -> Option<(WaitingSuback, bool)> {
        self.done.pop_front()
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        let done = self.poll_done().map(|(suback, is_confirmed)| Output::Done { suback, is_confirmed });
        done.or_else(|| self.questions.pop_front())
    }

    /// Number of SUBACKs that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.waits.len()
    }

    fn end(&mut self, number: u64, is_confirmed: bool) {
        let Some(suback) = self.remove(number) else { return };
        if let Some(numbers) = self.of_connections.get_mut(&suback.connection) {
            numbers.retain(|it| *it != number);
            if numbers.is_empty() {
                self.of_connections.remove(&suback.connection);
            }
        }
        self.done.push_back((suback, is_confirmed));
    }

    fn remove(&mut self, number: u64) -> Option<WaitingSuback> {
        let wait = self.waits.remove(&number)?;
        self.deadlines.remove(&(wait.until, number));
        self.bytes -= wait.bytes;
        Some(wait.suback)
    }

    /// Asks about what waits in queues, as far as there may be more questions. Links take turns.
    fn ask(&mut self) {
        while self.open.len() < OPEN_TOTAL_MAX
            && let Some(session) = self.next_session()
        {
            let (ids, parts) = self.next_parts(&session);
            if ids.is_empty() {
                continue;
            }
            self.last += 1;
            self.questions.push_back(Output::Ask { number: self.last, session: session.to_string(), parts });
            self.open.insert(self.last, (session.clone(), ids));
            self.last_asked = session;
        }
        self.queues.retain(|_, queue| queue.open > 0 || !queue.parts.is_empty());
    }

    /// Returns the next link that may be asked about: the first one after the last one.
    fn next_session(&self) -> Option<Arc<str>> {
        let last = &*self.last_asked;
        let after = self.queues.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
        let others = self.queues.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
        let may_ask = |(_, queue): &(_, &Queue)| queue.open < OPEN_MAX && !queue.parts.is_empty();
        after.chain(others).find(may_ask).map(|(session, _)| session.clone())
    }

    /// Takes the parts of a question out of a queue, with their filters.
    fn next_parts(&mut self, session: &str) -> (Vec<PartId>, Vec<Vec<Box<str>>>) {
        let (mut ids, mut parts, mut bytes) = (Vec::new(), Vec::new(), 0);
        let Some(queue) = self.queues.get_mut(session) else { return (ids, parts) };
        while ids.len() < PARTS_MAX
            && let Some(id) = queue.parts.pop_front()
        {
            let Some(part) = part_of(&self.waits, id) else { continue };
            let size = bytes_of(&part.filters);
            if !ids.is_empty() && bytes + size > QUESTION_BYTES {
                queue.parts.push_front(id);
                break;
            }
            bytes += size;
            ids.push(id);
            parts.push(part.filters.clone());
        }
        queue.open += usize::from(!ids.is_empty());
        (ids, parts)
    }

    /// Asserts the invariant of this type.
    #[cfg(test)]
    fn check_invariants(&self) {
        let in_queues = self.queues.values().flat_map(|queue| &queue.parts);
        let in_questions = self.open.values().flat_map(|(_, parts)| parts);
        let later = self.again.iter().map(|(_, part)| part);
        let mut parts: BTreeMap<u64, usize> = BTreeMap::new();
        in_queues.chain(in_questions).chain(later).for_each(|part| *parts.entry(part.wait).or_default() += 1);
        for (number, wait) in &self.waits {
            assert_eq!(parts.get(number), Some(&wait.unanswered), "parts of {:?}", wait.suback);
        }
        assert_eq!(self.deadlines.len(), self.waits.len(), "each SUBACK has a deadline");
        let by_connection: usize = self.of_connections.values().map(Vec::len).sum();
        assert_eq!(by_connection, self.waits.len(), "each SUBACK has a connection");
        assert_eq!(self.bytes, self.waits.values().map(|wait| wait.bytes).sum::<usize>(), "bytes");
        assert!(self.open.len() <= OPEN_TOTAL_MAX, "open questions");
        let is_full = self.open.len() == OPEN_TOTAL_MAX;
        for (session, queue) in &self.queues {
            let open = self.open.values().filter(|(of, _)| of == session).count();
            assert_eq!(queue.open, open, "open questions of {session}");
            assert!(is_full || queue.open == OPEN_MAX || queue.parts.is_empty(), "{session} could ask");
        }
    }
}

/// Bytes of memory of a filter without its text.
const EACH: usize = 16;

/// Number of bytes of filters, as they count for [`BYTES_MAX`].
pub fn bytes_of(filters: &[Box<str>]) -> usize {
    filters.iter().map(|filter| filter.len() + EACH).sum()
}

/// Returns a part, if its SUBACK waits.
fn part_of(waits: &BTreeMap<u64, Wait>, id: PartId) -> Option<&Part> {
    waits.get(&id.wait)?.parts.get(id.index)
}

/// Divides filters into parts of a maximum size.
fn split(filters: Vec<Box<str>>) -> Vec<Vec<Box<str>>> {
    let mut parts: Vec<Vec<Box<str>>> = Vec::new();
    let mut size = usize::MAX;
    for filter in filters {
        let more = filter.len() + EACH;
        match parts.last_mut() {
            Some(part) if size + more <= PART_BYTES && part.len() < PART_FILTERS => {
                size += more;
                part.push(filter);
            }
            _ => {
                size = more;
                parts.push(vec![filter]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests;
