//! Attacks by clients that want more than they are allowed: one node behind its access control, without sockets.
//! docs/threat-model.md lists them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use auth::Guard;
use auth::settings::Auth;
use broker::settings::Settings;
use broker::{Batch, Node, Time, Worker, WorkerCommand, WorkerId};
use mqtt::{
    Connect, Packet, PacketId, PropertiesBuf, Property, Publish, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFiltersBuf, SubscriptionOptions, TopicFilter, Version, Will, decode, frame,
};

const RULES: &str = "\
deny  everyone   all       secret/#
allow user alice all       home/alice/# public/#
allow user bob   publish   home/bob/# retain no
allow user bob   subscribe home/bob/# public/#
allow everyone   all       dev/${clientid}/#
";

/// Node with two users, and the commands that threads of the guard send to it.
struct TestBroker {
    worker: Worker,
    mailbox: Receiver<(WorkerId, WorkerCommand)>,
    directory: PathBuf,
}

/// Slot of a client.
#[derive(Clone, Copy)]
struct Client(u32);

const NOW: Time = Time(1_000);

/// Content of a client's CONNECT.
#[derive(Clone, Copy, Default)]
struct Says<'a> {
    client_id: &'a str,
    user: &'a str,
    will: Option<Will<'a>>,
}

impl TestBroker {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("meridian-attacks-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (users, rules) = (directory.join("users"), directory.join("rules"));
        let mut file = auth::PasswordFileEdit::default();
        for user in ["alice", "bob", "$SYS", "+", "home/alice"] {
            // A cheap hash is sufficient for a test.
            file.set(user, &auth::PasswordHash::create(user.as_bytes()).expect("randomness"));
        }
        file.write(&users).expect("written");
        std::fs::write(&rules, RULES).expect("written");
        let settings =
            Auth { password_file: Some(users), rules_file: Some(rules), workers: 1, ..Auth::default() };
        let guard = Guard::open(&settings).expect("good files");
        let node = Node::new(Settings::default(), Arc::new(guard), "test".into(), 1, [3; 16]);
        let (send, mailbox) = channel();
        node.set_mailbox(move |worker, command| {
            // No receiver exists any more when a test has finished.
            let _ = send.send((worker, command));
        });
        Self { worker: node.build_workers().remove(0), mailbox, directory }
    }

    fn connecting(&mut self, says: Says<'_>) -> (Client, ReasonCode) {
        let client = Client(self.worker.open(NOW, None).slot);
        self.send(
            client,
            &Packet::Connect(Connect {
                version: Version::V5,
                bridge: false,
                clean_start: false,
                keep_alive: 0,
                client_id: says.client_id,
                will: says.will,
                username: Some(says.user),
                password: Some(says.user.as_bytes()),
                properties: PropertiesBuf::from_iter([Property::SessionExpiryInterval(60)]).as_properties(),
            }),
        );
        loop {
            match &self.received(client)[..] {
                [] => {}
                [Answer::ConnAck(reason)] => return (client, *reason),
                other => panic!("{other:?}"),
            }
            let (_, command) = self.mailbox.recv_timeout(Duration::from_secs(60)).expect("an answer");
            self.worker.take_batch(NOW, &mut Batch::of(command));
            self.worker.settle(NOW);
        }
    }

    fn connect(&mut self, client_id: &str, user: &str) -> Client {
        let (client, reason) = self.connecting(Says { client_id, user, ..Says::default() });
        assert_eq!(reason, ReasonCode::Success, "{user}");
        client
    }

    fn send(&mut self, client: Client, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(Version::V5, &mut bytes));
        self.worker.receive(NOW, client.0, &bytes);
        self.worker.settle(NOW);
    }

    fn received(&mut self, client: Client) -> Vec<Answer> {
        let out = self.worker.output(client.0).expect("the connection exists");
        let mut answers = Vec::new();
        while !out.is_empty() {
            let bytes = out.pending().to_vec();
            out.advance(bytes.len());
            let mut rest = &bytes[..];
            while let Some(length) = frame(rest, u32::MAX).expect("packets") {
                answers.push(Answer::of(&decode(Version::V5, &rest[..length]).expect("a packet")));
                rest = &rest[length..];
            }
        }
        self.worker.written(NOW, client.0);
        answers
    }

    /// Returns the Reason Codes of SUBACK.
    fn subscribe(&mut self, client: Client, filters: &[&str]) -> Vec<ReasonCode> {
        let options = SubscriptionOptions {
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        };
        let mut list = SubscribeFiltersBuf::default();
        for filter in filters {
            list.push(filter, options);
        }
        let packet_id = PacketId::new(1).expect("not 0");
        let properties = mqtt::Properties::default();
        self.send(
            client,
            &Packet::Subscribe(Subscribe { packet_id, properties, filters: list.as_filters() }),
        );
        match &self.received(client)[..] {
            [Answer::SubAck(reasons)] => reasons.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the Reason Code of PUBACK.
    fn publish(&mut self, client: Client, topic: &str, alias: Option<u16>, retain: bool) -> ReasonCode {
        let properties = PropertiesBuf::from_iter(alias.map(Property::TopicAlias));
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain,
            topic,
            packet_id: PacketId::new(7),
            properties: properties.as_properties(),
            payload: b"x",
        };
        self.send(client, &Packet::Publish(publish));
        match &self.received(client)[..] {
            [Answer::PubAck(reason)] => *reason,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    ConnAck(ReasonCode),
    SubAck(Vec<ReasonCode>),
    PubAck(ReasonCode),
    Publish(String),
    Other(String),
}

impl Answer {
    fn of(packet: &Packet<'_>) -> Self {
        match packet {
            Packet::ConnAck(connack) => Self::ConnAck(connack.reason),
            Packet::SubAck(suback) => {
                let reason = |byte: &u8| ReasonCode::try_from(*byte).expect("a Reason Code");
                Self::SubAck(suback.reasons.iter().map(reason).collect())
            }
            Packet::PubAck(ack) => Self::PubAck(ack.reason),
            Packet::Publish(publish) => Self::Publish(publish.topic.to_owned()),
            other => Self::Other(format!("{other:?}")),
        }
    }
}

const GRANTED: ReasonCode = ReasonCode::Success;
const DENIED: ReasonCode = ReasonCode::NotAuthorized;

#[test]
fn wildcards_do_not_extend_access_beyond_the_rules() {
    let mut test_broker = TestBroker::new("wildcards");
    let bob = test_broker.connect("b", "bob");
    for filter in
        ["#", "+/#", "home/#", "home/+/x", "+/bob/#", "secret/#", "secret/+", "+/secret", "dev/#", "dev/+/x"]
    {
        assert_eq!(test_broker.subscribe(bob, &[filter]), [DENIED], "{filter}");
    }
    assert_eq!(test_broker.subscribe(bob, &["home/bob/#", "home/bob/+/x", "public/#"]), [GRANTED; 3]);
    let alice = test_broker.connect("a", "alice");
    test_broker.publish(alice, "home/alice/door", None, false);
    test_broker.publish(alice, "public/news", None, false);
    assert_eq!(test_broker.received(bob), [Answer::Publish("public/news".into())]);
}

/// Neither a share name nor the `$SYS` tree bypasses the rules.
#[test]
fn rules_apply_to_shared_subscriptions_and_sys() {
    let mut test_broker = TestBroker::new("shared");
    let bob = test_broker.connect("b", "bob");
    for filter in [
        "$share/g/#",
        "$share/g/secret/x",
        "$share/home/alice/#",
        "$share/g/$SYS/#",
        "$SYS/#",
        "$SYS/broker/version",
    ] {
        assert_eq!(test_broker.subscribe(bob, &[filter]), [DENIED], "{filter}");
    }
    assert_eq!(test_broker.subscribe(bob, &["$share/g/public/#"]), [GRANTED]);
    for topic in ["$SYS/broker/version", "$SYS", "$share/g/public/x"] {
        assert_eq!(test_broker.publish(bob, topic, None, false), DENIED, "{topic}");
    }
}

/// A name that is a wildcard does not widen `${clientid}`, and a name with several levels does not move it.
#[test]
fn a_client_identifier_does_not_widen_the_rules() {
    for client_id in ["+", "#", "../bob", "x/y", "$share"] {
        let mut test_broker = TestBroker::new("names");
        let client = test_broker.connect(client_id, "bob");
        let own = format!("dev/{client_id}/#");
        // An ill-formed filter closes the connection.
        let own = Some(&*own).filter(|own| TopicFilter::parse(own).is_ok());
        for filter in own.into_iter().chain(["dev/+/#", "dev/#", "dev/x/y/#"]) {
            let reasons = test_broker.subscribe(client, &[filter]);
            // `$` is an ordinary character there, so this one has a level of its own.
            let is_own = filter == "dev/$share/#";
            assert_eq!(reasons[0].is_error(), !is_own, "{client_id}: {filter}");
        }
        assert_eq!(test_broker.publish(client, "dev/other/x", None, false), DENIED, "{client_id}");
    }
    let mut test_broker = TestBroker::new("names-plain");
    let client = test_broker.connect("c1", "bob");
    assert_eq!(test_broker.subscribe(client, &["dev/c1/#", "dev/c2/#"]), [GRANTED, DENIED]);
}

#[test]
fn nothing_is_retained_without_permission() {
    let mut test_broker = TestBroker::new("retained");
    let bob = test_broker.connect("b", "bob");
    assert_eq!(test_broker.publish(bob, "home/bob/x", None, true), DENIED);
    assert_ne!(test_broker.publish(bob, "home/bob/x", None, false), DENIED);
    assert_eq!(test_broker.subscribe(bob, &["home/bob/x"]), [GRANTED]);
    assert_eq!(test_broker.received(bob), [], "nothing was retained");
}

#[test]
fn a_will_needs_the_permission_of_a_publish() {
    let mut test_broker = TestBroker::new("will");
    let will = |topic, retain| Will {
        qos: QoS::AtMostOnce,
        retain,
        topic,
        payload: b"gone",
        properties: mqtt::Properties::default(),
    };
    for (topic, retain, expected) in [
        ("secret/x", false, DENIED),
        ("home/alice/x", false, DENIED),
        ("public/x", false, DENIED),
        ("home/bob/x", true, DENIED),
        ("$SYS/x", false, DENIED),
        ("home/bob/x", false, GRANTED),
    ] {
        let will = Some(will(topic, retain));
        let (_, reason) = test_broker.connecting(Says { client_id: "b", user: "bob", will });
        assert_eq!(reason, expected, "{topic}");
    }
}

/// An alias is checked as the topic that it stands for at that time.
#[test]
fn a_topic_alias_hides_no_topic() {
    let mut test_broker = TestBroker::new("alias");
    let bob = test_broker.connect("b", "bob");
    let alice = test_broker.connect("a", "alice");
    assert_eq!(test_broker.subscribe(alice, &["home/alice/#"]), [GRANTED]);
    // Allowed with its topic, then by alias; then the alias is set to a topic that is denied.
    assert_ne!(test_broker.publish(bob, "home/bob/x", Some(1), false), DENIED);
    assert_ne!(test_broker.publish(bob, "", Some(1), false), DENIED);
    assert_eq!(test_broker.publish(bob, "home/alice/x", Some(1), false), DENIED);
    assert_eq!(test_broker.publish(bob, "", Some(1), false), DENIED);
    // Denied at first and allowed later.
    assert_eq!(test_broker.publish(bob, "secret/x", Some(2), false), DENIED);
    assert_ne!(test_broker.publish(bob, "home/bob/y", Some(2), false), DENIED);
    assert_ne!(test_broker.publish(bob, "", Some(2), false), DENIED);
    assert_eq!(test_broker.received(alice), []);
}

/// A client that uses another's Client Identifier neither gets its session nor ends it.
#[test]
fn a_session_of_another_user_is_not_taken_over() {
    let mut test_broker = TestBroker::new("takeover");
    let alice = test_broker.connect("door", "alice");
    assert_eq!(test_broker.subscribe(alice, &["home/alice/#"]), [GRANTED]);
    let (_, reason) = test_broker.connecting(Says { client_id: "door", user: "bob", ..Says::default() });
    assert_eq!(reason, ReasonCode::ClientIdentifierNotValid);
    let other = test_broker.connect("other", "alice");
    test_broker.publish(other, "home/alice/x", None, false);
    assert_eq!(
        test_broker.received(alice),
        [Answer::Publish("home/alice/x".into())],
        "alice is still connected"
    );
    test_broker.worker.lost(NOW, alice.0);
    test_broker.worker.settle(NOW);
    let (_, reason) = test_broker.connecting(Says { client_id: "door", user: "bob", ..Says::default() });
    assert_eq!(reason, ReasonCode::ClientIdentifierNotValid, "alice's session is disconnected");
}

/// User names that look like filters are plain names.
#[test]
fn a_user_name_is_not_a_pattern() {
    for user in ["+", "$SYS", "home/alice"] {
        let mut test_broker = TestBroker::new("users");
        let client = test_broker.connect("c", user);
        assert_eq!(
            test_broker.subscribe(client, &["#", "home/alice/#", "$SYS/#", "secret/x"]),
            [DENIED; 4],
            "{user}"
        );
    }
}
