//! Who serves a Client Identifier, and the life of its session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;
use session::{Deliveries, Toggles};

use super::{Client, HashMap, MemoryShard, Overflow, Session, ShardOutput};
use crate::ids::{SessionId, Time};
use crate::mail::{Claimed, Resume};
use crate::store::{Claim, Completion, Enqueue, Release, Request, WillThen, expires_at, shards_of};

impl MemoryShard {
    pub(super) fn claim(&mut self, now: Time, claim: Box<Claim>, out: &mut ShardOutput) {
        let client = self.clients.entry(claim.client_id.clone()).or_default();
        if (client.owner.is_some() || client.session.is_some()) && !client.user.yields_to(claim.user) {
            self.counters.claims_refused += 1;
            let reason = ReasonCode::ClientIdentifierNotValid;
            return out.complete(Completion::ClaimRefused { connection: claim.connection, reason });
        }
        let Some(owner) = client.owner else {
            return self.grant(now, *claim, out);
        };
        // [MQTT-3.1.4-3]: the old connection goes first, and has gone before the new one hears anything.
        self.counters.takeovers += 1;
        match client.pending.replace(claim) {
            None => out.complete(Completion::Revoke { connection: owner }),
            Some(overtaken) => {
                let reason = ReasonCode::SessionTakenOver;
                out.complete(Completion::ClaimRefused { connection: overtaken.connection, reason });
            }
        }
    }

    /// Clean Start begins a session anew, else one that exists goes on [MQTT-3.1.4-4] [MQTT3-3.1.4-3]; it lasts at least as
    /// long as the connection [MQTT3-4.1.0-1] [MQTT3-4.1.0-2].
    pub(super) fn grant(&mut self, now: Time, claim: Claim, out: &mut ShardOutput) {
        let mut existing = self.clients.get(&claim.client_id).and_then(|client| client.session);
        if let Some((slot, generation)) = existing {
            // Its time may have come without a tick.
            let over = self.sessions.get(slot, generation).is_none_or(|session| session.ends <= now);
            if claim.clean_start || over {
                self.end_session(slot, generation, out); // [MQTT-3.1.2-4]
                existing = None;
            }
        }
        if existing.is_none()
            && claim.expiry > 0
            && self.load.sessions.load(Relaxed) >= u64::from(self.settings.session.sessions_max)
        {
            self.counters.sessions_refused += 1;
            self.forget_client_if_idle(&claim.client_id);
            let reason = ReasonCode::QuotaExceeded;
            return out.complete(Completion::ClaimRefused { connection: claim.connection, reason });
        }
        let session_present = existing.is_some();
        let place = existing.or_else(|| (claim.expiry > 0).then(|| self.new_session(&claim)));
        let client = self.clients.entry(claim.client_id.clone()).or_default();
        client.owner = Some(claim.connection);
        client.session = place;
        client.user = claim.user;
        let Some((slot, generation)) = place else {
            let connection = claim.connection;
            let claimed = Claimed { connection, session_present, session: None, resume: None };
            return out.complete(Completion::Claimed(claimed));
        };
        let id = SessionId { shard: self.id, slot, generation };
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        *self.held.of(session) -= session.held_bytes();
        session.owner = Some(claim.connection);
        *self.held.of(session) += session.held_bytes();
        session.past_owner = session.last_owner;
        session.last_owner = session.owner;
        session.window = claim.window;
        session.expiry = claim.expiry;
        session.ends = Time::NEVER;
        // [MQTT-3.1.3-9]: none when the session is resumed before its Will is due.
        if session.will_due <= now {
            self.publish_will(slot, generation, out);
        }
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        session.will_due = Time::NEVER;
        session.will = claim.will;
        session.deliveries.reconnect();
        let resume = session_present.then(|| {
            let subscriptions = session.subscriptions.iter();
            let subscriptions = subscriptions.map(|(filter, (options, id))| (filter.clone(), *options, *id));
            Box::new(Resume {
                subscriptions: subscriptions.collect(),
                received: session.received.clone(),
                toggles: session.toggles.clone(),
                dispatched: session.dispatched.clone(),
            })
        });
        let connection = claim.connection;
        out.complete(Completion::Claimed(Claimed { connection, session_present, session: Some(id), resume }));
        self.tell_groups(id, out);
        self.pump(now, slot, generation, out);
    }

    pub(super) fn new_session(&mut self, claim: &Claim) -> (u32, u32) {
        self.load.sessions.fetch_add(1, Relaxed);
        self.sessions.insert(Session {
            client_id: claim.client_id.clone(),
            owner: None,
            last_owner: None,
            past_owner: None,
            window: claim.window,
            expiry: claim.expiry,
            ends: Time::NEVER,
            will: None,
            will_due: Time::NEVER,
            subscriptions: HashMap::with_hasher(self.hasher.clone()),
            deliveries: Deliveries::default(),
            waiting_bytes: 0,
            inflight_bytes: 0,
            overflow_bytes: 0,
            overflow: VecDeque::new(),
            place_freed: Time::default(),
            armed: Time::NEVER,
            received: Vec::new(),
            toggles: Toggles::default(),
            dispatched: Vec::new(),
            known_to: 0,
            backlogged: false,
        })
    }

    pub(super) fn release(&mut self, now: Time, mut release: Release, out: &mut ShardOutput) {
        let Some(client) = self.clients.get_mut(&release.client_id) else { return };
        if client.owner != Some(release.connection) {
            client.pending.take_if(|pending| pending.connection == release.connection);
            return;
        }
        client.owner = None;
        let pending = client.pending.take();
        match client.session {
            Some((slot, generation)) => {
                if let Some(session) = self.sessions.get_mut(slot, generation) {
                    session.known_to |= release.known_to;
                    if let Some(dispatched) = release.dispatched.take() {
                        session.dispatched = dispatched;
                    }
                }
                self.release_session(now, slot, generation, release.expiry, release.will, out);
            }
            None => {
                assert_eq!(release.will, WillThen::Discard, "a session that ended with its connection")
            }
        }
        match pending {
            Some(claim) => self.grant(now, *claim, out),
            None => self.forget_client_if_idle(&release.client_id),
        }
    }

    pub(super) fn release_session(
        &mut self,
        now: Time,
        slot: u32,
        generation: u32,
        expiry: Option<u32>,
        will: WillThen,
        out: &mut ShardOutput,
    ) {
        let id = SessionId { shard: self.id, slot, generation };
        let Some(session) = self.sessions.get_mut(slot, generation) else { return };
        *self.held.of(session) -= session.held_bytes();
        session.owner = None;
        *self.held.of(session) += session.held_bytes();
        session.expiry = expiry.unwrap_or(session.expiry);
        session.ends = expires_at(now, session.expiry);
        let ends = session.ends;
        match (will, &session.will) {
            // Due after its delay or when the session ends, whichever comes first [MQTT-3.1.3-9].
            (WillThen::Arm, Some((_, delay))) => session.will_due = expires_at(now, *delay).min(ends),
            (WillThen::Arm, None) => {}
            (WillThen::Discard, _) => session.will = None,
        }
        if session.will_due <= now {
            self.publish_will(slot, generation, out);
        }
        // Nobody reads any more: publishers stop waiting, the rule for full queues decides.
        self.let_in(now, slot, generation, usize::MAX, out);
        self.trim(slot, generation);
        self.tell_groups(id, out);
        if ends <= now {
            self.end_session(slot, generation, out);
        }
        self.arm(slot, generation);
    }

    /// Ends a session: its subscriptions, what waits for it, and a Will that was still to come [MQTT-3.1.2-8].
    pub(super) fn end_session(&mut self, slot: u32, generation: u32, out: &mut ShardOutput) {
        let armed = |session: &Session| session.will_due != Time::NEVER;
        if self.sessions.get(slot, generation).is_some_and(armed) {
            self.publish_will(slot, generation, out);
        }
        let Some(session) = self.sessions.remove(slot, generation) else { return };
        self.load.sessions.fetch_sub(1, Relaxed);
        *self.held.of(&session) -= session.held_bytes();
        self.subscriptions -= session.subscriptions.len();
        let id = SessionId { shard: self.id, slot, generation };
        let known =
            session.dispatched.iter().fold(session.known_to, |bits, dispatched| bits | dispatched.shards);
        for shard in shards_of(known) {
            out.requests.push((shard, Request::ForgetOrigin { origin: id.origin() }));
        }
        for filter in session.subscriptions.keys() {
            self.drop_subscription(id, filter, None, out);
        }
        for Overflow { entry, append, .. } in session.overflow {
            self.bounce_or_drop(entry, out);
            self.one_taken(append, out);
        }
        self.counters.queued_messages -= session.deliveries.waiting() as u64;
        self.counters.queued_bytes -= session.waiting_bytes as u64;
        for entry in session.deliveries.into_unfinished() {
            self.bounce_or_drop(entry, out);
        }
        if let Some(client) = self.clients.get_mut(&session.client_id) {
            client.session = None;
        }
        self.forget_client_if_idle(&session.client_id);
    }

    pub(super) fn bounce_or_drop(&mut self, entry: Enqueue, out: &mut ShardOutput) {
        match entry.group {
            // [MQTT-4.8.2-4]: what a member has not acknowledged when its session ends goes to another.
            Some(group) => {
                let bounce = Request::Bounce { group, message: entry.message, token: None };
                out.requests.push((group.shard, bounce));
            }
            None => self.counters.dropped_session_ended += 1,
        }
    }

    pub(super) fn forget_client_if_idle(&mut self, client_id: &Arc<str>) {
        let idle =
            |client: &Client| client.owner.is_none() && client.session.is_none() && client.pending.is_none();
        if self.clients.get(client_id).is_some_and(idle) {
            self.clients.remove(client_id);
        }
    }
}
