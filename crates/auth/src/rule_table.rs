//! Built-in rule database: access rules in the configuration store, in an order that can be changed rule by rule.
//!
//! [`RuleTable`] proposes changes. Its view keeps the rules in order, and passes the resulting rule set to a listener
//! ([`RuleTable::on_change`]).

use std::sync::{Arc, Mutex, MutexGuard};

use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Table};

use crate::rules::RuleSet;

mod error;
mod record;
mod view;

pub use error::RuleTableError;
use record::Record;
use view::RuleView;

/// Id of a rule. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// Rule of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    pub id: RuleId,
    /// Line in the form of a rules file.
    pub text: String,
    /// False disables the rule.
    pub enabled: bool,
    pub description: String,
    /// Last author: the name of an API key, or empty.
    pub author: String,
    /// Time of the last change in milliseconds since 1970.
    pub changed_ms: u64,
    /// Position in the order of the rules: they are asked by ascending rank.
    rank: u64,
}

/// New rule, or new content of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRule {
    pub text: String,
    pub enabled: bool,
    pub description: String,
}

/// Author and time of a change.
#[derive(Clone, Debug)]
pub struct Authorship {
    pub author: String,
    /// Time in milliseconds since 1970.
    pub now_ms: u64,
}

/// Rules of the configuration store.
pub struct RuleTable {
    view: Arc<RuleView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held while rules are changed on this node.
    changing: Mutex<()>,
}

impl std::fmt::Debug for RuleTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleTable").field("len", &self.list().len()).finish_non_exhaustive()
    }
}

impl RuleTable {
    /// Creates rules that are kept in memory only.
    ///
    /// # Errors
    /// None.
    pub fn in_memory() -> Result<Self, String> {
        Self::open(Arc::new(LocalStore::in_memory()))
    }

    /// Opens the rules of the configuration store.
    ///
    /// # Errors
    /// A rule is invalid: without it, other rules would decide.
    pub fn open(config_store: Arc<dyn ConfigStore>) -> Result<Self, String> {
        let view = Arc::new(RuleView::default());
        config_store.subscribe(TABLE, view.clone())?;
        Ok(Self { view, config_store, changing: Mutex::default() })
    }

    /// Calls `listener` with the enabled rules: now, and after each change.
    pub fn on_change(&self, listener: impl Fn(RuleSet) + Send + Sync + 'static) {
        self.view.on_change(Box::new(listener));
    }

    /// Returns all rules in their order.
    pub fn list(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.view.rules()
    }

    /// Returns a rule and its position, counted from 1.
    pub fn get(&self, id: RuleId) -> Option<(usize, Arc<StoredRule>)> {
        let rules = self.list();
        let at = rules.iter().position(|rule| rule.id == id)?;
        Some((at + 1, rules[at].clone()))
    }

    /// Adds a rule at this position, counted from 1; at the end without one. Like the following functions, it waits for
    /// the configuration store: not for a reactor.
    ///
    /// # Errors
    /// [`RuleTableError`]. Nothing has changed then, here and in the following functions.
    pub fn add(
        &self,
        new: &NewRule,
        position: Option<usize>,
        by: &Authorship,
    ) -> Result<(usize, Arc<StoredRule>), RuleTableError> {
        check(new)?;
        let id = self.edit(|edit| {
            if edit.rules.len() >= STORED_RULES_MAX {
                return Err(RuleTableError::TooMany);
            }
            let id = edit.fresh();
            edit.insert(position, edit.rule(id, new, by));
            Ok(id)
        })?;
        self.get(id).ok_or(RuleTableError::Unknown(id))
    }

    /// Replaces the content of a rule; it keeps its position.
    ///
    /// # Errors
    /// [`RuleTableError`].
    pub fn replace(
        &self,
        id: RuleId,
        new: &NewRule,
        by: &Authorship,
    ) -> Result<(usize, Arc<StoredRule>), RuleTableError> {
        check(new)?;
        self.edit(|edit| {
            let at = edit.position(id)?;
            let rank = edit.rules[at].rank;
            edit.rules[at] = StoredRule { rank, ..edit.rule(id, new, by) };
            Ok(())
        })?;
        self.get(id).ok_or(RuleTableError::Unknown(id))
    }

    /// Moves a rule to this position, counted from 1. A position beyond the last is the last.
    ///
    /// # Errors
    /// [`RuleTableError`].
    pub fn move_to(
        &self,
        id: RuleId,
        position: usize,
        by: &Authorship,
    ) -> Result<(usize, Arc<StoredRule>), RuleTableError> {
        self.edit(|edit| {
            let at = edit.position(id)?;
            let rule = edit.rules.remove(at);
            let rule = StoredRule { author: by.author.clone(), changed_ms: by.now_ms, ..rule };
            edit.insert(Some(position), rule);
            Ok(())
        })?;
        self.get(id).ok_or(RuleTableError::Unknown(id))
    }

    /// # Errors
    /// [`RuleTableError`].
    pub fn remove(&self, id: RuleId) -> Result<StoredRule, RuleTableError> {
        self.edit(|edit| {
            let at = edit.position(id)?;
            Ok(edit.rules.remove(at))
        })
    }

    /// Replaces all rules by these, in this order.
    ///
    /// # Errors
    /// [`RuleTableError`].
    pub fn replace_all(&self, new: &[NewRule], by: &Authorship) -> Result<(), RuleTableError> {
        if new.len() > STORED_RULES_MAX {
            return Err(RuleTableError::TooMany);
        }
        for (number, rule) in (1..).zip(new) {
            check(rule).map_err(|error| RuleTableError::Of { number, error: Box::new(error) })?;
        }
        self.edit(|edit| {
            edit.rules.clear();
            for rule in new {
                let id = edit.fresh();
                edit.insert(None, edit.rule(id, rule, by));
            }
            Ok(())
        })
    }

    /// Changes the list as a whole, and proposes the differences. Repeats that when another writer changed rules
    /// meanwhile.
    fn edit<T>(&self, change: impl Fn(&mut Edit) -> Result<T, RuleTableError>) -> Result<T, RuleTableError> {
        let _changing: MutexGuard<'_, ()> = sync::lock(&self.changing);
        loop {
            // The counter is part of each change, so a change of an outdated list is refused.
            let counter = self.config_store.read(COUNTERS, COUNTER);
            let before = self.list();
            let next = counter.as_ref().and_then(|counter| counter.value.parse().ok()).unwrap_or(1);
            let mut edit = Edit { rules: before.iter().map(|rule| StoredRule::clone(rule)).collect(), next };
            let done = change(&mut edit)?;
            edit.spread();
            let expected = counter.map_or(Expected::Absent, |counter| Expected::At(counter.revision));
            let mut batch = vec![Change::number(COUNTERS, COUNTER, edit.next).expecting(expected)];
            let gone = before.iter().filter(|old| !edit.rules.iter().any(|rule| rule.id == old.id));
            batch.extend(gone.map(|old| Change::remove(TABLE, record::key(old.id))));
            let view: std::collections::HashMap<RuleId, &StoredRule> =
                before.iter().map(|rule| (rule.id, &**rule)).collect();
            for rule in edit.rules.iter().filter(|rule| view.get(&rule.id) != Some(rule)) {
                batch.push(Record::put(rule)?);
            }
            match self.config_store.propose(batch) {
                Ok(_) => return Ok(done),
                Err(ProposeError::Conflict { .. }) => {}
                Err(error) => return Err(RuleTableError::ConfigStore(error)),
            }
        }
    }
}

/// List during a change.
struct Edit {
    rules: Vec<StoredRule>,
    /// Next id.
    next: u64,
}

impl Edit {
    fn fresh(&mut self) -> RuleId {
        self.next += 1;
        RuleId(self.next - 1)
    }

    fn rule(&self, id: RuleId, new: &NewRule, by: &Authorship) -> StoredRule {
        StoredRule {
            id,
            text: new.text.trim().to_owned(),
            enabled: new.enabled,
            description: new.description.clone(),
            author: by.author.clone(),
            changed_ms: by.now_ms,
            rank: 0,
        }
    }

    fn position(&self, id: RuleId) -> Result<usize, RuleTableError> {
        self.rules.iter().position(|rule| rule.id == id).ok_or(RuleTableError::Unknown(id))
    }

    /// Inserts a rule at a position counted from 1. Its rank is between those of its neighbours, or 0 when there is no
    /// room.
    fn insert(&mut self, position: Option<usize>, rule: StoredRule) {
        let at =
            position.map_or(self.rules.len(), |position| position.saturating_sub(1).min(self.rules.len()));
        let below = at.checked_sub(1).map_or(0, |before| self.rules[before].rank);
        let rank = match self.rules.get(at) {
            Some(next_rule) => below + next_rule.rank.saturating_sub(below) / 2,
            None => below + GAP,
        };
        self.rules.insert(at, StoredRule { rank, ..rule });
    }

    /// Assigns new ranks to all rules when two of them are not in order.
    fn spread(&mut self) {
        let ordered = self.rules.windows(2).all(|pair| pair[0].rank < pair[1].rank);
        if !ordered || self.rules.first().is_some_and(|first| first.rank == 0) {
            for (rule, number) in self.rules.iter_mut().zip(1..) {
                rule.rank = number * GAP;
            }
        }
    }
}

/// # Errors
/// The fault of the rule.
fn check(rule: &NewRule) -> Result<(), RuleTableError> {
    if rule.description.len() > TEXT_MAX || rule.text.len() > TEXT_MAX {
        return Err(RuleTableError::Long);
    }
    if rule.text.contains(['\n', '\r']) {
        return Err(RuleTableError::Lines);
    }
    match RuleSet::parse_line(&rule.text) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(RuleTableError::Blank),
        Err(error) => Err(RuleTableError::Rule(error.to_string())),
    }
}

const TABLE: Table = Table::named("rules");
/// Table of counters that only grow.
const COUNTERS: Table = Table::named("counters");
const COUNTER: &str = "rules";
/// Maximum number of rules in the database. One batch may write and remove all of them.
pub const STORED_RULES_MAX: usize = 4_000;
/// Maximum size of a rule, and of its description, in bytes.
pub const TEXT_MAX: usize = 4_096;
/// Distance of two new ranks. It bounds how often a rule can be inserted between the same two.
const GAP: u64 = 1 << 32;

#[cfg(test)]
mod tests;
