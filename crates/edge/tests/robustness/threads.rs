//! Reactors move between threads by load.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mqtt::QoS;

use crate::client::{Client, Got, publish};
use crate::{Node, PATIENCE};

const PAIRS: usize = 12;
const WORKERS: usize = 3;
/// Messages of a flood that are sent with one call, so that they cost the node much more than their client.
const FLOOD_MESSAGES: usize = 4_000;

/// A publisher and a subscriber of one topic.
struct Pair {
    publisher: Client,
    subscriber: Client,
    topic: String,
    sent: u64,
}

impl Pair {
    fn new(node: &Node, number: usize) -> Self {
        let topic = format!("pair/{number}");
        let mut subscriber = node.client(&format!("subscriber {number}"));
        subscriber.subscribe(&topic, QoS::AtMostOnce);
        Self { publisher: node.client(&format!("publisher {number}")), subscriber, topic, sent: 0 }
    }

    /// Sends messages and receives them, each one once and in order.
    fn exchange(&mut self, count: u64) {
        let numbers = self.sent..self.sent + count;
        let bytes: Vec<u8> =
            numbers.clone().flat_map(|number| publish(&self.topic, &number.to_be_bytes(), None)).collect();
        self.publisher.send(&bytes);
        for number in numbers {
            let payload = number.to_be_bytes().to_vec();
            assert_eq!(self.subscriber.next(), Got::Message { payload, packet_id: None });
        }
        self.sent += count;
    }
}

/// Threads that run the reactors of a node, as it last reported.
fn threads(node: &Node) -> BTreeSet<u16> {
    node.0.admin().figures().workers.iter().map(|worker| worker.reactor.thread).collect()
}

/// One thread runs all reactors at first. Under load others take some of them, and later one thread has all again. No
/// message is lost or overtaken meanwhile.
#[test]
fn reactors_move_to_other_threads_under_load_and_back() {
    let node = Node::start(WORKERS);
    let mut pairs: Vec<Pair> = (0..PAIRS).map(|number| Pair::new(&node, number)).collect();
    assert_eq!(threads(&node).len(), 1);
    let floods: Vec<Client> = (0..WORKERS).map(|number| node.client(&format!("flood {number}"))).collect();
    let is_loaded = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for mut client in floods {
            let messages = publish("flood", b"", None).repeat(FLOOD_MESSAGES);
            let is_loaded = &is_loaded;
            scope.spawn(move || {
                while is_loaded.load(Ordering::Relaxed) {
                    client.send(&messages);
                }
                client.ping();
            });
        }
        for pair in &mut pairs {
            scope.spawn(|| {
                while is_loaded.load(Ordering::Relaxed) {
                    pair.exchange(200);
                }
            });
        }
        let deadline = Instant::now() + PATIENCE;
        while threads(&node).len() == 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_loaded.store(false, Ordering::Relaxed);
    });
    assert!(threads(&node).len() > 1, "no reactor has moved");
    let deadline = Instant::now() + PATIENCE;
    while threads(&node).len() > 1 {
        assert!(Instant::now() < deadline, "the reactors are not on one thread again: {:?}", threads(&node));
        pairs.iter_mut().for_each(|pair| pair.exchange(1));
        std::thread::sleep(Duration::from_millis(50));
    }
    pairs.iter_mut().for_each(|pair| pair.exchange(100));
    node.stop(PATIENCE);
}
