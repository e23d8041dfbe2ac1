//! Changes of alarms, for the event `$events/sys/alarm`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use broker::AlarmChange;

use crate::alarms::{self, Alarm, Severity};
use crate::state::State;

/// Alarms that were active at the last look, by node and code. Several alarms of one code count as one.
#[derive(Debug, Default)]
pub(crate) struct ActiveAlarms {
    active: BTreeMap<(String, &'static str), AlarmChange>,
    /// Value of [`Admin::alarm_subscriptions`](broker::admin::Admin::alarm_subscriptions) at the last look.
    subscriptions: u32,
}

impl ActiveAlarms {
    /// Publishes the changes since the last look, if the event has subscriptions. The first look after a new
    /// subscription publishes all that are active.
    pub fn look(&mut self, state: &State) {
        if !state.admin.are_alarms_selected() {
            return self.active.clear();
        }
        let subscriptions = state.admin.alarm_subscriptions();
        let is_new = subscriptions != std::mem::replace(&mut self.subscriptions, subscriptions);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let present = alarms::all(state, crate::routes::health::stuck(state));
        for change in self.changes(present, u64::try_from(now).unwrap_or(u64::MAX), is_new) {
            state.admin.alarm_changed(change);
        }
    }

    /// Replaces the active alarms and returns what has changed. For a new subscription, these are all that are active.
    /// `now` is in milliseconds since 1970.
    fn changes(&mut self, present: Vec<Alarm>, now: u64, is_new: bool) -> Vec<AlarmChange> {
        let before = std::mem::take(&mut self.active);
        let mut changes = Vec::new();
        for Alarm { node, severity, code, text } in present {
            let key = (node, code);
            if self.active.contains_key(&key) {
                continue;
            }
            let known = before.get(&key).cloned();
            changes.extend(known.clone().filter(|_| is_new));
            let change = known.unwrap_or_else(|| {
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
            self.active.insert(key, change);
        }
        let ended = before.into_iter().filter(|(key, _)| !self.active.contains_key(key));
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
        assert_eq!(seen(active.changes(both(), 1, true)), begun);
        assert_eq!(seen(active.changes(both(), 2, false)), []);
        assert_eq!(seen(active.changes(both(), 2, true)), begun, "another subscription");
        let ended = [("clock".to_owned(), 1, Some(3))];
        assert_eq!(seen(active.changes(vec![alarm("open", "no key")], 3, false)), ended);
        assert_eq!(seen(active.changes(both(), 4, false)), [("clock".to_owned(), 4, None)]);
    }
}
