//! `meridian bench ha`: publishers and durable subscribers that survive their brokers, and an exact account of
//! acknowledged messages that were never delivered. `engine` is the loop; `publisher` and `subscriber` are the
//! client's session state, without sockets; `checker` judges. Read [`checker::Checker`] first.
//!
//! **Invariant:** a client repeats a packet of a session with its original Packet Identifier.

mod checker;
mod connection;
mod engine;
mod message;
mod numbers;
mod plan;
mod publisher;
mod receive;
mod report;
mod run_result;
mod silence;
mod subscriber;

pub use plan::Options;

use crate::config::{Config, Identity, SetupError};
use crate::run::cleanup::cleanup;
use crate::{net, process};

/// Runs the checker. The exit code: 0 clean, 1 a violation, 2 the run could not start.
///
/// # Errors
/// The run could not start: no such host, too many clients, too few descriptors.
pub fn run(options: Options) -> Result<i32, SetupError> {
    let mixed = net::wall() ^ (u64::from(std::process::id()) << 32);
    let plan = options.plan((mixed ^ (mixed >> 32)) as u32)?;
    let needed = (plan.shape.publishers + plan.shape.subscribers) as u64 + 40;
    let limit = process::raise_nofile();
    if needed > limit {
        return Err(SetupError::TooManyFiles { needed, limit });
    }
    let run_result = engine::Engine::new(&plan).run();
    if !plan.keep_sessions {
        cleanup(&sessions(&plan));
    }
    let report = report::Report::new(&plan, &run_result);
    report.print(plan.json);
    Ok(report.exit_code())
}

/// The sessions to remove, in the form for the clean-up of other runs.
fn sessions(plan: &plan::Plan) -> Config {
    let mut cfg = Config::idle(0);
    cfg.session.version = plan.version;
    cfg.identity = Identity {
        user: plan.username.clone(),
        pass: plan.password.clone(),
        sub_prefix: plan.client_id('s', 0).trim_end_matches('0').to_owned(),
        pub_prefix: plan.client_id('p', 0).trim_end_matches('0').to_owned(),
        ..Identity::default()
    };
    cfg.network.pub_hosts = plan.hosts.clone();
    cfg.network.sub_hosts = plan.hosts.clone();
    cfg.traffic.n_sub = plan.shape.subscribers;
    cfg.traffic.n_pub = plan.shape.publishers;
    cfg
}
