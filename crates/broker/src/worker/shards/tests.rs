//! Acknowledgements of a shard whose replicas report what they have in memory.

use std::sync::Mutex;

use mqtt::{QoS, ReasonCode};
use shard::{MessageKey, NodeIncarnation};

use super::*;
use crate::access::AllowAll;
use crate::batch::Token;
use crate::durability::Durability;
use crate::message::MessageView;
use crate::node::Node;
use crate::store::{
    Agreement, AgreementEvent, CommittedBatch, Condition, Frame, PeerFrame, ReplicaProgress, Step, Store,
    StoreLog, Wanted,
};
use crate::worker::Worker;

const NOW: Time = Time(1_000);
const SHARD: ShardId = ShardId(3);

/// A log and an agreement that do what the test says.
#[derive(Clone, Default)]
struct Replicas(Arc<Mutex<Decided>>);

#[derive(Default)]
struct Decided {
    steps: VecDeque<Step>,
    proposed: Vec<(u64, Arc<Vec<u8>>)>,
    held: u64,
}

impl StoreLog for Replicas {
    fn connect(&self, _: &Arc<Node>) {}
    fn append(&self, _: ShardId, _: u64, _: Arc<Vec<u8>>) {}
    fn part(&self, _: ShardId, _: u64, _: u32, _: Vec<u8>) {}
    fn checkpointed(&self, _: ShardId, _: u64) {}
    fn read(&self, _: ShardId, _: Vec<Wanted>) {}
    fn keep(&self, _: ShardId, _: Vec<MessageKey>, _: bool) {}
    fn append_bodies(&self, _: ShardId, _: Vec<(u64, Vec<u8>)>) {}
    fn has_bodies(&self, _: ShardId, _: u64) -> bool {
        false
    }
    fn vacated(&self, _: ShardId, _: u64) {}
    fn report_live(&self, _: ShardId, _: u64) {}
    fn condition(&self) -> Condition {
        Condition::Good
    }
}

impl Agreement for Replicas {
    fn handle(&mut self, _: AgreementEvent) {}
    fn receive(&mut self, _: PeerFrame) {}
    fn link_lost(&mut self, _: u64) {}
    fn set_condition(&mut self, _: Condition) {}
    fn turn(&mut self, _: Time) {}
    fn timeout(&self) -> Time {
        Time::NEVER
    }
    fn poll_frame(&mut self) -> Option<Frame> {
        None
    }
    fn durable(&self) -> u64 {
        0
    }
    fn propose(&mut self, number: u64, batch: Arc<Vec<u8>>) {
        sync::lock(&self.0).proposed.push((number, batch));
    }
    fn read_barrier(&mut self, _: u64) {}
    fn poll(&mut self) -> Option<Step> {
        sync::lock(&self.0).steps.pop_front()
    }
    fn done(&mut self) {}
    fn put(&mut self, _: u32, _: &[u8]) {}
    fn wrote(&mut self, _: bool) {}
    fn refuse(&mut self, why: &str) {
        panic!("{why}");
    }
    fn fetch(&mut self, _: Vec<MessageKey>) {}
    fn prepared(&mut self, _: bool) {}
    fn bodies_kept(&mut self, _: u64) {}
    fn held(&mut self) -> u64 {
        sync::lock(&self.0).held
    }
    fn progress(&self) -> Vec<ReplicaProgress> {
        Vec::new()
    }
}

/// The worker of a node that leads a shard.
struct Leader {
    worker: Worker,
    replicas: Replicas,
    committed: u64,
}

impl Leader {
    fn start(settings: Settings) -> Self {
        let replicas = Replicas::default();
        let store = Store {
            log: Some(Arc::new(replicas.clone())),
            shards: Vec::new(),
            agreements: vec![(SHARD, Box::new(replicas.clone()))],
            own: Some(NodeIncarnation { node: 1, incarnation: 9 }),
            incarnation: Incarnation::default(),
            hash_key: [7; 16],
        };
        let node = Node::with_store(settings, Arc::new(AllowAll), "node".into(), 1, store);
        let worker = node.build_workers().remove(0);
        let mut leader = Self { worker, replicas, committed: 0 };
        leader.decided().steps.push_back(Step::Leads { term: 1 });
        assert_eq!(leader.acknowledged(), []);
        leader
    }

    fn decided(&self) -> std::sync::MutexGuard<'_, Decided> {
        sync::lock(&self.replicas.0)
    }

    /// Appends a message of durability `memory`. Its token has this number.
    fn append(&mut self, sequence: u32, qos: QoS) {
        let view = MessageView { qos, durability: Durability::Memory, ..MessageView::plain("a") };
        let (message, token) = (view.to_message(), Some(self.token(sequence)));
        let append = Request::Append { message, identity: None, refusal: None, token };
        self.worker.shards.apply(NOW, SHARD, append);
        self.worker.shards.end_turn(NOW, true);
    }

    fn token(&self, sequence: u32) -> Token {
        Token::Copy { worker: WorkerId(0), key: sequence }
    }

    /// Numbers of the messages that are acknowledged now.
    fn acknowledged(&mut self) -> Vec<u32> {
        let shards = &mut self.worker.shards;
        shards.queue_events(vec![(SHARD, StoreEvent::LinkLost(2))]);
        shards.process_events(NOW);
        let output = shards.take_output();
        let numbers = output.acknowledged.iter().map(|(token, reason)| match token {
            Token::Copy { key, .. } if *reason == ReasonCode::Success => *key,
            _ => panic!("{token:?}: {reason}"),
        });
        numbers.collect()
    }

    /// Commits all batches. Returns the numbers of the messages that are acknowledged then.
    fn commits(&mut self) -> Vec<u32> {
        let proposed = std::mem::take(&mut self.decided().proposed);
        for (number, bytes) in proposed {
            self.committed += 1;
            let batch = CommittedBatch { index: self.committed, number: Some(number), bytes };
            self.decided().steps.push_back(Step::Commit(batch));
        }
        self.acknowledged()
    }

    fn unsynced(&self) -> u64 {
        self.worker.unsynced().0
    }
}

/// [MQTT-4.3.3-8]: the publisher gives a message of QoS 2 up when it has PUBREC.
#[test]
fn qos_2_waits_for_the_disks_of_a_majority_and_qos_1_for_its_memory() {
    let mut leader = Leader::start(Settings::default());
    leader.append(1, QoS::AtLeastOnce);
    leader.append(2, QoS::ExactlyOnce);
    leader.append(3, QoS::AtLeastOnce);
    leader.append(4, QoS::AtLeastOnce);
    assert_eq!(leader.acknowledged(), []);
    leader.decided().held = 2;
    assert_eq!(leader.acknowledged(), [1]);
    leader.decided().held = 3;
    assert_eq!(leader.acknowledged(), [3]);
    assert_eq!(leader.commits(), [2, 4]);
    // The last one was committed before it was known to be held, and counts as queued when it is.
    assert!(leader.unsynced() > 0);
    leader.decided().held = 4;
    assert_eq!(leader.acknowledged(), []);
    assert_eq!(leader.unsynced(), 0);
}
