//! Readable access rules: one a line, and the first applicable rule decides.
//!
//! [`RuleSet`] holds the rules of one source; read it first. docs/access-rules.md has the grammar. The caller decides
//! about questions to which no rule applies.
//!
//! A subscription is granted when an `allow` covers everything that its Topic Filter matches and no `deny` before it
//! overlaps that. The rules for subscribing decide about deliveries. So no part of a granted subscription is refused at
//! delivery.

use std::path::Path;

use access::{Action, Grants, Identity};

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

/// Maximum number of rules in one source.
pub const RULES_MAX: usize = 1_000_000;

/// Rules of a file, of the database, or of one client, in order.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Box<[AccessRule]>,
    /// Location of each rule.
    locations: Box<[RuleLocation]>,
    index: Index,
}

/// Location of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleLocation {
    /// Line, counted from 1.
    Line(u32),
    /// Id of the rule.
    Id(Box<str>),
}

/// Answer of the rules.
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

    /// Parses lines of text; blank ones and comments are skipped.
    ///
    /// # Errors
    /// The first invalid line, counted from 1.
    pub fn parse(text: &str) -> Result<Self, (u32, RuleError)> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (RuleLocation::Line(number), line));
        Self::collect(lines).map_err(|(location, error)| match location {
            RuleLocation::Line(number) => (number, error),
            RuleLocation::Id(_) => (0, error),
        })
    }

    /// Parses rules with ids, by which decisions name them.
    ///
    /// # Errors
    /// The first invalid rule.
    pub fn parse_lines<'a>(
        lines: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, (Box<str>, RuleError)> {
        let lines = lines.into_iter().map(|(id, text)| (RuleLocation::Id(id.into()), text));
        Self::collect(lines).map_err(|(location, error)| match location {
            RuleLocation::Id(id) => (id, error),
            RuleLocation::Line(_) => (Box::default(), error),
        })
    }

    /// Parses one rule; `None` for a blank line or a comment.
    ///
    /// # Errors
    /// The fault, and the fix.
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

    /// Returns the answer of the first applicable rule; `None` when there is none. Does not allocate. The topic of
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
