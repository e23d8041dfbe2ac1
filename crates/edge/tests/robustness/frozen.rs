//! A node without a lease that does not touch the sockets of its clients (`cluster.without_quorum = "freeze"`).

use std::io::{ErrorKind, Read};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use broker::Time;
use broker::access::AllowAll;
use broker::peers::{Outbound, Peers};
use broker::settings::Settings;
use edge::Options;
use edge::settings::{EdgeSettings, Listener};

use crate::client::{Client, Got, PINGREQ, With};
use crate::{Node, PATIENCE, with_1_and_3_workers};

/// A cluster that does nothing. It makes the broker's node known to the test.
#[derive(Default)]
struct Cluster(OnceLock<Arc<broker::Node>>);

impl Peers for Cluster {
    fn connect(&self, node: &Arc<broker::Node>, _: broker::Instant) -> Result<(), String> {
        self.0.set(node.clone()).map_err(|_| "it is known".to_owned())
    }

    fn submit(&self, _: Outbound) {}

    fn backlog(&self) -> usize {
        0
    }

    fn routes_changed(&self) {}

    fn suback_timeout(&self) -> Duration {
        PATIENCE
    }
}

fn start(workers: usize) -> (Node, Arc<broker::Node>) {
    let mut broker = Settings::default();
    broker.sys.interval = Duration::ZERO;
    let listener = Listener { address: "127.0.0.1:0".into(), ..Listener::default() };
    let cluster = Arc::<Cluster>::default();
    let node = edge::start(Options {
        edge: EdgeSettings { workers, listeners: vec![listener], ..Default::default() },
        broker,
        access: Arc::new(AllowAll),
        version: "robustness".into(),
        store: None,
        peers: Some(cluster.clone()),
        spans: None,
        descriptors_reserved: 0,
    });
    (Node(node.expect("the node starts")), cluster.0.get().expect("it has joined").clone())
}

/// Returns whether nothing arrives for a while.
fn gets_nothing(client: &mut Client) -> bool {
    client.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    let result = client.stream.read(&mut [0; 1]);
    client.stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    result.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// The silence is the node's, so that Keep Alive does not close the client.
#[test]
fn clients_get_nothing_without_a_lease_and_everything_after_it() {
    with_1_and_3_workers(|workers| {
        let (node, broker) = start(workers);
        broker.freeze_without_lease(true);
        let mut client = Client::connect_with(node.address(), "c", With { keep_alive: 1, ..With::default() });
        broker.set_fresh_until(Time(0));
        client.send(&PINGREQ);
        let mut new = Client::open(node.address()).expect("the system accepts it");
        new.send_connect("new", With::default());
        let frozen = Instant::now();
        while frozen.elapsed() < Duration::from_secs(2) {
            assert!(gets_nothing(&mut client) && gets_nothing(&mut new));
        }
        broker.set_fresh_until(Time::NEVER);
        assert_eq!((client.next(), new.next()), (Got::PingResp, Got::ConnAck));
        new.ping();
        node.stop(PATIENCE);
    });
}

/// A service manager ends the process also when its node is cut off.
#[test]
fn a_node_without_a_lease_stops() {
    let (node, broker) = start(1);
    let mut client = node.client("c");
    broker.freeze_without_lease(true);
    broker.set_fresh_until(Time(0));
    node.stop(PATIENCE);
    assert_eq!(client.next(), Got::Disconnect(mqtt::ReasonCode::ServerShuttingDown));
}
