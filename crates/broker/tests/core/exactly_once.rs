//! QoS 2 from clients with durable sessions: each message once, whatever happens to connections and acknowledgements.

use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1, V3_1_1, V5};

use crate::net::{Net, everywhere};
use crate::store::Kind;
use testkit::packets::*;

/// Absent durable subscribers, in several shards.
const ABSENT: [&str; 4] = ["a", "b", "c", "d"];

fn absent_subscribers(net: &mut Net) {
    for name in ABSENT {
        let subscriber = net.connect(1, durable(V5, name));
        net.subscribe(subscriber, "t/#", ExactlyOnce);
        net.lose(subscriber);
    }
}

/// Checks that each of them has got these messages.
fn check_found(net: &mut Net, expected: &[&str]) {
    for name in ABSENT {
        let subscriber = net.resume(2, durable(V5, name));
        assert_eq!(net.payloads(subscriber), expected, "{name}");
    }
}

/// [MQTT-4.3.3-8] [MQTT-4.3.3-10]: a PUBLISH is repeated on the next connection while the store is still at work. It is
/// answered when it is kept, and each subscriber gets it once, connected or absent.
#[test]
fn a_publish_repeated_after_a_resume_is_answered_when_it_is_kept() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            absent_subscribers(net);
            let witness = net.connect(2, v5("witness"));
            net.subscribe(witness, "t/1", ExactlyOnce);
            let member = net.connect(0, v5("member"));
            net.subscribe(member, "$share/g/t/+", AtLeastOnce);
            let publisher = net.connect(0, durable(version, "p"));
            net.store.hold(&[Kind::Append]);
            net.send(publisher, message("t/1", "once").qos2(7));
            net.lose(publisher);
            let publisher = net.resume(1, durable(version, "p"));
            net.send(publisher, message("t/1", "once").qos2(7).dup());
            assert_eq!(net.received(publisher), [], "not before the store has it");
            net.release_held();
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.send(publisher, pubrel(7));
            assert_eq!(net.received(publisher), [pubcomp(7)]);
            assert_eq!(net.payloads(witness), ["once"]);
            assert_eq!(net.payloads(member), ["once"]);
            check_found(net, &["once"]);
            // The first is known until the session ends: it could arrive late.
            net.connect(1, Connecting { version, ..v5("p") });
            assert_eq!(net.identities(), 0);
        });
    }
}

/// [MQTT-4.3.3-8]: the identifier is remembered last. When that was lost, the message is sent again and is known.
#[test]
fn a_publish_that_was_kept_but_not_remembered_is_not_kept_twice() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            absent_subscribers(net);
            let witness = net.connect(2, v5("witness"));
            net.subscribe(witness, "t/1", ExactlyOnce);
            let publisher = net.connect(0, durable(version, "p"));
            net.store.hold(&[Kind::Receive]);
            net.send(publisher, message("t/1", "once").qos2(7));
            assert_eq!(net.received(publisher), []);
            net.lose(publisher);
            net.release_held();
            let publisher = net.resume(1, durable(version, "p"));
            net.send(publisher, message("t/1", "once").qos2(7).dup());
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.send(publisher, pubrel(7));
            net.send(publisher, message("t/1", "another").qos2(7));
            assert_eq!(net.received(publisher), [pubcomp(7), pubrec(7)]);
            assert_eq!(net.payloads(witness), ["once", "another"]);
            assert_eq!(net.identities(), 0);
            check_found(net, &["once", "another"]);
        });
    }
}

/// [MQTT3-3.3.5-2]: an older client is closed when the store fails, reconnects and sends the message again.
#[test]
fn a_publish_that_was_kept_before_the_store_failed_is_not_kept_twice() {
    everywhere(|net| {
        absent_subscribers(net);
        let witness = net.connect(2, v5("witness"));
        net.subscribe(witness, "t/1", ExactlyOnce);
        let publisher = net.connect(0, durable(V3_1_1, "p"));
        net.store.fail(Kind::Receive, ReasonCode::UnspecifiedError);
        net.send(publisher, message("t/1", "once").qos2(7));
        assert_eq!(net.received(publisher), [Sent::Closed]);
        net.store.heal();
        let publisher = net.resume(1, durable(V3_1_1, "p"));
        net.send(publisher, message("t/1", "once").qos2(7).dup());
        assert_eq!(net.received(publisher), [pubrec(7)]);
        assert_eq!(net.payloads(witness), ["once"]);
        check_found(net, &["once"]);
    });
}

/// [MQTT-4.3.3-4]: after PUBCOMP the identifier belongs to another message, even where the previous one was not
/// forgotten.
#[test]
fn a_released_identifier_belongs_to_the_next_message() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            absent_subscribers(net);
            let mut publisher = net.connect(0, durable(version, "p"));
            net.store.fail(Kind::ForgetIdentity, ReasonCode::UnspecifiedError);
            for (index, payload) in ["1", "2", "3", "4"].into_iter().enumerate() {
                net.send(publisher, message("t/1", payload).qos2(7));
                net.send(publisher, pubrel(7));
                assert_eq!(net.received(publisher), [pubrec(7), pubcomp(7)]);
                if index % 2 == 1 {
                    net.lose(publisher);
                    publisher = net.resume(index, durable(version, "p"));
                }
            }
            check_found(net, &["1", "2", "3", "4"]);
        });
    }
}

/// [MQTT-4.3.3-12]: an identifier is free after PUBCOMP, and a client of MQTT 3.1 may send PUBREL again before. One
/// PUBCOMP answers both, when the store has released the identifier. A message that comes before waits for that.
#[test]
fn a_pubrel_that_comes_again_is_answered_when_the_store_has_released_the_identifier() {
    for version in [V3_1, V3_1_1, V5] {
        everywhere(|net| {
            absent_subscribers(net);
            let publisher = net.connect(0, durable(version, "p"));
            for (first, second) in [("1", "2"), ("3", "4"), ("5", "6")] {
                net.send(publisher, message("t/1", first).qos2(7));
                assert_eq!(net.received(publisher), [pubrec(7)]);
                net.store.hold(&[Kind::PubComp]);
                net.send(publisher, pubrel(7));
                net.send(publisher, pubrel(7));
                net.send(publisher, message("t/1", second).qos2(7));
                assert_eq!(net.received(publisher), []);
                net.release_held();
                assert_eq!(net.received(publisher), [pubcomp(7), pubrec(7)]);
                net.send(publisher, pubrel(7));
                assert_eq!(net.received(publisher), [pubcomp(7)]);
            }
            assert_eq!(net.identities(), 0);
            check_found(net, &["1", "2", "3", "4", "5", "6"]);
        });
    }
}

/// [MQTT-4.3.3-9]: after an error the identifier is free at once, even where the refused message was kept.
#[test]
fn a_refused_identifier_belongs_to_the_next_message() {
    everywhere(|net| {
        absent_subscribers(net);
        let publisher = net.connect(0, durable(V5, "p"));
        net.store.fail(Kind::Receive, ReasonCode::QuotaExceeded);
        net.store.fail(Kind::ForgetIdentity, ReasonCode::UnspecifiedError);
        net.send(publisher, message("t/1", "refused").qos2(7));
        assert_eq!(net.received(publisher), [Sent::PubRec(7, ReasonCode::QuotaExceeded)]);
        net.store.heal();
        net.lose(publisher);
        let publisher = net.resume(1, durable(V5, "p"));
        net.send(publisher, message("t/1", "another").qos2(7));
        assert_eq!(net.received(publisher), [pubrec(7)]);
        check_found(net, &["refused", "another"]);
    });
}

/// [MQTT-3.1.2-4]: identities of messages that are not sent again are forgotten with the session.
#[test]
fn the_identities_of_a_sessions_messages_end_with_the_session() {
    everywhere(|net| {
        absent_subscribers(net);
        let publisher = net.connect(0, durable(V5, "p"));
        net.store.hold(&[Kind::Receive]);
        net.send(publisher, message("t/1", "kept").qos2(7));
        net.lose(publisher);
        net.release_held();
        assert!(net.identities() > 0);
        net.connect(1, v5("p"));
        assert_eq!(net.identities(), 0);
        check_found(net, &["kept"]);
    });
}
