//! Retained messages of the shards that a worker hosts, and of the broker's own topics.

use std::ops::RangeInclusive;

use mqtt::ReasonCode;

use super::Worker;
use super::lanes::Reader;
use super::shards::HostedShards;
use crate::admin::{RetainedInfo, RetainedMessage, RetainedPage};
use crate::batch::{Token, WorkerCommand};
use crate::ids::{ShardId, WorkerId};
use crate::message::Message;
use crate::peers::{Copies, NodeIndex};
use crate::retained::{self, OWN_TOPICS, Page, PageBudget, Scan};
use crate::store::Request;

/// A request that waits until all messages retained before it are durable.
#[derive(Debug)]
pub(super) enum Awaiting {
    Scan(Scan),
    Copy(NodeIndex, Copies),
}

/// Scans and copies that came before their messages were durable, with the batches that they wait for.
#[derive(Default)]
pub(super) struct WaitingScans(Vec<(Vec<(ShardId, u64)>, Awaiting)>);

impl WaitingScans {
    /// Takes those whose messages have become durable.
    fn take_ready(&mut self, shards: &HostedShards) -> Vec<Awaiting> {
        let applied = |(shard_id, index): &(ShardId, u64)| {
            shards.get(*shard_id).is_none_or(|shard| shard.has_applied(*index))
        };
        let ready = |(barriers, _): &mut (Vec<(ShardId, u64)>, Awaiting)| barriers.iter().all(applied);
        self.0.extract_if(.., ready).map(|(_, waiting)| waiting).collect()
    }
}

impl Worker {
    /// Retains a message of the broker itself. Only worker 0 publishes these.
    pub(super) fn retain_own(&mut self, message: Message) {
        debug_assert_eq!(self.id, WorkerId(0), "worker 0 hosts the broker's own topics");
        // Their number is bounded by the number of figures, so they need no limit.
        if self.own_retained.set(message, |_, _| true).is_err() {
            debug_assert!(false, "the broker's own topics have no limit");
        }
    }

    /// Handles the request for a page. The page includes all messages sent to this worker before, so it waits until
    /// they are durable.
    pub(super) fn scan(&mut self, scan: Scan) {
        if self.has_cluster_shards() {
            return self.read_retained(Reader::Connection(scan));
        }
        let (first, last) = retained::shard_range(&scan.filter);
        self.when_durable(first..=last, Awaiting::Scan(scan));
    }

    pub(super) fn when_durable(&mut self, shard_ids: RangeInclusive<ShardId>, waiting: Awaiting) {
        let here = self.retained_here(shard_ids);
        let barrier = |shard_id| Some((shard_id, self.shard(shard_id)?.retained_barrier()?));
        let barriers: Vec<(ShardId, u64)> = here.filter_map(barrier).collect();
        if barriers.is_empty() {
            self.resume_awaiting(waiting)
        } else {
            self.waiting_scans.0.push((barriers, waiting))
        }
    }

    fn resume_awaiting(&mut self, waiting: Awaiting) {
        match waiting {
            Awaiting::Scan(scan) => self.answer_scan(scan),
            Awaiting::Copy(to, which) => {
                self.copy_deletions(to, which);
                self.copy_retained(to, which, None);
            }
        }
    }

    pub(super) fn answer_scan(&mut self, scan: Scan) {
        let page = self.retained_page(scan);
        self.outbox.post(page.connection.worker, WorkerCommand::Page(Box::new(page)));
    }

    /// Answers requests for pages whose messages have become durable.
    pub(super) fn resume_scans(&mut self) {
        for waiting in self.waiting_scans.take_ready(&self.shards) {
            self.resume_awaiting(waiting);
        }
        self.resume_reads();
    }

    /// Returns one page of messages from all shards of this worker. In a cluster it ends before a shard that has no
    /// replica on this node.
    pub(super) fn retained_page(&self, scan: Scan) -> Page {
        let (mut budget, mut messages) = (PageBudget::of_messages(scan.limit), Vec::new());
        let (first, last) = retained::shard_range(&scan.filter);
        let mut next = None;
        for shard_id in self.retained_here(first..=last).filter(|shard_id| !scan.done.contains(*shard_id)) {
            if budget.is_spent() {
                next = Some((shard_id, Box::default()));
                break;
            }
            let (now, after, found) = (self.clock.now(), scan.after(shard_id), &mut messages);
            let more = if shard_id == OWN_TOPICS {
                self.own_retained.page(now, &scan.filter, after, &mut budget, found)
            } else if let Some(state) = self.shards.timed_state(shard_id) {
                retained::page_of(state, now, &scan.filter, after, &mut budget, found)
            } else {
                Some(Box::default())
            };
            if let Some(topic) = more {
                next = Some((shard_id, topic));
                break;
            }
        }
        let Scan { connection, indexes, .. } = scan;
        Page { connection, messages, examined: budget.examined(), next, indexes }
    }

    /// Returns the first and the last worker that may have retained messages for a filter.
    pub(super) fn retained_workers(&self, filter: &str) -> (WorkerId, WorkerId) {
        match retained::shard_range(filter) {
            (first, last) if first == last => {
                let host = self.node.retained_host(first);
                (host, host)
            }
            _ => (WorkerId(0), WorkerId(self.node.workers - 1)),
        }
    }

    /// Returns those of the given shards that this worker hosts.
    pub(super) fn retained_here(&self, shard_ids: RangeInclusive<ShardId>) -> impl Iterator<Item = ShardId> {
        let (first, last) = shard_ids.into_inner();
        let here = |shard_id: &ShardId| self.node.retained_host(*shard_id) == self.id;
        (first.0..=last.0).map(ShardId).filter(here)
    }

    pub(super) fn retained_list(
        &self,
        (shard_id, last): (ShardId, ShardId),
        filter: &str,
        after: Option<&str>,
        limit: usize,
    ) -> RetainedPage {
        let (items, after) = match self.shards.timed_state(shard_id) {
            Some(state) => retained::list_of(state, self.clock.now(), filter, after, limit),
            None => self.own_retained.list(self.clock.now(), filter, after, limit),
        };
        list_page((shard_id, last), items, after)
    }

    pub(super) fn retained_message(&self, topic: &str) -> Option<RetainedMessage> {
        match self.shards.timed_state(retained::shard_of(topic)) {
            Some(state) => retained::whole_of(state, self.clock.now(), topic),
            None => self.own_retained.whole(self.clock.now(), topic),
        }
    }

    /// Deletes the retained message of a topic for an operator. `Ok` means that a completion for `token` will come.
    /// `Err` means that the deletion is done, and holds the number of deleted messages.
    pub(super) fn delete_retained(&mut self, topic: Box<str>, token: Token) -> Result<(), usize> {
        let shard_id = retained::shard_of(&topic);
        if shard_id == OWN_TOPICS {
            return Err(usize::from(self.own_retained.delete(&topic)));
        }
        self.outbox.request(shard_id, Request::DeleteRetained { topic, token });
        Ok(())
    }

    /// Returns the number of messages retained here, and their bytes. Each node counts the messages of its replicas: a
    /// message of a shard with three replicas counts on three nodes.
    pub(super) fn retained_figures(&self) -> (u64, u64) {
        let (messages, bytes) = self.shards.retained_figures();
        (messages + self.own_retained.len() as u64, bytes + self.own_retained.bytes())
    }

    /// Performs periodic work on retained messages, about once a second.
    pub(super) fn tend_retained(&self) {
        self.shards.tend_retained();
    }
}

/// Returns a page of a list of a shard. `last` is the last shard that may have messages, and `after` the topic after
/// which the list continues in this one.
pub(super) fn list_page(
    (shard_id, last): (ShardId, ShardId),
    items: Vec<RetainedInfo>,
    after: Option<Box<str>>,
) -> RetainedPage {
    let next = match after {
        Some(after) => Some((shard_id, Some(after))),
        None => (shard_id < last).then(|| (ShardId(shard_id.0 + 1), None)),
    };
    RetainedPage { items, next }
}

/// Returns the number of messages that a deletion with this answer has deleted.
pub(super) fn deleted(reason: ReasonCode) -> usize {
    usize::from(reason == ReasonCode::Success)
}
