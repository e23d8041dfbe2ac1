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
/// Names of those that keep three copies of a durable session.
pub const DURABLE: [&str; 3] = ["nats", "nats-always", "rabbitmq"];
/// Maximum time until messages are exchanged: nodes of RabbitMQ need a minute while others start.
const START: Duration = Duration::from_secs(180);
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
            "nats" => three_with_jetstream(port + 10, false),
            "nats-always" => three_with_jetstream(port + 30, true),
            "rabbitmq" => three_with_quorum_queues(port + 40),
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

    fn spawn(&mut self, program: &Path, arguments: &[&str], environment: &[(&str, String)]) -> Result<()> {
        let log = fs::File::create(self.directory.join(&format!("{}.log", self.processes.len())))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.join(""));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
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
        others.spawn(&program, &["-c", &path.display().to_string()], &[])?;
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
        others.spawn(&program, &[&number.to_string(), &mqtt, &own(number), &nodes[0], &nodes[1]], &[])?;
    }
    Ok(others)
}

/// Starts three servers: MQTT at QoS 1 and 2 needs JetStream, and that needs three of them. They have three copies of
/// each stream, and sync every two minutes, or before each acknowledgement.
fn three_with_jetstream(port: u16, syncs_first: bool) -> Result<Others> {
    let (recipe, program) = installed("nats")?;
    let (name, sync) = if syncs_first { (", sync always", ", sync_interval: always") } else { ("", "") };
    let mut others = Others::new(format!("{}, JetStream{name}", recipe.version()), port)?;
    let routes: Vec<String> =
        (1..=3).map(|number| format!("\"nats://{}\"", address(number, port + 2))).collect();
    for number in 1..=3 {
        // With more than 32767 it refuses subscriptions at QoS 2.
        let config = format!(
            "server_name: n{number}\nlisten: \"{}\"\nmax_connections: 100000\njetstream {{ store_dir: \"jetstream-{number}\"{sync} }}\n\
             cluster {{ name: bench, listen: \"{}\", routes: [{}] }}\nmqtt {{ listen: \"{}\", max_ack_pending: 32767, stream_replicas: 3, consumer_replicas: 3 }}\n",
            address(number, port + 1),
            address(number, port + 2),
            routes.join(", "),
            address(number, port)
        );
        let path = others.write(&format!("{number}.conf"), &config)?;
        others.spawn(&program, &["-c", &path.display().to_string()], &[])?;
    }
    Ok(others)
}

/// Starts three nodes whose durable sessions are quorum queues. All have one host name, and a port mapper of their own.
fn three_with_quorum_queues(port: u16) -> Result<Others> {
    let program = recipe::find("/usr/lib/rabbitmq/bin/rabbitmq-server")
        .context("not installed (apt-get install rabbitmq-server)")?;
    let mapper = recipe::find("epmd").context("epmd does not exist")?;
    let mut query = Command::new("dpkg-query");
    let version = query.args(["--show", "--showformat", "${Version}", "rabbitmq-server"]).output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let mut others = Others::new(format!("rabbitmq {version}, quorum queues"), port)?;
    let mapper_port = (port + 9).to_string();
    others.spawn(&mapper, &["-port", &mapper_port, "-address", "127.0.0.1"], &[])?;
    let peers: String = (1..=3)
        .map(|number| format!("cluster_formation.classic_config.nodes.{number} = n{number}@localhost\n"))
        .collect();
    let plugins = others.write("enabled_plugins", "[rabbitmq_mqtt].\n")?;
    for number in 1..=3 {
        let config = format!(
            "listeners.tcp = none\nmqtt.listeners.tcp.default = {}\nmqtt.allow_anonymous = true\nmqtt.prefetch = 65535\n\
             mqtt.durable_queue_type = quorum\nlog.console.level = error\ndisk_free_limit.absolute = 200MB\n\
             cluster_formation.peer_discovery_backend = classic_config\n{peers}",
            address(number, port)
        );
        let config = others.write(&format!("{number}/rabbitmq.conf"), &config)?;
        let home = config.parent().context("a directory")?.display().to_string();
        let environment = [
            ("HOME", others.directory.join("").display().to_string()),
            ("ERL_EPMD_PORT", mapper_port.clone()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
            ("RABBITMQ_SERVER_START_ARGS", "-noinput".to_owned()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} -setcookie bench".to_owned(),
            ),
            ("RABBITMQ_NODENAME", format!("n{number}@localhost")),
            ("RABBITMQ_DIST_PORT", (port + u16::from(number)).to_string()),
            ("RABBITMQ_CONF_ENV_FILE", format!("{home}/none")),
            ("RABBITMQ_CONFIG_FILE", config.display().to_string()),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", plugins.display().to_string()),
            ("RABBITMQ_MNESIA_BASE", format!("{home}/mnesia")),
            ("RABBITMQ_LOG_BASE", home),
            ("RABBITMQ_LOGS", "-".to_owned()),
        ];
        others.spawn(&program, &[], &environment)?;
    }
    Ok(others)
}
