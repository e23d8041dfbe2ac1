//! Values of a scenario without a TOML type: durations, and rates that change.

use serde::Deserialize;
use std::time::Duration;

/// A duration, or a random one between two: `2`, `"500ms"`, `"500ms..2s"`. Bare numbers are seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Pause(pub Duration, pub Duration);

/// A rate in messages per second, or one that changes linearly: `100`, `"100..1000"`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Load(pub f64, pub f64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Whole(u64),
    Number(f64),
    Text(String),
}

impl Scalar {
    fn ends(self, read: fn(&str) -> Option<f64>) -> Option<(f64, f64)> {
        match self {
            Scalar::Whole(number) => Some((number as f64, number as f64)),
            Scalar::Number(number) => Some((number, number)),
            Scalar::Text(text) => match text.split_once("..") {
                Some((from, to)) => Some((read(from.trim())?, read(to.trim())?)),
                None => read(text.trim()).map(|value| (value, value)),
            },
        }
    }
}

/// Maximum rate of a group in messages per second.
const RATE_MAX: f64 = 1e8;
/// Maximum pause in seconds.
const PAUSE_MAX: f64 = 1e7;

impl TryFrom<Scalar> for Load {
    type Error = String;

    fn try_from(scalar: Scalar) -> Result<Load, String> {
        let rates = scalar.ends(|text| text.parse().ok());
        match rates.filter(|rates| [rates.0, rates.1].iter().all(|rate| (0.0..=RATE_MAX).contains(rate))) {
            Some((from, to)) => Ok(Load(from, to)),
            None => {
                Err("a rate is messages a second, such as 100, or \"100..1000\" for one that grows"
                    .to_owned())
            }
        }
    }
}

impl TryFrom<Scalar> for Pause {
    type Error = String;

    fn try_from(scalar: Scalar) -> Result<Pause, String> {
        let found = scalar.ends(seconds).filter(|(from, to)| *from >= 0.0 && from <= to && *to <= PAUSE_MAX);
        match found {
            Some((from, to)) => Ok(Pause(Duration::from_secs_f64(from), Duration::from_secs_f64(to))),
            None => Err("a pause is seconds, \"500ms\", \"2s\", \"5m\" or \"500ms..2s\"".to_owned()),
        }
    }
}

fn seconds(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit = match text[at..].trim() {
        "" | "s" => 1.0,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    text[..at].trim().parse::<f64>().ok().map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Line {
        pause: Option<Pause>,
        load: Option<Load>,
    }

    #[test]
    fn values_are_parsed_as_written() {
        let pause =
            |text: &str| toml::from_str::<Line>(&format!("pause = {text}")).map(|line| line.pause.unwrap());
        let ms = Duration::from_millis;
        for (text, from, to) in [
            ("2", 2000, 2000),
            ("0.5", 500, 500),
            ("\"500ms\"", 500, 500),
            ("\"500ms..2s\"", 500, 2000),
            ("\"1m\"", 60_000, 60_000),
        ] {
            assert_eq!(pause(text), Ok(Pause(ms(from), ms(to))), "{text}");
        }
        for text in ["\"2s..1s\"", "\"x\"", "-1", "\"5 days\"", "nan", "inf"] {
            assert!(pause(text).is_err(), "{text}");
        }
        let load =
            |text: &str| toml::from_str::<Line>(&format!("load = {text}")).map(|line| line.load.unwrap());
        assert_eq!(load("100"), Ok(Load(100.0, 100.0)));
        assert_eq!(load("\"100..1e3\""), Ok(Load(100.0, 1000.0)));
        for text in ["-1", "\"1..-1\"", "nan", "\"fast\"", "1e9"] {
            assert!(load(text).is_err(), "{text}");
        }
    }
}
