//! Runs many seeds on several threads, and prints failures and counters.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sim::{Failure, Report, Shape, Simulation};

use crate::arguments::Arguments;

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Number of failed seeds after which the search stops.
const WRONG_MAX: usize = 10;
/// Lines of the trace that are printed with a failure.
const LINES: usize = 60;

#[derive(Default)]
struct SearchResults {
    report: Report,
    wrong: Vec<Failure>,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    if arguments.trace {
        return trace(arguments);
    }
    if arguments.mutations {
        return mutations(arguments);
    }
    let (began, shape) = (Instant::now(), arguments.shape);
    let ends = arguments.minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    let next = AtomicU64::new(arguments.seed);
    let last = arguments.seed.saturating_add(arguments.seeds.saturating_mul(arguments.step));
    let results = Mutex::new(SearchResults::default());
    let shown = Mutex::new(Instant::now());
    thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(arguments.step, Ordering::Relaxed);
                    if seed >= last || ends.is_some_and(|ends| Instant::now() >= ends) {
                        return;
                    }
                    let (result, _) = Simulation { shape, ..Simulation::of(seed) }.run();
                    let mut results = sync::lock(&results);
                    match result {
                        Ok(report) => results.report.add(&report),
                        Err(failure) => {
                            show(shape, &failure);
                            results.wrong.push(failure);
                        }
                    }
                    if results.wrong.len() >= WRONG_MAX {
                        return;
                    }
                    let mut shown = sync::lock(&shown);
                    if shown.elapsed() >= PROGRESS {
                        *shown = Instant::now();
                        println!("{} seeds, {} wrong", results.report.seeds, results.wrong.len());
                    }
                }
            });
        }
    });
    let SearchResults { report, wrong } = sync::ignore_poison(results.into_inner());
    finish(shape, &report, &wrong, began.elapsed())
}

fn finish(shape: Shape, report: &Report, wrong: &[Failure], took: Duration) -> ExitCode {
    for (name, figure) in report.figures(shape) {
        println!("{name:>28} {figure}");
    }
    for failure in wrong {
        println!("seed {}: {}", failure.seed, first_line(&failure.why));
    }
    let seconds = took.as_secs_f64();
    println!("{} seeds in {seconds:.1} s, {:.2} a second", report.seeds, report.seeds as f64 / seconds);
    let mut idle: Vec<String> = report.idle(shape).into_iter().map(str::to_owned).collect();
    idle.extend(unreached(shape, report.seeds));
    for name in &idle {
        println!("never in all these seeds: {name}");
    }
    println!("{} passed, {} failed", report.seeds, wrong.len() + idle.len());
    if wrong.is_empty() && idle.is_empty() && report.seeds > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints how often the place of each mutation in the product was reached. Returns those that were not reached after
/// enough seeds, except those that a scenario or a test of `link` reaches.
#[cfg(feature = "trial")]
fn unreached(shape: Shape, seeds: u64) -> Vec<String> {
    let mut never = Vec::new();
    for (mutation, count) in sim::Mutation::all_reached(shape) {
        println!("{:>28} {count}", format!("reached_{mutation}"));
        let has_trial = |it: sim::Mutation| sim::Trial::all().any(|trial| trial.mutation == it);
        let is_told = has_trial(mutation) || sim::Mutation::all().all(|it| it != mutation);
        if count == 0 && !is_told && seeds >= sim::SEEDS_FOR_ALL {
            never.push(format!("the place of {mutation}"));
        }
    }
    never
}

#[cfg(not(feature = "trial"))]
fn unreached(_: Shape, _: u64) -> Vec<String> {
    Vec::new()
}

/// Prints the trace and the message of a failure, and the command that repeats it.
fn show(shape: Shape, failure: &Failure) {
    let (_, lines) = Simulation { shape, trace: true, ..Simulation::of(failure.seed) }.run();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        println!("{line}");
    }
    println!("seed {} is wrong: {}", failure.seed, failure.why);
    let of = match shape {
        Shape::Node => "",
        Shape::Cluster => " --cluster",
        Shape::FullCluster => " --full",
        Shape::Quorum => " --quorum",
        Shape::Shards => " --shards",
        Shape::MovingShards => " --moving",
        Shape::Linked => " --linked",
    };
    println!("again: cargo xtask sim{of} --seed {} --trace\n", failure.seed);
}

fn trace(arguments: &Arguments) -> ExitCode {
    let shape = arguments.shape;
    let (result, lines) = Simulation { shape, trace: true, ..Simulation::of(arguments.seed) }.run();
    for line in lines {
        println!("{line}");
    }
    match result {
        Ok(report) => finish(shape, &report, &[], Duration::from_secs(1)),
        Err(failure) => {
            println!("seed {} is wrong: {}", failure.seed, failure.why);
            ExitCode::FAILURE
        }
    }
}

/// Runs seeds with each mutation until one fails.
#[cfg(feature = "trial")]
fn mutations(arguments: &Arguments) -> ExitCode {
    let mut missed = 0;
    let of_nodes = arguments.shape == Shape::Node;
    let chosen = || sim::Mutation::all().filter(|it| of_nodes || it.shape() == arguments.shape);
    for mutation in chosen() {
        if let Some(trial) = sim::Trial::all().find(|trial| trial.mutation == mutation) {
            let is_detected = trial.is_detected(true) && !trial.is_detected(false);
            missed += usize::from(!is_detected);
            println!("{mutation}: {}", if is_detected { "noticed in its scenario" } else { "NOT NOTICED" });
            continue;
        }
        let seeds = arguments.seed..arguments.seed.saturating_add(arguments.seeds);
        let results = seeds.zip(1u64..).find_map(|(seed, count)| {
            let simulation =
                Simulation { shape: mutation.shape(), mutation: Some(mutation), ..Simulation::of(seed) };
            Some((count, simulation.run().0.err()?))
        });
        match results {
            Some((count, failure)) => {
                let mut why = first_line(&failure.why).to_owned();
                why.truncate((0..=160).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0));
                println!("{mutation}: noticed after {count} seeds (seed {}): {why}", failure.seed);
            }
            None => {
                missed += 1;
                println!("{mutation}: NOT NOTICED");
            }
        }
    }
    println!("{} passed, {missed} failed", chosen().count() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(not(feature = "trial"))]
fn mutations(_: &Arguments) -> ExitCode {
    eprintln!("built without the feature `trial`: use cargo xtask sim --mutations");
    ExitCode::from(2)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
