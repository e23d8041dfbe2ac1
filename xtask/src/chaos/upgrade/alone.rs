//! The data directory of a node alone: the new version starts with that of the old one, and the old one with that of
//! the new one.

use super::{Programs, Version};
use crate::bench::child::{Guarded, until};
use crate::chaos::cluster::CheckResults;
use crate::cluster::client::{Client, Login};
use crate::cluster::nodes::is_ready;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of a start and of a stop.
const PATIENCE: Duration = Duration::from_secs(40);
/// Maximum time for a message to arrive.
const ARRIVAL: Duration = Duration::from_secs(20);
const EXPIRY_S: u32 = 3600;
const ALICE: Login<'static> = Login { username: "alice", password: "an old password" };
/// Number of messages that wait in a queue at each restart.
const QUEUED: u32 = 50;

struct Node<'a> {
    programs: Programs<'a>,
    directory: &'a Path,
    mqtt: SocketAddr,
    http: SocketAddr,
    process: Option<Guarded>,
}

/// Starts the old version, this one, the old one and this one, all with one data directory.
pub fn run(port: u16, programs: Programs<'_>, directory: &Path, results: &mut CheckResults) -> Result<()> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)?;
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (mqtt, http) = (address(port), address(port + 1));
    let mut node = Node { programs, directory, mqtt, http, process: None };
    node.start(Version::Old)?;
    node.add_user()?;
    let mut reader = Client::connect_as(mqtt, "reader", ALICE, EXPIRY_S)?;
    reader.subscribe("queue/#", 2, "local")?;
    reader.disconnect()?;
    for (round, version) in [Version::New, Version::Old, Version::New].into_iter().enumerate() {
        node.fill(round)?;
        node.stop()?;
        let begun = Instant::now();
        node.start(version)?;
        println!("a node alone: {version} is ready after {:.1} s", begun.elapsed().as_secs_f64());
        let found = node.examine(round);
        results.check(found.is_ok(), || {
            let why = found.err().map_or_else(String::new, |error| format!("{error:#}"));
            format!("a node alone, {version} with the data of the other version: {why}")
        });
    }
    node.stop()
}

impl Node<'_> {
    fn start(&mut self, version: Version) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.directory.join("node.log"))?;
        let mut command = Command::new(self.programs.of(version));
        command.args(["start", "--listen", &self.mqtt.to_string(), "--http", &self.http.to_string()]);
        command.arg("--data-dir").arg(self.directory.join("data"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Guarded::spawn(&mut command)?;
        let ready = until(PATIENCE, || match process.ended() {
            Some(status) => Some(Err(status)),
            None => is_ready(self.http).then_some(Ok(())),
        });
        let log = self.directory.join("node.log");
        match ready {
            Some(Ok(())) => self.process = Some(process),
            Some(Err(status)) => anyhow::bail!("{version} ended ({status}): see {}", log.display()),
            None => anyhow::bail!("{version} is not ready: see {}", log.display()),
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("no node is running")?;
        // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
        unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
        process.wait(PATIENCE).with_context(|| format!("no end in {} s", PATIENCE.as_secs()))?;
        Ok(())
    }

    fn add_user(&self) -> Result<()> {
        let password = self.directory.join("password");
        fs::write(&password, ALICE.password)?;
        let mut command = Command::new(self.programs.old);
        command.args(["ctl", "--url", &format!("http://{}", self.http), "users", "add", ALICE.username]);
        let done = command.arg("--password-file").arg(password).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "ctl users add: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    /// Publishes for the queue of the absent reader, and a retained message.
    fn fill(&self, round: usize) -> Result<()> {
        let mut publisher = Client::connect_as(self.mqtt, "publisher", ALICE, 0)?;
        for number in 0..QUEUED {
            let qos = 1 + (number % 2) as u8;
            publisher.publish("queue/1", &format!("{round} {number}"), qos, false)?;
        }
        publisher.publish("kept/1", &round.to_string(), 1, true)?;
        publisher.disconnect()
    }

    /// Checks users, the queue and the retained message.
    fn examine(&self, round: usize) -> Result<()> {
        let wrong = Login { password: "a wrong password", ..ALICE };
        ensure!(Client::connect_as(self.mqtt, "intruder", wrong, 0).is_err(), "a wrong password is accepted");
        let mut reader = Client::resume_as(self.mqtt, "reader", ALICE, EXPIRY_S)?;
        for number in 0..QUEUED {
            let expected = format!("{round} {number}");
            let found = reader.receive(ARRIVAL)?.map(|message| message.payload);
            ensure!(found.as_ref() == Some(&expected), "the queue has {found:?} instead of {expected}");
        }
        reader.disconnect()?;
        let mut late = Client::connect_as(self.mqtt, "late", ALICE, 0)?;
        late.subscribe("kept/#", 1, "local")?;
        let found = late.receive(ARRIVAL)?.map(|message| message.payload);
        ensure!(found == Some(round.to_string()), "the retained message is {found:?} instead of {round}");
        late.disconnect()
    }
}
