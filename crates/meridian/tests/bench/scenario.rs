//! A scenario at two agents, and templates of other tools, against a node.

use crate::node::{Directory, Node, Running, bench, link, report, run, stderr};
use std::process::{Command, Stdio};

const PLANT: &str = r#"
title = "Plant"
seed = 1
[[stage]]
name = "calm"
seconds = 1
[[stage]]
name = "rush"
seconds = 2
[[group]]
name = "sensors"
clients = 6
publish = "plant/%i/temperature"
qos = 1
window = 50
payload = '{"n":%s,"celsius":%rand_15_30}'
rate = { calm = 50, rush = "50..150" }
[[group]]
name = "panels"
clients = 2
subscribe = ["plant/#"]
subscribe_qos = 1
[[group]]
name = "idle"
clients = 10
"#;

/// An agent on a port that the system chose, and its address.
fn agent(secret: &str) -> (Running, String) {
    let line = format!("agent --listen 127.0.0.1:0 --once --secret-file {secret}");
    let mut agent = Running::start(&mut bench(&line));
    let said = agent.wait_for("agent on ");
    (agent, said.rsplit(' ').next().unwrap().trim().to_owned())
}

#[test]
fn a_scenario_runs_at_two_agents() {
    let (node, directory) = (Node::start(), Directory::new("scenario"));
    let (file, secret, html) =
        (directory.path("plant.toml"), directory.path("secret"), directory.path("run.html"));
    std::fs::write(&file, PLANT).unwrap();
    std::fs::write(&secret, "a secret of more than sixteen bytes\n").unwrap();
    let ((first, one), (second, two)) = (agent(&secret), agent(&secret));
    let output = run(&format!(
        "--scenario {file} -h {} --agents {one},{two} --secret-file {secret} --json --html {html} --broker-metrics {}/metrics",
        node.address, node.http
    ));
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        stderr(&output)
    );
    let report = report(&output);
    assert_eq!(
        (&report["connected"], &report["generator"]["processes"]),
        (&18.into(), &2.into()),
        "{report}"
    );
    let sent = report["groups"][0]["sent"].as_u64().unwrap();
    assert!(sent > 100, "{report}");
    assert_eq!(report["groups"][1]["received"], 2 * sent, "every panel gets everything: {report}");
    assert_eq!(report["latency_us"]["count"], 2 * sent);
    let seen = &report["broker"]["figures"]["meridian_messages_received_total"]["grown"];
    assert_eq!(seen.as_f64(), Some(sent as f64), "the broker's own count");
    let page = directory.read("run.html");
    assert!(page.contains("sensors (6 of 6 clients)") && page.contains("<svg"), "{page}");
    for agent in [first, second] {
        let (code, text) = agent.end();
        assert_eq!(code, Some(0), "{text}");
    }
}

/// The message is retained, so the subscriber may connect later.
#[test]
fn templates_of_the_other_tools_are_filled_in() {
    let (node, directory) = (Node::start(), Directory::new("templates"));
    let (host, port) = node.address.split_once(':').unwrap();
    let file = directory.path("payload");
    std::fs::write(&file, "at=%TIMESTAMPMS% id=%UNIQUE% i=%i").unwrap();
    for (name, line, topic, has) in [
        (
            "mqttx",
            format!("simulate -sc weather -h {host} -p {port} -c 1 -I w%i -im 10 -L 2 -r"),
            "mqttx/simulate/weather/w1",
            "\"station\":\"w1\"",
        ),
        (
            "emqtt_bench",
            format!("pub -h {host} -p {port} -c 1 -I 1 -t e/%rand_1/%i -u u%i -m template://{file} -L 3 -r"),
            "e/1/1",
            "i=%i",
        ),
    ] {
        let mut command = Command::new(link(&directory, name));
        command.args(line.split(' ')).stdin(Stdio::null());
        let (code, text) = Running::start(&mut command).end();
        assert_eq!(code, Some(0), "{line}: {text}");
        let sub = ["sub", "-h", host, "-p", port, "-C", "1", "-W", "30", "-t", topic];
        let output = Command::new(env!("CARGO_BIN_EXE_meridian")).args(sub).output().unwrap();
        let got = String::from_utf8_lossy(&output.stdout);
        assert!(got.contains(has) && !got.contains("TIMESTAMP"), "{line}: {got}");
    }
}
