//! Selection of the sessions for a message, and the form of the deliveries.

use crate::support::*;
use mqtt::{QoS, ReasonCode};
use shard::{
    Answer, Command, Enqueue, Filter, Identity, Limits, MessageView, SessionUid, Shard, Subscribed, fnv64,
};

const RETAIN_AS_PUBLISHED: u8 = 8;
const NO_LOCAL: u8 = 4;

#[test]
fn a_message_reaches_each_matching_session_once() {
    let mut host = Host::default();
    let one = host.claim("one");
    let two = host.claim("two");
    host.subscribe(one, "a/+", 1);
    host.subscribe(two, "a/b", 2);
    host.subscribe(two, "a/#", 0);
    assert_eq!(host.answer(&publish("a/b")), Answer::Published { matched: 2 });
    assert_eq!(host.answer(&publish("a/c")), Answer::Published { matched: 1 });
    assert_eq!(
        (host.queue(one.0), host.queue(two.0)),
        (vec!["a/b".into(), "a/c".into()], vec!["a/b".into()])
    );
    let (total, some) = host.shard.matching(mqtt::TopicName::parse("a/b").expect("a topic"), 1);
    assert_eq!((total, some), (2, vec![one.0]));
}

/// [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.1-13]
#[test]
fn overlapping_subscriptions_give_one_delivery_with_the_highest_options() {
    let mut host = Host::default();
    let (session, epoch) = host.claim("c");
    let filters = vec![
        Filter { text: "a/+", options: 1, id: 11 },
        Filter { text: "a/b", options: 2, id: 12 },
        Filter { text: "#", options: RETAIN_AS_PUBLISHED, id: 0 },
    ];
    host.effects(&Command::Subscribe { session, epoch, filters });
    let message = MessageView { retain: true, ..view("a/b") };
    host.effects(&Command::Publish { message, wait: true, identity: None });
    host.publish("a/c");
    let view = host.shard.session(session).expect("is there");
    let first = view.entry(0).expect("queued");
    assert_eq!((first.qos, first.retain, first.ids), (QoS::ExactlyOnce, true, &[11, 12][..]));
    let second = view.entry(1).expect("queued");
    assert_eq!((second.qos, second.retain, second.ids), (QoS::AtLeastOnce, false, &[11][..]));
}

/// [MQTT-3.8.3-3]: for each subscription.
#[test]
fn no_local_compares_the_publishers_client_identifier() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.subscribe(owner, "a", 1 | NO_LOCAL);
    host.subscribe(owner, "b", 1 | NO_LOCAL);
    host.subscribe(owner, "+", 0);
    let from = |topic, publisher: &str| {
        let message = MessageView { publisher_key: fnv64(publisher.as_bytes()), ..view(topic) };
        Command::Publish { message, wait: true, identity: None }
    };
    assert_eq!(host.answer(&from("a", "c")), Answer::Published { matched: 0 });
    assert_eq!(host.answer(&from("a", "d")), Answer::Published { matched: 1 });
    host.subscribe(owner, "#", 1);
    assert_eq!(host.answer(&from("a", "c")), Answer::Published { matched: 1 });
}

#[test]
fn a_message_delivered_at_qos_0_is_not_kept() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.subscribe(owner, "a", 0);
    host.subscribe(owner, "b", 2);
    assert_eq!(host.answer(&publish("a")), Answer::Published { matched: 0 });
    let message = MessageView { qos: QoS::AtMostOnce, ..view("b") };
    assert_eq!(
        host.answer(&Command::Publish { message, wait: true, identity: None }),
        Answer::Published { matched: 0 }
    );
}

/// [MQTT-3.8.4-3]
#[test]
fn filters_are_reported_with_their_first_and_last_subscription() {
    let mut host = Host::default();
    let one = host.claim("one");
    let two = host.claim("two");
    assert_eq!(describe(&host.subscribe(one, "a", 1)), ["added a"]);
    assert_eq!(describe(&host.subscribe(two, "a", 1)), [""; 0]);
    assert_eq!(describe(&host.subscribe(one, "a", 2)), [""; 0]);
    let filters = vec!["a", "b"];
    let (answer, effects) = host.submit(&Command::Unsubscribe { session: one.0, epoch: one.1, filters });
    let results = [ReasonCode::Success, ReasonCode::NoSubscriptionExisted].into();
    assert_eq!((answer, describe(&effects)), (Answer::Unsubscribed { results }, vec![]));
    assert_eq!(describe(&host.effects(&Command::End { session: two.0 })), ["removed a", "ended two Ended"]);
    assert!(host.shard.filters().is_empty());
}

#[test]
fn subscriptions_are_granted_refused_and_replaced() {
    let mut host = Host::with(Limits { subscriptions_max: 2, ..Limits::default() });
    let (session, epoch) = host.claim("c");
    let filter = |text, options| Filter { text, options, id: 0 };
    let filters =
        vec![filter("a", 2), filter("a", 1), filter("a/#/b", 1), filter("$share/g/a", 0), filter("b", 1)];
    let answer = host.answer(&Command::Subscribe { session, epoch, filters });
    let one = |reason, existed| Subscribed { reason, existed };
    let results = [
        one(ReasonCode::GrantedQoS2, false),
        one(ReasonCode::GrantedQoS1, true),
        one(ReasonCode::TopicFilterInvalid, false),
        one(ReasonCode::Success, false),
        one(ReasonCode::QuotaExceeded, false),
    ];
    assert_eq!(answer, Answer::Subscribed { results: results.into() });
    // The broker delivers a group's messages to its members; a shared subscription alone gets nothing.
    assert_eq!(host.answer(&publish("a")), Answer::Published { matched: 1 });
    let texts: Vec<_> = host.shard.session(session).expect("is there").subscriptions().collect();
    assert_eq!(texts, [("$share/g/a", 0, 0), ("a", 1, 0)]);
    assert_eq!(host.shard.counts().subscriptions, 2);
}

/// Other nodes learn of a group with its first session, and that it has none with the last one.
#[test]
fn a_group_begins_with_its_first_session_and_ends_with_its_last_one() {
    let mut host = Host::default();
    let (first, second) = (host.claim("a"), host.claim("b"));
    let subscribe = |(session, epoch): (SessionUid, u32)| {
        let filters = vec![Filter { text: "$share/g/t", options: 1, id: 7 }];
        Command::Subscribe { session, epoch, filters }
    };
    assert_eq!(describe(&host.effects(&subscribe(first))), ["added $share/g/t"]);
    assert!(host.effects(&subscribe(second)).is_empty());
    let members = |shard: &Shard, after| -> Vec<SessionUid> {
        shard.group_members("$share/g/t", after).map(|session| session.uid()).collect()
    };
    assert_eq!(members(&host.shard, None), [first.0, second.0]);
    assert_eq!(members(&host.shard, Some(first.0)), [second.0, first.0], "they take turns");
    let parts = host.checkpoint();
    let restored = restore(&parts, host.shard.applied());
    assert_eq!(members(&restored, None), [first.0, second.0], "a checkpoint has them");
    let found = host.shard.session(first.0).and_then(|session| session.subscription("$share/g/t"));
    assert_eq!(found, Some((1, 7)));
    let (session, epoch) = first;
    let filters = vec!["$share/g/t"];
    let effects = host.effects(&Command::Unsubscribe { session, epoch, filters });
    assert!(!describe(&effects).iter().any(|effect| effect.starts_with("removed")));
    let effects = describe(&host.effects(&Command::End { session: second.0 }));
    assert_eq!(effects, ["removed $share/g/t", "ended b Ended"]);
    assert!(members(&host.shard, None).is_empty());
}

/// Changes without a connection come from an operator or from new access rules.
#[test]
fn subscriptions_change_without_an_owner_too() {
    let mut host = Host::default();
    let (session, epoch) = host.claim("c");
    host.subscribe((session, 0), "a", 1);
    host.release((session, epoch));
    let filters = vec!["a"];
    assert_eq!(
        host.answer(&Command::Unsubscribe { session, epoch, filters: filters.clone() }),
        Answer::Stale
    );
    let results = [ReasonCode::Success].into();
    assert_eq!(
        host.answer(&Command::Unsubscribe { session, epoch: 0, filters }),
        Answer::Unsubscribed { results }
    );
}

/// Retained messages of a new subscription, and messages of a shared group.
#[test]
fn a_message_can_be_queued_for_one_session() {
    let mut host = Host::default();
    let owner = host.claim("c");
    let enqueue = Enqueue {
        session: owner.0,
        message: MessageView { expires: 9_000, ..view("a") },
        qos: QoS::AtLeastOnce,
        retain: true,
        ids: vec![1, 2],
        identity: Some(Identity { origin: 1, number: 1 }),
        group: Some("$share/g/a"),
    };
    let command = Command::Enqueue(enqueue);
    assert_eq!(host.answer(&command), Answer::Done);
    assert_eq!(host.answer(&command), Answer::Repeated);
    let session = host.shard.session(owner.0).expect("is there");
    let entry = session.entry(0).expect("queued");
    assert_eq!((entry.qos, entry.retain, entry.ids), (QoS::AtLeastOnce, true, &[1, 2][..]));
    assert_eq!((entry.expires, entry.group), (9_000, Some("$share/g/a")));
}
