//! Nodes that stay, that end for good, and that are killed and restarted, observed by `meridian bench ha` and other
//! clients.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

fn meridian(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A node on a port that the system chose, killed when it is dropped.
struct Node {
    process: Child,
    address: String,
    directory: PathBuf,
}

impl Node {
    fn start(test: &str) -> Node {
        let directory = std::env::temp_dir().join(format!("meridian-ha-{test}-{}", std::process::id()));
        Self::start_at("127.0.0.1:0", directory)
    }

    fn start_at(address: &str, directory: PathBuf) -> Node {
        let mut command = meridian(&["start", "--listen", address, "--http", "off"]);
        command.args(["--set", "storage.segment_size=1MiB", "--set", "storage.reserve=2MiB"]);
        // On a slow machine a full queue drops messages by its rule, which this test does not examine.
        command.args(["--set", "queue.messages_max=1000000"]);
        command.args([
            "--set",
            "durability.0.filter=fast/#",
            "--set",
            "durability.0.class=memory",
            "--data-dir",
        ]);
        let mut process = command.arg(&directory).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let line = line_with(&mut log, "listening");
        let port = line.rsplit(':').next().unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        // The log is read to keep the pipe empty.
        std::thread::spawn(move || log.lines().for_each(drop));
        Node { process, address: format!("127.0.0.1:{port}"), directory }
    }

    /// Kills the node with `kill -9`, and starts it with the same data at the same address.
    fn kill_and_start(&mut self) {
        self.kill();
        let (address, directory) = (self.address.clone(), std::mem::take(&mut self.directory));
        *self = Self::start_at(&address, directory);
    }

    /// Runs `meridian pub` or `sub` to its end; returns what it printed.
    fn client(&self, command: &str, arguments: &str) -> String {
        let port = self.address.rsplit(':').next().unwrap();
        let output = meridian(&[command, "-p", port]).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{command} {arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A test that killed the node itself needs none of this.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if self.directory.as_os_str().is_empty() {
            return; // Another process continues with the data.
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Reads up to a line with this text, and returns it.
fn line_with(log: &mut impl BufRead, text: &str) -> String {
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "no `{text}` in:\n{seen}");
        if line.contains(text) {
            return line.trim_end().to_owned();
        }
        seen.push_str(&line);
    }
}

/// Starts a run of `bench ha`, and waits until it publishes.
fn ha(node: &Node, more: &str) -> (Child, BufReader<ChildStderr>) {
    let mut command =
        meridian(&["bench", "ha", "-h", &node.address, "--publishers", "3", "--subscribers", "2"]);
    command.args(more.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    line_with(&mut lines, "connected: publishing");
    (process, lines)
}

/// Waits for the end. Returns exit code and output.
fn end(process: Child, lines: BufReader<ChildStderr>) -> (Option<i32>, String) {
    let reader = std::thread::spawn(move || lines.lines().for_each(drop));
    let output = process.wait_with_output().unwrap();
    reader.join().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_node_that_stays_loses_nothing() {
    let node = Node::start("stays");
    for (version, qos) in [(5, "mixed"), (4, "2")] {
        let (process, lines) = ha(&node, &format!("-q {qos} -V {version} -R 500 --duration 1"));
        let (code, text) = end(process, lines);
        assert_eq!(code, Some(0), "{text}");
        for said in
            ["sent          500 messages", "acknowledged  500 ", "delivered     1000 ", "LOST          0 "]
        {
            assert!(text.contains(said), "no `{said}` in\n{text}");
        }
    }
}

#[test]
fn a_node_that_never_comes_back_is_reported_as_gone() {
    let mut node = Node::start("goes");
    let (process, lines) = ha(&node, "-q 1 -R 500 --duration 1 --drain 0.5 --backoff-max 50");
    node.kill();
    let (code, text) = end(process, lines);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the broker never came back") && text.contains("ECONNREFUSED"), "{text}");
}

/// Acknowledged state survives `kill -9`: subscriptions, messages, a retained one, the Will of a client that died
/// with the node.
#[test]
fn a_node_that_is_killed_keeps_what_it_has_acknowledged() {
    let mut node = Node::start("keeps");
    let session = "-i reader -c -x 3600 -q 2 -t a/#";
    node.client("sub", &format!("{session} -E"));
    node.client("pub", "-q 1 -t a/1 -m one");
    node.client("pub", "-q 2 -t a/2 -m two");
    node.client("pub", "-q 1 -r -t kept -m retained");
    let port = node.address.rsplit(':').next().unwrap().to_owned();
    let mut mortal = meridian(&["sub", "-p", &port, "-i", "mortal", "-c", "-x", "3600", "-t", "kept"]);
    mortal.args(["--will-topic", "a/will", "--will-payload", "gone", "--will-qos", "1"]);
    let mut mortal = mortal.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = BufReader::new(mortal.stdout.take().unwrap());
    line_with(&mut heard, "retained");
    node.kill_and_start();
    mortal.kill().unwrap();
    mortal.wait().unwrap();
    assert_eq!(node.client("sub", &format!("{session} -C 3 -W 20")), "one\ntwo\ngone\n");
    assert_eq!(node.client("sub", "-t kept -C 1 -W 20"), "retained\n");
    node.client("pub", "-q 1 -t a/3 -m three");
    node.kill_and_start();
    let text = node.client("sub", &format!("{session} -C 1 -W 20"));
    assert!(
        ["three\n", "gone\n"].contains(&&*text),
        "the last acknowledgements may be lost with the node: {text}"
    );
}

/// A crash keeps a prefix, without a gap, of the messages that are acknowledged ahead of the disk. The prefix
/// includes all that precede a message that is kept on disk.
#[test]
fn a_node_that_is_killed_loses_only_the_last_messages_of_those_that_are_not_durable() {
    let mut node = Node::start("unsynced");
    let session = "-i reader -c -x 3600 -q 2 -t fast/# -t safe/#";
    node.client("sub", &format!("{session} -E"));
    let mut numbers = 0..;
    let mut publish = |node: &Node, topic: &str, qos: u8, count: usize| {
        let lines: Vec<String> = numbers.by_ref().take(count).map(|n: u32| n.to_string()).collect();
        let port = node.address.rsplit(':').next().unwrap();
        let mut command = meridian(&["pub", "-p", port, "-q", &qos.to_string(), "-t", topic, "-l"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        writeln!(input, "{}", lines.join("\n")).unwrap();
        drop(input);
        assert!(process.wait().unwrap().success());
    };
    publish(&node, "fast/1", 1, 200);
    publish(&node, "fast/2", 2, 100);
    publish(&node, "safe/1", 1, 1);
    publish(&node, "fast/1", 1, 200);
    node.kill_and_start();
    publish(&node, "safe/1", 1, 1);
    let port = node.address.rsplit(':').next().unwrap();
    let mut command = meridian(&["sub", "-p", port]);
    let mut reader = command.args(session.split(' ')).stdout(Stdio::piped()).spawn().unwrap();
    let mut found: Vec<u32> = Vec::new();
    for line in BufReader::new(reader.stdout.take().unwrap()).lines() {
        found.push(line.unwrap().parse().unwrap());
        if found.last() == Some(&501) {
            break;
        }
    }
    reader.kill().unwrap();
    reader.wait().unwrap();
    let (last, before) = found.split_last().unwrap();
    assert_eq!(*last, 501);
    assert!(before.len() >= 301, "all messages before a durable one: {}", before.len());
    assert!(before.iter().copied().eq(0..before.len() as u32), "a gap, a repetition, or another order");
}

/// The node is killed repeatedly under load.
#[test]
fn a_node_that_is_killed_under_load_loses_nothing() {
    let mut node = Node::start("killed");
    let (process, lines) = ha(&node, "-q mixed -R 300 --duration 4 --drain 20 --backoff-max 100");
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(700));
        node.kill_and_start();
    }
    let (code, text) = end(process, lines);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("LOST          0 "), "{text}");
}
