//! Topic Names and Topic Filters (4.7).

use std::collections::BTreeSet;

use crate::harness::wire::{packet, string};
use crate::harness::*;

/// Subscribes to each filter in turn and publishes every topic.
fn check(b: &Broker, topics: &[&str], cases: &[(&str, &[&str])]) {
    let mut publisher = b.connect("publisher");
    let mut subscriber = b.connect("subscriber");
    let end = b.topic("the/end/of/all/topics/of/this/scenario");
    subscriber.subscribe(&end, QOS_0);
    for (filter, matching) in cases {
        subscriber.subscribe(&b.topic(filter), QOS_0);
        for topic in topics {
            publisher.publish(&b.topic(topic), topic, QOS_0);
        }
        publisher.publish(&end, "", QOS_0);
        let mut received = BTreeSet::new();
        loop {
            let message = subscriber.message();
            // The end arrives twice where the filter matches it.
            if message.topic == end {
                break;
            }
            // [MQTT-4.7.3-4]: the topic is unchanged.
            assert_eq!(message.topic, b.topic(message.text()));
            assert!(received.insert(message.text().to_owned()), "{filter} matches {} twice", message.text());
        }
        let expected: BTreeSet<String> = matching.iter().map(|topic| (*topic).to_owned()).collect();
        assert_eq!(received, expected, "{filter}");
        subscriber.unsubscribe(&[&b.topic(filter)]);
    }
}

/// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.3.2-3] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3] 4.7.1.2, 4.7.1.3
#[test]
fn wildcards_match_levels() {
    every_version(|b| {
        let topics =
            ["a", "a/", "/a", "a/b", "a//b", "a/b/c", "a/b/", "b/b", "ab", "a/bc", "/", "//", "A/b", "a b/c"];
        check(
            b,
            &topics,
            &[
                ("a", &["a"]),
                ("a/b", &["a/b"]),
                ("a/", &["a/"]),
                ("/a", &["/a"]),
                ("/", &["/"]),
                ("A/b", &["A/b"]),
                ("a b/c", &["a b/c"]),
                ("+", &["a", "ab"]),
                ("+/b", &["a/b", "b/b", "A/b"]),
                ("a/+", &["a/", "a/b", "a/bc"]),
                ("/+", &["/a", "/"]),
                ("+/", &["a/", "/"]),
                ("+/+", &["a/", "/a", "a/b", "b/b", "a/bc", "/", "A/b", "a b/c"]),
                ("+/+/+", &["a//b", "a/b/c", "a/b/", "//"]),
                ("a/+/b", &["a//b"]),
                ("a/+/c", &["a/b/c"]),
                ("a//b", &["a//b"]),
                ("a/#", &["a", "a/", "a/b", "a//b", "a/b/c", "a/b/", "a/bc"]),
                ("a/b/#", &["a/b", "a/b/c", "a/b/"]),
                ("a/+/#", &["a/", "a/b", "a//b", "a/b/c", "a/b/", "a/bc"]),
                ("+/b/#", &["a/b", "a/b/c", "a/b/", "b/b", "A/b"]),
                ("/#", &["/a", "/", "//"]),
                ("//#", &["/", "//"]),
                ("b/#", &["b/b"]),
                ("c/#", &[]),
                ("+/+/c", &["a/b/c"]),
            ],
        );
    });
}

/// 4.7.1.2: `#` matches everything, the parent level included.
#[test]
fn a_number_sign_matches_everything_below() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.subscribe(&b.topic("sport/tennis/#"), QOS_0);
        let matching =
            ["sport/tennis", "sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/"];
        for topic in matching {
            client.publish(&b.topic(topic), "x", QOS_0);
            assert_eq!(client.message().topic, b.topic(topic));
        }
        for topic in ["sport", "sport/", "sport/tennis1", "sport/Tennis", "sporttennis"] {
            client.publish(&b.topic(topic), "x", QOS_0);
        }
        client.nothing_of_its_own();
    });
}

/// [MQTT-4.7.3-4] [MQTT3-4.7.3-4]: topics are not normalised, case-folded or trimmed; [MQTT-1.5.4-3] [MQTT3-1.5.3-3]: a
/// BOM is kept.
#[test]
fn topics_are_compared_byte_by_byte() {
    every_version(|b| {
        let topics =
            ["é", "e\u{301}", "E", "e", " e", "e ", "\u{FEFF}e", "e\u{200B}", "e.", "e*", "🦀", "日本/語"];
        let cases: Vec<(&str, &[&str])> =
            topics.iter().map(|topic| (*topic, std::slice::from_ref(topic))).collect();
        check(b, &topics, &cases);
    });
}

/// [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3]: a wildcard must take a whole level. A packet with
/// another filter is malformed [MQTT-4.13.1-1] [MQTT3-4.8.0-1].
#[test]
fn an_ill_formed_filter_closes_the_connection() {
    from_3_1_1(|b| {
        let invalid = [
            "#/a", "a/#/b", "a#", "#a", "a/b#", "a/#b", "##", "a/##", "+a", "a+", "a/+b", "a/b+/c", "++",
            "a/+#", "+#", "#+", "#/", "#/#", "/#/",
        ];
        for filter in invalid {
            let mut client = b.connect("a");
            client.send_subscribe(1, &[("good", at(QOS_0)), (filter, at(QOS_0))], &[]);
            client.closed_for(ReasonCode::MalformedPacket);
            let mut client = b.connect("a");
            client.send_unsubscribe(1, &["good", filter]);
            client.closed_for(ReasonCode::MalformedPacket);
        }
    });
}

#[test]
fn an_odd_filter_is_accepted() {
    every_version(|b| {
        let mut client = b.connect("a");
        for filter in [
            "+", "/", "//", "+/+", "+/#", "/+/", "a/+/+/#", "a//+//#", " ", " /#", "$", "$/a", "$a/#", "a$",
            "a/$b/+", "*", "a/*", "a.b", "a,b", "日本/+",
        ] {
            client.subscribe(filter, QOS_0);
            client.unsubscribe(&[filter]);
        }
    });
}

/// [MQTT-4.7.0-1] [MQTT-3.3.2-2] [MQTT3-4.7.1-1] [MQTT3-3.3.2-2]
#[test]
fn a_topic_name_with_a_wildcard_closes_the_connection() {
    every_version(|b| {
        let mut witness = b.connect("witness");
        witness.subscribe(&b.topic("#"), QOS_1);
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        for name in ["+", "#", "a/+", "a/#", "a/+/b", "a#", "+a"] {
            for first in [0x30, 0x32, 0x34] {
                let mut client = b.connect("a");
                let id: &[u8] = if first == 0x30 { &[] } else { &[0, 1] };
                client.send_bytes(&packet(first, &[&string(b.topic(name)), id, no_properties, b"x"]));
                if Broker::is_external() {
                    client.closed_for_one_of(&[
                        ReasonCode::TopicNameInvalid,
                        ReasonCode::MalformedPacket,
                        ReasonCode::ProtocolError,
                    ]);
                } else {
                    client.closed_for(ReasonCode::TopicNameInvalid);
                }
            }
        }
        let mut publisher = b.connect("publisher");
        witness.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.7.3-3] [MQTT3-4.7.3-3]; 200 levels are within the default of `mqtt.topic_levels_max`.
#[test]
fn topics_may_be_long_and_deep() {
    every_version_with(
        |settings| settings.mqtt.topic_len_max = 65_535,
        |b| {
            let mut client = b.connect("a");
            let room = 65_535 - b.topic("").len();
            let deep = ["d"; 199].join("/");
            for rest in ["x".repeat(room), format!("{}{}", "é".repeat(room / 2), "x".repeat(room % 2)), deep]
            {
                let topic = b.topic(&rest);
                client.subscribe(&topic, QOS_1);
                client.publish(&topic, "x", QOS_1);
                assert_eq!(client.message().topic, topic);
                client.unsubscribe(&[&topic]);
            }
        },
    );
}

/// Empty levels are levels (4.7.3, non-normative).
#[test]
fn empty_levels_count() {
    every_version(|b| {
        let slashes = ["", "/", "//", "///", "a/", "/a", "a//", "//a", "a//a", "/a/"];
        let topics: Vec<&str> = slashes[1..].to_vec();
        let cases: Vec<(&str, &[&str])> =
            topics.iter().map(|topic| (*topic, std::slice::from_ref(topic))).collect();
        check(b, &topics, &cases);
    });
}
