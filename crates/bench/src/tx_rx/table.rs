//! The result as a table.

use super::Row;
use super::figures::{Figures, percent};
use super::options::Plan;
use std::fmt::Write as _;

pub fn text(plan: &Plan, rows: &[Row], problems: &[String]) -> String {
    let mut out = String::new();
    let rate = if plan.rate == 0 { "flat out".to_owned() } else { format!("{} a second", plan.rate) };
    let rounds = if plan.rounds > 1 { format!(", median of {} rounds", plan.rounds) } else { String::new() };
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "one publisher, one subscriber, {rate}, window {}{rounds}; rates and latencies at the receiver",
        plan.window
    );
    let names = match &plan.against {
        Some(against) => {
            let _ = writeln!(out, "A is {}, B is {against}; differences in percent of B", plan.ends);
            ["A", "B"]
        }
        None => {
            let _ = writeln!(out, "on {}", plan.ends);
            ["", ""]
        }
    };
    let _ = writeln!(
        out,
        "{:>9} {:>3} {:1} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "payload", "QoS", "", "msgs/s", "Mbit/s", "min ms", "p50 ms", "p99 ms", "max ms", "lost"
    );
    for row in rows {
        line(&mut out, &format!("{:>9} {:>3}", size(row.size), row.qos), names[0], &row.here);
        if let Some(against) = &row.against {
            line(&mut out, &" ".repeat(13), names[1], against);
            let cell = |here: f64, there: f64| match percent(here, there) {
                Some(percent) => format!("{percent:+.1} %"),
                None => "-".to_owned(),
            };
            let _ = writeln!(
                out,
                "{:13} {:1} {:>10} {:>9} {:>9} {:>9} {:>9}",
                "",
                "",
                cell(row.here.per_s, against.per_s),
                "",
                "",
                cell(row.here.p50_us, against.p50_us),
                cell(row.here.p99_us, against.p99_us)
            );
        }
    }
    let saturated = |figures: &Figures| figures.saturated;
    if rows.iter().any(|row| saturated(&row.here) || row.against.as_ref().is_some_and(saturated)) {
        let _ = writeln!(
            out,
            "warning: this tool used all of its core in some rows: it, not the broker, may have been the limit"
        );
    }
    for problem in problems {
        let _ = writeln!(out, "PROBLEM {problem}");
    }
    out
}

fn line(out: &mut String, begin: &str, name: &str, f: &Figures) {
    let ms = |us: f64| format!("{:.3}", us / 1000.0);
    let _ = writeln!(
        out,
        "{begin} {name:1} {:>10.0} {:>9.1} {:>9} {:>9} {:>9} {:>9} {:>8.0}",
        f.per_s,
        f.mbit_per_s,
        ms(f.min_us),
        ms(f.p50_us),
        ms(f.p99_us),
        ms(f.max_us),
        f.lost
    );
}

fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_as_requested() {
        assert_eq!(
            [100, 1024, 1500, 65_536, 1 << 20].map(size),
            ["100 B", "1 KiB", "1500 B", "64 KiB", "1 MiB"]
        );
    }
}
