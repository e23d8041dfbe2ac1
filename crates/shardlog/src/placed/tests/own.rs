//! A core founds the cluster with the state of a node alone.

mod merged;

use broker::Step;
use mqtt::{PacketId, QoS};
use shard::{
    BatchBuilder, Claim, Command, Filter, Identity, MessageKey, MessageView, NEVER, Shard, Will, WillFate,
};

use super::*;
use crate::log::stored;
use crate::own_state::{GroupsOfCore, sort_groups};
use crate::restore::restore;

/// Times of the same moment, by the clock of the node alone and by that of the cluster.
const OWN_NOW: Time = Time(90_000);
const NOW: Time = Time(1_700_000_000_000);
const OWNER_KEY: [u8; 16] = [7; 16];

fn message(payload: &[u8], expires: u64) -> MessageView<'_> {
    MessageView {
        topic: "t",
        properties: &[],
        payload,
        qos: QoS::ExactlyOnce,
        retain: false,
        expires,
        received: 50,
        publisher_key: 0,
    }
}

/// The shard of a node alone, and its log.
struct Alone {
    shard: Shard,
    log: Arc<ShardLog>,
    writer: Writer,
    /// Keys of the messages that wait in a queue.
    keys: Vec<MessageKey>,
}

impl Alone {
    fn apply(&mut self, command: &Command<'_>) {
        let mut batch = BatchBuilder::new(60_000);
        let pushed = batch.push(command);
        let index = self.shard.applied() + 1;
        if let (Command::Publish { .. }, Some(offset)) = (command, pushed.message) {
            self.keys.push(MessageKey::new(index, offset));
        }
        let batch = batch.finish();
        self.shard.apply(index, &batch, &mut Vec::new()).expect("the next batch");
        self.log.append(SHARD, index, Arc::new(batch));
        self.writer.commit_once().expect("a disk");
    }

    fn checkpoint(&mut self) {
        let index = self.shard.begin_checkpoint();
        while !self.shard.write_parts(1, &mut |part, bytes| {
            self.log.part(SHARD, index, part.as_u32(), bytes.to_vec());
        }) {}
        self.log.checkpointed(SHARD, index);
        self.writer.commit_once().expect("a disk");
    }
}

/// Runs a node alone. Two messages wait for a client that is gone, and another one is connected.
fn run_alone(disk: &FaultDisk) -> (Shard, Vec<MessageKey>) {
    let notifier = Arc::new(LogNotifier::default());
    let options = storage::Options { segment_bytes: 1 << 20, ..storage::Options::default() };
    let events = Box::new(EventForwarder(notifier.clone()));
    let opened = storage::open(Arc::new(disk.clone()), options, events, &mut |_| ()).expect("a log");
    let log = ShardLog::new(opened.log, notifier, |_| ());
    let shard = Shard::new(SHARD.0, OWNER_KEY);
    let mut alone = Alone { shard, log, writer: opened.writer, keys: Vec::new() };
    alone.apply(&Command::Started { incarnation: 1, elapsed_ms: 0 });
    let mut sessions = Vec::new();
    for client_id in ["gone", "here"] {
        let will = Some(Will { message: message(b"will", NEVER), delay_s: 5 });
        alone.apply(&Command::Claim(Claim {
            client_id,
            user: 9,
            owner: None,
            connection: 1,
            clean_start: false,
            expiry_s: 300,
            window: 10,
            will,
            keeps_ephemeral: false,
            queue_limits: None,
        }));
        let session = alone.shard.session_of(client_id).expect("a session");
        let filters = vec![Filter { text: "t", options: 2, id: 0 }];
        alone.apply(&Command::Subscribe { session, epoch: 1, filters });
        sessions.push(session);
    }
    let (session, epoch) = (sessions[0], 1);
    alone.apply(&Command::Release { session, epoch, expiry_s: None, will: WillFate::Discard });
    let publish = |payload, expires, identity| Command::Publish {
        message: message(payload, expires),
        wait: true,
        identity: Some(identity),
    };
    // Its session is gone, and the process has ended before the shard forgot it.
    alone.apply(&publish(b"one", NEVER, STALE));
    alone.checkpoint();
    alone.apply(&publish(b"two", 160_000, current(&alone.shard)));
    alone.apply(&Command::Retain { message: MessageView { retain: true, ..message(b"kept", 190_000) } });
    let packet_id = PacketId::new(3).expect("not 0");
    alone.apply(&Command::Receive { session: sessions[1], epoch, packet_id });
    (alone.shard, alone.keys)
}

const STALE: Identity = Identity { origin: 77, number: 2 };

/// Identity of a message that the connected client may send again.
fn current(shard: &Shard) -> Identity {
    let uid = shard.session_of("here").expect("a session").as_u64();
    let session = broker::SessionId { shard: SHARD, slot: uid as u32, generation: (uid >> 32) as u32 };
    let packet_id = PacketId::new(2).expect("not 0");
    let identity = broker::Identity::of_publish(session, packet_id, false);
    Identity { origin: identity.origin, number: identity.number }
}

/// Starts a core whose log has the shard of a node alone, or had it before.
fn start(disk: &FaultDisk, list: StoredReplicas) -> Core {
    let known = list.clone();
    Core::start_with(disk, list, move |_, groups| {
        let first = known == StoredReplicas::default();
        let GroupsOfCore { own, replicas } = match first {
            true => GroupsOfCore { own: groups, replicas: Vec::new() },
            false => sort_groups(&known, groups),
        };
        let restored = own.into_iter().map(|group| {
            let shard = restore(SHARD.0, Some(group), OWNER_KEY, &mut || ()).expect("a shard");
            (SHARD, shard)
        });
        let shards: BTreeMap<_, _> = restored.collect();
        let own = OwnState { shards, owner_key: OWNER_KEY, now: Box::new(|| OWN_NOW) };
        (replicas, Some(own).filter(|own| !own.shards.is_empty()))
    })
}

/// The placement that the core has founded.
fn founded() -> Placement {
    placement(5, 5, &[(OWN, 5)])
}

/// Follows the placement until the replica begins. Returns nothing if the disk fails before.
fn begin(core: &mut Core) -> Option<ReplicaStart> {
    for _ in 0..20 {
        core.replicas.follow(NOW, &founded()).expect("it begins");
        let starts = sync::lock(&core.posted).iter().any(|it| matches!(it, WorkerCommand::StartReplica(_)));
        if starts {
            assert!(!core.replicas.waits(), "nothing is left to do");
            // The other commands stay for `lead`.
            let at = |it: &WorkerCommand| matches!(it, WorkerCommand::StartReplica(_));
            let mut posted = sync::lock(&core.posted);
            let found = posted.iter().position(at).map(|at| posted.remove(at));
            let Some(WorkerCommand::StartReplica(start)) = found else { panic!("it was there") };
            return Some(*start);
        }
        assert!(core.replicas.waits(), "it goes on later");
        core.writer.commit_once().ok()?;
    }
    panic!("the replica does not begin");
}

/// Runs the replica until it leads, and a batch of its own is committed.
fn lead(core: &mut Core, start: &mut ReplicaStart) {
    let (mut now, mut is_proposed) = (NOW.0, false);
    for _ in 0..1_000 {
        now += 100;
        for command in std::mem::take(&mut *sync::lock(&core.posted)) {
            let WorkerCommand::Store(events) = command else { continue };
            for (_, event) in events {
                let StoreEvent::Agreement(input) = event else { continue };
                start.agreement.handle(input);
            }
        }
        start.agreement.turn(Time(now));
        while let Some(step) = start.agreement.poll() {
            match step {
                Step::Leads { .. } => {
                    let mut batch = BatchBuilder::new(now);
                    batch.push(&Command::Tick);
                    start.agreement.propose(1, Arc::new(batch.finish()));
                    is_proposed = true;
                }
                Step::PassOver(index) => {
                    start.state.pass_over(index);
                    start.agreement.done();
                }
                Step::Commit(batch) => {
                    let is_new = batch.number == Some(1);
                    assert!(is_proposed || !is_new);
                    start.state.pass_over(batch.index - 1);
                    start.state.apply(batch.index, &batch.bytes, &mut Vec::new()).expect("the next batch");
                    if is_new {
                        return;
                    }
                    // A batch of before the restart.
                    start.agreement.done();
                }
                other => panic!("{other:?}"),
            }
        }
        core.writer.commit_once().expect("a disk");
    }
    panic!("the replica does not lead");
}

/// Returns the payloads and expiries of messages in the log.
fn read(core: &Core, keys: &[MessageKey]) -> Vec<(Vec<u8>, u64)> {
    let form = sync::lock(&core.stored).forms[&SHARD];
    let read = keys.iter().map(|key| {
        let bodies = core.log.read_bodies(group_of(SHARD), key.index()).expect("it is in the log");
        let view = stored(&bodies, key.index(), form).message(*key).expect("a message");
        let view = view.shifted(form.behind_ms(key.index()));
        (view.payload.to_vec(), view.expires)
    });
    read.collect()
}

/// State and messages that a replica should begin with.
fn check(core: &Core, start: &ReplicaStart, (alone, keys): &mut (Shard, Vec<MessageKey>)) {
    start.state.check_invariants();
    if alone.knows(STALE) {
        let mut batch = BatchBuilder::new(alone.now());
        batch.push(&Command::Forget(STALE));
        alone.apply(alone.applied() + 1, &batch.finish(), &mut Vec::new()).expect("the next batch");
    }
    assert!(!start.state.knows(STALE) && start.state.knows(current(alone)));
    let (expected, form) = in_cluster(alone, (OWN_NOW, NOW), OWNER_KEY).expect("a state");
    assert_eq!(start.state.digest(), expected.digest());
    assert_eq!(start.state.applied(), expected.applied());
    let list = sync::lock(&core.stored).clone();
    assert_eq!((list.since, list.forms), ([(SHARD, 5)].into(), [(SHARD, form)].into()));
    let shift = NOW.0 - OWN_NOW.0;
    let messages = [(b"one".to_vec(), NEVER), (b"two".to_vec(), 160_000 + shift)];
    assert_eq!(read(core, keys), messages);
}

#[test]
fn the_first_replica_begins_with_the_state_of_the_node_alone() {
    let disk = FaultDisk::new(4);
    let mut alone = run_alone(&disk);
    assert!(alone.0.knows(STALE));
    let mut core = start(&disk, StoredReplicas::default());
    let mut started = begin(&mut core).expect("a disk");
    check(&core, &started, &mut alone);
    assert!(sync::lock(&core.stored).own.is_empty());
    let state = &started.state;
    assert_eq!((state.counts().sessions, state.counts().owned, state.sweeping()), (2, 0, false));
    assert_eq!(state.next_deadline(), NOW.0 + 5_000, "the Will of the client that was connected");
    assert_eq!(state.now(), NOW.0);
    lead(&mut core, &mut started);
    let after = started.state.digest();
    let list = sync::lock(&core.stored).clone();
    drop((started, core));
    // The node is killed: it is a replica now, which goes on.
    let mut core = start(&disk.kill(), list);
    let mut again = begin(&mut core).expect("a disk");
    assert_eq!(read(&core, &alone.1).len(), 2);
    lead(&mut core, &mut again);
    assert_ne!(again.state.digest(), 0);
    assert!(again.state.applied() > alone.0.applied() && after != alone.0.digest());
}

/// The power fails at each operation of the disk, from the first to the last one.
#[test]
fn a_crash_leaves_the_shard_of_the_node_alone_or_the_replica() {
    let (mut as_before, mut as_replica, mut is_over) = (0, 0, false);
    // What a power cut leaves of an operation is random: there are few operations, and many seeds.
    for (seed, cut) in (0..20).flat_map(|seed| (1..8).map(move |cut| (seed, cut))) {
        let disk = FaultDisk::new(seed * 100 + cut);
        let mut alone = run_alone(&disk);
        let disk = disk.kill();
        let mut core = start(&disk, StoredReplicas::default());
        let cut_at = Some(disk.operations() + cut);
        disk.change_plan(|plan| plan.cut_at = cut_at);
        let has_begun = begin(&mut core).is_some();
        let list = sync::lock(&core.stored).clone();
        drop(core);
        let mut core = start(&disk.crash(), list);
        let is_own = core.replicas.own.is_some();
        (as_before, as_replica) = (as_before + u32::from(is_own), as_replica + u32::from(!is_own));
        is_over |= has_begun;
        assert!(!(has_begun && is_own), "what was durable is lost");
        let mut started = begin(&mut core).expect("a disk");
        check(&core, &started, &mut alone);
        lead(&mut core, &mut started);
    }
    assert!(is_over && as_before > 2 && as_replica > 2, "{as_before} {as_replica}");
}

#[test]
fn a_list_that_cannot_be_stored_leaves_the_node_as_it_was() {
    let disk = FaultDisk::new(6);
    let mut alone = run_alone(&disk);
    let mut core = start(&disk, StoredReplicas::default());
    let list = core.stored.clone();
    let left = Mutex::new(0);
    for fails_at in 0..2 {
        let saved = list.clone();
        let mut calls = 0;
        core.replicas.config.store = Box::new(move |stored| {
            calls += 1;
            if calls > fails_at {
                return Err(io::Error::other("full"));
            }
            *sync::lock(&saved) = stored.clone();
            Ok(())
        });
        for _ in 0..6 {
            *sync::lock(&left) += i32::from(core.replicas.follow(NOW, &founded()).is_err());
            core.writer.commit_once().expect("a disk");
        }
        let begins = sync::lock(&core.posted).iter().any(|it| matches!(it, WorkerCommand::StartReplica(_)));
        assert!(!begins, "the list says that it is not complete");
    }
    assert!(*sync::lock(&left) > 3);
    let saved = list.clone();
    core.replicas.config.store = Box::new(move |stored| {
        *sync::lock(&saved) = stored.clone();
        Ok(())
    });
    let started = begin(&mut core).expect("a disk");
    check(&core, &started, &mut alone);
}

/// The losses of a repair are before the snapshot with which the replica begins.
#[test]
fn a_log_that_was_repaired_becomes_a_replica_that_starts_again() {
    let disk = FaultDisk::new(7);
    run_alone(&disk);
    let name = storage::SegmentId(1).file();
    let bytes = disk.contents(&name).expect("a segment");
    let at = bytes.windows(3).position(|window| window == b"two").expect("a message");
    disk.flip(&name, at as u64, 0);
    let repaired = FaultDisk::new(8);
    let report = storage::offline::repair(&disk, Arc::new(repaired.clone())).expect("repaired");
    assert!(!report.nothing_lost());
    let mut core = start(&repaired, StoredReplicas::default());
    let mut started = begin(&mut core).expect("a disk");
    assert_eq!(started.state.counts().sessions, 2);
    lead(&mut core, &mut started);
    let list = sync::lock(&core.stored).clone();
    drop((started, core));
    let mut core = start(&repaired.kill(), list);
    let mut again = begin(&mut core).expect("a disk");
    assert_eq!(again.state.counts().sessions, 2);
    lead(&mut core, &mut again);
}

/// The clock of the node alone goes on while shards are converted.
#[test]
fn all_shards_move_by_the_same_time() {
    let disk = FaultDisk::new(9);
    let (shard, _) = run_alone(&disk);
    let mut core = start(&disk, StoredReplicas::default());
    let other = ShardId(1);
    let mut second = Shard::new(other.0, OWNER_KEY);
    let mut batch = BatchBuilder::new(60_000);
    batch.push(&Command::Retain { message: MessageView { retain: true, ..message(b"kept", 190_000) } });
    second.apply(1, &batch.finish(), &mut Vec::new()).expect("the first batch");
    let reads = Mutex::new(0);
    let own_now = move || {
        *sync::lock(&reads) += 10;
        Time(OWN_NOW.0 + *sync::lock(&reads))
    };
    let shards = [(SHARD, shard), (other, second)].into();
    core.replicas.own = Some(OwnState { shards, owner_key: OWNER_KEY, now: Box::new(own_now) });
    for _ in 0..6 {
        core.replicas.follow(NOW, &placement_of(2, 5, 5, &[(OWN, 5)])).expect("they begin");
        core.writer.commit_once().expect("a disk");
    }
    let list = sync::lock(&core.stored).clone();
    let behind: Vec<u64> = list.forms.values().map(|form| form.batches_behind_ms).collect();
    assert_eq!((behind.len(), behind[0]), (2, behind[1]));
    assert!(list.own.is_empty());
}

/// A node alone that has no content may join any cluster, with what its log has of it.
#[test]
fn what_a_node_without_content_has_left_is_dropped() {
    let disk = FaultDisk::new(10);
    run_alone(&disk);
    let mut core = Core::start(&disk, StoredReplicas::default());
    assert!(core.log.recovered(group_of(SHARD)).is_some());
    for _ in 0..3 {
        core.follow(&placement(5, 5, &[(OTHER, 5)])).expect("no replica");
        core.writer.commit_once().expect("a disk");
    }
    assert!(core.log.recovered(group_of(SHARD)).is_none(), "nothing of it is in the way");
    assert!(!core.replicas.waits() && core.posted().0.is_empty());
}

#[test]
fn a_cluster_with_another_state_refuses_the_node_and_changes_nothing() {
    let with_others = placement(5, 5, &[(OWN, 5), (OTHER, 5)]);
    let of_another = placement(5, 5, &[(OTHER, 5)]);
    let grown = placement(9, 8, &[(OTHER, 5), (OWN, 8)]);
    for other in [with_others, of_another, grown] {
        let disk = FaultDisk::new(5);
        let (alone, _) = run_alone(&disk);
        let mut core = start(&disk, StoredReplicas::default());
        let error = core.replicas.follow(NOW, &other).expect_err("it has another state");
        assert!(error.contains("empty data directory") && core.replicas.is_refused(), "{error}");
        assert!(core.posted().0.is_empty());
        assert_eq!(*sync::lock(&core.stored), StoredReplicas::default());
        core.writer.commit_once().expect("a disk");
        drop(core);
        let core = start(&disk.kill(), StoredReplicas::default());
        let own = core.replicas.own.as_ref().expect("its state");
        assert_eq!(own.shards[&SHARD].digest(), alone.digest());
    }
}
