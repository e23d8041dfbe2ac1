//! A span of time with its unit, such as `5s`.

use std::time::Duration;

use crate::value::{Invalid, Raw, Value};

/// Units, the largest first for printing. `ms` stands before `m` and `s` for reading.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)];

fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = rest[unit.len()..].trim_start();
        total = total.checked_add(number.checked_mul(*factor)?)?;
    }
    Some(Duration::from_millis(total))
}

fn print(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let (unit, factor) = ["d", "h", "m", "s", "ms"]
        .iter()
        .filter_map(|name| UNITS.iter().find(|(unit, _)| unit == name))
        .find(|(_, factor)| millis.is_multiple_of(*factor))
        .expect("every number is a multiple of one millisecond");
    format!("{}{unit}", millis / factor)
}

/// A duration in whole milliseconds, written `100ms`, `5s`, `10m`, `2h`, `7d`, or joined as in `1h30m`. A bare number
/// has no unit and is refused, except 0.
impl Value for Duration {
    const TYPE: &'static str = "duration";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let duration = match raw {
            Raw::Integer(0) => Some(Duration::ZERO),
            Raw::Text(text) | Raw::String(text) => parse(text),
            _ => None,
        };
        duration.ok_or_else(|| raw.expected("a duration with a unit, such as 100ms, 5s, 10m, 2h or 7d"))
    }

    fn to_toml(&self) -> Option<String> {
        Some(format!("\"{}\"", print(*self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Duration, String> {
        Duration::from_raw(&Raw::Text(text.to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn every_unit_is_read_and_units_join() {
        assert_eq!(read("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(read("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(read("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(read("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(read("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(read("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(read("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_number_without_a_unit_is_refused() {
        for text in
            ["", "5", "s", "5 fortnights", "5s3", "-1s", "99999999999999999999d", "999999999999999999d"]
        {
            let error = read(text).unwrap_err();
            assert!(error.contains("a duration with a unit"), "{text:?}: {error}");
        }
        assert!(Duration::from_raw(&Raw::Integer(5)).is_err());
    }

    #[test]
    fn printing_uses_the_largest_whole_unit() {
        assert_eq!(print(Duration::from_secs(604_800)), "7d");
        assert_eq!(print(Duration::from_secs(90)), "90s");
        assert_eq!(print(Duration::from_millis(1_500)), "1500ms");
        assert_eq!(print(Duration::ZERO), "0s");
    }

    proptest::proptest! {
        #[test]
        fn a_printed_duration_reads_back(millis: u64) {
            let duration = Duration::from_millis(millis);
            proptest::prop_assert_eq!(read(&print(duration)), Ok(duration));
        }
    }
}
