//! Tasks of this project, run as `cargo xtask NAME`. Each has its own file; CI calls the same commands.

mod bench;
mod chaos;
mod check;
mod clauses;
mod cluster;
mod dependencies;
mod dist;
mod features;
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
#[command(name = "cargo xtask", about = "Tasks of this project")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check of CI other than the tests: format, lints, tidy, dependencies, features, clauses
    Check(check::Args),
    /// Check rules of this repository that the compiler does not know: "not this, use that"
    Tidy,
    /// List clauses of MQTT 5.0 and 3.1.1 for a server that neither code nor test cites
    Clauses(clauses::Args),
    /// Check that the cost of a message in instructions, allocations and system calls does not rise
    Ratchet(ratchet::Args),
    /// Measure Meridian and a peer, and print a table
    Bench(bench::Args),
    /// Measure Meridian and all available brokers, and write the tables of docs/benchmarks.md
    Compare(bench::compare::Args),
    /// Measure the growth of cost with connections, filters, subscribers and reactors; write docs/growth.md
    Growth(bench::growth::Args),
    /// Measure the cost of durable messages, compared with other durable brokers: messages, resume, recovery
    Durable(bench::durable::Args),
    /// Measure the latency of clients during scrapes, listings of all clients, and a trace of everything
    Observe(bench::observe::Args),
    /// Measure the latency of connected clients during 10,000 wrong logins
    Storm(bench::storm::Args),
    /// Measure the cost of connections by kind of listener: TLS handshakes compared with a peer, messages and memory
    Listeners(bench::listener::Args),
    /// Kill a broker repeatedly while clients use it, and report lost messages
    Chaos(chaos::Args),
    /// Attack a broker with hostile clients, one after the other, and report the effect on all others
    Hostile(hostile::Args),
    /// Start five nodes on this machine, and send a message of each kind from each to each
    ClusterSmoke(cluster::Args),
    /// Measure the cost of clients on several nodes: messages, latency, subscriptions, routes
    ClusterBench(cluster::bench::Args),
    /// Measure nodes 12,600 km apart on this machine: delays of CONNECT and SUBSCRIBE, and throughput of slow links
    /// (needs root)
    Geo(geo::Args),
    /// Pack the release files: .tar.gz, .deb, checksums
    Dist(dist::Args),
    /// Simulate whole nodes on failing disks and networks, and report violations
    Sim(sim::Args),
    /// Measure user memory of an idle connection with a subscription, without sockets
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
