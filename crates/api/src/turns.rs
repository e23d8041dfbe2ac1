//! Recent durations of reactor turns: differences between figures that only grow.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use broker::admin::{ReactorFigures, TURN_BUCKETS};

type Buckets = [u64; TURN_BUCKETS];

/// Figures of the last seconds, taken at each request.
#[derive(Debug, Default)]
pub struct TurnWindow(Mutex<VecDeque<(Instant, Vec<Buckets>)>>);

/// Maximum age of the figures to compare with.
const WINDOW: Duration = Duration::from_secs(10);
/// Minimum time between figures that are kept.
const STEP: Duration = Duration::from_secs(1);

impl TurnWindow {
    /// Returns the turn times of each reactor since the oldest figures within the window, or since the start when there
    /// was no request recently.
    pub fn recent(&self, now: Instant, figures: &[&ReactorFigures]) -> Vec<Buckets> {
        let current: Vec<Buckets> = figures.iter().map(|figures| figures.turn_us).collect();
        let mut samples = sync::lock(&self.0);
        while samples.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            samples.pop_front();
        }
        let recent = match samples.front() {
            Some((at, before)) if now.duration_since(*at) >= STEP => {
                let difference = |(now, before): (&Buckets, &Buckets)| {
                    std::array::from_fn(|index| now[index].saturating_sub(before[index]))
                };
                current.iter().zip(before).map(difference).collect()
            }
            _ => current.clone(),
        };
        if samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= STEP) {
            samples.push_back((now, current));
        }
        recent
    }
}

/// Returns the time in microseconds that `share` of the turns stayed below, as precise as the buckets are; 0 when there
/// were no turns.
pub fn quantile(buckets: &Buckets, share: f64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let rank = (total as f64 * share).ceil() as u64;
    let mut below = 0;
    for (index, count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        if below + count >= rank {
            let (low, high) = (if index == 0 { 0 } else { 1 << (index - 1) }, 1_u64 << index);
            return low + (high - low) * (rank - below) / count;
        }
        below += count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(turns: &[u64]) -> ReactorFigures {
        let mut figures = ReactorFigures::default();
        turns.iter().for_each(|us| figures.turn(Duration::from_micros(*us)));
        figures
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let figures = figures(&[10; 99].iter().copied().chain([5000]).collect::<Vec<_>>());
        let p50 = quantile(&figures.turn_us, 0.5);
        assert!((8..=16).contains(&p50), "{p50}");
        assert!((8..=16).contains(&quantile(&figures.turn_us, 0.99)));
        let max = quantile(&figures.turn_us, 1.0);
        assert!((4096..=8192).contains(&max), "{max}");
        assert_eq!(quantile(&[0; TURN_BUCKETS], 0.99), 0);
    }

    #[test]
    fn old_figures_do_not_count() {
        let window = TurnWindow::default();
        let start = Instant::now();
        let before = figures(&[1000, 1000]);
        let mut after = before.clone();
        after.turn(Duration::from_micros(1));
        assert_eq!(window.recent(start, &[&before])[0].iter().sum::<u64>(), 2);
        assert_eq!(window.recent(start + WINDOW, &[&after])[0].iter().sum::<u64>(), 1);
        assert_eq!(window.recent(start + 3 * WINDOW, &[&after])[0].iter().sum::<u64>(), 3);
    }
}
