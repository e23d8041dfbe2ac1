//! Node over real sockets under difficult conditions: no descriptors, no ports, and clients that stop, flood, disappear
//! or arrive all at once. Scenarios run with one worker and with three.
//!
//! A client that closes its sending side has left, as far as a node is concerned. MQTT needs both directions of a
//! connection, and a client without a way to answer cannot be served (`gone.rs`).

mod client;
mod frozen;
mod gone;
mod listening;
mod many_clients;
mod pressure;
mod stopping;
mod threads;

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use broker::access::AllowAll;
use broker::settings::Settings;
use edge::settings::{EdgeSettings, Listener};
use edge::{Options, StartError, Stopped};

use crate::client::Client;

/// Maximum wait in these tests. Nothing takes longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Node(edge::Node);

impl Node {
    fn start(workers: usize) -> Node {
        Node::with(workers, |_, _| {})
    }

    fn with(workers: usize, change: impl Fn(&mut Settings, &mut Listener)) -> Node {
        Node::try_start(workers, change).expect("the node starts")
    }

    fn try_start(workers: usize, change: impl Fn(&mut Settings, &mut Listener)) -> Result<Node, StartError> {
        let mut broker = Settings::default();
        broker.sys.interval = Duration::ZERO;
        let mut listener = Listener { address: "127.0.0.1:0".into(), ..Listener::default() };
        change(&mut broker, &mut listener);
        let edge = EdgeSettings { workers, listeners: vec![listener], ..Default::default() };
        let access = Arc::new(AllowAll);
        edge::start(Options {
            edge,
            broker,
            access,
            version: "robustness".into(),
            store: None,
            peers: None,
            spans: None,
            descriptors_reserved: 0,
        })
        .map(Node)
    }

    fn address(&self) -> SocketAddr {
        self.0.listeners()[0].tcp.expect("a TCP listener")
    }

    fn client(&self, name: &str) -> Client {
        Client::connect(self.address(), name)
    }

    fn close(&self, within: Duration) {
        self.0.close(within);
    }

    fn stop(self, within: Duration) -> Stopped {
        self.0.stop(within)
    }
}

fn with_1_and_3_workers(scenario: impl Fn(usize)) {
    for workers in [1, 3] {
        scenario(workers);
    }
}

/// Runs a test that changes its whole process in a separate process. Returns true in that process. Elsewhere it waits
/// until the process has ended, and returns false.
fn in_a_process_of_its_own(test: &str) -> bool {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return true;
    }
    let status = child(test, "").wait().expect("a child ends");
    assert!(status.success(), "{test} failed in its own process");
    false
}

/// Runs a test in another process, where [`argument`] returns `argument`.
fn child(test: &str, argument: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(CHILD, test).env(ARGUMENT, argument);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a child process")
}

fn argument() -> Option<String> {
    std::env::var(ARGUMENT).ok().filter(|argument| !argument.is_empty())
}

const CHILD: &str = "MERIDIAN_ROBUSTNESS_CHILD";
const ARGUMENT: &str = "MERIDIAN_ROBUSTNESS_ARGUMENT";
