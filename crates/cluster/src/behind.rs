use std::collections::VecDeque;

use broker::{Token, WorkerId};
use bytes::Bytes;
use link::Lane;

/// Copies of retained messages for one peer that found no place in its link. They have one once there is room; what finds none here either is not
/// known singly any more, and all is copied again.
#[derive(Debug, Default)]
pub struct Behind {
    waiting: VecDeque<Copied>,
    bytes: u64,
    is_missing: bool,
}

/// One copy.
#[derive(Debug)]
pub struct Copied {
    pub lane: Lane,
    pub frame: Bytes,
    /// Who sends the next page when this has arrived.
    pub waits: Option<(WorkerId, Token)>,
}

/// Bytes that wait: a page of every worker fits, so that each time more of them arrive.
const BYTES_MAX: u64 = 16 << 20;

impl Behind {
    /// A copy waits for room. False when there is none for that either.
    pub fn push(&mut self, copied: Copied) -> bool {
        let bytes = self.bytes + copied.frame.len() as u64;
        // For the end of a page somebody waits, who sends no more meanwhile.
        if !self.waiting.is_empty() && bytes > BYTES_MAX && copied.waits.is_none() {
            self.is_missing = true;
            return false;
        }
        self.bytes = bytes;
        self.waiting.push_back(copied);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_missing
    }

    pub fn front(&self) -> Option<&Copied> {
        self.waiting.front()
    }

    pub fn pop(&mut self) -> Option<Copied> {
        let copied = self.waiting.pop_front()?;
        self.bytes -= copied.frame.len() as u64;
        Some(copied)
    }

    /// Whether everything has to be copied again; told once, when nothing waits any more.
    pub fn take_missing(&mut self) -> bool {
        self.waiting.is_empty() && std::mem::take(&mut self.is_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(length: usize) -> Copied {
        Copied { lane: Lane::assured(0), frame: vec![0; length].into(), waits: None }
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_missing_is_told_once() {
        let mut behind = Behind::default();
        let most = BYTES_MAX as usize;
        assert!(behind.push(copied(most + 1)), "one always fits");
        assert!(!behind.push(copied(1)));
        assert!(!behind.take_missing(), "not while something waits");
        assert_eq!(behind.pop().map(|copied| copied.frame.len()), Some(most + 1));
        assert!(!behind.is_empty() && behind.take_missing());
        assert!(behind.is_empty() && !behind.take_missing());
        assert!(behind.push(copied(most)));
        assert_eq!(behind.bytes, BYTES_MAX);
        assert!(behind.front().is_some() && !behind.take_missing());
    }
}
