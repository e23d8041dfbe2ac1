//! Requests of operators to a shard.

use std::sync::Arc;
use std::time::Duration;

use mqtt::{QoS, Subscription, TopicFilter, TopicName};
use shard::{Command, SessionUid, SessionView};

use super::live::Bodies;
use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::admin::{
    ClientDetail, ClientFilter, ClientInfo, ClientLocation, Matches, Receiver, SessionDetail, SessionFigures,
    ShardFigures, SubscriptionFilter, SubscriptionInfo,
};
use crate::backlog::Waiting;
use crate::ids::{SessionId, Time};
use crate::route::Options;
use crate::store::replica::Ages;
use crate::store::{GroupName, session_id, session_uid};

/// Sessions looked at in one step of a listing.
const SESSIONS_AT_ONCE: usize = 512;
/// Subscriptions of one client looked at in one step.
pub(crate) const SUBSCRIPTIONS_AT_ONCE: usize = 2048;

impl ShardHost {
    pub fn subscriptions(&self) -> usize {
        self.replica.state().counts().subscriptions as usize
    }

    /// Location of a client; `None` when it is neither connected nor has a session.
    pub(crate) fn locate(&self, client_id: &str) -> Option<ClientLocation> {
        let owner = self.owner_of(client_id);
        let session = self.replica.state().session_of(client_id).map(|uid| self.session_id(uid));
        (owner.is_some() || session.is_some()).then_some(ClientLocation { owner, session })
    }

    pub(super) fn session_id(&self, uid: SessionUid) -> SessionId {
        session_id(self.id, uid)
    }

    /// Messages that wait for sessions with a connection, from one more step of the walk over them.
    pub(crate) fn walk_backlog(&mut self, now: Time) -> Waiting {
        let (state, live, ages, id) = (self.replica.state(), &mut self.live, self.replica.ages(), self.id);
        self.backlog.step(|slot, generation| {
            let uid = session_uid(SessionId { shard: id, slot, generation });
            let live = live.get_mut(&uid)?;
            let session = state.session(uid);
            let waiting = session.and_then(|session| waiting(now, session, Some(&live.bodies), ages));
            live.backlogged = waiting.is_some();
            waiting
        });
        self.backlog.last()
    }

    /// Returns the sizes of the shard, and the progress of its replicas.
    pub(crate) fn figures(&self) -> ShardFigures {
        let state = self.replica.state();
        let (counts, (retained_messages, retained_bytes)) = (state.counts(), state.retained_counts());
        ShardFigures {
            shard: self.id,
            term: self.term(),
            applied: state.applied(),
            sessions: counts.sessions,
            connected: counts.owned,
            subscriptions: counts.subscriptions,
            queued_messages: counts.queued_messages,
            queued_bytes: counts.queued_bytes,
            retained_messages,
            retained_bytes,
            replicas: self.replica.progress(),
        }
    }

    pub(crate) fn session_figures(&self, id: SessionId) -> Option<SessionFigures> {
        Some(figures(self.replica.state().session(session_uid(id))?))
    }

    pub(crate) fn client_detail(&self, now: Time, id: SessionId) -> Option<ClientDetail> {
        let uid = session_uid(id);
        let session = self.replica.state().session(uid)?;
        let never = |time: u64| (time != shard::NEVER).then(|| self.replica.deadline(time));
        let SessionFigures { inflight, queued_messages, queued_bytes } = figures(session);
        let live = self.live.get(&uid);
        let detail = SessionDetail {
            shard: self.id,
            epoch: session.epoch(),
            inbound: session.received().count(),
            expiry: (session.expiry_s() != u32::MAX)
                .then(|| Duration::from_secs(u64::from(session.expiry_s()))),
            expires_at: live.is_none().then(|| never(session.ends())).flatten(),
            inflight,
            queued_messages,
            queued_bytes,
            dropped: self.drops.total(uid),
            oldest_queued: waiting(now, session, self.bodies_of(uid), self.replica.ages())
                .map(|waiting| waiting.oldest),
            waiting_publishers: live
                .map_or(0, |live| live.over.iter().filter(|over| over.append.is_some()).count()),
            will_due_at: never(session.will_due()),
        };
        Some(ClientDetail {
            info: self.info(uid, session),
            connection: None,
            session: Some(detail),
            elsewhere: None,
        })
    }

    /// Matching sessions without a connection, from a slot on, and the slot to continue from.
    pub(crate) fn absent_clients(
        &self,
        from: u32,
        limit: usize,
        filter: &ClientFilter,
    ) -> (Vec<ClientInfo>, Option<u32>) {
        let mut found = Vec::new();
        let (some, next) = self.replica.state().sessions_from(from, SESSIONS_AT_ONCE);
        for uid in some {
            if found.len() >= limit {
                return (found, Some(uid.list_index()));
            }
            let Some(session) = self.replica.state().session(uid) else { continue };
            if self.live.contains_key(&uid) || !filter.wants(session.client_id(), None) {
                continue;
            }
            let info = self.info(uid, session);
            if filter.wants_queue(&info) {
                found.push(info);
            }
        }
        (found, next)
    }

    /// Matching subscriptions of sessions without a connection, from a slot and an index among its subscriptions on.
    pub(crate) fn absent_subscriptions(
        &self,
        (from, mut within): (u32, u32),
        limit: usize,
        filter: &SubscriptionFilter,
    ) -> (Vec<SubscriptionInfo>, Option<(u32, u32)>) {
        let mut found = Vec::new();
        let mut examined = 0;
        let (some, next) = self.replica.state().sessions_from(from, SESSIONS_AT_ONCE);
        for uid in some {
            if examined >= SUBSCRIPTIONS_AT_ONCE {
                return (found, Some((uid.list_index(), 0)));
            }
            let skip = if uid.list_index() == from { std::mem::take(&mut within) as usize } else { 0 };
            let Some(session) = self.replica.state().session(uid) else { continue };
            if self.live.contains_key(&uid) {
                continue;
            }
            for (at, (text, options, id)) in session.subscriptions().enumerate().skip(skip) {
                if found.len() >= limit || examined >= SUBSCRIPTIONS_AT_ONCE {
                    return (found, Some((uid.list_index(), at as u32)));
                }
                examined += 1;
                if filter.wants(text) {
                    let client: Arc<str> = session.client_id().into();
                    found.push(SubscriptionInfo::new(&client, false, text, Options::from_byte(options), id));
                }
            }
        }
        (found, next.map(|next| (next, 0)))
    }

    /// Part of a session's subscriptions, and the position to continue from.
    pub(crate) fn subscriptions_of(
        &self,
        id: SessionId,
        from: usize,
        limit: usize,
    ) -> Option<(Vec<SubscriptionInfo>, Option<usize>)> {
        let uid = session_uid(id);
        let session = self.replica.state().session(uid)?;
        let client: Arc<str> = session.client_id().into();
        let connected = self.live.contains_key(&uid);
        let some = session.subscriptions().skip(from).take(limit);
        let some = some.map(|(text, options, id)| {
            SubscriptionInfo::new(&client, connected, text, Options::from_byte(options), id)
        });
        let next = from.saturating_add(limit);
        Some((some.collect(), (next < session.subscriptions_len()).then_some(next)))
    }

    /// Ends a session without a connection. Returns false when there is none, or it has a connection.
    pub(crate) fn kick_session(&mut self, now: Time, id: SessionId, out: &mut ShardOutput) -> bool {
        let uid = session_uid(id);
        if self.replica.state().session(uid).is_none() || self.live.contains_key(&uid) {
            return false;
        }
        self.counters.sessions_kicked += 1;
        self.propose(now, &Command::End { session: uid }, Continuation::Nobody);
        self.apply_at_once(now, out);
        true
    }

    /// Adds the sessions that receive a topic's messages by subscriptions that are not shared.
    pub(crate) fn find_receivers(&mut self, topic: TopicName<'_>, limit: usize, matches: &mut Matches) {
        let room = limit.saturating_sub(matches.receivers.len());
        let (total, sessions) = self.replica.state().matching(topic, room);
        matches.total += total;
        for uid in sessions {
            if let Some(session) = self.replica.state().session(uid) {
                matches.receivers.push(receiver(session, self.live.contains_key(&uid), topic));
            }
        }
    }

    /// Adds the durable sessions in shared groups that match a topic. Looks at the groups after one, as many as are
    /// `left`, and subtracts them. Returns the last group if there are more.
    pub(crate) fn find_members(
        &self,
        topic: TopicName<'_>,
        limit: usize,
        (after, left): (Option<&str>, &mut usize),
        matches: &mut Matches,
    ) -> Option<Box<str>> {
        let state = self.replica.state();
        let mut last = None;
        for (text, members) in state.groups_after(after) {
            if *left == 0 {
                return last.map(Into::into);
            }
            (*left, last) = (*left - 1, Some(text));
            let Some(GroupName { share, filter }) = GroupName::parse(text) else { continue };
            if !TopicFilter::parse(&filter).is_ok_and(|filter| filter.matches(topic)) {
                continue;
            }
            matches.total += members;
            let room = limit.saturating_sub(matches.receivers.len());
            for session in state.group_members(text, None).take(room) {
                let options = session.subscription(text).map_or(0, |(options, _)| options);
                matches.receivers.push(Receiver {
                    client_id: session.client_id().into(),
                    connected: self.live.contains_key(&session.uid()),
                    durable: true,
                    filters: vec![filter.clone()],
                    qos: Options::from_byte(options).qos(),
                    share: Some(share.clone()),
                    unnamed: None,
                });
            }
        }
        None
    }

    fn info(&self, uid: SessionUid, session: SessionView<'_>) -> ClientInfo {
        let SessionFigures { inflight, queued_messages, queued_bytes } = figures(session);
        ClientInfo {
            client_id: session.client_id().into(),
            connected: self.live.contains_key(&uid),
            address: None,
            username: None,
            version: None,
            connected_at: None,
            keep_alive: 0,
            durable: true,
            subscriptions: session.subscriptions_len(),
            inflight,
            queued_messages,
            queued_bytes,
            messages_received: 0,
            messages_sent: 0,
            session: Some(self.session_id(uid)),
        }
    }
}

fn figures(session: SessionView<'_>) -> SessionFigures {
    let waiting = session.waiting();
    SessionFigures {
        inflight: session.unfinished() as usize,
        queued_messages: (waiting.end - waiting.start) as usize,
        queued_bytes: session.waiting_bytes(),
    }
}

/// Messages that wait for a session. The age of a message that is on disk only is approximate.
fn waiting(now: Time, session: SessionView<'_>, bodies: Option<&Bodies>, ages: &Ages) -> Option<Waiting> {
    let waiting = session.waiting();
    if waiting.is_empty() {
        return None;
    }
    let oldest = match bodies.and_then(|bodies| bodies.get(waiting.start)) {
        Some(message) => now.since(message.view().received),
        None => session.entry(waiting.start).map(|entry| ages.of(entry.key.index(), now)).unwrap_or_default(),
    };
    Some(Waiting { messages: waiting.end - waiting.start, oldest })
}

fn receiver(session: SessionView<'_>, connected: bool, topic: TopicName<'_>) -> Receiver {
    let mut qos = QoS::AtMostOnce;
    let mut filters = Vec::new();
    for (text, options, _) in session.subscriptions().take(SUBSCRIPTIONS_AT_ONCE) {
        let Ok(subscription) = Subscription::parse(text) else { continue };
        if subscription.share.is_none() && subscription.filter.matches(topic) {
            qos = qos.max(Options::from_byte(options).qos());
            filters.push(text.into());
        }
    }
    Receiver {
        client_id: session.client_id().into(),
        connected,
        durable: true,
        filters,
        qos,
        share: None,
        unnamed: None,
    }
}
