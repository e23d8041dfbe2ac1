//! `pubsub` of the familiar command line: the checker's flow, which knows every message, with that line's options.

use super::*;
use crate::args::PubsubArgs;
use crate::plan::Plan;
use crate::run::summary;
use clap::Parser;
use serde_json::json;

/// The flow's own options, all at their defaults.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    pubsub: PubsubArgs,
}

/// How long it publishes when nothing else ends it, in seconds.
const DURATION: f64 = 10.0;

/// Subscribers connect and subscribe, publishers connect, then publishing begins. Prints the result and returns the
/// exit code.
///
/// # Errors
/// When nothing could begin.
pub fn run(plan: &Plan) -> Result<i32, SetupError> {
    let mut args = Defaults::parse_from(["pubsub"]).pubsub;
    let seconds = plan.output.duration.map(|duration| duration.as_secs_f64());
    args.flow.duration = seconds.unwrap_or(DURATION);
    args.flow.warmup = 0.0;
    args.common.quiet = plan.output.quiet;
    args.max_time = seconds.unwrap_or(args.max_time);
    let cfg = config(plan)?;
    let rss_before = process::stat(std::process::id(), false).rss;
    let clients = (cfg.n_pub + cfg.n_sub) as u64;
    let flow = flow::Flow {
        name: "pubsub",
        common: &args.common,
        args: &args.flow,
        cleanup: false,
        max_time: args.max_time,
    };
    let done = flow::run(flow, cfg)?;
    let rss = process::stat(std::process::id(), false).rss.saturating_sub(rss_before);
    summary::print(&report(plan, &done.json, clients, rss), plan.output.json);
    Ok(if done.exit_code == 0 && done.json["disconnects"] != 0 { 1 } else { done.exit_code })
}

/// Every publisher has the subscriber of its own number, or, without a number in the topic, all of them.
pub(crate) fn config(plan: &Plan) -> Result<Config, SetupError> {
    let each = plan.topics.iter().any(|topic| ["%i", "%c"].iter().any(|name| topic.contains(name)));
    let mut cfg = plan.config()?;
    let per_s = match plan.interval.as_secs_f64() {
        0.0 => 0.0,
        seconds => plan.count as f64 / seconds,
    };
    // One Client Identifier for both ends is what %c in their topic means; the sessions need two.
    let expand = |topic: &String| {
        topic
            .replace(
                "%c",
                &if plan.client_id.contains("%i") {
                    plan.client_id.clone()
                } else {
                    plan.client_id.clone() + "%i"
                },
            )
            .replace("%u", plan.username.as_deref().unwrap_or(""))
    };
    cfg.plain = None;
    cfg.n_sub = plan.count;
    cfg.n_pub = plan.count;
    cfg.pub_topic = plan.topics.first().map(expand).unwrap_or_default();
    cfg.sub_topics = vec![cfg.pub_topic.clone()];
    cfg.topology = if each { crate::topology::Topology::OneToOne } else { crate::topology::Topology::All };
    cfg.sub_prefix = format!("{}s", plan.client_id);
    cfg.pub_prefix = format!("{}p", plan.client_id);
    cfg.payload = plan.size.max(crate::tag::LONG);
    cfg.rate = per_s;
    cfg.window = plan.inflight;
    cfg.verify = true;
    cfg.connect_retries = plan.connect_retries;
    cfg.reconnects = 0;
    Ok(cfg)
}

fn report(plan: &Plan, j: &Value, clients: u64, rss: u64) -> Value {
    let failed_setup = j.get("error").is_some();
    let connected = match failed_setup {
        true => j["ready_subs"].as_u64().unwrap_or(0) + j["ready_pubs"].as_u64().unwrap_or(0),
        false => clients,
    };
    let mut problems: Vec<Value> = j["violations"].as_array().cloned().unwrap_or_default();
    if failed_setup {
        problems.push(json!("not all clients could connect and subscribe: nothing was published"));
    }
    if let Some(count) = j["disconnects"].as_u64().filter(|count| *count > 0) {
        problems.push(json!(format!("{count} connections ended before their time")));
    }
    json!({
        "command": "pubsub", "hosts": plan.hosts, "version": if plan.v5 { 5 } else { 4 },
        "seconds": j["window_s"], "interrupted": j["interrupted"], "clients": clients, "connected": connected,
        "failed": j["failed"], "up_at_end": connected.saturating_sub(j["disconnects"].as_u64().unwrap_or(0)),
        "disconnects": j["disconnects"], "reasons": j["reasons"], "ready_s": Value::Null, "qos": plan.qos,
        "payload": j["payload"],
        "sent": j["totals"]["sent"], "sent_per_s": j["sent_per_s"], "acked": j["totals"]["acked"],
        "rejected": j["totals"]["rejected"], "unacked": j["totals"]["unacked_at_end"],
        "overdue": j["totals"]["unsent_backlog"], "received": j["totals"]["received"],
        "received_per_s": j["received_per_s"], "ack_us": j["ack_us"], "send_lag_us": j["send_lag_us"],
        "latency_us": j["latency_us"],
        "loss_known": !failed_setup, "lost": j["lost"], "lost_acked": j["lost_acked"],
        "duplicated": j["duplicated"], "out_of_order": j["out_of_order"],
        "generator": {
            "cpu_s": j["cpu"]["generator_s"], "cores": j["cpu"]["generator_cores"],
            "us_per_message": j["cpu"]["generator_us_per_delivery"],
            "bytes_per_connection": rss / clients.max(1), "saturated": j["cpu"]["generator_saturated"],
        },
        "problems": problems,
    })
}
