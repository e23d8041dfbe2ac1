//! Links through which the program accepts other tools' command lines.

use crate::node::{Directory, Node, Running, link};
use std::process::{Command, Stdio};

/// Runs the commands of a published comparison of core and replicant nodes, as written there but for the host.
#[test]
fn published_mqttx_commands_run_as_they_are() {
    let (node, directory) = (Node::start(), Directory::new("mqttx"));
    let mqttx = link(&directory, "mqttx");
    for (line, clients) in [
        ("mqttx bench sub -h HOST --count 1 --topic t/mqttx/%i", 1),
        ("mqttx bench sub -h HOST --count 100 --interval 0 --topic t/mqttx/%i", 100),
        ("mqttx bench sub -h HOST --count 1 --topic t/mqttx/+/%i/sub/+/#", 1),
        ("mqttx bench sub -h HOST --count 100 --interval 0 --topic t/mqttx/+/%i/sub/+/#", 100),
        ("mqttx bench sub -h HOST --count 1000 --interval 0 --topic t/mqttx/+/%i/sub/+/#", 1000),
    ] {
        let line = line.replace("HOST", &node.address);
        let mut command = Command::new(&mqttx);
        command.args(line.split(' ').skip(1)).stdin(Stdio::null());
        let mut running = Running::start(&mut command);
        running.wait_for(&format!("{clients} clients connected and subscribed"));
        running.signal(libc::SIGINT);
        let (code, text) = running.end();
        assert!(text.contains(&format!("{clients} of {clients} clients")), "{line}\n{text}");
        assert_eq!(code, Some(0), "{line}\n{text}");
    }
}

/// Runs the load of a published measurement with 100 million clients, with a hundred: the options are the same.
#[test]
fn emqtt_bench_commands_run_as_they_are() {
    let (node, directory) = (Node::start(), Directory::new("emqtt"));
    let emqtt_bench = link(&directory, "emqtt_bench");
    let port = node.address.rsplit(':').next().unwrap();
    let start = |line: &str| {
        let line = line.replace("PORT", port);
        let mut command = Command::new(&emqtt_bench);
        command.args(line.split(' ').skip(1)).stdin(Stdio::null());
        Running::start(&mut command)
    };
    let mut sub = start(
        "emqtt_bench sub -h 127.0.0.1 -p PORT -c 50 -R 16000 -t bench/%i/# -q 1 --payload-hdrs cnt64,ts",
    );
    sub.wait_for("50 clients connected and subscribed");
    let publishers = start(
        "emqtt_bench pub -h 127.0.0.1 -p PORT -c 50 -R 16000 -t bench/%i/test -q 1 -s 256 -I 10 -w -L 500 --payload-hdrs cnt64,ts",
    );
    let (code, text) = publishers.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("500 messages"), "{text}");
    sub.wait_for("recv total=500");
    sub.signal(libc::SIGINT);
    let (code, text) = sub.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("latency "), "{text}");
}
