//! The binary as a user runs it: processes, signals, exit codes, files.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

fn meridian(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    // Tests run at the same time, and there is only one default port.
    command.args(arguments).env("MERIDIAN__HTTP__LISTEN", "127.0.0.1:0").stdin(Stdio::null());
    // There is also only one default data directory.
    command.env("MERIDIAN__STORAGE__DURABILITY", "memory");
    command
}

fn run(arguments: &[&str]) -> Output {
    meridian(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory of one test, removed at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("meridian-process-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.file(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A running node on a port that the system chose.
struct Node {
    process: Child,
    log: BufReader<ChildStderr>,
    port: String,
}

impl Node {
    fn start(arguments: &[&str]) -> Self {
        Self::start_in(&std::env::temp_dir(), &[&["start", "--listen", "127.0.0.1:0"], arguments].concat())
    }

    fn start_in(directory: &std::path::Path, arguments: &[&str]) -> Self {
        Self::run(meridian(arguments).current_dir(directory))
    }

    fn run(command: &mut Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut node = Self { process, log, port: String::new() };
        let line = node.wait_for("listening");
        let port = line.rsplit(':').next().unwrap().trim_end_matches(|c: char| !c.is_ascii_digit());
        node.port = port.to_owned();
        node.wait_for("the node serves");
        node
    }

    /// Reads the log up to a line with this text, and returns it.
    fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "no `{text}` in the log:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn client(&self, arguments: &[&str]) -> Output {
        run(&[&[arguments[0], "-p", &self.port], &arguments[1..]].concat())
    }

    fn stop(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.process.wait().unwrap().code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Needed for a test that failed before it stopped the node; otherwise both have no effect.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_version_has_a_commit() {
    let version = stdout(&run(&["--version"]));
    assert!(version.starts_with(concat!("meridian ", env!("CARGO_PKG_VERSION"), " (")), "{version}");
}

#[test]
fn a_node_starts_serves_and_stops() {
    for version in ["5", "3.1.1", "3.1"] {
        let node = Node::start(&["--workers", "2"]);
        let subscribe = ["sub", "-V", version, "-i", "s", "-c", "-q", "2", "-t", "a/#"];
        assert!(node.client(&[&subscribe[..], &["-E"]].concat()).status.success());
        for (qos, message) in [("1", "one"), ("2", "two")] {
            let output = node.client(&["pub", "-V", version, "-t", "a/b", "-m", message, "-q", qos]);
            assert!(output.status.success(), "{}", stderr(&output));
        }
        let output = node.client(&[&subscribe[..], &["-C", "2", "-W", "20", "-F", "%t %p %q"]].concat());
        assert_eq!(stdout(&output), "a/b one 1\na/b two 2\n", "{}", stderr(&output));
        assert!(node.client(&["pub", "-V", version, "-t", "b", "-m", "zero", "-r"]).status.success());
        let output = node.client(&["sub", "-V", version, "-t", "b", "-C", "1", "-W", "20", "-F", "%p %q %r"]);
        assert_eq!(stdout(&output), "zero 0 1\n", "{}", stderr(&output));
        assert_eq!(node.stop(), Some(0));
    }
}

#[test]
fn interrupt_ends_the_node_as_well() {
    let mut node = Node::start(&["--set", "log.format=json"]);
    node.signal("-INT");
    let line = node.wait_for("stopped");
    assert!(line.starts_with('{'), "{line}");
    assert_eq!(node.process.wait().unwrap().code(), Some(0));
}

#[test]
fn nothing_is_written_to_disk() {
    let directory = Directory::new("disk");
    let node = Node::start_in(&directory.0, &["--listen", "127.0.0.1:0"]);
    assert!(node.client(&["pub", "-t", "a", "-m", "x", "-r", "-q", "1"]).status.success());
    assert_eq!(node.stop(), Some(0));
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

#[test]
fn a_port_in_use_is_named_with_a_remedy() {
    let node = Node::start(&[]);
    let address = format!("127.0.0.1:{}", node.port);
    let output = run(&["start", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output)
            .contains(&format!("{address} (listener.0.address): meridian (process {})", node.process.id()))
            && stderr(&output).contains("--set listener.0.address="),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_open_address_needs_an_explicit_setting() {
    let output = run(&["start", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("auth.allow_anonymous=true"), "{}", stderr(&output));
    let output = run(&["start", "--listen", "0.0.0.0:0", "--set", "auth.allow_anonymous=true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("auth.no_match=allow"), "{}", stderr(&output));
}

#[test]
fn mistakes_in_the_configuration_are_named_with_their_source() {
    let directory = Directory::new("mistakes");
    let config = directory.write("m.toml", "[mqtt]\nqos_mx = 1\npacket_size_max = \"1B\"\n");
    let mut command = meridian(&["start", "--config", &config]);
    let output = command.env("MERIDIAN__SYS__INTERVALL", "1s").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains("m.toml:2: unknown setting `mqtt.qos_mx`") && text.contains("`mqtt.qos_max`"),
        "{text}"
    );
    assert!(text.contains("m.toml:3: mqtt.packet_size_max") && text.contains("64B to 256MiB"), "{text}");
    assert!(text.contains("MERIDIAN__SYS__INTERVALL") && text.contains("`sys.interval`"), "{text}");
}

#[test]
fn the_settings_in_force_are_shown_with_their_source() {
    let directory = Directory::new("show");
    let config = directory.write("m.toml", "[mqtt]\nqos_max = 1\n");
    let mut command = meridian(&["config", "show", "--config", &config, "--set", "log.level=debug"]);
    let output = command.env("MERIDIAN__SYS__INTERVAL", "1s").output().unwrap();
    let text = stdout(&output);
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("qos_max").contains("m.toml:2"), "{text}");
    assert!(line("interval").contains("environment MERIDIAN__SYS__INTERVAL"), "{text}");
    assert!(line("level").contains("--set log.level=debug"), "{text}");
    assert!(line("inflight_max").contains("default"), "{text}");
    let again = directory.write("again.toml", &text);
    let output = run(&["config", "check", "--config", &again]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn mistakes_in_a_cluster_configuration_are_reported_before_a_start() {
    let directory = Directory::new("cluster-check");
    let secret = directory.write("secret", "sixteen bytes, and some more");
    let cluster = "[cluster]\nlisten = \"10.0.0.1:7883\"\njoin = \"10.0.0.1:7883,10.0.0.2:7883\"\n";
    let good = directory.write("good.toml", &format!("{cluster}secret_file = {secret:?}\n"));
    let bad = directory.write("bad.toml", cluster);
    let check = |config: &str| {
        let keeps = ["--set", "storage.durability=local-disk"];
        let output = run(&[&["config", "check", "--config", config, "--name", "a"], &keeps[..]].concat());
        (output.status.success(), stdout(&output) + &stderr(&output))
    };
    let (holds, text) = check(&good);
    assert!(holds && text.contains("advice: of 2 cores that cluster.join names"), "{text}");
    let (holds, text) = check(&bad);
    assert!(!holds && text.contains("secret"), "{text}");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let (holds, text) = check(&good);
    assert!(holds && text.contains("warning: cluster.secret_file") && text.contains("chmod 600"), "{text}");
    let list =
        "[[cluster_node]]\nname = \"a\"\naddress = \"10.0.0.1:7883\"\n[[cluster_node]]\nname = \"b\"\n";
    let listed = directory.write("listed.toml", list);
    let (holds, text) = check(&listed);
    assert!(!holds && text.contains("listed.toml:2: [[cluster_node]] does not exist any more"), "{text}");
    assert!(text.contains("cluster.join") && text.lines().count() == 1, "{text}");
    let http = ["--http", "127.0.0.1:7883", "--role", "replicant", "--join", "127.0.0.1:7884"];
    let here =
        ["--name", "a", "--cluster-listen", "0.0.0.0:7883", "--set", "cluster.advertise=127.0.0.1:7883"];
    let output = run(&[&["config", "check", "--cluster-secret-file", &secret], &http[..], &here].concat());
    assert!(stderr(&output).contains("http.listen is 127.0.0.1:7883"), "{}", stderr(&output));
    // Ports of clients and operators are not ports for nodes.
    let joining = |listen: &str, join: &str| {
        let node = ["--name", "a", "--cluster-secret-file", &secret, "--cluster-listen", "10.0.0.1:7883"];
        let clients = ["--listen", listen, "--join", join, "--http", "127.0.0.1:18083"];
        let keeps = ["--set", "storage.durability=local-disk"];
        let output = run(&[&["config", "check"], &node[..], &clients, &keeps].concat());
        (output.status.success(), stdout(&output) + &stderr(&output))
    };
    let third = "10.0.0.1:7883,10.0.0.2:7883,10.0.0.3:7883";
    let (holds, text) = joining("127.0.0.1:1883", third);
    assert!(holds && !text.contains("cluster.join"), "{text}");
    for (listen, join, holds, says) in [
        (
            "127.0.0.1:1883",
            "127.0.0.1:1883",
            false,
            "127.0.0.1:1883 is not a port for nodes: listener.0.address",
        ),
        (
            "0.0.0.0:1883",
            "10.0.0.2:7883,10.0.0.1:1883",
            false,
            "10.0.0.1:1883 is not a port for nodes: listener.0",
        ),
        ("127.0.0.1:1883", "127.0.0.1:18083", false, "127.0.0.1:18083 is not a port for nodes: http.listen"),
        (
            "127.0.0.1:1883",
            "10.0.0.2:1883",
            true,
            "advice: cluster.join: 10.0.0.2:1883 has the port of listener.0",
        ),
        (
            "127.0.0.1:1883",
            "10.0.0.2:18083",
            true,
            "advice: cluster.join: 10.0.0.2:18083 has the port of http.listen",
        ),
        ("127.0.0.1:7883", "10.0.0.2:7883", true, "the configuration is valid"),
        ("127.0.0.1:1883", "10.0.0.1:7883,10.0.0.2:7883", true, "advice: of 2 cores that cluster.join names"),
        ("127.0.0.1:1883", "10.0.0.2:7883,10.0.0.2:7883", false, "10.0.0.2:7883 is there twice"),
    ] {
        let (does, text) = joining(listen, join);
        assert!(does == holds && text.contains(says), "{listen}, {join}: {text}");
        assert_eq!(text.contains("has the port of"), says.contains("has the port of"), "{text}");
    }
    // A node reports the same, and does not start.
    let alone = ["--cluster-listen", "127.0.0.1:7883", "--cluster-secret-file", &secret];
    for (arguments, says) in [
        (vec!["--config", &listed, "--name", "a"], "listed.toml:2: [[cluster_node]] does not exist any more"),
        (alone.to_vec(), "storage.durability = \"local-disk\""),
        ([&alone[..], &["--join", "10.0.0.2:7883"]].concat(), "cluster.advertise"),
        (vec!["--cluster-listen", "0.0.0.0:7883", "--cluster-secret-file", &secret], "cluster.advertise"),
        (vec!["--join", "10.0.0.2:7883", "--cluster-secret-file", &secret], "--cluster-listen"),
        (vec!["--join", "10.0.0.2:7883,http://10.0.0.3:7883"], "--join: cluster.join: expected HOST:PORT"),
        (vec!["--cluster-listen", "10.0.0.1"], "the port is missing: write 10.0.0.1:PORT"),
    ] {
        let output = run(&[&["start", "--listen", "127.0.0.1:0"], &arguments[..]].concat());
        assert!(
            !output.status.success() && stderr(&output).contains(says),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

fn set_password(users: &str, user: &str, password: &str) {
    let mut command = meridian(&["passwd", users, user]);
    let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
    writeln!(process.stdin.take().unwrap(), "{password}").unwrap();
    assert!(process.wait().unwrap().success());
}

#[test]
fn passwords_and_rules_protect_a_node_and_are_reloaded() {
    let directory = Directory::new("guard");
    let (users, acl) = (directory.file("users"), directory.write("acl", "user alice\ntopic readwrite a/#\n"));
    set_password(&users, "alice", "first");
    let config = format!("[auth]\npassword_file = {users:?}\nacl_file = {acl:?}\n");
    let config = directory.write("m.toml", &config);
    let mut node = Node::start(&["--config", &config]);

    let publish = |node: &Node, password: &str, topic: &str| {
        let output = node.client(&["pub", "-u", "alice", "-P", password, "-t", topic, "-m", "x", "-q", "1"]);
        (output.status.code(), stderr(&output))
    };
    assert_eq!(publish(&node, "first", "a/b").0, Some(0));
    let (code, text) = publish(&node, "first", "b");
    assert!(code == Some(3) && text.contains("Not authorized"), "{text}");
    assert_eq!(publish(&node, "wrong", "a/b").0, Some(3));
    assert_eq!(node.client(&["pub", "-t", "a/b", "-m", "x"]).status.code(), Some(3));
    let subscribe = ["sub", "-u", "alice", "-P", "first", "-t", "b/#", "-W", "20"];
    let output = node.client(&subscribe);
    assert!(output.status.code() == Some(3) && stderr(&output).contains("`b/#`"), "{}", stderr(&output));

    set_password(&users, "alice", "second");
    directory.write("acl", "user alice\ntopic readwrite b/#\n");
    node.signal("-HUP");
    node.wait_for("reloaded");
    assert_eq!(publish(&node, "second", "b/c").0, Some(0));
    assert_eq!(publish(&node, "second", "a/b").0, Some(3));
    assert_eq!(publish(&node, "first", "b/c").0, Some(3));

    directory.write("acl", "user alice\ntopics readwrite b/#\n");
    node.signal("-HUP");
    let line = node.wait_for("not reloaded");
    assert!(line.contains("acl:2: unknown word `topics`"), "{line}");
    assert_eq!(publish(&node, "second", "b/c").0, Some(0));
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let directory = Directory::new("notify");
    let socket = directory.file("socket");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A start on a slow machine requests more time in between.
    let next = || {
        loop {
            let mut buffer = [0; 1024];
            let len = listener.recv(&mut buffer).unwrap();
            let message = String::from_utf8(buffer[..len].to_vec()).unwrap();
            if !message.starts_with("EXTEND_TIMEOUT_USEC=") {
                return message;
            }
        }
    };
    let config = directory.write("m.toml", "");
    let arguments = ["start", "--listen", "127.0.0.1:0", "--config", &config];
    let mut node = Node::run(meridian(&arguments).env("NOTIFY_SOCKET", &socket));
    assert_eq!(next(), "STATUS=starts");
    assert_eq!(next(), "READY=1\nSTATUS=serves clients");
    assert!(node.client(&["pub", "-t", "a", "-m", "x", "-q", "1"]).status.success());

    node.signal("-HUP");
    let begins = next();
    assert!(begins.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begins}");
    assert_eq!(next(), "READY=1\nSTATUS=serves clients");
    directory.write("m.toml", "nonsense");
    node.signal("-HUP");
    next();
    assert_eq!(next(), "READY=1\nSTATUS=serves clients; the last reload was refused: see the log");

    node.signal("-TERM");
    let stops = next();
    assert!(
        stops.starts_with("STOPPING=1\nSTATUS=stops") && stops.contains("\nEXTEND_TIMEOUT_USEC="),
        "{stops}"
    );
    assert_eq!(node.process.wait().unwrap().code(), Some(0));
}

#[test]
fn a_service_manager_that_cannot_be_notified_does_no_harm() {
    let node =
        Node::run(meridian(&["start", "--listen", "127.0.0.1:0"]).env("NOTIFY_SOCKET", "/nowhere/socket"));
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn clients_reach_a_node_through_a_unix_socket() {
    let directory = Directory::new("unix");
    let (socket, listen) = (directory.file("m.sock"), format!("unix:{}", directory.file("m.sock")));
    let node = Node::start(&["--listen", &listen]);
    let output = run(&["pub", "--unix", &socket, "-t", "a", "-m", "x", "-q", "2", "-r"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&["sub", "-h", &listen, "-t", "a", "-C", "1", "-W", "20", "-v"]);
    assert_eq!(stdout(&output), "a x\n", "{}", stderr(&output));
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn lines_are_messages_and_all_arrive() {
    let node = Node::start(&[]);
    let subscribe = ["sub", "-i", "s", "-c", "-q", "2", "-t", "lines"];
    assert!(node.client(&[&subscribe[..], &["-E"]].concat()).status.success());
    for qos in ["1", "2"] {
        let mut command = meridian(&["pub", "-p", &node.port, "-t", "lines", "-q", qos, "-l"]);
        let mut process = command.stdin(Stdio::piped()).spawn().unwrap();
        let text: String = (0..400).map(|line| format!("{qos} {line}\n")).collect();
        // The last line has no line break.
        process.stdin.take().unwrap().write_all(text.trim_end().as_bytes()).unwrap();
        assert!(process.wait().unwrap().success());
        let output = node.client(&[&subscribe[..], &["-C", "400", "-W", "60"]].concat());
        assert_eq!(stdout(&output), text, "{}", stderr(&output));
    }
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn without_a_broker_the_error_is_clear() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    drop(socket);
    let output = run(&["pub", "-p", &port, "-t", "a", "-m", "x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no broker listens there"), "{}", stderr(&output));
}

/// A port below those that the system assigns, different for each run.
fn dev_port() -> u16 {
    10_000 + (std::process::id() % 15_000) as u16
}

/// The next line that contains this text.
fn line_with(lines: &mut impl Iterator<Item = std::io::Result<String>>, what: &str) -> String {
    lines
        .map(|line| line.expect("a line"))
        .find(|line| line.contains(what))
        .unwrap_or_else(|| panic!("no {what}"))
}

#[test]
fn a_development_cluster_needs_one_command() {
    let directory = Directory::new("dev-cluster");
    let (port, http) = (dev_port(), dev_port() + 1);
    let mut cluster = meridian(&[
        "start",
        "--dev-cluster",
        "2+1",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--http",
        &format!("127.0.0.1:{http}"),
        "--data-dir",
        &directory.file("data"),
    ])
    // Cores store the Raft log on disk.
    .env_remove("MERIDIAN__STORAGE__DURABILITY")
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(cluster.stdout.take().unwrap()).lines();
    let mut nodes: Vec<String> = (0..3).map(|_| line_with(&mut lines, "mqtt://")).collect();
    nodes.sort();
    assert!(nodes[0].starts_with("n1  core"), "{nodes:?}");
    assert!(nodes[2].starts_with("n3  replicant"), "{nodes:?}");
    line_with(&mut lines, "all of them reach each other");
    // From the replicant to a core.
    let mut subscriber =
        meridian(&["sub", "-h", "127.0.0.2", "-p", &port.to_string(), "-t", "a/#", "-q", "1"])
            .args(["-C", "1", "-W", "20", "--verbose"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let publish =
        || run(&["pub", "-h", "127.0.0.3", "-p", &port.to_string(), "-t", "a/b", "-m", "hello", "-q", "1"]);
    while subscriber.try_wait().unwrap().is_none() {
        let published = publish();
        assert!(published.status.success(), "{}", stderr(&published));
    }
    let output = subscriber.wait_with_output().unwrap();
    assert_eq!(stdout(&output).trim(), "a/b hello", "{}", stderr(&output));
    // One node is killed, and restarted by the command that the output names.
    let id = nodes[1].split_whitespace().skip_while(|word| *word != "process").nth(1).unwrap().to_owned();
    assert!(Command::new("kill").args(["-9", &id]).status().unwrap().success());
    line_with(&mut lines, "n2 has ended (signal: 9");
    let again = lines.next().unwrap().unwrap();
    let arguments: Vec<&str> = again.split_whitespace().skip(1).collect();
    let mut alone = meridian(&arguments);
    alone.env_remove("MERIDIAN__STORAGE__DURABILITY").stderr(Stdio::piped());
    let mut alone = alone.spawn().unwrap();
    line_with(&mut BufReader::new(alone.stderr.take().unwrap()).lines(), "this node belongs to the cluster");
    alone.kill().unwrap();
    alone.wait().unwrap();
    assert!(Command::new("kill").args(["-INT", &cluster.id().to_string()]).status().unwrap().success());
    assert!(cluster.wait().unwrap().success());
    for number in [1, 3] {
        let address = format!("127.0.0.{number}:{port}");
        assert!(std::net::TcpStream::connect(&address).is_err(), "{address} is still served");
    }
}

/// Starts a cluster of one core. The tests may run where SIGHUP is ignored, so `on_hangup` is set for the cluster in
/// any case.
fn one_core(directory: &Directory, port: u16, on_hangup: libc::sighandler_t) -> (Child, String) {
    let mut command = meridian(&["start", "--dev-cluster", "1", "--data-dir", &directory.file("data")]);
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--http", &format!("127.0.0.1:{}", port + 1)]);
    command.env_remove("MERIDIAN__STORAGE__DURABILITY").stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: one system call is made between fork and exec; it takes two numbers.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
            libc::signal(libc::SIGHUP, on_hangup);
            Ok(())
        });
    }
    let mut cluster = command.spawn().unwrap();
    let mut lines = BufReader::new(cluster.stdout.take().unwrap()).lines();
    let node = line_with(&mut lines, "mqtt://");
    let id = node.split_whitespace().skip_while(|word| *word != "process").nth(1).unwrap().to_owned();
    // From here on nothing reads the output.
    (cluster, id)
}

fn signal(name: &str, id: &str) {
    assert!(Command::new("kill").args([name, id]).status().unwrap().success());
}

#[test]
fn a_development_cluster_continues_unread_and_ends_with_its_terminal() {
    let directory = Directory::new("dev-terminal");
    let (mut cluster, _) = one_core(&directory, dev_port() + 4, libc::SIG_DFL);
    signal("-HUP", &cluster.id().to_string());
    let status = cluster.wait().unwrap();
    assert!(status.success(), "{status}");
    let address = format!("127.0.0.1:{}", dev_port() + 4);
    assert!(std::net::TcpStream::connect(&address).is_err(), "{address} is still served");
}

#[test]
fn a_development_cluster_under_nohup_survives_its_terminal() {
    let directory = Directory::new("dev-nohup");
    let (cluster, node) = one_core(&directory, dev_port() + 6, libc::SIG_IGN);
    signal("-HUP", &cluster.id().to_string());
    signal("-9", &node);
    let output = cluster.wait_with_output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("no node is left"), "{}", stderr(&output));
}

#[test]
fn a_development_cluster_names_obstacles_to_its_start() {
    let taken = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let directory = Directory::new("dev-taken");
    let data = directory.file("data");
    let with = |more: &[&str]| {
        let output =
            meridian(&["start", "--dev-cluster", "2", "--data-dir", &data]).args(more).output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    };
    let http = format!("127.0.0.1:{port}");
    let said = with(&["--listen", &format!("127.0.0.1:{}", dev_port() + 2), "--http", &http]);
    assert!(said.contains(&format!("127.0.0.2:{port}")) && said.contains("--listen"), "{said}");
    assert!(with(&["--config", "x.toml"]).contains("--set"));
    assert!(with(&["--listen", "x"]).contains("only its port"));
    std::fs::write(directory.0.join("data/cluster.secret"), "").unwrap();
    let said = with(&["--listen", &format!("127.0.0.1:{}", dev_port() + 2)]);
    assert!(said.contains("cluster.secret has 0 bytes") && said.contains("remove it"), "{said}");
}
