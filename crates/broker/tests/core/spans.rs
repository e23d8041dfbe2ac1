//! Spans of messages with a sampled `traceparent`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use broker::spans::{Receivers, Span, SpanLimits, SpanQueues, Stage};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::V5;
use mqtt::{Outgoing, PacketId, PropertiesBuf, Property, QoS, ReasonCode};
use testkit::packets::*;

use crate::net::{Net, Peer, Travel, settings};
use crate::peers::{joined, leave, pass_on};
use crate::store::Kind;

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const TRACE: [u8; 16] =
    [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c];
const PUBLISHER: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];
const STATE: &str = "congo=t61rcWkgMzE";

const LIMITS: SpanLimits = SpanLimits { messages_per_second: 1_000, queue_max: 100 };

/// A span with its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    span: Span,
    topic: String,
    client_id: String,
    state: String,
}

/// A clock that no two spans read at the same time.
fn queues(limits: SpanLimits) -> Arc<SpanQueues> {
    let time = AtomicU64::new(1_000_000_000);
    SpanQueues::new(limits, *b"a secret of this", move || time.fetch_add(1_000, Relaxed))
}

/// Runs a scenario on one worker and on several.
fn recording(limits: SpanLimits, scenario: impl Fn(&mut Net, &SpanQueues)) {
    for workers in [1, 3] {
        for travel in [Travel::InOrder, Travel::Shuffled(7)] {
            let queues = queues(limits);
            let mut net = Net::recording(workers, travel, settings(), queues.clone());
            scenario(&mut net, &queues);
            net.end();
        }
    }
}

/// Recorded spans since the last call. They begin one after the other, except deliveries that have waited.
fn recorded(net: &mut Net, queues: &SpanQueues) -> Vec<Recorded> {
    let mut all = Vec::new();
    // A worker passes its spans on once a second, if those before have been taken.
    for _ in 0..2 {
        net.pass(1_100);
        queues.take(&mut queues.buffer(), |span, texts| {
            assert!(span.start_ns <= span.end_ns);
            assert_eq!((span.trace_id, texts.topic, texts.state), (TRACE, "a/b", STATE));
            let [topic, client_id, state] = [texts.topic, texts.client_id, texts.state].map(str::to_owned);
            all.push(Recorded { span: *span, topic, client_id, state });
        });
    }
    all.sort_by_key(|recorded| recorded.span.start_ns);
    let mut ids: Vec<_> = all.iter().map(|recorded| recorded.span.span_id).chain([PUBLISHER]).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len() + 1, "span ids are unique");
    all
}

/// Stage, client, and the stage of the parent; none if that is the publisher's span.
fn tree(recorded: &[Recorded]) -> Vec<(String, String, Option<String>)> {
    let name = |stage: Stage| format!("{stage:?}").split([' ', '(']).next().unwrap_or_default().to_owned();
    let parent = |of: &Span| {
        let parent = recorded.iter().find(|other| other.span.span_id == of.parent_id);
        assert_eq!(of.is_parent_remote, parent.is_none(), "{of:?}");
        assert!(parent.is_some() || of.parent_id == PUBLISHER, "{of:?}");
        parent.map(|parent| name(parent.span.stage))
    };
    let all = recorded.iter();
    all.map(|it| (name(it.span.stage), it.client_id.clone(), parent(&it.span))).collect()
}

fn node(stage: &str, client_id: &str, parent: &str) -> (String, String, Option<String>) {
    (stage.to_owned(), client_id.to_owned(), (!parent.is_empty()).then(|| parent.to_owned()))
}

fn packet(qos: QoS, id: u16, properties: &[(&str, &str)]) -> Vec<u8> {
    let properties: PropertiesBuf =
        properties.iter().map(|(name, value)| Property::UserProperty(name, value)).collect();
    let mut bytes = Vec::new();
    let outgoing = Outgoing {
        dup: false,
        qos,
        retain: false,
        packet_id: PacketId::new(id),
        topic: "a/b",
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        properties: properties.as_properties().as_bytes(),
        payload: b"hello",
    };
    outgoing.encode(V5, &mut bytes);
    bytes
}

/// Publishes `hello` to `a/b`. A QoS of 0 has no Packet Identifier.
fn publish(net: &mut Net, publisher: Peer, qos: QoS, id: u16, parent: &str) {
    let bytes = packet(qos, id, &[("traceparent", parent), ("k", "v"), ("tracestate", STATE)]);
    net.send_bytes(publisher, &bytes);
}

#[test]
fn a_traced_message_has_spans_in_order() {
    recording(LIMITS, |net, queues| {
        let publisher = net.connect(0, v5("p"));
        let subscriber = net.connect(1, v5("s"));
        net.send(subscriber, subscribe(1).to("a/#", ExactlyOnce));
        net.received(subscriber);
        for (qos, id) in [(AtMostOnce, 0), (AtLeastOnce, 7), (ExactlyOnce, 8)] {
            publish(net, publisher, qos, id, SAMPLED);
            let spans = recorded(net, queues);
            let mut expected = vec![
                node("Publish", "p", ""),
                node("Route", "", "Publish"),
                node("Deliver", "s", "Publish"),
                node("Acknowledge", "p", "Publish"),
            ];
            if qos == AtMostOnce {
                expected.pop();
            }
            let mut found = tree(&spans);
            // The span of an acknowledgement begins with the message. On another worker, the delivery comes later.
            found.sort_by_key(|span| expected.iter().position(|it| it == span));
            assert_eq!(found, expected, "{qos:?}");
            let of = |name: &str| spans.iter().find(|it| format!("{:?}", it.span.stage).starts_with(name));
            let (first, route) = (&spans[0].span, of("Route").expect("it is there").span);
            assert_eq!(first.stage, Stage::Publish { retain: false, dup: false });
            assert_eq!(route.stage, Stage::Route(Receivers { clients: 1, nodes: 0, shards: 0 }));
            assert_eq!((first.qos, first.payload_len), (qos, 5));
            assert!(first.start_ns < route.start_ns && route.end_ns < first.end_ns);
            if let Some(Recorded { span, .. }) = of("Acknowledge") {
                assert_eq!(span.stage, Stage::Acknowledge { reason: ReasonCode::Success });
                assert!(first.start_ns < span.start_ns && span.start_ns < span.end_ns);
            }
        }
        let answers = net.received(publisher);
        assert_eq!(answers, [puback(7), pubrec(8)]);
        assert_eq!(net.received(subscriber).len(), 3);
    });
}

/// [MQTT-3.3.2-17]: the broker does not put its own span into the property.
#[test]
fn properties_are_passed_on_unaltered() {
    recording(LIMITS, |net, queues| {
        let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(1, v5("s")));
        net.send(subscriber, subscribe(1).to("a/b", AtLeastOnce));
        net.received(subscriber);
        publish(net, publisher, AtLeastOnce, 1, SAMPLED);
        let properties = [("traceparent", SAMPLED), ("k", "v"), ("tracestate", STATE)];
        assert_eq!(net.client(subscriber).last, packet(AtLeastOnce, 1, &properties));
        assert_eq!(recorded(net, queues).len(), 4);
    });
}

#[test]
fn other_messages_have_no_spans() {
    recording(LIMITS, |net, queues| {
        let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(1, v5("s")));
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        let durable = net.connect(2, durable(V5, "d"));
        net.send(durable, subscribe(1).to("a/#", AtLeastOnce));
        for (id, parent) in [(1, UNSAMPLED), (2, "00-nonsense-01"), (3, "")] {
            publish(net, publisher, AtLeastOnce, id, parent);
        }
        net.send(publisher, message("a/b", "plain").qos1(4));
        assert_eq!(recorded(net, queues), []);
        let counters = &queues.counters;
        assert_eq!((counters.untraced.load(Relaxed), counters.dropped.load(Relaxed)), (0, 0));
        assert_eq!(net.received(publisher), [puback(1), puback(2), puback(3), puback(4)]);
        assert_eq!(net.received(subscriber).len(), 5);
    });
}

#[test]
fn without_an_exporter_nothing_is_recorded() {
    let mut net = Net::of(1, Travel::InOrder, settings(), Arc::new(broker::access::AllowAll));
    let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(0, v5("s")));
    net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
    publish(&mut net, publisher, AtLeastOnce, 1, SAMPLED);
    assert_eq!(net.received(publisher), [puback(1)]);
    net.pass(1_100);
    assert_eq!(net.admin().figures().spans, broker::admin::SpanFigures::default());
    net.end();
}

#[test]
fn a_durable_session_has_a_span_for_its_delivery() {
    recording(LIMITS, |net, queues| {
        let publisher = net.connect(0, v5("p"));
        for client in ["d", "e"] {
            let subscriber = net.connect(1, durable(V5, client));
            net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        }
        publish(net, publisher, AtLeastOnce, 1, SAMPLED);
        let spans = recorded(net, queues);
        let mut found = tree(&spans);
        found.sort();
        assert_eq!(
            found,
            [
                node("Acknowledge", "p", "Publish"),
                node("Deliver", "d", "Publish"),
                node("Deliver", "e", "Publish"),
                node("Publish", "p", ""),
                node("Route", "", "Publish"),
            ]
        );
        let route = spans.iter().find(|it| matches!(it.span.stage, Stage::Route(_))).expect("a route");
        let Stage::Route(receivers) = route.span.stage else { unreachable!() };
        assert_eq!((receivers.clients, receivers.nodes), (0, 0));
        assert!((1..=2).contains(&receivers.shards), "{receivers:?}");
    });
}

#[test]
fn an_acknowledgement_ends_when_it_is_sent() {
    recording(LIMITS, |net, queues| {
        let publisher = net.connect(0, v5("p"));
        let subscriber = net.connect(1, durable(V5, "d"));
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        net.store.hold(&[Kind::Append]);
        publish(net, publisher, AtLeastOnce, 1, SAMPLED);
        let before = recorded(net, queues);
        assert_eq!(tree(&before), [node("Publish", "p", ""), node("Route", "", "Publish")]);
        net.store.heal();
        net.release_held();
        let after = recorded(net, queues);
        let ack =
            after.iter().find(|it| matches!(it.span.stage, Stage::Acknowledge { .. })).expect("it was sent");
        assert_eq!(ack.span.parent_id, before[0].span.span_id);
        assert!(ack.span.start_ns < before[0].span.end_ns && before[0].span.end_ns < ack.span.end_ns);
        assert_eq!(net.received(publisher), [puback(1)]);
    });
}

#[test]
fn a_lost_publisher_is_not_acknowledged() {
    recording(LIMITS, |net, queues| {
        let publisher = net.connect(0, v5("p"));
        let subscriber = net.connect(1, durable(V5, "d"));
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        net.store.hold(&[Kind::Append]);
        publish(net, publisher, AtLeastOnce, 1, SAMPLED);
        net.lose(publisher);
        net.store.heal();
        net.release_held();
        let spans = recorded(net, queues);
        assert!(spans.iter().all(|it| !matches!(it.span.stage, Stage::Acknowledge { .. })), "{spans:?}");
    });
}

#[test]
fn a_message_that_waits_is_delivered_later() {
    recording(LIMITS, |net, queues| {
        let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(1, v5("s").receive_max(1)));
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        net.send(publisher, message("a/b", "first").qos1(1));
        publish(net, publisher, AtLeastOnce, 2, SAMPLED);
        let before = recorded(net, queues);
        assert_eq!(before.len(), 3, "{before:?}");
        net.send(subscriber, puback(1));
        let after = recorded(net, queues);
        assert_eq!((after.len(), after[0].span.stage), (1, Stage::Deliver));
        assert_eq!(after[0].span.parent_id, before[0].span.span_id);
        assert!(after[0].span.end_ns - after[0].span.start_ns >= 1_000_000, "it has waited for a second");
    });
}

#[test]
fn a_member_of_a_shared_group_has_a_span() {
    recording(LIMITS, |net, queues| {
        let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(1, v5("s")));
        net.send(subscriber, subscribe(1).to("$share/g/a/#", AtLeastOnce));
        publish(net, publisher, AtLeastOnce, 1, SAMPLED);
        let spans = recorded(net, queues);
        assert!(tree(&spans).contains(&node("Deliver", "s", "Publish")), "{spans:?}");
        assert_eq!(spans.len(), 4);
    });
}

#[test]
fn both_nodes_of_a_forwarded_message_have_spans() {
    for workers in [1, 3] {
        let (here, there) = (queues(LIMITS), queues(LIMITS));
        let recording =
            |queues: &Arc<SpanQueues>| Net::recording(workers, Travel::InOrder, settings(), queues.clone());
        let (mut from, mut to) = (recording(&here), recording(&there));
        let others = joined(&from, 1);
        let publisher = from.connect(0, v5("p"));
        let subscriber = to.connect(1, v5("s"));
        to.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        publish(&mut from, publisher, AtMostOnce, 0, SAMPLED);
        pass_on(&mut from, &others, &mut to);
        let spans = recorded(&mut from, &here);
        let expected =
            [node("Publish", "p", ""), node("Route", "", "Publish"), node("Forward", "", "Publish")];
        assert_eq!(tree(&spans), expected);
        let receivers = Receivers { clients: 0, nodes: 1, shards: 0 };
        assert_eq!(spans[1].span.stage, Stage::Route(receivers));
        let mut found = tree(&recorded(&mut to, &there));
        found.sort();
        assert_eq!(
            found,
            [node("Arrive", "", ""), node("Deliver", "s", "Arrive"), node("Route", "", "Arrive")]
        );
        leave(&from, 1);
        from.end();
        to.end();
    }
}

#[test]
fn only_some_messages_of_a_second_are_traced() {
    recording(SpanLimits { messages_per_second: 2, ..LIMITS }, |net, queues| {
        let publisher = net.connect(0, v5("p"));
        for id in 1..=5 {
            publish(net, publisher, AtLeastOnce, id, SAMPLED);
        }
        assert_eq!(queues.counters.untraced.load(Relaxed), 3);
        let spans = recorded(net, queues);
        assert_eq!(spans.iter().filter(|it| it.span.parent_id == PUBLISHER).count(), 2);
        assert_eq!(net.received(publisher).len(), 5, "all are acknowledged");
        publish(net, publisher, AtLeastOnce, 6, SAMPLED);
        assert_eq!(recorded(net, queues).len(), 3, "another second");
    });
}

/// A message from the log is a child of the publisher's span. All its deliveries count as one message.
#[test]
fn a_message_from_the_log_is_traced_by_its_properties() {
    let limits = SpanLimits { messages_per_second: 2, ..LIMITS };
    let first = queues(limits);
    let (mut net, log) = Net::recording_with_log(settings(), None, first.clone());
    let clients = ["a", "b", "c", "d", "e"];
    for client in clients {
        let subscriber = net.connecting(0, durable(V5, client));
        net.sync(&log);
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        net.sync(&log);
        net.lose(subscriber);
    }
    let publisher = net.connect(0, v5("p"));
    publish(&mut net, publisher, AtLeastOnce, 1, SAMPLED);
    let written = recorded(&mut net, &first);
    assert_eq!(tree(&written), [node("Publish", "p", ""), node("Route", "", "Publish")]);
    net.sync(&log);
    assert_eq!(net.received(publisher), [puback(1)], "not before the log has the message");
    let synced = recorded(&mut net, &first);
    assert_eq!(synced.len(), 1);
    assert_eq!(synced[0].span.parent_id, written[0].span.span_id);
    assert_eq!(synced[0].span.stage, Stage::Acknowledge { reason: ReasonCode::Success });

    let second = queues(limits);
    let (mut net, log) = Net::recording_with_log(settings(), Some(&log), second.clone());
    let subscribers = clients.map(|client| net.connecting(0, durable(V5, client)));
    net.sync(&log);
    let found = recorded(&mut net, &second);
    let mut found = tree(&found);
    found.sort();
    assert_eq!(found, clients.map(|client| node("Deliver", client, "")));
    assert_eq!(second.counters.untraced.load(Relaxed), 0);
    for subscriber in subscribers {
        assert_eq!(net.received(subscriber).len(), 2);
    }
}

/// A client that makes many spans fills the queues, and nobody waits for them.
#[test]
fn spans_that_nobody_takes_are_dropped() {
    recording(SpanLimits { queue_max: 8, ..LIMITS }, |net, queues| {
        let (publisher, subscriber) = (net.connect(0, v5("p")), net.connect(0, v5("s")));
        net.send(subscriber, subscribe(1).to("a/#", AtLeastOnce));
        for id in 1..=20 {
            publish(net, publisher, AtLeastOnce, id, SAMPLED);
        }
        assert_eq!(net.received(publisher).len(), 20);
        assert_eq!(net.received(subscriber).len(), 21);
        net.pass(1_100);
        let mut taken = 0;
        queues.take(&mut queues.buffer(), |_, _| taken += 1);
        net.pass(1_100);
        queues.take(&mut queues.buffer(), |_, _| taken += 1);
        assert!((8..=16).contains(&taken), "{taken}");
        assert_eq!(queues.counters.dropped.load(Relaxed) + taken, 80);
    });
}
