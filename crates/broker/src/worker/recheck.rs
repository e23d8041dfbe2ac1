//! Recheck of subscriptions and Wills after a change of the access rules. Those that the rules deny now are removed.

use mqtt::Subscription;

use super::Worker;
use crate::access::Action;
use crate::batch::AuthorizeSubject;
use crate::connection::Phase;
use crate::ids::Time;
use crate::route::Options;
use crate::store::Request;

/// Maximum number of connections that one turn examines.
const CONNECTIONS_AT_ONCE: u32 = 1_000;
/// Pause between two turns of a recheck, in milliseconds.
const PAUSE_MS: u64 = 10;

/// Progress of a worker's recheck of its connections under the current rules.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    generation: u64,
    /// Next slot to examine, while a recheck is in progress.
    from: Option<u32>,
    /// True if only marked connections are rechecked.
    marked_only: bool,
    /// True if answers have come that were not known during the last recheck.
    retry: bool,
}

impl Worker {
    /// Continues a recheck. Returns the time of the next call if that is soon.
    pub(super) fn recheck(&mut self) -> Option<Time> {
        let generation = self.node.access.generation();
        if generation != self.recheck.generation {
            self.recheck.generation = generation;
            let may_deny = self.node.access.guards_topics() || self.monitor.events.is_any_selected();
            self.recheck.from = may_deny.then_some(0);
            self.recheck.marked_only = false;
        } else if self.recheck.from.is_none() && std::mem::take(&mut self.recheck.retry) {
            (self.recheck.from, self.recheck.marked_only) = (Some(0), true);
        }
        let from = self.recheck.from?;
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        let marked_only = self.recheck.marked_only;
        for slot in from..until {
            let connection = self.connections.occupant_ref(slot);
            if connection.is_some_and(|connection| connection.marks.recheck || !marked_only) {
                self.recheck_connection(slot);
            }
        }
        self.recheck.from = (until < self.connections.slots()).then_some(until);
        self.recheck.from.map(|_| Time(self.clock.now().0 + PAUSE_MS))
    }

    /// Schedules another recheck of connections whose permissions were not known yet, at the earliest in a second.
    pub(super) fn recheck_again(&mut self) {
        self.recheck.retry = true;
    }

    pub(super) fn recheck_connection(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        if connection.phase != Phase::Open {
            return;
        }
        let is_known = std::cell::Cell::new(self.recheck_will(slot));
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        let stays = |text: &str, options: Options| {
            let answer = self.may_keep(slot, text, options);
            is_known.set(is_known.get() && answer.is_some());
            answer.unwrap_or(true)
        };
        let ended = connection.subscriptions.filters_not(stays);
        let (id, session, kind) = (connection.id, connection.session, connection.route_kind());
        let Some(connection) = self.connections.occupant(slot) else { return };
        connection.marks.recheck = !is_known.get();
        for text in ended {
            let Some(connection) = self.connections.occupant(slot) else { return };
            tracing::debug!(
                client = &*connection.client_id,
                filter = &*text,
                "subscription removed: access rules no longer allow it"
            );
            connection.subscriptions.remove(&text);
            self.counters.subscribe_denied += 1;
            self.counters.subscriptions_removed += u64::from(session.is_none());
            self.remove_subscription(id, kind, &text);
            if let Some(session) = session {
                self.outbox.request(session.shard, Request::Withdraw { session, filter: text });
            }
        }
    }

    /// Returns whether a client may keep a subscription, as far as that does not depend on rules: one to topics of the
    /// broker itself, or one of a linked cluster.
    pub(super) fn may_keep_by_role(&self, slot: u32, text: &str) -> bool {
        let Some(connection) = self.connections.occupant_ref(slot) else { return true };
        let Ok(subscription) = Subscription::parse(text) else { return true };
        connection.may_read_own_topics(&self.node, subscription.filter.as_str())
            && connection.may_keep_by_link(&self.node, &subscription)
    }

    /// Returns whether the rules allow an existing subscription of a client; `None` if that is not known yet.
    pub(super) fn may_keep(&self, slot: u32, text: &str, options: Options) -> Option<bool> {
        let Some(connection) = self.connections.occupant_ref(slot) else { return Some(true) };
        let Ok(subscription) = Subscription::parse(text) else { return Some(true) };
        if !self.may_keep_by_role(slot, text) {
            return Some(false);
        }
        if !self.node.access.guards_topics() {
            return Some(true);
        }
        let Some(filter) = connection.unmounted(subscription.filter.as_str()) else { return Some(false) };
        let action = Action::Subscribe { qos: options.qos() };
        let permission = connection.authorize(&self.node, action, filter, AuthorizeSubject::Subscription);
        permission.map(|permission| permission.allowed)
    }
}
