//! Cells of docs/interop.md for `rumqttc`, MQTT 3.1.1 and 5.0, against a node in this process. Each cell runs with one
//! worker, so that all clients share a reactor, and with three workers, so that they do not.

use std::sync::Arc;
use std::time::Duration;

use interop::{Broker, Cell, ClientVersion};

#[test]
fn qos_0_arrives_once_and_in_order() {
    check(Cell::QoS0);
}

#[test]
fn qos_1_arrives_in_order_and_is_acknowledged() {
    check(Cell::QoS1);
}

#[test]
fn qos_2_arrives_exactly_once_and_in_order() {
    check(Cell::QoS2);
}

#[test]
fn a_retained_message_reaches_live_subscribers_unmarked() {
    check(Cell::RetainSet);
}

#[test]
fn a_new_subscription_gets_the_last_retained_message() {
    check(Cell::RetainGet);
}

#[test]
fn an_empty_retained_message_deletes() {
    check(Cell::RetainDelete);
}

#[test]
fn a_will_is_published_unless_the_client_sends_disconnect() {
    check(Cell::Will);
}

#[test]
fn a_durable_session_keeps_messages_in_order() {
    check(Cell::Resume);
}

#[test]
fn a_shared_subscription_splits_messages() {
    check(Cell::Shared);
}

#[test]
fn a_second_connection_takes_over() {
    check(Cell::Takeover);
}

#[test]
fn properties_are_passed_on_in_order() {
    check(Cell::Properties);
}

#[test]
fn a_subscription_identifier_comes_with_the_message() {
    check(Cell::SubscriptionIdentifier);
}

#[test]
fn no_local_messages_do_not_return_to_their_publisher() {
    check(Cell::NoLocal);
}

fn check(cell: Cell) {
    for workers in [1, 3] {
        let node = start(workers);
        let address = node.listeners()[0].tcp.expect("a TCP listener");
        let broker = Broker { host: address.ip().to_string(), port: address.port() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        for version in ClientVersion::ALL {
            if cell.applies_to(version) {
                let result = runtime.block_on(cell.run(&broker, version));
                result.unwrap_or_else(|error| panic!("{workers} workers, {version:?}: {error:#}"));
            }
        }
        node.stop(Duration::from_secs(5));
    }
}

fn start(workers: usize) -> edge::Node {
    let mut settings = edge::settings::EdgeSettings { workers, ..Default::default() };
    settings.listeners.truncate(1);
    settings.listeners[0].address = "127.0.0.1:0".into();
    let options = edge::Options {
        edge: settings,
        broker: broker::settings::Settings::default(),
        access: Arc::new(broker::access::AllowAll),
        version: "test".into(),
        store: None,
        peers: None,
        spans: None,
        descriptors_reserved: 0,
    };
    edge::start(options).expect("the node starts")
}
