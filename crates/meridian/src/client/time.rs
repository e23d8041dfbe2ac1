//! Points in time as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970, in UTC.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time in ISO 8601: `2026-11-21T04:57:52+0000`.
pub fn iso8601(time: SystemTime) -> String {
    let seconds = since_epoch(time).as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+0000")
}

/// Year, month and day of a day counted from 1970-01-01. Years are counted from 1 March, so the leap day is the last
/// day of a year. Eras of 400 years all have the same length.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let since_march_of_year_0 = days + 719_468;
    let (era, day) = (since_march_of_year_0 / ERA, since_march_of_year_0 % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, january) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + january, month, day)
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
