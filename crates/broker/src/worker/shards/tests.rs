//! A shard with other replicas: acknowledgements of what they have in memory, and messages that the disk cannot return.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mqtt::{QoS, ReasonCode};
use shard::{
    BatchBuilder, Claim, Command, Filter, MessageKey, NodeIncarnation, SessionUid, Shard, StoredBatch,
};

use super::*;
use crate::access::AllowAll;
use crate::batch::Token;
use crate::durability::Durability;
use crate::message::MessageView;
use crate::node::Node;
use crate::store::{
    Agreement, AgreementEvent, CommittedBatch, Condition, Frame, PeerFrame, Purpose, ReplicaProgress, Step,
    Store, StoreLog, Vacate, Wanted,
};
use crate::worker::Worker;
use crate::worker::lanes::Reader;

const NOW: Time = Time(1_000);
const SHARD: ShardId = ShardId(3);

/// A log and an agreement that do what the test says.
#[derive(Clone, Default)]
pub(in crate::worker) struct Replicas(Arc<Mutex<Decided>>);

#[derive(Default)]
struct Decided {
    steps: VecDeque<Step>,
    proposed: Vec<(u64, Arc<Vec<u8>>)>,
    held: u64,
    /// Requests of the replica to keep messages, and whether they are second tries.
    keep: Vec<(Vec<MessageKey>, bool)>,
    /// Messages that the other voters are asked for.
    sought: Vec<Vec<MessageKey>>,
    /// Messages of other replicas that are written.
    written: Vec<(u64, Vec<u8>)>,
    /// Segments whose messages are kept.
    kept: Vec<u64>,
}

impl Replicas {
    /// The worker of a node with a replica of a shard, which it does not lead.
    pub(in crate::worker) fn worker(&self, settings: Settings) -> Worker {
        let store = Store {
            log: Some(Arc::new(self.clone())),
            shards: Vec::new(),
            agreements: vec![(SHARD, Box::new(self.clone()))],
            own: Some(NodeIncarnation { node: 1, incarnation: 9 }),
            incarnation: Incarnation::default(),
            hash_key: [7; 16],
        };
        let node = Node::with_store(settings, Arc::new(AllowAll), "node".into(), 1, store);
        node.build_workers().remove(0)
    }

    /// Commits a batch that another node has proposed.
    pub(in crate::worker) fn commit(&self, index: u64, bytes: Vec<u8>) {
        let batch = CommittedBatch { index, number: None, bytes: Arc::new(bytes) };
        sync::lock(&self.0).steps.push_back(Step::Commit(batch));
    }
}

impl StoreLog for Replicas {
    fn connect(&self, _: &Arc<Node>) {}
    fn append(&self, _: ShardId, _: u64, _: Arc<Vec<u8>>) {}
    fn part(&self, _: ShardId, _: u64, _: u32, _: Vec<u8>) {}
    fn checkpointed(&self, _: ShardId, _: u64) {}
    fn read(&self, _: ShardId, _: Vec<Wanted>) {}
    fn keep(&self, _: ShardId, keys: Vec<MessageKey>, is_second_try: bool) {
        sync::lock(&self.0).keep.push((keys, is_second_try));
    }
    fn append_bodies(&self, _: ShardId, bodies: Vec<(u64, Vec<u8>)>) {
        sync::lock(&self.0).written.extend(bodies);
    }
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
    fn seek(&mut self, keys: Vec<MessageKey>) {
        sync::lock(&self.0).sought.push(keys);
    }
    fn prepared(&mut self, _: bool) {}
    fn bodies_kept(&mut self, segment: u64) {
        sync::lock(&self.0).kept.push(segment);
    }
    fn held(&mut self) -> u64 {
        sync::lock(&self.0).held
    }
    fn progress(&self) -> Vec<ReplicaProgress> {
        Vec::new()
    }
}

/// A batch with this index, which claims a durable session, and that session.
pub(in crate::worker) fn claimed(index: u64) -> (Vec<u8>, SessionUid) {
    let mut batch = BatchBuilder::new(NOW.0);
    batch.push(&Command::Claim(Claim {
        client_id: "c",
        user: 0,
        owner: Some(NodeIncarnation { node: 1, incarnation: 9 }),
        connection: 1,
        clean_start: false,
        expiry_s: 1000,
        window: 10,
        will: None,
        keeps_ephemeral: false,
        queue_limits: None,
    }));
    let bytes = batch.finish();
    let mut state = Shard::new(SHARD.0, [7; 16]);
    state.apply(index, &bytes, &mut Vec::new()).expect("a batch");
    (bytes, state.sessions_from(0, 1).0[0])
}

pub(in crate::worker) fn subscribes(session: SessionUid) -> Command<'static> {
    let filters = vec![Filter { text: "a", options: 1, id: 0 }];
    Command::Subscribe { session, epoch: 0, filters }
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
        let worker = replicas.worker(settings);
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

/// The replica began here while the read waited for another shard, and has not applied what the read has to find.
#[test]
fn a_read_waits_for_a_replica_that_began_after_it() {
    let mut leader = Leader::start(Settings::default());
    let topics = (0..).map(|number| format!("t/{number}"));
    let topic =
        topics.into_iter().find(|topic| crate::retained::shard_of(topic) == SHARD).expect("one of them");
    let replies = Arc::new(AtomicU32::new(0));
    let counted = replies.clone();
    let reply = Box::new(move |_| {
        counted.fetch_add(1, Relaxed);
    });
    let reader = Reader::Message { topic: topic.into(), reply };
    leader.append(1, QoS::AtLeastOnce);
    leader.worker.begin_read(reader, vec![(SHARD, 1)]);
    leader.worker.resume_reads();
    assert_eq!(replies.load(Relaxed), 0);
    leader.commits();
    leader.worker.resume_reads();
    assert_eq!(replies.load(Relaxed), 1);
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

/// Two messages in the queue of an absent session, in one batch.
struct Queued {
    session: SessionUid,
    keys: [MessageKey; 2],
    /// The messages as another replica sends them.
    bodies: Vec<(u64, Vec<u8>)>,
}

impl Leader {
    fn queue(&mut self) -> Queued {
        let index = self.committed + 1;
        let (claims, session) = claimed(index);
        let mut batch = BatchBuilder::new(NOW.0);
        batch.push(&subscribes(session));
        let keys = [(); 2].map(|()| {
            let view = MessageView { qos: QoS::AtLeastOnce, ..MessageView::plain("a") };
            let publish = Command::Publish { message: view.stored(), wait: true, identity: None };
            MessageKey::new(index + 1, batch.push(&publish).message.expect("a message"))
        });
        let publishes = batch.finish();
        let bodies = vec![(index + 1, StoredBatch::Whole(&publishes).keep(&keys).0)];
        for bytes in [claims, publishes] {
            self.committed += 1;
            self.replicas.commit(self.committed, bytes);
        }
        self.process(None);
        Queued { session, keys, bodies }
    }

    /// Handles an event, and does what is due.
    fn process(&mut self, event: Option<StoreEvent>) {
        let event = event.unwrap_or(StoreEvent::LinkLost(2));
        self.worker.shards.queue_events(vec![(SHARD, event)]);
        for _ in 0..10 {
            self.worker.shards.tick(0, NOW, NOW);
            self.acknowledged();
        }
    }

    fn take_sought(&mut self) -> Vec<Vec<MessageKey>> {
        std::mem::take(&mut self.decided().sought)
    }
}

/// A bad sector of one disk loses no message that another disk has.
#[test]
fn a_message_that_the_disk_cannot_return_comes_from_another_replica() {
    let mut leader = Leader::start(Settings::default());
    let Queued { session, keys, bodies } = leader.queue();
    let purpose = Purpose::Delivery { session, number: 1 };
    let wanted = Wanted { purpose, key: keys[0], is_second_try: true };
    leader.process(Some(StoreEvent::Read(vec![(wanted, None)])));
    // What the log keeps of a batch replaces what it kept before.
    assert_eq!(leader.take_sought(), [keys.to_vec()], "all that is needed of the batch");
    assert_eq!(leader.decided().proposed.len(), 0, "nothing is skipped");
    leader.decided().steps.push_back(Step::Sought(bodies.clone()));
    leader.process(None);
    assert_eq!(leader.decided().written, bodies);
    assert_eq!(leader.worker.shards.replica_counters().repaired, 2);
    assert_eq!(leader.take_sought(), Vec::<Vec<MessageKey>>::new());
}

/// The shard may move to another core.
#[test]
fn counters_stay_when_a_replica_ends() {
    let mut leader = Leader::start(Settings::default());
    let Queued { session, keys, bodies } = leader.queue();
    let purpose = Purpose::Delivery { session, number: 1 };
    let wanted = Wanted { purpose, key: keys[0], is_second_try: true };
    leader.process(Some(StoreEvent::Read(vec![(wanted, None)])));
    leader.decided().steps.push_back(Step::Sought(bodies));
    leader.process(None);
    let figures = |leader: &Leader| {
        let mut sum = StoreCounters::default();
        leader.worker.shards.add_counters(&mut sum);
        (sum.read_repaired, leader.worker.shards.replica_counters().repaired)
    };
    assert_eq!(figures(&leader), (2, 2));
    leader.worker.shards.remove(SHARD).expect("a replica");
    assert_eq!(figures(&leader), (2, 2));
}

#[test]
fn a_segment_with_a_message_that_the_disk_cannot_return_is_freed_after_another_replica_has_sent_it() {
    let mut leader = Leader::start(Settings::default());
    let Queued { keys, bodies, .. } = leader.queue();
    let vacate = Vacate { segment: 5, batches: Some((1, leader.committed)), kept: Vec::new() };
    leader.decided().steps.push_back(Step::Vacate(vacate));
    leader.process(None);
    for is_second_try in [false, true] {
        let asked = std::mem::take(&mut leader.decided().keep);
        assert_eq!(asked, [(keys.to_vec(), is_second_try)]);
        leader.process(Some(StoreEvent::Kept { records: 0, failed: keys.to_vec() }));
    }
    assert_eq!(leader.take_sought(), [keys.to_vec()]);
    assert_eq!(leader.decided().kept, [0; 0]);
    leader.decided().steps.push_back(Step::Sought(bodies.clone()));
    leader.process(None);
    assert_eq!(leader.decided().written, bodies);
    assert_eq!(leader.decided().kept, [0; 0], "they are not durable yet");
    leader.process(Some(StoreEvent::KeptDurable(1)));
    assert_eq!(leader.decided().kept, [5]);
}

/// Another replica has asked for them, and gets them when this one has them.
#[test]
fn messages_that_cannot_be_sent_to_another_replica_are_sought() {
    let mut leader = Leader::start(Settings::default());
    let Queued { keys, bodies, .. } = leader.queue();
    leader.decided().steps.push_back(Step::Unreadable(keys[1..].to_vec()));
    leader.process(None);
    assert_eq!(leader.take_sought(), [keys.to_vec()]);
    leader.decided().steps.push_back(Step::Sought(bodies.clone()));
    leader.process(None);
    assert_eq!(leader.decided().written, bodies);
}
