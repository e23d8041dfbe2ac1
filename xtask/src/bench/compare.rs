//! `cargo xtask compare`: the same loads on every available broker, in alternation and in one run.

use super::broker::Kind;
use super::rounds::Plan;
use super::workload;
use super::{child, mosquitto, recipe};
use crate::repository::root;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Run only the loads whose name contains this (may be given several times); `--list` shows the names
    #[arg(long)]
    only: Vec<String>,
    /// Run every load, not only the quick ones
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Print the names of the loads and of the brokers, and exit
    #[arg(long)]
    list: bool,
    /// Number of runs of each load on each broker
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Measure only these brokers; Meridian is "meridian" (default: all that are installed or can be)
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    /// Further brokers: a TOML file like xtask/src/bench/brokers.toml
    #[arg(long)]
    brokers_file: Option<PathBuf>,
    /// Skip a broker that is not installed instead of installing it in target/peers
    #[arg(long)]
    no_install: bool,
    /// Sockets of the loads that count connections (a process may have 20,000 files on many machines)
    #[arg(long, default_value_t = 15_000)]
    connections: u32,
    /// Number of reactors of Meridian (default: its own)
    #[arg(long)]
    workers: Option<u32>,
    /// Use the existing binaries in target/release
    #[arg(long)]
    no_build: bool,
    /// Do not write the tables between `<!-- compare -->` and `<!-- /compare -->` of docs/benchmarks.md
    #[arg(long)]
    dry_run: bool,
}

const PAGE: &str = "docs/benchmarks.md";

pub fn run(args: &Args) -> Result<()> {
    let known = known(args)?;
    let mut loads = workload::all(args.seconds, args.connections);
    if args.list {
        for load in &loads {
            println!("{:<24} {}{}", load.name, if load.quick { "" } else { "(--all) " }, load.title);
        }
        let names: Vec<String> = known.iter().map(Kind::to_string).collect();
        println!("brokers: {}", names.join(", "));
        return Ok(());
    }
    if args.only.is_empty() && !args.all {
        loads.retain(|load| load.quick);
    }
    child::catch_signals();
    let plan = Plan {
        workloads: super::selected(loads, &args.only)?,
        kinds: present(args, wanted(&args.brokers, &known)?)?,
        rounds: args.rounds,
        workers: args.workers,
    };
    if !args.no_build {
        super::build(&plan.kinds)?;
    }
    let page = root().join(PAGE);
    super::print(&plan, &command_line(args, &plan.kinds), "compare", (!args.dry_run).then_some(&page))
}

/// Every broker with a known way to start it.
fn known(args: &Args) -> Result<Vec<Kind>> {
    let mut recipes = recipe::built_in();
    if let Some(path) = &args.brokers_file {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for recipe in recipe::parse(&text).with_context(|| path.display().to_string())? {
            let taken = ["meridian", "mosquitto"].contains(&&recipe.name[..]);
            ensure!(!taken, "{}: there is a broker {} already", path.display(), recipe.name);
            recipes.retain(|other| other.name != recipe.name);
            recipes.push(recipe);
        }
    }
    // They are used until the program ends.
    let recipes = recipes.into_iter().map(|recipe| Kind::Peer(Box::leak(Box::new(recipe))));
    Ok([Kind::Meridian, Kind::Mosquitto].into_iter().chain(recipes).collect())
}

/// The named brokers, in the order of the page.
fn wanted(names: &[String], known: &[Kind]) -> Result<Vec<Kind>> {
    for name in names {
        let all: Vec<String> = known.iter().map(Kind::to_string).collect();
        ensure!(all.contains(name), "no broker is called {name}: there are {}", all.join(", "));
    }
    let is_wanted = |kind: &&Kind| names.is_empty() || names.contains(&kind.to_string());
    Ok(known.iter().filter(is_wanted).copied().collect())
}

/// Brokers that are installed, or have been installed now. The others are skipped with a line that names the reason.
fn present(args: &Args, wanted: Vec<Kind>) -> Result<Vec<Kind>> {
    // CI installs its list of packages only.
    let may_install = !args.no_install && std::env::var_os("CI").is_none();
    let mut there = vec![];
    for kind in wanted {
        let found = match kind {
            Kind::Meridian => Ok(()),
            Kind::Mosquitto => {
                mosquitto::program().map(drop).context("not installed (apt-get install mosquitto)")
            }
            Kind::Peer(recipe) => recipe.ensure_there(may_install),
        };
        match found {
            Ok(()) => there.push(kind),
            Err(error) => eprintln!("skipped: {kind}: {error:#}"),
        }
        ensure!(!child::interrupted(), "interrupted");
    }
    ensure!(!there.is_empty(), "nothing to measure");
    Ok(there)
}

/// The command as it was given, for the page.
fn command_line(args: &Args, kinds: &[Kind]) -> String {
    let names: Vec<String> = kinds.iter().map(Kind::to_string).collect();
    let mut line = format!("cargo xtask compare --seconds {} --rounds {}", args.seconds, args.rounds);
    line += &format!(" --brokers {}", names.join(","));
    // Its directory says nothing to readers of the page.
    if let Some(name) = args.brokers_file.as_deref().and_then(std::path::Path::file_name) {
        line += &format!(" --brokers-file {}", name.to_string_lossy());
    }
    if args.all {
        line += " --all";
    }
    for only in &args.only {
        line += &format!(" --only {only}");
    }
    if args.connections != 15_000 {
        line += &format!(" --connections {}", args.connections);
    }
    if let Some(workers) = args.workers {
        line += &format!(" --workers {workers}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(line.split_whitespace()).args
    }

    #[test]
    fn brokers_are_selected_by_name_in_the_order_of_the_page() {
        let known = known(&args("compare")).unwrap();
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            wanted(&names, &known).map(|kinds| kinds.iter().map(Kind::to_string).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap(), ["meridian", "mosquitto", "nats", "rmqtt", "rumqttd"]);
        assert_eq!(chosen(&["nats", "meridian"]).unwrap(), ["meridian", "nats"]);
        assert!(format!("{}", chosen(&["emqx"]).unwrap_err()).contains("there are meridian, mosquitto"));
    }

    #[test]
    fn the_page_shows_the_command_that_reproduces_it() {
        let args = args(
            "compare --all --rounds 5 --brokers meridian,nats --brokers-file /here/mine.toml --connections 1000",
        );
        let kinds = [Kind::Meridian, Kind::Mosquitto];
        assert_eq!(
            command_line(&args, &kinds),
            "cargo xtask compare --seconds 1 --rounds 5 --brokers meridian,mosquitto --brokers-file mine.toml --all \
             --connections 1000"
        );
    }

    #[test]
    fn a_file_adds_brokers_but_no_name_twice() {
        let directory = crate::bench::broker::Directory::new().unwrap();
        let path = directory.join("more.toml");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            known(&args(&format!("compare --brokers-file {}", path.display())))
        };
        let names = |kinds: Vec<Kind>| kinds.iter().map(Kind::to_string).collect::<Vec<_>>();
        assert_eq!(names(with("[flashmq]\nprogram = \"flashmq\"").unwrap())[5..], ["flashmq"]);
        assert_eq!(names(with("[nats]\nprogram = \"mine\"").unwrap()).len(), 5);
        assert!(with("[mosquitto]\nprogram = \"m\"").is_err());
    }
}
