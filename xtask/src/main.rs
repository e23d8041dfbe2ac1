//! The project's own tasks, run as `cargo xtask NAME`. Each has a file of its own; CI calls the same commands.

mod bench;
mod chaos;
mod check;
mod clauses;
mod cluster;
mod dependencies;
mod dist;
mod geo;
mod hostile;
mod idle;
mod ratchet;
mod repository;
mod sim;
mod source;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, tidy, dependencies and the list of clauses: everything that CI looks at besides the tests
    Check(check::Args),
    /// "Not this, use that": rules of this repository that no compiler knows
    Tidy,
    /// Clauses of MQTT 5.0 and 3.1.1 that a server must meet and that neither code nor test cites
    Clauses(clauses::Args),
    /// What a message costs in instructions, allocations and system calls may not get worse
    Ratchet(ratchet::Args),
    /// Measures the broker beside a peer and prints a table
    Bench(bench::Args),
    /// Measures the broker beside all that can be had, and writes the tables of docs/benchmarks.md
    Compare(bench::compare::Args),
    /// How cost grows with connections, filters, subscribers and reactors; writes docs/growth.md
    Growth(bench::growth::Args),
    /// What it costs to keep what was acknowledged, beside brokers that keep it too: messages, resume, recovery
    Durable(bench::durable::Args),
    /// What watching a node costs its clients: latency beside scrapes, listings of all clients, and a trace of everything
    Observe(bench::observe::Args),
    /// What wrong logins cost those who are in: latency beside 10,000 of them
    Storm(bench::storm::Args),
    /// What coming in costs: TLS handshakes beside a peer, messages and memory by kind of listener
    Listeners(bench::listener::Args),
    /// Kills a broker again and again while clients use it, and says what was lost
    Chaos(chaos::Args),
    /// Lets one hostile client after the other attack a broker, and says what all others felt
    Hostile(hostile::Args),
    /// Five nodes on this machine, and a message of each kind from each to each
    ClusterSmoke(cluster::Args),
    /// What it costs that clients are on several nodes: messages, latency, subscriptions, routes
    ClusterBench(cluster::bench::Args),
    /// Nodes 12,600 km apart on this machine: how long CONNECT and SUBSCRIBE take, and what slow links carry (needs root)
    Geo(geo::Args),
    /// Packs what is shipped: .tar.gz, .deb, checksums
    Dist(dist::Args),
    /// Simulates whole nodes on disks and a network that fail, and says what was broken
    Sim(sim::Args),
    /// User memory of an idle connection with a subscription, without sockets
    Idle(idle::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Check(args) => check::run(&args),
        Task::Tidy => tidy::run(),
        Task::Clauses(args) => clauses::run(&args),
        Task::Ratchet(args) => ratchet::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Compare(args) => bench::compare::run(&args),
        Task::Growth(args) => bench::growth::run(&args),
        Task::Durable(args) => bench::durable::run(&args),
        Task::Observe(args) => bench::observe::run(&args),
        Task::Storm(args) => bench::storm::run(&args),
        Task::Listeners(args) => bench::listener::run(&args),
        Task::Chaos(args) => chaos::run(&args),
        Task::Hostile(args) => hostile::run(&args),
        Task::ClusterSmoke(args) => cluster::run(&args),
        Task::ClusterBench(args) => cluster::bench::run(&args),
        Task::Geo(args) => geo::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Sim(args) => sim::run(&args),
        Task::Idle(args) => idle::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
