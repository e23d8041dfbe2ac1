//! Log lines about clients: refusals, connects and disconnects.

use mqtt::ReasonCode;
use tracing::field::display;

use super::Worker;
use crate::connection::Connection;

/// Maximum length of a client's text in a log line, in bytes.
const TEXT_MAX: usize = 256;

impl Worker {
    /// Logs a refusal: as a warning while `limits.refusals_logged_per_minute` permits, otherwise at level `debug`.
    pub(super) fn report_refusal(
        &self,
        slot: u32,
        refused: &'static str,
        topic: Option<&str>,
        reason: ReasonCode,
    ) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        let permit = self.node.may_log_refusal(self.clock.now(), &self.settings);
        refusal(permit, connection, refused, topic, reason);
    }

    /// Logs that a client speaks another protocol, within the same limit.
    pub(super) fn report_foreign(&self, slot: u32, what: &'static str) {
        let Some(connection) = self.connections.occupant_ref(slot) else { return };
        let (address, listener) =
            (connection.peer().map(display), self.node.listener_name(connection.listener));
        match self.node.may_log_refusal(self.clock.now(), &self.settings) {
            Some(unlogged) => tracing::warn!(address, listener, unlogged, "{what}"),
            None => tracing::debug!(address, listener, "{what}"),
        }
    }
}

/// Logs a refusal: as a warning if `permit` has the number of refusals that were not logged before it, otherwise at
/// level `debug`.
pub(super) fn refusal(
    permit: Option<u64>,
    connection: &Connection,
    refused: &'static str,
    topic: Option<&str>,
    reason: ReasonCode,
) {
    let (client, user) = (cut(&connection.client_id), connection.username().map(cut));
    let (address, topic) = (connection.peer().map(display), topic.map(cut));
    match permit {
        Some(unlogged) => {
            tracing::warn!(client, user, address, topic, %reason, unlogged, "{refused}");
        }
        None => tracing::debug!(client, user, address, topic, %reason, "{refused}"),
    }
}

/// Logs that a client is connected.
pub(super) fn connected(connection: &Connection, session_present: bool) {
    tracing::info!(
        target: "clients",
        client = cut(&connection.client_id),
        user = connection.username().map(cut),
        address = connection.peer().map(display),
        version = %connection.version,
        session_present,
        "client connected"
    );
}

/// Logs the end of a client's connection.
pub(super) fn disconnected(connection: &Connection, why: &str) {
    tracing::info!(
        target: "clients",
        client = cut(&connection.client_id),
        user = connection.username().map(cut),
        address = connection.peer().map(display),
        why,
        "client disconnected"
    );
}

/// Returns the first bytes of a text that a client has chosen.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}
