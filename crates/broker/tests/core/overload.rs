//! A worker that is overloaded: what the node refuses at which level, for all its workers, and the counters for that.

use std::time::Duration;

use broker::Level;
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1_1, V5};
use settings::ByteSize;

use crate::net::{Net, everywhere_with};
use testkit::packets::*;

/// Bytes in a mailbox at which the level is 1; it falls with the load.
const BUSY: u64 = 1024;

fn everywhere(scenario: impl Fn(&mut Net)) {
    let change = |settings: &mut broker::settings::Settings| {
        settings.overload.mailbox_bytes = ByteSize::kib(1);
        settings.overload.cooldown = Duration::ZERO;
    };
    everywhere_with(change, scenario);
}

#[test]
fn a_busy_node_refuses_new_clients() {
    everywhere(|net| {
        let inside = net.connect(0, v5("inside"));
        net.subscribe(inside, "t", AtMostOnce);
        assert_eq!(net.assess_load(BUSY - 1), Level::Calm);
        net.connect(1, v5("in time"));
        assert_eq!(net.assess_load(BUSY), Level::Busy);
        for index in 0..3 {
            let refused_one = net.connecting(index, v5(&format!("late {index}")));
            assert_eq!(net.received(refused_one), [refused(ReasonCode::ServerBusy), Sent::Closed]);
        }
        assert_eq!(net.counter(|counters| counters.connects_shed), 3);
        // A connected client is served as before.
        net.send(inside, message("t", "to itself"));
        assert_eq!(net.payloads(inside), ["to itself"]);
        assert_eq!(net.assess_load(0), Level::Calm);
        net.connect(2, v5("late 0"));
        assert_eq!(net.counter(|counters| counters.connects_shed), 3);
    });
}

/// QoS 0 messages are dropped only for clients that do not read; all others get everything.
#[test]
fn qos_0_messages_to_a_reader_with_unsent_bytes_are_dropped_at_level_two() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            let publisher = net.connect(0, v5("p"));
            let connect = |name: &str| if version == V5 { v5(name) } else { v3(name) };
            let reader = net.connect(1, connect("reads"));
            let stalled = net.connect(2, connect("does not read"));
            for client in [reader, stalled] {
                net.subscribe(client, "zero", AtMostOnce);
                net.subscribe(client, "one", AtLeastOnce);
            }
            net.stop_reading(stalled);
            let dropped = |net: &Net| net.counter(|counters| counters.dropped_overload);

            assert_eq!(net.assess_load(BUSY), Level::Busy);
            net.send(publisher, message("zero", "first"));
            net.send(publisher, message("zero", "kept at level 1"));
            assert_eq!(dropped(net), 0);
            assert_eq!(net.assess_load(2 * BUSY), Level::High);
            net.send(publisher, message("zero", "dropped"));
            net.send(publisher, message("one", "not of QoS 0").qos1(1));
            assert_eq!(dropped(net), 1);
            assert_eq!(net.payloads(reader), ["first", "kept at level 1", "dropped", "not of QoS 0"]);
            assert_eq!(net.assess_load(BUSY), Level::Busy);
            net.send(publisher, message("zero", "kept again"));
            assert_eq!(net.payloads(reader), ["kept again"]);
            net.go_on_reading(stalled);
            assert_eq!(net.payloads(stalled), ["first", "kept at level 1", "not of QoS 0", "kept again"]);

            // A client that has read everything has no unsent bytes.
            assert_eq!(net.assess_load(2 * BUSY), Level::High);
            net.send(publisher, message("zero", "to both"));
            assert_eq!(
                (net.payloads(reader), net.payloads(stalled)),
                (vec!["to both".into()], vec!["to both".into()])
            );
            assert_eq!(dropped(net), 1);
        });
    }
}
