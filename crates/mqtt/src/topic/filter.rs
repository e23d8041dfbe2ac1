//! Topic Filters, and their matching of Topic Names.

use std::fmt;

use super::check_length;
use super::error::TopicError;
use super::name::TopicName;

/// Filter of a subscription: like a Topic Name whose levels may be `+`, and whose last may be `#`. Without
/// `$share/...`, for which see [`Subscription`](super::subscription::Subscription).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter<'a>(&'a str);

impl<'a> TopicFilter<'a> {
    /// Parses a Topic Filter.
    ///
    /// # Errors
    /// The filter is empty, longer than 65,535 bytes, or has U+0000 [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3].
    /// Or a wildcard is not alone in its level or, for `#`, not at the end [MQTT-4.7.1-1] [MQTT-4.7.1-2].
    pub fn parse(filter: &'a str) -> Result<TopicFilter<'a>, TopicError> {
        check_length(filter)?;
        let bytes = filter.as_bytes();
        let mut wildcard_error = None;
        for (at, &byte) in bytes.iter().enumerate() {
            match byte {
                0 => return Err(TopicError::ContainsNull),
                b'+' | b'#' if wildcard_error.is_none() => {
                    let first = at == 0 || bytes[at - 1] == b'/';
                    let last = at + 1 == bytes.len();
                    let level_ends = last || bytes[at + 1] == b'/';
                    if !first || !level_ends {
                        wildcard_error = Some(TopicError::WildcardNotAlone);
                    } else if byte == b'#' && !last {
                        wildcard_error = Some(TopicError::MultiLevelWildcardNotLast);
                    }
                }
                _ => {}
            }
        }
        match wildcard_error {
            None => Ok(TopicFilter(filter)),
            Some(error) => Err(error),
        }
    }

    /// Creates a filter from a text that [`Self::parse`] has accepted before.
    #[inline]
    pub(super) fn of_parsed(filter: &'a str) -> TopicFilter<'a> {
        debug_assert!(TopicFilter::parse(filter).is_ok(), "{filter:?} was never parsed");
        TopicFilter(filter)
    }

    #[inline]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }

    /// Returns the levels, at least one. A level may be empty, `+`, and, if it is the last one, `#`.
    #[inline]
    pub fn levels(&self) -> std::str::Split<'a, char> {
        self.0.split('/')
    }

    #[inline]
    pub fn has_wildcard(&self) -> bool {
        self.0.bytes().any(|byte| matches!(byte, b'+' | b'#'))
    }

    /// Returns whether the filter matches `topic`, character by character [MQTT-4.7.3-4] [MQTT3-4.7.3-4]. `a/#`
    /// matches `a` too (4.7.1.2). A wildcard in the first level does not match a topic that begins with `$`
    /// [MQTT-4.7.2-1] [MQTT3-4.7.2-1].
    pub fn matches(&self, topic: TopicName<'_>) -> bool {
        if topic.starts_with_dollar() && self.0.starts_with(['+', '#']) {
            return false;
        }
        let (mut filter, mut topic) = (self.0.as_bytes(), topic.as_str().as_bytes());
        // Both are at the beginning of a level.
        loop {
            match filter {
                [b'#'] => return true,
                [b'+', rest @ ..] => {
                    filter = rest;
                    topic = &topic[level_len(topic)..];
                }
                _ => {
                    let len = level_len(filter);
                    if level_len(topic) != len || filter[..len] != topic[..len] {
                        return false;
                    }
                    (filter, topic) = (&filter[len..], &topic[len..]);
                }
            }
            match (filter.split_first(), topic.split_first()) {
                (Some((_, filter_rest)), Some((_, topic_rest))) => {
                    (filter, topic) = (filter_rest, topic_rest)
                }
                (None, None) => return true,
                // `a/#` matches `a`.
                (Some(_), None) => return filter == b"/#",
                (None, Some(_)) => return false,
            }
        }
    }

    /// Returns whether each topic that `other` matches is matched by this filter, too.
    pub fn covers(&self, other: TopicFilter<'_>) -> bool {
        let starts_with_wildcard = self.0.starts_with(['+', '#']);
        if other.0.starts_with('$') && starts_with_wildcard {
            return false;
        }
        // Every topic has a first level.
        if self.0 == "+/#" && other.0 == "#" {
            return true;
        }
        let mut others = other.0.split('/');
        for level in self.0.split('/') {
            match (level, others.next()) {
                ("#", _) => return true,
                (_, Some("#")) => return false,
                ("+", Some(_)) => {}
                (level, Some(other)) if level == other => {}
                _ => return false,
            }
        }
        others.next().is_none()
    }
}

/// Returns the number of bytes before the next `/` or the end.
#[inline]
fn level_len(topic: &[u8]) -> usize {
    topic.iter().position(|&byte| byte == b'/').unwrap_or(topic.len())
}

impl fmt::Debug for TopicFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TopicFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All texts of up to three levels of these, as filters and as names.
    fn texts(levels: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = levels.iter().map(|level| level.to_string()).collect();
        let mut from = 0;
        for _ in 0..2 {
            let until = all.len();
            for at in from..until {
                all.extend(levels.iter().map(|level| format!("{}/{level}", all[at])).collect::<Vec<_>>());
            }
            from = until;
        }
        all
    }

    #[test]
    fn a_filter_covers_another_one_when_it_matches_each_of_its_topics() {
        let topics = texts(&["a", "b", "$x", ""]);
        let topics: Vec<_> = topics.iter().filter_map(|topic| TopicName::parse(topic).ok()).collect();
        let filters = texts(&["a", "$x", "+", "#"]);
        let filters: Vec<_> = filters.iter().filter_map(|text| TopicFilter::parse(text).ok()).collect();
        let mut covering = 0;
        for one in &filters {
            for other in &filters {
                let covers = topics.iter().all(|topic| !other.matches(*topic) || one.matches(*topic));
                assert_eq!(one.covers(*other), covers, "{one:?} covers {other:?}");
                covering += usize::from(covers);
            }
        }
        assert!(covering > filters.len(), "others than the same");
    }

    #[test]
    fn topic_filters_are_checked() {
        let longest = "x".repeat(65_535);
        let legal = [
            ("a/b", false),
            ("/", false),
            ("sport/tennis/player1/#", true),
            ("sport/#", true),
            ("#", true),
            ("/#", true),
            ("+", true),
            ("+/tennis/#", true),
            ("sport/+/player1", true),
            ("/+", true),
            ("+/+", true),
            ("$SYS/#", true),
            (&longest, false),
        ];
        for (filter, has_wildcard) in legal {
            let parsed = TopicFilter::parse(filter).expect(filter);
            assert_eq!(parsed.as_str(), filter);
            assert_eq!(parsed.has_wildcard(), has_wildcard, "{filter:.20}");
        }
        let too_long = "x".repeat(65_536);
        let illegal = [
            // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            ("", TopicError::Empty),
            // [MQTT-4.7.3-3] [MQTT3-4.7.3-3]
            (&too_long, TopicError::TooLong { size: 65_536 }),
            // [MQTT-4.7.3-2] [MQTT3-4.7.3-2]
            ("a/\0", TopicError::ContainsNull),
            ("a+/\0", TopicError::ContainsNull),
            // [MQTT-4.7.1-1] [MQTT3-4.7.1-2]
            ("sport/tennis#", TopicError::WildcardNotAlone),
            ("#a", TopicError::WildcardNotAlone),
            ("##", TopicError::WildcardNotAlone),
            ("sport/tennis/#/ranking", TopicError::MultiLevelWildcardNotLast),
            ("#/", TopicError::MultiLevelWildcardNotLast),
            // [MQTT-4.7.1-2] [MQTT3-4.7.1-3]
            ("sport+", TopicError::WildcardNotAlone),
            ("+a/b", TopicError::WildcardNotAlone),
            ("a/++/b", TopicError::WildcardNotAlone),
            ("+#", TopicError::WildcardNotAlone),
        ];
        for (filter, error) in illegal {
            assert_eq!(TopicFilter::parse(filter), Err(error), "{filter:.20}");
        }
    }

    /// The examples of 4.7.1.2, 4.7.1.3, 4.7.2 and 4.7.3, and cases between them.
    #[test]
    fn filters_match_as_specified() {
        let cases = [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
            ("sport/tennis/player1/#", "sport/tennis/player10", false),
            ("sport/#", "sport", true),
            ("sport/#", "sport/", true),
            ("#", "a", true),
            ("#", "/", true),
            ("#", "a/b/c", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("+", "finance", true),
            ("+/#", "finance", true),
            ("a/+/#", "a", false),
            ("a/b", "a/b", true),
            ("a/b", "a/b/", false),
            ("a/b/", "a/b", false),
            ("a//b", "a/b", false),
            // [MQTT-4.7.3-4] [MQTT3-4.7.3-4]: matching is case-sensitive, and nothing is normalised.
            ("ACCOUNTS", "Accounts", false),
            ("\u{E9}", "e\u{301}", false),
            // [MQTT-4.7.2-1] [MQTT3-4.7.2-1]
            ("#", "$SYS/monitor", false),
            ("+/monitor/Clients", "$SYS/monitor/Clients", false),
            ("+/#", "$SYS", false),
            ("$SYS/#", "$SYS/monitor", true),
            ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
            ("/#", "/$SYS", true),
            ("a/+", "a/$SYS", true),
        ];
        for (filter, topic, expected) in cases {
            let (filter, topic) = (TopicFilter::parse(filter).unwrap(), TopicName::parse(topic).unwrap());
            assert_eq!(filter.matches(topic), expected, "{filter} {topic}");
        }
    }
}
