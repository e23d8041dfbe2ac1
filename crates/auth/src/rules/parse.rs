//! Parser of rules.

use super::access_rule::{AccessRule, CertField, Condition, QosSet, Test, Topic};
use super::fault::{RuleError, RuleFault};
use super::glob::Glob;
use super::tokens::{self, Token};
use crate::bans::Net;
use crate::rule::{RuleFilter, TemplateError};

/// Parses one line; `None` for a blank line or a comment.
pub fn line(text: &str) -> Result<Option<AccessRule>, RuleError> {
    let tokens = tokens::split(text)?;
    let Some(first) = tokens.first() else { return Ok(None) };
    let allows = match () {
        () if first.is("allow") => true,
        () if first.is("deny") => false,
        () => return Err(RuleError::new(first.column, RuleFault::Decision(first.text.clone()))),
    };
    let end = text.chars().count() as u32 + 1;
    let mut reader = Reader { tokens: &tokens, next: 1, end };
    let who = reader.who()?;
    let (publish, subscribe) = reader.actions()?;
    let topics = reader.topics(subscribe)?;
    let (qos, retain) = reader.limits(subscribe)?;
    Ok(Some(AccessRule { allows, who, publish, subscribe, topics, qos, retain }))
}

struct Reader<'a> {
    tokens: &'a [Token],
    next: usize,
    /// Column after the line.
    end: u32,
}

type Parsed<T> = Result<T, RuleError>;

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.next)
    }

    fn take_if(&mut self, holds: impl Fn(&Token) -> bool) -> Option<&'a Token> {
        let token = self.peek().filter(|token| holds(token))?;
        self.next += 1;
        Some(token)
    }

    fn take(&mut self, keyword: &str) -> Option<&'a Token> {
        self.take_if(|token| token.is(keyword))
    }

    fn next_comma(&mut self) -> bool {
        self.take_if(|token| token.comma).is_some()
    }

    fn column(&self) -> u32 {
        self.peek().map_or(self.end, |token| token.column)
    }

    fn expected<T>(&self, what: &'static str) -> Parsed<T> {
        let found = self.peek().map(|token| token.text.clone()).map(|text| match &*text {
            "" => ",".to_owned(),
            _ => text,
        });
        Err(RuleError::new(self.column(), RuleFault::Expected { what, found }))
    }

    /// Parses a word that is not a keyword.
    fn value(&mut self, what: &'static str) -> Parsed<&'a Token> {
        match self.peek() {
            Some(token) if token.is_keyword() => {
                let found = token.text.clone();
                Err(RuleError::new(token.column, RuleFault::Keyword { what, found }))
            }
            Some(token) if !token.comma => {
                self.next += 1;
                Ok(token)
            }
            _ => self.expected(what),
        }
    }

    /// Parses a list with commas, of at least one entry.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Box<[T]>> {
        let mut list = vec![one(self)?];
        while self.next_comma() {
            list.push(one(self)?);
        }
        Ok(list.into())
    }

    fn who(&mut self) -> Parsed<Box<[Condition]>> {
        if self.take("everyone").is_some() {
            return match self.peek() {
                Some(token) if token.is("and") => Err(RuleError::new(token.column, RuleFault::EveryoneAlone)),
                _ => Ok(Box::default()),
            };
        }
        let mut all = vec![self.condition()?];
        while self.take("and").is_some() {
            all.push(self.condition()?);
        }
        Ok(all.into())
    }

    fn condition(&mut self) -> Parsed<Condition> {
        let negated = self.take("not").is_some();
        let Some(token) = self.peek() else { return self.expected(WHO) };
        if token.is("everyone") {
            return Err(RuleError::new(token.column, RuleFault::EveryoneAlone));
        }
        let singular = match &*token.text {
            "users" => "user",
            "clients" => "client",
            "listeners" => "listener",
            "addresses" => "address",
            text => text,
        };
        if token.quoted || token.comma {
            return self.expected(WHO);
        }
        let test = match singular {
            "anonymous" => {
                self.next += 1;
                Test::Anonymous
            }
            "user" => Test::User(self.globs("a user name")?),
            "client" => Test::Client(self.globs("a Client Identifier")?),
            "listener" => Test::Listener(self.globs("the name of a listener")?),
            "address" => {
                self.next += 1;
                Test::Address(self.list(Self::net)?)
            }
            "cert" => {
                self.next += 1;
                self.cert()?
            }
            "attribute" => {
                self.next += 1;
                self.attribute()?
            }
            _ => return self.expected(WHO),
        };
        Ok(Condition { negated, test })
    }

    /// Parses the keyword of a condition, then its values.
    fn globs(&mut self, what: &'static str) -> Parsed<Box<[Glob]>> {
        self.next += 1;
        self.list(|reader| reader.value(what).map(|token| Glob::of(token, 0)))
    }

    fn net(&mut self) -> Parsed<Net> {
        let token = self.value("an address")?;
        Net::parse(&token.text)
            .map_err(|why| RuleError::new(token.column, RuleFault::Address { text: token.text.clone(), why }))
    }

    /// Parses `FIELD=VALUE`, then more values.
    fn cert(&mut self) -> Parsed<Test> {
        let token = self.value("FIELD=VALUE such as cn=gateway-*")?;
        let unknown = || RuleError::new(token.column, RuleFault::CertField(token.text.clone()));
        let (name, _) = token.text.split_once('=').ok_or_else(unknown)?;
        let from = name.len() + 1;
        if name == "fingerprint" {
            let mut known = vec![fingerprint(token, from)?];
            while self.next_comma() {
                known.push(fingerprint(self.value("a fingerprint")?, 0)?);
            }
            return Ok(Test::Fingerprint(known.into()));
        }
        let (_, field) = CertField::ALL.into_iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        Ok(Test::Cert(field, self.more_globs(token, from)?))
    }

    fn attribute(&mut self) -> Parsed<Test> {
        let token = self.value("NAME=VALUE such as role=admin")?;
        let name = token.text.split_once('=').map_or("", |(name, _)| name);
        if !is_attribute_name(name) {
            return Err(RuleError::new(token.column, RuleFault::AttributeName(token.text.clone())));
        }
        Ok(Test::Attribute(name.into(), self.more_globs(token, name.len() + 1)?))
    }

    fn more_globs(&mut self, first: &Token, from: usize) -> Parsed<Box<[Glob]>> {
        let mut globs = vec![Glob::of(first, from)];
        while self.next_comma() {
            globs.push(Glob::of(self.value("another value")?, 0));
        }
        Ok(globs.into())
    }

    /// Returns whether publishing and subscribing are included.
    fn actions(&mut self) -> Parsed<(bool, bool)> {
        let (mut publish, mut subscribe) = (false, false);
        loop {
            match () {
                () if self.take("publish").is_some() => publish = true,
                () if self.take("subscribe").is_some() => subscribe = true,
                () if self.take("all").is_some() => (publish, subscribe) = (true, true),
                () => return self.expected("publish, subscribe or all"),
            }
            if !self.next_comma() {
                return Ok((publish, subscribe));
            }
        }
    }

    /// Parses topics with blanks or commas between them.
    fn topics(&mut self, subscribe: bool) -> Parsed<Box<[Topic]>> {
        let mut topics = Vec::new();
        loop {
            let column = self.column();
            topics.push(self.topic(subscribe)?);
            if topics.len() > 1 && topics.iter().any(|topic| !topic.eq && &*topic.text == "#") {
                return Err(RuleError::new(column, RuleFault::AllTopicsBeside));
            }
            let ends = self.peek().is_none_or(|token| token.is("qos") || token.is("retain"));
            if !self.next_comma() && ends {
                return Ok(topics.into());
            }
        }
    }

    fn topic(&mut self, subscribe: bool) -> Parsed<Topic> {
        let eq = self.take("eq");
        let token = self.value("a topic")?;
        let failed = |fault: RuleFault| RuleError::new(token.column, fault);
        let text = &*token.text;
        if let Some((_, filter)) = text.strip_prefix("$share/").and_then(|rest| rest.split_once('/')) {
            return Err(failed(RuleFault::Share { filter: filter.to_owned() }));
        }
        let filter = RuleFilter::template(text).map_err(|error| {
            failed(match error {
                TemplateError::Topic(why) => RuleFault::TopicInvalid { topic: text.to_owned(), why },
                TemplateError::Placeholder(name) => RuleFault::Placeholder(name),
            })
        })?;
        if let Some(name) = filter.attributes().find(|name| !is_attribute_name(name)) {
            return Err(failed(RuleFault::Placeholder(format!("attribute.{name}"))));
        }
        if let Some(eq) = eq
            && !subscribe
            && filter.has_wildcards()
        {
            return Err(RuleError::new(eq.column, RuleFault::EqPublish));
        }
        Ok(Topic { eq: eq.is_some(), filter, text: text.into() })
    }

    fn limits(&mut self, subscribe: bool) -> Parsed<(QosSet, Option<bool>)> {
        let (mut qos, mut retain) = (None, None);
        while let Some(token) = self.peek() {
            if self.take("qos").is_some() {
                let set = self.qos()?;
                if qos.replace(set).is_some() {
                    return Err(RuleError::new(token.column, RuleFault::Twice("qos")));
                }
            } else if self.take("retain").is_some() {
                if subscribe {
                    return Err(RuleError::new(token.column, RuleFault::RetainSubscribe));
                }
                let meant = match () {
                    () if self.take_if(|token| token.text == "yes").is_some() => true,
                    () if self.take_if(|token| token.text == "no").is_some() => false,
                    () => return self.expected("yes or no"),
                };
                if retain.replace(meant).is_some() {
                    return Err(RuleError::new(token.column, RuleFault::Twice("retain")));
                }
            } else {
                return self.expected("qos, retain or the end of the rule");
            }
        }
        Ok((qos.unwrap_or(QosSet::ALL), retain))
    }

    /// Parses numbers and ranges.
    fn qos(&mut self) -> Parsed<QosSet> {
        let mut set = QosSet::NONE;
        for range in self.list(|reader| {
            let token = reader.value("0, 1 or 2")?;
            let wrong = || RuleError::new(token.column, RuleFault::Qos(token.text.clone()));
            let (from, to) = token.text.split_once("..").unwrap_or((&token.text, &token.text));
            let number = |text: &str| match text {
                "0" => Some(0),
                "1" => Some(1),
                "2" => Some(2),
                _ => None,
            };
            let range = number(from).ok_or_else(wrong)?..=number(to).ok_or_else(wrong)?;
            if range.is_empty() { Err(wrong()) } else { Ok(range) }
        })? {
            set = range.fold(set, QosSet::with);
        }
        Ok(set)
    }
}

fn is_attribute_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte))
}

/// Parses the fingerprint in the word, from this byte on.
fn fingerprint(token: &Token, from: usize) -> Parsed<[u8; 32]> {
    let text = &token.text[from..];
    let wrong = || RuleError::new(token.column, RuleFault::Fingerprint(text.to_owned()));
    let mut digits = text.chars().filter(|character| *character != ':');
    let mut bytes = [0; 32];
    for byte in &mut bytes {
        for _ in 0..2 {
            let digit = digits.next().and_then(|digit| digit.to_digit(16)).ok_or_else(wrong)?;
            *byte = *byte << 4 | digit as u8;
        }
    }
    if digits.next().is_some() { Err(wrong()) } else { Ok(bytes) }
}

const WHO: &str =
    "everyone, anonymous, user, client, listener, address, cert or attribute, with not before it or without";
