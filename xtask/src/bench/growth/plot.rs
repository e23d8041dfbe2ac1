//! A plot as SVG: one line over a logarithmic axis, with a bar from the lowest to the highest run at each point.

use crate::bench::measure::Summary;
use crate::bench::table::number;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
/// Margins between the frame and the edges: left, right, top, bottom.
const MARGIN: [f64; 4] = [80.0, 20.0, 36.0, 48.0];

/// Draws a plot. `points` are in the order of their sizes.
pub fn plot(title: &str, axis: &str, points: &[(u32, Summary)]) -> String {
    let [left, right, top, bottom] = MARGIN;
    let (first, last) = match points {
        [(first, _), .., (last, _)] => (f64::from(*first).log10(), f64::from(*last).log10()),
        _ => (0.0, 1.0),
    };
    let highest = points.iter().map(|(_, summary)| summary.highest).fold(0.0, f64::max);
    let step = nice_step(highest);
    let ceiling = (highest / step).ceil().max(1.0) * step;
    let x = |size: f64| left + (size.log10() - first) / (last - first).max(1e-9) * (WIDTH - left - right);
    let y = |value: f64| HEIGHT - bottom - value / ceiling * (HEIGHT - top - bottom);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"#777\">\n<text x=\"{left}\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    let digits = if step < 1.0 { 2 } else { 0 };
    for at in 0..=(ceiling / step).round() as u32 {
        let value = f64::from(at) * step;
        let (y, label) = (y(value), number(value, digits));
        let _ = writeln!(
            out,
            "<path d=\"M{left} {y:.1}H{:.1}\" stroke=\"#7775\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            WIDTH - right,
            left - 8.0,
            y + 4.0
        );
    }
    for (size, summary) in points {
        let x = x(f64::from(*size));
        let (low, high) = (y(summary.lowest), y(summary.highest));
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"#36c\" \
             stroke-width=\"5\" stroke-opacity=\".3\"/><circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#36c\"/>",
            HEIGHT - bottom + 18.0,
            short(*size),
            y(summary.median)
        );
    }
    let line: Vec<String> =
        points.iter().map(|(size, s)| format!("{:.1},{:.1}", x(f64::from(*size)), y(s.median))).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#36c\" stroke-width=\"1.5\"/>",
        line.join(" ")
    );
    let middle = (left + WIDTH - right) / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n</svg>",
        HEIGHT - 10.0,
        escaped(axis)
    );
    out
}

/// A step of 1, 2 or 5 times a power of ten, so that four to nine lines are below `highest`.
fn nice_step(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let rough = highest / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().rfind(|times| times * power <= rough * 1.000_001).unwrap_or(1.0);
    times * power
}

/// Formats a size: 19000 as "19 k".
fn short(size: u32) -> String {
    match size {
        0..1_000 => size.to_string(),
        1_000..1_000_000 => format!("{} k", f64::from(size) / 1e3),
        _ => format!("{} M", f64::from(size) / 1e6),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(value: f64) -> Summary {
        Summary { median: value, lowest: value / 2.0, highest: value * 2.0 }
    }

    #[test]
    fn every_point_is_inside_the_frame() {
        let points = [(1, flat(1.0)), (100, flat(50.0)), (10_000_000, flat(2.0))];
        let text = plot("us <a delivery>", "filters & more", &points);
        assert!(text.contains("us &lt;a delivery&gt;") && text.contains("filters &amp; more"), "{text}");
        let line = text.split("<polyline points=\"").nth(1).unwrap().split('"').next().unwrap();
        let at: Vec<(f64, f64)> = line
            .split(' ')
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(at.len(), 3);
        assert_eq!((at[0].0, at[2].0), (MARGIN[0], WIDTH - MARGIN[1]));
        assert!(at.iter().all(|(_, y)| (MARGIN[2]..=HEIGHT - MARGIN[3]).contains(y)), "{at:?}");
        assert!(at[1].1 < at[0].1, "higher cost is higher up");
        assert!(text.contains(">10 M</text>") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn steps_are_round_numbers() {
        for (highest, step) in
            [(1.0, 0.2), (10.0, 2.0), (26.0, 5.0), (99.0, 10.0), (2_540_000.0, 500_000.0), (0.0, 1.0)]
        {
            assert!((nice_step(highest) - step).abs() < 1e-9 * step, "{highest}: {}", nice_step(highest));
        }
    }

    #[test]
    fn one_value_or_none_causes_no_panic() {
        assert!(plot("t", "x", &[]).ends_with("</svg>\n"));
        assert!(plot("t", "x", &[(1, flat(0.0))]).contains("circle"));
    }
}
