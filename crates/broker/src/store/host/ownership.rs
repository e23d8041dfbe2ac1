//! Ownership of Client Identifiers.
//!
//! A single node keeps the owners of ephemeral sessions in memory. Those of durable sessions are in the state too, so
//! that their expiry and their Will delay start when the process ends. In a cluster the state has the owners of
//! ephemeral sessions, with their Wills, and no host remembers those of its own: each reads them there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mqtt::ReasonCode;
use session::Toggles;
use shard::{Answer, Command, EPHEMERAL_EPOCH, Mutation, Phase, SessionUid, SessionView, WillFate, mutated};

use super::clients::Client;
use super::live::Live;
use super::producers::Producer;
use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::batch::{Claimed, Resume};
use crate::ids::{ConnectionId, ShardSet, Time, WorkerId};
use crate::internal;
use crate::node::OwnerKey;
use crate::route::Options;
use crate::store::log::Condition;
use crate::store::{Attach, Claim, Completion, Release, WalkProgress, WillDisposition};

/// Maximum number of clients of each kind of session in a sample.
const OWNERS_SAMPLED: usize = 500;

impl ShardHost {
    pub(super) fn claim(&mut self, now: Time, claim: Box<Claim>, out: &mut ShardOutput) {
        let Some(claim) = self.answer_again(claim, out) else { return };
        let kept = self
            .replica
            .state()
            .session_of(&claim.client_id)
            .and_then(|uid| self.replica.state().session(uid));
        let ephemeral = self.replica.state().ephemeral_of(&claim.client_id);
        let is_changing = || self.clients.get(&claim.client_id).is_some_and(|client| client.underway() > 0);
        let ephemeral = ephemeral.filter(|session| session.owner_node().is_some() && !is_changing());
        let user = kept.map(|session| session.user()).or(ephemeral.map(|session| session.user()));
        let kept = user.map(OwnerKey::from_u32);
        self.recall_owner(&claim.client_id);
        let client = self.clients.get_or_insert(&claim.client_id);
        // A claim in progress whose worker is gone has no owner, and still is its user's.
        let is_of_client = client.owner().is_some() || client.is_claiming();
        let user = if is_of_client { Some(client.user) } else { kept };
        if user.is_some_and(|user| !user.allows_takeover_by(claim.user)) {
            self.counters.claims_refused += 1;
            self.forget_client_if_idle(&claim.client_id);
            return self.refuse(&claim, ReasonCode::ClientIdentifierNotValid, out);
        }
        if client.is_claiming() && client.owner().is_none() {
            return self.claim_behind_lost(claim, out);
        }
        let is_closed_first =
            !(mutated(Mutation::NoTakeover) || self.replica.is_agreed() && mutated(Mutation::SkipRevoke));
        let Some(owner) = client.owner().filter(|_| is_closed_first) else {
            let Some(claim) = self.await_owner(claim, out) else { return };
            return self.accept_claim(now, claim, out);
        };
        // [MQTT-3.1.4-3]: the old connection is closed before the new one gets an answer.
        self.counters.takeovers += 1;
        match client.claim_state().pending.replace(claim) {
            None => out.complete(Completion::Revoke { connection: owner }),
            Some(overtaken) => self.refuse(&overtaken, ReasonCode::SessionTakenOver, out),
        }
    }

    /// Counts some connected clients by node, if that was requested.
    pub fn sample_owners(&mut self) {
        let samples = &self.load.owner_samples;
        let requested = samples.requested.load(Relaxed);
        if std::mem::replace(&mut self.owners_sampled, requested) == requested || !self.replica.is_agreed() {
            return;
        }
        let mut nodes = BTreeMap::new();
        for owner in self.replica.state().sample_owners(requested as u32, OWNERS_SAMPLED) {
            *nodes.entry(owner.node).or_default() += 1;
        }
        *sync::lock(&samples.taken[self.id.index()]) = Some(nodes);
    }

    /// Handles a claim while that of a connection whose worker is gone is in progress. The state does not name that
    /// connection yet, so that nobody could close it: another claim waits.
    fn claim_behind_lost(&mut self, claim: Box<Claim>, out: &mut ShardOutput) {
        let identity = self.producers.identity(claim.connection);
        let Some(client) = self.clients.get_mut(&claim.client_id) else { return };
        let claim_state = client.claim_state();
        if claim_state.lost.is_some() && claim_state.lost == identity {
            // It is the same claim, in the next round of its worker. The command in progress answers it.
            claim_state.lost = None;
            let is_taken_over = claim_state.pending.is_some();
            client.set_owner(claim.connection, claim.user);
            if is_taken_over {
                self.counters.takeovers += 1;
                out.complete(Completion::Revoke { connection: claim.connection });
            }
            return;
        }
        if let Some(overtaken) = claim_state.pending.replace(claim) {
            self.refuse(&overtaken, ReasonCode::SessionTakenOver, out);
        }
    }

    /// Answers a Claim that comes again after it was applied, if nothing else remains to be done. It takes nothing
    /// from a later Claim, and does not wait for its own connection. Returns any other Claim.
    fn answer_again(&self, claim: Box<Claim>, out: &mut ShardOutput) -> Option<Box<Claim>> {
        if !self.has_applied_claim(&claim) {
            return Some(claim);
        }
        let connection = claim.connection;
        if self.ephemeral_owned_by(&claim.client_id, connection).is_some() {
            out.complete(Completion::Claimed(Claimed::kept(connection)));
            return None;
        }
        let client = self.clients.get(&claim.client_id);
        let is_later = |client: &Client| client.owner().is_some_and(|owner| owner != connection);
        let identity = self.producers.identity(connection);
        let is_of_another = |client: &Client| client.is_claiming() && client.lost() != identity;
        let is_overtaken = client.is_some_and(|client| is_later(client) || is_of_another(client));
        if !is_overtaken && self.session_owned_by(&claim.client_id, connection).is_some() {
            return Some(claim);
        }
        // It is not refused: the shard has its Will.
        out.complete(Completion::Revoke { connection });
        None
    }

    /// Accepts a claim. Clean Start begins a new session, otherwise an existing one is resumed [MQTT-3.1.4-4]
    /// [MQTT3-3.1.4-3]. It lasts at least as long as the connection [MQTT3-4.1.0-1] [MQTT3-4.1.0-2].
    fn accept_claim(&mut self, now: Time, claim: Box<Claim>, out: &mut ShardOutput) {
        let existing = self.replica.state().session_of(&claim.client_id);
        let keeps_ephemeral = self.keeps_ephemeral();
        let has_ephemeral = self.replica.state().ephemeral_of(&claim.client_id).is_some();
        // A claim that comes again was counted.
        let is_new =
            keeps_ephemeral && !internal::is_reserved(&claim.client_id) && !self.has_applied_claim(&claim);
        let Some(client) = self.clients.get_mut(&claim.client_id) else { return };
        if self.replica.is_agreed() && self.producers.of(claim.connection).is_none() {
            // Its worker is gone, or sends the Claim again.
            return self.forget_client_if_idle(&claim.client_id);
        }
        if is_new && self.access.flaps_in_cluster(&claim.client_id) {
            self.forget_client_if_idle(&claim.client_id);
            return self.refuse(&claim, ReasonCode::Banned, out);
        }
        let is_unknown = existing.is_none() && !has_ephemeral && client.underway() == 0;
        if claim.expiry == 0 && is_unknown && !keeps_ephemeral {
            client.set_owner(claim.connection, claim.user);
            client.settle();
            let (connection, session) = (claim.connection, None);
            let claimed = Claimed { connection, session_present: false, session, epoch: 0, resume: None };
            return out.complete(Completion::Claimed(claimed));
        }
        if let Some(reason) = self.refusal(&claim, existing) {
            self.forget_client_if_idle(&claim.client_id);
            return self.refuse(&claim, reason, out);
        }
        let Some(client) = self.clients.get_mut(&claim.client_id) else { return };
        client.set_owner(claim.connection, claim.user);
        let claim_state = client.claim_state();
        claim_state.claiming = true;
        claim_state.underway += 1;
        let will = claim.will.as_ref().map(|(message, delay)| (message.view(), *delay));
        let properties = will.as_ref().map(|(will, _)| self.replica.stored_will_properties(will));
        let will = will.zip(properties.as_deref());
        let producer = self.producers.of(claim.connection);
        let command = Command::Claim(shard::Claim {
            client_id: &claim.client_id,
            user: claim.user.as_u32(),
            owner: producer.map(|producer| producer.owner),
            connection: self.connection_number(claim.connection),
            clean_start: claim.clean_start,
            expiry_s: claim.expiry,
            window: claim.window,
            will: will.map(|((will, delay_s), properties)| shard::Will {
                message: shard::MessageView { properties, ..will.stored() },
                delay_s,
            }),
            keeps_ephemeral,
            queue_limits: claim.queue_limits,
        });
        let number = producer.map(|producer| producer.claim_number(claim.number));
        self.claim_rate.count(now);
        let ticket = self.replica.propose(now, &command, number, self.claim_rate.urgency(now));
        drop(command);
        self.continue_with(ticket, Continuation::Claim(claim));
    }

    /// Reason why a durable claim cannot be proposed.
    fn refusal(&mut self, claim: &Claim, existing: Option<SessionUid>) -> Option<ReasonCode> {
        if self.replica.condition() == Condition::Failed {
            return Some(ReasonCode::ServerUnavailable);
        }
        let sessions = self.load.sessions_stored();
        if existing.is_none() && claim.expiry > 0 && sessions >= u64::from(self.settings.session.sessions_max)
        {
            self.counters.sessions_refused += 1;
            return Some(ReasonCode::QuotaExceeded);
        }
        if existing.is_none() && claim.expiry > 0 && !self.may_have_session(&claim.payers) {
            self.counters.quota_sessions += 1;
            return Some(ReasonCode::QuotaExceeded);
        }
        None
    }

    pub(super) fn claimed(
        &mut self,
        now: Time,
        mut claim: Box<Claim>,
        answer: Answer,
        out: &mut ShardOutput,
    ) {
        let Some(client) = self.clients.get_mut(&claim.client_id) else { return };
        let owner = client.owner();
        let claim_state = client.claim_state();
        claim_state.underway -= 1;
        (claim_state.claiming, claim_state.lost) = (false, None);
        let Some(connection) = owner else {
            // Its worker is gone. The state names the owner now, so that a claim that waits can close it.
            return match claim_state.pending.take() {
                Some(pending) => self.claim(now, pending, out),
                None => self.forget_client_if_idle(&claim.client_id),
            };
        };
        // Its worker may have begun another round.
        claim.connection = connection;
        let Answer::Claimed { session, epoch, present } = answer else {
            let (gone, pending) = (claim_state.gone.take(), claim_state.pending.take());
            client.clear_owner();
            out.late.extend(gone.as_ref().and_then(|release| release.late()));
            match answer {
                Answer::Stale if gone.is_some() => {}
                // It came again and was overtaken meanwhile, or its node is over.
                Answer::Stale => out.complete(Completion::Revoke { connection }),
                _ => self.refuse(&claim, ReasonCode::QuotaExceeded, out),
            }
            return self.next_claim(now, &claim.client_id, pending, out);
        };
        claim_state.session = session;
        let Some(uid) = session else {
            return self.claimed_ephemeral(now, &claim, out);
        };
        self.charged.session(uid, claim.payers.clone());
        let Some(session) = self.replica.state().session(uid) else { return };
        // A mutation leaves the first one out.
        let first = session.open().start;
        let first = if mutated(Mutation::SkipPinned) { session.open().end.min(first + 1) } else { first };
        let mut live = Live::new(now, connection, epoch, claim.window, first);
        if self.load.full_queues.is_known(&claim.client_id, None, now, self.settings.queue.full_penalty) {
            live.drops_from_now(u64::from(self.settings.queue.messages_max));
        }
        let resume = present.then(|| {
            let subscriptions = session.subscriptions();
            let subscriptions =
                subscriptions.map(|(text, options, id)| (text.into(), Options::from_byte(options), id));
            Box::new(Resume {
                subscriptions: subscriptions.collect(),
                received: session.received().map(|(id, _)| id.get()).collect(),
                toggles: Toggles::of_pages(session.toggles()),
                dispatched: self.published.dispatched.get(&uid).cloned().unwrap_or_default(),
                walks: session.walks().map(walk_of).collect(),
            })
        });
        self.wills.of_sessions.remove(&uid);
        self.session_connected(uid, live);
        self.log_drops(now, uid, &claim.client_id);
        let session = Some(self.session_id(uid));
        let claimed = Claimed { connection, session_present: present, session, epoch, resume };
        out.complete(Completion::Claimed(claimed));
        self.touch(uid);
        self.release_if_gone(now, &claim.client_id, out);
    }

    /// Returns whether all replicas of the shard understand Claims that keep ephemeral sessions, and
    /// [`Command::ForgetBelow`].
    pub(super) fn keeps_ephemeral(&self) -> bool {
        self.load.keeps_ephemeral.load(Relaxed)
    }

    /// Answers a claim that got no durable session. The state remembers the owner, so the host need not.
    fn claimed_ephemeral(&mut self, now: Time, claim: &Claim, out: &mut ShardOutput) {
        let connection = claim.connection;
        let is_kept = self.ephemeral_owned_by(&claim.client_id, connection).is_some();
        let claimed = Claimed::kept(connection);
        let epoch = if is_kept { claimed.epoch } else { 0 };
        out.complete(Completion::Claimed(Claimed { epoch, ..claimed }));
        self.release_if_gone(now, &claim.client_id, out);
        let client = self.clients.get_mut(&claim.client_id);
        if let Some(client) = client
            && is_kept
            && client.owner() == Some(connection)
            && !client.has_pending()
        {
            client.clear_owner();
            self.forget_client_if_idle(&claim.client_id);
        }
    }

    /// Makes the owner of an ephemeral session known to this host, before another connection claims the Client
    /// Identifier. Otherwise only the state knows it.
    pub(super) fn recall_owner(&mut self, client_id: &Arc<str>) {
        let Some((owner, user)) = self.ephemeral_owner(client_id) else { return };
        let client = self.clients.get_or_insert(client_id);
        // While a command about the client is in progress, the owner in the state has given it up.
        if client.owner().is_none() && client.underway() == 0 {
            client.set_owner(owner, user);
        }
    }

    /// Connection that owns an ephemeral session, and its user, if its worker has reported to this host.
    fn ephemeral_owner(&self, client_id: &str) -> Option<(ConnectionId, OwnerKey)> {
        let session =
            self.replica.state().ephemeral_of(client_id).filter(|_| !mutated(Mutation::ForgetOwners))?;
        let connection = self.producers.connection(session.owner_node()?, session.connection())?;
        Some((connection, OwnerKey::from_u32(session.user())))
    }

    /// Connection that owns a Client Identifier, as far as this host can know it.
    pub(super) fn owner_of(&self, client_id: &str) -> Option<ConnectionId> {
        let known = self.clients.get(client_id);
        let is_changing = known.is_some_and(|client| client.underway() > 0);
        let owner = known.and_then(Client::owner);
        owner.or_else(|| self.ephemeral_owner(client_id).filter(|_| !is_changing).map(|(owner, _)| owner))
    }

    /// Ephemeral session that the state has for a connection.
    fn ephemeral_owned_by(&self, client_id: &str, connection: ConnectionId) -> Option<SessionUid> {
        let producer = self.producers.of(connection)?;
        let session = self.replica.state().ephemeral_of(client_id)?;
        let is_owned = session.owner_node() == Some(producer.owner)
            && session.connection() == producer.connection_number(connection);
        is_owned.then(|| session.uid())
    }

    /// Adds sessions that have begun to those of the node, and removes those that have ended.
    #[inline]
    pub(super) fn count_sessions(&mut self) {
        let sessions = self.replica.state().counts().sessions;
        let before = std::mem::replace(&mut self.counted_sessions, sessions);
        if sessions > before {
            self.load.sessions.fetch_add(sessions - before, Relaxed);
        } else if sessions < before {
            self.load.sessions.fetch_sub(before - sessions, Relaxed);
        }
    }

    /// Releases a client whose connection was closed while its claim was in progress.
    pub(super) fn release_if_gone(&mut self, now: Time, client_id: &Arc<str>, out: &mut ShardOutput) {
        if let Some(client) = self.clients.get_mut(client_id)
            && let Some(gone) = client.existing_claim_state().and_then(|claim_state| claim_state.gone.take())
        {
            let late = gone.late();
            self.release(now, *gone, out);
            out.late.extend(late);
        }
    }

    /// Returns whether a Release of a lane waits until the Claim of its connection is applied.
    pub(super) fn has_late_release(&self, client_id: &str, late: (WorkerId, u64)) -> bool {
        let client = self.clients.get(client_id);
        client.and_then(Client::gone).and_then(Release::late) == Some(late)
    }

    pub(super) fn release(&mut self, now: Time, release: Release, out: &mut ShardOutput) {
        let client = self.clients.get_mut(&release.client_id);
        let Some(client) = client.filter(|client| client.owner() == Some(release.connection)) else {
            return self.release_of_another(now, &release, out);
        };
        if let Some(claim_state) = client.existing_claim_state()
            && claim_state.claiming
        {
            claim_state.gone = Some(Box::new(release));
            return;
        }
        client.clear_owner();
        if client.session().is_none() {
            return self.release_ephemeral(now, &release, out);
        }
        let claim_state = client.claim_state();
        let pending = claim_state.pending.take();
        if let Some(uid) = claim_state.session.take() {
            claim_state.underway += 1;
            if !release.known_to.is_empty() {
                *self.published.known_to.entry(uid).or_default() |= release.known_to;
            }
            if let Some(dispatched) = &release.dispatched {
                self.published.dispatched.remove(&uid);
                if !dispatched.is_empty() {
                    self.published.dispatched.insert(uid, dispatched.clone());
                }
            }
            self.release_session(now, uid, &release, out);
        }
        self.next_claim(now, &release.client_id, pending, out);
    }

    /// Ends the ephemeral session of a connection, if the state has one, and continues with the claim that waits for
    /// this.
    fn release_ephemeral(&mut self, now: Time, release: &Release, out: &mut ShardOutput) {
        let session = self.ephemeral_owned_by(&release.client_id, release.connection);
        if let Some(uid) = session {
            self.clients.get_or_insert(&release.client_id).claim_state().underway += 1;
            let owner = release.will_owner.as_ref().filter(|_| matches!(release.will, WillDisposition::Arm));
            if let Some(owner) = owner {
                self.wills.of_sessions.insert(uid, owner.clone());
            }
            let command = release_command(uid, EPHEMERAL_EPOCH, release);
            self.propose_release(now, &command, release, Continuation::Release(release.client_id.clone()));
        }
        let client = self.clients.get_mut(&release.client_id);
        let pending = client.and_then(Client::existing_claim_state).and_then(|it| it.pending.take());
        let of_another = pending.filter(|pending| pending.connection != release.connection);
        self.next_claim(now, &release.client_id, of_another, out);
    }

    /// Handles the end of a connection that does not own its client here: it waits for another one, or only the state
    /// knows it.
    fn release_of_another(&mut self, now: Time, release: &Release, out: &mut ShardOutput) {
        if mutated(Mutation::ReleaseOther)
            && let Some((uid, epoch)) = self.owned_by_another(release)
        {
            return self.propose(now, &release_command(uid, epoch, release), Continuation::Nobody);
        }
        if let Some(uid) = self.ephemeral_owned_by(&release.client_id, release.connection) {
            let is_changing =
                self.clients.get(&release.client_id).is_some_and(|client| client.underway() > 0);
            if !is_changing {
                return self.release_ephemeral(now, release, out);
            }
            // It comes again, or another Claim is in progress, which may fail.
            let command = release_command(uid, EPHEMERAL_EPOCH, release);
            return self.propose_release(now, &command, release, Continuation::Nobody);
        }
        let client = self.clients.get_mut(&release.client_id);
        let pending = client.and_then(Client::existing_claim_state).and_then(|claim_state| {
            claim_state.pending.take_if(|pending| pending.connection == release.connection)
        });
        if let Some(pending) = pending {
            // The node of the connection publishes the Will, if the client has got CONNACK.
            self.refuse(&pending, ReasonCode::SessionTakenOver, out);
        }
        self.forget_client_if_idle(&release.client_id);
        let Some(session) = self.session_owned_by(&release.client_id, release.connection) else { return };
        let (uid, epoch) = (session.uid(), session.epoch());
        if let Some(owner) = &release.will_owner {
            self.wills.of_sessions.insert(uid, owner.clone());
        }
        if !release.known_to.is_empty() {
            *self.published.known_to.entry(uid).or_default() |= release.known_to;
        }
        let command = release_command(uid, epoch, release);
        self.propose_release(now, &command, release, Continuation::Nobody);
    }

    /// Session of a client that the state has for a connection of another node, whether this host knows that or not.
    fn session_owned_by(&self, client_id: &str, connection: ConnectionId) -> Option<SessionView<'_>> {
        let producer = self.producers.of(connection)?;
        let state = self.replica.state();
        let session = state.session(state.session_of(client_id)?)?;
        let is_owned = session.owner_node() == Some(producer.owner)
            && session.owner() == Some(producer.connection_number(connection));
        is_owned.then_some(session)
    }

    /// Session of a client, and its epoch, if another connection than that of `release` owns it.
    fn owned_by_another(&self, release: &Release) -> Option<(SessionUid, u32)> {
        let Release { client_id, connection, .. } = release;
        let state = self.replica.state();
        let durable = state.session_of(client_id).and_then(|uid| state.session(uid));
        let durable = durable.filter(|session| session.owner_node().is_some());
        let durable = durable.map(|session| (session.uid(), session.epoch()));
        let ephemeral = state.ephemeral_of(client_id).filter(|session| session.owner_node().is_some());
        let ephemeral = ephemeral.map(|session| (session.uid(), EPHEMERAL_EPOCH));
        let is_own = self.session_owned_by(client_id, *connection).is_some()
            || self.ephemeral_owned_by(client_id, *connection).is_some();
        durable.or(ephemeral).filter(|_| !is_own)
    }

    /// Number of a connection in the state.
    fn connection_number(&self, connection: ConnectionId) -> u64 {
        let producer = self.producers.of(connection);
        producer.map_or(connection.as_u64(), |producer| producer.connection_number(connection))
    }

    /// Serves a connection that an earlier leader has served. A connection that does not own its session any more is
    /// closed.
    pub(super) fn attach(&mut self, now: Time, attach: Attach, out: &mut ShardOutput) {
        let Attach { client_id, connection, user, window, last, known_to, epoch, .. } = attach;
        let owned = self.session_owned_by(&client_id, connection).filter(|session| session.epoch() == epoch);
        let is_claimed = |client: &Client| client.owner().is_some() || client.is_claiming();
        let is_claimed = self.clients.get(&client_id).is_some_and(is_claimed);
        let Some(session) = owned.filter(|_| !is_claimed) else {
            return out.complete(Completion::Revoke { connection });
        };
        let uid = session.uid();
        let open = session.open();
        // Deliveries are sent in the order of their numbers. One that is not open any more was before all that are.
        let next = last.and_then(|last| session.number(last)).map_or(open.start, |n| n + 1);
        let is_sent = |phase| matches!(phase, Phase::Pinned | Phase::Received);
        let sent = session.entries(open.start).take_while(|(n, _)| *n < next);
        let inflight = sent.filter(|(_, entry)| is_sent(entry.phase)).count() as u32;
        let mut live = Live::new(now, connection, epoch, window, next);
        live.inflight = inflight;
        let client = self.clients.get_or_insert(&client_id);
        client.set_owner(connection, user);
        client.claim_state().session = Some(uid);
        if !known_to.is_empty() {
            *self.published.known_to.entry(uid).or_default() |= known_to;
        }
        self.replica.counters_mut().attached += 1;
        self.wills.of_sessions.remove(&uid);
        self.session_connected(uid, live);
        self.touch(uid);
        self.pump_touched(now, out);
    }

    /// Ends the connections of a worker of another node that is gone. The state releases their sessions when the nodes
    /// have agreed on its end.
    pub(super) fn clients_gone(
        &mut self,
        now: Time,
        (worker, producer): (WorkerId, Option<Producer>),
        out: &mut ShardOutput,
    ) {
        // A claim that waits is sent again, if its connection is still there.
        let waits = |client: &mut Client| {
            let claim_state = client.existing_claim_state();
            let of_worker = |claim: &mut Box<Claim>| claim.connection.worker == worker;
            claim_state.is_some_and(|claim_state| claim_state.pending.take_if(of_worker).is_some())
        };
        let mut gone = Vec::new();
        for client in self.clients.values_mut() {
            let was_waiting = waits(client);
            if was_waiting || client.owner().is_some_and(|owner| owner.worker == worker) {
                gone.push(client.client_id());
            }
        }
        for client_id in gone {
            let Some(client) = self.clients.get_mut(&client_id) else { continue };
            if client.owner().is_some_and(|owner| owner.worker != worker) {
                continue;
            }
            let owner = client.owner();
            client.clear_owner();
            let claim_state = client.existing_claim_state();
            let (session, pending) = claim_state.map_or((None, None), |claim_state| {
                if let Some((owner, producer)) = owner.zip(producer).filter(|_| claim_state.claiming) {
                    claim_state.lost = Some((producer, producer.connection_number(owner)));
                }
                claim_state.gone = None;
                (claim_state.session.take(), claim_state.pending.take())
            });
            if let Some(uid) = session
                && let Some(live) = self.session_disconnected(uid)
            {
                for over in live.over {
                    self.one_accepted(now, over.append, out);
                }
                // It does not say which shards know messages of the session.
                if self.replica.state().session(uid).is_some_and(|session| session.has_received()) {
                    self.published.known_to.insert(uid, ShardSet::full());
                }
            }
            match pending {
                Some(claim) => self.claim(now, claim, out),
                None => self.forget_client_if_idle(&client_id),
            }
        }
    }

    pub(super) fn next_claim(
        &mut self,
        now: Time,
        client_id: &Arc<str>,
        pending: Option<Box<Claim>>,
        out: &mut ShardOutput,
    ) {
        match pending {
            Some(claim) => self.accept_claim(now, claim, out),
            None => self.forget_client_if_idle(client_id),
        }
    }

    fn release_session(&mut self, now: Time, uid: SessionUid, release: &Release, out: &mut ShardOutput) {
        let Some(live) = self.session_disconnected(uid) else { return };
        if let Some(owner) = &release.will_owner {
            self.wills.of_sessions.insert(uid, owner.clone());
        }
        let command = release_command(uid, live.epoch, release);
        self.propose_release(now, &command, release, Continuation::Release(release.client_id.clone()));
        // No client reads any more: publishers stop waiting, and the rule for full queues decides.
        for over in live.over {
            self.one_accepted(now, over.append, out);
        }
    }

    /// Proposes the end of a connection. Nobody waits for it, except for a Will.
    fn propose_release(
        &mut self,
        now: Time,
        command: &Command<'_>,
        release: &Release,
        continuation: Continuation,
    ) {
        match release.will {
            WillDisposition::Arm => self.propose(now, command, continuation),
            WillDisposition::Discard => self.propose_later(now, command, continuation),
        }
    }

    pub(super) fn released(&mut self, client_id: &Arc<str>) {
        if let Some(client) = self.clients.get_mut(client_id) {
            client.claim_state().underway -= 1;
        }
        self.forget_client_if_idle(client_id);
    }

    /// Refuses a claim. One that was applied before, and comes again, is revoked: the shard keeps its Will.
    pub(super) fn refuse(&self, claim: &Claim, reason: ReasonCode, out: &mut ShardOutput) {
        let connection = claim.connection;
        out.complete(match self.has_applied_claim(claim) {
            true => Completion::Revoke { connection },
            false => Completion::ClaimRefused { connection, reason },
        });
    }

    /// Returns whether the state has applied a claim that comes again.
    fn has_applied_claim(&self, claim: &Claim) -> bool {
        let producer = self.producers.of(claim.connection);
        producer.is_some_and(|producer| {
            self.replica.state().has_claimed(producer.owner, producer.claim_number(claim.number))
        })
    }

    pub(super) fn forget_client_if_idle(&mut self, client_id: &Arc<str>) {
        let idle =
            |client: &Client| client.owner().is_none() && !client.has_pending() && client.underway() == 0;
        self.clients.remove_if(client_id, idle);
    }
}

fn release_command(session: SessionUid, epoch: u32, release: &Release) -> Command<'static> {
    let will = match release.will {
        WillDisposition::Arm => WillFate::Arm,
        WillDisposition::Discard => WillFate::Discard,
    };
    Command::Release { session, epoch, expiry_s: release.expiry, will }
}

fn walk_of((filter, done, after): (&str, ShardSet, &str)) -> (Box<str>, WalkProgress) {
    (filter.into(), WalkProgress { done, after: (!after.is_empty()).then(|| after.into()) })
}
