//! `bench --scenario`: groups of clients in stages.

use crate::broker::{Behaviour, Broker};
use crate::{Outcome, mqload};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// A file of one test, removed at the end of the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("mqload-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

const TWO_STAGES: &str = r#"
title = "Two stages"
seed = 7
[[stage]]
name = "one"
seconds = 1
[[stage]]
name = "two"
seconds = 1

[[group]]
name = "sensors"
clients = 4
publish = "plant/%i"
qos = 1
window = 50
payload = '{"n":%s,"celsius":%rand_15_30,"state":"%pick(ok|hot)"}'
rate = { one = 100, two = "0..100" }

[[group]]
name = "panels"
clients = 3
subscribe = ["plant/+"]
subscribe_qos = 1

[[group]]
name = "late"
clients = 2
join = "two"
"#;

fn run(broker: &Broker, file: &File, more: &str) -> Outcome {
    mqload(&format!("bench --scenario {} -h {} --json {more}", file.0.display(), broker.address))
}

fn sum(stages: &Value, key: &str) -> u64 {
    stages.as_array().unwrap().iter().map(|stage| stage[key].as_u64().unwrap()).sum()
}

#[test]
fn groups_follow_the_file_stage_by_stage() {
    let broker = Broker::start(Behaviour::default());
    let file = File::new("two-stages", TWO_STAGES);
    let run = run(&broker, &file, "");
    assert_eq!((run.at("/problems"), run.code), (&json!([]), 0), "{}", run.json);
    assert_eq!((run.number("/clients"), run.number("/connected")), (9, 9));
    let sent = run.number("/groups/0/sent");
    // 100 in the first second and half as many in the second; a late thread can miss the last few.
    assert!((100..=152).contains(&sent), "{sent}");
    assert_eq!(run.number("/groups/1/received"), 3 * sent, "every panel receives everything");
    assert_eq!(run.number("/latency_us/count"), 3 * sent, "and knows when it was due");
    let stages = run.at("/groups/0/stages");
    assert_eq!([&stages[0]["asked_per_s"], &stages[1]["asked_per_s"]], [&json!(100.0), &json!(50.0)]);
    assert_eq!(sum(stages, "sent"), sent, "every message belongs to a stage: {stages}");
    assert_eq!(sum(run.at("/groups/1/stages"), "received"), 3 * sent);
    let late = run.at("/groups/2/stages");
    assert_eq!([&late[0]["connected"], &late[1]["connected"]], [&json!(0), &json!(2)], "{late}");
}

#[test]
fn processes_share_every_group() {
    let broker = Broker::start(Behaviour::default());
    let file = File::new("processes", TWO_STAGES);
    let run = run(&broker, &file, "--processes 2");
    assert_eq!((run.number("/connected"), run.code), (9, 0), "{}", run.json);
    assert_eq!(run.number("/groups/1/received"), 3 * run.number("/groups/0/sent"), "{}", run.json);
}

/// Clients that disconnect by themselves are no failures. They publish and subscribe at the same time.
#[test]
fn clients_connect_disconnect_and_pause() {
    let broker = Broker::start(Behaviour::default());
    let file = File::new(
        "churn",
        r#"
[[stage]]
name = "all"
seconds = 2
[[group]]
name = "visitors"
clients = 5
publish = "to/%i"
subscribe = ["to/%i"]
subscribe_qos = 2
qos = 2
think = "10ms..30ms"
stay = "200ms..300ms"
away = "50ms..100ms"
"#,
    );
    let run = run(&broker, &file, "");
    let group = run.at("/groups/0");
    assert_eq!((&group["failed"], &group["disconnects"]), (&json!(0), &json!(0)), "{}", run.json);
    assert!(run.number("/groups/0/left") >= 5 && run.number("/groups/0/reconnects") >= 5, "{}", run.json);
    assert!(run.number("/groups/0/sent") > 0 && run.number("/groups/0/received") > 0, "{}", run.json);
}

#[test]
fn errors_in_the_file_are_reported_with_their_location() {
    let stage = "[[stage]]\nname = \"a\"\nseconds = 1\n";
    let group = "[[group]]\nname = \"g\"\nclients = 1\n";
    for (number, (text, says)) in [
        (String::new(), "[[stage]]"),
        (format!("{stage}{group}colour = 1\n"), "unknown field `colour`"),
        (format!("{stage}{group}publish = \"x\"\n"), "needs a rate"),
        (
            format!("{stage}{group}publish = \"x\"\nrate = {{ b = 1 }}\n"),
            "there is no stage b: it is one of a",
        ),
        (format!("{stage}{group}publish = \"x/#\"\nrate = 1\n"), "wildcard"),
        (format!("{stage}{group}publish = \"x\"\nrate = -1\n"), "a rate is messages a second"),
        (format!("{stage}{group}publish = \"x\"\nthink = \"5 years\"\n"), "a pause is seconds"),
        (format!("{stage}{group}rate = 1\npublish = \"%rand_5_2\"\n"), "not a range"),
        (format!("{stage}{group}rate = 1\n"), "rate is of no use without publish"),
        (format!("{stage}{group}{group}"), "two groups are named g"),
        (format!("{stage}[[group]]\nname = \"g\"\nclients = 0\n"), "clients is 1 to"),
        (format!("{stage}{group}away = 1\n"), "without stay"),
        (format!("{stage}{group}join = \"z\"\n"), "there is no stage z"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = File::new(&format!("wrong-{number}"), &text);
        let output = Command::new(env!("CARGO_BIN_EXE_mqload"))
            .args(["bench", "--scenario"])
            .arg(&file.0)
            .args(["-h", "127.0.0.1"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(says) && said.contains(file.0.to_str().unwrap()), "{text}:\n{said}");
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
}
