//! One run from its configuration to its report, and the steps that all commands share.

pub(crate) mod cleanup;
mod connections;
pub(crate) mod done;
pub(crate) mod drive;
pub(crate) mod familiar;
pub(crate) mod flow;
mod flow_report;
pub(crate) mod members;
pub(crate) mod pairs;
pub(crate) mod processes;
pub(crate) mod share;
pub(crate) mod summary;
mod verdict;

pub(crate) use processes::SHARE;

use crate::args::Command;
use crate::config::{Config, SetupError};
use crate::counters::Shared;
use crate::outcome::WorkerResult;
use crate::progress::print_status;
use crate::worker::Worker;
use crate::{net, process};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// The result of a run.
pub struct Report {
    pub json: Value,
    /// Exit code: 0 = success, 1 = a failure or a violation, 2 = the connections could not be opened.
    pub exit_code: i32,
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Ends the run in progress early, with its report. Safe to call from a signal handler.
pub fn interrupt() {
    STOP.store(true, SeqCst)
}

pub fn interrupted() -> bool {
    STOP.load(SeqCst)
}

/// Executes `command` and blocks until it ends or [`interrupt`] was called.
///
/// # Errors
/// The run could not start: bad targets, impossible numbers, too few descriptors.
pub fn run(command: Command) -> Result<Report, SetupError> {
    let mixed = net::now() ^ ((std::process::id() as u64) << 7);
    let run_id = (mixed ^ (mixed >> 16) ^ (mixed >> 32)) as u16;
    match command {
        Command::Conn(a) => connections::run("conn", &a, Config::connections(&a, run_id)?),
        Command::Sub(a) => connections::run("sub", &a.connections, Config::subscribe(&a, run_id)?),
        Command::Pubsub(a) => {
            let cfg = Config::pubsub(&a, run_id)?;
            let run = flow::Flow {
                name: "pubsub",
                common: &a.common,
                args: &a.flow,
                cleanup: false,
                max_time: a.max_time,
            };
            flow::run(run, cfg)
        }
        Command::Probe(a) => {
            let cfg = Config::probe(&a, run_id)?;
            let run =
                flow::Flow { name: "probe", common: &a.common, args: &a.flow, cleanup: false, max_time: 0.0 };
            flow::run(run, cfg)
        }
        Command::Ha(a) => {
            let cfg = Config::ha(&a, run_id)?;
            let run = flow::Flow {
                name: "ha",
                common: &a.common,
                args: &a.flow,
                cleanup: !a.no_cleanup,
                max_time: 0.0,
            };
            flow::run(run, cfg)
        }
    }
}

type Workers = Vec<JoinHandle<WorkerResult>>;

fn spawn(cfg: &Arc<Config>, shared: &Arc<Shared>) -> Workers {
    (0..cfg.threads.count)
        .map(|i| {
            let (c, s) = (cfg.clone(), shared.clone());
            std::thread::Builder::new()
                .name(format!("worker{i}"))
                .spawn(move || Worker::new(c, s, i).run())
                .expect("a thread")
        })
        .collect()
}

fn join(workers: Workers) -> Vec<WorkerResult> {
    workers.into_iter().map(|w| w.join().expect("a worker does not panic")).collect()
}

fn check_limits(cfg: &Config) -> Result<(), SetupError> {
    let needed = cfg.traffic.clients() as u64 + cfg.threads.count as u64 + 40;
    let limit = process::raise_nofile();
    if needed > limit {
        return Err(SetupError::TooManyFiles { needed, limit });
    }
    Ok(())
}

/// Sleeps on the main thread, which only observes: the workers do all the work and are not delayed.
pub(crate) fn nap(ms: u64) {
    // tidy: allow(thread-sleep): sampling interval of an observer
    std::thread::sleep(Duration::from_millis(ms))
}

/// Waits until every connection is ready or has failed; false at the time-out or on a signal.
fn wait_setup(cfg: &Config, shared: &Shared, timeout_s: f64, quiet: bool, workers: &Workers) -> bool {
    let total = cfg.traffic.clients() as u64;
    let begin = net::now();
    let mut last_report = begin;
    loop {
        let c = shared.sum();
        if c.ready_pubs + c.ready_subs + c.failed >= total {
            return true;
        }
        if interrupted() || workers.iter().any(|w| w.is_finished()) {
            return false;
        }
        let now = net::now();
        if now - begin > (timeout_s * 1e9) as u64 {
            return false;
        }
        if now - last_report >= 1_000_000_000 {
            last_report = now;
            print_status(
                quiet,
                format_args!(
                    "[{:6.1}s] ready {}/{} failed {} attempts failed {}",
                    (now - begin) as f64 / 1e9,
                    c.ready_pubs + c.ready_subs,
                    total,
                    c.failed,
                    c.attempts_failed
                ),
            );
        }
        nap(5);
    }
}
