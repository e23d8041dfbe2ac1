//! One incarnation of a node: turns of its reactors, batches and commands under way, and the threads of the log as
//! events.

mod log;
mod placed;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::settings::Settings;
use broker::{
    Agreement, Batch, Condition, LaneCounters, ReadCounters, SHARDS, SessionId, ShardId, ShardSet, StoreLog,
    Time, Worker, WorkerCommand, WorkerId,
};
use link::NodeId;
use shardlog::{
    AgreementInput, AgreementOwner, AgreementRead, EventForwarder, LogNotifier, Moment, ReadRequest,
    ShardAgreement, ShardLog, TargetMembers, TransferPermit,
};
use storage::{Commit, GroupId, Keeper, RecoveredGroup, Writer};

use self::log::ObservedLog;
use self::placed::Placed;
pub use self::placed::PlacedSetup;
use crate::context::Context;
use crate::disk::Machine;
use crate::net::Link;
use crate::rules::Rules;
use crate::schedule::{Event, MILLI, Micros, SECOND};

/// Parameters of a node's start.
#[derive(Clone)]
pub struct Setup {
    pub settings: Settings,
    pub rules: Arc<Rules>,
    pub workers: u16,
    pub segment_bytes: u64,
    pub commit_bytes_max: u64,
    pub low_bytes_per_commit: u64,
    pub entropy: [u8; 48],
    /// Groups of the log for which a full disk has reserved room.
    pub urgent: &'static [GroupId],
    /// Maximum duration of a sync, without faults.
    pub sync_max: Micros,
    /// True if messages for connected clients wait in memory. Otherwise each of them is read from disk.
    pub keeps_ahead: bool,
    /// Set if the shards of the node have replicas on other nodes.
    pub replica: Option<ReplicaSetup>,
    #[cfg(feature = "trial")]
    pub mutation: Option<storage::Mutation>,
}

/// Parameters of the replicas of a node's shards.
#[derive(Clone)]
pub struct ReplicaSetup {
    /// Parameters of each of them, but for the group.
    pub config: consensus::Config,
    /// Secret of the cluster.
    pub hash_key: [u8; 16],
    /// True if the node has a replica of each shard from its start on.
    pub has_replicas: bool,
    /// Set if replicas begin and end as a placement says.
    pub placed: Option<PlacedSetup>,
    /// Members that the groups should have.
    pub target: TargetMembers,
    /// Nodes that should lead, by the number of the shard.
    pub leaders: Vec<NodeId>,
    pub transfer_permit: Arc<TransferPermit>,
    /// Time at which the process begins, by the clock of its machine, in milliseconds.
    pub began_ms: u64,
    /// Percentage of the reads of messages that the disk fails to do, also when they are repeated.
    pub unreadable: usize,
}

/// A read of the log, for a reader.
enum PendingRead {
    Shard(ReadRequest),
    Agreement(ShardId, AgreementRead),
}

impl Setup {
    pub fn options(&self, moment: &Moment) -> storage::Options {
        #[allow(
            clippy::needless_update,
            reason = "the storage crate may be built for trials when this one is not"
        )]
        storage::Options {
            segment_bytes: self.segment_bytes,
            reserve_bytes: 2 * self.segment_bytes,
            commit_bytes_max: self.commit_bytes_max,
            low_bytes_per_commit: self.low_bytes_per_commit,
            entropy: Some(self.entropy),
            urgent: self.urgent,
            now_ms: moment.wall.as_millis() as u64,
            #[cfg(feature = "trial")]
            mutation: self.mutation,
            ..storage::Options::default()
        }
    }
}

/// Reason why a node did not start.
pub enum StartFailure {
    /// The power was cut meanwhile, or the disk failed: the start is repeated.
    Disk,
    /// A later version has written the meta group's log.
    Outdated,
    /// The node refuses to start from its data.
    Broken(String),
}

/// The node's end of a connection.
struct NodeConnection {
    worker: usize,
    slot: u32,
    /// Received bytes that the worker has not taken.
    inbox: Vec<u8>,
    /// Number of bytes that the worker has taken.
    taken: u64,
    held: bool,
    /// True if the client reads.
    reads: bool,
    ended: bool,
    /// The session of the connection was noted.
    is_granted: bool,
    /// The client's end is lost.
    is_lost: bool,
}

/// Point at which a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausePoint {
    BetweenTurns,
    /// A turn has begun. Its worker reads from sockets after the pause.
    BeforeRead,
    /// The worker has made output that it writes after the pause.
    BeforeWrite,
}

/// A turn that had begun when the process was stopped. What is handled at the end of the pause belongs to it.
struct Interrupted {
    worker: usize,
    began: Time,
    until: Micros,
}

pub struct Node {
    incarnation: u32,
    node: Arc<broker::Node>,
    workers: Vec<Worker>,
    began: Time,
    began_at: Micros,
    batches: BTreeMap<(usize, usize), VecDeque<Batch>>,
    commands: Vec<VecDeque<WorkerCommand>>,
    /// Commands that threads of the product would have sent, and that are not on their way yet.
    posted: Arc<Mutex<Vec<(WorkerId, WorkerCommand)>>>,
    /// Time of each worker's next turn by timer.
    wakes: Vec<Micros>,
    log: Arc<ShardLog>,
    observed_log: Arc<ObservedLog>,
    log_events: Arc<LogNotifier>,
    meta: Vec<RecoveredGroup>,
    writer: Writer,
    keeper: Keeper,
    committing: bool,
    /// Number of queued records when the first of them found no room.
    stalled: Option<u64>,
    /// Time at which a write without room is repeated.
    retry_at: Micros,
    keeping: bool,
    pending_reads: Arc<Mutex<Vec<PendingRead>>>,
    /// Replicas that begin and end while the node runs.
    placed: Option<Placed>,
    readers: [VecDeque<PendingRead>; 2],
    connections: BTreeMap<Link, NodeConnection>,
    links: BTreeMap<(usize, u32), Link>,
    /// Connections that the node has ended since the last look.
    ended: Vec<(Link, u64)>,
    /// Sessions of connections to which the node has written since the last look, each once.
    granted: Vec<(Link, SessionId, u32)>,
    slots: Vec<u32>,
    turns: u64,
    /// Time of the current turn, or of the last one.
    now: Time,
    /// Time until which the process stands still, and since when.
    paused_until: Micros,
    paused_since: Micros,
    /// The turn within which the process stood still last.
    interrupted: Option<Interrupted>,
    /// Set if the process stops before it writes to clients the next time. Holds the time until which it stands still.
    stops_before_write: Option<Micros>,
    /// Connections of each worker with output that a turn has not written because the process was stopped.
    unwritten: Vec<Vec<u32>>,
    /// True for reactors that have left their clients alone since the lease ended.
    frozen: Vec<bool>,
    last_frozen: Option<Micros>,
    is_stopping: bool,
    /// Number of writes to clients since the last look, but for those of a node that stops.
    writes: u64,
    /// Set after a stop, until the data that arrived meanwhile is read. Holds the earlier number of clients closed by
    /// Keep Alive.
    unread: Option<u64>,
    setup: Setup,
    /// Time at which the disk failed.
    failed: Option<Micros>,
}

impl Node {
    /// Starts the process with the data on the disk.
    ///
    /// # Errors
    /// [`StartFailure`].
    pub fn start(
        cx: &mut Context,
        machine: &mut Machine,
        setup: Setup,
        incarnation: u32,
    ) -> Result<Self, StartFailure> {
        Self::start_in(cx, machine, setup, incarnation, |_| ())
    }

    /// Starts the process in a cluster. The node joins it by `join` before its reactors start.
    ///
    /// # Errors
    /// [`StartFailure`].
    pub fn start_in(
        cx: &mut Context,
        machine: &mut Machine,
        setup: Setup,
        incarnation: u32,
        join: impl FnOnce(&Arc<broker::Node>),
    ) -> Result<Self, StartFailure> {
        let moment = machine.moment(cx.now(), Duration::ZERO);
        let options = setup.options(&moment);
        let log_events = match &setup.replica {
            Some(replica) if replica.has_replicas => Arc::new(LogNotifier::of_agreements(ShardSet::full())),
            Some(_) => Arc::new(LogNotifier::of_agreements(ShardSet::EMPTY)),
            None => Arc::new(LogNotifier::default()),
        };
        let events = Box::new(EventForwarder(log_events.clone()));
        let disk = Arc::new(machine.disk.clone());
        let mut opened = match storage::open(disk, options, events, &mut |_| ()) {
            Ok(opened) => opened,
            Err(storage::Error::Corrupt(corrupt)) => return Err(StartFailure::Broken(corrupt.to_string())),
            Err(error @ (storage::Error::Invalid(_) | storage::Error::NotFound { .. })) => {
                return Err(StartFailure::Broken(error.to_string()));
            }
            Err(error) => {
                cx.log(|| format!("node: does not start: {error}"));
                return Err(StartFailure::Disk);
            }
        };
        cx.report.tails_cut += u64::from(opened.recovery.report.cut_bytes > 0);
        let own_key: [u8; 16] = opened.log.identity().secret[..16].try_into().unwrap_or_default();
        let hash_key = setup.replica.as_ref().map_or(own_key, |replica| replica.hash_key);
        let meta = shardlog::take_meta(&mut opened.recovery.groups);
        let groups = std::mem::take(&mut opened.recovery.groups);
        let pending_reads = Arc::<Mutex<Vec<PendingRead>>>::default();
        let (mut agreements, mut recovered) = (Vec::new(), Vec::new());
        let (shards, broker_incarnation) = match &setup.replica {
            Some(replica) => {
                let began = Time(replica.began_ms.max(1));
                let (shards, opened) =
                    start_replicas(cx, began, replica, &opened.log, &groups, &pending_reads)?;
                (agreements, recovered) = (opened, groups);
                (shards, broker::Incarnation { began, number: moment.wall.as_millis() as u64 })
            }
            None => {
                let groups = shardlog::sort(groups).map_err(StartFailure::Broken)?;
                let restore = |(id, group)| shardlog::restore(id, group, hash_key, &mut || ());
                let shards: Vec<_> = groups
                    .into_iter()
                    .map(restore)
                    .collect::<Result<_, _>>()
                    .map_err(StartFailure::Broken)?;
                let incarnation = shardlog::incarnation(&shards, machine.noted(), &moment);
                (shards, incarnation)
            }
        };
        shards.iter().for_each(shard::Shard::check_invariants);
        let read_queue = pending_reads.clone();
        let log = ShardLog::new(opened.log, log_events.clone(), move |reading| {
            sync::lock(&read_queue).push(PendingRead::Shard(reading))
        });
        let observed_log = ObservedLog::new(log.clone(), setup.keeps_ahead);
        let began = broker_incarnation.began;
        let store = broker::Store {
            log: Some(observed_log.clone()),
            shards,
            agreements,
            own: setup.replica.as_ref().map(|replica| shard::NodeIncarnation {
                node: replica.config.own.node.0,
                incarnation: u64::from(incarnation),
            }),
            incarnation: broker_incarnation,
            hash_key,
        };
        let (settings, workers) = (setup.settings.clone(), setup.workers);
        let node = broker::Node::with_store(settings, setup.rules.clone(), "sim".into(), workers, store);
        let posted = Arc::<Mutex<Vec<(WorkerId, WorkerCommand)>>>::default();
        let post = posted.clone();
        node.set_mailbox(move |worker, command| sync::lock(&post).push((worker, command)));
        node.connect_log();
        join(&node);
        let placed = setup.replica.as_ref().and_then(|replica| {
            Placed::start(cx, replica, (log.log(), &log_events), recovered, &pending_reads)
        });
        let mut this = Self {
            incarnation,
            workers: node.build_workers(),
            node,
            began,
            began_at: cx.now(),
            batches: BTreeMap::new(),
            commands: (0..workers).map(|_| VecDeque::new()).collect(),
            posted,
            wakes: vec![Micros::MAX; usize::from(workers)],
            log,
            observed_log,
            log_events,
            meta,
            writer: opened.writer,
            keeper: opened.keeper,
            committing: false,
            stalled: None,
            retry_at: 0,
            keeping: false,
            pending_reads,
            placed,
            readers: Default::default(),
            connections: BTreeMap::new(),
            links: BTreeMap::new(),
            ended: Vec::new(),
            granted: Vec::new(),
            slots: Vec::new(),
            turns: 0,
            now: began,
            paused_until: 0,
            paused_since: 0,
            interrupted: None,
            stops_before_write: None,
            unwritten: vec![Vec::new(); usize::from(workers)],
            frozen: vec![false; usize::from(workers)],
            last_frozen: None,
            is_stopping: false,
            writes: 0,
            unread: None,
            setup,
            failed: None,
        };
        cx.report.starts += 1;
        this.check_invariants(cx);
        for worker in 0..this.workers.len() {
            this.wake(cx, worker, 0);
        }
        this.keep_soon(cx);
        cx.after(0, Event::Note { incarnation });
        Ok(this)
    }

    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Current time of the node.
    pub fn time(&self, cx: &Context) -> Time {
        Time(self.began.0 + (cx.now() - self.began_at) / MILLI)
    }

    /// Microseconds of this incarnation at a time of the simulation, on the clock of [`Self::time`].
    pub fn micros(&self, at: Micros) -> Micros {
        at.saturating_sub(self.began_at)
    }

    /// Time of the simulation at which that clock has this value.
    pub fn at_micros(&self, micros: Micros) -> Micros {
        self.began_at.saturating_add(micros)
    }

    /// Takes the data for a replica of the meta group: the log, its events, and the recovered groups. To be called
    /// once.
    pub fn take_meta(&mut self) -> (storage::Log, Arc<LogNotifier>, Vec<RecoveredGroup>) {
        (self.log.log().clone(), self.log_events.clone(), std::mem::take(&mut self.meta))
    }

    /// Log of the node.
    pub fn storage_log(&self) -> &storage::Log {
        self.log.log()
    }

    /// Schedules a commit if the replica may have written. Its records have room where others have none.
    pub fn check_log_queue(&mut self, cx: &mut Context) {
        let records = self.log.log().queue_records();
        if self.stalled.is_some_and(|known| records > known) {
            self.stalled = None;
        }
        if records > 0 {
            self.commit_soon(cx);
        }
    }

    /// State that the reactors of the node share.
    pub fn broker(&self) -> &Arc<broker::Node> {
        &self.node
    }

    /// Time since which it acknowledges nothing that has to be stored.
    pub fn failed(&self) -> Option<Micros> {
        self.failed
    }

    /// Returns whether its log refuses messages: the disk is full, or a sync of an empty segment failed.
    pub fn lacks_room(&self) -> bool {
        self.log.condition() == Condition::Full
    }

    /// Connections that the node has ended since the last call, with the number of bytes that it had taken from them.
    pub fn take_ended(&mut self) -> Vec<(Link, u64)> {
        std::mem::take(&mut self.ended)
    }

    /// Durable sessions of connections to which the node has written for the first time since the last call, with the
    /// epochs in which they own them. In a cluster whose shards have replicas only.
    pub fn take_granted(&mut self) -> Vec<(Link, SessionId, u32)> {
        std::mem::take(&mut self.granted)
    }

    /// Number of writes to clients since the last call.
    pub fn take_writes(&mut self) -> u64 {
        std::mem::take(&mut self.writes)
    }

    /// Handles an event of this incarnation.
    pub fn handle(
        &mut self,
        cx: &mut Context,
        net: &mut crate::net::Net,
        machine: &mut Machine,
        event: Event,
    ) {
        match event {
            Event::Turn { worker, .. } if self.wakes[worker] <= cx.now() => {
                self.wakes[worker] = Micros::MAX;
                self.begin_turn(cx, worker);
                self.finish_turn(cx, net, worker);
            }
            Event::Batch { from, to, .. } => {
                let Some(mut batch) = self.batches.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
                    return;
                };
                self.begin_turn(cx, to);
                self.workers[to].take_batch(self.now, &mut batch);
                self.finish_turn(cx, net, to);
            }
            Event::WorkerCommand { worker, .. } => {
                let Some(command) = self.commands[worker].pop_front() else { return };
                self.begin_turn(cx, worker);
                self.workers[worker].take_batch(self.now, &mut Batch::of(command));
                self.finish_turn(cx, net, worker);
            }
            Event::Commit { .. } => self.commit(cx),
            Event::Keep { .. } => self.keep(cx),
            Event::Read { reader, .. } => self.read(cx, reader),
            Event::Follow { .. } => self.follow_again(cx),
            Event::Note { incarnation } => {
                machine.note(machine.moment(cx.now(), Duration::from_millis(self.time(cx).0)));
                cx.after(5 * SECOND, Event::Note { incarnation });
            }
            _ => {}
        }
    }

    fn commit(&mut self, cx: &mut Context) {
        (self.committing, self.stalled) = (false, None);
        let before = self.log.log().tally();
        let result = self.writer.commit_once();
        self.send_posted(cx);
        self.keep_soon(cx);
        match result {
            Ok(Commit::Wrote { .. }) => {
                let after = self.log.log().tally();
                cx.report.checkpoints += u64::from(after.checkpoint_bytes > before.checkpoint_bytes);
                self.commit_soon(cx);
            }
            Ok(Commit::Idle) => {}
            Ok(Commit::NoRoom) => {
                self.stalled = Some(self.log.log().queue_records());
                if self.retry_at <= cx.now() {
                    self.retry_at = cx.now() + SECOND;
                    cx.at(self.retry_at, Event::Commit { incarnation: self.incarnation });
                }
            }
            Err(error) => {
                if self.failed.is_none() {
                    cx.log(|| format!("node: the log has failed: {error}"));
                    self.failed = Some(cx.now());
                }
            }
        }
    }

    /// Schedules a commit, unless one is scheduled.
    fn commit_soon(&mut self, cx: &mut Context) {
        if !self.committing && self.stalled.is_none() && self.failed.is_none() {
            self.committing = true;
            let slow = cx.random.percent(2);
            let time = if slow { cx.between(MILLI, SECOND) } else { cx.between(100, self.setup.sync_max) };
            cx.after(time, Event::Commit { incarnation: self.incarnation });
        }
    }

    fn keep_soon(&mut self, cx: &mut Context) {
        if !self.keeping {
            self.keeping = true;
            let time = cx.between(100, 20 * MILLI);
            cx.after(time, Event::Keep { incarnation: self.incarnation });
        }
    }

    fn keep(&mut self, cx: &mut Context) {
        self.keeping = false;
        let before = self.log.log().tally().freed;
        let worked = self.keeper.keep();
        cx.report.segments_freed += self.log.log().tally().freed - before;
        self.send_posted(cx);
        self.commit_soon(cx);
        if worked {
            self.keep_soon(cx);
        } else {
            self.keeping = true;
            cx.after(SECOND, Event::Keep { incarnation: self.incarnation });
        }
    }

    fn read(&mut self, cx: &mut Context, reader: usize) {
        if let Some(reading) = self.readers[reader].pop_front() {
            cx.report.reads += 1;
            let unreadable = self.setup.replica.as_ref().map_or(0, |replica| replica.unreadable);
            let is_unreadable = unreadable > 0 && cx.random.percent(unreadable);
            match reading {
                PendingRead::Shard(reading) if is_unreadable => {
                    cx.report.reads_failed += 1;
                    reading.fail(&self.log_events);
                }
                PendingRead::Agreement(shard, reading) if is_unreadable => {
                    let node = &self.node;
                    reading.cannot_read(self.log.log(), |input| node.store_event(shard, input.into()));
                }
                PendingRead::Shard(reading) if reading.is_first_try() && cx.random.percent(10) => {
                    cx.report.reads_failed += 1;
                    reading.fail(&self.log_events);
                }
                PendingRead::Shard(reading) => reading.run(self.log.log(), &self.log_events),
                PendingRead::Agreement(shard, reading) => {
                    reading.run(self.log.log(), |input| self.node.store_event(shard, input.into()));
                }
            }
            self.send_posted(cx);
        }
    }

    /// Stops the node in order: it disconnects its clients, and writes what is queued.
    pub fn stop(&mut self, cx: &mut Context, net: &mut crate::net::Net) {
        self.is_stopping = true;
        for worker in 0..self.workers.len() {
            self.begin_turn(cx, worker);
            self.workers[worker].stop(self.now);
            self.finish_turn(cx, net, worker);
        }
    }

    /// Writes the rest of the log after the reactors have ended.
    pub fn close(&mut self) {
        while let Ok(Commit::Wrote { .. }) = self.writer.commit_once() {}
    }

    /// Checks what must hold between any two turns.
    pub fn check_invariants(&self, cx: &mut Context) {
        self.workers.iter().for_each(Worker::check_invariants);
        cx.report.check_invariants += 1;
    }

    /// Counters of the replicas and hosts of the node.
    pub fn replica_counters(&self) -> broker::ReplicaCounters {
        let counters = self.workers.iter().map(Worker::replica_counters);
        counters.fold(broker::ReplicaCounters::default(), broker::ReplicaCounters::plus)
    }

    /// Number of bytes of messages that count against `limits.memory_unsynced_max`, and number of messages that were
    /// acknowledged before they were on disk.
    pub fn unsynced(&self) -> (u64, u64) {
        let of_workers = self.workers.iter().map(Worker::unsynced);
        of_workers.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    /// Counters of the requests of the workers to shards that any node may lead.
    pub fn lane_counters(&self) -> LaneCounters {
        let counters = self.workers.iter().map(Worker::lane_counters);
        counters.fold(LaneCounters::default(), LaneCounters::plus)
    }

    /// Counters of the reads of retained messages.
    pub fn read_counters(&self) -> ReadCounters {
        let counters = self.workers.iter().map(Worker::read_counters);
        counters.fold(ReadCounters::default(), ReadCounters::plus)
    }

    /// Topics and payloads of the retained messages of all replicas.
    pub fn retained(&self) -> impl Iterator<Item = (String, String)> {
        self.workers.iter().flat_map(Worker::retained)
    }

    /// Last record that a shard has applied, and a digest of its state.
    pub fn digest(&self, shard: ShardId) -> Option<(u64, u64)> {
        self.workers.iter().find_map(|worker| worker.digest(shard))
    }

    /// State of a shard.
    pub fn shard_state(&self, shard: ShardId) -> Option<&shard::Shard> {
        self.workers.iter().find_map(|worker| worker.shard_state(shard))
    }

    /// Number of messages that were dropped because a queue was full. Up to a second old.
    pub fn dropped(&self) -> u64 {
        self.node.published.iter().map(|published| published.counters().1.dropped_queue_full).sum()
    }

    /// Connections whose sockets the node has. Some may be over, with output that is not written.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.connections.keys().copied()
    }
}

/// Reports that the group of a shard has the members of an epoch.
type ReportReached = Box<dyn Fn(ShardId, u64) + Send>;

/// Returns the functions that the agreement of a shard calls.
fn agreement_owner(
    setup: &ReplicaSetup,
    reads: &Arc<Mutex<Vec<PendingRead>>>,
    report_reached: ReportReached,
) -> AgreementOwner {
    let reads = reads.clone();
    let schedule_read =
        Box::new(move |shard, read| sync::lock(&reads).push(PendingRead::Agreement(shard, read)));
    AgreementOwner { schedule_read, report_reached, transfer_permit: setup.transfer_permit.clone() }
}

/// A shard's agreement on a node.
type OfShard = (ShardId, Box<dyn Agreement>);

/// Starts the replicas of all shards. Returns their states, too.
fn start_replicas(
    cx: &mut Context,
    began: Time,
    setup: &ReplicaSetup,
    log: &storage::Log,
    recovered: &[RecoveredGroup],
    reads: &Arc<Mutex<Vec<PendingRead>>>,
) -> Result<(Vec<shard::Shard>, Vec<OfShard>), StartFailure> {
    let (mut shards, mut agreements) = (Vec::new(), Vec::new());
    for id in (0..SHARDS).map(ShardId).filter(|_| setup.has_replicas) {
        let config = consensus::Config { seed: cx.random.draw(), ..setup.config.clone() };
        let owner = agreement_owner(setup, reads, Box::new(|_, _| ()));
        let started = ShardAgreement::start(began, id, config, log.clone(), recovered, setup.hash_key, owner);
        let (shard, mut agreement) = started.map_err(|error| StartFailure::Broken(error.to_string()))?;
        agreement.handle(Box::new(AgreementInput::Target(setup.target.clone())));
        let leader = setup.leaders.get(usize::from(id.0)).copied();
        agreement.handle(Box::new(AgreementInput::PreferredLeader(leader)));
        shards.push(shard);
        agreements.push((id, Box::new(agreement) as Box<dyn Agreement>));
    }
    Ok((shards, agreements))
}
