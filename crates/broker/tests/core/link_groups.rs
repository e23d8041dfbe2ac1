//! Shared groups that have one member over all linked clusters.

use std::sync::Arc;

use broker::access::INTERNAL_LISTENER;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use testkit::packets::*;

use crate::links::{Clusters, connect_link, everywhere, wanted};
use crate::net::{Net, Peer, everywhere_guarded};

const GROUP: &str = "$share/linked:g/t/#";
const OF_LINKS: &str = "$share/$link:linked:g/t/#";

fn join(net: &mut Net, link: Peer) {
    net.send(link, subscribe(900).to(OF_LINKS, ExactlyOnce));
    assert_eq!(net.received(link), [suback(900, &[ExactlyOnce])]);
}

/// Publishes a message of QoS 1, with its number as Packet Identifier and payload.
fn publish(net: &mut Net, publisher: Peer, number: u16) {
    net.send(publisher, message("t/x", number).qos1(number));
    assert_eq!(net.received(publisher), [puback(number)]);
}

fn name_listeners(net: &Net) {
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
}

/// Connects the session that publishes what comes by a link.
fn connect_local(net: &mut Net, client_id: &str) -> Peer {
    let peer = net.open(0, V5);
    net.came_in_by(peer, 1);
    net.send(peer, durable(V5, client_id));
    net.received(peer);
    peer
}

fn messages(net: &mut Net, peer: Peer) -> Vec<Message> {
    let messages = net.received(peer).into_iter().filter_map(|packet| match packet {
        Sent::Publish(message) => Some(*message),
        _ => None,
    });
    messages.collect()
}

fn acknowledge(net: &mut Net, peer: Peer, messages: &[Message]) {
    for message in messages {
        net.send(peer, puback(message.packet_id.expect("of QoS 1")));
    }
}

fn store_counter(net: &mut Net, counter: impl Fn(&broker::StoreCounters) -> u64) -> u64 {
    // They are published about once a second.
    net.pass(1_100);
    let (_, store, _) = net.admin().figures().counters();
    counter(&store)
}

#[test]
fn a_linked_cluster_gets_the_messages_of_a_group_while_no_client_is_connected() {
    everywhere(|net| {
        let publisher = net.connect(1, v5("p"));
        let link = connect_link(net, 0, "$link/c");
        join(net, link);
        net.send(publisher, message("t/x", "0"));
        publish(net, publisher, 1);
        net.send(publisher, message("t/x", 2).qos2(2));
        net.received(publisher);
        let sent = messages(net, link);
        assert_eq!(sent.iter().map(|it| it.qos).collect::<Vec<_>>(), [AtMostOnce, AtLeastOnce, ExactlyOnce]);
        for message in &sent {
            assert_eq!(message.group.as_deref(), Some(GROUP));
            assert_eq!(message.subscription_ids, [1], "the broker has named the group");
        }
        let client = net.connect(2, v5("client"));
        net.subscribe(client, GROUP, AtLeastOnce);
        for number in 3..=5 {
            publish(net, publisher, number);
        }
        assert_eq!(net.payloads(client), ["3", "4", "5"], "a client comes first");
        assert!(messages(net, link).is_empty());
        net.send(client, unsubscribe(1, &[GROUP]));
        net.received(client);
        publish(net, publisher, 6);
        assert_eq!(net.payloads(link), ["6"]);
        assert!(net.payloads(client).is_empty());
    });
}

#[test]
fn what_a_leaving_client_has_not_acknowledged_goes_to_a_linked_cluster() {
    everywhere(|net| {
        let publisher = net.connect(1, v5("p"));
        let link = connect_link(net, 0, "$link/c");
        join(net, link);
        for client in [v5("client"), durable(V5, "client").expiry(0)] {
            let client = net.connect(2, client);
            net.subscribe(client, GROUP, AtLeastOnce);
            publish(net, publisher, 1);
            assert_eq!(net.payloads(client), ["1"]);
            net.lose(client);
            let sent = messages(net, link);
            assert_eq!(sent.len(), 1);
            assert_eq!(sent[0].group.as_deref(), Some(GROUP));
            acknowledge(net, link, &sent);
        }
    });
}

#[test]
fn linked_clusters_take_turns_and_plain_subscriptions_get_their_own_copy() {
    everywhere(|net| {
        let publisher = net.connect(1, v5("p"));
        let (c, d) = (connect_link(net, 0, "$link/c"), connect_link(net, 2, "$link/d"));
        join(net, c);
        join(net, d);
        net.subscribe(c, "t/+", ExactlyOnce);
        for number in 1..=6 {
            publish(net, publisher, number);
        }
        let (of_c, of_d) = (messages(net, c), messages(net, d));
        let (for_group, plain): (Vec<_>, Vec<_>) = of_c.iter().partition(|it| it.group.is_some());
        assert_eq!((for_group.len(), plain.len(), of_d.len()), (3, 6, 3));
        assert!(plain.iter().all(|it| it.subscription_ids.is_empty()));
        assert!(of_d.iter().all(|it| it.group.is_some()));
        let mut all: Vec<_> = for_group.into_iter().chain(&of_d).map(|it| it.payload.as_str()).collect();
        all.sort_unstable();
        assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
    });
}

/// A client that is absent comes after a linked cluster that is connected, and before one that is not.
#[test]
fn absent_members_come_last_and_a_linked_cluster_that_is_away_after_them() {
    everywhere(|net| {
        let publisher = net.connect(1, v5("p"));
        let absent = net.connect(2, durable(V5, "absent"));
        net.subscribe(absent, GROUP, AtLeastOnce);
        net.lose(absent);
        let link = connect_link(net, 0, "$link/c");
        join(net, link);
        publish(net, publisher, 1);
        let sent = messages(net, link);
        assert_eq!(sent.len(), 1);
        acknowledge(net, link, &sent);
        net.lose(link);
        publish(net, publisher, 2);
        let back = net.resume(2, durable(V5, "absent"));
        let got = messages(net, back);
        let payloads: Vec<_> = got.iter().map(|it| it.payload.as_str()).collect();
        assert_eq!(payloads, ["2"], "the session of the linked cluster takes nothing");
        acknowledge(net, back, &got);
        net.send(back, unsubscribe(2, &[GROUP]));
        net.received(back);
        publish(net, publisher, 3);
        let link = net.resume(1, durable(V5, "$link/c"));
        let sent = messages(net, link);
        assert_eq!(sent.iter().map(|it| it.payload.as_str()).collect::<Vec<_>>(), ["3"], "it has waited");
        assert_eq!(sent[0].group.as_deref(), Some(GROUP));
        assert_eq!(sent[0].subscription_ids, [1]);
    });
}

#[test]
fn a_slow_linked_cluster_makes_no_publisher_of_a_group_wait() {
    everywhere(|net| {
        let link = net.connect(0, durable(V5, "$link/c").receive_max(1));
        join(net, link);
        let publisher = net.connect(1, v5("p"));
        for number in 1..=20 {
            publish(net, publisher, number);
        }
        let detail = net.ask(|admin, reply| admin.client("$link/c", reply)).flatten().expect("a session");
        let session = detail.session.expect("is durable");
        assert_eq!((session.inflight, session.queued_messages), (1, 3));
    });
}

/// The cluster where a message was published decides alone.
#[test]
fn a_message_of_a_linked_cluster_goes_to_the_group_that_it_names_and_to_nobody_else() {
    everywhere(|net| {
        name_listeners(net);
        let local = connect_local(net, "$linked/c");
        let (c, d) = (connect_link(net, 1, "$link/c"), connect_link(net, 2, "$link/d"));
        join(net, c);
        join(net, d);
        let plain: Vec<Peer> = (0..8)
            .map(|number| {
                let client = net.connect(number, durable(V5, &format!("plain{number}")));
                net.subscribe(client, "t/#", ExactlyOnce);
                client
            })
            .collect();
        let ordinary = net.connect(1, v5("ordinary"));
        net.subscribe(ordinary, "$share/g/t/#", ExactlyOnce);
        let members = [v5("m0"), durable(V5, "m1")].map(|member| net.connect(2, member));
        for member in members {
            net.subscribe(member, GROUP, ExactlyOnce);
        }
        let mut expected = Vec::new();
        for (number, qos) in [(1u16, 0), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2)] {
            let sent = message("t/x", number).from_cluster("c").for_group(GROUP);
            let sent = match qos {
                0 => sent,
                1 => sent.qos1(number),
                _ => sent.qos2(number),
            };
            net.send(local, sent);
            if qos == 2 {
                net.send(local, pubrel(number));
            }
            expected.push(number.to_string());
        }
        net.received(local);
        let mut got: Vec<String> = members.iter().flat_map(|member| net.payloads(*member)).collect();
        got.sort_unstable();
        assert_eq!(got, expected);
        // The same without a group: it is for all others.
        net.send(local, message("t/x", "7").from_cluster("c").qos1(7));
        net.received(local);
        for client in plain {
            assert_eq!(net.payloads(client), ["7"]);
        }
        assert_eq!(net.payloads(ordinary), ["7"]);
        for member in members {
            assert!(net.payloads(member).is_empty());
        }
        for link in [c, d] {
            assert!(net.payloads(link).is_empty());
        }
    });
}

#[test]
fn a_message_of_a_linked_cluster_for_a_group_without_members_is_counted() {
    everywhere(|net| {
        name_listeners(net);
        let local = connect_local(net, "$linked/c");
        let d = connect_link(net, 2, "$link/d");
        join(net, d);
        for number in [1u16, 2] {
            net.send(local, message("t/x", number).from_cluster("c").for_group(GROUP).qos1(number));
        }
        net.send(local, message("t/x", 3).from_cluster("c").for_group(GROUP).qos2(3));
        net.pass(9_000);
        assert_eq!(net.received(local), [], "they wait for a member");
        net.pass(1_100);
        assert_eq!(net.received(local), [puback(1), puback(2), pubrec(3)]);
        assert!(net.payloads(d).is_empty(), "it does not go through two clusters");
        assert_eq!(store_counter(net, |counters| counters.dropped_no_linked_member), 3);
        assert_eq!(store_counter(net, |counters| counters.dropped_no_member), 0);
        net.send(local, message("t/x", 5).from_cluster("c").for_group(GROUP).qos1(5));
        assert_eq!(net.received(local), [puback(5)], "it holds back no other messages of the link again");
        assert_eq!(store_counter(net, |counters| counters.dropped_no_linked_member), 4);
        let absent = net.connect(1, durable(V5, "absent"));
        net.subscribe(absent, GROUP, AtLeastOnce);
        net.lose(absent);
        net.send(local, message("t/x", 4).from_cluster("c").for_group(GROUP).qos1(4));
        assert_eq!(net.received(local), [puback(4)]);
        let back = net.resume(2, durable(V5, "absent"));
        assert_eq!(net.payloads(back), ["4"], "a durable member gets it");
    });
}

/// The link may be back after a restart before the members are.
#[test]
fn a_message_of_a_linked_cluster_waits_for_a_member_that_joins_soon() {
    for member in [v5("member"), durable(V5, "member")] {
        everywhere(|net| {
            name_listeners(net);
            let local = connect_local(net, "$linked/c");
            let member = net.connect(2, member.clone());
            for [first, second, third] in [[1, 2, 3], [4, 5, 6]] {
                let of_link = |number: u16| message("t/x", number).from_cluster("c").for_group(GROUP);
                net.send(local, of_link(first).qos1(first));
                net.send(local, of_link(second).qos2(second));
                net.send(local, of_link(third).qos1(third));
                net.pass(7_000);
                assert_eq!(net.received(local), [], "the publisher waits");
                net.send(member, subscribe(1).to(GROUP, AtLeastOnce));
                let received = net.received(member);
                assert!(received.contains(&suback(1, &[AtLeastOnce])));
                let got = received.into_iter().filter_map(|packet| match packet {
                    Sent::Publish(message) => Some(*message),
                    _ => None,
                });
                let got: Vec<Message> = got.collect();
                let payloads: Vec<&str> = got.iter().map(|it| it.payload.as_str()).collect();
                assert_eq!(payloads, [first, second, third].map(|number| number.to_string()));
                assert_eq!(net.received(local), [puback(first), pubrec(second), puback(third)]);
                net.send(local, pubrel(second));
                assert_eq!(net.received(local), [pubcomp(second)]);
                acknowledge(net, member, &got);
                net.send(member, unsubscribe(2, &[GROUP]));
                net.received(member);
            }
            assert_eq!(store_counter(net, |counters| counters.dropped_no_linked_member), 0);
        });
    }
}

/// A message for a group is not retained. So it goes to its member while storage of retained messages is full.
#[test]
fn a_retained_message_for_a_group_needs_no_room() {
    everywhere_guarded(
        |settings| settings.retained.messages_max = 1,
        Arc::<Clusters>::default,
        |net, _| {
            name_listeners(net);
            let local = connect_local(net, "$linked/c");
            let member = net.connect(1, v5("member"));
            net.subscribe(member, GROUP, ExactlyOnce);
            net.send(local, message("t/1", 1).from_cluster("c").qos1(1).retain());
            assert_eq!(net.received(local), [puback(1)]);
            // The node learns once a second how full it is.
            net.pass(2_000);
            net.send(local, message("t/2", 2).from_cluster("c").qos1(2).retain());
            assert_eq!(net.received(local), [Sent::PubAck(2, ReasonCode::QuotaExceeded)]);
            net.send(local, message("t/3", 3).from_cluster("c").for_group(GROUP).qos1(3).retain());
            net.send(local, message("t/4", 4).from_cluster("c").for_group(GROUP).qos2(4).retain());
            assert_eq!(net.received(local), [puback(3), pubrec(4)]);
            assert_eq!(net.payloads(member), ["3", "4"]);
            net.send(local, pubrel(4));
            assert_eq!(net.received(local), [pubcomp(4)]);
            let reader = net.connect(2, v5("reader"));
            net.send(reader, subscribe(1).to("t/+", AtMostOnce));
            let retained: Vec<String> = messages(net, reader).into_iter().map(|it| it.payload).collect();
            assert_eq!(retained, ["1"]);
        },
    );
}

#[test]
fn a_repeated_qos_2_message_for_a_group_is_delivered_once() {
    everywhere(|net| {
        name_listeners(net);
        let local = connect_local(net, "$linked/c");
        let member = net.connect(1, v5("member"));
        net.subscribe(member, GROUP, ExactlyOnce);
        let sent = message("t/x", "once").from_cluster("c").for_group(GROUP).qos2(5);
        net.send(local, sent.clone());
        assert_eq!(net.received(local), [pubrec(5)]);
        net.lose(local);
        let local = connect_local(net, "$linked/c");
        net.send(local, sent.dup());
        assert_eq!(net.received(local), [pubrec(5)]);
        net.send(local, pubrel(5));
        assert_eq!(net.received(local), [pubcomp(5)]);
        assert_eq!(net.payloads(member), ["once"]);
    });
}

#[test]
fn a_client_cannot_choose_the_group_of_a_message() {
    everywhere(|net| {
        let (link, plain) = (connect_link(net, 0, "$link/c"), net.connect(1, v5("plain")));
        let member = net.connect(2, v5("member"));
        net.subscribe(link, "t/+", ExactlyOnce);
        net.subscribe(plain, "t/#", AtMostOnce);
        net.subscribe(member, GROUP, AtMostOnce);
        let publisher = net.connect(0, v5("p"));
        net.send(publisher, message("t/x", "1").for_group("$share/linked:other/t/#"));
        for peer in [plain, member] {
            assert_eq!(net.payloads(peer), ["1"]);
        }
        let sent = messages(net, link);
        assert_eq!(sent.len(), 1);
        assert!(sent[0].subscription_ids.is_empty(), "the link sees that a client has named it");
    });
}

#[test]
fn a_watch_finds_groups_with_clients_apart_from_filters() {
    everywhere(|net| {
        let watch = net.admin().watch_interest(Arc::new(|| ()));
        let (link, client) = (connect_link(net, 0, "$link/c"), net.connect(1, v5("client")));
        let kept = net.connect(2, durable(V5, "kept"));
        join(net, link);
        assert!(wanted(&watch, None).is_empty(), "what a linked cluster wants is not wanted of it");
        net.subscribe(client, GROUP, AtMostOnce);
        assert_eq!(wanted(&watch, None), [GROUP]);
        assert!(wanted(&watch, Some("")).is_empty());
        assert!(watch.take().filters.iter().any(|filter| **filter == *GROUP));
        net.subscribe(client, "$share/g/t/#", AtMostOnce);
        assert_eq!(wanted(&watch, None), [GROUP, "t/#"]);
        net.subscribe(kept, GROUP, AtLeastOnce);
        net.lose(kept);
        net.send(client, unsubscribe(1, &[GROUP, "$share/g/t/#"]));
        net.received(client);
        assert_eq!(wanted(&watch, None), [GROUP], "a durable member");
        let kept = net.resume(2, durable(V5, "kept"));
        watch.take();
        net.send(kept, unsubscribe(1, &[GROUP]));
        assert_eq!(net.received(kept).last(), Some(&unsuback(V5, 1, &[ReasonCode::Success])));
        assert!(watch.take().filters.iter().any(|filter| **filter == *GROUP));
        assert!(wanted(&watch, None).is_empty());
    });
}
