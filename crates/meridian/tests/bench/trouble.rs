//! Failures: brokers and processes that die, hosts that do not exist, limits that are too low.

use crate::node::{Node, Running, bench, report, run, stderr};
use std::process::Command;

#[test]
fn a_broker_that_dies_leaves_a_report_of_the_counts_so_far() {
    let mut node = Node::start();
    let line = format!(
        "pubsub -h {} -c 5 -i 0 -I 10 -t p/%i -q 1 --duration 60 --broker-pid {}",
        node.address,
        node.pid()
    );
    let mut running = Running::start(&mut bench(&line));
    running.wait_for("2s  up=10/10");
    node.kill();
    let (code, text) = running.end();
    assert_eq!(code, Some(1), "{text}");
    for part in
        ["the broker is gone: no connection was left after", "10 connections ended", "has ended", "sent  "]
    {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn a_process_that_dies_leaves_the_counts_of_the_others() {
    let node = Node::start();
    let line = format!("pub -h {} -c 4 -i 0 -I 10 -t x --processes 2 --duration 60", node.address);
    let mut running = Running::start(&mut bench(&line));
    running.wait_for("2s  up=4/4");
    let id = running.process.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let child: libc::pid_t = children.split_whitespace().next().unwrap().parse().unwrap();
    // SAFETY: takes no pointers; this is a descendant whose parent has not waited for it.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    let (code, text) = running.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("of 2 died before the end"), "{text}");
    assert!(text.contains("4 of 4 clients"), "the dead one's clients as last reported:\n{text}");
}

#[test]
fn too_few_descriptors_are_reported_with_the_limit() {
    let script =
        format!("ulimit -n 64; exec {} bench conn -c 1000 -h 127.0.0.1", env!("CARGO_BIN_EXE_meridian"));
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("the limit is 64") && text.contains("ulimit -Hn"), "{text}");
    assert_eq!(output.status.code(), Some(2));
    // Each process has its own limit.
    let node = Node::start();
    let script = format!(
        "ulimit -n 200; exec {} bench conn -c 250 -i 0 -h {} --processes 3 --duration 0.1 --json --quiet",
        env!("CARGO_BIN_EXE_meridian"),
        node.address
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(report(&output)["connected"], 250, "{}", stderr(&output));
}

#[test]
fn impossible_options_are_refused_before_the_run_begins() {
    // An address of its own: another test may get the port.
    let closed = std::net::TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();
    for (line, says) in [
        (format!("conn -h {closed} -c 2 -i 0"), "ECONNREFUSED (no process listens there"),
        ("conn -h no-such-host.invalid".to_owned(), "no address for no-such-host.invalid"),
        (
            format!("conn -h {closed} --csv /no/such/directory/x.csv"),
            "/no/such/directory/x.csv: No such file",
        ),
        (format!("conn -h {closed} --broker-pid 4194305"), "no process 4194305"),
        (format!("conn -h {closed} --broker-metrics http://{closed}/metrics"), "no figures from http://"),
        (format!("conn -h {closed} --broker-token-file x"), "--broker-metrics"),
    ] {
        let output = run(&line);
        let text = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(says), "{line}:\n{text}");
        assert_eq!(output.status.code(), Some(2), "{line}:\n{text}");
    }
}
