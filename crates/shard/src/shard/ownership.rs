//! Ownership of Client Identifiers, and the beginning and end of their sessions.

use std::sync::Arc;

use mqtt::QoS;

use crate::command::{Claim, WillFate};
use crate::effect::{Answer, Effect, EndReason};
use crate::entry::{Entry, Phase};
use crate::ephemeral::EPHEMERAL_EPOCH;
use crate::ids::{SessionUid, client_bucket};
use crate::links::{LINK, wanted_origin};
use crate::message::NEVER;
use crate::mutation::{Mutation, mutated};
use crate::request_number::RequestNumber;
use crate::requests::ClaimResult;
use crate::route::Options;
use crate::session::{ArmedWill, Session, after};
use crate::shard::Shard;
use crate::shard::subscribe::Wanting;
use crate::subscriptions::Subscriptions;

impl Shard {
    /// Claims a session. Clean Start begins a new one, otherwise an existing one is resumed [MQTT-3.1.4-4]
    /// [MQTT3-3.1.4-3]. A session lasts at least as long as the connection [MQTT3-4.1.0-1] [MQTT3-4.1.0-2].
    pub(super) fn claim(
        &mut self,
        ordinal: u32,
        claim: &Claim<'_>,
        request: Option<RequestNumber>,
        effects: &mut Vec<Effect>,
    ) {
        let bucket = client_bucket(claim.client_id);
        let era = match self.enter(claim.owner) {
            Ok(era) => era,
            Err(answer) => return effects.push(Effect::Answer { ordinal, answer }),
        };
        self.touch(bucket);
        self.evict_ephemeral(claim.client_id, effects);
        let mut existing = self.sessions.slot_of(claim.client_id);
        if let Some(slot) = existing {
            existing = self.evict_owner(slot, claim.clean_start, effects);
        }
        let present = existing.is_some();
        let slot = match existing {
            Some(slot) => slot,
            None if claim.expiry_s == 0 => {
                let answer = self.claim_ephemeral(era, claim, request);
                return effects.push(Effect::Answer { ordinal, answer });
            }
            None => match self.begin_session(claim.client_id, bucket) {
                Some(slot) => slot,
                None => return effects.push(Effect::Answer { ordinal, answer: Answer::Full }),
            },
        };
        self.grant(slot, era, claim);
        let session = self.session_at(slot);
        let result = Some((session.uid, session.epoch, present));
        let answer = Answer::Claimed { session: Some(session.uid), epoch: session.epoch, present };
        self.note_claim(claim, request, result);
        effects.push(Effect::Answer { ordinal, answer });
        self.report_open(slot, effects);
        self.pump(slot, effects);
        self.rearm(slot);
    }

    /// Claims a Client Identifier without a session that is to outlive the connection.
    fn claim_ephemeral(&mut self, era: u32, claim: &Claim<'_>, request: Option<RequestNumber>) -> Answer {
        let answer = Answer::Claimed { session: None, epoch: 0, present: false };
        let result = match claim.keeps_ephemeral {
            false => None,
            true => match self.begin_ephemeral(era, claim) {
                Some(uid) => Some((uid, EPHEMERAL_EPOCH, false)),
                None => return Answer::Full,
            },
        };
        self.note_claim(claim, request, result);
        answer
    }

    /// Remembers the result of a Claim that may come again.
    fn note_claim(&mut self, claim: &Claim<'_>, request: Option<RequestNumber>, result: ClaimResult) {
        if let (Some(RequestNumber::Claim { number }), Some(owner)) = (request, claim.owner) {
            self.eras.note_claim(owner.node, number, result);
        }
    }

    /// Removes the owner of a session that is claimed, which has gone or is taken over. Returns the session unless
    /// it has ended.
    fn evict_owner(&mut self, slot: u32, clean_start: bool, effects: &mut Vec<Effect>) -> Option<u32> {
        self.settle(slot, effects);
        if self.sessions.at(slot)?.has_owner {
            self.release_slot(slot, self.now, None, WillFate::Arm, effects);
        }
        // The session may have expired without a tick.
        let early = if mutated(Mutation::EarlyExpiry) { 3_600_000 } else { 0 };
        let over = self.sessions.at(slot)?.ends <= self.now.saturating_add(early);
        if clean_start && !mutated(Mutation::IgnoreCleanStart) || over {
            let reason = if over { EndReason::Expired } else { EndReason::CleanStart };
            self.end_slot(slot, reason, effects); // [MQTT-3.1.2-4]
            return None;
        }
        self.disarm(slot);
        // No Will when the session is resumed before the Will is due [MQTT-3.1.3-9].
        if self.sessions.at(slot)?.will().is_some_and(|will| will.due <= self.now) {
            self.will_due(slot, effects);
        }
        Some(slot)
    }

    fn begin_session(&mut self, client_id: &str, bucket: u16) -> Option<u32> {
        let slot = self.sessions.next_slot()?;
        self.sessions_created += 1;
        self.counts.sessions += 1;
        self.sessions.insert(Session {
            client_id: client_id.into(),
            uid: SessionUid::new(self.sessions_created, slot),
            connection: 0,
            ends: NEVER,
            next: 0,
            subscriptions: Subscriptions::default(),
            queue: None,
            extra: None,
            epoch: 0,
            user: 0,
            expiry_s: 0,
            era: 0,
            receive_maximum: 0,
            bucket,
            has_owner: false,
            stuck: false,
            is_link: client_id.starts_with(LINK),
        });
        Some(slot)
    }

    fn grant(&mut self, slot: u32, era: u32, claim: &Claim<'_>) {
        let session = self.session_at(slot);
        session.connection = claim.connection;
        session.user = claim.user;
        session.receive_maximum = claim.window;
        session.expiry_s = claim.expiry_s;
        session.set_queue_limits(claim.queue_limits);
        let refuses = session.refuses_messages();
        if session.epoch == 0 || !mutated(Mutation::KeepEpoch) {
            session.epoch = session.epoch.wrapping_add(1).max(1);
        }
        session.era = era;
        session.has_owner = true;
        session.ends = NEVER;
        session.take_will();
        if let Some(will) = &claim.will {
            let message: Arc<[u8]> = will.message.to_bytes().into();
            session.set_will(ArmedWill { message, delay_s: will.delay_s, due: NEVER });
        }
        let bytes = session.queue.as_mut().map_or(0, |queue| {
            queue.dup_below = queue.open_range().end;
            queue.bytes()
        });
        match refuses {
            true => self.refusing.insert(slot),
            false => self.refusing.remove(&slot),
        };
        self.sessions.set_last_number(slot, 0);
        self.counts.owned += 1;
        self.counts.held_absent_bytes -= bytes;
    }

    /// Reports all open deliveries, so that they are sent again in order [MQTT-4.4.0-1] [MQTT-4.6.0-1].
    fn report_open(&self, slot: u32, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.at(slot) else { return };
        let Some(queue) = &session.queue else { return };
        let open = queue.open_range();
        let unfinished = queue.from(open.start).take_while(|(n, _)| *n < open.end);
        let unfinished = unfinished.filter(|(_, entry)| entry.phase() != Phase::Finished);
        for (n, _) in unfinished {
            match effects.last_mut() {
                Some(Effect::Pinned { session: last, to, .. }) if *last == session.uid && *to == n => {
                    *to = n + 1
                }
                _ => effects.push(Effect::Pinned { session: session.uid, from: n, to: n + 1 }),
            }
        }
    }

    pub(super) fn release(
        &mut self,
        uid: SessionUid,
        epoch: u32,
        expiry_s: Option<u32>,
        will: WillFate,
        effects: &mut Vec<Effect>,
    ) -> Answer {
        if epoch == EPHEMERAL_EPOCH
            && let Some(answer) = self.release_ephemeral(uid, will, effects)
        {
            return answer;
        }
        match self.owned_slot(uid, epoch) {
            Ok(slot) => {
                self.release_slot(slot, self.now, expiry_s, will, effects);
                Answer::Done
            }
            Err(answer) => answer,
        }
    }

    /// Releases a session. The connection ended at `disconnected_at`, which is now or the end of its
    /// node's incarnation.
    pub(super) fn release_slot(
        &mut self,
        slot: u32,
        disconnected_at: u64,
        expiry_s: Option<u32>,
        fate: WillFate,
        effects: &mut Vec<Effect>,
    ) {
        self.disarm(slot);
        let now = self.now;
        let Some(session) = self.sessions.at(slot) else { return };
        let was_owned = session.has_owner;
        let session = self.session_at(slot);
        session.has_owner = false;
        let expiry_s = expiry_s.filter(|_| !mutated(Mutation::IgnoreLastExpiry));
        session.expiry_s = expiry_s.unwrap_or(session.expiry_s);
        session.ends = after(disconnected_at, session.expiry_s);
        let (ends, will) = (session.ends, session.take_will());
        if let Some(mut will) = will.filter(|_| fate == WillFate::Arm) {
            // The Will is due after its delay or when the session ends, whichever comes first [MQTT-3.1.3-9].
            will.due = after(disconnected_at, will.delay_s).min(ends);
            session.set_will(will);
        }
        let is_due = session.will().is_some_and(|will| will.due <= now);
        let bytes = session.queue.as_ref().map_or(0, |queue| queue.bytes());
        if was_owned {
            self.counts.owned -= 1;
            self.counts.held_absent_bytes += bytes;
        }
        if is_due {
            self.will_due(slot, effects);
        }
        // Nobody reads the queue any more: publishers stop waiting, and the rule for full queues decides.
        self.settle_over(slot, effects);
        self.trim(slot, effects);
        if ends <= now {
            let reason = if ends == disconnected_at { EndReason::Released } else { EndReason::Expired };
            return self.end_slot(slot, reason, effects);
        }
        self.session_at(slot).shrink();
        self.rearm(slot);
    }

    pub(super) fn will_due(&mut self, slot: u32, effects: &mut Vec<Effect>) {
        let session = self.session_at(slot);
        if let Some(will) = session.take_will() {
            let session = session.uid;
            self.push_will(session, will.message, effects);
        }
    }

    pub(super) fn end(&mut self, uid: SessionUid, effects: &mut Vec<Effect>) -> Answer {
        match self.slot(uid, effects) {
            Ok(slot) => {
                self.end_slot(slot, EndReason::Ended, effects);
                Answer::Done
            }
            Err(answer) => answer,
        }
    }

    /// Ends a session with its subscriptions, its queue, and a Will that was not due yet [MQTT-3.1.2-8]. Its part
    /// was touched.
    pub(super) fn end_slot(&mut self, slot: u32, reason: EndReason, effects: &mut Vec<Effect>) {
        let Some(session) = self.sessions.at(slot) else { return };
        let owned = session.has_owner;
        self.disarm(slot);
        self.will_due(slot, effects);
        let Some(session) = self.sessions.remove(slot) else { return };
        self.refusing.remove(&slot);
        self.counts.sessions -= 1;
        self.counts.owned -= u64::from(owned);
        self.counts.subscriptions -= session.subscriptions.len() as u64;
        let origin = wanted_origin(&session.client_id);
        for (text, options, _) in session.subscriptions.iter() {
            self.drop_subscription(slot, text, Wanting::of(origin, Options(options)), effects);
        }
        if let Some(queue) = session.queue {
            self.counts.queued_messages -= queue.waiting_range().end - queue.waiting_range().start;
            self.counts.queued_bytes -= queue.waiting_bytes();
            let uid = session.uid;
            queue.into_entries().for_each(|(n, entry)| self.end_entry((uid, n), entry, owned, effects));
        }
        match reason {
            EndReason::Expired => self.counts.sessions_expired += 1,
            _ => self.counts.sessions_ended += 1,
        }
        let (session, client_id) = (session.uid, session.client_id);
        effects.push(Effect::SessionEnded { session, client_id, reason });
    }

    /// Ends an entry of a session that ends. Another member of a shared subscription receives its unacknowledged
    /// messages [MQTT-4.8.2-4]. At QoS 2 that holds only for messages that were not sent [MQTT-4.8.2-5].
    fn end_entry(
        &mut self,
        (session, n): (SessionUid, u64),
        mut entry: Entry,
        owned: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !entry.needs_body() {
            return;
        }
        let in_group = self.bodies.details(&entry).is_some_and(|details| details.group.is_some());
        let may_go = entry.phase() == Phase::Waiting || entry.qos() == QoS::AtLeastOnce;
        if in_group && may_go {
            self.counts.held_bytes -= entry.size();
            self.counts.held_absent_bytes -= if owned { 0 } else { entry.size() };
            entry.set_phase(Phase::Waiting);
            self.orphans_created += 1;
            self.orphans.insert(self.orphans_created, entry);
            let id = self.orphans_created;
            return effects.push(Effect::Orphaned { id, key: entry.key, session, n });
        }
        self.counts.dropped_session_ended += 1;
        self.release_entry(&mut entry, owned);
    }

    /// Returns a session that is known to exist.
    pub(super) fn session_at(&mut self, slot: u32) -> &mut Session {
        self.sessions.at_mut(slot).expect("looked up by this command")
    }
}
