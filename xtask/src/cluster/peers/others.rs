//! Clusters of other brokers, set up as documented by them.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::broker::{Directory, Kind};
use crate::bench::child::{Guarded, interrupted};
use crate::bench::mosquitto::{self, Persistence};
use crate::bench::recipe;

/// Names of the known clusters.
pub const NAMES: [&str; 3] = ["mosquitto", "nats", "rmqtt"];
/// Maximum time until messages are exchanged.
const START: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Nodes of a cluster, each with the same port on its own address.
pub struct Others {
    /// Name with its version.
    pub name: String,
    /// The first two of its nodes.
    pub nodes: [SocketAddr; 2],
    processes: Vec<Guarded>,
    directory: Directory,
}

impl Others {
    /// Starts its nodes, which use ports from `port` on.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(name: &str, port: u16) -> Result<Self> {
        match name {
            "mosquitto" => two_with_a_bridge(port),
            "nats" => three_with_jetstream(port + 10),
            "rmqtt" => two_that_broadcast(port + 20),
            _ => bail!("{name} is none of {}", NAMES.join(", ")),
        }
    }

    fn new(name: String, port: u16) -> Result<Self> {
        let nodes = [1, 2].map(|number| address(number, port));
        Ok(Self { name, nodes, processes: Vec::new(), directory: Directory::new()? })
    }

    fn write(&self, file: &str, text: &str) -> Result<PathBuf> {
        let path = self.directory.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    fn spawn(&mut self, program: &Path, arguments: &[&str]) -> Result<()> {
        let log = fs::File::create(self.directory.join(&format!("{}.log", self.processes.len())))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.join(""));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.processes.push(Guarded::spawn(&mut command)?);
        Ok(())
    }

    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Guarded::id).collect()
    }

    /// Waits until a condition holds.
    ///
    /// # Errors
    /// A process ends, or the time is over; the error contains its output.
    pub fn wait_until(&mut self, is_so: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + START;
        while !is_so() {
            ensure!(!interrupted(), "interrupted");
            let ended = self.processes.iter_mut().position(|process| process.ended().is_some());
            if ended.is_some() || Instant::now() > deadline {
                let log = self.directory.join(&format!("{}.log", ended.unwrap_or_default()));
                let text = fs::read_to_string(log).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(8).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!("its nodes exchange no messages; one wrote\n{}", tail.join("\n"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn address(number: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, number), port).into()
}

/// Starts two brokers; the second has a bridge to the first for all topics, in both directions.
fn two_with_a_bridge(port: u16) -> Result<Others> {
    let program = mosquitto::program().context("not installed (apt-get install mosquitto)")?;
    let mut others = Others::new(format!("{}, bridged", Kind::Mosquitto.version()), port)?;
    // A message published on one is sent to the other at its own QoS, even without subscribers there.
    let bridge = format!(
        "connection bench\naddress {}\ntopic # both 2\ncleansession true\nnotifications false\nrestart_timeout 1\n",
        others.nodes[0]
    );
    for (number, more) in [(1, ""), (2, &bridge[..])] {
        let listener = mosquitto::listener(address(number, port));
        let config = mosquitto::config(&listener, Persistence::Off) + more;
        let path = others.write(&format!("{number}.conf"), &config)?;
        others.spawn(&program, &["-c", &path.display().to_string()])?;
    }
    Ok(others)
}

/// The recipe of a broker, and its program.
fn installed(name: &str) -> Result<(recipe::Recipe, PathBuf)> {
    let recipe = recipe::built_in().into_iter().find(|recipe| recipe.name == name).context("a recipe")?;
    recipe.ensure_there(std::env::var_os("CI").is_none())?;
    let program = recipe.program().with_context(|| format!("{name} does not exist"))?;
    Ok((recipe, program))
}

/// Starts two brokers that send each other every message.
fn two_that_broadcast(port: u16) -> Result<Others> {
    let (recipe, program) = installed("rmqtt")?;
    let mut others = Others::new(format!("{}, broadcasting", recipe.version()), port)?;
    let own = |number| address(number, port + 1).to_string();
    let nodes = [1, 2].map(|number| format!("{number}@{}", own(number)));
    for number in [1, 2] {
        let mqtt = address(number, port).to_string();
        others.spawn(&program, &[&number.to_string(), &mqtt, &own(number), &nodes[0], &nodes[1]])?;
    }
    Ok(others)
}

/// Starts three servers: MQTT at QoS 1 and 2 needs JetStream, and that needs three of them.
fn three_with_jetstream(port: u16) -> Result<Others> {
    let (recipe, program) = installed("nats")?;
    let mut others = Others::new(format!("{}, JetStream", recipe.version()), port)?;
    let routes: Vec<String> =
        (1..=3).map(|number| format!("\"nats://{}\"", address(number, port + 2))).collect();
    for number in 1..=3 {
        // With more than 32767 it refuses subscriptions at QoS 2.
        let config = format!(
            "server_name: n{number}\nlisten: \"{}\"\nmax_connections: 100000\njetstream {{ store_dir: \"jetstream-{number}\" }}\n\
             cluster {{ name: bench, listen: \"{}\", routes: [{}] }}\nmqtt {{ listen: \"{}\", max_ack_pending: 32767 }}\n",
            address(number, port + 1),
            address(number, port + 2),
            routes.join(", "),
            address(number, port)
        );
        let path = others.write(&format!("{number}.conf"), &config)?;
        others.spawn(&program, &["-c", &path.display().to_string()])?;
    }
    Ok(others)
}
