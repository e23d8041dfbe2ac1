//! `cargo xtask sim`: simulations of whole nodes (`crates/sim`, docs/simulator.md). Builds and runs the simulator.

use anyhow::{Context, Result, ensure};
use std::process::Command;

use crate::chaos::target;
use crate::repository::root;

#[derive(clap::Args)]
pub struct Args {
    /// Number of simulations to run (default: 1000)
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Distance from one seed to the next (default: 1)
    #[arg(long)]
    step: Option<u64>,
    /// End after this many minutes, whatever is left
    #[arg(long)]
    minutes: Option<u64>,
    /// Number of simulations at one time (default: number of processors)
    #[arg(long)]
    threads: Option<u64>,
    /// Simulate several nodes, and faults between them
    #[arg(long)]
    cluster: bool,
    /// Simulate a cluster with five nodes, 50 clients, five minutes and 20 faults or more each
    #[arg(long)]
    full: bool,
    /// Simulate replicas that agree on a log, on failing disks and networks
    #[arg(long)]
    quorum: bool,
    /// Simulate shards with replicas on three nodes, and with some seeds on three of five cores
    #[arg(long)]
    shards: bool,
    /// Simulate shards with replicas on three of five cores, which move
    #[arg(long)]
    moving: bool,
    /// Simulate two or three linked clusters of one node each
    #[arg(long)]
    linked: bool,
    /// Print the events of the first seed
    #[arg(long)]
    trace: bool,
    /// Put faults into the product instead, one after the other, and report what notices each of them
    #[arg(long)]
    mutations: bool,
}

pub fn run(args: &Args) -> Result<()> {
    // With the features of the whole workspace: builds of the tests are reused.
    let mut build = crate::repository::cargo();
    build.args(["build", "--quiet", "--locked", "--workspace", "--example", "simulate"]).current_dir(root());
    ensure!(build.status().context("cargo build")?.success(), "the simulator was not built, see above");
    let mut command = Command::new(target::profile_directory(true).join("examples/simulate"));
    command.args(["--seed", &args.seed.to_string()]);
    let numbers = [
        ("--seeds", args.seeds),
        ("--step", args.step),
        ("--minutes", args.minutes),
        ("--threads", args.threads),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            command.args([name, &number.to_string()]);
        }
    }
    command.args(args.cluster.then_some("--cluster"));
    command.args(args.full.then_some("--full"));
    command.args(args.quorum.then_some("--quorum"));
    command.args(args.shards.then_some("--shards"));
    command.args(args.moving.then_some("--moving"));
    command.args(args.linked.then_some("--linked"));
    command.args(args.trace.then_some("--trace"));
    command.args(args.mutations.then_some("--mutations"));
    let status = command.status().context("simulate")?;
    ensure!(status.success(), "something was wrong, see above");
    Ok(())
}
