mod own;

use std::sync::Mutex;

use broker::access::AllowAll;
use broker::settings::Settings;
use broker::{Incarnation, Node, ShardSet, Store, StoreEvent, StoreLog as _, WorkerCommand};
use consensus::LogGroup;
use shard::NodeIncarnation;
use storage::fault::FaultDisk;
use storage::{LogEvent, Record, Writer};

use super::*;
use crate::log::{EventForwarder, ReadRequest, ShardLog};

const OWN: CoreLog = CoreLog { node: NodeId(1), replica: ReplicaId(10) };
const OTHER: CoreLog = CoreLog { node: NodeId(2), replica: ReplicaId(20) };
const SHARD: ShardId = ShardId(0);

/// A core with a log, whose worker is a list of commands.
struct Core {
    replicas: PlacedReplicas,
    /// The log has a weak reference only.
    _node: Arc<Node>,
    posted: Arc<Mutex<Vec<WorkerCommand>>>,
    stored: Arc<Mutex<StoredReplicas>>,
    log: Log,
    shard_log: Arc<ShardLog>,
    /// Reads that no thread has run.
    reads: Arc<Mutex<Vec<ReadRequest>>>,
    writer: Writer,
    keeper: storage::Keeper,
}

impl Core {
    fn start(disk: &FaultDisk, stored: StoredReplicas) -> Self {
        let sort = |_: &Log, groups| (groups, None);
        Self::start_with(disk, stored, sort)
    }

    /// Starts a core. `sort` returns the groups of replicas, and the state of the node alone.
    fn start_with(
        disk: &FaultDisk,
        stored: StoredReplicas,
        sort: impl FnOnce(&Log, Vec<RecoveredGroup>) -> (Vec<RecoveredGroup>, Option<OwnState>),
    ) -> Self {
        let notifier = Arc::new(LogNotifier::of_agreements(ShardSet::EMPTY));
        let options = storage::Options { segment_bytes: 1 << 20, ..storage::Options::default() };
        let events = Box::new(EventForwarder(notifier.clone()));
        let opened = storage::open(Arc::new(disk.clone()), options, events, &mut |_| ()).expect("a log");
        let (log, writer, keeper) = (opened.log.clone(), opened.writer, opened.keeper);
        let reads = Arc::<Mutex<Vec<ReadRequest>>>::default();
        let queue = reads.clone();
        let shard_log =
            ShardLog::new(opened.log, notifier.clone(), move |read| sync::lock(&queue).push(read));
        let store = Store {
            log: Some(shard_log.clone()),
            shards: Vec::new(),
            agreements: Vec::new(),
            own: Some(NodeIncarnation { node: 1, incarnation: 1 }),
            incarnation: Incarnation::default(),
            hash_key: [1; 16],
        };
        let node = Node::with_store(Settings::default(), Arc::new(AllowAll), "test".to_owned(), 1, store);
        let posted = Arc::<Mutex<Vec<WorkerCommand>>>::default();
        let mailbox = posted.clone();
        node.set_mailbox(move |_, command| sync::lock(&mailbox).push(command));
        shard_log.connect(&node);
        let list = Arc::new(Mutex::new(stored.clone()));
        let saved = list.clone();
        let config = PlacedConfig {
            own: OWN,
            group: Config::new(LogGroup(0), OWN.replica, Member { node: OWN.node }, 1),
            log: log.clone(),
            notifier,
            owner: Box::new(|| AgreementOwner {
                schedule_read: Box::new(|_, _| ()),
                report_reached: Box::new(|_, _| ()),
                transfer_permit: Arc::default(),
            }),
            store: Box::new(move |stored| {
                *sync::lock(&saved) = stored.clone();
                Ok(())
            }),
        };
        let (recovered, own) = sort(&log, opened.recovery.groups);
        let replicas = PlacedReplicas::new(config, stored, recovered, own);
        Self { replicas, _node: node, posted, stored: list, log, shard_log, reads, writer, keeper }
    }

    fn follow(&mut self, placement: &Placement) -> Result<(), String> {
        self.replicas.follow(Time(1_000), placement)
    }

    /// Commands for the worker since the last call: the replicas that begin and end, and the members that
    /// a group should have.
    fn posted(&mut self) -> (Vec<ReplicaStart>, Vec<ShardId>, Vec<TargetMembers>) {
        let (mut started, mut stopped, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for command in std::mem::take(&mut *sync::lock(&self.posted)) {
            match command {
                WorkerCommand::StartReplica(start) => started.push(*start),
                WorkerCommand::StopReplica(shard) => stopped.push(shard),
                WorkerCommand::Store(events) => {
                    told.extend(events.into_iter().filter_map(|(_, event)| match event {
                        StoreEvent::Agreement(input) => {
                            match input.downcast::<AgreementInput>().ok().map(|it| *it) {
                                Some(AgreementInput::Target(target)) => Some(target),
                                _ => None,
                            }
                        }
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
        (started, stopped, told)
    }

    /// Appends to another group, until the log frees segments if it can.
    fn fill_log(&mut self) {
        let group = group_of(ShardId(3));
        for index in 1..=30 {
            let payload = Arc::new(vec![0; 300_000]);
            self.log.append([Record::Entry { group, term: 1, index, payload }]);
            let (part, checkpoint) = (1, index);
            self.log.append([Record::Part { group, part, checkpoint, payload: Arc::from([1]) }]);
            self.log.append([Record::Done { group, checkpoint }]);
            self.settle();
        }
        self.log.report_live(group, 0);
        for _ in 0..20 {
            self.settle();
            for (shard, input) in self.replicas.config.notifier.take_early() {
                if let AgreementInput::Log(LogEvent::Vacate(vacate)) = input {
                    assert_eq!(shard, ShardId(3), "the other has no owner");
                    self.log.vacated(vacate.group, vacate.segment).expect("a checkpoint");
                }
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..4 {
            self.keeper.keep();
            self.writer.commit_once().expect("a disk");
        }
    }

    fn list(&self) -> (u64, Vec<(ShardId, u64)>) {
        let stored = sync::lock(&self.stored);
        (stored.version, stored.since.iter().map(|(shard, since)| (*shard, *since)).collect())
    }
}

/// A placement of one shard, whose voters were added at these indexes. The last change began at `epoch`.
fn placement(version: u64, epoch: u64, voters: &[(CoreLog, u64)]) -> Placement {
    placement_of(1, version, epoch, voters)
}

/// A placement of so many shards, which have the same replicas.
fn placement_of(shards: u16, version: u64, epoch: u64, voters: &[(CoreLog, u64)]) -> Placement {
    let mut bytes = vec![1];
    bytes.extend(version.to_le_bytes());
    bytes.push(3);
    bytes.extend([7; 16]);
    bytes.extend(shards.to_le_bytes());
    for _ in 0..shards {
        bytes.extend(epoch.to_le_bytes());
        bytes.push(voters.len() as u8);
        let none = [0; 48];
        for (log, since) in voters {
            [log.node.0, log.replica.0, *since].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        }
        bytes.extend(none);
    }
    Placement::decode(&bytes).expect("a placement")
}

#[test]
fn a_replica_begins_once_ends_with_its_data_and_never_runs_again() {
    let disk = FaultDisk::new(1);
    let mut core = Core::start(&disk, StoredReplicas::default());
    let first = placement(5, 5, &[(OWN, 5), (OTHER, 5)]);
    assert_eq!(core.follow(&first), Ok(()));
    let (started, stopped, told) = core.posted();
    assert_eq!((started.len(), stopped.len()), (1, 0));
    assert_eq!(told.iter().map(|target| target.founders.len()).collect::<Vec<_>>(), [2]);
    assert_eq!(core.list(), (5, vec![(SHARD, 5)]));
    assert_eq!(core.follow(&first), Ok(()));
    let (again, _, told) = core.posted();
    assert!(again.is_empty() && told.is_empty(), "nothing is new");
    let without = placement(9, 8, &[(OTHER, 5)]);
    assert_eq!(core.follow(&without), Ok(()));
    assert_eq!(core.posted().1, [SHARD]);
    core.follow(&without).expect("it waits for the worker");
    assert!(core.replicas.waits());
    assert_eq!(core.list().1, [(SHARD, 5)], "the worker has it");
    drop(started);
    core.follow(&without).expect("its data goes");
    assert!(core.replicas.waits());
    core.follow(&without).expect("it waits for the disk");
    assert_eq!(core.list().1, [(SHARD, 5)], "a crash may bring its data back");
    core.writer.commit_once().expect("a disk");
    core.follow(&without).expect("its data is gone");
    assert!(!core.replicas.waits());
    assert_eq!(core.list(), (9, Vec::new()));
    core.follow(&first).expect("an older placement");
    assert!(core.posted().0.is_empty(), "it may have forgotten a vote");
    // It comes back as another replica.
    let returned = placement(12, 12, &[(OTHER, 5), (OWN, 12)]);
    core.follow(&returned).expect("a new replica");
    let (started, _, told) = core.posted();
    assert_eq!(started.len(), 1);
    assert!(told[0].founders.is_empty(), "the group exists");
    assert_eq!(core.list(), (12, vec![(SHARD, 12)]));
}

/// The next replica would take the result for its own, and the log would count what the first one has written to it.
#[test]
fn a_replica_ends_when_the_log_has_read_what_it_asked_for() {
    let disk = FaultDisk::new(4);
    let mut core = Core::start(&disk, StoredReplicas::default());
    core.follow(&placement(5, 5, &[(OWN, 5), (OTHER, 5)])).expect("a replica");
    let (started, ..) = core.posted();
    core.shard_log.read(SHARD, Vec::new());
    core.shard_log.keep(SHARD, Vec::new(), false);
    let moved = placement(12, 12, &[(OTHER, 5), (OWN, 12)]);
    core.follow(&moved).expect("it ends");
    drop(started);
    for left in [2, 1] {
        for _ in 0..3 {
            core.follow(&moved).expect("it waits for the reads");
            core.writer.commit_once().expect("a disk");
        }
        assert_eq!(core.list().1, [(SHARD, 5)], "{left} reads are under way");
        assert!(core.posted().0.is_empty(), "{left} reads are under way");
        let read = sync::lock(&core.reads).pop().expect("a read");
        read.fail(&core.replicas.config.notifier);
    }
    core.follow(&moved).expect("its data goes");
    core.writer.commit_once().expect("a disk");
    core.follow(&moved).expect("the next one begins");
    assert_eq!((core.posted().0.len(), core.list().1), (1, vec![(SHARD, 12)]));
}

#[test]
fn a_replica_that_cannot_be_read_takes_no_part() {
    let disk = FaultDisk::new(2);
    let mut core = Core::start(&disk, StoredReplicas::default());
    let payload = Arc::new(b"no entry of a group".to_vec());
    core.log.append([Record::Entry { group: group_of(SHARD), term: 1, index: 1, payload }]);
    core.writer.commit_once().expect("a disk");
    drop(core);
    let stored = StoredReplicas { version: 5, since: [(SHARD, 5)].into(), ..StoredReplicas::default() };
    let mut core = Core::start(&disk, stored);
    let first = placement(5, 5, &[(OWN, 5), (OTHER, 5)]);
    let error = core.follow(&first).expect_err("it is damaged");
    assert!(error.contains("shard 0 cannot be read"), "{error}");
    for _ in 0..2 {
        assert_eq!(core.follow(&first), Ok(()));
        assert!(core.posted().0.is_empty(), "without its votes it would vote again");
    }
    // The log does not wait for it: it drops it when it needs room. Then the replica never begins again.
    assert_eq!(sync::lock(&core.stored).failed, [SHARD].into());
    core.fill_log();
    assert!(core.log.recovered(group_of(SHARD)).is_none() && core.log.stats().freed > 0);
    let list = sync::lock(&core.stored).clone();
    drop(core);
    let mut core = Core::start(&disk.kill(), list);
    let error = core.follow(&first).expect_err("it is dropped");
    assert!(error.contains("shard 0 cannot be read") && core.posted().0.is_empty(), "{error}");
    // The core gets another replica.
    let returned = placement(12, 12, &[(OTHER, 5), (OWN, 12)]);
    for _ in 0..3 {
        core.follow(&returned).expect("a new replica");
        core.writer.commit_once().expect("a disk");
    }
    assert_eq!((core.posted().0.len(), core.list()), (1, (12, vec![(SHARD, 12)])));
    assert!(sync::lock(&core.stored).failed.is_empty());
}

/// A start may succeed where the last one failed. The only replica of a shard is not dropped.
#[test]
fn the_data_of_a_replica_that_cannot_be_read_stays_while_it_may_be_of_use() {
    let disk = FaultDisk::new(5);
    let mut core = Core::start(&disk, StoredReplicas::default());
    core.follow(&placement(5, 5, &[(OWN, 5), (OTHER, 5)])).expect("a replica");
    core.log.append([Record::Part {
        group: group_of(SHARD),
        part: 7,
        checkpoint: 1,
        payload: Arc::from(&b"unfinished"[..]),
    }]);
    core.writer.commit_once().expect("a disk");
    let list = sync::lock(&core.stored).clone();
    let failed = StoredReplicas { failed: [SHARD].into(), ..list.clone() };
    drop(core);
    let mut core = Core::start(&disk.kill(), failed);
    core.follow(&placement(5, 5, &[(OWN, 5), (OTHER, 5)])).expect("it can be read now");
    assert_eq!((core.posted().0.len(), sync::lock(&core.stored).clone()), (1, list.clone()));
    drop(core);
    // Alone with its shard.
    let disk = FaultDisk::new(6);
    let mut core = Core::start(&disk, StoredReplicas::default());
    let payload = Arc::new(b"no entry of a group".to_vec());
    core.log.append([Record::Entry { group: group_of(SHARD), term: 1, index: 1, payload }]);
    core.writer.commit_once().expect("a disk");
    drop(core);
    let mut core = Core::start(&disk.kill(), list);
    core.follow(&placement(5, 5, &[(OWN, 5)])).expect_err("it is damaged");
    assert!(sync::lock(&core.stored).failed.is_empty());
    core.fill_log();
    assert!(core.log.recovered(group_of(SHARD)).is_some(), "a repair may save something");
}

#[test]
fn a_list_that_cannot_be_stored_lets_no_replica_begin() {
    let disk = FaultDisk::new(3);
    let mut core = Core::start(&disk, StoredReplicas::default());
    core.replicas.config.store = Box::new(|_| Err(io::Error::other("full")));
    let first = placement(5, 5, &[(OWN, 5)]);
    assert!(core.follow(&first).expect_err("no room").contains("full"));
    assert!(core.posted().0.is_empty());
    core.replicas.config.store = Box::new(|_| Ok(()));
    assert_eq!(core.follow(&first), Ok(()));
    assert_eq!(core.posted().0.len(), 1);
}
