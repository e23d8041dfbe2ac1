//! Durations, rates, sizes and shares in the notation of a topology file.

use crate::LabError;
use std::time::Duration;

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn scaled(text: &str, what: &str, units: &[(&str, f64)]) -> Result<f64, LabError> {
    let (number, unit) = split(text);
    let scale = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    match (number.parse::<f64>(), scale) {
        (Ok(number), Some((_, scale))) => Ok(number * scale),
        _ => {
            let known: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            Err(LabError::Topology(format!(
                "{text:?} is not a {what}: give a number and one of {}",
                known.join(", ")
            )))
        }
    }
}

/// Parses a duration of up to an hour: a longer one is a mistake.
pub(crate) fn duration(text: &str) -> Result<Duration, LabError> {
    let seconds = scaled(text, "duration", &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0)])?;
    if seconds > 3600.0 {
        return Err(LabError::Topology(format!("{text:?} is more than the maximum of one hour")));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Parses a rate in bits per second; 0 for `unlimited`.
pub(crate) fn rate(text: &str) -> Result<u64, LabError> {
    if text == "unlimited" {
        return Ok(0);
    }
    scaled(text, "rate", &[("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]).map(|bits| bits as u64)
}

/// Parses a size in bytes.
pub(crate) fn size(text: &str) -> Result<u64, LabError> {
    scaled(text, "size", &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)]).map(|bytes| bytes as u64)
}

/// Parses a share from 0 to 1, written in per cent.
pub(crate) fn share(text: &str) -> Result<f64, LabError> {
    let share = scaled(text, "share", &[("%", 0.01)])?;
    if share > 1.0 {
        return Err(LabError::Topology(format!("{text:?} is more than 100%")));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(duration("0.25ms").unwrap(), Duration::from_micros(250));
        assert_eq!(duration("2 s").unwrap(), Duration::from_secs(2));
        assert_eq!(rate("50mbit").unwrap(), 50_000_000);
        assert_eq!(rate("unlimited").unwrap(), 0);
        assert_eq!(size("256KiB").unwrap(), 262_144);
        assert!((share("0.5%").unwrap() - 0.005).abs() < 1e-12);
    }

    #[test]
    fn an_invalid_quantity_is_refused_with_the_valid_units() {
        for text in ["", "x", "5", "-1ms", "1.2.3s", "2h", "61m"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(share("101%").is_err() && share("1").is_err());
        let said = rate("50mb").unwrap_err().to_string();
        assert!(said.contains("mbit"), "{said}");
    }
}
