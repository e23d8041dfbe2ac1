//! Charts as inline SVG.

use super::escape;
use hdrhistogram::Histogram;
use std::fmt::Write as _;

/// A line of a chart; gaps where there is no value.
pub struct Series {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    Log,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 28.0;
/// Maximum number of bars of a histogram.
const BARS_MAX: usize = 48;

/// Converts a value to its height in the picture.
struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, scale: Scale) -> Axis {
        let (mut low, mut high) = (f64::MAX, 0.0f64);
        for value in values.filter(|value| value.is_finite()) {
            high = high.max(value);
            if value > 0.0 {
                low = low.min(value);
            }
        }
        match scale {
            Scale::Linear => {
                let step = step(high.max(1e-9));
                Axis { low: 0.0, high: (high / step).ceil().max(1.0) * step, scale }
            }
            Scale::Log => {
                let low = 10f64.powf(low.clamp(1e-4, 1e9).log10().floor());
                let high = 10f64.powf(high.clamp(low * 10.0, 1e12).log10().ceil());
                Axis { low, high, scale }
            }
        }
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high);
                (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= self.high * 1.001).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|n| self.low * 10f64.powi(n)).collect()
            }
        }
    }
}

/// Step of an axis: 1, 2 or 5 times a power of ten, four to ten of them up to `high`.
fn step(high: f64) -> f64 {
    let power = 10f64.powf((high / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|step| high / step >= 4.0).unwrap_or(power)
}

/// Formats a number for an axis.
fn label(value: f64) -> String {
    match value {
        1e6.. => format!("{}M", trimmed(value / 1e6)),
        1e4.. => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A chart of lines over time.
pub fn lines(title: &str, unit: &str, at: &[f64], series: &[Series], scale: Scale) -> String {
    let axis = Axis::of(series.iter().flat_map(|one| one.values.iter().copied().flatten()), scale);
    let last = at.last().copied().unwrap_or(1.0).max(1e-3);
    let x = |time: f64| LEFT + time / last * (WIDTH - LEFT - RIGHT);
    let mut svg = frame(title);
    for tick in axis.ticks() {
        let y = axis.y(tick);
        grid(&mut svg, y, &format!("{} {unit}", label(tick)));
    }
    let second = step(last);
    for time in (0..).map(|n| f64::from(n) * second).take_while(|time| *time <= last) {
        time_label(&mut svg, x(time), &format!("{} s", label(time)));
    }
    for (color, one) in series.iter().enumerate() {
        let mut path = String::new();
        let mut pen = 'M';
        let mut points = 0;
        for (time, value) in at.iter().zip(&one.values) {
            match value.filter(|value| value.is_finite()) {
                Some(value) => {
                    // Writing to a String does not fail.
                    let _ = write!(path, "{pen}{:.1} {:.1}", x(*time), axis.y(value));
                    pen = 'L';
                    points += 1;
                }
                None => pen = 'M',
            }
        }
        let color = color % 3;
        match (points, one.values.iter().flatten().next_back()) {
            (1, Some(value)) => {
                let _ = write!(
                    svg,
                    "<circle class=\"f{color}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                    x(last),
                    axis.y(*value)
                );
            }
            _ => {
                let _ = write!(svg, "<path class=\"curve c{color}\" d=\"{path}\"/>");
            }
        }
    }
    legend(&mut svg, series);
    hits(&mut svg, at, series, unit, last);
    svg + "</svg></figure>\n"
}

/// Tooltips at each time.
fn hits(svg: &mut String, at: &[f64], series: &[Series], unit: &str, last: f64) {
    // More would be narrower than a pointer.
    let every = at.len().div_ceil(400).max(1);
    let width = (WIDTH - LEFT - RIGHT) / (at.len() as f64 / every as f64).max(1.0);
    for (index, time) in at.iter().enumerate().step_by(every) {
        let mut text = format!("{} s", trimmed(*time));
        for one in series {
            if let Some(Some(value)) = one.values.get(index) {
                text += &format!("\n{} {} {unit}", one.name, trimmed(*value));
            }
        }
        let x = LEFT + time / last * (WIDTH - LEFT - RIGHT) - width;
        let _ = write!(
            svg,
            "<rect class=\"hit\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
            HEIGHT - TOP - BOTTOM,
            escape(&text)
        );
    }
}

/// A histogram of latencies, on a logarithmic axis.
pub fn bars(title: &str, h: &Histogram<u64>) -> String {
    let (least, most) = ((h.min().max(1000) as f64).ln(), (h.max().max(2000) as f64).ln());
    let width = ((most - least) / BARS_MAX as f64).max(0.02);
    let mut counts = [0u64; BARS_MAX];
    for value in h.iter_recorded() {
        let index = (((value.value_iterated_to().max(1000) as f64).ln() - least) / width) as usize;
        counts[index.min(BARS_MAX - 1)] += value.count_at_value();
    }
    let all = h.len().max(1) as f64;
    let share = |count: u64| count as f64 * 100.0 / all;
    let axis = Axis::of(counts.iter().map(|count| share(*count)), Scale::Linear);
    let mut svg = frame(title);
    for tick in axis.ticks() {
        let y = axis.y(tick);
        grid(&mut svg, y, &format!("{} %", label(tick)));
    }
    let x = |index: f64| LEFT + index / BARS_MAX as f64 * (WIDTH - LEFT - RIGHT);
    let ms = |index: usize| (least + width * index as f64).exp() / 1e6;
    let bar = x(1.0) - x(0.0) - 1.0;
    for (index, count) in counts.iter().enumerate() {
        if index % 8 == 0 {
            time_label(&mut svg, x(index as f64), &format!("{} ms", short_ms(ms(index))));
        }
        if *count > 0 {
            let y = axis.y(share(*count)).min(HEIGHT - BOTTOM - 1.0);
            let _ = write!(
                svg,
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{:.1}\"><title>{} to {} ms\n{count} times, {:.3} %</title></rect>",
                x(index as f64),
                HEIGHT - BOTTOM - y,
                short_ms(ms(index)),
                short_ms(ms(index + 1)),
                share(*count)
            );
        }
    }
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let value = h.value_at_quantile(quantile).max(1000) as f64;
        let x = x(((value.ln() - least) / width).clamp(0.0, BARS_MAX as f64));
        let _ = write!(
            svg,
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/><text x=\"{x:.1}\" y=\"18\" text-anchor=\"middle\">{name}</text>",
            HEIGHT - BOTTOM
        );
    }
    svg + "</svg></figure>\n"
}

/// Formats milliseconds with three digits.
fn short_ms(ms: f64) -> String {
    match ms {
        100.0.. => format!("{ms:.0}"),
        1.0.. => format!("{ms:.1}"),
        _ => format!("{ms:.3}"),
    }
}

fn frame(title: &str) -> String {
    let title = escape(title);
    format!(
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    )
}

fn grid(svg: &mut String, y: f64, text: &str) {
    let _ = write!(
        svg,
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDTH - RIGHT,
        LEFT - 6.0,
        y + 4.0,
        escape(text.trim())
    );
}

fn time_label(svg: &mut String, x: f64, text: &str) {
    let _ = write!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 8.0,
        escape(text)
    );
}

fn legend(svg: &mut String, series: &[Series]) {
    let mut x = LEFT;
    for (color, one) in series.iter().enumerate() {
        let _ = write!(
            svg,
            "<rect class=\"f{}\" x=\"{x}\" y=\"8\" width=\"12\" height=\"4\" rx=\"2\"/><text x=\"{}\" y=\"14\">{}</text>",
            color % 3,
            x + 17.0,
            escape(&one.name)
        );
        x += 34.0 + one.name.len() as f64 * 6.8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (high, expected) in [(1.0, 0.2), (4.0, 1.0), (9.0, 2.0), (10.0, 2.0), (45_000.0, 10_000.0)] {
            assert!((step(high) - expected).abs() < expected * 1e-9, "{high}: {}", step(high));
        }
        for high in [1e-9, 0.3, 7.0, 123.0, 5e8] {
            let ticks = Axis::of([high].into_iter(), Scale::Linear).ticks().len();
            assert!((4..=12).contains(&ticks), "{high}: {ticks}");
        }
        assert_eq!(label(25_000.0), "25k");
        assert_eq!(label(0.25), "0.25");
    }

    #[test]
    fn a_value_is_at_the_position_of_its_axis() {
        let axis = Axis::of([0.05, 20.0].into_iter(), Scale::Log);
        assert_eq!(axis.ticks().len(), 5, "0.01 to 100");
        assert!(
            (axis.y(axis.high) - TOP).abs() < 1e-9 && (axis.y(axis.low) - (HEIGHT - BOTTOM)).abs() < 1e-9
        );
        assert!(axis.y(1.0) > axis.y(10.0));
        let nothing = Axis::of(std::iter::empty(), Scale::Linear);
        assert!(nothing.y(0.0).is_finite() && !nothing.ticks().is_empty());
    }

    #[test]
    fn every_measurement_is_in_a_bar() {
        let mut h = crate::latency::hist();
        for ns in [100, 5_000, 1_000_000, 3_600_000_000_000] {
            crate::latency::record(&mut h, ns);
        }
        let svg = bars("t", &h);
        assert_eq!(svg.matches("1 times").count() + 2 * svg.matches("2 times").count(), 4, "{svg}");
    }
}
