//! The measured flows. They run in lock-step: a message is published when the previous one is completely handled. In
//! the flows named `batch`, [`BATCH`] messages take the place of one, as when clients are faster than the broker.

use broker::ConnectionId;

use crate::node::{Broker, Publish, packets, publish_id};

/// One flow. `messages` is large enough for figures that repeat, and small enough to be counted in a second or two.
pub struct Flow {
    pub name: &'static str,
    pub messages: u32,
    pub run: fn(u32),
}

pub const ALL: &[Flow] = &[
    Flow { name: "qos0", messages: 5_000, run: |messages| one_to_one(0, messages) },
    Flow { name: "qos1", messages: 5_000, run: |messages| one_to_one(1, messages) },
    Flow { name: "qos2", messages: 5_000, run: |messages| one_to_one(2, messages) },
    Flow { name: "batch-qos0", messages: 20_000, run: |messages| batches(0, messages) },
    Flow { name: "batch-qos1", messages: 20_000, run: |messages| batches(1, messages) },
    Flow { name: "batch-qos2", messages: 20_000, run: |messages| batches(2, messages) },
    Flow { name: "batch-10-topics", messages: 20_000, run: |messages| topics(10, messages) },
    Flow { name: "batch-25000-topics", messages: 20_000, run: |messages| topics(25_000, messages) },
    Flow {
        name: "batch-rules",
        messages: 20_000,
        run: |messages| one_publisher(Broker::with_rules(), 1, messages),
    },
    Flow { name: "batch-fan-in", messages: 20_000, run: |messages| fan_in(1, messages) },
    Flow { name: "batch-fan-in-2-workers", messages: 20_000, run: |messages| fan_in(2, messages) },
    Flow { name: "batch-shared", messages: 20_000, run: |messages| shared(1, messages) },
    Flow { name: "batch-shared-2-workers", messages: 20_000, run: |messages| shared(2, messages) },
    Flow { name: "fan-out-100", messages: 500, run: fan_out },
    Flow { name: "connect-subscribe", messages: 1_000, run: connect_subscribe },
    Flow { name: "durable-qos1", messages: 5_000, run: durable },
    Flow { name: "durable-absent-qos1", messages: 5_000, run: absent },
];

const TOPIC: &str = "plant/7/temperature";
const FILTER: &str = "plant/+/temperature";
const PAYLOAD: usize = 256;
const FAN_OUT: usize = 100;
/// Number of messages that a publisher sends at once.
const BATCH: u32 = 50;
/// Number of publishers of one subscriber.
const FAN_IN: u32 = 80;
/// Number of members of a shared group, and of its publishers.
const GROUP: u32 = 10;
/// Number of messages that wait for an absent client when it reconnects.
const WAITING: u32 = 100;

fn one_to_one(qos: u8, messages: u32) {
    let mut broker = Broker::new();
    let mut subscriber = Client::new(broker.connect("subscriber", true));
    broker.subscribe(subscriber.id, FILTER, qos);
    flow(&mut broker, &mut subscriber, qos, messages);
}

/// Runs a flow in which the publisher sends [`BATCH`] messages in one write.
fn batches(qos: u8, messages: u32) {
    one_publisher(Broker::new(), qos, messages);
}

fn one_publisher(mut broker: Broker, qos: u8, messages: u32) {
    let mut subscriber = Client::new(broker.connect("subscriber", true));
    broker.subscribe(subscriber.id, FILTER, qos);
    let mut publisher = Client::new(broker.connect("publisher", true));
    let mut publish = Publish::new(qos, TOPIC, PAYLOAD);
    let mut batch = Vec::new();
    for first in (0..messages).step_by(BATCH as usize) {
        batch.clear();
        (first..first + BATCH).for_each(|message| batch.extend_from_slice(publish.number(message)));
        broker.send(publisher.id, &batch);
        run_until_idle(&mut broker, &mut [&mut publisher, &mut subscriber]);
    }
    assert_eq!(subscriber.delivered, messages, "everything is delivered");
    assert_eq!(publisher.acknowledged, if qos > 0 { messages } else { 0 }, "everything is acknowledged");
}

/// Runs a flow of batches in which the publisher goes through `count` topics again and again, at QoS 1.
fn topics(count: u32, messages: u32) {
    let mut broker = Broker::new();
    let mut subscriber = Client::new(broker.connect("subscriber", true));
    broker.subscribe(subscriber.id, FILTER, 1);
    let mut publisher = Client::new(broker.connect("publisher", true));
    let topic = |number: u32| Publish::new(1, &format!("plant/{number}/temperature"), PAYLOAD);
    let mut publishes: Vec<_> = (0..count).map(topic).collect();
    let mut batch = Vec::new();
    for first in (0..messages).step_by(BATCH as usize) {
        batch.clear();
        for message in first..first + BATCH {
            batch.extend_from_slice(publishes[(message % count) as usize].number(message));
        }
        broker.send(publisher.id, &batch);
        run_until_idle(&mut broker, &mut [&mut publisher, &mut subscriber]);
    }
    assert_eq!(subscriber.delivered, messages, "everything is delivered");
}

/// Runs a flow in which publishers together send more than the window of their subscriber, so most messages wait in
/// its queue, and most publishers wait for that.
fn fan_in(workers: u16, messages: u32) {
    let mut broker = Broker::of_workers(workers);
    let mut subscriber = Client::new(broker.connect("subscriber", true));
    broker.subscribe(subscriber.id, FILTER, 1);
    let mut publishers: Vec<_> = (0..FAN_IN)
        .map(|number| broker.connect(&format!("publisher-{number}"), true))
        .map(Client::new)
        .collect();
    let mut publish = Publish::new(1, TOPIC, PAYLOAD);
    let mut batch = Vec::new();
    for first in (0..messages).step_by((FAN_IN * BATCH) as usize) {
        for (publisher, first) in publishers.iter().zip((first..).step_by(BATCH as usize)) {
            batch.clear();
            (first..first + BATCH).for_each(|message| batch.extend_from_slice(publish.number(message)));
            broker.send(publisher.id, &batch);
        }
        let mut clients: Vec<_> = publishers.iter_mut().chain([&mut subscriber]).collect();
        run_until_idle(&mut broker, &mut clients);
    }
    assert_eq!(subscriber.delivered, messages, "everything is delivered");
}

/// Runs a flow in which [`GROUP`] publishers send to a shared group of as many members, at QoS 1.
fn shared(workers: u16, messages: u32) {
    let mut broker = Broker::of_workers(workers);
    let connect = |broker: &mut Broker, kind: &str, number: u32| {
        Client::new(broker.connect(&format!("{kind}-{number}"), true))
    };
    let mut members: Vec<_> = (0..GROUP).map(|number| connect(&mut broker, "member", number)).collect();
    members.iter().for_each(|member| broker.subscribe(member.id, "$share/group/plant/+/temperature", 1));
    let mut publishers: Vec<_> = (0..GROUP).map(|number| connect(&mut broker, "publisher", number)).collect();
    let mut publish = Publish::new(1, TOPIC, PAYLOAD);
    let mut batch = Vec::new();
    for first in (0..messages).step_by((GROUP * BATCH) as usize) {
        for (publisher, first) in publishers.iter().zip((first..messages).step_by(BATCH as usize)) {
            batch.clear();
            (first..first + BATCH).for_each(|message| batch.extend_from_slice(publish.number(message)));
            broker.send(publisher.id, &batch);
        }
        let mut clients: Vec<_> = publishers.iter_mut().chain(&mut members).collect();
        run_until_idle(&mut broker, &mut clients);
    }
    let delivered: u32 = members.iter().map(|member| member.delivered).sum();
    assert_eq!(delivered, messages, "everything is delivered");
}

fn durable(messages: u32) {
    let mut broker = Broker::new();
    let mut subscriber = Client::new(broker.connect("subscriber", false));
    broker.subscribe(subscriber.id, FILTER, 1);
    flow(&mut broker, &mut subscriber, 1, messages);
}

fn flow(broker: &mut Broker, subscriber: &mut Client, qos: u8, messages: u32) {
    let mut publisher = Client::new(broker.connect("publisher", true));
    let mut publish = Publish::new(qos, TOPIC, PAYLOAD);
    for message in 0..messages {
        broker.send(publisher.id, publish.number(message));
        run_until_idle(broker, &mut [&mut publisher, subscriber]);
    }
    assert_eq!(subscriber.delivered, messages, "everything is delivered");
    assert_eq!(publisher.acknowledged, if qos > 0 { messages } else { 0 }, "everything is acknowledged");
}

fn fan_out(messages: u32) {
    let mut broker = Broker::new();
    for number in 0..FAN_OUT {
        let subscriber = broker.connect(&format!("subscriber-{number}"), true);
        broker.subscribe(subscriber, FILTER, 0);
    }
    let publisher = broker.connect("publisher", true);
    let mut publish = Publish::new(0, TOPIC, PAYLOAD);
    for message in 0..messages {
        broker.send(publisher, publish.number(message));
        broker.turn();
        assert_eq!(broker.receivers(), FAN_OUT, "all of them get it");
    }
}

/// Runs a flow in which each message is a client that connects, subscribes to a filter of its own and disconnects.
fn connect_subscribe(clients: u32) {
    let mut broker = Broker::new();
    for number in 0..clients {
        let client = broker.connect(&format!("client-{number:07}"), true);
        broker.subscribe(client, &format!("bench/{number:07}/#"), 1);
        broker.disconnect(client);
    }
}

/// Runs a flow with a session whose client reconnects after every [`WAITING`] messages.
fn absent(messages: u32) {
    let mut broker = Broker::new();
    let mut subscriber = Client::new(broker.connect("subscriber", false));
    broker.subscribe(subscriber.id, FILTER, 1);
    broker.disconnect(subscriber.id);
    let mut publisher = Client::new(broker.connect("publisher", true));
    let mut publish = Publish::new(1, TOPIC, PAYLOAD);
    for message in 0..messages {
        broker.send(publisher.id, publish.number(message));
        run_until_idle(&mut broker, &mut [&mut publisher]);
        if (message + 1) % WAITING == 0 {
            subscriber.id = broker.connect("subscriber", false);
            subscriber.take(&broker);
            run_until_idle(&mut broker, &mut [&mut subscriber]);
            broker.disconnect(subscriber.id);
        }
    }
    assert_eq!(publisher.acknowledged, messages, "everything is acknowledged");
    assert_eq!(subscriber.delivered, messages - messages % WAITING, "everything is delivered");
}

/// Runs turns and sends the clients' answers until all are idle.
fn run_until_idle(broker: &mut Broker, clients: &mut [&mut Client]) {
    for _ in 0..2 * WAITING {
        broker.turn();
        let mut said = false;
        for client in &mut *clients {
            client.take(broker);
            said |= client.answer(broker);
        }
        if !said {
            return;
        }
    }
    panic!("the clients and the broker never become idle");
}

/// A client that counts and acknowledges the messages it receives.
struct Client {
    id: ConnectionId,
    answer: Vec<u8>,
    delivered: u32,
    acknowledged: u32,
}

impl Client {
    fn new(id: ConnectionId) -> Self {
        Self { id, answer: Vec::with_capacity(4096), delivered: 0, acknowledged: 0 }
    }

    fn take(&mut self, broker: &Broker) {
        for (first, body) in broker.received(self.id).flat_map(packets) {
            let (reply, id) = match first >> 4 {
                3 => {
                    self.delivered += 1;
                    match first >> 1 & 3 {
                        0 => continue,
                        1 => (0x40, publish_id(body)),
                        _ => (0x50, publish_id(body)),
                    }
                }
                4 | 7 => {
                    self.acknowledged += 1;
                    continue;
                }
                5 => (0x62, [body[0], body[1]]),
                6 => (0x70, [body[0], body[1]]),
                // This is the CONNACK of a resumed session.
                _ => continue,
            };
            self.answer.extend([reply, 2, id[0], id[1]]);
        }
    }

    fn answer(&mut self, broker: &mut Broker) -> bool {
        if self.answer.is_empty() {
            return false;
        }
        broker.send(self.id, &self.answer);
        self.answer.clear();
        true
    }
}
