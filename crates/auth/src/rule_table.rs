//! The built-in rule database: access rules in the registry, in an order that can be changed rule by rule.
//!
//! [`RuleTable`] proposes changes. Its view keeps the rules in their order, and hands what they say together to whoever decides by
//! them ([`RuleTable::on_change`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use configstore::{Change, ConfigStore, Expected, LocalStore, ProposeError, Table};

use crate::rules::RuleSet;

mod error;
mod record;
mod view;

pub use error::RuleTableError;
use record::Record;
use view::RuleView;

/// Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// One rule of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    pub id: RuleId,
    /// A line as in a rules file.
    pub text: String,
    /// One that is not decides nothing.
    pub enabled: bool,
    pub description: String,
    /// Who wrote it last: the name of an API key, or empty.
    pub author: String,
    /// Milliseconds since 1970.
    pub changed_ms: u64,
    /// Rules are asked in the order of these.
    rank: u64,
}

/// A rule to be, or what it is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRule {
    pub text: String,
    pub enabled: bool,
    pub description: String,
}

/// Who changes rules, and when.
#[derive(Clone, Debug)]
pub struct Authorship {
    pub author: String,
    /// Milliseconds since 1970.
    pub now_ms: u64,
}

/// The rules of the registry.
pub struct RuleTable {
    view: Arc<RuleView>,
    config_store: Arc<dyn ConfigStore>,
    /// Held by whoever changes rules on this node.
    changing: Mutex<()>,
}

impl std::fmt::Debug for RuleTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuleTable").field("len", &self.list().len()).finish_non_exhaustive()
    }
}

impl RuleTable {
    /// Rules that are kept in memory only.
    ///
    /// # Errors
    /// Never.
    pub fn in_memory() -> Result<Self, String> {
        Self::open(Arc::new(LocalStore::in_memory()))
    }

    /// The rules of the registry.
    ///
    /// # Errors
    /// A rule that makes no sense: without it others would decide.
    pub fn open(config_store: Arc<dyn ConfigStore>) -> Result<Self, String> {
        let view = Arc::new(RuleView::default());
        config_store.subscribe(TABLE, view.clone())?;
        Ok(Self { view, config_store, changing: Mutex::default() })
    }

    /// Has this called with what the enabled rules say: now, and after each change.
    pub fn on_change(&self, listener: impl Fn(RuleSet) + Send + Sync + 'static) {
        self.view.on_change(Box::new(listener));
    }

    /// All rules in their order.
    pub fn list(&self) -> Arc<Vec<Arc<StoredRule>>> {
        self.view.rules()
    }

    /// A rule, and its place, counted from 1.
    pub fn get(&self, id: RuleId) -> Option<(usize, Arc<StoredRule>)> {
        let rules = self.list();
        let at = rules.iter().position(|rule| rule.id == id)?;
        Some((at + 1, rules[at].clone()))
    }

    /// Adds a rule so that its place is this one, counted from 1; at the end without one. Waits for the registry, as all that follows:
    /// not for a reactor.
    ///
    /// # Errors
    /// [`RuleTableError`]; nothing has changed then, here and below.
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

    /// Replaces what a rule says; it stays where it is.
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

    /// Moves a rule so that its place is this one, counted from 1; beyond the last it is the last.
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

    /// Has these rules, in this order, instead of all that there are.
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

    /// Changes the list as a whole, and proposes what is different about it. When somebody else changed rules meanwhile, it is done
    /// again.
    fn edit<T>(&self, change: impl Fn(&mut Edit) -> Result<T, RuleTableError>) -> Result<T, RuleTableError> {
        let _changing: MutexGuard<'_, ()> = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // The counter is a part of each change, so a list that is not the present one is refused.
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

/// The list while it is changed.
struct Edit {
    rules: Vec<StoredRule>,
    /// The next id.
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

    /// Puts a rule at a place counted from 1, with a rank between its neighbours', 0 when there is no room.
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

    /// Gives all ranks anew when two of them are not in order.
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
/// What is wrong with it.
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
/// Numbers that only grow.
const COUNTERS: Table = Table::named("counters");
const COUNTER: &str = "rules";
/// Rules of the database. A change may write and remove all of them, in one batch.
pub const STORED_RULES_MAX: usize = 4_000;
/// Bytes of a rule, and of its description.
pub const TEXT_MAX: usize = 4_096;
/// Between two ranks: so many times a rule can be put between the same two.
const GAP: u64 = 1 << 32;

#[cfg(test)]
mod tests;
