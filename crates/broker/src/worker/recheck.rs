//! After a change of the access rules: subscriptions that are no longer allowed are ended.

use mqtt::Subscription;

use super::{Worker, permits};
use crate::access::Action;
use crate::connection::Phase;
use crate::ids::Time;
use crate::route::Options;
use crate::store::Request;

/// Connections looked at in one turn.
const CONNECTIONS_AT_ONCE: u32 = 1_000;
/// Pause between two turns of it.
const PAUSE_MS: u64 = 10;

/// How far the worker is with looking at its connections under the present rules.
#[derive(Debug, Default)]
pub(super) struct Recheck {
    generation: u64,
    /// The next slot to look at, while there is one.
    from: Option<u32>,
}

impl Worker {
    /// Goes on with it; returns when to be called again, if soon.
    pub(super) fn recheck(&mut self) -> Option<Time> {
        let generation = self.node.access.generation();
        if generation != self.recheck.generation {
            self.recheck.generation = generation;
            self.recheck.from = self.node.access.guards_topics().then_some(0);
        }
        let from = self.recheck.from?;
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        for slot in from..until {
            self.recheck_connection(slot);
        }
        self.recheck.from = (until < self.connections.slots()).then_some(until);
        self.recheck.from.map(|_| Time(self.now.0 + PAUSE_MS))
    }

    fn recheck_connection(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant(slot) else { return };
        if connection.phase != Phase::Open {
            return;
        }
        let allowed = |text: &str, options: Options| {
            let Ok(subscription) = Subscription::parse(text) else { return true };
            let action = Action::Subscribe { qos: options.qos() };
            permits(&self.node, connection.identity(&self.node), action, subscription.filter.as_str())
        };
        let ended = connection.subscriptions.filters_not(allowed);
        let (id, session) = (connection.id, connection.session);
        for text in ended {
            let Some(connection) = self.connections.occupant(slot) else { return };
            tracing::debug!(
                client = &*connection.client_id,
                filter = &*text,
                "no longer allowed: subscription ended"
            );
            connection.subscriptions.remove(&text);
            self.counters.subscribe_denied += 1;
            self.counters.subscriptions_removed += u64::from(session.is_none());
            self.remove_subscription(id, session.is_some(), &text);
            if let Some(session) = session {
                self.request(session.shard, Request::Withdraw { session, filter: text });
            }
        }
    }
}
