//! Retained messages for new subscriptions, and for durable sessions that return: page by page, as far as the client
//! keeps up.

use std::sync::atomic::{Ordering, fence};

use mqtt::QoS;
use shard::{Mutation, mutated};

use super::Worker;
use super::deliver::{Delivery, EncodeOnce, OUT_FULL, WhenFull};
use super::queues::Waits;
use crate::batch::{FlushWaiter, SubscriptionIds, Target, WorkerCommand};
use crate::connection::{Phase, Role};
use crate::ids::{ConnectionId, WorkerId};
use crate::message::{Message, Shared};
use crate::retained::{self, Page, Scan};
use crate::retained_jobs::RetainedJob;
use crate::route::Options;
use crate::store::{Enqueue, EnqueueForPage, Request, WalkProgress, is_kept};
use crate::wheel::TimerKind;

impl Worker {
    /// Prepares the retained messages of a new subscription for a connection; [`Self::begin_retained`] starts them.
    /// Returns false if there are none.
    pub(super) fn send_retained(
        &mut self,
        slot: u32,
        filter: &str,
        options: Options,
        subscription_id: u32,
    ) -> bool {
        self.resume_retained(slot, filter, (options, subscription_id), WalkProgress::default())
    }

    /// Prepares the retained messages that a durable session has not received yet.
    pub(super) fn resume_retained(
        &mut self,
        slot: u32,
        filter: &str,
        (options, subscription_id): (Options, u32),
        progress: WalkProgress,
    ) -> bool {
        let (first, last) = self.retained_workers(filter);
        let sys = filter.starts_with(retained::SYS);
        // Another node of a cluster may have retained something.
        let is_anywhere = sys || self.has_cluster_shards();
        let first = if is_anywhere { Some(first.0) } else { self.first_used(first.0, last.0) };
        let Some(worker) = first else { return false };
        let Some(connection) = self.connections.occupant(slot) else { return false };
        let job = RetainedJob {
            filter: filter.into(),
            options,
            subscription_id,
            worker,
            last_worker: last.0,
            done: progress.done,
            from: progress.after.map(|after| (retained::shard_of(&after), after)),
            indexes: None,
            pending_flushes: 0,
            since: 0,
            ticket: 0,
        };
        let flow = connection.flow();
        flow.retained.push(job, flow.page_asked);
        true
    }

    /// Starts to send the prepared sets of retained messages. The first page waits for all other workers. Each confirms
    /// that its messages from before these subscriptions have reached the retained store. Otherwise a message could be
    /// too early for a delivery and too late for a page.
    pub(super) fn begin_retained(&mut self, slot: u32) {
        let others = self.node.workers - 1;
        let Some(connection) = self.connections.occupant(slot) else { return };
        let id = connection.id;
        let flow = connection.flow();
        flow.steps += 1;
        // Confirmations of an earlier request may still be on their way, also of jobs that were replaced.
        let ticket = self.outbox.flush_ticket();
        flow.retained.begin(flow.steps, ticket, others);
        let own = self.id;
        for worker in (0..=others).map(WorkerId).filter(|worker| *worker != own) {
            self.outbox.post(worker, WorkerCommand::Flush(FlushWaiter::Connection(id, ticket)));
        }
        self.ask_for_page(slot);
    }

    /// Handles the confirmation of another worker that it has no messages from before some subscriptions.
    pub(super) fn flushed(&mut self, id: ConnectionId, ticket: u32) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        let Some(flow) = connection.flow.as_mut() else { return };
        if flow.retained.flushed(ticket) {
            self.ask_for_page(id.slot);
        }
    }

    /// Notes that a newer message on a retained topic was sent while older retained messages are still being sent.
    pub(super) fn overtake(&mut self, target: &Target, topic: &str) {
        let Some(connection) = self.connections.get_mut(target.slot, target.generation) else { return };
        if let Some(flow) = connection.flow.as_mut() {
            flow.overtake(topic);
        }
    }

    /// Returns the first worker of a range that has ever stored a retained message.
    fn first_used(&self, first: u16, last: u16) -> Option<u16> {
        fence(Ordering::SeqCst); // Paired with the fence in `announce_retained`.
        let used =
            |worker: u16| self.node.published[usize::from(worker)].retained_used.load(Ordering::Acquire);
        (first..=last).find(|worker| used(*worker))
    }

    /// Returns whether the node has ever stored a retained message, or may find one on another node.
    pub(super) fn has_retained(&self) -> bool {
        if self.has_cluster_shards() {
            return true;
        }
        fence(Ordering::SeqCst); // Paired with the fence in `announce_retained`.
        self.node.published.iter().any(|worker| worker.retained_used.load(Ordering::Acquire))
    }

    /// Notifies the shard that a durable session gets no more retained messages for a subscription.
    pub(super) fn end_walk(&mut self, slot: u32, filter: Box<str>, options: Options) {
        let session = self.connections.occupant_ref(slot).and_then(|connection| connection.session);
        if let Some(session) = session.filter(|_| is_kept(&filter, options) && self.has_retained()) {
            self.outbox.request(session.shard, Request::EndWalk { session, filter });
        }
    }

    /// Continues the retained messages that were incomplete when the session's previous connection ended.
    pub(super) fn resume_walks(&mut self, slot: u32, walks: Vec<(Box<str>, WalkProgress)>) {
        if mutated(Mutation::ForgetWalks) {
            return;
        }
        let mut jobs = 0;
        for (filter, progress) in walks {
            let Some(connection) = self.connections.occupant_ref(slot) else { return };
            let found = connection.subscriptions.get(&filter);
            let begun = found.is_some_and(|found| self.resume_retained(slot, &filter, found, progress));
            jobs += usize::from(begun);
            if !begun && let Some(session) = self.connections.occupant_ref(slot).and_then(|it| it.session) {
                self.outbox.request(session.shard, Request::EndWalk { session, filter });
            }
        }
        if jobs > 0 {
            self.counters.retained_scans_resumed += jobs as u64;
            self.begin_retained(slot);
        }
    }

    /// Requests the next page of retained messages when there is room for it.
    pub(super) fn ask_for_page(&mut self, slot: u32) {
        let queue_max = self.settings.queue.messages_max as usize / 2;
        let now = self.clock.now();
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.flow.as_ref().is_none_or(|flow| flow.retained.is_empty()) {
            return;
        }
        let (id, session) = (connection.id, connection.session);
        let room = connection.phase == Phase::Open && connection.out.len() < OUT_FULL;
        let Some(flow) = connection.flow.as_mut() else { return };
        let full = flow.queue.queued() > queue_max || flow.queue.overflowing() > 0;
        if flow.page_asked || !room || full || flow.ready.len() > queue_max {
            return;
        }
        flow.end_replaced();
        let Some(job) = flow.retained.first_mut().filter(|job| job.pending_flushes == 0) else { return };
        let at = flow.pace.next();
        if at > now {
            if !std::mem::replace(&mut flow.pace.timed, true) {
                self.counters.retained_throttled += 1;
                self.wheel.arm(at, slot, id.generation, TimerKind::Retained);
            }
            return;
        }
        flow.page_asked = true;
        if let Some(session) = session.filter(|_| is_kept(&job.filter, job.options) && !flow.room_for_page) {
            // Reserve room first: a page without room would be lost if the connection ended.
            return self.outbox.request(session.shard, Request::AskRoomForPage { session, connection: id });
        }
        flow.room_for_page = false;
        let (filter, done, from, limit) = (job.filter.clone(), job.done, job.from.clone(), queue_max.max(1));
        let scan = Scan { connection: id, filter, done, from, limit, indexes: job.indexes.clone() };
        let worker = WorkerId(job.worker);
        self.outbox.post(worker, WorkerCommand::Scan(Box::new(scan)));
    }

    /// Continues after the pause between two pages.
    pub(super) fn continue_retained(&mut self, slot: u32) {
        if let Some(flow) = self.connections.occupant(slot).and_then(|connection| connection.flow.as_mut()) {
            flow.pace.timed = false;
            self.ask_for_page(slot);
        }
    }

    /// Delivers a page of retained messages for the subscription at the front [MQTT-3.3.1-8].
    pub(super) fn page(&mut self, page: Page) {
        let Page { connection: id, mut messages, examined, next, indexes } = page;
        self.counters.retained_scanned += examined as u64;
        let per_second = self.settings.retained.scanned_per_second;
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        messages.retain(|message| connection.takes_by_link(&message.view()));
        let (session, role) = (connection.session, connection.marks.role);
        let Some(flow) = connection.flow.as_mut() else { return };
        flow.pace.spend(self.clock.now(), examined, per_second);
        if flow.end_replaced() {
            // Another SUBSCRIBE brings all these messages again.
            return self.page_taken(id);
        }
        let Some(job) = flow.retained.first_mut() else { return };
        let (options, subscription_id) = (job.options, job.subscription_id);
        if !connection.subscriptions.contains(&job.filter) {
            // The client has unsubscribed in the meantime: it gets nothing new [MQTT-3.10.4-2].
            let (filter, options) = (job.filter.clone(), job.options);
            flow.end_retained();
            self.end_walk(id.slot, filter, options);
            return self.page_taken(id);
        }
        let since = job.since;
        let overtaken =
            |message: &Message| flow.overtaken.get(message.view().topic).is_some_and(|step| *step > since);
        messages.retain(|message| !overtaken(message));
        job.done |= self.node.retained_shards(WorkerId(job.worker), next.as_ref().map(|(shard, _)| *shard));
        let is_last = next.is_none() && job.worker >= job.last_worker;
        job.worker += u16::from(next.is_none());
        job.indexes = indexes.filter(|_| next.is_some());
        job.from = next.or(job.from.take()).filter(|(shard, _)| !job.done.contains(*shard));
        let after = job.from.as_ref().map(|(_, after)| after.clone()).filter(|after| !after.is_empty());
        let progress = (!is_last).then_some(WalkProgress { done: job.done, after });
        let filter = job.filter.clone();
        if is_last {
            flow.end_retained();
        }
        let ids: &[u32] = if subscription_id == 0 { &[] } else { &[subscription_id] };
        let mut entries = Vec::new();
        for message in &messages {
            let mut shared = Shared::from(message);
            let stored = if role == Role::ActionStoringQos0 { QoS::AtLeastOnce } else { QoS::AtMostOnce };
            let qos = shared.view.qos.max(stored).min(options.qos());
            if session.is_some() && qos > QoS::AtMostOnce {
                let subscription_ids = SubscriptionIds::of(ids);
                let message = message.clone();
                entries.push(Enqueue { message, qos, retain: true, subscription_ids, group: None });
                continue;
            }
            let once = &mut EncodeOnce::for_receivers(1);
            let (subscribed, full) = (options.qos(), WhenFull::Wait);
            let delivery = Delivery { qos, subscribed, retain: true, ids, group: None, full };
            self.deliver_as((id.slot, id.generation), &delivery, &mut shared, once, &mut Waits::No);
        }
        match session.filter(|_| is_kept(&filter, options)) {
            Some(session) => {
                let page = Some(Box::new(EnqueueForPage { connection: id, filter, progress }));
                self.outbox.request(
                    session.shard,
                    Request::Enqueue { session, entries, group: None, token: None, page },
                );
            }
            None => self.page_taken(id),
        }
    }

    /// Handles the answer of the shard that the session's queue has stored the last page and has room for another.
    pub(super) fn room_for_page(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        connection.flow().room_for_page = true;
        self.page_taken(id);
    }

    pub(super) fn page_taken(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id.slot, id.generation) else { return };
        connection.flow().page_asked = false;
        self.ask_for_page(id.slot);
    }
}
