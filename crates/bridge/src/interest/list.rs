//! The list of the subscriptions of a remote session, in pages.
//!
//! 1. The relay subscribes to the topic of the answers.
//! 2. It publishes the position of the first filter that it wants to know: 0, in decimal.
//! 3. The answer has a line with this position and the number of all filters, and a line for each filter of the page.
//! 4. It asks for the next page, until it has all.

use std::time::Duration;

use mqtt::Subscription;

use crate::time::Time;

/// State of the list.
#[derive(Debug)]
pub(crate) struct List {
    /// True while the remote session may have subscriptions that the relay does not know.
    is_needed: bool,
    phase: Phase,
    /// Position of the next page.
    offset: usize,
    /// Size of all pages so far, in bytes.
    size: usize,
    /// Time at which it began on this connection; `None` while it is not open, or has not begun.
    began: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The list does not begin on this connection, or there is none.
    Idle,
    /// The subscription of the answers is to be sent.
    Begins,
    /// The subscription of the answers was sent.
    Subscribing,
    /// A page is to be asked for.
    Due { attempt: u8 },
    /// A page was asked for.
    Asked { attempt: u8, until: Time },
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Subscribe to the topic of the answers.
    Subscribe,
    /// Ask for the page at this position.
    Ask(usize),
}

/// Filters of one answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page<'a> {
    pub(crate) filters: Vec<&'a str>,
    /// True when the list is complete.
    pub(crate) is_last: bool,
}

/// Time for one answer. Questions and answers have QoS 0, so one of them may be lost.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Number of questions for one page.
const ATTEMPTS_MAX: u8 = 2;
/// Maximum size of an answer, which has 32 KiB and a filter more at most.
const PAGE_MAX: usize = 128 << 10;
/// Maximum size of all answers of a list.
const SIZE_MAX: usize = 128 << 20;
/// Maximum time of a list, with [`EACH_KIB`] for each KiB of its answers. Subscriptions that are not wanted any more do
/// not end before.
const LIST_MAX: Duration = Duration::from_secs(300);
const EACH_KIB: Duration = Duration::from_millis(64);

impl Default for List {
    fn default() -> Self {
        Self { is_needed: true, phase: Phase::Idle, offset: 0, size: 0, began: None }
    }
}

impl List {
    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Notes that the session is new.
    pub(crate) fn is_not_needed(&mut self) {
        *self = Self { is_needed: false, ..Self::default() };
    }

    /// Begins on a new connection, if it is needed.
    pub(crate) fn begin(&mut self) {
        (self.offset, self.size, self.began) = (0, 0, None);
        self.phase = if self.is_needed { Phase::Begins } else { Phase::Idle };
    }

    /// Ends without a result.
    pub(crate) fn end(&mut self) {
        (self.phase, self.began) = (Phase::Idle, None);
    }

    /// Returns whether filters of a new list are still unknown, and it has not begun.
    pub(crate) fn has_to_begin(&self) -> bool {
        self.is_needed && matches!(self.phase, Phase::Idle | Phase::Begins)
    }

    /// Returns whether pages are to come.
    pub(crate) fn is_open(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Returns what is to be sent now.
    pub(crate) fn next(&mut self, now: Time, may_subscribe: bool) -> Option<Progress> {
        match self.phase {
            Phase::Begins if may_subscribe => {
                (self.phase, self.began) = (Phase::Subscribing, Some(now));
                Some(Progress::Subscribe)
            }
            Phase::Due { attempt } => {
                self.phase = Phase::Asked { attempt, until: now.after(ANSWER_MAX) };
                Some(Progress::Ask(self.offset))
            }
            _ => None,
        }
    }

    /// Notes that answers will arrive.
    pub(crate) fn may_ask(&mut self) {
        if self.phase == Phase::Subscribing {
            self.phase = Phase::Due { attempt: 1 };
        }
    }

    /// Returns the time at which it takes too long.
    fn until(&self) -> Option<Time> {
        let kib = u32::try_from(self.size >> 10).unwrap_or(u32::MAX);
        Some(self.began?.after(LIST_MAX.saturating_add(EACH_KIB.saturating_mul(kib))))
    }

    pub(crate) fn takes_too_long(&self, now: Time) -> bool {
        self.until().is_some_and(|until| until <= now)
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        let of_answer = match self.phase {
            Phase::Asked { until, .. } => Some(until),
            _ => None,
        };
        of_answer.into_iter().chain(self.until()).min()
    }

    /// Waits again for the answer.
    pub(crate) fn wait_again(&mut self, now: Time) {
        if let Phase::Asked { until, .. } = &mut self.phase {
            *until = now.after(ANSWER_MAX);
        }
    }

    /// Asks again for the same page. Returns false when that was done often enough.
    pub(crate) fn ask_again(&mut self) -> bool {
        match self.phase {
            Phase::Asked { attempt, .. } if attempt < ATTEMPTS_MAX => {
                self.phase = Phase::Due { attempt: attempt + 1 };
                true
            }
            _ => false,
        }
    }

    /// Handles an answer. Returns `None` when it was not asked for.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn page<'a>(
        &mut self,
        payload: &'a [u8],
        total_max: usize,
    ) -> Result<Option<Page<'a>>, &'static str> {
        if !matches!(self.phase, Phase::Asked { .. } | Phase::Due { attempt: 2.. }) {
            return Ok(None);
        }
        if payload.len() > PAGE_MAX {
            return Err("an answer is too large");
        }
        let text = std::str::from_utf8(payload).map_err(|_| "an answer is no text")?;
        let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut numbers = head.split(' ').map(str::parse::<usize>);
        let (Some(Ok(offset)), Some(Ok(total)), None) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err("an answer does not begin with two numbers");
        };
        if offset != self.offset {
            return Ok(None);
        }
        self.size += payload.len();
        if total > total_max || self.size > SIZE_MAX {
            return Err("it has too many filters");
        }
        let filters: Vec<&str> = rest.lines().collect();
        if filters.iter().any(|filter| Subscription::parse(filter).is_err()) {
            return Err("a line is no Topic Filter");
        }
        let next = offset.saturating_add(filters.len());
        let is_last = next >= total;
        if !is_last && filters.is_empty() {
            return Err("a page is empty");
        }
        if next > total_max {
            return Err("it has too many filters");
        }
        self.offset = next;
        if is_last {
            self.is_needed = false;
            self.end();
        } else {
            self.phase = Phase::Due { attempt: 1 };
        }
        Ok(Some(Page { filters, is_last }))
    }
}
