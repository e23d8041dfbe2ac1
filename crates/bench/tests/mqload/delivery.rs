//! mqload counts the deliveries of a broker, and detects every fault.

use crate::broker::{Behaviour, Broker, Fault};
use crate::mqload;

#[test]
fn a_correct_broker_is_reported_as_correct_at_every_version_and_qos() {
    let broker = Broker::start(Behaviour::default());
    for version in [4, 5] {
        for qos in [0, 1, 2] {
            let run = mqload(&format!(
                "pubsub -H {} -V {version} -q {qos} -p 5 -s 5 -m 1000 --verify --payload 100",
                broker.address
            ));
            run.is_clean();
            assert_eq!(run.number("/totals/received"), 1000);
            assert_eq!(run.number("/totals/sent"), 1000);
            assert_eq!(run.number("/totals/acked"), if qos > 0 { 1000 } else { 0 });
        }
    }
}

#[test]
fn every_topology_delivers_as_specified() {
    let broker = Broker::start(Behaviour::default());
    for (topology, pubs, subs, deliveries) in [
        ("one-to-one", 7, 7, 1200),
        ("fan-in", 11, 3, 1200),
        ("fan-out", 2, 9, 5400),
        ("all", 3, 4, 4800),
        ("shared", 4, 6, 2400),
    ] {
        for threads in [1, 2] {
            let run = mqload(&format!(
                "pubsub -H {} -V 5 -q 1 -p {pubs} -s {subs} --topology {topology} --groups 2 -t {threads} -m 1200 --verify",
                broker.address
            ));
            run.is_clean();
            assert_eq!(run.number("/totals/received"), deliveries, "{topology}");
            assert_eq!(run.number("/totals/expected_deliveries"), deliveries, "{topology}");
        }
    }
}

/// Runs with a fault. The 2001st message ensures that a swapped one has a successor.
fn with_fault(fault: Fault, qos: u8) -> crate::Outcome {
    let broker = Broker::start(Behaviour { fault, ..Behaviour::default() });
    mqload(&format!("pubsub -H {} -q {qos} -m 2001 --verify --drain 1", broker.address))
}

#[test]
fn dropped_messages_are_counted_and_no_violation_at_qos_0() {
    let run = with_fault(Fault::Drop, 0);
    assert_eq!((run.number("/lost"), run.number("/duplicated"), run.number("/out_of_order")), (40, 0, 0));
    assert_eq!((run.number("/lost_acked"), run.code), (0, 0));
}

#[test]
fn dropping_acknowledged_messages_is_a_violation() {
    for qos in [1, 2] {
        let run = with_fault(Fault::Drop, qos);
        assert_eq!((run.number("/lost"), run.number("/lost_acked"), run.code), (40, 40, 1));
    }
}

#[test]
fn doubled_messages_are_counted() {
    let run = with_fault(Fault::Duplicate, 0);
    assert_eq!((run.number("/lost"), run.number("/duplicated"), run.number("/out_of_order")), (0, 40, 0));
    assert_eq!(run.code, 1);
}

#[test]
fn a_second_copy_within_the_qos_2_handshake_is_hidden_from_the_application() {
    let run = with_fault(Fault::Duplicate, 2);
    assert_eq!(run.number("/duplicated"), 0);
    assert_eq!(run.number("/handshake/q2_retransmissions_hidden"), 40);
}

#[test]
fn swapped_messages_are_counted() {
    let run = with_fault(Fault::Swap, 1);
    assert_eq!((run.number("/lost"), run.number("/duplicated"), run.number("/out_of_order")), (0, 0, 40));
    assert_eq!(run.code, 1);
}

#[test]
fn changed_payloads_are_counted() {
    let run = with_fault(Fault::Flip, 0);
    assert_eq!((run.number("/corrupt"), run.number("/lost"), run.code), (40, 40, 1));
}

#[test]
fn packets_may_arrive_in_pieces() {
    for (version, piece) in [(4, 1), (5, 3)] {
        let broker = Broker::start(Behaviour { piece, ..Behaviour::default() });
        let run = mqload(&format!(
            "pubsub -H {} -V {version} -q 2 -p 3 -s 3 -m 150 --verify -l 300",
            broker.address
        ));
        run.is_clean();
        assert_eq!(run.number("/totals/received"), 150);
    }
}

#[test]
fn large_payloads_arrive_complete() {
    let broker = Broker::start(Behaviour::default());
    let run = mqload(&format!("pubsub -H {} -q 1 -l 1500000 -m 6 --inflight 3 --verify", broker.address));
    run.is_clean();
    assert_eq!(run.number("/totals/received"), 6);
}

#[test]
fn the_brokers_receive_maximum_is_respected() {
    let broker = Broker::start(Behaviour { receive_maximum: Some(5), ..Behaviour::default() });
    let run = mqload(&format!("pubsub -H {} -V 5 -q 2 -m 500 --inflight 100", broker.address));
    run.is_clean();
}

#[test]
fn foreign_messages_are_detected() {
    let broker = Broker::start(Behaviour { foreign: true, ..Behaviour::default() });
    let run = mqload(&format!("pubsub -H {} -V 5 -q 0 -s 2 -p 2 -m 100", broker.address));
    assert_eq!((run.number("/foreign"), run.number("/lost"), run.code), (2, 0, 1));
}

#[test]
fn misrouted_messages_are_detected() {
    let broker = Broker::start(Behaviour::default());
    let both = format!("pubsub -H {} -p 2 -s 2 -m 100 --drain 1", broker.address);
    let run = mqload(&format!("{both} -q 0 --pub-topic h/%i --sub-topic h/+"));
    assert_eq!((run.number("/unexpected"), run.code), (100, 1));
    let run = mqload(&format!("{both} -q 1 --pub-topic h/%i --sub-topic g/+"));
    assert_eq!((run.number("/lost"), run.number("/lost_acked"), run.code), (100, 100, 1));
}
