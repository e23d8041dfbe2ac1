//! Tests of the map of topics.

use super::*;
use crate::settings::Direction;
use proptest::prelude::*;

const QOS: QoS = QoS::AtLeastOnce;

fn map(topic: Topic) -> TopicMap {
    TopicMap::new(&[topic]).expect("a valid entry")
}

fn prefixed(filter: &str, local: &str, remote: &str) -> TopicMap {
    map(Topic::prefixed(filter, Direction::Both, QOS, local, remote))
}

#[track_caller]
fn check(map: &TopicMap, local: &str, remote: Option<&str>) {
    let mapped = map.to_remote(TopicName::parse(local).expect("a topic"));
    assert_eq!(mapped.as_ref().map(|mapped| mapped.topic.as_str()), remote, "{local}");
    if let Some(remote) = remote {
        let back = map.to_local(TopicName::parse(remote).expect("a topic"));
        assert_eq!(back.map(|mapped| mapped.topic).as_deref(), Some(local));
    }
}

#[test]
fn prefixes_are_exchanged() {
    let plain = prefixed("a/#", "", "");
    check(&plain, "a/b", Some("a/b"));
    check(&plain, "a", Some("a"));
    check(&plain, "b", None);
    let moved = prefixed("sensor/+", "site/", "plant/1/");
    assert_eq!(moved.wanted(Side::Local)[0].filter, "site/sensor/+");
    assert_eq!(moved.wanted(Side::Remote)[0].filter, "plant/1/sensor/+");
    check(&moved, "site/sensor/7", Some("plant/1/sensor/7"));
    check(&moved, "sensor/7", None);
}

#[test]
fn a_separator_is_not_added_to_a_prefix() {
    check(&prefixed("a/#", "x", "y"), "xa/1", Some("ya/1"));
}

#[test]
fn the_parent_level_is_mapped_with_its_prefix() {
    let moved = prefixed("#", "x/", "y/");
    check(&moved, "x", Some("y"));
    check(&moved, "x/1", Some("y/1"));
    let removed = prefixed("#", "x/", "");
    check(&removed, "x", None);
    check(&removed, "x/1", Some("1"));
    check(&removed, "x/$1", None);
}

#[test]
fn an_empty_filter_maps_one_topic() {
    let one = prefixed("", "local/a", "remote/b");
    check(&one, "local/a", Some("remote/b"));
    check(&one, "local/a/c", None);
}

#[test]
fn filters_are_remapped() {
    let remapped = map(Topic::remapped("a/+/b/#", "x/y/+/#", Direction::Both, QOS));
    check(&remapped, "a/1/b/2/3", Some("x/y/1/2/3"));
    check(&remapped, "a/1/b", Some("x/y/1"));
    check(&remapped, "a/1/c", None);
    check(&map(Topic::remapped("a/#", "#", Direction::Both, QOS)), "a", None);
}

#[test]
fn directions_are_separate_and_the_first_rule_applies() {
    let topics = [
        Topic::prefixed("a/b", Direction::Out, QoS::AtMostOnce, "", "first/"),
        Topic::prefixed("a/#", Direction::Out, QOS, "", "second/"),
        Topic::new("in/#", Direction::In, QOS),
    ];
    let map = TopicMap::new(&topics).expect("valid entries");
    let to_remote = |topic| map.to_remote(TopicName::parse(topic).expect("a topic"));
    assert_eq!(to_remote("a/b"), Some(Mapped { topic: "first/a/b".into(), qos: QoS::AtMostOnce }));
    assert_eq!(to_remote("a/c"), Some(Mapped { topic: "second/a/c".into(), qos: QOS }));
    assert_eq!(to_remote("in/a"), None);
    assert_eq!(map.wanted(Side::Local).len(), 2);
    assert_eq!(map.wanted(Side::Remote), [Wanted { filter: "in/#".into(), qos: QOS }]);
}

#[test]
fn a_response_topic_uses_the_opposite_direction_first() {
    let topics = [
        Topic::prefixed("#", Direction::Out, QOS, "", "site/1/"),
        Topic::prefixed("reply/#", Direction::In, QOS, "", "answers/1/"),
    ];
    let map = TopicMap::new(&topics).expect("valid entries");
    let mapped = |topic| map.map_response(Side::Local, TopicName::parse(topic).expect("a topic"));
    assert_eq!(mapped("reply/x").as_deref(), Some("answers/1/reply/x"));
    assert_eq!(mapped("other").as_deref(), Some("site/1/other"));
}

#[test]
fn invalid_entries_are_refused() {
    let error = |topic: Topic| TopicMap::new(&[Topic::new("t", Direction::Both, QOS), topic]).err();
    let entry = 1;
    assert!(matches!(
        error(Topic::new("a#", Direction::In, QOS)),
        Some(MapError::FilterInvalid { entry: 1, .. })
    ));
    assert!(matches!(
        error(Topic::new("", Direction::In, QOS)),
        Some(MapError::FilterInvalid { entry: 1, .. })
    ));
    assert!(matches!(
        error(Topic::new("$share/g/a", Direction::In, QOS)),
        Some(MapError::Shared { entry: 1, .. })
    ));
    let prefix = "+/".to_owned();
    assert_eq!(
        error(Topic::prefixed("a", Direction::In, QOS, "+/", "")),
        Some(MapError::PrefixInvalid { entry, prefix })
    );
    assert_eq!(
        error(Topic::remapped("a/+", "a/#", Direction::In, QOS)),
        Some(MapError::WildcardsDiffer { entry })
    );
    assert_eq!(error(Topic::new("t", Direction::Out, QOS)), Some(MapError::Duplicate { entry, earlier: 0 }));
}

#[test]
fn echoes_are_found() {
    let echoes = |topics: &[Topic]| TopicMap::new(topics).expect("valid").echoes().collect::<Vec<_>>();
    assert_eq!(echoes(&[Topic::new("a/#", Direction::Both, QOS)]), [(0, 0)]);
    let apart = [Topic::new("a/#", Direction::Out, QOS), Topic::new("b/#", Direction::In, QOS)];
    assert_eq!(echoes(&apart), []);
    let moved = [Topic::prefixed("#", Direction::Out, QOS, "", "b/"), Topic::new("+/x", Direction::In, QOS)];
    assert_eq!(echoes(&moved), [(0, 1)]);
}

#[test]
fn filters_overlap_when_a_topic_matches_both() {
    for (a, b, expected) in [
        ("a/#", "a", true),
        ("a/+", "+/b", true),
        ("a/+/c", "a/b", false),
        ("#", "$SYS/a", false),
        ("+/a", "$SYS/a", false),
        ("a/b", "a/c", false),
        ("#", "+", true),
    ] {
        assert_eq!(overlap(a, b), expected, "{a} {b}");
        assert_eq!(overlap(b, a), expected, "{b} {a}");
    }
}

fn level() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ab]{1,2}", Just("$x".to_owned())]
}

proptest! {
    #[test]
    fn a_name_comes_back(
        filter in prop_oneof![Just(""), Just("#"), Just("+"), Just("a/#"), Just("+/b"), Just("a/+/#")],
        local in "[ab/]{0,4}",
        remote in "[ab/]{0,4}",
        levels in prop::collection::vec(level(), 1..5),
        remap in any::<bool>(),
    ) {
        let topic = if remap {
            let wild = |prefix: &str| format!("{prefix}x/{filter}");
            Topic::remapped(&wild(&local), &wild(&remote), Direction::Both, QOS)
        } else {
            Topic::prefixed(filter, Direction::Both, QOS, &local, &remote)
        };
        let Ok(map) = TopicMap::new(&[topic]) else { return Ok(()) };
        let name = format!("{remote}{}", levels.join("/"));
        let Ok(name) = TopicName::parse(&name) else { return Ok(()) };
        if let Some(mapped) = map.to_local(name) {
            let back = map.to_remote(TopicName::parse(&mapped.topic).expect("a Topic Name"));
            prop_assert_eq!(back.map(|mapped| mapped.topic), Some(name.as_str().to_owned()));
        }
    }
}
