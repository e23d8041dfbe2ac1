//! Topic Name.

use std::fmt;

use super::check_length;
use super::error::TopicError;

/// Where a message is published: levels separated by `/`, no wildcards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName<'a>(&'a str);

impl<'a> TopicName<'a> {
    /// # Errors
    /// Empty, longer than 65,535 bytes, with U+0000 [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3], or with a wildcard
    /// [MQTT-4.7.0-1].
    pub fn parse(topic: &'a str) -> Result<TopicName<'a>, TopicError> {
        check_length(topic)?;
        match forbidden(topic.as_bytes()) {
            None => Ok(TopicName(topic)),
            Some(0) => Err(TopicError::ContainsNull),
            Some(_) => Err(TopicError::WildcardInName),
        }
    }

    #[inline]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }

    /// The levels, at least one; a level may be empty: `/a` has two.
    #[inline]
    pub fn levels(&self) -> std::str::Split<'a, char> {
        self.0.split('/')
    }

    /// A wildcard at the root does not match such a topic [MQTT-4.7.2-1] [MQTT3-4.7.2-1].
    #[inline]
    pub fn starts_with_dollar(&self) -> bool {
        self.0.starts_with('$')
    }
}

/// A byte that no Topic Name holds: U+0000 if it is there, else a wildcard if one is there.
#[inline]
pub(crate) fn forbidden(topic: &[u8]) -> Option<u8> {
    // Without an early exit the compiler looks at 16 bytes at a time, and topics are short and nearly always legal.
    let any = topic.iter().fold(false, |any, &byte| any | (byte == 0) | (byte == b'+') | (byte == b'#'));
    if !any {
        return None;
    }
    if topic.contains(&0) {
        return Some(0);
    }
    topic.iter().copied().find(|byte| matches!(byte, b'+' | b'#'))
}

impl fmt::Debug for TopicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TopicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names() {
        let longest = "x".repeat(65_535);
        for topic in ["a", "/", "//", "a/b c/ü", "$SYS/x", " ", "ACCOUNTS", "\u{FEFF}", &longest] {
            assert_eq!(TopicName::parse(topic).map(|name| name.as_str()), Ok(topic));
        }
        let too_long = "x".repeat(65_536);
        let cases = [
            // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            ("", TopicError::Empty),
            // [MQTT-4.7.3-3] [MQTT3-4.7.3-3]
            (&too_long, TopicError::TooLong { size: 65_536 }),
            // [MQTT-4.7.3-2] [MQTT3-4.7.3-2]
            ("a\0", TopicError::ContainsNull),
            ("a+\0", TopicError::ContainsNull),
            // [MQTT-4.7.0-1] [MQTT3-4.7.1-1]
            ("+", TopicError::WildcardInName),
            ("a/#", TopicError::WildcardInName),
            ("a+b", TopicError::WildcardInName),
        ];
        for (topic, error) in cases {
            assert_eq!(TopicName::parse(topic), Err(error), "{topic:.20}");
        }
    }

    /// [MQTT-4.7.1-1]: a separator always separates, whatever is beside it.
    #[test]
    fn levels() {
        let levels = |topic| TopicName::parse(topic).expect("legal").levels().collect::<Vec<_>>();
        assert_eq!(levels("a"), ["a"]);
        assert_eq!(levels("/"), ["", ""]);
        assert_eq!(levels("/a//b/"), ["", "a", "", "b", ""]);
    }
}
