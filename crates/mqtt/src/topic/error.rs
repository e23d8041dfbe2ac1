//! Reasons why a string is not a topic.

use std::fmt;

/// Reason why a string is not a Topic Name, a Topic Filter or a Shared Subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TopicError {
    /// The string is empty [MQTT-4.7.3-1] [MQTT3-4.7.3-1].
    Empty,
    /// The string has more than 65,535 bytes [MQTT-4.7.3-3] [MQTT3-4.7.3-3].
    TooLong { size: usize },
    /// The string contains U+0000 [MQTT-4.7.3-2] [MQTT3-4.7.3-2].
    ContainsNull,
    /// A Topic Name has `+` or `#` [MQTT-4.7.0-1] [MQTT3-4.7.1-1].
    WildcardInName,
    /// `+` or `#` shares its level with other characters [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT3-4.7.1-2]
    /// [MQTT3-4.7.1-3].
    WildcardNotAlone,
    /// `#` is not the last character [MQTT-4.7.1-1] [MQTT3-4.7.1-2].
    MultiLevelWildcardNotLast,
    /// The ShareName is empty or has a wildcard [MQTT-4.8.2-1] [MQTT-4.8.2-2].
    ShareNameInvalid,
    /// No Topic Filter follows the ShareName [MQTT-4.8.2-2].
    ShareFilterMissing,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicError::Empty => f.write_str("it is empty"),
            TopicError::TooLong { size } => write!(f, "it has {size} bytes, and the maximum is 65535"),
            TopicError::ContainsNull => f.write_str("it contains U+0000"),
            TopicError::WildcardInName => f.write_str("a Topic Name has no wildcards"),
            TopicError::WildcardNotAlone => f.write_str("a wildcard shares its level with other characters"),
            TopicError::MultiLevelWildcardNotLast => f.write_str("'#' is not the last character"),
            TopicError::ShareNameInvalid => f.write_str("the ShareName is empty or has a wildcard"),
            TopicError::ShareFilterMissing => f.write_str("no Topic Filter follows the ShareName"),
        }
    }
}

impl std::error::Error for TopicError {}
