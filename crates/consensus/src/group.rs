//! A replica of a group, and the calls by which its owner drives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use link::{NodeId, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, LinearizableReadError, RaftError};
use openraft::impls::leader_id_std::LeaderId;
use openraft::raft::VoteRequest;
use openraft::vote::RaftLeaderId as _;
use openraft::{AsyncRuntime, ChangeMembers, Precondition, ServerState, SnapshotPolicy};
use storage::{GroupId, Log, RecoveredGroup, SegmentId, Vacate};

use crate::config::Config;
use crate::jobs::{DROPPED, Job, Jobs};
use crate::machine::{Machine, State, StateMachine, UNSUPPORTED_VERSION};
use crate::mutation::{Mutation, mutated};
use crate::network::{Network, Question, Transmit};
use crate::raft_log::{LogRead, LogReadResult, NotRecovered, StorageGroups, Store, Unreadable, log_index};
use crate::raft_types::{Command, LogId, Member, ReplicaId, Types, Vote};
use crate::runtime::{Runtime, TickTimes, WakeTimes};
use crate::serve::Server;
use crate::status::{Role, Status};
use crate::wire::{self, Body};
use crate::writes::Writes;

pub(crate) type Raft = openraft::Raft<Types, Machine>;

/// Time after which a leader tries again to lead no more.
const STEP_DOWN_AGAIN: Duration = Duration::from_millis(100);

/// Request to a group, until its [`Event`] comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub request: RequestId,
    pub outcome: Result<Outcome, Undecided>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command is committed and applied here, at this index. Its effects precede this outcome.
    Applied(u64),
    /// The state here includes everything that was committed when the barrier was requested.
    Readable,
    /// The members are as requested.
    Changed,
    /// This replica no longer leads.
    Transferred,
}

/// Change of the role of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The replica leads in this term. Its state may lack entries that were committed before: request a
    /// [read barrier](Replica::read_barrier).
    Leads(u64),
    /// The replica leads no more.
    Follows,
}

/// Reason why a request has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// Nothing has happened, because this replica does not lead. Holds the leader, if it is known.
    NotLeader(Option<(ReplicaId, Member)>),
    /// Nothing has happened, for this reason.
    Refused(String),
    /// The request may have happened, or may still happen.
    Unknown,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader(Some((leader, _))) => write!(f, "replica {leader} leads"),
            Self::NotLeader(None) => f.write_str("nobody leads"),
            Self::Refused(why) => f.write_str(why),
            Self::Unknown => f.write_str("it may have happened, or may still happen"),
        }
    }
}

impl std::error::Error for Undecided {}

/// Change of the members of a group. Only one change is made at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a replica that gets all entries and has no vote.
    AddLearner(ReplicaId, Member),
    /// Makes exactly these replicas the voters. They must be learners or voters already. Voters that are not in the set
    /// leave.
    ///
    /// The change needs the majorities of the old and of the new voters ([`Status::is_changing`]). If the leader is
    /// lost half-way, the next leader has to be asked again.
    SetVoters(BTreeSet<ReplicaId>),
    /// Removes a learner.
    RemoveLearner(ReplicaId),
}

/// A [`Replica`] and the state machine that it drives, without a lock: the group runs it on the thread of its owner.
pub struct Group<S: StateMachine> {
    replica: Replica,
    machine: S,
    effects: Vec<S::Effect>,
}

/// An `openraft` node and its log.
///
/// The owner passes frames to [`Self::receive`] and events of the log to the replica. It calls [`Self::turn`] after
/// each of these and when [`Self::timeout`] is due, and then takes frames, jobs and events. A [`Group`] does the jobs
/// itself.
pub struct Replica {
    config: Config,
    storage_groups: StorageGroups,
    runtime: Runtime,
    raft: Raft,
    network: Network,
    store: Store,
    state: Arc<Mutex<State>>,
    server: Arc<Server>,
    jobs: Jobs,
    writes: Writes,
    events: Arc<Mutex<VecDeque<Event>>>,
    requests: u64,
    waiting: Arc<AtomicUsize>,
    /// Last request of a snapshot.
    snapshot_request: SnapshotRequest,
    /// Last entry of the purge that was requested.
    purge_requested: Option<u64>,
    /// True if this replica led at the last purge.
    has_led: bool,
    /// Entry with the members whose voters the network knows.
    voters_of: Option<LogId>,
    /// Term in which this replica leads.
    leads: Option<u64>,
    /// Time of the next heartbeat of a leader.
    beats_at: Time,
    /// Node and replica that have sent the last entries or heartbeat, and the vote by which it leads.
    heard: Option<(NodeId, ReplicaId, Vote)>,
    leadership: VecDeque<Leadership>,
    counters: Counters,
}

/// Counters of a replica since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub received: u64,
    /// Messages that could not be decoded, or were for another replica.
    pub malformed: u64,
    /// Requests without an answer because too many waited.
    pub overrun: u64,
    /// Reads of entries that were in memory.
    pub cached_reads: u64,
    /// Reads of entries from the log.
    pub stored_reads: u64,
}

/// Reason why a replica cannot start.
#[derive(Debug)]
pub enum StartError {
    Unreadable(Unreadable),
    /// A later version of the program wrote the log.
    UnsupportedVersion,
    Failed(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::UnsupportedVersion => f.write_str(UNSUPPORTED_VERSION),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StartError {}

fn settings(config: &Config) -> Result<openraft::Config, StartError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let settings = openraft::Config {
        cluster_name: format!("group {}", config.group.0),
        heartbeat_interval: millis(config.heartbeat),
        // The replica requests heartbeats: see `Replica::beat`.
        enable_heartbeat: false,
        election_timeout_min: millis(config.election_timeout),
        election_timeout_max: millis(config.election_timeout) * 2,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_after),
        // The replica purges the log itself: see `Replica::purge`.
        max_in_snapshot_log_to_keep: u64::MAX,
        // What is committed while the owner of the state machine is busy. The rest would hold up heartbeats.
        state_machine_channel_size: Some(1 << 20),
        enable_pre_vote: Some(!mutated(Mutation::SkipPreVote)),
        // A leader sends entries before its own disk has them. If it lost some and continued to lead, it would send
        // others in their place.
        enable_leader_restore: Some(mutated(Mutation::LeadOn)),
        // A disk may lose data that it has confirmed. The others send it again. With this off, the leader would assume
        // that the replica still has it.
        allow_log_reversion: Some(!mutated(Mutation::KeepToPromises)),
        ..openraft::Config::default()
    };
    settings.validate().map_err(|error| StartError::Failed(error.to_string()))
}

impl<S: StateMachine> Group<S> {
    /// Starts from the end of the log. `machine` is empty. Commands that were committed before have no effects.
    ///
    /// # Errors
    /// The log is damaged or of a later version. The replica must not vote, and comes back under another id.
    pub fn start(
        now: Time,
        config: Config,
        log: Log,
        storage_groups: StorageGroups,
        recovered: &[RecoveredGroup],
        mut machine: S,
    ) -> Result<Self, StartError> {
        let (jobs, mut effects) = (Jobs::default(), Vec::new());
        let cache_bytes = config.entry_cache_bytes;
        let store = Store::recover(log, storage_groups, recovered, cache_bytes, &mut machine);
        let store = store.map_err(|error| match error {
            NotRecovered::Unreadable(error) => StartError::Unreadable(error),
            NotRecovered::UnsupportedVersion => StartError::UnsupportedVersion,
        })?;
        store.set_bytes_in_flight(config.snapshot_bytes_in_flight);
        store.set_keeps_bodies(config.keeps_bodies);
        store.set_save_committed_after(config.save_committed_after);
        store.set_reports_held(config.reports_held);
        let mut work = || run_jobs(&jobs, &mut machine, &mut effects);
        let parts = ReplicaParts { store, storage_groups, jobs: jobs.clone(), is_stream: S::IS_STREAM };
        let replica = Replica::start(now, config, parts, &mut work)?;
        effects.clear();
        Ok(Self { replica, machine, effects })
    }

    /// Returns the replica and the state machine with all entries that are applied. From now on the owner calls
    /// [`Replica::turn`] and does the jobs of [`Replica::poll_job`]. Effects that were not taken are lost.
    pub fn into_parts(self) -> (Replica, S) {
        (self.replica, self.machine)
    }

    /// Runs the replica and its state machine. A long list of committed commands is applied in several turns: then
    /// [`Self::timeout`] is due at once.
    pub fn turn(&mut self, now: Time) {
        for _ in 0..Jobs::ROUNDS_MAX {
            self.replica.turn(now);
            if !run_jobs(&self.replica.jobs, &mut self.machine, &mut self.effects) {
                return;
            }
        }
        // The outcomes of the commands that were just applied.
        self.replica.turn(now);
    }

    /// Latest time of the next call of [`Self::turn`].
    pub fn timeout(&self) -> Time {
        if self.replica.jobs.is_empty() { self.replica.timeout() } else { self.replica.runtime.now() }
    }

    /// State machine with all entries that are applied here.
    pub fn state(&self) -> &S {
        &self.machine
    }

    /// State machine, for changes of what no command and no snapshot is about.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.machine
    }

    /// Takes the effects of the commands that were applied since the last call, in their order. To be called after each
    /// turn, before events are taken.
    pub fn drain_effects(&mut self) -> std::vec::Drain<'_, S::Effect> {
        self.effects.drain(..)
    }
}

/// Runs all jobs that wait. Returns false if there are none.
fn run_jobs<S: StateMachine>(jobs: &Jobs, machine: &mut S, effects: &mut Vec<S::Effect>) -> bool {
    let some = std::iter::from_fn(|| jobs.poll()).map(|job| job.run(machine, effects));
    some.count() > 0
}

/// Data and connections of a replica that starts.
struct ReplicaParts {
    store: Store,
    storage_groups: StorageGroups,
    jobs: Jobs,
    is_stream: bool,
}

impl<S: StateMachine> std::ops::Deref for Group<S> {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl<S: StateMachine> std::ops::DerefMut for Group<S> {
    fn deref_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }
}

impl Replica {
    fn start(
        now: Time,
        config: Config,
        parts: ReplicaParts,
        work: &mut dyn FnMut() -> bool,
    ) -> Result<Self, StartError> {
        let ReplicaParts { store, storage_groups, jobs, is_stream } = parts;
        // The groups of a node have their ticks together: with their heartbeats, or a fifth of a heartbeat apart.
        let otherwise = WakeTimes::of(config.own.node, config.heartbeat / 5);
        let ticks = TickTimes { calm: WakeTimes::every(config.heartbeat), otherwise };
        let mut runtime = Runtime::new(now, config.seed, ticks);
        let network = Network::new(&config, store.clone(), is_stream);
        let (machine, state) = Machine::new(jobs.clone(), store.clone());
        let settings = Arc::new(settings(&config)?);
        let raft = Raft::new(config.id, settings, network.clone(), store.clone(), machine);
        let raft = runtime.run_until(raft, work).map_err(|error| match sync::lock(&state).is_outdated {
            true => StartError::UnsupportedVersion,
            false => StartError::Failed(error.to_string()),
        })?;
        store.lock().started();
        runtime.run(now);
        let server = Arc::new(Server::new(store.clone(), state.clone(), jobs.clone(), &config, is_stream));
        Ok(Self {
            config,
            storage_groups,
            runtime,
            raft,
            network,
            store,
            state,
            server,
            jobs,
            writes: Writes::default(),
            events: Arc::default(),
            requests: 0,
            waiting: Arc::default(),
            snapshot_request: SnapshotRequest::default(),
            purge_requested: None,
            has_led: false,
            voters_of: None,
            leads: None,
            beats_at: Time::default(),
            heard: None,
            leadership: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    pub fn id(&self) -> ReplicaId {
        self.config.id
    }

    pub fn storage_groups(&self) -> StorageGroups {
        self.storage_groups
    }

    pub fn counters(&self) -> Counters {
        let reads = self.store.lock().read_counters();
        Counters { cached_reads: reads.cached, stored_reads: reads.stored, ..self.counters }
    }

    /// Number of bytes of entries in memory: at most [`Config::entry_cache_bytes`], apart from entries that are not
    /// durable.
    pub fn cached_bytes(&self) -> usize {
        self.store.lock().cached_bytes()
    }

    /// Sets the nodes whose version reads snapshots in parts. To others, a leader sends the
    /// [stream](StateMachine::IS_STREAM), if the state machine has one.
    pub fn set_part_readers(&mut self, nodes: BTreeSet<NodeId>) {
        self.network.set_part_readers(nodes);
    }

    /// Handles a frame of another node's replica.
    pub fn receive(&mut self, from: NodeId, frame: &[u8]) {
        let message = match wire::decode(frame) {
            Some(message) if (message.group, message.to) == (self.config.group, self.config.id) => message,
            _ => {
                self.counters.malformed += 1;
                return;
            }
        };
        self.counters.received += 1;
        if message.body.is_answer() {
            return self.network.answered(from, message.call, message.body);
        }
        match message.body {
            Body::Held { vote, last } => {
                let is_own = self.vote() == Some(vote) && self.store.lock().has(&last);
                if is_own && self.is_member(message.from, from) {
                    self.network.note_held((from, message.from), vote, last.index);
                }
                return;
            }
            Body::Append(ref append) => self.heard = Some((from, message.from, append.vote)),
            _ => {}
        }
        let Some(ticket) = self.ticket() else {
            self.counters.overrun += 1;
            return;
        };
        let (raft, network, server) = (self.raft.clone(), self.network.clone(), self.server.clone());
        let is_heartbeat = message.body.is_empty_append();
        let question = Question { node: from, replica: message.from, call: message.call, is_heartbeat };
        self.runtime.spawn(async move {
            let _ticket = ticket;
            let answer = server.serve(&raft, message.from, message.body).await;
            network.answer(&question, answer);
        });
    }

    /// Handles the loss of a node: it is cut off, or was restarted.
    pub fn lost(&mut self, node: NodeId) {
        self.network.lost(node);
    }

    /// Handles a durable write: an entry of one of [`Self::storage_groups`] and all before it are on the disk.
    pub fn durable(&mut self, group: GroupId, index: u64) {
        self.store.lock().durable(group, index);
    }

    pub fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        self.store.lock().checkpointed(group, index);
    }

    /// Handles further durable parts of a checkpoint.
    pub fn parts_durable(&mut self, group: GroupId, parts: u64) {
        self.store.lock().parts_durable(group, parts);
    }

    /// Handles the log's request to free a segment.
    pub fn vacate(&mut self, vacate: Vacate) {
        self.store.lock().vacate(vacate);
    }

    /// Index up to which the log of this node has the entries, durably: that of `storage`, see
    /// [`log_index`](crate::log_index). An entry can be committed before, when others have it.
    pub fn durable_in_log(&self) -> u64 {
        self.store.lock().durable_in_log()
    }

    /// Index in the log up to which the entries of this replica are sure to be those of a received snapshot, and the
    /// index of its last entry. `term` is that of [`Job::Prepare`]. `None`: up to which they are sure to be committed.
    pub fn entries_as_of(&self, term: Option<u64>) -> (u64, u64) {
        self.store.lock().entries_as_of(term)
    }

    /// Takes the next segment that is to be freed, with [`Config::keeps_bodies`]. The owner keeps what its state needs
    /// of these entries and bodies ([`Log::append_bodies`]), and calls [`Self::bodies_kept`] when that is durable.
    /// Entries that are not applied may need bodies of the segment, too. While a snapshot is restored, both states do.
    /// The owner is asked even if a snapshot has replaced all entries of the segment, and if the replica has stopped.
    pub fn poll_vacate(&mut self) -> Option<Vacate> {
        self.store.lock().poll_vacate()
    }

    /// Handles the end of the owner's work for a segment of [`Self::poll_vacate`]. The log may free it when a snapshot
    /// covers its entries.
    pub fn bodies_kept(&mut self, segment: SegmentId) {
        self.store.lock().bodies_kept(segment);
    }

    /// Takes the next job of the state machine. To be called after each [`Self::turn`] until it returns `None`. After
    /// an answer, the next turn may have the next job. The owner may answer later: several turns may pass, and
    /// [`Self::timeout`] does not count the job. Until then, Raft applies nothing more, and a snapshot waits. If the
    /// answer is dropped, the replica stops.
    pub fn poll_job(&mut self) -> Option<Job> {
        self.jobs.poll()
    }

    /// Takes a request to read entries or a part of a snapshot from the log. The owner runs it where a disk may be
    /// waited for, and passes its result to [`Self::handle_read`].
    pub fn poll_read(&mut self) -> Option<LogRead> {
        self.store.lock().poll_read()
    }

    /// Handles the result of a read. The replica stops if the log cannot be read.
    pub fn handle_read(&mut self, result: LogReadResult) {
        let read = self.store.lock().handle_read(result);
        if let Err(Unreadable(why)) = read {
            tracing::error!("consensus: the log cannot be read, {why}; the replica stops");
            self.fail(&why);
        }
    }

    /// Stops the replica after a failure of the log. The others notice its silence and elect another leader.
    pub fn fail(&mut self, why: &str) {
        self.store.lock().fail(why);
        let raft = self.raft.clone();
        self.runtime.spawn(async move {
            // The replica has already stopped if something waited for the log.
            let _ = raft.shutdown().await;
        });
    }

    /// Returns whether the log knows all entries that are committed. A process that starts again applies at least
    /// these.
    pub fn has_saved_committed(&self) -> bool {
        self.store.lock().has_saved_committed()
    }

    /// Runs the replica up to the point at which it waits for frames, the log, the owner or [`Self::timeout`].
    pub fn turn(&mut self, now: Time) {
        if self.jobs.take_dropped() && self.store.lock().failed().is_none() {
            tracing::error!("consensus: {DROPPED}; the replica stops");
            self.fail(DROPPED);
        }
        let applied = sync::lock(&self.state).applied.map_or(0, |applied| log_index(applied.index));
        {
            let mut raft_log = self.store.lock();
            raft_log.expire_checkpoint(now, applied);
            raft_log.save_delayed_committed();
        }
        self.free_segments();
        self.resume_snapshot(now);
        self.purge(now);
        self.beat(now);
        self.runtime.run(now);
        self.note_leadership();
        self.note_voters();
        self.report_held();
    }

    /// Tells the network which replicas vote, when that has changed.
    fn note_voters(&mut self) {
        let voters = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let members = &metrics.membership_config;
            if *members.log_id() == self.voters_of {
                return;
            }
            self.voters_of = *members.log_id();
            members.voter_ids().collect()
        };
        self.network.set_voters(voters);
    }

    /// Vote by which this replica leads.
    fn vote(&self) -> Option<Vote> {
        self.leads.map(|term| Vote::new_committed(term, self.config.id))
    }

    /// Reports entries of the leader that are in memory.
    fn report_held(&mut self) {
        let Some(last) = self.store.lock().held_mut().take_unreported() else { return };
        if let Some((node, leader, vote)) = self.heard.filter(|_| self.leads.is_none()) {
            self.network.report_held((node, leader), vote, last);
        }
    }

    /// Number of commands of [`Self::write`] in the present term that a majority of the replicas has, in memory at
    /// least, this one included. They are committed later, unless a majority loses them before that. Committed commands
    /// count, whether the others [report](Config::reports_held) what they have in memory or not. 0 while this replica
    /// follows.
    pub fn held_writes(&mut self) -> u64 {
        let Some(vote) = self.vote() else { return 0 };
        let mut raft_log = self.store.lock();
        let own = raft_log.last().map(|last| last.index);
        let index_of = |replica: ReplicaId| match replica == self.config.id {
            true => own,
            false => self.network.held(replica, vote),
        };
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let majority = |voters: &BTreeSet<ReplicaId>| {
            let mut indexes: Vec<_> = voters.iter().map(|voter| index_of(*voter)).collect();
            indexes.sort_unstable_by(|a, b| b.cmp(a));
            indexes.get(voters.len() / 2).copied().flatten()
        };
        let index = metrics.membership_config.membership().get_joint_config().iter().map(majority).min();
        raft_log.held_mut().advance(index.flatten())
    }

    /// Returns whether the group has this replica, on this node.
    fn is_member(&self, replica: ReplicaId, node: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let member = metrics.membership_config.membership().get_node(&replica);
        member.is_some_and(|member| member.node == node)
    }

    fn note_leadership(&mut self) {
        let has_stopped = self.runtime.panic().is_some() || self.store.lock().failed().is_some();
        let leads = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader && metrics.running_state.is_ok() && !has_stopped;
            leads.then_some(metrics.current_term)
        };
        if leads == self.leads {
            return;
        }
        if self.leads.is_some() {
            self.writes.end_term();
            self.leadership.push_back(Leadership::Follows);
        }
        self.store.lock().held_mut().set_term(leads);
        self.leadership.extend(leads.map(Leadership::Leads));
        self.leads = leads;
    }

    /// Latest time of the next call of [`Self::turn`].
    pub fn timeout(&self) -> Time {
        let beats_at = if self.leads.is_some() { self.beats_at } else { Time::NEVER };
        let checkpoint_due = self.store.lock().checkpoint_due(self.runtime.now());
        self.runtime.due().min(checkpoint_due).min(beats_at)
    }

    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.network.poll_transmit()
    }

    /// Takes the id of a replica that lacks entries that it had confirmed to this leader. The leader sends them again.
    /// Promises of that replica are worthless: its disk loses confirmed writes, or its log is an older copy.
    pub fn poll_regressed(&mut self) -> Option<ReplicaId> {
        self.network.poll_regressed()
    }

    /// Takes a change of the role of this replica. It leads and follows by turns.
    pub fn poll_leadership(&mut self) -> Option<Leadership> {
        self.leadership.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        sync::lock(&self.events).pop_front()
    }

    pub fn status(&self, now: Time) -> Status {
        let mut status = Status::new(&self.raft.metrics().borrow_watched(), now);
        if let Some(panic) = self.runtime.panic() {
            status.role = Role::Stopped;
            status.failure = Some(panic.to_owned());
        }
        if let Some(why) = self.store.lock().failed() {
            status.role = Role::Stopped;
            status.failure = Some(why.to_owned());
        }
        if sync::lock(&self.state).is_outdated {
            status.failure = Some(UNSUPPORTED_VERSION.to_owned());
        }
        status
    }

    /// Makes the first members of a group that has none. To be called on one of them; on others it does nothing.
    pub fn initialize(&mut self, members: BTreeMap<ReplicaId, Member>) -> RequestId {
        self.request(|raft| async move {
            match raft.initialize(members).await {
                Ok(()) | Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => {
                    Ok(Outcome::Changed)
                }
                Err(error) => Err(Undecided::Refused(error.to_string())),
            }
        })
    }

    /// Proposes the command, if this replica leads. After `limit` its outcome is unknown.
    pub fn propose(&mut self, command: Vec<u8>, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            match Runtime::timeout(limit, raft.client_write(Command(Arc::new(command)))).await {
                Ok(Ok(written)) => Ok(Outcome::Applied(written.log_id.index)),
                Ok(Err(RaftError::APIError(error))) => Err(undecided(error)),
                Ok(Err(RaftError::Fatal(_))) | Err(_) => Err(Undecided::Unknown),
            }
        })
    }

    /// Proposes a command without an event for it: the owner sees it when it is applied. Returns false, and does
    /// nothing, if this replica does not lead, if a change of its role waits in [`Self::poll_leadership`], or if
    /// [`Config::waiting_max`] commands wait. A command waits until it is applied or known to be lost.
    ///
    /// The commands of one period of leadership are appended in the order of the calls and without a gap: if one is not
    /// appended, no later one is. A lease that has expired and a transfer that is under way delay them. When the period
    /// ends ([`Leadership::Follows`]), those that are not in the log are lost. Those in the log may be committed later,
    /// or be lost: the committed ones are always the first ones of the period. [`Self::propose`] keeps no order with
    /// them.
    pub fn write(&mut self, command: Arc<Vec<u8>>) -> bool {
        let Some(term) = self.leads.filter(|_| self.leadership.is_empty()) else { return false };
        if self.writes.waiting() >= self.config.waiting_max {
            return false;
        }
        if self.writes.push(term, command) {
            self.runtime.spawn(self.writes.clone().pass_on(self.raft.clone(), self.config.id));
        }
        true
    }

    /// Number of commands of [`Self::write`] that are neither applied nor known to be lost.
    pub fn writes_waiting(&self) -> usize {
        self.writes.waiting()
    }

    /// Confirms with a majority that this replica still leads. The state after the event includes everything that was
    /// committed when this was called.
    pub fn read_barrier(&mut self, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            let read = raft.ensure_linearizable(openraft::raft::ReadPolicy::ReadIndex);
            match Runtime::timeout(limit, read).await {
                Ok(Ok(_)) => Ok(Outcome::Readable),
                Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to)))) => {
                    Err(Undecided::NotLeader(to.leader_id.zip(to.leader_node)))
                }
                Ok(Err(error)) => Err(Undecided::Refused(error.to_string())),
                Err(_) => Err(Undecided::Refused("no majority has answered".into())),
            }
        })
    }

    /// Changes the members, if this replica leads and the members are as it knows them.
    ///
    /// A leader without a vote still leads for a moment, and changes no members: `openraft` asserts that a leader that
    /// does has a vote. A leader whose vote ends with the change in progress completes that change, whatever is
    /// requested: the next leader does the rest.
    pub fn change_members(&mut self, change: Change, limit: Duration) -> RequestId {
        self.request(move |raft| async move {
            let metrics = raft.metrics().borrow_watched().clone();
            if !metrics.membership_config.voter_ids().any(|voter| voter == metrics.id) {
                return Err(Undecided::NotLeader(None));
            }
            let configs = metrics.membership_config.membership().get_joint_config();
            let change = match configs.last() {
                Some(target) if configs.len() > 1 && !target.contains(&metrics.id) => {
                    Change::SetVoters(target.clone())
                }
                _ => change,
            };
            let last_membership_log_id = *metrics.membership_config.log_id();
            let known = [Precondition::LastMembershipLogId { last_membership_log_id }];
            let (change, keeps) = match change {
                Change::AddLearner(id, member) => {
                    (ChangeMembers::AddNodes(BTreeMap::from([(id, member)])), true)
                }
                Change::SetVoters(voters) => (ChangeMembers::ReplaceAllVoters(voters), false),
                Change::RemoveLearner(id) => (ChangeMembers::RemoveNodes(BTreeSet::from([id])), false),
            };
            match Runtime::timeout(limit, raft.change_membership_if(change, keeps, known)).await {
                Ok(Ok(_)) => Ok(Outcome::Changed),
                Ok(Err(RaftError::APIError(error))) => Err(undecided(error)),
                Ok(Err(RaftError::Fatal(_))) | Err(_) => Err(Undecided::Unknown),
            }
        })
    }

    /// Transfers the leadership to another voter, if this replica leads. Until then nothing is committed. The transfer
    /// is given up when the voter has not taken over within twice [`Config::election_timeout`]. Then this replica leads
    /// no more either, until there is an election.
    pub fn transfer(&mut self, to: ReplicaId) -> RequestId {
        let (timeout, store) = (self.config.election_timeout * 2, self.store.clone());
        self.request(move |raft| async move {
            let metrics = raft.metrics().borrow_watched().clone();
            if !raft.is_leader() {
                return Err(Undecided::NotLeader(None));
            }
            let is_voter = metrics.membership_config.voter_ids().any(|voter| voter == to);
            if !is_voter || to == metrics.id {
                return Err(Undecided::Refused(format!("{to} is not another voter")));
            }
            let stopped = |fatal: openraft::errors::Fatal<Types>| Undecided::Refused(fatal.to_string());
            raft.trigger().transfer_leader(to).await.map_err(stopped)?;
            let term = metrics.current_term;
            let gone = raft
                .wait(Some(timeout))
                .metrics(
                    |now| now.current_term > term || now.state != openraft::ServerState::Leader,
                    "handed over",
                )
                .await;
            if gone.is_ok() && !raft.is_leader() {
                return Ok(Outcome::Transferred);
            }
            // A leader that waits for another one sends no heartbeats and takes no commands, without an end, and
            // `openraft` lets no leader stand for election. So it votes for the other one in the next term, as if that
            // had asked. Then it follows, and any replica with all entries can be elected.
            let vote = Vote { leader_id: LeaderId::new(term + 1, to), committed: false };
            while raft.is_leader() && raft.metrics().borrow_watched().current_term == term {
                let mut request = VoteRequest::new(vote, store.lock().last());
                request.leadership_transfer = true;
                raft.vote(request).await.map_err(|error| Undecided::Refused(error.to_string()))?;
                Runtime::sleep(STEP_DOWN_AGAIN).await;
            }
            Err(Undecided::Refused(format!("{to} has not taken over")))
        })
    }

    /// Starts a request, or refuses it at once when too many wait.
    fn request<F>(&mut self, ask: impl FnOnce(Raft) -> F) -> RequestId
    where
        F: Future<Output = Result<Outcome, Undecided>> + Send + 'static,
    {
        self.requests += 1;
        let request = RequestId(self.requests);
        let events = self.events.clone();
        let Some(ticket) = self.ticket() else {
            let outcome = Err(Undecided::Refused("too many proposals wait".into()));
            sync::lock(&events).push_back(Event { request, outcome });
            return request;
        };
        let future = ask(self.raft.clone());
        self.runtime.spawn(async move {
            let _ticket = ticket;
            let outcome = future.await;
            sync::lock(&events).push_back(Event { request, outcome });
        });
        request
    }

    fn ticket(&self) -> Option<Ticket> {
        if self.waiting.load(Ordering::Relaxed) >= self.config.waiting_max {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Ticket(self.waiting.clone()))
    }

    /// Requests a snapshot that covers the segments to be freed.
    fn free_segments(&mut self) {
        let Some(wanted) = self.store.lock().wanted_snapshot() else { return };
        let applied = sync::lock(&self.state).applied.map(|applied| applied.index);
        let previous = self.raft.metrics().borrow_watched().snapshot.map(|last| last.index);
        let request = SnapshotRequest { last: applied, previous };
        // `openraft` ignores the request while it makes another snapshot.
        let is_done = self.snapshot_request.last >= applied && self.snapshot_request.previous == previous;
        if applied < Some(wanted) || is_done {
            return;
        }
        self.snapshot_request = request;
        self.request_snapshot();
    }

    /// Requests a snapshot again that a transfer has held up.
    fn resume_snapshot(&mut self, now: Time) {
        if self.store.lock().take_deferred(now) {
            self.request_snapshot();
        }
    }

    fn request_snapshot(&self) {
        let raft = self.raft.clone();
        self.runtime.spawn(async move {
            if let Err(fatal) = raft.trigger().snapshot().await {
                tracing::error!(%fatal, "consensus: snapshot failed; log segments are kept");
            }
        });
    }

    /// Sends a heartbeat at each multiple of [`Config::heartbeat`] on the clock of the owner. So those of all groups of
    /// a node are sent together, and an owner can put them into one frame for each node. `openraft` would send them at
    /// random times.
    fn beat(&mut self, now: Time) {
        if self.leads.is_none() || now < self.beats_at {
            return;
        }
        let interval = (self.config.heartbeat.as_micros() as u64).max(1);
        self.beats_at = Time((now.0 / interval + 1).saturating_mul(interval));
        let (raft, lease) = (self.raft.clone(), self.config.lease());
        self.runtime.spawn(async move {
            Runtime::stay_calm(lease);
            // The replica may have stopped.
            let _ = raft.trigger().heartbeat().await;
        });
    }

    /// Purges entries that are in a snapshot: all but [`Config::keep_entries`] and those that a replica needs which
    /// installs a snapshot. Also purges those in segments to be freed.
    fn purge(&mut self, now: Time) {
        let (snapshot, purged, leads) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let Some(snapshot) = &metrics.snapshot else { return };
            let purged = metrics.purged.map(|last| last.index);
            (snapshot.index, purged, metrics.state == ServerState::Leader)
        };
        let (kept_after, wanted) = {
            let raft_log = self.store.lock();
            (raft_log.kept_after(now), raft_log.wanted_purge().filter(|wanted| *wanted <= snapshot))
        };
        let old = snapshot.checked_sub(self.config.keep_entries);
        let old = old.map(|old| kept_after.map_or(old, |last| last.min(old)));
        let mut last = old.max(wanted);
        if std::mem::replace(&mut self.has_led, leads) && !leads && purged < self.purge_requested {
            // `openraft` does not repeat a purge that it postponed as a leader, and ignores a request for the same one.
            // It purges nothing after the snapshot.
            last = last.max(self.purge_requested.map(|requested| requested + 1));
        }
        let Some(last) = last.filter(|last| Some(*last) > self.purge_requested) else { return };
        self.purge_requested = Some(last.min(snapshot));
        let raft = self.raft.clone();
        self.runtime.spawn(async move {
            if let Err(fatal) = raft.trigger().purge_log(last).await {
                tracing::error!(%fatal, "consensus: entries cannot be purged; log segments are kept");
            }
        });
    }
}

/// Request of a snapshot, by which the replica knows whether to request another one.
#[derive(Default)]
struct SnapshotRequest {
    /// Last entry of the requested snapshot.
    last: Option<u64>,
    /// Last entry of the snapshot before it.
    previous: Option<u64>,
}

fn undecided(error: ClientWriteError<Types>) -> Undecided {
    match error {
        ClientWriteError::ForwardToLeader(to) => Undecided::NotLeader(to.leader_id.zip(to.leader_node)),
        ClientWriteError::LogEntryDiscarded(_) => Undecided::Unknown,
        ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_)) => {
            Undecided::Refused("another change of the members is in progress".into())
        }
        other => Undecided::Refused(other.to_string()),
    }
}

/// Share of the limit of waiting requests.
struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
