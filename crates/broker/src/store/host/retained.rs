//! The shard's part of the retained messages: the last durable one of each topic.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{QoS, ReasonCode, TopicName};
use shard::{Answer, Command};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput, Waiter};
use crate::batch::{Token, TokenKind};
use crate::ids::Time;
use crate::message::{Message, MessageView};
use crate::peers::NodeIndex;
use crate::quota::Payers;
use crate::store::replica::Urgency;
use crate::store::retained_stamps::{Stamp, Stamps};

/// Maximum number of deletions of one shard that are sent to another node when the two connect.
const DELETIONS_SENT_MAX: usize = 1000;

/// Recent changes of the shard's retained messages.
#[derive(Debug, Default)]
pub(super) struct RetainedChanges {
    /// Times at which topics were last retained or their messages deleted, as far as they are remembered.
    stamps: Stamps,
    /// Number of the batch with the last retained message that was sent here.
    asked: u64,
    reads: Reads,
}

/// Read barriers of a shard whose replicas are on several nodes. One is under way at a time.
#[derive(Debug, Default)]
struct Reads {
    /// Number of the last barrier that a read waits for, of the last one that was requested, and of the last one that
    /// has passed.
    wanted: u64,
    requested: u64,
    passed: u64,
}

/// Read barrier and batch that a read of retained messages waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTicket {
    /// Number of the read barrier.
    barrier: u64,
    /// Number of the batch with the last retained message that was sent here before.
    batch: u64,
}

impl ShardHost {
    pub(super) fn retain(
        &mut self,
        now: Time,
        message: &Message,
        payers: Payers,
        (stamp, copied_by): (u64, Option<NodeIndex>),
        (refusal, token): (Option<ReasonCode>, Option<Token>),
        out: &mut ShardOutput,
    ) {
        // A client's message was admitted before it was dispatched: now it is kept.
        let is_promised = token.is_some_and(|token| token.kind() == TokenKind::Publisher);
        let mut refused = refusal;
        if refused.is_none() && !is_promised {
            refused = self.limit_refusal(message, &payers);
        } else if refused.is_some() {
            self.counters.retained_refused += 1;
        }
        if let Some(mut reason) = refused {
            if refusal.is_none() && token.is_some_and(|token| token.kind() == TokenKind::Append) {
                // A Will is tried again when the disk is full, but not because of these limits.
                reason = ReasonCode::Success;
            }
            return out.acknowledged.extend(token.map(|token| (token, reason)));
        }
        if stamp != 0
            && let Err(known) = self.note_stamp(&message.view(), stamp)
        {
            // A node that has missed a deletion offers the deleted message: it is notified. Other changes that it has
            // missed are sent to it anyway.
            if copied_by.is_some() && known.deletes && !message.view().payload.is_empty() {
                out.deleted.push((copied_by, message.view().topic.into(), known.at));
            }
            return out.acknowledged.extend(token.map(|token| (token, ReasonCode::Success)));
        }
        let view = message.view();
        match copied_by {
            // Other nodes may have missed it too.
            Some(_) if view.payload.is_empty() && !view.retain => {
                out.deleted.push((None, view.topic.into(), stamp));
            }
            Some(node) => out.propagated.push((node, message.clone(), stamp)),
            None => {}
        }
        let append = token.map(|token| self.appends.insert(Waiter::Token(token)));
        let append = self.acknowledge_early(now, message, append, out);
        let mut stored = self.replica.stored(&message.view());
        // The publisher of a retained message is not needed: it goes to no shared group [MQTT-4.8.2-1]. A message that
        // a node without others has retained is older than all that it retains in a cluster.
        stored.publisher_key = stamp;
        let bytes = if stored.payload.is_empty() { 0 } else { stored.encoded_len() as u64 };
        let charge = self.charged.for_retained(stored.topic, payers, bytes);
        let is_linked = !shard::origin_cluster(stored.properties).is_empty() && self.knows_links();
        let command = match is_linked {
            true => Command::RetainIfLater { message: stored },
            false => Command::Retain { message: stored },
        };
        let ticket = self.ask(now, &command, Urgency::Now);
        self.retained.asked = ticket.number;
        self.continue_with(ticket, Continuation::Retain { append, charge });
    }

    /// Returns whether all replicas understand what linked clusters bring.
    fn knows_links(&self) -> bool {
        !self.replica.is_agreed() || self.load.reads_links.load(Relaxed)
    }

    /// Records the time at which a message was retained. Returns a later one, if that is known for its topic.
    fn note_stamp(&mut self, view: &MessageView<'_>, at: u64) -> Result<(), Stamp> {
        let applied = self
            .replica
            .state()
            .retained(view.topic)
            .and_then(|bytes| shard::MessageView::decode(bytes).ok());
        let applied = applied.map(|message| message.publisher_key);
        self.retained.stamps.note(view.topic, Stamp { at, deletes: view.payload.is_empty() }, applied)
    }

    /// Refusal by the limits of retained messages. They are approximate: messages in progress are not counted.
    fn limit_refusal(&mut self, message: &Message, payers: &Payers) -> Option<ReasonCode> {
        let view = message.view();
        let fits = view.payload.is_empty()
            || self.has_room_to_retain(view.topic, view.stored().encoded_len() as u64, payers);
        (!fits).then_some(ReasonCode::QuotaExceeded)
    }

    /// Returns whether a message may be retained, by the limits of the node and by the quotas of its payers. Counts a
    /// refusal.
    pub(super) fn has_room_to_retain(&mut self, topic: &str, size: u64, payers: &Payers) -> bool {
        let fits = self.node_has_room_to_retain(topic, size);
        self.counters.retained_refused += u64::from(!fits);
        let may = self.may_retain(topic, size, payers);
        self.counters.quota_retained += u64::from(!may);
        fits && may
    }

    fn node_has_room_to_retain(&self, topic: &str, size: u64) -> bool {
        let limits = &self.settings.retained;
        let (others, others_bytes) = self.load.retained_elsewhere(self.id);
        let (count, bytes) = (others + self.retained_len() as u64, others_bytes + self.retained_bytes());
        let before = self.replica.state().retained(topic).map(|message| message.len() as u64);
        let more = u64::from(before.is_none());
        let more_bytes = size.saturating_sub(before.unwrap_or(0));
        more_bytes == 0 && more == 0
            || count + more <= limits.messages_max && bytes + more_bytes <= limits.bytes_max.bytes()
    }

    pub(super) fn delete_retained(&mut self, now: Time, topic: &str, token: Token, out: &mut ShardOutput) {
        // An operator may send any text; the log accepts Topic Names only.
        if TopicName::parse(topic).is_err() {
            return out.acknowledged.push((token, ReasonCode::NoSubscriptionExisted));
        }
        let message = shard::MessageView {
            topic,
            properties: &[],
            payload: &[],
            qos: QoS::AtMostOnce,
            retain: true,
            expires: shard::NEVER,
            received: now.0,
            publisher_key: 0,
        };
        let charge = self.charged.for_retained(topic, Payers::default(), 0);
        let ticket = self.ask(now, &Command::Retain { message }, Urgency::Now);
        self.retained.asked = ticket.number;
        self.continue_with(ticket, Continuation::Delete(token, charge));
    }

    pub(super) fn deleted_retained(token: Token, answer: &Answer, out: &mut ShardOutput) {
        let was_there = matches!(answer, Answer::Retained { replaced: true });
        let reason = if was_there { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
        out.acknowledged.push((token, reason));
    }

    /// Number of a batch that has to be applied before a reader sees every retained message that was sent here so far.
    pub(crate) fn retained_barrier(&self) -> Option<u64> {
        (!self.replica.has_applied(self.retained.asked)).then_some(self.retained.asked)
    }

    /// Requests that a majority confirms that this replica leads, for a read of another worker. Without that the read
    /// could miss what the next leader has acknowledged already.
    pub(crate) fn request_read(&mut self) -> ReadTicket {
        let reads = &mut self.retained.reads;
        // One that is under way was requested before.
        reads.wanted = reads.requested + 1;
        let ticket = ReadTicket { barrier: reads.wanted, batch: self.retained.asked };
        self.request_barrier();
        ticket
    }

    fn request_barrier(&mut self) {
        let reads = &mut self.retained.reads;
        if reads.passed == reads.requested && reads.requested < reads.wanted {
            reads.requested = reads.wanted;
            self.replica.read_barrier(reads.requested);
        }
    }

    /// Handles that a read barrier has passed.
    pub(super) fn barrier_passed(&mut self, number: u64) {
        self.retained.reads.passed = number;
        self.request_barrier();
    }

    /// Returns whether the state has everything that was committed, and every retained message that was sent here,
    /// before the read was requested.
    pub(crate) fn is_readable(&self, ticket: ReadTicket) -> bool {
        self.retained.reads.passed >= ticket.barrier && self.has_applied(ticket.batch)
    }

    pub(crate) fn has_applied(&self, number: u64) -> bool {
        self.replica.has_applied(number)
    }

    /// The last topics whose retained message was deleted, with the stamps.
    pub(crate) fn retained_deletions(&self) -> impl Iterator<Item = (&str, u64)> {
        self.retained.stamps.deletions().take(DELETIONS_SENT_MAX)
    }

    pub(crate) fn retained_len(&self) -> usize {
        self.replica.state().retained_counts().0 as usize
    }

    pub(crate) fn retained_bytes(&self) -> u64 {
        self.replica.state().retained_counts().1
    }

    /// Publishes the number of retained messages, when it has changed and about once a second.
    pub(crate) fn tend_retained(&self) {
        self.load.note_retained(self.id, self.replica.state().retained_counts(), &self.settings);
    }
}
