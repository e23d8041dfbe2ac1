//! Changes by operators on one node of a cluster of processes apply on all of them.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn meridian(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).stdin(Stdio::null()).env_remove("MERIDIAN_TOKEN");
    command
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
}

/// A directory of one test, removed at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Three cores and two replicants.
struct Cluster {
    process: Child,
    port: u16,
    directory: Directory,
    token: Option<String>,
}

/// Limit of every wait, longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

impl Cluster {
    fn new() -> Self {
        let directory =
            Directory(std::env::temp_dir().join(format!("meridian-cluster-{}", std::process::id())));
        std::fs::create_dir_all(&directory.0).unwrap();
        std::fs::write(directory.file("password"), "secret\n").unwrap();
        // Ports that no other test uses. The highest, for links between nodes, is 6,000 above, and below those that
        // systems assign to clients (32,768).
        let port = 24_000 + (std::process::id() % 2_000) as u16;
        Self { process: Self::start(&directory, port), port, directory, token: None }
    }

    fn start(directory: &Directory, port: u16) -> Child {
        let mut process = meridian(&["start", "--dev-cluster", "3+2", "--workers", "1"])
            .args(["--listen", &format!("127.0.0.1:{port}"), "--http", &format!("127.0.0.1:{}", port + 1)])
            .args(["--data-dir", &directory.file("data")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let joined = lines.find(|line| line.contains("all of them reach each other"));
        assert!(joined.is_some(), "the nodes do not find each other");
        // The process continues to write, so the pipe must be read.
        std::thread::spawn(move || lines.for_each(drop));
        process
    }

    fn stop(&mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.stop();
        self.process = Self::start(&self.directory, self.port);
    }

    /// Runs `meridian ctl` on a node, counted from 1.
    fn ctl(&self, node: u8, arguments: &[&str]) -> Output {
        let url = format!("http://127.0.0.{node}:{}", self.port + 1);
        let mut command = meridian(&["ctl", "--url", &url]);
        if let Some(token) = &self.token {
            command.env("MERIDIAN_TOKEN", token);
        }
        command.args(arguments).output().unwrap()
    }

    /// Repeats a request until its answer is as expected, or the limit is reached; returns the last answer.
    fn until(&self, node: u8, arguments: &[&str], is_so: impl Fn(&Output) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.ctl(node, arguments);
            if is_so(&output) {
                return said(&output);
            }
            assert!(Instant::now() < until, "n{node}, {arguments:?}: {}", said(&output));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn does(&self, node: u8, arguments: &[&str]) -> String {
        self.until(node, arguments, |output| output.status.success())
    }

    /// Returns whether a client with that name and password can connect to a node.
    fn lets_in(&self, node: u8, user: &str, password: &str, client: &str) -> bool {
        meridian(&["pub", "-h", &format!("127.0.0.{node}"), "-p", &self.port.to_string(), "-i", client])
            .args(["-t", "a/b", "-m", "x", "-q", "1", "-u", user, "-P", password])
            .output()
            .unwrap()
            .status
            .success()
    }
}

fn comes_to(expected: bool, what: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while what() != expected {
        assert!(Instant::now() < until, "it does not come to be {expected}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 1..=5 {
                let log = std::fs::read_to_string(self.directory.file(&format!("data/n{node}.log")));
                eprintln!("n{node}:\n{}", log.unwrap_or_default());
            }
        }
        let id = self.process.id().to_string();
        // The process ends its nodes; nodes that have ended already are reaped.
        let _ = Command::new("kill").args(["-INT", &id]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}

const PASSWORD: &str = "secret";

#[test]
fn a_change_on_one_node_applies_on_all_and_survives_a_stop_of_all() {
    let mut cluster = Cluster::new();
    let password = cluster.directory.file("password");
    cluster.does(2, &["users", "add", "alice", "--password-file", &password]);
    for node in 1..=5 {
        comes_to(true, || cluster.lets_in(node, "alice", PASSWORD, "a"));
        assert!(!cluster.lets_in(node, "alice", "another", "a"), "n{node}");
    }
    // When two nodes add the same user, one succeeds.
    let twice = cluster.ctl(5, &["users", "add", "alice", "--password-file", &password]);
    assert!(!twice.status.success() && said(&twice).contains("already"), "{}", said(&twice));
    cluster.does(4, &["ban", "add", "client-id", "evil", "--reason", "a test"]);
    for node in 1..=5 {
        comes_to(false, || cluster.lets_in(node, "alice", PASSWORD, "evil"));
    }
    cluster.does(3, &["rules", "add", "deny everyone publish sealed/#"]);
    cluster.does(1, &["rules", "add", "allow everyone all #"]);
    for node in 1..=5 {
        cluster.until(node, &["rules"], |output| {
            said(output).contains("sealed/#") && said(output).contains("all #")
        });
    }
    let added = cluster.ctl(1, &["keys", "add", "boss", "--role", "admin"]);
    assert!(added.status.success(), "{}", said(&added));
    let token = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    for node in 1..=5 {
        cluster.until(node, &["users"], |output| !output.status.success());
    }
    cluster.token = Some(token);
    for node in 1..=5 {
        cluster.until(node, &["users"], |output| output.status.success() && said(output).contains("alice"));
    }
    // An operator has lost the token, and has access to the machine of one node.
    let beside = meridian(&[
        "key",
        "add",
        "local",
        "--role",
        "admin",
        "--data-dir",
        &cluster.directory.file("data/n2"),
    ])
    .output();
    let beside = beside.unwrap();
    assert!(beside.status.success() && !said(&beside).contains("not in force"), "{}", said(&beside));
    cluster.token = Some(String::from_utf8(beside.stdout).unwrap().trim().to_owned());
    for node in 1..=5 {
        cluster.until(node, &["keys"], |output| output.status.success() && said(output).contains("local"));
    }
    cluster.restart();
    for node in 1..=5 {
        cluster.until(node, &["users"], |output| output.status.success() && said(output).contains("alice"));
        comes_to(true, || cluster.lets_in(node, "alice", PASSWORD, "a"));
        assert!(!cluster.lets_in(node, "alice", PASSWORD, "evil"), "n{node}");
    }
    cluster.does(5, &["config", "set", "--cluster", "queue.messages_max=123", "--comment", "a test"]);
    for node in 1..=5 {
        cluster.until(node, &["config", "show", "queue.messages_max"], |output| said(output).contains("123"));
    }
    // While a node runs, the command reads its copy.
    let kept =
        meridian(&["config", "show", "--data-dir", &cluster.directory.file("data/n4")]).output().unwrap();
    assert!(kept.status.success() && said(&kept).contains("messages_max = 123"), "{}", said(&kept));
    cluster.does(2, &["config", "set", "queue.messages_max=77"]);
    let held = cluster.does(2, &["config", "set", "--cluster", "queue.messages_max=78"]);
    assert!(held.contains("nothing changes on this node\nqueue.messages_max: on this node"), "{held}");
    cluster.does(1, &["config", "unset", "--cluster", "queue.messages_max"]);
    for node in [1, 3, 4, 5] {
        cluster.until(node, &["config", "show", "queue.messages_max"], |output| {
            !said(output).contains("123") && said(output).contains("default")
        });
    }
    let own = cluster.does(2, &["config", "get", "queue.messages_max"]);
    assert!(own.contains("77") && own.contains("runtime"), "{own}");
    cluster.does(5, &["users", "remove", "alice", "--yes"]);
    for node in 1..=5 {
        cluster.until(node, &["users"], |output| output.status.success() && !said(output).contains("alice"));
    }
    cluster.stop();
}

/// A node without the first copy refuses clients, and reports that.
#[test]
fn before_the_first_copy_of_users_and_rules_clients_are_refused() {
    let directory =
        Directory(std::env::temp_dir().join(format!("meridian-first-copy-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    std::fs::write(directory.file("secret"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let port = 27_100 + (std::process::id() % 900) as u16 * 6;
    let at = |offset: u16| format!("127.0.0.1:{}", port + offset);
    let start = |name: &str, ports: [u16; 3], more: &[&str]| {
        let [listen, http, cluster] = ports.map(at);
        let process = meridian(&["start", "--name", name, "--workers", "1"])
            .args(["--listen", &listen, "--http", &http, "--cluster-listen", &cluster])
            .args(["--data-dir", &directory.file(name), "--cluster-secret-file", &directory.file("secret")])
            .args(more)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Ended(process)
    };
    let ready = |http: u16| {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(at(http)) {
            write!(stream, "GET /health/ready HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", at(http))
                .unwrap();
            stream.read_to_string(&mut answer).unwrap();
        }
        answer
    };
    let publish = |listen: u16| {
        let port = (port + listen).to_string();
        meridian(&["pub", "-h", "127.0.0.1", "-p", &port, "-t", "a", "-m", "x", "-q", "1"]).output().unwrap()
    };
    // The node to join does not exist.
    let _replicant = start("r", [0, 1, 2], &["--role", "replicant", "--join", &at(5)]);
    comes_to(true, || ready(1).starts_with("HTTP/1.1 503 "));
    assert!(ready(1).contains("users, rules, bans and keys"), "{}", ready(1));
    let refused = publish(0);
    assert!(!refused.status.success() && said(&refused).contains("Server unavailable"), "{}", said(&refused));
    let _core = start("c", [3, 4, 5], &[]);
    comes_to(true, || ready(4).starts_with("HTTP/1.1 200 "));
    comes_to(true, || ready(1).starts_with("HTTP/1.1 200 "));
    assert!(publish(0).status.success());
}

/// A process that is killed at the end of its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
