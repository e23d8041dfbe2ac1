//! After somebody may have lost the right to be here: all who are connected are looked at again.

use mqtt::ReasonCode;

use super::Worker;
use crate::connection::Phase;
use crate::ids::Time;

/// Connections looked at in one turn.
const CONNECTIONS_AT_ONCE: u32 = 1_000;
/// Pause between two turns of it.
const PAUSE_MS: u64 = 10;

/// How far the worker is with looking at its connections.
#[derive(Debug, Default)]
pub(super) struct Review {
    /// What [`revocations`](crate::access::Access::revocations) said when the last look began.
    revocations: u64,
    /// The next slot to look at, while there is one.
    from: Option<u32>,
    /// Connections closed in this look.
    closed: usize,
}

impl Worker {
    /// Goes on with it; returns when to be called again, if soon. However many changes there are meanwhile, a look goes on to its end, and
    /// one more follows.
    pub(super) fn review(&mut self) -> Option<Time> {
        if self.review.from.is_none() {
            let revocations = self.node.access.revocations();
            if revocations == self.review.revocations {
                return None;
            }
            self.review = Review { revocations, from: Some(0), closed: 0 };
        }
        let from = self.review.from?;
        let until = from.saturating_add(CONNECTIONS_AT_ONCE).min(self.connections.slots());
        for slot in from..until {
            self.review_connection(slot);
        }
        if until < self.connections.slots() {
            self.review.from = Some(until);
            return Some(Time(self.now.0 + PAUSE_MS));
        }
        self.review.from = None;
        let clients = self.review.closed;
        if clients > 0 {
            tracing::info!(clients, "disconnected: they may not be here any more");
        }
        None
    }

    fn review_connection(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        // Whoever is about to be let in as well: the answer may be from before.
        if matches!(connection.phase, Phase::AwaitConnect | Phase::Closing) {
            return;
        }
        let id = connection.id;
        if let Some(reason) = self.revoked(slot) {
            self.review.closed += usize::from(self.kick_connection(id, reason, false));
        }
    }

    /// Why whoever has this connection may not be here.
    pub(super) fn revoked(&self, slot: u32) -> Option<ReasonCode> {
        let connection = self.connections.occupant_ref(slot)?;
        let validity = connection.extra.as_ref().and_then(|extra| extra.validity.as_ref());
        match validity.is_some_and(|validity| validity.has_ended()) {
            false => self.node.access.revoked(connection.identity(&self.node)),
            true if connection.phase == Phase::Open => Some(ReasonCode::AdministrativeAction),
            // Whether it comes in as things are now it may find out by trying again.
            true => Some(ReasonCode::ServerUnavailable),
        }
    }
}
