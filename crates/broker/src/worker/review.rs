//! Review of all connections after a client may have lost the right to be connected.

use mqtt::ReasonCode;

use super::Worker;
use crate::connection::Phase;
use crate::ids::Time;

/// Maximum number of connections that one turn examines.
const CONNECTIONS_AT_ONCE: u32 = 1_000;
/// Pause between two turns of a review, in milliseconds.
const PAUSE_MS: u64 = 10;

/// Progress of a worker's review of its connections.
#[derive(Debug, Default)]
pub(super) struct Review {
    /// Value of [`revocations`](crate::access::Access::revocations) when the last review began.
    revocations: u64,
    /// Next slot to examine, while a review is in progress.
    from: Option<u32>,
    /// Number of connections closed in this review.
    closed: usize,
}

impl Worker {
    /// Continues a review. Returns the time of the next call if that is soon. A review always runs to its end; changes
    /// during it start one more.
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
            return Some(Time(self.clock.now().0 + PAUSE_MS));
        }
        self.review.from = None;
        let clients = self.review.closed;
        if clients > 0 {
            tracing::info!(clients, "clients disconnected: they lost the right to be connected");
        }
        None
    }

    fn review_connection(&mut self, slot: u32) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        // A client that is about to be accepted is reviewed too, because its admission may be older than the change.
        if matches!(connection.phase, Phase::AwaitConnect | Phase::Closing) {
            return;
        }
        let id = connection.id;
        if let Some(reason) = self.revoked(slot) {
            self.review.closed += usize::from(self.kick_connection(id, reason, false));
        }
    }

    /// Returns the reason why the client of a connection may not stay connected.
    pub(super) fn revoked(&self, slot: u32) -> Option<ReasonCode> {
        let connection = self.connections.occupant_ref(slot)?;
        let validity = connection.extra.as_ref().and_then(|extra| extra.validity.as_ref());
        match validity.is_some_and(|validity| validity.has_ended()) {
            // A ban is for clients, not for bridges.
            false if connection.marks.role.is_process() => None,
            false => self.node.access.revoked(connection.identity(&self.node)),
            true if connection.has_connack() => Some(ReasonCode::AdministrativeAction),
            // The client can find out by another attempt whether it is accepted now.
            true => Some(ReasonCode::ServerUnavailable),
        }
    }
}
