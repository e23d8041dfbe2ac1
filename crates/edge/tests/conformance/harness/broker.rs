//! Broker under test, and the configurations in which every scenario runs.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Client, ConnAck, Connect, Received, Version};

/// Environment variable with the address of a running broker, which replaces the test node.
const EXTERNAL: &str = "MERIDIAN_TEST_BROKER";

/// Number of reactors, and the placement of a scenario's clients on them. A broker may distribute connections in turn.
/// Then extra connections between two clients change the reactor of the second.
#[derive(Clone, Copy, Debug)]
enum Placement {
    OneWorker,
    /// Three workers. Clients connect one after the other.
    Apart,
    /// Three workers. Two extra connections are opened between a client and the next.
    Together,
}

impl Placement {
    const ALL: [Placement; 3] = [Placement::OneWorker, Placement::Apart, Placement::Together];

    fn workers(self) -> usize {
        match self {
            Placement::OneWorker => 1,
            Placement::Apart | Placement::Together => 3,
        }
    }

    fn connections_between(self) -> usize {
        match self {
            Placement::OneWorker | Placement::Apart => 0,
            Placement::Together => 2,
        }
    }
}

/// Broker as one run of a scenario sees it: with a protocol version, and with names that no other run uses.
pub struct Broker {
    node: Arc<Node>,
    placement: Placement,
    pub version: Version,
    run: String,
}

impl Broker {
    /// Returns a topic or filter that only this run uses.
    pub fn topic(&self, rest: &str) -> String {
        format!("run{}/{rest}", self.run)
    }

    /// Returns a Client Identifier that only this run uses: short, only A to Z, a to z and 0 to 9 [MQTT-3.1.3-5].
    pub fn id(&self, name: &str) -> String {
        format!("{name}x{}", self.run)
    }

    pub fn address(&self) -> SocketAddr {
        self.node.address
    }

    /// Returns whether the broker was not started by this suite. It may have other settings and other publishers.
    pub fn is_external() -> bool {
        std::env::var_os(EXTERNAL).is_some()
    }

    /// Stops the broker, also for versions of the scenario that still run.
    pub fn stop(&self) {
        self.node.stop();
    }

    /// Opens a Network Connection without CONNECT.
    pub fn open(&self) -> Client {
        self.open_as(self.version)
    }

    pub fn open_as(&self, version: Version) -> Client {
        for _ in 0..self.placement.connections_between() {
            drop(self.dial());
        }
        Client::new(self.dial(), version)
    }

    fn dial(&self) -> TcpStream {
        TcpStream::connect(self.node.address).expect("the broker accepts connections")
    }

    /// Returns a CONNECT with the version of the run and a unique name.
    pub fn client(&self, name: &str) -> Connect {
        Connect::new(self.version, &self.id(name))
    }

    /// Connects a client with a new session that ends with its connection.
    pub fn connect(&self, name: &str) -> Client {
        self.connect_with(self.client(name)).0
    }

    pub fn connect_as(&self, version: Version, name: &str) -> Client {
        self.connect_with(Connect::new(version, &self.id(name))).0
    }

    /// Connects, and fails unless the broker accepts.
    pub fn connect_with(&self, connect: Connect) -> (Client, ConnAck) {
        let mut client = self.open_as(connect.version);
        let connack = client.connect(&connect);
        (client, connack)
    }

    /// Sends a CONNECT that has to be refused. Returns the CONNACK, if there was one before the connection was closed.
    pub fn refused(&self, connect: &Connect) -> Option<ConnAck> {
        let mut client = self.open_as(connect.version);
        client.send_connect(connect);
        match client.recv() {
            Received::Closed => None,
            Received::ConnAck(connack) => {
                assert!(connack.reason.is_error(), "accepted: {connect:?}");
                assert!(!connack.session_present, "[MQTT-3.2.2-6]");
                client.closed();
                Some(connack)
            }
            other => panic!("{other:?} before CONNACK"),
        }
    }

    /// Connects a client whose session outlives its connection. The session must be new.
    pub fn durable(&self, name: &str) -> Client {
        let (client, connack) = self.connect_with(self.client(name).durable());
        assert!(!connack.session_present, "an unexpected session");
        client
    }

    /// Connects the client of a durable session again. The session must exist.
    pub fn resume(&self, name: &str) -> Client {
        let (client, connack) = self.connect_with(self.client(name).durable());
        // 3.1 has no Session Present.
        assert!(connack.session_present || self.version == Version::V3_1, "the session is gone");
        client
    }
}

/// Function that changes settings for a scenario.
type Change<'a> = &'a (dyn Fn(&mut broker::settings::Settings) + Sync);

/// Runs a scenario for all three versions.
pub fn every_version(scenario: impl Fn(&Broker) + Sync) {
    run(&Version::ALL, None, &scenario);
}

/// Runs a scenario for 3.1.1 and 5.0.
pub fn from_3_1_1(scenario: impl Fn(&Broker) + Sync) {
    run(&[Version::V3_1_1, Version::V5], None, &scenario);
}

/// Runs a scenario for 5.0.
pub fn v5(scenario: impl Fn(&Broker) + Sync) {
    run(&[Version::V5], None, &scenario);
}

/// Runs a scenario that checks a choice of Meridian where the specification allows several, for all three versions.
pub fn every_version_ours(scenario: impl Fn(&Broker) + Sync) {
    run(&Version::ALL, Some(&|_| {}), &scenario);
}

/// Runs a scenario that checks a choice of Meridian where the specification allows several, for 5.0.
pub fn v5_ours(scenario: impl Fn(&Broker) + Sync) {
    run(&[Version::V5], Some(&|_| {}), &scenario);
}

/// Runs a scenario for 5.0 against a broker with changed settings.
pub fn v5_with(change: impl Fn(&mut broker::settings::Settings) + Sync, scenario: impl Fn(&Broker) + Sync) {
    run(&[Version::V5], Some(&change), &scenario);
}

/// Runs a scenario for every version with changed settings.
pub fn every_version_with(
    change: impl Fn(&mut broker::settings::Settings) + Sync,
    scenario: impl Fn(&Broker) + Sync,
) {
    run(&Version::ALL, Some(&change), &scenario);
}

/// Runs a scenario in every placement and version at the same time, because most scenarios spend their time waiting.
fn run(versions: &[Version], change: Option<Change<'_>>, scenario: &(dyn Fn(&Broker) + Sync)) {
    static RUNS: AtomicU32 = AtomicU32::new(1);
    if change.is_some() && Broker::is_external() {
        let name = std::thread::current().name().unwrap_or("a scenario").to_owned();
        // Written directly to stderr, because a skipped scenario must be visible even in a passing run.
        writeln!(std::io::stderr(), "skipped, needs a broker of its own: {name}").expect("stderr is open");
        return;
    }
    // The placements do not apply to an external broker.
    let placements = if Broker::is_external() { &Placement::ALL[..1] } else { &Placement::ALL[..] };
    std::thread::scope(|threads| {
        for &placement in placements {
            let node = Arc::new(Node::start(placement, change));
            for &version in versions {
                let node = node.clone();
                std::thread::Builder::new()
                    .name(format!("MQTT {version}, {placement:?}"))
                    .spawn_scoped(threads, move || {
                        let run = RUNS.fetch_add(1, Ordering::Relaxed);
                        // An external broker may still have state of earlier runs of the suite.
                        let run = format!("{:x}n{run:x}", std::process::id());
                        scenario(&Broker { node, placement, version, run });
                    })
                    .expect("a thread");
            }
        }
    });
}

/// Broker that runs as long as a scenario.
struct Node {
    address: SocketAddr,
    started: Mutex<Option<edge::Node>>,
}

impl Node {
    fn start(placement: Placement, change: Option<Change<'_>>) -> Node {
        if let Ok(address) = std::env::var(EXTERNAL) {
            let address =
                address.parse().unwrap_or_else(|_| panic!("{EXTERNAL} is an IP address with a port"));
            return Node { address, started: Mutex::new(None) };
        }
        let mut broker = broker::settings::Settings::default();
        if let Some(change) = change {
            change(&mut broker);
        }
        let listener = edge::settings::Listener { address: "127.0.0.1:0".into(), ..Default::default() };
        let edge = edge::settings::EdgeSettings {
            workers: placement.workers(),
            listeners: vec![listener],
            ..Default::default()
        };
        let access = Arc::new(broker::access::AllowAll);
        let node = edge::start(edge::Options {
            edge,
            broker,
            access,
            version: "conformance".into(),
            store: None,
            peers: None,
            spans: None,
            descriptors_reserved: 0,
        })
        .expect("the node starts");
        let address = node.listeners()[0].tcp.expect("a TCP address");
        Node { address, started: Mutex::new(Some(node)) }
    }

    fn stop(&self) {
        let node = self.started.lock().expect("nothing panics while it holds this").take();
        if let Some(node) = node {
            node.stop(Duration::from_secs(5));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}
