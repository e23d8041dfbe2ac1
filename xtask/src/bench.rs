//! `cargo xtask bench`: the same loads on Meridian and on a peer, in alternation and in one run, because on a shared
//! machine only ratios within a run are meaningful. Figures are medians over the rounds.

pub mod broker;
pub mod child;
pub mod compare;
pub mod durable;
pub mod generator;
pub mod growth;
mod idle_clients;
pub mod listener;
mod measure;
pub mod mosquitto;
pub mod observe;
pub mod recipe;
mod rounds;
pub mod storm;
mod table;
mod workload;

use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use broker::Kind;
use clap::ValueEnum;
use rounds::Plan;
use std::path::{Path, PathBuf};
use workload::Workload;

#[derive(clap::Args)]
pub struct Args {
    /// Run only the loads whose name contains this (may be given several times); `list` shows the names
    #[arg(long)]
    only: Vec<String>,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of runs of each load on each broker
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Broker to compare with
    #[arg(long, value_enum, default_value_t = Peer::Mosquitto)]
    peer: Peer,
    /// Measure the peer alone
    #[arg(long)]
    peer_only: bool,
    /// Sockets of the loads that count connections (a process may have 20,000 files on many machines)
    #[arg(long, default_value_t = 15_000)]
    connections: u32,
    /// Number of reactors of Meridian (default: its own)
    #[arg(long)]
    workers: Option<u32>,
    /// Write the tables to this file as well; between `<!-- bench -->` and `<!-- /bench -->` when it has these lines
    #[arg(long)]
    markdown: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Peer {
    Mosquitto,
    None,
}

pub fn run(args: &Args) -> Result<()> {
    let all = workload::basic(args.seconds, args.connections);
    let plan = Plan {
        workloads: selected(all, &args.only)?,
        kinds: brokers(args)?,
        rounds: args.rounds,
        workers: args.workers,
    };
    build(&plan.kinds)?;
    child::catch_signals();
    print(&plan, &command_line(args), "bench", args.markdown.as_deref())
}

/// Loads whose names contain one of `only`, or all of them.
fn selected(all: Vec<Workload>, only: &[String]) -> Result<Vec<Workload>> {
    let names: Vec<String> = all.iter().map(|load| load.name.clone()).collect();
    let is_wanted =
        |load: &Workload| only.is_empty() || only.iter().any(|part| load.name.contains(&part[..]));
    let loads: Vec<Workload> = all.into_iter().filter(is_wanted).collect();
    ensure!(!loads.is_empty(), "no load is named so; there are {}", names.join(", "));
    Ok(loads)
}

/// Measures, prints the tables, and writes them to a page between the marks of this name.
fn print(plan: &Plan, command: &str, mark: &str, page: Option<&Path>) -> Result<()> {
    let busy = table::load_average();
    let minutes = plan.usual().as_secs().div_ceil(60);
    eprintln!("{} loads on {} brokers: about {minutes} min", plan.workloads.len(), plan.kinds.len());
    let mut failed = vec![];
    let rounds = plan.measure(&mut failed);
    let text = table::markdown(&plan.workloads, &plan.kinds, &rounds, &failed, (command, busy))?;
    println!("{text}");
    if child::interrupted() {
        bail!("interrupted");
    }
    // A peer may fail at a load; that is a result. Meridian may not.
    let ours = format!(" on {}: ", Kind::Meridian);
    let ours: Vec<&str> = failed.iter().filter(|line| line.contains(&ours)).map(String::as_str).collect();
    ensure!(ours.is_empty(), "{}", ours.join("\n"));
    match page {
        Some(path) => table::write(path, mark, &text),
        None => Ok(()),
    }
}

fn brokers(args: &Args) -> Result<Vec<Kind>> {
    let mut kinds = vec![];
    if !args.peer_only {
        kinds.push(Kind::Meridian);
    }
    if args.peer == Peer::Mosquitto {
        match mosquitto::program() {
            Some(_) => kinds.push(Kind::Mosquitto),
            None => eprintln!("mosquitto is not installed: no comparison (apt-get install mosquitto)"),
        }
    }
    ensure!(!kinds.is_empty(), "nothing to measure");
    Ok(kinds)
}

/// Builds release binaries of the generator, and of Meridian where it is measured.
fn build(kinds: &[Kind]) -> Result<()> {
    let mut what = vec!["--package", "bench", "--bin", "mqload"];
    if kinds.contains(&Kind::Meridian) {
        what.extend(["--package", "meridian", "--bin", "meridian"]);
    }
    cargo_build(&what)
}

/// Runs `cargo build --release` for some targets.
pub fn cargo_build(what: &[&str]) -> Result<()> {
    let mut command = crate::repository::cargo();
    command.args(["build", "--release", "--locked"]).args(what).current_dir(root());
    ensure!(command.status().context("cargo build")?.success(), "cargo build failed");
    Ok(())
}

/// The command as it was given, for the page.
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
