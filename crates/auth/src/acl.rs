//! Access rules of mosquitto's ACL file.
//!
//! The first of these that applies decides about a client's topic: a `deny` of its user, an allowing rule of its user,
//! a `deny` pattern, an allowing pattern. Otherwise access is refused. The rules above the first `user` line are for
//! clients without a user name.
//!
//! Under [`SubscribeRule::Covered`], the same order decides about a subscription. One allowing rule must cover its
//! Topic Filter entirely, and no `deny` before it may overlap the filter. So no part of a granted subscription is
//! refused at delivery. Several rules that cover a filter only together do not grant it.

use std::collections::HashMap;
use std::path::Path;

use access::Action;

use crate::error::{Fault, FileError};
use crate::rule::{Fit, RuleFilter};

settings::choices! {
    /// Condition for granting a subscription under an ACL.
    pub enum SubscribeRule {
        /// Grants a subscription when one rule allows reading everything that its Topic Filter matches, and no `deny`
        /// overlaps it.
        Covered = "covered",
        /// Grants every subscription, like mosquitto. Messages that may not be read are not delivered.
        Always = "always",
    }
}

/// Client that rules are applied to.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
}

/// All rules of a file.
#[derive(Debug, Default)]
pub struct Acl {
    anonymous: Rules,
    users: HashMap<Box<str>, Rules>,
    patterns: Rules,
    /// Text of each rule, by line.
    texts: HashMap<u32, Box<str>>,
}

#[derive(Debug, Default)]
struct Rules {
    deny: Vec<Rule>,
    allow: Vec<(Grant, Rule)>,
}

#[derive(Debug)]
struct Rule {
    filter: RuleFilter,
    /// Line number, counted from 1.
    line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    read: bool,
    write: bool,
}

/// Answer of an ACL, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The rule in this line of the file, counted from 1.
    Line(u32),
    /// The `deny` in this line contains `%c` or `%u`, and the client's name contains `+`, `#` or `/`, or begins the
    /// topic with `$`. The topics that it forbids cannot be determined.
    DangerousName(u32),
    /// No rule applies.
    NoRule,
    /// Every subscription is granted: [`SubscribeRule::Always`].
    SubscribeAlways,
}

impl Acl {
    /// # Errors
    /// [`FileError`] with the line.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let bytes = std::fs::read(path).map_err(|error| FileError::new(path, None, Fault::Io(error)))?;
        let text = String::from_utf8(bytes).map_err(|_| FileError::new(path, None, Fault::NotText))?;
        Self::parse(path, &text)
    }

    /// # Errors
    /// [`FileError`] with the line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut acl = Self::default();
        let mut user: Option<Box<str>> = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            acl.line(line, (index + 1) as u32, &mut user)
                .map_err(|fault| FileError::new(path, index + 1, fault))?;
        }
        Ok(acl)
    }

    fn line(&mut self, line: &str, number: u32, user: &mut Option<Box<str>>) -> Result<(), Fault> {
        let (word, rest) = split_word(line);
        if word != "user" {
            self.texts.insert(number, line.into());
        }
        match word {
            "user" if rest.is_empty() => return Err(Fault::UserEmpty),
            "user" => {
                self.users.entry(rest.into()).or_default();
                *user = Some(rest.into());
            }
            "topic" => {
                let rules = match user {
                    Some(user) => self.users.entry(user.clone()).or_default(),
                    None => &mut self.anonymous,
                };
                rules.add(rest, number, RuleFilter::literal)?;
            }
            "pattern" => self.patterns.add(rest, number, RuleFilter::pattern)?,
            word => return Err(Fault::UnknownWord { word: word.to_owned() }),
        }
        Ok(())
    }

    /// Returns the rule of this line, as it is written.
    pub fn text(&self, line: u32) -> Option<&str> {
        self.texts.get(&line).map(|text| &**text)
    }

    /// Returns whether the client is allowed to do this. Does not allocate.
    pub fn permits(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        subscribe: SubscribeRule,
    ) -> bool {
        self.decide(subject, action, topic, subscribe).allowed
    }

    /// Returns whether the client is allowed to do this, and the deciding rule.
    pub fn decide(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        subscribe: SubscribeRule,
    ) -> Decision {
        if matches!(action, Action::Subscribe { .. }) && subscribe == SubscribeRule::Always {
            return Decision { allowed: true, why: Why::SubscribeAlways };
        }
        let own = match subject.username {
            Some(username) => self.users.get(username),
            None => Some(&self.anonymous),
        };
        own.and_then(|rules| rules.say(subject, action, topic))
            .or_else(|| self.patterns.say(subject, action, topic))
            .unwrap_or(Decision { allowed: false, why: Why::NoRule })
    }
}

impl Rules {
    fn add(
        &mut self,
        text: &str,
        line: u32,
        parse: impl Fn(&str) -> Result<RuleFilter, mqtt::TopicError>,
    ) -> Result<(), Fault> {
        // One word is a topic. With several, the first is the access, and the topic may contain spaces.
        let (access, topic) = match split_word(text) {
            ("", _) => return Err(Fault::TopicMissing),
            (topic, "") => ("readwrite", topic),
            (access, topic) => (access, topic),
        };
        let rule = |topic: &str| match parse(topic) {
            Ok(filter) => Ok(Rule { filter, line }),
            Err(why) => Err(Fault::TopicInvalid { topic: topic.to_owned(), why: why.to_string() }),
        };
        let grant = match access {
            "read" => Grant { read: true, write: false },
            "write" => Grant { read: false, write: true },
            "readwrite" => Grant { read: true, write: true },
            "deny" => {
                self.deny.push(rule(topic)?);
                return Ok(());
            }
            word => return Err(Fault::UnknownAccess { word: word.to_owned() }),
        };
        self.allow.push((grant, rule(topic)?));
        Ok(())
    }

    /// Returns the decision of these rules; `None` when none applies.
    fn say(&self, subject: Subject<'_>, action: Action, topic: &str) -> Option<Decision> {
        let denies = |Rule { filter, line }: &Rule| {
            let forbids = match filter.fit(subject) {
                Fit::Usable => match action {
                    Action::Subscribe { .. } => filter.overlaps(subject, topic),
                    Action::Publish { .. } | Action::Receive => filter.matches(subject, topic),
                },
                Fit::NoName => false,
                // The forbidden topics cannot be determined, so all are forbidden.
                Fit::Dangerous => return Some(Why::DangerousName(*line)),
            };
            forbids.then_some(Why::Line(*line))
        };
        if let Some(why) = self.deny.iter().find_map(denies) {
            return Some(Decision { allowed: false, why });
        }
        let allows = |(grant, Rule { filter, .. }): &&(Grant, Rule)| {
            let meant = match action {
                Action::Publish { .. } => grant.write && filter.matches(subject, topic),
                Action::Receive => grant.read && filter.matches(subject, topic),
                Action::Subscribe { .. } => grant.read && filter.covers(subject, topic),
            };
            meant && filter.fit(subject) == Fit::Usable
        };
        let (_, rule) = self.allow.iter().find(allows)?;
        Some(Decision { allowed: true, why: Why::Line(rule.line) })
    }
}

/// Returns the first word and the rest, without the blanks between them.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (word, rest.trim_start())
}

#[cfg(test)]
mod tests;
