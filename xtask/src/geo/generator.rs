//! `meridian bench` on a host of a lab.

use anyhow::{Context, Result, bail, ensure};
use lab::Lab;
use serde_json::Value;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench::child::Guarded;

/// A run of the load generator, whose report is one line of JSON.
pub struct Generator(Guarded);

impl Generator {
    /// Starts the generator.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(lab: &Lab, host: &str, program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("bench").args(arguments).args(["--json", "--quiet"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        lab.enter_host(host, &mut command)?;
        Ok(Self(Guarded::spawn(&mut command)?))
    }

    /// Waits for the report.
    ///
    /// # Errors
    /// It takes longer, or prints nothing.
    pub fn report(mut self, longest: Duration) -> Result<Value> {
        // Read while it runs: the output may be larger than a pipe.
        let mut out = self.0.child().stdout.take().context("no standard output")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        if self.0.wait(longest).is_none() {
            bail!("the load generator does not end");
        }
        let text = reader.join().ok().context("the reader panicked")??;
        ensure!(!text.trim().is_empty(), "the load generator prints nothing");
        Ok(serde_json::from_str(text.trim())?)
    }
}
