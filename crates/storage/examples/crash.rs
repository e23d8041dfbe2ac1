//! Long crash trials: `cargo run --release -p storage --example crash -- --seeds 10000`.
//!
//! Prints each seed that finds an error, with the error. The exit status says whether any seed found one. `--cuts`
//! also tries every crash point of the first incarnation of each seed. `--mutations` shows how soon each mutation
//! is noticed.

use std::process::ExitCode;
use std::time::Instant;

use storage::Mutation;
use storage::trial::{Scenario, Tally, Trial};

const HELP: &str = "\
Usage: crash [--seeds N] [--from N] [--cuts] [--mutations]

  --seeds N     number of trials (default: 1000)
  --from N      first seed (default: 0)
  --cuts        also cut the power at each operation of the first incarnation of each seed
  --mutations   instead: for each mutation, count the seeds until it is noticed, and show by what";

fn main() -> ExitCode {
    let (mut seeds, mut from, mut cuts, mut mutations) = (1000, 0, false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        match argument.as_str() {
            "--seeds" => seeds = number().unwrap_or_else(|| refuse("--seeds needs a number")),
            "--from" => from = number().unwrap_or_else(|| refuse("--from needs a number")),
            "--cuts" => cuts = true,
            "--mutations" => mutations = true,
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => refuse(&format!("unknown argument {other}")),
        }
    }
    if mutations { show_mutations(from, seeds) } else { search(from, seeds, cuts) }
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}\n\n{HELP}");
    std::process::exit(2);
}

fn search(from: u64, seeds: u64, cuts: bool) -> ExitCode {
    let started = Instant::now();
    let (mut all, mut wrong) = (Tally::default(), 0);
    for seed in from..from + seeds {
        let mut trials = vec![Trial::random(seed)];
        if cuts {
            let whole = Trial { incarnations: 1, steps: 60, cut_at: Some(u64::MAX), ..Trial::random(seed) };
            let operations = whole.run().map_or(0, |tally| tally.operations);
            trials.extend((1..=operations).map(|at| Trial { incarnations: 2, cut_at: Some(at), ..whole }));
        }
        for trial in trials {
            match trial.run() {
                Ok(tally) => all.add(&tally),
                Err(why) => {
                    wrong += 1;
                    println!("{why} ({trial:?})");
                }
            }
        }
    }
    println!("{all:#?}");
    println!(
        "{} trials in {:.1} s, {wrong} found something wrong",
        all.trials + wrong,
        started.elapsed().as_secs_f64()
    );
    for idle in all.idle() {
        println!("nothing was tested of: {idle}");
    }
    if wrong == 0 && all.idle().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show_mutations(from: u64, seeds: u64) -> ExitCode {
    let mut missed = false;
    for mutation in Mutation::ALL {
        let found = (from..from + seeds)
            .find_map(|seed| Trial { mutation: Some(mutation), ..Trial::random(seed) }.run().err());
        let directed = Scenario::ALL.iter().find_map(|scenario| scenario.play(Some(mutation)).err());
        missed |= found.is_none() && directed.is_none();
        println!("{mutation:?}: {}", directed.or(found).unwrap_or_else(|| "NOT NOTICED".to_owned()));
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
