//! Reactions to the effects of an applied batch.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;
use shard::{Answer, DropReason, Effect, EndReason, SessionUid};

use super::propose::{Continuation, SkipReason};
use super::{ShardHost, ShardOutput, Waiter};
use crate::ids::Time;
use crate::message::Message;
use crate::store::{Completion, QUEUE_REFUSED, Request};
use crate::worker::Event;

impl ShardHost {
    pub(super) fn effect(
        &mut self,
        now: Time,
        effect: Effect,
        continuations: &mut [Continuation],
        out: &mut ShardOutput,
    ) {
        match effect {
            Effect::Answer { ordinal, answer } => {
                if let Some(continuation) = continuations.get_mut(ordinal as usize) {
                    let continuation = std::mem::replace(continuation, Continuation::Nobody);
                    self.answered(now, continuation, answer, out);
                }
            }
            Effect::Queued { ordinal, session, n, pinned, over } => {
                let (message, append, waits) = match continuations.get(ordinal as usize) {
                    Some(Continuation::Publish { message, append }) => (message, *append, append.is_some()),
                    Some(Continuation::Enqueue { message, append, .. }) => {
                        (message, *append, over && self.has_token(*append))
                    }
                    _ => return,
                };
                self.queued(session, n, message, pinned);
                if over {
                    self.queue_exceeded(now, session, n, append, waits);
                }
            }
            Effect::Pinned { session, .. } => self.touch(session),
            Effect::Room { session, before } => self.room_freed(now, session, before, out),
            Effect::Dropped { session, from, to, reason } => {
                let dropped = to - from;
                self.drops.add(session, dropped);
                match reason {
                    DropReason::QueueFull => {
                        self.counters.dropped_queue_full += dropped;
                        self.note_dropped(now, session, dropped);
                    }
                    DropReason::Expired => self.counters.dropped_expired += dropped,
                }
                let why = if reason == DropReason::QueueFull { "queue_full" } else { "expired" };
                for n in from..to {
                    let message = self.bodies_of(session).and_then(|bodies| bodies.get(n)).cloned();
                    self.note_dropped_message(session, message, why, out);
                    self.forget_body(session, n);
                }
                self.touch(session);
            }
            Effect::NotQueued { ordinal, session } => {
                let message = match continuations.get(ordinal as usize) {
                    Some(Continuation::Publish { message, .. } | Continuation::Enqueue { message, .. }) => {
                        Some(message.clone())
                    }
                    _ => None,
                };
                self.note_dropped_message(session, message, "queue_full", out);
                self.counters.dropped_queue_full += 1;
                self.drops.add(session, 1);
                self.note_dropped(now, session, 1);
            }
            Effect::SessionEnded { session, client_id, reason } => {
                self.charged.session_ended(session);
                self.drops.forget(session);
                if reason == EndReason::Expired {
                    self.counters.sessions_expired += 1;
                }
                self.ended(now, session, &client_id, out);
            }
            Effect::FilterAdded { filter } => self.filter_added(filter),
            Effect::FilterRemoved { filter } => {
                self.group_turns.remove(&filter);
                self.routes.remove(filter);
            }
            Effect::WillDue { id, session } => {
                if let Some(owner) = self.wills.of_sessions.remove(&session) {
                    self.wills.of_due.insert(id, owner);
                }
                self.will_due(id, out);
            }
            Effect::Orphaned { id, key, session, n } => self.orphaned((session, n), id, key, out),
            Effect::RetainedExpired { topic } => self.charged.not_retained(&topic),
            Effect::RetainedChanged { .. } => self.tend_retained(),
        }
    }

    /// Records a message that a session does not get, for an event. A message that is only on the disk has none.
    pub(super) fn note_dropped_message(
        &self,
        uid: SessionUid,
        message: Option<Message>,
        why: &'static str,
        out: &mut ShardOutput,
    ) {
        if self.load.events.load(Relaxed) & Event::DeliveryDropped.bit() == 0 {
            return;
        }
        if let (Some(message), Some(session)) = (message, self.replica.state().session(uid)) {
            out.dropped.push((session.client_id().into(), message, why));
        }
    }

    fn has_token(&self, append: Option<u32>) -> bool {
        let append = append.and_then(|key| self.appends.get(key));
        append.is_some_and(|append| matches!(append.waiter, Waiter::Token(_) | Waiter::Unsynced(_)))
    }

    fn answered(&mut self, now: Time, continuation: Continuation, answer: Answer, out: &mut ShardOutput) {
        match continuation {
            Continuation::Nobody => {}
            Continuation::Claim(claim) => self.claimed(now, claim, answer, out),
            Continuation::Release(client_id) => self.released(&client_id),
            Continuation::Subscribe { session, reply, filters, shapes } => {
                // The index has the filters.
                drop(shapes);
                self.subscribed(now, session, reply, &filters, answer, out);
            }
            Continuation::Unsubscribe { reply, filters } => self.unsubscribed(reply, &filters, answer, out),
            Continuation::Publish { message, append } => match (append, answer) {
                (Some(key), Answer::Refused { session }) => {
                    self.publish_refused(now, session, message, key, out);
                }
                (Some(key), Answer::PerhapsRefused) => self.publish_perhaps_refused(now, key, out),
                (Some(key), answer) => self.accepted(now, key, result_of(&answer), out),
                (None, _) => {}
            },
            Continuation::Retain { append, charge } => {
                // A message that comes again may not be the last one any more.
                if matches!(answer, Answer::Retained { .. }) {
                    self.charged.retained(charge);
                }
                if let Some(key) = append {
                    self.accepted(now, key, result_of(&answer), out);
                }
            }
            Continuation::Enqueue { message, append, group, gone } => {
                let reason = match answer {
                    Answer::Refused { session } => {
                        return self.enqueue_refused(now, session, message, append, out);
                    }
                    Answer::Full => ReasonCode::QuotaExceeded,
                    Answer::Gone | Answer::Stale => gone,
                    _ => return self.one_accepted(now, append, out),
                };
                self.session_gone(now, group.map(|group| (group, reason)), message, append, out);
            }
            Continuation::Acknowledge { session, epoch, connection, packet_id, kind } => {
                self.acknowledged((session, epoch), connection, packet_id, kind, &answer, out);
            }
            Continuation::Skip { session, n, epoch, reason } => {
                if reason == SkipReason::Expired && matches!(answer, Answer::Finished { .. }) {
                    let message = self.bodies_of(session).and_then(|bodies| bodies.get(n)).cloned();
                    self.note_dropped_message(session, message, "expired", out);
                }
                self.skipped((session, n), epoch, reason, &answer);
            }
            Continuation::Token(token) => out.acknowledged.push((token, result_of(&answer))),
            Continuation::Released { connection, packet_id } => {
                out.complete(Completion::Complete { connection, packet_id });
            }
            Continuation::Forgotten(identity) => self.forgotten(identity),
            Continuation::Clock => self.ticked(),
            Continuation::Forget { identity, shards } => {
                self.forget_settled(identity, shards, out);
            }
            Continuation::Delete(token, charge) => {
                if matches!(answer, Answer::Retained { .. }) {
                    self.charged.retained(charge);
                }
                Self::deleted_retained(token, &answer, out);
            }
            Continuation::Overdue(session) => self.overdue_settled(now, session, out),
        }
    }

    /// Removes the connection and the messages of a session that has ended.
    fn ended(&mut self, now: Time, uid: SessionUid, client_id: &str, out: &mut ShardOutput) {
        self.log_drops(now, uid, client_id);
        let live = self.session_disconnected(uid);
        self.wills.of_sessions.remove(&uid);
        if let Some(bodies) = self.memory.absent.remove(&uid) {
            self.memory.held.for_absent -= bodies.bytes();
        }
        for over in live.into_iter().flat_map(|live| live.over) {
            self.one_accepted(now, over.append, out);
        }
        if let Some(client) = self.clients.get_mut(client_id)
            && client.session() == Some(uid)
        {
            client.claim_state().session = None;
        }
        let dispatched = self.published.dispatched.remove(&uid).unwrap_or_default();
        let known = self.published.known_to.remove(&uid).unwrap_or_default();
        let known = dispatched.iter().fold(known, |known, dispatched| known | dispatched.shards);
        let origin = self.session_id(uid).origin();
        for shard in known.iter() {
            out.requests.push((shard, Request::ForgetOrigin { origin }));
        }
    }
}

/// Result of a message for its publisher. It was not applied if its node is over, or if the shard has no room to
/// remember that node.
fn result_of(answer: &Answer) -> ReasonCode {
    match answer {
        Answer::Stale => ReasonCode::UnspecifiedError,
        Answer::Full => ReasonCode::QuotaExceeded,
        Answer::Refused { .. } => QUEUE_REFUSED,
        _ => ReasonCode::Success,
    }
}
