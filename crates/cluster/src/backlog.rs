use std::collections::VecDeque;

use broker::{Token, WorkerId};
use bytes::Bytes;
use link::Lane;

/// Copies of retained messages for one peer that its link had no room for. They are sent once there is room. When the
/// backlog itself is full, single copies are no longer tracked, and everything is copied again.
#[derive(Debug, Default)]
pub struct Backlog {
    waiting: VecDeque<RetainedCopy>,
    bytes: u64,
    is_missing: bool,
}

/// One copy of a retained message.
#[derive(Debug)]
pub struct RetainedCopy {
    pub lane: Lane,
    pub frame: Bytes,
    /// Worker that sends the next page when this copy has arrived.
    pub waits: Option<(WorkerId, Token)>,
}

/// Maximum bytes that wait. A page of every worker fits, so each attempt makes progress.
const BYTES_MAX: u64 = 16 << 20;

impl Backlog {
    /// Queues a copy. Returns false when there is no room.
    pub fn push(&mut self, copy: RetainedCopy) -> bool {
        let bytes = self.bytes + copy.frame.len() as u64;
        // A worker waits for the end of a page and sends no more meanwhile.
        if !self.waiting.is_empty() && bytes > BYTES_MAX && copy.waits.is_none() {
            self.is_missing = true;
            return false;
        }
        self.bytes = bytes;
        self.waiting.push_back(copy);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_missing
    }

    pub fn front(&self) -> Option<&RetainedCopy> {
        self.waiting.front()
    }

    pub fn pop(&mut self) -> Option<RetainedCopy> {
        let copy = self.waiting.pop_front()?;
        self.bytes -= copy.frame.len() as u64;
        Some(copy)
    }

    /// Returns whether everything must be copied again. Returns true only once, when nothing waits any more.
    pub fn take_missing(&mut self) -> bool {
        self.waiting.is_empty() && std::mem::take(&mut self.is_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(length: usize) -> RetainedCopy {
        RetainedCopy { lane: Lane::assured(0), frame: vec![0; length].into(), waits: None }
    }

    #[test]
    fn waiting_copies_are_bounded_and_missing_ones_are_reported_once() {
        let mut backlog = Backlog::default();
        let most = BYTES_MAX as usize;
        assert!(backlog.push(copy(most + 1)), "one copy always fits");
        assert!(!backlog.push(copy(1)));
        assert!(!backlog.take_missing(), "not while copies wait");
        assert_eq!(backlog.pop().map(|copy| copy.frame.len()), Some(most + 1));
        assert!(!backlog.is_empty() && backlog.take_missing());
        assert!(backlog.is_empty() && !backlog.take_missing());
        assert!(backlog.push(copy(most)));
        assert_eq!(backlog.bytes, BYTES_MAX);
        assert!(backlog.front().is_some() && !backlog.take_missing());
    }
}
