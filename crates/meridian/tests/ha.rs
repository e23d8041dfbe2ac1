//! `meridian bench ha` against a real node, which stays, and which goes for good.

use std::io::{BufRead, BufReader};
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
        let mut command = meridian(&["start", "--listen", "127.0.0.1:0", "--http", "off", "--data-dir"]);
        let mut process = command.arg(&directory).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let line = line_with(&mut log, "listening");
        let port = line.rsplit(':').next().unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        // Nobody reads on, and nobody has to: the node says little more than a pipe holds.
        std::thread::spawn(move || log.lines().for_each(drop));
        Node { process, address: format!("127.0.0.1:{port}"), directory }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // For a test that killed it all of this does nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Reads up to a line with this text.
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

/// A run of `bench ha` that has begun to publish.
fn ha(node: &Node, more: &str) -> (Child, BufReader<ChildStderr>) {
    let mut command =
        meridian(&["bench", "ha", "-h", &node.address, "--publishers", "3", "--subscribers", "2"]);
    command.args(more.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    line_with(&mut lines, "connected: publishing");
    (process, lines)
}

/// Its exit code and what it printed.
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
fn a_node_that_never_comes_back_is_said_to_be_gone() {
    let mut node = Node::start("goes");
    let (process, lines) = ha(&node, "-q 1 -R 500 --duration 1 --drain 0.5 --backoff-max 50");
    node.kill();
    let (code, text) = end(process, lines);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the broker never came back") && text.contains("ECONNREFUSED"), "{text}");
}
