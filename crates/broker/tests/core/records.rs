//! Contents and times of the records of the log: one worker over a log that syncs on request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::AllowAll;
use broker::settings::Settings;
use broker::{
    Batch, Condition, Incarnation, Node, SHARDS, ShardId, Store, StoreEvent, StoreLog, Time, Wanted, Worker,
    WorkerCommand,
};
use mqtt::{QoS, Version, decode, frame};
use shard::Command;
use testkit::packets::*;

const VERSION: Version = Version::V5;

/// Keeps appended records until they are looked at.
#[derive(Default)]
struct Appended(Mutex<Vec<Record>>);

struct Record {
    shard: ShardId,
    index: u64,
    batch: Arc<Vec<u8>>,
}

impl StoreLog for Appended {
    fn connect(&self, _: &Arc<Node>) {}

    fn append(&self, shard: ShardId, index: u64, batch: Arc<Vec<u8>>) {
        self.0.lock().expect("no panic").push(Record { shard, index, batch });
    }

    fn part(&self, _: ShardId, _: u64, _: u32, _: Vec<u8>) {}
    fn checkpointed(&self, _: ShardId, _: u64) {}

    fn read(&self, _: ShardId, _: Vec<Wanted>) {
        panic!("everything is in memory");
    }

    fn keep(&self, _: ShardId, _: Vec<shard::MessageKey>, _: bool) {
        unreachable!("no segment is freed")
    }

    fn append_bodies(&self, _: ShardId, _: Vec<(u64, Vec<u8>)>) {
        unreachable!("no other node has the shard")
    }

    fn has_bodies(&self, _: ShardId, _: u64) -> bool {
        true
    }

    fn vacated(&self, _: ShardId, _: u64) {}
    fn report_live(&self, _: ShardId, _: u64) {}

    fn condition(&self) -> Condition {
        Condition::Good
    }
}

struct Broker {
    node: Arc<Node>,
    worker: Worker,
    log: Arc<Appended>,
    commands: Arc<Mutex<Vec<WorkerCommand>>>,
    now: Time,
}

impl Broker {
    fn new() -> Self {
        let log = Arc::new(Appended::default());
        Self::over(log.clone(), Some(log))
    }

    /// A broker that keeps nothing on disk.
    fn in_memory() -> Self {
        Self::over(Arc::default(), None)
    }

    fn over(log: Arc<Appended>, store_log: Option<Arc<dyn StoreLog>>) -> Self {
        let mut settings = Settings::default();
        settings.sys.interval = Duration::ZERO;
        let incarnation = Incarnation { began: Time(1), number: 1 };
        let store = Store {
            log: store_log,
            shards: Vec::new(),
            agreements: Vec::new(),
            own: None,
            incarnation,
            hash_key: [3; 16],
        };
        let node = Node::with_store(settings, Arc::new(AllowAll), "test".into(), 1, store);
        let worker = node.build_workers().remove(0);
        let commands = Arc::new(Mutex::new(Vec::new()));
        let mailbox = commands.clone();
        node.set_mailbox(move |_, command| mailbox.lock().expect("no panic").push(command));
        let mut broker = Self { node, worker, log, commands, now: Time(1) };
        broker.settle();
        broker
    }

    fn turn(&mut self) {
        if self.worker.next_timeout() <= self.now {
            self.worker.tick(self.now);
        }
        self.worker.settle(self.now);
        self.worker.end_turn();
    }

    /// Syncs the records of the log since the last call. Returns the commands of each record.
    fn sync(&mut self) -> Vec<Vec<String>> {
        let records = std::mem::take(&mut *self.log.0.lock().expect("no panic"));
        let names = |batch: &[u8]| shard::commands(batch).expect("a batch").iter().map(name).collect();
        let commands = records.iter().map(|record| names(&record.batch)).collect();
        let durable = |record: Record| (record.shard, StoreEvent::Durable(record.index));
        self.node.store_events(records.into_iter().map(durable));
        for command in std::mem::take(&mut *self.commands.lock().expect("no panic")) {
            self.worker.take_batch(self.now, &mut Batch::of(command));
        }
        commands
    }

    /// Runs turns and syncs until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.turn();
            if self.sync().is_empty() {
                return;
            }
        }
        panic!("it does not stop");
    }

    fn send(&mut self, slot: u32, packet: impl Into<Sent>) {
        let mut bytes = Vec::new();
        packet.into().encode(VERSION, &mut bytes);
        assert_eq!(self.worker.receive(self.now, slot, &bytes).consumed, bytes.len());
    }

    fn connect(&mut self, connecting: Connecting) -> u32 {
        let slot = self.worker.open(self.now, None).slot;
        self.send(slot, connecting);
        self.settle();
        slot
    }

    /// Connects a durable session with one subscription and room for `receive_max` deliveries in flight.
    fn subscriber(&mut self, receive_max: u16) -> u32 {
        let slot = self.connect(durable(VERSION, "s").receive_max(receive_max));
        self.send(slot, subscribe(1).to("t", QoS::AtLeastOnce));
        self.settle();
        self.received(slot);
        slot
    }

    fn received(&mut self, slot: u32) -> Vec<Sent> {
        let out = self.worker.output(slot).expect("it is connected");
        let mut bytes = Vec::new();
        out.take(usize::MAX, &mut bytes);
        let mut all = Vec::new();
        let mut rest = bytes.as_slice();
        while let Ok(Some(length)) = frame(rest, u32::MAX) {
            all.push(Sent::from_server(&decode(VERSION, &rest[..length]).expect("a legal packet")));
            rest = &rest[length..];
        }
        all
    }
}

fn name(command: &Command<'_>) -> String {
    format!("{command:?}").split([' ', '(']).next().unwrap_or_default().to_owned()
}

/// A subscriber with one message that it has received and not acknowledged, and a publisher.
fn one_delivered(receive_max: u16) -> (Broker, u32, u32) {
    let mut broker = Broker::new();
    let subscriber = broker.subscriber(receive_max);
    let publisher = broker.connect(v5("p"));
    broker.send(publisher, message("t", 1).qos1(1));
    broker.turn();
    assert_eq!(broker.received(subscriber), [], "nothing is delivered before it is durable");
    assert_eq!(broker.sync(), [["Publish"]]);
    broker.turn();
    assert_eq!(broker.received(subscriber), [message("t", 1).qos1(1).into()]);
    (broker, subscriber, publisher)
}

#[test]
fn an_acknowledgement_is_written_with_the_next_message() {
    let (mut broker, subscriber, publisher) = one_delivered(10);
    broker.send(subscriber, puback(1));
    broker.turn();
    assert_eq!(broker.sync(), Vec::<Vec<String>>::new(), "no request waits for it");
    broker.send(publisher, message("t", 2).qos1(2));
    broker.turn();
    assert_eq!(broker.sync(), [["Acknowledge", "Publish"]]);
    broker.turn();
    assert_eq!(broker.received(subscriber), [message("t", 2).qos1(2).into()]);
}

#[test]
fn an_acknowledgement_is_written_by_itself_after_a_while() {
    let (mut broker, subscriber, _) = one_delivered(10);
    broker.send(subscriber, puback(1));
    broker.turn();
    assert!(broker.sync().is_empty());
    let due = broker.worker.next_timeout();
    assert!(due > broker.now && due <= Time(broker.now.0 + 10), "the worker wakes for it at {due:?}");
    broker.now = due;
    broker.turn();
    assert_eq!(broker.sync(), [["Acknowledge"]]);
    assert!(broker.worker.next_timeout() > broker.now);
}

#[test]
fn an_acknowledgement_that_a_message_waits_for_is_written_at_once() {
    let (mut broker, subscriber, publisher) = one_delivered(1);
    broker.send(publisher, message("t", 2).qos1(2));
    broker.settle();
    assert_eq!(broker.received(subscriber), [], "the window is closed");
    broker.send(subscriber, puback(1));
    broker.turn();
    assert_eq!(broker.sync(), [["Acknowledge"]]);
    broker.turn();
    assert_eq!(broker.received(subscriber), [message("t", 2).qos1(2).into()]);
}

/// The message is on its way to the log when the acknowledgement arrives.
#[test]
fn an_acknowledgement_is_written_when_a_message_begins_to_wait_for_it() {
    let (mut broker, subscriber, publisher) = one_delivered(1);
    broker.send(publisher, message("t", 2).qos1(2));
    broker.turn();
    broker.send(subscriber, puback(1));
    broker.turn();
    assert_eq!(broker.sync(), [["Publish"]]);
    broker.turn();
    assert_eq!(broker.sync(), [["Acknowledge"]]);
    broker.turn();
    assert_eq!(broker.received(subscriber), [message("t", 2).qos1(2).into()]);
}

#[test]
fn a_waiting_acknowledgement_is_written_when_the_node_stops() {
    let (mut broker, subscriber, _) = one_delivered(10);
    broker.send(subscriber, puback(1));
    broker.turn();
    assert!(broker.sync().is_empty());
    broker.worker.stop(broker.now);
    broker.turn();
    let commands = broker.sync().concat();
    assert!(commands.contains(&"Acknowledge".to_owned()), "{commands:?}");
}

/// Creates absent durable sessions that subscribe to `t`, all in one shard or in their own shards.
fn absent(broker: &mut Broker, count: usize, in_one_shard: bool) {
    let names = (0..).map(|number| format!("s{number}"));
    let is_wanted = |name: &String| !in_one_shard || shard::client_bucket(name).is_multiple_of(SHARDS);
    let names: Vec<_> = names.filter(is_wanted).take(count).collect();
    let slots: Vec<_> = names.iter().map(|_| broker.worker.open(broker.now, None).slot).collect();
    slots.iter().zip(&names).for_each(|(slot, name)| broker.send(*slot, durable(VERSION, name)));
    broker.settle();
    slots.iter().for_each(|slot| broker.send(*slot, subscribe(1).to("t", QoS::AtLeastOnce)));
    broker.settle();
    slots.iter().for_each(|slot| broker.send(*slot, goodbye()));
    broker.settle();
    // The end of a connection without a Will waits for other records.
    broker.now = Time(broker.now.0 + 10);
    broker.settle();
}

/// A message for very many sessions does not keep a turn busy for as long as that takes.
#[test]
fn the_effects_of_the_log_in_one_turn_are_bounded() {
    for in_one_shard in [false, true] {
        let mut broker = Broker::new();
        absent(&mut broker, 10_000, in_one_shard);
        let publisher = broker.connect(v5("p"));
        broker.received(publisher);
        broker.send(publisher, message("t", 1).qos1(1));
        broker.turn();
        assert!(!broker.sync().is_empty());
        assert!(broker.worker.is_behind());
        broker.worker.settle(broker.now);
        assert_eq!(broker.received(publisher), [], "some are not queued yet");
        assert!(broker.worker.next_timeout() <= broker.now);
        broker.turn();
        assert!(!broker.worker.is_behind());
        assert_eq!(broker.received(publisher), [puback(1)]);
    }
}

/// The work is bounded without a log too, and commands that arrive meanwhile wait for it.
#[test]
fn the_effects_of_one_turn_without_a_log_are_bounded() {
    let mut broker = Broker::in_memory();
    absent(&mut broker, 1_500, true);
    let publisher = broker.connect(v5("p"));
    broker.received(publisher);
    broker.send(publisher, message("t", 1).qos1(1));
    broker.worker.settle(broker.now);
    broker.send(publisher, message("t", 2).qos1(2));
    broker.worker.settle(broker.now);
    assert_eq!(broker.received(publisher), [], "some are not queued yet");
    for _ in 0..10 {
        assert!(broker.worker.next_timeout() <= broker.now || broker.worker.next_timeout() > Time(2));
        broker.turn();
    }
    assert_eq!(broker.received(publisher), [puback(1), puback(2)]);
    assert!(broker.worker.next_timeout() > broker.now, "nothing is left");
}

const MANY: usize = 2_000;

fn subscribe_to_many(broker: &mut Broker, slot: u32) {
    for (packet_id, first) in (1..).zip((0..MANY).step_by(500)) {
        let names = (first..first + 500).map(|number| format!("many/{number}"));
        broker.send(slot, names.fold(subscribe(packet_id), |all, name| all.to(&name, QoS::AtLeastOnce)));
        turns_until_done(broker);
        broker.settle();
    }
    broker.received(slot);
}

/// Makes turns until nothing is left over. Returns their number.
fn turns_until_done(broker: &mut Broker) -> usize {
    (1..=50)
        .find(|_| {
            broker.turn();
            !broker.worker.is_behind()
        })
        .expect("the work ends")
}

/// A client with very many subscriptions does not keep a turn busy when its connection ends.
#[test]
fn routes_of_a_connection_are_removed_in_portions() {
    let mut broker = Broker::in_memory();
    let many = broker.connect(v5("many"));
    subscribe_to_many(&mut broker, many);
    let other = broker.connect(v5("other"));
    broker.send(other, subscribe(1).to("t", QoS::AtMostOnce));
    broker.settle();
    broker.received(other);
    assert_eq!(broker.node.routes.len(), MANY + 1);

    broker.worker.lost(broker.now, many);
    broker.turn();
    assert!(broker.worker.is_behind() && broker.node.routes.len() > MANY / 2);
    // Messages for the connection that is gone go nowhere, and others are served.
    let topics = (0..MANY).step_by(100).map(|number| format!("many/{number}"));
    for (packet_id, topic) in (1..).zip(topics) {
        broker.send(other, message(&topic, 1).qos1(packet_id));
    }
    broker.send(other, message("t", 2));
    broker.turn();
    assert!(broker.worker.is_behind());
    let mut received = broker.received(other);
    let delivered = received.extract_if(.., |packet| *packet == Sent::from(message("t", 2))).count();
    assert_eq!((delivered, received.len()), (1, 20), "each publisher gets PUBACK: {received:?}");
    let turns = turns_until_done(&mut broker);
    assert!((3..=8).contains(&turns), "{turns}");
    assert_eq!(broker.node.routes.len(), 1);
}

/// A session with very many subscriptions does not keep a turn busy when it is resumed. Its client may change them
/// meanwhile, and its connection may end.
#[test]
fn routes_of_a_resumed_session_are_added_in_portions() {
    let mut broker = Broker::new();
    let first = broker.connect(durable(VERSION, "many"));
    subscribe_to_many(&mut broker, first);
    // Each subscription has a route of the session, and one of its connection for QoS 0.
    assert_eq!(broker.node.routes.len(), 2 * MANY);
    let leave = |broker: &mut Broker, slot: u32| {
        broker.worker.lost(broker.now, slot);
        broker.settle();
        broker.now = Time(broker.now.0 + 10);
        broker.settle();
        turns_until_done(broker);
    };
    leave(&mut broker, first);
    assert_eq!(broker.node.routes.len(), MANY);

    let resume = |broker: &mut Broker| {
        let slot = broker.worker.open(broker.now, None).slot;
        broker.send(slot, durable(VERSION, "many"));
        broker.turn();
        broker.sync();
        broker.turn();
        assert_eq!(broker.received(slot).len(), 1, "CONNACK does not wait");
        assert!(broker.worker.is_behind());
        slot
    };
    let second = resume(&mut broker);
    let routes = broker.node.routes.len();
    assert!((MANY + 1..2 * MANY).contains(&routes), "{routes}");
    let all: Vec<_> = (0..MANY).map(|number| format!("many/{number}")).collect();
    broker.send(second, unsubscribe(7, &all[..100].iter().map(String::as_str).collect::<Vec<_>>()));
    broker.send(second, subscribe(8).to("many/0", QoS::AtMostOnce));
    broker.settle();
    turns_until_done(&mut broker);
    assert_eq!(broker.node.routes.len(), 2 * (MANY - 99));
    broker.received(second);
    let publisher = broker.connect(v5("p"));
    for topic in ["many/0", "many/1", "many/100", "many/1999"] {
        broker.send(publisher, message(topic, 1));
    }
    broker.settle();
    let topics = [message("many/0", 1), message("many/100", 1), message("many/1999", 1)];
    assert_eq!(broker.received(second), topics.map(Sent::from));
    leave(&mut broker, second);
    assert_eq!(broker.node.routes.len(), MANY - 99);

    let third = resume(&mut broker);
    // Some of these have no route yet.
    let again = (0..MANY).step_by(100).map(|number| format!("many/{number}"));
    broker.send(third, again.fold(subscribe(9), |all, name| all.to(&name, QoS::AtLeastOnce)));
    broker.turn();
    broker.sync();
    broker.turn();
    assert!(!broker.received(third).is_empty() && broker.worker.is_behind());
    broker.worker.lost(broker.now, third);
    broker.settle();
    turns_until_done(&mut broker);
    assert_eq!(broker.node.routes.len(), MANY - 99, "no route of the connection is left");
}
