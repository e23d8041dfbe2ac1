//! The verdict, and its presentation.

use super::plan::Plan;
use super::run_result::RunResult;
use crate::report::{lat, reasons_json, round};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;

/// Summary of a run.
pub struct Report {
    json: Value,
    exit_code: i32,
}

impl Report {
    pub fn new(plan: &Plan, run_result: &RunResult) -> Report {
        let violations = violations(run_result);
        let exit_code = match (&run_result.never_began, violations.is_empty()) {
            (Some(_), _) => 2,
            (None, true) => 0,
            (None, false) => 1,
        };
        Report { json: json(plan, run_result, &violations), exit_code }
    }

    /// Exit code: 0 clean, 1 a violation, 2 the run could not start.
    pub fn exit_code(&self) -> i32 {
        self.exit_code
    }

    /// Prints the report to standard output, as one JSON object or as text.
    pub fn print(&self, json: bool) {
        let text = if json { format!("{}\n", self.json) } else { text(&self.json) };
        // A closed standard output does not change the verdict, which is also the exit code.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

/// Violations of a broker, and circumstances that prevent a verdict.
fn violations(run_result: &RunResult) -> Vec<String> {
    let (tally, counts) = (run_result.checker.tally(), run_result.counts);
    if run_result.never_began.is_some() {
        return vec![];
    }
    let mut violations: Vec<String> = [
        (run_result.lost, "acknowledged messages LOST: a subscriber that should have them never got them"),
        (tally.duplicated[1], "duplicates at QoS 2"),
        (tally.out_of_order, "messages out of order"),
        (counts.lost_publishers, "publishers' sessions lost by the broker"),
        (counts.lost_subscribers, "subscribers' sessions lost by the broker"),
        (tally.phantom, "deliveries of messages that were not sent to that subscriber"),
        (counts.foreign, "deliveries of messages of others"),
        (counts.corrupt, "corrupt payloads"),
        (counts.changed, "deliveries with another topic or QoS than they were sent with, or with RETAIN"),
        (counts.unexpected, "deliveries to clients that had not subscribed"),
        (counts.protocol_errors, "protocol errors of the broker"),
        (run_result.unacknowledged, "messages never acknowledged, although there was time to"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if run_result.up == 0 {
        let since = run_result.away_since.map_or(String::new(), |ns| format!(" in {:.1} s", ns as f64 / 1e9));
        violations.push(format!("the broker never came back{since}: no client was connected at the end"));
    } else if run_result.up < run_result.clients {
        violations.push(format!(
            "{} of {} clients were not connected at the end",
            run_result.clients - run_result.up,
            run_result.clients
        ));
    }
    if tally.acknowledged == 0 {
        violations.push("nothing was acknowledged, so nothing was proven".to_owned());
    }
    violations.extend(run_result.ended_early.filter(|why| *why != "interrupted").map(str::to_owned));
    violations
}

fn json(plan: &Plan, run_result: &RunResult, violations: &[String]) -> Value {
    let (tally, counts) = (run_result.checker.tally(), run_result.counts);
    let ms = |ns: u64| round(ns as f64 / 1e6, 1);
    let seconds = |ns: u64| round(ns as f64 / 1e9, 3);
    let (silence, silence_at) = run_result.silence;
    let (silence_of_one, silence_of_one_at, silent) = run_result.silence_of_one;
    let losses = run_result.losses.iter().map(|loss| {
        json!({
            "publisher": loss.publisher, "qos": loss.qos, "subscriber": loss.subscriber, "lost": loss.lost,
            "numbers": loss.samples,
        })
    });
    let events = run_result.events.iter().map(|event| json!([seconds(event.at), event.client, event.what]));
    json!({
        "command": "ha", "hosts": plan.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "version": plan.version.number(), "publishers": plan.shape.publishers, "subscribers": plan.shape.subscribers,
        "qos": plan.shape.lanes, "topology": if plan.shape.dealt { "dealt" } else { "all" }, "rate_asked": plan.rate,
        "size": plan.size.max(super::message::HEADER), "window": plan.window,
        "error": run_result.never_began, "ended_early": run_result.ended_early,
        "seconds": seconds(run_result.published_for), "drain_s": seconds(run_result.drained_for),
        "sent": tally.sent, "unsent": run_result.unsent, "acknowledged": tally.acknowledged,
        "unacknowledged": run_result.unacknowledged, "refused": tally.refused, "delivered": tally.delivered,
        "acknowledged_per_s": round(tally.acknowledged as f64 / (run_result.published_for.max(1) as f64 / 1e9), 1),
        "lost": run_result.lost, "losses": losses.collect::<Vec<_>>(),
        "duplicated_qos1": tally.duplicated[0], "duplicated_qos2": tally.duplicated[1],
        "repeated_after_lost_session": tally.repeated, "out_of_order": tally.out_of_order,
        "sessions_lost": { "publishers": counts.lost_publishers, "subscribers": counts.lost_subscribers },
        "sessions_resumed": counts.resumed,
        "longest_silence_ms": ms(silence), "longest_silence_began_s": seconds(silence_at),
        "longest_silence_of_one_ms": ms(silence_of_one), "longest_silence_of_one_began_s": seconds(silence_of_one_at),
        "longest_silence_of": silent,
        "disconnects": counts.disconnects, "reconnects": counts.reconnects, "failed_attempts": counts.failed_attempts,
        "reconnect_us": lat(&run_result.reconnect), "latency_us": lat(&run_result.latency),
        "resent": run_result.resent, "resent_pubrels": run_result.releases_resent, "qos2_repetitions_hidden": run_result.hidden,
        "unexpected_acknowledgements": run_result.unexpected_acks, "pings": counts.pings,
        "phantom": tally.phantom, "foreign": counts.foreign, "corrupt": counts.corrupt, "changed": counts.changed,
        "unexpected": counts.unexpected, "protocol_errors": counts.protocol_errors,
        "session_expiry_granted": run_result.expiry, "session_expiry_asked": if plan.version.is_5() { Some(plan.expiry) } else { None },
        "clients": run_result.clients, "up_at_end": run_result.up, "reasons": reasons_json(&run_result.reasons),
        "events": events.collect::<Vec<_>>(), "violations": violations,
    })
}

fn text(r: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<14}{text}");
    };
    let words = |list: &Value, between: &str| {
        let words = list.as_array().into_iter().flatten();
        let words = words.map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned));
        words.collect::<Vec<_>>().join(between)
    };
    line(
        "ha",
        format!(
            "{} publishers and {} subscribers, QoS {}, {} s on {}",
            r["publishers"],
            r["subscribers"],
            words(&r["qos"], " and "),
            r["seconds"],
            words(&r["hosts"], ",")
        ),
    );
    if let Some(error) = r["error"].as_str() {
        line("ERROR", format!("nothing was measured: {error}"));
        return out;
    }
    line("sent", format!("{} messages, {} due and never sent", r["sent"], r["unsent"]));
    line(
        "acknowledged",
        format!(
            "{} ({}/s), {} never, {} refused",
            r["acknowledged"], r["acknowledged_per_s"], r["unacknowledged"], r["refused"]
        ),
    );
    line("delivered", format!("{} first deliveries", r["delivered"]));
    line("LOST", format!("{} acknowledged and never delivered", r["lost"]));
    for loss in r["losses"].as_array().into_iter().flatten().take(5) {
        line(
            "",
            format!(
                "publisher {} QoS {} to subscriber {}: {} lost, the first {}",
                loss["publisher"],
                loss["qos"],
                loss["subscriber"],
                loss["lost"],
                words(&loss["numbers"], ", ")
            ),
        );
    }
    line(
        "duplicated",
        format!(
            "{} at QoS 1 (allowed), {} at QoS 2{}",
            r["duplicated_qos1"],
            r["duplicated_qos2"],
            match r["repeated_after_lost_session"].as_u64() {
                Some(0) | None => String::new(),
                Some(count) => format!(", {count} because a publisher's session was lost"),
            }
        ),
    );
    line("out of order", r["out_of_order"].to_string());
    line(
        "silence",
        format!(
            "longest {} ms, from {} s on; of one subscriber ({}) {} ms",
            r["longest_silence_ms"],
            r["longest_silence_began_s"],
            r["longest_silence_of"],
            r["longest_silence_of_one_ms"]
        ),
    );
    line(
        "connections",
        format!(
            "{} ended, {} were reopened, {} attempts failed; {} of {} up at the end",
            r["disconnects"], r["reconnects"], r["failed_attempts"], r["up_at_end"], r["clients"]
        ),
    );
    line(
        "sessions",
        format!(
            "{} resumed, {} publishers' and {} subscribers' lost",
            r["sessions_resumed"], r["sessions_lost"]["publishers"], r["sessions_lost"]["subscribers"]
        ),
    );
    line("sent again", format!("{} PUBLISH, {} PUBREL", r["resent"], r["resent_pubrels"]));
    for (name, key) in [("latency", "latency_us"), ("reconnect", "reconnect_us")] {
        let l = &r[key];
        if l["count"].as_u64().unwrap_or(0) > 0 {
            let ms = |key: &str| format!("{:.3}", l[key].as_f64().unwrap_or(0.0) / 1000.0);
            line(name, format!("ms: p50 {}  p99 {}  max {}", ms("p50"), ms("p99"), ms("max")));
        }
    }
    if let Some(expiry) = r["session_expiry_granted"].as_u64() {
        line(
            "note",
            format!(
                "the broker keeps sessions for {expiry} s only, {} were asked for",
                r["session_expiry_asked"]
            ),
        );
    }
    for (reason, count) in r["reasons"].as_object().into_iter().flatten() {
        line("reason", format!("{count} x {reason}"));
    }
    let violations = r["violations"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let violations: Vec<&str> = violations.collect();
    for violation in &violations {
        line("VIOLATION", (*violation).to_owned());
    }
    if violations.is_empty() {
        line("verdict", "clean: nothing acknowledged is missing".to_owned());
    }
    out
}
