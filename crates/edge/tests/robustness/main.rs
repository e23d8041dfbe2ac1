//! A node over real sockets when its surroundings are unkind: no descriptors, no ports, clients that stop, flood, vanish or
//! come all at once. Scenarios run with one worker and with three.
//!
//! A client that shuts down its sending side has left, as far as a node is concerned: MQTT wants both directions of a
//! connection, and nothing that has no way to answer can be served (`gone.rs`).

mod client;
mod gone;
mod listening;
mod many_clients;
mod pressure;
mod stopping;

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use broker::access::AllowAll;
use broker::settings::Settings;
use edge::settings::{EdgeSettings, Listener};
use edge::{Options, StartError, Stopped};

use crate::client::Client;

/// Longer than anything here takes on a busy machine: what needs it has failed.
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

    fn stop(self, within: Duration) -> Stopped {
        self.0.stop(within)
    }
}

fn with_1_and_3_workers(scenario: impl Fn(usize)) {
    for workers in [1, 3] {
        scenario(workers);
    }
}

/// Where a test does something to its whole process, it runs in one of its own: true there. Elsewhere the process has run when
/// this returns.
fn in_a_process_of_its_own(test: &str) -> bool {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return true;
    }
    let status = child(test, "").wait().expect("a child ends");
    assert!(status.success(), "{test} failed in its own process");
    false
}

/// Runs a test in another process, which finds `argument` by [`argument`].
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
