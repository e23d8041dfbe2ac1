//! View of the rules in the configuration store, in their order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use configstore::{Applied, View};

use super::record::Record;
use super::{RuleId, StoredRule};
use crate::rules::RuleSet;

/// View of the table of rules.
#[derive(Default)]
pub struct RuleView {
    rules: ArcSwap<Vec<Arc<StoredRule>>>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_id: BTreeMap<RuleId, Arc<StoredRule>>,
    listener: Option<Listener>,
}

type Listener = Box<dyn Fn(RuleSet) + Send + Sync>;

impl RuleView {
    pub fn rules(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.rules.load_full()
    }

    pub fn on_change(&self, listener: Listener) {
        let mut inner = sync::lock(&self.inner);
        // The current rules were valid when they were loaded.
        if let Ok(set) = set(&self.rules()) {
            listener(set);
        }
        inner.listener = Some(listener);
    }

    /// Loads a list of rules, if it is valid as a whole.
    fn publish(&self, inner: &mut Inner, by_id: BTreeMap<RuleId, Arc<StoredRule>>) -> Result<(), String> {
        let mut rules: Vec<_> = by_id.values().cloned().collect();
        rules.sort_by_key(|rule| (rule.rank, rule.id));
        let set = set(&rules)?;
        inner.by_id = by_id;
        self.rules.store(Arc::new(rules));
        if let Some(listener) = &inner.listener {
            listener(set);
        }
        Ok(())
    }
}

fn set(rules: &[Arc<StoredRule>]) -> Result<RuleSet, String> {
    let enabled: Vec<(String, &str)> = rules
        .iter()
        .filter(|rule| rule.enabled)
        .map(|rule| (rule.id.0.to_string(), rule.text.as_str()))
        .collect();
    RuleSet::parse_lines(enabled.iter().map(|(id, text)| (id.as_str(), *text)))
        .map_err(|(id, error)| format!("rule {id} of the configuration store cannot be used: {error}"))
}

impl View for RuleView {
    fn reset(&self, records: &mut dyn Iterator<Item = Applied<'_>>) -> Result<(), String> {
        let mut by_id = BTreeMap::new();
        for record in records {
            let rule = Record::read(record.key, record.value.unwrap_or_default())?;
            by_id.insert(rule.id, Arc::new(rule));
        }
        let mut inner = sync::lock(&self.inner);
        self.publish(&mut inner, by_id)
    }

    /// Applies changes. If a rule is invalid, all rules stay as they were: without it, other rules would decide.
    fn apply(&self, changes: &[Applied<'_>]) {
        let mut inner = sync::lock(&self.inner);
        let mut by_id = inner.by_id.clone();
        let mut take = |change: &Applied<'_>| -> Result<(), String> {
            match change.value {
                Some(value) => {
                    let rule = Record::read(change.key, value)?;
                    by_id.insert(rule.id, Arc::new(rule));
                }
                None => {
                    let id =
                        change.key.parse().map_err(|_| "the key of a rule is not a number".to_owned())?;
                    by_id.remove(&RuleId(id));
                }
            }
            Ok(())
        };
        let taken = changes.iter().try_for_each(&mut take);
        if let Err(why) = taken.and_then(|()| self.publish(&mut inner, by_id)) {
            tracing::error!(
                "rules: invalid change in the configuration store, keeping the previous rules; {why}"
            );
        }
    }
}
