//! Retained messages of the shards that a worker hosts, and of the broker's own topics.

use std::ops::RangeInclusive;

use mqtt::ReasonCode;

use super::Worker;
use super::shards::HostedShards;
use crate::admin::{RetainedMessage, RetainedPage};
use crate::batch::{Token, WorkerCommand};
use crate::ids::{ShardId, WorkerId};
use crate::message::Message;
use crate::peers::{Copies, NodeIndex};
use crate::retained::{self, OWN_TOPICS, Page, PageBudget, Scan};
use crate::store::{Request, ShardHost};

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

    fn answer_scan(&mut self, scan: Scan) {
        let page = self.retained_page(scan);
        self.outbox.post(page.connection.worker, WorkerCommand::Page(Box::new(page)));
    }

    /// Answers requests for pages whose messages have become durable.
    pub(super) fn resume_scans(&mut self) {
        for waiting in self.waiting_scans.take_ready(&self.shards) {
            self.resume_awaiting(waiting);
        }
    }

    /// Returns one page of messages from all shards of this worker.
    pub(super) fn retained_page(&self, scan: Scan) -> Page {
        let Scan { connection, filter, done, from, limit } = scan;
        let (mut budget, mut messages) = (PageBudget::of_messages(limit), Vec::new());
        let (first, last) = retained::shard_range(&filter);
        let mut next = None;
        for shard_id in self.retained_here(first..=last).filter(|shard_id| !done.contains(*shard_id)) {
            if budget.is_spent() {
                next = Some((shard_id, Box::default()));
                break;
            }
            // The scan continues inside the shard at which it stopped, and reads the others from their start.
            let after = from.as_ref().filter(|(at, after)| *at == shard_id && !after.is_empty());
            let (after, found) = (after.map(|(_, after)| &**after), &mut messages);
            let more = if shard_id == OWN_TOPICS {
                self.own_retained.page(self.clock.now(), &filter, after, &mut budget, found)
            } else {
                let shard = self.shard(shard_id);
                shard.and_then(|shard| {
                    shard.retained_page(self.clock.now(), &filter, after, &mut budget, found)
                })
            };
            if let Some(topic) = more {
                next = Some((shard_id, topic));
                break;
            }
        }
        Page { connection, messages, examined: budget.examined(), next }
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
    fn retained_here(&self, shard_ids: RangeInclusive<ShardId>) -> impl Iterator<Item = ShardId> {
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
        let (items, after) = match self.shard(shard_id) {
            Some(shard) => shard.retained_list(self.clock.now(), filter, after, limit),
            None => self.own_retained.list(self.clock.now(), filter, after, limit),
        };
        let next = match after {
            Some(after) => Some((shard_id, Some(after))),
            None => (shard_id < last).then(|| (ShardId(shard_id.0 + 1), None)),
        };
        RetainedPage { items, next }
    }

    pub(super) fn retained_message(&self, topic: &str) -> Option<RetainedMessage> {
        match self.shard(retained::shard_of(topic)) {
            Some(shard) => shard.retained_whole(self.clock.now(), topic),
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

    /// Returns the number of messages retained here, and their bytes.
    pub(super) fn retained_figures(&self) -> (u64, u64) {
        let own = (self.own_retained.len() as u64, self.own_retained.bytes());
        self.shards.iter().fold(own, |(messages, bytes), shard| {
            (messages + shard.retained_len() as u64, bytes + shard.retained_bytes())
        })
    }

    /// Performs periodic work on retained messages, about once a second.
    pub(super) fn tend_retained(&self) {
        self.shards.iter().for_each(ShardHost::tend_retained);
    }
}

/// Returns the number of messages that a deletion with this answer has deleted.
pub(super) fn deleted(reason: ReasonCode) -> usize {
    usize::from(reason == ReasonCode::Success)
}
