//! One node grows to a cluster: the cores keep its durable sessions and retained messages.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit of every wait, longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn meridian(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.args(arguments).stdin(Stdio::null()).env_remove("MERIDIAN_TOKEN");
    command
}

/// Nodes on this machine. The directory is removed at the end of the test.
struct Machine {
    directory: PathBuf,
    port: u16,
}

/// A node, which is killed at the end of the test.
struct Node {
    process: Child,
    log: Arc<Mutex<String>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

/// Ports of a node from the first one on: clients, operators, and other nodes.
const PORTS: u16 = 3;

impl Machine {
    /// `number` tells the tests of this file apart.
    fn new(number: u16) -> Self {
        let directory = std::env::temp_dir().join(format!("meridian-grow-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("secret"), "0123456789abcdef0123456789abcdef\n").unwrap();
        Self { directory, port: 22_000 + (std::process::id() % 150) as u16 * 24 + number * 12 }
    }

    fn at(&self, node: u16, offset: u16) -> String {
        format!("127.0.0.1:{}", self.port + node * PORTS + offset)
    }

    fn start(&self, node: u16, more: &[&str]) -> Node {
        let mut process = meridian(&["start", "--name", &format!("n{node}"), "--workers", "1"])
            .args(["--listen", &self.at(node, 0), "--http", &self.at(node, 1)])
            .arg("--data-dir")
            .arg(self.directory.join(format!("n{node}")))
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (written, lines) = (log.clone(), BufReader::new(process.stderr.take().unwrap()).lines());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *written.lock().unwrap() += &format!("{line}\n");
            }
        });
        Node { process, log }
    }

    fn start_alone(&self, node: u16) -> Node {
        let alone = self.start(node, &[]);
        self.until(&alone, "it is ready", || self.get(node, "/health/ready").starts_with("HTTP/1.1 200 "));
        alone
    }

    /// Starts a node as a core that looks for the first three.
    fn start_core(&self, node: u16) -> Node {
        self.start_core_with(node, "cluster.replicas=3")
    }

    fn start_core_with(&self, node: u16, replicas: &str) -> Node {
        let join: Vec<String> = (0..3).map(|node| self.at(node, 2)).collect();
        let secret = self.directory.join("secret");
        let listen = self.at(node, 2);
        let of_cluster = ["--cluster-listen", &listen, "--join", &join.join(","), "--set", replicas];
        let with_secret = ["--cluster-secret-file", secret.to_str().unwrap()];
        self.start(node, &[&of_cluster[..], &with_secret[..]].concat())
    }

    fn get(&self, node: u16, path: &str) -> String {
        let (mut answer, address) = (String::new(), self.at(node, 1));
        if let Ok(mut stream) = TcpStream::connect(&address) {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
            // A node that stops closes the connection.
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.read_to_string(&mut answer);
        }
        answer
    }

    fn until(&self, node: &Node, what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "not: {what}\n{}", node.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Runs a client to its end.
    fn client(&self, node: u16, command: &str, arguments: &str) -> Output {
        let port = (self.port + node * PORTS).to_string();
        meridian(&[command, "-h", "127.0.0.1", "-p", &port]).args(arguments.split(' ')).output().unwrap()
    }

    /// Runs a client until it succeeds.
    fn does(&self, node: u16, command: &str, arguments: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.client(node, command, arguments);
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap();
            }
            assert!(Instant::now() < until, "{command} {arguments}: {output:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns what a node knows of its cluster. Null if it does not answer.
    fn cluster(&self, node: u16) -> serde_json::Value {
        let answer = self.get(node, "/api/v1/cluster");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_default()
    }

    /// Returns whether all shards have three replicas, as a node knows it, and one of these leaders.
    fn is_whole(&self, node: u16, leaders: &[&str]) -> bool {
        self.has_replicas(node, 3, leaders)
    }

    fn has_replicas(&self, node: u16, count: usize, leaders: &[&str]) -> bool {
        let view = self.cluster(node);
        let Some(shards) = view["shards"]["items"].as_array() else { return false };
        let has_all = |shard: &serde_json::Value| {
            let replicas = shard["replicas"].as_array().map_or(0, Vec::len);
            let changes = !shard["joining"].is_null() || !shard["leaving"].is_null();
            let leader = shard["leader"].as_str();
            replicas == count && !changes && leader.is_some_and(|leader| leaders.contains(&leader))
        };
        shards.len() == 16 && shards.iter().all(has_all)
    }
}

/// The node is killed when it is alone, and for good when the others have everything. [MQTT-4.1.0-1]
#[test]
fn nothing_is_lost_or_doubled_when_one_node_grows_to_three_and_ends() {
    let machine = Machine::new(0);
    let sessions: Vec<String> = (0..6).map(|number| format!("reader{number}")).collect();
    let first = machine.start_alone(0);
    for session in &sessions {
        machine.does(0, "sub", &format!("-i {session} -c -t q/# -q 2 -E"));
    }
    let mut expected = Vec::new();
    for number in 0..8 {
        let (topic, qos) = (format!("q/{}", number % 2), 1 + number % 2);
        machine.does(0, "pub", &format!("-t {topic} -m message{number} -q {qos}"));
        expected.push(format!("{topic} message{number}"));
    }
    for number in 0..4 {
        machine.does(0, "pub", &format!("-t r/{number} -m retained{number} -q 1 -r"));
    }
    drop(first);
    // Another node has a session of its own, too.
    let other = machine.start_alone(3);
    machine.does(3, "sub", "-i other -c -t o -q 1 -E");
    machine.does(3, "pub", "-t o -m own -q 1");
    drop(other);

    let first = machine.start_core(0);
    let (second, third) = (machine.start_core(1), machine.start_core(2));
    let all = ["n0", "n1", "n2"];
    machine.until(&first, "all shards have three replicas", || {
        machine.is_whole(1, &all) && machine.is_whole(2, &all)
    });
    let mut joining = machine.start_core(3);
    machine.until(&second, "a core with another state ends", || {
        joining.log.lock().unwrap().contains("cannot be merged")
    });
    assert!(joining.process.wait().unwrap().success(), "it stops in order");
    drop(first);
    machine.until(&second, "the others lead all shards", || {
        machine.is_whole(1, &all[1..]) && machine.is_whole(2, &all[1..])
    });

    // Each session has each message once, in the order of its topic, on any node.
    for (session, node) in sessions.iter().zip([1, 2].into_iter().cycle()) {
        let received = machine.does(node, "sub", &format!("-i {session} -c -t q/# -q 2 -v -C 8 -W 60"));
        let mut lines: Vec<&str> = received.lines().collect();
        for topic in ["q/0", "q/1"] {
            let of_topic = |line: &&&str| line.starts_with(topic);
            let found: Vec<&&str> = lines.iter().filter(of_topic).collect();
            assert!(found.is_sorted(), "{received}");
        }
        lines.sort_by_key(|line| line.rsplit("message").next());
        assert_eq!(lines, expected, "{session}");
        // Nothing comes again.
        let again = machine.client(3 - node, "sub", &format!("-i {session} -c -t q/# -q 2 -v -W 2"));
        assert_eq!((again.status.code(), again.stdout), (Some(27), Vec::new()), "{session}");
    }
    let retained = machine.does(1, "sub", "-t r/# -q 1 -v -C 4 -W 60");
    let mut retained: Vec<&str> = retained.lines().collect();
    retained.sort_unstable();
    assert_eq!(retained, ["r/0 retained0", "r/1 retained1", "r/2 retained2", "r/3 retained3"]);
    drop((second, third));

    // The node that was refused still has its session.
    let _other = machine.start_alone(3);
    assert_eq!(machine.does(3, "sub", "-i other -c -t o -q 1 -v -C 1 -W 60"), "o own\n");
}

/// Two of three cores have sessions of their own. The shards begin with those of one of them. The other one votes, has
/// no shards and serves nobody, until it starts with an empty data directory.
#[test]
fn a_core_whose_sessions_are_refused_votes_until_it_is_replaced() {
    let machine = Machine::new(1);
    let cores: Vec<Node> = (0..3).map(|node| machine.start_core_with(node, "cluster.replicas=0")).collect();
    for (node, core) in (0..3).zip(&cores) {
        machine.until(core, "all cores vote", || {
            machine.cluster(node)["membership"]["replica"]["voters"] == 3
                && machine.get(node, "/health/ready").starts_with("HTTP/1.1 200 ")
        });
    }
    for node in 0..2 {
        machine.does(node, "sub", &format!("-i reader{node} -c -t q/{node} -q 1 -E"));
        machine.does(node, "pub", &format!("-t q/{node} -m message{node} -q 1"));
    }
    drop(cores);

    let mut cores: Vec<Node> = (0..3).map(|node| machine.start_core(node)).collect();
    let only_votes = |core: &Node| core.log.lock().unwrap().contains("this core only votes");
    machine.until(&cores[2], "one core is refused", || cores.iter().any(only_votes));
    let refused = cores.iter().position(only_votes).unwrap();
    let (founder, name) = (1 - refused, ["n0", "n1"][refused]);
    let others: Vec<&str> = ["n0", "n1", "n2"].into_iter().filter(|other| *other != name).collect();
    machine.until(&cores[2], "the others have the shards", || machine.has_replicas(2, 2, &others));
    let readiness = machine.get(refused as u16, "/health/ready");
    assert!(readiness.starts_with("HTTP/1.1 503 ") && readiness.contains("cannot be merged"), "{readiness}");
    assert!(cores[refused].process.try_wait().unwrap().is_none(), "it goes on");
    assert!(cores.iter().filter(|core| only_votes(core)).count() == 1);

    // It restarts with its data, and then without it.
    for is_emptied in [false, true] {
        cores[refused].process.kill().unwrap();
        cores[refused].process.wait().unwrap();
        if is_emptied {
            std::fs::remove_dir_all(machine.directory.join(name)).unwrap();
        }
        cores[refused] = machine.start_core(refused as u16);
        let what = if is_emptied { "it has replicas" } else { "it is refused again" };
        machine.until(&cores[refused], what, || match is_emptied {
            true => machine.is_whole(2, &["n0", "n1", "n2"]),
            false => only_votes(&cores[refused]),
        });
    }
    let received = machine.does(
        refused as u16,
        "sub",
        &format!("-i reader{founder} -c -t q/{founder} -q 1 -v -C 1 -W 60"),
    );
    assert_eq!(received, format!("q/{founder} message{founder}\n"));
}
