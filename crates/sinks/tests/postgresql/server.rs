//! A PostgreSQL server of a test, in a directory of its own.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

pub const USER: &str = "meridian";
pub const PASSWORD: &str = "correct horse";

/// A running server. It ends when this is dropped.
pub struct Server {
    programs: PathBuf,
    directory: PathBuf,
    pub port: u16,
    child: Mutex<Child>,
}

impl Server {
    /// Returns a server that tests share. `None` where PostgreSQL is not installed, which is an error when
    /// `MERIDIAN_POSTGRESQL_REQUIRED` is set.
    pub fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// Starts a server.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            let is_required = std::env::var_os("MERIDIAN_POSTGRESQL_REQUIRED").is_some();
            assert!(!is_required, "PostgreSQL is not installed: apt-get install postgresql");
            eprintln!("SKIPPED: PostgreSQL is not installed: apt-get install postgresql");
            return None;
        };
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("meridian-postgresql-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("password"), PASSWORD).expect("a password file");
        certificates(&directory);
        own(&directory);
        let output = command(&programs, "initdb")
            .args(["--no-sync", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"])
            .args(["--username", USER, "--pwfile"])
            .arg(directory.join("password"))
            .arg("--pgdata")
            .arg(directory.join("data"))
            .output()
            .expect("initdb");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let (port, child) = (0..100)
            .find_map(|_| {
                let port = free_port();
                Some((port, run(&programs, &directory, port).ok()?))
            })
            .expect("a server");
        Some(Self { programs, directory, port, child: Mutex::new(child) })
    }

    /// Executes statements and returns the rows, with `|` between the columns.
    pub fn sql(&self, text: &str) -> String {
        let output = Command::new(self.programs.join("psql"))
            .args([
                "--no-psqlrc",
                "-qAt",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                USER,
                "-d",
                "postgres",
            ])
            .args(["-p", &self.port.to_string(), "-c", text])
            .env("PGPASSWORD", PASSWORD)
            .output()
            .expect("psql");
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
    }

    /// Kills the server without a chance to say goodbye, and starts it again.
    pub fn crash_and_restart(&self) {
        let mut child = self.child.lock().expect("the process");
        child.kill().expect("a signal");
        child.wait().expect("an end");
        // Processes of the killed server end soon. Until then a new one refuses to start.
        *child = (0..100)
            .find_map(|_| run(&self.programs, &self.directory, self.port).ok())
            .expect("the server starts again");
    }

    /// Sends a signal, such as STOP or CONT, to the processes that serve sinks.
    pub fn signal_connections(&self, signal: &str, pids: &str) {
        for pid in pids.lines() {
            self::signal(signal, pid);
        }
    }

    /// Returns the numbers of the processes that serve sinks.
    pub fn connections(&self) -> String {
        self.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'meridian'")
    }

    /// File with the certificate of the authority of the server.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Writes a file for a connector, with a line feed after the text. A connector of another test may read the file
    /// with this name meanwhile, so it is replaced as a whole.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = self.directory.join(name);
        let whole = self.directory.join(format!("{name}.{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&whole, format!("{text}\n")).expect("a file");
        std::fs::rename(whole, &path).expect("a file");
        path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().expect("the process");
        // Fast shutdown.
        signal("INT", &child.id().to_string());
        _ = child.wait();
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), pid]).status().expect("kill");
    assert!(status.success(), "kill -{name} {pid}");
}

/// Returns the directory of the programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            let programs = path.join("bin");
            programs.join("initdb").exists().then_some((version, programs))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, programs)| programs)
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout.starts_with(b"0\n")
}

/// Returns a command of PostgreSQL, which does not run as root.
fn command(programs: &Path, name: &str) -> Command {
    let mut command = match is_root() {
        false => Command::new(programs.join(name)),
        true => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
                .arg(programs.join(name));
            command
        }
    };
    command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
    command
}

fn own(directory: &Path) {
    if is_root() {
        let status =
            Command::new("chown").args(["-R", "postgres:postgres"]).arg(directory).status().expect("chown");
        assert!(status.success());
    }
}

/// Starts the server and waits until it accepts connections. Returns what it printed when it ends before.
fn run(programs: &Path, directory: &Path, port: u16) -> Result<Child, String> {
    let mut child = command(programs, "postgres")
        .arg("-D")
        .arg(directory.join("data"))
        .args(["-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
        .args(["-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=40", "-c", "ssl=on"])
        .args(["-c", &format!("ssl_cert_file={}", directory.join("server.pem").display())])
        .args(["-c", &format!("ssl_key_file={}", directory.join("server.key").display())])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("postgres");
    let lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
    let (ready, is_ready) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut printed = String::new();
        for line in lines.map_while(Result::ok) {
            if line.contains("ready to accept connections") {
                _ = ready.try_send(Ok(()));
            } else if printed.len() < 10_000 {
                printed.push_str(&line);
                printed.push('\n');
            }
        }
        _ = ready.try_send(Err(printed));
    });
    match is_ready.recv_timeout(Duration::from_secs(120)).expect("the server starts or ends") {
        Ok(()) => Ok(child),
        Err(printed) => {
            child.wait().expect("an end");
            Err(printed)
        }
    }
}

/// Returns a port below those that the system gives to clients.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..10_000)
        .find_map(|_| {
            let offset =
                std::process::id().wrapping_mul(7).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = 21_000 + u16::try_from(offset % 10_000).expect("a small number");
            TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
        })
        .expect("a free port")
}

/// Writes the certificate of an authority, and one for 127.0.0.1 with its key.
fn certificates(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    std::fs::write(directory.join("authority.pem"), authority.pem()).expect("a file");
    std::fs::write(directory.join("server.pem"), certificate.pem()).expect("a file");
    let key_file = directory.join("server.key");
    std::fs::write(&key_file, key.serialize_pem()).expect("a file");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).expect("permissions");
}
