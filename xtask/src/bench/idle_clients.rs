//! Idle clients that are connected during a measurement.

use super::child::{self, Guarded};
use crate::repository::root;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Idle clients. They disconnect when it is dropped.
pub struct IdleClients(#[expect(dead_code, reason = "held, and ended with this process")] Guarded);

impl IdleClients {
    /// Returns when all are connected. `arguments` are mqload's, `--hold` among them, without the broker's address.
    ///
    /// # Errors
    /// A client is refused, or not all are connected within 120 s.
    pub fn start(broker: SocketAddr, arguments: &[String]) -> Result<IdleClients> {
        let mut command = Command::new(root().join("target/release/mqload"));
        command.args(arguments).args(["-H", &broker.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Guarded::spawn(&mut command)?;
        let stderr = process.child().stderr.take().context("a pipe")?;
        let (sender, receiver) = sync_channel(1);
        // The output is read to the end, so that mqload never waits for a full pipe.
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stderr);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                if let Some(failed) = failed(&line) {
                    // The receiver is gone when the wait was ended.
                    let _ = sender.try_send(failed);
                }
                line.clear();
            }
            let _ = lines.read_to_end(&mut Vec::new());
        });
        let failed = child::until(Duration::from_secs(120), || {
            match receiver.recv_timeout(Duration::from_millis(1)) {
                Ok(failed) => Some(Ok(failed)),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Err(())),
            }
        });
        let failed = failed.context("the idle clients are not connected within 120 s")?;
        let failed =
            failed.map_err(|()| anyhow::anyhow!("the mqload of the idle clients ended by itself"))?;
        ensure!(failed == 0, "{failed} idle clients were not served");
        Ok(IdleClients(process))
    }
}

/// Number of failed clients in the line with which mqload reports that it is ready.
fn failed(line: &str) -> Option<u64> {
    line.split_once("ready ")?.1.split_once(" failed ")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_line_before_the_hold_reports_all_clients_as_ready() {
        assert_eq!(failed("ready 1000 failed 0\n"), Some(0));
        assert_eq!(failed("mqload: ready 998 failed 2\n"), Some(2));
        assert_eq!(failed("setup: ready 10 of 1000\n"), None);
        assert_eq!(failed("hold: up 1000 disconnects 0 pings 0\n"), None);
    }
}
