//! Tables in Markdown.

use super::broker::Kind;
use super::measure::{Figures, Summary, summary};
use super::rounds::Rounds;
use super::workload::{Purpose, Workload};
use crate::repository::root;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

type Figure = fn(&Figures) -> Option<f64>;

/// One figure of a purpose's loads: a separate table with a column for each broker.
struct Column {
    title: &'static str,
    figure: Figure,
    /// Number of decimal places.
    digits: usize,
    /// Direction that is better, where Meridian is compared with the others.
    better: Option<Better>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Better {
    Less,
    More,
}

const fn column(title: &'static str, figure: Figure, digits: usize, better: Option<Better>) -> Column {
    Column { title, figure, digits, better }
}

fn columns(purpose: Purpose) -> Vec<Column> {
    use Better::{Less, More};
    let cpu = column("broker CPU, us a delivery", |f| f.cpu_us, 2, Some(Less));
    let rate = column("deliveries a second", |f| f.per_s, 0, Some(More));
    let lost = column("lost messages", |f| f.lost, 0, None);
    let p50 = column("latency, p50 us", |f| f.p50_us, 0, Some(Less));
    let p99 = column("latency, p99 us", |f| f.p99_us, 0, Some(Less));
    match purpose {
        Purpose::Throughput => vec![cpu, rate, lost],
        Purpose::Latency => vec![p50, p99, cpu, rate, lost],
        Purpose::Connect => vec![
            column("broker CPU, us a client", |f| f.cpu_us, 1, Some(Less)),
            column("clients a second", |f| f.per_s, 0, Some(More)),
        ],
        Purpose::Memory => vec![
            column("anonymous bytes a connection", |f| f.anonymous, 0, Some(Less)),
            column("resident bytes a connection", |f| f.resident, 0, Some(Less)),
        ],
        Purpose::WithIdleClients => {
            vec![p50, p99, cpu, column("resident bytes a client", |f| f.resident, 0, Some(Less)), lost]
        }
        Purpose::Overload => vec![
            column("acknowledged and lost", |f| f.lost_acknowledged, 0, None),
            column("clients disconnected", |f| f.disconnects, 0, None),
            column("most memory beyond the start, MiB", |f| f.peak_mib, 0, Some(Less)),
            cpu,
            rate,
        ],
    }
}

/// A number with commas between its thousands.
pub fn number(x: f64, digits: usize) -> String {
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

/// One figure over rows, with a column for each broker.
pub struct Grid<'a> {
    pub title: &'a str,
    /// Number of decimal places.
    pub digits: usize,
    pub brokers: &'a [String],
    /// Brokers that the first one is compared with, in a separate column.
    pub against: Option<Against<'a>>,
}

pub struct Against<'a> {
    /// Title of the column.
    pub title: &'a str,
    pub better: Better,
    /// Indexes of the compared brokers; the first is not among them.
    pub others: &'a [usize],
}

/// A row of a grid: its name, the figure of each broker, and whether they are compared.
pub struct Row {
    pub name: String,
    pub found: Vec<Option<Summary>>,
    pub compared: bool,
}

impl Grid<'_> {
    pub fn markdown(&self, rows: &[Row]) -> String {
        let mut head = vec![self.title.to_owned()];
        head.extend(self.brokers.iter().cloned());
        let against = self.against.as_ref().filter(|against| !against.others.is_empty());
        head.extend(against.map(|against| against.title.to_owned()));
        let mut out = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
        let digits = self.digits;
        for row in rows {
            let mut cells = vec![row.name.clone()];
            cells.extend(
                row.found.iter().map(|found| found.map_or("-".to_owned(), |s| format!("{s:.digits$}"))),
            );
            cells.extend(against.map(|against| match row.compared {
                true => self.ratio(against, &row.found),
                false => "-".to_owned(),
            }));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }

    /// Ratio of the first to the best of the others, and the name of that: "2.00x (mosquitto)".
    fn ratio(&self, against: &Against, found: &[Option<Summary>]) -> String {
        let less = against.better == Better::Less;
        let order = |a: &f64, b: &f64| if less { a.total_cmp(b) } else { b.total_cmp(a) };
        let median = |at: usize| found.get(at).copied().flatten().map(|s| s.median).filter(|m| *m > 0.0);
        let others = against.others.iter().filter_map(|at| Some((*at, median(*at)?)));
        match (median(0), others.min_by(|a, b| order(&a.1, &b.1))) {
            (Some(ours), Some((at, best))) => {
                let times = if less { best / ours } else { ours / best };
                format!("{times:.2}x ({})", self.brokers[at])
            }
            _ => "-".to_owned(),
        }
    }
}

/// A table; `None` without content: no broker has the figure, or it is 0 for all and 0 is best.
fn table(column: &Column, workloads: &[&Workload], kinds: &[Kind], rounds: &Rounds) -> Option<String> {
    let rows: Vec<Row> = workloads
        .iter()
        .map(|w| Row {
            name: w.title.clone(),
            found: kinds.iter().map(|kind| summary(rounds.of(&w.name, *kind), column.figure)).collect(),
            // Brokers with individual rates are not comparable.
            compared: w.half_of.is_none(),
        })
        .collect();
    let mut found = rows.iter().flat_map(|row| &row.found).flatten();
    if !found.any(|s| column.better.is_some() || s.highest > 0.0) {
        return None;
    }
    let names: Vec<String> = kinds.iter().map(Kind::to_string).collect();
    let others: Vec<usize> = (1..kinds.len()).collect();
    let against = column.better.filter(|_| kinds[0] == Kind::Meridian);
    let title = "meridian against the best other";
    let against = against.map(|better| Against { title, better, others: &others });
    let grid = Grid { title: column.title, digits: column.digits, brokers: &names, against };
    Some(grid.markdown(&rows))
}

/// Remarks below the tables: limits of the generator, and violations of brokers.
fn remarks(workloads: &[Workload], rounds: &Rounds, failed: &[String]) -> String {
    let first_line = |error: &String| error.lines().next().unwrap_or_default().to_owned();
    let mut out: BTreeSet<String> =
        failed.iter().map(|error| format!("* not done: {}.", first_line(error))).collect();
    for (name, kind, runs) in rounds.all() {
        let title = workloads.iter().find(|w| w.name == name).map_or(name, |w| &w.title);
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

/// Load average of the last minute: number of runnable processes.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// Description of the machine and the versions; `busy` is the load average before.
pub fn circumstances(kinds: &[Kind], command: &str, busy: f64) -> String {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = file("/proc/cpuinfo");
    let model =
        cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("", |m| m.1);
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let versions: Vec<String> = kinds.iter().map(|k| k.version()).collect();
    let mut out = format!(
        "| measured with | `{command}` |\n|---|---|\n| commit | {} on {} |\n| machine | {cpus} CPUs shared with the load generator ({model}), Linux {} |\n\
         | load average | {busy:.2} before, {:.2} at the end |\n| brokers | {} |\n",
        first_line("git", &["describe", "--always", "--dirty"]),
        first_line("date", &["-u", "+%Y-%m-%d"]),
        file("/proc/sys/kernel/osrelease").trim(),
        load_average(),
        versions.join(", "),
    );
    if busy > QUIET_MAX {
        out += "\n**The machine was busy with other work.** Rates and latencies are unreliable. CPU and memory are more reliable.\nCompare large ratios only.\n";
    }
    out
}

/// All tables. `failed` are the loads that failed on a broker, a line each; then the command, and the load average
/// before it.
pub fn markdown(
    workloads: &[Workload],
    kinds: &[Kind],
    rounds: &Rounds,
    failed: &[String],
    (command, busy): (&str, f64),
) -> Result<String> {
    let mut out = circumstances(kinds, command, busy);
    for purpose in [
        Purpose::Throughput,
        Purpose::Latency,
        Purpose::Connect,
        Purpose::Memory,
        Purpose::WithIdleClients,
        Purpose::Overload,
    ] {
        let these: Vec<&Workload> = workloads.iter().filter(|w| w.purpose == purpose).collect();
        if !these.is_empty() {
            for column in columns(purpose) {
                match table(&column, &these, kinds, rounds) {
                    Some(table) => write!(out, "\n{table}")?,
                    None => writeln!(out, "\n{}: none.", column.title)?,
                }
            }
        }
    }
    let remarks = remarks(workloads, rounds, failed);
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

/// Maximum load average before an undisturbed measurement.
const QUIET_MAX: f64 = 0.7;

/// Replaces the text between `<!-- mark -->` and `<!-- /mark -->`, or the whole file when there are no such lines.
pub fn write(path: &Path, mark: &str, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, merged(&old, mark, &wrapped(text))).with_context(|| path.display().to_string())
}

/// Maximum number of characters of a line of a list in a page.
const WIDTH_MAX: usize = 120;

/// Breaks the lines of lists that are wider than [`WIDTH_MAX`].
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut rest = line.to_owned();
        while rest.starts_with(['*', ' ']) && rest.chars().count() > WIDTH_MAX {
            let end = rest.char_indices().nth(WIDTH_MAX).map_or(rest.len(), |(at, _)| at);
            let Some(at) = rest[..end].rfind(' ').filter(|at| *at > 2) else { break };
            out.push_str(&rest[..at]);
            out.push('\n');
            rest = format!("  {}", &rest[at + 1..]);
        }
        out.push_str(&rest);
        out.push('\n');
    }
    if !text.ends_with('\n') {
        out.pop();
    }
    out
}

fn merged(old: &str, mark: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    match old.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1))) {
        Some((head, tail)) => format!("{head}{begin}\n{text}\n{end}{tail}"),
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

    fn cpu(cpu: f64) -> Figures {
        Figures { cpu_us: Some(cpu), per_s: Some(1000.0), lost: Some(0.0), ..Figures::default() }
    }

    fn peers() -> [Kind; 2] {
        static RECIPES: std::sync::LazyLock<Vec<crate::bench::recipe::Recipe>> =
            std::sync::LazyLock::new(crate::bench::recipe::built_in);
        [Kind::Peer(&RECIPES[0]), Kind::Peer(&RECIPES[1])]
    }

    #[test]
    fn a_table_has_a_row_for_each_load_and_names_the_better_broker() {
        let all = workload::all(5, 100);
        let mut rounds = Rounds::default();
        let [nats, rumqttd] = peers();
        for (kind, us) in [
            (Kind::Meridian, 1.0),
            (Kind::Meridian, 2.0),
            (Kind::Meridian, 3.0),
            (Kind::Mosquitto, 5.0),
            (nats, 4.0),
        ] {
            rounds.add("fan-in", kind, cpu(us));
        }
        let these: Vec<&Workload> = all.iter().filter(|w| w.name == "fan-in").collect();
        let kinds = [Kind::Meridian, Kind::Mosquitto, nats, rumqttd];
        let columns = columns(Purpose::Throughput);
        let text = table(&columns[0], &these, &kinds, &rounds).unwrap();
        let row = text.lines().last().unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(row.contains("| 2.00 (1.00-3.00) | 5.00 | 4.00 | - | 2.00x (nats) |"), "{row}");
        let text = table(&columns[1], &these, &kinds[..2], &rounds).unwrap();
        assert!(text.contains("| 1,000 | 1,000 | 1.00x (mosquitto) |"), "{text}");
        assert_eq!(table(&columns[2], &these, &kinds, &rounds), None, "no message was lost");
    }

    #[test]
    fn wide_lines_of_lists_are_broken() {
        let words = "word ".repeat(50);
        let text = wrapped(&format!("| {words} |\n* {words}end\n"));
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths[0] > WIDTH_MAX && widths[1..].iter().all(|width| *width <= WIDTH_MAX), "{text}");
        assert_eq!(text.split_whitespace().count(), 2 + 50 + 1 + 50 + 1);
        assert_eq!(wrapped("* short"), "* short");
    }

    #[test]
    fn a_single_broker_has_no_ratio() {
        let all = workload::all(5, 100);
        let mut rounds = Rounds::default();
        rounds.add("fan-in", Kind::Mosquitto, cpu(1.0));
        let these: Vec<&Workload> = all.iter().filter(|w| w.name == "fan-in").collect();
        let text = table(&columns(Purpose::Throughput)[0], &these, &[Kind::Mosquitto], &rounds).unwrap();
        assert!(!text.contains("best other"), "{text}");
    }

    #[test]
    fn only_text_between_the_marks_is_replaced() {
        let old = "# Title\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n";
        let new = merged(old, "bench", "new\n");
        assert_eq!(new, "# Title\n<!-- bench -->\n\nnew\n\n<!-- /bench -->\nafter\n");
        assert_eq!(merged(&new, "bench", "new\n"), new);
        assert_eq!(merged("no marks", "bench", "new\n"), "new\n");
    }
}
