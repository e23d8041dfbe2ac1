//! Retained messages that a connection's new subscriptions still have to get.

use std::collections::{BTreeMap, HashMap};

use crate::ids::ShardSet;
use crate::retained::{Indexes, ScanPosition};
use crate::route::Options;

/// Retained messages for one new subscription.
#[derive(Debug)]
pub(crate) struct RetainedJob {
    pub filter: Box<str>,
    pub options: Options,
    pub subscription_id: u32,
    /// First worker that still has to be asked. It is the one that is being asked.
    pub worker: u16,
    pub last_worker: u16,
    /// Shards that have no more messages.
    pub done: ShardSet,
    /// Position at which the worker continues.
    pub from: Option<ScanPosition>,
    /// Indexes of the shards of the worker that is being asked.
    pub indexes: Indexes,
    /// Workers that have not yet confirmed that their messages from before the subscription are on their way.
    pub pending_flushes: u16,
    /// Value of [`Flow::steps`](crate::connection::Flow::steps) at the subscription; 0 until the job has begun.
    pub since: u32,
    /// Number of the worker's request for confirmations.
    pub ticket: u32,
}

/// Jobs in the order of their subscriptions, at most one for each Topic Filter. A SUBSCRIBE that replaces a
/// subscription brings all its retained messages again [MQTT-3.3.1-9], so the rest of the earlier job is not needed.
#[derive(Debug, Default)]
pub(crate) struct RetainedJobs {
    by_number: BTreeMap<u64, RetainedJob>,
    by_filter: HashMap<Box<str>, u64>,
    next_number: u64,
    /// True while a page for the first job is on its way and another SUBSCRIBE has replaced its subscription.
    is_first_replaced: bool,
}

impl RetainedJobs {
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Adds a job behind all others. It replaces an earlier one for the same filter, as [`Self::replace`] does.
    pub fn push(&mut self, job: RetainedJob, is_page_asked: bool) {
        self.replace(&job.filter, is_page_asked);
        self.by_filter.insert(job.filter.clone(), self.next_number);
        self.by_number.insert(self.next_number, job);
        self.next_number += 1;
    }

    /// Removes the job for a filter whose subscription is being replaced. If its page is on the way, it stays until
    /// the page arrives, and [`Self::take_replaced`] removes it.
    pub fn replace(&mut self, filter: &str, is_page_asked: bool) {
        let Some(number) = self.by_filter.remove(filter) else { return };
        if is_page_asked && self.by_number.first_key_value().is_some_and(|(first, _)| *first == number) {
            self.is_first_replaced = true;
        } else {
            self.remove(number);
        }
    }

    /// Removes the first job if its subscription was replaced. Returns whether it was.
    pub fn take_replaced(&mut self) -> bool {
        let was_replaced = std::mem::take(&mut self.is_first_replaced);
        if was_replaced && let Some((number, _)) = self.by_number.first_key_value() {
            self.remove(*number);
        }
        was_replaced
    }

    pub fn first(&self) -> Option<&RetainedJob> {
        self.by_number.first_key_value().map(|(_, job)| job)
    }

    pub fn first_mut(&mut self) -> Option<&mut RetainedJob> {
        self.by_number.first_entry().map(std::collections::btree_map::OccupiedEntry::into_mut)
    }

    /// Ends the first job: its subscription has all its retained messages.
    pub fn end_first(&mut self) {
        if let Some((_, job)) = self.by_number.pop_first()
            && !std::mem::take(&mut self.is_first_replaced)
        {
            self.by_filter.remove(&job.filter);
        }
    }

    /// Marks the jobs that have not begun as begun. The first of them waits for this number of confirmations with this
    /// ticket, and the others come after it.
    pub fn begin(&mut self, since: u32, ticket: u32, flushes: u16) {
        let mut first = None;
        for job in self.by_number.values_mut().rev().take_while(|job| job.since == 0) {
            (job.since, job.ticket) = (since, ticket);
            first = Some(job);
        }
        if let Some(first) = first {
            first.pending_flushes = flushes;
        }
    }

    /// Records a confirmation for the jobs with this ticket. Returns whether one waited for it.
    pub fn flushed(&mut self, ticket: u32) -> bool {
        let is_waiting = |job: &&mut RetainedJob| job.ticket == ticket && job.pending_flushes > 0;
        let job = self.by_number.values_mut().find(is_waiting);
        job.map(|job| job.pending_flushes -= 1).is_some()
    }

    fn remove(&mut self, number: u64) {
        let Some(removed) = self.by_number.remove(&number) else { return };
        // The next job of the same SUBSCRIBE waits for the remaining confirmations.
        if removed.pending_flushes > 0
            && let Some((_, next)) = self.by_number.range_mut(number..).next()
            && next.ticket == removed.ticket
        {
            next.pending_flushes = removed.pending_flushes;
        }
    }
}

#[cfg(test)]
mod tests {
    use mqtt::SubscriptionOptions;

    use super::*;

    fn job(filter: &str) -> RetainedJob {
        RetainedJob {
            filter: filter.into(),
            options: Options::from(SubscriptionOptions::default()),
            subscription_id: 0,
            worker: 0,
            last_worker: 1,
            done: ShardSet::EMPTY,
            from: None,
            indexes: None,
            pending_flushes: 0,
            since: 0,
            ticket: 0,
        }
    }

    fn with(filters: &[&str]) -> RetainedJobs {
        let mut jobs = RetainedJobs::default();
        filters.iter().for_each(|filter| jobs.push(job(filter), false));
        jobs
    }

    fn order(mut jobs: RetainedJobs) -> Vec<String> {
        let mut filters = Vec::new();
        while let Some(job) = jobs.first_mut() {
            filters.push(job.filter.to_string());
            jobs.end_first();
        }
        assert!(jobs.by_filter.is_empty());
        filters
    }

    #[test]
    fn jobs_are_in_the_order_of_their_last_subscriptions() {
        assert_eq!(order(with(&["a", "b", "a", "c", "b", "b"])), ["a", "c", "b"]);
    }

    #[test]
    fn many_subscribes_for_one_filter_are_one_job() {
        assert_eq!(with(&["a"; 1000]).len(), 1);
    }

    #[test]
    fn a_job_whose_page_is_on_the_way_stays_until_the_page_arrives() {
        let mut jobs = with(&["a", "b"]);
        jobs.replace("a", true);
        jobs.push(job("a"), true);
        assert_eq!(jobs.len(), 3);
        assert!(jobs.take_replaced());
        assert!(!jobs.take_replaced());
        assert_eq!(order(jobs), ["b", "a"]);
    }

    #[test]
    fn a_replaced_job_that_ends_does_not_end_the_next_one_for_its_filter() {
        let mut jobs = with(&["a"]);
        jobs.push(job("a"), true);
        jobs.end_first();
        assert_eq!(jobs.by_filter.len(), 1);
        assert_eq!(order(jobs), ["a"]);
    }

    #[test]
    fn the_next_job_of_a_subscribe_inherits_the_confirmations_of_a_removed_one() {
        let mut jobs = with(&["a", "b"]);
        jobs.begin(1, 7, 2);
        jobs.push(job("c"), false);
        jobs.begin(2, 8, 2);
        assert!(jobs.flushed(7));
        jobs.replace("a", false);
        let first = jobs.first_mut().expect("b");
        assert_eq!((&*first.filter, first.ticket, first.pending_flushes), ("b", 7, 1));
        assert!(
            jobs.flushed(7) && !jobs.flushed(7) && jobs.flushed(8) && jobs.flushed(8) && !jobs.flushed(8)
        );
        jobs.replace("b", false);
        assert_eq!(jobs.first_mut().map(|job| job.pending_flushes), Some(0));
    }

    #[test]
    fn confirmations_for_a_replaced_job_do_not_count_for_the_next_one() {
        let mut jobs = with(&["a"]);
        jobs.begin(1, 7, 2);
        jobs.replace("a", false);
        jobs.push(job("a"), false);
        jobs.push(job("b"), false);
        jobs.begin(1, 8, 2);
        assert!(!jobs.flushed(7));
        assert!(jobs.flushed(8) && jobs.flushed(8) && !jobs.flushed(8));
    }
}
