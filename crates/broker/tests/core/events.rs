//! Events as messages on `$events/...`.

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, INTERNAL_LISTENER, Identity, Permission,
    Principal, RetryAuthorize,
};
use broker::internal::tenant_events;
use broker::peers::{NodeIndex, Wants};
use broker::{AlarmChange, Event};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::V5;
use mqtt::{ReasonCode, TopicFilter};
use serde_json::{Value, json};
use testkit::packets::*;

use crate::net::{Net, Peer, everywhere, everywhere_guarded, everywhere_with};
use crate::peers::joined;

/// Access control of these tests: user `bad` is refused, `denied/#` is denied, and only user `reader` reads events.
/// User `tenant` has a mountpoint.
struct Guard;

impl Access for Guard {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        let tenant = || Principal { mountpoint: Some("acme/".into()), ..Principal::default() };
        Some(match credentials.username {
            Some("bad") => AuthResult::Deny(ReasonCode::BadUserNameOrPassword),
            Some("tenant") => AuthResult::Admit(Box::new(Admission {
                principal: Some(Arc::new(tenant())),
                ..Admission::default()
            })),
            _ => AuthResult::Allow,
        })
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        _: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let may_read = identity.username == Some("reader") || identity.listener == INTERNAL_LISTENER;
        let allowed = !topic.starts_with("denied") && (!topic.starts_with("$events") || may_read);
        Some(Permission { allowed, lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// Connects a client of the process that selects events, and waits until all workers know that.
fn observer(net: &mut Net, filter: &str) -> Peer {
    name_node(net);
    observer_named(net, "$action/observer", filter)
}

fn name_node(net: &Net) {
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
    net.node.set_name("n1");
}

/// Connects one more observer to a node with names.
fn observer_named(net: &mut Net, name: &str, filter: &str) -> Peer {
    let peer = net.open(2, V5);
    net.came_in_by(peer, 1);
    net.send(peer, v5(name));
    net.send(peer, subscribe(1).to(filter, AtMostOnce));
    assert_eq!(net.received(peer), [connack(false), suback(1, &[AtMostOnce])]);
    net.pass(1_100);
    peer
}

/// Events that arrived. Each has exactly the fields that rules know.
fn events(net: &mut Net, peer: Peer) -> Vec<Value> {
    let parse = |packet| {
        let Sent::Publish(message) = packet else { panic!("not a message: {packet:?}") };
        assert_eq!((message.qos, message.retain), (AtMostOnce, false));
        let value: Value = serde_json::from_str(&message.payload).expect(&message.payload);
        check_fields(&message.topic, &value);
        value
    };
    net.received(peer).into_iter().map(parse).collect()
}

fn check_fields(topic: &str, value: &Value) {
    let event = rules::Event::of_name(topic).expect(topic);
    let expected: BTreeSet<&str> = event.fields().map(rules::Field::name).collect();
    let found: BTreeSet<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(found, expected, "{topic}");
    assert_eq!((&value["event"], &value["node"]), (&json!(event.value()), &json!("n1")));
}

/// The values of some fields of each event.
fn some<const N: usize>(events: &[Value], fields: [&str; N]) -> Vec<[Value; N]> {
    events.iter().map(|event| fields.map(|field| event[field].clone())).collect()
}

/// Events on several workers have no order.
fn sorted<const N: usize>(events: &[Value], fields: [&str; N]) -> Vec<[Value; N]> {
    let mut values = some(events, fields);
    values.sort_by_key(|values| format!("{values:?}"));
    values
}

#[test]
fn events_are_those_that_rules_know() {
    let known: Vec<_> = rules::Event::ALL.iter().filter(|event| !event.name().is_empty()).collect();
    assert_eq!(Event::ALL.len(), known.len());
    for (event, known) in Event::ALL.iter().zip(known) {
        assert_eq!((event.topic(), event.value()), (known.name(), known.value()));
    }
}

#[test]
fn a_connect_has_an_authentication_a_connack_and_a_connection() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Guard),
        |net, _| {
            let observer = observer(net, "$events/client/+");
            let client = v5("c").username("u").keep_alive(30).user_property("k", "v");
            net.connect(0, client);
            let found = events(net, observer);
            let fields = ["event", "clientid", "username", "result", "reason_code"];
            assert_eq!(
                some(&found, fields),
                [
                    ["client.authn".into(), "c".into(), "u".into(), "success".into(), Value::Null],
                    ["client.connack".into(), "c".into(), "u".into(), Value::Null, 0.into()],
                    ["client.connected".into(), "c".into(), "u".into(), Value::Null, Value::Null],
                ]
            );
            let connected = &found[2];
            assert_eq!(
                [&connected["proto_ver"], &connected["keepalive"], &connected["clean_start"]],
                [&json!(5), &json!(30), &json!(true)]
            );
            assert_eq!(connected["conn_props"], json!({"User-Property": {"k": "v"}}));
            let refused = net.connecting(1, v5("d").username("bad"));
            assert_eq!(
                net.received(refused),
                [refused_with(ReasonCode::BadUserNameOrPassword), Sent::Closed]
            );
            let found = events(net, observer);
            assert_eq!(
                some(&found, ["event", "clientid", "result", "reason_code"]),
                [
                    ["client.authn".into(), "d".into(), "failure".into(), Value::Null],
                    ["client.connack".into(), "d".into(), Value::Null, 0x86.into()],
                ]
            );
        },
    );
}

fn refused_with(reason: ReasonCode) -> Sent {
    refused(reason)
}

#[test]
fn the_end_of_a_connection_has_a_reason() {
    everywhere(|net| {
        let observer = observer(net, "$events/client/disconnected");
        let normal = net.connect(0, v5("normal"));
        let lost = net.connect(1, v5("lost"));
        let old = net.connect(2, v5("same"));
        net.send(normal, goodbye());
        net.lose(lost);
        net.connect(0, v5("same"));
        assert_eq!(net.closed(old), Some(Some(ReasonCode::SessionTakenOver)));
        let found = events(net, observer);
        assert_eq!(
            sorted(&found, ["clientid", "reason", "reason_code"]),
            [
                ["lost".into(), "connection_lost".into(), Value::Null],
                ["normal".into(), "normal".into(), 0.into()],
                ["same".into(), "session_taken_over".into(), 0x8e.into()],
            ]
        );
    });
}

#[test]
fn subscriptions_of_all_sessions_are_events() {
    everywhere(|net| {
        let observer = observer(net, "$events/session/#");
        for client in [v5("ephemeral"), durable(V5, "durable")] {
            let name = client.client_id.clone();
            let peer = net.connect(0, client);
            net.send(peer, subscribe(1).to("a/+", AtLeastOnce).identifier(7));
            net.send(peer, unsubscribe(2, &["a/+", "unknown"]));
            net.client(peer).received();
            let found = events(net, observer);
            assert_eq!(
                some(&found, ["event", "clientid", "topic", "qos", "sub_props"]),
                [
                    [
                        "session.subscribed".into(),
                        name.as_str().into(),
                        "a/+".into(),
                        1.into(),
                        json!({"Subscription-Identifier": 7}),
                    ],
                    [
                        "session.unsubscribed".into(),
                        name.as_str().into(),
                        "a/+".into(),
                        Value::Null,
                        Value::Null,
                    ],
                ]
            );
        }
    });
}

#[test]
fn a_delivery_of_qos_1_is_delivered_and_acknowledged() {
    everywhere(|net| {
        let observer = observer(net, "$events/message/+");
        for client in [v5("ephemeral"), durable(V5, "durable")] {
            let name = client.client_id.clone();
            let subscriber = net.connect(1, client);
            net.subscribe(subscriber, &name, AtLeastOnce);
            let publisher = net.connect(0, v5("p").username("u"));
            net.send(publisher, message(&name, "\"text\"\n").qos1(1));
            assert_eq!(net.received(publisher), [puback(1)]);
            let delivered = events(net, observer);
            let fields = ["event", "clientid", "from_clientid", "from_username", "topic", "qos", "payload"];
            let expected = |event: &str| {
                [event, &name, "p", "u", &name]
                    .map(Value::from)
                    .into_iter()
                    .chain([1.into(), "\"text\"\n".into()])
                    .collect::<Vec<_>>()
            };
            assert_eq!(some(&delivered, fields).concat(), expected("message.delivered"));
            let id = match net.client(subscriber).next() {
                Some(Sent::Publish(message)) => message.packet_id.expect("QoS 1"),
                other => panic!("not a message: {other:?}"),
            };
            net.send(subscriber, puback(id));
            let acked = events(net, observer);
            assert_eq!(some(&acked, fields).concat(), expected("message.acked"));
            net.lose(publisher);
        }
    });
}

#[test]
fn an_acknowledgement_of_the_wrong_kind_is_no_event() {
    everywhere(|net| {
        let observer = observer(net, "$events/message/acked");
        let publisher = net.connect(0, v5("p"));
        for (client, qos, wrong) in [
            (v5("a"), AtLeastOnce, pubcomp as fn(u16) -> Sent),
            (v5("b"), ExactlyOnce, puback),
            (durable(V5, "c"), AtLeastOnce, pubcomp),
            (durable(V5, "d"), ExactlyOnce, puback),
        ] {
            let name = client.client_id.clone();
            let subscriber = net.connect(1, client);
            net.subscribe(subscriber, &name, qos);
            net.send(publisher, message(&name, "x").qos2(1));
            net.send(publisher, pubrel(1));
            net.client(publisher).received();
            let Some(Sent::Publish(message)) = net.client(subscriber).next() else { panic!("a message") };
            net.send(subscriber, wrong(message.packet_id.expect("an identifier")));
            assert!(net.closed(subscriber).is_some());
            assert_eq!(events(net, observer).len(), 0);
        }
    });
}

#[test]
fn a_delivery_that_the_subscriber_refuses_is_no_acked_event_and_is_forgotten() {
    everywhere(|net| {
        let observer = observer(net, "$events/message/acked");
        let publisher = net.connect(0, v5("p"));
        let subscriber = net.connect(1, v5("s"));
        net.subscribe(subscriber, "t", ExactlyOnce);
        let payload = "x".repeat(1_000_000);
        let mut last = 0;
        // Together they have more bytes than events keep.
        for number in 1..=70 {
            net.send(publisher, message("t", &payload).qos2(number));
            net.send(publisher, pubrel(number));
            net.client(publisher).received();
            let Some(Sent::Publish(message)) = net.client(subscriber).next() else { panic!("a message") };
            last = message.packet_id.expect("QoS 2");
            if number < 70 {
                net.send(subscriber, Sent::PubRec(last, ReasonCode::QuotaExceeded));
            }
        }
        assert_eq!(events(net, observer).len(), 0);
        net.send(subscriber, pubrec(last));
        net.send(subscriber, pubcomp(last));
        assert_eq!(some(&events(net, observer), ["qos"]), [[json!(2)]]);
    });
}

#[test]
fn a_message_without_subscribers_is_dropped() {
    everywhere(|net| {
        let observer = observer(net, "$events/message/dropped");
        let publisher = net.connect(0, v5("p"));
        for _ in 0..3 {
            net.publish(publisher, "nobody", "x");
        }
        net.publish(publisher, "$own", "x");
        let found = events(net, observer);
        let expected = ["p", "nobody", "x", "no_subscribers"].map(Value::from);
        assert_eq!(
            some(&found, ["clientid", "topic", "payload", "reason"]),
            [(); 3].map(|()| expected.clone())
        );
    });
}

#[test]
fn deliveries_that_expire_or_find_a_full_queue_are_dropped() {
    everywhere_with(
        |settings| settings.queue.messages_max = 1,
        |net| {
            let observer = observer(net, "$events/message/delivery_dropped");
            let publisher = net.connect(0, v5("p"));
            let away = net.connect(1, durable(V5, "away"));
            net.subscribe(away, "t", AtLeastOnce);
            net.lose(away);
            for (id, payload) in [(1, "first"), (2, "second")] {
                net.send(publisher, message("t", payload).qos1(id));
            }
            let slow = net.connect(2, v5("slow").receive_max(1));
            net.subscribe(slow, "u", AtLeastOnce);
            net.send(publisher, message("u", "in flight").qos1(3));
            net.send(publisher, message("u", "short").qos1(4).expiry(1));
            net.pass(2_000);
            let Some(Sent::Publish(first)) = net.client(slow).next() else { panic!("a message") };
            net.send(slow, puback(first.packet_id.expect("QoS 1")));
            let found = events(net, observer);
            assert_eq!(
                sorted(&found, ["clientid", "from_clientid", "payload", "reason"]),
                [
                    ["away", "p", "first", "queue_full"].map(Value::from),
                    ["slow", "p", "short", "expired"].map(Value::from),
                ]
            );
        },
    );
}

#[test]
fn decisions_of_access_control_are_events() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Guard),
        |net, _| {
            let observer = observer(net, "$events/client/authz");
            let client = net.connect(0, v5("c"));
            net.publish(client, "allowed", "x");
            net.publish(client, "denied/x", "x");
            net.send(client, subscribe(1).to("denied/#", AtMostOnce).to("a", AtMostOnce));
            net.client(client).received();
            let found = events(net, observer);
            assert_eq!(
                some(&found, ["topic", "action", "result"]),
                [
                    ["allowed", "publish", "allow"],
                    ["denied/x", "publish", "deny"],
                    ["denied/#", "subscribe", "deny"],
                    ["a", "subscribe", "allow"],
                ]
                .map(|values| values.map(Value::from))
            );
        },
    );
}

#[test]
fn events_that_nobody_selects_are_not_published() {
    everywhere(|net| {
        let all = net.connect(1, v5("all"));
        net.subscribe(all, "#", AtMostOnce);
        let publisher = net.connect(0, v5("p"));
        net.publish(publisher, "t", "1");
        let observer = observer(net, "$events/client/connected");
        net.publish(publisher, "t", "2");
        net.lose(publisher);
        assert_eq!(net.payloads(all), ["1", "2"], "# does not match events");
        assert_eq!((events(net, observer).len(), net.counter(|counters| counters.events)), (0, 0));
        net.connect(0, v5("next"));
        assert_eq!((events(net, observer).len(), net.counter(|counters| counters.events)), (1, 1));
        net.lose(observer);
        net.pass(1_100);
        net.connect(0, v5("unseen"));
        assert_eq!(net.counter(|counters| counters.events), 1);
    });
}

/// A reader of events is a client like others, but what it gets of them is no event.
#[test]
fn deliveries_of_events_are_no_events() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Guard),
        |net, _| {
            net.node.set_name("n1");
            let reader = net.connect(1, v5("reader").username("reader"));
            net.subscribe(reader, "$events/#", AtMostOnce);
            net.pass(1_100);
            let publisher = net.connect(0, v5("p"));
            net.publish(publisher, "t", "x");
            let found = events(net, reader);
            let kinds: Vec<_> = found.iter().map(|event| event["event"].as_str().expect("a name")).collect();
            let expected =
                ["client.authn", "client.connack", "client.connected", "client.authz", "message.dropped"];
            assert_eq!(kinds, expected);
            net.pass(5_000);
            assert_eq!(events(net, reader).len(), 0);
        },
    );
}

/// Attack list: events have messages of other clients.
#[test]
fn only_rules_let_clients_read_events_and_nobody_publishes_them() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        for filter in ["$events/#", "$events/message/delivered", "$share/g/$events/#", "$events/+/+"] {
            net.send(client, subscribe(1).to(filter, AtMostOnce));
            assert_eq!(net.received(client), [Sent::SubAck(1, vec![ReasonCode::NotAuthorized])], "{filter}");
        }
        net.send(client, message("$events/client/connected", "{}").qos1(2));
        assert_eq!(net.received(client), [Sent::PubAck(2, ReasonCode::NotAuthorized)]);
    });
    everywhere_guarded(
        |_| {},
        || Arc::new(Guard),
        |net, _| {
            let observer = observer(net, "$events/#");
            let client = net.connect(0, v5("c"));
            net.send(client, subscribe(1).to("$events/#", AtMostOnce));
            assert_eq!(net.received(client), [Sent::SubAck(1, vec![ReasonCode::NotAuthorized])]);
            let tenant = net.connect(1, v5("t").username("tenant"));
            net.send(tenant, subscribe(1).to("#", AtMostOnce));
            assert_eq!(net.received(tenant), [suback(1, &[AtMostOnce])]);
            net.publish(client, "t", "secret");
            assert_eq!(net.received(tenant), []);
            let found = events(net, observer);
            let of_tenant =
                found.iter().find(|event| event["event"] == "client.connected" && event["clientid"] == "t");
            let of_tenant = of_tenant.expect("the tenant's connection");
            assert_eq!([&of_tenant["mountpoint"], &of_tenant["tenant"]], [&json!("acme/"), &json!("acme")]);
        },
    );
}

/// Attack list: rules of a tenant must not see clients of others.
#[test]
fn an_action_of_a_tenant_gets_events_about_its_clients_only() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Guard),
        |net, _| {
            let event = "$events/message/delivered";
            let observer = observer(net, &tenant_events(event, ""));
            let own = tenant_events(event, "acme/");
            net.send(observer, subscribe(2).to(&own, AtMostOnce));
            assert_eq!(net.received(observer), [suback(2, &[AtMostOnce])]);
            let outsider = net.connect(0, v5("c"));
            let other = net.connect(0, v5("d"));
            let tenant = net.connect(1, v5("t").username("tenant"));
            for reader in [other, tenant] {
                net.send(reader, subscribe(1).to("t", AtMostOnce));
                assert_eq!(net.received(reader), [suback(1, &[AtMostOnce])]);
            }
            net.publish(outsider, "t", "of others");
            net.publish(outsider, "acme/t", "from outside");
            net.publish(tenant, "t", "from inside");
            net.send(tenant, message(&own, "{}").qos1(9));
            net.send(outsider, message(&own, "{}").qos1(9));
            let found: Vec<[Value; 4]> = net
                .received(observer)
                .into_iter()
                .map(|packet| {
                    let Sent::Publish(message) = packet else { panic!("not a message: {packet:?}") };
                    assert_eq!(message.topic, own);
                    let value: Value = serde_json::from_str(&message.payload).expect(&message.payload);
                    check_fields(event, &value);
                    ["payload", "clientid", "mountpoint", "from_clientid"].map(|field| value[field].clone())
                })
                .collect();
            let expected = |payload: &str, from: Value| [json!(payload), json!("t"), json!("acme/"), from];
            assert_eq!(found, [expected("from outside", Value::Null), expected("from inside", json!("t"))]);
            // A client reads them as little as other topics of actions.
            net.send(outsider, subscribe(3).to(&own, AtMostOnce));
            let received = net.received(outsider);
            assert!(received.contains(&Sent::SubAck(3, vec![ReasonCode::NotAuthorized])), "{received:?}");
        },
    );
}

#[test]
fn a_storm_of_events_is_suppressed_and_counted() {
    everywhere_with(
        |settings| settings.limits.events_per_second = 2,
        |net| {
            let observer = observer(net, "$events/client/connected");
            for number in 0..12 {
                net.connect(0, v5(&format!("c{number}")));
            }
            assert_eq!(events(net, observer).len(), 2);
            net.connect(0, v5("last"));
            assert_eq!(net.counter(|counters| counters.events_suppressed), 11);
            net.pass(1_000);
            net.connect(0, v5("later"));
            assert_eq!(events(net, observer).len(), 1, "the next second has events again");
        },
    );
}

#[test]
fn a_change_of_an_alarm_is_an_event() {
    everywhere(|net| {
        let alarm = |deactivated_at| AlarmChange {
            name: "storage".into(),
            node: "n2".into(),
            severity: "error".into(),
            message: "the disk is full".into(),
            activated_at: 5,
            deactivated_at,
        };
        net.admin().alarm_changed(alarm(None));
        net.run();
        let observer = observer(net, "$events/sys/+");
        assert!(net.admin().are_alarms_selected());
        net.admin().alarm_changed(alarm(None));
        net.admin().alarm_changed(alarm(Some(7)));
        net.run();
        let found = events(net, observer);
        let fields = ["name", "active", "severity", "activated_at", "deactivated_at"];
        assert_eq!(
            some(&found, fields),
            [
                [json!("storage"), json!(true), json!("error"), json!(5), Value::Null],
                [json!("storage"), json!(false), json!("error"), json!(5), json!(7)],
            ]
        );
    });
}

#[test]
fn each_subscription_to_alarms_is_noticed() {
    everywhere(|net| {
        name_node(net);
        let first = observer_named(net, "$action/1", "$events/sys/alarm");
        let one = net.admin().alarm_subscriptions();
        observer_named(net, "$action/2", "$events/#");
        let two = net.admin().alarm_subscriptions();
        assert_ne!(two, one);
        net.lose(first);
        observer_named(net, "$action/3", "t");
        assert_eq!(net.admin().alarm_subscriptions(), two, "nothing new");
        observer_named(net, "$action/4", "$events/sys/alarm");
        assert_ne!(net.admin().alarm_subscriptions(), two);
    });
}

#[test]
fn a_change_of_an_alarm_right_after_the_subscription_is_an_event() {
    everywhere(|net| {
        let observer = observer(net, "$events/client/connected");
        net.pass(1_100);
        // Each worker has looked at the index a moment ago.
        let other = net.connect(0, v5("other"));
        net.subscribe(other, "t", AtMostOnce);
        net.received(observer);
        net.send(observer, subscribe(2).to("$events/sys/alarm", AtMostOnce));
        assert_eq!(net.received(observer), [suback(2, &[AtMostOnce])]);
        net.admin().alarm_changed(AlarmChange {
            name: "storage".into(),
            node: "n2".into(),
            severity: "error".into(),
            message: "the disk is full".into(),
            activated_at: 5,
            deactivated_at: None,
        });
        net.run();
        assert_eq!(some(&events(net, observer), ["name"]), [[json!("storage")]]);
    });
}

#[test]
fn subscriptions_on_other_nodes_select_events() {
    everywhere(|net| {
        joined(net, 1);
        let filter = TopicFilter::parse("$events/#").expect("a filter");
        net.node.routes.set_peer(filter, NodeIndex(0), Wants::ALL).expect("room");
        net.pass(1_100);
        net.connect(0, v5("c"));
        assert_eq!(net.counter(|counters| counters.events), 3);
        net.node.routes.set_peer(filter, NodeIndex(0), Wants::NOTHING).expect("room");
        let filter = TopicFilter::parse("a/#").expect("a filter");
        net.node.routes.set_peer(filter, NodeIndex(0), Wants::NOTHING).expect("room");
    });
}
