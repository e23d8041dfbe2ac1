//! Requests of operators to a running node, and their effects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::WorkerId;
use broker::admin::{
    Admin, ClientActionError, ClientFilter, ClientInfo, Cursor, Direction, Invalid, Kicked, Matches,
    NewSubscription, Publication, QueueState, Reply, SubscriptionFilter, TraceEvent, TraceKind, TraceSubject,
    Traffic,
};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{QoS, ReasonCode, RetainHandling};

use crate::net::{Net, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

/// All clients, in pages of `limit`.
fn clients(net: &mut Net, limit: usize, filter: ClientFilter) -> Vec<ClientInfo> {
    let filter = Arc::new(filter);
    let mut all = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        let filter = filter.clone();
        let page = net.ask(|admin, reply| admin.clients(cursor, limit, filter, reply)).expect("an answer");
        assert!(page.items.len() <= limit);
        all.extend(page.items);
        from = page.next;
    }
    all
}

fn names(clients: &[ClientInfo]) -> Vec<&str> {
    let mut names: Vec<_> = clients.iter().map(|client| &*client.client_id).collect();
    names.sort_unstable();
    names
}

fn subscription(filter: &str, qos: QoS) -> NewSubscription {
    NewSubscription {
        filter: filter.into(),
        qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
        subscription_id: None,
    }
}

fn publication(topic: &str, payload: &str, qos: u8) -> Publication {
    Publication { topic: topic.into(), payload: payload.into(), qos, ..Publication::default() }
}

#[test]
fn every_client_is_listed_once_whatever_the_page_size() {
    everywhere(|net| {
        let mut expected = Vec::new();
        for number in 0..30 {
            let name = format!("c{number:02}");
            let peer = match number % 3 {
                0 => net.connect(number, v5(&name)),
                1 => net.connect(number, durable(V3_1_1, &name)),
                _ => {
                    let peer = net.connect(number, durable(V5, &name));
                    net.lose(peer);
                    peer
                }
            };
            if number % 3 != 2 {
                net.subscribe(peer, "t/#", AtLeastOnce);
            }
            expected.push(name);
        }
        for limit in [1, 7, 1000] {
            let found = clients(net, limit, ClientFilter::default());
            assert_eq!(names(&found), expected);
            for client in &found {
                let number: usize = client.client_id[1..].parse().expect("a number");
                assert_eq!(client.connected, number % 3 != 2);
                assert_eq!(client.durable, !number.is_multiple_of(3));
                assert_eq!(client.subscriptions, usize::from(number % 3 != 2));
                let version = [Some(V5), Some(V3_1_1), None][number % 3];
                assert_eq!(client.version, version);
            }
        }
        let wanted = |filter| names(&clients(net, 1000, filter)).len();
        let mut wanted = wanted;
        assert_eq!(wanted(ClientFilter { contains: Some("c1".into()), ..ClientFilter::default() }), 10);
        assert_eq!(wanted(ClientFilter { connected: Some(false), ..ClientFilter::default() }), 10);
        assert_eq!(wanted(ClientFilter { connected: Some(true), ..ClientFilter::default() }), 20);
        assert_eq!(wanted(ClientFilter { version: Some(V5), ..ClientFilter::default() }), 10);
        let network = Some((IpAddr::from([127, 0, 0, 0]), 8));
        assert_eq!(
            wanted(ClientFilter { network, ..ClientFilter::default() }),
            0,
            "no client has an address"
        );
        assert_eq!(wanted(ClientFilter { min_queued: 1, ..ClientFilter::default() }), 0);
    });
}

/// Figures of durable sessions come from their shards, wherever these are.
#[test]
fn queues_of_ephemeral_and_durable_clients_are_shown() {
    everywhere(|net| {
        let mut peers = Vec::new();
        for (index, connecting) in [v5("e"), durable(V5, "d")].into_iter().enumerate() {
            let peer = net.connect(index, connecting.receive_max(2));
            net.subscribe(peer, "t", AtLeastOnce);
            peers.push(peer);
        }
        let away = net.connect(2, durable(V5, "a"));
        net.subscribe(away, "t", ExactlyOnce);
        net.lose(away);
        let publisher = net.connect(0, v5("p"));
        net.pass(1_000);
        for id in 1..=5 {
            net.send(publisher, message("t", "payload").qos1(id));
        }
        net.pass(2_000);
        let found: BTreeMap<_, _> =
            clients(net, 10, ClientFilter { min_queued: 1, ..ClientFilter::default() })
                .into_iter()
                .map(|client| (client.client_id.to_string(), (client.inflight, client.queued_messages)))
                .collect();
        let expected = [("a", (0, 5)), ("d", (2, 3)), ("e", (2, 3))];
        assert_eq!(found, expected.map(|(name, figures)| (name.to_owned(), figures)).into());
        let inflight = clients(net, 10, ClientFilter { min_inflight: 1, ..ClientFilter::default() });
        assert_eq!(names(&inflight), ["d", "e"]);

        for (name, connected, durable) in [("e", true, false), ("d", true, true), ("a", false, true)] {
            let detail = net.ask(|admin, reply| admin.client(name, reply)).flatten().expect("known");
            assert_eq!(
                (detail.connection.is_some(), detail.session.is_some()),
                (connected, durable),
                "{name}"
            );
            assert_eq!((detail.info.connected, detail.info.durable), (connected, durable));
            assert_eq!(detail.info.queued_messages, if connected { 3 } else { 5 });
            if let Some(connection) = &detail.connection {
                assert_eq!(connection.receive_maximum, 2);
                assert_eq!(connection.oldest_unacknowledged, Some(Duration::from_secs(2)), "{name}");
                assert_eq!(detail.info.messages_sent, 2);
            }
            if let Some(session) = &detail.session {
                assert_eq!(session.oldest_queued, Some(Duration::from_secs(2)));
                assert_eq!(session.expires_at.is_some(), !connected);
            }
            let queue = net.ask(|admin, reply| admin.queue(name, 4, 3, reply)).flatten().expect("known");
            let states: Vec<_> = queue.items.iter().map(|item| item.state).collect();
            // Messages in flight to an ephemeral session are not kept.
            let (inflight, truncated) = match name {
                "d" => (2, true),
                "a" => (0, true),
                _ => (0, false),
            };
            let expected = if truncated { 4 } else { 3 };
            assert_eq!((states.len(), queue.truncated), (expected, truncated), "{name}");
            assert_eq!(states.iter().filter(|state| **state == QueueState::Inflight).count(), inflight);
            let item = &queue.items[0];
            assert_eq!(
                (&*item.topic, item.payload.as_slice(), item.payload_bytes),
                ("t", b"pay".as_slice(), 7)
            );
            assert_eq!(item.age, Duration::from_secs(2));
        }
        let detail = net.ask(|admin, reply| admin.client("p", reply)).flatten().expect("known");
        assert_eq!(detail.info.messages_received, 5);
        assert!(net.ask(|admin, reply| admin.client("nobody", reply)).expect("an answer").is_none());
        net.pass(1_000);
        let figures = net.admin().figures();
        assert_eq!(figures.total(|worker| worker.waiting_messages), 6, "only connected clients");
        let oldest = figures.workers.iter().map(|worker| worker.oldest).max().unwrap_or_default();
        assert!(oldest >= Duration::from_secs(2), "{oldest:?}");
        for peer in peers {
            net.lose(peer);
        }
    });
}

#[test]
fn a_kick_closes_the_connection_and_ends_the_session_if_asked() {
    everywhere(|net| {
        let kick = |net: &mut Net, name: &'static str, session| {
            net.ask(move |admin, reply| admin.kick(name, session, reply)).expect("an answer")
        };
        let closed = |connection_closed, session_ended| {
            Some(Kicked { connection_closed, session_ended, elsewhere: None })
        };
        let watcher = net.connect(0, v5("watcher"));
        net.subscribe(watcher, "will", AtMostOnce);
        let ephemeral = net.connect(1, v5("e").will(message("will", "e")));
        assert_eq!(kick(net, "e", false), closed(true, false));
        assert_eq!(net.received(ephemeral), [disconnect(ReasonCode::AdministrativeAction), Sent::Closed]);
        assert_eq!(net.payloads(watcher), ["e"]); // [MQTT-3.1.2-8]
        let first = net.connect(2, durable(V5, "d"));
        assert_eq!(kick(net, "d", false), closed(true, false));
        assert_eq!(net.closed(first), Some(Some(ReasonCode::AdministrativeAction)));
        let second = net.resume(0, durable(V5, "d"));
        assert_eq!(kick(net, "d", true), closed(true, true));
        assert_eq!(net.closed(second), Some(Some(ReasonCode::AdministrativeAction)));
        assert_eq!(kick(net, "d", true), None, "no state of it is left");
        let third = net.connect(1, durable(V5, "d"));
        net.lose(third);
        assert_eq!(kick(net, "d", false), closed(false, false));
        assert_eq!(kick(net, "d", true), closed(false, true));
        assert_eq!(kick(net, "d", true), None);
        assert_eq!(kick(net, "nobody", true), None);
        assert_eq!(net.counter(|counters| counters.kicked), 3);
    });
}

fn subscribe(net: &mut Net, name: &str, new: NewSubscription) -> Result<ReasonCode, ClientActionError> {
    net.ask(|admin, reply| admin.subscribe(name, new, reply).expect("valid")).expect("an answer")
}

fn unsubscribe(net: &mut Net, name: &str, filter: &str) -> Result<ReasonCode, ClientActionError> {
    net.ask(|admin, reply| admin.unsubscribe(name, filter, reply).expect("valid")).expect("an answer")
}

#[test]
fn an_operator_subscribes_for_a_client() {
    everywhere(|net| {
        let publisher = net.connect(2, v5("p"));
        net.send(publisher, message("t/r", "retained").retain());
        for (index, connecting) in [v5("e"), durable(V5, "d")].into_iter().enumerate() {
            let name = connecting.client_id.clone();
            let peer = net.connect(index, connecting);
            let new = NewSubscription { subscription_id: Some(7), ..subscription("t/#", AtLeastOnce) };
            assert_eq!(subscribe(net, &name, new), Ok(ReasonCode::GrantedQoS1));
            assert_eq!(net.payloads(peer), ["retained"], "as after SUBSCRIBE, without a SUBACK");
            let shared = subscription("$share/g/s", AtMostOnce);
            assert_eq!(subscribe(net, &name, shared), Ok(ReasonCode::Success));
            // The client's own packets under any identifier are not disturbed.
            net.subscribe(peer, "own", AtMostOnce);
            let listed = net
                .ask(|admin, reply| admin.client_subscriptions(&name, 0, 10, reply))
                .flatten()
                .expect("known");
            let mut listed: Vec<_> =
                listed.0.iter().map(|one| (one.filter.to_string(), one.qos, one.subscription_id)).collect();
            listed.sort();
            let expected = [
                ("$share/g/s".to_owned(), AtMostOnce, None),
                ("own".to_owned(), AtMostOnce, None),
                ("t/#".to_owned(), AtLeastOnce, Some(7)),
            ];
            assert_eq!(listed, expected);
            net.send(publisher, message("t/x", "live"));
            let Some(Sent::Publish(live)) = net.received(peer).pop() else { panic!("a message") };
            assert_eq!(live.subscription_ids, [7]);
            assert_eq!(unsubscribe(net, &name, "t/#"), Ok(ReasonCode::Success));
            assert_eq!(unsubscribe(net, &name, "t/#"), Ok(ReasonCode::NoSubscriptionExisted));
            assert_eq!(unsubscribe(net, &name, "$share/g/s"), Ok(ReasonCode::Success));
            net.send(publisher, message("t/x", "unheard"));
            assert_eq!(net.received(peer), []);
            net.lose(peer);
        }
        assert_eq!(subscribe(net, "d", subscription("t", AtMostOnce)), Err(ClientActionError::NotConnected));
        assert_eq!(subscribe(net, "nobody", subscription("t", AtMostOnce)), Err(ClientActionError::Unknown));
        let no_local = NewSubscription { no_local: true, ..subscription("$share/g/s", AtMostOnce) };
        assert_eq!(subscribe(net, "p", no_local), Ok(ReasonCode::ProtocolError)); // [MQTT-3.8.3-4]
        let bad =
            net.admin().subscribe("p", subscription("a#", AtMostOnce), Box::new(|_| panic!("no answer")));
        assert_eq!(bad, Err(Invalid::Filter));
    });
}

/// Bridges and actions end all subscriptions of earlier settings, however many there are.
#[test]
fn all_filters_of_a_client_are_listed() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "d"));
        let filters: Vec<String> = (0..3_005).map(|number| format!("t/{number:04}")).collect();
        for some in filters.chunks(500) {
            let packet = some
                .iter()
                .fold(testkit::packets::subscribe(7), |packet, filter| packet.to(filter, AtMostOnce));
            net.send(client, packet);
            net.pass(10);
            assert_eq!(net.received(client).len(), 1);
        }
        let listed = net.ask(|admin, reply| admin.client_filters("d", reply)).flatten().expect("known");
        let mut listed: Vec<String> = listed.into_iter().map(String::from).collect();
        listed.sort();
        assert!(listed == filters, "{} filters", listed.len());
        assert_eq!(net.ask(|admin, reply| admin.client_filters("nobody", reply)), Some(None));
    });
}

/// A client may use every Packet Identifier while an operator's subscription waits for the store, and may disconnect.
#[test]
fn an_operators_subscription_waits_for_the_store_and_fails_when_the_client_disconnects() {
    everywhere(|net| {
        let peer = net.connect(0, durable(V5, "d"));
        let ask = |net: &mut Net, filter: &'static str| {
            let answer = Arc::<Mutex<Option<Result<ReasonCode, ClientActionError>>>>::default();
            let answered = answer.clone();
            let reply: Reply<_> = Box::new(move |value| *answered.lock().expect("one thread") = Some(value));
            net.admin().subscribe("d", subscription(filter, AtLeastOnce), reply).expect("valid");
            net.run();
            answer
        };
        net.store.hold(&[Kind::Subscribed]);
        let first = ask(net, "a");
        let unanswered = first.lock().expect("one thread").is_none();
        assert!(unanswered);
        for id in 1..=3 {
            net.send(peer, subscribe_packet(id, "b"));
        }
        net.release_held();
        assert_eq!(*first.lock().expect("one thread"), Some(Ok(ReasonCode::GrantedQoS1)));
        let acks: Vec<_> =
            net.received(peer).into_iter().filter(|packet| matches!(packet, Sent::SubAck(..))).collect();
        assert_eq!(acks.len(), 3);
        net.store.hold(&[Kind::Subscribed]);
        let second = ask(net, "c");
        net.lose(peer);
        assert_eq!(*second.lock().expect("one thread"), Some(Err(ClientActionError::Gone)));
        net.release_held();
    });
}

fn subscribe_packet(id: u16, filter: &str) -> Sent {
    let options = mqtt::SubscriptionOptions { qos: AtLeastOnce, ..Default::default() };
    Sent::Subscribe(Box::new(Subscribing {
        packet_id: id,
        filters: vec![(filter.into(), options)],
        identifier: None,
        level: None,
    }))
}

#[test]
fn subscriptions_of_clients_and_of_sessions_are_listed() {
    everywhere(|net| {
        let mut expected = Vec::new();
        for number in 0..12 {
            let name = format!("c{number:02}");
            let connecting = if number % 2 == 0 { v5(&name) } else { durable(V5, &name) };
            let peer = net.connect(number, connecting);
            for filter in [format!("t/{number}"), "t/+".to_owned(), "$share/g/t/#".to_owned()] {
                net.subscribe(peer, &filter, AtLeastOnce);
                expected.push((name.clone(), filter));
            }
            if number % 4 == 1 {
                net.lose(peer);
            }
        }
        expected.sort();
        let list = |net: &mut Net, limit: usize, filter: SubscriptionFilter| {
            let filter = Arc::new(filter);
            let mut all = Vec::new();
            let mut from = Some(Cursor::default());
            while let Some(cursor) = from {
                let filter = filter.clone();
                let page = net
                    .ask(|admin, reply| admin.subscriptions(cursor, limit, filter, reply))
                    .expect("an answer");
                assert!(page.items.len() <= limit);
                all.extend(page.items.iter().map(|one| (one.client_id.to_string(), one.filter.to_string())));
                from = page.next;
            }
            all.sort();
            all
        };
        for limit in [1, 5, 1000] {
            assert_eq!(list(net, limit, SubscriptionFilter::default()), expected);
        }
        let only = |filter: Option<&str>, matching: Option<&str>, share: Option<&str>| SubscriptionFilter {
            filter: filter.map(Into::into),
            matching: matching.map(Into::into),
            share: share.map(Into::into),
        };
        assert_eq!(list(net, 5, only(Some("t/+"), None, None)).len(), 12);
        assert_eq!(list(net, 5, only(None, Some("t/3"), None)).len(), 25);
        assert_eq!(list(net, 5, only(None, None, Some("g"))).len(), 12);
        assert_eq!(list(net, 5, only(None, Some("u"), Some("g"))).len(), 0);
        let (routes, more) = net.admin().routes("t/", 1000);
        assert!(!more);
        let mut filters: Vec<_> = routes.iter().map(|route| route.filter.to_string()).collect();
        filters.sort();
        let mut all: Vec<_> = (0..12).map(|number| format!("t/{number}")).collect();
        all.extend(["t/#".to_owned(), "t/+".to_owned()]);
        all.sort();
        assert_eq!(filters, all);
        assert!(net.admin().routes("t/", 3).1);
    });
}

#[test]
fn the_receivers_of_a_topic_are_listed_by_name() {
    everywhere(|net| {
        let ephemeral = net.connect(0, v5("e"));
        net.subscribe(ephemeral, "t/#", AtMostOnce);
        net.subscribe(ephemeral, "t/x", ExactlyOnce);
        let durable_one = net.connect(1, durable(V5, "d"));
        net.subscribe(durable_one, "t/+", AtLeastOnce);
        net.lose(durable_one);
        for (index, connecting) in [v5("m1"), durable(V5, "m2")].into_iter().enumerate() {
            let member = net.connect(index, connecting);
            net.subscribe(member, "$share/g/t/x", AtLeastOnce);
        }
        let ask = |net: &mut Net, topic: &'static str, limit| -> Matches {
            net.ask(|admin, reply| admin.find_receivers(topic, limit, reply).expect("valid"))
                .expect("an answer")
        };
        let matches = ask(net, "t/x", 100);
        let mut receivers: Vec<_> = matches
            .receivers
            .iter()
            .map(|one| {
                let mut filters: Vec<_> = one.filters.iter().map(|filter| filter.to_string()).collect();
                filters.sort();
                let share = one.share.as_deref().unwrap_or_default();
                (
                    one.client_id.to_string(),
                    one.connected,
                    one.durable,
                    filters.join(" "),
                    one.qos,
                    share.to_owned(),
                )
            })
            .collect();
        receivers.sort();
        let row = |name: &str, connected, durable, filters: &str, qos, share: &str| {
            (name.to_owned(), connected, durable, filters.to_owned(), qos, share.to_owned())
        };
        let expected = [
            row("d", false, true, "t/+", AtLeastOnce, ""),
            row("e", true, false, "t/# t/x", ExactlyOnce, ""),
            row("m1", true, false, "t/x", AtLeastOnce, "g"),
            row("m2", true, true, "t/x", AtLeastOnce, "g"),
        ];
        assert_eq!((receivers.as_slice(), matches.total), (expected.as_slice(), 4));
        let few = ask(net, "t/x", 2);
        assert_eq!((few.receivers.len(), few.total), (2, 4));
        assert_eq!(ask(net, "u", 2).total, 0);
        let bad = net.admin().find_receivers("t/#", 1, Box::new(|_| panic!("no answer")));
        assert_eq!(bad, Err(Invalid::Topic));
    });
}

#[test]
fn an_operators_message_of_qos_0_is_answered_when_it_is_retained() {
    everywhere(|net| {
        net.store.hold(&[Kind::Retain]);
        let kept = Publication { retain: true, ..publication("r", "kept", 0) };
        assert_eq!(net.ask(|admin, reply| admin.publish(&kept, reply).expect("valid")), None);
        net.release_held();
        assert_eq!(
            net.ask(|admin, reply| admin.publish(&kept, reply).expect("valid")),
            Some(ReasonCode::NoMatchingSubscribers)
        );
    });
}

#[test]
fn an_operators_message_is_answered_when_all_receivers_have_it() {
    everywhere(|net| {
        let publish = |net: &mut Net, publication: Publication| {
            net.ask(|admin, reply| admin.publish(&publication, reply).expect("valid"))
        };
        assert_eq!(publish(net, publication("t", "x", 1)), Some(ReasonCode::NoMatchingSubscribers));
        let reader = net.connect(0, v5("reader"));
        net.subscribe(reader, "t", ExactlyOnce);
        let session = net.connect(1, durable(V5, "session"));
        net.subscribe(session, "t", ExactlyOnce);
        for qos in 0..3 {
            assert_eq!(publish(net, publication("t", "x", qos)), Some(ReasonCode::Success));
            assert_eq!(net.payloads(reader), ["x"]);
            assert_eq!(net.payloads(session), ["x"]);
        }
        net.store.hold(&[Kind::Append]);
        assert_eq!(publish(net, publication("t", "x", 1)), None, "the store has not accepted it");
        net.release_held();
        let all = Publication {
            message_expiry: Some(30),
            content_type: Some("text/plain".into()),
            user_properties: vec![("k".into(), "v".into())],
            ..publication("r", "kept", 1)
        };
        let retained = Publication { retain: true, ..all };
        assert_eq!(publish(net, retained), Some(ReasonCode::NoMatchingSubscribers));
        let kept = net.ask(|admin, reply| admin.retained_message("r", reply)).flatten().expect("retained");
        assert_eq!(kept.payload, b"kept");
        assert_eq!(kept.content_type.as_deref(), Some("text/plain"));
        assert_eq!(kept.user_properties, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(kept.info.expires_in, Some(Duration::from_secs(30)));

        let admin = net.admin();
        let refused =
            |publication: &Publication| admin.publish(publication, Box::new(|_| panic!("no answer")));
        assert_eq!(refused(&publication("t/#", "x", 0)), Err(Invalid::Topic));
        assert_eq!(refused(&publication("", "x", 0)), Err(Invalid::Topic));
        assert_eq!(refused(&publication("$SYS/x", "x", 0)), Err(Invalid::Topic));
        assert_eq!(refused(&publication("t", "x", 3)), Err(Invalid::QoS));
        let large = "x".repeat(1 << 20);
        assert_eq!(refused(&publication("t", &large, 0)), Err(Invalid::Size));
        let text = Publication { payload_is_text: true, payload: vec![0xff], ..publication("t", "", 0) };
        assert_eq!(refused(&text), Err(Invalid::Payload));
        let nul = Publication { content_type: Some("a\0".into()), ..publication("t", "", 0) };
        assert_eq!(refused(&nul), Err(Invalid::Text));
        let response = Publication { response_topic: Some("a/+".into()), ..publication("t", "", 0) };
        assert_eq!(refused(&response), Err(Invalid::Topic)); // [MQTT-3.3.2-14]
    });
}

#[test]
fn retained_messages_are_listed_and_deleted() {
    everywhere(|net| {
        let publisher = net.connect(0, v5("p"));
        for number in 0..200 {
            net.send(publisher, message(&format!("t/{number:03}"), "x").retain());
        }
        let list = |net: &mut Net, filter: &'static str, limit| {
            let mut topics = Vec::new();
            let mut from = None;
            loop {
                let page = net
                    .ask(|admin, reply| admin.retained(filter, from, limit, reply).expect("valid"))
                    .expect("an answer");
                topics.extend(page.items.into_iter().map(|item| item.topic));
                from = page.next;
                if from.is_none() {
                    topics.sort();
                    return topics;
                }
            }
        };
        assert_eq!(list(net, "t/#", 7).len(), 200);
        assert_eq!(list(net, "#", 1000).len(), 200);
        assert_eq!(list(net, "t/042", 10).len(), 1);
        let topics: Vec<_> = list(net, "t/+", 1000).into_iter().take(150).collect();
        let deleted = Arc::<Mutex<usize>>::default();
        let sum = deleted.clone();
        net.admin().delete_retained(&topics, move |count| *sum.lock().expect("one thread") += count);
        net.run();
        assert_eq!(*deleted.lock().expect("one thread"), 150);
        assert_eq!(list(net, "t/#", 1000).len(), 50);
        assert!(net.ask(|admin, reply| admin.retained_message("t/000", reply)).expect("an answer").is_none());
    });
}

#[test]
fn messages_of_chosen_topics_are_counted() {
    everywhere(|net| {
        let reader = net.connect(0, v5("r"));
        net.subscribe(reader, "t/#", AtLeastOnce);
        let other = net.connect(2, v5("o"));
        net.subscribe(other, "t/b", AtMostOnce);
        let publisher = net.connect(1, v5("p"));
        net.send(publisher, message("t/a", "before"));
        let admin = net.admin();
        admin.watch("t/+").expect("new");
        admin.watch("t/b").expect("new");
        assert_eq!(admin.watch("t/b").err(), Some(Invalid::Exists));
        assert_eq!(admin.watch("t/#/x").err(), Some(Invalid::Filter));
        net.run();
        net.send(publisher, message("t/a", "12"));
        net.send(publisher, message("t/b", "3456").qos1(1));
        net.send(publisher, message("u", "no"));
        let watched: BTreeMap<_, _> = admin
            .watched()
            .into_iter()
            .map(|one| (one.filter.to_string(), (one.received, one.sent, one.dropped)))
            .collect();
        let traffic = |by_qos, bytes| Traffic { by_qos, bytes };
        assert_eq!(watched["t/+"], (traffic([1, 1, 0], 6), traffic([2, 1, 0], 10), 0));
        assert_eq!(watched["t/b"], (traffic([0, 1, 0], 4), traffic([1, 1, 0], 8), 0));
        assert!(admin.unwatch("t/+"));
        assert!(!admin.unwatch("t/+"));
        net.run();
        net.send(publisher, message("t/b", "3"));
        assert_eq!(admin.watched().len(), 1);
        assert_eq!(admin.watched()[0].received, traffic([1, 1, 0], 5));
        for number in 1..64 {
            admin.watch(&format!("w/{number}")).expect("room");
        }
        assert_eq!(admin.watch("w/64").err(), Some(Invalid::TooMany));
    });
}

#[test]
fn slow_subscribers_are_found() {
    everywhere(|net| {
        let slow = |net: &mut Net| {
            let mut all = Vec::new();
            for worker in net.admin().workers() {
                all.extend(net.ask(|admin, reply| admin.slow(worker, reply)).expect("an answer"));
            }
            all.sort_by_key(|entry| entry.client_id.clone());
            all
        };
        let quick = net.connect(0, v5("quick"));
        let late = net.connect(1, v5("late").receive_max(1));
        let never = net.connect(2, durable(V5, "never").receive_max(1));
        for peer in [quick, late, never] {
            net.subscribe(peer, "t", AtLeastOnce);
        }
        let publisher = net.connect(0, v5("p"));
        net.send(publisher, message("t", "x").qos1(1));
        net.pass(400);
        net.send(quick, puback(1));
        assert_eq!(slow(net), []);
        net.pass(500);
        net.send(late, puback(1));
        let found = slow(net);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].client_id, &*found[0].topic, found[0].acknowledged), ("late", "t", true));
        assert_eq!(found[0].latency, Duration::from_millis(900));
        net.admin().forget_slow();
        net.run();
        assert_eq!(slow(net), []);
        net.send(quick, puback(1));
    });
}

#[test]
fn a_trace_shows_what_a_client_does() {
    everywhere(|net| {
        let events = Arc::<Mutex<Vec<TraceEvent>>>::default();
        let sink = |events: &Arc<Mutex<Vec<TraceEvent>>>| {
            let events = events.clone();
            move |event| {
                events.lock().expect("one thread").push(event);
                true
            }
        };
        let taken =
            |events: &Arc<Mutex<Vec<TraceEvent>>>| std::mem::take(&mut *events.lock().expect("one thread"));
        let admin = net.admin();
        let trace = admin.trace(TraceSubject::Client("c".into()), 2, sink(&events)).expect("room");
        net.run();
        let client = net.connect(0, v5("c"));
        let other = net.connect(1, v5("other"));
        net.subscribe(client, "t", AtLeastOnce);
        net.send(other, message("t", "hello"));
        net.send(client, message("u", "bye").qos1(3));
        net.send(client, Sent::PingReq);
        net.send(client, disconnect(ReasonCode::Success));
        let seen = taken(&events);
        let kinds: Vec<_> = seen.iter().map(|event| event.kind).collect();
        use TraceKind::*;
        assert_eq!(
            kinds,
            [
                Connect,
                ConnAck,
                Subscribe,
                Packet(Direction::Out),
                Publish(Direction::Out),
                Publish(Direction::In),
                Packet(Direction::Out),
                Packet(Direction::In),
                Packet(Direction::Out),
                Disconnect,
            ]
        );
        assert!(seen.iter().all(|event| &*event.client_id == "c"));
        let delivered = &seen[4];
        assert_eq!((delivered.topic.as_deref(), delivered.payload.as_slice()), (Some("t"), b"he".as_slice()));
        assert_eq!(delivered.payload_bytes, Some(5));
        drop(trace);
        net.run();

        let topics = admin.trace(TraceSubject::Topic("t/#".into()), 0, sink(&events)).expect("room");
        net.run();
        let reader = net.connect(2, v5("reader"));
        net.subscribe(reader, "#", AtMostOnce);
        net.send(other, message("t/1", "hello"));
        net.send(other, message("u", "hello"));
        let publication = publication("t/2", "operator", 0);
        net.ask(|admin, reply| admin.publish(&publication, reply).expect("valid")).expect("an answer");
        let seen: Vec<_> = taken(&events)
            .into_iter()
            .map(|event| {
                (event.kind, event.client_id.to_string(), event.topic.map(String::from).unwrap_or_default())
            })
            .collect();
        let row =
            |direction, client: &str, topic: &str| (Publish(direction), client.to_owned(), topic.to_owned());
        assert_eq!(
            seen,
            [
                row(Direction::In, "other", "t/1"),
                row(Direction::Out, "reader", "t/1"),
                row(Direction::In, "", "t/2"),
                row(Direction::Out, "reader", "t/2"),
            ]
        );
        assert_eq!(admin.figures().traces, 1);
        drop(topics);
        assert_eq!(admin.figures().traces, 0);
        net.run();
        net.send(other, message("t/1", "hello"));
        assert_eq!(taken(&events).len(), 0);
        let many: Vec<_> = (0..8)
            .map(|_| admin.trace(TraceSubject::Topic("#".into()), 0, |_| false).expect("room"))
            .collect();
        let ninth = admin.trace(TraceSubject::Topic("#".into()), 0, |_| false);
        assert_eq!(ninth.err(), Some(Invalid::TooMany));
        net.run();
        net.send(other, message("t/1", "hello"));
        assert_eq!(many[0].lost(), 2, "one received, one sent, and neither was read");
        assert_eq!(admin.figures().trace_events_lost, 16);
        drop(many);
        net.run();
    });
}

/// Events are lost and counted under load, and the client notices nothing.
#[test]
fn a_trace_of_everything_is_bounded() {
    everywhere(|net| {
        let seen = Arc::<Mutex<usize>>::default();
        let count = seen.clone();
        let trace = net
            .admin()
            .trace(TraceSubject::Topic("#".into()), 0, move |_| {
                *count.lock().expect("one thread") += 1;
                true
            })
            .expect("room");
        net.run();
        let publisher = net.connect(0, v5("p"));
        for _ in 0..3000 {
            net.send_without_running(publisher, message("t", "x"));
        }
        net.run();
        let seen = *seen.lock().expect("one thread");
        assert_eq!(seen as u64 + trace.lost(), 3000);
        assert!(trace.lost() > 0);
        drop(trace);
        net.run();
    });
}

#[test]
fn settings_change_while_the_node_runs() {
    everywhere_with(
        |settings| settings.queue.messages_max = 3,
        |net| {
            let away = net.connect(0, durable(V5, "d"));
            net.subscribe(away, "t", AtLeastOnce);
            net.lose(away);
            let publisher = net.connect(1, v5("p"));
            let queued = |net: &mut Net| {
                let detail = net.ask(|admin, reply| admin.client("d", reply)).flatten().expect("known");
                detail.info.queued_messages
            };
            for id in 1..=5 {
                net.send(publisher, message("t", "x").qos1(id));
            }
            assert_eq!(queued(net), 3);
            let mut settings = (*net.node.settings()).clone();
            settings.queue.messages_max = 10;
            settings.mqtt.keep_alive_max = 7;
            net.admin().set_settings(settings);
            net.run();
            for id in 6..=10 {
                net.send(publisher, message("t", "x").qos1(id));
            }
            assert_eq!(queued(net), 8);
            assert_eq!(net.node.settings().queue.messages_max, 10);
            let client = net.connect(2, v5("k"));
            net.pass(11_000);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::KeepAliveTimeout)));
        },
    );
}

#[test]
fn packets_are_counted_by_type_and_the_busiest_clients_are_known() {
    everywhere(|net| {
        let reader = net.connect(0, v5("reader"));
        net.subscribe(reader, "t", AtMostOnce);
        let publisher = net.connect(1, v5("publisher"));
        for _ in 0..640 {
            net.send(publisher, message("t", "x"));
        }
        net.send(publisher, Sent::PingReq);
        net.pass(11_000);
        let figures = net.admin().figures();
        let (counters, _, packets) = figures.counters();
        assert_eq!((counters.received_qos0, counters.sent_qos0), (640, 640));
        let counted: BTreeMap<_, _> =
            packets.each().map(|(packet, received, sent)| (packet.to_string(), (received, sent))).collect();
        assert_eq!(counted["PUBLISH"], (640, 640));
        assert_eq!((counted["CONNECT"], counted["CONNACK"]), ((2, 0), (0, 2)));
        assert_eq!((counted["SUBSCRIBE"], counted["SUBACK"]), ((1, 0), (0, 1)));
        assert_eq!((counted["PINGREQ"], counted["PINGRESP"]), ((1, 0), (0, 1)));
        let sum = |names: &mut BTreeMap<String, u64>, busy: &[broker::admin::Busy]| {
            for busy in busy {
                *names.entry(busy.name.to_string()).or_default() += busy.messages;
            }
        };
        let (mut publishers, mut subscribers, mut topics) = Default::default();
        for worker in net.admin().workers().collect::<Vec<WorkerId>>() {
            let top = net.ask(|admin: &Admin, reply| admin.top(worker, reply)).expect("an answer");
            sum(&mut publishers, &top.publishers);
            sum(&mut subscribers, &top.subscribers);
            sum(&mut topics, &top.topics);
        }
        // Of 640 messages about one of 16 was looked at.
        for (names, name) in [(publishers, "publisher"), (subscribers, "reader"), (topics, "t")] {
            assert_eq!(names.len(), 1, "{names:?}");
            assert!((320..=1280).contains(&names[name]), "{names:?}");
        }
    });
}
