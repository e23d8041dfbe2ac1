//! The result as one self-contained HTML file: charts, the summary, problems.

mod chart;

use std::time::{Duration, UNIX_EPOCH};

use super::Row;
use crate::latency::Hists;
use crate::plan::Output;
use crate::run::summary;
use chart::{Scale, Series, bars, lines};
use serde_json::Value;

/// The page.
pub fn page(report: &Value, rows: &[Row], output: &Output, hists: &Hists) -> String {
    let command = format!("meridian bench {}", quoted(&output.command));
    let title = format!("meridian bench {}", report["command"].as_str().unwrap_or_default());
    let mut body =
        format!("<h1>{}</h1>\n<pre class=\"command\">{}</pre>\n", escape(&title), escape(&command));
    body += &format!("<p class=\"when\">{}</p>\n", escape(&when(rows)));
    let problems = report["problems"].as_array().map_or(&[][..], Vec::as_slice);
    match problems.is_empty() {
        true => body += "<p class=\"good\">No problems were found.</p>\n",
        false => {
            body += "<section class=\"bad\"><h2>Problems</h2><ul>";
            for problem in problems.iter().filter_map(Value::as_str) {
                body += &format!("<li>{}</li>", escape(problem));
            }
            body += "</ul></section>\n";
        }
    }
    if report["generator"]["saturated"] == true {
        body += "<p class=\"warn\">The load generator needed more CPU than it had: it, not the \
             broker, may have been the limit.</p>\n";
    }
    body += "<section><h2>Summary</h2><table>";
    for (name, text) in summary::facts(report) {
        body += &format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(&name), escape(&text));
    }
    body += "</table></section>\n";
    for table in summary::tables(report) {
        let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
            cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
        };
        body += &format!("<section><h2>{}</h2><table class=\"figures\"><tr>", escape(&table.title));
        body += &cells("th", &mut table.columns.iter().copied());
        for row in &table.rows {
            body += "</tr><tr>";
            body += &cells("td", &mut row.iter().map(String::as_str));
        }
        body += "</tr></table></section>\n";
    }
    for figure in charts(rows, output, hists) {
        body += &figure;
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(&title)
    )
}

fn charts(rows: &[Row], output: &Output, hists: &Hists) -> Vec<String> {
    let at: Vec<f64> = rows.iter().map(|row| row.at).collect();
    let series = |name: &'static str, of: &dyn Fn(&Row) -> Option<f64>| Series {
        name: name.to_owned(),
        values: rows.iter().map(of).collect(),
    };
    let latency = |name, index: usize| series(name, &|row| row.latency.map(|ms| ms[index]));
    let mut figures = vec![];
    let mut rates = vec![];
    for (name, of) in [
        ("sent", &(|row: &Row| row.sent) as &dyn Fn(&Row) -> f64),
        ("acknowledged", &|row| row.acked),
        ("received", &|row| row.received),
    ] {
        if rows.iter().any(|row| of(row) > 0.0) {
            rates.push(series(name, &|row| Some(of(row))));
        }
    }
    if !rates.is_empty() {
        figures.push(lines("Messages a second", "/s", &at, &rates, Scale::Linear));
    }
    if rows.iter().any(|row| row.latency.is_some()) {
        let of = [latency("p50", 0), latency("p99", 2), latency("max", 4)];
        figures.push(lines(&format!("{} over time", timed(hists)), "ms", &at, &of, Scale::Log));
    }
    if let Some(h) = [&hists.e2e, &hists.ack, &hists.ready].into_iter().find(|h| !h.is_empty()) {
        figures.push(bars(&format!("{}: how often", timed(hists)), h));
    }
    figures.push(lines(
        "Connections",
        "",
        &at,
        &[
            series("connected", &|row| Some(row.connected as f64)),
            series("errors", &|row| Some(row.errors as f64)),
        ],
        Scale::Linear,
    ));
    if !output.broker_pid.is_empty() {
        let cores = [
            series("broker", &|row| row.broker.map(|(cores, _)| cores)),
            series("busiest thread of this tool", &|row| Some(row.demand)),
        ];
        figures.push(lines("CPU", "cores", &at, &cores, Scale::Linear));
        let memory = [series("broker", &|row| row.broker.map(|(_, rss)| rss as f64 / f64::from(1 << 20)))];
        figures.push(lines("Memory", "MiB", &at, &memory, Scale::Linear));
    }
    for (index, name) in output.broker_counter.iter().enumerate() {
        // The growth of a counter is informative, and the value of a gauge.
        let counter = name.ends_with("_total");
        let mut before: Option<f64> = None;
        let values = rows.iter().map(|row| {
            let now = row.figures.get(index).copied()?;
            let grown = before.replace(now).map(|before| now - before);
            if counter { grown } else { Some(now) }
        });
        let one = [Series { name: name.clone(), values: values.collect() }];
        let title =
            if counter { format!("Broker: {name}, growth between rows") } else { format!("Broker: {name}") };
        figures.push(lines(&title, "", &at, &one, Scale::Linear));
    }
    figures
}

/// Latency to draw: the first one that was measured.
fn timed(hists: &Hists) -> &'static str {
    match (hists.e2e.is_empty(), hists.ack.is_empty()) {
        (false, _) => "Latency from publisher to subscriber",
        (true, false) => "Latency of acknowledgements",
        (true, true) => "Latency of connecting",
    }
}

fn when(rows: &[Row]) -> String {
    match rows.first() {
        Some(row) => format!("{} UTC, version {}", utc(row.unix_ms / 1000), env!("CARGO_PKG_VERSION")),
        None => format!("Shorter than a second, version {}", env!("CARGO_PKG_VERSION")),
    }
}

/// Formats seconds since 1970 as `2026-11-21 09:30:00`.
fn utc(seconds: u64) -> String {
    // The end of the year 9999: later times have no text.
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799));
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', "")
}

/// Quotes words for a shell.
fn quoted(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_=./:,%@+*".contains(c))
    };
    let words = words.iter().map(|word| match plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Escapes text for HTML, including attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() && c != '\n' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

const STYLE: &str = "
:root{color-scheme:light dark;--page:#fafaf8;--card:#fff;--text:#1c1c1a;--soft:#5d5d58;--line:#deded8;--s0:#2563c4;--s1:#c2571a;--s2:#1d8a5b;
--bad:#b3261e;--bad-page:#fdecea;--warn-page:#fff4d6;--good:#1d6f43}
@media (prefers-color-scheme:dark){:root{--page:#161615;--card:#1f1f1e;--text:#ecece6;--soft:#a3a39b;--line:#3a3a37;--s0:#7aa8f5;--s1:#f0a063;
--s2:#5fcf9b;--bad:#ff8a80;--bad-page:#3a1b19;--warn-page:#3b3214;--good:#7fd6a4}}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:920px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:24px;margin:0 0 8px}h2,figcaption{font-size:16px;font-weight:600;margin:0 0 8px}
.command{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px 12px;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere;margin:0}
.when{color:var(--soft);margin:8px 0 16px}
section,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px;margin:0 0 16px}
.bad{border-color:var(--bad);background:var(--bad-page)}.bad h2{color:var(--bad)}.bad ul{margin:0;padding-left:20px}
.warn{background:var(--warn-page);border-radius:8px;padding:10px 16px}.good{color:var(--good)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:500;color:var(--soft);padding:3px 16px 3px 0;white-space:nowrap;vertical-align:top}td{padding:3px 0;overflow-wrap:anywhere}
.figures th,.figures td{text-align:right;padding:3px 0 3px 12px}.figures :is(th,td):first-child{text-align:left;padding-left:0}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:12px}
.grid{stroke:var(--line);stroke-width:1}.c0{stroke:var(--s0)}.c1{stroke:var(--s1)}.c2{stroke:var(--s2)}
.curve{fill:none;stroke-width:2;stroke-linejoin:round}.f0{fill:var(--s0)}.f1{fill:var(--s1)}.f2{fill:var(--s2)}
.bar{fill:var(--s0)}.bar:hover{fill:var(--s1)}.mark{stroke:var(--text);stroke-dasharray:4 3}.hit{fill:transparent}
";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(report: &Value, command: &[&str]) -> String {
        let rows: Vec<Row> = (1..=5)
            .map(|at| Row {
                at: f64::from(at),
                unix_ms: 1_700_000_000_000,
                sent: 100.0,
                latency: Some([0.1, 0.2, 0.3, 0.4, f64::from(at)]),
                ..Row::default()
            })
            .collect();
        let mut hists = Hists::new();
        for ms in 1..100 {
            crate::latency::record(&mut hists.e2e, ms * 100_000);
        }
        let output =
            Output { command: command.iter().map(|word| (*word).to_owned()).collect(), ..Output::default() };
        page(report, &rows, &output, &hists)
    }

    #[test]
    fn the_page_is_self_contained_and_complete() {
        let report =
            json!({ "command": "pub", "problems": ["<b> & co"], "generator": { "saturated": true } });
        let page = of(&report, &["pub", "-t", "a b/<script>"]);
        for part in [
            "&lt;b&gt; &amp; co",
            "pub -t 'a b/&lt;script&gt;'",
            "Messages a second",
            "how often",
            "may have been the limit",
            "2023-11-14 22:13:20 UTC",
            "prefers-color-scheme:dark",
        ] {
            assert!(page.contains(part), "no {part}");
        }
        for part in ["<script", "http://", "https://", "url(", "src=", "NaN", "inf"] {
            assert!(!page.contains(part), "{part}");
        }
    }

    #[test]
    fn a_run_shorter_than_a_second_has_a_page_too() {
        let text = page(&json!({ "command": "conn" }), &[], &Output::default(), &Hists::new());
        assert!(text.contains("No problems") && !text.contains("NaN"));
    }

    #[test]
    fn days_match_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (4_102_444_799, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
