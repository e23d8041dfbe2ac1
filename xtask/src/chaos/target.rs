//! The killed broker: its start, its stop, and its output.

use super::{Args, Broker, Signal, probe};
use crate::bench::child::{Guarded, interrupted};
use crate::bench::mosquitto::{self, Persistence};
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A broker over its restarts. Only the process that was started here is ever killed.
pub struct Target {
    program: PathBuf,
    arguments: Vec<String>,
    address: SocketAddr,
    log: PathBuf,
    process: Option<Guarded>,
}

const STOP_MAX: Duration = Duration::from_secs(30);

/// Directory of all that cargo builds.
pub fn directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |path| root().join(path))
}

/// Directory where cargo puts the binaries.
pub fn profile_directory(debug: bool) -> PathBuf {
    directory().join(if debug { "debug" } else { "release" })
}

/// Builds the load generator, and Meridian where it is tested.
pub fn build(debug: bool, meridian: bool) -> Result<()> {
    let mut command = crate::repository::cargo();
    command.args(["build", "--package", "bench", "--bin", "mqload"]).current_dir(root());
    if !debug {
        command.arg("--release");
    }
    if meridian {
        command.args(["--package", "meridian", "--bin", "meridian"]);
    }
    ensure!(command.status().context("cargo build")?.success(), "cargo build failed");
    Ok(())
}

impl Target {
    /// Prepares a broker.
    ///
    /// # Errors
    /// A start command without a program or without {port}, and files that cannot be read or written.
    pub fn new(args: &Args, directory: &Path, address: SocketAddr) -> Result<Target> {
        let config = directory.join("config");
        let dir = directory.display().to_string();
        let dir = dir.trim_end_matches('/');
        let fill = |text: &str| {
            let port = address.port().to_string();
            text.replace("{port}", &port)
                .replace("{dir}", dir)
                .replace("{config}", &config.display().to_string())
        };
        let (program, arguments) = match (&args.start, args.broker) {
            (Some(start), _) => {
                if let Some(template) = &args.config {
                    let text = std::fs::read_to_string(template)
                        .with_context(|| format!("--config {}", template.display()))?;
                    std::fs::write(&config, fill(&text)).with_context(|| config.display().to_string())?;
                }
                parse(start, args.config.is_some(), fill)?
            }
            (None, Broker::Meridian) => {
                // Queues are large: a full queue drops messages by its rule, which this test does not examine.
                let words = "start --listen 127.0.0.1:{port} --data-dir {dir}/data --http off \
                             --set queue.messages_max=1000000 --set queue.bytes_max=1GiB";
                let words = words.split(' ').map(fill).collect();
                (profile_directory(args.debug).join("meridian"), words)
            }
            (None, kind) => {
                let persistence =
                    if kind == Broker::Mosquitto { Persistence::EveryChange(dir) } else { Persistence::Off };
                let listener = fill("listener {port} 127.0.0.1\n");
                std::fs::write(&config, mosquitto::config(&listener, persistence))?;
                let program = mosquitto::program().context("mosquitto is not installed")?;
                (program, vec!["-c".to_owned(), config.display().to_string()])
            }
        };
        Ok(Target { program, arguments, address, log: directory.join("log"), process: None })
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.program.display(), self.arguments.join(" "))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn start(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log).context("log")?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C reaches this process only, or the broker would seem to end by itself.
        command.process_group(0);
        self.process = Some(Guarded::spawn(&mut command)?);
        Ok(())
    }

    /// Exit status, when it is not running.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(Guarded::ended)
    }

    fn process(&mut self) -> Result<Guarded> {
        self.process.take().context("no broker is running")
    }

    /// Kills it by SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        let mut process = self.process()?;
        process.child().kill().context("SIGKILL")?;
        process.child().wait().context("SIGKILL")?;
        ensure!(
            !probe::listens(self.address),
            "a process still listens after the kill: the start command has to become the broker, \
                 so let a script `exec` it"
        );
        Ok(())
    }

    /// Ends it by `signal`. Returns the time with SIGTERM.
    pub fn stop(&mut self, signal: Signal) -> Result<Option<Duration>> {
        if signal == Signal::Kill {
            return self.kill().map(|()| None);
        }
        let mut process = self.process()?;
        let asked = Instant::now();
        // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
        unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
        match process.wait(STOP_MAX) {
            Some(_) => Ok(Some(asked.elapsed())),
            None if interrupted() => bail!("interrupted"),
            None => bail!("SIGTERM did not end it in {} s", STOP_MAX.as_secs()),
        }
    }

    /// The last lines of its output.
    pub fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Program and arguments of a start command.
fn parse(start: &str, config: bool, fill: impl Fn(&str) -> String) -> Result<(PathBuf, Vec<String>)> {
    ensure!(
        start.contains("{port}") || config,
        "--start `{start}` has no {{port}}, so the broker would not know where to listen"
    );
    ensure!(
        config || !start.contains("{config}"),
        "--start `{start}` has {{config}}: give the file with --config"
    );
    let mut words = start.split_whitespace();
    let program = words.next().context("--start is empty")?;
    Ok((program.into(), words.map(fill).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_commands_are_filled_in() {
        let fill = |text: &str| text.replace("{port}", "77").replace("{dir}", "/d");
        let (program, arguments) = parse("broker  -p {port} --data={dir}/x", false, fill).unwrap();
        assert_eq!(
            (program.to_str().unwrap(), arguments),
            ("broker", vec!["-p".into(), "77".into(), "--data=/d/x".into()])
        );
        assert!(parse("broker -p 1883", false, fill).unwrap_err().to_string().contains("{port}"));
        assert!(
            parse("broker -p {port} -c {config}", false, fill).unwrap_err().to_string().contains("--config")
        );
        assert!(parse("broker", true, fill).is_ok());
        assert!(parse("", true, fill).is_err());
    }
}
