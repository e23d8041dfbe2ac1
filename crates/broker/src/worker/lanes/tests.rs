//! Tests of a worker in a cluster, without the other nodes.

use std::sync::Arc;

use mqtt::{PacketId, ReasonCode, Version};
use testkit::Endpoint;
use testkit::packets::{Sent, connack, durable, message, pubrec};

use super::*;
use crate::access::{Access, Action, AuthReply, AuthResult, Credentials, Permission, RetryAuthorize};
use crate::batch::Resume;
use crate::ids::{SessionId, ShardSet};
use crate::settings::{PublishDenied, Settings};
use crate::store::{Identity, Incarnation, Store};

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
    let store = Store {
        log: None,
        shards: Vec::new(),
        agreements: Vec::new(),
        own: Some(NodeIncarnation { node: 1, incarnation: 9 }),
        incarnation: Incarnation::default(),
        hash_key: [7; 16],
    };
    let node = crate::node::Node::with_store(settings, Arc::new(Rules), "node".into(), 1, store);
    node.build_workers().remove(0)
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

/// Its shards would take them for requests of the connections that have ended.
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
