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
}

#[derive(Debug, Default)]
struct Rules {
    deny: Vec<RuleFilter>,
    allow: Vec<(Grant, RuleFilter)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    read: bool,
    write: bool,
}

/// What the rules of one place say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Yes,
    No,
    Nothing,
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
            acl.line(line, &mut user).map_err(|fault| FileError::new(path, index + 1, fault))?;
        }
        Ok(acl)
    }

    fn line(&mut self, line: &str, user: &mut Option<Box<str>>) -> Result<(), Fault> {
        let (word, rest) = split_word(line);
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
                rules.add(rest, RuleFilter::literal)?;
            }
            "pattern" => self.patterns.add(rest, RuleFilter::pattern)?,
            word => return Err(Fault::UnknownWord { word: word.to_owned() }),
        }
        Ok(())
    }

    /// Whether the client may do this. Does not allocate.
    pub fn permits(
        &self,
        subject: Subject<'_>,
        action: Action,
        topic: &str,
        subscribe: SubscribeRule,
    ) -> bool {
        if matches!(action, Action::Subscribe { .. }) && subscribe == SubscribeRule::Always {
            return true;
        }
        let own = match subject.username {
            Some(username) => self.users.get(username),
            None => Some(&self.anonymous),
        };
        match own.map_or(Says::Nothing, |rules| rules.say(subject, action, topic)) {
            Says::Yes => true,
            Says::No => false,
            Says::Nothing => self.patterns.say(subject, action, topic) == Says::Yes,
        }
    }
}

impl Rules {
    fn add(
        &mut self,
        text: &str,
        parse: impl Fn(&str) -> Result<RuleFilter, mqtt::TopicError>,
    ) -> Result<(), Fault> {
        // One word is a topic; of several the first is the access, and the topic may hold spaces.
        let (access, topic) = match split_word(text) {
            ("", _) => return Err(Fault::TopicMissing),
            (topic, "") => ("readwrite", topic),
            (access, topic) => (access, topic),
        };
        let filter = |topic: &str| {
            parse(topic).map_err(|why| Fault::TopicInvalid { topic: topic.to_owned(), why: why.to_string() })
        };
        let grant = match access {
            "read" => Grant { read: true, write: false },
            "write" => Grant { read: false, write: true },
            "readwrite" => Grant { read: true, write: true },
            "deny" => {
                self.deny.push(filter(topic)?);
                return Ok(());
            }
            word => return Err(Fault::UnknownAccess { word: word.to_owned() }),
        };
        self.allow.push((grant, filter(topic)?));
        Ok(())
    }

    fn say(&self, subject: Subject<'_>, action: Action, topic: &str) -> Says {
        let denies = |rule: &RuleFilter| match rule.fit(subject) {
            Fit::Usable => match action {
                Action::Subscribe { .. } => rule.overlaps(subject, topic),
                Action::Publish { .. } | Action::Receive => rule.matches(subject, topic),
            },
            Fit::NoUsername => false,
            // What it would forbid cannot be told, so it forbids all.
            Fit::Dangerous => true,
        };
        if self.deny.iter().any(denies) {
            return Says::No;
        }
        let allows = |(grant, rule): &(Grant, RuleFilter)| {
            let meant = match action {
                Action::Publish { .. } => grant.write && rule.matches(subject, topic),
                Action::Receive => grant.read && rule.matches(subject, topic),
                Action::Subscribe { .. } => grant.read && rule.covers(subject, topic),
            };
            meant && rule.fit(subject) == Fit::Usable
        };
        if self.allow.iter().any(allows) { Says::Yes } else { Says::Nothing }
    }
}

/// The first word and what follows it, blanks between them removed.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (word, rest.trim_start())
}

#[cfg(test)]
mod tests;
