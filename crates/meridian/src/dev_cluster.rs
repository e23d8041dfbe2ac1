//! `meridian start --dev-cluster 3+2`: a cluster of processes on this machine, to try it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use api::durable;

use crate::cluster;
use crate::config::ConfigArgs;
use crate::signals::{self, Signal, Signals};

/// Numbers of cores and replicants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    cores: u8,
    replicants: u8,
}

/// Maximum number of nodes: more would overload one machine.
const NODES_MAX: u8 = 20;
/// Port for links minus port for clients: as 7883 is to 1883.
const CLUSTER_PORT: u16 = 6000;
/// Maximum time until all nodes reach each other.
const START: Duration = Duration::from_secs(60);
/// Maximum time until a node that is asked to stop has ended.
const STOP: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (cores, replicants) = text.split_once('+').unwrap_or((text, "0"));
        let number = |text: &str| text.trim().parse::<u8>().ok().filter(|number| *number <= NODES_MAX);
        let size = number(cores).zip(number(replicants));
        match size.filter(|(cores, replicants)| *cores > 0 && cores + replicants <= NODES_MAX) {
            Some((cores, replicants)) => Ok(Self { cores, replicants }),
            None => {
                Err(format!("cores and replicants, as in 3+2: at least one core, {NODES_MAX} nodes at most"))
            }
        }
    }
}

/// A process of the cluster.
struct Node {
    name: String,
    role: &'static str,
    mqtt: SocketAddr,
    http: SocketAddr,
    log: PathBuf,
    /// Arguments to start it, also by hand.
    arguments: Vec<String>,
    /// The running process; `None` once it has ended.
    process: Option<Child>,
}

/// Runs the cluster. Exits with 0 after a stop, with 1 when the cluster did not start.
pub fn run(size: Size, args: &ConfigArgs) -> ExitCode {
    match serve(size, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            warn(&why);
            ExitCode::FAILURE
        }
    }
}

/// Prints a text. A closed output, as of `head` or a closed terminal, is ignored: the nodes continue.
fn say(text: impl fmt::Display) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints a text on standard error, with the rules of [`say`].
fn warn(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn serve(size: Size, args: &ConfigArgs) -> Result<(), String> {
    let mut nodes = plan(size, args)?;
    let signals = Signals::hold().map_err(|error| format!("signals cannot be blocked: {error}"))?;
    say(format_args!(
        "{} cores and {} replicants on this machine; the first start takes a few seconds",
        size.cores, size.replicants
    ));
    let started = start(&mut nodes, &signals);
    let result = match started {
        Ok(true) => watch(&mut nodes, &signals),
        Ok(false) => Ok(()),
        Err(why) => Err(why),
    };
    stop(&mut nodes, &signals);
    result
}

/// Plans the nodes; writes the secret if there is none yet.
fn plan(size: Size, args: &ConfigArgs) -> Result<Vec<Node>, String> {
    if args.config.is_some() || args.name.is_some() {
        return Err("--dev-cluster configures its nodes itself: use --set for other values".into());
    }
    let port = |given: Option<&String>, default: u16, max: u16, flag: &str| {
        match given {
        None => Ok(default),
        Some(text) => text
            .parse::<SocketAddr>()
            .ok()
            .map(|address| address.port())
            .filter(|port| (1..=max).contains(port))
            .ok_or_else(|| {
                format!("{flag} {text}: only its port counts here, from 1 to {max}, as in {flag} 127.0.0.1:{default}")
            }),
    }
    };
    let mqtt = port(args.listen.first(), 1883, u16::MAX - CLUSTER_PORT, "--listen")?;
    let http = port(args.http.as_ref(), 18083, u16::MAX, "--http")?;
    let directory = Path::new(args.data_dir.as_deref().unwrap_or("data"));
    let said = |error: io::Error| format!("{}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(said)?;
    let directory = directory.canonicalize().map_err(said)?;
    let secret = directory.join("cluster.secret");
    keep_secret(&secret)?;
    let host = |number: u8| IpAddr::from(Ipv4Addr::new(127, 0, 0, number));
    let cluster_port = mqtt + CLUSTER_PORT;
    let cores = (1..=size.cores).map(|number| SocketAddr::new(host(number), cluster_port).to_string());
    let join = cores.collect::<Vec<_>>().join(",");
    let mut nodes = Vec::new();
    for number in 1..=size.cores + size.replicants {
        let host = host(number);
        let role = if number <= size.cores { "core" } else { "replicant" };
        let name = format!("n{number}");
        let at = |port: u16| SocketAddr::new(host, port);
        let address = at(cluster_port);
        for address in [at(mqtt), at(http), address] {
            TcpListener::bind(address).map_err(|error| {
                format!(
                    "{address}: {error}. Is a node running already? --listen and --http choose other ports"
                )
            })?;
        }
        let mut arguments: Vec<String> = vec!["start".into()];
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add("--name", name.clone());
        add("--role", role.to_owned());
        add("--cluster-listen", address.to_string());
        if size.cores > 1 || role == "replicant" {
            add("--join", join.clone());
        }
        add("--cluster-secret-file", secret.display().to_string());
        add("--listen", at(mqtt).to_string());
        add("--http", at(http).to_string());
        add("--data-dir", directory.join(&name).display().to_string());
        if let Some(workers) = &args.workers {
            add("--workers", workers.clone());
        }
        for setting in &args.set {
            add("--set", setting.clone());
        }
        let log = directory.join(format!("{name}.log"));
        nodes.push(Node { name, role, mqtt: at(mqtt), http: at(http), log, arguments, process: None });
    }
    Ok(nodes)
}

/// Writes the secret once and keeps it, so that nodes that are started alone find the others.
fn keep_secret(path: &Path) -> Result<(), String> {
    let said = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    if path.try_exists().map_err(|error| said(&error))? {
        return match cluster::read_secret(path) {
            Ok(_) => Ok(()),
            Err(why) => Err(format!("{why}. Or remove it: the next start makes another for all nodes")),
        };
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| said(&error))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    durable::replace(path, format!("{text}\n").as_bytes()).map_err(|error| said(&error))
}

/// Starts the nodes. Returns false when a signal ended the cluster meanwhile.
fn start(nodes: &mut [Node], signals: &Signals) -> Result<bool, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    for node in nodes.iter_mut() {
        node.start(&program)?;
    }
    let (until, others) = (Instant::now() + START, nodes.len() - 1);
    let mut said = vec![false; nodes.len()];
    while !said.iter().all(|said| *said) {
        if ends(signals, POLL_INTERVAL)? {
            return Ok(false);
        }
        for (node, said) in nodes.iter_mut().zip(&mut said) {
            if let Some(how) = node.ended() {
                return Err(format!(
                    "{} ended ({how}) before it served; the end of {} has the reason:\n{}",
                    node.name,
                    node.log.display(),
                    node.last_lines()
                ));
            }
            if !*said && node.reaches(others) {
                *said = true;
                say(node);
            }
        }
        if Instant::now() > until {
            return Err(format!(
                "the nodes do not reach each other within {} s: see the logs in {}",
                START.as_secs(),
                nodes[0].log.display()
            ));
        }
    }
    say(format_args!(
        "all of them reach each other. Ctrl-C ends them. To try it:\n  {meridian} sub -h {first} -p {port} -t 'greetings/#' &\n  {meridian} pub -h {last} -p {port} -t greetings/you -m 'good morning' -q 1\n  {meridian} ctl --url http://{http} cluster",
        meridian = as_typed(),
        first = nodes[0].mqtt.ip(),
        last = nodes[nodes.len() - 1].mqtt.ip(),
        port = nodes[0].mqtt.port(),
        http = nodes[0].http,
    ));
    Ok(true)
}

/// Name of the program for a shell: as typed, unless the shell finds it by itself.
fn as_typed() -> String {
    let typed = std::env::args().next().filter(|typed| typed.contains('/'));
    typed.map_or_else(|| "meridian".to_owned(), |typed| quoted(&typed))
}

fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+".contains(c);
    if argument.chars().all(is_plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
}

/// Watches the nodes until a signal arrives or the last node has ended.
fn watch(nodes: &mut [Node], signals: &Signals) -> Result<(), String> {
    loop {
        if ends(signals, POLL_INTERVAL)? {
            return Ok(());
        }
        for node in nodes.iter_mut() {
            if let Some(how) = node.ended() {
                say(format_args!(
                    "{} has ended ({how}). To start it again:\n  {}",
                    node.name,
                    node.command()
                ));
            }
        }
        if nodes.iter().all(|node| node.process.is_none()) {
            return Err("no node is left".into());
        }
    }
}

/// Waits briefly for a signal that ends the cluster. SIGHUP means the end of the terminal, for there is nothing to
/// reload.
fn ends(signals: &Signals, limit: Duration) -> Result<bool, String> {
    let signal = signals.wait_for(limit).map_err(|error| format!("signals cannot be waited for: {error}"))?;
    Ok(match signal {
        Some(Signal::Reload) => !signals::outlives_terminal(),
        signal => signal.is_some(),
    })
}

/// Stops all nodes at once: a node whose peers have left waits for none. A repeated request does not wait either; a
/// closing terminal sends several.
fn stop(nodes: &mut [Node], signals: &Signals) {
    for node in nodes.iter() {
        if let Some(process) = &node.process {
            // SAFETY: this is a child of this process that is not yet waited for, so the id still refers to it.
            unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
        }
    }
    let until = Instant::now() + STOP;
    loop {
        for node in nodes.iter_mut() {
            node.ended();
        }
        if nodes.iter().all(|node| node.process.is_none()) {
            return;
        }
        if Instant::now() > until
            || !matches!(signals.wait_for(POLL_INTERVAL / 10), Ok(None | Some(Signal::Reload)))
        {
            break;
        }
    }
    for process in nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
        warn(format_args!("process {} has not ended: killed", process.id()));
        // The process may have ended just now.
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Node {
    fn start(&mut self, program: &Path) -> Result<(), String> {
        let said = |error: io::Error| format!("{}: {error}", self.log.display());
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).map_err(said)?;
        let output = log.try_clone().map_err(said)?;
        let mut command = Command::new(program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(output).stderr(log);
        // The service manager expects messages of this process only.
        command.env_remove(crate::notify::VARIABLE);
        // Ctrl-C in a terminal signals a whole process group: this process ends the nodes, in order.
        command.process_group(0);
        // SAFETY: between fork and exec only this one system call is made; it takes two numbers.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let process = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        self.process = Some(process);
        Ok(())
    }

    /// Exit status of the process, once.
    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let status = self.process.as_mut()?.try_wait().ok().flatten()?;
        self.process = None;
        Some(status)
    }

    /// Returns whether the node serves and reports that it reaches this number of others. With API keys the node only
    /// reports that it takes part.
    fn reaches(&self, others: usize) -> bool {
        let links_up = |body: String| -> Option<usize> {
            let view: serde_json::Value = serde_json::from_str(&body).ok()?;
            Some(view["links"].as_array()?.iter().filter(|link| link["state"] == "up").count())
        };
        if self.get("/health/ready").is_none_or(|(status, _)| status != 200) {
            return false;
        }
        match self.get("/api/v1/cluster") {
            Some((401, _)) => self.get("/health/quorum").is_some_and(|(status, _)| status == 200),
            Some((_, body)) => links_up(body) == Some(others),
            None => false,
        }
    }

    /// Response of its API: status and body.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.http, POLL_INTERVAL).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.http).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    fn command(&self) -> String {
        let quoted = self.arguments.iter().map(|argument| quoted(argument));
        format!("{} {}", as_typed(), quoted.collect::<Vec<_>>().join(" "))
    }

    fn last_lines(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, role, mqtt, http, log, process, .. } = self;
        let id = process.as_ref().map_or(0, Child::id);
        write!(f, "{name:<4}{role:<10} mqtt://{mqtt}  http://{http}  process {id}  log {}", log.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!("3+2".parse(), Ok(Size { cores: 3, replicants: 2 }));
        assert_eq!("1".parse(), Ok(Size { cores: 1, replicants: 0 }));
        for bad in ["", "0+2", "3+", "+2", "3-2", "21", "15+15", "255+1", "-1"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_made_once_and_an_empty_file_is_refused() {
        let directory = std::env::temp_dir().join(format!("meridian-dev-secret-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("cluster.secret");
        keep_secret(&path).unwrap();
        let first = std::fs::read(&path).unwrap();
        keep_secret(&path).unwrap();
        assert_eq!((first.len(), &first), (65, &std::fs::read(&path).unwrap()));
        std::fs::write(&path, "").unwrap();
        let why = keep_secret(&path).unwrap_err();
        assert!(why.contains("cluster.secret has 0 bytes") && why.contains("remove it"), "{why}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
