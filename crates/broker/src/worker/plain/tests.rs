//! Compares the short way with the general way: the same clients do the same on two nodes. One of them sends everything
//! the general way. Every byte and every counter is the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqtt::{QoS, ReasonCode, SubscriptionOptions, Version};
use random::Random;
use testkit::Endpoint;
use testkit::packets::{Message, Sent, goodbye, message, subscribe, unsubscribe, v3, v5};

use super::*;
use crate::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, Permission, Principal,
    RetryAuthorize,
};
use crate::batch::Batch;
use crate::ids::ConnectionId;
use crate::node::Node;
use crate::settings::Settings;

const WORKERS: usize = 2;
const CLIENTS: usize = 8;
const STEPS: usize = 400;
const TOPICS: [&str; 5] = ["a", "a/b", "a/c", "b", "$x/a"];
/// Topics that nearly always have one receiver: the client with that index.
const SINGLE: [&str; 4] = ["single/0", "single/1", "single/2", "single/3"];
const FILTERS: [&str; 12] = [
    "a",
    "a/b",
    "a/+",
    "a/#",
    "#",
    "b",
    "$x/#",
    "$share/g/a/b",
    "+/c",
    "$share/g/group/1",
    "$share/h/group/2",
    "$share/i/group/+",
];

/// Rules that allow everything in generations that are even or multiples of 3. In others, nobody receives topic `b` or
/// publishes to topic `a/c`. Users have a mountpoint.
#[derive(Default)]
struct Rules {
    generation: AtomicU64,
}

impl Access for Rules {
    fn authenticate(&self, of: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        let Some(user) = of.username else { return Some(AuthResult::Allow) };
        let principal = Principal { mountpoint: Some(format!("{user}/").into()), ..Principal::default() };
        let admission = Admission { principal: Some(Arc::new(principal)), ..Admission::default() };
        Some(AuthResult::Admit(Box::new(admission)))
    }

    fn guards_topics(&self) -> bool {
        !self.generation().is_multiple_of(3)
    }

    fn allows_without_grants(&self) -> bool {
        self.generation().is_multiple_of(2)
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        action: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let denied = match action {
            Action::Receive => topic == "b",
            Action::Publish { .. } => topic == "a/c",
            Action::Subscribe { .. } => false,
        };
        Some(Permission { allowed: !denied || self.allows_without_grants(), lasting: true })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
}

/// One node with its workers in one thread.
struct Side {
    rules: Arc<Rules>,
    workers: Vec<Worker>,
}

impl Side {
    fn new(goes_short_way: bool) -> Self {
        let rules = Arc::<Rules>::default();
        let mut settings = Settings::default();
        settings.sys.interval = std::time::Duration::ZERO;
        settings.queue.messages_max = 6;
        let node = Node::new(settings, rules.clone(), "node".into(), WORKERS as u16, [5; 16]);
        let mut workers = node.build_workers();
        workers.iter_mut().for_each(|worker| worker.goes_short_way = goes_short_way);
        Self { rules, workers }
    }

    fn worker(&mut self, id: ConnectionId) -> &mut Worker {
        &mut self.workers[id.worker.index()]
    }

    /// Runs turns until nothing is left to do, and returns the output of each connection.
    fn run(&mut self, now: Time) -> Vec<(usize, u32, Vec<u8>)> {
        let mut output = Vec::new();
        for _ in 0..64 {
            let mut works = false;
            for at in 0..WORKERS {
                self.workers[at].settle(now);
                for to in (0..WORKERS).filter(|to| *to != at) {
                    let to_id = self.workers[to].id();
                    let mut batch: Batch = std::mem::take(self.workers[at].outgoing(to_id));
                    works |= !batch.is_empty();
                    self.workers[to].take_batch(now, &mut batch);
                }
                let worker = &mut self.workers[at];
                let mut dirty = Vec::new();
                worker.take_dirty(&mut dirty);
                for slot in dirty {
                    let mut bytes = Vec::new();
                    if let Some(out) = worker.output(slot) {
                        out.take(usize::MAX, &mut bytes);
                        worker.written(now, slot);
                    }
                    output.push((at, slot, bytes));
                }
                worker.take_woken(&mut Vec::new());
                worker.end_turn();
                works |= worker.has_work();
            }
            if !works {
                return output;
            }
        }
        panic!("the workers still have work");
    }

    /// Messages that wait for a client, as operators see them.
    fn queue(&self, id: ConnectionId) -> Vec<String> {
        let connection = self.workers[id.worker.index()].connections.get(id.slot, id.generation);
        let flow = connection.and_then(|connection| connection.flow.as_deref());
        let messages = flow.into_iter().flat_map(|flow| flow.queue.iter());
        let describe = |(is_over, entry): (bool, crate::store::Enqueue)| {
            let view = entry.message.view();
            let (topic, payload, received) = (view.topic, view.payload, view.received);
            format!("{is_over} {topic} {payload:?} {received:?} {:?} {:?}", entry.qos, view.properties)
        };
        messages.map(describe).collect()
    }

    fn counters(&self) -> String {
        let each =
            self.workers.iter().map(|worker| format!("{:?} {:?}", worker.counters, worker.monitor.packets));
        each.collect::<Vec<_>>().join("\n")
    }
}

struct Client {
    id: ConnectionId,
    version: Version,
    endpoint: Endpoint,
    /// Messages that are not acknowledged yet.
    unanswered: Vec<Sent>,
    packet_id: u16,
    /// Packet Identifiers of QoS 2 messages without PUBREL.
    unreleased: Vec<u16>,
    is_open: bool,
}

/// Both nodes with the same clients.
struct Pair {
    random: Random,
    now: Time,
    short: Side,
    general: Side,
    clients: Vec<Client>,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let (short, general) = (Side::new(true), Side::new(false));
        let mut pair =
            Self { random: Random::new(seed), now: Time(1_000), short, general, clients: Vec::new() };
        for number in 0..CLIENTS {
            let client = pair.connect(number);
            pair.clients.push(client);
        }
        pair
    }

    fn connect(&mut self, number: usize) -> Client {
        let is_v5 = self.random.percent(60);
        let mut connect = if is_v5 { v5(&format!("c{number}")) } else { v3(&format!("c{number}")) };
        if is_v5 && self.random.percent(40) {
            connect = connect.receive_max(1 + self.random.below(3) as u16);
        }
        if is_v5 && self.random.percent(20) {
            connect = connect.alias_max(3);
        }
        if is_v5 && self.random.percent(20) {
            connect = connect.packet_size_max(20);
        }
        if self.random.percent(10) {
            // Topics of this client are those below `a/` of the others.
            connect = connect.username("a");
        }
        let version = connect.version;
        let at = number % WORKERS;
        let id = self.short.workers[at].open(self.now, None);
        assert_eq!(id, self.general.workers[at].open(self.now, None));
        let endpoint = Endpoint::new(version);
        let mut client = Client {
            id,
            version,
            endpoint,
            unanswered: Vec::new(),
            packet_id: 0,
            unreleased: Vec::new(),
            is_open: true,
        };
        self.send(&mut client, &[connect.into()]);
        if let Some(topic) = SINGLE.get(number) {
            assert_eq!(self.short.run(self.now), self.general.run(self.now));
            let qos = *self.random.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce]);
            let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
            self.send(&mut client, &[subscribe(99).with(topic, options).into()]);
        }
        client
    }

    /// Sends packets in one write.
    fn send(&mut self, client: &mut Client, packets: &[Sent]) {
        let mut bytes = Vec::new();
        packets.iter().for_each(|packet| client.endpoint.write(packet, &mut bytes));
        for side in [&mut self.short, &mut self.general] {
            // What a waiting PUBLISH stops is not sent again here: both sides stop at the same byte.
            side.worker(client.id).receive(self.now, client.id.slot, &bytes);
        }
    }

    fn publish(&mut self, client: &mut Client) -> Sent {
        client.packet_id = client.packet_id % 10 + 1;
        let payload = "x".repeat(self.random.below(30));
        let topics = match self.random.below(4) {
            0 | 1 => &TOPICS[..],
            2 => &SINGLE[..],
            _ => &["group/1", "group/2"],
        };
        let message: Message = message(topics[self.random.below(topics.len())], payload);
        let mut message = match self.random.below(3) {
            0 => message,
            1 => message.qos1(client.packet_id),
            _ => {
                client.unreleased.push(client.packet_id);
                message.qos2(client.packet_id)
            }
        };
        message.retain = self.random.percent(5);
        message.dup = message.qos > QoS::AtMostOnce && self.random.percent(5);
        if client.version == Version::V5 && self.random.percent(5) {
            message.expiry = Some(1);
        }
        if client.version == Version::V5 && self.random.percent(10) {
            message.content_type = Some("text/plain".into());
        }
        message.into()
    }

    fn subscribe(&mut self, client: &mut Client) -> Sent {
        client.packet_id = client.packet_id % 10 + 1;
        let mut filter = *self.random.pick(&FILTERS);
        if filter == "#" && self.random.percent(80) {
            filter = "a/#";
        }
        if self.random.percent(20) {
            return unsubscribe(client.packet_id, &[filter]);
        }
        let is_v5 = client.version == Version::V5;
        let options = SubscriptionOptions {
            qos: *self.random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]),
            no_local: is_v5 && !filter.starts_with("$share") && self.random.percent(10),
            retain_as_published: is_v5 && self.random.percent(20),
            ..SubscriptionOptions::default()
        };
        let mut subscribe = subscribe(client.packet_id).with(filter, options);
        if is_v5 && self.random.percent(20) {
            subscribe = subscribe.identifier(1 + self.random.below(300) as u32);
        }
        subscribe.into()
    }

    fn step(&mut self) {
        self.now = Time(self.now.0 + self.random.below_u64(300));
        if self.random.percent(2) {
            for side in [&self.short, &self.general] {
                side.rules.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
        let number = self.random.below(CLIENTS);
        if !self.clients[number].is_open || self.random.percent(1) {
            self.reconnect(number);
        } else {
            let mut client = self.clients.remove(number);
            let packets: Vec<Sent> = match self.random.below(10) {
                0 => vec![self.subscribe(&mut client)],
                1..=3 => client.unanswered.drain(..).collect(),
                4 if !client.unreleased.is_empty() => {
                    let ids = client.unreleased.drain(..);
                    ids.map(|id| Sent::PubRel(id, ReasonCode::Success)).collect()
                }
                _ => (0..1 + self.random.below(5)).map(|_| self.publish(&mut client)).collect(),
            };
            self.send(&mut client, &packets);
            self.clients.insert(number, client);
        }
        self.compare();
    }

    fn reconnect(&mut self, number: usize) {
        let mut client = self.clients.remove(number);
        if client.is_open {
            self.send(&mut client, &[goodbye()]);
        }
        for side in [&mut self.short, &mut self.general] {
            side.run(self.now);
            side.worker(client.id).vacate(client.id.slot);
            side.run(self.now);
        }
        let client = self.connect(number);
        self.clients.insert(number, client);
    }

    fn compare(&mut self) {
        let output = self.short.run(self.now);
        assert_eq!(output, self.general.run(self.now));
        for (worker, slot, bytes) in output {
            let is_meant =
                |client: &&mut Client| (client.id.worker.index(), client.id.slot) == (worker, slot);
            let Some(client) = self.clients.iter_mut().find(is_meant) else { continue };
            client.endpoint.read(&bytes);
            client.is_open &= !self.short.workers[worker].is_closing(slot);
            for packet in client.endpoint.received() {
                match packet {
                    Sent::Publish(message) => match (message.qos, message.packet_id) {
                        (QoS::AtLeastOnce, Some(id)) => {
                            client.unanswered.push(Sent::PubAck(id, ReasonCode::Success));
                        }
                        (QoS::ExactlyOnce, Some(id)) => {
                            client.unanswered.push(Sent::PubRec(id, ReasonCode::Success));
                        }
                        _ => {}
                    },
                    Sent::PubRel(id, _) => client.unanswered.push(Sent::PubComp(id, ReasonCode::Success)),
                    _ => {}
                }
            }
        }
        assert_eq!(self.short.counters(), self.general.counters());
        for client in &self.clients {
            assert_eq!(self.short.queue(client.id), self.general.queue(client.id));
        }
        for (short, general) in self.short.workers.iter().zip(&self.general.workers) {
            short.check_invariants();
            general.check_invariants();
            assert_eq!(short.queues.bytes(), general.queues.bytes());
        }
    }
}

#[test]
fn the_short_way_does_what_the_general_way_does() {
    let (mut plain, mut with_rules, mut all) = (0, 0, 0);
    let (mut queued, mut from_queue, mut acknowledged, mut to_members) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut pair = Pair::new(seed);
        pair.compare();
        for _ in 0..STEPS {
            pair.step();
        }
        for worker in &pair.short.workers {
            plain += worker.short_ways.published;
            with_rules += worker.short_ways.with_rules;
            queued += worker.short_ways.queued;
            from_queue += worker.short_ways.sent_from_queue;
            acknowledged += worker.short_ways.acknowledged;
            to_members += worker.short_ways.to_members;
            let counters = &worker.counters;
            all += counters.received_qos0 + counters.received_qos1 + counters.received_qos2;
        }
    }
    assert!(plain > 1_000 && plain < all, "{plain} of {all} messages went the short way");
    assert!(queued > 300 && from_queue > 80 && from_queue < queued, "{from_queue} of {queued} from a queue");
    assert!(to_members > 300, "{to_members} to members of groups");
    assert!(acknowledged > 500, "{acknowledged} in runs");
    assert!(with_rules > 100 && with_rules < plain, "{with_rules} of them with rules");
}
