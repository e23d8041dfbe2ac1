//! Runs of the binary against a small broker with faults.

mod agents;
mod broker;
mod connections;
mod delivery;
mod ha;
mod scenario;
mod tx_rx;
mod wire;

use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

/// An address at which no process listens, nor any broker of another test: those have another address.
pub fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap()
}

/// The report of one run of mqload and its exit code.
pub struct Outcome {
    pub json: Value,
    pub code: i32,
}

impl Outcome {
    /// A number or another value by its path, such as `/totals/received`.
    pub fn at(&self, path: &str) -> &Value {
        self.json.pointer(path).unwrap_or_else(|| panic!("no {path} in {}", self.json))
    }

    pub fn number(&self, path: &str) -> u64 {
        self.at(path).as_u64().unwrap_or_else(|| panic!("{path} is {}", self.at(path)))
    }

    /// Asserts that nothing was lost, duplicated, reordered or otherwise wrong.
    #[track_caller]
    pub fn is_clean(&self) {
        for path in ["/lost", "/duplicated", "/out_of_order", "/disconnects", "/corrupt", "/foreign"] {
            assert_eq!(self.number(path), 0, "{path} in {}", self.json);
        }
        assert_eq!(self.at("/violations"), &serde_json::json!([]));
        assert_eq!(self.code, 0);
    }
}

/// Runs mqload, which ends by its own count or duration in all of these tests.
pub fn mqload(arguments: &str) -> Outcome {
    // The broker of these tests has nothing to settle.
    let shorter = if arguments.starts_with("pubsub") { "--pause 0 --settle-ms 50" } else { "" };
    let output = Command::new(env!("CARGO_BIN_EXE_mqload"))
        .args(arguments.split_whitespace())
        .args(shorter.split_whitespace())
        .arg("--quiet")
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)));
    Outcome { json, code: output.status.code().unwrap() }
}
