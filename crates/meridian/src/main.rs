//! The binary `meridian`: configuration, command line, wiring. `cli` is the table of commands; `config` joins the
//! sections of all crates into one tree; `start` and `node` run the broker; `running` owns its configuration;
//! `client` is `meridian pub` and `sub`.
//!
//! **Invariant:** this crate makes no decision about MQTT, and declares no setting that another crate owns.

use std::process::ExitCode;

use clap::Parser as _;

mod account;
mod acl_command;
mod action_views;
mod bench_command;
mod bridge_views;
mod cli;
mod client;
mod cluster;
mod config;
mod config_command;
mod dev_cluster;
mod drain;
mod entry_views;
mod expiry;
mod exposure;
mod files;
mod history;
mod holder;

mod import;
mod key;
mod link_views;
mod log;
mod node;
mod notify;
mod otel;
mod passwd;
mod replicated;
mod reread;
mod running;
mod secrets;
mod signals;
mod start;
mod storage;
mod store;
mod system;
mod watch;

/// The general purpose allocator of the C library retains too much memory with many threads and small objects.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match bench_command::by_name() {
        Some(code) => code,
        None => cli::Cli::parse().run(),
    }
}
