//! Retained messages of the shards that a worker hosts, and of the broker's own topics.

use std::ops::RangeInclusive;

use mqtt::ReasonCode;

use super::Worker;
use crate::admin::{RetainedMessage, RetainedPage};
use crate::batch::{FlushWaiter, Token, WorkerCommand};
use crate::ids::{ShardId, WorkerId};
use crate::message::Message;
use crate::peers::{Copies, NodeIndex};
use crate::retained::{self, OWN_TOPICS, Page, PageBudget, Scan};
use crate::store::{Request, SHARDS};

/// What waits until all that was retained before is durable.
#[derive(Debug)]
pub(super) enum Awaiting {
    Scan(Scan),
    Copy(NodeIndex, Copies),
}

/// Copies for other nodes, which wait until so many workers have passed on what they had published before.
#[derive(Debug)]
pub(super) struct PendingCopies {
    copies: Vec<(NodeIndex, Copies)>,
    pending_flushes: u16,
}

impl Worker {
    /// Keeps a message of the broker's own. Only worker 0 publishes these.
    pub(super) fn retain_own(&mut self, message: Message) {
        debug_assert_eq!(self.id, WorkerId(0), "where the broker's own topics are");
        // There are as many as the broker has figures: no limit has to be kept.
        if self.own_retained.set(message, |_, _| true).is_err() {
            debug_assert!(false, "there is always room");
        }
    }

    /// A page is asked for. Who asks sees everything that was sent here before: it waits until that is durable.
    pub(super) fn scan(&mut self, scan: Scan) {
        let (first, last) = retained::shard_range(&scan.filter);
        self.when_durable(first..=last, Awaiting::Scan(scan));
    }

    /// Other nodes are to get what is retained here. What was dispatched before they had places, or went to an earlier life of theirs, comes to them by
    /// these copies alone, and may still be on its way from the worker that dispatched it to the one that hosts its shard: all workers, this one too, say
    /// first that what they have dispatched before is where it is to be retained.
    pub(super) fn copy_all(&mut self, copies: Vec<(NodeIndex, Copies)>) {
        if copies.is_empty() {
            return;
        }
        let workers = self.node.workers;
        let key = self.pending_copies.insert(PendingCopies { copies, pending_flushes: workers }) as u32;
        for worker in (0..workers).map(WorkerId) {
            self.post(worker, WorkerCommand::Flush(FlushWaiter::Copies { worker: self.id, key }));
        }
    }

    /// A worker has nothing from before some copies were asked for any more: when none has, what is not durable yet is waited for.
    pub(super) fn copies_flushed(&mut self, key: u32) {
        let Some(pending) = self.pending_copies.get_mut(key as usize) else { return };
        pending.pending_flushes -= 1;
        if pending.pending_flushes > 0 {
            return;
        }
        for (to, which) in self.pending_copies.remove(key as usize).copies {
            self.when_durable(ShardId(0)..=ShardId(SHARDS - 1), Awaiting::Copy(to, which));
        }
    }

    fn when_durable(&mut self, shard_ids: RangeInclusive<ShardId>, waiting: Awaiting) {
        let here = self.retained_here(shard_ids);
        let barrier = |shard_id| Some((shard_id, self.shard(shard_id)?.retained_barrier()?));
        let barriers: Vec<(ShardId, u64)> = here.filter_map(barrier).collect();
        if barriers.is_empty() {
            self.resume_awaiting(waiting)
        } else {
            self.waiting_scans.push((barriers, waiting))
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
        self.post(page.connection.worker, WorkerCommand::Page(Box::new(page)));
    }

    /// Something has become durable: pages that waited for it are answered.
    pub(super) fn resume_scans(&mut self) {
        if self.waiting_scans.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting_scans);
        let applied = |(shard_id, index): &(ShardId, u64)| {
            self.shard(*shard_id).is_none_or(|shard| shard.has_applied(*index))
        };
        let ready = |(barriers, _): &mut (Vec<(ShardId, u64)>, Awaiting)| barriers.iter().all(applied);
        let ready: Vec<_> = waiting.extract_if(.., ready).collect();
        self.waiting_scans = waiting;
        for (_, waiting) in ready {
            self.resume_awaiting(waiting);
        }
    }

    /// One page, from all shards of this worker.
    pub(super) fn retained_page(&self, scan: Scan) -> Page {
        let Scan { connection, filter, done, from, limit } = scan;
        let (mut budget, mut messages) = (PageBudget::of_messages(limit), Vec::new());
        let (first, last) = retained::shard_range(&filter);
        let mut next = None;
        for shard_id in self.retained_here(first..=last).filter(|shard_id| !retained::is_in(done, *shard_id))
        {
            if budget.is_spent() {
                next = Some((shard_id, Box::default()));
                break;
            }
            // Of one shard only the rest, of the others all.
            let after = from.as_ref().filter(|(at, after)| *at == shard_id && !after.is_empty());
            let (after, found) = (after.map(|(_, after)| &**after), &mut messages);
            let more = if shard_id == OWN_TOPICS {
                self.own_retained.page(self.now, &filter, after, &mut budget, found)
            } else {
                let shard = self.shard(shard_id);
                shard.and_then(|shard| shard.retained_page(self.now, &filter, after, &mut budget, found))
            };
            if let Some(topic) = more {
                next = Some((shard_id, topic));
                break;
            }
        }
        Page { connection, messages, examined: budget.examined(), next }
    }

    /// The workers, first to last, that may have retained messages of a filter.
    pub(super) fn retained_workers(&self, filter: &str) -> (WorkerId, WorkerId) {
        match retained::shard_range(filter) {
            (first, last) if first == last => {
                let host = self.node.retained_host(first);
                (host, host)
            }
            _ => (WorkerId(0), WorkerId(self.node.workers - 1)),
        }
    }

    /// Those of the places that are here.
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
            Some(shard) => shard.retained_list(self.now, filter, after, limit),
            None => self.own_retained.list(self.now, filter, after, limit),
        };
        let next = match after {
            Some(after) => Some((shard_id, Some(after))),
            None => (shard_id < last).then(|| (ShardId(shard_id.0 + 1), None)),
        };
        RetainedPage { items, next }
    }

    pub(super) fn retained_message(&self, topic: &str) -> Option<RetainedMessage> {
        match self.shard(retained::shard_of(topic)) {
            Some(shard) => shard.retained_whole(self.now, topic),
            None => self.own_retained.whole(self.now, topic),
        }
    }

    /// Deletes a topic's retained message for an operator. `Ok` when that will be answered to `token`, as requests are;
    /// otherwise it is done, and the number says how many there were.
    pub(super) fn delete_retained(&mut self, topic: Box<str>, token: Token) -> Result<(), usize> {
        let shard_id = retained::shard_of(&topic);
        if shard_id == OWN_TOPICS {
            return Err(usize::from(self.own_retained.delete(&topic)));
        }
        self.request(shard_id, Request::DeleteRetained { topic, token });
        Ok(())
    }

    /// Messages that are retained here, and their bytes.
    pub(super) fn retained_figures(&self) -> (u64, u64) {
        let own = (self.own_retained.len() as u64, self.own_retained.bytes());
        self.shards.iter().fold(own, |(messages, bytes), (_, shard)| {
            (messages + shard.retained_len() as u64, bytes + shard.retained_bytes())
        })
    }

    /// About once a second.
    pub(super) fn tend_retained(&mut self) {
        for (_, shard) in &mut self.shards {
            shard.tend_retained();
        }
    }
}

/// What the deletion of one retained message was answered.
pub(super) fn deleted(reason: ReasonCode) -> usize {
    usize::from(reason == ReasonCode::Success)
}
