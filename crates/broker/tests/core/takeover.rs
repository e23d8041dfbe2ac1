//! One connection at a time serves a Client Identifier, wherever on the node clients connect.

use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::ReasonCode::{self, SessionTakenOver};
use mqtt::Version::{V3_1_1, V5};

use crate::net::{Net, everywhere};
use crate::store::Kind;
use testkit::packets::*;

/// [MQTT-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn the_old_connection_is_notified_and_closed() {
    for index in 0..3 {
        everywhere(|net| {
            let (old, older) = (net.connect(index, v5("c")), net.connect(index, v3("d")));
            let new = net.connecting(1, v5("c"));
            let newer = net.connecting(2, v3("d"));
            assert_eq!(net.received(old), [disconnect(SessionTakenOver), Sent::Closed]);
            assert_eq!(net.received(older), [Sent::Closed]);
            assert_eq!(net.received(new), [connack(false)]);
            assert_eq!(net.received(newer), [connack(false)]);
            assert_eq!(net.counter(|counters| counters.taken_over), 2);
        });
    }
}

/// The old connection is closed before the new one gets an answer.
#[test]
fn connack_waits_until_the_old_connection_has_released_the_session() {
    for held in [Kind::Revoke, Kind::Release] {
        everywhere(|net| {
            let old = net.connect(0, v5("c"));
            net.store.hold(&[held]);
            let new = net.connecting(1, v5("c"));
            assert_eq!(net.received(new), []);
            if held == Kind::Revoke {
                net.send(old, Sent::PingReq);
                assert_eq!(net.received(old), [Sent::PingResp], "it is not notified yet");
            }
            net.release_held();
            assert_eq!(net.received(old), [disconnect(SessionTakenOver), Sent::Closed]);
            assert_eq!(net.received(new), [connack(false)]);
        });
    }
}

/// The first of two that wait is closed: 0x8E is not for CONNACK, and 3.1.1 has no code for it at all.
#[test]
fn the_last_of_three_claimants_stays() {
    everywhere(|net| {
        let first = net.connect(0, durable(V5, "c"));
        net.subscribe(first, "t", AtLeastOnce);
        net.store.hold(&[Kind::Revoke]);
        let second = net.connecting(1, durable(V5, "c"));
        let third = net.connecting(2, durable(V3_1_1, "c"));
        assert_eq!(net.received(second), [refused(ReasonCode::UnspecifiedError), Sent::Closed]);
        assert_eq!(net.received(third), []);
        net.release_held();
        assert_eq!(net.received(first), [disconnect(SessionTakenOver), Sent::Closed]);
        assert_eq!(net.received(third), [connack(true)]);
    });
}

#[test]
fn a_long_chain_of_claimants_leaves_one() {
    everywhere(|net| {
        let mut clients = Vec::new();
        for number in 0..20 {
            let connecting = if number % 3 == 0 { v5("c") } else { durable(V5, "c") };
            let client = net.open(number, V5);
            net.send_without_running(client, connecting);
            clients.push(client);
        }
        net.run();
        let last = clients.pop().expect("twenty");
        let open: Vec<_> = clients.iter().filter(|client| net.closed(**client).is_none()).collect();
        let is_last = net.closed(last).is_none();
        // It depends on the order of batches whose CONNECT reached the store last; exactly one has it.
        assert_eq!(open.len() + usize::from(is_last), 1);
    });
}

#[test]
fn a_claimant_that_disconnects_while_it_waits_leaves_the_identifier_to_others() {
    everywhere(|net| {
        let old = net.connect(0, durable(V5, "c").will(message("w", "old")));
        let witness = net.connect(2, v5("witness"));
        net.subscribe(witness, "#", AtMostOnce);
        net.store.hold(&[Kind::Revoke, Kind::Release]);
        let dying = net.connecting(1, durable(V5, "c").will(message("w", "dying")));
        net.lose(dying);
        net.release_held();
        assert_eq!(net.received(old), [disconnect(SessionTakenOver), Sent::Closed]);
        assert_eq!(net.payloads(witness), ["old"], "a client that was never accepted has no Will");
        net.resume(2, durable(V5, "c"));
    });
}

#[test]
fn an_owner_that_disconnects_while_it_is_revoked_releases_the_session() {
    everywhere(|net| {
        let old = net.connect(0, durable(V5, "c"));
        net.store.hold(&[Kind::Revoke]);
        let new = net.connecting(1, durable(V5, "c"));
        net.lose(old);
        assert_eq!(net.received(new), [connack(true)]);
        net.release_held();
        net.send(new, Sent::PingReq);
        assert_eq!(net.received(new), [Sent::PingResp], "a late revocation of the old one does not close it");
    });
}

/// [MQTT-3.1.2-4]
#[test]
fn clean_start_ends_the_session_that_is_taken_over() {
    everywhere(|net| {
        let old = net.connect(0, durable(V5, "c"));
        net.subscribe(old, "t", AtLeastOnce);
        let new = net.connect(1, durable(V5, "c").starts_clean());
        assert_eq!(net.received(old), [disconnect(SessionTakenOver), Sent::Closed]);
        net.publish(new, "t", "without a receiver");
        net.send(new, message("t", "without a receiver").qos1(1));
        assert_eq!(net.received(new), [Sent::PubAck(1, ReasonCode::NoMatchingSubscribers)]);
    });
}

fn witness(net: &mut Net) -> crate::net::Peer {
    let witness = net.connect(2, v5("witness"));
    net.subscribe(witness, "w/#", AtLeastOnce);
    witness
}

/// 3.1.3.2.2: the delay has not passed, and the session continues.
#[test]
fn a_delayed_will_is_not_sent_when_the_session_is_taken_over_and_continues() {
    everywhere(|net| {
        let witness = witness(net);
        net.connect(0, durable(V5, "c").delayed_will(message("w/c", "gone").qos(AtLeastOnce), 5));
        let new = net.resume(1, durable(V5, "c"));
        net.pass(10_000);
        assert_eq!(net.received(witness), []);
        net.send(new, goodbye());
    });
}

/// [MQTT-3.1.2-8]: the Network Connection was closed without DISCONNECT, and nothing delays the Will.
#[test]
fn a_will_without_delay_is_sent_when_the_session_is_taken_over() {
    everywhere(|net| {
        let witness = witness(net);
        net.connect(0, durable(V5, "c").will(message("w/c", "five").qos(AtLeastOnce)));
        net.connect(1, durable(V3_1_1, "d").will(message("w/d", "three")));
        net.connect(0, v5("e").will(message("w/e", "short-lived")));
        for name in ["c", "d"] {
            net.resume(1, durable(V5, name));
        }
        net.connect(1, v5("e"));
        let mut wills = net.payloads(witness);
        wills.sort_unstable();
        assert_eq!(wills, ["five", "short-lived", "three"]);
    });
}

/// [MQTT-3.1.3-9]: the delay ends with the session.
#[test]
fn clean_start_sends_the_delayed_will_of_the_session_it_ends() {
    everywhere(|net| {
        let witness = witness(net);
        net.connect(0, durable(V5, "c").delayed_will(message("w/c", "gone"), 5));
        net.connect(1, v5("c"));
        assert_eq!(net.payloads(witness), ["gone"]);
        net.pass(10_000);
        assert_eq!(net.received(witness), [], "once");
    });
}

/// The existing connection stays when the new one may not have the identifier.
#[test]
fn the_old_connection_stays_when_the_store_refuses_the_takeover() {
    everywhere(|net| {
        let old = net.connect(0, v5("c"));
        net.store.fail(Kind::Claim, ReasonCode::ServerBusy);
        let new = net.connecting(1, v5("c"));
        assert_eq!(net.received(new), [refused(ReasonCode::ServerBusy), Sent::Closed]);
        net.send(old, Sent::PingReq);
        assert_eq!(net.received(old), [Sent::PingResp]);
    });
}

/// Messages that the old connection had not acknowledged go to the new one, once.
#[test]
fn unacknowledged_messages_go_to_the_new_connection() {
    everywhere(|net| {
        let old = net.connect(0, durable(V5, "c"));
        net.subscribe(old, "t", AtLeastOnce);
        let publisher = net.connect(1, v5("p"));
        for id in 1..=3 {
            net.send(publisher, message("t", id).qos1(id));
        }
        assert_eq!(net.payloads(old), ["1", "2", "3"]);
        net.send(old, puback(2));
        net.store.hold(&[Kind::Revoke]);
        let new = net.connecting(2, durable(V5, "c"));
        // A last acknowledgement of the old one still counts.
        net.send(old, puback(1));
        net.release_held();
        let three = message("t", 3).qos1(3).dup();
        assert_eq!(net.received(new), [connack(true), three.into()]);
    });
}
