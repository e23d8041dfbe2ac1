//! Golden bytes of every command and every part, so that every later version reads a log of today.
//!
//! An encoding that is in a fixture never changes. A new one gets another version and its own fixtures.
//! `MERIDIAN_BLESS=1` writes fixtures that are missing.

#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use mqtt::{PacketId, QoS};
use shard::{
    Acknowledgement, Answer, BatchBuilder, Claim, Command, Effect, Enqueue, Filter, Identity, Limits,
    MessageKey, MessageView, NodeIncarnation, QueueFull, QueueLimits, RequestNumber, Rewrite, SessionUid,
    Shard, ShardId, ShardSet, WalkStep, Will, WillFate,
};
use support::{Host, restore};

fn message() -> MessageView<'static> {
    MessageView {
        topic: "a/ü",
        properties: &[3, 0, 1, b'x'],
        payload: b"payload",
        qos: QoS::ExactlyOnce,
        retain: true,
        expires: 70_000,
        received: 60_000,
        publisher_key: 0x0102_0304_0506_0708,
    }
}

fn commands() -> Vec<(&'static str, Command<'static>)> {
    let session = SessionUid::from_u64(5 << 24 | 3);
    let (epoch, packet_id) = (9, PacketId::new(513).expect("not 0"));
    let identity = Identity { origin: 0x1122_3344_5566_7788, number: 10 };
    let limits = Limits {
        queue_messages_max: 1000,
        queue_bytes_max: 16 << 20,
        queue_age_max_ms: 60_000,
        queue_full: QueueFull::DropNewest,
        absent_bytes_max: 1 << 20,
        subscriptions_max: 77,
    };
    let claim = Claim {
        client_id: "thermostat",
        user: 6,
        owner: None,
        connection: 0x00AA_BBCC_DDEE_FF00,
        clean_start: true,
        expiry_s: 3600,
        window: 20,
        will: Some(Will { message: message(), delay_s: 30 }),
        keeps_ephemeral: false,
        queue_limits: None,
    };
    let filters = vec![
        Filter { text: "a/+", options: 0x1D, id: 268_435_455 },
        Filter { text: "$share/g/#", options: 2, id: 0 },
    ];
    let enqueue = Enqueue {
        session,
        message: message(),
        qos: QoS::AtLeastOnce,
        retain: true,
        ids: vec![1, 2],
        identity: Some(identity),
        group: Some("$share/g/#"),
    };
    let rewrite = Rewrite {
        from: MessageKey::new(77, 1024),
        message: message(),
        entries: vec![(session, 4), (session, 5)],
        orphans: vec![8],
    };
    let acknowledge = |kind| Command::Acknowledge { session, epoch, packet_id, kind };
    let release = |expiry_s, will| Command::Release { session, epoch, expiry_s, will };
    vec![
        ("started", Command::Started { incarnation: 4, elapsed_ms: 5_000 }),
        ("configure", Command::Configure(limits)),
        ("tick", Command::Tick),
        ("sweep", Command::Sweep { count: 100 }),
        ("claim", Command::Claim(claim.clone())),
        ("claim-without-will", Command::Claim(Claim { will: None, clean_start: false, ..claim })),
        ("release", release(None, WillFate::Arm)),
        ("release-with-expiry", release(Some(60), WillFate::Discard)),
        ("end", Command::End { session }),
        ("subscribe", Command::Subscribe { session, epoch, filters }),
        ("unsubscribe", Command::Unsubscribe { session, epoch, filters: vec!["a/+", "b"] }),
        ("publish", Command::Publish { message: message(), wait: true, identity: None }),
        (
            "publish-with-identity",
            Command::Publish { message: message(), wait: false, identity: Some(identity) },
        ),
        ("forget", Command::Forget(identity)),
        ("forget-origin", Command::ForgetOrigin { origin: identity.origin }),
        ("enqueue", Command::Enqueue(enqueue.clone())),
        ("enqueue-plain", Command::Enqueue(Enqueue { ids: vec![], identity: None, group: None, ..enqueue })),
        ("acknowledge-puback", acknowledge(Acknowledgement::PubAck)),
        ("acknowledge-pubrec", acknowledge(Acknowledgement::PubRec)),
        ("acknowledge-pubrec-refused", acknowledge(Acknowledgement::PubRecRefused)),
        ("acknowledge-pubcomp", acknowledge(Acknowledgement::PubComp)),
        ("acknowledge-skip", acknowledge(Acknowledgement::Skip)),
        ("receive", Command::Receive { session, epoch, packet_id }),
        ("released", Command::Released { session, epoch, packet_id }),
        ("refuse", Command::Refuse { session, epoch, packet_id }),
        ("overdue", Command::Overdue { session }),
        ("retain", Command::Retain { message: message() }),
        ("will-done", Command::WillDone { id: 7 }),
        ("rewrite", Command::Rewrite(rewrite)),
        ("orphan-done", Command::OrphanDone { id: 8 }),
        ("walk-begin", Command::Walk { session, filter: "a/+", step: WalkStep::Begin }),
        ("walk-begin-if-new", Command::Walk { session, filter: "a/+", step: WalkStep::BeginIfNew }),
        (
            "walk-at",
            Command::Walk { session, filter: "a/+", step: WalkStep::At { done: done(), after: "a/ü" } },
        ),
        ("walk-end", Command::Walk { session, filter: "a/+", step: WalkStep::End }),
    ]
}

/// Shards that a walk has done: bytes 0x05 and 0x01.
fn done() -> ShardSet {
    [0, 2, 8].into_iter().map(ShardId).collect()
}

/// Commands of nodes of a cluster.
fn commands_of_nodes() -> Vec<(&'static str, Command<'static>)> {
    let owner = NodeIncarnation { node: 0x0011_0022_0033_0044, incarnation: 0x0055_0066_0077_0088 };
    let claim = Claim {
        owner: Some(owner),
        will: Some(Will { message: message(), delay_s: 30 }),
        ..support::claim("thermostat")
    };
    vec![("claim-of-a-node", Command::Claim(claim)), ("node-ended", Command::NodeEnded(owner))]
}

const QUEUE_LIMITS: QueueLimits = QueueLimits {
    messages_max: 0x0102_0304,
    bytes_max: 0x0506_0708_090A_0B0C,
    age_max_ms: 60_000,
    full: QueueFull::DropNewest,
};

fn ephemeral_claim(owner: NodeIncarnation) -> Command<'static> {
    Command::Claim(Claim {
        owner: Some(owner),
        will: Some(Will { message: message(), delay_s: 30 }),
        expiry_s: 0,
        keeps_ephemeral: true,
        queue_limits: None,
        ..support::claim("thermostat")
    })
}

/// Commands of nodes of a cluster that may come again.
fn commands_with_numbers() -> Vec<(&'static str, Command<'static>, RequestNumber)> {
    let owner = NodeIncarnation { node: 0x0011_0022_0033_0044, incarnation: 0x0055_0066_0077_0088 };
    let number = 0x0102_0304_0506_0708;
    let claim = |command: Command<'static>| match command {
        Command::Claim(claim) => Command::Claim(Claim { owner: Some(owner), ..claim }),
        other => other,
    };
    let numbered = |(name, command): (&'static str, Command<'static>)| {
        let number = match command {
            Command::Claim(_) => RequestNumber::Claim { number },
            Command::Publish { .. }
            | Command::Retain { .. }
            | Command::RetainIfLater { .. }
            | Command::Enqueue(_)
            | Command::Forget(_)
            | Command::ForgetOrigin { .. } => RequestNumber::Lane { owner, lane: 63, number },
            Command::Release { .. }
            | Command::Subscribe { .. }
            | Command::Unsubscribe { .. }
            | Command::Acknowledge { .. }
            | Command::Receive { .. }
            | Command::Released { .. }
            | Command::Refuse { .. }
            | Command::Walk { .. } => RequestNumber::Connection { epoch: 9, number },
            _ => return None,
        };
        Some((name, claim(command), number))
    };
    commands().into_iter().filter_map(numbered).collect()
}

#[test]
fn the_bytes_of_commands_never_change() {
    let plain = |commands: Vec<(&'static str, Command<'static>)>| {
        commands.into_iter().map(|(name, command)| (name, command, None)).collect::<Vec<_>>()
    };
    check_commands("commands.txt", &plain(commands()));
    check_commands("commands_of_nodes.txt", &plain(commands_of_nodes()));
    let owner = NodeIncarnation { node: 0x0011_0022_0033_0044, incarnation: 0x0055_0066_0077_0088 };
    let ephemeral = vec![("ephemeral-claim", ephemeral_claim(owner))];
    check_commands("commands_of_ephemeral_sessions.txt", &plain(ephemeral));
    let with_limits = Claim { queue_limits: Some(QUEUE_LIMITS), ..support::claim("$bridge/plant") };
    check_commands(
        "commands_with_limits.txt",
        &plain(vec![("claim-with-limits", Command::Claim(with_limits))]),
    );
    let later = vec![("retain-if-later", Command::RetainIfLater { message: message() })];
    check_commands("commands_of_links.txt", &plain(later));
    let below = Command::ForgetBelow(Identity { origin: 0x1122_3344_5566_7788, number: 10 });
    let number = RequestNumber::Lane { owner, lane: 63, number: 7 };
    let below = [("forget-below", below.clone(), None), ("forget-below-again", below, Some(number))];
    check_commands("commands_with_floors.txt", &below);
    let with_numbers = commands_with_numbers().into_iter();
    let with_numbers = with_numbers.map(|(name, command, number)| (name, command, Some(number)));
    check_commands("commands_with_numbers.txt", &with_numbers.collect::<Vec<_>>());
}

fn check_commands(file: &str, commands: &[(&'static str, Command<'_>, Option<RequestNumber>)]) {
    let batch = |command: &Command<'_>, number: &Option<RequestNumber>| {
        let mut builder = BatchBuilder::new(0x0011_2233_4455_6677);
        match number {
            Some(number) => builder.push_numbered(command, *number),
            None => builder.push(command),
        };
        builder.finish()
    };
    let written = commands.iter();
    let written =
        written.map(|(name, command, number)| ((*name).to_owned(), batch(command, number))).collect();
    let fixtures = fixtures(file, &written);
    for (name, command, number) in commands {
        let bytes = fixtures.get(*name).unwrap_or_else(|| panic!("no fixture of {name}"));
        assert_eq!(shard::commands(bytes).as_deref(), Ok(&[command.clone()][..]), "{name} is read");
        assert_eq!(shard::request_numbers(bytes).as_deref(), Ok(&[*number][..]), "{name} is read");
        assert_eq!(hex(&written[*name]), hex(bytes), "{name} is written");
    }
}

/// Creates a state in which every field of every part has a value.
fn host() -> Host {
    let limits = Limits { queue_messages_max: 3, ..Limits::default() };
    let mut host = Host::with(limits);
    host.now = 5_000;
    let claim = |client_id| Claim {
        will: Some(Will { message: message(), delay_s: 40 }),
        window: 3,
        ..support::claim(client_id)
    };
    let owner = host.claim_as(&claim("thermostat"));
    let away = host.claim_as(&claim("away"));
    let lost = host.claim_as(&Claim { expiry_s: 0, ..claim("away") });
    assert_eq!(lost.0, away.0);
    host.subscribe(owner, "a/+", 2 | 8);
    host.subscribe(owner, "$share/g/b", 1);
    let id = |value| PacketId::new(value).expect("not 0");
    let (session, epoch) = owner;
    host.answer(&Command::Receive { session, epoch, packet_id: id(70) });
    host.answer(&Command::Released { session, epoch, packet_id: id(70) });
    host.answer(&Command::Receive { session, epoch, packet_id: id(1) });
    let enqueue = |session, topic, group, number| {
        let message = MessageView { topic, ..message() };
        let identity = Some(Identity { origin: 6, number });
        let (qos, ids) = (QoS::AtLeastOnce, vec![7, 8]);
        Command::Enqueue(Enqueue { session, message, qos, retain: true, ids, identity, group })
    };
    for number in 0..7 {
        host.answer(&enqueue(session, "x", (number % 2 == 0).then_some("$share/g/b"), number));
    }
    host.ack(owner, 2, Acknowledgement::PubAck);
    host.answer(&enqueue(away.0, "y", Some("$share/g/b"), 9));
    host.publish("a/1");
    host.release(lost);
    host.answer(&Command::Retain { message: message() });
    let elapsed_ms = 1_000;
    host.answer(&Command::Started { incarnation: 3, elapsed_ms });
    host
}

/// Nodes of a cluster give the part of the rest another version.
#[test]
fn the_bytes_of_parts_with_nodes_never_change() {
    let mut host = Host::with(Limits::default());
    host.now = 5_000;
    let of = |node| Some(NodeIncarnation { node, incarnation: node + 10 });
    host.claim("alone");
    let owner = host.claim_as(&Claim { owner: of(7), ..support::claim("thermostat") });
    host.claim_as(&Claim { owner: of(9), ..support::claim("away") });
    for node in [9, 11] {
        host.answer(&Command::NodeEnded(NodeIncarnation { node, incarnation: node + 10 }));
    }
    let restored = check_parts("parts_with_nodes.txt", &mut host);
    assert_eq!(restored.session(owner.0).expect("is there").owner_node(), of(7));
    assert!(restored.sweeping());
}

/// Numbers of requests give the parts that remember them other versions.
#[test]
fn the_bytes_of_parts_with_numbers_never_change() {
    let mut host = Host::with(Limits::default());
    host.now = 5_000;
    let owner = NodeIncarnation { node: 7, incarnation: 17 };
    let claim = |client_id| Command::Claim(Claim { owner: Some(owner), ..support::claim(client_id) });
    let session = host.claim_numbered(&claim("thermostat"), 0x0102_0304);
    let brief = Claim { owner: Some(owner), expiry_s: 0, ..support::claim("brief") };
    host.request(&Command::Claim(brief), RequestNumber::Claim { number: 3 });
    let of_other = NodeIncarnation { node: 9, incarnation: 19 };
    host.claim_as(&Claim { owner: Some(of_other), ..support::claim("away") });
    let walk = Command::Walk { session, filter: "a/+", step: WalkStep::Begin };
    host.request(&walk, RequestNumber::Connection { epoch: 1, number: 0x0506_0708 });
    for (lane, number) in [(0, 8), (2, 9)] {
        host.request(&support::publish("a"), RequestNumber::Lane { owner, lane, number });
    }
    let restored = check_parts("parts_with_numbers.txt", &mut host);
    assert_eq!(restored.session(session).expect("is there").last_number(), 0x0506_0708);
}

/// Identities that are forgotten for good give the part of the rest another version.
#[test]
fn the_bytes_of_parts_with_floors_never_change() {
    let mut host = Host::with(Limits::default());
    host.answer(&Command::ForgetBelow(Identity { origin: 0x0102, number: 9 }));
    host.answer(&Command::ForgetBelow(Identity { origin: 0x0304, number: 8 }));
    let restored = check_parts("parts_with_floors.txt", &mut host);
    assert!(restored.knows(Identity { origin: 0x0304, number: 7 }));
}

/// Refused messages that may come again give the part of the rest another version.
#[test]
fn the_bytes_of_parts_with_refusals_never_change() {
    let mut host = Host::with(Limits::default());
    let queue_limits = Some(QueueLimits { messages_max: 1, full: QueueFull::Refuse, ..QUEUE_LIMITS });
    let owner = host.claim_as(&Claim { window: 1, queue_limits, ..support::claim("$bridge/plant") });
    host.subscribe(owner, "a", 1);
    let publish = Command::Publish { message: support::view("a"), wait: true, identity: None };
    let number = |lane, number| {
        let owner = NodeIncarnation { node: 7, incarnation: 17 };
        RequestNumber::Lane { owner, lane, number }
    };
    host.publish("a");
    host.publish("a");
    let refused = Answer::Refused { session: owner.0 };
    for (lane, of_lane) in [(2, 0x0102), (2, 0x0304), (5, 6)] {
        assert_eq!(host.request(&publish, number(lane, of_lane)), refused);
    }
    host.answer(&Command::ForgetBelow(Identity { origin: 0x0102, number: 9 }));
    let mut restored = check_parts("parts_with_refusals.txt", &mut host);
    let mut builder = BatchBuilder::new(0);
    builder.push_numbered(&publish, number(2, 0x0102));
    let mut effects = Vec::new();
    restored.apply(restored.applied() + 1, &builder.finish(), &mut effects).expect("the next batch");
    assert_eq!(effects, [Effect::Answer { ordinal: 0, answer: Answer::PerhapsRefused }]);
}

/// Ephemeral sessions give their part another version.
#[test]
fn the_bytes_of_parts_with_ephemeral_sessions_never_change() {
    let mut host = Host::with(Limits::default());
    host.now = 5_000;
    let owner = NodeIncarnation { node: 7, incarnation: 17 };
    let Command::Claim(claim) = ephemeral_claim(owner) else { unreachable!("a Claim") };
    host.request(&Command::Claim(claim.clone()), RequestNumber::Claim { number: 3 });
    host.answer(&Command::Claim(Claim { client_id: "away", will: None, ..claim.clone() }));
    host.claim_as(&Claim { client_id: "durable", expiry_s: 60, ..claim });
    let restored = check_parts("parts_with_ephemerals.txt", &mut host);
    assert!(restored.ephemeral_of("thermostat").is_some_and(|it| it.has_will()));
}

/// A session with limits for its queue gives its part another version.
#[test]
fn the_bytes_of_parts_with_queue_limits_never_change() {
    let mut host = Host::with(Limits::default());
    host.claim_as(&Claim { queue_limits: Some(QUEUE_LIMITS), ..support::claim("$bridge/plant") });
    let restored = check_parts("parts_with_limits.txt", &mut host);
    let uid = restored.session_of("$bridge/plant").expect("is there");
    assert_eq!(restored.session(uid).expect("is there").queue_limits(), Some(QUEUE_LIMITS));
}

/// A session that waits for retained messages gives its part another version.
#[test]
fn the_bytes_of_parts_with_walks_never_change() {
    let mut host = Host::with(Limits::default());
    let owner = host.claim_as(&support::claim("thermostat"));
    host.subscribe(owner, "a/+", 1);
    let walk = |filter, step| Command::Walk { session: owner.0, filter, step };
    host.answer(&walk("a/+", WalkStep::At { done: done(), after: "a/ü" }));
    host.answer(&walk("b", WalkStep::BeginIfNew));
    let restored = check_parts("parts_with_walks.txt", &mut host);
    let walks: Vec<_> = restored.session(owner.0).expect("is there").walks().collect();
    assert_eq!(walks, [("a/+", done(), "a/ü"), ("b", ShardSet::EMPTY, "")]);
}

#[test]
fn the_bytes_of_parts_never_change() {
    let mut host = host();
    assert_eq!(
        (host.shard.orphans().count(), host.shard.due_wills().count()),
        (1, 1),
        "every part has contents"
    );
    let index = host.shard.applied();
    let mut restored = check_parts("parts.txt", &mut host);
    let sweep = {
        let mut builder = BatchBuilder::new(7_000);
        builder.push(&Command::Sweep { count: 10 });
        builder.finish()
    };
    let (mut one, mut other) = (Vec::new(), Vec::new());
    host.shard.apply(index + 1, &sweep, &mut one).expect("the next");
    restored.apply(index + 1, &sweep, &mut other).expect("the next");
    assert!(one == other && one.len() > 1, "{one:?}");
}

/// Checks that a checkpoint of the host is written as in the fixture. Returns what is restored from that.
fn check_parts(file: &str, host: &mut Host) -> Shard {
    let index = host.shard.applied();
    let parts = host.checkpoint();
    let written = parts.iter().map(|(part, bytes)| (part.as_u32().to_string(), bytes.clone())).collect();
    let fixtures = fixtures(file, &written);
    for (part, bytes) in &written {
        assert_eq!(fixtures.get(part).map(|bytes| hex(bytes)), Some(hex(bytes)), "part {part} is written");
    }
    assert_eq!(fixtures.len(), parts.len());
    let read: Vec<_> = fixtures
        .iter()
        .map(|(part, bytes)| (shard::PartId::from_u32(part.parse().expect("a number")), bytes.clone()))
        .collect();
    let restored: Shard = restore(&read, index);
    assert_eq!(restored.digest(), host.shard.digest());
    restored
}

type Fixtures = BTreeMap<String, Vec<u8>>;

/// Reads a fixture file: names, each followed by lines of hexadecimal digits.
fn fixtures(file: &str, written: &Fixtures) -> Fixtures {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("MERIDIAN_BLESS").is_some() && !path.exists() {
        let text: String = written.iter().map(|(name, bytes)| format!("{name}\n{}", hex(bytes))).collect();
        std::fs::write(&path, text).expect("the fixture is written");
    }
    let text = std::fs::read_to_string(&path).expect("the fixture is there");
    let mut fixtures = Fixtures::new();
    let mut name = String::new();
    for line in text.lines() {
        match line.strip_prefix("  ") {
            None => name = line.to_owned(),
            Some(digits) => {
                let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
                let bytes = (0..digits.len()).step_by(2).map(byte);
                fixtures.entry(name.clone()).or_default().extend(bytes);
            }
        }
    }
    fixtures
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(48) {
        text.push_str("  ");
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("memory"));
        text.push('\n');
    }
    text
}
