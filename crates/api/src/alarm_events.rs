//! Changes of alarms, for the event `$events/sys/alarm`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use broker::AlarmChange;

use crate::alarms::{self, Alarm, Severity};
use crate::state::State;

/// Alarms that were active at the last look, by node and code. Several alarms of one code count as one.
#[derive(Debug, Default)]
pub(crate) struct ActiveAlarms(BTreeMap<(String, &'static str), AlarmChange>);

impl ActiveAlarms {
    /// Publishes the changes since the last look, if the event has subscriptions. The first look publishes all that
    /// are active.
    pub fn look(&mut self, state: &State) {
        if !state.admin.are_alarms_selected() {
            return self.0.clear();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let present = alarms::all(state, crate::routes::health::stuck(state));
        for change in self.changes(present, u64::try_from(now).unwrap_or(u64::MAX)) {
            state.admin.alarm_changed(change);
        }
    }

    /// Replaces the active alarms and returns what has changed. `now` is in milliseconds since 1970.
    fn changes(&mut self, present: Vec<Alarm>, now: u64) -> Vec<AlarmChange> {
        let before = std::mem::take(&mut self.0);
        let mut changes = Vec::new();
        for Alarm { node, severity, code, text } in present {
            let key = (node, code);
            if self.0.contains_key(&key) {
                continue;
            }
            let change = before.get(&key).cloned().unwrap_or_else(|| {
                let severity = match severity {
                    Severity::Error => "error",
                    Severity::Warning => "warning",
                    Severity::Notice => "notice",
                };
                let change = AlarmChange {
                    name: code.to_owned(),
                    node: key.0.clone(),
                    severity: severity.to_owned(),
                    message: text,
                    activated_at: now,
                    deactivated_at: None,
                };
                changes.push(change.clone());
                change
            });
            self.0.insert(key, change);
        }
        let ended = before.into_iter().filter(|(key, _)| !self.0.contains_key(key));
        changes.extend(ended.map(|(_, change)| AlarmChange { deactivated_at: Some(now), ..change }));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_reported_when_it_begins_and_when_it_ends() {
        let alarm = |code, text: &str| Alarm::new("n1", Severity::Warning, code, text);
        let mut active = ActiveAlarms::default();
        let seen = |changes: Vec<AlarmChange>| -> Vec<_> {
            let seen = |change: AlarmChange| (change.name, change.activated_at, change.deactivated_at);
            changes.into_iter().map(seen).collect()
        };
        let both = || vec![alarm("clock", "3 s"), alarm("clock", "4 s"), alarm("open", "no key")];
        let begun = [("clock".to_owned(), 1, None), ("open".to_owned(), 1, None)];
        assert_eq!(seen(active.changes(both(), 1)), begun);
        assert_eq!(seen(active.changes(both(), 2)), []);
        let ended = [("clock".to_owned(), 1, Some(3))];
        assert_eq!(seen(active.changes(vec![alarm("open", "no key")], 3)), ended);
        assert_eq!(seen(active.changes(both(), 4)), [("clock".to_owned(), 4, None)]);
    }
}
