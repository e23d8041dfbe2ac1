//! RFC 3339 times of the API, as far as ages and differences need them. The output has no local time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads `2026-01-31T12:00:00.25Z`, or with an offset. `None` for anything else and for times before 1970.
pub fn parse(text: &str) -> Option<SystemTime> {
    if !text.is_ascii() || text.len() < 20 || !matches!(text.as_bytes()[10], b'T' | b't' | b' ') {
        return None;
    }
    let (date, clock, rest) = (&text[..10], &text[11..19], &text[19..]);
    let time = humantime::parse_rfc3339_weak(&format!("{date}T{clock}")).ok()?;
    let (nanos, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(fraction) => {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let nanos = fraction[..digits.min(9)].parse::<u32>().ok()? * 10_u32.pow(9 - digits.min(9) as u32);
            (nanos, &fraction[digits..])
        }
    };
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let utc = seconds.checked_add_signed(-offset(zone)?)?;
    UNIX_EPOCH.checked_add(Duration::new(utc, nanos))
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    let (sign, rest) = match zone.as_bytes() {
        [b'Z' | b'z'] => return Some(0),
        [b'+', ..] => (1, &zone[1..]),
        [b'-', ..] => (-1, &zone[1..]),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two = |digits: &str| (digits.len() == 2).then(|| digits.parse::<u8>().ok()).flatten();
    Some(sign * (i64::from(two(hours)?) * 3_600 + i64::from(two(minutes)?) * 60))
}

/// Returns the age of `text`; zero when it is in the future.
pub fn age(text: &str, now: SystemTime) -> Option<Duration> {
    Some(now.duration_since(parse(text)?).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(text: &str) -> Option<f64> {
        Some(parse(text)?.duration_since(UNIX_EPOCH).unwrap().as_secs_f64())
    }

    #[test]
    fn known_times() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2000-02-29T12:34:56Z"), Some(951_827_696.0));
        assert_eq!(seconds("2024-03-01T00:00:00.25Z"), Some(1_709_251_200.25));
        assert_eq!(seconds("2024-03-01T02:00:00+02:00"), Some(1_709_251_200.0));
        assert_eq!(seconds("2100-01-01T00:00:00Z"), Some(4_102_444_800.0));
    }

    #[test]
    fn anything_else_is_no_time() {
        for text in [
            "",
            "yesterday",
            "2024-13-01T00:00:00Z",
            "2024-03-01T00:00:00",
            "1969-01-01T00:00:00Z",
            "2024-03-01T00:00:00.Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}.{0,12}") {
            parse(&text);
            parse(&near);
        }
    }
}
