//! `conn`, `sub`, `pub` and `pubsub` of emqtt-bench and MQTTX, in one process or several, from the plan to the exit
//! code.

use super::done::Done;
use super::drive::{Host, drive};
use super::*;
use crate::live::{Live, Scene, Tick, page};
use crate::plan::{Kind, Message, Output, Plan};
use crate::report::{lat, reasons_json, round};
use crate::run::{processes, summary};
use serde_json::json;

/// The screen of this process.
struct Screen<'a>(&'a mut Live);

impl Host for Screen<'_> {
    fn tick(&mut self, tick: Tick) {
        self.0.tick(&tick);
    }

    fn may_publish(&mut self) -> bool {
        true
    }

    fn stop(&mut self) -> bool {
        interrupted()
    }
}

/// Runs, prints the result, writes the page and returns the exit code.
///
/// # Errors
/// The run could not start.
pub fn run(plan: &Plan) -> Result<i32, SetupError> {
    let split = plan.output.processes.min(plan.clients.count);
    let away = !plan.output.agents.agents.is_empty();
    if (split > 1 || away) && plan.kind == Kind::Pubsub && !pairs::is_paired(plan) {
        return Err(SetupError::Indivisible);
    }
    let mut live = Live::new(Scene::of(plan), &plan.output)?;
    let mut done = match split {
        0 | 1 if !away => drive(plan, &mut Screen(&mut live))?,
        _ => {
            let (members, _children) = processes::gather(std::slice::from_ref(plan), &plan.output, split)?;
            let mut done = members.run_until_done(&mut live, &mut |_, _, _| {})?;
            done.pop().unwrap_or_else(Done::nothing)
        }
    };
    done.problems.extend(live.end());
    let (report, code) = report(&About::of(plan), &done, &mut live);
    summary::print(&report, plan.output.json);
    if let Some(path) = &plan.output.html {
        let text = page::page(&report, &live.rows, &plan.output, &done.hists);
        std::fs::write(path, text).map_err(|error| SetupError::file(path, &error))?;
    }
    Ok(code)
}

/// Parameters of a command for its report.
pub struct About<'a> {
    pub command: &'a str,
    pub hosts: &'a [String],
    /// Protocol version; 0 when there are several.
    pub version: u8,
    pub output: &'a Output,
    /// The highest QoS of the publishers.
    pub qos: u8,
    pub payload: Option<usize>,
    /// True when every message is both sent and received here.
    pub received_is_sent: bool,
    /// True when messages contain the time at which they were due.
    pub timed: bool,
    pub limit: u64,
}

impl<'a> About<'a> {
    fn of(plan: &'a Plan) -> About<'a> {
        let checked = plan.kind == Kind::Pubsub;
        About {
            command: plan.kind.name(),
            hosts: &plan.target.hosts,
            version: plan.session.version,
            output: &plan.output,
            qos: plan.messages.qos,
            payload: payload(plan),
            received_is_sent: checked,
            timed: plan.messages.headers.has_time() && plan.kind == Kind::Sub || checked,
            limit: plan.schedule.limit,
        }
    }
}

/// The report and the exit code.
pub fn report(about: &About, done: &Done, live: &mut Live) -> (Value, i32) {
    let c = &done.counts;
    let ready = c.ready_subs + c.ready_pubs;
    let brokers = live.brokers();
    let problems = problems(about.limit, done, &brokers);
    let code = match (ready, problems.is_empty()) {
        (0, _) if !(done.interrupted && c.failed == 0) => 2,
        _ if done.aborted => 2,
        (_, true) => 0,
        _ => 1,
    };
    let checked = done.checked.as_ref();
    let messages = if about.received_is_sent { c.recv } else { c.sent + c.recv };
    let flow = done.flow_s.max(0.001);
    let cores = done.cpu_s / flow;
    let (short, seconds) = live.short_of_cpu;
    let saturated = cores > 0.9 * done.threads as f64 || seconds >= 2 && short * 4 >= seconds;
    let json = json!({
        "command": about.command, "hosts": about.hosts, "version": about.version,
        "command_line": about.output.command,
        "seconds": round(done.seconds, 3), "interrupted": done.interrupted,
        "clients": done.clients, "connected": ready, "failed": c.failed, "up_at_end": done.last.up,
        "attempts_failed": c.attempts_failed, "disconnects": c.disconnects, "reconnects": c.reconnects,
        "reasons": reasons_json(&done.reasons),
        "ready_s": round(done.ready_s, 4),
        "tcp_us": lat(&done.hists.tcp), "connack_us": lat(&done.hists.connack), "suback_us": lat(&done.hists.suback), "ready_us": lat(&done.hists.ready),
        "qos": about.qos, "payload": about.payload,
        "sent": c.sent, "sent_per_s": round(done.sent_per_s, 1), "acked": c.acked, "rejected": c.rejected,
        "resent": c.resent + c.pubrel_resent, "unacked": done.last.unacked, "overdue": done.last.backlog, "no_subscribers": c.no_subscribers,
        "ack_us": lat(&done.hists.ack), "send_lag_us": lat(&done.hists.lag),
        "received": c.recv, "received_per_s": round(done.received_per_s, 1), "received_bytes": c.recv_bytes,
        "latency_us": if about.timed { lat(&done.hists.e2e) } else { Value::Null },
        "missing": c.gaps, "not_increasing": c.not_increasing, "untracked": c.untracked,
        "no_header": c.no_header,
        "loss_known": checked.is_some(), "lost": checked.map(|v| v.lost), "lost_acked": checked.map(|v| v.lost_acked),
        "duplicated": checked.map(|v| v.duplicated), "out_of_order": checked.map(|v| v.out_of_order),
        "generator": {
            "cpu_s": round(done.cpu_s, 3), "cores": round(cores, 3), "threads": done.threads,
            "processes": done.processes,
            "us_per_message": if messages > 0 { json!(round(done.cpu_s * 1e6 / messages as f64, 3)) } else { Value::Null },
            "bytes_per_connection": done.rss / done.clients.max(1),
            "saturated": saturated, "seconds_short_of_cpu": short,
        },
        "broker": brokers,
        "timeline_columns": ["s", "connected", "sent/s", "acked/s", "received/s", "p50 ms", "p99 ms", "errors"],
        "timeline": live.timeline(),
        "problems": problems,
    });
    (json, code)
}

/// Payload size in bytes, when all clients have the same.
fn payload(plan: &Plan) -> Option<usize> {
    match &plan.messages.message {
        Some(Message::Fixed(message)) => Some(message.len() + plan.messages.headers.len()),
        Some(Message::Generated(_)) => None,
        None if plan.kind == Kind::Pubsub => Some(plan.messages.size.max(crate::tag::LONG)),
        None => Some(plan.messages.size),
    }
}

fn problems(limit: u64, done: &Done, brokers: &Value) -> Vec<String> {
    let (c, last) = (&done.counts, &done.last);
    let mut problems = done.problems.clone();
    let mut problem = |count: u64, what: &str| {
        if count > 0 {
            problems.push(format!("{count} {what}"));
        }
    };
    problem(c.failed, "clients could not connect or subscribe");
    problem(c.disconnects, "connections ended before their time");
    problem(c.rejected, "messages refused by the broker");
    problem(last.unacked, "messages not acknowledged");
    problem(c.gaps, "messages missing, by their counters");
    problem(c.not_increasing, "messages twice or out of order, by their counters");
    problem(c.no_header, "messages too short for the headers of --payload-hdrs");
    problem(c.qos_downgraded, "subscriptions granted at a lower QoS");
    if done.checked.is_none() {
        problem(c.bad_acks, "unexpected acknowledgements");
    }
    if limit > 0 && !done.interrupted {
        problem(limit.saturating_sub(c.sent), "messages of --limit not sent");
    }
    if let Some(checked) = &done.checked {
        problems.extend(checked.violations.iter().cloned());
    }
    if done.aborted {
        problems.push("not all clients could connect and subscribe: nothing was published".to_owned());
    }
    if done.deserted && c.ready_subs + c.ready_pubs > 0 {
        problems.push(format!(
            "the broker is gone: no connection was left after {:.1} s; the counts until then are \
                 above",
            done.seconds
        ));
    }
    for pid in brokers["died"].as_array().into_iter().flatten() {
        problems.push(format!("the broker's process {pid} has ended"));
    }
    problems
}
