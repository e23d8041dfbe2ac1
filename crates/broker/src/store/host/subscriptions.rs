//! Subscriptions of durable sessions, and their routes in the node's index.

use std::sync::Arc;

use mqtt::{ReasonCode, Subscription};
use shard::{Answer, Command, Filter, SessionUid, Subscribed};

use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::ids::{ConnectionId, SessionId, ShardSet, Ticket, Time};
use crate::node::OwnerKey;
use crate::route::Options;
use crate::shapes::{self, ShapeReservations};
use crate::store::log::Condition;
use crate::store::replica::Urgency;
use crate::store::{Completion, session_uid};

/// Topic Filters of a SUBSCRIBE with their options and Subscription Identifiers.
type Filters = Vec<(Box<str>, Options, u32)>;
/// Unusual arrangements of wildcards that a SUBSCRIBE has reserved.
type Reserved = Option<Arc<ShapeReservations>>;

/// Number of sessions that are looked at in one step.
const SESSIONS_AT_ONCE: usize = 1024;

impl ShardHost {
    pub(super) fn subscribe(
        &mut self,
        now: Time,
        id: SessionId,
        (filters, shapes): (Filters, Reserved),
        reply: (ConnectionId, Ticket),
        out: &mut ShardOutput,
    ) {
        let session = session_uid(id);
        if self.replica.condition() == Condition::Failed {
            let results = filters.iter().map(|_| (ReasonCode::ImplementationSpecificError, false)).collect();
            let (connection, ticket) = reply;
            return out.complete(Completion::Subscribed { connection, ticket, results });
        }
        let asked =
            filters.iter().map(|(text, options, id)| Filter { text, options: options.byte(), id: *id });
        let epoch = self.epoch_of_request();
        let command = Command::Subscribe { session, epoch, filters: asked.collect() };
        let ticket = self.ask(now, &command, self.claim_rate.urgency(now));
        drop(command);
        self.continue_with(ticket, Continuation::Subscribe { session, reply, filters, shapes });
    }

    pub(super) fn subscribed(
        &mut self,
        now: Time,
        uid: SessionUid,
        (connection, ticket): (ConnectionId, Ticket),
        filters: &[(Box<str>, Options, u32)],
        answer: Answer,
        out: &mut ShardOutput,
    ) {
        let unrouted = std::mem::take(&mut self.unrouted);
        let results = match answer {
            Answer::Subscribed { results } => results,
            _ => filters
                .iter()
                .map(|_| Subscribed { reason: ReasonCode::UnspecifiedError, existed: false })
                .collect(),
        };
        let mut answers = Vec::with_capacity(results.len());
        for (result, (text, ..)) in results.into_iter().zip(filters) {
            // The node's index had no room, so the subscription does not exist.
            if unrouted.contains(text) {
                let command = Command::Unsubscribe { session: uid, epoch: 0, filters: vec![text] };
                self.propose(now, &command, Continuation::Nobody);
                answers.push((ReasonCode::QuotaExceeded, result.existed));
                continue;
            }
            answers.push((result.reason, result.existed));
        }
        out.complete(Completion::Subscribed { connection, ticket, results: answers });
    }

    pub(super) fn unsubscribe(
        &mut self,
        now: Time,
        id: SessionId,
        filters: Vec<Box<str>>,
        reply: Option<(ConnectionId, Ticket)>,
    ) {
        let session = session_uid(id);
        let texts = filters.iter().map(|text| &**text).collect();
        let epoch = self.epoch_of_request();
        let command = Command::Unsubscribe { session, epoch, filters: texts };
        let ticket = self.ask(now, &command, Urgency::Now);
        drop(command);
        self.continue_with(ticket, Continuation::Unsubscribe { reply, filters });
    }

    pub(super) fn unsubscribed(
        &mut self,
        reply: Option<(ConnectionId, Ticket)>,
        filters: &[Box<str>],
        answer: Answer,
        out: &mut ShardOutput,
    ) {
        let Some((connection, ticket)) = reply else { return };
        let results = match answer {
            Answer::Unsubscribed { results } => results,
            _ => filters.iter().map(|_| ReasonCode::UnspecifiedError).collect(),
        };
        out.complete(Completion::Unsubscribed { connection, ticket, results: results.into_vec() });
    }

    /// Adds a route to this shard for its first subscription with a filter.
    pub(super) fn filter_added(&mut self, text: Box<str>) {
        self.unrouted.extend(self.routes.add(text));
    }

    /// Adds the subscriptions of restored sessions to the node's index. Any shard may know the identities of the
    /// messages that they have published at QoS 2.
    pub(crate) fn recall(&mut self) {
        // A replica of several has kept the routes while it followed.
        if !self.replica.is_agreed() {
            let filters: Vec<Box<str>> =
                self.replica.state().filters().into_iter().map(|text| text.into_owned().into()).collect();
            filters.into_iter().for_each(|filter| self.filter_added(filter));
        }
        let mut index = Some(0);
        while let Some(from) = index {
            let (some, next) = self.replica.state().sessions_from(from, SESSIONS_AT_ONCE);
            for uid in some {
                self.charge_shapes(uid);
                self.charge_known_session(uid);
                if self.replica.state().session(uid).is_some_and(|session| session.has_received()) {
                    self.published.known_to.insert(uid, ShardSet::full());
                }
            }
            index = next;
        }
    }

    /// Charges a session from before the restart for its unusual arrangements of wildcards.
    fn charge_shapes(&self, uid: SessionUid) {
        let Some(session) = self.replica.state().session(uid) else { return };
        let settings = &self.settings.routing;
        let user = OwnerKey::from_u32(session.user());
        for (text, ..) in session.subscriptions().filter(|(text, ..)| shapes::may_be_unusual(text)) {
            if let Ok(Subscription { filter, .. }) = Subscription::parse(text) {
                let owners = shapes::owners(session.client_id(), user, "", settings);
                self.node_routes.charge_shape(filter, &owners);
            }
        }
    }
}
