//! `bench ha` during the kills.

use super::Args;
use super::target::profile_directory;
use crate::bench::child::{self, Guarded};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running `bench ha`.
pub struct Load {
    process: Guarded,
    publishing: Arc<AtomicBool>,
    report: JoinHandle<std::io::Result<String>>,
    lines: JoinHandle<()>,
}

/// Output of `bench ha` when publishing starts.
const PUBLISHING: &str = "connected: publishing";
/// Maximum time of the report: an interrupted run waits for missing messages for 3 s, and removes its sessions for 20
/// s at most.
const REPORT_MAX: Duration = Duration::from_secs(30);

impl Load {
    /// Starts the load of `chaos --single`.
    pub fn start(args: &Args, seconds: u32, address: SocketAddr) -> Result<Load> {
        let mut command = Command::new(profile_directory(args.debug).join("mqload"));
        command.args(["bench", "ha", "--json", "-h", &address.to_string(), "-q", &args.qos]);
        for (option, value) in [
            ("--publishers", args.publishers),
            ("--subscribers", args.subscribers),
            ("-R", args.rate),
            ("-s", args.size),
            ("--window", args.window),
            ("-V", args.mqtt.into()),
            ("--duration", seconds),
            ("--drain", args.drain),
            ("--backoff-max", args.backoff_max),
        ] {
            command.args([option, &value.to_string()]);
        }
        Self::of(command, true)
    }

    /// Starts `bench ha` with a result in JSON. With `is_shown` its lines go to standard error.
    pub fn of(mut command: Command, is_shown: bool) -> Result<Load> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C reaches this process only: `bench ha` is interrupted once, because a second signal would prevent its
        // report.
        command.process_group(0);
        let mut process = Guarded::spawn(&mut command)?;
        let mut stdout = process.child().stdout.take().context("a pipe")?;
        let stderr = process.child().stderr.take().context("a pipe")?;
        let publishing = Arc::new(AtomicBool::new(false));
        let says = publishing.clone();
        Ok(Load {
            process,
            publishing,
            report: std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).map(|_| text)
            }),
            lines: std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
                    if line.contains(PUBLISHING) {
                        says.store(true, Relaxed);
                    }
                    if is_shown {
                        eprintln!("{line}");
                    }
                }
            }),
        })
    }

    pub fn ended(&mut self) -> bool {
        self.process.ended().is_some()
    }

    /// Waits until it publishes.
    ///
    /// # Errors
    /// It ends before, or does not start in time.
    pub fn wait_until_publishing(&mut self, longest: Duration) -> Result<()> {
        let begun = child::until(longest, || {
            if self.publishing.load(Relaxed) {
                return Some(true);
            }
            self.process.ended().map(|_| false)
        });
        match begun {
            Some(true) => Ok(()),
            Some(false) => bail!("bench ha could not start"),
            None => bail!("bench ha did not start in {} s", longest.as_secs()),
        }
    }

    /// Waits for its report and exit code. After an interrupt it is asked to end, and has a few seconds to report.
    ///
    /// # Errors
    /// It does not end in time, or prints nothing.
    pub fn finish(mut self, longest: Duration) -> Result<(Value, i32)> {
        let mut status = self.process.wait(longest);
        if status.is_none() {
            // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
            unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
            let deadline = Instant::now() + REPORT_MAX;
            while status.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
                status = self.process.ended();
            }
        }
        // Kills it when it has not ended, so that the readers of its pipes end.
        drop(self.process);
        let text =
            self.report.join().expect("the reader does not panic").context("the report of bench ha")?;
        self.lines.join().expect("the reader does not panic");
        let status = status.context("bench ha did not end in time")?;
        let report = serde_json::from_str(&text).context("bench ha printed no JSON")?;
        Ok((report, status.code().unwrap_or(2)))
    }
}
