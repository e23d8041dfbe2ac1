//! Questions about filters of links that run on this node, until the other clusters have answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time until a question is answered. What has no answer by then is asked for again.
pub const ANSWER_MAX: Duration = Duration::from_millis(250);

/// Takes the answers to the parts of a question.
pub type Reply = Box<dyn FnOnce(Vec<bool>) + Send>;

/// State of a part of a question.
#[derive(Debug)]
pub enum Part {
    /// The answer is known.
    Is(bool),
    /// The answer is true when the `Until` of this flag is dropped. The part is the owner of the flag.
    Waits(Arc<AtomicBool>),
}

/// A question that is not answered yet.
pub struct OpenQuestion {
    /// Session of the link here.
    pub session: String,
    /// Number of the start of its runner. After another start, what the runner has dropped says nothing.
    pub start: u64,
    pub parts: Vec<Part>,
    pub until: Instant,
    pub reply: Reply,
}

impl OpenQuestion {
    fn is_over(&self, now: Instant) -> bool {
        let is_known = |part: &Part| match part {
            Part::Is(_) => true,
            Part::Waits(is_over) => is_over.load(Ordering::Acquire),
        };
        self.until <= now || self.parts.iter().all(is_known)
    }
}

/// Questions that are not answered yet.
#[derive(Default)]
pub struct Answers(Vec<OpenQuestion>);

impl Answers {
    pub fn push(&mut self, question: OpenQuestion) {
        self.0.push(question);
    }

    /// Answers questions when all of their parts are known, or their time is over. `is_same` says whether the runner of
    /// a session is still that of this start, or the link waits for nothing any more.
    pub fn release(&mut self, now: Instant, is_same: impl Fn(&str, u64) -> bool) {
        for OpenQuestion { session, start, parts, reply, .. } in
            self.0.extract_if(.., |question| question.is_over(now))
        {
            let is_same = is_same(&session, start);
            let answers = parts.iter().map(|part| match part {
                Part::Is(answer) => *answer,
                Part::Waits(is_over) => is_same && is_over.load(Ordering::Acquire),
            });
            reply(answers.collect());
        }
    }

    /// Returns the time at which [`Self::release`] is due at the latest.
    pub fn timeout(&self) -> Option<Instant> {
        self.0.iter().map(|question| question.until).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use bridges::Until;

    use super::*;

    fn waiting() -> (Until, Part) {
        let (until, is_over) = Until::new(|| {});
        (until, Part::Waits(is_over))
    }

    fn question(now: Instant, parts: Vec<Part>) -> (OpenQuestion, Receiver<Vec<bool>>) {
        let (sender, receiver) = channel();
        let reply = Box::new(move |answers| sender.send(answers).expect("the test waits"));
        let session = "$linked/b".to_owned();
        (OpenQuestion { session, start: 3, parts, until: now + ANSWER_MAX, reply }, receiver)
    }

    #[test]
    fn a_question_is_answered_when_all_parts_are_or_in_time() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let (until, part) = waiting();
        let (open, answer) = question(now, vec![Part::Is(true), part, Part::Is(false)]);
        answers.push(open);
        answers.release(now, |_, _| true);
        assert!(answer.try_recv().is_err());
        assert_eq!(answers.timeout(), Some(now + ANSWER_MAX));
        drop(until);
        answers.release(now, |_, start| start == 3);
        assert_eq!(answer.try_recv(), Ok(vec![true, true, false]));
        let (until, part) = waiting();
        let (open, answer) = question(now, vec![Part::Is(true), part]);
        answers.push(open);
        answers.release(now + ANSWER_MAX, |_, _| true);
        assert_eq!(answer.try_recv(), Ok(vec![true, false]));
        assert_eq!(answers.timeout(), None);
        drop(until);
    }

    #[test]
    fn what_another_runner_has_dropped_is_no_answer() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let (until, part) = waiting();
        let (open, answer) = question(now, vec![part]);
        answers.push(open);
        drop(until);
        answers.release(now, |_, start| start == 4);
        assert_eq!(answer.try_recv(), Ok(vec![false]));
    }
}
