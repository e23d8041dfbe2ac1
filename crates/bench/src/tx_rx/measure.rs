//! One measurement: the checker's flow with one publisher and one subscriber.

use super::figures::Figures;
use super::options::{Ends, Plan};
use crate::args::PubsubArgs;
use crate::config::{Config, Identity, LatencyFrom, SetupError};
use crate::net;
use crate::progress::print_status;
use crate::run::flow::{self, Flow};
use clap::Parser;
use serde_json::Value;

/// Options of the flow, all at their defaults.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    pubsub: PubsubArgs,
}

/// Runs a measurement. Returns the figures, or the reason why the broker could not be used.
///
/// # Errors
/// The run could not start.
pub fn run(plan: &Plan, ends: &Ends, size: usize, qos: u8) -> Result<Result<Figures, String>, SetupError> {
    print_status(plan.quiet, format_args!("{size} B, QoS {qos}, {ends}"));
    let mut args = Defaults::parse_from(["pubsub"]).pubsub;
    args.flow.warmup = 0.0;
    args.common.quiet = true;
    args.common.setup_timeout = 15.0;
    args.max_time = f64::from(plan.max_time);
    let run_id = net::now() as u16;
    let topic = format!("meridian-tx-rx/{:08x}{run_id:04x}", std::process::id());
    let mut cfg = Config::idle(run_id);
    cfg.session.version = plan.version;
    cfg.identity = Identity {
        user: plan.username.clone(),
        pass: plan.password.clone(),
        sub_prefix: format!("tx-rx-{:x}-{run_id:04x}-r", std::process::id()),
        pub_prefix: format!("tx-rx-{:x}-{run_id:04x}-t", std::process::id()),
        ..Identity::default()
    };
    cfg.network.pub_hosts = vec![ends.publisher];
    cfg.network.sub_hosts = vec![ends.subscriber];
    cfg.traffic.n_sub = 1;
    cfg.traffic.n_pub = 1;
    cfg.traffic.pub_topic = topic.clone();
    cfg.traffic.sub_topics = vec![topic];
    cfg.traffic.pub_qos = qos;
    cfg.traffic.sub_qos = qos;
    cfg.traffic.payload = size;
    cfg.sending.rate = f64::from(plan.rate);
    cfg.sending.window = plan.window;
    cfg.sending.messages = plan.messages(size);
    cfg.checks.latency_from = if plan.rate > 0 { LatencyFrom::Due } else { LatencyFrom::Send };
    cfg.checks.verify = true;
    let flow = Flow {
        name: "tx-rx",
        common: &args.common,
        args: &args.flow,
        cleanup: false,
        max_time: args.max_time,
    };
    let report = flow::run(flow, cfg)?.json;
    Ok(match report["error"].as_str() {
        Some(error) => Err(format!("{error}{}", reasons(&report["reasons"]))),
        None => Ok(Figures::of(&report, size)),
    })
}

fn reasons(reasons: &Value) -> String {
    let reasons = reasons.as_object().into_iter().flatten();
    reasons.map(|(reason, count)| format!("; {count} x {reason}")).collect()
}
