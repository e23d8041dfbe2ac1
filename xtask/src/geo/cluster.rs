//! Nodes on the hosts of a lab.

use anyhow::{Context, Result, bail};
use lab::Lab;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::child::{Guarded, interrupted};
use crate::bench::listener::process::Cpu;
use crate::cluster::nodes::{ask, document, is_joined, is_ready, view};

pub const MQTT: u16 = 1883;
const HTTP: u16 = 18083;
const LINK: u16 = 7000;
const CONFIG: &str = "/api/v1/config";
/// Maximum time until all nodes have their links.
const START: Duration = Duration::from_secs(60);

/// Period over which the CPU of an idle node is measured, and its maximum.
const SETTLE: Duration = Duration::from_millis(300);
const IDLE_S: f64 = 0.011;
/// Maximum wait for idle nodes; a node that is never idle is measured as it is.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Composition of a cluster.
pub struct Plan<'a> {
    /// Hosts of cores.
    pub cores: &'a [&'a str],
    /// Hosts of replicants, each attached to one core.
    pub replicants: &'a [&'a str],
    /// Value of `routing.suback`.
    pub level: &'a str,
    /// Value of `cluster.connack`.
    pub connack: &'a str,
    /// Value of `routing.batch_sync`.
    pub batch_sync: &'a str,
    /// Value of `cluster.leaders`.
    pub leaders: &'a str,
}

pub struct Cluster<'a> {
    lab: &'a Lab,
    directory: PathBuf,
    nodes: Vec<(String, Guarded)>,
    /// Cluster flags of each node's command line, by host.
    flags: BTreeMap<String, Vec<String>>,
    /// Time from the start of the first process until each node reaches all others and knows their routes.
    pub start_up: Duration,
}

impl<'a> Cluster<'a> {
    /// Starts the nodes, and waits until each reaches all others and knows their routes.
    ///
    /// # Errors
    /// A node ends, or does not do so in time; its log is named.
    pub fn start(lab: &'a Lab, program: &Path, directory: &Path, plan: &Plan) -> Result<Self> {
        let begun = Instant::now();
        let mut started = Self::begin(lab, program, directory, plan)?;
        started.wait_for_links()?;
        started.start_up = begun.elapsed();
        Ok(started)
    }

    /// Starts the nodes without waiting.
    ///
    /// # Errors
    /// A node cannot be started.
    pub fn begin(lab: &'a Lab, program: &Path, directory: &Path, plan: &Plan) -> Result<Self> {
        Self::begin_with(lab, program, directory, (plan, ""))
    }

    /// Starts the nodes with further configuration, in TOML, without waiting.
    ///
    /// # Errors
    /// A node cannot be started.
    pub fn begin_with(
        lab: &'a Lab,
        program: &Path,
        directory: &Path,
        (plan, further): (&Plan, &str),
    ) -> Result<Self> {
        let directory = directory.join("nodes");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("secret"), "a secret for the nodes of this lab\n")?;
        let mut config = fs::File::create(directory.join("cluster.toml"))?;
        let Plan { level, connack, batch_sync, leaders, .. } = plan;
        writeln!(config, "[routing]\nsuback = {level:?}\nbatch_sync = {batch_sync:?}\n")?;
        writeln!(config, "[cluster]\nsecret_file = {:?}\nconnack = {connack:?}", directory.join("secret"))?;
        writeln!(config, "leaders = {leaders:?}\n\n{further}")?;
        let cores = plan.cores.iter().map(|host| (*host, "core"));
        let replicants = plan.replicants.iter().map(|host| (*host, "replicant"));
        let hosts: Vec<(&str, &str)> = cores.chain(replicants).collect();
        let address = |host: &str| Ok::<_, anyhow::Error>(SocketAddr::from((lab.address(host)?, LINK)));
        let mut flags = BTreeMap::new();
        let join: Result<Vec<String>> =
            plan.cores.iter().map(|host| address(host).map(|address| address.to_string())).collect();
        let join = join?.join(",");
        for (host, role) in &hosts {
            let address = address(host)?.to_string();
            let (region, expect) = (region(host), format!("cluster.expect={}", plan.cores.len()));
            let who = ["--cluster-listen", &address, "--role", role, "--region", region];
            let words = who.into_iter().chain(["--join", &join, "--set", &expect]);
            flags.insert((*host).to_owned(), words.map(str::to_owned).collect());
        }
        let mut started = Self { lab, directory, nodes: Vec::new(), flags, start_up: Duration::ZERO };
        for (host, _) in &hosts {
            let process = started.start_node(program, host)?;
            started.nodes.push(((*host).to_owned(), process));
        }
        Ok(started)
    }

    /// Starts a node that belongs to no cluster, and waits until it serves.
    ///
    /// # Errors
    /// It ends, or does not serve in time; its log is named.
    pub fn start_alone(lab: &'a Lab, program: &Path, directory: &Path, host: &str) -> Result<Self> {
        let directory = directory.join("nodes");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("cluster.toml"), "")?;
        let mut alone =
            Self { lab, directory, nodes: Vec::new(), flags: BTreeMap::new(), start_up: Duration::ZERO };
        let process = alone.start_node(program, host)?;
        alone.nodes.push((host.to_owned(), process));
        alone.wait_for_links()?;
        Ok(alone)
    }

    /// Kills a node by `kill -9`; it is gone when this returns.
    ///
    /// # Errors
    /// The host has no node.
    pub fn kill(&mut self, host: &str) -> Result<()> {
        let process = self.node(host)?.child();
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Restarts a killed node with the same data, without waiting for it.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_again(&mut self, program: &Path, host: &str) -> Result<()> {
        let process = self.start_node(program, host)?;
        *self.node(host)? = process;
        Ok(())
    }

    fn node(&mut self, host: &str) -> Result<&mut Guarded> {
        let node = self.nodes.iter_mut().find(|(name, _)| name == host);
        node.map(|(_, process)| process).with_context(|| format!("no node is on {host}"))
    }

    /// Process id of a node.
    ///
    /// # Errors
    /// The host has no node.
    pub fn pid(&self, host: &str) -> Result<u32> {
        let node = self.nodes.iter().find(|(name, _)| name == host);
        node.map(|(_, process)| process.id()).with_context(|| format!("no node is on {host}"))
    }

    pub fn lab(&self) -> &'a Lab {
        self.lab
    }

    fn start_node(&self, program: &Path, host: &str) -> Result<Guarded> {
        let mqtt = SocketAddr::from((self.lab.address(host)?, MQTT));
        let mut command = Command::new(program);
        command.arg("start").arg("--config").arg(self.directory.join("cluster.toml"));
        command.args(["--name", host, "--workers", "2"]);
        command.args(self.flags.get(host).into_iter().flatten());
        command.args(["--listen", &mqtt.to_string(), "--http", &http().to_string()]);
        // The lab is isolated: it has no other clients.
        command.args(["--set", "auth.allow_anonymous=true", "--set", "auth.no_match=allow"]);
        command.arg("--data-dir").arg(self.directory.join(host));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(self.log(host))?);
        self.lab.enter_host(host, &mut command)?;
        Guarded::spawn(&mut command)
    }

    fn log(&self, host: &str) -> PathBuf {
        self.directory.join(format!("{host}.log"))
    }

    /// Waits until each node reaches all others and knows their routes.
    ///
    /// # Errors
    /// A node ends, or does not do so in time; its log is named.
    pub fn wait_for_links(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        let wanted = self.nodes.len() - 1;
        loop {
            for (host, process) in &mut self.nodes {
                if let Some(status) = process.ended() {
                    bail!("{host} ended ({status}), see {}/{host}.log", self.directory.display());
                }
            }
            let joined = |host: &str| {
                self.lab.within(host, || is_ready(http())).unwrap_or_default()
                    && (wanted == 0 || self.view(host).is_ok_and(|view| is_joined(&view, wanted)))
            };
            let Some((missing, _)) = self.nodes.iter().find(|(host, _)| !joined(host)) else { return Ok(()) };
            if interrupted() {
                bail!("interrupted");
            }
            if Instant::now() > deadline {
                let log = self.log(missing);
                bail!("{missing} does not reach all others in {} s, see {}", START.as_secs(), log.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the nodes use hardly any CPU. Each fills the first segments of its log with zeros when it serves
    /// already, which would disturb the measurement.
    ///
    /// # Errors
    /// A node is gone.
    pub fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_MAX;
        while Instant::now() < deadline && !interrupted() {
            let before = self.cpu_s()?;
            std::thread::sleep(SETTLE);
            if self.cpu_s()? - before < IDLE_S * self.nodes.len() as f64 {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether the node on this host leads all shards.
    ///
    /// # Errors
    /// No answer.
    pub fn leads_all(&self, host: &str) -> Result<bool> {
        let view = self.view(host)?;
        let shards = view["shards"]["items"].as_array().context("the shards are not placed")?;
        Ok(shards.iter().all(|shard| shard["leader"] == host))
    }

    /// Waits until no node knows a route of any client.
    ///
    /// # Errors
    /// A node still does after that time.
    pub fn wait_until_forgotten(&self, longest: Duration) -> Result<()> {
        if self.flags.is_empty() {
            // The clients of a node without a cluster have no routes to other nodes.
            return Ok(());
        }
        let deadline = Instant::now() + longest;
        let knows = |host: &str| {
            let routes = self.view(host)?["routes"].as_array().cloned().unwrap_or_default();
            Ok::<_, anyhow::Error>(routes.iter().any(|routes| routes["filters"] != 0))
        };
        for (host, _) in &self.nodes {
            while knows(host)? {
                if interrupted() {
                    bail!("interrupted");
                }
                if Instant::now() > deadline {
                    bail!("{host} knows routes of clients that left {} s ago", longest.as_secs());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    /// CPU seconds that the nodes have used since their starts.
    ///
    /// # Errors
    /// A node is gone.
    pub fn cpu_s(&self) -> Result<f64> {
        let all = self.nodes.iter().map(|(_, process)| Ok(Cpu::now(process.id())?.broker_s));
        all.sum()
    }

    /// Response of `GET /api/v1/cluster` of a node.
    ///
    /// # Errors
    /// No answer.
    pub fn view(&self, host: &str) -> Result<Value> {
        self.lab.within(host, || view(http()))?
    }

    /// Hosts of its nodes.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|(host, _)| &host[..])
    }

    /// Response of a node to a GET request for a JSON document.
    ///
    /// # Errors
    /// No answer.
    pub fn document(&self, host: &str, path: &str) -> Result<Value> {
        self.lab.within(host, || document(http(), path))?
    }

    /// Directories with the data of the nodes.
    pub fn data(&self) -> impl Iterator<Item = PathBuf> {
        self.nodes.iter().map(|(host, _)| self.directory.join(host))
    }

    /// Changes a setting of the whole cluster, as an operator on this node.
    ///
    /// # Errors
    /// It is refused.
    pub fn set(&self, host: &str, name: &str, value: &str) -> Result<()> {
        let body = json!({"changes": {name: value}, "scope": "cluster"}).to_string();
        let answer = self.lab.within(host, || ask(http(), "PATCH", CONFIG, &body))??;
        let line = answer.lines().next().unwrap_or_default();
        if !line.starts_with("HTTP/1.1 200 ") {
            bail!("{host} does not set {name} = {value}: {line}");
        }
        Ok(())
    }

    /// Effective value of a setting on a node.
    ///
    /// # Errors
    /// No answer.
    pub fn setting(&self, host: &str, name: &str) -> Result<Value> {
        let config = self.lab.within(host, || document(http(), CONFIG))??;
        let mut settings = config["settings"].as_array().into_iter().flatten();
        let setting = settings.find(|setting| setting["name"] == name);
        setting.map(|setting| setting["value"].clone()).with_context(|| format!("{host} has no {name}"))
    }

    /// Number of frames that this node's links sent again.
    ///
    /// # Errors
    /// No answer, or one without lanes, which would count nothing.
    pub fn retransmitted(&self, host: &str) -> Result<u64> {
        let view = self.view(host)?;
        let counts: Option<Vec<u64>> = view["links"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|link| link["lanes"].as_array().cloned().unwrap_or_default())
            .map(|lane| lane["retransmitted"].as_u64())
            .collect();
        match counts {
            Some(counts) if !counts.is_empty() => Ok(counts.iter().sum()),
            _ => bail!("{host} does not report its lanes"),
        }
    }

    /// Peak resident memory of a node so far, in MiB.
    ///
    /// # Errors
    /// The host has no node.
    pub fn memory_peak(&self, host: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid(host)?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib =
            line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
        kib.map_or_else(|| bail!("{host} has no VmHWM"), |kib| Ok(kib / 1024))
    }
}

/// Region of a host: the name of its place, without the number.
pub fn region(host: &str) -> &str {
    host.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// HTTP address, the same on every host: each has its own loopback.
fn http() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, HTTP).into()
}
