//! Several processes under one controller: their results are merged, and a lost one is reported.

use crate::broker::{Behaviour, Broker};
use crate::{Outcome, mqload};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running agent on a port that the system chose.
struct Agent {
    process: Child,
    lines: BufReader<ChildStderr>,
    address: String,
}

impl Agent {
    fn start(more: &str) -> Agent {
        let mut process = Command::new(env!("CARGO_BIN_EXE_mqload"))
            .args("bench agent --listen 127.0.0.1:0".split(' '))
            .args(more.split_whitespace())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap());
        let mut agent = Agent { process, lines, address: String::new() };
        agent.address = agent.wait_for("agent on ").rsplit(' ').next().unwrap().to_owned();
        agent
    }

    /// The next line with this text.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the agent has ended, and no `{text}`");
            if line.contains(text) {
                return line.trim().to_owned();
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file with a secret, removed at the end of the test.
struct Secret(PathBuf);

impl Secret {
    fn new(name: &str, text: &str) -> Secret {
        let path = std::env::temp_dir().join(format!("mqload-secret-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Secret(path)
    }

    fn option(&self) -> String {
        format!("--secret-file {}", self.0.display())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Exit code and all output.
fn said(arguments: &str) -> (Option<i32>, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_mqload")).args(arguments.split_whitespace()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

/// Starts a controller that runs until it is stopped, and waits until it is connected.
fn controller(agents: &[&Agent], broker: &Broker) -> (Child, BufReader<ChildStderr>) {
    let list: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
    let line =
        format!("bench pub -h {} -c 4 -i 0 -I 5 -t x -q 1 --agents {}", broker.address, list.join(","));
    let mut process = Command::new(env!("CARGO_BIN_EXE_mqload"))
        .args(line.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("up=4/4") {
        assert_ne!(lines.read_line(&mut seen).unwrap(), 0, "{seen}");
    }
    (process, lines)
}

fn result(controller: Child) -> (Option<i32>, String) {
    let output = controller.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_results_of_agents_are_merged() {
    let broker = Broker::start(Behaviour::default());
    let secret = Secret::new("one", "0123456789abcdef0123\n");
    let agents = [Agent::start(&secret.option()), Agent::start(&secret.option())];
    let list = format!("{},{}", agents[0].address, agents[1].address);
    // Twice: an agent accepts another run.
    for _ in 0..2 {
        let run: Outcome = mqload(&format!(
            "bench pubsub -h {} -c 5 -i 0 -I 0 -t p/%i -q 1 -L 200 --json --agents {list} {}",
            broker.address,
            secret.option()
        ));
        assert_eq!((run.number("/clients"), run.number("/sent"), run.number("/received")), (10, 200, 200));
        assert_eq!((run.number("/lost"), run.code), (0, 0), "{}", run.json);
        assert_eq!(run.number("/latency_us/count"), 200, "every latency of both");
        assert_eq!(run.number("/generator/processes"), 2);
    }
}

#[test]
fn another_secret_is_refused_by_both() {
    let broker = Broker::start(Behaviour::default());
    let (one, other) = (Secret::new("mine", "0123456789abcdef"), Secret::new("theirs", "fedcba9876543210"));
    let mut agent = Agent::start(&one.option());
    for option in [other.option(), String::new()] {
        let line = format!("bench conn -h {} -c 1 --agents {} {option}", broker.address, agent.address);
        let (code, text) = said(&line);
        assert!(text.contains("its secret is another one"), "{text}");
        assert_eq!(code, Some(2));
        let line = agent.wait_for("refused");
        assert!(line.contains("its secret is another one"), "{line}");
    }
}

#[test]
fn an_agent_beyond_loopback_needs_a_secret() {
    let short = Secret::new("short", "hunter2");
    for (line, says) in [
        ("bench agent --listen 0.0.0.0:0".to_owned(), "--secret-file FILE"),
        (format!("bench agent {}", short.option()), "16 to 4096 bytes"),
        ("bench agent --secret-file /no/such/secret".to_owned(), "/no/such/secret: No such file"),
        ("bench conn -h 127.0.0.1 --agents 192.0.2.1".to_owned(), "is another machine"),
        (format!("bench conn -h 127.0.0.1 {}", short.option()), "--agents"),
        ("bench conn -h 127.0.0.1 --agents 127.0.0.1 --processes 2".to_owned(), "one agent for each process"),
    ] {
        let (code, text) = said(&line);
        assert!(text.contains(says), "{line}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(code, Some(2), "{line}");
    }
}

#[test]
fn an_unreachable_agent_is_reported() {
    let closed = crate::nobody();
    let (code, text) = said(&format!("bench conn -h 127.0.0.1 --agents {closed}"));
    assert!(text.contains(&format!("agent {closed}")) && text.contains("bench agent"), "{text}");
    assert_eq!(code, Some(2));
}

#[test]
fn a_lost_agent_ends_the_run_with_the_counts_so_far() {
    let broker = Broker::start(Behaviour::default());
    let mut agents = [Agent::start(""), Agent::start("")];
    let (process, _lines) = controller(&[&agents[0], &agents[1]], &broker);
    agents[0].process.kill().unwrap();
    let (code, text) = result(process);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("agent {} died before the end", agents[0].address)), "{text}");
    assert!(text.contains("4 of 4 clients"), "{text}");
    agents[1].wait_for("run finished");
}

#[test]
fn an_agent_that_is_stopped_ends_the_run_too() {
    let broker = Broker::start(Behaviour::default());
    let mut agents = [Agent::start(""), Agent::start("")];
    let (process, _lines) = controller(&[&agents[0], &agents[1]], &broker);
    // SAFETY: takes no pointers; this is a child that is not waited for yet, so the id still refers to it.
    assert_eq!(unsafe { libc::kill(agents[0].process.id() as libc::pid_t, libc::SIGTERM) }, 0);
    let (code, text) = result(process);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("agent {} was stopped before the end", agents[0].address)), "{text}");
    assert!(text.contains("4 of 4 clients"), "{text}");
    agents[1].wait_for("run finished");
}

#[test]
fn an_agent_does_one_run_at_a_time_and_survives_its_controller() {
    let broker = Broker::start(Behaviour::default());
    let mut agent = Agent::start("");
    let (mut process, _lines) = controller(&[&agent], &broker);
    let again =
        format!("bench conn -h {} -c 1 -i 0 --duration 0.1 --agents {}", broker.address, agent.address);
    let (code, text) = said(&again);
    assert!(text.contains("another run is under way"), "{text}");
    assert_eq!(code, Some(2));
    process.kill().unwrap();
    process.wait().unwrap();
    agent.wait_for("run finished");
    let (code, text) = said(&again);
    assert_eq!(code, Some(0), "{text}");
}
