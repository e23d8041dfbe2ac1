//! What operators ask of a shard.

use std::sync::Arc;

use mqtt::{QoS, TopicName};

use super::{MemoryShard, Session, ShardOutput};
use crate::admin::{
    ClientDetail, ClientFilter, ClientInfo, Known, Matches, QueueState, Queued, Receiver, SessionDetail,
    SessionFigures, SubscriptionFilter, SubscriptionInfo, queued,
};
use crate::backlog::Waiting;
use crate::ids::{SessionId, Time};
use crate::route::RouteKind;
use crate::store::Member;

/// Sessions looked at in one step of a listing.
const SESSIONS_AT_ONCE: u32 = 512;
/// Subscriptions looked at of one client in one step.
pub(crate) const SUBSCRIPTIONS_AT_ONCE: usize = 2048;

impl MemoryShard {
    pub fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// `None`: neither connected nor with a session.
    pub(crate) fn known(&self, client_id: &str) -> Option<Known> {
        let client = self.clients.get(client_id)?;
        let session = client.session.map(|(slot, generation)| SessionId { shard: self.id, slot, generation });
        Some(Known { owner: client.owner, session })
    }

    /// Messages that wait for sessions with a connection, as the walk over them goes.
    pub(crate) fn walk_backlog(&mut self, now: Time) -> Waiting {
        let sessions = &mut self.sessions;
        self.backlog.step(|slot, generation| {
            let session = sessions.get_mut(slot, generation)?;
            let waiting = session.owner.and_then(|_| session.waiting(now));
            session.backlogged = waiting.is_some();
            waiting
        });
        self.backlog.last()
    }

    pub(crate) fn session_figures(&self, id: SessionId) -> Option<SessionFigures> {
        Some(self.sessions.get(id.slot, id.generation)?.figures())
    }

    pub(crate) fn client_detail(&self, now: Time, id: SessionId) -> Option<ClientDetail> {
        let session = self.sessions.get(id.slot, id.generation)?;
        let never = |time: Time| (time != Time::NEVER).then_some(time);
        let waiting = session.waiting(now);
        let detail = SessionDetail {
            expiry: (session.expiry != u32::MAX)
                .then(|| std::time::Duration::from_secs(u64::from(session.expiry))),
            expires_at: session.owner.is_none().then(|| never(session.ends)).flatten(),
            inflight: session.deliveries.inflight(),
            queued_messages: session.deliveries.waiting() + session.overflow.len(),
            queued_bytes: (session.waiting_bytes + session.overflow_bytes) as u64,
            oldest_queued: waiting.map(|waiting| waiting.oldest),
            waiting_publishers: session.overflow.iter().filter(|over| over.append.is_some()).count(),
            will_due_at: never(session.will_due),
        };
        Some(ClientDetail { info: session.info(id), connection: None, session: Some(detail) })
    }

    /// Sessions without a connection that are wanted, from a slot on; and the slot to go on at.
    pub(crate) fn absent_clients(
        &self,
        from: u32,
        limit: usize,
        filter: &ClientFilter,
    ) -> (Vec<ClientInfo>, Option<u32>) {
        let mut found = Vec::new();
        let until = from.saturating_add(SESSIONS_AT_ONCE).min(self.sessions.slots());
        for slot in from..until {
            if found.len() >= limit {
                return (found, Some(slot));
            }
            let Some((generation, session)) = self.sessions.at(slot) else { continue };
            if session.owner.is_some() || !filter.wants(&session.client_id, None) {
                continue;
            }
            let info = session.info(SessionId { shard: self.id, slot, generation });
            if filter.wants_queue(&info) {
                found.push(info);
            }
        }
        (found, (until < self.sessions.slots()).then_some(until))
    }

    /// Subscriptions that are wanted of sessions without a connection, from a slot and a place among its subscriptions on.
    pub(crate) fn absent_subscriptions(
        &self,
        (from, mut within): (u32, u32),
        limit: usize,
        filter: &SubscriptionFilter,
    ) -> (Vec<SubscriptionInfo>, Option<(u32, u32)>) {
        let mut found = Vec::new();
        let mut looked = 0;
        for slot in from..self.sessions.slots() {
            if looked >= SUBSCRIPTIONS_AT_ONCE || slot - from >= SESSIONS_AT_ONCE {
                return (found, Some((slot, 0)));
            }
            let skip = std::mem::take(&mut within) as usize;
            let Some((_, session)) = self.sessions.at(slot) else { continue };
            if session.owner.is_some() {
                continue;
            }
            for (place, (text, (options, id))) in session.subscriptions.iter().enumerate().skip(skip) {
                if found.len() >= limit || looked >= SUBSCRIPTIONS_AT_ONCE {
                    return (found, Some((slot, place as u32)));
                }
                looked += 1;
                if filter.wants(text) {
                    found.push(SubscriptionInfo::new(&session.client_id, false, text, *options, *id));
                }
            }
        }
        (found, None)
    }

    /// Some of a session's subscriptions, and where to go on.
    pub(crate) fn subscriptions_of(
        &self,
        id: SessionId,
        from: usize,
        limit: usize,
    ) -> Option<(Vec<SubscriptionInfo>, Option<usize>)> {
        let session = self.sessions.get(id.slot, id.generation)?;
        let some = session.subscriptions.iter().skip(from).take(limit);
        let connected = session.owner.is_some();
        let some = some.map(|(filter, (options, number))| {
            SubscriptionInfo::new(&session.client_id, connected, filter, *options, *number)
        });
        let next = from.saturating_add(limit);
        Some((some.collect(), (next < session.subscriptions.len()).then_some(next)))
    }

    /// What a session has in flight and waiting, in this order.
    pub(crate) fn queue_of(
        &self,
        now: Time,
        id: SessionId,
        limit: usize,
        payload: usize,
    ) -> Option<(Vec<Queued>, bool)> {
        let session = self.sessions.get(id.slot, id.generation)?;
        let inflight = session.deliveries.inflight_payloads().map(|entry| (QueueState::Inflight, entry));
        let waiting = session.deliveries.waiting_payloads().map(|entry| (QueueState::Waiting, entry));
        let overflow = session.overflow.iter().map(|over| (QueueState::Overflow, &over.entry));
        let mut all = inflight.chain(waiting).chain(overflow);
        let some =
            all.by_ref().take(limit).map(|(state, entry)| queued(now, state, entry, payload)).collect();
        Some((some, all.next().is_some()))
    }

    /// Ends a session without a connection. False when there is none, or it is served.
    pub(crate) fn kick_session(&mut self, id: SessionId, out: &mut ShardOutput) -> bool {
        if self.sessions.get(id.slot, id.generation).is_none_or(|session| session.owner.is_some()) {
            return false;
        }
        self.counters.sessions_kicked += 1;
        self.end_session(id.slot, id.generation, out);
        true
    }

    /// Adds the sessions and members of shared groups that a topic's messages are for.
    pub(crate) fn who_would_get(&mut self, topic: TopicName<'_>, limit: usize, matches: &mut Matches) {
        let mut routes = std::mem::take(&mut self.matches);
        routes.clear();
        if self.reader.matches(topic, &mut routes) > 1 {
            routes.sort_unstable_by_key(|route| (route.kind, route.slot));
            routes.dedup_by_key(|route| (route.kind, route.slot));
        }
        for route in &routes {
            if route.kind == RouteKind::Group {
                self.group_would_get(route.slot, route.generation, limit, matches);
                continue;
            }
            let Some(session) = self.sessions.get(route.slot, route.generation) else { continue };
            matches.total += 1;
            if matches.receivers.len() < limit {
                matches.receivers.push(session.receiver(topic));
            }
        }
        self.matches = routes;
        self.reader.quiescent();
    }

    fn group_would_get(&self, slot: u32, generation: u32, limit: usize, matches: &mut Matches) {
        let Some(group) = self.groups.get(slot, generation) else { return };
        for member in group.members() {
            matches.total += 1;
            if matches.receivers.len() >= limit {
                continue;
            }
            // Who they are is known where they live; the worker asks there.
            matches.receivers.push(Receiver {
                client_id: Arc::from(""),
                connected: member.connection.is_some(),
                durable: matches!(member.member, Member::Session(_)),
                filters: vec![group.name().filter.clone()],
                qos: member.options.qos(),
                share: Some(group.name().share.clone()),
                unnamed: Some(member.member),
            });
        }
    }

    /// The Client Identifier of a session of this shard.
    pub(crate) fn name_of(&self, id: SessionId) -> Option<Arc<str>> {
        Some(self.sessions.get(id.slot, id.generation)?.client_id.clone())
    }
}

impl Session {
    fn figures(&self) -> SessionFigures {
        SessionFigures {
            inflight: self.deliveries.inflight(),
            queued_messages: self.deliveries.waiting() + self.overflow.len(),
            queued_bytes: (self.waiting_bytes + self.overflow_bytes) as u64,
        }
    }

    fn info(&self, id: SessionId) -> ClientInfo {
        let SessionFigures { inflight, queued_messages, queued_bytes } = self.figures();
        ClientInfo {
            client_id: self.client_id.clone(),
            connected: self.owner.is_some(),
            address: None,
            username: None,
            version: None,
            connected_at: None,
            keep_alive: 0,
            durable: true,
            subscriptions: self.subscriptions.len(),
            inflight,
            queued_messages,
            queued_bytes,
            messages_received: 0,
            messages_sent: 0,
            session: Some(id),
        }
    }

    fn waiting(&self, now: Time) -> Option<Waiting> {
        let first =
            self.deliveries.next_waiting().or(self.overflow.front().map(|overflow| &overflow.entry))?;
        let messages = (self.deliveries.waiting() + self.overflow.len()) as u64;
        Some(Waiting { messages, oldest: now.since(first.message.view().received) })
    }

    fn receiver(&self, topic: TopicName<'_>) -> Receiver {
        let mut qos = QoS::AtMostOnce;
        let mut filters = Vec::new();
        for (text, (options, _)) in self.subscriptions.iter().take(SUBSCRIPTIONS_AT_ONCE) {
            let Ok(subscription) = mqtt::Subscription::parse(text) else { continue };
            if subscription.share.is_none() && subscription.filter.matches(topic) {
                qos = qos.max(options.qos());
                filters.push(text.clone());
            }
        }
        Receiver {
            client_id: self.client_id.clone(),
            connected: self.owner.is_some(),
            durable: true,
            filters,
            qos,
            share: None,
            unnamed: None,
        }
    }
}
