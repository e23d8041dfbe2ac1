//! Reports of a run: the result, the rows, the page, figures for Prometheus.

use crate::node::{Directory, Node, Running, bench, report, run, stderr};
use std::io::{Read, Write};
use std::net::TcpStream;

#[test]
fn a_run_leaves_a_result_rows_and_a_page() {
    let (node, directory) = (Node::start(), Directory::new("reports"));
    let (csv, html) = (directory.path("run.csv"), directory.path("run.html"));
    let output = run(&format!(
        "pubsub -h {} -c 10 -i 0 -I 10 -t p/%i -q 1 --duration 2.5 --json -P secret -u u --csv {csv} --html {html} \
         --broker-pid {} --broker-metrics {}/metrics",
        node.address,
        node.pid(),
        node.http
    ));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!((&report["lost"], &report["connected"]), (&0.into(), &20.into()));
    let sent = report["sent"].as_u64().unwrap();
    assert!(sent > 0 && report["received"] == sent, "{report}");
    let seen = &report["broker"]["figures"]["meridian_messages_received_total"]["grown"];
    assert_eq!(seen.as_f64(), Some(sent as f64), "the broker's own count");
    assert!(report["broker"]["rss_after"].as_u64().unwrap() > 0);

    let rows = directory.read("run.csv");
    let columns = rows.lines().next().unwrap().split(',').count();
    assert!(rows.lines().count() >= 3, "a row a second:\n{rows}");
    assert!(rows.lines().all(|row| row.split(',').count() == columns), "{rows}");
    let place = rows.lines().next().unwrap().split(',').position(|name| name == "connected").unwrap();
    assert!(rows.lines().skip(1).all(|row| row.split(',').nth(place) == Some("20")), "{rows}");

    let page = directory.read("run.html");
    for part in ["<svg", "Messages a second", "No problems were found", "Memory", "-P ***"] {
        assert!(page.contains(part), "no {part}");
    }
    assert!(!page.contains("secret") && !page.contains("src="));
}

/// Two processes are one run: numbers, limits and latencies are merged.
#[test]
fn processes_share_a_run() {
    let node = Node::start();
    let output = run(&format!(
        "pubsub -h {} -c 9 -i 0 -I 0 -t p/%i -q 1 -L 1000 --processes 2 --json --quiet",
        node.address
    ));
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report}\n{}", stderr(&output));
    for (name, count) in [("clients", 18), ("connected", 18), ("sent", 1000), ("received", 1000), ("lost", 0)]
    {
        assert_eq!(report[name], count, "{name}: {report}");
    }
    assert_eq!(report["latency_us"]["count"], 1000, "every latency of both is in the histogram");
    assert_eq!(report["generator"]["processes"], 2);
    assert_eq!(stderr(&output), "", "--quiet");
    let all = run(&format!("pubsub -h {} -c 2 -t p --processes 2", node.address));
    assert!(stderr(&all).contains("%i in the topic"), "{}", stderr(&all));
    assert_eq!(all.status.code(), Some(2));
}

#[test]
fn publishers_in_processes_wait_for_each_other() {
    let node = Node::start();
    let output = run(&format!(
        "pub -h {} -c 4 -i 0 -I 1 -t x -q 1 -L 40 -w --processes 2 --json --quiet",
        node.address
    ));
    let report = report(&output);
    assert_eq!((&report["sent"], &report["acked"]), (&40.into(), &40.into()), "{report}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn prometheus_can_scrape_a_run() {
    let node = Node::start();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!("pub -h {} -c 2 -i 0 -I 10 -t x --prometheus 127.0.0.1:{port}", node.address);
    let mut running = Running::start(&mut bench(&line));
    running.wait_for("1s  up=2/2");
    running.wait_for("2s  up=2/2");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\nconnected 2\n"), "{text}");
    let sent = text.lines().find_map(|line| line.strip_prefix("pub ")).unwrap();
    assert_ne!(sent, "0");
    running.signal(libc::SIGINT);
    assert_eq!(running.end().0, Some(0));
}
