//! Measured brokers, each started on a free port of 127.0.0.1, in its own directory.

use super::child::{self, Guarded};
use super::listener::process::Cpu;
use super::mosquitto::{self, Persistence};
use super::recipe::Recipe;
use crate::repository::root;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
    /// Name and version as the program prints them.
    pub fn version(self) -> String {
        let (program, argument) = match self {
            Kind::Meridian => (meridian(), "--version"),
            Kind::Mosquitto => (mosquitto::program().unwrap_or_default(), "-h"),
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

const IDLE_FOR: Duration = Duration::from_millis(300);
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// A running broker. Dropping it ends the process and removes its files.
pub struct Broker {
    process: Guarded,
    #[expect(dead_code, reason = "held, and ended with the broker")]
    sidecar: Option<Guarded>,
    command: Command,
    directory: Directory,
    pub address: SocketAddr,
}

/// Options for starting a broker whose disk is measured.
pub struct Start<'a> {
    pub kind: Kind,
    /// Arguments of Meridian.
    pub arguments: &'a [String],
    /// Directory for its files, on the measured disk.
    pub within: &'a Path,
    /// File for the output of strace about its sync calls.
    pub syncs: Option<&'a Path>,
}

impl Broker {
    /// Starts a broker. Returns once it accepts connections.
    ///
    /// # Errors
    /// The program cannot be started, ends, or does not listen within 60 s.
    pub fn start(kind: Kind, workers: Option<u32>) -> Result<Broker> {
        let workers = workers.map(|workers| ["--workers".to_owned(), workers.to_string()]);
        Broker::start_with(kind, &workers.into_iter().flatten().collect::<Vec<_>>())
    }

    /// Starts Meridian with its HTTP interface on an address.
    pub fn start_with_http(http: SocketAddr) -> Result<Broker> {
        Broker::start_with(Kind::Meridian, &["--http".to_owned(), http.to_string()])
    }

    /// Starts Meridian with the users of a password file.
    pub fn start_with_users(password_file: &Path) -> Result<Broker> {
        let setting = format!("auth.password_file={}", password_file.display());
        Broker::start_with(Kind::Meridian, &["--set".to_owned(), setting])
    }

    /// Starts a broker; `arguments` are for Meridian.
    fn start_with(kind: Kind, arguments: &[String]) -> Result<Broker> {
        Broker::start_as(&Start { kind, arguments, within: &std::env::temp_dir(), syncs: None })
    }

    /// Starts a broker with these options, as [`Broker::start`] does.
    pub fn start_as(start: &Start) -> Result<Broker> {
        let arguments = start.arguments;
        let directory = Directory::within(start.within)?;
        let address = free_address()?;
        let mut sidecar = None;
        let command = match start.kind {
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
                let text = mosquitto::config(&mosquitto::listener(address), Persistence::Off);
                std::fs::write(&path, text).context("mosquitto.conf")?;
                mosquitto_command(&path)?
            }
            Kind::Peer(recipe) => {
                let commands = recipe.commands(&directory.0, address)?;
                sidecar =
                    commands.sidecar.map(|mut command| Guarded::spawn(quiet(&mut command))).transpose()?;
                commands.broker
            }
        };
        let command = match start.syncs {
            Some(log) => under_strace(&command, log),
            None => command,
        };
        Broker::spawn(command, sidecar, directory, address)
    }

    /// Starts a broker with the configuration file that `config` makes for an address.
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
                std::fs::write(&path, mosquitto::config(&config(address), Persistence::Off))?;
                mosquitto_command(&path)?
            }
            Kind::Peer(recipe) => bail!("{} is not configured here", recipe.name),
        };
        Broker::spawn(command, None, directory, address)
    }

    /// Waits until it has used no CPU for a while. Meridian fills its first segments with zeros after it has begun to
    /// listen; other brokers load data.
    pub fn settled(self) -> Result<Self> {
        let mut idle = (Cpu::now(self.pid())?.broker_s, Instant::now());
        let found = child::until(SETTLE_MAX, || match Cpu::now(self.pid()) {
            // A single tick now and then is no work.
            Ok(cpu) if cpu.broker_s - idle.0 < 0.015 => (idle.1.elapsed() >= IDLE_FOR).then_some(Ok(())),
            Ok(cpu) => {
                idle = (cpu.broker_s, Instant::now());
                None
            }
            Err(error) => Some(Err(error)),
        });
        // A broker that is never idle is measured as it is.
        found.unwrap_or(Ok(()))?;
        Ok(self)
    }

    fn spawn(
        mut command: Command,
        sidecar: Option<Guarded>,
        directory: Directory,
        address: SocketAddr,
    ) -> Result<Broker> {
        let log = File::create(directory.0.join("log")).context("log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = Guarded::spawn(&mut command)?;
        let mut broker = Broker { process, sidecar, command, directory, address };
        broker.wait_for_port()?;
        Ok(broker)
    }

    /// Kills the process without a chance to clean up.
    pub fn kill(&mut self) -> Result<()> {
        self.process.child().kill().context("SIGKILL")?;
        self.process.child().wait().context("SIGKILL")?;
        Ok(())
    }

    /// Runs the same command again, on the same files, after [`Broker::kill`]. Does not wait until it listens.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = Guarded::spawn(&mut self.command)?;
        Ok(())
    }

    fn wait_for_port(&mut self) -> Result<()> {
        let address = self.address;
        let listens = child::until(Duration::from_secs(60), || {
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

    /// Output on its standard streams, over all starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.0.join("log")).unwrap_or_default()
    }

    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// The last lines of its output.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

fn mosquitto_command(config: &Path) -> Result<Command> {
    let mut command = Command::new(mosquitto::program().context("mosquitto is not installed")?);
    command.arg("-c").arg(config);
    Ok(command)
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// The command under strace, which stops it at sync calls and at no others. The process keeps its parent and its id.
fn under_strace(command: &Command, log: &Path) -> Command {
    let mut traced = Command::new("strace");
    traced.args(["-D", "-f", "-q", "--seccomp-bpf", "-ttt", "-e", "signal=none", "-e"]);
    traced.arg("trace=fsync,fdatasync,sync_file_range,msync,sync,syncfs").arg("-o").arg(log);
    traced.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        traced.current_dir(directory);
    }
    traced
}

/// A port below the range that the kernel assigns to outgoing connections, so that the load does not take it.
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

/// A directory that is removed when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Result<Directory> {
        Directory::within(&std::env::temp_dir())
    }

    pub fn within(parent: &Path) -> Result<Directory> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("meridian-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = parent.join(name);
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
            eprintln!("{} cannot be removed: {error}", path.display());
        }
    }
}
