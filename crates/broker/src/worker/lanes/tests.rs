//! Tests of a worker in a cluster, without the other nodes.

use std::sync::Arc;

use mqtt::{PacketId, ReasonCode, Version};
use shard::BatchBuilder;
use testkit::Endpoint;
use testkit::packets::{Connecting, Sent, connack, durable, message, puback, pubcomp, pubrec, subscribe, v5};

use super::frame::{PageFlags, ToWorker, decode_answers};
use super::*;
use crate::access::{Access, Action, AuthReply, AuthResult, Credentials, Permission, RetryAuthorize};
use crate::admin::{AdminRequest, Whereabouts};
use crate::batch::{Batch, Resume};
use crate::ids::{SessionId, ShardSet};
use crate::peers::Inbound;
use crate::route::{Route, RouteKind};
use crate::settings::{PublishDenied, Settings};
use crate::store::{GroupName, Identity, Incarnation, Store, StoreEvent};
use crate::worker::shards::tests::{Replicas, claimed, subscribes};

const NOW: Time = Time(1_000);
const SHARD: ShardId = ShardId(3);
const LEADER: Leader = Leader { node: 2, term: 7 };

/// Allows everything except to publish to topic `no`.
struct Rules;

impl Access for Rules {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        _: crate::access::Identity<'_>,
        action: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let denied = matches!(action, Action::Publish { .. }) && topic == "no";
        Some(Permission { allowed: !denied, lasting: false })
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// The worker of a node with number 1, which leads no shard.
fn worker(settings: Settings) -> Worker {
    node(settings, 1).build_workers().remove(0)
}

/// A node with number 1, which leads no shard.
fn node(settings: Settings, workers: u16) -> Arc<crate::node::Node> {
    let store = Store {
        log: None,
        shards: Vec::new(),
        agreements: Vec::new(),
        own: Some(NodeIncarnation { node: 1, incarnation: 9 }),
        incarnation: Incarnation::default(),
        hash_key: [7; 16],
    };
    crate::node::Node::with_store(settings, Arc::new(Rules), "node".into(), workers, store)
}

/// Numbers of the requests in the frames that the worker has sent to other nodes.
fn sent(worker: &mut Worker) -> Vec<u64> {
    worker.pass_requests(NOW);
    let frames = std::mem::take(&mut worker.peers.outbound.shard_frames);
    let numbers = |frame: &ShardFrame| match decode_to_shard(&frame.bytes) {
        Ok(ToShard::Requests(requests)) => requests.items.iter().map(|item| item.number).collect(),
        _ => Vec::new(),
    };
    frames.iter().flat_map(numbers).collect()
}

/// The shards would take them for requests of later connections.
#[test]
fn requests_of_the_turn_in_which_an_incarnation_ends_belong_to_it() {
    let mut worker = worker(Settings::default());
    let session = SessionId { shard: SHARD, slot: 1, generation: 1 };
    let forget = |id| {
        let id = PacketId::new(id).expect("not 0");
        Request::ForgetIdentity { identity: Identity::of_publish(session, id, true) }
    };
    worker.outbox.request(SHARD, forget(1));
    worker.restart_incarnation(10);
    worker.leaders_known(vec![(SHARD, LEADER)]);
    worker.outbox.request(SHARD, forget(2));
    assert_eq!(sent(&mut worker), [2]);
}

/// A worker that has not gone on may serve clients that another node serves by now [MQTT-3.1.4-3].
#[test]
fn the_lease_of_a_new_incarnation_begins_when_all_workers_go_on_in_it() {
    let node = node(Settings::default(), 2);
    let posted = Arc::<std::sync::Mutex<Vec<_>>>::default();
    let post = posted.clone();
    node.set_mailbox(move |_, command| sync::lock(&post).push(command));
    let workers = node.build_workers();
    for worker in &workers {
        node.post_inbound(worker.id(), Inbound { incarnation: Some(10), ..Inbound::default() });
    }
    for (mut worker, command) in workers.into_iter().zip(std::mem::take(&mut *sync::lock(&posted))) {
        node.set_fresh_until(Time(2_000));
        assert!(node.is_stale(NOW));
        worker.take_batch(NOW, &mut Batch::of(command));
    }
    node.set_fresh_until(Time(2_000));
    assert!(!node.is_stale(NOW));
}

/// A client with a durable session whose shard nobody leads.
struct Client {
    worker: Worker,
    endpoint: Endpoint,
    id: ConnectionId,
    session: SessionId,
}

impl Client {
    fn connect(settings: Settings) -> Self {
        let mut worker = worker(settings);
        let id = worker.open(NOW, None);
        let session = SessionId { shard: SHARD, slot: 1, generation: 1 };
        let mut client = Self { worker, endpoint: Endpoint::new(Version::V5), id, session };
        client.send(durable(Version::V5, "c"));
        let requests = client.worker.outbox.take_requests();
        let [(shard, Request::Claim(_))] = &requests[..] else { panic!("{requests:?}") };
        client.session = SessionId { shard: *shard, slot: 1, generation: 1 };
        let resume = Resume {
            subscriptions: Vec::new(),
            received: Vec::new(),
            toggles: Default::default(),
            dispatched: Vec::new(),
            walks: Vec::new(),
        };
        client.worker.completion(Completion::Claimed(Claimed {
            connection: id,
            session_present: true,
            session: Some(client.session),
            epoch: 1,
            resume: Some(Box::new(resume)),
        }));
        assert_eq!(client.received(), [connack(true)]);
        client
    }

    fn send(&mut self, packet: impl Into<Sent>) {
        let mut bytes = Vec::new();
        self.endpoint.write(&packet.into(), &mut bytes);
        self.worker.receive(NOW, self.id.slot, &bytes);
    }

    fn received(&mut self) -> Vec<Sent> {
        let mut bytes = Vec::new();
        if let Some(out) = self.worker.output(self.id.slot) {
            out.take(usize::MAX, &mut bytes);
        }
        self.endpoint.read(&bytes);
        self.endpoint.received()
    }

    /// Shards that are asked to forget a message, and other requests.
    fn requests(&mut self) -> (ShardSet, Vec<Request>) {
        let mut forget = ShardSet::EMPTY;
        let mut others = Vec::new();
        for (shard, request) in self.worker.outbox.take_requests() {
            match request {
                Request::ForgetIdentity { identity } => {
                    assert_eq!(identity.exchange(), Some((self.session.origin(), 7)));
                    forget.insert(shard);
                }
                other => others.push(other),
            }
        }
        (forget, others)
    }
}

fn denied(publish_denied: PublishDenied) -> Settings {
    let mut settings = Settings::default();
    settings.mqtt.publish_denied = publish_denied;
    settings
}

/// [MQTT-4.3.3-11]: shards may have the message of an earlier connection, when it was allowed. They would take the
/// message after the next one with the Packet Identifier for it.
#[test]
fn shards_forget_a_repeated_message_that_is_ignored_now() {
    let mut client = Client::connect(denied(PublishDenied::Ignore));
    client.send(message("no", "x").qos2(7).dup());
    let (forget, others) = client.requests();
    let [Request::Receive { token, packet_id, .. }] = &others[..] else { panic!("{others:?}") };
    assert!(forget.is_empty() && packet_id.get() == 7);
    assert_eq!(client.received(), [], "the next node does not know the exchange yet");
    client.worker.answer(*token, ReasonCode::Success);
    assert_eq!(client.requests().0, ShardSet::full(), "before the request to release the identifier");
    assert_eq!(client.received(), [pubrec(7)]);
    client.send(Sent::PubRel(7, ReasonCode::Success));
    let (forget, others) = client.requests();
    assert!(forget.is_empty() && matches!(others[..], [Request::Released { .. }]), "{others:?}");
}

/// [MQTT-4.3.3-11]: neither a PUBREL nor an answer of the shard that comes again causes a second PUBCOMP.
#[test]
fn an_exchange_ends_once() {
    let mut client = Client::connect(denied(PublishDenied::Ignore));
    let complete = |client: &Client| Completion::Complete {
        connection: client.id,
        packet_id: PacketId::new(7).expect("not 0"),
    };
    for _ in 0..2 {
        client.send(message("no", "x").qos2(7).dup());
        let (_, others) = client.requests();
        let [Request::Receive { token, .. }] = &others[..] else { panic!("{others:?}") };
        client.worker.answer(*token, ReasonCode::Success);
        client.requests();
        assert_eq!(client.received(), [pubrec(7)]);
        client.send(Sent::PubRel(7, ReasonCode::Success));
        client.send(Sent::PubRel(7, ReasonCode::Success));
        let (_, others) = client.requests();
        assert!(matches!(others[..], [Request::Released { .. }]), "{others:?}");
        assert_eq!(client.received(), []);
        client.worker.completion(complete(&client));
        client.worker.completion(complete(&client));
        assert_eq!(client.received(), [pubcomp(7)]);
    }
}

/// The next connection dispatches it as a message that nobody has.
#[test]
fn an_ignored_or_refused_message_was_not_dispatched() {
    for setting in [PublishDenied::Ignore, PublishDenied::Reason] {
        let mut client = Client::connect(denied(setting));
        client.send(message("no", "x").qos2(7).dup());
        client.requests();
        client.worker.lost(NOW, client.id.slot);
        let (_, others) = client.requests();
        let [Request::Release(release)] = &others[..] else { panic!("{others:?}") };
        assert_eq!(release.dispatched, Some(Vec::new()), "{setting:?}");
        let refused = u64::from(setting == PublishDenied::Reason);
        assert_eq!(client.worker.counters().publish_refused, refused);
    }
}

const PAYLOAD: usize = 60_000;
const MEMORY: usize = 1 << 20;

/// A client and shards that have subscriptions to topics `3`, `4` and so on, all without a leader.
fn with_little_memory() -> Client {
    let mut settings = Settings::default();
    settings.limits.memory_queued_max = ::settings::ByteSize::mib(1);
    let client = Client::connect(settings);
    for shard in 3..13 {
        let filter = shard.to_string();
        let filter = mqtt::TopicFilter::parse(&filter).expect("a Topic Filter");
        let (slot, generation, subscription_id, options) = (0, 0, 0, Default::default());
        let route =
            Route { slot, generation, subscription_id, index: shard, options, kind: RouteKind::Shard };
        client.worker.node.routes.insert(filter, route).expect("there is room");
    }
    client
}

impl Client {
    /// Goes on as another client on the same worker.
    fn become_another(&mut self, client_id: &str) {
        self.open(v5(client_id));
        self.worker.outbox.take_requests();
        self.claim();
        assert_eq!(self.received(), [connack(false)]);
    }

    fn open(&mut self, connect: Connecting) {
        self.id = self.worker.open(NOW, None);
        self.endpoint = Endpoint::new(Version::V5);
        self.send(connect);
    }

    /// Lets the shard give the connection its Client Identifier.
    fn claim(&mut self) {
        self.worker.completion(Completion::Claimed(Claimed {
            connection: self.id,
            session_present: false,
            session: None,
            epoch: 0,
            resume: None,
        }));
    }

    /// Publishes messages until the client has to wait, in turns of one message. Returns their number.
    fn publish_until_it_waits(&mut self, topics: &[u16]) -> usize {
        for (count, topic) in topics.iter().cycle().take(100).enumerate() {
            self.send(message(&topic.to_string(), "x".repeat(PAYLOAD)).qos1(count as u16 + 1));
            self.end_turn();
            if self.waits() {
                return count;
            }
        }
        100
    }

    fn waits(&mut self) -> bool {
        let connection = self.worker.connections.occupant(self.id.slot).expect("it is connected");
        connection.flow().blocked.is_some()
    }

    fn end_turn(&mut self) {
        self.worker.pass_requests(NOW);
        self.worker.end_turn();
    }

    /// Answers the requests of a shard up to a number.
    fn answer(&mut self, shard: ShardId, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            let lanes = self.worker.lanes.as_mut().expect("it is in a cluster");
            let token = lanes.asking.answered(shard, number).expect("a publisher waits");
            self.worker.answer(token, ReasonCode::Success);
        }
        self.end_turn();
    }
}

#[test]
fn a_shard_without_a_leader_holds_no_more_than_its_share_of_memory() {
    let mut client = with_little_memory();
    let count = client.publish_until_it_waits(&[3]);
    assert_eq!(count, MEMORY / 4 / PAYLOAD + 1);
    let bytes = client.worker.lane_counters().unanswered_bytes;
    assert!((count * PAYLOAD..count * (PAYLOAD + 500)).contains(&(bytes as usize)), "{bytes}");
    let published = client.worker.published().request_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((published, client.worker.counters().publishers_blocked), (bytes, 1));
    client.become_another("d");
    assert_eq!(client.publish_until_it_waits(&[3]), 0, "other clients wait, too");
    client.become_another("e");
    assert!(client.publish_until_it_waits(&[4]) > 0, "the publishers of other shards go on");
    client.answer(SHARD, 1..=2);
    client.become_another("f");
    assert!(client.publish_until_it_waits(&[3]) > 0);
}

/// Shards may have no majority left when two of five cores are lost.
#[test]
fn shards_without_leaders_hold_no_more_than_a_share_of_memory_together() {
    let mut client = with_little_memory();
    let topics = [3, 4, 5, 6, 7];
    for (name, topic) in ["d", "e", "f", "g", "h"].into_iter().zip(topics) {
        client.become_another(name);
        client.publish_until_it_waits(&[topic]);
    }
    let bytes = client.worker.lane_counters().unanswered_bytes as usize;
    assert!((MEMORY / 4..MEMORY / 2 + topics.len() * (PAYLOAD + 500)).contains(&bytes), "{bytes}");
    assert!(!client.worker.node.is_nearly_full(), "publishers of other shards have their windows");
    for (name, topic) in ["i", "j", "k", "l", "m"].into_iter().zip(topics) {
        client.become_another(name);
        assert_eq!(client.publish_until_it_waits(&[topic]), 0, "{topic}");
    }
    client.become_another("n");
    assert!(client.publish_until_it_waits(&[8]) > 0, "the publishers of other shards go on");
}

/// A replica that installs a state may need minutes for the messages. Its node has no lease until it knows the routes.
#[test]
fn a_worker_learns_the_routes_that_a_replica_lacks_for_long() {
    let replicas = Replicas::default();
    let mut worker = replicas.worker(Settings::default());
    worker.leaders_known(vec![(SHARD, LEADER)]);
    // Another node has made the changes up to this index.
    let named = |worker: &mut Worker, at: u64, index: u64| {
        worker.take_batch(Time(at), &mut Batch::default());
        worker.routes_known_up_to(SHARD, index);
        let frames = std::mem::take(&mut worker.peers.outbound.shard_frames);
        frames.iter().find_map(|frame| match decode_to_shard(&frame.bytes) {
            Ok(ToShard::RoutesWanted(wanted)) => Some(wanted.number),
            _ => None,
        })
    };
    assert_eq!(named(&mut worker, 1_000, 3), None);
    assert_eq!(named(&mut worker, 1_999, 4), None, "it may be about to apply them");
    let number = named(&mut worker, 2_000, 4).expect("a request");
    assert_eq!(named(&mut worker, 4_000, 4), None, "there is one already");

    let mut routes = Vec::new();
    assert!(["a", "b"].iter().all(|filter| frame::Page::push(true, filter, &mut routes)));
    let page = frame::Page::new(9, (SHARD, number), PageFlags::default(), (4, 0), &routes).encode();
    let Ok(ToWorker::Routes(page)) = decode_answers(&page) else { panic!("a page") };
    worker.take_routes(LEADER.node, &page);
    assert_eq!(std::mem::take(&mut worker.peers.outbound.route_positions), [(SHARD, 4)]);
    let next = std::mem::take(&mut worker.peers.outbound.shard_frames);
    assert_eq!(next.len(), 1, "the request for the changes after these");
    assert_eq!(worker.node.routes.own_len(), 2);

    // The last changes are not in the state of the replica: the filter was removed again.
    let (claims, session) = claimed(1);
    let mut batch = BatchBuilder::new(NOW.0);
    batch.push(&subscribes(session));
    let subscribes = batch.finish();
    for (index, bytes) in [(1, claims), (2, subscribes)] {
        replicas.commit(index, bytes);
    }
    let applies = |worker: &mut Worker| {
        worker.shards.queue_events(vec![(SHARD, StoreEvent::LinkLost(3))]);
        worker.process_store_events();
        worker.routes_moved();
    };
    applies(&mut worker);
    assert_eq!(worker.node.routes.own_len(), 2, "the learner knows more");
    for index in 3..=4 {
        replicas.commit(index, BatchBuilder::new(NOW.0).finish());
    }
    applies(&mut worker);
    assert_eq!(worker.node.routes.own_len(), 1, "the replica knows as much");
    assert_eq!(worker.peers.outbound.route_positions, [], "the position is known");
    assert_eq!(named(&mut worker, 9_000, 4), None);
}

impl Client {
    /// Adds a shard with durable sessions that are members of a group of filter `group`.
    fn add_to_group(&mut self, shard: u16) {
        let name = GroupName { share: "g".into(), filter: "group".into() };
        let routes = &self.worker.node.routes;
        assert!(routes.groups(name.shard()).add_shard(routes, &name, ShardId(shard)));
    }

    /// Bytes that wait for a shard.
    fn bytes_for(&self, shard: u16) -> usize {
        let lanes = self.worker.lanes.as_ref().expect("it is in a cluster");
        lanes.asking.bytes_for(ShardId(shard))
    }

    /// Gives the worker what it has for itself as the host of groups.
    fn deliver_to_groups(&mut self) {
        let mut batch = std::mem::take(self.worker.outgoing(WorkerId(0)));
        self.worker.take_batch(NOW, &mut batch);
    }

    /// Publishes messages to the group until the client has to wait.
    fn publish_to_group(&mut self) -> usize {
        for count in 0..30 {
            self.send(message("group", "x".repeat(PAYLOAD)).qos1(count as u16 + 1));
            self.deliver_to_groups();
            self.end_turn();
            if self.waits() {
                return count;
            }
        }
        30
    }
}

#[test]
fn a_group_prefers_members_whose_shard_has_a_leader() {
    let mut client = with_little_memory();
    client.add_to_group(3);
    client.add_to_group(4);
    client.worker.leaders_known(vec![(ShardId(4), LEADER)]);
    client.end_turn();
    for id in 1..=4 {
        client.send(message("group", "x").qos1(id));
    }
    client.deliver_to_groups();
    client.end_turn();
    assert_eq!(client.bytes_for(3), 0, "nothing waits for the shard without a leader");
    assert!(client.bytes_for(4) > 0);
}

#[test]
fn publishers_wait_for_groups_with_members_in_full_shards_only() {
    let mut client = with_little_memory();
    client.add_to_group(3);
    let count = client.publish_to_group();
    assert_eq!(count, MEMORY / 4 / PAYLOAD + 1);
    client.become_another("d");
    assert_eq!(client.publish_to_group(), 0, "other clients wait, too");
    client.add_to_group(4);
    client.become_another("e");
    assert!(client.publish_to_group() > 0, "the other member gets it");
    assert!(client.bytes_for(4) > 0);
}

/// Another one gets a share of what is left.
#[test]
fn a_publisher_holds_no_more_than_its_share_of_memory() {
    let mut client = with_little_memory();
    let topics: Vec<u16> = (3..13).collect();
    let count = client.publish_until_it_waits(&topics);
    let half = MEMORY / 2 / PAYLOAD;
    assert!((half..=half + 1).contains(&count), "{count} messages");
    assert!(!client.worker.node.is_overloaded(), "others go on");
    client.answer(SHARD, 1..=1);
    assert_eq!(client.received(), [puback(1)]);
    assert!(!client.waits());
    client.become_another("d");
    assert!(client.publish_until_it_waits(&topics) > 0);
}

/// An operator that asks for a client does not get the answer that there is none.
#[test]
fn a_worker_that_does_not_lead_the_shard_of_a_client_says_so() {
    let mut client = Client::connect(Settings::default());
    let (sender, receiver) = std::sync::mpsc::channel();
    let reply = Box::new(move |whereabouts| sender.send(whereabouts).expect("the test waits"));
    let request = AdminRequest::Locate { shard: client.session.shard, client_id: "c".into(), reply };
    client.worker.admin_request(request);
    assert_eq!(receiver.recv(), Ok(Whereabouts::NotLed));
}

/// A new leader among cores of an earlier version does not know connections of ephemeral sessions.
#[test]
fn a_connection_is_found_without_its_shard() {
    let mut client = Client::connect(Settings::default());
    let mut find = |client_id: &str| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = Box::new(move |found| sender.send(found).expect("the test waits"));
        let request = AdminRequest::FindConnection { client_id: client_id.into(), from: 0, reply };
        client.worker.admin_request(request);
        receiver.try_recv().expect("there are few connections")
    };
    assert!(find("c").is_some() && find("other").is_none());
}

/// [MQTT-3.1.2-8]: the node closes the client before its Claim is answered. Only the answer says whether the shard has
/// the Will.
#[test]
fn the_will_of_a_client_that_is_closed_before_the_answer_is_published_once() {
    for is_refused in [true, false] {
        let mut client = Client::connect(Settings::default());
        client.worker.node.keep_ephemeral_sessions(true);
        client.worker.node.overlap_connacks(true);
        client.worker.node.set_fresh_until(Time(2_000));
        client.worker.leaders_known((0..SHARDS).map(|shard| (ShardId(shard), LEADER)).collect());
        client.open(v5("gone").will(message("wills", "gone")));
        let gone = client.id;
        client.end_turn();
        client.worker.kick_connection(gone, ReasonCode::AdministrativeAction, false);
        client.end_turn();
        client.become_another("reader");
        client.send(subscribe(1).to("wills", mqtt::QoS::AtMostOnce).level("local"));
        client.end_turn();
        assert!(matches!(client.received()[..], [Sent::SubAck(..)]));
        let shard = crate::store::client_shard(crate::ids::fold(crate::ids::client_key("gone")));
        let answer = || match is_refused {
            true => Completion::ClaimRefused { connection: gone, reason: ReasonCode::SessionTakenOver },
            false => Completion::Claimed(Claimed::kept(gone)),
        };
        for _ in 0..2 {
            client.worker.shard_completion(shard, 0, answer());
            client.end_turn();
        }
        let wills = client.received();
        assert_eq!(wills.len(), usize::from(is_refused), "{wills:?}");
    }
}
