//! Memory of the subscriptions of the remote session, which outlives the process.

use std::collections::BTreeSet;

use mqtt::{ReasonCode, TopicFilter};

/// Filters that the remote session may have.
///
/// Each is stored as a subscription of the local session, to a filter that nobody publishes on: the prefix and the
/// remote filter. So they are as durable as the session, and are where it is.
///
/// **Invariant:** a filter is stored before it is subscribed to at the remote broker, and until the subscription has
/// ended there.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// `None` when nothing is stored.
    prefix: Option<String>,
    stored: BTreeSet<String>,
}

impl Memory {
    pub(super) fn new(prefix: Option<String>) -> Self {
        Self { prefix, stored: BTreeSet::new() }
    }

    /// Takes the filters out of those of the local session, and returns them without the prefix.
    pub(super) fn restore(&mut self, local: &mut Vec<String>) -> Vec<String> {
        let Some(prefix) = &self.prefix else { return Vec::new() };
        let stored = local.iter().filter_map(|filter| filter.strip_prefix(prefix.as_str()));
        self.stored = stored.map(str::to_owned).collect();
        local.retain(|filter| !filter.starts_with(prefix.as_str()));
        self.stored.iter().cloned().collect()
    }

    /// Forgets what is stored, because the local session is new.
    pub(super) fn session_is_new(&mut self) {
        self.stored.clear();
    }

    /// Filters to subscribe at this broker, so that these remote filters are stored.
    pub(super) fn to_store(&self, remote: impl Iterator<Item = String>) -> Vec<String> {
        let Some(prefix) = &self.prefix else { return Vec::new() };
        let missing = remote.filter(|filter| !self.stored.contains(filter));
        let filters = missing.map(|filter| format!("{prefix}{filter}"));
        filters.filter(|filter| TopicFilter::parse(filter).is_ok()).collect()
    }

    /// Filters to unsubscribe at this broker after the remote one has answered an UNSUBSCRIBE.
    pub(super) fn to_forget(&self, answers: &[(String, ReasonCode)]) -> Vec<String> {
        let Some(prefix) = &self.prefix else { return Vec::new() };
        let ended =
            answers.iter().filter(|(filter, reason)| !reason.is_error() && self.stored.contains(filter));
        ended.map(|(filter, _)| format!("{prefix}{filter}")).collect()
    }

    /// Notes that this broker has answered a SUBSCRIBE. Returns false for a filter that is not one of these.
    pub(super) fn note_stored(&mut self, local: &str, reason: ReasonCode) -> bool {
        let Some(filter) = self.prefix.as_ref().and_then(|prefix| local.strip_prefix(prefix.as_str())) else {
            return false;
        };
        if !reason.is_error() {
            self.stored.insert(filter.to_owned());
        }
        true
    }

    /// Notes that this broker has answered an UNSUBSCRIBE.
    pub(super) fn note_forgotten(&mut self, local: &str) {
        if let Some(filter) = self.prefix.as_ref().and_then(|prefix| local.strip_prefix(prefix.as_str())) {
            self.stored.remove(filter);
        }
    }
}
