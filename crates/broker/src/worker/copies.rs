//! Copies of retained messages for nodes that may have missed them.

use mqtt::{QoS, ReasonCode};
use slab::Slab;

use super::Worker;
use super::peers::{ForwardPurpose, deletion};
use super::retained::Awaiting;
use crate::batch::{FlushWaiter, Token, WorkerCommand};
use crate::ids::{ConnectionId, ShardId, ShardSet, WorkerId};
use crate::message::{Message, MessageView};
use crate::peers::{Copies, FrameExtras, NodeIndex, PropagatedCopy};
use crate::retained::Scan;
use crate::store::{SHARDS, ShardHost};

/// Copies for other nodes that are not complete yet.
#[derive(Default)]
pub(super) struct RetainedCopies {
    /// Copies that wait until all workers have passed on their earlier messages.
    pending: Slab<PendingCopies>,
    /// Copies in progress: the receiving node, the kind, and the position of the next page.
    pages: Slab<(NodeIndex, Copies, (ShardId, Box<str>))>,
}

/// Copies for other nodes that wait until `pending_flushes` more workers have passed on their earlier messages.
#[derive(Debug)]
struct PendingCopies {
    copies: Vec<(NodeIndex, Copies)>,
    pending_flushes: u16,
}

impl Worker {
    /// Copies the retained messages of this worker to other nodes. Some messages reach a node only by these copies:
    /// those that were dispatched before the node was known, or that were sent to its previous incarnation. Such a
    /// message may still be on its way to the worker that hosts its shard. So all workers, including this one, first
    /// confirm that their earlier messages have arrived there.
    ///
    /// In a cluster whose shards have replicas nothing is copied.
    pub(super) fn copy_all(&mut self, copies: Vec<(NodeIndex, Copies)>) {
        if copies.is_empty() || self.has_cluster_shards() {
            return;
        }
        let workers = self.node.workers;
        let key = self.copies.pending.insert(PendingCopies { copies, pending_flushes: workers }) as u32;
        for worker in (0..workers).map(WorkerId) {
            self.outbox.post(worker, WorkerCommand::Flush(FlushWaiter::Copies { worker: self.id, key }));
        }
    }

    /// Handles the confirmation of a worker that it has passed on its messages from before a copy. After the last
    /// confirmation the copy waits until these messages are durable.
    pub(super) fn copies_flushed(&mut self, key: u32) {
        let Some(pending) = self.copies.pending.get_mut(key as usize) else { return };
        pending.pending_flushes -= 1;
        if pending.pending_flushes > 0 {
            return;
        }
        for (to, which) in self.copies.pending.remove(key as usize).copies {
            self.when_durable(ShardId(0)..=ShardId(SHARDS - 1), Awaiting::Copy(to, which));
        }
    }

    /// Passes a copy from `from` on to the nodes that already have all earlier copies of this node.
    pub(super) fn propagate(&mut self, from: NodeIndex, message: &Message, stamp: u64) {
        let extras = FrameExtras { stamp, is_copy: true, group: None, origins: self.node.origins() };
        let (frame, topic_hash) = self.peers.frame(&mut None, &message.view(), extras, self.clock.now());
        let is_own = self.node.is_own_stamp(stamp);
        self.peers.outbound.propagated.push(PropagatedCopy { from, frame, topic_hash, is_own });
    }

    /// Sends another node the deletions of retained messages that it may have missed.
    pub(super) fn copy_deletions(&mut self, to: NodeIndex, which: Copies) {
        let known = self.shards.iter().flat_map(ShardHost::retained_deletions);
        let wanted: Vec<(Box<str>, u64)> = known
            .filter(|(_, at)| self.is_copied(which, *at))
            .map(|(topic, at)| (topic.into(), at))
            .collect();
        for (topic, stamp) in wanted {
            self.send_copy(to, &deletion(&topic, self.clock.now()), stamp, None);
        }
    }

    /// Notifies a node that a topic has no retained message as of `stamp`. A node that did not know this notifies
    /// others.
    pub(super) fn send_deletion(&mut self, to: NodeIndex, topic: &str, stamp: u64) {
        self.send_copy(to, &MessageView { retain: false, ..deletion(topic, self.clock.now()) }, stamp, None);
    }

    /// Sends a retained message, or a deletion, to a node that may have missed it.
    fn send_copy(&mut self, to: NodeIndex, view: &MessageView<'_>, stamp: u64, token: Option<Token>) {
        let extras = FrameExtras { stamp, is_copy: true, group: None, origins: self.node.origins() };
        let frame = self.peers.frame(&mut None, view, extras, self.clock.now());
        self.peers.forward(to, frame, QoS::AtLeastOnce, ForwardPurpose::Copy, token);
    }

    /// Sends the next page of this worker's retained messages to another node. The page after it follows when this one
    /// has arrived.
    pub(super) fn copy_retained(&mut self, to: NodeIndex, which: Copies, from: Option<(ShardId, Box<str>)>) {
        let connection = ConnectionId { worker: self.id, slot: 0, generation: 0 };
        let done = from
            .as_ref()
            .map_or(ShardSet::EMPTY, |(shard, _)| self.node.retained_shards(self.id, Some(*shard)));
        let page = self.retained_page(Scan {
            connection,
            filter: "#".into(),
            done,
            from,
            limit: usize::MAX,
            indexes: None,
        });
        let is_wanted = |message: &&Message| self.is_copied(which, message.view().publisher_key);
        let messages: Vec<Message> = page.messages.iter().filter(is_wanted).cloned().collect();
        let last = messages.len().saturating_sub(1);
        for (at, message) in messages.iter().enumerate() {
            let view = message.view();
            let next = page.next.clone().filter(|_| at == last);
            let token = next.map(|from| self.copy_token(to, which, from));
            self.send_copy(to, &view, view.publisher_key.max(1), token);
        }
        // This page has no message to send.
        if messages.is_empty()
            && let Some(from) = page.next
        {
            let token = self.copy_token(to, which, from);
            self.outbox.complete_here(token, ReasonCode::Success);
        }
    }

    /// Returns whether the copies include a retained message or deletion with this stamp.
    fn is_copied(&self, which: Copies, stamp: u64) -> bool {
        match which {
            Copies::All => true,
            Copies::Of(theirs) => stamp as u8 == theirs,
            Copies::Own(theirs) => self.node.is_own_stamp(stamp) || stamp as u8 == theirs,
        }
    }

    fn copy_token(&mut self, to: NodeIndex, which: Copies, from: (ShardId, Box<str>)) -> Token {
        Token::Copy { worker: self.id, key: self.copies.pages.insert((to, which, from)) as u32 }
    }

    /// Continues a copy whose last page has arrived.
    pub(super) fn continue_copy(&mut self, key: u32) {
        if let Some((to, which, from)) = self.copies.pages.try_remove(key as usize) {
            self.copy_retained(to, which, Some(from));
        }
    }
}
