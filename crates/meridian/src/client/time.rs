//! Points in time as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970, in UTC.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time in ISO 8601: `2026-11-21T04:57:52+0000`.
pub fn iso8601(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + since_epoch(time)).to_string();
    text.replace('Z', "+0000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_have_their_known_text() {
        let text = |seconds| iso8601(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(text(0), "1970-01-01T00:00:00+0000");
        assert_eq!(text(951_782_399), "2000-02-28T23:59:59+0000");
        assert_eq!(text(951_782_400), "2000-02-29T00:00:00+0000");
        assert_eq!(text(1_709_251_200), "2024-03-01T00:00:00+0000");
        assert_eq!(text(1_795_237_072), "2026-11-21T04:57:52+0000");
        assert_eq!(text(4_107_542_400), "2100-03-01T00:00:00+0000");
    }
}
