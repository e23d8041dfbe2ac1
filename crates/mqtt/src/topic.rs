//! Topic Names and Topic Filters (section 4.7) and Shared Subscriptions (4.8.2).

pub(crate) mod error;
pub(crate) mod filter;
pub(crate) mod name;
pub(crate) mod subscription;

use crate::encoder::FIELD_SIZE_MAX;
use error::TopicError;

/// Checks the common rules of Topic Names and Topic Filters: at least one character [MQTT-4.7.3-1] [MQTT3-4.7.3-1],
/// no U+0000 [MQTT-4.7.3-2] [MQTT3-4.7.3-2], at most 65,535 bytes [MQTT-4.7.3-3] [MQTT3-4.7.3-3].
fn check_length(topic: &str) -> Result<(), TopicError> {
    if topic.is_empty() {
        return Err(TopicError::Empty);
    }
    if topic.len() > FIELD_SIZE_MAX {
        return Err(TopicError::TooLong { size: topic.len() });
    }
    Ok(())
}
