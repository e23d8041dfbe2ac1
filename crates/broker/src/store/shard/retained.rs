//! The shard's part of the retained messages.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;

use super::MemoryShard;
use crate::admin::{RetainedInfo, RetainedMessage};
use crate::ids::Time;
use crate::message::Message;
use crate::retained::{PageBudget, RetainedFull};

/// Topics looked at for one that has expired, each time.
const SWEPT_AT_ONCE: usize = 1000;

impl MemoryShard {
    pub(super) fn retain(&mut self, message: Message) -> ReasonCode {
        let limits = &self.settings.retained;
        let (count, bytes) = (self.retained.len() as u64, self.retained.bytes());
        let room = |more: u64, more_bytes: u64| {
            let (others, others_bytes) = self.load.retained_elsewhere(self.id);
            count + others + more <= limits.messages_max
                && bytes + others_bytes + more_bytes <= limits.bytes_max.bytes()
        };
        match self.retained.set(message, room) {
            Ok(()) => ReasonCode::Success,
            Err(RetainedFull) => {
                self.counters.retained_refused += 1;
                ReasonCode::QuotaExceeded
            }
        }
    }

    pub(crate) fn retained_len(&self) -> usize {
        self.retained.len()
    }

    pub(crate) fn retained_bytes(&self) -> u64 {
        self.retained.bytes()
    }

    /// See [`RetainedShard::page`](crate::retained::RetainedShard::page).
    pub(crate) fn retained_page(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        budget: &mut PageBudget,
        found: &mut Vec<Message>,
    ) -> Option<Box<str>> {
        self.retained.page(now, filter, after, budget, found)
    }

    /// See [`RetainedShard::list`](crate::retained::RetainedShard::list).
    pub(crate) fn retained_list(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<RetainedInfo>, Option<Box<str>>) {
        self.retained.list(now, filter, after, limit)
    }

    /// One message with its payload.
    pub(crate) fn retained_whole(&self, now: Time, topic: &str) -> Option<RetainedMessage> {
        self.retained.whole(now, topic)
    }

    /// About once a second: some of what has expired goes, and others are told how much there is.
    pub(crate) fn tend_retained(&mut self, now: Time) {
        self.retained.sweep(now, SWEPT_AT_ONCE);
        let figures = &self.load.retained[self.id.index()];
        figures.messages.store(self.retained.len() as u64, Relaxed);
        figures.bytes.store(self.retained.bytes(), Relaxed);
    }
}
