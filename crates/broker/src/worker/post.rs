//! Batches from other workers, and letters.

use mqtt::ReasonCode;

use super::Worker;
use crate::ids::Time;
use crate::mail::{Batch, BatchDelivery, Body, Letter, Passer, Token};
use crate::message::{MessageView, Shared};
use crate::peers::NodePlace;
use crate::store::{Completion, ShardOutput};

/// What the log makes of batches in one turn, about.
const EFFECTS_AT_ONCE: usize = 8192;

impl Worker {
    /// Works through a batch. Its vectors are left for [`Batch::recycle`].
    pub fn take_batch(&mut self, now: Time, batch: &mut Batch) {
        self.now = now;
        for BatchDelivery { body, targets, token, .. } in batch.deliveries.drain(..) {
            let targets = &batch.targets[targets];
            let waits = match &body {
                Body::Inline(range) => {
                    let view = MessageView::decode(&batch.records[range.clone()]);
                    self.deliver_all(targets, &mut Shared::of(view), token)
                }
                Body::Shared(message) => self.deliver_all(targets, &mut Shared::from(message), token),
            };
            if let Some(token) = token.filter(|_| !waits) {
                self.answer(token, ReasonCode::Success);
            }
        }
        for letter in batch.letters.drain(..) {
            self.letter(letter);
        }
        for (token, reason) in batch.acknowledged.drain(..) {
            // For a publisher here, or for one elsewhere that a connection of ours has kept waiting.
            self.answer(token, reason);
        }
    }

    fn letter(&mut self, letter: Letter) {
        match letter {
            Letter::Request(shard, request) => {
                let Some((_, host)) = self.shards.iter_mut().find(|(id, _)| *id == shard) else {
                    debug_assert!(false, "a request for a shard that is hosted elsewhere");
                    return;
                };
                let mut output = std::mem::take(&mut self.shard_output);
                host.apply(self.now, request, &mut output);
                self.carry_out(&mut output);
                self.shard_output = output;
            }
            Letter::Completion(completion) => self.completion(completion),
            // Answered after this turn's batches have left.
            Letter::PassBy(passer) => self.passing.push(passer),
            Letter::Passed(Passer::Connection(connection, ticket)) => self.passed(connection, ticket),
            Letter::Passed(Passer::Copies { key, .. }) => self.copies_passed(key),
            Letter::Store(events) => {
                self.store_events.extend(events);
                self.hear_the_log();
            }
            Letter::Scan(scan) => self.scan(*scan),
            Letter::Page(page) => self.page(*page),
            Letter::Member(delivery) => self.member_delivery(*delivery),
            Letter::Verdict(connection, verdict) => self.verdict(connection, verdict),
            Letter::AskAgain(connection, about) => self.ask_again(connection, about),
            Letter::Will(will) => self.will_came(*will),
            Letter::Ask(question) => self.asked(*question.0),
            Letter::Peers(inbound) => self.take_inbound(*inbound),
        }
    }

    /// The log has something to say to shards of this worker. One message may be for very many sessions: after [`EFFECTS_AT_ONCE`] the
    /// rest is left for the next turn.
    pub(super) fn hear_the_log(&mut self) {
        let mut output = std::mem::take(&mut self.shard_output);
        let mut effects = 0;
        while effects < EFFECTS_AT_ONCE
            && let Some((id, event)) = self.store_events.pop_front()
        {
            if let Some((_, shard)) = self.shards.iter_mut().find(|(shard, _)| *shard == id) {
                let (had, rest) = shard.store_event(self.now, event, EFFECTS_AT_ONCE - effects, &mut output);
                effects += had;
                if let Some(rest) = rest {
                    self.store_events.push_front((id, rest));
                }
            }
        }
        self.carry_out(&mut output);
        self.shard_output = output;
        self.scans_go_on();
    }

    fn completion(&mut self, completion: Completion) {
        match completion {
            Completion::Claimed(claimed) => self.claimed(claimed),
            Completion::ClaimRefused { connection, reason } => self.claim_refused(connection, reason),
            Completion::Revoke { connection } => self.revoke(connection),
            Completion::QueueFull { connection } => self.queue_was_full(connection),
            Completion::Subscribed { connection, ticket, results } => {
                self.subscribed(connection, ticket, &results)
            }
            Completion::Unsubscribed { connection, ticket, results } => {
                self.unsubscribed(connection, ticket, &results);
            }
            Completion::Deliver { connection, first, more } => {
                self.session_deliveries(connection, first, more);
            }
            Completion::Release { connection, packet_id, reason } => {
                self.release_delivery(connection, packet_id, reason)
            }
            Completion::WrongAcknowledgement { connection } => self.wrong_acknowledgement(connection),
            Completion::Complete { connection, packet_id } => self.complete_release(connection, packet_id),
            Completion::RoomForPage { connection } => self.room_for_page(connection),
            Completion::RoomToRetain { connection, is_there } => self.room_to_retain(connection, is_there),
            Completion::Joined { connection, ticket, place, reason } => {
                self.joined(connection, ticket, place, reason);
            }
            Completion::Left { connection, ticket } => self.left(connection, ticket),
        }
    }

    /// Sends on what a shard of this worker has decided.
    pub(super) fn carry_out(&mut self, output: &mut ShardOutput) {
        for (worker, letter) in output.letters.drain(..) {
            self.post(worker, letter);
        }
        for (shard, request) in output.requests.drain(..) {
            self.request(shard, request);
        }
        let own = self.id;
        for (token, reason) in output.acknowledged.drain(..) {
            match token {
                // Not at once, but in the order of the letters: completions of one shard stay in order.
                Token::Publish { connection, .. } => {
                    self.outbox[connection.worker.index()].acknowledged.push((token, reason));
                }
                Token::Operator { worker, .. } => {
                    self.outbox[worker.index()].acknowledged.push((token, reason))
                }
                Token::Forwarded { worker, .. } | Token::Copy { worker, .. } => {
                    self.outbox[worker.index()].acknowledged.push((token, reason))
                }
                Token::Append { .. } | Token::Given { .. } => self.answer(token, reason),
            }
        }
        for offer in output.given.drain(..) {
            self.forward_to_group(&offer);
        }
        for (node, topic, stamp) in output.deleted.drain(..) {
            let all = (0..self.node.others()).map(NodePlace).filter(|_| node.is_none());
            node.into_iter().chain(all).for_each(|node| self.tell_deletion(node, &topic, stamp));
        }
        for (from, message, stamp) in output.learned.drain(..) {
            self.tell_on(from, &message, stamp);
        }
        for will in output.wills.drain(..) {
            self.post(own, Letter::Will(Box::new(will)));
        }
    }
}
