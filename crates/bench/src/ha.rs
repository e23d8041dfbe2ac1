//! `meridian bench ha`: publishers and durable subscribers that outlive their brokers, and an exact account of what was
//! acknowledged and never came. `engine` is the loop; `publisher` and `subscriber` are what a session remembers at the
//! client, without sockets; `checker` judges. Read [`checker::Checker`] first.
//!
//! **Invariant:** what a client repeats in one session has the Packet Identifier that it had.

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

use crate::config::SetupError;
use crate::run::cleanup::cleanup;
use crate::{net, process};

/// Does what the options say. The exit code: 0 clean, 1 something was violated, 2 nothing could begin.
///
/// # Errors
/// When the run could not begin: no such host, too many clients, too few descriptors.
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

/// The sessions that are to be removed, as the clean-up of other runs knows them.
fn sessions(plan: &plan::Plan) -> crate::config::Config {
    crate::config::Config {
        v5: plan.v5,
        user: plan.username.clone(),
        pass: plan.password.clone(),
        sub_prefix: plan.client_id('s', 0).trim_end_matches('0').to_owned(),
        pub_prefix: plan.client_id('p', 0).trim_end_matches('0').to_owned(),
        pub_hosts: plan.hosts.clone(),
        sub_hosts: plan.hosts.clone(),
        n_sub: plan.shape.subscribers,
        n_pub: plan.shape.publishers,
        ..crate::config::Config::idle(0)
    }
}
