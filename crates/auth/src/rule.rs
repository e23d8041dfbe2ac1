//! Topic of one access rule: a Topic Filter with placeholders for the client's own names.

use std::fmt;

use access::Identity;
use mqtt::{TopicError, TopicFilter};

use crate::acl::Subject;

/// Topics that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFilter {
    levels: Box<[Level]>,
    /// Placeholders in the filter, each once.
    needs: Box<[Name]>,
    /// A placeholder begins the topic.
    needs_first: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    /// Level `+`.
    Any,
    /// Level `#`.
    Rest,
    Literal(Box<str>),
    Template(Box<[Piece]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Name(Name),
}

/// Value that a placeholder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    ClientId,
    Username,
    CertCn,
    Listener,
    /// First attribute of this name.
    Attribute(Box<str>),
}

/// Client whose names replace placeholders.
pub trait Names: Copy {
    /// Returns the name; `None` when the client has none.
    fn name(&self, name: &Name) -> Option<&str>;
}

impl Names for Subject<'_> {
    fn name(&self, name: &Name) -> Option<&str> {
        match name {
            Name::ClientId => Some(self.client_id),
            Name::Username => self.username,
            Name::CertCn | Name::Listener | Name::Attribute(_) => None,
        }
    }
}

impl Names for Identity<'_> {
    fn name(&self, name: &Name) -> Option<&str> {
        match name {
            Name::ClientId => Some(self.client_id),
            Name::Username => self.username,
            Name::CertCn => self.certificate?.common_name.as_deref(),
            Name::Listener => Some(self.listener),
            Name::Attribute(name) => {
                let mut attributes = self.principal?.attributes.iter();
                attributes.find(|(key, _)| key == name).map(|(_, value)| &**value)
            }
        }
    }
}

impl Name {
    /// Parses the text between `${` and `}`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "clientid" => Self::ClientId,
            "username" => Self::Username,
            "cert_cn" => Self::CertCn,
            "listener" => Self::Listener,
            text => Self::Attribute(text.strip_prefix("attribute.").filter(|name| !name.is_empty())?.into()),
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientId => f.write_str("clientid"),
            Self::Username => f.write_str("username"),
            Self::CertCn => f.write_str("cert_cn"),
            Self::Listener => f.write_str("listener"),
            Self::Attribute(name) => write!(f, "attribute.{name}"),
        }
    }
}

/// Reason why a text is not a topic with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Topic(TopicError),
    /// `${` without `}`, or with an unknown name between them.
    Placeholder(String),
}

/// Result of a check whether a rule can be applied to topics of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Usable,
    /// The rule needs a name, such as a user name, that the client does not have.
    NoName,
    /// The client's name contains a character with a meaning in topics, which could widen the rule to topics of others.
    Dangerous,
}

impl RuleFilter {
    /// Parses the text literally.
    ///
    /// # Errors
    /// The text is not a Topic Filter.
    pub fn literal(text: &str) -> Result<Self, TopicError> {
        let filter = TopicFilter::parse(text)?;
        let levels = filter.levels().map(plain_level).collect();
        Ok(Self { levels, needs: Box::default(), needs_first: false })
    }

    /// Parses a text with `%c` for the Client Identifier and `%u` for the user name.
    ///
    /// # Errors
    /// The text is not a Topic Filter.
    pub fn pattern(text: &str) -> Result<Self, TopicError> {
        let filter = TopicFilter::parse(text)?;
        Ok(Self::of(filter.levels().map(pattern_level).collect()))
    }

    /// Parses a text with `${clientid}`, `${username}`, `${cert_cn}`, `${listener}` and `${attribute.NAME}`.
    ///
    /// # Errors
    /// The text is not a Topic Filter, or has other placeholders.
    pub fn template(text: &str) -> Result<Self, TemplateError> {
        let filter = TopicFilter::parse(text).map_err(TemplateError::Topic)?;
        let levels: Result<_, _> = filter.levels().map(template_level).collect();
        Ok(Self::of(levels?))
    }

    fn of(levels: Box<[Level]>) -> Self {
        let mut needs = Vec::new();
        let mut needs_first = false;
        for (index, level) in levels.iter().enumerate() {
            let Level::Template(pieces) = level else { continue };
            needs_first |= index == 0 && !matches!(pieces[0], Piece::Text(_));
            for piece in pieces {
                if let Piece::Name(name) = piece
                    && !needs.contains(name)
                {
                    needs.push(name.clone());
                }
            }
        }
        Self { levels, needs: needs.into(), needs_first }
    }

    pub fn fit(&self, subject: impl Names) -> Fit {
        // A `$` would open the broker's own topics, which no wildcard does.
        let dangerous =
            |name: &str| name.contains(['+', '#', '/']) || (self.needs_first && name.starts_with('$'));
        let mut fit = Fit::Usable;
        for name in &self.needs {
            match subject.name(name) {
                None => return Fit::NoName,
                Some(name) if dangerous(name) => fit = Fit::Dangerous,
                Some(_) => {}
            }
        }
        fit
    }

    pub fn has_placeholders(&self) -> bool {
        !self.needs.is_empty()
    }

    /// Returns the names of the attributes in the filter.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.needs.iter().filter_map(|name| match name {
            Name::Attribute(name) => Some(&**name),
            _ => None,
        })
    }

    pub fn has_wildcards(&self) -> bool {
        self.levels.iter().any(|level| matches!(level, Level::Any | Level::Rest))
    }

    /// Returns the level of this number, counted from 0, if it is the same for every client.
    pub fn literal_level(&self, index: usize) -> Option<&str> {
        match self.levels.get(index)? {
            Level::Literal(text) => Some(text),
            Level::Any | Level::Rest | Level::Template(_) => None,
        }
    }

    /// Returns whether the rule is this Topic Filter, with wildcards taken literally.
    pub fn is(&self, subject: impl Names, filter: &str) -> bool {
        let mut filter = filter.split('/');
        self.levels.iter().all(|level| match (level, filter.next()) {
            (Level::Any, Some("+")) | (Level::Rest, Some("#")) => true,
            (level, Some(name)) => level.is(subject, name),
            (_, None) => false,
        }) && filter.next().is_none()
    }

    /// Returns whether the rule applies to this Topic Name. It matches like a subscription: wildcards at the first
    /// level do not match `$`-topics.
    pub fn matches(&self, subject: impl Names, topic: &str) -> bool {
        if topic.starts_with('$') && self.starts_with_wildcard() {
            return false;
        }
        let mut topic = topic.split('/');
        for level in &self.levels {
            match (level, topic.next()) {
                (Level::Rest, _) => return true,
                (Level::Any, Some(_)) => {}
                (level, Some(name)) if level.is(subject, name) => {}
                _ => return false,
            }
        }
        topic.next().is_none()
    }

    /// Returns whether the rule applies to every Topic Name that the Topic Filter `filter` matches.
    pub fn covers(&self, subject: impl Names, filter: &str) -> bool {
        if filter.starts_with('$') && self.starts_with_wildcard() {
            return false;
        }
        // `+/#` and `#` are the same, because every topic has a first level. At deeper levels, `a/#` matches `a` and
        // `a/+/#` does not.
        if filter == "#" && matches!(*self.levels, [Level::Any, Level::Rest]) {
            return true;
        }
        let mut filter = filter.split('/');
        for level in &self.levels {
            match (level, filter.next()) {
                (Level::Rest, _) => return true,
                (_, Some("#")) => return false,
                (Level::Any, Some(_)) => {}
                (_, Some("+")) => return false,
                (level, Some(name)) if level.is(subject, name) => {}
                _ => return false,
            }
        }
        filter.next().is_none()
    }

    /// Returns whether the rule applies to at least one Topic Name that the Topic Filter `filter` matches.
    pub fn overlaps(&self, subject: impl Names, filter: &str) -> bool {
        let hidden = |text: &str| text.starts_with('$');
        if hidden(filter) && self.starts_with_wildcard() {
            return false;
        }
        if filter.starts_with(['+', '#']) && self.starts_with_dollar() {
            return false;
        }
        let mut filter = filter.split('/');
        for level in &self.levels {
            match (level, filter.next()) {
                (Level::Rest, _) | (_, Some("#")) => return true,
                (Level::Any, Some(_)) | (_, Some("+")) => {}
                (level, Some(name)) if level.is(subject, name) => {}
                _ => return false,
            }
        }
        matches!(filter.next(), None | Some("#"))
    }

    fn starts_with_wildcard(&self) -> bool {
        matches!(self.levels[0], Level::Any | Level::Rest)
    }

    fn starts_with_dollar(&self) -> bool {
        match &self.levels[0] {
            Level::Literal(text) => text.starts_with('$'),
            // A name that begins with `$` is dangerous and does not get here.
            Level::Template(pieces) => matches!(&pieces[0], Piece::Text(text) if text.starts_with('$')),
            Level::Any | Level::Rest => false,
        }
    }
}

impl Level {
    /// Returns whether the level is this name; callers handle wildcards.
    fn is(&self, subject: impl Names, name: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *name,
            Self::Template(pieces) => {
                let mut rest = Some(name);
                for piece in pieces {
                    let text = match piece {
                        Piece::Text(text) => text,
                        // Only called for clients that have the name.
                        Piece::Name(name) => subject.name(name).unwrap_or_default(),
                    };
                    rest = rest.and_then(|rest| rest.strip_prefix(text));
                }
                rest == Some("")
            }
            Self::Any | Self::Rest => false,
        }
    }
}

fn plain_level(text: &str) -> Level {
    match text {
        "+" => Level::Any,
        "#" => Level::Rest,
        text => Level::Literal(text.into()),
    }
}

fn pattern_level(text: &str) -> Level {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("%c").into_iter().chain(rest.find("%u")).min() {
        if at > 0 {
            pieces.push(Piece::Text(rest[..at].into()));
        }
        pieces.push(Piece::Name(if rest[at..].starts_with("%c") { Name::ClientId } else { Name::Username }));
        rest = &rest[at + 2..];
    }
    if pieces.is_empty() {
        return plain_level(text);
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.into()));
    }
    Level::Template(pieces.into())
}

fn template_level(text: &str) -> Result<Level, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if !before.is_empty() {
            pieces.push(Piece::Text(before.into()));
        }
        let unknown = |text: &str| TemplateError::Placeholder(text.to_owned());
        let (name, after) = after.split_once('}').ok_or_else(|| unknown(after))?;
        pieces.push(Piece::Name(Name::parse(name).ok_or_else(|| unknown(name))?));
        rest = after;
    }
    if pieces.is_empty() {
        return Ok(plain_level(text));
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.into()));
    }
    Ok(Level::Template(pieces.into()))
}

#[cfg(test)]
mod tests {
    use mqtt::TopicName;
    use proptest::prelude::*;

    use super::*;

    const ALICE: Subject<'_> = Subject { client_id: "c1", username: Some("alice") };

    fn pattern(text: &str) -> RuleFilter {
        RuleFilter::pattern(text).unwrap()
    }

    #[test]
    fn placeholders_stand_for_the_clients_names() {
        assert!(pattern("u/%u/in").matches(ALICE, "u/alice/in"));
        assert!(!pattern("u/%u/in").matches(ALICE, "u/bob/in"));
        assert!(pattern("dev-%c-%u/+").matches(ALICE, "dev-c1-alice/x"));
        assert!(!pattern("dev-%c-%u/+").matches(ALICE, "dev-c1-alice2/x"));
        assert!(pattern("%c/#").covers(ALICE, "c1/+"));
        assert!(!pattern("%c/#").covers(ALICE, "+/c1"));
        assert!(!RuleFilter::literal("u/%u").unwrap().matches(ALICE, "u/alice"));
        assert!(RuleFilter::literal("u/%u").unwrap().matches(ALICE, "u/%u"));
    }

    #[test]
    fn a_name_that_could_widen_a_pattern_does_not_fit() {
        let fit = |text: &str, client_id, username| pattern(text).fit(Subject { client_id, username });
        assert_eq!(fit("u/%u/#", "c", Some("alice")), Fit::Usable);
        assert_eq!(fit("u/%u/#", "c", None), Fit::NoName);
        for name in ["+", "#", "a/b", "a#"] {
            assert_eq!(fit("u/%u/#", "c", Some(name)), Fit::Dangerous);
            assert_eq!(fit("u/%c/#", name, None), Fit::Dangerous);
            assert_eq!(fit("u/%u/#", name, Some("alice")), Fit::Usable, "the other name does not matter");
            assert_eq!(fit("u/#", name, Some(name)), Fit::Usable);
        }
        assert_eq!(fit("%u/#", "c", Some("$SYS")), Fit::Dangerous);
        assert_eq!(fit("u/%u", "c", Some("$SYS")), Fit::Usable);
    }

    #[test]
    fn an_invalid_filter_is_refused() {
        for text in ["", "a/#/b", "a+", "%u#"] {
            assert!(RuleFilter::pattern(text).is_err(), "{text}");
        }
    }

    /// Few names, so that random filters overlap. With all topics of up to four levels the brute force is complete: one
    /// name (`z`) occurs in no filter and represents all others.
    const NAMES: [&str; 5] = ["", "a", "b", "$a", "z"];

    fn topics() -> Vec<String> {
        let mut topics: Vec<String> = Vec::new();
        let mut shorter: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        for _ in 0..4 {
            topics.extend(shorter.iter().filter(|topic| !topic.is_empty()).cloned());
            shorter = shorter.iter().flat_map(|topic| NAMES.map(|name| format!("{topic}/{name}"))).collect();
        }
        topics
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just(""), Just("a"), Just("b"), Just("$a"), Just("+")];
        (proptest::collection::vec(level, 0..3), prop_oneof![Just("#"), Just("+"), Just("a"), Just("")])
            .prop_map(|(levels, last)| levels.into_iter().chain([last]).collect::<Vec<_>>().join("/"))
            // `/#` also matches the empty topic, which does not exist. Rules treat it as a topic, which refuses
            // slightly more.
            .prop_filter("a filter, and not `/#`", |filter| !filter.is_empty() && filter != "/#")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn covers_and_overlaps_agree_with_trying_every_topic(rule in filter(), wanted in filter()) {
            let parsed = RuleFilter::literal(&rule).unwrap();
            let wanted_filter = TopicFilter::parse(&wanted).unwrap();
            let rule_filter = TopicFilter::parse(&rule).unwrap();
            let (mut covers, mut overlaps) = (true, false);
            for topic in topics() {
                let name = TopicName::parse(&topic).unwrap();
                let by_rule = parsed.matches(ALICE, &topic);
                prop_assert_eq!(by_rule, rule_filter.matches(name), "{} on {}", rule, topic);
                if wanted_filter.matches(name) {
                    covers &= by_rule;
                    overlaps |= by_rule;
                }
            }
            prop_assert_eq!(parsed.covers(ALICE, &wanted), covers, "{} covers {}", rule, wanted);
            prop_assert_eq!(parsed.overlaps(ALICE, &wanted), overlaps, "{} overlaps {}", rule, wanted);
        }

        #[test]
        fn a_pattern_is_the_literal_with_the_names_filled_in(
            rule in proptest::collection::vec(prop_oneof![Just("%c"), Just("%u"), Just("x%c"), Just("%u%c"), Just("+"), Just("a")], 1..4),
            topic in proptest::collection::vec(prop_oneof![Just("c1"), Just("alice"), Just("xc1"), Just("alicec1"), Just("a")], 1..4),
        ) {
            let rule = rule.join("/");
            let filled = rule.replace("%c", "c1").replace("%u", "alice");
            let topic = topic.join("/");
            let by_literal = RuleFilter::literal(&filled).unwrap().matches(ALICE, &topic);
            prop_assert_eq!(pattern(&rule).matches(ALICE, &topic), by_literal);
        }
    }
}
