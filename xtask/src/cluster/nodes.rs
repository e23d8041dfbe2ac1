//! A cluster of processes on 127.0.0.x.

use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::child::{Guarded, interrupted};

/// Maximum time until a node serves and has its links.
const START: Duration = Duration::from_secs(60);

pub struct Nodes {
    program: PathBuf,
    directory: PathBuf,
    /// Flags of each node: for finding the others, and settings.
    flags: Vec<Vec<String>>,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub name: String,
    pub mqtt: SocketAddr,
    pub http: SocketAddr,
    process: Guarded,
}

impl Nodes {
    /// Starts `cores` cores and `replicants` replicants of the program, with ports from `port` on and further settings.
    ///
    /// # Errors
    /// A node ends, or does not reach all others in time; its log is named.
    pub fn start(
        program: &Path,
        directory: &Path,
        (cores, replicants): (usize, usize),
        port: u16,
        settings: &[&str],
    ) -> Result<Self> {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory)?;
        fs::write(directory.join("secret"), "a secret for the nodes of this test\n")?;
        let mut config = fs::File::create(directory.join("cluster.toml"))?;
        writeln!(config, "[cluster]\nsecret_file = {:?}", directory.join("secret"))?;
        let address = |number| SocketAddr::from((host(number), port + 2));
        let join: Vec<String> = (1..=cores).map(|number| address(number).to_string()).collect();
        let mut flags = Vec::new();
        for number in 1..=cores + replicants {
            let role = if number <= cores { "core" } else { "replicant" };
            let address = address(number).to_string();
            let mut words =
                vec!["--cluster-listen".to_owned(), address, "--role".to_owned(), role.to_owned()];
            // A single core without `join` starts a cluster.
            if cores > 1 || number > cores {
                words.extend(["--join".to_owned(), join.join(",")]);
            }
            words.extend(settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
            flags.push(words);
        }
        let mut nodes = Vec::new();
        for number in 1..=cores + replicants {
            let (mqtt, http) = ((host(number), port).into(), (host(number), port + 1).into());
            nodes.push(start_node(program, directory, (number, &flags[number - 1]), mqtt, http)?);
        }
        let mut started = Self { program: program.to_owned(), directory: directory.to_owned(), flags, nodes };
        started.wait_for_links()?;
        Ok(started)
    }

    /// Kills a node by `kill -9`; it is gone when this returns.
    pub fn kill(&mut self, at: usize) -> Result<()> {
        let process = self.nodes[at].process.child();
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Removes the data of a node that does not run.
    pub fn remove_disk(&self, at: usize) -> Result<()> {
        Ok(fs::remove_dir_all(self.directory.join(&self.nodes[at].name))?)
    }

    /// Restarts a node with the same data, and waits until it reaches all others.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.start_again(at)?;
        self.wait_for_links()
    }

    /// Restarts a node without waiting.
    pub fn start_again(&mut self, at: usize) -> Result<()> {
        let Node { mqtt, http, .. } = self.nodes[at];
        let flags = &self.flags[at];
        self.nodes[at] = start_node(&self.program, &self.directory, (at + 1, flags), mqtt, http)?;
        Ok(())
    }

    /// Waits until every node reaches all others, and knows their routes.
    ///
    /// # Errors
    /// A node ends, or does not do so in time; its log is named.
    pub fn wait_for_links(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        let wanted = self.nodes.len() - 1;
        loop {
            let mut missing = None;
            for node in &mut self.nodes {
                let log = self.directory.join(format!("{}.log", node.name));
                if let Some(status) = node.process.ended() {
                    bail!("{} ended ({status}), see {}", node.name, log.display());
                }
                let joined = is_ready(node.http) && node.view().is_ok_and(|view| is_joined(&view, wanted));
                if !joined {
                    missing = Some((node.name.clone(), log));
                }
            }
            let Some((name, log)) = missing else { return Ok(()) };
            if Instant::now() > deadline {
                bail!("{name} does not reach all others in {} s, see {}", START.as_secs(), log.display());
            }
            if interrupted() {
                bail!("interrupted");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Node {
    /// Process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
        unsafe { libc::kill(self.process.id() as i32, signal) };
    }

    /// Response of `GET /api/v1/cluster`.
    pub fn view(&self) -> Result<serde_json::Value> {
        view(self.http)
    }
}

/// Response of `GET /api/v1/cluster` of the node with this HTTP address.
pub fn view(http: SocketAddr) -> Result<serde_json::Value> {
    document(http, "/api/v1/cluster")
}

/// The JSON document at a path of the node.
pub fn document(http: SocketAddr, path: &str) -> Result<serde_json::Value> {
    let answer = get(http, path)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP response")?;
    Ok(serde_json::from_str(body)?)
}

/// Returns whether the node with this HTTP address accepts clients.
pub fn is_ready(http: SocketAddr) -> bool {
    get(http, "/health/ready").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

/// The whole response of the node with this HTTP address.
pub fn get(http: SocketAddr, path: &str) -> Result<String> {
    ask(http, "GET", path, "")
}

/// The whole response to a request with this method and JSON body.
pub fn ask(http: SocketAddr, method: &str, path: &str, json: &str) -> Result<String> {
    use std::io::Read as _;
    let mut stream = std::net::TcpStream::connect_timeout(&http, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let body = match json.len() {
        0 => String::new(),
        length => format!("content-type: application/json\r\ncontent-length: {length}\r\n"),
    };
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {http}\r\nconnection: close\r\n{body}\r\n{json}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns whether the node reaches all others, and knows their routes.
pub fn is_joined(view: &serde_json::Value, wanted: usize) -> bool {
    let links = view["links"].as_array().map_or(0, |links| {
        links
            .iter()
            .filter(|link| link["state"] == "up" && link["connections"] == link["connections_wanted"])
            .count()
    });
    let known = view["routes"].as_array().map_or(0, Vec::len);
    links == wanted && known == wanted + 1 && view["acknowledging"] == true
}

fn host(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, number as u8)
}

fn start_node(
    program: &Path,
    directory: &Path,
    (number, flags): (usize, &[String]),
    mqtt: SocketAddr,
    http: SocketAddr,
) -> Result<Node> {
    let name = format!("n{number}");
    let log = fs::File::create(directory.join(format!("{name}.log")))?;
    let mut command = Command::new(program);
    command.arg("start").arg("--config").arg(directory.join("cluster.toml"));
    command.args(["--name", &name, "--workers", "2"]).args(flags);
    command.args(["--listen", &mqtt.to_string(), "--http", &http.to_string()]);
    command.arg("--data-dir").arg(directory.join(&name));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(Node { name, mqtt, http, process: Guarded::spawn(&mut command)? })
}
