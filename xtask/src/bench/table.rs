//! The tables, in Markdown.

use super::Rounds;
use super::broker::Kind;
use super::measure::{Figures, Summary, summary};
use super::workload::{Purpose, Workload};
use crate::repository::root;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

type Figure = fn(&Figures) -> Option<f64>;

struct Column {
    title: &'static str,
    figure: Figure,
    /// Digits behind the point.
    digits: usize,
    /// The lowest and highest round are shown, too.
    range: bool,
    /// Whether the ratio to the peer is shown, and whether less is better.
    ratio: Option<Better>,
}

#[derive(Clone, Copy, PartialEq)]
enum Better {
    Less,
    More,
}

const fn column(title: &'static str, figure: Figure, digits: usize, ratio: Option<Better>) -> Column {
    Column { title, figure, digits, range: ratio.is_some(), ratio }
}

fn columns(purpose: Purpose) -> Vec<Column> {
    let cpu = column("CPU us/delivery", |f| f.cpu_us, 2, Some(Better::Less));
    match purpose {
        Purpose::Throughput => vec![
            cpu,
            column("deliveries/s", |f| f.per_s, 0, Some(Better::More)),
            column("lost", |f| f.lost, 0, None),
        ],
        Purpose::Latency => vec![
            column("p50 us", |f| f.p50_us, 0, Some(Better::Less)),
            column("p99 us", |f| f.p99_us, 0, Some(Better::Less)),
            cpu,
            column("lost", |f| f.lost, 0, None),
        ],
        Purpose::Connect => vec![
            column("CPU us/client", |f| f.cpu_us, 1, Some(Better::Less)),
            column("clients/s", |f| f.per_s, 0, Some(Better::More)),
        ],
        Purpose::Memory => vec![
            column("anonymous bytes/connection", |f| f.anonymous, 0, Some(Better::Less)),
            column("resident bytes/connection", |f| f.resident, 0, Some(Better::Less)),
        ],
    }
}

/// A number with commas between its thousands.
fn number(x: f64, digits: usize) -> String {
    let plain = format!("{x:.digits$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |w| ("-", w));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    format!("{sign}{out}{rest}")
}

fn cell(s: Option<Summary>, column: &Column) -> String {
    let Some(s) = s else { return "-".to_string() };
    let n = |x| number(x, column.digits);
    if column.range && s.lowest != s.highest {
        format!("{} ({}-{})", n(s.median), n(s.lowest), n(s.highest))
    } else {
        n(s.median)
    }
}

/// How much better than the peer, as in "2.0x".
fn ratio(ours: Option<Summary>, peer: Option<Summary>, better: Better) -> String {
    let times = match (ours, peer, better) {
        (Some(o), Some(p), Better::Less) if o.median > 0.0 => p.median / o.median,
        (Some(o), Some(p), Better::More) if p.median > 0.0 => o.median / p.median,
        _ => return "-".to_string(),
    };
    format!("{times:.2}x")
}

fn table(purpose: Purpose, workloads: &[&Workload], kinds: &[Kind], rounds: &Rounds) -> String {
    let columns = columns(purpose);
    let both = kinds.len() == 2;
    let mut head = vec!["load".to_string()];
    for c in &columns {
        head.extend(kinds.iter().map(|k| format!("{k} {}", c.title)));
        if both && c.ratio.is_some() {
            head.push("better by".to_string());
        }
    }
    let mut out = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for w in workloads {
        let runs = |k: Kind| rounds.get(&(w.name, k)).map_or(&[][..], |r| r);
        let mut row = vec![w.title.to_string()];
        for c in &columns {
            let found: Vec<_> = kinds.iter().map(|k| summary(runs(*k), c.figure)).collect();
            row.extend(found.iter().map(|s| cell(*s, c)));
            if let (true, Some(better)) = (both, c.ratio) {
                row.push(ratio(found[0], found[1], better));
            }
        }
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out
}

/// What the tables cannot say: the generator's own limits, and what a broker did wrong.
fn remarks(workloads: &[Workload], rounds: &Rounds) -> String {
    let mut out = BTreeSet::new();
    for ((name, kind), runs) in rounds {
        let title = workloads.iter().find(|w| w.name == *name).map_or(*name, |w| w.title);
        for run in runs {
            if run.generator_saturated {
                out.insert(format!(
                    "* {kind}, {title}: the load generator had no CPU left; the rate may be its limit."
                ));
            }
            for violation in &run.violations {
                out.insert(format!("* {kind}, {title}: {violation}."));
            }
        }
    }
    out.into_iter().map(|line| line + "\n").collect()
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_string()
}

/// Where and on what this was measured.
fn circumstances(kinds: &[Kind], command: &str) -> String {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = file("/proc/cpuinfo");
    let model =
        cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("", |m| m.1);
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let load = file("/proc/loadavg");
    let versions: Vec<String> = kinds.iter().map(|k| k.version()).collect();
    format!(
        "`{command}` at commit {} on {}: {cpus} CPUs shared with the load generator ({model}), Linux {}, load average {} at the end; {}.\n",
        first_line("git", &["describe", "--always", "--dirty"]),
        first_line("date", &["-u", "+%Y-%m-%d"]),
        file("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or_default(),
        versions.join(", "),
    )
}

pub fn markdown(workloads: &[Workload], kinds: &[Kind], rounds: &Rounds, command: &str) -> Result<String> {
    let mut out = circumstances(kinds, command);
    for purpose in [Purpose::Throughput, Purpose::Latency, Purpose::Connect, Purpose::Memory] {
        let these: Vec<&Workload> = workloads.iter().filter(|w| w.purpose == purpose).collect();
        if !these.is_empty() {
            write!(out, "\n{}", table(purpose, &these, kinds, rounds))?;
        }
    }
    let remarks = remarks(workloads, rounds);
    if !remarks.is_empty() {
        write!(out, "\n{remarks}")?;
    }
    write!(out, "\nThe load of each row:\n\n```text\n")?;
    for w in workloads {
        writeln!(out, "{}", w.command_line())?;
    }
    writeln!(out, "```")?;
    Ok(out)
}

const BEGIN: &str = "<!-- bench -->\n";
const END: &str = "<!-- /bench -->";

/// Replaces what stands between the marks, or the whole file when there are none.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, merged(&old, text)).with_context(|| path.display().to_string())
}

fn merged(old: &str, text: &str) -> String {
    match old.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1))) {
        Some((head, tail)) => format!("{head}{BEGIN}\n{text}\n{END}{tail}"),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload;

    #[test]
    fn numbers_have_commas() {
        assert_eq!(number(1234567.0, 0), "1,234,567");
        assert_eq!(number(123.456, 1), "123.5");
        assert_eq!(number(-1000.5, 2), "-1,000.50");
    }

    #[test]
    fn a_table_has_a_row_for_each_load_and_says_who_is_better() {
        let all = workload::all(5, 100);
        let figures =
            |cpu| Figures { cpu_us: Some(cpu), per_s: Some(1000.0), lost: Some(0.0), ..Figures::default() };
        let rounds = Rounds::from([
            (("fan-in", Kind::Meridian), vec![figures(1.0), figures(2.0), figures(3.0)]),
            (("fan-in", Kind::Mosquitto), vec![figures(5.0)]),
        ]);
        let these: Vec<&Workload> = all.iter().filter(|w| w.name == "fan-in").collect();
        let text = table(Purpose::Throughput, &these, &[Kind::Meridian, Kind::Mosquitto], &rounds);
        let row = text.lines().last().unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(row.contains("| 2.00 (1.00-3.00) | 5.00 | 2.50x | 1,000 | 1,000 | 1.00x | 0 | 0 |"), "{row}");
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let old = "# Title\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n";
        let new = merged(old, "new\n");
        assert_eq!(new, "# Title\n<!-- bench -->\n\nnew\n\n<!-- /bench -->\nafter\n");
        assert_eq!(merged(&new, "new\n"), new);
        assert_eq!(merged("no marks", "new\n"), "new\n");
    }
}
