//! Timestamp: a wall-clock time as RFC 3339 text in UTC.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
#[cfg(feature = "document")]
use utoipa::ToSchema;

/// A time that is written as `2026-01-31T12:00:00.000Z`. Times before 1970 and after 9999 are written as the nearest
/// one with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(value_type = String, format = DateTime, examples("2026-01-31T12:00:00.000Z")))]
pub struct Timestamp(pub SystemTime);

impl Timestamp {
    pub fn now() -> Self {
        Self(SystemTime::now())
    }

    /// Converts milliseconds since 1970; values beyond the last time with a text become that time.
    pub fn of_ms(ms: u64) -> Self {
        Self(SystemTime::UNIX_EPOCH).after(Duration::from_millis(ms))
    }

    /// Returns the time after this duration; values beyond the last time with a text become that time.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.checked_add(time).map_or(last(), |time| time.min(last())))
    }
}

fn last() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(time)
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        humantime::format_rfc3339_millis(self.0.clamp(SystemTime::UNIX_EPOCH, last())).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_text() {
        let text = |time| Timestamp(time).to_string();
        assert_eq!(text(SystemTime::UNIX_EPOCH + Duration::from_millis(1)), "1970-01-01T00:00:00.001Z");
        assert_eq!(text(SystemTime::UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00.000Z");
        let far = Timestamp::now().after(Duration::from_secs(u64::MAX));
        assert_eq!(far.to_string(), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn a_text_is_read_back() {
        let time = Timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), time);
        assert!(serde_json::from_str::<Timestamp>("\"yesterday\"").is_err());
    }
}
