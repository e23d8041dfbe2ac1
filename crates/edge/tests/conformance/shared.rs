//! Shared Subscriptions (4.8.2).

use crate::harness::wire::{packet, string};
use crate::harness::*;

fn members(b: &Broker, count: usize, filter: &str, qos: QoS) -> Vec<Client> {
    let mut members: Vec<Client> = (0..count).map(|n| b.connect(&format!("m{n}"))).collect();
    for member in &mut members {
        member.subscribe(filter, qos);
    }
    members
}

/// Returns all messages that arrive at a client before a barrier of `publisher`.
fn everything(client: &mut Client, b: &Broker, publisher: &mut Client) -> Vec<Message> {
    let barrier = b.topic("barrier");
    client.subscribe(&barrier, QOS_0);
    publisher.publish(&barrier, "", QOS_0);
    let mut messages = Vec::new();
    loop {
        let message = client.message();
        if message.topic == barrier {
            client.unsubscribe(&[&barrier]);
            return messages;
        }
        messages.push(message);
    }
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-2]; before 5.0 the filter is the same, because servers have long supported it.
#[test]
fn each_message_goes_to_one_member() {
    from_3_1_1(|b| {
        for qos in EVERY_QOS {
            let topic = b.topic(&format!("t/{}", qos as u8));
            let mut publisher = b.connect("publisher");
            let mut members = members(b, 3, &format!("$share/group/{topic}"), qos);
            for n in 0..30 {
                publisher.publish(&topic, n.to_string(), qos);
            }
            // An acknowledged message has reached a member, and so have the messages before it.
            publisher.publish(&topic, "30", QOS_1);
            let mut received: Vec<u32> = Vec::new();
            for member in &mut members {
                let share: Vec<u32> = everything(member, b, &mut publisher)
                    .iter()
                    .map(|message| message.text().parse().expect("a number"))
                    .collect();
                // The default strategy distributes the messages.
                assert!(!share.is_empty());
                // [MQTT-4.6.0-5]: each member sees its messages in order.
                assert!(share.is_sorted());
                received.extend(share);
            }
            received.sort_unstable();
            assert_eq!(received, (0..=30).collect::<Vec<_>>());
        }
    });
}

/// 4.8.2: each ShareName is a separate group, independent of ordinary subscriptions.
#[test]
fn each_group_and_each_plain_subscription_gets_every_message() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut one = members(b, 1, &format!("$share/one/{topic}"), QOS_1).remove(0);
        let mut two = b.connect("two");
        two.subscribe(&format!("$share/two/{topic}"), QOS_1);
        let mut plain = b.connect("plain");
        plain.subscribe(&topic, QOS_1);
        // The same ShareName with another filter is another subscription.
        let mut wide = b.connect("wide");
        wide.subscribe(&format!("$share/one/{}", b.topic("+")), QOS_1);
        for n in 0..5 {
            publisher.publish(&topic, n.to_string(), QOS_1);
            for client in [&mut one, &mut two, &mut plain, &mut wide] {
                assert_eq!(client.message().text(), n.to_string());
            }
        }
        for client in [&mut one, &mut two, &mut plain, &mut wide] {
            client.nothing_from(&mut publisher);
        }
    });
}

/// 4.8.2: a client with both subscriptions gets both copies.
#[test]
fn a_client_may_have_a_shared_and_a_plain_subscription() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe_with(
            &format!("$share/group/{topic}"),
            at(QOS_1),
            &[Property::SubscriptionIdentifier(1)],
        );
        client.subscribe_with(&topic, at(QOS_1), &[Property::SubscriptionIdentifier(2)]);
        client.publish(&topic, "x", QOS_1);
        let mut ids = [client.message().subscription_ids(), client.message().subscription_ids()];
        ids.sort();
        assert_eq!(ids, [[1], [2]]);
        client.nothing_of_its_own();
    });
}

/// [MQTT-4.8.2-3]
#[test]
fn each_member_has_its_own_qos() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut low = b.connect("low");
        low.subscribe(&filter, QOS_0);
        let mut high = b.connect("high");
        high.subscribe(&filter, QOS_2);
        for _ in 0..10 {
            publisher.publish(&topic, "x", QOS_2);
        }
        let low = everything(&mut low, b, &mut publisher);
        let high = everything(&mut high, b, &mut publisher);
        assert_eq!(low.len() + high.len(), 10);
        assert!(low.iter().all(|message| message.qos == QOS_0));
        assert!(high.iter().all(|message| message.qos == QOS_2));
    });
}

#[test]
fn a_group_may_share_wildcards() {
    from_3_1_1(|b| {
        let mut publisher = b.connect("publisher");
        let mut members = members(b, 2, &format!("$share/group/{}", b.topic("+/x/#")), QOS_1);
        let topics = ["a/x", "b/x/y", "c/x/y/z", "d/x"].map(|name| b.topic(name));
        for topic in &topics {
            publisher.publish(topic, "x", QOS_1);
        }
        publisher.publish(&b.topic("a/y"), "x", QOS_1);
        let mut received: Vec<String> = Vec::new();
        for member in &mut members {
            received.extend(everything(member, b, &mut publisher).into_iter().map(|message| message.topic));
        }
        received.sort();
        assert_eq!(received, topics);
    });
}

/// 4.8.2, non-normative: the filter after the ShareName may begin with a separator.
#[test]
fn the_filter_of_a_group_may_begin_with_a_slash() {
    from_3_1_1(|b| {
        let topic = format!("/{}", b.topic("t"));
        let mut client = b.connect("a");
        client.subscribe(&format!("$share/group/{topic}"), QOS_1);
        client.publish(&topic, "x", QOS_1);
        assert_eq!(client.message().topic, topic);
        client.publish(&b.topic("t"), "x", QOS_1);
        client.nothing_of_its_own();
    });
}

#[test]
fn a_member_that_leaves_gets_nothing_more() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut members = members(b, 3, &filter, QOS_1);
        let mut gone = members.remove(0);
        gone.unsubscribe(&[&filter]);
        members.remove(0).disconnect();
        let mut left = members.remove(0);
        for n in 0..10 {
            publisher.publish(&topic, n.to_string(), QOS_1);
            assert_eq!(left.message().text(), n.to_string());
        }
        gone.nothing_from(&mut publisher);
        // The last member leaves, and the group ends.
        assert_eq!(left.unsubscribe(&[&filter]).first(), (b.version == V5).then_some(&0));
        publisher.publish(&topic, "nobody", QOS_1);
        left.nothing_from(&mut publisher);
    });
}

/// 4.8.2: a repeated subscription replaces the membership.
#[test]
fn a_member_that_subscribes_again_is_one_member() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut client = b.connect("a");
        client.subscribe(&filter, QOS_2);
        client.subscribe(&filter, QOS_1);
        for _ in 0..4 {
            client.publish(&topic, "x", QOS_2);
            assert_eq!(client.message().qos, QOS_1);
        }
        client.nothing_of_its_own();
    });
}

/// 3.3.1.3, 4.8.2: retained messages are not sent to a group when a member subscribes.
#[test]
fn retained_messages_are_not_shared() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        publisher.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        let mut member = b.connect("member");
        member.subscribe(&format!("$share/group/{topic}"), QOS_1);
        member.nothing_from(&mut publisher);
    });
}

/// [MQTT-3.8.3-4]
#[test]
fn no_local_is_refused_in_a_group() {
    v5(|b| {
        let mut client = b.connect("a");
        let options = SubscriptionOptions { no_local: true, ..at(QOS_1) };
        client.send_subscribe(1, &[(&format!("$share/group/{}", b.topic("t")), options)], &[]);
        client.closed_for(ReasonCode::ProtocolError);
    });
}

/// [MQTT-4.8.2-1] [MQTT-4.8.2-2]
#[test]
fn an_ill_formed_shared_filter_closes_the_connection() {
    v5(|b| {
        for filter in [
            "$share/",
            "$share//t",
            "$share/g",
            "$share/g/",
            "$share/g+/t",
            "$share/g#/t",
            "$share/+/t",
            "$share/#",
            "$share/#/t",
            "$share/g/a/#/b",
            "$share/g/a+",
        ] {
            let mut client = b.connect("a");
            client.send_bytes(&packet(0x82, &[&[0, 1, 0], &string(filter), &[1]]));
            client.closed_for(ReasonCode::MalformedPacket);
        }
    });
}

/// [MQTT-4.8.2-4], and a choice that it leaves open: the server does not wait for a disconnected member if another is
/// connected.
#[test]
fn messages_go_to_connected_members() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut away = b.durable("away");
        away.subscribe(&filter, QOS_1);
        away.disconnect();
        let mut there = b.connect("there");
        there.subscribe(&filter, QOS_1);
        for n in 0..10 {
            publisher.publish(&topic, n.to_string(), QOS_1);
            assert_eq!(there.message().text(), n.to_string());
        }
        there.unsubscribe(&[&filter]);
        // No other member is left, so the message waits.
        publisher.publish(&topic, "wait", QOS_1);
        let mut away = b.resume("away");
        assert_eq!(away.message().text(), "wait");
        away.nothing_from(&mut publisher);
        away.disconnect();
    });
}

/// [MQTT-4.8.2-4]: a QoS 2 message that was sent to a member stays with it.
#[test]
fn a_member_that_reconnects_completes_its_delivery() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut member = b.durable("member");
        member.subscribe(&filter, QOS_2);
        publisher.publish(&topic, "x", QOS_2);
        let sent = member.message_unacknowledged();
        let mut other = b.connect("other");
        other.subscribe(&filter, QOS_2);
        member.fail();
        other.nothing_from(&mut publisher);
        let mut member = b.resume("member");
        let again = member.message();
        assert_eq!((again.packet_id, again.dup, again.text()), (sent.packet_id, true, "x"));
        other.nothing_from(&mut publisher);
        member.disconnect();
    });
}

/// [MQTT-4.8.2-5]
#[test]
fn a_message_of_qos_2_ends_with_its_member() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut member = b.connect("member");
        member.subscribe(&filter, QOS_2);
        publisher.publish(&topic, "x", QOS_2);
        member.message_unacknowledged();
        let mut other = b.connect("other");
        other.subscribe(&filter, QOS_2);
        member.fail();
        other.nothing_from(&mut publisher);
    });
}

/// 4.8.2: for QoS 1 the server may try another member once the session of the first has ended; Meridian does.
#[test]
fn a_message_of_qos_1_finds_another_member() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut member = b.connect("member");
        member.subscribe(&filter, QOS_1);
        for n in 0..5 {
            publisher.publish(&topic, n.to_string(), QOS_1);
        }
        for _ in 0..5 {
            member.message_unacknowledged();
        }
        let mut other = b.connect("other");
        other.subscribe(&filter, QOS_1);
        member.fail();
        let mut texts = other.texts(5);
        texts.sort();
        assert_eq!(texts, ["0", "1", "2", "3", "4"]);
    });
}

/// [MQTT-4.8.2-6]
#[test]
fn a_message_that_a_member_refuses_is_discarded() {
    v5(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut members = members(b, 2, &filter, QOS_2);
        for qos in [QOS_1, QOS_2] {
            let mut other = members.remove(1);
            let mut member = members.remove(0);
            other.unsubscribe(&[&filter]);
            publisher.publish(&topic, "x", qos);
            let message = member.message_unacknowledged();
            other.subscribe(&filter, QOS_2);
            if qos == QOS_1 {
                member.send_puback_with(message.packet_id, ReasonCode::UnspecifiedError);
            } else {
                member.send_pubrec_with(message.packet_id, ReasonCode::UnspecifiedError);
            }
            member.nothing();
            other.nothing_from(&mut publisher);
            members = vec![member, other];
        }
    });
}

/// A group may have members of every version.
#[test]
fn clients_of_different_versions_share_a_group() {
    v5(|b| {
        let topic = b.topic("t");
        let filter = format!("$share/group/{topic}");
        let mut publisher = b.connect("publisher");
        let mut members = [b.connect_as(V3_1, "m3"), b.connect_as(V3_1_1, "m4"), b.connect_as(V5, "m5")];
        for member in &mut members {
            member.subscribe(&filter, QOS_1);
        }
        for n in 0..12 {
            publisher.publish(&topic, n.to_string(), QOS_1);
        }
        let count: usize = members.iter_mut().map(|member| everything(member, b, &mut publisher).len()).sum();
        assert_eq!(count, 12);
    });
}

/// Every strategy sends each message to exactly one member.
#[test]
fn no_strategy_duplicates_or_loses_a_message() {
    use broker::settings::SharedStrategy::*;
    for strategy in [RoundRobin, Random, Sticky, HashClientId, HashTopic, Local] {
        let strategy = &strategy;
        v5_with(
            |settings| settings.shared.strategy = *strategy,
            |b| {
                let mut publishers = [b.connect("p1"), b.connect("p2")];
                let mut members = members(b, 4, &format!("$share/group/{}", b.topic("t/+")), QOS_1);
                for n in 0..40 {
                    publishers[n % 2].publish(&b.topic(&format!("t/{}", n % 5)), n.to_string(), QOS_1);
                }
                let mut received: Vec<usize> = Vec::new();
                let mut takers = 0;
                let mut takers_of = std::collections::HashMap::new();
                for (who, member) in members.iter_mut().enumerate() {
                    let share = everything(member, b, &mut publishers[0]);
                    takers += usize::from(!share.is_empty());
                    for message in share {
                        let n: usize = message.text().parse().expect("a number");
                        takers_of.entry((n % 2, n % 5)).or_insert_with(Vec::new).push(who);
                        received.push(n);
                    }
                }
                received.sort_unstable();
                assert_eq!(received, (0..40).collect::<Vec<_>>());
                match strategy {
                    RoundRobin => assert_eq!(takers, 4),
                    Sticky => assert_eq!(takers, 1),
                    HashClientId => assert!(takers <= 2),
                    HashTopic => {
                        for topic in 0..5 {
                            let mut takers = [&takers_of[&(0, topic)][..], &takers_of[&(1, topic)]].concat();
                            takers.dedup();
                            assert_eq!(takers.len(), 1, "topic {topic}");
                        }
                    }
                    Random | Local => {}
                }
            },
        );
    }
}
