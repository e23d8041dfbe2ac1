//! Readable access rules: one a line, and the first that speaks of a question decides it.
//!
//! [`RuleSet`] holds the rules of one place; read it first. docs/access-rules.md has the grammar. What follows when no rule speaks of a
//! question is decided elsewhere.
//!
//! A subscription is granted when an `allow` covers all that its Topic Filter matches and no `deny` before it overlaps that.
//! Deliveries are decided by the rules for subscribing. So nothing is granted of which a part would be refused at delivery.

use std::path::Path;

use broker::access::{Action, Grants, Identity};

use crate::error::{Fault, FileError};

mod access_rule;
mod fault;
mod glob;
mod index;
mod parse;
mod tokens;

pub use access_rule::{AccessRule, RulingReason};
pub use fault::{RuleError, RuleFault};
use index::Index;

/// Rules that there may be in one place.
pub const RULES_MAX: usize = 1_000_000;

/// The rules of a file, of the database, or of one client, in their order.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Box<[AccessRule]>,
    /// Of each rule.
    locations: Box<[RuleLocation]>,
    index: Index,
}

/// Where a rule is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleLocation {
    /// Counts from 1.
    Line(u32),
    /// What the rule is called.
    Id(Box<str>),
}

/// What rules say to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ruling<'a> {
    pub allowed: bool,
    pub rule: &'a AccessRule,
    pub location: &'a RuleLocation,
    pub ruling_reason: RulingReason,
}

impl RuleSet {
    /// # Errors
    /// [`FileError`] with line and column.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let bytes = std::fs::read(path).map_err(|error| FileError::new(path, None, Fault::Io(error)))?;
        let text = String::from_utf8(bytes).map_err(|_| FileError::new(path, None, Fault::NotText))?;
        Self::parse(&text).map_err(|(line, error)| FileError::new(path, line as usize, Fault::Rule(error)))
    }

    /// Reads lines of text; blank ones and comments are none.
    ///
    /// # Errors
    /// The first line with something wrong, counted from 1.
    pub fn parse(text: &str) -> Result<Self, (u32, RuleError)> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (RuleLocation::Line(number), line));
        Self::collect(lines).map_err(|(location, error)| match location {
            RuleLocation::Line(number) => (number, error),
            RuleLocation::Id(_) => (0, error),
        })
    }

    /// Reads rules that have names. An id is what decisions are said to come from.
    ///
    /// # Errors
    /// The first rule with something wrong.
    pub fn parse_lines<'a>(
        lines: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, (Box<str>, RuleError)> {
        let lines = lines.into_iter().map(|(id, text)| (RuleLocation::Id(id.into()), text));
        Self::collect(lines).map_err(|(location, error)| match location {
            RuleLocation::Id(id) => (id, error),
            RuleLocation::Line(_) => (Box::default(), error),
        })
    }

    /// One rule, `None` when the line is blank or a comment.
    ///
    /// # Errors
    /// What is wrong, and the fix.
    pub fn parse_line(text: &str) -> Result<Option<AccessRule>, RuleError> {
        parse::line(text)
    }

    fn collect<'a>(
        lines: impl Iterator<Item = (RuleLocation, &'a str)>,
    ) -> Result<Self, (RuleLocation, RuleError)> {
        let (mut rules, mut locations) = (Vec::new(), Vec::new());
        for (location, text) in lines {
            match parse::line(text) {
                Ok(None) => {}
                Ok(Some(_)) if rules.len() == RULES_MAX => {
                    return Err((location, RuleError::new(1, RuleFault::TooMany)));
                }
                Ok(Some(rule)) => {
                    rules.push(rule);
                    locations.push(location);
                }
                Err(error) => return Err((location, error)),
            }
        }
        let index = Index::of(&rules);
        Ok(Self { rules: rules.into(), locations: locations.into(), index })
    }

    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn rules(&self) -> impl Iterator<Item = (&RuleLocation, &AccessRule)> {
        self.locations.iter().zip(&self.rules)
    }

    /// What the first rule that speaks of it says. `None` when there is no such rule. Does not allocate. The topic of
    /// [`Action::Subscribe`] is a Topic Filter without a share name.
    pub fn ruling(&self, who: Identity<'_>, action: Action, topic: &str) -> Option<Ruling<'_>> {
        let decides = |number: u32| self.rules[number as usize].decides(who, action, topic);
        let (number, ruling_reason) = self.index.first(who, action, topic, decides)?;
        let (rule, location) = (&self.rules[number as usize], &self.locations[number as usize]);
        Some(Ruling { allowed: rule.allows, rule, location, ruling_reason })
    }
}

impl Grants for RuleSet {
    fn decide(&self, identity: Identity<'_>, action: Action, topic: &str) -> Option<bool> {
        self.ruling(identity, action, topic).map(|ruling| ruling.allowed)
    }
}

#[cfg(test)]
mod tests;
