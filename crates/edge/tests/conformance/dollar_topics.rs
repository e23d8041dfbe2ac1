//! Topics that begin with `$` (4.7.2).

use std::time::Duration;

use crate::harness::*;

/// [MQTT-4.7.2-1] [MQTT3-4.7.2-1]
#[test]
fn root_wildcards_do_not_see_dollar_topics() {
    every_version(|b| {
        let name = b.topic("x").replace('/', "");
        let topic = format!("${name}/a/b");
        let mut publisher = b.connect("publisher");
        let filters = ["#", "+/a/b", "+/a/#", "+/+/+", "+/#", "/#"];
        let mut wild: Vec<Client> = Vec::new();
        for (n, filter) in filters.iter().enumerate() {
            let mut client = b.connect(&format!("w{n}"));
            client.subscribe(filter, QOS_0);
            wild.push(client);
        }
        let mut exact: Vec<Client> = Vec::new();
        for (n, filter) in
            [topic.clone(), format!("${name}/#"), format!("${name}/+/b"), format!("${name}/a/+")]
                .iter()
                .enumerate()
        {
            let mut client = b.connect(&format!("e{n}"));
            client.subscribe(filter, QOS_0);
            exact.push(client);
        }
        publisher.publish(&topic, "hidden", QOS_1);
        // A server may reserve these topics (4.7.2); Meridian reserves only $SYS.
        for client in &mut exact {
            assert_eq!(client.message().topic, topic);
        }
        // The first topic has three levels and an `a` in the middle, so `#` and the filters with `+` match it. `/#`
        // matches only the second one.
        let (plain, rooted) = (b.topic("a/b"), format!("/{}", b.topic("a/b")));
        publisher.publish(&plain, "seen", QOS_0);
        publisher.publish(&rooted, "seen", QOS_0);
        for (client, filter) in wild.iter_mut().zip(filters) {
            let seen = if filter == "/#" { &rooted } else { &plain };
            assert_eq!(next_of_ours(client, seen, &topic), *seen, "{filter}");
        }
    });
}

/// Returns the next message of this scenario. An external broker has other publishers too.
fn next_of_ours(client: &mut Client, end: &str, hidden: &str) -> String {
    loop {
        let topic = client.message().topic;
        if topic == end || topic == hidden {
            return topic;
        }
    }
}

/// 4.7.2 holds for retained messages too.
#[test]
fn root_wildcards_fetch_no_retained_dollar_topics() {
    every_version(|b| {
        let name = b.topic("x").replace('/', "");
        let topic = format!("${name}/kept");
        let mut publisher = b.connect("publisher");
        publisher.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        let mut wild = b.connect("wild");
        wild.subscribe("+/kept", QOS_0);
        wild.nothing();
        let mut exact = b.connect("exact");
        exact.subscribe(&format!("${name}/+"), QOS_0);
        assert_eq!(exact.message().text(), "kept");
        publisher.publish_message(Message::new(&topic, "", QOS_1).retained());
    });
}

/// A filter that begins with `$` matches no other topics.
#[test]
fn dollar_filters_see_dollar_topics_only() {
    every_version(|b| {
        let name = b.topic("x").replace('/', "");
        let mut client = b.connect("a");
        client.subscribe(&format!("${name}/#"), QOS_0);
        client.publish(&format!("{name}/a"), "x", QOS_0);
        client.publish(&format!("${name}x/a"), "x", QOS_0);
        client.nothing_of_its_own();
        // Elsewhere in a topic, `$` is an ordinary character.
        client.subscribe(&b.topic("+/a"), QOS_0);
        client.publish(&b.topic("$b/a"), "x", QOS_0);
        assert_eq!(client.message().topic, b.topic("$b/a"));
    });
}

/// 4.7.2, non-normative: the server publishes its own state under $SYS.
#[test]
fn the_server_publishes_its_state_under_sys() {
    v5_with(
        |settings| settings.sys.interval = Duration::from_secs(1),
        |b| {
            for version in Version::ALL {
                let mut client = b.connect_as(version, "a");
                client.subscribe("$SYS/#", QOS_0);
                let first = client.message();
                assert!(first.topic.starts_with("$SYS/"), "{first:?}");
                // It repeats them.
                while client.message().topic != first.topic {}
                client.unsubscribe(&["$SYS/#"]);
            }
            let mut wild = b.connect("wild");
            wild.subscribe("#", QOS_0);
            std::thread::sleep(Duration::from_millis(1500));
            wild.nothing();
        },
    );
}

/// 4.7.2, non-normative: only the server publishes under $SYS.
#[test]
fn clients_do_not_publish_under_sys() {
    every_version(|b| {
        let topic = format!("$SYS/{}", b.topic("t"));
        let mut witness = b.connect("witness");
        witness.subscribe(&topic, QOS_0);
        let mut client = b.connect("a");
        client.send_message(&Message::new(&topic, "fake", QOS_0).retained());
        // The server may ignore the message or close the connection.
        client.send_ping();
        while !matches!(client.recv(), Received::PingResp | Received::Closed) {}
        let mut publisher = b.connect("publisher");
        witness.nothing_from(&mut publisher);
    });
}
