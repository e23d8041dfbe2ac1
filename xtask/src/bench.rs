//! `cargo xtask bench`: the same loads on our broker and on a peer, in alternation and in one run, because on a shared
//! machine only ratios within a run mean anything. Figures are medians over the rounds.

pub mod broker;
pub mod child;
pub mod door;
mod measure;
pub mod observe;
pub mod storm;
mod table;
mod workload;

use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use broker::{Broker, Kind};
use clap::ValueEnum;
use measure::Figures;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use workload::Workload;

#[derive(clap::Args)]
pub struct Args {
    /// Only the loads whose name contains this (may be given several times); `list` shows the names
    #[arg(long)]
    only: Vec<String>,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// How often each load runs on each broker
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// What to compare with
    #[arg(long, value_enum, default_value_t = Peer::Mosquitto)]
    peer: Peer,
    /// Measure the peer alone
    #[arg(long)]
    peer_only: bool,
    /// Sockets of the loads that count connections (a process may have 20,000 files on many machines)
    #[arg(long, default_value_t = 15_000)]
    connections: u32,
    /// Reactors of our broker (default: its own)
    #[arg(long)]
    workers: Option<u32>,
    /// Also write the tables to this file; between `<!-- bench -->` and `<!-- /bench -->` when it has these lines
    #[arg(long)]
    markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Peer {
    Mosquitto,
    None,
}

/// All rounds of one load on one broker.
type Rounds = BTreeMap<(&'static str, Kind), Vec<Figures>>;

pub fn run(args: &Args) -> Result<()> {
    let workloads: Vec<Workload> = workload::all(args.seconds, args.connections)
        .into_iter()
        .filter(|w| args.only.is_empty() || args.only.iter().any(|o| w.name.contains(&o[..])))
        .collect();
    if workloads.is_empty() {
        let names: Vec<&str> = workload::all(1, 1).iter().map(|w| w.name).collect();
        bail!("no load is named so; there are {}", names.join(", "));
    }
    let kinds = brokers(args)?;
    build(&kinds)?;
    child::catch_signals();
    let mut failed = vec![];
    let rounds = measure_all(args, &workloads, &kinds, &mut failed);
    let text = table::markdown(&workloads, &kinds, &rounds, &command_line(args))?;
    println!("{text}");
    if child::interrupted() {
        bail!("interrupted");
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    match &args.markdown {
        Some(path) => table::write(path, &text),
        None => Ok(()),
    }
}

fn brokers(args: &Args) -> Result<Vec<Kind>> {
    let mut kinds = vec![];
    if !args.peer_only {
        kinds.push(Kind::Meridian);
    }
    if args.peer == Peer::Mosquitto {
        match broker::mosquitto() {
            Some(_) => kinds.push(Kind::Mosquitto),
            None => eprintln!("mosquitto is not installed: no comparison (apt-get install mosquitto)"),
        }
    }
    ensure!(!kinds.is_empty(), "nothing to measure");
    Ok(kinds)
}

/// Release binaries of the generator, and of our broker where it is measured.
fn build(kinds: &[Kind]) -> Result<()> {
    let mut what = vec!["--package", "bench", "--bin", "mqload"];
    if kinds.contains(&Kind::Meridian) {
        what.extend(["--package", "meridian", "--bin", "meridian"]);
    }
    cargo_build(&what)
}

/// `cargo build --release` of some targets.
pub fn cargo_build(what: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked"]).args(what).current_dir(root());
    ensure!(command.status().context("cargo build")?.success(), "cargo build failed");
    Ok(())
}

/// A load that fails on a broker leaves its cell empty; the others are still worth measuring.
fn measure_all(args: &Args, workloads: &[Workload], kinds: &[Kind], failed: &mut Vec<String>) -> Rounds {
    let mut rounds = Rounds::new();
    for round in 0..args.rounds {
        for workload in workloads {
            // Who comes first changes from round to round.
            let mut order = kinds.to_vec();
            order.rotate_left(round as usize % kinds.len());
            for kind in order {
                if child::interrupted() {
                    return rounds;
                }
                eprintln!("round {}/{}: {} on {kind}", round + 1, args.rounds, workload.name);
                match one(args, workload, kind, round) {
                    Ok(figures) => rounds.entry((workload.name, kind)).or_default().push(figures),
                    Err(error) => {
                        let error = format!("{} on {kind}: {error:#}", workload.name);
                        eprintln!("{error}");
                        failed.push(error);
                    }
                }
            }
        }
    }
    rounds
}

/// One load on a fresh process of one broker: what a process did before changes its memory and its speed.
fn one(args: &Args, workload: &Workload, kind: Kind, round: u32) -> Result<Figures> {
    let mut broker = Broker::start(kind, args.workers)?;
    let figures = measure::run(workload, &broker, round);
    if !broker.alive() {
        bail!("the broker ended by itself; its log ends with\n{}", broker.log_tail());
    }
    figures
}

/// The command that was given, for the page.
fn command_line(args: &Args) -> String {
    let mut line = format!("cargo xtask bench --seconds {} --rounds {}", args.seconds, args.rounds);
    for only in &args.only {
        line += &format!(" --only {only}");
    }
    if args.connections != 15_000 {
        line += &format!(" --connections {}", args.connections);
    }
    if let Some(workers) = args.workers {
        line += &format!(" --workers {workers}");
    }
    if args.peer == Peer::None {
        line += " --peer none";
    }
    if args.peer_only {
        line += " --peer-only";
    }
    line
}
