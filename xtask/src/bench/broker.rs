//! Brokers that are measured: started on a free port of 127.0.0.1, in a directory of their own.

use super::child::{self, Guarded};
use super::recipe::{self, Recipe};
use crate::repository::root;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Meridian,
    Mosquitto,
    Peer(&'static Recipe),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Kind::Meridian => "meridian",
            Kind::Mosquitto => "mosquitto",
            Kind::Peer(recipe) => &recipe.name,
        })
    }
}

impl Kind {
    /// Name and version as the program itself says them.
    pub fn version(self) -> String {
        let (program, argument) = match self {
            Kind::Meridian => (meridian(), "--version"),
            Kind::Mosquitto => (mosquitto().unwrap_or_default(), "-h"),
            Kind::Peer(recipe) => return recipe.version(),
        };
        let said = Command::new(program).arg(argument).output().map(|o| o.stdout).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        said.lines().next().map_or_else(|| self.to_string(), |line| line.replace(" version ", " "))
    }
}

pub fn meridian() -> PathBuf {
    root().join("target/release/meridian")
}

pub fn mosquitto() -> Option<PathBuf> {
    recipe::find("mosquitto")
}

/// Nothing is limited that ours does not limit. A process that changes its user would outlive us when we are killed.
const MOSQUITTO_CONFIG: &str = "allow_anonymous true\n\
    set_tcp_nodelay true\n\
    max_queued_messages 1000000\n\
    max_inflight_messages 0\n\
    persistence false\n\
    user root\n";

/// A running broker. Dropping it ends the process and removes its files.
pub struct Broker {
    process: Guarded,
    directory: Directory,
    pub address: SocketAddr,
}

impl Broker {
    /// Returns once it accepts connections.
    ///
    /// # Errors
    /// When the program cannot be started, ends, or does not listen within 20 s.
    pub fn start(kind: Kind, workers: Option<u32>) -> Result<Broker> {
        let workers = workers.map(|workers| ["--workers".to_owned(), workers.to_string()]);
        Broker::start_with(kind, &workers.into_iter().flatten().collect::<Vec<_>>())
    }

    /// Ours, with its HTTP interface on an address.
    pub fn start_with_http(http: SocketAddr) -> Result<Broker> {
        Broker::start_with(Kind::Meridian, &["--http".to_owned(), http.to_string()])
    }

    /// Ours, with the users of a password file.
    pub fn start_with_users(password_file: &Path) -> Result<Broker> {
        let setting = format!("auth.password_file={}", password_file.display());
        Broker::start_with(Kind::Meridian, &["--set".to_owned(), setting])
    }

    /// `arguments` are for ours.
    fn start_with(kind: Kind, arguments: &[String]) -> Result<Broker> {
        let directory = Directory::new()?;
        let address = free_address()?;
        let command = match kind {
            Kind::Meridian => {
                let mut command = Command::new(meridian());
                command.args(["start", "--listen", &address.to_string()]);
                command.arg("--data-dir").arg(directory.0.join("data"));
                if !arguments.iter().any(|argument| argument == "--http") {
                    command.args(["--http", "off"]);
                }
                command.args(arguments);
                command
            }
            Kind::Mosquitto => {
                let path = directory.0.join("mosquitto.conf");
                let listener = format!("listener {} {}\n", address.port(), address.ip());
                std::fs::write(&path, listener + MOSQUITTO_CONFIG).context("mosquitto.conf")?;
                let mut command = Command::new(mosquitto().context("mosquitto is not installed")?);
                command.arg("-c").arg(path);
                command
            }
            Kind::Peer(recipe) => recipe.command(&directory.0, address)?,
        };
        Broker::spawn(command, directory, address)
    }

    /// With the configuration file that `config` writes for an address.
    pub fn start_configured(kind: Kind, config: impl FnOnce(SocketAddr) -> String) -> Result<Broker> {
        let (directory, address) = (Directory::new()?, free_address()?);
        let path = directory.0.join("config");
        let command = match kind {
            Kind::Meridian => {
                std::fs::write(&path, config(address))?;
                let mut command = Command::new(meridian());
                command.args(["start", "--http", "off", "--data-dir"]).arg(directory.0.join("data"));
                command.arg("--config").arg(path);
                command
            }
            Kind::Mosquitto => {
                std::fs::write(&path, config(address) + MOSQUITTO_CONFIG)?;
                let mut command = Command::new(mosquitto().context("mosquitto is not installed")?);
                command.arg("-c").arg(path);
                command
            }
            Kind::Peer(recipe) => bail!("{} is not configured here", recipe.name),
        };
        Broker::spawn(command, directory, address)
    }

    fn spawn(mut command: Command, directory: Directory, address: SocketAddr) -> Result<Broker> {
        let log = File::create(directory.0.join("log")).context("log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut broker = Broker { process: Guarded::spawn(&mut command)?, directory, address };
        broker.wait_for_port()?;
        Ok(broker)
    }

    fn wait_for_port(&mut self) -> Result<()> {
        let address = self.address;
        let listens = child::until(Duration::from_secs(20), || {
            if let Some(status) = self.process.ended() {
                return Some(Err(status));
            }
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok().map(Ok)
        });
        match listens {
            Some(Ok(_)) => Ok(()),
            Some(Err(status)) => bail!("it ended at once ({status}); its log ends with\n{}", self.log_tail()),
            None if child::interrupted() => bail!("interrupted"),
            None => bail!("it does not listen on {address}; its log ends with\n{}", self.log_tail()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// The last lines it wrote.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.directory.0.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// A port below the range that the kernel gives to outgoing connections, so that none of the load's takes it.
pub fn free_address() -> Result<SocketAddr> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        let port = 20_000 + (std::process::id() + NEXT.fetch_add(1, Relaxed)) % 10_000;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port between 20000 and 30000")
}

/// A directory that goes when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Result<Directory> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("meridian-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Directory(path))
    }
}

impl Directory {
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        if let Err(error) = std::fs::remove_dir_all(path) {
            eprintln!("{} stays behind: {error}", path.display());
        }
    }
}
