//! Cases in which seeds have found the oracle wrong: MQTT allows what looked like a fault of the node.

use mqtt::QoS::ExactlyOnce;
use mqtt::{ReasonCode, Version};

use super::{Await, Client, Connection, Kind, Session};
use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Link, Net};
use crate::node::Node;
use crate::oracle::{Ending, Oracle, OutgoingPublish};
use crate::plan::Plan;
use crate::report::Report;
use crate::scene::Scene;
use crate::schedule::Schedule;
use crate::trace::Trace;
use random::Random;
use testkit::Endpoint;
use testkit::packets::{Message, Sent, message};

/// A node that was just started and does nothing, and a client.
struct Stage {
    scene: Scene,
    client: Client,
}

impl Stage {
    fn of(seed: u64, kind: Kind) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::of(seed, &mut random);
        let mut machine = Machine::new(1);
        let (schedule, report) = (Schedule::default(), Report::default());
        let mut cx = Context { random, schedule, report, trace: Trace::default(), has_slow_reads: false };
        let node = Node::start(&mut cx, &mut machine, plan.setup, 0).ok();
        let scene = Scene {
            cx,
            net: Net::default(),
            machine,
            node,
            oracle: Oracle::new(false, false),
            stopped_at: 0,
            past: Vec::new(),
            goodbyes: Default::default(),
            healing: false,
        };
        Self { scene, client: Client::new(0, kind) }
    }

    /// Sends CONNECT for a session that expires after `expiry` seconds.
    fn connects(&mut self, expiry: u32) -> Link {
        let link = self.scene.net.open(0);
        self.client.connection = Some(Connection {
            link,
            end: Endpoint::new(Version::V5),
            expiry,
            clean: false,
            began: self.scene.time(),
            accepted: false,
            to_send: Default::default(),
            asked: Vec::new(),
            reads: true,
            sent: 0,
            old: false,
        });
        link
    }

    fn gets(&mut self, packet: impl Into<Sent>) {
        self.client.receive_packet(&mut self.scene, packet.into());
    }

    fn is_connected(&mut self) {
        self.gets(Sent::ConnAck { session_present: true, reason: ReasonCode::Success });
    }

    /// Gives the client a session that is subscribed to everything.
    fn has_session(&mut self, expiry: u32) {
        let view = self.scene.oracle.new_session(0, true);
        self.scene.oracle.session(view).asked.insert("#".into());
        self.scene.oracle.session(view).granted.insert("#".into(), ExactlyOnce);
        self.client.session = Some(Session::new(view, expiry));
    }

    /// Publishes the next message from another client.
    fn publishes(&mut self, expiry: Option<u32>) -> Message {
        let number = self.scene.oracle.next_number();
        let (topic, payload) = ("t/0".to_owned(), number.to_string());
        let (qos, at, retain) = (ExactlyOnce, self.scene.time(), false);
        let link = 1_000;
        self.scene.oracle.publish(OutgoingPublish { link, topic, payload, qos, retain, expiry, at });
        Message { expiry, ..message("t/0", number) }
    }
}

/// Lets a second connection resume the session. The result of the first, which was dropped, is unknown.
fn resumes_in_doubt(stage: &mut Stage) {
    stage.connects(7);
    stage.client.drop_connection(&mut stage.scene);
    stage.connects(7);
    stage.is_connected();
}

/// Seed 51888: the session had expired, and the CONNACK that said so was lost. The next session reused its Packet
/// Identifiers.
#[test]
fn a_message_under_an_identifier_of_an_expired_session_counts_as_received() {
    let mut stage = Stage::of(1, Kind::Brief);
    stage.has_session(7);
    stage.connects(7);
    stage.is_connected();
    let first = stage.publishes(None).qos2(15);
    stage.gets(first);
    resumes_in_doubt(&mut stage);
    let view = stage.client.session.as_ref().map(|session| session.view).unwrap_or_default();
    stage.scene.oracle.session(view).granted.insert("#".into(), ExactlyOnce);
    let second = stage.publishes(None).qos2(15);
    stage.scene.oracle.acknowledged(1, 0);
    assert!(stage.scene.oracle.is_owed(1));
    stage.gets(second);
    stage.scene.oracle.check_all_arrived(&mut Report::default());
}

/// A Packet Identifier in use must not bring another message, if the session is not in doubt.
#[test]
#[should_panic(expected = "comes with another message")]
fn another_message_under_an_identifier_in_use_is_noticed() {
    let mut stage = Stage::of(1, Kind::Common);
    stage.has_session(super::LONG);
    stage.connects(super::LONG);
    stage.is_connected();
    let (first, second) = (stage.publishes(None).qos2(15), stage.publishes(None).qos2(15).dup());
    stage.gets(first);
    stage.gets(second);
}

/// Seed 52298: a CONNECT that was given up arrives after the next one, and takes over before the Will of that one is
/// due.
#[test]
fn a_delayed_will_may_be_overtaken_by_a_connect_that_was_given_up() {
    let mut looked_at = 0;
    for seed in 0..40 {
        let mut stage = Stage::of(seed, Kind::Steady);
        stage.has_session(super::LONG);
        stage.client.connects(&mut stage.scene);
        stage.client.drop_connection(&mut stage.scene);
        stage.client.connects(&mut stage.scene);
        let link = stage.client.link().unwrap_or_default();
        stage.scene.oracle.will_is_accepted(link);
        stage.scene.oracle.will_ends(link, Ending::Lost, 500);
        if let Some((delay, owed)) = stage.scene.oracle.will_on(link) {
            assert_eq!(owed, delay == 0, "with a delay of {delay} ms");
            looked_at += 1;
        }
    }
    assert!(looked_at > 10);
}

/// Seed 54393: the second of two pending CONNECTs has Clean Start, which makes the Will due. The first has found the
/// session, so the Will is not due.
#[test]
fn a_clean_start_after_a_pending_connect_leaves_a_delayed_will_undecided() {
    for delay in [0, 11_000] {
        let mut stage = Stage::of(1, Kind::Common);
        let watcher = stage.scene.oracle.new_session(0, true);
        stage.scene.oracle.session(watcher).granted.insert("w/#".into(), ExactlyOnce);
        let link = stage.scene.net.open(0);
        stage.scene.oracle.will(link, "w/y", delay, true);
        stage.scene.oracle.will_is_accepted(link);
        stage.scene.oracle.will_is_overtaken(link, 100, false);
        stage.scene.oracle.will_is_overtaken(link, 200, true);
        stage.scene.oracle.will_ends(link, Ending::Lost, 500);
        assert_eq!(stage.scene.oracle.will_on(link).map(|(_, owed)| owed), Some(delay == 0));
    }
}

/// Seed 52554: the publisher's session expired unnoticed, so the node did not recognize the repeated message.
#[test]
fn a_message_repeated_after_an_unnoticed_expiry_may_arrive_twice() {
    let mut stage = Stage::of(1, Kind::Brief);
    stage.has_session(7);
    let sent = stage.publishes(None).qos2(2);
    if let Some(session) = &mut stage.client.session {
        session.publishes.push((2, 0, sent.clone(), Await::Rec));
    }
    let subscriber = stage.scene.oracle.new_session(0, true);
    stage.scene.oracle.session(subscriber).asked.insert("#".into());
    let mut report = Report::default();
    stage.scene.oracle.arrives(&mut report, subscriber, &sent, 0);
    resumes_in_doubt(&mut stage);
    stage.scene.oracle.arrives(&mut report, subscriber, &sent, 0);
}

/// Seed 56754: the message was on its way when the node died, and the clock of the next incarnation was a day ahead.
#[test]
fn a_message_of_the_previous_incarnation_is_judged_by_its_own_time() {
    let mut stage = Stage::of(1, Kind::Common);
    stage.has_session(super::LONG);
    stage.connects(super::LONG);
    stage.is_connected();
    let sent = Message { qos: mqtt::QoS::AtMostOnce, ..stage.publishes(Some(12)) };
    stage.scene.node = None;
    stage.scene.end_incarnation(4_000);
    stage.scene.stopped_at = 86_400_000;
    stage.gets(sent);
    assert_eq!(stage.scene.cx.report.check_expiry, 1);
}
