//! Topic Name.

use std::fmt;

use super::check_length;
use super::error::TopicError;

/// Topic of a message: levels separated by `/`, no wildcards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName<'a>(&'a str);

impl<'a> TopicName<'a> {
    /// Parses a Topic Name.
    ///
    /// # Errors
    /// The name is empty, longer than 65,535 bytes, has U+0000 [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.7.3-3], or has
    /// a wildcard [MQTT-4.7.0-1].
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

    /// Returns the levels, at least one. A level may be empty: `/a` has two.
    #[inline]
    pub fn levels(&self) -> std::str::Split<'a, char> {
        self.0.split('/')
    }

    /// Returns whether the name starts with `$`. A wildcard in the first level does not match such a topic
    /// [MQTT-4.7.2-1] [MQTT3-4.7.2-1].
    #[inline]
    pub fn starts_with_dollar(&self) -> bool {
        self.0.starts_with('$')
    }
}

/// A Topic Name that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicNameBuf(Box<str>);

impl TopicNameBuf {
    #[inline]
    pub fn as_name(&self) -> TopicName<'_> {
        TopicName(&self.0)
    }
}

impl From<TopicName<'_>> for TopicNameBuf {
    fn from(name: TopicName<'_>) -> Self {
        Self(name.as_str().into())
    }
}

/// Returns a byte that no Topic Name may have: U+0000 if there is one, otherwise a wildcard if there is one.
#[inline]
pub(crate) fn forbidden(topic: &[u8]) -> Option<u8> {
    if any_forbidden(topic) { which_forbidden(topic) } else { None }
}

#[cold]
fn which_forbidden(topic: &[u8]) -> Option<u8> {
    if topic.contains(&0) { Some(0) } else { topic.iter().copied().find(|byte| matches!(byte, b'+' | b'#')) }
}

/// Returns whether there is a forbidden byte. Checks eight bytes at a time, because every PUBLISH needs it: one at
/// a time took 15 ns for 38 bytes, half of a decode.
#[inline]
fn any_forbidden(topic: &[u8]) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    /// `+` and `#` differ in this bit only.
    const DIFFERENCE: u64 = u64::from_ne_bytes([b'+' ^ b'#'; 8]);
    const PLUS: u64 = u64::from_ne_bytes([b'+'; 8]);
    const _: () = assert!((b'+' ^ b'#').is_power_of_two() && b'+' & (b'+' ^ b'#') != 0);
    /// Returns a value that is not 0 exactly when one of the bytes is 0.
    #[inline]
    fn zeros(word: u64) -> u64 {
        word.wrapping_sub(LOW) & !word & HIGH
    }

    let (words, rest) = topic.as_chunks::<8>();
    let mut found = 0;
    for word in words {
        let word = u64::from_ne_bytes(*word);
        found |= zeros(word) | zeros((word | DIFFERENCE) ^ PLUS);
    }
    found != 0 || rest.iter().any(|byte| matches!(byte, 0 | b'+' | b'#'))
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
    fn topic_names_are_checked() {
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

    /// Tests every byte value at every position among others.
    #[test]
    fn forbidden_bytes_are_found_anywhere() {
        for len in 1..20 {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    for others in [b'a', b'*', b'"', b'$', b',', 0x01, 0x7F, 0x80, 0xAB, 0xFF] {
                        let mut topic = vec![others; len];
                        topic[at] = byte;
                        let expected = matches!(byte, 0 | b'+' | b'#').then_some(byte);
                        assert_eq!(forbidden(&topic), expected, "{topic:02X?}");
                    }
                }
            }
        }
    }

    /// [MQTT-4.7.1-1]: a separator always separates, whatever is next to it.
    #[test]
    fn every_separator_separates_levels() {
        let levels = |topic| TopicName::parse(topic).expect("legal").levels().collect::<Vec<_>>();
        assert_eq!(levels("a"), ["a"]);
        assert_eq!(levels("/"), ["", ""]);
        assert_eq!(levels("/a//b/"), ["", "a", "", "b", ""]);
    }
}
