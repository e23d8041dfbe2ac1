//! `cargo xtask geo`: nodes on several continents, simulated on this machine (crate `lab`). It measures the delay of
//! CONNECT and SUBSCRIBE for clients in Hong Kong, the deliveries of two nodes over a link that is too slow, the time
//! of a copy of all routes, and the messages of two linked clusters.

mod cluster;
mod copies;
mod cuts;
mod generator;
mod links;
mod overload;
mod startup;
mod subscribe;

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, Topology};
use std::path::PathBuf;

use crate::bench::child;
use crate::chaos::target;
use crate::repository::root;

#[derive(clap::Args)]
pub struct Args {
    /// Run only these: E1.1 to E1.10, E3, copies, cuts, links (may be given several times). Without it, all but links
    /// run
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Nodes that must know of a subscription before SUBACK, in the runs of E1
    #[arg(long, value_delimiter = ',', default_values = ["local", "core", "region", "cluster"], value_parser = ["local", "core", "region", "cluster"])]
    suback: Vec<String>,
    /// Points at which CONNACK is sent to the clients, in the runs of E1: before the cluster has given them their
    /// Client Identifiers, or after that
    #[arg(long, value_delimiter = ',', default_values = ["overlap"], value_parser = ["overlap", "claimed"])]
    connack: Vec<String>,
    /// Values of `cluster.leaders` in the runs of E1 with cores on three continents: in `region` all leaders are near
    /// the clients, and with `follow` they have moved there before the measurement
    #[arg(long, value_delimiter = ',', default_values = ["spread"], value_parser = ["spread", "region", "follow"])]
    leaders: Vec<String>,
    /// Program to test (default: the one that is built for this)
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Build the program for development, which is faster
    #[arg(long)]
    debug: bool,
    /// Measured seconds of each load of E3, and of links
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(5..=600))]
    seconds: u32,
    /// Numbers of routes of the copies
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000])]
    routes: Vec<u32>,
    /// Number of repetitions in each run of E1.1 to E1.9, of each copy, and of each start of a cluster in E1.10
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Percentages of lost packets between places, in each direction, for a second run of E1 in addition to the one
    /// without losses: 0.1,1. In E1.1 to E1.9 only measurements that wait for other places are repeated
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    loss: Vec<f64>,
    #[command(flatten)]
    links: links::LinkArgs,
}

/// Maximum percentage: beyond it links carry hardly any data.
const LOSS_MAX: f64 = 20.0;

const TOPOLOGY: &str = include_str!("../../crates/lab/labs/geo.toml");

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    let cases = subscribe::selected(&args.only);
    let with = |what: &str| args.only.is_empty() || args.only.iter().any(|name| name == what);
    let (with_startup, with_overload) = (with("E1.10"), with("E3"));
    let (with_copies, with_cuts) = (with("copies"), with("cuts"));
    // They take longer than all others.
    let with_links = args.only.iter().any(|name| name == "links");
    let is_any = !cases.is_empty() || with_startup || with_overload || with_copies || with_cuts || with_links;
    ensure!(is_any, "--only takes E1.1 to E1.10, E3, copies, cuts and links");
    let is_losing = !cases.is_empty() || with_startup;
    ensure!(args.loss.is_empty() || is_losing, "--loss is for E1.1 to E1.10, and none of them runs");
    // Before any build: without root the lab cannot start.
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
        connacks: &args.connack,
        leaders: &args.leaders,
        losses: &args.loss,
        rounds: args.rounds,
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
        copies::run(&program, &directory, plan, (&mut passed, &mut failed))?;
    }
    if with_cuts {
        cuts::run((&program, &directory), (&mut passed, &mut failed))?;
    }
    if with_links {
        links::run(&args.links, args.seconds, (&program, &directory), (&mut passed, &mut failed))?;
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

/// Starts a lab with all places, without nodes and clients.
fn start() -> Result<Lab> {
    start_seeded(0)
}

/// Starts a lab with a seed; labs of different seeds lose other packets.
fn start_seeded(seed: u64) -> Result<Lab> {
    let mut topology = Topology::parse(TOPOLOGY)?;
    topology.seed = seed;
    Ok(Lab::start(topology)?)
}

/// Loses a percentage of the packets between two places from now on, in each direction. Within a place none are lost.
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
    fn losses_are_percentages_below_the_maximum() {
        assert_eq!((percent("0.1"), percent("1%")), (Ok(0.1), Ok(1.0)));
        for bad in ["0", "-1", "20.1", "NaN", "", "much"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
