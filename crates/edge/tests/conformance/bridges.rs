//! Bridges of other brokers: clients that set bit 7 of the Protocol Version. No specification defines this bit, but
//! mosquitto and others use it.

use mqtt::QoS::{self, AtLeastOnce as QOS_1, AtMostOnce as QOS_0};
use mqtt::ReasonCode;
use mqtt::Version::V5;

use crate::harness::*;

fn state_of(client_id: &str) -> String {
    format!("$SYS/broker/connection/{client_id}/state")
}

#[test]
fn a_bridge_gets_none_of_its_own_messages_and_others_with_their_retain_flag() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut bridge = b.connect_with(b.client("bridge").bridge()).0;
        bridge.subscribe(&topic, QOS_1);
        let mut other = b.connect("other");
        other.subscribe(&topic, QOS_1);
        bridge.publish_message(Message::new(&topic, "from the bridge", QOS_1).retained());
        assert!(!other.message().retain);
        other.publish_message(Message::new(&topic, "from another", QOS_1).retained());
        let message = bridge.message();
        assert_eq!((message.text(), message.retain), ("from another", true));
        other.publish(&topic, "", QOS_1);
        assert!(!bridge.message().retain);
        other.publish_message(Message::new(&topic, "", QOS_1).retained());
    });
}

/// No Local is a Protocol Error in a shared subscription [MQTT-3.8.3-4], so a bridge is an ordinary member of a group.
#[test]
fn a_bridge_may_join_a_shared_group() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut bridge = b.connect_with(b.client("bridge").bridge()).0;
        bridge.subscribe(&format!("$share/g/{topic}"), QOS_1);
        bridge.publish(&topic, "x", QOS_1);
        assert_eq!(bridge.message().text(), "x");
    });
}

/// A bridge publishes 1 on its state topic when it is connected, and its Will is 0.
#[test]
fn a_bridge_publishes_its_connection_state_on_its_own_topic() {
    every_version(|b| {
        let state = state_of(&b.id("bridge"));
        let retained = |text: &str| Message::new(&state, text, QOS_1).retained();
        let mut watcher = b.connect("watcher");
        watcher.subscribe(&state, QOS_1);
        let mut bridge = b.connect_with(b.client("bridge").will(retained("0"))).0;
        bridge.publish_message(retained("1"));
        assert_eq!(watcher.message().text(), "1");
        bridge.fail();
        assert_eq!(watcher.message().text(), "0");
        for filter in [state.as_str(), "$SYS/broker/connection/#", "$SYS/broker/connection/+/state", "$SYS/#"]
        {
            let mut late = b.connect("late");
            late.subscribe(filter, QOS_0);
            let messages = std::iter::repeat_with(|| late.message());
            let message = messages.into_iter().find(|message| message.topic == state).expect("endless");
            assert_eq!((message.text(), message.retain), ("0", true), "{filter}");
        }
        let mut bridge = b.connect("bridge");
        bridge.publish_message(retained(""));
    });
}

#[test]
fn clients_cannot_publish_on_the_state_topic_of_another_or_below_their_own() {
    every_version(|b| {
        let own = state_of(&b.id("bridge"));
        let topics = [
            state_of(&b.id("other")),
            format!("{own}/x"),
            own.replace("/state", "/other"),
            own.replace("/state", ""),
            "$SYS/broker/connection/state".to_owned(),
        ];
        for topic in topics {
            let mut witness = b.connect("witness");
            witness.subscribe(&topic, QOS_0);
            let will = Message::new(&topic, "0", QoS::AtMostOnce);
            let refused = b.refused(&b.client("bridge").will(will)).expect("a CONNACK");
            assert_eq!(refused.reason, ReasonCode::NotAuthorized, "{topic}");
            let mut bridge = b.connect("bridge");
            let reason = bridge.try_publish(Message::new(&topic, "1", QOS_1));
            if b.version == V5 {
                assert_eq!(reason, ReasonCode::NotAuthorized, "{topic}");
            }
            witness.nothing_from(&mut bridge);
        }
    });
}
