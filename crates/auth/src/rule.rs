//! The topic of one access rule: a Topic Filter, in patterns with `%c` and `%u` for the client's own names.

use mqtt::{TopicError, TopicFilter};

use crate::acl::Subject;

/// What a rule speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFilter {
    levels: Box<[Level]>,
    needs: Needs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    /// `+`
    Any,
    /// `#`
    Rest,
    Literal(Box<str>),
    Template(Box<[Piece]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    ClientId,
    Username,
}

/// Which placeholders occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    client_id: bool,
    username: bool,
    /// One of them begins the topic.
    first: bool,
}

/// Whether a rule can be held against a topic of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Usable,
    /// It speaks of a user name and the client has none.
    NoUsername,
    /// The client's name has a character that means something in a topic: it could stretch the rule to the topics
    /// of others.
    Dangerous,
}

impl RuleFilter {
    /// Takes the text literally.
    ///
    /// # Errors
    /// When it is no Topic Filter.
    pub fn literal(text: &str) -> Result<Self, TopicError> {
        let filter = TopicFilter::parse(text)?;
        let levels = filter.levels().map(plain_level).collect();
        Ok(Self { levels, needs: Needs::default() })
    }

    /// Takes `%c` for the Client Identifier and `%u` for the user name.
    ///
    /// # Errors
    /// When it is no Topic Filter.
    pub fn pattern(text: &str) -> Result<Self, TopicError> {
        let filter = TopicFilter::parse(text)?;
        let levels: Box<[Level]> = filter.levels().map(pattern_level).collect();
        let mut needs = Needs::default();
        for (index, level) in levels.iter().enumerate() {
            let Level::Template(pieces) = level else { continue };
            needs.client_id |= pieces.contains(&Piece::ClientId);
            needs.username |= pieces.contains(&Piece::Username);
            needs.first |= index == 0 && !matches!(pieces[0], Piece::Text(_));
        }
        Ok(Self { levels, needs })
    }

    pub fn fit(&self, subject: Subject<'_>) -> Fit {
        if self.needs.username && subject.username.is_none() {
            return Fit::NoUsername;
        }
        // A `$` would open the broker's own topics, which no wildcard does.
        let dangerous =
            |name: &str| name.contains(['+', '#', '/']) || (self.needs.first && name.starts_with('$'));
        let client_id = self.needs.client_id && dangerous(subject.client_id);
        let username = self.needs.username && subject.username.is_some_and(dangerous);
        if client_id || username { Fit::Dangerous } else { Fit::Usable }
    }

    /// Whether it is about this Topic Name: as a subscription would match, `$`-topics hidden from first wildcards.
    pub fn matches(&self, subject: Subject<'_>, topic: &str) -> bool {
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

    /// Whether it is about every Topic Name that the Topic Filter `filter` matches.
    pub fn covers(&self, subject: Subject<'_>, filter: &str) -> bool {
        if filter.starts_with('$') && self.starts_with_wildcard() {
            return false;
        }
        // `+/#` and `#` are the same, as every topic has a first level. Deeper, `a/#` has `a` beyond `a/+/#`.
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

    /// Whether there is a Topic Name that it is about and that the Topic Filter `filter` matches.
    pub fn overlaps(&self, subject: Subject<'_>, filter: &str) -> bool {
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
    /// Whether it is this one name; wildcards are for the callers.
    fn is(&self, subject: Subject<'_>, name: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *name,
            Self::Template(pieces) => {
                let mut rest = Some(name);
                for piece in pieces {
                    let text = match piece {
                        Piece::Text(text) => text,
                        Piece::ClientId => subject.client_id,
                        Piece::Username => subject.username.unwrap_or_default(),
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
        pieces.push(if rest[at..].starts_with("%c") { Piece::ClientId } else { Piece::Username });
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
    fn a_name_that_could_stretch_a_pattern_does_not_fit() {
        let fit = |text: &str, client_id, username| pattern(text).fit(Subject { client_id, username });
        assert_eq!(fit("u/%u/#", "c", Some("alice")), Fit::Usable);
        assert_eq!(fit("u/%u/#", "c", None), Fit::NoUsername);
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
    fn what_is_no_filter_is_refused() {
        for text in ["", "a/#/b", "a+", "%u#"] {
            assert!(RuleFilter::pattern(text).is_err(), "{text}");
        }
    }

    /// Few names, so that random filters meet; all topics up to four levels of them, so that the brute force is
    /// complete: one name (`z`) occurs in no filter and stands for all others.
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
            // `/#` speaks of the empty topic too, which is none. Rules take it for one, which refuses a little more.
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
