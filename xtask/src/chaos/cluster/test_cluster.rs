//! Nodes of `meridian start --dev-cluster`, which can be killed, stopped and restarted.

use super::disks;
use super::views::{self, Views};
use crate::bench::child::{self, Guarded, until};
use crate::cluster::nodes::{get, is_ready};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Properties of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of its directory, below that of the whole run.
    pub name: &'static str,
    pub cores: usize,
    pub replicants: usize,
    /// Size of each core's own disk in MiB.
    pub disk_mib: Option<u32>,
    pub settings: &'static [&'static str],
}

pub struct TestCluster {
    /// Parent process, which ends the nodes that it has started when it ends.
    _parent: Guarded,
    program: PathBuf,
    directory: PathBuf,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub name: String,
    pub is_core: bool,
    pub mqtt: SocketAddr,
    pub http: SocketAddr,
    id: u32,
    /// Arguments that it was started with.
    arguments: Vec<String>,
    /// Process of a restart by this program.
    process: Option<Guarded>,
}

/// Maximum time until all nodes reach each other.
const START: Duration = Duration::from_secs(60);
/// Maximum time until a process that is asked to stop has ended.
const STOP: Duration = Duration::from_secs(30);
/// Maximum time until the cluster has recovered.
const WHOLE: Duration = Duration::from_secs(60);
/// Maximum number of unread lines of the parent.
const LINES_MAX: usize = 64;
/// Output of the parent when all nodes reach each other.
const READY: &str = "all of them reach each other";

impl TestCluster {
    /// Starts the nodes of a plan, all at the same moment, with settings in addition to the usual ones.
    ///
    /// # Errors
    /// They do not reach each other in time; the logs are named.
    pub fn start(program: &Path, directory: &Path, port: u16, plan: &Plan) -> Result<Self> {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
        for core in (1..=plan.cores).map(|number| directory.join(format!("n{number}"))) {
            plan.disk_mib.map_or(Ok(()), |mib| disks::mount(&core, mib))?;
        }
        let mut command = Command::new(program);
        let size = format!("{}+{}", plan.cores, plan.replicants);
        command.args(["start", "--dev-cluster", &size, "--workers", "1"]);
        command.args([
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--http",
            &format!("127.0.0.1:{}", port + 1),
        ]);
        // Subscriptions have the strongest guarantee. Queues are large, because a full queue drops messages by its
        // rule, which this test does not examine.
        let usual = ["routing.suback=cluster", "queue.messages_max=1000000", "queue.bytes_max=1GiB"];
        for setting in usual.iter().chain(plan.settings) {
            command.args(["--set", setting]);
        }
        command.arg("--data-dir").arg(directory).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(directory.join("parent.log"))?);
        let mut parent = Guarded::spawn(&mut command)?;
        let said = lines(&mut parent)?;
        let mut nodes = Vec::new();
        let deadline = Instant::now() + START;
        loop {
            match said.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.contains(READY) => break,
                Ok(line) => nodes.extend(Node::parse(&line)?),
                Err(_) => {
                    ensure!(!child::interrupted(), "interrupted");
                    let is_there = parent.ended().is_none() && Instant::now() < deadline;
                    ensure!(is_there, "the cluster did not start: see the logs in {}", directory.display());
                }
            }
        }
        // The pipe is read to the end: more output follows later.
        std::thread::spawn(move || said.iter().for_each(drop));
        let wanted = plan.cores + plan.replicants;
        ensure!(nodes.len() == wanted, "{} of {wanted} nodes were printed", nodes.len());
        // Sorts n2 before n10.
        nodes.sort_by(|one: &Node, other| (one.name.len(), &one.name).cmp(&(other.name.len(), &other.name)));
        let (program, directory) = (program.to_owned(), directory.to_owned());
        Ok(Self { _parent: parent, program, directory, nodes })
    }

    /// Removes the disk of a node whose process has ended.
    ///
    /// # Errors
    /// Those of the system.
    pub fn remove_disk(&self, at: usize) -> Result<()> {
        let directory = self.directory.join(&self.nodes[at].name);
        fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())
    }

    /// Returns whether each shard has a leader and so many replicas, as all nodes say, and none of them changes.
    pub fn has_replicas(&self, replicas: usize) -> bool {
        self.nodes.iter().all(|node| {
            let Ok(answer) = get(node.http, "/api/v1/cluster") else { return false };
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let view: Value = serde_json::from_str(body).unwrap_or_default();
            let shards = view["shards"]["items"].as_array().cloned().unwrap_or_default();
            let is_whole = |shard: &Value| {
                shard["replicas"].as_array().is_some_and(|names| names.len() == replicas)
                    && !shard["leader"].is_null()
                    && shard["joining"].is_null()
                    && shard["leaving"].is_null()
            };
            !shards.is_empty() && shards.iter().all(is_whole)
        })
    }

    /// Views of the cluster of all nodes except excluded ones.
    pub fn views(&self, without: impl IntoIterator<Item = usize>) -> Views {
        let without: Vec<usize> = without.into_iter().collect();
        let asked = self.nodes.iter().enumerate().filter(|(at, _)| !without.contains(at));
        Views::new(asked.map(|(at, node)| (at, node.is_core, views::of(node.http))).collect())
    }

    /// The leading core, if all cores agree on it.
    pub fn leader(&self) -> Result<usize> {
        let found = until(WHOLE, || {
            let leader = self.views(None).leader()?;
            self.nodes.iter().position(|node| node.name == leader)
        });
        found.context("the cores do not name one leader")
    }

    /// Waits until all nodes are members, ready, reach each other and know the same routes. Returns the time.
    ///
    /// # Errors
    /// The limit is exceeded, or a process has ended by itself.
    pub fn wait_until_whole(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let done = until(WHOLE, || {
            let gone = self.nodes.iter_mut().find_map(|node| (!node.is_there()).then(|| node.name.clone()));
            if let Some(name) = gone {
                return Some(Err(name));
            }
            let is_ready = self.nodes.iter().all(|node| is_ready(node.http));
            (is_ready && self.views(None).are_whole(self.nodes.len())).then_some(Ok(()))
        });
        let logs = self.directory.display();
        match done {
            Some(Ok(())) => Ok(begun.elapsed()),
            Some(Err(name)) => bail!("{name} has ended by itself: see {logs}/{name}.log"),
            None => {
                bail!(
                    "not whole after {} s ({}): see {logs}",
                    WHOLE.as_secs(),
                    self.views(None).missing(self.nodes.len())
                )
            }
        }
    }

    /// Runs `meridian ctl` with a command for that node and returns its output.
    ///
    /// # Errors
    /// It fails; the error contains its output.
    pub fn ctl(&self, at: usize, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("ctl").args(["--url", &format!("http://{}", self.nodes[at].http)]).args(words);
        let done = command.stdin(Stdio::null()).output()?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let few: String = words.join(" ").chars().take(80).collect();
        ensure!(done.status.success(), "ctl {few} at {}: {}", self.nodes[at].name, said(&done.stderr));
        Ok(said(&done.stdout) + &said(&done.stderr))
    }

    /// Data directory of a node.
    pub fn data(&self, at: usize) -> PathBuf {
        self.directory.join(&self.nodes[at].name)
    }

    /// Log of the node since its first start.
    pub fn log(&self, at: usize) -> String {
        let path = self.directory.join(format!("{}.log", self.nodes[at].name));
        fs::read(path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends SIGKILL to all of these, and waits until they are gone.
    ///
    /// # Errors
    /// One has ended by itself before.
    pub fn kill_at_once(&mut self, which: &[usize]) -> Result<()> {
        for at in which {
            ensure!(self.nodes[*at].is_there(), "{} has ended by itself", self.nodes[*at].name);
        }
        for at in which {
            self.nodes[*at].signal(libc::SIGKILL);
        }
        for at in which {
            let node = &mut self.nodes[*at];
            let gone = until(STOP, || (!node.is_there()).then_some(()));
            gone.with_context(|| format!("{} has not ended", node.name))?;
        }
        Ok(())
    }

    /// Restarts a node.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_again(&mut self, at: usize) -> Result<()> {
        let program = self.program.clone();
        self.start_with(at, &program)
    }

    /// Starts a node that has ended with another program.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_with(&mut self, at: usize, program: &Path) -> Result<()> {
        let node = &mut self.nodes[at];
        let log = self.directory.join(format!("{}.log", node.name));
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new(program);
        command.args(&node.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.process_group(0);
        let process = Guarded::spawn(&mut command)?;
        node.id = process.id();
        node.process = Some(process);
        Ok(())
    }
}

impl Drop for TestCluster {
    /// Kills all nodes at once: an orderly end takes longer with more nodes.
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if node.is_there() {
                node.signal(libc::SIGKILL);
            }
        }
    }
}

impl Node {
    /// Response of its `/health/...`: the status and the rest.
    pub fn health(&self, what: &str) -> Option<(u16, String)> {
        let answer = get(self.http, &format!("/health/{what}")).ok()?;
        Some((answer.split(' ').nth(1)?.parse().ok()?, answer))
    }

    /// Memory of the process in bytes: current and peak.
    pub fn memory(&self) -> (u64, u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap_or_default();
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kib.unwrap_or(0) << 10
        };
        (of("VmRSS:"), of("VmHWM:"))
    }

    /// Parses `n1  core  mqtt://127.0.0.1:1883  http://127.0.0.1:18083  process 77  log PATH`; `None` for a line
    /// about no node.
    fn parse(line: &str) -> Result<Option<Self>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, role, mqtt, http, "process", id, ..] = words[..] else { return Ok(None) };
        let (Some(mqtt), Some(http)) = (mqtt.strip_prefix("mqtt://"), http.strip_prefix("http://")) else {
            return Ok(None);
        };
        let id = id.parse()?;
        let typed = fs::read(format!("/proc/{id}/cmdline"))?;
        let typed = String::from_utf8(typed)?;
        let arguments = typed.split_terminator('\0').skip(1).map(str::to_owned).collect();
        Ok(Some(Self {
            name: name.to_owned(),
            is_core: role == "core",
            mqtt: mqtt.parse()?,
            http: http.parse()?,
            id,
            arguments,
            process: None,
        }))
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: this is a process of the cluster, not yet waited for since it was last seen.
        unsafe { libc::kill(self.id as i32, signal) };
    }

    /// Returns whether the process runs.
    fn is_there(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.ended().is_none(),
            None => is_running(self.id),
        }
    }

    /// Ends the process if it has not ended by itself.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end_if_running(&mut self, signal: libc::c_int) -> Result<()> {
        if self.is_there() { self.end(signal).map(drop) } else { Ok(()) }
    }

    /// Sends a signal that ends the process, and waits until it is gone. Returns the time.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(&mut self, signal: libc::c_int) -> Result<Duration> {
        ensure!(self.is_there(), "{} has ended by itself", self.name);
        let begun = Instant::now();
        self.signal(signal);
        let gone = until(STOP, || (!self.is_there()).then_some(()));
        gone.with_context(|| format!("{} has not ended in {} s", self.name, STOP.as_secs()))?;
        Ok(begun.elapsed())
    }
}

/// Returns whether a process runs. An ended one is a zombie until its parent has waited for it. While other threads of
/// a zombie are left, its ports and files are in use.
fn is_running(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    // Fields of proc(5) from the third one on: the state, and the number of threads.
    let threads = rest.split(' ').nth(17).and_then(|count| count.parse().ok()).unwrap_or(0);
    !rest.starts_with(['Z', 'X']) || threads > 1
}

fn lines(process: &mut Guarded) -> Result<Receiver<String>> {
    let stdout = process.child().stdout.take().context("a pipe")?;
    let (sender, receiver) = sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_describes_a_node_or_is_skipped() {
        let own = std::process::id();
        let line = format!(
            "n4  replicant mqtt://127.0.0.4:2883  http://127.0.0.4:2884  process {own}  log /d/n4.log"
        );
        let node = Node::parse(&line).unwrap().expect("a node");
        assert_eq!((&node.name[..], node.is_core, node.id), ("n4", false, own));
        assert_eq!((node.mqtt.port(), node.http.port()), (2883, 2884));
        for other in ["", "3 cores and 2 replicants on this machine; the first start takes a few seconds"] {
            assert!(Node::parse(other).unwrap().is_none());
        }
        assert!(is_running(own));
    }
}
