//! `cargo xtask geo`: nodes on several continents on this machine (crate `lab`). How long clients in Hong Kong wait for
//! CONNECT and SUBSCRIBE, what two nodes deliver over a link that is too slow for them, and how long a copy of all routes takes.

mod cluster;
mod copies;
mod cuts;
mod generator;
mod overload;
mod startup;
mod subscribe;

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, Topology};
use std::path::PathBuf;

use crate::bench::child;
use crate::chaos::target;
use crate::cluster::nodes::Members;
use crate::repository::root;

#[derive(clap::Args)]
pub struct Args {
    /// Only these: E1.1 to E1.10, E3, copies, cuts (may be given several times)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Who knows of a subscription before SUBACK leaves, in the runs of E1
    #[arg(long, value_delimiter = ',', default_values = ["local", "core", "region", "cluster"], value_parser = ["local", "core", "region", "cluster"])]
    suback: Vec<String>,
    /// How nodes know each other in E1.1 to E1.9 and the copies: the cores agree, or each has a list
    #[arg(long, value_enum, default_value = "agreed")]
    members: Members,
    /// The program (default: the one that is built for this)
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Builds it for development, which is faster
    #[arg(long)]
    debug: bool,
    /// Measured seconds of each load of E3
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=600))]
    seconds: u32,
    /// Routes of the copies
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000])]
    routes: Vec<u32>,
    /// How often clients come in each run of E1.1 to E1.9, each copy is made, and each cluster of E1.10 started
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// E1 once more with so many per cent of the packets between places lost, each way, beside the runs that lose none: 0.1,1. In E1.1
    /// to E1.9 only what waits for other places runs again
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    loss: Vec<f64>,
}

/// Links carry hardly anything beyond it.
const LOSS_MAX: f64 = 20.0;

const TOPOLOGY: &str = include_str!("../../crates/lab/labs/geo.toml");

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    let cases = subscribe::selected(&args.only);
    let with = |what: &str| args.only.is_empty() || args.only.iter().any(|name| name == what);
    let (with_startup, with_overload) = (with("E1.10"), with("E3"));
    let (with_copies, with_cuts) = (with("copies"), with("cuts"));
    let is_any = !cases.is_empty() || with_startup || with_overload || with_copies || with_cuts;
    ensure!(is_any, "--only takes E1.1 to E1.10, E3, copies and cuts");
    let is_losing = !cases.is_empty() || with_startup;
    ensure!(args.loss.is_empty() || is_losing, "--loss is for E1.1 to E1.10, and none of them runs");
    let has_meta_group = args.members == Members::MetaGroup;
    // Before anything is built: without root nothing comes of it.
    drop(start()?);
    let program = match &args.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => {
            target::build(args.debug, true)?;
            target::profile_directory(args.debug).join("meridian")
        }
    };
    let directory = root().join("target/geo");
    std::fs::create_dir_all(&directory)?;
    let (mut passed, mut failed) = (0, vec![]);
    let options = subscribe::SubscribeOptions {
        levels: &args.suback,
        losses: &args.loss,
        rounds: args.rounds,
        has_meta_group,
    };
    subscribe::run(&cases, &options, (&program, &directory), (&mut passed, &mut failed))?;
    if with_startup {
        let plan = (&args.loss[..], args.rounds);
        startup::run((&program, &directory), plan, (&mut passed, &mut failed))?;
    }
    if with_overload {
        overload::run(&program, &directory, args.seconds, (&mut passed, &mut failed))?;
    }
    if with_copies {
        let plan = (&args.routes[..], args.rounds);
        copies::run(&program, &directory, plan, has_meta_group, (&mut passed, &mut failed))?;
    }
    if with_cuts {
        cuts::run((&program, &directory), (&mut passed, &mut failed))?;
    }
    for what in &failed {
        println!("failed: {what}");
    }
    println!("{passed} passed, {} failed", failed.len());
    if !failed.is_empty() {
        bail!("{} of {} failed", failed.len(), failed.len() + passed);
    }
    Ok(())
}

/// All places, with nobody in them.
fn start() -> Result<Lab> {
    start_seeded(0)
}

/// The same; labs of different seeds lose other packets.
fn start_seeded(seed: u64) -> Result<Lab> {
    let mut topology = Topology::parse(TOPOLOGY)?;
    topology.seed = seed;
    Ok(Lab::start(topology)?)
}

/// From now on so many per cent of the packets between two places are lost, each way. Within a place none are.
fn lose(lab: &Lab, percent: f64) -> Result<()> {
    let sites = &lab.topology().sites;
    for (at, one) in sites.iter().enumerate() {
        for other in &sites[at + 1..] {
            lab.set((one, other), "loss", &format!("{percent}%"))?;
        }
    }
    Ok(())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok().filter(|it| *it > 0.0 && *it <= LOSS_MAX);
    percent.ok_or_else(|| format!("per cent of the packets, more than 0 and at most {LOSS_MAX}: 0.1,1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_per_cent_and_leave_a_link_to_speak_of() {
        assert_eq!((percent("0.1"), percent("1%")), (Ok(0.1), Ok(1.0)));
        for bad in ["0", "-1", "20.1", "NaN", "", "much"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
