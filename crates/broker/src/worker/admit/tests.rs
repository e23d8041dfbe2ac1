//! CONNACK before the answer to the Claim. The node has no replica, and the test answers for the shards.

use std::time::Duration;

use mqtt::QoS;
use testkit::Endpoint;
use testkit::packets::{Connecting, Message, Sent, connack, goodbye, message, refused, subscribe, v3, v5};

use super::*;
use crate::access::{
    Access, Action, AllowAll, AuthReply, AuthResult, Credentials, Identity, Permission, RetryAuthorize,
};
use crate::ids::Time;
use crate::node::Node;
use crate::peers::Leader;
use crate::settings::Settings;
use crate::store::{Incarnation, SHARDS, Store, WillDisposition};
use crate::worker::Then;

const NOW: Time = Time(1_000);
const OWN: shard::NodeIncarnation = shard::NodeIncarnation { node: 1, incarnation: 7 };

struct Client {
    id: ConnectionId,
    endpoint: Endpoint,
    /// Bytes that the worker has not taken.
    unread: Vec<u8>,
    is_held: bool,
}

struct Scene {
    worker: Worker,
    clients: Vec<Client>,
}

impl Scene {
    /// A node that knows the leaders of all shards, and reaches a majority.
    fn new() -> Self {
        let mut scene = Self::without_leaders();
        let leader = Leader { node: 2, term: 1 };
        scene.worker.leaders_known((0..SHARDS).map(|shard| (ShardId(shard), leader)).collect());
        scene
    }

    fn without_leaders() -> Self {
        Self::guarded_by(Arc::new(AllowAll))
    }

    fn guarded_by(access: Arc<dyn Access>) -> Self {
        let mut settings = Settings::default();
        settings.sys.interval = Duration::ZERO;
        let store = Store {
            log: None,
            shards: Vec::new(),
            agreements: Vec::new(),
            own: Some(OWN),
            incarnation: Incarnation::default(),
            hash_key: [5; 16],
        };
        let node = Node::with_store(settings, access, "node".into(), 1, store);
        node.keep_ephemeral_sessions(true);
        node.overlap_connacks(true);
        node.set_fresh_until(Time(2_000));
        let worker = node.build_workers().pop().expect("one worker");
        Self { worker, clients: Vec::new() }
    }

    /// Opens a connection that sends these packets at once.
    fn open(&mut self, connect: Connecting, then: impl IntoIterator<Item = Sent>) -> usize {
        let id = self.worker.open(NOW, None);
        let endpoint = Endpoint::new(connect.version);
        self.clients.push(Client { id, endpoint, unread: Vec::new(), is_held: false });
        let at = self.clients.len() - 1;
        self.send(at, std::iter::once(connect.into()).chain(then));
        at
    }

    fn send(&mut self, at: usize, packets: impl IntoIterator<Item = Sent>) {
        let client = &mut self.clients[at];
        packets.into_iter().for_each(|packet| client.endpoint.write(&packet, &mut client.unread));
        if !client.is_held {
            self.offer(at);
        }
        self.run();
    }

    fn offer(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let received = self.worker.receive(NOW, client.id.slot, &client.unread);
        client.unread.drain(..received.consumed);
        client.is_held = received.then == Then::Hold;
    }

    fn run(&mut self) {
        for _ in 0..8 {
            self.worker.settle(NOW);
            let mut slots = Vec::new();
            self.worker.take_dirty(&mut slots);
            for slot in slots.drain(..) {
                let mut bytes = Vec::new();
                if let Some(out) = self.worker.output(slot) {
                    out.take(usize::MAX, &mut bytes);
                    self.worker.written(NOW, slot);
                }
                let client = self.clients.iter_mut().find(|client| client.id.slot == slot);
                client.expect("a client").endpoint.read(&bytes);
            }
            self.worker.take_woken(&mut slots);
            for slot in slots {
                let at = self.clients.iter().position(|client| client.id.slot == slot).expect("a client");
                self.clients[at].is_held = false;
                self.offer(at);
            }
            self.worker.end_turn();
        }
        self.worker.check_invariants();
    }

    /// Lets the shard give a connection its Client Identifier.
    fn claim(&mut self, at: usize) {
        let connection = self.clients[at].id;
        self.worker.claimed(Claimed::kept(connection));
        self.run();
    }

    fn refuse(&mut self, at: usize, reason: ReasonCode) {
        let connection = self.clients[at].id;
        self.worker.claim_refused(connection, reason);
        self.run();
    }

    fn received(&mut self, at: usize) -> Vec<Sent> {
        self.clients[at].endpoint.received()
    }

    /// A client that is served, with a subscription.
    fn reader(&mut self, filter: &str) -> usize {
        let reader =
            self.open(v5("reader"), [subscribe(1).to(filter, QoS::AtLeastOnce).level("local").into()]);
        self.claim(reader);
        assert_eq!(self.received(reader), [connack(false), suback(1)]);
        reader
    }

    /// Topics of the messages that a client gets.
    fn topics(&mut self, at: usize) -> Vec<String> {
        let of = |packet| match packet {
            Sent::Publish(message) => message.topic,
            other => panic!("{other:?}"),
        };
        self.received(at).into_iter().map(of).collect()
    }

    /// Topic Filters in the node's index.
    fn filters(&self) -> usize {
        self.worker.node.routes.own_len()
    }

    fn is_closed(&self, at: usize) -> bool {
        self.worker.is_closing(self.clients[at].id.slot)
    }
}

fn suback(packet_id: u16) -> Sent {
    Sent::SubAck(packet_id, vec![ReasonCode::GrantedQoS1])
}

fn qos0(topic: &str) -> Sent {
    Sent::Publish(Box::new(message(topic, "here")))
}

fn will() -> Message {
    message("wills", "gone")
}

/// [MQTT-3.2.2-2]: with Clean Start, CONNACK says nothing that depends on the Claim.
#[test]
fn connack_is_sent_before_the_answer_to_the_claim() {
    for connect in [v5("c"), v3("c"), v5("c").expiry(60)] {
        let mut scene = Scene::new();
        let client = scene.open(connect, [Sent::PingReq]);
        assert_eq!(scene.received(client), [connack(false)]);
        scene.claim(client);
        assert_eq!(scene.received(client), [Sent::PingResp]);
        assert_eq!(scene.worker.counters.connacks_early, 1);
    }
}

#[test]
fn connack_waits_if_the_answer_matters_or_may_take_long() {
    let resumes = |_: &mut Scene| v5("c").resumes();
    let is_stale = |scene: &mut Scene| {
        scene.worker.node.set_fresh_until(NOW);
        v5("c")
    };
    let is_off = |scene: &mut Scene| {
        scene.worker.node.overlap_connacks(false);
        v5("c")
    };
    let is_older = |scene: &mut Scene| {
        scene.worker.node.keep_ephemeral_sessions(false);
        v5("c")
    };
    type Prepare = fn(&mut Scene) -> Connecting;
    let cases: [(&str, Prepare); 4] =
        [("resumes", resumes), ("stale", is_stale), ("off", is_off), ("older cores", is_older)];
    for (name, prepare) in cases {
        let mut scene = Scene::new();
        let connect = prepare(&mut scene);
        let client = scene.open(connect, []);
        assert_eq!(scene.received(client), [], "{name}");
        scene.claim(client);
        assert_eq!(scene.received(client), [connack(false)], "{name}");
        assert_eq!(scene.worker.counters.connacks_early, 0, "{name}");
    }
    let mut scene = Scene::without_leaders();
    let client = scene.open(v5("c"), []);
    assert_eq!(scene.received(client), []);
}

/// [MQTT-3.2.0-2]: a client that is refused for want of room gets nothing but the refusal, and has no Will.
#[test]
fn claims_of_one_turn_share_the_room() {
    let mut scene = Scene::new();
    for number in 0.. {
        let name = format!("c{number}");
        if client_shard(fold(client_key(&name))) != ShardId(0) {
            continue;
        }
        let id = scene.worker.open(NOW, None);
        let mut endpoint = Endpoint::new(mqtt::Version::V5);
        let mut bytes = Vec::new();
        endpoint.write(&v5(&name).will(will()).into(), &mut bytes);
        scene.worker.receive(NOW, id.slot, &bytes);
        scene.clients.push(Client { id, endpoint, unread: Vec::new(), is_held: false });
        if scene.clients.len() == shard::CLAIMS_MAX + 2 {
            break;
        }
    }
    scene.run();
    for at in 0..shard::CLAIMS_MAX {
        assert_eq!(scene.received(at), [connack(false)]);
    }
    for at in shard::CLAIMS_MAX..shard::CLAIMS_MAX + 2 {
        assert_eq!(scene.received(at), [refused(ReasonCode::ServerBusy)]);
    }
    assert_eq!(scene.worker.counters.connacks_early, shard::CLAIMS_MAX as u64);
}

/// A client that leaves as soon as it has CONNACK, as `mosquitto_pub` does.
#[test]
fn what_a_client_has_sent_before_its_end_counts() {
    let mut scene = Scene::new();
    let reader = scene.reader("#");
    let client = scene.open(v5("c").will(will()), [qos0("t"), goodbye()]);
    assert_eq!(scene.received(client), [connack(false)]);
    assert!(scene.worker.defers_end(scene.clients[client].id.slot), "the end of its stream waits");
    assert_eq!(scene.topics(reader), Vec::<String>::new());
    scene.claim(client);
    assert_eq!(scene.topics(reader), ["t"], "DISCONNECT has deleted the Will");
    assert!(scene.is_closed(client) && !scene.worker.defers_end(scene.clients[client].id.slot));
}

/// The end of a stream wakes the connection after the answer, although nothing else arrives.
#[test]
fn the_end_of_a_stream_waits_for_the_answer() {
    let mut scene = Scene::new();
    let client = scene.open(v5("c"), []);
    let slot = scene.clients[client].id.slot;
    assert!(scene.worker.defers_end(slot));
    scene.worker.claimed(Claimed::kept(scene.clients[client].id));
    let mut woken = Vec::new();
    scene.worker.take_woken(&mut woken);
    assert_eq!(woken, [slot]);
    assert!(!scene.worker.defers_end(slot));
    scene.worker.lost(NOW, slot);
    assert!(scene.worker.is_closing(slot));
}

/// Other nodes learn the filter meanwhile. The client is not served before.
#[test]
fn a_subscribe_takes_effect_early_and_is_acknowledged_after_the_answer() {
    let mut scene = Scene::new();
    let publisher = scene.open(v5("publisher"), []);
    scene.claim(publisher);
    let client = scene.open(v5("c"), []);
    scene.send(client, [subscribe(1).to("t", QoS::AtLeastOnce).level("local").into()]);
    assert_eq!(scene.filters(), 1, "it is in the index");
    scene.send(publisher, [qos0("t")]);
    assert_eq!(scene.received(client), [connack(false)], "no message, no SUBACK");
    scene.send(client, [qos0("other"), Sent::PingReq]);
    assert_eq!(scene.received(client), []);
    scene.claim(client);
    assert_eq!(scene.received(client), [suback(1), Sent::PingResp]);
    scene.send(publisher, [qos0("t")]);
    assert_eq!(scene.topics(client), ["t"]);
}

#[test]
fn subscriptions_of_a_refused_client_are_removed() {
    let mut scene = Scene::new();
    let client = scene.open(v5("c"), [subscribe(1).to("t", QoS::AtLeastOnce).into()]);
    assert_eq!(scene.filters(), 1);
    scene.refuse(client, ReasonCode::QuotaExceeded);
    assert_eq!(scene.filters(), 0);
    let refused = Sent::Disconnect { reason: ReasonCode::QuotaExceeded, expiry: None };
    assert_eq!(scene.received(client), [connack(false), refused]);
}

/// Subscriptions of durable sessions are the shard's, and a group counts on its members.
#[test]
fn other_subscribes_wait_for_the_answer() {
    for (connect, filter) in [(v5("c").expiry(60), "t"), (v5("c"), "$share/g/t")] {
        let mut scene = Scene::new();
        let client = scene.open(connect, [subscribe(1).to(filter, QoS::AtLeastOnce).into()]);
        assert!(scene.clients[client].is_held && !scene.clients[client].unread.is_empty());
        assert_eq!(scene.filters(), 0);
    }
}

/// The Will of a Claim that was never applied is published like that of any connection that the node closes
/// [MQTT-3.1.2-8]. Otherwise the shard has it.
#[test]
fn a_client_with_connack_is_closed_with_the_reason() {
    let cases = [
        (ReasonCode::ClientIdentifierNotValid, ReasonCode::NotAuthorized),
        (ReasonCode::ServerUnavailable, ReasonCode::ServerBusy),
        (ReasonCode::SessionTakenOver, ReasonCode::SessionTakenOver),
    ];
    for (reason, said) in cases {
        let mut scene = Scene::new();
        let reader = scene.reader("#");
        let client = scene.open(v5("c").will(will()), [qos0("t")]);
        scene.refuse(client, reason);
        assert_eq!(scene.received(client), [connack(false), Sent::Disconnect { reason: said, expiry: None }]);
        assert_eq!(scene.topics(reader), ["wills"], "and nothing else of the client");
    }
    let mut scene = Scene::new();
    let reader = scene.reader("#");
    let client = scene.open(v5("c").will(will()), [qos0("t")]);
    scene.worker.revoke(scene.clients[client].id);
    scene.run();
    let taken_over = Sent::Disconnect { reason: ReasonCode::SessionTakenOver, expiry: None };
    assert_eq!(scene.received(client), [connack(false), taken_over]);
    assert_eq!(scene.topics(reader), Vec::<String>::new(), "the shard publishes the Will");
}

/// Remembers clients that were refused because they connect too often.
#[derive(Default)]
struct Flapped(std::sync::Mutex<Vec<String>>);

impl Access for Flapped {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        let principal = Principal { mountpoint: Some("acme/".into()), ..Principal::default() };
        let principal = Some(Arc::new(principal));
        Some(AuthResult::Admit(Box::new(Admission { principal, ..Admission::default() })))
    }

    fn guards_topics(&self) -> bool {
        false
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        _: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        Some(Permission { allowed: true, lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }

    fn flapped(&self, identity: Identity<'_>) {
        let mountpoint = identity.principal.and_then(|principal| principal.mountpoint.clone());
        self.0.lock().unwrap().push(format!("{} of {mountpoint:?}", identity.client_id));
    }
}

/// The leader of the shard does not know which part of the name is the mountpoint.
#[test]
fn a_client_that_flaps_between_nodes_is_reported_with_its_own_name() {
    let access = Arc::new(Flapped::default());
    let mut scene = Scene::guarded_by(access.clone());
    let client = scene.open(v5("dev1"), []);
    scene.refuse(client, ReasonCode::QuotaExceeded);
    assert_eq!(*access.0.lock().unwrap(), Vec::<String>::new());
    for connect in [v5("dev1"), v5("dev1").resumes()] {
        let client = scene.open(connect, []);
        scene.refuse(client, ReasonCode::Banned);
    }
    assert_eq!(*access.0.lock().unwrap(), ["dev1 of Some(\"acme/\")"; 2]);
}

/// The client has CONNACK, so it gets DISCONNECT [MQTT-3.2.0-2].
#[test]
fn an_operator_closes_a_client_whose_claim_is_not_answered() {
    let mut scene = Scene::new();
    let client = scene.open(v5("c"), []);
    let id = scene.clients[client].id;
    assert!(scene.worker.is_open(id.slot), "it has logged in");
    scene.worker.kick_connection(id, ReasonCode::AdministrativeAction, false);
    scene.run();
    let kicked = Sent::Disconnect { reason: ReasonCode::AdministrativeAction, expiry: None };
    assert_eq!(scene.received(client), [connack(false), kicked]);
}

/// Fate of the Will in the Release of a connection.
fn released(scene: &mut Scene) -> WillDisposition {
    let requests = scene.worker.outbox.take_requests();
    let [(_, Request::Release(release))] = &requests[..] else { panic!("{requests:?}") };
    release.will
}

/// [MQTT-3.1.2-8]: the other nodes go on when this one stops. A client that is drained is expected on another node.
#[test]
fn the_shard_publishes_the_wills_of_clients_of_a_node_that_stops() {
    for is_answered in [true, false] {
        let mut scene = Scene::new();
        let client = scene.open(v5("c").will(will()), []);
        if is_answered {
            scene.claim(client);
        }
        scene.worker.stop(NOW);
        assert_eq!(released(&mut scene), WillDisposition::Arm, "answered: {is_answered}");
    }
    for reason in [ReasonCode::UseAnotherServer, ReasonCode::ServerMoved] {
        let mut scene = Scene::new();
        let client = scene.open(v5("c").will(will()), []);
        scene.claim(client);
        scene.worker.close(scene.clients[client].id.slot, reason);
        assert_eq!(released(&mut scene), WillDisposition::Discard);
    }
}

/// Otherwise its missing bytes would be timed by nothing, and a large one would be read.
#[test]
fn an_incomplete_packet_is_kept_and_not_read_further() {
    let mut scene = Scene::new();
    let client = scene.open(v5("c"), []);
    assert!(!scene.clients[client].is_held, "a SUBSCRIBE may come");
    scene.clients[client].unread = vec![0x30, 0xff, 0xff, 0x7f, 0];
    scene.offer(client);
    assert!(scene.clients[client].is_held);
    scene.claim(client);
    assert!(!scene.clients[client].is_held, "it is timed now");
}

/// Two of them with one Packet Identifier are a protocol error, which may not come before the answer.
#[test]
fn a_subscribe_that_closes_the_connection_waits() {
    let mut scene = Scene::new();
    let twice =
        [subscribe(1).to("a", QoS::AtLeastOnce).into(), subscribe(1).to("b", QoS::AtLeastOnce).into()];
    let client = scene.open(v5("c"), twice);
    assert_eq!((scene.received(client), scene.filters()), (vec![connack(false)], 1));
    scene.claim(client);
    assert_eq!(scene.received(client), [suback(1), suback(1)], "the first one is answered by then");
}

#[test]
fn a_claim_without_an_answer_ends_the_connection() {
    let mut scene = Scene::new();
    let client = scene.open(v5("c"), []);
    let late = NOW.after(scene.worker.settings.mqtt.connect_timeout).after(Duration::from_secs(1));
    scene.worker.has_read_until(late);
    scene.worker.tick(late);
    scene.run();
    let busy = Sent::Disconnect { reason: ReasonCode::ServerBusy, expiry: None };
    assert_eq!(scene.received(client), [connack(false), busy]);
}
