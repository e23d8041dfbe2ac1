use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use link::{NodeId, Time};

/// Maximum size of a question, in bytes.
pub const QUESTION_MAX: usize = 256 << 10;
/// Maximum size of an answer, in bytes.
pub const ANSWER_MAX: usize = 4 << 20;
/// Maximum number of this node's questions that wait for answers.
pub const WAITING_MAX: usize = 64;
/// Maximum number of one other node's questions that are answered here at the same time.
pub const ANSWERING_MAX: usize = 16;
/// Maximum size of a part of an answer, in bytes. More urgent frames are sent between two parts.
pub const PART: usize = 64 << 10;

/// Question of the owner of one cluster router to the owner of another. The routers do not interpret it.
#[derive(Clone, Debug)]
pub struct Question {
    /// Key that identifies the answer; used once in an incarnation of the node.
    pub key: u64,
    /// Name of the node.
    pub to: Box<str>,
    pub bytes: Bytes,
    /// Maximum time to wait for the answer.
    pub within: Duration,
}

/// Question of another node, to be answered by [`RouterCommand::Answer`](crate::RouterCommand::Answer).
#[derive(Clone, Debug)]
pub struct ReceivedQuestion {
    pub asker: Asker,
    /// Name of the node.
    pub name: Box<str>,
    pub bytes: Bytes,
}

/// Node that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub(crate) node: NodeId,
    /// Epoch of the link, which may have changed since.
    pub(crate) link_epoch: u8,
    pub(crate) number: u64,
}

/// Reason why there is no answer. A question that changes state may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// No node of the cluster has this name.
    Unknown,
    /// The node is not reachable.
    Down,
    /// The version of the node does not support questions.
    Old,
    /// The maximum number of questions is reached, here or there.
    Busy,
    /// The question or the answer is larger than the maximum.
    Large,
    /// The node there does not answer.
    Declined,
    /// No answer arrived in time.
    Late,
}

/// Kind of a part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Last,
    More,
    Not(Unanswered),
}

impl Part {
    pub fn byte(self) -> u8 {
        match self {
            Self::Last => 0,
            Self::Not(Unanswered::Busy) => 1,
            Self::Not(Unanswered::Large) => 2,
            Self::Not(_) => 3,
            Self::More => 4,
        }
    }

    pub fn of_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Last,
            1 => Self::Not(Unanswered::Busy),
            2 => Self::Not(Unanswered::Large),
            4 => Self::More,
            // This includes reasons of a later version.
            _ => Self::Not(Unanswered::Declined),
        }
    }
}

/// Maximum time for which a node that leaves waits until it has answered the others.
const ANSWERS_MAX: Duration = Duration::from_secs(2);
/// Time that an answer has to arrive before its node is no member any more.
const ANSWER_ARRIVES: Duration = Duration::from_millis(200);

/// Questions of this node's owner until their outcomes are polled, and questions of other nodes for it.
#[derive(Debug, Default)]
pub struct Questions {
    waiting: Waiting,
    outcomes: VecDeque<(u64, Result<Bytes, Unanswered>)>,
    received: VecDeque<ReceivedQuestion>,
    /// Number of questions without an answer.
    pub unanswered_count: u64,
    /// Time of the last answer to another node.
    answered_at: Option<Time>,
}

impl Questions {
    /// Adds a question of this node before it is sent.
    ///
    /// # Errors
    /// [`Unanswered::Busy`] when the maximum is reached.
    pub fn insert(&mut self, number: u64, to: NodeId, until: Time) -> Result<(), Unanswered> {
        self.waiting.insert(number, to, until)
    }

    /// Removes a question that was not sent.
    pub fn remove(&mut self, number: u64) {
        self.waiting.by_number.remove(&number);
    }

    /// Ends a question without an answer.
    pub fn fail(&mut self, number: u64, why: Unanswered) {
        self.unanswered_count += 1;
        self.outcomes.push_back((number, Err(why)));
    }

    /// Handles a part of an answer.
    pub fn handle_part(&mut self, from: NodeId, number: u64, part: Part, bytes: &[u8]) {
        match self.waiting.part(from, number, part, bytes) {
            Some(Ok(answer)) => self.outcomes.push_back((number, Ok(answer))),
            Some(Err(why)) => self.fail(number, why),
            None => {}
        }
    }

    /// Ends the questions to a node whose link is down, or that has restarted: their answers will not arrive.
    pub fn lost(&mut self, node: NodeId) {
        for number in self.waiting.lost(node) {
            self.fail(number, Unanswered::Down);
        }
    }

    /// Ends the questions whose time is over.
    pub fn expire(&mut self, now: Time) {
        for number in self.waiting.overdue(now) {
            self.fail(number, Unanswered::Late);
        }
    }

    /// Returns the time by which [`Self::expire`] must be called.
    pub fn due(&self) -> Time {
        self.waiting.due()
    }

    /// Returns the outcome of a question of this node, with its number.
    pub fn poll_outcome(&mut self) -> Option<(u64, Result<Bytes, Unanswered>)> {
        self.outcomes.pop_front()
    }

    /// Notes that another node was answered.
    pub fn answered(&mut self, now: Time) {
        self.answered_at = Some(now);
    }

    /// Returns the time from which a node may end its membership, which was requested at `since`. The request may be a
    /// question of another node, and the answer of a node that is no member any more is not read. `is_answering` says
    /// that other nodes wait for answers.
    pub fn answers_arrive(&self, since: Time, is_answering: bool) -> Time {
        let last = since.after(ANSWERS_MAX);
        let arrives = self.answered_at.map_or(since, |at| at.after(ANSWER_ARRIVES));
        if is_answering { last } else { arrives.clamp(since, last) }
    }

    /// Adds a question of another node.
    pub fn receive(&mut self, question: ReceivedQuestion) {
        self.received.push_back(question);
    }

    /// Returns a question of another node.
    pub fn poll_received(&mut self) -> Option<ReceivedQuestion> {
        self.received.pop_front()
    }
}

/// Questions of one node, until they are answered.
#[derive(Debug, Default)]
struct Waiting {
    by_number: BTreeMap<u64, Wait>,
}

#[derive(Debug)]
struct Wait {
    to: NodeId,
    until: Time,
    /// Received parts of the answer.
    parts: Vec<u8>,
}

impl Waiting {
    /// Adds a question.
    ///
    /// # Errors
    /// [`Unanswered::Busy`] when the maximum is reached.
    fn insert(&mut self, number: u64, to: NodeId, until: Time) -> Result<(), Unanswered> {
        if self.by_number.len() >= WAITING_MAX {
            return Err(Unanswered::Busy);
        }
        self.by_number.insert(number, Wait { to, until, parts: Vec::new() });
        Ok(())
    }

    /// Handles a part of an answer, and returns the whole answer once it is complete. Parts for unknown questions are
    /// dropped.
    fn part(
        &mut self,
        from: NodeId,
        number: u64,
        part: Part,
        bytes: &[u8],
    ) -> Option<Result<Bytes, Unanswered>> {
        let wait = self.by_number.get_mut(&number).filter(|wait| wait.to == from)?;
        let whole = match part {
            Part::Not(why) => Err(why),
            _ if wait.parts.len() + bytes.len() > ANSWER_MAX => Err(Unanswered::Large),
            Part::More => {
                wait.parts.extend_from_slice(bytes);
                return None;
            }
            Part::Last => {
                wait.parts.extend_from_slice(bytes);
                Ok(std::mem::take(&mut wait.parts).into())
            }
        };
        self.by_number.remove(&number);
        Some(whole)
    }

    /// Takes the questions that are given up at `now`.
    fn overdue(&mut self, now: Time) -> Vec<u64> {
        self.take(|wait| wait.until <= now)
    }

    /// Takes the questions to a node whose link is down, or that has restarted.
    fn lost(&mut self, node: NodeId) -> Vec<u64> {
        self.take(|wait| wait.to == node)
    }

    /// Returns the time at which the first question is given up.
    fn due(&self) -> Time {
        self.by_number.values().map(|wait| wait.until).min().unwrap_or(Time::NEVER)
    }

    fn take(&mut self, is_over: impl Fn(&Wait) -> bool) -> Vec<u64> {
        self.by_number.extract_if(.., |_, wait| is_over(wait)).map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    #[test]
    fn an_answer_comes_in_parts_and_from_the_node_that_was_asked() {
        let mut waiting = Waiting::default();
        waiting.insert(7, A, Time(10)).unwrap();
        assert_eq!(waiting.part(B, 7, Part::Last, b"not asked"), None);
        assert_eq!(waiting.part(A, 8, Part::Last, b"no question"), None);
        assert_eq!(waiting.part(A, 7, Part::More, b"an "), None);
        assert_eq!(waiting.part(A, 7, Part::Last, b"answer"), Some(Ok(Bytes::from_static(b"an answer"))));
        assert_eq!(waiting.part(A, 7, Part::Last, b"again"), None);
        assert_eq!(waiting.due(), Time::NEVER);
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let mut waiting = Waiting::default();
        waiting.insert(7, A, Time(10)).unwrap();
        let part = vec![0; PART];
        let given_up =
            std::iter::repeat_with(|| waiting.part(A, 7, Part::More, &part)).take(ANSWER_MAX / PART + 1);
        assert_eq!(given_up.last(), Some(Some(Err(Unanswered::Large))));
    }

    #[test]
    fn questions_end_in_time_or_with_their_node_and_have_a_bound() {
        let mut waiting = Waiting::default();
        for number in 0..WAITING_MAX as u64 {
            waiting.insert(number, if number == 0 { B } else { A }, Time(number + 5)).unwrap();
        }
        assert_eq!(waiting.insert(99, A, Time(1)), Err(Unanswered::Busy));
        assert_eq!(waiting.due(), Time(5));
        assert_eq!(waiting.overdue(Time(6)), [0, 1]);
        assert!(waiting.lost(B).is_empty());
        assert_eq!(waiting.lost(A).len(), WAITING_MAX - 2);
        assert_eq!(waiting.due(), Time::NEVER);
    }

    #[test]
    fn each_question_has_one_outcome() {
        let mut questions = Questions::default();
        for (number, until) in [(1, 10), (2, 20), (3, 30), (4, 30)] {
            questions.insert(number, A, Time(until)).unwrap();
        }
        questions.handle_part(A, 2, Part::Last, b"two");
        questions.remove(3);
        questions.expire(Time(10));
        questions.lost(A);
        questions.handle_part(A, 4, Part::Last, b"too late");
        let outcomes: Vec<_> = std::iter::from_fn(|| questions.poll_outcome()).collect();
        let two = Ok(Bytes::from_static(b"two"));
        assert_eq!(outcomes, [(2, two), (1, Err(Unanswered::Late)), (4, Err(Unanswered::Down))]);
        assert_eq!((questions.unanswered_count, questions.due()), (2, Time::NEVER));
    }

    #[test]
    fn a_node_leaves_when_its_answers_have_arrived_or_take_too_long() {
        let (begin, second) = (Time(10_000_000), Duration::from_secs(1));
        let mut questions = Questions::default();
        assert_eq!(questions.answers_arrive(begin, false), begin);
        assert_eq!(questions.answers_arrive(begin, true), begin.after(2 * second));
        questions.answered(Time(1));
        assert_eq!(questions.answers_arrive(begin, false), begin, "it has arrived long ago");
        questions.answered(begin);
        assert_eq!(questions.answers_arrive(begin, false), begin.after(second / 5));
        questions.answered(begin.after(5 * second));
        assert_eq!(questions.answers_arrive(begin, false), begin.after(2 * second));
    }

    #[test]
    fn every_part_byte_has_a_meaning() {
        for part in [Part::Last, Part::More, Part::Not(Unanswered::Busy), Part::Not(Unanswered::Large)] {
            assert_eq!(Part::of_byte(part.byte()), part);
        }
        assert_eq!(Part::of_byte(200), Part::Not(Unanswered::Declined));
    }
}
