//! Access rules: mosquitto's ACL file, and what it allows.
//!
//! A client's topic is decided by the first of these that speaks of it: a `deny` of its user, an allowing rule of its
//! user, a `deny` pattern, an allowing pattern. When none does, the answer is no. Clients without a user name have the
//! rules above the first `user` line for their own.
//!
//! A subscription is granted under [`SubscribeRule::Covered`] when, in the same order, no `deny` overlaps its Topic
//! Filter before one allowing rule covers it entirely. So nothing is granted of which a part would be refused at
//! delivery. That several rules cover it only together is not seen.

use std::collections::HashMap;
use std::path::Path;

use broker::access::Action;

use crate::error::{Fault, FileError};
use crate::rule::{Fit, RuleFilter};

settings::choices! {
    /// When a subscription is granted under an ACL.
    pub enum SubscribeRule {
        /// When one rule allows reading everything that the Topic Filter matches, and no `deny` overlaps it.
        Covered = "covered",
        /// Always, as mosquitto does: what may not be read is just not delivered.
        Always = "always",
    }
}

/// Whom a rule is applied to.
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
    /// The rules as they are written, by line.
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
    /// Counts from 1.
    line: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    read: bool,
    write: bool,
}

/// What an ACL says to a question, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The rule in this line of the file, counted from 1.
    Line(u32),
    /// The `deny` in this line has `%c` or `%u` in it, and the client's name a `+`, `#` or `/`, or a `$` where the topic
    /// begins: what it would forbid cannot be told.
    DangerousName(u32),
    /// No rule speaks of it.
    NoRule,
    /// Subscriptions are not asked about: [`SubscribeRule::Always`].
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

    /// The rule of this line, as it is written.
    pub fn text(&self, line: u32) -> Option<&str> {
        self.texts.get(&line).map(|text| &**text)
    }

    /// Whether the client may do this. Does not allocate.
    pub fn permits(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        subscribe: SubscribeRule,
    ) -> bool {
        self.decide(subject, action, topic, subscribe).allowed
    }

    /// The same, with what decides it.
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
        // One word is a topic; of several the first is the access, and the topic may hold spaces.
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

    /// `None` when they do not speak of it.
    fn say(&self, subject: Subject<'_>, action: Action, topic: &str) -> Option<Decision> {
        let denies = |Rule { filter, line }: &Rule| {
            let forbids = match filter.fit(subject) {
                Fit::Usable => match action {
                    Action::Subscribe { .. } => filter.overlaps(subject, topic),
                    Action::Publish { .. } | Action::Receive => filter.matches(subject, topic),
                },
                Fit::NoName => false,
                // What it would forbid cannot be told, so it forbids all.
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

/// The first word and what follows it, blanks between them removed.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (word, rest.trim_start())
}

#[cfg(test)]
mod tests;
