//! The result as text: parameters, results, problems.

use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;

/// Prints the report on standard output, as text or as one JSON object.
pub fn print(report: &Value, json: bool) {
    let text = if json { format!("{report}\n") } else { text(report) };
    // A closed standard output does not change the result, which is also the exit code.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints lines on standard output.
pub fn print_lines(lines: &[String]) {
    // A closed standard output is no failure.
    let _ = std::io::stdout().write_all((lines.join("\n") + "\n").as_bytes());
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn text(report: &Value) -> String {
    let mut out = String::new();
    for (name, text) in facts(report) {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{name:<12}{text}");
    }
    for table in tables(report) {
        table.write(&mut out);
    }
    for problem in words(&report["problems"]) {
        let _ = writeln!(out, "{:<12}{problem}", "PROBLEM");
    }
    out
}

/// A table of several results.
pub struct Table {
    pub title: String,
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Tables of a scenario's groups, each by stage.
pub fn tables(r: &Value) -> Vec<Table> {
    let each = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let figure = |value: &Value| if value.is_null() { "-".to_owned() } else { value.to_string() };
    let ms = |value: &Value| value.as_f64().map_or("-".to_owned(), |us| format!("{:.3}", us / 1000.0));
    let table = |group: Value| {
        let rows = each(&group["stages"]).into_iter().map(|stage| {
            let timed =
                if stage["latency_us"]["p50"].is_null() { &stage["ack_us"] } else { &stage["latency_us"] };
            vec![
                text(&stage["stage"]),
                figure(&stage["connected"]),
                figure(&stage["asked_per_s"]),
                figure(&stage["sent_per_s"]),
                figure(&stage["received_per_s"]),
                ms(&timed["p50"]),
                ms(&timed["p99"]),
                ms(&timed["max"]),
                figure(&stage["errors"]),
            ]
        });
        Table {
            title: format!(
                "{} ({} of {} clients)",
                text(&group["group"]),
                group["connected"],
                group["clients"]
            ),
            columns: vec![
                "stage",
                "up",
                "asked/s",
                "sent/s",
                "received/s",
                "p50 ms",
                "p99 ms",
                "max ms",
                "errors",
            ],
            rows: rows.collect(),
        }
    };
    each(&r["groups"]).into_iter().map(table).collect()
}

impl Table {
    fn write(&self, out: &mut String) {
        let cells = |index: usize| self.rows.iter().map(move |row| row[index].chars().count());
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| cells(index).chain([self.columns[index].len()]).max().unwrap_or(0))
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).enumerate().map(|(index, (cell, width))| match index {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            });
            // Writing to a String does not fail.
            let _ = writeln!(out, "  {}", cells.collect::<String>().trim_end());
        };
        line(&mut std::iter::once(self.title.as_str()));
        line(&mut self.columns.iter().copied());
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str));
        }
    }
}

/// Results by name, without the problems.
pub fn facts(r: &Value) -> Vec<(String, String)> {
    let mut facts = vec![];
    let mut line = |name: &str, text: String| facts.push((name.to_owned(), text));
    let n = |path: &str| number(r, path);
    line(
        r["command"].as_str().unwrap_or(""),
        format!("{} s on {}", r["seconds"], words(&r["hosts"]).join(",")),
    );
    let took = r["ready_s"].as_f64().map_or(String::new(), |seconds| format!(" in {seconds} s"));
    line(
        "connected",
        format!("{} of {} clients{took}, {} up at the end", n("/connected"), n("/clients"), n("/up_at_end")),
    );
    for (name, key) in [("tcp", "tcp_us"), ("connack", "connack_us"), ("suback", "suback_us")] {
        latency(&mut line, name, &r[key]);
    }
    if n("/sent") > 0 {
        let acked = if n("/qos") > 0 { format!(", {} acknowledged", n("/acked")) } else { String::new() };
        let again = match n("/resent") {
            0 => String::new(),
            count => format!(", {count} sent again"),
        };
        line("sent", format!("{} messages, {}/s{acked}{again}", n("/sent"), r["sent_per_s"]));
    }
    latency(&mut line, "ack", &r["ack_us"]);
    latency(&mut line, "send lag", &r["send_lag_us"]);
    if n("/overdue") > 0 {
        line("overdue", format!("{} messages were due and could not be sent", n("/overdue")));
    }
    if n("/received") > 0 {
        line("received", format!("{} messages, {}/s", n("/received"), r["received_per_s"]));
    }
    latency(&mut line, "latency", &r["latency_us"]);
    if n("/untracked") > 0 {
        line(
            "counters",
            format!("{} messages of streams beyond the first million not checked", n("/untracked")),
        );
    }
    if r["loss_known"] == true {
        line(
            "checked",
            format!("{} lost, {} twice, {} out of order", n("/lost"), n("/duplicated"), n("/out_of_order")),
        );
    }
    let g = &r["generator"];
    let cost = match g["us_per_message"].as_f64() {
        Some(us) => format!(", {us} us of CPU a message"),
        None => String::new(),
    };
    // With few clients the quotient would mostly be the fixed cost of the process.
    let with = match n("/generator/processes") {
        2.. => format!(" in {} processes", n("/generator/processes")),
        _ => String::new(),
    };
    let memory = match n("/clients") {
        1000.. => format!(", {} bytes a connection", number(g, "/bytes_per_connection")),
        _ => String::new(),
    };
    line("this tool", format!("{} cores{with}{cost}{memory}", g["cores"]));
    if g["saturated"] == true {
        line(
            "warning",
            "this tool used all of its cores: it, not the broker, may have been the limit (--threads)".into(),
        );
    }
    broker(&mut line, &r["broker"]);
    if let Some(reasons) = r["reasons"].as_object() {
        for (reason, count) in reasons {
            line("reason", format!("{count} x {reason}{}", advice(reason)));
        }
    }
    facts
}

/// Adds the resources of the broker, when they were measured.
fn broker(line: &mut impl FnMut(&str, String), b: &Value) {
    let mib = |key: &str| format!("{:.1}", b[key].as_f64().unwrap_or(0.0) / f64::from(1 << 20));
    if !b["cpu_s"].is_null() {
        let (before, after, peak) = (mib("rss_before"), mib("rss_after"), mib("rss_peak"));
        line(
            "broker",
            format!("{} s of CPU, memory {before} MiB before, {after} after, {peak} at most", b["cpu_s"]),
        );
    }
    for (name, figure) in b["figures"].as_object().into_iter().flatten() {
        line(
            "broker",
            format!(
                "{name}: {}, grown by {}",
                figure["last"].as_f64().unwrap_or(0.0),
                figure["grown"].as_f64().unwrap_or(0.0)
            ),
        );
    }
    if number(b, "/figures_failed") > 0 {
        line("broker", format!("did not report its figures {} times", number(b, "/figures_failed")));
    }
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn latency(line: &mut impl FnMut(&str, String), name: &str, l: &Value) {
    if number(l, "/count") == 0 {
        return;
    }
    let ms = |key: &str| format!("{:.3}", l[key].as_f64().unwrap_or(0.0) / 1000.0);
    line(
        name,
        format!(
            "ms: p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
            ms("p50"),
            ms("p90"),
            ms("p99"),
            ms("p999"),
            ms("max")
        ),
    );
}

/// Advice on a failure that the broker is not responsible for.
fn advice(reason: &str) -> &'static str {
    match reason.rsplit(' ').next() {
        Some("EADDRNOTAVAIL") => " (no port is left on this address: give more with --ifaddr)",
        Some("EMFILE") => " (too few descriptors: raise `ulimit -n`)",
        Some("ECONNREFUSED") => " (no process listens there: check -h and -p)",
        Some("EHOSTUNREACH" | "ENETUNREACH") => " (no route to that host: check -h)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_summary_has_percentiles_reasons_and_problems() {
        let text = text(&json!({
            "command": "sub", "seconds": 2.5, "hosts": ["localhost:1883"], "clients": 2, "connected": 1, "up_at_end": 1,
            "ready_s": 0.1, "received": 10, "received_per_s": 4.0,
            "latency_us": { "count": 10, "p50": 1500.0, "p90": 2000.0, "p99": 3000.0, "p999": 3000.0, "max": 3000.0 },
            "reasons": { "tcp connect: ECONNREFUSED": 1 }, "problems": ["1 clients could not connect"],
            "generator": { "cores": 0.1, "us_per_message": 3.0, "bytes_per_connection": 900, "saturated": true },
        }));
        for part in [
            "1 of 2 clients",
            "10 messages, 4.0/s",
            "p50 1.500  p90 2.000",
            "1 x tcp connect: ECONNREFUSED (no process listens there: check -h and -p)",
            "PROBLEM     1 clients could not connect",
            "3 us of CPU a message",
            "this tool used all of its cores",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
        assert!(!text.contains("sent"), "{text}");
    }
}
