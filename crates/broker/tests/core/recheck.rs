//! Changes of the access rules: subscriptions that are no longer allowed end, and clients that may not be connected any
//! more are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use broker::access::{
    Access, Action, AllowAll, AuthReply, AuthResult, Credentials, Identity, Permission, RetryAuthorize,
};
use broker::settings::Settings;
use broker::{Node, Time, Worker};
use mqtt::{
    Connect, Packet, PacketId, Properties, Publish, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFiltersBuf, SubscriptionOptions, Version,
};

/// Access control of these tests. Topics may be read as long as the generation of the rules is even, `free` always, and
/// `until N` until the rules have changed N times. Every client is admitted. Once it is shut, clients whose identifier
/// ends with 7 may not be connected.
#[derive(Default)]
struct Door {
    generation: AtomicU64,
    is_shut: AtomicBool,
    revocations: AtomicU64,
    asked: AtomicUsize,
    /// The rules change once more while the next question is answered under the present ones.
    changes_meanwhile: AtomicBool,
}

impl Access for Door {
    fn authenticate(&self, of: Credentials<'_>, later: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        AllowAll.authenticate(of, later)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        _: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let allowed = match topic.strip_prefix("until ") {
            Some(changes) => changes.parse().is_ok_and(|changes: u64| self.generation() < changes),
            None => topic == "free" || self.generation().is_multiple_of(2),
        };
        if self.changes_meanwhile.swap(false, Ordering::Relaxed) {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
        Some(Permission { allowed, lasting: true })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn revoked(&self, identity: Identity<'_>) -> Option<ReasonCode> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_gone = self.is_shut.load(Ordering::Relaxed) && identity.client_id.ends_with('7');
        is_gone.then_some(ReasonCode::Banned)
    }

    fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Relaxed)
    }
}

fn client(worker: &mut Worker, name: &str, clean_start: bool, filters: &[&str]) -> u32 {
    let slot = connect(worker, name, clean_start);
    subscribe(worker, slot, filters);
    worker.settle(Time(0));
    slot
}

fn connect(worker: &mut Worker, client_id: &str, clean_start: bool) -> u32 {
    let slot = worker.open(Time(0), None).slot;
    let (will, username, password) = (None, None, None);
    let (version, bridge, keep_alive, properties) = (Version::V3_1_1, false, 0, Properties::default());
    let connect =
        Connect { version, bridge, clean_start, keep_alive, client_id, will, username, password, properties };
    send(worker, slot, &Packet::Connect(connect));
    worker.settle(Time(0));
    slot
}

/// Subscribes; the store has not answered yet.
fn subscribe(worker: &mut Worker, slot: u32, filters: &[&str]) {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let mut list = SubscribeFiltersBuf::default();
    for filter in filters {
        list.push(filter, options);
    }
    let (packet_id, properties) = (PacketId::new(1).expect("not 0"), Properties::default());
    send(worker, slot, &Packet::Subscribe(Subscribe { packet_id, properties, filters: list.as_filters() }));
}

fn publish(worker: &mut Worker, slot: u32, topic: &str) {
    let (dup, qos, retain, packet_id) = (false, QoS::AtMostOnce, false, None);
    let (properties, payload) = (Properties::default(), &b"x"[..]);
    send(worker, slot, &Packet::Publish(Publish { dup, qos, retain, topic, packet_id, properties, payload }));
    worker.settle(Time(0));
}

fn send(worker: &mut Worker, slot: u32, packet: &Packet<'_>) {
    let mut bytes = Vec::new();
    assert!(packet.encode(Version::V3_1_1, &mut bytes));
    assert_eq!(worker.receive(Time(0), slot, &bytes).consumed, bytes.len());
}

fn door() -> (Arc<Door>, Arc<Node>, Worker) {
    let door = Arc::new(Door::default());
    let node = Node::new(Settings::default(), door.clone(), "test".into(), 1, [3; 16]);
    let worker = node.build_workers().remove(0);
    (door, node, worker)
}

fn pass_some_seconds(worker: &mut Worker) {
    for second in 1..5 {
        worker.tick(Time(second * 1_000));
        worker.settle(Time(second * 1_000));
    }
}

#[test]
fn an_answer_of_older_rules_is_not_remembered_as_one_of_newer_rules() {
    let (door, _, mut worker) = door();
    let slot = connect(&mut worker, "publisher", true);
    door.changes_meanwhile.store(true, Ordering::Relaxed);
    publish(&mut worker, slot, "a");
    assert_eq!(worker.counters().publish_denied, 0, "the question was asked under the older rules");
    publish(&mut worker, slot, "a");
    assert_eq!(worker.counters().publish_denied, 1);
}

/// The check of all connections does not find the subscription, because it does not exist yet.
#[test]
fn a_subscription_is_checked_again_when_the_rules_change_before_the_store_has_it() {
    let (door, node, mut worker) = door();
    let slot = connect(&mut worker, "durable", false);
    subscribe(&mut worker, slot, &["c/+", "$share/group/d", "free"]);
    door.generation.store(1, Ordering::Relaxed);
    pass_some_seconds(&mut worker);
    assert_eq!(node.routes.len(), 2, "`free`, of the session and of its connection at QoS 0");
    assert_eq!(worker.counters().subscribe_denied, 2);
    worker.check_invariants();
}

#[test]
fn a_session_that_was_absent_when_the_rules_changed_loses_forbidden_subscriptions() {
    let (door, node, mut worker) = door();
    let slot = client(&mut worker, "durable", false, &["c/+", "$share/group/d", "free"]);
    worker.lost(Time(0), slot);
    worker.settle(Time(0));
    door.generation.store(1, Ordering::Relaxed);
    pass_some_seconds(&mut worker);
    connect(&mut worker, "durable", false);
    assert_eq!(node.routes.len(), 2, "`free`, of the session and of its connection at QoS 0");
    worker.check_invariants();
}

#[test]
fn subscriptions_that_are_no_longer_allowed_end() {
    let (door, node, mut worker) = door();
    client(&mut worker, "ephemeral", true, &["a/#", "$share/group/b", "free"]);
    client(&mut worker, "durable", false, &["c/+", "$share/group/d", "free"]);
    let routes = node.routes.len();
    worker.tick(Time(1_000));
    worker.settle(Time(1_000));
    assert_eq!(node.routes.len(), routes, "nothing ends while the rules stay");

    door.generation.store(1, Ordering::Relaxed);
    for round in 2..5 {
        worker.tick(Time(round * 1_000));
        worker.settle(Time(round * 1_000));
    }
    // `free` is left: of the connection, of the durable session's shard, and of its connection at QoS 0.
    assert_eq!(node.routes.len(), 3);
    assert_eq!(worker.counters().subscribe_denied, 4);
    worker.check_invariants();
}

/// Clients that were checked under the rules in between are checked again, and so are those that were not.
#[test]
fn all_connections_are_checked_under_the_last_rules_although_they_change_meanwhile() {
    let (door, node, mut worker) = door();
    for number in 0..2_500 {
        client(&mut worker, &format!("c{number}"), true, &["free", "until 1", "until 2"]);
    }
    let mut tick = |milliseconds, changes| {
        door.generation.fetch_add(changes, Ordering::Relaxed);
        worker.tick(Time(milliseconds));
        worker.settle(Time(milliseconds));
        (worker.counters().subscribe_denied, worker.next_timeout() <= Time(milliseconds + 10))
    };
    assert_eq!(tick(1_000, 0), (0, false), "no client is checked while the rules stay");
    assert_eq!(tick(2_000, 1), (1_000, true));
    // The second change: the first thousand lose another, the others both.
    assert_eq!(tick(2_010, 1), (2_000, true));
    assert_eq!(tick(2_020, 0), (4_000, true));
    assert_eq!(tick(2_030, 0), (5_000, false));
    assert_eq!(node.routes.len(), 2_500, "each has `free`");
    assert_eq!(tick(3_000, 0), (5_000, false));
    worker.check_invariants();
}

/// Ten thousand bans that arrive at once cause one check of each client, in steps.
#[test]
fn a_check_of_all_clients_is_completed_whatever_changes_meanwhile() {
    let (door, _, mut worker) = door();
    for number in 0..2_500 {
        client(&mut worker, &format!("c{number}"), true, &["t"]);
    }
    let mut tick = |milliseconds, more| {
        door.revocations.fetch_add(more, Ordering::Relaxed);
        worker.tick(Time(milliseconds));
        worker.settle(Time(milliseconds));
        (door.asked.load(Ordering::Relaxed), worker.counters().kicked)
    };
    assert_eq!(tick(1_000, 0), (0, 0), "no client is checked while nothing changes");
    door.is_shut.store(true, Ordering::Relaxed);
    assert_eq!(tick(2_000, 10_000), (1_000, 100));
    assert_eq!(tick(2_010, 1), (2_000, 200));
    assert_eq!(tick(2_020, 1), (2_500, 250));
    // This is the check for the changes that arrived meanwhile.
    assert_eq!(tick(3_020, 0), (3_400, 250));
    tick(3_030, 0);
    assert_eq!(tick(3_040, 0), (4_750, 250));
    assert_eq!(tick(5_000, 0), (4_750, 250));
    worker.check_invariants();
}
