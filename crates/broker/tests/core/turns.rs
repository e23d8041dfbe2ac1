//! Workers in turns, as reactors run them. Each has one mailbox, which is read in the order of sending, with any delay.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use broker::access::AllowAll;
use broker::settings::Settings;
use broker::{Batch, Node, Time, Worker, WorkerId};
use mqtt::{QoS, Version, decode, frame};

use random::Random;
use testkit::packets::*;

struct Turns {
    workers: Vec<Worker>,
    mailboxes: Vec<VecDeque<Batch>>,
}

const NOW: Time = Time(1);
const VERSION: Version = Version::V5;

impl Turns {
    fn of(workers: u16) -> Turns {
        let mut settings = Settings::default();
        settings.sys.interval = std::time::Duration::ZERO;
        let node = Node::new(settings, Arc::new(AllowAll), "test".into(), workers, [3; 16]);
        Turns { workers: node.build_workers(), mailboxes: (0..workers).map(|_| VecDeque::new()).collect() }
    }

    fn connect(&mut self, worker: usize, connecting: Connecting) -> u32 {
        let slot = self.workers[worker].open(NOW, None).slot;
        self.receive(worker, slot, connecting);
        self.run();
        slot
    }

    fn receive(&mut self, worker: usize, slot: u32, packet: impl Into<Sent>) {
        let mut bytes = Vec::new();
        packet.into().encode(VERSION, &mut bytes);
        assert_eq!(self.workers[worker].receive(NOW, slot, &bytes).consumed, bytes.len());
    }

    /// Reads the mailbox, then sends everything of the turn.
    fn turn(&mut self, at: usize, mail: usize) {
        for _ in 0..mail {
            let Some(mut batch) = self.mailboxes[at].pop_front() else { break };
            self.workers[at].take_batch(NOW, &mut batch);
        }
        self.finish(at);
    }

    fn finish(&mut self, at: usize) {
        self.workers[at].settle(NOW);
        for to in (0..self.workers.len()).filter(|to| *to != at) {
            let outgoing = self.workers[at].outgoing(WorkerId(to as u16));
            if !outgoing.is_empty() {
                let batch = std::mem::take(outgoing);
                self.mailboxes[to].push_back(batch);
            }
        }
        self.workers[at].end_turn();
    }

    fn run(&mut self) {
        // Nothing in this test takes more turns than this.
        for _ in 0..20 {
            for at in 0..self.workers.len() {
                self.turn(at, usize::MAX);
            }
        }
        assert!(self.mailboxes.iter().all(VecDeque::is_empty));
    }

    fn received(&mut self, worker: usize, slot: u32) -> Vec<Sent> {
        let out = self.workers[worker].output(slot).expect("it is connected");
        let mut bytes = Vec::new();
        while !out.is_empty() {
            let pending = out.pending().to_vec();
            out.advance(pending.len());
            bytes.extend(pending);
        }
        let mut all = Vec::new();
        let mut rest = bytes.as_slice();
        while let Ok(Some(length)) = frame(rest, u32::MAX) {
            let packet = decode(VERSION, &rest[..length]).expect("the server sends legal packets");
            all.push(Sent::from_server(&packet));
            rest = &rest[length..];
        }
        all
    }
}

/// [MQTT-3.3.1-9]: retained messages are replaced while a client subscribes. Whatever the order, and however late each
/// worker is, the last message that the subscriber gets is the newest one, and it gets it once.
#[test]
fn a_new_subscriber_ends_with_the_newest_retained_message() {
    for seed in 0..4000 {
        let mut random = Random::new(seed);
        let workers = 1 + random.below(3);
        let mut turns = Turns::of(workers as u16);
        let (home, away) = (random.below(workers), random.below(workers));
        let publisher = turns.connect(home, v5("p"));
        let (durability, qos) =
            [(v5("s"), QoS::AtMostOnce), (durable(VERSION, "s"), QoS::AtMostOnce)][random.below(2)].clone();
        let subscriber = turns.connect(away, durability);
        let topics: Vec<_> = (0..4).map(|number| format!("t/{number}")).collect();
        for topic in &topics {
            if random.percent(80) {
                turns.receive(home, publisher, message(topic, "old").retain());
            }
        }
        turns.run();
        turns.received(away, subscriber);
        let mut new: Vec<_> = topics.iter().map(|topic| message(topic, "new").retain()).collect();
        let mut wants = Some(subscribe(1).to("t/+", qos));
        while !new.is_empty() || wants.is_some() {
            match random.below(3) {
                0 => {
                    if let Some(message) = new.pop() {
                        turns.receive(home, publisher, message);
                    }
                }
                1 if random.percent(50) => {
                    if let Some(packet) = wants.take() {
                        turns.receive(away, subscriber, packet);
                    }
                }
                _ => turns.turn(random.below(workers), random.below(3)),
            }
        }
        for _ in 0..20 {
            turns.turn(random.below(workers), random.below(3));
        }
        turns.run();
        let mut last = BTreeMap::new();
        let mut news = 0;
        for packet in turns.received(away, subscriber) {
            if let Sent::Publish(message) = packet {
                news += usize::from(message.payload == "new");
                last.insert(message.topic.clone(), message.payload);
            }
        }
        assert_eq!(last.len(), topics.len(), "seed {seed}");
        assert!(last.values().all(|payload| payload == "new"), "seed {seed}: {last:?}");
        assert_eq!(news, topics.len(), "seed {seed}: a message arrived both live and as a retained one");
    }
}
