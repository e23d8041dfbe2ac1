//! Numbers in a form for people.

use std::time::Duration;

/// Formats a size: `512 B`, `1.5 KiB`, `3.2 GiB`.
pub fn bytes(count: u64) -> String {
    scaled(count as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], " ")
}

/// Formats a rate or a count where a few digits are enough: `12`, `1.2k`, `3.4M`.
pub fn short(number: f64) -> String {
    if number > 0.0 && number < 9.95 && number.fract() > 0.0 {
        return format!("{number:.1}");
    }
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P", "E"], "")
}

/// Formats three digits and a unit; whole numbers below `step` stay whole.
fn scaled(number: f64, step: f64, units: &[&str], gap: &str) -> String {
    if !number.is_finite() {
        return "-".to_owned();
    }
    let (mut value, mut unit) = (number, 0);
    // A value below the step by less than half of the last digit would be rounded up to the step.
    while value.abs() >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value.abs() < 99.95);
    format!("{value:.digits$}{gap}{}", units[unit])
}

/// Formats all digits, in groups: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats the two largest units: `3d 4h`, `5m 12s`, `1.5s`, `20ms`.
pub fn duration(duration: Duration) -> String {
    let (ms, s) = (duration.as_millis(), duration.as_secs());
    let two = |large: u64, unit: &str, small: u64, sub: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit} {small}{sub}"),
    };
    match s {
        _ if ms == 0 => "0s".to_owned(),
        0 => format!("{ms}ms"),
        1..60 if ms % 1000 >= 100 && s < 10 => format!("{s}.{}s", ms % 1000 / 100),
        1..60 => format!("{s}s"),
        60..3_600 => two(s / 60, "m", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "m"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

/// Formats a number of seconds from a server, as [`duration`] does.
pub fn seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or_else(|_| "-".to_owned(), duration)
}

/// Formats `0.07` as `7 %`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0} %", share * 100.0) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (157_286_400, "150 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn numbers() {
        for (number, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (7.0, "7"),
            (999.0, "999"),
            (999.6, "1.0k"),
            (1234.0, "1.2k"),
            (3.4e6, "3.4M"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    #[test]
    fn spans() {
        for (ms, text) in [
            (0, "0s"),
            (20, "20ms"),
            (1_500, "1.5s"),
            (12_900, "12s"),
            (312_000, "5m 12s"),
            (3_600_000, "1h"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
        assert_eq!(seconds(-4.0), "0s");
        assert_eq!(seconds(f64::INFINITY), "-");
    }

    proptest! {
        #[test]
        fn no_number_panics(n in any::<u64>(), f in any::<f64>()) {
            bytes(n);
            count(n);
            short(f);
            seconds(f);
            percent(f);
        }
    }
}
