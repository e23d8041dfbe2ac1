//! Schedules of publishers.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The schedule of each publisher of a group. It does not wait for the broker: messages that could not be sent in
/// time are late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// Time from one message to the next; zero: as fast as the broker accepts them.
    Every(Duration),
    /// A random pause after each message, between the two.
    Think(Duration, Duration),
    /// A rate that changes with time.
    Curve(Curve),
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::Every(Duration::ZERO)
    }
}

/// A piecewise linear rate over time, from the start of publishing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pieces: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    /// Start in seconds.
    from: f64,
    to: f64,
    /// Messages per second at its two ends.
    rates: (f64, f64),
    /// Number of messages due before it.
    before: f64,
}

impl Line {
    /// Growth of the rate per second.
    fn slope(&self) -> f64 {
        (self.rates.1 - self.rates.0) / (self.to - self.from)
    }

    fn due_after(&self, seconds: f64) -> f64 {
        self.before + self.rates.0 * seconds + self.slope() * seconds * seconds / 2.0
    }
}

impl Curve {
    /// Continues for `seconds`, from one rate to the other. Rates are those of one publisher and not negative.
    pub fn then(&mut self, seconds: f64, rates: (f64, f64)) {
        let (from, before) = self.pieces.last().map_or((0.0, 0.0), |l| (l.to, l.due_after(l.to - l.from)));
        self.pieces.push(Line { from, to: from + seconds, rates, before });
    }

    /// Number of messages due by then. Its fraction is the progress to the next message.
    pub fn due_by(&self, seconds: f64) -> f64 {
        match self.pieces.iter().rfind(|line| line.from <= seconds) {
            Some(line) => line.due_after((seconds - line.from).min(line.to - line.from)),
            None => 0.0,
        }
    }

    /// Time at which that many are due; `None` when the curve ends before.
    pub fn when(&self, due: f64) -> Option<f64> {
        let line = self.pieces.iter().find(|line| line.due_after(line.to - line.from) >= due)?;
        let missing = (due - line.before).max(0.0);
        let (rate, slope) = (line.rates.0, line.slope());
        // The root of rate * x + slope * x² / 2 = missing, in the form that does not lose digits.
        let divisor = rate + (rate * rate + 2.0 * slope * missing).max(0.0).sqrt();
        let seconds = if divisor > 0.0 { 2.0 * missing / divisor } else { 0.0 };
        Some(line.from + seconds.min(line.to - line.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        let mut curve = Curve::default();
        curve.then(10.0, (2.0, 2.0));
        curve.then(10.0, (0.0, 0.0));
        curve.then(10.0, (0.0, 4.0));
        curve
    }

    #[test]
    fn the_number_of_due_messages_is_the_area_below_the_rate() {
        let curve = curve();
        for (at, due) in
            [(0.0, 0.0), (5.0, 10.0), (10.0, 20.0), (15.0, 20.0), (25.0, 25.0), (30.0, 40.0), (99.0, 40.0)]
        {
            assert!((curve.due_by(at) - due).abs() < 1e-9, "{at}: {}", curve.due_by(at));
        }
    }

    #[test]
    fn a_message_is_due_when_the_area_reaches_it() {
        let curve = curve();
        for (due, at) in [(0.0, 0.0), (1.0, 0.5), (20.0, 10.0), (25.0, 25.0), (40.0, 30.0)] {
            let found = curve.when(due).unwrap();
            assert!((found - at).abs() < 1e-9, "{due}: {found}");
        }
        assert_eq!(curve.when(40.1), None);
        let mut falling = Curve::default();
        falling.then(10.0, (4.0, 0.0));
        assert!((falling.when(20.0).unwrap() - 10.0).abs() < 1e-6);
        for due in 0..20 {
            let due = f64::from(due);
            assert!((falling.due_by(falling.when(due).unwrap()) - due).abs() < 1e-6);
        }
    }
}
