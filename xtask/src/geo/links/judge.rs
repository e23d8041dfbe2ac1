//! mqload on the host of the clients: it publishes at one broker and subscribes at another one. It knows for every
//! message whether it arrived, once and in order.

use anyhow::{Context, Result, bail, ensure};
use lab::Lab;
use serde_json::Value;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{CLIENTS, DESK, EAST, WEST};
use crate::bench::child::{Guarded, interrupted};

/// Seconds between the last SUBACK and the first message: subscriptions are on the other side by then.
const PAUSE: u32 = 5;
/// Bytes from clients to brokers that are more than connections need: messages are being published.
const PUBLISHING: u64 = 256 * 1024;
/// Period of the calls while a load runs.
const TICK: Duration = Duration::from_millis(250);
/// Maximum bytes per second from brokers to clients while nothing arrives: answers to PINGREQ.
const QUIET: f64 = 6000.0;
/// Seconds of the run in addition to those of publishing: warm-up and rounding.
const MORE: u32 = 2;
/// Maximum time until messages are published.
const SETUP: Duration = Duration::from_secs(90);

/// Durable publishers and subscribers that go to the next node when a connection ends.
#[derive(Clone)]
pub struct Load {
    pub publish_to: Vec<SocketAddr>,
    pub subscribe_to: Vec<SocketAddr>,
    /// Protocol level: 4 or 5.
    pub version: u8,
    pub qos: u8,
    pub payload: u32,
    /// Messages per second of all publishers.
    pub rate: f64,
    /// Seconds of publishing.
    pub seconds: u32,
    /// Publishers, subscribers and the topology of mqload.
    pub clients: (u32, u32, &'static str),
    /// Maximum seconds until everything has arrived.
    pub drain: u32,
    /// Time without deliveries, while nothing waits, after which the rest is missing.
    pub still: Duration,
}

impl Load {
    fn arguments(&self) -> Vec<String> {
        let list =
            |hosts: &[SocketAddr]| hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let (publishers, subscribers, topology) = self.clients;
        let words = format!(
            "ha --allow-remote -V {} -q {} -l {} -R {:.0} -d {} -p {publishers} -s {subscribers} --topology {topology} \
             --drain {} --pause {PAUSE} --warmup 1 -w 100 --ping-timeout 10 --pub-host {} --sub-host {}",
            self.version,
            self.qos,
            self.payload,
            self.rate.max(1.0),
            self.seconds,
            self.drain,
            list(&self.publish_to),
            list(&self.subscribe_to)
        );
        words.split(' ').map(str::to_owned).collect()
    }
}

/// A run of mqload.
pub struct Judge {
    process: Guarded,
    reader: Option<JoinHandle<std::io::Result<String>>>,
}

impl Judge {
    /// Starts mqload on the host of the clients.
    ///
    /// # Errors
    /// It does not start.
    pub fn start<S: AsRef<std::ffi::OsStr>>(lab: &Lab, mqload: &Path, arguments: &[S]) -> Result<Self> {
        let mut command = Command::new(mqload);
        command.args(arguments).arg("--quiet");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        lab.enter_host(CLIENTS, &mut command)?;
        let mut process = Guarded::spawn(&mut command)?;
        let mut out = process.child().stdout.take().context("no standard output")?;
        // Read while it runs: the report may be larger than a pipe.
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        Ok(Self { process, reader: Some(reader) })
    }

    fn ended(&mut self) -> bool {
        self.process.ended().is_some()
    }

    /// Ends the run early; it still reports.
    fn stop(&mut self) {
        if !self.ended() {
            // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
            unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        }
    }

    /// Waits for the report.
    ///
    /// # Errors
    /// It takes longer, or the run could not begin.
    pub fn report(mut self, longest: Duration) -> Result<Value> {
        if self.process.wait(longest).is_none() {
            bail!("mqload does not end");
        }
        let reader = self.reader.take().context("a reader")?;
        let text = reader.join().ok().context("the reader panicked")??;
        let report: Value = serde_json::from_str(text.trim()).context("the report of mqload")?;
        ensure!(report["error"].is_null(), "mqload: {}: {}", report["error"], report["reasons"]);
        Ok(report)
    }
}

/// Runs a load. `tick` is called several times a second with the time since the first message, and returns whether
/// nothing waits between the brokers. The run ends when everything has arrived, or nothing waits and nothing arrives.
///
/// # Errors
/// `tick` fails, or the load does.
pub fn drive(
    lab: &Lab,
    mqload: &Path,
    load: &Load,
    mut tick: impl FnMut(Duration) -> Result<bool>,
) -> Result<Value> {
    let before = lab.carried(DESK, WEST)?;
    let mut judge = Judge::start(lab, mqload, &load.arguments())?;
    let begun = Instant::now();
    while !judge.ended() && lab.carried(DESK, WEST)? < before + PUBLISHING {
        ensure!(!interrupted(), "interrupted");
        ensure!(begun.elapsed() < SETUP, "nothing is published after {} s", SETUP.as_secs());
        std::thread::sleep(TICK / 5);
    }
    let published = Instant::now();
    let (publishing, longest) =
        (Duration::from_secs(u64::from(load.seconds + MORE)), u64::from(load.seconds + load.drain) + 60);
    let mut received = (Instant::now(), lab.carried(EAST, DESK)?);
    let (mut still_since, mut is_stopped) = (None, false);
    while !judge.ended() {
        ensure!(!interrupted(), "interrupted");
        ensure!(published.elapsed().as_secs() < longest, "mqload does not end");
        let is_idle = tick(published.elapsed())?;
        let now = lab.carried(EAST, DESK)?;
        let is_quiet = (now - received.1) as f64 <= QUIET * received.0.elapsed().as_secs_f64();
        received = (Instant::now(), now);
        if !is_idle || !is_quiet || published.elapsed() < publishing {
            still_since = None;
        }
        let still_for = still_since.get_or_insert_with(Instant::now).elapsed();
        if still_for > load.still && published.elapsed() > publishing && !is_stopped {
            // A second signal would end it without a report.
            judge.stop();
            is_stopped = true;
        }
        std::thread::sleep(TICK);
    }
    judge.report(Duration::from_secs(60))
}

/// Waits until messages get from one broker to the other.
///
/// # Errors
/// They do not.
pub fn exchanged(
    lab: &Lab,
    mqload: &Path,
    from: SocketAddr,
    to: SocketAddr,
    longest: Duration,
) -> Result<()> {
    let begun = Instant::now();
    let words = format!(
        "pubsub --allow-remote -V 4 -p 1 -s 1 -q 1 -m 20 --max-time 10 --pause 1 --drain 3 --connect-timeout 3 --setup-timeout 8 \
         --pub-host {from} --sub-host {to}"
    );
    let arguments: Vec<&str> = words.split(' ').collect();
    loop {
        let report = Judge::start(lab, mqload, &arguments)?.report(Duration::from_secs(60));
        if report.as_ref().is_ok_and(|report| report["totals"]["unique"] == 20) {
            return Ok(());
        }
        ensure!(!interrupted(), "interrupted");
        if begun.elapsed() > longest {
            report?;
            bail!("messages from {from} do not arrive at {to}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_durable_clients_at_both_brokers() {
        let address = |last| SocketAddr::from(([10, 77, 1, last], 1883));
        let load = Load {
            publish_to: vec![address(1), address(2)],
            subscribe_to: vec![address(3)],
            version: 5,
            qos: 2,
            payload: 256,
            rate: 1000.4,
            seconds: 20,
            clients: (20, 4, "fan-in"),
            drain: 60,
            still: Duration::from_secs(1),
        };
        let words = load.arguments().join(" ");
        assert!(words.starts_with("ha --allow-remote -V 5 -q 2 -l 256 -R 1000 -d 20 -p 20 -s 4 "), "{words}");
        assert!(
            words.ends_with("--pub-host 10.77.1.1:1883,10.77.1.2:1883 --sub-host 10.77.1.3:1883"),
            "{words}"
        );
    }
}
