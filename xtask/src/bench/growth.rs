//! `cargo xtask growth`: growth of the cost of a message, a client and a match with connections, filters, subscribers
//! and reactors. Writes docs/growth.md and its plots.

mod plot;
mod series;

use super::broker::Kind;
use super::child;
use super::measure::{Summary, summary};
use super::table::{circumstances, load_average, number};
use crate::repository::root;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use series::Series;
use std::fmt::Write;

#[derive(clap::Args)]
pub struct Args {
    /// Run only these series (may be given several times)
    #[arg(long, value_enum)]
    only: Vec<Series>,
    /// Measured seconds of each step
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of runs of each step
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Maximum number of connections (a process may have 20,000 files on many machines)
    #[arg(long, default_value_t = 19_000)]
    connections: u32,
    /// Maximum number of filters of the index; 10 million take about 1 GB
    #[arg(long, default_value_t = 10_000_000)]
    filters: u32,
    /// Use the existing binaries in target/release
    #[arg(long)]
    no_build: bool,
    /// Print the tables without writing files
    #[arg(long)]
    dry_run: bool,
}

const PAGE: &str = "docs/growth.md";
const PLOTS: &str = "docs/growth";

/// Results of one run of a step, in the order of the series' figures.
type Row = Vec<Option<f64>>;

/// One size of a series and its runs.
struct Step {
    size: u32,
    runs: Vec<Row>,
}

pub fn run(args: &Args) -> Result<()> {
    let all = Series::value_variants();
    let chosen: Vec<Series> =
        all.iter().filter(|s| args.only.is_empty() || args.only.contains(s)).copied().collect();
    if !args.no_build {
        super::build(&[Kind::Meridian])?;
    }
    if chosen.contains(&Series::Filters) {
        series::build_index()?;
    }
    child::catch_signals();
    let busy = load_average();
    let mut steps: Vec<Vec<Step>> = chosen.iter().map(|s| sizes(s.largest(args))).collect();
    for round in 0..args.rounds {
        for (series, steps) in chosen.iter().zip(&mut steps) {
            let count = steps.len();
            for at in 0..count {
                // Sizes ascend in one round and descend in the next, so that drift over time does not look like
                // growth.
                let step = &mut steps[if round % 2 == 0 { at } else { count - 1 - at }];
                eprintln!("round {}/{}: {} {}", round + 1, args.rounds, step.size, series.axis());
                match series.measure(step.size, args.seconds) {
                    Ok(row) => step.runs.push(row),
                    Err(_) if child::interrupted() => bail!("interrupted"),
                    Err(error) => return Err(error.context(format!("{} {}", step.size, series.axis()))),
                }
            }
        }
    }
    let mut page = head(args, busy);
    for (series, steps) in chosen.iter().zip(&steps) {
        page += &section(*series, steps);
    }
    println!("{page}");
    if args.dry_run {
        return Ok(());
    }
    if chosen.len() != all.len() {
        eprintln!("{PAGE} is written only by a run of all series");
        return Ok(());
    }
    let directory = root().join(PLOTS);
    std::fs::create_dir_all(&directory).context(PLOTS)?;
    for (series, steps) in chosen.iter().zip(&steps) {
        for (name, plot) in plots(*series, steps) {
            std::fs::write(directory.join(&name), plot).with_context(|| name.clone())?;
        }
    }
    std::fs::write(root().join(PAGE), page).context(PAGE)
}

/// Sizes 1, 10, 100 ... and the largest; small ranges have every size.
fn sizes(largest: u32) -> Vec<Step> {
    let mut sizes: Vec<u32> = if largest <= 4 {
        (1..=largest).collect()
    } else {
        std::iter::successors(Some(1_u32), |size| size.checked_mul(10))
            .take_while(|size| *size <= largest)
            .collect()
    };
    if sizes.last() != Some(&largest) {
        sizes.push(largest);
    }
    sizes.into_iter().map(|size| Step { size, runs: vec![] }).collect()
}

fn head(args: &Args, busy: f64) -> String {
    let Args { seconds, rounds, connections, filters, .. } = args;
    let mut command = format!("cargo xtask growth --seconds {seconds} --rounds {rounds}");
    if *connections != 19_000 {
        command += &format!(" --connections {connections}");
    }
    if *filters != 10_000_000 {
        command += &format!(" --filters {filters}");
    }
    format!(
        "# How cost grows\n\nThis page shows how the cost of a message, a client and a match grows with connections, filters, subscribers and\n\
         reactors. `cargo xtask growth` writes it. A cell is the median of the rounds, with the lowest and the highest in\n\
         parentheses. The plots show the same figures. How they are measured is in\n\
         [benchmarks.md](benchmarks.md#how-it-is-measured).\n\n{}",
        circumstances(&[Kind::Meridian], &command, busy)
    )
}

fn section(series: Series, steps: &[Step]) -> String {
    let mut out = format!("\n## {}\n\n{}\n\n", series.title(), series.explanation());
    let titles: Vec<&str> = series.figures().iter().map(|figure| figure.title).collect();
    let _ =
        writeln!(out, "| {} | {} |\n|{}", series.axis(), titles.join(" | "), "---|".repeat(titles.len() + 1));
    for step in steps {
        let cells = series.figures().iter().enumerate().map(|(at, figure)| {
            let digits = figure.digits;
            of(step, at).map_or("-".to_owned(), |found| format!("{found:.digits$}"))
        });
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(out, "| {} | {} |", number(f64::from(step.size), 0), cells.join(" | "));
    }
    out.push('\n');
    for (name, _) in plots(series, steps) {
        let _ = writeln!(out, "![{}](growth/{name})", name.trim_end_matches(".svg").replace('-', " "));
    }
    out
}

/// Figure number `at` of a step.
fn of(step: &Step, at: usize) -> Option<Summary> {
    summary(&step.runs, |row| row.get(at).copied().flatten())
}

/// A plot for each figure with at least two points, and its file name.
fn plots(series: Series, steps: &[Step]) -> Vec<(String, String)> {
    let figures = series.figures().iter().enumerate();
    let plots = figures.filter_map(|(at, figure)| {
        let points: Vec<(u32, Summary)> =
            steps.iter().filter_map(|step| Some((step.size, of(step, at)?))).collect();
        let name = format!("{}-{}.svg", series.name(), figure.name);
        (points.len() > 1).then(|| (name, plot::plot(figure.title, series.axis(), &points)))
    });
    plots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_tenfold_to_the_largest() {
        let sizes = |largest| sizes(largest).iter().map(|step| step.size).collect::<Vec<_>>();
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(2), [1, 2]);
        assert_eq!(sizes(1_000), [1, 10, 100, 1_000]);
        assert_eq!(sizes(19_000), [1, 10, 100, 1_000, 10_000, 19_000]);
    }

    #[test]
    fn a_section_has_a_row_for_each_size_and_a_plot_for_each_figure() {
        let mut steps = sizes(100);
        for (step, us) in steps.iter_mut().zip([1.0, 2.0, 4.0]) {
            step.runs = vec![vec![Some(us), Some(10.0)], vec![Some(us * 2.0), None]];
        }
        let text = section(Series::Subscribers, &steps);
        assert!(text.contains("| 100 | 6.00 (4.00-8.00) | 10 |"), "{text}");
        assert_eq!(text.matches(".svg)").count(), Series::Subscribers.figures().len(), "{text}");
    }
}
