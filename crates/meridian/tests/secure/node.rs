//! A node as a process, and its clients.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use crate::authority::Authority;

/// Runs the binary without the environment's settings.
pub fn meridian(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    for name in ["MERIDIAN_CA", "MERIDIAN_CERT", "MERIDIAN_KEY", "MERIDIAN_TOKEN", "MERIDIAN_URL"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A node that is killed when it is dropped.
pub struct Node {
    process: Child,
    log: BufReader<ChildStderr>,
    /// Ports of the listeners in the order of the configuration.
    pub ports: Vec<String>,
    /// Address of HTTP: `127.0.0.1:PORT`.
    pub http: String,
}

impl Node {
    /// Starts a node with this configuration file in the authority's directory; every port in it is 0.
    pub fn start(authority: &Authority, config: &str, extra: &[&str]) -> Self {
        let listeners = config.matches("[[listener]]").count();
        let config = authority.write("meridian.toml", config);
        let mut process = Command::new(env!("CARGO_BIN_EXE_meridian"))
            .args(["start", "--config", &config, "--workers", "1", "--data-dir", &authority.path("data")])
            .args(extra)
            .current_dir(&authority.directory)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut node = Self { process, log, ports: Vec::new(), http: String::new() };
        let address =
            |line: String| line.rsplit("address=").next().unwrap().trim().trim_matches('"').to_owned();
        for _ in 0..listeners {
            let address = address(node.wait_for("listening"));
            node.ports.push(address.rsplit(':').next().unwrap().to_owned());
        }
        node.http = address(node.wait_for(" HTTP"));
        node.wait_for("the node serves");
        node
    }

    /// Reads the log up to a line with this text, and returns it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "no `{text}` in the log:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    pub fn reload(&self) {
        let status = Command::new("kill").args(["-HUP", &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Some tests end the node themselves.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
